// SPDX-License-Identifier: GPL-2.0

//! What processes use of a device's on-demand paging: memory for its tables, and the work queues
//! for copies that wait for absent memory.
//!
//! A copy may wait forever: for a server that does not answer, or for another process. So each
//! context has a work queue of its own: it runs a limited number of items at a time, and the others
//! of the context wait behind them. The threads of all contexts together are limited by the number
//! of queues.
//!
//! A queue is created with the first region of a context that is paged on demand. The last
//! reference to a context may be dropped in an item of its queue, which cannot wait for itself; so
//! the reaper destroys the queue.
//!
//! Context: process, unless a function says otherwise.

use kernel::{
    impl_has_work,
    new_mutex,
    new_work,
    prelude::*,
    sync::{
        Arc,
        Mutex,
        SetOnce, //
    },
    workqueue::{
        Work,
        WorkItem, //
    }, //
};
use kernel_ext::{
    mm::ram_pages,
    rdma::mem::paged::{
        PagedBudget,
        PagedLimits, //
    },
    workqueue::{
        Flags,
        OwnedQueue,
        Placement, //
    }, //
};

use super::queues::Queues;

/// Most regions of a context, and pages in them, that are paged on demand.
const CONTEXT: PagedLimits = PagedLimits {
    regions: 1 << 12,
    pages: 1 << 26,
};
/// Most such regions of a device. A page may be in all of them, and the kernel calls each when it
/// takes the page from the process.
const DEVICE_REGIONS: u64 = 1 << 16;
/// Most pages of such regions of a device, for each page of the machine's memory. Each takes 16
/// octets.
const DEVICE_PAGES_PER_PAGE: u64 = 16;
/// On machines with little memory, so many pages of such regions of a device may be.
const DEVICE_PAGES_AT_LEAST: u64 = 1 << 25;
/// Most copies of a context that wait for absent memory in a thread of their own.
const FETCHES: u8 = 16;
/// Most contexts of a device that have regions that are paged on demand.
const CONTEXTS: usize = 256;

/// On-demand paging of a device.
#[pin_data]
pub(crate) struct Paging {
    budget: Arc<PagedBudget>,
    /// The queues of all contexts.
    #[pin]
    queues: Mutex<KVec<Arc<PagingQueue>>>,
}

/// A context's queue.
#[pin_data]
struct PagingQueue {
    queue: OwnedQueue,
    paging: Arc<Paging>,
    /// Destroys it.
    #[pin]
    work: Work<PagingQueue>,
}

/// On-demand paging of a context.
pub(crate) struct ContextPaging {
    paging: Arc<Paging>,
    budget: Arc<PagedBudget>,
    queue: SetOnce<Arc<PagingQueue>>,
    queues: Arc<Queues>,
}

impl_has_work! {
    impl HasWork<Self> for PagingQueue { self.work }
}

impl WorkItem for PagingQueue {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let mut queues = this.paging.queues.lock();
        queues.retain(|other| !Arc::ptr_eq(other, &this));
        drop(queues);
        // The last reference, unless `flush` has one: waits for the items that still run.
        drop(this);
    }
}

impl Paging {
    /// Creates what the contexts of one device share.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new() -> Result<Arc<Self>> {
        let limits = PagedLimits {
            regions: DEVICE_REGIONS,
            pages: ram_pages()
                .saturating_mul(DEVICE_PAGES_PER_PAGE)
                .max(DEVICE_PAGES_AT_LEAST),
        };
        let budget = PagedBudget::new(limits, None)?;
        Arc::pin_init(
            pin_init!(Self {
                budget,
                queues <- new_mutex!(KVec::new(), "Paging::queues"),
            }),
            GFP_KERNEL,
        )
    }

    /// Waits until all items of all contexts that were queued before this call have run. No context
    /// may be opened meanwhile.
    pub(crate) fn flush(&self) {
        let mut at = self.queues.lock().len();
        // From the last one on: those that are removed meanwhile move only others that were
        // flushed.
        while let Some(before) = at.checked_sub(1) {
            at = before;
            let queue = self.queues.lock().get(at).cloned();
            if let Some(queue) = queue {
                queue.queue.flush();
            }
        }
    }

    /// Creates a queue.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if memory is short, or there are too many.
    fn add_queue(
        self: &Arc<Self>,
        queues: &mut KVec<Arc<PagingQueue>>,
    ) -> Result<Arc<PagingQueue>> {
        if queues.len() >= CONTEXTS {
            return Err(ENOMEM);
        }
        let flags = Flags {
            placement: Placement::Unbound,
            highpri: false,
            mem_reclaim: false,
        };
        let queue = OwnedQueue::limited(c"riwarp_page", flags, FETCHES.into())?;
        let queue = Arc::pin_init(
            pin_init!(PagingQueue {
                queue,
                paging: self.clone(),
                work <- new_work!("PagingQueue::work"),
            }),
            GFP_KERNEL_ACCOUNT,
        )?;
        queues.push(queue.clone(), GFP_KERNEL)?;
        Ok(queue)
    }
}

