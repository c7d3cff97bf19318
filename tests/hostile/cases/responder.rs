// SPDX-License-Identifier: GPL-2.0

//! Start-up, the device as Responder (RFC 5044, section 7.1; RFC 6581, section 9).

use super::{
    case,
    code,
    rtr,
    scripts,
    Case, //
};
use crate::{
    bench::{
        Bench,
        RECEIVES, //
    },
    frame::{
        flag,
        hex,
        pattern,
        read,
        send,
        write,
        Depths,
        Rtr,
        Segment,
        Start,
        REPLY_KEY,
        REQUEST_KEY, //
    },
    wire::{
        fail,
        require,
        End,
        Outcome,
        Wire, //
    }, //
};

pub(super) fn cases() -> Vec<Case> {
    let mut list = scripts![
        responder_is_silent_until_asked: "MPA-1",
        plain_start_up: "MPA-1 MPA-11 MPA-15 MPA-33",
        reserved_flags_are_neither_checked_nor_echoed: "MPA-3",
        enhanced_flag_means_nothing_in_revision_1: "MPA-3 MPA-32",
        reject_in_a_request_is_ignored: "MPA-4",
        request_octet_by_octet: "MPA-6",
        request_in_two_pieces: "MPA-6",
        key_wrong_at_any_octet: "MPA-2",
        wrong_mpa_key_is_refused_before_the_rest: "MPA-2",
        fpdu_behind_the_request: "MPA-7",
        octet_behind_the_request: "MPA-7",
        second_request_behind_the_request: "MPA-7",
        request_cut_off_by_the_end: "MPA-2 MPA-30",
        request_cut_off_by_a_reset: "MPA-2 MPA-30",
        end_behind_the_request: "MPA-7 DDP-9",
        reset_behind_the_request: "MPA-30 DDP-9",
        end_behind_the_reply: "DDP-9 RDMAP-131",
        reset_behind_the_reply: "DDP-63 RDMAP-131",
        reject_carries_private_data: "MPA-4 MPA-5",
        enhanced_reject_carries_private_data: "MPA-4 MPA-33",
        enhanced_start_up: "MPA-32 MPA-33 MPA-36",
        revision_2_without_enhanced_data: "MPA-34",
        depths_without_negotiation: "MPA-37",
        ird_alone_without_negotiation: "MPA-37",
        ord_alone_without_negotiation: "MPA-37",
        responder_waits_for_the_first_fpdu: "MPA-9",
        bad_first_fpdu_starts_no_sending: "MPA-9 MPA-20",
        empty_fpdu_as_the_first_one: "MPA-9 MPA-13",
        many_start_ups_at_once: "MPA-8",
    ];
    for key in [
        REPLY_KEY,
        b"MPA ID Req frame",
        b"GET / HTTP/1.1\r\n",
        &[0; 16],
        &[0xff; 16],
    ] {
        let name = format!("request_with_key_{}", hex(&key[..12]));
        list.push(case(name, "MPA-2 MPA-10", move |b| {
            refused_request(b, &Start::request(1, &[]).key(key))
        }));
    }
    for rev in [0, 3, 4, 127, 255] {
        list.push(case(
            format!("request_of_revision_{rev}"),
            "MPA-2",
            move |b| refused_request(b, &Start::request(rev, &[])),
        ));
    }
    for length in [513, 0x7fff, 0xffff] {
        list.push(case(
            format!("request_with_{length}_octets_announced"),
            "MPA-5 MPA-2",
            move |b| refused_request(b, &Start::request(1, &[]).length(length)),
        ));
    }
    for length in 0..4 {
        list.push(case(
            format!("enhanced_request_of_{length}_octets"),
            "MPA-35",
            move |b| {
                let data = vec![0; length];
                refused_request(b, &Start::request(2, &data).plus_flags(flag::ENHANCED))
            },
        ));
    }
    for len in [0, 1, 3, 4, 127, 254, 255, 256, 257, 508, 512] {
        list.push(case(
            format!("private_data_of_{len}_octets"),
            "MPA-5",
            move |b| private_data(b, &Start::request(1, &pattern(len))),
        ));
    }
    for len in [0, 1, 251, 252, 255, 256, 508] {
        list.push(case(
            format!("enhanced_private_data_of_{len}_octets"),
            "MPA-5 MPA-32",
            move |b| private_data(b, &Start::enhanced(Depths::new(4, 4), &pattern(len))),
        ));
    }
    for len in [0, 1, 4, 196] {
        list.push(case(
            format!("accepted_with_{len}_octets"),
            "MPA-5 MPA-32",
            move |b| accepted_with(b, &pattern(len)),
        ));
    }
    for (ird, ord) in [
        (0, 0),
        (1, 1),
        (0, 1),
        (1, 0),
        (3, 200),
        (255, 255),
        (256, 256),
        (16382, 16382),
    ] {
        list.push(case(
            format!("depths_{ird}_and_{ord}"),
            "MPA-36 RDMAP-126",
            move |b| depths(b, ird, ord),
        ));
    }
    list.extend(rtr::cases());
    for (setting, wish) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        for rev in [1, 2] {
            let name = format!(
                "crc_{}_asked_by_the_peer_{}_in_revision_{rev}",
                if setting == 1 { "on" } else { "off" },
                if wish == 1 { "too" } else { "not" }
            );
            let run = move |b: &mut Bench<'_>| crc(b, setting, wish, rev);
            let it = case(name, "MPA-14 MPA-16 MPA-48", run);
            list.push(if setting == 1 { it } else { it.alone() });
        }
    }
    list.push(
        case(
            "send_with_immediate_is_taken_by_setting",
            "MPA-3 RDMAP-27",
            send_with_immediate_is_taken_by_setting,
        )
        .alone(),
    );
    list
}

