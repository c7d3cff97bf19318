// SPDX-License-Identifier: GPL-2.0

//! Memory that a process and the driver share.
//!
//! The driver makes it, the process maps it (see [`crate::rdma::mmap`]). Everything read from it
//! may change under the reader's eyes, so nothing hands out a reference: entries are copied out
//! once and the copy is checked; single fields that order the others are loaded with acquire and
//! stored with release.
//!
//! All offsets are checked against the length; what lies outside is `None` or `EINVAL`, never a
//! fault.
//!
//! Context: making and dropping: process. Access: any.

use crate::bindings;
use core::ffi::c_uint;
use core::ffi::c_void;
use core::mem::size_of;
use core::mem::MaybeUninit;
use core::ptr::NonNull;
use kernel::page::Page;
use kernel::page::PAGE_SIZE;
use kernel::prelude::*;
use kernel::sync::atomic::Acquire;
use kernel::sync::atomic::Atomic;
use kernel::sync::atomic::Release;
use zerocopy::Immutable;

/// Zeroed, page-aligned memory that can be mapped into processes.
///
/// # Invariants
///
/// `start` is what `vmap` gave for pages of its own, `len` octets of them, marked as for processes;
/// `len` is a non-zero multiple of the page size.
pub struct SharedMem {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: The memory belongs to no thread; `vfree()`, which the drop calls, may be called by any
// that may sleep.
unsafe impl Send for SharedMem {}
// SAFETY: Every access through a shared reference is one that may race: an atomic one, or volatile
// by words.
unsafe impl Sync for SharedMem {}

impl SharedMem {
    /// Allocates at least `len` octets, all zero, which the memory cgroup of the caller is charged
    /// with.
    ///
    /// # Errors
    ///
    /// * `EINVAL` if `len` is 0.
    /// * `ENOMEM` if it is absurdly large, or memory is short.
    pub fn try_new(len: usize) -> Result<Self> {
        if len == 0 {
            return Err(EINVAL);
        }
        let len = len.checked_next_multiple_of(PAGE_SIZE).ok_or(ENOMEM)?;
        let count = c_uint::try_from(len / PAGE_SIZE).map_err(|_| ENOMEM)?;
        let flags = GFP_KERNEL_ACCOUNT | __GFP_NOWARN;
        let mut pages = KVVec::with_capacity(count as usize, flags)?;
        let mut list = KVVec::with_capacity(count as usize, flags)?;
        for _ in 0..count {
            let page = Page::alloc_page(flags | __GFP_ZERO)?;
            list.push(page.as_ptr(), flags)?;
            pages.push(page, flags)?;
        }
        // SAFETY: So many pages are in the list.
        let start = unsafe { riwarp_helper_vmap_for_processes(list.as_mut_ptr().cast(), count) };
        let start = NonNull::new(start.cast::<u8>()).ok_or(ENOMEM)?;
        // They and their list are the mapping's from now on.
        core::mem::forget(list);
        pages.into_iter().for_each(core::mem::forget);
        // INVARIANT: Just made of as many pages.
        Ok(Self { start, len })
    }

    /// How many octets there are; a multiple of the page size.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never true; there is at least one page.
    #[inline]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Where it begins, for tests that name it in the place of a consumer.
    #[cfg(CONFIG_KUNIT = "y")]
    pub fn start(&self) -> *const u8 {
        self.start.as_ptr()
    }

    /// Where it begins.
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// A pointer to `size` octets at `offset`, if they are all inside and aligned to `align`.
    #[inline]
    fn at(&self, offset: usize, size: usize, align: usize) -> Option<NonNull<u8>> {
        let end = offset.checked_add(size)?;
        if end > self.len || offset % align != 0 {
            return None;
        }
        // SAFETY: `offset` is inside the allocation.
        Some(unsafe { self.start.add(offset) })
    }

    /// Copies a value out; `None` if it would lie outside or is not aligned to 8.
    ///
    /// Each word is read exactly once. Words may come from different moments; the copy itself never
    /// changes.
    #[inline]
    pub fn copy_out<E: FromBytes>(&self, offset: usize) -> Option<E> {
        let source = self.at(offset, size_of::<E>(), 8)?;
        let mut value = MaybeUninit::<E>::uninit();
        // SAFETY: The source is inside the allocation, the destination is a local of that size.
        unsafe { copy_racy(value.as_mut_ptr().cast(), source.as_ptr(), size_of::<E>()) };
        // SAFETY: All octets are written, and any octets are a value by `FromBytes`.
        Some(unsafe { value.assume_init() })
    }

