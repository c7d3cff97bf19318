// SPDX-License-Identifier: GPL-2.0

//! The shared receive queue: a ring of receive work requests for many queue pairs.
//!
//! A consumer that shares one queue among its streams learns that it runs low by the limit event,
//! which is raised once each time it is armed (RDMAP-178).
//!
//! Context: any, unless a function says otherwise.

use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc,
        ArcBorrow, //
    }, //
};
use kernel_ext::{
    rdma::{
        object::SrqLink,
        ops::{
            SrqCreated,
            SrqInit, //
        },
        restrack::Details,
        types::{
            SrqAttr,
            SrqAttrMask,
            SrqEvent, //
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
        },
        Abi, //
    },
    device::{
        Device,
        Reservation,
        Resource,
        MAX_SRQ_WR, //
    },
    rq::RecvQueue,
    wr::{
        BadWr,
        RecvWr, //
    },
    Riwarp, //
};

/// A shared receive queue.
#[pin_data]
pub(crate) struct Srq {
    link: SrqLink,
    /// The sizes that the consumer was given.
    max_wr: Atomic<u32>,
    max_sge: u32,
    /// The event is raised when fewer requests than this are left; 0 when it is not armed.
    limit: Atomic<u32>,
    #[pin]
    queue: RecvQueue,
    _reservation: Reservation,
}

impl Srq {
    /// Makes a shared receive queue.
    ///
    /// Context: process.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP` for another type than the plain one, `EINVAL` for sizes beyond the device's,
    /// `ENOMEM`.
    pub(crate) fn create(
        device: ArcBorrow<'_, Device>,
        init: SrqInit<Riwarp>,
        udata: &mut Udata<'_, Riwarp>,
    ) -> Result<SrqCreated<Riwarp>> {
        if init.srq_type != 0 {
            return Err(EOPNOTSUPP);
        }
        let device: Arc<Device> = device.into();
        let abi = device.abi;
        let attr = init.attr;
        if attr.max_wr == 0 || attr.max_wr > MAX_SRQ_WR || attr.max_sge > abi.limits().sge {
            return Err(EINVAL);
        }
        // A limit is set by a change; what cannot be one is none here (ibv_create_srq(3)).
        let srq_limit = if attr.srq_limit > attr.max_wr {
            0
        } else {
            attr.srq_limit
        };
        let reservation = device.reserve(Resource::Srq)?;
        let (places, ring, max_sge) = if init.owner.is_user() {
            let places = abi.places(attr.max_wr);
            let (ring, max_sge) = RecvRing::create_shared(abi, places.all, attr.max_sge, udata)?;
            (places, Some(ring), max_sge)
        } else {
            (Places::plain(attr.max_wr), None, attr.max_sge)
        };
        let attr = SrqAttr {
            max_wr: places.usable,
            max_sge,
            srq_limit,
        };
        let queue = RecvQueue::new(places.all, ring)?;
        let srq = Arc::pin_init(
            pin_init!(Self {
                link: init.link,
                max_wr: Atomic::new(attr.max_wr),
                max_sge: attr.max_sge,
                limit: Atomic::new(attr.srq_limit),
                queue <- queue,
                _reservation: reservation,
            }),
            GFP_KERNEL_ACCOUNT,
        )?;
        Ok(SrqCreated { srq, attr })
    }

    /// Takes the queue out of service; no queue pair refers to it any more.
    pub(crate) fn destroy(_srq: Arc<Self>) {}

    /// Takes the oldest request into `wr`, and raises the limit event if that leaves too few.
    pub(crate) fn take(&self, wr: &mut RecvWr) -> Option<Result<(), BadWr>> {
        let taken = self.queue.take(wr);
        let limit = self.limit.load(Relaxed);
        if limit != 0 && !self.queue.holds(limit) && self.limit.cmpxchg(limit, 0, Relaxed).is_ok() {
            self.link.event(SrqEvent::LimitReached);
        }
        taken
    }

    /// Whether a request waits.
    pub(crate) fn has_request(&self) -> bool {
        self.queue.holds(1)
    }

    /// Posts receive work requests of a kernel consumer.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a request that cannot be posted here, `ENOMEM` for a full queue. What was posted
    /// before the one at fault stays posted.
    pub(crate) fn post_recv(&self, wrs: &mut RecvWrs<'_>) -> Result {
        wrs.try_for_each(|wr| self.queue.post(abi::kernel::recv(&wr)?))
    }

