// SPDX-License-Identifier: GPL-2.0

//! The start-up steps of the side that listens.
//!
//! A responder reads the MPA Request from an accepted socket, raises CONNECT_REQUEST, sends the MPA
//! Reply that the consumer chooses, and hands the stream to the queue pair. Both the peer's
//! Request, however fragmented, and the consumer's answer have a time limit.
//!
//! A connection may match several listeners, if consumers of several network namespaces listened on
//! the wildcard address before the device existed: `rdma_cm` allows that, and itself rejects
//! requests meant for another consumer. The listeners are therefore asked in turn until one
//! accepts.
//!
//! RFC 5044, section 7.1; RFC 6581, section 9. Context: process, the actor's mutex held.

use iwarp::{
    inject::Point,
    mpa::{
        negotiate::{
            Progress,
            Request as MpaRequest,
            Responder,
            StreamRules, //
        },
        start::{
            Frame,
            RtrKinds, //
        }, //
    }, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};
use kernel_ext::{
    compat::ECONNRESET,
    net::{
        SockAddr, //
    },
    rdma::iw_cm::ConnectRequest, //
};

use crate::{
    cm::listen::admission::{
        Admission,
        Consumer,
        HalfOpen,
        Unanswered, //
    },
    device::Device,
    stream::connection::StreamParams, //
};

use super::{
    frames::{
        event_private_data,
        Inbox,
        Outbox,
        Readable,
        Sent, //
    },
    inject::{
        ConnRuling,
        RejectData, //
    },
    is_wanted,
    phase::{
        Actor,
        AfterAttach,
        AfterReply,
        Answer,
        Asked,
        ConnPhase,
        FinalAction,
        NextStep,
        Open,
        PendingReply,
        Question, //
    },
    secure::FirstOctet,
    steps::READY_MS,
    Conn, //
};

/// Time limits of the phases, in milliseconds.
mod limit {
    /// To wait for the consumer's turn, and then for its answer. Initiators give up much earlier.
    pub(super) const ANSWER: u32 = 60_000;
    /// Retry interval of the next connection in turn while the consumer's backlog is full. An
    /// answer of the consumer triggers a retry earlier.
    pub(super) const RETRY: u32 = 20;
    /// Retry interval of the connections behind that one; each also runs a step when its turn
    /// comes.
    pub(super) const RETRY_BEHIND: u32 = 5_000;
}

impl Conn {
    pub(in crate::cm) fn waiting(
        self: &Arc<Self>,
        actor: &mut Actor,
        responder: Responder,
        mut inbox: Inbox,
        entry: HalfOpen,
    ) -> NextStep {
        if self.is_stopped() || !entry.admission.is_open() {
            return self.reset(actor);
        }
        let first = match inbox.octets() {
            [] => self.first_octet(),
            _ => FirstOctet::Go,
        };
        match first {
            // What has not arrived is waited for below.
            FirstOctet::Go | FirstOctet::Nothing => {}
            FirstOctet::Hello(credentials) => {
                return self.accept_tls(actor, credentials, responder, (inbox, entry));
            }
            FirstOctet::Refused => {
                self.refuse_tls("it begins without TLS");
                return self.reset(actor);
            }
        }
        loop {
            let wanted = match responder.handle_request(inbox.octets()) {
                Ok(Progress::NeedMore(wanted)) => wanted,
                Ok(Progress::Done(request)) => {
                    actor.limit(limit::ANSWER);
                    let asked = Asked { responder, request };
                    return NextStep::Again(ConnPhase::Queued {
                        asked,
                        inbox,
                        entry,
                    });
                }
                Err(error) => {
                    self.misbehaved(error);
                    return self.reset(actor);
                }
            };
            let filled = match first {
                // The first octet is looked at before it is read.
                FirstOctet::Nothing => Ok(Readable::Nothing),
                _ => inbox.fill(&self.socket, wanted),
            };
            match filled {
                Ok(Readable::Octets) => {}
                Ok(Readable::Nothing) => {
                    if actor.is_overdue() {
                        self.timed_out("no MPA Request in time");
                        return self.reset(actor);
                    }
                    if actor.is_recheck_due() {
                        entry.admission.call_next();
                    }
                    return NextStep::Wait(ConnPhase::Waiting {
                        responder,
                        inbox,
                        entry,
                    });
                }
                Ok(Readable::End) | Err(_) => return self.reset(actor),
            }
        }
    }

