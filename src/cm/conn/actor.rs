// SPDX-License-Identifier: GPL-2.0

//! The actor of a connection: its phases, its clock and its end.
//!
//! A step consumes the current [`ConnPhase`] and, from the socket's state and octets, the flags in
//! `Wants` and the clock, decides the next one. It then either goes on at once or waits for the
//! next event. Every phase of start-up and close has a time limit, except `HalfClosed` without a
//! connection manager while this end expects nothing from the peer.
//!
//! ```text
//!   connect                                   a listener
//!      |                                          |
//! Connecting --> Requesting           Waiting --> Held --> Asked --> Replying
//!      |            |    |                |         |         |        |    |
//!      |            |    +-----> Open <---|---------|---------|--------+    |
//!      |            |             |       |         |         |             |
//!      +------------+-------------+-> Released <----+---------+-- Lingering +
//! ```
//!
//! `Attaching` comes before `Open` or before `Replying` with an accept, `Ending` before `Released`.
//! `Settling` may come between `Requesting` and `Open`. Without a connection manager, `Expecting`
//! comes between `Replying` and `Open`, and `Asked` is skipped. This file contains what all phases
//! share; `initiator`, `responder` and `oob` contain the phases of the two sides, `stream` those
//! from `Open` on.
//!
//! Context: process, the actor's mutex held.

use iwarp::{
    actions::Later,
    mpa::{
        negotiate::{
            Initiator,
            Responder,
            StreamRules, //
        },
        start::{
            Frame,
            PrivateData,
            Revision,
            RtrKinds,
            StartError, //
        }, //
    }, //
};
use kernel::{
    prelude::*,
    sync::{
        atomic::Full,
        Arc, //
    },
    time::{
        msecs_to_jiffies,
        Delta,
        Instant,
        Monotonic, //
    }, //
};
use kernel_ext::{
    compat::{
        as_millis_ceil,
        ECONNRESET,
        EPROTO, //
    },
    mm::noio::without_io,
    rdma::iw_cm::{
        CmId,
        ConnectReply, //
    },
    sync::BhOff,
    workqueue::{
        cancel_delayed,
        enqueue_delayed, //
    }, //
};

use super::{
    attach::Attaching,
    frames::{
        readable,
        Inbox,
        Outbox,
        Readable, //
    },
    is_wanted,
    requests::Asked,
    responder::{
        AfterReply, //
        HalfOpen,
        Question,
    },
    stream::{
        Closing,
        FinalAction,
        HalfClosed,
        Open, //
    },
    Conn,
    Route,
    TIMER, //
};
use crate::stream::connection::StreamParams;

/// State that only the steps of a connection touch.
pub(in crate::cm) struct Actor {
    pub(in crate::cm) phase: ConnPhase,
    /// Receives events while the iWARP connection manager still expects one.
    pub(in crate::cm) id: Option<CmId>,
    /// The zero of this actor's clock.
    born: Instant<Monotonic>,
    /// How far a test has advanced the clock.
    #[cfg(CONFIG_KUNIT = "y")]
    ahead: Delta,
    /// When the phase times out.
    deadline: Option<Delta>,
    /// When to step again before the deadline.
    recheck_at: Option<Delta>,
    /// When the armed timer expires.
    armed: Option<Delta>,
    /// Whether the present step has to come back, and the pause before that, in milliseconds.
    comes_back: bool,
    pause: u32,
    /// The name of the phase that was traced last.
    pub(super) traced: &'static str,
}

/// The state of a connection.
pub(in crate::cm) enum ConnPhase {
    /// Initiator: TCP connects.
    Connecting {
        initiator: Initiator,
        request: KBox<Frame>,
    },
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
    Held {
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
            born: Instant::now(),
            #[cfg(CONFIG_KUNIT = "y")]
            ahead: Delta::ZERO,
            deadline: None,
            recheck_at: None,
            armed: None,
            comes_back: false,
            pause: PAUSE,
            traced: "",
        }
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
        let now = self.born.elapsed();
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

impl Conn {
    /// Runs steps until the connection has to wait. Waits for another holder of the actor first.
    ///
    /// Context: process; see the module's documentation for the locks.
    pub(in crate::cm) fn step(self: &Arc<Self>) {
        without_io(|| self.with_actor(|actor| self.run_steps(actor)));
    }

    /// Runs steps as [`Conn::step`] does, unless another thread holds the actor; then that one lets
    /// another step follow.
    ///
    /// Context: process, a work item.
    pub(super) fn try_step(self: &Arc<Self>) {
        // Block I/O may depend on this connection or on one queued behind it, so allocations must
        // not start I/O.
        without_io(|| {
            let taken = self.actor.try_lock().or_else(|| {
                // ORDERING: pairs with the exchange in `let_step_follow`. It is between the two
                // attempts: if the second one fails, the holder sees the flag after it unlocks.
                self.missed.xchg(true, Full);
                self.actor.try_lock()
            });
            if let Some(mut actor) = taken {
                self.run_steps(&mut actor);
                drop(actor);
                self.let_step_follow();
            }
        });
    }

