// SPDX-License-Identifier: GPL-2.0

//! The iWARP connection manager, as a driver meets it.
//!
//! What enters: its requests, functions of [`CmOps`]: `connect`, `accept` and `create_listen` with
//! a [`CmId`], `reject` with the name of a connection, `destroy_listen` with the driver's listener.
//! What leaves: events, raised on that [`CmId`].
//!
//! # Who owns what
//!
//! * A [`CmId`] is a counted reference. The driver may keep it as long as it likes; the connection
//!   manager frees the C object when the last reference is gone. Events that come after the
//!   consumer gave the object up are dropped by the connection manager.
//! * The queue pair named in `connect` and `accept` is referenced by the connection manager from
//!   before the call until it saw CLOSE (or a failed CONNECT_REPLY, or the object is destroyed).
//!   Destroying the queue pair waits for that, inside `kernel_ext`, after
//!   [`QpOps::destroy`](super::ops::QpOps::destroy). What the connection owes then is raised there,
//!   so that the wait ends even while the consumer's object lives on, as it does in a process that
//!   is killed: its queue pairs go first.
//! * A listener's CONNECT_REQUEST carries a number by which the driver names its connection. It
//!   comes back in `accept` or `reject`, or never: if there is no memory for the child object that
//!   the connection manager makes of the request, or the listener is destroyed before the request
//!   was looked at. Therefore the driver must not let a requested connection wait for `accept`
//!   without an end, nor count on `reject` for cleaning up when the device goes.
//!
//! # What must follow what
//!
//! The connection manager answers a wrong order with a BUG(), and an event that never comes by
//! waiting for ever in `rdma_destroy_id()`. So [`CmId`] keeps the order itself: an event out of
//! order is refused with `EINVAL`, and what is owed when a [`CmId`] is dropped is raised then. (One
//! that is dropped before its call returned makes the call fail.)
//!
//! | after | exactly one of | then |
//! |---|---|---|
//! | `connect` returned 0 | [`CmId::connect_reply`] | if it was a success: [`CmId::disconnect`] at most once, [`CmId::close`] once |
//! | `accept` returned 0 | [`CmId::established`] | the same |
//! | `create_listen` returned 0 | any number of [`CmId::connect_request`] | nothing, after `destroy_listen` |
//!
//! * Events may be raised before the call that gave the [`CmId`] returned; if one was, the call
//!   counts as successful whatever it returns.
//! * While a `connect` or `accept` waits for its first event, the consumer cannot destroy its
//!   object: the driver must bound that time.
//! * A failure between the return of `accept` and the first data is reported as established, then
//!   closed: there is no other way.
//! * A status of `-ECONNREFUSED` in a reply means that the peer refused, and is the only one with
//!   which the private data reaches the consumer; `-ECONNRESET` is a lost connection, `-ETIMEDOUT`
//!   a silent peer.
//! * `private_data`, `ird` and `ord` have eight bits each in an event: longer private data is
//!   refused, larger depths are cut to 255.
//! * A listener has room for as many unprocessed requests as its backlog; beyond,
//!   [`CmId::connect_request`] fails with `ENOMEM` and the driver tries again later.
//!
//! Context: events may be raised in any context. Requests come in process context, and may come
//! from inside a handler that an event caused, on the connection manager's own thread.
//!
//! C header: `include/rdma/iw_cm.h`.

use super::object::QpLink;
use crate::bindings;
use crate::net::SockAddr;
use core::num::NonZeroUsize;
use core::ptr::NonNull;
use kernel::error::to_result;
use kernel::ffi;
use kernel::prelude::*;
use kernel::sync::new_spinlock_irq;
use kernel::sync::Arc;
use kernel::sync::SpinLockIrq;

pub(super) mod requests;

pub use requests::CmOps;

/// What a consumer asks for in `connect` and `accept`.
#[derive(Clone, Copy, Debug)]
pub struct ConnParam<'a> {
    /// What the peer's consumer shall see.
    pub private_data: &'a [u8],
    /// How many Read Requests may be under way from here.
    pub ord: u32,
    /// How many Read Requests may be under way to here.
    pub ird: u32,
    /// The queue pair.
    pub qpn: u32,
}

