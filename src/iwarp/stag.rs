// SPDX-License-Identifier: GPL-2.0

//! Steering Tags, tagged offsets, and the check of every access of a peer to local memory.
//!
//! The checks take what the driver found under an STag ([`RegionView`]) and what the peer asks for,
//! and return the offset into the region, or the [`Fault`] to report. Their order is fixed
//! (DDP-86): STag, protection domain or stream, rights, 64-bit wrap, bounds.
//!
//! Pure functions, any context; called once per incoming segment.
//!
//! RFC 5041, sections 7.1 and 8.2; RFC 5040, section 7.2 (rows DDP-75..80,
//! RDMAP-153..158).

use crate::{
    fault::Fault,
    flush::{
        FlushLevel,
        FlushRequest, //
    }, //
};

/// A Steering Tag: 24 bits of index, which find the region, and 8 bits of key, which the consumer
/// chooses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stag(u32);

impl Stag {
    /// The STag field of messages that carry none (RDMAP-26).
    pub const ZERO: Self = Self(0);

    /// Greatest index, 2^24 - 1.
    pub const INDEX_MAX: u32 = 0x00ff_ffff;

    /// Makes an STag from its wire value.
    #[inline]
    pub const fn new(raw: u32) -> Self {
        Self(raw)
    }

    /// Makes an STag from an index of at most 24 bits and a key; bits of `index` above
    /// [`Self::INDEX_MAX`] are dropped.
    #[inline]
    pub const fn from_parts(index: u32, key: u8) -> Self {
        let [_, a, b, c] = index.to_be_bytes();
        Self(u32::from_be_bytes([a, b, c, key]))
    }

    /// Returns the upper 24 bits.
    #[inline]
    pub const fn index(self) -> u32 {
        self.0 >> 8
    }

    /// Returns the lower 8 bits.
    #[inline]
    pub const fn key(self) -> u8 {
        let [_, _, _, key] = self.0.to_be_bytes();
        key
    }

    /// Returns the wire value.
    #[inline]
    pub const fn raw(self) -> u32 {
        self.0
    }
}

/// A Tagged Offset: an address in octets inside the space that an STag names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaggedOffset(u64);

impl TaggedOffset {
    /// Makes an offset from its wire value, any 64-bit number.
    #[inline]
    pub const fn new(raw: u64) -> Self {
        Self(raw)
    }

    /// Returns the wire value.
    #[inline]
    pub const fn raw(self) -> u64 {
        self.0
    }

    /// Returns the offset `octets` further on, modulo 2^64. The sink checks for a wrap (RDMAP-35),
    /// so a source may produce one.
    #[inline]
    pub const fn wrapping_add(self, octets: u32) -> Self {
        // CAST: u32 to u64 loses nothing; `From` is not const.
        Self(self.0.wrapping_add(octets as u64))
    }
}

/// A set of rights to a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Access(u8);

impl Access {
    /// No right at all.
    pub const NONE: Self = Self(0);
    /// Every right.
    pub const ALL: Self = Self(0x3f);
    /// The local side may place data: the sink of an RDMA Read, a receive buffer.
    pub const LOCAL_WRITE: Self = Self(1 << 0);
    /// The peer may write with RDMA Write.
    pub const REMOTE_WRITE: Self = Self(1 << 1);
    /// The peer may read with RDMA Read.
    pub const REMOTE_READ: Self = Self(1 << 2);
    /// The peer may use atomic operations.
    pub const REMOTE_ATOMIC: Self = Self(1 << 3);
    /// The peer may have what it has placed made visible to all of this host.
    pub const FLUSH_GLOBAL: Self = Self(1 << 4);
    /// The peer may have it kept over a loss of power.
    pub const FLUSH_PERSISTENT: Self = Self(1 << 5);

