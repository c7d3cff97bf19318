// SPDX-License-Identifier: GPL-2.0

//! Paging on demand, for both directions of a stream: memory that is not pinned is fetched when a
//! copy finds it absent.

pub(crate) mod mr;
pub(crate) mod qp;
pub(crate) mod rx;
pub(crate) mod sge;
pub(crate) mod tx;
