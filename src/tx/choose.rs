// SPDX-License-Identifier: GPL-2.0

//! The sorting room: which message goes out next.
//!
//! Requests of the peer, for a Read or an atomic operation, and the send queue take turns. A request
//! becomes a message here: its keys become regions, and fence and ORD are asked; what needs no message
//! is done on the spot.
//!
//! Context: process; the transmitter's.

use iwarp::{
    atomic::AtomicResponse,
    ddp::UntaggedHeader,
    fault::Fault,
    mpa::negotiate::Rtr,
    rdmap::{
        ReadRequest,
        SendKind,
        Solicited, //
    },
    readq::ReadState,
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
    conn::Close,
    mr::LocalUse,
    qp::{
        Phase,
        Qp, //
    },
    readq::{
        InboundAtomic,
        InboundRequest, //
    },
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
    Job,
    Outgoing,
    Source,
    Turn,
    TxStream, //
};

/// What has become of a request.
enum Begun {
    /// The current message.
    Message,
    /// It was done on the spot.
    Done,
}

impl Qp {
    /// Chooses the next message; false if there is none that may go out now.
    pub(super) fn next_message(self: &Arc<Self>, stream: &mut TxStream) -> bool {
        if let Some(rtr) = stream.rtr.take() {
            stream.current = Some(self.rtr(stream, rtr));
            return true;
        }
        // MPA-9: a responder is silent until the initiator's first FPDU.
        if !self.may_send() {
            return false;
        }
        let found = match stream.turn {
            Turn::Responses => self.next_response(stream) || self.next_request(stream),
            Turn::Requests => self.next_request(stream) || self.next_response(stream),
        };
        stream.turn = match stream.turn {
            Turn::Responses => Turn::Requests,
            Turn::Requests => Turn::Responses,
        };
        found
    }