/// How a `connect` ended.
#[derive(Clone, Copy, Debug)]
pub struct ConnectReply<'a> {
    /// The error if it failed.
    pub status: Result,
    /// The local end.
    pub local: SockAddr,
    /// The remote end.
    pub remote: SockAddr,
    /// What the peer's consumer sent.
    pub private_data: &'a [u8],
    /// How many Read Requests may be under way to the peer, as the peer sees it.
    pub ird: u32,
    /// How many Read Requests may be under way from the peer, as the peer sees it.
    pub ord: u32,
}

/// A peer that wants to connect.
#[derive(Clone, Copy, Debug)]
pub struct ConnectRequest<'a> {
    /// The local end.
    pub local: SockAddr,
    /// The remote end.
    pub remote: SockAddr,
    /// What the peer's consumer sent.
    pub private_data: &'a [u8],
    /// How many Read Requests the peer lets be under way to it.
    pub ird: u32,
    /// How many Read Requests the peer wants to have under way.
    pub ord: u32,
}

/// An endpoint of the connection manager: a connection or a listener.
///
/// Dropping it raises what is owed (see the [module](self)).
pub struct CmId {
    endpoint: Endpoint,
}

/// What a [`CmId`] stands for, also known to the queue pair of the connection.
///
/// # Invariants
///
/// `raw` is valid, and a reference to it is ours.
pub(super) struct Endpoint {
    raw: NonNull<bindings::iw_cm_id>,
    cell: Arc<CmPhaseCell>,
}

// SAFETY: The drop calls `rem_ref`, which counts atomically and may be called by any thread.
unsafe impl Send for Endpoint {}
// SAFETY: Through a shared reference the reference count is raised, which is atomic, the event
// handler is called, which takes a lock of its own, and fields are read that do not change.
unsafe impl Sync for Endpoint {}

/// Where an endpoint stands; decides which events are in order.
///
/// The lock is held while an event is handed over, so that two events never change places. The
/// connection manager takes its own lock inside and calls nothing back.
#[pin_data]
struct CmPhaseCell {
    #[pin]
    phase: SpinLockIrq<CmPhase>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum CmPhase {
    /// The [`CmId`] was dropped before the call that gave it returned.
    Abandoned,
    /// `accept` has not returned yet and raised nothing.
    AcceptCall,
    /// `accept` returned 0: ESTABLISHED is owed.
    Accepting,
    /// `connect` has not returned yet and raised nothing.
    ConnectCall,
    /// `connect` returned 0: a reply is owed.
    Connecting,
    /// The peer is closing: CLOSE is owed.
    Disconnected,
    /// Nothing is owed any more.
    Done,
    /// The connection is up: CLOSE is owed, and DISCONNECT is possible.
    Established,
    /// A listener.
    Listening,
}

impl CmPhaseCell {
    fn new(phase: CmPhase) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                phase <- new_spinlock_irq!(phase),
            }),
            GFP_KERNEL,
        )
    }
}

impl CmId {
    /// The local address the consumer named, after port mapping.
    pub fn local_addr(&self) -> Result<SockAddr> {
        // SAFETY: A reference wants memory that is valid and not written to: by the invariant of
        // `Endpoint` the object is valid, and the address does not change once the driver has it.
        SockAddr::from_raw(unsafe { &(*self.endpoint.raw.as_ptr()).m_local_addr })
    }

    /// The remote address the consumer named, after port mapping.
    pub fn remote_addr(&self) -> Result<SockAddr> {
        // SAFETY: A reference wants memory that is valid and not written to: by the invariant of
        // `Endpoint` the object is valid, and the address does not change once the driver has it.
        SockAddr::from_raw(unsafe { &(*self.endpoint.raw.as_ptr()).m_remote_addr })
    }

    /// The type of service, if the consumer set one.
    pub fn tos(&self) -> Option<u8> {
        // SAFETY: A reference wants memory that is valid and not written to: by the invariant of
        // `Endpoint` the object is valid, and the connection manager writes to it before the driver
        // has it and for an event of it, of which there is none before the driver has answered.
        let id = unsafe { self.endpoint.raw.as_ref() };
        id.tos_set().then_some(id.tos)
    }