    /// Returns the rights of either set.
    #[inline]
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns the rights that are in both sets.
    #[inline]
    #[must_use]
    pub const fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Returns the rights that are in this set and not in the other one.
    #[inline]
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Returns the set as a number, for [`Access::from_bits`].
    #[inline]
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// Returns the set of [`Access::bits`]; ignores bits that are not rights.
    #[inline]
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits).intersection(Self::ALL)
    }

    /// Returns whether every right of `needed` is in this set.
    #[inline]
    pub const fn contains(self, needed: Self) -> bool {
        self.0 & needed.0 == needed.0
    }

    /// Returns whether the set holds no right.
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// Whether a region may be used on the stream at hand (DDP-88, -89, -91; RDMAP-160, -161).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Association {
    /// Its protection domain is the stream's, and it is bound to no other stream.
    Ours,
    /// It belongs to another protection domain or to another stream.
    Foreign,
}

/// What the checks need to know about the region under an STag's index.
///
/// A snapshot by value: the driver fills it from its own table under its own locking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionView {
    /// The region's current STag, key included.
    pub stag: Stag,
    /// Tagged offset of its first octet.
    pub base: u64,
    /// Its length in octets.
    pub len: u64,
    /// The rights given at registration.
    pub access: Access,
    /// Whether it may be used on this stream.
    pub association: Association,
    /// False while the STag exists but is revoked: not yet registered by a work request,
    /// invalidated, or about to be deregistered.
    pub valid: bool,
}

/// Why an access was refused; the kind of message decides which fault reports it.
enum Refusal {
    InvalidStag,
    NotAssociated,
    NoRight,
    Wrap,
    Bounds,
}

/// Checks a non-empty tagged segment against the region under its STag, and returns the offset of
/// its first octet from the start of the region.
///
/// For RDMA Writes `needed` is [`Access::REMOTE_WRITE`]; for the local half of a Read Response it
/// is [`Access::LOCAL_WRITE`]. `region` is `None` if nothing is registered under the index of
/// `stag`.
///
/// A segment without payload is **not** checked at all (RFC 5041, section 5.2; DDP-41): the result
/// is `Ok(0)` and no memory may be accessed. Such a segment needs no look-up either.
///
/// # Errors
///
/// In this order: [`Fault::TaggedInvalidStag`] for an unknown, revoked or wrongly keyed STag,
/// [`Fault::TaggedNotAssociated`], [`Fault::TaggedNoRight`], [`Fault::TaggedWrap`] and
/// [`Fault::TaggedBounds`] (DDP-76..80).
#[inline]
pub fn check_tagged(
    region: Option<&RegionView>,
    stag: Stag,
    to: TaggedOffset,
    len: u32,
    needed: Access,
) -> Result<u64, Fault> {
    check(region, stag, to, len, needed).map_err(|refusal| match refusal {
        Refusal::InvalidStag => Fault::TaggedInvalidStag,
        Refusal::NotAssociated => Fault::TaggedNotAssociated,
        Refusal::NoRight => Fault::TaggedNoRight,
        Refusal::Wrap => Fault::TaggedWrap,
        Refusal::Bounds => Fault::TaggedBounds,
    })
}

/// Checks the source of an RDMA Read ([`Access::REMOTE_READ`]) or the target of an atomic operation
/// ([`Access::REMOTE_ATOMIC`], 8 octets) against the region under its STag, and returns the offset
/// of its first octet from the start of the region.
///
/// A Read of length 0 is **not** checked at all (RFC 5040, section 5.2.1; RDMAP-70): the result is
/// `Ok(0)`, and the driver sends a zero-length Response.
///
/// # Errors
///
/// In this order: [`Fault::SourceInvalidStag`], [`Fault::SourceNotAssociated`],
/// [`Fault::SourceNoRight`], [`Fault::SourceWrap`] and [`Fault::SourceBounds`] (RDMAP-153..158,
/// EXT-59).
#[inline]
pub fn check_source(
    region: Option<&RegionView>,
    stag: Stag,
    to: TaggedOffset,
    len: u32,
    needed: Access,
) -> Result<u64, Fault> {
    check(region, stag, to, len, needed).map_err(source_fault)
}

#[inline]
const fn source_fault(refusal: Refusal) -> Fault {
    match refusal {
        Refusal::InvalidStag => Fault::SourceInvalidStag,
        Refusal::NotAssociated => Fault::SourceNotAssociated,
        Refusal::NoRight => Fault::SourceNoRight,
        Refusal::Wrap => Fault::SourceWrap,
        Refusal::Bounds => Fault::SourceBounds,
    }
}

