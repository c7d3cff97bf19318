// SPDX-License-Identifier: GPL-2.0

//! Valid conversations and their mutations.
//!
//! A conversation is what a correct initiator sends to an end whose memory it knows: the segments
//! of Writes, Sends, Reads. A mutation changes the segments, their lengths, their framing or their
//! order; CRCs are good unless the mutation is a wrong CRC, so that the receiver parses the damaged
//! segment. A [`Source`] makes every choice, so the same octets give the same conversation.

use iwarp::{
    crc::crc32c,
    mpa::{
        negotiate::{
            Config,
            Depths,
            Initiator, //
        },
        start::Revision, //
    }, //
};
use iwarp_support::frame::{
    atomic_header,
    fpdu,
    read_header,
    tagged,
    Untagged, //
};

use crate::source::Source;

mod answers;

pub use answers::{
    answering,
    Asked, //
};

/// What a peer knows of the other end.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    /// STag, base and length of memory that it may write and read.
    pub memory: (u32, u64, u32),
    /// STag and base of memory for atomic operations, if they are supported.
    pub atomic: Option<(u32, u64)>,
    /// Length and number of the receive buffers.
    pub receives: (u32, usize),
    /// The other end's inbound depth.
    pub ird: usize,
    /// The number of its first Send and of its first Read Request.
    pub first: u32,
}

/// A mutation of a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// Flips a bit of a segment.
    Bit,
    /// Sets a header field to a significant value.
    Field,
    /// Makes a CRC wrong.
    Crc,
    /// Duplicates an FPDU.
    Duplicate,
    /// Swaps two FPDUs.
    Swap,
    /// Drops an FPDU.
    Drop,
    /// Makes a segment shorter or longer, with its correct length.
    Resize,
    /// Makes a length field differ from the length.
    Length,
    /// Inserts a segment of any octets behind valid control octets.
    Foreign,
    /// Changes an octet of the stream.
    Octet,
    /// Truncates the stream.
    Cut,
    /// Gives a Send an STag to invalidate. Only for [`answering`], as the next one.
    Invalidate,
    /// Makes an answer fit no request.
    Answer,
}

impl Mutation {
    /// The mutations that apply to any conversation.
    const ALL: [Self; 11] = [
        Self::Bit,
        Self::Field,
        Self::Crc,
        Self::Duplicate,
        Self::Swap,
        Self::Drop,
        Self::Resize,
        Self::Length,
        Self::Foreign,
        Self::Octet,
        Self::Cut,
    ];
}

/// A conversation as octets.
#[derive(Clone, Debug)]
pub struct Played {
    /// The stream.
    pub stream: Vec<u8>,
    /// The number of FPDUs of the conversation without mutations.
    pub segments: usize,
    /// The mutations.
    pub mutations: Vec<Mutation>,
}

/// Makes a conversation and mutates it.
pub fn spoilt(source: &mut Source<'_>, facts: &Facts) -> Played {
    let count = source.below(4);
    let chosen: Vec<_> = (0..count).map(|_| source.choose(&Mutation::ALL)).collect();
    let segments = conversation(source, facts);
    play(source, &segments, chosen, facts)
}

/// Mutates these segments, and makes a stream of them.
fn play(
    source: &mut Source<'_>,
    segments: &[Vec<u8>],
    chosen: Vec<Mutation>,
    facts: &Facts,
) -> Played {
    let mut frames: Vec<_> = segments.iter().map(|segment| Frame::new(segment)).collect();
    for mutation in &chosen {
        mutate(source, &mut frames, *mutation, facts);
    }
    let mut stream = Vec::new();
    for frame in &frames {
        stream.extend(frame.octets());
    }
    // Mutations of the stream come last.
    for mutation in &chosen {
        let at = source.below(stream.len().clamp(1, 1 << 16));
        match mutation {
            Mutation::Octet => {
                if let Some(octet) = stream.get_mut(at) {
                    *octet ^= source.u8();
                }
            }
            Mutation::Cut => stream.truncate(at),
            Mutation::Bit
            | Mutation::Field
            | Mutation::Crc
            | Mutation::Duplicate
            | Mutation::Swap
            | Mutation::Drop
            | Mutation::Resize
            | Mutation::Length
            | Mutation::Foreign
            | Mutation::Invalidate
            | Mutation::Answer => {}
        }
    }
    Played {
        stream,
        segments: segments.len(),
        mutations: chosen,
    }
}

