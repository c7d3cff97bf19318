// SPDX-License-Identifier: GPL-2.0

//! What uses up a receive work request: Sends, which fill its buffer, and Immediate Data.
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
        SendExtra,
        Solicited, //
    },
    receiver::{
        Queued,
        SendSegment, //
    }, //
};
use kernel_ext::{
    net::Inbound,
    rdma::wr::{
        WcExtra,
        WcOpcode,
        WcStatus, //
    },
    sync::BhOff, //
};

use super::{
    RxStream,
    Stop,
    Written, //
};
use crate::{
    mr::LocalUse,
    qp::Qp,
    sge::{
        NotCopied,
        RegionCache,
        Slices, //
    },
    wr::{
        Completion,
        RecvWr, //
    }, //
};

/// A receive work request, which is filled in where it stays.
#[derive(Default)]
pub(super) struct Incoming {
    wr: RecvWr,
    pub(super) buffer: Slices,
    buffer_len: u32,
    /// How far the current Send has filled it; [`None`] if there is none.
    progress: Option<SendProgress>,
}

impl Incoming {
    /// The cookie of the receive work request that a Send has begun to fill.
    pub(super) fn begun(&self) -> Option<u64> {
        self.progress.is_some().then_some(self.wr.id)
    }
}

/// How a receive work request ends.
struct Received {
    status: WcStatus,
    opcode: WcOpcode,
    bytes: u32,
    extra: WcExtra,
    solicited: Solicited,
}

impl Received {
    /// With an error.
    fn failed(status: WcStatus) -> Self {
        Self {
            status,
            opcode: WcOpcode::Recv,
            bytes: 0,
            extra: WcExtra::None,
            solicited: Solicited::Yes,
        }
    }
}

impl Qp {
    /// Places a segment of a Send.
    pub(super) fn place_send(
        &self,
        stream: &mut RxStream,
        inbound: &mut Inbound<'_>,
        ulpdu: usize,
        segment: &SendSegment,
        off: BhOff<'_>,
    ) -> Result<(), Stop> {
        let RxStream {
            incoming, cache, ..
        } = stream;
        let mut unchecked = false;
        if segment.first {
            stream.written = Written::default();
            unchecked = self.next_receive(incoming, cache, segment)?;
        }
        let Some(progress) = &mut incoming.progress else {
            return Err(Stop::Fault(Fault::NoBuffer));
        };
        let placement = match progress.accept(segment, incoming.buffer_len) {
            Ok(placement) => placement,
            Err(fault) => {
                return Err(self
                    .refuse_send(incoming, WcStatus::LocalLength, fault)
                    .into())
            }
        };
        let payload = segment.payload;
        if payload.len != 0 {
            let pos = ulpdu + usize::from(payload.offset);
            let len = usize::from(payload.len);
            let (buffer, pd) = (&incoming.buffer, self.pd());
            let placed = if unchecked {
                buffer.place_first(pd, inbound, pos, len, off)
            } else {
                buffer.place(pd, placement.offset, inbound, pos, len, off)
            };
            match placed {
                Ok(()) => {}
                Err(NotCopied::Absent) => return Err(stream.put_off_send(segment, placement)),
                Err(NotCopied::Refused(status)) => {
                    return Err(self
                        .refuse_send(incoming, status, Fault::LocalPlacement)
                        .into())
                }
            }
        }
        Ok(self.deliver_send(incoming, placement, segment)?)
    }

    /// Goes on when a segment of a Send is placed: completes the receive work request behind the last one.
    #[inline(always)]
    pub(super) fn deliver_send(
        &self,
        incoming: &mut Incoming,
        placement: SendPlacement,
        segment: &SendSegment,
    ) -> Result<(), Fault> {
        let Some(len) = placement.delivered else {
            return Ok(());
        };
        if let SendExtra::Invalidate(stag) = segment.kind.extra {
            if let Err(fault) = self.invalidate_remote(stag) {
                return Err(self.refuse_send(incoming, WcStatus::RemoteInvalidRequest, fault));
            }
        }
        incoming.progress = None;
        self.complete_receive(
            incoming.wr.id,
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
        );
        Ok(())
    }

