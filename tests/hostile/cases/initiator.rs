// SPDX-License-Identifier: GPL-2.0

//! Start-up, the device as Initiator (RFC 5044, section 7.1; RFC 6581, section 9).

mod rtr;

use std::env;

use super::{
    case,
    code,
    scripts,
    Case, //
};
use crate::{
    bench::{
        is_enhanced,
        reply_to,
        Bench, //
    },
    frame::{
        flag,
        hex,
        op,
        pattern,
        read,
        response,
        send,
        write,
        Code,
        Depths,
        Rtr,
        Segment,
        Start,
        REQUEST_KEY, //
    },
    wire::{
        fail,
        require,
        End,
        Outcome, //
    }, //
};
use rtr::{
    rtr_comes_before_data,
    rtr_kinds,
    rtr_read_is_answered_with_any_stag,
    rtr_read_is_answered_with_octets, //
};

pub(super) fn cases() -> Vec<Case> {
    let mut list = scripts![
        request_of_the_device: "MPA-1 MPA-3 MPA-4 MPA-15 MPA-32 MPA-36",
        device_is_silent_behind_its_request: "MPA-1 MPA-7",
        reply_octet_by_octet: "MPA-6",
        reply_in_two_pieces: "MPA-6",
        revision_1_reply: "MPA-33 MPA-34",
        plain_reply_of_revision_2: "MPA-34",
        rejection_is_reported_with_its_private_data: "MPA-4",
        plain_rejection: "MPA-4 MPA-34",
        connect_without_listener_is_refused: "MPA-2",
        end_instead_of_a_reply: "MPA-2 MPA-47",
        reset_instead_of_a_reply: "MPA-2 MPA-47",
        request_closed_by_peer_is_not_repeated: "MPA-47",
        request_is_answered_by_a_request: "MPA-10 MPA-2",
        reply_with_another_key: "MPA-2",
        reply_with_the_banner_of_another_protocol: "MPA-2",
        reply_cut_off_by_the_end: "MPA-2 MPA-30",
        reply_cut_off_by_a_reset: "MPA-2 MPA-30",
        end_right_behind_the_reply: "DDP-9",
        reset_right_behind_the_reply: "DDP-9",
        fpdu_behind_the_reply: "MPA-7 MPA-9",
        octet_behind_the_reply: "MPA-7 MPA-9",
        reserved_flags_of_a_reply: "MPA-3",
        reply_asks_for_more_than_the_initiator_serves: "MPA-38",
        reply_asks_for_exactly_the_depth_of_the_initiator: "MPA-36 MPA-38",
        reply_leaves_depths_open: "MPA-37",
        reply_lowers_the_initiators_reads: "MPA-36 RDMAP-128",
        rtr_comes_before_data: "MPA-40",
        rtr_read_is_answered_with_octets: "MPA-42 RDMAP-77",
        rtr_read_is_answered_with_any_stag: "MPA-42 DDP-41",
        faults_of_the_peer_as_responder: "RDMAP-136 DDP-76",
        markers_wanted_by_the_reply: "MPA-23 MPA-24 MPA-48",
    ];
    for len in [0, 1, 254, 255, 256, 512] {
        list.push(case(
            format!("reply_with_{len}_octets"),
            "MPA-5 MPA-33",
            move |b| {
                let (mut wire, _) = b.called()?;
                let data = pattern(len);
                wire.put(&Start::reply(1, &data).octets())?;
                told(b, wire.conn, &data)
            },
        ));
    }
    for len in [0, 1, 251, 252, 255, 256, 508] {
        list.push(case(
            format!("enhanced_reply_with_{len}_octets"),
            "MPA-5 MPA-32",
            move |b| {
                let (mut wire, request) = b.called()?;
                let data = pattern(len);
                wire.put(&reply_to(&request, &data).octets())?;
                told(b, wire.conn, &data)
            },
        ));
    }
    for length in 0..4 {
        list.push(case(
            format!("enhanced_reply_of_{length}_octets"),
            "MPA-35",
            move |b| {
                let data = vec![0; length];
                let reply = Start::reply(2, &data).plus_flags(flag::ENHANCED);
                failed_start_up(b, &reply.octets())
            },
        ));
    }
    for rev in [0, 3, 255] {
        list.push(case(
            format!("reply_of_revision_{rev}"),
            "MPA-2",
            move |b| failed_start_up(b, &Start::reply(rev, &[]).octets()),
        ));
    }
    for length in [513, 0xffff] {
        list.push(case(
            format!("reply_with_{length}_octets_announced"),
            "MPA-2 MPA-5",
            move |b| failed_start_up(b, &Start::reply(1, &[]).length(length).octets()),
        ));
    }
    for kinds in 0..8 {
        list.push(case(
            format!(
                "reply_takes_rtr_kinds_{}_{}_{}",
                kinds & 1,
                (kinds >> 1) & 1,
                kinds >> 2
            ),
            "MPA-40 MPA-43 MPA-44",
            move |b| rtr_kinds(b, true, Rtr::of(kinds)),
        ));
    }
    list.push(case(
        "reply_does_not_want_peer_to_peer",
        "MPA-39 MPA-43",
        |b| rtr_kinds(b, false, Rtr::NONE),
    ));
    for (setting, wish) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let name = format!(
            "crc_{}_granted_by_the_peer_{}",
            if setting == 1 { "on" } else { "off" },
            if wish == 1 { "too" } else { "not" }
        );
        let it = case(name, "MPA-14 MPA-16", move |b| crc(b, setting, wish));
        list.push(if setting == 1 { it } else { it.alone() });
    }
    list.extend([
        case("revision_1_by_setting", "MPA-33", revision_1_by_setting).alone(),
        case(
            "reply_of_a_higher_revision_than_the_request",
            "MPA-2 MPA-33",
            |b| {
                b.setting("mpa_rev", 1)?;
                failed_start_up(b, &Start::enhanced_reply(Depths::new(1, 1), &[]).octets())
            },
        )
        .alone(),
        case(
            "send_with_immediate_is_offered_by_setting",
            "MPA-3 RDMAP-27",
            send_with_immediate_is_offered_by_setting,
        )
        .alone(),
        case("peer_to_peer_by_setting", "MPA-39", peer_to_peer_by_setting).alone(),
        case(
            "without_peer_to_peer_no_rtr_comes",
            "MPA-39 MPA-40",
            without_peer_to_peer_no_rtr_comes,
        )
        .alone(),
    ]);
    list
}

