// SPDX-License-Identifier: GPL-2.0

//! The layout of start-up frames.
//!
//! ```text
//! | key, 16 | flags, 1 | revision, 1 | PD_Length, 2 | private data, 0 to 512 |
//! ```
//!
//! If revision is 2 and the S flag is set, the first 4 octets of the private data are the
//! [`Enhanced`] data. In a Reply of a riwarp device [`Features`] may follow. The rest is the ULP's.
//! [`super::negotiate`] says what the fields mean for the two ends.
//!
//! Pure; process context, a [`Frame`] takes more than 500 octets of stack.
//!
//! RFC 5044, section 7.1; RFC 6581, sections 6 and 9 (rows MPA-1..7, -32..37).

use crate::{
    bytes::{
        put,
        put_u16,
        take,
        take_u16, //
    },
    features::Features,
    mpa::{
        Crc,
        Markers, //
    }, //
};

/// Length in octets of a frame without private data.
pub const FRAME_LEN: usize = 20;

/// Most octets of private data in a frame, enhanced data included (MPA-5).
pub const PRIVATE_DATA_MAX: usize = 512;

/// Length in octets of a frame at most.
pub const FRAME_MAX: usize = FRAME_LEN + PRIVATE_DATA_MAX;

/// Length in octets of the enhanced data.
pub const ENHANCED_LEN: usize = 4;

const KEY_LEN: usize = 16;

/// Why start-up fails. The connection is closed at once and nothing is sent (MPA-2: error 0x04 of
/// RFC 5044, section 8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StartError {
    /// The frame does not begin with a key.
    Key,
    /// It has the key of the other frame: both ends are Initiators, or both Responders (MPA-10).
    Role,
    /// Its revision is not 1 or 2, or is above the one that was asked for or is allowed.
    Revision,
    /// It announces more than 512 octets of private data (MPA-5).
    PrivateDataLength,
    /// It announces enhanced data and is too short for it (MPA-35).
    EnhancedLength,
    /// Octets behind the frame have arrived too early (MPA-7).
    Excess,
    /// Private data of this end does not fit: 512 octets, or 508 beside enhanced data.
    PrivateDataTooLong,
}

impl StartError {
    /// Returns what is wrong, in words for an administrator.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Key => "the peer sent no MPA frame",
            Self::Role => "the peer sent the MPA frame of the same side",
            Self::Revision => "MPA frame of a revision that is unknown, or not allowed here",
            Self::PrivateDataLength => "MPA frame with too much private data",
            Self::EnhancedLength => "MPA frame too short for its enhanced data",
            Self::Excess => "octets behind the MPA frame",
            Self::PrivateDataTooLong => "private data of this end does not fit into the MPA frame",
        }
    }
}

/// Which of the two frames it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// From the Initiator.
    Request,
    /// From the Responder.
    Reply,
}

impl FrameKind {
    const fn key(self) -> &'static [u8; KEY_LEN] {
        match self {
            Self::Request => b"MPA ID Req Frame",
            Self::Reply => b"MPA ID Rep Frame",
        }
    }

    const fn other(self) -> Self {
        match self {
            Self::Request => Self::Reply,
            Self::Reply => Self::Request,
        }
    }

    /// Checks as much of the key as has arrived, so that a wrong one fails without more octets.
    pub(crate) fn check_key(self, octets: &[u8]) -> Result<(), StartError> {
        let begins = |key: &[u8; KEY_LEN]| octets.iter().zip(key).all(|(a, b)| a == b);
        if begins(self.key()) {
            Ok(())
        } else if begins(self.other().key()) {
            Err(StartError::Role)
        } else {
            Err(StartError::Key)
        }
    }
}

/// The revision of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Revision {
    /// RFC 5044.
    One,
    /// RFC 6581.
    Two,
}

impl Revision {
    const fn from_wire(revision: u8) -> Option<Self> {
        match revision {
            1 => Some(Self::One),
            2 => Some(Self::Two),
            _ => None,
        }
    }

    const fn to_wire(self) -> u8 {
        match self {
            Self::One => 1,
            Self::Two => 2,
        }
    }
}

