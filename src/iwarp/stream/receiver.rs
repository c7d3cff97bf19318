// SPDX-License-Identifier: GPL-2.0

//! The receiver of a stream: what each FPDU that arrives leads to.
//!
//! [`StreamReceiver`] has what a stream remembers of what it has received, and decides; it does no
//! work itself. What it needs of the queue pair it asks of a [`Delivery`]: to place a payload, to
//! take a receive, to complete. What has to happen once the caller has released its locks it adds
//! to a [`Round`].
//!
//! The caller owns the octets. For one FPDU after the other, in the order of the stream:
//!
//! 1. Once all octets of it have arrived, it makes an [`ArrivedFpdu`] of the first ones and of the
//!    verdict of the CRC. While [`StreamReceiver::awaits_features`], it first offers it to
//!    [`StreamReceiver::take_features`].
//! 2. It passes it to [`StreamReceiver::handle_fpdu`], while [`StreamReceiver::is_going`]. What is
//!    [`FpduEnd::Done`] is consumed, what is [`FpduEnd::Kept`] stays the first in the queue.
//! 3. A kept FPDU waits for memory or for a receive. The caller passes it, unchanged, to
//!    [`StreamReceiver::resume`] when the memory is fetched, or to
//!    [`StreamReceiver::retry_receive`] when there may be a receive.
//! 4. Inside a message it may instead look at the next FPDU by [`StreamReceiver::peek_write`],
//!    [`StreamReceiver::peek_send`] or [`StreamReceiver::peek_response`], place its payload under
//!    an access to the memory that stays open over several FPDUs, and then accept it. What it has
//!    not accepted has not happened.
//! 5. Once [`StreamReceiver::is_stopped`], the rest of the stream is discarded (DDP-83, MPA-21).
//!
//! Pure, any context; the lock of the receive side protects it.

#[cfg(CONFIG_KUNIT = "y")]
use crate::ddp::UntaggedHeader;
use crate::{
    actions::{
        After,
        Set, //
    },
    atomic::{
        AtomicRequest,
        AtomicResponse, //
    },
    fault::Fault,
    features::Features,
    flush::{
        answered_as,
        FlushRequest, //
    },
    inject::Operation,
    lifecycle::Event,
    mpa::{
        negotiate::Rtr,
        start::RtrKinds, //
    },
    order::{
        SendPlacement,
        SendProgress, //
    },
    rdmap::{
        Extensions,
        Immediate,
        ReadRequest,
        SendExtra,
        SendKind, //
    },
    readq::{
        ReadPlacement,
        ReadState, //
    },
    receiver::{
        PayloadSpan,
        QueueRoom,
        Queued,
        Receiver,
        Segment,
        SendSegment,
        TaggedSegment, //
    },
    stag::Stag,
    terminate::{
        Quoted,
        Terminate, //
    }, //
};

/// Why a payload was not placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotPlaced<E> {
    /// Its memory is absent and has to be fetched first.
    Absent,
    /// It may not be placed there.
    Refused(E),
}

impl<E> From<E> for NotPlaced<E> {
    #[inline]
    fn from(why: E) -> Self {
        Self::Refused(why)
    }
}

/// Why no receive was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotTaken<S> {
    /// None is posted.
    Empty,
    /// One was taken that cannot be used.
    Unusable(S),
}

/// Why a receive completes with an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceiveFailure<S> {
    /// The message is longer than the buffer, or its segments are not one behind the other.
    Length,
    /// The peer may not invalidate the region that it names.
    Invalidation,
    /// The buffer cannot be used.
    Buffer(S),
}

/// A message that completes a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// A Send of this length in octets.
    Send(SendKind, u32),
    /// Immediate Data, and the length in octets of the Write before it.
    Immediate(Immediate, u32),
}

/// What a receiver asks of its queue pair, for the FPDU in hand.
///
/// No function sleeps or calls the receiver.
pub trait Delivery {
    /// Where the answer to a request of this end is placed.
    type Sink;
    /// Why a work request fails.
    type Status: Copy;

    // Memory. After `Absent` the same call follows once more when the memory is fetched.

    /// Places the payload of a Write, which is not empty, where the peer wants it.
    ///
    /// # Errors
    ///
    /// Those of [`crate::stag::check_tagged`].
    fn place_write(&mut self, segment: &TaggedSegment) -> Result<(), NotPlaced<Fault>>;

    /// Places the 8 octets of an Atomic Write by one store.
    ///
    /// # Errors
    ///
    /// Those of [`crate::stag::check_tagged`] and [`crate::atomic::check_alignment`].
    fn place_atomic_write(&mut self, segment: &TaggedSegment) -> Result<(), NotPlaced<Fault>>;

    /// Checks what a Flush names, carries it out, and queues its answer, a Read of no octets. All
    /// that the peer has sent before is placed. `Absent` if the memory has to be written back
    /// first.
    ///
    /// # Errors
    ///
    /// Those of [`crate::stag::check_flush`].
    fn queue_flush(
        &mut self,
        request: &FlushRequest,
        answer: ReadRequest,
    ) -> Result<(), NotPlaced<Fault>>;

