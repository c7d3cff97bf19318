// SPDX-License-Identifier: GPL-2.0

//! The actor of a connection: its phases, its clock, its end.
//!
//! What enters: the socket's state and octets, the notes that others left, the clock. What leaves:
//! the next [`ConnPhase`]. Phases are consumed by value; each step either goes on at once or waits
//! for the next reason to look again. Every phase of start-up and of the end has a time limit, but
//! `HalfClosed` without connection manager while nothing is wanted of the peer.
//!
//! ```text
//!  connect                                   a listener
//!     |                                          |
//! Connecting --> Requesting           Waiting --> Held --> Asked --> Replying
//!     |            |    |                |         |         |        |    |
//!     |            |    +-----> Open <---|---------|---------|--------+    |
//!     |            |             |       |         |         |             |
//!     +------------+-------------+-> Released <----+---------+-- Lingering +
//! ```
//!
//! Between `Requesting` and `Open` there may be `Settling`; without connection manager `Expecting`
//! comes between `Replying` and `Open`, and `Asked` is left out. This file has what all phases
//! share. `initiator`, `responder` and `oob` have the phases of the two sides, `stream` those from
//! `Open` on.
//!
//! Context: process, the actor's mutex held.

use iwarp::mpa::{
    negotiate::{
        Initiator,
        Responder,
        StreamRules, //
    },
    start::{
        Frame,
        PrivateData,
        RtrKinds,
        StartError, //
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
    net::{
        Family,
        SockAddr,
        TcpState, //
    },
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
    frames::{
        look,
        Inbox,
        Outbox,
        Readable, //
    },
    is_wanted,
    requests::Asked,
    responder::{
        HalfOpen,
        Question,
        Then, //
    },
    stream::{
        Closing,
        HalfClosed,
        Open, //
    },
    Conn,
    Route,
    StreamParams,
    TIMER, //
};

/// What only the steps of a connection touch.
pub(in crate::cm) struct Actor {
    pub(in crate::cm) phase: ConnPhase,
    /// Where events go, as long as the iWARP connection manager is owed one.
    pub(in crate::cm) id: Option<CmId>,
    /// The clock's zero.
    born: Instant<Monotonic>,
    /// How far a test has put the clock forward.
    #[cfg(CONFIG_KUNIT = "y")]
    ahead: Delta,
    /// When the phase's time is up.
    deadline: Option<Delta>,
    /// When to look again before that.
    look: Option<Delta>,
    /// What the timer is set to.
    armed: Option<Delta>,
}

/// Where a connection is in its life.
pub(in crate::cm) enum ConnPhase {
    /// Initiator: TCP connects.
    Connecting {
        initiator: Initiator,
        request: KBox<Frame>,
    },
    /// Initiator: the Request goes out, the Reply is awaited.
    Requesting {
        initiator: Initiator,
        out: Outbox,
        inbox: Inbox,
    },
    /// Initiator: the peer, who has accepted, gets time to turn to the stream.
    Settling {
        inbox: Inbox,
        private_data: PrivateData,
        rules: StreamRules,
    },
    /// Responder: the Request is awaited.
    Waiting {
        responder: Responder,
        inbox: Inbox,
        entry: HalfOpen,
    },
    /// Responder: the consumer has enough requests to answer before this one.
    Held {
        asked: Asked,
        inbox: Inbox,
        entry: HalfOpen,
    },
    /// Responder: the consumer's answer is awaited.
    Asked(Question),
    /// Responder: the Reply goes out.
    Replying { out: Outbox, then: Then },
    /// Responder without connection manager: the first octets of the stream are awaited.
    Expecting(KBox<StreamParams>),
    /// The stream belongs to the queue pair.
    Open(Open),
    /// The peer has ended its half; what the queue pair owes goes out.
    HalfClosed(HalfClosed),
    /// This end has ended its half; the peer's is awaited.
    Closing(Closing),
    /// As `Closing`, but nobody is interested in the stream any more.
    Lingering(Closing),
    /// Nothing happens any more.
    Released,
}

/// What comes after a step.
pub(in crate::cm) enum NextStep {
    /// The next one, at once.
    Again(ConnPhase),
    /// Waiting for a reason.
    Wait(ConnPhase),
}

impl Actor {
    /// Makes one that waits.
    pub(in crate::cm) fn new(phase: ConnPhase) -> Self {
        Self {
            phase,
            id: None,
            born: Instant::now(),
            #[cfg(CONFIG_KUNIT = "y")]
            ahead: Delta::ZERO,
            deadline: None,
            look: None,
            armed: None,
        }
    }

    /// Gives the phase that begins some milliseconds.
    pub(in crate::cm) fn limit(&mut self, millis: u32) {
        self.deadline = Some(self.after(millis));
        self.look = None;
    }

    /// Lets the phase that begins wait for ever.
    pub(in crate::cm) fn no_limit(&mut self) {
        self.deadline = None;
        self.look = None;
    }

    /// Asks for another step soon.
    pub(in crate::cm) fn look_again(&mut self, millis: u32) {
        self.look = Some(self.after(millis));
    }

    /// Asks for another step after a pause, unless one is asked for already. The next pause will be
    /// twice as long, up to `longest`: what never comes costs less and less.
    pub(in crate::cm) fn look_later(&mut self, pause: &mut u32, longest: u32) {
        if self.look.is_some_and(|at| self.now() < at) {
            return;
        }
        self.look_again(*pause);
        *pause = pause.saturating_mul(2).min(longest);
    }

    /// Whether it is time for the step that was asked for; tells it once.
    pub(in crate::cm) fn is_look_due(&mut self) -> bool {
        let due = self.look.is_some_and(|at| self.now() >= at);
        if due {
            self.look = None;
        }
        due
    }

    /// Whether the phase's time is up.
    pub(in crate::cm) fn is_overdue(&self) -> bool {
        self.deadline.is_some_and(|deadline| self.now() >= deadline)
    }

    /// The time since the connection was made.
    fn now(&self) -> Delta {
        let now = self.born.elapsed();
        #[cfg(CONFIG_KUNIT = "y")]
        let now = now + self.ahead;
        now
    }

    fn after(&self, millis: u32) -> Delta {
        // NO-OVERFLOW: there are centuries between the limits and the end of the clock.
        self.now() + Delta::from_millis(millis.into())
    }

    /// Makes the clock go on by some milliseconds, for a test.
    #[cfg(CONFIG_KUNIT = "y")]
    pub(in crate::cm) fn pass(&mut self, millis: u32) {
        self.ahead += Delta::from_millis(millis.into());
    }
}

impl Conn {
    /// Does all that can be done now.
    ///
    /// Context: process; see the module's documentation for the locks.
    pub(in crate::cm) fn step(self: &Arc<Self>) {
        let mut actor = self.actor.lock();
        loop {
            let phase = core::mem::replace(&mut actor.phase, ConnPhase::Released);
            match self.advance(&mut actor, phase) {
                NextStep::Again(phase) => actor.phase = phase,
                NextStep::Wait(phase) => {
                    actor.phase = phase;
                    break;
                }
            }
        }
        self.set_timer(&mut actor);
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
            ConnPhase::Open(open) => self.open(actor, open),
            ConnPhase::HalfClosed(half) => self.half_closed(actor, half),
            ConnPhase::Closing(closing) => self.closing(actor, closing),
            ConnPhase::Lingering(closing) => self.lingering(actor, closing),
            ConnPhase::Released => NextStep::Wait(ConnPhase::Released),
        }
    }

    /// Sets the timer to what the phase needs.
    fn set_timer(self: &Arc<Self>, actor: &mut Actor) {
        let wanted = match (actor.deadline, actor.look) {
            (Some(deadline), Some(look)) => Some(deadline.min(look)),
            (one, other) => one.or(other),
        };
        if self.timer_expired.xchg(false, Full) {
            actor.armed = None;
        }
        if wanted == actor.armed {
            return;
        }
        // If the timer's item is queued or running it cannot be set, but then there will be another
        // step.
        cancel_delayed::<Self, TIMER>(self);
        actor.armed = wanted.filter(|at| {
            let millis = (*at - actor.now()).as_millis_ceil().clamp(1, 1 << 20);
            // CAST: just clamped. One more, since the present jiffy is partly over.
            let delay = msecs_to_jiffies(millis as u32) + 1;
            enqueue_delayed::<Self, TIMER>(self.clone(), delay).is_ok()
        });
    }

    /// Whether the start-up is to end, whoever wants it.
    pub(in crate::cm) fn is_stopped(&self) -> bool {
        let wants = &self.wants;
        is_wanted(&wants.graceful)
            || is_wanted(&wants.abort)
            || is_wanted(&wants.orphan)
            || is_wanted(&wants.kill)
    }

    /// Gives the stream to the queue pair, and what has come of it meanwhile.
    pub(in crate::cm) fn enter_stream(self: &Arc<Self>) {
        self.set_route(Route::Qp);
        // An Initiator's has sent since it was attached. If TCP was full, and is not so any more,
        // only the start-up was notified of that.
        if let Some(qp) = self.qp() {
            qp.write_space();
        }
        self.socket
            .with_inbound(|inbound| BhOff::run(|off| self.feed(inbound, off)));
    }

    /// Whether the peer is silent, as a Responder has to be behind its Reply, and an Initiator
    /// between its Request and the Reply (MPA-7), and still there.
    pub(in crate::cm) fn is_quiet(&self) -> bool {
        match look(&self.socket) {
            Ok(Readable::Nothing) => true,
            Ok(Readable::Octets) => {
                self.misbehaved(StartError::Excess);
                false
            }
            Ok(Readable::End) | Err(_) => false,
        }
    }

    /// Counts a peer that does not speak MPA.
    pub(in crate::cm) fn misbehaved(&self, error: StartError) {
        self.device().stats.mpa_errors.inc();
        pr_debug!("unacceptable MPA start-up frame: {:?}\n", error);
    }

    /// Ends a start-up whose queue pair has no stream yet.
    pub(in crate::cm) fn fail(self: &Arc<Self>, actor: &mut Actor, error: Error) -> NextStep {
        self.unbind();
        if let Some(id) = actor.id.take() {
            give_up(&id, error, &[]);
        }
        self.reset(actor)
    }

    /// Undoes what [`super::connect`] has begun; its caller gets an error instead of events.
    pub(in crate::cm) fn abandon(self: &Arc<Self>, actor: &mut Actor) {
        self.unbind();
        let _ = self.reset(actor);
    }

    /// Makes the queue pair forget the connection.
    pub(in crate::cm) fn unbind(&self) {
        if let Some(qp) = self.take_qp() {
            qp.unbind(self);
        }
    }

    /// Resets the TCP connection and releases this one.
    pub(in crate::cm) fn reset(self: &Arc<Self>, actor: &mut Actor) -> NextStep {
        // What is queued comes to nothing, and nobody reads what comes.
        self.set_route(Route::Nobody);
        if !matches!(self.socket.state(), TcpState::Closed) {
            self.socket.abort();
        }
        self.release(actor)
    }

    /// Ends all that concerns others; the socket is closed with the last reference.
    pub(in crate::cm) fn release(self: &Arc<Self>, actor: &mut Actor) -> NextStep {
        self.set_route(Route::Nobody);
        self.socket.unhook();
        self.entry.remove();
        actor.no_limit();
        NextStep::Wait(ConnPhase::Released)
    }
}

