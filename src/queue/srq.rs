// SPDX-License-Identifier: GPL-2.0

//! The shared receive queue: a ring of receive work requests for many queue pairs.
//!
//! The limit event tells a consumer that the queue runs low. It is raised once each time it is
//! armed (RDMAP-178). If the queue runs low already, arming raises it at once, unless it was raised
//! before and no request was taken since: then the consumer knows, and would otherwise make the
//! kernel queue an event for each call.
//!
//! Context: any, unless a function says otherwise.

use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc, //
    }, //
};
use kernel_ext::rdma::{
    object::SrqLink,
    types::{
        SrqAttr,
        SrqEvent, //
    },
    udata::Udata, //
};

use crate::{
    abi::{
        user::RecvRing,
        wr::{
            BadWr,
            RecvWr, //
        }, //
    },
    device::{
        Abi,
        Device,
        Reservation, //
    },
    mem::{
        mr::PdId,
        pd::Pd, //
    },
    queue::{
        rq::{
            RecvQueue,
            Taker, //
        },
        waits::ReceiveWaits, //
    }, //
};

/// Mark in [`Srq::limit`]: the event was raised, and no request was taken since. A limit is below
/// it.
const RAISED: u32 = 1 << 31;

/// A shared receive queue.
pub(crate) struct Srq {
    link: SrqLink,
    pd: Arc<Pd>,
    /// The sizes that were reported to the consumer.
    // ORDERING: Relaxed: only for reports.
    max_wr: Atomic<u32>,
    max_sge: u32,
    /// The event is raised when fewer requests than this are left; 0 if not armed. With [`RAISED`].
    // ORDERING: Relaxed: `arm` stores it and then takes the queue's lock; `take` takes that lock
    // and then loads it, so one of them sees the other. The exchange lets one raise the event.
    limit: Atomic<u32>,
    queue: Arc<RecvQueue>,
    waits: Arc<ReceiveWaits>,
    reservation: Reservation,
}

impl Srq {
    /// Makes a shared receive queue of `places` entries in a protection domain, with the ring that
    /// a process has mapped, if any.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(
        link: SrqLink,
        pd: Arc<Pd>,
        attr: SrqAttr,
        (places, ring): (u32, Option<RecvRing>),
        waits: &Arc<ReceiveWaits>,
        reservation: Reservation,
    ) -> Result<Arc<Self>> {
        let queue = Arc::pin_init(RecvQueue::new(places, ring)?, GFP_KERNEL_ACCOUNT)?;
        let made = Arc::new(
            Self {
                link,
                pd,
                max_wr: Atomic::new(attr.max_wr),
                max_sge: attr.max_sge,
                limit: Atomic::new(attr.srq_limit),
                queue,
                waits: waits.clone(),
                reservation,
            },
            GFP_KERNEL_ACCOUNT,
        )?;
        Ok(made)
    }

    /// Returns the protection domain of the regions that its requests use.
    pub(crate) fn pd(&self) -> PdId {
        self.pd.id()
    }

    /// Raises an event; nothing else changes.
    ///
    /// Context: any, no lock held.
    pub(crate) fn raise(&self, event: SrqEvent) {
        self.link.event(event);
    }

    /// Returns its device.
    pub(crate) fn device(&self) -> &Device {
        self.reservation.device()
    }

    /// Takes the oldest request into `wr`, and raises the limit event if too few are left.
    pub(crate) fn take(&self, wr: &mut RecvWr, taker: Taker) -> Option<Result<(), BadWr>> {
        let taken = self.queue.take(wr, taker);
        let mut limit = self.limit.load(Relaxed);
        if limit & RAISED != 0 && taken.is_some() {
            limit = self.update_limit(|old| old & !RAISED);
        }
        self.check_limit(limit);
        taken
    }

    /// Returns the ring.
    pub(crate) fn queue(&self) -> &Arc<RecvQueue> {
        &self.queue
    }

    /// Returns how many requests wait, if the library counts them.
    pub(crate) fn waiting(&self) -> Option<u32> {
        self.queue.waiting()
    }

    /// Returns the list of the queue pairs that wait for a request.
    pub(crate) fn waits(&self) -> &Arc<ReceiveWaits> {
        &self.waits
    }

    /// Resizes the queue of a process.
    ///
    /// Context: process; one call at a time.
    ///
    /// # Errors
    ///
    /// As [`RecvQueue::resize`]; then the queue is unchanged.
    pub(crate) fn resize(&self, max_wr: u32, udata: &mut Udata<'_>) -> Result {
        let places = Abi::Rxe.places(max_wr);
        self.queue.resize(places.all, udata)?;
        self.max_wr.store(places.usable, Relaxed);
        Ok(())
    }

    /// Arms the limit event; 0 disarms it. `limit` is at most
    /// [`MAX_SRQ_WR`](crate::device::MAX_SRQ_WR).
    pub(crate) fn arm(&self, limit: u32) {
        let armed = self.update_limit(|old| limit | (old & RAISED));
        // If too few are left already, raise the event now: the consumer need not wait for another
        // take.
        self.check_limit(armed);
    }

    /// Replaces the limit with its mark, and returns the new value.
    fn update_limit(&self, new: impl Fn(u32) -> u32) -> u32 {
        let mut old = self.limit.load(Relaxed);
        loop {
            match self.limit.cmpxchg(old, new(old), Relaxed) {
                Ok(_) => return new(old),
                Err(found) => old = found,
            }
        }
    }

    /// Raises the limit event once, if it is armed and fewer requests than `limit` are left.
    #[inline]
    fn check_limit(&self, limit: u32) {
        if limit != 0
            && limit & RAISED == 0
            && !self.queue.holds(limit)
            && self.limit.cmpxchg(limit, RAISED, Relaxed).is_ok()
        {
            self.link.event(SrqEvent::LimitReached);
        }
    }

    /// Returns the current sizes and limit.
    pub(crate) fn attr(&self) -> SrqAttr {
        SrqAttr {
            max_wr: self.max_wr.load(Relaxed),
            max_sge: self.max_sge,
            srq_limit: self.limit.load(Relaxed) & !RAISED,
        }
    }
}

