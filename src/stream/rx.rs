// SPDX-License-Identifier: GPL-2.0

//! The receiver: moves octets from TCP's receive queue to memory, and posts completions.
//!
//! The queue pair calls [`RxStream::receive`] with a view of the octets that have arrived in order.
//! A round processes complete FPDUs only; an incomplete one stays in TCP, and so does what exceeds
//! the byte budget. For each FPDU it checks, in this order, the CRC over all of it (MPA-20), the
//! headers ([`iwarp::receiver`]) and the access rights, then copies the payload from the socket
//! buffers to the consumer's pages. The round ends with one `consume`, one notification per
//! completion queue and, if the peer needs an answer, a round of the transmit task.
//!
//! After a fault nothing more is interpreted (DDP-83, MPA-21): the receiver consumes and discards
//! the rest of the stream, because a reset for unread data could destroy the Terminate.
//!
//! Context: softirq, or process with the socket locked. Nothing sleeps; the walk itself allocates
//! nothing.

use iwarp::{
    actions::{
        After,
        Set, //
    },
    fault::Fault,
    features::Features,
    lifecycle::Event,
    mpa::{
        self,
        negotiate::Rtr,
        start::RtrKinds,
        Crc, //
    },
    rdmap::Extensions,
    receiver::{
        Receiver,
        Segment,
        TaggedSegment, //
    },
    terminate::Quoted, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};
use kernel_ext::{
    net::Inbound,
    sync::BhOff, //
};

use crate::mem::{
    peer::PeerAccess,
    sge::RegionCache, //
};

mod answers;
mod fpdu;
pub(crate) mod paging;
mod recv;
mod requests;
mod rest;
#[cfg(CONFIG_KUNIT = "y")]
mod tests;
mod waits;

use fpdu::{
    Fpdu,
    FRONT_MAX, //
};

use paging::Deferred;
use recv::Incoming;
use waits::WaitingMessage;

use super::{
    connection::{
        StreamConnection,
        StreamParams, //
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
    receiver: Receiver,
    crc: Crc,
    /// The receive work request dequeued last.
    incoming: Incoming,
    /// Length of the last RDMA Write, as long as at most Reads follow it.
    written: Written,
    cache: RegionCache,
    /// No FPDU has been accepted yet.
    untouched: bool,
    /// What this end can do, until the peer has told what it can do in its first FPDU.
    awaits: Option<Features>,
    /// Allowed kinds of the first FPDU after that, if the peer promised to send first (MPA-41).
    expect_rtr: RtrKinds,
    flow: Flow,
    /// The FPDU whose memory is absent, if `flow` is [`Flow::Waiting`].
    deferred: Option<Deferred>,
    /// The message that has no receive, if `flow` is [`Flow::NoReceive`].
    waiting: Option<WaitingMessage>,
}

/// What the receiver does with arriving octets.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flow {
    /// Interprets them.
    Going,
    /// Leaves them in TCP until the memory for the first FPDU is fetched.
    Waiting,
    /// Leaves them in TCP until a receive is posted for the first FPDU.
    NoReceive,
    /// Discards them, because of a fault or because the peer has ended the stream.
    Stopped,
}

/// Why an FPDU is not accepted.
#[derive(Clone, Copy)]
enum Stop {
    /// Its memory is absent.
    Absent,
    /// It needs a receive, and none is posted.
    NoReceive,
    /// It is at fault.
    Fault(Fault),
}

impl From<Fault> for Stop {
    #[inline]
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl From<Error> for Stop {
    /// Converts the error of a copy that was not made.
    #[cold]
    fn from(error: Error) -> Self {
        match error {
            EAGAIN => Self::Absent,
            _ => Self::Fault(Fault::LocalPlacement),
        }
    }
}

/// Length of an RDMA Write, for the completion of Immediate Data that follows it.
#[derive(Default)]
struct Written {
    octets: u32,
    /// More segments follow.
    open: bool,
}

impl Written {
    fn add(&mut self, segment: &TaggedSegment) {
        if !self.open {
            self.octets = 0;
        }
        self.octets = self.octets.saturating_add(segment.payload.len.into());
        self.open = !segment.last.is_last();
    }

    fn is_open(&self) -> bool {
        self.open
    }

