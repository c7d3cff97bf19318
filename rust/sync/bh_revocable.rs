// SPDX-License-Identifier: GPL-2.0

//! Values that can be taken back from users in softirq: whoever revokes the value waits until
//! nobody uses it any more.
//!
//! RFC 5040, section 8.1.1 (RDMAP-165): once access to a buffer was revoked, no placement may be in
//! flight any more.

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

/// A value that any context may use until it is taken out.
///
/// An access costs one atomic addition, to a count that only some of the CPUs use. Users run with
/// bottom halves off and must not sleep, so that the wait in [`BhRevocable::revoke`] is short and
/// never for somebody on the same CPU.
///
/// # Invariants
///
/// Each of `users` is the number of guards that were counted there, plus [`UPDATING`] while a call
/// of [`BhRevocable::update`] is under way, plus [`REVOKED`] after the value was revoked; never
/// both. Who adds one of these adds it to the first count before the others, and takes it from the
/// first after the others. The value is initialised and only read by guards until the first
/// revocation has seen all of `users` equal to [`REVOKED`]; that call moves it out, and nobody
/// touches it after. While all of `users` are [`UPDATING`], the call that added it has the value
/// for itself.
pub struct BhRevocable<T> {
    users: [Users; STRIPES],
    value: UnsafeCell<MaybeUninit<T>>,
}

/// Users that came in on some of the CPUs, in a cache line of their own.
#[repr(align(64))]
struct Users(Atomic<c_int>);

/// In how many counts the CPUs share. With one, all that use a memory region at a time would wait
/// for its cache line; revoking looks at each.
const STRIPES: usize = 4;

/// Added to the number of users when the value is revoked.
const REVOKED: c_int = 1 << 30;
/// Added to the number of users while the value is being changed; more than there can be users.
const UPDATING: c_int = 1 << 29;

// SAFETY: It owns its value and nothing else that is bound to a thread; so it may go to another
// thread if the value may.
unsafe impl<T: Send> Send for BhRevocable<T> {}
// SAFETY: What a shared one gives out are references to the value, by guards, hence `Sync`, and the
// value, by `revoke`, and access to it alone, by `update`, on any thread, hence `Send`.
unsafe impl<T: Send + Sync> Sync for BhRevocable<T> {}

impl<T: Send + Sync> BhRevocable<T> {
    /// Makes one with a value that can be used.
    pub const fn new(value: T) -> Self {
        // INVARIANT: No users, not revoked, the value is there.
        Self {
            users: [const { Users(Atomic::new(0)) }; STRIPES],
            value: UnsafeCell::new(MaybeUninit::new(value)),
        }
    }

    /// Gives access to the value, unless it was revoked.
    ///
    /// Bottom halves stay off while the guard lives; whoever holds it must not sleep.
    ///
    /// Context: process or softirq; also with interrupts disabled, if they stay so for the life of
    /// the guard.
    pub fn try_access(&self) -> Option<BhRevocableGuard<'_, T>> {
        self.access_with(BottomHalvesOff::new())
    }

    /// As [`BhRevocable::try_access`], for who has switched bottom halves off already.
    #[inline]
    pub fn try_access_bh_off<'a>(&'a self, _off: BhOff<'a>) -> Option<BhRevocableGuard<'a, T>> {
        // INVARIANT: They are off for as long as the guard can live.
        self.access_with(BottomHalvesOff {
            disabled: false,
            _not_send: NotThreadSafe,
        })
    }

    /// The count for this CPU. It may be another CPU a moment later, to no harm.
    #[inline]
    fn users_here(&self) -> &Atomic<c_int> {
        // SAFETY: `raw_smp_processor_id()` has no requirements; that the number may be wrong at
        // once does not matter here.
        let cpu = unsafe { riwarp_helper_raw_smp_processor_id() };
        // CAST: `usize` has 64 bits. NO-PANIC: Less than the length.
        &self.users[cpu as usize % STRIPES].0
    }

    #[inline]
    fn access_with(&self, bh: BottomHalvesOff) -> Option<BhRevocableGuard<'_, T>> {
        let users = self.users_here();
        // The guard undoes all of this, in the case of a revoked value too.
        let guard = BhRevocableGuard {
            revocable: self,
            users,
            _bh: bh,
        };
        // ORDERING: the use of the value comes after; pairs with `Full` in `claim`: either this
        // call sees the mark, or `claim` sees this user.
        if users.fetch_add(1, Full) >= UPDATING {
            return None;
        }
        Some(guard)
    }

    /// Changes the value while nobody uses it, and says whether it did: not if the value was
    /// revoked.
    ///
    /// Spins until all guards are gone and other changes are done; meanwhile
    /// [`BhRevocable::try_access`] gives `None`. `f` runs with bottom halves off, must not sleep,
    /// and must be short. Must not be called by somebody who holds a guard of the same value, nor
    /// from `f`.
    ///
    /// Context: as for [`BhRevocable::try_access`].
    pub fn update(&self, f: impl FnOnce(&mut T)) -> bool {
        // Bottom halves stay off until the end, so that nobody on this CPU waits for this call in
        // vain.
        let _bh = BottomHalvesOff::new();
        if !self.claim(UPDATING) {
            return false;
        }
        // SAFETY: By the type invariant the value is initialised, since `claim` found it not
        // revoked, and this call has it for itself until it takes `UPDATING` back; those that add
        // themselves meanwhile turn back without a look at it.
        f(unsafe { (*self.value.get()).assume_init_mut() });
        for users in self.users.iter().rev() {
            // ORDERING: the change comes before; pairs with `Full` in `try_access`.
            users.0.fetch_sub(UPDATING, Release);
        }
        true
    }

    /// Adds `mark` and waits until nobody uses the value; `false` if it was revoked.
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
        // INVARIANT: The first count has the mark, so that nobody else adds one.
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

    /// Takes the value out, once nobody uses it any more. Gives `None` if another call did or does
    /// so.
    ///
    /// Spins until all guards are gone. Must not be called by somebody who holds a guard of the
    /// same value, nor in hard interrupt context.
    ///
    /// Context: process or softirq.
    pub fn revoke(&self) -> Option<T> {
        if !self.claim(REVOKED) {
            return None;
        }
        // SAFETY: `assume_init_read` wants an initialised value that is read out once. By the type
        // invariant it is initialised until the first revocation; only the call that added
        // `REVOKED` gets here, once, and has waited for all guards. Later users see the mark and
        // turn back.
        Some(unsafe { (*self.value.get()).assume_init_read() })
    }

    /// Says whether the value can be used. It may be revoked a moment later. Context: any.
    #[inline]
    pub fn is_accessible(&self) -> bool {
        self.users_here().load(Relaxed) < REVOKED
    }
}

