// SPDX-License-Identifier: GPL-2.0

//! Errors that the `kernel` crate has no name for, as constants.
//!
//! `Error::try_from_errno()` makes them, but is private. 7.3 has the names; a patch that makes the
//! function public would end this file for 7.2 too.

use kernel::error::Error;

/// Returns the error with this number, one of C's constants.
pub(super) const fn error(errno: u32) -> Error {
    // CAST: The numbers of errors are small.
    let errno = -(errno as i32);
    // SAFETY: `transmute` requires a valid `Error`, which is a number that is not zero, in a
    // structure of the same size: `errno` is the negative of one of C's constants.
    unsafe { core::mem::transmute::<i32, Error>(errno) }
}
