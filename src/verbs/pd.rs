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
    device::{
        context::Pd,
        Device, //
    },
    Riwarp, //
};

impl PdOps for Pd {
    type Driver = Riwarp;

    fn alloc(dev: ArcBorrow<'_, Device>) -> Result<Arc<Self>> {
        Self::new(dev.into())
    }
}
