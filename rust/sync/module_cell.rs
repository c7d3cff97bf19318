// SPDX-License-Identifier: GPL-2.0

//! A static cell for the object that callbacks without a context argument use.
//!
//! Some kernel interfaces (link types, notifiers) call a plain function. A module keeps the object
//! that such a function needs in a static [`ModuleCell`] while the function is registered.

use crate::compat;
use core::ptr;
use core::ptr::NonNull;
use kernel::prelude::*;
use kernel::sync::atomic::Acquire;
use kernel::sync::atomic::Atomic;
use kernel::sync::atomic::Full;
use kernel::sync::rcu;
use kernel::sync::Arc;
use kernel::sync::ArcBorrow;

/// A cell for an `Arc<T>` that is filled and emptied while other contexts read it.
///
/// # Examples
///
/// ```
/// use kernel::sync::Arc;
/// use kernel_ext::sync::ModuleCell;
/// use kernel_ext::sync::ModuleCellGuard;
///
/// static DEVICES: ModuleCell<u32> = ModuleCell::empty();
///
/// // A function without an argument, as a notifier is.
/// fn devices() -> u32 {
///     DEVICES.get().map_or(0, |devices| *devices)
/// }
///
/// let filled: ModuleCellGuard<u32> = DEVICES.fill(Arc::new(3, GFP_KERNEL)?)?;
/// assert_eq!(devices(), 3);
/// drop(filled);
/// assert_eq!(devices(), 0);
/// ```
///
/// # Invariants
///
/// `value` is null or comes from `Arc<T>::into_raw` and owns one reference, which is dropped no
/// earlier than one RCU grace period after the pointer was removed.
pub struct ModuleCell<T: Send + Sync + 'static> {
    value: Atomic<*mut T>,
}

impl<T: Send + Sync + 'static> ModuleCell<T> {
    /// Makes an empty cell.
    pub const fn empty() -> Self {
        // INVARIANT: The pointer is null.
        Self {
            value: Atomic::new(ptr::null_mut()),
        }
    }

    /// Stores a value until the result is dropped.
    ///
    /// # Errors
    ///
    /// `EBUSY` if the cell is full.
    pub fn fill(&'static self, value: Arc<T>) -> Result<ModuleCellGuard<T>> {
        let raw = Arc::into_raw(value).cast_mut();
        // ORDERING: Full: the value is complete before it is visible; pairs with `Acquire` in
        // `get`.
        if self.value.cmpxchg(ptr::null_mut(), raw, Full).is_err() {
            // SAFETY: `raw` comes from `into_raw` above and still owns its reference, since the
            // exchange failed.
            drop(unsafe { Arc::from_raw(raw.cast_const()) });
            return Err(EBUSY);
        }
        // INVARIANT: This call has just filled the cell.
        Ok(ModuleCellGuard { cell: self })
    }

    /// Returns the value; `None` if the cell is empty. Context: any.
    pub fn get(&self) -> Option<Arc<T>> {
        let _rcu = rcu::read_lock();
        // ORDERING: pairs with `Full` in `fill`.
        let raw = NonNull::new(self.value.load(Acquire))?;
        // SAFETY: By the type invariant the pointer comes from `Arc::into_raw`, and its reference
        // is held until the end of the read-side section, which `_rcu` keeps open longer than the
        // borrow lives. No `&mut` exists to what an `Arc` shares.
        Some(unsafe { ArcBorrow::from_raw(raw.as_ptr().cast_const()) }.into())
    }
}

/// A filled cell. Dropping it empties the cell; context: process, sleeps.
///
/// # Invariants
///
/// The value in `cell` was stored for this guard.
pub struct ModuleCellGuard<T: Send + Sync + 'static> {
    cell: &'static ModuleCell<T>,
}

impl<T: Send + Sync + 'static> Drop for ModuleCellGuard<T> {
    fn drop(&mut self) {
        // ORDERING: pairs with `Acquire` in `get`; the grace period below waits for those that saw
        // the pointer.
        let raw = self.cell.value.xchg(ptr::null_mut(), Full);
        // By the type invariant it is not null.
        if let Some(raw) = NonNull::new(raw) {
            compat::synchronize_rcu();
            // SAFETY: By the cell's invariant the pointer comes from `Arc::into_raw` and owns a
            // reference. The exchange above removed it, so only this call has it, and readers that
            // saw it before have taken references of their own, since a grace period has passed.
            drop(unsafe { Arc::from_raw(raw.as_ptr().cast_const()) });
        }
    }
}

#[kernel::prelude::kunit_tests(riwarp_module_cell)]
mod tests {
    use super::*;

    #[test]
    fn module_cell_holds_value_until_guard_is_dropped() -> Result {
        static CELL: ModuleCell<u32> = ModuleCell::empty();
        assert!(CELL.get().is_none());
        let guard = CELL.fill(Arc::new(5, GFP_KERNEL)?)?;
        assert_eq!(CELL.get().as_deref(), Some(&5));
        drop(guard);
        assert!(CELL.get().is_none());
        Ok(())
    }

    #[test]
    fn module_cell_refuses_second_value() -> Result {
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
    fn module_cell_reference_outlives_the_value() -> Result {
        static CELL: ModuleCell<u32> = ModuleCell::empty();
        let guard = CELL.fill(Arc::new(9, GFP_KERNEL)?)?;
        let got = CELL.get();
        drop(guard);
        assert_eq!(got.as_deref(), Some(&9));
        // This is the last reference.
        assert!(got.and_then(Arc::into_unique_or_drop).is_some());
        Ok(())
    }
}
