// SPDX-License-Identifier: GPL-2.0

//! What complete FPDUs contain.
//!
//! Values only: [`super::Receiver`] returns them, the driver acts on them.
//!
//! RFC 5040, section 4; RFC 5041, section 4; RFC 7306.

use crate::{
    atomic::{
        AtomicRequest,
        AtomicResponse, //
    },
    ddp::{
        MessagePart,
        Msn,
        UntaggedHeader, //
    },
    fault::Fault,
    rdmap::{
        Immediate,
        ReadRequest,
        SendKind, //
    },
    stag::{
        Stag,
        TaggedOffset, //
    },
    terminate::Terminate, //
};

/// Where the payload lies in a ULPDU, in octets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PayloadSpan {
    /// Its first octet; add [`crate::mpa::LENGTH_LEN`] for the place in the FPDU.
    pub offset: u16,
    /// How many octets.
    pub len: u16,
}

impl PayloadSpan {
    /// Returns what follows `HEADER` octets of header; the caller has checked that they are there.
    #[inline]
    pub(super) const fn after<const HEADER: usize>(ulpdu_len: u16) -> Self {
        const { assert!(HEADER <= UntaggedHeader::LEN) };
        // CAST: checked by the assertion.
        let offset = const { HEADER as u16 };
        Self {
            offset,
            len: ulpdu_len.saturating_sub(offset),
        }
    }
}

/// A segment of an RDMA Write or Read Response. STag and offset have not been checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaggedSegment {
    /// The buffer.
    pub stag: Stag,
    /// Where in it the payload goes.
    pub to: TaggedOffset,
    /// The payload; may be empty, then `stag` and `to` are ignored (DDP-41).
    pub payload: PayloadSpan,
    /// Whether the message ends here.
    pub last: MessagePart,
}

/// A segment of a Send. Buffer and offset have not been checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendSegment {
    /// Whether the message begins here, so that the driver takes the next receive buffer
    /// (RDMAP-80), also for an empty message (RDMAP-89).
    pub first: bool,
    /// Its number in the queue.
    pub msn: Msn,
    /// Where in the message the payload goes, in octets.
    pub offset: u32,
    /// The payload; may be empty.
    pub payload: PayloadSpan,
    /// The kind; the STag or immediate data in it counts in the last segment.
    pub kind: SendKind,
    /// Whether the message ends here.
    pub last: MessagePart,
}

/// Whether an untagged queue has a buffer for one more message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueRoom {
    /// None.
    Full,
    /// At least one.
    Free,
}

/// A message without payload that needs a slot of its queue.
///
/// Whether a slot is free is checked before the message's offset and length (DDP-86), so only
/// [`Self::admit`] returns the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Queued<T> {
    pub(super) msn: Msn,
    pub(super) without_room: Fault,
    pub(super) message: Result<T, Fault>,
}

impl<T> Queued<T> {
    /// Returns the message's number in its queue.
    #[inline]
    pub const fn msn(&self) -> Msn {
        self.msn
    }

    /// Returns the message if its queue has room.
    ///
    /// For [`Segment::Immediate`] `room` tells whether a receive buffer is posted, of any size
    /// (EXT-66); for a Read or Atomic Request, whether fewer than the negotiated inbound number are
    /// unanswered; for an Atomic Response, whether an Atomic Request waits for one.
    ///
    /// # Errors
    ///
    /// In this order: [`Fault::NoBuffer`], [`Fault::ReadDepth`] or [`Fault::AtomicUnsolicited`] if
    /// there is no room; [`Fault::MessageOffset`] for an offset other than 0;
    /// [`Fault::HeaderLength`] or [`Fault::ImmediateLength`] for a message of the wrong length or
    /// in several segments; [`Fault::AtomicOperation`].
    #[inline]
    pub fn admit(self, room: QueueRoom) -> Result<T, Fault> {
        match room {
            QueueRoom::Full => Err(self.without_room),
            QueueRoom::Free => self.message,
        }
    }
}

/// What a complete FPDU contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Segment {
    /// No ULPDU: nothing to do (MPA-13).
    Empty,
    /// A segment of an RDMA Write.
    Write(TaggedSegment),
    /// An Atomic Write: 8 octets.
    AtomicWrite(TaggedSegment),
    /// An RDMA Read Request.
    ReadRequest(Queued<ReadRequest>),
    /// A Flush: the header of the marked Read Request ([`crate::flush::FlushRequest`]).
    Flush(Queued<ReadRequest>),
    /// A segment of an RDMA Read Response.
    ReadResponse(TaggedSegment),
    /// A segment of a Send.
    Send(SendSegment),
    /// The peer has ended the stream.
    Terminate(Terminate),
    /// Immediate Data.
    Immediate(Queued<Immediate>),
    /// An Atomic Request.
    AtomicRequest(Queued<AtomicRequest>),
    /// An Atomic Response.
    AtomicResponse(Queued<AtomicResponse>),
}
