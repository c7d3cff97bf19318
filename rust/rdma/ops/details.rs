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
    // SAFETY: `data` wants a structure that was filled and is not emptied meanwhile: `cq` is, by
    // this function's `# Safety`.
    let cq = unsafe { CqObject::<T>::data(cq) };
    // SAFETY: `fill` wants a message that is being written to: `msg` is, by this function's
    // `# Safety`.
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
    // SAFETY: `data` wants a structure that was filled and is not emptied meanwhile: `mr` is, by
    // this function's `# Safety`.
    let mr = unsafe { MrObject::<T>::data(mr) };
    // SAFETY: `fill` wants a message that is being written to: `msg` is, by this function's
    // `# Safety`.
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
    // SAFETY: `data` wants a structure that was filled and is not emptied meanwhile: `qp` is, by
    // this function's `# Safety`.
    let qp = unsafe { QpObject::<T>::data(qp) };
    // SAFETY: `fill` wants a message that is being written to: `msg` is, by this function's
    // `# Safety`.
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
    // SAFETY: `data` wants a structure that was filled and is not emptied meanwhile: `srq` is, by
    // this function's `# Safety`.
    let srq = unsafe { SrqObject::<T>::data(srq) };
    // SAFETY: `fill` wants a message that is being written to: `msg` is, by this function's
    // `# Safety`.
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
        // SAFETY: `Details::fill` wants a message that is being written to, as this function does
        // of its caller.
        unsafe { Details::fill(msg, f) }?;
        Ok(0)
    })
}
