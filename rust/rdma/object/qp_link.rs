// SPDX-License-Identifier: GPL-2.0

//! Links of queue pairs, through which the connection manager also finds them.
//!
//! The connection manager keeps a reference to a queue pair as long as its own object likes, which
//! may be as long as a consumer does not destroy that. So it gets no pointer to the structure that
//! the consumer owns, but one to a [`CmQp`], which is part of the link and counted with it:
//! destroying a queue pair closes the link and waits for nobody.

use super::ObjectPtr;
use super::QpId;
use super::QpObject;
use crate::bindings;
use crate::compat::new_spinlock_irq;
use crate::compat::SpinLockIrq;
use crate::rdma::device::try_get_device;
use crate::rdma::iw_cm::Endpoint;
use crate::rdma::ops::Driver;
use crate::rdma::settings::caller_is_admin;
use crate::rdma::types::QpEvent;
use crate::sync::BhRevocable;
use core::ptr::NonNull;
use kernel::container_of;
use kernel::prelude::*;
use kernel::sync::atomic::Acquire;
use kernel::sync::atomic::Atomic;
use kernel::sync::atomic::Release;
use kernel::sync::Arc;
use kernel::sync::ArcBorrow;
use kernel::task::Kuid;
use kernel::types::Opaque;

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
    #[pin]
    cm_qp: CmQp,
    #[pin]
    connection: SpinLockIrq<Connection>,
}

/// What the connection manager takes for a queue pair.
///
/// `iwcm.c` passes it to `iw_add_ref`, to `iw_rem_ref` and, with the new state alone, to
/// `ib_modify_qp()`. That reads `real_qp`, and of the object behind it `device`, `port`, `counter`,
/// `qp_type` and `qp_sec` (`verbs.c`, `security.c`), and passes it to `ops.modify_qp`. A port, a
/// counter and security belong to other networks: as in a queue pair that only `rdma_cm` connects,
/// they are zero.
///
/// # Invariants
///
/// Its memory is that of a `struct ib_qp`, none of whose fields changes. `real_qp` points to
/// itself. `pd` is null, which it is in no queue pair that `create_qp` has filled.
#[pin_data]
struct CmQp {
    #[pin]
    raw: Opaque<bindings::ib_qp>,
}

// SAFETY: Nothing in it belongs to a thread.
unsafe impl Send for CmQp {}
// SAFETY: By the type's invariant it is only read.
unsafe impl Sync for CmQp {}

impl CmQp {
    fn new(device: *mut bindings::ib_device) -> impl PinInit<Self> {
        pin_init!(Self {
            // INVARIANT: All other fields, `pd` among them, are zero.
            raw <- Opaque::ffi_init(move |raw: *mut bindings::ib_qp| {
                let content = bindings::ib_qp {
                    device,
                    real_qp: raw,
                    qp_type: bindings::ib_qp_type_IB_QPT_RC,
                    ..Default::default()
                };
                // SAFETY: By the contract of `ffi_init`, `raw` is valid for writes.
                unsafe { raw.write(content) };
            }),
        })
    }
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
            is_trusted: caller_is_admin,
        }
    }
}

