// SPDX-License-Identifier: GPL-2.0

//! The send queue: from a posted work request to its completion.
//!
//! A process stores requests in the ring it has mapped; a kernel consumer posts them. The transmit
//! task takes them one by one; a taken request is pending until it is done. Completions leave
//! **strictly in submission order** across all kinds of requests (RFC 5040, section 5.5, rule 15;
//! RDMAP-118): a Send behind a Read waits for the Read's Response although TCP has accepted its
//! octets.
//!
//! A Send or Write is done when TCP has accepted its last octet, a Read when its Response was
//! delivered, and so is a Write with a Read of zero octets behind it
//! ([`Confirmed`](crate::device::Confirmed)). So a pending request records where in the
//! octet stream it ends.
//!
//! Context: any, unless a function says otherwise. The transmit task calls `take`, `sent`,
//! `accepted` and the functions that begin Reads; the receiver calls the functions about Responses.

use iwarp::{
    atomic::AtomicResponse,
    fault::Fault,
    readq::{
        Depth,
        Outstanding,
        ReadPlacement,
        ReadState, //
    },
    receiver::{
        QueueRoom,
        Queued,
        TaggedSegment, //
    },
    stag::Stag, //
};
use kernel::{
    alloc::flags::__GFP_NOWARN,
    prelude::*,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Relaxed,
            Release, //
        },
        Arc, //
    }, //
};
use kernel_ext::{
    compat::{
        new_spinlock_irq,
        SpinLockIrq, //
    },
    mm::memcg::Memcg,
    rdma::{
        types::SignalPolicy,
        wr::{
            WcExtra,
            WcStatus, //
        }, //
    },
    trace::WrComplete,
    warn_on_once, //
};

use crate::{
    abi::{
        user::SendRing,
        wr::{
            empty_ring,
            wr_ring,
            BadWr,
            Completion,
            SendWr,
            WcOrigin, //
        }, //
    },
    mem::sge::Slice,
    queue::cq::Cq, //
};

mod marks;
mod pending;
mod ruled;
#[cfg(CONFIG_KUNIT = "y")]
mod tests;

pub(crate) use marks::{
    Slot,
    TxMarks, //
};
use pending::{
    PendingRing,
    PendingWqe, //
};
pub(crate) use ruled::{
    CompletionRule,
    FailedByRule,
    RuleLook, //
    RuledEvent,
};
use ruled::{
    DueCompletion, //
    RuledCompletions,
};

use super::first_position;

/// How full a send queue is.
pub(crate) struct Occupancy {
    /// Requests that were posted and not taken.
    pub(crate) posted: u32,
    /// Requests that were taken and are not complete.
    pub(crate) pending: u32,
    /// Outstanding Reads and atomic operations, and the ORD.
    pub(crate) reads: u32,
    pub(crate) max_reads: u32,
}

/// What [`SendQueue::take`] found.
pub(crate) enum Taken {
    /// A request, now pending.
    Wr(Slot),
    /// A malformed request, which no correct consumer posts; now pending.
    Bad(Slot, WcStatus),
    /// No request is posted that may be taken.
    Nothing,
    /// As many requests are pending as the queue has entries.
    Full,
}

/// What a pending request waits for.
#[derive(Clone, Copy)]
enum WqeState {
    /// The transmit task is working on it.
    Taken,
    /// TCP has to accept the stream up to this octet.
    Sent(u64),
    /// The peer has to respond.
    Reading,
    /// The request is over.
    Done(WcStatus),
}

/// An RDMA Read or atomic operation whose Response has not been delivered.
struct OutstandingRead {
    state: Outstanding,
    sink: Option<Slice>,
    invalidate: Option<Stag>,
    /// [`None`] for the ready-to-receive Read, which no consumer posted.
    slot: Option<Slot>,
}