/// A Request, usually a valid one.
#[derive(Clone, Debug)]
pub struct Request {
    /// The octets.
    pub octets: Vec<u8>,
    /// What it asks for, if a responder of revision 2 has to accept it.
    pub asks: Option<Initiator>,
}

/// Makes a Request with all that may vary, and may corrupt it.
pub fn request(source: &mut Source<'_>) -> Request {
    let config = Config {
        revision: source.choose(&[Revision::Two, Revision::One]),
        ..Config::default()
    };
    let depths = Depths {
        ird: source.below(17) as u16,
        ord: source.below(17) as u16,
    };
    let initiator = Initiator::new(config, depths);
    let private = vec![0x70; source.below(64)];
    let mut octets = match initiator.request(&private) {
        Ok(frame) => frame.as_octets().to_vec(),
        Err(_) => unreachable!("the private data is short"),
    };
    // Flags without a meaning in a Request.
    octets[16] |= source.u8() & 0x2f;
    let mut asks = None;
    match source.below(16) {
        0 => {
            let at = source.below(octets.len());
            octets[at] ^= 1 << (source.u8() & 7);
        }
        1 => octets.truncate(source.below(octets.len())),
        2 => octets.extend(source.octets::<16>()),
        _ => asks = Some(initiator),
    }
    Request { octets, asks }
}

/// Makes the segments of a few messages.
fn conversation(source: &mut Source<'_>, facts: &Facts) -> Vec<Vec<u8>> {
    let mut segments = Vec::new();
    let (mut sends, mut reads) = (0, 0);
    let mut numbers = [facts.first, facts.first];
    for _ in 0..=source.below(8) {
        let (stag, base, room) = facts.memory;
        match source.below(6) {
            0 | 1 => {
                let payload = payload(source, room);
                let at = source.below((room - payload.len() as u32 + 1) as usize);
                let to = base + at as u64;
                split(source, &payload, |octets, offset, last| {
                    segments.push(tagged(0, last, stag, to + u64::from(offset), octets));
                });
            }
            2 | 3 if sends < facts.receives.1 => {
                let payload = payload(source, facts.receives.0);
                let opcode = source.choose(&[3, 5]);
                split(source, &payload, |octets, offset, last| {
                    let header = Untagged {
                        last,
                        offset,
                        ..Untagged::whole(opcode, 0, numbers[0])
                    };
                    segments.push(header.octets(octets));
                });
                numbers[0] = numbers[0].wrapping_add(1);
                sends += 1;
            }
            4 if reads < facts.ird => {
                let len = source.below(room as usize + 1) as u32;
                let at = base + u64::from(source.u32() % (room - len + 1));
                let header = read_header((0xabcd, source.u64()), len, (stag, at));
                segments.push(Untagged::whole(1, 1, numbers[1]).octets(&header));
                numbers[1] = numbers[1].wrapping_add(1);
                reads += 1;
            }
            5 => match facts.atomic {
                Some((stag, to)) if reads < facts.ird => {
                    let fields = [source.u64(), source.u64(), source.u64(), source.u64()];
                    let code = source.choose(&[0, 1, 2]);
                    let header = atomic_header(code, source.u32(), stag, to, fields);
                    segments.push(Untagged::whole(10, 1, numbers[1]).octets(&header));
                    numbers[1] = numbers[1].wrapping_add(1);
                    reads += 1;
                }
                Some(_) | None => segments.push(Vec::new()),
            },
            _ => {}
        }
    }
    segments
}

/// Makes a payload of at most `room` octets, usually a short one.
fn payload(source: &mut Source<'_>, room: u32) -> Vec<u8> {
    let len = match source.u8() {
        255 => room as usize,
        len => usize::from(len).min(room as usize),
    };
    vec![source.u8(); len]
}

/// Cuts a payload into segments: octets, offset, whether it is the last.
fn split(source: &mut Source<'_>, payload: &[u8], mut segment: impl FnMut(&[u8], u32, bool)) {
    let most = source.choose(&[1024, 64, 17]);
    let mut rest = payload;
    let mut offset = 0;
    loop {
        let (octets, behind) = rest.split_at(rest.len().min(most));
        segment(octets, offset, behind.is_empty());
        offset += octets.len() as u32;
        rest = behind;
        if rest.is_empty() {
            return;
        }
    }
}

