// SPDX-License-Identifier: GPL-2.0

//! The state machine of a queue pair: where each event leads, and what the driver does for it.
//!
//! Only this module decides transitions. A [`Lifecycle`] fits into 32 bits, so that the driver can
//! publish it atomically: it reads the word, asks [`Lifecycle::on`] for the next state, and stores
//! that by compare-exchange. The caller whose store succeeds sees to the [`Actions`]; where the
//! event alone says what follows, the driver does that without reading them.
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
}

/// What can happen to a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
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
    /// Destroy.
    Destroy,

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
    /// The peer has ended its half of a stream without connection manager.
    PeerClosed,
    /// The stream has ended. `lost`: not in an orderly way.
    StreamEnded {
        /// Whether TCP has given up the connection.
        lost: bool,
    },
    /// The peer of the search expects another PSN than the consumer has set.
    WrongPsn,
    /// The search for a peer has taken too long.
    SearchTimeout,
    /// A request has waited too long for a peer that has closed its half.
    PeerClosedTimeout,

    // From the receiver.
    /// The peer's first FPDU was accepted, or sending need not wait for it.
    FirstFpdu,
    /// A message of the peer or a request of this end is faulty: the stream ends with a Terminate.
    Fault,
    /// The peer's Terminate has arrived (RDMAP-97).
    PeerTerminate(FirstFailure),
    /// A Read or atomic operation of this end was answered.
    ReadAnswered,

    // From the transmit task.
    /// TCP has accepted the Terminate.
    TerminateSent,
    /// A request waits until outstanding Reads are answered.
    WaitForReads,
    /// The request does not wait after all.
    ReadsWaitedFor,
    /// All requests are flushed; the caller takes [`Lifecycle::first_failure`] for the oldest one.
    Flush,
}

impl Event {
    /// Each event, with each of its parameters.
    pub const ALL: [Self; 31] = [
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
        Self::Destroy,
        Self::Bind,
        Self::BindSearch,
        Self::Attach {
            wait_first_fpdu: false,
        },
        Self::Attach {
            wait_first_fpdu: true,
        },
        Self::PeerClosed,
        Self::StreamEnded { lost: false },
        Self::StreamEnded { lost: true },
        Self::WrongPsn,
        Self::SearchTimeout,
        Self::PeerClosedTimeout,
        Self::FirstFpdu,
        Self::Fault,
        Self::PeerTerminate(FirstFailure::RemoteAccess),
        Self::PeerTerminate(FirstFailure::RemoteInvalidRequest),
        Self::PeerTerminate(FirstFailure::RemoteOperation),
        Self::ReadAnswered,
        Self::TerminateSent,
        Self::WaitForReads,
        Self::ReadsWaitedFor,
        Self::Flush,
    ];
}

/// The set of what the driver has to do for a transition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Actions(u16);

impl Actions {
    /// Nothing.
    pub const NONE: Self = Self(0);
    /// Run the transmit task: to send, to flush, or to stop sending.
    pub const TRANSMIT: Self = Self(1 << 0);
    /// Begin to search for the peer.
    pub const BEGIN_SEARCH: Self = Self(1 << 1);
    /// Begin to connect to the peer, unless the peer has connected first.
    pub const CALL_PEER: Self = Self(1 << 2);
    /// End the search for the peer.
    pub const END_SEARCH: Self = Self(1 << 3);
    /// Take no more requests from the send queue, and tell the connection that the stream will end.
    pub const DRAIN: Self = Self(1 << 4);
    /// Keep the Terminate of this fault, the first one (RDMAP-144).
    pub const KEEP_TERMINATE: Self = Self(1 << 5);
    /// Have the connection close with a FIN.
    pub const CLOSE: Self = Self(1 << 6);
    /// Have the connection close with a reset.
    pub const ABORT: Self = Self(1 << 7);
    /// Raise the event of a fatal error for the consumer.
    pub const NOTIFY_FATAL: Self = Self(1 << 8);

    const NAMES: [(Self, &'static str); 9] = [
        (Self::TRANSMIT, "transmit"),
        (Self::BEGIN_SEARCH, "begin search"),
        (Self::CALL_PEER, "call peer"),
        (Self::END_SEARCH, "end search"),
        (Self::DRAIN, "drain"),
        (Self::KEEP_TERMINATE, "keep Terminate"),
        (Self::CLOSE, "close"),
        (Self::ABORT, "abort"),
        (Self::NOTIFY_FATAL, "notify fatal"),
    ];

    /// Returns the actions of either set.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns whether all of `other` are in this set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns the names of the actions in this set.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        Self::NAMES
            .into_iter()
            .filter(move |(action, _)| self.contains(*action))
            .map(|(_, name)| name)
    }
}

