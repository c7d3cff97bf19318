// SPDX-License-Identifier: GPL-2.0

//! What becomes of a queue pair: one table of states and events.
//!
//! [`State::handle`] says for an event which state comes next and what the driver has to do about
//! it ([`Actions`]), or that the event is refused. The table knows nothing of queues or sockets; an
//! action without an object, such as ending a connection that was never made, is simply nothing to
//! do.
//!
//! ```text
//!   Reset -> Init -> Rtr -> Rts -> Closing ----> Error
//!              \______________^ \-> Terminating --^
//! ```
//!
//! Pure; the driver holds its state lock around a transition.
//!
//! RFC 5040, section 6; RFC 5041, section 6 (draft numbering: RDMAP-131..138, DDP-54..66).

use crate::fault::Fault;

/// The state of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Nothing may be posted.
    Reset,
    /// Receives may be posted; no stream.
    Init,
    /// Ready to receive: a stream comes or is there, the consumer has not allowed sending yet.
    Rtr,
    /// Full operation.
    Rts,
    /// Either side has ended gracefully: what was posted goes out, then the connection ends.
    Closing,
    /// A fault is being reported: nothing that comes in counts, and nothing but the Terminate goes
    /// out.
    Terminating,
    /// The end: everything posted is flushed.
    Error,
}

/// A state as verbs have it (`enum ib_qp_state`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum VerbsState {
    /// `IB_QPS_RESET`.
    Reset,
    /// `IB_QPS_INIT`.
    Init,
    /// `IB_QPS_RTR`.
    Rtr,
    /// `IB_QPS_RTS`.
    Rts,
    /// `IB_QPS_SQD`: for iWARP, the request to end gracefully.
    Sqd,
    /// `IB_QPS_SQE`: for iWARP, a Terminate on its way out.
    Sqe,
    /// `IB_QPS_ERR`.
    Err,
}

/// Something that happens to a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// The consumer asks for a state.
    Modify(VerbsState),
    /// Start-up is done, and the connection manager allows full operation.
    Established,
    /// Start-up is done for a queue pair that its consumer moves to RTR and RTS by itself.
    Joined,
    /// A check failed, on an incoming segment or at home.
    Fault(Fault),
    /// The Terminate has been handed to TCP, or could not be in the time allowed.
    TerminateSent,
    /// The peer has sent a Terminate.
    TerminateReceived,
    /// The peer has sent its FIN, at the end of an FPDU and of a message; our half is open still.
    PeerClosed,
    /// Both halves of the connection have ended gracefully.
    Closed,
    /// The connection is lost: reset, timed out, or FIN inside an FPDU or a message (MPA-30).
    Lost,
}

/// What the driver has to do after a transition; a set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Actions(u8);

impl Actions {
    /// Nothing.
    pub const NONE: Self = Self(0);
    /// Complete everything posted and not completed with a flush error (RDMAP-99, -133).
    pub const FLUSH: Self = Self(1 << 0);
    /// Send a Terminate at the next FPDU boundary, before anything else, and report
    /// [`Event::TerminateSent`] (RDMAP-140..143).
    pub const SEND_TERMINATE: Self = Self(1 << 1);
    /// End our half of the connection gracefully when what is due has gone out (RDMAP-135, DDP-57):
    /// an FPDU that has begun and a Terminate in any case, posted work unless [`Self::FLUSH`] comes
    /// along. What the peer sends meanwhile is read, so that it does not cause a reset.
    pub const SHUTDOWN: Self = Self(1 << 2);
    /// End the connection at once.
    pub const ABORT: Self = Self(1 << 3);
    /// Tell the consumer that the queue pair has failed (RDMAP-139, -97).
    pub const REPORT_ERROR: Self = Self(1 << 4);
    /// Tell the connection manager that the peer is leaving or gone (DDP-9, -60).
    pub const REPORT_CLOSE: Self = Self(1 << 5);

    /// Returns the actions of either set.
    #[inline]
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns whether every action of `some` is in this set.
    #[inline]
    pub const fn contains(self, some: Self) -> bool {
        self.0 & some.0 == some.0
    }
}

/// The answer to an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transition {
    /// The state from now on.
    pub next: State,
    /// What is to be done, after the state has changed.
    pub actions: Actions,
}

