// SPDX-License-Identifier: GPL-2.0

//! Queues that the driver shares with libsiw (`providers/siw` of rdma-core): whose an entry is, and
//! when the process wants to be told.
//!
//! Context: process for making one; any for the rest.

use kernel::{
    prelude::*,
    sync::Arc, //
};
use kernel_ext::{
    compat::smp_mb,
    mm::shared_ring::SharedMem, //
};

use crate::abi::wr::PendingEvent;

/// Length of a completion in octets.
pub(super) const CQE_LEN: usize = 32;
/// Length in octets of the control block after the completion queue entries.
const CQ_CTRL_LEN: usize = 8;
/// Offset of an entry's flags.
pub(crate) const FLAGS_AT: usize = 8;
/// The entry belongs to the side that reads it.
pub(crate) const VALID: u16 = 1;

/// Arms a completion queue for solicited completions.
pub(super) const NOTIFY_SOLICITED: u32 = 1 << 0;
/// Arms a completion queue for the next completion.
pub(super) const NOTIFY_NEXT: u32 = 1 << 1;

/// A send or receive queue: an entry belongs to the kernel while its VALID flag is set.
#[derive(Clone)]
pub(super) struct Ring<const LEN: usize> {
    pub(super) memory: Arc<SharedMem>,
    /// The number of entries, a power of two, less 1.
    pub(super) mask: u32,
}

impl<const LEN: usize> Ring<LEN> {
    pub(super) fn new(entries: u32) -> Result<Self> {
        let memory = SharedMem::try_new(entries as usize * LEN)?;
        Ok(Self {
            memory: Arc::new(memory, GFP_KERNEL_ACCOUNT)?,
            mask: entries.wrapping_sub(1),
        })
    }

    fn at(&self, position: u32) -> usize {
        (position & self.mask) as usize * LEN
    }

    /// Returns whether the entry belongs to the kernel.
    pub(super) fn is_posted(&self, position: u32) -> bool {
        // ORDERING: the rest of the entry is read after this; pairs with libsiw's `atomic_store` of
        // the flags, sequentially consistent, after it has filled the entry.
        let flags = self.memory.load_u16_acquire(self.at(position) + FLAGS_AT);
        flags.is_some_and(|flags| flags & VALID != 0)
    }

    /// Returns a posted entry, to be decoded.
    #[inline]
    pub(super) fn entry(&self, position: u32) -> RingEntry<'_, LEN> {
        RingEntry {
            memory: &self.memory,
            at: self.at(position),
        }
    }

    /// Returns the entry to the process.
    #[inline]
    pub(super) fn release(&self, position: u32) {
        let at = self.at(position) + FLAGS_AT;
        // ORDERING: the entry was read before this; pairs with libsiw's `atomic_load` of the flags,
        // after which it fills the entry again.
        // Cannot fail: the offset is inside the ring.
        let _ = self.memory.store_u16_release(at, 0);
    }

    /// As [`Ring::release`], before a look at the next entry of a queue whose process rings a
    /// doorbell only if the queue seems idle.
    #[inline]
    pub(super) fn release_before_next(&self, position: u32) {
        self.release(position);
        // ORDERING: the process stores the next entry, then loads the flags of this one, and rings
        // no doorbell if this one is still valid. The kernel returns this entry, then loads the
        // flags of the next one. Without a full barrier between store and load on each side,
        // neither side might see the other's store, and the next entry would not be sent.
        smp_mb();
    }
}

/// An entry that a process has posted. Each of its octets is read at most once.
pub(super) struct RingEntry<'a, const LEN: usize> {
    pub(super) memory: &'a SharedMem,
    pub(super) at: usize,
}

