// SPDX-License-Identifier: GPL-2.0

//! An end of a stream, checked against its promises.
//!
//! * The receiver judges as [`Oracle`] does.
//! * Memory changes only where a segment writes and may write.
//! * A Send is delivered once, whole, into a posted buffer.
//! * A fault is final, and becomes a Terminate that the peer understands.
//! * All of this holds however the stream is cut, whichever memory is absent at first, and
//!   whichever FPDUs inside a message are received under an open access to their memory.

use iwarp::{
    actions::{
        After,
        Set, //
    },
    atomic::{
        AtomicOperation,
        AtomicRequest, //
    },
    ddp::Msn,
    fault::Fault,
    lifecycle::Lifecycle,
    mpa::{
        Crc,
        Markers,
        LENGTH_LEN,
        MULPDU_MIN, //
    },
    rdmap::{
        Extensions,
        Marked,
        ReadRequest, //
    },
    receiver::{
        Receiver,
        Segment, //
    },
    segment::{
        Message,
        Segmenter, //
    },
    stag::{
        Access,
        Association,
        RemoteInvalidation,
        Stag,
        TaggedOffset, //
    },
    stream::{
        ReceiveFailure,
        Round, //
    },
    terminate::Terminate, //
};
use iwarp_support::end::{
    Completion,
    Delays,
    End, //
};

use crate::{
    framing::{
        Framing,
        Rules, //
    },
    oracle::{
        is_send,
        Judgement,
        Oracle, //
    },
    source::Source, //
};

/// Memory that the peer may write and read.
pub const MEMORY: (u32, u64, u32) = (0x1122_3344, 0x1000, 256);
/// Memory for atomic operations and the answers to Reads, which the peer may invalidate.
pub const WINDOW: (u32, u64, u32) = (0xaabb_cc01, 0x2000, 256);
/// Memory at the end of the address space that the peer may only read.
pub const LAST: (u32, u64, u32) = (0x0000_0502, u64::MAX - 15, 16);
/// Memory of another protection domain.
pub const FOREIGN: (u32, u64, u32) = (0x0000_0603, 0, 16);
/// Length of each receive buffer.
pub const RECEIVE_LEN: u32 = 64;

/// The setting of an end.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// The rules of the stream.
    pub rules: Rules,
    /// Whether the messages of RFC 7306 are supported.
    pub extensions: Extensions,
    /// Whether both ends take marked messages.
    pub marked: bool,
    /// The inbound depth.
    pub ird: u16,
    /// How many receive buffers are posted.
    pub receives: usize,
    /// Whether a Read and an atomic operation of this end are outstanding.
    pub asking: bool,
    /// Whether the numbers of the Send and Read queues are about to wrap.
    pub wrapping: bool,
}

impl Setting {
    /// Takes a setting from a source.
    pub fn new(source: &mut Source<'_>) -> Self {
        let flags = source.u8();
        let queues = source.u8();
        let flag = |bit: u8| flags & bit != 0;
        Self {
            rules: Rules {
                crc: if flag(1) { Crc::Off } else { Crc::On },
                markers: if flag(2) { Markers::On } else { Markers::Off },
            },
            extensions: match (flag(4), flag(32)) {
                (true, _) => Extensions::Off,
                (false, true) => Extensions::SendImmediate,
                (false, false) => Extensions::Rfc7306,
            },
            marked: flag(64),
            ird: u16::from(queues & 3),
            receives: usize::from((queues >> 2) & 3),
            asking: flag(8),
            wrapping: flag(16),
        }
    }

    /// Returns the number of the first Send and of the first Read Request.
    pub fn first(&self) -> Msn {
        if self.wrapping {
            Msn::new(u32::MAX)
        } else {
            Msn::FIRST
        }
    }
}

/// The outcome of an end, for comparison.
#[derive(Debug, PartialEq)]
pub struct Outcome {
    /// The Terminate that it sends.
    pub terminate: Option<Terminate>,
    /// The Terminate that it received.
    pub terminated: Option<Terminate>,
    /// The completions of its consumer.
    pub completions: Vec<Completion>,
    /// The pending answers.
    pub responses: Vec<(Message, Vec<u8>)>,
    /// Its memory.
    pub memory: Vec<u8>,
    /// The memory that Reads and atomics target.
    pub window: Vec<u8>,
    /// How many posted receive buffers are left.
    pub posted: usize,
    /// Whether a message has begun and not ended.
    pub mid_message: bool,
    /// What was accepted, and what has to happen for it.
    pub round: Round,
    /// The state of the queue pair.
    pub lifecycle: Lifecycle,
    /// Why receives have failed.
    pub failures: Vec<ReceiveFailure<()>>,
    /// The length of the Write before the last Immediate Data.
    pub written: u32,
}

