// SPDX-License-Identifier: GPL-2.0

//! Paging on demand: memory that is not pinned is fetched when a copy finds it absent.

pub(crate) mod mr;
pub(crate) mod sge;