    /// Calls `f` with the actor, after another holder of it; then lets a step follow, if one could
    /// not run meanwhile.
    ///
    /// Context: process.
    pub(super) fn with_actor<R>(self: &Arc<Self>, f: impl FnOnce(&mut Actor) -> R) -> R {
        let result = f(&mut self.actor.lock());
        self.let_step_follow();
        result
    }

    fn let_step_follow(self: &Arc<Self>) {
        // ORDERING: pairs with the exchange in `try_step`, and comes after the actor is unlocked.
        if self.missed.xchg(false, Full) {
            self.kick();
        }
    }

    /// Runs steps until the connection has to wait.
    pub(in crate::cm) fn run_steps(self: &Arc<Self>, actor: &mut Actor) {
        actor.comes_back = false;
        loop {
            self.trace_phase(actor);
            let phase = core::mem::replace(&mut actor.phase, ConnPhase::Released);
            match self.advance(actor, phase) {
                NextStep::Again(phase) => actor.phase = phase,
                NextStep::Wait(phase) => {
                    actor.phase = phase;
                    self.trace_phase(actor);
                    break;
                }
            }
        }
        actor.pause = match actor.comes_back {
            true => (2 * actor.pause).min(PAUSE_MAX),
            false => PAUSE,
        };
        self.set_timer(actor);
    }

    fn advance(self: &Arc<Self>, actor: &mut Actor, phase: ConnPhase) -> NextStep {
        match phase {
            ConnPhase::Connecting { initiator, request } => {
                self.connecting(actor, initiator, request)
            }
            ConnPhase::Requesting {
                initiator,
                out,
                inbox,
            } => self.requesting(actor, initiator, out, inbox),
            ConnPhase::Settling {
                inbox,
                private_data,
                rules,
            } => self.settling(actor, inbox, private_data, rules),
            ConnPhase::Waiting {
                responder,
                inbox,
                entry,
            } => self.waiting(actor, responder, inbox, entry),
            ConnPhase::Held {
                asked,
                inbox,
                entry,
            } => self.held(actor, asked, inbox, entry),
            ConnPhase::Asked(question) => self.asked(actor, question),
            ConnPhase::Replying { out, then } => self.replying(actor, out, then),
            ConnPhase::Expecting(params) => self.expecting(actor, params),
            ConnPhase::Attaching(attaching) => self.attaching(actor, attaching),
            ConnPhase::Open(open) => self.open(actor, open),
            ConnPhase::HalfClosed(half) => self.half_closed(actor, half),
            ConnPhase::Closing(closing) => self.closing(actor, closing),
            ConnPhase::Lingering(closing) => self.lingering(actor, closing),
            ConnPhase::Ending(action) => self.ending(actor, action),
            ConnPhase::Released => NextStep::Wait(ConnPhase::Released),
        }
    }

    /// Sets the timer to the earlier of deadline and requested step.
    pub(super) fn set_timer(self: &Arc<Self>, actor: &mut Actor) {
        let wanted = match (actor.deadline, actor.recheck_at) {
            (Some(deadline), Some(recheck)) => Some(deadline.min(recheck)),
            (one, other) => one.or(other),
        };
        // ORDERING: pairs with the exchange of the timer's item: if this misses it, another step
        // follows.
        if self.timer_expired.xchg(false, Full) {
            actor.armed = None;
        }
        if wanted == actor.armed {
            return;
        }
        // A timer item that is queued or running cannot be set, but then another step follows.
        cancel_delayed::<Self, TIMER>(self);
        actor.armed = wanted.filter(|at| {
            let millis = as_millis_ceil(*at - actor.now()).clamp(1, 1 << 20);
            // CAST: just clamped. One more jiffy, because the current one is partly over.
            let delay = msecs_to_jiffies(millis as u32) + 1;
            enqueue_delayed::<Self, TIMER>(self.clone(), delay).is_ok()
        });
    }

    /// Returns whether any request ends the start-up.
    pub(in crate::cm) fn is_stopped(&self) -> bool {
        self.connection.is_asked(Later::Close)
            || self.connection.is_asked(Later::Abort)
            || is_wanted(&self.wants.orphan)
            || is_wanted(&self.wants.kill)
    }

    /// Routes the stream to the queue pair and delivers what has arrived meanwhile.
    ///
    /// # Errors
    ///
    /// `EBUSY` if another thread owns the socket: [`Conn::deliver`] has to follow.
    pub(in crate::cm) fn enter_stream(self: &Arc<Self>) -> Result {
        self.set_route(Route::Qp);
        // An Initiator's queue pair sends from `attach` on. If TCP was full then and has space
        // again, only the start-up saw the callback.
        if let Some(qp) = self.qp().filter(|qp| qp.shared.lifecycle().may_send()) {
            qp.write_space();
        }
        self.deliver()
    }

    /// Delivers what has arrived.
    ///
    /// # Errors
    ///
    /// `EBUSY` if another thread owns the socket.
    pub(in crate::cm) fn deliver(self: &Arc<Self>) -> Result {
        self.socket
            .try_with_inbound(|inbound| BhOff::run(|off| self.feed(inbound, off)))
    }

