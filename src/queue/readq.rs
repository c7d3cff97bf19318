// SPDX-License-Identifier: GPL-2.0

//! The inbound read queue: Read and Atomic Requests of the peer that have not been answered.
//!
//! The receiver puts requests in. The transmit task takes them out in the same order (RDMAP-76,
//! EXT-49) and frees an entry when it has segmented the last octet of the Response. The queue has
//! exactly as many entries as the negotiated IRD (RDMAP-129); they are made before the stream
//! starts, so that taking one cannot fail in softirq.
//!
//! [`crate::queue::sq`] holds what is outstanding in the other direction.
//!
//! Context: any, unless a function says otherwise.

use iwarp::{
    atomic::{
        AtomicRequest,
        AtomicResponse, //
    },
    fault::Fault,
    rdmap::ReadRequest,
    readq::Depth,
    receiver::QueueRoom,
    terminate::Quoted, //
};
use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc, //
    }, //
};
use kernel_ext::{
    compat::{
        new_spinlock_irq,
        SpinLockIrq, //
    },
    mm::memcg::Memcg, //
};

use crate::{
    abi::wr::empty_ring,
    mem::mr::Region, //
};

/// A request of the peer that has no answer yet.
pub(crate) enum InboundRequest {
    Read(InboundRead),
    Atomic(InboundAtomic),
    /// The Response of an Atomic Request that was carried out.
    Answer(AtomicResponse),
    /// An Atomic Request that cannot be carried out, and its headers.
    Failed(Fault, Option<Quoted>),
}

/// Identifies one of the successive streams that the queue serves.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Epoch(u32);

/// An Atomic Request of the peer whose target was checked on arrival.
pub(crate) struct InboundAtomic {
    pub(crate) request: AtomicRequest,
    pub(crate) target: Arc<Region>,
    /// The headers as they arrived, for a Terminate if the target is revoked meanwhile.
    pub(crate) quoted: Option<Quoted>,
}

/// A Read Request of the peer whose source was checked on arrival.
pub(crate) struct InboundRead {
    pub(crate) request: ReadRequest,
    /// The source; [`None`] for a Read of zero octets, whose source is not checked (RDMAP-70).
    pub(crate) source: Option<Arc<Region>>,
    /// The headers as they arrived, for a Terminate if the source is revoked meanwhile.
    pub(crate) quoted: Option<Quoted>,
}

struct InboundReadsInner {
    slots: KVVec<Option<InboundRequest>>,
    depth: Depth,
    epoch: Epoch,
    /// Whether further requests are dropped.
    is_closed: bool,
}

/// The inbound read queue of a stream.
#[pin_data]
pub(crate) struct InboundReads {
    /// Requests that were not taken out yet; read without the lock.
    waiting: Atomic<u32>,
    #[pin]
    inner: SpinLockIrq<InboundReadsInner>,
}