    /// Copies a value in.
    ///
    /// The process sees its words in no particular order; publish by a `store_*_release` after it.
    ///
    /// # Errors
    ///
    /// `EINVAL` if it would lie outside or is not aligned to 8.
    #[inline]
    pub fn copy_in<E: IntoBytes + Immutable>(&self, offset: usize, value: &E) -> Result {
        let target = self.at(offset, size_of::<E>(), 8).ok_or(EINVAL)?;
        let source = value.as_bytes().as_ptr();
        // SAFETY: The target is inside the allocation, the source is a value of that size.
        unsafe { copy_racy(target.as_ptr(), source, size_of::<E>()) };
        Ok(())
    }

    /// Copies octets out, from anywhere.
    ///
    /// # Errors
    ///
    /// `EINVAL` if they would lie outside.
    pub fn copy_bytes_out(&self, offset: usize, buffer: &mut [u8]) -> Result {
        let source = self.at(offset, buffer.len(), 1).ok_or(EINVAL)?;
        // SAFETY: The source is inside the allocation, the destination has that length.
        unsafe { copy_racy(buffer.as_mut_ptr(), source.as_ptr(), buffer.len()) };
        Ok(())
    }

    /// Loads an octet with acquire order; `None` outside.
    #[inline]
    pub fn load_u8_acquire(&self, offset: usize) -> Option<u8> {
        let at = self.at(offset, 1, 1)?;
        // SAFETY: `from_ptr` wants a valid place that others access by atomic operations only: `at`
        // is inside of the memory, by `Self::at`, and a process is no part of this program.
        let value = unsafe { Atomic::<i8>::from_ptr(at.as_ptr().cast()) }.load(Acquire);
        // CAST: The same eight bits.
        Some(value as u8)
    }

    /// Loads 16 bits in the machine's order with acquire order; `None` outside or unaligned.
    #[inline]
    pub fn load_u16_acquire(&self, offset: usize) -> Option<u16> {
        let at = self.at(offset, 2, 2)?;
        // SAFETY: `from_ptr` wants a valid and aligned place that others access by atomic
        // operations only: `at` is inside of the memory and aligned, by `Self::at`, and a process
        // is no part of this program.
        let value = unsafe { Atomic::<i16>::from_ptr(at.as_ptr().cast()) }.load(Acquire);
        // CAST: The same sixteen bits.
        Some(value as u16)
    }

    /// Loads 32 bits in the machine's order with acquire order; `None` outside or unaligned.
    #[inline]
    pub fn load_u32_acquire(&self, offset: usize) -> Option<u32> {
        let at = self.at(offset, 4, 4)?;
        // SAFETY: `from_ptr` wants a valid and aligned place that others access by atomic
        // operations only: `at` is inside of the memory and aligned, by `Self::at`, and a process
        // is no part of this program.
        Some(unsafe { Atomic::<u32>::from_ptr(at.as_ptr().cast()) }.load(Acquire))
    }

    /// Stores an octet with release order.
    ///
    /// # Errors
    ///
    /// `EINVAL` if it lies outside.
    #[inline]
    pub fn store_u8_release(&self, offset: usize, value: u8) -> Result {
        let at = self.at(offset, 1, 1).ok_or(EINVAL)?;
        // CAST: The same eight bits.
        // SAFETY: `from_ptr` wants a valid place that others access by atomic operations only: `at`
        // is inside of the memory, by `Self::at`, and a process is no part of this program.
        unsafe { Atomic::<i8>::from_ptr(at.as_ptr().cast()) }.store(value as i8, Release);
        Ok(())
    }

    /// Stores 16 bits with release order.
    ///
    /// # Errors
    ///
    /// `EINVAL` if they lie outside or are unaligned.
    #[inline]
    pub fn store_u16_release(&self, offset: usize, value: u16) -> Result {
        let at = self.at(offset, 2, 2).ok_or(EINVAL)?;
        // CAST: The same sixteen bits.
        // SAFETY: `from_ptr` wants a valid and aligned place that others access by atomic
        // operations only: `at` is inside of the memory and aligned, by `Self::at`, and a process
        // is no part of this program.
        unsafe { Atomic::<i16>::from_ptr(at.as_ptr().cast()) }.store(value as i16, Release);
        Ok(())
    }