#[kernel::prelude::kunit_tests(riwarp_srq)]
mod tests {
    use super::*;
    use crate::{
        bench::Bench,
        device::MAX_SRQ_WR, //
    };
    use kernel_ext::{
        compat::EOPNOTSUPP,
        rdma::{
            bench::post_recv,
            ops::SrqOps,
            types::SrqAttrMask, //
        }, //
    };

    const LIMIT: SrqAttrMask = SrqAttrMask::LIMIT;
    const SIZE: SrqAttrMask = SrqAttrMask::MAX_WR;

    fn post(srq: &Srq, ids: &[u64]) -> Result {
        post_recv(ids, |wrs| srq.post_recv(wrs))
    }

    fn taken(srq: &Srq) -> Option<u64> {
        let mut wr = RecvWr::default();
        srq.take(&mut wr, Taker::First)?.ok()?;
        Some(wr.id)
    }

    fn modify(srq: &Srq, max_wr: u32, srq_limit: u32, mask: SrqAttrMask) -> Result {
        let attr = SrqAttr {
            max_wr,
            srq_limit,
            ..srq.query()
        };
        srq.modify(&attr, mask, &mut Udata::none())
    }

    #[test]
    fn posted_request_overwrites_old_entry() -> Result {
        let bench = Bench::new()?;
        let srq = bench.srq(1, 0)?;
        let mut wr = RecvWr::default();
        for id in 1..=3 {
            assert_eq!(post(&srq, &[id]), Ok(()));
            assert!(srq
                .take(&mut wr, Taker::First)
                .is_some_and(|taken| taken.is_ok()));
            assert_eq!((wr.id, wr.buffer.sges().len()), (id, 1));
        }
        Ok(())
    }

    #[test]
    fn requests_are_taken_in_their_order() -> Result {
        let bench = Bench::new()?;
        let srq = bench.srq(4, 0)?;
        assert!(!srq.queue.holds(1) && taken(&srq).is_none());
        assert_eq!(post(&srq, &[1, 2, 3]), Ok(()));
        // Only as many as fit.
        assert_eq!(post(&srq, &[4, 5]), Err(ENOMEM));
        for id in 1..=4 {
            assert!(srq.queue.holds(1));
            assert_eq!(taken(&srq), Some(id));
        }
        assert!(!srq.queue.holds(1) && taken(&srq).is_none());
        Ok(())
    }

