// SPDX-License-Identifier: GPL-2.0

//! The receiver: moves octets from TCP's receive queue to memory, and posts completions.
//!
//! The queue pair calls [`RxStream::receive`] with a view of the octets that have arrived in order.
//! A round processes complete FPDUs only; an incomplete one stays in TCP, and so does what exceeds
//! the byte budget. What an FPDU leads to the protocol core decides ([`iwarp::stream`]); here it is
//! done, in the order in which the core asks for it ([`RxDelivery`]): the payload is copied from
//! the socket buffers to the consumer's pages, receives are taken and completed. The round ends
//! with one `consume`, one notification per completion queue and, if the peer needs an answer, a
//! round of the transmit task.
//!
//! After a fault nothing more is interpreted (DDP-83, MPA-21): the receiver consumes and discards
//! the rest of the stream, because a reset for unread data could destroy the Terminate.
//!
//! If a good FPDU is to be placed in an absent page, or needs a receive that is not posted, it
//! stays in TCP's queue, with all data that follows it, while a work item fetches the memory, or
//! until `queue/waits.rs` says when the queue pair tries again. This keeps the order of the stream,
//! lets the TCP window stop the peer, and delays no other stream. iWARP makes a missing receive the
//! end of the stream (RDMAP-81); RFC 5041, section 7.1, allows to recover by means of the LLP.
//!
//! Context: softirq, or process with the socket locked. Nothing sleeps; the walk itself allocates
//! nothing.

use core::cell::Cell;

use iwarp::{
    actions::{
        After,
        Set, //
    },
    mpa::{
        self,
        Crc, //
    },
    rdmap::Extensions,
    stream::{
        ArrivedFpdu,
        FpduEnd,
        ReceiverParams,
        Round,
        StreamReceiver, //
    }, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};
use kernel_ext::{
    net::Inbound,
    static_key,
    sync::BhOff,
    warn_on_once, //
};

use crate::{
    device::inject::Hold,
    mem::sge::{
        RegionCache,
        Slice, //
    },
    odp::mr::{
        FetchedPages,
        RegionRange, //
    },
    queue::{
        sq::FailedByRule,
        waits::ReceiveTurn, //
    },
};

mod delivery;
mod fpdu;
mod recv;
mod rest;
mod strict;
#[cfg(CONFIG_KUNIT = "y")]
mod tests;

use delivery::{
    Again,
    RxDelivery, //
};

use fpdu::{
    Fpdu,
    FRONT_MAX, //
};

use recv::Incoming;

use super::{
    connection::{
        StreamConnection,
        StreamParams, //
    },
    inject::{
        Injection,
        ReceiveRule,
        RuleQuery,
        Ruling, //
    },
    owner::QpShared, //
};

/// Maximum number of octets that one round processes.
const BUDGET: usize = 1024 * 1024;

/// The same in FPDUs, which may be as short as 8 octets.
const BUDGET_FPDUS: u64 = 4096;

/// The receiver's state, under the queue pair's receive lock.
#[derive(Default)]
pub(crate) struct Rx {
    pub(crate) stream: Option<KBox<RxStream>>,
}

/// The receive side of an attached stream.
pub(crate) struct RxStream {
    conn: Arc<StreamConnection>,
    receiver: StreamReceiver<Slice>,
    crc: Crc,
    /// The receive work request dequeued last.
    incoming: Incoming,
    cache: RegionCache,
    /// If the device has rules.
    injection: Option<Injection>,
}

/// One round of the receiver: its inputs, what it has received, and what has to happen once the
/// receive lock is released.
pub(crate) struct RxRound<'a, 'b> {
    qp: &'a QpShared,
    pub(crate) inbound: &'a mut Inbound<'b>,
    off: BhOff<'a>,
    done: Round,
}

impl RxStream {
    /// Creates the receive side of a stream of `qp`, which supports `extensions`.
    ///
    /// Context: process.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(
        qp: &QpShared,
        conn: &Arc<StreamConnection>,
        params: &StreamParams,
        extensions: Extensions,
    ) -> Result<KBox<Self>> {
        let stream = Self {
            conn: conn.clone(),
            receiver: StreamReceiver::new(&ReceiverParams {
                extensions,
                takes_immediate: qp.tells_immediate_data(),
                awaits: params.features.awaits,
                common: params.features.common,
                expect_rtr: params.expect_rtr,
            }),
            crc: params.crc,
            incoming: Incoming::default(),
            cache: RegionCache::default(),
            injection: None,
        };
        Ok(KBox::new(stream, GFP_KERNEL_ACCOUNT)?)
    }

    /// Returns whether it is the stream of this connection.
    pub(crate) fn is_of(&self, conn: &Arc<StreamConnection>) -> bool {
        Arc::ptr_eq(&self.conn, conn)
    }

    /// Returns the cookie of the receive work request that is being filled.
    pub(crate) fn begun(&self) -> Option<u64> {
        self.receiver.fills_receive().then(|| self.incoming.id())
    }

    /// Returns whether the stream may end here: no message is incomplete (MPA-30).
    pub(crate) fn is_between_messages(&self) -> bool {
        self.receiver.is_between_messages()
    }

    /// Returns whether an FPDU waits for its memory.
    pub(crate) fn is_paging_in(&self) -> bool {
        self.receiver.awaits_memory()
    }

    /// Returns whether an FPDU waits for its receive.
    pub(crate) fn awaits_receive(&self) -> bool {
        self.receiver.awaits_receive()
    }

    /// Returns whether a rule has held an FPDU when it was looked at last, or one is late by
    /// choice.
    pub(crate) fn is_held(&self) -> bool {
        self.injection.as_ref().is_some_and(Injection::holds) || self.late().is_some()
    }

    /// Returns until when an FPDU is not placed, if it is late by choice.
    pub(crate) fn late(&self) -> Option<Hold> {
        self.incoming.late
    }
}

