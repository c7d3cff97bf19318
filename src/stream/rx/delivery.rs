// SPDX-License-Identifier: GPL-2.0

//! What the receiver does to its queue pair, and to memory: copies payloads, takes and completes
//! receives, queues the peer's requests.
//!
//! Context: softirq, or process with the socket locked.

use core::cell::Cell;

use iwarp::{
    actions::{
        After,
        Set, //
    },
    atomic::{
        AtomicRequest,
        AtomicResponse, //
    },
    fault::Fault,
    flush::{
        FlushPlacement,
        FlushRequest, //
    },
    lifecycle::Event,
    mpa,
    rdmap::ReadRequest,
    readq::ReadPlacement,
    receiver::{
        PayloadSpan,
        QueueRoom,
        Queued,
        SendSegment,
        TaggedSegment,
        ATOMIC_WRITE_LEN, //
    },
    stag::{
        Access,
        Stag, //
    },
    stream::{
        Delivery,
        NotPlaced,
        NotTaken,
        ReceiveFailure,
        Received, //
    },
    terminate::{
        Quoted,
        Terminate, //
    }, //
};
use kernel::{
    prelude::*,
    sync::atomic::Relaxed, //
};
use kernel_ext::{
    net::Inbound,
    rdma::{
        mem::mem_map::Memory,
        wr::WcStatus, //
    },
    static_key,
    sync::BhOff,
    warn_on_once, //
};

use super::{
    recv::Incoming,
    strict::LatePayload, //
};
use crate::{
    mem::{
        mr::{
            LocalUse,
            RegionGuard, //
        },
        peer::PeerAccess,
        sge::{
            NotCopied,
            RegionCache,
            SgeAccess,
            Slice, //
        }, //
    },
    odp::mr::{
        FetchedPages,
        RegionRange, //
    },
    queue::{
        readq::{
            InboundAtomic,
            InboundRead,
            InboundRequest, //
        },
        waits::ReceiveTurn, //
    },
    stream::{
        inject::ReceiveRule,
        owner::QpShared,
        strict::{
            Finding,
            KeyUser, //
        }, //
    }, //
};

/// What the receiver delivers an FPDU to.
pub(super) struct RxDelivery<'a, 'b> {
    pub(super) qp: &'a QpShared,
    pub(super) inbound: &'a mut Inbound<'b>,
    pub(super) off: BhOff<'a>,
    pub(super) incoming: &'a mut Incoming,
    pub(super) cache: &'a mut RegionCache,
    /// Offset of the FPDU in the receive queue.
    pub(super) pos: usize,
    /// Present if its memory was absent before.
    pub(super) again: Option<&'a Again<'a>>,
}

/// Another attempt to place a payload.
pub(super) struct Again<'a> {
    /// The memory that was fetched for it.
    pub(super) fetched: Option<&'a FetchedPages>,
    /// The memory that has to be fetched first.
    pub(super) absent: Cell<Option<RegionRange>>,
}

/// Returns the offset in the receive queue, and the length, of the payload of the FPDU at `pos`.
#[inline(always)]
pub(super) fn payload_of(pos: usize, payload: PayloadSpan) -> (usize, usize) {
    let at = pos + mpa::LENGTH_LEN + usize::from(payload.offset);
    (at, payload.len.into())
}

/// Places octets of the receive queue, by offset and length, at `offset` of an element of a
/// scatter/gather list.
#[inline(always)]
pub(super) fn place(
    inbound: &mut Inbound<'_>,
    (pos, len): (usize, usize),
    sink: &Slice,
    access: SgeAccess<'_>,
    offset: u32,
) -> Result<(), NotCopied> {
    sink.copy(access, offset, len, |inside, at| {
        Ok(inside.memory().copy_from_inbound(at, inbound, pos, len)?)
    })
}