    fn take(&mut self) -> u32 {
        core::mem::take(self).octets
    }
}

/// One round of the receiver: its inputs, what it has received, and what has to happen once the
/// receive lock is released.
pub(crate) struct RxRound<'a, 'b> {
    qp: &'a QpShared,
    pub(crate) inbound: &'a mut Inbound<'b>,
    off: BhOff<'a>,
    after: Set<After>,
    fpdus: RxCount,
}

/// The FPDUs of a round.
#[derive(Default)]
struct RxCount {
    /// Number of FPDUs accepted.
    accepted: u64,
    /// Number of those that answer a local request.
    answers: u64,
}

impl RxCount {
    /// Returns whether the peer sent something other than answers.
    fn has_unprompted(&self) -> bool {
        self.accepted != self.answers
    }
}

impl RxStream {
    /// Counts an FPDU that is processed completely.
    #[inline(always)]
    fn accepted(&mut self, round: &mut RxRound<'_, '_>) {
        round.fpdus.accepted += 1;
        self.validated(round);
    }

    /// Notes that an FPDU is received and validated (MPA-9).
    #[inline(always)]
    fn validated(&mut self, round: &mut RxRound<'_, '_>) {
        if self.untouched {
            self.untouched = false;
            round.after.add(round.qp.apply(Event::FirstFpdu));
        }
    }
}

impl RxStream {
    /// Creates the receive side of a stream, which supports `extensions`.
    ///
    /// Context: process.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(
        conn: &Arc<StreamConnection>,
        params: &StreamParams,
        extensions: Extensions,
    ) -> Result<KBox<Self>> {
        let stream = Self {
            conn: conn.clone(),
            receiver: Receiver::new(extensions),
            crc: params.crc,
            incoming: Incoming::default(),
            written: Written::default(),
            cache: RegionCache::default(),
            untouched: true,
            awaits: params.features.awaits,
            expect_rtr: params.expect_rtr,
            flow: Flow::Going,
            deferred: None,
            waiting: None,
        };
        Ok(KBox::new(stream, GFP_KERNEL_ACCOUNT)?)
    }

    /// Returns whether it is the stream of this connection.
    pub(crate) fn is_of(&self, conn: &Arc<StreamConnection>) -> bool {
        Arc::ptr_eq(&self.conn, conn)
    }

    /// Returns the cookie of the receive work request that is being filled.
    pub(crate) fn begun(&self) -> Option<u64> {
        self.incoming.begun()
    }

    /// Returns whether the stream may end here: no message is incomplete (MPA-30).
    pub(crate) fn is_between_messages(&self) -> bool {
        self.flow == Flow::Stopped || !self.receiver.is_mid_message()
    }

    /// Returns whether an FPDU waits for its memory.
    pub(crate) fn is_paging_in(&self) -> bool {
        self.flow == Flow::Waiting
    }

    /// Returns whether an FPDU waits for its receive.
    pub(crate) fn awaits_receive(&self) -> bool {
        self.flow == Flow::NoReceive
    }
}

impl<'a, 'b> RxRound<'a, 'b> {
    #[inline(always)]
    pub(crate) fn new(qp: &'a QpShared, inbound: &'a mut Inbound<'b>, off: BhOff<'a>) -> Self {
        Self {
            qp,
            inbound,
            off,
            after: Set::NONE,
            fpdus: RxCount::default(),
        }
    }

    /// Updates the statistics with the accepted FPDUs and their length.
    #[inline(always)]
    fn count(&self, octets: usize) {
        if self.fpdus.has_unprompted() {
            self.qp.rx_events.count();
        }
        let stats = &self.qp.device.stats;
        stats.rx_fpdus.add(self.fpdus.accepted);
        stats.rx_bytes.add(octets as u64);
    }

    /// Ends the round. The caller carries out what is returned, once the receive lock is released.
    #[inline(always)]
    pub(crate) fn end(self) -> Set<After> {
        self.after
    }
}

