// SPDX-License-Identifier: GPL-2.0

//! The steps of a connection whose stream carries RDMA messages, and of its end.
//!
//! They act on the queue pair's requests, the state of the TCP connection and the clock. They call
//! the queue pair's `stream_ended`, raise ESTABLISHED, DISCONNECT and CLOSE for the iWARP
//! connection manager, and send a FIN or a reset to the peer.
//!
//! | first to end | what happens |
//! |---|---|
//! | the queue pair, orderly | FIN after its data; reads on to the peer's FIN (DDP-57, -61, -62) |
//! | the peer, orderly | the queue pair sends what it has not sent yet, then FIN (DDP-60) |
//! | the peer, inside an FPDU | lost (MPA-30) |
//! | either, by a reset | lost |
//!
//! Without a connection manager, a queue pair with no work in progress answers an orderly end of
//! the peer with a FIN only when it closes the stream itself.
//!
//! After this end's FIN, incoming octets are read, and discarded if necessary, until the peer's
//! FIN: closing a socket with unread octets resets the connection, which would lose a Terminate in
//! transit (RDMAP-135). Each wait for the peer has a time limit, including the work before an
//! orderly close of this end, which the queue pair announces with [`Conn::leave`].
//!
//! RFC 5041, section 8.2; RFC 5040, section 6.2. Context: process, the actor's mutex held.

use iwarp::actions::Later;
use kernel::{
    prelude::*,
    sync::Arc,
    time::Delta, //
};
use kernel_ext::{
    compat::ECONNRESET,
    net::TcpState,
    sync::BhOff, //
};

use crate::{
    qp::{
        receive::RxWaits,
        Qp, //
    },
    stream::connection::{
        Ended,
        Loss, //
    }, //
};

use super::{
    is_wanted,
    phase::{
        Actor,
        CloseProgress,
        Closing,
        ConnPhase,
        FinalAction,
        HalfClosed,
        NextStep,
        Open,
        ProgressDeadline, //
    },
    steps::give_up,
    Conn,
    Route, //
};

impl Closing {
    /// Sends the FIN, and a time limit begins.
    ///
    /// # Errors
    ///
    /// `EBUSY` if another thread owns the socket.
    fn begin(conn: &Conn, actor: &mut Actor) -> Result<Self> {
        let lacks_fin = !conn.socket.try_shutdown_write()?;
        actor.limit(limit::DELIVERY);
        Ok(Self {
            ack_deadline: ProgressDeadline::new(conn.socket.acked(), limit::DELIVERY_RENEWALS),
            fin_deadline: ProgressDeadline::new(conn.socket.received(), limit::FIN_RENEWALS),
            lacks_fin,
            delivered: false,
        })
    }
}

impl HalfClosed {
    /// Begins the phase; its time limit is [`limit::OWED`].
    fn begin(conn: &Conn, lingers: bool) -> Self {
        Self {
            ack_deadline: ProgressDeadline::new(conn.socket.acked(), limit::OWED_RENEWALS),
            pause: limit::OWED_RECHECK,
            lingers,
        }
    }
}

impl CloseProgress {
    /// Starts the time limit.
    fn begin(conn: &Conn, actor: &mut Actor) -> Self {
        actor.limit(limit::DELIVERY);
        Self::of(conn, actor.after(limit::CLOSE))
    }

    fn of(conn: &Conn, end: Delta) -> Self {
        Self {
            acked: conn.socket.acked(),
            received: conn.socket.received(),
            end,
        }
    }

    /// Returns whether the time limit has expired since the last progress, or that for all of the
    /// work. Requests periodic checks.
    fn is_stuck(&mut self, conn: &Conn, actor: &mut Actor) -> bool {
        let now = Self::of(conn, self.end);
        let came = now.received != self.received;
        let goes_on = |qp: Arc<Qp>| came && qp.awaits_answers() || qp.waits_for_memory();
        if now.acked != self.acked || conn.qp().is_some_and(goes_on) {
            *self = now;
            actor.limit(limit::DELIVERY);
        }
        actor.recheck_after(limit::DELIVERY_RECHECK);
        actor.is_overdue() || actor.now() >= self.end
    }
}

/// The state of a stream after all received data was given to the queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CloseState {
    /// The FIN has come inside an FPDU or message.
    Cut,
    /// The FIN has not come.
    Going,
    /// The FIN has come after a complete message, but without the closure alert of TLS.
    Unclosed,
    /// Received data waits for memory; a step follows once it was taken.
    Waiting,
    /// The FIN has come after a complete message.
    Whole,
}