    /// Stores 32 bits with release order.
    ///
    /// # Errors
    ///
    /// `EINVAL` if they lie outside or are unaligned.
    #[inline]
    pub fn store_u32_release(&self, offset: usize, value: u32) -> Result {
        let at = self.at(offset, 4, 4).ok_or(EINVAL)?;
        // SAFETY: `from_ptr` wants a valid and aligned place that others access by atomic
        // operations only: `at` is inside of the memory and aligned, by `Self::at`, and a process
        // is no part of this program.
        unsafe { Atomic::<u32>::from_ptr(at.as_ptr().cast()) }.store(value, Release);
        Ok(())
    }

    /// Replaces 32 bits if they are `old`, or says what they are, as a full barrier; `None` outside
    /// or unaligned.
    #[inline]
    pub fn replace_u32(&self, offset: usize, old: u32, new: u32) -> Option<Result<u32, u32>> {
        let at = self.at(offset, 4, 4)?;
        // SAFETY: `from_ptr` wants a valid and aligned place that others access by atomic
        // operations only: `at` is inside of the memory and aligned, by `Self::at`, and a process
        // is no part of this program.
        let word = unsafe { Atomic::<u32>::from_ptr(at.as_ptr().cast()) };
        Some(word.cmpxchg(old, new, kernel::sync::atomic::Full))
    }
}

impl Drop for SharedMem {
    fn drop(&mut self) {
        // SAFETY: By the type's invariant this is a live mapping that owns its pages. Mappings into
        // processes hold the pages.
        unsafe { bindings::vfree(self.start.as_ptr().cast()) };
    }
}

unsafe extern "C" {
    fn riwarp_helper_vmap_for_processes(pages: *mut *mut c_void, count: c_uint) -> *mut c_void;
}

/// Copies memory of which one side may be changed by a process meanwhile.
///
/// # Safety
///
/// `from` must be readable and `to` writable for `len` octets, and they may not overlap. One of
/// them is private.
#[inline]
unsafe fn copy_racy(to: *mut u8, from: *const u8, len: usize) {
    let mut done = 0;
    if to.addr() % 8 == 0 && from.addr() % 8 == 0 {
        while len - done >= 8 {
            // SAFETY: `add` has to stay inside of what `from` points to: eight octets and more of
            // `len` are left.
            let source = unsafe { from.add(done) }.cast::<u64>();
            // SAFETY: `add` has to stay inside of what `to` points to: eight octets and more of
            // `len` are left.
            let target = unsafe { to.add(done) }.cast::<u64>();
            // Volatile: read once, at this width.
            // SAFETY: A word of what the caller says is readable; it is aligned, as just compared.
            let word = unsafe { source.read_volatile() };
            // SAFETY: A word of what the caller says is writable; it is aligned, as just compared.
            unsafe { target.write_volatile(word) };
            done += 8;
        }
    }
    while done < len {
        // SAFETY: `add` has to stay inside of what `from` points to: `done` is below `len`.
        let source = unsafe { from.add(done) };
        // SAFETY: `add` has to stay inside of what `to` points to: `done` is below `len`.
        let target = unsafe { to.add(done) };
        // SAFETY: An octet of what the caller says is readable.
        let octet = unsafe { source.read_volatile() };
        // SAFETY: An octet of what the caller says is writable.
        unsafe { target.write_volatile(octet) };
        done += 1;
    }
}

#[kernel::prelude::kunit_tests(riwarp_shared_mem)]
mod tests {
    use super::*;

