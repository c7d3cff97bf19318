// SPDX-License-Identifier: GPL-2.0

//! The module's work queues.
//!
//! Context: process, unless a function says otherwise.

use kernel::{
    impl_has_work,
    new_work,
    prelude::*,
    sync::Arc,
    workqueue::{
        Work,
        WorkItem, //
    }, //
};
use kernel_ext::workqueue::{
    Flags,
    OwnedQueue,
    Placement, //
};

/// The queues that all devices share.
pub(crate) struct Queues {
    /// Transmit tasks that send what a kernel consumer has posted, in softirq. Its items enqueue
    /// others on `tx`, so it is dropped first.
    pub(crate) tx_softirq: OwnedQueue,
    /// Transmit and receive tasks that continue what a softirq or a kernel consumer began. Runs on
    /// the same CPU, at high priority.
    pub(crate) tx: OwnedQueue,
    /// The work items of connections, in order, since programs assume that both sides see their
    /// connections in the same order. No item waits for a peer, so none delays the next.
    pub(crate) conn: OwnedQueue,
    /// Removal of devices and of their queues. An item here may wait for the other queues.
    pub(crate) reaper: OwnedQueue,
}

impl Queues {
    /// Makes the queues.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            tx_softirq: queue(c"riwarp_tx_bh", Placement::Softirq, false, false)?,
            tx: queue(c"riwarp_tx", Placement::PerCpu, true, true)?,
            conn: queue(c"riwarp_conn", Placement::Ordered, false, true)?,
            reaper: queue(c"riwarp_reap", Placement::Unbound, false, false)?,
        })
    }

    /// Waits until all work queued before this call has run.
    pub(crate) fn flush(&self) {
        self.conn.flush();
        self.flush_tx();
        self.reaper.flush();
    }

    /// Waits until all transmit tasks queued before this call have run.
    pub(crate) fn flush_tx(&self) {
        // They leave to `tx` what they cannot do in softirq.
        self.tx_softirq.flush();
        self.tx.flush();
    }
}

fn queue(
    name: &CStr,
    placement: Placement,
    highpri: bool,
    mem_reclaim: bool,
) -> Result<OwnedQueue> {
    OwnedQueue::try_new(
        name,
        Flags {
            placement,
            highpri,
            mem_reclaim,
        },
    )
}

/// The queue of a device for copies that wait for a process's memory, possibly forever.
///
/// The last reference to a device may be dropped in an item of this queue, which cannot wait for
/// itself; so the reaper destroys the queue.
pub(crate) struct PagingQueue {
    /// Set until the value is dropped.
    own: Option<Arc<Own>>,
    queues: Arc<Queues>,
}

#[pin_data]
struct Own {
    queue: OwnedQueue,
    #[pin]
    work: Work<Own>,
}

impl_has_work! {
    impl HasWork<Self> for Own { self.work }
}

impl WorkItem for Own {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        // The only reference: waits for the items that still run.
        drop(this);
    }
}

impl PagingQueue {
    /// Makes the queue of one device.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(queues: &Arc<Queues>) -> Result<Self> {
        let queue = queue(c"riwarp_page", Placement::Unbound, false, false)?;
        let own = Arc::pin_init(
            pin_init!(Own {
                queue,
                work <- new_work!("PagingQueue::work"),
            }),
            GFP_KERNEL,
        )?;
        Ok(Self {
            own: Some(own),
            queues: queues.clone(),
        })
    }

    /// Returns the work queue.
    pub(crate) fn get(&self) -> Option<&OwnedQueue> {
        Some(&self.own.as_ref()?.queue)
    }

    /// Waits until all work queued before this call has run.
    pub(crate) fn flush(&self) {
        if let Some(queue) = self.get() {
            queue.flush();
        }
    }
}

impl Drop for PagingQueue {
    fn drop(&mut self) {
        if let Some(own) = self.own.take() {
            // Enqueued here only, so it cannot be pending already.
            let _ = self.queues.reaper.enqueue(own);
        }
    }
}
