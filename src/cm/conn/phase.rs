// SPDX-License-Identifier: GPL-2.0

//! The phases of a connection, and the clock of its steps.
//!
//! A step consumes the current [`ConnPhase`] and returns the next one. Every phase of start-up and
//! close has a time limit, except `HalfClosed` without a connection manager while this end expects
//! nothing from the peer.
//!
//! ```text
//!   connect                                   a listener
//!      |                                          |
//! Connecting --> Requesting           Waiting -> Queued -> Asked --> Replying
//!      |            |    |                |         |         |        |    |
//!      |            |    +-----> Open <---|---------|---------|--------+    |
//!      |            |             |       |         |         |             |
//!      +------------+-------------+-> Released <----+---------+-- Lingering +
//! ```
//!
//! With TLS, `Securing` comes between `Connecting` and `Requesting`, and between two times of
//! `Waiting`. `Attaching` comes before `Open` or before `Replying` with an accept, `Ending` before
//! `Released`. `Settling` may come between `Requesting` and `Open`. Without a connection manager,
//! `Expecting` comes between `Replying` and `Open`, and `Asked` is skipped.
//!
//! Context: process, the actor's mutex held, but for [`PendingReply`], which has a lock of its own.

use iwarp::{
    inject::ConnAction,
    mpa::{
        negotiate::{
            Initiator,
            Request,
            Responder,
            StreamRules, //
        },
        start::{
            Frame,
            PrivateData,
            RtrKinds, //
        }, //
    }, //
};
use kernel::{
    prelude::*,
    sync::Arc,
    time::{
        Delta,
        Instant,
        Monotonic, //
    }, //
};
use kernel_ext::{
    compat::as_millis_ceil,
    net::Credentials,
    rdma::iw_cm::CmId, //
};

use crate::{
    cm::listen::admission::{
        Admission,
        HalfOpen,
        Unanswered, //
    },
    device::inject::Hold,
    stream::connection::StreamParams, //
};

use super::{
    frames::{
        Inbox,
        Outbox, //
    },
    handshakes::Securing, //
};

/// State that only the steps of a connection touch.
pub(in crate::cm) struct Actor {
    pub(in crate::cm) phase: ConnPhase,
    /// Receives events while the iWARP connection manager still expects one.
    pub(in crate::cm) id: Option<CmId>,
    /// The zero of this actor's clock.
    pub(super) created: Instant<Monotonic>,
    /// How far a test has advanced the clock.
    #[cfg(CONFIG_KUNIT = "y")]
    pub(super) ahead: Delta,
    /// When the phase times out.
    pub(super) deadline: Option<Delta>,
    /// When to step again before the deadline.
    pub(super) recheck_at: Option<Delta>,
    /// When the armed timer expires.
    pub(super) armed: Option<Delta>,
    /// Whether the present step has to come back, and the pause before that, in milliseconds.
    pub(super) comes_back: bool,
    pub(super) pause: u32,
    /// What a rule does to the connection, once the rules were asked.
    pub(super) ruled: Option<RuledConn>,
    /// The name of the phase that was traced last.
    pub(super) traced: &'static str,
}

/// What a rule does to a connection that it has hit (`cm::conn::inject`).
#[derive(Clone, Copy)]
pub(in crate::cm) struct RuledConn {
    /// [`None`]: no rule has hit it.
    pub(in crate::cm) action: Option<ConnAction>,
    /// The number of the rules.
    pub(in crate::cm) number: u32,
    pub(in crate::cm) hold: Hold,
}

/// The state of a connection.
pub(in crate::cm) enum ConnPhase {
    /// Initiator: TCP connects.
    Connecting {
        initiator: Initiator,
        request: KBox<Frame>,
        /// With these a TLS handshake follows.
        tls: Option<Credentials>,
    },
    /// Either: a TLS handshake is under way.
    Securing(Securing),
    /// Initiator: sends the Request and awaits the Reply.
    Requesting {
        initiator: Initiator,
        out: Outbox,
        inbox: Inbox,
    },
    /// Initiator: gives a peer that has accepted time to start reading the stream.
    Settling {
        inbox: Inbox,
        private_data: PrivateData,
        rules: StreamRules,
    },
    /// Responder: awaits the Request.
    Waiting {
        responder: Responder,
        inbox: Inbox,
        entry: HalfOpen,
    },
    /// Responder: waits until the consumer has answered enough earlier requests.
    Queued {
        asked: Asked,
        inbox: Inbox,
        entry: HalfOpen,
    },
    /// Responder: awaits the consumer's answer.
    Asked(Question),
    /// Responder: sends the Reply.
    Replying { out: Outbox, then: AfterReply },
    /// Responder without a connection manager: awaits the first octets of the stream.
    Expecting(KBox<StreamParams>),
    /// The queue pair is to get the stream.
    Attaching(Attaching),
    /// The stream belongs to the queue pair.
    Open(Open),
    /// The peer has closed its half; this end sends what the queue pair has not sent yet.
    HalfClosed(HalfClosed),
    /// This end has closed its half; awaits the peer's FIN.
    Closing(Closing),
    /// As `Closing`, but the queue pair is detached.
    Lingering(Closing),
    /// Only TCP's part of the end is left.
    Ending(FinalAction),
    /// Final: no further transitions.
    Released,
}