    /// Asks the consumer about a complete Request, as soon as the consumer can take one more.
    pub(in crate::cm) fn queued(
        self: &Arc<Self>,
        actor: &mut Actor,
        asked: Asked,
        inbox: Inbox,
        mut entry: HalfOpen,
    ) -> NextStep {
        let wanted = !self.is_stopped() && entry.admission.is_open() && !actor.is_overdue();
        if !wanted || !self.is_quiet() {
            return self.reset(actor);
        }
        if let Consumer::Oob = entry.admission.consumer() {
            return self.answer_oob(actor, asked, inbox, entry);
        }
        match self.rule_on(actor, Point::Request) {
            ConnRuling::Goes => {}
            ConnRuling::Held => {
                return NextStep::Wait(ConnPhase::Queued {
                    asked,
                    inbox,
                    entry,
                })
            }
            ConnRuling::Fails(_, data) => return self.refuse_by_rule(actor, &asked, &data),
        }
        let result = if entry.admission.may_ask(entry.key) {
            self.ask_consumer(&entry.admission, &inbox, &asked)
        } else {
            Err(ENOMEM)
        };
        match result {
            Ok(unanswered) => {
                self.device().stats.connect_requests.inc();
                actor.limit(limit::ANSWER);
                NextStep::Again(ConnPhase::Asked(Question {
                    asked,
                    inbox,
                    others: core::mem::take(&mut entry.others),
                    unanswered,
                    refusal: None,
                }))
            }
            Err(error) if error == ENOMEM => {
                // The consumer has not yet taken the requests before this one.
                let is_next = entry.admission.is_next(entry.key);
                actor.recheck_after(if is_next {
                    limit::RETRY
                } else {
                    limit::RETRY_BEHIND
                });
                NextStep::Wait(ConnPhase::Queued {
                    asked,
                    inbox,
                    entry,
                })
            }
            Err(_) => self.reset(actor),
        }
    }

    /// Rejects the peer, unless the rule has no data for that; then resets the connection.
    #[cold]
    fn refuse_by_rule(
        self: &Arc<Self>,
        actor: &mut Actor,
        asked: &Asked,
        data: &RejectData,
    ) -> NextStep {
        let frame = asked.responder.reject(&asked.request, data.octets());
        match frame.map(|frame| KBox::new(frame, GFP_KERNEL)) {
            Ok(Ok(frame)) if data.is_some() => self.send_refusal(actor, frame),
            Ok(_) | Err(_) => self.reset(actor),
        }
    }

    /// Begins to send a rejection.
    fn send_refusal(&self, actor: &mut Actor, frame: KBox<Frame>) -> NextStep {
        actor.limit(READY_MS);
        NextStep::Again(ConnPhase::Replying {
            out: Outbox::new(frame),
            then: AfterReply::Refuse,
        })
    }

    /// Asks the consumer of a listener. After an error the consumer cannot answer.
    pub(in crate::cm) fn ask_consumer(
        &self,
        listener: &Arc<Admission>,
        inbox: &Inbox,
        asked: &Asked,
    ) -> Result<Unanswered> {
        // The answer may come before this returns; the step that follows takes it.
        *self.pending_reply.lock() = PendingReply::Open(*asked);
        self.raise_request(listener, inbox, &asked.request)
            .inspect_err(|_| {
                self.pending_reply.lock().close();
            })?;
        // Not counted before: the count going back down would run a step of the next connection,
        // which is this one.
        Ok(listener.ask())
    }

    /// Raises CONNECT_REQUEST.
    fn raise_request(&self, listener: &Admission, inbox: &Inbox, request: &MpaRequest) -> Result {
        let peer = request.peer_depths;
        // Depths that the peer does not state are up to the consumer.
        let settings = &self.device().settings;
        let ird = peer.and_then(|peer| peer.ird);
        let ord = peer.and_then(|peer| peer.ord);
        let ird = ird.map_or(settings.ord_limit(), u32::from);
        let ord = ord.map_or(settings.ird_limit(), u32::from);
        let Consumer::Cm(id) = listener.consumer() else {
            return Err(EINVAL);
        };
        // The consumer knows its own port, not TCP's.
        let mut local = addr_for_cm(self.device(), self.socket.local_addr()?.to_canonical());
        local.set_port(id.local_addr()?.port());
        id.connect_request(
            &ConnectRequest {
                local,
                remote: self.socket.peer_addr()?.to_canonical(),
                private_data: event_private_data(request.private_data, inbox.octets()),
                ird,
                ord,
            },
            self.entry.name()?,
        )
    }

