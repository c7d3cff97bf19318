// SPDX-License-Identifier: GPL-2.0

//! The context of a process.

use iwarp::inject::Verb;
use kernel::{
    prelude::*,
    sync::{
        Arc,
        ArcBorrow, //
    }, //
};
use kernel_ext::rdma::{
    ops::UContextOps,
    types::Owner,
    udata::Udata, //
};

use crate::{
    abi,
    device::{
        inject::VerbCaller,
        paging::ContextPaging,
        Device, //
    },
    queue::waits::ReceiveWaits,
    verbs::device::RdmaDevice,
    Riwarp, //
};

/// An open device of a process. Mapped memory belongs to the objects created in the context.
pub(crate) struct UContext {
    pub(crate) paging: Arc<ContextPaging>,
    /// Its queue pairs that wait for a receive.
    pub(crate) waits: Arc<ReceiveWaits>,
    device: Arc<Device>,
}

#[vtable]
impl UContextOps for UContext {
    type Driver = Riwarp;

    fn alloc(dev: ArcBorrow<'_, RdmaDevice>, udata: &mut Udata<'_>) -> Result<Arc<Self>> {
        dev.ask_for_verb(Verb::AllocUcontext, || VerbCaller::Owner(Owner::User))?;
        let context = Self {
            paging: ContextPaging::new(&dev.paging, &dev.queues)?,
            waits: ReceiveWaits::new(&dev.queues, true)?,
            device: dev.device.clone(),
        };
        let context = Arc::new(context, GFP_KERNEL_ACCOUNT)?;
        abi::user::answer_open(dev.abi(), udata)?;
        Ok(context)
    }
}

impl Drop for UContext {
    fn drop(&mut self) {
        self.waits.end();
        self.device.report_hints();
    }
}