/// The fixed part of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StartHeader {
    /// The frame.
    pub kind: FrameKind,
    /// The M flag: the sender wants to **receive** Markers (MPA-23).
    pub markers: Markers,
    /// The C flag: the sender wants CRCs (MPA-14).
    pub crc: Crc,
    /// The R flag, of a Reply: the ULP refused (MPA-4). False in every Request.
    pub rejected: bool,
    /// The revision.
    pub revision: Revision,
    /// The S flag of revision 2: enhanced data is there (MPA-32). False in revision 1.
    pub enhanced: bool,
    /// A Request offers the Send with Immediate of [`crate::rdmap`], or a Reply agrees to it.
    pub send_immediate: bool,
    /// A Request offers the exchange of [`crate::features`], or a Reply takes the offer: then those
    /// of the Responder are in front of the ULP's private data.
    pub features: bool,
    /// Octets of private data, enhanced data included; at most 512.
    pub private_len: u16,
}

impl StartHeader {
    /// Length in octets.
    pub const LEN: usize = FRAME_LEN;

    const MARKERS: u8 = 0x80;
    const CRC: u8 = 0x40;
    const REJECT: u8 = 0x20;
    const ENHANCED: u8 = 0x10;
    /// Flag of a Request that offers the Send with Immediate; RFC 5044 reserves it.
    const OFFER: u8 = 0x01;
    /// Flag of a Reply that takes the offer. It is another one, since some Responders echo the
    /// reserved flags of the Request.
    const TAKEN: u8 = 0x02;
    /// The same for the exchange of features. Peers that set all reserved flags mean none.
    const OFFER_FEATURES: u8 = 0x04;
    const TAKEN_FEATURES: u8 = 0x08;

    /// Reads the fixed part of a frame of the given kind.
    ///
    /// Ignores reserved flags (MPA-3) except for [`Self::send_immediate`] and
    /// [`Self::features`], the R flag of a Request (MPA-4), and the S flag of revision 1, which RFC
    /// 5044 reserves.
    ///
    /// # Errors
    ///
    /// In this order: [`StartError::Key`] or [`StartError::Role`], [`StartError::Revision`],
    /// [`StartError::PrivateDataLength`], [`StartError::EnhancedLength`].
    pub fn decode(octets: &[u8; Self::LEN], kind: FrameKind) -> Result<Self, StartError> {
        kind.check_key(&take::<0, KEY_LEN, FRAME_LEN>(octets))?;
        let [flags, revision] = take::<16, 2, FRAME_LEN>(octets);
        let revision = Revision::from_wire(revision).ok_or(StartError::Revision)?;
        let private_len = take_u16::<18, FRAME_LEN>(octets);
        if usize::from(private_len) > PRIVATE_DATA_MAX {
            return Err(StartError::PrivateDataLength);
        }
        let enhanced = revision == Revision::Two && flags & Self::ENHANCED != 0;
        if enhanced && usize::from(private_len) < ENHANCED_LEN {
            return Err(StartError::EnhancedLength);
        }
        Ok(Self {
            kind,
            markers: if flags & Self::MARKERS == 0 {
                Markers::Off
            } else {
                Markers::On
            },
            crc: if flags & Self::CRC == 0 {
                Crc::Off
            } else {
                Crc::On
            },
            rejected: kind == FrameKind::Reply && flags & Self::REJECT != 0,
            revision,
            enhanced,
            send_immediate: match kind {
                FrameKind::Request => flags & Self::OFFER != 0,
                FrameKind::Reply => flags & (Self::OFFER | Self::TAKEN) == Self::TAKEN,
            },
            features: flags & (Self::OFFER_FEATURES | Self::TAKEN_FEATURES)
                == Self::features_flag(kind),
            private_len,
        })
    }

    /// Returns the octets; reserved flags are 0 (MPA-3) except for those of
    /// [`Self::send_immediate`] and [`Self::features`].
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut flags = 0;
        if self.markers == Markers::On {
            flags |= Self::MARKERS;
        }
        if self.crc == Crc::On {
            flags |= Self::CRC;
        }
        if self.rejected {
            flags |= Self::REJECT;
        }
        if self.enhanced {
            flags |= Self::ENHANCED;
        }
        if self.send_immediate {
            flags |= match self.kind {
                FrameKind::Request => Self::OFFER,
                FrameKind::Reply => Self::TAKEN,
            };
        }
        if self.features {
            flags |= Self::features_flag(self.kind);
        }
        let mut octets = [0; Self::LEN];
        put::<0, KEY_LEN, FRAME_LEN>(&mut octets, *self.kind.key());
        put::<16, 2, FRAME_LEN>(&mut octets, [flags, self.revision.to_wire()]);
        put_u16::<18, FRAME_LEN>(&mut octets, self.private_len);
        octets
    }

    const fn features_flag(kind: FrameKind) -> u8 {
        match kind {
            FrameKind::Request => Self::OFFER_FEATURES,
            FrameKind::Reply => Self::TAKEN_FEATURES,
        }
    }
}

