// SPDX-License-Identifier: GPL-2.0

//! What riwarp devices tell each other about themselves, beyond the RFCs.
//!
//! An Initiator offers the exchange by a flag of its Request; a Responder that knows the flag
//! answers with another one and its own [`Features`] in front of the private data of its Reply. The
//! Initiator's follow in the first FPDU of its stream, so that the Responder, which sends nothing
//! before (MPA-9), knows them in time. docs/connections.md has the layout.
//!
//! Pure; any context. This is an extension of riwarp: no RFC specifies it.

use crate::{
    bytes::{
        put,
        put_u16,
        take,
        take_u16, //
    },
    ddp::{
        Control,
        MessagePart,
        Msn,
        QueueNumber,
        UntaggedHeader, //
    },
    rdmap::{
        Marked,
        Opcode, //
    },
    stag::Stag, //
};

/// Length in octets of what is known of the block.
const LEN: usize = 8;

/// What one end can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// The longest ULPDU that it sends or takes, in octets. Where a TCP segment has room for a
    /// longer one, that counts instead (MPA-28).
    pub ulpdu_max: u16,
    /// The messages marked by a reserved bit that it takes.
    pub marked: Marked,
}

impl Features {
    /// Length in octets.
    pub const LEN: usize = LEN;

    const MAGIC: [u8; 2] = *b"rW";

    /// Reads the block at the front of `octets`; returns it with its length, of which a later
    /// version may use more. [`None`] if there is none.
    pub fn decode(octets: &[u8]) -> Option<(Self, usize)> {
        let front: &[u8; LEN] = octets.first_chunk()?;
        if take::<0, 2, LEN>(front) != Self::MAGIC {
            return None;
        }
        let [len, _] = take::<2, 2, LEN>(front);
        let len = usize::from(len);
        let features = Self {
            ulpdu_max: take_u16::<6, LEN>(front),
            marked: Marked::from_bits(take_u16::<4, LEN>(front)),
        };
        (LEN..=octets.len())
            .contains(&len)
            .then_some((features, len))
    }

    /// Returns the octets.
    pub fn encode(&self) -> [u8; LEN] {
        let mut octets = [0; LEN];
        put::<0, 2, LEN>(&mut octets, Self::MAGIC);
        // CAST: 8.
        put::<2, 2, LEN>(&mut octets, [const { LEN as u8 }, 0]);
        put_u16::<4, LEN>(&mut octets, self.marked.bits());
        put_u16::<6, LEN>(&mut octets, self.ulpdu_max);
        octets
    }

    /// Header of the message that tells them, the first one of a stream.
    pub(crate) const HEADER: UntaggedHeader = UntaggedHeader {
        control: Control {
            opcode: Opcode::Features,
            last: MessagePart::Final,
        },
        invalidate: Stag::ZERO,
        queue: QueueNumber::FEATURES,
        msn: Msn::FIRST,
        offset: 0,
    };

    /// Reads the first message of a stream, of whose ULPDU `front` has the first octets; [`None`]
    /// if it tells no features.
    pub fn of_message(front: &[u8], ulpdu_len: u16) -> Option<Self> {
        let front = front.get(..front.len().min(ulpdu_len.into()))?;
        let (header, body) = front.split_first_chunk()?;
        let (features, _) = Self::decode(body)?;
        (*header == Self::HEADER.encode()).then_some(features)
    }

    /// Returns what both ends can do.
    #[must_use]
    pub fn common(self, other: Self) -> Self {
        Self {
            ulpdu_max: self.ulpdu_max.min(other.ulpdu_max),
            marked: self.marked.intersection(other.marked),
        }
    }
}

#[cfg(any(test, MODULE))]
#[cfg_attr(MODULE, kernel::prelude::kunit_tests(iwarp_features))]
mod tests {
    use super::*;
    use crate::segment::{
        Message,
        Segmenter, //
    };

    const FEATURES: Features = Features {
        ulpdu_max: 0x1234,
        marked: Marked::FLUSH,
    };

    #[test]
    fn features_are_laid_out_as_documented() {
        assert_eq!(FEATURES.encode(), *b"rW\x08\0\0\x01\x12\x34");
        assert_eq!(Features::decode(&FEATURES.encode()), Some((FEATURES, 8)));
    }

    #[test]
    fn features_decode_skips_octets_of_later_version() {
        let later = *b"rW\x0c\xff\xff\xfd\x12\x34more and the rest";
        assert_eq!(Features::decode(&later), Some((FEATURES, 12)));
        assert_eq!(Features::decode(&later[..12]), Some((FEATURES, 12)));
        assert_eq!(Features::decode(&later[..11]), None);
    }

    #[test]
    fn malformed_features_are_refused() {
        let octets = FEATURES.encode();
        for len in 0..octets.len() {
            assert_eq!(Features::decode(&octets[..len]), None);
        }
        for (at, other) in [(0, b'R'), (1, b'w'), (2, 7), (2, 0), (2, 9)] {
            let mut octets = octets;
            octets[at] = other;
            assert_eq!(Features::decode(&octets), None);
        }
    }

    #[test]
    fn features_are_encoded_as_first_message() {
        let plan = Segmenter::new(Message::Features(FEATURES), 0)
            .next(128)
            .unwrap();
        let (len, ulpdu) = plan.header().split_first_chunk().unwrap();
        let len = u16::from_be_bytes(*len);
        assert_eq!(usize::from(len), UntaggedHeader::LEN + LEN);
        assert_eq!(Features::of_message(ulpdu, len), Some(FEATURES));
        assert_eq!(Features::of_message(ulpdu, len - 1), None);
        for at in 0..UntaggedHeader::LEN + 2 {
            let mut octets = *ulpdu
                .first_chunk::<{ UntaggedHeader::LEN + LEN }>()
                .unwrap();
            octets[at] ^= 1;
            assert_eq!(Features::of_message(&octets, len), None);
        }
    }

    #[test]
    fn common_features_are_those_of_the_lesser_end() {
        let more = Features {
            ulpdu_max: 0x4000,
            marked: Marked::ALL,
        };
        assert_eq!(FEATURES.common(more), FEATURES);
        assert_eq!(more.common(FEATURES), FEATURES);
    }
}
