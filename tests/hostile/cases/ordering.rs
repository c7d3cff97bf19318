// SPDX-License-Identifier: GPL-2.0

//! Each kind of message before each other: the order of frames, of answers and of completions (RFC
//! 5040, section 5.5; RFC 7306, section 7). This end delays its answers.

use super::{
    atomics::{
        answer,
        fetch_add, //
    },
    case,
    operations::{
        identifier_of,
        immediate, //
    },
    Case, //
};
use crate::{
    bench::Bench,
    frame::{
        hex,
        op,
        read,
        read_response,
        response,
        send,
        write,
        Got,
        Segment, //
    },
    wire::{
        require,
        Outcome,
        Wire, //
    }, //
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Send,
    Write,
    Read,
    Atomic,
    /// Immediate Data; if the device issues it, behind a Write.
    Imm,
}

const KINDS: [Kind; 5] = [Kind::Send, Kind::Write, Kind::Read, Kind::Atomic, Kind::Imm];

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::Write => "write",
            Self::Read => "read",
            Self::Atomic => "atomic",
            Self::Imm => "immediate_data",
        }
    }

    /// Returns the opcodes that the device sends for it.
    fn opcodes(self) -> &'static [u8] {
        match self {
            Self::Send => &[op::SEND],
            Self::Write => &[op::WRITE],
            Self::Read => &[op::READ_REQUEST],
            Self::Atomic => &[op::ATOMIC_REQUEST],
            Self::Imm => &[op::WRITE, op::IMMEDIATE],
        }
    }
}

pub(super) fn cases() -> Vec<Case> {
    let mut list = Vec::new();
    for first in KINDS {
        for later in KINDS {
            for (flag, suffix) in [("-", ""), ("u", "_unsignalled")] {
                let name = format!("device_does_{}{suffix}_then_{}", first.name(), later.name());
                list.push(case(
                    name,
                    "RDMAP-116 RDMAP-117 RDMAP-118 RDMAP-122 EXT-41 EXT-51 EXT-57 EXT-70 EXT-72",
                    move |b| of_the_device(b, (first, flag), later),
                ));
            }
            let name = format!("peer_does_{}_then_{}", first.name(), later.name());
            list.push(case(
                name,
                "RDMAP-110 RDMAP-111 RDMAP-114 RDMAP-123 EXT-49 EXT-55 EXT-58 EXT-67 EXT-72",
                move |b| of_the_peer(b, first, later),
            ));
        }
    }
    list
}

// Messages that the device issues.

/// Octets of a message of the device, or of the sink of its request.
const FIRST_LEN: u32 = 24;
const LATER_LEN: u32 = 40;

/// A request that the device's program posted.
struct Posted {
    kind: Kind,
    len: u32,
    /// Its work request id.
    id: u64,
    /// Whether it has a completion.
    told: bool,
}

impl Posted {
    /// Returns the offset in [`Bench::ram`] of its sink; each request has its own.
    fn sink(&self) -> usize {
        self.len as usize * 8
    }

    /// Returns the octets of its answer.
    fn brings(&self) -> Vec<u8> {
        match self.kind {
            Kind::Send | Kind::Write | Kind::Imm => Vec::new(),
            Kind::Read => vec![self.len as u8; self.len as usize],
            Kind::Atomic => self.word().to_ne_bytes().to_vec(),
        }
    }

    fn word(&self) -> u64 {
        0x0102_0304_0506_0700 + u64::from(self.len)
    }
}

fn post(b: &mut Bench<'_>, wire: &Wire, kind: Kind, len: u32, flag: &str) -> Outcome<Posted> {
    let (conn, ram) = (wire.conn, b.ram.number());
    let mut posted = Posted {
        kind,
        len,
        id: 0,
        told: flag == "-",
    };
    let sink = posted.sink();
    let command = match kind {
        Kind::Send => format!("send {conn} {len} {flag}"),
        Kind::Write => format!("write {conn} {ram} 0 {len} 64 77 {flag}"),
        Kind::Read => format!("read {conn} {ram} {sink} {len} 64 77 {flag}"),
        Kind::Atomic => format!("add {conn} {ram} {sink} 8 64 77 {flag} 1"),
        Kind::Imm => format!("imm {conn} {ram} 0 {len} 64 77 {flag} {len}"),
    };
    [posted.id] = b.agent.numbers(&command)?;
    Ok(posted)
}

