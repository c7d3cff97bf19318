// SPDX-License-Identifier: GPL-2.0

//! Memory that a process and the driver share.
//!
//! The driver allocates the memory, the process maps it (see [`crate::rdma::mmap`]). The process
//! may change it at any time, so nothing returns a reference: entries are copied out once and the
//! copy is checked; single fields that order the others are loaded with acquire and stored with
//! release. Their partners are in the process's library; each caller names its own.
//!
//! All offsets are checked against the length; an access outside returns `None` or `EINVAL` and
//! never faults.
//!
//! Context: process for allocating and dropping; any for access.

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
/// `start` is the result of `vmap` for `len` octets of pages that the mapping owns, mapped for user
/// space; `len` is a non-zero multiple of the page size.
pub struct SharedMem {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: The memory belongs to no thread; any thread that may sleep may call `vfree()`, as the
// drop does.
unsafe impl Send for SharedMem {}
// SAFETY: Every access through a shared reference may race: it is atomic, or volatile by words.
unsafe impl Sync for SharedMem {}

impl SharedMem {
    /// Allocates at least `len` octets, all zero, charged to the memory cgroup of the caller.
    ///
    /// # Errors
    ///
    /// * `EINVAL` if `len` is 0.
    /// * `ENOMEM` if `len` is too large, or memory is short.
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
        // SAFETY: The list has `count` pages.
        let start = unsafe { riwarp_helper_vmap_for_processes(list.as_mut_ptr().cast(), count) };
        let start = NonNull::new(start.cast::<u8>()).ok_or(ENOMEM)?;
        // The mapping owns the pages and their list from now on.
        core::mem::forget(list);
        pages.into_iter().for_each(core::mem::forget);
        // INVARIANT: The mapping was just made, of `len` octets of pages.
        Ok(Self { start, len })
    }

    /// Returns the length in octets, a multiple of the page size.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns `false`: the memory has at least one page.
    #[inline]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Returns the start, for tests that use it in the place of a consumer.
    #[cfg(CONFIG_KUNIT = "y")]
    pub fn start(&self) -> *const u8 {
        self.start.as_ptr()
    }

    /// Returns the start.
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Returns a pointer to `size` octets at `offset`, if they are all inside and aligned to
    /// `align`.
    #[inline]
    fn at(&self, offset: usize, size: usize, align: usize) -> Option<NonNull<u8>> {
        let end = offset.checked_add(size)?;
        if end > self.len || offset % align != 0 {
            return None;
        }
        // SAFETY: `offset` is inside the allocation.
        Some(unsafe { self.start.add(offset) })
    }

    /// Copies a value out; `None` if it lies outside or is not aligned to 8.
    ///
    /// Each word is read exactly once. Words may be read at different times; the copy itself never
    /// changes.
    #[inline]
    pub fn copy_out<E: FromBytes>(&self, offset: usize) -> Option<E> {
        let source = self.at(offset, size_of::<E>(), 8)?;
        let mut value = MaybeUninit::<E>::uninit();
        // SAFETY: The source is inside the allocation, the destination is a local of that size.
        unsafe { copy_racy(value.as_mut_ptr().cast(), source.as_ptr(), size_of::<E>()) };
        // SAFETY: All octets are written, and by `FromBytes` any octets are a valid value.
        Some(unsafe { value.assume_init() })
    }

    /// Copies a value in.
    ///
    /// The process sees its words in any order; a `store_*_release` after it publishes them.
    ///
    /// # Errors
    ///
    /// `EINVAL` if it lies outside or is not aligned to 8.
    #[inline]
    pub fn copy_in<E: IntoBytes + Immutable>(&self, offset: usize, value: &E) -> Result {
        let target = self.at(offset, size_of::<E>(), 8).ok_or(EINVAL)?;
        let source = value.as_bytes().as_ptr();
        // SAFETY: The target is inside the allocation, the source is a value of that size.
        unsafe { copy_racy(target.as_ptr(), source, size_of::<E>()) };
        Ok(())
    }

