// SPDX-License-Identifier: GPL-2.0

//! Atomic operations on the device's memory (RFC 7306, sections 5 and 8).

mod refused;

use std::{
    fs::read_link,
    process::{
        Command,
        Stdio, //
    },
    thread,
    time::{
        Duration,
        Instant, //
    }, //
};

use super::{
    case,
    code,
    reads::{
        numbered,
        slow_reader, //
    },
    scripts,
    Case, //
};
use crate::{
    bench::Bench,
    frame::{
        op,
        pattern,
        read,
        response,
        send,
        untagged,
        write,
        Segment, //
    },
    wire::{
        fail,
        require,
        End,
        Outcome,
        Wire, //
    }, //
};

/// An Atomic Request.
#[derive(Clone, Copy)]
pub(super) struct Atomic {
    aopcode: u32,
    pub(super) identifier: u32,
    stag: u32,
    to: u64,
    data: u64,
    mask: u64,
    compare: u64,
    compare_mask: u64,
}

const FETCH_ADD: u32 = 0;
const DRAFT_SWAP: u32 = 1;
const COMPARE_SWAP: u32 = 2;

impl Atomic {
    /// Returns a CmpSwap without masks.
    pub(super) fn swap(stag: u32, to: u64, swap: u64, compare: u64) -> Self {
        compare_swap(stag, to, (swap, u64::MAX), (compare, u64::MAX))
    }

    /// Sets another identifier.
    pub(super) fn named(mut self, identifier: u32) -> Self {
        self.identifier = identifier;
        self
    }

    pub(super) fn segment(&self, msn: u32) -> Segment {
        let mut header = Vec::new();
        header.extend(self.aopcode.to_be_bytes());
        header.extend(self.identifier.to_be_bytes());
        header.extend(self.stag.to_be_bytes());
        for field in [
            self.to,
            self.data,
            self.mask,
            self.compare,
            self.compare_mask,
        ] {
            header.extend(field.to_be_bytes());
        }
        untagged(op::ATOMIC_REQUEST, 1, msn, &header)
    }
}

pub(super) fn fetch_add(stag: u32, to: u64, data: u64, mask: u64) -> Atomic {
    Atomic {
        aopcode: FETCH_ADD,
        identifier: 0x1d,
        stag,
        to,
        data,
        mask,
        compare: 0,
        compare_mask: u64::MAX,
    }
}

pub(super) fn compare_swap(
    stag: u32,
    to: u64,
    (swap, mask): (u64, u64),
    (compare, compare_mask): (u64, u64),
) -> Atomic {
    Atomic {
        aopcode: COMPARE_SWAP,
        identifier: 0x1d,
        stag,
        to,
        data: swap,
        mask,
        compare,
        compare_mask,
    }
}

/// Returns the Swap of the first draft of RFC 7306, with the given data and mask.
pub(super) fn draft_swap(stag: u32, to: u64, swap: (u64, u64)) -> Atomic {
    Atomic {
        aopcode: DRAFT_SWAP,
        ..compare_swap(stag, to, swap, (0, u64::MAX))
    }
}

/// Returns the answer to a request with this identifier.
pub(super) fn answer(msn: u32, identifier: u32, original: u64) -> Segment {
    let mut header = Vec::from(identifier.to_be_bytes());
    header.extend(original.to_be_bytes());
    untagged(op::ATOMIC_RESPONSE, 3, msn, &header)
}

/// Sets the first 64 bits of the region `ram`, in the byte order of the device's processor.
fn put_word(b: &mut Bench<'_>, value: u64) -> Outcome {
    let ram = b.ram;
    b.agent.poke(&ram, 0, &value.to_ne_bytes())
}

fn word(b: &mut Bench<'_>) -> Outcome<u64> {
    let ram = b.ram;
    let octets = b.agent.peek(&ram, 0, 8)?;
    Ok(octets.try_into().map_or(0, u64::from_ne_bytes))
}

