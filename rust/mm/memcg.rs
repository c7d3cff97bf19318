// SPDX-License-Identifier: GPL-2.0

//! Memory cgroups: charging memory that is allocated on behalf of another task.
//!
//! Softirqs and work items allocate much of the memory that a process causes; their current task is
//! not the one to charge. A [`Memcg`] remembers the cgroup to charge; within [`Memcg::scope`],
//! allocations with `__GFP_ACCOUNT` are charged to it.
//!
//! C header: `include/linux/memcontrol.h`.

use crate::bindings;
use core::ptr;
use kernel::alloc::allocator::Kmalloc;
use kernel::alloc::Box;
use kernel::alloc::KVVec;

extern "C" {
    fn riwarp_helper_memcg_charge(object: *mut kernel::ffi::c_void) -> bool;
    fn riwarp_helper_memcg_current() -> *mut bindings::mem_cgroup;
    fn riwarp_helper_memcg_get(memcg: *mut bindings::mem_cgroup) -> bool;
    fn riwarp_helper_memcg_put(memcg: *mut bindings::mem_cgroup);
    fn riwarp_helper_memcg_root() -> *mut bindings::mem_cgroup;
    fn riwarp_helper_memcg_pays_for_sockets(memcg: *mut bindings::mem_cgroup) -> bool;
    fn riwarp_helper_set_active_memcg(
        memcg: *mut bindings::mem_cgroup,
    ) -> *mut bindings::mem_cgroup;
}

/// A counted reference to a memory cgroup.
///
/// # Invariants
///
/// The pointer is a memory cgroup to which this value owns a reference, or null where the kernel
/// has none.
pub struct Memcg(*mut bindings::mem_cgroup);

// SAFETY: Any thread may use and drop references to memory cgroups.
unsafe impl Send for Memcg {}
// SAFETY: Nothing is written through a shared reference.
unsafe impl Sync for Memcg {}

impl Memcg {
    /// Returns the cgroup of the current process. For a kernel thread, nothing is charged.
    ///
    /// Context: process.
    pub fn current() -> Self {
        // SAFETY: The helper requires process context only.
        // INVARIANT: The helper takes a reference, which this value owns.
        Self(unsafe { riwarp_helper_memcg_current() })
    }

    /// Returns the root cgroup, to which nothing is charged.
    pub fn nobody() -> Self {
        // SAFETY: The helper reads a pointer that is set at boot.
        // INVARIANT: The root always exists, and its references are not counted.
        Self(unsafe { riwarp_helper_memcg_root() })
    }

    /// Runs `f` and charges its allocations with `__GFP_ACCOUNT` to this cgroup, whatever the
    /// current task.
    ///
    /// Context: any but hard interrupt; with `PREEMPT_RT` process only, since for softirqs the
    /// kernel keeps the cgroup for each CPU, where another softirq can preempt this one. `f` must
    /// not change the context.
    #[inline]
    pub fn scope<R>(&self, f: impl FnOnce() -> R) -> R {
        // SAFETY: `set_active_memcg()` requires a memory cgroup that lives until another one is
        // set: by the type's invariant this value owns a reference, and it is borrowed for longer
        // than `f` runs.
        let before = unsafe { riwarp_helper_set_active_memcg(self.0) };
        let ret = f();
        // SAFETY: `set_active_memcg()` requires null, or a memory cgroup that lives until another
        // one is set: an outer call of this function set `before` and keeps it until that call
        // ends.
        unsafe { riwarp_helper_set_active_memcg(before) };
        ret
    }

    /// Charges an object that was allocated uncharged, with `GFP_KERNEL_ACCOUNT` in a work item.
    /// Does not wait for memory of the cgroup, which may exceed its limit by this.
    pub fn charge<T>(&self, object: &Box<T, Kmalloc>) {
        let object: *const T = &**object;
        // SAFETY: `charge_raw` requires an object of a slab cache or of `kvmalloc()`: a box of
        // `Kmalloc` is one.
        unsafe { self.charge_raw(object.cast_mut().cast()) };
    }

    /// Charges a list that was allocated uncharged, like [`Self::charge`]. One that is too long for
    /// contiguous memory stays uncharged.
    pub fn charge_list<T>(&self, list: &KVVec<T>) {
        if list.capacity() == 0 || size_of::<T>() == 0 {
            return;
        }
        // SAFETY: `charge_raw` requires an object of a slab cache or of `kvmalloc()`: a `KVVec`
        // that has memory has it from there.
        unsafe { self.charge_raw(list.as_ptr().cast_mut().cast()) };
    }

    /// # Safety
    ///
    /// `object` must be an object of a slab cache or of `kvmalloc()`.
    pub(crate) unsafe fn charge_raw(&self, object: *mut kernel::ffi::c_void) {
        // Such a charge does not fail; if it did, the object would stay uncharged.
        // SAFETY: The helper requires an object of a slab cache or of `kvmalloc()`: the caller
        // guarantees that for `object`.
        self.scope(|| unsafe { riwarp_helper_memcg_charge(object) });
    }

    /// Returns the cgroup, if TCP buffers are charged to it.
    pub(crate) fn for_sockets(&self) -> Option<Self> {
        // SAFETY: The helper accepts a memory cgroup or null: by the type's invariant the pointer
        // is either, and the reference keeps the former alive.
        unsafe { riwarp_helper_memcg_pays_for_sockets(self.0) }.then(|| self.clone())
    }

    /// Returns the reference as a raw pointer, which the caller owns from now on.
    pub(crate) fn into_raw(self) -> *mut bindings::mem_cgroup {
        core::mem::ManuallyDrop::new(self).0
    }

    /// Takes over a reference.
    ///
    /// # Safety
    ///
    /// `raw` must be null, or a memory cgroup to which the caller owns a reference, which it gives
    /// up.
    pub(crate) unsafe fn from_raw(raw: *mut bindings::mem_cgroup) -> Self {
        // INVARIANT: The caller gives the reference up.
        Self(raw)
    }

    /// Returns the raw pointer.
    pub(crate) fn as_raw(&self) -> *mut bindings::mem_cgroup {
        self.0
    }
}

impl Clone for Memcg {
    fn clone(&self) -> Self {
        // SAFETY: `mem_cgroup_tryget()` requires null, or a memory cgroup whose memory still
        // exists: by the type's invariant this value owns a reference. With one the call succeeds.
        let taken = unsafe { riwarp_helper_memcg_get(self.0) };
        // INVARIANT: The reference was just taken.
        Self(if taken { self.0 } else { ptr::null_mut() })
    }
}

impl Drop for Memcg {
    fn drop(&mut self) {
        // SAFETY: `mem_cgroup_put()` requires a reference, which it drops: by the type's invariant
        // this value owns one, and it ends here.
        unsafe { riwarp_helper_memcg_put(self.0) };
    }
}
