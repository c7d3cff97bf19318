// SPDX-License-Identifier: GPL-2.0

//! Markers: four octets every 512 octets of a direction of the stream, which say where the FPDU
//! around them began.
//!
//! Counting begins at the first octet of the first FPDU, where the first Marker stands, and
//! includes the Markers themselves. FPDUs are multiples of 4 octets, so a Marker never splits an
//! aligned field of 4 octets such as the CRC. A Marker in front of an FPDU belongs to it, and to
//! its CRC (MPA-19).
//!
//! The sender asks a [`MarkerClock`] where to insert Markers into the next FPDU; the receiver asks
//! one where to remove them, and may check them.
//!
//! Pure, any context.
//!
//! RFC 5044, section 4.3 (rows MPA-18, -19, -23..27).

/// Length in octets of a Marker.
pub const MARKER_LEN: usize = 4;

/// Octets of FPDUs between two Markers.
const BETWEEN: u16 = 508;

/// The place of the Markers in one direction of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MarkerClock {
    /// Octets of FPDUs before the next Marker, below 508.
    next: u16,
}

/// One Marker of an FPDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marker {
    /// How many octets of the FPDU, Markers not counted, come before it.
    pub at: u32,
    /// FPDUPTR: how many octets lie between the start of the ULPDU_Length field and the Marker,
    /// earlier Markers included; 0 for a Marker in front of the FPDU (MPA-26).
    pub pointer: u16,
}

impl Marker {
    /// Returns the octets of the Marker: 16 reserved bits, 0, and the pointer (MPA-25).
    #[inline]
    pub const fn encode(self) -> [u8; MARKER_LEN] {
        let [high, low] = self.pointer.to_be_bytes();
        [0, 0, high, low]
    }

    /// Returns whether these octets, which arrived in the Marker's place, are the Marker. Ignores
    /// reserved bits. If they are not, the fault is [`crate::fault::Fault::Marker`] (MPA-27).
    #[inline]
    pub const fn matches(self, octets: [u8; MARKER_LEN]) -> bool {
        let [_, _, high, low] = octets;
        u16::from_be_bytes([high, low]) == self.pointer
    }
}

impl MarkerClock {
    /// Begins a direction: the first Marker comes before the first FPDU.
    #[inline]
    pub const fn new() -> Self {
        Self { next: 0 }
    }

    /// Returns how many octets lie between the end of the previous FPDU and the next FPDU's
    /// ULPDU_Length field: 4 if a Marker comes first, else 0.
    #[inline]
    pub const fn length_at(&self) -> usize {
        if self.next == 0 {
            MARKER_LEN
        } else {
            0
        }
    }

    /// Returns the Markers of the next FPDU, which is `fpdu_len` octets long without them
    /// ([`crate::mpa::fpdu_len`]), in the order of the stream.
    #[inline]
    pub fn markers(&self, fpdu_len: u32) -> impl Iterator<Item = Marker> {
        let first = u32::from(self.next);
        (first..fpdu_len)
            .step_by(usize::from(BETWEEN))
            .zip(0u32..)
            .map(move |(at, nth)| {
                // A Marker in front of the FPDU lies before the field that pointers count from.
                let between = if first == 0 {
                    nth.saturating_sub(1)
                } else {
                    nth
                };
                let pointer = at.saturating_add(between.saturating_mul(4));
                // An FPDU within `mulpdu` is never that long; a longer one wraps modulo 2^16.
                let [_, _, high, low] = pointer.to_be_bytes();
                Marker {
                    at,
                    pointer: u16::from_be_bytes([high, low]),
                }
            })
    }

    /// Returns the length in octets of the next FPDU with its Markers.
    #[inline]
    pub fn marked_len(&self, fpdu_len: u32) -> u32 {
        let behind_first = fpdu_len.saturating_sub(u32::from(self.next));
        let markers = behind_first.div_ceil(u32::from(BETWEEN));
        fpdu_len.saturating_add(markers.saturating_mul(4))
    }

    /// Moves on past an FPDU of `fpdu_len` octets, Markers not counted. A command.
    #[inline]
    pub fn advance(&mut self, fpdu_len: u32) {
        let next = i64::from(self.next)
            .saturating_sub(i64::from(fpdu_len))
            .rem_euclid(i64::from(BETWEEN));
        self.next = u16::try_from(next).unwrap_or(0);
    }
}

#[cfg(any(test, MODULE))]
#[cfg_attr(MODULE, kernel::prelude::kunit_tests(iwarp_marker))]
mod tests {
    use super::*;

    #[test]
    fn first_marker_precedes_first_fpdu() {
        let clock = MarkerClock::new();
        assert_eq!(clock.length_at(), MARKER_LEN);
        let first = Marker { at: 0, pointer: 0 };
        assert!(clock.markers(8).eq([first]));
        assert_eq!(clock.marked_len(8), 12);
    }

    #[test]
    fn markers_are_512_octets_apart_for_any_segmentation() {
        for fpdu_len in [8, 12, 504, 508, 512, 516, 1020, 1464, 65540u32] {
            let mut clock = MarkerClock::new();
            // Octets of the stream before the FPDU, Markers included.
            let mut start = 0;
            let mut next = 0;
            for _ in 0..200 {
                let mut seen = 0;
                for marker in clock.markers(fpdu_len) {
                    assert_eq!(start + marker.at + 4 * seen, next);
                    next += 512;
                    seen += 1;
                }
                assert_eq!(clock.marked_len(fpdu_len), fpdu_len + 4 * seen);
                start += clock.marked_len(fpdu_len);
                clock.advance(fpdu_len);
            }
        }
    }

    #[test]
    fn marker_pointer_counts_from_length_field() {
        let mut clock = MarkerClock::new();
        // One in front, which pointers do not count, then one behind each 508 octets.
        let pointers = clock.markers(1200).map(|marker| marker.pointer);
        assert!(pointers.eq([0, 508, 1020]));
        clock.advance(500);
        assert_eq!(clock.length_at(), 0);
        let pointers = clock.markers(1200).map(|marker| marker.pointer);
        assert!(pointers.eq([8, 520, 1032]));
    }

    #[test]
    fn marker_reserved_bits_are_ignored() {
        let marker = Marker {
            at: 8,
            pointer: 0x0102,
        };
        assert_eq!(marker.encode(), [0, 0, 1, 2]);
        assert!(marker.matches([0xff, 0xff, 1, 2]));
        assert!(!marker.matches([0, 0, 1, 3]));
        assert!(!marker.matches([0, 0, 2, 1]));
    }
}
