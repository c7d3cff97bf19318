// SPDX-License-Identifier: GPL-2.0

//! The steps of a connection whose stream carries RDMA messages, and of its end.
//!
//! What enters: the queue pair's wishes, the state of the TCP connection, the clock. What leaves:
//! the queue pair's `stream_ended`, ESTABLISHED, DISCONNECT and CLOSE for the iWARP connection
//! manager, a FIN or a reset for the peer.
//!
//! | who ends first | what happens |
//! |---|---|
//! | the queue pair, orderly | FIN behind what it sent; its receiver goes on until the peer's FIN (DDP-57, -61, -62) |
//! | the peer, orderly | the queue pair sends what it owes, then FIN (DDP-60); without connection manager the FIN comes with its next request |
//! | the peer, inside an FPDU | lost (MPA-30) |
//! | either, by a reset | lost |
//!
//! After a FIN of ours what comes is read, if only to throw it away, until the peer's FIN: a socket
//! that is closed with octets unread resets the connection, and a Terminate that is still under way
//! would be lost (RDMAP-135). Each wait for the peer has a time limit: also that for what has to be
//! done before an orderly end of ours, of which the queue pair tells when it begins.
//!
//! RFC 5041, section 8.2; RFC 5040, section 6.2. Context: process, the actor's mutex held.

use kernel::{
    prelude::*,
    sync::Arc, //
};
use kernel_ext::{
    net::TcpState,
    sync::BhOff, //
};

use crate::qp::Qp;

use super::{
    actor::{
        give_up,
        Actor,
        ConnPhase,
        NextStep, //
    },
    is_wanted,
    Conn,
    Ended,
    Route, //
};

/// A stream that the queue pair has.
pub(in crate::cm) struct Open {
    /// The depths that an ESTABLISHED still has to report.
    unreported: Option<(u16, u16)>,
    /// What was sent is to arrive although the queue pair goes.
    lingers: bool,
    /// The queue pair is about to end it.
    leaving: Option<CloseProgress>,
}

impl Open {
    /// One that the iWARP connection manager knows of, or has nothing to do with.
    pub(in crate::cm) const fn reported() -> Self {
        Self {
            unreported: None,
            lingers: false,
            leaving: None,
        }
    }

    /// One that it does not know of yet, with the depths of this end.
    pub(in crate::cm) const fn unreported(ird: u16, ord: u16) -> Self {
        Self {
            unreported: Some((ird, ord)),
            lingers: false,
            leaving: None,
        }
    }

    /// Makes it one without connection manager. Its consumer knows no disconnecting: what it has
    /// sent is to arrive, though it destroys the queue pair right after.
    pub(in crate::cm) const fn oob(self) -> Self {
        Self {
            lingers: true,
            ..self
        }
    }

    /// Tells the iWARP connection manager, once.
    pub(in crate::cm) fn report(&mut self, actor: &Actor) {
        if let (Some((ird, ord)), Some(id)) = (self.unreported.take(), &actor.id) {
            // As the peer sees it: our Reads use its inbound queue. Room for the event is kept.
            let _ = id.established(ord.into(), ird.into());
        }
    }
}

/// A stream whose peer has ended its half.
pub(in crate::cm) struct HalfClosed {
    ack_deadline: AckDeadline,
    /// Before the next look at what is owed, in milliseconds.
    pause: u32,
    /// The queue pair may keep its receives for as long as it wants nothing of the peer.
    lingers: bool,
}

/// A connection whose FIN was sent.
pub(in crate::cm) struct Closing {
    ack_deadline: AckDeadline,
    /// The peer has acknowledged everything; it is about its FIN now.
    delivered: bool,
}

impl Closing {
    fn of(conn: &Conn) -> Self {
        Self {
            ack_deadline: AckDeadline::of(conn),
            delivered: false,
        }
    }
}

impl HalfClosed {
    /// One that has just begun, with the limit of [`limit::OWED`].
    fn begin(conn: &Conn, lingers: bool) -> Self {
        let mut ack_deadline = AckDeadline::of(conn);
        ack_deadline.renewals = limit::OWED_RENEWALS;
        Self {
            ack_deadline,
            pause: limit::OWED_LOOK,
            lingers,
        }
    }
}

