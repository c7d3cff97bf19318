// SPDX-License-Identifier: GPL-2.0

//! The completion queue.
//!
//! The transmit tasks and receivers of any number of queue pairs post completions. A process reads
//! them from the ring that it has mapped; a kernel consumer polls them as `ib_wc`. The queue also
//! calls the completion handler.
//!
//! A full queue drops the completion that is posted, raises its error event for the first one, and
//! takes what is posted when it has room again. If the completion was that of a receive of a
//! process, the caller ends the queue pair, since the message is lost. Posting and notifying are
//! two steps, so that a batch of completions costs one barrier and one call: the caller runs
//! [`Cq::notify`] after the last [`Cq::post`] of a batch, when it holds no lock of the driver but
//! mutexes. Without a pending event [`Cq::notify`] costs one load.
//!
//! Context: any. The queue's lock is the innermost of the driver.

use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Full,
            Relaxed,
            Release, //
        },
        Arc, //
    }, //
};
use kernel_ext::{
    compat::{
        new_spinlock_irq,
        SpinLockIrq, //
        EOPNOTSUPP,
    },
    rdma::{
        device::IbDeviceName,
        object::{
            CqLink,
            QpId, //
        },
        types::NotifyOn,
        udata::Udata,
        wr::{
            Wc,
            WcSink, //
        }, //
    }, //
};

use crate::{
    abi::{
        rxe,
        siw,
        user::CqRing,
        wr::{
            Completion,
            PendingEvent, //
        }, //
    },
    device::{
        Abi,
        Device,
        Reservation,
        Resource, //
    }, //
};

use super::{
    first_position,
    waits::ReceiveWaits, //
};

/// Most completions that a resize copies with the lock held: 16 KiB.
const LOCKED_COPIES: u32 = 256;

/// How often a resize copies new completions without the lock before it gives up. From the second
/// time on they should be few, since the resize does not wait for the process in between.
const CATCH_UPS: u32 = 100;

/// Where the completions are.
pub(crate) enum CqStorage {
    /// In memory private to the kernel.
    Kernel(KVVec<Option<Completion>>),
    /// In a ring that a process has mapped and polls without a call.
    User(CqRing),
}

struct CqInner {
    ring: CqStorage,
    /// Completions polled by a kernel consumer so far, modulo 2^32.
    taken: u32,
    /// The last request to be notified, if it is still pending.
    armed: Option<NotifyOn>,
    /// Completions posted so far, modulo 2^32.
    posted: u32,
    overflown: bool,
    /// The strict mode has found that it was promised too much.
    exceeded: bool,
}

/// A completion queue.
#[pin_data]
pub(crate) struct Cq {
    link: CqLink,
    /// Entries in the ring of a kernel consumer; a power of two.
    entries: u32,
    /// Where a process arms the queue without a call, if it does.
    siw_notify: Option<siw::SiwCqRing>,
    /// The queue pairs of the process that wait for a receive.
    waits: Option<Arc<ReceiveWaits>>,
    /// Something was posted since the last notification.
    event_pending: Atomic<bool>,
    /// A solicited completion was posted since the last notification.
    solicited: Atomic<bool>,
    #[pin]
    inner: SpinLockIrq<CqInner>,
    reservation: Reservation,
}

