// SPDX-License-Identifier: GPL-2.0

//! When to transmit for a doorbell: at once, or a little later and for many requests together.
//!
//! A process that posts now and then is served best by its own call, at once. One that posts small
//! requests in a stream pays TCP's whole way for each. If it is left alone for as long as two sends
//! take, it posts many more, without a system call even: libsiw does not ring while the previous
//! entry still waits. All of them then go out in one send.
//!
//! A process streams if it comes back several times in less time than its last send took, and if
//! nothing comes from the peer in between: who waits for answers is in no stream. Time is compared
//! with time, so this holds on a fast and on a slow machine.
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

/// Doorbells in quick succession after which a process is taken for streaming.
const STREAK: u32 = 4;

/// Octets that a send may have had to be small. With more, copying is what takes the time, and the
/// process does that as well as anybody.
const SMALL: usize = 16 * 1024;

/// The least and the most that a request waits for others, in nanoseconds.
const WAIT_MIN: i64 = 2_000;
const WAIT_MAX: i64 = 500_000;

/// How a process rings the doorbell of a queue pair.
pub(crate) struct Pace {
    /// The clock's zero.
    born: Instant<Monotonic>,
    /// When the last doorbell was done with, in nanoseconds.
    left: Atomic<i64>,
    /// How long the last small send took, in nanoseconds; 0 after a large one.
    cost: Atomic<i64>,
    /// Octets sent since the last doorbell.
    octets: Atomic<usize>,
    /// Doorbells in quick succession.
    streak: Atomic<u32>,
}

impl Pace {
    pub(crate) fn new() -> Self {
        Self {
            born: Instant::now(),
            left: Atomic::new(0),
            cost: Atomic::new(0),
            octets: Atomic::new(0),
            streak: Atomic::new(0),
        }
    }

    /// A doorbell rings: when it is now, and how long to wait for more if the process streams.
    pub(crate) fn ring(&self) -> (i64, Option<Delta>) {
        let now = self.now();
        let pause = now.saturating_sub(self.left.load(Relaxed));
        let cost = self.cost.load(Relaxed);
        let streak = if pause < cost {
            self.streak.load(Relaxed).saturating_add(1).min(STREAK)
        } else {
            0
        };
        self.streak.store(streak, Relaxed);
        self.octets.store(0, Relaxed);
        let wait = cost.saturating_mul(2).clamp(WAIT_MIN, WAIT_MAX);
        (now, (streak == STREAK).then(|| Delta::from_nanos(wait)))
    }

    /// Something has come from the peer. Context: any.
    pub(crate) fn received(&self) {
        self.streak.store(0, Relaxed);
    }

    /// So many octets went out.
    pub(crate) fn sent(&self, octets: usize) {
        self.octets.fetch_add(octets, Relaxed);
    }

    /// The process has sent by itself, beginning at `begin`, and leaves.
    pub(crate) fn leave_done(&self, begin: i64) {
        let now = self.now();
        let cost = if self.octets.load(Relaxed) <= SMALL {
            now.saturating_sub(begin)
        } else {
            0
        };
        self.cost.store(cost, Relaxed);
        self.left.store(now, Relaxed);
    }

    /// The process leaves with its request still waiting.
    pub(crate) fn leave(&self) {
        self.left.store(self.now(), Relaxed);
    }

    fn now(&self) -> i64 {
        self.born.elapsed().as_nanos()
    }
}