    pub(in crate::cm) fn asked(
        self: &Arc<Self>,
        actor: &mut Actor,
        question: Question,
    ) -> NextStep {
        // A separate statement, so that the mutex is released before the answer is used or dropped.
        let answer = self.pending_reply.lock().take_answer();
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
            Some(Answer::Refuse(frame)) => self.refused(actor, question, frame),
            None => {
                let useful = !self.is_stopped() && !actor.is_overdue() && self.is_quiet();
                let mut pending_reply = self.pending_reply.lock();
                // The consumer cannot be notified of the timeout; its late answer fails. While an
                // answer is being prepared, wait for the step that follows it.
                if pending_reply.is_busy() || (useful && pending_reply.is_open()) {
                    NextStep::Wait(ConnPhase::Asked(question))
                } else {
                    pending_reply.close();
                    drop(pending_reply);
                    self.reset(actor)
                }
            }
        }
    }

    /// Handles a rejection by the consumer: asks the next one.
    fn refused(
        self: &Arc<Self>,
        actor: &mut Actor,
        mut question: Question,
        refusal: KBox<Frame>,
    ) -> NextStep {
        question.keep(refusal);
        while let Some(listener) = question.others.pop() {
            if !listener.is_open() || self.is_stopped() {
                continue;
            }
            if let Ok(unanswered) = self.ask_consumer(&listener, &question.inbox, &question.asked) {
                question.unanswered = unanswered;
                actor.limit(limit::ANSWER);
                return NextStep::Wait(ConnPhase::Asked(question));
            }
        }
        match question.refusal {
            Some(frame) => self.send_refusal(actor, frame),
            None => self.reset(actor),
        }
    }

    /// Handles an accept by the consumer. To the connection manager the connection is open from now
    /// on, so a failure ends it as a stream ends.
    pub(in crate::cm) fn accepted(
        self: &Arc<Self>,
        actor: &mut Actor,
        reply: KBox<Frame>,
        rules: &StreamRules,
        rtr: RtrKinds,
    ) -> NextStep {
        if self.is_stopped() || !self.is_quiet() {
            return self.fail_open(actor, ECONNRESET);
        }
        // Attach before the Reply, so that what the Reply promises exists. The queue pair sends
        // nothing before the peer's first FPDU (MPA-9), so it cannot overtake the Reply.
        let params = StreamParams::responder(rules, rtr);
        self.attach(actor, params, AfterAttach::Reply(reply))
    }

    pub(in crate::cm) fn replying(
        self: &Arc<Self>,
        actor: &mut Actor,
        mut out: Outbox,
        then: AfterReply,
    ) -> NextStep {
        let sent = out.flush(&self.socket);
        if matches!(sent, Ok(Sent::Busy)) {
            actor.come_back();
        }
        let late = matches!(sent, Ok(Sent::Busy | Sent::Part)) && actor.is_overdue();
        match then {
            AfterReply::Refuse => match sent {
                Ok(Sent::All) => self.finish(actor, FinalAction::LeaveToTcp),
                Ok(Sent::Busy | Sent::Part) if !late && !is_wanted(&self.wants.kill) => {
                    NextStep::Wait(ConnPhase::Replying { out, then })
                }
                Ok(Sent::Busy | Sent::Part) | Err(_) => self.reset(actor),
            },
            AfterReply::Expect(params) => match sent {
                Ok(Sent::All) => NextStep::Again(ConnPhase::Expecting(params)),
                Ok(Sent::Busy | Sent::Part) if !late && !self.is_stopped() => {
                    let then = AfterReply::Expect(params);
                    NextStep::Wait(ConnPhase::Replying { out, then })
                }
                Ok(Sent::Busy | Sent::Part) | Err(_) => self.fail(actor, ECONNRESET),
            },
            AfterReply::Open { ird, ord, rtr } => match sent {
                Ok(Sent::All) => {
                    self.established();
                    let mut open = Open::unreported(ird, ord).enter(self);
                    if rtr.is_empty() {
                        actor.no_limit();
                        open.report(actor);
                        if self.device().settings.eager_responder() {
                            if let Some(qp) = self.qp() {
                                qp.allow_sending();
                            }
                        }
                    } else {
                        actor.limit(READY_MS);
                    }
                    NextStep::Again(ConnPhase::Open(open))
                }
                Ok(Sent::Busy | Sent::Part) if !late && !self.is_stopped() => {
                    NextStep::Wait(ConnPhase::Replying { out, then })
                }
                Ok(Sent::Busy | Sent::Part) | Err(_) => self.fail_open(actor, ECONNRESET),
            },
        }
    }
}

/// Returns the local address to report to `rdma_cm`, without a port. It looks for a device on the
/// interface that has the address (`iw_conn_req_handler()`), so for a loopback address and a device
/// on another interface than `lo` this is an address of that interface, if it has one.
fn addr_for_cm(device: &Device, local: SockAddr) -> SockAddr {
    if !local.is_loopback() || device.is_on_loopback() {
        return local;
    }
    let unlike = |addr: &SockAddr| {
        (
            addr.ip() != local.ip(),
            addr.family() != local.family(),
            addr.is_link_local(),
        )
    };
    let mut best = None;
    device.netdev.for_each_addr(|addr| {
        if best.is_none_or(|best| unlike(&addr) < unlike(&best)) {
            best = Some(addr);
        }
    });
    let mut best = best.unwrap_or(local);
    if best.is_link_local() {
        best.set_scope_id(device.netdev.ifindex());
    }
    best
}
