// SPDX-License-Identifier: GPL-2.0

//! What the completions of pending requests will contain.
//!
//! The transmit task fills an entry when it takes a request, without a lock: it owns the entry
//! until it publishes the request as taken, and again once the request is complete.
//!
//! Context: any.

use kernel::{
    alloc::flags::__GFP_NOWARN,
    prelude::*,
    sync::atomic::{
        Atomic,
        Relaxed, //
    }, //
};
use kernel_ext::{
    rdma::wr::WcOpcode,
    warn_on_once, //
};

/// The contents of one request's completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PendingWqe {
    pub(super) id: u64,
    pub(super) opcode: WcOpcode,
    pub(super) bytes: u32,
    pub(super) signalled: bool,
}

/// An entry of the ring.
// ORDERING: Relaxed: `SendQueue::taken` (release, acquire) publishes an entry, and
// `SendQueue::done` (release in `complete_one`, acquire in `is_full`) gives it back.
struct PendingSlot {
    id: Atomic<u64>,
    /// Octets, the opcode behind them, and [`SIGNALLED`].
    rest: Atomic<u64>,
}

const OPCODE_SHIFT: u32 = 32;
const SIGNALLED: u64 = 1 << 63;

/// A ring of [`PendingWqe`]s.
pub(super) struct PendingRing(KVVec<PendingSlot>);

impl PendingRing {
    /// Makes a ring of `entries` entries, a power of two.
    ///
    /// Context: process.
    pub(super) fn new(entries: u32) -> Result<Self> {
        let mut slots = KVVec::with_capacity(entries as usize, GFP_KERNEL_ACCOUNT | __GFP_NOWARN)?;
        for _ in 0..entries {
            let slot = PendingSlot {
                id: Atomic::new(0),
                rest: Atomic::new(0),
            };
            slots.push(slot, GFP_KERNEL_ACCOUNT)?;
        }
        Ok(Self(slots))
    }

    /// Fills the entry at `index`, which is inside the ring.
    #[inline]
    pub(super) fn put(&self, index: usize, wqe: PendingWqe) {
        if let Some(slot) = self.0.get(index) {
            let signalled = if wqe.signalled { SIGNALLED } else { 0 };
            let opcode = u64::from(wqe.opcode.to_raw()) << OPCODE_SHIFT;
            slot.id.store(wqe.id, Relaxed);
            slot.rest
                .store(u64::from(wqe.bytes) | opcode | signalled, Relaxed);
        }
    }

    /// Reads the entry at `index`.
    #[inline]
    pub(super) fn get(&self, index: usize) -> Option<PendingWqe> {
        let slot = self.0.get(index)?;
        let rest = slot.rest.load(Relaxed);
        // CAST: splits the word.
        let opcode = WcOpcode::from_raw(((rest & !SIGNALLED) >> OPCODE_SHIFT) as u32);
        // `put` stores none but these, and an entry is read only after it was filled.
        warn_on_once!(opcode.is_none());
        Some(PendingWqe {
            id: slot.id.load(Relaxed),
            opcode: opcode.unwrap_or(WcOpcode::Send),
            bytes: rest as u32,
            signalled: rest & SIGNALLED != 0,
        })
    }
}

#[kernel::prelude::kunit_tests(riwarp_pending)]
mod tests {
    use super::*;

    #[test]
    fn pending_ring_returns_stored_entries() -> Result {
        let pending = PendingRing::new(2)?;
        let wqe = PendingWqe {
            id: u64::MAX,
            opcode: WcOpcode::MaskedFetchAdd,
            bytes: u32::MAX,
            signalled: false,
        };
        pending.put(1, wqe);
        assert_eq!(pending.get(1), Some(wqe));
        let wqe = PendingWqe {
            id: 7,
            opcode: WcOpcode::Send,
            bytes: 0,
            signalled: true,
        };
        pending.put(0, wqe);
        assert_eq!(pending.get(0), Some(wqe));
        assert!(pending.get(2).is_none());
        Ok(())
    }
}
