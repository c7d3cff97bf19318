// SPDX-License-Identifier: GPL-2.0

//! Values whose access can be revoked from users in softirq: revoking waits until no user is left.
//!
//! RFC 5040, section 8.1.1 (RDMAP-165): once access to a buffer is revoked, no placement may be in
//! flight.

use super::bh::BhOff;
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::ops::Deref;
use kernel::ffi::c_int;
use kernel::ffi::c_uint;
use kernel::sync::atomic::Acquire;
use kernel::sync::atomic::Atomic;
use kernel::sync::atomic::Full;
use kernel::sync::atomic::Relaxed;
use kernel::sync::atomic::Release;
use kernel::types::NotThreadSafe;

extern "C" {
    fn riwarp_helper_cpu_relax();
    fn riwarp_helper_bh_off() -> bool;
    fn riwarp_helper_local_bh_enable();
    fn riwarp_helper_raw_smp_processor_id() -> c_uint;
}

/// A value that any context may use until it is revoked.
///
/// An access costs one atomic addition, to a count that only some of the CPUs share. Users run with
/// bottom halves off and must not sleep, so the wait in [`BhRevocable::revoke`] is short and never
/// for a user on the same CPU.
///
/// # Invariants
///
/// Each of `users` is the number of guards counted there, plus [`UPDATING`] while a call of
/// [`BhRevocable::update`] runs, or plus [`REVOKED`] after the value was revoked; never both. A
/// call adds such a mark to the first count before the others, and removes it from the first after
/// the others. The value is initialised and only read by guards until the first revocation has seen
/// all of `users` equal to [`REVOKED`]; that call moves it out, and nothing accesses it afterwards.
/// While all of `users` are [`UPDATING`], the call that added the mark has exclusive access.
pub struct BhRevocable<T> {
    users: [Users; STRIPES],
    value: UnsafeCell<MaybeUninit<T>>,
}

/// The count of users of some of the CPUs, in a cache line of its own.
#[repr(align(64))]
struct Users(Atomic<c_int>);

/// The number of counts. With one, all CPUs that use a memory region would contend for its cache
/// line; revoking has to read each.
const STRIPES: usize = 4;

/// Added to the number of users when the value is revoked.
const REVOKED: c_int = 1 << 30;
/// Added to the number of users during an update; above any possible number of users.
const UPDATING: c_int = 1 << 29;

// SAFETY: Only the value could be bound to a thread; so it may move to another thread if the value
// may.
unsafe impl<T: Send> Send for BhRevocable<T> {}
// SAFETY: Through a shared reference any thread gets references to the value, by guards, which
// requires `Sync`, and the value itself or exclusive access to it, by `revoke` and `update`, which
// requires `Send`.
unsafe impl<T: Send + Sync> Sync for BhRevocable<T> {}

impl<T: Send + Sync> BhRevocable<T> {
    /// Makes one whose value is accessible.
    pub const fn new(value: T) -> Self {
        // INVARIANT: No users, not revoked, the value is initialised.
        Self {
            users: [const { Users(Atomic::new(0)) }; STRIPES],
            value: UnsafeCell::new(MaybeUninit::new(value)),
        }
    }