impl<'a, 'b> RxRound<'a, 'b> {
    #[inline(always)]
    pub(crate) fn new(qp: &'a QpShared, inbound: &'a mut Inbound<'b>, off: BhOff<'a>) -> Self {
        Self {
            qp,
            inbound,
            off,
            done: Round::NEW,
        }
    }

    /// Updates the statistics with the accepted FPDUs and their length.
    #[inline(always)]
    fn count(&self, octets: usize) {
        if self.done.has_unprompted() {
            self.qp.rx_events.count();
        }
        let stats = &self.qp.device.stats;
        stats.rx_fpdus.add(self.done.accepted);
        stats.rx_bytes.add(octets as u64);
    }

    /// Ends the round. The caller carries out what is returned, once the receive lock is released.
    #[inline(always)]
    pub(crate) fn end(self) -> Set<After> {
        self.done.after
    }
}

impl RxStream {
    /// Begins to receive.
    #[inline(always)]
    fn begin<'s, 'b>(&'s mut self, round: &'s mut RxRound<'_, 'b>) -> Receiving<'s, 'b> {
        Receiving {
            receiver: &mut self.receiver,
            conn: &self.conn,
            crc: self.crc,
            injection: &mut self.injection,
            done: &mut round.done,
            to: RxDelivery {
                qp: round.qp,
                inbound: &mut *round.inbound,
                off: round.off,
                incoming: &mut self.incoming,
                cache: &mut self.cache,
                pos: 0,
                again: None,
            },
        }
    }

    /// Processes complete FPDUs until the budget is used up.
    pub(crate) fn receive(&mut self, round: &mut RxRound<'_, '_>) {
        let pos = self.begin(round).receive();
        round.count(pos);
    }

    /// Finishes the FPDU that waits for its memory, or was late, and consumes it; returns the range
    /// it still needs, if any. `fetched` stays pinned until the copy is made, so each FPDU waits
    /// once for each piece of its memory, whichever pages the process takes away. If the process
    /// binds a window anew meanwhile, the FPDU waits for the memory that the window refers to now.
    ///
    /// Context: process, the socket locked.
    pub(crate) fn go_on(
        &mut self,
        round: &mut RxRound<'_, '_>,
        fetched: Option<&FetchedPages>,
    ) -> Option<RegionRange> {
        let again = Again {
            fetched,
            absent: Cell::new(None),
        };
        self.incoming.late = None;
        let mut receiving = self.begin(round);
        receiving.to.again = Some(&again);
        let len = receiving.go_on(StreamReceiver::resume);
        if let Some(len) = len.filter(|_| self.receiver.is_going()) {
            round.count(len);
            round.inbound.consume(len);
        }
        again.absent.take()
    }
}

/// A stream that receives, in a round.
struct Receiving<'s, 'b> {
    receiver: &'s mut StreamReceiver<Slice>,
    conn: &'s StreamConnection,
    crc: Crc,
    injection: &'s mut Option<Injection>,
    done: &'s mut Round,
    to: RxDelivery<'s, 'b>,
}

impl<'s, 'b> Receiving<'s, 'b> {
    /// Processes complete FPDUs until the budget is used up; returns their length.
    #[inline(always)]
    fn receive(&mut self) -> usize {
        let available = self.to.inbound.available();
        let mut pos = self.receive_first();
        // Stops where no length field is available: the usual end.
        while self.receiver.is_going() && available - pos >= mpa::LENGTH_LEN {
            if pos >= BUDGET || self.done.accepted >= BUDGET_FPDUS {
                self.to.qp.device.stats.rx_budget_ends.inc();
                self.done.after.insert(After::Receive);
                break;
            }
            match self.receive_one(pos) {
                Some(len) => pos += len,
                None => break,
            }
            if let Some(message) = self.receiver.under_way() {
                pos += self.receive_rest(message, pos);
            }
        }
        let consumed = if self.receiver.is_stopped() {
            available
        } else {
            pos
        };
        if consumed != 0 {
            self.to.inbound.consume(consumed);
        }
        if consumed != available && self.receiver.is_going() {
            // The first part of an FPDU is left.
            self.to.inbound.set_aside_if_refused();
        }
        pos
    }

