// SPDX-License-Identifier: GPL-2.0

//! The send queue: from a posted work request to its completion.
//!
//! What enters: requests that a process stored in the ring it has mapped, or that a kernel consumer
//! posted. The transmitter takes them one by one; what it took stays on the list of pending
//! requests until it is done. What leaves: completions, **strictly in submission order** across all
//! kinds of requests (RFC 5040, section 5.5, rule 15; RDMAP-118): a Send behind a Read waits for
//! the Read's response although TCP took its octets long ago.
//!
//! A Send or Write is done when TCP has accepted its last octet, a Read when its Response was
//! delivered. So a pending request knows where in the octet stream it ends.
//!
//! Context: any, unless a function says otherwise. The transmitter calls `take`, `sent`, `accepted`
//! and what begins Reads; the receiver the functions about Responses.

use iwarp::{
    atomic::AtomicResponse,
    fault::Fault,
    readq::{
        Depth,
        Outstanding,
        ReadPlacement, //
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
    new_spinlock_irq,
    prelude::*,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Relaxed,
            Release, //
        },
        Arc,
        SpinLockIrq, //
    }, //
};
use kernel_ext::rdma::{
    types::SignalPolicy,
    wr::{
        WcExtra,
        WcStatus, //
    }, //
};

use crate::{
    abi::{
        user::SendRing,
        wr::{
            empty_ring,
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
mod occupancy;
mod pending;
#[cfg(CONFIG_KUNIT = "y")]
mod tests;

pub(crate) use marks::TxMarks;
use pending::{
    PendingRing,
    PendingWqe, //
};

/// Names a pending request: its position in submission order, modulo 2^32.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slot(u32);

/// What [`SendQueue::take`] found.
pub(crate) enum Taken {
    /// A request, now pending.
    Wr(Slot),
    /// One that nobody can have posted in good faith, now pending.
    Bad(Slot, WcStatus),
    /// Nothing is posted that may be taken.
    Nothing,
    /// As many requests are pending as the queue is long.
    Full,
}

/// What a pending request waits for.
#[derive(Clone, Copy)]
enum WqeState {
    /// The transmitter has it.
    Taken,
    /// TCP has to accept the octets of the stream up to this one.
    Sent(u64),
    /// The peer has to respond.
    Reading,
    /// It is over.
    Done(WcStatus),
}

/// An RDMA Read or atomic operation whose Response has not been delivered.
struct OutstandingRead {
    state: Outstanding,
    sink: Option<Slice>,
    invalidate: Option<Stag>,
    /// [`None`] for the ready-to-receive Read, which nobody posted.
    slot: Option<Slot>,
}

struct SendQueueInner {
    /// The ring of a kernel consumer; without places if a process has mapped one.
    kernel: KVVec<Option<SendWr>>,
    /// Requests posted so far, modulo 2^32; kernel rings only.
    posted: u32,
    /// What the requests `done..taken` wait for, in a ring as long as the queue. All other places
    /// are [`WqeState::Taken`], so that nothing is to be done when one is taken.
    states: KVVec<WqeState>,
    /// Octets of the stream that TCP has accepted.
    accepted: u64,
    /// A ring of outstanding Reads, as long as the negotiated ORD.
    reads: KVVec<Option<OutstandingRead>>,
    depth: Depth,
}

/// The send queue of a queue pair.
#[pin_data]
pub(crate) struct SendQueue {
    /// Entries; a power of two, or 0 for a queue that takes nothing.
    entries: u32,
    /// Every request makes a completion, asked for or not.
    signal_all: bool,
    cq: Arc<Cq>,
    /// The ring that a process has mapped.
    user: Option<SendRing>,
    /// Requests taken from the ring so far, modulo 2^32; changed by the transmitter.
    taken: Atomic<u32>,
    /// Requests completed so far, modulo 2^32; changed under the lock.
    done: Atomic<u32>,
    /// Once the queue drains: how many requests will have been taken then, modulo 2^32, or a little
    /// less; else [`NEVER`].
    last: Atomic<i64>,
    /// What the completions of the requests `done..taken` will say.
    pending: PendingRing,
    #[pin]
    inner: SpinLockIrq<SendQueueInner>,
}

/// How many requests are completed while the lock is held, at most.
const AT_ONCE: u32 = 64;

/// The queue does not drain.
const NEVER: i64 = -1;

impl SendQueue {
    /// Makes the queue; `ring` has as many entries and is mapped by a process. Without it the queue
    /// belongs to a kernel consumer, or has no entries.
    pub(crate) fn new(
        entries: u32,
        signal_all: bool,
        cq: Arc<Cq>,
        ring: Option<SendRing>,
    ) -> Result<impl PinInit<Self>> {
        let kernel = match ring {
            Some(_) => KVVec::new(),
            None => empty_ring(entries as usize)?,
        };
        let pending = PendingRing::new(entries)?;
        let flags = GFP_KERNEL_ACCOUNT | __GFP_NOWARN;
        let states = KVVec::from_elem(WqeState::Taken, entries as usize, flags)?;
        Ok(pin_init!(Self {
            entries,
            signal_all,
            cq,
            user: ring,
            taken: Atomic::new(0),
            done: Atomic::new(0),
            last: Atomic::new(NEVER),
            pending,
            inner <- new_spinlock_irq!(SendQueueInner {
                kernel,
                posted: 0,
                states,
                accepted: 0,
                reads: KVVec::new(),
                depth: Depth::new(0),
            }),
        }))
    }

    /// Which requests make a completion.
    pub(crate) fn signal_policy(&self) -> SignalPolicy {
        if self.signal_all {
            SignalPolicy::All
        } else {
            SignalPolicy::OnRequest
        }
    }

    /// The queue that completions go to.
    pub(crate) fn cq(&self) -> &Arc<Cq> {
        &self.cq
    }

    /// Makes room for `ord` outstanding Reads and starts the octet stream anew.
    ///
    /// Context: process; before the transmitter runs.
    pub(crate) fn start(&self, ord: u16) -> Result {
        let reads = empty_ring(usize::from(ord))?;
        let _drop_outside_lock = {
            let mut inner = self.inner.lock();
            inner.accepted = 0;
            self.last.store(NEVER, Relaxed);
            inner.depth = Depth::new(ord);
            core::mem::replace(&mut inner.reads, reads)
        };
        Ok(())
    }

    /// Posts the request of a kernel consumer.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if as many are posted or pending as the queue is long; then nothing has changed.
    pub(crate) fn post(&self, wr: SendWr) -> Result {
        let mut inner = self.inner.lock();
        let inner = &mut *inner;
        if inner.posted.wrapping_sub(self.done()) >= self.entries {
            return Err(ENOMEM);
        }
        let index = self.index(inner.posted);
        match inner.kernel.get_mut(index) {
            Some(slot @ None) => *slot = Some(wr),
            Some(Some(_)) => return Err(ENOMEM),
            None => return Err(EINVAL),
        }
        inner.posted = inner.posted.wrapping_add(1);
        Ok(())
    }

    /// How many requests were taken so far, modulo 2^32.
    #[inline]
    pub(crate) fn taken(&self) -> u32 {
        // ORDERING: pairs with the release in `take_posted`.
        self.taken.load(Acquire)
    }

    /// How many requests were completed so far, modulo 2^32.
    #[inline]
    fn done(&self) -> u32 {
        self.done.load(Relaxed)
    }

    /// Whether a posted request has not been taken.
    pub(crate) fn has_posted(&self) -> bool {
        let taken = self.taken();
        match &self.user {
            Some(ring) => ring.is_posted(taken),
            None => self.inner.lock().posted != taken,
        }
    }

    /// Whether nothing is posted, at a first look: whoever posts something now rings the doorbell.
    ///
    /// Context: the transmitter's.
    #[inline]
    pub(crate) fn looks_empty(&self) -> bool {
        match &self.user {
            Some(ring) => !ring.is_posted(self.taken()),
            // More than that takes the lock.
            None => self.entries == 0,
        }
    }

    /// Takes the oldest posted request into `wr`; it is pending from now on.
    #[inline]
    pub(crate) fn take(&self, wr: &mut SendWr) -> Taken {
        if self.looks_empty() {
            Taken::Nothing
        } else {
            self.take_posted(wr)
        }
    }

    fn take_posted(&self, wr: &mut SendWr) -> Taken {
        // Only the transmitter moves on.
        let position = self.taken();
        if self.is_drained_at(position) {
            return Taken::Nothing;
        }
        if self.is_full() {
            return Taken::Full;
        }
        let index = self.index(position);
        let taken = match &self.user {
            Some(ring) => ring.take(position, wr),
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
        // ORDERING: pairs with the acquire in `taken`: who sees the request sees its entry.
        self.taken.store(position.wrapping_add(1), Release);
        taken
    }

    #[inline(never)]
    fn take_from_kernel(&self, index: usize, wr: &mut SendWr) -> Option<Result<(), BadWr>> {
        *wr = self.inner.lock().kernel.get_mut(index)?.take()?;
        Some(Ok(()))
    }

    /// Whether what is posted at `position` came after the queue began to drain.
    #[inline]
    fn is_drained_at(&self, position: u32) -> bool {
        // Requests may have been taken while they were counted, hence "not before". CAST: the sign
        // of the distance.
        u32::try_from(self.last.load(Relaxed))
            .is_ok_and(|last| position.wrapping_sub(last) as i32 >= 0)
    }

    /// What is posted from now on is not taken any more, but flushed at the end.
    pub(crate) fn drain(&self) {
        let posted = match &self.user {
            // A process that posts meanwhile may be counted or not.
            Some(ring) => {
                let taken = self.taken();
                taken.wrapping_add(ring.posted(taken))
            }
            None => self.inner.lock().posted,
        };
        self.last.store(posted.into(), Relaxed);
    }

    /// The last octet of the request is `end` octets into the stream. This stays in `marks` until
    /// they are full, or [`SendQueue::accepted`] is called.
    #[inline]
    pub(crate) fn sent(&self, marks: &mut TxMarks, slot: Slot, end: u64) {
        if !marks.push(slot, end) {
            marks.note(self, &mut self.inner.lock());
            marks.push(slot, end);
        }
    }

    /// The request is over. Completes what is complete now.
    pub(crate) fn finish(&self, slot: Slot, status: WcStatus, origin: WcOrigin) {
        let state = WqeState::Done(status);
        self.inner.lock().set_state(self, slot, state);
        self.complete(origin);
    }

    /// TCP has accepted the stream up to `position`. Notes where requests end in it, and completes
    /// what is complete now.
    pub(crate) fn accepted(&self, position: u64, marks: &mut TxMarks, origin: WcOrigin) {
        {
            let mut inner = self.inner.lock();
            marks.note(self, &mut inner);
            inner.accepted = position;
            if !inner.complete(self, origin) {
                return;
            }
        }
        self.complete(origin);
    }

    /// Completes what is complete now. Others get their turn at the lock, and interrupts theirs, in
    /// between.
    fn complete(&self, origin: WcOrigin) {
        while self.inner.lock().complete(self, origin) {}
    }

    /// Whether another Read or atomic operation may be outstanding; exactly the negotiated ORD may
    /// (RDMAP-128, EXT-42).
    pub(crate) fn may_read(&self) -> bool {
        self.inner.lock().depth.room() == QueueRoom::Free
    }

    /// Whether no Read and no atomic operation is outstanding, which a fenced request waits for.
    pub(crate) fn no_reads(&self) -> bool {
        self.inner.lock().depth.used() == 0
    }

    /// Notes a Read or atomic operation whose Request goes out now. Reserve with
    /// [`SendQueue::may_read`] first: only the transmitter adds any, so the room cannot go away in
    /// between.
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
        if let Some(place) = place {
            *place = Some(OutstandingRead {
                state,
                sink,
                invalidate,
                slot,
            });
        }
    }

    /// Checks a segment of a Read Response against the oldest outstanding request. Returns where
    /// its octets go; there is no sink for a Read of zero octets.
    ///
    /// # Errors
    ///
    /// The fault to report: the oldest request is no Read, or the segment does not answer it
    /// (RDMAP-77).
    pub(crate) fn read_response(
        &self,
        segment: &TaggedSegment,
    ) -> Result<(ReadPlacement, Option<Slice>), Fault> {
        let mut inner = self.inner.lock();
        let read = inner.oldest_read().ok_or(Fault::ResponseUnsolicited)?;
        let placement = Outstanding::expect_read(Some(&mut read.state))?.accept(segment)?;
        Ok((placement, read.sink.clone()))
    }

    /// Checks an Atomic Response against the oldest outstanding request. Returns what the target
    /// held before and where that goes.
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

    /// The oldest outstanding request is over; returns its slot and the local STag to invalidate,
    /// which must happen before [`SendQueue::finish`] is called for the slot.
    pub(crate) fn read_done(&self) -> Option<(Option<Slot>, Option<Stag>)> {
        let read = {
            let mut inner = self.inner.lock();
            let inner = &mut *inner;
            let at = inner.depth.release()?;
            inner.reads.get_mut(usize::from(at))?.take()?
        };
        Some((read.slot, read.invalidate))
    }

    /// Ends everything: pending requests complete with an error, then those that are only posted.
    ///
    /// The oldest request that is not done gets `first`, if that is known; all others are flushed.
    /// Returns whether more may have been posted meanwhile: one call ends at most as many requests
    /// as the queue is long, so that a process which posts on and on cannot hold the caller.
    ///
    /// Context: process; the transmitter's.
    #[must_use]
    pub(crate) fn flush(&self, mut first: Option<WcStatus>, origin: WcOrigin) -> bool {
        self.last.store(NEVER, Relaxed);
        // The regions of outstanding Reads are let go without the lock.
        while self.read_done().is_some() {}
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
                    inner.complete_one(self, origin);
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

impl SendQueueInner {
    fn oldest_read(&mut self) -> Option<&mut OutstandingRead> {
        let at = self.depth.oldest()?;
        self.reads.get_mut(usize::from(at))?.as_mut()
    }

    fn set_state(&mut self, queue: &SendQueue, slot: Slot, state: WqeState) {
        // A slot that was flushed meanwhile is not among the pending ones any more.
        let done = queue.done();
        if slot.0.wrapping_sub(done) >= queue.taken().wrapping_sub(done) {
            return;
        }
        if let Some(place) = self.states.get_mut(queue.index(slot.0)) {
            *place = state;
        }
    }

    /// Completes requests in order until one is not over; whether there may be more.
    fn complete(&mut self, queue: &SendQueue, origin: WcOrigin) -> bool {
        for _ in 0..AT_ONCE {
            if queue.done() == queue.taken() || !self.complete_one(queue, origin) {
                return false;
            }
        }
        true
    }

    /// Completes the oldest pending request if it is over; whether it was.
    fn complete_one(&mut self, queue: &SendQueue, origin: WcOrigin) -> bool {
        let done = queue.done();
        let index = queue.index(done);
        let (Some(state), Some(wqe)) = (self.states.get_mut(index), queue.pending.get(index))
        else {
            return false;
        };
        let status = match *state {
            WqeState::Taken | WqeState::Reading => return false,
            WqeState::Sent(end) if end > self.accepted => return false,
            WqeState::Sent(_) => WcStatus::Success,
            WqeState::Done(status) => status,
        };
        *state = WqeState::Taken;
        // ORDERING: pairs with the acquire in `take_posted`: the entry has been read. Before the
        // completion is there: who has seen that may post one more.
        queue.done.store(done.wrapping_add(1), Release);
        if wqe.signalled || status != WcStatus::Success {
            queue.cq.post(&Completion {
                id: wqe.id,
                status,
                opcode: wqe.opcode,
                bytes: wqe.bytes,
                extra: WcExtra::None,
                qpn: origin.qpn,
                qp: origin.qp,
                solicited: status != WcStatus::Success,
                vendor_err: origin.vendor_err_of(status),
            });
        }
        true
    }
}
