// SPDX-License-Identifier: GPL-2.0

//! The sender: from work requests and Read Requests of the peer to octets that TCP has accepted.
//!
//! One context at a time transmits for a queue pair; a [`SerialTask`](kernel_ext::sync::SerialTask)
//! sees to that. Who finds it running rearms it and leaves. A round has these steps:
//!
//! * *schedule*: the next message is chosen, in turn from the peer's Read Requests and from the
//!   send queue; its keys become regions; fence and ORD are asked;
//! * *segment*: [`Segmenter`] plans one FPDU after the other, none longer than a TCP segment;
//! * *pack*: header, payload, padding and CRC of many FPDUs go into one batch of private pages.
//!   Payload is copied once, and the CRC is made over the copy: what goes out matches its CRC
//!   whatever the application does to its buffer meanwhile (MPA-22);
//! * *send*: one call hands the batch to TCP, by reference. Nothing waits for buffer space: what
//!   TCP does not take stays, and `write_space` brings the transmitter back.
//!
//! Context: process; or softirq, to answer what has just been received ([`Qp::answer`]). RFC 5040,
//! sections 5 and 7; RFC 5041, section 5; RFC 5044, section 4.

use iwarp::{
    ddp::Msn,
    lifecycle::{
        Event,
        QpPhase, //
    },
    mpa::{
        self,
        marker::MarkerClock,
        negotiate::Rtr,
        Crc,
        Markers, //
    },
    rdmap::{
        Extensions,
        Immediate, //
    },
    segment::{
        Message,
        Plan,
        Segmenter, //
    },
    terminate::Terminate, //
};
use kernel::{
    prelude::*,
    sync::Arc,
    time::{
        delay::fsleep,
        Delta, //
    }, //
};
use kernel_ext::{
    mm::memcg::Memcg,
    net::{
        Grow,
        Inbound,
        SendHint,
        TxBatch, //
    },
    sync::{
        Next,
        Ran, //
    }, //
};

use crate::{
    abi::wr::SendWr,
    cm::conn::{
        Close,
        Conn,
        StreamParams, //
    },
    mem::sge::{
        RegionCache,
        Slices, //
    },
    qp::Qp,
    queue::{
        readq::InboundRead,
        sq::{
            Slot,
            TxMarks, //
        }, //
    },
    stream::tx::coalescer::DoorbellAction, //
};

pub(crate) mod coalescer;
mod pack;
mod schedule;
mod send;
#[cfg(CONFIG_KUNIT = "y")]
mod tests;
pub(crate) mod timer;

use pack::Failed;

use send::TcpSender;

/// Octets after which a batch goes to TCP.
const BATCH_LEN: usize = 64 * 1024;

/// When a transmitter that gets no memory, though it may sleep for it, tries again.
const STARVED_PERIOD: Delta = Delta::from_millis(1);

/// The transmitter's state. Only the running transmit task of the queue pair uses it.
#[derive(Default)]
pub(crate) struct Tx {
    pub(crate) stream: Option<KBox<TxStream>>,
}

/// What there is while a stream is attached.
pub(crate) struct TxStream {
    conn: Arc<Conn>,
    batch: TxBatch,
    /// Octets of the stream that were put into batches.
    appended: u64,
    /// Octets of the stream that TCP has accepted.
    accepted: u64,
    /// Where the requests end that were packed last.
    marks: TxMarks,
    /// FPDUs that were packed and not counted yet.
    fpdus: u64,
    /// The segment size that the MULPDU was made of.
    emss: u32,
    crc: Crc,
    /// Where the Markers go, if the peer wants them.
    markers: Option<MarkerClock>,
    /// The message that is being segmented.
    current: Option<Outgoing>,
    /// The FPDU that was planned last.
    plan: Plan,
    /// The request that was taken from the send queue last. It stays where it is, since copies of
    /// it would cost more than the rest.
    wr: SendWr,
    /// Dequeued work request that a fence or the ORD blocks.
    held: Option<Slot>,
    /// The ready-to-receive message that goes out first.
    rtr: Option<Rtr>,
    /// A look whether the stream is idle will be taken; so much had been put into batches before.
    looked_at: Option<u64>,
    /// Whose turn it is when both the peer and the consumer want something.
    turn: Turn,
    context: TxContext,
}

