// SPDX-License-Identifier: GPL-2.0

//! The receiver: checks the headers of a complete FPDU and says what the segment is.
//!
//! The driver waits until a whole FPDU has arrived, verifies its CRC (MPA-20), and passes the front
//! of the ULPDU; the receiver never sees payload. A [`Receiver`] checks in the order of DDP-86: DDP
//! version, RDMAP version, opcode, opcode against T bit, header length, opcode against an
//! unfinished message, queue number, message sequence number. The driver then makes the checks that
//! need memory or buffers:
//!
//! * [`Segment::Write`] and [`Segment::AtomicWrite`] go to [`crate::stag::check_tagged`];
//! * [`Segment::ReadResponse`] goes to [`crate::readq`];
//! * [`Segment::Send`] takes a receive buffer if `first`, then goes to
//!   [`crate::order::SendProgress::accept`];
//! * [`Segment::Immediate`], [`Segment::ReadRequest`], [`Segment::Flush`],
//!   [`Segment::AtomicRequest`] and [`Segment::AtomicResponse`] go to [`Queued::admit`], which
//!   returns the message once the driver has said whether its queue has room.
//!
//! After a fault the driver passes no further FPDU (DDP-83, MPA-21);
//! [`crate::terminate::Quoted::from_segment`] keeps the headers for the Terminate.
//!
//! Pure; suited to softirq: no allocation, no waiting, work bounded by the header's length.
//!
//! RFC 5040, sections 4 and 5; RFC 5041, sections 4, 5 and 7; RFC 7306.

use crate::{
    atomic::{
        AtomicRequest,
        AtomicResponse, //
    },
    ddp::{
        Control,
        MessagePart,
        Model,
        Msn,
        QueueNumber,
        TaggedHeader,
        UntaggedHeader, //
    },
    fault::Fault,
    rdmap::{
        Extensions,
        Immediate,
        Marked,
        Opcode,
        ReadRequest,
        SendEvent,
        SendExtra,
        SendKind, //
    },
    terminate::Terminate, //
};

mod verdict;

pub use verdict::{
    PayloadSpan,
    QueueRoom,
    Queued,
    Segment,
    SendSegment,
    TaggedSegment, //
};

/// How many octets of a ULPDU the receiver reads at most: an Atomic Request or the longest
/// Terminate.
pub const RECEIVE_HEADER_MAX: usize = UntaggedHeader::LEN + Terminate::LEN_MAX;

/// Octets of an Atomic Write.
pub const ATOMIC_WRITE_LEN: u16 = 8;

/// The receiving half of a stream.
#[derive(Clone, Copy, Debug)]
pub struct Receiver {
    extensions: Extensions,
    /// The messages marked by a reserved bit that both ends take.
    marked: Marked,
    /// The message whose last segment has not arrived yet.
    open: Option<Opcode>,
    /// The next number, or that of the open Send.
    send: Msn,
    read: Msn,
    terminate: Msn,
    atomic: Msn,
}

impl Receiver {
    /// Begins a stream: every queue is at its first number (DDP-29).
    #[inline]
    pub const fn new(extensions: Extensions) -> Self {
        Self {
            extensions,
            marked: Marked::NONE,
            open: None,
            send: Msn::FIRST,
            read: Msn::FIRST,
            terminate: Msn::FIRST,
            atomic: Msn::FIRST,
        }
    }

    /// Begins a stream whose Send and Read queues are at the given numbers, so that tests reach the
    /// wrap.
    #[cfg(not(MODULE))]
    pub const fn with_numbers(extensions: Extensions, send: Msn, read: Msn) -> Self {
        let mut receiver = Self::new(extensions);
        receiver.send = send;
        receiver.read = read;
        receiver
    }

    /// Has it take marked messages from now on: both ends have agreed on them.
    pub fn take_marked(&mut self, marked: Marked) {
        self.marked = marked;
    }

    /// Returns whether a message has begun and not ended: then the stream must not end (MPA-30).
    #[inline]
    pub const fn is_mid_message(&self) -> bool {
        self.open.is_some()
    }

