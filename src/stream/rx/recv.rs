// SPDX-License-Identifier: GPL-2.0

//! Receive work requests: taken for Sends, which fill the buffer, and for Immediate Data.
//!
//! Context: softirq, or process with the socket locked.

use iwarp::{
    fault::Fault,
    rdmap::{
        Immediate,
        SendEvent,
        SendExtra, //
    },
    receiver::SendSegment,
    stream::{
        NotTaken,
        Received, //
    }, //
};
use kernel::error::Result;
use kernel_ext::{
    rdma::{
        mem::mem_map::Memory,
        wr::{
            WcExtra,
            WcOpcode,
            WcStatus, //
        }, //
    },
    static_key, //
};

use crate::{
    abi::wr::{
        Completion,
        RecvWr, //
    },
    device::inject::Hold,
    mem::{
        mr::LocalUse,
        sge::{
            NotCopied,
            RegionCache,
            SgeAccess,
            Slice,
            Slices, //
        }, //
    },
    queue::{
        cq::Posted,
        rq::Taker,
        waits::ReceiveTurn, //
    },
    stream::{
        inject::ReceiveRule,
        owner::{
            QpShared,
            Receives, //
        },
        strict::KeyUser, //
    }, //
};

/// A receive work request, filled in place.
#[derive(Default)]
pub(super) struct Incoming {
    wr: RecvWr,
    pub(super) buffer: Slices,
    /// The list is not checked yet: it has one element, and placing the Send, which is one segment,
    /// checks it.
    pub(super) unchecked: bool,
    /// Octets of the segment in hand that were placed before memory was absent.
    pub(super) placed: usize,
    /// Whether a message that waits for its receive may go on.
    pub(super) turn: ReceiveTurn,
    /// What a rule does to the next receive.
    pub(super) rule: Option<ReceiveRule>,
    /// Until when the FPDU in hand is not placed, if it is late by choice.
    pub(super) late: Option<Hold>,
}

impl Incoming {
    /// Returns the cookie of the receive work request.
    pub(super) fn id(&self) -> u64 {
        self.wr.id
    }

    /// Returns the buffer, if it is one element.
    pub(super) fn only(&self) -> Option<&Slice> {
        self.buffer.only()
    }

    /// Calls `copy(memory, offset in it, octets, octets done before)` for each piece of the buffer
    /// at `offset`, after checking it.
    ///
    /// # Errors
    ///
    /// As [`Slices::copy`].
    #[inline(always)]
    pub(super) fn copy(
        &self,
        access: SgeAccess<'_>,
        offset: u32,
        len: usize,
        mut copy: impl FnMut(&Memory, u64, usize, usize) -> Result,
    ) -> Result<(), NotCopied> {
        match self.buffer.only() {
            // Checks all of the element, also what lies behind the octets.
            Some(slice) if self.unchecked => {
                // CAST: 32 bits fit.
                let all = slice.len as usize;
                slice.copy(access, 0, all, |inside, at| {
                    if len > all {
                        return Err(WcStatus::LocalProtection.into());
                    }
                    Ok(copy(inside.memory(), at, len, 0)?)
                })
            }
            _ => self.buffer.copy(access, offset, len, copy),
        }
    }

    /// Dequeues a receive work request. If it is for a Send, whose first segment is `segment`,
    /// resolves its list, and returns its length in octets.
    #[inline]
    pub(super) fn take(
        &mut self,
        qp: &QpShared,
        cache: &mut RegionCache,
        segment: Option<&SendSegment>,
    ) -> Result<u32, NotTaken<WcStatus>> {
        if static_key::is_on() && self.rule == Some(ReceiveRule::Absent) {
            return Err(NotTaken::Empty);
        }
        let taker = self.taker();
        let taken = match &qp.receives {
            Receives::Own(queue) => queue.take(&mut self.wr, Taker::First),
            Receives::Shared(srq) => srq.take(&mut self.wr, taker),
        };
        if let Err(bad) = taken.ok_or(NotTaken::Empty)? {
            self.wr.id = bad.id;
            return Err(NotTaken::Unusable(bad.status));
        }
        if static_key::is_on() {
            self.obey(qp)?;
        }
        let Some(segment) = segment else {
            return Ok(0);
        };
        let list = &self.wr.buffer;
        let whole = segment.last.is_last() && segment.payload.len != 0;
        self.unchecked = whole && list.sges().len() == 1;
        let (buffer, regions) = (&mut self.buffer, &qp.regions);
        let found = if self.unchecked {
            buffer.find(list, regions, cache)
        } else {
            buffer.resolve(list, regions, qp.receive_pd(), LocalUse::Sink, cache)
        };
        found.map_err(NotTaken::Unusable)?;
        Ok(u32::try_from(list.len()).unwrap_or(u32::MAX))
    }

    /// Reports those of its keys that have ended. The device is strict.
    #[cold]
    pub(super) fn check_keys(&self, qp: &QpShared) {
        let keys = self.wr.buffer.keys();
        qp.check_keys(KeyUser::Request(self.wr.id), keys);
    }

