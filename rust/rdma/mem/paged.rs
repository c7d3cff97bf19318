// SPDX-License-Identifier: GPL-2.0

//! Memory of a process that is not pinned: paging on demand.
//!
//! Registers an address range of the current process without pinning it, as a [`Paged`], or all of
//! its memory, as an [`Implicit`]. The data path accesses the pages that are present through it;
//! code in process context brings in the others.
//!
//! A table holds the address of each page that is known to be present. Copies use it inside a
//! [`BhRevocable`]; a copy of which a page is unknown copies nothing and ends with `EAGAIN`. Before
//! the kernel unmaps pages, it calls [`invalidate`], which removes them from the table and waits
//! for the copies in flight; only then the kernel frees them.
//!
//! A page can leave the table at any time, so a copy could retry forever if the process keeps
//! unmapping the page. So [`Paged::fetch`] also pins the pages for the one waiting copy, as if the
//! copy had preceded the unmapping. A fetch therefore always makes progress.
//!
//! The kernel cannot access all memory of a process: it unmaps secret memory from its own address
//! space. So the code that enters a page in the table checks that it can be read. One check is
//! enough, because no page loses its kernel address while a process has it.
//!
//! A page that was written to is marked dirty before it leaves the table: the processor does not do
//! that for writes through another address than the process's.
//!
//! Context: process for fetch, prefetch, register and drop; any for copies.
//!
//! C headers: `include/rdma/ib_umem_odp.h`, `include/linux/mmu_notifier.h`.

mod budget;
mod implicit;
mod pinned;

use super::mem_map::MemoryOwner;
use crate::bindings;
use crate::compat;
use crate::mm::may_resched;
use crate::mm::page_list::PageList;
use crate::mm::run::Run;
use crate::rdma::types::AccessFlags;
use crate::sync::BhRevocable;
use crate::sync::BhRevocableGuard;
use core::ops::Range;
use core::ptr::NonNull;
use kernel::alloc::flags::__GFP_NOWARN;
use kernel::alloc::flags::__GFP_ZERO;
use kernel::error::from_err_ptr;
use kernel::error::to_result;
use kernel::ffi::c_int;
use kernel::ffi::c_ulong;
use kernel::ffi::c_void;
use kernel::mm::virt::flags::WRITE;
use kernel::mm::virt::vm_flags_t;
use kernel::mm::MmWithUser;
use kernel::page::PAGE_MASK;
use kernel::page::PAGE_SIZE;
use kernel::prelude::*;
use kernel::sync::atomic::Atomic;
use kernel::sync::atomic::Relaxed;
use kernel::sync::Arc;
use kernel::time::msecs_to_jiffies;

pub use self::budget::PagedBudget;
pub use self::budget::PagedLimits;
pub use self::implicit::Implicit;
pub use self::pinned::PinnedPages;

use self::budget::PagedCharge;

/// The number of pages around a fetched page that are entered in the table if present; a power of
/// two.
const AROUND: usize = 512;

/// The number of table entries that one update changes.
const STRIDE: usize = 64;

/// How long the kernel retries to look up pages that change meanwhile, in milliseconds; the time of
/// page faults does not count.
const FAULT_TIMEOUT_MS: u32 = 1000;

/// Mark in a table entry, below the address of the page: the page may be written to.
const WRITABLE: usize = 1;
/// Mark: the page was written to.
const WRITTEN: usize = 2;

/// Memory of a process that is not pinned.
///
/// # Invariants
///
/// `umem.private` of the C object is null or this value, which does not move. An entry of the table
/// is 0 or has the address of the page that the process has there now: entries are made with the C
/// object's mutex held, after checking that the page is still present, and removed by
/// [`invalidate`].
pub struct Paged {
    // ORDERING: entries are Relaxed: they change inside an update, without users, and its end pairs
    // with the entry of the next user. Users at the same time only add `WRITTEN`, all the same
    // value.
    table: BhRevocable<KVVec<Atomic<usize>>>,
    /// Address of the first page.
    first: usize,
    /// Offset of the first octet in the first page.
    skip: usize,
    len: u64,
    /// Dropped after the table.
    odp: Odp,
    /// Dropped last.
    _charge: PagedCharge,
}

/// Memory of a process that is paged on demand.
#[derive(Clone)]
pub enum OnDemand {
    /// An address range.
    Range(Arc<Paged>),
    /// All of its memory, with its addresses as offsets.
    Implicit(Arc<Implicit>),
}

