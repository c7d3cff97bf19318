// SPDX-License-Identifier: GPL-2.0

//! Memory of a process that is not pinned: paging on demand.
//!
//! What enters: an address range of the current process, of which nothing need be there. What
//! leaves: a [`Paged`], through which the data path reaches the pages that are there, and by which
//! somebody in process context has the others brought in.
//!
//! A table has the address of each page that is known to be there. Copies go through it inside of a
//! [`BhRevocable`]; one that meets a page which is not known ends with `EAGAIN`, and whatever it
//! has copied so far may be copied again. When the kernel takes pages back it tells us before
//! ([`invalidate`]): they are taken out of the table, which waits for the copies that are under
//! way, and not before that do they go.
//!
//! Nothing keeps a page in the table, so waiting for one to be there is waiting in vain if the
//! process takes it away again and again. So [`Paged::fetch`] also pins the pages, for the one copy
//! that waits: as if that had come before they were taken away. Who fetches always gets on.
//!
//! Not all memory of a process is the kernel's to touch: from secret memory it has taken its own
//! address away. So whoever enters a page looks whether it can be read. That is enough, for no page
//! loses the kernel's address while a process has it.
//!
//! A page that was written to is marked so before it goes: the processor does not do it for a write
//! by another address than the process's.
//!
//! Context: process, what fetches, prefetches, registers and drops; any, what copies.
//!
//! C headers: `include/rdma/ib_umem_odp.h`, `include/linux/mmu_notifier.h`.

mod pinned;

use super::mem_map::PageList;
use super::mem_map::Run;
use crate::bindings;
use crate::rdma::types::AccessFlags;
use crate::sync::BhRevocable;
use core::ptr::NonNull;
use kernel::alloc::flags::__GFP_NOWARN;
use kernel::error::from_err_ptr;
use kernel::error::to_result;
use kernel::ffi::c_int;
use kernel::ffi::c_ulong;
use kernel::ffi::c_void;
use kernel::page::PAGE_MASK;
use kernel::page::PAGE_SIZE;
use kernel::prelude::*;
use kernel::sync::atomic::Atomic;
use kernel::sync::atomic::Relaxed;
use kernel::sync::Arc;
use kernel::time::msecs_to_jiffies;

pub use self::pinned::PinnedPages;

/// How much of what is there anyway is looked for around a page that was fetched: pages, a power of
/// two.
const AROUND: usize = 512;

/// Pages that the table is changed for at once.
const STRIDE: usize = 64;

/// For how long the kernel tries again to look at pages that change meanwhile, in milliseconds; the
/// time of page faults does not count.
const FAULT_TIMEOUT_MS: u32 = 1000;

/// In an entry of the table, below the address of the page: it may be written to.
const WRITABLE: usize = 1;
/// It was written to.
const WRITTEN: usize = 2;

/// Memory of a process that is not pinned.
///
/// # Invariants
///
/// `umem.private` of the C object is null or this value, which stays where it is. An entry of the
/// table is 0 or has the address of the page that the process has there now: entries are made with
/// the C object's mutex held, after it was found that the page is still there, and taken out by
/// [`invalidate`].
pub struct Paged {
    table: BhRevocable<KVVec<Atomic<usize>>>,
    /// Address of the first page.
    first: usize,
    /// Offset of the first octet in it.
    skip: usize,
    len: u64,
    /// Dropped last.
    odp: Odp,
}

/// Address of the first page, and the number of pages, in which these octets are; none if the range
/// is empty or wraps.
fn pages_of(begin: usize, len: usize) -> Option<(usize, usize)> {
    let last = begin.checked_add(len.checked_sub(1)?)?;
    let first = begin & PAGE_MASK;
    // NO-OVERFLOW: the first page is not above the last.
    Some((first, ((last & PAGE_MASK) - first) / PAGE_SIZE + 1))
}

/// The C object.
///
/// # Invariants
///
/// A live `ib_umem_odp`.
struct Odp(NonNull<bindings::ib_umem_odp>);

// SAFETY: An `ib_umem_odp` belongs to no thread: it holds the address space itself, and any thread
// may release it.
unsafe impl Send for Odp {}
// SAFETY: What changes in it is changed under its mutex, and read under it or as single words.
unsafe impl Sync for Odp {}

