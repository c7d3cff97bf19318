// SPDX-License-Identifier: GPL-2.0

//! Incoming FPDUs whose memory is absent.
//!
//! If a good FPDU is to be placed in an absent page, it stays in TCP's queue, with all data that
//! follows it, while a work item fetches the memory. This keeps the order of the stream, lets the
//! TCP window stop the peer, and delays no other stream. Then the rest of the FPDU is processed:
//! [`Deferred`] records what was done already, so only the copy is repeated.
//!
//! The fetched memory stays pinned until the copy is made, so each FPDU waits once for each piece
//! of its memory, whichever pages the process takes away. If the process binds a window anew
//! meanwhile, the FPDU waits for the memory that the window refers to now.
//!
//! Context: deferring: softirq, or process with the socket locked. Resuming: process, the socket
//! locked.

use core::ops::Range;

use iwarp::{
    actions::After,
    fault::Fault,
    mpa,
    order::SendPlacement,
    readq::ReadPlacement,
    receiver::{
        PayloadSpan,
        SendSegment,
        TaggedSegment, //
    }, //
};
use kernel::prelude::*;
use kernel_ext::{
    mm::mem_map::Memory,
    rdma::wr::WcStatus,
    warn_on_once, //
};

use super::{
    answers::PayloadPiece,
    fpdu::{
        Fpdu,
        FRONT_MAX, //
    },
    Flow,
    RxRound,
    RxStream,
    Stop, //
};
use crate::{
    mem::{
        mr::LocalUse,
        pd::PdId,
        sge::{
            NotCopied,
            Slice, //
        }, //
    },
    odp::mr::{
        Fetched,
        Wanted, //
    },
};

/// The deferred FPDU, the first in TCP's queue, and what was done for it.
pub(super) struct Deferred {
    step: DeferredCopy,
    /// Number of octets of its payload that are placed.
    done: usize,
}

/// What remains to be done: the copy, and what follows it.
pub(super) enum DeferredCopy {
    Write(TaggedSegment),
    Send(SendSegment, SendPlacement),
    Response(ReadPlacement, Slice, PayloadSpan),
    /// The original value in the answer to a local atomic operation.
    Original(u64, Slice),
}

/// Why a deferred FPDU is not placed.
enum Halt {
    /// This range has to be fetched first.
    Wants(Wanted),
    /// The local scatter/gather list is at fault.
    Refused(WcStatus),
    /// The FPDU is at fault.
    Fault(Fault),
}

impl From<Fault> for Halt {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl RxStream {
    /// Defers a Write whose target is absent; other errors are faults.
    #[cold]
    pub(super) fn put_off_write(&mut self, error: Error, segment: &TaggedSegment) -> Stop {
        if error == EAGAIN {
            self.put_off(DeferredCopy::Write(*segment), 0)
        } else {
            Stop::Fault(Fault::LocalPlacement)
        }
    }

    /// Defers a Send of which the buffer is absent from `done` octets of the segment on.
    #[cold]
    pub(super) fn put_off_send(
        &mut self,
        segment: &SendSegment,
        placement: SendPlacement,
        done: usize,
    ) -> Stop {
        self.put_off(DeferredCopy::Send(*segment, placement), done)
    }

    /// Defers a Read Response or Atomic Response whose sink is absent; other errors end the
    /// request.
    #[cold]
    pub(super) fn put_off_answer(
        &mut self,
        round: &RxRound<'_, '_>,
        why: NotCopied,
        step: DeferredCopy,
    ) -> Stop {
        match why {
            NotCopied::Absent(done) => self.put_off(step, done),
            NotCopied::Refused(status) => round.refuse_answer(status).into(),
        }
    }

    fn put_off(&mut self, step: DeferredCopy, done: usize) -> Stop {
        self.deferred = Some(Deferred { step, done });
        Stop::Absent
    }
}

impl RxStream {
    /// Suspends the receiver until the memory of the first FPDU in TCP's queue is fetched.
    #[cold]
    pub(super) fn wait_for_memory(&mut self, round: &mut RxRound<'_, '_>) {
        self.flow = Flow::Waiting;
        round.after.insert(After::FetchIn);
    }

    /// Finishes the deferred FPDU and consumes it; returns the range it still needs, if any.
    pub(crate) fn go_on(
        &mut self,
        round: &mut RxRound<'_, '_>,
        fetched: Option<&Fetched>,
    ) -> Option<Wanted> {
        let mut front = [0; FRONT_MAX];
        self.flow = Flow::Going;
        let fpdu = Fpdu::at(round.inbound, 0, &mut front)?;
        let header = front.get(mpa::LENGTH_LEN..)?;
        let Some(mut deferred) = self.deferred.take() else {
            // Both are set under the receive lock: that an FPDU waits, and which one.
            warn_on_once!(true);
            self.stop(round, Fault::Local, &fpdu, header);
            return None;
        };
        match self.finish(round, &fpdu, &mut deferred, fetched) {
            Ok(()) => {
                self.accepted(round);
                round.count(fpdu.len);
                round.inbound.consume(fpdu.len);
            }
            Err(Halt::Wants(wanted)) => {
                round.qp.device.stats.rx_page_waits.inc();
                self.flow = Flow::Waiting;
                self.deferred = Some(deferred);
                return Some(wanted);
            }
            Err(Halt::Refused(status)) => {
                let local = Fault::LocalPlacement;
                let fault = match deferred.step {
                    DeferredCopy::Write(_) => local,
                    DeferredCopy::Send(..) => self.incoming.refuse(round.qp, status, local),
                    DeferredCopy::Response(..) | DeferredCopy::Original(..) => {
                        round.refuse_answer(status)
                    }
                };
                self.stop(round, fault, &fpdu, header);
            }
            Err(Halt::Fault(fault)) => self.stop(round, fault, &fpdu, header),
        }
        None
    }

