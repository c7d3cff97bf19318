// SPDX-License-Identifier: GPL-2.0

//! What the rules of a device (`device::inject`) do to a stream: both sides ask about each request
//! when it is taken from its queue and before it is sent, for its completion too, and about each
//! message before it is taken.
//!
//! A rule that holds one leaves it where it is, and all behind it: the request or its completion in
//! the send queue (`queue::sq`), the message in TCP. The queue pair looks again every millisecond
//! (`qp::inject`). So what is held goes on once the rules have changed.
//!
//! Context: that of the transmit task or of the receiver.

use iwarp::{
    actions::{
        After,
        Set, //
    },
    fault::{
        ErrorCode,
        Fault, //
    },
    inject::{
        Corruption,
        Interruption,
        Operation,
        Point,
        RuleAction,
        RuleCounts,
        StatusEnd,
        StreamSubject,
        Subject, //
    },
    lifecycle::{
        Event,
        FirstFailure,
        Notice,
        QpRequest, //
    },
    terminate::Terminate, //
};
use kernel::{
    prelude::*,
    sync::{
        atomic::Relaxed,
        Arc, //
    },
    time::Instant, //
};
use kernel_ext::rdma::wr::WcStatus;

use crate::{
    abi::wr::{
        SendOp,
        SendWr, //
    },
    device::inject::{
        Hold,
        RuleSet, //
    },
    queue::sq::{
        CompletionRule,
        FailedByRule,
        RuleLook,
        RuledEvent,
        Slot, //
    }, //
};

use super::{
    connection::StreamConnection,
    ending::StreamEnd,
    owner::QpShared, //
};

/// What one side of a stream keeps for the rules that it was asked by last.
pub(super) struct Injection {
    set: Arc<RuleSet>,
    counts: RuleCounts,
    hold: Option<Hold>,
}

/// What rules are asked about.
pub(super) struct RuleQuery {
    point: Point,
    operation: Operation,
    /// Length of the payload of a request, in octets.
    len: u32,
    is_divisible: bool,
    /// The cookie of a request.
    wr_id: u64,
}

impl RuleQuery {
    pub(super) fn of_request(point: Point, operation: Operation, wr: &SendWr) -> Self {
        Self {
            point,
            operation,
            len: match operation {
                Operation::Send | Operation::Write => wr.bytes(),
                Operation::Read | Operation::Atomic => 0,
            },
            is_divisible: !matches!(wr.op, SendOp::AtomicWrite { .. }),
            wr_id: wr.id,
        }
    }

    pub(super) fn point(&self) -> Point {
        self.point
    }

    /// Returns the query about the completion of the same request.
    pub(super) fn of_completion(&self) -> Self {
        Self {
            point: Point::Complete,
            ..*self
        }
    }

    pub(super) fn of_message(operation: Operation) -> Self {
        Self {
            point: Point::Receive,
            operation,
            len: 0,
            is_divisible: false,
            wr_id: 0,
        }
    }
}

/// What becomes of it.
pub(super) enum Ruling {
    /// What there is without rules.
    Goes,
    /// It is held.
    Held,
    /// It goes, and the queue pair looks at the rule: the stream is paced, or an event is raised.
    GoesAndLooks,
    /// The request fails, or the receive that the message takes.
    Fails(FailedByRule),
    /// The stream ends before it.
    Ends(RuledEnd),
    /// It finds no receive when it arrives.
    NoReceive,
    /// Its first FPDU is changed.
    Corrupted(Corruption),
    /// It goes, and stops inside its message.
    GoesUntil(InsideRule),
}

/// How a rule ends a stream.
pub(super) enum RuledEnd {
    Terminate(ErrorCode),
    Reset,
    Fin,
}

/// What a rule does inside the message of a request.
pub(super) struct InsideRule {
    /// Behind so many octets of its payload.
    after: u32,
    action: Interruption,
    /// The number of the rules.
    number: u32,
    /// Once it is there.
    hold: Option<Hold>,
}

/// What becomes of the rest of a message.
pub(super) enum RestRuling {
    /// It is sent.
    Goes,
    /// It is held.
    Held,
    /// The stream ends before it.
    Ends(RuledEnd),
}

impl InsideRule {
    /// Returns behind how many octets of the payload the message stops.
    pub(super) fn after(&self) -> u32 {
        self.after
    }

    /// Returns whether the device still has the rule.
    pub(super) fn is_there(&self, qp: &QpShared) -> bool {
        self.number == qp.device.injector.number()
    }

