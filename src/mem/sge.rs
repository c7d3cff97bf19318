// SPDX-License-Identifier: GPL-2.0

//! Resolved scatter/gather lists: from keys and addresses to regions.
//!
//! A [`Slices`] is made from the unchecked elements of a work request, and copies between memory
//! and the wire. Each element must lie inside a region of the queue pair's protection domain, or of
//! the shared receive queue's for a receive from one, with the rights needed. This is checked when
//! the list is resolved or, if one copy takes all of it, by that copy. A region may be revoked
//! later; each copy accesses it again and fails if it was revoked (RDMAP-165).
//!
//! Context: any; nothing here sleeps.

use core::cmp::min;

use iwarp::stag::Stag;
use kernel::{
    prelude::*,
    sync::Arc, //
};
use kernel_ext::{
    rdma::{
        mem::mem_map::Memory,
        wr::WcStatus, //
    },
    sync::BhOff, //
};

use crate::mem::{
    mr::{
        LocalUse,
        PdId,
        Region,
        RegionGuard, //
    },
    payload::{
        Payload,
        MAX_SGE, //
    },
    regions::Regions, //
};

#[cfg(CONFIG_KUNIT = "y")]
mod tests;

/// Why a copy was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotCopied {
    /// The memory must be paged in first. So many octets were copied, and are not to be copied
    /// again.
    Absent(usize),
    /// The request ends with this status.
    Refused(WcStatus),
}

impl From<WcStatus> for NotCopied {
    #[inline]
    fn from(status: WcStatus) -> Self {
        Self::Refused(status)
    }
}

impl From<Error> for NotCopied {
    /// Converts the error of a failed copy, or of a failed fetch of memory for one.
    #[cold]
    fn from(error: Error) -> Self {
        match error {
            EAGAIN => Self::Absent(0),
            // Memory stays short; the request itself was right.
            ENOMEM => Self::Refused(WcStatus::LocalQpOperation),
            _ => Self::Refused(WcStatus::LocalProtection),
        }
    }
}

/// Caches the region that was looked up last.
///
/// Most streams use few regions, one message after the other; a hit costs one comparison. A cached
/// region may have been revoked since; the check under its guard detects that.
#[derive(Default)]
pub(crate) struct RegionCache(Option<Arc<Region>>);

impl RegionCache {
    /// Finds the region that has this STag, key octet included.
    pub(crate) fn get(&mut self, regions: &Regions, stag: Stag) -> Option<&Arc<Region>> {
        let hit = matches!(&self.0, Some(region) if region.stag() == stag && region.is_open());
        if !hit {
            self.0 = regions.region(stag);
        }
        self.0.as_ref()
    }

    /// Returns the region that was looked up last.
    pub(crate) fn last(&self) -> Option<&Arc<Region>> {
        self.0.as_ref()
    }
}

/// A piece of one region that a local work request uses.
#[derive(Clone)]
pub(crate) struct Slice {
    pub(crate) region: Arc<Region>,
    pub(crate) key: Stag,
    /// I/O virtual address of the first octet.
    pub(crate) addr: u64,
    /// Octets, not 0.
    pub(crate) len: u32,
}

/// How a local work request accesses memory.
#[derive(Clone, Copy)]
pub(crate) struct SgeAccess<'a> {
    pd: PdId,
    usage: LocalUse,
    /// Of the region of all elements; [`None`] if each copy is to access its region.
    inside: Option<&'a RegionGuard<'a>>,
    /// Present if the caller has bottom halves off.
    off: Option<BhOff<'a>>,
}

impl<'a> SgeAccess<'a> {
    /// Reads octets, for the protection domain `pd`.
    #[inline(always)]
    pub(crate) fn source(pd: PdId) -> Self {
        Self {
            pd,
            usage: LocalUse::Source,
            inside: None,
            off: None,
        }
    }

    /// Places octets, for the protection domain `pd`.
    #[inline(always)]
    pub(crate) fn sink(pd: PdId, off: BhOff<'a>) -> Self {
        Self {
            pd,
            usage: LocalUse::Sink,
            inside: None,
            off: Some(off),
        }
    }

