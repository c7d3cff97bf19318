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
use kernel_ext::rdma::wr::WcStatus;

use super::{
    fpdu::Fpdu,
    RxRound,
    RxStream,
    Stop, //
};
use crate::mem::sge::{
    NotCopied,
    Slice, //
};

impl RxStream {
    /// Places a segment of a Read Response.
    pub(crate) fn place_response(
        &mut self,
        round: &mut RxRound<'_, '_>,
        fpdu: &Fpdu,
        segment: &TaggedSegment,
    ) -> Result<(), Stop> {
        let (placement, sink) = round.qp.sq.read_response(segment)?;
        let payload = segment.payload;
        if payload.len != 0 {
            let sink = sink.ok_or(Fault::LocalPlacement)?;
            let piece = PayloadPiece {
                offset: placement.offset,
                pos: fpdu.payload_pos(payload),
                len: usize::from(payload.len),
            };
            if let Err(why) = round.place(&sink, &piece) {
                return Err(self.put_off_response(why, placement, sink, payload));
            }
        }
        round.answered(placement.complete);
        Ok(())
    }

    /// Takes what the target of an atomic operation of ours held before.
    pub(crate) fn take_atomic_response(
        &mut self,
        round: &mut RxRound<'_, '_>,
        response: Queued<AtomicResponse>,
    ) -> Result<(), Stop> {
        let (original, sink) = round.qp.sq.atomic_response(response)?;
        let sink = sink.ok_or(Fault::LocalPlacement)?;
        if let Err(why) = sink.put(round.qp.pd(), &original.to_ne_bytes(), round.off) {
            return Err(self.put_off_original(why, original, sink));
        }
        round.answered(true);
        Ok(())
    }
}

/// A part of the payload of an FPDU, and where it goes.
pub(crate) struct PayloadPiece {
    /// Octets into the buffer.
    pub(crate) offset: u32,
    /// Octets into TCP's receive queue.
    pub(crate) pos: usize,
    /// Octets.
    pub(crate) len: usize,
}

impl RxRound<'_, '_> {
    /// Copies octets from TCP into an element of a local list.
    #[inline(always)]
    pub(crate) fn place(&mut self, sink: &Slice, piece: &PayloadPiece) -> Result<(), NotCopied> {
        let PayloadPiece { offset, pos, len } = *piece;
        sink.place(self.qp.pd(), offset, self.inbound, pos, len, self.off)
    }

    /// An FPDU that answers the oldest outstanding Read or atomic operation was placed; with the
    /// last one, that operation is over.
    pub(crate) fn answered(&mut self, last: bool) {
        self.outcome.answers += 1;
        if last {
            self.end_read();
        }
    }

    /// The oldest outstanding Read or atomic operation is over.
    fn end_read(&mut self) {
        let qp = self.qp;
        self.outcome.completed = true;
        if let Some((slot, invalidate)) = qp.sq.read_done() {
            let status = match invalidate.map(|stag| qp.invalidate_local(stag)) {
                Some(Err(status)) => status,
                Some(Ok(())) | None => WcStatus::Success,
            };
            if let Some(slot) = slot {
                qp.sq.finish(slot, status, qp.origin());
            }
        }
        // Somebody may wait for it: a fenced request, one beyond ORD, or the end.
        self.outcome.kick |= qp.on(Event::ReadAnswered).contains(Actions::TRANSMIT);
    }
}
