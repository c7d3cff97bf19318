// SPDX-License-Identifier: GPL-2.0

//! A plain, portable CRC32c for tests.
//!
//! The driver uses the kernel's, which is many times faster; a kernel build contains this module
//! only if it contains KUnit tests.
//!
//! RFC 5044, section 4.4 (MPA-17): polynomial 0x1EDC6F41, reflected, all ones before, complement
//! after.

/// The polynomial, least significant bit first.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// The register after eight steps, for each octet.
static TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut octet: u8 = 0;
    while octet < 0xff {
        octet = octet.saturating_add(1);
        // CAST: widens; `From` is not const. PANIC: there are 256 entries.
        #[expect(clippy::indexing_slicing, reason = "the index is an octet")]
        {
            table[octet as usize] = eight_steps(octet);
        }
    }
    table
};

/// Returns the CRC32c of `octets`.
pub fn crc32c(octets: &[u8]) -> u32 {
    !octets.iter().fold(!0, |crc: u32, octet| {
        let [low, ..] = crc.to_le_bytes();
        // PANIC: there are 256 entries.
        #[expect(clippy::indexing_slicing, reason = "the index is an octet")]
        let steps = TABLE[usize::from(low ^ octet)];
        (crc >> 8) ^ steps
    })
}

const fn eight_steps(octet: u8) -> u32 {
    // CAST: widens; `From` is not const.
    let mut crc = octet as u32;
    let mut bit: u8 = 0;
    while bit < 8 {
        crc = (crc >> 1) ^ if crc & 1 == 0 { 0 } else { POLYNOMIAL };
        bit = bit.saturating_add(1);
    }
    crc
}

#[cfg(any(test, MODULE))]
#[cfg_attr(MODULE, kernel::prelude::kunit_tests(iwarp_crc))]
mod tests {
    use super::*;
    use crate::mpa::crc_trailer;

    #[test]
    fn known_values() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        // RFC 3720, appendix B.4.
        assert_eq!(crc_trailer(crc32c(&[0; 32])), [0xaa, 0x36, 0x91, 0x8a]);
        assert_eq!(crc_trailer(crc32c(&[0xff; 32])), [0x43, 0xab, 0xa8, 0x62]);
        assert_eq!(crc32c(&[]), 0);
    }
}
