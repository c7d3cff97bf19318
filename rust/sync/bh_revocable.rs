// SPDX-License-Identifier: GPL-2.0

//! Values whose access can be revoked from users in softirq: revoking waits until no user is left.
//!
//! For memory that is given back to its owner, for example: once its access is revoked, nothing may
//! still be copying.

use super::bh::BhOff;
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::ops::Deref;
use kernel::types::NotThreadSafe;

#[cfg(not(CONFIG_PREEMPT_RT))]
mod counts;
#[cfg(CONFIG_PREEMPT_RT)]
mod rwlock;

#[cfg(not(CONFIG_PREEMPT_RT))]
use counts::User;
#[cfg(not(CONFIG_PREEMPT_RT))]
use counts::Users;
#[cfg(CONFIG_PREEMPT_RT)]
use rwlock::ReadGuard as User;
#[cfg(CONFIG_PREEMPT_RT)]
use rwlock::Readers as Users;

extern "C" {
    fn riwarp_helper_bh_off() -> bool;
    fn riwarp_helper_local_bh_enable();
}

/// A value that any context may use until it is revoked.
///
/// Users run with bottom halves off and must not sleep, so the wait in [`BhRevocable::revoke`] is
/// short and never for a user in the same task. How users are counted and waited for depends on
/// the kernel ([`Users`]): with `PREEMPT_RT` a user can be preempted, so whoever waits has to give
/// up the CPU; elsewhere it cannot, and waiting is spinning.
///
/// # Examples
///
/// ```
/// use kernel_ext::sync::BhRevocable;
/// use kernel_ext::sync::BhRevocableGuard;
///
/// fn first(octets: &BhRevocableGuard<'_, KVec<u8>>) -> Option<u8> {
///     octets.first().copied()
/// }
///
/// let buffer = BhRevocable::new(KVec::from_elem(7, 16, GFP_KERNEL)?);
/// assert_eq!(buffer.try_access().and_then(|octets| first(&octets)), Some(7));
/// assert!(buffer.update(|octets| octets.truncate(8)));
/// // Waits for those who have access. Afterwards nobody has.
/// assert_eq!(buffer.revoke().map(|octets| octets.len()), Some(8));
/// assert!(buffer.try_access().is_none());
/// ```
///
/// # Invariants
///
/// Each guard is a [`User`] of `users`. The value is initialised and only read by guards until the
/// first revocation of `users`; that call moves it out, and nothing accesses it afterwards.
pub struct BhRevocable<T> {
    users: Users,
    value: UnsafeCell<MaybeUninit<T>>,
}

// SAFETY: Only the value could be bound to a thread; so it may move to another thread if the value
// may.
unsafe impl<T: Send> Send for BhRevocable<T> {}
// SAFETY: Through a shared reference any thread gets references to the value, by guards, which
// requires `Sync`, and the value itself or exclusive access to it, by `revoke` and `update`, which
// requires `Send`.
unsafe impl<T: Send + Sync> Sync for BhRevocable<T> {}

impl<T: Send + Sync> BhRevocable<T> {
    /// Makes one whose value is accessible.
    pub fn new(value: T) -> Self {
        // INVARIANT: No users, not revoked, the value is initialised.
        Self {
            users: Users::new(),
            value: UnsafeCell::new(MaybeUninit::new(value)),
        }
    }

    /// Gives access to the value, unless it was revoked.
    ///
    /// Bottom halves stay off while the guard lives; its holder must not sleep.
    ///
    /// Context: process or softirq; also with interrupts disabled, if they stay so for the life of
    /// the guard.
    #[inline]
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