/// Octets of a [`Paged`] whose pages are present, and stay so while this value lives.
struct Present<'a> {
    table: BhRevocableGuard<'a, KVVec<Atomic<usize>>>,
    /// The octets, counted from the first page's first one.
    place: Range<usize>,
}

/// Returns the address of the first page and the number of pages that contain these octets; none if
/// the range is empty or wraps.
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
// SAFETY: Its variable parts are changed under its mutex, and read under it or as single words.
unsafe impl Sync for Odp {}

/// The pages to bring in beforehand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prefetch {
    /// Pages that are present: only enters them in the table.
    Present,
    /// All pages, for reading.
    Read,
    /// All pages, for writing.
    Write,
}

impl Paged {
    /// Registers `len` octets at `start` of the current process.
    ///
    /// # Safety
    ///
    /// `device` must be a registered device, and must not be freed before the value is dropped.
    ///
    /// # Errors
    ///
    /// * `EINVAL` if the range is empty or wraps.
    /// * `ENOMEM` if memory is short, or `budget` does not allow it.
    pub(crate) unsafe fn register(
        device: NonNull<bindings::ib_device>,
        (start, len): (u64, u64),
        access: AccessFlags,
        budget: &Arc<PagedBudget>,
    ) -> Result<Arc<Self>> {
        let begin = usize::try_from(start)?;
        let octets = usize::try_from(len)?;
        // Large pages are only a hint for devices.
        // CAST: Flags in an int; every bit keeps its place.
        let access = access.without(AccessFlags::HUGETLB).bits() as c_int;
        Self::new((begin, octets), budget, || {
            // SAFETY: `ib_umem_odp_get()` requires a registered device, which the caller
            // guarantees, and callbacks that outlive the object: the table is static. The function
            // checks the range.
            unsafe { bindings::ib_umem_odp_get(device.as_ptr(), begin, octets, access, &CALLBACKS) }
        })
    }

    /// Makes one of `len` octets at `begin`. `odp` returns a new object for this range, with
    /// [`CALLBACKS`], or an error.
    fn new(
        (begin, len): (usize, usize),
        budget: &Arc<PagedBudget>,
        odp: impl FnOnce() -> *mut bindings::ib_umem_odp,
    ) -> Result<Arc<Self>> {
        let (first, pages) = pages_of(begin, len).ok_or(EINVAL)?;
        // CAST: `usize` is 64 bits.
        let charge = budget.charge(pages as u64)?;
        // First, since it is charged to the process: what `ib_umem_odp_get()` allocates, as much
        // again, is not.
        let flags = GFP_KERNEL_ACCOUNT | __GFP_NOWARN | __GFP_ZERO;
        let mut table = KVVec::<Atomic<usize>>::with_capacity(pages, flags)?;
        // SAFETY: `inc_len` requires so many spare elements that are initialized: the vector has
        // room for `pages`, the allocation is zeroed, and zeroes are an `Atomic` of 0.
        unsafe { table.inc_len(pages) };
        let odp = Odp::from_new(odp())?;
        let this = Self {
            table: BhRevocable::new(table),
            first,
            skip: begin - first,
            len: len as u64, // CAST: `usize` is 64 bits.
            odp,
            _charge: charge,
        };
        let this = Arc::new(this, GFP_KERNEL_ACCOUNT)?;
        let locked = this.odp.lock();
        // INVARIANT: The value is in an `Arc` and does not move.
        this.odp.set_private(Arc::as_ptr(&this));
        drop(locked);
        Ok(this)
    }

    /// Returns the address of an octet in the process.
    fn address(&self, at: u64) -> Option<usize> {
        let at = usize::try_from(at).ok()?;
        self.first.checked_add(self.skip)?.checked_add(at)
    }

