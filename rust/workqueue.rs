// SPDX-License-Identifier: GPL-2.0

//! Work queues that a module owns, and cancelling delayed work.
//!
//! The `kernel` crate has only the system's queues, which must not be flushed. A module that can be
//! unloaded needs queues of its own, which it empties before its code is freed.
//!
//! C header: `include/linux/workqueue.h`.

use crate::bindings;
use core::ptr::NonNull;
use kernel::container_of;
use kernel::ffi::c_int;
use kernel::ffi::c_uint;
use kernel::ffi::c_ulong;
use kernel::prelude::*;
use kernel::sync::Arc;
use kernel::sync::ArcBorrow;
use kernel::time::Jiffies;
use kernel::workqueue::HasDelayedWork;
use kernel::workqueue::HasWork;
use kernel::workqueue::Queue;
use kernel::workqueue::RawWorkItem;
use kernel::workqueue::Work;
use kernel::workqueue::WorkItem;

#[cfg(CONFIG_KUNIT = "y")]
mod bench;

extern "C" {
    fn riwarp_helper_jiffies() -> c_ulong;
    fn riwarp_helper_num_online_cpus() -> c_uint;
}

/// Which CPU runs an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// The CPU that enqueued it.
    PerCpu,
    /// As `PerCpu`, and at most so many items of a CPU run or sleep at a time. Those of other
    /// queues of the same priority, the system's among them, wait for no more than these.
    PerCpuAtOnce(u16),
    /// Any CPU.
    Unbound,
    /// Any CPU; as many items at a time, running or asleep, as CPUs are on line when the queue is
    /// made. On a machine with several memory nodes, up to eight for each node.
    UnboundPerCpu,
    /// Any CPU; one item at a time, in the order in which they were enqueued.
    Ordered,
    /// The CPU that enqueued it, in softirq ([`Flags::highpri`] before other softirqs). Items must
    /// not sleep, and need no memory to run, so [`Flags::mem_reclaim`] has no meaning.
    Softirq,
}

/// The attributes of a queue.
#[derive(Clone, Copy, Debug)]
pub struct Flags {
    /// Which CPU runs an item.
    pub placement: Placement,
    /// Workers of high priority run the items.
    pub highpri: bool,
    /// One item can always run even if memory is short, so that memory reclaim may wait for it.
    pub mem_reclaim: bool,
}

impl Flags {
    fn as_raw(self) -> c_uint {
        let mut flags = match self.placement {
            Placement::PerCpu | Placement::PerCpuAtOnce(_) => bindings::wq_flags_WQ_PERCPU,
            Placement::Unbound | Placement::UnboundPerCpu => bindings::wq_flags_WQ_UNBOUND,
            Placement::Ordered => bindings::wq_flags_WQ_UNBOUND | bindings::wq_flags___WQ_ORDERED,
            Placement::Softirq => bindings::wq_flags_WQ_BH | bindings::wq_flags_WQ_PERCPU,
        };
        if self.highpri {
            flags |= bindings::wq_flags_WQ_HIGHPRI;
        }
        if self.mem_reclaim && self.placement != Placement::Softirq {
            flags |= bindings::wq_flags_WQ_MEM_RECLAIM;
        }
        flags
    }
}

