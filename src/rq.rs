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
    sync::SpinLockIrq, //
};

use crate::{
    abi::user::RecvRing,
    sq::empty_ring,
    wr::{
        BadWr,
        RecvWr, //
    }, //
};

enum Ring {
    /// Mapped by a process.
    User(RecvRing),
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
    /// Makes the queue; `ring` has as many entries and is mapped by a process. Without it the queue
    /// belongs to a kernel consumer.
    pub(crate) fn new(entries: u32, ring: Option<RecvRing>) -> Result<impl PinInit<Self>> {
        let ring = match ring {
            Some(ring) => Ring::User(ring),
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

    /// Takes the oldest request into `wr`.
    ///
    /// [`None`] means that there is none; an error, that the process stored one that cannot be
    /// used. It is taken all the same.
    pub(crate) fn take(&self, wr: &mut RecvWr) -> Option<Result<(), BadWr>> {
        let mut inner = self.inner.lock();
        let inner = &mut *inner;
        let index = inner.taken & self.entries.wrapping_sub(1);
        let taken = match &mut inner.ring {
            Ring::User(ring) => ring.take(inner.taken, wr)?,
            Ring::Kernel(slots) => {
                *wr = slots.get_mut(index as usize)?.take()?;
                Ok(())
            }
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
        let position = inner.taken.wrapping_add(last);
        match &inner.ring {
            Ring::User(ring) => ring.holds(inner.taken, count),
            // Requests are posted one after the other, so the last of them stands for all.
            Ring::Kernel(slots) => {
                let index = position & self.entries.wrapping_sub(1);
                matches!(slots.get(index as usize), Some(Some(_)))
            }
        }
    }
}
