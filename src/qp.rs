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
    fault::{
        ErrorClass,
        ErrorCode,
        Fault, //
    },
    lifecycle::{
        Actions,
        Event,
        FirstFailure, //
    },
    oob::Psn,
    receiver::QueueRoom,
    stag::{
        Access,
        Stag, //
    },
    terminate::{
        Quoted,
        Terminate, //
    }, //
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
        Mutex,
        SpinLockIrq, //
    },
    time::hrtimer::HrTimer,
    workqueue::{
        DelayedWork,
        Work,
        WorkItem, //
    }, //
};
use kernel_ext::{
    mm::memcg::Memcg,
    rdma::{
        object::QpLink,
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
        BhOff,
        NextCacheLine,
        SerialTask,
        SpinLockBh, //
    }, //
};

use crate::{
    abi::wr::{
        BadWr,
        Completion,
        RecvWr,
        WcOrigin, //
    },
    cm::conn::Conn,
    device::{
        context::{
            Pd,
            PdId, //
        },
        Device,
        Reservation, //
    },
    mem::mr::{
        rights_among,
        Bind,
        StreamId, //
    },
    queue::{
        cq::Cq,
        readq::InboundReads,
        rq::RecvQueue,
        sq::SendQueue,
        srq::Srq, //
    },
    stream::{
        rx::Rx,
        tx::{
            paging::PagingOut,
            Tx,
            TxStream, //
        }, //
    }, //
};

mod idle;
mod lifecycle;
pub(crate) mod oob;
mod paging;
mod stream;
#[cfg(CONFIG_KUNIT = "y")]
mod tests;
pub(crate) mod timer;
mod verbs;

use crate::stream::tx::coalescer::{
    DoorbellCoalescer,
    RxEvents, //
};
use lifecycle::LifecycleWord;
use oob::OobSearch;
use timer::TxTimer;

pub(crate) use verbs::QpParts;

/// Source of receive work requests.
pub(crate) enum Receives {
    Own(Arc<RecvQueue>),
    Shared(Arc<Srq>),
}

/// Attributes that the verbs set and report, under the state lock.
#[derive(Default)]
pub(crate) struct Attrs {
    pub(crate) stored: QpAttr,
    /// The PSN that the stream's peer expects, until the consumer sets it.
    pub(crate) promised: Option<Psn>,
}

/// State that the stream's callbacks need too.
pub(crate) struct QpInner {
    pub(crate) conn: Option<Arc<Conn>>,
    /// The Terminate of the first fault (RDMAP-144), until the transmit task takes it.
    pub(crate) terminate: Option<Terminate>,
    /// A new stream, until the transmit task takes it.
    pub(crate) tx: Option<KBox<TxStream>>,
}