/// A time limit that is set anew if it runs out while the peer acknowledges more: what is slow is
/// not stuck.
struct AckDeadline {
    /// Octets that the peer had acknowledged when it was set.
    acked: u64,
    /// How often it may be set anew.
    renewals: u32,
}

impl AckDeadline {
    fn of(conn: &Conn) -> Self {
        Self {
            acked: conn.socket.acked(),
            renewals: u32::MAX,
        }
    }

    /// Whether time is up, and nothing has happened in it or it was enough. If not so, the phase
    /// gets more.
    fn is_stuck(&mut self, conn: &Conn, actor: &mut Actor, millis: u32) -> bool {
        if !actor.is_overdue() {
            return false;
        }
        let before = core::mem::replace(&mut self.acked, conn.socket.acked());
        if self.acked == before || self.renewals == 0 {
            return true;
        }
        self.renewals -= 1;
        actor.limit(millis);
        false
    }
}

/// What there is to be done before the queue pair ends a stream goes on, as this shows. Most of it
/// takes a peer that acknowledges what is sent, and answers Reads.
struct CloseProgress {
    acked: u64,
    received: u64,
}

impl CloseProgress {
    /// Begins to count the time.
    fn begin(conn: &Conn, actor: &mut Actor) -> Self {
        actor.limit(limit::DELIVERY);
        Self::of(conn)
    }

    fn of(conn: &Conn) -> Self {
        Self {
            acked: conn.socket.acked(),
            received: conn.socket.received(),
        }
    }

    /// Whether time is up since something was seen to happen. Looks from time to time.
    fn is_stuck(&mut self, conn: &Conn, actor: &mut Actor) -> bool {
        let now = Self::of(conn);
        let came = now.received != self.received;
        let goes_on = |qp: Arc<Qp>| came && qp.awaits_answers() || qp.waits_for_memory();
        if now.acked != self.acked || conn.qp().is_some_and(goes_on) {
            *self = now;
            actor.limit(limit::DELIVERY);
        }
        actor.look_again(limit::DELIVERY_LOOK);
        actor.is_overdue()
    }
}

/// How a stream can stand after all that has come was given to the queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CloseState {
    /// The end has come, inside an FPDU or message.
    Cut,
    /// The end has not come.
    Going,
    /// What has come waits for memory; the connection is told when it was taken.
    Waiting,
    /// The end has come where one may be.
    Whole,
}

/// What becomes of the TCP connection at the end of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FinalAction {
    /// It is at its end already: what is left to be delivered, TCP delivers.
    Done,
    /// A FIN has to go out yet.
    Fin,
    /// Ours has gone out; the peer's is awaited.
    Linger,
    /// It is reset.
    Reset,
}

/// How much time a phase has, in milliseconds.
mod limit {
    /// For some octets to be acknowledged of what the queue pair owes after the peer's FIN.
    pub(in crate::cm) const OWED: u32 = 5_000;
    /// How often `OWED` is given anew: 200 seconds in all. How fast it takes what is owed is up to
    /// the peer.
    pub(in crate::cm) const OWED_RENEWALS: u32 = 39;
    /// Before the first look at what it owes, and at most between two: each time it is twice as
    /// long.
    pub(in crate::cm) const OWED_LOOK: u32 = 4;
    pub(in crate::cm) const OWED_LOOK_MAX: u32 = 1_024;
    /// For some octets to be acknowledged, the FIN last; before the FIN also for answers.
    pub(in crate::cm) const DELIVERY: u32 = 20_000;
    /// Between two looks at whether there are any, before the FIN.
    pub(in crate::cm) const DELIVERY_LOOK: u32 = 5_000;
    /// How often `DELIVERY` is given anew if nobody is interested any more: 200 seconds in all.
    pub(in crate::cm) const LINGER_RENEWALS: u32 = 9;
    /// The peer's FIN after ours was acknowledged.
    pub(in crate::cm) const FIN: u32 = 2_000;
}