/// What requests are turned into messages with.
struct TxContext {
    /// What the peer understands.
    extensions: Extensions,
    /// Octets that a ULPDU of the present batch has at most.
    mulpdu: u16,
    send_msn: Msn,
    read_msn: Msn,
    atomic_msn: Msn,
    /// Where the current message comes from, if it comes from regions of the consumer.
    slices: Slices,
    cache: RegionCache,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    Responses,
    Requests,
}

/// A message on its way out.
struct Outgoing {
    segmenter: Segmenter,
    source: Source,
    job: Job,
    /// What follows it at once, and ends the job in its place.
    behind: Option<Immediate>,
}

impl Outgoing {
    /// A message without payload from here.
    fn bare(message: Message, job: Job) -> Self {
        Self {
            segmenter: Segmenter::new(message, 0),
            source: Source::Nothing,
            job,
            behind: None,
        }
    }
}

/// Where the payload of a message comes from.
enum Source {
    /// There is none.
    Nothing,
    /// The consumer's regions: [`TxContext::slices`].
    Slices,
    /// The work request itself: [`TxStream::wr`].
    Inline,
    /// The region that the peer reads.
    Remote(InboundRead),
    /// A copy of the octets from this one of the message on.
    Found(u32, KVVec<u8>),
}

/// What the end of a message means.
#[derive(Clone, Copy)]
enum Job {
    /// The request is done once TCP has accepted the octets.
    Complete(Slot),
    /// A Read or atomic operation of the peer is answered.
    Answer,
    /// Nobody waits for it.
    Nothing,
}

/// Why the transmitter puts nothing more into the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pause {
    /// Nothing more can be sent now.
    Drained,
    /// There is no memory for more.
    Starved,
    /// Others have their turn: many requests were done without a message.
    Yield,
}

impl Qp {
    /// Sends what there is to send, or rearms the transmit task.
    ///
    /// Context: process, no lock held.
    pub(crate) fn transmit(self: &Arc<Self>) {
        self.rounds(&mut TcpSender::Process);
        self.notify();
        self.watch_receives();
    }

    /// A process has posted something.
    ///
    /// Context: process, no lock held.
    pub(crate) fn doorbell(self: &Arc<Self>) {
        // A library that rings for each request does so also while sending is delayed.
        match self.phase() {
            QpPhase::Rts if self.tx_timer_is_armed() => return,
            QpPhase::Error => self.watch_closely(),
            QpPhase::Idle
            | QpPhase::Waiting
            | QpPhase::Rts
            | QpPhase::Closing
            | QpPhase::Terminate
            | QpPhase::Gone => {}
        }
        match self.coalescer.on_doorbell(self.sq.taken(), &self.rx_events) {
            DoorbellAction::Now => self.transmit(),
            DoorbellAction::Delay(delay) => {
                if !self.tx.rearm() {
                    self.arm_tx_timer(delay);
                }
            }
            DoorbellAction::Timed(begin) => {
                self.transmit();
                self.coalescer.doorbell_done(begin);
            }
        }
    }

    /// Answers what has just been received, without a thread hop where that is possible.
    ///
    /// Context: a callback of the stream's socket; no lock of the driver held.
    pub(crate) fn answer(self: &Arc<Self>, inbound: &mut Inbound<'_>) {
        if !inbound.in_softirq() {
            // Somebody works off the socket's backlog, most likely the transmitter itself.
            return self.kick();
        }
        self.rounds(&mut TcpSender::Softirq(inbound));
        self.notify();
    }