/// What shall be brought in beforehand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prefetch {
    /// What is there: the table is to know it.
    Present,
    /// All of it, to be read.
    Read,
    /// All of it, to be written.
    Write,
}

impl Paged {
    /// Registers `len` octets at `start` of the current process.
    ///
    /// # Safety
    ///
    /// `device` must be a registered device, and not be freed before the value is dropped.
    ///
    /// # Errors
    ///
    /// * `EINVAL` if the range is empty or wraps.
    /// * `ENOMEM`.
    pub(crate) unsafe fn register(
        device: NonNull<bindings::ib_device>,
        start: u64,
        len: u64,
        access: AccessFlags,
    ) -> Result<Arc<Self>> {
        let begin = usize::try_from(start)?;
        let octets = usize::try_from(len)?;
        let (first, pages) = pages_of(begin, octets).ok_or(EINVAL)?;
        // Large pages are only a hint for devices.
        // CAST: Flags in an int; every bit keeps its place.
        let access = access.without(AccessFlags::HUGETLB).bits() as c_int;
        // SAFETY: `ib_umem_odp_get()` wants a device that is registered, as the caller says that
        // `device` is, and callbacks that outlive the object: the table is static. The range is
        // checked inside.
        let raw = unsafe {
            bindings::ib_umem_odp_get(device.as_ptr(), begin, octets, access, &CALLBACKS)
        };
        // INVARIANT: Just made.
        let odp = NonNull::new(from_err_ptr(raw)?).map(Odp).ok_or(EFAULT)?;
        let flags = GFP_KERNEL_ACCOUNT | __GFP_NOWARN;
        let mut table = KVVec::with_capacity(pages, flags)?;
        for _ in 0..pages {
            table.push(Atomic::new(0), flags)?;
        }
        let this = Self {
            table: BhRevocable::new(table),
            first,
            skip: begin - first,
            len,
            odp,
        };
        let this = Arc::new(this, GFP_KERNEL_ACCOUNT)?;
        let locked = this.odp.lock();
        // INVARIANT: The value stays where it is.
        this.odp.set_private(Arc::as_ptr(&this));
        drop(locked);
        Ok(this)
    }

    /// How long it is.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// The address of an octet in the process.
    pub(super) fn address(&self, at: u64) -> Option<usize> {
        let at = usize::try_from(at).ok()?;
        self.first.checked_add(self.skip)?.checked_add(at)
    }

