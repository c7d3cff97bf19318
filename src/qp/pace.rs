// SPDX-License-Identifier: GPL-2.0

//! When to transmit for a doorbell: at once, or a little later and for many requests together.
//!
//! A process that posts now and then is served best by its own call, at once. One that posts small
//! requests in a stream pays TCP's whole way for each. If it is left alone for as long as two sends or
//! more take, it posts many more, with libsiw without a system call even, which does not ring while the
//! previous entry still waits. All of them then go out in one send.
//!
//! A process streams if it comes back several times in less time than its last send took, and if nothing comes from
//! the peer in between, whose answer it might have waited for. (Responses to its own requests do not count: they come
//! in a stream of Reads too.) Time is compared with time, so this holds on a fast and on a slow machine.
//!
//! If the requests that then went out together would have taken longer one by one, the next one waits too. If there
//! was but the one that waited, the next wait is longer: the timer may have taken most of that time for itself, as
//! it does in a virtual machine. If nothing helps, the process is none that streams, and is left alone for longer
//! each time.
//!
//! All of this only guides; threads that ring at once may confuse it without harm.
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

/// Doorbells in quick succession after which a process is taken for streaming: at first, and after it
/// was wrong to think so.
const STREAK_MIN: u32 = 4;
const STREAK_MAX: u32 = 4096;

/// Octets that a send may have had to be small. With more, copying is what takes the time, and the
/// process does that as well as anybody.
const SMALL: usize = 16 * 1024;

/// How many sends' time a request waits for others, at first and if it has waited for none.
const SENDS_MIN: u32 = 2;
const SENDS_MAX: u32 = 16;

/// The least and the most that a request waits for others, in nanoseconds.
const WAIT_MIN: i64 = 2_000;
const WAIT_MAX: i64 = 500_000;

/// Who posts again only after so long is in a stream no more, in nanoseconds.
const IDLE: i64 = 1_000_000;

/// How a process rings the doorbell of a queue pair.
pub(crate) struct Pace {
    /// The clock's zero.
    born: Instant<Monotonic>,
    /// What [`Heard`] was at the last doorbell.
    heard: Atomic<u32>,
    /// When the last doorbell was done with, or rang if its request was left waiting; in nanoseconds.
    left: Atomic<i64>,
    /// How long the last small send took, in nanoseconds; 0 after a large one.
    cost: Atomic<i64>,
    /// Octets sent since the last doorbell.
    octets: Atomic<usize>,
    /// Doorbells in quick succession.
    streak: Atomic<u32>,
    /// How many of them it takes.
    enough: Atomic<u32>,
    /// How long a request waits for others, by the time of a send.
    sends: Atomic<u32>,
    /// How many requests had been taken when one was left waiting; [`NONE`] if none was.
    waiting_since: Atomic<i64>,
}

/// How often something but answers has come from the peer, modulo 2^32.
///
/// Apart from the rest of [`Pace`], since the receiver writes it, most often on another CPU.
pub(crate) struct Heard(Atomic<u32>);

impl Heard {
    pub(crate) const fn new() -> Self {
        Self(Atomic::new(0))
    }

    /// Something has come. Context: the receive lock held.
    pub(crate) fn count(&self) {
        self.0.store(self.0.load(Relaxed).wrapping_add(1), Relaxed);
    }
}

/// No request was left waiting.
const NONE: i64 = -1;

/// What to do for a doorbell.
pub(crate) enum Ring {
    /// Send.
    Now,
    /// Send, and say with [`Pace::leave_done`] when that was begun.
    Timed(i64),
    /// Wait for more, so long.
    Wait(Delta),
}

impl Pace {
    pub(crate) fn new() -> Self {
        Self {
            born: Instant::now(),
            heard: Atomic::new(0),
            left: Atomic::new(0),
            cost: Atomic::new(0),
            octets: Atomic::new(0),
            streak: Atomic::new(0),
            enough: Atomic::new(STREAK_MIN),
            sends: Atomic::new(SENDS_MIN),
            waiting_since: Atomic::new(NONE),
        }
    }

    /// A doorbell rings; `taken` requests have been taken from the send queue before, modulo 2^32.
    pub(crate) fn ring(&self, taken: u32, heard: &Heard) -> Ring {
        self.ring_by(|| self.now(), taken, heard)
    }

