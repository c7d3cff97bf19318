// SPDX-License-Identifier: GPL-2.0

//! The requests of the connection manager: [`CmOps`], and the trampolines of `ops.iw_*`.

use super::new_event;
use super::CmId;
use super::CmPhase;
use super::CmPhaseCell;
use super::ConnParam;
use super::Endpoint;
use crate::bindings;
use crate::compat::ECONNRESET;
use crate::compat::EISCONN;
use crate::net::SockAddr;
use crate::rdma::device::device_calls;
use crate::rdma::device::device_data;
use crate::rdma::object::QpLink;
use crate::rdma::ops::Driver;
use crate::rdma::ops::QpOps;
use core::num::NonZeroUsize;
use core::ptr::NonNull;
use kernel::error::from_result;
use kernel::error::to_result;
use kernel::ffi::c_int;
use kernel::ffi::c_void;
use kernel::prelude::*;
use kernel::sync::Arc;
use kernel::sync::ArcBorrow;

/// A driver's operations for connections.
///
/// `drivers/infiniband/core/iwcm.c` calls all functions, for consumers of `rdma_cm` by way of
/// `cma.c`. The [module](super) lists the events that must follow each.
///
/// Context of all functions: process, may sleep; possibly the connection manager's own thread.
#[vtable]
pub trait CmOps: Sized + Send + Sync + 'static {
    /// The driver.
    type Driver: Driver;
    /// A listener; the connection manager has one reference until it destroys it.
    type Listener: Send + Sync + 'static;

    /// Begins a connection.
    ///
    /// `ib_device_ops.iw_connect`.
    ///
    /// # Errors
    ///
    /// `EINVAL` and `EISCONN` are returned to the consumer; all others reach the consumer as an
    /// event.
    fn connect(
        dev: ArcBorrow<'_, <Self::Driver as Driver>::Device>,
        id: CmId,
        param: &ConnParam<'_>,
    ) -> Result;

    /// Accepts the connection with this name.
    ///
    /// `ib_device_ops.iw_accept`.
    ///
    /// # Errors
    ///
    /// They are returned to the consumer; the peer is refused then.
    fn accept(
        dev: ArcBorrow<'_, <Self::Driver as Driver>::Device>,
        id: CmId,
        name: NonZeroUsize,
        param: &ConnParam<'_>,
    ) -> Result;

    /// Refuses the connection with this name.
    ///
    /// `ib_device_ops.iw_reject`; also called if an `accept` fails before it reaches the driver.
    ///
    /// # Errors
    ///
    /// They are returned to the consumer.
    fn reject(
        dev: ArcBorrow<'_, <Self::Driver as Driver>::Device>,
        name: NonZeroUsize,
        private_data: &[u8],
    ) -> Result;

    /// Aborts the connection with this name, which was accepted, if it still exists. The consumer
    /// gets no event any more, or has got all of them.
    ///
    /// `ib_device_ops.iw_reject` and `iw_accept` of a connection that was accepted before.
    fn abort(dev: ArcBorrow<'_, <Self::Driver as Driver>::Device>, name: NonZeroUsize);

    /// Begins to listen at `id.local_addr()`.
    ///
    /// `ib_device_ops.iw_create_listen`.
    ///
    /// # Errors
    ///
    /// They are returned to the consumer.
    fn create_listen(
        dev: ArcBorrow<'_, <Self::Driver as Driver>::Device>,
        id: CmId,
        backlog: u32,
    ) -> Result<Arc<Self::Listener>>;

    /// Ends a listener; afterwards the driver raises no event on it.
    ///
    /// `ib_device_ops.iw_destroy_listen`.
    fn destroy_listen(listener: Arc<Self::Listener>);
}

/// A call of the connection manager in progress; decides its result.
struct CmCall {
    cell: Arc<CmPhaseCell>,
}

