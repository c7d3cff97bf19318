// SPDX-License-Identifier: GPL-2.0

//! All memory of a process as one region: implicit on-demand paging.
//!
//! A table of all pages that a process could have would be too large. So the memory is divided into
//! parts of equal size, and a part becomes a [`Paged`] when octets of it are first brought in. Only
//! so many parts exist at a time: another one takes the place of an earlier one. Octets of a part
//! that does not exist are absent like those of a page that is not known.
//!
//! Context: process, but for copies.
//!
//! C headers: `include/rdma/ib_umem_odp.h`, `include/linux/sched/mm.h`.

use super::Odp;
use super::Paged;
use super::PagedBudget;
use super::PinnedPages;
use super::Prefetch;
use super::Present;
use super::AROUND;
use super::CALLBACKS;
use crate::bindings;
use crate::mm::memcg::Memcg;
use crate::mm::page_list::PageList;
use crate::mm::run::Run;
use crate::rdma::mem::mem_map::MemoryOwner;
use crate::rdma::types::AccessFlags;
use crate::sync::BhRevocable;
use core::ptr::NonNull;
use kernel::alloc::flags::__GFP_NOWARN;
use kernel::current;
use kernel::ffi::c_int;
use kernel::mm::Mm;
use kernel::new_mutex;
use kernel::page::PAGE_SIZE;
use kernel::prelude::*;
use kernel::sync::aref::ARef;
use kernel::sync::Arc;
use kernel::sync::Mutex;

/// The length of a part in octets: those that a fetch enters in the table of a [`Paged`].
const PART: usize = AROUND * PAGE_SIZE;

/// Most parts of a region at a time: half as many as a context may have regions that are paged on
/// demand, so that such a region leaves room for others.
const PARTS: usize = 1 << 11;

/// All memory of a process, paged on demand. Offsets are addresses.
#[pin_data]
pub struct Implicit {
    /// In the order of their addresses; has room for [`PARTS`].
    parts: BhRevocable<KVVec<Arc<Paged>>>,
    /// Held to add or remove a part: the address of the one that was removed last.
    #[pin]
    hand: Mutex<usize>,
    budget: Arc<PagedBudget>,
    /// To which the parts are charged.
    memcg: Memcg,
    /// Has no range and no notifier. Its address space is `_mm`.
    root: Odp,
    _mm: ARef<Mm>,
}

/// Returns the address at which the part with this octet begins.
const fn part_of(address: usize) -> usize {
    address / PART * PART
}

/// Calls `f` with each part of the `len` octets at `at`: the address at which the part begins, and
/// the octets, counted from there.
///
/// # Errors
///
/// `EFAULT` if the range wraps. The error of `f`, which ends the walk.
fn each_part(at: u64, len: u64, mut f: impl FnMut(usize, u64, usize) -> Result) -> Result {
    let mut begin = usize::try_from(at)?;
    let end = begin.checked_add(usize::try_from(len)?).ok_or(EFAULT)?;
    while begin < end {
        let base = part_of(begin);
        // The last part of all has no end that could be written down.
        let stop = base.checked_add(PART).map_or(end, |stop| stop.min(end));
        // CAST: `usize` is 64 bits.
        f(base, (begin - base) as u64, stop - begin)?;
        begin = stop;
    }
    Ok(())
}