    /// Gives access to the `len` octets at `at`, which are at least one; `WRITE` says whether they
    /// are written.
    ///
    /// # Errors
    ///
    /// `EAGAIN` if a page is not known to be present, `EFAULT` if they are not all inside.
    fn present<const WRITE: bool>(&self, at: u64, len: usize) -> Result<Present<'_>> {
        // No access while the table is being changed: the copy is retried.
        let table = self.table.try_access().ok_or(EAGAIN)?;
        let begin = usize::try_from(at)?.checked_add(self.skip).ok_or(EFAULT)?;
        let place = begin..begin.checked_add(len).ok_or(EFAULT)?;
        // All of them before the first copy: the retry would store its octets once more. None
        // leaves the table before the guard is dropped.
        let present = entries_of(&table, &place)?.iter().all(|entry| {
            let known = entry.load(Relaxed);
            known != 0 && (!WRITE || known & WRITABLE != 0)
        });
        if present {
            Ok(Present { table, place })
        } else {
            Err(EAGAIN)
        }
    }

    /// As [`OnDemand::fetch`].
    fn fetch(&self, at: u64, len: usize, write: bool) -> Result<PageList<MemoryOwner>> {
        let address = self.address(at).ok_or(EFAULT)?;
        let pinned = PinnedPages::pin(&self.odp, (address, len), write)?;
        // The next accesses are likely to be near. A failure makes no difference.
        let begin = usize::try_from(at)? / (AROUND * PAGE_SIZE) * (AROUND * PAGE_SIZE);
        let rest = self.len.saturating_sub(begin as u64); // CAST: `usize` is 64 bits.
        let around = rest.min((AROUND * PAGE_SIZE) as u64);
        let _ = self.prefetch(begin as u64, around, Prefetch::Present);
        pinned.into_pages((address, len))
    }

    /// As [`OnDemand::prefetch`].
    fn prefetch(&self, at: u64, len: u64, what: Prefetch) -> Result {
        let end = at.checked_add(len).filter(|end| *end <= self.len);
        let end = usize::try_from(end.ok_or(EFAULT)?)?
            .checked_add(self.skip)
            .ok_or(EFAULT)?;
        let mut place = usize::try_from(at)?.checked_add(self.skip).ok_or(EFAULT)?;
        while place < end {
            // SAFETY: The helper has no requirements: it reads the running task.
            if unsafe { riwarp_helper_is_being_killed() } {
                return Err(EINTR);
            }
            let stop = end.min((place / PAGE_SIZE + AROUND) * PAGE_SIZE);
            self.learn(place, stop, what)?;
            may_resched();
            place = stop;
        }
        Ok(())
    }

    /// Enters the pages of a range into the table.
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
                    // Marks that others set meanwhile on the same page are still true: otherwise
                    // the page would have been removed.
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

    /// Removes the pages from index `from` up to `to` from the table.
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
            may_resched();
            from = next;
        }
    }
}

impl Drop for Paged {
    fn drop(&mut self) {
        let locked = self.odp.lock();
        // From here on `invalidate` does not find this value, and the kernel does not unmap pages
        // before the mutex is released.
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
                may_resched();
            }
        }
        drop(locked);
    }
}

/// Returns the entries of the pages that contain these octets.
fn entries_of<'a>(table: &'a [Atomic<usize>], place: &Range<usize>) -> Result<&'a [Atomic<usize>]> {
    let pages = place.start / PAGE_SIZE..place.end.div_ceil(PAGE_SIZE);
    table.get(pages).ok_or(EFAULT)
}

impl Present<'_> {
    /// Calls `f` for each run, in order; `WRITE` says whether it writes them.
    ///
    /// # Errors
    ///
    /// Those of `f`.
    fn runs<const WRITE: bool>(&self, mut f: impl FnMut(Run<'_>) -> Result) -> Result {
        let Range { start, end } = self.place;
        let mut place = start;
        for entry in entries_of(&self.table, &self.place)? {
            let known = entry.load(Relaxed);
            if WRITE && known & WRITTEN == 0 {
                // Concurrent copies change only this mark.
                entry.store(known | WRITTEN, Relaxed);
            }
            let within = place % PAGE_SIZE;
            let len = (PAGE_SIZE - within).min(end - place);
            let start = core::ptr::with_exposed_provenance_mut((known & PAGE_MASK) + within);
            // SAFETY: By the type's invariant the page is present, and stays until the guard is
            // dropped.
            f(unsafe { Run::new(start, len) })?;
            place += len;
        }
        Ok(())
    }
}

impl OnDemand {
    /// Returns the length in octets.
    pub(super) fn len(&self) -> u64 {
        match self {
            Self::Range(paged) => paged.len,
            Self::Implicit(_) => u64::MAX,
        }
    }

