// SPDX-License-Identifier: GPL-2.0

//! What the peer answers: Read Responses, and what the targets of atomic operations held before.
//!
//! Context: softirq, or process with the socket locked.

use iwarp::{
    atomic::AtomicResponse,
    fault::Fault,
    lifecycle::{
        Actions,
        Event, //
    },
    receiver::{
        Queued,
        TaggedSegment, //
    }, //
};
use kernel_ext::{
    net::Inbound,
    rdma::wr::WcStatus,
    sync::BhOff, //
};

use super::{
    Aftermath,
    RxStream,
    Stop, //
};
use crate::qp::Qp;

impl Qp {
    /// Places a segment of a Read Response.
    pub(super) fn place_response(
        &self,
        stream: &mut RxStream,
        inbound: &mut Inbound<'_>,
        ulpdu: usize,
        segment: &TaggedSegment,
        off: BhOff<'_>,
        aftermath: &mut Aftermath,
    ) -> Result<(), Stop> {
        let (placement, sink) = self.sq.read_response(segment)?;
        let payload = segment.payload;
        if payload.len != 0 {
            let pos = ulpdu + usize::from(payload.offset);
            let sink = sink.ok_or(Fault::LocalPlacement)?;
            let len = usize::from(payload.len);
            if let Err(why) = sink.place(self.pd(), placement.offset, inbound, pos, len, off) {
                return Err(stream.put_off_response(why, placement, sink, payload));
            }
        }
        self.answered(placement.complete, aftermath);
        Ok(())
    }

    /// Takes what the target of an atomic operation of ours held before.
    pub(super) fn take_atomic_response(
        &self,
        stream: &mut RxStream,
        response: Queued<AtomicResponse>,
        off: BhOff<'_>,
        aftermath: &mut Aftermath,
    ) -> Result<(), Stop> {
        let (original, sink) = self.sq.atomic_response(response)?;
        let sink = sink.ok_or(Fault::LocalPlacement)?;
        if let Err(why) = sink.put(self.pd(), &original.to_ne_bytes(), off) {
            return Err(stream.put_off_original(why, original, sink));
        }
        self.answered(true, aftermath);
        Ok(())
    }

    /// An FPDU that answers the oldest outstanding Read or atomic operation was placed; with the last one, that
    /// operation is over.
    pub(super) fn answered(&self, last: bool, aftermath: &mut Aftermath) {
        aftermath.answers += 1;
        if last {
            self.end_read(aftermath);
        }
    }

    /// The oldest outstanding Read or atomic operation is over.
    fn end_read(&self, aftermath: &mut Aftermath) {
        aftermath.completed = true;
        if let Some((slot, invalidate)) = self.sq.read_done() {
            let status = match invalidate.map(|stag| self.invalidate_local(stag)) {
                Some(Err(status)) => status,
                Some(Ok(())) | None => WcStatus::Success,
            };
            if let Some(slot) = slot {
                self.sq.finish(slot, status, self.origin());
            }
        }
        // Somebody may wait for it: a fenced request, one beyond ORD, or the end.
        aftermath.kick |= self.on(Event::ReadAnswered).contains(Actions::TRANSMIT);
    }
}
