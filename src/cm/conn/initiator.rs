// SPDX-License-Identifier: GPL-2.0

//! The start-up steps of the side that opens the connection.
//!
//! Once TCP is connected the initiator sends the MPA Request and awaits the Reply; then it hands
//! the stream to the queue pair or reports an error. Only for a peer that rejects does the consumer
//! get private data with `ECONNREFUSED`.
//!
//! RFC 5044, section 7.1; RFC 6581, section 9. Context: process, the actor's mutex held.

use iwarp::{
    fault::Fault,
    inject::Point,
    mpa::{
        negotiate::{
            Initiator,
            Progress,
            Reply as MpaReply,
            Rtr,
            StreamRules,
            Verdict, //
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
    sync::Arc, //
};
use kernel_ext::{
    compat::{
        ECONNREFUSED,
        ECONNRESET,
        EHOSTUNREACH,
        ENETUNREACH,
        EOPNOTSUPP,
        EPROTO, //
    },
    net::{
        Credentials,
        TcpState, //
    },
    rdma::iw_cm::{
        CmId,
        ConnectReply, //
    },
    static_key, //
};

use super::{
    frames::{
        event_private_data,
        send_terminate,
        Inbox,
        Outbox,
        Readable,
        Sent, //
    },
    inject::ConnRuling,
    phase::{
        AcceptedReply,
        Actor,
        AfterAttach,
        ConnPhase,
        FinalAction,
        NextStep,
        Open, //
    },
    steps::give_up,
    Conn, //
};
use crate::{
    cm::oob::addrs_of,
    stream::connection::StreamParams, //
};

/// Time limits of the phases, in milliseconds.
mod limit {
    /// For TCP to connect.
    pub(in crate::cm) const CONNECT: u32 = 10_000;
    /// To send the Request and receive the Reply (MPA-8).
    pub(in crate::cm) const REPLY: u32 = 10_000;
    /// For a peer that does not signal readiness to start reading the stream. As the Responder, siw
    /// starts only after it has sent its Reply, and never reads what arrived before.
    pub(in crate::cm) const SETTLING: u32 = 5;
}

impl Actor {
    /// Enters `Connecting`; the connection attempt is in progress.
    pub(in crate::cm) fn begin_connecting(
        &mut self,
        id: Option<CmId>,
        initiator: Initiator,
        request: KBox<Frame>,
        tls: Option<Credentials>,
    ) {
        self.id = id;
        self.phase = ConnPhase::Connecting {
            initiator,
            request,
            tls,
        };
        self.limit(limit::CONNECT);
    }
}

impl Conn {
    pub(in crate::cm) fn connecting(
        self: &Arc<Self>,
        actor: &mut Actor,
        initiator: Initiator,
        request: KBox<Frame>,
        tls: Option<Credentials>,
    ) -> NextStep {
        if self.is_stopped() {
            return self.fail(actor, ECONNRESET);
        }
        match self.socket.state() {
            TcpState::SynSent | TcpState::SynReceived => {
                if actor.is_overdue() {
                    return self.fail(actor, ETIMEDOUT);
                }
                NextStep::Wait(ConnPhase::Connecting {
                    initiator,
                    request,
                    tls,
                })
            }
            TcpState::Established | TcpState::CloseWait => {
                if !self.may_send_request() {
                    return self.fail(actor, ECONNRESET);
                }
                let to_itself = actor.id.is_none() && self.leads_to_itself();
                match tls {
                    // Its octets would go through TCP in the clear.
                    Some(_) if to_itself => self.fail(actor, EOPNOTSUPP),
                    Some(credentials) => self.begin_tls(actor, credentials, initiator, request),
                    None if to_itself => self.join_itself(actor, &initiator),
                    None => self.begin_requesting(actor, initiator, request),
                }
            }
            TcpState::FinWait1
            | TcpState::FinWait2
            | TcpState::Closing
            | TcpState::LastAck
            | TcpState::TimeWait
            | TcpState::Listen
            | TcpState::Closed => {
                let error = Error::from_errno(self.socket.error().wrapping_neg());
                // `ECONNREFUSED` is reserved for a peer that rejects, because only that comes with
                // private data.
                let unreachable = [ETIMEDOUT, EHOSTUNREACH, ENETUNREACH].contains(&error);
                self.fail(actor, if unreachable { ETIMEDOUT } else { ECONNRESET })
            }
        }
    }

    /// Sends the Request and awaits the Reply.
    pub(super) fn begin_requesting(
        self: &Arc<Self>,
        actor: &mut Actor,
        initiator: Initiator,
        request: KBox<Frame>,
    ) -> NextStep {
        match Inbox::new() {
            Ok(inbox) => {
                actor.limit(limit::REPLY);
                NextStep::Again(ConnPhase::Requesting {
                    initiator,
                    out: Outbox::new(request),
                    inbox,
                })
            }
            Err(error) => self.fail(actor, error),
        }
    }

    /// Returns whether this attempt is still that of its search, if it has one.
    fn may_send_request(&self) -> bool {
        let search = self.search.as_ref();
        search.is_none_or(|search| search.may_send_request(&self.connection))
    }

    /// Returns whether TCP has connected the socket to itself.
    fn leads_to_itself(&self) -> bool {
        let (local, peer) = (self.socket.local_addr(), self.socket.peer_addr());
        local.is_ok_and(|local| peer == Ok(local))
    }

    /// Begins the stream of a queue pair that is its own peer.
    fn join_itself(self: &Arc<Self>, actor: &mut Actor, initiator: &Initiator) -> NextStep {
        let checked = match self.search.as_ref() {
            Some(search) => search.check_itself(),
            None => Err(EPROTO),
        };
        let agreement = match checked {
            Ok(agreement) => agreement,
            Err(error) => return self.fail(actor, error),
        };
        let params = StreamParams {
            wait_first_fpdu: false,
            extensions: agreement.extensions,
            rnr_retry: agreement.rnr_retry,
            ..StreamParams::responder(&initiator.rules_with_itself(), RtrKinds::NONE)
        };
        self.attach(actor, params, AfterAttach::Itself)
    }

    pub(in crate::cm) fn requesting(
        self: &Arc<Self>,
        actor: &mut Actor,
        initiator: Initiator,
        mut out: Outbox,
        mut inbox: Inbox,
    ) -> NextStep {
        if self.is_stopped() {
            return self.fail(actor, ECONNRESET);
        }
        match out.flush(&self.socket) {
            Ok(Sent::All | Sent::Part) => {}
            Ok(Sent::Busy) => actor.come_back(),
            Err(_) => return self.fail(actor, ECONNRESET),
        }
        loop {
            let wanted = match initiator.handle_reply(inbox.octets()) {
                Ok(Progress::NeedMore(wanted)) => wanted,
                Ok(Progress::Done(reply)) => {
                    return match self.rule_on(actor, Point::Connect) {
                        ConnRuling::Goes => self.replied(actor, inbox, &reply),
                        ConnRuling::Held => NextStep::Wait(ConnPhase::Requesting {
                            initiator,
                            out,
                            inbox,
                        }),
                        ConnRuling::Fails(error, data) => {
                            self.fail_with(actor, error, data.octets())
                        }
                    }
                }
                Err(error) => {
                    self.misbehaved(error);
                    return self.fail(actor, EPROTO);
                }
            };
            match inbox.fill(&self.socket, wanted) {
                Ok(Readable::Octets) => {}
                Ok(Readable::Nothing) => {
                    if actor.is_overdue() {
                        self.timed_out("no MPA Reply in time");
                        return self.fail(actor, ETIMEDOUT);
                    }
                    return NextStep::Wait(ConnPhase::Requesting {
                        initiator,
                        out,
                        inbox,
                    });
                }
                Ok(Readable::End) | Err(_) => return self.fail(actor, ECONNRESET),
            }
        }
    }

    /// Handles the Reply.
    fn replied(self: &Arc<Self>, actor: &mut Actor, inbox: Inbox, reply: &MpaReply) -> NextStep {
        let private_data = reply.private_data;
        match &reply.verdict {
            Verdict::Accepted { rules, rtr } => {
                if let Err(error) = self.check_quiet() {
                    return self.fail(actor, error);
                }
                if rtr.is_none() && actor.id.is_some() {
                    actor.limit(limit::SETTLING);
                    return NextStep::Wait(ConnPhase::Settling {
                        inbox,
                        private_data,
                        rules: *rules,
                    });
                }
                let accepted = AcceptedReply {
                    private_data,
                    rules: *rules,
                    inbox,
                };
                self.give_stream(actor, accepted, *rtr)
            }
            Verdict::Rejected => {
                self.device().stats.mpa_rejects.inc();
                self.unbind();
                if let Some(id) = actor.id.take() {
                    give_up(
                        &id,
                        ECONNREFUSED,
                        event_private_data(private_data, inbox.octets()),
                    );
                }
                // The peer has closed the connection, or will.
                self.finish(actor, FinalAction::Done)
            }
            Verdict::Failed { rules, fault } => {
                self.misbehaved_by(fault.text());
                self.fail_after_reply(actor, rules, *fault, EPROTO)
            }
        }
    }

    pub(in crate::cm) fn settling(
        self: &Arc<Self>,
        actor: &mut Actor,
        inbox: Inbox,
        private_data: PrivateData,
        rules: StreamRules,
    ) -> NextStep {
        if self.is_stopped() {
            return self.fail(actor, ECONNRESET);
        }
        if actor.is_overdue() {
            let accepted = AcceptedReply {
                private_data,
                rules,
                inbox,
            };
            return self.give_stream(actor, accepted, None);
        }
        NextStep::Wait(ConnPhase::Settling {
            inbox,
            private_data,
            rules,
        })
    }

    /// Hands the stream to the queue pair after the peer has accepted.
    fn give_stream(
        self: &Arc<Self>,
        actor: &mut Actor,
        accepted: AcceptedReply,
        rtr: Option<Rtr>,
    ) -> NextStep {
        let mut params = StreamParams {
            send_rtr: rtr,
            wait_first_fpdu: false,
            ..StreamParams::responder(&accepted.rules, RtrKinds::NONE)
        };
        if let Some(search) = self.search.as_ref() {
            // Before a lock is taken, since it may sleep.
            let addrs = addrs_of(&self.socket).map_err(|_| EPROTO);
            match addrs.and_then(|addrs| search.check_reply(&addrs, accepted.private_data())) {
                Ok(agreement) => {
                    params.extensions = agreement.extensions;
                    params.rnr_retry = agreement.rnr_retry;
                }
                Err(error) => {
                    if error == EPROTO {
                        self.misbehaved_by("the MPA Reply is for another queue pair");
                    }
                    return self.fail(actor, error);
                }
            }
        }
        // The queue pair must be ready before the consumer learns of the connection.
        self.attach(actor, params, AfterAttach::Report(accepted))
    }

    /// Reports a connection whose stream the queue pair has got, before the consumer can see
    /// anything of the stream.
    pub(in crate::cm) fn report_accepted(
        self: &Arc<Self>,
        actor: &mut Actor,
        accepted: &AcceptedReply,
    ) -> NextStep {
        let private_data = event_private_data(accepted.private_data, accepted.inbox.octets());
        if let Err(error) = self.connected(actor, &accepted.rules, private_data) {
            return self.fail_open(actor, error);
        }
        actor.no_limit();
        if static_key::is_on() {
            self.disconnect_by_rule(actor);
        }
        let open = Open::reported().enter(self);
        NextStep::Again(ConnPhase::Open(match actor.id {
            Some(_) => open,
            None => open.oob(),
        }))
    }

    /// Fails a start-up whose queue pair cannot take the stream that the peer has accepted.
    pub(in crate::cm) fn fail_accepted(
        self: &Arc<Self>,
        actor: &mut Actor,
        accepted: &AcceptedReply,
        error: Error,
    ) -> NextStep {
        // MPA-46; revision 1 cannot express it.
        match accepted.rules.peer_depths {
            Some(_) => self.fail_after_reply(actor, &accepted.rules, Fault::LocalStartup, error),
            None => self.fail(actor, error),
        }
    }

    /// Fails a start-up after the Reply: the peer gets a Terminate, the consumer `error`.
    fn fail_after_reply(
        self: &Arc<Self>,
        actor: &mut Actor,
        rules: &StreamRules,
        fault: Fault,
        error: Error,
    ) -> NextStep {
        send_terminate(&self.socket, rules, fault);
        self.unbind();
        if let Some(id) = actor.id.take() {
            give_up(&id, error, &[]);
        }
        self.finish(actor, FinalAction::Linger)
    }

    /// Reports to the iWARP connection manager that the connection is established.
    fn connected(&self, actor: &Actor, rules: &StreamRules, private_data: &[u8]) -> Result {
        let Some(id) = &actor.id else {
            return Ok(());
        };
        // Depths from the peer's view. Of its inbound queue, what the consumer's Reads may use: the
        // consumer may have asked for less. Without negotiation, assume that the peer agrees.
        let ird = rules.depths.ord;
        let peer = rules.peer_depths;
        let ord = peer.and_then(|peer| peer.ord).unwrap_or(rules.depths.ird);
        id.connect_reply(&ConnectReply {
            status: Ok(()),
            private_data,
            ird: ird.into(),
            ord: ord.into(),
        })
    }
}
