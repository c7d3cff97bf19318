// SPDX-License-Identifier: GPL-2.0

//! Memory regions.

use iwarp::inject::Verb;
use kernel::{
    prelude::*,
    sync::ArcBorrow, //
};
use kernel_ext::rdma::{
    mem::mem_map::Shape,
    mr::{
        Advice,
        MapSg,
        RegDmaBufMr,
        RegUserMr,
        ReregUserMr, //
    },
    ops::{
        MrCreated,
        MrOps, //
    },
    restrack::Details,
    types::{
        AccessFlags,
        KernelOwned,
        Owner, //
    },
    udata::Udata, //
};

use crate::{
    abi,
    device::inject::VerbCaller,
    mem::{
        mr::{
            registration::Mr,
            Kind, //
        },
        pd::Pd, //
    },
    Riwarp, //
};

#[vtable]
impl MrOps for Mr {
    type Driver = Riwarp;

    fn reg_user(
        pd: ArcBorrow<'_, Pd>,
        request: &RegUserMr<'_>,
        udata: &mut Udata<'_>,
    ) -> Result<MrCreated<Self>> {
        ask_for_user(&pd, Verb::RegUserMr)?;
        let abi = pd.device().abi();
        let key = abi::user::asked_key(abi, udata)?;
        let created = Self::register_user(pd, request, key)?;
        abi::user::answer_region(abi, created.mr.region.stag(), udata)?;
        Ok(created)
    }

    fn reg_user_dmabuf(
        pd: ArcBorrow<'_, Pd>,
        request: &RegDmaBufMr<'_>,
    ) -> Result<MrCreated<Self>> {
        ask_for_user(&pd, Verb::RegUserMrDmabuf)?;
        Self::register_dma_buf(pd, request)
    }

    fn rereg_user(
        &self,
        pd: ArcBorrow<'_, Pd>,
        request: &ReregUserMr<'_>,
    ) -> Result<MrCreated<Self>> {
        ask_for_user(&pd, Verb::ReregUserMr)?;
        self.reregister(pd, request)
    }

    fn advise(pd: ArcBorrow<'_, Pd>, advice: Advice<'_>) -> Result {
        ask_for_user(&pd, Verb::AdviseMr)?;
        crate::odp::mr::advise(pd, advice)
    }

    fn get_dma(
        pd: ArcBorrow<'_, Pd>,
        proof: KernelOwned<'_>,
        access: AccessFlags,
    ) -> Result<MrCreated<Self>> {
        pd.device()
            .ask_for_verb(Verb::GetDmaMr, || VerbCaller::Owner(Owner::Kernel))?;
        Self::dma(pd, proof, access)
    }

    fn alloc(
        pd: ArcBorrow<'_, Pd>,
        proof: KernelOwned<'_>,
        shape: Shape,
        max_pages: u32,
    ) -> Result<MrCreated<Self>> {
        pd.device()
            .ask_for_verb(Verb::AllocMr, || VerbCaller::Owner(Owner::Kernel))?;
        Self::fast_reg(pd, proof, shape, max_pages)
    }

    fn map_sg(&self, sg: &mut MapSg<'_>) -> Result<i32> {
        self.map_list(sg)
    }

    fn dereg(&self) -> Result {
        self.deregister()
    }

    fn describe(&self, details: &mut Details<'_>) -> Result {
        let state = self.state();
        let kind = match state.kind {
            Kind::User => c"user",
            Kind::Dma => c"dma",
            Kind::FastReg => c"fast_reg",
            Kind::Window(_) => c"window",
        };
        details.word(c"kind", kind)?;
        details.number(c"valid", state.valid.into())?;
        details.flags(c"access", state.access.bits())?;
        details.number(c"windows", state.windows)
    }
}

/// Asks the rules about a verb of the current process.
///
/// # Errors
///
/// The one of a rule.
fn ask_for_user(pd: &Pd, verb: Verb) -> Result {
    pd.device()
        .ask_for_verb(verb, || VerbCaller::Owner(Owner::User))
}