impl CmCall {
    /// Begins a call, which accepts the connection `name` if it is given.
    ///
    /// # Safety
    ///
    /// `raw` must be null or a valid object during the call, and no event of it pending.
    unsafe fn begin(
        raw: *mut bindings::iw_cm_id,
        phase: CmPhase,
        name: Option<NonZeroUsize>,
    ) -> Result<(Self, CmId)> {
        let raw = NonNull::new(raw).ok_or(EINVAL)?;
        let cell = CmPhaseCell::new(phase, name)?;
        // SAFETY: `Endpoint::new` requires an object that is valid during the call; the caller
        // guarantees that for `raw`.
        let endpoint = unsafe { Endpoint::new(raw, cell.clone()) };
        // SAFETY: A reference requires valid memory that is not written to: `raw` is valid, and the
        // connection manager writes the address before the call and when it handles an event, of
        // which none is pending, as the caller guarantees.
        let local = SockAddr::from_raw(unsafe { &(*raw.as_ptr()).m_local_addr });
        // SAFETY: A reference requires valid memory that is not written to: that holds for this
        // address as for the other.
        let remote = SockAddr::from_raw(unsafe { &(*raw.as_ptr()).m_remote_addr });
        let id = CmId {
            endpoint,
            local,
            remote,
        };
        Ok((Self { cell }, id))
    }

    /// Returns the result of the call: `result`, or success if an event was already raised.
    fn end(self, result: Result) -> Result {
        let mut phase = self.cell.phase.lock();
        let owed = match *phase {
            CmPhase::AcceptCall => CmPhase::Accepting,
            CmPhase::ConnectCall => CmPhase::Connecting,
            // Nothing could raise the event that a success would owe.
            CmPhase::Abandoned => return result.and(Err(ECONNRESET)),
            // An event was raised; the connection manager does not expect one after an error.
            _ => return Ok(()),
        };
        *phase = if result.is_ok() { owed } else { CmPhase::Done };
        result
    }
}

/// Returns the parameters of `connect` and `accept`.
///
/// # Safety
///
/// `raw` must be valid for `'a`, and its private data as long as it states.
unsafe fn param_from_raw<'a>(raw: *const bindings::iw_cm_conn_param) -> ConnParam<'a> {
    // SAFETY: A reference requires valid memory that is not written to; the caller guarantees that
    // for `raw` and `'a`.
    let param = unsafe { &*raw };
    ConnParam {
        // SAFETY: `bytes_from_raw` requires that many octets, valid for `'a`; the caller guarantees
        // that the private data is as long as the parameters state.
        private_data: unsafe {
            bytes_from_raw(param.private_data, usize::from(param.private_data_len))
        },
        ord: param.ord,
        ird: param.ird,
        qpn: param.qpn,
    }
}

/// Returns a slice of C memory, whose pointer may be null if it is empty.
///
/// # Safety
///
/// `data` must be valid for `len` octets for `'a`, if `len` is not 0.
unsafe fn bytes_from_raw<'a>(data: *const c_void, len: usize) -> &'a [u8] {
    if len == 0 || data.is_null() {
        return &[];
    }
    // SAFETY: `from_raw_parts` requires that many octets, valid and constant for `'a`; the caller
    // guarantees that for `data`.
    unsafe { core::slice::from_raw_parts(data.cast(), len) }
}

/// What the object of a request knows: `provider_data`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestState {
    /// The name of the connection, which was neither accepted nor rejected.
    Name(NonZeroUsize),
    /// What the connection manager has got for the queue pair that it was accepted with, and keeps
    /// as long as it lets its consumer accept or reject the connection once more.
    Accepted(NonNull<bindings::ib_qp>),
    /// Nothing: it was rejected, or could not be accepted.
    Over,
}

impl RequestState {
    /// Returns the value of the field. Names are odd, addresses even.
    pub(super) fn to_raw(self) -> *mut c_void {
        match self {
            Self::Name(name) => core::ptr::without_provenance_mut(name.get() << 1 | 1),
            Self::Accepted(qp) => qp.as_ptr().cast(),
            Self::Over => core::ptr::null_mut(),
        }
    }

