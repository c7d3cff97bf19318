// SPDX-License-Identifier: GPL-2.0

//! The RFCs' rules for the segments of a stream, written a second time: by bit positions, without
//! the core's types, one rule after the other in the order of checks (DDP-86).

use iwarp::{
    ddp::MessagePart,
    fault::{
        ErrorCode,
        Fault, //
    },
    rdmap::Extensions,
    receiver::{
        PayloadSpan,
        QueueRoom,
        Queued,
        Receiver,
        Segment, //
    }, //
};

/// A judgement in numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// An empty segment.
    Empty,
    /// A segment with payload: opcode, place and length of the payload, whether it is the last of
    /// its message.
    PayloadSpan(u8, usize, usize, bool),
    /// A message that needs a place in its queue: opcode (8 for both kinds of Immediate Data),
    /// number, the fault without a place, the fault with one.
    Queued(u8, u32, Fault, Option<Fault>),
    /// A Terminate: layer and type in one octet, code.
    Terminate(u8, u8),
}

/// A receiver of segments that follows the RFCs.
#[derive(Clone, Debug)]
pub struct Oracle {
    extensions: Extensions,
    /// Whether both ends take the messages that a reserved bit marks: Atomic Write and Flush.
    pub marked: bool,
    /// The opcode of the unfinished message.
    open: Option<u8>,
    /// The next number of each queue.
    next: [u32; 4],
}

impl Oracle {
    /// Begins a stream whose first Send and Read Request have the number `first`.
    pub fn new(extensions: Extensions, first: u32) -> Self {
        Self {
            extensions,
            marked: false,
            open: None,
            next: [first, first, 1, 1],
        }
    }

    /// Judges one segment.
    pub fn judge(&mut self, segment: &[u8]) -> Result<Judgement, Fault> {
        let [first, second, ..] = *segment else {
            return if segment.is_empty() {
                Ok(Judgement::Empty)
            } else {
                Err(Fault::UlpduTooShort)
            };
        };
        let (tagged, last) = (first & 0x80 != 0, first & 0x40 != 0);
        // A reserved bit distinguishes the two Sends with Immediate.
        let opcode = match second & 0x3f {
            marked @ (0x10 | 0x11) if self.marked => marked,
            _ => second & if second & 15 == 15 { 0x1f } else { 15 },
        };
        let known = match self.extensions {
            Extensions::Off => opcode & 15 < 8,
            Extensions::Rfc7306 => opcode & 15 < 12,
            Extensions::SendImmediate => opcode & 15 < 12 || opcode & 15 == 15,
        };
        check(
            first & 3 == 1,
            if tagged {
                Fault::TaggedVersion
            } else {
                Fault::UntaggedVersion
            },
        )?;
        check(second >> 6 == 1, Fault::RdmapVersion)?;
        check(known, Fault::OpcodeReserved)?;
        check(tagged == matches!(opcode, 0 | 2 | 0x10), Fault::OpcodeModel)?;
        let header = if tagged { 14 } else { 18 };
        check(segment.len() >= header, Fault::UlpduTooShort)?;
        let begins = self.open.is_none();
        check(
            begins || opcode == 7 || self.open == Some(opcode),
            Fault::OpcodeInterleaved,
        )?;
        if tagged {
            self.open = (!last).then_some(opcode);
            check(
                opcode != 0x10 || last && segment.len() == 14 + 8,
                Fault::AtomicWriteLength,
            )?;
            return Ok(Judgement::PayloadSpan(opcode, 14, segment.len() - 14, last));
        }
        let word = |at: usize| u32::from_be_bytes(segment[at..at + 4].try_into().unwrap());
        let (queue, number, offset) = (word(6), word(10), word(14));
        let (right_queue, body) = match opcode {
            0x1 | 0x11 => (1, 28),
            0x7 => (2, 0),
            0x8 | 0x9 => (0, 8),
            0xa => (1, 52),
            0xb => (3, 12),
            _ => (0, 0),
        };
        check(queue == right_queue, Fault::InvalidQueue)?;
        let next = &mut self.next[queue as usize];
        let ahead = !begins && opcode != 7 && number == next.wrapping_add(1);
        check(!ahead, Fault::OpcodeInterleaved)?;
        check(number == *next, Fault::MsnRange)?;
        if is_send(opcode) {
            self.open = (!last).then_some(opcode);
            *next = next.wrapping_add(last.into());
            return Ok(Judgement::PayloadSpan(opcode, 18, segment.len() - 18, last));
        }
        *next = next.wrapping_add(1);
        if opcode == 7 {
            check(offset == 0, Fault::MessageOffset)?;
            check(
                last && (22..=70).contains(&segment.len()),
                Fault::HeaderLength,
            )?;
            return Ok(Judgement::Terminate(segment[18], segment[19]));
        }
        let (full, wrong_length) = match opcode {
            0x8 | 0x9 => (Fault::NoBuffer, Fault::ImmediateLength),
            0xb => (Fault::AtomicUnsolicited, Fault::HeaderLength),
            _ => (Fault::ReadDepth, Fault::HeaderLength),
        };
        let fault = if offset != 0 {
            Some(Fault::MessageOffset)
        } else if !last || segment.len() != 18 + body {
            Some(wrong_length)
        } else if opcode == 0xa && !matches!(segment[21] & 15, 0..=2) {
            Some(Fault::AtomicOperation)
        } else {
            None
        };
        let kind = if opcode == 9 { 8 } else { opcode };
        Ok(Judgement::Queued(kind, number, full, fault))
    }

