// SPDX-License-Identifier: GPL-2.0

//! The trampolines of completion queues, queue pairs and shared receive queues.
//!
//! Each says in its `# Safety` what `ib_core` promises. What it promises in all cases is not
//! repeated: the device of the object is registered, or being so, while a verb runs, and is one of
//! `T`. *New* is an object that `ib_core` has allocated for this call, zeroed, of the size in
//! `ops.size_ib_*`, with its device (and domain) set. *Filled* is one that a `create_*`, `alloc_*`
//! or `reg_*` of this folder has made, and that no other call destroys before this one returns.
//! *Valid* are pointers for the length of the call.

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
            // SAFETY: The helper gives the place of a field of the bundle: `attrs` is valid, as
            // just compared and by this function's `# Safety`.
            unsafe { riwarp_helper_uverbs_attr_bundle_to_udata(attrs) }
        };
        // SAFETY: A reference wants memory that is valid and not written to: `init` is, by this
        // function's `# Safety`.
        let init = unsafe { &*init };
        // SAFETY: `owner` wants the channel of the call that makes the object, which `udata` is.
        let owner = unsafe { owner(udata) };
        // What tells a process only wakes it up, wherever.
        let vector = match owner {
            Owner::Kernel(_) => CpuId::from_u32(init.comp_vector),
            Owner::User => None,
        };
        // SAFETY: `CqLink::new` wants a queue that is valid until the link is closed, and that it
        // is: the object lives until `destroy_cq`, which closes the link, as the error paths below
        // do.
        let link = unsafe { CqLink::new(NonNull::new(cq).ok_or(EINVAL)?, vector) }?;
        let init = CqInit {
            owner,
            entries: init.cqe,
            flags: init.flags,
            link: link.clone(),
        };
        let mut mappings = Mappings::new();
        // SAFETY: `Udata::new` wants a channel that is null or valid, which `udata` is by this
        // function's `# Safety`, and mappings that do not outlive the context of the call: the
        // object belongs to the context and goes before it.
        let mut udata = unsafe { Udata::new(udata, Some(&mut mappings)) };
        // SAFETY: A field of `cq`, which is valid; `ib_core` sets it before the driver sees the
        // object.
        let device = unsafe { (*cq).device };
        // SAFETY: `device_data` wants a device of `T` that is registered, or being so: that is so
        // while a verb runs.
        let dev = unsafe { device_data::<T>(device) };
        let created = T::create_cq(dev, init, &mut udata).inspect_err(|_| link.close())?;
        // SAFETY: A field of `cq`, which is valid; its one writer is the verb that makes or resizes
        // the queue.
        unsafe { (*cq).cqe = c_int::try_from(created.entries).unwrap_or(c_int::MAX) };
        let tail = Tail {
            data: created.cq,
            link,
            mappings,
        };
        // SAFETY: `fill` wants the head of an allocation of `SIZE` octets whose tail holds nothing:
        // `cq` is a new object.
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
    // SAFETY: `empty` wants a structure that was filled and that nobody uses: `cq` is, by this
    // function's `# Safety`.
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
        // SAFETY: `tail` wants a structure that was filled and is not emptied meanwhile: `cq` is,
        // by this function's `# Safety`.
        let tail = unsafe { CqObject::<T>::tail(cq) };
        let entries = tail.link.resize(|mappings| {
            // SAFETY: `Udata::new` wants a channel that is null or valid, which `udata` is by this
            // function's `# Safety`, and mappings that do not outlive the context of the call: the
            // link lets go of them before the object is freed, which belongs to the context.
            let mut udata = unsafe { Udata::new(udata, Some(mappings)) };
            T::resize_cq(tail.data.as_arc_borrow(), entries, &mut udata)
        })?;
        // SAFETY: A field of `cq`, which is valid; its one writer is the verb that makes or resizes
        // the queue.
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
        // SAFETY: `WcSink::new` wants room for so many completions that nobody else has: `wc` is
        // so, by this function's `# Safety`.
        let mut sink = unsafe { WcSink::new(wc, room) };
        // SAFETY: `data` wants a structure that was filled and is not emptied meanwhile: `cq` is,
        // by this function's `# Safety`.
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
        // SAFETY: `data` wants a structure that was filled and is not emptied meanwhile: `cq` is,
        // by this function's `# Safety`.
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
        // SAFETY: A reference wants memory that is valid and nobody else's: `init` is `ib_core`'s
        // own for this call, by this function's `# Safety`.
        let raw = unsafe { &mut *init };
        let qp_type = QpType::from_raw(raw.qp_type).ok_or(EOPNOTSUPP)?;
        // SAFETY: A field of `qp`, which is a new object.
        let pd = NonNull::new(unsafe { (*qp).pd }).ok_or(EINVAL)?;
        let send_cq = NonNull::new(raw.send_cq).ok_or(EINVAL)?;
        let recv_cq = NonNull::new(raw.recv_cq).ok_or(EINVAL)?;
        // SAFETY: `owner` wants the channel of the call that makes the object, which `udata` is.
        let owner = unsafe { owner(udata) };
        let maker = owner.is_user().then(Kuid::current_euid);
        // SAFETY: `QpLink::new` wants a queue pair that is valid until the link is closed: the
        // object lives until `destroy_qp`, which closes the link, as the error path below does.
        let link = unsafe { QpLink::new(NonNull::new(qp).ok_or(EINVAL)?, maker) }?;
        let init = QpInit {
            owner,
            qp_type,
            caps: attr::caps_from_raw(&raw.cap),
            // SAFETY: `pd_of` wants a domain that was filled: that of a new object is.
            pd: unsafe { pd_of::<T>(pd.as_ptr()) },
            // SAFETY: `cq_of` wants a queue that was filled: `init` refers to such only, by this
            // function's `# Safety`.
            send_cq: unsafe { cq_of::<T>(send_cq) },
            // SAFETY: `cq_of` wants a queue that was filled: `init` refers to such only, by this
            // function's `# Safety`.
            recv_cq: unsafe { cq_of::<T>(recv_cq) },
            srq: NonNull::new(raw.srq).map(|srq| {
                // SAFETY: `srq_of` wants a queue that was filled: `init` refers to such only, by
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
        // SAFETY: `Udata::new` wants a channel that is null or valid, which `udata` is by this
        // function's `# Safety`, and mappings that do not outlive the context of the call: the
        // object belongs to the context and goes before it.
        let mut udata = unsafe { Udata::new(udata, Some(&mut mappings)) };
        // SAFETY: A field of `qp`, which is valid; `ib_core` sets it before the driver sees the
        // object.
        let device = unsafe { (*qp).device };
        // SAFETY: `device_data` wants a device of `T` that is registered, or being so: that is so
        // while a verb runs.
        let dev = unsafe { device_data::<T>(device) };
        let created = T::create_qp(dev, init, &mut udata).inspect_err(|_| link.close())?;
        attr::caps_to_raw(&created.caps, &mut raw.cap);
        // SAFETY: A field of `qp`, which is a new object that nobody else has yet.
        unsafe { (*qp).qp_num = created.number };
        let tail = Tail {
            data: created.qp,
            link: link.clone(),
            mappings,
        };
        // SAFETY: `fill` wants the head of an allocation of `SIZE` octets whose tail holds nothing:
        // `qp` is a new object.
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
        // SAFETY: `qp_from_raw` wants the fields valid that `mask` names, as this function does of
        // its caller.
        let attr = unsafe { attr::qp_from_raw(raw, mask) }?;
        // SAFETY: `Udata::new` wants a channel that is null or valid, which `udata` is by this
        // function's `# Safety`, and no mappings to outlive a context.
        let mut udata = unsafe { Udata::new(udata, None) };
        // SAFETY: `data` wants a structure that was filled and is not emptied meanwhile: `qp` is,
        // by this function's `# Safety`.
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
        // SAFETY: `data` wants a structure that was filled and is not emptied meanwhile: `qp` is,
        // by this function's `# Safety`.
        let report = T::query_qp(unsafe { QpObject::<T>::data(qp) }, mask)?;
        // SAFETY: A reference wants memory that is valid and nobody else's: `raw` is `ib_core`'s
        // own for this call, by this function's `# Safety`.
        unsafe { attr::qp_to_raw(&report.attr, &mut *raw) };
        // SAFETY: A reference wants memory that is valid and nobody else's: `init` is `ib_core`'s
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
/// `qp` was filled, and is used no more except by the connection manager, which gives its
/// references back.
pub(super) unsafe extern "C" fn destroy_qp<T: Driver>(
    qp: *mut bindings::ib_qp,
    _udata: *mut bindings::ib_udata,
) -> c_int {
    // The connection manager reads the tail as long as it has references, so it stays until then.
    // SAFETY: `tail` wants a structure that was filled and is not emptied meanwhile: `qp` is, by
    // this function's `# Safety`.
    let tail = unsafe { QpObject::<T>::tail(qp) };
    T::destroy_qp(tail.data.clone());
    tail.link.close();
    tail.link.wait_unused();
    // SAFETY: `empty` wants a structure that was filled and that nobody uses: `qp` is, by this
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
        // SAFETY: `SendWrs::new` wants a list as `ib_post_send()` takes it, of a kernel consumer,
        // valid as long as the result: `list` is, by this function's `# Safety`, since the queue
        // pair has no user object.
        (false, _) => unsafe { SendWrs::new(list) },
    };
    // SAFETY: `arc` wants a structure that was filled and is not emptied meanwhile: `qp` is, by
    // this function's `# Safety`.
    match T::post_send(unsafe { QpObject::<T>::arc(qp) }, &mut wrs) {
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
    // SAFETY: `data` wants a structure that was filled and is not emptied meanwhile: `qp` is, by
    // this function's `# Safety`.
    let qp = unsafe { QpObject::<T>::data(qp) };
    // SAFETY: `post_recv_list` wants a list as `ib_post_recv()` takes it, a kernel consumer's
    // unless `is_user`, which is just what the object says, and a `bad` that is valid: so they are,
    // by this function's `# Safety`.
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
    // SAFETY: A field of `srq`, which was filled, by this function's `# Safety`; it never changes.
    let is_user = !unsafe { (*srq).uobject }.is_null();
    // SAFETY: `data` wants a structure that was filled and is not emptied meanwhile: `srq` is, by
    // this function's `# Safety`.
    let srq = unsafe { SrqObject::<T>::data(srq) };
    // SAFETY: `post_recv_list` wants a list as `ib_post_recv()` takes it, a kernel consumer's
    // unless `is_user`, which is just what the object says, and a `bad` that is valid: so they are,
    // by this function's `# Safety`.
    unsafe { post_recv_list(is_user, list, bad, |wrs| T::post_srq_recv(srq, wrs)) }
}

/// Posts a list of receives, unless it is a process's.
///
/// # Safety
///
/// Unless `is_user` is set, `list` must be null or as `ib_post_recv()` takes it, of a kernel
/// consumer; `bad` must be valid.
unsafe fn post_recv_list(
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
    // SAFETY: `RecvWrs::new` wants a list as `ib_post_recv()` takes it, of a kernel consumer, valid
    // as long as the result: `list` is, by this function's `# Safety`, since `is_user` is not set.
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
        // SAFETY: A reference wants memory that is valid and nobody else's: `init` is `ib_core`'s
        // own for this call, by this function's `# Safety`.
        let raw = unsafe { &mut *init };
        // SAFETY: A field of `srq`, which is a new object.
        let pd = NonNull::new(unsafe { (*srq).pd }).ok_or(EINVAL)?;
        // SAFETY: `SrqLink::new` wants a queue that is valid until the link is closed: the object
        // lives until `destroy_srq`, which closes the link, as the error path below does.
        let link = unsafe { SrqLink::new(NonNull::new(srq).ok_or(EINVAL)?) }?;
        let init = SrqInit {
            // SAFETY: `owner` wants the channel of the call that makes the object, which `udata`
            // is.
            owner: unsafe { owner(udata) },
            srq_type: raw.srq_type,
            // SAFETY: `pd_of` wants a domain that was filled: that of a new object is.
            pd: unsafe { pd_of::<T>(pd.as_ptr()) },
            attr: attr::srq_from_raw(&raw.attr),
            link: link.clone(),
        };
        let mut mappings = Mappings::new();
        // SAFETY: `Udata::new` wants a channel that is null or valid, which `udata` is by this
        // function's `# Safety`, and mappings that do not outlive the context of the call: the
        // object belongs to the context and goes before it.
        let mut udata = unsafe { Udata::new(udata, Some(&mut mappings)) };
        // SAFETY: A field of `srq`, which is valid; `ib_core` sets it before the driver sees the
        // object.
        let device = unsafe { (*srq).device };
        // SAFETY: `device_data` wants a device of `T` that is registered, or being so: that is so
        // while a verb runs.
        let dev = unsafe { device_data::<T>(device) };
        let created = T::create_srq(dev, init, &mut udata).inspect_err(|_| link.close())?;
        raw.attr = attr::srq_to_raw(&created.attr);
        let tail = Tail {
            data: created.srq,
            link,
            mappings,
        };
        // SAFETY: `fill` wants the head of an allocation of `SIZE` octets whose tail holds nothing:
        // `srq` is a new object.
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
        // SAFETY: A reference wants memory that is valid and not written to: `raw` is, by this
        // function's `# Safety`.
        let attr = attr::srq_from_raw(unsafe { &*raw });
        let mask = SrqAttrMask::from_bits(mask);
        // SAFETY: `tail` wants a structure that was filled and is not emptied meanwhile: `srq` is,
        // by this function's `# Safety`.
        let tail = unsafe { SrqObject::<T>::tail(srq) };
        tail.link.modify(|mappings| {
            // SAFETY: `Udata::new` wants a channel that is null or valid, which `udata` is by this
            // function's `# Safety`, and mappings that do not outlive the context of the call: the
            // link lets go of them before the object is freed, which belongs to the context.
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
        // SAFETY: `data` wants a structure that was filled and is not emptied meanwhile: `srq` is,
        // by this function's `# Safety`.
        let attr = T::query_srq(unsafe { SrqObject::<T>::data(srq) })?;
        // SAFETY: `raw` is valid, by this function's `# Safety`.
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
    // SAFETY: `empty` wants a structure that was filled and that nobody uses: `srq` is, by this
    // function's `# Safety`.
    let tail = unsafe { SrqObject::<T>::empty(srq) };
    tail.link.close();
    T::destroy_srq(tail.data);
    0
}

/// A counted reference of a driver's completion queue.
///
/// # Safety
///
/// `cq` must have been filled, and not be destroyed during the call.
unsafe fn cq_of<T: Driver>(cq: NonNull<bindings::ib_cq>) -> Arc<T::Cq> {
    // SAFETY: `data` wants a structure that was filled and is not emptied meanwhile: `cq` is, by
    // this function's `# Safety`.
    unsafe { CqObject::<T>::data(cq.as_ptr()) }.into()
}

/// A counted reference of a driver's shared receive queue.
///
/// # Safety
///
/// `srq` must have been filled, and not be destroyed during the call.
unsafe fn srq_of<T: Driver>(srq: NonNull<bindings::ib_srq>) -> Arc<T::Srq> {
    // SAFETY: `data` wants a structure that was filled and is not emptied meanwhile: `srq` is, by
    // this function's `# Safety`.
    unsafe { SrqObject::<T>::data(srq.as_ptr()) }.into()
}

extern "C" {
    fn riwarp_helper_uverbs_attr_bundle_to_udata(
        attrs: *mut bindings::uverbs_attr_bundle,
    ) -> *mut bindings::ib_udata;
}