    fn finish(
        &mut self,
        round: &mut RxRound<'_, '_>,
        fpdu: &Fpdu,
        deferred: &mut Deferred,
        fetched: Option<&Fetched>,
    ) -> Result<(), Halt> {
        let Deferred { step, done } = deferred;
        match step {
            DeferredCopy::Write(segment) => self.finish_write(round, fpdu, segment, fetched),
            DeferredCopy::Send(segment, placement) => {
                let qp = round.qp;
                let pd = qp.receive_pd();
                round.after.insert(After::NotifyCompletions);
                let payload = segment.payload;
                let len = usize::from(payload.len);
                let incoming = &mut self.incoming;
                while *done < len {
                    // CAST: less than the payload of one FPDU. NO-OVERFLOW: inside the message.
                    let offset = placement.offset + *done as u32;
                    let piece = incoming.buffer.first_piece(offset, len - *done);
                    let (slice, offset, len) =
                        piece.ok_or(Halt::Refused(WcStatus::LocalProtection))?;
                    let pos = fpdu.payload_pos(payload) + *done;
                    round.place_piece(&slice, pd, &PayloadPiece { offset, pos, len }, fetched)?;
                    *done += len;
                }
                Ok(incoming.deliver(qp, *placement, segment)?)
            }
            DeferredCopy::Response(placement, sink, payload) => {
                let piece = PayloadPiece {
                    offset: placement.offset,
                    pos: fpdu.payload_pos(*payload),
                    len: usize::from(payload.len),
                };
                round.place_piece(sink, round.qp.pd(), &piece, fetched)?;
                round.answered(placement.complete);
                Ok(())
            }
            DeferredCopy::Original(original, sink) => {
                let octets = original.to_ne_bytes();
                let (pd, off) = (round.qp.pd(), round.off);
                with_fetched(pd, sink, 0..octets.len(), fetched, |memory| match memory {
                    Some(memory) => sink.put_in(memory, pd, &octets),
                    None => sink.put(pd, &octets, off),
                })?;
                round.answered(true);
                Ok(())
            }
        }
    }

    fn finish_write(
        &mut self,
        round: &mut RxRound<'_, '_>,
        fpdu: &Fpdu,
        segment: &TaggedSegment,
        fetched: Option<&Fetched>,
    ) -> Result<(), Halt> {
        let region = self
            .cache
            .get(&round.qp.regions, segment.stag)
            .ok_or(Fault::TaggedInvalidStag)?;
        let pos = fpdu.payload_pos(segment.payload);
        let len = usize::from(segment.payload.len);
        let mut wants = None;
        let placed = round.inside_target(region, segment, |inside, at, inbound| {
            let wanted = wants.insert(Wanted::new(region, inside, at, len, LocalUse::Sink));
            match fetched.and_then(|fetched| fetched.memory_of(wanted)) {
                Some(memory) => memory?.copy_from_inbound(0, inbound, pos, len),
                None => inside.memory().copy_from_inbound(at, inbound, pos, len),
            }
        })?;
        match (placed, wants) {
            (Ok(()), _) => Ok(()),
            (Err(EAGAIN), Some(wanted)) => Err(Halt::Wants(wanted)),
            (Err(ENOMEM), _) => Err(Halt::Fault(Fault::LocalPlacement)),
            // The process has no memory mapped there.
            (Err(_), _) => Err(Halt::Fault(Fault::TaggedBounds)),
        }
    }
}

impl RxRound<'_, '_> {
    /// Places octets in a part of a scatter/gather list.
    fn place_piece(
        &mut self,
        slice: &Slice,
        pd: PdId,
        piece: &PayloadPiece,
        fetched: Option<&Fetched>,
    ) -> Result<(), Halt> {
        let PayloadPiece { offset, pos, len } = *piece;
        // CAST: widens; 64-bit machines only.
        let range = offset as usize..offset as usize + len;
        with_fetched(pd, slice, range, fetched, |memory| match memory {
            Some(memory) => slice.place_in(memory, pd, offset, self.inbound, pos, len),
            None => self.place(slice, pd, piece),
        })
    }
}

/// Calls `copy` with the fetched memory, if that is the range of the slice to copy to now.
fn with_fetched(
    pd: PdId,
    slice: &Slice,
    range: Range<usize>,
    fetched: Option<&Fetched>,
    copy: impl FnOnce(Option<&Memory>) -> Result<(), NotCopied>,
) -> Result<(), Halt> {
    // CAST: below 2^32, since it comes from the callers' offsets.
    let wanted = slice.wanted(pd, LocalUse::Sink, range.start as u32, range.len());
    let wanted = wanted.ok_or(Halt::Refused(WcStatus::LocalProtection))?;
    let copied = match fetched.and_then(|fetched| fetched.memory_of(&wanted)) {
        Some(Ok(memory)) => copy(Some(memory)),
        Some(Err(error)) => Err(error.into()),
        None => copy(None),
    };
    copied.map_err(|why| match why {
        NotCopied::Absent(_) => Halt::Wants(wanted),
        NotCopied::Refused(status) => Halt::Refused(status),
    })
}
