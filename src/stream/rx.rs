// SPDX-License-Identifier: GPL-2.0

//! The receiver: from octets in TCP's receive queue to memory and completions.
//!
//! TCP calls [`Qp::data_ready`] with a view of the octets that have arrived in order. A round walks
//! over complete FPDUs only; an incomplete one stays in TCP, and so does what the byte budget
//! leaves over. For each FPDU, in this order: the CRC over all of it (MPA-20), the headers
//! ([`iwarp::receiver`]), the access checks, the copy from the socket buffers into the consumer's
//! pages. The round ends with one `consume`, one notification per completion queue, and, if there
//! is something to answer, a round of the transmitter ([`Qp::answer`]).
//!
//! After a fault nothing more is interpreted (DDP-83, MPA-21): the rest of the stream is taken from
//! TCP and thrown away, so that the Terminate is not lost to a reset.
//!
//! Context: softirq, or process with the socket locked. Nothing sleeps; the walk itself allocates
//! nothing.

use iwarp::{
    fault::{
        ErrorClass,
        Fault, //
    },
    lifecycle::FirstFailure,
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
    stag::{
        check_tagged,
        Access, //
    },
    terminate::{
        Quoted,
        Terminate, //
    }, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};
use kernel_ext::{
    mm::mem_map::Memory,
    net::Inbound,
    sync::BhOff, //
};

use crate::{
    cm::conn::{
        Conn,
        StreamParams, //
    },
    mem::{
        mr::Region,
        sge::RegionCache, //
    },
    qp::Qp, //
};

pub(crate) mod answers;
pub(crate) mod fpdu;
pub(crate) mod recv;
mod requests;
#[cfg(CONFIG_KUNIT = "y")]
mod tests;

use crate::odp::rx::Deferred;
use fpdu::{
    Fpdu,
    FRONT_MAX, //
};

use recv::Incoming;

/// Octets that one round takes before it lets others run.
const BUDGET: usize = 1024 * 1024;

/// The same in FPDUs, which may have but 8 octets.
const BUDGET_FPDUS: u64 = 4096;

/// The receiver's state, under the queue pair's receive lock.
#[derive(Default)]
pub(crate) struct Rx {
    pub(crate) stream: Option<KBox<RxStream>>,
}

/// What there is while a stream is attached.
pub(crate) struct RxStream {
    pub(crate) conn: Arc<Conn>,
    pub(crate) receiver: Receiver,
    pub(crate) crc: Crc,
    /// The receive work request that was taken last.
    pub(crate) incoming: Incoming,
    /// Octets of the RDMA Write that came last, as far as nothing but Reads came behind it.
    pub(crate) written: Written,
    pub(crate) cache: RegionCache,
    /// No FPDU has been accepted yet.
    pub(crate) untouched: bool,
    /// What the first FPDU has to be, if the peer promised to be the first to send (MPA-41).
    pub(crate) expect_rtr: RtrKinds,
    pub(crate) flow: Flow,
    /// The FPDU whose memory is not there, if `flow` is [`Flow::Waiting`].
    pub(crate) deferred: Option<Deferred>,
}

/// What is done with what comes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flow {
    /// It is interpreted.
    Going,
    /// It stays in TCP until memory is there for the FPDU in front.
    Waiting,
    /// A fault was found or the peer has ended the stream: it is thrown away.
    Stopped,
}

/// Why an FPDU is not accepted.
#[derive(Clone, Copy)]
pub(crate) enum Stop {
    /// The memory for it is not there.
    Absent,
    /// It is at fault.
    Fault(Fault),
}

impl From<Fault> for Stop {
    #[inline]
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

/// How much an RDMA Write brings, for the completion of Immediate Data behind it.
#[derive(Default)]
pub(crate) struct Written {
    pub(crate) octets: u32,
    /// More segments follow.
    pub(crate) open: bool,
}

impl Written {
    fn add(&mut self, segment: &TaggedSegment) {
        if !self.open {
            self.octets = 0;
        }
        self.octets = self.octets.saturating_add(segment.payload.len.into());
        self.open = !segment.last.is_last();
    }