/// Checks that the device closes the connection without sending anything, and that no program sees
/// it.
fn refused_request(b: &mut Bench<'_>, request: &Start) -> Outcome {
    let mut wire = b.open()?;
    wire.put(&request.octets())?;
    wire.ends(End::Any)?;
    b.agent.none_yet("request")
}

fn responder_is_silent_until_asked(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.open()?;
    wire.silent()?;
    wire.silent()
}

fn plain_start_up(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.open()?;
    wire.put(&Start::request(1, &[]).octets())?;
    let reply = wire.take(20)?;
    require!(
        reply == Start::reply(1, &[]).octets(),
        "Reply {}",
        hex(&reply)
    );
    wire.silent()?;
    b.agent.wait("established").map(drop)
}

fn reserved_flags_are_neither_checked_nor_echoed(b: &mut Bench<'_>) -> Outcome {
    for bits in [1, 2, 3, 8, 12, 15] {
        let mut wire = b.connect_by(&Start::request(1, &[]).plus_flags(bits))?;
        is_plain(&wire)?;
        b.works(&mut wire)?;
    }
    Ok(())
}

/// The device accepts the offer, and then the message, only where the setting is on.
fn send_with_immediate_is_taken_by_setting(b: &mut Bench<'_>) -> Outcome {
    for (value, bits) in [(0, 1), (1, 0), (1, 2), (1, 14), (1, 1), (1, 15)] {
        b.setting("extensions", value)?;
        let mut wire = b.connect_by(&Start::request(1, &[]).plus_flags(bits))?;
        let agreed = value == 1 && bits & 1 == 1;
        let expected = flag::CRC | if agreed { 2 } else { 0 };
        let flags = wire.peer.as_ref().map(|reply| reply.flags);
        require!(flags == Some(expected), "flags {flags:?} for {bits:#x}");
        let message = send(1, b"hello").opcode(0xf).inv(0x0102_0304);
        if agreed {
            wire.send(&[message, send(2, b"").opcode(0xf).rdmap_reserved(1)])?;
            let told = format!(
                "wc {} recv+01020304 * success 5 {}",
                wire.conn,
                hex(b"hello")
            );
            b.agent.wait(&told)?;
            b.agent
                .wait(&format!("wc {} recv+00000000 * success 0", wire.conn))?;
            b.works(&mut wire)?;
        } else {
            b.refuses(&mut wire, code::OPCODE, &message)?;
        }
    }
    Ok(())
}

/// Checks that the Reply has the C flag and no other.
fn is_plain(wire: &Wire) -> Outcome {
    let flags = wire.peer.as_ref().map(|reply| reply.flags);
    require!(flags == Some(flag::CRC), "flags {flags:?}");
    Ok(())
}

fn enhanced_flag_means_nothing_in_revision_1(b: &mut Bench<'_>) -> Outcome {
    let data = Depths::new(3, 3).octets();
    let request = Start::request(1, &data).plus_flags(flag::ENHANCED);
    let mut wire = b.open()?;
    let reply = wire.start(&request)?;
    require!(
        reply.rev == 1 && reply.flags == flag::CRC && reply.length == 0,
        "{reply:?}"
    );
    b.agent.wait(&format!("request * {}", hex(&data)))?;
    b.works(&mut wire)
}

