// SPDX-License-Identifier: GPL-2.0

//! RDMAP messages: opcodes, which model and queue each uses, and the headers of those that have
//! one.
//!
//! | opcode | message | model | queue | header | payload |
//! |---|---|---|---|---|---|
//! | 0x0 | RDMA Write | tagged | | | yes |
//! | 0x1 | RDMA Read Request | untagged | 1 | 28 | |
//! | 0x2 | RDMA Read Response | tagged | | | yes |
//! | 0x3 to 0x6 | Send, with Invalidate, with Solicited Event, with both | untagged | 0 | | yes |
//! | 0x7 | Terminate ([`crate::terminate`]) | untagged | 2 | 4 to 52 | |
//! | 0x8, 0x9 | Immediate Data, with Solicited Event | untagged | 0 | 8 | |
//! | 0xa | Atomic Request ([`crate::atomic`]) | untagged | 1 | 52 | |
//! | 0xb | Atomic Response | untagged | 3 | 12 | |
//! | 0xf | Send with Immediate, between peers that agreed on it | untagged | 0 | | yes |
//! | 0x0, marked | Atomic Write, likewise | tagged | | | 8 octets |
//! | 0x1, marked | Flush ([`crate::flush`]), likewise | untagged | 1 | 28 | |
//!
//! 0xf is the opcode for experiments (RFC 6580). A Send with Immediate is a Send whose Invalidate
//! STag field holds four octets for the receiver's completion. One "with Solicited Event" has the
//! lower of the two reserved bits in front of the opcode set. So has a marked message; who has not
//! agreed on it ignores the bit (RDMAP-25).
//!
//! Pure, any context.
//!
//! RFC 5040, section 4; RFC 7306, section 4.

use crate::{
    bytes::{
        put_u32,
        put_u64,
        take_u32,
        take_u64, //
    },
    ddp::{
        Model,
        QueueNumber, //
    },
    stag::{
        Stag,
        TaggedOffset, //
    }, //
};

/// Which messages beyond those of RFC 5040 are understood.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Extensions {
    /// Opcodes 0x8 to 0xb are reserved (EXT-4).
    #[default]
    Off,
    /// Those opcodes are the messages of RFC 7306: atomic operations and Immediate Data.
    Rfc7306,
    /// The messages of RFC 7306 and the Send with Immediate.
    SendImmediate,
}

/// A set of messages that a reserved bit marks, which an end takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marked(u16);

impl Marked {
    /// No such message.
    pub const NONE: Self = Self(0);
    /// The Flush.
    pub const FLUSH: Self = Self(1 << 0);
    /// The Atomic Write.
    pub const ATOMIC_WRITE: Self = Self(1 << 1);
    /// Each of them.
    pub const ALL: Self = Self(Self::FLUSH.0 | Self::ATOMIC_WRITE.0);

    /// Returns the set of these bits; ignores those of later versions.
    #[inline]
    pub const fn from_bits(bits: u16) -> Self {
        Self(bits & Self::ALL.0)
    }

    /// Returns the set as a number.
    #[inline]
    pub const fn bits(self) -> u16 {
        self.0
    }

    /// Returns the messages that are in both sets.
    #[inline]
    #[must_use]
    pub const fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Returns whether every message of `other` is in this set.
    #[inline]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// Whether the receiver is to raise an event for the message: the "with Solicited Event" kinds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SendEvent {
    /// An ordinary message.
    #[default]
    Silent,
    /// The receiver's consumer may have armed an event for it.
    Solicit,
}