/// Places the payload of a Write for the peer.
#[inline(always)]
pub(super) fn place_write(
    inbound: &mut Inbound<'_>,
    (pos, len): (usize, usize),
    access: &PeerAccess<'_>,
    segment: &TaggedSegment,
) -> Result<(), NotPlaced<Fault>> {
    access.write(segment, |inside, at| {
        let copied = inside.memory().copy_from_inbound(at, inbound, pos, len);
        copied.map_err(not_written)
    })
}

/// Returns why a Write is not placed.
#[inline]
fn not_written(error: Error) -> NotPlaced<Fault> {
    match error {
        EAGAIN => NotPlaced::Absent,
        _ => NotPlaced::Refused(Fault::LocalPlacement),
    }
}

impl From<NotCopied> for NotPlaced<WcStatus> {
    #[inline]
    fn from(why: NotCopied) -> Self {
        match why {
            NotCopied::Absent(_) => Self::Absent,
            NotCopied::Refused(status) => Self::Refused(status),
        }
    }
}

impl Delivery for RxDelivery<'_, '_> {
    type Sink = Slice;
    type Status = WcStatus;

    #[inline(always)]
    fn place_write(&mut self, segment: &TaggedSegment) -> Result<(), NotPlaced<Fault>> {
        let invalid = Fault::TaggedInvalidStag;
        let region = self.cache.get(&self.qp.regions, segment.stag);
        let region = region.ok_or(invalid)?;
        let access = PeerAccess::open(region, self.qp.stream_id(), Some(self.off));
        let access = access.ok_or(invalid)?;
        let payload = payload_of(self.pos, segment.payload);
        match self.again {
            None => {
                if static_key::is_on() {
                    region.note_use(Access::REMOTE_WRITE);
                    let late = LatePayload {
                        qp: self.qp,
                        incoming: self.incoming,
                        inbound: self.inbound,
                        payload,
                    };
                    if late.leave_write(&access, segment) {
                        return Err(NotPlaced::Absent);
                    }
                }
                place_write(self.inbound, payload, &access, segment)
            }
            Some(again) => access.write(segment, |inside, at| {
                let (pos, len) = payload;
                let range = RegionRange::new(region, inside, at, len, LocalUse::Sink);
                let copy =
                    |memory: &Memory, at| memory.copy_from_inbound(at, self.inbound, pos, len);
                again.place_write(self.qp, inside, range, copy)
            }),
        }
    }

    fn place_atomic_write(&mut self, segment: &TaggedSegment) -> Result<(), NotPlaced<Fault>> {
        let invalid = Fault::TaggedInvalidStag;
        let region = self.cache.get(&self.qp.regions, segment.stag);
        let region = region.ok_or(invalid)?;
        let access = PeerAccess::open(region, self.qp.stream_id(), Some(self.off));
        let access = access.ok_or(invalid)?;
        if static_key::is_on() {
            region.note_use(Access::REMOTE_WRITE);
        }
        // In one piece, however they lie in TCP's queue: aligned memory gets them by one store.
        let mut octets = [0; ATOMIC_WRITE_LEN as usize];
        let (pos, len) = payload_of(self.pos, segment.payload);
        if len != octets.len() || !self.inbound.peek(pos, &mut octets) {
            return Err(NotPlaced::Refused(Fault::LocalPlacement));
        }
        access.write_atomic(segment, |inside, at| match self.again {
            None => inside.memory().write(at, &octets).map_err(not_written),
            Some(again) => {
                let range = RegionRange::new(region, inside, at, len, LocalUse::Sink);
                let write = |memory: &Memory, at| memory.write(at, &octets);
                again.place_write(self.qp, inside, range, write)
            }
        })
    }

