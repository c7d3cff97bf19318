// SPDX-License-Identifier: GPL-2.0

//! FPDUs whose memory is not there.
//!
//! What enters: an FPDU that was found to be good, and was about to be placed where there is no
//! page. It stays in TCP's queue, and all behind it, while a work item brings the memory in: the
//! order of the stream is kept, its peer runs against the window, and no other stream is held up.
//! What leaves: the rest of what there was to be done for the FPDU. What was done for it already is
//! in [`Deferred`], so nothing is done twice but the copy.
//!
//! The memory that was brought in is pinned until it was copied to, so each FPDU waits once for
//! each piece of its memory, whatever the process does.
//!
//! Context: putting off: softirq, or process with the socket locked. Going on: process, the socket
//! locked.

use core::ops::Range;

use iwarp::{
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
use kernel::{
    prelude::*,
    sync::Arc, //
};
use kernel_ext::{
    mm::mem_map::Memory,
    net::Inbound,
    rdma::wr::WcStatus,
    sync::BhOff, //
};

use crate::stream::rx::{
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
    cm::conn::Conn,
    device::context::PdId,
    mem::{
        mr::LocalUse,
        sge::{
            NotCopied,
            Slice, //
        }, //
    },
    odp::mr::Wanted,
    qp::Qp, //
};

/// The FPDU in front of TCP's queue, and what has been done for it.
pub(crate) struct Deferred {
    step: DeferredCopy,
    /// Octets of its payload that are placed.
    done: usize,
}

/// What is left to be done: the copy, and what follows it.
enum DeferredCopy {
    Write(TaggedSegment),
    Send(SendSegment, SendPlacement),
    Response(ReadPlacement, Slice, PayloadSpan),
    /// What the target of an atomic operation of ours held before.
    Original(u64, Slice),
}

/// Memory that was brought in for an FPDU of a stream.
pub(crate) struct Fetched {
    wanted: Wanted,
    memory: Result<Memory>,
}

impl Fetched {
    /// Brings it in.
    ///
    /// Context: process; takes as long as page faults do.
    pub(crate) fn new(wanted: Wanted) -> Self {
        let memory = wanted.fetch();
        Self { wanted, memory }
    }
}

/// Why an FPDU that was put off is not placed.
enum Halt {
    /// This has to be brought in first.
    Wants(Wanted),
    /// The local list is at fault.
    Refused(WcStatus),
    /// It is at fault.
    Fault(Fault),
}

impl From<Fault> for Halt {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl RxStream {
    /// A Write was not placed.
    #[cold]
    pub(crate) fn put_off_write(&mut self, error: Error, segment: &TaggedSegment) -> Stop {
        if error == EAGAIN {
            self.put_off(DeferredCopy::Write(*segment))
        } else {
            Stop::Fault(Fault::LocalPlacement)
        }
    }

    /// A Send has no memory to be placed in.
    #[cold]
    pub(crate) fn put_off_send(&mut self, segment: &SendSegment, placement: SendPlacement) -> Stop {
        self.put_off(DeferredCopy::Send(*segment, placement))
    }

    /// A Read Response was not placed.
    #[cold]
    pub(crate) fn put_off_response(
        &mut self,
        why: NotCopied,
        placement: ReadPlacement,
        sink: Slice,
        payload: PayloadSpan,
    ) -> Stop {
        match why {
            NotCopied::Absent => self.put_off(DeferredCopy::Response(placement, sink, payload)),
            NotCopied::Refused(_) => Stop::Fault(Fault::LocalPlacement),
        }
    }

    /// The answer to an atomic operation was not placed.
    #[cold]
    pub(crate) fn put_off_original(&mut self, why: NotCopied, original: u64, sink: Slice) -> Stop {
        match why {
            NotCopied::Absent => self.put_off(DeferredCopy::Original(original, sink)),
            NotCopied::Refused(_) => Stop::Fault(Fault::LocalPlacement),
        }
    }

    fn put_off(&mut self, step: DeferredCopy) -> Stop {
        self.deferred = Some(Deferred { step, done: 0 });
        Stop::Absent
    }
}

impl Qp {
    /// Goes on with the FPDU that was put off, and then with the stream, if it is still that of
    /// `conn`. Returns what has to be brought in before it can.
    ///
    /// Context: process, the socket locked.
    pub(crate) fn resume(
        self: &Arc<Self>,
        conn: &Arc<Conn>,
        inbound: &mut Inbound<'_>,
        fetched: Option<&Fetched>,
    ) -> Option<Wanted> {
        let wanted = BhOff::run(|off| {
            let mut round = RxRound::new(self, inbound, off);
            let wanted = {
                let mut rx = off.lock(&self.rx);
                let stream = rx.stream.as_mut().filter(|stream| {
                    stream.flow == Flow::Waiting && Arc::ptr_eq(&stream.conn, conn)
                })?;
                stream.go_on(&mut round, fetched)
            };
            round.end();
            Some(wanted)
        })?;
        if wanted.is_none() {
            // With what is behind it. The lock was given back, so the stream may be another one by
            // now.
            BhOff::run(|off| self.more_from(conn, inbound, off));
        }
        wanted
    }

    /// Whether an FPDU waits for its memory.
    pub(crate) fn is_paging_in(&self) -> bool {
        let rx = self.rx.lock();
        rx.stream
            .as_ref()
            .is_some_and(|stream| stream.flow == Flow::Waiting)
    }
}

impl RxStream {
    /// The FPDU in front of TCP's queue has to wait.
    #[cold]
    pub(crate) fn wait_for_memory(&mut self, qp: &Arc<Qp>) {
        self.flow = Flow::Waiting;
        qp.enqueue_paging_in();
    }

    /// Takes the FPDU from TCP once all is done for it; returns what it still wants.
    fn go_on(&mut self, round: &mut RxRound<'_, '_>, fetched: Option<&Fetched>) -> Option<Wanted> {
        let mut front = [0; FRONT_MAX];
        self.flow = Flow::Going;
        let fpdu = Fpdu::at(round.inbound, 0, &mut front)?;
        let header = front.get(mpa::LENGTH_LEN..)?;
        let mut deferred = self.deferred.take()?;
        match self.finish(round, &fpdu, &mut deferred, fetched) {
            Ok(()) => {
                self.accepted(&mut round.outcome);
                round.count(fpdu.len);
                round.inbound.consume(fpdu.len);
            }
            Err(Halt::Wants(wanted)) => {
                round.qp.device().stats.rx_page_waits.inc();
                self.flow = Flow::Waiting;
                self.deferred = Some(deferred);
                return Some(wanted);
            }
            Err(Halt::Refused(_)) => self.stop(round, Fault::LocalPlacement, &fpdu, header),
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
                round.outcome.completed = true;
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
                    match round.place_piece(&slice, &PayloadPiece { offset, pos, len }, fetched) {
                        Ok(()) => *done += len,
                        Err(Halt::Refused(status)) => {
                            let fault = Fault::LocalPlacement;
                            return Err(incoming.refuse(qp, status, fault).into());
                        }
                        Err(halt) => return Err(halt),
                    }
                }
                Ok(incoming.deliver(qp, *placement, segment)?)
            }
            DeferredCopy::Response(placement, sink, payload) => {
                let piece = PayloadPiece {
                    offset: placement.offset,
                    pos: fpdu.payload_pos(*payload),
                    len: usize::from(payload.len),
                };
                round.place_piece(sink, &piece, fetched)?;
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
            .get(round.qp.device(), segment.stag)
            .ok_or(Fault::TaggedInvalidStag)?;
        let pos = fpdu.payload_pos(segment.payload);
        let mut wanted = Wanted {
            region: region.clone(),
            at: 0,
            len: usize::from(segment.payload.len),
            usage: LocalUse::Sink,
        };
        let placed = round.inside_target(region, segment, |memory, at, inbound| {
            wanted.at = at;
            match fetched.filter(|fetched| fetched.wanted.is(&wanted)) {
                Some(Fetched { memory, .. }) => match memory {
                    Ok(memory) => memory.copy_from_inbound(0, inbound, pos, wanted.len),
                    Err(error) => Err(*error),
                },
                None => memory.copy_from_inbound(at, inbound, pos, wanted.len),
            }
        })?;
        match placed {
            Ok(()) => Ok(()),
            Err(error) if error == EAGAIN => Err(Halt::Wants(wanted)),
            // The process has nothing there.
            Err(_) => Err(Halt::Fault(Fault::TaggedBounds)),
        }
    }
}

impl RxRound<'_, '_> {
    /// Places octets in a part of a local list.
    fn place_piece(
        &mut self,
        slice: &Slice,
        piece: &PayloadPiece,
        fetched: Option<&Fetched>,
    ) -> Result<(), Halt> {
        let pd = self.qp.pd();
        let PayloadPiece { offset, pos, len } = *piece;
        // CAST: widens; 64-bit machines only.
        let range = offset as usize..offset as usize + len;
        with_fetched(pd, slice, range, fetched, |memory| match memory {
            Some(memory) => slice.place_in(memory, pd, offset, self.inbound, pos, len),
            None => self.place(slice, piece),
        })
    }
}

/// Calls `copy` with what was brought in, if it is the range of the slice that is wanted now.
fn with_fetched(
    pd: PdId,
    slice: &Slice,
    range: Range<usize>,
    fetched: Option<&Fetched>,
    copy: impl FnOnce(Option<&Memory>) -> Result<(), NotCopied>,
) -> Result<(), Halt> {
    const REFUSED: Halt = Halt::Refused(WcStatus::LocalProtection);
    // CAST: below 2^32, since it comes from the callers' offsets.
    let wanted = slice.wanted(pd, LocalUse::Sink, range.start as u32, range.len());
    let wanted = wanted.ok_or(REFUSED)?;
    let memory = match fetched.filter(|fetched| fetched.wanted.is(&wanted)) {
        Some(Fetched { memory, .. }) => Some(memory.as_ref().map_err(|_| REFUSED)?),
        None => None,
    };
    copy(memory).map_err(|why| match why {
        NotCopied::Absent => Halt::Wants(wanted),
        NotCopied::Refused(status) => Halt::Refused(status),
    })
}
