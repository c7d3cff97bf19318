// SPDX-License-Identifier: GPL-2.0

//! What `rdma -dd resource show` shows of an object besides what `ib_core` knows of it.
//!
//! What enters: names and values from the driver. What leaves: lines of a message to whoever asked,
//! who need not be privileged: no keys and no addresses.
//!
//! Context: process.
//!
//! C header: `include/rdma/restrack.h`.

use crate::bindings;
use core::marker::PhantomData;
use core::ptr::NonNull;
use kernel::error::to_result;
use kernel::ffi::c_int;
use kernel::prelude::*;

/// The driver's part of the description of an object.
pub struct Details<'a> {
    msg: NonNull<bindings::sk_buff>,
    _life: PhantomData<&'a mut bindings::sk_buff>,
}

impl Details<'_> {
    /// Has `f` fill in the part that is the driver's.
    ///
    /// # Safety
    ///
    /// `msg` must be a message that is being written to, by nobody else.
    ///
    /// # Errors
    ///
    /// `EMSGSIZE` if there is no room; then the message is as it was.
    pub(super) unsafe fn fill(
        msg: NonNull<bindings::sk_buff>,
        f: impl FnOnce(&mut Details<'_>) -> Result,
    ) -> Result {
        // CAST: A small constant.
        let kind = bindings::rdma_nldev_attr_RDMA_NLDEV_ATTR_DRIVER as c_int;
        // SAFETY: By the caller's promise.
        let nest = unsafe { riwarp_helper_nla_nest_start_noflag(msg.as_ptr(), kind) };
        let nest = NonNull::new(nest).ok_or(EMSGSIZE)?;
        let mut details = Details {
            msg,
            _life: PhantomData,
        };
        match f(&mut details) {
            Ok(()) => {
                // SAFETY: It was started in this message, and nothing in it is open.
                unsafe { riwarp_helper_nla_nest_end(msg.as_ptr(), nest.as_ptr()) };
                Ok(())
            }
            Err(_) => {
                // SAFETY: As above.
                unsafe { riwarp_helper_nla_nest_cancel(msg.as_ptr(), nest.as_ptr()) };
                Err(EMSGSIZE)
            }
        }
    }

    /// Adds a word.
    ///
    /// # Errors
    ///
    /// `EMSGSIZE` if there is no room.
    pub fn word(&mut self, name: &CStr, value: &CStr) -> Result {
        // SAFETY: By the promise in `fill`; both are strings, and are copied.
        to_result(unsafe {
            bindings::rdma_nl_put_driver_string(
                self.msg.as_ptr(),
                name.as_char_ptr(),
                value.as_char_ptr(),
            )
        })
    }

    /// Adds a number.
    ///
    /// # Errors
    ///
    /// `EMSGSIZE` if there is no room.
    pub fn number(&mut self, name: &CStr, value: u32) -> Result {
        // SAFETY: By the promise in `fill`; the name is a string, and is copied.
        to_result(unsafe {
            bindings::rdma_nl_put_driver_u32(self.msg.as_ptr(), name.as_char_ptr(), value)
        })
    }

    /// Adds a set of flags.
    ///
    /// # Errors
    ///
    /// `EMSGSIZE` if there is no room.
    pub fn flags(&mut self, name: &CStr, value: u32) -> Result {
        // SAFETY: By the promise in `fill`; the name is a string, and is copied.
        to_result(unsafe {
            bindings::rdma_nl_put_driver_u32_hex(self.msg.as_ptr(), name.as_char_ptr(), value)
        })
    }
}

extern "C" {
    fn riwarp_helper_nla_nest_start_noflag(
        msg: *mut bindings::sk_buff,
        kind: c_int,
    ) -> *mut bindings::nlattr;
    fn riwarp_helper_nla_nest_end(msg: *mut bindings::sk_buff, nest: *mut bindings::nlattr);
    fn riwarp_helper_nla_nest_cancel(msg: *mut bindings::sk_buff, nest: *mut bindings::nlattr);
}
