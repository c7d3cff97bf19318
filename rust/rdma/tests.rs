// SPDX-License-Identifier: GPL-2.0

//! What KUnit suites of a driver need in the place of `ib_core` and its consumers. Built only for
//! kernels with KUnit.

pub mod bench;
pub(super) mod wr;