/// What follows a step.
pub(in crate::cm) enum NextStep {
    /// Run the next step at once.
    Again(ConnPhase),
    /// Wait for the next event.
    Wait(ConnPhase),
}

impl Actor {
    /// Makes an actor in a phase.
    pub(in crate::cm) fn new(phase: ConnPhase) -> Self {
        Self {
            phase,
            id: None,
            created: Instant::now(),
            #[cfg(CONFIG_KUNIT = "y")]
            ahead: Delta::ZERO,
            deadline: None,
            recheck_at: None,
            armed: None,
            comes_back: false,
            pause: PAUSE,
            ruled: None,
            traced: "",
        }
    }

    /// Makes the actor of a connection that awaits the peer's Request.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(in crate::cm) fn awaiting_request(responder: Responder, entry: HalfOpen) -> Result<Self> {
        let grace = entry.admission.grace_millis();
        let mut actor = Self::new(ConnPhase::Waiting {
            responder,
            inbox: Inbox::new()?,
            entry,
        });
        actor.limit(REQUEST_MS);
        actor.recheck_after(grace);
        Ok(actor)
    }

    /// Sets the time limit of the phase that begins.
    pub(in crate::cm) fn limit(&mut self, millis: u32) {
        self.deadline = Some(self.after(millis));
        self.recheck_at = None;
    }

    /// Removes the time limit of the phase that begins.
    pub(in crate::cm) fn no_limit(&mut self) {
        self.deadline = None;
        self.recheck_at = None;
    }

    /// Requests another step after a delay.
    pub(in crate::cm) fn recheck_after(&mut self, millis: u32) {
        self.recheck_at = Some(self.after(millis));
    }

    /// Requests another step after a pause, unless one is requested already. Doubles the pause, up
    /// to `longest`, so that a long wait costs few steps.
    pub(in crate::cm) fn recheck_with_backoff(&mut self, pause: &mut u32, longest: u32) {
        if self.recheck_at.is_some_and(|at| self.now() < at) {
            return;
        }
        self.recheck_after(*pause);
        *pause = pause.saturating_mul(2).min(longest);
    }

    /// Requests another step soon, because another thread has what this one needs. The pause
    /// doubles from step to step, so that many that wait cost little.
    pub(in crate::cm) fn come_back(&mut self) {
        let at = self.after(self.pause);
        self.recheck_at = Some(self.recheck_at.map_or(at, |other| other.min(at)));
        self.comes_back = true;
    }

    /// Returns whether the requested step is due; clears the request if so.
    pub(in crate::cm) fn is_recheck_due(&mut self) -> bool {
        let due = self.recheck_at.is_some_and(|at| self.now() >= at);
        if due {
            self.recheck_at = None;
        }
        due
    }

    /// Returns whether the phase has timed out.
    pub(in crate::cm) fn is_overdue(&self) -> bool {
        self.deadline.is_some_and(|deadline| self.now() >= deadline)
    }

    /// Returns how many seconds are left of the phase's limit, rounded up; [`None`] if it has none.
    pub(in crate::cm) fn left(&self) -> Option<i64> {
        let left = self.deadline? - self.now();
        Some((as_millis_ceil(left) + 999) / 1000)
    }

    /// Returns the time since the connection was made.
    pub(in crate::cm) fn now(&self) -> Delta {
        let now = self.created.elapsed();
        #[cfg(CONFIG_KUNIT = "y")]
        let now = now + self.ahead;
        now
    }

    /// Returns the time that will be `now` then.
    pub(in crate::cm) fn after(&self, millis: u32) -> Delta {
        // NO-OVERFLOW: the clock overflows only centuries after any limit.
        self.now() + Delta::from_millis(millis.into())
    }

    /// Returns whether the latest step has to come back, for a test.
    #[cfg(CONFIG_KUNIT = "y")]
    pub(super) fn comes_back(&self) -> bool {
        self.comes_back
    }

    /// Advances the clock, for a test.
    #[cfg(CONFIG_KUNIT = "y")]
    pub(in crate::cm) fn pass(&mut self, millis: u32) {
        self.ahead += Delta::from_millis(millis.into());
    }
}

