// SPDX-License-Identifier: GPL-2.0

//! Flush: the peer answers once all that it has placed before is where the Flush wants it.
//!
//! A Flush is a Read Request that a reserved bit marks, between peers that agreed on it
//! ([`crate::rdmap::Marked`]). What it asks for stands in the field of the sink STag, the length of
//! the range in the field of the size. The answer is a Read Response of no octets, whose STag and
//! offset are those fields again. docs/connections.md has the layout.
//!
//! Pure; any context. This is an extension of riwarp: no RFC specifies it.

use crate::{
    fault::Fault,
    rdmap::ReadRequest,
    stag::{
        Access,
        Stag,
        TaggedOffset, //
    }, //
};

/// Where the octets have to be: a set that is not empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlushPlacement(u8);

impl FlushPlacement {
    /// Visible to every processor and device of the peer's host.
    pub const GLOBAL: Self = Self(1 << 0);
    /// Kept when the peer's host loses its power.
    pub const PERSISTENT: Self = Self(1 << 1);

    /// Returns the set of these bits, whose values are those of the verbs; `None` if it is empty or
    /// has others.
    #[inline]
    pub const fn from_bits(bits: u8) -> Option<Self> {
        let all = Self::GLOBAL.0 | Self::PERSISTENT.0;
        if bits == 0 || bits & !all != 0 {
            return None;
        }
        Some(Self(bits))
    }

    /// Returns whether every member of `other` is in this set.
    #[inline]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns the rights that the region has to give.
    pub const fn needed(self) -> Access {
        let mut needed = Access::NONE;
        if self.contains(Self::GLOBAL) {
            needed = needed.union(Access::FLUSH_GLOBAL);
        }
        if self.contains(Self::PERSISTENT) {
            needed = needed.union(Access::FLUSH_PERSISTENT);
        }
        needed
    }
}

/// How much of a region a Flush is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushLevel {
    /// The range that it names.
    Range,
    /// All of the region.
    Region,
}

/// A Flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlushRequest {
    /// Where the octets have to be.
    pub placement: FlushPlacement,
    /// How much of the region it is for.
    pub level: FlushLevel,
    /// The region.
    pub stag: Stag,
    /// Where in it the range begins; of no meaning for all of the region.
    pub to: TaggedOffset,
    /// Length of the range in octets, likewise.
    pub len: u32,
}

impl FlushRequest {
    /// The bit that says that all of the region is meant.
    const REGION: u32 = 1 << 8;

    /// Reads it from the header of a marked Read Request.
    ///
    /// # Errors
    ///
    /// [`Fault::FlushKind`] if it asks for nothing, or for what does not exist.
    pub fn of_request(header: &ReadRequest) -> Result<Self, Fault> {
        let [placement, level, rest @ ..] = header.sink_stag.raw().to_le_bytes();
        let level = match (level, rest) {
            (0, [0, 0]) => FlushLevel::Range,
            (1, [0, 0]) => FlushLevel::Region,
            _ => return Err(Fault::FlushKind),
        };
        Ok(Self {
            placement: FlushPlacement::from_bits(placement).ok_or(Fault::FlushKind)?,
            level,
            stag: header.source_stag,
            to: header.source_to,
            len: header.len,
        })
    }

    /// Returns the header of the marked Read Request.
    pub const fn to_request(&self) -> ReadRequest {
        // CAST: widens.
        let mut kind = self.placement.0 as u32;
        if matches!(self.level, FlushLevel::Region) {
            kind |= Self::REGION;
        }
        ReadRequest {
            sink_stag: Stag::new(kind),
            sink_to: TaggedOffset::new(0),
            len: self.len,
            source_stag: self.stag,
            source_to: self.to,
        }
    }
}

/// Returns the Read of no octets whose Response answers a Flush with this header.
#[must_use]
pub const fn answered_as(header: &ReadRequest) -> ReadRequest {
    ReadRequest {
        sink_stag: header.sink_stag,
        sink_to: header.sink_to,
        ..ReadRequest::NOTHING
    }
}

#[cfg(any(test, MODULE))]
#[cfg_attr(MODULE, kernel::prelude::kunit_tests(iwarp_flush))]
mod tests {
    use super::*;

    const RANGE: FlushRequest = FlushRequest {
        placement: FlushPlacement::GLOBAL,
        level: FlushLevel::Range,
        stag: Stag::new(0x0102_0304),
        to: TaggedOffset::new(0x0506_0708_090a_0b0c),
        len: 0x0d0e_0f10,
    };

    #[test]
    fn a_flush_is_laid_out_as_documented() {
        let mut octets = [0; ReadRequest::LEN];
        octets[3] = 1;
        octets[12..16].copy_from_slice(&[0x0d, 0x0e, 0x0f, 0x10]);
        octets[16..20].copy_from_slice(&[1, 2, 3, 4]);
        octets[20..].copy_from_slice(&[5, 6, 7, 8, 9, 10, 11, 12]);
        assert_eq!(RANGE.to_request().encode(), octets);
        assert_eq!(
            FlushRequest::of_request(&RANGE.to_request()).ok(),
            Some(RANGE)
        );
        let both = FlushPlacement::from_bits(3);
        let region = FlushRequest {
            level: FlushLevel::Region,
            placement: both.unwrap_or(FlushPlacement::GLOBAL),
            ..RANGE
        };
        octets[2..4].copy_from_slice(&[1, 3]);
        assert_eq!(region.to_request().encode(), octets);
        assert_eq!(
            FlushRequest::of_request(&region.to_request()).ok(),
            Some(region)
        );
    }

    #[test]
    fn unknown_flush_kinds_are_refused() {
        for kind in [0, 4, 0x100, 0x201, 0x1_0001, 0x100_0001, u32::MAX] {
            let request = ReadRequest {
                sink_stag: Stag::new(kind),
                ..RANGE.to_request()
            };
            assert_eq!(
                FlushRequest::of_request(&request).err(),
                Some(Fault::FlushKind)
            );
        }
    }

    #[test]
    fn flush_placement_needs_its_access_right() {
        assert_eq!(FlushPlacement::GLOBAL.needed(), Access::FLUSH_GLOBAL);
        assert_eq!(
            FlushPlacement::PERSISTENT.needed(),
            Access::FLUSH_PERSISTENT
        );
        let both = FlushPlacement::from_bits(3).map(FlushPlacement::needed);
        let rights = Access::FLUSH_GLOBAL.union(Access::FLUSH_PERSISTENT);
        assert_eq!(both, Some(rights));
    }

    #[test]
    fn flush_response_is_empty() {
        let header = RANGE.to_request();
        let answer = answered_as(&header);
        assert_eq!((answer.len, answer.sink_stag.raw()), (0, 1));
    }
}