    /// Checks one FPDU, all of whose octets have arrived and whose CRC is right or not in use.
    ///
    /// `ulpdu_len` is its ULPDU_Length; `header` is the front of the ULPDU, the lesser of
    /// `ulpdu_len` and [`RECEIVE_HEADER_MAX`] octets. Further octets are ignored.
    ///
    /// # Errors
    ///
    /// The first fault in the order given in the [module](self)'s description. A ULPDU that is too
    /// short for its control octets or its DDP header is [`Fault::UlpduTooShort`]. [`Fault::Local`]
    /// means that `header` was shorter than it has to be.
    #[inline]
    pub fn handle_fpdu(&mut self, header: &[u8], ulpdu_len: u16) -> Result<Segment, Fault> {
        let len = usize::from(ulpdu_len);
        let Some(header) = header.get(..len.min(RECEIVE_HEADER_MAX)) else {
            return Err(Fault::Local);
        };
        if ulpdu_len == 0 {
            return Ok(Segment::Empty);
        }
        // MPA-31, DDP-31: every read is bounded by the length that the peer gave.
        let control = header
            .first_chunk::<{ Control::LEN }>()
            .ok_or(Fault::UlpduTooShort)?;
        let [_, octet] = *control;
        let control = Control::decode(control, self.extensions)?;
        if octet & Opcode::MARKS != 0 {
            let opcode = control.opcode.marked(octet, self.marked);
            if opcode != control.opcode {
                let control = Control { opcode, ..control };
                return self.handle_marked(control, header, ulpdu_len);
            }
        }
        match control.opcode.model() {
            Model::Tagged => {
                let octets = header.first_chunk().ok_or(Fault::UlpduTooShort)?;
                let header = TaggedHeader::after(control, octets);
                self.handle_tagged(&header, ulpdu_len)
            }
            Model::Untagged => {
                let (octets, body) = header.split_first_chunk().ok_or(Fault::UlpduTooShort)?;
                let header = UntaggedHeader::after(control, octets);
                self.handle_untagged(&header, body, ulpdu_len)
            }
        }
    }

    #[inline]
    fn handle_tagged(&mut self, header: &TaggedHeader, ulpdu_len: u16) -> Result<Segment, Fault> {
        let Control { opcode, last } = header.control;
        self.check_order(opcode)?;
        self.open = match last {
            MessagePart::Continued => Some(opcode),
            MessagePart::Final => None,
        };
        let segment = TaggedSegment {
            stag: header.stag,
            to: header.to,
            payload: PayloadSpan::after::<{ TaggedHeader::LEN }>(ulpdu_len),
            last,
        };
        Ok(if opcode == Opcode::Write {
            Segment::Write(segment)
        } else {
            Segment::ReadResponse(segment)
        })
    }

    /// Handles a message that both ends know by its mark.
    #[cold]
    fn handle_marked(
        &mut self,
        control: Control,
        header: &[u8],
        ulpdu_len: u16,
    ) -> Result<Segment, Fault> {
        if control.opcode == Opcode::Flush {
            let (octets, body) = header.split_first_chunk().ok_or(Fault::UlpduTooShort)?;
            let header = UntaggedHeader::after(control, octets);
            let msn = self.check_whole(&header, QueueNumber::READ)?;
            let whole = Whole::new(&header, body, ulpdu_len);
            return Ok(Segment::Flush(Queued {
                msn,
                without_room: Fault::ReadDepth,
                message: whole.body(Fault::HeaderLength).map(ReadRequest::decode),
            }));
        }
        // The only other one.
        let octets = header.first_chunk().ok_or(Fault::UlpduTooShort)?;
        let header = TaggedHeader::after(control, octets);
        self.check_order(control.opcode)?;
        let payload = PayloadSpan::after::<{ TaggedHeader::LEN }>(ulpdu_len);
        if !control.last.is_last() || payload.len != ATOMIC_WRITE_LEN {
            return Err(Fault::AtomicWriteLength);
        }
        Ok(Segment::AtomicWrite(TaggedSegment {
            stag: header.stag,
            to: header.to,
            payload,
            last: control.last,
        }))
    }

