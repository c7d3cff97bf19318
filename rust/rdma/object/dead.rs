// SPDX-License-Identifier: GPL-2.0

//! Links without a consumer, for tests: events and notifications have no effect.

use super::CpuCall;
use super::CqLink;
use super::CqLinkInner;
use super::ObjectPtr;
use super::Resized;
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
                resized <- Resized::new(),
            }),
            GFP_KERNEL,
        )?;
        Ok(Self(inner))
    }
}

impl SrqLink {
    /// Creates the link of a shared receive queue without a consumer.
    pub fn dead() -> Result<Self> {
        let inner = Arc::pin_init(
            pin_init!(SrqLinkInner {
                object: revoked(),
                resized <- Resized::new(),
            }),
            GFP_KERNEL,
        )?;
        Ok(Self(inner))
    }
}
