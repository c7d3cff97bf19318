// SPDX-License-Identifier: GPL-2.0

//! Segmentation: cuts a message into FPDUs, one [`Plan`] for each.
//!
//! A [`Segmenter`] holds the message and how much of it has been cut; it never sees payload. Each
//! [`Plan`] holds the finished header octets, length field included, and says which octets of the
//! message's payload follow, how many octets of padding, and whether the message ends there. The
//! driver copies `plan.header()`, the payload and the padding, and appends the CRC.
//!
//! A segmenter is small and `Copy`: the driver may keep it while the socket buffer is full and
//! resume it with another MULPDU (DDP-1); FPDUs that were cut do not change (DDP-2).
//!
//! Pure, any context.
//!
//! RFC 5041, section 5.1 (rows DDP-32..45).

use crate::{
    atomic::{
        AtomicRequest,
        AtomicResponse, //
    },
    bytes::{
        put,
        put_u16, //
    },
    ddp::{
        Control,
        MessagePart,
        Msn,
        QueueNumber,
        TaggedHeader,
        UntaggedHeader, //
    },
    features::Features,
    flush::FlushRequest,
    mpa::{
        fpdu_len,
        pad_len,
        LENGTH_LEN,
        MULPDU_MIN, //
    },
    rdmap::{
        Immediate,
        Opcode,
        ReadRequest,
        SendKind, //
    },
    stag::{
        Stag,
        TaggedOffset, //
    },
    terminate::Terminate, //
};

/// Greatest length in octets of an FPDU's headers, ULPDU_Length included: those of an Atomic
/// Request, or of a Terminate that quotes a Read Request.
pub const PLAN_HEADER_MAX: usize = LENGTH_LEN + UntaggedHeader::LEN + AtomicRequest::LEN;

/// An RDMAP message to be sent.
///
/// The payload is not part of it; its length goes to [`Segmenter::new`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// RDMA Write, with payload.
    Write {
        /// The buffer at the peer.
        stag: Stag,
        /// Where in it the first octet goes.
        to: TaggedOffset,
    },
    /// Atomic Write, with a payload of 8 octets.
    AtomicWrite {
        /// The buffer at the peer.
        stag: Stag,
        /// Where in it the octets go.
        to: TaggedOffset,
    },
    /// Flush.
    Flush {
        /// What it asks for.
        request: FlushRequest,
        /// Its number among Read and Atomic Requests.
        msn: Msn,
    },
    /// RDMA Read Request.
    ReadRequest {
        /// The RDMAP header.
        request: ReadRequest,
        /// Its number among Read and Atomic Requests.
        msn: Msn,
    },
    /// RDMA Read Response, with payload.
    ReadResponse {
        /// The sink STag of the request.
        stag: Stag,
        /// The sink offset of the request.
        to: TaggedOffset,
    },
    /// Send of any kind, with payload.
    Send {
        /// The kind, with the STag to invalidate or the immediate data.
        kind: SendKind,
        /// Its number among Sends and Immediate Data.
        msn: Msn,
    },
    /// Terminate; a stream sends one, so its number is 1 (RDMAP-95).
    Terminate(Terminate),
    /// Immediate Data.
    Immediate {
        /// The octets and the kind.
        immediate: Immediate,
        /// Its number among Sends and Immediate Data.
        msn: Msn,
    },
    /// Atomic Request.
    AtomicRequest {
        /// The RDMAP header.
        request: AtomicRequest,
        /// Its number among Read and Atomic Requests.
        msn: Msn,
    },
    /// Atomic Response.
    AtomicResponse {
        /// The RDMAP header.
        response: AtomicResponse,
        /// Its number among Atomic Responses.
        msn: Msn,
    },
    /// The features of this end, as the first message of its stream.
    Features(Features),
}

impl Message {
    /// Returns whether ULP payload follows the headers (RDMAP-28, EXT-13).
    #[inline]
    pub const fn has_payload(&self) -> bool {
        match self {
            Self::Write { .. }
            | Self::AtomicWrite { .. }
            | Self::ReadResponse { .. }
            | Self::Send { .. } => true,
            Self::ReadRequest { .. }
            | Self::Flush { .. }
            | Self::Terminate(_)
            | Self::Immediate { .. }
            | Self::AtomicRequest { .. }
            | Self::AtomicResponse { .. }
            | Self::Features(_) => false,
        }
    }
}

