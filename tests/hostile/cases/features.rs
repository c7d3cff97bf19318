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
    agent::{
        access,
        Region, //
    },
    bench::{
        reply_to,
        take_rtr,
        Bench, //
    },
    frame::{
        flag,
        hex,
        read_response,
        send,
        untagged,
        write,
        Depths,
        Read,
        Segment,
        Start,
        READ_REQUEST_LEN, //
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
        features_without_an_offer: "EXT-86",
        features_with_a_bad_crc: "MPA-20",
        reply_resembling_one_with_features: "MPA-3",
        markers_keep_fpdus_short: "MPA-28",
        long_fpdus_are_segmented_for_the_path: "MPA-28",
        flush_is_answered_after_earlier_writes: "EXT-86",
        flush_is_checked: "EXT-86",
        flush_counts_as_a_read: "EXT-86 RDMAP-129",
        atomic_write_is_stored: "EXT-86",
        atomic_write_is_checked: "EXT-86",
        marked_messages_without_agreement: "RDMAP-25 EXT-86",
    ];
    list.push(case("features_by_setting", "MPA-3", features_by_setting).alone());
    list
}

/// The limit of a device.
const LIMIT: u16 = 32_782;

/// The marked messages: Flush, Atomic Write.
const FLUSH: u16 = 1;
const ATOMIC_WRITE: u16 = 2;

/// Returns the octets that tell a limit, and that both marked messages are taken.
fn block(ulpdu_max: u16) -> Vec<u8> {
    block_with(ulpdu_max, FLUSH | ATOMIC_WRITE)
}

fn block_with(ulpdu_max: u16, marked: u16) -> Vec<u8> {
    [
        &b"rW\x08\0"[..],
        &marked.to_be_bytes(),
        &ulpdu_max.to_be_bytes(),
    ]
    .concat()
}

/// Returns the first message of an Initiator.
fn told(ulpdu_max: u16) -> Segment {
    untagged(0x2f, 4, 1, &block(ulpdu_max))
}

/// Returns a connection whose Initiator has told that it takes these marked messages.
fn marked(b: &Bench<'_>, marked: u16) -> Outcome<Wire> {
    let mut wire = offered(b, &Start::request(1, &[]))?;
    let told = untagged(0x2f, 4, 1, &block_with(LIMIT, marked));
    wire.send(&[told, write(0, 0, &[])])?;
    Ok(wire)
}

/// Returns a Flush to this place, with the sink fields that its answer brings back.
fn flush(kind: u32, msn: u32, len: u32, key: u32, at: u64) -> Segment {
    Read {
        sink: kind,
        sink_to: 0x1234,
        size: len,
        source: key,
        source_to: at,
    }
    .segment(msn)
    .rdmap_reserved(1)
}

fn atomic_write(key: u32, at: u64, octets: &[u8]) -> Segment {
    write(key, at, octets).rdmap_reserved(1)
}

/// All of the host; all of the region.
const GLOBAL: u32 = 1;
const PERSISTENT: u32 = 2;
const REGION: u32 = 0x100;

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
    b.agent.ask(&format!("send {} 10 -", wire.conn))?;
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
        let event = b.agent.wait(&format!("established {}", wire.conn))?;
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