    /// Returns the address of an octet in the process.
    pub(super) fn address(&self, at: u64) -> Option<usize> {
        match self {
            Self::Range(paged) => paged.address(at),
            Self::Implicit(_) => usize::try_from(at).ok(),
        }
    }

    /// Calls `f` for each run of the `len` octets at `at`, in order; `WRITE` says whether it writes
    /// them.
    ///
    /// # Errors
    ///
    /// `EAGAIN` if a page is not known to be present, `EFAULT` if they are not all inside; `f` was
    /// not called then. The error of `f`.
    pub(super) fn runs<const WRITE: bool>(
        &self,
        at: u64,
        len: usize,
        f: impl FnMut(Run<'_>) -> Result,
    ) -> Result {
        match self {
            _ if len == 0 => Ok(()),
            Self::Range(paged) => paged.present::<WRITE>(at, len)?.runs::<WRITE>(f),
            Self::Implicit(implicit) => implicit.runs::<WRITE>(at, len, f),
        }
    }

    /// Brings in the `len` octets at `at`, pins them and returns them as memory. The caller drops
    /// the result soon, in process context.
    ///
    /// Context: process, with no lock held that the process's page faults need; takes as long as
    /// these.
    ///
    /// # Errors
    ///
    /// * `EFAULT` if they are not mapped, not writable although `write` is set, or the process has
    ///   exited.
    /// * `ENOMEM`.
    pub fn fetch(&self, at: u64, len: usize, write: bool) -> Result<PageList<MemoryOwner>> {
        match self {
            Self::Range(paged) => paged.fetch(at, len, write),
            Self::Implicit(implicit) => implicit.fetch(at, len, write),
        }
    }

    /// Brings in the `len` octets at `at`, which must be inside, without pinning them.
    ///
    /// Context: as for [`OnDemand::fetch`].
    ///
    /// # Errors
    ///
    /// * `EFAULT` if they are not all mapped, or not writable; earlier octets may have been brought
    ///   in.
    /// * `EBUSY` if the pages keep changing.
    /// * `EINVAL` if the process has exited.
    /// * `EINTR` if the calling process is being killed.
    /// * `ENOMEM`.
    pub fn prefetch(&self, at: u64, len: u64, what: Prefetch) -> Result {
        match self {
            Self::Range(paged) => paged.prefetch(at, len, what),
            Self::Implicit(implicit) => implicit.prefetch(at, len, what),
        }
    }
}

/// Converts the result for a page into a table entry; `known` is the existing entry.
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
    // SAFETY: The helper accepts any address.
    if known & PAGE_MASK != address && !unsafe { riwarp_helper_is_readable(page) } {
        return 0;
    }
    address | writable
}

/// Returns whether a process may write to its memory of this kind by an ordinary store. To a shadow
/// stack it may not: the page tables call that writable, and the processor writes to it on calls.
fn may_write(flags: vm_flags_t, shadow_stack: vm_flags_t) -> bool {
    flags & (WRITE | shadow_stack) == WRITE
}

/// Takes from `pfns`, which are the process's pages from `start` on, the right to write where
/// [`may_write`] says so.
///
/// # Errors
///
/// `EFAULT` if there are such pages and `what` is [`Prefetch::Write`].
fn restrict(space: &Space, start: usize, pfns: &mut [c_ulong], what: Prefetch) -> Result {
    // SAFETY: The helper has no requirements: it returns a constant.
    let shadow_stack = unsafe { riwarp_helper_vm_shadow_stack() };
    if shadow_stack == 0 {
        return Ok(());
    }
    // SAFETY: `from_raw` requires an address space that keeps its users, which `space` does.
    let mm = unsafe { MmWithUser::from_raw(space.0.as_ptr().cast()) };
    let locked = mm.mmap_read_lock();
    let (mut area, mut writable) = (0..0, false);
    for (n, pfn) in pfns.iter_mut().enumerate() {
        let at = start + n * PAGE_SIZE;
        if *pfn & HMM_PFN_REQ_WRITE == 0 {
            continue;
        }
        if !area.contains(&at) {
            (area, writable) = match locked.vma_lookup(at) {
                Some(vma) => (vma.start()..vma.end(), may_write(vma.flags(), shadow_stack)),
                None => (at..at + PAGE_SIZE, false),
            };
        }
        if !writable && what == Prefetch::Write {
            return Err(EFAULT);
        }
        if !writable {
            *pfn &= !HMM_PFN_REQ_WRITE;
        }
    }
    Ok(())
}