pub(super) fn cases() -> Vec<Case> {
    let mut list = scripts![
        identifiers_of_atomics_are_echoed: "EXT-34 EXT-44 EXT-11 EXT-19 EXT-45",
        fetch_add_of_0_changes_nothing: "EXT-3",
        reserved_fields_of_an_atomic_are_ignored: "EXT-8 EXT-32 EXT-36",
        atomics_and_reads_share_their_numbers: "EXT-31 EXT-37 EXT-40",
        atomics_are_carried_out_in_order: "EXT-41 EXT-58 EXT-43",
        answers_keep_the_order_of_reads_and_atomics: "EXT-49 EXT-58",
        atomic_uses_data_of_earlier_write: "EXT-55",
        atomic_gives_no_completion_at_its_target: "EXT-38",
        atomics_up_to_the_depth: "EXT-42",
        one_atomic_more_than_granted: "EXT-42",
        atomic_with_a_bad_crc: "EXT-53 MPA-20",
        counters_of_several_streams_add_up: "EXT-14 EXT-15 EXT-50",
        atomic_of_a_half_closed_peer: "EXT-43",
    ];
    let several = "EXT-14 EXT-15 EXT-16 EXT-50 EXT-52";
    list.push(
        case(
            "counters_of_two_processors_add_up",
            several,
            counters_of_two_processors_add_up,
        )
        .alone(),
    );
    list.push(case(
        "atomic_waits_for_the_answer_before_it",
        "EXT-58",
        atomic_waits_for_the_answer_before_it,
    ));
    list.extend(results());
    list.extend(refused::cases());
    list
}

/// Returns the cases for the results of FetchAdd and CmpSwap.
fn results() -> Vec<Case> {
    const ALL: u64 = u64::MAX;
    const HALVES: u64 = 0x8000_0000_8000_0000;
    // Name, rows, original, operation, resulting word.
    type Make = fn(u32, u64) -> Atomic;
    let list: [(&str, &str, u64, Make, u64); 16] = [
        ("add", "EXT-22 EXT-33", 40, |k, a| fetch_add(k, a, 2, 0), 42),
        ("add_wraps", "EXT-22", ALL, |k, a| fetch_add(k, a, 1, 0), 0),
        (
            "add_negative",
            "EXT-22",
            5,
            |k, a| fetch_add(k, a, ALL, 0),
            4,
        ),
        (
            "add_in_halves",
            "EXT-21 EXT-23",
            0xffff_ffff_ffff_ffff,
            |k, a| fetch_add(k, a, 0x0000_0001_0000_0001, HALVES),
            0,
        ),
        (
            "add_in_halves_without_carry",
            "EXT-21 EXT-23",
            0x0000_0001_ffff_ffff,
            |k, a| fetch_add(k, a, 0x0000_0001_0000_0001, HALVES),
            0x0000_0002_0000_0000,
        ),
        (
            "add_in_bits_is_xor",
            "EXT-23",
            0xff00_ff00_1234_5678,
            |k, a| fetch_add(k, a, 0x0ff0_0ff0_8765_4321, ALL),
            0xff00_ff00_1234_5678 ^ 0x0ff0_0ff0_8765_4321,
        ),
        (
            "swap_on_match",
            "EXT-28 EXT-33",
            7,
            |k, a| compare_swap(k, a, (9, ALL), (7, ALL)),
            9,
        ),
        (
            "no_swap_without_match",
            "EXT-29",
            7,
            |k, a| compare_swap(k, a, (9, ALL), (8, ALL)),
            7,
        ),
        (
            "compare_some_bits",
            "EXT-28",
            0x1234_5678_9abc_def0,
            |k, a| compare_swap(k, a, (0, ALL), (0xf0, 0xff)),
            0,
        ),
        (
            "compare_some_bits_that_differ",
            "EXT-29",
            0x1234_5678_9abc_def0,
            |k, a| compare_swap(k, a, (0, ALL), (0xf1, 0xff)),
            0x1234_5678_9abc_def0,
        ),
        (
            "swap_some_bits",
            "EXT-28",
            0x1111_1111_1111_1111,
            |k, a| compare_swap(k, a, (0x2222_2222_2222_2222, 0xffff_0000), (0, 0)),
            0x1111_1111_2222_1111,
        ),
        (
            "swap_whatever_it_was",
            "EXT-81",
            0xdead_beef,
            |k, a| compare_swap(k, a, (1, ALL), (0, 0)),
            1,
        ),
        (
            "draft_swap",
            "EXT-81",
            0xdead_beef,
            |k, a| draft_swap(k, a, (1, ALL)),
            1,
        ),
        (
            "draft_swap_with_mask_0",
            "EXT-81 EXT-36",
            0x1111_1111_1111_1111,
            |k, a| draft_swap(k, a, (0x2222_2222_2222_2222, 0)),
            0x2222_2222_2222_2222,
        ),
        (
            "draft_swap_with_a_mask_of_some_bits",
            "EXT-81 EXT-36",
            0x1111_1111_1111_1111,
            |k, a| draft_swap(k, a, (0x2222_2222_2222_2222, 0xffff_0000)),
            0x2222_2222_2222_2222,
        ),
        (
            "draft_swap_that_compares_nothing",
            "EXT-81 EXT-36",
            0xdead_beef,
            |k, a| Atomic {
                aopcode: DRAFT_SWAP,
                ..compare_swap(k, a, (3, ALL), (0x77, ALL))
            },
            3,
        ),
    ];
    list.into_iter()
        .map(|(name, rows, original, make, after)| {
            case(format!("atomic_{name}"), rows, move |b| {
                let mut wire = b.connect()?;
                put_word(b, original)?;
                let atomic = make(b.ram.key, b.ram.at);
                wire.send(&[atomic.segment(1)])?;
                wire.expect(&answer(1, atomic.identifier, original))?;
                let found = word(b)?;
                require!(found == after, "{found:#x} instead of {after:#x}");
                Ok(())
            })
        })
        .collect()
}

