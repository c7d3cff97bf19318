// SPDX-License-Identifier: GPL-2.0

//! Atomic operations that the device requests, and Immediate Data in both directions (RFC 7306,
//! sections 5 and 6).

use super::{
    atomics::{
        answer,
        compare_swap,
        draft_swap,
        fetch_add,
        Atomic, //
    },
    awaited::{
        brought,
        own_fault,
        reset,
        send_completes_behind,
        terminated,
        SINK_AT, //
    },
    case,
    code,
    refusals,
    refused,
    scripts,
    Case, //
};
use crate::{
    bench::{
        reply_to,
        Bench,
        Segments, //
    },
    frame::{
        flag,
        hex,
        op,
        pattern,
        read_response,
        send,
        untagged,
        write,
        Code,
        Depths,
        Segment,
        Start, //
    },
    wire::{
        require,
        End,
        Outcome,
        Wire, //
    }, //
};

pub(super) fn cases() -> Vec<Case> {
    let mut list = scripts![
        frames_of_atomics_of_the_device: "EXT-19 EXT-21 EXT-33 EXT-36 EXT-37 EXT-74",
        atomic_of_the_device: "EXT-27 EXT-47 EXT-51 EXT-57",
        atomics_are_sent_in_posted_order: "EXT-41 EXT-31",
        no_more_atomics_than_granted: "EXT-42",
        answers_to_reads_and_atomics_of_the_device: "EXT-20 EXT-49",
        sends_complete_behind_atomics: "EXT-57",
        fenced_send_waits_for_the_atomic: "EXT-57",
        own_fault_of_an_atomic_sends_no_octet: "EXT-74",
        terminate_fails_a_pending_atomic: "EXT-54",
        reset_fails_a_pending_atomic: "EXT-57",
        write_with_immediate_data_of_the_device: "EXT-62 EXT-69 EXT-70 EXT-72",
        immediate_data_of_the_device_keeps_its_place: "EXT-70 EXT-72",
        empty_send_with_immediate_is_immediate_data: "EXT-61 EXT-69 EXT-70 EXT-73",
        send_with_immediate_and_payload_is_refused: "EXT-61",
        immediate_data_takes_a_receive_without_room: "EXT-66",
        immediate_data_reports_length_of_write_before_it: "EXT-62",
        immediate_data_of_other_implementations: "EXT-64",
        refused_immediate_data_of_the_device: "EXT-63",
    ];
    let without_wait = scripts![
        immediate_data_takes_a_receive: "EXT-61 EXT-64 EXT-66 EXT-67 EXT-72",
        immediate_data_without_a_receive: "EXT-63 EXT-66",
    ];
    list.extend(without_wait.into_iter().map(Case::alone));
    list.push(
        case(
            "immediate_data_that_loses_octets_is_counted",
            "EXT-61",
            immediate_data_that_loses_octets_is_counted,
        )
        .alone(),
    );
    list.push(case("swap_of_the_device", "EXT-81 EXT-36", swap_of_the_device).alone());
    list.extend(bad_answers());
    list.extend(refusals(bad_immediates()));
    list
}

/// The peer's memory, of which the device knows only this STag and tagged offset.
const KEY: u32 = 77;
const AT: u64 = 4096;

/// Has the device add `value`; returns the identifier and the Atomic Request.
fn pending(b: &mut Bench<'_>, wire: &mut Wire, value: u64) -> Outcome<(u32, Segment)> {
    b.agent.ask(&format!(
        "add {} {} {SINK_AT} 8 {AT} {KEY} - {value}",
        wire.conn,
        b.ram.number()
    ))?;
    let got = wire.get()?;
    // The device chooses the identifier.
    let identifier = identifier_of(&got.0);
    let want = fetch_add(KEY, AT, value, 0)
        .named(identifier)
        .segment(got.msn());
    require!(got.0 == want, "Atomic Request {}", got.describe());
    Ok((identifier, got.0))
}

