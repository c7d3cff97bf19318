// SPDX-License-Identifier: GPL-2.0

//! Links of queue pairs, through which the connection manager also finds them.

use super::ObjectPtr;
use super::QpId;
use crate::bindings;
use crate::compat::new_spinlock_irq;
use crate::compat::SpinLockIrq;
use crate::rdma::iw_cm::Endpoint;
use crate::rdma::types::QpEvent;
use crate::sync::BhRevocable;
use core::ptr::NonNull;
use kernel::prelude::*;
use kernel::sync::atomic::Acquire;
use kernel::sync::atomic::Atomic;
use kernel::sync::atomic::Full;
use kernel::sync::atomic::Relaxed;
use kernel::sync::atomic::Release;
use kernel::sync::Arc;
use kernel::sync::Completion;
use kernel::task::Kuid;

/// Reports from the driver's queue pair to its consumer.
#[derive(Clone)]
pub struct QpLink(Arc<QpLinkInner>);

#[pin_data]
struct QpLinkInner {
    object: BhRevocable<ObjectPtr<bindings::ib_qp>>,
    id: QpId,
    /// The user whose process created the queue pair; [`None`] for a kernel consumer.
    maker: Option<Kuid>,
    /// Whether the C object is complete, so that the connection manager may find it.
    filled: Atomic<bool>,
    /// The references of the connection manager, plus one of the link's own.
    users: Atomic<i32>,
    #[pin]
    unused: Completion,
    #[pin]
    connection: SpinLockIrq<Connection>,
}

/// The connection of a queue pair.
enum Connection {
    /// No connection was begun.
    None,
    /// The connection that was begun last.
    Begun(Endpoint),
    /// The queue pair is being destroyed: no connection may begin any more.
    Over,
}

/// The user on whose behalf the connection manager works.
///
/// A process names a queue pair by a number, which it can guess. So the process must belong to the
/// user that created the queue pair; the same process is not required, because a daemon may fork
/// after creating it. The kernel connects a kernel consumer's queue pair on a thread of its own, or
/// on the thread of a process that requested it (`nvme connect`, a mount, iscsid). The connection
/// manager does not tell these from a request through `rdma_ucm`; but a process that may configure
/// a kernel consumer may administer the network.
struct Caller {
    user: Kuid,
    /// Called for a kernel consumer's queue pair only, because a refusal is audited.
    is_trusted: fn() -> bool,
}

impl Caller {
    fn current() -> Self {
        Self {
            user: Kuid::current_euid(),
            is_trusted: || {
                // SAFETY: The helper has no requirements on the thread.
                unsafe { riwarp_helper_is_trusted() }
            },
        }
    }
}

extern "C" {
    fn riwarp_helper_is_trusted() -> bool;
}

impl QpLink {
    /// Creates the link of a queue pair that is being created, for a process of the user `maker` or
    /// for a kernel consumer. The connection manager does not find the queue pair before
    /// [`Self::filled`].
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

    /// Creates the link of a queue pair without a consumer, for tests.
    #[cfg(CONFIG_KUNIT = "y")]
    pub fn dead() -> Result<Self> {
        // SAFETY: The link is closed at once, so nothing uses the pointer.
        let link = unsafe { Self::new(NonNull::dangling(), None) }?;
        link.close();
        Ok(link)
    }

    /// Reports an event to the consumer.
    ///
    /// Context: any; the caller must hold no lock that a verb on the queue pair takes.
    pub fn event(&self, event: QpEvent) {
        let Some(qp) = self.0.object.try_access() else {
            return;
        };
        let qp = qp.0.as_ptr();
        // SAFETY: The fields of a valid queue pair: the caller of `new` keeps `qp` valid until it
        // is revoked, and the guard delays that.
        let (handler, context, device) =
            unsafe { ((*qp).event_handler, (*qp).qp_context, (*qp).device) };
        let mut event = bindings::ib_event {
            device,
            event: event.to_raw(),
            ..Default::default()
        };
        event.element.qp = qp;
        if let Some(handler) = handler {
            // SAFETY: The handler is the consumer's own for this queue pair; it does not keep the
            // event.
            unsafe { handler(&mut event, context) };
        }
    }

    /// Returns the identity that completions carry.
    pub fn id(&self) -> QpId {
        self.0.id
    }

    /// Lets the connection manager find the queue pair, whose C object is now filled.
    ///
    /// The driver finds the queue pair by its number before this: it sends the number to the
    /// process while creating the queue pair, and the process can delay that at will.
    pub(in crate::rdma) fn filled(&self) {
        // ORDERING: the C object was filled before; pairs with `Acquire` in `may_connect`.
        self.0.filled.store(true, Release);
    }

