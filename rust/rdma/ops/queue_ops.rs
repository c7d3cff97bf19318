// SPDX-License-Identifier: GPL-2.0

//! The trampolines of completion queues, queue pairs and shared receive queues.
//!
//! Each says in its `# Safety` what `ib_core` promises; that the device is registered while its
//! verbs run goes without saying.

use super::super::device::device_data;
use super::super::mmap::Mappings;
use super::super::object::CqLink;
use super::super::object::CqObject;
use super::super::object::QpLink;
use super::super::object::QpObject;
use super::super::object::SrqLink;
use super::super::object::SrqObject;
use super::super::object::Tail;
use super::super::types::*;
use super::super::udata::Udata;
use super::super::wc::WcSink;
use super::super::wr::RecvWrs;
use super::super::wr::SendWrs;
use super::attr;
use super::object_ops::owner;
use super::object_ops::pd_of;
use super::CqInit;
use super::Driver;
use super::Missed;
use super::QpInit;
use super::SrqInit;
use crate::bindings;
use core::ptr::NonNull;
use kernel::cpu::CpuId;
use kernel::error::from_result;
use kernel::ffi::c_int;
use kernel::ffi::c_uint;
use kernel::prelude::*;
use kernel::sync::Arc;
use kernel::task::Kuid;

/// `ops.create_cq`.
///
/// # Safety
///
/// `cq` is a new object of the size we asked for, `init` is valid, `attrs` null or valid.
pub(super) unsafe extern "C" fn create_cq<T: Driver>(
    cq: *mut bindings::ib_cq,
    init: *const bindings::ib_cq_init_attr,
    attrs: *mut bindings::uverbs_attr_bundle,
) -> c_int {
    from_result(|| {
        let udata = if attrs.is_null() {
            core::ptr::null_mut()
        } else {
            // SAFETY: By the caller's promise.
            unsafe { riwarp_helper_uverbs_attr_bundle_to_udata(attrs) }
        };
        // SAFETY: By the caller's promise.
        let init = unsafe { &*init };
        // SAFETY: By the caller's promise.
        let owner = unsafe { owner(udata) };
        // What tells a process only wakes it up, wherever.
        let vector = match owner {
            Owner::Kernel(_) => CpuId::from_u32(init.comp_vector),
            Owner::User => None,
        };
        // SAFETY: The object lives until `destroy_cq`, which closes the link.
        let link = unsafe { CqLink::new(NonNull::new(cq).ok_or(EINVAL)?, vector) }?;
        let init = CqInit {
            owner,
            entries: init.cqe,
            flags: init.flags,
            link: link.clone(),
        };
        let mut mappings = Mappings::new();
        // SAFETY: By the caller's promise; the object belongs to the context and goes before it.
        let mut udata = unsafe { Udata::new(udata, Some(&mut mappings)) };
        // SAFETY: By the caller's promise.
        let dev = unsafe { device_data::<T>((*cq).device) };
        let created = T::create_cq(dev, init, &mut udata).inspect_err(|_| link.close())?;
        // SAFETY: By the caller's promise.
        unsafe { (*cq).cqe = c_int::try_from(created.entries).unwrap_or(c_int::MAX) };
        let tail = Tail {
            data: created.cq,
            link,
            mappings,
        };
        // SAFETY: By the caller's promise.
        unsafe { CqObject::<T>::fill(cq, tail) };
        Ok(0)
    })
}

/// `ops.destroy_cq`.
///
/// # Safety
///
/// `cq` was filled, and is used no more.
pub(super) unsafe extern "C" fn destroy_cq<T: Driver>(
    cq: *mut bindings::ib_cq,
    _udata: *mut bindings::ib_udata,
) -> c_int {
    // SAFETY: By the caller's promise.
    let tail = unsafe { CqObject::<T>::empty(cq) };
    tail.link.close();
    T::destroy_cq(tail.data);
    0
}

