// SPDX-License-Identifier: GPL-2.0

//! The exchange of features between riwarp devices, and FPDUs longer than a segment
//! (docs/connections.md), with the device in both roles.

use super::{
    case,
    code,
    fpdu::{
        longest_of,
        MSS, //
    },
    scripts,
    Case, //
};
use crate::{
    bench::{
        reply_to,
        take_rtr,
        Bench, //
    },
    frame::{
        flag,
        hex,
        send,
        untagged,
        write,
        Depths,
        Segment,
        Start, //
    },
    wire::{
        fail,
        require,
        Outcome,
        Wire, //
    }, //
};

pub(super) fn cases() -> Vec<Case> {
    let mut list = scripts![
        features_of_the_responder: "MPA-3",
        features_of_the_initiator: "MPA-3",
        features_octet_by_octet: "MPA-3",
        initiator_without_features_gets_short_fpdus: "MPA-28",
        features_come_once: "EXT-86",
        features_that_nobody_offered: "EXT-86",
        features_with_a_bad_crc: "MPA-20",
        reply_that_only_looks_like_one_with_features: "MPA-3",
        markers_keep_fpdus_short: "MPA-28",
        long_fpdus_are_cut_for_the_path: "MPA-28",
    ];
    list.push(case("features_by_setting", "MPA-3", features_by_setting).alone());
    list
}

/// The limit of a device.
const LIMIT: u16 = 32_782;

/// Returns the octets that tell a limit.
fn block(ulpdu_max: u16) -> Vec<u8> {
    [&b"rW\x08\0\0\0"[..], &ulpdu_max.to_be_bytes()].concat()
}

/// Returns the first message of an Initiator.
fn told(ulpdu_max: u16) -> Segment {
    untagged(0x2f, 4, 1, &block(ulpdu_max))
}

/// Returns a connection whose Request offers features, and checks those of the device.
fn offered(b: &Bench<'_>, request: &Start) -> Outcome<Wire> {
    let wire = b.connect_by(&request.clone().plus_flags(4))?;
    let Some(reply) = wire.peer.as_ref() else {
        fail!("no Reply");
    };
    require!(reply.flags & 15 == 8, "flags {:#x}", reply.flags);
    require!(
        reply.private().starts_with(&block(LIMIT)),
        "{}",
        hex(reply.private())
    );
    Ok(wire)
}

/// Checks that the longest FPDU is as long as this ULPDU makes it.
fn is_long(longest: usize, ulpdu: u16) -> Outcome {
    let most = (2 + usize::from(ulpdu)).next_multiple_of(4) + 4;
    require!(
        (most - 4..=most).contains(&longest),
        "{longest} octets instead of {most}"
    );
    Ok(())
}

fn features_of_the_responder(b: &mut Bench<'_>) -> Outcome {
    for request in [
        Start::request(1, b"x"),
        Start::enhanced(Depths::new(4, 4), b"x"),
    ] {
        let mut wire = offered(b, &request)?;
        wire.send(&[told(20_002), write(0, 0, &[])])?;
        is_long(longest_of(b, &mut wire)?, 20_002)?;
        b.works(&mut wire)?;
    }
    // The device's limit counts too.
    let mut wire = offered(b, &Start::request(1, &[]))?;
    wire.send(&[told(65_535), write(0, 0, &[])])?;
    is_long(longest_of(b, &mut wire)?, LIMIT)?;
    // It sends nothing before the message behind the features.
    let mut wire = offered(b, &Start::request(1, &[]))?;
    wire.send(&[told(20_002)])?;
    b.puppet.ask(&format!("send {} 10 -", wire.conn))?;
    wire.silent()?;
    wire.send(&[write(0, 0, &[])])?;
    wire.expect_send(10)?;
    b.works(&mut wire)
}

fn features_of_the_initiator(b: &mut Bench<'_>) -> Outcome {
    for limit in [20_002, 65_535] {
        let (mut wire, request) = b.called()?;
        require!(request.flags & 15 == 4, "flags {:#x}", request.flags);
        let data = [&block(limit)[..], b"to you"].concat();
        let reply = reply_to(&request, &data).plus_flags(8);
        wire.agreed(&reply, &request);
        wire.put(&reply.octets())?;
        // The consumer sees its own.
        let event = b.puppet.wait(&format!("established {}", wire.conn))?;
        require!(event[2] == hex(b"to you"), "private data {}", event[2]);
        let first = told(LIMIT).fpdu();
        let got = wire.take(first.len())?;
        require!(got == first, "{} instead of features", hex(&got));
        take_rtr(&mut wire)?;
        is_long(longest_of(b, &mut wire)?, limit.min(LIMIT))?;
        b.works(&mut wire)?;
    }
    Ok(())
}

fn features_octet_by_octet(b: &mut Bench<'_>) -> Outcome {
    let mut wire = offered(b, &Start::request(1, &[]))?;
    wire.trickle(&told(20_002).fpdu())?;
    wire.send(&[write(0, 0, &[])])?;
    is_long(longest_of(b, &mut wire)?, 20_002)
}

