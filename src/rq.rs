// SPDX-License-Identifier: GPL-2.0

//! Receive work requests: the ring that a queue pair or a shared receive queue takes them from.
//!
//! What enters: requests that a process stored in the ring it has mapped, or that a kernel consumer
//! posted. What leaves: one [`RecvWr`] for each incoming Send, in posting order. An entry of a
//! mapped ring is copied out once and then handed back, so what the process does to it afterwards
//! has no effect.
//!
//! Context: any.

use kernel::{
    new_spinlock_irq,
    prelude::*,
    sync::{
        Arc,
        SpinLockIrq, //
    }, //
};
use kernel_ext::mm::shared_ring::SharedMem;

use crate::{
    abi::siw::{
        self,
        BadEntry, //
    },
    sq::empty_ring,
    wr::RecvWr, //
};

enum Ring {
    /// Mapped by a process: an entry is ours while its VALID flag is set.
    User(Arc<SharedMem>),
    /// Private to the kernel.
    Kernel(KVVec<Option<RecvWr>>),
}

struct Inner {
    ring: Ring,
    /// Requests taken so far, modulo 2^32.
    taken: u32,
    /// Requests posted so far, modulo 2^32; kernel rings only.
    posted: u32,
}

/// A ring of receive work requests.
#[pin_data]
pub(crate) struct RecvQueue {
    /// Entries; a power of two, or 0 for a queue that takes nothing.
    entries: u32,
    #[pin]
    inner: SpinLockIrq<Inner>,
}

impl RecvQueue {
    /// Makes the ring; `memory` holds [`RecvQueue::ring_len`] octets and is mapped by a process.
    /// Without it the ring belongs to a kernel consumer.
    pub(crate) fn new(entries: u32, memory: Option<Arc<SharedMem>>) -> Result<impl PinInit<Self>> {
        let ring = match memory {
            Some(memory) => Ring::User(memory),
            None => Ring::Kernel(empty_ring(entries as usize)?),
        };
        Ok(pin_init!(Self {
            entries,
            inner <- new_spinlock_irq!(Inner {
                ring,
                taken: 0,
                posted: 0,
            }),
        }))
    }

    /// Octets of the shared ring for that many entries.
    pub(crate) fn ring_len(entries: u32) -> usize {
        entries as usize * siw::RQE_LEN
    }

    /// Takes the oldest request.
    ///
    /// [`None`] means that there is none; an error, that the process stored one that cannot be
    /// used. It is taken all the same.
    pub(crate) fn take(&self) -> Option<Result<RecvWr, BadEntry>> {
        let mut inner = self.inner.lock();
        let inner = &mut *inner;
        let index = inner.taken & self.entries.wrapping_sub(1);
        let taken = match &mut inner.ring {
            Ring::User(memory) => take_user(memory, index)?,
            Ring::Kernel(slots) => Ok(slots.get_mut(index as usize)?.take()?),
        };
        inner.taken = inner.taken.wrapping_add(1);
        Some(taken)
    }

    /// Appends the request of a kernel consumer.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if the queue is full, `EINVAL` if it belongs to a process.
    pub(crate) fn post(&self, wr: RecvWr) -> Result {
        let mut inner = self.inner.lock();
        let inner = &mut *inner;
        let index = inner.posted & self.entries.wrapping_sub(1);
        match &mut inner.ring {
            Ring::User(_) => return Err(EINVAL),
            Ring::Kernel(slots) => match slots.get_mut(index as usize) {
                Some(slot @ None) => *slot = Some(wr),
                _ => return Err(ENOMEM),
            },
        }
        inner.posted = inner.posted.wrapping_add(1);
        Ok(())
    }

    /// Whether at least `count` requests wait.
    pub(crate) fn holds(&self, count: u32) -> bool {
        let Some(last) = count.checked_sub(1) else {
            return true;
        };
        if last >= self.entries {
            return false;
        }
        let inner = self.inner.lock();
        // Requests are posted one after the other, so the last of them stands for all.
        let index = inner.taken.wrapping_add(last) & self.entries.wrapping_sub(1);
        match &inner.ring {
            Ring::User(memory) => siw::is_posted(memory, index as usize * siw::RQE_LEN),
            Ring::Kernel(slots) => matches!(slots.get(index as usize), Some(Some(_))),
        }
    }
}

fn take_user(memory: &SharedMem, index: u32) -> Option<Result<RecvWr, BadEntry>> {
    let at = index as usize * siw::RQE_LEN;
    if !siw::is_posted(memory, at) {
        return None;
    }
    let entry: [u8; siw::RQE_LEN] = memory.copy_out(at)?;
    memory.store_u16_release(at + siw::FLAGS_AT, 0).ok()?;
    Some(siw::decode_rqe(&entry))
}

#[kernel::prelude::kunit_tests(riwarp_rq)]
mod tests {
    use super::*;
    use crate::wr::Sge;