/// Checks a Flush against the region under its STag. An empty range is checked too. Returns the
/// offset in the region, and the length in octets, of what is to be flushed.
///
/// # Errors
///
/// As [`check_source`].
pub fn check_flush(
    region: Option<&RegionView>,
    request: &FlushRequest,
) -> Result<(u64, u64), Fault> {
    let needed = request.placement.needed();
    let region = check_region(region, request.stag, needed).map_err(source_fault)?;
    match request.level {
        FlushLevel::Region => Ok((0, region.len)),
        FlushLevel::Range => check_range(region, request.to, request.len)
            .map(|at| (at, request.len.into()))
            .map_err(source_fault),
    }
}

/// Whether the peer may invalidate a region with a Send: only fast-registered memory, and windows
/// bound to one stream, not memory that several streams share (RDMAP-166).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoteInvalidation {
    /// It may not.
    Forbidden,
    /// It may.
    Allowed,
}

/// Checks the STag that a Send with Invalidate brings, at the delivery of the message
/// (RDMAP-91..93). On success the driver invalidates the region; on a fault nothing changes.
///
/// `region` is `None` if nothing is registered under the index of `stag`. The key has to match too.
///
/// # Errors
///
/// [`Fault::InvalidateUnknown`] for an unknown, revoked or wrongly keyed STag, then
/// [`Fault::InvalidateForbidden`] for a foreign region or one that may not be invalidated.
#[inline]
pub fn check_invalidate(
    region: Option<&RegionView>,
    stag: Stag,
    permission: RemoteInvalidation,
) -> Result<(), Fault> {
    let region = match region {
        Some(region) if region.valid && region.stag == stag => region,
        Some(_) | None => return Err(Fault::InvalidateUnknown),
    };
    match (region.association, permission) {
        (Association::Ours, RemoteInvalidation::Allowed) => Ok(()),
        (Association::Foreign, _) | (_, RemoteInvalidation::Forbidden) => {
            Err(Fault::InvalidateForbidden)
        }
    }
}

#[inline]
fn check(
    region: Option<&RegionView>,
    stag: Stag,
    to: TaggedOffset,
    len: u32,
    needed: Access,
) -> Result<u64, Refusal> {
    if len == 0 {
        return Ok(0);
    }
    check_range(check_region(region, stag, needed)?, to, len)
}

/// Checks the region under an STag, its association and its rights.
#[inline]
fn check_region(
    region: Option<&RegionView>,
    stag: Stag,
    needed: Access,
) -> Result<&RegionView, Refusal> {
    let region = match region {
        Some(region) if region.valid && region.stag == stag => region,
        Some(_) | None => return Err(Refusal::InvalidStag),
    };
    if region.association == Association::Foreign {
        return Err(Refusal::NotAssociated);
    }
    if !region.access.contains(needed) {
        return Err(Refusal::NoRight);
    }
    Ok(region)
}

/// Checks a range in a region; returns its offset.
#[inline]
fn check_range(region: &RegionView, to: TaggedOffset, len: u32) -> Result<u64, Refusal> {
    let len = u64::from(len);
    if to.raw().checked_add(len).is_none() {
        return Err(Refusal::Wrap);
    }
    let offset = to.raw().checked_sub(region.base).ok_or(Refusal::Bounds)?;
    match region.len.checked_sub(offset) {
        Some(room) if len <= room => Ok(offset),
        Some(_) | None => Err(Refusal::Bounds),
    }
}

#[cfg(any(test, MODULE))]
#[cfg_attr(MODULE, kernel::prelude::kunit_tests(iwarp_stag))]
mod tests {
    use super::*;
    use crate::flush::FlushPlacement;

    const REGION: RegionView = RegionView {
        stag: Stag::new(0x0001_0042),
        base: 0x1000,
        len: 0x100,
        access: Access::REMOTE_WRITE,
        association: Association::Ours,
        valid: true,
    };

    fn write(region: RegionView, to: u64, len: u32) -> Result<u64, Fault> {
        let to = TaggedOffset::new(to);
        check_tagged(Some(&region), REGION.stag, to, len, Access::REMOTE_WRITE)
    }