impl InboundReads {
    /// Makes a queue without entries.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            waiting: Atomic::new(0),
            inner <- new_spinlock_irq!(InboundReadsInner {
                slots: KVVec::new(),
                depth: Depth::new(0),
                epoch: Epoch(0),
                is_closed: false,
            }),
        })
    }

    /// Empties the queue and makes `ird` entries, for which `owner` is charged.
    ///
    /// Context: process.
    pub(crate) fn start(&self, ird: u16, owner: &Memcg) -> Result {
        let slots = empty_ring(usize::from(ird))?;
        owner.charge_list(&slots);
        let _drop_outside_lock = {
            let mut inner = self.inner.lock();
            inner.depth = Depth::new(ird);
            inner.epoch = Epoch(inner.epoch.0.wrapping_add(1));
            inner.is_closed = false;
            self.waiting.store(0, Relaxed);
            core::mem::replace(&mut inner.slots, slots)
        };
        Ok(())
    }

    /// Returns whether the peer may have one more Read or atomic operation outstanding.
    pub(crate) fn room(&self) -> QueueRoom {
        self.inner.lock().depth.room()
    }

    /// Returns how many requests are not fully answered, and the IRD.
    pub(crate) fn occupancy(&self) -> (u32, u32) {
        let inner = self.inner.lock();
        (inner.depth.used().into(), inner.depth.limit().into())
    }

    /// Returns whether a request is not answered. The end of an answer may still be on its way to
    /// TCP.
    pub(crate) fn has_unanswered(&self) -> bool {
        self.inner.lock().depth.used() != 0
    }

    /// Puts a request in; returns false, without effect, if the queue is full. Drops the request if
    /// the queue is closed.
    pub(crate) fn put(&self, request: InboundRequest) -> bool {
        let mut inner = self.inner.lock();
        let inner = &mut *inner;
        if inner.is_closed {
            return true;
        }
        let slot = inner
            .depth
            .try_take()
            .and_then(|at| inner.slots.get_mut(usize::from(at)));
        match slot {
            Some(slot) => {
                *slot = Some(request);
                self.waiting.fetch_add(1, Relaxed);
                true
            }
            None => false,
        }
    }

    /// Returns whether a request seems to be waiting, without the lock.
    #[inline]
    pub(crate) fn has_waiting(&self) -> bool {
        // ORDERING: a plain load may miss a request only if the caller of `put` has not woken the
        // transmit task yet (`Qp::answer` or `kick`), which is a full barrier and makes
        // one more round. The request itself is read under the lock that `put` held.
        self.waiting.load(Relaxed) != 0
    }

    /// Takes the oldest request out to be answered; its entry stays in use until
    /// [`InboundReads::answered`].
    pub(crate) fn take(&self) -> Option<InboundRequest> {
        if !self.has_waiting() {
            return None;
        }
        let mut inner = self.inner.lock();
        let inner = &mut *inner;
        let at = inner.depth.oldest()?;
        let request = inner.slots.get_mut(usize::from(at))?.take()?;
        self.waiting.fetch_sub(1, Relaxed);
        Some(request)
    }

    /// Returns which stream the requests belong to.
    pub(crate) fn epoch(&self) -> Epoch {
        self.inner.lock().epoch
    }

    /// Puts back the request that was taken out last and is not answered, or what became of it.
    /// Does nothing if its stream has ended.
    pub(crate) fn put_back(&self, epoch: Epoch, request: InboundRequest) {
        let _drop_outside_lock = {
            let mut inner = self.inner.lock();
            let inner = &mut *inner;
            let slot = match inner.depth.oldest() {
                Some(at) if inner.epoch == epoch => inner.slots.get_mut(usize::from(at)),
                Some(_) | None => None,
            };
            match slot {
                Some(slot @ None) => {
                    *slot = Some(request);
                    self.waiting.fetch_add(1, Relaxed);
                    None
                }
                Some(Some(_)) | None => Some(request),
            }
        };
    }

    /// Frees the entry of the request that was taken out last, once the last octet of its answer is
    /// in the batch. So the entry is free before the peer can see the answer and ask for more.
    pub(crate) fn answered(&self) {
        self.inner.lock().depth.release();
    }

    /// Drops what arrives from now on until the queue is started again, so that a peer with
    /// requests outstanding all the time cannot put off the end of the stream. To the peer they are
    /// requests that this end's FIN has overtaken.
    pub(crate) fn close(&self) {
        self.inner.lock().is_closed = true;
    }

    /// Drops all requests.
    ///
    /// Context: process.
    pub(crate) fn clear(&self) {
        loop {
            let _drop_outside_lock = {
                let mut inner = self.inner.lock();
                let inner = &mut *inner;
                let Some(at) = inner.depth.release() else {
                    return;
                };
                self.waiting.store(0, Relaxed);
                inner.slots.get_mut(usize::from(at)).and_then(Option::take)
            };
        }
    }
}

#[kernel::prelude::kunit_tests(riwarp_readq)]
mod tests {
    use super::*;
    use iwarp::stag::{
        Stag,
        TaggedOffset, //
    };

    fn read(len: u32) -> InboundRequest {
        InboundRequest::Read(InboundRead {
            request: ReadRequest {
                sink_stag: Stag::new(1),
                sink_to: TaggedOffset::new(0),
                len,
                source_stag: Stag::new(2),
                source_to: TaggedOffset::new(0),
            },
            source: None,
            quoted: None,
        })
    }

    fn started(ird: u16) -> Result<Pin<KBox<InboundReads>>> {
        let reads = KBox::pin_init(InboundReads::new(), GFP_KERNEL_ACCOUNT)?;
        reads.start(ird, &Memcg::nobody())?;
        Ok(reads)
    }

    fn len(request: Option<InboundRequest>) -> Option<u32> {
        match request? {
            InboundRequest::Read(read) => Some(read.request.len),
            InboundRequest::Atomic(_) | InboundRequest::Answer(_) | InboundRequest::Failed(..) => {
                None
            }
        }
    }

