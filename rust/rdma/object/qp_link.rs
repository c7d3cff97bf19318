// SPDX-License-Identifier: GPL-2.0

//! The links of queue pairs, by which the connection manager finds them too.

use super::ObjectPtr;
use super::QpId;
use crate::bindings;
use crate::rdma::iw_cm::Endpoint;
use crate::rdma::types::QpEvent;
use crate::sync::BhRevocable;
use core::ptr::NonNull;
use kernel::prelude::*;
use kernel::sync::atomic::Acquire;
use kernel::sync::atomic::Atomic;
use kernel::sync::atomic::Full;
use kernel::sync::atomic::Release;
use kernel::sync::new_spinlock_irq;
use kernel::sync::Arc;
use kernel::sync::Completion;
use kernel::sync::SpinLockIrq;
use kernel::task::Kuid;

/// The way from the driver's queue pair to its consumer.
#[derive(Clone)]
pub struct QpLink(Arc<QpLinkInner>);

#[pin_data]
struct QpLinkInner {
    object: BhRevocable<ObjectPtr<bindings::ib_qp>>,
    id: QpId,
    /// The user whose process made it; [`None`] for a kernel consumer's.
    maker: Option<Kuid>,
    /// The C object is complete, so that the connection manager may find it.
    filled: Atomic<bool>,
    /// References of the connection manager, and one of our own.
    users: Atomic<i32>,
    #[pin]
    unused: Completion,
    #[pin]
    connection: SpinLockIrq<Connection>,
}

/// What is known of a queue pair's connection.
enum Connection {
    /// None was begun.
    None,
    /// The one that was begun last.
    Begun(Endpoint),
    /// None may begin any more.
    Over,
}

/// For whom the connection manager works.
///
/// A process names a queue pair by a number, which it can guess. So it must be one of the user that
/// has made the queue pair; not the same one, since a daemon may fork after that. A kernel
/// consumer's queue pair is connected by the kernel: on a thread of its own, or on that of a
/// process whose request that was (`nvme connect`, a mount, iscsid). The connection manager does
/// not say whether it was, or asked by `rdma_ucm`; but who may ask a consumer may administrate the
/// network.
struct Caller {
    user: Kuid,
    /// Asked for a kernel consumer's queue pair only: a refusal is something that is audited.
    is_trusted: fn() -> bool,
}

impl Caller {
    fn current() -> Self {
        Self {
            user: Kuid::current_euid(),
            is_trusted: || {
                // SAFETY: May be asked in any thread.
                unsafe { riwarp_helper_is_trusted() }
            },
        }
    }
}

extern "C" {
    fn riwarp_helper_is_trusted() -> bool;
}

impl QpLink {
    /// Makes the link of a queue pair that is being created, for a process of the user `maker` or
    /// for a kernel consumer. The connection manager does not find it before [`Self::filled`].
    ///
    /// # Safety
    ///
    /// `qp` must stay valid until [`Self::close`] returned.
    pub(in crate::rdma) unsafe fn new(
        qp: NonNull<bindings::ib_qp>,
        maker: Option<Kuid>,
    ) -> Result<Self> {
        let inner = Arc::pin_init(
            pin_init!(QpLinkInner {
                object: BhRevocable::new(ObjectPtr(qp)),
                id: QpId(qp.as_ptr().addr()),
                maker,
                filled: Atomic::new(false),
                users: Atomic::new(1),
                unused <- Completion::new(),
                connection <- new_spinlock_irq!(Connection::None),
            }),
            GFP_KERNEL_ACCOUNT,
        )?;
        Ok(Self(inner))
    }

    /// Makes the link of a queue pair that no consumer holds, for tests of what a driver does
    /// without one.
    #[cfg(CONFIG_KUNIT = "y")]
    pub fn dead() -> Result<Self> {
        // SAFETY: The link is closed at once, so that nobody gets at the pointer.
        let link = unsafe { Self::new(NonNull::dangling(), None) }?;
        link.close();
        Ok(link)
    }

    /// Tells the consumer of an event.
    ///
    /// Context: any; the caller may hold no lock that a verb on the queue pair takes.
    pub fn event(&self, event: QpEvent) {
        let Some(qp) = self.0.object.try_access() else {
            return;
        };
        let qp = qp.0.as_ptr();
        // SAFETY: The fields of a valid queue pair: the caller of `new` keeps `qp` valid until it
        // is revoked, and it is not.
        let (handler, context, device) =
            unsafe { ((*qp).event_handler, (*qp).qp_context, (*qp).device) };
        let mut event = bindings::ib_event {
            device,
            event: event.to_raw(),
            ..Default::default()
        };
        // SAFETY: The union is plain data; this is the variant for this kind of event.
        unsafe { *event.element.qp.as_mut() = qp };
        if let Some(handler) = handler {
            // SAFETY: The handler is the consumer's own for this queue pair; it does not keep the
            // event.
            unsafe { handler(&mut event, context) };
        }
    }

    /// The identity that completions carry.
    pub fn id(&self) -> QpId {
        self.0.id
    }

    /// Lets the connection manager find the queue pair, whose C object has been filled.
    ///
    /// The driver knows the queue pair by its number before: it tells the process of it, which may
    /// let that take as long as it likes.
    pub(in crate::rdma) fn filled(&self) {
        // ORDERING: the C object was filled before; pairs with `Acquire` in `may_connect`.
        self.0.filled.store(true, Release);
    }

    /// Whether the connection manager may find the queue pair, for whom it works.
    fn may_connect(&self, caller: &Caller) -> bool {
        // ORDERING: what is done with the C object comes after; pairs with `Release` in `filled`.
        self.0.filled.load(Acquire)
            && match self.0.maker {
                Some(maker) => maker == caller.user,
                None => (caller.is_trusted)(),
            }
    }

