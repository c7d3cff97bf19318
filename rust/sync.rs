// SPDX-License-Identifier: GPL-2.0

//! Synchronisation that the `kernel` crate does not have: a spin lock against bottom halves, and the
//! knowledge that they are off ([`BhOff`]), waiting with a time limit, work that is handed over instead
//! of waited for ([`Baton`]), values that can be taken back ([`Gate`]), the one object that callbacks
//! have to find ([`Slot`]), and fields that keep apart what CPUs write ([`NextCacheLine`]).
//!
//! C headers: `include/linux/spinlock.h`, `include/linux/completion.h`,
//! `include/linux/bottom_half.h`.

use crate::bindings;
use core::marker::PhantomPinned;
use kernel::ffi::c_char;
use kernel::ffi::c_int;
use kernel::ffi::c_ulong;
use kernel::prelude::*;
use kernel::sync::lock::Backend;
use kernel::sync::lock::Guard;
use kernel::sync::lock::Lock;
use kernel::types::Opaque;

mod baton;
mod bh;
mod gate;
mod slot;

pub use baton::Baton;
pub use baton::Next;
pub use baton::Ran;
pub use bh::BhOff;
pub use gate::Gate;
pub use gate::GateGuard;
pub use slot::Filled;
pub use slot::Slot;

extern "C" {
    fn riwarp_helper_spin_lock_bh(lock: *mut bindings::spinlock_t);
    fn riwarp_helper_spin_trylock_bh(lock: *mut bindings::spinlock_t) -> c_int;
    fn riwarp_helper_spin_unlock_bh(lock: *mut bindings::spinlock_t);
}

/// Begins a line of the CPU's cache, as a field of a `#[repr(C)]` struct: what one CPU writes all the time is not
/// to lie in a line with what another one reads.
#[repr(align(64))]
pub struct NextCacheLine;

/// A spin lock that is shared between process context and softirq.
///
/// Holding it keeps bottom halves off this CPU. Data that hard interrupts use too belongs into
/// [`kernel::sync::SpinLockIrq`]. The lock must not be released with interrupts disabled.
///
/// # Examples
///
/// ```ignore
/// #[pin_data]
/// struct Receiver {
///     #[pin]
///     inner: SpinLockBh<ReceiverInner>,
/// }
/// pin_init!(Receiver { inner <- new_spinlock_bh!(ReceiverInner::new(), "Receiver::inner") })
/// ```
pub type SpinLockBh<T> = Lock<T, SpinLockBhBackend>;

/// The guard of a [`SpinLockBh`].
pub type SpinLockBhGuard<'a, T> = Guard<'a, T, SpinLockBhBackend>;

/// What makes a [`Lock`] a [`SpinLockBh`].
pub struct SpinLockBhBackend;

/// Makes the initialiser of a [`SpinLockBh`] with a lockdep class of its own.
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

// SAFETY: `spin_lock_bh` gives mutual exclusion between all that lock with it, which is every user
// of this backend.
unsafe impl Backend for SpinLockBhBackend {
    type State = bindings::spinlock_t;
    type GuardState = ();

    #[inline]
    unsafe fn init(ptr: *mut Self::State, name: *const c_char, key: *mut bindings::lock_class_key) {
        // SAFETY: By the contract of `Backend::init`, `ptr` is valid for writes, `name` and `key`
        // live for ever.
        unsafe { bindings::__spin_lock_init(ptr, name, key) }
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
        unsafe { bindings::spin_assert_is_held(ptr) }
    }
}

/// Something that happens once and can be waited for, also for a limited time.
///
/// [`kernel::sync::Completion`] has no time limit.
#[pin_data]
pub struct Completion {
    #[pin]
    inner: Opaque<bindings::completion>,
    #[pin]
    _pin: PhantomPinned,
}

// SAFETY: A `struct completion` may be used and freed by any thread.
unsafe impl Send for Completion {}
// SAFETY: The functions used on a `struct completion` lock it.
unsafe impl Sync for Completion {}

impl Completion {
    /// Makes one that has not happened yet.
    pub fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            inner <- Opaque::ffi_init(|slot: *mut bindings::completion| {
                // SAFETY: By the contract of `ffi_init`, `slot` is valid for writes.
                unsafe { bindings::init_completion(slot) };
            }),
            _pin: PhantomPinned,
        })
    }

    /// Lets all go on that wait now or later. Context: any.
    pub fn complete_all(&self) {
        // SAFETY: The completion was initialised by `new` and is pinned.
        unsafe { bindings::complete_all(self.inner.get()) };
    }

    /// Waits until [`Completion::complete_all`] was called. Context: process, sleeps.
    pub fn wait(&self) {
        // SAFETY: The completion was initialised by `new` and is pinned.
        unsafe { bindings::wait_for_completion(self.inner.get()) };
    }

    /// Waits at most `millis` milliseconds and says whether it happened. Context: process, sleeps.
    pub fn wait_timeout(&self, millis: u32) -> bool {
        let jiffies: c_ulong = kernel::time::msecs_to_jiffies(millis);
        // SAFETY: The completion was initialised by `new` and is pinned.
        unsafe { bindings::wait_for_completion_timeout(self.inner.get(), jiffies) != 0 }
    }

    /// Says whether it happened. Context: any.
    pub fn is_done(&self) -> bool {
        // SAFETY: The completion was initialised by `new` and is pinned.
        unsafe { bindings::completion_done(self.inner.get()) }
    }
}

#[kernel::prelude::kunit_tests(riwarp_sync)]
mod tests {
    use super::*;
    use kernel::sync::Arc;

    #[test]
    fn a_completion_is_over_for_all_who_wait_later() -> Result {
        let over = KBox::pin_init(Completion::new(), GFP_KERNEL)?;
        assert!(!over.is_done());
        assert!(!over.wait_timeout(1));
        over.complete_all();
        assert!(over.is_done());
        over.wait();
        assert!(over.wait_timeout(0));
        assert!(over.wait_timeout(1000));
        Ok(())
    }

    #[test]
    fn a_lock_guards_its_value_once() -> Result {
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
