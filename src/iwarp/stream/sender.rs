// SPDX-License-Identifier: GPL-2.0

//! The sender of a stream: which message is sent next, and what its end leads to.
//!
//! The caller owns the requests and the octets. Whenever there is room for an FPDU:
//!
//! 1. Unless [`StreamSender::current`] has a message, it makes one: the message that begins the
//!    stream ([`StreamSender::begin_stream`]), if there is one; else it asks both sides, first the
//!    one whose turn it is ([`StreamSender::take_turn`]), for a request of the peer
//!    ([`StreamSender::answer_read`], [`StreamSender::answer_atomic`]) or of the consumer
//!    ([`StreamSender::begin_send`], [`StreamSender::begin_write`],
//!    [`StreamSender::begin_immediate`], [`StreamSender::begin_read`],
//!    [`StreamSender::begin_flush`], [`StreamSender::begin_atomic`],
//!    [`StreamSender::begin_atomic_write`]).
//! 2. It cuts an FPDU of it ([`Outgoing::segmenter`]).
//! 3. If that was the last one, [`StreamSender::end_message`] says what follows.
//!
//! Pure; only the running transmit task has it.
//!
//! RFC 5040, section 5; RFC 5041, section 5; RFC 7306, sections 5 and 6.

use crate::{
    atomic::{
        AtomicOperation,
        AtomicRequest,
        AtomicResponse, //
    },
    ddp::Msn,
    features::Features,
    flush::FlushRequest,
    mpa::negotiate::Rtr,
    rdmap::{
        Extensions,
        Immediate,
        ReadRequest,
        SendEvent,
        SendExtra,
        SendKind, //
    },
    receiver::ATOMIC_WRITE_LEN,
    segment::{
        Message,
        Segmenter, //
    },
    stag::{
        Stag,
        TaggedOffset, //
    },
    terminate::Terminate, //
};

/// What the end of a message leads to, for the request in the slot `S` of the send queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Job<S> {
    /// The request completes once TCP has accepted the octets.
    Complete(S),
    /// A Read of zero octets follows, whose Response completes the request: the peer answers it
    /// after it has placed this message (RDMAP-114).
    Confirm(S),
    /// The peer's Response completes the request.
    AwaitResponse(S),
    /// A Read or atomic operation of the peer is answered.
    Answer,
    /// Nothing.
    Nothing,
}

impl<S: Copy> Job<S> {
    /// Returns the request that the message belongs to.
    #[inline]
    pub fn slot(self) -> Option<S> {
        match self {
            Self::Complete(slot) | Self::Confirm(slot) | Self::AwaitResponse(slot) => Some(slot),
            Self::Answer | Self::Nothing => None,
        }
    }
}

/// A message being sent.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<S> {
    /// What is left of it.
    pub segmenter: Segmenter,
    /// What its end leads to.
    pub job: Job<S>,
    /// Immediate Data that follows this message; its end completes the job instead.
    behind: Option<Immediate>,
}

impl<S> Outgoing<S> {
    /// Returns a message without payload.
    #[inline]
    const fn bare(message: Message, job: Job<S>) -> Self {
        Self {
            segmenter: Segmenter::new(message, 0),
            job,
            behind: None,
        }
    }
}

/// What the caller does at the end of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageEnd<S> {
    /// Nothing.
    Nothing,
    /// Completes the request once TCP has accepted all octets so far.
    Complete(S),
    /// Counts a request of the peer as answered.
    Answered,
    /// Begins to wait for the answer to a Read of no octets, which is the current message now, and
    /// completes the request.
    AwaitConfirmation(S),
}

/// Why no message is sent now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// There is none that can be sent now.
    Drained,
    /// Memory is short.
    Starved,
    /// There may be more, but others have their turn first.
    Yield,
}

impl Pause {
    /// Returns why there is neither an answer, for the reason `self`, nor a request of the
    /// consumer. An answer that has to be tried again later counts even if no request does.
    #[must_use]
    pub const fn without_request(self, request: Self) -> Self {
        match self {
            Self::Yield => Self::Yield,
            Self::Drained | Self::Starved => request,
        }
    }
}

/// Who may have something to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The peer has requests that are not answered.
    Responses,
    /// The consumer has posted requests.
    Requests,
}

/// A message of the driver's own that begins a stream.
#[derive(Clone, Copy, Debug)]
enum FirstMessage {
    /// This end's features, and what follows.
    Features(Features, Option<Rtr>),
    /// The ready-to-receive message.
    Rtr(Rtr),
}

/// No message of this stream can carry the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unsupported;

