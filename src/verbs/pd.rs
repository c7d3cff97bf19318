// SPDX-License-Identifier: GPL-2.0

//! Protection domains.

use kernel::{
    prelude::*,
    sync::{
        Arc,
        ArcBorrow, //
    }, //
};
use kernel_ext::rdma::ops::PdOps;

use crate::{
    mem::pd::Pd,
    verbs::{
        device::RdmaDevice,
        ucontext::UContext, //
    },
    Riwarp, //
};

impl PdOps for Pd {
    type Driver = Riwarp;

    fn alloc(
        dev: ArcBorrow<'_, RdmaDevice>,
        context: Option<ArcBorrow<'_, UContext>>,
    ) -> Result<Arc<Self>> {
        let paging = context.map(|context| context.paging.clone());
        Self::new(dev.regions.clone(), paging)
    }
}