fn identifiers_of_atomics_are_echoed(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.connect()?;
    put_word(b, 0)?;
    for (msn, identifier) in (1..).zip([0, 1, 0x8000_0000, u32::MAX, 1]) {
        let atomic = Atomic {
            identifier,
            ..fetch_add(b.ram.key, b.ram.at, 1, 0)
        };
        wire.send(&[atomic.segment(msn)])?;
        wire.expect(&answer(msn, identifier, u64::from(msn) - 1))?;
    }
    Ok(())
}

fn fetch_add_of_0_changes_nothing(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.connect()?;
    b.clean()?;
    wire.send(&[fetch_add(b.ram.key, b.ram.at, 0, 0).segment(1)])?;
    wire.expect(&answer(1, 0x1d, 0x5555_5555_5555_5555))?;
    b.untouched()
}

fn reserved_fields_of_an_atomic_are_ignored(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.connect()?;
    put_word(b, 1)?;
    let odd = Atomic {
        aopcode: 0xffff_fff0 | FETCH_ADD,
        compare: 0x1234,
        compare_mask: 0x5678,
        ..fetch_add(b.ram.key, b.ram.at, 1, 0)
    };
    wire.send(&[odd
        .segment(1)
        .inv(0xdead_beef)
        .ddp_reserved(15)
        .rdmap_reserved(3)])?;
    wire.expect(&answer(1, 0x1d, 1))?;
    let odd = Atomic {
        aopcode: 0xffff_fff0 | COMPARE_SWAP,
        ..compare_swap(b.ram.key, b.ram.at, (3, u64::MAX), (2, u64::MAX))
    };
    wire.send(&[odd.segment(2)])?;
    wire.expect(&answer(2, 0x1d, 2))?;
    let found = word(b)?;
    require!(found == 3, "{found} instead of 3");
    Ok(())
}

fn atomics_and_reads_share_their_numbers(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.connect()?;
    put_word(b, 7)?;
    let data = 7_u64.to_ne_bytes();
    wire.send(&[read(1, 8, b.ram.key, b.ram.at)])?;
    wire.expect(&response(&data))?;
    wire.send(&[fetch_add(b.ram.key, b.ram.at, 0, 0).segment(2)])?;
    wire.expect(&answer(1, 0x1d, 7))?;
    wire.send(&[read(3, 8, b.ram.key, b.ram.at)])?;
    wire.expect(&response(&data))
}

fn atomics_are_carried_out_in_order(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.connect()?;
    put_word(b, 0)?;
    let (key, at) = (b.ram.key, b.ram.at);
    wire.send(&[
        fetch_add(key, at, 5, 0).segment(1),
        compare_swap(key, at, (8, u64::MAX), (5, u64::MAX)).segment(2),
        fetch_add(key, at, 1, 0).segment(3),
        compare_swap(key, at, (0, u64::MAX), (8, u64::MAX)).segment(4),
    ])?;
    for (msn, original) in (1..).zip([0, 5, 8, 9]) {
        wire.expect(&answer(msn, 0x1d, original))?;
    }
    let found = word(b)?;
    require!(found == 9, "{found} instead of 9");
    Ok(())
}

fn answers_keep_the_order_of_reads_and_atomics(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.connect()?;
    put_word(b, 1)?;
    let long = 300_000;
    wire.send(&[
        read(1, long, b.large.key, b.large.at),
        fetch_add(b.ram.key, b.ram.at, 1, 0).segment(2),
        read(3, 8, b.ram.key, b.ram.at),
        fetch_add(b.ram.key, b.ram.at, 1, 0).segment(4),
    ])?;
    let (first, data) = wire.message()?;
    require!(
        first.op() == op::READ_RESPONSE && data.len() == long as usize,
        "{}",
        first.describe()
    );
    wire.expect(&answer(1, 0x1d, 1))?;
    wire.expect(&response(&2_u64.to_ne_bytes()))?;
    wire.expect(&answer(2, 0x1d, 2))
}

