// SPDX-License-Identifier: GPL-2.0

//! How full a send queue is, for administrators.
//!
//! Context: any.

use kernel::sync::atomic::Acquire;

use super::SendQueue;

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

impl SendQueue {
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
}