/// The event is not allowed in this state; nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused;

/// Where an event leads from a phase.
#[derive(Clone, Copy)]
enum Step {
    /// It is refused.
    No,
    /// The phase stays.
    Stay,
    /// To this phase.
    To(QpPhase),
}

use Step::{
    No,
    Stay,
    To, //
};

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

    /// Returns the state after `event`, and what the driver has to do for the transition.
    ///
    /// # Errors
    ///
    /// [`Refused`] if the event is not allowed now.
    pub const fn on(self, event: Event) -> Result<(Self, Actions), Refused> {
        let mut next = self;
        next.phase = match self.step(event) {
            Step::No => return Err(Refused),
            Step::Stay => self.phase,
            Step::To(phase) => phase,
        };
        let moved = next.phase as u8 != self.phase as u8;
        let actions = match event {
            Event::ModifyInit => {
                next.request(Requested::Init);
                Actions::NONE
            }
            Event::ModifyRtr => {
                next.request(Requested::Rtr);
                Actions::NONE
            }
            Event::ModifyRtrPath => {
                next.by_path = true;
                next.requested = Requested::Rtr;
                Actions::BEGIN_SEARCH
            }
            Event::ModifyRts => {
                let calls = self.by_path && matches!(self.requested, Requested::Rtr);
                next.requested = Requested::Rts;
                if calls {
                    Actions::CALL_PEER
                } else {
                    Actions::NONE
                }
            }
            Event::ModifySqd if moved => Actions::DRAIN.and(Actions::TRANSMIT),
            Event::ModifySqe if moved => Actions::KEEP_TERMINATE.and(Actions::TRANSMIT),
            Event::ModifySqd | Event::ModifySqe => Actions::NONE,
            Event::ModifyErr => Actions::END_SEARCH
                .and(Actions::CLOSE)
                .and(Actions::TRANSMIT),
            Event::ResetBegin { .. } => Actions::END_SEARCH,
            Event::ResetEnd => {
                next = Self::RESET;
                Actions::NONE
            }
            Event::Destroy => Actions::END_SEARCH,
            Event::Bind | Event::BindSearch => Actions::NONE,
            Event::Attach { wait_first_fpdu } => {
                next.may_send = !wait_first_fpdu;
                next.peer_closed = false;
                Actions::END_SEARCH.and(Actions::TRANSMIT)
            }
            Event::PeerClosed => {
                next.peer_closed = true;
                Actions::TRANSMIT
            }
            Event::StreamEnded { lost } => {
                if matches!(self.phase, QpPhase::Rts) {
                    if self.peer_closed {
                        next.fail_first(FirstFailure::RetryExceeded);
                    } else if lost {
                        next.fail_first(FirstFailure::Flushed);
                    }
                }
                Actions::TRANSMIT
            }
            Event::WrongPsn => Actions::ABORT.and(Actions::TRANSMIT),
            Event::SearchTimeout => {
                next.fail_first(FirstFailure::RetryExceeded);
                Actions::ABORT.and(Actions::TRANSMIT)
            }
            Event::PeerClosedTimeout if self.has_lost_peer() => {
                next.fail_first(FirstFailure::RetryExceeded);
                Actions::CLOSE.and(Actions::TRANSMIT)
            }
            Event::PeerClosedTimeout => {
                // The wait has ended in the meantime.
                next = self;
                Actions::NONE
            }
            Event::FirstFpdu if self.may_send => Actions::NONE,
            Event::FirstFpdu => {
                next.may_send = true;
                Actions::TRANSMIT
            }
            Event::Fault if moved => Actions::KEEP_TERMINATE.and(Actions::TRANSMIT),
            Event::Fault => Actions::TRANSMIT,
            Event::PeerTerminate(failure) => {
                next.fail_first(failure);
                Actions::NOTIFY_FATAL
                    .and(Actions::CLOSE)
                    .and(Actions::TRANSMIT)
            }
            Event::ReadAnswered => {
                next.waits_for_reads = false;
                // The drain ends with the last answer.
                if self.waits_for_reads || matches!(self.phase, QpPhase::Closing) {
                    Actions::TRANSMIT
                } else {
                    Actions::NONE
                }
            }
            Event::TerminateSent => Actions::NONE,
            Event::WaitForReads => {
                next.waits_for_reads = true;
                Actions::NONE
            }
            Event::ReadsWaitedFor => {
                next.waits_for_reads = false;
                Actions::NONE
            }
            Event::Flush => {
                next.first_failure = None;
                Actions::NONE
            }
        };
        Ok((next, actions))
    }

    /// Returns where an event leads: a row for each event, a column for each phase.
    #[rustfmt::skip]
    const fn step(self, event: Event) -> Step {
        // Short names for the table.
        const IDLE: Step = To(QpPhase::Idle);
        const WAIT: Step = To(QpPhase::Waiting);
        const RTS: Step = To(QpPhase::Rts);
        const CLOS: Step = To(QpPhase::Closing);
        const TERM: Step = To(QpPhase::Terminate);
        const ERR: Step = To(QpPhase::Error);
        const GONE: Step = To(QpPhase::Gone);
        // These depend on whether a connection manager takes part.
        let unless_by_path = if self.by_path { No } else { Stay };
        let if_by_path = if self.by_path { ERR } else { No };
        let if_init = if matches!(self.requested, Requested::Init) { WAIT } else { No };
        // A search connects from RTS on.
        let if_searching = if self.by_path { Stay } else { No };
        let if_posted = match event {
            Event::ResetBegin { posted: true } => ERR,
            _ => Stay,
        };
        let row = match event {
            //                              Idle       Waiting       Rts             Closing     Terminate   Error   Gone
            Event::ModifyInit           => [Stay,      No,           unless_by_path, No,         No,         No,     No],
            Event::ModifyRtr            => [Stay,      No,           unless_by_path, No,         No,         No,     No],
            Event::ModifyRtrPath        => [if_init,   No,           No,             No,         No,         No,     No],
            Event::ModifyRts            => [No,        if_searching, Stay,           No,         No,         No,     No],
            Event::ModifySqd            => [No,        No,           CLOS,           Stay,       Stay,       Stay,   Stay],
            Event::ModifySqe            => [No,        No,           TERM,           TERM,       Stay,       Stay,   Stay],
            Event::ModifyErr            => [ERR,       ERR,          ERR,            ERR,        ERR,        Stay,   Stay],
            Event::ResetBegin { .. }    => [if_posted, if_posted,    if_by_path,     if_by_path, if_by_path, Stay,   No],
            Event::ResetEnd             => [IDLE,      IDLE,         No,             No,         No,         IDLE,   No],
            Event::Destroy              => [GONE,      GONE,         GONE,           GONE,       GONE,       GONE,   GONE],
            Event::Bind                 => [Stay,      No,           No,             No,         No,         No,     No],
            Event::BindSearch           => [No,        Stay,         No,             No,         No,         No,     No],
            Event::Attach { .. }        => [RTS,       RTS,          No,             No,         No,         No,     No],
            Event::PeerClosed           => [Stay,      Stay,         Stay,           Stay,       Stay,       Stay,   Stay],
            Event::StreamEnded { .. }   => [ERR,       ERR,          ERR,            ERR,        ERR,        Stay,   Stay],
            Event::WrongPsn             => [ERR,       ERR,          ERR,            ERR,        ERR,        Stay,   Stay],
            Event::SearchTimeout        => [ERR,       ERR,          ERR,            ERR,        ERR,        Stay,   Stay],
            Event::PeerClosedTimeout    => [Stay,      Stay,         ERR,            ERR,        Stay,       Stay,   Stay],
            Event::FirstFpdu            => [Stay,      Stay,         Stay,           Stay,       Stay,       Stay,   Stay],
            Event::Fault                => [TERM,      TERM,         TERM,           TERM,       Stay,       Stay,   Stay],
            Event::PeerTerminate(_)     => [ERR,       ERR,          ERR,            ERR,        ERR,        Stay,   Stay],
            Event::ReadAnswered         => [Stay,      Stay,         Stay,           Stay,       Stay,       Stay,   Stay],
            Event::TerminateSent        => [Stay,      Stay,         ERR,            ERR,        ERR,        Stay,   Stay],
            Event::WaitForReads         => [Stay,      Stay,         Stay,           Stay,       Stay,       Stay,   Stay],
            Event::ReadsWaitedFor       => [Stay,      Stay,         Stay,           Stay,       Stay,       Stay,   Stay],
            Event::Flush                => [Stay,      Stay,         Stay,           Stay,       Stay,       Stay,   Stay],
        };
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
    const fn request(&mut self, requested: Requested) {
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
    #[inline]
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
                _ => None,
            },
        }
    }
}