    fn from_raw(raw: *mut c_void) -> Self {
        if raw.addr() & 1 == 0 {
            return NonNull::new(raw.cast()).map_or(Self::Over, Self::Accepted);
        }
        NonZeroUsize::new(raw.addr() >> 1).map_or(Self::Over, Self::Name)
    }

    /// Replaces what the object of a request knows, and returns what it knew.
    ///
    /// # Safety
    ///
    /// `raw` must be the valid object of an `accept` or `reject` of this driver.
    unsafe fn replace(raw: *mut bindings::iw_cm_id, new: Self) -> Self {
        // SAFETY: A `&mut` requires valid memory that nothing else uses: the caller guarantees that
        // `raw` is a valid object, and only `accept`, `reject` and the creation of the child use
        // the field, which the connection manager's users run one after the other.
        let data = unsafe { &mut (*raw).provider_data };
        Self::from_raw(core::mem::replace(data, new.to_raw()))
    }
}

/// `ops.iw_connect`.
///
/// # Safety
///
/// As the connection manager calls it: both pointers are valid.
pub(in crate::rdma) unsafe extern "C" fn connect<T: Driver>(
    raw: *mut bindings::iw_cm_id,
    param: *mut bindings::iw_cm_conn_param,
) -> c_int {
    let begin = || {
        // SAFETY: A field of `raw`, which is valid; `ib_core` sets it before the driver sees the
        // object.
        let device = unsafe { (*raw).device };
        // SAFETY: `device_calls` requires a device of `T` that is registered or being registered:
        // that holds while a verb runs.
        let link = unsafe { device_calls::<T::Device>(device) }.end();
        // SAFETY: `CmCall::begin` requires an object that is valid during the call, and no event
        // of it pending: `raw` is, by this function's `# Safety`, and events follow this call.
        let (call, id) = unsafe { CmCall::begin(raw, CmPhase::ConnectCall, None) }?;
        // SAFETY: `device_data` requires a device of `T` that is registered or being registered:
        // that holds while a verb runs.
        let dev = unsafe { device_data::<T::Device>(device) };
        // SAFETY: `param_from_raw` requires parameters that are valid for the lifetime, which ends
        // with this call, and private data of the stated length: `param` is so, by this function's
        // `# Safety`.
        let param = unsafe { param_from_raw(param) };
        let attached = id.attach(link.ok_or(EINVAL)?)?;
        attached.keep_if(call.end(T::Conn::connect(dev, id, &param)))
    };
    from_result(|| {
        match begin() {
            Err(error) if error != EINVAL && error != EISCONN => {
                // SAFETY: `fail_by_event` requires a valid object in its `connect`: `raw` is, by
                // this function's `# Safety`, and nothing else raises an event of this call any
                // more.
                unsafe { fail_by_event(raw, error) }?
            }
            result => result?,
        }
        Ok(0)
    })
}

/// Reports by an event that a `connect` has failed; returns the error if the event has no room.
///
/// If `iw_connect` returns an error, `rdma_connect_locked` (`drivers/infiniband/core/cma.c`) waits
/// for all work of the connection manager while holding mutexes that this work may need. Errors of
/// the consumer itself are returned at once all the same.
///
/// # Safety
///
/// `raw` must be valid and in its `connect`.
unsafe fn fail_by_event(raw: *mut bindings::iw_cm_id, error: Error) -> Result {
    // SAFETY: A field of `raw`, which the caller guarantees is valid; it is set once and never
    // changes.
    let handler = unsafe { (*raw).event_handler }.ok_or(error)?;
    let mut event = new_event(bindings::iw_cm_event_type_IW_CM_EVENT_CONNECT_REPLY);
    event.status = error.to_errno();
    // SAFETY: The handler requires the valid object that it belongs to, and an event that is valid
    // for the call: it copies the event.
    to_result(unsafe { handler(raw, &mut event) }).map_err(|_| error)
}