    /// Returns what becomes of the rest, now that the peer has what precedes it.
    pub(super) fn rule_rest(&mut self) -> RestRuling {
        let hold = match self.action {
            Interruption::Terminate(code) => return RestRuling::Ends(RuledEnd::Terminate(code)),
            Interruption::Reset => return RestRuling::Ends(RuledEnd::Reset),
            Interruption::Fin => return RestRuling::Ends(RuledEnd::Fin),
            Interruption::Silent => Hold::ForGood,
            Interruption::Delay(millis) => Hold::Since(Instant::now(), millis),
        };
        if self.hold.get_or_insert(hold).is_over() {
            RestRuling::Goes
        } else {
            RestRuling::Held
        }
    }
}

/// What a rule does to a receive.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ReceiveRule {
    /// None is found when the message arrives.
    Absent,
    /// It fails.
    Fails { status: WcStatus, vendor: u32 },
}

impl Injection {
    /// Returns whether a request or message was held when this was asked last.
    pub(super) fn holds(&self) -> bool {
        self.hold.is_some()
    }

    /// Returns whether the stream is to be silent.
    pub(super) fn is_silent(&self, qp: &QpShared) -> bool {
        matches!(self.hold, Some(Hold::ForGood)) && qp.device.injector.number() == self.set.number()
    }

    /// Returns what `place` keeps for the rules of the device, if it has any.
    fn current<'a>(place: &'a mut Option<Self>, qp: &QpShared) -> Option<&'a mut Self> {
        let set = qp.device.injector.rules()?;
        // After a change of the rules this request or message is the first one.
        let _ = place.take_if(|injection| !Arc::ptr_eq(&injection.set, &set));
        Some(place.get_or_insert(Self {
            set,
            counts: RuleCounts::default(),
            hold: None,
        }))
    }

    /// Asks the rules of the device about the completion of the request at `slot`, which is to be
    /// sent now.
    ///
    /// # Errors
    ///
    /// `ENOMEM`: the request completes as without rules.
    pub(super) fn ask_for_completion(
        place: &mut Option<Self>,
        qp: &QpShared,
        conn: &StreamConnection,
        query: &RuleQuery,
        slot: Slot,
    ) -> Result<bool> {
        let Some(injection) = Self::current(place, qp) else {
            return Ok(false);
        };
        let rule = match injection.hit(qp, conn, query) {
            Some(RuleAction::Status {
                status,
                vendor,
                end,
            }) => CompletionRule::Fails(FailedByRule {
                status: status_of(status),
                vendor,
                end,
            }),
            Some(RuleAction::Delay(millis)) => CompletionRule::Late(millis),
            Some(RuleAction::Silent) => CompletionRule::Never,
            Some(RuleAction::Event(event)) => CompletionRule::Raises(event),
            // There are no others (`iwarp::inject`).
            Some(_) | None => return Ok(false),
        };
        qp.sq.rule_completion(slot, rule, injection.set.number())?;
        Ok(true)
    }

    /// Asks the rules of the device, with what `place` keeps for them.
    pub(super) fn ask(
        place: &mut Option<Self>,
        qp: &QpShared,
        conn: &StreamConnection,
        query: &RuleQuery,
    ) -> Ruling {
        let Some(injection) = Self::current(place, qp) else {
            return Ruling::Goes;
        };
        if let Some(hold) = injection.hold {
            // It was asked about before.
            return match injection.hold.take_if(|_| hold.is_over()) {
                Some(_) => Ruling::Goes,
                None => Ruling::Held,
            };
        }
        match injection.hit(qp, conn, query) {
            Some(action) => injection.rule(qp, conn, query.point, action),
            None => Ruling::Goes,
        }
    }

    /// Returns what the rule does that hits it.
    fn hit(
        &mut self,
        qp: &QpShared,
        conn: &StreamConnection,
        query: &RuleQuery,
    ) -> Option<RuleAction> {
        let (here, there) = conn.socket().addr_pair();
        let subject = Subject {
            point: query.point,
            qp: Some(qp.number),
            comm: qp.process_name(),
            stream: Some(StreamSubject {
                ports: (here.port(), there.port()),
                peer: there.ip(),
                operation: Some(query.operation),
                len: query.len,
                is_divisible: query.is_divisible,
            }),
        };
        self.set
            .ask(&qp.device, &mut self.counts, &subject, query.wr_id)
    }

    fn rule(
        &mut self,
        qp: &QpShared,
        conn: &StreamConnection,
        point: Point,
        action: RuleAction,
    ) -> Ruling {
        let hold = match action {
            RuleAction::Delay(millis) => Hold::Since(Instant::now(), millis),
            RuleAction::Silent => Hold::ForGood,
            RuleAction::Rate(rate) => {
                conn.socket().limit_rate(rate);
                qp.paced_by.store(self.set.number(), Relaxed);
                return Ruling::GoesAndLooks;
            }
            RuleAction::Status {
                status,
                vendor,
                end,
            } => {
                return Ruling::Fails(FailedByRule {
                    status: status_of(status),
                    vendor,
                    end,
                });
            }
            RuleAction::Terminate(code) => return Ruling::Ends(RuledEnd::Terminate(code)),
            RuleAction::Reset => return Ruling::Ends(RuledEnd::Reset),
            RuleAction::Fin => return Ruling::Ends(RuledEnd::Fin),
            RuleAction::Corrupt(corruption) => return Ruling::Corrupted(corruption),
            RuleAction::NoReceive => return Ruling::NoReceive,
            RuleAction::Inside(after, action) => {
                return Ruling::GoesUntil(InsideRule {
                    after: after.get(),
                    action,
                    number: self.set.number(),
                    hold: None,
                });
            }
            RuleAction::Event(event) => {
                let event = RuledEvent { point, event };
                if qp.sq.rule_event(event, self.set.number()).is_err() {
                    qp.device.warn(fmt!("no memory for the event of a rule"));
                }
                return Ruling::GoesAndLooks;
            }
            // Only of verbs and connections (`iwarp::inject`).
            RuleAction::Errno(_) | RuleAction::Connection(_) => return Ruling::Goes,
        };
        self.hold = Some(hold);
        Ruling::Held
    }
}