    #[test]
    fn stag_is_index_and_key() {
        let stag = Stag::from_parts(0x00ab_cdef, 0x12);
        assert_eq!(stag.raw(), 0xabcd_ef12);
        assert_eq!((stag.index(), stag.key()), (0x00ab_cdef, 0x12));
        assert_eq!(Stag::from_parts(u32::MAX, 0).index(), Stag::INDEX_MAX);
    }

    #[test]
    fn access_rights_round_trip_without_unknown_bits() {
        for bits in 0..=u8::MAX {
            let rights = Access::from_bits(bits);
            assert_eq!(rights.bits(), bits & Access::ALL.bits());
            assert_eq!(rights.intersection(Access::ALL), rights);
            assert!(rights.intersection(Access::NONE).is_empty());
            let write = rights.intersection(Access::REMOTE_WRITE);
            assert_eq!(!write.is_empty(), rights.contains(Access::REMOTE_WRITE));
        }
    }

    #[test]
    fn access_is_checked_to_the_last_octet_of_region() {
        assert_eq!(write(REGION, 0x1000, 0x100), Ok(0));
        assert_eq!(write(REGION, 0x10ff, 1), Ok(0xff));
        assert_eq!(write(REGION, 0x1000, 0x101), Err(Fault::TaggedBounds));
        assert_eq!(write(REGION, 0x1100, 1), Err(Fault::TaggedBounds));
        assert_eq!(write(REGION, 0xfff, 1), Err(Fault::TaggedBounds));
    }

    #[test]
    fn address_wrap_and_bounds_are_distinct_faults() {
        assert_eq!(write(REGION, u64::MAX, 1), Err(Fault::TaggedWrap));
        assert_eq!(write(REGION, u64::MAX - 1, 1), Err(Fault::TaggedBounds));
        assert_eq!(
            write(REGION, u64::MAX - 0xff, 0x101),
            Err(Fault::TaggedWrap)
        );
    }

    #[test]
    fn region_may_end_at_the_highest_address() {
        let last = RegionView {
            base: u64::MAX - 0x100,
            ..REGION
        };
        assert_eq!(write(last, u64::MAX - 0x100, 0x100), Ok(0));
        assert_eq!(write(last, u64::MAX - 1, 1), Ok(0xff));
    }

    #[test]
    fn stag_checks_follow_the_order_of_the_rfc() {
        // Each step heals the first fault of the one before.
        let mut region = RegionView {
            access: Access::NONE,
            association: Association::Foreign,
            valid: false,
            ..REGION
        };
        let far = u64::MAX;
        assert_eq!(write(region, far, 1), Err(Fault::TaggedInvalidStag));
        region.valid = true;
        assert_eq!(write(region, far, 1), Err(Fault::TaggedNotAssociated));
        region.association = Association::Ours;
        assert_eq!(write(region, far, 1), Err(Fault::TaggedNoRight));
        region.access = Access::REMOTE_WRITE;
        assert_eq!(write(region, far, 1), Err(Fault::TaggedWrap));
        assert_eq!(write(region, 0, 1), Err(Fault::TaggedBounds));
        assert_eq!(write(region, 0x1000, 1), Ok(0));
    }

    #[test]
    fn empty_segment_is_not_checked_against_region() {
        let to = TaggedOffset::new(u64::MAX);
        let none = check_tagged(None, Stag::new(9), to, 0, Access::REMOTE_WRITE);
        assert_eq!(none, Ok(0));
        let none = check_source(None, Stag::new(9), to, 0, Access::REMOTE_READ);
        assert_eq!(none, Ok(0));
    }

    #[test]
    fn stag_with_wrong_key_is_refused() {
        let other = Stag::from_parts(REGION.stag.index(), REGION.stag.key() ^ 1);
        let to = TaggedOffset::new(0x1000);
        let refused = check_tagged(Some(&REGION), other, to, 1, Access::REMOTE_WRITE);
        assert_eq!(refused, Err(Fault::TaggedInvalidStag));
        let refused = check_source(Some(&REGION), other, to, 1, Access::REMOTE_READ);
        assert_eq!(refused, Err(Fault::SourceInvalidStag));
    }

