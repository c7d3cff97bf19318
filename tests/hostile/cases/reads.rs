// SPDX-License-Identifier: GPL-2.0

//! Read Requests to the device (RFC 5040, sections 5.2 and 7.2).

use super::{
    case,
    code,
    refusals,
    refused,
    scripts,
    Case, //
};
use crate::{
    agent::access,
    bench::Bench,
    frame::{
        op,
        pattern,
        read,
        response,
        send,
        write,
        Depths,
        Read,
        Segment,
        Start, //
    },
    wire::{
        require,
        Outcome,
        Wire, //
    }, //
};

pub(super) fn cases() -> Vec<Case> {
    let mut list = scripts![
        read_requests_are_answered: "RDMAP-59 RDMAP-62 RDMAP-66 RDMAP-67 RDMAP-72 RDMAP-34",
        read_response_repeats_the_sink_unchecked: "RDMAP-31 RDMAP-32",
        reserved_bits_of_a_read_request_are_ignored: "RDMAP-25 RDMAP-26 DDP-18",
        empty_read_needs_no_stag: "RDMAP-68 RDMAP-70",
        empty_read_behind_other_work: "RDMAP-70 RDMAP-76 RDMAP-123",
        full_read_queue_delays_no_other_stream: "RDMAP-177",
        responses_come_in_order: "RDMAP-64 RDMAP-76 RDMAP-123",
        reads_up_to_the_granted_depth: "RDMAP-73 RDMAP-126 RDMAP-61",
        one_read_more_than_granted: "RDMAP-129 RDMAP-152",
        reads_where_none_was_granted: "RDMAP-129 RDMAP-170",
        read_msn_repeated: "RDMAP-150 DDP-74",
        read_returns_data_of_earlier_writes: "RDMAP-114 RDMAP-120",
        sends_are_taken_while_a_response_is_under_way: "RDMAP-121",
        region_released_between_reads: "RDMAP-165 RDMAP-163",
        region_released_inside_a_response: "RDMAP-47 RDMAP-165",
        fault_in_the_middle_of_a_response: "RDMAP-143 RDMAP-100",
        read_up_to_the_last_octet: "RDMAP-155 RDMAP-156",
        reads_complete_no_receive: "RDMAP-17 RDMAP-62",
    ];
    let mut bad = vec![
        refused(
            "read_of_an_unknown_stag",
            "RDMAP-153 RDMAP-142 RDMAP-37 RDMAP-38 RDMAP-46 RDMAP-48 RDMAP-63 RDMAP-69",
            code::SOURCE_STAG,
            |b| read(1, 8, 0x7f00_0000, b.ram.at),
        ),
        refused("read_of_stag_0", "RDMAP-153", code::SOURCE_STAG, |b| {
            read(1, 8, 0, b.ram.at)
        }),
        refused(
            "read_with_a_wrong_key_octet",
            "RDMAP-153",
            code::SOURCE_STAG,
            |b| read(1, 8, b.ram.key ^ 0x80, b.ram.at),
        ),
        refused("read_below", "RDMAP-155", code::SOURCE_BOUNDS, |b| {
            read(1, 8, b.ram.key, b.ram.at - 1)
        }),
        refused("read_at_the_end", "RDMAP-155", code::SOURCE_BOUNDS, |b| {
            read(1, 1, b.ram.key, b.ram.end())
        }),
        refused("read_past_the_end", "RDMAP-156", code::SOURCE_BOUNDS, |b| {
            read(1, 8193, b.ram.key, b.ram.at)
        }),
        refused("read_of_address_0", "RDMAP-155", code::SOURCE_BOUNDS, |b| {
            read(1, 8, b.ram.key, 0)
        }),
        refused(
            "read_without_the_right",
            "RDMAP-158 RDMAP-164",
            code::SOURCE_RIGHTS,
            |b| read(1, 8, b.no_read.key, b.no_read.at),
        ),
        refused(
            "read_of_another_pd",
            "RDMAP-154 RDMAP-160",
            code::SOURCE_STREAM,
            |b| read(1, 8, b.foreign.key, b.foreign.at),
        ),
        refused("read_that_wraps", "RDMAP-157", code::SOURCE_WRAP, |b| {
            read(1, 16, b.ram.key, u64::MAX - 7)
        }),
        refused(
            "read_of_4_gib_that_wraps",
            "RDMAP-157 RDMAP-33",
            code::SOURCE_WRAP,
            |b| read(1, u32::MAX, b.ram.key, u64::MAX - 1000),
        ),
        refused(
            "read_request_one_octet_short",
            "RDMAP-28",
            code::STREAM,
            |b| read(1, 8, b.ram.key, b.ram.at).cut(45),
        ),
        refused(
            "read_request_one_octet_long",
            "RDMAP-28",
            code::STREAM,
            |b| read(1, 8, b.ram.key, b.ram.at).plus(b"x"),
        ),
        refused(
            "read_request_without_its_header",
            "RDMAP-28",
            code::STREAM,
            |b| read(1, 8, b.ram.key, b.ram.at).cut(18),
        ),
        refused(
            "read_request_that_is_not_the_last_segment",
            "RDMAP-28 RDMAP-59",
            code::STREAM,
            |b| read(1, 8, b.ram.key, b.ram.at).more(),
        ),
        refused(
            "read_request_with_an_offset",
            "RDMAP-150",
            code::OFFSET,
            |b| read(1, 8, b.ram.key, b.ram.at).mo(4),
        ),
        refused(
            "read_request_with_the_last_offset",
            "RDMAP-150",
            code::OFFSET,
            |b| read(1, 8, b.ram.key, b.ram.at).mo(u32::MAX),
        ),
        refused(
            "empty_read_with_a_wrong_number",
            "RDMAP-150 RDMAP-70",
            code::MSN,
            |_| read(3, 0, 0, 0),
        ),
        refused(
            "empty_read_one_octet_short",
            "RDMAP-28 RDMAP-70",
            code::STREAM,
            |_| read(1, 0, 0, 0).cut(45),
        ),
        refused(
            "solicited_bits_do_not_excuse_a_read",
            "RDMAP-153 RDMAP-144",
            code::SOURCE_STAG,
            |_| read(1, 8, 0x7f00_0000, 0).rdmap_reserved(3),
        ),
    ];
    for size in [0x7fff_ffff, 0x8000_0000, 0x8000_0001, u32::MAX] {
        bad.push(refused(
            format!("read_of_{size}_octets"),
            "RDMAP-33 RDMAP-156",
            code::SOURCE_BOUNDS,
            move |b| read(1, size, b.ram.key, b.ram.at),
        ));
    }
    for queue in [0, 2, 3, 4, 9, u32::MAX] {
        bad.push(refused(
            format!("read_request_to_queue_{queue}"),
            "RDMAP-60 DDP-69",
            code::QUEUE,
            move |b| read(1, 8, b.ram.key, b.ram.at).qn(queue),
        ));
    }
    for msn in [0, 2, 0x8000_0001, u32::MAX] {
        bad.push(refused(
            format!("first_read_request_with_msn_{msn}"),
            "RDMAP-150 DDP-29 DDP-74",
            code::MSN,
            move |b| read(msn, 8, b.ram.key, b.ram.at),
        ));
    }
    for version in [0, 2, 3] {
        bad.push(refused(
            format!("read_request_with_ddp_version_{version}"),
            "DDP-19 RDMAP-150",
            code::UNTAGGED_VERSION,
            move |b| read(1, 8, b.ram.key, b.ram.at).dv(version),
        ));
    }
    list.extend(refusals(bad));
    for rights in 0..8 {
        list.push(case(
            format!("read_where_rights_are_{rights}"),
            "RDMAP-164 RDMAP-158",
            move |b| read_where_rights_are(b, rights),
        ));
    }
    list
}