struct SendQueueInner {
    /// The ring of a kernel consumer, whose requests from `taken` to `posted` are set; empty if a
    /// process has mapped one.
    kernel: KVVec<SendWr>,
    /// What the requests `done..taken` wait for, in a ring as long as the queue. All other entries
    /// are [`WqeState::Taken`], so that taking a request need not set its state.
    states: KVVec<WqeState>,
    /// Octets of the stream that TCP has accepted.
    accepted: u64,
    /// A ring of outstanding Reads, as long as the negotiated ORD.
    reads: KVVec<Option<OutstandingRead>>,
    depth: Depth,
    /// Completions that rules of the device change or hold, if any.
    ruled: Option<KBox<RuledCompletions>>,
}

/// The send queue of a queue pair.
#[pin_data]
pub(crate) struct SendQueue {
    /// Entries; a power of two, or 0 for a queue that accepts no requests.
    entries: u32,
    /// Every request generates a completion, requested or not.
    signal_all: bool,
    cq: Arc<Cq>,
    /// The ring that a process has mapped.
    user: Option<SendRing>,
    /// Requests taken from the ring so far, modulo 2^32; written by the transmit task.
    taken: Atomic<u32>,
    /// Requests posted so far, modulo 2^32; kernel rings only, written under the lock.
    posted: Atomic<u32>,
    /// Requests completed so far, modulo 2^32; written under the lock.
    done: Atomic<u32>,
    /// While the queue drains: the position, modulo 2^32, from which on requests are not taken; the
    /// task may already be past it. Else [`NEVER`].
    // ORDERING: Relaxed: stored before the transition to Closing or of `Attach`, both full
    // barriers; a transmit task that sees the phase sees this.
    last: Atomic<i64>,
    /// The contents of the completions of the requests `done..taken`.
    pending: PendingRing,
    #[pin]
    inner: SpinLockIrq<SendQueueInner>,
}

/// How many requests are completed under the lock at a time, at most.
const AT_ONCE: u32 = 64;

/// The value of `last` while the queue does not drain.
const NEVER: i64 = -1;

impl SendQueue {
    /// Makes the queue. `ring` has as many entries and is mapped by a process; without it the queue
    /// belongs to a kernel consumer, or has no entries.
    pub(crate) fn new(
        entries: u32,
        signal_all: bool,
        cq: Arc<Cq>,
        ring: Option<SendRing>,
    ) -> Result<impl PinInit<Self>> {
        let kernel = match ring {
            Some(_) => KVVec::new(),
            None => wr_ring(entries as usize)?,
        };
        let pending = PendingRing::new(entries)?;
        let flags = GFP_KERNEL_ACCOUNT | __GFP_NOWARN;
        let states = KVVec::from_elem(WqeState::Taken, entries as usize, flags)?;
        let first = first_position(entries);
        Ok(pin_init!(Self {
            entries,
            signal_all,
            cq,
            user: ring,
            taken: Atomic::new(first),
            posted: Atomic::new(first),
            done: Atomic::new(first),
            last: Atomic::new(NEVER),
            pending,
            inner <- new_spinlock_irq!(SendQueueInner {
                kernel,
                states,
                accepted: 0,
                reads: KVVec::new(),
                depth: Depth::new(0),
                ruled: None,
            }),
        }))
    }

    /// Returns which requests generate a completion.
    pub(crate) fn signal_policy(&self) -> SignalPolicy {
        if self.signal_all {
            SignalPolicy::All
        } else {
            SignalPolicy::OnRequest
        }
    }

    /// Returns the completion queue.
    pub(crate) fn cq(&self) -> &Arc<Cq> {
        &self.cq
    }

    /// Makes `ord` entries for outstanding Reads and resets the octet stream.
    ///
    /// Context: process; before the transmit task runs.
    pub(crate) fn start(&self, ord: u16, owner: &Memcg) -> Result {
        let reads = empty_ring(usize::from(ord))?;
        owner.charge_list(&reads);
        let _drop_outside_lock = {
            let mut inner = self.inner.lock();
            inner.accepted = 0;
            self.last.store(NEVER, Relaxed);
            inner.depth = Depth::new(ord);
            core::mem::replace(&mut inner.reads, reads)
        };
        Ok(())
    }

