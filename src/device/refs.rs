// SPDX-License-Identifier: GPL-2.0

//! References that are counted, so that an end can wait for the last one.
//!
//! The module counts its devices: a [`Device`](super::Device) holds a [`Ref`] and drops it last.
//! Everything else of a device (its tables, connections, work items) refers to the
//! [`Device`](super::Device), and so is gone when [`Refs::wait_empty`] returns. The end of a device
//! waits likewise for its connections and their sockets.
//!
//! Context: any; the wait process.

use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Full,
            Relaxed, //
        },
        Arc,
        Completion, //
    }, //
};

use kernel_ext::warn_on_once;

/// Counts what exists in memory, plus one for who waits for it.
#[pin_data]
pub(crate) struct Refs {
    count: Atomic<i32>,
    #[pin]
    empty: Completion,
}

impl Refs {
    /// Makes the count, which is one.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                count: Atomic::new(1),
                empty <- Completion::new(),
            }),
            GFP_KERNEL,
        )
    }

    fn put(&self) {
        // ORDERING: `Full` pairs with the same of the last one: what each did with its device comes
        // before `complete_all`, for which `wait_empty` waits.
        let before = self.count.fetch_sub(1, Full);
        // Each reference is dropped once, and so is the own count.
        warn_on_once!(before < 1);
        if before == 1 {
            self.empty.complete_all();
        }
    }

    /// Drops the own count and waits for all others. Called once.
    pub(crate) fn wait_empty(&self) {
        self.put();
        self.empty.wait_for_completion();
    }
}

/// A reference that [`Refs`] counts.
pub(crate) struct Ref(Arc<Refs>);

impl Ref {
    /// Makes a reference of a count of its own, for tests.
    #[cfg(CONFIG_KUNIT = "y")]
    pub(crate) fn single() -> Result<Self> {
        Ok(Self(Refs::new()?))
    }

    /// Counts one more.
    pub(crate) fn new(refs: &Arc<Refs>) -> Self {
        // ORDERING: none: the own count, or a reference of the caller, keeps the sum above 0.
        refs.count.fetch_add(1, Relaxed);
        Self(refs.clone())
    }
}

impl Drop for Ref {
    fn drop(&mut self) {
        self.0.put();
    }
}

#[kernel::prelude::kunit_tests(riwarp_device_refs)]
mod tests {
    use super::*;
    use kernel::sync::atomic::Acquire;

    #[test]
    fn refs_wait_ends_with_last_reference() -> Result {
        let refs = Refs::new()?;
        let first = Ref::new(&refs);
        let second = Ref::new(&refs);
        drop(first);
        refs.put();
        assert_eq!(refs.count.load(Acquire), 1);
        drop(second);
        assert_eq!(refs.count.load(Acquire), 0);
        // Already complete, so this returns.
        refs.empty.wait_for_completion();
        Ok(())
    }
}