    /// Finds the C object and counts a reference of the connection manager to it; `None` if it is
    /// not there yet, or not any more, or not for the process that asks.
    ///
    /// Context: any but hard interrupt; interrupts may be off.
    pub(in crate::rdma) fn add_user(&self) -> Option<NonNull<bindings::ib_qp>> {
        // Held until it is counted: the queue pair's end revokes the pointer first, and then waits
        // for all that were counted.
        let qp = self.0.object.try_access()?;
        if !self.may_connect(&Caller::current()) {
            return None;
        }
        self.0.users.fetch_add(1, Full);
        Some(qp.0)
    }

    /// Gives a reference of the connection manager back.
    pub(in crate::rdma) fn remove_user(&self) {
        // ORDERING: Full: whatever the connection manager did with the queue pair comes before its
        // end.
        if self.0.users.fetch_sub(1, Full) == 1 {
            self.0.unused.complete_all();
        }
    }

    /// Takes note of a connection that begins.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the queue pair is still being made, being destroyed, or another user's.
    pub(in crate::rdma) fn attach(&self, endpoint: Endpoint) -> Result {
        // It is another one than was found before if the number was given anew meanwhile.
        if !self.may_connect(&Caller::current()) {
            return Err(EINVAL);
        }
        let mut connection = self.0.connection.lock();
        if let Connection::Over = *connection {
            return Err(EINVAL);
        }
        let old = core::mem::replace(&mut *connection, Connection::Begun(endpoint));
        drop(connection);
        drop(old);
        Ok(())
    }

    /// Gives our own reference back and waits until the connection manager has none.
    ///
    /// It gives its own back once it knows that the connection has ended, so it is told, if nobody
    /// did yet. The link must be closed, so that the connection manager gets no more of them.
    ///
    /// Context: process, may sleep.
    pub(in crate::rdma) fn wait_unused(&self) {
        let last = core::mem::replace(&mut *self.0.connection.lock(), Connection::Over);
        if let Connection::Begun(endpoint) = last {
            endpoint.settle();
        }
        self.remove_user();
        self.0.unused.wait_for_completion();
    }

    /// Ends the link; once this returned no handler runs and the connection manager does not find
    /// the queue pair.
    pub(in crate::rdma) fn close(&self) {
        self.0.object.revoke();
    }
}

#[kernel::prelude::kunit_tests(riwarp_qp_link)]
mod tests {
    use super::*;

    /// A link to a queue pair that nobody looks at.
    fn link_of(maker: Option<Kuid>) -> Result<QpLink> {
        // SAFETY: The pointer is only handed on: no event is raised.
        unsafe { QpLink::new(NonNull::dangling(), maker) }
    }

    fn link() -> Result<QpLink> {
        link_of(None)
    }

    #[test]
    fn has_no_users_before_it_is_filled() -> Result {
        let link = link()?;
        assert!(link.add_user().is_none());
        link.filled();
        assert_eq!(link.add_user(), Some(NonNull::dangling()));
        Ok(())
    }

    #[test]
    fn gets_no_users_once_it_is_closed() -> Result {
        let link = link()?;
        link.filled();
        link.close();
        assert!(link.add_user().is_none());
        link.wait_unused();
        Ok(())
    }

    #[test]
    fn is_in_use_until_each_user_has_gone() -> Result {
        let link = link()?;
        link.filled();
        assert!(link.add_user().is_some());
        assert!(link.add_user().is_some());
        link.close();
        link.remove_user();
        assert_eq!(link.0.users.load(Acquire), 2);
        link.remove_user();
        link.wait_unused();
        assert_eq!(link.0.users.load(Acquire), 0);
        Ok(())
    }

    #[test]
    fn gets_no_users_from_another_user() -> Result {
        let nobody = Kuid::from_raw(kernel::bindings::kuid_t { val: 65534 });
        let own = link_of(Some(Kuid::current_euid()))?;
        own.filled();
        assert!(own.add_user().is_some());
        let other = link_of(Some(nobody))?;
        other.filled();
        assert!(other.add_user().is_none());
        Ok(())
    }

    #[test]
    fn of_a_kernel_consumer_is_found_by_the_kernel() -> Result {
        let link = link()?;
        link.filled();
        let caller = Caller::current();
        assert!((caller.is_trusted)() && link.may_connect(&caller));
        // Root, but without its rights: in a container.
        let stranger = Caller {
            is_trusted: || false,
            ..caller
        };
        assert!(!link.may_connect(&stranger));
        Ok(())
    }

    /// A refusal would be audited, as if the process had tried to use a capability.
    #[test]
    fn of_a_process_nobody_asks_for_a_capability() -> Result {
        static ASKED: Atomic<bool> = Atomic::new(false);
        ASKED.store(false, Release);
        let caller = Caller {
            is_trusted: || {
                ASKED.store(true, Release);
                false
            },
            ..Caller::current()
        };
        let own = link_of(Some(caller.user))?;
        own.filled();
        assert!(own.may_connect(&caller));
        let nobody = Kuid::from_raw(kernel::bindings::kuid_t { val: 65534 });
        let other = link_of(Some(nobody))?;
        other.filled();
        assert!(!other.may_connect(&caller) && !ASKED.load(Acquire));
        // Nor before there is a queue pair.
        let link = link()?;
        assert!(!link.may_connect(&caller) && !ASKED.load(Acquire));
        link.filled();
        assert!(!link.may_connect(&caller) && ASKED.load(Acquire));
        Ok(())
    }
}