/// Raises what the iWARP connection manager still waits for, whichever it is: a failed reply, or
/// the end of a connection that was up, or of one that was accepted and hence counts as that.
pub(in crate::cm) fn give_up(id: &CmId, error: Error, private_data: &[u8]) {
    let unknown = SockAddr::unspecified(Family::V4);
    let mut reply = ConnectReply {
        status: Err(error),
        local: id.local_addr().unwrap_or(unknown),
        remote: id.remote_addr().unwrap_or(unknown),
        private_data,
        ird: 0,
        ord: 0,
    };
    // What is not owed is refused without consequence.
    if id.connect_reply(&reply) == Err(ENOMEM) {
        // Copying the private data takes memory, the event does not: room is kept for it.
        reply.private_data = &[];
        let _ = id.connect_reply(&reply);
    }
    let _ = id.established(0, 0);
    let _ = id.close();
}

/// What the consumer gets of the peer's private data: an event has room for 255 octets.
pub(in crate::cm) fn hand_up(place: PrivateData, frame: &[u8]) -> &[u8] {
    let private_data = place.of(frame);
    let len = private_data.len().min(usize::from(u8::MAX));
    private_data.get(..len).unwrap_or_default()
}

impl StreamParams {
    /// What both ends agreed on, for the side that listens.
    pub(in crate::cm) fn responder(rules: &StreamRules, rtr: RtrKinds) -> Self {
        Self {
            crc: rules.crc,
            markers: rules.send_markers,
            ird: rules.depths.ird,
            ord: rules.depths.ord,
            send_rtr: None,
            expect_rtr: rtr,
            wait_first_fpdu: true,
            extensions: rules.extensions,
        }
    }
}