impl Conn {
    pub(in crate::cm) fn open(self: &Arc<Self>, actor: &mut Actor, mut open: Open) -> NextStep {
        if open.lingers && is_wanted(&self.wants.orphan) && !self.is_aborted() {
            return self.end(actor, Ended::Graceful, FinalAction::Linger);
        }
        if self.is_cut_off() {
            return self.end(actor, Ended::Lost, FinalAction::Reset);
        }
        if open.unreported.is_some() {
            if is_wanted(&self.wants.first_fpdu) {
                // MPA-41: the peer's ready-to-receive message is here and valid.
                open.report(actor);
                actor.no_limit();
            } else if actor.is_overdue() {
                self.device().stats.mpa_timeouts.inc();
                return self.end(actor, Ended::Lost, FinalAction::Reset);
            }
        }
        if is_wanted(&self.wants.graceful) {
            return self.begin_closing(actor);
        }
        if is_wanted(&self.wants.leaving) && open.unreported.is_none() {
            let leaving = open
                .leaving
                .get_or_insert_with(|| CloseProgress::begin(self, actor));
            if leaving.is_stuck(self, actor) {
                return self.end(actor, Ended::Lost, FinalAction::Reset);
            }
        }
        match self.socket.state() {
            TcpState::Established => NextStep::Wait(ConnPhase::Open(open)),
            TcpState::CloseWait => match self.drain() {
                CloseState::Going | CloseState::Waiting => NextStep::Wait(ConnPhase::Open(open)),
                CloseState::Cut => self.end(actor, Ended::Lost, FinalAction::Reset),
                CloseState::Whole => {
                    if let Some(id) = &actor.id {
                        // Refused, and rightly, if nobody knows yet that the connection was up.
                        let _ = id.disconnect();
                    }
                    if open.lingers {
                        if let Some(qp) = self.qp() {
                            qp.note_peer_closed();
                        }
                    }
                    actor.limit(limit::OWED);
                    NextStep::Again(ConnPhase::HalfClosed(HalfClosed::begin(self, open.lingers)))
                }
            },
            TcpState::SynSent
            | TcpState::SynReceived
            | TcpState::FinWait1
            | TcpState::FinWait2
            | TcpState::Closing
            | TcpState::LastAck
            | TcpState::TimeWait
            | TcpState::Listen
            | TcpState::Closed => self.end(actor, Ended::Lost, FinalAction::Done),
        }
    }

    /// Sends the FIN that the queue pair wants behind its octets.
    fn begin_closing(self: &Arc<Self>, actor: &mut Actor) -> NextStep {
        self.socket.shutdown_write();
        actor.limit(limit::DELIVERY);
        NextStep::Again(ConnPhase::Closing(Closing::of(self)))
    }

    pub(in crate::cm) fn half_closed(
        self: &Arc<Self>,
        actor: &mut Actor,
        mut half: HalfClosed,
    ) -> NextStep {
        if is_wanted(&self.wants.kill) {
            return self.end(actor, Ended::Lost, FinalAction::Reset);
        }
        if !matches!(self.socket.state(), TcpState::CloseWait) {
            return self.end(actor, Ended::Lost, FinalAction::Done);
        }
        let owes = self.qp().is_some_and(|qp| qp.owes());
        let stopped = self.is_cut_off() || is_wanted(&self.wants.graceful);
        if owes && !stopped && !half.ack_deadline.is_stuck(self, actor, limit::OWED) {
            actor.look_later(&mut half.pause, limit::OWED_LOOK_MAX);
            return NextStep::Wait(ConnPhase::HalfClosed(half));
        }
        if half.lingers && !stopped && self.qp().is_some_and(|qp| qp.is_content()) {
            actor.no_limit();
            return NextStep::Wait(ConnPhase::HalfClosed(half));
        }
        self.end(actor, Ended::Graceful, FinalAction::Fin)
    }

    pub(in crate::cm) fn closing(
        self: &Arc<Self>,
        actor: &mut Actor,
        mut closing: Closing,
    ) -> NextStep {
        if is_wanted(&self.wants.kill) {
            return self.end(actor, Ended::Lost, FinalAction::Reset);
        }
        match self.await_fin(actor, &mut closing) {
            // The FIN has to be awaited without the queue pair: what was sent is to arrive.
            None if self.is_cut_off() => self.end(actor, Ended::Lost, FinalAction::Linger),
            None => NextStep::Wait(ConnPhase::Closing(closing)),
            Some(FinalAction::Done) if self.socket.error() == 0 => match self.drain() {
                CloseState::Whole => self.end(actor, Ended::Graceful, FinalAction::Done),
                // No fault of the peer, whose end may be behind it: its time begins anew.
                CloseState::Waiting if !self.is_cut_off() => {
                    closing.delivered = false;
                    actor.no_limit();
                    NextStep::Wait(ConnPhase::Closing(closing))
                }
                CloseState::Cut | CloseState::Going | CloseState::Waiting => {
                    self.end(actor, Ended::Lost, FinalAction::Done)
                }
            },
            Some(action) => self.end(actor, Ended::Lost, action),
        }
    }

