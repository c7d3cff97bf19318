// SPDX-License-Identifier: GPL-2.0

//! Two ends and a wire between them: one end receives what the other sends, whatever the sizes, the
//! MULPDU and the order of operations.

use std::collections::VecDeque;

use iwarp::{
    atomic::{
        AtomicOperation,
        AtomicRequest, //
    },
    mpa::{
        mulpdu,
        Markers,
        MULPDU_MIN, //
    },
    rdmap::{
        Extensions,
        Immediate,
        ReadRequest,
        SendEvent,
        SendExtra,
        SendKind, //
    },
    segment::Message,
    stag::{
        RemoteInvalidation,
        Stag,
        TaggedOffset, //
    }, //
};
use iwarp_support::{
    end::{
        transmit,
        write,
        Completion,
        End, //
    },
    random::Random,
    wire::Wire, //
};

use crate::source::Source;

/// Runs the operations that the octets encode.
pub fn run(octets: &[u8]) {
    let mut source = Source::new(octets);
    let mut pair = Pair::new(source.u64());
    while !source.is_empty() {
        pair.run(Op::new(&mut source));
    }
    pair.finish();
}

/// An operation of the left end.
#[derive(Clone, Copy, Debug)]
enum Op {
    Send {
        len: u16,
        solicited: bool,
        extra: u8,
    },
    Write {
        at: u16,
        len: u16,
    },
    Read {
        at: u16,
        len: u16,
    },
    Immediate {
        solicited: bool,
    },
    FetchAdd {
        word: u8,
        add: u64,
    },
    CompareSwap {
        word: u8,
        swap: u64,
    },
    /// The right end answers the oldest request.
    Respond,
}

const MEMORY: usize = 1 << 16;
const RIGHT: (u32, u64) = (0x0000_0700, 0xffff_ffff_fffe_0000);
const SINK: (u32, u64) = (0x0000_0300, 0x7000);
const DEPTH: u16 = 5;

impl Op {
    /// Returns a length, usually a short one.
    fn len(source: &mut Source<'_>) -> u16 {
        match source.u8() {
            0xff => source.u16(),
            0xf0..0xff => source.u16() & 0xfff,
            len => len.into(),
        }
    }

    fn new(source: &mut Source<'_>) -> Self {
        match source.below(7) {
            0 => Self::Send {
                len: Self::len(source),
                solicited: source.flag(),
                extra: source.u8(),
            },
            1 => Self::Write {
                at: source.u16(),
                len: Self::len(source),
            },
            2 => Self::Read {
                at: source.u16(),
                len: Self::len(source),
            },
            3 => Self::Immediate {
                solicited: source.flag(),
            },
            4 => Self::FetchAdd {
                word: source.u8(),
                add: source.u64(),
            },
            5 => Self::CompareSwap {
                word: source.u8(),
                swap: source.u64(),
            },
            _ => Self::Respond,
        }
    }
}

/// Both ends, the wires between them, and the expected results.
struct Pair {
    random: Random,
    left: End,
    right: End,
    to_right: Wire,
    to_left: Wire,
    /// The expected memory of the right end.
    model: Vec<u8>,
    /// The expected completions of the right end.
    right_sees: Vec<Completion>,
    /// The expected completions of the left end, and for a Read the octets.
    expected: VecDeque<(Completion, Vec<u8>)>,
    identifier: u32,
    windows: u32,
}