    /// Calls `f` for each run of the `len` octets at `at`, in order; `WRITE` says what it does.
    ///
    /// # Errors
    ///
    /// `EAGAIN` if a page is not known to be there; runs before it have been seen then. What `f`
    /// returns.
    pub(super) fn runs<const WRITE: bool>(
        &self,
        at: u64,
        len: usize,
        mut f: impl FnMut(Run<'_>) -> Result,
    ) -> Result {
        // No entry while the table is being changed: whoever has to can wait.
        let table = self.table.try_access().ok_or(EAGAIN)?;
        let mut place = usize::try_from(at)?.checked_add(self.skip).ok_or(EFAULT)?;
        let mut left = len;
        while left > 0 {
            let entry = table.get(place / PAGE_SIZE).ok_or(EFAULT)?;
            let known = entry.load(Relaxed);
            if known == 0 || WRITE && known & WRITABLE == 0 {
                return Err(EAGAIN);
            }
            if WRITE && known & WRITTEN == 0 {
                // All that may be changed meanwhile is this mark.
                entry.store(known | WRITTEN, Relaxed);
            }
            let within = place % PAGE_SIZE;
            let len = (PAGE_SIZE - within).min(left);
            let start = core::ptr::with_exposed_provenance_mut((known & PAGE_MASK) + within);
            // SAFETY: By the type's invariant the page is there, and stays until the guard goes.
            f(unsafe { Run::new(start, len) })?;
            left -= len;
            place += len;
        }
        Ok(())
    }

    /// Brings in the `len` octets at `at` and pins them; they are the memory that is returned. It
    /// is to be dropped soon, in process context.
    ///
    /// Context: process, with no lock held that the process's page faults need; takes as long as
    /// these.
    ///
    /// # Errors
    ///
    /// `EFAULT` if they are not there, may not be written although `write` says so, or the process
    /// is gone.
    pub fn fetch(&self, at: u64, len: usize, write: bool) -> Result<PageList> {
        let pinned = PinnedPages::pin(self, at, len, write)?;
        // What comes next is likely to be near. It makes no difference if that fails.
        let begin = usize::try_from(at)? / (AROUND * PAGE_SIZE) * (AROUND * PAGE_SIZE);
        let rest = self.len.saturating_sub(begin as u64); // CAST: `usize` is 64 bits.
        let around = rest.min((AROUND * PAGE_SIZE) as u64);
        let _ = self.prefetch(begin as u64, around, Prefetch::Present);
        pinned.into_pages(self, at, len)
    }

    /// Brings in the `len` octets at `at`, which have to be inside, without keeping them there.
    ///
    /// Context: as for [`Paged::fetch`].
    ///
    /// # Errors
    ///
    /// * `EFAULT` if they are not all there, or may not be written; what comes before may have been
    ///   brought in.
    /// * `EBUSY` if the pages change all the time.
    /// * `EINVAL` if the process is gone.
    /// * `EINTR` if the calling process is being killed.
    /// * `ENOMEM`.
    pub fn prefetch(&self, at: u64, len: u64, what: Prefetch) -> Result {
        let end = at.checked_add(len).filter(|end| *end <= self.len);
        let end = usize::try_from(end.ok_or(EFAULT)?)?
            .checked_add(self.skip)
            .ok_or(EFAULT)?;
        let mut place = usize::try_from(at)?.checked_add(self.skip).ok_or(EFAULT)?;
        while place < end {
            // SAFETY: The helper has no requirements: it looks at the running task.
            if unsafe { riwarp_helper_is_being_killed() } {
                return Err(EINTR);
            }
            let stop = end.min((place / PAGE_SIZE + AROUND) * PAGE_SIZE);
            self.learn(place, stop, what)?;
            place = stop;
        }
        Ok(())
    }

    /// Enters the pages of a range of places into the table.
    fn learn(&self, place: usize, stop: usize, what: Prefetch) -> Result {
        let first = place / PAGE_SIZE;
        let to = stop.div_ceil(PAGE_SIZE);
        let mut pfns = KVec::from_elem(0, to - first, GFP_KERNEL)?;
        let locked = self
            .odp
            .look(self.first + first * PAGE_SIZE, &mut pfns, what)?;
        let mut from = first;
        let mut all = true;
        while from < to {
            let next = to.min(from + STRIDE);
            let mut found = [0; STRIDE];
            if let Some(table) = self.table.try_access() {
                for (found, entry) in found.iter_mut().zip(table.iter().take(next).skip(from)) {
                    *found = entry.load(Relaxed);
                }
            }
            for (found, pfn) in found.iter_mut().zip(pfns.iter().skip(from - first)) {
                *found = entry_of(*pfn, *found);
                all &= *found != 0;
            }
            self.table.update(|table| {
                let entries = table.iter().take(next).skip(from);
                for (entry, found) in entries.zip(found).filter(|(_, found)| *found != 0) {
                    // What somebody else has found out meanwhile, or marked, is true as well: the
                    // page would have been taken out otherwise.
                    let marks = match entry.load(Relaxed) {
                        old if old & PAGE_MASK == found & PAGE_MASK => old & (WRITABLE | WRITTEN),
                        _ => 0,
                    };
                    entry.store(found | marks, Relaxed);
                }
            });
            from = next;
        }
        drop(locked);
        if all || what == Prefetch::Present {
            Ok(())
        } else {
            Err(EFAULT)
        }
    }

    /// Takes the pages from index `from` up to `to` out of the table.
    fn forget(&self, from: usize, to: usize, _locked: &OdpGuard<'_>) {
        let mut from = from;
        while from < to {
            let next = to.min(from + STRIDE);
            let known = self.table.try_access().is_some_and(|table| {
                let mut entries = table.iter().take(next).skip(from);
                entries.any(|entry| entry.load(Relaxed) != 0)
            });
            let mut gone = [0; STRIDE];
            if known {
                self.table.update(|table| {
                    let entries = table.iter().take(next).skip(from);
                    for (entry, gone) in entries.zip(&mut gone) {
                        *gone = entry.load(Relaxed);
                        entry.store(0, Relaxed);
                    }
                });
                mark_written(&gone);
            }
            from = next;
        }
    }
}

impl Drop for Paged {
    fn drop(&mut self) {
        let locked = self.odp.lock();
        // From here on nobody comes back to this value, and pages are not taken away before the
        // mutex is free.
        self.odp.set_private(core::ptr::null());
        if let Some(table) = self.table.revoke() {
            let mut chunk = [0; STRIDE];
            let mut entries = table.iter();
            loop {
                let mut any = false;
                for (place, entry) in chunk.iter_mut().zip(entries.by_ref()) {
                    (*place, any) = (entry.load(Relaxed), true);
                }
                if !any {
                    break;
                }
                mark_written(&chunk);
                chunk = [0; STRIDE];
            }
        }
        drop(locked);
    }
}

/// What was found of a page, as an entry of the table; `known` is the entry there is.
fn entry_of(pfn: c_ulong, known: usize) -> usize {
    let flags = pfn as u64; // CAST: `unsigned long` is 64 bits.
    if flags & HMM_PFN_VALID == 0 || flags & HMM_PFN_ERROR != 0 {
        return 0;
    }
    // SAFETY: An entry that is valid has a page.
    let page = unsafe { riwarp_helper_hmm_pfn_address(pfn) };
    let writable = if flags & HMM_PFN_WRITE != 0 {
        WRITABLE
    } else {
        0
    };
    let address = page.expose_provenance();
    // SAFETY: May be asked for any address.
    if known & PAGE_MASK != address && !unsafe { riwarp_helper_is_readable(page) } {
        return 0;
    }
    address | writable
}

/// Says of the pages that were written to that they were; they have to be there still.
fn mark_written(entries: &[usize]) {
    for entry in entries.iter().filter(|entry| **entry & WRITTEN != 0) {
        let page = core::ptr::with_exposed_provenance::<c_void>(entry & PAGE_MASK);
        // SAFETY: The entry had the address of a page, which is there until the mutex is let go.
        unsafe { riwarp_helper_set_page_dirty(page) };
    }
}

impl Odp {
    fn lock(&self) -> OdpGuard<'_> {
        // SAFETY: `mutex_lock()` wants an initialised mutex: by the type's invariant the object
        // that it is part of is live.
        unsafe { riwarp_helper_umem_odp_lock(self.0.as_ptr()) };
        // SAFETY: Just locked.
        unsafe { self.locked() }
    }