    #[inline]
    fn handle_untagged(
        &mut self,
        header: &UntaggedHeader,
        body: &[u8],
        ulpdu_len: u16,
    ) -> Result<Segment, Fault> {
        let mut send =
            |solicited, extra| self.handle_send(header, SendKind { solicited, extra }, ulpdu_len);
        let invalidate = SendExtra::Invalidate(header.invalidate);
        let immediate = SendExtra::Immediate(header.invalidate.raw().to_be_bytes());
        match header.control.opcode {
            Opcode::Send => send(SendEvent::Silent, SendExtra::None),
            Opcode::SendInvalidate => send(SendEvent::Silent, invalidate),
            Opcode::SendImmediate => send(SendEvent::Silent, immediate),
            Opcode::SendSolicited => send(SendEvent::Solicit, SendExtra::None),
            Opcode::SendSolicitedInvalidate => send(SendEvent::Solicit, invalidate),
            Opcode::SendSolicitedImmediate => send(SendEvent::Solicit, immediate),
            Opcode::ReadRequest => {
                let msn = self.check_whole(header, QueueNumber::READ)?;
                let whole = Whole::new(header, body, ulpdu_len);
                Ok(Segment::ReadRequest(Queued {
                    msn,
                    without_room: Fault::ReadDepth,
                    message: whole.body(Fault::HeaderLength).map(ReadRequest::decode),
                }))
            }
            Opcode::Terminate => self.handle_terminate(header, body, ulpdu_len),
            Opcode::Immediate => self.handle_immediate(header, body, ulpdu_len, SendEvent::Silent),
            Opcode::ImmediateSolicited => {
                self.handle_immediate(header, body, ulpdu_len, SendEvent::Solicit)
            }
            Opcode::AtomicRequest => {
                let msn = self.check_whole(header, QueueNumber::READ)?;
                let whole = Whole::new(header, body, ulpdu_len);
                Ok(Segment::AtomicRequest(Queued {
                    msn,
                    without_room: Fault::ReadDepth,
                    message: whole
                        .body(Fault::HeaderLength)
                        .and_then(AtomicRequest::decode),
                }))
            }
            Opcode::AtomicResponse => {
                let msn = self.check_whole(header, QueueNumber::ATOMIC)?;
                let whole = Whole::new(header, body, ulpdu_len);
                Ok(Segment::AtomicResponse(Queued {
                    msn,
                    without_room: Fault::AtomicUnsolicited,
                    message: whole.body(Fault::HeaderLength).map(AtomicResponse::decode),
                }))
            }
            // Not reached: these are tagged messages, and some that `Opcode::from_wire` does not
            // know.
            Opcode::Write
            | Opcode::AtomicWrite
            | Opcode::ReadResponse
            | Opcode::Flush
            | Opcode::Features => Err(Fault::OpcodeModel),
        }
    }

    #[inline]
    fn handle_send(
        &mut self,
        header: &UntaggedHeader,
        kind: SendKind,
        ulpdu_len: u16,
    ) -> Result<Segment, Fault> {
        let Control { opcode, last } = header.control;
        self.check_order(opcode)?;
        check_queue(header, QueueNumber::SEND)?;
        let first = self.open.is_none();
        if header.msn != self.send {
            // DDP-44: the next message may not begin before the open one has ended.
            return Err(if !first && header.msn == self.send.next() {
                Fault::OpcodeInterleaved
            } else {
                Fault::MsnRange
            });
        }
        self.open = match last {
            MessagePart::Continued => Some(opcode),
            MessagePart::Final => {
                self.send.advance();
                None
            }
        };
        Ok(Segment::Send(SendSegment {
            first,
            msn: header.msn,
            offset: header.offset,
            payload: PayloadSpan::after::<{ UntaggedHeader::LEN }>(ulpdu_len),
            kind,
            last,
        }))
    }

