// SPDX-License-Identifier: GPL-2.0

//! The state machine of a queue pair: where each event leads, and what the driver does for it.
//!
//! Only this module decides transitions. A [`Lifecycle`] fits into 32 bits, so that the driver can
//! publish it atomically: it reads the word, asks [`Lifecycle::on`] or [`Lifecycle::request`] for
//! the next state, and stores that by compare-exchange. Whoever succeeds carries out the
//! [`Actions`], all of them; the driver has one function for that.
//!
//! An [`Event`] has happened, and cannot be refused. A [`QpRequest`] can be, and then changes
//! nothing.
//!
//! A queue pair goes through its [`QpPhase`]s in one direction only, until it is reset:
//!
//! | phase | entered by | what happens in it |
//! |---|---|---|
//! | `Idle` | create, reset | receives may be posted; no stream |
//! | `Waiting` | modify to RTR with a destination | the driver searches for the peer |
//! | `Rts` | a stream is attached | both directions run |
//! | `Closing` | modify to SQD | posted requests are sent, then a FIN |
//! | `Terminate` | a fault that this end found; modify to SQE | the Terminate is sent |
//! | `Error` | end of the stream; Terminate sent or received; no peer; modify to ERR | flush |
//! | `Gone` | destroy | no request completes any more |
//!
//! In `Terminate`, the Terminate is sent at the next FPDU boundary. In `Error`, every request is
//! flushed, also those posted later; "no peer" means that the search for it took too long.
//!
//! Pure, any context. RFC 5040, sections 5.4, 6 and 7; InfiniBand Architecture Specification,
//! volume 1, section 10.3.1, for the states of the verbs.

use crate::{
    actions::{
        Actions,
        After,
        Later,
        Now, //
    },
    ddp::QueueNumber,
    fault::{
        ErrorClass,
        Fault, //
    },
    terminate::Terminate, //
};

/// Where a queue pair is in its life. Ordered: only a reset leads back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum QpPhase {
    /// No stream.
    Idle,
    /// The driver searches for the peer, without a connection manager.
    Waiting,
    /// Ready to send: a stream is attached.
    Rts,
    /// The send queue is drained, then the stream is closed.
    Closing,
    /// A Terminate is to be sent.
    Terminate,
    /// All work requests are flushed.
    Error,
    /// Destroyed.
    Gone,
}

impl QpPhase {
    /// All phases in order.
    pub const ALL: [Self; 7] = [
        Self::Idle,
        Self::Waiting,
        Self::Rts,
        Self::Closing,
        Self::Terminate,
        Self::Error,
        Self::Gone,
    ];
}

/// The state that the consumer has asked for. A query reports it until a stream is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Requested {
    /// RESET.
    Reset,
    /// INIT.
    Init,
    /// RTR.
    Rtr,
    /// RTS.
    Rts,
}

/// The state of a queue pair as the verbs know it (`enum ib_qp_state`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum VerbsState {
    /// The one that the consumer has asked for.
    Requested(Requested),
    /// SQD: the send queue is drained.
    Sqd,
    /// SQE: the stream ends with a Terminate.
    Sqe,
    /// ERR.
    Err,
}

/// How the oldest unfinished request completes when all are flushed; the others are just flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FirstFailure {
    /// The stream was lost.
    Flushed,
    /// No peer was found, or the peer closed its half and a request waited too long for it.
    RetryExceeded,
    /// The peer's Terminate says that a buffer was refused.
    RemoteAccess,
    /// The peer's Terminate says that a message was malformed.
    RemoteInvalidRequest,
    /// The peer's Terminate says anything else.
    RemoteOperation,
    /// The peer's Terminate says that a message has found no receive.
    ReceiverNotReady,
}

impl FirstFailure {
    /// Returns how the request that the peer's Terminate refuses completes.
    pub fn of(terminate: &Terminate) -> Self {
        let queue = terminate.quoted.and_then(|quoted| quoted.queue());
        if terminate.code == Fault::NoBuffer.code() && queue == Some(QueueNumber::SEND) {
            return Self::ReceiverNotReady;
        }
        match terminate.code.class() {
            Some(ErrorClass::RemoteProtection | ErrorClass::TaggedBuffer) => Self::RemoteAccess,
            Some(ErrorClass::RemoteOperation | ErrorClass::UntaggedBuffer) => {
                Self::RemoteInvalidRequest
            }
            Some(ErrorClass::RdmapLocal | ErrorClass::DdpLocal | ErrorClass::Mpa) | None => {
                Self::RemoteOperation
            }
        }
    }
}

