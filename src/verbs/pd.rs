// SPDX-License-Identifier: GPL-2.0

//! Protection domains.

use iwarp::inject::Verb;
use kernel::{
    prelude::*,
    sync::{
        Arc,
        ArcBorrow, //
    }, //
};
use kernel_ext::rdma::{
    ops::PdOps,
    types::Owner, //
};

use crate::{
    device::inject::VerbCaller,
    mem::pd::Pd,
    verbs::{
        device::RdmaDevice,
        ucontext::UContext, //
    },
    Riwarp, //
};

#[vtable]
impl PdOps for Pd {
    type Driver = Riwarp;

    fn alloc(
        dev: ArcBorrow<'_, RdmaDevice>,
        context: Option<ArcBorrow<'_, UContext>>,
    ) -> Result<Arc<Self>> {
        dev.ask_for_verb(Verb::AllocPd, || {
            VerbCaller::Owner(context.map_or(Owner::Kernel, |_| Owner::User))
        })?;
        let paging = context.map(|context| context.paging.clone());
        Self::new(dev.regions.clone(), paging)
    }
}