fn atomic_uses_data_of_earlier_write(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.connect()?;
    for (msn, round) in (1..).zip([17_u64, 99, 3]) {
        wire.send(&[
            write(b.ram.key, b.ram.at, &round.to_ne_bytes()),
            fetch_add(b.ram.key, b.ram.at, 1, 0).segment(msn),
        ])?;
        wire.expect(&answer(msn, 0x1d, round))?;
    }
    Ok(())
}

fn atomic_gives_no_completion_at_its_target(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.connect()?;
    let msn = wire.next_read();
    wire.send(&[fetch_add(b.ram.key, b.ram.at, 1, 0).segment(msn)])?;
    wire.get()?;
    b.nothing_completes(&mut wire)
}

fn atomics_up_to_the_depth(b: &mut Bench<'_>) -> Outcome {
    // The depth is four, unless another was negotiated.
    let mut wire = b.connect()?;
    put_word(b, 0)?;
    let add = |msn| fetch_add(b.ram.key, b.ram.at, 1, 0).segment(msn);
    for round in 0..8 {
        let first = round * 4 + 1;
        wire.send(&[add(first), add(first + 1), add(first + 2), add(first + 3)])?;
        for msn in first..first + 4 {
            wire.expect(&answer(msn, 0x1d, u64::from(msn) - 1))?;
        }
    }
    Ok(())
}

fn one_atomic_more_than_granted(b: &mut Bench<'_>) -> Outcome {
    // Behind a slow Read, Reads and Atomics share the inbound depth.
    let mut wire = slow_reader(b, 2)?;
    put_word(b, 0)?;
    let add = |msn| fetch_add(b.ram.key, b.ram.at, 1, 0).segment(msn);
    wire.send(&[numbered(b, 1, 1 << 21), add(2), add(3)])?;
    b.agent.wait(&format!("event {} QP_REQ_ERR", wire.conn))?;
    wire.expect_terminate_behind(op::READ_RESPONSE, &code::NO_BUFFER.answer(&add(3)))?;
    let found = word(b)?;
    require!(found == 0, "{found} instead of 0");
    Ok(())
}

fn atomic_with_a_bad_crc(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.connect()?;
    b.clean()?;
    let add = fetch_add(b.ram.key, b.ram.at, 1, 0).segment(1);
    wire.put(&add.bad_crc(1))?;
    wire.expect_terminate(&code::CRC.alone())?;
    b.untouched()?;
    b.failed(&wire, code::CRC)
}

fn counters_of_several_streams_add_up(b: &mut Bench<'_>) -> Outcome {
    const STREAMS: usize = 6;
    const ROUNDS: u32 = 32;
    put_word(b, 0)?;
    let mut wires = Vec::new();
    for _ in 0..STREAMS {
        wires.push(b.connect()?);
    }
    let mut seen = Vec::new();
    for msn in 1..=ROUNDS {
        for wire in &mut wires {
            wire.send(&[fetch_add(b.ram.key, b.ram.at, 1, 0).segment(msn)])?;
        }
        for wire in &mut wires {
            let got = wire.get()?;
            require!(
                got.op() == op::ATOMIC_RESPONSE && got.msn() == msn,
                "{}",
                got.describe()
            );
            seen.push(got.data()[4..].to_vec());
        }
    }
    let total = STREAMS as u64 * u64::from(ROUNDS);
    let found = word(b)?;
    require!(found == total, "{found} instead of {total}");
    seen.sort_unstable();
    let each_once = seen
        .iter()
        .zip(0_u64..)
        .all(|(original, n)| **original == n.to_be_bytes());
    require!(each_once, "some originals came twice");
    Ok(())
}

/// How long two peers add at the same time.
const MEANWHILE: Duration = Duration::from_secs(2);