/// Posts two requests, one right behind the other. Checks that the frames come in the order of
/// posting, that completions come in that order, and that a Read or Atomic completes only after its
/// answer, with the octets in place.
fn of_the_device(b: &mut Bench<'_>, (first, flag): (Kind, &'static str), later: Kind) -> Outcome {
    let mut wire = b.begun()?;
    b.clean()?;
    let both = [
        post(b, &wire, first, FIRST_LEN, flag)?,
        post(b, &wire, later, LATER_LEN, "-")?,
    ];
    let requests = [
        frames_of(&mut wire, &both[0])?,
        frames_of(&mut wire, &both[1])?,
    ];
    let completions = format!("wc {} send", wire.conn);
    let mut due = Vec::new();
    let mut atomics = 0;
    for (posted, request) in both.iter().zip(&requests) {
        let answer = match posted.kind {
            Kind::Send | Kind::Write | Kind::Imm => None,
            Kind::Read => {
                let asked = request.read();
                Some(read_response(asked.sink, asked.sink_to, &posted.brings()))
            }
            Kind::Atomic => {
                atomics += 1;
                Some(answer(atomics, identifier_of(request), posted.word()))
            }
        };
        if let Some(answer) = answer {
            // It has not completed, and neither have the requests behind it.
            expect_completions(b, &completions, &mut due)?;
            b.nothing_completes(&mut wire)?;
            b.ram_is_clean(posted.sink(), posted.len as usize)?;
            wire.send(&[answer])?;
        }
        if posted.told {
            due.push(posted);
        }
    }
    expect_completions(b, &completions, &mut due)?;
    b.agent.none_yet(&completions)?;
    both.iter().try_for_each(|posted| has_brought(b, posted))
}

/// Takes the frames of a request; returns the last one.
fn frames_of(wire: &mut Wire, posted: &Posted) -> Outcome<Got> {
    let mut got = None;
    for opcode in posted.kind.opcodes() {
        let frame = wire.get()?;
        let len = match *opcode {
            op::READ_REQUEST => 28,
            op::ATOMIC_REQUEST => 52,
            op::IMMEDIATE => 8,
            _ => posted.len as usize,
        };
        require!(
            frame.op() == *opcode && frame.data().len() == len,
            "{} instead of opcode {opcode} with {len} octets",
            frame.describe()
        );
        got = Some(frame);
    }
    got.ok_or_else(|| crate::wire::Failure("no frame".into()))
}

fn expect_completions(b: &mut Bench<'_>, pattern: &str, due: &mut Vec<&Posted>) -> Outcome {
    for posted in due.drain(..) {
        let event = b.agent.wait(pattern)?;
        let len = match posted.kind {
            Kind::Atomic => 8,
            Kind::Send | Kind::Write | Kind::Read | Kind::Imm => posted.len,
        };
        require!(
            event[3] == posted.id.to_string()
                && event[4] == "success"
                && event[5] == len.to_string(),
            "{} instead of {} with {len} octets",
            event.join(" "),
            posted.id
        );
        has_brought(b, posted)?;
    }
    Ok(())
}

fn has_brought(b: &mut Bench<'_>, posted: &Posted) -> Outcome {
    let (ram, want) = (b.ram, posted.brings());
    let memory = b.agent.peek(&ram, posted.sink(), want.len())?;
    require!(memory == want, "{} instead of {}", hex(&memory), hex(&want));
    Ok(())
}

// Messages that the peer issues.

/// The word that the region holds, and that Writes add to.
const WORD: u64 = 0x0102_0304_0506_0708;

/// The messages sent to the device, and their expected effects.
#[derive(Default)]
struct Script {
    segments: Vec<Segment>,
    /// Answers, each with the number of completions that precede it.
    answers: Vec<(Segment, usize)>,
    /// Completions of receives: kind, octets, and contents or value.
    told: Vec<String>,
    /// The word after all messages.
    word: u64,
    /// The word after the last Write.
    written: u64,
    requests: u32,
    atomics: u32,
}