    /// Gives access to the value, unless it was revoked.
    ///
    /// Bottom halves stay off while the guard lives; its holder must not sleep.
    ///
    /// Context: process or softirq; also with interrupts disabled, if they stay so for the life of
    /// the guard.
    pub fn try_access(&self) -> Option<BhRevocableGuard<'_, T>> {
        self.access_with(BottomHalvesOff::new())
    }

    /// Gives access as [`BhRevocable::try_access`] does, for a caller that has bottom halves off
    /// already.
    #[inline]
    pub fn try_access_bh_off<'a>(&'a self, _off: BhOff<'a>) -> Option<BhRevocableGuard<'a, T>> {
        // INVARIANT: Bottom halves are off as long as the guard can live.
        self.access_with(BottomHalvesOff {
            disabled: false,
            _not_send: NotThreadSafe,
        })
    }

    /// Returns the count for this CPU. The task may move to another CPU afterwards, which does no
    /// harm.
    #[inline]
    fn users_here(&self) -> &Atomic<c_int> {
        // SAFETY: `raw_smp_processor_id()` has no requirements; a stale number is acceptable here.
        let cpu = unsafe { riwarp_helper_raw_smp_processor_id() };
        // CAST: `usize` has 64 bits. NO-PANIC: Less than the length.
        &self.users[cpu as usize % STRIPES].0
    }

    #[inline]
    fn access_with(&self, bh: BottomHalvesOff) -> Option<BhRevocableGuard<'_, T>> {
        let users = self.users_here();
        // The guard's drop undoes the addition, also if the value was revoked.
        let guard = BhRevocableGuard {
            revocable: self,
            users,
            _bh: bh,
        };
        // ORDERING: the use of the value comes after this; pairs with `Full` in `claim`: either
        // this call sees the mark, or `claim` sees this user.
        if users.fetch_add(1, Full) >= UPDATING {
            return None;
        }
        Some(guard)
    }

    /// Changes the value with exclusive access; returns `false` if the value was revoked.
    ///
    /// Spins until all guards are dropped and other updates have finished; meanwhile
    /// [`BhRevocable::try_access`] returns `None`. `f` runs with bottom halves off, must not sleep,
    /// and must be short. The caller must not hold a guard of the same value, nor call this from
    /// `f`.
    ///
    /// Context: as for [`BhRevocable::try_access`].
    pub fn update(&self, f: impl FnOnce(&mut T)) -> bool {
        // Bottom halves stay off until the end, so that a softirq on this CPU cannot spin for this
        // call.
        let _bh = BottomHalvesOff::new();
        if !self.claim(UPDATING) {
            return false;
        }
        // SAFETY: By the type invariant the value is initialised, since `claim` found it not
        // revoked, and this call has exclusive access until it removes `UPDATING`; users that
        // arrive meanwhile back off without accessing it.
        f(unsafe { (*self.value.get()).assume_init_mut() });
        for users in self.users.iter().rev() {
            // ORDERING: the change comes before this; pairs with `Full` in `access_with`.
            users.0.fetch_sub(UPDATING, Release);
        }
        true
    }

    /// Adds `mark` and waits until no guard is left; `false` if the value was revoked.
    fn claim(&self, mark: c_int) -> bool {
        let [Users(first), others @ ..] = &self.users;
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
            match first.cmpxchg(seen, seen.wrapping_add(mark), Full) {
                Ok(_) => break,
                Err(now) => seen = now,
            }
        }
        // INVARIANT: The first count has the mark, so no other call adds one.
        for users in others {
            users.0.fetch_add(mark, Full);
        }
        for users in &self.users {
            // ORDERING: pairs with `Release` in the guard's drop.
            while users.0.load(Acquire) != mark {
                // SAFETY: `cpu_relax()` has no requirements.
                unsafe { riwarp_helper_cpu_relax() };
            }
        }
        true
    }

    /// Revokes the value and returns it once no guard is left; `None` if another call has revoked
    /// it.
    ///
    /// Spins until all guards are dropped. The caller must not hold a guard of the same value, nor
    /// be in hard interrupt context.
    ///
    /// Context: process or softirq.
    pub fn revoke(&self) -> Option<T> {
        if !self.claim(REVOKED) {
            return None;
        }
        // SAFETY: `assume_init_read` requires an initialised value that is moved out once. By the
        // type invariant it is initialised until the first revocation; only the call that added
        // `REVOKED` gets here, once, and has waited for all guards. Later users see the mark and
        // back off.
        Some(unsafe { (*self.value.get()).assume_init_read() })
    }

    /// Returns whether the value is not revoked. It may be revoked right afterwards. Context: any.
    #[inline]
    pub fn is_accessible(&self) -> bool {
        self.users_here().load(Relaxed) < REVOKED
    }
}