/// What the sender of a stream is made for.
#[derive(Clone, Copy, Debug)]
pub struct SenderParams {
    /// The extensions that the peer supports.
    pub extensions: Extensions,
    /// What this end can do, if it tells the peer in its first FPDU.
    pub features: Option<Features>,
    /// The ready-to-receive message that it sends then.
    pub rtr: Option<Rtr>,
    /// The peer is said to know the Swap of the first draft in place of CmpSwap (EXT-81).
    pub draft_swap: bool,
}

/// The sending half of a stream, whose requests are in slots `S` of the send queue.
#[derive(Clone, Copy, Debug)]
pub struct StreamSender<S> {
    /// The message being segmented.
    pub current: Option<Outgoing<S>>,
    extensions: Extensions,
    draft_swap: bool,
    /// The message to send first.
    first: Option<FirstMessage>,
    /// Who goes first when both sides have something.
    turn: Side,
    send: Msn,
    read: Msn,
    atomic: Msn,
}

impl<S: Copy> StreamSender<S> {
    /// Begins a stream: every queue is at its first number (DDP-29).
    pub const fn new(params: &SenderParams) -> Self {
        Self::with_number(params, Msn::FIRST)
    }

    /// Begins a stream whose queues are at the given number, which tests have wrap.
    pub const fn with_number(params: &SenderParams, number: Msn) -> Self {
        Self {
            current: None,
            extensions: params.extensions,
            draft_swap: params.draft_swap,
            first: match (params.features, params.rtr) {
                (Some(features), rtr) => Some(FirstMessage::Features(features, rtr)),
                (None, Some(rtr)) => Some(FirstMessage::Rtr(rtr)),
                (None, None) => None,
            },
            turn: Side::Responses,
            send: number,
            read: number,
            atomic: number,
        }
    }

    /// Returns whether a message begins the stream that is not sent yet.
    #[inline]
    pub const fn begins(&self) -> bool {
        self.first.is_some()
    }

    /// Makes the message that begins the stream the current one. Returns the Read, if it is one:
    /// the caller records it, without a request, before it is sent.
    #[cold]
    pub fn begin_stream(&mut self) -> Option<ReadRequest> {
        let message = match self.first.take()? {
            FirstMessage::Features(features, rtr) => {
                self.first = rtr.map(FirstMessage::Rtr);
                Message::Features(features)
            }
            // MPA-40; the peer's consumer never sees it (MPA-42).
            FirstMessage::Rtr(Rtr::Write) => Message::Write {
                stag: Stag::ZERO,
                to: TaggedOffset::new(0),
            },
            FirstMessage::Rtr(Rtr::Send) => Message::Send {
                kind: SendKind::default(),
                msn: self.send.advance(),
            },
            FirstMessage::Rtr(Rtr::Read) => {
                self.begin_read(ReadRequest::NOTHING, Job::Nothing);
                return Some(ReadRequest::NOTHING);
            }
        };
        self.current = Some(Outgoing::bare(message, Job::Nothing));
        None
    }

    /// Returns whom to ask first for the next message; the other one goes first the next time.
    #[inline(always)]
    pub fn take_turn(&mut self) -> Side {
        let first = self.turn;
        self.turn = match first {
            Side::Responses => Side::Requests,
            Side::Requests => Side::Responses,
        };
        first
    }

    /// Begins to answer a Read.
    #[inline]
    pub fn answer_read(&mut self, request: &ReadRequest) {
        let message = Message::ReadResponse {
            stag: request.sink_stag,
            to: request.sink_to,
        };
        self.current = Some(Outgoing {
            segmenter: Segmenter::new(message, request.len),
            job: Job::Answer,
            behind: None,
        });
    }

    /// Begins to answer an atomic operation.
    pub fn answer_atomic(&mut self, response: AtomicResponse) {
        let msn = self.atomic.advance();
        let message = Message::AtomicResponse { response, msn };
        self.current = Some(Outgoing::bare(message, Job::Answer));
    }

    /// Begins a Send of `len` octets.
    ///
    /// # Errors
    ///
    /// [`Unsupported`] for one with Immediate and payload, unless both ends have the extension for
    /// it; without payload it is an Immediate Data message of RFC 7306.
    #[inline(always)]
    pub fn begin_send(
        &mut self,
        extra: SendExtra,
        len: u32,
        solicited: SendEvent,
        job: Job<S>,
    ) -> Result<(), Unsupported> {
        if let SendExtra::Immediate(value) = extra {
            if self.extensions != Extensions::SendImmediate {
                let data = Immediate::of_verbs(value);
                return self.begin_immediate(data, len, solicited, job);
            }
        }
        let kind = SendKind { solicited, extra };
        let msn = self.send.advance();
        self.current = Some(Outgoing {
            segmenter: Segmenter::new(Message::Send { kind, msn }, len),
            job,
            behind: None,
        });
        Ok(())
    }