fn initiator_without_features_gets_short_fpdus(b: &mut Bench<'_>) -> Outcome {
    let mut wire = offered(b, &Start::request(1, &[]))?;
    wire.send(&[write(0, 0, &[])])?;
    let longest = longest_of(b, &mut wire)?;
    require!(longest <= MSS, "{longest} octets");
    b.works(&mut wire)
}

fn features_come_once(b: &mut Bench<'_>) -> Outcome {
    let mut wire = offered(b, &Start::request(1, &[]))?;
    wire.send(&[told(20_002)])?;
    b.refuses(&mut wire, code::OPCODE, &told(20_002))?;
    let mut wire = offered(b, &Start::request(1, &[]))?;
    wire.send(&[write(0, 0, &[])])?;
    b.refuses(&mut wire, code::OPCODE, &told(20_002))
}

fn features_that_nobody_offered(b: &mut Bench<'_>) -> Outcome {
    // 8 beside 4 is no offer.
    for bits in [0, 8, 12, 15] {
        let mut wire = b.connect_by(&Start::request(1, &[]).plus_flags(bits))?;
        b.refuses(&mut wire, code::OPCODE, &told(20_002))?;
    }
    Ok(())
}

fn features_with_a_bad_crc(b: &mut Bench<'_>) -> Outcome {
    let mut wire = offered(b, &Start::request(1, &[]))?;
    wire.put(&told(20_002).bad_crc(1))?;
    wire.expect_terminate(&code::CRC.alone())
}

/// What is no block of features, or comes with other flags, is private data.
fn reply_that_only_looks_like_one_with_features(b: &mut Bench<'_>) -> Outcome {
    let whole = block(20_002);
    let longer = [&b"rW\x0c"[..], &whole[3..]].concat();
    for (bits, data) in [
        (0, &whole[..]),
        (4, &whole[..]),
        (12, &whole[..]),
        (15, &whole[..]),
        (8, &whole[..7]),
        (8, &longer[..]),
        (8, b"any other data"),
        (8, b""),
    ] {
        let (mut wire, request) = b.called()?;
        let reply = reply_to(&request, data).plus_flags(bits);
        wire.agreed(&reply, &request);
        wire.put(&reply.octets())?;
        let event = b.puppet.wait(&format!("established {}", wire.conn))?;
        require!(event[2] == hex(data), "private data {}", event[2]);
        take_rtr(&mut wire)?;
        let longest = longest_of(b, &mut wire)?;
        require!(longest <= MSS, "{longest} octets");
        b.works(&mut wire)?;
    }
    Ok(())
}

fn markers_keep_fpdus_short(b: &mut Bench<'_>) -> Outcome {
    let mut wire = offered(b, &Start::request(1, &[]).plus_flags(flag::MARKERS))?;
    wire.send(&[told(20_002), write(0, 0, &[])])?;
    let longest = longest_of(b, &mut wire)?;
    require!(longest <= MSS, "{longest} octets");
    Ok(())
}

/// Long FPDUs need no segments of their own: each message has as few as possible.
fn long_fpdus_are_cut_for_the_path(b: &mut Bench<'_>) -> Outcome {
    let mut wire = offered(b, &Start::request(1, &[]))?;
    wire.send(&[told(20_002), write(0, 0, &[])])?;
    for (len, fpdus) in [(19_984, 1), (19_985, 2), (39_968, 2), (39_969, 3)] {
        b.puppet.ask(&format!("send {} {len} -", wire.conn))?;
        let (mut count, mut total) = (0, 0);
        while total < len {
            total += wire.get()?.data().len();
            count += 1;
        }
        require!(count == fpdus, "{count} FPDUs for {len} octets");
    }
    Ok(())
}

fn features_by_setting(b: &mut Bench<'_>) -> Outcome {
    b.setting("ulpdu_limit", 0)?;
    let (_wire, request) = b.called()?;
    require!(request.flags & 15 == 0, "flags {:#x}", request.flags);
    let mut wire = b.connect_by(&Start::request(1, &[]).plus_flags(4))?;
    let flags = wire.peer.as_ref().map(|reply| reply.flags);
    require!(flags == Some(flag::CRC), "flags {flags:?}");
    b.refuses(&mut wire, code::OPCODE, &told(20_002))?;
    b.setting("ulpdu_limit", 9002)?;
    let mut wire = b.connect_by(&Start::request(1, &[]).plus_flags(4))?;
    let private = wire.peer.as_ref().map(|reply| reply.private().to_vec());
    require!(private == Some(block(9002)), "{private:?}");
    wire.send(&[told(20_002), write(0, 0, &[])])?;
    is_long(longest_of(b, &mut wire)?, 9002)?;
    wire.send(&[send(1, b"x")])?;
    b.works(&mut wire)
}