    pub(in crate::cm) fn lingering(
        self: &Arc<Self>,
        actor: &mut Actor,
        mut closing: Closing,
    ) -> NextStep {
        if is_wanted(&self.wants.kill) {
            return self.reset(actor);
        }
        match self.await_fin(actor, &mut closing) {
            None => NextStep::Wait(ConnPhase::Lingering(closing)),
            Some(FinalAction::Reset) => self.reset(actor),
            Some(FinalAction::Done | FinalAction::Fin | FinalAction::Linger) => self.release(actor),
        }
    }

    /// Looks whether the peer's FIN is here after ours was sent, and what becomes of the connection
    /// if nothing more is to be awaited.
    fn await_fin(&self, actor: &mut Actor, closing: &mut Closing) -> Option<FinalAction> {
        match self.socket.state() {
            TcpState::Established | TcpState::FinWait1 => closing
                .ack_deadline
                .is_stuck(self, actor, limit::DELIVERY)
                .then_some(FinalAction::Reset),
            TcpState::FinWait2 => {
                if !closing.delivered {
                    closing.delivered = true;
                    actor.limit(limit::FIN);
                }
                actor.is_overdue().then_some(FinalAction::Done)
            }
            TcpState::SynSent
            | TcpState::SynReceived
            | TcpState::CloseWait
            | TcpState::Closing
            | TcpState::LastAck
            | TcpState::TimeWait
            | TcpState::Listen
            | TcpState::Closed => Some(FinalAction::Done),
        }
    }

    /// Ends the sending half, and throws away what comes until the peer's FIN. The queue pair has
    /// nothing to do with the connection any more.
    pub(in crate::cm) fn linger(self: &Arc<Self>, actor: &mut Actor) -> NextStep {
        self.set_route(Route::Nobody);
        self.socket.shutdown_write();
        self.socket
            .with_inbound(|inbound| inbound.consume(inbound.available()));
        actor.limit(limit::DELIVERY);
        let mut closing = Closing::of(self);
        // Nobody waits for it.
        closing.ack_deadline.renewals = limit::LINGER_RENEWALS;
        NextStep::Again(ConnPhase::Lingering(closing))
    }

    /// Ends a stream that could not be reported, or not answered for.
    pub(in crate::cm) fn fail_open(self: &Arc<Self>, actor: &mut Actor, error: Error) -> NextStep {
        if let Some(id) = actor.id.take() {
            give_up(&id, error, &[]);
        }
        self.end(actor, Ended::Lost, FinalAction::Reset)
    }

    /// Ends a stream: the queue pair first, so that it is in error when CLOSE is raised.
    fn end(self: &Arc<Self>, actor: &mut Actor, how: Ended, action: FinalAction) -> NextStep {
        self.set_route(Route::Nobody);
        if let Some(qp) = self.take_qp() {
            qp.stream_ended(how);
        }
        if let Some(id) = actor.id.take() {
            give_up(&id, ECONNRESET, &[]);
        }
        if how == Ended::Lost {
            self.device().stats.aborts.inc();
        }
        match action {
            FinalAction::Done => self.release(actor),
            FinalAction::Fin => {
                self.socket.shutdown_write();
                self.release(actor)
            }
            FinalAction::Linger => self.linger(actor),
            FinalAction::Reset => self.reset(actor),
        }
    }

    /// Whether the queue pair wants nothing of the stream any more, not even its rest.
    fn is_cut_off(&self) -> bool {
        self.is_aborted() || is_wanted(&self.wants.orphan)
    }

    /// Whether it is to be reset.
    fn is_aborted(&self) -> bool {
        is_wanted(&self.wants.abort) || is_wanted(&self.wants.kill)
    }

