// SPDX-License-Identifier: GPL-2.0

//! Answers of the peer: Read Responses and Atomic Responses.
//!
//! Context: softirq, or process with the socket locked.

use iwarp::{
    actions::After,
    atomic::AtomicResponse,
    fault::Fault,
    lifecycle::Event,
    receiver::{
        PayloadSpan,
        Queued,
        TaggedSegment, //
    }, //
};
use kernel_ext::{
    rdma::wr::WcStatus,
    warn_on_once, //
};

use super::{
    fpdu::Fpdu,
    paging::DeferredCopy,
    RxRound,
    RxStream,
    Stop, //
};
use crate::mem::sge::{
    NotCopied,
    SgeAccess,
    Slice, //
};

impl RxStream {
    /// Places a segment of a Read Response.
    pub(super) fn place_response(
        &mut self,
        round: &mut RxRound<'_, '_>,
        fpdu: &Fpdu,
        segment: &TaggedSegment,
    ) -> Result<(), Stop> {
        let (placement, sink) = round.qp.sq.read_response(segment)?;
        let payload = segment.payload;
        if payload.len != 0 {
            // Only a Read of no octets has none, and its Response with a payload was refused.
            let sink = sink_of(sink)?;
            let access = SgeAccess::sink(round.qp.pd(), round.off);
            let placed = round.place(fpdu, payload, &sink, access, placement.offset);
            if let Err(why) = placed {
                let step = DeferredCopy::Response(placement, sink, payload);
                return Err(self.put_off_answer(round, why, step));
            }
        }
        round.answered(placement.complete);
        Ok(())
    }

    /// Places the original value of an Atomic Response.
    pub(super) fn take_atomic_response(
        &mut self,
        round: &mut RxRound<'_, '_>,
        response: Queued<AtomicResponse>,
    ) -> Result<(), Stop> {
        let (original, sink) = round.qp.sq.atomic_response(response)?;
        // The transmit task sends no atomic operation without one.
        let sink = sink_of(sink)?;
        let access = SgeAccess::sink(round.qp.pd(), round.off);
        let octets = original.to_ne_bytes();
        let placed = sink.copy(access, 0, octets.len(), |inside, at| {
            Ok(inside.memory().write(at, &octets)?)
        });
        if let Err(why) = placed {
            return Err(self.put_off_answer(round, why, DeferredCopy::Original(original, sink)));
        }
        round.answered(true);
        Ok(())
    }
}

/// Returns the sink of a request that has one.
#[inline(always)]
fn sink_of(sink: Option<Slice>) -> Result<Slice, Fault> {
    warn_on_once!(sink.is_none());
    sink.ok_or(Fault::LocalPlacement)
}

impl RxRound<'_, '_> {
    /// Places the payload of an FPDU at `offset` of an element of a scatter/gather list.
    #[inline(always)]
    pub(super) fn place(
        &mut self,
        fpdu: &Fpdu,
        payload: PayloadSpan,
        sink: &Slice,
        access: SgeAccess<'_>,
        offset: u32,
    ) -> Result<(), NotCopied> {
        let (pos, len) = (fpdu.payload_pos(payload), usize::from(payload.len));
        sink.copy(access, offset, len, |inside, at| {
            let memory = inside.memory();
            Ok(memory.copy_from_inbound(at, self.inbound, pos, len)?)
        })
    }

    /// Counts an FPDU that answers the oldest outstanding Read or atomic operation; the last one
    /// completes the operation.
    pub(super) fn answered(&mut self, last: bool) {
        self.fpdus.answers += 1;
        if last {
            self.end_read();
        }
    }

    /// Completes the oldest outstanding Read or atomic operation.
    fn end_read(&mut self) {
        let qp = self.qp;
        self.after.insert(After::NotifyCompletions);
        let posted = qp.sq.oldest_posted_read();
        // A fenced request may begin once the Read is removed. It has to find the region invalid,
        // or the stream at its end.
        let refused = match posted {
            Some((slot, Some(stag))) => match qp.invalidate_local(stag) {
                Ok(()) => false,
                Err(status) => {
                    self.after.add(qp.refuse(slot, status));
                    true
                }
            },
            _ => false,
        };
        qp.sq.read_done();
        if let (Some((slot, _)), false) = (posted, refused) {
            qp.sq.finish(slot, WcStatus::Success, qp.origin());
        }
        // The transmit task may wait for it: with a fenced request, one beyond ORD, or the close.
        self.after.add(qp.apply(Event::ReadAnswered));
    }

    /// Completes the oldest outstanding Read or atomic operation with an error, because its sink
    /// cannot be written. It stays outstanding until the queue is flushed, so that no fenced
    /// request begins meanwhile. Returns the fault that the caller ends the stream for.
    #[cold]
    pub(super) fn refuse_answer(&self, status: WcStatus) -> Fault {
        let qp = self.qp;
        if let Some((slot, _)) = qp.sq.oldest_posted_read() {
            qp.sq.finish(slot, status, qp.origin());
        }
        Fault::LocalPlacement
    }
}