impl<const LEN: usize> RingEntry<'_, LEN> {
    /// Copies the first `N` octets out.
    #[inline]
    pub(super) fn head<const N: usize>(&self) -> Option<[u8; N]>
    where
        [u8; N]: FromBytes,
    {
        const { assert!(N <= LEN) };
        self.memory.copy_out(self.at)
    }

    /// Fills `room` with the octets from `from` on. Returns false if `room` is [`None`] or the
    /// entry is too short.
    #[inline]
    pub(super) fn fill(&self, from: usize, room: Option<&mut [u8]>) -> bool {
        match room {
            Some(room) if room.len() <= LEN - from => {
                self.memory.copy_bytes_out(self.at + from, room).is_ok()
            }
            _ => false,
        }
    }
}

/// How often [`CompletionRing::disarm_for`] evaluates the process's request again because it has
/// changed.
const MAX_LOOKS: u32 = 16;

/// The completion queue of a process, which polls and arms it without a system call.
#[derive(Clone)]
pub(super) struct CompletionRing {
    pub(super) memory: Arc<SharedMem>,
    /// The number of entries, a power of two, less 1.
    mask: u32,
}

impl CompletionRing {
    /// Makes a queue of `entries` entries, a power of two.
    pub(super) fn new(entries: u32) -> Result<Self> {
        let memory = SharedMem::try_new(entries as usize * CQE_LEN + CQ_CTRL_LEN)?;
        Ok(Self {
            memory: Arc::new(memory, GFP_KERNEL_ACCOUNT)?,
            mask: entries.wrapping_sub(1),
        })
    }

    /// Stores a completion; `flags` publish it. Returns false if the process has not polled the
    /// completion that occupies the entry.
    #[inline]
    pub(super) fn add(&self, position: u32, entry: &[u8; CQE_LEN], flags: u8) -> bool {
        let at = (position & self.mask) as usize * CQE_LEN;
        let flags_at = at + FLAGS_AT;
        // ORDERING: the entry is written after this; pairs with the `atomic_store` of 0 by which
        // libsiw returns an entry that it has read. The release of the flags below pairs with its
        // `atomic_load` before it reads the entry.
        if self.memory.load_u8_acquire(flags_at) != Some(0) {
            return false;
        }
        self.memory.copy_in(at, entry).is_ok()
            && self.memory.store_u8_release(flags_at, flags).is_ok()
    }

    /// Returns how many completions it holds.
    pub(super) fn room(&self) -> u32 {
        self.mask.wrapping_add(1)
    }

    /// Returns how many completions before `position` the process has not returned.
    pub(super) fn unpolled(&self, position: u32) -> u32 {
        let is_unpolled = |back: &u32| {
            let at = (position.wrapping_sub(*back) & self.mask) as usize * CQE_LEN;
            // ORDERING: pairs with the `atomic_store` of 0 by which libsiw returns an entry.
            let flags = self.memory.load_u8_acquire(at + FLAGS_AT);
            flags.is_some_and(|flags| flags != 0)
        };
        // CAST: as many as the queue has entries at most.
        (1..=self.room()).take_while(is_unpolled).count() as u32
    }

    /// Clears the process's request for a notification if `event` satisfies it. Returns whether
    /// this call cleared it.
    pub(super) fn disarm_for(&self, event: PendingEvent) -> bool {
        let at = (self.mask as usize + 1) * CQE_LEN;
        let answers = |armed: u32| {
            armed & NOTIFY_NEXT != 0
                || (event == PendingEvent::Solicited && armed & NOTIFY_SOLICITED != 0)
        };
        // ORDERING: pairs with libsiw's `atomic_store` of its request (`siw_notify_cq`), behind
        // which it looks for completions; `Cq::notify_pending` has the barrier between the
        // completion and this. The exchange decides which call clears the request.
        let mut armed = self.memory.load_u32_acquire(at);
        for _ in 0..MAX_LOOKS {
            let Some(seen) = armed.filter(|armed| answers(*armed)) else {
                return false;
            };
            // A request that the process stores afterwards applies to later completions.
            match self.memory.replace_u32(at, seen, 0) {
                Some(Ok(_)) => return true,
                Some(Err(now)) => armed = Some(now),
                None => return false,
            }
        }
        // The process keeps changing its request; notify it.
        true
    }
}