impl RxStream {
    /// Processes complete FPDUs until the budget is used up.
    pub(crate) fn receive(&mut self, round: &mut RxRound<'_, '_>) {
        let available = round.inbound.available();
        let mut pos = match self.flow {
            Flow::NoReceive => self.receive_waiting(round),
            Flow::Going | Flow::Waiting | Flow::Stopped => self.receive_features(round),
        };
        // Stops where no length field is available: the usual end.
        while self.flow == Flow::Going && available - pos >= mpa::LENGTH_LEN {
            if pos >= BUDGET || round.fpdus.accepted >= BUDGET_FPDUS {
                round.qp.device.stats.rx_budget_ends.inc();
                round.after.insert(After::Receive);
                break;
            }
            match self.receive_one(round, pos) {
                Some(len) => pos += len,
                None => break,
            }
            if self.receiver.is_mid_message() && self.flow == Flow::Going {
                pos += self.receive_rest(round, pos);
            }
        }
        round.count(pos);
        if self.flow == Flow::Stopped {
            pos = available;
        }
        if pos != 0 {
            round.inbound.consume(pos);
        }
        if pos != available && self.flow == Flow::Going {
            // The first part of an FPDU is left.
            round.inbound.set_aside_if_refused();
        }
    }

    /// Takes the features of the Initiator out of its first FPDU, if it tells them; returns the
    /// length of that FPDU, which counts as no message of the peer. Leaves any other FPDU, an
    /// incomplete one too.
    #[inline]
    fn receive_features(&mut self, round: &mut RxRound<'_, '_>) -> usize {
        match self.awaits {
            None => 0,
            Some(ours) => self.receive_features_beside(round, ours),
        }
    }

    #[cold]
    fn receive_features_beside(&mut self, round: &mut RxRound<'_, '_>, ours: Features) -> usize {
        let mut front = [0; FRONT_MAX];
        let Some(fpdu) = Fpdu::at(round.inbound, 0, &mut front) else {
            return 0;
        };
        self.awaits = None;
        let header = front.get(mpa::LENGTH_LEN..).unwrap_or_default();
        let is_damaged = self.crc == Crc::On && !fpdu.crc_is_right(round.inbound);
        match Features::of_message(header, fpdu.ulpdu_len).filter(|_| !is_damaged) {
            Some(theirs) => {
                self.conn.set_features(ours.common(theirs));
                round.fpdus.accepted += 1;
                fpdu.len
            }
            None => 0,
        }
    }

    /// Processes the FPDU at `pos`; returns its length, or [`None`] if it is incomplete or has to
    /// wait.
    fn receive_one(&mut self, round: &mut RxRound<'_, '_>, pos: usize) -> Option<usize> {
        let mut front = [0; FRONT_MAX];
        let fpdu = Fpdu::at(round.inbound, pos, &mut front)?;
        let header = front.get(mpa::LENGTH_LEN..)?;
        round.qp.trace_fpdu_in(header, fpdu.ulpdu_len);
        match self.accept(round, &fpdu, header) {
            Ok(()) => self.accepted(round),
            Err(Stop::Fault(fault)) => self.stop(round, fault, &fpdu, header),
            Err(Stop::Absent) => {
                self.wait_for_memory(round);
                return None;
            }
            Err(Stop::NoReceive) => {
                self.wait_for_receive(round);
                return None;
            }
        }
        Some(fpdu.len)
    }

    /// Terminates the stream for a fault in the FPDU with this header.
    #[cold]
    fn stop(&mut self, round: &mut RxRound<'_, '_>, fault: Fault, fpdu: &Fpdu, header: &[u8]) {
        round.after.insert(After::NotifyCompletions);
        self.flow = Flow::Stopped;
        round.qp.device.stats.rx_faults.inc();
        // An FPDU with a bad CRC is not quoted: its octets may be anything (RDMAP-40).
        let quoted = Quoted::from_segment(header, fpdu.ulpdu_len);
        let after = round.qp.fault(fault, quoted.as_ref());
        round.after.add(after);
    }

    /// Accepts one complete FPDU.
    #[inline]
    fn accept(
        &mut self,
        round: &mut RxRound<'_, '_>,
        fpdu: &Fpdu,
        header: &[u8],
    ) -> Result<(), Stop> {
        if self.crc == Crc::On && !fpdu.crc_is_right(round.inbound) {
            round.qp.device.stats.crc_errors.inc();
            return Err(Stop::Fault(Fault::Crc));
        }
        // Matched by reference, because copying the segment is expensive.
        match &self.receiver.handle_fpdu(header, fpdu.ulpdu_len) {
            Err(fault) => Err(Stop::Fault(*fault)),
            Ok(Segment::Write(segment)) if !self.untouched => {
                self.place_write(round, fpdu, segment)
            }
            Ok(segment) => self.accept_other(round, fpdu, header, segment),
        }
    }