/// Returns the identifier of an Atomic Request.
pub(super) fn identifier_of(request: &Segment) -> u32 {
    request
        .get(22..26)
        .and_then(|octets| octets.try_into().ok())
        .map_or(0, u32::from_be_bytes)
}

fn frames_of_atomics_of_the_device(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.begun()?;
    let (conn, ram) = (wire.conn, b.ram.number());
    let add = format!("add {conn} {ram} {SINK_AT} 8 4096 77 - {}", u64::MAX);
    let swap = format!("swap {conn} {ram} {SINK_AT} 8 8 {} - 5 6", 0xfeed_beef_u32);
    b.agent.ask(&add)?;
    b.agent.ask(&swap)?;
    let (first, second) = (wire.get()?, wire.get()?);
    let (one, two) = (identifier_of(&first.0), identifier_of(&second.0));
    let want = fetch_add(77, 4096, u64::MAX, 0).named(one).segment(1);
    require!(first.0 == want, "{}", first.describe());
    let want = Atomic::swap(0xfeed_beef, 8, 5, 6).named(two).segment(2);
    require!(second.0 == want, "{}", second.describe());
    require!(one != two, "identifier {one} twice");
    Ok(())
}

/// A swap that compares nothing is a CmpSwap; to a peer of the first draft, if the setting says so,
/// its Swap. Other operations are the same for both.
fn swap_of_the_device(b: &mut Bench<'_>) -> Outcome {
    let all = u64::MAX;
    for (setting, sent) in [
        (0, compare_swap(KEY, AT, (5, all), (0, 0))),
        (1, draft_swap(KEY, AT, (5, all))),
    ] {
        b.setting("draft_swap", setting)?;
        let mut wire = b.begun()?;
        b.clean()?;
        let rest = format!("{} {} {SINK_AT} 8 {AT} {KEY} -", wire.conn, b.ram.number());
        b.agent.ask(&format!("exchange {rest} 5"))?;
        let got = wire.get()?;
        let identifier = identifier_of(&got.0);
        let want = sent.named(identifier).segment(1);
        require!(got.0 == want, "{}", got.describe());
        wire.send(&[answer(1, identifier, 7)])?;
        brought(b, &wire, &7u64.to_ne_bytes())?;
        b.agent.ask(&format!("swap {rest} 5 0"))?;
        let got = wire.get()?;
        let named = compare_swap(KEY, AT, (5, all), (0, all)).named(identifier_of(&got.0));
        require!(got.0 == named.segment(2), "{}", got.describe());
    }
    Ok(())
}

fn atomic_of_the_device(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.begun()?;
    for (msn, word) in (1..).zip([0, 1, u64::MAX, 0x0123_4567_89ab_cdef]) {
        b.clean()?;
        let (identifier, _) = pending(b, &mut wire, 5)?;
        b.nothing_completes(&mut wire)?;
        b.untouched()?;
        wire.send(&[answer(msn, identifier, word)])?;
        brought(b, &wire, &word.to_ne_bytes())?;
    }
    Ok(())
}

fn atomics_are_sent_in_posted_order(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.begun()?;
    let (conn, ram) = (wire.conn, b.ram.number());
    b.agent.ask(&format!("add {conn} {ram} 0 8 8 77 - 1"))?;
    b.agent.ask(&format!("read {conn} {ram} 8 8 16 77 -"))?;
    b.agent.ask(&format!("send {conn} 9 -"))?;
    b.agent
        .ask(&format!("swap {conn} {ram} 16 8 24 77 - 1 2"))?;
    let ops = [
        (op::ATOMIC_REQUEST, 1),
        (op::READ_REQUEST, 2),
        (op::SEND, 1),
        (op::ATOMIC_REQUEST, 3),
    ];
    for (opcode, msn) in ops {
        let got = wire.get()?;
        require!(got.op() == opcode && got.msn() == msn, "{}", got.describe());
    }
    Ok(())
}