    /// Looks what the process has in the pages from `start` on, and brings it in as `what` says.
    /// What was found is in `pfns`, and is true as long as the mutex is held that is returned.
    ///
    /// Each caller has a place of its own for it. The core's (`ib_umem_odp_map_dma_and_lock`) is
    /// one for all, and is written to without the mutex.
    ///
    /// # Errors
    ///
    /// As [`Paged::prefetch`].
    fn look(&self, start: usize, pfns: &mut [c_ulong], what: Prefetch) -> Result<OdpGuard<'_>> {
        let _space = self.space().ok_or(EINVAL)?;
        // SAFETY: The place of a field is inside of the allocation: by the type's invariant the
        // object is live. No reference to it is made.
        let notifier = unsafe { &raw mut (*self.0.as_ptr()).notifier };
        let mut range = bindings::hmm_range {
            notifier,
            start: start as c_ulong,
            end: (start + pfns.len() * PAGE_SIZE) as c_ulong,
            hmm_pfns: pfns.as_mut_ptr(),
            default_flags: match what {
                Prefetch::Present => 0,
                Prefetch::Read => HMM_PFN_REQ_FAULT,
                Prefetch::Write => HMM_PFN_REQ_FAULT | HMM_PFN_REQ_WRITE,
            },
            ..Default::default()
        };
        loop {
            // SAFETY: The notifier is registered, and its address space stays; there is room for as
            // many pages.
            let error = unsafe {
                bindings::hmm_range_fault_unlocked_timeout(
                    &mut range,
                    msecs_to_jiffies(FAULT_TIMEOUT_MS) as c_ulong,
                )
            };
            to_result(error)?;
            let locked = self.lock();
            // SAFETY: `mmu_interval_read_retry()` wants a notifier that is registered, which this
            // one is as long as the object lives, and to be called under the mutex that
            // `invalidate` takes, which `locked` holds.
            if !unsafe { riwarp_helper_interval_read_retry(notifier, range.notifier_seq) } {
                return Ok(locked);
            }
            drop(locked);
            // SAFETY: The helper has no requirements: it looks at the running task.
            if unsafe { riwarp_helper_is_being_killed() } {
                return Err(EINTR);
            }
        }
    }

    /// The process's memory, unless that has ended.
    fn space(&self) -> Option<Space> {
        // SAFETY: The C object is live, and with it what it says of the process's memory: its
        // notifier holds the structure.
        let mm = NonNull::new(unsafe { (*self.0.as_ptr()).umem.owning_mm })?;
        // SAFETY: `mmget_not_zero()` wants the structure of an address space: the notifier of the
        // object, which is live, holds it.
        unsafe { bindings::mmget_not_zero(mm.as_ptr()) }.then(|| Space(mm))
    }

    /// # Safety
    ///
    /// The mutex must be held, and be let go by nobody else.
    unsafe fn locked(&self) -> OdpGuard<'_> {
        OdpGuard(self)
    }

    /// What [`invalidate`] finds; the mutex has to be held.
    fn set_private(&self, paged: *const Paged) {
        // SAFETY: Writing a field wants a valid object, which this one is by the type's invariant,
        // and nobody who reads it meanwhile: `invalidate` does so under the mutex only, which the
        // caller holds.
        unsafe { (*self.0.as_ptr()).private = paged.cast_mut().cast() };
    }
}