    fn take(&mut self) -> u32 {
        core::mem::take(self).octets
    }
}

/// One round of the receiver: what it works with, and what it leaves to be done.
pub(crate) struct RxRound<'a, 'b> {
    pub(crate) qp: &'a Arc<Qp>,
    pub(crate) inbound: &'a mut Inbound<'b>,
    pub(crate) off: BhOff<'a>,
    pub(crate) outcome: RxOutcome,
}

/// What a round leaves to be done when the lock is given back.
#[derive(Default)]
pub(crate) struct RxOutcome {
    pub(crate) kick: bool,
    /// Something was completed.
    pub(crate) completed: bool,
    pub(crate) first_fpdu: Option<Arc<Conn>>,
    pub(crate) again: bool,
    /// FPDUs that were accepted.
    pub(crate) fpdus: u64,
    /// Those of them that answer a request of our own.
    pub(crate) answers: u64,
}

impl RxOutcome {
    /// Whether anything came that the peer sent by itself.
    fn has_unprompted(&self) -> bool {
        self.fpdus != self.answers
    }
}

impl RxStream {
    /// All is done for an FPDU.
    #[inline(always)]
    pub(crate) fn accepted(&mut self, outcome: &mut RxOutcome) {
        outcome.fpdus += 1;
        if self.untouched {
            self.untouched = false;
            outcome.first_fpdu = Some(self.conn.clone());
        }
    }
}

impl Qp {
    /// Hands the stream to the receiver, which understands `extensions`.
    ///
    /// Context: process.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn start_rx(
        &self,
        conn: &Arc<Conn>,
        params: &StreamParams,
        extensions: Extensions,
    ) -> Result {
        let stream = RxStream {
            conn: conn.clone(),
            receiver: Receiver::new(extensions),
            crc: params.crc,
            incoming: Incoming::default(),
            written: Written::default(),
            cache: RegionCache::default(),
            untouched: true,
            expect_rtr: params.expect_rtr,
            flow: Flow::Going,
            deferred: None,
        };
        let stream = KBox::new(stream, GFP_KERNEL_ACCOUNT)?;
        let _drop_outside_lock = self.rx.lock().stream.replace(stream);
        Ok(())
    }

    /// Takes the stream from the receiver; returns the cookie of the receive work request that it
    /// was filling.
    ///
    /// Context: process.
    pub(crate) fn stop_rx(&self) -> Option<u64> {
        let stream = self.rx.lock().stream.take()?;
        stream.incoming.begun()
    }

    /// Works off what has arrived.
    ///
    /// Context: softirq, or process with the socket locked.
    pub(crate) fn data_ready(self: &Arc<Self>, inbound: &mut Inbound<'_>, off: BhOff<'_>) {
        let mut round = RxRound::new(self, inbound, off);
        match &mut off.lock(&self.rx).stream {
            Some(stream) => stream.receive(&mut round),
            // Nobody is interested any more.
            None => round.inbound.consume(round.inbound.available()),
        }
        round.end();
    }

    /// Goes on with what has arrived, if the stream is that of `conn`. Ignores data that arrives
    /// without a current stream.
    ///
    /// Context: as [`Qp::data_ready`].
    pub(crate) fn more_from(
        self: &Arc<Self>,
        conn: &Arc<Conn>,
        inbound: &mut Inbound<'_>,
        off: BhOff<'_>,
    ) {
        let mut round = RxRound::new(self, inbound, off);
        {
            let mut rx = off.lock(&self.rx);
            let stream = rx.stream.as_mut();
            if let Some(stream) = stream.filter(|stream| Arc::ptr_eq(&stream.conn, conn)) {
                stream.receive(&mut round);
            }
        }
        round.end();
    }

    /// Whether the stream may end here: no message has begun that has not ended (MPA-30).
    pub(crate) fn is_between_messages(&self) -> bool {
        match &self.rx.lock().stream {
            Some(stream) => stream.flow == Flow::Stopped || !stream.receiver.is_mid_message(),
            None => true,
        }
    }

    /// The peer has ended the stream (RDMAP-97, -133).
    fn terminated_by_peer(self: &Arc<Self>, terminate: &Terminate) {
        self.device().stats.terminates_received.inc();
        self.set_peer_terminate(terminate.code);
        self.peer_terminated(failure_of(terminate));
    }
}

impl<'a, 'b> RxRound<'a, 'b> {
    #[inline(always)]
    pub(crate) fn new(qp: &'a Arc<Qp>, inbound: &'a mut Inbound<'b>, off: BhOff<'a>) -> Self {
        Self {
            qp,
            inbound,
            off,
            outcome: RxOutcome::default(),
        }
    }

    /// Counts what was accepted, and the octets that it had.
    #[inline(always)]
    pub(crate) fn count(&self, octets: usize) {
        if self.outcome.has_unprompted() {
            self.qp.rx_events.count();
        }
        let stats = &self.qp.device().stats;
        stats.rx_fpdus.add(self.outcome.fpdus);
        stats.rx_bytes.add(octets as u64);
    }