impl<T> Drop for BhRevocable<T> {
    fn drop(&mut self) {
        if *self.users[0].0.get_mut() < REVOKED {
            // SAFETY: By the type invariant the value is initialised unless it was revoked, and
            // `&mut self` excludes other users.
            unsafe { self.value.get_mut().assume_init_drop() };
        }
    }
}

/// Access to the value of a [`BhRevocable`].
///
/// # Invariants
///
/// The guard is counted in `users`, one of `revocable.users`. A guard that was returned was counted
/// while the value was neither revoked nor being updated.
pub struct BhRevocableGuard<'a, T> {
    revocable: &'a BhRevocable<T>,
    users: &'a Atomic<c_int>,
    /// Dropped last, after the count is taken back.
    _bh: BottomHalvesOff,
}

impl<T> Deref for BhRevocableGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: By its invariant this guard is counted, and `access_with` returned it before the
        // value was revoked. By the invariants of [`BhRevocable`] the value is initialised, and
        // only read, until the count is taken back.
        unsafe { (*self.revocable.value.get()).assume_init_ref() }
    }
}

impl<T> Drop for BhRevocableGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // ORDERING: the uses of the value come before this; pairs with `Acquire` in
        // `BhRevocable::claim`.
        self.users.fetch_sub(1, Release);
    }
}

/// Keeps bottom halves off on this CPU while it lives.
///
/// # Invariants
///
/// If `disabled`, bottom halves were disabled for this value, on this CPU. If not, they are off
/// anyway as long as the value can live.
struct BottomHalvesOff {
    disabled: bool,
    _not_send: NotThreadSafe,
}

impl BottomHalvesOff {
    #[inline]
    fn new() -> Self {
        // SAFETY: `riwarp_helper_bh_off()` may be called in any context; if it returns true,
        // `local_bh_enable()` must follow in the same context: the drop calls it, on the same
        // thread.
        let disabled = unsafe { riwarp_helper_bh_off() };
        // INVARIANT: The helper just did so.
        Self {
            disabled,
            _not_send: NotThreadSafe,
        }
    }
}

impl Drop for BottomHalvesOff {
    #[inline]
    fn drop(&mut self) {
        if self.disabled {
            // SAFETY: `local_bh_enable()` undoes one `local_bh_disable()` of the same context: by
            // the type invariant the one of this value, which is not `Send`.
            unsafe { riwarp_helper_local_bh_enable() };
        }
    }
}

#[kernel::prelude::kunit_tests(riwarp_bh_revocable)]
mod tests {
    use super::*;
    use crate::workqueue::Flags;
    use crate::workqueue::OwnedQueue;
    use crate::workqueue::Placement;
    use kernel::prelude::*;
    use kernel::sync::Arc;
    use kernel::time::Delta;
    use kernel::time::Instant;
    use kernel::time::Monotonic;

