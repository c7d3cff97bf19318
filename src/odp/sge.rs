// SPDX-License-Identifier: GPL-2.0

//! Scatter/gather lists whose memory has to be fetched.
//!
//! Context: as each function says.

use kernel::prelude::*;
use kernel_ext::{
    mm::mem_map::Memory,
    net::Inbound,
    rdma::wr::WcStatus, //
};

use crate::{
    mem::{
        mr::LocalUse,
        pd::PdId,
        sge::{
            NotCopied,
            Slice,
            Slices, //
        }, //
    },
    odp::mr::Wanted, //
};

impl Slice {
    /// Returns the memory to fetch for a copy of `len` octets from `offset` on; [`None`] if the
    /// copy is not allowed any more.
    ///
    /// Context: any.
    pub(crate) fn wanted(
        &self,
        pd: PdId,
        usage: LocalUse,
        offset: u32,
        len: usize,
    ) -> Option<Wanted> {
        let addr = self.addr.checked_add(offset.into())?;
        let octets = u32::try_from(len).ok()?;
        let (region, inside) = (&self.region, self.region.try_access()?);
        let at = region
            .check_local_inside(&inside, self.key, pd, addr, octets, usage)
            .ok()?;
        Some(Wanted::new(region, &inside, at, len, usage))
    }

    /// As [`Slice::place`], into fetched memory.
    ///
    /// # Errors
    ///
    /// The region was revoked meanwhile, or has other rights now.
    pub(crate) fn place_in(
        &self,
        memory: &Memory,
        pd: PdId,
        offset: u32,
        inbound: &mut Inbound<'_>,
        pos: usize,
        len: usize,
    ) -> Result<(), NotCopied> {
        let inside = self.region.try_access();
        let inside = inside.ok_or(WcStatus::LocalProtection)?;
        self.inside(&inside, pd, LocalUse::Sink, offset, len, |_, _| {
            memory.copy_from_inbound(0, inbound, pos, len)
        })
    }

    /// As [`Slice::put`], into fetched memory.
    ///
    /// # Errors
    ///
    /// As [`Slice::place_in`].
    pub(crate) fn put_in(&self, memory: &Memory, pd: PdId, octets: &[u8]) -> Result<(), NotCopied> {
        let (inside, len) = (self.region.try_access(), octets.len());
        let inside = inside.ok_or(WcStatus::LocalProtection)?;
        self.inside(&inside, pd, LocalUse::Sink, 0, len, |_, _| {
            memory.write(0, octets)
        })
    }

    /// Reads octets from `offset` on into a private buffer, and fetches absent pages.
    ///
    /// Context: process; takes as long as page faults do.
    fn fetch(&self, pd: PdId, offset: u32, octets: &mut [u8]) -> Result<(), NotCopied> {
        let len = octets.len();
        // The access ends here, since a page fault sleeps.
        let read = {
            let inside = self.region.try_access().ok_or(WcStatus::LocalProtection)?;
            self.inside(&inside, pd, LocalUse::Source, offset, len, |memory, at| {
                memory.read(at, octets)
            })
        };
        if !matches!(read, Err(NotCopied::Absent(_))) {
            return read;
        }
        let refused = NotCopied::Refused(WcStatus::LocalProtection);
        let wanted = self.wanted(pd, LocalUse::Source, offset, len);
        Ok(wanted.ok_or(refused)?.fetch()?.read(0, octets)?)
    }
}

impl Slices {
    /// Reads octets from `offset` on into a private buffer, and fetches absent pages.
    ///
    /// Context: process; takes as long as page faults do.
    ///
    /// # Errors
    ///
    /// One of the regions was revoked, or its memory cannot be fetched.
    pub(crate) fn fetch(&self, pd: PdId, offset: u32, octets: &mut [u8]) -> Result<(), NotCopied> {
        self.walk(offset, octets.len(), |slice, at, piece, done| {
            let octets = octets.get_mut(done..done + piece);
            slice.fetch(pd, at, octets.ok_or(WcStatus::LocalProtection)?)
        })
    }

    /// Returns the first piece of the `len` octets at `offset`: its slice, the offset in the slice,
    /// and its length.
    ///
    /// Context: any.
    pub(crate) fn first_piece(&self, offset: u32, len: usize) -> Option<(Slice, u32, usize)> {
        let mut first = None;
        // Stops after the first piece.
        let _ = self.walk(offset, len, |slice, at, piece, _| {
            first = Some((slice.clone(), at, piece));
            Err(NotCopied::Absent(0))
        });
        first
    }
}