fn no_more_atomics_than_granted(b: &mut Bench<'_>) -> Outcome {
    b.agent.set(&[("ord", 8)])?;
    for granted in [1, 3] {
        let mut wire = b.connect_by(&Start::enhanced(Depths::new(granted, 4), &[]))?;
        wire.send(&[write(0, 0, &[])])?;
        let (conn, ram) = (wire.conn, b.ram.number());
        for i in 0..8 {
            // Reads and atomic operations count alike against the depth.
            let command = if i % 2 == 0 { "add" } else { "read" };
            b.agent
                .ask(&format!("{command} {conn} {ram} {} 8 8 77 - 1", i * 8))?;
        }
        let mut asked = Vec::new();
        for _ in 0..granted {
            asked.push(wire.get()?);
        }
        wire.nothing_waits()?;
        let mut atomics = 0;
        for i in 0..8 {
            let request = asked.remove(0);
            if request.op() == op::ATOMIC_REQUEST {
                atomics += 1;
                wire.send(&[answer(atomics, identifier_of(&request.0), 7)])?;
            } else {
                let read = request.read();
                wire.send(&[read_response(read.sink, read.sink_to, &[7; 8])])?;
            }
            if i + granted < 8 {
                asked.push(wire.get()?);
            }
            b.agent.wait(&format!("wc {conn} send * success 8"))?;
        }
        wire.nothing_waits()?;
    }
    Ok(())
}

fn answers_to_reads_and_atomics_of_the_device(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.begun()?;
    let (conn, ram) = (wire.conn, b.ram.number());
    b.clean()?;
    b.agent.ask(&format!("read {conn} {ram} 0 16 8 77 -"))?;
    b.agent.ask(&format!("add {conn} {ram} 16 8 8 77 - 1"))?;
    b.agent.ask(&format!("read {conn} {ram} 24 8 8 77 -"))?;
    let (first, second, third) = (wire.get()?, wire.get()?, wire.get()?);
    let (first, third) = (first.read(), third.read());
    wire.send(&[
        read_response(first.sink, first.sink_to, &[1; 8]).more(),
        read_response(first.sink, first.sink_to + 8, &[2; 8]),
        answer(1, identifier_of(&second.0), 0x0303_0303_0303_0303),
        read_response(third.sink, third.sink_to, &[4; 8]),
    ])?;
    for len in [16, 8, 8] {
        b.agent.wait(&format!("wc {conn} send * success {len}"))?;
    }
    let region = b.ram;
    let memory = b.agent.peek(&region, 0, 32)?;
    let want: Vec<u8> = [1, 2, 3, 4].iter().flat_map(|n| [*n; 8]).collect();
    require!(memory == want, "{}", hex(&memory));
    Ok(())
}

fn sends_complete_behind_atomics(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.begun()?;
    let (identifier, _) = pending(b, &mut wire, 1)?;
    send_completes_behind(b, &mut wire, answer(1, identifier, 7), 8)
}

fn fenced_send_waits_for_the_atomic(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.begun()?;
    let (identifier, _) = pending(b, &mut wire, 1)?;
    b.agent.ask(&format!("send {} 10 f", wire.conn))?;
    wire.nothing_waits()?;
    wire.send(&[answer(1, identifier, 7)])?;
    wire.expect_send(10).map(drop)
}

fn own_fault_of_an_atomic_sends_no_octet(b: &mut Bench<'_>) -> Outcome {
    own_fault(b, "badadd")
}

fn terminate_fails_a_pending_atomic(b: &mut Bench<'_>) -> Outcome {
    for (code, status) in [
        (code::SOURCE_STAG, "rem_access"),
        (code::STREAM, "rem_inv_req"),
    ] {
        let mut wire = b.begun()?;
        let (_, request) = pending(b, &mut wire, 1)?;
        terminated(b, &mut wire, code, &request, status)?;
    }
    Ok(())
}

fn reset_fails_a_pending_atomic(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.begun()?;
    pending(b, &mut wire, 1)?;
    reset(b, wire)
}

