// SPDX-License-Identifier: GPL-2.0

//! Mapped memory, and the copies between it, the wire and private buffers.
//!
//! A [`Memory`] is memory that a process has registered ([`PageList`], or [`OnDemand`] if it is
//! paged on demand), memory that a kernel consumer registered fast ([`KernelPages`]), a window of
//! kernel virtual addresses, or a part of one of these ([`Part`]). Offsets count from its first
//! octet. All but [`OnDemand`] return the longest contiguous run at an offset, so that copies are
//! few and long.
//!
//! The owner shares the memory and may read and write it at any time. So the code never makes a
//! reference to it, copies octets by raw copies, and takes no decision on octets that it read. It
//! stores each octet that it places once, the last ones last: the owner may poll an octet, and
//! store there as soon as it has changed ([`place_octets`]). Octets that lie in front of their
//! target and reach into it, which takes a peer on the same host, are the exception: `memmove()`
//! copies them, and may store some twice.
//!
//! This module checks bounds: it never accesses octets outside the list. The driver checks access
//! to the region before; this is a second check.
//!
//! Context: any; the copies neither sleep nor allocate. Creating [`PageList`], [`KernelPages`] and
//! [`Divisible`] allocates, and dropping the pages of a process may sleep: both require process
//! context.

use super::dma_buf::DmaBuf;
use super::paged::OnDemand;
use super::paged::PinnedPages;
use super::umem::Umem;
use crate::mm::page_list::PageList;
use crate::mm::run::place_octets;
use crate::mm::run::Run;
use crate::rdma::types::KernelOwned;
use kernel::prelude::*;
use kernel::sync::atomic::Atomic;
use kernel::sync::atomic::Full;
use kernel::sync::atomic::Relaxed;

mod absent;
mod kernel_pages;
mod part;
mod stream;
#[cfg(CONFIG_KUNIT = "y")]
mod tests;

pub use kernel_pages::FastRegMemory;
pub use kernel_pages::KernelPages;
pub use kernel_pages::Shape;
pub use part::Divisible;
pub use part::Part;

/// How often [`Memory::update_u64`] tries.
pub const UPDATE_ATTEMPTS: u32 = 100;

/// Memory that the data path writes to and reads from.
pub enum Memory {
    /// Memory of a process that stays in its place.
    Pages(PageList<MemoryOwner>),
    /// Memory that a kernel consumer registered fast.
    KernelPages(FastRegMemory),
    /// A window of kernel virtual addresses.
    KernelVirtual(KernelWindow),
    /// Memory with several owners, or a part of it.
    Part(Part),
    /// Memory of a process that is paged on demand.
    Paged(OnDemand),
}

/// A window of kernel virtual addresses of a kernel consumer.
pub struct KernelWindow {
    base: usize,
    len: u64,
}

/// The owner that keeps the memory of a process in its place.
pub enum MemoryOwner {
    /// A dma-buf of another driver.
    DmaBuf(DmaBuf),
    /// Pages pinned for one copy.
    Pinned(PinnedPages),
    /// Pages pinned for the life of a region.
    Umem(Umem),
}

impl Memory {
    /// Returns a window of `len` octets of kernel virtual addresses, with `base` at offset 0.
    ///
    /// The region of all kernel memory begins at 0 and has a length of `u64::MAX`: its offsets are
    /// addresses.
    pub fn kernel_virtual(_proof: KernelOwned<'_>, base: u64, len: u64) -> Result<Self> {
        let base = usize::try_from(base)?;
        Ok(Self::KernelVirtual(KernelWindow { base, len }))
    }

    /// Returns memory of no octets.
    pub const fn nothing() -> Self {
        Self::KernelVirtual(KernelWindow { base: 0, len: 0 })
    }

    /// Returns the length in octets.
    pub fn len(&self) -> u64 {
        match self {
            Self::Pages(list) => list.len(),
            Self::KernelPages(pages) => pages.len(),
            Self::KernelVirtual(window) => window.len,
            Self::Part(part) => part.len(),
            Self::Paged(paged) => paged.len(),
        }
    }

