// SPDX-License-Identifier: GPL-2.0

//! Messages that the device initiates, and the answers to its Reads (RFC 5040, sections 4 to 6).

mod refused;

use super::{
    awaited::{
        beside_the_sink,
        brought,
        own_fault,
        refused_here,
        reset,
        send_completes_behind,
        terminated,
        SINK_AT, //
    },
    case,
    code,
    scripts,
    Case, //
};
use crate::{
    bench::{
        Bench, //
    },
    frame::{
        op,
        pattern,
        read,
        read_response,
        send,
        write,
        Depths,
        Read,
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
        frames_of_sends: "RDMAP-1 RDMAP-2 RDMAP-5 RDMAP-9 RDMAP-21 RDMAP-36 RDMAP-87 DDP-25 DDP-29 DDP-30",
        frame_of_send_with_invalidate: "RDMAP-9 RDMAP-22 RDMAP-90",
        long_messages_are_segmented: "DDP-26 DDP-28 DDP-13 DDP-14 DDP-15 DDP-34 DDP-36 DDP-44 DDP-45 RDMAP-3",
        messages_are_sent_in_posted_order: "RDMAP-55 RDMAP-87 RDMAP-116 RDMAP-125 DDP-44",
        frames_of_a_write: "RDMAP-50 RDMAP-57 DDP-21 DDP-38",
        empty_write_of_the_device: "RDMAP-58 DDP-40",
        read_of_the_device: "RDMAP-16 RDMAP-30 RDMAP-65 RDMAP-71 RDMAP-60 RDMAP-74 RDMAP-122 RDMAP-124",
        read_response_octet_by_octet: "RDMAP-122 DDP-4",
        read_response_out_of_order: "RDMAP-77 DDP-39",
        empty_read_response_with_any_stag: "DDP-41 RDMAP-68",
        read_answered_twice: "RDMAP-75",
        second_read_answered_first: "RDMAP-76 RDMAP-77",
        no_more_reads_than_granted: "RDMAP-127 RDMAP-128",
        read_to_peer_that_takes_none_fails_at_once: "RDMAP-127 RDMAP-128",
        queue_drains_until_the_read_is_answered: "DDP-57 RDMAP-131",
        sends_complete_behind_reads: "RDMAP-118 RDMAP-122",
        fenced_send_waits_for_the_read: "RDMAP-115",
        own_fault_sends_no_octet: "RDMAP-140 RDMAP-44 RDMAP-139",
        terminate_fails_a_pending_read: "RDMAP-18 RDMAP-97 RDMAP-133",
        end_of_the_stream_fails_a_pending_read: "RDMAP-99 DDP-64",
        reset_fails_a_pending_read: "RDMAP-99 DDP-3",
        octets_of_a_blocked_peer_arrive_later: "RDMAP-117 DDP-97",
        fault_in_the_middle_of_a_send: "RDMAP-143 RDMAP-100",
        fault_fails_requests_under_way: "RDMAP-12 RDMAP-99 RDMAP-139",
        write_inside_a_read_response: "DDP-22 DDP-44",
        writes_between_read_responses: "RDMAP-104 RDMAP-122",
        buffers_changed_while_they_are_sent: "RDMAP-108 MPA-22",
    ];
    list.extend(refused::cases());
    list
}

fn frames_of_sends(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.begun()?;
    let list = [(0, "-"), (1, "-"), (2, "s"), (3, "u"), (4, "-"), (100, "s")];
    for (msn, (len, flags)) in (1..).zip(list) {
        b.agent.ask(&format!("send {} {len} {flags}", wire.conn))?;
        let got = wire.get()?;
        let opcode = if flags == "s" { op::SEND_SE } else { op::SEND };
        let want = send(msn, got.data()).opcode(opcode);
        require!(
            got.0 == want && got.data().len() == len,
            "{}",
            got.describe()
        );
    }
    Ok(())
}