impl Drop for Odp {
    fn drop(&mut self) {
        // SAFETY: `ib_umem_odp_release()` wants a live object that nobody uses any more: by the
        // type's invariant it is live, this value ends here, and the call waits for callbacks of
        // the notifier.
        unsafe { bindings::ib_umem_odp_release(self.0.as_ptr()) };
    }
}

/// The memory of a process, which does not end before this value.
struct Space(NonNull<bindings::mm_struct>);

impl Drop for Space {
    fn drop(&mut self) {
        // SAFETY: The reference is ours. Its end may be the end of the process's memory, so not
        // here.
        unsafe { bindings::mmput_async(self.0.as_ptr()) };
    }
}

/// The C object's mutex, held.
struct OdpGuard<'a>(&'a Odp);

impl Drop for OdpGuard<'_> {
    fn drop(&mut self) {
        // SAFETY: Held by this value.
        unsafe { riwarp_helper_umem_odp_unlock(self.0 .0.as_ptr()) };
    }
}

/// The callbacks of all such memory.
static CALLBACKS: bindings::mmu_interval_notifier_ops = bindings::mmu_interval_notifier_ops {
    invalidate: Some(invalidate),
    invalidate_start: None,
    invalidate_finish: None,
};

/// The process's pages in `range` go, or get other rights.
///
/// # Safety
///
/// To be called as `mmu_interval_notifier_ops.invalidate`: `notifier` is that of a live
/// `ib_umem_odp` which was made with [`CALLBACKS`], and `range` is valid, both for the call.
unsafe extern "C" fn invalidate(
    notifier: *mut bindings::mmu_interval_notifier,
    range: *const bindings::mmu_notifier_range,
    seq: c_ulong,
) -> bool {
    // SAFETY: `mmu_notifier_range_blockable()` wants a valid range: `range` is, by this function's
    // `# Safety`.
    if !unsafe { riwarp_helper_range_may_block(range) } {
        return false;
    }
    // SAFETY: The helper finds the `ib_umem_odp` around a notifier: `notifier` is in one, by this
    // function's `# Safety`.
    let Some(odp) = NonNull::new(unsafe { riwarp_helper_umem_odp_of(notifier) }) else {
        return true;
    };
    // The C object is not ours to release.
    let odp = core::mem::ManuallyDrop::new(Odp(odp));
    let locked = odp.lock();
    // SAFETY: `mmu_interval_set_seq()` wants the notifier of the callback that runs, which
    // `notifier` is, and to be called under the mutex that those who look take, which `locked`
    // holds.
    unsafe { riwarp_helper_interval_set_seq(notifier, seq) };
    // SAFETY: Under the mutex it is null or a value that does not go before the mutex is free.
    let paged = unsafe { (*odp.0.as_ptr()).private.cast::<Paged>().as_ref() };
    if let Some(paged) = paged {
        // SAFETY: A field of `range`, which is valid, by this function's `# Safety`.
        let start = unsafe { (*range).start };
        // SAFETY: A field of `range`, which is valid, by this function's `# Safety`.
        let end = unsafe { (*range).end };
        let index = |address: usize| address.saturating_sub(paged.first).div_ceil(PAGE_SIZE);
        let pages = (paged.skip as u64 + paged.len).div_ceil(PAGE_SIZE as u64) as usize;
        let from = start.saturating_sub(paged.first) / PAGE_SIZE;
        paged.forget(from, index(end).min(pages), &locked);
    }
    drop(locked);
    true
}