impl Cq {
    /// Makes a completion queue of `entries` entries, as many as `ring` has.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(
        device: &Arc<Device>,
        link: CqLink,
        entries: u32,
        ring: CqStorage,
        waits: Option<Arc<ReceiveWaits>>,
    ) -> Result<Arc<Self>> {
        let siw_notify = match &ring {
            CqStorage::User(ring) => ring.siw_notify(),
            CqStorage::Kernel(_) => None,
        };
        let reservation = device.reserve(Resource::Cq)?;
        let first = first_position(entries);
        let cq = Arc::pin_init(
            pin_init!(Self {
                link,
                entries,
                siw_notify,
                waits,
                event_pending: Atomic::new(false),
                solicited: Atomic::new(false),
                inner <- new_spinlock_irq!(CqInner {
                    ring,
                    taken: first,
                    armed: None,
                    posted: first,
                    overflown: false,
                    exceeded: false,
                }),
                reservation,
            }),
            GFP_KERNEL_ACCOUNT,
        )?;
        Ok(cq)
    }

    /// Moves the completions of a process's queue to a new ring of another size, which replaces the
    /// old one. Returns how many it can hold.
    ///
    /// Context: process; one call at a time.
    ///
    /// # Errors
    ///
    /// Leave the queue as it was.
    ///
    /// * `EINVAL` if the new ring cannot hold the completions that were not polled yet, or more
    ///   were posted meanwhile than the old ring holds.
    /// * `EAGAIN` if completions come faster than they are copied.
    /// * `EOPNOTSUPP` if the library cannot resize the queue or a kernel consumer owns it.
    /// * `ENOMEM`.
    pub(crate) fn move_to_new_ring(&self, entries: u32, udata: &mut Udata<'_>) -> Result<u32> {
        let ring = match &self.inner.lock().ring {
            CqStorage::User(ring) => ring.clone(),
            CqStorage::Kernel(_) => return Err(EOPNOTSUPP),
        };
        let places = Abi::Rxe.places(entries);
        let (old, new) = ring.begin_resize(places.all, udata)?;
        let before = self.inner.lock().posted;
        let moved = Move::begin(old, new, before)?;
        let _drop_outside_lock = self.carry_on(moved, || ())?;
        Ok(places.usable)
    }

    /// Copies completions posted since the move began until few are left, then installs the new
    /// ring and returns the old one. Calls `meanwhile` before each attempt.
    fn carry_on(&self, mut moved: Move, mut meanwhile: impl FnMut()) -> Result<CqStorage> {
        for _ in 0..CATCH_UPS {
            meanwhile();
            match self.finish_move(moved)? {
                Moved::Here(old) => return Ok(old),
                Moved::Behind(behind, posted) => {
                    moved = behind;
                    moved.catch_up(posted)?;
                }
            }
        }
        Err(EAGAIN)
    }

    /// Copies the rest and installs the new ring, unless the rest is long: interrupts are off
    /// meanwhile.
    fn finish_move(&self, mut moved: Move) -> Result<Moved> {
        let mut inner = self.inner.lock();
        let posted = inner.posted;
        if posted.wrapping_sub(moved.position) > LOCKED_COPIES {
            return Ok(Moved::Behind(moved, posted));
        }
        moved.catch_up(posted)?;
        inner.posted = moved.copied;
        let ring = CqStorage::User(CqRing::Rxe(moved.new));
        Ok(Moved::Here(core::mem::replace(&mut inner.ring, ring)))
    }

    /// Raises the event of a queue that has failed; it has not.
    ///
    /// Context: any, no lock held.
    pub(crate) fn raise_error(&self) {
        self.link.error();
    }

    /// Returns its device.
    pub(crate) fn device(&self) -> &Device {
        self.reservation.device()
    }

    /// Returns the name of its device, for trace events.
    ///
    /// Context: any.
    pub(crate) fn device_name(&self) -> IbDeviceName {
        self.link.device_name()
    }

    /// Appends a completion, or drops it if there is no room. Call [`Cq::notify`] when the batch is
    /// complete.
    ///
    /// Context: any; the locks of queue pairs may be held.
    pub(crate) fn post(&self, completion: &Completion) -> Posted {
        let (mut overflow, mut posted) = (false, Posted::Kept);
        {
            let mut inner = self.inner.lock();
            let inner = &mut *inner;
            let index = self.index(inner.posted);
            let stored = match &mut inner.ring {
                CqStorage::User(ring) => ring.post(inner.posted, completion),
                CqStorage::Kernel(slots) => match slots.get_mut(index) {
                    Some(slot @ None) => {
                        *slot = Some(*completion);
                        true
                    }
                    _ => false,
                },
            };
            if stored {
                inner.posted = inner.posted.wrapping_add(1);
                if completion.solicited {
                    // ORDERING: the completion was stored before; pairs with the acquire in
                    // `notify_pending`, which may be that of an earlier completion.
                    self.solicited.store(true, Release);
                }
                // ORDERING: pairs with the xchg in `notify_pending`: the caller that clears the
                // flag sees the completion and the `solicited` stored before it.
                self.event_pending.store(true, Release);
            } else {
                overflow = !core::mem::replace(&mut inner.overflown, true);
                posted = match inner.ring {
                    CqStorage::User(_) => Posted::LostToProcess,
                    CqStorage::Kernel(_) => Posted::LostToKernel,
                };
            }
        }
        if overflow {
            if posted == Posted::LostToKernel {
                pr_warn!(
                    "{}: a completion queue of the kernel has no room\n",
                    self.device_name()
                );
            }
            self.link.error();
        }
        posted
    }

    /// Calls the consumer if the queue is armed for what was posted since the last call.
    ///
    /// Context: softirq or process, no lock of the driver held but mutexes.
    #[inline]
    pub(crate) fn notify(&self) {
        // ORDERING: a plain load, since the caller of `post` calls this afterwards: it sees its own
        // store, unless a call elsewhere has cleared the flag after it and notifies instead.
        if self.event_pending.load(Relaxed) {
            self.notify_pending();
        }
    }

    fn notify_pending(&self) {
        // ORDERING: the consumer arms, then polls once more (libsiw by sequentially consistent
        // atomics, all others by a call that takes `inner`); this side posts, then checks whether
        // the queue is armed. Each side needs its store before its load, hence `Full`.
        if !self.event_pending.xchg(false, Full) {
            return;
        }
        // ORDERING: `Acquire`: whoever is notified of the solicited completion sees it, also if it
        // was posted after the xchg above. Its poster then notifies as for a plain one.
        let event = if self.solicited.load(Acquire) && self.solicited.xchg(false, Acquire) {
            PendingEvent::Solicited
        } else {
            PendingEvent::Plain
        };
        self.notify_armed(event);
    }

    /// Calls the consumer if the queue is armed for any completion, although nothing may have been
    /// posted. Returns whether it did.
    ///
    /// Context: as [`Cq::notify`].
    #[cold]
    pub(crate) fn notify_for_nothing(&self) -> bool {
        self.notify_armed(PendingEvent::Plain)
    }

    /// Calls the consumer if the queue is armed for the event; returns whether it is.
    #[inline]
    fn notify_armed(&self, event: PendingEvent) -> bool {
        let due = match &self.siw_notify {
            Some(siw_notify) => siw_notify.disarm_for(event),
            None => self.inner.lock().disarm_for(event),
        };
        if due {
            self.link.notify();
        }
        due
    }

    /// Hands completions to a kernel consumer, as many as the sink takes. A process polls its own
    /// ring, so its queue hands out none.
    pub(crate) fn poll_into(&self, sink: &mut WcSink<'_>) {
        let mut inner = self.inner.lock();
        let inner = &mut *inner;
        let CqStorage::Kernel(slots) = &mut inner.ring else {
            return;
        };
        while sink.room() > 0 {
            let slot = slots.get_mut(self.index(inner.taken));
            let Some(completion) = slot.and_then(Option::take) else {
                return;
            };
            inner.taken = inner.taken.wrapping_add(1);
            sink.push(&to_wc(&completion));
        }
    }

    /// Removes the completions of a destroyed queue pair that a kernel consumer has not polled;
    /// later completions move up.
    ///
    /// Context: any.
    pub(crate) fn forget(&self, qp: QpId) {
        let mut inner = self.inner.lock();
        let inner = &mut *inner;
        let CqStorage::Kernel(slots) = &mut inner.ring else {
            return;
        };
        let mut kept = inner.taken;
        for ahead in 0..inner.posted.wrapping_sub(inner.taken) {
            let index = self.index(inner.taken.wrapping_add(ahead));
            let found = slots.get_mut(index).and_then(Option::take);
            let Some(found) = found.filter(|found| found.qp != qp) else {
                continue;
            };
            if let Some(slot) = slots.get_mut(self.index(kept)) {
                *slot = Some(found);
            }
            kept = kept.wrapping_add(1);
        }
        inner.posted = kept;
    }

    /// Returns the index in the ring of a kernel consumer.
    fn index(&self, position: u32) -> usize {
        (position & self.entries.wrapping_sub(1)) as usize
    }

    /// Returns the state of the queue.
    ///
    /// Context: any.
    pub(crate) fn state(&self) -> CqState {
        let inner = self.inner.lock();
        CqState {
            waiting: match &inner.ring {
                CqStorage::User(ring) => ring.waiting(inner.posted),
                CqStorage::Kernel(_) => Some(inner.posted.wrapping_sub(inner.taken)),
            },
            armed: inner.armed,
            armed_by_call: self.siw_notify.is_none(),
            overflown: inner.overflown,
        }
    }

    /// Returns what a process has not polled; [`None`] for the queue of a kernel consumer.
    #[cold]
    pub(crate) fn unpolled(&self) -> Option<Unpolled> {
        let inner = self.inner.lock();
        let CqStorage::User(ring) = &inner.ring else {
            return None;
        };
        let unpolled = ring.unpolled(inner.posted);
        Some(Unpolled {
            taken: inner.posted.wrapping_sub(unpolled),
            unpolled,
            room: ring.room(),
        })
    }

    /// Returns true the first time that it is called.
    #[cold]
    pub(crate) fn is_first_excess(&self) -> bool {
        !core::mem::replace(&mut self.inner.lock().exceeded, true)
    }

    /// Returns the list of the process's queue pairs that wait for a receive.
    pub(crate) fn waits(&self) -> Option<&ReceiveWaits> {
        self.waits.as_deref()
    }

    /// Arms the queue; returns whether a kernel consumer has completions to poll already. A process
    /// polls once more after arming.
    ///
    /// Context: any.
    pub(crate) fn arm(&self, on: NotifyOn) -> bool {
        let mut inner = self.inner.lock();
        // A request for any completion stays in force over a later one for solicited completions.
        if inner.armed != Some(NotifyOn::Next) {
            inner.armed = Some(on);
        }
        match &inner.ring {
            CqStorage::Kernel(slots) => matches!(slots.get(self.index(inner.taken)), Some(Some(_))),
            CqStorage::User(_) => false,
        }
    }
}