    /// Places a payload, which is not empty, at `offset` of the receive taken last.
    ///
    /// # Errors
    ///
    /// The buffer cannot be used.
    fn place_send(
        &mut self,
        offset: u32,
        payload: PayloadSpan,
    ) -> Result<(), NotPlaced<Self::Status>>;

    /// Places a payload, which is not empty, at `offset` of the sink of a Read.
    ///
    /// # Errors
    ///
    /// The sink cannot be used.
    fn place_response(
        &mut self,
        sink: &Self::Sink,
        offset: u32,
        payload: PayloadSpan,
    ) -> Result<(), NotPlaced<Self::Status>>;

    /// Places the value that the target of an atomic operation had.
    ///
    /// # Errors
    ///
    /// The sink cannot be used.
    fn place_original(
        &mut self,
        sink: &Self::Sink,
        original: u64,
    ) -> Result<(), NotPlaced<Self::Status>>;

    // Receives.

    /// Returns whether a receive is posted for this stream.
    fn has_receive(&self) -> bool;

    /// Takes a receive for a message, whose first segment is `segment` if it is a Send; returns the
    /// length of its buffer in octets.
    ///
    /// # Errors
    ///
    /// See [`NotTaken`].
    fn take_receive(
        &mut self,
        segment: Option<&SendSegment>,
    ) -> Result<u32, NotTaken<Self::Status>>;

    /// Completes the receive taken last.
    ///
    /// # Errors
    ///
    /// [`Fault::Local`] if nobody will ever hear of it.
    fn complete_receive(&mut self, received: &Received) -> Result<(), Fault>;

    /// Completes the receive taken last with an error.
    fn fail_receive(&mut self, why: ReceiveFailure<Self::Status>);

    /// Invalidates a region on behalf of the peer (RDMAP-91..93).
    ///
    /// # Errors
    ///
    /// Those of [`crate::stag::check_invalidate`].
    fn invalidate(&mut self, stag: Stag) -> Result<(), Fault>;

    /// Returns whether a message may wait for its receive.
    fn may_wait_for_receive(&self) -> bool;

    /// Notes that a message begins to wait for its receive.
    fn begin_receive_wait(&mut self);

    /// Returns whether the message that waits for its receive has waited too long.
    fn has_waited_too_long(&mut self) -> bool;

    /// Notes that no message waits for its receive any more.
    fn end_receive_wait(&mut self);

    // Requests of the peer.

    /// Returns whether the peer may have another request.
    fn request_room(&self) -> QueueRoom;

    /// Checks the source of a Read (RDMAP-156), and queues the Read. A Terminate for it would quote
    /// `quoted`.
    ///
    /// # Errors
    ///
    /// Those of [`crate::stag::check_source`].
    fn queue_read(&mut self, request: ReadRequest, quoted: Option<Quoted>) -> Result<(), Fault>;

    /// Checks the target of an atomic operation, and queues the operation, likewise.
    ///
    /// # Errors
    ///
    /// Those of [`crate::stag::check_source`] and [`crate::stag`]'s for the alignment.
    fn queue_atomic(&mut self, request: AtomicRequest, quoted: Option<Quoted>)
        -> Result<(), Fault>;

    // Requests of this end.

    /// Finds the Read that a segment answers; its sink is absent if it asked for no octets.
    ///
    /// # Errors
    ///
    /// Those of [`ReadState::accept`] and [`crate::readq::Outstanding::expect_read`].
    fn read_response(
        &mut self,
        segment: &TaggedSegment,
    ) -> Result<(ReadPlacement, Option<Self::Sink>), Fault>;

    /// Finds the atomic operation that a message answers; returns the value that it brings.
    ///
    /// # Errors
    ///
    /// Those of [`crate::readq::Outstanding::accept_atomic`].
    fn atomic_response(
        &mut self,
        response: Queued<AtomicResponse>,
    ) -> Result<(u64, Self::Sink), Fault>;

    /// Completes the oldest request that waits for its answer, and invalidates what it names.
    fn complete_request(&mut self) -> Set<After>;

    /// Completes it with an error. It stays outstanding until the queue is flushed, so that no
    /// fenced request begins meanwhile.
    fn fail_request(&mut self, status: Self::Status);

    // The stream.

    /// Makes a transition of the queue pair, and returns what follows from it.
    fn apply(&mut self, event: Event) -> Set<After>;

    /// Ends the stream for a fault of the peer's, likewise.
    fn fault(&mut self, fault: Fault, quoted: Option<&Quoted>) -> Set<After>;

    /// Ends the stream because of the peer's Terminate, likewise (RDMAP-97).
    fn terminated(&mut self, terminate: &Terminate) -> Set<After>;
}

/// A complete FPDU.
#[derive(Clone, Copy, Debug)]
pub struct ArrivedFpdu<'a> {
    /// The front of its ULPDU, as [`Receiver::handle_fpdu`] wants it.
    pub header: &'a [u8],
    /// Its ULPDU_Length.
    pub ulpdu_len: u16,
    /// The fault of its framing: a wrong CRC, unless CRCs are not in use.
    pub framing: Result<(), Fault>,
}

