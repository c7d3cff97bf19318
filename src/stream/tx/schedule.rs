// SPDX-License-Identifier: GPL-2.0

//! Schedule: chooses the next message to send.
//!
//! The peer's requests (Reads and atomic operations) and the send queue alternate. A request
//! becomes a message here: its keys are resolved to regions, fence and ORD are checked. Requests
//! that need no message are carried out at once.
//!
//! Context: the running transmit task.

use iwarp::{
    actions::After,
    atomic::{
        AtomicOperation,
        AtomicRequest,
        AtomicResponse,
        TARGET_LEN, //
    },
    ddp::UntaggedHeader,
    fault::Fault,
    mpa::negotiate::Rtr,
    rdmap::{
        Extensions,
        Immediate,
        ReadRequest,
        SendEvent,
        SendExtra,
        SendKind, //
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
};
use kernel::{
    prelude::*,
    sync::atomic::Relaxed, //
};
use kernel_ext::{
    rdma::{
        types::SignalPolicy,
        wr::WcStatus, //
    },
    warn_on_once, //
};

use crate::{
    abi::wr::{
        SendOp,
        SendWr, //
    },
    device::WriteCompletion,
    mem::{
        atomic::carry_out,
        mr::LocalUse,
        payload::Payload,
        peer::PeerAccess,
        sge::Slice, //
    },
    queue::{
        readq::{
            InboundAtomic,
            InboundRequest, //
        },
        sq::{
            Slot,
            Taken, //
        }, //
    },
    stream::owner::{
        QpShared,
        ReadWait, //
    }, //
};

use super::{
    paging::want_atomic,
    FirstMessage,
    Job,
    Outgoing,
    Pause,
    Source,
    Turn,
    TxContext,
    TxStream, //
};

#[cfg(CONFIG_KUNIT = "y")]
mod tests;

/// Maximum number of requests carried out without a message before the task yields.
const WITHOUT_MESSAGE: u32 = 64;

/// What became of an atomic operation of the peer.
#[derive(Debug, PartialEq, Eq)]
enum Operated {
    /// It was carried out; the target's original value.
    Done(u64),
    /// The target is absent.
    Absent,
    /// Others kept changing the target: another attempt may succeed.
    Contended,
}

impl TxStream {
    /// Makes the message that begins the stream the current one.
    #[cold]
    fn begin_stream(&mut self, qp: &QpShared, first: FirstMessage) {
        self.current = Some(match first {
            FirstMessage::Features(features, rtr) => {
                self.first = rtr.map(FirstMessage::Rtr);
                Outgoing::bare(Message::Features(features), Job::Nothing)
            }
            FirstMessage::Rtr(rtr) => self.context.rtr(qp, rtr),
        });
    }

    /// Makes the next message the current one; the error says why none can be sent now.
    pub(super) fn next_message(&mut self, qp: &QpShared) -> Result<(), Pause> {
        if let Some(first) = self.first.take() {
            self.begin_stream(qp, first);
            return Ok(());
        }
        // MPA-9: a responder sends nothing before the initiator's first FPDU.
        if !qp.lifecycle().may_send() {
            return Err(Pause::Drained);
        }
        // A response that has to be tried again later counts even if no request does.
        let why = |response, request| match response {
            Pause::Yield => Pause::Yield,
            Pause::Drained | Pause::Starved => request,
        };
        let found = match self.turn {
            Turn::Responses => self.next_response(qp).or_else(|response| {
                self.next_request(qp)
                    .map_err(|request| why(response, request))
            }),
            Turn::Requests => self.next_request(qp).or_else(|request| {
                self.next_response(qp)
                    .map_err(|response| why(response, request))
            }),
        };
        self.turn = match self.turn {
            Turn::Responses => Turn::Requests,
            Turn::Requests => Turn::Responses,
        };
        found
    }

    #[inline]
    fn next_response(&mut self, qp: &QpShared) -> Result<(), Pause> {
        if qp.inbound_reads.has_waiting() {
            self.take_response(qp)
        } else {
            Err(Pause::Drained)
        }
    }

    #[inline(never)]
    fn take_response(&mut self, qp: &QpShared) -> Result<(), Pause> {
        let outgoing = match qp.inbound_reads.take() {
            None => return Err(Pause::Drained),
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
            Some(InboundRequest::Answer(answer)) => self.context.atomic_response(answer),
            Some(InboundRequest::Failed(fault, quoted)) => {
                self.after.add(qp.fault(fault, quoted.as_ref()));
                return Err(Pause::Drained);
            }
            Some(InboundRequest::Atomic(atomic)) => match qp.operate(&atomic) {
                Ok(Operated::Absent) => {
                    self.after.add(want_atomic(qp, atomic));
                    return Err(Pause::Drained);
                }
                Ok(Operated::Contended) => {
                    let epoch = qp.inbound_reads.epoch();
                    qp.inbound_reads
                        .put_back(epoch, InboundRequest::Atomic(atomic));
                    return Err(Pause::Yield);
                }
                Ok(Operated::Done(original)) => self.context.atomic_response(AtomicResponse {
                    identifier: atomic.request.identifier,
                    original,
                }),
                Err(fault) => {
                    self.after.add(qp.fault(fault, atomic.quoted.as_ref()));
                    return Err(Pause::Drained);
                }
            },
        };
        self.current = Some(outgoing);
        Ok(())
    }

    /// Dequeues requests until one becomes a message. Returns [`Pause::Yield`] after many that need
    /// none.
    fn next_request(&mut self, qp: &QpShared) -> Result<(), Pause> {
        if qp.lifecycle().is_peer_closed() {
            if qp.sq.has_posted() {
                self.after.insert(After::LimitClosedPeer);
            }
            return Err(Pause::Drained);
        }
        // A process may post such requests as fast as they are carried out.
        for _ in 0..WITHOUT_MESSAGE {
            self.try_request(qp)?;
            if self.current.is_some() {
                return Ok(());
            }
        }
        Err(Pause::Yield)
    }

    /// Dequeues a request and starts it: it becomes the current message, or is carried out without
    /// one.
    #[inline(never)]
    fn try_request(&mut self, qp: &QpShared) -> Result<(), Pause> {
        let taken = match self.held.take() {
            Some(slot) => Taken::Wr(slot),
            None => qp.sq.take(&mut self.wr),
        };
        let (slot, begun) = match taken {
            Taken::Wr(slot) if qp.must_wait(&self.wr, self.context.writes) => {
                self.held = Some(slot);
                return Err(Pause::Drained);
            }
            Taken::Wr(slot) => {
                qp.trace_wr_start(slot, &self.wr);
                let begun = self.begin(qp, slot);
                self.wr.forget();
                (slot, begun)
            }
            Taken::Bad(slot, status) => (slot, Err(status)),
            Taken::Nothing => return Err(Pause::Drained),
            Taken::Full if qp.still_waits(ReadWait::Queue, || qp.sq.is_full()) => {
                return Err(Pause::Drained)
            }
            // A Read was answered meanwhile.
            Taken::Full => return Ok(()),
        };
        if let Err(status) = begun {
            self.after.add(qp.refuse(slot, status));
            return Err(Pause::Drained);
        }
        Ok(())
    }

    /// Turns the request into the current message, or carries it out if it needs none.
    #[inline]
    fn begin(&mut self, qp: &QpShared, slot: Slot) -> Result<(), WcStatus> {
        let Self {
            current,
            wr,
            context,
            ..
        } = self;
        // DDP-33: a message is shorter than 2^32 octets.
        let len = u32::try_from(wr.payload.len()).map_err(|_| WcStatus::LocalLength)?;
        let solicited = if wr.solicited {
            SendEvent::Solicit
        } else {
            SendEvent::Silent
        };
        let (message, behind) = match &wr.op {
            SendOp::Send(SendExtra::Immediate(value))
                if context.extensions != Extensions::SendImmediate =>
            {
                // Without payload it is an Immediate Data message of RFC 7306; with payload no such
                // message exists.
                if len != 0 {
                    return Err(WcStatus::LocalQpOperation);
                }
                let msn = context.send_msn;
                context.send_msn = msn.next();
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
                        msn: context.send_msn,
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
            | SendOp::LocalInv { .. } => return self.begin_other(qp, slot, len),
        };
        let source = if wr.payload.inline().is_some() {
            Source::Inline
        } else {
            let (slices, cache) = (&mut context.slices, &mut context.cache);
            // The list of a message of one FPDU is checked when it is packed, before any octet is
            // sent.
            if len as usize + UntaggedHeader::LEN <= usize::from(context.mulpdu) {
                slices.find(&wr.payload, &qp.regions, cache)?;
            } else {
                let usage = LocalUse::Source;
                slices.resolve(&wr.payload, &qp.regions, qp.pd(), usage, cache)?;
            }
            Source::Slices
        };
        if matches!(message, Message::Send { .. }) {
            context.send_msn = context.send_msn.next();
        }
        let job = if qp.is_confirmed(wr, context.writes) {
            Job::Confirm(slot)
        } else {
            Job::Complete(slot)
        };
        *current = Some(Outgoing {
            segmenter: Segmenter::new(message, len),
            source,
            job,
            behind,
        });
        Ok(())
    }

    /// As [`TxStream::begin`], for requests that send no payload; `len` octets are transferred.
    #[inline(never)]
    fn begin_other(&mut self, qp: &QpShared, slot: Slot, len: u32) -> Result<(), WcStatus> {
        let Self {
            current,
            wr,
            context,
            ..
        } = self;
        match &wr.op {
            // `begin` has made messages of these.
            SendOp::Send(_) | SendOp::Write { .. } => {
                warn_on_once!(true);
                Err(WcStatus::LocalQpOperation)
            }
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
                *current = Some(context.begin_read(qp, &wr.payload, slot, request, invalidate)?);
                Ok(())
            }
            SendOp::Atomic {
                stag,
                to,
                operation,
                ..
            } => {
                let target = (*stag, TaggedOffset::new(*to));
                *current = Some(context.begin_atomic(qp, &wr.payload, slot, target, *operation)?);
                Ok(())
            }
            SendOp::RegMr {
                region,
                key,
                base,
                access,
            } => {
                region.register(qp.stream_id(), Stag::new(*key), *base, *access)?;
                qp.sq.finish(slot, WcStatus::Success, qp.origin());
                Ok(())
            }
            SendOp::Bind(bind) => {
                qp.bind_window(bind)?;
                qp.sq.finish(slot, WcStatus::Success, qp.origin());
                Ok(())
            }
            SendOp::LocalInv { stag } => {
                qp.invalidate_local(*stag)?;
                qp.sq.finish(slot, WcStatus::Success, qp.origin());
                Ok(())
            }
        }
    }
}

impl QpShared {
    /// Carries out the peer's atomic operation after all requests before it (EXT-58). Checks the
    /// target again, since its owner may revoke it at any time.
    fn operate(&self, atomic: &InboundAtomic) -> Result<Operated, Fault> {
        let request = &atomic.request;
        let access = PeerAccess::open(&atomic.target, self.stream_id(), None);
        let access = access.ok_or(Fault::SourceInvalidStag)?;
        access.operate(request, |inside, at| {
            match carry_out(inside.memory(), at, request.operation) {
                Ok(original) => Ok(Operated::Done(original)),
                Err(error) if error == EAGAIN => Ok(Operated::Absent),
                Err(error) if error == EBUSY => Ok(Operated::Contended),
                Err(_) => Err(Fault::Local),
            }
        })
    }

    /// Returns whether the request has to wait for outstanding Reads.
    #[inline]
    fn must_wait(&self, wr: &SendWr, writes: WriteCompletion) -> bool {
        let reads = matches!(wr.op, SendOp::Read { .. } | SendOp::Atomic { .. })
            || self.is_confirmed(wr, writes);
        (wr.fence || reads) && self.must_wait_for_reads(wr, reads)
    }

    /// Returns whether a Read behind the request completes it.
    #[inline]
    fn is_confirmed(&self, wr: &SendWr, writes: WriteCompletion) -> bool {
        match writes {
            WriteCompletion::Accepted => false,
            WriteCompletion::Placed => {
                matches!(wr.op, SendOp::Write { .. })
                    && (wr.signalled || self.sq.signal_policy() == SignalPolicy::All)
            }
        }
    }

    fn must_wait_for_reads(&self, wr: &SendWr, reads: bool) -> bool {
        let fenced = || wr.fence && !self.sq.no_reads();
        // With an ORD of 0 there is nothing to wait for; `TxContext::sink` refuses the request.
        let full = || !self.sq.may_read() && !self.sq.no_reads();
        let waits = || fenced() || (reads && full());
        if !waits() {
            return false;
        }
        let why = if fenced() {
            ReadWait::Fence
        } else {
            ReadWait::Ord
        };
        self.still_waits(why, waits)
    }

    /// Returns whether to go on waiting for an outstanding Read. If so, the receiver runs the
    /// transmit task again when one is answered.
    fn still_waits(&self, why: ReadWait, waits: impl Fn() -> bool) -> bool {
        self.read_wait.store(why.to_raw(), Relaxed);
        // A Response may arrive in between, so record the wait before checking again.
        self.lifecycle.set_read_wait(true);
        let wait = waits();
        if !wait {
            self.lifecycle.set_read_wait(false);
        }
        wait
    }
}

impl TxContext {
    /// Starts a Read; fills the sink into `request`.
    fn begin_read(
        &mut self,
        qp: &QpShared,
        payload: &Payload,
        slot: Slot,
        mut request: ReadRequest,
        invalidate_local: bool,
    ) -> Result<Outgoing, WcStatus> {
        // RDMAP-78: a Response writes one tagged buffer.
        let sink = self.sink(qp, payload)?;
        if let Some(sink) = &sink {
            request.sink_stag = sink.key();
            request.sink_to = TaggedOffset::new(sink.addr());
        }
        let sges = payload.sges().next();
        let invalidate = sges
            .filter(|_| invalidate_local)
            .map(|sge| Stag::new(sge.lkey));
        // The Response may arrive as soon as the Request is sent, so record the Read before that.
        let state = Outstanding::Read(ReadState::new(&request));
        qp.sq.read_sent(Some(slot), state, sink, invalidate);
        Ok(self.read_request(request, Job::AwaitResponse(slot)))
    }

    /// Starts an atomic operation on the peer's buffer `target`.
    fn begin_atomic(
        &mut self,
        qp: &QpShared,
        payload: &Payload,
        slot: Slot,
        (stag, to): (Stag, TaggedOffset),
        operation: AtomicOperation,
    ) -> Result<Outgoing, WcStatus> {
        if payload.len() < u64::from(TARGET_LEN) {
            return Err(WcStatus::LocalLength);
        }
        let sink = self.sink(qp, payload)?;
        let msn = self.read_msn;
        self.read_msn = msn.next();
        let request = AtomicRequest {
            // EXT-34: any value; this one is unique among outstanding requests.
            identifier: msn.raw(),
            stag,
            to,
            operation,
        };
        let state = Outstanding::Atomic {
            identifier: request.identifier,
        };
        qp.sq.read_sent(Some(slot), state, sink, None);
        let message = Message::AtomicRequest { request, msn };
        Ok(Outgoing::bare(message, Job::AwaitResponse(slot)))
    }

    /// Resolves the list, of at most one element, in which a Response is placed.
    ///
    /// # Errors
    ///
    /// [`WcStatus::LocalQpOperation`] if the data is inline or the peer takes no Reads,
    /// [`WcStatus::LocalLength`] for more elements, and those of [`Slices::resolve`].
    fn sink(&mut self, qp: &QpShared, payload: &Payload) -> Result<Option<Slice>, WcStatus> {
        if payload.inline().is_some() || !self.reads {
            return Err(WcStatus::LocalQpOperation);
        }
        if payload.sges().len() > 1 {
            return Err(WcStatus::LocalLength);
        }
        let (slices, cache) = (&mut self.slices, &mut self.cache);
        slices.resolve(payload, &qp.regions, qp.pd(), LocalUse::Sink, cache)?;
        Ok(slices.take_first())
    }

    /// Creates the ready-to-receive message (MPA-40); the peer's consumer never sees it (MPA-42).
    #[cold]
    fn rtr(&mut self, qp: &QpShared, rtr: Rtr) -> Outgoing {
        let message = match rtr {
            Rtr::Write => Message::Write {
                stag: Stag::ZERO,
                to: TaggedOffset::new(0),
            },
            Rtr::Read => return self.read_nothing(qp, None),
            Rtr::Send => {
                let msn = self.send_msn;
                self.send_msn = msn.next();
                Message::Send {
                    kind: SendKind::default(),
                    msn,
                }
            }
        };
        Outgoing::bare(message, Job::Nothing)
    }

    /// Starts a Read of zero octets, for which no keys are needed. Its Response completes `slot`.
    #[inline(never)]
    pub(super) fn read_nothing(&mut self, qp: &QpShared, slot: Option<Slot>) -> Outgoing {
        let request = ReadRequest {
            sink_stag: Stag::ZERO,
            sink_to: TaggedOffset::new(0),
            len: 0,
            source_stag: Stag::ZERO,
            source_to: TaggedOffset::new(0),
        };
        let state = Outstanding::Read(ReadState::new(&request));
        qp.sq.read_sent(slot, state, None, None);
        self.read_request(request, slot.map_or(Job::Nothing, Job::AwaitResponse))
    }

    fn atomic_response(&mut self, response: AtomicResponse) -> Outgoing {
        let msn = self.atomic_msn;
        self.atomic_msn = msn.next();
        Outgoing::bare(Message::AtomicResponse { response, msn }, Job::Answer)
    }

    fn read_request(&mut self, request: ReadRequest, job: Job) -> Outgoing {
        let msn = self.read_msn;
        self.read_msn = msn.next();
        Outgoing::bare(Message::ReadRequest { request, msn }, job)
    }
}

/// Returns Immediate Data with the four octets of the verbs in front, as deployed devices have
/// them.
fn immediate_data(value: [u8; 4], solicited: SendEvent) -> Immediate {
    let [a, b, c, d] = value;
    Immediate {
        data: [a, b, c, d, 0, 0, 0, 0],
        solicited,
    }
}