    #[test]
    fn inbound_read_queue_has_negotiated_depth() -> Result {
        let reads = started(3)?;
        for n in 0..3 {
            assert_eq!(reads.room(), QueueRoom::Free);
            assert!(reads.put(read(n)));
        }
        assert_eq!(reads.room(), QueueRoom::Full);
        assert!(!reads.put(read(3)));
        Ok(())
    }

    #[test]
    fn closed_inbound_read_queue_refuses_requests() -> Result {
        let reads = started(2)?;
        assert!(reads.put(read(1)));
        reads.close();
        for _ in 0..3 {
            assert!(reads.put(read(2)));
        }
        assert_eq!(len(reads.take()), Some(1));
        assert!(reads.take().is_none());
        reads.answered();
        assert!(!reads.has_unanswered());
        reads.start(1, &Memcg::nobody())?;
        assert!(reads.put(read(3)));
        assert_eq!(len(reads.take()), Some(3));
        Ok(())
    }

    #[test]
    fn inbound_read_slot_is_freed_when_answer_is_packed() -> Result {
        let reads = started(1)?;
        assert!(reads.put(read(7)));
        assert_eq!(len(reads.take()), Some(7));
        assert!(reads.take().is_none());
        // Taken out, but not answered.
        assert_eq!(reads.room(), QueueRoom::Full);
        reads.answered();
        assert_eq!(reads.room(), QueueRoom::Free);
        assert!(reads.put(read(8)));
        assert_eq!(len(reads.take()), Some(8));
        Ok(())
    }

    #[test]
    fn inbound_reads_are_answered_in_order() -> Result {
        let reads = started(4)?;
        for round in 0..5 {
            for n in 0..4 {
                assert!(reads.put(read(round * 4 + n)));
            }
            for n in 0..4 {
                assert_eq!(len(reads.take()), Some(round * 4 + n));
                reads.answered();
            }
        }
        Ok(())
    }

    #[test]
    fn inbound_read_put_back_is_taken_first() -> Result {
        let reads = started(3)?;
        let epoch = reads.epoch();
        reads.put(read(1));
        reads.put(read(2));
        assert_eq!(len(reads.take()), Some(1));
        // Later requests wait.
        assert!(reads.take().is_none() && reads.has_unanswered());
        reads.put_back(epoch, read(7));
        assert_eq!(len(reads.take()), Some(7));
        reads.answered();
        assert_eq!(len(reads.take()), Some(2));
        Ok(())
    }

    #[test]
    fn inbound_read_is_not_put_back_into_new_stream() -> Result {
        let reads = started(1)?;
        let epoch = reads.epoch();
        reads.put(read(1));
        reads.take();
        reads.start(1, &Memcg::nobody())?;
        reads.put_back(epoch, read(1));
        assert!(reads.take().is_none() && !reads.has_unanswered());
        reads.put(read(2));
        reads.take();
        reads.put_back(epoch, read(1));
        assert!(reads.take().is_none());
        Ok(())
    }

    #[test]
    fn inbound_read_is_unanswered_until_its_answer_is_packed() -> Result {
        let reads = started(2)?;
        assert!(!reads.has_unanswered());
        reads.put(read(1));
        assert!(reads.has_unanswered());
        reads.take();
        assert!(reads.has_unanswered());
        reads.answered();
        assert!(!reads.has_unanswered());
        Ok(())
    }

    #[test]
    fn inbound_read_queue_of_depth_0_refuses_requests() -> Result {
        let reads = started(0)?;
        assert_eq!(reads.room(), QueueRoom::Full);
        assert!(!reads.put(read(1)) && reads.take().is_none());
        Ok(())
    }

    #[test]
    fn inbound_read_queue_is_empty_after_clear_and_start() -> Result {
        let reads = started(2)?;
        reads.put(read(1));
        reads.put(read(2));
        reads.clear();
        assert!(reads.take().is_none() && !reads.has_unanswered());
        assert_eq!(reads.room(), QueueRoom::Free);
        reads.put(read(3));
        reads.start(5, &Memcg::nobody())?;
        assert!(reads.take().is_none() && !reads.has_unanswered());
        for n in 0..5 {
            assert!(reads.put(read(n)));
        }
        Ok(())
    }
}
