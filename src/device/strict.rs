// SPDX-License-Identifier: GPL-2.0

//! The strict mode of a device: it finds what a program does wrong although it goes well here
//! (docs/strict.md is for users). This has the switch, the keys that have ended, and how late is
//! what the mode makes late by choice.
//!
//! Checks are made only while a device is strict ([`kernel_ext::static_key`]).
//!
//! Context: any, unless a function says otherwise.

use core::num::NonZeroU32;

use iwarp::stag::Stag;
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Mutex, //
    }, //
};
use kernel_ext::{
    new_spinlock_bh,
    random,
    rdma::settings::{
        caller_is_admin,
        current_is_exiting, //
    },
    static_key,
    static_key::StaticKeyHold,
    sync::SpinLockBh, //
};

use super::Device;

/// How many keys are remembered, the latest ones.
const REMEMBERED: usize = 64;

/// For how long the mode chooses to be late at most, in milliseconds.
const MOST_MILLIS: u32 = 10;

/// Chooses a time in milliseconds, at most 10.
#[cold]
pub(crate) fn choose_millis() -> NonZeroU32 {
    NonZeroU32::MIN.saturating_add(random::below(MOST_MILLIS))
}

/// Chooses whether to do what is seldom done, once in `times`.
#[cold]
pub(crate) fn choose_once_in(times: u32) -> bool {
    random::below(times) == 0
}

/// How a key has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyEnd {
    /// Its region was deregistered, or its window deallocated.
    Deregistered,
    /// It was invalidated, or its window bound anew.
    Invalidated,
}

impl KeyEnd {
    /// Returns what happened to the key.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Deregistered => "deregistered",
            Self::Invalidated => "invalidated",
        }
    }
}

/// A key that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EndedKey {
    pub(crate) stag: Stag,
    /// Address of the first octet that it named, and their number.
    pub(crate) base: u64,
    pub(crate) len: u64,
    pub(crate) end: KeyEnd,
}

/// The strict mode of a device.
#[pin_data]
pub(crate) struct Strictness {
    // ORDERING: Relaxed: stands for no other memory.
    on: Atomic<bool>,
    #[pin]
    switch: Mutex<Option<StaticKeyHold>>,
    #[pin]
    ended: SpinLockBh<EndedKeys>,
    /// How many objects processes have left that ended, and no line of the log has counted.
    // ORDERING: Relaxed: a count stands for no other memory.
    left: Atomic<u32>,
    /// How many regions have ended with rights that no peer used, likewise.
    // ORDERING: Relaxed: as above.
    unused: Atomic<u32>,
}

/// The keys that have ended, in a ring.
#[derive(Default)]
struct EndedKeys {
    keys: KVec<EndedKey>,
    /// Where the next one goes once the ring is full.
    next: usize,
}

impl EndedKeys {
    fn add(&mut self, key: EndedKey) {
        // There is room until it is full.
        if self.keys.push_within_capacity(key).is_ok() {
            return;
        }
        if let Some(oldest) = self.keys.get_mut(self.next) {
            *oldest = key;
            self.next = (self.next + 1) % self.keys.len();
        }
    }

    /// Returns the latest one with this value.
    fn find(&self, stag: Stag) -> Option<EndedKey> {
        let (newer, older) = self.keys.split_at(self.next);
        let is = |key: &&EndedKey| key.stag == stag;
        let found = newer.iter().rev().find(is);
        found.or_else(|| older.iter().rev().find(is)).copied()
    }
}