    /// Gives the queue of a process another size, arms the limit event, or both.
    ///
    /// Context: process; one call at a time.
    ///
    /// # Errors
    ///
    /// * `EINVAL` for a limit beyond the size, and a size beyond the device's, below the limit, or less
    ///   than what waits.
    /// * `EOPNOTSUPP` for a new size of a kernel consumer's queue, or where the library has no such call.
    /// * `ENOMEM`.
    pub(crate) fn modify(
        &self,
        attr: &SrqAttr,
        mask: SrqAttrMask,
        udata: &mut Udata<'_, Riwarp>,
    ) -> Result {
        let (max_wr, limit) = (self.max_wr.load(Relaxed), self.limit.load(Relaxed));
        let resize = mask.contains(SrqAttrMask::MAX_WR);
        let arm = mask.contains(SrqAttrMask::LIMIT);
        let size = if resize { attr.max_wr } else { max_wr };
        if size == 0 || size > MAX_SRQ_WR || size < if arm { attr.srq_limit } else { limit } {
            return Err(EINVAL);
        }
        if resize {
            let places = Abi::Rxe.places(size);
            self.queue.resize(places.all, udata)?;
            self.max_wr.store(places.usable, Relaxed);
        }
        if arm {
            self.limit.store(attr.srq_limit, Relaxed);
            // Armed too late: the consumer must not wait for a request to be taken first.
            if attr.srq_limit != 0
                && !self.queue.holds(attr.srq_limit)
                && self.limit.cmpxchg(attr.srq_limit, 0, Relaxed).is_ok()
            {
                self.link.event(SrqEvent::LimitReached);
            }
        }
        Ok(())
    }

    /// The sizes and the limit as they stand.
    pub(crate) fn query(&self) -> SrqAttr {
        SrqAttr {
            max_wr: self.max_wr.load(Relaxed),
            max_sge: self.max_sge,
            srq_limit: self.limit.load(Relaxed),
        }
    }
    /// Says how the queue is.
    pub(crate) fn describe(&self, details: &mut Details<'_>) -> Result {
        let attr = self.query();
        details.number(c"max_wr", attr.max_wr)?;
        if let Some(waiting) = self.queue.waiting() {
            details.number(c"waiting", waiting)?;
        }
        details.number(c"limit", attr.srq_limit)
    }
}

#[kernel::prelude::kunit_tests(riwarp_srq)]
mod tests {
    use super::*;
    use crate::bench::Bench;
    use kernel_ext::rdma::bench::post_recv;

    const LIMIT: SrqAttrMask = SrqAttrMask::LIMIT;
    const SIZE: SrqAttrMask = SrqAttrMask::MAX_WR;

    fn post(srq: &Srq, ids: &[u64]) -> Result {
        post_recv(ids, |wrs| srq.post_recv(wrs))
    }

    fn taken(srq: &Srq) -> Option<u64> {
        let mut wr = RecvWr::default();
        srq.take(&mut wr)?.ok()?;
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
    fn requests_are_taken_in_their_order() -> Result {
        let bench = Bench::new()?;
        let srq = bench.srq(4, 0)?;
        assert!(!srq.has_request() && taken(&srq).is_none());
        assert_eq!(post(&srq, &[1, 2, 3]), Ok(()));
        // As far as they fit.
        assert_eq!(post(&srq, &[4, 5]), Err(ENOMEM));
        for id in 1..=4 {
            assert!(srq.has_request());
            assert_eq!(taken(&srq), Some(id));
        }
        assert!(!srq.has_request() && taken(&srq).is_none());
        Ok(())
    }

    #[test]
    fn the_limit_event_is_due_once_when_fewer_are_left() -> Result {
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
        // It is not armed by itself.
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
    fn a_limit_that_comes_too_late_is_due_at_once() -> Result {
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
    fn sizes_and_limits_that_cannot_be_change_nothing() -> Result {
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
            // Below the limit, the one that is armed and the one that would be.
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
    fn sizes_beyond_the_devices_are_refused() -> Result {
        let bench = Bench::new()?;
        for max_wr in [0, MAX_SRQ_WR + 1, u32::MAX] {
            assert_eq!(bench.srq(max_wr, 0).err(), Some(EINVAL));
        }
        assert_eq!(bench.srq(4, 4)?.query().srq_limit, 4);
        // A program need not set it there.
        for limit in [5, u32::MAX] {
            assert_eq!(bench.srq(4, limit)?.query().srq_limit, 0);
        }
        Ok(())
    }
}
