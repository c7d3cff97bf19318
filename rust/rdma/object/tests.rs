// SPDX-License-Identifier: GPL-2.0

//! For tests: links without a consumer, whose events and notifications have no effect, and whether
//! a link is open.

use super::CpuCall;
use super::CqLink;
use super::CqLinkInner;
use super::ObjectPtr;
use super::QueueMappings;
use super::SrqLink;
use super::SrqLinkInner;
use crate::sync::BhRevocable;
use crate::sync::SerialTask;
use core::ptr::NonNull;
use kernel::prelude::*;
use kernel::sync::Arc;

/// Returns a revoked pointer.
fn revoked<B>() -> BhRevocable<ObjectPtr<B>> {
    let object = BhRevocable::new(ObjectPtr(NonNull::dangling()));
    object.revoke();
    object
}

impl CqLink {
    /// Creates the link of a completion queue without a consumer.
    pub fn dead() -> Result<Self> {
        let inner = Arc::pin_init(
            pin_init!(CqLinkInner {
                object: revoked(),
                task: SerialTask::new(()),
                vector: None,
                call: CpuCall::new(),
                shared <- QueueMappings::new(),
            }),
            GFP_KERNEL,
        )?;
        Ok(Self(inner))
    }

    /// Returns whether the link is not closed, nor being closed.
    pub(crate) fn is_open(&self) -> bool {
        self.0.object.is_accessible()
    }
}

impl SrqLink {
    /// Creates the link of a shared receive queue without a consumer.
    pub fn dead() -> Result<Self> {
        let inner = Arc::pin_init(
            pin_init!(SrqLinkInner {
                object: revoked(),
                shared <- QueueMappings::new(),
            }),
            GFP_KERNEL,
        )?;
        Ok(Self(inner))
    }
}