/// Marks the pages that were written to as dirty; they must still be present.
fn mark_written(entries: &[usize]) {
    for entry in entries.iter().filter(|entry| **entry & WRITTEN != 0) {
        let page = core::ptr::with_exposed_provenance::<c_void>(entry & PAGE_MASK);
        // SAFETY: The entry had the address of a page, which is present until the mutex is
        // released.
        unsafe { riwarp_helper_set_page_dirty(page) };
    }
}

impl Odp {
    /// Takes over an object that was just created.
    ///
    /// # Errors
    ///
    /// That which `raw` is instead.
    fn from_new(raw: *mut bindings::ib_umem_odp) -> Result<Self> {
        // INVARIANT: The object was just created.
        Ok(Self(NonNull::new(from_err_ptr(raw)?).ok_or(EFAULT)?))
    }

    fn lock(&self) -> OdpGuard<'_> {
        // SAFETY: `mutex_lock()` requires an initialised mutex: by the type's invariant the object
        // that contains it is live.
        unsafe { riwarp_helper_umem_odp_lock(self.0.as_ptr()) };
        // SAFETY: Just locked.
        unsafe { self.locked() }
    }

    /// Looks up the process's pages from `start` on, and brings them in as `what` says. The results
    /// in `pfns` are true as long as the returned mutex guard is held.
    ///
    /// Each caller has its own `pfns`. `ib_umem_odp_map_dma_and_lock` uses one array for all
    /// callers and writes it without the mutex.
    ///
    /// # Errors
    ///
    /// As [`Paged::prefetch`].
    fn look(&self, start: usize, pfns: &mut [c_ulong], what: Prefetch) -> Result<OdpGuard<'_>> {
        let space = self.space().ok_or(EINVAL)?;
        // SAFETY: The field is inside the allocation: by the type's invariant the object is live.
        // No reference to it is made.
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
            // SAFETY: The notifier is registered, and `space` keeps its address space; `pfns` has
            // room for that many pages.
            let error = unsafe {
                compat::hmm_range_fault(&mut range, msecs_to_jiffies(FAULT_TIMEOUT_MS) as c_ulong)
            };
            // What the process may not write is no address for that; hmm calls it EPERM.
            to_result(error).map_err(|e| if e == EPERM { EFAULT } else { e })?;
            // Before the check below: what the process maps there meanwhile, the notifier reports.
            restrict(&space, start, pfns, what)?;
            let locked = self.lock();
            // SAFETY: `mmu_interval_read_retry()` requires a registered notifier, which this one is
            // as long as the object lives, and the mutex that `invalidate` takes, which `locked`
            // holds.
            if !unsafe { riwarp_helper_interval_read_retry(notifier, range.notifier_seq) } {
                return Ok(locked);
            }
            drop(locked);
            // SAFETY: The helper has no requirements: it reads the running task.
            if unsafe { riwarp_helper_is_being_killed() } {
                return Err(EINTR);
            }
        }
    }

    /// Returns the process's address space, unless it has ended.
    fn space(&self) -> Option<Space> {
        // SAFETY: The C object is live.
        let mm = NonNull::new(unsafe { (*self.0.as_ptr()).umem.owning_mm })?;
        // SAFETY: `mmget_not_zero()` requires a valid `mm_struct`: the notifier of the live object
        // holds it, or the owner of one without a notifier ([`Implicit`]).
        unsafe { riwarp_helper_mmget_not_zero(mm.as_ptr()) }.then(|| Space(mm))
    }

    /// # Safety
    ///
    /// The mutex must be held, and only the returned guard may release it.
    unsafe fn locked(&self) -> OdpGuard<'_> {
        OdpGuard(self)
    }

    /// Sets the value that [`invalidate`] finds; the mutex must be held.
    fn set_private(&self, paged: *const Paged) {
        // SAFETY: Writing a field requires a valid object, which this one is by the type's
        // invariant, and no concurrent reader: `invalidate` reads it only under the mutex, which
        // the caller holds.
        unsafe { (*self.0.as_ptr()).private = paged.cast_mut().cast() };
    }
}

