// SPDX-License-Identifier: GPL-2.0

//! Decides when to transmit after a doorbell: at once, or later together with other requests.
//!
//! A process that posts occasionally is served best by transmitting in its own call, at once. A
//! process that streams small requests pays the full cost of a TCP send for each. If sending is
//! delayed by the duration of two or more sends, the process posts many more requests, with libsiw
//! even without a system call, because libsiw does not ring while the previous entry is pending.
//! One send then transmits all of them.
//!
//! A process streams if it rings several times, each within less time than its last send took, and
//! if nothing arrives from the peer in between, whose answer it might have waited for. (Responses
//! to its own requests do not count: a stream of Reads has them too.) Both sides of the comparison
//! are durations, so it holds on fast and on slow machines. Where a delay saves doorbells as well
//! ([`Doorbells`]), they may be several sends apart: a system call may take longer than a send.
//!
//! If the requests sent together would have taken longer one by one, the next one is delayed too.
//! If the delay gathered no other request, the next delay is longer: the timer itself may have
//! taken most of the time, as in a virtual machine. If delaying does not help, the next attempt
//! needs a longer streak.
//!
//! All of this is heuristic; threads that ring concurrently may confuse it without harm.
//!
//! Context: process.

use kernel::{
    sync::atomic::{
        Atomic,
        Relaxed, //
    },
    time::{
        Delta,
        Instant,
        Monotonic, //
    }, //
};

use crate::device::Doorbells;

/// Number of doorbells in quick succession that make a streak: at first, and at most after delays
/// that did not help.
const STREAK_MIN: u32 = 4;
const STREAK_MAX: u32 = 4096;

/// Maximum time between two doorbells of a streak, in durations of a send, if a delay saves them.
const APART_MAX: i64 = 16;

/// Maximum length of a small send, in octets. In larger ones copying dominates, which the process
/// does as well in its own call.
const SMALL: usize = 16 * 1024;

/// Delay of a request, in durations of a send: minimum (also the initial value) and maximum.
const SENDS_MIN: u32 = 2;
const SENDS_MAX: u32 = 16;

/// Minimum and maximum delay of a request, in nanoseconds.
const DELAY_MIN: i64 = 2_000;
const DELAY_MAX: i64 = 500_000;

/// Time without a doorbell that ends a streak, in nanoseconds.
const IDLE: i64 = 1_000_000;

/// Doorbell history of a queue pair: how quickly they follow each other, and what delaying has
/// gained.
pub(crate) struct DoorbellCoalescer {
    /// When the process's library rings.
    doorbells: Doorbells,
    /// Zero of the clock.
    created: Instant<Monotonic>,
    /// Value of [`RxEvents`] at the last doorbell.
    rx_events: Atomic<u32>,
    /// When the last doorbell was handled, or rang if sending was delayed; in nanoseconds.
    last_done: Atomic<i64>,
    /// How long the last small send took, in nanoseconds; 0 after a large one.
    cost: Atomic<i64>,
    /// Time between the last two doorbells that were handled at once, from the end of one to the
    /// next, in nanoseconds.
    apart: Atomic<i64>,
    /// Octets sent since the last doorbell.
    octets: Atomic<usize>,
    /// Doorbells in quick succession so far.
    streak: Atomic<u32>,
    /// Streak at which sending is delayed.
    streak_needed: Atomic<u32>,
    /// Delay of a request, in durations of a send.
    sends: Atomic<u32>,
    /// Number of requests taken when sending was delayed; [`NONE`] if it was not.
    delayed_since: Atomic<i64>,
}

/// Counts rounds that received something other than answers from the peer, modulo 2^32.
///
/// Separate from [`DoorbellCoalescer`] because the receiver writes it, usually on another CPU.
pub(crate) struct RxEvents(Atomic<u32>);

impl RxEvents {
    pub(crate) const fn new() -> Self {
        Self(Atomic::new(0))
    }

    /// Counts an event. Context: the receive lock held.
    pub(crate) fn count(&self) {
        self.0.store(self.0.load(Relaxed).wrapping_add(1), Relaxed);
    }
}

/// Value of `delayed_since` when sending is not delayed.
const NONE: i64 = -1;