/// The kind of an RDMAP message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Opcode {
    /// RDMA Write.
    Write = 0x0,
    /// RDMA Read Request.
    ReadRequest = 0x1,
    /// RDMA Read Response.
    ReadResponse = 0x2,
    /// Send.
    Send = 0x3,
    /// Send with Invalidate.
    SendInvalidate = 0x4,
    /// Send with Solicited Event.
    SendSolicited = 0x5,
    /// Send with Solicited Event and Invalidate.
    SendSolicitedInvalidate = 0x6,
    /// Terminate.
    Terminate = 0x7,
    /// Immediate Data.
    Immediate = 0x8,
    /// Immediate Data with Solicited Event.
    ImmediateSolicited = 0x9,
    /// Atomic Request.
    AtomicRequest = 0xa,
    /// Atomic Response.
    AtomicResponse = 0xb,
    /// Send with Immediate.
    SendImmediate = 0xf,
    /// Send with Solicited Event and Immediate, marked by a reserved bit.
    SendSolicitedImmediate = 0x1f,
    /// Atomic Write, a marked Write. [`Self::from_wire`] does not know it, but [`Self::marked`].
    AtomicWrite = 0x10,
    /// Flush, a marked Read Request. [`Self::from_wire`] does not know it either.
    Flush = 0x11,
    /// The Initiator's [`crate::features::Features`], marked by a reserved bit. Only the first
    /// message of a stream can be one, so [`Self::from_wire`] does not know it.
    Features = 0x2f,
}

impl Opcode {
    /// The two reserved bits in front of an opcode.
    pub const MARKS: u8 = 0x30;

    /// Returns the message of an opcode and the two reserved bits in front of it, `None` for a
    /// reserved opcode (RDMAP-27).
    #[inline]
    pub const fn from_wire(octet: u8, extensions: Extensions) -> Option<Self> {
        let assigned = match octet & 0xf {
            0x0 => Self::Write,
            0x1 => Self::ReadRequest,
            0x2 => Self::ReadResponse,
            0x3 => Self::Send,
            0x4 => Self::SendInvalidate,
            0x5 => Self::SendSolicited,
            0x6 => Self::SendSolicitedInvalidate,
            0x7 => Self::Terminate,
            0x8..=0xb => match extensions {
                Extensions::Off => return None,
                Extensions::Rfc7306 | Extensions::SendImmediate => match octet & 0xf {
                    0x8 => Self::Immediate,
                    0x9 => Self::ImmediateSolicited,
                    0xa => Self::AtomicRequest,
                    _ => Self::AtomicResponse,
                },
            },
            0xf => match extensions {
                Extensions::Off | Extensions::Rfc7306 => return None,
                Extensions::SendImmediate => match octet & 0x10 {
                    0 => Self::SendImmediate,
                    _ => Self::SendSolicitedImmediate,
                },
            },
            _ => return None,
        };
        Some(assigned)
    }

    /// Returns which of the messages that both ends take this one is, whose octet has the two
    /// reserved bits.
    #[inline]
    pub const fn marked(self, octet: u8, marked: Marked) -> Self {
        match self {
            Self::Write if octet & Self::MARKS == 0x10 && marked.contains(Marked::ATOMIC_WRITE) => {
                Self::AtomicWrite
            }
            Self::ReadRequest if octet & Self::MARKS == 0x10 && marked.contains(Marked::FLUSH) => {
                Self::Flush
            }
            other => other,
        }
    }

