// SPDX-License-Identifier: GPL-2.0

//! Memory that a process maps through its uverbs file.
//!
//! The driver shares a [`SharedMem`] while it creates an object
//! ([`Udata::share`](super::udata::Udata::share)) and gets a key for the response; the provider
//! library passes the key to `mmap()` as the offset. The keys belong to the verb object: they are
//! withdrawn when the object is destroyed or its creation fails. Existing mappings stay; the pages
//! live until the last mapping is gone, even after the [`SharedMem`].
//!
//! Context: process.
//!
//! C header: `include/rdma/ib_verbs.h` (`rdma_user_mmap_entry`).

use crate::bindings;
use crate::mm::shared_ring::SharedMem;
use core::ptr::addr_of_mut;
use core::ptr::NonNull;
use kernel::error::to_result;
use kernel::ffi::c_int;
use kernel::prelude::*;
use kernel::sync::Arc;

/// An entry of a process's table of mappable memory.
///
/// # Invariants
///
/// `base` is at offset 0. The C reference count in `base` owns the structure.
#[repr(C)]
struct MmapEntry {
    base: bindings::rdma_user_mmap_entry,
    memory: Arc<SharedMem>,
}

/// The entries that belong to one verb object.
///
/// # Invariants
///
/// Every pointer is an inserted entry whose first reference belongs to this value. The user context
/// of the entries outlives this value, which lives in a verb object of that context or on the stack
/// of a verb.
pub(super) struct Mappings {
    entries: KVec<NonNull<bindings::rdma_user_mmap_entry>>,
}

// SAFETY: The drop calls `rdma_user_mmap_entry_remove()`, which any thread may call.
unsafe impl Send for Mappings {}
// SAFETY: A shared reference only tells whether the value is empty.
unsafe impl Sync for Mappings {}

impl Mappings {
    /// Returns a value without entries.
    pub(super) const fn new() -> Self {
        Self {
            entries: KVec::new(),
        }
    }

    /// Returns whether the value has no entries.
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Adds memory to the table of `context` and returns its key.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if memory is short, or no key is left.
    ///
    /// # Safety
    ///
    /// `context` must be valid and outlive this value.
    pub(super) unsafe fn insert(
        &mut self,
        context: NonNull<bindings::ib_ucontext>,
        memory: Arc<SharedMem>,
    ) -> Result<u64> {
        // Memory is reserved first, so that nothing can fail once the entry is inserted.
        self.entries.reserve(1, GFP_KERNEL_ACCOUNT)?;
        let length = memory.len();
        let entry = KBox::new(
            MmapEntry {
                base: bindings::rdma_user_mmap_entry::default(),
                memory,
            },
            GFP_KERNEL_ACCOUNT,
        )?;
        let entry = KBox::into_raw(entry);
        // SAFETY: `entry` points to a live `MmapEntry`.
        let base = unsafe { addr_of_mut!((*entry).base) };
        // SAFETY: `rdma_user_mmap_entry_insert_range()` requires a valid context, which the caller
        // guarantees, and an entry that was not inserted, which `base` is.
        let status = unsafe {
            bindings::rdma_user_mmap_entry_insert_range(
                context.as_ptr(),
                base,
                length,
                FIRST_PAGE,
                u32::MAX,
            )
        };
        if let Err(error) = to_result(status) {
            // SAFETY: The entry was not inserted, so only this function owns it.
            drop(unsafe { KBox::from_raw(entry) });
            return Err(error);
        }
        // SAFETY: The entry is inserted, and the reference of this function keeps it alive.
        let key = unsafe { riwarp_helper_rdma_user_mmap_get_offset(base) };
        // SAFETY: `base` came from a box.
        let base = unsafe { NonNull::new_unchecked(base) };
        // INVARIANT: The entry was just inserted, and its first reference belongs to this value.
        self.entries.push(base, GFP_KERNEL_ACCOUNT)?;
        Ok(key)
    }
}

impl Drop for Mappings {
    fn drop(&mut self) {
        for entry in self.entries.iter() {
            // SAFETY: By the type's invariant the entry is inserted, its reference belongs to this
            // value, and the context exists.
            unsafe { bindings::rdma_user_mmap_entry_remove(entry.as_ptr()) };
        }
    }
}

/// `ops.mmap`: maps the memory that the offset names.
///
/// # Safety
///
/// As `ib_uverbs_mmap()` calls it: both are valid, and the mapping is being created.
pub(super) unsafe extern "C" fn mmap(
    context: *mut bindings::ib_ucontext,
    vma: *mut bindings::vm_area_struct,
) -> c_int {
    // SAFETY: `rdma_user_mmap_entry_get()` requires a valid context and a mapping that is being
    // created: both are so, by this function's `# Safety`.
    let base = unsafe { bindings::rdma_user_mmap_entry_get(context, vma) };
    let Some(base) = NonNull::new(base) else {
        return EINVAL.to_errno();
    };
    // SAFETY: All entries of this driver's contexts are `MmapEntry` with `base` at offset 0;
    // `rdma_user_mmap_entry_get` took a reference.
    let memory = unsafe { &(*base.as_ptr().cast::<MmapEntry>()).memory };
    // SAFETY: `vma` is being created, and the memory was mapped for user space, with exactly the
    // size of the entry.
    let status = unsafe { bindings::remap_vmalloc_range(vma, memory.as_ptr().cast(), 0) };
    // SAFETY: The reference is that of `rdma_user_mmap_entry_get`.
    unsafe { bindings::rdma_user_mmap_entry_put(base.as_ptr()) };
    status
}

/// `ops.mmap_free`: the last reference to an entry is gone.
///
/// # Safety
///
/// `base` must be an inserted `MmapEntry` that nothing refers to.
pub(super) unsafe extern "C" fn mmap_free(base: *mut bindings::rdma_user_mmap_entry) {
    // SAFETY: Entries come from `KBox::into_raw` in `insert`; `base` is at offset 0.
    drop(unsafe { KBox::from_raw(base.cast::<MmapEntry>()) });
}

/// The lowest key, in pages.
///
/// The table is an XArray, which keeps the inner nodes that it has allocated if memory for the next
/// one is short; then `ib_uverbs` finds it not empty when the process has ended, and warns. Small
/// keys need one node, and those below 4096 one more at a time. Not 0, which is no memory to map
/// for other libraries.
const FIRST_PAGE: u32 = 1;

extern "C" {
    fn riwarp_helper_rdma_user_mmap_get_offset(entry: *const bindings::rdma_user_mmap_entry)
        -> u64;
}
