// SPDX-License-Identifier: GPL-2.0

//! Memory cgroups: who pays for memory that is allocated on behalf of somebody else.
//!
//! Much of what a process causes is allocated in softirq or by a work item, where the current task
//! is not the one to be charged. A [`Memcg`] remembers the one that is; within [`Memcg::scope`],
//! allocations with `__GFP_ACCOUNT` are charged to it.
//!
//! C header: `include/linux/memcontrol.h`.

use crate::bindings;
use core::ptr;
use kernel::alloc::allocator::Kmalloc;
use kernel::alloc::Box;

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
/// The pointer is a memory cgroup of which a reference is ours, or null where the kernel has none.
pub struct Memcg(*mut bindings::mem_cgroup);

// SAFETY: References to memory cgroups may be used and given back by any thread.
unsafe impl Send for Memcg {}
// SAFETY: Nothing is written through a shared reference.
unsafe impl Sync for Memcg {}

impl Memcg {
    /// The one of the current process. A thread of the kernel has none: nobody is charged.
    ///
    /// Context: process.
    pub fn current() -> Self {
        // SAFETY: May be called in process context.
        // INVARIANT: The reference that it takes is ours.
        Self(unsafe { riwarp_helper_memcg_current() })
    }

    /// Charges nobody.
    pub fn nobody() -> Self {
        // SAFETY: Reads a pointer that is set at boot.
        // INVARIANT: The root is always there, and its references are not counted.
        Self(unsafe { riwarp_helper_memcg_root() })
    }

    /// Has allocations with `__GFP_ACCOUNT` that `f` makes charged to this one, whatever the
    /// current task.
    ///
    /// Context: any but hard interrupt. `f` does not change the context.
    #[inline]
    pub fn scope<R>(&self, f: impl FnOnce() -> R) -> R {
        // SAFETY: `set_active_memcg()` wants a memory cgroup that lives until another one is set:
        // by the type's invariant this value has a reference, and it is borrowed for longer than
        // `f` runs.
        let before = unsafe { riwarp_helper_set_active_memcg(self.0) };
        let ret = f();
        // SAFETY: `set_active_memcg()` wants a memory cgroup that lives until another one is set,
        // or null: `before` was set by a caller of this function, who has to keep it until that
        // call ends.
        unsafe { riwarp_helper_set_active_memcg(before) };
        ret
    }

    /// Charges an object that nobody was charged with when it was allocated with
    /// `GFP_KERNEL_ACCOUNT`, since that was done by a work item. Does not wait for memory of the
    /// cgroup: it may get over its limit by this.
    pub fn charge<T>(&self, object: &Box<T, Kmalloc>) {
        let object: *const T = &**object;
        // SAFETY: `charge_raw` wants an object of a slab cache or of `kmalloc()`: a box of
        // `Kmalloc` is one.
        unsafe { self.charge_raw(object.cast_mut().cast()) };
    }

    /// # Safety
    ///
    /// `object` must be an object of a slab cache or of `kmalloc()`.
    pub(crate) unsafe fn charge_raw(&self, object: *mut kernel::ffi::c_void) {
        // Such a charge does not fail; if it did, the object would stay as it was.
        // SAFETY: `kmem_cache_charge()` wants an object of a slab cache or of `kmalloc()`: the
        // caller has made `object` one.
        self.scope(|| unsafe { riwarp_helper_memcg_charge(object) });
    }

    /// The cgroup, if it pays for what TCP keeps in its buffers.
    pub(crate) fn for_sockets(&self) -> Option<Self> {
        // SAFETY: The helper reads a memory cgroup, or does nothing with null: by the type's
        // invariant the pointer is either, and the reference keeps the former.
        unsafe { riwarp_helper_memcg_pays_for_sockets(self.0) }.then(|| self.clone())
    }

    /// The reference as C keeps it, which the caller has from now on.
    pub(crate) fn into_raw(self) -> *mut bindings::mem_cgroup {
        core::mem::ManuallyDrop::new(self).0
    }

    /// The cgroup as C knows it.
    pub(crate) fn as_raw(&self) -> *mut bindings::mem_cgroup {
        self.0
    }
}

impl Clone for Memcg {
    fn clone(&self) -> Self {
        // SAFETY: `mem_cgroup_tryget()` wants a memory cgroup whose memory is still there, or null:
        // by the type's invariant this value has a reference. With one it succeeds.
        let taken = unsafe { riwarp_helper_memcg_get(self.0) };
        // INVARIANT: The reference was just taken.
        Self(if taken { self.0 } else { ptr::null_mut() })
    }
}

impl Drop for Memcg {
    fn drop(&mut self) {
        // SAFETY: `mem_cgroup_put()` wants a reference that the caller has, which it gives back: by
        // the type's invariant this value has one, and it ends here.
        unsafe { riwarp_helper_memcg_put(self.0) };
    }
}
