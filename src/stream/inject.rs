// SPDX-License-Identifier: GPL-2.0

//! What the rules of a device (`device::inject`) do to a stream: both sides ask about each request
//! before it is sent, and about each message before it is taken.
//!
//! A rule that holds one leaves it where it is, and all behind it: the request in the send queue,
//! the message in TCP. The queue pair looks again every millisecond (`qp::inject`). So what is held
//! goes on once the rules have changed.
//!
//! Context: that of the transmit task or of the receiver.

use core::num::NonZeroU32;

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
        Operation,
        Point,
        RuleAction,
        RuleCounts,
        StatusEnd,
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
    sync::{
        atomic::Relaxed,
        Arc, //
    },
    time::{
        Instant,
        Monotonic, //
    }, //
};
use kernel_ext::rdma::wr::WcStatus;

use crate::{
    abi::wr::SendWr,
    device::inject::RuleSet,
    queue::sq::Slot, //
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

/// How long a request or message is held.
#[derive(Clone, Copy)]
enum Hold {
    /// For so many milliseconds.
    Since(Instant<Monotonic>, NonZeroU32),
    /// As long as there is the rule.
    ForGood,
}

impl Hold {
    fn is_over(self) -> bool {
        match self {
            Self::Since(since, millis) => {
                (Instant::now() - since).as_millis() >= millis.get().into()
            }
            Self::ForGood => false,
        }
    }
}

/// What rules are asked about.
pub(super) struct RuleQuery {
    point: Point,
    operation: Operation,
    /// Length of the payload of a request, in octets.
    len: u32,
    /// The cookie of a request.
    wr_id: u64,
}

impl RuleQuery {
    pub(super) fn of_request(operation: Operation, wr: &SendWr) -> Self {
        Self {
            point: Point::Send,
            operation,
            len: wr.bytes(),
            wr_id: wr.id,
        }
    }

    pub(super) fn of_message(operation: Operation) -> Self {
        Self {
            point: Point::Receive,
            operation,
            len: 0,
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
    /// It goes, but not faster than a rule says.
    Paced,
    /// The request fails, or the receive that the message takes.
    Fails {
        status: WcStatus,
        vendor: u32,
        end: StatusEnd,
    },
    /// The stream ends before it.
    Ends(RuledEnd),
    /// It finds no receive when it arrives.
    NoReceive,
    /// Its first FPDU is changed.
    Corrupted(Corruption),
}

/// How a rule ends a stream.
pub(super) enum RuledEnd {
    Terminate(ErrorCode),
    Reset,
    Fin,
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
        let set = qp.device.injector.rules();
        matches!(self.hold, Some(Hold::ForGood))
            && set.is_some_and(|set| Arc::ptr_eq(&set, &self.set))
    }

    /// Asks the rules of the device, with what `place` keeps for them.
    pub(super) fn ask(
        place: &mut Option<Self>,
        qp: &QpShared,
        conn: &StreamConnection,
        query: &RuleQuery,
    ) -> Ruling {
        let set = qp.device.injector.rules();
        let Some(set) = set else {
            return Ruling::Goes;
        };
        let injection = match place {
            Some(injection) if Arc::ptr_eq(&injection.set, &set) => injection,
            // As after a change of the rules, of which the first request is one.
            place => place.insert(Self {
                set,
                counts: RuleCounts::default(),
                hold: None,
            }),
        };
        if let Some(hold) = injection.hold {
            // It was asked about before.
            return match injection.hold.take_if(|_| hold.is_over()) {
                Some(_) => Ruling::Goes,
                None => Ruling::Held,
            };
        }
        match injection.hit(qp, conn, query) {
            Some(action) => injection.rule(qp, conn, action),
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
            qp: qp.number,
            ports: (here.port(), there.port()),
            peer: there.ip(),
            comm: qp.user.then_some(qp.comm),
            operation: query.operation,
            len: query.len,
        };
        let (place, action) = self.set.ask(&mut self.counts, &subject)?;
        qp.device.stats.injected.inc();
        qp.trace_injected(query.wr_id, place);
        Some(action)
    }

    fn rule(&mut self, qp: &QpShared, conn: &StreamConnection, action: RuleAction) -> Ruling {
        let hold = match action {
            RuleAction::Delay(millis) => Hold::Since(Instant::now(), millis),
            RuleAction::Silent => Hold::ForGood,
            RuleAction::Rate(rate) => {
                conn.socket().limit_rate(Some(rate));
                qp.paced_by.store(self.set.number(), Relaxed);
                return Ruling::Paced;
            }
            RuleAction::Status {
                status,
                vendor,
                end,
            } => {
                // A rule has no other number (`device::inject`).
                let status = WcStatus::from_raw(status.into()).unwrap_or(WcStatus::General);
                return Ruling::Fails {
                    status,
                    vendor,
                    end,
                };
            }
            RuleAction::Terminate(code) => return Ruling::Ends(RuledEnd::Terminate(code)),
            RuleAction::Reset => return Ruling::Ends(RuledEnd::Reset),
            RuleAction::Fin => return Ruling::Ends(RuledEnd::Fin),
            RuleAction::Corrupt(corruption) => return Ruling::Corrupted(corruption),
            RuleAction::NoReceive => return Ruling::NoReceive,
        };
        self.hold = Some(hold);
        Ruling::Held
    }
}

impl QpShared {
    /// Completes a request with a status that nothing has caused, and ends the stream as such a
    /// status does.
    #[cold]
    pub(super) fn fail_request(
        &self,
        slot: Slot,
        status: WcStatus,
        vendor: u32,
        end: StatusEnd,
    ) -> Set<After> {
        self.note_end(StreamEnd::Request(status), None);
        self.tell_vendor_error(vendor);
        self.sq.finish(slot, status, self.origin());
        match end {
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
    pub(crate) fn is_paced(&self) -> bool {
        let by = self.paced_by.load(Relaxed);
        if by == 0 || by == self.device.injector.number() {
            return by != 0;
        }
        self.paced_by.store(0, Relaxed);
        if let Some(conn) = self.conn() {
            conn.socket().limit_rate(None);
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
