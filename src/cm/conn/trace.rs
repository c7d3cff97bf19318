// SPDX-License-Identifier: GPL-2.0

//! Trace events of a connection. docs/debugging.md has their meaning.
//!
//! Context: process, the actor's mutex held.

use iwarp::mpa::{
    Crc,
    Markers, //
};
use kernel::prelude::*;
use kernel_ext::trace::{
    ConnClosed,
    ConnEstablished,
    ConnPhaseEvent,
    ConnRefused,
    Text, //
};

use super::{
    phase::Actor,
    report::phase_name,
    Conn, //
};
use crate::{
    qp::Qp,
    stream::connection::Ended, //
};

impl Conn {
    /// The phase may be another one than the last event said.
    pub(super) fn trace_phase(&self, actor: &mut Actor) {
        if !ConnPhaseEvent::is_enabled() {
            return;
        }
        let phase = phase_name(&actor.phase);
        if actor.traced != phase {
            actor.traced = phase;
            ConnPhaseEvent::record(move || ConnPhaseEvent {
                dev: self.device().name(),
                conn: self.entry.number(),
                qpn: self.qp().map_or(0, |qp| qp.shared.number),
                phase: Text::new(fmt!("{phase}")),
            });
        }
    }

    /// The start-up fails because of the peer.
    pub(super) fn trace_refused(&self, reason: &str) {
        if ConnRefused::is_enabled() {
            ConnRefused::record(move || {
                let (local, peer) = self.socket.addr_pair();
                ConnRefused {
                    dev: self.device().name(),
                    conn: self.entry.number(),
                    local: Text::new(fmt!("{local}")),
                    peer: Text::new(fmt!("{peer}")),
                    reason: Text::new(fmt!("{reason}")),
                }
            });
        }
    }

    /// Counts a stream that the queue pair has got.
    pub(in crate::cm) fn established(&self) {
        self.device().stats.established.inc();
        if ConnEstablished::is_enabled() {
            ConnEstablished::record(move || {
                let (local, peer) = self.socket.addr_pair();
                let qp = self.qp();
                let qp = qp.as_deref();
                let negotiated = qp.and_then(Qp::negotiated);
                ConnEstablished {
                    dev: self.device().name(),
                    conn: self.entry.number(),
                    qpn: qp.map_or(0, |qp| qp.shared.number),
                    local: Text::new(fmt!("{local}")),
                    peer: Text::new(fmt!("{peer}")),
                    mpa_rev: negotiated.map_or(0, |negotiated| negotiated.mpa_rev()),
                    crc: negotiated.is_some_and(|negotiated| negotiated.crc == Crc::On),
                    markers: negotiated.is_some_and(|negotiated| negotiated.markers == Markers::On),
                    ird: qp.map_or(0, |qp| qp.shared.inbound_reads.occupancy().1),
                    ord: qp.map_or(0, |qp| qp.shared.sq.occupancy().max_reads),
                }
            });
        }
    }

    /// The stream of this queue pair has ended.
    pub(super) fn trace_closed(&self, qp: Option<&Qp>, how: Ended) {
        if ConnClosed::is_enabled() {
            ConnClosed::record(move || ConnClosed {
                dev: self.device().name(),
                conn: self.entry.number(),
                qpn: qp.map_or(0, |qp| qp.shared.number),
                reason: match (qp.and_then(|qp| qp.shared.ending()), how) {
                    (Some(end), _) => Text::new(fmt!("{}: {end}", end.kind())),
                    (None, Ended::Graceful) => Text::new(fmt!("in order")),
                    (None, Ended::Lost(loss)) => Text::new(fmt!("lost: {}", loss.text())),
                },
            });
        }
    }
}