    /// Begins a Write of `len` octets to the buffer of the peer, and Immediate Data behind it.
    #[inline(always)]
    pub fn begin_write(
        &mut self,
        (stag, to): (Stag, TaggedOffset),
        immediate: Option<[u8; Immediate::LEN]>,
        len: u32,
        solicited: SendEvent,
        job: Job<S>,
    ) {
        self.current = Some(Outgoing {
            segmenter: Segmenter::new(Message::Write { stag, to }, len),
            job,
            behind: immediate.map(|data| Immediate { data, solicited }),
        });
    }

    /// Begins Immediate Data that no Write precedes.
    ///
    /// # Errors
    ///
    /// [`Unsupported`] if it has a payload.
    pub fn begin_immediate(
        &mut self,
        data: [u8; Immediate::LEN],
        len: u32,
        solicited: SendEvent,
        job: Job<S>,
    ) -> Result<(), Unsupported> {
        if len != 0 {
            return Err(Unsupported);
        }
        let message = self.immediate(Immediate { data, solicited });
        self.current = Some(Outgoing::bare(message, job));
        Ok(())
    }

    /// Begins a Read. The caller has recorded it, since the Response may arrive as soon as the
    /// Request is sent.
    #[inline]
    pub fn begin_read(&mut self, request: ReadRequest, job: Job<S>) {
        let msn = self.read.advance();
        let message = Message::ReadRequest { request, msn };
        self.current = Some(Outgoing::bare(message, job));
    }

    /// Begins an Atomic Write to the buffer of the peer. A Read of no octets confirms it.
    pub fn begin_atomic_write(&mut self, (stag, to): (Stag, TaggedOffset), slot: S) {
        self.current = Some(Outgoing {
            segmenter: Segmenter::new(Message::AtomicWrite { stag, to }, ATOMIC_WRITE_LEN.into()),
            job: Job::Confirm(slot),
            behind: None,
        });
    }

    /// Begins a Flush. The caller has recorded it as a Read of no octets
    /// ([`crate::flush::answered_as`]), likewise.
    pub fn begin_flush(&mut self, request: FlushRequest, slot: S) {
        let msn = self.read.advance();
        let message = Message::Flush { request, msn };
        self.current = Some(Outgoing::bare(message, Job::AwaitResponse(slot)));
    }

    /// Begins an atomic operation on the buffer of the peer; returns the identifier of its answer,
    /// which the caller records likewise.
    pub fn begin_atomic(
        &mut self,
        (stag, to): (Stag, TaggedOffset),
        operation: AtomicOperation,
        slot: S,
    ) -> u32 {
        let msn = self.read.advance();
        let request = AtomicRequest {
            // EXT-34: any value; this one is unique among outstanding requests.
            identifier: msn.raw(),
            stag,
            to,
            operation: if self.draft_swap {
                operation.as_draft_swap()
            } else {
                operation
            },
        };
        let message = Message::AtomicRequest { request, msn };
        self.current = Some(Outgoing::bare(message, Job::AwaitResponse(slot)));
        request.identifier
    }

    /// Makes the Terminate the current message, in place of any other.
    #[cold]
    pub fn begin_terminate(&mut self, terminate: Terminate) {
        self.current = Some(Outgoing::bare(Message::Terminate(terminate), Job::Nothing));
    }

    /// Ends the current message, the last FPDU of which is cut. Another one may be current then.
    #[inline(always)]
    pub fn end_message(&mut self) -> MessageEnd<S> {
        let Some(Outgoing { job, behind, .. }) = self.current.take() else {
            return MessageEnd::Nothing;
        };
        if let Some(immediate) = behind {
            let message = self.immediate(immediate);
            self.current = Some(Outgoing::bare(message, job));
            return MessageEnd::Nothing;
        }
        match job {
            Job::Complete(slot) => MessageEnd::Complete(slot),
            Job::Confirm(slot) => {
                self.begin_read(ReadRequest::NOTHING, Job::AwaitResponse(slot));
                MessageEnd::AwaitConfirmation(slot)
            }
            Job::Answer => MessageEnd::Answered,
            Job::AwaitResponse(_) | Job::Nothing => MessageEnd::Nothing,
        }
    }

    fn immediate(&mut self, immediate: Immediate) -> Message {
        let msn = self.send.advance();
        Message::Immediate { immediate, msn }
    }
}
