// SPDX-License-Identifier: GPL-2.0

//! The driver's interface to the iWARP connection manager.
//!
//! The connection manager calls the functions of [`CmOps`]: `connect`, `accept` and `create_listen`
//! with a [`CmId`], `reject` with the number of a connection, `destroy_listen` with the driver's
//! listener. The driver raises events on the [`CmId`].
//!
//! # Who owns what
//!
//! * A [`CmId`] is a counted reference that the driver may keep as long as it likes; the connection
//!   manager frees the C object with the last reference. It drops events that come after the
//!   consumer destroyed the object.
//! * The connection manager holds a reference for the queue pair named in `connect` and `accept`,
//!   from before the call until CLOSE, a failed CONNECT_REPLY or the destruction of the object. If
//!   a consumer rejects what it has accepted, only the destruction is left, which may come late or
//!   wait for the end of the process. So the reference is not to the queue pair but to its
//!   [`QpLink`], and what the connection manager takes for the queue pair is a part of that.
//!   Destroying a queue pair raises the events that its connection still owes and waits for no
//!   reference. As long as one exists, the device stays registered.
//! * A listener's CONNECT_REQUEST carries a number by which the driver identifies its connection.
//!   The number comes back in `accept` or `reject`. It never comes back if the connection manager
//!   has no memory for the child object of the request, or if the listener is destroyed before the
//!   request was handled. Therefore the driver must bound the time that a requested connection
//!   waits for `accept`, and must not rely on `reject` for cleanup when the device is removed.
//!
//! # Order of events
//!
//! On a wrong order the connection manager hits a BUG(); on a missing event it waits forever in
//! `rdma_destroy_id()`. So [`CmId`] enforces the order: it refuses an event out of order with
//! `EINVAL`, and when dropped raises the events that are still owed. (If it is dropped before its
//! call returned, the call fails.)
//!
//! | after | come |
//! |---|---|
//! | `connect` returned 0 | one [`CmId::connect_reply`]; if that was a success, the end |
//! | `accept` returned 0 | one [`CmId::established`], then the end |
//! | `create_listen` returned 0 | any number of [`CmId::connect_request`] until `destroy_listen` |
//!
//! The end is [`CmId::disconnect`] at most once, then [`CmId::close`] once.
//!
//! * The driver may raise events before the call that gave the [`CmId`] returned; the call then
//!   counts as successful whatever it returns.
//! * While a `connect` or `accept` waits for its first event, the consumer cannot destroy its
//!   object: the driver must bound that time.
//! * A failure between the return of `accept` and the first data is reported as established, then
//!   closed; the connection manager has no other event for it.
//! * A status of `-ECONNREFUSED` in a reply means that the peer refused; only with it does the
//!   private data reach the consumer. `-ECONNRESET` means a lost connection, `-ETIMEDOUT` a peer
//!   that does not answer.
//! * An event holds the length of `private_data`, `ird` and `ord` in eight bits each: longer
//!   private data is refused, larger depths are cut to 255.
//! * A listener queues as many unprocessed requests as its backlog; beyond that,
//!   [`CmId::connect_request`] fails with `ENOMEM` and the driver retries later.
//!
//! Context: events may be raised in any context. The functions of [`CmOps`] run in process context,
//! possibly inside a handler that an event triggered, on the connection manager's own thread.
//!
//! C header: `include/rdma/iw_cm.h`.

use super::object::QpLink;
use crate::bindings;
use crate::compat::new_spinlock_irq;
use crate::compat::SpinLockIrq;
use crate::compat::ECONNRESET;
use crate::net::Family;
use crate::net::SockAddr;
use core::num::NonZeroUsize;
use core::ptr::NonNull;
use kernel::error::to_result;
use kernel::ffi;
use kernel::prelude::*;
use kernel::sync::Arc;

mod calls;
pub(super) mod requests;

pub(super) use calls::QpCalls;
pub use requests::CmOps;
use requests::RequestState;

/// The consumer's parameters of `connect` and `accept`.
#[derive(Clone, Copy, Debug)]
pub struct ConnParam<'a> {
    /// Private data for the peer's consumer.
    pub private_data: &'a [u8],
    /// The ORD: how many Read Requests this end may have outstanding.
    pub ord: u32,
    /// The IRD: how many Read Requests the peer may have outstanding.
    pub ird: u32,
    /// The number of the queue pair.
    pub qpn: u32,
}

/// The result of a `connect`.
#[derive(Clone, Copy, Debug)]
pub struct ConnectReply<'a> {
    /// Success, or the error.
    pub status: Result,
    /// Private data from the peer's consumer.
    pub private_data: &'a [u8],
    /// The IRD of the peer, as far as this end may use it.
    pub ird: u32,
    /// The ORD of the peer.
    pub ord: u32,
}

