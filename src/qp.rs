// SPDX-License-Identifier: GPL-2.0

//! The queue pair: its state, its queues, and the stream that it owns while it has one.
//!
//! What enters: the verbs, the connection manager's word that a stream is up or has ended, and the
//! callbacks of the stream's socket. What leaves: completions, asynchronous events, and orders to
//! the connection (close).
//!
//! [`iwarp::lifecycle`] says which phases a queue pair goes through and what leads from one to the
//! next. All flushing is done by the transmitter, which is one context at a time.
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
    odp::tx::PagingOut,
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
            Tx,
            TxStream, //
        }, //
    }, //
};

mod idle;
mod lifecycle;
mod stream;
#[cfg(CONFIG_KUNIT = "y")]
mod tests;
mod verbs;

use crate::stream::tx::coalescer::{
    DoorbellCoalescer,
    RxEvents, //
};
use lifecycle::LifecycleWord;

use crate::cm::oob::qp::OobSearch;
use crate::stream::tx::timer::TxTimer;
pub(crate) use verbs::QpParts;

/// Where receive work requests come from.
pub(crate) enum Receives {
    Own(Arc<RecvQueue>),
    Shared(Arc<Srq>),
}

/// What the verbs set and report, under the state lock.
#[derive(Default)]
pub(crate) struct Attrs {
    pub(crate) stored: QpAttr,
    /// The PSN that the peer of the stream expects, if the consumer has not said it yet.
    pub(crate) promised: Option<Psn>,
}

/// What the stream's callbacks need too.
pub(crate) struct QpInner {
    pub(crate) conn: Option<Arc<Conn>>,
    /// The first fault's message (RDMAP-144), until the transmitter takes it.
    pub(crate) terminate: Option<Terminate>,
    /// A new stream, until the transmitter takes it.
    pub(crate) tx: Option<KBox<TxStream>>,
}

/// A queue pair. Its fields stay in this order, for the sake of the CPU's cache.
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
    /// The peer of the stream takes the Send with Immediate.
    pub(crate) send_immediate: Atomic<bool>,
    /// How long a Send without connection manager waits for the peer, in milliseconds, or
    /// [`FOR_EVER`].
    pub(crate) retry_timeout: Atomic<u32>,
    /// What the peer may do at most: an [`Access`].
    pub(crate) rights: Atomic<u32>,
    /// What the peer's Terminate says, as in [`Completion::vendor_err`].
    pub(crate) peer_terminate: Atomic<u32>,
    /// The event that nothing more is taken of the shared receive queue was raised.
    pub(crate) last_wqe_raised: Atomic<bool>,
    /// Held while a consumer changes state and attributes.
    #[pin]
    pub(crate) modifying: Mutex<()>,
    #[pin]
    pub(crate) attrs: Mutex<Attrs>,
    /// There while the phase is `Waiting`.
    #[pin]
    pub(crate) oob: Mutex<Option<OobSearch>>,
    #[pin]
    pub(crate) inner: SpinLockIrq<QpInner>,
    // What is written for each message that goes out ...
    pub(crate) _sender: NextCacheLine,
    #[pin]
    pub(crate) sq: SendQueue,
    pub(crate) tx: SerialTask<Tx>,
    pub(crate) coalescer: DoorbellCoalescer,
    /// The timer will run, and what was posted before will be seen then.
    pub(crate) tx_timer_armed: Atomic<bool>,
    /// Before the next look at what a process has posted after the end, in milliseconds.
    pub(crate) flush_pause: Atomic<u32>,
    // ... and for each that comes.
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
    /// What the transmitter waits for, of memory that is not there.
    #[pin]
    pub(crate) paging_out: SpinLockBh<PagingOut>,
    #[pin]
    pub(crate) paging_in_work: Work<Qp, PAGING_IN>,
    #[pin]
    pub(crate) paging_out_work: Work<Qp, PAGING_OUT>,
    /// Asks the transmitter to look whether its stream is idle.
    pub(crate) idle_look: Atomic<bool>,
    #[pin]
    pub(crate) idle_work: DelayedWork<Qp, IDLE>,
    /// Who pays for what is allocated on behalf of the queue pair.
    pub(crate) owner: Memcg,
    pub(crate) _reservation: Reservation,
}

const TX: u64 = 0;
const RX: u64 = 1;
pub(crate) const OOB: u64 = 2;
pub(crate) const PAGING_IN: u64 = 3;
pub(crate) const PAGING_OUT: u64 = 4;
const IDLE: u64 = 5;

/// A Send waits as long as it takes.
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

// What the parts of a queue pair ask of it. Context: any, unless a function says otherwise.
impl Qp {
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Whether its consumer is a process.
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

    /// As regions know the stream.
    pub(crate) fn stream_id(&self) -> StreamId {
        StreamId {
            pd: self.pd(),
            qpn: self.number,
            // CAST: it was stored as such.
            rights: Access::from_bits(self.rights.load(Relaxed) as u8),
        }
    }

