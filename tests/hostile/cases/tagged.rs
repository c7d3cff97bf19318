// SPDX-License-Identifier: GPL-2.0

//! Tagged messages to the device: RDMA Writes (RFC 5040, section 5.1; RFC 5041, sections 5 and 7).

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
    frame::{op, read, response, send, write},
    wire::{
        require,
        Outcome, //
    }, //
};

pub(super) fn cases() -> Vec<Case> {
    let mut list = scripts![
        writes_arrive: "RDMAP-14 RDMAP-50 RDMAP-51 RDMAP-53 DDP-24 DDP-35",
        reserved_bits_of_a_write_are_ignored: "RDMAP-25 DDP-18",
        empty_writes_need_no_valid_stag: "RDMAP-58 DDP-40 DDP-41",
        empty_segments_inside_a_write: "DDP-41 DDP-43",
        empty_segment_then_stag_0: "DDP-43",
        each_write_segment_is_placed_at_its_offset: "DDP-39 DDP-23",
        segments_of_a_write_go_to_several_regions: "DDP-23 DDP-39",
        last_segment_leaves_the_region: "DDP-79 DDP-87 RDMAP-162",
        middle_segment_leaves_the_region: "DDP-79 DDP-83",
        segments_behind_a_bad_segment_are_dropped: "DDP-76 DDP-80 DDP-83 MPA-20 MPA-21",
        write_up_to_the_last_octet: "DDP-78 DDP-79 RDMAP-162",
        region_of_one_octet: "RDMAP-162",
        region_released_between_writes: "RDMAP-165 DDP-93",
        region_released_inside_a_write: "RDMAP-165 DDP-93",
        key_with_any_bit_wrong: "DDP-76",
        write_completes_no_receive: "RDMAP-14 RDMAP-51",
        version_changes_inside_the_stream: "DDP-20",
    ];
    let mut bad = vec![
        refused(
            "write_to_an_unknown_stag",
            "DDP-76 DDP-82 DDP-85 RDMAP-6 RDMAP-15 RDMAP-37 RDMAP-38 RDMAP-52 RDMAP-141",
            code::STAG,
            |b| write(0x7f00_0000, b.ram.at, b"x"),
        ),
        refused("write_to_stag_0", "DDP-76", code::STAG, |b| {
            write(0, b.ram.at, b"x")
        }),
        refused("write_to_the_last_stag", "DDP-76", code::STAG, |b| {
            write(u32::MAX, b.ram.at, b"x")
        }),
        refused(
            "write_without_the_right",
            "DDP-77 RDMAP-164",
            code::STAG,
            |b| write(b.no_write.key, b.no_write.at, b"x"),
        ),
        refused(
            "write_to_another_pd",
            "DDP-88 RDMAP-160",
            code::NOT_ASSOCIATED,
            |b| write(b.foreign.key, b.foreign.at, b"x"),
        ),
        refused("write_below", "DDP-78", code::BOUNDS, |b| {
            write(b.ram.key, b.ram.at - 1, b"xx")
        }),
        refused("write_far_below", "DDP-78", code::BOUNDS, |b| {
            write(b.ram.key, 0, b"x")
        }),
        refused("write_at_the_end", "DDP-78", code::BOUNDS, |b| {
            write(b.ram.key, b.ram.end(), b"x")
        }),
        refused("write_across_the_end", "DDP-79", code::BOUNDS, |b| {
            write(b.ram.key, b.ram.end() - 2, b"xxx")
        }),
        refused("write_far_behind", "DDP-78", code::BOUNDS, |b| {
            write(b.ram.key, b.ram.at + (1 << 40), b"x")
        }),
        refused(
            "write_longer_than_the_region",
            "DDP-79",
            code::BOUNDS,
            |b| write(b.ram.key, b.ram.at, &[7; 8193]),
        ),
        refused("write_around_the_region", "DDP-78", code::BOUNDS, |b| {
            write(b.ram.key, b.ram.at - 8, &[7; 8208])
        }),
        refused(
            "write_with_the_high_half_of_its_offset_wrong",
            "DDP-78",
            code::BOUNDS,
            |b| write(b.ram.key, b.ram.at ^ (1 << 63), b"x"),
        ),
        refused("write_that_wraps", "DDP-80", code::WRAP, |b| {
            write(b.ram.key, u64::MAX - 7, &[7; 16])
        }),
        refused("write_that_wraps_by_one", "DDP-80", code::WRAP, |b| {
            write(b.ram.key, u64::MAX - 6, &[7; 8])
        }),
        refused(
            "write_that_wraps_into_the_region",
            "DDP-80",
            code::WRAP,
            |b| write(b.ram.key, u64::MAX, &[7; 4096]),
        ),
        refused(
            "wrapping_write_to_an_unknown_stag",
            "DDP-86",
            code::STAG,
            |_| write(0x7f00_0000, u64::MAX, b"xx"),
        ),
        refused(
            "write_to_another_pd_out_of_bounds",
            "DDP-86",
            code::NOT_ASSOCIATED,
            |b| write(b.foreign.key, 0, b"x"),
        ),
        refused("open_write_to_an_unknown_stag", "DDP-76", code::STAG, |b| {
            write(0x7f00_0000, b.ram.at, b"x").more()
        }),
        refused("send_inside_a_write", "DDP-22 DDP-44", code::OPCODE, |_| {
            send(1, b"x")
        })
        .behind(|_| vec![write(0, 0, &[]).more()]),
        refused(
            "read_request_inside_a_write",
            "DDP-22 DDP-44 RDMAP-40",
            code::OPCODE,
            |b| read(1, 8, b.ram.key, b.ram.at),
        )
        .behind(|_| vec![write(0, 0, &[]).more()]),
        refused(
            "read_response_inside_a_write",
            "DDP-22 RDMAP-75",
            code::OPCODE,
            |b| write(b.ram.key, b.ram.at, b"x").opcode(op::READ_RESPONSE),
        )
        .behind(|_| vec![write(0, 0, &[]).more()]),
        refused("write_behind_sends", "DDP-76 DDP-49", code::STAG, |b| {
            write(b.ram.key ^ 1, b.ram.at, b"x")
        })
        .behind(|_| vec![send(1, b"1"), send(2, b"2")]),
    ];
    for version in [0, 2, 3] {
        bad.push(refused(
            format!("write_with_ddp_version_{version}"),
            "DDP-19",
            code::TAGGED_VERSION,
            move |b| write(b.ram.key, b.ram.at, b"x").dv(version),
        ));
        bad.push(refused(
            format!("write_with_rdmap_version_{version}"),
            "RDMAP-24 RDMAP-147",
            code::RDMAP_VERSION,
            move |b| write(b.ram.key, b.ram.at, b"x").rv(version),
        ));
        bad.push(refused(
            format!("empty_write_with_ddp_version_{version}"),
            "DDP-19 DDP-41",
            code::TAGGED_VERSION,
            move |_| write(0, 0, &[]).dv(version),
        ));
    }
    list.extend(refusals(bad));
    for rights in 0..8 {
        list.push(case(
            format!("write_where_rights_are_{rights}"),
            "RDMAP-164 DDP-77",
            move |b| write_where_rights_are(b, rights),
        ));
    }
    list
}