    /// Returns whether the peer is still connected and silent; see [`Conn::check_quiet`].
    pub(in crate::cm) fn is_quiet(&self) -> bool {
        self.check_quiet().is_ok()
    }

    /// Checks that the peer is still connected and silent, as a Responder must be after its Reply,
    /// and an Initiator between its Request and the Reply (MPA-7).
    ///
    /// # Errors
    ///
    /// `ECONNRESET` if the peer has gone, `EPROTO` if it has sent octets.
    pub(in crate::cm) fn check_quiet(&self) -> Result {
        match readable(&self.socket) {
            Ok(Readable::Nothing) => Ok(()),
            Ok(Readable::Octets) => {
                self.misbehaved(StartError::Excess);
                Err(EPROTO)
            }
            Ok(Readable::End) | Err(_) => Err(ECONNRESET),
        }
    }

    /// Counts a peer that violates MPA start-up.
    pub(in crate::cm) fn misbehaved(&self, error: StartError) {
        self.misbehaved_by(error.text());
    }

    /// Counts a peer that violates MPA start-up, and logs how.
    pub(in crate::cm) fn misbehaved_by(&self, why: &str) {
        self.device().stats.mpa_errors.inc();
        self.log_start_up(why);
    }

    /// Counts and logs a peer whose frame or first message is late.
    pub(in crate::cm) fn timed_out(&self, what: &str) {
        self.device().stats.mpa_timeouts.inc();
        self.log_start_up(what);
    }

    fn log_start_up(&self, why: &str) {
        self.trace_refused(why);
        let (local, peer) = self.socket.addr_pair();
        self.device().notice(fmt!(
            "connection of {local} with {peer} did not start up: {why}"
        ));
    }

    /// Fails a start-up whose queue pair has no stream yet.
    pub(in crate::cm) fn fail(self: &Arc<Self>, actor: &mut Actor, error: Error) -> NextStep {
        self.unbind();
        if let Some(id) = actor.id.take() {
            give_up(&id, error, &[]);
        }
        self.reset(actor)
    }

    /// Undoes what [`super::connect`] has begun; the caller of that returns an error instead of
    /// raising events.
    pub(in crate::cm) fn abandon(self: &Arc<Self>, actor: &mut Actor) {
        self.unbind();
        let (NextStep::Again(phase) | NextStep::Wait(phase)) = self.reset(actor);
        actor.phase = phase;
        self.run_steps(actor);
    }

    /// Revokes the link to the queue pair and makes it drop the connection.
    pub(in crate::cm) fn unbind(&self) {
        if let Some(qp) = self.take_qp() {
            let unbound = qp.take_bound(&self.connection);
            if let (Some(_), Some(search)) = (unbound, self.search.as_ref()) {
                search.connection_lost();
            }
        }
    }

    /// Resets the TCP connection and releases this one.
    pub(in crate::cm) fn reset(self: &Arc<Self>, actor: &mut Actor) -> NextStep {
        self.finish(actor, FinalAction::Reset)
    }

    /// Leaves TCP's part of the end to the next step, which may have to wait for the socket.
    pub(in crate::cm) fn finish(&self, actor: &mut Actor, action: FinalAction) -> NextStep {
        // Queued octets are discarded, and octets that arrive are not read.
        self.set_route(Route::Nobody);
        actor.no_limit();
        NextStep::Again(ConnPhase::Ending(action))
    }
}

/// The first and the longest pause before a step tries again to get what another thread has, in
/// milliseconds.
const PAUSE: u32 = 1;
const PAUSE_MAX: u32 = 32;

/// Raises whichever event the iWARP connection manager still expects: a failed reply, or the end of
/// a connection that was established or accepted (which counts as established).
pub(in crate::cm) fn give_up(id: &CmId, error: Error, private_data: &[u8]) {
    let mut reply = ConnectReply {
        status: Err(error),
        private_data,
        ird: 0,
        ord: 0,
    };
    // An event that is not expected is rejected without effect.
    if id.connect_reply(&reply) == Err(ENOMEM) {
        // Copying the private data needs memory; the event itself is preallocated.
        reply.private_data = &[];
        let _ = id.connect_reply(&reply);
    }
    let _ = id.established(0, 0);
    let _ = id.close();
}

/// Returns the part of the peer's private data that fits an event: at most 255 octets.
pub(in crate::cm) fn hand_up(place: PrivateData, frame: &[u8]) -> &[u8] {
    let private_data = place.of(frame);
    let len = private_data.len().min(usize::from(u8::MAX));
    private_data.get(..len).unwrap_or_default()
}

impl StreamParams {
    /// Returns the parameters for the listening side.
    pub(in crate::cm) fn responder(rules: &StreamRules, rtr: RtrKinds) -> Self {
        Self {
            crc: rules.crc,
            markers: rules.send_markers,
            ird: rules.depths.ird,
            ord: rules.depths.ord,
            revision: match rules.peer_depths {
                Some(_) => Revision::Two,
                None => Revision::One,
            },
            send_rtr: None,
            expect_rtr: rtr,
            wait_first_fpdu: true,
            extensions: rules.extensions,
            features: rules.features,
            rnr_retry: None,
        }
    }
}
