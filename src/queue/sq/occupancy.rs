// SPDX-License-Identifier: GPL-2.0

//! How full a send queue is, for administrators.
//!
//! Context: any.

use kernel::sync::atomic::Acquire;

use super::SendQueue;

/// How full a send queue is.
pub(crate) struct Occupancy {
    /// Requests that were not taken.
    pub(crate) posted: u32,
    /// Requests that were taken and are not complete.
    pub(crate) pending: u32,
    /// Reads and atomic operations that are outstanding, of how many that may be.
    pub(crate) reads: u32,
    pub(crate) max_reads: u32,
}

impl SendQueue {
    /// Whether as many requests are pending as the queue is long. A process may post as many behind
    /// them, since its places are free again when they are taken.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        // ORDERING: pairs with the release in `complete_one`: the place is ours again.
        self.taken().wrapping_sub(self.done.load(Acquire)) >= self.entries
    }

    /// How full the queue is.
    pub(crate) fn occupancy(&self) -> Occupancy {
        let ring = self.user.as_ref().map(|ring| ring.posted(self.taken()));
        let inner = self.inner.lock();
        let taken = self.taken();
        Occupancy {
            posted: ring.unwrap_or_else(|| inner.posted.wrapping_sub(taken)),
            pending: taken.wrapping_sub(self.done()),
            reads: inner.depth.used().into(),
            max_reads: inner.depth.limit().into(),
        }
    }

    /// Whether every request that was taken is complete.
    pub(crate) fn is_idle(&self) -> bool {
        // Under the lock, so that the completions are there too.
        let _inner = self.inner.lock();
        self.taken() == self.done()
    }

    /// Whether the peer is still to get something of what was taken. A peer that has ended its half
    /// of the stream answers no Read, so with one outstanding nothing behind it can succeed.
    pub(crate) fn owes(&self) -> bool {
        let inner = self.inner.lock();
        self.taken() != self.done() && inner.depth.used() == 0
    }
}
