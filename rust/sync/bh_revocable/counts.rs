// SPDX-License-Identifier: GPL-2.0

//! Users of a [`BhRevocable`](super::BhRevocable) without `PREEMPT_RT`: counts, and spinning until
//! they are zero.
//!
//! A user has bottom halves off, which keeps other tasks off its CPU; so whoever spins for it is on
//! another CPU.

use kernel::ffi::c_int;
use kernel::ffi::c_uint;
use kernel::sync::atomic::Acquire;
use kernel::sync::atomic::Atomic;
use kernel::sync::atomic::Full;
use kernel::sync::atomic::Relaxed;
use kernel::sync::atomic::Release;

extern "C" {
    fn riwarp_helper_cpu_relax();
    fn riwarp_helper_raw_smp_processor_id() -> c_uint;
}

/// The users of a value.
///
/// A user costs one atomic addition, to a count that only some of the CPUs share.
///
/// # Invariants
///
/// Each count is the number of users that entered there, plus [`UPDATING`] while a call of
/// [`Users::claim`] or its result has it, or plus [`REVOKED`] after the value was revoked; never
/// both. A call adds such a mark to the first count before the others, and removes it from the
/// first after the others. While all counts are just the mark, the call that added it has exclusive
/// access.
pub(super) struct Users([Count; STRIPES]);

/// The count of users of some of the CPUs, in a cache line of its own.
#[repr(align(64))]
struct Count(Atomic<c_int>);

/// The number of counts. With one, all CPUs that use a memory region would contend for its cache
/// line; revoking has to read each.
const STRIPES: usize = 4;

/// Added to the counts for an update; above any possible number of users.
const UPDATING: c_int = 1 << 29;
/// Added to the counts when the value is revoked.
const REVOKED: c_int = 1 << 30;

impl Users {
    pub(super) const fn new() -> Self {
        // INVARIANT: No users, no mark.
        Self([const { Count(Atomic::new(0)) }; STRIPES])
    }

    /// Returns the count for this CPU. The task may move to another CPU afterwards, which does no
    /// harm.
    #[inline]
    fn here(&self) -> &Atomic<c_int> {
        // SAFETY: `raw_smp_processor_id()` has no requirements; a stale number is acceptable here.
        let cpu = unsafe { riwarp_helper_raw_smp_processor_id() };
        // CAST: `usize` has 64 bits. NO-PANIC: Less than the length.
        &self.0[cpu as usize % STRIPES].0
    }

    /// Enters, unless there is or begins an update, or the value was revoked.
    #[inline]
    pub(super) fn try_enter(&self) -> Option<User<'_>> {
        // The user's drop undoes the addition, also where this returns `None`.
        let user = User(self.here());
        // ORDERING: the use of the value comes after this; pairs with `Full` in `mark`: either
        // this call sees the mark, or `mark` sees this user.
        (user.0.fetch_add(1, Full) < UPDATING).then_some(user)
    }

    /// Excludes users, waits for those that there are, and for other updates; `None` if the value
    /// was revoked.
    pub(super) fn claim(&self) -> Option<Exclusive<'_>> {
        // INVARIANT: The mark was just added.
        self.mark(UPDATING).then(|| Exclusive(self))
    }

    /// Excludes users for good and waits for those that there are, and for an update; `false` if
    /// another call has revoked the value.
    pub(super) fn revoke(&self) -> bool {
        self.mark(REVOKED)
    }

    /// Adds `mark` and waits until no user is left; `false` if the value was revoked.
    fn mark(&self, mark: c_int) -> bool {
        let [Count(first), others @ ..] = &self.0;
        // ORDERING: only a first guess, here and below; the exchange checks it.
        let mut seen = first.load(Relaxed);
        loop {
            if seen >= REVOKED {
                return false;
            }
            if seen >= UPDATING {
                // SAFETY: `cpu_relax()` has no requirements.
                unsafe { riwarp_helper_cpu_relax() };
                seen = first.load(Relaxed);
                continue;
            }
            // NO-OVERFLOW: `seen` is below `UPDATING`, and twice `REVOKED` does not exceed the
            // range.
            // ORDERING: pairs with `Release` in the drop of the last `Exclusive`, and, with the
            // loads below, with `Full` in `try_enter`: either that call sees the mark, or the loads
            // see the user.
            match first.cmpxchg(seen, seen.wrapping_add(mark), Full) {
                Ok(_) => break,
                Err(now) => seen = now,
            }
        }
        // INVARIANT: The first count has the mark, so no other call adds one.
        for count in others {
            // ORDERING: as above.
            count.0.fetch_add(mark, Full);
        }
        for count in &self.0 {
            // ORDERING: pairs with `Release` in the user's drop.
            while count.0.load(Acquire) != mark {
                // SAFETY: `cpu_relax()` has no requirements.
                unsafe { riwarp_helper_cpu_relax() };
            }
        }
        true
    }

    /// Returns whether the value is revoked, or is being revoked.
    #[inline]
    pub(super) fn is_revoked(&self) -> bool {
        // ORDERING: none: a hint, which may be outdated at once.
        self.here().load(Relaxed) >= REVOKED
    }

    /// Returns whether users are excluded, for now or for good.
    #[cfg(CONFIG_KUNIT = "y")]
    pub(super) fn is_closed(&self) -> bool {
        self.here().load(Relaxed) >= UPDATING
    }

    /// Returns whether the value is revoked and no user is counted.
    #[cfg(CONFIG_KUNIT = "y")]
    pub(super) fn is_left(&self) -> bool {
        self.0.iter().all(|count| count.0.load(Relaxed) == REVOKED)
    }
}

/// One user of [`Users`], counted there.
pub(super) struct User<'a>(&'a Atomic<c_int>);

impl Drop for User<'_> {
    #[inline]
    fn drop(&mut self) {
        // ORDERING: the uses of the value come before this; pairs with `Acquire` in `Users::mark`.
        self.0.fetch_sub(1, Release);
    }
}

/// Exclusive access, until it is dropped.
///
/// # Invariants
///
/// The counts have the mark [`UPDATING`], which this value owns.
pub(super) struct Exclusive<'a>(&'a Users);

impl Drop for Exclusive<'_> {
    fn drop(&mut self) {
        for count in self.0 .0.iter().rev() {
            // ORDERING: the change comes before this; pairs with `Full` in `Users::try_enter`.
            count.0.fetch_sub(UPDATING, Release);
        }
    }
}
