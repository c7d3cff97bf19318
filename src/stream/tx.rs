// SPDX-License-Identifier: GPL-2.0

//! The transmit side: turns work requests and the peer's Read Requests into octets that TCP
//! accepts.
//!
//! A [`SerialTask`](kernel_ext::sync::SerialTask) runs the transmit task of a queue pair in one
//! context at a time. A caller that finds it running rearms it and returns. A round has these
//! steps:
//!
//! * *schedule*: chooses the next message, alternating between the peer's Read Requests and the
//!   send queue ([`StreamSender`]); resolves keys to regions; checks fence and ORD;
//! * *segment*: [`Segmenter`](iwarp::segment::Segmenter) plans one FPDU after the other, none
//!   longer than a TCP segment;
//! * *pack*: puts header, payload, padding and CRC of many FPDUs into one batch of private pages.
//!   Payload is copied once and the CRC is computed over the copy, so each FPDU matches its CRC
//!   even if the application changes its buffer meanwhile (MPA-22);
//! * *send*: one call hands the batch to TCP by reference. It does not wait for buffer space: what
//!   TCP does not accept stays in the batch, and `write_space` kicks the transmit task.
//!
//! Context: process; or softirq, to send what a kernel consumer has posted, or to answer what has
//! just been received.
//! RFC 5040, sections 5 and 7; RFC 5041, section 5; RFC 5044, section 4.

use iwarp::{
    actions::{
        After,
        Set, //
    },
    fault::Fault,
    inject::Corruption,
    lifecycle::{
        Event,
        QpPhase, //
    },
    mpa::{
        self,
        marker::MarkerClock,
        Crc,
        Markers, //
    },
    segment::Plan,
    stream::{
        Job,
        Pause,
        SenderParams,
        StreamSender, //
    }, //
};
use kernel::{
    prelude::*,
    sync::{
        atomic::Relaxed,
        Arc, //
    },
    time::{
        delay::fsleep,
        Delta, //
    }, //
};
use kernel_ext::{
    mm::memcg::Memcg,
    net::{
        Grow,
        SendHint,
        TxBatch, //
    },
    static_key,
    sync::Next,
    warn_on_once, //
};

use crate::{
    abi::wr::SendWr,
    device::Confirmed,
    mem::sge::{
        RegionCache,
        Slices, //
    },
    queue::{
        readq::InboundRead,
        sq::{
            Slot,
            TxMarks, //
        }, //
    },
};

pub(crate) mod coalescer;
mod pack;
pub(crate) mod paging;
mod schedule;
pub(crate) mod send;
mod source;
mod strict;
#[cfg(CONFIG_KUNIT = "y")]
mod tests;

use paging::NotPacked;
use send::TcpSender;
use source::WatchedSources;
use strict::OutstandingReads;

use super::{
    connection::{
        StreamConnection,
        StreamParams, //
    },
    ending::terminate_number,
    inject::{
        Injection,
        InsideRule, //
    },
    owner::QpShared,
    trace::TerminateSender, //
};

/// Length at which a batch is sent to TCP, in octets.
const BATCH_LEN: usize = 64 * 1024;

/// How long the transmit task waits after a sleeping allocation failed.
pub(crate) const STARVED_PERIOD: Delta = Delta::from_millis(1);

/// State of the transmit task. Only the running task uses it.
#[derive(Default)]
pub(crate) struct Tx {
    pub(crate) stream: Option<KBox<TxStream>>,
}

