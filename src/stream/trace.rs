// SPDX-License-Identifier: GPL-2.0

//! Trace events of a stream. docs/debugging.md has their meaning.
//!
//! Context: any.

use iwarp::{
    rdmap::Opcode,
    segment::Plan, //
};
use kernel::prelude::*;
use kernel_ext::trace::{
    FaultFound,
    FpduIn,
    MessageOut,
    ReceiveWait,
    StrictFinding,
    TerminateSeen,
    Text,
    WrComplete,
    WrStart, //
};

use super::owner::QpShared;
use crate::{
    abi::wr::{
        Completion,
        SendWr, //
    },
    queue::sq::Slot, //
};

/// Octets of the control fields of DDP and RDMAP, with which each segment begins.
const DDP_LAST: u8 = 0x40;

/// The end that has sent a Terminate.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum TerminateSender {
    Here,
    Peer,
}

/// Returns the opcode in the control field of RDMAP, as [`Opcode::to_wire`] does: with the reserved
/// bits of those that they mark. Whether the peer has agreed on such a message is not looked at.
fn opcode(control: u8) -> u8 {
    const ATOMIC_WRITE: u8 = Opcode::AtomicWrite.to_wire();
    const FLUSH: u8 = Opcode::Flush.to_wire();
    const SEND: u8 = Opcode::SendSolicitedImmediate.to_wire();
    const FEATURES: u8 = Opcode::Features.to_wire();
    match control & (Opcode::MARKS | 0x0f) {
        marked @ (ATOMIC_WRITE | FLUSH | SEND | FEATURES) => marked,
        other => other & 0x0f,
    }
}

impl QpShared {
    /// A complete FPDU with this header has arrived.
    #[inline(always)]
    pub(super) fn trace_fpdu_in(&self, header: &[u8], ulpdu_len: u16) {
        if FpduIn::is_enabled() {
            FpduIn::record(move || {
                let [ddp, rdmap] = *header.first_chunk().unwrap_or(&[0, 0]);
                FpduIn {
                    dev: self.device.name(),
                    qpn: self.number,
                    opcode: opcode(rdmap),
                    len: ulpdu_len,
                    last: ddp & DDP_LAST != 0,
                }
            });
        }
    }

    /// An FPDU was packed; `message` returns the request that its message belongs to, and the
    /// length of that.
    #[inline(always)]
    pub(super) fn trace_fpdu_out(
        &self,
        plan: &Plan,
        message: impl FnOnce() -> (Option<Slot>, u32),
    ) {
        if MessageOut::is_enabled() && plan.payload_offset() == 0 {
            MessageOut::record(move || {
                let (slot, len) = message();
                MessageOut {
                    dev: self.device.name(),
                    qpn: self.number,
                    seq: slot.map_or(-1, Slot::position),
                    // Behind the length, which belongs to MPA, and the control field of DDP.
                    opcode: opcode(plan.header().get(3).copied().unwrap_or(0)),
                    len,
                }
            });
        }
    }

    /// The transmit task begins to carry out a request.
    #[inline(always)]
    pub(super) fn trace_wr_start(&self, slot: Slot, wr: &SendWr) {
        if WrStart::is_enabled() {
            WrStart::record(move || WrStart {
                dev: self.device.name(),
                qpn: self.number,
                seq: slot.position(),
                wr_id: wr.id,
                opcode: wr.op.wc_opcode().to_raw(),
                len: wr.bytes(),
            });
        }
    }

    /// A receive work request is complete.
    #[inline(always)]
    pub(crate) fn trace_recv_complete(&self, completion: &Completion) {
        if WrComplete::is_enabled() {
            WrComplete::record(move || WrComplete {
                dev: self.device.name(),
                qpn: self.number,
                seq: -1,
                wr_id: completion.id,
                opcode: completion.opcode.to_raw(),
                status: completion.status.to_raw(),
                len: completion.bytes,
            });
        }
    }

    /// A message begins to wait for its receive, or waits no longer.
    pub(super) fn trace_receive_wait(&self, begins: bool) {
        if ReceiveWait::is_enabled() {
            ReceiveWait::record(move || ReceiveWait {
                dev: self.device.name(),
                qpn: self.number,
                begins,
            });
        }
    }

    /// The strict mode finds that a rule is broken, by the request `wr_id` if one breaks it.
    pub(super) fn trace_finding(&self, rule: u32, wr_id: u64) {
        if StrictFinding::is_enabled() {
            StrictFinding::record(move || StrictFinding {
                dev: self.device.name(),
                qpn: self.number,
                wr_id,
                rule,
            });
        }
    }

    /// This end has found a fault, which a Terminate with this code reports.
    pub(super) fn trace_fault(&self, code: u32, reason: &str) {
        if FaultFound::is_enabled() {
            FaultFound::record(move || FaultFound {
                dev: self.device.name(),
                qpn: self.number,
                code,
                reason: Text::new(fmt!("{reason}")),
            });
        }
    }

    /// This end sends a Terminate, or the peer's has arrived.
    pub(super) fn trace_terminate(&self, sender: TerminateSender, code: u32) {
        if TerminateSeen::is_enabled() {
            TerminateSeen::record(move || TerminateSeen {
                dev: self.device.name(),
                qpn: self.number,
                sent: sender == TerminateSender::Here,
                code,
            });
        }
    }
}

#[kernel::prelude::kunit_tests(riwarp_stream_trace)]
mod tests {
    use super::*;
    use iwarp::rdmap::{
        Extensions,
        Marked, //
    };

    #[test]
    fn traced_opcodes_match_the_wire() {
        for control in 0..=u8::MAX {
            let known = Opcode::from_wire(control, Extensions::SendImmediate);
            let Some(known) = known.map(|known| known.marked(control, Marked::ALL)) else {
                continue;
            };
            // Features are known by their place.
            match control & 0x3f {
                0x2f => assert_eq!(opcode(control), Opcode::Features.to_wire()),
                0x3f => assert_eq!(opcode(control), Opcode::SendImmediate.to_wire()),
                _ => assert_eq!(opcode(control), known.to_wire()),
            }
        }
    }
}