    /// Does what the round has left to be done. The receiver's lock is not held any more.
    #[inline(always)]
    pub(crate) fn end(self) {
        let Self { qp, outcome, .. } = self;
        if let Some(conn) = outcome.first_fpdu {
            qp.allow_sending();
            conn.first_fpdu();
        }
        if outcome.completed {
            qp.notify();
        }
        if outcome.kick {
            qp.answer(self.inbound);
        }
        if outcome.again {
            qp.enqueue_rx();
        }
    }
}

impl RxStream {
    /// Works off complete FPDUs, as long as the budget lasts.
    pub(crate) fn receive(&mut self, round: &mut RxRound<'_, '_>) {
        let available = round.inbound.available();
        let mut pos = 0;
        // Without a length there is nothing to look at: the usual end.
        while self.flow == Flow::Going && available - pos >= mpa::LENGTH_LEN {
            if pos >= BUDGET || round.outcome.fpdus >= BUDGET_FPDUS {
                round.qp.device().stats.rx_budget_ends.inc();
                round.outcome.again = true;
                break;
            }
            match self.receive_one(round, pos) {
                Some(len) => pos += len,
                None => break,
            }
        }
        round.count(pos);
        if self.flow == Flow::Stopped {
            pos = available;
        }
        if pos != 0 {
            round.inbound.consume(pos);
        }
    }

    /// Works off the FPDU at `pos`; returns its length, or [`None`] if it is not complete or has to
    /// wait.
    pub(crate) fn receive_one(&mut self, round: &mut RxRound<'_, '_>, pos: usize) -> Option<usize> {
        let mut front = [0; FRONT_MAX];
        let fpdu = Fpdu::at(round.inbound, pos, &mut front)?;
        let header = front.get(mpa::LENGTH_LEN..)?;
        match self.accept(round, &fpdu, header) {
            Ok(()) => self.accepted(&mut round.outcome),
            Err(Stop::Fault(fault)) => self.stop(round, fault, &fpdu, header),
            Err(Stop::Absent) => {
                self.wait_for_memory(round.qp);
                return None;
            }
        }
        Some(fpdu.len)
    }

    /// Ends the stream for a fault in the FPDU with this header.
    #[cold]
    pub(crate) fn stop(
        &mut self,
        round: &mut RxRound<'_, '_>,
        fault: Fault,
        fpdu: &Fpdu,
        header: &[u8],
    ) {
        round.outcome.completed = true;
        self.flow = Flow::Stopped;
        round.qp.device().stats.rx_faults.inc();
        // What arrived with a bad CRC is not quoted: it may be anything (RDMAP-40).
        let quoted = Quoted::from_segment(header, fpdu.ulpdu_len);
        round.qp.fault(fault, quoted.as_ref());
    }

    /// Accepts one complete FPDU.
    #[inline]
    pub(crate) fn accept(
        &mut self,
        round: &mut RxRound<'_, '_>,
        fpdu: &Fpdu,
        header: &[u8],
    ) -> Result<(), Stop> {
        if self.crc == Crc::On && !fpdu.crc_is_right(round.inbound) {
            round.qp.device().stats.crc_errors.inc();
            return Err(Stop::Fault(Fault::Crc));
        }
        // Looked at where it is: a copy of it would cost as much as the rest.
        match &self.receiver.handle_fpdu(header, fpdu.ulpdu_len) {
            Err(fault) => Err(Stop::Fault(*fault)),
            Ok(Segment::Write(segment)) if !self.untouched => {
                self.place_write(round, fpdu, segment)
            }
            Ok(segment) => self.accept_other(round, fpdu, header, segment),
        }
    }