/// Two peers add to one word, each on its own processor, where the device executes the operations.
/// Then one peer and a thread of the program add, the thread as fast as its processor can.
fn counters_of_two_processors_add_up(b: &mut Bench<'_>) -> Outcome {
    b.agent.set(&[("ird", 128)])?;
    let mut adders = [Adder::new(b)?, Adder::new(b)?];
    put_word(b, 0)?;
    let mut seen = add_on_two_processors(&mut adders)?;
    let found = word(b)?;
    require!(
        found == seen.len() as u64,
        "{found} instead of {}",
        seen.len()
    );
    seen.sort_unstable();
    let each_once = seen.iter().copied().eq(0..found);
    require!(each_once, "some originals came twice");

    put_word(b, 0)?;
    b.agent.ask(&format!("count {} 1", b.ram.number()))?;
    let seen = adders[0].add("0")?.len() as u64;
    let [counted] = b.agent.numbers("count off")?;
    let found = word(b)?;
    require!(
        found == seen + counted,
        "{found} instead of {seen} and {counted}"
    );
    // If the program did not get to add meanwhile, the test proves nothing.
    require!(counted > seen, "the program has added {counted} times");
    Ok(())
}

/// A peer that keeps adding 1.
struct Adder {
    wire: Wire,
    stag: u32,
    to: u64,
}

impl Adder {
    /// How many operations are outstanding.
    const AT_ONCE: u32 = 100;

    fn new(b: &Bench<'_>) -> Outcome<Self> {
        Ok(Self {
            wire: b.connect()?,
            stag: b.ram.key,
            to: b.ram.at,
        })
    }

    /// Adds for some time on one processor; returns each original value.
    fn add(&mut self, processor: &str) -> Outcome<Vec<u64>> {
        // "PID/task/TID"
        let this = read_link("/proc/thread-self")?;
        let this = this.file_name().unwrap_or_default();
        let status = Command::new("taskset")
            .args(["-pc", processor])
            .arg(this)
            .stdout(Stdio::null())
            .status()?;
        require!(status.success(), "no processor {processor}: {status}");
        let begun = Instant::now();
        let mut seen = Vec::new();
        while begun.elapsed() < MEANWHILE {
            let adds: Vec<Segment> = (0..Self::AT_ONCE)
                .map(|_| fetch_add(self.stag, self.to, 1, 0).segment(self.wire.next_read()))
                .collect();
            self.wire.send(&adds)?;
            for _ in adds {
                let got = self.wire.get()?;
                match (got.op(), got.data()[4..].try_into()) {
                    (op::ATOMIC_RESPONSE, Ok(original)) => seen.push(u64::from_be_bytes(original)),
                    _ => fail!("{}", got.describe()),
                }
            }
        }
        Ok(seen)
    }
}

/// Returns the original values that both peers saw.
fn add_on_two_processors([first, second]: &mut [Adder; 2]) -> Outcome<Vec<u64>> {
    thread::scope(|scope| {
        let other = scope.spawn(|| second.add("1"));
        let mut seen = first.add("0")?;
        match other.join() {
            Ok(theirs) => seen.extend(theirs?),
            Err(_) => fail!("panicked"),
        }
        Ok(seen)
    })
}

/// The device executes the next request only after it has made the answer to the one before: not
/// while TCP has yet to accept octets of a Read Response.
fn atomic_waits_for_the_answer_before_it(b: &mut Bench<'_>) -> Outcome {
    const LEN: u32 = 1 << 21;
    let mut wire = slow_reader(b, 3)?;
    put_word(b, 0)?;
    let add = |msn| fetch_add(b.ram.key, b.ram.at, 1, 0).segment(msn);
    wire.send(&[numbered(b, 1, LEN), add(2), numbered(b, 3, LEN)])?;
    let mut left = LEN as usize;
    while left > LEN as usize / 2 {
        left -= wire.get()?.data().len();
    }
    // A Send behind the requests arrives, so the device has parsed them.
    wire.send(&[send(1, b"behind")])?;
    b.received(&wire, b"behind")?;
    let found = word(b)?;
    require!(found == 0, "{found} in the middle of the Read Response");
    while left > 0 {
        left -= wire.get()?.data().len();
    }
    wire.expect(&answer(1, 0x1d, 0))?;
    let (_, data) = wire.message()?;
    require!(data.len() == LEN as usize, "{} octets", data.len());
    let found = word(b)?;
    require!(found == 1, "{found} behind all answers");
    Ok(())
}

fn atomic_of_a_half_closed_peer(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.connect()?;
    put_word(b, 4)?;
    b.agent.poke(&b.large.clone(), 0, &pattern(16))?;
    wire.send(&[fetch_add(b.ram.key, b.ram.at, 1, 0).segment(1)])?;
    wire.half_close()?;
    wire.expect(&answer(1, 0x1d, 4))?;
    wire.ends(End::Graceful)
}
