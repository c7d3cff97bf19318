// SPDX-License-Identifier: GPL-2.0

//! DDP segment headers: tagged (14 octets) and untagged (18 octets), and the numbers in them.
//!
//! Every segment begins with the two control octets, [`Control`], which DDP and RDMAP share. They
//! are checked first, since they decide which header follows. The other fields of that header may
//! have any value here.
//!
//! Pure, any context.
//!
//! RFC 5041, section 4 (rows DDP-12..31); RFC 5040, sections 4.1 and 4.2.

use crate::{
    bytes::{
        put,
        put_u32,
        put_u64,
        take_u32,
        take_u64, //
    },
    fault::Fault,
    rdmap::{
        Extensions,
        Opcode, //
    },
    stag::{
        Stag,
        TaggedOffset, //
    }, //
};

/// Whether a segment goes to a buffer that it names itself or to the next one of a queue (DDP-12).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Model {
    /// T = 1: the header has an STag and a tagged offset.
    Tagged,
    /// T = 0: the header has a queue number, a message sequence number and a message offset.
    Untagged,
}

/// Whether a segment is the final one of its message: the L bit (DDP-13).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessagePart {
    /// More segments of the message follow.
    Continued,
    /// The message ends here.
    Final,
}

impl MessagePart {
    /// Returns whether the message ends here.
    #[inline]
    pub const fn is_last(self) -> bool {
        matches!(self, Self::Final)
    }
}

/// A message sequence number: per queue and direction, 1 for the first message, modulo 2^32
/// (DDP-29).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Msn(u32);

impl Msn {
    /// The number of the first message of every queue.
    pub const FIRST: Self = Self(1);

    /// Makes a number from its wire value.
    #[inline]
    pub const fn new(raw: u32) -> Self {
        Self(raw)
    }

    /// Returns the wire value.
    #[inline]
    pub const fn raw(self) -> u32 {
        self.0
    }

    /// Returns the number of the next message; 0 follows 2^32 - 1.
    #[inline]
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }

    /// Returns this number and moves on to the next one.
    #[inline]
    pub fn advance(&mut self) -> Self {
        let this = *self;
        *self = this.next();
        this
    }
}

/// The number of an untagged queue (RFC 5040, section 3.1; RFC 7306, section 10.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QueueNumber(u32);

impl QueueNumber {
    /// Send kinds and Immediate Data.
    pub const SEND: Self = Self(0);
    /// Read and Atomic Requests.
    pub const READ: Self = Self(1);
    /// The Terminate message.
    pub const TERMINATE: Self = Self(2);
    /// Atomic Responses.
    pub const ATOMIC: Self = Self(3);
    /// The first message of a stream between riwarp devices, if it is [`Opcode::Features`].
    pub const FEATURES: Self = Self(4);

    /// Makes a number from its wire value, which may name a queue that does not exist.
    #[inline]
    pub const fn new(raw: u32) -> Self {
        Self(raw)
    }

    /// Returns the wire value.
    #[inline]
    pub const fn raw(self) -> u32 {
        self.0
    }
}

/// The two octets at the start of every segment, with version numbers and reserved bits left out.
///
/// A value is always consistent: the model is the one of the opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Control {
    /// The RDMAP message; it decides the T bit.
    pub opcode: Opcode,
    /// The L bit.
    pub last: MessagePart,
}

impl Control {
    /// Length in octets.
    pub const LEN: usize = 2;

    const TAGGED: u8 = 0x80;
    const LAST: u8 = 0x40;
    const DDP_VERSION_MASK: u8 = 0x03;
    const DDP_VERSION: u8 = 1;
    const RDMAP_VERSION_MASK: u8 = 0xc0;
    const RDMAP_VERSION: u8 = 1 << 6;
    pub(crate) const OPCODE_MASK: u8 = 0x3f;