/// `ops.resize_user_cq`.
///
/// # Safety
///
/// `cq` was filled and belongs to a process, `udata` is valid.
pub(super) unsafe extern "C" fn resize_user_cq<T: Driver>(
    cq: *mut bindings::ib_cq,
    entries: c_uint,
    udata: *mut bindings::ib_udata,
) -> c_int {
    from_result(|| {
        // SAFETY: By the caller's promise.
        let tail = unsafe { CqObject::<T>::tail(cq) };
        let entries = tail.link.resize(|mappings| {
            // SAFETY: By the caller's promise; the link lets go of them before the object is freed.
            let mut udata = unsafe { Udata::new(udata, Some(mappings)) };
            T::resize_cq(tail.data.as_arc_borrow(), entries, &mut udata)
        })?;
        // SAFETY: By the caller's promise; a number that is only shown.
        unsafe { (*cq).cqe = c_int::try_from(entries).unwrap_or(c_int::MAX) };
        Ok(0)
    })
}

/// `ops.poll_cq`.
///
/// # Safety
///
/// `cq` was filled, `wc` has room for `entries`.
pub(super) unsafe extern "C" fn poll_cq<T: Driver>(
    cq: *mut bindings::ib_cq,
    entries: c_int,
    wc: *mut bindings::ib_wc,
) -> c_int {
    from_result(|| {
        let room = usize::try_from(entries)?;
        // SAFETY: By the caller's promise.
        let mut sink = unsafe { WcSink::new(wc, room) };
        // SAFETY: By the caller's promise.
        T::poll_cq(unsafe { CqObject::<T>::data(cq) }, &mut sink)?;
        // CAST: At most `entries`.
        Ok(sink.used() as c_int)
    })
}

/// `ops.req_notify_cq`.
///
/// # Safety
///
/// `cq` was filled.
pub(super) unsafe extern "C" fn req_notify_cq<T: Driver>(
    cq: *mut bindings::ib_cq,
    flags: bindings::ib_cq_notify_flags,
) -> c_int {
    from_result(|| {
        let kind = flags & bindings::ib_cq_notify_flags_IB_CQ_SOLICITED_MASK;
        let missed = flags & bindings::ib_cq_notify_flags_IB_CQ_REPORT_MISSED_EVENTS;
        let request = NotifyRequest {
            on: if kind == bindings::ib_cq_notify_flags_IB_CQ_SOLICITED {
                NotifyOn::Solicited
            } else {
                NotifyOn::Next
            },
            report_missed: missed != 0,
        };
        // SAFETY: By the caller's promise.
        match T::req_notify_cq(unsafe { CqObject::<T>::data(cq) }, request)? {
            Missed::No => Ok(0),
            Missed::Yes => Ok(1),
        }
    })
}