/// Registers a region with each valid combination of rights (the remote write right requires the
/// local one), and writes to it.
fn write_where_rights_are(b: &mut Bench<'_>, rights: u32) -> Outcome {
    let Some(region) = b.region_with(rights)? else {
        return Ok(());
    };
    let mut wire = b.connect()?;
    let segment = write(region.key, region.at, b"x");
    if rights & access::REMOTE_WRITE != 0 {
        wire.send(&[segment])?;
        b.works(&mut wire)?;
        let memory = b.agent.peek(&region, 0, 1)?;
        require!(memory == b"x", "{memory:?}");
        return Ok(());
    }
    b.refuses(&mut wire, code::STAG, &segment)?;
    b.agent.holds(&region, 0)
}

fn writes_arrive(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.connect()?;
    b.clean()?;
    let at = b.ram.at;
    wire.send(&[
        write(b.ram.key, at + 1, b"one"),
        write(b.ram.key, at + 4095, b"two"),
        write(b.ram.key, at + 8189, b"end"),
    ])?;
    b.nothing_completes(&mut wire)?;
    let ram = b.ram;
    for (offset, data) in [(1, b"one"), (4095, b"two"), (8189, b"end")] {
        let memory = b.agent.peek(&ram, offset, 3)?;
        require!(memory == data, "{memory:?}");
    }
    b.ram_is_clean(0, 1)?;
    b.ram_is_clean(4, 4091)?;
    b.ram_is_clean(4098, 4091)
}