/// Checks that the program sees the connection come up, with as much private data as iw_cm can
/// carry.
fn told(b: &mut Bench<'_>, conn: u32, data: &[u8]) -> Outcome {
    let event = b.agent.wait(&format!("established {conn}"))?;
    let handed_up = &data[..data.len().min(255)];
    require!(
        event[2] == hex(handed_up),
        "{} octets came as {}",
        data.len(),
        event[2]
    );
    Ok(())
}

/// Answers the Request with octets that are not a Reply; checks that the device closes the
/// connection without sending anything.
fn failed_start_up(b: &mut Bench<'_>, octets: &[u8]) -> Outcome {
    let (mut wire, _) = b.called()?;
    wire.put(octets)?;
    wire.ends(End::Any)?;
    b.start_up_failed(wire.conn)
}

fn request_of_the_device(b: &mut Bench<'_>) -> Outcome {
    b.agent.data(b"to you")?;
    b.agent.set(&[("ird", 6), ("ord", 3)])?;
    let (mut wire, request) = b.called()?;
    require!(request.rev == 2, "revision {}", request.rev);
    require!(
        request.flags == flag::CRC | flag::ENHANCED | flag::FEATURES,
        "flags {:#x}",
        request.flags
    );
    require!(request.private() == b"to you", "{request:?}");
    let Some(depths) = request.depths() else {
        fail!("no enhanced data");
    };
    require!(
        depths.ird == 6 && depths.ord == 3,
        "IRD {} ORD {}",
        depths.ird,
        depths.ord
    );
    require!(
        depths.peer_to_peer && (depths.rtr.write || depths.rtr.read),
        "{depths:?}"
    );
    wire.silent()
}