/// How long a peer may take to send its Request, in milliseconds (MPA-8).
pub(super) const REQUEST_MS: u32 = 5_000;
/// The first and the longest pause before a step tries again to get what another thread has, in
/// milliseconds.
pub(super) const PAUSE: u32 = 1;
pub(super) const PAUSE_MAX: u32 = 32;

/// A Request that is put to consumers.
pub(in crate::cm) struct Question {
    pub(super) asked: Asked,
    pub(super) inbox: Inbox,
    /// The listeners to ask next.
    pub(super) others: KVec<Arc<Admission>>,
    /// Counts against the backlog of the listener being asked.
    pub(super) unanswered: Unanswered,
    /// The rejection with the most private data.
    pub(super) refusal: Option<KBox<Frame>>,
}

impl Question {
    /// Keeps a rejection if it is longer than those before; one from the wrong consumer is empty.
    pub(super) fn keep(&mut self, refusal: KBox<Frame>) {
        let len = |frame: &KBox<Frame>| frame.as_octets().len();
        if self
            .refusal
            .as_ref()
            .is_none_or(|kept| len(kept) < len(&refusal))
        {
            self.refusal = Some(refusal);
        }
    }
}

/// The consumer's answer to a peer's request, left for the connection's next step.
pub(in crate::cm) enum PendingReply {
    /// The answer is ready.
    Answered(Answer),
    /// A caller is preparing an answer.
    Busy,
    /// No answer is expected: not yet, or no longer.
    Closed,
    /// The consumer was asked and has not answered.
    Open(Asked),
}

/// The request that the consumer was asked about.
#[derive(Clone, Copy)]
pub(in crate::cm) struct Asked {
    pub(in crate::cm) responder: Responder,
    pub(in crate::cm) request: Request,
}

/// The consumer's decision.
pub(in crate::cm) enum Answer {
    /// Accept; the queue pair is bound.
    Accept {
        id: CmId,
        reply: KBox<Frame>,
        rules: StreamRules,
        rtr: RtrKinds,
    },
    /// Reject, with this Reply.
    Refuse(KBox<Frame>),
}

impl PendingReply {
    /// Takes the question in order to answer it. The caller must then store an answer or close the
    /// reply.
    pub(super) fn take_question(&mut self) -> Option<Asked> {
        match self {
            Self::Open(asked) => {
                let asked = *asked;
                *self = Self::Busy;
                Some(asked)
            }
            Self::Answered(_) | Self::Busy | Self::Closed => None,
        }
    }

    /// Takes the answer, if it is ready.
    pub(in crate::cm) fn take_answer(&mut self) -> Option<Answer> {
        match core::mem::replace(self, Self::Closed) {
            Self::Answered(answer) => Some(answer),
            other => {
                *self = other;
                None
            }
        }
    }

    /// Returns whether the consumer can still answer.
    pub(in crate::cm) fn is_open(&self) -> bool {
        matches!(self, Self::Open(_))
    }

    /// Returns whether an answer is ready or being prepared.
    pub(in crate::cm) fn is_busy(&self) -> bool {
        matches!(self, Self::Answered(_) | Self::Busy)
    }

    /// Stops expecting an answer.
    pub(in crate::cm) fn close(&mut self) {
        if self.is_open() {
            *self = Self::Closed;
        }
    }
}

/// What follows a Reply.
pub(in crate::cm) enum AfterReply {
    /// The queue pair gets the stream.
    Open {
        ird: u16,
        ord: u16,
        /// The kinds of ready-to-receive message that the peer may send; empty if it sends none.
        rtr: RtrKinds,
    },
    /// A searching queue pair gets the stream once its first octets arrive.
    Expect(KBox<StreamParams>),
    /// The consumer rejected.
    Refuse,
}

/// A stream that the queue pair is to get.
pub(in crate::cm) struct Attaching {
    pub(super) params: StreamParams,
    pub(super) then: AfterAttach,
}

/// What follows once the queue pair has its stream.
pub(in crate::cm) enum AfterAttach {
    /// Responder without a connection manager: the stream has begun.
    FirstOctets,
    /// The queue pair is its own peer.
    Itself,
    /// Responder: send the Reply.
    Reply(KBox<Frame>),
    /// Initiator: report that the peer has accepted.
    Report(AcceptedReply),
}