impl ArrivedFpdu<'_> {
    #[inline(always)]
    fn quoted(&self) -> Option<Quoted> {
        Quoted::from_segment(self.header, self.ulpdu_len)
    }
}

/// What becomes of an FPDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FpduEnd {
    /// Nothing more: it is accepted, or the stream has ended with it.
    Done,
    /// It waits, and everything behind it.
    Kept,
}

/// What a round of the receiver has done, and what has to happen once its locks are released.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Round {
    /// What has to happen.
    pub after: Set<After>,
    /// Number of FPDUs accepted.
    pub accepted: u64,
    /// Number of those that answer a request of this end.
    pub answers: u64,
}

impl Round {
    /// A round that has done nothing.
    pub const NEW: Self = Self {
        after: Set::NONE,
        accepted: 0,
        answers: 0,
    };

    /// Returns whether the peer sent something other than answers.
    #[inline]
    pub const fn has_unprompted(&self) -> bool {
        self.accepted != self.answers
    }

    /// Counts an FPDU that is accepted by one of the functions that [peek](StreamReceiver) at it.
    #[inline]
    fn accept(&mut self) {
        // NO-OVERFLOW: a stream never has 2^64 FPDUs.
        self.accepted = self.accepted.wrapping_add(1);
    }

    #[inline]
    fn answer(&mut self) {
        // NO-OVERFLOW: likewise.
        self.answers = self.answers.wrapping_add(1);
    }
}

/// Length of an RDMA Write, for the completion of Immediate Data that follows it.
#[derive(Clone, Copy, Debug, Default)]
struct Written {
    octets: u32,
    /// More segments follow.
    open: bool,
}

impl Written {
    #[inline]
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

/// A payload or a Flush that waits for its memory, and what follows once it is placed.
#[derive(Clone, Copy, Debug)]
enum AbsentPayload<S> {
    Write(TaggedSegment),
    AtomicWrite(TaggedSegment),
    Send(SendSegment, SendPlacement),
    Response(ReadPlacement, S, PayloadSpan),
    /// The value that the target of an atomic operation had.
    Original(u64, S),
    /// A Flush, and the header of its answer.
    Flush(FlushRequest, ReadRequest),
}

/// A message that waits for its receive. The headers of its first FPDU are accepted.
#[derive(Clone, Copy, Debug)]
enum WaitingMessage {
    Send(SendSegment),
    Immediate(Queued<Immediate>),
}

/// What the receiver does with the FPDUs that arrive.
#[derive(Clone, Copy, Debug)]
enum Flow<S> {
    /// Interprets them.
    Going,
    /// Leaves them until the memory for the first one is fetched.
    AwaitsMemory(AbsentPayload<S>),
    /// Leaves them until the first one has its receive.
    AwaitsReceive(WaitingMessage),
    /// Discards them, because of a fault or because the peer has ended the stream.
    Stopped,
}

/// Why an FPDU is not accepted. If it waits, the flow says for what.
#[derive(Clone, Copy, Debug)]
enum Stop {
    Absent,
    NoReceive,
    Fault(Fault),
}

impl From<Fault> for Stop {
    #[inline]
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

/// What a message under way is, of which the next FPDU is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnderWay {
    /// A Write.
    Write,
    /// A Send, which fills the receive taken last.
    Send,
    /// The answer to the oldest Read.
    Response,
}

/// The next FPDU of a Write, not accepted yet.
#[derive(Clone, Copy, Debug)]
pub struct NextWrite {
    receiver: Receiver,
    /// What it writes; not empty.
    pub segment: TaggedSegment,
}

/// The next FPDU of a Send, not its last one, not accepted yet.
#[derive(Clone, Copy, Debug)]
pub struct NextSend {
    progress: SendProgress,
    /// Where in the receive its payload goes.
    pub offset: u32,
    /// Its payload; not empty.
    pub payload: PayloadSpan,
}

/// The next FPDU of a Read Response, not its last one, not accepted yet.
#[derive(Clone, Copy, Debug)]
pub struct NextResponse {
    /// The progress of the Read once it is accepted.
    pub read: ReadState,
    /// Where in the sink its payload goes.
    pub offset: u32,
    /// Its payload; not empty.
    pub payload: PayloadSpan,
}

/// What the receiver of a stream is made for.
#[derive(Clone, Copy, Debug)]
pub struct ReceiverParams {
    /// The extensions that both ends support.
    pub extensions: Extensions,
    /// The consumer can receive Immediate Data.
    pub takes_immediate: bool,
    /// What this end can do, if the peer tells in its first FPDU what it can do.
    pub awaits: Option<Features>,
    /// What both ends can do, if the peer has told already.
    pub common: Option<Features>,
    /// Allowed kinds of the first FPDU after that, if the peer promised to send first (MPA-41).
    pub expect_rtr: RtrKinds,
}

/// The receiving half of a stream.
#[derive(Clone, Copy, Debug)]
pub struct StreamReceiver<S> {
    receiver: Receiver,
    /// Progress of the current Send; [`None`] if no Send is in progress.
    progress: Option<SendProgress>,
    /// Length of the buffer that it fills, in octets.
    buffer_len: u32,
    /// Length of the last Write, as long as at most Reads follow it.
    written: Written,
    takes_immediate: bool,
    /// No FPDU has been accepted yet.
    untouched: bool,
    awaits: Option<Features>,
    expect_rtr: RtrKinds,
    flow: Flow<S>,
}

impl<S> StreamReceiver<S> {
    /// Begins a stream.
    pub fn new(params: &ReceiverParams) -> Self {
        Self::with(Receiver::new(params.extensions), params)
    }