#[cfg(any(test, MODULE))]
#[cfg_attr(MODULE, kernel::prelude::kunit_tests(iwarp_lifecycle))]
mod tests {
    use super::*;

    /// Calls `f` with each state that a word can stand for.
    fn each_state(mut f: impl FnMut(Lifecycle)) {
        for raw in 0..1 << 12 {
            let state = Lifecycle::from_raw(raw);
            if state.to_raw() == raw {
                f(state);
            }
        }
    }

    fn after(events: &[Event]) -> Lifecycle {
        let mut state = Lifecycle::NEW;
        for event in events {
            let next = state.on(*event);
            assert!(next.is_ok());
            if let Ok((next, _)) = next {
                state = next;
            }
        }
        state
    }

    const ATTACH: Event = Event::Attach {
        wait_first_fpdu: false,
    };

    #[test]
    fn a_word_stands_for_one_state() {
        let mut states = 0;
        each_state(|state| {
            assert_eq!(Lifecycle::from_raw(state.to_raw()), state);
            states += 1;
        });
        assert_eq!(states, QpPhase::ALL.len() * 4 * 16 * 6);
    }

    #[test]
    fn only_a_reset_leads_back() {
        each_state(|state| {
            for event in Event::ALL {
                if let Ok((next, _)) = state.on(event) {
                    let back = next.phase() < state.phase();
                    assert!(!back || event == Event::ResetEnd);
                }
            }
        });
    }

