// SPDX-License-Identifier: GPL-2.0

//! Protection domains.
//!
//! A protection domain is a number. Queue pairs, shared receive queues and regions carry the number
//! of their domain. A stream may use a region only if it has the queue pair's (RFC 5041, section
//! 10.3; DDP-88); for a receive from a shared queue it must have that queue's.
//!
//! Context: process.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use crate::{
    device::{
        paging::ContextPaging,
        Device,
        Reservation,
        Resource, //
    },
    mem::{
        mr::PdId,
        regions::Regions, //
    }, //
};

/// A protection domain.
pub(crate) struct Pd {
    regions: Arc<Regions>,
    /// [`None`] for a kernel consumer, whose memory is never paged.
    paging: Option<Arc<ContextPaging>>,
    id: PdId,
    _reservation: Reservation,
}

impl Pd {
    /// Makes a protection domain with a number of its own, for the context with this `paging`.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if the device has [`MAX_PD`](crate::device::MAX_PD) of them.
    pub(crate) fn new(
        regions: Arc<Regions>,
        paging: Option<Arc<ContextPaging>>,
    ) -> Result<Arc<Self>> {
        let pd = Self {
            id: regions.next_pd_id(),
            _reservation: regions.device().reserve(Resource::Pd)?,
            paging,
            regions,
        };
        Ok(Arc::new(pd, GFP_KERNEL_ACCOUNT)?)
    }

    /// Returns the device.
    pub(crate) fn device(&self) -> &Arc<Device> {
        self.regions.device()
    }

    /// Returns the regions of the device, those of other domains among them.
    pub(crate) fn regions(&self) -> &Arc<Regions> {
        &self.regions
    }

    /// Returns the on-demand paging of its context, if a process has it.
    pub(crate) fn paging(&self) -> Option<&ContextPaging> {
        self.paging.as_deref()
    }

    /// Returns the number of the domain.
    pub(crate) fn id(&self) -> PdId {
        self.id
    }
}