    /// Reads and checks the two octets. Ignores reserved bits (DDP-18, RDMAP-25), except those that
    /// peers have agreed on ([`Opcode::from_wire`]).
    ///
    /// # Errors
    ///
    /// In this order (DDP-86): [`Fault::TaggedVersion`] or [`Fault::UntaggedVersion`] by the T bit,
    /// [`Fault::RdmapVersion`], [`Fault::OpcodeReserved`], [`Fault::OpcodeModel`].
    #[inline]
    pub const fn decode(octets: &[u8; Self::LEN], extensions: Extensions) -> Result<Self, Fault> {
        let [ddp, rdmap] = *octets;
        let tagged = ddp & Self::TAGGED != 0;
        // DDP-19, -20: the version is 1 in every segment.
        if ddp & Self::DDP_VERSION_MASK != Self::DDP_VERSION {
            return Err(if tagged {
                Fault::TaggedVersion
            } else {
                Fault::UntaggedVersion
            });
        }
        // RDMAP-24, EXT-6: so is the version of RDMAP.
        if rdmap & Self::RDMAP_VERSION_MASK != Self::RDMAP_VERSION {
            return Err(Fault::RdmapVersion);
        }
        let Some(opcode) = Opcode::from_wire(rdmap & Self::OPCODE_MASK, extensions) else {
            return Err(Fault::OpcodeReserved);
        };
        // RDMAP-23, EXT-9: each opcode goes with one value of the T bit.
        if tagged != matches!(opcode.model(), Model::Tagged) {
            return Err(Fault::OpcodeModel);
        }
        let last = if ddp & Self::LAST == 0 {
            MessagePart::Continued
        } else {
            MessagePart::Final
        };
        Ok(Self { opcode, last })
    }

    /// Returns the two octets; reserved bits are 0.
    #[inline]
    pub const fn encode(self) -> [u8; Self::LEN] {
        let mut ddp = Self::DDP_VERSION;
        if matches!(self.opcode.model(), Model::Tagged) {
            ddp |= Self::TAGGED;
        }
        if self.last.is_last() {
            ddp |= Self::LAST;
        }
        [ddp, Self::RDMAP_VERSION | self.opcode.to_wire()]
    }
}

/// The header of a tagged segment: RDMA Write and Read Response (DDP-21).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaggedHeader {
    /// The two control octets.
    pub control: Control,
    /// The buffer at the data sink.
    pub stag: Stag,
    /// Where in it the first payload octet of this segment goes.
    pub to: TaggedOffset,
}

impl TaggedHeader {
    /// Length in octets.
    pub const LEN: usize = 14;

    /// Reads a header.
    ///
    /// # Errors
    ///
    /// Those of [`Control::decode`], and [`Fault::OpcodeModel`] for the header of an untagged
    /// segment.
    #[inline]
    pub fn decode(octets: &[u8; Self::LEN], extensions: Extensions) -> Result<Self, Fault> {
        let control = Control::decode(&crate::bytes::take::<0, 2, 14>(octets), extensions)?;
        match control.opcode.model() {
            Model::Tagged => Ok(Self::after(control, octets)),
            Model::Untagged => Err(Fault::OpcodeModel),
        }
    }

    /// Reads the fields behind control octets that were checked before.
    #[inline]
    pub(crate) fn after(control: Control, octets: &[u8; Self::LEN]) -> Self {
        Self {
            control,
            stag: Stag::new(take_u32::<2, 14>(octets)),
            to: TaggedOffset::new(take_u64::<6, 14>(octets)),
        }
    }

    /// Returns the octets of the header.
    #[inline]
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut octets = [0; Self::LEN];
        put::<0, 2, 14>(&mut octets, self.control.encode());
        put_u32::<2, 14>(&mut octets, self.stag.raw());
        put_u64::<6, 14>(&mut octets, self.to.raw());
        octets
    }
}

/// The header of an untagged segment (DDP-25).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UntaggedHeader {
    /// The two control octets.
    pub control: Control,
    /// The Invalidate STag field: the STag to invalidate, or the data of a Send with Immediate. It
    /// is [`Stag::ZERO`] in other messages that are sent, and ignored in those received (RDMAP-22,
    /// -26).
    pub invalidate: Stag,
    /// The queue.
    pub queue: QueueNumber,
    /// The message in the queue.
    pub msn: Msn,
    /// Distance in octets from the message's first octet to this segment's first (DDP-36).
    pub offset: u32,
}

impl UntaggedHeader {
    /// Length in octets.
    pub const LEN: usize = 18;

    /// Reads a header. Does not check the queue number.
    ///
    /// # Errors
    ///
    /// Those of [`Control::decode`], and [`Fault::OpcodeModel`] for the header of a tagged segment.
    #[inline]
    pub fn decode(octets: &[u8; Self::LEN], extensions: Extensions) -> Result<Self, Fault> {
        let control = Control::decode(&crate::bytes::take::<0, 2, 18>(octets), extensions)?;
        match control.opcode.model() {
            Model::Untagged => Ok(Self::after(control, octets)),
            Model::Tagged => Err(Fault::OpcodeModel),
        }
    }

    /// Reads the fields behind control octets that were checked before.
    #[inline]
    pub(crate) fn after(control: Control, octets: &[u8; Self::LEN]) -> Self {
        Self {
            control,
            invalidate: Stag::new(take_u32::<2, 18>(octets)),
            queue: QueueNumber::new(take_u32::<6, 18>(octets)),
            msn: Msn::new(take_u32::<10, 18>(octets)),
            offset: take_u32::<14, 18>(octets),
        }
    }

