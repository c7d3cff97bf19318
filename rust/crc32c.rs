// SPDX-License-Identifier: GPL-2.0

//! CRC32c as the kernel computes it, with the instructions that the CPU has for it.
//!
//! The checksum of MPA (RFC 5044, section 4.1) is `finish(update(INIT, octets))`, sent in
//! little-endian order of octets by convention of its predecessor (RFC 3385). Context: any.
//!
//! C header: `include/linux/crc32.h`.

use crate::bindings;

/// The value to start with.
pub const INIT: u32 = !0;

/// Continues a checksum over more octets.
#[inline]
pub fn update(crc: u32, data: &[u8]) -> u32 {
    // SAFETY: A slice is readable over its length.
    unsafe { update_raw(crc, data.as_ptr(), data.len()) }
}

/// Continues a checksum over memory that others may write meanwhile; the result then is of some
/// mixture.
///
/// # Safety
///
/// `ptr` must be readable by the kernel for `len` octets.
#[inline]
pub(crate) unsafe fn update_raw(crc: u32, ptr: *const u8, len: usize) -> u32 {
    // SAFETY: By the contract of this function the memory is readable.
    unsafe { bindings::crc32c(crc, ptr.cast(), len) }
}

/// Ends a checksum.
#[inline]
pub const fn finish(crc: u32) -> u32 {
    !crc
}