    #[test]
    fn what_is_destroyed_stays_so() {
        each_state(|state| {
            for event in Event::ALL {
                if let (QpPhase::Gone, Ok((next, _))) = (state.phase(), state.on(event)) {
                    assert_eq!(next.phase(), QpPhase::Gone);
                }
            }
        });
    }

    #[test]
    fn of_several_faults_only_the_first_is_kept() {
        let faults = after(&[ATTACH]).on(Event::Fault);
        let (state, actions) = faults.unwrap_or((Lifecycle::NEW, Actions::NONE));
        assert_eq!(state.phase(), QpPhase::Terminate);
        assert!(actions.contains(Actions::KEEP_TERMINATE));
        assert_eq!(state.on(Event::Fault), Ok((state, Actions::TRANSMIT)));
    }

    #[test]
    fn the_first_failure_counts_until_it_is_taken() {
        each_state(|state| {
            for event in Event::ALL {
                if matches!(event, Event::Flush | Event::ResetEnd) {
                    continue;
                }
                if let (Some(first), Ok((next, _))) = (state.first_failure(), state.on(event)) {
                    assert_eq!(next.first_failure(), Some(first));
                }
            }
        });
        let lost = after(&[ATTACH, Event::StreamEnded { lost: true }, Event::Flush]);
        assert_eq!(lost.first_failure(), None);
    }

    #[test]
    fn nothing_of_the_old_stream_is_left_after_a_reset() {
        each_state(|state| {
            if let Ok((next, _)) = state.on(Event::ResetEnd) {
                assert_eq!(next, Lifecycle::idle(Requested::Reset));
            }
        });
    }

    #[test]
    fn a_stream_of_the_connection_manager_is_not_reset() {
        let reset = Event::ResetBegin { posted: true };
        assert_eq!(after(&[ATTACH]).on(reset), Err(Refused));
        let own = after(&[Event::ModifyRtrPath, ATTACH, reset]);
        assert_eq!(own.phase(), QpPhase::Error);
    }

    #[test]
    fn rts_is_refused_after_the_end() {
        let path = [Event::ModifyRtrPath, Event::ModifyRts, ATTACH];
        assert_eq!(
            after(&path).verbs_state(),
            VerbsState::Requested(Requested::Rts)
        );
        let ended = after(&path).on(Event::StreamEnded { lost: false });
        let (ended, _) = ended.unwrap_or((Lifecycle::NEW, Actions::NONE));
        assert_eq!(ended.on(Event::ModifyRts), Err(Refused));
    }

    #[test]
    fn a_late_timeout_of_a_closed_peer_does_nothing() {
        each_state(|state| {
            if !state.has_lost_peer() {
                let late = state.on(Event::PeerClosedTimeout);
                assert_eq!(late, Ok((state, Actions::NONE)));
            }
        });
    }

    #[test]
    fn an_answered_read_calls_who_waits_for_it() {
        let calls = |state: Lifecycle| {
            state
                .on(Event::ReadAnswered)
                .is_ok_and(|(_, actions)| actions.contains(Actions::TRANSMIT))
        };
        assert!(!calls(after(&[ATTACH])));
        assert!(calls(after(&[ATTACH, Event::WaitForReads])));
        assert!(!calls(after(&[
            ATTACH,
            Event::WaitForReads,
            Event::ReadsWaitedFor
        ])));
        assert!(calls(after(&[ATTACH, Event::ModifySqd])));
    }
}
