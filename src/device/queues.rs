// SPDX-License-Identifier: GPL-2.0

//! The module's work queues.
//!
//! Context: process, where a function does not say otherwise.

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
    /// Transmitters and receivers that go on with what a softirq or a kernel consumer began: the
    /// same CPU, high priority.
    pub(crate) tx: OwnedQueue,
    /// The steps of connections, in order, since programs take the order of their connections for
    /// the same on both sides. No step waits for a peer, so none holds the next one up.
    pub(crate) conn: OwnedQueue,
    /// The ends of devices, and of their queues. An item of this queue may wait for the others.
    pub(crate) reaper: OwnedQueue,
}

impl Queues {
    /// Makes them.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            tx: queue(c"riwarp_tx", Placement::PerCpu, true, true)?,
            conn: queue(c"riwarp_conn", Placement::Ordered, false, true)?,
            reaper: queue(c"riwarp_reap", Placement::Unbound, false, false)?,
        })
    }

    /// Waits until everything has run that was asked to before.
    pub(crate) fn flush(&self) {
        self.conn.flush();
        self.tx.flush();
        self.reaper.flush();
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

/// The queue of a device for copies that wait for a process's memory to be there, which may take
/// for ever.
///
/// The last reference to a device may go in an item of this queue, which cannot wait for itself; so
/// it is the reaper that ends the queue.
pub(crate) struct PagingQueue {
    /// There until the value is dropped.
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
        // The only reference: waits for what the queue still runs.
        drop(this);
    }
}

impl PagingQueue {
    /// Makes one.
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

    /// The queue.
    pub(crate) fn get(&self) -> Option<&OwnedQueue> {
        Some(&self.own.as_ref()?.queue)
    }

    /// Waits until everything has run that was asked to before.
    pub(crate) fn flush(&self) {
        if let Some(queue) = self.get() {
            queue.flush();
        }
    }
}

impl Drop for PagingQueue {
    fn drop(&mut self) {
        if let Some(own) = self.own.take() {
            // Never enqueued before.
            let _ = self.queues.reaper.enqueue(own);
        }
    }
}