impl Drop for Odp {
    fn drop(&mut self) {
        // SAFETY: `ib_umem_odp_release()` requires a live object that nothing uses any more: by the
        // type's invariant it is live, this value ends here, and the call waits for callbacks of
        // the notifier.
        unsafe { bindings::ib_umem_odp_release(self.0.as_ptr()) };
    }
}

/// A reference to a process's address space, which lives at least as long as this value.
struct Space(NonNull<bindings::mm_struct>);

impl Drop for Space {
    fn drop(&mut self) {
        // SAFETY: This value owns the reference. `mmput_async` frees the address space in a work
        // item, if this is the last reference.
        unsafe { bindings::mmput_async(self.0.as_ptr()) };
    }
}

/// The C object's mutex, held.
struct OdpGuard<'a>(&'a Odp);

impl Drop for OdpGuard<'_> {
    fn drop(&mut self) {
        // SAFETY: This value holds the mutex.
        unsafe { riwarp_helper_umem_odp_unlock(self.0 .0.as_ptr()) };
    }
}

/// The notifier callbacks of all [`Paged`] memory.
static CALLBACKS: bindings::mmu_interval_notifier_ops = bindings::mmu_interval_notifier_ops {
    invalidate: Some(invalidate),
    invalidate_start: None,
    invalidate_finish: None,
};

/// Called before the process's pages in `range` are unmapped or change their rights.
///
/// # Safety
///
/// Called as `mmu_interval_notifier_ops.invalidate`: `notifier` belongs to a live `ib_umem_odp`
/// that was made with [`CALLBACKS`], and `range` is valid, both for the call.
unsafe extern "C" fn invalidate(
    notifier: *mut bindings::mmu_interval_notifier,
    range: *const bindings::mmu_notifier_range,
    seq: c_ulong,
) -> bool {
    // SAFETY: `mmu_notifier_range_blockable()` requires a valid range: `range` is, by this
    // function's `# Safety`.
    if !unsafe { riwarp_helper_range_may_block(range) } {
        return false;
    }
    // SAFETY: The helper requires a notifier that is part of an `ib_umem_odp`: `notifier` is, by
    // this function's `# Safety`.
    let Some(odp) = NonNull::new(unsafe { riwarp_helper_umem_odp_of(notifier) }) else {
        return true;
    };
    // This function does not own the C object, so it must not release it.
    let odp = core::mem::ManuallyDrop::new(Odp(odp));
    let locked = odp.lock();
    // SAFETY: `mmu_interval_set_seq()` requires the notifier of the running callback, which
    // `notifier` is, and the mutex that readers of the sequence take, which `locked` holds.
    unsafe { riwarp_helper_interval_set_seq(notifier, seq) };
    // SAFETY: Under the mutex it is null or a value that is not dropped before the mutex is
    // released.
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
    fn riwarp_helper_mmget_not_zero(mm: *mut bindings::mm_struct) -> bool;
    fn riwarp_helper_range_may_block(range: *const bindings::mmu_notifier_range) -> bool;
    fn riwarp_helper_set_page_dirty(address: *const c_void);
    fn riwarp_helper_umem_odp_lock(odp: *mut bindings::ib_umem_odp);
    fn riwarp_helper_umem_odp_of(
        notifier: *mut bindings::mmu_interval_notifier,
    ) -> *mut bindings::ib_umem_odp;
    fn riwarp_helper_umem_odp_unlock(odp: *mut bindings::ib_umem_odp);
    fn riwarp_helper_vm_shadow_stack() -> vm_flags_t;
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
    fn shadow_stacks_are_not_written_to() {
        const READ: vm_flags_t = kernel::mm::virt::flags::READ;
        const SHADOW_STACK: vm_flags_t = 1 << 40;
        for (flags, writable) in [
            (READ, false),
            (READ | WRITE, true),
            (WRITE, true),
            (READ | WRITE | SHADOW_STACK, false),
            (READ | SHADOW_STACK, false),
        ] {
            assert_eq!(may_write(flags, SHADOW_STACK), writable);
        }
    }

    #[test]
    fn ranges_without_octets_and_ranges_that_wrap_have_no_pages() {
        for (begin, len) in [(0, 0), (4096, 0), (1, usize::MAX), (usize::MAX, 2)] {
            // A range that ends at the last octet of all does not wrap yet.
            let fits = (begin, len) == (1, usize::MAX);
            assert_eq!(pages_of(begin, len).is_some(), fits);
        }
    }
}