/// An end and its expected outcome.
struct Watched {
    end: End,
    receiver: Receiver,
    oracle: Oracle,
    /// The expected contents of [`MEMORY`].
    shadow: Vec<u8>,
    /// Octets of the unfinished Send, and of the finished ones.
    open: usize,
    sends: Vec<usize>,
    /// Whether a fault occurred.
    faulted: bool,
}

impl Watched {
    fn new(setting: &Setting, delays: Delays) -> Self {
        let first = setting.first();
        let mut receiver = Receiver::with_numbers(setting.extensions, first, first);
        if setting.marked {
            receiver.take_marked(Marked::ALL);
        }
        let mut oracle = Oracle::new(setting.extensions, first.raw());
        oracle.marked = setting.marked;
        let mut end = End::with_receiver(receiver, setting.ird, 2);
        let memory = vec![0xaa; MEMORY.2 as usize];
        let region = end.register(MEMORY.0, MEMORY.1, memory.clone());
        region.view.access = Access::LOCAL_WRITE
            .union(Access::REMOTE_WRITE)
            .union(Access::REMOTE_READ)
            .union(Access::FLUSH_GLOBAL);
        let region = end.register(WINDOW.0, WINDOW.1, vec![0xbb; WINDOW.2 as usize]);
        region.view.access = Access::LOCAL_WRITE.union(Access::REMOTE_ATOMIC);
        region.invalidation = RemoteInvalidation::Allowed;
        let region = end.register(LAST.0, LAST.1, vec![0xcc; LAST.2 as usize]);
        region.view.access = Access::REMOTE_READ;
        let region = end.register(FOREIGN.0, FOREIGN.1, vec![0xdd; FOREIGN.2 as usize]);
        region.view.association = Association::Foreign;
        for _ in 0..setting.receives {
            end.post_receive(RECEIVE_LEN as usize);
        }
        if setting.asking {
            ask(&mut end);
        }
        end.delay(delays);
        Self {
            end,
            receiver,
            oracle,
            shadow: memory,
            open: 0,
            sends: Vec::new(),
            faulted: false,
        }
    }

    fn handle(&mut self, ulpdu: &[u8], framing: Result<(), Fault>) {
        let over = self.end.terminate().is_some() || self.end.terminated().is_some();
        self.end.handle_ulpdu(ulpdu, framing);
        if over {
            return;
        }
        if framing.is_err() {
            assert!(self.end.terminate().is_some());
            self.faulted = true;
            return;
        }
        match self.oracle.compare(&mut self.receiver, ulpdu) {
            Err(_) => {
                assert!(self.end.terminate().is_some());
                self.faulted = true;
            }
            Ok(Judgement::PayloadSpan(0 | 0x10, at, len, _)) => {
                self.write(ulpdu, &ulpdu[at..][..len]);
            }
            Ok(Judgement::PayloadSpan(opcode, _, len, last)) if is_send(opcode) => {
                self.open += len;
                if last {
                    self.sends.push(self.open);
                    self.open = 0;
                }
            }
            Ok(Judgement::Terminate(..)) => assert!(self.end.terminated().is_some()),
            Ok(Judgement::Empty | Judgement::PayloadSpan(..) | Judgement::Queued(..)) => {}
        }
        // A fault of the memory or the queues.
        self.faulted |= self.end.terminate().is_some();
    }

    /// Handles a Write: a valid one changes the memory, any other ends the stream.
    fn write(&mut self, ulpdu: &[u8], payload: &[u8]) {
        let stag = u32::from_be_bytes(ulpdu[2..6].try_into().unwrap());
        let to = u64::from_be_bytes(ulpdu[6..14].try_into().unwrap());
        let at = i128::from(to) - i128::from(MEMORY.1);
        let end = at + payload.len() as i128;
        if payload.is_empty() {
            assert!(self.end.terminate().is_none());
        } else if stag == MEMORY.0
            && at >= 0
            && end <= MEMORY.2.into()
            // An Atomic Write is aligned.
            && (ulpdu[1] & 0x3f != 0x10 || !self.oracle.marked || at % 8 == 0)
        {
            self.shadow[at as usize..end as usize].copy_from_slice(payload);
            assert!(self.end.terminate().is_none());
        } else {
            assert!(self.end.terminate().is_some());
        }
    }

