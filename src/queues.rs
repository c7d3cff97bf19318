// SPDX-License-Identifier: GPL-2.0

//! The module's work queues.
//!
//! Context: process, where a function does not say otherwise.

use kernel::prelude::*;
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
    /// The steps of connections, in order, since programs take the order of their connections for the
    /// same on both sides. No step waits for a peer, so none holds the next one up.
    pub(crate) conn: OwnedQueue,
    /// Copies that wait for a process's memory to be there, which may take long.
    pub(crate) paging: OwnedQueue,
    /// The ends of devices. An item of this queue may wait for the others.
    pub(crate) reaper: OwnedQueue,
}

impl Queues {
    /// Makes them.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new() -> Result<Self> {
        let queue = |name: &CStr, placement, highpri, mem_reclaim| {
            OwnedQueue::try_new(
                name,
                Flags {
                    placement,
                    highpri,
                    mem_reclaim,
                },
            )
        };
        Ok(Self {
            tx: queue(c"riwarp_tx", Placement::PerCpu, true, true)?,
            conn: queue(c"riwarp_conn", Placement::Ordered, false, true)?,
            paging: queue(c"riwarp_page", Placement::Unbound, false, false)?,
            reaper: queue(c"riwarp_reap", Placement::Unbound, false, false)?,
        })
    }

    /// Waits until everything has run that was asked to before.
    pub(crate) fn flush(&self) {
        self.conn.flush();
        self.paging.flush();
        self.tx.flush();
        self.reaper.flush();
    }
}
