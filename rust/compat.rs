// SPDX-License-Identifier: GPL-2.0

//! What riwarp uses of the kernel that an older kernel lacks; each item says which. Here it has the
//! newer kernel's name.
//!
//! Kbuild sets `kernel_7_3` for kernels from 7.3 on. The helpers are in `rust/helpers/compat.c`.

use crate::bindings;
use core::borrow::Borrow;
use kernel::ffi::c_int;
use kernel::ffi::c_ulong;
use kernel::time::Delta;

/// 7.2 has no names for these errors.
macro_rules! errors {
    ($($name:ident)*) => { $(
        #[cfg(kernel_7_3)]
        pub use kernel::error::code::$name;
        #[cfg(not(kernel_7_3))]
        #[doc = concat!("The error `", stringify!($name), "`.")]
        pub const $name: kernel::error::Error = error_try_from_errno::error(bindings::$name);
    )* };
}
errors! {
    EADDRINUSE EADDRNOTAVAIL EAFNOSUPPORT EBADMSG ECONNABORTED ECONNREFUSED ECONNRESET EHOSTUNREACH
    EINPROGRESS EISCONN EKEYEXPIRED ENETDOWN ENETUNREACH ENOTCONN EOPNOTSUPP EPROTO
}

// 7.2 has no spin lock that disables interrupts.
#[cfg(kernel_7_3)]
pub use kernel::sync::new_spinlock_irq;
#[cfg(kernel_7_3)]
pub use kernel::sync::SpinLockIrq;
#[cfg(not(kernel_7_3))]
pub use older::new_spinlock_irq;
#[cfg(not(kernel_7_3))]
pub use older::SpinLockIrq;

/// Returns the module, of which 7.2 has no associated constant.
#[expect(
    clippy::crate_in_macro_def,
    reason = "the module is the caller's crate"
)]
#[macro_export]
macro_rules! this_module {
    () => {{
        #[cfg(kernel_7_3)]
        {
            &<crate::LocalModule as ::kernel::ModuleMetadata>::THIS_MODULE
        }
        #[cfg(not(kernel_7_3))]
        {
            &crate::THIS_MODULE
        }
    }};
}
pub use this_module;

/// Returns the value of a parameter of the module, to which 7.2 gives a reference.
pub fn parameter<T: Copy>(value: impl Borrow<T>) -> T {
    *value.borrow()
}

/// A full memory barrier between processors. 7.2's takes no argument.
#[inline(always)]
pub fn smp_mb() {
    #[cfg(kernel_7_3)]
    kernel::sync::barrier::smp_mb(kernel::sync::atomic::Full);
    #[cfg(not(kernel_7_3))]
    kernel::sync::barrier::smp_mb();
}

/// Returns the number of milliseconds, rounded up. 7.2 only rounds down.
pub fn as_millis_ceil(delta: Delta) -> i64 {
    #[cfg(kernel_7_3)]
    return delta.as_millis_ceil();
    #[cfg(not(kernel_7_3))]
    return older::as_millis_ceil(delta);
}

/// Waits for a grace period of RCU. Context: process, sleeps. 7.2's `kernel` crate lacks it.
pub(crate) fn synchronize_rcu() {
    // SAFETY: `synchronize_rcu()` requires a context that may sleep, as this function does.
    unsafe { bindings::synchronize_rcu() };
}

/// Waits for all callbacks of RCU that were queued before. Context: process, sleeps. 7.2's `kernel`
/// crate lacks it.
pub(crate) fn rcu_barrier() {
    // SAFETY: `rcu_barrier()` requires a context that may sleep, as this function does.
    unsafe { bindings::rcu_barrier() };
}

/// Brings in a range of a process's memory and repeats that for up to `timeout` jiffies while the
/// range is invalidated; returns 0 or a negative error. 7.2 has only `hmm_range_fault()`.
///
/// # Safety
///
/// The range and its notifier are valid and `hmm_pfns` has room for its pages; the notifier's
/// address space is in use, and the caller does not hold its lock.
pub(crate) unsafe fn hmm_range_fault(range: &mut bindings::hmm_range, timeout: c_ulong) -> c_int {
    #[cfg(kernel_7_3)]
    // SAFETY: The caller guarantees what `hmm_range_fault_unlocked_timeout()` requires: a valid
    // range, whose address space is in use and not locked.
    unsafe {
        bindings::hmm_range_fault_unlocked_timeout(range, timeout)
    }
    #[cfg(not(kernel_7_3))]
    // SAFETY: The caller guarantees what the helper requires: a valid range, whose address space is
    // in use and not locked.
    unsafe {
        older::riwarp_helper_hmm_range_fault(range, timeout)
    }
}