fn device_is_silent_behind_its_request(b: &mut Bench<'_>) -> Outcome {
    let (mut wire, _) = b.called()?;
    wire.silent()?;
    wire.silent()?;
    b.agent.none_yet(&format!("established {}", wire.conn))
}

fn reply_octet_by_octet(b: &mut Bench<'_>) -> Outcome {
    let (mut wire, request) = b.called()?;
    wire.trickle(&reply_to(&request, b"a reply").octets())?;
    told(b, wire.conn, b"a reply")
}

fn reply_in_two_pieces(b: &mut Bench<'_>) -> Outcome {
    for cut in [1, 8, 15, 16, 17, 18, 19, 20, 21, 23, 24] {
        let (mut wire, request) = b.called()?;
        let octets = reply_to(&request, b"x").octets();
        wire.put(&octets[..cut])?;
        wire.put(&octets[cut..])?;
        told(b, wire.conn, b"x")?;
    }
    Ok(())
}

/// Checks that the negotiated stream carries data both ways.
fn carries_data(b: &mut Bench<'_>, reply: &Start) -> Outcome {
    let (mut wire, request) = b.called()?;
    b.answer(&mut wire, &request, reply)?;
    b.agent.ask(&format!("send {} 10 -", wire.conn))?;
    wire.expect_send(10)?;
    b.works(&mut wire)
}

fn revision_1_reply(b: &mut Bench<'_>) -> Outcome {
    carries_data(b, &Start::reply(1, b"old"))
}

fn plain_reply_of_revision_2(b: &mut Bench<'_>) -> Outcome {
    carries_data(b, &Start::reply(2, b"old"))
}

fn reserved_flags_of_a_reply(b: &mut Bench<'_>) -> Outcome {
    carries_data(b, &Start::reply(1, &[]).plus_flags(0x0f))
}

/// Checks that the program sees the peer's rejection, the only failure that is reported as one.
fn rejected(b: &mut Bench<'_>, reply: &Start) -> Outcome {
    let (mut wire, _) = b.called()?;
    wire.put(&reply.clone().plus_flags(flag::REJECT).octets())?;
    let private = hex(reply.private());
    b.agent
        .wait(&format!("rejected {} -111 {private}", wire.conn))?;
    wire.half_close()?;
    wire.ends(End::Any)
}

fn rejection_is_reported_with_its_private_data(b: &mut Bench<'_>) -> Outcome {
    rejected(b, &Start::enhanced_reply(Depths::new(0, 0), b"busy"))
}

fn plain_rejection(b: &mut Bench<'_>) -> Outcome {
    rejected(b, &Start::reply(1, b"busy"))?;
    rejected(b, &Start::reply(1, &[]))
}

fn connect_without_listener_is_refused(b: &mut Bench<'_>) -> Outcome {
    let port = b.dead_port()?;
    let conn = b.call_at(port)?;
    b.start_up_failed(conn)
}

fn end_instead_of_a_reply(b: &mut Bench<'_>) -> Outcome {
    let (mut wire, _) = b.called()?;
    wire.half_close()?;
    wire.ends(End::Any)?;
    b.start_up_failed(wire.conn)
}

fn reset_instead_of_a_reply(b: &mut Bench<'_>) -> Outcome {
    let (wire, _) = b.called()?;
    let conn = wire.conn;
    wire.reset()?;
    b.start_up_failed(conn)
}

/// A peer that closes on a Request of revision 2 gets no second Request; the consumer sees the
/// failure.
fn request_closed_by_peer_is_not_repeated(b: &mut Bench<'_>) -> Outcome {
    let listener = b.listener()?;
    let mut wire = b.called_at(&listener)?;
    let request = wire.start_frame()?;
    require!(request.rev == 2, "revision {}", request.rev);
    wire.half_close()?;
    wire.ends(End::Any)?;
    b.start_up_failed(wire.conn)?;
    require!(listener.accept().is_err(), "the device calls again");
    Ok(())
}

