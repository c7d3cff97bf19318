// SPDX-License-Identifier: GPL-2.0

//! The sorting room: which message goes out next.
//!
//! Requests of the peer, for a Read or an atomic operation, and the send queue take turns. A request
//! becomes a message here: its keys become regions, and fence and ORD are asked; what needs no message
//! is done on the spot.
//!
//! Context: the transmitter's.

use iwarp::{
    atomic::{
        AtomicOperation,
        AtomicRequest,
        AtomicResponse,
        TARGET_LEN, //
    },
    ddp::UntaggedHeader,
    fault::Fault,
    lifecycle::Event,
    mpa::negotiate::Rtr,
    rdmap::{
        Extensions,
        Immediate,
        ReadRequest,
        SendExtra,
        SendKind,
        Solicited, //
    },
    readq::{
        Outstanding,
        ReadState, //
    },
    segment::{
        Message,
        Segmenter, //
    },
    stag::{
        Stag,
        TaggedOffset, //
    },
    terminate::Terminate, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};
use kernel_ext::rdma::wr::WcStatus;

use crate::{
    mr::LocalUse,
    qp::Qp,
    readq::{
        InboundAtomic,
        InboundRequest, //
    },
    sge::Slice,
    sq::{
        Slot,
        Taken, //
    },
    wr::{
        Payload,
        SendOp,
        SendWr, //
    }, //
};

use super::{
    Desk,
    Filled,
    Job,
    Outgoing,
    Source,
    Turn,
    TxStream, //
};

#[cfg(CONFIG_KUNIT = "y")]
mod tests;

/// Requests that are done without a message before others have their turn.
const WITHOUT_MESSAGE: u32 = 64;

impl Qp {
    /// Chooses the next message, or says why none can go out now.
    pub(super) fn next_message(self: &Arc<Self>, stream: &mut TxStream) -> Result<(), Filled> {
        if let Some(rtr) = stream.rtr.take() {
            stream.current = Some(self.rtr(&mut stream.desk, rtr));
            return Ok(());
        }
        // MPA-9: a responder is silent until the initiator's first FPDU.
        if !self.lifecycle().may_send() {
            return Err(Filled::Drained);
        }
        let found = match stream.turn {
            Turn::Responses => self
                .next_response(stream)
                .or_else(|_| self.next_request(stream)),
            Turn::Requests => self
                .next_request(stream)
                .or_else(|why| self.next_response(stream).map_err(|_| why)),
        };
        stream.turn = match stream.turn {
            Turn::Responses => Turn::Requests,
            Turn::Requests => Turn::Responses,
        };
        found
    }

    #[inline]
    fn next_response(self: &Arc<Self>, stream: &mut TxStream) -> Result<(), Filled> {
        if self.inbound_reads.has_waiting() && self.take_response(stream) {
            Ok(())
        } else {
            Err(Filled::Drained)
        }
    }

    #[inline(never)]
    fn take_response(self: &Arc<Self>, stream: &mut TxStream) -> bool {
        let outgoing = match self.inbound_reads.take() {
            None => return false,
            Some(InboundRequest::Read(read)) => {
                let message = Message::ReadResponse {
                    stag: read.request.sink_stag,
                    to: read.request.sink_to,
                };
                Outgoing {
                    segmenter: Segmenter::new(message, read.request.len),
                    source: Source::Remote(read),
                    job: Job::Answer,
                    behind: None,
                }
            }
            Some(InboundRequest::Answer(answer)) => stream.desk.atomic_response(answer),
            Some(InboundRequest::Atomic(atomic)) => match self.operate(&atomic) {
                Ok(None) => {
                    self.want_atomic(atomic);
                    return false;
                }
                Ok(Some(original)) => stream.desk.atomic_response(AtomicResponse {
                    identifier: atomic.request.identifier,
                    original,
                }),
                Err(fault) => {
                    self.terminate(Terminate::for_fault(fault, atomic.quoted.as_ref()));
                    return false;
                }
            },
        };
        stream.current = Some(outgoing);
        true
    }