/// The depth of a read queue in enhanced data: 14 bits, of which one value means that MPA does not
/// negotiate it (MPA-37).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WireDepth(u16);

impl WireDepth {
    /// Not negotiated by MPA.
    pub const OPEN: Self = Self(0x3fff);

    /// The greatest depth.
    pub const MAX: u16 = 0x3ffe;

    /// Makes a depth; lowers one above [`Self::MAX`] to that.
    pub const fn new(depth: u16) -> Self {
        if depth > Self::MAX {
            Self(Self::MAX)
        } else {
            Self(depth)
        }
    }

    /// Returns the depth, `None` for [`Self::OPEN`].
    pub const fn get(self) -> Option<u16> {
        if self.0 == Self::OPEN.0 {
            None
        } else {
            Some(self.0)
        }
    }

    const fn from_wire(word: u16) -> Self {
        Self(word & 0x3fff)
    }

    const fn to_wire(self) -> u16 {
        self.0
    }
}

/// A set of RTR kinds: what the Initiator of a peer-to-peer connection may send first (MPA-39).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RtrKinds(u8);

impl RtrKinds {
    /// No kind.
    pub const NONE: Self = Self(0);
    /// A zero-length Send: the B flag.
    pub const SEND: Self = Self(1 << 0);
    /// A zero-length RDMA Write: the C flag.
    pub const WRITE: Self = Self(1 << 1);
    /// A zero-length RDMA Read: the D flag.
    pub const READ: Self = Self(1 << 2);

    /// Returns the kinds of either set.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns the kinds of both sets.
    #[must_use]
    pub const fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Returns whether every kind of `some` is in this set.
    pub const fn contains(self, some: Self) -> bool {
        self.0 & some.0 == some.0
    }

    /// Returns whether the set holds no kind.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// The enhanced data: read queue depths, and how a peer-to-peer connection starts (MPA-32).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Enhanced {
    /// The A flag: peer-to-peer set-up is asked for, or agreed to.
    pub peer_to_peer: bool,
    /// The B, C and D flags.
    pub rtr: RtrKinds,
    /// How many Reads the sender takes at a time.
    pub ird: WireDepth,
    /// How many Reads the sender would like to have outstanding.
    pub ord: WireDepth,
}

impl Enhanced {
    /// Length in octets.
    pub const LEN: usize = ENHANCED_LEN;

    const FIRST: u16 = 0x8000;
    const SECOND: u16 = 0x4000;

    /// Reads enhanced data; every value is legal.
    pub fn decode(octets: &[u8; Self::LEN]) -> Self {
        let ird = take_u16::<0, ENHANCED_LEN>(octets);
        let ord = take_u16::<2, ENHANCED_LEN>(octets);
        let kind = |word: u16, flag, kind| {
            if word & flag == 0 {
                RtrKinds::NONE
            } else {
                kind
            }
        };
        Self {
            peer_to_peer: ird & Self::FIRST != 0,
            rtr: kind(ird, Self::SECOND, RtrKinds::SEND)
                .union(kind(ord, Self::FIRST, RtrKinds::WRITE))
                .union(kind(ord, Self::SECOND, RtrKinds::READ)),
            ird: WireDepth::from_wire(ird),
            ord: WireDepth::from_wire(ord),
        }
    }

    /// Returns the octets.
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut ird = self.ird.to_wire();
        let mut ord = self.ord.to_wire();
        if self.peer_to_peer {
            ird |= Self::FIRST;
        }
        if self.rtr.contains(RtrKinds::SEND) {
            ird |= Self::SECOND;
        }
        if self.rtr.contains(RtrKinds::WRITE) {
            ord |= Self::FIRST;
        }
        if self.rtr.contains(RtrKinds::READ) {
            ord |= Self::SECOND;
        }
        let mut octets = [0; Self::LEN];
        put_u16::<0, ENHANCED_LEN>(&mut octets, ird);
        put_u16::<2, ENHANCED_LEN>(&mut octets, ord);
        octets
    }
}

/// Where the ULP's private data lies in a received frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrivateData {
    /// Its first octet, counted from the start of the frame.
    pub offset: u16,
    /// How many octets, 0 to 512.
    pub len: u16,
}

