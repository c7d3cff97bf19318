// SPDX-License-Identifier: GPL-2.0

//! The steps of an incoming connection without a connection manager.
//!
//! They find the search of the queue pair that the peer's MPA Request names, which checks the
//! Request, and send the MPA Reply. The queue pair gets the stream only when the peer's first
//! octets arrive: until then the peer can replace this connection by another one without loss.
//!
//! A connection that no queue pair waits for is closed at once and counted. docs/connections.md.
//! Context: process, the actor's mutex held.

use iwarp::oob::Announcement;
use kernel::{
    prelude::*,
    sync::Arc, //
};
use kernel_ext::{
    compat::{
        ECONNREFUSED,
        ECONNRESET, //
    },
    sync::BhRevocable, //
};

use crate::{
    cm::{
        conn::{
            frames::{
                readable,
                Inbox,
                Outbox,
                Readable, //
            },
            phase::{
                Actor,
                AfterAttach,
                AfterReply,
                Asked,
                ConnPhase,
                NextStep, //
            },
            steps::READY_MS,
            Conn, //
        },
        listen::admission::HalfOpen, //
    },
    stream::connection::StreamParams, //
};

use super::addrs_of;

impl Conn {
    /// Finds the queue pair that a complete Request names, and accepts for it.
    pub(in crate::cm) fn answer_oob(
        self: &Arc<Self>,
        actor: &mut Actor,
        asked: Asked,
        inbox: Inbox,
        entry: HalfOpen,
    ) -> NextStep {
        match self.accept_oob(&asked, &inbox) {
            Err(error) if error == EAGAIN => {
                actor.come_back();
                NextStep::Wait(ConnPhase::Queued {
                    asked,
                    inbox,
                    entry,
                })
            }
            Ok((out, params)) => {
                self.device().stats.connect_requests.inc();
                actor.limit(READY_MS);
                NextStep::Again(ConnPhase::Replying {
                    out,
                    then: AfterReply::Expect(params),
                })
            }
            // Usual: a peer that is early tries again.
            Err(_) => {
                self.device().stats.oob_refusals.inc();
                self.unbind();
                self.reset(actor)
            }
        }
    }

    fn accept_oob(
        self: &Arc<Self>,
        asked: &Asked,
        inbox: &Inbox,
    ) -> Result<(Outbox, KBox<StreamParams>)> {
        // Without a ready-to-receive message this end could never send first.
        if !asked.request.is_peer_to_peer() {
            return Err(ECONNREFUSED);
        }
        let private_data = asked.request.private_data.of(inbox.octets());
        let theirs = Announcement::decode(private_data).map_err(|_| ECONNREFUSED)?;
        let searches = &self.cm().oob_waiters.searches;
        let search = searches.find(theirs.to.get()).ok_or(ECONNREFUSED)?;
        let ours = search.accept(self.bound(), &addrs_of(&self.socket)?, &theirs)?;
        self.search.populate(search);
        self.qp.populate(BhRevocable::new(ours.qp));
        let accepted = asked
            .responder
            .accept(&asked.request, ours.depths, &ours.announcement.encode())
            .map_err(|_| EINVAL)?;
        let params = StreamParams {
            extensions: ours.agreement.extensions,
            rnr_retry: ours.agreement.rnr_retry,
            ..StreamParams::responder(&accepted.rules, accepted.rtr)
        };
        Ok((
            Outbox::new(KBox::new(accepted.reply, GFP_KERNEL)?),
            KBox::new(params, GFP_KERNEL)?,
        ))
    }

    /// Awaits the first octets of the stream after the Reply.
    pub(in crate::cm) fn expecting(
        self: &Arc<Self>,
        actor: &mut Actor,
        params: KBox<StreamParams>,
    ) -> NextStep {
        if self.is_stopped() {
            return self.fail(actor, ECONNRESET);
        }
        match readable(&self.socket) {
            Ok(Readable::Octets) => {
                self.attach(actor, KBox::into_inner(params), AfterAttach::FirstOctets)
            }
            Ok(Readable::Nothing) if actor.is_overdue() => {
                self.timed_out("no first message of the peer in time");
                self.fail(actor, ETIMEDOUT)
            }
            Ok(Readable::Nothing) => NextStep::Wait(ConnPhase::Expecting(params)),
            Ok(Readable::End) | Err(_) => self.fail(actor, ECONNRESET),
        }
    }
}