    /// Returns the name of the message.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Write => "RDMA Write",
            Self::ReadRequest => "Read Request",
            Self::ReadResponse => "Read Response",
            Self::Send => "Send",
            Self::SendInvalidate => "Send with Invalidate",
            Self::SendSolicited => "Send with Solicited Event",
            Self::SendSolicitedInvalidate => "Send with Solicited Event and Invalidate",
            Self::Terminate => "Terminate",
            Self::Immediate => "Immediate Data",
            Self::ImmediateSolicited => "Immediate Data with Solicited Event",
            Self::AtomicRequest => "Atomic Request",
            Self::AtomicResponse => "Atomic Response",
            Self::SendImmediate => "Send with Immediate",
            Self::SendSolicitedImmediate => "Send with Solicited Event and Immediate",
            Self::AtomicWrite => "Atomic Write",
            Self::Flush => "Flush",
            Self::Features => "Features",
        }
    }

    /// Returns the wire value: the opcode, and the reserved bit that tells two messages apart.
    #[inline]
    pub const fn to_wire(self) -> u8 {
        // CAST: the representation is u8.
        self as u8
    }

    /// Returns the model, and so the T bit (RDMAP-23).
    #[inline]
    pub const fn model(self) -> Model {
        match self {
            Self::Write | Self::ReadResponse | Self::AtomicWrite => Model::Tagged,
            Self::ReadRequest
            | Self::Flush
            | Self::Send
            | Self::SendInvalidate
            | Self::SendSolicited
            | Self::SendSolicitedInvalidate
            | Self::Terminate
            | Self::Immediate
            | Self::ImmediateSolicited
            | Self::AtomicRequest
            | Self::AtomicResponse
            | Self::SendImmediate
            | Self::SendSolicitedImmediate
            | Self::Features => Model::Untagged,
        }
    }

    /// Returns the queue of an untagged message, `None` for a tagged one (RDMAP-2, EXT-10).
    #[inline]
    pub const fn queue(self) -> Option<QueueNumber> {
        match self {
            Self::Write | Self::ReadResponse | Self::AtomicWrite => None,
            Self::Send
            | Self::SendInvalidate
            | Self::SendSolicited
            | Self::SendSolicitedInvalidate
            | Self::Immediate
            | Self::ImmediateSolicited
            | Self::SendImmediate
            | Self::SendSolicitedImmediate => Some(QueueNumber::SEND),
            Self::ReadRequest | Self::AtomicRequest | Self::Flush => Some(QueueNumber::READ),
            Self::Terminate => Some(QueueNumber::TERMINATE),
            Self::AtomicResponse => Some(QueueNumber::ATOMIC),
            Self::Features => Some(QueueNumber::FEATURES),
        }
    }
}

/// What a Send carries in the Invalidate STag field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SendExtra {
    /// Nothing.
    #[default]
    None,
    /// The STag to invalidate at the receiver: "with Invalidate".
    Invalidate(Stag),
    /// Octets for the receiver's completion, opaque: "with Immediate".
    Immediate([u8; 4]),
}

/// The kind of a Send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendKind {
    /// Whether it is one "with Solicited Event".
    pub solicited: SendEvent,
    /// What it carries in the Invalidate STag field.
    pub extra: SendExtra,
}

impl SendKind {
    /// Returns the kind's opcode.
    #[inline]
    pub const fn opcode(self) -> Opcode {
        match (self.solicited, self.extra) {
            (SendEvent::Silent, SendExtra::None) => Opcode::Send,
            (SendEvent::Silent, SendExtra::Invalidate(_)) => Opcode::SendInvalidate,
            (SendEvent::Silent, SendExtra::Immediate(_)) => Opcode::SendImmediate,
            (SendEvent::Solicit, SendExtra::None) => Opcode::SendSolicited,
            (SendEvent::Solicit, SendExtra::Invalidate(_)) => Opcode::SendSolicitedInvalidate,
            (SendEvent::Solicit, SendExtra::Immediate(_)) => Opcode::SendSolicitedImmediate,
        }
    }

    /// Returns the Invalidate STag field: zero for the kinds that carry nothing (RDMAP-26).
    #[inline]
    pub const fn invalidate_field(self) -> Stag {
        match self.extra {
            SendExtra::None => Stag::ZERO,
            SendExtra::Invalidate(stag) => stag,
            SendExtra::Immediate(octets) => Stag::new(u32::from_be_bytes(octets)),
        }
    }
}

/// The header of an RDMA Read Request (RDMAP-30).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadRequest {
    /// The buffer at the requester; the responder copies it into the Response unchecked (RDMAP-31).
    pub sink_stag: Stag,
    /// Where in it the first octet goes; any value (RDMAP-32).
    pub sink_to: TaggedOffset,
    /// How many octets are wanted, 0 to 2^32 - 1.
    pub len: u32,
    /// The buffer at the responder.
    pub source_stag: Stag,
    /// Where in it the first octet comes from.
    pub source_to: TaggedOffset,
}