    #[inline(always)]
    fn place_send(&mut self, offset: u32, payload: PayloadSpan) -> Result<(), NotPlaced<WcStatus>> {
        let (pos, len) = payload_of(self.pos, payload);
        let access = SgeAccess::sink(self.qp.receive_pd(), self.off);
        if let Some(again) = self.again {
            let Self { qp, inbound, .. } = self;
            return again.place_send(qp, inbound, (pos, len), self.incoming, access, offset);
        }
        if static_key::is_on() && self.late((pos, len)).leave_send(access, offset) {
            return Err(NotPlaced::Absent);
        }
        let Self {
            incoming, inbound, ..
        } = self;
        let copied = incoming.copy(access, offset, len, |memory, at, piece, done| {
            // NO-OVERFLOW: inside the FPDU.
            memory.copy_from_inbound(at, inbound, pos + done, piece)
        });
        copied.map_err(|why| {
            if let NotCopied::Absent(done) = why {
                incoming.placed = done;
            }
            why.into()
        })
    }

    #[inline(always)]
    fn place_response(
        &mut self,
        sink: &Slice,
        offset: u32,
        payload: PayloadSpan,
    ) -> Result<(), NotPlaced<WcStatus>> {
        let payload = payload_of(self.pos, payload);
        let access = SgeAccess::sink(self.qp.pd(), self.off);
        match self.again {
            None => {
                if static_key::is_on() {
                    // The sink of a Read needs the right on iWARP adapters.
                    sink.region.note_use(Access::REMOTE_WRITE);
                    if self.late(payload).leave_response(sink, access, offset) {
                        return Err(NotPlaced::Absent);
                    }
                }
                Ok(place(self.inbound, payload, sink, access, offset)?)
            }
            Some(again) => {
                let (pos, len) = payload;
                let placed = again.place(sink, access, (offset, len), |memory, at| {
                    memory.copy_from_inbound(at, self.inbound, pos, len)
                });
                placed.map_err(|why| again.note_absent(self.qp, why))
            }
        }
    }

    fn place_original(&mut self, sink: &Slice, original: u64) -> Result<(), NotPlaced<WcStatus>> {
        let octets = original.to_ne_bytes();
        let access = SgeAccess::sink(self.qp.pd(), self.off);
        match self.again {
            None => Ok(sink.copy(access, 0, octets.len(), |inside, at| {
                Ok::<_, NotCopied>(inside.memory().write(at, &octets)?)
            })?),
            Some(again) => {
                let placed = again.place(sink, access, (0, octets.len()), |memory, at| {
                    memory.write(at, &octets)
                });
                placed.map_err(|why| again.note_absent(self.qp, why))
            }
        }
    }

    fn has_receive(&self) -> bool {
        self.incoming.has_receive(self.qp)
    }

    #[inline(always)]
    fn take_receive(&mut self, segment: Option<&SendSegment>) -> Result<u32, NotTaken<WcStatus>> {
        self.incoming.take(self.qp, self.cache, segment)
    }

    #[inline(always)]
    fn complete_receive(&mut self, received: &Received) -> Result<(), Fault> {
        self.incoming.complete(self.qp, received)
    }

    fn fail_receive(&mut self, why: ReceiveFailure<WcStatus>) {
        if self.qp.device.strict.is_on() {
            self.incoming.check_keys(self.qp);
        }
        self.incoming.fail(
            self.qp,
            match why {
                ReceiveFailure::Length => WcStatus::LocalLength,
                ReceiveFailure::Invalidation => WcStatus::RemoteInvalidRequest,
                ReceiveFailure::Buffer(status) => status,
            },
        );
    }

    fn invalidate(&mut self, stag: Stag) -> Result<(), Fault> {
        self.qp.invalidate_remote(stag)
    }

    fn may_wait_for_receive(&self) -> bool {
        self.qp.receive_wait.load(Relaxed) != 0
    }

    fn begin_receive_wait(&mut self) {
        // The next look for a receive is an honest one.
        self.incoming
            .rule
            .take_if(|rule| *rule == ReceiveRule::Absent);
        if self.qp.device.strict.is_on() && self.qp.device.kind.posts_receives_first() {
            self.qp.report_finding(
                Finding::LateReceive,
                None,
                fmt!("a message of the peer found no receive, and waits"),
            );
        }
        self.qp.device.stats.rx_receive_waits.inc();
        self.qp.trace_receive_wait(true);
        self.qp.receives.queue().add_waiter();
    }