    /// Carries out an atomic operation of the peer, now that all before it are answered (EXT-58), and
    /// returns what the target held before; [`None`] if it is not there. The target is checked anew: its
    /// owner may revoke it at any time.
    fn operate(&self, atomic: &InboundAtomic) -> Result<Option<u64>, Fault> {
        let request = &atomic.request;
        let inside = atomic.target.enter().ok_or(Fault::SourceInvalidStag)?;
        let at = atomic
            .target
            .check_atomic(&inside, self.stream_id(), request)?;
        match inside
            .memory()
            .update_u64(at, |original| request.operation.apply(original))
        {
            Ok(original) => Ok(Some(original)),
            Err(error) if error == EAGAIN => Ok(None),
            Err(_) => Err(Fault::Local),
        }
    }

    /// Takes requests from the send queue until one becomes a message. Many that become none are [`Filled::Paused`].
    fn next_request(self: &Arc<Self>, stream: &mut TxStream) -> Result<(), Filled> {
        if self.lifecycle().is_peer_closed() {
            if self.sq.has_posted() {
                self.await_deserter();
            }
            return Err(Filled::Drained);
        }
        // A process can post such requests as fast as they are done.
        for _ in 0..WITHOUT_MESSAGE {
            if let Some(found) = self.try_request(stream) {
                return if found { Ok(()) } else { Err(Filled::Drained) };
            }
        }
        Err(Filled::Paused)
    }

    /// Takes a request from the send queue. Says whether it became a message, or was none; [`None`] if
    /// it was done without one.
    #[inline(never)]
    fn try_request(self: &Arc<Self>, stream: &mut TxStream) -> Option<bool> {
        let taken = match stream.held.take() {
            Some(slot) => Taken::Wr(slot),
            None => self.sq.take(&mut stream.wr),
        };
        let (slot, begun) = match taken {
            Taken::Wr(slot) if self.must_wait(&stream.wr) => {
                stream.held = Some(slot);
                return Some(false);
            }
            Taken::Wr(slot) => {
                let begun = self.begin(stream, slot);
                stream.wr.forget();
                (slot, begun)
            }
            Taken::Bad(slot, status) => (slot, Err(status)),
            Taken::Nothing => return Some(false),
            Taken::Full => return self.still_waits(|| self.sq.is_full()).then_some(false),
        };
        if let Err(status) = begun {
            self.refuse(slot, status);
            return Some(false);
        }
        stream.current.is_some().then_some(true)
    }

    /// Whether the request has to wait until outstanding Reads are answered.
    #[inline]
    fn must_wait(&self, wr: &SendWr) -> bool {
        let reads = matches!(wr.op, SendOp::Read { .. } | SendOp::Atomic { .. });
        (wr.fence || reads) && self.must_wait_for_reads(wr)
    }

    fn must_wait_for_reads(&self, wr: &SendWr) -> bool {
        let waits = || {
            (wr.fence && !self.sq.no_reads())
                || (matches!(wr.op, SendOp::Read { .. } | SendOp::Atomic { .. })
                    && !self.sq.may_read())
        };
        waits() && self.still_waits(waits)
    }

    /// Whether a wait that an answered Read may end goes on; then the receiver calls the transmitter again.
    fn still_waits(&self, waits: impl Fn() -> bool) -> bool {
        // A Response may come in between: say that we wait, then look again.
        self.on(Event::WaitForReads);
        let wait = waits();
        if !wait {
            self.on(Event::ReadsWaitedFor);
        }
        wait
    }