    #[inline]
    fn access_with(&self, bh: BottomHalvesOff) -> Option<BhRevocableGuard<'_, T>> {
        let user = self.users.try_enter()?;
        // INVARIANT: Entered just now.
        Some(BhRevocableGuard {
            revocable: self,
            _user: user,
            _bh: bh,
        })
    }

    /// Changes the value with exclusive access; returns `false` if the value was revoked.
    ///
    /// Waits until all guards are dropped and other updates have finished; meanwhile
    /// [`BhRevocable::try_access`] returns `None`. `f` runs with bottom halves off, must not sleep,
    /// and must be short. The caller must not hold a guard of the same value, nor call this from
    /// `f`.
    ///
    /// Context: as for [`BhRevocable::try_access`], where a spin lock may be taken.
    pub fn update(&self, f: impl FnOnce(&mut T)) -> bool {
        // Bottom halves stay off until the end, so that a softirq on this CPU cannot spin for this
        // call.
        let _bh = BottomHalvesOff::new();
        let Some(_exclusive) = self.users.claim() else {
            return false;
        };
        // SAFETY: By the type invariant the value is initialised, since `claim` found it not
        // revoked. It has excluded users, other updates and the revocation until its result is
        // dropped, below.
        f(unsafe { (*self.value.get()).assume_init_mut() });
        true
    }

    /// Revokes the value and returns it once no guard is left; `None` if another call has revoked
    /// it.
    ///
    /// Waits until all guards are dropped. The caller must not hold a guard of the same value, nor
    /// be in hard interrupt context.
    ///
    /// Context: process or softirq, where a spin lock may be taken.
    pub fn revoke(&self) -> Option<T> {
        if !self.users.revoke() {
            return None;
        }
        // SAFETY: `assume_init_read` requires an initialised value that is moved out once. By the
        // type invariant it is initialised until the first revocation; only that one gets here,
        // and `Users::revoke` has waited for all guards and updates.
        Some(unsafe { (*self.value.get()).assume_init_read() })
    }

    /// Returns whether the value is not revoked. It may be revoked right afterwards. Context: any.
    #[inline]
    pub fn is_accessible(&self) -> bool {
        !self.users.is_revoked()
    }
}

impl<T> Drop for BhRevocable<T> {
    fn drop(&mut self) {
        if !self.users.is_revoked() {
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
/// `_user` is one of `revocable.users`.
pub struct BhRevocableGuard<'a, T> {
    revocable: &'a BhRevocable<T>,
    _user: User<'a>,
    /// Dropped last, after the user has left.
    _bh: BottomHalvesOff,
}

impl<T> Deref for BhRevocableGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: By its invariant this guard is a user, which entered before the value was
        // revoked. By the invariants of [`BhRevocable`] the value is initialised, and only read,
        // until it leaves.
        unsafe { (*self.revocable.value.get()).assume_init_ref() }
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
    use crate::workqueue::OwnedQueue;
    use kernel::prelude::*;
    use kernel::sync::atomic::Atomic;
    use kernel::sync::atomic::Relaxed;
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
    fn bh_revocable_gives_access_until_revoked() {
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
    fn bh_revocable_returns_value_to_one_revoker() {
        let revocable = BhRevocable::new(7);
        assert_eq!(revocable.revoke(), Some(7));
        assert_eq!(revocable.revoke(), None);
    }

    #[test]
    fn bh_revocable_refused_access_has_no_effect() {
        let revocable = BhRevocable::new(());
        revocable.revoke();
        for _ in 0..10 {
            assert!(revocable.try_access().is_none());
        }
        assert!(revocable.users.is_left());
    }

    #[test]
    fn bh_revocable_update_is_seen_by_later_access() {
        let revocable = BhRevocable::new(1);
        assert!(revocable.update(|value| *value = 2));
        assert_eq!(revocable.try_access().as_deref(), Some(&2));
        // During an update, access is refused.
        assert!(revocable.update(|_| assert!(revocable.try_access().is_none())));
        assert_eq!(revocable.try_access().as_deref(), Some(&2));
    }

    #[test]
    fn bh_revocable_update_after_revoke_does_nothing() {
        let revocable = BhRevocable::new(1);
        revocable.revoke();
        let mut called = false;
        assert!(!revocable.update(|_| called = true));
        assert!(!called);
        // The refused change leaves no trace: who drops it next must not drop the value again.
        assert!(!revocable.is_accessible());
        assert!(revocable.users.is_left());
        assert_eq!(revocable.revoke(), None);
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
            while !self.revocable.users.is_closed() {
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

    #[test]
    fn bh_revocable_revoke_waits_for_readers() -> Result {
        let queue = OwnedQueue::for_tests()?;
        let visited = Visited::new(&queue)?;
        assert_eq!(visited.revocable.revoke(), Some(7));
        assert_eq!(visited.left.load(Relaxed), 1);
        queue.flush();
        Ok(())
    }

    #[test]
    fn bh_revocable_update_waits_for_readers() -> Result {
        let queue = OwnedQueue::for_tests()?;
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