    fn has_waited_too_long(&mut self) -> bool {
        has_waited_too_long(self.qp, self.incoming.turn)
    }

    fn end_receive_wait(&mut self) {
        self.qp.end_receive_wait();
    }

    fn request_room(&self) -> QueueRoom {
        self.qp.inbound_reads.room()
    }

    #[inline(always)]
    fn queue_read(&mut self, request: ReadRequest, quoted: Option<Quoted>) -> Result<(), Fault> {
        let mut source = None;
        if request.len != 0 {
            // Checks the whole range now, before the first octet of the Response is sent
            // (RDMAP-156); each FPDU of the Response is checked again.
            let invalid = Fault::SourceInvalidStag;
            let region = self.cache.get(&self.qp.regions, request.source_stag);
            let region = region.ok_or(invalid)?;
            let access = PeerAccess::open(region, self.qp.stream_id(), Some(self.off));
            let access = access.ok_or(invalid)?;
            access.read(&request, request.len, |_, _| Ok::<_, Fault>(()))?;
            if static_key::is_on() {
                region.note_use(Access::REMOTE_READ);
            }
            source = Some(region.clone());
        }
        self.qp.put_request(InboundRequest::Read(InboundRead {
            request,
            source,
            quoted,
        }))?;
        self.qp.device.stats.rx_read_requests.inc();
        Ok(())
    }

    fn queue_flush(
        &mut self,
        request: &FlushRequest,
        answer: ReadRequest,
    ) -> Result<(), NotPlaced<Fault>> {
        let invalid = Fault::SourceInvalidStag;
        let region = self.cache.get(&self.qp.regions, request.stag);
        let region = region.ok_or(invalid)?;
        let access = PeerAccess::open(region, self.qp.stream_id(), Some(self.off));
        // The access ends with this statement, before the answer is queued.
        access.ok_or(invalid)?.flush(request, |inside, at, len| {
            if !request.placement.contains(FlushPlacement::PERSISTENT) {
                return Ok(());
            }
            // Before all that follows is placed: an Atomic Write may tell that this is persistent.
            // Not in softirq, since it may be long.
            let again = self.again.ok_or(NotPlaced::Absent)?;
            // CAST: `usize` is 64 bits.
            let range = RegionRange::to_write_back(region, inside, at, len as usize);
            again.write_back(range)
        })?;
        if static_key::is_on() {
            region.note_use(request.placement.needed());
        }
        // All that came before is stored, and the answer is sent under locks taken later: who sees
        // it, sees that.
        self.qp.put_request(InboundRequest::Read(InboundRead {
            request: answer,
            source: None,
            quoted: None,
        }))?;
        self.qp.device.stats.rx_read_requests.inc();
        Ok(())
    }

    fn queue_atomic(
        &mut self,
        request: AtomicRequest,
        quoted: Option<Quoted>,
    ) -> Result<(), Fault> {
        let invalid = Fault::SourceInvalidStag;
        let target = self.cache.get(&self.qp.regions, request.stag);
        let target = target.ok_or(invalid)?;
        let access = PeerAccess::open(target, self.qp.stream_id(), Some(self.off));
        // The access ends with this statement, before the request is queued.
        access.ok_or(invalid)?.operate(&request, |_, _| Ok(()))?;
        if static_key::is_on() {
            target.note_use(Access::REMOTE_ATOMIC);
        }
        self.qp.put_request(InboundRequest::Atomic(InboundAtomic {
            request,
            target: target.clone(),
            quoted,
        }))?;
        self.qp.device.stats.rx_atomic_requests.inc();
        Ok(())
    }

    #[inline(always)]
    fn read_response(
        &mut self,
        segment: &TaggedSegment,
    ) -> Result<(ReadPlacement, Option<Slice>), Fault> {
        self.qp.sq.read_response(segment)
    }