    /// Begins a stream whose numbers are those of `receiver`, which may be about to wrap.
    pub fn with(mut receiver: Receiver, params: &ReceiverParams) -> Self {
        if let Some(common) = params.common {
            receiver.take_marked(common.marked);
        }
        Self {
            receiver,
            progress: None,
            buffer_len: 0,
            written: Written {
                octets: 0,
                open: false,
            },
            takes_immediate: params.takes_immediate,
            untouched: true,
            awaits: params.awaits,
            expect_rtr: params.expect_rtr,
            flow: Flow::Going,
        }
    }

    /// Returns whether no FPDU of the peer has been accepted yet.
    pub const fn is_untouched(&self) -> bool {
        self.untouched
    }

    /// Returns whether a Send fills the receive taken last.
    pub const fn fills_receive(&self) -> bool {
        self.progress.is_some()
    }

    /// Returns whether the stream may end here: no message is incomplete (MPA-30).
    pub const fn is_between_messages(&self) -> bool {
        self.is_stopped() || !self.receiver.is_mid_message()
    }

    /// Returns whether it takes the next FPDU.
    #[inline]
    pub const fn is_going(&self) -> bool {
        matches!(self.flow, Flow::Going)
    }

    /// Returns whether the rest of the stream is to be discarded.
    #[inline]
    pub const fn is_stopped(&self) -> bool {
        matches!(self.flow, Flow::Stopped)
    }

    /// Returns whether an FPDU waits for its memory.
    #[inline]
    pub const fn awaits_memory(&self) -> bool {
        matches!(self.flow, Flow::AwaitsMemory(_))
    }

    /// Returns whether an FPDU waits for its receive.
    #[inline]
    pub const fn awaits_receive(&self) -> bool {
        matches!(self.flow, Flow::AwaitsReceive(_))
    }

    /// Returns whether the peer tells its features in its next FPDU.
    #[inline]
    pub const fn awaits_features(&self) -> bool {
        self.awaits.is_some()
    }

    /// Takes the features of the peer out of its first FPDU; returns what both ends can do. The
    /// FPDU then counts as no message. [`None`] if it tells none: then it is one.
    #[cold]
    pub fn take_features(&mut self, round: &mut Round, fpdu: &ArrivedFpdu<'_>) -> Option<Features> {
        let ours = self.awaits.take()?;
        let theirs = Features::of_message(fpdu.header, fpdu.ulpdu_len);
        let theirs = theirs.filter(|_| fpdu.framing.is_ok())?;
        round.accept();
        let common = ours.common(theirs);
        self.receiver.take_marked(common.marked);
        Some(common)
    }

    /// Returns which message the next FPDU continues; [`None`] between two messages, or while an
    /// FPDU waits.
    #[inline]
    pub const fn under_way(&self) -> Option<UnderWay> {
        if !self.receiver.is_mid_message() || !self.is_going() {
            None
        } else if self.written.open {
            Some(UnderWay::Write)
        } else if self.progress.is_some() {
            Some(UnderWay::Send)
        } else {
            Some(UnderWay::Response)
        }
    }

    /// Returns the segment of an FPDU, and the receiver that has accepted it.
    #[inline]
    fn peek(&self, header: &[u8], ulpdu_len: u16) -> Option<(Receiver, Segment)> {
        let mut receiver = self.receiver;
        let segment = receiver.handle_fpdu(header, ulpdu_len).ok()?;
        Some((receiver, segment))
    }

    /// Returns what the message does that the next FPDU begins; [`None`] for one that continues a
    /// message, answers a request of this end, or belongs to the stream itself.
    #[cold]
    pub fn peek_first(&self, header: &[u8], ulpdu_len: u16) -> Option<Operation> {
        if self.untouched && !self.expect_rtr.is_empty() {
            return None;
        }
        match self.peek(header, ulpdu_len)? {
            (_, Segment::Write(_)) if !self.written.open => Some(Operation::Write),
            (_, Segment::AtomicWrite(_)) => Some(Operation::Write),
            (_, Segment::Send(segment)) if segment.first => Some(Operation::Send),
            (_, Segment::Immediate(_)) => Some(Operation::Send),
            (_, Segment::ReadRequest(_) | Segment::Flush(_)) => Some(Operation::Read),
            (_, Segment::AtomicRequest(_)) => Some(Operation::Atomic),
            (
                _,
                Segment::Empty
                | Segment::Write(_)
                | Segment::Send(_)
                | Segment::ReadResponse(_)
                | Segment::AtomicResponse(_)
                | Segment::Terminate(_),
            ) => None,
        }
    }

