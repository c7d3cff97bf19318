// SPDX-License-Identifier: GPL-2.0

//! The queue pair: its state, its queues, and its stream while one is attached.
//!
//! Input comes from the verbs, from the connection manager (a stream is up or has ended) and from
//! the callbacks of the stream's socket. The queue pair posts completions, raises asynchronous
//! events, and closes the connection.
//!
//! [`iwarp::lifecycle`] defines the phases of a queue pair and their transitions. The transmit task
//! does all flushing; one context at a time runs it.
//!
//! RFC 5040, sections 5.4, 6 and 7.

use iwarp::{
    oob::{
        rnr_wait,
        Psn,
        RnrRetry, //
    },
    stag::Access, //
};
use kernel::{
    impl_has_delayed_work,
    impl_has_work,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc,
        Mutex, //
    },
    time::hrtimer::HrTimer,
    workqueue::{
        DelayedWork,
        Work, //
    }, //
};
use kernel_ext::{
    compat::SpinLockIrq,
    mm::memcg::Memcg,
    rdma::{
        types::{
            QpAttr,
            QpCaps,
            QpEvent, //
        },
        wr::{
            WcExtra,
            WcOpcode,
            WcStatus, //
        }, //
    },
    sync::{
        SerialTask,
        SpinLockBh, //
    },
    time::TimerHandle,
    workqueue::Enqueue, //
};

use crate::{
    abi::wr::{
        Completion,
        RecvWr, //
    },
    device::Reservation,
    mem::rights::rights_among,
    queue::{
        rq::{
            RecvQueue,
            Taker, //
        },
        waits::{
            FOR_EVER,
            RECEIVE, //
        }, //
    },
    stream::{
        lifecycle::status_of,
        owner::{
            QpShared,
            Receives, //
        },
        rx::Rx,
        tx::{
            Tx,
            TxStream, //
        }, //
    }, //
};

pub(crate) mod actions;
mod idle;
mod inject;
mod paging;
mod peer;
pub(crate) mod receive;
pub(crate) mod report;
mod stream;
mod strict;
pub(crate) mod table;
mod tasks;
#[cfg(CONFIG_KUNIT = "y")]
mod tests;
mod timer;
pub(crate) mod verbs;

use table::Qps;

/// Attributes that the verbs set and report, under the state lock.
#[derive(Default)]
pub(crate) struct Attrs {
    stored: QpAttr,
    /// The PSN that the stream's peer expects, until the consumer sets it.
    pub(crate) peer_receive_psn: Option<Psn>,
    /// How often Sends would be repeated: the stream's peer has told, or the consumer has set it.
    peer_rnr_retry: Option<RnrRetry>,
    own_rnr_retry: Option<RnrRetry>,
}

/// A queue pair.
#[pin_data]
#[repr(C)]
pub(crate) struct Qp {
    #[pin]
    pub(crate) shared: QpShared,
    pub(crate) tx: SerialTask<Tx>,
    #[pin]
    pub(crate) rx: SpinLockBh<Rx>,
    /// A new stream, until the transmit task takes it.
    #[pin]
    new_tx: SpinLockIrq<Option<KBox<TxStream>>>,
    pub(crate) caps: QpCaps,
    /// The stream's peer supports Send with Immediate.
    // ORDERING: Relaxed: stored before the transition `Attach`, a full barrier; who sees RTS sees
    // it.
    send_immediate: Atomic<bool>,
    /// The stream sends and receives in the work items that may wait, and nowhere else: with TLS.
    // ORDERING: Relaxed: a hint of which item to queue; the socket itself refuses other contexts.
    in_items: Atomic<bool>,
    /// How long a Send waits for a peer without `rdma_cm`, in milliseconds, or [`FOR_EVER`].
    // ORDERING: Relaxed: stored before the search begins under its lock, and before the transition
    // to RTS.
    retry_timeout: Atomic<u32>,
    /// `LastWqeReached` was raised: the queue pair takes no more receives from the SRQ.
    // ORDERING: Relaxed: for the running transmit task, and for a reset, which excludes it.
    last_wqe_raised: Atomic<bool>,
    /// Delay of the next flush of what a process posts after the stream, in milliseconds.
    // ORDERING: Relaxed: a heuristic; an update that gets lost changes one delay.
    flush_pause: Atomic<u32>,
    /// Serializes a consumer's changes of state and attributes.
    #[pin]
    pub(crate) modifying: Mutex<()>,
    #[pin]
    pub(crate) attrs: Mutex<Attrs>,
    /// The table that has it.
    qps: Arc<Qps>,
    /// The latest search for a peer, to be queued when a request is posted while the phase is
    /// `Waiting`.
    #[pin]
    search: SpinLockIrq<Option<Arc<dyn Enqueue<POSTED>>>>,
    #[pin]
    timer: HrTimer<Self>,
    #[pin]
    tx_timer: TimerHandle<Self>,
    #[pin]
    tx_work: Work<Qp, TX>,
    #[pin]
    tx_softirq_work: Work<Qp, TX_SOFTIRQ>,
    #[pin]
    tx_user_work: Work<Qp, TX_USER>,
    #[pin]
    rx_work: Work<Qp, RX>,
    #[pin]
    rx_user_work: Work<Qp, RX_USER>,
    #[pin]
    peer_timer: DelayedWork<Qp, PEER>,
    #[pin]
    paging_in_work: Work<Qp, PAGING_IN>,
    #[pin]
    paging_out_work: Work<Qp, PAGING_OUT>,
    #[pin]
    idle_work: DelayedWork<Qp, IDLE>,
    #[pin]
    rule_work: DelayedWork<Qp, RULE>,
    /// Memory cgroup charged for allocations on behalf of the queue pair.
    owner: Memcg,
    _reservation: Reservation,
}