    fn atomic_response(&mut self, response: Queued<AtomicResponse>) -> Result<(u64, Slice), Fault> {
        let (original, sink) = self.qp.sq.atomic_response(response)?;
        // The transmit task sends no atomic operation without one.
        warn_on_once!(sink.is_none());
        Ok((original, sink.ok_or(Fault::LocalPlacement)?))
    }

    #[inline(always)]
    fn complete_request(&mut self) -> Set<After> {
        let qp = self.qp;
        let mut after = Set::NONE;
        let posted = qp.sq.oldest_posted_read();
        // A fenced request may begin once the Read is removed. It has to find the region invalid,
        // or the stream at its end.
        let refused = match posted {
            Some((slot, Some(stag))) => match qp.invalidate_local(stag) {
                Ok(()) => false,
                Err(status) => {
                    after = qp.refuse(slot, status);
                    true
                }
            },
            _ => false,
        };
        qp.sq.read_done();
        if let (Some((slot, _)), false) = (posted, refused) {
            qp.sq.finish(slot, WcStatus::Success, qp.origin());
        }
        after
    }

    fn fail_request(&mut self, status: WcStatus) {
        if self.qp.device.strict.is_on() {
            self.check_sink();
        }
        if let Some((slot, _)) = self.qp.sq.oldest_posted_read() {
            self.qp.sq.finish(slot, status, self.qp.origin());
        }
    }

    fn apply(&mut self, event: Event) -> Set<After> {
        self.qp.apply(event)
    }

    fn fault(&mut self, fault: Fault, quoted: Option<&Quoted>) -> Set<After> {
        let stats = &self.qp.device.stats;
        stats.rx_faults.inc();
        if fault == Fault::Crc {
            stats.crc_errors.inc();
        }
        self.qp.fault(fault, quoted)
    }

    fn terminated(&mut self, terminate: &Terminate) -> Set<After> {
        self.qp.terminated_by_peer(terminate)
    }
}

impl<'b> RxDelivery<'_, 'b> {
    /// Returns a payload, by offset in the receive queue and length, which may be late.
    fn late(&mut self, payload: (usize, usize)) -> LatePayload<'_, 'b> {
        LatePayload {
            qp: self.qp,
            incoming: self.incoming,
            inbound: self.inbound,
            payload,
        }
    }

    /// Reports the key of the memory to which the answer to the oldest Read was to go, if it has
    /// ended. The device is strict.
    #[cold]
    fn check_sink(&self) {
        if let Some((_, Some(sink))) = self.qp.sq.oldest_read_state() {
            let user = KeyUser::Request(self.qp.sq.oldest_read_id());
            self.qp.check_keys(user, core::iter::once(sink.key()));
        }
    }
}

/// Why a payload is not placed in memory that was absent before.
enum Halt<E> {
    /// This range has to be fetched first.
    Absent(RegionRange),
    /// It may not be placed there.
    Refused(E),
}

impl<E> From<E> for Halt<E> {
    fn from(why: E) -> Self {
        Self::Refused(why)
    }
}