    /// Discards the rest of the stream, which this end ends.
    #[cold]
    pub fn stop(&mut self) {
        self.flow = Flow::Stopped;
    }

    /// Looks at the next FPDU of a Write, whose CRC is not checked yet. [`None`] for any other, and
    /// what is unusual, which is for [`StreamReceiver::handle_fpdu`].
    #[inline]
    pub fn peek_write(&self, header: &[u8], ulpdu_len: u16) -> Option<NextWrite> {
        match self.peek(header, ulpdu_len)? {
            (receiver, Segment::Write(segment)) if segment.payload.len != 0 => {
                Some(NextWrite { receiver, segment })
            }
            _ => None,
        }
    }

    /// Accepts an FPDU whose payload is placed.
    #[inline]
    pub fn accept_write(&mut self, round: &mut Round, next: &NextWrite) {
        self.receiver = next.receiver;
        self.written.add(&next.segment);
        round.accept();
    }

    /// Looks at the next FPDU of a Send, likewise.
    #[inline]
    pub fn peek_send(&self, header: &[u8], ulpdu_len: u16) -> Option<NextSend> {
        let mut progress = self.progress?;
        // Only the last one changes what the decoder knows.
        let (_, Segment::Send(segment)) = self.peek(header, ulpdu_len)? else {
            return None;
        };
        let payload = segment.payload;
        if segment.last.is_last() || payload.len == 0 {
            return None;
        }
        let SendPlacement { offset, .. } = progress.accept(&segment, self.buffer_len).ok()?;
        Some(NextSend {
            progress,
            offset,
            payload,
        })
    }

    /// Accepts an FPDU whose payload is placed.
    #[inline]
    pub fn accept_send(&mut self, round: &mut Round, next: &NextSend) {
        self.progress = Some(next.progress);
        round.accept();
    }

    /// Looks at the next FPDU of the answer to the oldest Read, whose progress is `read`, likewise.
    #[inline]
    pub fn peek_response(
        &self,
        mut read: ReadState,
        header: &[u8],
        ulpdu_len: u16,
    ) -> Option<NextResponse> {
        // As with a Send.
        let (_, Segment::ReadResponse(segment)) = self.peek(header, ulpdu_len)? else {
            return None;
        };
        let payload = segment.payload;
        if segment.last.is_last() || payload.len == 0 {
            return None;
        }
        let ReadPlacement { offset, .. } = read.accept(&segment).ok()?;
        Some(NextResponse {
            read,
            offset,
            payload,
        })
    }

    /// Accepts an FPDU whose payload is placed. The caller stores the progress of the Read.
    #[inline]
    pub fn accept_response(&mut self, round: &mut Round) {
        round.accept();
        round.answer();
    }
}

impl<S> StreamReceiver<S> {
    /// Handles the next FPDU.
    #[inline]
    pub fn handle_fpdu(
        &mut self,
        delivery: &mut impl Delivery<Sink = S>,
        round: &mut Round,
        fpdu: &ArrivedFpdu<'_>,
    ) -> FpduEnd {
        match self.accept(delivery, round, fpdu) {
            Ok(()) => self.accepted(delivery, round),
            Err(why) => self.not_accepted(delivery, round, fpdu, why),
        }
    }

    /// Goes on with the FPDU that waits for its memory, which is fetched.
    #[cold]
    pub fn resume(
        &mut self,
        delivery: &mut impl Delivery<Sink = S>,
        round: &mut Round,
        fpdu: &ArrivedFpdu<'_>,
    ) -> FpduEnd {
        if !self.awaits_memory() {
            return FpduEnd::Kept;
        }
        let placed = match core::mem::replace(&mut self.flow, Flow::Going) {
            Flow::AwaitsMemory(AbsentPayload::Write(segment)) => {
                self.place_write(delivery, &segment)
            }
            Flow::AwaitsMemory(AbsentPayload::AtomicWrite(segment)) => {
                self.place_atomic_write(delivery, &segment)
            }
            Flow::AwaitsMemory(AbsentPayload::Send(segment, placement)) => {
                self.place_send(delivery, round, &segment, placement)
            }
            Flow::AwaitsMemory(AbsentPayload::Response(placement, sink, payload)) => {
                self.place_response(delivery, round, placement, sink, payload)
            }
            Flow::AwaitsMemory(AbsentPayload::Original(original, sink)) => {
                self.place_original(delivery, round, original, sink)
            }
            Flow::AwaitsMemory(AbsentPayload::Flush(request, answer)) => {
                self.queue_flush(delivery, round, request, answer)
            }
            Flow::Going | Flow::AwaitsReceive(_) | Flow::Stopped => Ok(()),
        };
        match placed {
            Ok(()) => self.accepted(delivery, round),
            Err(why) => self.not_accepted(delivery, round, fpdu, why),
        }
    }

