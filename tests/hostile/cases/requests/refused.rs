// SPDX-License-Identifier: GPL-2.0

//! Responses that the device has to refuse (RFC 5040, section 5.2; RFC 5041, section 7.1).

use super::{
    beside_the_sink,
    case,
    code,
    part,
    pending,
    Case, //
};
use crate::{
    bench::{
        Bench,
        Segments, //
    },
    frame::{
        op,
        read_response,
        send,
        Code,
        Read,
        Segment, //
    },
    wire::{
        require,
        Outcome, //
    }, //
};

/// Returns Responses to a Read of 64 octets whose last segment the device refuses.
pub(super) fn cases() -> Vec<Case> {
    type Make = fn(&Bench<'_>, &Read) -> Segments;
    let list: [(&str, &str, Code, Make); 22] = [
        (
            "read_response_with_another_stag",
            "RDMAP-77",
            code::STAG,
            |_, read| vec![read_response(read.sink ^ 0x100, read.sink_to, &[7; 64])],
        ),
        (
            "read_response_with_another_key",
            "RDMAP-77",
            code::STAG,
            |_, read| vec![read_response(read.sink ^ 1, read.sink_to, &[7; 64])],
        ),
        (
            "read_response_to_another_region",
            "RDMAP-77 DDP-76",
            code::STAG,
            |b, _| vec![read_response(b.large.key, b.large.at, &[7; 64])],
        ),
        (
            "read_response_below_its_sink",
            "RDMAP-77 DDP-78",
            code::BOUNDS,
            |_, read| {
                vec![read_response(
                    read.sink,
                    read.sink_to.wrapping_sub(1),
                    &[7; 64],
                )]
            },
        ),
        (
            "read_response_behind_its_sink",
            "RDMAP-77 DDP-78",
            code::BOUNDS,
            |_, read| vec![part(read, 64, &[7])],
        ),
        (
            "read_response_across_the_end_of_its_sink",
            "RDMAP-77 DDP-79",
            code::BOUNDS,
            |_, read| vec![part(read, 63, &[7; 2])],
        ),
        (
            "read_response_too_long",
            "RDMAP-77 DDP-79",
            code::BOUNDS,
            |_, read| vec![part(read, 0, &[7; 65])],
        ),
        (
            "read_response_that_wraps",
            "RDMAP-35 DDP-80",
            code::WRAP,
            |_, read| vec![read_response(read.sink, u64::MAX - 7, &[7; 64])],
        ),
        (
            "second_segment_of_a_read_response_too_long",
            "RDMAP-77 DDP-79",
            code::BOUNDS,
            |_, read| vec![part(read, 0, &[7; 32]).more(), part(read, 32, &[7; 33])],
        ),
        (
            "second_segment_of_a_read_response_with_another_stag",
            "RDMAP-77 DDP-23",
            code::STAG,
            |_, read| {
                vec![
                    part(read, 0, &[7; 32]).more(),
                    read_response(read.sink ^ 0x100, read.sink_to + 32, &[7; 32]),
                ]
            },
        ),
        (
            "octets_of_a_read_response_sent_twice",
            "RDMAP-77",
            code::BOUNDS,
            |_, read| vec![part(read, 0, &[7; 40]).more(), part(read, 0, &[7; 40])],
        ),
        (
            "middle_segment_of_a_read_response_too_long",
            "RDMAP-77 DDP-79",
            code::BOUNDS,
            |_, read| in_the_middle(read, part(read, 32, &[7; 33])),
        ),
        (
            "middle_segment_of_a_read_response_with_another_stag",
            "RDMAP-77 DDP-23",
            code::STAG,
            |_, read| {
                let (stag, to) = (read.sink ^ 0x100, read.sink_to + 32);
                in_the_middle(read, read_response(stag, to, &[7; 8]))
            },
        ),
        (
            "middle_segment_of_a_read_response_that_wraps",
            "RDMAP-35 DDP-80",
            code::WRAP,
            |_, read| in_the_middle(read, read_response(read.sink, u64::MAX - 7, &[7; 9])),
        ),
        (
            "octets_of_a_read_response_sent_again_and_again",
            "RDMAP-77",
            code::BOUNDS,
            |_, read| in_the_middle(read, part(read, 0, &[7; 64])),
        ),
        (
            "read_response_that_ends_early",
            "RDMAP-77",
            code::STREAM,
            |_, read| vec![part(read, 0, &[7; 63])],
        ),
        (
            "read_response_of_two_segments_that_ends_early",
            "RDMAP-77",
            code::STREAM,
            |_, read| vec![part(read, 0, &[7; 10]).more(), part(read, 10, &[7; 10])],
        ),
        (
            "empty_read_response_to_a_full_request",
            "RDMAP-77 DDP-41",
            code::STREAM,
            |_, read| vec![part(read, 0, &[])],
        ),
        (
            "read_response_with_ddp_version_0",
            "DDP-19",
            code::TAGGED_VERSION,
            |_, read| vec![part(read, 0, &[7; 64]).dv(0)],
        ),
        (
            "read_response_with_rdmap_version_2",
            "RDMAP-24",
            code::RDMAP_VERSION,
            |_, read| vec![part(read, 0, &[7; 64]).rv(2)],
        ),
        (
            "read_response_that_becomes_a_write",
            "DDP-22",
            code::OPCODE,
            |_, read| {
                vec![
                    part(read, 0, &[7; 32]).more(),
                    part(read, 32, &[7; 32]).opcode(op::WRITE),
                ]
            },
        ),
        (
            "send_inside_a_read_response",
            "DDP-22 DDP-44",
            code::OPCODE,
            |_, read| vec![part(read, 0, &[7; 32]).more(), send(1, b"x")],
        ),
    ];
    list.into_iter()
        .map(|(name, rows, code, make)| case(name, rows, move |b| bad_response(b, code, make)))
        .collect()
}

/// Returns a bad segment behind two good ones of 16 octets, none of them the last.
fn in_the_middle(read: &Read, bad: Segment) -> Segments {
    let good = [part(read, 0, &[7; 16]), part(read, 16, &[7; 16])];
    good.into_iter().chain([bad]).map(Segment::more).collect()
}

fn bad_response(b: &mut Bench<'_>, code: Code, make: fn(&Bench<'_>, &Read) -> Segments) -> Outcome {
    const SIZE: u32 = 64;
    let mut wire = b.begun()?;
    b.clean()?;
    let (read, ..) = pending(b, &mut wire, SIZE)?;
    let segments = make(b, &read);
    wire.send(&segments)?;
    wire.expect_refusal(code, &segments[segments.len() - 1])?;
    let event = b.agent.wait(&format!("wc {} send", wire.conn))?;
    require!(event[4] != "success", "{event:?}");
    b.failed(&wire, code)?;
    b.flushed(&wire, 4)?;
    beside_the_sink(b, SIZE as usize)?;
    for region in [b.no_write, b.no_read, b.foreign] {
        b.is_clean(&region)?;
    }
    Ok(())
}