/// What to do for a doorbell.
pub(crate) enum DoorbellAction {
    /// Send at once.
    Now,
    /// Send at once, then pass this start time to [`DoorbellCoalescer::doorbell_done`].
    Timed(i64),
    /// Delay sending by this time.
    Delay(Delta),
}

impl DoorbellCoalescer {
    pub(crate) fn new(doorbells: Doorbells) -> Self {
        Self {
            doorbells,
            created: Instant::now(),
            rx_events: Atomic::new(0),
            last_done: Atomic::new(0),
            cost: Atomic::new(0),
            apart: Atomic::new(0),
            octets: Atomic::new(0),
            streak: Atomic::new(0),
            streak_needed: Atomic::new(STREAK_MIN),
            sends: Atomic::new(SENDS_MIN),
            delayed_since: Atomic::new(NONE),
        }
    }

    /// Decides what to do for a doorbell; `taken` is the number of requests dequeued so far, modulo
    /// 2^32.
    pub(crate) fn on_doorbell(&self, taken: u32, rx_events: &RxEvents) -> DoorbellAction {
        self.on_doorbell_by(|| self.now(), taken, rx_events)
    }

    /// Reads the clock only if the peer has sent nothing since the last doorbell.
    #[inline]
    fn on_doorbell_by(
        &self,
        clock: impl FnOnce() -> i64,
        taken: u32,
        rx_events: &RxEvents,
    ) -> DoorbellAction {
        let rx_events = rx_events.0.load(Relaxed);
        if rx_events != self.rx_events.load(Relaxed) {
            self.rx_events.store(rx_events, Relaxed);
            self.streak.store(0, Relaxed);
            self.delayed_since.store(NONE, Relaxed);
            return DoorbellAction::Now;
        }
        let now = clock();
        let pause = now.saturating_sub(self.last_done.load(Relaxed));
        let cost = self.cost.load(Relaxed);
        let streak = if let Ok(since) = u32::try_from(self.delayed_since.load(Relaxed)) {
            self.delayed_since.store(NONE, Relaxed);
            self.judge(taken.wrapping_sub(since), pause, cost)
        } else {
            self.apart.store(pause, Relaxed);
            if pause < cost.saturating_mul(self.apart_max()) {
                self.streak.load(Relaxed).saturating_add(1)
            } else {
                0
            }
        };
        self.streak.store(streak, Relaxed);
        self.octets.store(0, Relaxed);
        if streak < self.streak_needed.load(Relaxed) {
            return DoorbellAction::Timed(now);
        }
        self.delayed_since.store(taken.into(), Relaxed);
        self.last_done.store(now, Relaxed);
        let wait = cost.saturating_mul(self.sends.load(Relaxed).into());
        DoorbellAction::Delay(Delta::from_nanos(wait.clamp(DELAY_MIN, DELAY_MAX)))
    }

    /// Learns from a delay after which `together` requests were sent; the next doorbell rang
    /// `pause` after the delayed one. Returns the new streak.
    fn judge(&self, together: u32, pause: i64, cost: i64) -> u32 {
        if pause > IDLE {
            return 0;
        }
        let each = match self.doorbells {
            Doorbells::Each => cost,
            Doorbells::WhenIdle => cost.saturating_add(self.apart.load(Relaxed)),
        };
        if each.saturating_mul(together.into()) > pause {
            // Sent one by one, they would have taken longer.
            self.streak_needed.store(STREAK_MIN, Relaxed);
            // CAST: 64 bits.
            let small = self.octets.load(Relaxed) <= SMALL.saturating_mul(together as usize);
            return if small { STREAK_MIN } else { 0 };
        }
        let sends = self.sends.load(Relaxed);
        let other = if together > 1 { sends / 2 } else { sends * 2 };
        if (SENDS_MIN..=SENDS_MAX).contains(&other) {
            self.sends.store(other, Relaxed);
        } else {
            let streak_needed = self.streak_needed.load(Relaxed).saturating_mul(2);
            self.streak_needed
                .store(streak_needed.min(STREAK_MAX), Relaxed);
        }
        0
    }

