// SPDX-License-Identifier: GPL-2.0

//! Scatter/gather lists, resolved: from keys and addresses to regions.
//!
//! What enters: the elements of a work request, of which nothing has been checked. What leaves: a
//! [`Slices`] whose every element lies inside a region of the queue pair's protection domain with
//! the rights that are needed, and copies between it and the wire. A region may still be revoked
//! after that; each copy enters it anew and fails if it is gone (RDMAP-165).
//!
//! Context: any; nothing here sleeps.

use core::cmp::min;

use iwarp::stag::Stag;
use kernel::{
    prelude::*,
    sync::Arc, //
};
use kernel_ext::{
    mm::place::Memory,
    net::{
        Inbound,
        TxBatch, //
    },
    rdma::wr::WcStatus, //
};

use crate::{
    context::PdId,
    device::Device,
    mr::{
        LocalUse,
        Region, //
    },
    wr::{
        SgeList,
        MAX_SGE, //
    }, //
};

/// The region under the STag that was asked for last.
///
/// Most streams use few regions, one message after the other; a hit costs one comparison. A region
/// in here may have been revoked since: the check inside it says so.
#[derive(Default)]
pub(crate) struct RegionCache(Option<Arc<Region>>);

impl RegionCache {
    /// Finds the region that has this STag, key octet included.
    pub(crate) fn get(&mut self, device: &Device, stag: Stag) -> Option<&Arc<Region>> {
        let hit = matches!(&self.0, Some(region) if region.stag() == stag && region.is_open());
        if !hit {
            self.0 = device.region(stag);
        }
        self.0.as_ref()
    }
}

/// A piece of one region that a local work request uses.
#[derive(Clone)]
pub(crate) struct Slice {
    region: Arc<Region>,
    key: Stag,
    pd: PdId,
    usage: LocalUse,
    /// I/O virtual address of the first octet.
    addr: u64,
    /// Octets, not 0.
    len: u32,
}

impl Slice {
    /// Copies `len` octets from `offset` on into the batch.
    fn copy_to_batch(&self, offset: u32, len: usize, batch: &mut TxBatch) -> Result<(), WcStatus> {
        self.inside(offset, len, |memory, at| {
            memory.copy_to_batch(at, len, batch)
        })
    }

    /// Places `len` octets, which wait at `pos`, from `offset` on.
    ///
    /// # Errors
    ///
    /// The region was revoked meanwhile, or has other rights now.
    pub(crate) fn place(
        &self,
        offset: u32,
        inbound: &mut Inbound<'_>,
        pos: usize,
        len: usize,
    ) -> Result<(), WcStatus> {
        self.inside(offset, len, |memory, at| {
            memory.copy_from_inbound(at, inbound, pos, len)
        })
    }

    /// The key that the work request named.
    pub(crate) fn key(&self) -> Stag {
        self.key
    }

    /// I/O virtual address of the first octet.
    pub(crate) fn addr(&self) -> u64 {
        self.addr
    }

    /// Checks once more and copies, both in one visit of the region.
    fn inside(
        &self,
        offset: u32,
        len: usize,
        copy: impl FnOnce(&Memory, u64) -> Result,
    ) -> Result<(), WcStatus> {
        let refused = WcStatus::LocalProtection;
        let addr = self.addr.checked_add(u64::from(offset)).ok_or(refused)?;
        let len = u32::try_from(len).map_err(|_| refused)?;
        let inside = self.region.enter().ok_or(refused)?;
        let at = self
            .region
            .check_local_inside(&inside, self.key, self.pd, addr, len, self.usage)?;
        copy(inside.memory(), at).map_err(|_| refused)
    }
}

/// A resolved list; empty elements are left out.
#[derive(Default)]
pub(crate) struct Slices {
    list: [Option<Slice>; MAX_SGE],
}

impl Slices {
    /// Checks every element of `list`.
    ///
    /// # Errors
    ///
    /// One of the elements may not be used so by the protection domain `pd`.
    pub(crate) fn resolve(
        list: &SgeList,
        device: &Device,
        pd: PdId,
        usage: LocalUse,
        cache: &mut RegionCache,
    ) -> Result<Self, WcStatus> {
        let mut slices = Self::default();
        let mut places = slices.list.iter_mut();
        for sge in list.as_slice().iter().filter(|sge| sge.len != 0) {
            let key = Stag::new(sge.lkey);
            let region = cache.get(device, key).ok_or(WcStatus::LocalProtection)?;
            region.check_local(key, pd, sge.addr, sge.len, usage)?;
            if let Some(place) = places.next() {
                *place = Some(Slice {
                    region: region.clone(),
                    key,
                    pd,
                    usage,
                    addr: sge.addr,
                    len: sge.len,
                });
            }
        }
        Ok(slices)
    }

    /// The first element; [`None`] if the list holds no octets.
    pub(crate) fn into_first(self) -> Option<Slice> {
        let [first, ..] = self.list;
        first
    }

    /// Copies the `len` octets at `offset` of the list into the batch.
    pub(crate) fn copy_to_batch(
        &self,
        offset: u32,
        len: usize,
        batch: &mut TxBatch,
    ) -> Result<(), WcStatus> {
        self.walk(offset, len, |slice, at, piece, _| {
            slice.copy_to_batch(at, piece, batch)
        })
    }

    /// Places the `len` octets that wait at `pos` at `offset` of the list.
    pub(crate) fn place(
        &self,
        offset: u32,
        inbound: &mut Inbound<'_>,
        pos: usize,
        len: usize,
    ) -> Result<(), WcStatus> {
        self.walk(offset, len, |slice, at, piece, done| {
            slice.place(
                at,
                inbound,
                pos.checked_add(done).ok_or(WcStatus::LocalProtection)?,
                piece,
            )
        })
    }

    /// Calls `f(slice, offset in the slice, octets, octets done before)` for each piece of a range.
    fn walk(
        &self,
        offset: u32,
        len: usize,
        mut f: impl FnMut(&Slice, u32, usize, usize) -> Result<(), WcStatus>,
    ) -> Result<(), WcStatus> {
        let mut skip = offset;
        let mut done = 0;
        for slice in self.list.iter().flatten() {
            if done == len {
                break;
            }
            if skip >= slice.len {
                skip -= slice.len;
                continue;
            }
            let piece = min((slice.len - skip) as usize, len - done);
            f(slice, skip, piece, done)?;
            skip = 0;
            done += piece;
        }
        // A list that is shorter than the message was refused before.
        if done == len {
            Ok(())
        } else {
            Err(WcStatus::LocalProtection)
        }
    }
}
