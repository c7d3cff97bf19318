// SPDX-License-Identifier: GPL-2.0

//! Atomic operations that the device has to refuse (RFC 7306, sections 5, 8 and 9).

use super::{
    answer,
    compare_swap,
    draft_swap,
    fetch_add,
    Atomic, //
};
use crate::cases::{
    code,
    refusals,
    refused,
    Case,
    Refusal, //
};

pub(super) fn cases() -> Vec<Case> {
    refusals(bad_requests())
        .chain((1..8).flat_map(unaligned))
        .collect()
}

fn bad_requests() -> Vec<Refusal> {
    let add = |stag, to| fetch_add(stag, to, 1, 0).segment(1);
    let swap = |stag, to| compare_swap(stag, to, (1, u64::MAX), (0, 0)).segment(1);
    let mut list = vec![
        refused(
            "atomic_with_an_unknown_key",
            "EXT-59",
            code::SOURCE_STAG,
            move |b| add(b.ram.key ^ 0x55, b.ram.at),
        ),
        refused(
            "atomic_with_an_unknown_stag",
            "EXT-59 EXT-75",
            code::SOURCE_STAG,
            move |b| swap(0xffff_ff00, b.ram.at),
        ),
        refused(
            "atomic_on_memory_of_another_domain",
            "EXT-59",
            code::SOURCE_STREAM,
            move |b| add(b.foreign.key, b.foreign.at),
        ),
        refused(
            "fetch_add_without_the_right",
            "EXT-59 EXT-78",
            code::SOURCE_RIGHTS,
            move |b| add(b.no_write.key, b.no_write.at),
        ),
        refused(
            "compare_swap_without_the_right",
            "EXT-59 EXT-78",
            code::SOURCE_RIGHTS,
            move |b| swap(b.no_read.key, b.no_read.at),
        ),
        refused(
            "draft_swap_without_the_right",
            "EXT-81",
            code::SOURCE_RIGHTS,
            move |b| draft_swap(b.no_read.key, b.no_read.at, (1, u64::MAX)).segment(1),
        ),
        refused(
            "draft_swap_behind_the_region",
            "EXT-81",
            code::SOURCE_BOUNDS,
            move |b| draft_swap(b.ram.key, b.ram.end(), (1, u64::MAX)).segment(1),
        ),
        refused(
            "draft_swap_at_4_modulo_8",
            "EXT-81",
            code::STREAM,
            move |b| draft_swap(b.ram.key, b.ram.at + 68, (1, u64::MAX)).segment(1),
        ),
        refused(
            "atomic_before_the_region",
            "EXT-59",
            code::SOURCE_BOUNDS,
            move |b| add(b.ram.key, b.ram.at - 8),
        ),
        refused(
            "atomic_behind_the_region",
            "EXT-59",
            code::SOURCE_BOUNDS,
            move |b| swap(b.ram.key, b.ram.end()),
        ),
        refused(
            "atomic_across_the_end_of_the_region",
            "EXT-59",
            code::SOURCE_BOUNDS,
            move |b| add(b.ram.key, b.ram.end() - 4),
        ),
        refused(
            "atomic_across_the_end_of_all_offsets",
            "EXT-59",
            code::SOURCE_WRAP,
            move |b| add(b.ram.key, u64::MAX - 3),
        ),
        refused(
            "atomic_with_rdmap_version_0",
            "EXT-6 EXT-76",
            code::RDMAP_VERSION,
            move |b| add(b.ram.key, b.ram.at).rv(0),
        ),
        refused(
            "atomic_in_the_tagged_model",
            "EXT-9",
            code::OPCODE,
            move |b| add(b.ram.key, b.ram.at).flip_t(),
        ),
        refused("atomic_with_an_offset", "EXT-12", code::OFFSET, move |b| {
            add(b.ram.key, b.ram.at).mo(4)
        }),
        refused("atomic_with_number_0", "EXT-12", code::MSN, move |b| {
            fetch_add(b.ram.key, b.ram.at, 1, 0).segment(0)
        }),
        refused("atomic_with_number_2", "EXT-12", code::MSN, move |b| {
            fetch_add(b.ram.key, b.ram.at, 1, 0).segment(2)
        }),
        refused("atomic_in_two_segments", "EXT-13", code::STREAM, move |b| {
            add(b.ram.key, b.ram.at).more()
        }),
        refused(
            "atomic_without_its_last_octet",
            "EXT-13",
            code::STREAM,
            move |b| add(b.ram.key, b.ram.at).cut(18 + 51),
        ),
        refused(
            "atomic_with_an_octet_more",
            "EXT-13",
            code::STREAM,
            move |b| add(b.ram.key, b.ram.at).plus(b"x"),
        ),
        refused(
            "atomic_inside_a_message",
            "EXT-12 DDP-22",
            code::OPCODE,
            move |b| add(b.ram.key, b.ram.at),
        )
        .behind(|_| vec![crate::frame::send(1, b"a").more()]),
        refused(
            "unexpected_atomic_response",
            "EXT-46",
            code::NO_BUFFER,
            |_| answer(1, 0, 0),
        ),
        refused("atomic_response_with_number_2", "EXT-48", code::MSN, |_| {
            answer(2, 0, 0)
        }),
    ];
    for queue in [0, 2, 3, 4] {
        list.push(refused(
            format!("atomic_in_queue_{queue}"),
            "EXT-10 EXT-80",
            code::QUEUE,
            move |b| add(b.ram.key, b.ram.at).qn(queue),
        ));
    }
    for queue in [0, 1, 2, 4] {
        list.push(refused(
            format!("atomic_response_in_queue_{queue}"),
            "EXT-10 EXT-80",
            code::QUEUE,
            move |_| answer(1, 0, 0).qn(queue),
        ));
    }
    for aopcode in [3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15] {
        list.push(refused(
            format!("atomic_operation_{aopcode}"),
            "EXT-39 EXT-79",
            code::OPCODE,
            move |b| {
                Atomic {
                    aopcode,
                    ..fetch_add(b.ram.key, b.ram.at, 1, 0)
                }
                .segment(1)
            },
        ));
    }
    list
}

/// Returns both operations on an address that is not a multiple of 8.
fn unaligned(residue: u64) -> [Case; 2] {
    [
        refused(
            format!("fetch_add_at_{residue}_modulo_8"),
            "EXT-24 EXT-25 EXT-77",
            code::STREAM,
            move |b| fetch_add(b.ram.key, b.ram.at + 64 + residue, 1, 0).segment(1),
        )
        .into(),
        refused(
            format!("compare_swap_at_{residue}_modulo_8"),
            "EXT-30 EXT-77",
            code::STREAM,
            move |b| {
                let swap = (1, u64::MAX);
                compare_swap(b.ram.key, b.ram.at + 64 + residue, swap, (0, 0)).segment(1)
            },
        )
        .into(),
    ]
}