/// How often what has arrived is discarded at a time.
const DISCARDS: u32 = 16;

/// Time limits of the phases, in milliseconds.
mod limit {
    /// For any progress in acknowledging what the queue pair sends after the peer's FIN.
    pub(in crate::cm) const OWED: u32 = 5_000;
    /// How often `OWED` restarts: 200 seconds in all, because the peer decides how fast it reads.
    pub(in crate::cm) const OWED_RENEWALS: u32 = 39;
    /// The first and the longest delay between checks of what is owed; the delay doubles each time.
    pub(in crate::cm) const OWED_RECHECK: u32 = 4;
    pub(in crate::cm) const OWED_RECHECK_MAX: u32 = 1_024;
    /// For any octets to be acknowledged, the FIN last; before the FIN also for answers.
    pub(in crate::cm) const DELIVERY: u32 = 20_000;
    /// Delay between checks for such progress, before the FIN.
    pub(in crate::cm) const DELIVERY_RECHECK: u32 = 5_000;
    /// How often `DELIVERY` restarts after the FIN: 200 seconds in all for what TCP holds.
    pub(in crate::cm) const DELIVERY_RENEWALS: u32 = 9;
    /// For all that the queue pair has to finish before the FIN: an hour. A peer that withholds an
    /// answer could always make some other progress, and consumers wait for the end.
    pub(in crate::cm) const CLOSE: u32 = 3_600_000;
    /// For the peer's FIN, or any octets of it, after ours was acknowledged.
    pub(in crate::cm) const FIN: u32 = 2_000;
    /// How often `FIN` restarts while a queue pair takes what arrives: 200 seconds in all, because
    /// the peer decides how long it sends.
    pub(in crate::cm) const FIN_RENEWALS: u32 = 99;
}

