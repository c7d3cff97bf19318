// SPDX-License-Identifier: GPL-2.0

//! Memory windows.

use iwarp::inject::Verb;
use kernel::{
    prelude::*,
    sync::ArcBorrow, //
};
use kernel_ext::rdma::{
    ops::{
        MwCreated,
        MwOps, //
    },
    types::{
        MwType,
        Owner, //
    }, //
};

use crate::{
    device::inject::VerbCaller,
    mem::{
        mr::registration::Mw,
        pd::Pd, //
    },
    Riwarp, //
};

#[vtable]
impl MwOps for Mw {
    type Driver = Riwarp;

    fn alloc(pd: ArcBorrow<'_, Pd>, kind: MwType) -> Result<MwCreated<Self>> {
        pd.device()
            .ask_for_verb(Verb::AllocMw, || VerbCaller::Owner(Owner::User))?;
        let mw = Self::new(&pd, kind)?;
        Ok(MwCreated {
            rkey: mw.stag().raw(),
            mw,
        })
    }
}
