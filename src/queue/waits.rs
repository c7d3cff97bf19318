// SPDX-License-Identifier: GPL-2.0

//! Queue pairs whose next message has found no receive, and waits for one.
//!
//! iWARP has no RNR NAK. The receiver leaves such a message in TCP (`StreamReceiver::no_receive`),
//! so the window stops the peer, and the queue pair is entered here, at the end of a list. A look
//! at the list wakes those for which a receive is posted by now, the oldest first, and those that
//! have waited too long. Kernel consumers post by a call, which has the list looked at. A process
//! posts without one, so the list of its context is looked at by a timer, and with each doorbell
//! and each arming of a completion queue.
//!
//! All queue pairs of a context share one list and one timer, whichever receive queue they wait
//! for. A look takes about 0.2 us for each of them, hence [`PAUSE_EACH`].
//!
//! The locks are taken in this order: that of the list, that of a wait, that of a receive queue.

use core::{
    cmp,
    mem::{
        replace,
        swap, //
    }, //
};

use kernel::{
    impl_has_hr_timer,
    impl_has_work,
    new_work,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc,
        ArcBorrow, //
    },
    time::{
        hrtimer::{
            HrTimer,
            HrTimerCallback,
            HrTimerCallbackContext,
            HrTimerRestart,
            RelativeMode, //
        },
        Delta,
        Instant,
        Monotonic, //
    },
    workqueue::{
        Work,
        WorkItem, //
    }, //
};
use kernel_ext::{
    new_spinlock_bh,
    sync::SpinLockBh,
    time::TimerHandle,
    warn_on_once,
    workqueue::Enqueue, //
};

use crate::device::queues::Queues;

use super::rq::RecvQueue;

/// The work item of a queue pair that goes on receiving.
pub(crate) const RECEIVE: u64 = 1;

/// The work item that looks at a list.
pub(crate) const LOOK: u64 = 0;

/// Value of a limit: a message waits until its receive is posted.
pub(crate) const FOR_EVER: u32 = u32::MAX;

/// How long the timer pauses at first, in microseconds; each time it pauses twice as long.
const PAUSE_FIRST: u32 = 50;
/// How long it pauses at most: a process may post at any time. A kernel consumer's post has the
/// list looked at, so there it only finds those that have waited too long.
const PAUSE_USER: u32 = 4_000;
const PAUSE_KERNEL: u32 = 100_000;
/// How long it pauses at least for each queue pair in the list, so that looks take a fiftieth of a
/// processor at most.
const PAUSE_EACH: u32 = 16;

/// After so many milliseconds, and then every second, a wait without limit is looked at by its
/// queue pair.
const REVIEW: u32 = 10_000;
const REVIEW_AGAIN: u32 = 1_000;

/// The list of a context, or of the kernel consumers of a device.
#[pin_data]
pub(crate) struct ReceiveWaits {
    /// How many queue pairs have a place in the list.
    // ORDERING: Relaxed: stands for no other memory; the list has room before a queue pair is used.
    places: Atomic<u32>,
    /// Length of the list.
    // ORDERING: Relaxed: who posts without the timer uses `RecvQueue::post`'s answer; for others it
    // is a hint.
    len: Atomic<u32>,
    #[pin]
    inner: SpinLockBh<WaitList>,
    queues: Arc<Queues>,
    /// It is that of a process.
    user: bool,
    #[pin]
    work: Work<ReceiveWaits, LOOK>,
    #[pin]
    timer: HrTimer<Self>,
    #[pin]
    look_timer: TimerHandle<Self>,
}

struct WaitList {
    /// In the order in which they began to wait. Some have ended to wait since the last look.
    waiters: KVec<Arc<ReceiveWaiter>>,
    /// The next pause of the timer, in microseconds.
    pause: u32,
    /// The last look, and its number.
    looked: Instant<Monotonic>,
    number: u32,
}

/// The place of a queue pair in the list.
#[pin_data]
pub(crate) struct ReceiveWaiter {
    place: ListPlace,
    /// It is in the list.
    // ORDERING: Relaxed: under the lock of the list.
    listed: Atomic<bool>,
    #[pin]
    wait: SpinLockBh<Option<Wait>>,
}