    /// Returns whether the connection manager may find the queue pair on behalf of `caller`.
    fn may_connect(&self, caller: &Caller) -> bool {
        // ORDERING: what is done with the C object comes after; pairs with `Release` in `filled`.
        self.0.filled.load(Acquire)
            && match self.0.maker {
                Some(maker) => maker == caller.user,
                None => (caller.is_trusted)(),
            }
    }

    /// Returns the C object with one more reference of the connection manager.
    ///
    /// Returns `None` if the object is not filled yet, the link is closed, or the calling process
    /// has no right to it.
    ///
    /// Context: any but hard interrupt; interrupts may be off.
    pub(in crate::rdma) fn add_user(&self) -> Option<NonNull<bindings::ib_qp>> {
        // The guard is held until the reference is counted: destroying the queue pair first revokes
        // the pointer, then waits for all counted references.
        let qp = self.0.object.try_access()?;
        if !self.may_connect(&Caller::current()) {
            return None;
        }
        // ORDERING: none of its own: the end of the guard, a release, pairs with the revocation, so
        // the destruction, which waits after it, sees this count.
        self.0.users.fetch_add(1, Relaxed);
        Some(qp.0)
    }

    /// Drops a reference of the connection manager.
    pub(in crate::rdma) fn remove_user(&self) {
        // ORDERING: `Full` pairs with the same of the last user: what each did with the queue pair
        // comes before `complete_all`, for which the destruction waits.
        if self.0.users.fetch_sub(1, Full) == 1 {
            self.0.unused.complete_all();
        }
    }

    /// Records a connection that begins; returns the one that was begun before.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the queue pair is still being created, is being destroyed, or belongs to another
    /// user.
    pub(in crate::rdma) fn attach(&self, endpoint: Endpoint) -> Result<Option<Endpoint>> {
        // Checked again: if the number was reused since `add_user`, this is another queue pair.
        if !self.may_connect(&Caller::current()) {
            return Err(EINVAL);
        }
        let mut connection = self.0.connection.lock();
        if let Connection::Over = *connection {
            return Err(EINVAL);
        }
        match core::mem::replace(&mut *connection, Connection::Begun(endpoint)) {
            Connection::Begun(before) => Ok(Some(before)),
            Connection::None | Connection::Over => Ok(None),
        }
    }

    /// Records that the connection did not begin, and that `before` was the last one, unless
    /// another one has begun or the queue pair is being destroyed.
    pub(in crate::rdma) fn detach(&self, endpoint: &Endpoint, before: Option<Endpoint>) {
        let before = before.map_or(Connection::None, Connection::Begun);
        let _drop_outside_lock = {
            let mut connection = self.0.connection.lock();
            match &*connection {
                Connection::Begun(last) if last.is(endpoint) => {
                    core::mem::replace(&mut *connection, before)
                }
                _ => before,
            }
        };
    }

    /// Returns the connection that was begun last, if it is that of this object.
    pub(in crate::rdma) fn connection_of(&self, raw: *mut bindings::iw_cm_id) -> Option<Endpoint> {
        match &*self.0.connection.lock() {
            Connection::Begun(last) if last.is_of(raw) => Some(last.clone()),
            _ => None,
        }
    }

    /// Drops the link's own reference and waits until the connection manager has none.
    ///
    /// The connection manager drops its reference once it learns that the connection has ended, so
    /// this raises the outstanding events. The link must be closed before, so that the connection
    /// manager takes no new references.
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

    /// Closes the link; once this returned, no handler runs and the connection manager does not
    /// find the queue pair.
    pub(in crate::rdma) fn close(&self) {
        self.0.object.revoke();
    }
}

#[kernel::prelude::kunit_tests(riwarp_qp_link)]
mod tests {
    use super::*;

    /// A link to a queue pair that nothing accesses.
    fn link_of(maker: Option<Kuid>) -> Result<QpLink> {
        // SAFETY: The pointer is only passed on: the tests raise no event.
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
        let nobody = Kuid::from_raw(bindings::kuid_t { val: 65534 });
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
        // Root without its capabilities, as in a container.
        let stranger = Caller {
            is_trusted: || false,
            ..caller
        };
        assert!(!link.may_connect(&stranger));
        Ok(())
    }

    /// A refusal would be audited as an attempt to use a capability.
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
        let nobody = Kuid::from_raw(bindings::kuid_t { val: 65534 });
        let other = link_of(Some(nobody))?;
        other.filled();
        assert!(!other.may_connect(&caller) && !ASKED.load(Acquire));
        // Nor before the queue pair is filled.
        let link = link()?;
        assert!(!link.may_connect(&caller) && !ASKED.load(Acquire));
        link.filled();
        assert!(!link.may_connect(&caller) && ASKED.load(Acquire));
        Ok(())
    }
}