fn request_is_answered_by_a_request(b: &mut Bench<'_>) -> Outcome {
    failed_start_up(b, &Start::reply(1, &[]).key(REQUEST_KEY).octets())?;
    failed_start_up(b, &Start::enhanced(Depths::new(1, 1), &[]).octets())
}

fn reply_with_another_key(b: &mut Bench<'_>) -> Outcome {
    failed_start_up(b, &Start::reply(1, &[]).key(b"MPA ID Rep frame").octets())
}

fn reply_with_the_banner_of_another_protocol(b: &mut Bench<'_>) -> Outcome {
    failed_start_up(b, b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n")
}

fn reply_cut_off_by_the_end(b: &mut Bench<'_>) -> Outcome {
    let octets = Start::reply(1, &[7; 10]).octets();
    for len in 0..octets.len() {
        let (mut wire, _) = b.called()?;
        wire.put(&octets[..len])?;
        wire.half_close()?;
        wire.ends(End::Any)?;
        b.start_up_failed(wire.conn)?;
    }
    Ok(())
}

fn reply_cut_off_by_a_reset(b: &mut Bench<'_>) -> Outcome {
    let octets = Start::reply(1, &[7; 10]).octets();
    for len in [1, 16, 20, octets.len() - 1] {
        let (mut wire, _) = b.called()?;
        wire.put(&octets[..len])?;
        let conn = wire.conn;
        wire.reset()?;
        b.start_up_failed(conn)?;
    }
    Ok(())
}

/// The peer accepts and goes at once. The program sees the connection lost, after it came up or
/// before.
fn gone_right_behind_the_reply(b: &mut Bench<'_>, reset: bool) -> Outcome {
    // Of which completions would come before the events.
    b.agent.set(&[("recvs", 0)])?;
    for _ in 0..20 {
        let (mut wire, _) = b.called()?;
        let conn = wire.conn;
        if reset {
            // Takes effect when the last handle is closed.
            wire.another()?.reset()?;
        }
        wire.put(&Start::reply(1, &[]).octets())?;
        drop(wire);
        let event = b.agent.wait(&format!("* {conn}"))?;
        if event[0] == "established" {
            b.agent.wait(&format!("disconnected {conn}"))?;
        } else {
            let lost = event[0] == "rejected" && event[2] == "-104";
            require!(lost, "unexpected event: {}", event.join(" "));
        }
    }
    Ok(())
}

fn end_right_behind_the_reply(b: &mut Bench<'_>) -> Outcome {
    gone_right_behind_the_reply(b, false)
}

fn reset_right_behind_the_reply(b: &mut Bench<'_>) -> Outcome {
    gone_right_behind_the_reply(b, true)
}

/// Sends octets right behind the Reply, though the Responder may not send before the Initiator's
/// first FPDU. The program may see the connection come up, since the Reply was good, but the early
/// octets end it. Only if the link cuts the segment, they may arrive when the stream is up, and an
/// FPDU is delivered then.
fn behind_the_reply(b: &mut Bench<'_>, octets: &[u8]) -> Outcome {
    let (mut wire, request) = b.called()?;
    wire.put(&[&reply_to(&request, &[]).octets()[..], octets].concat())?;
    let event = b.agent.wait(&format!("* {}", wire.conn))?;
    if event[0] == "established" {
        if env::var_os("SEGMENTS_ARE_CUT").is_some() {
            return Ok(());
        }
        b.agent.wait(&format!("disconnected {}", wire.conn))?;
    }
    wire.drain()?;
    b.agent
        .none_yet(&format!("wc {} recv * success", wire.conn))
}

fn fpdu_behind_the_reply(b: &mut Bench<'_>) -> Outcome {
    behind_the_reply(b, &send(1, b"early").fpdu())
}

fn octet_behind_the_reply(b: &mut Bench<'_>) -> Outcome {
    behind_the_reply(b, &[0])
}

/// Sends a Reply that is well formed but unusable; checks for this Terminate and no connection.
fn unusable_reply(b: &mut Bench<'_>, change: impl Fn(Depths) -> Depths, code: Code) -> Outcome {
    let (mut wire, request) = b.called()?;
    let Some(asked) = request.depths() else {
        fail!("no enhanced data");
    };
    let depths = change(Depths {
        ird: asked.ord,
        ord: asked.ird,
        ..asked
    });
    wire.put(&Start::enhanced_reply(depths, &[]).octets())?;
    wire.expect_terminate(&code.alone())?;
    b.start_up_failed(wire.conn)
}

fn reply_asks_for_more_than_the_initiator_serves(b: &mut Bench<'_>) -> Outcome {
    b.agent.set(&[("ird", 2), ("ord", 2)])?;
    for more in [1, 100, 16380] {
        unusable_reply(
            b,
            |agreed| Depths {
                ord: agreed.ord + more,
                ..agreed
            },
            code::INSUFFICIENT_IRD,
        )?;
    }
    Ok(())
}

fn reply_asks_for_exactly_the_depth_of_the_initiator(b: &mut Bench<'_>) -> Outcome {
    b.agent.set(&[("ird", 2), ("ord", 2)])?;
    let mut wire = b.answered()?;
    b.works(&mut wire)
}

fn reply_leaves_depths_open(b: &mut Bench<'_>) -> Outcome {
    for (ird, ord) in [(0x3fff, 0x3fff), (0x3fff, 1), (1, 0x3fff)] {
        let (mut wire, request) = b.called()?;
        let Some(asked) = request.depths() else {
            fail!("no enhanced data");
        };
        let reply = Start::enhanced_reply(Depths { ird, ord, ..asked }, &[]);
        b.answer(&mut wire, &request, &reply)?;
        b.works(&mut wire)?;
    }
    Ok(())
}

fn reply_lowers_the_initiators_reads(b: &mut Bench<'_>) -> Outcome {
    b.agent.set(&[("ord", 4)])?;
    let (mut wire, request) = b.called()?;
    let Some(asked) = request.depths() else {
        fail!("no enhanced data");
    };
    let depths = Depths {
        ird: 2,
        ord: asked.ird,
        rtr: Rtr::WRITE,
        ..asked
    };
    b.answer(&mut wire, &request, &Start::enhanced_reply(depths, &[]))?;
    for _ in 0..4 {
        b.agent
            .ask(&format!("read {} {} 0 8 0 77 -", wire.conn, b.ram.number()))?;
    }
    for _ in 0..2 {
        wire.get()?;
    }
    wire.nothing_waits()
}

fn faults_of_the_peer_as_responder(b: &mut Bench<'_>) -> Outcome {
    type Make = fn(&Bench<'_>) -> Segment;
    let list: [(Code, Make); 4] = [
        (code::STAG, |b| write(b.ram.key ^ 1, b.ram.at, b"x")),
        (code::SOURCE_BOUNDS, |b| read(1, 9999, b.ram.key, b.ram.at)),
        (code::MSN, |_| send(2, b"x")),
        (code::OPCODE, |_| send(1, b"x").opcode(14)),
    ];
    for (code, bad) in list {
        let mut wire = b.answered()?;
        b.clean()?;
        let bad = bad(b);
        wire.send(std::slice::from_ref(&bad))?;
        wire.expect_refusal(code, &bad)?;
        b.untouched()?;
        b.failed(&wire, code)?;
    }
    Ok(())
}

fn markers_wanted_by_the_reply(b: &mut Bench<'_>) -> Outcome {
    let (mut wire, request) = b.called()?;
    let reply = reply_to(&request, &[]).plus_flags(flag::MARKERS);
    b.answer(&mut wire, &request, &reply)?;
    for len in [1, 600, 5000] {
        b.agent.ask(&format!("send {} {len} -", wire.conn))?;
        let (_, data) = wire.message()?;
        require!(data.len() == len, "{} of {len} octets", data.len());
    }
    Ok(())
}

fn crc(b: &mut Bench<'_>, setting: u32, wish: u8) -> Outcome {
    if setting != 1 {
        b.setting("crc", setting)?;
    }
    let (mut wire, request) = b.called()?;
    require!(
        (request.flags & flag::CRC != 0) == (setting == 1),
        "flags {:#x}",
        request.flags
    );
    let agreed = reply_to(&request, &[]);
    let extra = agreed.flags & !flag::CRC;
    let reply = agreed.flags(extra | (flag::CRC * wish));
    b.answer(&mut wire, &request, &reply)?;
    b.agent.ask(&format!("send {} 10 -", wire.conn))?;
    wire.expect_send(10)?;
    if setting == 1 || wish == 1 {
        wire.put(&send(1, b"x").bad_crc(1))?;
        return wire.expect_terminate(&code::CRC.alone());
    }
    wire.put(&write(b.ram.key, b.ram.at, b"abcd").without_crc())?;
    wire.put(&read(1, 4, b.ram.key, b.ram.at).without_crc())?;
    wire.expect(&response(b"abcd"))
}

fn revision_1_by_setting(b: &mut Bench<'_>) -> Outcome {
    b.setting("mpa_rev", 1)?;
    b.agent.data(b"rev 1")?;
    let (mut wire, request) = b.called()?;
    let expected = Start::request(1, b"rev 1").plus_flags(flag::FEATURES);
    require!(request == expected, "{request:?}");
    b.answer(&mut wire, &request, &Start::reply(1, &[]))?;
    b.agent.ask(&format!("send {} 4 -", wire.conn))?;
    wire.expect_send(4)?;
    b.works(&mut wire)
}

/// A Reply answers the offer by another flag; the Request's flag in a Reply is ignored.
fn send_with_immediate_is_offered_by_setting(b: &mut Bench<'_>) -> Outcome {
    for (value, bits) in [(0, 2), (1, 0), (1, 1), (1, 3), (1, 2), (1, 14)] {
        b.setting("extensions", value)?;
        let (mut wire, request) = b.called()?;
        let flags = request.flags & 11;
        require!(flags == value as u8, "{flags:#x} with the setting {value}");
        let reply = reply_to(&request, &[]).plus_flags(bits);
        b.answer(&mut wire, &request, &reply)?;
        b.agent.ask(&format!("sendimm {} 5 7 -", wire.conn))?;
        let got = wire.get()?;
        if value == 1 && bits & 3 == 2 {
            require!(
                got[1] == 0x4f && got[2..6] == [0, 0, 0, 7] && got.data().len() == 5,
                "{}",
                got.describe()
            );
            b.completed(&wire, "success")?;
            b.works(&mut wire)?;
        } else {
            // Without the agreement the device cannot send this message, and ends the stream.
            require!(got.op() == op::TERMINATE, "{}", got.describe());
            b.completed(&wire, "loc_qp_op")?;
        }
    }
    Ok(())
}

fn peer_to_peer_by_setting(b: &mut Bench<'_>) -> Outcome {
    for value in [0, 1] {
        b.setting("peer_to_peer", value)?;
        let (_wire, request) = b.called()?;
        let Some(depths) = request.depths() else {
            fail!("no enhanced data");
        };
        require!(
            depths.peer_to_peer == (value == 1) && (depths.rtr != Rtr::NONE) == (value == 1),
            "{depths:?} with the setting {value}"
        );
    }
    Ok(())
}

fn without_peer_to_peer_no_rtr_comes(b: &mut Bench<'_>) -> Outcome {
    b.setting("peer_to_peer", 0)?;
    let (mut wire, request) = b.called()?;
    require!(is_enhanced(&request), "{request:?}");
    wire.put(&reply_to(&request, &[]).octets())?;
    b.agent.wait(&format!("established {}", wire.conn))?;
    wire.silent()?;
    b.agent.ask(&format!("send {} 4 -", wire.conn))?;
    wire.expect_send(4).map(drop)
}