impl Strictness {
    /// Makes it switched off.
    pub(super) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            on: Atomic::new(false),
            switch <- new_mutex!(None, "Strictness::switch"),
            ended <- new_spinlock_bh!(EndedKeys::default(), "Strictness::ended"),
            left: Atomic::new(0),
            unused: Atomic::new(0),
        })
    }

    /// Returns whether the device is strict.
    #[inline(always)]
    pub(crate) fn is_on(&self) -> bool {
        static_key::is_on() && self.on.load(Relaxed)
    }

    /// Returns whether it is switched on. Context: process.
    pub(crate) fn is_switched_on(&self) -> bool {
        self.on.load(Relaxed)
    }

    /// Switches the mode.
    ///
    /// Context: process, may sleep.
    ///
    /// # Errors
    ///
    /// `EPERM` if the caller may not administer the network of the host, `ENOMEM`.
    pub(crate) fn switch(&self, on: bool) -> Result {
        if !caller_is_admin() {
            return Err(EPERM);
        }
        let mut hold = self.switch.lock();
        if on == hold.is_some() {
            return Ok(());
        }
        let keys = KVec::with_capacity(if on { REMEMBERED } else { 0 }, GFP_KERNEL)?;
        *hold = on.then(StaticKeyHold::turn_on);
        let ended = EndedKeys { keys, next: 0 };
        let _drop_outside_lock = core::mem::replace(&mut *self.ended.lock(), ended);
        self.on.store(on, Relaxed);
        Ok(())
    }

    /// Switches it off, since the device goes.
    ///
    /// Context: process, may sleep.
    pub(crate) fn end(&self) {
        self.on.store(false, Relaxed);
        *self.switch.lock() = None;
    }

    /// Remembers a key that has ended.
    #[cold]
    pub(crate) fn remember(&self, key: EndedKey) {
        self.ended.lock().add(key);
    }

    /// Returns what the key was that has ended last with this value, if it is remembered.
    #[cold]
    pub(crate) fn ended_key(&self, stag: Stag) -> Option<EndedKey> {
        self.ended.lock().find(stag)
    }
}

// Rule 6, hints.
impl Device {
    /// Counts an object of a process that is destroyed, if it is because the process ends.
    ///
    /// Context: process.
    #[inline]
    pub(crate) fn note_destroyed(&self) {
        if self.strict.is_on() && current_is_exiting() {
            self.strict.left.fetch_add(1, Relaxed);
            self.stats.hint_left_objects.inc();
        }
    }

    /// Counts a region whose rights no peer has used, unless the process ends.
    ///
    /// Context: process.
    #[cold]
    pub(crate) fn note_unused_rights(&self) {
        if !current_is_exiting() {
            self.strict.unused.fetch_add(1, Relaxed);
            self.stats.hint_unused_rights.inc();
        }
    }

    /// Logs how many objects processes have left, and how many of their regions had rights that no
    /// peer used, since it was logged last.
    pub(crate) fn report_hints(&self) {
        let unused = self.strict.unused.xchg(0, Relaxed);
        if unused != 0 {
            self.warn(fmt!(
                "strict hint 6: {unused} memory regions ended with rights that no peer used"
            ));
        }
        let left = self.strict.left.xchg(0, Relaxed);
        if left != 0 {
            self.warn(fmt!(
                "strict hint 6: a process ended with {left} queue pairs and memory regions"
            ));
        }
    }
}

#[kernel::prelude::kunit_tests(riwarp_strict)]
mod tests {
    use super::*;

    fn key(number: u32) -> EndedKey {
        EndedKey {
            stag: Stag::new(number),
            base: number.into(),
            len: 1,
            end: KeyEnd::Deregistered,
        }
    }

    #[test]
    fn strict_delay_is_at_most_ten_milliseconds() {
        assert!((0..1000).all(|_| (1..=10).contains(&choose_millis().get())));
    }

    #[test]
    fn strict_mode_remembers_latest_ended_keys() -> Result {
        let mut ended = EndedKeys {
            keys: KVec::with_capacity(REMEMBERED, GFP_KERNEL)?,
            next: 0,
        };
        assert_eq!(ended.find(Stag::new(1)), None);
        let places = u32::try_from(ended.keys.capacity())?;
        for number in 1..=places + 2 {
            ended.add(key(number));
            assert_eq!(ended.find(Stag::new(number)), Some(key(number)));
        }
        assert_eq!(ended.find(Stag::new(1)), None);
        assert_eq!(ended.find(Stag::new(2)), None);
        assert_eq!(ended.find(Stag::new(3)), Some(key(3)));
        // Of two with one value it is the later one.
        let again = EndedKey { base: 9, ..key(5) };
        ended.add(again);
        assert_eq!(ended.find(Stag::new(5)), Some(again));
        Ok(())
    }
}