fn frame_of_send_with_invalidate(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.begun()?;
    for (msn, (flags, opcode)) in (1..).zip([("-", op::SEND_INV), ("s", op::SEND_SE_INV)]) {
        b.agent
            .ask(&format!("sendinv {} 5 0x12345678 {flags}", wire.conn))?;
        let got = wire.get()?;
        let want = send(msn, got.data()).opcode(opcode).inv(0x1234_5678);
        require!(got.0 == want && got.data().len() == 5, "{}", got.describe());
        b.completed(&wire, "success")?;
    }
    Ok(())
}

fn long_messages_are_segmented(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.begun()?;
    for (msn, len) in (1..).zip([1442, 1443, 1460, 5000, 100_000, 1 << 20]) {
        b.agent.ask(&format!("send {} {len} -", wire.conn))?;
        let (first, data) = wire.message()?;
        let want = send(msn, first.data());
        require!(
            first[1..] == want[1..] && data.len() == len,
            "{len}: {}",
            first.describe()
        );
        b.completed(&wire, "success")?;
    }
    Ok(())
}

fn frames_of_a_write(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.begun()?;
    let data = pattern(8192);
    let ram = b.ram;
    b.agent.poke(&ram, 0, &data)?;
    let to = u64::MAX - 5999;
    b.agent.ask(&format!(
        "write {} {} 100 5000 {to} {} -",
        wire.conn,
        ram.number(),
        0xfeed_beef_u32
    ))?;
    let (first, got) = wire.message()?;
    require!(
        first.op() == op::WRITE && first.stag() == 0xfeed_beef && first.to() == to,
        "{}",
        first.describe()
    );
    require!(got == data[100..5100], "data differs");
    Ok(())
}

fn messages_are_sent_in_posted_order(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.begun()?;
    let (conn, ram) = (wire.conn, b.ram.number());
    for to in [1, 2, 3] {
        b.agent.ask(&format!("write {conn} {ram} 0 8 {to} 77 -"))?;
        b.agent.ask(&format!("send {conn} 9 -"))?;
        b.agent.ask(&format!("read {conn} {ram} 0 8 {to} 77 -"))?;
    }
    for n in [1, 2, 3] {
        let (write, send, read) = (wire.get()?, wire.get()?, wire.get()?);
        require!(
            write.op() == op::WRITE && write.to() == n,
            "{}",
            write.describe()
        );
        require!(
            send.op() == op::SEND && u64::from(send.msn()) == n,
            "{}",
            send.describe()
        );
        require!(
            read.op() == op::READ_REQUEST && read.read().source_to == n,
            "{}",
            read.describe()
        );
    }
    Ok(())
}

fn empty_write_of_the_device(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.begun()?;
    b.agent.ask(&format!(
        "write {} {} 0 0 77 88 -",
        wire.conn,
        b.ram.number()
    ))?;
    wire.expect(&write(88, 77, &[]))?;
    b.completed(&wire, "success")
}

/// Takes a Read Request of the device, whose octets go to [`SINK_AT`].
fn pending(b: &mut Bench<'_>, wire: &mut Wire, size: u32) -> Outcome<(Read, u32, Segment)> {
    b.agent.ask(&format!(
        "read {} {} {SINK_AT} {size} 4096 77 -",
        wire.conn,
        b.ram.number()
    ))?;
    let got = wire.get()?;
    let read = got.read();
    require!(
        got.0 == read.segment(got.msn()),
        "Read Request {}",
        got.describe()
    );
    require!(
        read.size == size && read.source == 77 && read.source_to == 4096,
        "{}",
        got.describe()
    );
    let msn = got.msn();
    Ok((read, msn, got.0))
}

/// Returns a part of the Response to a Read.
fn part(read: &Read, offset: u64, data: &[u8]) -> Segment {
    read_response(read.sink, read.sink_to.wrapping_add(offset), data)
}

fn read_of_the_device(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.begun()?;
    let data = pattern(64);
    for msn in 1..4 {
        b.clean()?;
        let (read, number, _) = pending(b, &mut wire, 64)?;
        require!(number == msn, "MSN {number} instead of {msn}");
        wire.send(&[part(&read, 0, &data[..10]).more()])?;
        b.agent.none(&format!("wc {}", wire.conn))?;
        wire.send(&[part(&read, 10, &data[10..])])?;
        brought(b, &wire, &data)?;
    }
    Ok(())
}