/// One FPDU, all but its payload and its CRC.
///
/// On the wire: [`Self::header`], then [`Self::payload_len`] octets of the message's payload from
/// [`Self::payload_offset`] on, then [`Self::pad_len`] octets of zeros, then the CRC.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    header: [u8; PLAN_HEADER_MAX],
    /// At most `PLAN_HEADER_MAX`.
    header_len: u8,
    pad_len: u8,
    ulpdu_len: u16,
    payload_len: u16,
    payload_offset: u32,
    last: MessagePart,
}

impl Plan {
    /// Returns the octets before the payload: ULPDU_Length, DDP header, RDMAP header.
    #[inline]
    pub fn header(&self) -> &[u8] {
        self.header
            .get(..usize::from(self.header_len))
            .unwrap_or_default()
    }

    /// Returns where in the message's payload this FPDU begins, in octets.
    #[inline]
    pub const fn payload_offset(&self) -> u32 {
        self.payload_offset
    }

    /// Returns how many octets of payload this FPDU carries.
    #[inline]
    pub const fn payload_len(&self) -> u16 {
        self.payload_len
    }

    /// Returns how many octets of zeros follow the payload, 0 to 3.
    #[inline]
    pub const fn pad_len(&self) -> u8 {
        self.pad_len
    }

    /// Returns whether the message ends with this FPDU.
    #[inline]
    pub const fn is_last(&self) -> bool {
        self.last.is_last()
    }

    /// Returns the length in octets of the whole FPDU, CRC included, Markers not counted.
    #[inline]
    pub const fn fpdu_len(&self) -> u32 {
        fpdu_len(self.ulpdu_len)
    }

    /// Returns an empty plan, which [`Segmenter::next_into`] fills.
    #[inline]
    pub const fn empty() -> Self {
        Self {
            header: [0; PLAN_HEADER_MAX],
            header_len: 0,
            pad_len: 0,
            ulpdu_len: 0,
            payload_len: 0,
            payload_offset: 0,
            last: MessagePart::Final,
        }
    }

    /// Writes a tagged header.
    #[inline]
    fn tagged(&mut self, opcode: Opcode, stag: Stag, to: TaggedOffset) {
        let header = TaggedHeader {
            control: Control {
                opcode,
                last: self.last,
            },
            stag,
            to: to.wrapping_add(self.payload_offset),
        };
        put::<LENGTH_LEN, { TaggedHeader::LEN }, PLAN_HEADER_MAX>(
            &mut self.header,
            header.encode(),
        );
        self.close::<{ LENGTH_LEN + TaggedHeader::LEN }>();
    }

    /// Writes an untagged header; the caller calls [`Self::close`] next.
    #[inline]
    fn untagged(&mut self, opcode: Opcode, queue: QueueNumber, msn: Msn, invalidate: Stag) {
        let header = UntaggedHeader {
            control: Control {
                opcode,
                last: self.last,
            },
            invalidate,
            queue,
            msn,
            // DDP-36: the distance from the first octet of the message.
            offset: self.payload_offset,
        };
        put::<LENGTH_LEN, { UntaggedHeader::LEN }, PLAN_HEADER_MAX>(
            &mut self.header,
            header.encode(),
        );
    }

    /// Writes the RDMAP header of an untagged message, `LEN` octets.
    #[inline]
    fn body<const LEN: usize>(&mut self, octets: [u8; LEN]) {
        put::<{ LENGTH_LEN + UntaggedHeader::LEN }, LEN, PLAN_HEADER_MAX>(&mut self.header, octets);
    }

    /// Fills in the lengths; the header is `LEN` octets long.
    #[inline]
    fn close<const LEN: usize>(&mut self) {
        const { assert!(LEN <= PLAN_HEADER_MAX && PLAN_HEADER_MAX <= 255) };
        // CAST: checked by the assertion.
        self.close_with(const { LEN as u8 });
    }

    #[inline]
    fn close_with(&mut self, header_len: u8) {
        // NO-OVERFLOW: the payload was cut so that headers and payload are at most MULPDU.
        let ulpdu_len = u16::from(header_len)
            .saturating_sub(LENGTH_LEN_16)
            .saturating_add(self.payload_len);
        self.header_len = header_len;
        self.ulpdu_len = ulpdu_len;
        self.pad_len = pad_len(ulpdu_len);
        put_u16::<0, PLAN_HEADER_MAX>(&mut self.header, ulpdu_len);
    }
}

/// Cuts one message into FPDUs.
#[derive(Clone, Copy, Debug)]
pub struct Segmenter {
    message: Message,
    payload_len: u32,
    cut: u32,
    done: bool,
}

