// SPDX-License-Identifier: GPL-2.0

//! How long a Send waits for a peer without `rdma_cm`: for one that has not come, which the search
//! watches, and for one that has closed its half of the connection.
//!
//! Context: process, unless a function says otherwise.

use iwarp::lifecycle::Event;
use kernel::{
    sync::{
        atomic::Relaxed,
        Arc, //
    },
    time::msecs_to_jiffies,
    workqueue::WorkItem, //
};
use kernel_ext::{
    mm::noio::without_io,
    workqueue::{
        cancel_delayed,
        enqueue_delayed,
        DelayedItem,
        Enqueue,
        OwnedQueue, //
    }, //
};

use super::{
    actions::Runner,
    Qp,
    FOR_EVER,
    PEER,
    POSTED, //
};

impl DelayedItem<PEER> for Qp {
    fn queue(&self) -> &OwnedQueue {
        &self.shared.device.queues.stream
    }
}

impl WorkItem<PEER> for Qp {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        // Steps of connections are queued behind this item, and block I/O may depend on them.
        without_io(|| {
            let after = this.shared.apply(Event::PeerClosedTimeout);
            // Nothing follows if the wait for the peer has ended meanwhile.
            if !after.is_empty() {
                this.shared.device.stats.oob_timeouts.inc();
            }
            this.carry_out(after, Runner::Step);
        });
    }
}

impl Qp {
    /// Returns how long a Send waits, in milliseconds; [`None`] for no limit.
    pub(crate) fn retry_timeout(&self) -> Option<u32> {
        let millis = self.retry_timeout.load(Relaxed);
        (millis != FOR_EVER).then_some(millis)
    }

    /// Sets how long a Send waits.
    pub(crate) fn set_retry_timeout(&self, millis: Option<u32>) {
        self.retry_timeout
            .store(millis.unwrap_or(FOR_EVER), Relaxed);
    }

    /// Sets the search to be queued when a request is posted while the phase is `Waiting`.
    pub(crate) fn set_search(&self, search: Arc<dyn Enqueue<POSTED>>) {
        let _drop_outside_lock = self.search.lock().replace(search);
    }

    /// Queues the search, because a request is posted without a peer. Context: any.
    pub(super) fn enqueue_search(&self) {
        if let Some(search) = &*self.search.lock() {
            search
                .as_arc_borrow()
                .enqueue_on(&self.shared.device.queues.stream);
        }
    }

    /// Starts the time limit of what is posted for a peer that has closed its half.
    ///
    /// Context: the running transmit task.
    pub(super) fn time_out_closed_peer(self: &Arc<Self>) {
        if let Some(millis) = self.retry_timeout() {
            // On failure it is set already or about to run.
            let _ = enqueue_delayed::<Self, PEER>(self.clone(), msecs_to_jiffies(millis));
            // A task that ends the stream or destroys the queue pair may have cancelled the timer
            // before it was set here. Both change the phase first, and setting the timer is a full
            // barrier: either they cancel it, or this load sees the phase.
            if !self.shared.lifecycle().has_lost_peer() {
                self.end_peer_limit();
            }
        }
    }

    /// Cancels that time limit, after the phase has changed.
    pub(crate) fn end_peer_limit(self: &Arc<Self>) {
        cancel_delayed::<Self, PEER>(self);
    }
}
