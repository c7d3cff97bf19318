// SPDX-License-Identifier: GPL-2.0

//! Memory: regions and windows ([`mr`]), what work requests name of it ([`payload`]), scatter/gather
//! lists ([`sge`]), and keys ([`stag`]).

pub(crate) mod mr;
pub(crate) mod payload;
pub(crate) mod sge;
pub(crate) mod stag;
