// SPDX-License-Identifier: GPL-2.0

//! Memory: protection domains ([`pd`]), regions and windows ([`mr`]), their table ([`regions`]) and
//! their rights ([`rights`]), what work requests name of it ([`payload`]), scatter/gather lists
//! ([`sge`]), what peers do with it ([`peer`]), and operations on words of it ([`atomic`]).

pub(crate) mod atomic;
pub(crate) mod mr;
pub(crate) mod payload;
pub(crate) mod pd;
pub(crate) mod peer;
pub(crate) mod regions;
pub(crate) mod rights;
pub(crate) mod sge;