/// An FPDU before it is framed.
#[derive(Clone, Debug)]
struct Frame {
    segment: Vec<u8>,
    /// The length field, if it is not the true length.
    length: Option<u16>,
    /// The XOR of the CRC with the correct one.
    crc: u32,
}

impl Frame {
    fn new(segment: &[u8]) -> Self {
        Self {
            segment: segment.to_vec(),
            length: None,
            crc: 0,
        }
    }

    fn octets(&self) -> Vec<u8> {
        let mut octets = fpdu(&self.segment);
        let body = octets.len() - 4;
        if let Some(length) = self.length {
            octets[..2].copy_from_slice(&length.to_be_bytes());
            // The CRC is that of the octets sent, whatever the length field says.
            let crc = crc32c(&octets[..body]);
            octets[body..].copy_from_slice(&crc.to_le_bytes());
        }
        for (octet, change) in octets[body..].iter_mut().zip(self.crc.to_le_bytes()) {
            *octet ^= change;
        }
        octets
    }
}

fn mutate(source: &mut Source<'_>, frames: &mut Vec<Frame>, mutation: Mutation, facts: &Facts) {
    if frames.is_empty() {
        return;
    }
    let nth = source.below(frames.len());
    let segment = &mut frames[nth].segment;
    match mutation {
        Mutation::Bit => {
            // Half of the time within the headers.
            let end = if source.flag() {
                segment.len().min(46)
            } else {
                segment.len()
            };
            if end > 0 {
                let at = source.below(end);
                segment[at] ^= 1 << (source.u8() & 7);
            }
        }
        Mutation::Field => {
            let at = source.choose(&[2, 6, 10, 14, 18, 22, 30, 34]);
            let value = field(source, facts);
            if let Some(octets) = segment.get_mut(at..at + 4) {
                octets.copy_from_slice(&value.to_be_bytes());
            }
        }
        Mutation::Crc => frames[nth].crc = source.u32(),
        Mutation::Duplicate => {
            let frame = frames[nth].clone();
            frames.insert(source.below(frames.len() + 1), frame);
        }
        Mutation::Swap => {
            let other = source.below(frames.len());
            frames.swap(nth, other);
        }
        Mutation::Drop => {
            frames.remove(nth);
        }
        Mutation::Resize => {
            let len = source.choose(&[0, 1, 2, 13, 14, 17, 18, 19, 45, 46, 47, 70, 71, 1454]);
            segment.resize(len, 0x33);
        }
        Mutation::Length => {
            let len = segment.len() as u16;
            let other = [len.wrapping_sub(1), len + 1, len + 4, 0, 1, 0xfffe, 0xffff];
            frames[nth].length = Some(source.choose(&other));
        }
        Mutation::Foreign => {
            let mut octets = source.octets::<64>().to_vec();
            octets[0] = (octets[0] & 0xfc) | 1;
            octets[1] = (octets[1] & 0x3f) | 0x40;
            octets.truncate(source.below(65));
            frames.insert(nth, Frame::new(&octets));
        }
        Mutation::Invalidate => answers::spoil_send(source, segment, facts.memory.0),
        Mutation::Answer => {
            let mut segments: Vec<_> = frames.iter_mut().map(|frame| &mut frame.segment).collect();
            answers::spoil_answer(source, &mut segments);
        }
        // Applied to the stream.
        Mutation::Octet | Mutation::Cut => {}
    }
}

/// Returns a value at a limit.
fn field(source: &mut Source<'_>, facts: &Facts) -> u32 {
    let (stag, base, len) = facts.memory;
    let end = base.wrapping_add(len.into()) as u32;
    source.choose(&[
        0,
        1,
        2,
        3,
        stag,
        stag ^ 1,
        stag ^ 0x100,
        base as u32,
        (base as u32).wrapping_sub(1),
        end,
        end.wrapping_sub(1),
        (base >> 32) as u32,
        facts.receives.0,
        facts.receives.0.wrapping_sub(1),
        facts.first.wrapping_add(1),
        facts.first.wrapping_sub(1),
        0x7fff_ffff,
        u32::MAX,
    ])
}