    /// Whether an IPv6 listener shall take no IPv4.
    pub fn is_v6_only(&self) -> bool {
        // SAFETY: A reference wants memory that is valid and not written to: by the invariant of
        // `Endpoint` the object is valid, and the connection manager writes to it before the driver
        // has it and for an event of it, of which there is none before the driver has answered.
        unsafe { self.endpoint.raw.as_ref() }.afonly()
    }

    /// Reports how `connect` ended.
    ///
    /// # Errors
    ///
    /// * `EINVAL` if that is not what is owed, or the private data is too long.
    /// * `ENOMEM` if memory is short; the reply is still owed then.
    pub fn connect_reply(&self, reply: &ConnectReply<'_>) -> Result {
        let mut event = new_event(bindings::iw_cm_event_type_IW_CM_EVENT_CONNECT_REPLY);
        set_private_data(&mut event, reply.private_data)?;
        event.local_addr = reply.local.to_raw();
        event.remote_addr = reply.remote.to_raw();
        event.ird = depth(reply.ird);
        event.ord = depth(reply.ord);
        let next = match reply.status {
            Ok(()) => CmPhase::Established,
            Err(error) => {
                event.status = error.to_errno();
                CmPhase::Done
            }
        };
        self.endpoint.raise(
            &[CmPhase::ConnectCall, CmPhase::Connecting],
            next,
            &mut event,
        )
    }

    /// Reports that an accepted connection is up.
    ///
    /// # Errors
    ///
    /// * `EINVAL` if that is not what is owed.
    /// * `ENOMEM` if memory is short; it is still owed then.
    pub fn established(&self, ird: u32, ord: u32) -> Result {
        let mut event = new_event(bindings::iw_cm_event_type_IW_CM_EVENT_ESTABLISHED);
        event.ird = depth(ird);
        event.ord = depth(ord);
        self.endpoint.raise(
            &[CmPhase::AcceptCall, CmPhase::Accepting],
            CmPhase::Established,
            &mut event,
        )
    }

    /// Reports that the peer is closing.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the connection is not up, or it was reported already.
    pub fn disconnect(&self) -> Result {
        let mut event = new_event(bindings::iw_cm_event_type_IW_CM_EVENT_DISCONNECT);
        self.endpoint
            .raise(&[CmPhase::Established], CmPhase::Disconnected, &mut event)
    }

    /// Reports that the connection is gone; the queue pair is in error by then.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the connection was not up, or it was reported already.
    pub fn close(&self) -> Result {
        self.endpoint.close()
    }

    /// Reports a peer that wants to connect. The name that the connection is given comes back in
    /// `accept` or `reject`, or never: when its listener is destroyed, the connection manager
    /// forgets what it has not looked at.
    ///
    /// # Errors
    ///
    /// * `EINVAL` if this is no listener, or the private data is too long.
    /// * `ENOMEM` if the backlog is full or memory is short.
    pub fn connect_request(&self, request: &ConnectRequest<'_>, name: NonZeroUsize) -> Result {
        if *self.endpoint.cell.phase.lock() != CmPhase::Listening {
            return Err(EINVAL);
        }
        let mut event = new_event(bindings::iw_cm_event_type_IW_CM_EVENT_CONNECT_REQUEST);
        set_private_data(&mut event, request.private_data)?;
        event.local_addr = request.local.to_raw();
        event.remote_addr = request.remote.to_raw();
        event.ird = depth(request.ird);
        event.ord = depth(request.ord);
        event.provider_data = core::ptr::without_provenance_mut(name.get());
        self.endpoint.send(&mut event)
    }

    /// Tells the queue pair of the connection that begins.
    fn attach(&self, qp: Option<QpLink>) -> Result {
        qp.ok_or(EINVAL)?.attach(self.endpoint.clone())
    }
}

impl Drop for CmId {
    fn drop(&mut self) {
        self.endpoint.settle();
    }
}