    #[inline]
    fn handle_immediate(
        &mut self,
        header: &UntaggedHeader,
        body: &[u8],
        ulpdu_len: u16,
        solicited: SendEvent,
    ) -> Result<Segment, Fault> {
        let msn = self.check_whole(header, QueueNumber::SEND)?;
        let whole = Whole::new(header, body, ulpdu_len);
        Ok(Segment::Immediate(Queued {
            msn,
            without_room: Fault::NoBuffer,
            // EXT-71: exactly 8 octets, in one segment.
            message: whole.body(Fault::ImmediateLength).map(|data| Immediate {
                data: *data,
                solicited,
            }),
        }))
    }

    /// Accepts a Terminate at any point, also inside another message (RDMAP-96).
    fn handle_terminate(
        &mut self,
        header: &UntaggedHeader,
        body: &[u8],
        ulpdu_len: u16,
    ) -> Result<Segment, Fault> {
        check_queue(header, QueueNumber::TERMINATE)?;
        if header.msn != self.terminate {
            return Err(Fault::MsnRange);
        }
        self.terminate.advance();
        if header.offset != 0 {
            return Err(Fault::MessageOffset);
        }
        if !header.control.last.is_last() || usize::from(ulpdu_len) > RECEIVE_HEADER_MAX {
            return Err(Fault::HeaderLength);
        }
        Ok(Segment::Terminate(Terminate::decode(body)?))
    }

    /// Checks queue and number of a message that is one segment, and returns the number.
    #[inline]
    fn check_whole(&mut self, header: &UntaggedHeader, queue: QueueNumber) -> Result<Msn, Fault> {
        self.check_order(header.control.opcode)?;
        check_queue(header, queue)?;
        let expected = match queue {
            QueueNumber::SEND => &mut self.send,
            QueueNumber::READ => &mut self.read,
            _ => &mut self.atomic,
        };
        if header.msn != *expected {
            return Err(Fault::MsnRange);
        }
        Ok(expected.advance())
    }

    /// Checks that no other message is unfinished: the segments of two messages do not interleave,
    /// and the opcode of a message does not change (DDP-22, -44).
    #[inline]
    fn check_order(&self, opcode: Opcode) -> Result<(), Fault> {
        match self.open {
            Some(open) if open != opcode => Err(Fault::OpcodeInterleaved),
            Some(_) | None => Ok(()),
        }
    }
}

/// Checks that a message came to the queue of its opcode (DDP-69).
#[inline]
fn check_queue(header: &UntaggedHeader, queue: QueueNumber) -> Result<(), Fault> {
    if header.queue == queue {
        Ok(())
    } else {
        Err(Fault::InvalidQueue)
    }
}

/// A message that must be one segment with an RDMAP header of fixed length.
struct Whole<'a> {
    offset: u32,
    last: MessagePart,
    body: &'a [u8],
    ulpdu_len: u16,
}

impl<'a> Whole<'a> {
    #[inline]
    const fn new(header: &UntaggedHeader, body: &'a [u8], ulpdu_len: u16) -> Self {
        Self {
            offset: header.offset,
            last: header.control.last,
            body,
            ulpdu_len,
        }
    }

    /// Returns the RDMAP header, if it begins at 0, is `LEN` octets long and ends the message.
    ///
    /// RDMAP-28, -150; EXT-12, -13.
    #[inline]
    fn body<const LEN: usize>(&self, wrong_length: Fault) -> Result<&'a [u8; LEN], Fault> {
        if self.offset != 0 {
            return Err(Fault::MessageOffset);
        }
        if !self.last.is_last()
            || usize::from(self.ulpdu_len) != const { UntaggedHeader::LEN + LEN }
        {
            return Err(wrong_length);
        }
        self.body.first_chunk().ok_or(wrong_length)
    }
}

#[cfg(any(test, MODULE))]
#[cfg_attr(MODULE, kernel::prelude::kunit_tests(iwarp_receiver))]
mod tests {
    use super::*;
    use crate::{
        segment::{
            Message,
            Segmenter, //
        },
        stag::{
            Stag,
            TaggedOffset, //
        }, //
    };