    /// Takes the message that waits for its receive, if there is one now, or if it has waited too
    /// long.
    #[cold]
    pub fn retry_receive(
        &mut self,
        delivery: &mut impl Delivery<Sink = S>,
        round: &mut Round,
        fpdu: &ArrivedFpdu<'_>,
    ) -> FpduEnd {
        let Flow::AwaitsReceive(message) = &self.flow else {
            return FpduEnd::Kept;
        };
        let placed = match *message {
            WaitingMessage::Send(segment) => self.take_send(delivery, round, &segment),
            WaitingMessage::Immediate(queued) => self.take_immediate(delivery, round, queued),
        };
        if matches!(placed, Err(Stop::NoReceive)) && !delivery.has_waited_too_long() {
            return FpduEnd::Kept;
        }
        delivery.end_receive_wait();
        match placed {
            Ok(()) => {
                self.flow = Flow::Going;
                self.accepted(delivery, round)
            }
            Err(Stop::NoReceive) => {
                let why = Stop::Fault(Fault::NoBuffer);
                self.not_accepted(delivery, round, fpdu, why)
            }
            Err(why) => self.not_accepted(delivery, round, fpdu, why),
        }
    }

    /// Counts an FPDU that is done with.
    #[inline]
    fn accepted(&mut self, delivery: &mut impl Delivery<Sink = S>, round: &mut Round) -> FpduEnd {
        round.accept();
        self.validated(delivery, round);
        FpduEnd::Done
    }

    /// Notes that an FPDU is received and validated (MPA-9).
    #[inline]
    fn validated(&mut self, delivery: &mut impl Delivery<Sink = S>, round: &mut Round) {
        if self.untouched {
            self.untouched = false;
            round.after.add(delivery.apply(Event::FirstFpdu));
        }
    }

    /// Has the FPDU wait, or ends the stream.
    #[cold]
    fn not_accepted(
        &mut self,
        delivery: &mut impl Delivery<Sink = S>,
        round: &mut Round,
        fpdu: &ArrivedFpdu<'_>,
        why: Stop,
    ) -> FpduEnd {
        match why {
            Stop::Absent => {
                round.after.insert(After::FetchIn);
                FpduEnd::Kept
            }
            Stop::NoReceive => {
                self.validated(delivery, round);
                delivery.begin_receive_wait();
                round.after.insert(After::AwaitReceive);
                FpduEnd::Kept
            }
            Stop::Fault(fault) => {
                self.flow = Flow::Stopped;
                // A request may have completed with an error.
                round.after.insert(After::NotifyCompletions);
                let after = delivery.fault(fault, fpdu.quoted().as_ref());
                round.after.add(after);
                FpduEnd::Done
            }
        }
    }

    #[inline]
    fn accept(
        &mut self,
        delivery: &mut impl Delivery<Sink = S>,
        round: &mut Round,
        fpdu: &ArrivedFpdu<'_>,
    ) -> Result<(), Stop> {
        fpdu.framing?;
        // Matched by reference, because copying the segment is expensive.
        match &self.receiver.handle_fpdu(fpdu.header, fpdu.ulpdu_len) {
            Err(fault) => Err(Stop::Fault(*fault)),
            Ok(Segment::Write(segment)) if !self.untouched => self.take_write(delivery, segment),
            Ok(segment) => self.accept_other(delivery, round, fpdu, segment),
        }
    }

    /// Accepts any segment but a Write, and the first segment of any kind.
    #[inline(never)]
    fn accept_other(
        &mut self,
        delivery: &mut impl Delivery<Sink = S>,
        round: &mut Round,
        fpdu: &ArrivedFpdu<'_>,
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
        match segment {
            Segment::Empty => Ok(()),
            Segment::Write(segment) => self.take_write(delivery, segment),
            Segment::AtomicWrite(segment) => self.take_atomic_write(delivery, segment),
            Segment::Send(segment) => self.take_send(delivery, round, segment),
            Segment::ReadResponse(segment) => {
                let (placement, sink) = delivery.read_response(segment)?;
                match sink {
                    Some(sink) => {
                        self.place_response(delivery, round, placement, sink, segment.payload)
                    }
                    None if segment.payload.len != 0 => Err(Stop::Fault(Fault::LocalPlacement)),
                    None => {
                        Self::answered(delivery, round, placement.complete);
                        Ok(())
                    }
                }
            }
            Segment::ReadRequest(request) => {
                let request = request.admit(delivery.request_room())?;
                delivery.queue_read(request, fpdu.quoted())?;
                round.after.insert(After::Transmit);
                Ok(())
            }
            Segment::Flush(header) => self.take_flush(delivery, round, *header),
            Segment::Terminate(terminate) => {
                self.flow = Flow::Stopped;
                round.after.add(delivery.terminated(terminate));
                Ok(())
            }
            Segment::AtomicRequest(request) => {
                let request = request.admit(delivery.request_room())?;
                delivery.queue_atomic(request, fpdu.quoted())?;
                round.after.insert(After::Transmit);
                Ok(())
            }
            Segment::AtomicResponse(response) => {
                let (original, sink) = delivery.atomic_response(*response)?;
                self.place_original(delivery, round, original, sink)
            }
            // The consumer cannot receive Immediate Data (EXT-4).
            Segment::Immediate(_) if !self.takes_immediate => {
                Err(Stop::Fault(Fault::OpcodeReserved))
            }
            Segment::Immediate(immediate) => self.take_immediate(delivery, round, *immediate),
        }
    }