/// Room for one queue pair in a list.
struct ListPlace(Arc<ReceiveWaits>);

/// A wait of a queue pair.
struct Wait {
    queue: Arc<RecvQueue>,
    queue_pair: Arc<dyn Enqueue<RECEIVE>>,
    since: Instant<Monotonic>,
    /// How long it waits, in milliseconds, or [`FOR_EVER`].
    limit: u32,
    /// When to review it, in milliseconds, if it has no limit.
    review: u32,
    turn: ReceiveTurn,
}

/// Whether a queue pair that waits may go on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ReceiveTurn {
    /// Others may have begun to wait before.
    #[default]
    Later,
    /// There is a receive for it.
    Now,
    /// It has waited without limit for so many milliseconds that somebody should know.
    Review {
        millis: u32,
        /// Somebody was told before.
        again: bool,
    },
    /// It has waited too long: so many milliseconds.
    Over(u32),
}

impl_has_work! {
    impl HasWork<Self, LOOK> for ReceiveWaits { self.work }
}

impl_has_hr_timer! {
    impl HasHrTimer<Self> for ReceiveWaits { mode: RelativeMode<Monotonic>, field: self.timer }
}

impl HrTimerCallback for ReceiveWaits {
    type Pointer<'a> = Arc<Self>;

    /// Context: hard interrupt.
    fn run(this: ArcBorrow<'_, Self>, _: HrTimerCallbackContext<'_, Self>) -> HrTimerRestart {
        this.look_soon();
        HrTimerRestart::NoRestart
    }
}

impl WorkItem<LOOK> for ReceiveWaits {
    type Pointer = Arc<Self>;

    /// Context: process.
    fn run(this: Arc<Self>) {
        // The timer has fired, or is too late or too early.
        match this.look() {
            Some(pause) => this.look_timer.arm(&this, pause),
            None => this.look_timer.stop(),
        }
    }
}

impl ReceiveWaits {
    /// Makes the list of a process's context, or of a device's kernel consumers.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(queues: &Arc<Queues>, user: bool) -> Result<Arc<Self>> {
        let this = pin_init!(Self {
            places: Atomic::new(0),
            len: Atomic::new(0),
            inner <- new_spinlock_bh!(WaitList {
                waiters: KVec::new(),
                pause: PAUSE_FIRST,
                looked: Instant::now(),
                number: 0,
            }),
            queues: queues.clone(),
            user,
            work <- new_work!("ReceiveWaits::work"),
            timer <- HrTimer::new(),
            look_timer <- TimerHandle::new(),
        });
        Arc::pin_init(this, GFP_KERNEL_ACCOUNT)
    }

    /// Stops the timer for good: no queue pair uses the list any more.
    ///
    /// Context: process, sleeps.
    pub(crate) fn end(&self) {
        self.look_timer.end();
        // Those that no look has found to have ended refer to the list.
        let _drop_outside_lock = replace(&mut self.inner.lock().waiters, KVec::new());
    }

    /// Has the list looked at, since somebody has posted. Context: any.
    pub(crate) fn look_soon(self: ArcBorrow<'_, Self>) {
        let queue = if self.user {
            &self.queues.user
        } else {
            &self.queues.tx
        };
        self.enqueue_on(queue);
    }

    /// Looks at the list of a process that makes a call, if it is not empty.
    ///
    /// Context: process, or softirq.
    #[inline]
    pub(crate) fn look_in_call(&self) {
        if self.len.load(Relaxed) != 0 {
            self.look();
        }
    }

    /// Looks at the list, unless that was done just now; returns when to look again, if anybody
    /// waits.
    #[cold]
    fn look(&self) -> Option<Delta> {
        let mut inner = self.inner.lock();
        let WaitList {
            waiters,
            pause,
            looked,
            number,
        } = &mut *inner;
        let now = Instant::now();
        let at_least = len_of(waiters).saturating_mul(PAUSE_EACH);
        let early = i64::from(at_least) - (now - *looked).as_micros_ceil();
        // A short list is looked at whenever somebody asks.
        if at_least > PAUSE_FIRST && early > 0 {
            return Some(Delta::from_micros(early));
        }
        *looked = now;
        *number = number.wrapping_add(1);
        waiters.retain(|waiter| {
            let mut wait = waiter.wait.lock();
            match &mut *wait {
                Some(wait) => {
                    if wait.look(*number, now) {
                        wait.queue_pair
                            .as_arc_borrow()
                            .enqueue_on(self.queues.may_wait(self.user));
                    }
                    true
                }
                None => {
                    waiter.listed.store(false, Relaxed);
                    false
                }
            }
        });
        let len = len_of(waiters);
        self.len.store(len, Relaxed);
        if len == 0 {
            return None;
        }
        let most = if self.user { PAUSE_USER } else { PAUSE_KERNEL };
        let due = cmp::max(*pause, len.saturating_mul(PAUSE_EACH));
        *pause = cmp::min(pause.saturating_mul(2), most);
        Some(Delta::from_micros(due.into()))
    }

    /// Makes room for the queue pairs that there are.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    fn make_room(&self) -> Result {
        loop {
            // CAST: widens.
            let places = self.places.load(Relaxed) as usize;
            if self.inner.lock().waiters.capacity() >= places {
                return Ok(());
            }
            let mut more = KVec::with_capacity(places.next_power_of_two(), GFP_KERNEL_ACCOUNT)?;
            let mut inner = self.inner.lock();
            let waiters = &mut inner.waiters;
            if waiters.capacity() < more.capacity() {
                swap(waiters, &mut more);
                for waiter in more.drain_all() {
                    // It has more room than the one before.
                    let _ = waiters.push_within_capacity(waiter);
                }
            }
            // `more` is dropped without the lock.
            drop(inner);
        }
    }
}

