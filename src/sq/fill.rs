// SPDX-License-Identifier: GPL-2.0

//! How full a send queue is, for who asks from outside.
//!
//! Context: any.

use super::SendQueue;

/// How full a send queue is.
pub(crate) struct Fill {
    /// Requests that were not taken.
    pub(crate) posted: u32,
    /// Requests that were taken and are not complete.
    pub(crate) pending: u32,
    /// Reads and atomic operations that are outstanding, of how many that may be.
    pub(crate) reads: u32,
    pub(crate) max_reads: u32,
}

impl SendQueue {
    /// How full the queue is.
    pub(crate) fn fill(&self) -> Fill {
        let ring = self.user.as_ref().map(|ring| ring.posted(self.taken()));
        let inner = self.inner.lock();
        let taken = self.taken();
        Fill {
            posted: ring.unwrap_or_else(|| inner.posted.wrapping_sub(taken)),
            pending: taken.wrapping_sub(self.done()),
            reads: inner.depth.used().into(),
            max_reads: inner.depth.limit().into(),
        }
    }
}