fn read_where_rights_are(b: &mut Bench<'_>, rights: u32) -> Outcome {
    let Some(region) = b.region_with(rights)? else {
        return Ok(());
    };
    let mut wire = b.connect()?;
    let segment = read(1, 8, region.key, region.at);
    if rights & access::REMOTE_READ == 0 {
        return b.refuses(&mut wire, code::SOURCE_RIGHTS, &segment);
    }
    wire.send(&[segment])?;
    wire.expect(&response(&[0; 8]))
}

fn read_requests_are_answered(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.connect()?;
    let data = pattern(8192);
    let ram = b.ram;
    b.agent.poke(&ram, 0, &data)?;
    for (offset, size) in [
        (0, 1),
        (1, 7),
        (4000, 4192),
        (8191, 1),
        (0, 8192),
        (4095, 2),
    ] {
        let msn = wire.next_read();
        wire.send(&[read(msn, size as u32, ram.key, ram.at + offset as u64)])?;
        let (first, got) = wire.message()?;
        require!(first.op() == op::READ_RESPONSE, "{}", first.describe());
        require!(
            got == data[offset..offset + size],
            "{size} at {offset}: data differs"
        );
    }
    Ok(())
}

fn read_response_repeats_the_sink_unchecked(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.connect()?;
    for (sink, sink_to) in [
        (0, 0),
        (u32::MAX, u64::MAX - 100),
        (u32::MAX, u64::MAX - 4095),
        (5, 3),
        (6, (1 << 32) - 1),
        (b.ram.key, b.ram.at),
    ] {
        let size = 4000;
        let msn = wire.next_read();
        let asked = Read {
            sink,
            sink_to,
            size,
            source: b.ram.key,
            source_to: b.ram.at,
        };
        wire.send(&[asked.segment(msn)])?;
        let (first, data) = wire.message()?;
        require!(
            first.stag() == sink && first.to() == sink_to && data.len() == 4000,
            "{}",
            first.describe()
        );
    }
    Ok(())
}

