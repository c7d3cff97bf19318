// SPDX-License-Identifier: GPL-2.0

//! For KUnit suites: a queue that runs closures. Built only for kernels with KUnit.

use super::Flags;
use super::OwnedQueue;
use super::Placement;
use kernel::prelude::*;
use kernel::workqueue::Queue;

impl OwnedQueue {
    /// Makes a queue whose items run on any CPU. Context: process, sleeps.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn for_tests() -> Result<Self> {
        let flags = Flags {
            placement: Placement::Unbound,
            highpri: false,
            mem_reclaim: false,
        };
        Self::try_new(c"riwarp_kunit", flags)
    }

    /// Enqueues a closure. Context: process, sleeps.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn try_spawn(&self, f: impl FnMut() + Send + 'static) -> Result {
        self.spawn_boxed(KBox::new(f, GFP_KERNEL)?)
    }

    /// The generic function that it calls has one lockdep key, but a name for each type, of which
    /// lockdep warns. So it is called with one type.
    fn spawn_boxed(&self, mut f: KBox<dyn FnMut() + Send>) -> Result {
        // SAFETY: `from_raw` requires a queue that is valid as long as the result is used: by the
        // type invariant it is, as long as `self`, whose drop waits for the item.
        Ok(unsafe { Queue::from_raw(self.as_raw()) }.try_spawn(GFP_KERNEL, move || f())?)
    }
}