/// The Reply of a peer that has accepted.
pub(in crate::cm) struct AcceptedReply {
    pub(super) private_data: PrivateData,
    pub(super) rules: StreamRules,
    pub(super) inbox: Inbox,
}

impl AcceptedReply {
    pub(super) fn private_data(&self) -> &[u8] {
        self.private_data.of(self.inbox.octets())
    }
}

/// A stream that belongs to the queue pair.
pub(in crate::cm) struct Open {
    /// The depths for an ESTABLISHED event that has not been raised.
    pub(super) unreported: Option<(u16, u16)>,
    /// Whether sent data must be delivered even if the queue pair is destroyed.
    pub(super) lingers: bool,
    /// Progress towards an announced close by the queue pair.
    pub(super) leaving: Option<CloseProgress>,
    /// Whether the queue pair may have to be given what arrived during the start-up.
    pub(super) undelivered: bool,
}

impl Open {
    /// Makes a stream that was reported to the iWARP connection manager or does not concern it.
    pub(in crate::cm) const fn reported() -> Self {
        Self {
            unreported: None,
            lingers: false,
            leaving: None,
            undelivered: false,
        }
    }

    /// Makes a stream not reported yet, with the depths of this end.
    pub(in crate::cm) const fn unreported(ird: u16, ord: u16) -> Self {
        Self {
            unreported: Some((ird, ord)),
            lingers: false,
            leaving: None,
            undelivered: false,
        }
    }

    /// Makes it a stream without a connection manager. Its consumer cannot disconnect, so what it
    /// has sent must be delivered even if it destroys the queue pair right afterwards.
    pub(in crate::cm) const fn oob(self) -> Self {
        Self {
            lingers: true,
            ..self
        }
    }

    /// Raises ESTABLISHED once.
    pub(in crate::cm) fn report(&mut self, actor: &Actor) {
        if let (Some((ird, ord)), Some(id)) = (self.unreported.take(), &actor.id) {
            // Depths from the peer's view: our Reads use its inbound queue. The event is
            // preallocated.
            let _ = id.established(ord.into(), ird.into());
        }
    }
}

/// A stream whose peer has closed its half.
pub(in crate::cm) struct HalfClosed {
    pub(super) ack_deadline: ProgressDeadline,
    /// Delay before the next check of what is owed, in milliseconds.
    pub(super) pause: u32,
    /// Whether the queue pair may keep its posted receives as long as it expects nothing from the
    /// peer.
    pub(super) lingers: bool,
}

/// A connection whose FIN was sent.
pub(in crate::cm) struct Closing {
    pub(super) ack_deadline: ProgressDeadline,
    pub(super) fin_deadline: ProgressDeadline,
    /// TCP had no memory for the FIN, so that the peer will not see one.
    pub(super) lacks_fin: bool,
    /// The peer has acknowledged everything, and `fin_deadline` holds; only its FIN is missing.
    pub(super) delivered: bool,
}

/// A time limit that restarts on expiry if the peer has made progress: a slow peer is not stuck.
pub(super) struct ProgressDeadline {
    /// Octets that the peer had acknowledged, or sent, when the limit was set.
    pub(super) progress: u64,
    /// How often the limit may restart.
    pub(super) renewals: u32,
}

impl ProgressDeadline {
    pub(super) const fn new(progress: u64, renewals: u32) -> Self {
        Self { progress, renewals }
    }

    /// Returns whether the time limit has expired without progress, or with no restarts left.
    /// Otherwise restarts an expired limit. `progress` is the present count of octets.
    pub(super) fn is_stuck(&mut self, progress: u64, actor: &mut Actor, millis: u32) -> bool {
        if !actor.is_overdue() {
            return false;
        }
        let before = core::mem::replace(&mut self.progress, progress);
        if progress == before || self.renewals == 0 {
            return true;
        }
        self.renewals -= 1;
        actor.limit(millis);
        false
    }
}

/// Progress of the work that the queue pair has to finish before it closes a stream. Most of that
/// depends on the peer acknowledging data and answering Reads.
pub(super) struct CloseProgress {
    pub(super) acked: u64,
    pub(super) received: u64,
    /// When no progress helps any more.
    pub(super) end: Delta,
}

/// What happens to the TCP connection at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cm) enum FinalAction {
    /// Release: TCP has ended, or delivers the rest by itself.
    Done,
    /// Send a FIN, then release.
    Fin,
    /// Send a FIN, then release: TCP delivers the rest by itself, and bounds how many connections
    /// without an owner it keeps. Without memory for the FIN, first wait once for acknowledgments.
    LeaveToTcp,
    /// Send a FIN if none was sent, and await the peer's FIN.
    Linger,
    /// Reset.
    Reset,
}