/// What became of a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Posted {
    /// It is in the queue.
    Kept,
    /// The queue of a kernel consumer had no room. Several may share one that was promised less
    /// than their queue pairs complete when they are flushed.
    LostToKernel,
    /// The queue of a process had no room.
    LostToProcess,
}

/// The state of a queue.
pub(crate) struct CqState {
    /// Completions that were not polled yet, if the driver knows.
    pub(crate) waiting: Option<u32>,
    /// The last request to be notified, if it is still pending.
    pub(crate) armed: Option<NotifyOn>,
    /// The queue is armed by a call. If a process arms it without one, only the process knows.
    pub(crate) armed_by_call: bool,
    /// At least one completion was lost.
    pub(crate) overflown: bool,
}

/// What a process has not polled.
pub(crate) struct Unpolled {
    /// How many completions it has polled so far, modulo 2^32.
    pub(crate) taken: u32,
    /// How many it has not.
    pub(crate) unpolled: u32,
    /// How many the queue holds.
    pub(crate) room: u32,
}

/// A resize in progress.
struct Move {
    old: rxe::RxeCqRing,
    new: rxe::RxeCqRing,
    /// The position of the first completion not copied yet.
    position: u32,
    /// How many were copied.
    copied: u32,
}

/// What [`Cq::finish_move`] did.
enum Moved {
    /// The new ring is installed; this is the old storage.
    Here(CqStorage),
    /// So many completions are posted by now that more have to be copied first.
    Behind(Move, u32),
}