    /// Returns the maximum time between two doorbells of a streak, in durations of a send.
    fn apart_max(&self) -> i64 {
        match self.doorbells {
            Doorbells::Each => 1,
            Doorbells::WhenIdle => APART_MAX,
        }
    }

    /// Counts octets that were sent.
    pub(crate) fn sent(&self, octets: usize) {
        let sent = self.octets.load(Relaxed);
        self.octets.store(sent.saturating_add(octets), Relaxed);
    }

    /// Records a send in the process's own call that started at `begin`.
    pub(crate) fn doorbell_done(&self, begin: i64) {
        self.doorbell_done_at(self.now(), begin);
    }

    fn doorbell_done_at(&self, now: i64, begin: i64) {
        let cost = if self.octets.load(Relaxed) <= SMALL {
            now.saturating_sub(begin)
        } else {
            0
        };
        self.cost.store(cost, Relaxed);
        self.last_done.store(now, Relaxed);
    }

    fn now(&self) -> i64 {
        self.created.elapsed().as_nanos()
    }
}

#[kernel::prelude::kunit_tests(riwarp_doorbell_coalescer)]
mod tests {
    use super::*;
    use core::cell::Cell;

    /// Duration of a send in nanoseconds that leads to the maximum delay.
    const LONG: i64 = DELAY_MAX;

    /// A coalescer with a clock under the test's control.
    struct CoalescerRig {
        coalescer: DoorbellCoalescer,
        rx_events: RxEvents,
        now: Cell<i64>,
    }

    impl CoalescerRig {
        fn new() -> Self {
            Self::with(Doorbells::Each)
        }

        fn with(doorbells: Doorbells) -> Self {
            Self {
                coalescer: DoorbellCoalescer::new(doorbells),
                rx_events: RxEvents::new(),
                now: Cell::new(1_000_000_000),
            }
        }

        fn on_doorbell(&self, taken: u32) -> DoorbellAction {
            self.coalescer
                .on_doorbell_by(|| self.now.get(), taken, &self.rx_events)
        }

        /// Rings, and returns the delay if sending is to be delayed.
        fn delay(&self, taken: u32) -> Option<i64> {
            match self.on_doorbell(taken) {
                DoorbellAction::Delay(delta) => Some(delta.as_nanos()),
                DoorbellAction::Now | DoorbellAction::Timed(_) => None,
            }
        }

        fn pass(&self, time: i64) {
            self.now.set(self.now.get() + time);
        }

        /// Sends in the process's own call, which takes `time`.
        fn send(&self, time: i64) {
            let begin = self.now.get();
            self.pass(time);
            self.coalescer.doorbell_done_at(self.now.get(), begin);
        }

        /// Rings without a pause, each time followed by a long send, until sending is delayed;
        /// returns the number of doorbells before that.
        fn doorbells_before_a_delay(&self) -> u32 {
            let mut doorbells = 0;
            while self.delay(doorbells).is_none() && doorbells < 10_000 {
                self.send(LONG);
                doorbells += 1;
            }
            doorbells
        }
    }

    #[test]
    fn first_doorbell_sends_at_once() {
        let rig = CoalescerRig::new();
        assert!(
            matches!(rig.on_doorbell(0), DoorbellAction::Timed(begin) if begin == rig.now.get())
        );
    }

    #[test]
    fn streak_of_doorbells_is_delayed() {
        // No send precedes the first one.
        assert_eq!(CoalescerRig::new().doorbells_before_a_delay(), STREAK_MIN);
    }

    #[test]
    fn pause_longer_than_a_send_ends_the_streak() {
        for (doorbells, pause) in [(Doorbells::Each, 1), (Doorbells::WhenIdle, APART_MAX)] {
            let rig = CoalescerRig::with(doorbells);
            for _ in 0..3 * STREAK_MIN {
                assert!(matches!(rig.on_doorbell(0), DoorbellAction::Timed(_)));
                rig.send(DELAY_MIN);
                rig.pass(pause * DELAY_MIN);
            }
        }
    }

