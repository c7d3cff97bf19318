// SPDX-License-Identifier: GPL-2.0

//! Proof that bottom halves are off, as a value.
//!
//! Much of the work on a message requires bottom halves off, at several levels. A function that
//! takes a [`BhOff`] need not disable them again.
//!
//! C header: `include/linux/bottom_half.h`.

use super::SpinLockBh;
use core::marker::PhantomData;
use kernel::sync::lock::spinlock::SpinLockBackend;
use kernel::sync::lock::Guard;
use kernel::sync::SpinLock;
use kernel::types::NotThreadSafe;

extern "C" {
    fn riwarp_helper_irqs_disabled() -> bool;
    fn riwarp_helper_local_bh_disable();
    fn riwarp_helper_local_bh_enable();
}

/// Proof that bottom halves are off on this CPU, for as long as `'a`.
///
/// # Examples
///
/// ```
/// use kernel_ext::new_spinlock_bh;
/// use kernel_ext::sync::BhOff;
/// use kernel_ext::sync::SpinLockBh;
///
/// fn count(off: BhOff<'_>, received: &SpinLockBh<u32>, sent: &SpinLockBh<u32>) {
///     *off.lock(received) += 1;
///     *off.lock(sent) += 1;
/// }
///
/// let received = KBox::pin_init(new_spinlock_bh!(0), GFP_KERNEL)?;
/// let sent = KBox::pin_init(new_spinlock_bh!(1), GFP_KERNEL)?;
/// // Bottom halves are disabled once for both locks.
/// BhOff::run(|off| count(off, &received, &sent));
/// assert_eq!((*received.lock(), *sent.lock()), (1, 2));
/// ```
///
/// # Invariants
///
/// Bottom halves are off on this CPU and stay off until the end of `'a`.
#[derive(Clone, Copy)]
pub struct BhOff<'a> {
    _life: PhantomData<&'a ()>,
    _not_send: NotThreadSafe,
}

impl BhOff<'_> {
    /// # Safety
    ///
    /// Bottom halves must be off on this CPU, and stay off until the end of the result's lifetime.
    #[inline]
    pub(crate) const unsafe fn assume() -> Self {
        // INVARIANT: The caller keeps them off for the lifetime.
        Self {
            _life: PhantomData,
            _not_send: NotThreadSafe,
        }
    }

    /// Runs `f`, which must not sleep, with bottom halves off.
    ///
    /// Context: process or softirq, interrupts enabled.
    #[inline]
    pub fn run<R>(f: impl FnOnce(BhOff<'_>) -> R) -> R {
        // SAFETY: `local_bh_disable()` must be undone in the same context, which happens below.
        unsafe { riwarp_helper_local_bh_disable() };
        // SAFETY: `assume` requires bottom halves off for the lifetime of its result. They were
        // just disabled, and stay so until `f` returns; `f` accepts any lifetime, so the value
        // cannot escape from it.
        let ret = f(unsafe { BhOff::assume() });
        // SAFETY: `local_bh_enable()` undoes one `local_bh_disable()` of the same context: the one
        // above.
        unsafe { riwarp_helper_local_bh_enable() };
        ret
    }

    /// As [`BhOff::run`]; [`None`] with interrupts disabled, where bottom halves cannot be enabled
    /// again.
    ///
    /// Softirqs that `f` raises run before this returns, if bottom halves were on.
    ///
    /// Context: any.
    #[inline]
    pub fn try_run<R>(f: impl FnOnce(BhOff<'_>) -> R) -> Option<R> {
        // SAFETY: `irqs_disabled()` has no requirements.
        let off = unsafe { riwarp_helper_irqs_disabled() };
        (!off).then(|| Self::run(f))
    }

    /// Locks a [`SpinLockBh`] without disabling bottom halves again.
    #[inline]
    pub fn lock<'b, T>(self, lock: &'b SpinLockBh<T>) -> Guard<'b, T, SpinLockBackend>
    where
        Self: 'b,
    {
        // SAFETY: The cast requires two types of one layout that exclude each other: both are a
        // `Lock` (`repr(C)`) of a `spinlock_t` and a `T`, and both lock it with `spin_lock`. Other
        // users of the lock cannot interrupt on this CPU, since by the invariant of `self` bottom
        // halves are off as long as the guard can live.
        unsafe { &*(&raw const *lock).cast::<SpinLock<T>>() }.lock()
    }
}

#[kernel::prelude::kunit_tests(riwarp_bh)]
mod tests {
    use super::*;
    use crate::new_spinlock_bh;
    use kernel::prelude::*;
    use kernel::sync::Arc;

    #[test]
    fn bh_off_lock_and_plain_lock_exclude_each_other() -> Result {
        let lock = Arc::pin_init(new_spinlock_bh!(1, "riwarp_bh::lock"), GFP_KERNEL)?;
        BhOff::run(|off| {
            let mut guard = off.lock(&lock);
            *guard += 1;
            assert!(lock.try_lock().is_none());
        });
        assert_eq!(*lock.lock(), 2);
        Ok(())
    }
}