fn reserved_bits_of_a_read_request_are_ignored(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.connect()?;
    let ram = b.ram;
    b.agent.poke(&ram, 0, b"also")?;
    for (ddp, rdmap) in [(15, 0), (0, 3), (15, 3)] {
        let msn = wire.next_read();
        wire.send(&[read(msn, 4, ram.key, ram.at)
            .ddp_reserved(ddp)
            .rdmap_reserved(rdmap)
            .inv(ram.key)])?;
        wire.expect(&response(b"also"))?;
    }
    Ok(())
}

fn empty_read_needs_no_stag(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.connect()?;
    for (source, to) in [
        (u32::MAX, u64::MAX),
        (0, 0),
        (b.no_read.key, 0),
        (b.foreign.key, 1),
    ] {
        let msn = wire.next_read();
        wire.send(&[read(msn, 0, source, to)])?;
        wire.expect(&response(&[]))?;
    }
    Ok(())
}

/// Returns a connection whose peer reads slowly, with this inbound depth for Reads.
pub(super) fn slow_reader(b: &mut Bench<'_>, ird: u16) -> Outcome<Wire> {
    b.agent.set(&[("ird", ird.into())])?;
    let mut wire = b.open()?;
    wire.window(8192)?;
    let reply = wire.start(&Start::enhanced(Depths::new(4, ird), &[]))?;
    let granted = reply.depths().map(|depths| depths.ird);
    require!(granted == Some(ird), "IRD {granted:?}");
    let event = b.agent.wait("request")?;
    wire.conn = event[1].parse().unwrap_or(u32::MAX);
    b.agent.wait(&format!("established {}", wire.conn))?;
    Ok(wire)
}