/// `ops.iw_accept`.
///
/// Until it has handled ESTABLISHED, the connection manager lets its consumer accept a connection
/// once more: it takes a reference to the queue pair that is named now, and forgets the one to the
/// first. Then that is dropped here, and the connection ends, so that the connection manager drops
/// the other one.
///
/// # Safety
///
/// As the connection manager calls it: both pointers are valid, and the object is the child of a
/// request of this driver.
pub(in crate::rdma) unsafe extern "C" fn accept<T: Driver>(
    raw: *mut bindings::iw_cm_id,
    param: *mut bindings::iw_cm_conn_param,
) -> c_int {
    from_result(|| {
        // SAFETY: A field of `raw`, which is valid; `ib_core` sets it before the driver sees the
        // object.
        let device = unsafe { (*raw).device };
        // SAFETY: `device_data` requires a device of `T` that is registered or being registered:
        // that holds while a verb runs.
        let dev = unsafe { device_data::<T::Device>(device) };
        // SAFETY: `param_from_raw` requires parameters that are valid for the lifetime, which ends
        // with this call, and private data of the stated length: `param` is so, by this function's
        // `# Safety`.
        let param = unsafe { param_from_raw(param) };
        // SAFETY: `device_calls` requires a device of `T` that is registered or being registered:
        // that holds while a verb runs.
        let link = unsafe { device_calls::<T::Device>(device) }.end();
        let link = link.ok_or(EINVAL)?;
        // SAFETY: `RequestState::replace` requires the valid object of an `accept` or `reject`:
        // `raw` is, by this function's `# Safety`.
        let name = match unsafe { RequestState::replace(raw, RequestState::Over) } {
            RequestState::Name(name) => name,
            RequestState::Accepted(first) => {
                // SAFETY: `RequestState::replace` requires the valid object of an `accept` or
                // `reject`: `raw` is, by this function's `# Safety`.
                unsafe { RequestState::replace(raw, RequestState::Accepted(link.cm_qp())) };
                // SAFETY: `end_accepted` requires what the connection manager has, or had: its
                // reference to the first queue pair is the one that it has just forgotten.
                unsafe { end_accepted::<T>(dev, raw, first, Endpoint::settle) };
                // SAFETY: `put_cm_qp` requires the reference: nobody else knows of it any more.
                unsafe { QpLink::put_cm_qp(first) };
                return Ok(0);
            }
            RequestState::Over => return Err(EINVAL),
        };
        // SAFETY: `CmCall::begin` requires an object that is valid during the call, and no event
        // of it pending: `raw` is, by this function's `# Safety`, and events follow this call.
        let (call, id) = match unsafe { CmCall::begin(raw, CmPhase::AcceptCall, Some(name)) } {
            Ok(begun) => begun,
            Err(error) => {
                // The connection manager forgets a connection that it could not accept.
                let _ = T::Conn::reject(dev, name, &[]);
                return Err(error);
            }
        };
        let accepted = RequestState::Accepted(link.cm_qp());
        let attached = id.attach(link).inspect_err(|_| {
            let _ = T::Conn::reject(dev, name, &[]);
        })?;
        attached.keep_if(call.end(T::Conn::accept(dev, id, name, &param)))?;
        // SAFETY: `RequestState::replace` requires the valid object of an `accept` or `reject`:
        // `raw` is, by this function's `# Safety`.
        unsafe { RequestState::replace(raw, accepted) };
        Ok(0)
    })
}

/// Ends a connection that was accepted, if it is still the one of its queue pair, with `events` for
/// the consumer.
///
/// # Safety
///
/// `qp` must be what `iw_get_qp` has returned for the accept by the object `raw` of a device of
/// `T`, with the reference of the connection manager.
unsafe fn end_accepted<T: Driver>(
    dev: ArcBorrow<'_, T::Device>,
    raw: *mut bindings::iw_cm_id,
    qp: NonNull<bindings::ib_qp>,
    events: impl FnOnce(&Endpoint),
) {
    // SAFETY: `of_cm_qp` requires what `get_cm_qp` has returned, with its reference: the caller
    // guarantees that.
    let link = unsafe { QpLink::of_cm_qp(qp.as_ptr()) };
    let Some(endpoint) = link.and_then(|link| link.connection_of(raw)) else {
        return;
    };
    events(&endpoint);
    if let Some(name) = endpoint.cell.name {
        T::Conn::abort(dev, name);
    }
}