    /// Copies octets out, from any offset.
    ///
    /// # Errors
    ///
    /// `EINVAL` if they lie outside.
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
        // ORDERING: the caller's, which names its partner.
        // SAFETY: `from_ptr` requires valid memory that others access by atomic operations only:
        // `at` is inside the memory, by `Self::at`; the accesses of a process are outside the Rust
        // memory model.
        let value = unsafe { Atomic::<i8>::from_ptr(at.as_ptr().cast()) }.load(Acquire);
        // CAST: The same eight bits.
        Some(value as u8)
    }

    /// Loads 16 bits in native order with acquire order; `None` outside or unaligned.
    #[inline]
    pub fn load_u16_acquire(&self, offset: usize) -> Option<u16> {
        let at = self.at(offset, 2, 2)?;
        // ORDERING: the caller's, which names its partner.
        // SAFETY: `from_ptr` requires valid and aligned memory that others access by atomic
        // operations only: `at` is inside the memory and aligned, by `Self::at`; the accesses of a
        // process are outside the Rust memory model.
        let value = unsafe { Atomic::<i16>::from_ptr(at.as_ptr().cast()) }.load(Acquire);
        // CAST: The same sixteen bits.
        Some(value as u16)
    }

    /// Loads 32 bits in native order with acquire order; `None` outside or unaligned.
    #[inline]
    pub fn load_u32_acquire(&self, offset: usize) -> Option<u32> {
        let at = self.at(offset, 4, 4)?;
        // ORDERING: the caller's, which names its partner.
        // SAFETY: `from_ptr` requires valid and aligned memory that others access by atomic
        // operations only: `at` is inside the memory and aligned, by `Self::at`; the accesses of a
        // process are outside the Rust memory model.
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
        // ORDERING: the caller's, which names its partner.
        // CAST: The same eight bits.
        // SAFETY: `from_ptr` requires valid memory that others access by atomic operations only:
        // `at` is inside the memory, by `Self::at`; the accesses of a process are outside the Rust
        // memory model.
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
        // ORDERING: the caller's, which names its partner.
        // CAST: The same sixteen bits.
        // SAFETY: `from_ptr` requires valid and aligned memory that others access by atomic
        // operations only: `at` is inside the memory and aligned, by `Self::at`; the accesses of a
        // process are outside the Rust memory model.
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
        // ORDERING: the caller's, which names its partner.
        // SAFETY: `from_ptr` requires valid and aligned memory that others access by atomic
        // operations only: `at` is inside the memory and aligned, by `Self::at`; the accesses of a
        // process are outside the Rust memory model.
        unsafe { Atomic::<u32>::from_ptr(at.as_ptr().cast()) }.store(value, Release);
        Ok(())
    }

    /// Compares and exchanges 32 bits as a full barrier: stores `new` if they are `old`, else
    /// returns their value as the error; `None` outside or unaligned.
    #[inline]
    pub fn replace_u32(&self, offset: usize, old: u32, new: u32) -> Option<Result<u32, u32>> {
        let at = self.at(offset, 4, 4)?;
        // SAFETY: `from_ptr` requires valid and aligned memory that others access by atomic
        // operations only: `at` is inside the memory and aligned, by `Self::at`; the accesses of a
        // process are outside the Rust memory model.
        let word = unsafe { Atomic::<u32>::from_ptr(at.as_ptr().cast()) };
        // ORDERING: pairs with the process's atomic store of its request; the caller says how.
        Some(word.cmpxchg(old, new, kernel::sync::atomic::Full))
    }
}

impl Drop for SharedMem {
    fn drop(&mut self) {
        // SAFETY: By the type's invariant this is a live mapping that owns its pages. Mappings into
        // processes hold references to the pages.
        unsafe { bindings::vfree(self.start.as_ptr().cast()) };
    }
}

unsafe extern "C" {
    fn riwarp_helper_vmap_for_processes(pages: *mut *mut c_void, count: c_uint) -> *mut c_void;
}

/// Copies memory of which a process may change one side meanwhile.
///
/// # Safety
///
/// `from` must be readable and `to` writable for `len` octets; they must not overlap, and one of
/// them must be private.
#[inline]
unsafe fn copy_racy(to: *mut u8, from: *const u8, len: usize) {
    let mut done = 0;
    if to.addr() % 8 == 0 && from.addr() % 8 == 0 {
        while len - done >= 8 {
            // SAFETY: `add` must stay inside the octets at `from`: at least eight of `len` are
            // left.
            let source = unsafe { from.add(done) }.cast::<u64>();
            // SAFETY: `add` must stay inside the octets at `to`: at least eight of `len` are left.
            let target = unsafe { to.add(done) }.cast::<u64>();
            // Volatile: read once, at this width.
            // SAFETY: The word is inside the octets that the caller guarantees are readable; it is
            // aligned, as just compared.
            let word = unsafe { source.read_volatile() };
            // SAFETY: The word is inside the octets that the caller guarantees are writable; it is
            // aligned, as just compared.
            unsafe { target.write_volatile(word) };
            done += 8;
        }
    }
    while done < len {
        // SAFETY: `add` must stay inside the octets at `from`: `done` is below `len`.
        let source = unsafe { from.add(done) };
        // SAFETY: `add` must stay inside the octets at `to`: `done` is below `len`.
        let target = unsafe { to.add(done) };
        // SAFETY: The caller guarantees that the octet is readable.
        let octet = unsafe { source.read_volatile() };
        // SAFETY: The caller guarantees that the octet is writable.
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
    fn shared_memory_is_whole_zeroed_pages() -> Result {
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
    fn entries_copied_in_are_copied_out_unchanged() -> Result {
        let memory = SharedMem::try_new(PAGE_SIZE)?;
        memory.copy_in(64, &TEST_ENTRY)?;
        assert_eq!(memory.copy_out(64), Some(TEST_ENTRY));
        let mut octets = [0; 16];
        memory.copy_bytes_out(64, &mut octets)?;
        assert_eq!(octets[8..12], 0x1112_1314u32.to_ne_bytes());
        // The neighbouring octets are unchanged.
        assert_eq!(memory.copy_out(56), Some(0u64));
        assert_eq!(memory.copy_out(80), Some(0u64));
        Ok(())
    }

    #[test]
    fn copies_touch_no_octet_outside_their_range() -> Result {
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
    fn fields_are_stored_in_native_byte_order() -> Result {
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