/// What the consumer or a connection asks of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QpRequest {
    // From the consumer.
    /// Modify to INIT.
    ModifyInit,
    /// Modify to RTR without a path: a connection manager will attach the stream.
    ModifyRtr,
    /// Modify to RTR with a path: the driver searches for the peer itself.
    ModifyRtrPath,
    /// Modify to RTS.
    ModifyRts,
    /// Modify to SQD.
    ModifySqd,
    /// Modify to SQE.
    ModifySqe,
    /// Modify to ERR.
    ModifyErr,
    /// Modify to RESET begins; `posted` says whether requests have to be flushed.
    ResetBegin {
        /// Whether work requests are posted or unfinished.
        posted: bool,
    },
    /// Modify to RESET ends: the old stream has ended and its transmit task is idle.
    ResetEnd,

    // From the connection.
    /// A connection of the connection manager is about to start up for this queue pair.
    Bind,
    /// A connection of the driver's own search is about to.
    BindSearch,
    /// The start-up is complete. `wait_first_fpdu`: a responder sends nothing before the
    /// initiator's first FPDU (MPA-9).
    Attach {
        /// Whether sending waits for the peer's first FPDU.
        wait_first_fpdu: bool,
    },
}

impl QpRequest {
    /// Each request, with each of its parameters.
    pub const ALL: [Self; 14] = [
        Self::ModifyInit,
        Self::ModifyRtr,
        Self::ModifyRtrPath,
        Self::ModifyRts,
        Self::ModifySqd,
        Self::ModifySqe,
        Self::ModifyErr,
        Self::ResetBegin { posted: false },
        Self::ResetBegin { posted: true },
        Self::ResetEnd,
        Self::Bind,
        Self::BindSearch,
        Self::Attach {
            wait_first_fpdu: false,
        },
        Self::Attach {
            wait_first_fpdu: true,
        },
    ];
}

/// How the consumer hears of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Notice {
    /// By the completion of the request at fault.
    Completion,
    /// By the event of a fatal error.
    Fatal,
    /// By the event of an access that was refused.
    AccessError,
    /// By the event of a request that was refused.
    RequestError,
}

impl Notice {
    /// Returns how the consumer hears of a fault in what the peer sent or asked for.
    pub fn of(fault: Fault) -> Self {
        match fault.code().class() {
            Some(ErrorClass::RemoteProtection | ErrorClass::TaggedBuffer) => Self::AccessError,
            Some(ErrorClass::RemoteOperation | ErrorClass::UntaggedBuffer) => Self::RequestError,
            Some(ErrorClass::RdmapLocal | ErrorClass::DdpLocal | ErrorClass::Mpa) | None => {
                Self::Fatal
            }
        }
    }
}

/// What can happen to a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// The consumer destroys it.
    Destroy,

    // From the connection.
    /// The peer has ended its half of a stream without connection manager.
    PeerClosed,
    /// The stream has ended. `lost`: not in an orderly way.
    StreamEnded {
        /// Whether TCP has given up the connection.
        lost: bool,
    },
    /// The peer of the search expects another PSN than the consumer has set.
    WrongPsn,
    /// The search for a peer has taken too long, and has ended.
    SearchTimeout,
    /// A request has waited too long for a peer that has closed its half.
    PeerClosedTimeout,

    /// Sending need not wait for the peer's first FPDU.
    AllowSending,

    // From the receiver.
    /// The peer's first FPDU was accepted.
    FirstFpdu,
    /// A message of the peer or a request of this end is faulty: the stream ends with a Terminate.
    Fault(Notice),
    /// The peer's Terminate has arrived (RDMAP-97).
    PeerTerminate(FirstFailure),
    /// A Read or atomic operation of this end was answered.
    ReadAnswered,

    // From the transmit task.
    /// TCP has accepted the Terminate, or never will.
    TerminateSent,
    /// The last octets before an orderly close are with TCP; or only answers to the peer are
    /// missing, and the queue pair is destroyed.
    Drained,
    /// TCP takes no more octets.
    SendFailed,
}

impl Event {
    /// Each event, with each of its parameters.
    pub const ALL: [Self; 21] = [
        Self::Destroy,
        Self::PeerClosed,
        Self::StreamEnded { lost: false },
        Self::StreamEnded { lost: true },
        Self::WrongPsn,
        Self::SearchTimeout,
        Self::PeerClosedTimeout,
        Self::AllowSending,
        Self::FirstFpdu,
        Self::Fault(Notice::Completion),
        Self::Fault(Notice::Fatal),
        Self::Fault(Notice::AccessError),
        Self::Fault(Notice::RequestError),
        Self::PeerTerminate(FirstFailure::RemoteAccess),
        Self::PeerTerminate(FirstFailure::RemoteInvalidRequest),
        Self::PeerTerminate(FirstFailure::RemoteOperation),
        Self::PeerTerminate(FirstFailure::ReceiverNotReady),
        Self::ReadAnswered,
        Self::TerminateSent,
        Self::Drained,
        Self::SendFailed,
    ];
}