impl PrivateData {
    /// Returns the private data in the octets of the frame, empty if they are cut off.
    pub fn of(self, frame: &[u8]) -> &[u8] {
        frame
            .get(usize::from(self.offset)..)
            .and_then(|rest| rest.get(..usize::from(self.len)))
            .unwrap_or_default()
    }
}

/// A frame to be sent.
#[derive(Clone, Copy, Debug)]
pub struct Frame {
    octets: [u8; FRAME_MAX],
    /// At most `FRAME_MAX`.
    len: usize,
}

impl Frame {
    /// Makes a frame; fills in the flags and lengths that follow from the arguments.
    ///
    /// # Errors
    ///
    /// [`StartError::PrivateDataTooLong`].
    pub(crate) fn new(
        mut header: StartHeader,
        enhanced: Option<Enhanced>,
        features: Option<Features>,
        private_data: &[u8],
    ) -> Result<Self, StartError> {
        let mut frame = Self {
            octets: [0; FRAME_MAX],
            len: FRAME_LEN,
        };
        header.enhanced = enhanced.is_some();
        if let Some(enhanced) = enhanced {
            frame.append(&enhanced.encode())?;
        }
        if let Some(features) = features {
            frame.append(&features.encode())?;
        }
        frame.append(private_data)?;
        header.private_len = u16::try_from(frame.len.saturating_sub(FRAME_LEN))
            .map_err(|_| StartError::PrivateDataTooLong)?;
        put::<0, FRAME_LEN, FRAME_MAX>(&mut frame.octets, header.encode());
        Ok(frame)
    }

    /// Returns the octets.
    pub fn as_octets(&self) -> &[u8] {
        self.octets.get(..self.len).unwrap_or_default()
    }

    fn append(&mut self, octets: &[u8]) -> Result<(), StartError> {
        self.octets
            .get_mut(self.len..)
            .and_then(|rest| rest.get_mut(..octets.len()))
            .ok_or(StartError::PrivateDataTooLong)?
            .copy_from_slice(octets);
        // NO-OVERFLOW: that many octets were just written behind the old length.
        self.len = self.len.saturating_add(octets.len());
        Ok(())
    }
}

#[cfg(any(test, MODULE))]
#[cfg_attr(MODULE, kernel::prelude::kunit_tests(iwarp_start))]
mod tests {
    use super::*;

    const HEADER: StartHeader = StartHeader {
        kind: FrameKind::Request,
        markers: Markers::Off,
        crc: Crc::On,
        rejected: false,
        revision: Revision::Two,
        enhanced: false,
        send_immediate: false,
        features: false,
        private_len: 0,
    };

    const ENHANCED: Enhanced = Enhanced {
        peer_to_peer: true,
        rtr: RtrKinds::SEND.union(RtrKinds::READ),
        ird: WireDepth::new(0x0102),
        ord: WireDepth::new(0x0304),
    };

    #[test]
    fn mpa_flags_round_trip() -> Result<(), StartError> {
        for flags in 0..=u8::MAX {
            for revision in [1, 2] {
                let mut octets = HEADER.encode();
                octets[16] = flags;
                octets[17] = revision;
                octets[19] = 4;
                let header = StartHeader::decode(&octets, FrameKind::Request)?;
                let markers = header.markers == Markers::On;
                assert_eq!(markers, flags & 0x80 != 0);
                let crc = header.crc == Crc::On;
                assert_eq!(crc, flags & 0x40 != 0);
                // A Request cannot be a refusal, and revision 1 has no S flag.
                assert!(!header.rejected);
                assert_eq!(header.enhanced, revision == 2 && flags & 0x10 != 0);
                let again = header.encode();
                let known = if revision == 2 { 0xd1 } else { 0xc1 };
                let offer = if flags & 0xc == 4 { 4 } else { 0 };
                assert_eq!(again[16], flags & known | offer);
            }
        }
        Ok(())
    }

    #[test]
    fn mpa_reply_can_reject() {
        let reply = StartHeader {
            kind: FrameKind::Reply,
            rejected: true,
            ..HEADER
        };
        assert_eq!(
            StartHeader::decode(&reply.encode(), FrameKind::Reply),
            Ok(reply)
        );
    }

