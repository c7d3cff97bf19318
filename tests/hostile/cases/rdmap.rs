// SPDX-License-Identifier: GPL-2.0

//! Opcodes against models and queues, invalidation, and extensions that this device lacks (RFC
//! 5040, sections 4 and 5.3; RFC 7306).

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
        op,
        read,
        send,
        tagged,
        untagged,
        write,
        Segment, //
    },
    wire::Outcome, //
};

pub(super) fn cases() -> Vec<Case> {
    let mut list = scripts![
        invalidate_leaves_a_shared_region_valid: "RDMAP-93 RDMAP-166",
        invalidate_uses_stag_of_the_last_segment: "RDMAP-22 RDMAP-93 DDP-53",
        invalidate_field_is_ignored_in_other_messages: "RDMAP-26",
        send_with_invalidate_has_taken_its_receive: "RDMAP-80 RDMAP-93",
    ];
    let mut bad = vec![
        refused(
            "send_in_the_tagged_model",
            "RDMAP-23 DDP-12",
            code::OPCODE,
            |b| tagged(op::SEND, b.ram.key, b.ram.at, b"x"),
        ),
        refused(
            "solicited_send_in_the_tagged_model",
            "RDMAP-23",
            code::OPCODE,
            |b| tagged(op::SEND_SE, b.ram.key, b.ram.at, b"x"),
        ),
        refused(
            "send_with_invalidate_in_the_tagged_model",
            "RDMAP-23",
            code::OPCODE,
            |b| tagged(op::SEND_INV, b.ram.key, b.ram.at, b"x"),
        ),
        refused(
            "read_request_in_the_tagged_model",
            "RDMAP-23 RDMAP-60",
            code::OPCODE,
            |b| tagged(op::READ_REQUEST, b.ram.key, b.ram.at, &[0; 28]),
        ),
        refused(
            "terminate_in_the_tagged_model",
            "RDMAP-23 RDMAP-94",
            code::OPCODE,
            |b| tagged(op::TERMINATE, b.ram.key, b.ram.at, &[0; 4]),
        ),
        refused(
            "write_in_the_untagged_model",
            "RDMAP-23 RDMAP-50",
            code::OPCODE,
            |_| untagged(op::WRITE, 0, 1, b"x"),
        ),
        refused(
            "read_response_in_the_untagged_model",
            "RDMAP-23 RDMAP-72",
            code::OPCODE,
            |_| untagged(op::READ_RESPONSE, 0, 1, b"x"),
        ),
        refused(
            "send_with_its_t_bit_flipped",
            "RDMAP-23 DDP-12",
            code::OPCODE,
            |_| send(1, b"x").flip_t(),
        ),
        refused(
            "write_with_its_t_bit_flipped",
            "RDMAP-23 DDP-12",
            code::OPCODE,
            |b| write(b.ram.key, b.ram.at, b"12345678").flip_t(),
        ),
        refused(
            "read_request_with_its_t_bit_flipped",
            "RDMAP-23 RDMAP-43",
            code::OPCODE,
            |b| read(1, 8, b.ram.key, b.ram.at).flip_t(),
        ),
        refused(
            "invalidate_of_an_unknown_stag",
            "RDMAP-93 RDMAP-148",
            code::INVALIDATE_UNKNOWN,
            |_| send(1, b"x").opcode(op::SEND_INV).inv(0x7f00_0000),
        )
        .receive("rem_inv_req"),
        refused(
            "invalidate_of_stag_0",
            "RDMAP-93",
            code::INVALIDATE_UNKNOWN,
            |_| send(1, b"x").opcode(op::SEND_INV),
        )
        .receive("rem_inv_req"),
        refused(
            "solicited_invalidate_of_an_unknown_stag",
            "RDMAP-93",
            code::INVALIDATE_UNKNOWN,
            |_| send(1, &[]).opcode(op::SEND_SE_INV).inv(u32::MAX),
        )
        .receive("rem_inv_req"),
        refused(
            "invalidate_of_a_shared_region",
            "RDMAP-93 RDMAP-166",
            code::CANNOT_INVALIDATE,
            |b| send(1, b"x").opcode(op::SEND_INV).inv(b.ram.key),
        )
        .receive("rem_inv_req"),
        refused(
            "solicited_invalidate_of_a_shared_region",
            "RDMAP-166",
            code::CANNOT_INVALIDATE,
            |b| send(1, &[]).opcode(op::SEND_SE_INV).inv(b.ram.key),
        )
        .receive("rem_inv_req"),
        refused(
            "invalidate_in_another_pd",
            "RDMAP-91 RDMAP-149 RDMAP-160",
            code::CANNOT_INVALIDATE,
            |b| send(1, b"x").opcode(op::SEND_INV).inv(b.foreign.key),
        )
        .receive("rem_inv_req"),
        refused(
            "invalidate_to_a_wrong_queue",
            "DDP-69 RDMAP-146",
            code::QUEUE,
            |b| send(1, b"x").opcode(op::SEND_INV).inv(b.ram.key).qn(1),
        ),
        refused(
            "invalidate_with_a_wrong_number",
            "DDP-74 RDMAP-146",
            code::MSN,
            |b| send(2, b"x").opcode(op::SEND_INV).inv(b.ram.key),
        ),
        refused("unasked_read_response", "RDMAP-75", code::OPCODE, |b| {
            tagged(op::READ_RESPONSE, b.ram.key, b.ram.at, b"x")
        }),
        refused(
            "unasked_empty_read_response",
            "RDMAP-75 DDP-41",
            code::OPCODE,
            |_| tagged(op::READ_RESPONSE, 0, 0, &[]),
        ),
    ];
    for opcode in 12..16 {
        bad.push(refused(
            format!("untagged_opcode_{opcode}"),
            "RDMAP-27 RDMAP-147",
            code::OPCODE,
            move |_| untagged(opcode, 0, 1, b"x"),
        ));
    }
    for opcode in 8..16 {
        bad.push(refused(
            format!("tagged_opcode_{opcode}"),
            "RDMAP-27 EXT-9",
            code::OPCODE,
            move |b| tagged(opcode, b.ram.key, b.ram.at, b"x"),
        ));
    }
    let extensions: [(&str, Segment); 3] = [
        ("immediate_data", untagged(op::IMMEDIATE, 0, 1, &[7; 8])),
        (
            "solicited_immediate_data",
            untagged(op::IMMEDIATE_SE, 0, 1, &[7; 8]),
        ),
        (
            "long_immediate_data",
            untagged(op::IMMEDIATE, 0, 1, &[7; 9]),
        ),
    ];
    for (name, segment) in extensions {
        bad.push(refused(
            format!("{name}_of_rdmap_version_0"),
            "EXT-6 RDMAP-24",
            code::RDMAP_VERSION,
            move |_| segment.clone().rv(0),
        ));
    }
    for opcode in 0..8 {
        // Each assigned opcode with the reserved version of the RDMA Consortium.
        let is_tagged = opcode == op::WRITE || opcode == op::READ_RESPONSE;
        bad.push(refused(
            format!("opcode_{opcode}_of_rdmap_version_0"),
            "RDMAP-24 RDMAP-151",
            code::RDMAP_VERSION,
            move |_| {
                if is_tagged {
                    tagged(opcode, 0, 0, b"x").rv(0)
                } else {
                    untagged(opcode, 0, 1, &[0; 28]).rv(0)
                }
            },
        ));
    }
    list.extend(refusals(bad));
    for opcode in [op::SEND_INV, op::SEND_SE_INV] {
        let without_wait = case(
            format!("opcode_{opcode}_without_a_receive"),
            "RDMAP-89 DDP-70",
            move |b| {
                b.setting("receive_wait", 0)?;
                b.agent.set(&[("recvs", 0)])?;
                let mut wire = b.connect()?;
                let bad = send(1, b"x").opcode(opcode).inv(b.ram.key);
                b.refuses(&mut wire, code::NO_BUFFER, &bad)
            },
        );
        list.push(without_wait.alone());
    }
    list
}