    #[derive(
        Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, zerocopy_derive::Immutable,
    )]
    #[repr(C)]
    struct TestEntry {
        id: u64,
        len: u32,
        key: u32,
    }

    const TEST_ENTRY: TestEntry = TestEntry {
        id: 0x0102_0304_0506_0708,
        len: 0x1112_1314,
        key: 0x2122_2324,
    };

    #[test]
    fn is_whole_pages_of_zeroes() -> Result {
        let memory = SharedMem::try_new(PAGE_SIZE + 1)?;
        assert_eq!(memory.len(), 2 * PAGE_SIZE);
        for at in (0..memory.len()).step_by(8) {
            assert_eq!(memory.copy_out(at), Some(0u64));
        }
        Ok(())
    }

    #[test]
    fn rejects_lengths_that_cannot_be() {
        assert_eq!(SharedMem::try_new(0).err(), Some(EINVAL));
        assert_eq!(SharedMem::try_new(usize::MAX).err(), Some(ENOMEM));
    }

    #[test]
    fn entries_come_back_as_they_went() -> Result {
        let memory = SharedMem::try_new(PAGE_SIZE)?;
        memory.copy_in(64, &TEST_ENTRY)?;
        assert_eq!(memory.copy_out(64), Some(TEST_ENTRY));
        let mut octets = [0; 16];
        memory.copy_bytes_out(64, &mut octets)?;
        assert_eq!(octets[8..12], 0x1112_1314u32.to_ne_bytes());
        // Their neighbours are as they were.
        assert_eq!(memory.copy_out(56), Some(0u64));
        assert_eq!(memory.copy_out(80), Some(0u64));
        Ok(())
    }

    #[test]
    fn no_octet_outside_is_touched() -> Result {
        let memory = SharedMem::try_new(PAGE_SIZE)?;
        let last = PAGE_SIZE - size_of::<TestEntry>();
        assert!(memory.copy_in(last, &TEST_ENTRY).is_ok());
        for at in [last + 8, PAGE_SIZE, PAGE_SIZE + 8, usize::MAX - 7] {
            assert_eq!(memory.copy_in(at, &TEST_ENTRY), Err(EINVAL));
            assert!(memory.copy_out::<TestEntry>(at).is_none());
        }
        assert_eq!(memory.load_u8_acquire(PAGE_SIZE), None);
        assert_eq!(memory.load_u16_acquire(PAGE_SIZE - 1), None);
        assert_eq!(memory.load_u32_acquire(PAGE_SIZE - 3), None);
        assert_eq!(memory.load_u32_acquire(usize::MAX - 3), None);
        assert_eq!(memory.store_u8_release(PAGE_SIZE, 1), Err(EINVAL));
        assert_eq!(memory.replace_u32(PAGE_SIZE, 0, 1), None);
        let cut = memory.copy_bytes_out(PAGE_SIZE - 3, &mut [0; 4]);
        assert_eq!(cut, Err(EINVAL));
        Ok(())
    }

    #[test]
    fn unaligned_places_are_refused() -> Result {
        let memory = SharedMem::try_new(PAGE_SIZE)?;
        for at in 1..8 {
            assert_eq!(memory.copy_in(at, &TEST_ENTRY), Err(EINVAL));
            assert!(memory.copy_out::<TestEntry>(at).is_none());
            assert_eq!(memory.load_u16_acquire(at).is_some(), at % 2 == 0);
            assert_eq!(memory.load_u32_acquire(at).is_some(), at % 4 == 0);
            assert_eq!(memory.store_u16_release(at, 0).is_ok(), at % 2 == 0);
            assert_eq!(memory.store_u32_release(at, 0).is_ok(), at % 4 == 0);
        }
        Ok(())
    }

    #[test]
    fn single_fields_have_the_machines_order() -> Result {
        let memory = SharedMem::try_new(PAGE_SIZE)?;
        memory.store_u32_release(8, 0x0102_0304)?;
        memory.store_u16_release(12, 0xfffe)?;
        memory.store_u8_release(14, 0xfd)?;
        let mut octets = [0; 8];
        memory.copy_bytes_out(8, &mut octets)?;
        assert_eq!(octets[..4], 0x0102_0304u32.to_ne_bytes());
        assert_eq!(octets[4..6], 0xfffeu16.to_ne_bytes());
        assert_eq!(octets[6..], [0xfd, 0]);
        assert_eq!(memory.load_u32_acquire(8), Some(0x0102_0304));
        assert_eq!(memory.load_u16_acquire(12), Some(0xfffe));
        assert_eq!(memory.load_u8_acquire(14), Some(0xfd));
        assert_eq!(memory.replace_u32(8, 4, 5), Some(Err(0x0102_0304)));
        assert_eq!(memory.load_u32_acquire(8), Some(0x0102_0304));
        assert_eq!(memory.replace_u32(8, 0x0102_0304, 5), Some(Ok(0x0102_0304)));
        assert_eq!(memory.load_u32_acquire(8), Some(5));
        Ok(())
    }
}