impl Script {
    fn add(&mut self, b: &Bench<'_>, kind: Kind) {
        let (key, at) = (b.ram.key, b.ram.at);
        let number = self.told.len() as u32 + 1;
        match kind {
            Kind::Send => {
                self.segments.push(send(number, &[number as u8]));
                self.told.push(format!("recv 1 {number:02x}"));
            }
            Kind::Write => {
                self.word = self.word.wrapping_add(WORD);
                self.written = self.word;
                self.segments.push(write(key, at, &self.word.to_ne_bytes()));
            }
            Kind::Read => {
                self.requests += 1;
                self.segments.push(read(self.requests, 8, key, at));
                let answer = response(&self.word.to_ne_bytes());
                self.answers.push((answer, self.told.len()));
            }
            Kind::Atomic => {
                self.requests += 1;
                self.atomics += 1;
                let add = fetch_add(key, at, 1, 0);
                self.segments.push(add.segment(self.requests));
                let answer = answer(self.atomics, add.identifier, self.word);
                self.answers.push((answer, self.told.len()));
                self.word = self.word.wrapping_add(1);
            }
            Kind::Imm => {
                // Its completion covers the Write right before it.
                let behind_write = self
                    .segments
                    .last()
                    .is_some_and(|last| last[1] & 15 == op::WRITE);
                let len = if behind_write { 8 } else { 0 };
                self.segments
                    .push(immediate(number, [0, 0, 0, number as u8]));
                self.told.push(format!("imm {len} 000000{number:02x}"));
            }
        }
    }
}

/// Sends two messages at once and a Send behind them. Checks that answers come in the order of the
/// requests, each with the effect of the message before it and only after its completion; that
/// completions come in the order of the messages; and that all data is placed when the last Send
/// completes.
fn of_the_peer(b: &mut Bench<'_>, first: Kind, later: Kind) -> Outcome {
    let mut wire = b.connect()?;
    let ram = b.ram;
    b.agent.poke(&ram, 0, &0_u64.to_ne_bytes())?;
    let mut script = Script::default();
    for kind in [first, later, Kind::Send] {
        script.add(b, kind);
    }
    wire.send(&script.segments)?;
    // A Read or Atomic may already see a Write behind it: no order is defined.
    let mut saw_later = false;
    let mut told = script.told.iter();
    for (want, behind) in &script.answers {
        let got = wire.get()?;
        let found = got.data().last_chunk() == Some(&found_by(first, script.written));
        saw_later = later == Kind::Write && got.0 != *want && found;
        require!(saw_later || got.0 == *want, "{}", got.describe());
        b.agent.ask(&format!("poll {}", wire.conn))?;
        let completed = script.told.len() - told.len();
        for want in told.by_ref().take(behind.saturating_sub(completed)) {
            is(&b.agent.now(&format!("wc {}", wire.conn))?, want)?;
        }
    }
    for want in told {
        is(&b.agent.wait(&format!("wc {}", wire.conn))?, want)?;
    }
    if saw_later && first == Kind::Atomic {
        script.word = script.word.wrapping_add(1);
    }
    let memory = b.agent.peek(&ram, 0, 8)?;
    require!(
        memory == script.word.to_ne_bytes(),
        "{memory:02x?} instead of {:#x}",
        script.word
    );
    Ok(())
}

/// Checks that this completion is the expected one.
fn is(event: &[String], want: &str) -> Outcome {
    let got = format!("{} {} {}", event[2], event[5], event[6]);
    require!(
        event[4] == "success" && got == want,
        "{} instead of {want}",
        event.join(" ")
    );
    Ok(())
}

/// Returns a word as it is in an answer: the Atomic Response has it in network byte order.
fn found_by(kind: Kind, word: u64) -> [u8; 8] {
    match kind {
        Kind::Atomic => word.to_be_bytes(),
        Kind::Send | Kind::Write | Kind::Read | Kind::Imm => word.to_ne_bytes(),
    }
}