fn reject_in_a_request_is_ignored(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.connect_by(&Start::request(1, &[]).plus_flags(flag::REJECT))?;
    is_plain(&wire)?;
    b.works(&mut wire)
}

fn request_octet_by_octet(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.open()?;
    wire.trickle(&Start::request(1, b"hello").octets())?;
    wire.start_frame()?;
    b.agent.wait(&format!("request * {}", hex(b"hello")))?;
    b.works(&mut wire)
}

fn request_in_two_pieces(b: &mut Bench<'_>) -> Outcome {
    let octets = Start::enhanced(Depths::new(2, 2), b"hello").octets();
    for cut in 1..octets.len() {
        let mut wire = b.open()?;
        wire.put(&octets[..cut])?;
        wire.put(&octets[cut..])?;
        wire.start_frame()?;
        b.agent.wait(&format!("request * {}", hex(b"hello")))?;
    }
    Ok(())
}

fn key_wrong_at_any_octet(b: &mut Bench<'_>) -> Outcome {
    for at in 0..16 {
        let mut key = *REQUEST_KEY;
        key[at] ^= 0x20;
        refused_request(b, &Start::request(1, &[]).key(&key))?;
    }
    Ok(())
}

fn wrong_mpa_key_is_refused_before_the_rest(b: &mut Bench<'_>) -> Outcome {
    for octets in [&b"G"[..], b"MPA ID Rex", b"GET / HTTP/1.0\r\n"] {
        let mut wire = b.open()?;
        wire.put(octets)?;
        wire.ends(End::Any)?;
    }
    Ok(())
}

/// Sends octets behind the Request, which the Initiator may not do before the Reply.
fn behind_the_request(b: &mut Bench<'_>, octets: &[u8]) -> Outcome {
    b.agent.set(&[("auto", 0)])?;
    let mut wire = b.open()?;
    wire.put(&[&Start::request(1, &[]).octets()[..], octets].concat())?;
    wire.ends(End::Any)?;
    b.agent.none_yet("established")
}

fn fpdu_behind_the_request(b: &mut Bench<'_>) -> Outcome {
    behind_the_request(b, &send(1, b"early").fpdu())
}

fn octet_behind_the_request(b: &mut Bench<'_>) -> Outcome {
    behind_the_request(b, &[0])
}

fn second_request_behind_the_request(b: &mut Bench<'_>) -> Outcome {
    behind_the_request(b, &Start::request(1, &[]).octets())
}

fn request_cut_off_by_the_end(b: &mut Bench<'_>) -> Outcome {
    let octets = Start::request(1, b"data").octets();
    for len in 0..octets.len() {
        let mut wire = b.open()?;
        wire.put(&octets[..len])?;
        wire.half_close()?;
        wire.ends(End::Any)?;
    }
    b.agent.none_yet("request")
}

fn request_cut_off_by_a_reset(b: &mut Bench<'_>) -> Outcome {
    let octets = Start::request(1, b"data").octets();
    for len in [0, 1, 15, 16, 19, 20, 23] {
        let mut wire = b.open()?;
        wire.put(&octets[..len])?;
        wire.reset()?;
    }
    b.agent.none("request")
}

/// The peer goes before the program accepts; the connection fails.
fn gone_before_the_answer(b: &mut Bench<'_>, reset: bool) -> Outcome {
    b.agent.set(&[("auto", 0)])?;
    let mut wire = b.open()?;
    wire.put(&Start::request(1, &[]).octets())?;
    let conn = b.agent.wait("request")?.swap_remove(1);
    if reset {
        wire.reset()?;
    } else {
        wire.half_close()?;
        wire.ends(End::Any)?;
    }
    let answer = b.agent.try_ask(&format!("accept {conn}"))?;
    if answer == "= ok" {
        b.agent.wait(&format!("disconnected {conn}"))?;
        for _ in 0..RECEIVES {
            b.agent.wait(&format!("wc {conn} recv * flushed"))?;
        }
    }
    b.agent.none_yet(&format!("wc {conn} recv * success"))
}

fn end_behind_the_request(b: &mut Bench<'_>) -> Outcome {
    gone_before_the_answer(b, false)
}

fn reset_behind_the_request(b: &mut Bench<'_>) -> Outcome {
    gone_before_the_answer(b, true)
}

fn end_behind_the_reply(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.connect()?;
    wire.half_close()?;
    wire.ends(End::Graceful)?;
    b.down(&wire)?;
    b.flushed(&wire, 4)
}