    /// Accepts any segment but a Write, and the first segment of any kind.
    #[inline(never)]
    fn accept_other(
        &mut self,
        round: &mut RxRound<'_, '_>,
        fpdu: &Fpdu,
        header: &[u8],
        segment: &Segment,
    ) -> Result<(), Stop> {
        // An initiator that cannot go on after the Reply sends a Terminate instead (MPA-38, MPA-43,
        // MPA-46).
        let terminate = matches!(segment, Segment::Terminate(_));
        if self.untouched && !self.expect_rtr.is_empty() && !terminate {
            match self.expect_rtr.expect(segment)? {
                // The consumer never sees this message (MPA-42).
                Rtr::Send | Rtr::Write => return Ok(()),
                Rtr::Read => {}
            }
        }
        let stats = &round.qp.device.stats;
        match segment {
            Segment::Empty => Ok(()),
            Segment::Write(segment) => self.place_write(round, fpdu, segment),
            Segment::Send(segment) => {
                round.after.insert(After::NotifyCompletions);
                self.place_send(round, fpdu, segment)
            }
            Segment::ReadResponse(segment) => self.place_response(round, fpdu, segment),
            Segment::ReadRequest(request) => {
                let quoted = Quoted::from_segment(header, fpdu.ulpdu_len);
                self.take_read_request(round.qp, *request, quoted)?;
                stats.rx_read_requests.inc();
                round.after.insert(After::Transmit);
                Ok(())
            }
            Segment::Terminate(terminate) => {
                self.flow = Flow::Stopped;
                let after = round.qp.terminated_by_peer(terminate);
                round.after.add(after);
                Ok(())
            }
            Segment::AtomicRequest(request) => {
                let quoted = Quoted::from_segment(header, fpdu.ulpdu_len);
                self.take_atomic_request(round.qp, *request, quoted)?;
                stats.rx_atomic_requests.inc();
                round.after.insert(After::Transmit);
                Ok(())
            }
            Segment::AtomicResponse(response) => self.take_atomic_response(round, *response),
            // The consumer cannot receive Immediate Data (EXT-4).
            Segment::Immediate(_) if !round.qp.tells_immediate_data() => {
                Err(Stop::Fault(Fault::OpcodeReserved))
            }
            Segment::Immediate(immediate) => {
                round.after.insert(After::NotifyCompletions);
                self.take_immediate(round.qp, *immediate)
            }
        }
    }

    #[inline(always)]
    fn place_write(
        &mut self,
        round: &mut RxRound<'_, '_>,
        fpdu: &Fpdu,
        segment: &TaggedSegment,
    ) -> Result<(), Stop> {
        let payload = segment.payload;
        self.written.add(segment);
        // DDP-41: an empty tagged segment is not checked.
        if payload.len == 0 {
            return Ok(());
        }
        let region = self
            .cache
            .get(&round.qp.regions, segment.stag)
            .ok_or(Fault::TaggedInvalidStag)?;
        let pos = fpdu.payload_pos(payload);
        let access = PeerAccess::open(region, round.qp.stream_id(), Some(round.off));
        let placed = access
            .ok_or(Fault::TaggedInvalidStag)?
            .write(segment, |inside, at| {
                let (memory, len) = (inside.memory(), usize::from(payload.len));
                Ok(memory.copy_from_inbound(at, round.inbound, pos, len)?)
            });
        placed.map_err(|why| self.put_off_write(why, segment))
    }
}

#[kernel::prelude::kunit_tests(riwarp_rx)]
mod rounds {
    use super::*;

    #[test]
    fn answers_are_not_unprompted() {
        let unprompted = |accepted, answers| RxCount { accepted, answers }.has_unprompted();
        // An answer that waits for memory is not accepted yet.
        assert!(!unprompted(0, 0));
        assert!(!unprompted(3, 3));
        assert!(unprompted(3, 2));
    }
}