    /// Runs the transmit task as long as there is something to do or it is rearmed, within the
    /// budget of the caller: then the work item goes on.
    fn rounds(self: &Arc<Self>, sender: &mut TcpSender<'_, '_>) {
        let mut left = sender.budget();
        let ran = self.tx.run(|tx| {
            let next = self.round(tx, sender);
            left = left.saturating_sub(1);
            if left == 0 {
                Next::Yield
            } else {
                next
            }
        });
        match ran {
            Ran::Here | Ran::Elsewhere => {}
            Ran::Yielded => self.enqueue_tx(),
        }
    }

    /// Has the transmit task flush what there is and forget its stream, and resets the queues
    /// before another context can run it. A context that still does is waited for: it may be in the
    /// middle of either. Returns whether the queues were reset; they are not if there is a new
    /// connection.
    ///
    /// Context: process, sleeps; the queue pair has no connection.
    pub(crate) fn quiesce(self: &Arc<Self>) -> bool {
        let mut anew = false;
        self.transmit_until_idle(|| anew = self.reset_queues());
        // No consumer is called back from within its own call.
        self.enqueue_tx();
        anew
    }

    /// Runs the transmit task until idle, waiting for another context that runs it first; calls
    /// `last` before releasing it.
    ///
    /// Context: process, sleeps; the queue pair has no connection.
    pub(crate) fn transmit_until_idle(self: &Arc<Self>, mut last: impl FnMut()) {
        loop {
            let ran = self.tx.run(|tx| {
                let next = self.round(tx, &mut TcpSender::Process);
                if next == Next::Done {
                    last();
                }
                next
            });
            match ran {
                Ran::Here => break,
                Ran::Yielded => {}
                Ran::Elsewhere => fsleep(Delta::from_micros(100)),
            }
        }
    }

    /// As [`Qp::transmit`], from where nothing may be sent: the present transmitter, if there is
    /// one, or the work item does it.
    ///
    /// Context: any.
    pub(crate) fn kick(self: &Arc<Self>) {
        if !self.tx.rearm() {
            self.enqueue_tx();
        }
    }

    fn round(self: &Arc<Self>, tx: &mut Tx, sender: &mut TcpSender<'_, '_>) -> Next {
        match self.phase() {
            QpPhase::Idle => {
                // What a reset has left behind; its end may sleep.
                if sender.may_sleep() {
                    tx.stream = None;
                }
                Next::Done
            }
            QpPhase::Waiting => {
                if self.sq.has_posted() {
                    self.hurry_oob();
                }
                Next::Done
            }
            QpPhase::Rts | QpPhase::Closing => {
                let stream = self.take_new_tx(tx);
                stream.map_or(Next::Done, |stream| stream.send_round(self, sender))
            }
            // The end of a stream is work for process context.
            QpPhase::Terminate | QpPhase::Error | QpPhase::Gone if !sender.may_sleep() => {
                Next::Yield
            }
            QpPhase::Terminate => {
                if let Some(stream) = self.take_new_tx(tx) {
                    stream.send_terminate(self);
                }
                self.on(Event::TerminateSent);
                Next::Again
            }
            phase @ (QpPhase::Error | QpPhase::Gone) => {
                // The connection outlives the transmitter's interest in it.
                self.take_new_tx(tx);
                tx.stream = None;
                if phase == QpPhase::Error {
                    return self.flush_some();
                }
                self.forget_stream();
                Next::Done
            }
        }
    }

    /// Goes round again if the phase has changed under us.
    fn next_after_sending(&self) -> Next {
        match self.phase() {
            QpPhase::Rts | QpPhase::Closing | QpPhase::Waiting | QpPhase::Idle => Next::Done,
            QpPhase::Terminate | QpPhase::Error | QpPhase::Gone => Next::Again,
        }
    }
}

