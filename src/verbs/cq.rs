// SPDX-License-Identifier: GPL-2.0

//! Completion queues.

use iwarp::inject::Verb;
use kernel::{
    prelude::*,
    sync::ArcBorrow, //
};
use kernel_ext::{
    compat::EOPNOTSUPP,
    rdma::{
        ops::{
            ArmResult,
            CqCreated,
            CqInit,
            CqOps, //
        },
        restrack::Details,
        types::{
            NotifyOn,
            NotifyRequest,
            Owner, //
        },
        udata::Udata,
        wr::WcSink, //
    }, //
};

use crate::{
    abi::{
        user::{
            CqRing,
            Places, //
        },
        wr::empty_ring, //
    },
    device::{
        inject::VerbCaller,
        MAX_CQE, //
    },
    queue::cq::{
        Cq,
        CqStorage, //
    },
    verbs::device::RdmaDevice,
    Riwarp, //
};

#[vtable]
impl CqOps for Cq {
    type Driver = Riwarp;

    fn create(
        dev: ArcBorrow<'_, RdmaDevice>,
        init: CqInit<Riwarp>,
        udata: &mut Udata<'_>,
    ) -> Result<CqCreated<Self>> {
        dev.ask_for_verb(Verb::CreateCq, || VerbCaller::Owner(init.owner))?;
        if init.flags != 0 {
            return Err(EOPNOTSUPP);
        }
        check_size(init.entries)?;
        let (places, ring) = if init.owner.is_user() {
            let places = dev.abi().places(init.entries);
            let ring = CqRing::create(dev.abi(), places.all, udata)?;
            (places, CqStorage::User(ring))
        } else {
            let places = Places::plain(init.entries);
            (places, CqStorage::Kernel(empty_ring(places.all as usize)?))
        };
        let waits = init.context.map(|context| context.waits.clone());
        Ok(CqCreated {
            cq: Self::new(&dev.device, init.link, places.all, ring, waits)?,
            // They can be asked for again.
            entries: places.usable.min(MAX_CQE),
        })
    }

    fn resize(&self, entries: u32, udata: &mut Udata<'_>) -> Result<u32> {
        self.device()
            .ask_for_verb(Verb::ResizeUserCq, || VerbCaller::Owner(Owner::User))?;
        check_size(entries)?;
        self.move_to_new_ring(entries, udata)
    }

    fn poll(&self, sink: &mut WcSink<'_>) {
        self.poll_into(sink);
    }

    fn req_notify(&self, request: NotifyRequest) -> ArmResult {
        let waiting = self.arm(request.on);
        if let Some(waits) = self.waits() {
            waits.look_in_call();
        }
        if request.report_missed && waiting {
            ArmResult::MissedEvents
        } else {
            ArmResult::Armed
        }
    }

    fn describe(&self, details: &mut Details<'_>) -> Result {
        let state = self.state();
        if let Some(waiting) = state.waiting {
            details.number(c"waiting", waiting)?;
        }
        if state.armed_by_call {
            let armed = match state.armed {
                None => c"no",
                Some(NotifyOn::Next) => c"next",
                Some(NotifyOn::Solicited) => c"solicited",
            };
            details.word(c"armed", armed)?;
        }
        details.number(c"overrun", state.overflown.into())
    }
}

/// Checks a queue size against the device's limit.
///
/// # Errors
///
/// `EINVAL` if it is zero or too large.
fn check_size(entries: u32) -> Result {
    if entries == 0 || entries > MAX_CQE {
        return Err(EINVAL);
    }
    Ok(())
}