/// The event is not allowed in this state; nothing changes. For [`Event::Modify`] the consumer gets
/// an error, for [`Event::Established`] and [`Event::Joined`] the connection is to be ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused;

/// What becomes of a work request that is posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Posting {
    /// The post fails.
    Refused,
    /// It is queued and processed when it can be.
    Queued,
    /// It is queued and completed with a flush error.
    Flushed,
}

impl State {
    /// Every state, in order.
    pub const ALL: [Self; 7] = [
        Self::Reset,
        Self::Init,
        Self::Rtr,
        Self::Rts,
        Self::Closing,
        Self::Terminating,
        Self::Error,
    ];

    /// Returns the state as verbs have it.
    #[inline]
    pub const fn verbs(self) -> VerbsState {
        match self {
            Self::Reset => VerbsState::Reset,
            Self::Init => VerbsState::Init,
            Self::Rtr => VerbsState::Rtr,
            Self::Rts => VerbsState::Rts,
            Self::Closing => VerbsState::Sqd,
            Self::Terminating => VerbsState::Sqe,
            Self::Error => VerbsState::Err,
        }
    }

    /// Returns whether incoming FPDUs count. In the other states they are read and dropped (DDP-83,
    /// RDMAP-137).
    #[inline]
    pub const fn receives(self) -> bool {
        match self {
            // DDP-62: receiving goes on after our own half is closed.
            Self::Rtr | Self::Rts | Self::Closing => true,
            Self::Reset | Self::Init | Self::Terminating | Self::Error => false,
        }
    }

    /// Returns whether work requests and responses may be put on the stream. A queue pair in RTR
    /// answers Reads but has no work requests.
    #[inline]
    pub const fn transmits(self) -> bool {
        match self {
            Self::Rtr | Self::Rts | Self::Closing => true,
            Self::Reset | Self::Init | Self::Terminating | Self::Error => false,
        }
    }

    /// Returns what becomes of a send work request that is posted now.
    #[inline]
    pub const fn send_posting(self) -> Posting {
        match self {
            Self::Reset | Self::Init | Self::Rtr => Posting::Refused,
            Self::Rts => Posting::Queued,
            // DDP-58: after the request to end, and once a fault is being reported.
            Self::Closing | Self::Terminating | Self::Error => Posting::Flushed,
        }
    }

    /// Returns what becomes of a receive work request that is posted now.
    #[inline]
    pub const fn recv_posting(self) -> Posting {
        match self {
            Self::Reset => Posting::Refused,
            // While closing, the peer's last messages still want buffers.
            Self::Init | Self::Rtr | Self::Rts | Self::Closing => Posting::Queued,
            Self::Terminating | Self::Error => Posting::Flushed,
        }
    }