    /// The front of a ULPDU: control octets, three words and an offset.
    fn untagged(ddp: u8, opcode: u8, queue: u32, msn: u32, offset: u32) -> [u8; 18] {
        let control = Control::decode(&[ddp, 0x40 | opcode], Extensions::Rfc7306);
        let Ok(control) = control else {
            return [0; 18];
        };
        let header = UntaggedHeader {
            control,
            invalidate: Stag::new(0x77),
            queue: QueueNumber::new(queue),
            msn: Msn::new(msn),
            offset,
        };
        header.encode()
    }

    const MORE: u8 = 0x01;
    const LAST: u8 = 0x41;

    fn receiver() -> Receiver {
        Receiver::new(Extensions::Rfc7306)
    }

    fn fault(result: Result<Segment, Fault>) -> Option<Fault> {
        result.err()
    }

    /// Passes a ULPDU of `len` octets that begins with `header`.
    fn hand_in(receiver: &mut Receiver, header: &[u8], len: u16) -> Result<Segment, Fault> {
        let mut octets = [0; RECEIVE_HEADER_MAX];
        octets[..header.len()].copy_from_slice(header);
        receiver.handle_fpdu(&octets, len)
    }

    /// Stands for a segment of another kind than the test expects.
    const UNEXPECTED: Fault = Fault::Local;

    fn send(result: Result<Segment, Fault>) -> Result<SendSegment, Fault> {
        match result? {
            Segment::Send(send) => Ok(send),
            _ => Err(UNEXPECTED),
        }
    }

    fn read_request(result: Result<Segment, Fault>) -> Result<Queued<ReadRequest>, Fault> {
        match result? {
            Segment::ReadRequest(queued) => Ok(queued),
            _ => Err(UNEXPECTED),
        }
    }

    #[test]
    fn empty_fpdu_is_ignored() {
        assert_eq!(receiver().handle_fpdu(&[], 0), Ok(Segment::Empty));
    }

