// SPDX-License-Identifier: GPL-2.0

//! Receive work requests: the ring of a queue pair or a shared receive queue.
//!
//! A process stores requests in the ring it has mapped; a kernel consumer posts them. Each incoming
//! Send or Immediate Data takes one [`RecvWr`], in posting order. An entry of a mapped ring is
//! copied out once and then handed back, so later changes by the process have no effect.
//!
//! Context: any.

use kernel::prelude::*;
use kernel_ext::{
    compat::{
        new_spinlock_irq,
        SpinLockIrq, //
        EOPNOTSUPP,
    },
    rdma::udata::Udata, //
};

use crate::abi::{
    user::RecvRing,
    wr::{
        wr_ring,
        BadWr,
        RecvWr, //
    }, //
};

use super::first_position;

enum RqStorage {
    /// Mapped by a process.
    User(RecvRing),
    /// Private to the kernel: requests from `taken` to `posted`.
    Kernel(KVVec<RecvWr>),
}

/// Who takes a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Taker {
    /// Nobody has waited for longer.
    First,
    /// Those that wait go first.
    #[default]
    Newcomer,
}

struct RecvQueueInner {
    ring: RqStorage,
    /// Entries; a power of two, or 0 for a queue that accepts no requests.
    entries: u32,
    /// Requests taken so far, modulo 2^32.
    taken: u32,
    /// Requests posted so far, modulo 2^32; kernel rings only.
    posted: u32,
    /// How many streams wait for a request.
    waiters: u32,
    /// How many of them were told in the last look that there is one, and the number of that look.
    claims: u32,
    look: u32,
}

/// A ring of receive work requests.
#[pin_data]
pub(crate) struct RecvQueue {
    #[pin]
    inner: SpinLockIrq<RecvQueueInner>,
}

impl RecvQueue {
    /// Makes the queue. `ring` has as many entries and is mapped by a process; without it the queue
    /// belongs to a kernel consumer, or has no entries.
    pub(crate) fn new(entries: u32, ring: Option<RecvRing>) -> Result<impl PinInit<Self>> {
        let ring = match ring {
            Some(ring) => RqStorage::User(ring),
            None => RqStorage::Kernel(wr_ring(entries as usize)?),
        };
        let first = first_position(entries);
        Ok(pin_init!(Self {
            inner <- new_spinlock_irq!(RecvQueueInner {
                ring,
                entries,
                taken: first,
                posted: first,
                waiters: 0,
                claims: 0,
                look: 0,
            }),
        }))
    }

    /// Takes the oldest request into `wr`.
    ///
    /// Returns [`None`] if no request is posted for this taker, and an error if the process stored
    /// an invalid one, which is taken all the same.
    pub(crate) fn take(&self, wr: &mut RecvWr, taker: Taker) -> Option<Result<(), BadWr>> {
        let mut inner = self.inner.lock();
        let inner = &mut *inner;
        if !inner.admits(taker) {
            return None;
        }
        let index = inner.taken & inner.entries.wrapping_sub(1);
        let taken = match &mut inner.ring {
            RqStorage::User(ring) => ring.take(inner.taken, wr)?,
            RqStorage::Kernel(slots) => {
                if inner.taken == inner.posted {
                    return None;
                }
                let slot = slots.get(index as usize)?;
                wr.id = slot.id;
                wr.buffer.copy_from(&slot.buffer);
                Ok(())
            }
        };
        inner.taken = inner.taken.wrapping_add(1);
        Some(taken)
    }

    /// Moves the waiting requests to a ring of another size, for the process that owns the ring. A
    /// request that the process posts meanwhile may get lost.
    ///
    /// Context: process; one call at a time.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the requests do not fit, `EOPNOTSUPP` for a queue of a kernel consumer or if the
    /// library cannot resize it, `ENOMEM`.
    pub(crate) fn resize(&self, entries: u32, udata: &mut Udata<'_>) -> Result {
        let (ring, before) = {
            let inner = self.inner.lock();
            match &inner.ring {
                RqStorage::User(ring) => (ring.clone(), inner.taken),
                RqStorage::Kernel(_) => return Err(EOPNOTSUPP),
            }
        };
        let (old, new) = ring.begin_resize(entries, udata)?;
        // Copied without the lock; requests taken meanwhile are skipped afterwards.
        let copied = old.copy_to(before, &new)?;
        let _drop_outside_lock = {
            let mut inner = self.inner.lock();
            let taken = inner.taken.wrapping_sub(before).min(copied);
            new.skip(taken);
            inner.taken = taken;
            inner.entries = entries;
            core::mem::replace(&mut inner.ring, RqStorage::User(RecvRing::Rxe(new)))
        };
        Ok(())
    }