impl Again<'_> {
    /// Notes what has to be fetched.
    #[cold]
    fn note_absent<E>(&self, qp: &QpShared, why: Halt<E>) -> NotPlaced<E> {
        match why {
            Halt::Absent(range) => {
                qp.device.stats.rx_page_waits.inc();
                self.absent.set(Some(range));
                NotPlaced::Absent
            }
            Halt::Refused(why) => NotPlaced::Refused(why),
        }
    }

    /// Returns whether the range is written back; notes it otherwise.
    fn write_back(&self, range: RegionRange) -> Result<(), NotPlaced<Fault>> {
        match self.fetched.and_then(|fetched| fetched.memory_of(&range)) {
            Some(Ok(_)) => Ok(()),
            // Only a region that has ended cannot be.
            Some(Err(_)) => Err(NotPlaced::Refused(Fault::SourceInvalidStag)),
            None => {
                self.absent.set(Some(range));
                Err(NotPlaced::Absent)
            }
        }
    }

    /// Places octets in a part of a scatter/gather list, by offset and length, by
    /// `copy(memory, offset)`: in the fetched memory, if that is this part.
    #[cold]
    fn place(
        &self,
        slice: &Slice,
        access: SgeAccess<'_>,
        (offset, len): (u32, usize),
        copy: impl FnOnce(&Memory, u64) -> Result,
    ) -> Result<(), Halt<WcStatus>> {
        slice.copy(access, offset, len, |inside, at| {
            let range = RegionRange::new(&slice.region, inside, at, len, LocalUse::Sink);
            let copied = range.copy(inside, self.fetched, copy);
            copied.map_err(|error| match error.into() {
                NotCopied::Absent(_) => Halt::Absent(range),
                NotCopied::Refused(status) => Halt::Refused(status),
            })
        })
    }

    /// Places the octets of a Write in `range`, by `copy(memory, offset)`.
    #[cold]
    fn place_write(
        &self,
        qp: &QpShared,
        inside: &RegionGuard<'_>,
        range: RegionRange,
        copy: impl FnOnce(&Memory, u64) -> Result,
    ) -> Result<(), NotPlaced<Fault>> {
        let copied = range.copy(inside, self.fetched, copy);
        copied.map_err(|error| match error {
            EAGAIN => self.note_absent(qp, Halt::Absent(range)),
            ENOMEM => NotPlaced::Refused(Fault::LocalPlacement),
            // The process has no memory mapped there.
            _ => NotPlaced::Refused(Fault::TaggedBounds),
        })
    }

    /// Places the rest of the octets of the receive queue in the receive, of which `placed` are.
    #[cold]
    fn place_send(
        &self,
        qp: &QpShared,
        inbound: &mut Inbound<'_>,
        (pos, len): (usize, usize),
        incoming: &mut Incoming,
        access: SgeAccess<'_>,
        offset: u32,
    ) -> Result<(), NotPlaced<WcStatus>> {
        let Incoming { buffer, placed, .. } = incoming;
        // CAST: less than the payload of one FPDU. NO-OVERFLOW: inside the message.
        let (offset, left) = (offset + *placed as u32, len - *placed);
        let walked = buffer.walk(offset, left, |slice, at, piece, _| {
            let pos = pos + *placed;
            self.place(slice, access, (at, piece), |memory, at| {
                memory.copy_from_inbound(at, inbound, pos, piece)
            })?;
            *placed += piece;
            Ok::<_, Halt<WcStatus>>(())
        });
        walked.map_err(|why| self.note_absent(qp, why))
    }
}

impl QpShared {
    fn put_request(&self, request: InboundRequest) -> Result<(), Fault> {
        // Only this receiver adds requests, so the room found before still exists.
        if self.inbound_reads.put(request) {
            Ok(())
        } else {
            Err(Fault::ReadDepth)
        }
    }

    /// Forgets the message that waits for a receive: it has its receive, or the stream ends.
    ///
    /// Context: the receive lock is held.
    #[cold]
    pub(crate) fn end_receive_wait(&self) {
        self.receives.queue().remove_waiter();
        self.waiter.end();
        self.trace_receive_wait(false);
    }
}

/// Returns whether a message may not wait any longer.
#[cold]
fn has_waited_too_long(qp: &QpShared, turn: ReceiveTurn) -> bool {
    match turn {
        ReceiveTurn::Later | ReceiveTurn::Now => false,
        ReceiveTurn::Review { millis, again } => {
            if !again {
                qp.device.warn(fmt!(
                    "queue pair {}: a message of the peer has waited {millis} ms for a receive",
                    qp.number
                ));
            }
            // Their answers stand behind the message.
            !qp.sq.no_reads()
        }
        ReceiveTurn::Over(millis) => {
            qp.device.stats.rx_receive_timeouts.inc();
            qp.device.warn(fmt!(
                "queue pair {}: no receive within {millis} ms for a message of the peer: post \
                 receives earlier, or raise receive_wait",
                qp.number
            ));
            true
        }
    }
}