/// A connection request of a peer.
#[derive(Clone, Copy, Debug)]
pub struct ConnectRequest<'a> {
    /// The local end.
    pub local: SockAddr,
    /// The remote end.
    pub remote: SockAddr,
    /// Private data from the peer's consumer.
    pub private_data: &'a [u8],
    /// The IRD of the peer.
    pub ird: u32,
    /// The ORD of the peer.
    pub ord: u32,
}

/// An endpoint of the connection manager: a connection or a listener.
///
/// Dropping it raises the events that are still owed (see the [module](self)).
pub struct CmId {
    endpoint: Endpoint,
    /// The addresses as the call had them: the connection manager replaces those of its object when
    /// it handles a successful reply.
    local: Result<SockAddr>,
    remote: Result<SockAddr>,
}

/// The connection manager's object behind a [`CmId`]; the queue pair of the connection holds one
/// too.
///
/// # Invariants
///
/// `raw` is valid, and this value owns a reference to it.
pub(super) struct Endpoint {
    raw: NonNull<bindings::iw_cm_id>,
    cell: Arc<CmPhaseCell>,
}

// SAFETY: The drop calls `rem_ref`, which counts atomically and may be called by any thread.
unsafe impl Send for Endpoint {}
// SAFETY: A shared reference allows raising the reference count, which is atomic, calling the event
// handler, which takes its own lock, and reading fields that do not change.
unsafe impl Sync for Endpoint {}

/// The phase of an endpoint, which decides which events are in order.
///
/// The lock is held while an event is raised, so events cannot be reordered. The connection manager
/// takes its own lock inside and does not call back.
#[pin_data]
struct CmPhaseCell {
    /// The name of the connection, if it was accepted.
    name: Option<NonZeroUsize>,
    #[pin]
    phase: SpinLockIrq<CmPhase>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum CmPhase {
    /// The [`CmId`] was dropped before the call that gave it returned.
    Abandoned,
    /// `accept` has not returned yet and no event was raised.
    AcceptCall,
    /// `accept` returned 0: ESTABLISHED is owed.
    Accepting,
    /// `connect` has not returned yet and no event was raised.
    ConnectCall,
    /// `connect` returned 0: a reply is owed.
    Connecting,
    /// The peer is closing: CLOSE is owed.
    Disconnected,
    /// No event is owed any more.
    Done,
    /// The connection is up: CLOSE is owed, and DISCONNECT is possible.
    Established,
    /// A listener.
    Listening,
}

impl CmPhaseCell {
    fn new(phase: CmPhase, name: Option<NonZeroUsize>) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                name,
                phase <- new_spinlock_irq!(phase),
            }),
            GFP_KERNEL,
        )
    }
}

impl CmId {
    /// Returns the local address that the consumer named, after port mapping.
    pub fn local_addr(&self) -> Result<SockAddr> {
        self.local
    }

    /// Returns the remote address that the consumer named, after port mapping.
    pub fn remote_addr(&self) -> Result<SockAddr> {
        self.remote
    }

    /// Returns the type of service, if the consumer set one.
    pub fn tos(&self) -> Option<u8> {
        // SAFETY: A reference requires valid memory that is not written to: by the invariant of
        // `Endpoint` the object is valid; the connection manager writes to it only before the
        // driver has it and when handling its events, and none is raised before the driver has
        // answered.
        let id = unsafe { self.endpoint.raw.as_ref() };
        id.tos_set().then_some(id.tos)
    }

    /// Returns whether an IPv6 listener must refuse IPv4.
    pub fn is_v6_only(&self) -> bool {
        // SAFETY: A reference requires valid memory that is not written to: by the invariant of
        // `Endpoint` the object is valid; the connection manager writes to it only before the
        // driver has it and when handling its events, and none is raised before the driver has
        // answered.
        unsafe { self.endpoint.raw.as_ref() }.afonly()
    }

    /// Reports the result of `connect`.
    ///
    /// # Errors
    ///
    /// * `EINVAL` if no reply is owed, or the private data is too long.
    /// * `ENOMEM` if memory is short; the reply is still owed then.
    pub fn connect_reply(&self, reply: &ConnectReply<'_>) -> Result {
        let mut event = new_event(bindings::iw_cm_event_type_IW_CM_EVENT_CONNECT_REPLY);
        set_private_data(&mut event, reply.private_data)?;
        // As it names them itself: the connection manager takes them over, and forgets its entry of
        // the port mapper by the local one.
        let unknown = SockAddr::unspecified(Family::V4);
        event.local_addr = self.local.unwrap_or(unknown).to_raw();
        event.remote_addr = self.remote.unwrap_or(unknown).to_raw();
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
    /// * `EINVAL` if this event is not owed.
    /// * `ENOMEM` if memory is short; the event is still owed then.
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
    /// `EINVAL` if the connection is not up, or this was reported already.
    pub fn disconnect(&self) -> Result {
        let mut event = new_event(bindings::iw_cm_event_type_IW_CM_EVENT_DISCONNECT);
        self.endpoint
            .raise(&[CmPhase::Established], CmPhase::Disconnected, &mut event)
    }

    /// Reports that the connection is gone; the queue pair is in error by then.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the connection was not up, or this was reported already.
    pub fn close(&self) -> Result {
        self.endpoint.close()
    }

    /// Reports a connection request of a peer.
    ///
    /// `name` identifies the connection and comes back in `accept` or `reject`; or never, if the
    /// listener is destroyed before the connection manager handled the request.
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
        event.provider_data = RequestState::Name(name).to_raw();
        self.endpoint.send(&mut event)
    }