/// What a verb has to do for the search for a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SearchStep {
    /// Nothing.
    None,
    /// Begin to search, before the request, because it may fail.
    Begin,
    /// Begin to connect, unless the peer has connected first. Before the request, likewise.
    Connect,
    /// End the search, after the request.
    End,
}

/// The request is not allowed in this state; nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused;

/// The state of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lifecycle {
    phase: QpPhase,
    requested: Requested,
    /// The consumer gave a destination, so that no connection manager takes part.
    by_path: bool,
    /// The initiator's first FPDU has arrived, or sending need not wait for it (MPA-9).
    may_send: bool,
    /// The peer has ended its half of a stream without connection manager.
    peer_closed: bool,
    /// A request waits until outstanding Reads are answered.
    waits_for_reads: bool,
    first_failure: Option<FirstFailure>,
}

impl Lifecycle {
    /// A new queue pair. iWARP calls this state idle; programs expect an RNIC to report INIT.
    pub const NEW: Self = Self::idle(Requested::Init);

    /// A new queue pair as InfiniBand has it, and what a reset leaves.
    pub const RESET: Self = Self::idle(Requested::Reset);

    const fn idle(requested: Requested) -> Self {
        Self {
            phase: QpPhase::Idle,
            requested,
            by_path: false,
            may_send: false,
            peer_closed: false,
            waits_for_reads: false,
            first_failure: None,
        }
    }

    /// Returns the phase.
    #[inline]
    pub const fn phase(self) -> QpPhase {
        self.phase
    }

    /// Returns the state that the consumer has asked for.
    #[inline]
    pub const fn requested(self) -> Requested {
        self.requested
    }

    /// Returns whether a destination was given, so that no connection manager takes part.
    #[inline]
    pub const fn is_by_path(self) -> bool {
        self.by_path
    }

    /// Returns whether messages may be sent (MPA-9).
    #[inline]
    pub const fn may_send(self) -> bool {
        self.may_send
    }

    /// Returns whether the peer of a stream without connection manager has ended its half.
    #[inline]
    pub const fn is_peer_closed(self) -> bool {
        self.peer_closed
    }

    /// Returns whether a request waits until outstanding Reads are answered.
    #[inline]
    pub const fn waits_for_reads(self) -> bool {
        self.waits_for_reads
    }

    /// Returns whether a stream carries messages in both directions, or is being drained.
    #[inline]
    pub const fn is_streaming(self) -> bool {
        matches!(self.phase, QpPhase::Rts | QpPhase::Closing)
    }

    /// Returns whether a stream remains whose peer has closed its half, so that requests only wait.
    #[inline]
    pub const fn has_lost_peer(self) -> bool {
        self.peer_closed && self.is_streaming()
    }

    /// Returns whether the stream has ended or is about to.
    #[inline]
    pub const fn is_ending(self) -> bool {
        matches!(
            self.phase,
            QpPhase::Terminate | QpPhase::Error | QpPhase::Gone
        )
    }

    /// Returns how the oldest unfinished request completes when all are flushed.
    pub const fn first_failure(self) -> Option<FirstFailure> {
        self.first_failure
    }

    /// Returns the state that a query reports.
    pub const fn verbs_state(self) -> VerbsState {
        match self.phase {
            QpPhase::Idle | QpPhase::Waiting => VerbsState::Requested(self.requested),
            // The consumer moves such a queue pair itself, even if its stream is attached already.
            QpPhase::Rts if self.by_path => VerbsState::Requested(self.requested),
            QpPhase::Rts => VerbsState::Requested(Requested::Rts),
            QpPhase::Closing => VerbsState::Sqd,
            QpPhase::Terminate => VerbsState::Sqe,
            QpPhase::Error | QpPhase::Gone => VerbsState::Err,
        }
    }

    /// Returns whether the request is allowed now.
    ///
    /// # Errors
    ///
    /// [`Refused`] if it is not.
    pub fn allows(self, request: QpRequest) -> Result<(), Refused> {
        self.requested_phase(request).map(|_| ()).ok_or(Refused)
    }

    /// Returns what a verb has to do for the search when it makes the request.
    ///
    /// # Errors
    ///
    /// [`Refused`] if the request is not allowed now.
    pub fn search_step(self, request: QpRequest) -> Result<SearchStep, Refused> {
        self.allows(request)?;
        Ok(match request {
            QpRequest::ModifyRtrPath => SearchStep::Begin,
            QpRequest::ModifyRts if self.by_path && self.requested == Requested::Rtr => {
                SearchStep::Connect
            }
            QpRequest::ModifyErr | QpRequest::ResetBegin { .. } => SearchStep::End,
            _ => SearchStep::None,
        })
    }

