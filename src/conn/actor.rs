// SPDX-License-Identifier: GPL-2.0

//! The steps of a connection while it starts up.
//!
//! What enters: the socket's state and octets, the notes that others left, the clock. What leaves:
//! the next [`Phase`]. Phases are consumed by value; each step either goes on at once or waits for
//! the next reason to look again, and every phase that waits for somebody else has a time limit.
//!
//! ```text
//!  connect                                   a listener
//!     |                                          |
//! Connecting --> Requesting                   Waiting --> Asked --> Replying
//!     |            |    |                        |          |        |    |
//!     |            |    +-----> Open <-----------|----------|--------+    |
//!     |            |             |               |          |             |
//!     +------------+-------------+---> Released <+----------+--- Lingering+
//! ```
//!
//! The phases from `Open` on are in `stream`.
//!
//! Context: process, the actor's mutex held.

use core::net::IpAddr;

use iwarp::mpa::{
    negotiate::{
        Initiator,
        Progress,
        Reply as MpaReply,
        Request as MpaRequest,
        Responder,
        StreamRules,
        Verdict, //
    },
    start::{
        Frame,
        PrivateData,
        RtrKinds,
        StartError, //
    },
    Crc,
    Markers, //
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
        Socket,
        TcpState, //
    },
    rdma::iw_cm::{
        CmId,
        Reply,
        Request, //
    },
    workqueue::cancel_delayed, //
};

use crate::{
    device::{
        Device,
        MAX_IRD,
        MAX_ORD, //
    },
    listen::Listener,
    Riwarp, //
};

use super::{
    calls::{
        config,
        Answer,
        Asked,
        Desk,
        Invitation,
        Role, //
    },
    frames::{
        look,
        send_terminate,
        Found,
        Inbox,
        Outbox,
        Sent, //
    },
    is_wanted,
    stream::{
        self,
        Closing,
        Open, //
    },
    Conn,
    Route,
    StreamParams,
    TIMER, //
};

/// What only the steps of a connection touch.
pub(super) struct Actor {
    pub(super) phase: Phase,
    /// Where events go, as long as the iWARP connection manager is owed one.
    pub(super) id: Option<CmId<Riwarp>>,
    /// The clock's zero.
    born: Instant<Monotonic>,
    /// When the phase's time is up.
    deadline: Option<Delta>,
    /// When to look again before that.
    look: Option<Delta>,
    /// What the timer is set to.
    armed: Option<Delta>,
}

/// Where a connection is in its life.
pub(super) enum Phase {
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
    /// Responder: the Request is awaited, or the consumer cannot be asked yet.
    Waiting {
        responder: Responder,
        inbox: Inbox,
        entry: HalfOpen,
    },
    /// Responder: the consumer's answer is awaited.
    Asked,
    /// Responder: the Reply goes out.
    Replying { out: Outbox, then: Then },
    /// The stream belongs to the queue pair.
    Open(Open),
    /// The peer has ended its half; what the queue pair owes goes out.
    HalfClosed(stream::Progress),
    /// This end has ended its half; the peer's is awaited.
    Closing(Closing),
    /// As `Closing`, but nobody is interested in the stream any more.
    Lingering(Closing),
    /// Nothing happens any more.
    Released,
}

/// What follows a Reply.
pub(super) enum Then {
    /// The queue pair has the stream.
    Open {
        ird: u16,
        ord: u16,
        /// Whether the peer sends a ready-to-receive message.
        rtr: RtrKinds,
    },
    /// The consumer refused.
    Refuse,
}

/// What comes after a step.
pub(super) enum Turn {
    /// The next one, at once.
    Again(Phase),
    /// Waiting for a reason.
    Wait(Phase),
}

/// A connection that a listener has let in and whose Request has not come yet; listeners limit them.
pub(crate) struct HalfOpen {
    listener: Arc<Listener>,
    /// What the listener knows it by.
    key: u64,
}

impl HalfOpen {
    /// For one that the listener has just counted.
    pub(crate) fn new(listener: Arc<Listener>, key: u64) -> Self {
        Self { listener, key }
    }
}

