// SPDX-License-Identifier: GPL-2.0

//! FPDUs whose memory is not there.
//!
//! What enters: an FPDU that was found to be good, and was about to be placed where there is no page. It
//! stays in TCP's queue, and all behind it, while a work item brings the memory in: the order of the stream is
//! kept, its peer runs against the window, and no other stream is held up. What leaves: the rest of what there
//! was to be done for the FPDU. What was done for it already is in [`Deferred`], so nothing is done twice but
//! the copy.
//!
//! The memory that was brought in is pinned until it was copied to, so each FPDU waits once for each piece
//! of its memory, whatever the process does.
//!
//! Context: putting off: softirq, or process with the socket locked. Going on: process, the socket locked.

use iwarp::{
    fault::Fault,
    mpa,
    order::SendPlacement,
    readq::ReadPlacement,
    receiver::{
        Payload,
        SendSegment,
        TaggedSegment, //
    }, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};
use kernel_ext::{
    mm::place::Memory,
    net::Inbound,
    rdma::wr::WcStatus,
    sync::BhOff, //
};

use super::{
    fpdu::{
        Fpdu,
        FRONT_MAX, //
    },
    Aftermath,
    Flow,
    RxStream,
    Stop, //
};
use crate::{
    conn::Conn,
    mr::{
        LocalUse,
        Wanted, //
    },
    qp::Qp,
    sge::{
        NotCopied,
        Slice, //
    }, //
};

/// The FPDU in front of TCP's queue, and what has been done for it.
pub(super) struct Deferred {
    step: Step,
    /// Octets of its payload that are placed.
    done: usize,
}

/// What is left to be done: the copy, and what follows it.
enum Step {
    Write(TaggedSegment),
    Send(SendSegment, SendPlacement),
    Response(ReadPlacement, Slice, Payload),
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
    pub(super) fn put_off_write(&mut self, error: Error, segment: &TaggedSegment) -> Stop {
        if error == EAGAIN {
            self.put_off(Step::Write(*segment))
        } else {
            Stop::Fault(Fault::LocalPlacement)
        }
    }

    /// A Send has no memory to be placed in.
    #[cold]
    pub(super) fn put_off_send(&mut self, segment: &SendSegment, placement: SendPlacement) -> Stop {
        self.put_off(Step::Send(*segment, placement))
    }

    /// A Read Response was not placed.
    #[cold]
    pub(super) fn put_off_response(
        &mut self,
        why: NotCopied,
        placement: ReadPlacement,
        sink: Slice,
        payload: Payload,
    ) -> Stop {
        match why {
            NotCopied::Absent => self.put_off(Step::Response(placement, sink, payload)),
            NotCopied::Refused(_) => Stop::Fault(Fault::LocalPlacement),
        }
    }

    /// The answer to an atomic operation was not placed.
    #[cold]
    pub(super) fn put_off_original(&mut self, why: NotCopied, original: u64, sink: Slice) -> Stop {
        match why {
            NotCopied::Absent => self.put_off(Step::Original(original, sink)),
            NotCopied::Refused(_) => Stop::Fault(Fault::LocalPlacement),
        }
    }

    fn put_off(&mut self, step: Step) -> Stop {
        self.deferred = Some(Deferred { step, done: 0 });
        Stop::Absent
    }
}

impl Qp {
    /// The FPDU in front of TCP's queue has to wait.
    #[cold]
    pub(super) fn wait_for_memory(self: &Arc<Self>, stream: &mut RxStream) {
        stream.flow = Flow::Waiting;
        self.enqueue_paging_in();
    }