    /// Returns the state after `request`, and what the driver has to do for the transition.
    ///
    /// # Errors
    ///
    /// [`Refused`] if it is not allowed now.
    pub fn request(self, request: QpRequest) -> Result<(Self, Actions), Refused> {
        let mut next = self;
        next.phase = self.requested_phase(request).ok_or(Refused)?;
        let moved = next.phase != self.phase;
        let actions = match request {
            QpRequest::ModifyInit => {
                next.set_requested(Requested::Init);
                Actions::NONE
            }
            QpRequest::ModifyRtr => {
                next.set_requested(Requested::Rtr);
                Actions::NONE
            }
            QpRequest::ModifyRtrPath => {
                next.by_path = true;
                next.requested = Requested::Rtr;
                Actions::NONE
            }
            QpRequest::ModifyRts => {
                next.requested = Requested::Rts;
                // What was posted before gives the search its time limit.
                Actions::NONE.after(After::Transmit)
            }
            QpRequest::ModifySqd if moved => Actions::NONE
                .now(Now::Drain)
                .after(After::Transmit)
                .later(Later::Leave),
            QpRequest::ModifySqe if moved => {
                Actions::NONE.now(Now::KeepTerminate).after(After::Transmit)
            }
            QpRequest::ModifySqd | QpRequest::ModifySqe => Actions::NONE,
            QpRequest::ModifyErr => Actions::NONE.after(After::Transmit).later(Later::Close),
            QpRequest::ResetBegin { .. } => Actions::NONE,
            QpRequest::ResetEnd => {
                next = Self::RESET;
                Actions::NONE
            }
            QpRequest::Bind | QpRequest::BindSearch => Actions::NONE,
            QpRequest::Attach { wait_first_fpdu } => {
                next.may_send = !wait_first_fpdu;
                next.peer_closed = false;
                if wait_first_fpdu {
                    // The first FPDU makes it send.
                    Actions::NONE
                } else {
                    Actions::NONE.after(After::Transmit)
                }
            }
        };
        Ok((next, actions))
    }

    /// Returns the state after `event`, and what the driver has to do for the transition.
    pub fn on(self, event: Event) -> (Self, Actions) {
        let mut next = self;
        next.phase = self.next_phase(event);
        let moved = next.phase != self.phase;
        let transmit = Actions::NONE.after(After::Transmit);
        let actions = match event {
            Event::Destroy => Actions::NONE,
            Event::PeerClosed => {
                next.peer_closed = true;
                transmit
            }
            Event::StreamEnded { lost } => {
                if self.phase == QpPhase::Rts {
                    if self.peer_closed {
                        next.fail_first(FirstFailure::RetryExceeded);
                    } else if lost {
                        next.fail_first(FirstFailure::Flushed);
                    }
                }
                transmit
            }
            Event::WrongPsn => transmit.later(Later::Abort),
            Event::SearchTimeout => {
                next.fail_first(FirstFailure::RetryExceeded);
                transmit.later(Later::Abort)
            }
            Event::PeerClosedTimeout if self.has_lost_peer() => {
                next.fail_first(FirstFailure::RetryExceeded);
                transmit.later(Later::Close)
            }
            Event::PeerClosedTimeout => {
                // The wait has ended in the meantime.
                next = self;
                Actions::NONE
            }
            Event::AllowSending | Event::FirstFpdu => {
                next.may_send = true;
                let actions = if self.may_send {
                    Actions::NONE
                } else {
                    transmit
                };
                match event {
                    Event::FirstFpdu => actions.later(Later::ReportFirstFpdu),
                    _ => actions,
                }
            }
            Event::Fault(notice) if moved => {
                let end = transmit.now(Now::KeepTerminate);
                match notice {
                    Notice::Completion => end,
                    Notice::Fatal => end.after(After::NotifyFatal),
                    Notice::AccessError => end.after(After::NotifyAccessError),
                    Notice::RequestError => end.after(After::NotifyRequestError),
                }
            }
            Event::Fault(_) => Actions::NONE,
            Event::PeerTerminate(failure) => {
                next.fail_first(failure);
                transmit.after(After::NotifyFatal).later(Later::Close)
            }
            Event::ReadAnswered => {
                next.waits_for_reads = false;
                // The drain ends with the last answer.
                if self.waits_for_reads || self.phase == QpPhase::Closing {
                    transmit
                } else {
                    Actions::NONE
                }
            }
            Event::TerminateSent => Actions::NONE.later(Later::Close),
            Event::Drained if self.phase == QpPhase::Closing => Actions::NONE.later(Later::Close),
            Event::Drained => Actions::NONE,
            Event::SendFailed => Actions::NONE.later(Later::Abort),
        };
        (next, actions)
    }