    #[test]
    fn saved_doorbells_count_as_time_saved() {
        for (doorbells, worth_it) in [(Doorbells::Each, false), (Doorbells::WhenIdle, true)] {
            let rig = CoalescerRig::with(doorbells);
            let taken = rig.doorbells_before_a_delay();
            // Each takes as long as a send.
            rig.coalescer.apart.store(LONG, Relaxed);
            // One by one, three sends would take less than this, and more with their doorbells.
            rig.coalescer.cost.store(LONG, Relaxed);
            rig.pass(5 * LONG / 4);
            rig.coalescer.cost.store(LONG / 4, Relaxed);
            assert_eq!(rig.delay(taken + 3).is_some(), worth_it);
        }
    }

    #[test]
    fn delay_is_a_multiple_of_send_time_within_limits() {
        for (send, wait) in [
            (1, DELAY_MIN),
            (DELAY_MIN, 2 * DELAY_MIN),
            (LONG, DELAY_MAX),
            (i64::MAX / 2, DELAY_MAX),
        ] {
            let rig = CoalescerRig::new();
            for _ in 0..STREAK_MIN {
                assert_eq!(rig.delay(0), None);
                rig.send(LONG);
            }
            rig.coalescer.cost.store(send, Relaxed);
            assert_eq!(rig.delay(0), Some(wait));
        }
    }

    #[test]
    fn an_rx_event_ends_the_streak() {
        let rig = CoalescerRig::new();
        for _ in 0..3 * STREAK_MIN {
            rig.rx_events.count();
            assert!(matches!(rig.on_doorbell(0), DoorbellAction::Now));
            rig.send(LONG);
        }
    }

    #[test]
    fn large_messages_make_no_streak() {
        let rig = CoalescerRig::new();
        for _ in 0..3 * STREAK_MIN {
            assert_eq!(rig.delay(0), None);
            rig.coalescer.sent(SMALL + 1);
            rig.send(LONG);
        }
    }

    #[test]
    fn useless_delays_become_longer_and_then_rarer() {
        let rig = CoalescerRig::new();
        let (mut sends, mut streak_needed) = (SENDS_MIN, STREAK_MIN);
        while streak_needed < STREAK_MAX {
            assert_eq!(rig.coalescer.sends.load(Relaxed), sends);
            // A send precedes the first one of each streak.
            rig.send(LONG);
            let since = rig.doorbells_before_a_delay();
            assert_eq!(since, streak_needed - 1);
            // Only that one request was dequeued since, in the duration of one send.
            rig.pass(LONG);
            assert_eq!(rig.delay(since + 1), None);
            assert_eq!(rig.coalescer.streak.load(Relaxed), 0);
            if sends < SENDS_MAX {
                sends *= 2;
            } else {
                streak_needed *= 2;
            }
            assert_eq!(rig.coalescer.streak_needed.load(Relaxed), streak_needed);
        }
    }

    #[test]
    fn a_useful_delay_is_followed_by_another() {
        let rig = CoalescerRig::new();
        let mut taken = rig.doorbells_before_a_delay();
        for _ in 0..10 {
            taken += 10;
            rig.pass(IDLE);
            rig.coalescer.cost.store(IDLE, Relaxed);
            assert_eq!(rig.delay(taken), Some(DELAY_MAX));
        }
        // Large requests end it.
        rig.coalescer.sent(10 * SMALL + 1);
        assert_eq!(rig.delay(taken + 10), None);
    }

    #[test]
    fn an_idle_pause_ends_the_streak() {
        let rig = CoalescerRig::new();
        let taken = rig.doorbells_before_a_delay();
        rig.pass(IDLE + 1);
        assert_eq!(rig.delay(taken + 10), None);
    }

    #[test]
    fn few_requests_in_a_delay_end_the_streak() {
        let rig = CoalescerRig::new();
        rig.coalescer.sends.store(SENDS_MAX, Relaxed);
        for together in [2, 3, 3, 2] {
            let since = rig.doorbells_before_a_delay();
            // Sent one by one, they would not have taken longer.
            rig.pass(LONG);
            rig.coalescer
                .cost
                .store(LONG / i64::from(together), Relaxed);
            assert_eq!(rig.delay(since + together), None);
        }
        assert_eq!(rig.coalescer.sends.load(Relaxed), SENDS_MIN);
        assert_eq!(rig.coalescer.streak_needed.load(Relaxed), 2 * STREAK_MIN);
    }
}