/// Returns the cases of answers that do not fit the pending atomic operation.
fn bad_answers() -> Vec<Case> {
    type Make = fn(u32) -> Segments;
    let list: [(&str, &str, Code, Make); 11] = [
        (
            "answer_to_an_atomic_with_another_identifier",
            "EXT-20 EXT-34",
            code::STREAM,
            |id| vec![answer(1, id ^ 1, 7)],
        ),
        ("atomic_answered_twice", "EXT-46", code::NO_BUFFER, |id| {
            vec![answer(1, id, 7), answer(2, id, 7)]
        }),
        (
            "atomic_answered_like_a_read",
            "EXT-20 RDMAP-76",
            code::OPCODE,
            |_| vec![read_response(1, 2, &[7; 8])],
        ),
        (
            "answer_to_an_atomic_with_number_2",
            "EXT-45",
            code::MSN,
            |id| vec![answer(2, id, 7)],
        ),
        (
            "answer_to_an_atomic_with_number_0",
            "EXT-45",
            code::MSN,
            |id| vec![answer(0, id, 7)],
        ),
        (
            "answer_to_an_atomic_in_the_read_queue",
            "EXT-44 EXT-10",
            code::QUEUE,
            |id| vec![answer(1, id, 7).qn(1)],
        ),
        (
            "long_answer_to_an_atomic",
            "EXT-12 EXT-13",
            code::STREAM,
            |id| vec![answer(1, id, 7).plus(&[0])],
        ),
        (
            "short_answer_to_an_atomic",
            "EXT-12 EXT-13",
            code::STREAM,
            |id| {
                let whole = answer(1, id, 7);
                let len = whole.len() - 1;
                vec![whole.cut(len)]
            },
        ),
        (
            "answer_to_an_atomic_that_goes_on",
            "EXT-12 EXT-13",
            code::STREAM,
            |id| vec![answer(1, id, 7).more()],
        ),
        (
            "answer_to_an_atomic_at_an_offset",
            "EXT-12",
            code::OFFSET,
            |id| vec![answer(1, id, 7).mo(8)],
        ),
        (
            "answer_to_an_atomic_of_rdmap_version_2",
            "EXT-6",
            code::RDMAP_VERSION,
            |id| vec![answer(1, id, 7).rv(2)],
        ),
    ];
    list.into_iter()
        .map(|(name, rows, code, make)| {
            case(name, rows, move |b| {
                let mut wire = b.begun()?;
                b.clean()?;
                let (identifier, _) = pending(b, &mut wire, 1)?;
                let segments = make(identifier);
                wire.send(&segments)?;
                let [before @ .., bad] = &segments[..] else {
                    return Ok(());
                };
                wire.expect_refusal(code, bad)?;
                if before.is_empty() {
                    b.untouched()?;
                    b.completed(&wire, "flushed")?;
                } else {
                    b.completed(&wire, "success")?;
                }
                b.failed(&wire, code)
            })
        })
        .collect()
}

/// Returns Immediate Data as the device sends it: the verbs fill four of the eight octets.
pub(super) fn immediate(msn: u32, value: [u8; 4]) -> Segment {
    let [c, d, e, f] = value;
    untagged(op::IMMEDIATE, 0, msn, &[c, d, e, f, 0, 0, 0, 0])
}

fn write_with_immediate_data_of_the_device(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.begun()?;
    let data = pattern(5000);
    let region = b.ram;
    b.agent.poke(&region, 0, &data)?;
    let (conn, ram) = (wire.conn, b.ram.number());
    for (msn, (len, flags)) in (1..).zip([(0, "-"), (8, "s"), (5000, "-"), (1442, "u")]) {
        let value = 0x1234_5670 + msn;
        b.agent
            .ask(&format!("imm {conn} {ram} 0 {len} 99 77 {flags} {value}"))?;
        let (first, got) = wire.message()?;
        require!(
            first.op() == op::WRITE && first.stag() == 77 && first.to() == 99,
            "{}",
            first.describe()
        );
        require!(got == data[..len], "data differs");
        let opcode = if flags == "s" {
            op::IMMEDIATE_SE
        } else {
            op::IMMEDIATE
        };
        wire.expect(&immediate(msn, value.to_be_bytes()).opcode(opcode))?;
        if flags != "u" {
            b.completed(&wire, "success")?;
        }
        b.agent.none_yet(&format!("wc {conn} send"))?;
    }
    Ok(())
}