impl ReceiveWaiter {
    /// Makes a place for a queue pair.
    ///
    /// Context: process, sleeps.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(waits: &Arc<ReceiveWaits>) -> Result<Arc<Self>> {
        let place = ListPlace::new(waits)?;
        Arc::pin_init(
            pin_init!(Self {
                place,
                listed: Atomic::new(false),
                wait <- new_spinlock_bh!(None),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// Returns the list that it has a place in.
    pub(crate) fn waits(&self) -> &Arc<ReceiveWaits> {
        &self.place.0
    }

    /// Enters the queue pair at the end of the list, unless it waits already. It waits for `limit`
    /// milliseconds, or [`FOR_EVER`].
    ///
    /// Context: softirq or process; the lock under which the queue pair ends to wait is held.
    pub(crate) fn begin(
        self: &Arc<Self>,
        queue: &Arc<RecvQueue>,
        queue_pair: Arc<dyn Enqueue<RECEIVE>>,
        limit: u32,
    ) {
        let mut inner = self.waits().inner.lock();
        {
            let mut wait = self.wait.lock();
            if wait.is_some() {
                return;
            }
            *wait = Some(Wait {
                queue: queue.clone(),
                queue_pair,
                since: Instant::now(),
                limit,
                review: REVIEW,
                turn: ReceiveTurn::Later,
            });
        }
        let waiters = &mut inner.waiters;
        if self.listed.load(Relaxed) {
            // It has waited before, and no look has found that it does not any more.
            if let Some(at) = waiters.iter().position(|other| Arc::ptr_eq(other, self)) {
                let _ = waiters.remove(at);
            }
        }
        // There is room: each place is made before its queue pair.
        let entered = waiters.push_within_capacity(self.clone()).is_ok();
        warn_on_once!(!entered);
        self.listed.store(entered, Relaxed);
        inner.pause = PAUSE_FIRST;
        self.waits().len.store(len_of(&inner.waiters), Relaxed);
        drop(inner);
        // A receive may have been posted just before.
        self.waits().as_arc_borrow().look_soon();
    }

    /// Ends to wait, if it does. Context: that of [`ReceiveWaiter::begin`].
    pub(crate) fn end(&self) {
        // Not the last reference to a queue pair: the caller has one.
        let ended = self.wait.lock().take();
        drop(ended);
    }

    /// Has the list looked at, after the queue pair has ended to wait for good, so that the list
    /// forgets it.
    pub(crate) fn leave(&self) {
        if self.listed.load(Relaxed) {
            self.waits().as_arc_borrow().look_soon();
        }
    }

    /// Returns whether the queue pair may go on, if it waits.
    pub(crate) fn turn(&self) -> ReceiveTurn {
        let mut wait = self.wait.lock();
        let Some(wait) = &mut *wait else {
            return ReceiveTurn::Later;
        };
        let turn = wait.turn;
        if let ReceiveTurn::Review { again, .. } = &mut wait.turn {
            *again = true;
        }
        turn
    }

    /// Lets a wait without limit end in so many milliseconds.
    pub(crate) fn limit(&self, millis: u32) {
        if let Some(wait) = &mut *self.wait.lock() {
            if wait.limit == FOR_EVER {
                wait.limit = wait.elapsed(Instant::now()).saturating_add(millis);
            }
        }
    }
}

impl ListPlace {
    /// Makes room for one queue pair more.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    fn new(waits: &Arc<ReceiveWaits>) -> Result<Self> {
        waits.places.fetch_add(1, Relaxed);
        let this = Self(waits.clone());
        waits.make_room()?;
        Ok(this)
    }
}

impl Drop for ListPlace {
    fn drop(&mut self) {
        self.0.places.fetch_sub(1, Relaxed);
    }
}

impl Wait {
    /// Returns how long it has lasted, in milliseconds.
    fn elapsed(&self, now: Instant<Monotonic>) -> u32 {
        // A moment of another CPU may be later.
        u32::try_from((now - self.since).as_millis().max(0)).unwrap_or(FOR_EVER - 1)
    }

    /// Returns whether the queue pair has something to do, in a look with this number.
    fn look(&mut self, number: u32, now: Instant<Monotonic>) -> bool {
        if self.queue.claim(number) {
            self.turn = ReceiveTurn::Now;
            return true;
        }
        let elapsed = self.elapsed(now);
        self.turn = if self.limit != FOR_EVER && elapsed >= self.limit {
            ReceiveTurn::Over(elapsed)
        } else if self.limit == FOR_EVER && elapsed >= self.review {
            let again = self.review != REVIEW;
            self.review = elapsed.saturating_add(REVIEW_AGAIN);
            ReceiveTurn::Review {
                millis: elapsed,
                again,
            }
        } else {
            // What was posted for it may have been taken back, by a reset of the queue.
            self.turn = ReceiveTurn::Later;
            return false;
        };
        true
    }
}

fn len_of(waiters: &KVec<Arc<ReceiveWaiter>>) -> u32 {
    // CAST: a device has fewer queue pairs.
    waiters.len() as u32
}

#[kernel::prelude::kunit_tests(riwarp_receive_waits)]
mod tests {
    use super::*;
    use crate::bench::Bench;
    use kernel_ext::net::bench::eventually;

    /// Stands for a queue pair; counts how often it goes on.
    #[pin_data]
    struct WaitingQp {
        waiter: Arc<ReceiveWaiter>,
        runs: Atomic<u32>,
        #[pin]
        work: Work<WaitingQp, RECEIVE>,
    }

    impl_has_work! {
        impl HasWork<Self, RECEIVE> for WaitingQp { self.work }
    }

    impl WorkItem<RECEIVE> for WaitingQp {
        type Pointer = Arc<Self>;

        fn run(this: Arc<Self>) {
            this.runs.fetch_add(1, Relaxed);
        }
    }

    struct Rig {
        waits: Arc<ReceiveWaits>,
        queue: Arc<RecvQueue>,
        all: [Arc<WaitingQp>; 3],
        bench: Bench,
    }

    impl Rig {
        /// Three queue pairs that wait for receives of one queue.
        fn new(limit: u32) -> Result<Self> {
            let bench = Bench::new()?;
            let waits = ReceiveWaits::new(&bench.device.queues, false)?;
            let waiting = || {
                let waiter = ReceiveWaiter::new(&waits)?;
                let made = pin_init!(WaitingQp {
                    waiter,
                    runs: Atomic::new(0),
                    work <- new_work!("WaitingQp::work"),
                });
                Arc::pin_init(made, GFP_KERNEL)
            };
            let rig = Self {
                all: [waiting()?, waiting()?, waiting()?],
                queue: Arc::pin_init(RecvQueue::new(4, None)?, GFP_KERNEL)?,
                waits,
                bench,
            };
            for which in 0..3 {
                rig.begin(which, limit);
            }
            Ok(rig)
        }

        fn begin(&self, which: usize, limit: u32) {
            self.queue.add_waiter();
            let waiting = &self.all[which];
            waiting.waiter.begin(&self.queue, waiting.clone(), limit);
        }

        fn end(&self, which: usize) {
            self.queue.remove_waiter();
            self.all[which].waiter.end();
        }

        /// Has the list looked at, and returns whose turn it is.
        fn turns(&self) -> [ReceiveTurn; 3] {
            self.waits.as_arc_borrow().look_soon();
            self.bench.device.queues.flush_tx();
            self.all.each_ref().map(|waiting| waiting.waiter.turn())
        }

        fn post(&self) -> Result<bool> {
            self.queue.post(|_| Ok(()))
        }
    }

    impl Drop for Rig {
        fn drop(&mut self) {
            for which in 0..3 {
                self.end(which);
            }
            self.waits.end();
        }
    }

    use ReceiveTurn::{
        Later,
        Now, //
    };

    #[test]
    fn rnr_waiters_resume_oldest_first_one_per_receive() -> Result {
        let rig = Rig::new(FOR_EVER)?;
        assert_eq!(rig.turns(), [Later, Later, Later]);
        assert_eq!(rig.post(), Ok(true));
        assert_eq!(rig.turns(), [Now, Later, Later]);
        // It does not take it at once, nor twice.
        assert_eq!(rig.turns(), [Now, Later, Later]);
        rig.post()?;
        assert_eq!(rig.turns(), [Now, Now, Later]);
        rig.end(0);
        rig.begin(0, FOR_EVER);
        // It has to wait again, behind the others.
        assert_eq!(rig.turns(), [Later, Now, Now]);
        assert!(rig.all[0].runs.load(Relaxed) > 0 && rig.all[2].runs.load(Relaxed) > 0);
        Ok(())
    }

    #[test]
    fn rnr_waiter_is_told_of_its_timeout() -> Result {
        let rig = Rig::new(1)?;
        eventually(|| {
            rig.turns()
                .iter()
                .all(|turn| matches!(turn, ReceiveTurn::Over(1..)))
        })?;
        // A receive that comes late is in time as long as the stream has not ended.
        rig.post()?;
        assert_eq!(rig.turns()[0], Now);
        Ok(())
    }

    #[test]
    fn rnr_limit_set_while_waiting_applies() -> Result {
        let rig = Rig::new(FOR_EVER)?;
        rig.all[1].waiter.limit(1);
        eventually(|| matches!(rig.turns()[1], ReceiveTurn::Over(_)))?;
        assert_eq!(rig.turns()[0], Later);
        Ok(())
    }

    #[test]
    fn rnr_waiter_that_leaves_is_removed() -> Result {
        let rig = Rig::new(FOR_EVER)?;
        rig.end(1);
        rig.all[1].waiter.leave();
        rig.turns();
        assert_eq!(rig.waits.len.load(Relaxed), 2);
        assert_eq!(rig.all[1].waiter.turn(), Later);
        rig.begin(1, FOR_EVER);
        assert_eq!(rig.waits.len.load(Relaxed), 3);
        Ok(())
    }

    #[test]
    fn rnr_newcomer_takes_no_receive_of_waiters() -> Result {
        use crate::queue::rq::Taker;

        let rig = Rig::new(FOR_EVER)?;
        rig.post()?;
        let mut wr = crate::abi::wr::RecvWr::default();
        assert!(!rig.queue.has_request(Taker::Newcomer) && rig.queue.has_request(Taker::First));
        assert!(rig.queue.take(&mut wr, Taker::Newcomer).is_none());
        assert!(rig.queue.take(&mut wr, Taker::First).is_some());
        Ok(())
    }
}