impl ReadRequest {
    /// Length of the RDMAP header in octets; nothing follows it.
    pub const LEN: usize = 28;

    /// A Read of zero octets, for which no keys are needed.
    pub const NOTHING: Self = Self {
        sink_stag: Stag::ZERO,
        sink_to: TaggedOffset::new(0),
        len: 0,
        source_stag: Stag::ZERO,
        source_to: TaggedOffset::new(0),
    };

    /// Reads a header; every value is legal.
    #[inline]
    pub fn decode(octets: &[u8; Self::LEN]) -> Self {
        Self {
            sink_stag: Stag::new(take_u32::<0, 28>(octets)),
            sink_to: TaggedOffset::new(take_u64::<4, 28>(octets)),
            len: take_u32::<12, 28>(octets),
            source_stag: Stag::new(take_u32::<16, 28>(octets)),
            source_to: TaggedOffset::new(take_u64::<20, 28>(octets)),
        }
    }

    /// Returns the octets of the header.
    #[inline]
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut octets = [0; Self::LEN];
        put_u32::<0, 28>(&mut octets, self.sink_stag.raw());
        put_u64::<4, 28>(&mut octets, self.sink_to.raw());
        put_u32::<12, 28>(&mut octets, self.len);
        put_u32::<16, 28>(&mut octets, self.source_stag.raw());
        put_u64::<20, 28>(&mut octets, self.source_to.raw());
        octets
    }

    /// Returns the request as it stands after `sent` octets of its Response were sent
    /// (RFC 5040, section 4.8; RDMAP-47).
    #[inline]
    #[must_use]
    pub const fn after(&self, sent: u32) -> Self {
        Self {
            sink_stag: self.sink_stag,
            sink_to: self.sink_to.wrapping_add(sent),
            len: self.len.saturating_sub(sent),
            source_stag: self.source_stag,
            source_to: self.source_to.wrapping_add(sent),
        }
    }
}

/// Immediate Data: eight octets that go to the receiver's completion (EXT-61, -64).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Immediate {
    /// The octets, opaque.
    pub data: [u8; Self::LEN],
    /// Whether the message is the one "with Solicited Event" (EXT-73).
    pub solicited: SendEvent,
}

impl Immediate {
    /// Length in octets; nothing follows (EXT-69).
    pub const LEN: usize = 8;

    /// Returns the octets with the four of the verbs in front, as deployed devices have them.
    #[inline]
    pub const fn of_verbs(value: [u8; 4]) -> [u8; Self::LEN] {
        let [a, b, c, d] = value;
        [a, b, c, d, 0, 0, 0, 0]
    }

    /// Returns the opcode of the kind.
    #[inline]
    pub const fn opcode(&self) -> Opcode {
        match self.solicited {
            SendEvent::Silent => Opcode::Immediate,
            SendEvent::Solicit => Opcode::ImmediateSolicited,
        }
    }
}

#[cfg(any(test, MODULE))]
#[cfg_attr(MODULE, kernel::prelude::kunit_tests(iwarp_rdmap))]
mod tests {
    use super::*;

    #[test]
    fn rdmap_opcodes_round_trip() {
        for octet in 0..=u8::MAX {
            let code = octet & 0xf;
            let opcode = Opcode::from_wire(octet, Extensions::SendImmediate);
            assert_eq!(opcode.is_some(), code <= 0xb || code == 0xf);
            if let Some(opcode) = opcode {
                assert_eq!(opcode.to_wire() & 0xf, code);
                // Other opcodes ignore reserved bits.
                assert_eq!(opcode.to_wire() >> 4, (octet >> 4) & u8::from(code == 0xf));
                // Only a tagged message has no queue.
                assert_eq!(opcode.queue().is_none(), opcode.model() == Model::Tagged);
            }
            let rfc7306 = Opcode::from_wire(octet, Extensions::Rfc7306);
            assert_eq!(rfc7306, opcode.filter(|_| code <= 0xb));
            let plain = Opcode::from_wire(octet, Extensions::Off);
            assert_eq!(plain, opcode.filter(|_| code <= 7));
        }
    }

