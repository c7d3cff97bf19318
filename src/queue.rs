// SPDX-License-Identifier: GPL-2.0

//! Queues of work requests ([`sq`], [`rq`], [`srq`]), of completions ([`cq`]), and of the peer's
//! Read and Atomic Requests ([`readq`]).

pub(crate) mod cq;
pub(crate) mod readq;
pub(crate) mod rq;
pub(crate) mod sq;
pub(crate) mod srq;