impl Drop for HalfOpen {
    fn drop(&mut self) {
        self.listener.left(self.key);
    }
}

/// How much time a phase has, in milliseconds.
mod limit {
    /// TCP's connection.
    pub(super) const CONNECT: u32 = 10_000;
    /// The Request out and the Reply in (MPA-8).
    pub(super) const REPLY: u32 = 10_000;
    /// The Request in (MPA-8).
    pub(super) const REQUEST: u32 = 5_000;
    /// The consumer's answer. Initiators give up long before.
    pub(super) const ANSWER: u32 = 60_000;
    /// The Reply out, and the peer's ready-to-receive message in.
    pub(super) const READY: u32 = 5_000;
    /// Before a full listener is tried again.
    pub(super) const RETRY: u32 = 20;
}

impl Actor {
    /// Makes one that waits.
    pub(super) fn new(phase: Phase) -> Self {
        Self {
            phase,
            id: None,
            born: Instant::now(),
            deadline: None,
            look: None,
            armed: None,
        }
    }

    /// The connection attempt is under way.
    pub(super) fn begin_connecting(
        &mut self,
        id: CmId<Riwarp>,
        initiator: Initiator,
        request: KBox<Frame>,
    ) {
        self.id = Some(id);
        self.phase = Phase::Connecting { initiator, request };
        self.limit(limit::CONNECT);
    }

    /// Gives the phase that begins some milliseconds.
    pub(super) fn limit(&mut self, millis: u32) {
        self.deadline = Some(self.after(millis));
        self.look = None;
    }

    /// Lets the phase that begins wait for ever.
    pub(super) fn no_limit(&mut self) {
        self.deadline = None;
        self.look = None;
    }

    /// Asks for another step soon.
    pub(super) fn look_again(&mut self, millis: u32) {
        self.look = Some(self.after(millis));
    }

    /// Whether the phase's time is up.
    pub(super) fn is_overdue(&self) -> bool {
        self.deadline
            .is_some_and(|deadline| self.born.elapsed() >= deadline)
    }

    fn after(&self, millis: u32) -> Delta {
        // NO-OVERFLOW: there are centuries between the limits and the end of the clock.
        self.born.elapsed() + Delta::from_millis(millis.into())
    }
}

impl Conn {
    /// Takes a connection over that a listener has accepted; returns its number.
    ///
    /// Context: process.
    pub(crate) fn answer(device: &Arc<Device>, socket: Socket, entry: HalfOpen) -> Result<u64> {
        let phase = Phase::Waiting {
            responder: Responder::new(config(device, Role::Responder)),
            inbox: Inbox::new()?,
            entry,
        };
        let mut actor = Actor::new(phase);
        actor.limit(limit::REQUEST);
        let conn = Self::new(device.clone(), socket, actor)?;
        conn.kick();
        Ok(conn.seat.number())
    }

    /// Does all that can be done now.
    ///
    /// Context: process; see the module's documentation for the locks.
    pub(super) fn step(self: &Arc<Self>) {
        let mut actor = self.actor.lock();
        loop {
            let phase = core::mem::replace(&mut actor.phase, Phase::Released);
            match self.advance(&mut actor, phase) {
                Turn::Again(phase) => actor.phase = phase,
                Turn::Wait(phase) => {
                    actor.phase = phase;
                    break;
                }
            }
        }
        self.set_timer(&mut actor);
    }

    fn advance(self: &Arc<Self>, actor: &mut Actor, phase: Phase) -> Turn {
        match phase {
            Phase::Connecting { initiator, request } => self.connecting(actor, initiator, request),
            Phase::Requesting {
                initiator,
                out,
                inbox,
            } => self.requesting(actor, initiator, out, inbox),
            Phase::Waiting {
                responder,
                inbox,
                entry,
            } => self.waiting(actor, responder, inbox, entry),
            Phase::Asked => self.asked(actor),
            Phase::Replying { out, then } => self.replying(actor, out, then),
            Phase::Open(open) => self.open(actor, open),
            Phase::HalfClosed(progress) => self.half_closed(actor, progress),
            Phase::Closing(closing) => self.closing(actor, closing),
            Phase::Lingering(closing) => self.lingering(actor, closing),
            Phase::Released => Turn::Wait(Phase::Released),
        }
    }