    /// Returns whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns whether the memory may be written.
    pub fn is_writable(&self) -> bool {
        match self {
            Self::Pages(list) => list.is_writable(),
            // For `OnDemand`, the process's own rights are checked for each page.
            Self::KernelPages(_) | Self::KernelVirtual(_) | Self::Paged(_) => true,
            Self::Part(part) => part.is_writable(),
        }
    }

    /// Returns whether the processor's atomic instructions work in the memory.
    ///
    /// A dma-buf may be mapped without the caches, and whoever maps it does not learn that. On x86
    /// they work there too; on arm64 they may fault or never succeed, which is implementation
    /// defined.
    pub fn takes_atomics(&self) -> bool {
        match self {
            Self::Pages(list) => {
                cfg!(target_arch = "x86_64")
                    || !matches!(list.owner(), Some(MemoryOwner::DmaBuf(_)))
            }
            Self::KernelPages(_) | Self::KernelVirtual(_) | Self::Paged(_) => true,
            Self::Part(part) => part.takes_atomics(),
        }
    }

    /// Returns whether all of the memory keeps its octets without power: pinned pages of persistent
    /// memory.
    ///
    /// Context: any but hard interrupt.
    pub fn is_persistent(&self) -> bool {
        match self {
            Self::Pages(list) => {
                matches!(list.owner(), Some(MemoryOwner::Umem(_)))
                    && usize::try_from(list.len()).is_ok_and(|len| {
                        let all = list.runs::<false>(0, len, |run| {
                            // SAFETY: `virt_to_phys()` requires an address of the direct map: a
                            // list of pinned pages has no other.
                            let is = unsafe {
                                riwarp_helper_is_persistent(run.start().cast(), run.len())
                            };
                            is.then_some(()).ok_or(EFAULT)
                        });
                        all.is_ok()
                    })
            }
            Self::Part(part) => part.is_persistent(),
            Self::KernelPages(_) | Self::KernelVirtual(_) | Self::Paged(_) => false,
        }
    }

    /// Has the processor's caches write `len` octets at `offset` back to the memory, and waits
    /// until they are there. On persistent memory they survive a loss of power then.
    ///
    /// # Errors
    ///
    /// `EFAULT` if they are not all inside; some may have been written back then.
    pub fn write_back(&self, offset: u64, len: usize) -> Result {
        self.runs::<false>(offset, len, |run| {
            // SAFETY: The helper requires mapped memory, which a run is while `self` is borrowed.
            unsafe { riwarp_helper_write_back(run.start().cast(), run.len()) };
            Ok(())
        })
    }