fn reset_behind_the_reply(b: &mut Bench<'_>) -> Outcome {
    let wire = b.connect()?;
    b.loses(wire)
}

fn reject_carries_private_data(b: &mut Bench<'_>) -> Outcome {
    b.agent.set(&[("auto", 2)])?;
    for data in [&b""[..], b"n", b"no, thank you", &pattern(148)] {
        b.agent.data(data)?;
        let mut wire = b.open()?;
        wire.put(&Start::request(1, &[]).octets())?;
        let reply = wire.start_frame()?;
        let want = Start::reply(1, data).plus_flags(flag::REJECT);
        require!(reply == want, "{reply:?}");
        wire.ends(End::Graceful)?;
    }
    Ok(())
}

fn enhanced_reject_carries_private_data(b: &mut Bench<'_>) -> Outcome {
    b.agent.set(&[("auto", 2)])?;
    b.agent.data(b"no")?;
    let mut wire = b.open()?;
    wire.put(&Start::enhanced(Depths::new(1, 1), &[]).octets())?;
    let reply = wire.start_frame()?;
    require!(
        reply.flags == flag::CRC | flag::REJECT | flag::ENHANCED && reply.rev == 2,
        "{reply:?}"
    );
    require!(reply.private() == b"no", "{reply:?}");
    wire.ends(End::Graceful)
}

/// iw_cm can carry 255 octets of private data: the device reports that many, and more do not make
/// the connection fail.
fn private_data(b: &mut Bench<'_>, request: &Start) -> Outcome {
    let mut wire = b.open()?;
    wire.start(request)?;
    let private = request.private();
    let handed_up = &private[..private.len().min(255)];
    let event = b.agent.wait("request")?;
    require!(
        event[2] == hex(handed_up),
        "{} octets came as {}",
        private.len(),
        event[2]
    );
    b.works(&mut wire)
}

fn accepted_with(b: &mut Bench<'_>, data: &[u8]) -> Outcome {
    b.agent.data(data)?;
    for request in [
        Start::request(1, &[]),
        Start::enhanced(Depths::new(4, 4), &[]),
    ] {
        let mut wire = b.connect_by(&request)?;
        let private = wire.peer.as_ref().map(|reply| reply.private().to_vec());
        require!(private.as_deref() == Some(data), "private data {private:?}");
        b.works(&mut wire)?;
    }
    Ok(())
}

fn enhanced_start_up(b: &mut Bench<'_>) -> Outcome {
    b.agent.set(&[("ird", 3), ("ord", 5)])?;
    b.agent.data(b"pd")?;
    let mut wire = b.open()?;
    let reply = wire.start(&Start::enhanced(Depths::new(7, 2), b"ULP data"))?;
    // The program sees the peer's ORD as its inbound depth, and the peer's IRD as its outbound
    // depth.
    b.agent
        .wait(&format!("request * {} 2 7", hex(b"ULP data")))?;
    require!(
        reply.rev == 2 && reply.flags == flag::CRC | flag::ENHANCED && reply.private() == b"pd",
        "{reply:?}"
    );
    let Some(got) = reply.depths() else {
        fail!("no enhanced data");
    };
    require!(
        !got.peer_to_peer && got.rtr == Rtr::NONE,
        "peer-to-peer although not asked for"
    );
    require!(
        (2..=3).contains(&got.ird),
        "IRD {} for an ORD of 2",
        got.ird
    );
    require!(got.ord <= 5, "ORD {} beyond what the program has", got.ord);
    b.works(&mut wire)
}

fn revision_2_without_enhanced_data(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.open()?;
    let reply = wire.start(&Start::request(2, b"just data"))?;
    b.agent.wait(&format!("request * {}", hex(b"just data")))?;
    require!(
        reply.flags & flag::ENHANCED == 0,
        "enhanced Reply to a plain Request"
    );
    b.works(&mut wire)
}

const OPEN: u16 = 0x3fff;

fn depths_without_negotiation(b: &mut Bench<'_>) -> Outcome {
    left_open(b, OPEN, OPEN)
}

fn ird_alone_without_negotiation(b: &mut Bench<'_>) -> Outcome {
    left_open(b, OPEN, 2)
}

fn ord_alone_without_negotiation(b: &mut Bench<'_>) -> Outcome {
    left_open(b, 2, OPEN)
}

