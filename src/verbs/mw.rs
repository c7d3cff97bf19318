// SPDX-License-Identifier: GPL-2.0

//! Memory windows.

use kernel::{
    prelude::*,
    sync::ArcBorrow, //
};
use kernel_ext::rdma::{
    ops::{
        MwCreated,
        MwOps, //
    },
    types::MwType, //
};

use crate::{
    mem::{
        mr::registration::Mw,
        pd::Pd, //
    },
    Riwarp, //
};

impl MwOps for Mw {
    type Driver = Riwarp;

    fn alloc(pd: ArcBorrow<'_, Pd>, kind: MwType) -> Result<MwCreated<Self>> {
        let mw = Self::new(&pd, kind)?;
        Ok(MwCreated {
            rkey: mw.stag().raw(),
            mw,
        })
    }
}
