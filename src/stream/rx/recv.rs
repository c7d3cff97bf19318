// SPDX-License-Identifier: GPL-2.0

//! Consumers of receive work requests: Sends, which fill the buffer, and Immediate Data.
//!
//! Context: softirq, or process with the socket locked.

use iwarp::{
    fault::Fault,
    order::{
        SendPlacement,
        SendProgress, //
    },
    rdmap::{
        Immediate,
        SendEvent,
        SendExtra, //
    },
    receiver::{
        QueueRoom,
        Queued,
        SendSegment, //
    }, //
};
use kernel_ext::{
    mm::mem_map::Memory,
    rdma::wr::{
        WcExtra,
        WcOpcode,
        WcStatus, //
    },
    warn_on_once, //
};

use super::{
    fpdu::Fpdu,
    waits::WaitingMessage,
    RxRound,
    RxStream,
    Stop,
    Written, //
};
use crate::{
    abi::wr::{
        Completion,
        RecvWr, //
    },
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
        rq::Taker, //
    },
    stream::owner::{
        QpShared,
        Receives, //
    }, //
};

/// A receive work request, filled in place.
#[derive(Default)]
pub(super) struct Incoming {
    wr: RecvWr,
    pub(super) buffer: Slices,
    buffer_len: u32,
    /// Progress of the current Send; [`None`] if no Send is in progress.
    progress: Option<SendProgress>,
    /// As whom this stream takes a receive from a shared queue.
    pub(super) taker: Taker,
}

impl Incoming {
    /// Returns the cookie of the receive work request that a Send has begun to fill.
    pub(super) fn begun(&self) -> Option<u64> {
        self.progress.is_some().then_some(self.wr.id)
    }

    /// Returns the buffer of the Send in progress, its length in octets, and the progress, if the
    /// buffer is one element.
    pub(super) fn under_way(&mut self) -> Option<(&Slice, u32, &mut SendProgress)> {
        let slice = self.buffer.only()?;
        Some((slice, self.buffer_len, self.progress.as_mut()?))
    }
}

/// Result of a receive work request.
struct Received {
    status: WcStatus,
    opcode: WcOpcode,
    bytes: u32,
    extra: WcExtra,
    solicited: SendEvent,
}

impl Received {
    /// Returns a result with an error status.
    fn failed(status: WcStatus) -> Self {
        Self {
            status,
            opcode: WcOpcode::Recv,
            bytes: 0,
            extra: WcExtra::None,
            solicited: SendEvent::Solicit,
        }
    }
}

impl RxStream {
    /// Places a segment of a Send.
    pub(super) fn place_send(
        &mut self,
        round: &mut RxRound<'_, '_>,
        fpdu: &Fpdu,
        segment: &SendSegment,
    ) -> Result<(), Stop> {
        let qp = round.qp;
        let Self {
            incoming, cache, ..
        } = self;
        let mut unchecked = false;
        if segment.first {
            self.written = Written::default();
            unchecked = match incoming.begin(qp, cache, segment) {
                Err(Fault::NoBuffer) => {
                    return Err(self.put_off_message(qp, WaitingMessage::Send(*segment)))
                }
                begun => begun?,
            };
        }
        let Some(progress) = &mut incoming.progress else {
            // The core lets no later segment pass unless a Send has begun and not ended.
            warn_on_once!(true);
            return Err(Stop::Fault(Fault::Local));
        };
        let placement = match progress.accept(segment, incoming.buffer_len) {
            Ok(placement) => placement,
            Err(fault) => return Err(incoming.refuse(qp, WcStatus::LocalLength, fault).into()),
        };
        let payload = segment.payload;
        if payload.len != 0 {
            let pos = fpdu.payload_pos(payload);
            let len = usize::from(payload.len);
            let access = SgeAccess::sink(qp.receive_pd(), round.off);
            let placed = match incoming.buffer.only() {
                // Checks all of the element, also what lies behind the octets.
                Some(slice) if unchecked => {
                    // CAST: 32 bits fit.
                    let all = slice.len as usize;
                    slice.copy(access, 0, all, |inside, at| {
                        if len > all {
                            return Err(WcStatus::LocalProtection.into());
                        }
                        let memory = inside.memory();
                        Ok(memory.copy_from_inbound(at, round.inbound, pos, len)?)
                    })
                }
                _ => {
                    let copy = |memory: &Memory, at, piece, done| {
                        // NO-OVERFLOW: inside the FPDU.
                        memory.copy_from_inbound(at, round.inbound, pos + done, piece)
                    };
                    incoming.buffer.copy(access, placement.offset, len, copy)
                }
            };
            match placed {
                Ok(()) => {}
                Err(NotCopied::Absent(done)) => {
                    return Err(self.put_off_send(segment, placement, done))
                }
                Err(NotCopied::Refused(status)) => {
                    return Err(incoming.refuse(qp, status, Fault::LocalPlacement).into())
                }
            }
        }
        Ok(incoming.deliver(qp, placement, segment)?)
    }