    #[test]
    fn mpa_offer_reflected_in_reply_is_not_accepted() -> Result<(), StartError> {
        for flags in 0..16 {
            for kind in [FrameKind::Request, FrameKind::Reply] {
                let mut octets = StartHeader { kind, ..HEADER }.encode();
                octets[16] |= flags;
                let header = StartHeader::decode(&octets, kind)?;
                let expected = match kind {
                    FrameKind::Request => flags & 1 == 1,
                    FrameKind::Reply => flags & 3 == 2,
                };
                assert_eq!(header.send_immediate, expected);
                let (flag, features_flag) = match kind {
                    FrameKind::Request => (1, 4),
                    FrameKind::Reply => (2, 8),
                };
                assert_eq!(header.features, flags & 12 == features_flag);
                let sent = if expected { flag } else { 0 };
                let features_sent = if header.features { features_flag } else { 0 };
                assert_eq!(header.encode()[16] & 15, sent | features_sent);
            }
        }
        Ok(())
    }

    #[test]
    fn rejects_frames_in_the_order_of_their_fields() {
        let decode = |octets: &_| StartHeader::decode(octets, FrameKind::Request);
        let mut octets = HEADER.encode();
        octets[16] |= 0x10;
        octets[17] = 3;
        octets[18] = 3;
        octets[0] = b'm';
        assert_eq!(decode(&octets), Err(StartError::Key));
        octets[0] = b'M';
        assert_eq!(decode(&octets), Err(StartError::Revision));
        octets[17] = 2;
        assert_eq!(decode(&octets), Err(StartError::PrivateDataLength));
        octets[18] = 0;
        assert_eq!(decode(&octets), Err(StartError::EnhancedLength));
        octets[19] = 4;
        assert!(decode(&octets).is_ok());
        let role = StartHeader::decode(&octets, FrameKind::Reply);
        assert_eq!(role, Err(StartError::Role));
    }

    #[test]
    fn partial_mpa_key_is_checked() {
        let request = b"MPA ID Req Frame";
        for len in 0..=request.len() {
            assert_eq!(FrameKind::Request.check_key(&request[..len]), Ok(()));
            let other = FrameKind::Reply.check_key(&request[..len]);
            // The keys differ in their tenth octet.
            let expected = if len < 10 {
                Ok(())
            } else {
                Err(StartError::Role)
            };
            assert_eq!(other, expected);
        }
        assert_eq!(FrameKind::Request.check_key(b"MPB"), Err(StartError::Key));
    }

    #[test]
    fn enhanced_data_is_laid_out_as_in_the_rfc() {
        assert_eq!(ENHANCED.encode(), [0xc1, 0x02, 0x43, 0x04]);
        for high in 0..=u8::MAX {
            for low in [0, 0x3f, 0x40, 0x7f, 0x80, 0xbf, 0xc0, 0xff] {
                let octets = [high, 0x12, low, 0x34];
                assert_eq!(Enhanced::decode(&octets).encode(), octets);
            }
        }
    }

    #[test]
    fn depths_have_14_bits_of_which_one_value_is_none() {
        assert_eq!(WireDepth::OPEN.get(), None);
        assert_eq!(WireDepth::new(0).get(), Some(0));
        assert_eq!(WireDepth::new(0x3ffe).get(), Some(0x3ffe));
        assert_eq!(WireDepth::new(0x3fff).get(), Some(0x3ffe));
        assert_eq!(WireDepth::new(u16::MAX).get(), Some(0x3ffe));
    }

    #[test]
    fn private_data_fills_the_frame_and_no_more() {
        let data = [0x5a; PRIVATE_DATA_MAX];
        let too_long = Some(StartError::PrivateDataTooLong);
        for (len, enhanced, fits) in [
            (0, None, true),
            (512, None, true),
            (508, Some(ENHANCED), true),
            (509, Some(ENHANCED), false),
        ] {
            let frame = Frame::new(HEADER, enhanced, None, &data[..len]);
            match frame {
                Ok(frame) => {
                    assert!(fits);
                    let rich = if enhanced.is_some() { 4 } else { 0 };
                    assert_eq!(frame.as_octets().len(), FRAME_LEN + rich + len);
                    let tail = &frame.as_octets()[FRAME_LEN + rich..];
                    assert!(tail.iter().all(|octet| *octet == 0x5a));
                }
                Err(error) => assert_eq!((fits, Some(error)), (false, too_long)),
            }
        }
        let frame = Frame::new(HEADER, None, None, &[0; 513]);
        assert_eq!(frame.err(), too_long);
    }

    #[test]
    fn truncated_private_data_is_empty() {
        let data = PrivateData { offset: 24, len: 8 };
        let frame = [7; 32];
        assert_eq!(data.of(&frame), [7; 8]);
        assert!(data.of(&frame[..31]).is_empty());
        assert!(data.of(&[]).is_empty());
    }
}