impl Segmenter {
    /// Begins a message with `payload_len` octets of payload; the length of a DDP message is below
    /// 2^32 (DDP-33).
    ///
    /// For messages without payload ([`Message::has_payload`]) `payload_len` is ignored.
    #[inline]
    pub const fn new(message: Message, payload_len: u32) -> Self {
        let payload_len = if message.has_payload() {
            payload_len
        } else {
            0
        };
        Self {
            message,
            payload_len,
            cut: 0,
            done: false,
        }
    }

    /// Returns the message.
    #[inline]
    pub const fn message(&self) -> &Message {
        &self.message
    }

    /// Returns how many octets of payload the message has.
    #[inline]
    pub const fn payload_len(&self) -> u32 {
        self.payload_len
    }

    /// Returns how many octets of payload have not been cut yet; 0 does not mean that the message
    /// is done, see [`Self::is_done`].
    #[inline]
    pub const fn remaining(&self) -> u32 {
        self.payload_len.saturating_sub(self.cut)
    }

    /// Returns whether the last FPDU of the message has been cut.
    #[inline]
    pub const fn is_done(&self) -> bool {
        self.done
    }

    /// Cuts the next FPDU, whose ULPDU is at most `mulpdu` octets long (DDP-32), or returns `None`
    /// when the message is done.
    ///
    /// A message without payload octets is exactly one FPDU (DDP-40). A `mulpdu` below
    /// [`MULPDU_MIN`] counts as that (MPA-28), so that every message without payload fits.
    #[inline]
    pub fn next(&mut self, mulpdu: u16) -> Option<Plan> {
        let mut plan = Plan::empty();
        self.next_into(mulpdu, &mut plan).then_some(plan)
    }

    /// Cuts the next FPDU as [`Self::next`] does, into a plan of the caller, which saves a copy.
    /// Returns false and changes nothing when the message is done.
    #[inline]
    pub fn next_into(&mut self, mulpdu: u16, plan: &mut Plan) -> bool {
        self.plan_within(mulpdu.max(MULPDU_MIN), plan)
    }

    /// Cuts the next FPDU as [`Self::next_into`] does, but none with payload on both sides of
    /// `end`, which is an offset of the payload. For a message that may be cut anywhere.
    #[cold]
    pub fn next_until(&mut self, mulpdu: u16, end: u32, plan: &mut Plan) -> bool {
        let header = match self.message {
            Message::Send { .. } => UntaggedHeader::LEN,
            _ => TaggedHeader::LEN,
        };
        let before = end.saturating_sub(self.cut);
        match u16::try_from(before).ok().filter(|before| *before != 0) {
            Some(before) => {
                // CAST: a DDP header is 14 or 18 octets long.
                let ulpdu = before.saturating_add(header as u16);
                self.plan_within(ulpdu.min(mulpdu.max(MULPDU_MIN)), plan)
            }
            None => self.next_into(mulpdu, plan),
        }
    }

    /// Cuts the next FPDU, whose ULPDU is no longer than `room`.
    #[inline]
    fn plan_within(&mut self, room: u16, plan: &mut Plan) -> bool {
        if self.done {
            return false;
        }
        (plan.payload_len, plan.payload_offset, plan.last) = (0, 0, MessagePart::Final);
        match self.message {
            Message::Write { stag, to } => {
                self.cut::<{ TaggedHeader::LEN }>(room, plan);
                plan.tagged(Opcode::Write, stag, to);
            }
            Message::ReadResponse { stag, to } => {
                self.cut::<{ TaggedHeader::LEN }>(room, plan);
                plan.tagged(Opcode::ReadResponse, stag, to);
            }
            Message::Send { kind, msn } => {
                self.cut::<{ UntaggedHeader::LEN }>(room, plan);
                plan.untagged(
                    kind.opcode(),
                    QueueNumber::SEND,
                    msn,
                    kind.invalidate_field(),
                );
                plan.close::<{ LENGTH_LEN + UntaggedHeader::LEN }>();
            }
            Message::AtomicWrite { .. } | Message::Flush { .. } => self.marked(plan),
            Message::ReadRequest { .. }
            | Message::Terminate(_)
            | Message::Immediate { .. }
            | Message::AtomicRequest { .. }
            | Message::AtomicResponse { .. }
            | Message::Features(_) => self.whole(plan),
        }
        self.done = plan.is_last();
        true
    }

    /// Takes back the FPDU that was cut last, so that it can be cut again.
    #[inline]
    pub fn undo(&mut self, plan: &Plan) {
        self.cut = plan.payload_offset();
        self.done = false;
    }