    /// Completes a receive work request with Immediate Data, which uses none of its buffer
    /// (EXT-66).
    pub(super) fn take_immediate(
        &mut self,
        qp: &QpShared,
        queued: Queued<Immediate>,
    ) -> Result<(), Stop> {
        let room = self.incoming.room(qp);
        if room == QueueRoom::Full && queued.admit(QueueRoom::Free).is_ok() {
            return Err(self.put_off_message(qp, WaitingMessage::Immediate(queued)));
        }
        let immediate = queued.admit(room)?;
        self.incoming.take_wr(qp)?;
        let immediate_value = immediate_value(immediate.data);
        if immediate_value.truncated {
            qp.device.stats.rx_immediate_truncated.inc();
        }
        Ok(complete_receive(
            qp,
            self.incoming.wr.id,
            Received {
                status: WcStatus::Success,
                opcode: WcOpcode::RecvRdmaWithImm,
                bytes: self.written.take(),
                extra: WcExtra::Immediate(immediate_value.value),
                solicited: immediate.solicited,
            },
        )?)
    }
}

impl Incoming {
    /// Finishes a placed segment of a Send: the last one completes the receive work request.
    #[inline(always)]
    pub(super) fn deliver(
        &mut self,
        qp: &QpShared,
        placement: SendPlacement,
        segment: &SendSegment,
    ) -> Result<(), Fault> {
        let Some(len) = placement.delivered else {
            return Ok(());
        };
        if let SendExtra::Invalidate(stag) = segment.kind.extra {
            if let Err(fault) = qp.invalidate_remote(stag) {
                return Err(self.refuse(qp, WcStatus::RemoteInvalidRequest, fault));
            }
        }
        self.progress = None;
        complete_receive(
            qp,
            self.wr.id,
            Received {
                status: WcStatus::Success,
                opcode: WcOpcode::Recv,
                bytes: len,
                extra: match segment.kind.extra {
                    SendExtra::None => WcExtra::None,
                    SendExtra::Invalidate(stag) => WcExtra::Invalidated(stag.raw()),
                    SendExtra::Immediate(octets) => WcExtra::Immediate(octets),
                },
                solicited: segment.kind.solicited,
            },
        )
    }

    /// Completes the receive work request of a Send with an error; returns `fault`.
    pub(super) fn refuse(&mut self, qp: &QpShared, status: WcStatus, fault: Fault) -> Fault {
        self.progress = None;
        fail_receive(qp, self.wr.id, status);
        fault
    }

    /// Dequeues a receive work request for a Send and resolves its list. Returns whether the list
    /// is still unchecked: for a list of one element and a Send of one segment, placing checks it.
    pub(super) fn begin(
        &mut self,
        qp: &QpShared,
        cache: &mut RegionCache,
        segment: &SendSegment,
    ) -> Result<bool, Fault> {
        self.take_wr(qp)?;
        let list = &self.wr.buffer;
        let whole = segment.last.is_last() && segment.payload.len != 0;
        let unchecked = whole && list.sges().len() == 1;
        let (buffer, regions) = (&mut self.buffer, &qp.regions);
        let found = if unchecked {
            buffer.find(list, regions, cache)
        } else {
            buffer.resolve(list, regions, qp.receive_pd(), LocalUse::Sink, cache)
        };
        if let Err(status) = found {
            return Err(self.refuse(qp, status, Fault::LocalPlacement));
        }
        self.buffer_len = u32::try_from(list.len()).unwrap_or(u32::MAX);
        self.progress = Some(SendProgress::new());
        Ok(unchecked)
    }

    /// Dequeues a receive work request.
    fn take_wr(&mut self, qp: &QpShared) -> Result<(), Fault> {
        let taken = match &qp.receives {
            Receives::Own(queue) => queue.take(&mut self.wr, Taker::First),
            Receives::Shared(srq) => srq.take(&mut self.wr, self.taker),
        };
        match taken {
            Some(Ok(())) => Ok(()),
            Some(Err(bad)) => {
                fail_receive(qp, bad.id, bad.status);
                Err(Fault::LocalPlacement)
            }
            None => Err(Fault::NoBuffer),
        }
    }

    /// Returns whether a receive work request is posted for this stream.
    fn room(&self, qp: &QpShared) -> QueueRoom {
        let taker = match &qp.receives {
            Receives::Own(_) => Taker::First,
            Receives::Shared(_) => self.taker,
        };
        if qp.receives.queue().has_request(taker) {
            QueueRoom::Free
        } else {
            QueueRoom::Full
        }
    }
}

/// Completes a receive work request with an error; the caller ends the stream.
fn fail_receive(qp: &QpShared, id: u64, status: WcStatus) {
    let _ = complete_receive(qp, id, Received::failed(status));
}

/// Completes a receive work request.
///
/// # Errors
///
/// The completion queue of a process has no room: nobody will ever hear of the message.
fn complete_receive(qp: &QpShared, id: u64, received: Received) -> Result<(), Fault> {
    let origin = qp.origin();
    let completion = Completion {
        id,
        status: received.status,
        opcode: received.opcode,
        bytes: received.bytes,
        extra: received.extra,
        qpn: origin.qpn,
        qp: origin.qp,
        solicited: received.solicited == SendEvent::Solicit,
        vendor_err: origin.vendor_err_of(received.status),
    };
    qp.trace_recv_complete(&completion);
    match qp.recv_cq.post(&completion) {
        Posted::Kept | Posted::LostToKernel => Ok(()),
        Posted::LostToProcess => Err(Fault::Local),
    }
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
    fn octets_that_no_completion_holds_are_noticed() {
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
