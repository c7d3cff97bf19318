// SPDX-License-Identifier: GPL-2.0

//! The module's work queues.
//!
//! Context: process, unless a function says otherwise.

use kernel::prelude::*;
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