    /// Turns the request into the current message, or does it if it needs none.
    #[inline]
    fn begin(&self, stream: &mut TxStream, slot: Slot) -> Result<(), WcStatus> {
        let TxStream {
            current, wr, desk, ..
        } = stream;
        // DDP-33: a message is shorter than 2^32 octets.
        let len = u32::try_from(wr.payload.len()).map_err(|_| WcStatus::LocalLength)?;
        let solicited = if wr.solicited {
            Solicited::Yes
        } else {
            Solicited::No
        };
        let (message, behind) = match &wr.op {
            SendOp::Send(SendExtra::Immediate(value))
                if desk.extensions != Extensions::SendImmediate =>
            {
                // Without payload it is a message of RFC 7306 by itself; with payload there is
                // none.
                if len != 0 {
                    return Err(WcStatus::LocalQpOperation);
                }
                let msn = desk.send_msn;
                desk.send_msn = msn.next();
                let immediate = immediate_data(*value, solicited);
                let message = Message::Immediate { immediate, msn };
                *current = Some(Outgoing::bare(message, Job::Complete(slot)));
                return Ok(());
            }
            SendOp::Send(extra) => {
                let kind = SendKind {
                    solicited,
                    extra: *extra,
                };
                (
                    Message::Send {
                        kind,
                        msn: desk.send_msn,
                    },
                    None,
                )
            }
            SendOp::Write {
                stag,
                to,
                immediate,
            } => {
                let message = Message::Write {
                    stag: *stag,
                    to: TaggedOffset::new(*to),
                };
                let behind = immediate.map(|value| immediate_data(value, solicited));
                (message, behind)
            }
            SendOp::Read { .. }
            | SendOp::Atomic { .. }
            | SendOp::RegMr { .. }
            | SendOp::Bind(_)
            | SendOp::LocalInv { .. } => return self.begin_other(stream, slot, len),
        };
        let source = if wr.payload.inline().is_some() {
            Source::Inline
        } else {
            let (slices, cache) = (&mut desk.slices, &mut desk.cache);
            // What makes one FPDU is checked when that is packed, before anything goes out.
            if len as usize + UntaggedHeader::LEN <= usize::from(desk.mulpdu) {
                slices.find(&wr.payload, self.device(), cache)?;
            } else {
                let usage = LocalUse::Source;
                slices.resolve(&wr.payload, self.device(), self.pd(), usage, cache)?;
            }
            Source::Slices
        };
        if matches!(message, Message::Send { .. }) {
            desk.send_msn = desk.send_msn.next();
        }
        *current = Some(Outgoing {
            segmenter: Segmenter::new(message, len),
            source,
            job: Job::Complete(slot),
            behind,
        });
        Ok(())
    }

    /// Does so with what carries no payload from here; it is `len` octets that are moved.
    #[inline(never)]
    fn begin_other(&self, stream: &mut TxStream, slot: Slot, len: u32) -> Result<(), WcStatus> {
        let TxStream {
            current, wr, desk, ..
        } = stream;
        match &wr.op {
            // These have payload.
            SendOp::Send(_) | SendOp::Write { .. } => Err(WcStatus::LocalQpOperation),
            SendOp::Read {
                stag,
                to,
                invalidate_local,
            } => {
                let request = ReadRequest {
                    sink_stag: Stag::ZERO,
                    sink_to: TaggedOffset::new(0),
                    len,
                    source_stag: *stag,
                    source_to: TaggedOffset::new(*to),
                };
                let invalidate = *invalidate_local;
                *current = Some(self.begin_read(desk, &wr.payload, slot, request, invalidate)?);
                Ok(())
            }
            SendOp::Atomic {
                stag,
                to,
                operation,
                ..
            } => {
                let target = (*stag, TaggedOffset::new(*to));
                *current = Some(self.begin_atomic(desk, &wr.payload, slot, target, *operation)?);
                Ok(())
            }
            SendOp::RegMr {
                region,
                key,
                base,
                access,
            } => {
                region.register(self.stream_id(), Stag::new(*key), *base, *access)?;
                self.sq.finish(slot, WcStatus::Success, self.origin());
                Ok(())
            }
            SendOp::Bind(bind) => {
                self.bind_window(bind)?;
                self.sq.finish(slot, WcStatus::Success, self.origin());
                Ok(())
            }
            SendOp::LocalInv { stag } => {
                self.invalidate_local(*stag)?;
                self.sq.finish(slot, WcStatus::Success, self.origin());
                Ok(())
            }
        }
    }

    /// Begins a Read; the sink is filled into `request` here.
    fn begin_read(
        &self,
        desk: &mut Desk,
        payload: &Payload,
        slot: Slot,
        mut request: ReadRequest,
        invalidate_local: bool,
    ) -> Result<Outgoing, WcStatus> {
        // RDMAP-78: a Response writes one tagged buffer.
        let sink = self.sink(desk, payload)?;
        if let Some(sink) = &sink {
            request.sink_stag = sink.key();
            request.sink_to = TaggedOffset::new(sink.addr());
        }
        let sges = payload.sges().next();
        let invalidate = sges
            .filter(|_| invalidate_local)
            .map(|sge| Stag::new(sge.lkey));
        // The Response may come as soon as the Request is out, so the Read is noted before.
        let state = Outstanding::Read(ReadState::new(&request));
        self.sq.read_sent(Some(slot), state, sink, invalidate);
        Ok(desk.read_request(request))
    }