    /// Calls `f`, which posts requests of a kernel consumer.
    ///
    /// Context: any; interrupts are off during the call, and the lock is held.
    pub(crate) fn post_all<R>(&self, f: impl FnOnce(&mut Posting<'_>) -> R) -> R {
        f(&mut Posting {
            queue: self,
            inner: &mut self.inner.lock(),
        })
    }

    /// Posts a request as a kernel consumer.
    ///
    /// # Errors
    ///
    /// Those of [`Posting::post`].
    #[cfg(CONFIG_KUNIT = "y")]
    pub(crate) fn post(&self, wr: SendWr) -> Result {
        let fill = |place: &mut SendWr| {
            *place = wr;
            Ok(())
        };
        self.post_all(|queue| queue.post(fill))
    }

    /// Returns how many requests a kernel consumer has posted so far, modulo 2^32.
    #[inline]
    fn posted(&self) -> u32 {
        // ORDERING: none without the lock. Who reads a request takes the lock after this load, and
        // so after the poster's, which stores the number before it unlocks.
        self.posted.load(Relaxed)
    }

    /// Returns how many requests were taken so far, modulo 2^32.
    #[inline]
    pub(crate) fn taken(&self) -> u32 {
        // ORDERING: pairs with the release in `take_posted`.
        self.taken.load(Acquire)
    }

    /// Returns how many requests were completed so far, modulo 2^32.
    #[inline]
    fn done(&self) -> u32 {
        // ORDERING: none: for readers with the lock under which it is written; `flush` looks again
        // there. Others use `is_full`.
        self.done.load(Relaxed)
    }

    /// Returns whether a posted request has not been taken.
    pub(crate) fn has_posted(&self) -> bool {
        let taken = self.taken();
        match &self.user {
            Some(ring) => ring.is_posted(taken),
            None => self.posted() != taken,
        }
    }

    /// Returns whether nothing seems to be posted, without the lock: a consumer that posts now
    /// rings the doorbell.
    ///
    /// Context: the transmit task.
    #[inline]
    pub(crate) fn looks_empty(&self) -> bool {
        // ORDERING: a plain load may miss a request only if its poster has not called
        // `SerialTask::run` or `rearm` yet. That call either finds this task running, which then
        // makes a round that acquires the request, or starts one behind it.
        match &self.user {
            Some(ring) => !ring.is_posted(self.taken()),
            None => self.posted() == self.taken(),
        }
    }

    /// Takes the oldest posted request into `wr`; the request becomes pending.
    pub(crate) fn take(&self, wr: &mut SendWr) -> Taken {
        if self.looks_empty() {
            Taken::Nothing
        } else {
            self.take_posted(wr)
        }
    }

    /// Takes it, if the queue does not [look empty](SendQueue::looks_empty).
    pub(crate) fn take_posted(&self, wr: &mut SendWr) -> Taken {
        // Only the transmit task advances `taken`.
        let position = self.taken();
        if self.is_drained_at(position) {
            return Taken::Nothing;
        }
        if self.is_full() {
            return Taken::Full;
        }
        let index = self.index(position);
        let taken = match &self.user {
            Some(ring) => ring.read(position, wr),
            None => self.take_from_kernel(index, wr),
        };
        let slot = Slot(position);
        let (wqe, taken) = match taken {
            None => return Taken::Nothing,
            Some(Ok(())) => {
                let wqe = PendingWqe {
                    id: wr.id,
                    opcode: wr.op.wc_opcode(),
                    bytes: wr.bytes(),
                    signalled: wr.signalled || self.signal_all,
                };
                (wqe, Taken::Wr(slot))
            }
            Some(Err(BadWr { id, opcode, status })) => {
                let wqe = PendingWqe {
                    id,
                    opcode,
                    bytes: 0,
                    signalled: true,
                };
                (wqe, Taken::Bad(slot, status))
            }
        };
        self.pending.put(index, wqe);
        // ORDERING: pairs with the acquire in `taken`: a reader that sees the request sees its
        // entry.
        self.taken.store(position.wrapping_add(1), Release);
        // Only now, so that whoever looks meanwhile finds the request posted or taken.
        if let Some(ring) = &self.user {
            ring.release(position);
        }
        taken
    }

    #[inline(never)]
    fn take_from_kernel(&self, index: usize, wr: &mut SendWr) -> Option<Result<(), BadWr>> {
        self.inner.lock().kernel.get_mut(index)?.move_to(wr);
        Some(Ok(()))
    }

    /// Returns whether the request at `position` was posted after the queue began to drain.
    #[inline]
    fn is_drained_at(&self, position: u32) -> bool {
        // The task may have taken requests while `drain` counted them, hence "not before". CAST:
        // the sign of the distance.
        u32::try_from(self.last.load(Relaxed))
            .is_ok_and(|last| position.wrapping_sub(last) as i32 >= 0)
    }

    /// Returns whether the queue drains, and each request that was posted before has been taken.
    pub(crate) fn is_drained(&self) -> bool {
        self.is_drained_at(self.taken())
    }

    /// Starts to drain: requests posted from now on are not taken, but flushed at the end.
    pub(crate) fn drain(&self) {
        let posted = match &self.user {
            // A request that the process posts meanwhile may be counted or not.
            Some(ring) => ring.end(self.taken()),
            None => self.posted(),
        };
        self.last.store(posted.into(), Relaxed);
    }

    /// Records that the request ends `end` octets into the stream. The record stays in `marks`
    /// until they are full, or [`SendQueue::accepted`] is called.
    #[inline]
    pub(crate) fn sent(&self, marks: &mut TxMarks, slot: Slot, end: u64) {
        if !marks.push(slot, end) {
            self.inner.lock().note(self, marks);
            marks.push(slot, end);
        }
    }

    /// Ends a request with `status`, and completes all requests that are over.
    pub(crate) fn finish(&self, slot: Slot, status: WcStatus, origin: WcOrigin) {
        {
            let mut inner = self.inner.lock();
            inner.set_state(self, slot, WqeState::Done(status));
            if !inner.complete(self, origin) {
                return;
            }
        }
        self.complete(origin);
    }

    /// Records that TCP has accepted the stream up to `position`, with the marks collected so far,
    /// and completes all requests that are over.
    pub(crate) fn accepted(&self, position: u64, marks: &mut TxMarks, origin: WcOrigin) {
        {
            let mut inner = self.inner.lock();
            inner.note(self, marks);
            inner.accepted = position;
            if !inner.complete(self, origin) {
                return;
            }
        }
        self.complete(origin);
    }

    /// Completes all requests that are over, releasing the lock and enabling interrupts in between.
    fn complete(&self, origin: WcOrigin) {
        while self.inner.lock().complete(self, origin) {}
    }

    /// Returns whether as many requests are pending as the queue has entries. A process may post as
    /// many behind them, since its ring entries are free once taken.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        // ORDERING: pairs with the release in `complete_one`: the entry is free again.
        self.taken().wrapping_sub(self.done.load(Acquire)) >= self.entries
    }

