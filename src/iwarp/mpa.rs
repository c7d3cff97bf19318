// SPDX-License-Identifier: GPL-2.0

//! MPA framing: how long an FPDU is, and how large a ULPDU may be.
//!
//! ```text
//! | ULPDU_Length, 2 | ULPDU | pad, 0 to 3 | CRC, 4 |
//! ```
//!
//! This module computes lengths only: the driver moves the octets and computes their CRC. Markers
//! are in [`marker`], start-up frames and their negotiation in [`start`] and [`negotiate`].
//!
//! Pure functions, any context.
//!
//! RFC 5044, section 4.

pub mod marker;
pub mod negotiate;
pub mod start;

/// Length in octets of the ULPDU_Length field.
pub const LENGTH_LEN: usize = 2;

/// Length in octets of the CRC field; present even if CRCs are off (MPA-16).
pub const CRC_LEN: usize = 4;

/// Length in octets of the shortest FPDU, that of an empty ULPDU (MPA-13).
pub const FPDU_MIN: u32 = 8;

/// The least MULPDU, in octets, whatever the segment size of TCP (MPA-28).
pub const MULPDU_MIN: u16 = 128;

/// The greatest MULPDU, in octets: the greatest length that fits the 16-bit length field and needs
/// no padding.
pub const MULPDU_MAX: u16 = 65534;

/// The greatest length in octets of an FPDU with Markers, whose pointers have 16 bits.
const MARKED_MAX: u32 = 65532;

/// Whether one direction of a stream carries Markers (MPA-23).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Markers {
    /// None.
    #[default]
    Off,
    /// One every 512 octets.
    On,
}

/// Whether the CRCs of a stream are generated and checked (MPA-14).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Crc {
    /// The fields are present, but their contents are ignored.
    Off,
    /// The default, which only an administrator may change (MPA-15).
    #[default]
    On,
}

/// Returns how many octets of zeros follow a ULPDU of `ulpdu_len` octets: 0 to 3 (MPA-12).
#[inline]
pub const fn pad_len(ulpdu_len: u16) -> u8 {
    // CAST: at most 3.
    (2u16.wrapping_sub(ulpdu_len) & 3) as u8
}

/// Returns the length in octets of the FPDU around a ULPDU of `ulpdu_len` octets, Markers not
/// counted (MPA-11). It is a multiple of 4, from 8 to 65544.
#[inline]
pub const fn fpdu_len(ulpdu_len: u16) -> u32 {
    // CAST: both casts widen; `From` is not const.
    // NO-OVERFLOW: at most 2 + 65535 + 3 + 4.
    (ulpdu_len as u32)
        .saturating_add(const { (LENGTH_LEN + CRC_LEN) as u32 })
        .saturating_add(pad_len(ulpdu_len) as u32)
}

/// Returns the greatest ULPDU whose FPDU fits into one TCP segment of `emss` octets (MPA-28).
///
/// The result is between [`MULPDU_MIN`] and [`MULPDU_MAX`]. With a smaller `emss` FPDUs do not fit
/// into one segment; with a larger one, the length field or the pointer of the Markers is the
/// limit.
#[inline]
pub const fn mulpdu(emss: u32, markers: Markers) -> u16 {
    let (emss, markers) = match markers {
        Markers::Off => (emss, 0),
        Markers::On => {
            let emss = if emss > MARKED_MAX { MARKED_MAX } else { emss };
            (emss, emss.div_ceil(512).saturating_mul(4))
        }
    };
    let room = emss.saturating_sub(markers.saturating_add(6).saturating_add(emss & 3));
    // CAST: `room` is between the limits where it is the result.
    if room < MULPDU_MIN as u32 {
        MULPDU_MIN
    } else if room > MULPDU_MAX as u32 {
        MULPDU_MAX
    } else {
        room as u16
    }
}

/// How many TCP segments an FPDU may fill where the peer takes FPDUs longer than one.
const SEGMENTS_MAX: u32 = 24;