    /// Goes on with the FPDU that was put off, and then with the stream, if it is still that of `conn`.
    /// Returns what has to be brought in before it can.
    ///
    /// Context: process, the socket locked.
    pub(crate) fn resume(
        self: &Arc<Self>,
        conn: &Arc<Conn>,
        inbound: &mut Inbound<'_>,
        fetched: Option<&Fetched>,
    ) -> Option<Wanted> {
        let mut aftermath = Aftermath::default();
        let wanted = BhOff::run(|off| {
            let mut rx = off.lock(&self.rx);
            let stream = rx.stream.as_mut();
            let stream = stream
                .filter(|stream| stream.flow == Flow::Waiting && Arc::ptr_eq(&stream.conn, conn))?;
            Some(self.go_on(stream, inbound, fetched, off, &mut aftermath))
        })?;
        self.attend(aftermath, inbound);
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

    /// Takes the FPDU from TCP once all is done for it; returns what it still wants.
    fn go_on(
        self: &Arc<Self>,
        stream: &mut RxStream,
        inbound: &mut Inbound<'_>,
        fetched: Option<&Fetched>,
        off: BhOff<'_>,
        aftermath: &mut Aftermath,
    ) -> Option<Wanted> {
        let mut front = [0; FRONT_MAX];
        stream.flow = Flow::Going;
        let fpdu = Fpdu::at(inbound, 0, &mut front)?;
        let header = front.get(mpa::LENGTH_LEN..)?;
        let mut deferred = stream.deferred.take()?;
        match self.finish(stream, &mut deferred, inbound, fetched, off, aftermath) {
            Ok(()) => {
                stream.accepted(aftermath);
                self.count(aftermath, fpdu.len);
                inbound.consume(fpdu.len);
            }
            Err(Halt::Wants(wanted)) => {
                self.device().stats.rx_page_waits.inc();
                stream.flow = Flow::Waiting;
                stream.deferred = Some(deferred);
                return Some(wanted);
            }
            Err(Halt::Refused(_)) => {
                let fault = Fault::LocalPlacement;
                self.stop(stream, fault, header, fpdu.ulpdu_len, aftermath);
            }
            Err(Halt::Fault(fault)) => {
                self.stop(stream, fault, header, fpdu.ulpdu_len, aftermath);
            }
        }
        None
    }

    fn finish(
        &self,
        stream: &mut RxStream,
        deferred: &mut Deferred,
        inbound: &mut Inbound<'_>,
        fetched: Option<&Fetched>,
        off: BhOff<'_>,
        aftermath: &mut Aftermath,
    ) -> Result<(), Halt> {
        let Deferred { step, done } = deferred;
        match step {
            Step::Write(segment) => self.finish_write(stream, segment, inbound, fetched, off),
            Step::Send(segment, placement) => {
                aftermath.completed = true;
                let payload = segment.payload;
                let len = usize::from(payload.len);
                let incoming = &mut stream.incoming;
                while *done < len {
                    // CAST: less than the payload of one FPDU. NO-OVERFLOW: inside the message.
                    let offset = placement.offset + *done as u32;
                    let piece = incoming.buffer.first_piece(offset, len - *done);
                    let (slice, at, piece) =
                        piece.ok_or(Halt::Refused(WcStatus::LocalProtection))?;
                    let pos = payload_pos(payload) + *done;
                    match self.place_piece(&slice, at, inbound, pos, piece, fetched, off) {
                        Ok(()) => *done += piece,
                        Err(Halt::Refused(status)) => {
                            let fault = Fault::LocalPlacement;
                            return Err(self.refuse_send(incoming, status, fault).into());
                        }
                        Err(halt) => return Err(halt),
                    }
                }
                Ok(self.deliver_send(incoming, *placement, segment)?)
            }
            Step::Response(placement, sink, payload) => {
                let (pos, len) = (payload_pos(*payload), usize::from(payload.len));
                self.place_piece(sink, placement.offset, inbound, pos, len, fetched, off)?;
                self.answered(placement.complete, aftermath);
                Ok(())
            }
            Step::Original(original, sink) => {
                let octets = original.to_ne_bytes();
                self.with_fetched(sink, 0, octets.len(), fetched, |memory| match memory {
                    Some(memory) => sink.put_in(memory, self.pd(), &octets),
                    None => sink.put(self.pd(), &octets, off),
                })?;
                self.answered(true, aftermath);
                Ok(())
            }
        }
    }

    fn finish_write(
        &self,
        stream: &mut RxStream,
        segment: &TaggedSegment,
        inbound: &mut Inbound<'_>,
        fetched: Option<&Fetched>,
        off: BhOff<'_>,
    ) -> Result<(), Halt> {
        let region = stream
            .cache
            .get(self.device(), segment.stag)
            .ok_or(Fault::TaggedInvalidStag)?;
        let pos = payload_pos(segment.payload);
        let mut wanted = Wanted {
            region: region.clone(),
            at: 0,
            len: usize::from(segment.payload.len),
            usage: LocalUse::Sink,
        };
        let placed = self.inside_target(region, segment, off, |memory, at| {
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

    /// Places octets in a part of a local list.
    #[expect(clippy::too_many_arguments)]
    fn place_piece(
        &self,
        slice: &Slice,
        offset: u32,
        inbound: &mut Inbound<'_>,
        pos: usize,
        len: usize,
        fetched: Option<&Fetched>,
        off: BhOff<'_>,
    ) -> Result<(), Halt> {
        self.with_fetched(slice, offset, len, fetched, |memory| match memory {
            Some(memory) => slice.place_in(memory, self.pd(), offset, inbound, pos, len),
            None => slice.place(self.pd(), offset, inbound, pos, len, off),
        })
    }

    /// Calls `copy` with what was brought in, if it is what is wanted now.
    fn with_fetched(
        &self,
        slice: &Slice,
        offset: u32,
        len: usize,
        fetched: Option<&Fetched>,
        copy: impl FnOnce(Option<&Memory>) -> Result<(), NotCopied>,
    ) -> Result<(), Halt> {
        const REFUSED: Halt = Halt::Refused(WcStatus::LocalProtection);
        let wanted = slice.wanted(self.pd(), LocalUse::Sink, offset, len);
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
}

/// Where the payload of the FPDU in front lies.
fn payload_pos(payload: Payload) -> usize {
    mpa::LENGTH_LEN + usize::from(payload.offset)
}