    /// Returns how full the queue is.
    pub(crate) fn occupancy(&self) -> Occupancy {
        let ring = self.user.as_ref().map(|ring| ring.posted(self.taken()));
        let inner = self.inner.lock();
        let taken = self.taken();
        Occupancy {
            posted: ring.unwrap_or_else(|| self.posted().wrapping_sub(taken)),
            pending: taken.wrapping_sub(self.done()),
            reads: inner.depth.used().into(),
            max_reads: inner.depth.limit().into(),
        }
    }

    /// Returns whether every taken request is complete.
    pub(crate) fn is_idle(&self) -> bool {
        // Under the lock, so that the completions are posted too.
        let _inner = self.inner.lock();
        self.taken() == self.done()
    }

    /// Returns whether the peer still has to receive part of a taken request, or of a posted one if
    /// the transmit task `takes` those. A peer that has ended its half of the stream answers no
    /// Read, so no request behind an outstanding one can succeed.
    pub(crate) fn has_unsent(&self, takes: bool) -> bool {
        // First: a request that is taken meanwhile counts below.
        let posted = takes && self.has_posted() && !self.is_drained();
        let inner = self.inner.lock();
        (posted || self.taken() != self.done()) && inner.depth.used() == 0
    }

    /// Returns whether another Read or atomic operation may be outstanding; at most the negotiated
    /// ORD may (RDMAP-128, EXT-42).
    pub(crate) fn may_read(&self) -> bool {
        self.inner.lock().depth.room() == QueueRoom::Free
    }