/// The transmit side of an attached stream.
pub(crate) struct TxStream {
    conn: Arc<StreamConnection>,
    batch: TxBatch,
    /// Octets of the stream put into batches so far.
    appended: u64,
    /// Octets of the stream that TCP has accepted so far.
    accepted: u64,
    /// Stream positions at which the requests packed last end.
    marks: TxMarks,
    /// FPDUs packed but not yet counted in the statistics.
    fpdus: u64,
    /// The EMSS and the peer's limit from which the MULPDU was computed.
    limits: (u32, u16),
    crc: Crc,
    /// Positions of the Markers, if the peer requested them.
    markers: Option<MarkerClock>,
    /// Source of the payload of the current message; any, if that has none.
    source: Source,
    /// The FPDU planned last.
    plan: Plan,
    /// The request dequeued last. Kept in place because copying it is expensive.
    wr: SendWr,
    /// Dequeued work request that a fence or the ORD blocks.
    held: Option<Slot>,
    /// `appended` when the pending idle check was scheduled, if one is pending.
    idle_checked_at: Option<u64>,
    /// The FIN was asked for, so nothing may follow.
    closed: bool,
    /// What has to happen after the round.
    after: Set<After>,
    context: TxContext,
    /// If the device has rules.
    injection: Option<Injection>,
    /// What a rule does to the next FPDU.
    corruption: Option<Corruption>,
    /// What a rule does inside the current message, or an earlier one.
    inside: Option<InsideRule>,
    /// The request about which rules were asked as one that has been posted.
    seen: Option<Slot>,
    /// While the device is strict.
    outstanding: OutstandingReads,
    sources: WatchedSources,
}

/// State for turning requests into messages.
struct TxContext {
    sender: StreamSender<Slot>,
    /// When a signalled Write is complete.
    confirmed: Confirmed,
    /// The peer takes Reads and atomic operations: the negotiated ORD is not 0.
    reads: bool,
    /// Maximum length of a ULPDU in the current batch, in octets.
    mulpdu: u16,
    /// Source of the current message, if its payload is in regions of the consumer.
    slices: Slices,
    cache: RegionCache,
}

/// Source of a payload.
enum Source {
    /// None.
    Nothing,
    /// The consumer's regions: [`TxContext::slices`].
    Slices,
    /// The work request itself: [`TxStream::wr`].
    Inline,
    /// The region read by the peer.
    Remote(InboundRead),
    /// A copy of the payload that starts at this offset of the message.
    Found(u32, KVVec<u8>),
}

impl QpShared {
    /// Returns [`Next::Again`] if the phase has changed to one that ends the stream.
    fn next_after_sending(&self) -> Next {
        match self.phase() {
            QpPhase::Rts | QpPhase::Closing | QpPhase::Waiting | QpPhase::Idle => Next::Done,
            QpPhase::Terminate | QpPhase::Error | QpPhase::Gone => Next::Again,
        }
    }
}

