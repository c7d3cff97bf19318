// SPDX-License-Identifier: GPL-2.0

//! The context of a process.

use kernel::{
    prelude::*,
    sync::{
        Arc,
        ArcBorrow, //
    }, //
};
use kernel_ext::rdma::{
    ops::UContextOps,
    udata::Udata, //
};

use crate::{
    abi,
    device::Device,
    verbs::device::RdmaDevice,
    Riwarp, //
};

/// An open device of a process. Mapped memory belongs to the objects created in the context, so the
/// context holds only the device.
pub(crate) struct UContext {
    _device: Arc<Device>,
}

impl UContextOps for UContext {
    type Driver = Riwarp;

    fn alloc(dev: ArcBorrow<'_, RdmaDevice>, udata: &mut Udata<'_>) -> Result<Arc<Self>> {
        let context = Self {
            _device: dev.device.clone(),
        };
        let context = Arc::new(context, GFP_KERNEL_ACCOUNT)?;
        abi::user::answer_open(dev.abi(), udata)?;
        Ok(context)
    }
}