fn read_response_octet_by_octet(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.begun()?;
    b.clean()?;
    let (read, ..) = pending(b, &mut wire, 20)?;
    let octets = part(&read, 0, &pattern(20)).fpdu();
    wire.trickle(&octets[..octets.len() - 1])?;
    b.agent.none(&format!("wc {}", wire.conn))?;
    b.untouched()?;
    wire.put(&octets[octets.len() - 1..])?;
    brought(b, &wire, &pattern(20))
}

fn read_response_out_of_order(b: &mut Bench<'_>) -> Outcome {
    // A sender should not do this; the device places segments by their offsets.
    let mut wire = b.begun()?;
    b.clean()?;
    let (read, ..) = pending(b, &mut wire, 64)?;
    let data = pattern(64);
    wire.send(&[
        part(&read, 32, &data[32..]).more(),
        part(&read, 0, &data[..32]),
    ])?;
    brought(b, &wire, &data)
}

fn empty_read_response_with_any_stag(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.begun()?;
    for (stag, to) in [(0x1234_5678, 99), (0, 0), (u32::MAX, u64::MAX)] {
        pending(b, &mut wire, 0)?;
        wire.send(&[read_response(stag, to, &[])])?;
        b.agent
            .wait(&format!("wc {} send * success 0", wire.conn))?;
    }
    Ok(())
}

fn read_answered_twice(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.begun()?;
    let (read, ..) = pending(b, &mut wire, 64)?;
    let answer = part(&read, 0, &[7; 64]);
    wire.send(std::slice::from_ref(&answer))?;
    b.completed(&wire, "success")?;
    b.refuses(&mut wire, code::OPCODE, &answer)
}

fn second_read_answered_first(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.begun()?;
    let (number, second) = (b.ram.number(), b.no_write.number());
    b.clean()?;
    b.agent
        .ask(&format!("read {} {number} 0 8 0 77 -", wire.conn))?;
    b.agent
        .ask(&format!("read {} {second} 0 8 0 77 -", wire.conn))?;
    wire.get()?;
    let later = wire.get()?.read();
    let bad = part(&later, 0, &[7; 8]);
    b.refuses(&mut wire, code::STAG, &bad)?;
    b.untouched()
}

fn no_more_reads_than_granted(b: &mut Bench<'_>) -> Outcome {
    b.agent.set(&[("ord", 8)])?;
    for granted in [1, 3] {
        let mut wire = b.connect_by(&Start::enhanced(Depths::new(granted, 4), &[]))?;
        wire.send(&[write(0, 0, &[])])?;
        for i in 0..8 {
            b.agent.ask(&format!(
                "read {} {} {} 8 {i} 77 -",
                wire.conn,
                b.ram.number(),
                i * 8
            ))?;
        }
        let mut asked = Vec::new();
        for _ in 0..granted {
            asked.push(wire.get()?.read());
        }
        wire.nothing_waits()?;
        for i in 0..8_u16 {
            wire.send(&[part(&asked.remove(0), 0, &[i as u8; 8])])?;
            if i + granted < 8 {
                asked.push(wire.get()?.read());
            }
            b.agent
                .wait(&format!("wc {} send * success 8", wire.conn))?;
        }
        wire.nothing_waits()?;
    }
    Ok(())
}

/// A Read that the peer will never take fails at once.
fn read_to_peer_that_takes_none_fails_at_once(b: &mut Bench<'_>) -> Outcome {
    let ram = b.ram.number();
    for request in [
        format!("read WIRE {ram} 0 8 0 77 -"),
        format!("read WIRE {ram} 0 8 0 77 f"),
        format!("add WIRE {ram} 0 8 0 77 - 1"),
    ] {
        let mut wire = b.connect_by(&Start::enhanced(Depths::new(0, 4), &[]))?;
        wire.send(&[write(0, 0, &[])])?;
        b.agent
            .ask(&request.replace("WIRE", &wire.conn.to_string()))?;
        refused_here(b, &mut wire, "loc_qp_op")?;
    }
    Ok(())
}

