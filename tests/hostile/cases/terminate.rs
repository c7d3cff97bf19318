// SPDX-License-Identifier: GPL-2.0

//! Terminates to the device (RFC 5040, sections 4.8, 5.4 and 6.2.1).

use super::{
    case,
    code,
    refusals,
    refused,
    scripts,
    Case, //
};
use crate::{
    bench::Bench,
    frame::{
        bits,
        op,
        read,
        send,
        terminate_of,
        untagged,
        write,
        Code,
        Segment, //
    },
    wire::{
        End,
        Outcome,
        Wire, //
    }, //
};

pub(super) fn cases() -> Vec<Case> {
    let mut list = scripts![
        terminate_without_receive_buffers: "RDMAP-96",
        terminate_while_reads_are_unanswered: "RDMAP-96 RDMAP-101",
        terminate_inside_a_message: "RDMAP-96 RDMAP-97",
        terminate_inside_a_write: "RDMAP-96 RDMAP-97",
        terminate_as_the_first_fpdu: "RDMAP-97 MPA-9",
        fault_before_the_peers_end: "RDMAP-132 RDMAP-141 DDP-82",
        segments_behind_a_terminate_are_ignored: "RDMAP-97 RDMAP-137",
        terminate_crosses_a_terminate: "RDMAP-144 RDMAP-100",
        terminate_and_then_a_reset: "RDMAP-134",
        terminate_and_then_the_end: "RDMAP-134 RDMAP-135",
        reserved_bits_of_a_terminate_are_ignored: "RDMAP-41 RDMAP-25",
    ];
    for mdr in 0..8 {
        list.push(case(
            format!("terminate_with_mdr_{mdr:03b}"),
            "RDMAP-40 RDMAP-42 RDMAP-43 RDMAP-45 RDMAP-97",
            move |b| with_bits(b, mdr),
        ));
        list.push(case(
            format!("terminate_with_mdr_{mdr:03b}_and_nothing_behind_it"),
            "RDMAP-98 RDMAP-145",
            move |b| {
                let code = Code(0, 1, 2);
                accepted(b, &terminate_of(code.word() | (u32::from(mdr) << 13), &[]))
            },
        ));
    }
    for (layer, etype, code) in [
        (0, 0, 0xff),
        (0, 1, 0),
        (0, 1, 9),
        (0, 1, 0xff),
        (0, 2, 5),
        (0, 2, 8),
        (1, 0, 0),
        (1, 1, 4),
        (1, 2, 6),
        (2, 0, 2),
        (2, 0, 5),
        (3, 3, 3),
        (15, 15, 255),
    ] {
        list.push(case(
            format!("terminate_for_{layer}_{etype}_{code:02x}"),
            "RDMAP-39 RDMAP-97 RDMAP-133",
            move |b| accepted(b, &Code(layer, etype, code).alone()),
        ));
    }
    let good = || Code(0, 0, 0).alone();
    list.extend(refusals(vec![
        refused(
            "terminate_with_msn_0",
            "RDMAP-95 RDMAP-98",
            code::MSN,
            |_| untagged(op::TERMINATE, 2, 0, &[0; 4]),
        ),
        refused(
            "terminate_with_msn_2",
            "RDMAP-95 RDMAP-98",
            code::MSN,
            |_| untagged(op::TERMINATE, 2, 2, &[0; 4]),
        ),
        refused(
            "terminate_to_queue_0",
            "RDMAP-94 RDMAP-98",
            code::QUEUE,
            move |_| good().qn(0),
        ),
        refused(
            "terminate_to_queue_1",
            "RDMAP-94 RDMAP-98",
            code::QUEUE,
            move |_| good().qn(1),
        ),
        refused(
            "terminate_to_queue_3",
            "RDMAP-94 RDMAP-98",
            code::QUEUE,
            move |_| good().qn(3),
        ),
        refused(
            "terminate_with_an_offset",
            "RDMAP-95 RDMAP-98",
            code::OFFSET,
            move |_| good().mo(4),
        ),
        refused(
            "terminate_in_several_segments",
            "RDMAP-95 RDMAP-98",
            code::STREAM,
            move |_| good().more(),
        ),
        refused(
            "terminate_without_its_header",
            "RDMAP-98 DDP-31",
            code::STREAM,
            move |_| good().cut(18),
        ),
        refused(
            "terminate_of_three_octets",
            "RDMAP-98",
            code::STREAM,
            move |_| good().cut(21),
        ),
        refused(
            "terminate_longer_than_any",
            "RDMAP-98",
            code::STREAM,
            move |_| good().plus(&[0; 49]),
        ),
        refused(
            "terminate_with_rdmap_version_3",
            "RDMAP-147",
            code::RDMAP_VERSION,
            move |_| good().rv(3),
        ),
        refused(
            "terminate_with_ddp_version_3",
            "DDP-19",
            code::UNTAGGED_VERSION,
            move |_| good().dv(3),
        ),
    ]));
    list
}