    /// Attaches the endpoint to the queue pair of the connection.
    fn attach(&self, qp: QpLink) -> Result<Attached> {
        let before = qp.attach(self.endpoint.clone())?;
        Ok(Attached {
            qp,
            endpoint: self.endpoint.clone(),
            before,
        })
    }
}

impl Drop for CmId {
    fn drop(&mut self) {
        self.endpoint.settle();
    }
}

/// An endpoint that was attached to a queue pair for a call that may still fail.
struct Attached {
    qp: QpLink,
    endpoint: Endpoint,
    /// What was attached before.
    before: Option<Endpoint>,
}

impl Attached {
    /// Attaches again what was attached before, if `result` is an error; returns it.
    ///
    /// Otherwise the connection manager, which drops its last reference after the error, would wait
    /// for its own work, as long as the queue pair has one.
    fn keep_if(self, result: Result) -> Result {
        if result.is_err() {
            self.qp.detach(&self.endpoint, self.before);
        }
        result
    }
}

impl Endpoint {
    /// Takes a reference to `raw`.
    ///
    /// # Safety
    ///
    /// `raw` must be valid during the call.
    unsafe fn new(raw: NonNull<bindings::iw_cm_id>, cell: Arc<CmPhaseCell>) -> Self {
        // SAFETY: A field of `raw`, which the caller guarantees is valid during the call; it is set
        // once and never changes.
        if let Some(add_ref) = unsafe { (*raw.as_ptr()).add_ref } {
            // SAFETY: `add_ref` requires the valid object that it belongs to.
            unsafe { add_ref(raw.as_ptr()) };
        }
        // INVARIANT: The reference was just taken.
        Self { raw, cell }
    }

    /// Returns whether both are of one call.
    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.cell, &other.cell)
    }

    /// Returns whether this is the endpoint of that object.
    pub(super) fn is_of(&self, raw: *mut bindings::iw_cm_id) -> bool {
        self.raw.as_ptr() == raw
    }

    /// Raises no event any more.
    fn abandon(&self) {
        *self.cell.phase.lock() = CmPhase::Done;
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
        // If this fails, the event is still owed.
        self.send(event)?;
        *phase = to;
        Ok(())
    }

    /// Passes an event to the connection manager.
    fn send(&self, event: &mut bindings::iw_cm_event) -> Result {
        // SAFETY: The field of an object that is valid, by the type's invariant; the handler is set
        // once and never changes.
        let handler = unsafe { (*self.raw.as_ptr()).event_handler }.ok_or(EINVAL)?;
        // SAFETY: Our reference keeps the object alive. The handler copies the event and its
        // private data.
        to_result(unsafe { handler(self.raw.as_ptr(), event) })
    }

    /// Raises the events that are still owed, because no later call can.
    ///
    /// The connection manager has reserved one event of each kind since `connect` or `accept`, and
    /// these events need no memory, so raising them cannot fail.
    ///
    /// Context: any.
    pub(super) fn settle(&self) {
        {
            let mut phase = self.cell.phase.lock();
            if matches!(*phase, CmPhase::AcceptCall | CmPhase::ConnectCall) {
                // Nothing is owed yet: the call reports its failure itself.
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
        // SAFETY: `new` requires an object that is valid during the call, which it is by the type's
        // invariant.
        unsafe { Self::new(self.raw, self.cell.clone()) }
    }
}

/// Keeps `iw_cm` loaded: a [`CmId`] calls functions of that module, which must not be unloaded
/// before this one. Referring to an exported symbol ensures that.
#[used]
static STAYS: unsafe extern "C" fn(ffi::c_int) -> *const ffi::c_char = bindings::iwcm_reject_msg;

impl Drop for Endpoint {
    fn drop(&mut self) {
        // SAFETY: A field of the object, which is valid by the type's invariant; it is set once and
        // never changes.
        if let Some(rem_ref) = unsafe { (*self.raw.as_ptr()).rem_ref } {
            // SAFETY: This value owns the reference.
            unsafe { rem_ref(self.raw.as_ptr()) };
        }
    }
}

/// Returns an event without content.
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

/// Cuts a depth to what an event can hold.
fn depth(value: u32) -> u8 {
    u8::try_from(value).unwrap_or(u8::MAX)
}