impl Move {
    /// Begins by copying those of `posted` completions that the process has not polled yet.
    fn begin(old: rxe::RxeCqRing, new: rxe::RxeCqRing, posted: u32) -> Result<Self> {
        let copied = old.copy_to(posted, &new)?;
        Ok(Self {
            old,
            new,
            position: posted,
            copied,
        })
    }

    /// Copies the completions posted since.
    fn catch_up(&mut self, posted: u32) -> Result {
        let late = posted.wrapping_sub(self.position);
        self.old
            .copy_range(self.position, late, &self.new, self.copied)?;
        self.position = posted;
        self.copied += late;
        Ok(())
    }
}

impl CqInner {
    /// Disarms the queue if `event` answers the request; returns whether it did.
    fn disarm_for(&mut self, event: PendingEvent) -> bool {
        let due = match self.armed {
            Some(NotifyOn::Next) => true,
            Some(NotifyOn::Solicited) => event == PendingEvent::Solicited,
            None => false,
        };
        if due {
            self.armed = None;
        }
        due
    }
}

fn to_wc(completion: &Completion) -> Wc {
    Wc {
        wr_id: completion.id,
        status: completion.status,
        opcode: completion.opcode,
        byte_len: completion.bytes,
        extra: completion.extra,
        qp: completion.qp,
        vendor_err: completion.vendor_err,
    }
}