/// A queue pair. The order of its fields matters for the CPU's cache.
#[pin_data]
#[repr(C)]
pub(crate) struct Qp {
    pub(crate) number: u32,
    pub(crate) caps: QpCaps,
    pub(crate) user: bool,
    pub(crate) link: QpLink,
    pub(crate) device: Arc<Device>,
    pub(crate) pd: Arc<Pd>,
    pub(crate) recv_cq: Arc<Cq>,
    pub(crate) receives: Receives,
    lifecycle: LifecycleWord,
    /// The stream's peer supports Send with Immediate.
    pub(crate) send_immediate: Atomic<bool>,
    /// How long a Send on an out-of-band connection waits for the peer, in milliseconds, or
    /// [`FOR_EVER`].
    pub(crate) retry_timeout: Atomic<u32>,
    /// Upper limit of the peer's rights: an [`Access`].
    pub(crate) rights: Atomic<u32>,
    /// Code of the peer's Terminate, as in [`Completion::vendor_err`].
    pub(crate) peer_terminate: Atomic<u32>,
    /// `LastWqeReached` was raised: the queue pair takes no more receives from the SRQ.
    pub(crate) last_wqe_raised: Atomic<bool>,
    /// Serializes a consumer's changes of state and attributes.
    #[pin]
    pub(crate) modifying: Mutex<()>,
    #[pin]
    pub(crate) attrs: Mutex<Attrs>,
    /// Set while the phase is `Waiting`.
    #[pin]
    pub(crate) oob: Mutex<Option<OobSearch>>,
    #[pin]
    pub(crate) inner: SpinLockIrq<QpInner>,
    // Written for each message that is sent.
    pub(crate) _sender: NextCacheLine,
    #[pin]
    pub(crate) sq: SendQueue,
    pub(crate) tx: SerialTask<Tx>,
    pub(crate) coalescer: DoorbellCoalescer,
    /// The timer is armed; the transmit task it starts sees what was posted before.
    pub(crate) tx_timer_armed: Atomic<bool>,
    /// Delay of the next flush of what a process posts after the stream, in milliseconds.
    pub(crate) flush_pause: Atomic<u32>,
    // Written for each message that is received.
    pub(crate) _receiver: NextCacheLine,
    #[pin]
    pub(crate) rx: SpinLockBh<Rx>,
    pub(crate) rx_events: RxEvents,
    pub(crate) _rest: NextCacheLine,
    #[pin]
    pub(crate) inbound_reads: InboundReads,
    #[pin]
    pub(crate) timer: HrTimer<Self>,
    #[pin]
    pub(crate) tx_timer: Mutex<TxTimer>,
    #[pin]
    pub(crate) tx_work: Work<Qp, TX>,
    #[pin]
    pub(crate) rx_work: Work<Qp, RX>,
    #[pin]
    pub(crate) oob_work: DelayedWork<Qp, OOB>,
    /// Absent memory that the transmit task waits for.
    #[pin]
    pub(crate) paging_out: SpinLockBh<PagingOut>,
    #[pin]
    pub(crate) paging_in_work: Work<Qp, PAGING_IN>,
    #[pin]
    pub(crate) paging_out_work: Work<Qp, PAGING_OUT>,
    /// Requests an idle check from the transmit task.
    pub(crate) idle_look: Atomic<bool>,
    #[pin]
    pub(crate) idle_work: DelayedWork<Qp, IDLE>,
    /// Memory cgroup charged for allocations on behalf of the queue pair.
    pub(crate) owner: Memcg,
    pub(crate) _reservation: Reservation,
}

const TX: u64 = 0;
const RX: u64 = 1;
pub(crate) const OOB: u64 = 2;
pub(crate) const PAGING_IN: u64 = 3;
pub(crate) const PAGING_OUT: u64 = 4;
const IDLE: u64 = 5;

/// Value of `retry_timeout`: a Send waits without limit.
pub(crate) const FOR_EVER: u32 = u32::MAX;

impl_has_work! {
    impl HasWork<Self, TX> for Qp { self.tx_work }
    impl HasWork<Self, RX> for Qp { self.rx_work }
    impl HasWork<Self, PAGING_IN> for Qp { self.paging_in_work }
    impl HasWork<Self, PAGING_OUT> for Qp { self.paging_out_work }
}

impl_has_delayed_work! {
    impl HasDelayedWork<Self, OOB> for Qp { self.oob_work }
    impl HasDelayedWork<Self, IDLE> for Qp { self.idle_work }
}

impl WorkItem<TX> for Qp {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        this.transmit();
    }
}

impl WorkItem<RX> for Qp {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let conn = this.inner.lock().conn.clone();
        if let Some(conn) = conn {
            conn.socket()
                .with_inbound(|inbound| BhOff::run(|off| this.more_from(&conn, inbound, off)));
        }
    }
}

// Helpers for the parts of a queue pair. Context: any, unless a function says otherwise.
impl Qp {
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Returns whether its consumer is a process.
    pub(crate) fn is_user(&self) -> bool {
        self.user
    }

    pub(crate) fn link(&self) -> &QpLink {
        &self.link
    }

    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    pub(crate) fn pd(&self) -> PdId {
        self.pd.id()
    }

    pub(crate) fn recv_cq(&self) -> &Arc<Cq> {
        &self.recv_cq
    }

    /// Returns how regions identify the stream.
    pub(crate) fn stream_id(&self) -> StreamId {
        StreamId {
            pd: self.pd(),
            qpn: self.number,
            // CAST: `set_rights` stores the bits of an `Access`.
            rights: Access::from_bits(self.rights.load(Relaxed) as u8),
        }
    }

