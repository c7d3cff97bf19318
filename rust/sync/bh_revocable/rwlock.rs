// SPDX-License-Identifier: GPL-2.0

//! Readers of a [`BhRevocable`](super::BhRevocable) with `PREEMPT_RT`: readers of an `rwlock_t`.
//!
//! Bottom halves that are off keep softirqs out of the task, but neither other tasks nor their
//! softirqs off its CPU. So a user may have been preempted by the very task that waits for it,
//! which must not spin: a writer of the lock sleeps until the last reader has left, and the
//! scheduler boosts a writer for which another one waits.

use crate::bindings;
use kernel::ffi::c_int;
use kernel::sync::atomic::Atomic;
use kernel::sync::atomic::Full;
use kernel::sync::atomic::Relaxed;
use kernel::types::NotThreadSafe;
use kernel::types::Opaque;

extern "C" {
    fn riwarp_helper_read_trylock(lock: *mut bindings::rwlock_t) -> c_int;
    fn riwarp_helper_read_unlock(lock: *mut bindings::rwlock_t);
    fn riwarp_helper_rwlock_init(lock: *mut bindings::rwlock_t);
    fn riwarp_helper_write_lock(lock: *mut bindings::rwlock_t);
    fn riwarp_helper_write_unlock(lock: *mut bindings::rwlock_t);
}

/// The users of a value.
///
/// # Invariants
///
/// `lock` is initialised. Each user holds it for reading, which a call only begins before it has
/// seen `revoked`. Each [`WriteGuard`] holds it for writing.
pub(super) struct Readers {
    lock: Opaque<bindings::rwlock_t>,
    revoked: Atomic<bool>,
}

// SAFETY: A lock that nobody holds or waits for belongs to no thread, and does not refer to its own
// place; users borrow it, so it does not move while they hold or wait for it.
unsafe impl Send for Readers {}
// SAFETY: Any thread may take the lock.
unsafe impl Sync for Readers {}

impl Readers {
    pub(super) fn new() -> Self {
        let lock = Opaque::uninit();
        // SAFETY: `rwlock_init()` requires memory for a lock, which it may overwrite.
        unsafe { riwarp_helper_rwlock_init(lock.get()) };
        // INVARIANT: Initialised; no users, not revoked.
        Self {
            lock,
            revoked: Atomic::new(false),
        }
    }

    /// Enters, unless there is or begins an update, or the value was revoked.
    #[inline]
    pub(super) fn try_enter(&self) -> Option<ReadGuard<'_>> {
        // Never waits, so that a user may enter again while a writer waits for it.
        // SAFETY: `read_trylock()` requires an initialised lock: by the type invariant it is one.
        let locked = unsafe { riwarp_helper_read_trylock(self.lock.get()) } != 0;
        // INVARIANT: Locked just now.
        let user = locked.then(|| ReadGuard {
            readers: self,
            _not_send: NotThreadSafe,
        })?;
        // ORDERING: whoever enters after the revocation has locked out the users sees the flag,
        // because the lock was taken after `write_unlock()` in `revoke`, which follows the flag.
        (!self.revoked.load(Relaxed)).then_some(user)
    }

    /// Excludes users, waits for those that there are, and for other updates; `None` if the value
    /// was revoked.
    pub(super) fn claim(&self) -> Option<WriteGuard<'_>> {
        // SAFETY: `write_lock()` requires an initialised lock, which it is by the type invariant,
        // and that the task does not hold it, as the contract of `BhRevocable::update` says.
        unsafe { riwarp_helper_write_lock(self.lock.get()) };
        // INVARIANT: Locked just now.
        let writer = WriteGuard {
            readers: self,
            _not_send: NotThreadSafe,
        };
        // ORDERING: if the flag is set later, `revoke` waits for the lock.
        (!self.revoked.load(Relaxed)).then_some(writer)
    }

    /// Excludes users for good and waits for those that there are, and for an update; `false` if
    /// another call has revoked the value.
    pub(super) fn revoke(&self) -> bool {
        // ORDERING: the flag is set before the lock is taken: see `try_enter` and `claim`.
        if self.revoked.xchg(true, Full) {
            return false;
        }
        // SAFETY: `write_lock()` requires an initialised lock, which it is by the type invariant,
        // and that the task does not hold it, as the contract of `BhRevocable::revoke` says.
        unsafe { riwarp_helper_write_lock(self.lock.get()) };
        // SAFETY: `write_unlock()` undoes one `write_lock()` of the same task: the one above.
        unsafe { riwarp_helper_write_unlock(self.lock.get()) };
        true
    }

    /// Returns whether the value is revoked, or is being revoked.
    #[inline]
    pub(super) fn is_revoked(&self) -> bool {
        // ORDERING: none: a hint, which may be outdated at once.
        self.revoked.load(Relaxed)
    }

    /// Returns whether users are excluded, for now or for good.
    #[cfg(CONFIG_KUNIT = "y")]
    pub(super) fn is_closed(&self) -> bool {
        self.try_enter().is_none()
    }

    /// Returns whether the value is revoked and no user is left.
    #[cfg(CONFIG_KUNIT = "y")]
    pub(super) fn is_left(&self) -> bool {
        extern "C" {
            fn riwarp_helper_rwlock_is_locked(lock: *mut bindings::rwlock_t) -> bool;
        }
        // SAFETY: `rwlock_is_locked()` requires an initialised lock: by the type invariant it is
        // one.
        self.is_revoked() && !unsafe { riwarp_helper_rwlock_is_locked(self.lock.get()) }
    }
}

/// One user of [`Readers`].
///
/// # Invariants
///
/// This value holds the lock for reading, on this thread.
pub(super) struct ReadGuard<'a> {
    readers: &'a Readers,
    _not_send: NotThreadSafe,
}

impl Drop for ReadGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: `read_unlock()` undoes one `read_trylock()` of the same task: by the type
        // invariant this value has locked it, on this thread.
        unsafe { riwarp_helper_read_unlock(self.readers.lock.get()) };
    }
}

/// Exclusive access, until it is dropped.
///
/// # Invariants
///
/// This value holds the lock for writing, on this thread.
pub(super) struct WriteGuard<'a> {
    readers: &'a Readers,
    _not_send: NotThreadSafe,
}

impl Drop for WriteGuard<'_> {
    fn drop(&mut self) {
        // SAFETY: `write_unlock()` undoes one `write_lock()` of the same task: by the type
        // invariant this value has locked it, on this thread.
        unsafe { riwarp_helper_write_unlock(self.readers.lock.get()) };
    }
}