impl Pair {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let mut right = End::new(Extensions::SendImmediate, DEPTH, 0);
        let mut left = End::new(Extensions::SendImmediate, 0, DEPTH);
        let model = random.octets(MEMORY);
        right.register(RIGHT.0, RIGHT.1, model.clone());
        left.register(SINK.0, SINK.1, vec![0; MEMORY]);
        Self {
            random,
            left,
            right,
            to_right: Wire::new(),
            to_left: Wire::new(),
            model,
            right_sees: Vec::new(),
            expected: VecDeque::new(),
            identifier: 0,
            windows: 0,
        }
    }

    /// Puts a message on the wire to the right end.
    fn send(&mut self, message: Message, payload: &[u8]) {
        for fpdu in cut(&mut self.random, message, payload) {
            self.to_right.push(&fpdu);
        }
        while let Some(fpdu) = self.to_right.pop() {
            self.right.handle(&fpdu);
        }
        assert!(self.to_right.is_empty());
        assert_eq!(self.right.terminate(), None);
    }

    /// Has the right end answer the oldest request.
    fn respond(&mut self) {
        let Some((message, payload)) = self.right.respond() else {
            assert!(self.expected.is_empty());
            return;
        };
        for fpdu in cut(&mut self.random, message, &payload) {
            self.to_left.push(&fpdu);
        }
        while let Some(fpdu) = self.to_left.pop() {
            self.left.handle(&fpdu);
        }
        assert_eq!(self.left.terminate(), None);
        let expected = self.expected.pop_front().unwrap();
        let (completion, octets) = expected;
        assert_eq!(self.left.completions(), std::slice::from_ref(&completion));
        if completion == Completion::Read {
            let sink = &self.left.region(SINK.0).memory;
            assert_eq!(&sink[..octets.len()], octets);
        }
    }

    fn run(&mut self, op: Op) {
        match op {
            Op::Send {
                len,
                solicited,
                extra,
            } => {
                let kind = SendKind {
                    solicited: solicitation(solicited),
                    extra: match extra {
                        0..128 => SendExtra::None,
                        128..192 => SendExtra::Invalidate(self.window()),
                        192.. => SendExtra::Immediate([extra, 2, 3, 4]),
                    },
                };
                let octets = self.random.octets(len.into());
                let spare = self.random.below(3);
                self.right.post_receive(usize::from(len) + spare as usize);
                let message = self.left.send(kind);
                self.send(message, &octets);
                self.right_sees.push(Completion::Received { octets, kind });
                if let SendExtra::Invalidate(stag) = kind.extra {
                    assert!(!self.right.region(stag.raw()).view.valid);
                }
            }
            Op::Write { at, len } => {
                let (at, len) = inside(at, len);
                let octets = self.random.octets(len);
                self.model[at..at + len].copy_from_slice(&octets);
                self.send(write(RIGHT.0, RIGHT.1 + at as u64), &octets);
            }
            Op::Read { at, len } => {
                let (at, len) = inside(at, len);
                let request = ReadRequest {
                    sink_stag: Stag::new(SINK.0),
                    sink_to: TaggedOffset::new(SINK.1),
                    len: len.try_into().unwrap(),
                    source_stag: Stag::new(RIGHT.0),
                    source_to: TaggedOffset::new(RIGHT.1 + at as u64),
                };
                let Some(message) = self.left.read(request) else {
                    return self.respond();
                };
                self.send(message, &[]);
                let octets = self.model[at..at + len].to_vec();
                self.expected.push_back((Completion::Read, octets));
            }
            Op::Immediate { solicited } => {
                let immediate = Immediate {
                    data: self.random.next_u64().to_be_bytes(),
                    solicited: solicitation(solicited),
                };
                self.right.post_receive(0);
                let message = self.left.immediate(immediate);
                self.send(message, &[]);
                self.right_sees.push(Completion::Immediate(immediate));
            }
            Op::FetchAdd { word, add } => {
                self.atomic(
                    word,
                    AtomicOperation::FetchAdd { add, mask: 0 },
                    |original| original.wrapping_add(add),
                );
            }
            Op::CompareSwap { word, swap } => {
                let at = usize::from(word) * 8;
                let current = u64::from_ne_bytes(self.model[at..at + 8].try_into().unwrap());
                let matches = self.random.below(2) == 0;
                let operation = AtomicOperation::CompareSwap {
                    swap,
                    swap_mask: u64::MAX,
                    compare: if matches { current } else { !current },
                    compare_mask: u64::MAX,
                };
                self.atomic(
                    word,
                    operation,
                    |original| {
                        if matches {
                            swap
                        } else {
                            original
                        }
                    },
                );
            }
            Op::Respond => self.respond(),
        }
    }

    fn atomic(&mut self, word: u8, operation: AtomicOperation, result: impl Fn(u64) -> u64) {
        let at = usize::from(word) * 8;
        self.identifier = self.identifier.wrapping_add(0x1234_5679);
        let request = AtomicRequest {
            identifier: self.identifier,
            stag: Stag::new(RIGHT.0),
            to: TaggedOffset::new(RIGHT.1 + at as u64),
            operation,
        };
        let Some(message) = self.left.atomic(request) else {
            return self.respond();
        };
        self.send(message, &[]);
        let target = self.model[at..].first_chunk_mut::<8>().unwrap();
        let original = u64::from_ne_bytes(*target);
        *target = result(original).to_ne_bytes();
        self.expected
            .push_back((Completion::Atomic { original }, Vec::new()));
    }

    /// Registers an STag that the peer may invalidate.
    fn window(&mut self) -> Stag {
        self.windows += 1;
        let stag = Stag::from_parts(0x1000 + self.windows, 9);
        let region = self.right.register(stag.raw(), 0, vec![0; 1]);
        region.invalidation = RemoteInvalidation::Allowed;
        stag
    }

    fn finish(mut self) {
        while !self.expected.is_empty() {
            self.respond();
        }
        assert!(self.right.respond().is_none());
        assert_eq!(self.right.completions(), self.right_sees);
        assert_eq!(self.right.posted(), 0);
        assert!(self.right.region(RIGHT.0).memory == self.model);
        assert!(!self.left.is_mid_message() && !self.right.is_mid_message());
    }
}

fn solicitation(solicited: bool) -> SendEvent {
    if solicited {
        SendEvent::Solicit
    } else {
        SendEvent::Silent
    }
}

/// Returns a range inside the memory.
fn inside(at: u16, len: u16) -> (usize, usize) {
    let at = usize::from(at);
    (at, usize::from(len).min(MEMORY - at))
}

/// Cuts a message with a new MULPDU for each segment.
fn cut(random: &mut Random, message: Message, payload: &[u8]) -> Vec<Vec<u8>> {
    let choice = random.below(4);
    transmit(message, payload, || match choice {
        0 => MULPDU_MIN,
        1 => mulpdu(1460, Markers::Off),
        2 => u16::MAX,
        _ => u16::try_from(random.below(0x1_0000)).unwrap(),
    })
}
