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
        peer::PeerAccess,
        sge::{
            NotCopied,
            SgeAccess,
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

impl From<WcStatus> for Halt {
    fn from(status: WcStatus) -> Self {
        Self::Refused(status)
    }
}

impl From<Fault> for Halt {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl RxStream {
    /// Defers a Write whose target is absent; returns other reasons.
    #[cold]
    pub(super) fn put_off_write(&mut self, why: Stop, segment: &TaggedSegment) -> Stop {
        match why {
            Stop::Absent => self.put_off(DeferredCopy::Write(*segment), 0),
            Stop::Fault(_) | Stop::NoReceive => why,
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
                let access = SgeAccess::sink(qp.receive_pd(), round.off);
                round.after.insert(After::NotifyCompletions);
                let payload = segment.payload;
                let len = usize::from(payload.len);
                let incoming = &mut self.incoming;
                let pos = fpdu.payload_pos(payload);
                // CAST: less than the payload of one FPDU. NO-OVERFLOW: inside the message.
                let (offset, left) = (placement.offset + *done as u32, len - *done);
                incoming.buffer.walk(offset, left, |slice, at, piece, _| {
                    let pos = pos + *done;
                    place_deferred(slice, access, at, piece, fetched, |memory, at| {
                        memory.copy_from_inbound(at, round.inbound, pos, piece)
                    })?;
                    *done += piece;
                    Ok::<_, Halt>(())
                })?;
                Ok(incoming.deliver(qp, *placement, segment)?)
            }
            DeferredCopy::Response(placement, sink, payload) => {
                let access = SgeAccess::sink(round.qp.pd(), round.off);
                let pos = fpdu.payload_pos(*payload);
                let (offset, len) = (placement.offset, usize::from(payload.len));
                place_deferred(sink, access, offset, len, fetched, |memory, at| {
                    memory.copy_from_inbound(at, round.inbound, pos, len)
                })?;
                round.answered(placement.complete);
                Ok(())
            }
            DeferredCopy::Original(original, sink) => {
                let octets = original.to_ne_bytes();
                let access = SgeAccess::sink(round.qp.pd(), round.off);
                place_deferred(sink, access, 0, octets.len(), fetched, |memory, at| {
                    memory.write(at, &octets)
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
        let access = PeerAccess::open(region, round.qp.stream_id(), Some(round.off));
        let access = access.ok_or(Fault::TaggedInvalidStag)?;
        access.write(segment, |inside, at| {
            let wanted = Wanted::new(region, inside, at, len, LocalUse::Sink);
            let copied = wanted.copy(inside, fetched, |memory, at| {
                memory.copy_from_inbound(at, round.inbound, pos, len)
            });
            copied.map_err(|error| match error {
                EAGAIN => Halt::Wants(wanted),
                ENOMEM => Halt::Fault(Fault::LocalPlacement),
                // The process has no memory mapped there.
                _ => Halt::Fault(Fault::TaggedBounds),
            })
        })
    }
}

/// Places octets in a part of a scatter/gather list by `copy(memory, offset)`: in the fetched
/// memory, if that is this part.
fn place_deferred(
    slice: &Slice,
    access: SgeAccess<'_>,
    offset: u32,
    len: usize,
    fetched: Option<&Fetched>,
    copy: impl FnOnce(&Memory, u64) -> Result,
) -> Result<(), Halt> {
    slice.copy(access, offset, len, |inside, at| {
        let wanted = Wanted::new(&slice.region, inside, at, len, LocalUse::Sink);
        let copied = wanted.copy(inside, fetched, copy);
        copied.map_err(|error| match error.into() {
            NotCopied::Absent(_) => Halt::Wants(wanted),
            NotCopied::Refused(status) => Halt::Refused(status),
        })
    })
}
