// SPDX-License-Identifier: GPL-2.0

//! Work requests as they come in, and their translation into the driver's own form.
//!
//! Everything that depends on who posts is below this module.

pub(crate) mod kernel;
pub(crate) mod siw;