#[kernel::prelude::kunit_tests(riwarp_cq)]
mod tests {
    use super::*;
    use crate::{
        bench::{
            polled,
            Bench, //
        },
        Riwarp, //
    };
    use kernel::sync::atomic::{
        Atomic,
        Relaxed, //
    };
    use kernel_ext::rdma::{
        bench::{
            destroy_polled,
            CqConsumer,
            CqHandler, //
        },
        ops::{
            ArmResult,
            CqOps, //
        },
        types::NotifyRequest,
        wr::{
            WcExtra,
            WcOpcode,
            WcStatus, //
        }, //
    };

    const COMPLETION: Completion = Completion {
        id: 0x1122_3344_5566_7788,
        status: WcStatus::Flushed,
        opcode: WcOpcode::Write,
        bytes: 99,
        extra: WcExtra::None,
        immediate: None,
        qpn: 5,
        qp: QpId::NONE,
        solicited: false,
        vendor_err: 0x1_0102,
    };

    #[test]
    fn armed_kernel_cq_notifies_once() {
        let mut inner = CqInner {
            ring: CqStorage::Kernel(KVVec::new()),
            taken: 0,
            armed: None,
            posted: 0,
            overflown: false,
            exceeded: false,
        };
        assert!(!inner.disarm_for(PendingEvent::Solicited));
        inner.armed = Some(NotifyOn::Solicited);
        assert!(!inner.disarm_for(PendingEvent::Plain));
        assert!(inner.disarm_for(PendingEvent::Solicited));
        assert!(!inner.disarm_for(PendingEvent::Solicited));
        inner.armed = Some(NotifyOn::Next);
        assert!(inner.disarm_for(PendingEvent::Plain));
    }

    #[test]
    fn arming_for_solicited_keeps_arming_for_any() -> Result {
        let bench = Bench::new()?;
        let cq = bench.cq(4)?;
        let arm = |on| {
            let request = NotifyRequest {
                on,
                report_missed: false,
            };
            cq.req_notify(request);
        };
        let is_due_for = |event| cq.inner.lock().disarm_for(event);
        arm(NotifyOn::Next);
        arm(NotifyOn::Solicited);
        assert!(is_due_for(PendingEvent::Plain));
        assert!(!is_due_for(PendingEvent::Solicited));
        // In the other order, the later request replaces the earlier one.
        arm(NotifyOn::Solicited);
        assert!(!is_due_for(PendingEvent::Plain));
        arm(NotifyOn::Next);
        assert!(is_due_for(PendingEvent::Plain));
        Ok(())
    }

    /// A process's completion queue of `places` entries, and its ring.
    fn of_process(bench: &Bench, places: u32) -> Result<(Arc<Cq>, rxe::RxeCqRing)> {
        let ring = rxe::RxeCqRing::new(places)?;
        let user = CqStorage::User(CqRing::Rxe(ring.clone()));
        Ok((
            Cq::new(&bench.device, CqLink::dead()?, places, user, None)?,
            ring,
        ))
    }

    /// Where the next completion is stored.
    fn end(cq: &Cq) -> u32 {
        cq.inner.lock().posted
    }

    fn post_many(cq: &Cq, ids: core::ops::Range<u64>) {
        for id in ids {
            cq.post(&Completion { id, ..COMPLETION });
        }
    }

