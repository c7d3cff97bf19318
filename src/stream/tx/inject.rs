// SPDX-License-Identifier: GPL-2.0

//! Lets a request fail on purpose, by the rules of the device (`device::inject`).
//!
//! Context: that of the transmit task.

use iwarp::{
    actions::{
        After,
        Set, //
    },
    fault::Fault,
    inject::{
        Operation,
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
use kernel::sync::{
    atomic::Relaxed,
    Arc, //
};
use kernel_ext::rdma::wr::WcStatus;

use crate::{
    abi::wr::SendOp,
    device::inject::RuleSet,
    queue::sq::Slot,
    stream::{
        ending::StreamEnd,
        owner::QpShared, //
    }, //
};

use super::TxStream;

/// What a stream has counted, for the rules that it was asked by last.
pub(super) struct Injection {
    set: Arc<RuleSet>,
    counts: RuleCounts,
}

/// Returns what the operation is for rules; [`None`] if the peer has no part in it.
fn operation_of(op: &SendOp) -> Option<Operation> {
    match op {
        SendOp::Send(_) | SendOp::Immediate(_) => Some(Operation::Send),
        SendOp::Write { .. } | SendOp::AtomicWrite { .. } => Some(Operation::Write),
        SendOp::Read { .. } | SendOp::Flush(_) => Some(Operation::Read),
        SendOp::Atomic { .. } => Some(Operation::Atomic),
        SendOp::RegMr { .. } | SendOp::Bind(_) | SendOp::LocalInv { .. } => None,
    }
}

impl TxStream {
    /// Returns what a rule does to the request that was dequeued last.
    fn rule_for_request(&mut self, qp: &QpShared) -> Option<RuleAction> {
        let set = qp.device.injector.rules()?;
        let operation = operation_of(&self.wr.op)?;
        let (here, there) = self.conn.socket().addr_pair();
        let subject = Subject {
            qp: qp.number,
            ports: (here.port(), there.port()),
            peer: there.ip(),
            operation,
        };
        let injection = match &mut self.injection {
            Some(injection) if Arc::ptr_eq(&injection.set, &set) => injection,
            // As after a change of the rules, of which the first request is one.
            place => place.insert(Injection {
                set,
                counts: RuleCounts::default(),
            }),
        };
        let (place, action) = injection.counts.count(injection.set.rules(), &subject)?;
        injection.set.note_hit(place);
        qp.device.stats.injected.inc();
        qp.trace_injected(self.wr.id, place);
        Some(action)
    }

    /// Ends the request at `slot` and its stream, if a rule says so; returns whether one does.
    #[cold]
    pub(super) fn inject(&mut self, qp: &QpShared, slot: Slot) -> bool {
        let Some(action) = self.rule_for_request(qp) else {
            return false;
        };
        let after = match action {
            RuleAction::Status {
                status,
                vendor,
                end,
            } => {
                self.wr.forget();
                // A rule has no other number (`device::inject`).
                let status = WcStatus::from_raw(status.into()).unwrap_or(WcStatus::General);
                qp.fail_request(slot, status, vendor, end)
            }
            // The flush has the request.
            RuleAction::Terminate(code) => {
                self.held = Some(slot);
                qp.terminate(Notice::Fatal, Terminate { code, quoted: None })
            }
            RuleAction::Reset => {
                self.held = Some(slot);
                qp.reset_on_purpose()
            }
            RuleAction::Fin => {
                self.held = Some(slot);
                qp.close_on_purpose()
            }
        };
        self.after.add(after);
        true
    }
}

impl QpShared {
    /// Completes a request with a status that nothing has caused, and ends the stream as such a
    /// status does.
    #[cold]
    fn fail_request(
        &self,
        slot: Slot,
        status: WcStatus,
        vendor: u32,
        end: StatusEnd,
    ) -> Set<After> {
        self.note_end(StreamEnd::Request(status), None);
        if vendor != 0 {
            self.peer_terminate.store(vendor, Relaxed);
        }
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

    /// Ends the stream with a reset, as if TCP had given up the connection.
    fn reset_on_purpose(&self) -> Set<After> {
        let mut after = self.apply(Event::SendFailed);
        after.add(self.apply(Event::StreamEnded { lost: true }));
        after
    }

    /// Ends the stream with a FIN, as its consumer could.
    fn close_on_purpose(&self) -> Set<After> {
        // It is refused if the queue pair is in error already.
        self.request(QpRequest::ModifyErr).unwrap_or_default()
    }
}