    /// The clock is read only where it matters: not for who answers the peer.
    #[inline]
    fn ring_by(&self, clock: impl FnOnce() -> i64, taken: u32, heard: &Heard) -> Ring {
        let heard = heard.0.load(Relaxed);
        if heard != self.heard.load(Relaxed) {
            self.heard.store(heard, Relaxed);
            self.streak.store(0, Relaxed);
            self.waiting_since.store(NONE, Relaxed);
            return Ring::Now;
        }
        let now = clock();
        let pause = now.saturating_sub(self.left.load(Relaxed));
        let cost = self.cost.load(Relaxed);
        let streak = if let Ok(since) = u32::try_from(self.waiting_since.load(Relaxed)) {
            self.waiting_since.store(NONE, Relaxed);
            self.judge(taken.wrapping_sub(since), pause, cost)
        } else if pause < cost {
            self.streak.load(Relaxed).saturating_add(1)
        } else {
            0
        };
        self.streak.store(streak, Relaxed);
        self.octets.store(0, Relaxed);
        if streak < self.enough.load(Relaxed) {
            return Ring::Timed(now);
        }
        self.waiting_since.store(taken.into(), Relaxed);
        self.left.store(now, Relaxed);
        let wait = cost.saturating_mul(self.sends.load(Relaxed).into());
        Ring::Wait(Delta::from_nanos(wait.clamp(WAIT_MIN, WAIT_MAX)))
    }

    /// Learns from a wait: `together` requests went out, and the next doorbell rang `pause` after the one that
    /// was left waiting. Gives the streak that the process is in now.
    fn judge(&self, together: u32, pause: i64, cost: i64) -> u32 {
        if pause > IDLE {
            return 0;
        }
        if cost.saturating_mul(together.into()) > pause {
            // One by one they would have taken longer.
            self.enough.store(STREAK_MIN, Relaxed);
            let small = self.octets.load(Relaxed) <= SMALL.saturating_mul(together as usize); // CAST: 64 bits.
            return if small { STREAK_MIN } else { 0 };
        }
        let sends = self.sends.load(Relaxed);
        let other = if together > 1 { sends / 2 } else { sends * 2 };
        if (SENDS_MIN..=SENDS_MAX).contains(&other) {
            self.sends.store(other, Relaxed);
        } else {
            let enough = self.enough.load(Relaxed).saturating_mul(2);
            self.enough.store(enough.min(STREAK_MAX), Relaxed);
        }
        0
    }

    /// So many octets went out.
    pub(crate) fn sent(&self, octets: usize) {
        let sent = self.octets.load(Relaxed);
        self.octets.store(sent.saturating_add(octets), Relaxed);
    }

    /// The process has sent by itself, beginning at `begin`, and leaves.
    pub(crate) fn leave_done(&self, begin: i64) {
        self.leave_done_at(self.now(), begin);
    }

    fn leave_done_at(&self, now: i64, begin: i64) {
        let cost = if self.octets.load(Relaxed) <= SMALL {
            now.saturating_sub(begin)
        } else {
            0
        };
        self.cost.store(cost, Relaxed);
        self.left.store(now, Relaxed);
    }

    fn now(&self) -> i64 {
        self.born.elapsed().as_nanos()
    }
}

#[kernel::prelude::kunit_tests(riwarp_pace)]
mod tests {
    use super::*;
    use core::cell::Cell;

    /// How long a send takes, in nanoseconds: so long that a request waits for as long as any may.
    const LONG: i64 = WAIT_MAX;

    /// A queue pair, and the time of day where its process runs.
    struct Rig {
        pace: Pace,
        heard: Heard,
        now: Cell<i64>,
    }

    impl Rig {
        fn new() -> Self {
            Self {
                pace: Pace::new(),
                heard: Heard::new(),
                now: Cell::new(1_000_000_000),
            }
        }

        fn ring(&self, taken: u32) -> Ring {
            self.pace.ring_by(|| self.now.get(), taken, &self.heard)
        }

        /// How long a request is to wait, if it is.
        fn waits(&self, taken: u32) -> Option<i64> {
            match self.ring(taken) {
                Ring::Wait(delta) => Some(delta.as_nanos()),
                Ring::Now | Ring::Timed(_) => None,
            }
        }

        fn pass(&self, time: i64) {
            self.now.set(self.now.get() + time);
        }

        /// The process sends by itself, which takes so long.
        fn send(&self, time: i64) {
            let begin = self.now.get();
            self.pass(time);
            self.pace.leave_done_at(self.now.get(), begin);
        }

