// SPDX-License-Identifier: GPL-2.0

//! Pages of memory that is paged on demand, pinned for one copy.
//!
//! Context: process.

use super::pages_of;
use super::Odp;
use super::Space;
use crate::bindings;
use crate::mm::page_list::PageList;
use crate::rdma::mem::mem_map::MemoryOwner;
use kernel::ffi::c_int;
use kernel::ffi::c_long;
use kernel::ffi::c_void;
use kernel::page::PAGE_SIZE;
use kernel::prelude::*;

/// Pages that were pinned for one copy.
pub struct PinnedPages {
    pages: KVec<*mut bindings::page>,
    write: bool,
}

// SAFETY: Pinned pages belong to no thread.
unsafe impl Send for PinnedPages {}
// SAFETY: A shared reference gives no access to them.
unsafe impl Sync for PinnedPages {}

impl PinnedPages {
    /// Pins the pages of the `len` octets at `begin` of the process of `odp`.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if memory is short, `EFAULT` otherwise.
    #[inline(never)] // A test makes allocations fail below this function.
    pub(super) fn pin(odp: &Odp, (begin, len): (usize, usize), write: bool) -> Result<Self> {
        let (first, wanted) = pages_of(begin, len).ok_or(EFAULT)?;
        let space = odp.space().ok_or(EFAULT)?;
        let mut this = Self {
            pages: KVec::from_elem(core::ptr::null_mut(), wanted, GFP_KERNEL)?,
            write,
        };
        // A call that fails after some pages returns their number, and the next call the error.
        let mut got = 0;
        let result = loop {
            match this.pages.get_mut(got..) {
                None | Some([]) => break Ok(()),
                Some(rest) => match pin_some(&space, first + got * PAGE_SIZE, rest, write) {
                    Ok(more) => got += more,
                    Err(error) => break Err(error),
                },
            }
        };
        this.pages.truncate(got);
        result.map(|()| this)
    }

    /// Returns the same octets as memory.
    pub(super) fn into_pages(self, (begin, len): (usize, usize)) -> Result<PageList<MemoryOwner>> {
        let mut skip = begin % PAGE_SIZE;
        let mut left = len;
        let mut list = PageList::with_capacity(self.pages.len(), self.write)?;
        for page in self.pages.iter() {
            // SAFETY: The page is pinned, and 64-bit kernels map all memory.
            let start = unsafe { riwarp_helper_page_address(*page) }.cast::<u8>();
            let len = (PAGE_SIZE - skip).min(left);
            // SAFETY: The range is inside the page, which stays pinned as long as this value, which
            // the list will own.
            unsafe { list.push(start.add(skip), len)? };
            left -= len;
            skip = 0;
        }
        list.own(MemoryOwner::Pinned(self));
        Ok(list)
    }
}

/// Pins pages from the one at `start` on, at least one and not more than `pages` has room for.
/// Returns how many.
fn pin_some(
    space: &Space,
    start: usize,
    pages: &mut [*mut bindings::page],
    write: bool,
) -> Result<usize> {
    let mm = space.0.as_ptr();
    let flags = if write { bindings::FOLL_WRITE } else { 0 };
    let mut locked: c_int = 1;
    // SAFETY: `space` holds the address space.
    unsafe { riwarp_helper_mmap_read_lock(mm) };
    // SAFETY: The lock is held, and `pages` has room for so many pages.
    let got = unsafe {
        bindings::pin_user_pages_remote(
            mm,
            start,
            pages.len(),
            flags,
            pages.as_mut_ptr(),
            &mut locked,
        )
    };
    if locked != 0 {
        // SAFETY: The lock is still held.
        unsafe { riwarp_helper_mmap_read_unlock(mm) };
    }
    match usize::try_from(got) {
        Ok(0) => Err(EFAULT),
        Ok(got) => Ok(got),
        Err(_) if got == ENOMEM.to_errno() as c_long => Err(ENOMEM),
        Err(_) => Err(EFAULT),
    }
}

impl Drop for PinnedPages {
    fn drop(&mut self) {
        if !self.pages.is_empty() {
            // SAFETY: The pages were pinned for this value, and are unpinned once.
            unsafe {
                bindings::unpin_user_pages_dirty_lock(
                    self.pages.as_mut_ptr(),
                    self.pages.len(),
                    self.write,
                );
            }
        }
    }
}

extern "C" {
    fn riwarp_helper_mmap_read_lock(mm: *mut bindings::mm_struct);
    fn riwarp_helper_mmap_read_unlock(mm: *mut bindings::mm_struct);
    fn riwarp_helper_page_address(page: *const bindings::page) -> *mut c_void;
}
