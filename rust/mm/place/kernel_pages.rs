// SPDX-License-Identifier: GPL-2.0

//! Pages that a kernel consumer registers fast.

use super::Run;
use crate::rdma::types::KernelOwned;
use core::marker::PhantomData;
use kernel::prelude::*;
use kernel::sync::atomic::Atomic;
use kernel::sync::atomic::Relaxed;
use kernel::sync::Arc;

/// The pages that a kernel consumer registered fast; the room for them is made once.
///
/// The consumer may map anew only while the region is invalid; should it do so all the same,
/// readers see addresses of the old list and of the new one mixed, all of which it passed itself.
pub struct KernelPages {
    pages: KVVec<Atomic<u64>>,
    used: Atomic<u32>,
    /// Offset of the first octet in the first page.
    skip: Atomic<u64>,
    len: Atomic<u64>,
    page_shift: Atomic<u32>,
}

impl KernelPages {
    /// Makes room for `max` pages.
    ///
    /// # Errors
    ///
    /// * `EINVAL` if `max` is 0.
    /// * `ENOMEM` if there is no room.
    pub fn try_new(_proof: KernelOwned, max: u32) -> Result<Arc<Self>> {
        if max == 0 {
            return Err(EINVAL);
        }
        // CAST: 32 bits fit.
        let mut pages = KVVec::with_capacity(max as usize, GFP_KERNEL)?;
        for _ in 0..max {
            pages.push(Atomic::new(0), GFP_KERNEL)?;
        }
        let this = Self {
            pages,
            used: Atomic::new(0),
            skip: Atomic::new(0),
            len: Atomic::new(0),
            page_shift: Atomic::new(12),
        };
        Ok(Arc::new(this, GFP_KERNEL)?)
    }

    /// Forgets all pages.
    pub(crate) fn clear(&self) {
        self.len.store(0, Relaxed);
        self.used.store(0, Relaxed);
    }

    /// Appends a page of a kernel consumer.
    pub(crate) fn push(&self, page: u64) -> Result {
        let used = self.used.load(Relaxed);
        // CAST: 32 bits fit.
        let slot = self.pages.get(used as usize).ok_or(ENOMEM)?;
        slot.store(page, Relaxed);
        self.used.store(used + 1, Relaxed);
        Ok(())
    }

    /// Sets where in the pages the octets are, after all pages are appended.
    pub(crate) fn finish(&self, iova: u64, len: u64, page_size: u32) {
        let page_size = page_size.max(1);
        self.page_shift.store(page_size.trailing_zeros(), Relaxed);
        self.skip.store(iova & u64::from(page_size - 1), Relaxed);
        self.len.store(len, Relaxed);
    }

    /// How many octets there are.
    #[inline]
    pub(super) fn len(&self) -> u64 {
        self.len.load(Relaxed)
    }

    #[inline]
    pub(super) fn run(&self, offset: u64, max: usize) -> Option<Run<'_>> {
        let len = self.len.load(Relaxed);
        let left = len.checked_sub(offset).filter(|left| *left > 0)?;
        // CAST: `usize` is 64 bits.
        let max = (left as usize).min(max);
        let shift = self.page_shift.load(Relaxed);
        let page_size = 1usize.checked_shl(shift)?;
        let place = self.skip.load(Relaxed).checked_add(offset)?;
        // CAST: As above; the second is less than the page size.
        let mut index = place.checked_shr(shift)? as usize;
        let within = place as usize & (page_size - 1);
        let used = self.used.load(Relaxed) as usize; // CAST: 32 bits fit.

        let first = self
            .pages
            .get(index)
            .filter(|_| index < used)?
            .load(Relaxed);
        let start = (first as usize).checked_add(within)?;
        let mut found = page_size - within;
        let mut next = first.checked_add(page_size as u64)?;
        while found < max {
            index += 1;
            let Some(page) = self.pages.get(index).filter(|_| index < used) else {
                break;
            };
            if page.load(Relaxed) != next {
                break;
            }
            found += page_size;
            next = next.wrapping_add(page_size as u64);
        }
        Some(Run {
            start: core::ptr::with_exposed_provenance_mut(start),
            len: found.min(max),
            _life: PhantomData,
        })
    }
}
