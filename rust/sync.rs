// SPDX-License-Identifier: GPL-2.0

//! Synchronisation that the `kernel` crate lacks: a spin lock that disables bottom halves
//! ([`SpinLockBh`]), proof that they are off ([`BhOff`]), exclusive work without waiting
//! ([`SerialTask`]), revocable values ([`BhRevocable`]), a static cell for the object that
//! callbacks use ([`ModuleCell`]), and fields that start a cache line ([`NextCacheLine`]).
//!
//! C headers: `include/linux/spinlock.h`, `include/linux/bottom_half.h`.

use crate::bindings;
use kernel::ffi::c_char;
use kernel::ffi::c_int;
use kernel::sync::lock::spinlock::SpinLockBackend;
use kernel::sync::lock::Backend;
use kernel::sync::lock::Lock;

mod bh;
mod bh_revocable;
mod module_cell;
mod serial_task;

pub use bh::BhOff;
pub use bh_revocable::BhRevocable;
pub use bh_revocable::BhRevocableGuard;
pub use module_cell::ModuleCell;
pub use module_cell::ModuleCellGuard;
pub use serial_task::Next;
pub use serial_task::Ran;
pub use serial_task::SerialTask;

type SpinLockState = <SpinLockBackend as Backend>::State;

extern "C" {
    fn riwarp_helper_spin_lock_bh(lock: *mut SpinLockState);
    fn riwarp_helper_spin_trylock_bh(lock: *mut SpinLockState) -> c_int;
    fn riwarp_helper_spin_unlock_bh(lock: *mut SpinLockState);
}

/// Starts a new cache line, as a field of a `#[repr(C)]` struct, so that fields that one CPU writes
/// often do not share a line with fields that another reads.
///
/// # Examples
///
/// ```
/// use core::mem::offset_of;
/// use kernel_ext::sync::NextCacheLine;
///
/// #[repr(C)]
/// struct Ring {
///     head: u32,
///     _line: NextCacheLine,
///     tail: u32,
/// }
/// assert_eq!((offset_of!(Ring, head), offset_of!(Ring, tail)), (0, 64));
/// ```
#[repr(align(64))]
pub struct NextCacheLine;

/// A spin lock shared between process context and softirq.
///
/// Holding it keeps bottom halves off on this CPU. Data that hard interrupts use too belongs in a
/// [`kernel::sync::SpinLockIrq`]. The lock must not be released with interrupts disabled.
///
/// # Examples
///
/// ```
/// use kernel::sync::lock::Guard;
/// use kernel_ext::new_spinlock_bh;
/// use kernel_ext::sync::SpinLockBh;
/// use kernel_ext::sync::SpinLockBhBackend;
///
/// #[pin_data]
/// struct Receiver {
///     #[pin]
///     octets: SpinLockBh<u64>,
/// }
///
/// impl Receiver {
///     fn lock(&self) -> Guard<'_, u64, SpinLockBhBackend> {
///         self.octets.lock()
///     }
/// }
///
/// let receiver = KBox::pin_init(
///     pin_init!(Receiver { octets <- new_spinlock_bh!(0, "Receiver::octets") }),
///     GFP_KERNEL,
/// )?;
/// *receiver.lock() += 1500;
/// assert_eq!(*receiver.lock(), 1500);
/// ```
pub type SpinLockBh<T> = Lock<T, SpinLockBhBackend>;

/// The backend that makes a [`Lock`] a [`SpinLockBh`].
pub struct SpinLockBhBackend;

/// Returns the initialiser of a [`SpinLockBh`] with a lockdep class of its own.
#[macro_export]
macro_rules! new_spinlock_bh {
    ($inner:expr $(, $name:literal)? $(,)?) => {
        $crate::sync::SpinLockBh::new(
            $inner,
            ::kernel::optional_name!($($name)?),
            ::kernel::static_lock_class!(),
        )
    };
}
pub use new_spinlock_bh;

// SAFETY: `spin_lock_bh` gives mutual exclusion between its callers, which all users of this
// backend are.
unsafe impl Backend for SpinLockBhBackend {
    type State = SpinLockState;
    type GuardState = ();

    #[inline]
    unsafe fn init(ptr: *mut Self::State, name: *const c_char, key: *mut bindings::lock_class_key) {
        // SAFETY: By the contract of `Backend::init`, `ptr` is valid for writes, and `name` and
        // `key` are never freed.
        unsafe { SpinLockBackend::init(ptr, name, key) }
    }

    #[inline]
    unsafe fn lock(ptr: *mut Self::State) -> Self::GuardState {
        // SAFETY: By the contract of `Backend::lock`, the lock is initialised.
        unsafe { riwarp_helper_spin_lock_bh(ptr) }
    }

    #[inline]
    unsafe fn try_lock(ptr: *mut Self::State) -> Option<Self::GuardState> {
        // SAFETY: By the contract of `Backend::try_lock`, the lock is initialised.
        (unsafe { riwarp_helper_spin_trylock_bh(ptr) } != 0).then_some(())
    }

    #[inline]
    unsafe fn unlock(ptr: *mut Self::State, _guard_state: &Self::GuardState) {
        // SAFETY: By the contract of `Backend::unlock`, the caller holds the lock.
        unsafe { riwarp_helper_spin_unlock_bh(ptr) }
    }

    #[inline]
    unsafe fn assert_is_held(ptr: *mut Self::State) {
        // SAFETY: By the contract of `Backend::assert_is_held`, the lock is initialised.
        unsafe { SpinLockBackend::assert_is_held(ptr) }
    }
}

#[kernel::prelude::kunit_tests(riwarp_sync)]
mod tests {
    use super::*;
    use kernel::prelude::*;
    use kernel::sync::Arc;

    #[test]
    fn lock_is_not_taken_twice() -> Result {
        let lock = Arc::pin_init(new_spinlock_bh!(1, "riwarp_sync::lock"), GFP_KERNEL)?;
        {
            let mut guard = lock.lock();
            *guard += 1;
            assert!(lock.try_lock().is_none());
        }
        let again = lock.try_lock();
        assert_eq!(again.as_deref(), Some(&2));
        Ok(())
    }
}