    /// Appends a request of a kernel consumer, which `fill` fills in place. Returns whether a
    /// stream waits for one; one that begins to wait later finds this request.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if the queue is full, `EINVAL` if it belongs to a process, or the error of `fill`;
    /// then nothing is appended.
    #[inline]
    pub(crate) fn post(&self, fill: impl FnOnce(&mut RecvWr) -> Result) -> Result<bool> {
        let mut inner = self.inner.lock();
        let inner = &mut *inner;
        let index = inner.posted & inner.entries.wrapping_sub(1);
        match &mut inner.ring {
            RqStorage::User(_) => return Err(EINVAL),
            RqStorage::Kernel(slots) => {
                if inner.posted.wrapping_sub(inner.taken) >= inner.entries {
                    return Err(ENOMEM);
                }
                fill(slots.get_mut(index as usize).ok_or(ENOMEM)?)?;
            }
        }
        inner.posted = inner.posted.wrapping_add(1);
        Ok(inner.waiters != 0)
    }

    /// Returns whether a taker finds a request.
    pub(crate) fn has_request(&self, taker: Taker) -> bool {
        let inner = self.inner.lock();
        inner.admits(taker) && inner.holds(1)
    }

    /// Counts a stream that waits for a request.
    pub(crate) fn add_waiter(&self) {
        self.inner.lock().waiters += 1;
    }

    /// Counts one that does not wait any more.
    pub(crate) fn remove_waiter(&self) {
        let mut inner = self.inner.lock();
        inner.waiters = inner.waiters.saturating_sub(1);
    }

    /// Claims a request for a stream that waits; returns whether there is one that nobody has
    /// claimed in this `look`. Claims bind no request: they only tell how many streams to wake.
    pub(crate) fn claim(&self, look: u32) -> bool {
        let mut inner = self.inner.lock();
        if inner.look != look {
            (inner.look, inner.claims) = (look, 0);
        }
        let claims = inner.claims.saturating_add(1);
        let found = inner.holds(claims);
        if found {
            inner.claims = claims;
        }
        found
    }

    /// Returns how many requests wait; [`None`] if the library does not count them.
    pub(crate) fn waiting(&self) -> Option<u32> {
        let inner = self.inner.lock();
        match &inner.ring {
            RqStorage::User(ring) => ring.posted(inner.taken),
            RqStorage::Kernel(_) => Some(inner.posted.wrapping_sub(inner.taken)),
        }
    }

    /// Returns how many requests wait, also if the library does not count them.
    #[cold]
    pub(crate) fn count(&self) -> u32 {
        let inner = self.inner.lock();
        let (mut least, mut most) = (0, inner.entries);
        while least < most {
            // NO-OVERFLOW: between the two.
            let middle = most - (most - least) / 2;
            if inner.holds(middle) {
                least = middle;
            } else {
                most = middle - 1;
            }
        }
        least
    }

    /// Returns whether at least `count` requests wait.
    pub(crate) fn holds(&self, count: u32) -> bool {
        self.inner.lock().holds(count)
    }
}

impl RecvQueueInner {
    fn holds(&self, count: u32) -> bool {
        if count == 0 || count > self.entries {
            return count == 0;
        }
        match &self.ring {
            RqStorage::User(ring) => ring.holds(self.taken, count),
            RqStorage::Kernel(_) => self.posted.wrapping_sub(self.taken) >= count,
        }
    }

    fn admits(&self, taker: Taker) -> bool {
        self.waiters == 0 || taker == Taker::First
    }
}

#[kernel::prelude::kunit_tests(riwarp_rq)]
mod tests {
    use super::*;
    use crate::{
        abi::siw::{
            self,
            FLAGS_AT,
            RQE_LEN,
            VALID, //
        },
        mem::payload::Sge, //
    };
    use kernel::sync::Arc;
    use kernel_ext::mm::shared_ring::SharedMem;

    fn request(id: u64) -> impl FnOnce(&mut RecvWr) -> Result {
        move |wr| {
            wr.id = id;
            wr.buffer.clear();
            wr.buffer.push(Sge {
                addr: id << 12,
                len: 64,
                lkey: 1,
            });
            Ok(())
        }
    }

    /// Takes the oldest request: its cookie, and whether it is valid.
    fn taken(queue: &RecvQueue) -> Option<(u64, bool)> {
        let mut wr = RecvWr::default();
        match queue.take(&mut wr, Taker::First)? {
            Ok(()) => Some((wr.id, true)),
            Err(bad) => Some((bad.id, false)),
        }
    }