fn invalidate_leaves_a_shared_region_valid(b: &mut Bench<'_>) -> Outcome {
    let mut other = b.connect()?;
    for key in [b.ram.key, b.ram.key ^ 1] {
        let mut wire = b.connect()?;
        let bad = send(1, b"x").opcode(op::SEND_INV).inv(key);
        wire.send(std::slice::from_ref(&bad))?;
        let got = wire.get()?;
        crate::wire::require!(
            got.0 == code::CANNOT_INVALIDATE.answer(&bad)
                || got.0 == code::INVALIDATE_UNKNOWN.answer(&bad),
            "{}",
            got.describe()
        );
        b.works(&mut other)?;
    }
    Ok(())
}

fn invalidate_uses_stag_of_the_last_segment(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.connect()?;
    let segment = |data| send(1, data).opcode(op::SEND_INV).inv(b.ram.key);
    wire.send(&[segment(b"ab").more()])?;
    b.agent.none(&format!("event {}", wire.conn))?;
    let bad = segment(b"cd").mo(2);
    b.refuses(&mut wire, code::CANNOT_INVALIDATE, &bad)?;
    b.receives_end(&wire, &["rem_inv_req", "flushed", "flushed", "flushed"])
}

fn invalidate_field_is_ignored_in_other_messages(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.connect()?;
    let msn = wire.next_read();
    wire.send(&[
        send(1, b"x").inv(b.ram.key),
        send(2, b"x").opcode(op::SEND_SE).inv(b.ram.key),
        read(msn, 0, 0, 0).inv(b.ram.key),
    ])?;
    wire.message()?;
    b.received(&wire, b"x")?;
    b.received(&wire, b"x")?;
    b.works(&mut wire)
}

fn send_with_invalidate_has_taken_its_receive(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.connect()?;
    let bad = send(2, b"x").opcode(op::SEND_INV).inv(b.ram.key);
    wire.send(&[send(1, b"fine"), bad.clone()])?;
    wire.expect_refusal(code::CANNOT_INVALIDATE, &bad)?;
    b.receives_end(&wire, &["success", "rem_inv_req", "flushed", "flushed"])
}
