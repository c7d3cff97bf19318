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
use crate::rdma::device::device_data;
use crate::rdma::object::QpObject;
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
    /// Begins a call.
    ///
    /// # Safety
    ///
    /// `raw` must be null or a valid object during the call, and no event of it pending.
    unsafe fn begin(raw: *mut bindings::iw_cm_id, phase: CmPhase) -> Result<(Self, CmId)> {
        let raw = NonNull::new(raw).ok_or(EINVAL)?;
        let cell = CmPhaseCell::new(phase)?;
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
enum RequestState {
    /// The name of the connection, which was neither accepted nor rejected.
    Name(NonZeroUsize),
    /// The number of the queue pair that it was accepted with.
    Accepted(u32),
    /// Nothing: it was rejected, or could not be accepted.
    Over,
}

/// The bit of `provider_data` that tells a queue pair from a name; names count from 1.
const ACCEPTED: usize = 1 << (usize::BITS - 1);

/// Replaces what the object of a request knows by the number of a queue pair, or by nothing.
///
/// # Safety
///
/// `raw` must be the valid object of an `accept` or `reject` of this driver.
unsafe fn replace_state(raw: *mut bindings::iw_cm_id, accepted: Option<u32>) -> RequestState {
    // SAFETY: A `&mut` requires valid memory that nothing else uses: the caller guarantees that
    // `raw` is a valid object, and only `accept`, `reject` and the creation of the child use the
    // field, which the connection manager's users run one after the other.
    let data = unsafe { &mut (*raw).provider_data };
    // CAST: widens; 64-bit machines only.
    let new = accepted.map_or(0, |qpn| ACCEPTED | qpn as usize);
    let old = core::mem::replace(data, core::ptr::without_provenance_mut(new)).addr();
    match NonZeroUsize::new(old) {
        None => RequestState::Over,
        // CAST: the low half has the number.
        Some(_) if old & ACCEPTED != 0 => RequestState::Accepted(old as u32),
        Some(name) => RequestState::Name(name),
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
        // SAFETY: `CmCall::begin` requires an object that is valid during the call, and no event
        // of it pending: `raw` is, by this function's `# Safety`, and events follow this call.
        let (call, id) = unsafe { CmCall::begin(raw, CmPhase::ConnectCall) }?;
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
        let attached = id.attach(T::Qp::find(dev, param.qpn))?;
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
/// Until the connection is up, the connection manager lets its consumer accept it once more: it
/// takes a reference to the queue pair that is named now, and forgets the one to the first. Then
/// that is given back, and the connection ends for the consumer, which drops the other one.
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
        // SAFETY: `replace_state` requires the valid object of an `accept` or `reject`: `raw` is,
        // by this function's `# Safety`.
        let name = match unsafe { replace_state(raw, None) } {
            RequestState::Name(name) => name,
            RequestState::Accepted(first) => {
                // SAFETY: `replace_state` requires the valid object of an `accept` or `reject`:
                // `raw` is, by this function's `# Safety`.
                unsafe { replace_state(raw, Some(param.qpn)) };
                if let Some(qp) = T::Qp::find(dev, first) {
                    if let Some(connection) = qp.connection_of(raw) {
                        connection.settle();
                    }
                    qp.remove_user();
                }
                return Ok(0);
            }
            RequestState::Over => return Err(EINVAL),
        };
        // SAFETY: `CmCall::begin` requires an object that is valid during the call, and no event
        // of it pending: `raw` is, by this function's `# Safety`, and events follow this call.
        let (call, id) = match unsafe { CmCall::begin(raw, CmPhase::AcceptCall) } {
            Ok(begun) => begun,
            Err(error) => {
                // The connection manager forgets a connection that it could not accept.
                let _ = T::Conn::reject(dev, name, &[]);
                return Err(error);
            }
        };
        let attached = id.attach(T::Qp::find(dev, param.qpn)).inspect_err(|_| {
            let _ = T::Conn::reject(dev, name, &[]);
        })?;
        attached.keep_if(call.end(T::Conn::accept(dev, id, name, &param)))?;
        // SAFETY: `replace_state` requires the valid object of an `accept` or `reject`: `raw` is,
        // by this function's `# Safety`.
        unsafe { replace_state(raw, Some(param.qpn)) };
        Ok(0)
    })
}

/// `ops.iw_reject`.
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
        // SAFETY: `replace_state` requires the valid object of an `accept` or `reject`: `raw` is,
        // by this function's `# Safety`.
        let name = match unsafe { replace_state(raw, None) } {
            RequestState::Name(name) => name,
            // The connection manager expects no event any more.
            RequestState::Accepted(qpn) => {
                let qp = T::Qp::find(dev, qpn);
                if let Some(connection) = qp.and_then(|qp| qp.connection_of(raw)) {
                    connection.abandon();
                }
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
        let (_, id) = unsafe { CmCall::begin(raw, CmPhase::Listening) }?;
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
/// would not keep the queue pair until then.
///
/// # Safety
///
/// As the connection manager calls it: the device is registered, and `iw_add_ref` follows.
pub(in crate::rdma) unsafe extern "C" fn get_qp<T: Driver>(
    device: *mut bindings::ib_device,
    qpn: c_int,
) -> *mut bindings::ib_qp {
    // SAFETY: `device_data` requires a device of `T` whose operations are set, and stay so:
    // `ib_core` calls this for such devices only, by this function's `# Safety`.
    let dev = unsafe { device_data::<T::Device>(device) };
    // CAST: The number is unsigned; the C interface has it in an int.
    let link = T::Qp::find(dev, qpn as u32);
    match link.and_then(|link| link.add_user()) {
        Some(qp) => qp.as_ptr(),
        None => core::ptr::null_mut(),
    }
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
    // The link outlives the queue pair, which may be freed as soon as the reference is dropped.
    // SAFETY: `driver_part` requires a structure that was filled and is not emptied meanwhile: the
    // connection manager holds a reference, by this function's `# Safety`, and `destroy_qp` waits
    // for that reference to go before it empties `qp`.
    let link = unsafe { QpObject::<T>::driver_part(qp) }.link.clone();
    link.remove_user();
}