    /// Returns the same for elements that all are pieces of the region of this guard.
    #[inline(always)]
    pub(crate) fn under<'b>(self, inside: &'b RegionGuard<'b>) -> SgeAccess<'b>
    where
        'a: 'b,
    {
        SgeAccess {
            inside: Some(inside),
            ..self
        }
    }
}

impl Slice {
    /// Checks the `len` octets from `offset` on, and calls `copy(inside, offset in the region)`
    /// while the region is accessible.
    ///
    /// # Errors
    ///
    /// [`WcStatus::LocalProtection`] if the region was revoked meanwhile or may not be used so; as
    /// `copy`.
    #[inline(always)]
    pub(crate) fn copy<E: From<WcStatus>>(
        &self,
        access: SgeAccess<'_>,
        offset: u32,
        len: usize,
        copy: impl FnOnce(&RegionGuard<'_>, u64) -> Result<(), E>,
    ) -> Result<(), E> {
        let refused = WcStatus::LocalProtection;
        let opened;
        let inside = match access.inside {
            Some(inside) => inside,
            None => {
                opened = self.region.open(access.off).ok_or(refused)?;
                &opened
            }
        };
        let addr = self.addr.checked_add(u64::from(offset)).ok_or(refused)?;
        let octets = u32::try_from(len).map_err(|_| refused)?;
        let SgeAccess { pd, usage, .. } = access;
        let at = self
            .region
            .check_local_inside(inside, self.key, pd, addr, octets, usage)?;
        copy(inside, at)
    }

    /// Returns the key that the work request named.
    pub(crate) fn key(&self) -> Stag {
        self.key
    }

    /// Returns the I/O virtual address of the first octet.
    pub(crate) fn addr(&self) -> u64 {
        self.addr
    }
}

/// A resolved list without its empty elements.
#[derive(Clone, Default)]
pub(crate) struct Slices {
    pub(crate) list: [Option<Slice>; MAX_SGE],
    /// Entries in use; all later ones are empty.
    pub(crate) used: usize,
}

impl Slices {
    /// Takes over the elements of `list` and checks each one.
    ///
    /// # Errors
    ///
    /// The protection domain `pd` may not use one of the elements this way.
    #[inline]
    pub(crate) fn resolve(
        &mut self,
        list: &Payload,
        regions: &Regions,
        pd: PdId,
        usage: LocalUse,
        cache: &mut RegionCache,
    ) -> Result<(), WcStatus> {
        self.find(list, regions, cache)?;
        for slice in self.iter() {
            let Slice { key, addr, len, .. } = *slice;
            slice.region.check_local(key, pd, addr, len, usage)?;
        }
        Ok(())
    }

    /// Takes over the elements of `list` unchecked, for one copy of the whole list, which checks
    /// them.
    ///
    /// # Errors
    ///
    /// One of the elements names no region.
    #[inline]
    pub(crate) fn find(
        &mut self,
        list: &Payload,
        regions: &Regions,
        cache: &mut RegionCache,
    ) -> Result<(), WcStatus> {
        let mut sges = list.sges();
        // The usual case: one element, of the same region as the last time.
        if let ([Some(slice), ..], 1, 1) = (&mut self.list, self.used, sges.len()) {
            if let Some(sge) = sges.next().filter(|sge| sge.len != 0) {
                let key = Stag::new(sge.lkey);
                if slice.key == key && slice.region.stag() == key && slice.region.is_open() {
                    (slice.addr, slice.len) = (sge.addr, sge.len);
                    return Ok(());
                }
            }
        }
        self.find_each(list, regions, cache)
    }

    /// The general case of [`Slices::find`].
    fn find_each(
        &mut self,
        list: &Payload,
        regions: &Regions,
        cache: &mut RegionCache,
    ) -> Result<(), WcStatus> {
        let mut places = self.list.iter_mut();
        let mut used = 0;
        for sge in list.sges().filter(|sge| sge.len != 0) {
            let key = Stag::new(sge.lkey);
            let region = cache.get(regions, key).ok_or(WcStatus::LocalProtection)?;
            match places.next() {
                // The same region as the last time, which is usual.
                Some(Some(slice)) if Arc::ptr_eq(&slice.region, region) => {
                    (slice.key, slice.addr, slice.len) = (key, sge.addr, sge.len);
                }
                Some(place) => {
                    *place = Some(Slice {
                        region: region.clone(),
                        key,
                        addr: sge.addr,
                        len: sge.len,
                    });
                }
                None => return Err(WcStatus::LocalProtection),
            }
            used += 1;
            // If the next element fails, `used` still covers all entries in use.
            self.used = self.used.max(used);
        }
        let stale = self.used.saturating_sub(used);
        places.take(stale).for_each(|place| *place = None);
        self.used = used;
        Ok(())
    }