/// Returns the status of a rule, which has no other number (`device::inject`).
fn status_of(number: u8) -> WcStatus {
    WcStatus::from_raw(number.into()).unwrap_or(WcStatus::General)
}

impl QpShared {
    /// Completes a request with a status that nothing has caused, and ends the stream as such a
    /// status does.
    #[cold]
    pub(super) fn fail_request(&self, slot: Slot, failed: FailedByRule) -> Set<After> {
        self.tell_vendor_error(failed.vendor);
        self.sq.finish(slot, failed.status, self.origin());
        self.end_failed(failed)
    }

    /// Completes what rules, or the strict mode, do not hold any longer. Returns what follows.
    ///
    /// Context: process.
    pub(crate) fn look_at_completions(&self) -> Set<After> {
        let strict = self.device.strict.is_on();
        let number = self.device.injector.number();
        let (look, chosen) = self.sq.look_at_rules(number, strict, self.origin());
        self.device.stats.chosen_late_completions.add(chosen.into());
        match look {
            RuleLook::Nothing => Set::NONE,
            RuleLook::Holds => Set::NONE.with(After::LookAtRule),
            RuleLook::Failed(failed) => {
                self.tell_vendor_error(failed.vendor);
                self.end_failed(failed)
            }
        }
    }

    /// Ends the stream, of which a request has completed with a status that nothing has caused.
    fn end_failed(&self, failed: FailedByRule) -> Set<After> {
        self.note_end(StreamEnd::Request(failed.status), None);
        match failed.end {
            StatusEnd::Terminate => {
                self.terminate(Notice::Completion, Terminate::for_fault(Fault::Local, None))
            }
            StatusEnd::Fin => self.apply(Event::PeerTerminate(FirstFailure::Flushed)),
            StatusEnd::Reset => self.reset_on_purpose(),
            StatusEnd::Nothing => self.apply(Event::StreamEnded { lost: false }),
        }
    }

    /// Lets the stream send as fast as it can again, if the rule is gone that limits it. Returns
    /// whether one limits it still.
    ///
    /// Context: process.
    pub(crate) fn is_paced(&self) -> bool {
        let by = self.paced_by.load(Relaxed);
        if by == 0 || by == self.device.injector.number() {
            return by != 0;
        }
        self.paced_by.store(0, Relaxed);
        if let Some(conn) = self.conn() {
            conn.socket().unlimit_rate();
        }
        false
    }

    /// Has completions with an error say this, unless it is 0.
    pub(super) fn tell_vendor_error(&self, vendor: u32) {
        if vendor != 0 {
            self.peer_terminate.store(vendor, Relaxed);
        }
    }

    /// Ends the stream as a rule says.
    #[cold]
    pub(super) fn end_on_purpose(&self, end: RuledEnd) -> Set<After> {
        match end {
            RuledEnd::Terminate(code) => {
                self.terminate(Notice::Fatal, Terminate { code, quoted: None })
            }
            RuledEnd::Reset => self.reset_on_purpose(),
            // As its consumer could; refused if the queue pair is in error already.
            RuledEnd::Fin => self.request(QpRequest::ModifyErr).unwrap_or_default(),
        }
    }

    /// Ends the stream with a reset, as if TCP had given up the connection.
    fn reset_on_purpose(&self) -> Set<After> {
        let mut after = self.apply(Event::SendFailed);
        after.add(self.apply(Event::StreamEnded { lost: true }));
        after
    }
}