fn features_without_an_offer(b: &mut Bench<'_>) -> Outcome {
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
fn reply_resembling_one_with_features(b: &mut Bench<'_>) -> Outcome {
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
        let event = b.agent.wait(&format!("established {}", wire.conn))?;
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
fn long_fpdus_are_segmented_for_the_path(b: &mut Bench<'_>) -> Outcome {
    let mut wire = offered(b, &Start::request(1, &[]))?;
    wire.send(&[told(20_002), write(0, 0, &[])])?;
    for (len, fpdus) in [(19_984, 1), (19_985, 2), (39_968, 2), (39_969, 3)] {
        b.agent.ask(&format!("send {} {len} -", wire.conn))?;
        let (mut count, mut total) = (0, 0);
        while total < len {
            total += wire.get()?.data().len();
            count += 1;
        }
        require!(count == fpdus, "{count} FPDUs for {len} octets");
    }
    Ok(())
}

/// Registers memory that may be written and flushed.
fn flushable(b: &mut Bench<'_>) -> Outcome<Region> {
    const FLUSH_GLOBAL: u32 = 1 << 8;
    b.agent.region(64, access::ALL | FLUSH_GLOBAL, 0)
}

fn flush_is_answered_after_earlier_writes(b: &mut Bench<'_>) -> Outcome {
    let mut wire = marked(b, FLUSH)?;
    let region = flushable(b)?;
    for (kind, len, to) in [
        (GLOBAL, 64, region.at),
        (GLOBAL, 0, region.at + 64),
        (GLOBAL | REGION, 0, 0),
        (GLOBAL | REGION, u32::MAX, u64::MAX),
    ] {
        let msn = wire.next_read();
        let octets = [kind as u8 ^ len as u8; 64];
        wire.send(&[
            write(region.key, region.at, &octets),
            flush(kind, msn, len, region.key, to),
        ])?;
        wire.expect(&read_response(kind, 0x1234, &[]))?;
        require!(
            b.agent.peek(&region, 0, 64)? == octets,
            "what was written is not there"
        );
    }
    b.works(&mut wire)
}

fn flush_is_checked(b: &mut Bench<'_>) -> Outcome {
    let region = flushable(b)?;
    let (ram, foreign) = (b.ram, b.foreign);
    for (code, kind, len, key, to) in [
        (code::SOURCE_STAG, GLOBAL, 0, region.key ^ 1, region.at),
        (code::SOURCE_STAG, GLOBAL | REGION, 0, 0, 0),
        (code::SOURCE_STREAM, GLOBAL, 8, foreign.key, foreign.at),
        (code::SOURCE_RIGHTS, GLOBAL, 8, ram.key, ram.at),
        (code::SOURCE_RIGHTS, GLOBAL | REGION, 0, ram.key, 0),
        (code::SOURCE_RIGHTS, PERSISTENT, 8, region.key, region.at),
        (
            code::SOURCE_RIGHTS,
            GLOBAL | PERSISTENT | REGION,
            8,
            region.key,
            0,
        ),
        (code::SOURCE_BOUNDS, GLOBAL, 65, region.key, region.at),
        (code::SOURCE_BOUNDS, GLOBAL, 1, region.key, region.at - 1),
        (code::SOURCE_BOUNDS, GLOBAL, 0, region.key, region.at + 65),
        (code::SOURCE_WRAP, GLOBAL, 2, region.key, u64::MAX),
        (code::OPCODE, 0, 8, region.key, region.at),
        (code::OPCODE, 4, 8, region.key, region.at),
        (code::OPCODE, GLOBAL | 0x200, 8, region.key, region.at),
        (code::OPCODE, GLOBAL | 0x1_0000, 8, region.key, region.at),
    ] {
        let mut wire = marked(b, FLUSH)?;
        let msn = wire.next_read();
        b.refuses(&mut wire, code, &flush(kind, msn, len, key, to))?;
    }
    Ok(())
}

fn flush_counts_as_a_read(b: &mut Bench<'_>) -> Outcome {
    let region = flushable(b)?;
    let mut wire = marked(b, FLUSH)?;
    // Its number is among those of Reads.
    let first = wire.next_read();
    let again = flush(GLOBAL, first, 0, region.key, region.at);
    wire.send(std::slice::from_ref(&again))?;
    wire.expect(&read_response(GLOBAL, 0x1234, &[]))?;
    b.refuses(&mut wire, code::MSN, &again)?;
    // It is as long as a Read Request.
    for len in [READ_REQUEST_LEN - 1, READ_REQUEST_LEN + 1] {
        let mut wire = marked(b, FLUSH)?;
        let msn = wire.next_read();
        let whole = flush(GLOBAL, msn, 0, region.key, region.at);
        let mut octets = whole.to_vec();
        octets.resize(len, 0);
        b.refuses(&mut wire, code::STREAM, &Segment::raw(octets))?;
    }
    Ok(())
}

fn atomic_write_is_stored(b: &mut Bench<'_>) -> Outcome {
    let mut wire = marked(b, ATOMIC_WRITE)?;
    let ram = b.ram;
    b.clean()?;
    for (nth, to) in [(1, 0), (2, 8), (3, 4088), (4, 4096), (5, 8184)] {
        wire.send(&[atomic_write(ram.key, ram.at + to, &[nth; 8])])?;
        wire.nothing_waits()?;
        let at = to as usize;
        require!(b.agent.peek(&ram, at, 8)? == [nth; 8], "it is not there");
    }
    // However it comes.
    wire.trickle(&atomic_write(ram.key, ram.at + 16, &[9; 8]).fpdu())?;
    wire.nothing_waits()?;
    require!(b.agent.peek(&ram, 16, 8)? == [9; 8], "it is not there");
    b.ram_is_clean(24, 4064)?;
    b.ram_is_clean(4104, 4080)
}

fn atomic_write_is_checked(b: &mut Bench<'_>) -> Outcome {
    b.clean()?;
    let (ram, no_write, foreign) = (b.ram, b.no_write, b.foreign);
    let octets = [7; 8];
    for (code, bad) in [
        (code::STREAM, atomic_write(ram.key, ram.at + 4, &octets)),
        (code::STREAM, atomic_write(ram.key, ram.at + 1, &octets)),
        (code::STREAM, atomic_write(ram.key, ram.at, &octets[1..])),
        (code::STREAM, atomic_write(ram.key, ram.at, &[7; 16])),
        (code::STREAM, atomic_write(ram.key, ram.at, &[])),
        (code::STREAM, atomic_write(ram.key, ram.at, &octets).more()),
        (code::STAG, atomic_write(ram.key ^ 1, ram.at, &octets)),
        (code::STAG, atomic_write(no_write.key, no_write.at, &octets)),
        (
            code::NOT_ASSOCIATED,
            atomic_write(foreign.key, foreign.at, &octets),
        ),
        (
            code::BOUNDS,
            atomic_write(ram.key, ram.at + ram.len, &octets),
        ),
        (code::WRAP, atomic_write(ram.key, u64::MAX - 7, &octets)),
    ] {
        let mut wire = marked(b, ATOMIC_WRITE)?;
        b.refuses(&mut wire, code, &bad)?;
    }
    b.untouched()
}

/// To a device that has not agreed they are what they are without the mark.
fn marked_messages_without_agreement(b: &mut Bench<'_>) -> Outcome {
    let ram = b.ram;
    for agreed in [None, Some(0), Some(FLUSH), Some(ATOMIC_WRITE)] {
        let mut wire = match agreed {
            None => b.connect()?,
            Some(bits) => marked(b, bits)?,
        };
        if agreed != Some(ATOMIC_WRITE) {
            b.clean()?;
            wire.send(&[atomic_write(ram.key, ram.at + 3, b"odd")])?;
            wire.nothing_waits()?;
            require!(b.agent.peek(&ram, 3, 3)? == b"odd", "it is not there");
        }
        if agreed != Some(FLUSH) {
            let msn = wire.next_read();
            b.agent.poke(&ram, 0, b"read")?;
            wire.send(&[flush(GLOBAL, msn, 4, ram.key, ram.at)])?;
            wire.expect(&read_response(GLOBAL, 0x1234, b"read"))?;
        }
        b.works(&mut wire)?;
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
