// SPDX-License-Identifier: GPL-2.0

//! Conversations with an end that posts requests: its answers, correct or mutated, among all other
//! messages that a peer may send.

use iwarp_support::frame::{
    atomic_response_header,
    tagged,
    terminate,
    Untagged, //
};

use super::{
    conversation,
    play,
    split,
    Facts,
    Mutation,
    Played, //
};
use crate::source::Source;

/// A request of the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// A Read to a sink.
    Read {
        /// STag and tagged offset of the sink.
        sink: (u32, u64),
        /// The number of octets.
        len: u32,
    },
    /// An atomic operation.
    Atomic {
        /// The identifier that its answer has to repeat.
        identifier: u32,
    },
}

impl Asked {
    /// Returns the request in a segment, if it is one.
    pub fn of(segment: &[u8]) -> Option<Self> {
        let word = |at: usize| Some(u32::from_be_bytes(*segment.get(at..)?.first_chunk()?));
        let opcode = segment.get(1)? & 15;
        match opcode {
            1 => Some(Self::Read {
                sink: (
                    word(18)?,
                    (u64::from(word(22)?) << 32) | u64::from(word(26)?),
                ),
                len: word(30)?,
            }),
            10 => Some(Self::Atomic {
                identifier: word(22)?,
            }),
            _ => None,
        }
    }
}

/// Makes a conversation that answers these requests, and mutates it.
pub fn answering(source: &mut Source<'_>, facts: &Facts, asked: &[Asked]) -> Played {
    let list: Vec<_> = Mutation::ALL
        .into_iter()
        .chain([Mutation::Invalidate, Mutation::Answer])
        .collect();
    let chosen = (0..source.below(4)).map(|_| source.choose(&list)).collect();
    let immediates = source.below(facts.receives.1);
    let sends = Facts {
        receives: (facts.receives.0, facts.receives.1 - immediates),
        ..*facts
    };
    let mut messages = messages(conversation(source, &sends));
    for _ in 0..immediates {
        let opcode = source.choose(&[8, 9]);
        let segment = Untagged::whole(opcode, 0, 0).octets(&source.octets::<8>());
        messages.insert(source.below(messages.len() + 1), vec![segment]);
    }
    // Answers keep the order of the requests; their places are arbitrary.
    let mut at = 0;
    let mut atomics = 0;
    for request in asked {
        at += source.below(messages.len() - at + 1);
        let answer = answer(source, *request, &mut atomics);
        messages.insert(at, answer);
        at += 1;
    }
    let mut segments: Vec<_> = messages.concat();
    number_sends(&mut segments, facts.first);
    if source.below(8) == 0 {
        segments.push(terminate(source.u8() & 3, source.u8() & 3, source.u8()));
    }
    play(source, &segments, chosen, facts)
}

/// Groups segments by message.
fn messages(segments: Vec<Vec<u8>>) -> Vec<Vec<Vec<u8>>> {
    segments
        .split_inclusive(|segment| segment.first().is_none_or(|control| control & 0x40 != 0))
        .map(<[_]>::to_vec)
        .collect()
}

fn answer(source: &mut Source<'_>, request: Asked, atomics: &mut u32) -> Vec<Vec<u8>> {
    let mut segments = Vec::new();
    match request {
        Asked::Read {
            sink: (stag, to),
            len,
        } => {
            let payload = vec![source.u8(); len as usize];
            split(source, &payload, |octets, offset, last| {
                let to = to.wrapping_add(offset.into());
                segments.push(tagged(2, last, stag, to, octets));
            });
        }
        Asked::Atomic { identifier } => {
            *atomics += 1;
            let header = atomic_response_header(identifier, source.u64());
            segments.push(Untagged::whole(11, 3, *atomics).octets(&header));
        }
    }
    segments
}

/// Numbers the messages of queue 0.
fn number_sends(segments: &mut [Vec<u8>], first: u32) {
    let mut number = first;
    for segment in segments {
        let [control, opcode, ..] = segment[..] else {
            continue;
        };
        if matches!(opcode & 15, 3 | 5 | 8 | 9) {
            segment[10..14].copy_from_slice(&number.to_be_bytes());
            number = number.wrapping_add(u32::from((control >> 6) & 1));
        }
    }
}

/// Returns whether a segment belongs to an answer.
fn is_answer(segment: &[u8]) -> bool {
    segment
        .get(1)
        .is_some_and(|opcode| matches!(opcode & 15, 2 | 11))
}

/// Mutates an answer: its place, its sink or number, or its kind.
pub(super) fn spoil_answer(source: &mut Source<'_>, segments: &mut [&mut Vec<u8>]) {
    let answers: Vec<_> = (0..segments.len())
        .filter(|n| is_answer(segments[*n]))
        .collect();
    if answers.is_empty() {
        return;
    }
    let nth = source.choose(&answers);
    let other = source.choose(&answers);
    match source.below(4) {
        0 => {
            let segment = segments[other].clone();
            let segment = std::mem::replace(segments[nth], segment);
            *segments[other] = segment;
        }
        // The L bit, and the opcode: the other kind of answer, or a Write.
        1 => segments[nth][0] ^= 0x40,
        2 => segments[nth][1] ^= source.choose(&[2, 9, 8]),
        _ => {
            let at = source.choose(&[2, 5, 6, 10, 13, 17, 18, 21]);
            if let Some(octet) = segments[nth].get_mut(at) {
                *octet = octet.wrapping_add(source.choose(&[1, 2, 0x80, 0xff]));
            }
        }
    }
}

/// Makes a Send one with Invalidate, of an STag that no peer may invalidate.
pub(super) fn spoil_send(source: &mut Source<'_>, segment: &mut [u8], stag: u32) {
    if segment.len() >= 18 && matches!(segment[1] & 15, 3 | 5) {
        segment[1] += 1;
        let stag = source.choose(&[stag, 0, stag ^ 0x100, u32::MAX]);
        segment[2..6].copy_from_slice(&stag.to_be_bytes());
    }
}