impl<T> Drop for BhRevocable<T> {
    fn drop(&mut self) {
        if *self.users[0].0.get_mut() < REVOKED {
            // SAFETY: By the type invariant the value is initialised as long as it was not revoked,
            // and whoever has `&mut` is the only user.
            unsafe { self.value.get_mut().assume_init_drop() };
        }
    }
}

/// Access to the value of a [`BhRevocable`].
///
/// # Invariants
///
/// Counted in `users`, which is one of `revocable.users`. If it was given out, it was counted while
/// the value was neither revoked nor being updated.
pub struct BhRevocableGuard<'a, T> {
    revocable: &'a BhRevocable<T>,
    users: &'a Atomic<c_int>,
    /// Dropped last, after the count is gone.
    _bh: BottomHalvesOff,
}

impl<T> Deref for BhRevocableGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: By its invariant this guard is counted, and `access_with` gave it out before the
        // value was revoked. By the invariants of the type the value is initialised, and only read,
        // until the count is gone.
        unsafe { (*self.revocable.value.get()).assume_init_ref() }
    }
}

impl<T> Drop for BhRevocableGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // ORDERING: the uses of the value come before; pairs with `Acquire` in
        // `BhRevocable::claim`.
        self.users.fetch_sub(1, Release);
    }
}

/// Keeps bottom halves off this CPU as long as it lives.
///
/// # Invariants
///
/// If `disabled`, bottom halves were disabled for this value, on this CPU. If not, they are off in
/// any case for as long as the value can live.
struct BottomHalvesOff {
    disabled: bool,
    _not_send: NotThreadSafe,
}

impl BottomHalvesOff {
    #[inline]
    fn new() -> Self {
        // SAFETY: `riwarp_helper_bh_off()` may be called in any context, and wants what it did
        // (which it returns) to be undone in the same one: that is what the drop does, on the same
        // thread.
        let disabled = unsafe { riwarp_helper_bh_off() };
        // INVARIANT: Just done.
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
            // the type invariant that for this value, which is not `Send`.
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

    /// Adds 1 to a count when it goes.
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
        // While it changes, nobody gets access.
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

    /// A value, and somebody on another CPU who uses it until he sees that he is in the way, and
    /// for a while after.
    struct Visited {
        revocable: BhRevocable<i32>,
        inside: Atomic<i32>,
        left: Atomic<i32>,
    }

    impl Visited {
        /// Makes it, and waits until the visitor is inside.
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

    /// After that somebody is stuck.
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
        // Would be told by lockdep and by the check for sleeping while atomic.
        kernel::time::delay::fsleep(kernel::time::Delta::from_micros(10));
    }
}
