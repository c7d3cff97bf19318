// SPDX-License-Identifier: GPL-2.0

//! Which queue pair a call of the connection manager is about.
//!
//! `iw_cm_connect()` and `iw_cm_accept()` (`drivers/infiniband/core/iwcm.c`) get a queue pair by
//! its number from `iw_get_qp`, and then call `iw_connect` or `iw_accept` with the number. By then
//! the queue pair may be destroyed, and its number another's, so a second search would not tell
//! what the connection manager has got. The same thread makes both calls, one after the other.

use crate::compat::new_spinlock_irq;
use crate::compat::SpinLockIrq;
use crate::rdma::object::QpLink;
use kernel::prelude::*;
use kernel::sync::Arc;
use kernel::task::Task;

/// The calls that have got a queue pair of a device so far.
#[pin_data]
pub(in crate::rdma) struct QpCalls {
    #[pin]
    begun: SpinLockIrq<KVec<Call>>,
}

struct Call {
    /// The address of the thread's structure. The thread exists as long as its call.
    thread: usize,
    link: QpLink,
}

/// Returns what identifies the current thread.
fn current() -> usize {
    Task::current_raw().addr()
}

impl QpCalls {
    pub(in crate::rdma) fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                begun <- new_spinlock_irq!(KVec::new()),
            }),
            GFP_KERNEL,
        )
    }

    /// Notes which queue pair the current thread gets.
    ///
    /// Context: any but hard interrupt; interrupts may be off.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(super) fn begin(&self, link: QpLink) -> Result {
        let call = Call {
            thread: current(),
            link,
        };
        self.begun.lock().push(call, GFP_ATOMIC)?;
        Ok(())
    }

    /// Forgets the call of the current thread and returns its queue pair.
    pub(super) fn end(&self) -> Option<QpLink> {
        let mut begun = self.begun.lock();
        let at = begun.iter().position(|call| call.thread == current())?;
        Some(begun.remove(at).ok()?.link)
    }
}

#[kernel::prelude::kunit_tests(riwarp_cm_calls)]
mod tests {
    use super::*;

    #[test]
    fn thread_gets_queue_pair_of_its_own_call() -> Result {
        let calls = QpCalls::new()?;
        let (own, other) = (QpLink::dead()?, QpLink::dead()?);
        assert!(calls.end().is_none());
        calls.begin(other.clone())?;
        // Another thread's.
        if let Some(call) = calls.begun.lock().first_mut() {
            call.thread ^= 1;
        }
        assert!(calls.end().is_none());
        calls.begin(own.clone())?;
        assert_eq!(calls.end().map(|link| link.cm_qp()), Some(own.cm_qp()));
        assert!(calls.end().is_none());
        assert_eq!(calls.begun.lock().len(), 1);
        Ok(())
    }
}