    /// Sets the timer to what the phase needs.
    fn set_timer(self: &Arc<Self>, actor: &mut Actor) {
        let wanted = match (actor.deadline, actor.look) {
            (Some(deadline), Some(look)) => Some(deadline.min(look)),
            (one, other) => one.or(other),
        };
        if self.rang.xchg(false, Full) {
            actor.armed = None;
        }
        if wanted == actor.armed {
            return;
        }
        // If the timer's item is queued or running it cannot be set, but then there will be another
        // step.
        cancel_delayed::<Self, TIMER>(self);
        actor.armed = wanted.filter(|at| {
            let millis = (*at - actor.born.elapsed())
                .as_millis_ceil()
                .clamp(1, 1 << 20);
            // CAST: just clamped. One more, since the present jiffy is partly over.
            let delay = msecs_to_jiffies(millis as u32) + 1;
            let queue = &self.device().conn_queue;
            queue
                .enqueue_delayed::<Arc<Self>, TIMER>(self.clone(), delay)
                .is_ok()
        });
    }

    /// Whether the start-up is to end, whoever wants it.
    fn is_stopped(&self) -> bool {
        let wants = &self.wants;
        is_wanted(&wants.graceful)
            || is_wanted(&wants.abort)
            || is_wanted(&wants.orphan)
            || is_wanted(&wants.kill)
    }

    fn connecting(
        self: &Arc<Self>,
        actor: &mut Actor,
        initiator: Initiator,
        request: KBox<Frame>,
    ) -> Turn {
        if self.is_stopped() {
            return self.fail(actor, ECONNRESET);
        }
        match self.socket.state() {
            TcpState::SynSent | TcpState::SynReceived => {
                if actor.is_overdue() {
                    return self.fail(actor, ETIMEDOUT);
                }
                Turn::Wait(Phase::Connecting { initiator, request })
            }
            TcpState::Established | TcpState::CloseWait => match Inbox::new() {
                Ok(inbox) => {
                    actor.limit(limit::REPLY);
                    Turn::Again(Phase::Requesting {
                        initiator,
                        out: Outbox::new(request),
                        inbox,
                    })
                }
                Err(error) => self.fail(actor, error),
            },
            TcpState::FinWait1
            | TcpState::FinWait2
            | TcpState::Closing
            | TcpState::LastAck
            | TcpState::TimeWait
            | TcpState::Listen
            | TcpState::Closed => {
                let error = Error::from_errno(self.socket.error().wrapping_neg());
                // A peer without listener is no peer that refused: only that one has private data.
                let unreachable = [ETIMEDOUT, EHOSTUNREACH, ENETUNREACH].contains(&error);
                self.fail(actor, if unreachable { ETIMEDOUT } else { ECONNRESET })
            }
        }
    }

    fn requesting(
        self: &Arc<Self>,
        actor: &mut Actor,
        initiator: Initiator,
        mut out: Outbox,
        mut inbox: Inbox,
    ) -> Turn {
        if self.is_stopped() || out.flush(&self.socket).is_err() {
            return self.fail(actor, ECONNRESET);
        }
        loop {
            let wanted = match initiator.handle_reply(inbox.octets()) {
                Ok(Progress::NeedMore(wanted)) => wanted,
                Ok(Progress::Done(reply)) => return self.replied(actor, &inbox, &reply),
                Err(error) => {
                    self.misbehaved(error);
                    return self.fail(actor, EPROTO);
                }
            };
            match inbox.fill(&self.socket, wanted) {
                Ok(Found::Octets) => {}
                Ok(Found::Nothing) => {
                    if actor.is_overdue() {
                        self.device().stats.mpa_timeouts.inc();
                        return self.fail(actor, ETIMEDOUT);
                    }
                    return Turn::Wait(Phase::Requesting {
                        initiator,
                        out,
                        inbox,
                    });
                }
                Ok(Found::End) | Err(_) => return self.fail(actor, ECONNRESET),
            }
        }
    }