    fn request(id: u64) -> RecvWr {
        let mut wr = RecvWr {
            id,
            ..RecvWr::default()
        };
        wr.sges.push(Sge {
            addr: id << 12,
            len: 64,
            lkey: 1,
        });
        wr
    }

    fn id(taken: Option<Result<RecvWr, BadEntry>>) -> Option<u64> {
        taken.and_then(Result::ok).map(|wr| wr.id)
    }

    fn kernel(entries: u32) -> Result<Pin<KBox<RecvQueue>>> {
        KBox::pin_init(RecvQueue::new(entries, None)?, GFP_KERNEL).map_err(Error::from)
    }

    /// A queue of 4 entries in memory that a process would have mapped.
    fn user() -> Result<(Pin<KBox<RecvQueue>>, Arc<SharedMem>)> {
        let memory = Arc::new(SharedMem::try_new(RecvQueue::ring_len(4))?, GFP_KERNEL)?;
        let queue = KBox::pin_init(RecvQueue::new(4, Some(memory.clone()))?, GFP_KERNEL)?;
        Ok((queue, memory))
    }

    /// What a process does to post.
    fn store(memory: &SharedMem, index: usize, id: u64, num_sge: u8) -> Result {
        let mut entry = [0; siw::RQE_LEN];
        entry[..8].copy_from_slice(&id.to_ne_bytes());
        entry[10] = num_sge;
        memory.copy_in(index * siw::RQE_LEN, &entry)?;
        memory.store_u16_release(index * siw::RQE_LEN + siw::FLAGS_AT, siw::VALID)
    }

    #[test]
    fn gives_requests_in_the_order_of_their_posting() -> Result {
        let queue = kernel(4)?;
        assert!(queue.take().is_none());
        // More than once around.
        for round in 0..5 {
            for n in 0..3 {
                queue.post(request(round * 3 + n))?;
            }
            for n in 0..3 {
                assert_eq!(id(queue.take()), Some(round * 3 + n));
            }
        }
        assert!(queue.take().is_none());
        Ok(())
    }

    #[test]
    fn refuses_more_than_it_has_entries() -> Result {
        let queue = kernel(4)?;
        for n in 0..4 {
            queue.post(request(n))?;
        }
        assert_eq!(queue.post(request(4)), Err(ENOMEM));
        assert_eq!(id(queue.take()), Some(0));
        assert!(queue.post(request(4)).is_ok());
        Ok(())
    }

    #[test]
    fn knows_how_many_wait() -> Result {
        let queue = kernel(4)?;
        for n in 0..4 {
            assert!(queue.holds(n) && !queue.holds(n + 1));
            queue.post(request(n.into()))?;
        }
        assert!(queue.holds(4) && !queue.holds(5) && !queue.holds(u32::MAX));
        queue.take();
        assert!(queue.holds(3) && !queue.holds(4));
        Ok(())
    }

    #[test]
    fn a_queue_without_entries_holds_nothing() -> Result {
        let queue = kernel(0)?;
        assert!(queue.take().is_none() && queue.holds(0) && !queue.holds(1));
        assert_eq!(queue.post(request(1)), Err(ENOMEM));
        Ok(())
    }

    #[test]
    fn hands_entries_back_to_the_process() -> Result {
        let (queue, memory) = user()?;
        for round in 0..3 {
            for n in 0..4 {
                store(&memory, n, (round * 4 + n) as u64, 1)?;
            }
            assert!(queue.holds(4));
            for n in 0..4 {
                assert_eq!(id(queue.take()), Some((round * 4 + n) as u64));
                let flags = memory.load_u16_acquire(n * siw::RQE_LEN + siw::FLAGS_AT);
                assert_eq!(flags, Some(0));
            }
            assert!(queue.take().is_none());
        }
        Ok(())
    }

    #[test]
    fn waits_for_the_next_entry_and_no_other() -> Result {
        let (queue, memory) = user()?;
        store(&memory, 1, 11, 0)?;
        assert!(queue.take().is_none());
        store(&memory, 0, 10, 0)?;
        assert_eq!(id(queue.take()), Some(10));
        assert_eq!(id(queue.take()), Some(11));
        Ok(())
    }

    #[test]
    fn a_bad_entry_is_taken_all_the_same() -> Result {
        let (queue, memory) = user()?;
        store(&memory, 0, 5, 7)?;
        store(&memory, 1, 6, 6)?;
        let bad = queue.take().and_then(Result::err).map(|bad| bad.id);
        assert_eq!(bad, Some(5));
        assert_eq!(id(queue.take()), Some(6));
        Ok(())
    }

    #[test]
    fn the_kernel_cannot_post_to_the_queue_of_a_process() -> Result {
        let (queue, _memory) = user()?;
        assert_eq!(queue.post(request(1)), Err(EINVAL));
        Ok(())
    }
}