    #[test]
    fn cq_resize_copies_few_entries_under_lock() -> Result {
        let bench = Bench::new()?;
        let (cq, old) = of_process(&bench, 2048)?;
        let (few, most) = (10, u64::from(LOCKED_COPIES));
        let start = end(&cq);
        post_many(&cq, 0..few);
        let moved = Move::begin(old, rxe::RxeCqRing::new(4096)?, end(&cq))?;
        // More than the limit was posted: the resize copies it without the lock first.
        post_many(&cq, few..few + most + 1);
        let Moved::Behind(mut moved, posted) = cq.finish_move(moved)? else {
            return Err(EINVAL);
        };
        assert_eq!(u64::from(posted.wrapping_sub(start)), few + most + 1);
        moved.catch_up(posted)?;
        let all = few + 2 * most + 1;
        post_many(&cq, few + most + 1..all);
        let new = moved.new.clone();
        let Moved::Here(_) = cq.finish_move(moved)? else {
            return Err(EINVAL);
        };
        post_many(&cq, all..all + 1);
        let posted = end(&cq);
        assert_eq!(u64::from(posted), all + 1);
        assert_eq!(new.waiting(posted), Some(posted));
        for position in 0..=all {
            // CAST: a small number.
            assert_eq!(new.id_at(position as u32), Some(position));
        }
        Ok(())
    }

    /// A resize gives up if completions come as fast as they are copied while the process polls
    /// them at once.
    #[test]
    fn cq_resize_gives_up_if_completions_keep_coming() -> Result {
        let bench = Bench::new()?;
        let (cq, old) = of_process(&bench, 1024)?;
        let moved = Move::begin(old.clone(), rxe::RxeCqRing::new(32768)?, end(&cq))?;
        let mut looks = 0;
        let moved = cq.carry_on(moved, || {
            looks += 1;
            if looks <= CATCH_UPS + 10 {
                post_many(&cq, 0..u64::from(LOCKED_COPIES) + 1);
                old.poll_all();
            }
        });
        assert_eq!((moved.err(), looks), (Some(EAGAIN), CATCH_UPS));
        // The queue still has its old ring.
        cq.post(&COMPLETION);
        assert_eq!(old.waiting(end(&cq)), Some(1));
        Ok(())
    }

    #[test]
    fn cq_resize_too_small_for_completions_is_refused() -> Result {
        let bench = Bench::new()?;
        let (cq, old) = of_process(&bench, 16)?;
        let start = end(&cq);
        post_many(&cq, 0..3);
        let moved = Move::begin(old.clone(), rxe::RxeCqRing::new(4)?, end(&cq))?;
        post_many(&cq, 3..4);
        assert!(cq.finish_move(moved).is_err());
        post_many(&cq, 4..5);
        let posted = end(&cq).wrapping_sub(start);
        assert_eq!((posted, old.id_at(4)), (5, Some(4)));
        assert!(Move::begin(old, rxe::RxeCqRing::new(4)?, end(&cq)).is_err());
        Ok(())
    }

    #[test]
    fn full_kernel_cq_accepts_again_once_polled() -> Result {
        let bench = Bench::new()?;
        let cq = bench.cq(4)?;
        post_many(&cq, 0..6);
        for id in 0..4 {
            assert_eq!(polled(&cq).map(|(id, ..)| id), Some(id));
        }
        assert!(polled(&cq).is_none() && cq.state().overflown);
        post_many(&cq, 7..8);
        assert_eq!(polled(&cq).map(|(id, ..)| id), Some(7));
        Ok(())
    }

    #[test]
    fn full_user_cq_accepts_again_once_polled() -> Result {
        let bench = Bench::new()?;
        let (cq, ring) = of_process(&bench, 4)?;
        let mut kept = 0;
        while cq.post(&COMPLETION) == Posted::Kept {
            kept += 1;
            assert!(kept <= 4);
        }
        assert_eq!(cq.post(&COMPLETION), Posted::LostToProcess);
        assert!(kept >= 3 && cq.state().overflown);
        ring.poll_all();
        assert_eq!(cq.post(&COMPLETION), Posted::Kept);
        assert_eq!(ring.waiting(end(&cq)), Some(1));
        Ok(())
    }