    #[cold]
    fn take_atomic_write(
        &mut self,
        delivery: &mut impl Delivery<Sink = S>,
        segment: &TaggedSegment,
    ) -> Result<(), Stop> {
        self.written = Written::default();
        self.place_atomic_write(delivery, segment)
    }

    #[cold]
    fn take_flush(
        &mut self,
        delivery: &mut impl Delivery<Sink = S>,
        round: &mut Round,
        header: Queued<ReadRequest>,
    ) -> Result<(), Stop> {
        let header = header.admit(delivery.request_room())?;
        let request = FlushRequest::of_request(&header)?;
        self.queue_flush(delivery, round, request, answered_as(&header))
    }

    #[cold]
    fn queue_flush(
        &mut self,
        delivery: &mut impl Delivery<Sink = S>,
        round: &mut Round,
        request: FlushRequest,
        answer: ReadRequest,
    ) -> Result<(), Stop> {
        match delivery.queue_flush(&request, answer) {
            Ok(()) => {
                round.after.insert(After::Transmit);
                Ok(())
            }
            Err(NotPlaced::Absent) => self.absent(AbsentPayload::Flush(request, answer)),
            Err(NotPlaced::Refused(fault)) => Err(Stop::Fault(fault)),
        }
    }

    #[inline]
    fn take_write(
        &mut self,
        delivery: &mut impl Delivery<Sink = S>,
        segment: &TaggedSegment,
    ) -> Result<(), Stop> {
        self.written.add(segment);
        // DDP-41: an empty tagged segment is not checked.
        if segment.payload.len == 0 {
            return Ok(());
        }
        self.place_write(delivery, segment)
    }

    #[inline]
    fn take_send(
        &mut self,
        delivery: &mut impl Delivery<Sink = S>,
        round: &mut Round,
        segment: &SendSegment,
    ) -> Result<(), Stop> {
        if segment.first {
            self.written = Written::default();
            match delivery.take_receive(Some(segment)) {
                Ok(len) => (self.buffer_len, self.progress) = (len, Some(SendProgress::new())),
                Err(why) => {
                    return self.no_receive(delivery, WaitingMessage::Send(*segment), why);
                }
            }
        }
        // The decoder lets no later segment pass unless a Send has begun and not ended.
        let progress = self.progress.as_mut().ok_or(Fault::Local)?;
        match progress.accept(segment, self.buffer_len) {
            Ok(placement) => self.place_send(delivery, round, segment, placement),
            Err(fault) => self.fail_send(delivery, ReceiveFailure::Length, fault),
        }
    }

    /// Takes Immediate Data, which uses none of the buffer of its receive (EXT-66).
    fn take_immediate(
        &mut self,
        delivery: &mut impl Delivery<Sink = S>,
        round: &mut Round,
        queued: Queued<Immediate>,
    ) -> Result<(), Stop> {
        let waiting = WaitingMessage::Immediate(queued);
        let has_receive = delivery.has_receive();
        if !has_receive && queued.admit(QueueRoom::Free).is_ok() {
            return self.no_receive(delivery, waiting, NotTaken::Empty);
        }
        let immediate = queued.admit(if has_receive {
            QueueRoom::Free
        } else {
            QueueRoom::Full
        })?;
        match delivery.take_receive(None) {
            Ok(_) => {
                let received = Received::Immediate(immediate, self.written.take());
                round.after.insert(After::NotifyCompletions);
                Ok(delivery.complete_receive(&received)?)
            }
            Err(why) => self.no_receive(delivery, waiting, why),
        }
    }

    /// Has a message wait for its receive, unless it may not.
    #[cold]
    fn no_receive<D: Delivery<Sink = S>>(
        &mut self,
        delivery: &mut D,
        message: WaitingMessage,
        why: NotTaken<D::Status>,
    ) -> Result<(), Stop> {
        match why {
            NotTaken::Unusable(status) => {
                let why = ReceiveFailure::Buffer(status);
                self.fail_send(delivery, why, Fault::LocalPlacement)
            }
            NotTaken::Empty if delivery.may_wait_for_receive() => {
                self.flow = Flow::AwaitsReceive(message);
                Err(Stop::NoReceive)
            }
            NotTaken::Empty => Err(Stop::Fault(Fault::NoBuffer)),
        }
    }

    /// Completes the receive taken last with an error.
    #[cold]
    fn fail_send<D: Delivery<Sink = S>>(
        &mut self,
        delivery: &mut D,
        why: ReceiveFailure<D::Status>,
        fault: Fault,
    ) -> Result<(), Stop> {
        self.progress = None;
        delivery.fail_receive(why);
        Err(Stop::Fault(fault))
    }

