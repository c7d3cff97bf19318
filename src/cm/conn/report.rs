// SPDX-License-Identifier: GPL-2.0

//! The state of a connection in one line, for administrators. docs/debugging.md has the words.
//!
//! Context: process; waits for a step under way.

use kernel::{
    fmt,
    prelude::*,
    sync::Arc, //
};

use super::{
    phase::ConnPhase,
    Conn, //
};

impl Conn {
    /// Writes `key=value` words, without the device and the end of the line.
    pub(crate) fn report(self: &Arc<Self>, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (phase, seconds) = self.with_actor(|actor| (phase_name(&actor.phase), actor.left()));
        let (local, peer) = self.socket.addr_pair();
        out.write_fmt(fmt!(
            "conn={} phase={phase} local={local} peer={peer} tcp={:?}",
            self.entry.number(),
            self.socket.state()
        ))?;
        if let Some(qp) = self.qp() {
            out.write_fmt(fmt!(" qp={}", qp.shared.number))?;
        }
        if let Some(seconds) = seconds {
            out.write_fmt(fmt!(" limit_s={seconds}"))?;
        }
        let info = self.socket.info();
        out.write_fmt(fmt!(
            " unacked={} queued={} acked={} received={}",
            info.unacked,
            info.queued,
            info.acked,
            info.received
        ))
    }
}

pub(super) fn phase_name(phase: &ConnPhase) -> &'static str {
    match phase {
        ConnPhase::Connecting { .. } => "connecting",
        ConnPhase::Securing(_) => "securing",
        ConnPhase::Requesting { .. } => "requesting",
        ConnPhase::Settling { .. } => "settling",
        ConnPhase::Waiting { .. } => "waiting",
        ConnPhase::Queued { .. } => "queued",
        ConnPhase::Asked(_) => "asked",
        ConnPhase::Replying { .. } => "replying",
        ConnPhase::Expecting(_) => "expecting",
        ConnPhase::Attaching(_) => "attaching",
        ConnPhase::Open(_) => "open",
        ConnPhase::HalfClosed(_) => "half_closed",
        ConnPhase::Closing(_) => "closing",
        ConnPhase::Lingering(_) => "lingering",
        ConnPhase::Ending(_) => "ending",
        ConnPhase::Released => "released",
    }
}