/// A work queue that lives as long as this value.
///
/// Dropping it waits until all items have run, also those that they enqueue. So none of its own
/// items may drop it: the item would wait for itself. It is not dropped while a delayed item is
/// pending, because the item holds a reference to its queue ([`DelayedItem`]).
///
/// # Examples
///
/// ```
/// use kernel::impl_has_work;
/// use kernel::new_work;
/// use kernel::sync::atomic::{Atomic, Relaxed};
/// use kernel::sync::Arc;
/// use kernel::workqueue::{Work, WorkItem};
/// use kernel_ext::workqueue::Enqueue;
/// use kernel_ext::workqueue::Flags;
/// use kernel_ext::workqueue::OwnedQueue;
/// use kernel_ext::workqueue::Placement;
///
/// #[pin_data]
/// struct Cleanup {
///     runs: Atomic<u32>,
///     #[pin]
///     work: Work<Cleanup>,
/// }
///
/// impl_has_work! {
///     impl HasWork<Self> for Cleanup { self.work }
/// }
///
/// impl WorkItem for Cleanup {
///     type Pointer = Arc<Cleanup>;
///
///     fn run(this: Arc<Cleanup>) {
///         this.runs.add(1, Relaxed);
///     }
/// }
///
/// // What enqueues an item need not know its type.
/// fn ask(item: Arc<dyn Enqueue<0>>, queue: &OwnedQueue) {
///     item.as_arc_borrow().enqueue_on(queue);
/// }
///
/// let flags = Flags {
///     placement: Placement::Unbound,
///     highpri: false,
///     mem_reclaim: false,
/// };
/// let queue = OwnedQueue::try_new(c"example", flags)?;
/// let cleanup = Arc::pin_init(
///     pin_init!(Cleanup { runs: Atomic::new(0), work <- new_work!("Cleanup::work") }),
///     GFP_KERNEL,
/// )?;
/// ask(cleanup.clone(), &queue);
/// queue.flush();
/// assert_eq!(cleanup.runs.load(Relaxed), 1);
/// ```
///
/// # Invariants
///
/// The pointer is a queue made by `alloc_workqueue`, which only this value destroys.
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
            Placement::PerCpu | Placement::Unbound | Placement::Softirq => 0, // the default
            Placement::PerCpuAtOnce(items) => c_int::from(items),
            Placement::UnboundPerCpu => {
                // SAFETY: `num_online_cpus()` has no requirements.
                let cpus = unsafe { riwarp_helper_num_online_cpus() };
                c_int::try_from(cpus).unwrap_or(c_int::MAX)
            }
            Placement::Ordered => 1,
        };
        Self::limited(name, flags, at_once)
    }

    /// As [`OwnedQueue::try_new`]; at most `at_once` items run at a time, the others wait.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn limited(name: &CStr, flags: Flags, at_once: i32) -> Result<Self> {
        // SAFETY: The format takes one string, which is given; the name is copied.
        let queue = unsafe {
            bindings::alloc_workqueue_noprof(
                c"%s".as_char_ptr(),
                flags.as_raw(),
                at_once,
                name.as_char_ptr(),
            )
        };
        // INVARIANT: The queue was just made, and no other value has the pointer.
        NonNull::new(queue).map(Self).ok_or(ENOMEM)
    }

    /// Enqueues an item; returns it as an error if it is in a queue already. Context: any.
    #[inline]
    pub fn enqueue<W, const ID: u64>(&self, item: W) -> W::EnqueueOutput
    where
        W: RawWorkItem<ID> + Send + 'static,
    {
        // SAFETY: `from_raw` requires a queue that is valid as long as the result is used: by the
        // type invariant it is, as long as `self`, whose drop waits for the item.
        unsafe { Queue::from_raw(self.0.as_ptr()) }.enqueue(item)
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

impl Drop for OwnedQueue {
    fn drop(&mut self) {
        // SAFETY: By the type invariant the queue is valid and destroyed only here. All borrows of
        // it have ended.
        unsafe { bindings::destroy_workqueue(self.0.as_ptr()) };
    }
}

/// An object with a work item, for code that is to know nothing else of it.
pub trait Enqueue<const ID: u64>: Send + Sync {
    /// Enqueues the item, unless it is in a queue already. Context: any.
    fn enqueue_on(self: ArcBorrow<'_, Self>, queue: &OwnedQueue);
}

impl<T, const ID: u64> Enqueue<ID> for T
where
    T: HasWork<T, ID> + WorkItem<ID, Pointer = Arc<T>> + Send + Sync + 'static,
{
    fn enqueue_on(self: ArcBorrow<'_, Self>, queue: &OwnedQueue) {
        // If it is in a queue, it will see what the caller has done.
        let _ = queue.enqueue::<Arc<T>, ID>(self.into());
    }
}

/// A moment, as exact as the timer tick of the CPUs. Costs a load, unlike a clock.
///
/// # Examples
///
/// ```
/// use kernel::time::delay::fsleep;
/// use kernel::time::Delta;
/// use kernel_ext::workqueue::Tick;
///
/// let begin = Tick::now();
/// fsleep(Delta::from_millis(20));
/// assert!(begin.has_passed());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tick(c_ulong);

impl Tick {
    /// Returns the present moment. Context: any.
    #[inline]
    pub fn now() -> Self {
        // SAFETY: The helper reads a word that exists as long as the kernel.
        Self(unsafe { riwarp_helper_jiffies() })
    }

    /// Returns whether a tick has come since. Context: any.
    #[inline]
    pub fn has_passed(self) -> bool {
        Self::now() != self
    }
}

/// An item that is enqueued after a delay, on a queue to which it holds a reference.
///
/// # Examples
///
/// ```
/// use kernel::impl_has_delayed_work;
/// use kernel::new_delayed_work;
/// use kernel::sync::Arc;
/// use kernel::workqueue::{DelayedWork, WorkItem};
/// use kernel_ext::workqueue::cancel_delayed;
/// use kernel_ext::workqueue::enqueue_delayed;
/// use kernel_ext::workqueue::DelayedItem;
/// use kernel_ext::workqueue::Flags;
/// use kernel_ext::workqueue::OwnedQueue;
/// use kernel_ext::workqueue::Placement;
///
/// #[pin_data]
/// struct Timeout {
///     queue: Arc<OwnedQueue>,
///     #[pin]
///     work: DelayedWork<Timeout>,
/// }
///
/// impl_has_delayed_work! {
///     impl HasDelayedWork<Self> for Timeout { self.work }
/// }
///
/// impl DelayedItem for Timeout {
///     fn queue(&self) -> &OwnedQueue {
///         &self.queue
///     }
/// }
///
/// impl WorkItem for Timeout {
///     type Pointer = Arc<Timeout>;
///
///     fn run(_this: Arc<Timeout>) {
///         pr_info!("too late\n");
///     }
/// }
///
/// let flags = Flags {
///     placement: Placement::PerCpu,
///     highpri: false,
///     mem_reclaim: false,
/// };
/// let queue = Arc::new(OwnedQueue::try_new(c"example", flags)?, GFP_KERNEL)?;
/// let timeout = Arc::pin_init(
///     pin_init!(Timeout { queue, work <- new_delayed_work!("Timeout::work") }),
///     GFP_KERNEL,
/// )?;
/// assert!(enqueue_delayed(timeout.clone(), 60_000).is_ok());
/// assert!(cancel_delayed(&timeout));
/// assert!(!cancel_delayed(&timeout));
/// ```
pub trait DelayedItem<const ID: u64 = 0>:
    WorkItem<ID, Pointer = Arc<Self>> + HasDelayedWork<Self, ID> + Send + Sync + Sized + 'static
{
    /// Returns the queue that runs it.
    fn queue(&self) -> &OwnedQueue;
}

/// Enqueues an item on its queue after `delay`. Context: any but hard interrupt.
///
/// # Errors
///
/// Returns the item if its timer runs or it is in a queue already.
pub fn enqueue_delayed<T, const ID: u64>(item: Arc<T>, delay: Jiffies) -> Result<(), Arc<T>>
where
    T: DelayedItem<ID>,
{
    let queue = item.queue().as_raw();
    // SAFETY: `from_raw` requires a queue that is valid as long as the result is used, and
    // `delayed_work_timer_fn()` uses it until it has enqueued the item. `queue()` returns a borrow
    // that lives as long as the item is borrowed, and `item` is the queue's reference to the item:
    // it keeps the item alive and shared until the item runs or is cancelled.
    unsafe { Queue::from_raw(queue) }.enqueue_delayed::<Arc<T>, ID>(item, delay)
}

/// Cancels a delayed item whose timer runs or that is in a queue; returns whether it was pending.
///
/// After `true` the item does not run unless it is enqueued again, its timer is not running on any
/// CPU, and the queue's reference to it is dropped. After `false` it was not enqueued, or runs
/// already. Drops the queue's reference in the caller's context; `item` keeps it from being the
/// last one. Context: any but hard interrupt.
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
        // SAFETY: `Arc::from_raw` requires a pointer of `Arc::into_raw` that owns a reference.
        // Enqueuing made one; the item was pending and will not run, so this function now owns that
        // reference.
        drop(unsafe { Arc::from_raw(ptr.cast_const()) });
    }
    was_pending
}