impl ContextPaging {
    /// Creates the paging of a new context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(paging: &Arc<Paging>, queues: &Arc<Queues>) -> Result<Arc<Self>> {
        let this = Self {
            paging: paging.clone(),
            budget: PagedBudget::new(CONTEXT, Some(paging.budget.clone()))?,
            queue: SetOnce::new(),
            queues: queues.clone(),
        };
        Ok(Arc::new(this, GFP_KERNEL_ACCOUNT)?)
    }

    /// Prepares for a region that is paged on demand, and returns what it is counted in.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if memory is short, or too many contexts have such regions.
    pub(crate) fn begin(&self) -> Result<&Arc<PagedBudget>> {
        if self.queue.as_ref().is_none() {
            let mut queues = self.paging.queues.lock();
            // Another call may have been faster.
            if self.queue.as_ref().is_none() {
                let queue = self.paging.add_queue(&mut queues)?;
                self.queue.populate(queue);
            }
        }
        Ok(&self.budget)
    }

    /// Returns the queue for copies that wait for memory of this context; [`None`] before
    /// [`ContextPaging::begin`], when there are none.
    ///
    /// Context: any.
    pub(crate) fn queue(&self) -> Option<&OwnedQueue> {
        Some(&self.queue.as_ref()?.queue)
    }
}

impl Drop for ContextPaging {
    fn drop(&mut self) {
        if let Some(queue) = self.queue.as_ref() {
            // Enqueued here only, so it cannot be pending already.
            let _ = self.queues.reaper.enqueue(queue.clone());
        }
    }
}

#[kernel::prelude::kunit_tests(riwarp_paging)]
mod tests {
    use super::*;
    use crate::bench::Bench;
    use kernel::sync::{
        atomic::{
            Atomic,
            Full,
            Relaxed, //
        },
        Completion, //
    };
    use kernel_ext::net::bench::eventually;

    /// Items that wait until they may end.
    #[pin_data]
    struct Waiters {
        running: Atomic<u32>,
        ended: Atomic<u32>,
        #[pin]
        may_end: Completion,
    }

    impl Waiters {
        fn new() -> Result<Arc<Self>> {
            let this = pin_init!(Self {
                running: Atomic::new(0),
                ended: Atomic::new(0),
                may_end <- Completion::new(),
            });
            Arc::pin_init(this, GFP_KERNEL)
        }

        fn add(self: &Arc<Self>, queue: &OwnedQueue) -> Result {
            let this = self.clone();
            queue.try_spawn(move || {
                this.running.fetch_add(1, Full);
                this.may_end.wait_for_completion();
                this.ended.fetch_add(1, Full);
            })
        }
    }

    /// A process whose memory never comes stops its own copies, and no others'.
    #[test]
    fn paging_of_one_context_does_not_block_others() -> Result {
        const MANY: u32 = 2 * FETCHES as u32;
        let bench = Bench::new()?;
        let device = &bench.device;
        let contexts = [
            ContextPaging::new(&device.paging, &device.queues)?,
            ContextPaging::new(&device.paging, &device.queues)?,
        ];
        for context in &contexts {
            assert!(context.queue().is_none());
            context.begin()?;
            context.begin()?;
        }
        assert_eq!(device.paging.queues.lock().len(), 2);
        let [stuck, other] = contexts.each_ref().map(|context| context.queue());
        let (stuck, other) = (stuck.ok_or(EINVAL)?, other.ok_or(EINVAL)?);
        let (waiters, quick) = (Waiters::new()?, Waiters::new()?);
        for _ in 0..MANY {
            waiters.add(stuck)?;
        }
        eventually(|| waiters.running.load(Relaxed) >= FETCHES.into())?;
        quick.may_end.complete_all();
        quick.add(other)?;
        other.flush();
        assert_eq!(quick.ended.load(Relaxed), 1);
        // Those that had run since would have taken threads.
        assert_eq!(waiters.running.load(Relaxed), FETCHES.into());
        waiters.may_end.complete_all();
        device.paging.flush();
        assert_eq!(waiters.ended.load(Relaxed), MANY);
        // The reaper destroys the queues.
        drop(contexts);
        device.queues.reaper.flush();
        assert!(device.paging.queues.lock().is_empty());
        Ok(())
    }

    #[test]
    fn paging_queues_of_contexts_are_limited() -> Result {
        let bench = Bench::new()?;
        let device = &bench.device;
        let mut contexts = KVec::new();
        for _ in 0..CONTEXTS {
            let context = ContextPaging::new(&device.paging, &device.queues)?;
            context.begin()?;
            contexts.push(context, GFP_KERNEL)?;
        }
        let late = ContextPaging::new(&device.paging, &device.queues)?;
        assert_eq!(late.begin().err(), Some(ENOMEM));
        contexts.pop();
        device.queues.reaper.flush();
        assert!(late.begin().is_ok());
        Ok(())
    }

    #[test]
    fn odp_region_of_64_gib_is_within_limits() {
        // It may begin inside a page.
        let pages = (64 << 30) / 4096 + 1;
        assert!(CONTEXT.pages >= pages && DEVICE_PAGES_AT_LEAST >= pages);
    }
}