    fn next_response(self: &Arc<Self>, stream: &mut TxStream) -> bool {
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
                }
            }
            Some(InboundRequest::Atomic(atomic)) => match self.operate(&atomic) {
                Ok(original) => stream.atomic_response(AtomicResponse {
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
    /// returns what the target held before. The target is checked anew: its owner may revoke it at any
    /// time.
    fn operate(&self, atomic: &InboundAtomic) -> Result<u64, Fault> {
        let request = &atomic.request;
        let inside = atomic.target.enter().ok_or(Fault::SourceInvalidStag)?;
        let at = atomic.target.check_atomic(&inside, self.pd(), request)?;
        inside
            .memory()
            .update_u64(at, |original| request.operation.apply(original))
            .map_err(|_| Fault::Local)
    }

    /// Takes requests from the send queue until one becomes a message.
    fn next_request(self: &Arc<Self>, stream: &mut TxStream) -> bool {
        if self.is_deserted() {
            if self.sq.has_posted() {
                self.set_first_status(WcStatus::RetryExceeded);
                self.enter(Phase::Error);
                stream.conn.close(Close::Graceful);
            }
            return false;
        }
        loop {
            // Looked at where it is: these are large, and copies of them would cost more than the rest.
            let taken = stream.held.take().unwrap_or_else(|| self.sq.take());
            let (slot, begun) = match &taken {
                Taken::Wr(wr, _) if self.must_wait(wr) => {
                    stream.held = Some(taken);
                    return false;
                }
                Taken::Wr(wr, slot) => (*slot, self.begin(stream, wr, *slot)),
                Taken::Bad(bad, slot) => (*slot, Err(bad.status)),
                Taken::Nothing => return false,
            };
            match begun {
                Ok(Begun::Message) => return true,
                Ok(Begun::Done) => {}
                Err(status) => {
                    self.refuse(slot, status);
                    return false;
                }
            }
        }
    }

    /// Whether the request has to wait until outstanding Reads are answered.
    fn must_wait(&self, wr: &SendWr) -> bool {
        let waits = || {
            (wr.fence && !self.sq.no_reads())
                || (matches!(wr.op, SendOp::Read { .. }) && !self.sq.may_read())
        };
        if !waits() {
            return false;
        }
        // A Response may come in between: say that we wait, then look again.
        self.set_waiting_for_reads(true);
        let wait = waits();
        if !wait {
            self.set_waiting_for_reads(false);
        }
        wait
    }

    /// Turns a request into the current message, or does it.
    fn begin(&self, stream: &mut TxStream, wr: &SendWr, slot: Slot) -> Result<Begun, WcStatus> {
        // DDP-33: a message is shorter than 2^32 octets.
        let len = u32::try_from(wr.payload.len()).map_err(|_| WcStatus::LocalLength)?;
        let message = match &wr.op {
            SendOp::Send { invalidate } => Message::Send {
                kind: SendKind {
                    solicited: if wr.solicited {
                        Solicited::Yes
                    } else {
                        Solicited::No
                    },
                    invalidate: *invalidate,
                },
                msn: stream.send_msn,
            },
            SendOp::Write { stag, to } => Message::Write {
                stag: *stag,
                to: TaggedOffset::new(*to),
            },
            SendOp::Read {
                stag,
                to,
                invalidate_local,
            } => {
                let outgoing =
                    self.begin_read(stream, wr, slot, len, (*stag, *to), *invalidate_local)?;
                stream.current = Some(outgoing);
                return Ok(Begun::Message);
            }
            SendOp::RegMr {
                region,
                key,
                access,
            } => {
                region.register(self.pd(), Stag::new(*key), *access)?;
                self.sq.finish(slot, WcStatus::Success, self.origin());
                return Ok(Begun::Done);
            }
            SendOp::LocalInv { stag } => {
                self.invalidate_local(*stag)?;
                self.sq.finish(slot, WcStatus::Success, self.origin());
                return Ok(Begun::Done);
            }
        };
        let source = match &wr.payload {
            Payload::Inline(inline) => Source::Inline(*inline),
            Payload::Sges(list) => {
                let (slices, cache) = (&mut stream.slices, &mut stream.cache);
                // What makes one FPDU is checked when that is packed, before anything goes out.
                if len as usize + UntaggedHeader::LEN <= usize::from(stream.mulpdu) {
                    slices.find(list, self.device(), cache)?;
                } else {
                    slices.resolve(list, self.device(), self.pd(), LocalUse::Source, cache)?;
                }
                Source::Slices
            }
        };
        if matches!(message, Message::Send { .. }) {
            stream.send_msn = stream.send_msn.next();
        }
        stream.current = Some(Outgoing {
            segmenter: Segmenter::new(message, len),
            source,
            job: Job::Complete(slot),
        });
        Ok(Begun::Message)
    }

    fn begin_read(
        &self,
        stream: &mut TxStream,
        wr: &SendWr,
        slot: Slot,
        len: u32,
        (stag, to): (Stag, u64),
        invalidate_local: bool,
    ) -> Result<Outgoing, WcStatus> {
        let Payload::Sges(list) = &wr.payload else {
            return Err(WcStatus::LocalQpOperation);
        };
        // RDMAP-78: a Response writes one tagged buffer.
        let ([] | [_]) = list.as_slice() else {
            return Err(WcStatus::LocalLength);
        };
        let cache = &mut stream.cache;
        stream
            .slices
            .resolve(list, self.device(), self.pd(), LocalUse::Sink, cache)?;
        let sink = stream.slices.take_first();
        let request = ReadRequest {
            sink_stag: sink.as_ref().map_or(Stag::ZERO, |sink| sink.key()),
            sink_to: TaggedOffset::new(sink.as_ref().map_or(0, |sink| sink.addr())),
            len,
            source_stag: stag,
            source_to: TaggedOffset::new(to),
        };
        let invalidate = match (invalidate_local, list.as_slice()) {
            (true, [sge]) => Some(Stag::new(sge.lkey)),
            _ => None,
        };
        // The Response may come as soon as the Request is out, so the Read is noted before.
        self.sq
            .read_sent(Some(slot), ReadState::new(&request), sink, invalidate);
        Ok(stream.read_request(request))
    }

    /// The ready-to-receive message (MPA-40); its consumers never see it (MPA-42).
    fn rtr(&self, stream: &mut TxStream, rtr: Rtr) -> Outgoing {
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
                self.sq
                    .read_sent(None, ReadState::new(&request), None, None);
                return stream.read_request(request);
            }
            Rtr::Send => {
                let msn = stream.send_msn;
                stream.send_msn = msn.next();
                Message::Send {
                    kind: SendKind::default(),
                    msn,
                }
            }
        };
        Outgoing {
            segmenter: Segmenter::new(message, 0),
            source: Source::Nothing,
            job: Job::Nothing,
        }
    }

    /// Ends a request that cannot be carried out, and with it the stream.
    pub(super) fn refuse(self: &Arc<Self>, slot: Slot, status: WcStatus) {
        self.sq.finish(slot, status, self.origin());
        self.terminate(Terminate::for_fault(Fault::Local, None));
    }
}

impl TxStream {
    fn atomic_response(&mut self, response: AtomicResponse) -> Outgoing {
        let msn = self.atomic_msn;
        self.atomic_msn = msn.next();
        Outgoing {
            segmenter: Segmenter::new(Message::AtomicResponse { response, msn }, 0),
            source: Source::Nothing,
            job: Job::Answer,
        }
    }

    fn read_request(&mut self, request: ReadRequest) -> Outgoing {
        let msn = self.read_msn;
        self.read_msn = msn.next();
        Outgoing {
            segmenter: Segmenter::new(Message::ReadRequest { request, msn }, 0),
            source: Source::Nothing,
            // The Response completes it, not TCP.
            job: Job::Nothing,
        }
    }
}