    /// Returns whether no Read and no atomic operation is outstanding; a fenced request waits for
    /// this.
    pub(crate) fn no_reads(&self) -> bool {
        self.inner.lock().depth.used() == 0
    }

    /// Records a Read or atomic operation whose Request goes out now. Check [`SendQueue::may_read`]
    /// first: only the transmit task adds Reads, so the entry stays free in between.
    pub(crate) fn read_sent(
        &self,
        slot: Option<Slot>,
        state: Outstanding,
        sink: Option<Slice>,
        invalidate: Option<Stag>,
    ) {
        let mut inner = self.inner.lock();
        let inner = &mut *inner;
        if let Some(slot) = slot {
            inner.set_state(self, slot, WqeState::Reading);
        }
        let place = inner
            .depth
            .try_take()
            .and_then(|at| inner.reads.get_mut(usize::from(at)));
        // A posted request has waited until a Read may begin, and only its task begins any. Without
        // an entry its Response is unsolicited and ends the stream.
        warn_on_once!(slot.is_some() && place.is_none());
        if let Some(place) = place {
            *place = Some(OutstandingRead {
                state,
                sink,
                invalidate,
                slot,
            });
        }
    }

    /// Checks a segment of a Read Response against the oldest outstanding request. Returns the
    /// sink, or [`None`] for a Read of zero octets.
    ///
    /// # Errors
    ///
    /// The fault to report: the oldest request is not a Read, or the segment does not answer it
    /// (RDMAP-77).
    pub(crate) fn read_response(
        &self,
        segment: &TaggedSegment,
    ) -> Result<(ReadPlacement, Option<Slice>), Fault> {
        let mut inner = self.inner.lock();
        let read = inner.oldest_read().ok_or(Fault::ResponseUnsolicited)?;
        let placement = Outstanding::expect_read(Some(&mut read.state))?.accept(segment)?;
        // Only a Read of no octets has no sink, and its Response with a payload was refused.
        warn_on_once!(read.sink.is_none() && segment.payload.len != 0);
        Ok((placement, read.sink.clone()))
    }

    /// Returns the progress of the Read that is the oldest outstanding request, and its sink.
    pub(crate) fn oldest_read_state(&self) -> Option<(ReadState, Option<Slice>)> {
        let mut inner = self.inner.lock();
        let read = inner.oldest_read()?;
        match &read.state {
            Outstanding::Read(state) => Some((*state, read.sink.clone())),
            Outstanding::Atomic { .. } => None,
        }
    }

    /// Returns the cookie of the request that is the oldest outstanding Read or atomic operation; 0
    /// if no consumer has posted it.
    #[cold]
    pub(crate) fn oldest_read_id(&self) -> u64 {
        let slot = self.oldest_posted_read().map(|(slot, _)| slot);
        let wqe = slot.and_then(|slot| self.pending.get(self.index(slot.0)));
        wqe.map_or(0, |wqe| wqe.id)
    }

    /// Returns whether a request that was taken is not complete.
    #[inline(always)]
    pub(crate) fn is_pending(&self, slot: Slot) -> bool {
        let done = self.done();
        slot.0.wrapping_sub(done) < self.taken().wrapping_sub(done)
    }

    /// Returns how many pending requests generate a completion.
    #[cold]
    pub(crate) fn signalled(&self) -> u32 {
        let _no_completion = self.inner.lock();
        let (done, taken) = (self.done(), self.taken());
        let pending = (0..taken.wrapping_sub(done)).map(|ahead| done.wrapping_add(ahead));
        let signalled = pending.filter(|position| {
            let wqe = self.pending.get(self.index(*position));
            wqe.is_some_and(|wqe| wqe.signalled)
        });
        // CAST: as many as a queue has entries at most.
        signalled.count() as u32
    }