    /// Processes a first FPDU that is not like those behind it; returns its length if it is done
    /// with.
    #[inline(always)]
    fn receive_first(&mut self) -> usize {
        if self.receiver.awaits_receive() {
            self.receive_waiting()
        } else if self.receiver.awaits_features() {
            self.receive_features()
        } else {
            0
        }
    }

    /// Takes the features of the Initiator out of its first FPDU. Leaves any other FPDU, an
    /// incomplete one too.
    #[cold]
    fn receive_features(&mut self) -> usize {
        let mut front = [0; FRONT_MAX];
        let Some(fpdu) = Fpdu::at(self.to.inbound, 0, &mut front) else {
            return 0;
        };
        let arrived = ArrivedFpdu {
            header: front.get(mpa::LENGTH_LEN..).unwrap_or_default(),
            ulpdu_len: fpdu.ulpdu_len,
            framing: fpdu.check(self.to.inbound, self.crc),
        };
        match self.receiver.take_features(self.done, &arrived) {
            Some(common) => {
                self.to.qp.trace_fpdu_in(arrived.header, fpdu.ulpdu_len);
                self.conn.set_features(common);
                fpdu.len
            }
            None => 0,
        }
    }

    /// Processes the FPDU at `pos`; returns its length, or [`None`] if it is incomplete or has to
    /// wait.
    #[inline(always)]
    fn receive_one(&mut self, pos: usize) -> Option<usize> {
        let mut front = [0; FRONT_MAX];
        let fpdu = Fpdu::at(self.to.inbound, pos, &mut front)?;
        let header = front.get(mpa::LENGTH_LEN..)?;
        let arrived = ArrivedFpdu {
            header,
            ulpdu_len: fpdu.ulpdu_len,
            framing: fpdu.check(self.to.inbound, self.crc),
        };
        if static_key::is_on() && !self.passes(&arrived) {
            return None;
        }
        self.to.qp.trace_fpdu_in(header, fpdu.ulpdu_len);
        self.to.pos = pos;
        match self.receiver.handle_fpdu(&mut self.to, self.done, &arrived) {
            FpduEnd::Done => Some(fpdu.len),
            FpduEnd::Kept => None,
        }
    }

    /// Asks the rules of the device about an FPDU; returns whether it is to be handled now.
    #[cold]
    fn passes(&mut self, fpdu: &ArrivedFpdu<'_>) -> bool {
        let first = fpdu
            .framing
            .is_ok()
            .then(|| self.receiver.peek_first(fpdu.header, fpdu.ulpdu_len));
        let Some(operation) = first.flatten() else {
            return true;
        };
        let qp = self.to.qp;
        let query = RuleQuery::of_message(operation);
        let after = match Injection::ask(self.injection, qp, self.conn, &query) {
            Ruling::Goes => return true,
            Ruling::Held => {
                self.done.after.insert(After::LookAtRule);
                return false;
            }
            Ruling::NoReceive => {
                self.to.incoming.rule = Some(ReceiveRule::Absent);
                return true;
            }
            Ruling::Fails(FailedByRule { status, vendor, .. }) => {
                self.to.incoming.rule = Some(ReceiveRule::Fails { status, vendor });
                return true;
            }
            Ruling::GoesAndLooks => {
                self.done.after.insert(After::LookAtRule);
                return true;
            }
            Ruling::Ends(end) => qp.end_on_purpose(end),
            // What the peer sends is as it is (`iwarp::inject`).
            Ruling::Corrupted(_) | Ruling::GoesUntil(_) => return true,
        };
        self.receiver.stop();
        self.done.after.add(after);
        false
    }

    /// Takes the message that waits, if there is a receive for it or it has waited too long.
    /// Returns the length of its first FPDU if that is done with.
    #[cold]
    fn receive_waiting(&mut self) -> usize {
        self.to.incoming.turn = self.to.qp.waiter.turn();
        let len = self.go_on(StreamReceiver::retry_receive);
        self.to.incoming.turn = ReceiveTurn::Later;
        len.unwrap_or(0)
    }

    /// Goes on with the first FPDU, which waits, by `with`; returns its length if it is done with.
    fn go_on(
        &mut self,
        with: impl FnOnce(
            &mut StreamReceiver<Slice>,
            &mut RxDelivery<'s, 'b>,
            &mut Round,
            &ArrivedFpdu<'_>,
        ) -> FpduEnd,
    ) -> Option<usize> {
        let mut front = [0; FRONT_MAX];
        let fpdu = Fpdu::at(self.to.inbound, 0, &mut front);
        // A complete FPDU stays in the queue until it is consumed.
        warn_on_once!(fpdu.is_none());
        let fpdu = fpdu?;
        let arrived = ArrivedFpdu {
            header: front.get(mpa::LENGTH_LEN..)?,
            ulpdu_len: fpdu.ulpdu_len,
            framing: Ok(()),
        };
        match with(self.receiver, &mut self.to, self.done, &arrived) {
            FpduEnd::Done => Some(fpdu.len),
            FpduEnd::Kept => None,
        }
    }
}