    #[inline]
    fn place_write(
        &mut self,
        delivery: &mut impl Delivery<Sink = S>,
        segment: &TaggedSegment,
    ) -> Result<(), Stop> {
        match delivery.place_write(segment) {
            Ok(()) => Ok(()),
            Err(NotPlaced::Absent) => self.absent(AbsentPayload::Write(*segment)),
            Err(NotPlaced::Refused(fault)) => Err(Stop::Fault(fault)),
        }
    }

    fn place_atomic_write(
        &mut self,
        delivery: &mut impl Delivery<Sink = S>,
        segment: &TaggedSegment,
    ) -> Result<(), Stop> {
        match delivery.place_atomic_write(segment) {
            Ok(()) => Ok(()),
            Err(NotPlaced::Absent) => self.absent(AbsentPayload::AtomicWrite(*segment)),
            Err(NotPlaced::Refused(fault)) => Err(Stop::Fault(fault)),
        }
    }

    #[inline]
    fn place_send(
        &mut self,
        delivery: &mut impl Delivery<Sink = S>,
        round: &mut Round,
        segment: &SendSegment,
        placement: SendPlacement,
    ) -> Result<(), Stop> {
        if segment.payload.len != 0 {
            match delivery.place_send(placement.offset, segment.payload) {
                Ok(()) => {}
                Err(NotPlaced::Absent) => {
                    return self.absent(AbsentPayload::Send(*segment, placement))
                }
                Err(NotPlaced::Refused(status)) => {
                    let why = ReceiveFailure::Buffer(status);
                    return self.fail_send(delivery, why, Fault::LocalPlacement);
                }
            }
        }
        let Some(len) = placement.delivered else {
            return Ok(());
        };
        if let SendExtra::Invalidate(stag) = segment.kind.extra {
            if let Err(fault) = delivery.invalidate(stag) {
                return self.fail_send(delivery, ReceiveFailure::Invalidation, fault);
            }
        }
        self.progress = None;
        round.after.insert(After::NotifyCompletions);
        Ok(delivery.complete_receive(&Received::Send(segment.kind, len))?)
    }

    #[inline(always)]
    fn place_response(
        &mut self,
        delivery: &mut impl Delivery<Sink = S>,
        round: &mut Round,
        placement: ReadPlacement,
        sink: S,
        payload: PayloadSpan,
    ) -> Result<(), Stop> {
        if payload.len != 0 {
            match delivery.place_response(&sink, placement.offset, payload) {
                Ok(()) => {}
                Err(NotPlaced::Absent) => {
                    return self.absent(AbsentPayload::Response(placement, sink, payload))
                }
                Err(NotPlaced::Refused(status)) => return Self::refused(delivery, status),
            }
        }
        Self::answered(delivery, round, placement.complete);
        Ok(())
    }

    fn place_original(
        &mut self,
        delivery: &mut impl Delivery<Sink = S>,
        round: &mut Round,
        original: u64,
        sink: S,
    ) -> Result<(), Stop> {
        match delivery.place_original(&sink, original) {
            Ok(()) => {
                Self::answered(delivery, round, true);
                Ok(())
            }
            Err(NotPlaced::Absent) => self.absent(AbsentPayload::Original(original, sink)),
            Err(NotPlaced::Refused(status)) => Self::refused(delivery, status),
        }
    }

    /// Has an FPDU wait for its memory.
    #[cold]
    fn absent(&mut self, step: AbsentPayload<S>) -> Result<(), Stop> {
        self.flow = Flow::AwaitsMemory(step);
        Err(Stop::Absent)
    }

    /// Ends the oldest request, whose sink cannot be used.
    #[cold]
    fn refused<D: Delivery<Sink = S>>(delivery: &mut D, status: D::Status) -> Result<(), Stop> {
        delivery.fail_request(status);
        Err(Stop::Fault(Fault::LocalPlacement))
    }

    /// Counts an FPDU that answers the oldest request; the last one completes it.
    #[inline]
    fn answered(delivery: &mut impl Delivery<Sink = S>, round: &mut Round, is_last: bool) {
        round.answer();
        if is_last {
            round.after.insert(After::NotifyCompletions);
            round.after.add(delivery.complete_request());
            // The transmit task may wait for it: with a fenced request, one beyond ORD, or the
            // close.
            round.after.add(delivery.apply(Event::ReadAnswered));
        }
    }
}

/// For the driver's tests.
#[cfg(CONFIG_KUNIT = "y")]
impl<S> StreamReceiver<S> {
    /// Handles the front of a Send without payload, of one segment, as if it had one whose memory
    /// is absent. Returns the segment, for which the caller takes a receive.
    pub fn have_send_absent(&mut self, header: &[u8]) -> Option<SendSegment> {
        let len = u16::try_from(UntaggedHeader::LEN).ok()?;
        let (receiver, Segment::Send(segment)) = self.peek(header, len)? else {
            return None;
        };
        let mut progress = SendProgress::new();
        let placement = progress.accept(&segment, 0).ok()?;
        (self.receiver, self.progress) = (receiver, Some(progress));
        self.flow = Flow::AwaitsMemory(AbsentPayload::Send(segment, placement));
        Some(segment)
    }
}