    /// Replaces the progress of the Read that is the oldest outstanding request, unless that was
    /// flushed meanwhile.
    pub(crate) fn set_read_state(&self, state: ReadState) {
        if let Some(OutstandingRead {
            state: Outstanding::Read(old),
            ..
        }) = self.inner.lock().oldest_read()
        {
            *old = state;
        }
    }

    /// Checks an Atomic Response against the oldest outstanding request. Returns the target's
    /// previous value and its sink.
    ///
    /// # Errors
    ///
    /// Those of [`Outstanding::accept_atomic`].
    pub(crate) fn atomic_response(
        &self,
        response: Queued<AtomicResponse>,
    ) -> Result<(u64, Option<Slice>), Fault> {
        let mut inner = self.inner.lock();
        let oldest = inner.oldest_read();
        let original =
            Outstanding::accept_atomic(oldest.as_ref().map(|read| &read.state), response)?;
        Ok((original, oldest.and_then(|read| read.sink.clone())))
    }

    /// Returns the slot of the oldest outstanding request, and the local STag that it invalidates.
    /// [`None`] if nothing is outstanding, or the ready-to-receive Read, which no consumer posted.
    pub(crate) fn oldest_posted_read(&self) -> Option<(Slot, Option<Stag>)> {
        let mut inner = self.inner.lock();
        let read = inner.oldest_read()?;
        read.slot.map(|slot| (slot, read.invalidate))
    }

    /// Removes the oldest outstanding request, so that a fenced request may begin. The caller has
    /// invalidated what [`SendQueue::oldest_posted_read`] names, and calls [`SendQueue::finish`]
    /// for its slot. Returns whether there was one.
    pub(crate) fn read_done(&self) -> bool {
        // The region of the sink is dropped without the lock.
        let read = {
            let mut inner = self.inner.lock();
            let inner = &mut *inner;
            let at = inner.depth.release();
            at.and_then(|at| inner.reads.get_mut(usize::from(at))?.take())
        };
        read.is_some()
    }

    /// Completes pending requests with an error, then takes and flushes those that are only posted.
    ///
    /// The oldest request that is not done gets `first`, if given; all others are flushed. Returns
    /// whether more may have been posted meanwhile: one call takes about as many requests as the
    /// queue has entries, so that a process that keeps posting cannot hold the caller.
    ///
    /// Context: process; the transmit task.
    #[must_use]
    pub(crate) fn flush(&self, mut first: Option<WcStatus>, origin: WcOrigin) -> bool {
        self.last.store(NEVER, Relaxed);
        self.end_rules(origin);
        // Drops the regions of outstanding Reads without the lock.
        while self.read_done() {}
        let mut wr = SendWr::default();
        for _ in 0..=self.entries {
            while self.done() != self.taken() {
                let mut inner = self.inner.lock();
                let inner = &mut *inner;
                for _ in 0..AT_ONCE {
                    let done = self.done();
                    if done == self.taken() {
                        break;
                    }
                    let state = inner.states.get(self.index(done));
                    let over = matches!(state, Some(WqeState::Done(_)));
                    if !over {
                        let status = first.take().unwrap_or(WcStatus::Flushed);
                        inner.set_state(self, Slot(done), WqeState::Done(status));
                    }
                    // It is done by now. Else this would go on for ever.
                    if warn_on_once!(!inner.complete_one(self, origin)) {
                        return false;
                    }
                }
            }
            match self.take(&mut wr) {
                Taken::Wr(_) | Taken::Bad(..) => wr.forget(),
                Taken::Nothing | Taken::Full => return false,
            }
        }
        true
    }

    fn index(&self, position: u32) -> usize {
        (position & self.entries.wrapping_sub(1)) as usize
    }
}

/// A send queue whose lock is held, so that a list of requests costs one lock.
pub(crate) struct Posting<'a> {
    queue: &'a SendQueue,
    inner: &'a mut SendQueueInner,
}