    /// Ends the receive work request of a Send with an error; returns `fault`.
    pub(super) fn refuse_send(
        &self,
        incoming: &mut Incoming,
        status: WcStatus,
        fault: Fault,
    ) -> Fault {
        incoming.progress = None;
        self.complete_receive(incoming.wr.id, Received::failed(status));
        fault
    }

    /// Takes the next receive work request.
    fn take_wr(&self, wr: &mut RecvWr) -> Result<(), Fault> {
        match self.take_receive(wr) {
            Some(Ok(())) => Ok(()),
            Some(Err(bad)) => {
                self.complete_receive(bad.id, Received::failed(bad.status));
                Err(Fault::LocalPlacement)
            }
            None => Err(Fault::NoBuffer),
        }
    }

    /// Takes the next receive work request for a Send and resolves its list. Returns whether that is
    /// still to be checked: a list of one element, for a Send of one segment, is when that is placed.
    pub(super) fn next_receive(
        &self,
        incoming: &mut Incoming,
        cache: &mut RegionCache,
        segment: &SendSegment,
    ) -> Result<bool, Fault> {
        self.take_wr(&mut incoming.wr)?;
        let list = &incoming.wr.buffer;
        let whole = segment.last.is_last() && segment.payload.len != 0;
        let unchecked = whole && list.sges().len() == 1;
        let (buffer, device) = (&mut incoming.buffer, self.device());
        let found = if unchecked {
            buffer.find(list, device, cache)
        } else {
            buffer.resolve(list, device, self.pd(), LocalUse::Sink, cache)
        };
        if let Err(status) = found {
            return Err(self.refuse_send(incoming, status, Fault::LocalPlacement));
        }
        incoming.buffer_len = u32::try_from(list.len()).unwrap_or(u32::MAX);
        incoming.progress = Some(SendProgress::new());
        Ok(unchecked)
    }

    /// Takes Immediate Data, which uses a receive work request up and nothing of its buffer (EXT-66).
    pub(super) fn take_immediate(
        &self,
        stream: &mut RxStream,
        queued: Queued<Immediate>,
    ) -> Result<(), Fault> {
        let immediate = queued.admit(self.receive_room())?;
        let wr = &mut stream.incoming.wr;
        self.take_wr(wr)?;
        let told = immediate_value(immediate.data);
        if told.truncated {
            self.device().stats.rx_immediate_truncated.inc();
        }
        self.complete_receive(
            wr.id,
            Received {
                status: WcStatus::Success,
                opcode: WcOpcode::RecvRdmaWithImm,
                bytes: stream.written.take(),
                extra: WcExtra::Immediate(told.value),
                solicited: immediate.solicited,
            },
        );
        Ok(())
    }

    fn complete_receive(&self, id: u64, received: Received) {
        let origin = self.origin();
        self.recv_cq().post(&Completion {
            id,
            status: received.status,
            opcode: received.opcode,
            bytes: received.bytes,
            extra: received.extra,
            qpn: origin.qpn,
            qp: origin.qp,
            solicited: received.solicited == Solicited::Yes,
            vendor_err: origin.vendor_err_of(received.status),
        });
    }
}

/// What a completion has of the eight octets of Immediate Data.
#[derive(Debug, PartialEq, Eq)]
struct Told {
    /// The four octets of the verbs.
    value: [u8; 4],
    /// The other four were not zero.
    truncated: bool,
}

/// Returns the first four octets, which this and other devices send the value in, unless these are
/// zero and the others are not.
const fn immediate_value(data: [u8; Immediate::LEN]) -> Told {
    match data {
        [0, 0, 0, 0, a, b, c, d] => Told {
            value: [a, b, c, d],
            truncated: false,
        },
        [a, b, c, d, e, f, g, h] => Told {
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
        let told = |value: &[u8; 4], truncated| Told {
            value: *value,
            truncated,
        };
        assert_eq!(immediate_value([0; 8]), told(&[0; 4], false));
        assert_eq!(immediate_value(*b"abcd\0\0\0\0"), told(b"abcd", false));
        assert_eq!(immediate_value(*b"\0\0\0\0abcd"), told(b"abcd", false));
        for at in 4..8 {
            let mut data = *b"abcd\0\0\0\0";
            data[at] = 1;
            assert_eq!(immediate_value(data), told(b"abcd", true));
        }
    }
}
