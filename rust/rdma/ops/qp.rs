// SPDX-License-Identifier: GPL-2.0

//! Queue pairs: [`QpOps`], and its trampolines.

use core::ptr::NonNull;

use kernel::{
    error::{
        from_result,
        VTABLE_DEFAULT_ERROR, //
    },
    ffi::c_int,
    prelude::*,
    sync::{
        Arc,
        ArcBorrow, //
    },
    task::Kuid, //
};

use super::{
    attr,
    charged,
    context,
    cq::cq_of,
    owner,
    pd::pd_of,
    srq::srq_of,
    Driver, //
};
use crate::{
    bindings,
    compat::EOPNOTSUPP,
    rdma::{
        device::device_data,
        mmap::Mappings,
        object::{
            DriverPart,
            QpLink,
            QpObject, //
        },
        restrack::{
            self,
            Details, //
        },
        types::{
            Owner,
            QpAttr,
            QpAttrMask,
            QpCaps,
            QpType,
            SignalPolicy, //
        },
        udata::Udata,
        wr::{
            RecvWrs,
            SendWrs, //
        }, //
    }, //
};

/// A queue pair of the driver.
#[vtable]
pub trait QpOps: Sized + Send + Sync + 'static {
    /// The driver.
    type Driver: Driver;

    /// Creates a queue pair.
    ///
    /// `ib_device_ops.create_qp` (`drivers/infiniband/core/verbs.c`, for processes too).
    ///
    /// Context: process, may sleep.
    ///
    /// # Errors
    ///
    /// * `EOPNOTSUPP` for a service or flags that the device does not support.
    /// * `EINVAL` for sizes that it does not support.
    /// * `ENOMEM` if the device has reached its maximum of queue pairs, or memory is short.
    fn create(
        dev: ArcBorrow<'_, <Self::Driver as Driver>::Device>,
        init: QpInit<Self::Driver>,
        udata: &mut Udata<'_>,
    ) -> Result<QpCreated<Self>>;

    /// Finds a queue pair by its number.
    ///
    /// `ib_device_ops.iw_get_qp` (`drivers/infiniband/core/iwcm.c`).
    ///
    /// Context: a spin lock is held and interrupts are off; may not sleep.
    fn find(dev: ArcBorrow<'_, <Self::Driver as Driver>::Device>, number: u32) -> Option<QpLink>;

    /// Changes the attributes that `mask` names; the others in `attr` have their defaults.
    ///
    /// `ib_device_ops.modify_qp` (`drivers/infiniband/core/verbs.c`, `security.c`).
    ///
    /// Context: process, may sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` for an invalid transition or value, `EOPNOTSUPP` for an attribute that cannot be
    /// set.
    fn modify(
        dev: ArcBorrow<'_, <Self::Driver as Driver>::Device>,
        qp: ArcBorrow<'_, Self>,
        attr: &QpAttr,
        mask: QpAttrMask,
    ) -> Result;

    /// Returns all attributes of the queue pair, whatever the consumer asked for.
    ///
    /// `ib_device_ops.query_qp` (`drivers/infiniband/core/verbs.c`).
    ///
    /// Context: process, may sleep.
    fn query(&self) -> QpReport {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Takes the queue pair out of service; afterwards the driver does not use its verb object.
    ///
    /// The link works during this call and is closed after it. Connection events that the driver
    /// still owes by then are raised in its place ([`iw_cm`](crate::rdma::iw_cm)).
    ///
    /// `ib_device_ops.destroy_qp` (`drivers/infiniband/core/verbs.c`).
    ///
    /// Context: process, may sleep.
    fn destroy(dev: ArcBorrow<'_, <Self::Driver as Driver>::Device>, qp: Arc<Self>);

    /// Posts to the send queue; see [`SendWrs::is_doorbell`] for processes.
    ///
    /// `ib_device_ops.post_send` (`ib_post_send()`, `include/rdma/ib_verbs.h`; for processes
    /// `drivers/infiniband/core/uverbs_cmd.c`).
    ///
    /// Context: any, hard interrupt included; may not sleep. A doorbell: process.
    ///
    /// # Errors
    ///
    /// `EINVAL`, `EOPNOTSUPP` or `ENOMEM` for the request that was taken last; those before it stay
    /// posted.
    fn post_send(self: &Arc<Self>, wrs: &mut SendWrs<'_, <Self::Driver as Driver>::Mr>) -> Result;

    /// Posts to the receive queue.
    ///
    /// `ib_device_ops.post_recv` (`ib_post_recv()`, `include/rdma/ib_verbs.h`).
    ///
    /// Context: any, hard interrupt included; may not sleep.
    ///
    /// # Errors
    ///
    /// As [`post_send`](Self::post_send).
    fn post_recv(self: ArcBorrow<'_, Self>, wrs: &mut RecvWrs<'_>) -> Result;

    /// Adds to what `rdma -dd resource show qp` shows.
    ///
    /// `ib_device_ops.fill_res_qp_entry` (`drivers/infiniband/core/nldev.c`).
    ///
    /// Context: process, may sleep.
    ///
    /// # Errors
    ///
    /// Those of [`Details`].
    fn describe(&self, _details: &mut Details<'_>) -> Result {
        build_error!(VTABLE_DEFAULT_ERROR)
    }
}

/// The parameters of a new queue pair.
pub struct QpInit<T: Driver> {
    /// Its creator.
    pub owner: Owner,
    /// The context of the process that creates it.
    pub context: Option<Arc<T::UContext>>,
    /// Its service; iWARP has [`QpType::Rc`] only.
    pub qp_type: QpType,
    /// Its sizes.
    pub caps: QpCaps,
    /// Its protection domain.
    pub pd: Arc<T::Pd>,
    /// Its completion queue for sends.
    pub send_cq: Arc<T::Cq>,
    /// Its completion queue for receives.
    pub recv_cq: Arc<T::Cq>,
    /// Its shared receive queue, if it has no receive queue of its own.
    pub srq: Option<Arc<T::Srq>>,
    /// Which of its send work requests generate a completion.
    pub signal: SignalPolicy,
    /// `enum ib_qp_create_flags`; 0 is plain.
    pub create_flags: u32,
    /// The link to its consumer.
    pub link: QpLink,
}

/// A new queue pair.
pub struct QpCreated<Q> {
    /// The driver's object.
    pub qp: Arc<Q>,
    /// Its number.
    pub number: u32,
    /// Its actual sizes.
    pub caps: QpCaps,
}

/// The attributes of a queue pair, as a query returns them.
#[derive(Clone, Copy, Debug)]
pub struct QpReport {
    /// Its attributes; `caps` is also reported as the sizes in `init`.
    pub attr: QpAttr,
    /// Which of its send work requests generate a completion.
    pub signal: SignalPolicy,
}

/// `ops.create_qp`.
///
/// # Safety
///
/// `qp` is a new object of the size `ops.size_ib_qp`, `init` is valid and all it refers to is
/// filled, `udata` null or valid.
pub(super) unsafe extern "C" fn create_qp<T: Driver>(
    qp: *mut bindings::ib_qp,
    init: *mut bindings::ib_qp_init_attr,
    udata: *mut bindings::ib_udata,
) -> c_int {
    let make = || {
        // SAFETY: A reference requires valid memory that nothing else uses: `init` is `ib_core`'s
        // own for this call, by this function's `# Safety`.
        let raw = unsafe { &mut *init };
        let qp_type = QpType::from_raw(raw.qp_type).ok_or(EOPNOTSUPP)?;
        // SAFETY: A field of `qp`, which is a new object.
        let pd = NonNull::new(unsafe { (*qp).pd }).ok_or(EINVAL)?;
        let send_cq = NonNull::new(raw.send_cq).ok_or(EINVAL)?;
        let recv_cq = NonNull::new(raw.recv_cq).ok_or(EINVAL)?;
        let owner = owner(udata);
        let maker = owner.is_user().then(Kuid::current_euid);
        // SAFETY: A field of `qp`, which is valid; `ib_core` sets it before the driver sees the
        // object.
        let device = unsafe { (*qp).device };
        // SAFETY: `QpLink::new` requires a queue pair that is valid until the link is closed, and
        // its device: the object lives until `destroy_qp`, which closes the link, as the error path
        // below does, and the device longer.
        let link = unsafe { QpLink::new(NonNull::new(qp).ok_or(EINVAL)?, device, maker) }?;
        let init = QpInit {
            owner,
            // SAFETY: `context` requires null or the channel of a call that makes an object on a
            // device of `T`, which `udata` is by this function's `# Safety`.
            context: unsafe { context::<T>(udata) },
            qp_type,
            caps: attr::caps_from_raw(&raw.cap),
            // SAFETY: `pd_of` requires a domain that was filled: that of a new object is.
            pd: unsafe { pd_of::<T>(pd.as_ptr()) },
            // SAFETY: `cq_of` requires a queue that was filled: `init` refers to such only, by this
            // function's `# Safety`.
            send_cq: unsafe { cq_of::<T>(send_cq) },
            // SAFETY: `cq_of` requires a queue that was filled: `init` refers to such only, by this
            // function's `# Safety`.
            recv_cq: unsafe { cq_of::<T>(recv_cq) },
            srq: NonNull::new(raw.srq).map(|srq| {
                // SAFETY: `srq_of` requires a queue that was filled: `init` refers to such only, by
                // this function's `# Safety`.
                unsafe { srq_of::<T>(srq) }
            }),
            signal: if raw.sq_sig_type == bindings::ib_sig_type_IB_SIGNAL_ALL_WR {
                SignalPolicy::All
            } else {
                SignalPolicy::OnRequest
            },
            create_flags: raw.create_flags,
            link: link.clone(),
        };
        let mut mappings = Mappings::new();
        // SAFETY: `Udata::new` requires a channel that is null or valid, which `udata` is by this
        // function's `# Safety`, and mappings that do not outlive the context of the call: the
        // object belongs to the context and is destroyed before it.
        let mut udata = unsafe { Udata::new(udata, Some(&mut mappings)) };
        // SAFETY: `device_data` requires a device of `T` that is registered or being registered:
        // that holds while a verb runs.
        let dev = unsafe { device_data::<T::Device>(device) };
        let created = T::Qp::create(dev, init, &mut udata).inspect_err(|_| link.close())?;
        attr::caps_to_raw(&created.caps, &mut raw.cap);
        // SAFETY: A field of `qp`, which is a new object that nothing else uses yet.
        unsafe { (*qp).qp_num = created.number };
        let driver_part = DriverPart {
            data: created.qp,
            link: link.clone(),
            mappings,
        };
        // SAFETY: `fill` requires the head of an allocation of `SIZE` octets whose driver part
        // holds nothing: `qp` is a new object.
        unsafe { QpObject::<T>::fill(qp, driver_part) };
        link.filled();
        Ok(0)
    };
    from_result(|| charged(udata.is_null(), make))
}

/// `ops.modify_qp`; also of what the connection manager has for a queue pair.
///
/// # Safety
///
/// `qp` was filled, or the connection manager has it from `iw_get_qp`; the fields of `raw` that
/// `mask` names are valid.
pub(super) unsafe extern "C" fn modify_qp<T: Driver>(
    qp: *mut bindings::ib_qp,
    raw: *mut bindings::ib_qp_attr,
    mask: c_int,
    _udata: *mut bindings::ib_udata,
) -> c_int {
    from_result(|| {
        // CAST: A set of flags in an int; every bit keeps its place.
        let mask = QpAttrMask::from_bits(mask as u32);
        if !mask.without(QpAttrMask::STANDARD).is_empty() {
            return Err(EOPNOTSUPP);
        }
        // SAFETY: `qp_from_raw` requires that the fields that `mask` names are valid, which they
        // are by this function's `# Safety`.
        let attr = unsafe { attr::qp_from_raw(raw, mask) }?;
        // SAFETY: A field of `qp`, which was filled or is of a link, by this function's `# Safety`;
        // both have it from their creation.
        let device = unsafe { (*qp).device };
        // SAFETY: `device_data` requires a device of `T` that is registered or being registered:
        // that holds while a verb runs, and the connection manager ends its use of a device before
        // that is unregistered.
        let dev = unsafe { device_data::<T::Device>(device) };
        // SAFETY: `of_cm_qp` requires a queue pair that was filled and is not emptied meanwhile, or
        // what the connection manager has: `qp` is one of these, by this function's `# Safety`.
        let qp = match unsafe { QpLink::of_cm_qp(qp) } {
            // SAFETY: `object` requires a filled link of a queue pair of `T`: the connection
            // manager finds no other, and its device is one of `T`.
            Some(link) => unsafe { link.object::<T>() }.ok_or(EINVAL)?,
            // SAFETY: `arc` requires a structure that was filled and is not emptied meanwhile: `qp`
            // is, by this function's `# Safety`, since the connection manager does not have it.
            None => unsafe { QpObject::<T>::arc(qp) }.clone(),
        };
        T::Qp::modify(dev, qp.as_arc_borrow(), &attr, mask)?;
        Ok(0)
    })
}

/// `ops.query_qp`.
///
/// # Safety
///
/// `qp` was filled, `raw` and `init` are valid.
pub(super) unsafe extern "C" fn query_qp<T: Driver>(
    qp: *mut bindings::ib_qp,
    raw: *mut bindings::ib_qp_attr,
    _mask: c_int,
    init: *mut bindings::ib_qp_init_attr,
) -> c_int {
    from_result(|| {
        // SAFETY: `data` requires a structure that was filled and is not emptied meanwhile: `qp`
        // is, by this function's `# Safety`.
        let report = unsafe { QpObject::<T>::data(qp) }.query();
        // SAFETY: A reference requires valid memory that nothing else uses: `raw` is `ib_core`'s
        // own for this call, by this function's `# Safety`.
        unsafe { attr::qp_to_raw(&report.attr, &mut *raw) };
        // SAFETY: A reference requires valid memory that nothing else uses: `init` is `ib_core`'s
        // own for this call, by this function's `# Safety`.
        let init = unsafe { &mut *init };
        attr::caps_to_raw(&report.attr.caps, &mut init.cap);
        init.sq_sig_type = match report.signal {
            SignalPolicy::All => bindings::ib_sig_type_IB_SIGNAL_ALL_WR,
            SignalPolicy::OnRequest => bindings::ib_sig_type_IB_SIGNAL_REQ_WR,
        };
        // SAFETY: A field of `qp`, which was filled, by this function's `# Safety`.
        init.event_handler = unsafe { (*qp).registered_event_handler };
        // SAFETY: A field of `qp`, which was filled, by this function's `# Safety`.
        init.qp_context = unsafe { (*qp).qp_context };
        // SAFETY: A field of `qp`, which was filled, by this function's `# Safety`.
        init.send_cq = unsafe { (*qp).send_cq };
        // SAFETY: A field of `qp`, which was filled, by this function's `# Safety`.
        init.recv_cq = unsafe { (*qp).recv_cq };
        // SAFETY: A field of `qp`, which was filled, by this function's `# Safety`.
        init.srq = unsafe { (*qp).srq };
        // SAFETY: A field of `qp`, which was filled, by this function's `# Safety`.
        init.qp_type = unsafe { (*qp).qp_type };
        Ok(0)
    })
}

/// `ops.destroy_qp`.
///
/// # Safety
///
/// `qp` was filled, and is not used any more. The connection manager has another structure.
pub(super) unsafe extern "C" fn destroy_qp<T: Driver>(
    qp: *mut bindings::ib_qp,
    _udata: *mut bindings::ib_udata,
) -> c_int {
    // SAFETY: `driver_part` requires a structure that was filled and is not emptied meanwhile: `qp`
    // is, by this function's `# Safety`.
    let driver_part = unsafe { QpObject::<T>::driver_part(qp) };
    // SAFETY: A field of `qp`, which was filled, by this function's `# Safety`.
    let device = unsafe { (*qp).device };
    // SAFETY: `device_data` requires a device of `T` that is registered or being registered: that
    // holds while a verb runs.
    let dev = unsafe { device_data::<T::Device>(device) };
    T::Qp::destroy(dev, driver_part.data.clone());
    driver_part.link.close();
    // SAFETY: `empty` requires a structure that was filled and that nothing uses: `qp` is, by this
    // function's `# Safety`.
    drop(unsafe { QpObject::<T>::empty(qp) });
    0
}

/// `ops.post_send`.
///
/// # Safety
///
/// `qp` was filled, `list` is as `ib_post_send()` takes it or null, `bad` is valid.
pub(super) unsafe extern "C" fn post_send<T: Driver>(
    qp: *mut bindings::ib_qp,
    list: *const bindings::ib_send_wr,
    bad: *mut *const bindings::ib_send_wr,
) -> c_int {
    // SAFETY: A field of `qp`, which was filled, by this function's `# Safety`; it never changes.
    let is_user = !unsafe { (*qp).uobject }.is_null();
    let mut wrs = match (is_user, list.is_null()) {
        (true, true) => SendWrs::doorbell(),
        // The addresses in a process's list are not the kernel's.
        (true, false) => {
            // SAFETY: `bad` is valid, by this function's `# Safety`.
            unsafe { *bad = list };
            return EINVAL.to_errno();
        }
        // SAFETY: `SendWrs::new` requires a list as `ib_post_send()` takes it, of a kernel consumer
        // of a device with such regions, valid as long as the result: `list` is, by this function's
        // `# Safety`, since the queue pair has no user object, and its device is one of `T`.
        (false, _) => unsafe { SendWrs::new(list) },
    };
    // SAFETY: `arc` requires a structure that was filled and is not emptied meanwhile: `qp` is, by
    // this function's `# Safety`.
    match unsafe { QpObject::<T>::arc(qp) }.post_send(&mut wrs) {
        Ok(()) => 0,
        Err(error) => {
            // SAFETY: `bad` is valid, by this function's `# Safety`.
            unsafe { *bad = wrs.bad() };
            error.to_errno()
        }
    }
}

/// `ops.post_recv`.
///
/// # Safety
///
/// `qp` was filled, `list` is as `ib_post_recv()` takes it or null, `bad` is valid.
pub(super) unsafe extern "C" fn post_recv<T: Driver>(
    qp: *mut bindings::ib_qp,
    list: *const bindings::ib_recv_wr,
    bad: *mut *const bindings::ib_recv_wr,
) -> c_int {
    // SAFETY: A field of `qp`, which was filled, by this function's `# Safety`; it never changes.
    let is_user = !unsafe { (*qp).uobject }.is_null();
    // SAFETY: `data` requires a structure that was filled and is not emptied meanwhile: `qp` is, by
    // this function's `# Safety`.
    let qp = unsafe { QpObject::<T>::data(qp) };
    // SAFETY: `post_recv_list` requires a list as `ib_post_recv()` takes it, a kernel consumer's
    // unless `is_user`, which is read from the object, and a valid `bad`: both hold by this
    // function's `# Safety`.
    unsafe { post_recv_list(is_user, list, bad, |wrs| qp.post_recv(wrs)) }
}

/// Posts a list of receives, unless it is a process's.
///
/// # Safety
///
/// Unless `is_user` is set, `list` must be null or as `ib_post_recv()` takes it, of a kernel
/// consumer; `bad` must be valid.
pub(super) unsafe fn post_recv_list(
    is_user: bool,
    list: *const bindings::ib_recv_wr,
    bad: *mut *const bindings::ib_recv_wr,
    post: impl FnOnce(&mut RecvWrs<'_>) -> Result,
) -> c_int {
    if is_user {
        // The addresses in a process's list are not the kernel's.
        // SAFETY: `bad` is valid, by this function's `# Safety`.
        unsafe { *bad = list };
        return EINVAL.to_errno();
    }
    // SAFETY: `RecvWrs::new` requires a list as `ib_post_recv()` takes it, of a kernel consumer,
    // valid as long as the result: `list` is, by this function's `# Safety`, since `is_user` is not
    // set.
    let mut wrs = unsafe { RecvWrs::new(list) };
    match post(&mut wrs) {
        Ok(()) => 0,
        Err(error) => {
            // SAFETY: `bad` is valid, by this function's `# Safety`.
            unsafe { *bad = wrs.bad() };
            error.to_errno()
        }
    }
}

/// `ops.fill_res_qp_entry`.
///
/// # Safety
///
/// `msg` is being written to, `qp` was filled.
pub(super) unsafe extern "C" fn fill_res_qp_entry<T: Driver>(
    msg: *mut bindings::sk_buff,
    qp: *mut bindings::ib_qp,
) -> c_int {
    // SAFETY: `data` requires a structure that was filled and is not emptied meanwhile: `qp` is, by
    // this function's `# Safety`.
    let qp = unsafe { QpObject::<T>::data(qp) };
    // SAFETY: `restrack::fill` requires a message that is being written to: `msg` is, by this
    // function's `# Safety`.
    unsafe { restrack::fill(msg, |details| qp.describe(details)) }
}