fn immediate_data_of_the_device_keeps_its_place(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.begun()?;
    let (conn, ram) = (wire.conn, b.ram.number());
    b.agent.ask(&format!("send {conn} 5 -"))?;
    b.agent.ask(&format!("imm {conn} {ram} 0 8 99 77 - 7"))?;
    b.agent.ask(&format!("send {conn} 6 -"))?;
    b.agent.ask(&format!("imm {conn} {ram} 0 0 99 77 - 8"))?;
    let ops = [
        op::SEND,
        op::WRITE,
        op::IMMEDIATE,
        op::SEND,
        op::WRITE,
        op::IMMEDIATE,
    ];
    let mut msn = 0;
    for opcode in ops {
        let got = wire.get()?;
        require!(got.op() == opcode, "{}", got.describe());
        if opcode != op::WRITE {
            msn += 1;
            require!(got.msn() == msn, "{}", got.describe());
        }
    }
    let mut last = String::new();
    for _ in 0..4 {
        let event = b.agent.wait(&format!("wc {conn} send * success"))?;
        require!(event[3] > last, "{} behind {last}", event.join(" "));
        last.clone_from(&event[3]);
    }
    b.agent.none_yet(&format!("wc {conn} send"))
}

fn empty_send_with_immediate_is_immediate_data(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.begun()?;
    let conn = wire.conn;
    let list = [
        ("-", op::IMMEDIATE),
        ("s", op::IMMEDIATE_SE),
        ("u", op::IMMEDIATE),
    ];
    for (msn, (flags, opcode)) in (1..).step_by(2).zip(list) {
        b.agent.ask(&format!("sendimm {conn} 0 {msn} {flags}"))?;
        b.agent.ask(&format!("send {conn} 5 -"))?;
        let value = u32::to_be_bytes(msn);
        wire.expect(&immediate(msn, value).opcode(opcode))?;
        let got = wire.get()?;
        require!(
            got.op() == op::SEND && got.msn() == msn + 1,
            "{}",
            got.describe()
        );
        // Both complete as Sends with their octets, in order.
        if flags != "u" {
            b.agent.wait(&format!("wc {conn} send * success 0"))?;
        }
        b.agent.wait(&format!("wc {conn} send * success 5"))?;
        b.agent.none_yet(&format!("wc {conn}"))?;
    }
    Ok(())
}

fn send_with_immediate_and_payload_is_refused(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.begun()?;
    let conn = wire.conn;
    b.agent.ask(&format!("sendimm {conn} 1 7 -"))?;
    b.completed(&wire, "loc_qp_op")?;
    let got = wire.get()?;
    require!(
        got.op() == op::TERMINATE && got.0 == Code(0, 0, got.data()[1]).alone(),
        "{}",
        got.describe()
    );
    wire.ends(End::Graceful)
}

/// Checks that the program sees Immediate Data, and that the receive's buffer is unchanged.
fn told(b: &mut Bench<'_>, wire: &Wire, len: usize, value: [u8; 4]) -> Outcome {
    let event = b.agent.wait(&format!(
        "wc {} imm * success {len} {}",
        wire.conn,
        hex(&value)
    ))?;
    let at = b
        .agent
        .ask(&format!("recvodd {} {}", wire.conn, event[3]))?;
    require!(at == "-1", "the receive buffer was written to at {at}");
    Ok(())
}