    /// What the peer may do at most follows from what the consumer has set. The flags of a queue
    /// pair that a connection manager connects are not the consumer's.
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

    /// The initiator's first FPDU has come (MPA-9), or is not to be waited for.
    pub(crate) fn allow_sending(self: &Arc<Self>) {
        if self.on(Event::FirstFpdu).contains(Actions::TRANSMIT) {
            self.kick();
        }
    }

    /// Keeps what the peer's Terminate says, for consumers and administrators.
    pub(crate) fn set_peer_terminate(&self, code: ErrorCode) {
        let [class, code] = code.octets();
        self.peer_terminate
            .store(u32::from_be_bytes([0, 1, class, code]), Relaxed);
    }

    /// What the peer's Terminate says, as in [`Completion::vendor_err`].
    pub(crate) fn peer_terminate(&self) -> u32 {
        self.peer_terminate.load(Relaxed)
    }

    /// Whether the peer of the stream takes the Send with Immediate.
    pub(crate) fn may_send_immediate(&self) -> bool {
        self.send_immediate.load(Relaxed)
    }

    /// Its own receive queue; [`None`] if it takes from a shared one.
    pub(crate) fn own_receives(&self) -> Option<&RecvQueue> {
        match &self.receives {
            Receives::Own(queue) => Some(queue),
            Receives::Shared(_) => None,
        }
    }

    /// Takes the next receive work request into `wr`.
    pub(crate) fn take_receive(&self, wr: &mut RecvWr) -> Option<Result<(), BadWr>> {
        match &self.receives {
            Receives::Own(queue) => queue.take(wr),
            Receives::Shared(srq) => srq.take(wr),
        }
    }

    /// Whether a receive work request is posted.
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

    /// Whether the consumer can be told of Immediate Data.
    pub(crate) fn tells_immediate_data(&self) -> bool {
        !self.user || self.device.abi.has_extensions()
    }

    /// A message of the peer, or something in its name, is at fault.
    pub(crate) fn fault(self: &Arc<Self>, fault: Fault, quoted: Option<&Quoted>) {
        let terminate = Terminate::for_fault(fault, quoted);
        self.terminate(terminate);
        self.link.event(event_of(fault));
    }

    /// Ends the stream with a Terminate; of several only the first goes out (RDMAP-144).
    pub(crate) fn terminate(self: &Arc<Self>, terminate: Terminate) {
        self.terminate_on(Event::Fault, terminate);
        self.kick();
    }

    /// As [`Qp::terminate`], for this event; the caller calls the transmitter.
    fn terminate_on(&self, event: Event, terminate: Terminate) {
        // The transmitter takes it under the lock, so it sees no phase without the message.
        let mut inner = self.inner.lock();
        if self.on(event).contains(Actions::KEEP_TERMINATE) {
            inner.terminate = Some(terminate);
        }
    }

    /// The transmitter's stream; a new one is picked up first.
    pub(crate) fn take_new_tx<'a>(&self, tx: &'a mut Tx) -> Option<&'a mut KBox<TxStream>> {
        // An old one is let go before there can be a new one.
        if tx.stream.is_none() {
            tx.stream = self.inner.lock().tx.take();
        }
        tx.stream.as_mut()
    }

    pub(crate) fn take_terminate(&self) -> Option<Terminate> {
        self.inner.lock().terminate.take()
    }

    /// The peer's Terminate has arrived (RDMAP-97).
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
        // An item that is queued already will see what there is.
        let _ = self.device.queues.tx.enqueue::<Arc<Self>, TX>(self.clone());
    }

    pub(crate) fn enqueue_rx(self: &Arc<Self>) {
        let _ = self.device.queues.tx.enqueue::<Arc<Self>, RX>(self.clone());
    }

    /// Ends all work requests. Returns whether more may have been posted meanwhile.
    ///
    /// Context: process; the transmitter's.
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

    /// Ends what the stream did for the peer, and returns the receive that was begun.
    ///
    /// Context: process; the transmitter's.
    pub(crate) fn forget_stream(&self) -> Option<u64> {
        let begun = self.stop_rx();
        self.inbound_reads.clear();
        self.forget_paging_out();
        begun
    }

    /// Flushes at most as many receives as the queue is long; returns whether there may be more.
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

/// Which asynchronous event tells the consumer of a fault of its stream.
fn event_of(fault: Fault) -> QpEvent {
    match fault.code().class() {
        Some(ErrorClass::RemoteProtection | ErrorClass::TaggedBuffer) => QpEvent::AccessError,
        Some(ErrorClass::RemoteOperation | ErrorClass::UntaggedBuffer) => QpEvent::RequestError,
        Some(ErrorClass::RdmapLocal | ErrorClass::DdpLocal | ErrorClass::Mpa) | None => {
            QpEvent::Fatal
        }
    }
}
