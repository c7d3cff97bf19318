// SPDX-License-Identifier: GPL-2.0

//! Markers: four octets every 512 octets of a direction of the stream, which say where the FPDU
//! around them began.
//!
//! Counting begins at the first octet of the first FPDU, where the first Marker stands, and
//! includes the Markers themselves. FPDUs are multiples of 4 octets, so a Marker never divides a
//! field of 4 octets, and the CRC field least of all. A Marker in front of an FPDU belongs to it,
//! and to its CRC (MPA-19).
//!
//! The sender asks a [`MarkerClock`] where to put Markers into the next FPDU; the receiver asks one
//! where to leave them out, and may compare what it finds.
//!
//! Pure, any context.
//!
//! RFC 5044, section 4.3 (draft numbering: MPA-18, -19, -23..27).

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

    /// Returns whether these octets, which came where the Marker has to be, are the Marker.
    /// Reserved bits are not looked at. If they are not, the fault is
    /// [`crate::fault::Fault::Marker`] (MPA-27).
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

    /// Returns where in the stream, counted from the end of the FPDU before, the next FPDU's
    /// ULPDU_Length field is: 4 octets on if a Marker comes first, else 0.
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
                // No FPDU that keeps to `mulpdu` is that long; others have a pointer modulo 2^16.
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