/// Returns a Read of the large region whose sink identifies it.
pub(super) fn numbered(b: &Bench<'_>, msn: u32, size: u32) -> Segment {
    Read {
        sink: msn,
        sink_to: 0,
        size,
        source: b.large.key,
        source_to: b.large.at,
    }
    .segment(msn)
}

fn answers(wire: &mut Wire, msn: u32, size: u32) -> Outcome {
    let (first, data) = wire.message()?;
    require!(
        first.stag() == msn && data.len() == size as usize,
        "{} with {} octets",
        first.describe(),
        data.len()
    );
    Ok(())
}

fn empty_read_behind_other_work(b: &mut Bench<'_>) -> Outcome {
    let mut wire = slow_reader(b, 3)?;
    let large = b.large;
    b.agent.poke(&large, 0, b"head")?;
    wire.send(&[
        numbered(b, 1, 1 << 20),
        read(2, 0, 0, 0),
        read(3, 4, large.key, large.at),
    ])?;
    answers(&mut wire, 1, 1 << 20)?;
    wire.expect(&response(&[]))?;
    wire.expect(&response(b"head"))
}

fn full_read_queue_delays_no_other_stream(b: &mut Bench<'_>) -> Outcome {
    let mut full = slow_reader(b, 4)?;
    let reads: Vec<Segment> = (1..5).map(|msn| numbered(b, msn, 1 << 20)).collect();
    full.send(&reads)?;
    let mut other = b.connect()?;
    b.works(&mut other)?;
    for msn in 1..5 {
        answers(&mut full, msn, 1 << 20)?;
    }
    Ok(())
}

fn responses_come_in_order(b: &mut Bench<'_>) -> Outcome {
    let mut wire = slow_reader(b, 4)?;
    let sizes = [500_000, 1, 100_000, 0];
    let reads: Vec<Segment> = (1..)
        .zip(sizes)
        .map(|(msn, size)| numbered(b, msn, size))
        .collect();
    wire.send(&reads)?;
    for (msn, size) in (1..).zip(sizes) {
        answers(&mut wire, msn, size)?;
    }
    Ok(())
}

fn reads_up_to_the_granted_depth(b: &mut Bench<'_>) -> Outcome {
    for ird in [1, 3, 4] {
        let mut wire = slow_reader(b, ird)?;
        let count = u32::from(ird);
        let reads: Vec<Segment> = (1..=count).map(|msn| numbered(b, msn, 200_000)).collect();
        wire.send(&reads)?;
        for msn in 1..=count {
            answers(&mut wire, msn, 200_000)?;
        }
    }
    Ok(())
}

fn one_read_more_than_granted(b: &mut Bench<'_>) -> Outcome {
    for ird in [1, 2, 3] {
        let mut wire = slow_reader(b, ird)?;
        let count = u32::from(ird) + 1;
        let reads: Vec<Segment> = (1..=count).map(|msn| numbered(b, msn, 1 << 21)).collect();
        wire.send(&reads)?;
        let bad = &reads[reads.len() - 1];
        b.agent.wait(&format!("event {} QP_REQ_ERR", wire.conn))?;
        wire.expect_terminate_behind(op::READ_RESPONSE, &code::NO_BUFFER.answer(bad))?;
    }
    Ok(())
}

fn reads_where_none_was_granted(b: &mut Bench<'_>) -> Outcome {
    b.agent.set(&[("ird", 0)])?;
    let mut wire = b.connect_by(&Start::enhanced(Depths::new(1, 0), &[]))?;
    let bad = read(1, 0, 0, 0);
    b.refuses(&mut wire, code::NO_BUFFER, &bad)
}

fn read_msn_repeated(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.connect()?;
    b.works(&mut wire)?;
    b.refuses(&mut wire, code::MSN, &read(1, 8, b.ram.key, b.ram.at))
}

