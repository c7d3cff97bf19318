// SPDX-License-Identifier: GPL-2.0

//! Work queues that a module owns, and taking back work that was enqueued.
//!
//! The `kernel` crate has only the system's queues, which must not be flushed; a module that is to
//! be unloaded needs queues of its own, empty before its text goes.
//!
//! C header: `include/linux/workqueue.h`.

use crate::bindings;
use core::ops::Deref;
use core::ptr::NonNull;
use kernel::container_of;
use kernel::ffi::c_uint;
use kernel::prelude::*;
use kernel::sync::Arc;
use kernel::workqueue::HasDelayedWork;
use kernel::workqueue::HasWork;
use kernel::workqueue::Queue;
use kernel::workqueue::Work;
use kernel::workqueue::WorkItem;

/// Which CPU runs an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// The CPU that enqueued it.
    PerCpu,
    /// Any.
    Unbound,
    /// Any, one item after the other, in the order in which they were enqueued.
    Ordered,
}

/// What kind of queue is wanted.
#[derive(Clone, Copy, Debug)]
pub struct Flags {
    /// Which CPU runs an item.
    pub placement: Placement,
    /// Items are run by workers of high priority.
    pub highpri: bool,
    /// At least one item can always be run, so that writing back memory may wait for it.
    pub mem_reclaim: bool,
}

impl Flags {
    fn as_raw(self) -> c_uint {
        let mut flags = match self.placement {
            Placement::PerCpu => bindings::wq_flags_WQ_PERCPU,
            Placement::Unbound => bindings::wq_flags_WQ_UNBOUND,
            Placement::Ordered => bindings::wq_flags_WQ_UNBOUND | bindings::wq_flags___WQ_ORDERED,
        };
        if self.highpri {
            flags |= bindings::wq_flags_WQ_HIGHPRI;
        }
        if self.mem_reclaim {
            flags |= bindings::wq_flags_WQ_MEM_RECLAIM;
        }
        flags
    }
}

/// A work queue that lives as long as this value.
///
/// Dropping it waits until all items have run, also those that they enqueue. **Delayed** items
/// whose time has not come are not waited for: take them back by [`cancel_delayed`] first.
///
/// # Invariants
///
/// The pointer is a queue made by `alloc_workqueue` and destroyed by nobody else.
pub struct OwnedQueue(NonNull<bindings::workqueue_struct>);

// SAFETY: Queues may be used and destroyed by any thread.
unsafe impl Send for OwnedQueue {}
// SAFETY: The functions used on a queue lock it.
unsafe impl Sync for OwnedQueue {}

impl OwnedQueue {
    /// Makes a queue. Context: process, sleeps.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn try_new(name: &CStr, flags: Flags) -> Result<Self> {
        let at_once = match flags.placement {
            Placement::PerCpu | Placement::Unbound => 0, // the default
            Placement::Ordered => 1,
        };
        // SAFETY: The format takes one string, which is given; the name is copied.
        let queue = unsafe {
            bindings::alloc_workqueue_noprof(
                c"%s".as_char_ptr(),
                flags.as_raw(),
                at_once,
                name.as_char_ptr(),
            )
        };
        // INVARIANT: Just made, and known to nobody else.
        NonNull::new(queue).map(Self).ok_or(ENOMEM)
    }

    /// Waits until all items have run that were enqueued before. Context: process, sleeps; not from
    /// an item of the same queue.
    pub fn flush(&self) {
        // SAFETY: By the type invariant the queue is valid.
        unsafe { bindings::__flush_workqueue(self.0.as_ptr()) };
    }

    pub(crate) fn as_raw(&self) -> *mut bindings::workqueue_struct {
        self.0.as_ptr()
    }
}

impl Deref for OwnedQueue {
    type Target = Queue;

    #[inline]
    fn deref(&self) -> &Queue {
        // SAFETY: By the type invariant the queue is valid as long as `self`.
        unsafe { Queue::from_raw(self.0.as_ptr()) }
    }
}

impl Drop for OwnedQueue {
    fn drop(&mut self) {
        // SAFETY: By the type invariant the queue is valid and destroyed only here. All borrows of
        // it have ended.
        unsafe { bindings::destroy_workqueue(self.0.as_ptr()) };
    }
}

/// Takes an item back that waits in a queue, and says whether it did.
///
/// After `true` the item will not run, unless enqueued again, and the queue's reference to it is
/// gone. After `false` it was not enqueued, or runs already. Context: any but hard interrupt; drops
/// the queue's reference in the caller's context, which is never the last one.
pub fn cancel<T, const ID: u64>(item: &Arc<T>) -> bool
where
    T: WorkItem<ID, Pointer = Arc<T>> + HasWork<T, ID>,
{
    let ptr = Arc::as_ptr(item).cast_mut();
    // SAFETY: `ptr` points to a live `T`.
    let work = unsafe { Work::raw_get(T::raw_get_work(ptr)) };
    // SAFETY: `Work::new` initialised the item; the reference in `item` keeps it valid.
    let was_pending = unsafe { bindings::cancel_work(work) };
    if was_pending {
        // SAFETY: Enqueuing turned one reference into a raw pointer; the item was still pending and
        // is not any more, so that the queue's reference is now ours, once.
        drop(unsafe { Arc::from_raw(ptr.cast_const()) });
    }
    was_pending
}

/// As [`cancel`], for an item whose time may not have come yet.
///
/// The timer of a delayed item cannot run any more, in whatever context, after this returned
/// `true`.
pub fn cancel_delayed<T, const ID: u64>(item: &Arc<T>) -> bool
where
    T: WorkItem<ID, Pointer = Arc<T>> + HasDelayedWork<T, ID>,
{
    let ptr = Arc::as_ptr(item).cast_mut();
    // SAFETY: `ptr` points to a live `T`.
    let work = unsafe { Work::raw_get(T::raw_get_work(ptr)) };
    // SAFETY: By the contract of `HasDelayedWork`, the work item lies in a `struct delayed_work`.
    let delayed = unsafe { container_of!(work, bindings::delayed_work, work) };
    // SAFETY: `DelayedWork::new` initialised the item; the reference in `item` keeps it valid.
    let was_pending = unsafe { bindings::cancel_delayed_work(delayed) };
    if was_pending {
        // SAFETY: As in `cancel`.
        drop(unsafe { Arc::from_raw(ptr.cast_const()) });
    }
    was_pending
}
