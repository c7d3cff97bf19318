// SPDX-License-Identifier: GPL-2.0

//! Pinned memory of a process.
//!
//! Pins an address range of the current process as a [`Umem`], whose pages stay in their place
//! until it is dropped, and makes it a [`PageList`] for the copies of the data path.
//!
//! Context: process; pinning and dropping may sleep.
//!
//! C header: `include/rdma/ib_umem.h`.

use super::mem_map::MemoryOwner;
use crate::bindings;
use crate::mm::page_list::PageList;
use crate::rdma::types::AccessFlags;
use core::ptr::NonNull;
use kernel::error::from_err_ptr;
use kernel::ffi::c_int;
use kernel::page::PAGE_SIZE;
use kernel::prelude::*;

/// Pinned memory of a process.
///
/// # Invariants
///
/// `raw` is a live `ib_umem`.
pub struct Umem {
    raw: NonNull<bindings::ib_umem>,
}

// SAFETY: An `ib_umem` may be released by any thread: it holds its `mm` itself.
unsafe impl Send for Umem {}
// SAFETY: Through a shared reference it is only read, and it never changes.
unsafe impl Sync for Umem {}

impl Umem {
    /// Pins `len` octets at `start` of the current process.
    ///
    /// # Safety
    ///
    /// `device` must be a registered device, and stay one until the value is dropped: that is, a
    /// memory region of this device must own the value.
    ///
    /// # Errors
    ///
    /// See [`RegUserMr::pin`](crate::rdma::mr::RegUserMr::pin).
    pub(crate) unsafe fn pin(
        device: NonNull<bindings::ib_device>,
        start: u64,
        len: u64,
        access: AccessFlags,
    ) -> Result<Self> {
        if len == 0 || start.checked_add(len).is_none() {
            return Err(EINVAL);
        }
        let len = usize::try_from(len)?;
        // CAST: Flags in an int; every bit keeps its place.
        let access = access.bits() as c_int;
        // SAFETY: `ib_umem_get_attr_or_va()` requires a registered device, which the caller
        // guarantees; the function checks the range.
        let raw = unsafe {
            bindings::ib_umem_get_attr_or_va(
                device.as_ptr(),
                core::ptr::null(),
                0,
                start,
                len,
                access,
            )
        };
        let raw = from_err_ptr(raw)?;
        // INVARIANT: `ib_umem_get_attr_or_va` returned it.
        NonNull::new(raw).map(|raw| Self { raw }).ok_or(EFAULT)
    }

    /// Returns the length in octets.
    pub fn len(&self) -> usize {
        // SAFETY: A field of the object, which is live by the type's invariant, and never changes.
        unsafe { (*self.raw.as_ptr()).length }
    }

    /// Returns whether the memory is empty (it never is).
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Turns the memory into a list of its pages, for the data path.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if memory is short.
    pub fn into_pages(self) -> Result<PageList<MemoryOwner>> {
        // SAFETY: A reference requires valid memory that is not written to: by the type's invariant
        // the object is live, and it never changes.
        let umem = unsafe { &*self.raw.as_ptr() };
        let mut skip = umem.address & (PAGE_SIZE - 1);
        let writable = umem.writable() != 0;
        let mut left = umem.length;
        let mut entry = umem.sgt_append.sgt.sgl;
        let mut list = PageList::with_capacity(entries_of(umem), writable)?;

        while left > 0 {
            let Some(sg) = NonNull::new(entry) else {
                return Err(EFAULT);
            };
            // SAFETY: `sg` is an entry of the table.
            let length = unsafe { (*sg.as_ptr()).length };
            // CAST: 32 bits fit.
            let length = (length as usize).saturating_sub(skip).min(left);
            // SAFETY: `sg_virt()` requires an entry whose pages have an address: `sg` is an entry
            // of the table, whose pages are pinned, and 64-bit kernels map all memory.
            let start = unsafe { riwarp_helper_sg_virt(sg.as_ptr()) };
            // SAFETY: `skip` is within the first page.
            let start = unsafe { start.cast::<u8>().add(skip) };
            // SAFETY: The pages of the entry are contiguous in the kernel's direct map and stay
            // pinned as long as the umem lives, which the list will own.
            unsafe { list.push(start, length)? };
            left -= length;
            skip = 0;
            // SAFETY: `sg_next()` requires an entry of a list, which `sg` is; it returns null after
            // the last.
            entry = unsafe { riwarp_helper_sg_next(sg.as_ptr()) };
        }
        list.own(MemoryOwner::Umem(self));
        Ok(list)
    }
}

/// Returns the number of entries of the table.
fn entries_of(umem: &bindings::ib_umem) -> usize {
    // CAST: 32 bits fit.
    umem.sgt_append.sgt.orig_nents as usize
}

impl Drop for Umem {
    fn drop(&mut self) {
        // SAFETY: `ib_umem_release()` requires a live object whose pages nothing uses any more: by
        // the type's invariant it is live, and the list of its pieces owns this value and ends with
        // it.
        unsafe { bindings::ib_umem_release(self.raw.as_ptr()) };
    }
}

extern "C" {
    fn riwarp_helper_sg_next(sg: *mut bindings::scatterlist) -> *mut bindings::scatterlist;
    fn riwarp_helper_sg_virt(sg: *mut bindings::scatterlist) -> *mut kernel::ffi::c_void;
}
