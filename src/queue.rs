// SPDX-License-Identifier: GPL-2.0

//! Queues of work requests ([`sq`], [`rq`], [`srq`]), of completions ([`cq`]), and of the peer's
//! Read and Atomic Requests ([`readq`]).

pub(crate) mod cq;
pub(crate) mod readq;
pub(crate) mod rq;
pub(crate) mod sq;
pub(crate) mod srq;
pub(crate) mod waits;

/// Returns the position at which a queue of `entries` entries, a power of two or 0, starts: one lap
/// before positions wrap, so that whatever uses the queue for longer tests that.
const fn first_position(entries: u32) -> u32 {
    entries.wrapping_neg()
}
