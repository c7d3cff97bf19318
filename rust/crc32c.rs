// SPDX-License-Identifier: GPL-2.0

//! CRC32c by the kernel's implementation, which uses the CPU's instructions.
//!
//! The checksum of iSCSI (RFC 7143, section 13.1), and of others after it, is
//! `finish(update(INIT, octets))`, sent in little-endian byte order. Context: any.
//!
//! C header: `include/linux/crc32.h`.

use crate::bindings;

/// The initial value.
pub const INIT: u32 = !0;

/// Continues a checksum over more octets.
#[inline]
pub fn update(crc: u32, data: &[u8]) -> u32 {
    // SAFETY: A slice is readable over its length.
    unsafe { update_raw(crc, data.as_ptr(), data.len()) }
}

/// Continues a checksum over memory that may change meanwhile; the result may then cover a mix of
/// old and new octets.
///
/// # Safety
///
/// `ptr` must be readable by the kernel for `len` octets.
#[inline]
pub(crate) unsafe fn update_raw(crc: u32, ptr: *const u8, len: usize) -> u32 {
    // SAFETY: `crc32c()` requires `len` readable octets at `ptr`: the caller guarantees them.
    unsafe { bindings::crc32c(crc, ptr.cast(), len) }
}

/// Ends a checksum.
#[inline]
pub const fn finish(crc: u32) -> u32 {
    !crc
}

#[kernel::prelude::kunit_tests(riwarp_crc32c)]
mod tests {
    use super::*;

    fn sum(octets: &[u8]) -> u32 {
        finish(update(INIT, octets))
    }

    #[test]
    fn known_values() {
        assert_eq!(sum(b"123456789"), 0xe306_9283);
        // RFC 3720, appendix B.4.
        assert_eq!(sum(&[0; 32]), 0x8a91_36aa);
        assert_eq!(sum(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(sum(&[]), 0);
    }

    #[test]
    fn crc_of_pieces_combines_to_crc_of_whole() {
        let octets: [u8; 200] = crate::random::octets();
        let whole = sum(&octets);
        for cut in 0..=octets.len() {
            let (front, back) = octets.split_at(cut);
            assert_eq!(finish(update(update(INIT, front), back)), whole);
        }
    }
}