/// The program's end waits for the Response. Meanwhile a query says so.
fn queue_drains_until_the_read_is_answered(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.begun()?;
    let (read, ..) = pending(b, &mut wire, 64)?;
    drains(b, &wire, "0")?;
    b.agent.ask(&format!("disconnect {}", wire.conn))?;
    drains(b, &wire, "1")?;
    wire.send(&[part(&read, 0, &[7; 64])])?;
    b.completed(&wire, "success")?;
    drains(b, &wire, "0")?;
    wire.ends(End::Graceful)?;
    b.down(&wire)
}

/// Checks what a query of the program says of its send queue.
fn drains(b: &mut Bench<'_>, wire: &Wire, want: &str) -> Outcome {
    let got = b.agent.ask(&format!("draining {}", wire.conn))?;
    require!(got == want, "sq_draining is {got}, not {want}");
    Ok(())
}

fn sends_complete_behind_reads(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.begun()?;
    let (read, ..) = pending(b, &mut wire, 64)?;
    send_completes_behind(b, &mut wire, part(&read, 0, &[7; 64]), 64)
}

fn fenced_send_waits_for_the_read(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.begun()?;
    let (read, ..) = pending(b, &mut wire, 64)?;
    b.agent.ask(&format!("send {} 10 f", wire.conn))?;
    wire.nothing_waits()?;
    wire.send(&[part(&read, 0, &[7; 32]).more()])?;
    wire.silent()?;
    wire.send(&[part(&read, 32, &[7; 32])])?;
    wire.expect_send(10).map(drop)
}

fn own_fault_sends_no_octet(b: &mut Bench<'_>) -> Outcome {
    // A Send from memory that is not registered.
    own_fault(b, "badsend")
}

fn terminate_fails_a_pending_read(b: &mut Bench<'_>) -> Outcome {
    for (code, status) in [
        (code::SOURCE_STAG, "rem_access"),
        (code::SOURCE_RIGHTS, "rem_access"),
        (code::STREAM, "rem_inv_req"),
    ] {
        let mut wire = b.begun()?;
        let (_, _, request) = pending(b, &mut wire, 8)?;
        terminated(b, &mut wire, code, &request, status)?;
    }
    Ok(())
}

fn end_of_the_stream_fails_a_pending_read(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.begun()?;
    b.clean()?;
    let (read, ..) = pending(b, &mut wire, 64)?;
    wire.send(&[part(&read, 0, &[7; 10]).more()])?;
    wire.half_close()?;
    wire.ends(End::Any)?;
    b.completed(&wire, "flushed")?;
    b.down(&wire)?;
    beside_the_sink(b, 64)
}

fn reset_fails_a_pending_read(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.begun()?;
    pending(b, &mut wire, 64)?;
    reset(b, wire)
}

fn octets_of_a_blocked_peer_arrive_later(b: &mut Bench<'_>) -> Outcome {
    // No octet is lost, and no work request completes before TCP has accepted it. Messages are
    // short compared with what the device gives TCP at once, so some end inside what TCP did not
    // accept.
    const LEN: usize = 20_000;
    const COUNT: usize = 32;
    let mut wire = b.begun()?;
    wire.window(8192)?;
    let before = b.taken_by_tcp(&wire)?;
    for _ in 0..COUNT {
        b.agent.ask(&format!("send {} {LEN} -", wire.conn))?;
    }
    // How many requests had completed when TCP had accepted this many octets.
    let mut told = 0;
    let mut seen = Vec::new();
    let mut ends = vec![0];
    for i in 0..COUNT {
        if i % 4 == 0 {
            b.agent.ask(&format!("poll {}", wire.conn))?;
            while let Ok(event) = b.agent.now(&format!("wc {} send", wire.conn)) {
                require!(event[4] == "success", "{}", event.join(" "));
                told += 1;
            }
            seen.push((told, b.taken_by_tcp(&wire)? - before));
        }
        let (first, data) = wire.message()?;
        require!(
            first.op() == op::SEND && data.len() == LEN,
            "{}",
            first.describe()
        );
        ends.push(wire.received());
    }
    for (told, taken) in &seen {
        require!(
            ends[*told] <= *taken,
            "{told} Sends of {} octets have completed, and TCP has taken {taken}",
            ends[*told]
        );
    }
    require!(
        seen[0].0 < COUNT,
        "TCP has taken all that was posted: {seen:?}"
    );
    for _ in told..COUNT {
        b.completed(&wire, "success")?;
    }
    Ok(())
}