    /// Gives the queue pair all that has come, and says how the stream stands then.
    fn drain(self: &Arc<Self>) -> CloseState {
        let qp = self.qp();
        loop {
            let (before, after, eof, waits) = self.socket.with_inbound(|inbound| {
                let before = inbound.available();
                BhOff::run(|off| self.feed(inbound, off));
                // Whoever has the memory needs the socket to go on: what is left waits still, if
                // this says so.
                let waits = qp.as_ref().is_some_and(|qp| qp.is_paging_in());
                (before, inbound.available(), inbound.eof(), waits)
            });
            if waits {
                return CloseState::Waiting;
            }
            if !eof {
                return CloseState::Going;
            }
            // The receiver has a budget, and may leave more than an incomplete FPDU.
            if after != 0 && after != before {
                continue;
            }
            let whole = qp.is_none_or(|qp| qp.is_between_messages());
            return if after == 0 && whole {
                CloseState::Whole
            } else {
                CloseState::Cut
            };
        }
    }
}

#[kernel::prelude::kunit_tests(riwarp_conn_limits)]
mod limits {
    use super::{
        super::bench::{
            fill,
            ConnRig,
            PARAMS, //
        },
        *, //
    };
    use crate::{
        abi::wr::SendWr,
        queue::sq::Taken, //
    };
    use kernel_ext::net::bench::eventually;

    /// How often a time limit runs out until the phase ends, if it does so within a hundred times.
    /// Between two times the peer acknowledges something, or nothing.
    fn times<P>(
        mut phase: P,
        goes_on: bool,
        progress: impl Fn(&mut P) -> &mut AckDeadline,
        mut step: impl FnMut(P) -> Option<P>,
    ) -> u32 {
        for time in 1..=100 {
            if goes_on {
                // What it had acknowledged before is something else.
                progress(&mut phase).acked = u64::MAX;
            }
            match step(phase) {
                Some(next) => phase = next,
                None => return time,
            }
        }
        0
    }

    /// How often [`limit::OWED`] runs out for a peer that has ended its half.
    fn times_owed(goes_on: bool) -> Result<u32> {
        let rig = ConnRig::new()?;
        rig.qp.attach(&rig.conn, &PARAMS)?;
        // It is on its way, and does not get there.
        rig.qp.sq.post(SendWr::default())?;
        let Taken::Wr(_) = rig.qp.sq.take(&mut SendWr::default()) else {
            return Err(EINVAL);
        };
        rig.far.shutdown_write();
        let conn = &rig.conn;
        eventually(|| conn.socket.state() == TcpState::CloseWait)?;
        let mut actor = conn.actor.lock();
        actor.limit(limit::OWED);
        let half = HalfClosed::begin(conn, false);
        Ok(times(
            half,
            goes_on,
            |half| &mut half.ack_deadline,
            |half| {
                actor.pass(limit::OWED);
                match conn.half_closed(&mut actor, half) {
                    NextStep::Wait(ConnPhase::HalfClosed(half)) => Some(half),
                    _ => None,
                }
            },
        ))
    }

    #[test]
    fn what_is_owed_is_owed_for_200_seconds() -> Result {
        assert_eq!(times_owed(true)?, 200_000 / limit::OWED);
        assert_eq!(times_owed(false)?, 1);
        Ok(())
    }

    /// How often [`limit::DELIVERY`] runs out behind the FIN of a stream that nobody is interested
    /// in any more, while its peer takes next to nothing.
    fn times_lingering(goes_on: bool) -> Result<u32> {
        let rig = ConnRig::new()?;
        let conn = &rig.conn;
        // The FIN waits behind octets for which the peer has no room.
        fill(&conn.socket);
        let mut actor = conn.actor.lock();
        let NextStep::Again(ConnPhase::Lingering(closing)) = conn.linger(&mut actor) else {
            return Err(EINVAL);
        };
        Ok(times(
            closing,
            goes_on,
            |closing| &mut closing.ack_deadline,
            |closing| {
                actor.pass(limit::DELIVERY);
                match conn.lingering(&mut actor, closing) {
                    NextStep::Wait(ConnPhase::Lingering(closing)) => Some(closing),
                    _ => None,
                }
            },
        ))
    }

    #[test]
    fn a_stream_of_nobody_is_delivered_for_200_seconds() -> Result {
        assert_eq!(times_lingering(true)?, 200_000 / limit::DELIVERY);
        assert_eq!(times_lingering(false)?, 1);
        Ok(())
    }
}