/// Returns the greatest ULPDU for a peer that takes FPDUs longer than a segment, if their ULPDU has
/// at most `ulpdu_max` octets ([`crate::features`]); not less than [`mulpdu`].
///
/// The FPDU fills at most 24 segments, without Markers, and needs no padding.
#[inline]
pub const fn long_mulpdu(emss: u32, ulpdu_max: u16) -> u16 {
    let short = mulpdu(emss, Markers::Off);
    let long = mulpdu(emss.saturating_mul(SEGMENTS_MAX), Markers::Off);
    // One without padding: 2 more than a multiple of 4.
    let most = (ulpdu_max.saturating_sub(2) & !3) | 2;
    let long = if long < most { long } else { most };
    if long < short {
        short
    } else {
        long
    }
}

/// Returns the octets of the CRC field: least significant octet first, unlike every other field
/// (MPA-17).
///
/// `crc` is the finished CRC32c of the FPDU's octets before the field, length, pad and Markers
/// included (MPA-18).
#[inline]
pub const fn crc_trailer(crc: u32) -> [u8; CRC_LEN] {
    crc.to_le_bytes()
}

#[cfg(any(test, MODULE))]
#[cfg_attr(MODULE, kernel::prelude::kunit_tests(iwarp_mpa))]
mod tests {
    use super::*;

    /// Every length under cargo, some of them under KUnit.
    const STEP: usize = if cfg!(MODULE) { 101 } else { 1 };

    #[test]
    fn fpdus_are_padded_to_four_octets() {
        for len in (0..=u16::MAX).step_by(STEP) {
            let total = u32::from(len) + 2 + u32::from(pad_len(len)) + 4;
            assert!(pad_len(len) <= 3);
            assert_eq!(fpdu_len(len), total);
            assert_eq!(total % 4, 0);
        }
        assert_eq!(fpdu_len(0), FPDU_MIN);
    }

    #[test]
    fn mulpdu_matches_the_rfc_examples() {
        assert_eq!(mulpdu(1460, Markers::On), 1442);
        assert_eq!(mulpdu(1460, Markers::Off), 1454);
        assert_eq!(mulpdu(100, Markers::Off), 128);
    }

    #[test]
    fn mulpdu_fills_one_tcp_segment() {
        for emss in (0..70_000).step_by(STEP) {
            let plain = mulpdu(emss, Markers::Off);
            let marked = mulpdu(emss, Markers::On);
            for len in [plain, marked] {
                assert!((MULPDU_MIN..=MULPDU_MAX).contains(&len));
            }
            assert!(marked <= plain);
            if plain > MULPDU_MIN && plain < MULPDU_MAX {
                assert!(fpdu_len(plain) <= emss && emss - fpdu_len(plain) < 4);
            }
            if marked > MULPDU_MIN {
                assert!(fpdu_len(marked) + 4 * emss.div_ceil(512) <= emss);
            }
        }
        assert_eq!(mulpdu(u32::MAX, Markers::Off), MULPDU_MAX);
        assert_eq!(mulpdu(u32::MAX, Markers::On), mulpdu(65532, Markers::On));
        assert_eq!(fpdu_len(MULPDU_MAX), 65540);
    }

    #[test]
    fn long_fpdus_are_within_peer_limit() {
        for emss in (0..70_000).step_by(STEP) {
            let short = mulpdu(emss, Markers::Off);
            for max in [0, 1, 1000, 4097, 16398, 32782, u16::MAX] {
                let long = long_mulpdu(emss, max);
                assert!(long >= short);
                assert!(long == short || (long <= max && pad_len(long) == 0));
                assert!(long == short || fpdu_len(long) <= 24 * emss);
            }
        }
        assert_eq!(long_mulpdu(1460, 0), 1454);
        assert_eq!(long_mulpdu(1460, 32782), 32782);
        assert_eq!(long_mulpdu(1460, 32785), 32782);
        assert_eq!(long_mulpdu(1460, u16::MAX), 35034);
        assert_eq!(long_mulpdu(8960, u16::MAX), MULPDU_MAX);
    }

    #[test]
    fn crc_field_has_its_least_octet_first() {
        assert_eq!(crc_trailer(0x0102_0304), [4, 3, 2, 1]);
    }
}