    #[test]
    fn fpdu_shorter_than_its_header_is_refused() {
        let send = untagged(LAST, 3, 0, 1, 0);
        for len in 1..18u16 {
            let cut = receiver().handle_fpdu(&send[..len.into()], len);
            assert_eq!(fault(cut), Some(Fault::UlpduTooShort));
        }
        assert!(receiver().handle_fpdu(&send, 18).is_ok());
        let write = [0xc1, 0x40, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        for len in 1..14u16 {
            let cut = receiver().handle_fpdu(&write[..len.into()], len);
            assert_eq!(fault(cut), Some(Fault::UlpduTooShort));
        }
        assert!(receiver().handle_fpdu(&write, 14).is_ok());
    }

    #[test]
    fn receiver_reads_no_octet_beyond_fpdu() {
        let send = untagged(LAST, 3, 0, 1, 0);
        let short = receiver().handle_fpdu(&send[..17], 18);
        assert_eq!(fault(short), Some(Fault::Local));
    }

    #[test]
    fn send_msns_must_be_consecutive() -> Result<(), Fault> {
        let mut receiver = receiver();
        for msn in 1..=3 {
            let send = send(hand_in(&mut receiver, &untagged(LAST, 3, 0, msn, 0), 20))?;
            assert!(send.first && send.last.is_last());
            assert_eq!((send.msn.raw(), send.payload.len), (msn, 2));
        }
        let repeated = hand_in(&mut receiver, &untagged(LAST, 3, 0, 3, 0), 20);
        assert_eq!(fault(repeated), Some(Fault::MsnRange));
        Ok(())
    }

    #[test]
    fn send_segments_keep_msn_and_opcode() -> Result<(), Fault> {
        let mut receiver = receiver();
        let begun = hand_in(&mut receiver, &untagged(MORE, 5, 0, 1, 0), 118);
        assert!(begun.is_ok() && receiver.is_mid_message());
        let more = send(hand_in(&mut receiver, &untagged(LAST, 5, 0, 1, 100), 28))?;
        assert!(!more.first && !receiver.is_mid_message());
        assert_eq!(
            (more.offset, more.kind.solicited),
            (100, SendEvent::Solicit)
        );
        Ok(())
    }

    #[test]
    fn message_inside_another_is_refused() {
        let begun = {
            let mut receiver = receiver();
            assert!(receiver
                .handle_fpdu(&untagged(MORE, 3, 0, 1, 0), 18)
                .is_ok());
            receiver
        };
        for other in [
            untagged(LAST, 4, 0, 1, 0),
            untagged(LAST, 3, 0, 2, 0),
            untagged(LAST, 1, 1, 1, 0),
        ] {
            let inside = begun.clone().handle_fpdu(&other, 18);
            assert_eq!(fault(inside), Some(Fault::OpcodeInterleaved));
        }
        let write = [0xc1, 0x40, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let inside = begun.clone().handle_fpdu(&write, 14);
        assert_eq!(fault(inside), Some(Fault::OpcodeInterleaved));
    }

    #[test]
    fn terminate_inside_another_message_is_accepted() -> Result<(), Fault> {
        let mut receiver = receiver();
        assert!(receiver
            .handle_fpdu(&untagged(MORE, 3, 0, 1, 0), 18)
            .is_ok());
        let mut octets = [0; 22];
        octets[..18].copy_from_slice(&untagged(LAST, 7, 2, 1, 0));
        octets[18..20].copy_from_slice(&[0x12, 0x05]);
        let terminate = match receiver.handle_fpdu(&octets, 22)? {
            Segment::Terminate(terminate) => terminate,
            _ => return Err(UNEXPECTED),
        };
        let code = terminate.code;
        assert_eq!((code.layer, code.etype, code.code), (1, 2, 5));
        Ok(())
    }

    #[test]
    fn wrong_queue_number_is_refused() {
        for (opcode, right) in [(3, 0), (1, 1), (7, 2), (8, 0), (10, 1), (11, 3)] {
            for queue in [0, 1, 2, 3, 4, u32::MAX] {
                let mut octets = [0; RECEIVE_HEADER_MAX];
                octets[..18].copy_from_slice(&untagged(LAST, opcode, queue, 1, 0));
                let judged = receiver().handle_fpdu(&octets, 70);
                let refused = fault(judged) == Some(Fault::InvalidQueue);
                assert_eq!(refused, queue != right);
            }
        }
    }

    #[test]
    fn read_request_needs_room_in_inbound_queue() -> Result<(), Fault> {
        let mut octets = [0; 46];
        octets[..18].copy_from_slice(&untagged(LAST, 1, 1, 1, 0));
        octets[33] = 9;
        let queued = read_request(receiver().handle_fpdu(&octets, 46))?;
        assert_eq!(queued.admit(QueueRoom::Full), Err(Fault::ReadDepth));
        assert_eq!(
            queued.admit(QueueRoom::Free).map(|request| request.len),
            Ok(9)
        );
        Ok(())
    }

    #[test]
    fn read_request_of_wrong_length_is_refused() -> Result<(), Fault> {
        for len in [18, 45, 47, 70u16] {
            let mut octets = [0; RECEIVE_HEADER_MAX];
            octets[..18].copy_from_slice(&untagged(LAST, 1, 1, 1, 0));
            let queued = read_request(receiver().handle_fpdu(&octets, len))?;
            assert_eq!(queued.admit(QueueRoom::Free), Err(Fault::HeaderLength));
        }
        Ok(())
    }

    #[test]
    fn receiver_accepts_segmenter_output() -> Result<(), Fault> {
        let message = Message::Write {
            stag: Stag::new(0x0102),
            to: TaggedOffset::new(0x1000),
        };
        let mut segmenter = Segmenter::new(message, 3000);
        let mut receiver = receiver();
        let mut done = 0;
        while let Some(plan) = segmenter.next(1000) {
            // The length field comes first.
            let ulpdu = &plan.header()[2..];
            let len = u16::from_be_bytes([plan.header()[0], plan.header()[1]]);
            let write = match hand_in(&mut receiver, ulpdu, len)? {
                Segment::Write(write) => write,
                _ => return Err(UNEXPECTED),
            };
            assert_eq!(write.to.raw(), 0x1000 + done);
            assert_eq!(write.payload.len, plan.payload_len());
            assert_eq!(write.last.is_last(), plan.is_last());
            done += u64::from(write.payload.len);
        }
        assert_eq!(done, 3000);
        Ok(())
    }
}