    /// The Reply is here.
    fn replied(self: &Arc<Self>, actor: &mut Actor, inbox: &Inbox, reply: &MpaReply) -> Turn {
        let private_data = hand_up(reply.private_data, inbox.octets());
        match &reply.verdict {
            Verdict::Accepted { rules, rtr } => {
                if !self.is_quiet() {
                    return self.fail(actor, EPROTO);
                }
                let params = StreamParams {
                    initiator: true,
                    send_rtr: *rtr,
                    wait_first_fpdu: false,
                    ..StreamParams::responder(rules, RtrKinds::NONE)
                };
                // The queue pair has to be ready when the consumer hears of the connection.
                let Some(qp) = self.qp() else {
                    return self.fail(actor, ECONNRESET);
                };
                if qp.attach(self, &params).is_err() {
                    return self.fail(actor, ECONNRESET);
                }
                self.device().stats.established.inc();
                if let Err(error) = self.connected(actor, rules, private_data) {
                    return self.fail_open(actor, error);
                }
                actor.no_limit();
                self.enter_stream();
                Turn::Again(Phase::Open(Open::reported()))
            }
            Verdict::Rejected => {
                self.device().stats.mpa_rejects.inc();
                self.unbind();
                if let Some(id) = actor.id.take() {
                    give_up(&id, ECONNREFUSED, private_data);
                }
                // The peer has closed, or will.
                self.release(actor)
            }
            Verdict::Failed { rules, fault } => {
                self.device().stats.mpa_errors.inc();
                send_terminate(&self.socket, rules, *fault);
                self.unbind();
                if let Some(id) = actor.id.take() {
                    give_up(&id, EPROTO, &[]);
                }
                self.linger(actor)
            }
        }
    }

    /// Tells the iWARP connection manager that the connection is up.
    fn connected(&self, actor: &Actor, rules: &StreamRules, private_data: &[u8]) -> Result {
        let Some(id) = &actor.id else {
            return Ok(());
        };
        let peer = rules.peer_depths;
        // Without negotiation the peer is taken to agree.
        let ird = peer.and_then(|peer| peer.ird).unwrap_or(rules.depths.ord);
        let ord = peer.and_then(|peer| peer.ord).unwrap_or(rules.depths.ird);
        id.connect_reply(&Reply {
            status: Ok(()),
            local: self.socket.local_addr()?,
            remote: self.socket.peer_addr()?,
            private_data,
            ird: ird.into(),
            ord: ord.into(),
        })
    }

    fn waiting(
        self: &Arc<Self>,
        actor: &mut Actor,
        responder: Responder,
        mut inbox: Inbox,
        entry: HalfOpen,
    ) -> Turn {
        if self.is_stopped() || !entry.listener.is_open() {
            return self.reset(actor);
        }
        loop {
            let wanted = match responder.handle_request(inbox.octets()) {
                Ok(Progress::NeedMore(wanted)) => wanted,
                Ok(Progress::Done(request)) => {
                    return self.ask(actor, responder, inbox, entry, &request);
                }
                Err(error) => {
                    self.misbehaved(error);
                    return self.reset(actor);
                }
            };
            match inbox.fill(&self.socket, wanted) {
                Ok(Found::Octets) => {}
                Ok(Found::Nothing) => {
                    if actor.is_overdue() {
                        self.device().stats.mpa_timeouts.inc();
                        return self.reset(actor);
                    }
                    return Turn::Wait(Phase::Waiting {
                        responder,
                        inbox,
                        entry,
                    });
                }
                Ok(Found::End) | Err(_) => return self.reset(actor),
            }
        }
    }

    /// The Request is here: asks the consumer.
    fn ask(
        self: &Arc<Self>,
        actor: &mut Actor,
        responder: Responder,
        inbox: Inbox,
        entry: HalfOpen,
        request: &MpaRequest,
    ) -> Turn {
        if !self.is_quiet() {
            return self.reset(actor);
        }
        let asked = Asked {
            responder,
            request: *request,
        };
        // The answer may come before this returns.
        *self.desk.lock() = Desk::Open(asked);
        match self.invite(&entry.listener, &inbox, request) {
            Ok(()) => {
                self.device().stats.connect_requests.inc();
                actor.limit(limit::ANSWER);
                Turn::Again(Phase::Asked)
            }
            Err(error) => {
                self.desk.lock().close();
                if error != ENOMEM || actor.is_overdue() {
                    return self.reset(actor);
                }
                // The consumer has not taken the requests before this one yet.
                actor.look_again(limit::RETRY);
                Turn::Wait(Phase::Waiting {
                    responder,
                    inbox,
                    entry,
                })
            }
        }
    }