fn fault_in_the_middle_of_a_send(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.begun()?;
    wire.window(8192)?;
    b.agent.ask(&format!("send {} 4000000 -", wire.conn))?;
    wire.get()?;
    let bad = write(b.ram.key ^ 1, b.ram.at, b"x");
    wire.send(std::slice::from_ref(&bad))?;
    b.agent
        .wait(&format!("event {} QP_ACCESS_ERR", wire.conn))?;
    let octets = wire.expect_terminate_behind(op::SEND, &code::STAG.answer(&bad))?;
    require!(octets < 4_000_000 - 1500, "the whole Send went out first");
    b.completed(&wire, "flushed")
}

fn fault_fails_requests_under_way(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.begun()?;
    pending(b, &mut wire, 64)?;
    b.agent.ask(&format!("send {} 10 f", wire.conn))?;
    b.agent.ask(&format!("send {} 20 f", wire.conn))?;
    let bad = send(9, b"x");
    wire.send(std::slice::from_ref(&bad))?;
    wire.expect_refusal(code::MSN, &bad)?;
    for _ in 0..3 {
        b.completed(&wire, "flushed")?;
    }
    b.failed(&wire, code::MSN)?;
    b.flushed(&wire, 4)
}

fn write_inside_a_read_response(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.begun()?;
    let (read, ..) = pending(b, &mut wire, 64)?;
    let bad = write(b.ram.key, b.ram.at, b"x");
    wire.send(&[part(&read, 0, &[7; 32]).more(), bad.clone()])?;
    wire.expect_refusal(code::OPCODE, &bad)?;
    b.completed(&wire, "flushed")?;
    b.failed(&wire, code::OPCODE)
}

fn writes_between_read_responses(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.begun()?;
    b.clean()?;
    let (read, ..) = pending(b, &mut wire, 16)?;
    let no_read = b.no_read;
    wire.send(&[
        write(no_read.key, no_read.at, b"between"),
        part(&read, 0, &[7; 16]),
    ])?;
    brought(b, &wire, &[7; 16])?;
    let memory = b.agent.peek(&no_read, 0, 7)?;
    require!(memory == b"between", "{memory:?}");
    Ok(())
}

fn buffers_changed_while_they_are_sent(b: &mut Bench<'_>) -> Outcome {
    // The contents are arbitrary, but complete, and `get` checks the CRC of each FPDU.
    const LEN: usize = 8192;
    let mut wire = b.begun()?;
    let (conn, ram, key, at) = (wire.conn, b.ram.number(), b.ram.key, b.ram.at);
    let mut changed = 0;
    for (whose, opcode) in [
        ("-", op::SEND),
        (&*ram.to_string(), op::WRITE),
        (&*ram.to_string(), op::READ_RESPONSE),
    ] {
        b.agent.ask(&format!("overwrite {whose}"))?;
        for _ in 0..200 {
            match opcode {
                op::SEND => b.agent.ask(&format!("send {conn} {LEN} -")).map(drop)?,
                op::WRITE => b
                    .agent
                    .ask(&format!("write {conn} {ram} 0 {LEN} 64 77 -"))
                    .map(drop)?,
                _ => {
                    let msn = wire.next_read();
                    wire.send(&[read(msn, LEN as u32, key, at)])?;
                }
            }
            let (first, data) = wire.message()?;
            require!(
                first.op() == opcode && data.len() == LEN,
                "{} octets of {}",
                data.len(),
                first.describe()
            );
            changed += u32::from(data.iter().any(|octet| *octet != data[0]));
        }
        b.agent.ask("overwrite off")?;
    }
    // If no buffer was seen in the middle of a change, the test proves nothing.
    require!(
        changed > 30,
        "only {changed} messages were changed while they left"
    );
    b.works(&mut wire)
}
