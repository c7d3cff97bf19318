// SPDX-License-Identifier: GPL-2.0

//! Scatter/gather lists whose memory has to be fetched.
//!
//! Context: process; takes as long as page faults do.

use kernel_ext::rdma::wr::WcStatus;

use crate::{
    mem::{
        mr::{
            LocalUse,
            PdId, //
        },
        sge::{
            NotCopied,
            SgeAccess,
            Slice,
            Slices, //
        }, //
    },
    odp::mr::RegionRange, //
};

impl Slice {
    /// Reads octets from `offset` on into a private buffer, and fetches absent pages.
    fn fetch(&self, pd: PdId, offset: u32, octets: &mut [u8]) -> Result<(), NotCopied> {
        let (access, len) = (SgeAccess::source(pd), octets.len());
        let mut range = None;
        let read = self.copy(access, offset, len, |inside, at| {
            let source = LocalUse::Source;
            range = Some(RegionRange::new(&self.region, inside, at, len, source));
            Ok(inside.memory().read(at, octets)?)
        });
        // The access has ended, since a page fault sleeps.
        match (read, range) {
            (Err(NotCopied::Absent(_)), Some(range)) => Ok(range.fetch()?.read(0, octets)?),
            (read, _) => read,
        }
    }
}

impl Slices {
    /// Reads octets from `offset` on into a private buffer, and fetches absent pages.
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
}
