// SPDX-License-Identifier: GPL-2.0

//! Links to objects that no consumer holds, for tests of what a driver does without one: events and
//! notifications go nowhere.

use super::CpuCall;
use super::CqInner;
use super::CqLink;
use super::Resized;
use super::SrqInner;
use super::SrqLink;
use super::Target;
use crate::sync::Baton;
use crate::sync::Gate;
use core::ptr::NonNull;
use kernel::prelude::*;
use kernel::sync::Arc;

/// A gate that nobody gets through.
fn closed<B>() -> Gate<Target<B>> {
    let gate = Gate::new(Target(NonNull::dangling()));
    gate.close();
    gate
}

impl CqLink {
    /// Makes the link of a completion queue that no consumer holds.
    pub fn dead() -> Result<Self> {
        let inner = Arc::pin_init(
            pin_init!(CqInner {
                gate: closed(),
                baton: Baton::new(()),
                vector: None,
                call: CpuCall::new(),
                resized <- Resized::new(),
            }),
            GFP_KERNEL,
        )?;
        Ok(Self(inner))
    }
}

impl SrqLink {
    /// Makes the link of a shared receive queue that no consumer holds.
    pub fn dead() -> Result<Self> {
        let inner = Arc::pin_init(
            pin_init!(SrqInner {
                gate: closed(),
                resized <- Resized::new(),
            }),
            GFP_KERNEL,
        )?;
        Ok(Self(inner))
    }
}