fn read_returns_data_of_earlier_writes(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.connect()?;
    for msn in 1..30 {
        let data = [msn as u8; 64];
        wire.send(&[
            write(b.ram.key, b.ram.at, &data),
            read(msn, 64, b.ram.key, b.ram.at),
        ])?;
        wire.expect(&response(&data))?;
    }
    Ok(())
}

fn sends_are_taken_while_a_response_is_under_way(b: &mut Bench<'_>) -> Outcome {
    let mut wire = slow_reader(b, 1)?;
    wire.send(&[numbered(b, 1, 1 << 21), send(1, b"meanwhile")])?;
    b.received(&wire, b"meanwhile")?;
    answers(&mut wire, 1, 1 << 21)
}

fn region_released_between_reads(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.connect()?;
    let region = b.agent.region(4096, access::ALL, 0)?;
    wire.send(&[read(1, 4, region.key, region.at)])?;
    wire.expect(&response(&[0; 4]))?;
    b.agent.ask(&format!("dereg {}", region.number()))?;
    b.refuses(
        &mut wire,
        code::SOURCE_STAG,
        &read(2, 4, region.key, region.at),
    )
}

fn region_released_inside_a_response(b: &mut Bench<'_>) -> Outcome {
    // The Terminate quotes the remainder of the Read.
    let mut wire = slow_reader(b, 1)?;
    let size = 1 << 24;
    let region = b.agent.region(size, access::ALL, 0)?;
    let asked = Read {
        sink: 9,
        sink_to: 1000,
        size: size as u32,
        source: region.key,
        source_to: region.at,
    };
    wire.send(&[asked.segment(1)])?;
    let first = wire.get()?;
    b.agent.ask(&format!("dereg {}", region.number()))?;
    let mut sent = first.data().len() as u64;
    let last = loop {
        let got = wire.get()?;
        if got.op() != op::READ_RESPONSE {
            break got;
        }
        require!(got.to() == 1000 + sent, "{}", got.describe());
        sent += got.data().len() as u64;
    };
    let rest = Read {
        sink_to: asked.sink_to + sent,
        size: (size - sent) as u32,
        source_to: asked.source_to + sent,
        ..asked
    };
    let want = code::SOURCE_STAG.answer(&rest.segment(1));
    require!(last.0 == want, "{} behind {sent} octets", last.describe());
    wire.ends(crate::wire::End::Graceful)?;
    b.agent
        .wait(&format!("event {} QP_ACCESS_ERR", wire.conn))
        .map(drop)
}

fn fault_in_the_middle_of_a_response(b: &mut Bench<'_>) -> Outcome {
    let mut wire = slow_reader(b, 1)?;
    wire.send(&[numbered(b, 1, 1 << 21)])?;
    wire.get()?;
    let bad = write(b.ram.key ^ 1, b.ram.at, b"x");
    wire.send(std::slice::from_ref(&bad))?;
    b.agent
        .wait(&format!("event {} QP_ACCESS_ERR", wire.conn))?;
    let octets = wire.expect_terminate_behind(op::READ_RESPONSE, &code::STAG.answer(&bad))?;
    require!(octets < 1 << 21, "the whole Response went out first");
    Ok(())
}

fn read_up_to_the_last_octet(b: &mut Bench<'_>) -> Outcome {
    for len in [1, 63, 4095, 4097] {
        let region = b.agent.region(len, access::ALL, 0)?;
        let mut wire = b.connect()?;
        wire.send(&[read(1, len as u32, region.key, region.at)])?;
        let (_, data) = wire.message()?;
        require!(data == vec![0; len as usize], "{} octets", data.len());
        let bad = read(2, len as u32 + 1, region.key, region.at);
        b.refuses(&mut wire, code::SOURCE_BOUNDS, &bad)?;
    }
    Ok(())
}

fn reads_complete_no_receive(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.connect()?;
    b.works(&mut wire)?;
    b.nothing_completes(&mut wire)?;
    wire.send(&[send(1, b"taken")])?;
    b.received(&wire, b"taken")
}