    fn kernel(entries: u32) -> Result<Pin<KBox<RecvQueue>>> {
        KBox::pin_init(RecvQueue::new(entries, None)?, GFP_KERNEL_ACCOUNT).map_err(Error::from)
    }

    /// A queue of 4 entries in memory as a process would map it.
    fn user() -> Result<(Pin<KBox<RecvQueue>>, Arc<SharedMem>)> {
        let ring = siw::SiwRecvRing::new(4)?;
        let memory = ring.memory().clone();
        let ring = RecvRing::Siw(ring);
        let queue = KBox::pin_init(RecvQueue::new(4, Some(ring))?, GFP_KERNEL_ACCOUNT)?;
        Ok((queue, memory))
    }

    /// Posts a request as a process would.
    fn store(memory: &SharedMem, index: usize, id: u64, num_sge: u8) -> Result {
        let mut entry = [0; RQE_LEN];
        entry[..8].copy_from_slice(&id.to_ne_bytes());
        entry[10] = num_sge;
        memory.copy_in(index * RQE_LEN, &entry)?;
        memory.store_u16_release(index * RQE_LEN + FLAGS_AT, VALID)
    }

    #[test]
    fn receives_are_taken_in_posted_order() -> Result {
        let queue = kernel(4)?;
        assert_eq!(taken(&queue), None);
        // More than once around the ring.
        for round in 0..5 {
            for n in 0..3 {
                queue.post(request(round * 3 + n))?;
            }
            for n in 0..3 {
                assert_eq!(taken(&queue), Some((round * 3 + n, true)));
            }
        }
        assert_eq!(taken(&queue), None);
        Ok(())
    }

    #[test]
    fn full_receive_queue_refuses_post() -> Result {
        let queue = kernel(4)?;
        for n in 0..4 {
            queue.post(request(n))?;
        }
        assert_eq!(queue.post(request(4)), Err(ENOMEM));
        assert_eq!(taken(&queue), Some((0, true)));
        assert!(queue.post(request(4)).is_ok());
        Ok(())
    }

    #[test]
    fn receive_queue_reports_posted_count() -> Result {
        let queue = kernel(4)?;
        for n in 0..4 {
            assert!(queue.holds(n) && !queue.holds(n + 1));
            queue.post(request(n.into()))?;
        }
        assert!(queue.holds(4) && !queue.holds(5) && !queue.holds(u32::MAX));
        taken(&queue);
        assert!(queue.holds(3) && !queue.holds(4));
        Ok(())
    }

    #[test]
    fn receive_queue_without_entries_is_empty() -> Result {
        let queue = kernel(0)?;
        assert!(taken(&queue).is_none() && queue.holds(0) && !queue.holds(1));
        assert_eq!(queue.post(request(1)), Err(ENOMEM));
        Ok(())
    }

    #[test]
    fn taken_receive_entry_is_released_to_process() -> Result {
        let (queue, memory) = user()?;
        for round in 0..3 {
            for n in 0..4 {
                store(&memory, n, (round * 4 + n) as u64, 1)?;
            }
            assert!(queue.holds(4));
            for n in 0..4 {
                assert_eq!(taken(&queue), Some(((round * 4 + n) as u64, true)));
                let flags = memory.load_u16_acquire(n * RQE_LEN + FLAGS_AT);
                assert_eq!(flags, Some(0));
            }
            assert_eq!(taken(&queue), None);
        }
        Ok(())
    }

    #[test]
    fn receive_queue_waits_for_next_entry_in_order() -> Result {
        let (queue, memory) = user()?;
        store(&memory, 1, 11, 0)?;
        assert_eq!(taken(&queue), None);
        store(&memory, 0, 10, 0)?;
        assert_eq!(taken(&queue), Some((10, true)));
        assert_eq!(taken(&queue), Some((11, true)));
        Ok(())
    }

    #[test]
    fn malformed_receive_entry_is_taken_as_bad() -> Result {
        let (queue, memory) = user()?;
        store(&memory, 0, 5, 7)?;
        store(&memory, 1, 6, 6)?;
        assert_eq!(taken(&queue), Some((5, false)));
        assert_eq!(taken(&queue), Some((6, true)));
        Ok(())
    }

    #[test]
    fn kernel_post_to_user_receive_queue_is_refused() -> Result {
        let (queue, _memory) = user()?;
        assert_eq!(queue.post(request(1)), Err(EINVAL));
        Ok(())
    }
}