    /// Derives the peer's rights from the consumer's attributes. With the connection manager the
    /// peer has all rights, since the access flags are not the consumer's there.
    fn set_rights(&self, attrs: &Attrs) {
        let rights = if self.lifecycle().is_by_path() {
            rights_among(attrs.stored.access)
        } else {
            Access::ALL
        };
        self.rights.store(rights.bits().into(), Relaxed);
    }

    pub(crate) fn origin(&self) -> WcOrigin {
        WcOrigin {
            qpn: self.number,
            qp: self.link.id(),
            vendor_err: self.peer_terminate(),
        }
    }

    pub(crate) fn conn(&self) -> Option<Arc<Conn>> {
        self.inner.lock().conn.clone()
    }

    /// Allows sending: the initiator's first FPDU has arrived (MPA-9), or need not be awaited.
    pub(crate) fn allow_sending(self: &Arc<Self>) {
        if self.on(Event::FirstFpdu).contains(Actions::TRANSMIT) {
            self.kick();
        }
    }

    /// Stores the code of the peer's Terminate, for consumers and administrators.
    pub(crate) fn set_peer_terminate(&self, code: ErrorCode) {
        let [class, code] = code.octets();
        self.peer_terminate
            .store(u32::from_be_bytes([0, 1, class, code]), Relaxed);
    }

    /// Returns the code of the peer's Terminate, as in [`Completion::vendor_err`].
    pub(crate) fn peer_terminate(&self) -> u32 {
        self.peer_terminate.load(Relaxed)
    }

    /// Returns whether the stream's peer supports Send with Immediate.
    pub(crate) fn may_send_immediate(&self) -> bool {
        self.send_immediate.load(Relaxed)
    }

    /// Returns its own receive queue; [`None`] if it uses an SRQ.
    pub(crate) fn own_receives(&self) -> Option<&RecvQueue> {
        match &self.receives {
            Receives::Own(queue) => Some(queue),
            Receives::Shared(_) => None,
        }
    }

    /// Dequeues a receive work request into `wr`.
    pub(crate) fn take_receive(&self, wr: &mut RecvWr) -> Option<Result<(), BadWr>> {
        match &self.receives {
            Receives::Own(queue) => queue.take(wr),
            Receives::Shared(srq) => srq.take(wr),
        }
    }

    /// Returns whether a receive work request is posted.
    pub(crate) fn receive_room(&self) -> QueueRoom {
        let posted = match &self.receives {
            Receives::Own(queue) => queue.holds(1),
            Receives::Shared(srq) => srq.has_request(),
        };
        if posted {
            QueueRoom::Free
        } else {
            QueueRoom::Full
        }
    }

    /// Returns whether the consumer can receive Immediate Data.
    pub(crate) fn tells_immediate_data(&self) -> bool {
        !self.user || self.device.abi.has_extensions()
    }

    /// Terminates the stream for a fault in what the peer sent, and raises the event of its class.
    pub(crate) fn fault(self: &Arc<Self>, fault: Fault, quoted: Option<&Quoted>) {
        let terminate = Terminate::for_fault(fault, quoted);
        self.terminate(terminate);
        self.link.event(event_of(fault));
    }

    /// Ends the stream with a Terminate. Only the first of several is sent (RDMAP-144).
    pub(crate) fn terminate(self: &Arc<Self>, terminate: Terminate) {
        self.terminate_on(Event::Fault, terminate);
        self.kick();
    }

    /// As [`Qp::terminate`], for this event; the caller runs the transmit task.
    fn terminate_on(&self, event: Event, terminate: Terminate) {
        // The transmit task takes it under the lock, so it sees no phase without the message.
        let mut inner = self.inner.lock();
        if self.on(event).contains(Actions::KEEP_TERMINATE) {
            inner.terminate = Some(terminate);
        }
    }