    /// Takes the next part of the payload, behind `HEADER` octets of DDP header.
    #[inline]
    fn cut<const HEADER: usize>(&mut self, room: u16, plan: &mut Plan) {
        // CAST: a DDP header is 14 or 18 octets long.
        let room = room.saturating_sub(const { HEADER as u16 });
        let remaining = self.remaining();
        let len = u16::try_from(remaining).map_or(room, |remaining| remaining.min(room));
        if u32::from(len) != remaining {
            plan.last = MessagePart::Continued;
        }
        plan.payload_len = len;
        plan.payload_offset = self.cut;
        self.cut = self.cut.saturating_add(u32::from(len));
    }

    /// Makes the only FPDU of a message that a reserved bit marks.
    #[cold]
    fn marked(&mut self, plan: &mut Plan) {
        match self.message {
            Message::AtomicWrite { stag, to } => {
                self.cut::<{ TaggedHeader::LEN }>(MULPDU_MIN, plan);
                plan.tagged(Opcode::AtomicWrite, stag, to);
            }
            Message::Flush { request, msn } => {
                plan.untagged(Opcode::Flush, QueueNumber::READ, msn, Stag::ZERO);
                plan.body(request.to_request().encode());
                plan.close::<{ LENGTH_LEN + UntaggedHeader::LEN + ReadRequest::LEN }>();
            }
            // `next_into` has only these made here.
            _ => {}
        }
    }

    /// Makes the only FPDU of a message without payload.
    fn whole(&self, plan: &mut Plan) {
        const DDP: usize = LENGTH_LEN + UntaggedHeader::LEN;
        match self.message {
            Message::ReadRequest { request, msn } => {
                plan.untagged(Opcode::ReadRequest, QueueNumber::READ, msn, Stag::ZERO);
                plan.body(request.encode());
                plan.close::<{ DDP + ReadRequest::LEN }>();
            }
            Message::Terminate(terminate) => {
                plan.untagged(
                    Opcode::Terminate,
                    QueueNumber::TERMINATE,
                    Msn::FIRST,
                    Stag::ZERO,
                );
                let octets = terminate.encode();
                plan.body(octets.padded());
                // NO-OVERFLOW: 20 octets and 52.
                plan.close_with(octets.len().saturating_add(const { DDP as u8 }));
            }
            Message::Immediate { immediate, msn } => {
                plan.untagged(immediate.opcode(), QueueNumber::SEND, msn, Stag::ZERO);
                plan.body(immediate.data);
                plan.close::<{ DDP + Immediate::LEN }>();
            }
            Message::AtomicRequest { request, msn } => {
                plan.untagged(Opcode::AtomicRequest, QueueNumber::READ, msn, Stag::ZERO);
                plan.body(request.encode());
                plan.close::<{ DDP + AtomicRequest::LEN }>();
            }
            Message::AtomicResponse { response, msn } => {
                plan.untagged(Opcode::AtomicResponse, QueueNumber::ATOMIC, msn, Stag::ZERO);
                plan.body(response.encode());
                plan.close::<{ DDP + AtomicResponse::LEN }>();
            }
            Message::Features(features) => {
                let header = Features::HEADER;
                plan.untagged(header.control.opcode, header.queue, header.msn, Stag::ZERO);
                plan.body(features.encode());
                plan.close::<{ DDP + Features::LEN }>();
            }
            // `next_into` cuts these.
            Message::Write { .. }
            | Message::ReadResponse { .. }
            | Message::Send { .. }
            | Message::AtomicWrite { .. }
            | Message::Flush { .. } => {}
        }
    }
}

// CAST: 2.
const LENGTH_LEN_16: u16 = LENGTH_LEN as u16;

#[cfg(any(test, MODULE))]
#[cfg_attr(MODULE, kernel::prelude::kunit_tests(iwarp_segment))]
mod tests {
    use super::*;

    /// Whether a message is cut into exactly these FPDUs: offset and length of the payload, and
    /// whether it is the last.
    fn is_cut_into(
        message: Message,
        payload_len: u32,
        mulpdu: u16,
        expected: &[(u32, u16, bool)],
    ) -> bool {
        let mut segmenter = Segmenter::new(message, payload_len);
        core::iter::from_fn(|| segmenter.next(mulpdu))
            .map(|plan| (plan.payload_offset(), plan.payload_len(), plan.is_last()))
            .eq(expected.iter().copied())
    }

    const SEND: Message = Message::Send {
        kind: SendKind {
            solicited: crate::rdmap::SendEvent::Silent,
            extra: crate::rdmap::SendExtra::None,
        },
        msn: Msn::FIRST,
    };

    const WRITE: Message = Message::Write {
        stag: Stag::new(7),
        to: TaggedOffset::new(16384),
    };