    /// Returns what an event leads to: **the** table of the crate. A command.
    ///
    /// # Errors
    ///
    /// [`Refused`] for a modification or a connection that does not fit the state.
    pub const fn handle(self, event: Event) -> Result<Transition, Refused> {
        use Actions as A;

        const LEAVE: Actions = Actions::FLUSH.and(Actions::ABORT);
        const FAIL: Actions = Actions::SEND_TERMINATE.and(Actions::REPORT_ERROR);
        const END: Actions = Actions::FLUSH.and(Actions::SHUTDOWN);
        const GONE: Actions = Actions::FLUSH
            .and(Actions::ABORT)
            .and(Actions::REPORT_CLOSE);

        let (next, actions) = match (self, event) {
            // Back to the start, from anywhere.
            (Self::Reset, Event::Modify(VerbsState::Reset)) => (Self::Reset, A::NONE),
            (_, Event::Modify(VerbsState::Reset)) => (Self::Reset, LEAVE),

            // To the end, from anywhere.
            (Self::Error, Event::Modify(VerbsState::Err)) => (Self::Error, A::NONE),
            (_, Event::Modify(VerbsState::Err)) => (Self::Error, END),

            // The way up. A state may be asked for again.
            (Self::Reset | Self::Init, Event::Modify(VerbsState::Init)) => (Self::Init, A::NONE),
            (Self::Init | Self::Rtr, Event::Modify(VerbsState::Rtr)) => (Self::Rtr, A::NONE),
            (Self::Rtr | Self::Rts, Event::Modify(VerbsState::Rts)) => (Self::Rts, A::NONE),
            (Self::Init | Self::Rtr, Event::Established) => (Self::Rts, A::NONE),
            (Self::Rtr, Event::Joined) => (Self::Rtr, A::NONE),
            (Self::Rts, Event::Joined) => (Self::Rts, A::NONE),

            // Graceful end by the consumer (RDMAP-131, DDP-57).
            (Self::Rts, Event::Modify(VerbsState::Sqd)) => (Self::Closing, A::SHUTDOWN),
            // The peer or a fault was faster; what was asked for is happening anyway.
            (Self::Closing | Self::Terminating | Self::Error, Event::Modify(VerbsState::Sqd)) => {
                (self, A::NONE)
            }

            // Abortive end by the consumer: a Terminate without cause.
            (Self::Rts | Self::Closing, Event::Modify(VerbsState::Sqe)) => {
                (Self::Terminating, A::SEND_TERMINATE)
            }
            (Self::Terminating, Event::Modify(VerbsState::Sqe)) => (Self::Terminating, A::NONE),

            (
                Self::Rtr | Self::Rts | Self::Closing | Self::Terminating | Self::Error,
                Event::Modify(VerbsState::Init),
            )
            | (
                Self::Reset | Self::Rts | Self::Closing | Self::Terminating | Self::Error,
                Event::Modify(VerbsState::Rtr),
            )
            | (
                Self::Reset | Self::Init | Self::Closing | Self::Terminating | Self::Error,
                Event::Modify(VerbsState::Rts),
            )
            | (Self::Reset | Self::Init | Self::Rtr, Event::Modify(VerbsState::Sqd))
            | (
                Self::Reset | Self::Init | Self::Rtr | Self::Error,
                Event::Modify(VerbsState::Sqe),
            )
            | (
                Self::Reset | Self::Rts | Self::Closing | Self::Terminating | Self::Error,
                Event::Established,
            )
            | (
                Self::Reset | Self::Init | Self::Closing | Self::Terminating | Self::Error,
                Event::Joined,
            ) => return Err(Refused),

            // RDMAP-136: no fault is recovered from. RDMAP-144: the first one is reported.
            (Self::Rtr | Self::Rts | Self::Closing, Event::Fault(_)) => (Self::Terminating, FAIL),
            (Self::Terminating, Event::TerminateSent) => (Self::Error, END),
            (Self::Rtr | Self::Rts | Self::Closing, Event::TerminateReceived) => {
                (Self::Error, END.and(A::REPORT_ERROR))
            }
            (Self::Terminating, Event::TerminateReceived) => (Self::Error, END),

            // DDP-60, -61: the peer's half is closed; what we owe it still goes out.
            (Self::Rtr | Self::Rts, Event::PeerClosed) => {
                (Self::Closing, A::SHUTDOWN.and(A::REPORT_CLOSE))
            }
            (Self::Closing, Event::PeerClosed) => (Self::Closing, A::REPORT_CLOSE),
            (Self::Rtr | Self::Rts | Self::Closing | Self::Terminating, Event::Closed) => {
                (Self::Error, A::FLUSH.and(A::REPORT_CLOSE))
            }
            (Self::Rtr | Self::Rts | Self::Closing | Self::Terminating, Event::Lost) => {
                (Self::Error, GONE)
            }
            (Self::Error, Event::Closed | Event::Lost) => (Self::Error, A::REPORT_CLOSE),

            // What comes too late or too early changes nothing.
            (
                Self::Reset | Self::Init,
                Event::Fault(_)
                | Event::TerminateReceived
                | Event::PeerClosed
                | Event::Closed
                | Event::Lost,
            )
            | (Self::Terminating, Event::Fault(_) | Event::PeerClosed)
            | (Self::Error, Event::Fault(_) | Event::TerminateReceived | Event::PeerClosed)
            | (
                Self::Reset | Self::Init | Self::Rtr | Self::Rts | Self::Closing | Self::Error,
                Event::TerminateSent,
            ) => (self, A::NONE),
        };
        Ok(Transition { next, actions })
    }
}