impl Posting<'_> {
    /// Posts a request, which `fill` fills in place: it may have the payload of an earlier request.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if as many are posted or pending as the queue has entries, or the error of `fill`;
    /// then nothing is posted.
    #[inline]
    pub(crate) fn post(&mut self, fill: impl FnOnce(&mut SendWr) -> Result) -> Result {
        let queue = self.queue;
        let posted = queue.posted();
        if posted.wrapping_sub(queue.done()) >= queue.entries {
            return Err(ENOMEM);
        }
        let place = self.inner.kernel.get_mut(queue.index(posted));
        fill(place.ok_or(EINVAL)?)?;
        // ORDERING: The lock orders what was filled before the take. The caller starts the transmit
        // task afterwards, which then sees this.
        queue.posted.store(posted.wrapping_add(1), Relaxed);
        Ok(())
    }
}

impl SendQueueInner {
    fn oldest_read(&mut self) -> Option<&mut OutstandingRead> {
        let at = self.depth.oldest()?;
        self.reads.get_mut(usize::from(at))?.as_mut()
    }

    /// Notes where requests end in the stream.
    fn note(&mut self, queue: &SendQueue, marks: &mut TxMarks) {
        for (slot, end) in marks.drain() {
            self.set_state(queue, slot, WqeState::Sent(end));
        }
    }

    fn set_state(&mut self, queue: &SendQueue, slot: Slot, state: WqeState) {
        // It may have been flushed meanwhile.
        if !queue.is_pending(slot) {
            return;
        }
        if let Some(place) = self.states.get_mut(queue.index(slot.0)) {
            *place = state;
        }
    }

    /// Completes requests in order until one is not over; returns whether more may be.
    fn complete(&mut self, queue: &SendQueue, origin: WcOrigin) -> bool {
        for _ in 0..AT_ONCE {
            if queue.done() == queue.taken() || !self.complete_one(queue, origin) {
                return false;
            }
        }
        true
    }

    /// Completes the oldest pending request if it is over; returns whether it was.
    fn complete_one(&mut self, queue: &SendQueue, origin: WcOrigin) -> bool {
        let done = queue.done();
        let index = queue.index(done);
        let (Some(state), Some(wqe)) = (self.states.get_mut(index), queue.pending.get(index))
        else {
            // Both rings are as long as the queue, by which the index was masked.
            warn_on_once!(true);
            return false;
        };
        let status = match *state {
            WqeState::Taken | WqeState::Reading => return false,
            WqeState::Sent(end) if end > self.accepted => return false,
            WqeState::Sent(_) => WcStatus::Success,
            WqeState::Done(status) => status,
        };
        let (mut status, mut vendor_err) = (status, None);
        if let (WcStatus::Success, Some(ruled)) = (status, &mut self.ruled) {
            match ruled.judge(done, queue.is_full()) {
                DueCompletion::Goes => {}
                DueCompletion::Held => return false,
                DueCompletion::Fails(failed) => {
                    (status, vendor_err) = (failed.status, Some(failed.vendor))
                }
            }
        }
        *state = WqeState::Taken;
        // ORDERING: pairs with the acquire in `is_full`: the entry has been read. Stored before the
        // completion is posted, since its consumer may post one more request then.
        queue.done.store(done.wrapping_add(1), Release);
        if WrComplete::is_enabled() {
            WrComplete::record(move || WrComplete {
                dev: queue.cq.device_name(),
                qpn: origin.qpn,
                seq: Slot(done).position(),
                wr_id: wqe.id,
                opcode: wqe.opcode.to_raw(),
                status: status.to_raw(),
                len: wqe.bytes,
            });
        }
        if wqe.signalled || status != WcStatus::Success {
            queue.cq.post(&Completion {
                id: wqe.id,
                status,
                opcode: wqe.opcode,
                bytes: wqe.bytes,
                extra: WcExtra::None,
                immediate: None,
                qpn: origin.qpn,
                qp: origin.qp,
                solicited: status != WcStatus::Success,
                vendor_err: vendor_err.unwrap_or(origin.vendor_err_of(status)),
            });
        }
        true
    }
}