    /// Begins an atomic operation on the peer's buffer `target`.
    fn begin_atomic(
        &self,
        desk: &mut Desk,
        payload: &Payload,
        slot: Slot,
        (stag, to): (Stag, TaggedOffset),
        operation: AtomicOperation,
    ) -> Result<Outgoing, WcStatus> {
        if payload.len() < u64::from(TARGET_LEN) {
            return Err(WcStatus::LocalLength);
        }
        let sink = self.sink(desk, payload)?;
        let msn = desk.read_msn;
        desk.read_msn = msn.next();
        let request = AtomicRequest {
            // EXT-34: any value; this one is not used twice by what is outstanding.
            identifier: msn.raw(),
            stag,
            to,
            operation,
        };
        let state = Outstanding::Atomic {
            identifier: request.identifier,
        };
        self.sq.read_sent(Some(slot), state, sink, None);
        let message = Message::AtomicRequest { request, msn };
        // The Response completes it, not TCP.
        Ok(Outgoing::bare(message, Job::Nothing))
    }

    /// Resolves a list of at most one element that a Response is placed in.
    fn sink(&self, desk: &mut Desk, payload: &Payload) -> Result<Option<Slice>, WcStatus> {
        if payload.inline().is_some() {
            return Err(WcStatus::LocalQpOperation);
        }
        if payload.sges().len() > 1 {
            return Err(WcStatus::LocalLength);
        }
        let (slices, cache) = (&mut desk.slices, &mut desk.cache);
        slices.resolve(payload, self.device(), self.pd(), LocalUse::Sink, cache)?;
        Ok(slices.take_first())
    }

    /// The ready-to-receive message (MPA-40); its consumers never see it (MPA-42).
    #[cold]
    fn rtr(&self, desk: &mut Desk, rtr: Rtr) -> Outgoing {
        let message = match rtr {
            Rtr::Write => Message::Write {
                stag: Stag::ZERO,
                to: TaggedOffset::new(0),
            },
            Rtr::Read => {
                let request = ReadRequest {
                    sink_stag: Stag::ZERO,
                    sink_to: TaggedOffset::new(0),
                    len: 0,
                    source_stag: Stag::ZERO,
                    source_to: TaggedOffset::new(0),
                };
                let state = Outstanding::Read(ReadState::new(&request));
                self.sq.read_sent(None, state, None, None);
                return desk.read_request(request);
            }
            Rtr::Send => {
                let msn = desk.send_msn;
                desk.send_msn = msn.next();
                Message::Send {
                    kind: SendKind::default(),
                    msn,
                }
            }
        };
        Outgoing::bare(message, Job::Nothing)
    }

    /// Ends a request that cannot be carried out, and with it the stream.
    #[cold]
    pub(super) fn refuse(self: &Arc<Self>, slot: Slot, status: WcStatus) {
        self.sq.finish(slot, status, self.origin());
        self.terminate(Terminate::for_fault(Fault::Local, None));
    }
}

impl Desk {
    fn atomic_response(&mut self, response: AtomicResponse) -> Outgoing {
        let msn = self.atomic_msn;
        self.atomic_msn = msn.next();
        Outgoing::bare(Message::AtomicResponse { response, msn }, Job::Answer)
    }

    fn read_request(&mut self, request: ReadRequest) -> Outgoing {
        let msn = self.read_msn;
        self.read_msn = msn.next();
        // The Response completes it, not TCP.
        Outgoing::bare(Message::ReadRequest { request, msn }, Job::Nothing)
    }
}

/// The four octets of the verbs as the eight of the message: as deployed devices have them, in front.
fn immediate_data(value: [u8; 4], solicited: Solicited) -> Immediate {
    let [a, b, c, d] = value;
    Immediate {
        data: [a, b, c, d, 0, 0, 0, 0],
        solicited,
    }
}