    /// Raises the event.
    fn invite(&self, listener: &Listener, inbox: &Inbox, request: &MpaRequest) -> Result {
        let invitation = Arc::new(
            Invitation {
                number: self.seat.number(),
            },
            GFP_KERNEL,
        )?;
        let peer = request.peer_depths;
        // What the peer does not say is up to the consumer.
        let ird = peer.and_then(|peer| peer.ird).map_or(MAX_ORD, u32::from);
        let ord = peer.and_then(|peer| peer.ord).map_or(MAX_IRD, u32::from);
        listener.id().connect_request(
            &Request {
                local: plain(self.socket.local_addr()?),
                remote: plain(self.socket.peer_addr()?),
                private_data: hand_up(request.private_data, inbox.octets()),
                ird,
                ord,
            },
            invitation,
        )
    }

    fn asked(self: &Arc<Self>, actor: &mut Actor) -> Turn {
        // As a statement of its own, for the answer's drop.
        let answer = self.desk.lock().take_answer();
        match answer {
            Some(Answer::Accept {
                id,
                reply,
                rules,
                rtr,
            }) => {
                actor.id = Some(id);
                self.accepted(actor, reply, &rules, rtr)
            }
            Some(Answer::Refuse(frame)) => {
                actor.limit(limit::READY);
                Turn::Again(Phase::Replying {
                    out: Outbox::new(frame),
                    then: Then::Refuse,
                })
            }
            None => {
                if !self.is_stopped() && !actor.is_overdue() && self.is_quiet() {
                    return Turn::Wait(Phase::Asked);
                }
                // The consumer cannot be told; its answer will find nobody.
                if self.desk.lock().close() {
                    return self.reset(actor);
                }
                // The answer is being prepared, and a step follows it.
                Turn::Wait(Phase::Asked)
            }
        }
    }

    /// The consumer wants the connection.
    fn accepted(
        self: &Arc<Self>,
        actor: &mut Actor,
        reply: KBox<Frame>,
        rules: &StreamRules,
        rtr: RtrKinds,
    ) -> Turn {
        if self.is_stopped() || !self.is_quiet() {
            return self.fail(actor, ECONNRESET);
        }
        let Some(qp) = self.qp() else {
            return self.fail(actor, ECONNRESET);
        };
        // Before the Reply, so that what it promises is there. The queue pair keeps silent until the
        // peer's first FPDU (MPA-9), hence cannot overtake it.
        if qp.attach(self, &StreamParams::responder(rules, rtr)).is_err() {
            return self.fail(actor, ECONNRESET);
        }
        actor.limit(limit::READY);
        Turn::Again(Phase::Replying {
            out: Outbox::new(reply),
            then: Then::Open {
                ird: rules.depths.ird,
                ord: rules.depths.ord,
                rtr,
            },
        })
    }

    fn replying(self: &Arc<Self>, actor: &mut Actor, mut out: Outbox, then: Then) -> Turn {
        let sent = out.flush(&self.socket);
        let late = matches!(sent, Ok(Sent::Part)) && actor.is_overdue();
        match then {
            Then::Refuse => match sent {
                Ok(Sent::All) => self.linger(actor),
                Ok(Sent::Part) if !late && !is_wanted(&self.wants.kill) => {
                    Turn::Wait(Phase::Replying { out, then })
                }
                Ok(Sent::Part) | Err(_) => self.reset(actor),
            },
            Then::Open { ird, ord, rtr } => match sent {
                Ok(Sent::All) => {
                    self.device().stats.established.inc();
                    self.enter_stream();
                    let mut open = Open::unreported(ird, ord);
                    if rtr.is_empty() {
                        actor.no_limit();
                        open.report(actor);
                    } else {
                        actor.limit(limit::READY);
                    }
                    Turn::Again(Phase::Open(open))
                }
                Ok(Sent::Part) if !late && !self.is_stopped() => {
                    Turn::Wait(Phase::Replying { out, then })
                }
                Ok(Sent::Part) | Err(_) => self.fail_open(actor, ECONNRESET),
            },
        }
    }