    #[test]
    fn srq_limit_event_is_raised_once() -> Result {
        let bench = Bench::new()?;
        let srq = bench.srq(8, 2)?;
        post(&srq, &[1, 2, 3])?;
        post(&srq, &[4])?;
        for left in [3, 2] {
            taken(&srq);
            assert_eq!(srq.queue.waiting(), Some(left));
            assert_eq!(srq.query().srq_limit, 2);
        }
        taken(&srq);
        assert_eq!(srq.query().srq_limit, 0);
        // It does not rearm itself.
        post(&srq, &[5, 6])?;
        taken(&srq);
        assert_eq!(srq.query().srq_limit, 0);
        assert_eq!(modify(&srq, 0, 2, LIMIT), Ok(()));
        assert_eq!(srq.query().srq_limit, 2);
        taken(&srq);
        assert_eq!(srq.query().srq_limit, 0);
        Ok(())
    }

    #[test]
    fn srq_limit_above_count_is_due_at_once() -> Result {
        let bench = Bench::new()?;
        let srq = bench.srq(8, 0)?;
        post(&srq, &[1, 2])?;
        assert_eq!(modify(&srq, 0, 3, LIMIT), Ok(()));
        assert_eq!(srq.query().srq_limit, 0);
        assert_eq!(modify(&srq, 0, 2, LIMIT), Ok(()));
        assert_eq!(srq.query().srq_limit, 2);
        // 0 disarms.
        assert_eq!(modify(&srq, 0, 0, LIMIT), Ok(()));
        assert_eq!(srq.query().srq_limit, 0);
        Ok(())
    }

    #[test]
    fn srq_rearming_raises_no_event_before_next_take() -> Result {
        let bench = Bench::new()?;
        let srq = bench.srq(8, 0)?;
        // An event disarms; 0 says that it was raised.
        assert_eq!(modify(&srq, 0, 1, LIMIT), Ok(()));
        assert_eq!(srq.query().srq_limit, 0);
        for limit in [1, 8, 0, 1, 2] {
            assert_eq!(modify(&srq, 0, limit, LIMIT), Ok(()));
            assert_eq!(srq.query().srq_limit, limit);
        }
        // Nor does a message that finds no request.
        assert_eq!(taken(&srq), None);
        assert_eq!(srq.query().srq_limit, 2);
        post(&srq, &[1, 2])?;
        assert_eq!(taken(&srq), Some(1));
        assert_eq!(srq.query().srq_limit, 0);
        Ok(())
    }

    #[test]
    fn srq_invalid_size_or_limit_changes_nothing() -> Result {
        let bench = Bench::new()?;
        let srq = bench.srq(8, 0)?;
        post(&srq, &[1, 2, 3])?;
        assert_eq!(modify(&srq, 0, 2, LIMIT), Ok(()));
        let before = srq.query();
        assert_eq!((before.max_wr, before.max_sge), (8, 1));
        for (max_wr, limit, mask) in [
            (0, 9, LIMIT),
            (0, u32::MAX, LIMIT),
            (0, 0, SIZE),
            (MAX_SRQ_WR + 1, 0, SIZE),
            // Below the armed limit, and below the one asked for.
            (1, 0, SIZE),
            (4, 5, SIZE | LIMIT),
        ] {
            assert_eq!(modify(&srq, max_wr, limit, mask), Err(EINVAL));
        }
        // The queue of a kernel consumer has one size.
        assert_eq!(modify(&srq, 16, 0, SIZE), Err(EOPNOTSUPP));
        assert_eq!(srq.query().max_wr, 8);
        assert_eq!(srq.query().srq_limit, 2);
        assert_eq!(taken(&srq), Some(1));
        Ok(())
    }

    #[test]
    fn srq_size_beyond_device_limit_is_refused() -> Result {
        let bench = Bench::new()?;
        for max_wr in [0, MAX_SRQ_WR + 1, u32::MAX] {
            assert_eq!(bench.srq(max_wr, 0).err(), Some(EINVAL));
        }
        assert_eq!(bench.srq(4, 4)?.query().srq_limit, 4);
        // A limit beyond the size is ignored at creation.
        for limit in [5, u32::MAX] {
            assert_eq!(bench.srq(4, limit)?.query().srq_limit, 0);
        }
        Ok(())
    }
}