impl Conn {
    pub(in crate::cm) fn open(self: &Arc<Self>, actor: &mut Actor, mut open: Open) -> NextStep {
        if open.lingers && is_wanted(&self.wants.orphan) && !self.is_aborted() {
            return self.end(actor, Ended::Graceful, FinalAction::Linger);
        }
        // Who destroys a queue pair right after it was closed still wants everything delivered
        // (DDP-57, RDMAP-135).
        let orphaned = is_wanted(&self.wants.orphan) && !self.connection.is_asked(Later::Close);
        if orphaned || self.is_aborted() {
            return self.end(actor, Ended::Lost(self.loss_at_abort()), FinalAction::Reset);
        }
        let state = self.socket.state();
        // First, for what it asks for.
        let drained = match state {
            TcpState::CloseWait => self.drain(),
            _ => Ok(CloseState::Going),
        };
        if open.unreported.is_some() {
            if self.connection.is_asked(Later::ReportFirstFpdu) {
                // MPA-41: the peer's ready-to-receive message has arrived and is valid.
                open.report(actor);
                actor.no_limit();
            } else if actor.is_overdue() {
                self.timed_out("no first message of the peer in time");
                return self.end(actor, Ended::Lost(Loss::Here), FinalAction::Reset);
            }
        }
        if self.connection.is_asked(Later::Close) {
            return self.begin_closing(actor, open);
        }
        if self.connection.is_asked(Later::Leave) && open.unreported.is_none() {
            let leaving = open
                .leaving
                .get_or_insert_with(|| CloseProgress::begin(self, actor));
            if leaving.is_stuck(self, actor) {
                return self.end(actor, Ended::Lost(Loss::Stuck), FinalAction::Reset);
            }
        }
        if open.undelivered {
            open.undelivered = self.deliver().is_err();
            if open.undelivered {
                actor.come_back();
            }
        }
        if !self.socket.release_netns() {
            actor.come_back();
        }
        match state {
            // With TCP Fast Open the stream may be open before the handshake has ended.
            TcpState::SynReceived | TcpState::Established => NextStep::Wait(ConnPhase::Open(open)),
            TcpState::CloseWait => match drained {
                Err(_) => {
                    actor.come_back();
                    NextStep::Wait(ConnPhase::Open(open))
                }
                Ok(CloseState::Going | CloseState::Waiting) => {
                    NextStep::Wait(ConnPhase::Open(open))
                }
                Ok(CloseState::Cut) => self.end(actor, Ended::Lost(Loss::Cut), FinalAction::Reset),
                Ok(CloseState::Unclosed) => {
                    self.end(actor, Ended::Lost(Loss::Unclosed), FinalAction::Reset)
                }
                Ok(CloseState::Whole) => {
                    if let Some(id) = &actor.id {
                        // Rejected, correctly, if the connection was not reported as established.
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
            | TcpState::FinWait1
            | TcpState::FinWait2
            | TcpState::Closing
            | TcpState::LastAck
            | TcpState::TimeWait
            | TcpState::Listen
            | TcpState::Closed => {
                self.end(actor, Ended::Lost(self.loss_by_tcp()), FinalAction::Done)
            }
        }
    }

    /// Sends the FIN that the queue pair requested, after its octets.
    fn begin_closing(self: &Arc<Self>, actor: &mut Actor, mut open: Open) -> NextStep {
        match Closing::begin(self, actor) {
            Ok(closing) => NextStep::Again(ConnPhase::Closing(closing)),
            Err(_) => {
                actor.come_back();
                if self.socket.is_secure() {
                    // The peer decides when TCP has room for the closure alert.
                    let leaving = open
                        .leaving
                        .get_or_insert_with(|| CloseProgress::begin(self, actor));
                    if leaving.is_stuck(self, actor) {
                        return self.end(actor, Ended::Lost(Loss::Stuck), FinalAction::Reset);
                    }
                    actor.come_back();
                }
                NextStep::Wait(ConnPhase::Open(open))
            }
        }
    }

    pub(in crate::cm) fn half_closed(
        self: &Arc<Self>,
        actor: &mut Actor,
        mut half: HalfClosed,
    ) -> NextStep {
        if is_wanted(&self.wants.kill) {
            return self.end(actor, Ended::Lost(Loss::Here), FinalAction::Reset);
        }
        let qp = self.qp();
        let unsent = qp.as_ref().is_some_and(|qp| qp.has_unsent());
        if !matches!(self.socket.state(), TcpState::CloseWait) {
            // A peer that was owed nothing may have gone in any way after its FIN.
            let loss = if unsent {
                self.loss_by_tcp()
            } else {
                Loss::Here
            };
            return self.end(actor, Ended::Lost(loss), FinalAction::Done);
        }
        let cut_off = self.is_cut_off();
        if qp.is_some_and(|qp| qp.waits_for_memory()) {
            // Not the peer's fault.
            actor.limit(limit::OWED);
        }
        if unsent
            && !cut_off
            && !half
                .ack_deadline
                .is_stuck(self.socket.acked(), actor, limit::OWED)
        {
            actor.recheck_with_backoff(&mut half.pause, limit::OWED_RECHECK_MAX);
            return NextStep::Wait(ConnPhase::HalfClosed(half));
        }
        if half.lingers && !cut_off && self.qp().is_some_and(|qp| qp.is_idle_in_rts()) {
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
            return self.end(actor, Ended::Lost(Loss::Here), FinalAction::Reset);
        }
        match self.await_fin(actor, &mut closing) {
            // Await the FIN without the queue pair, so that sent data is delivered.
            None if self.is_cut_off() => {
                let (how, action) = match (closing.lacks_fin, self.is_aborted()) {
                    (true, _) => (Ended::Lost(Loss::Here), FinalAction::Reset),
                    (false, true) => (Ended::Lost(Loss::Here), FinalAction::Linger),
                    (false, false) => (Ended::Graceful, FinalAction::Linger),
                };
                self.end(actor, how, action)
            }
            None => NextStep::Wait(ConnPhase::Closing(closing)),
            Some(FinalAction::Done) if self.socket.error() == 0 => match self.drain() {
                Err(_) => {
                    actor.come_back();
                    NextStep::Wait(ConnPhase::Closing(closing))
                }
                Ok(CloseState::Whole) => self.end(actor, Ended::Graceful, FinalAction::Done),
                // Not the peer's fault, and its FIN may follow: restart its time limit.
                Ok(CloseState::Waiting) if !self.is_cut_off() => {
                    closing.delivered = false;
                    actor.no_limit();
                    NextStep::Wait(ConnPhase::Closing(closing))
                }
                Ok(
                    CloseState::Cut
                    | CloseState::Unclosed
                    | CloseState::Going
                    | CloseState::Waiting,
                ) => self.end(actor, Ended::Lost(Loss::Here), FinalAction::Done),
            },
            Some(FinalAction::Reset) if !closing.lacks_fin => {
                self.end(actor, Ended::Lost(Loss::Stuck), FinalAction::Reset)
            }
            Some(action) => self.end(actor, Ended::Lost(Loss::Here), action),
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
        // TCP's callback discards what is not decrypted before.
        let discarded = self.socket.is_secure().then(|| self.discard_input());
        if let Some(Err(_)) = discarded {
            actor.come_back();
        }
        match self.await_fin(actor, &mut closing) {
            None => NextStep::Wait(ConnPhase::Lingering(closing)),
            Some(action) => self.finish(actor, action),
        }
    }

    /// Checks for the peer's FIN after ours was sent; returns the final action if the wait is over.
    fn await_fin(&self, actor: &mut Actor, closing: &mut Closing) -> Option<FinalAction> {
        match self.socket.state() {
            // Without a FIN, only a reset tells the peer of the end, once it has everything.
            TcpState::Established
            | TcpState::FinWait1
            | TcpState::FinWait2
            | TcpState::Closing
            | TcpState::LastAck
                if closing.lacks_fin && self.socket.is_acked() =>
            {
                Some(FinalAction::Reset)
            }
            TcpState::Established | TcpState::FinWait1 => closing
                .ack_deadline
                .is_stuck(self.socket.acked(), actor, limit::DELIVERY)
                .then_some(FinalAction::Reset),
            TcpState::FinWait2 => {
                if !closing.delivered {
                    closing.delivered = true;
                    actor.limit(limit::FIN);
                }
                // DDP-62; but nobody needs what is discarded.
                if !self
                    .qp()
                    .is_some_and(|qp| qp.shared.lifecycle().is_streaming())
                {
                    closing.fin_deadline.renewals = 0;
                }
                closing
                    .fin_deadline
                    .is_stuck(self.socket.received(), actor, limit::FIN)
                    .then_some(FinalAction::Done)
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

    /// Carries out TCP's part of the end. The queue pair is no longer involved.
    pub(in crate::cm) fn ending(
        self: &Arc<Self>,
        actor: &mut Actor,
        action: FinalAction,
    ) -> NextStep {
        // With TLS what waits for room in TCP ends in a reset, since the peer decides how fast it
        // reads.
        let secure = self.socket.is_secure();
        let late = secure && (is_wanted(&self.wants.kill) || actor.is_overdue());
        let action = match action {
            FinalAction::Fin | FinalAction::LeaveToTcp | FinalAction::Linger if late => {
                FinalAction::Reset
            }
            action => action,
        };
        self.try_ending(actor, action).unwrap_or_else(|_| {
            if secure && actor.left().is_none() {
                actor.limit(limit::DELIVERY);
            }
            actor.come_back();
            NextStep::Wait(ConnPhase::Ending(action))
        })
    }

    /// # Errors
    ///
    /// `EBUSY` if another thread owns the socket. What is done then has no effect when it is done
    /// again.
    fn try_ending(self: &Arc<Self>, actor: &mut Actor, action: FinalAction) -> Result<NextStep> {
        match action {
            FinalAction::Done => {}
            FinalAction::Reset => {
                if self.socket.state() != TcpState::Closed {
                    self.socket.try_abort()?;
                }
            }
            FinalAction::Fin => {
                if !self.socket.try_shutdown_write()? {
                    return Ok(self.reset(actor));
                }
            }
            FinalAction::LeaveToTcp | FinalAction::Linger => {
                self.discard_input()?;
                let mut closing = Closing::begin(self, actor)?;
                if action == FinalAction::LeaveToTcp {
                    // A stranger may acknowledge nothing.
                    closing.ack_deadline.renewals = 0;
                }
                if action == FinalAction::Linger || closing.lacks_fin {
                    return Ok(NextStep::Again(ConnPhase::Lingering(closing)));
                }
            }
        }
        // TCP resets a connection that is closed with unread octets.
        self.discard_input()?;
        self.socket.unhook();
        self.entry.remove();
        actor.no_limit();
        Ok(NextStep::Wait(ConnPhase::Released))
    }

    /// Discards what has arrived.
    fn discard_input(&self) -> Result {
        // With TLS not all of it is decrypted at a time.
        for _ in 0..DISCARDS {
            let discarded = self.socket.try_with_inbound(|inbound| {
                let available = inbound.available();
                inbound.consume(available);
                available
            })?;
            if discarded == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Fails a stream that could not be reported, or an accepted connection before its Reply was
    /// sent.
    pub(in crate::cm) fn fail_open(self: &Arc<Self>, actor: &mut Actor, error: Error) -> NextStep {
        let id = actor.id.take();
        let next = self.end(actor, Ended::Lost(Loss::Here), FinalAction::Reset);
        // Not by `end`, which knows only one error.
        if let Some(id) = id {
            give_up(&id, error, &[]);
        }
        next
    }

    /// Ends a stream: the queue pair first, so that it is in error when CLOSE is raised.
    fn end(self: &Arc<Self>, actor: &mut Actor, how: Ended, action: FinalAction) -> NextStep {
        self.set_route(Route::Discard);
        let qp = self.take_qp();
        if let Some(qp) = &qp {
            qp.stream_ended(how);
        }
        self.trace_closed(qp.as_deref(), how);
        drop(qp);
        if let Some(id) = actor.id.take() {
            give_up(&id, ECONNRESET, &[]);
        }
        if let Ended::Lost(_) = how {
            self.device().stats.aborts.inc();
        }
        self.finish(actor, action)
    }

    /// Returns how the queue pair or the device lost the stream that it wants to be reset.
    fn loss_at_abort(&self) -> Loss {
        // The transmit task, too, wants that once TCP has ended the connection.
        let wanted = is_wanted(&self.wants.kill) || is_wanted(&self.wants.orphan);
        match self.socket.state() {
            TcpState::Closed if !wanted => self.loss_by_tcp(),
            _ => Loss::Here,
        }
    }

    /// Returns how TCP lost the stream.
    fn loss_by_tcp(&self) -> Loss {
        Loss::Tcp(u8::try_from(self.socket.error()).unwrap_or(0))
    }

    /// Returns whether the queue pair wants nothing more from the stream, not even pending data.
    fn is_cut_off(&self) -> bool {
        self.is_aborted() || is_wanted(&self.wants.orphan)
    }

    /// Returns whether the stream is to be reset.
    fn is_aborted(&self) -> bool {
        self.connection.is_asked(Later::Abort) || is_wanted(&self.wants.kill)
    }

    /// Gives the queue pair all received data and returns the resulting state.
    ///
    /// # Errors
    ///
    /// `EBUSY` if another thread owns the socket.
    fn drain(self: &Arc<Self>) -> Result<CloseState> {
        let qp = self.qp();
        loop {
            let (before, after, eof, cut, waits) = self.socket.try_with_inbound(|inbound| {
                let before = inbound.available();
                BhOff::run(|off| self.feed(inbound, off));
                // Who brings memory in, or finds a receive, needs the socket lock to deliver: if
                // this says that it waits, the rest has not been taken yet.
                let waits = qp.as_ref().map_or(RxWaits::Nothing, |qp| qp.rx_waits());
                (
                    before,
                    inbound.available(),
                    inbound.eof(),
                    inbound.is_cut(),
                    waits,
                )
            })?;
            if let (Some(qp), RxWaits::Receive, true) = (&qp, waits, eof) {
                qp.limit_receive_wait();
            }
            if waits != RxWaits::Nothing {
                return Ok(CloseState::Waiting);
            }
            if !eof {
                return Ok(CloseState::Going);
            }
            // The receiver has a budget, so it may leave more than an incomplete FPDU.
            if after != 0 && after != before {
                continue;
            }
            let whole = qp.is_none_or(|qp| qp.is_between_messages());
            return Ok(match (after == 0 && whole, cut) {
                (true, false) => CloseState::Whole,
                (true, true) => CloseState::Unclosed,
                (false, _) => CloseState::Cut,
            });
        }
    }
}

#[kernel::prelude::kunit_tests(riwarp_conn_limits)]
mod limits {
    use super::{
        super::{
            bench::{
                fill,
                ConnRig,
                FPDU,
                PARAMS, //
            },
            want, //
        },
        *, //
    };
    use crate::{
        abi::wr::{
            SendOp,
            SendWr, //
        },
        queue::{
            readq::InboundRequest,
            sq::Taken, //
        },
        stream::tx::paging::PagingOut, //
    };
    use iwarp::{
        atomic::AtomicResponse,
        fault::Fault,
        lifecycle::{
            Notice,
            QpPhase, //
        },
        mpa::CRC_LEN,
        stag::Stag,
        terminate::Terminate, //
    };
    use kernel_ext::{
        net::bench::eventually,
        rdma::types::QpState, //
    };

    /// Returns how often a time limit expires until the phase ends, at most a hundred times. In
    /// between the peer makes progress or not; `progress` makes an earlier count of octets differ.
    fn times<P>(
        mut phase: P,
        goes_on: bool,
        progress: impl Fn(&mut P),
        mut step: impl FnMut(P) -> Option<P>,
    ) -> u32 {
        for time in 1..=100 {
            if goes_on {
                progress(&mut phase);
            }
            match step(phase) {
                Some(next) => phase = next,
                None => return time,
            }
        }
        0
    }

    /// Returns how often [`limit::OWED`] expires for a peer that has closed its half.
    fn times_owed(goes_on: bool, paging: PagingOut) -> Result<u32> {
        let rig = ConnRig::new()?;
        rig.qp.attach(&rig.conn.connection, &PARAMS)?;
        *rig.qp.shared.paging_out.lock() = paging;
        // A work request that was taken but is never delivered.
        rig.qp.shared.sq.post(SendWr::default())?;
        let Taken::Wr(_) = rig.qp.shared.sq.take(&mut SendWr::default()) else {
            return Err(EINVAL);
        };
        rig.far.shutdown_write();
        let conn = &rig.conn;
        eventually(|| conn.socket.state() == TcpState::CloseWait)?;
        let mut actor = conn.actor.lock();
        actor.limit(limit::OWED);
        let half = HalfClosed::begin(conn, false);
        let times = times(
            half,
            goes_on,
            |half| half.ack_deadline.progress = u64::MAX,
            |half| {
                actor.pass(limit::OWED);
                match conn.half_closed(&mut actor, half) {
                    NextStep::Wait(ConnPhase::HalfClosed(half)) => Some(half),
                    _ => None,
                }
            },
        );
        *rig.qp.shared.paging_out.lock() = PagingOut::Idle;
        Ok(times)
    }

    #[test]
    fn half_closed_peer_gets_responses_for_200_seconds() -> Result {
        assert_eq!(times_owed(true, PagingOut::Idle)?, 200_000 / limit::OWED);
        assert_eq!(times_owed(false, PagingOut::Idle)?, 1);
        Ok(())
    }

    /// Returns how often [`limit::FIN`] expires for a peer that has acknowledged this end's FIN and
    /// sends none itself, after `change`.
    fn times_without_fin(goes_on: bool, change: impl FnOnce(&ConnRig)) -> Result<u32> {
        let rig = ConnRig::new()?;
        rig.qp.attach(&rig.conn.connection, &PARAMS)?;
        let conn = &rig.conn;
        let mut actor = conn.actor.lock();
        let closing = Closing::begin(conn, &mut actor)?;
        eventually(|| conn.socket.state() == TcpState::FinWait2)?;
        change(&rig);
        let mut step = |closing| match conn.closing(&mut actor, closing) {
            NextStep::Wait(ConnPhase::Closing(closing)) => {
                actor.pass(limit::FIN);
                Some(closing)
            }
            _ => None,
        };
        let closing = step(closing).ok_or(EINVAL)?;
        Ok(times(
            closing,
            goes_on,
            |closing| closing.fin_deadline.progress = u64::MAX,
            step,
        ))
    }

    /// DDP-62: a peer that still sends is read for as long as one that still has to receive.
    #[test]
    fn closing_stream_reads_sending_peer_for_200_seconds() -> Result {
        assert_eq!(times_without_fin(true, |_| ())?, 200_000 / limit::FIN);
        assert_eq!(times_without_fin(false, |_| ())?, 1);
        Ok(())
    }

    #[test]
    fn closing_stream_discards_octets_for_one_period_only() -> Result {
        assert_eq!(times_without_fin(true, |rig| drop(rig.conn.take_qp()))?, 1);
        assert_eq!(
            times_without_fin(true, |rig| rig.qp.shared.enter(QpPhase::Error))?,
            1
        );
        Ok(())
    }

    /// Returns how many minutes a queue pair may need before it closes its stream.
    fn minutes_before_fin(goes_on: bool) -> Result<u32> {
        let rig = ConnRig::new()?;
        rig.qp.attach(&rig.conn.connection, &PARAMS)?;
        let conn = &rig.conn;
        conn.connection.ask(Later::Leave);
        let mut actor = conn.actor.lock();
        let mut step = |open| match conn.open(&mut actor, open) {
            NextStep::Wait(ConnPhase::Open(open)) => {
                actor.pass(60_000);
                Some(open)
            }
            _ => None,
        };
        let open = step(Open::reported()).ok_or(EINVAL)?;
        let progress = |open: &mut Open| {
            if let Some(leaving) = &mut open.leaving {
                leaving.acked = u64::MAX;
            }
        };
        Ok(times(open, goes_on, progress, step))
    }

    #[test]
    fn queue_pair_closes_stream_within_an_hour() -> Result {
        assert_eq!(minutes_before_fin(true)?, limit::CLOSE / 60_000);
        assert_eq!(minutes_before_fin(false)?, 1);
        Ok(())
    }

    #[test]
    fn half_closed_stream_waits_for_local_paging() -> Result {
        assert_eq!(times_owed(false, PagingOut::Busy)?, 0);
        Ok(())
    }

    /// DDP-57, RDMAP-135: the queue pair may be destroyed before a step has seen that it wants to
    /// close the stream.
    #[test]
    fn queue_pair_may_be_destroyed_after_close() -> Result {
        for reset in [false, true] {
            let rig = ConnRig::new()?;
            rig.qp.attach(&rig.conn.connection, &PARAMS)?;
            let conn = &rig.conn;
            conn.connection.ask(Later::Close);
            want(&conn.wants.orphan);
            if reset {
                conn.connection.ask(Later::Abort);
            }
            let mut actor = conn.actor.lock();
            let step = conn.open(&mut actor, Open::reported());
            let closes = matches!(step, NextStep::Again(ConnPhase::Closing(_)));
            assert_eq!(closes, !reset);
            conn.follow(&mut actor, step);
            drop(actor);
            assert_eq!(rig.end()?, if reset { Err(ECONNRESET) } else { Ok(0) });
        }
        Ok(())
    }

    /// Destroys a queue pair that has a stream and was disconnected.
    fn destroy_while_closing(rig: &ConnRig) {
        rig.conn.actor.lock().phase = ConnPhase::Open(Open::reported());
        rig.qp.shared.sq.drain();
        rig.qp.shared.enter(QpPhase::Closing);
        rig.bench.destroy(&rig.qp);
    }

    /// A kernel consumer's disconnect leaves the rest to the transmit task, which may not have run.
    #[test]
    fn queue_pair_may_be_destroyed_while_closing() -> Result {
        let rig = ConnRig::new()?;
        rig.open(&PARAMS)?;
        destroy_while_closing(&rig);
        assert_eq!(rig.end()?, Ok(0));
        Ok(())
    }

    /// DDP-57: what has completed is delivered also if TCP has no room for an answer to the peer.
    #[test]
    fn queue_pair_may_be_destroyed_with_pending_response() -> Result {
        let rig = ConnRig::new()?;
        rig.open(&PARAMS)?;
        let full = fill(&rig.conn.socket);
        let response = AtomicResponse {
            identifier: 5,
            original: 6,
        };
        assert!(rig
            .qp
            .shared
            .inbound_reads
            .put(InboundRequest::Answer(response)));
        destroy_while_closing(&rig);
        assert_eq!(rig.rest()?, (full, Ok(0)));
        Ok(())
    }

    /// RDMAP-132: a consumer that has seen the completion of a faulty request may be quicker than
    /// the transmit task. `by_path`: the stream is one without connection manager.
    fn ends_with_a_terminate(by_path: bool, end: impl FnOnce(&ConnRig) -> Result) -> Result {
        let rig = ConnRig::new()?;
        if by_path {
            rig.qp.shared.enter(QpPhase::Waiting);
        }
        rig.open(&PARAMS)?;
        let open = Open::reported();
        let open = if by_path { open.oob() } else { open };
        rig.conn.actor.lock().phase = ConnPhase::Open(open);
        rig.bench.device.queues.tx.flush();
        let terminate = Terminate::for_fault(Fault::Crc, None);
        let _ = rig.qp.shared.terminate(Notice::Fatal, terminate);
        end(&rig)?;
        // The Terminate without its CRC, and then only that.
        if rig.take_terminate() == Ok((2, 0, 2)) && rig.rest()? == (CRC_LEN, Ok(0)) {
            Ok(())
        } else {
            Err(EINVAL)
        }
    }

    #[test]
    fn pending_terminate_is_sent_before_destroy() -> Result {
        ends_with_a_terminate(false, |rig| {
            rig.bench.destroy(&rig.qp);
            Ok(())
        })
    }

    #[test]
    fn pending_terminate_is_sent_before_flush() -> Result {
        ends_with_a_terminate(false, |rig| rig.modify(QpState::Err))
    }

    #[test]
    fn pending_terminate_is_sent_before_reset() -> Result {
        ends_with_a_terminate(true, |rig| rig.modify(QpState::Reset))
    }

    /// DDP-60: lets a step see that the peer has closed its half; returns what the peer receives
    /// from then on, after the transmit task has run.
    fn after_the_peers_end(rig: &ConnRig) -> Result<(usize, Result<usize>)> {
        let conn = &rig.conn;
        rig.far.shutdown_write();
        eventually(|| conn.socket.state() == TcpState::CloseWait)?;
        conn.actor.lock().phase = ConnPhase::Open(Open::reported());
        conn.step();
        rig.qp.transmit();
        rig.rest()
    }

    /// As if a doorbell was delayed.
    #[test]
    fn requests_posted_before_peer_fin_are_sent() -> Result {
        let rig = ConnRig::new()?;
        rig.open(&PARAMS)?;
        rig.qp.shared.sq.post(SendWr::default())?;
        assert_eq!(after_the_peers_end(&rig)?, (FPDU, Ok(0)));
        Ok(())
    }

    /// Neither a request before a Read nor the Read Request itself is cut by the FIN.
    #[test]
    fn fpdus_packed_before_peer_fin_are_sent() -> Result {
        const REQUEST: usize = FPDU + 28;
        let rig = ConnRig::new()?;
        rig.open(&PARAMS)?;
        let full = fill(&rig.conn.socket);
        rig.qp.shared.sq.post(SendWr::default())?;
        let read = SendOp::Read {
            stag: Stag::ZERO,
            to: 0,
            invalidate_local: false,
        };
        rig.qp.shared.sq.post(SendWr {
            op: read,
            ..SendWr::default()
        })?;
        rig.qp.transmit();
        assert!(rig.qp.awaits_answers());
        let expected = (full + FPDU + REQUEST, Ok(0));
        assert_eq!(after_the_peers_end(&rig)?, expected);
        Ok(())
    }

    /// RDMAP-132: the FIN may be handled before the transmit task has run.
    #[test]
    fn half_closed_peer_gets_pending_terminate() -> Result {
        let rig = ConnRig::new()?;
        rig.qp.attach(&rig.conn.connection, &PARAMS)?;
        let terminate = Terminate::for_fault(Fault::Crc, None);
        let _ = rig.qp.shared.terminate(Notice::Fatal, terminate);
        rig.far.shutdown_write();
        let conn = &rig.conn;
        eventually(|| conn.socket.state() == TcpState::CloseWait)?;
        let mut actor = conn.actor.lock();
        actor.limit(limit::OWED);
        let half = HalfClosed::begin(conn, false);
        let NextStep::Wait(ConnPhase::HalfClosed(half)) = conn.half_closed(&mut actor, half) else {
            return Err(EINVAL);
        };
        rig.qp.transmit();
        eventually(|| rig.far.peek(&mut [0; 8]) == Ok(8))?;
        assert!(matches!(
            conn.half_closed(&mut actor, half),
            NextStep::Again(ConnPhase::Ending(FinalAction::Fin))
        ));
        Ok(())
    }

    /// Returns how often [`limit::DELIVERY`] expires after the FIN of a detached stream whose peer
    /// acknowledges very little.
    fn times_lingering(goes_on: bool) -> Result<u32> {
        let rig = ConnRig::new()?;
        let conn = &rig.conn;
        // The FIN waits behind octets that do not fit the peer's window.
        fill(&conn.socket);
        let mut actor = conn.actor.lock();
        let next = conn.ending(&mut actor, FinalAction::Linger);
        let NextStep::Again(ConnPhase::Lingering(closing)) = next else {
            return Err(EINVAL);
        };
        Ok(times(
            closing,
            goes_on,
            |closing| closing.ack_deadline.progress = u64::MAX,
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
    fn destroyed_queue_pair_stream_is_delivered_for_200_seconds() -> Result {
        assert_eq!(times_lingering(true)?, 200_000 / limit::DELIVERY);
        assert_eq!(times_lingering(false)?, 1);
        Ok(())
    }
}