fn immediate_data_takes_a_receive(b: &mut Bench<'_>) -> Outcome {
    b.setting("receive_wait", 0)?;
    let mut wire = b.connect()?;
    b.clean()?;
    wire.send(&[
        send(1, b"one"),
        immediate(2, *b"\x01\x02\x03\x04"),
        send(3, b"three"),
        immediate(4, [0; 4]).opcode(op::IMMEDIATE_SE),
    ])?;
    b.received(&wire, b"one")?;
    told(b, &wire, 0, [1, 2, 3, 4])?;
    b.received(&wire, b"three")?;
    told(b, &wire, 0, [0; 4])?;
    b.untouched()?;
    // All four receives are used up.
    b.refuses(&mut wire, code::NO_BUFFER, &send(5, b"five"))
}

fn immediate_data_takes_a_receive_without_room(b: &mut Bench<'_>) -> Outcome {
    b.agent.set(&[("recv_len", 0)])?;
    let mut wire = b.connect()?;
    wire.send(&[immediate(1, *b"abcd")])?;
    told(b, &wire, 0, *b"abcd")
}

fn immediate_data_reports_length_of_write_before_it(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.connect()?;
    let (key, at) = (b.ram.key, b.ram.at);
    wire.send(&[
        write(key, at, &[7; 100]).more(),
        write(key, at + 100, &[7; 28]),
        immediate(1, *b"abcd"),
        write(key, at, &[]),
        immediate(2, *b"efgh"),
        write(key, at, &[7; 9]),
        send(3, b"x"),
        immediate(4, *b"ijkl"),
    ])?;
    told(b, &wire, 128, *b"abcd")?;
    told(b, &wire, 0, *b"efgh")?;
    b.received(&wire, b"x")?;
    told(b, &wire, 0, *b"ijkl")
}

fn immediate_data_of_other_implementations(b: &mut Bench<'_>) -> Outcome {
    // The verbs have four octets, the message eight, and no rule says which four they are.
    let mut wire = b.connect()?;
    for (msn, (octets, value)) in (1..).zip([
        (b"abcd\0\0\0\0", *b"abcd"),
        (b"\0\0\0\0abcd", *b"abcd"),
        (b"abcdefgh", *b"abcd"),
        (b"\0\0\0d\0\0\0h", *b"\0\0\0d"),
    ]) {
        wire.send(&[untagged(op::IMMEDIATE, 0, msn, octets)])?;
        told(b, &wire, 0, value)?;
    }
    Ok(())
}

fn immediate_data_that_loses_octets_is_counted(b: &mut Bench<'_>) -> Outcome {
    const COUNTER: &str = "rx_immediate_truncated";
    let mut wire = b.connect()?;
    let before = b.settled_counter(COUNTER)?;
    wire.send(&[
        untagged(op::IMMEDIATE, 0, 1, b"abcd\0\0\0\0"),
        untagged(op::IMMEDIATE, 0, 2, b"\0\0\0\0abcd"),
        untagged(op::IMMEDIATE, 0, 3, &[0; 8]),
    ])?;
    told(b, &wire, 0, *b"abcd")?;
    told(b, &wire, 0, *b"abcd")?;
    told(b, &wire, 0, [0; 4])?;
    let whole = b.settled_counter(COUNTER)?;
    require!(whole == before, "{} that were told whole", whole - before);
    wire.send(&[untagged(op::IMMEDIATE_SE, 0, 4, b"abcd\0\0\0h")])?;
    told(b, &wire, 0, *b"abcd")?;
    let lost = b.settled_counter(COUNTER)? - whole;
    require!(lost == 1, "{lost} instead of 1");
    Ok(())
}

fn immediate_data_without_a_receive(b: &mut Bench<'_>) -> Outcome {
    b.setting("receive_wait", 0)?;
    b.agent.set(&[("recvs", 0)])?;
    for opcode in [op::IMMEDIATE, op::IMMEDIATE_SE] {
        let mut wire = b.connect()?;
        let bad = immediate(1, *b"abcd").opcode(opcode);
        b.refuses(&mut wire, code::NO_BUFFER, &bad)?;
    }
    Ok(())
}