/// `enum hmm_pfn_flags`, of 64 bits.
const HMM_PFN_VALID: u64 = 1 << 63;
const HMM_PFN_WRITE: u64 = 1 << 62;
const HMM_PFN_ERROR: u64 = 1 << 61;
const HMM_PFN_REQ_FAULT: c_ulong = HMM_PFN_VALID as c_ulong;
const HMM_PFN_REQ_WRITE: c_ulong = HMM_PFN_WRITE as c_ulong;

extern "C" {
    fn riwarp_helper_hmm_pfn_address(pfn: c_ulong) -> *mut c_void;
    fn riwarp_helper_interval_read_retry(
        notifier: *mut bindings::mmu_interval_notifier,
        seq: c_ulong,
    ) -> bool;
    fn riwarp_helper_interval_set_seq(notifier: *mut bindings::mmu_interval_notifier, seq: c_ulong);
    fn riwarp_helper_is_being_killed() -> bool;
    fn riwarp_helper_is_readable(address: *const c_void) -> bool;
    fn riwarp_helper_range_may_block(range: *const bindings::mmu_notifier_range) -> bool;
    fn riwarp_helper_set_page_dirty(address: *const c_void);
    fn riwarp_helper_umem_odp_lock(odp: *mut bindings::ib_umem_odp);
    fn riwarp_helper_umem_odp_of(
        notifier: *mut bindings::mmu_interval_notifier,
    ) -> *mut bindings::ib_umem_odp;
    fn riwarp_helper_umem_odp_unlock(odp: *mut bindings::ib_umem_odp);
}

#[kernel::prelude::kunit_tests(riwarp_paged)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_of_whole_pages() {
        const PAGE: usize = PAGE_SIZE;
        for (begin, len, expected) in [
            (0, 1, (0, 1)),
            (0, PAGE, (0, 1)),
            (0, PAGE + 1, (0, 2)),
            (PAGE - 1, 1, (0, 1)),
            (PAGE - 1, 2, (0, 2)),
            (3 * PAGE, 1, (3 * PAGE, 1)),
            (3 * PAGE + 5, 2 * PAGE, (3 * PAGE, 3)),
            (usize::MAX, 1, (usize::MAX & PAGE_MASK, 1)),
            (
                usize::MAX - PAGE,
                PAGE + 1,
                ((usize::MAX & PAGE_MASK) - PAGE, 2),
            ),
            (0, usize::MAX, (0, usize::MAX / PAGE + 1)),
        ] {
            assert_eq!(pages_of(begin, len), Some(expected));
        }
    }

    #[test]
    fn ranges_without_octets_and_ranges_that_wrap_have_no_pages() {
        for (begin, len) in [(0, 0), (4096, 0), (1, usize::MAX), (usize::MAX, 2)] {
            // The last octet of all is the end of a range, which does not wrap yet.
            let fits = (begin, len) == (1, usize::MAX);
            assert_eq!(pages_of(begin, len).is_some(), fits);
        }
    }
}