    #[test]
    fn marked_opcodes_need_agreement() {
        for octet in 0..=0x3f {
            let Some(opcode) = Opcode::from_wire(octet, Extensions::SendImmediate) else {
                continue;
            };
            assert_eq!(opcode.marked(octet, Marked::NONE), opcode);
            let marked = opcode.marked(octet, Marked::ALL);
            match octet {
                0x10 => assert_eq!(marked, Opcode::AtomicWrite),
                0x11 => assert_eq!(marked, Opcode::Flush),
                _ => assert_eq!(marked, opcode),
            }
            let flush = opcode.marked(octet, Marked::FLUSH);
            assert!((flush == Opcode::Flush) == (octet == 0x11));
            assert!(flush != Opcode::AtomicWrite);
            let write = opcode.marked(octet, Marked::ATOMIC_WRITE);
            assert!((write == Opcode::AtomicWrite) == (octet == 0x10));
            assert!(write != Opcode::Flush);
        }
        for opcode in [Opcode::AtomicWrite, Opcode::Flush] {
            assert_eq!(opcode.queue().is_none(), opcode.model() == Model::Tagged);
        }
        assert_eq!(Marked::from_bits(!0), Marked::ALL);
        assert_eq!(Marked::from_bits(Marked::ALL.bits()), Marked::ALL);
    }

    #[test]
    fn send_kinds_have_their_opcodes() {
        let stag = SendExtra::Invalidate(Stag::new(0x1234));
        let octets = SendExtra::Immediate([1, 2, 3, 4]);
        let kind = |solicited, extra| SendKind { solicited, extra };
        assert_eq!(
            kind(SendEvent::Silent, SendExtra::None).opcode().to_wire(),
            3
        );
        assert_eq!(kind(SendEvent::Silent, stag).opcode().to_wire(), 4);
        assert_eq!(kind(SendEvent::Silent, octets).opcode().to_wire(), 0xf);
        assert_eq!(
            kind(SendEvent::Solicit, SendExtra::None).opcode().to_wire(),
            5
        );
        assert_eq!(kind(SendEvent::Solicit, stag).opcode().to_wire(), 6);
        assert_eq!(kind(SendEvent::Solicit, octets).opcode().to_wire(), 0x1f);
        let field = |extra| kind(SendEvent::Solicit, extra).invalidate_field().raw();
        assert_eq!(field(stag), 0x1234);
        assert_eq!(field(octets), 0x0102_0304);
        assert_eq!(field(SendExtra::None), 0);
    }

    const REQUEST: ReadRequest = ReadRequest {
        sink_stag: Stag::new(0x0102_0304),
        sink_to: TaggedOffset::new(0x0506_0708_090a_0b0c),
        len: 0x0d0e_0f10,
        source_stag: Stag::new(0x1112_1314),
        source_to: TaggedOffset::new(0x1516_1718_191a_1b1c),
    };

    #[test]
    fn read_request_is_laid_out_as_in_the_rfc() {
        let octets = REQUEST.encode();
        assert!(octets.iter().copied().eq(1..=28));
        assert_eq!(ReadRequest::decode(&octets), REQUEST);
    }

    #[test]
    fn partial_read_request_advances_source_and_sink() {
        let left = REQUEST.after(0x10);
        assert_eq!(left.len, 0x0d0e_0f00);
        assert_eq!(left.sink_to.raw(), 0x0506_0708_090a_0b1c);
        assert_eq!(left.source_to.raw(), 0x1516_1718_191a_1b2c);
        assert_eq!(REQUEST.after(u32::MAX).len, 0);
        let at_the_end = ReadRequest {
            sink_to: TaggedOffset::new(u64::MAX),
            ..REQUEST
        };
        assert_eq!(at_the_end.after(1).sink_to.raw(), 0);
    }
}
