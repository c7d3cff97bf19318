// SPDX-License-Identifier: GPL-2.0

//! Looks whether the stream of a queue pair is idle, so that it gives its memory back.
//!
//! A transmitter keeps the memory that TCP lets go of, to fill it again. When it has nothing more
//! to send and more of that than an idle stream may keep, it has a look taken a second later; if
//! nothing was sent meanwhile, the memory goes, else the next look follows. So a stream that sends
//! pays for one look a second.

use kernel::{
    sync::{
        atomic::Relaxed,
        Arc, //
    },
    time::msecs_to_jiffies,
    workqueue::WorkItem, //
};
use kernel_ext::workqueue::{
    cancel_delayed,
    enqueue_delayed,
    DelayedItem,
    OwnedQueue, //
};

use super::{
    Qp,
    IDLE, //
};

/// How long nothing may be sent before a stream is idle.
const PERIOD_MILLIS: u32 = 1000;

impl DelayedItem<IDLE> for Qp {
    fn queue(&self) -> &OwnedQueue {
        &self.device.queues.tx
    }
}

impl WorkItem<IDLE> for Qp {
    type Pointer = Arc<Self>;

    /// Context: process.
    fn run(this: Arc<Self>) {
        this.idle_look.store(true, Relaxed);
        // Whoever is the transmitter takes the look.
        this.transmit();
    }
}

impl Qp {
    /// Has the transmitter asked for a look after a while.
    ///
    /// Context: any but hard interrupt; the transmitter's, with a stream that may send.
    pub(crate) fn look_later(self: &Arc<Self>) {
        // If it cannot be set, it is set.
        let _ = enqueue_delayed::<Self, IDLE>(self.clone(), msecs_to_jiffies(PERIOD_MILLIS));
    }

    /// Whether the transmitter is to take a look now.
    #[inline]
    pub(crate) fn is_to_look(&self) -> bool {
        // The transmitter alone takes it back.
        if !self.idle_look.load(Relaxed) {
            return false;
        }
        self.idle_look.store(false, Relaxed);
        true
    }

    /// Takes the look back, which refers to the queue pair. The transmitter asks for none any more.
    pub(super) fn end_idle_look(self: &Arc<Self>) {
        cancel_delayed::<Self, IDLE>(self);
    }
}