    /// Gives the stream to the queue pair, and what has come of it meanwhile.
    fn enter_stream(self: &Arc<Self>) {
        self.set_route(Route::Qp);
        self.socket.with_inbound(|inbound| self.feed(inbound));
    }

    /// Whether the peer is silent, as a Responder has to be behind its Reply, and an Initiator between
    /// its Request and the Reply (MPA-7), and still there.
    fn is_quiet(&self) -> bool {
        match look(&self.socket) {
            Ok(Found::Nothing) => true,
            Ok(Found::Octets) => {
                self.misbehaved(StartError::Excess);
                false
            }
            Ok(Found::End) | Err(_) => false,
        }
    }

    /// Counts a peer that does not speak MPA.
    fn misbehaved(&self, error: StartError) {
        self.device().stats.mpa_errors.inc();
        pr_debug!("unacceptable MPA start-up frame: {:?}\n", error);
    }

    /// Ends a start-up whose queue pair has no stream yet.
    fn fail(self: &Arc<Self>, actor: &mut Actor, error: Error) -> Turn {
        self.unbind();
        if let Some(id) = actor.id.take() {
            give_up(&id, error, &[]);
        }
        self.reset(actor)
    }

    /// Undoes what [`super::connect`] has begun; its caller gets an error instead of events.
    pub(super) fn abandon(self: &Arc<Self>, actor: &mut Actor) {
        self.unbind();
        let _ = self.reset(actor);
    }

    /// Makes the queue pair forget the connection.
    fn unbind(&self) {
        if let Some(qp) = self.take_qp() {
            qp.unbind(self);
        }
    }

    /// Resets the TCP connection and releases this one.
    pub(super) fn reset(self: &Arc<Self>, actor: &mut Actor) -> Turn {
        // What is queued comes to nothing, and nobody reads what comes.
        self.set_route(Route::Nobody);
        if !matches!(self.socket.state(), TcpState::Closed) {
            self.socket.abort();
        }
        self.release(actor)
    }

    /// Ends all that concerns others; the socket is closed with the last reference.
    pub(super) fn release(self: &Arc<Self>, actor: &mut Actor) -> Turn {
        self.set_route(Route::Nobody);
        self.socket.unhook();
        self.seat.leave();
        actor.no_limit();
        Turn::Wait(Phase::Released)
    }
}

/// Raises what the iWARP connection manager still waits for, whichever it is: a failed reply, or the
/// end of a connection that was up, or of one that was accepted and hence counts as that.
pub(super) fn give_up(id: &CmId<Riwarp>, error: Error, private_data: &[u8]) {
    let unknown = SockAddr::unspecified(Family::V4);
    let mut reply = Reply {
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
fn hand_up(place: PrivateData, frame: &[u8]) -> &[u8] {
    let private_data = place.of(frame);
    let len = private_data.len().min(usize::from(u8::MAX));
    private_data.get(..len).unwrap_or_default()
}

/// An IPv4 address as such, also if an IPv6 socket was asked for it.
pub(crate) fn plain(addr: SockAddr) -> SockAddr {
    match addr.ip() {
        IpAddr::V6(ip) => match ip.to_ipv4_mapped() {
            Some(ip) => SockAddr::new(ip.into(), addr.port()),
            None => addr,
        },
        IpAddr::V4(_) => addr,
    }
}

impl StreamParams {
    /// What both ends agreed on, for the side that listens.
    fn responder(rules: &StreamRules, rtr: RtrKinds) -> Self {
        Self {
            crc: rules.crc == Crc::On,
            markers: rules.send_markers == Markers::On,
            ird: rules.depths.ird,
            ord: rules.depths.ord,
            initiator: false,
            send_rtr: None,
            expect_rtr: rtr,
            wait_first_fpdu: true,
        }
    }
}