    /// Does what a rule says to the receive taken last.
    #[cold]
    fn obey(&mut self, qp: &QpShared) -> Result<(), NotTaken<WcStatus>> {
        match self.rule.take() {
            Some(ReceiveRule::Fails { status, vendor }) => {
                qp.tell_vendor_error(vendor);
                Err(NotTaken::Unusable(status))
            }
            Some(ReceiveRule::Absent) | None => Ok(()),
        }
    }

    /// Returns as whom this stream takes a receive from a shared queue.
    fn taker(&self) -> Taker {
        match self.turn {
            ReceiveTurn::Now => Taker::First,
            ReceiveTurn::Later | ReceiveTurn::Review { .. } | ReceiveTurn::Over(_) => {
                Taker::Newcomer
            }
        }
    }

    /// Returns whether a receive work request is posted for this stream.
    pub(super) fn has_receive(&self, qp: &QpShared) -> bool {
        let taker = match &qp.receives {
            Receives::Own(_) => Taker::First,
            Receives::Shared(_) => self.taker(),
        };
        self.rule != Some(ReceiveRule::Absent) && qp.receives.queue().has_request(taker)
    }

    /// Completes the receive work request.
    ///
    /// # Errors
    ///
    /// [`Fault::Local`] if the completion queue of a process has no room: nobody will ever hear of
    /// the message.
    #[inline(always)]
    pub(super) fn complete(&self, qp: &QpShared, received: &Received) -> Result<(), Fault> {
        let origin = qp.origin();
        let mut octets = None;
        let (opcode, bytes, extra, solicited) = match *received {
            Received::Send(kind, len) => {
                let extra = match kind.extra {
                    SendExtra::None => WcExtra::None,
                    SendExtra::Invalidate(stag) => WcExtra::Invalidated(stag.raw()),
                    SendExtra::Immediate(octets) => WcExtra::Immediate(octets),
                };
                (WcOpcode::Recv, len, extra, kind.solicited)
            }
            Received::Immediate(immediate, written) => {
                octets = Some(immediate.data);
                let value = immediate_value(immediate.data);
                if value.truncated {
                    qp.device.stats.rx_immediate_truncated.inc();
                }
                let extra = WcExtra::Immediate(value.value);
                (
                    WcOpcode::RecvRdmaWithImm,
                    written,
                    extra,
                    immediate.solicited,
                )
            }
        };
        let completion = Completion {
            id: self.wr.id,
            status: WcStatus::Success,
            opcode,
            bytes,
            extra,
            immediate: octets,
            qpn: origin.qpn,
            qp: origin.qp,
            solicited: solicited == SendEvent::Solicit,
            vendor_err: origin.vendor_err_of(WcStatus::Success),
        };
        match post(qp, &completion) {
            Posted::Kept | Posted::LostToKernel => Ok(()),
            Posted::LostToProcess => Err(Fault::Local),
        }
    }

    /// Completes the receive work request with an error; the caller ends the stream.
    #[cold]
    pub(super) fn fail(&self, qp: &QpShared, status: WcStatus) {
        let origin = qp.origin();
        let completion = Completion {
            id: self.wr.id,
            status,
            opcode: WcOpcode::Recv,
            bytes: 0,
            extra: WcExtra::None,
            immediate: None,
            qpn: origin.qpn,
            qp: origin.qp,
            solicited: true,
            vendor_err: origin.vendor_err_of(status),
        };
        // The stream ends in any case.
        let _ = post(qp, &completion);
    }
}

fn post(qp: &QpShared, completion: &Completion) -> Posted {
    qp.trace_recv_complete(completion);
    qp.recv_cq.post(completion)
}

/// The part of the eight octets of Immediate Data that a completion holds.
#[derive(Debug, PartialEq, Eq)]
struct ImmediateValue {
    /// The four octets of the verbs.
    value: [u8; 4],
    /// The other four were not zero.
    truncated: bool,
}

/// Returns the first four octets, in which this and other devices send the value, unless these are
/// zero and the other four are not.
const fn immediate_value(data: [u8; Immediate::LEN]) -> ImmediateValue {
    match data {
        [0, 0, 0, 0, a, b, c, d] => ImmediateValue {
            value: [a, b, c, d],
            truncated: false,
        },
        [a, b, c, d, e, f, g, h] => ImmediateValue {
            value: [a, b, c, d],
            truncated: u32::from_be_bytes([e, f, g, h]) != 0,
        },
    }
}

#[kernel::prelude::kunit_tests(riwarp_recv)]
mod tests {
    use super::*;

    #[test]
    fn immediate_data_beyond_four_octets_is_reported_truncated() {
        let expected = |value: &[u8; 4], truncated| ImmediateValue {
            value: *value,
            truncated,
        };
        assert_eq!(immediate_value([0; 8]), expected(&[0; 4], false));
        assert_eq!(immediate_value(*b"abcd\0\0\0\0"), expected(b"abcd", false));
        assert_eq!(immediate_value(*b"\0\0\0\0abcd"), expected(b"abcd", false));
        for at in 4..8 {
            let mut data = *b"abcd\0\0\0\0";
            data[at] = 1;
            assert_eq!(immediate_value(data), expected(b"abcd", true));
        }
    }
}