    fn finish(mut self, setting: &Setting) -> Outcome {
        assert_eq!(self.faulted, self.end.terminate().is_some());
        assert!(self.end.region(MEMORY.0).memory == self.shadow);
        assert!(self
            .end
            .region(LAST.0)
            .memory
            .iter()
            .all(|octet| *octet == 0xcc));
        assert!(self
            .end
            .region(FOREIGN.0)
            .memory
            .iter()
            .all(|octet| *octet == 0xdd));
        let completions = self.end.completions();
        let mut sends = self.sends.iter();
        for completion in &completions {
            if let Completion::Received { octets, .. } = completion {
                assert_eq!(Some(&octets.len()), sends.next());
                assert!(octets.len() <= RECEIVE_LEN as usize);
            }
        }
        // A fault may have discarded the last one; an undelivered Send has no completion.
        assert!(sends.len() <= usize::from(self.faulted));
        let taken = |done: &&Completion| {
            matches!(done, Completion::Received { .. } | Completion::Immediate(_))
        };
        let posted = self.end.posted();
        assert!(completions.iter().filter(taken).count() + posted <= setting.receives);
        Outcome {
            terminate: self.end.terminate().copied(),
            terminated: self.end.terminated().copied(),
            completions,
            responses: std::iter::from_fn(|| self.end.respond()).collect(),
            window: self.end.region(WINDOW.0).memory.clone(),
            posted,
            mid_message: self.end.is_mid_message(),
            round: without_fetches(*self.end.round()),
            lifecycle: self.end.lifecycle(),
            failures: self.end.failures().to_vec(),
            written: self.end.written(),
            memory: self.shadow,
        }
    }
}

/// Starts a Read of 16 octets into the window, and an atomic operation.
fn ask(end: &mut End) {
    let request = ReadRequest {
        sink_stag: Stag::new(WINDOW.0),
        sink_to: TaggedOffset::new(WINDOW.1),
        len: 16,
        source_stag: Stag::new(1),
        source_to: TaggedOffset::new(0),
    };
    end.read(request).unwrap();
    let request = AtomicRequest {
        identifier: 7,
        stag: Stag::new(1),
        to: TaggedOffset::new(0),
        operation: AtomicOperation::FetchAdd { add: 1, mask: 0 },
    };
    end.atomic(request).unwrap();
}

/// Checks that a Terminate of this end parses to the same at the peer.
fn understood(terminate: &Terminate) {
    let mut segmenter = Segmenter::new(Message::Terminate(*terminate), 0);
    let plan = segmenter.next(MULPDU_MIN).unwrap();
    assert!(plan.is_last() && segmenter.is_done());
    let ulpdu = &plan.header()[LENGTH_LEN..];
    let len = u16::try_from(ulpdu.len()).unwrap();
    let segment = Receiver::new(Extensions::Off).handle_fpdu(ulpdu, len);
    assert_eq!(segment, Ok(Segment::Terminate(*terminate)));
}

/// Returns what a round has done, without what had to be fetched for it.
fn without_fetches(round: Round) -> Round {
    let mut after = Set::NONE;
    for action in round
        .after
        .iter()
        .filter(|action| *action != After::FetchIn)
    {
        after.insert(action);
    }
    Round { after, ..round }
}

/// Plays a stream to an end: all at once; cut at the places that `cuts` encodes; with each memory
/// absent at first, all FPDUs received under an open access, and some of both. Checks that the
/// outcomes are equal, and returns them.
pub fn play(setting: &Setting, stream: &[u8], cuts: u32) -> Outcome {
    const ALL: u32 = u32::MAX;
    let whole = play_cut(setting, stream, 0, Delays::default());
    for (absent, open) in [(ALL, 0), (0, ALL), (!cuts, cuts.rotate_left(7) | 1)] {
        let delays = Delays { absent, open };
        assert_eq!(whole, play_cut(setting, stream, cuts, delays));
    }
    if let Some(terminate) = &whole.terminate {
        understood(terminate);
    }
    whole
}

fn play_cut(setting: &Setting, stream: &[u8], cuts: u32, delays: Delays) -> Outcome {
    let mut watched = Watched::new(setting, delays);
    let mut framing = Framing::new(setting.rules);
    let mut ulpdu = Vec::with_capacity(stream.len());
    let mut left = stream.len() / 8;
    let mut cut = cuts;
    let mut there = 0;
    while there < stream.len() {
        // Three bits for each piece: 1 to 128 octets.
        let piece = if cuts == 0 {
            stream.len()
        } else {
            1 << (cut & 7)
        };
        cut = cut.rotate_right(3);
        there = stream.len().min(there + piece);
        while let Some(result) = framing.next(&stream[..there], &mut ulpdu) {
            // An FPDU has at least 8 octets, so this ends.
            left = left.checked_sub(1).unwrap();
            watched.handle(&ulpdu, result);
        }
    }
    watched.finish(setting)
}