impl Endpoint {
    /// Takes a reference.
    ///
    /// # Safety
    ///
    /// `raw` must be valid during the call.
    unsafe fn new(raw: NonNull<bindings::iw_cm_id>, cell: Arc<CmPhaseCell>) -> Self {
        // SAFETY: A field of `raw`, which is valid during the call, as the caller says; it is set
        // for life.
        if let Some(add_ref) = unsafe { (*raw.as_ptr()).add_ref } {
            // SAFETY: `add_ref` wants the valid object that it is of.
            unsafe { add_ref(raw.as_ptr()) };
        }
        // INVARIANT: The reference was just taken.
        Self { raw, cell }
    }

    /// See [`CmId::close`].
    fn close(&self) -> Result {
        let mut event = new_event(bindings::iw_cm_event_type_IW_CM_EVENT_CLOSE);
        self.raise(
            &[CmPhase::Established, CmPhase::Disconnected],
            CmPhase::Done,
            &mut event,
        )
    }

    /// Raises an event if it is in order.
    fn raise(&self, from: &[CmPhase], to: CmPhase, event: &mut bindings::iw_cm_event) -> Result {
        let mut phase = self.cell.phase.lock();
        if !from.contains(&*phase) {
            return Err(EINVAL);
        }
        // If that fails the event is still owed.
        self.send(event)?;
        *phase = to;
        Ok(())
    }

    /// Hands an event over.
    fn send(&self, event: &mut bindings::iw_cm_event) -> Result {
        // SAFETY: The field of an object that is valid, by the type's invariant; the handler is set
        // for life.
        let handler = unsafe { (*self.raw.as_ptr()).event_handler }.ok_or(EINVAL)?;
        // SAFETY: Our reference keeps the object alive. The handler copies the event and its
        // private data.
        to_result(unsafe { handler(self.raw.as_ptr(), event) })
    }

    /// Raises what is still owed, since nobody will do so later.
    ///
    /// The connection manager has kept room for one event of each kind since `connect` or `accept`,
    /// and these need no memory, so they cannot fail.
    ///
    /// Context: any.
    pub(super) fn settle(&self) {
        {
            let mut phase = self.cell.phase.lock();
            if matches!(*phase, CmPhase::AcceptCall | CmPhase::ConnectCall) {
                // Nothing is owed yet: the result of the call tells the consumer.
                *phase = CmPhase::Abandoned;
            }
        }
        let mut reply = new_event(bindings::iw_cm_event_type_IW_CM_EVENT_CONNECT_REPLY);
        reply.status = ECONNRESET.to_errno();
        let _ = self.raise(&[CmPhase::Connecting], CmPhase::Done, &mut reply);
        let mut up = new_event(bindings::iw_cm_event_type_IW_CM_EVENT_ESTABLISHED);
        let _ = self.raise(&[CmPhase::Accepting], CmPhase::Established, &mut up);
        let _ = self.close();
    }
}

impl Clone for Endpoint {
    fn clone(&self) -> Self {
        // SAFETY: `new` wants an object that is valid during the call: by the type's invariant it
        // is.
        unsafe { Self::new(self.raw, self.cell.clone()) }
    }
}

/// What a [`CmId`] calls is a part of that module, which is not to go before us: so we need
/// something it exports.
#[used]
static STAYS: unsafe extern "C" fn(ffi::c_int) -> *const ffi::c_char = bindings::iwcm_reject_msg;

impl Drop for Endpoint {
    fn drop(&mut self) {
        // SAFETY: A field of the object, which is valid by the type's invariant; it is set for
        // life.
        if let Some(rem_ref) = unsafe { (*self.raw.as_ptr()).rem_ref } {
            // SAFETY: The reference is ours.
            unsafe { rem_ref(self.raw.as_ptr()) };
        }
    }
}

/// An event without content.
fn new_event(kind: bindings::iw_cm_event_type) -> bindings::iw_cm_event {
    bindings::iw_cm_event {
        event: kind,
        ..Default::default()
    }
}

/// Points an event at private data, which is copied before the handler returns.
fn set_private_data(event: &mut bindings::iw_cm_event, data: &[u8]) -> Result {
    event.private_data_len = u8::try_from(data.len())?;
    event.private_data = data.as_ptr().cast_mut().cast();
    Ok(())
}

/// A depth, cut to what an event can hold.
fn depth(value: u32) -> u8 {
    u8::try_from(value).unwrap_or(u8::MAX)
}