#[kernel::prelude::kunit_tests(riwarp_workqueue)]
mod tests {
    use super::*;
    use core::pin::Pin;
    use kernel::impl_has_delayed_work;
    use kernel::new_delayed_work;
    use kernel::sync::atomic::Atomic;
    use kernel::sync::atomic::Relaxed;
    use kernel::time::delay::fsleep;
    use kernel::time::msecs_to_jiffies;
    use kernel::time::Delta;
    use kernel::workqueue::DelayedWork;

    /// Counts how often it was run.
    #[pin_data]
    struct TestWork {
        runs: Atomic<u32>,
        /// How often it still enqueues itself again.
        again: Atomic<u32>,
        queue: Arc<OwnedQueue>,
        #[pin]
        work: DelayedWork<TestWork>,
    }

    impl_has_delayed_work! {
        impl HasDelayedWork<Self> for TestWork { self.work }
    }

    impl DelayedItem for TestWork {
        fn queue(&self) -> &OwnedQueue {
            &self.queue
        }
    }

    impl WorkItem for TestWork {
        type Pointer = Arc<TestWork>;

        fn run(this: Arc<TestWork>) {
            this.runs.add(1, Relaxed);
            let again = this.again.load(Relaxed);
            if again > 0 {
                this.again.store(again - 1, Relaxed);
                let _ = this.queue.enqueue(this.clone());
            }
        }
    }