/// `ops.iw_reject`.
///
/// Until it has handled ESTABLISHED, the connection manager also lets its consumer reject a
/// connection that it has accepted, and expects no event of that any more. The peer may have the
/// Reply already, so the connection is aborted.
///
/// # Safety
///
/// As the connection manager calls it: the object is valid and the child of a request of this
/// driver, and `data` has `len` octets.
pub(in crate::rdma) unsafe extern "C" fn reject<T: Driver>(
    raw: *mut bindings::iw_cm_id,
    data: *const c_void,
    len: u8,
) -> c_int {
    from_result(|| {
        // SAFETY: A field of `raw`, which is valid; `ib_core` sets it before the driver sees the
        // object.
        let device = unsafe { (*raw).device };
        // SAFETY: `device_data` requires a device of `T` that is registered or being registered:
        // that holds while a verb runs.
        let dev = unsafe { device_data::<T::Device>(device) };
        // SAFETY: `RequestState::replace` requires the valid object of an `accept` or `reject`:
        // `raw` is, by this function's `# Safety`.
        let name = match unsafe { RequestState::replace(raw, RequestState::Over) } {
            RequestState::Name(name) => name,
            RequestState::Accepted(qp) => {
                // SAFETY: `end_accepted` requires what the connection manager has: it keeps the
                // reference until after this call.
                unsafe { end_accepted::<T>(dev, raw, qp, Endpoint::abandon) };
                return Err(EINVAL);
            }
            RequestState::Over => return Err(EINVAL),
        };
        // SAFETY: `bytes_from_raw` requires that many octets, valid for the lifetime, which ends
        // with this call: `data` has `len`, by this function's `# Safety`.
        let data = unsafe { bytes_from_raw(data, usize::from(len)) };
        T::Conn::reject(dev, name, data)?;
        Ok(0)
    })
}

/// `ops.iw_create_listen`.
///
/// # Safety
///
/// As the connection manager calls it: the object is valid.
pub(in crate::rdma) unsafe extern "C" fn create_listen<T: Driver>(
    raw: *mut bindings::iw_cm_id,
    backlog: c_int,
) -> c_int {
    from_result(|| {
        let backlog = u32::try_from(backlog)?;
        // SAFETY: `CmCall::begin` requires an object that is valid during the call, and no event
        // of it pending: `raw` is, by this function's `# Safety`, and events follow this call.
        let (_, id) = unsafe { CmCall::begin(raw, CmPhase::Listening, None) }?;
        // SAFETY: A field of `raw`, which is valid; `ib_core` sets it before the driver sees the
        // object.
        let device = unsafe { (*raw).device };
        // SAFETY: `device_data` requires a device of `T` that is registered or being registered:
        // that holds while a verb runs.
        let dev = unsafe { device_data::<T::Device>(device) };
        let listener = T::Conn::create_listen(dev, id, backlog)?;
        // SAFETY: A field of `raw`, which is valid, by this function's `# Safety`; the field is the
        // driver's own, and only `destroy_listen`, which comes later, reads it.
        unsafe { (*raw).provider_data = Arc::into_raw(listener).cast_mut().cast() };
        Ok(0)
    })
}