/// Checks that the device takes the Terminate: it sends nothing more, and the program sees the
/// failure.
pub(super) fn is_over(b: &mut Bench<'_>, wire: &mut Wire) -> Outcome {
    wire.ends(End::Graceful)?;
    b.agent.wait(&format!("event {} QP_FATAL", wire.conn))?;
    b.agent.none_yet(&format!("event {}", wire.conn))?;
    b.down(wire)
}

fn accepted(b: &mut Bench<'_>, terminate: &Segment) -> Outcome {
    let mut wire = b.connect()?;
    b.clean()?;
    wire.send(std::slice::from_ref(terminate))?;
    is_over(b, &mut wire)?;
    b.flushed(&wire, 4)?;
    b.untouched()
}

/// Sends a Terminate with exactly the fields that the bits announce, whether they make sense
/// together or not.
fn with_bits(b: &mut Bench<'_>, mdr: u8) -> Outcome {
    let word = Code(0, 1, 2).word() | (u32::from(mdr) << 13);
    let request = read(1, 8, 77, 0);
    let mut rest = Vec::new();
    if word & bits::M != 0 {
        rest.extend([0, 46]);
    }
    if word & bits::D != 0 {
        rest.extend(&request[..18]);
    }
    if word & bits::R != 0 {
        rest.extend(&request[18..]);
    }
    accepted(b, &terminate_of(word, &rest))
}

fn terminate_without_receive_buffers(b: &mut Bench<'_>) -> Outcome {
    b.agent.set(&[("recvs", 0)])?;
    let mut wire = b.connect()?;
    wire.send(&[Code(0, 0, 0).alone()])?;
    is_over(b, &mut wire)
}

fn terminate_while_reads_are_unanswered(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.connect()?;
    wire.window(8192)?;
    let reads: Vec<Segment> = (1..5)
        .map(|msn| read(msn, 1 << 21, b.large.key, b.large.at))
        .collect();
    wire.send(&reads)?;
    wire.get()?;
    wire.send(&[Code(0, 0, 0).alone()])?;
    b.agent.wait(&format!("event {} QP_FATAL", wire.conn))?;
    // Segments that were sent before may still arrive, but no new message.
    let mut responses = 0;
    while let Ok(got) = wire.get() {
        responses += usize::from(got.is_last());
    }
    crate::wire::require!(responses < 4, "all Reads were answered");
    b.down(&wire)
}

fn terminate_inside_a_message(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.connect()?;
    wire.send(&[send(1, b"a").more(), code::CRC.alone()])?;
    is_over(b, &mut wire)?;
    b.flushed(&wire, 4)
}

fn terminate_inside_a_write(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.connect()?;
    wire.send(&[write(b.ram.key, b.ram.at, b"a").more(), code::CRC.alone()])?;
    is_over(b, &mut wire)
}

fn terminate_as_the_first_fpdu(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.answered()?;
    wire.send(&[Code(2, 0, 5).alone()])?;
    is_over(b, &mut wire)
}

/// The peer has closed its half only, so it hears what was wrong, however soon its end follows.
fn fault_before_the_peers_end(b: &mut Bench<'_>) -> Outcome {
    for _ in 0..50 {
        let mut wire = b.connect()?;
        let bad = write(0xffff_ffff, 0, b"x");
        wire.send(std::slice::from_ref(&bad))?;
        wire.half_close()?;
        wire.expect_refusal(code::STAG, &bad)?;
    }
    Ok(())
}

fn segments_behind_a_terminate_are_ignored(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.connect()?;
    b.clean()?;
    wire.send(&[
        Code(0, 0, 0).alone(),
        write(b.ram.key, b.ram.at, b"late"),
        send(1, b"late"),
        read(1, 4, b.ram.key, b.ram.at),
        send(99, b"wrong"),
    ])?;
    is_over(b, &mut wire)?;
    b.untouched()?;
    b.flushed(&wire, 4)
}

fn terminate_crosses_a_terminate(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.connect()?;
    let bad = send(9, b"x");
    wire.send(&[bad.clone(), Code(0, 0, 0).alone()])?;
    wire.expect_refusal(code::MSN, &bad)?;
    b.failed(&wire, code::MSN)
}

fn terminate_and_then_a_reset(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.connect()?;
    wire.send(&[Code(0, 0, 0).alone()])?;
    let conn = wire.conn;
    wire.reset()?;
    b.agent.wait(&format!("event {conn} QP_FATAL"))?;
    b.agent.wait(&format!("disconnected {conn}")).map(drop)
}

fn terminate_and_then_the_end(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.connect()?;
    wire.send(&[Code(0, 0, 0).alone()])?;
    wire.half_close()?;
    is_over(b, &mut wire)
}

fn reserved_bits_of_a_terminate_are_ignored(b: &mut Bench<'_>) -> Outcome {
    for terminate in [
        terminate_of(Code(0, 0, 0).word() | 0x1fff, &[]),
        Code(0, 0, 0)
            .alone()
            .ddp_reserved(15)
            .rdmap_reserved(3)
            .inv(b.ram.key),
        // Parts that are not in use may still be present, as zeros.
        terminate_of(Code(2, 0, 2).word(), &[0; 20]),
    ] {
        accepted(b, &terminate)?;
    }
    Ok(())
}