    /// Returns the state in which a request waits for outstanding Reads to be answered, or none.
    #[must_use]
    pub const fn with_read_wait(mut self, waits: bool) -> Self {
        self.waits_for_reads = waits;
        self
    }

    /// Returns the state after a flush of all requests. [`Lifecycle::first_failure`] was for the
    /// oldest one.
    #[must_use]
    pub const fn flushed(mut self) -> Self {
        self.first_failure = None;
        self
    }

    /// Returns where a request leads, a row for each and a column for each phase; [`None`] if it is
    /// refused.
    #[rustfmt::skip]
    fn requested_phase(self, request: QpRequest) -> Option<QpPhase> {
        // Short names for the table.
        const NO: Option<QpPhase> = None;
        const IDLE: Option<QpPhase> = Some(QpPhase::Idle);
        const WAIT: Option<QpPhase> = Some(QpPhase::Waiting);
        const RTS: Option<QpPhase> = Some(QpPhase::Rts);
        const CLOS: Option<QpPhase> = Some(QpPhase::Closing);
        const TERM: Option<QpPhase> = Some(QpPhase::Terminate);
        const ERR: Option<QpPhase> = Some(QpPhase::Error);
        let stay = Some(self.phase);
        // These depend on whether a connection manager takes part.
        let unless_by_path = if self.by_path { NO } else { stay };
        let if_by_path = if self.by_path { ERR } else { NO };
        let if_init = if self.requested == Requested::Init { WAIT } else { NO };
        // A search connects from RTS on.
        let if_searching = if self.by_path { stay } else { NO };
        let if_posted = match request {
            QpRequest::ResetBegin { posted: true } => ERR,
            _ => stay,
        };
        let row = match request {
            // Idle, Waiting, Rts, Closing, Terminate, Error, Gone.
            QpRequest::ModifyInit     => [stay,      NO,           unless_by_path, NO,         NO,         NO,    NO],
            QpRequest::ModifyRtr      => [stay,      NO,           unless_by_path, NO,         NO,         NO,    NO],
            QpRequest::ModifyRtrPath  => [if_init,   NO,           NO,             NO,         NO,         NO,    NO],
            QpRequest::ModifyRts      => [NO,        if_searching, stay,           NO,         NO,         NO,    NO],
            QpRequest::ModifySqd      => [NO,        NO,           CLOS,           stay,       stay,       stay,  stay],
            QpRequest::ModifySqe      => [NO,        NO,           TERM,           TERM,       stay,       stay,  stay],
            QpRequest::ModifyErr      => [ERR,       ERR,          ERR,            ERR,        ERR,        stay,  NO],
            QpRequest::ResetBegin{..} => [if_posted, if_posted,    if_by_path,     if_by_path, if_by_path, stay,  NO],
            QpRequest::ResetEnd       => [IDLE,      IDLE,         NO,             NO,         NO,         IDLE,  NO],
            QpRequest::Bind           => [stay,      NO,           NO,             NO,         NO,         NO,    NO],
            QpRequest::BindSearch     => [NO,        stay,         NO,             NO,         NO,         NO,    NO],
            QpRequest::Attach{..}     => [RTS,       RTS,          NO,             NO,         NO,         NO,    NO],
        };
        self.column(row)
    }

    /// Returns where an event leads, likewise.
    #[rustfmt::skip]
    fn next_phase(self, event: Event) -> QpPhase {
        // Short names for the table.
        const TERM: QpPhase = QpPhase::Terminate;
        const ERR: QpPhase = QpPhase::Error;
        const GONE: QpPhase = QpPhase::Gone;
        let stay = self.phase;
        let row = match event {
            //                               Idle  Waiting  Rts   Closing  Terminate  Error  Gone
            Event::Destroy              => [GONE, GONE,    GONE, GONE,    GONE,      GONE,  GONE],
            Event::PeerClosed           => [stay, stay,    stay, stay,    stay,      stay,  stay],
            Event::StreamEnded { .. }   => [ERR,  ERR,     ERR,  ERR,     ERR,       stay,  stay],
            Event::WrongPsn             => [ERR,  ERR,     ERR,  ERR,     ERR,       stay,  stay],
            Event::SearchTimeout        => [ERR,  ERR,     ERR,  ERR,     ERR,       stay,  stay],
            Event::PeerClosedTimeout    => [stay, stay,    ERR,  ERR,     stay,      stay,  stay],
            Event::AllowSending         => [stay, stay,    stay, stay,    stay,      stay,  stay],
            Event::FirstFpdu            => [stay, stay,    stay, stay,    stay,      stay,  stay],
            Event::Fault(_)             => [TERM, TERM,    TERM, TERM,    stay,      stay,  stay],
            Event::PeerTerminate(_)     => [ERR,  ERR,     ERR,  ERR,     ERR,       stay,  stay],
            Event::ReadAnswered         => [stay, stay,    stay, stay,    stay,      stay,  stay],
            Event::TerminateSent        => [stay, stay,    ERR,  ERR,     ERR,       stay,  stay],
            Event::Drained              => [stay, stay,    stay, stay,    stay,      stay,  stay],
            Event::SendFailed           => [stay, stay,    stay, stay,    stay,      stay,  stay],
        };
        self.column(row)
    }

