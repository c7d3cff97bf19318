// SPDX-License-Identifier: GPL-2.0

//! The one object that callbacks without a context of their own have to find.
//!
//! Some interfaces of the kernel (link types, notifiers) call a plain function. A module keeps the
//! object that such a function needs in a static [`ModuleCell`], from the time that it registers
//! the function to the time that it unregisters it.

use core::ptr;
use core::ptr::NonNull;
use kernel::prelude::*;
use kernel::sync::atomic::Acquire;
use kernel::sync::atomic::Atomic;
use kernel::sync::atomic::Full;
use kernel::sync::rcu;
use kernel::sync::Arc;
use kernel::sync::ArcBorrow;

/// A place for an `Arc<T>` that is filled and emptied while others look.
///
/// # Examples
///
/// ```ignore
/// static DRIVER: Slot<MyDriver> = Slot::empty();
///
/// let filled = DRIVER.fill(driver)?;
/// assert!(DRIVER.get().is_some());
/// drop(filled);
/// assert!(DRIVER.get().is_none());
/// ```
///
/// # Invariants
///
/// `value` is null or comes from `Arc<T>::into_raw` and owns one reference, which is dropped no
/// earlier than one RCU grace period after the pointer was taken out.
pub struct ModuleCell<T: Send + Sync + 'static> {
    value: Atomic<*mut T>,
}

impl<T: Send + Sync + 'static> ModuleCell<T> {
    /// Makes one with nothing in it.
    pub const fn empty() -> Self {
        // INVARIANT: The pointer is null.
        Self {
            value: Atomic::new(ptr::null_mut()),
        }
    }

    /// Puts a value in, until the result is dropped.
    ///
    /// # Errors
    ///
    /// `EBUSY` if there is a value already.
    pub fn fill(&'static self, value: Arc<T>) -> Result<ModuleCellGuard<T>> {
        let raw = Arc::into_raw(value).cast_mut();
        // ORDERING: Full: the value is complete before it can be seen; pairs with `Acquire` in
        // `get`.
        if self.value.cmpxchg(ptr::null_mut(), raw, Full).is_err() {
            // SAFETY: `raw` comes from `into_raw` above, and owns its reference still: it was not
            // put in.
            drop(unsafe { Arc::from_raw(raw.cast_const()) });
            return Err(EBUSY);
        }
        // INVARIANT: The cell was filled just now, by this call.
        Ok(ModuleCellGuard { cell: self })
    }

    /// Returns the value, if there is one. Context: any.
    pub fn get(&self) -> Option<Arc<T>> {
        let _rcu = rcu::read_lock();
        // ORDERING: pairs with `Full` in `fill`.
        let raw = NonNull::new(self.value.load(Acquire))?;
        // SAFETY: By the type invariant the pointer comes from `Arc::into_raw`, and the reference
        // behind it stays until the end of the read-side section, which `_rcu` keeps open for
        // longer than the borrow lives. Nobody makes a `&mut` of what an `Arc` shares.
        Some(unsafe { ArcBorrow::from_raw(raw.as_ptr().cast_const()) }.into())
    }
}

/// A filled cell. Dropping it empties the cell; context: process, sleeps.
///
/// # Invariants
///
/// The value in `cell` was put there for this object.
pub struct ModuleCellGuard<T: Send + Sync + 'static> {
    cell: &'static ModuleCell<T>,
}

impl<T: Send + Sync + 'static> Drop for ModuleCellGuard<T> {
    fn drop(&mut self) {
        let raw = self.cell.value.xchg(ptr::null_mut(), Full);
        // By the type's invariant it is not null.
        if let Some(raw) = NonNull::new(raw) {
            rcu::synchronize_rcu();
            // SAFETY: By the cell's invariant the pointer comes from `Arc::into_raw` and owns a
            // reference. It was taken out above, so only this call has it, and whoever saw it
            // before has counted a reference of its own, since a grace period is over.
            drop(unsafe { Arc::from_raw(raw.as_ptr().cast_const()) });
        }
    }
}

#[kernel::prelude::kunit_tests(riwarp_module_cell)]
mod tests {
    use super::*;

    #[test]
    fn holds_a_value_until_the_proof_is_dropped() -> Result {
        static CELL: ModuleCell<u32> = ModuleCell::empty();
        assert!(CELL.get().is_none());
        let guard = CELL.fill(Arc::new(5, GFP_KERNEL)?)?;
        assert_eq!(CELL.get().as_deref(), Some(&5));
        drop(guard);
        assert!(CELL.get().is_none());
        Ok(())
    }

    #[test]
    fn takes_one_value_at_a_time() -> Result {
        static CELL: ModuleCell<u32> = ModuleCell::empty();
        let guard = CELL.fill(Arc::new(1, GFP_KERNEL)?)?;
        let second = CELL.fill(Arc::new(2, GFP_KERNEL)?);
        assert_eq!(second.err(), Some(EBUSY));
        assert_eq!(CELL.get().as_deref(), Some(&1));
        drop(guard);
        let guard = CELL.fill(Arc::new(3, GFP_KERNEL)?)?;
        assert_eq!(CELL.get().as_deref(), Some(&3));
        drop(guard);
        Ok(())
    }

    #[test]
    fn what_was_got_outlives_the_cell() -> Result {
        static CELL: ModuleCell<u32> = ModuleCell::empty();
        let guard = CELL.fill(Arc::new(9, GFP_KERNEL)?)?;
        let got = CELL.get();
        drop(guard);
        assert_eq!(got.as_deref(), Some(&9));
        // Nobody else has it any more.
        assert!(got.and_then(Arc::into_unique_or_drop).is_some());
        Ok(())
    }
}