    #[test]
    fn access_rights_are_checked_one_by_one() {
        let rights = [
            Access::LOCAL_WRITE,
            Access::REMOTE_WRITE,
            Access::REMOTE_READ,
            Access::REMOTE_ATOMIC,
        ];
        for given in rights {
            let region = RegionView {
                access: given,
                ..REGION
            };
            for needed in rights {
                let to = TaggedOffset::new(0x1000);
                let source = check_source(Some(&region), REGION.stag, to, 8, needed);
                let expected = if given == needed {
                    Ok(0)
                } else {
                    Err(Fault::SourceNoRight)
                };
                assert_eq!(source, expected);
            }
        }
        let both = Access::REMOTE_READ.union(Access::LOCAL_WRITE);
        assert!(both.contains(Access::REMOTE_READ) && !both.contains(Access::REMOTE_WRITE));
        assert!(Access::NONE.is_empty() && !both.is_empty());
    }

    #[test]
    fn empty_flush_is_checked_against_region() {
        let region = RegionView {
            access: Access::FLUSH_GLOBAL,
            ..REGION
        };
        let request = |level, to, len| FlushRequest {
            placement: FlushPlacement::GLOBAL,
            level,
            stag: REGION.stag,
            to: TaggedOffset::new(to),
            len,
        };
        let range = |to, len| check_flush(Some(&region), &request(FlushLevel::Range, to, len));
        assert_eq!(range(0x1000, 0x100), Ok((0, 0x100)));
        assert_eq!(range(0x1010, 0x80), Ok((0x10, 0x80)));
        assert_eq!(range(0x1000, 0x101), Err(Fault::SourceBounds));
        assert_eq!(range(0xfff, 1), Err(Fault::SourceBounds));
        assert_eq!(range(0x1100, 0), Ok((0x100, 0)));
        assert_eq!(range(0x1101, 0), Err(Fault::SourceBounds));
        assert_eq!(range(u64::MAX, 2), Err(Fault::SourceWrap));
        // All of a region has no range.
        let whole = request(FlushLevel::Region, 0, u32::MAX);
        assert_eq!(check_flush(Some(&region), &whole), Ok((0, 0x100)));
        for request in [whole, request(FlushLevel::Range, 0x1000, 0)] {
            let flush = |region: RegionView| check_flush(Some(&region), &request);
            assert_eq!(check_flush(None, &request), Err(Fault::SourceInvalidStag));
            let invalid = RegionView {
                valid: false,
                ..region
            };
            assert_eq!(flush(invalid), Err(Fault::SourceInvalidStag));
            let foreign = RegionView {
                association: Association::Foreign,
                ..region
            };
            assert_eq!(flush(foreign), Err(Fault::SourceNotAssociated));
            let written = RegionView {
                access: Access::REMOTE_WRITE,
                ..region
            };
            assert_eq!(flush(written), Err(Fault::SourceNoRight));
            let persistent = FlushRequest {
                placement: FlushPlacement::PERSISTENT,
                ..request
            };
            assert_eq!(
                check_flush(Some(&region), &persistent),
                Err(Fault::SourceNoRight)
            );
        }
    }

    #[test]
    fn remote_invalidate_needs_permission() {
        let allowed = RemoteInvalidation::Allowed;
        let check = |region, permission| check_invalidate(region, REGION.stag, permission);
        assert_eq!(check(Some(&REGION), allowed), Ok(()));
        assert_eq!(check(None, allowed), Err(Fault::InvalidateUnknown));
        let revoked = RegionView {
            valid: false,
            ..REGION
        };
        assert_eq!(
            check(Some(&revoked), allowed),
            Err(Fault::InvalidateUnknown)
        );
        let foreign = RegionView {
            association: Association::Foreign,
            ..REGION
        };
        assert_eq!(
            check(Some(&foreign), allowed),
            Err(Fault::InvalidateForbidden)
        );
        let forbidden = check(Some(&REGION), RemoteInvalidation::Forbidden);
        assert_eq!(forbidden, Err(Fault::InvalidateForbidden));
    }
}