    #[test]
    fn arming_reports_missed_completions() -> Result {
        let bench = Bench::new()?;
        let cq = bench.cq(4)?;
        let arm = |report_missed| {
            cq.req_notify(NotifyRequest {
                on: NotifyOn::Next,
                report_missed,
            })
        };
        assert_eq!(arm(true), ArmResult::Armed);
        cq.post(&COMPLETION);
        assert_eq!(
            (arm(false), arm(true)),
            (ArmResult::Armed, ArmResult::MissedEvents)
        );
        assert!(polled(&cq).is_some());
        assert_eq!(arm(true), ArmResult::Armed);
        Ok(())
    }

    struct Calls(Atomic<u32>);

    impl CqHandler for Calls {
        fn completed(&self) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    #[test]
    fn freed_cq_calls_no_handler() -> Result {
        let bench = Bench::new()?;
        let calls = Arc::new(Calls(Atomic::new(0)), GFP_KERNEL)?;
        let consumer = CqConsumer::try_new(calls.clone())?;
        let cq = bench.cq_of(consumer.link(), 4)?;
        let post_and_tell = || {
            cq.arm(NotifyOn::Next);
            cq.post(&COMPLETION);
            cq.notify();
        };
        post_and_tell();
        assert_eq!(calls.0.load(Relaxed), 1);
        // The handler would queue a work item on memory that is freed.
        consumer.free::<Riwarp>(cq.clone(), post_and_tell)?;
        assert_eq!(calls.0.load(Relaxed), 1);
        Ok(())
    }

    /// A consumer of `ib_create_cq()` may destroy its queue while the handler runs.
    #[test]
    fn cq_can_be_polled_until_its_link_is_closed() -> Result {
        let bench = Bench::new()?;
        assert_eq!(destroy_polled::<Riwarp>(bench.cq(4)?), Ok(true));
        Ok(())
    }

    #[test]
    fn solicited_completion_notifies_once() -> Result {
        let bench = Bench::new()?;
        let cq = bench.cq(4)?;
        for (solicited, armed) in [(true, None), (false, Some(NotifyOn::Solicited))] {
            cq.req_notify(NotifyRequest {
                on: NotifyOn::Solicited,
                report_missed: false,
            });
            cq.post(&Completion {
                solicited,
                ..COMPLETION
            });
            cq.notify();
            assert!(cq.inner.lock().armed == armed);
        }
        Ok(())
    }

    #[test]
    fn cq_drops_completions_of_destroyed_queue_pair() -> Result {
        let bench = Bench::new()?;
        let cq = bench.cq(4)?;
        let post = |ids: &[u64]| {
            for &id in ids {
                let qp = if id % 2 == 0 { QpId::OTHER } else { QpId::NONE };
                cq.post(&Completion {
                    id,
                    qp,
                    ..COMPLETION
                });
            }
        };
        let rest = || core::iter::from_fn(|| polled(&cq)).map(|(id, ..)| id);
        // The ring is full and does not start at the first entry.
        post(&[1, 2]);
        assert!(rest().eq([1, 2]));
        post(&[3, 4, 5, 6]);
        cq.forget(QpId::OTHER);
        post(&[7, 9]);
        assert!(rest().eq([3, 5, 7, 9]));
        post(&[2, 4]);
        cq.forget(QpId::OTHER);
        cq.forget(QpId::OTHER);
        post(&[1]);
        assert!(rest().eq([1]));
        Ok(())
    }

    #[test]
    fn kernel_completion_carries_invalidated_key() {
        let plain = to_wc(&COMPLETION);
        assert_eq!((plain.wr_id, plain.byte_len), (COMPLETION.id, 99));
        assert!(matches!(plain.extra, WcExtra::None));
        let told = to_wc(&Completion {
            extra: WcExtra::Invalidated(7),
            ..COMPLETION
        });
        assert!(matches!(told.extra, WcExtra::Invalidated(7)));
    }
}
