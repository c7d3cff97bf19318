// SPDX-License-Identifier: GPL-2.0

//! Each kind of message before each other: the order of frames, of answers and of completions (RFC 5040,
//! section 5.5; RFC 7306, section 7). This end delays what it answers.

use super::{
    atomics::{
        answer,
        fetch_add, //
    },
    case,
    Case, //
};
use crate::{
    bench::{
        Bench,
        RECEIVES, //
    },
    frame::{
        op,
        read,
        read_response,
        response,
        send,
        write,
        Got, //
    },
    wire::{
        require,
        Outcome,
        Wire, //
    },
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Send,
    Write,
    Read,
    Atomic,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::Write => "write",
            Self::Read => "read",
            Self::Atomic => "atomic",
        }
    }

    fn opcode(self) -> u8 {
        match self {
            Self::Send => op::SEND,
            Self::Write => op::WRITE,
            Self::Read => op::READ_REQUEST,
            Self::Atomic => op::ATOMIC_REQUEST,
        }
    }
}

pub(super) fn cases() -> Vec<Case> {
    let mut list = Vec::new();
    for first in [Kind::Send, Kind::Write, Kind::Read] {
        for later in [Kind::Send, Kind::Write, Kind::Read] {
            for (flag, suffix) in [("-", ""), ("u", "_unsignalled")] {
                let name = format!("device_does_{}{suffix}_then_{}", first.name(), later.name());
                list.push(case(
                    name,
                    "RDMAP-116 RDMAP-117 RDMAP-118 RDMAP-122",
                    move |b| of_the_device(b, (first, flag), later),
                ));
            }
        }
    }
    const KINDS: [Kind; 4] = [Kind::Send, Kind::Write, Kind::Read, Kind::Atomic];
    for first in KINDS {
        for later in KINDS {
            let name = format!("peer_does_{}_then_{}", first.name(), later.name());
            list.push(case(
                name,
                "RDMAP-110 RDMAP-111 RDMAP-114 RDMAP-123 EXT-49 EXT-55 EXT-58",
                move |b| of_the_peer(b, first, later),
            ));
        }
    }
    list
}

// The device issues both.

/// Octets of a message of the device: another number for each, so that completions tell them apart.
const FIRST_LEN: u32 = 24;
const LATER_LEN: u32 = 40;

fn issue(b: &mut Bench<'_>, wire: &Wire, kind: Kind, len: u32, flag: &str) -> Outcome {
    let (conn, ram) = (wire.conn, b.ram.number());
    let command = match kind {
        Kind::Send => format!("send {conn} {len} {flag}"),
        Kind::Write => format!("write {conn} {ram} 0 {len} 64 77 {flag}"),
        // Each has its own sink.
        Kind::Read | Kind::Atomic => format!("read {conn} {ram} {} {len} 64 77 {flag}", len * 8),
    };
    b.puppet.ask(&command).map(drop)
}

/// Two requests, one right behind the other: frames in the order of posting; nothing completes before
/// what is before it, and a Read not before its answer.
fn of_the_device(b: &mut Bench<'_>, (first, flag): (Kind, &'static str), later: Kind) -> Outcome {
    let mut wire = b.begun()?;
    issue(b, &wire, first, FIRST_LEN, flag)?;
    issue(b, &wire, later, LATER_LEN, "-")?;
    let frames = [wire.get()?, wire.get()?];
    for (frame, kind) in frames.iter().zip([first, later]) {
        require!(frame.op() == kind.opcode(), "{}", frame.describe());
    }
    let completions = format!("wc {} send", wire.conn);
    let mut expected = Vec::new();
    for ((frame, kind), (len, told)) in frames
        .iter()
        .zip([first, later])
        .zip([(FIRST_LEN, flag == "-"), (LATER_LEN, true)])
    {
        if kind == Kind::Read {
            // What comes behind it has not completed, and neither has the Read.
            expect_completions(b, &completions, &mut expected)?;
            b.puppet.none(&completions)?;
            answer_read(&mut wire, frame)?;
        }
        if told {
            expected.push(len);
        }
    }
    expect_completions(b, &completions, &mut expected)?;
    b.puppet.none_yet(&completions)
}

fn expect_completions(b: &Bench<'_>, pattern: &str, lens: &mut Vec<u32>) -> Outcome {
    for len in lens.drain(..) {
        let event = b.puppet.wait(pattern)?;
        require!(
            event[4] == "success" && event[5] == len.to_string(),
            "{} instead of {len} octets",
            event.join(" ")
        );
    }
    Ok(())
}

fn answer_read(wire: &mut Wire, request: &Got) -> Outcome {
    let asked = request.read();
    let data = vec![7; asked.size as usize];
    wire.send(&[read_response(asked.sink, asked.sink_to, &data)])
}

// The peer issues both.

/// What Writes add to the word that Reads and Atomics find.
const WORD: u64 = 0x0102_0304_0506_0708;

/// Two messages in one go, and a Send behind them: answers in the order of the requests, each with what
/// the message before has left, and when the last Send is told of, all is in place.
fn of_the_peer(b: &mut Bench<'_>, first: Kind, later: Kind) -> Outcome {
    let mut wire = b.connect()?;
    let ram = b.ram;
    b.puppet.poke(&ram, 0, &0_u64.to_ne_bytes())?;
    let (mut segments, mut answers) = (Vec::new(), Vec::new());
    let (mut word, mut written, mut sends, mut reads, mut atomics) = (0_u64, 0, 0, 0, 0);
    for kind in [first, later] {
        match kind {
            Kind::Send => {
                sends += 1;
                segments.push(send(sends, &[sends as u8]));
            }
            Kind::Write => {
                word = word.wrapping_add(WORD);
                written = word;
                segments.push(write(ram.key, ram.at, &word.to_ne_bytes()));
            }
            Kind::Read => {
                reads += 1;
                segments.push(read(reads + atomics, 8, ram.key, ram.at));
                answers.push(response(&word.to_ne_bytes()));
            }
            Kind::Atomic => {
                atomics += 1;
                let add = fetch_add(ram.key, ram.at, 1, 0);
                segments.push(add.segment(reads + atomics));
                answers.push(answer(atomics, add.identifier, word));
                word = word.wrapping_add(1);
            }
        }
    }
    segments.push(send(sends + 1, b"end"));
    wire.send(&segments)?;
    // What a Read or Atomic finds may be that of a Write behind it already: there is no order.
    let mut saw_later = false;
    for want in &answers {
        let got = wire.get()?;
        let found = got.data().last_chunk() == Some(&found_by(first, written));
        saw_later = later == Kind::Write && got.0 != *want && found;
        require!(saw_later || got.0 == *want, "{}", got.describe());
    }
    for number in 1..=sends {
        b.received(&wire, &[number as u8])?;
    }
    b.received(&wire, b"end")?;
    require!((sends as usize) < RECEIVES, "too many Sends");
    if saw_later && first == Kind::Atomic {
        word = word.wrapping_add(1);
    }
    let memory = b.puppet.peek(&ram, 0, 8)?;
    require!(
        memory == word.to_ne_bytes(),
        "{memory:02x?} instead of {word:#x}"
    );
    Ok(())
}

/// A word as it is in an answer: the Atomic Response has it in the order of the network.
fn found_by(kind: Kind, word: u64) -> [u8; 8] {
    match kind {
        Kind::Atomic => word.to_be_bytes(),
        Kind::Send | Kind::Write | Kind::Read => word.to_ne_bytes(),
    }
}