impl QpLink {
    /// Creates the link of a queue pair that is being created, for a process of the user `maker` or
    /// for a kernel consumer. The connection manager does not find the queue pair before
    /// [`Self::filled`].
    ///
    /// # Safety
    ///
    /// `qp` must stay valid until [`Self::close`] returned, and `device`, its device, as long.
    pub(in crate::rdma) unsafe fn new(
        qp: NonNull<bindings::ib_qp>,
        device: *mut bindings::ib_device,
        maker: Option<Kuid>,
    ) -> Result<Self> {
        let inner = Arc::pin_init(
            pin_init!(QpLinkInner {
                object: BhRevocable::new(ObjectPtr(qp)),
                id: QpId(qp.as_ptr().addr()),
                maker,
                filled: Atomic::new(false),
                cm_qp <- CmQp::new(device),
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
        let link = unsafe { Self::new(NonNull::dangling(), core::ptr::null_mut(), None) }?;
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

    /// Returns what the connection manager takes for the queue pair, with a reference that it owns
    /// from now on, and gives back by [`Self::put_cm_qp`].
    ///
    /// The reference also keeps the device registered, whose operations the connection manager
    /// calls: `rdma_cm` may have let go of the device by then, if its consumer's handler has asked
    /// for the end of the connection. It never keeps the device for long: before `ib_core` waits
    /// for such references, `rdma_cm` has destroyed its objects of the device.
    ///
    /// Returns `None` if the object is not filled yet, the link is closed, the calling process has
    /// no right to it, or the device is being removed.
    ///
    /// Context: any but hard interrupt; interrupts may be off.
    pub(in crate::rdma) fn get_cm_qp(&self) -> Option<NonNull<bindings::ib_qp>> {
        // The guard keeps the queue pair, and so its device, until the reference is taken.
        let _open = self.0.object.try_access()?;
        if !self.may_connect(&Caller::current()) {
            return None;
        }
        let qp = self.cm_qp();
        // SAFETY: A field of the link's own structure, which never changes.
        let device = unsafe { (*qp.as_ptr()).device };
        // SAFETY: `try_get_device` requires a device that is not freed: the caller of `new` keeps
        // it until the link is closed.
        if !unsafe { try_get_device(device) } {
            return None;
        }
        // `put_cm_qp` takes it again.
        let _owned = Arc::into_raw(self.0.clone());
        Some(qp)
    }

    /// Returns what the connection manager takes for the queue pair, without a reference.
    pub(in crate::rdma) fn cm_qp(&self) -> NonNull<bindings::ib_qp> {
        let inner = Arc::as_ptr(&self.0);
        // SAFETY: The field lies inside the allocation that the reference keeps.
        let raw = unsafe { &raw const (*inner).cm_qp.raw };
        // SAFETY: The address of a field is not null.
        unsafe { NonNull::new_unchecked(Opaque::cast_into(raw)) }
    }

    /// Returns the link of what [`Self::get_cm_qp`] has returned, or `None` for the structure of a
    /// queue pair.
    ///
    /// # Safety
    ///
    /// `qp` must be either a queue pair that was filled and is not emptied meanwhile, or what
    /// [`Self::get_cm_qp`] has returned, with its reference not given back meanwhile.
    pub(in crate::rdma) unsafe fn of_cm_qp(qp: *mut bindings::ib_qp) -> Option<Self> {
        // SAFETY: A field of a structure that the caller guarantees is valid; it does not change.
        if !unsafe { (*qp).pd }.is_null() {
            return None;
        }
        // SAFETY: `inner_of` requires what `get_cm_qp` has returned, with its reference: since `pd`
        // is null, `qp` is no queue pair that was filled, and the caller guarantees the rest.
        let inner = unsafe { Self::inner_of(qp) };
        // SAFETY: `from_raw` requires a pointer of `into_raw` whose reference is not dropped
        // meanwhile: `get_cm_qp` made it so, and the caller guarantees the rest.
        Some(Self(unsafe { ArcBorrow::from_raw(inner) }.into()))
    }

    /// Takes back the reference of [`Self::get_cm_qp`].
    ///
    /// Context: process.
    ///
    /// # Safety
    ///
    /// The caller must own the reference, with which `qp` was returned.
    pub(in crate::rdma) unsafe fn put_cm_qp(qp: NonNull<bindings::ib_qp>) {
        // SAFETY: A field of the link's structure, which the caller's reference keeps.
        let device = unsafe { (*qp.as_ptr()).device };
        // SAFETY: `inner_of` requires what `get_cm_qp` has returned, with its reference: the caller
        // guarantees that.
        let inner = unsafe { Self::inner_of(qp.as_ptr()) };
        // SAFETY: `from_raw` requires a pointer of `into_raw` and takes over its reference:
        // `get_cm_qp` made it so, and the caller owns the reference.
        drop(unsafe { Arc::from_raw(inner) });
        // Last, since the device may go afterwards, and the module behind it.
        // SAFETY: `ib_device_put()` drops a reference, which `get_cm_qp` has taken.
        unsafe { bindings::ib_device_put(device) };
    }

    /// # Safety
    ///
    /// `qp` must be what [`Self::get_cm_qp`] has returned, with its reference not given back.
    unsafe fn inner_of(qp: *mut bindings::ib_qp) -> *const QpLinkInner {
        let raw = qp.cast::<Opaque<bindings::ib_qp>>();
        // SAFETY: `container_of!` requires a pointer to a field of such a structure: the caller
        // guarantees that it is that of a `CmQp`.
        let cm_qp = unsafe { container_of!(raw, CmQp, raw) };
        // SAFETY: `container_of!` requires a pointer to a field of such a structure: a `CmQp` is
        // made only in a `QpLinkInner`.
        unsafe { container_of!(cm_qp, QpLinkInner, cm_qp) }
    }

    /// Returns the driver's object of the queue pair, unless the link is closed.
    ///
    /// # Safety
    ///
    /// The link must be one of a queue pair of `T`, and [`Self::filled`].
    pub(in crate::rdma) unsafe fn object<T: Driver>(&self) -> Option<Arc<T::Qp>> {
        let qp = self.0.object.try_access()?;
        // SAFETY: `arc` requires a structure that was filled and is not emptied meanwhile: the
        // caller guarantees the first, and `destroy_qp` empties it after it has closed the link,
        // for which the guard is waited for.
        Some(unsafe { QpObject::<T>::arc(qp.0.as_ptr()) }.clone())
    }

    /// Records a connection that begins; returns the one that was begun before.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the queue pair is being destroyed.
    pub(in crate::rdma) fn attach(&self, endpoint: Endpoint) -> Result<Option<Endpoint>> {
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

    /// Closes the link; once this returned, no handler runs, and the connection manager neither
    /// finds the queue pair nor changes it by what it still has.
    ///
    /// Raises the events that the connection has not raised yet, so that the connection manager
    /// gives back what it has; nobody waits for that.
    ///
    /// Context: process.
    pub(in crate::rdma) fn close(&self) {
        self.0.object.revoke();
        let last = core::mem::replace(&mut *self.0.connection.lock(), Connection::Over);
        if let Connection::Begun(endpoint) = last {
            endpoint.settle();
        }
    }
}

#[kernel::prelude::kunit_tests(riwarp_qp_link)]
mod tests {
    use super::*;
    use core::mem::MaybeUninit;
    use kernel::sync::atomic::Relaxed;

    /// A registered device, as far as its references are concerned.
    struct Registered(KBox<MaybeUninit<Opaque<bindings::ib_device>>>);

    impl Registered {
        fn new() -> Result<Self> {
            let device = KBox::new_uninit(GFP_KERNEL | __GFP_ZERO)?;
            let this = Self(device);
            this.references().store(1, Relaxed);
            Ok(this)
        }

        fn raw(&self) -> *mut bindings::ib_device {
            Opaque::cast_into(self.0.as_ptr())
        }

        fn references(&self) -> &Atomic<i32> {
            // SAFETY: The field lies inside the allocation, and only atomic operations use it.
            unsafe { Atomic::from_ptr(&raw mut (*self.raw()).refcount.refs.counter) }
        }

        /// A link to a queue pair that nothing accesses.
        fn link_of(&self, maker: Option<Kuid>) -> Result<QpLink> {
            // SAFETY: The pointer is only passed on: the tests raise no event and reach no object.
            unsafe { QpLink::new(NonNull::dangling(), self.raw(), maker) }
        }

        fn link(&self) -> Result<QpLink> {
            self.link_of(None)
        }
    }

    /// Gives back what `get_cm_qp` returned.
    fn put_cm_qp(qp: NonNull<bindings::ib_qp>) {
        // SAFETY: Each test gives back what it got, once.
        unsafe { QpLink::put_cm_qp(qp) };
    }

    #[test]
    fn qp_link_has_no_cm_qp_before_it_is_filled() -> Result {
        let device = Registered::new()?;
        let link = device.link()?;
        assert!(link.get_cm_qp().is_none());
        link.filled();
        let given = link.get_cm_qp().ok_or(EINVAL)?;
        assert_eq!(given, link.cm_qp());
        put_cm_qp(given);
        Ok(())
    }

    #[test]
    fn qp_link_has_no_cm_qp_once_it_is_closed() -> Result {
        let device = Registered::new()?;
        let link = device.link()?;
        link.filled();
        link.close();
        assert!(link.get_cm_qp().is_none());
        Ok(())
    }

    #[test]
    fn qp_link_has_no_cm_qp_after_device_removal() -> Result {
        let device = Registered::new()?;
        let link = device.link()?;
        link.filled();
        device.references().store(0, Relaxed);
        assert!(link.get_cm_qp().is_none());
        Ok(())
    }

    /// What `ib_modify_qp()` reads.
    #[test]
    fn cm_qp_is_its_own_real_one() -> Result {
        let device = Registered::new()?;
        let link = device.link()?;
        link.filled();
        let given = link.get_cm_qp().ok_or(EINVAL)?;
        // SAFETY: It is valid until it is given back, and only read.
        let qp = unsafe { given.as_ref() };
        assert_eq!((qp.real_qp, qp.device), (given.as_ptr(), device.raw()));
        assert_eq!((qp.qp_type, qp.port), (bindings::ib_qp_type_IB_QPT_RC, 0));
        assert!(qp.counter.is_null() && qp.qp_sec.is_null());
        put_cm_qp(given);
        Ok(())
    }

    #[test]
    fn cm_qp_outlives_the_queue_pair_and_holds_the_device() -> Result {
        let device = Registered::new()?;
        let link = device.link()?;
        link.filled();
        let first = link.get_cm_qp().ok_or(EINVAL)?;
        let second = link.get_cm_qp().ok_or(EINVAL)?;
        assert_eq!(first, second);
        // Nobody waits.
        link.close();
        drop(link);
        put_cm_qp(first);
        assert_eq!(device.references().load(Relaxed), 2);
        {
            // SAFETY: The second reference is not given back.
            let found = unsafe { QpLink::of_cm_qp(second.as_ptr()) }.ok_or(EINVAL)?;
            assert_eq!(found.cm_qp(), second);
            assert!(found.0.object.try_access().is_none());
        }
        put_cm_qp(second);
        assert_eq!(device.references().load(Relaxed), 1);
        Ok(())
    }

    #[test]
    fn qp_link_has_no_cm_qp_for_other_user() -> Result {
        let device = Registered::new()?;
        let nobody = Kuid::from_raw(bindings::kuid_t { val: 65534 });
        let own = device.link_of(Some(Kuid::current_euid()))?;
        own.filled();
        put_cm_qp(own.get_cm_qp().ok_or(EINVAL)?);
        let other = device.link_of(Some(nobody))?;
        other.filled();
        assert!(other.get_cm_qp().is_none());
        Ok(())
    }

    #[test]
    fn kernel_consumer_qp_is_found_by_kernel() -> Result {
        let device = Registered::new()?;
        let link = device.link()?;
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
    fn process_qp_lookup_checks_no_capability() -> Result {
        static ASKED: Atomic<bool> = Atomic::new(false);
        ASKED.store(false, Release);
        let caller = Caller {
            is_trusted: || {
                ASKED.store(true, Release);
                false
            },
            ..Caller::current()
        };
        let device = Registered::new()?;
        let own = device.link_of(Some(caller.user))?;
        own.filled();
        assert!(own.may_connect(&caller));
        let nobody = Kuid::from_raw(bindings::kuid_t { val: 65534 });
        let other = device.link_of(Some(nobody))?;
        other.filled();
        assert!(!other.may_connect(&caller) && !ASKED.load(Acquire));
        // Nor before the queue pair is filled.
        let link = device.link()?;
        assert!(!link.may_connect(&caller) && !ASKED.load(Acquire));
        link.filled();
        assert!(!link.may_connect(&caller) && ASKED.load(Acquire));
        Ok(())
    }
}