    /// Returns the entry of a row for the phase.
    fn column<T>(self, row: [T; 7]) -> T {
        let [idle, waiting, rts, closing, terminate, error, gone] = row;
        match self.phase {
            QpPhase::Idle => idle,
            QpPhase::Waiting => waiting,
            QpPhase::Rts => rts,
            QpPhase::Closing => closing,
            QpPhase::Terminate => terminate,
            QpPhase::Error => error,
            QpPhase::Gone => gone,
        }
    }

    /// Records the state that the consumer asks for, unless a stream is attached already.
    const fn set_requested(&mut self, requested: Requested) {
        if matches!(self.phase, QpPhase::Idle) {
            self.requested = requested;
        }
    }

    /// Records the failure if it is the first.
    const fn fail_first(&mut self, failure: FirstFailure) {
        if self.first_failure.is_none() {
            self.first_failure = Some(failure);
        }
    }
}

// The 32-bit word.
impl Lifecycle {
    const PHASE: u32 = 0x7;
    const REQUESTED_SHIFT: u32 = 3;
    const BY_PATH: u32 = 1 << 5;
    const MAY_SEND: u32 = 1 << 6;
    const PEER_CLOSED: u32 = 1 << 7;
    const WAITS_FOR_READS: u32 = 1 << 8;
    const FAILURE_SHIFT: u32 = 9;

    /// Returns the state as a word.
    #[inline]
    pub const fn to_raw(self) -> u32 {
        const fn bit(set: bool, bit: u32) -> u32 {
            if set {
                bit
            } else {
                0
            }
        }
        let failure = match self.first_failure {
            None => 0,
            Some(FirstFailure::Flushed) => 1,
            Some(FirstFailure::RetryExceeded) => 2,
            Some(FirstFailure::RemoteAccess) => 3,
            Some(FirstFailure::RemoteInvalidRequest) => 4,
            Some(FirstFailure::RemoteOperation) => 5,
            Some(FirstFailure::ReceiverNotReady) => 6,
        };
        // CAST: a phase is below 7, a request below 4.
        self.phase as u32
            | ((self.requested as u32) << Self::REQUESTED_SHIFT)
            | bit(self.by_path, Self::BY_PATH)
            | bit(self.may_send, Self::MAY_SEND)
            | bit(self.peer_closed, Self::PEER_CLOSED)
            | bit(self.waits_for_reads, Self::WAITS_FOR_READS)
            | (failure << Self::FAILURE_SHIFT)
    }

    /// Returns the state of a word of [`Lifecycle::to_raw`]; any state for other words.
    ///
    /// Who asks one thing of the state then decodes only that.
    #[inline(always)]
    pub const fn from_raw(raw: u32) -> Self {
        Self {
            phase: match raw & Self::PHASE {
                0 => QpPhase::Idle,
                1 => QpPhase::Waiting,
                2 => QpPhase::Rts,
                3 => QpPhase::Closing,
                4 => QpPhase::Terminate,
                5 => QpPhase::Error,
                _ => QpPhase::Gone,
            },
            requested: match (raw >> Self::REQUESTED_SHIFT) & 3 {
                0 => Requested::Reset,
                1 => Requested::Init,
                2 => Requested::Rtr,
                _ => Requested::Rts,
            },
            by_path: raw & Self::BY_PATH != 0,
            may_send: raw & Self::MAY_SEND != 0,
            peer_closed: raw & Self::PEER_CLOSED != 0,
            waits_for_reads: raw & Self::WAITS_FOR_READS != 0,
            first_failure: match (raw >> Self::FAILURE_SHIFT) & 7 {
                1 => Some(FirstFailure::Flushed),
                2 => Some(FirstFailure::RetryExceeded),
                3 => Some(FirstFailure::RemoteAccess),
                4 => Some(FirstFailure::RemoteInvalidRequest),
                5 => Some(FirstFailure::RemoteOperation),
                6 => Some(FirstFailure::ReceiverNotReady),
                _ => None,
            },
        }
    }
}