    fn queue(placement: Placement) -> Result<Arc<OwnedQueue>> {
        let flags = Flags {
            placement,
            highpri: false,
            mem_reclaim: false,
        };
        Ok(Arc::new(
            OwnedQueue::try_new(c"riwarp_kunit", flags)?,
            GFP_KERNEL,
        )?)
    }

    /// Makes an item with a lock class of its own for each place where this is used.
    macro_rules! test_work {
        ($queue:expr, $again:expr) => {
            Arc::pin_init(
                pin_init!(TestWork {
                    runs: Atomic::new(0),
                    again: Atomic::new($again),
                    queue: $queue.clone(),
                    work <- new_delayed_work!("riwarp_workqueue::TestWork"),
                }),
                GFP_KERNEL,
            )
        };
    }

    type Job = fn(&Arc<OwnedQueue>, u32) -> Result<Arc<TestWork>>;

    fn job(queue: &Arc<OwnedQueue>, again: u32) -> Result<Arc<TestWork>> {
        test_work!(queue, again)
    }

    /// Lockdep wants no item of one class both in softirq and with bottom halves on.
    fn softirq_job(queue: &Arc<OwnedQueue>, again: u32) -> Result<Arc<TestWork>> {
        test_work!(queue, again)
    }

    #[test]
    fn flush_waits_for_every_kind_of_queue() -> Result {
        for (placement, job) in [
            (Placement::PerCpu, job as Job),
            (Placement::PerCpuAtOnce(2), job),
            (Placement::Unbound, job),
            (Placement::UnboundPerCpu, job),
            (Placement::Ordered, job),
            (Placement::Softirq, softirq_job),
        ] {
            let queue = queue(placement)?;
            let jobs = [job(&queue, 0)?, job(&queue, 0)?, job(&queue, 0)?];
            for job in &jobs {
                assert!(queue.enqueue(job.clone()).is_ok());
            }
            queue.flush();
            for job in &jobs {
                assert_eq!(job.runs.load(Relaxed), 1);
            }
        }
        Ok(())
    }

    #[test]
    fn dropped_workqueue_waits_for_requeued_items() -> Result {
        let other = queue(Placement::Ordered)?;
        let item = job(&other, 3)?;
        assert!(other.enqueue(item.clone()).is_ok());
        while item.runs.load(Relaxed) < 4 {
            other.flush();
        }
        assert_eq!(item.runs.load(Relaxed), 4);
        Ok(())
    }

    /// When the timer expires, only the item refers to the queue.
    #[test]
    fn delayed_item_keeps_its_workqueue() -> Result {
        for placement in [Placement::PerCpu, Placement::Unbound, Placement::Ordered] {
            let queue = queue(placement)?;
            let item = job(&queue, 0)?;
            assert!(enqueue_delayed(item.clone(), msecs_to_jiffies(20)).is_ok());
            drop(queue);
            while item.runs.load(Relaxed) == 0 {
                fsleep(Delta::from_millis(1));
            }
        }
        Ok(())
    }

    #[test]
    fn cancel_removes_only_pending_items() -> Result {
        let queue = queue(Placement::Unbound)?;
        let item = job(&queue, 0)?;
        assert!(!cancel_delayed(&item));
        let hour = msecs_to_jiffies(3_600_000);
        assert!(enqueue_delayed(item.clone(), hour).is_ok());
        assert!(enqueue_delayed(item.clone(), hour).is_err());
        assert!(cancel_delayed(&item));
        assert!(queue.enqueue(item.clone()).is_ok());
        let taken_back = cancel_delayed(&item);
        queue.flush();
        // Either it ran, or it was cancelled; in both cases no other reference exists.
        let ran = item.runs.load(Relaxed) == 1;
        assert!(ran != taken_back);
        let item: Option<Pin<_>> = Arc::into_unique_or_drop(item);
        assert!(item.is_some());
        Ok(())
    }
}
