// SPDX-License-Identifier: GPL-2.0

//! What the rules of a device (`device::inject`) do to connections of `rdma_cm` that begin.
//!
//! A connection asks once: the initiator when its peer has answered, the responder before its
//! consumer hears of the request. A rule that holds it is looked at in further steps, until it is
//! over, or gone.
//!
//! Context: process, the actor's mutex held.

use iwarp::{
    inject::{
        ConnAction,
        Point,
        RuleAction,
        RuleCounts,
        StreamSubject,
        Subject, //
    },
    lifecycle::QpRequest, //
};
use kernel::{
    prelude::*,
    sync::Arc,
    time::Instant, //
};
use kernel_ext::{
    compat::{
        ECONNREFUSED,
        EPROTO, //
    },
    static_key, //
};

use crate::{
    device::inject::Hold,
    qp::actions::Runner, //
};

use super::{
    phase::{
        Actor,
        RuledConn, //
    },
    Conn, //
};

/// Time between two looks at a rule that holds a connection, in milliseconds.
const LOOK_MILLIS: u32 = 10;

/// What becomes of a start-up.
pub(in crate::cm) enum ConnRuling {
    /// What there is without rules.
    Goes,
    /// It waits for another step, which is scheduled.
    Held,
    /// It fails with this error, and with private data as if the peer had rejected it.
    Fails(Error, RejectData),
}

/// Private data of a rejection by a rule; none with other errors.
pub(in crate::cm) struct RejectData(Option<[u8; 4]>);

impl RejectData {
    pub(in crate::cm) fn is_some(&self) -> bool {
        self.0.is_some()
    }

    pub(in crate::cm) fn octets(&self) -> &[u8] {
        self.0.as_ref().map_or(&[], |data| data)
    }
}

impl Conn {
    /// Asks the rules about the connection.
    #[inline]
    pub(in crate::cm) fn rule_on(&self, actor: &mut Actor, point: Point) -> ConnRuling {
        if static_key::is_on() {
            self.look_at_rule(actor, point)
        } else {
            ConnRuling::Goes
        }
    }

    #[cold]
    fn look_at_rule(&self, actor: &mut Actor, point: Point) -> ConnRuling {
        let ruled = *actor.ruled.get_or_insert_with(|| self.hit(point));
        let fails = |error, data| ConnRuling::Fails(error, RejectData(data));
        match ruled.action {
            Some(ConnAction::Slow(_) | ConnAction::DropReply) => {
                let is_there = ruled.number == self.device().injector.number();
                if !is_there || ruled.hold.is_over() {
                    return ConnRuling::Goes;
                }
                if actor.is_overdue() {
                    return fails(ETIMEDOUT, None);
                }
                actor.recheck_after(LOOK_MILLIS);
                ConnRuling::Held
            }
            Some(ConnAction::Reject(data)) => fails(ECONNREFUSED, Some(data)),
            Some(ConnAction::Unreachable) => fails(ETIMEDOUT, None),
            Some(ConnAction::ConnectError) => fails(EPROTO, None),
            Some(ConnAction::Remove) => {
                self.device().remove();
                fails(EPROTO, None)
            }
            Some(ConnAction::Disconnect) | None => ConnRuling::Goes,
        }
    }

    /// Asks the rules of the device, if it has any.
    fn hit(&self, point: Point) -> RuledConn {
        let mut ruled = RuledConn {
            action: None,
            number: 0,
            hold: Hold::ForGood,
        };
        let Some(set) = self.device().injector.rules() else {
            return ruled;
        };
        let (here, there) = self.socket.addr_pair();
        let qp = self.qp();
        let subject = Subject {
            point,
            qp: qp.as_ref().map(|qp| qp.shared.number),
            comm: qp.as_ref().and_then(|qp| qp.shared.process_name()),
            stream: Some(StreamSubject {
                ports: (here.port(), there.port()),
                peer: there.ip(),
                operation: None,
                len: 0,
                is_divisible: false,
            }),
        };
        let counts = &mut RuleCounts::default();
        if let Some(RuleAction::Connection(action)) = set.ask(self.device(), counts, &subject, 0) {
            ruled.action = Some(action);
            ruled.number = set.number();
            if let ConnAction::Slow(millis) = action {
                ruled.hold = Hold::Since(Instant::now(), millis);
            }
        }
        ruled
    }

    /// Ends a connection that has been reported, if its rule says so.
    #[cold]
    pub(in crate::cm) fn disconnect_by_rule(self: &Arc<Self>, actor: &Actor) {
        let action = actor.ruled.and_then(|ruled| ruled.action);
        if let (Some(ConnAction::Disconnect), Some(qp)) = (action, self.qp()) {
            // As its consumer could; refused if the queue pair is in error already.
            let after = qp.shared.request(QpRequest::ModifyErr).unwrap_or_default();
            qp.carry_out(after, Runner::Step);
        }
    }
}