    #[test]
    fn segmenter_can_take_back_one_fpdu() {
        let mut segmenter = Segmenter::new(SEND, 3000);
        let first = segmenter.next(1454).unwrap();
        segmenter.undo(&first);
        let again = segmenter.next(1454).unwrap();
        assert_eq!(first.header(), again.header());
        assert_eq!(again.payload_offset(), 0);
        while let Some(plan) = segmenter.next(1454) {
            if plan.is_last() {
                segmenter.undo(&plan);
                let again = segmenter.next(1454).unwrap();
                assert_eq!(plan.header(), again.header());
                assert!(again.is_last());
            }
        }
        assert!(segmenter.is_done());
    }

    #[test]
    fn cuts_the_untagged_example_of_the_rfc() {
        assert!(is_cut_into(
            SEND,
            2048,
            1500,
            &[(0, 1482, false), (1482, 566, true)]
        ));
    }

    #[test]
    fn cuts_the_tagged_example_of_the_rfc() {
        assert!(is_cut_into(
            WRITE,
            2048,
            1500,
            &[(0, 1486, false), (1486, 562, true)]
        ));
        let mut segmenter = Segmenter::new(WRITE, 2048);
        segmenter.next(1500);
        let plan = segmenter.next(1500).unwrap();
        assert_eq!(plan.header()[8..16], 17870u64.to_be_bytes());
    }

    #[test]
    fn zero_length_messages_are_one_segment() {
        assert!(is_cut_into(SEND, 0, 1500, &[(0, 0, true)]));
        assert!(is_cut_into(WRITE, 0, 1500, &[(0, 0, true)]));
    }

    #[test]
    fn exactly_fitting_message_is_one_segment() {
        assert!(is_cut_into(SEND, 110, 128, &[(0, 110, true)]));
        assert!(is_cut_into(
            SEND,
            111,
            128,
            &[(0, 110, false), (110, 1, true)]
        ));
        assert!(is_cut_into(
            WRITE,
            228,
            128,
            &[(0, 114, false), (114, 114, true)]
        ));
    }

    #[test]
    fn tiny_mulpdu_is_raised_to_minimum() {
        for mulpdu in 0..=MULPDU_MIN {
            assert!(is_cut_into(
                SEND,
                111,
                mulpdu,
                &[(0, 110, false), (110, 1, true)]
            ));
        }
    }

    #[test]
    fn longest_message_is_segmented_completely() {
        let mut segmenter = Segmenter::new(WRITE, u32::MAX);
        let mut next = 0u32;
        while let Some(plan) = segmenter.next(u16::MAX) {
            assert_eq!(plan.payload_offset(), next);
            next = next.checked_add(plan.payload_len().into()).unwrap();
        }
        assert_eq!(next, u32::MAX);
        assert!(segmenter.is_done());
    }

    #[test]
    fn segmenter_resumes_with_changed_mulpdu() {
        let mut segmenter = Segmenter::new(SEND, 300);
        assert_eq!(segmenter.next(128).unwrap().payload_len(), 110);
        let copy = segmenter;
        assert_eq!(segmenter.remaining(), 190);
        let plan = segmenter.next(1454).unwrap();
        assert_eq!((plan.payload_offset(), plan.payload_len()), (110, 190));
        assert!(segmenter.is_done() && !copy.is_done());
        assert!(segmenter.next(1454).is_none());
    }

    #[test]
    fn segments_end_at_the_given_limit() {
        for (message, len, end, lens) in [
            (WRITE, 300, 1, [1, 114, 114, 71].as_slice()),
            (SEND, 300, 1, &[1, 110, 110, 79]),
            (SEND, 300, 110, &[110, 110, 80]),
            (SEND, 300, 111, &[110, 1, 110, 79]),
            (WRITE, 300, 299, &[114, 114, 71, 1]),
            (WRITE, 100, 0, &[100]),
            (WRITE, 100, 100, &[100]),
            (WRITE, 100, u32::MAX, &[100]),
        ] {
            let mut segmenter = Segmenter::new(message, len);
            let mut plan = Plan::empty();
            let mut offset = 0;
            for expected in lens {
                assert!(segmenter.next_until(128, end, &mut plan));
                assert_eq!(
                    (plan.payload_offset(), plan.payload_len()),
                    (offset, *expected)
                );
                offset += u32::from(*expected);
                assert_eq!(plan.is_last(), offset == len);
            }
            assert!(!segmenter.next_until(128, end, &mut plan));
        }
    }

    #[test]
    fn segmenter_value_is_small() {
        assert!(core::mem::size_of::<Segmenter>() <= 128);
        assert!(core::mem::size_of::<Plan>() <= 88);
    }
}
