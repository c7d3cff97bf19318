// SPDX-License-Identifier: GPL-2.0

//! The trampolines of descriptions, for `rdma -dd resource show`.
//!
//! `ib_core` describes an object only between the end of its creation and the beginning of its
//! destruction, for which it waits.

use super::super::object::CqObject;
use super::super::object::MrObject;
use super::super::object::QpObject;
use super::super::object::SrqObject;
use super::super::restrack::Details;
use super::Driver;
use crate::bindings;
use core::ptr::NonNull;
use kernel::error::from_result;
use kernel::ffi::c_int;
use kernel::prelude::*;

/// `ops.fill_res_cq_entry`.
///
/// # Safety
///
/// `msg` is being written to, `cq` was filled.
pub(super) unsafe extern "C" fn fill_res_cq_entry<T: Driver>(
    msg: *mut bindings::sk_buff,
    cq: *mut bindings::ib_cq,
) -> c_int {
    // SAFETY: By the caller's promise.
    let cq = unsafe { CqObject::<T>::data(cq) };
    // SAFETY: By the caller's promise.
    unsafe { fill(msg, |details| T::describe_cq(cq, details)) }
}

/// `ops.fill_res_mr_entry`.
///
/// # Safety
///
/// `msg` is being written to, `mr` was filled.
pub(super) unsafe extern "C" fn fill_res_mr_entry<T: Driver>(
    msg: *mut bindings::sk_buff,
    mr: *mut bindings::ib_mr,
) -> c_int {
    // SAFETY: By the caller's promise.
    let mr = unsafe { MrObject::<T>::data(mr) };
    // SAFETY: By the caller's promise.
    unsafe { fill(msg, |details| T::describe_mr(mr, details)) }
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
    // SAFETY: By the caller's promise.
    let qp = unsafe { QpObject::<T>::data(qp) };
    // SAFETY: By the caller's promise.
    unsafe { fill(msg, |details| T::describe_qp(qp, details)) }
}

/// `ops.fill_res_srq_entry`.
///
/// # Safety
///
/// `msg` is being written to, `srq` was filled.
pub(super) unsafe extern "C" fn fill_res_srq_entry<T: Driver>(
    msg: *mut bindings::sk_buff,
    srq: *mut bindings::ib_srq,
) -> c_int {
    // SAFETY: By the caller's promise.
    let srq = unsafe { SrqObject::<T>::data(srq) };
    // SAFETY: By the caller's promise.
    unsafe { fill(msg, |details| T::describe_srq(srq, details)) }
}

/// Has `f` write the driver's part of a message.
///
/// # Safety
///
/// `msg` is being written to.
unsafe fn fill(msg: *mut bindings::sk_buff, f: impl FnOnce(&mut Details<'_>) -> Result) -> c_int {
    from_result(|| {
        let msg = NonNull::new(msg).ok_or(EINVAL)?;
        // SAFETY: By the caller's promise.
        unsafe { Details::fill(msg, f) }?;
        Ok(0)
    })
}