    /// Adds 1 to a count when dropped.
    struct CountedDrop<'a>(&'a Atomic<i32>);

    impl Drop for CountedDrop<'_> {
        fn drop(&mut self) {
            self.0.add(1, Relaxed);
        }
    }

    #[test]
    fn gives_access_to_many_until_it_is_revoked() {
        let revocable = BhRevocable::new(7);
        {
            let first = revocable.try_access();
            let second = revocable.try_access();
            assert_eq!(first.as_deref(), Some(&7));
            assert_eq!(second.as_deref(), Some(&7));
        }
        assert!(revocable.is_accessible());
        assert_eq!(revocable.revoke(), Some(7));
        assert!(!revocable.is_accessible());
        assert!(revocable.try_access().is_none());
    }

    #[test]
    fn gives_its_value_to_one_only() {
        let revocable = BhRevocable::new(7);
        assert_eq!(revocable.revoke(), Some(7));
        assert_eq!(revocable.revoke(), None);
    }

    #[test]
    fn access_after_the_revocation_leaves_no_trace() {
        let revocable = BhRevocable::new(());
        revocable.revoke();
        for _ in 0..10 {
            assert!(revocable.try_access().is_none());
        }
        assert!(revocable
            .users
            .iter()
            .all(|users| users.0.load(Relaxed) == REVOKED));
    }

    #[test]
    fn later_accesses_see_changes() {
        let revocable = BhRevocable::new(1);
        assert!(revocable.update(|value| *value = 2));
        assert_eq!(revocable.try_access().as_deref(), Some(&2));
        // During an update, access is refused.
        assert!(revocable.update(|_| assert!(revocable.try_access().is_none())));
        assert_eq!(revocable.try_access().as_deref(), Some(&2));
    }

    #[test]
    fn a_revoked_value_is_not_changed() {
        let revocable = BhRevocable::new(1);
        revocable.revoke();
        let mut called = false;
        assert!(!revocable.update(|_| called = true));
        assert!(!called);
    }

    #[test]
    fn drops_its_value_once_revoked_or_not() {
        let drops = Atomic::new(0);
        drop(BhRevocable::new(CountedDrop(&drops)));
        assert_eq!(drops.load(Relaxed), 1);
        let revocable = BhRevocable::new(CountedDrop(&drops));
        drop(revocable.revoke());
        assert_eq!(drops.load(Relaxed), 2);
        drop(revocable);
        assert_eq!(drops.load(Relaxed), 2);
    }

    /// A value with a visitor on another CPU, which holds a guard until it sees that a call waits
    /// for it, and a little longer.
    struct Visited {
        revocable: BhRevocable<i32>,
        inside: Atomic<i32>,
        left: Atomic<i32>,
    }

    impl Visited {
        /// Makes one and waits until the visitor holds its guard.
        fn new(queue: &OwnedQueue) -> Result<Arc<Self>> {
            let this = Self {
                revocable: BhRevocable::new(7),
                inside: Atomic::new(0),
                left: Atomic::new(0),
            };
            let this = Arc::new(this, GFP_KERNEL)?;
            let visitor = this.clone();
            queue.try_spawn(move || visitor.visit())?;
            let begin = Instant::<Monotonic>::now();
            while this.inside.load(Relaxed) == 0 {
                if begin.elapsed() > LONG {
                    return Err(ETIMEDOUT);
                }
            }
            Ok(this)
        }

        fn visit(&self) {
            let inside = self.revocable.try_access();
            self.inside.store(1, Relaxed);
            let begin = Instant::<Monotonic>::now();
            while self.revocable.users_here().load(Relaxed) < UPDATING {
                if begin.elapsed() > LONG {
                    return;
                }
            }
            let begin = Instant::<Monotonic>::now();
            while begin.elapsed() < Delta::from_millis(5) {}
            self.left.store(1, Relaxed);
            drop(inside);
        }
    }

    /// The time after which a test gives up.
    const LONG: Delta = Delta::from_secs(10);

    fn queue() -> Result<OwnedQueue> {
        let flags = Flags {
            placement: Placement::Unbound,
            highpri: false,
            mem_reclaim: false,
        };
        OwnedQueue::try_new(c"riwarp_kunit", flags)
    }

    #[test]
    fn closing_waits_for_who_is_inside() -> Result {
        let queue = queue()?;
        let visited = Visited::new(&queue)?;
        assert_eq!(visited.revocable.revoke(), Some(7));
        assert_eq!(visited.left.load(Relaxed), 1);
        queue.flush();
        Ok(())
    }

    #[test]
    fn a_change_waits_for_who_is_inside() -> Result {
        let queue = queue()?;
        let visited = Visited::new(&queue)?;
        let mut left = 0;
        assert!(visited
            .revocable
            .update(|_| left = visited.left.load(Relaxed)));
        assert_eq!(left, 1);
        queue.flush();
        Ok(())
    }

    #[test]
    fn bottom_halves_are_on_again_after_the_last_guard() {
        let revocable = BhRevocable::new(());
        let outer = revocable.try_access();
        drop(revocable.try_access());
        drop(outer);
        // With bottom halves off, lockdep and the sleep-in-atomic check would warn here.
        kernel::time::delay::fsleep(kernel::time::Delta::from_micros(10));
    }
}