const TX: u64 = 0;
const RX: u64 = RECEIVE;
const PEER: u64 = 2;
const PAGING_IN: u64 = 3;
const PAGING_OUT: u64 = 4;
const IDLE: u64 = 5;
const TX_SOFTIRQ: u64 = 6;
const TX_USER: u64 = 7;
const RX_USER: u64 = 8;
const RULE: u64 = 9;

/// The work item of a search that looks for what was posted.
pub(crate) const POSTED: u64 = 0;

impl_has_work! {
    impl HasWork<Self, TX> for Qp { self.tx_work }
    impl HasWork<Self, TX_SOFTIRQ> for Qp { self.tx_softirq_work }
    impl HasWork<Self, TX_USER> for Qp { self.tx_user_work }
    impl HasWork<Self, RX> for Qp { self.rx_work }
    impl HasWork<Self, RX_USER> for Qp { self.rx_user_work }
    impl HasWork<Self, PAGING_IN> for Qp { self.paging_in_work }
    impl HasWork<Self, PAGING_OUT> for Qp { self.paging_out_work }
}

impl_has_delayed_work! {
    impl HasDelayedWork<Self, PEER> for Qp { self.peer_timer }
    impl HasDelayedWork<Self, IDLE> for Qp { self.idle_work }
    impl HasDelayedWork<Self, RULE> for Qp { self.rule_work }
}

// Helpers for the parts of a queue pair. Context: any, unless a function says otherwise.
impl Qp {
    /// Derives the peer's rights from the consumer's attributes. With the connection manager the
    /// peer has all rights, since the access flags are not the consumer's there.
    fn set_rights(&self, attrs: &Attrs) {
        let rights = if self.shared.lifecycle().is_by_path() {
            rights_among(attrs.stored.access)
        } else {
            Access::ALL
        };
        self.shared.rights.store(rights.bits().into(), Relaxed);
    }

    /// Derives from them how long a message waits for its receive. With the connection manager the
    /// device says that; without it InfiniBand's attributes do: the sender's number, or this end's
    /// own as long as the sender has not told its.
    fn set_receive_wait(&self, attrs: &Attrs) {
        let retry = attrs.peer_rnr_retry.or(attrs.own_rnr_retry);
        let retry = retry.filter(|_| self.shared.lifecycle().is_by_path());
        let has_places = self.own_receives().is_none() || self.caps.max_recv_wr != 0;
        let millis = match retry {
            // None can ever be posted.
            _ if !has_places => 0,
            Some(retry) => match rnr_wait(attrs.stored.min_rnr_timer, retry) {
                Some(micros) => u32::try_from(micros.div_ceil(1000)).unwrap_or(FOR_EVER - 1),
                None => FOR_EVER,
            },
            None => self.shared.device.settings.receive_wait(),
        };
        self.shared.receive_wait.store(millis, Relaxed);
    }

    /// Returns whether the stream sends and receives in its work items only.
    #[inline]
    fn is_in_items(&self) -> bool {
        self.in_items.load(Relaxed)
    }

    /// Returns whether the stream's peer supports Send with Immediate.
    pub(crate) fn may_send_immediate(&self) -> bool {
        self.send_immediate.load(Relaxed)
    }

    /// Returns its own receive queue; [`None`] if it uses an SRQ.
    pub(crate) fn own_receives(&self) -> Option<&RecvQueue> {
        match &self.shared.receives {
            Receives::Own(queue) => Some(queue),
            Receives::Shared(_) => None,
        }
    }

    /// Flushes all work requests. Returns whether more may have been posted meanwhile.
    ///
    /// Context: process; the running transmit task.
    pub(crate) fn flush(&self) -> bool {
        let first = self.shared.lifecycle.take_first_failure();
        let first = first.map(|failure| status_of(failure, self.shared.device.kind));
        if let Some(id) = self.forget_stream() {
            self.flush_receive(id);
        }
        let mut more = self.shared.sq.flush(first, self.shared.origin());
        match &self.shared.receives {
            Receives::Own(queue) => more |= self.flush_receives(queue),
            Receives::Shared(_) => {
                if !self.last_wqe_raised.xchg(true, Relaxed) {
                    self.shared.link.event(QpEvent::LastWqeReached);
                }
            }
        }
        more
    }

    /// Drops the receive side, the peer's requests and fetched payload; returns the cookie of the
    /// receive work request being filled.
    ///
    /// Context: process; the running transmit task.
    fn forget_stream(&self) -> Option<u64> {
        let begun = self.stop_rx();
        self.shared.inbound_reads.clear();
        self.forget_paging_out();
        begun
    }

    /// Flushes receives, one more than the queue holds at most; returns whether more may be posted.
    fn flush_receives(&self, queue: &RecvQueue) -> bool {
        let mut wr = RecvWr::default();
        for _ in 0..=self.caps.max_recv_wr {
            match queue.take(&mut wr, Taker::First) {
                Some(Ok(())) => self.flush_receive(wr.id),
                Some(Err(bad)) => self.flush_receive(bad.id),
                None => return false,
            }
        }
        true
    }

    fn flush_receive(&self, id: u64) {
        let origin = self.shared.origin();
        let completion = Completion {
            id,
            status: WcStatus::Flushed,
            opcode: WcOpcode::Recv,
            bytes: 0,
            extra: WcExtra::None,
            immediate: None,
            qpn: origin.qpn,
            qp: origin.qp,
            solicited: true,
            vendor_err: origin.vendor_err,
        };
        self.shared.trace_recv_complete(&completion);
        self.shared.recv_cq.post(&completion);
    }
}