/// `ops.iw_destroy_listen`.
///
/// # Safety
///
/// As the connection manager calls it: the object is valid and was listening.
pub(in crate::rdma) unsafe extern "C" fn destroy_listen<T: Driver>(
    raw: *mut bindings::iw_cm_id,
) -> c_int {
    from_result(|| {
        // SAFETY: A `&mut` requires valid memory that nothing else uses: `raw` is valid, by this
        // function's `# Safety`, and for a listener only `create_listen`, which has returned, used
        // the field.
        let data = unsafe { &mut (*raw).provider_data };
        let data = core::mem::replace(data, core::ptr::null_mut());
        let listener = NonNull::new(data.cast::<<T::Conn as CmOps>::Listener>()).ok_or(EINVAL)?;
        // SAFETY: `create_listen` put it there by `Arc::into_raw`; it was just taken out.
        let listener = unsafe { Arc::from_raw(listener.as_ptr()) };
        T::Conn::destroy_listen(listener);
        Ok(0)
    })
}

/// `ops.iw_get_qp`.
///
/// Takes the reference that the connection manager requests next by `iw_add_ref`: the pointer alone
/// would keep nothing until then.
///
/// # Safety
///
/// As the connection manager calls it: the device is registered, and `iw_add_ref` follows, then in
/// the same thread `iw_connect`, `iw_accept` or `iw_rem_ref`.
pub(in crate::rdma) unsafe extern "C" fn get_qp<T: Driver>(
    device: *mut bindings::ib_device,
    qpn: c_int,
) -> *mut bindings::ib_qp {
    // SAFETY: `device_data` requires a device of `T` whose operations are set, and stay so:
    // `ib_core` calls this for such devices only, by this function's `# Safety`.
    let dev = unsafe { device_data::<T::Device>(device) };
    // SAFETY: `device_calls` requires the same.
    let calls = unsafe { device_calls::<T::Device>(device) };
    // CAST: The number is unsigned; the C interface has it in an int.
    let Some(link) = T::Qp::find(dev, qpn as u32) else {
        return core::ptr::null_mut();
    };
    let Some(qp) = link.get_cm_qp() else {
        return core::ptr::null_mut();
    };
    if calls.begin(link).is_err() {
        // SAFETY: `put_cm_qp` requires the reference, which was just taken.
        unsafe { QpLink::put_cm_qp(qp) };
        return core::ptr::null_mut();
    }
    qp.as_ptr()
}

/// `ops.iw_add_ref`: does nothing, because [`get_qp`] already took the reference.
///
/// `iw_cm_connect` and `iw_cm_accept` (`drivers/infiniband/core/iwcm.c`) are the only callers, each
/// once, right after a successful [`get_qp`].
///
/// # Safety
///
/// It has no requirements; the signature is that of the operation.
pub(in crate::rdma) unsafe extern "C" fn add_ref(_qp: *mut bindings::ib_qp) {}

/// `ops.iw_rem_ref`.
///
/// # Safety
///
/// As the connection manager calls it: it holds a reference, which this call drops.
pub(in crate::rdma) unsafe extern "C" fn rem_ref<T: Driver>(qp: *mut bindings::ib_qp) {
    // SAFETY: A field of what `get_qp` has returned, which the reference keeps.
    let device = unsafe { (*qp).device };
    // If `iw_cm_connect` fails before it calls `iw_connect`.
    // SAFETY: `device_calls` requires a device of `T` whose `dealloc_driver` has not run: the
    // reference keeps the device registered.
    drop(unsafe { device_calls::<T::Device>(device) }.end());
    if let Some(qp) = NonNull::new(qp) {
        // SAFETY: `put_cm_qp` requires the reference, which the connection manager drops by this
        // call.
        unsafe { QpLink::put_cm_qp(qp) };
    }
}

#[kernel::prelude::kunit_tests(riwarp_cm_requests)]
mod tests {
    use super::*;

    #[test]
    fn request_state_survives_conversion_to_raw() -> Result {
        let name = NonZeroUsize::new(usize::MAX >> 1).ok_or(EINVAL)?;
        let qp = QpLink::dead()?.cm_qp();
        for state in [
            RequestState::Name(NonZeroUsize::MIN),
            RequestState::Name(name),
            RequestState::Accepted(qp),
            RequestState::Over,
        ] {
            assert_eq!(RequestState::from_raw(state.to_raw()), state);
        }
        Ok(())
    }
}