    /// Accepts what is no Write, or the first of all.
    #[inline(never)]
    fn accept_other(
        &mut self,
        round: &mut RxRound<'_, '_>,
        fpdu: &Fpdu,
        header: &[u8],
        segment: &Segment,
    ) -> Result<(), Stop> {
        if self.untouched && !self.expect_rtr.is_empty() {
            match self.expect_rtr.expect(segment)? {
                // Its consumer never sees it (MPA-42).
                Rtr::Send | Rtr::Write => return Ok(()),
                Rtr::Read => {}
            }
        }
        let stats = &round.qp.device().stats;
        match segment {
            Segment::Empty => Ok(()),
            Segment::Write(segment) => self.place_write(round, fpdu, segment),
            Segment::Send(segment) => {
                round.outcome.completed = true;
                self.place_send(round, fpdu, segment)
            }
            Segment::ReadResponse(segment) => self.place_response(round, fpdu, segment),
            Segment::ReadRequest(request) => {
                let quoted = Quoted::from_segment(header, fpdu.ulpdu_len);
                self.take_read_request(round.qp, *request, quoted)?;
                stats.rx_read_requests.inc();
                round.outcome.kick = true;
                Ok(())
            }
            Segment::Terminate(terminate) => {
                self.flow = Flow::Stopped;
                round.qp.terminated_by_peer(terminate);
                Ok(())
            }
            Segment::AtomicRequest(request) => {
                let quoted = Quoted::from_segment(header, fpdu.ulpdu_len);
                self.take_atomic_request(round.qp, *request, quoted)?;
                stats.rx_atomic_requests.inc();
                round.outcome.kick = true;
                Ok(())
            }
            Segment::AtomicResponse(response) => self.take_atomic_response(round, *response),
            // No consumer could be told of it (EXT-4).
            Segment::Immediate(_) if !round.qp.tells_immediate_data() => {
                Err(Stop::Fault(Fault::OpcodeReserved))
            }
            Segment::Immediate(immediate) => {
                round.outcome.completed = true;
                Ok(self.take_immediate(round.qp, *immediate)?)
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
        // DDP-41: nothing of an empty tagged segment is checked.
        if payload.len == 0 {
            return Ok(());
        }
        let region = self
            .cache
            .get(round.qp.device(), segment.stag)
            .ok_or(Fault::TaggedInvalidStag)?;
        let pos = fpdu.payload_pos(payload);
        let placed = round.inside_target(region, segment, |memory, at, inbound| {
            memory.copy_from_inbound(at, inbound, pos, usize::from(payload.len))
        })?;
        match placed {
            Ok(()) => Ok(()),
            Err(error) => Err(self.put_off_write(error, segment)),
        }
    }
}

impl<'b> RxRound<'_, 'b> {
    /// Checks the target of a segment of a Write, and calls `place(memory, offset, inbound)` inside
    /// of it.
    #[inline(always)]
    pub(crate) fn inside_target(
        &mut self,
        region: &Region,
        segment: &TaggedSegment,
        place: impl FnOnce(&Memory, u64, &mut Inbound<'b>) -> Result,
    ) -> Result<Result, Fault> {
        let inside = region
            .try_access_bh_off(self.off)
            .ok_or(Fault::TaggedInvalidStag)?;
        let view = region.view_inside(&inside, self.qp.stream_id());
        let at = check_tagged(
            Some(&view),
            segment.stag,
            segment.to,
            u32::from(segment.payload.len),
            Access::REMOTE_WRITE,
        )?;
        Ok(place(inside.memory(), at, self.inbound))
    }
}

/// How the request that the peer refuses ends.
fn failure_of(terminate: &Terminate) -> FirstFailure {
    match terminate.code.class() {
        Some(ErrorClass::RemoteProtection | ErrorClass::TaggedBuffer) => FirstFailure::RemoteAccess,
        Some(ErrorClass::RemoteOperation | ErrorClass::UntaggedBuffer) => {
            FirstFailure::RemoteInvalidRequest
        }
        Some(ErrorClass::RdmapLocal | ErrorClass::DdpLocal | ErrorClass::Mpa) | None => {
            FirstFailure::RemoteOperation
        }
    }
}

#[kernel::prelude::kunit_tests(riwarp_rx)]
mod rounds {
    use super::*;
    use iwarp::fault::ErrorCode;

    #[test]
    fn answers_are_not_unprompted() {
        let unprompted = |fpdus, answers| {
            let outcome = RxOutcome {
                fpdus,
                answers,
                ..RxOutcome::default()
            };
            outcome.has_unprompted()
        };
        // An answer that had to wait for memory was not accepted yet.
        assert!(!unprompted(0, 0));
        assert!(!unprompted(3, 3));
        assert!(unprompted(3, 2));
    }

    #[test]
    fn a_terminate_decides_how_the_request_ends() {
        let status = |layer, etype| {
            failure_of(&Terminate {
                code: ErrorCode {
                    layer,
                    etype,
                    code: 0,
                },
                quoted: None,
            })
        };
        assert_eq!(status(0, 1), FirstFailure::RemoteAccess);
        assert_eq!(status(1, 1), FirstFailure::RemoteAccess);
        assert_eq!(status(0, 2), FirstFailure::RemoteInvalidRequest);
        assert_eq!(status(1, 2), FirstFailure::RemoteInvalidRequest);
        for (layer, etype) in [(0, 0), (1, 0), (2, 0), (2, 2), (15, 15)] {
            assert_eq!(status(layer, etype), FirstFailure::RemoteOperation);
        }
    }
}