#[cfg(any(test, MODULE))]
#[cfg_attr(MODULE, kernel::prelude::kunit_tests(iwarp_lifecycle))]
mod tests {
    use super::*;
    use crate::{
        ddp::UntaggedHeader,
        fault::ErrorCode,
        terminate::Quoted, //
    };

    /// Calls `f` with each state that a word can stand for.
    fn each_state(mut f: impl FnMut(Lifecycle)) {
        for raw in 0..1 << 12 {
            let state = Lifecycle::from_raw(raw);
            if state.to_raw() == raw {
                f(state);
            }
        }
    }

    /// What happens to a queue pair in a test.
    #[derive(Clone, Copy)]
    enum Step {
        Asked(QpRequest),
        Happened(Event),
    }

    use Step::{
        Asked,
        Happened, //
    };

    fn take(state: Lifecycle, step: Step) -> Result<(Lifecycle, Actions), Refused> {
        match step {
            Asked(request) => state.request(request),
            Happened(event) => Ok(state.on(event)),
        }
    }

    /// Calls `f` with each request and each event.
    fn each_step(mut f: impl FnMut(Step)) {
        for request in QpRequest::ALL {
            f(Asked(request));
        }
        for event in Event::ALL {
            f(Happened(event));
        }
    }

    fn after(steps: &[Step]) -> Lifecycle {
        let mut state = Lifecycle::NEW;
        for step in steps {
            let next = take(state, *step);
            assert!(next.is_ok());
            if let Ok((next, _)) = next {
                state = next;
            }
        }
        state
    }

    const ATTACH: Step = Asked(QpRequest::Attach {
        wait_first_fpdu: false,
    });

    #[test]
    fn lifecycle_word_round_trips_each_state() {
        let mut states = 0;
        each_state(|state| {
            assert_eq!(Lifecycle::from_raw(state.to_raw()), state);
            states += 1;
        });
        assert_eq!(states, QpPhase::ALL.len() * 4 * 16 * 7);
    }

    #[test]
    fn only_reset_returns_to_an_earlier_phase() {
        each_state(|state| {
            each_step(|step| {
                if let Ok((next, _)) = take(state, step) {
                    let back = next.phase() < state.phase();
                    assert!(!back || matches!(step, Asked(QpRequest::ResetEnd)));
                }
            });
        });
    }

    #[test]
    fn destroyed_queue_pair_stays_destroyed() {
        each_state(|state| {
            each_step(|step| {
                if let (QpPhase::Gone, Ok((next, _))) = (state.phase(), take(state, step)) {
                    assert_eq!(next.phase(), QpPhase::Gone);
                }
            });
        });
    }

    #[test]
    fn allows_agrees_with_request_result() {
        each_state(|state| {
            for request in QpRequest::ALL {
                let refused = state.request(request).is_err();
                assert_eq!(state.allows(request).is_err(), refused);
                assert_eq!(state.search_step(request).is_err(), refused);
            }
        });
    }

    #[test]
    fn first_of_several_faults_is_kept() {
        let fault = Event::Fault(Notice::AccessError);
        let (state, actions) = after(&[ATTACH]).on(fault);
        assert_eq!(state.phase(), QpPhase::Terminate);
        assert!(actions.now.contains(Now::KeepTerminate));
        assert!(actions.after.contains(After::NotifyAccessError));
        assert_eq!(state.on(fault), (state, Actions::NONE));
    }

    #[test]
    fn first_failure_is_kept_until_taken() {
        each_state(|state| {
            each_step(|step| {
                if matches!(step, Asked(QpRequest::ResetEnd)) {
                    return;
                }
                if let (Some(first), Ok((next, _))) = (state.first_failure(), take(state, step)) {
                    assert_eq!(next.first_failure(), Some(first));
                }
            });
        });
        let lost = after(&[ATTACH, Happened(Event::StreamEnded { lost: true })]);
        assert_eq!(lost.first_failure(), Some(FirstFailure::Flushed));
        assert_eq!(lost.flushed().first_failure(), None);
    }

    #[test]
    fn reset_clears_state_of_old_stream() {
        each_state(|state| {
            if let Ok((next, _)) = state.request(QpRequest::ResetEnd) {
                assert_eq!(next, Lifecycle::idle(Requested::Reset));
            }
        });
    }

    #[test]
    fn reset_is_refused_for_stream_of_connection_manager() {
        let reset = QpRequest::ResetBegin { posted: true };
        assert_eq!(after(&[ATTACH]).request(reset), Err(Refused));
        let own = after(&[Asked(QpRequest::ModifyRtrPath), ATTACH, Asked(reset)]);
        assert_eq!(own.phase(), QpPhase::Error);
    }

