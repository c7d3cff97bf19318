// SPDX-License-Identifier: GPL-2.0

//! What a process holds of a device before it has queues: its context and its protection domains.
//!
//! A protection domain is a number. Queue pairs and regions carry the number of theirs, and a
//! stream may use a region only if the two are equal (RFC 5041, section 10.3; DDP-88).
//!
//! Context: process.

use kernel::{
    prelude::*,
    sync::{
        Arc,
        ArcBorrow, //
    }, //
};
use kernel_ext::rdma::udata::Udata;

use crate::{
    abi,
    device::{
        Device,
        Reservation,
        Resource, //
    },
    Riwarp, //
};

/// An open device of a process. The memory that it maps belongs to the objects that were made with
/// it, so there is nothing to keep here but the device itself.
pub(crate) struct UContext {
    _device: Arc<Device>,
}

impl UContext {
    /// Opens the device.
    pub(crate) fn open(
        device: ArcBorrow<'_, Device>,
        udata: &mut Udata<'_, Riwarp>,
    ) -> Result<Arc<Self>> {
        let context = Arc::new(
            Self {
                _device: device.into(),
            },
            GFP_KERNEL_ACCOUNT,
        )?;
        abi::user::answer_open(device.abi, udata)?;
        Ok(context)
    }
}

/// The number of a protection domain: unique among all that the device ever had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PdId(u64);

impl PdId {
    /// Makes the number from a count that never repeats.
    pub(crate) const fn new(count: u64) -> Self {
        Self(count)
    }
}

/// A protection domain.
pub(crate) struct Pd {
    pub(crate) device: Arc<Device>,
    id: PdId,
    _reservation: Reservation,
}

impl Pd {
    /// Makes a protection domain with a number that no other of the device has.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if the device has as many as it can have.
    pub(crate) fn alloc(device: ArcBorrow<'_, Device>) -> Result<Arc<Self>> {
        let device: Arc<Device> = device.into();
        let pd = Self {
            id: device.next_pd_id(),
            _reservation: device.reserve(Resource::Pd)?,
            device,
        };
        Ok(Arc::new(pd, GFP_KERNEL_ACCOUNT)?)
    }

    /// The number of the domain.
    pub(crate) fn id(&self) -> PdId {
        self.id
    }
}