impl TxStream {
    /// Creates the transmit side of a stream. With `draft_swap` its peer is said to know the Swap
    /// of RFC 7306's first draft in place of CmpSwap.
    ///
    /// Context: process.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(
        conn: &Arc<StreamConnection>,
        params: &StreamParams,
        confirmed: Confirmed,
        draft_swap: bool,
        owner: &Memcg,
    ) -> Result<KBox<Self>> {
        let stream = Self {
            conn: conn.clone(),
            batch: TxBatch::charged_to(owner.clone()),
            appended: 0,
            accepted: 0,
            marks: TxMarks::default(),
            fpdus: 0,
            limits: (0, 0),
            crc: params.crc,
            markers: (params.markers == Markers::On).then(MarkerClock::new),
            source: Source::Nothing,
            plan: Plan::empty(),
            wr: SendWr::default(),
            held: None,
            idle_checked_at: None,
            closed: false,
            after: Set::NONE,
            injection: None,
            corruption: None,
            inside: None,
            seen: None,
            outstanding: OutstandingReads::default(),
            sources: WatchedSources::default(),
            context: TxContext {
                sender: StreamSender::new(&SenderParams {
                    extensions: params.extensions,
                    features: params.features.tell,
                    rtr: params.send_rtr,
                    draft_swap,
                }),
                confirmed,
                reads: params.ord != 0,
                mulpdu: 0,
                slices: Slices::default(),
                cache: RegionCache::default(),
            },
        };
        let stream = KBox::new(stream, GFP_KERNEL_ACCOUNT)?;
        owner.charge(&stream);
        Ok(stream)
    }

    /// Computes the length of the longest ULPDU again: the longest that fits into one TCP segment
    /// (MPA-28), or a longer one if the peer takes such.
    fn update_mulpdu(&mut self) {
        let limits = (self.conn.socket().emss(), self.conn.ulpdu_max());
        if limits == self.limits {
            return;
        }
        self.limits = limits;
        self.context.mulpdu = match (self.markers, limits) {
            (Some(_), (emss, _)) => mpa::mulpdu(emss, Markers::On),
            (None, (emss, 0)) => mpa::mulpdu(emss, Markers::Off),
            (None, (emss, ulpdu_max)) => {
                self.batch.keep_segment_size();
                mpa::long_mulpdu(emss, ulpdu_max)
            }
        };
    }

    /// Returns what has to happen after the round.
    pub(crate) fn take_after(&mut self) -> Set<After> {
        core::mem::take(&mut self.after)
    }

    /// Fills and sends batches until the queues are empty or the budget is used up. The caller
    /// carries out [`TxStream::take_after`].
    pub(crate) fn send_round(&mut self, qp: &QpShared, sender: &mut TcpSender<'_, '_>) -> Next {
        if self.closed {
            // The peer's requests are not answered any more; what else it sends is still taken
            // (DDP-62).
            return Next::Done;
        }
        if qp.device.strict.is_on() {
            self.sources.check(qp);
        }
        for _ in 0..sender.budget() {
            let filled = self.fill(qp, sender);
            if filled == Err(Pause::Starved) && self.batch.is_empty() {
                if !sender.may_sleep() {
                    return Next::Yield;
                }
                self.after.insert(After::TransmitLater);
                return Next::Done;
            }
            let full = qp.sq.is_full();
            let more = match filled {
                Ok(()) => SendHint::MoreFollows,
                Err(Pause::Drained | Pause::Starved | Pause::Yield) => SendHint::Push,
            };
            if !self.batch.is_empty() {
                // Then TCP has room, and refuses only if it is short of memory.
                let has_room = self.conn.socket().is_acked();
                match sender.send(self, more) {
                    Ok(octets) => {
                        self.sent(qp, octets);
                        qp.sq.cq().notify();
                    }
                    Err(e) if e == EAGAIN => {
                        qp.device.stats.tx_stalls.inc();
                        let next = qp.next_after_sending();
                        if !has_room || next != Next::Done {
                            return next;
                        }
                        if !sender.may_sleep() {
                            return Next::Yield;
                        }
                        // No acknowledgment will follow. This caller waits only once.
                        fsleep(STARVED_PERIOD);
                        return Next::Yield;
                    }
                    // This context cannot send now; the work item does.
                    Err(e) if e == EBUSY => return Next::Yield,
                    // The connection is gone; its callbacks report that.
                    Err(_) => {
                        self.after.add(qp.apply(Event::SendFailed));
                        return qp.next_after_sending();
                    }
                }
            }
            let phase = qp.phase();
            if !matches!(phase, QpPhase::Rts | QpPhase::Closing) {
                return Next::Again;
            }
            // A request that waits for the peer's first FPDU has not been taken yet.
            let closes = phase == QpPhase::Closing && qp.sq.is_drained() && qp.sq.is_idle();
            if closes {
                // Only answers to the peer are left.
                qp.inbound_reads.close();
            }
            if filled == Err(Pause::Yield) {
                sender.end_turn();
                return Next::Yield;
            }
            // A consumer that posts now rings the doorbell, but one that posted behind a full queue
            // has already rung.
            let room_again = full && !qp.sq.is_full();
            if filled == Err(Pause::Drained) && self.batch.is_empty() && !room_again {
                if self.batch.has_spare() {
                    self.check_idle(qp);
                }
                if closes
                    && self.context.sender.current.is_none()
                    && !qp.inbound_reads.has_unanswered()
                {
                    self.closed = true;
                    self.after.add(qp.apply(Event::Drained));
                }
                return Next::Done;
            }
        }
        Next::Yield
    }

    /// Frees spare memory if the stream is idle; else schedules another check.
    fn check_idle(&mut self, qp: &QpShared) {
        match self.idle_checked_at {
            Some(_) if !qp.is_idle_check_due() => return,
            Some(before) if before == self.appended => {
                self.batch.give_back();
                self.idle_checked_at = None;
                return;
            }
            Some(_) | None => {}
        }
        self.idle_checked_at = Some(self.appended);
        self.after.insert(After::CheckIdle);
    }

    /// Accounts for `octets` that TCP has accepted, and completes the requests that end in them.
    fn sent(&mut self, qp: &QpShared, octets: usize) {
        let stats = &qp.device.stats;
        self.accepted += octets as u64;
        stats.tx_bytes.add(octets as u64);
        stats.tx_batches.inc();
        stats.tx_fpdus.add(core::mem::take(&mut self.fpdus));
        qp.coalescer.sent(octets);
        // Between two batches of a message, too, the peer waits for the rest.
        if self.batch.is_empty() && self.context.sender.current.is_none() {
            qp.packed.store(false, Relaxed);
        }
        qp.sq.accepted(self.accepted, &mut self.marks, qp.origin());
    }

    /// Fills the batch; the error says why it is shorter than [`BATCH_LEN`].
    #[inline]
    fn fill(&mut self, qp: &QpShared, sender: &TcpSender<'_, '_>) -> Result<(), Pause> {
        let grow = sender.grow();
        // The MULPDU follows the EMSS, from batch to batch.
        self.update_mulpdu();
        while self.batch.len() < BATCH_LEN {
            if self.context.sender.current.is_some() {
                // A Terminate may interrupt a message.
                if !matches!(qp.phase(), QpPhase::Rts | QpPhase::Closing) {
                    return Err(Pause::Drained);
                }
                if static_key::is_on() && self.is_interrupted(qp) {
                    return Err(Pause::Drained);
                }
            } else {
                self.next_message(qp)?;
            }
            if let Err(why) = self.cut(qp, grow) {
                return Err(self.not_packed(qp, why));
            }
            if self.context.sender.current.is_some()
                && !(static_key::is_on() && self.inside.is_some())
            {
                self.cut_more(qp, grow);
            }
            // Short messages, and requests without one between them, take long to fill a batch.
            if sender.is_over() {
                return Err(Pause::Yield);
            }
        }
        // If the work ends with this batch, TCP must not wait for more.
        if self.context.sender.current.is_none() {
            self.next_message(qp)?;
        }
        Ok(())
    }

    /// Handles a failure to pack the next FPDU of the current message.
    #[cold]
    fn not_packed(&mut self, qp: &QpShared, why: NotPacked) -> Pause {
        match why {
            // The batch is sent; acknowledgments return its pages.
            NotPacked::Memory => return Pause::Starved,
            // The work item that fetches the memory runs the transmit task again.
            NotPacked::Absent => {
                self.after.insert(After::FetchOut);
                return Pause::Drained;
            }
            NotPacked::Local(_) | NotPacked::Remote(_) | NotPacked::Inconsistent => {}
        }
        let current = self.context.sender.current.take();
        let job = current.map_or(Job::Nothing, |outgoing| outgoing.job);
        let source = core::mem::replace(&mut self.source, Source::Nothing);
        let after = match (why, job, source) {
            // RDMAP-140: sends a Terminate instead of the message.
            (NotPacked::Local(status), Job::Complete(slot) | Job::Confirm(slot), _) => {
                qp.refuse(slot, status)
            }
            (NotPacked::Remote(fault), _, Source::Remote(read)) => {
                let offset = self.plan.payload_offset();
                let quoted = read.quoted.map(|quoted| quoted.after(offset));
                qp.fault(fault, quoted.as_ref())
            }
            // Only messages that complete a request have a local source, and only the answers to
            // the peer's Reads a remote one.
            (why, ..) => {
                warn_on_once!(!matches!(why, NotPacked::Inconsistent));
                qp.fault(Fault::Local, None)
            }
        };
        self.after.add(after);
        Pause::Drained
    }

    #[inline(never)]
    fn cut_last(&mut self, qp: &QpShared) -> Result<(), NotPacked> {
        self.cut(qp, Grow::Sleep)
    }

    /// Sends the Terminate after the FPDUs in the batch.
    #[cold]
    pub(crate) fn send_terminate(&mut self, qp: &QpShared) {
        (self.context.sender.current, self.source) = (None, Source::Nothing);
        if let Some(terminate) = qp.take_terminate() {
            let code = terminate_number(terminate.code);
            self.context.sender.begin_terminate(terminate);
            self.update_mulpdu();
            if self.cut_last(qp).is_ok() {
                qp.device.stats.terminates_sent.inc();
                qp.trace_terminate(TerminateSender::Here, code);
            }
        }
        // Makes room in TCP, so that the Terminate goes out even if the peer does not read.
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
    }
}