#[cfg(not(kernel_7_3))]
mod error_try_from_errno;

#[cfg(not(kernel_7_3))]
mod older {
    use crate::bindings;
    use kernel::ffi::c_char;
    use kernel::ffi::c_int;
    use kernel::ffi::c_ulong;
    use kernel::sync::lock::spinlock::SpinLockBackend;
    use kernel::sync::lock::Backend;
    use kernel::sync::lock::Lock;
    use kernel::time::Delta;
    use kernel::time::NSEC_PER_MSEC;

    pub(super) fn as_millis_ceil(delta: Delta) -> i64 {
        let nanos = delta.as_nanos();
        nanos.div_euclid(NSEC_PER_MSEC) + i64::from(nanos.rem_euclid(NSEC_PER_MSEC) != 0)
    }

    /// A spin lock that disables interrupts. Locks are released in the reverse order.
    pub type SpinLockIrq<T> = Lock<T, SpinLockIrqBackend>;

    /// The backend that makes a [`Lock`] a [`SpinLockIrq`].
    pub struct SpinLockIrqBackend;

    type State = <SpinLockBackend as Backend>::State;

    // SAFETY: `spin_lock_irqsave` gives mutual exclusion between its callers, which all users of
    // this backend are.
    unsafe impl Backend for SpinLockIrqBackend {
        type State = State;
        type GuardState = c_ulong;

        #[inline]
        unsafe fn init(
            ptr: *mut Self::State,
            name: *const c_char,
            key: *mut bindings::lock_class_key,
        ) {
            // SAFETY: The contract of `Backend::init` is the same for both backends.
            unsafe { SpinLockBackend::init(ptr, name, key) }
        }

        #[inline]
        unsafe fn lock(ptr: *mut Self::State) -> Self::GuardState {
            // SAFETY: By the contract of `Backend::lock`, the lock is initialised.
            unsafe { riwarp_helper_spin_lock_irqsave(ptr) }
        }

        #[inline]
        unsafe fn try_lock(ptr: *mut Self::State) -> Option<Self::GuardState> {
            let mut flags = 0;
            // SAFETY: By the contract of `Backend::try_lock`, the lock is initialised.
            unsafe { riwarp_helper_spin_trylock_irqsave(ptr, &mut flags) }.then_some(flags)
        }

        #[inline]
        unsafe fn unlock(ptr: *mut Self::State, guard_state: &Self::GuardState) {
            // SAFETY: By the contract of `Backend::unlock`, the caller holds the lock, and
            // `guard_state` is what `lock` or `try_lock` returned for it.
            unsafe { riwarp_helper_spin_unlock_irqrestore(ptr, *guard_state) }
        }

        #[inline]
        unsafe fn assert_is_held(ptr: *mut Self::State) {
            // SAFETY: By the contract of `Backend::assert_is_held`, the lock is initialised.
            unsafe { SpinLockBackend::assert_is_held(ptr) }
        }
    }

    /// Returns the initialiser of a [`SpinLockIrq`] with a lockdep class of its own.
    #[macro_export]
    macro_rules! new_spinlock_irq {
        ($inner:expr $(, $name:literal)? $(,)?) => {
            $crate::compat::SpinLockIrq::new(
                $inner,
                ::kernel::optional_name!($($name)?),
                ::kernel::static_lock_class!(),
            )
        };
    }
    pub use new_spinlock_irq;

    extern "C" {
        pub(super) fn riwarp_helper_hmm_range_fault(
            range: *mut bindings::hmm_range,
            timeout: c_ulong,
        ) -> c_int;
        fn riwarp_helper_spin_lock_irqsave(lock: *mut State) -> c_ulong;
        fn riwarp_helper_spin_trylock_irqsave(lock: *mut State, flags: *mut c_ulong) -> bool;
        fn riwarp_helper_spin_unlock_irqrestore(lock: *mut State, flags: c_ulong);
    }
}
