// SPDX-License-Identifier: GPL-2.0

//! What the steps of several phases share: the ends of a start-up, and the step in which the queue
//! pair gets the stream.
//!
//! From that step on the order of connections does not matter, so the steps run on another queue.
//! The queue pair allocates memory of its process's cgroup, which may have to be reclaimed, and the
//! process may hold its attributes: both delay this connection only.
//!
//! Context: process, the actor's mutex held.

use iwarp::{
    actions::Later,
    mpa::{
        negotiate::StreamRules,
        start::{
            Revision,
            RtrKinds,
            StartError, //
        }, //
    }, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};
use kernel_ext::{
    compat::{
        ECONNRESET,
        EPROTO, //
    },
    rdma::iw_cm::{
        CmId,
        ConnectReply, //
    },
    sync::BhOff, //
};

use super::{
    frames::{
        readable,
        Outbox,
        Readable, //
    },
    is_wanted,
    phase::{
        Actor,
        AfterAttach,
        AfterReply,
        Attaching,
        ConnPhase,
        FinalAction,
        NextStep,
        Open, //
    },
    Conn,
    Route, //
};
use crate::stream::connection::StreamParams;

/// To give the queue pair its stream, to send the Reply, and then to receive the peer's
/// ready-to-receive message, in milliseconds.
pub(in crate::cm) const READY_MS: u32 = 5_000;

impl Conn {
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

    /// Logs why a connection does not start.
    pub(super) fn log_start_up(&self, why: &str) {
        self.trace_refused(why);
        let (local, peer) = self.socket.addr_pair();
        self.device()
            .notice(fmt!("connection {local} <-> {peer} failed to start: {why}"));
    }

    /// Fails a start-up whose queue pair has no stream yet.
    pub(in crate::cm) fn fail(self: &Arc<Self>, actor: &mut Actor, error: Error) -> NextStep {
        self.fail_with(actor, error, &[])
    }

    /// Does the same, and passes private data on to the consumer.
    pub(in crate::cm) fn fail_with(
        self: &Arc<Self>,
        actor: &mut Actor,
        error: Error,
        private_data: &[u8],
    ) -> NextStep {
        self.unbind();
        if let Some(id) = actor.id.take() {
            give_up(&id, error, private_data);
        }
        self.reset(actor)
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
        self.set_route(Route::Discard);
        actor.no_limit();
        NextStep::Again(ConnPhase::Ending(action))
    }

    /// Begins to give the stream to the queue pair.
    pub(in crate::cm) fn attach(
        self: &Arc<Self>,
        actor: &mut Actor,
        params: StreamParams,
        then: AfterAttach,
    ) -> NextStep {
        // The next step runs on the other queue.
        self.set_route(Route::Attach);
        self.kick();
        actor.limit(READY_MS);
        NextStep::Wait(ConnPhase::Attaching(Attaching { params, then }))
    }

    pub(in crate::cm) fn attaching(
        self: &Arc<Self>,
        actor: &mut Actor,
        attaching: Attaching,
    ) -> NextStep {
        let qp = self.qp().filter(|_| !self.is_stopped());
        let Some(qp) = qp else {
            return match attaching.then {
                AfterAttach::Reply(_) => self.fail_open(actor, ECONNRESET),
                AfterAttach::FirstOctets | AfterAttach::Itself | AfterAttach::Report(_) => {
                    self.fail(actor, ECONNRESET)
                }
            };
        };
        let attached = match self.search.as_ref() {
            Some(search) => search.attach(&qp, &self.connection, &attaching.params),
            None => qp.attach(&self.connection, &attaching.params),
        };
        match attached {
            Ok(()) => self.attached(actor, attaching),
            Err(error) if error == EBUSY && !actor.is_overdue() => {
                actor.come_back();
                NextStep::Wait(ConnPhase::Attaching(attaching))
            }
            Err(error) => match attaching.then {
                AfterAttach::Reply(_) => self.fail_open(actor, ECONNRESET),
                AfterAttach::Itself => self.fail(actor, error),
                AfterAttach::FirstOctets => {
                    self.give_up_search();
                    self.fail(actor, error)
                }
                AfterAttach::Report(accepted) => {
                    self.give_up_search();
                    self.fail_accepted(actor, &accepted, error)
                }
            },
        }
    }

    /// Ends the search of a queue pair that cannot take the stream of its peer.
    fn give_up_search(&self) {
        if let Some(search) = self.search.as_ref() {
            search.give_up_on(&self.connection);
        }
    }

    fn attached(self: &Arc<Self>, actor: &mut Actor, attaching: Attaching) -> NextStep {
        let Attaching { params, then } = attaching;
        if let AfterAttach::Reply(frame) = then {
            actor.limit(READY_MS);
            return NextStep::Again(ConnPhase::Replying {
                out: Outbox::new(frame),
                then: AfterReply::Open {
                    ird: params.ird,
                    ord: params.ord,
                    rtr: params.expect_rtr,
                },
            });
        }
        self.established();
        let open = match then {
            AfterAttach::Report(accepted) => return self.report_accepted(actor, &accepted),
            AfterAttach::FirstOctets => {
                actor.limit(READY_MS);
                Open::unreported(params.ird, params.ord)
            }
            AfterAttach::Itself | AfterAttach::Reply(_) => {
                actor.no_limit();
                Open::reported()
            }
        };
        NextStep::Again(ConnPhase::Open(open.enter(self).oob()))
    }
}

impl Open {
    /// Routes the stream to the queue pair.
    pub(in crate::cm) fn enter(self, conn: &Arc<Conn>) -> Self {
        Self {
            undelivered: conn.enter_stream().is_err(),
            ..self
        }
    }
}

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