    /// Asserts that a receiver judges a segment in the same way, and returns the judgement.
    #[track_caller]
    pub fn compare(&mut self, receiver: &mut Receiver, segment: &[u8]) -> Result<Judgement, Fault> {
        let len = u16::try_from(segment.len()).unwrap();
        let said = receiver.handle_fpdu(segment, len);
        let judgement = self.judge(segment);
        assert_eq!(
            said.map(|said| simplify(&said)),
            judgement,
            "{segment:02x?}"
        );
        assert!(judgement.is_err() || receiver.is_mid_message() == self.open.is_some());
        judgement
    }
}

/// Returns whether a message with this opcode is a Send. Those with Immediate share one opcode; a
/// reserved bit distinguishes them.
pub fn is_send(opcode: u8) -> bool {
    matches!(opcode, 3..=6 | 0xf | 0x1f)
}

fn check(right: bool, fault: Fault) -> Result<(), Fault> {
    if right {
        Ok(())
    } else {
        Err(fault)
    }
}

/// Converts a receiver's judgement to numbers.
fn simplify(segment: &Segment) -> Judgement {
    match segment {
        Segment::Empty => Judgement::Empty,
        Segment::Write(tagged) => payload(0, tagged.payload, tagged.last),
        Segment::AtomicWrite(tagged) => payload(0x10, tagged.payload, tagged.last),
        Segment::ReadResponse(tagged) => payload(2, tagged.payload, tagged.last),
        Segment::Send(send) => payload(send.kind.opcode().to_wire(), send.payload, send.last),
        Segment::Terminate(terminate) => {
            let ErrorCode { layer, etype, code } = terminate.code;
            Judgement::Terminate((layer << 4) | etype, code)
        }
        Segment::Immediate(it) => queued(8, it),
        Segment::ReadRequest(it) => queued(1, it),
        Segment::Flush(it) => queued(0x11, it),
        Segment::AtomicRequest(it) => queued(10, it),
        Segment::AtomicResponse(it) => queued(11, it),
    }
}

fn payload(opcode: u8, payload: PayloadSpan, last: MessagePart) -> Judgement {
    let (offset, len) = (payload.offset.into(), payload.len.into());
    Judgement::PayloadSpan(opcode, offset, len, last.is_last())
}

fn queued<T: Copy>(opcode: u8, queued: &Queued<T>) -> Judgement {
    let Err(full) = queued.admit(QueueRoom::Full) else {
        panic!("there is a place in a full queue");
    };
    Judgement::Queued(
        opcode,
        queued.msn().raw(),
        full,
        queued.admit(QueueRoom::Free).err(),
    )
}