    /// Returns the stream of the transmit task; takes a new one first.
    pub(crate) fn take_new_tx<'a>(&self, tx: &'a mut Tx) -> Option<&'a mut KBox<TxStream>> {
        // The old stream is dropped before a new one can be attached.
        if tx.stream.is_none() {
            tx.stream = self.inner.lock().tx.take();
        }
        tx.stream.as_mut()
    }

    pub(crate) fn take_terminate(&self) -> Option<Terminate> {
        self.inner.lock().terminate.take()
    }

    /// Handles the peer's Terminate (RDMAP-97).
    pub(crate) fn peer_terminated(self: &Arc<Self>, failure: FirstFailure) {
        let actions = self.on(Event::PeerTerminate(failure));
        self.act(actions);
        self.kick();
    }

    /// Invalidates a region on behalf of the local consumer.
    pub(crate) fn invalidate_local(&self, stag: Stag) -> Result<(), WcStatus> {
        self.device
            .region(stag)
            .ok_or(WcStatus::LocalQpOperation)?
            .invalidate_local(self.stream_id(), stag)
    }

    /// Invalidates a region on behalf of the peer (RDMAP-91..93).
    pub(crate) fn invalidate_remote(&self, stag: Stag) -> Result<(), Fault> {
        let region = self.device.region(stag).ok_or(Fault::InvalidateUnknown)?;
        region.invalidate_remote(self.stream_id(), stag)
    }

    /// Binds a memory window.
    pub(crate) fn bind_window(&self, bind: &Bind) -> Result<(), WcStatus> {
        let window = self.device.region(bind.window).ok_or(WcStatus::MwBind)?;
        let region = self.device.region(bind.region);
        window.bind(self.stream_id(), bind, region.as_ref())
    }

    /// Notifies the consumers of both completion queues of what was posted since the last time.
    ///
    /// Context: softirq or process, no lock held but mutexes.
    pub(crate) fn notify(&self) {
        self.each_cq(Cq::notify);
    }

    pub(crate) fn enqueue_tx(self: &Arc<Self>) {
        // If it is queued already, it will see the new work.
        let _ = self.device.queues.tx.enqueue::<Arc<Self>, TX>(self.clone());
    }

    pub(crate) fn enqueue_rx(self: &Arc<Self>) {
        let _ = self.device.queues.tx.enqueue::<Arc<Self>, RX>(self.clone());
    }

    /// Flushes all work requests. Returns whether more may have been posted meanwhile.
    ///
    /// Context: process; the running transmit task.
    pub(crate) fn flush(&self) -> bool {
        let flush = self.lifecycle.on(Event::Flush);
        let first = flush.ok().and_then(|flush| flush.before.first_failure());
        let first = first.map(lifecycle::status_of);
        if let Some(id) = self.forget_stream() {
            self.flush_receive(id);
        }
        let mut more = self.sq.flush(first, self.origin());
        match &self.receives {
            Receives::Own(queue) => more |= self.flush_receives(queue),
            Receives::Shared(_) => {
                if !self.last_wqe_raised.xchg(true, Relaxed) {
                    self.link.event(QpEvent::LastWqeReached);
                }
            }
        }
        more
    }

    /// Drops the receive side, the peer's requests and fetched payload; returns the cookie of the
    /// receive work request being filled.
    ///
    /// Context: process; the running transmit task.
    pub(crate) fn forget_stream(&self) -> Option<u64> {
        let begun = self.stop_rx();
        self.inbound_reads.clear();
        self.forget_paging_out();
        begun
    }

    /// Flushes receives, one more than the queue holds at most; returns whether more may be posted.
    fn flush_receives(&self, queue: &RecvQueue) -> bool {
        let mut wr = RecvWr::default();
        for _ in 0..=self.caps.max_recv_wr {
            match queue.take(&mut wr) {
                Some(Ok(())) => self.flush_receive(wr.id),
                Some(Err(bad)) => self.flush_receive(bad.id),
                None => return false,
            }
        }
        true
    }

    fn flush_receive(&self, id: u64) {
        let origin = self.origin();
        self.recv_cq.post(&Completion {
            id,
            status: WcStatus::Flushed,
            opcode: WcOpcode::Recv,
            bytes: 0,
            extra: WcExtra::None,
            qpn: origin.qpn,
            qp: origin.qp,
            solicited: true,
            vendor_err: origin.vendor_err,
        });
    }
}

/// Returns the asynchronous event for a fault of the stream.
fn event_of(fault: Fault) -> QpEvent {
    match fault.code().class() {
        Some(ErrorClass::RemoteProtection | ErrorClass::TaggedBuffer) => QpEvent::AccessError,
        Some(ErrorClass::RemoteOperation | ErrorClass::UntaggedBuffer) => QpEvent::RequestError,
        Some(ErrorClass::RdmapLocal | ErrorClass::DdpLocal | ErrorClass::Mpa) | None => {
            QpEvent::Fatal
        }
    }
}