    #[test]
    fn rts_is_refused_after_the_end() {
        let path = after(&[
            Asked(QpRequest::ModifyRtrPath),
            Asked(QpRequest::ModifyRts),
            ATTACH,
        ]);
        assert_eq!(path.verbs_state(), VerbsState::Requested(Requested::Rts));
        let (ended, _) = path.on(Event::StreamEnded { lost: false });
        assert_eq!(ended.request(QpRequest::ModifyRts), Err(Refused));
    }

    #[test]
    fn search_begins_and_ends_with_the_requests_of_its_verbs() {
        let (rtr, rts) = (QpRequest::ModifyRtrPath, QpRequest::ModifyRts);
        assert_eq!(after(&[]).search_step(rtr), Ok(SearchStep::Begin));
        let waiting = after(&[Asked(rtr)]);
        assert_eq!(waiting.search_step(rts), Ok(SearchStep::Connect));
        let connecting = after(&[Asked(rtr), Asked(rts)]);
        assert_eq!(connecting.search_step(rts), Ok(SearchStep::None));
        assert_eq!(after(&[ATTACH]).search_step(rts), Ok(SearchStep::None));
        for end in [
            QpRequest::ModifyErr,
            QpRequest::ResetBegin { posted: false },
        ] {
            assert_eq!(connecting.search_step(end), Ok(SearchStep::End));
        }
    }

    #[test]
    fn fault_raises_the_event_of_its_class() {
        for (fault, notice) in [
            (Fault::Local, Notice::Fatal),
            (Fault::SourceBounds, Notice::AccessError),
            (Fault::OpcodeReserved, Notice::RequestError),
            (Fault::LocalPlacement, Notice::Fatal),
            (Fault::TaggedBounds, Notice::AccessError),
            (Fault::NoBuffer, Notice::RequestError),
            (Fault::Crc, Notice::Fatal),
        ] {
            assert_eq!(Notice::of(fault), notice);
        }
    }

    #[test]
    fn received_terminate_sets_status_of_failed_request() {
        let failure = |layer, etype| {
            FirstFailure::of(&Terminate {
                code: ErrorCode {
                    layer,
                    etype,
                    code: 0,
                },
                quoted: None,
            })
        };
        assert_eq!(failure(0, 1), FirstFailure::RemoteAccess);
        assert_eq!(failure(1, 1), FirstFailure::RemoteAccess);
        assert_eq!(failure(0, 2), FirstFailure::RemoteInvalidRequest);
        assert_eq!(failure(1, 2), FirstFailure::RemoteInvalidRequest);
        for (layer, etype) in [(0, 0), (1, 0), (2, 0), (2, 2), (15, 15)] {
            assert_eq!(failure(layer, etype), FirstFailure::RemoteOperation);
        }
    }

    #[test]
    fn terminate_without_receive_quotes_send_queue_message() {
        let failure = |fault: Fault, quoted: Option<[u8; UntaggedHeader::LEN]>| {
            FirstFailure::of(&Terminate {
                code: fault.code(),
                // CAST: a small constant.
                quoted: quoted
                    .and_then(|quoted| Quoted::from_segment(&quoted, UntaggedHeader::LEN as u16)),
            })
        };
        let header = |queue: u8| {
            let mut header = [0; UntaggedHeader::LEN];
            (header[0], header[1], header[9]) = (0x41, 0x43, queue);
            Some(header)
        };
        let expected = FirstFailure::ReceiverNotReady;
        assert_eq!(failure(Fault::NoBuffer, header(0)), expected);
        // A Read Request beyond the IRD has the same code.
        for (fault, quoted) in [
            (Fault::NoBuffer, header(1)),
            (Fault::NoBuffer, None),
            (Fault::MessageTooLong, header(0)),
        ] {
            let other = FirstFailure::RemoteInvalidRequest;
            assert_eq!(failure(fault, quoted), other);
        }
        let mut tagged = [0; UntaggedHeader::LEN];
        tagged[0] = 0xc1;
        let other = FirstFailure::RemoteInvalidRequest;
        assert_eq!(failure(Fault::NoBuffer, Some(tagged)), other);
    }

    #[test]
    fn late_peer_timeout_does_nothing() {
        each_state(|state| {
            if !state.has_lost_peer() {
                let late = state.on(Event::PeerClosedTimeout);
                assert_eq!(late, (state, Actions::NONE));
            }
        });
    }

    #[test]
    fn answered_read_runs_waiting_transmit_task() {
        let calls = |state: Lifecycle| {
            let (_, actions) = state.on(Event::ReadAnswered);
            actions.after.contains(After::Transmit)
        };
        let open = after(&[ATTACH]);
        assert!(!calls(open));
        assert!(calls(open.with_read_wait(true)));
        assert!(!calls(open.with_read_wait(true).with_read_wait(false)));
        assert!(calls(after(&[ATTACH, Asked(QpRequest::ModifySqd)])));
    }
}