fn reserved_bits_of_a_write_are_ignored(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.connect()?;
    for (ddp, rdmap) in [(15, 0), (0, 3), (15, 3), (1, 1), (8, 2)] {
        let msn = wire.next_read();
        wire.send(&[
            write(b.ram.key, b.ram.at, b"also")
                .ddp_reserved(ddp)
                .rdmap_reserved(rdmap),
            read(msn, 4, b.ram.key, b.ram.at),
        ])?;
        wire.expect(&response(b"also"))?;
    }
    Ok(())
}

fn empty_writes_need_no_valid_stag(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.connect()?;
    wire.send(&[
        write(u32::MAX, u64::MAX, &[]),
        write(0, 0, &[]),
        write(b.foreign.key, 5, &[]),
        write(b.no_write.key, b.no_write.at, &[]),
        write(b.ram.key, b.ram.end(), &[]),
    ])?;
    b.works(&mut wire)
}

fn empty_segments_inside_a_write(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.connect()?;
    wire.send(&[
        write(0, 0, &[]).more(),
        write(b.ram.key, b.ram.at, b"ab").more(),
        write(0, 0, &[]).more(),
        write(b.ram.key, b.ram.at + 2, b"cd"),
        read(1, 4, b.ram.key, b.ram.at),
    ])?;
    wire.expect(&response(b"abcd"))
}

fn empty_segment_then_stag_0(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.connect()?;
    wire.send(&[write(0, 0, &[]).more()])?;
    b.refuses(&mut wire, code::STAG, &write(0, 0, b"x"))
}

fn each_write_segment_is_placed_at_its_offset(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.connect()?;
    b.clean()?;
    wire.send(&[
        write(b.ram.key, b.ram.at + 100, b"one").more(),
        write(b.ram.key, b.ram.at + 10, b"two"),
        read(1, 0, 0, 0),
    ])?;
    wire.expect(&response(&[]))?;
    let ram = b.ram;
    let memory = b.agent.peek(&ram, 0, 200)?;
    require!(
        &memory[100..103] == b"one" && &memory[10..13] == b"two",
        "{memory:?}"
    );
    b.ram_is_clean(13, 87)
}

fn segments_of_a_write_go_to_several_regions(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.connect()?;
    wire.send(&[
        write(b.ram.key, b.ram.at, b"here").more(),
        write(b.no_read.key, b.no_read.at, b"there"),
        read(1, 4, b.ram.key, b.ram.at),
    ])?;
    wire.expect(&response(b"here"))?;
    let no_read = b.no_read;
    let memory = b.agent.peek(&no_read, 0, 5)?;
    require!(memory == b"there", "{memory:?}");
    Ok(())
}

fn last_segment_leaves_the_region(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.connect()?;
    let at = b.ram.at;
    wire.send(&[
        write(b.ram.key, at, &[1; 4096]).more(),
        write(b.ram.key, at + 4096, &[1; 4096]).more(),
    ])?;
    b.refuses(
        &mut wire,
        code::BOUNDS,
        &write(b.ram.key, at + 8192, b"too far"),
    )
}

fn middle_segment_leaves_the_region(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.connect()?;
    b.clean()?;
    let (key, end) = (b.ram.key, b.ram.end());
    let bad = write(key, end - 100, &[1; 101]).more();
    wire.send(&[
        write(key, end - 200, &[1; 100]).more(),
        bad.clone(),
        write(key, b.ram.at, &[1; 100]),
    ])?;
    wire.expect_refusal(code::BOUNDS, &bad)?;
    b.failed(&wire, code::BOUNDS)?;
    b.ram_is_clean(0, 8192 - 200)?;
    b.ram_is_clean(8192 - 100, 100)
}

