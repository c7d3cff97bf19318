// SPDX-License-Identifier: GPL-2.0

//! Shared receive queues.

use iwarp::inject::Verb;
use kernel::{
    prelude::*,
    sync::ArcBorrow, //
};
use kernel_ext::{
    compat::EOPNOTSUPP,
    rdma::{
        ops::{
            SrqCreated,
            SrqInit,
            SrqOps, //
        },
        restrack::Details,
        types::{
            Owner,
            SrqAttr,
            SrqAttrMask, //
        },
        udata::Udata,
        wr::RecvWrs, //
    }, //
};

use crate::{
    abi::{
        self,
        user::{
            Places,
            RecvRing, //
        }, //
    },
    device::{
        inject::VerbCaller,
        Resource,
        MAX_SRQ_WR, //
    },
    queue::srq::Srq,
    verbs::device::RdmaDevice,
    Riwarp, //
};

#[vtable]
impl SrqOps for Srq {
    type Driver = Riwarp;

    fn create(
        dev: ArcBorrow<'_, RdmaDevice>,
        init: SrqInit<Riwarp>,
        udata: &mut Udata<'_>,
    ) -> Result<SrqCreated<Self>> {
        dev.ask_for_verb(Verb::CreateSrq, || VerbCaller::Owner(init.owner))?;
        if init.srq_type != 0 {
            return Err(EOPNOTSUPP);
        }
        let abi = dev.abi();
        let attr = init.attr;
        if attr.max_wr == 0 || attr.max_wr > MAX_SRQ_WR || attr.max_sge > abi.limits().sge {
            return Err(EINVAL);
        }
        // ibv_create_srq(3) leaves the limit to ibv_modify_srq(), so an invalid one counts as none.
        let srq_limit = if attr.srq_limit > attr.max_wr {
            0
        } else {
            attr.srq_limit
        };
        let reservation = dev.device.reserve(Resource::Srq)?;
        let (places, ring, max_sge) = if init.owner.is_user() {
            let places = abi.places(attr.max_wr);
            let (ring, max_sge) = RecvRing::create_shared(abi, places.all, attr.max_sge, udata)?;
            (places, Some(ring), max_sge)
        } else {
            (Places::plain(attr.max_wr), None, attr.max_sge)
        };
        let attr = SrqAttr {
            // It can be asked for again.
            max_wr: places.usable.min(MAX_SRQ_WR),
            max_sge,
            srq_limit,
        };
        let waits = dev.waits_of(init.context.as_deref());
        let storage = (places.all, ring);
        let srq = Self::new(init.link, init.pd, attr, storage, &waits, reservation)?;
        Ok(SrqCreated { srq, attr })
    }

    fn modify(&self, attr: &SrqAttr, mask: SrqAttrMask, udata: &mut Udata<'_>) -> Result {
        self.device()
            .ask_for_verb(Verb::ModifySrq, || VerbCaller::Owner(udata.owner()))?;
        let known = SrqAttrMask::MAX_WR.union(SrqAttrMask::LIMIT);
        if mask.without(known) != SrqAttrMask::empty() {
            return Err(EINVAL);
        }
        let now = self.attr();
        let resize = mask.contains(SrqAttrMask::MAX_WR);
        let arm = mask.contains(SrqAttrMask::LIMIT);
        let size = if resize { attr.max_wr } else { now.max_wr };
        let limit = if arm { attr.srq_limit } else { now.srq_limit };
        if size == 0 || size > MAX_SRQ_WR || size < limit {
            return Err(EINVAL);
        }
        if resize {
            self.resize(size, udata)?;
        }
        if arm {
            self.arm(limit);
        }
        Ok(())
    }

    fn query(&self) -> SrqAttr {
        self.attr()
    }

    fn post_recv(&self, wrs: &mut RecvWrs<'_>) -> Result {
        self.device()
            .ask_for_verb(Verb::PostSrqRecv, || VerbCaller::Owner(Owner::Kernel))?;
        let mut awaited = false;
        let result = wrs.try_for_each(|wr| {
            awaited |= self.queue().post(|recv| abi::kernel::recv(&wr, recv))?;
            Ok(())
        });
        if awaited {
            self.waits().as_arc_borrow().look_soon();
        }
        result
    }

    fn describe(&self, details: &mut Details<'_>) -> Result {
        let attr = self.attr();
        details.number(c"max_wr", attr.max_wr)?;
        if let Some(waiting) = self.waiting() {
            details.number(c"waiting", waiting)?;
        }
        details.number(c"limit", attr.srq_limit)
    }
}
