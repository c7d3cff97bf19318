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
        AtomicResponse,
        TARGET_LEN, //
    },
    ddp::UntaggedHeader,
    fault::Fault,
    flush::{
        answered_as,
        FlushPlacement,
        FlushRequest, //
    },
    inject::{
        Operation,
        Point, //
    },
    rdmap::{
        Marked,
        ReadRequest,
        SendEvent, //
    },
    readq::{
        Outstanding,
        ReadState, //
    },
    receiver::ATOMIC_WRITE_LEN,
    stag::{
        Stag,
        TaggedOffset, //
    },
    stream::{
        Job,
        Pause,
        Side,
        Unsupported, //
    }, //
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
    static_key,
    warn_on_once, //
};

use crate::{
    abi::wr::{
        SendOp,
        SendWr, //
    },
    device::Confirmed,
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
    stream::{
        inject::{
            Injection,
            RestRuling,
            RuleQuery,
            Ruling, //
        },
        owner::{
            QpShared,
            ReadWait, //
        },
        strict::KeyUser, //
    }, //
};

use super::{
    paging::request_atomic,
    Source,
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
    fn begin_stream(&mut self, qp: &QpShared) {
        if self.context.sender.begin_stream().is_some() {
            qp.await_confirmation(None);
        }
    }

    /// Makes the next message the current one; the error says why none can be sent now.
    pub(super) fn next_message(&mut self, qp: &QpShared) -> Result<(), Pause> {
        if self.context.sender.begins() {
            self.begin_stream(qp);
            return Ok(());
        }
        // MPA-9: a responder sends nothing before the initiator's first FPDU.
        if !qp.lifecycle().may_send() {
            return Err(Pause::Drained);
        }
        if static_key::is_on() && self.is_silent(qp) {
            return Err(Pause::Drained);
        }
        if !qp.inbound_reads.has_waiting() {
            return self.next_request(qp);
        }
        match self.context.sender.take_turn() {
            Side::Responses => self.next_response(qp).or_else(|response| {
                self.next_request(qp)
                    .map_err(|request| response.without_request(request))
            }),
            Side::Requests => self.next_request(qp).or_else(|request| {
                self.next_response(qp)
                    .map_err(|response| response.without_request(request))
            }),
        }
    }

    #[inline(never)]
    fn next_response(&mut self, qp: &QpShared) -> Result<(), Pause> {
        let sender = &mut self.context.sender;
        match qp.inbound_reads.take() {
            None => return Err(Pause::Drained),
            Some(InboundRequest::Read(read)) => {
                sender.answer_read(&read.request);
                self.source = Source::Remote(read);
            }
            Some(InboundRequest::Answer(answer)) => sender.answer_atomic(answer),
            Some(InboundRequest::Failed(fault, quoted)) => {
                self.after.add(qp.fault(fault, quoted.as_ref()));
                return Err(Pause::Drained);
            }
            Some(InboundRequest::Atomic(atomic)) => match qp.operate(&atomic) {
                Ok(Operated::Absent) => {
                    self.after
                        .add(request_atomic(&qp.paging_out, &qp.inbound_reads, atomic));
                    return Err(Pause::Drained);
                }
                Ok(Operated::Contended) => {
                    let epoch = qp.inbound_reads.epoch();
                    qp.inbound_reads
                        .put_back(epoch, InboundRequest::Atomic(atomic));
                    return Err(Pause::Yield);
                }
                Ok(Operated::Done(original)) => sender.answer_atomic(AtomicResponse {
                    identifier: atomic.request.identifier,
                    original,
                }),
                Err(fault) => {
                    self.after.add(qp.fault(fault, atomic.quoted.as_ref()));
                    return Err(Pause::Drained);
                }
            },
        }
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
            // The usual end of a round.
            if self.held.is_none() && qp.sq.looks_empty() {
                return Err(Pause::Drained);
            }
            self.try_request(qp)?;
            if self.context.sender.current.is_some() {
                return Ok(());
            }
        }
        Err(Pause::Yield)
    }

    /// Dequeues a request, of which there is one, and starts it: it becomes the current message, or
    /// is carried out without one.
    #[inline(never)]
    fn try_request(&mut self, qp: &QpShared) -> Result<(), Pause> {
        let taken = match self.held.take() {
            Some(slot) => Taken::Wr(slot),
            None => qp.sq.take_posted(&mut self.wr),
        };
        let (slot, begun) = match taken {
            Taken::Wr(slot) if static_key::is_on() && self.is_held_as_posted(qp, slot) => {
                return Err(Pause::Drained);
            }
            Taken::Wr(slot) => {
                let is_confirmed = qp.is_confirmed(&self.wr, self.context.confirmed);
                if qp.must_wait(&self.wr, is_confirmed) {
                    self.held = Some(slot);
                    return Err(Pause::Drained);
                }
                if static_key::is_on() {
                    if self.inject(qp, slot, Point::Send) {
                        return Err(Pause::Drained);
                    }
                    if qp.device.strict.is_on() {
                        self.be_strict(qp, slot);
                    }
                }
                qp.trace_wr_start(slot, &self.wr);
                let begun = self.begin(qp, slot, is_confirmed);
                if begun.is_err() && qp.device.strict.is_on() {
                    let keys = self.wr.payload.keys();
                    qp.check_keys(KeyUser::Request(self.wr.id), keys);
                }
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
    fn begin(&mut self, qp: &QpShared, slot: Slot, is_confirmed: bool) -> Result<(), WcStatus> {
        let Self {
            source,
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
        let job = if is_confirmed {
            Job::Confirm(slot)
        } else {
            Job::Complete(slot)
        };
        let sender = &mut context.sender;
        let begun = match &wr.op {
            SendOp::Send(extra) => sender.begin_send(*extra, len, solicited, job),
            SendOp::Write {
                stag,
                to,
                immediate,
            } => {
                let target = (*stag, TaggedOffset::new(*to));
                sender.begin_write(target, *immediate, len, solicited, job);
                Ok(())
            }
            SendOp::Immediate(data) => sender.begin_immediate(*data, len, solicited, job),
            SendOp::Read { .. }
            | SendOp::AtomicWrite { .. }
            | SendOp::Atomic { .. }
            | SendOp::Flush(_)
            | SendOp::RegMr { .. }
            | SendOp::Bind(_)
            | SendOp::LocalInv { .. } => return self.begin_other(qp, slot, len),
        };
        begun.map_err(|Unsupported| WcStatus::LocalQpOperation)?;
        if wr.payload.inline().is_some() {
            *source = Source::Inline;
            return Ok(());
        }
        *source = Source::Slices;
        let found = context.find_slices(qp, &wr.payload, len);
        if found.is_err() {
            context.sender.current = None;
        }
        found
    }

    /// As [`TxStream::begin`], for requests that send no payload; `len` octets are transferred.
    #[inline(never)]
    fn begin_other(&mut self, qp: &QpShared, slot: Slot, len: u32) -> Result<(), WcStatus> {
        let Self { wr, context, .. } = self;
        match &wr.op {
            // `begin` has made messages of these.
            SendOp::Send(_) | SendOp::Write { .. } | SendOp::Immediate(_) => {
                warn_on_once!(true);
                Err(WcStatus::LocalQpOperation)
            }
            SendOp::Read {
                stag,
                to,
                invalidate_local,
            } => {
                let request = ReadRequest {
                    len,
                    source_stag: *stag,
                    source_to: TaggedOffset::new(*to),
                    ..ReadRequest::NOTHING
                };
                let invalidate = *invalidate_local;
                context.begin_read(qp, &wr.payload, slot, request, invalidate)
            }
            SendOp::Atomic {
                stag,
                to,
                operation,
                ..
            } => {
                let target = (*stag, TaggedOffset::new(*to));
                context.begin_atomic(qp, &wr.payload, slot, target, *operation)
            }
            SendOp::Flush(_) | SendOp::AtomicWrite { .. } => self.begin_marked(qp, slot, len),
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

    /// As [`TxStream::begin`], for the messages that a reserved bit marks.
    #[cold]
    fn begin_marked(&mut self, qp: &QpShared, slot: Slot, len: u32) -> Result<(), WcStatus> {
        let Self {
            conn,
            source,
            wr,
            context,
            ..
        } = self;
        match &wr.op {
            SendOp::Flush(request) => {
                context.begin_flush(qp, slot, *request, conn.takes(Marked::FLUSH))
            }
            SendOp::AtomicWrite { stag, to } => {
                let agreed = context.reads && conn.takes(Marked::ATOMIC_WRITE);
                check_atomic_write(agreed, *to, len)?;
                *source = if wr.payload.inline().is_some() {
                    Source::Inline
                } else {
                    let (slices, cache) = (&mut context.slices, &mut context.cache);
                    let used = LocalUse::Source;
                    slices.resolve(&wr.payload, &qp.regions, qp.pd(), used, cache)?;
                    Source::Slices
                };
                let target = (*stag, TaggedOffset::new(*to));
                context.sender.begin_atomic_write(target, slot);
                Ok(())
            }
            // `begin_other` passes only these.
            _ => {
                warn_on_once!(true);
                Err(WcStatus::LocalQpOperation)
            }
        }
    }
}

/// Returns what the operation is for rules; [`None`] if the peer has no part in it.
fn operation_of(op: &SendOp) -> Option<Operation> {
    match op {
        SendOp::Send(_) | SendOp::Immediate(_) => Some(Operation::Send),
        SendOp::Write { .. } | SendOp::AtomicWrite { .. } => Some(Operation::Write),
        SendOp::Read { .. } | SendOp::Flush(_) => Some(Operation::Read),
        SendOp::Atomic { .. } => Some(Operation::Atomic),
        SendOp::RegMr { .. } | SendOp::Bind(_) | SendOp::LocalInv { .. } => None,
    }
}

// What rules of the device do.
impl TxStream {
    /// Returns whether nothing more is to be sent.
    #[cold]
    fn is_silent(&mut self, qp: &QpShared) -> bool {
        let silent = self
            .injection
            .as_ref()
            .is_some_and(|injection| injection.is_silent(qp));
        if silent {
            self.after.insert(After::LookAtRule);
        }
        silent
    }

    /// Returns whether nothing more of the current message is sent now.
    #[cold]
    pub(super) fn is_interrupted(&mut self, qp: &QpShared) -> bool {
        let (Some(rule), Some(current)) = (&mut self.inside, &self.context.sender.current) else {
            return false;
        };
        if !rule.is_there(qp) {
            self.inside = None;
            return false;
        }
        let segmenter = &current.segmenter;
        let cut = segmenter
            .payload_len()
            .saturating_sub(segmenter.remaining());
        if cut < rule.after() {
            return false;
        }
        // A reset would take back what the peer has not got.
        let is_there = self.batch.is_empty() && self.conn.socket().is_acked();
        if is_there {
            match rule.rule_rest() {
                RestRuling::Goes => {
                    self.inside = None;
                    return false;
                }
                RestRuling::Held => {}
                RestRuling::Ends(end) => {
                    self.inside = None;
                    self.after.add(qp.end_on_purpose(end));
                    return true;
                }
            }
        }
        self.after.insert(After::LookAtRule);
        true
    }

    /// Looks at the request at `slot`, which was dequeued last, as one that has been posted.
    /// Returns whether it does not go on now.
    #[cold]
    fn is_held_as_posted(&mut self, qp: &QpShared, slot: Slot) -> bool {
        if qp.device.strict.is_on() {
            self.sources.watch(qp, slot, &self.wr);
        }
        self.inject(qp, slot, Point::Post)
    }

    /// Asks about the request at `slot`, which was dequeued last, when it has been posted and when
    /// it is to be sent. Returns whether it does not go on now: it is held, or its stream has
    /// ended.
    #[cold]
    fn inject(&mut self, qp: &QpShared, slot: Slot, point: Point) -> bool {
        let Some(operation) = operation_of(&self.wr.op) else {
            return false;
        };
        if point == Point::Post && self.seen == Some(slot) {
            return false;
        }
        let query = RuleQuery::of_request(point, operation, &self.wr);
        let after = match Injection::ask(&mut self.injection, qp, &self.conn, &query) {
            Ruling::Held => {
                self.held = Some(slot);
                self.after.insert(After::LookAtRule);
                return true;
            }
            Ruling::Fails(failed) => {
                qp.trace_wr_start(slot, &self.wr);
                self.wr.forget();
                qp.fail_request(slot, failed)
            }
            Ruling::Ends(end) => {
                // The flush has the request.
                qp.trace_wr_start(slot, &self.wr);
                self.held = Some(slot);
                qp.end_on_purpose(end)
            }
            Ruling::GoesAndLooks => {
                self.after.insert(After::LookAtRule);
                return self.pass(qp, slot, &query);
            }
            Ruling::Corrupted(corruption) => {
                self.corruption = Some(corruption);
                return self.pass(qp, slot, &query);
            }
            Ruling::GoesUntil(rule) => {
                self.inside = Some(rule);
                return self.pass(qp, slot, &query);
            }
            // A request takes no receive (`iwarp::inject`).
            Ruling::Goes | Ruling::NoReceive => return self.pass(qp, slot, &query),
        };
        self.after.add(after);
        true
    }

    /// Lets a request go on; asks about the completion of one that is sent now. Returns false.
    fn pass(&mut self, qp: &QpShared, slot: Slot, query: &RuleQuery) -> bool {
        if query.point() == Point::Post {
            self.seen = Some(slot);
            return false;
        }
        self.seen = None;
        let query = query.of_completion();
        let injection = &mut self.injection;
        match Injection::ask_for_completion(injection, qp, &self.conn, &query, slot) {
            Ok(true) => self.after.insert(After::LookAtRule),
            Ok(false) => {}
            Err(_) => qp.device.warn(fmt!("no memory for a rule of a completion")),
        }
        false
    }
}

impl TxStream {
    /// Checks the request at `slot`, which begins now, and lets its completion be late. The device
    /// is strict.
    #[cold]
    fn be_strict(&mut self, qp: &QpShared, slot: Slot) {
        self.outstanding.check(qp, slot, &self.wr);
        let number = qp.device.injector.number();
        // Without memory it is not late.
        if qp.sq.choose_completions(number).is_ok() {
            self.after.insert(After::LookAtRule);
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
    fn must_wait(&self, wr: &SendWr, is_confirmed: bool) -> bool {
        let reads = matches!(
            wr.op,
            SendOp::Read { .. }
                | SendOp::Atomic { .. }
                | SendOp::Flush(_)
                | SendOp::AtomicWrite { .. }
        ) || is_confirmed;
        (wr.fence || reads) && self.must_wait_for_reads(wr, reads)
    }

    /// Returns whether a Read behind the request completes it.
    #[inline]
    fn is_confirmed(&self, wr: &SendWr, confirmed: Confirmed) -> bool {
        confirmed != Confirmed::None && self.is_of_confirmed(wr, confirmed)
    }

    /// [`QpShared::is_confirmed`], where some are. Apart, since most streams have none.
    #[inline(never)]
    fn is_of_confirmed(&self, wr: &SendWr, confirmed: Confirmed) -> bool {
        let asked = match wr.op {
            SendOp::Write { .. } => confirmed.writes(),
            SendOp::Send(_) | SendOp::Immediate(_) => confirmed.sends(),
            _ => false,
        };
        asked && (wr.signalled || self.sq.signal_policy() == SignalPolicy::All)
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

impl QpShared {
    /// Waits for the answer to a Read of zero octets. It completes `slot`, or nothing if no
    /// consumer posted it.
    pub(super) fn await_confirmation(&self, slot: Option<Slot>) {
        let state = Outstanding::Read(ReadState::new(&ReadRequest::NOTHING));
        self.sq.read_sent(slot, state, None, None);
    }
}

/// Checks an Atomic Write of `len` octets, to a peer that has `agreed` to take it.
///
/// # Errors
///
/// [`WcStatus::LocalQpOperation`] if it has not, or for an address that is not a multiple of 8;
/// [`WcStatus::LocalLength`] for any other length than 8.
fn check_atomic_write(agreed: bool, to: u64, len: u32) -> Result<(), WcStatus> {
    if !agreed || to % u64::from(ATOMIC_WRITE_LEN) != 0 {
        return Err(WcStatus::LocalQpOperation);
    }
    if len != u32::from(ATOMIC_WRITE_LEN) {
        return Err(WcStatus::LocalLength);
    }
    Ok(())
}

impl TxContext {
    /// Finds the regions of a payload of `len` octets. The list of a message of one FPDU is checked
    /// when it is packed, before any octet is sent.
    #[inline(always)]
    fn find_slices(&mut self, qp: &QpShared, payload: &Payload, len: u32) -> Result<(), WcStatus> {
        let (slices, cache) = (&mut self.slices, &mut self.cache);
        if len as usize + UntaggedHeader::LEN <= usize::from(self.mulpdu) {
            slices.find(payload, &qp.regions, cache)
        } else {
            slices.resolve(payload, &qp.regions, qp.pd(), LocalUse::Source, cache)
        }
    }

    /// Starts a Read; fills the sink into `request`.
    fn begin_read(
        &mut self,
        qp: &QpShared,
        payload: &Payload,
        slot: Slot,
        mut request: ReadRequest,
        invalidate_local: bool,
    ) -> Result<(), WcStatus> {
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
        let state = Outstanding::Read(ReadState::new(&request));
        qp.sq.read_sent(Some(slot), state, sink, invalidate);
        self.sender.begin_read(request, Job::AwaitResponse(slot));
        Ok(())
    }

    /// Starts a Flush. A peer that has not `agreed` is asked for no octets: its answer says that
    /// what was sent before is placed, and that is what GLOBAL asks for.
    ///
    /// # Errors
    ///
    /// [`WcStatus::LocalQpOperation`] if the peer takes no Reads, or cannot be asked for more.
    fn begin_flush(
        &mut self,
        qp: &QpShared,
        slot: Slot,
        request: FlushRequest,
        agreed: bool,
    ) -> Result<(), WcStatus> {
        let persistent = request.placement.contains(FlushPlacement::PERSISTENT);
        if !self.reads || (persistent && !agreed) {
            return Err(WcStatus::LocalQpOperation);
        }
        if agreed {
            let answer = answered_as(&request.to_request());
            let state = Outstanding::Read(ReadState::new(&answer));
            qp.sq.read_sent(Some(slot), state, None, None);
            self.sender.begin_flush(request, slot);
        } else {
            qp.await_confirmation(Some(slot));
            self.sender
                .begin_read(ReadRequest::NOTHING, Job::AwaitResponse(slot));
        }
        Ok(())
    }

    /// Starts an atomic operation on the peer's buffer `target`.
    fn begin_atomic(
        &mut self,
        qp: &QpShared,
        payload: &Payload,
        slot: Slot,
        target: (Stag, TaggedOffset),
        operation: AtomicOperation,
    ) -> Result<(), WcStatus> {
        if payload.len() < u64::from(TARGET_LEN) {
            return Err(WcStatus::LocalLength);
        }
        let sink = self.sink(qp, payload)?;
        let identifier = self.sender.begin_atomic(target, operation, slot);
        qp.sq
            .read_sent(Some(slot), Outstanding::Atomic { identifier }, sink, None);
        Ok(())
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
}
