// SPDX-License-Identifier: GPL-2.0

//! The step of a start-up in which the queue pair gets the stream.
//!
//! From here on the order of connections does not matter, so the steps run on another queue. The
//! queue pair allocates memory of its process's cgroup, which may have to be reclaimed, and the
//! process may hold its attributes: both delay this connection only.
//!
//! Context: process, the actor's mutex held.

use iwarp::mpa::start::Frame;
use kernel::{
    prelude::*,
    sync::Arc, //
};
use kernel_ext::compat::ECONNRESET;

use super::{
    actor::{
        Actor,
        ConnPhase,
        NextStep, //
    },
    frames::Outbox,
    initiator::AcceptedReply,
    responder::{
        limit,
        AfterReply, //
    },
    stream::Open,
    Conn,
    Route, //
};
use crate::stream::connection::StreamParams;

/// A stream that the queue pair is to get.
pub(in crate::cm) struct Attaching {
    params: StreamParams,
    then: AfterAttach,
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

impl Conn {
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
        actor.limit(limit::READY);
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
            actor.limit(limit::READY);
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
                actor.limit(limit::READY);
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