    /// Takes the first element; [`None`] if the list holds no octets.
    pub(crate) fn take_first(&mut self) -> Option<Slice> {
        let [first, ..] = &mut self.list;
        first.take()
    }

    /// Returns the element of a list of one.
    pub(crate) fn only(&self) -> Option<&Slice> {
        let [first, ..] = &self.list;
        first.as_ref().filter(|_| self.used == 1)
    }

    /// Returns the region that all elements are pieces of; [`None`] if there are several, or if the
    /// list holds no octets.
    #[inline]
    pub(crate) fn only_region(&self) -> Option<&Arc<Region>> {
        let mut slices = self.iter();
        let region = &slices.next()?.region;
        slices
            .all(|slice| Arc::ptr_eq(&slice.region, region))
            .then_some(region)
    }

    fn iter(&self) -> impl Iterator<Item = &Slice> {
        self.list.iter().take(self.used).flatten()
    }

    /// Checks the `len` octets at `offset` of the list, and copies each piece of them by
    /// `copy(memory, offset in it, octets, octets done before)` while its region is accessible.
    ///
    /// # Errors
    ///
    /// As [`Slice::copy`]; also if the list is shorter.
    #[inline(always)]
    pub(crate) fn copy(
        &self,
        access: SgeAccess<'_>,
        offset: u32,
        len: usize,
        mut copy: impl FnMut(&Memory, u64, usize, usize) -> Result,
    ) -> Result<(), NotCopied> {
        // Usually the range is a piece of the first slice.
        match self.first_with(offset, len) {
            Some(slice) => slice.copy(access, offset, len, |inside, at| {
                Ok(copy(inside.memory(), at, len, 0)?)
            }),
            None => self.copy_pieces(access, offset, len, copy),
        }
    }

    /// The general case of [`Slices::copy`].
    #[inline(never)]
    fn copy_pieces(
        &self,
        access: SgeAccess<'_>,
        offset: u32,
        len: usize,
        mut copy: impl FnMut(&Memory, u64, usize, usize) -> Result,
    ) -> Result<(), NotCopied> {
        let opened;
        let mut shared: SgeAccess<'_> = access;
        if access.inside.is_none() && self.used > 1 {
            if let Some(region) = self.only_region() {
                let inside = region.open(access.off);
                opened = inside.ok_or(WcStatus::LocalProtection)?;
                shared = access.under(&opened);
            }
        }
        self.walk(offset, len, |slice, offset, piece, done| {
            slice
                .copy(shared, offset, piece, |inside, at| {
                    copy(inside.memory(), at, piece, done).map_err(NotCopied::from)
                })
                .map_err(|why| match why {
                    NotCopied::Absent(_) => NotCopied::Absent(done),
                    refused @ NotCopied::Refused(_) => refused,
                })
        })
    }

    /// Returns the first slice if it contains the whole range, which is usual.
    #[inline]
    fn first_with(&self, offset: u32, len: usize) -> Option<&Slice> {
        let [first, ..] = &self.list;
        let end = u64::from(offset).checked_add(len as u64)?;
        first
            .as_ref()
            .filter(|slice| self.used != 0 && len != 0 && end <= u64::from(slice.len))
    }

    /// Calls `f(slice, offset in the slice, octets, octets done before)` for each piece of a range.
    #[inline]
    pub(crate) fn walk<E: From<WcStatus>>(
        &self,
        offset: u32,
        len: usize,
        mut f: impl FnMut(&Slice, u32, usize, usize) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut skip = offset;
        let mut done = 0;
        for slice in self.iter() {
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
        // A list shorter than the message was refused before.
        if done == len {
            Ok(())
        } else {
            Err(WcStatus::LocalProtection.into())
        }
    }
}