        /// Rings without a pause, each time followed by a long send, until one is to wait; how many did not.
        fn rings_before_waiting(&self) -> u32 {
            let mut rings = 0;
            while self.waits(rings).is_none() && rings < 10_000 {
                self.send(LONG);
                rings += 1;
            }
            rings
        }
    }

    #[test]
    fn the_first_doorbell_is_answered_at_once() {
        let rig = Rig::new();
        assert!(matches!(rig.ring(0), Ring::Timed(begin) if begin == rig.now.get()));
    }

    #[test]
    fn who_streams_is_left_alone_for_a_while() {
        // The first one has no send before it.
        assert_eq!(Rig::new().rings_before_waiting(), STREAK_MIN);
    }

    #[test]
    fn who_comes_back_later_than_a_send_takes_is_in_no_stream() {
        let rig = Rig::new();
        for _ in 0..3 * STREAK_MIN {
            assert!(matches!(rig.ring(0), Ring::Timed(_)));
            rig.send(LONG);
            rig.pass(LONG);
        }
    }

    #[test]
    fn a_wait_is_as_long_as_some_sends_and_has_limits() {
        for (send, wait) in [
            (1, WAIT_MIN),
            (WAIT_MIN, 2 * WAIT_MIN),
            (LONG, WAIT_MAX),
            (i64::MAX / 2, WAIT_MAX),
        ] {
            let rig = Rig::new();
            for _ in 0..STREAK_MIN {
                assert_eq!(rig.waits(0), None);
                rig.send(LONG);
            }
            rig.pace.cost.store(send, Relaxed);
            assert_eq!(rig.waits(0), Some(wait));
        }
    }

    #[test]
    fn who_hears_of_the_peer_is_in_no_stream() {
        let rig = Rig::new();
        for _ in 0..3 * STREAK_MIN {
            rig.heard.count();
            assert!(matches!(rig.ring(0), Ring::Now));
            rig.send(LONG);
        }
    }

    #[test]
    fn large_messages_make_no_stream() {
        let rig = Rig::new();
        for _ in 0..3 * STREAK_MIN {
            assert_eq!(rig.waits(0), None);
            rig.pace.sent(SMALL + 1);
            rig.send(LONG);
        }
    }

    #[test]
    fn who_waited_for_nothing_waits_longer_and_then_less_often() {
        let rig = Rig::new();
        let (mut sends, mut enough) = (SENDS_MIN, STREAK_MIN);
        while enough < STREAK_MAX {
            assert_eq!(rig.pace.sends.load(Relaxed), sends);
            // There is a send before the first one of each streak.
            rig.send(LONG);
            let since = rig.rings_before_waiting();
            assert_eq!(since, enough - 1);
            // Only that one request was taken since, in the time of one send.
            rig.pass(LONG);
            assert_eq!(rig.waits(since + 1), None);
            assert_eq!(rig.pace.streak.load(Relaxed), 0);
            if sends < SENDS_MAX {
                sends *= 2;
            } else {
                enough *= 2;
            }
            assert_eq!(rig.pace.enough.load(Relaxed), enough);
        }
    }

    #[test]
    fn who_posted_more_meanwhile_waits_again_at_once() {
        let rig = Rig::new();
        let mut taken = rig.rings_before_waiting();
        for _ in 0..10 {
            taken += 10;
            rig.pass(IDLE);
            rig.pace.cost.store(IDLE, Relaxed);
            assert_eq!(rig.waits(taken), Some(WAIT_MAX));
        }
        // Unless what it posts is large now.
        rig.pace.sent(10 * SMALL + 1);
        assert_eq!(rig.waits(taken + 10), None);
    }

    #[test]
    fn who_was_idle_is_in_no_stream() {
        let rig = Rig::new();
        let taken = rig.rings_before_waiting();
        rig.pass(IDLE + 1);
        assert_eq!(rig.waits(taken + 10), None);
    }

    #[test]
    fn who_cannot_post_much_more_is_not_made_to_wait() {
        let rig = Rig::new();
        rig.pace.sends.store(SENDS_MAX, Relaxed);
        for together in [2, 3, 3, 2] {
            let since = rig.rings_before_waiting();
            // One by one they would not have taken longer.
            rig.pass(LONG);
            rig.pace.cost.store(LONG / i64::from(together), Relaxed);
            assert_eq!(rig.waits(since + together), None);
        }
        assert_eq!(rig.pace.sends.load(Relaxed), SENDS_MIN);
        assert_eq!(rig.pace.enough.load(Relaxed), 2 * STREAK_MIN);
    }
}