    /// Returns the octets of the header.
    #[inline]
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut octets = [0; Self::LEN];
        put::<0, 2, 18>(&mut octets, self.control.encode());
        put_u32::<2, 18>(&mut octets, self.invalidate.raw());
        put_u32::<6, 18>(&mut octets, self.queue.raw());
        put_u32::<10, 18>(&mut octets, self.msn.raw());
        put_u32::<14, 18>(&mut octets, self.offset);
        octets
    }
}

#[cfg(any(test, MODULE))]
#[cfg_attr(MODULE, kernel::prelude::kunit_tests(iwarp_ddp))]
mod tests {
    use super::*;

    #[test]
    fn each_pair_of_control_octets_is_accepted_or_refused() {
        let mut legal = 0;
        for ddp in 0..=u8::MAX {
            for rdmap in 0..=u8::MAX {
                let expected = if ddp & 3 != 1 {
                    Err(if ddp & 0x80 == 0 {
                        Fault::UntaggedVersion
                    } else {
                        Fault::TaggedVersion
                    })
                } else if rdmap >> 6 != 1 {
                    Err(Fault::RdmapVersion)
                } else if rdmap & 0xf > 0xb {
                    Err(Fault::OpcodeReserved)
                } else if (ddp & 0x80 != 0) != matches!(rdmap & 0xf, 0 | 2) {
                    Err(Fault::OpcodeModel)
                } else {
                    Ok(())
                };
                let control = Control::decode(&[ddp, rdmap], Extensions::Rfc7306);
                assert_eq!(control.map(|_| ()), expected);
                if let Ok(control) = control {
                    legal += 1;
                    // Reserved bits are sent as 0.
                    assert_eq!(control.encode(), [ddp & 0xc3, rdmap & 0xcf]);
                }
            }
        }
        // 12 opcodes, the L bit, four reserved bits of DDP and two of RDMAP.
        assert_eq!(legal, 12 * 2 * 16 * 4);
    }

    #[test]
    fn extension_opcodes_are_reserved_without_extensions() {
        for opcode in 0x8..=0xb {
            let octets = [0x41, 0x40 | opcode];
            assert!(Control::decode(&octets, Extensions::Rfc7306).is_ok());
            let control = Control::decode(&octets, Extensions::Off);
            assert_eq!(control, Err(Fault::OpcodeReserved));
        }
    }

    #[test]
    fn tagged_header_is_laid_out_as_in_the_rfc() {
        let header = TaggedHeader {
            control: Control {
                opcode: Opcode::Write,
                last: MessagePart::Final,
            },
            stag: Stag::new(0x0102_0304),
            to: TaggedOffset::new(0x0506_0708_090a_0b0c),
        };
        let octets = header.encode();
        assert_eq!(octets, [0xc1, 0x40, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
        assert_eq!(TaggedHeader::decode(&octets, Extensions::Off), Ok(header));
    }

    #[test]
    fn untagged_header_is_laid_out_as_in_the_rfc() {
        let header = UntaggedHeader {
            control: Control {
                opcode: Opcode::SendInvalidate,
                last: MessagePart::Continued,
            },
            invalidate: Stag::new(0x0102_0304),
            queue: QueueNumber::new(0x0506_0708),
            msn: Msn::new(0x090a_0b0c),
            offset: 0x0d0e_0f10,
        };
        let octets = header.encode();
        assert_eq!(octets[..2], [0x01, 0x44]);
        assert_eq!(
            octets[2..],
            [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]
        );
        assert_eq!(UntaggedHeader::decode(&octets, Extensions::Off), Ok(header));
    }

    #[test]
    fn header_of_other_ddp_model_is_refused() {
        let tagged = [0xc1, 0x40, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        assert!(TaggedHeader::decode(&tagged, Extensions::Off).is_ok());
        let mut octets = [0; UntaggedHeader::LEN];
        octets[..14].copy_from_slice(&tagged);
        let refused = UntaggedHeader::decode(&octets, Extensions::Off);
        assert_eq!(refused, Err(Fault::OpcodeModel));
        let mut octets = tagged;
        octets[..2].copy_from_slice(&[0x41, 0x43]);
        let refused = TaggedHeader::decode(&octets, Extensions::Off);
        assert_eq!(refused, Err(Fault::OpcodeModel));
    }

    #[test]
    fn msn_wraps_to_zero() {
        let mut msn = Msn::new(u32::MAX);
        assert_eq!(msn.advance().raw(), u32::MAX);
        assert_eq!(msn.advance().raw(), 0);
        assert_eq!(msn, Msn::FIRST);
    }
}