    /// Returns the longest contiguous run at `offset`, at most `max` octets; `None` outside, if
    /// `max` is 0, and for memory that is paged on demand.
    #[inline]
    pub fn run(&self, offset: u64, max: usize) -> Option<Run<'_>> {
        if max == 0 {
            return None;
        }
        match self {
            Self::Pages(list) => list.run::<true>(offset, max),
            Self::KernelPages(pages) => pages.run(offset, max),
            Self::KernelVirtual(window) => window.run(offset, max),
            Self::Part(part) => part.run(offset, max),
            Self::Paged(_) => None,
        }
    }

    /// Returns the run of all `len` octets at `offset`, if they are contiguous; `WRITE` says
    /// whether they are written.
    #[inline(always)]
    fn whole<const WRITE: bool>(&self, offset: u64, len: usize) -> Option<Run<'_>> {
        let run = match self {
            // The common case, handled without a call.
            Self::Pages(list) if len != 0 => list.run::<WRITE>(offset, len),
            // Finds no run in memory that is paged on demand.
            _ => self.run(offset, len),
        };
        run.filter(|run| run.len() == len)
    }

    /// Calls `f` for each run of `len` octets at `offset`, in order; `WRITE` says whether it writes
    /// them.
    ///
    /// # Errors
    ///
    /// * `EFAULT` if they are not all inside; `f` has seen the runs before the end then.
    /// * `EAGAIN` if they are not all present; `f` was not called then.
    /// * The error of `f`.
    #[inline]
    fn runs<const WRITE: bool>(
        &self,
        offset: u64,
        len: usize,
        f: impl FnMut(Run<'_>) -> Result,
    ) -> Result {
        match self {
            Self::Pages(list) => list.runs::<WRITE>(offset, len, f),
            Self::Part(part) => part.runs::<WRITE>(offset, len, f),
            Self::Paged(paged) => paged.runs::<WRITE>(offset, len, f),
            Self::KernelPages(_) | Self::KernelVirtual(_) => self.runs_of_kernel(offset, len, f),
        }
    }

    /// Does the same for memory of a kernel consumer.
    #[inline]
    fn runs_of_kernel(
        &self,
        offset: u64,
        len: usize,
        mut f: impl FnMut(Run<'_>) -> Result,
    ) -> Result {
        let mut at = offset;
        let mut left = len;
        while left > 0 {
            let run = self.run(at, left).ok_or(EFAULT)?;
            f(run)?;
            left -= run.len();
            at = at.wrapping_add(run.len() as u64); // CAST: `usize` is 64 bits.
        }
        Ok(())
    }

    /// Returns whether `len` octets at `offset` are inside.
    #[inline]
    fn covers(&self, offset: u64, len: usize) -> bool {
        match offset.checked_add(len as u64) /* CAST: `usize` is 64 bits. */ {
            Some(end) => end <= self.len(),
            None => false,
        }
    }

    /// Copies octets from a private buffer to `offset`.
    ///
    /// # Errors
    ///
    /// * `EFAULT` if they do not fit; nothing is written then.
    /// * `EACCES` if the memory is read-only.
    /// * `EAGAIN` if the memory is not all present; nothing is written then.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result {
        if !self.is_writable() {
            return Err(EACCES);
        }
        if !self.covers(offset, bytes.len()) {
            return Err(EFAULT);
        }
        // SAFETY: `put` requires that many octets that are readable: a slice is over its length.
        unsafe { self.put(offset, bytes.as_ptr(), bytes.len()) }
    }

    /// Copies octets from `offset` to a private buffer.
    ///
    /// # Errors
    ///
    /// `EFAULT` if they are not all inside, `EAGAIN` if they are not all present.
    pub fn read(&self, offset: u64, buffer: &mut [u8]) -> Result {
        if !self.covers(offset, buffer.len()) {
            return Err(EFAULT);
        }
        let mut done = 0;
        self.runs::<false>(offset, buffer.len(), |run| {
            let target = buffer
                .get_mut(done..done + run.len())
                .ok_or(EFAULT)?
                .as_mut_ptr();
            // SAFETY: The run is valid for reads, the target was just cut to its length, and is
            // private.
            unsafe { core::ptr::copy_nonoverlapping(run.start(), target, run.len()) };
            done += run.len();
            Ok(())
        })
    }

    /// Copies `len` octets at `source` to `offset`, without checking the rights.
    ///
    /// # Safety
    ///
    /// `source` must be readable for `len` octets.
    #[inline]
    unsafe fn put(&self, offset: u64, source: *const u8, len: usize) -> Result {
        let mut done = 0;
        self.runs::<true>(offset, len, |run| {
            // SAFETY: The runs together are as long as the source, so `done` is inside it.
            let source = unsafe { source.add(done) };
            // SAFETY: `place_octets` requires readable and writable octets: `runs` passes a run
            // that may be written, and the caller guarantees that the source is readable.
            unsafe { place_octets(source, run.start(), run.len()) };
            done += run.len();
            Ok(())
        })
    }

    /// Atomically adds to the 64 bits at `offset`, and returns the old value.
    ///
    /// # Errors
    ///
    /// As [`Memory::update_u64`], without `EBUSY`.
    pub fn fetch_add_u64(&self, offset: u64, add: u64) -> Result<u64> {
        // ORDERING: as in `with_word`.
        self.with_word(offset, |word| Ok(word.fetch_add(add, Full)))
    }

    /// Atomically replaces the 64 bits at `offset`, and returns the old value.
    ///
    /// # Errors
    ///
    /// As [`Memory::update_u64`], without `EBUSY`.
    pub fn exchange_u64(&self, offset: u64, new: u64) -> Result<u64> {
        // ORDERING: as in `with_word`.
        self.with_word(offset, |word| Ok(word.xchg(new, Full)))
    }

    /// Atomically replaces the 64 bits at `offset` by `new` if they are `old`, and returns their
    /// old value.
    ///
    /// # Errors
    ///
    /// As [`Memory::update_u64`], without `EBUSY`.
    pub fn compare_exchange_u64(&self, offset: u64, old: u64, new: u64) -> Result<u64> {
        self.with_word(offset, |word| {
            // ORDERING: as in `with_word`.
            Ok(word.cmpxchg(old, new, Full).unwrap_or_else(|found| found))
        })
    }

    /// Atomically replaces the 64 bits at `offset` by the result of `f`, and returns the old value.
    /// `f` may be called several times.
    ///
    /// The owner of the memory may change the word as fast as it can, so the number of attempts is
    /// limited: this may run in softirq.
    ///
    /// # Errors
    ///
    /// * `EFAULT` if they are not inside, or not contiguous.
    /// * `EINVAL` if their address is not a multiple of 8.
    /// * `EACCES` if the memory is read-only, or takes no atomics.
    /// * `EAGAIN` if the memory is not present.
    /// * `EBUSY` if others changed the word during each of [`UPDATE_ATTEMPTS`] attempts; it may be
    ///   tried again.
    pub fn update_u64(&self, offset: u64, mut f: impl FnMut(u64) -> u64) -> Result<u64> {
        self.with_word(offset, |word| {
            // ORDERING: the load is a first guess; the exchange as in `with_word`.
            let mut old = word.load(Relaxed);
            for _ in 0..UPDATE_ATTEMPTS {
                match word.cmpxchg(old, f(old), Full) {
                    Ok(_) => return Ok(old),
                    Err(found) => old = found,
                }
            }
            Err(EBUSY)
        })
    }

    /// Calls `f` with the 64 bits at `offset`. What it does by an atomic operation is atomic with
    /// respect to every processor and device that uses atomics of its own.
    fn with_word(
        &self,
        offset: u64,
        mut f: impl FnMut(&Atomic<u64>) -> Result<u64>,
    ) -> Result<u64> {
        if !self.is_writable() || !self.takes_atomics() {
            return Err(EACCES);
        }
        if !self.covers(offset, 8) {
            return Err(EFAULT);
        }
        let mut old = 0;
        self.runs::<true>(offset, 8, |run| {
            if run.len() != 8 {
                return Err(EFAULT);
            }
            if run.start().addr() % 8 != 0 {
                return Err(EINVAL);
            }
            // SAFETY: The run is valid and aligned; other writers of this memory race by their own
            // choice.
            let word = unsafe { Atomic::<u64>::from_ptr(run.start().cast()) };
            // ORDERING: `Full`, by which the callers change the word, pairs with the atomic
            // operations of the program and of other calls of these: who sees the new value sees
            // what the stream placed before.
            old = f(word)?;
            Ok(())
        })?;
        Ok(old)
    }
}

extern "C" {
    fn riwarp_helper_is_persistent(start: *mut kernel::ffi::c_void, len: usize) -> bool;
    fn riwarp_helper_write_back(start: *mut kernel::ffi::c_void, len: usize);
}

impl KernelWindow {
    #[inline]
    fn run(&self, offset: u64, max: usize) -> Option<Run<'_>> {
        let left = self.len.checked_sub(offset).filter(|left| *left > 0)?;
        // CAST: `usize` is 64 bits.
        let len = (left as usize).min(max);
        let start = self.base.checked_add(offset as usize)?;
        start.checked_add(len)?;
        // SAFETY: `Run::new` requires memory that stays valid as long as the run: a kernel consumer
        // vouches for the addresses that it uses.
        Some(unsafe { Run::new(core::ptr::with_exposed_provenance_mut(start), len) })
    }
}