/// Four segments of a Write arrive together, and the third one is bad.
fn segments_behind_a_bad_segment_are_dropped(b: &mut Bench<'_>) -> Outcome {
    let (key, at) = (b.ram.key, b.ram.at);
    let good = |n: u64| write(key, at + 100 * n, &[1; 100]).more();
    for (bad, code) in [
        (write(key ^ 1, at + 200, &[1; 100]), code::STAG),
        (write(b.no_write.key, b.no_write.at, &[1; 100]), code::STAG),
        (write(key, u64::MAX - 50, &[1; 100]), code::WRAP),
    ] {
        let mut wire = b.connect()?;
        b.clean()?;
        let bad = bad.more();
        wire.send(&[good(0), good(1), bad.clone(), good(3)])?;
        wire.expect_refusal(code, &bad)?;
        b.failed(&wire, code)?;
        b.ram_is_clean(200, 8192 - 200)?;
    }
    let mut wire = b.connect()?;
    b.clean()?;
    let octets = [
        good(0).fpdu(),
        good(1).fpdu(),
        good(2).bad_crc(1),
        good(3).fpdu(),
    ];
    wire.put(&octets.concat())?;
    wire.expect_terminate(&code::CRC.alone())?;
    b.failed(&wire, code::CRC)?;
    b.ram_is_clean(200, 8192 - 200)
}

fn write_up_to_the_last_octet(b: &mut Bench<'_>) -> Outcome {
    for len in [1, 63, 4095, 4097] {
        let region = b.agent.region(len, access::ALL, 0)?;
        let mut wire = b.connect()?;
        wire.send(&[
            write(region.key, region.end() - 1, b"z"),
            read(1, 1, region.key, region.end() - 1),
        ])?;
        wire.expect(&response(b"z"))?;
        b.refuses(
            &mut wire,
            code::BOUNDS,
            &write(region.key, region.end() - 1, b"zz"),
        )?;
    }
    Ok(())
}

fn region_of_one_octet(b: &mut Bench<'_>) -> Outcome {
    let region = b.agent.region(1, access::ALL, 0)?;
    for bad in [
        write(region.key, region.at - 1, b"x"),
        write(region.key, region.at + 1, b"x"),
        write(region.key, region.at, b"xx"),
    ] {
        let mut wire = b.connect()?;
        b.refuses(&mut wire, code::BOUNDS, &bad)?;
    }
    b.agent.holds(&region, 0)
}

fn region_released_between_writes(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.connect()?;
    let region = b.agent.region(4096, access::ALL, 0)?;
    wire.send(&[write(region.key, region.at, b"fine")])?;
    b.works(&mut wire)?;
    b.agent.ask(&format!("dereg {}", region.number()))?;
    b.refuses(
        &mut wire,
        code::STAG,
        &write(region.key, region.at, b"gone"),
    )
}

fn region_released_inside_a_write(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.connect()?;
    let region = b.agent.region(4096, access::ALL, 0)?;
    wire.send(&[write(region.key, region.at, b"fine").more()])?;
    // An empty FPDU is not part of the message; the answer to a message behind it comes.
    b.agent.none(&format!("event {}", wire.conn))?;
    b.agent.ask(&format!("dereg {}", region.number()))?;
    b.refuses(
        &mut wire,
        code::STAG,
        &write(region.key, region.at + 4, b"gone"),
    )
}

fn key_with_any_bit_wrong(b: &mut Bench<'_>) -> Outcome {
    b.clean()?;
    for bit in 0..32 {
        let mut wire = b.connect()?;
        let key = b.ram.key ^ (1 << bit);
        // Another region may have that key by now, but it does not cover this memory.
        let bad = write(key, b.ram.at, b"x");
        wire.send(std::slice::from_ref(&bad))?;
        let got = wire.get()?;
        let fits = [code::STAG, code::BOUNDS, code::NOT_ASSOCIATED]
            .iter()
            .any(|code| got.0 == code.answer(&bad));
        require!(fits, "bit {bit}: {}", got.describe());
    }
    b.untouched()
}

fn write_completes_no_receive(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.connect()?;
    wire.send(&[write(b.ram.key, b.ram.at, b"x")])?;
    b.works(&mut wire)?;
    b.nothing_completes(&mut wire)?;
    wire.send(&[send(1, b"taken")])?;
    b.received(&wire, b"taken")
}

fn version_changes_inside_the_stream(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.connect()?;
    b.works(&mut wire)?;
    b.refuses(
        &mut wire,
        code::TAGGED_VERSION,
        &write(b.ram.key, b.ram.at, b"x").dv(2),
    )
}