impl TxStream {
    /// Prepares the transmitter's side of a stream whose peer understands `extensions`.
    ///
    /// Context: process.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(
        conn: &Arc<Conn>,
        params: &StreamParams,
        extensions: Extensions,
        owner: &Memcg,
    ) -> Result<KBox<Self>> {
        let stream = Self {
            conn: conn.clone(),
            batch: TxBatch::charged_to(owner.clone()),
            appended: 0,
            accepted: 0,
            marks: TxMarks::default(),
            fpdus: 0,
            emss: 0,
            crc: params.crc,
            markers: (params.markers == Markers::On).then(MarkerClock::new),
            current: None,
            plan: Plan::empty(),
            wr: SendWr::default(),
            held: None,
            rtr: params.send_rtr,
            looked_at: None,
            turn: Turn::Responses,
            context: TxContext {
                extensions,
                mulpdu: 0,
                send_msn: Msn::FIRST,
                read_msn: Msn::FIRST,
                atomic_msn: Msn::FIRST,
                slices: Slices::default(),
                cache: RegionCache::default(),
            },
        };
        let stream = KBox::new(stream, GFP_KERNEL_ACCOUNT)?;
        owner.charge(&stream);
        Ok(stream)
    }

    /// The longest ULPDU that still makes one segment of TCP (MPA-28).
    fn mulpdu_now(&self) -> u16 {
        let markers = match self.markers {
            Some(_) => Markers::On,
            None => Markers::Off,
        };
        mpa::mulpdu(self.conn.socket().emss(), markers)
    }

    /// Sends what there is to send, as long as the budget lasts.
    fn send_round(&mut self, qp: &Arc<Qp>, sender: &mut TcpSender<'_, '_>) -> Next {
        for _ in 0..sender.budget() {
            let filled = self.fill(qp, sender.grow());
            if filled == Err(Pause::Starved) && self.batch.is_empty() {
                if !sender.may_sleep() {
                    return Next::Yield;
                }
                qp.arm_tx_timer(STARVED_PERIOD);
                return Next::Done;
            }
            let full = qp.sq.is_full();
            let more = match filled {
                Ok(()) => SendHint::MoreFollows,
                Err(Pause::Drained | Pause::Starved | Pause::Yield) => SendHint::Push,
            };
            if !self.batch.is_empty() {
                match sender.send(self, more) {
                    Ok(octets) => self.sent(qp, octets),
                    Err(e) if e == EAGAIN => {
                        qp.device().stats.tx_stalls.inc();
                        return qp.next_after_sending();
                    }
                    // Not from here, not now.
                    Err(e) if e == EBUSY => return Next::Yield,
                    // The connection is gone; its callbacks say so.
                    Err(_) => {
                        self.conn.close(Close::Abort);
                        return qp.next_after_sending();
                    }
                }
            }
            let phase = qp.phase();
            if !matches!(phase, QpPhase::Rts | QpPhase::Closing) {
                return Next::Again;
            }
            if filled == Err(Pause::Yield) {
                return Next::Yield;
            }
            // Whoever posts something now rings the doorbell. Not so what was posted behind a full
            // queue.
            let room_again = full && !qp.sq.is_full();
            if filled == Err(Pause::Drained) && self.batch.is_empty() && !room_again {
                if self.batch.has_spare() {
                    self.look_for_idleness(qp);
                }
                let done = || self.current.is_none() && qp.sq.is_idle() && !qp.inbound_reads.owes();
                if phase == QpPhase::Closing && done() {
                    self.conn.close(Close::Graceful);
                }
                return Next::Done;
            }
        }
        Next::Yield
    }

    /// The transmitter has nothing to send and more memory than an idle stream may keep.
    fn look_for_idleness(&mut self, qp: &Arc<Qp>) {
        match self.looked_at {
            Some(_) if !qp.is_to_look() => return,
            Some(before) if before == self.appended => {
                self.batch.give_back();
                self.looked_at = None;
                return;
            }
            Some(_) | None => {}
        }
        self.looked_at = Some(self.appended);
        qp.look_later();
    }

    /// TCP has accepted so many octets.
    fn sent(&mut self, qp: &Qp, octets: usize) {
        let stats = &qp.device().stats;
        self.accepted += octets as u64;
        stats.tx_bytes.add(octets as u64);
        stats.tx_batches.inc();
        stats.tx_fpdus.add(core::mem::take(&mut self.fpdus));
        qp.coalescer.sent(octets);
        if self.batch.is_empty() {
            qp.inbound_reads.accepted();
        }
        qp.sq.accepted(self.accepted, &mut self.marks, qp.origin());
        qp.sq.cq().notify();
    }

    /// Fills the batch; says why if there is less in it than it takes.
    #[inline]
    fn fill(&mut self, qp: &Arc<Qp>, grow: Grow) -> Result<(), Pause> {
        // It follows the segment size, from batch to batch.
        let emss = self.conn.socket().emss();
        if emss != self.emss {
            self.context.mulpdu = self.mulpdu_now();
            self.emss = emss;
        }
        while self.batch.len() < BATCH_LEN {
            if self.current.is_some() {
                // A Terminate goes out in the middle of a message too.
                if !matches!(qp.phase(), QpPhase::Rts | QpPhase::Closing) {
                    return Err(Pause::Drained);
                }
            } else if self.has_nothing(qp) {
                return Err(Pause::Drained);
            } else {
                self.next_message(qp)?;
            }
            if let Err(failed) = self.cut(qp, grow) {
                return Err(self.cannot_cut(qp, failed));
            }
        }
        // A batch may end where the work does. TCP must not wait for more then.
        if self.current.is_none() {
            self.next_message(qp)?;
        }
        Ok(())
    }

    /// The current message cannot go on.
    #[cold]
    fn cannot_cut(&mut self, qp: &Arc<Qp>, failed: Failed) -> Pause {
        match failed {
            Failed::Local(slot, status) => {
                self.current = None;
                // RDMAP-140: a Terminate instead of the message.
                qp.refuse(slot, status);
            }
            Failed::Remote(fault, read, sent) => {
                self.current = None;
                let quoted = read.quoted.map(|quoted| quoted.after(sent));
                qp.terminate(Terminate::for_fault(fault, quoted.as_ref()));
            }
            // What is in the batch goes out; its pages come back with the acknowledgements.
            Failed::Memory => return Pause::Starved,
            // Who brings it in calls the transmitter again.
            Failed::Absent => {}
        }
        Pause::Drained
    }

    /// Whether a first look finds nothing to send: the usual end of a round.
    #[inline]
    fn has_nothing(&self, qp: &Qp) -> bool {
        self.rtr.is_none()
            && self.held.is_none()
            && !qp.inbound_reads.has_waiting()
            && qp.sq.looks_empty()
    }

    #[inline(never)]
    fn cut_last(&mut self, qp: &Arc<Qp>) -> Result<(), Failed> {
        self.cut(qp, Grow::Sleep)
    }

    /// Sends the Terminate behind the FPDUs that are in the batch already, and ends the stream.
    #[cold]
    fn send_terminate(&mut self, qp: &Arc<Qp>) {
        self.current = None;
        if let Some(terminate) = qp.take_terminate() {
            self.current = Some(Outgoing::bare(Message::Terminate(terminate), Job::Nothing));
            self.context.mulpdu = self.mulpdu_now();
            if self.cut_last(qp).is_ok() {
                qp.device().stats.terminates_sent.inc();
            }
        }
        // A peer that does not read is no reason to keep it from knowing what is wrong.
        self.conn.socket().make_room(self.batch.len());
        while !self.batch.is_empty() {
            match self
                .conn
                .socket()
                .send_batch(&mut self.batch, SendHint::Push)
            {
                Ok(octets) => self.sent(qp, octets),
                Err(_) => break,
            }
        }
        self.conn.close(Close::Graceful);
    }
}
