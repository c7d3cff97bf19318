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
    verbs::device::RdmaDevice,
    Riwarp, //
};

impl PdOps for Pd {
    type Driver = Riwarp;

    fn alloc(dev: ArcBorrow<'_, RdmaDevice>) -> Result<Arc<Self>> {
        Self::new(dev.regions.clone())
    }
}