/// `ops.create_qp`.
///
/// # Safety
///
/// `qp` is a new object of the size we asked for, `init` is valid and all it refers to is filled,
/// `udata` null or valid.
pub(super) unsafe extern "C" fn create_qp<T: Driver>(
    qp: *mut bindings::ib_qp,
    init: *mut bindings::ib_qp_init_attr,
    udata: *mut bindings::ib_udata,
) -> c_int {
    from_result(|| {
        // SAFETY: By the caller's promise.
        let raw = unsafe { &mut *init };
        let qp_type = QpType::from_raw(raw.qp_type).ok_or(EOPNOTSUPP)?;
        // SAFETY: By the caller's promise.
        let pd = NonNull::new(unsafe { (*qp).pd }).ok_or(EINVAL)?;
        let send_cq = NonNull::new(raw.send_cq).ok_or(EINVAL)?;
        let recv_cq = NonNull::new(raw.recv_cq).ok_or(EINVAL)?;
        // SAFETY: By the caller's promise.
        let owner = unsafe { owner(udata) };
        let maker = owner.is_user().then(Kuid::current_euid);
        // SAFETY: The object lives until `destroy_qp`, which closes the link.
        let link = unsafe { QpLink::new(NonNull::new(qp).ok_or(EINVAL)?, maker) }?;
        let init = QpInit {
            owner,
            qp_type,
            caps: attr::caps_from_raw(&raw.cap),
            // SAFETY: By the caller's promise.
            pd: unsafe { pd_of::<T>(pd.as_ptr()) },
            // SAFETY: By the caller's promise.
            send_cq: unsafe { cq_of::<T>(send_cq) },
            // SAFETY: By the caller's promise.
            recv_cq: unsafe { cq_of::<T>(recv_cq) },
            srq: NonNull::new(raw.srq).map(|srq| {
                // SAFETY: By the caller's promise.
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
        // SAFETY: By the caller's promise; the object belongs to the context and goes before it.
        let mut udata = unsafe { Udata::new(udata, Some(&mut mappings)) };
        // SAFETY: By the caller's promise.
        let dev = unsafe { device_data::<T>((*qp).device) };
        let created = T::create_qp(dev, init, &mut udata).inspect_err(|_| link.close())?;
        attr::caps_to_raw(&created.caps, &mut raw.cap);
        // SAFETY: By the caller's promise.
        unsafe { (*qp).qp_num = created.number };
        let tail = Tail {
            data: created.qp,
            link: link.clone(),
            mappings,
        };
        // SAFETY: By the caller's promise.
        unsafe { QpObject::<T>::fill(qp, tail) };
        link.filled();
        Ok(0)
    })
}

/// `ops.modify_qp`.
///
/// # Safety
///
/// `qp` was filled, `raw` is valid where `mask` says so, `udata` null or valid.
pub(super) unsafe extern "C" fn modify_qp<T: Driver>(
    qp: *mut bindings::ib_qp,
    raw: *mut bindings::ib_qp_attr,
    mask: c_int,
    udata: *mut bindings::ib_udata,
) -> c_int {
    from_result(|| {
        // CAST: A set of flags in an int; every bit keeps its place.
        let mask = QpAttrMask::from_bits(mask as u32);
        if !mask.without(QpAttrMask::STANDARD).is_empty() {
            return Err(EOPNOTSUPP);
        }
        // SAFETY: By the caller's promise.
        let attr = unsafe { attr::qp_from_raw(raw, mask) }?;
        // SAFETY: By the caller's promise.
        let mut udata = unsafe { Udata::new(udata, None) };
        // SAFETY: By the caller's promise.
        T::modify_qp(unsafe { QpObject::<T>::data(qp) }, &attr, mask, &mut udata)?;
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
    mask: c_int,
    init: *mut bindings::ib_qp_init_attr,
) -> c_int {
    from_result(|| {
        // CAST: A set of flags in an int; every bit keeps its place.
        let mask = QpAttrMask::from_bits(mask as u32);
        // SAFETY: By the caller's promise.
        let report = T::query_qp(unsafe { QpObject::<T>::data(qp) }, mask)?;
        // SAFETY: By the caller's promise.
        unsafe { attr::qp_to_raw(&report.attr, &mut *raw) };
        // SAFETY: By the caller's promise.
        let init = unsafe { &mut *init };
        attr::caps_to_raw(&report.attr.caps, &mut init.cap);
        init.sq_sig_type = match report.signal {
            SignalPolicy::All => bindings::ib_sig_type_IB_SIGNAL_ALL_WR,
            SignalPolicy::OnRequest => bindings::ib_sig_type_IB_SIGNAL_REQ_WR,
        };
        // SAFETY: By the caller's promise.
        unsafe {
            init.event_handler = (*qp).registered_event_handler;
            init.qp_context = (*qp).qp_context;
            init.send_cq = (*qp).send_cq;
            init.recv_cq = (*qp).recv_cq;
            init.srq = (*qp).srq;
            init.qp_type = (*qp).qp_type;
        }
        Ok(0)
    })
}

/// `ops.destroy_qp`.
///
/// # Safety
///
/// `qp` was filled, and is used no more except by the connection manager, which gives its
/// references back.
pub(super) unsafe extern "C" fn destroy_qp<T: Driver>(
    qp: *mut bindings::ib_qp,
    _udata: *mut bindings::ib_udata,
) -> c_int {
    // The connection manager reads the tail as long as it has references, so it stays until then.
    // SAFETY: By the caller's promise.
    let tail = unsafe { QpObject::<T>::tail(qp) };
    T::destroy_qp(tail.data.clone());
    tail.link.close();
    tail.link.wait_unused();
    // SAFETY: By the caller's promise, and the connection manager is done.
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
    // SAFETY: By the caller's promise.
    let is_user = !unsafe { (*qp).uobject }.is_null();
    let mut wrs = match (is_user, list.is_null()) {
        (true, true) => SendWrs::doorbell(),
        // The addresses in a process's list are not the kernel's.
        (true, false) => {
            // SAFETY: By the caller's promise.
            unsafe { *bad = list };
            return EINVAL.to_errno();
        }
        // SAFETY: By the caller's promise; the queue pair has no user object.
        (false, _) => unsafe { SendWrs::new(list) },
    };
    // SAFETY: By the caller's promise.
    match T::post_send(unsafe { QpObject::<T>::arc(qp) }, &mut wrs) {
        Ok(()) => 0,
        Err(error) => {
            // SAFETY: By the caller's promise.
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
    // SAFETY: By the caller's promise.
    let is_user = !unsafe { (*qp).uobject }.is_null();
    // SAFETY: By the caller's promise.
    let qp = unsafe { QpObject::<T>::data(qp) };
    // SAFETY: By the caller's promise.
    unsafe { post_recv_list(is_user, list, bad, |wrs| T::post_recv(qp, wrs)) }
}

/// `ops.post_srq_recv`.
///
/// # Safety
///
/// `srq` was filled, `list` is as `ib_post_srq_recv()` takes it or null, `bad` is valid.
pub(super) unsafe extern "C" fn post_srq_recv<T: Driver>(
    srq: *mut bindings::ib_srq,
    list: *const bindings::ib_recv_wr,
    bad: *mut *const bindings::ib_recv_wr,
) -> c_int {
    // SAFETY: By the caller's promise.
    let is_user = !unsafe { (*srq).uobject }.is_null();
    // SAFETY: By the caller's promise.
    let srq = unsafe { SrqObject::<T>::data(srq) };
    // SAFETY: By the caller's promise.
    unsafe { post_recv_list(is_user, list, bad, |wrs| T::post_srq_recv(srq, wrs)) }
}

/// Posts a list of receives, unless it is a process's.
///
/// # Safety
///
/// `list` must be as `ib_post_recv()` takes it or null, and a kernel consumer's if `is_user` is not
/// set; `bad` valid.
unsafe fn post_recv_list(
    is_user: bool,
    list: *const bindings::ib_recv_wr,
    bad: *mut *const bindings::ib_recv_wr,
    post: impl FnOnce(&mut RecvWrs<'_>) -> Result,
) -> c_int {
    if is_user {
        // The addresses in a process's list are not the kernel's.
        // SAFETY: By the caller's promise.
        unsafe { *bad = list };
        return EINVAL.to_errno();
    }
    // SAFETY: By the caller's promise.
    let mut wrs = unsafe { RecvWrs::new(list) };
    match post(&mut wrs) {
        Ok(()) => 0,
        Err(error) => {
            // SAFETY: By the caller's promise.
            unsafe { *bad = wrs.bad() };
            error.to_errno()
        }
    }
}

/// `ops.create_srq`.
///
/// # Safety
///
/// `srq` is a new object of the size we asked for, `init` is valid, `udata` null or valid.
pub(super) unsafe extern "C" fn create_srq<T: Driver>(
    srq: *mut bindings::ib_srq,
    init: *mut bindings::ib_srq_init_attr,
    udata: *mut bindings::ib_udata,
) -> c_int {
    from_result(|| {
        // SAFETY: By the caller's promise.
        let raw = unsafe { &mut *init };
        // SAFETY: By the caller's promise.
        let pd = NonNull::new(unsafe { (*srq).pd }).ok_or(EINVAL)?;
        // SAFETY: The object lives until `destroy_srq`, which closes the link.
        let link = unsafe { SrqLink::new(NonNull::new(srq).ok_or(EINVAL)?) }?;
        let init = SrqInit {
            // SAFETY: By the caller's promise.
            owner: unsafe { owner(udata) },
            srq_type: raw.srq_type,
            // SAFETY: By the caller's promise.
            pd: unsafe { pd_of::<T>(pd.as_ptr()) },
            attr: attr::srq_from_raw(&raw.attr),
            link: link.clone(),
        };
        let mut mappings = Mappings::new();
        // SAFETY: By the caller's promise; the object belongs to the context and goes before it.
        let mut udata = unsafe { Udata::new(udata, Some(&mut mappings)) };
        // SAFETY: By the caller's promise.
        let dev = unsafe { device_data::<T>((*srq).device) };
        let created = T::create_srq(dev, init, &mut udata).inspect_err(|_| link.close())?;
        raw.attr = attr::srq_to_raw(&created.attr);
        let tail = Tail {
            data: created.srq,
            link,
            mappings,
        };
        // SAFETY: By the caller's promise.
        unsafe { SrqObject::<T>::fill(srq, tail) };
        Ok(0)
    })
}

/// `ops.modify_srq`.
///
/// # Safety
///
/// `srq` was filled, `raw` is valid, `udata` null or valid.
pub(super) unsafe extern "C" fn modify_srq<T: Driver>(
    srq: *mut bindings::ib_srq,
    raw: *mut bindings::ib_srq_attr,
    mask: bindings::ib_srq_attr_mask,
    udata: *mut bindings::ib_udata,
) -> c_int {
    from_result(|| {
        // SAFETY: By the caller's promise.
        let attr = attr::srq_from_raw(unsafe { &*raw });
        let mask = SrqAttrMask::from_bits(mask);
        // SAFETY: By the caller's promise.
        let tail = unsafe { SrqObject::<T>::tail(srq) };
        tail.link.modify(|mappings| {
            // SAFETY: By the caller's promise; the link lets go of them before the object is freed.
            let mut udata = unsafe { Udata::new(udata, Some(mappings)) };
            T::modify_srq(tail.data.as_arc_borrow(), &attr, mask, &mut udata)
        })?;
        Ok(0)
    })
}

/// `ops.query_srq`.
///
/// # Safety
///
/// `srq` was filled, `raw` is valid.
pub(super) unsafe extern "C" fn query_srq<T: Driver>(
    srq: *mut bindings::ib_srq,
    raw: *mut bindings::ib_srq_attr,
) -> c_int {
    from_result(|| {
        // SAFETY: By the caller's promise.
        let attr = T::query_srq(unsafe { SrqObject::<T>::data(srq) })?;
        // SAFETY: By the caller's promise.
        unsafe { *raw = attr::srq_to_raw(&attr) };
        Ok(0)
    })
}

/// `ops.destroy_srq`.
///
/// # Safety
///
/// `srq` was filled, and is used no more.
pub(super) unsafe extern "C" fn destroy_srq<T: Driver>(
    srq: *mut bindings::ib_srq,
    _udata: *mut bindings::ib_udata,
) -> c_int {
    // SAFETY: By the caller's promise.
    let tail = unsafe { SrqObject::<T>::empty(srq) };
    tail.link.close();
    T::destroy_srq(tail.data);
    0
}

/// A counted reference of a driver's completion queue.
///
/// # Safety
///
/// `cq` was filled.
unsafe fn cq_of<T: Driver>(cq: NonNull<bindings::ib_cq>) -> Arc<T::Cq> {
    // SAFETY: By the caller's promise.
    unsafe { CqObject::<T>::data(cq.as_ptr()) }.into()
}

/// A counted reference of a driver's shared receive queue.
///
/// # Safety
///
/// `srq` was filled.
unsafe fn srq_of<T: Driver>(srq: NonNull<bindings::ib_srq>) -> Arc<T::Srq> {
    // SAFETY: By the caller's promise.
    unsafe { SrqObject::<T>::data(srq.as_ptr()) }.into()
}

extern "C" {
    fn riwarp_helper_uverbs_attr_bundle_to_udata(
        attrs: *mut bindings::uverbs_attr_bundle,
    ) -> *mut bindings::ib_udata;
}
