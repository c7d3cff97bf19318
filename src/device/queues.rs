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

/// So many items that sleep do not hold up the others, and the system's own items of a CPU wait for
/// no more of them.
const USER_WAIT: Placement = Placement::PerCpuAtOnce(16);

/// The queues that all devices share.
pub(crate) struct Queues {
    /// Transmit tasks that send what a kernel consumer has posted, in softirq. Its items enqueue
    /// others on `tx`, so it is dropped first.
    pub(crate) tx_softirq: OwnedQueue,
    /// Transmit and receive tasks of kernel consumers that continue what a softirq or the consumer
    /// began. Runs on the same CPU, at high priority.
    pub(crate) tx: OwnedQueue,
    /// The same tasks for processes: at nice 0, however many queue pairs a process has by one
    /// worker for each CPU, where the scheduler finds room. An item waits for nothing that a
    /// process holds, since the next one would wait too; what has to wait goes to `user_wait`.
    /// Without a rescuer, which would run at high priority.
    pub(crate) user: OwnedQueue,
    /// Tasks of processes that may have to wait: for the owner of a socket, for memory, or for the
    /// end of a stream. At nice 0; one item runs on a CPU while others sleep.
    pub(crate) user_wait: OwnedQueue,
    /// The work items of connections that start up, in order, since programs assume that both
    /// sides see their connections in the same order. No item waits for a peer, or for what a
    /// process holds, so none delays the next.
    pub(crate) conn: OwnedQueue,
    /// The work items of connections whose order no longer matters. They do not wait either.
    pub(crate) stream: OwnedQueue,
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
            user: queue(c"riwarp_user", Placement::UnboundPerCpu, false, false)?,
            user_wait: queue(c"riwarp_user_wait", USER_WAIT, false, false)?,
            conn: queue(c"riwarp_conn", Placement::Ordered, false, true)?,
            stream: OwnedQueue::limited(
                c"riwarp_stream",
                Flags {
                    placement: Placement::Unbound,
                    highpri: false,
                    mem_reclaim: true,
                },
                STREAM_STEPS,
            )?,
            reaper: queue(c"riwarp_reap", Placement::Unbound, false, false)?,
        })
    }

    /// Returns the queue of items that may wait for what others hold, of a process or of a kernel
    /// consumer.
    pub(crate) fn may_wait(&self, user: bool) -> &OwnedQueue {
        if user {
            &self.user_wait
        } else {
            &self.tx
        }
    }

    /// Waits until all work queued before this call has run.
    pub(crate) fn flush(&self) {
        self.conn.flush();
        self.stream.flush();
        self.flush_tx();
        self.reaper.flush();
    }

    /// Waits until all transmit tasks queued before this call have run.
    pub(crate) fn flush_tx(&self) {
        // They leave to `tx` what they cannot do in softirq, and to `user_wait` what waits.
        self.tx_softirq.flush();
        self.tx.flush();
        self.user.flush();
        self.user_wait.flush();
    }
}

/// How many steps of streams run at once: so few that those of a process that ends thousands of
/// connections do not displace start-ups from the processors, and more than one, since a step may
/// have to reclaim memory of its process's cgroup.
const STREAM_STEPS: i32 = 64;

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