fn refused_immediate_data_of_the_device(b: &mut Bench<'_>) -> Outcome {
    // The Write completes when TCP has accepted it; the request behind it is flushed.
    let mut wire = b.begun()?;
    let (conn, ram) = (wire.conn, b.ram.number());
    b.agent.ask(&format!("imm {conn} {ram} 0 8 99 77 - 7"))?;
    wire.get()?;
    let got = wire.get()?;
    b.completed(&wire, "success")?;
    pending(b, &mut wire, 1)?;
    terminated(b, &mut wire, code::NO_BUFFER, &got.0, "rem_inv_req")
}

/// Returns the malformed Immediate Data that the device refuses without using a receive.
fn bad_immediates() -> Vec<super::Refusal> {
    let of = |len: usize| untagged(op::IMMEDIATE, 0, 1, &[7; 16][..len]);
    let mut list = vec![
        refused(
            "immediate_data_in_two_segments",
            "EXT-71",
            code::STREAM,
            move |_| of(8).more(),
        ),
        refused(
            "immediate_data_at_an_offset",
            "EXT-71 DDP-36",
            code::OFFSET,
            move |_| of(8).mo(4),
        ),
        refused("immediate_data_out_of_order", "EXT-67", code::MSN, |_| {
            immediate(2, *b"abcd")
        }),
        refused(
            "immediate_data_in_the_read_queue",
            "EXT-68",
            code::QUEUE,
            move |_| of(8).qn(1),
        ),
        refused(
            "solicited_immediate_data_in_the_read_queue",
            "EXT-82",
            code::QUEUE,
            move |_| of(8).opcode(op::IMMEDIATE_SE).qn(1),
        ),
        refused(
            "immediate_data_inside_a_write",
            "EXT-67 DDP-22",
            code::OPCODE,
            |_| immediate(1, *b"abcd"),
        )
        .behind(|b| vec![write(b.ram.key, b.ram.at, &[]).more()]),
    ];
    list.extend([0, 4, 7, 9, 16].map(|len| {
        refused(
            format!("immediate_data_of_{len}_octets"),
            "EXT-69 EXT-71",
            code::STREAM,
            move |_| of(len),
        )
    }));
    list
}

/// Returns the cases for a device whose library cannot report Immediate Data to its consumer.
pub(super) fn where_it_is_not_known() -> Vec<Case> {
    let list = [
        ("immediate_data", immediate(1, [7; 4])),
        (
            "solicited_immediate_data",
            immediate(1, [7; 4]).opcode(op::IMMEDIATE_SE),
        ),
        (
            "long_immediate_data",
            untagged(op::IMMEDIATE, 0, 1, &[7; 9]),
        ),
    ];
    let list = list.into_iter().map(|(name, segment)| {
        refused(
            format!("{name}_where_it_is_not_known"),
            "EXT-4 RDMAP-27",
            code::OPCODE,
            move |_| segment.clone(),
        )
    });
    let mut list: Vec<_> = refusals(list.collect()).collect();
    list.push(
        case(
            "send_with_immediate_where_it_is_not_known",
            "EXT-4 MPA-3 RDMAP-27",
            send_with_immediate_where_it_is_not_known,
        )
        .alone(),
    );
    list
}

/// Whatever the setting, the device neither offers nor accepts what its library cannot report.
fn send_with_immediate_where_it_is_not_known(b: &mut Bench<'_>) -> Outcome {
    b.setting("extensions", 1)?;
    let message = send(1, b"hello").opcode(0xf);
    let (mut wire, request) = b.called()?;
    require!(request.flags & 3 == 0, "flags {:#x}", request.flags);
    b.answer(&mut wire, &request, &reply_to(&request, &[]).plus_flags(2))?;
    b.refuses(&mut wire, code::OPCODE, &message)?;
    let mut wire = b.connect_by(&Start::request(1, &[]).plus_flags(1))?;
    let flags = wire.peer.as_ref().map(|reply| reply.flags);
    require!(flags == Some(flag::CRC), "flags {flags:?}");
    b.refuses(&mut wire, code::OPCODE, &message)
}