/// Checks that a depth which the Request leaves open is left open in the Reply.
fn left_open(b: &mut Bench<'_>, ird: u16, ord: u16) -> Outcome {
    let mut wire = b.open()?;
    let reply = wire.start(&Start::enhanced(Depths::new(ird, ord), &[]))?;
    let Some(got) = reply.depths() else {
        fail!("no enhanced data");
    };
    require!((got.ird == OPEN) == (ord == OPEN), "IRD {}", got.ird);
    require!((got.ord == OPEN) == (ird == OPEN), "ORD {}", got.ord);
    b.works(&mut wire)
}

fn depths(b: &mut Bench<'_>, ird: u16, ord: u16) -> Outcome {
    let mut wire = b.open()?;
    let reply = wire.start(&Start::enhanced(Depths::new(ird, ord), &[]))?;
    let Some(got) = reply.depths() else {
        fail!("no enhanced data");
    };
    require!(got.ord <= ird, "ORD {} for an IRD of {ird}", got.ord);
    require!(got.ird <= ord.min(4), "IRD {} for an ORD of {ord}", got.ird);
    wire.conn = established(b)?;
    wire.send(&[send(1, b"x")])?;
    b.received(&wire, b"x")?;
    // Sends as many Reads as were granted at once.
    let reads: Vec<Segment> = (0..got.ird)
        .map(|_| read(wire.next_read(), 1, b.ram.key, b.ram.at))
        .collect();
    wire.send(&reads)?;
    for _ in reads {
        wire.get()?;
    }
    wire.silent()
}

/// Returns the number of the connection that has come up.
pub(super) fn established(b: &Bench<'_>) -> Outcome<u32> {
    let event = b.agent.wait("established")?;
    Ok(event[1].parse().unwrap_or(u32::MAX))
}

fn responder_waits_for_the_first_fpdu(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.connect()?;
    b.agent.ask(&format!("send {} 100 -", wire.conn))?;
    wire.silent()?;
    wire.silent()?;
    wire.send(&[write(0, 0, &[])])?;
    wire.expect_send(100).map(drop)
}

fn bad_first_fpdu_starts_no_sending(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.connect()?;
    b.agent.ask(&format!("send {} 100 -", wire.conn))?;
    wire.put(&write(0, 0, &[]).bad_crc(1))?;
    wire.expect_terminate(&code::CRC.alone())?;
    b.failed(&wire, code::CRC)?;
    b.completed(&wire, "flushed")
}

fn empty_fpdu_as_the_first_one(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.connect()?;
    b.agent.ask(&format!("send {} 100 -", wire.conn))?;
    wire.send(&[Segment::raw(vec![])])?;
    wire.expect_send(100).map(drop)
}

fn many_start_ups_at_once(b: &mut Bench<'_>) -> Outcome {
    let begin = |b: &Bench<'_>, number| -> Outcome<Vec<Wire>> {
        let mut wires = Vec::new();
        for _ in 0..number {
            let mut wire = b.open()?;
            wire.put(b"MPA ID Req")?;
            wires.push(wire);
        }
        Ok(wires)
    };
    let _unfinished = begin(b, 80)?;
    b.serves()?;
    // A few at a time, since the device resets a connection without a Request after five seconds.
    for _ in 0..4 {
        for mut wire in begin(b, 5)? {
            wire.put(&Start::request(1, &[]).octets()[10..])?;
            wire.start_frame()?;
        }
    }
    Ok(())
}

/// Checks that CRCs are in use if either side wants them.
fn crc(b: &mut Bench<'_>, setting: u32, wish: u8, rev: u8) -> Outcome {
    if setting != 1 {
        b.setting("crc", setting)?;
    }
    let on = setting == 1 || wish == 1;
    let request = Start::request(rev, &[]).flags(flag::CRC * wish);
    let mut wire = b.connect_by(&request)?;
    let said = wire
        .peer
        .as_ref()
        .is_some_and(|reply| reply.flags & flag::CRC != 0);
    require!(said == on, "the Reply has C={said}");
    if on {
        b.works(&mut wire)?;
        wire.put(&send(1, b"x").bad_crc(1))?;
        return wire.expect_terminate(&code::CRC.alone());
    }
    wire.put(&send(1, b"unchecked").without_crc())?;
    b.received(&wire, b"unchecked")?;
    wire.put(&write(b.ram.key, b.ram.at, b"abcd").without_crc())?;
    wire.put(&read(1, 4, b.ram.key, b.ram.at).without_crc())?;
    wire.expect(&crate::frame::response(b"abcd"))
}
