// SPDX-License-Identifier: GPL-2.0

//! Frees the spare memory of an idle stream.
//!
//! The transmit task keeps pages that TCP releases, to reuse them. When its queues are empty and it
//! keeps more memory than an idle stream may, it schedules an idle check for a second later. If
//! nothing was sent by then, it frees the memory; otherwise it schedules another check. So a busy
//! stream costs one check per second.

use kernel::{
    sync::{
        atomic::Relaxed,
        Arc, //
    },
    workqueue::WorkItem, //
};
use kernel_ext::workqueue::{
    cancel_delayed,
    DelayedItem,
    OwnedQueue, //
};

use super::{
    Qp,
    IDLE, //
};

/// How long a stream sends nothing before it counts as idle.
pub(super) const PERIOD_MILLIS: u32 = 1000;

impl DelayedItem<IDLE> for Qp {
    fn queue(&self) -> &OwnedQueue {
        self.wait_queue()
    }
}

impl WorkItem<IDLE> for Qp {
    type Pointer = Arc<Self>;

    /// Context: process.
    fn run(this: Arc<Self>) {
        this.shared.idle_check.store(true, Relaxed);
        // The running transmit task does the check.
        this.transmit_and_wait();
    }
}

impl Qp {
    /// Cancels the idle check, which refers to the queue pair. The transmit task schedules no
    /// other.
    pub(super) fn end_idle_check(self: &Arc<Self>) {
        cancel_delayed::<Self, IDLE>(self);
    }
}