impl Implicit {
    /// Registers all memory of the current process.
    ///
    /// # Safety
    ///
    /// `device` must be a registered device, and must not be freed before the value is dropped.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; `EINVAL` for a task without memory of its own.
    pub(crate) unsafe fn register(
        device: NonNull<bindings::ib_device>,
        access: AccessFlags,
        budget: &Arc<PagedBudget>,
    ) -> Result<Arc<Self>> {
        let mm: ARef<Mm> = ARef::from(&**current!().mm().ok_or(EINVAL)?);
        let parts = KVVec::with_capacity(PARTS, GFP_KERNEL_ACCOUNT | __GFP_NOWARN)?;
        // CAST: Flags in an int; every bit keeps its place.
        let access = access.without(AccessFlags::HUGETLB).bits() as c_int;
        // SAFETY: `ib_umem_odp_alloc_implicit()` requires a device that outlives the object and a
        // task with an address space: the caller guarantees the former, and the latter was checked.
        let root = unsafe { bindings::ib_umem_odp_alloc_implicit(device.as_ptr(), access) };
        let root = Odp::from_new(root)?;
        Arc::pin_init(
            pin_init!(Self {
                parts: BhRevocable::new(parts),
                hand <- new_mutex!(0, "Implicit::hand"),
                budget: budget.clone(),
                memcg: Memcg::current(),
                root,
                _mm: mm,
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// As [`OnDemand::runs`](super::OnDemand::runs). Octets of more than two parts are absent.
    pub(super) fn runs<const WRITE: bool>(
        &self,
        at: u64,
        len: usize,
        mut f: impl FnMut(Run<'_>) -> Result,
    ) -> Result {
        // No part ends before the guard is dropped.
        let parts = self.parts.try_access().ok_or(EAGAIN)?;
        let mut present: [Option<Present<'_>>; 2] = [const { None }; 2];
        let mut free = present.iter_mut();
        // All of them before the first copy: the retry would store its octets once more.
        // CAST: `usize` is 64 bits.
        each_part(at, len as u64, |base, at, len| {
            let part = part_at(&parts, base).ok_or(EAGAIN)?;
            let found = part.present::<WRITE>(at, len)?;
            *free.next().ok_or(EAGAIN)? = Some(found);
            Ok(())
        })?;
        present
            .iter()
            .flatten()
            .try_for_each(|present| present.runs::<WRITE>(&mut f))
    }

    /// As [`OnDemand::fetch`](super::OnDemand::fetch).
    pub(super) fn fetch(&self, at: u64, len: usize, write: bool) -> Result<PageList<MemoryOwner>> {
        let address = usize::try_from(at)?;
        // First: only memory that is mapped gets a part.
        let pinned = PinnedPages::pin(&self.root, (address, len), write)?;
        // The next accesses are likely to be near. A failure makes no difference.
        // CAST: `usize` is 64 bits.
        let _ = each_part(at, len as u64, |base, _, _| {
            let part = self.part(base)?;
            part.prefetch(0, part.len, Prefetch::Present)
        });
        pinned.into_pages((address, len))
    }

    /// As [`OnDemand::prefetch`](super::OnDemand::prefetch).
    pub(super) fn prefetch(&self, at: u64, len: u64, what: Prefetch) -> Result {
        each_part(at, len, |base, at, len| {
            // CAST: `usize` is 64 bits.
            self.part(base)?.prefetch(at, len as u64, what)
        })
    }

    /// Returns the part that begins at `base`, if it exists.
    fn existing(&self, base: usize) -> Option<Arc<Paged>> {
        part_at(&self.parts.try_access()?, base).cloned()
    }

    /// Returns the part that begins at `base`, and makes it if it does not exist.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if memory is short, or the budget does not allow it; `EFAULT` if the process has
    /// exited; `EOVERFLOW` if no process can have memory there.
    fn part(&self, base: usize) -> Result<Arc<Paged>> {
        if let Some(part) = self.existing(base) {
            return Ok(part);
        }
        let mut removed = None;
        let mut hand = self.hand.lock();
        // Meanwhile another caller may have made it.
        if let Some(part) = self.existing(base) {
            return Ok(part);
        }
        if self
            .parts
            .try_access()
            .is_none_or(|parts| parts.len() == PARTS)
        {
            removed = self.remove(&mut hand);
        }
        let part = match self.make(base) {
            // The budget may have room for the place of another part.
            Err(ENOMEM) if removed.is_none() => {
                drop(self.remove(&mut hand).ok_or(ENOMEM)?);
                self.make(base)?
            }
            made => made?,
        };
        self.parts.update(|parts| {
            if let Err(n) = find(parts, base) {
                // Without room it serves this caller only. `part` is not the last reference.
                let _ = parts.insert_within_capacity(n, part.clone());
            }
        });
        drop(hand);
        Ok(part)
    }

    /// Makes the part that begins at `base`.
    fn make(&self, base: usize) -> Result<Arc<Paged>> {
        self.memcg.scope(|| {
            Paged::new((base, PART), &self.budget, || {
                // SAFETY: `ib_umem_odp_alloc_child()` requires a live object without a range, which
                // `root` is, whose address space exists, which `_mm` guarantees, and callbacks that
                // outlive the new object: the table is static. It checks the range.
                unsafe {
                    bindings::ib_umem_odp_alloc_child(self.root.0.as_ptr(), base, PART, &CALLBACKS)
                }
            })
        })
    }

    /// Removes the part behind `hand`, so that each has its turn. No copy uses it any more.
    fn remove(&self, hand: &mut usize) -> Option<Arc<Paged>> {
        let mut removed = None;
        self.parts.update(|parts| {
            let behind = parts.partition_point(|part| part.first <= *hand);
            let next = if behind < parts.len() { behind } else { 0 };
            removed = parts.remove(next).ok();
        });
        *hand = removed.as_ref().map_or(0, |part| part.first);
        removed
    }
}

/// Returns the place of the part that begins at `base`, or where it belongs.
fn find(parts: &[Arc<Paged>], base: usize) -> Result<usize, usize> {
    parts.binary_search_by_key(&base, |part| part.first)
}

/// Returns the part that begins at `base`.
fn part_at(parts: &[Arc<Paged>], base: usize) -> Option<&Arc<Paged>> {
    parts.get(find(parts, base).ok()?)
}

#[kernel::prelude::kunit_tests(riwarp_implicit)]
mod tests {
    use super::*;

    #[test]
    fn implicit_range_is_split_at_part_boundaries() -> Result {
        const P: u64 = PART as u64;
        const TOP: u64 = u64::MAX / P * P;
        for (at, len, expected) in [
            (0, 0, &[][..]),
            (5, 7, &[(0, 5, 7)]),
            (P - 1, 1, &[(0, P - 1, 1)]),
            (P - 1, 2, &[(0, P - 1, 1), (P, 0, 1)]),
            (2 * P, P, &[(2 * P, 0, P)]),
            (P + 3, 2 * P, &[(P, 3, P - 3), (2 * P, 0, P), (3 * P, 0, 3)]),
            (TOP + 1, 8, &[(TOP, 1, 8)]),
        ] {
            let mut left = expected.iter();
            each_part(at, len, |base, at, len| {
                let found = (base as u64, at, len as u64);
                left.next().filter(|next| **next == found).ok_or(EINVAL)?;
                Ok(())
            })?;
            assert_eq!(left.next(), None);
        }
        let beyond = each_part(TOP + 1, P, |_, _, _| Ok(()));
        assert_eq!(beyond, Err(EFAULT));
        Ok(())
    }
}
