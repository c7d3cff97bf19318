// SPDX-License-Identifier: GPL-2.0

//! Sends to the device: queues, numbers, offsets, receive buffers (RFC 5040, section 5.3; RFC 5041,
//! sections 5 and 7).

use std::{
    thread::sleep,
    time::Duration, //
};

use super::{
    case,
    code,
    refusals,
    refused,
    scripts,
    Case, //
};
use crate::{
    bench::{
        Bench,
        RECEIVES,
        RECEIVE_LEN, //
    },
    frame::{
        op,
        pattern,
        read,
        send,
        write,
        Segment, //
    },
    wire::{
        require,
        Outcome, //
    }, //
};

pub(super) fn cases() -> Vec<Case> {
    let mut list = scripts![
        sends_of_all_kinds_arrive: "DDP-54 RDMAP-79 RDMAP-80 RDMAP-81 RDMAP-83 RDMAP-88",
        segments_make_one_message: "RDMAP-4 DDP-36 DDP-52 RDMAP-3",
        message_without_its_last_segment: "RDMAP-119 DDP-16 DDP-17 DDP-51",
        segments_of_a_send_out_of_order: "DDP-37",
        reserved_bits_of_a_send_are_ignored: "RDMAP-25 RDMAP-26 DDP-18",
        send_that_fills_its_buffer: "DDP-73 RDMAP-81",
        message_waits_for_its_receive: "DDP-71 MPA-9",
        message_waits_longer_than_the_keepalive_of_the_peer: "DDP-71",
        receive_buffer_posted_in_time: "DDP-70 RDMAP-80",
        last_segment_leaves_the_receive_buffer: "DDP-73 RDMAP-82",
        middle_segment_leaves_the_receive_buffer: "DDP-72 DDP-83",
        last_segment_before_octets_already_placed: "DDP-15 DDP-37",
        message_with_a_gap: "DDP-37 DDP-51",
        empty_segment_ends_a_message: "DDP-15 DDP-51",
        connection_lost_inside_a_message: "RDMAP-7 MPA-30 DDP-59",
        empty_receive_buffers: "RDMAP-82 DDP-73",
    ];
    let alone = scripts![
        no_receive_buffer: "RDMAP-85 DDP-70 DDP-71 RDMAP-89",
        no_receive_buffer_for_an_empty_send: "RDMAP-89",
        receive_buffers_used_up: "DDP-70 RDMAP-80",
        flood_of_messages_without_receives: "DDP-71",
        message_waits_longer_than_the_peer_has_patience: "DDP-71",
    ];
    list.extend(alone.into_iter().map(Case::alone));
    let mut bad = vec![
        refused("send_behind_its_buffer", "DDP-72", code::OFFSET, |_| {
            send(1, b"x").mo(RECEIVE_LEN)
        })
        .receive("loc_len"),
        refused("send_far_behind_its_buffer", "DDP-72", code::OFFSET, |_| {
            send(1, b"x").mo(u32::MAX)
        })
        .receive("loc_len"),
        refused(
            "send_longer_than_its_buffer",
            "DDP-73 RDMAP-82",
            code::TOO_LONG,
            |_| send(1, &[7; RECEIVE_LEN as usize + 1]),
        )
        .receive("loc_len"),
        refused(
            "send_across_the_end_of_its_buffer",
            "DDP-73",
            code::TOO_LONG,
            |_| send(1, &[7; 2]).mo(RECEIVE_LEN - 1),
        )
        .receive("loc_len"),
        refused("send_whose_offset_wraps", "DDP-72", code::OFFSET, |_| {
            send(1, &[7; 4096]).mo(u32::MAX - 100)
        })
        .receive("loc_len"),
        refused(
            "send_behind_a_good_one_too_long",
            "DDP-73 DDP-49",
            code::TOO_LONG,
            |_| send(2, &[7; 5000]),
        )
        .behind(|_| vec![send(1, b"fine")])
        .receive("loc_len"),
        refused("msn_repeated", "DDP-74 DDP-48", code::MSN, |_| {
            send(1, b"again")
        })
        .behind(|_| vec![send(1, b"1")]),
        refused("msn_goes_back_far", "DDP-74", code::MSN, |_| {
            send(1, b"again")
        })
        .behind(|_| vec![send(1, b"1"), send(2, b"2"), send(3, b"3")]),
        refused("msn_left_out", "DDP-74", code::MSN, |_| send(3, b"3"))
            .behind(|_| vec![send(1, b"1")]),
        refused(
            "opcode_changes_inside_a_message",
            "DDP-22",
            code::OPCODE,
            |_| send(1, b"b").mo(1).opcode(op::SEND_SE),
        )
        .behind(|_| vec![send(1, b"a").more()]),
        refused(
            "read_request_inside_a_message",
            "DDP-22 DDP-44 RDMAP-40",
            code::OPCODE,
            |b| read(1, 8, b.ram.key, b.ram.at),
        )
        .behind(|_| vec![send(1, b"a").more()]),
        refused(
            "write_inside_a_message",
            "DDP-22 DDP-44",
            code::OPCODE,
            |b| write(b.ram.key, b.ram.at, b"x"),
        )
        .behind(|_| vec![send(1, b"a").more()]),
        refused(
            "empty_write_inside_a_message",
            "DDP-22 DDP-44",
            code::OPCODE,
            |_| write(0, 0, &[]),
        )
        .behind(|_| vec![send(1, b"a").more()]),
        refused(
            "next_message_before_the_end_of_this_one",
            "DDP-44 DDP-14",
            code::OPCODE,
            |_| send(2, b"b"),
        )
        .behind(|_| vec![send(1, b"a").more()]),
        refused(
            "number_changes_inside_a_message",
            "DDP-29",
            code::MSN,
            |_| send(7, b"b").mo(1),
        )
        .behind(|_| vec![send(1, b"a").more()]),
        refused(
            "queue_changes_inside_a_message",
            "DDP-28",
            code::QUEUE,
            |_| send(1, b"b").mo(1).qn(2),
        )
        .behind(|_| vec![send(1, b"a").more()]),
        refused(
            "version_changes_inside_a_message",
            "DDP-20",
            code::UNTAGGED_VERSION,
            |_| send(1, b"b").mo(1).dv(0),
        )
        .behind(|_| vec![send(1, b"a").more()]),
    ];
    for queue in [1, 2, 3, 4, 0x0001_0000, 0x8000_0000, u32::MAX] {
        bad.push(refused(
            format!("send_to_queue_{queue}"),
            "DDP-69 EXT-80 RDMAP-79",
            code::QUEUE,
            move |_| send(1, b"x").qn(queue),
        ));
    }
    for msn in [0, 2, 3, 0x0100_0000, 0x8000_0001, u32::MAX] {
        bad.push(refused(
            format!("first_send_with_msn_{msn}"),
            "DDP-74 DDP-29",
            code::MSN,
            move |_| send(msn, b"x"),
        ));
    }
    for version in [0, 2, 3] {
        bad.push(refused(
            format!("send_with_ddp_version_{version}"),
            "DDP-19",
            code::UNTAGGED_VERSION,
            move |_| send(1, b"x").dv(version),
        ));
        bad.push(refused(
            format!("send_with_rdmap_version_{version}"),
            "RDMAP-24 RDMAP-147",
            code::RDMAP_VERSION,
            move |_| send(1, b"x").rv(version),
        ));
    }
    // Of two faults in a segment, the device reports the one that it checks first.
    bad.extend([
        refused(
            "versions_both_wrong",
            "DDP-86",
            code::UNTAGGED_VERSION,
            |_| send(1, b"x").dv(0).rv(0),
        ),
        refused(
            "rdmap_version_and_opcode_wrong",
            "DDP-86",
            code::RDMAP_VERSION,
            |_| send(1, b"x").rv(0).opcode(15),
        ),
        refused("opcode_and_queue_wrong", "DDP-86", code::OPCODE, |_| {
            send(1, b"x").opcode(15).qn(9)
        }),
        refused("queue_and_number_wrong", "DDP-86", code::QUEUE, |_| {
            send(9, b"x").qn(9)
        }),
        refused("number_and_offset_wrong", "DDP-86", code::MSN, |_| {
            send(9, b"x").mo(u32::MAX)
        }),
        refused("offset_and_length_wrong", "DDP-86", code::OFFSET, |_| {
            send(1, &[7; 5000]).mo(5000)
        })
        .receive("loc_len"),
    ]);
    list.extend(refusals(bad));
    for len in [1, 2, 17, 18, 19, 1460, 4095, 4096] {
        list.push(case(
            format!("send_of_{len}_octets"),
            "RDMAP-4 RDMAP-81 DDP-35",
            move |b| {
                let mut wire = b.connect()?;
                let data = pattern(len);
                wire.send(&[send(1, &data)])?;
                b.received(&wire, &data)
            },
        ));
    }
    list
}

fn sends_of_all_kinds_arrive(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.connect()?;
    wire.send(&[
        send(1, b"a"),
        send(2, &[]).opcode(op::SEND_SE),
        send(3, b"ccc").opcode(op::SEND_SE),
        send(4, &[]),
    ])?;
    for data in [&b"a"[..], b"", b"ccc", b""] {
        b.received(&wire, data)?;
    }
    Ok(())
}

/// Cuts a message at these places.
fn cut_at(msn: u32, data: &[u8], places: &[usize]) -> Vec<Segment> {
    places
        .windows(2)
        .map(|cut| {
            let segment = send(msn, &data[cut[0]..cut[1]]).mo(cut[0] as u32);
            if cut[1] == data.len() {
                segment
            } else {
                segment.more()
            }
        })
        .collect()
}

fn segments_make_one_message(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.connect()?;
    let data = pattern(4000);
    wire.send(&cut_at(1, &data, &[0, 1, 2, 500, 1900, 4000]))?;
    b.received(&wire, &data)?;
    wire.send(&cut_at(2, &data, &[0, 3999, 4000]))?;
    b.received(&wire, &data)
}

fn message_without_its_last_segment(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.connect()?;
    wire.send(&[send(1, b"first").more()])?;
    b.agent.none(&format!("wc {}", wire.conn))?;
    wire.send(&[send(1, b"last").mo(5)])?;
    b.received(&wire, b"firstlast")
}

fn segments_of_a_send_out_of_order(b: &mut Bench<'_>) -> Outcome {
    // A sender should not do this; the device places segments by their offsets.
    let mut wire = b.connect()?;
    wire.send(&[
        send(1, b"cd").mo(2).more(),
        send(1, b"ab").more(),
        send(1, b"ef").mo(4),
    ])?;
    b.received(&wire, b"abcdef")
}

fn reserved_bits_of_a_send_are_ignored(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.connect()?;
    for (ddp, rdmap) in [(15, 0), (0, 3), (15, 3)] {
        let msn = wire.next_send();
        wire.send(&[send(msn, b"reserved")
            .ddp_reserved(ddp)
            .rdmap_reserved(rdmap)
            .inv(b.ram.key)])?;
        b.received(&wire, b"reserved")?;
    }
    // Nothing was invalidated.
    b.works(&mut wire)
}

fn send_that_fills_its_buffer(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.connect()?;
    let data = pattern(RECEIVE_LEN as usize);
    wire.send(&cut_at(1, &data, &[0, 4095, 4096]))?;
    b.received(&wire, &data)
}

fn without_buffer(b: &mut Bench<'_>, data: &[u8]) -> Outcome {
    b.setting("receive_wait", 0)?;
    b.agent.set(&[("recvs", 0)])?;
    let mut wire = b.connect()?;
    let bad = send(1, data);
    b.refuses(&mut wire, code::NO_BUFFER, &bad)
}

fn no_receive_buffer(b: &mut Bench<'_>) -> Outcome {
    without_buffer(b, b"x")
}

fn no_receive_buffer_for_an_empty_send(b: &mut Bench<'_>) -> Outcome {
    without_buffer(b, &[])
}

fn receive_buffers_used_up(b: &mut Bench<'_>) -> Outcome {
    b.setting("receive_wait", 0)?;
    b.agent.set(&[("recvs", 2)])?;
    let mut wire = b.connect()?;
    let bad = send(3, b"3");
    wire.send(&[send(1, b"1"), send(2, b"2"), bad.clone()])?;
    wire.expect_refusal(code::NO_BUFFER, &bad)?;
    b.received(&wire, b"1")?;
    b.received(&wire, b"2")?;
    b.failed(&wire, code::NO_BUFFER)
}

/// Nothing is answered or placed meanwhile, and what is behind the message waits in TCP.
fn message_waits_for_its_receive(b: &mut Bench<'_>) -> Outcome {
    b.agent.set(&[("recvs", 0)])?;
    let mut wire = b.connect()?;
    b.clean()?;
    let waits = b.settled_counter("rx_receive_waits")?;
    wire.send(&[
        send(1, b"one"),
        write(b.ram.key, b.ram.at, b"behind"),
        send(2, b"two"),
    ])?;
    wire.silent()?;
    b.untouched()?;
    b.agent.ask(&format!("recv {} 1", wire.conn))?;
    b.received(&wire, b"one")?;
    wire.silent()?;
    b.agent.ask(&format!("recv {} 1", wire.conn))?;
    b.received(&wire, b"two")?;
    let waits = b.settled_counter("rx_receive_waits")? - waits;
    require!(waits == 2, "{waits} messages have waited");
    Ok(())
}

/// The device's TCP answers the peer's while the message waits.
fn message_waits_longer_than_the_keepalive_of_the_peer(b: &mut Bench<'_>) -> Outcome {
    let keepalive = Duration::from_secs(2);
    b.agent.set(&[("recvs", 0)])?;
    let mut wire = b.connect()?;
    wire.keepalive(keepalive)?;
    wire.send(&[send(1, b"late")])?;
    sleep(2 * keepalive);
    b.agent.ask(&format!("recv {} 1", wire.conn))?;
    b.received(&wire, b"late")?;
    b.agent.ask(&format!("recv {} 1", wire.conn))?;
    wire.send(&[send(2, b"next")])?;
    b.received(&wire, b"next")
}

/// A peer with TCP_USER_TIMEOUT gives the connection up, without a word to the device, when what it
/// sends is not taken for that time. What the device has taken before is delivered.
fn message_waits_longer_than_the_peer_has_patience(b: &mut Bench<'_>) -> Outcome {
    let data = [7; 1000];
    b.agent.set(&[("recvs", 0)])?;
    let wire = b.connect()?;
    wire.patience(Duration::from_secs(2))?;
    wire.stuff(&send(1, &data).fpdu(), usize::MAX)?;
    wire.gives_up()?;
    b.agent.set(&[("recvs", RECEIVES as u32)])?;
    b.serves()?;
    b.agent.ask(&format!("recv {} 1", wire.conn))?;
    b.received(&wire, &data)
}

/// A peer that sends on and on, and gets no receive, has what TCP's buffers hold and no more;
/// others go on.
fn flood_of_messages_without_receives(b: &mut Bench<'_>) -> Outcome {
    // The most that a receive buffer of one end and a send buffer of the other may have.
    let limit = ["tcp_rmem", "tcp_wmem"]
        .into_iter()
        .try_fold(0, |sum, name| {
            let text = std::fs::read_to_string(format!("/proc/sys/net/ipv4/{name}"))?;
            let most = text
                .split_whitespace()
                .last()
                .and_then(|most| most.parse().ok());
            Outcome::Ok(sum + most.unwrap_or(0usize))
        })?;
    b.agent.set(&[("recvs", 0)])?;
    let wire = b.connect()?;
    wire.stuff(&send(1, &[7; 1000]).fpdu(), limit)?;
    b.agent.set(&[("recvs", RECEIVES as u32)])?;
    b.serves()?;
    let conn = wire.conn;
    wire.reset()?;
    b.agent.wait(&format!("disconnected {conn}"))?;
    b.serves()
}

fn receive_buffer_posted_in_time(b: &mut Bench<'_>) -> Outcome {
    b.agent.set(&[("recvs", 0)])?;
    let mut wire = b.connect()?;
    for msn in 1..4 {
        b.agent.ask(&format!("recv {} 1", wire.conn))?;
        wire.send(&[send(msn, b"x")])?;
        b.received(&wire, b"x")?;
    }
    Ok(())
}

/// Sends a message whose last segment is refused with this code, behind segments that are in order.
fn ends_badly(
    b: &mut Bench<'_>,
    before: &[Segment],
    bad: &Segment,
    code: crate::frame::Code,
) -> Outcome {
    let mut wire = b.connect()?;
    wire.send(before)?;
    b.refuses(&mut wire, code, bad)?;
    b.receives_end(&wire, &["loc_len", "flushed", "flushed", "flushed"])
}

fn last_segment_leaves_the_receive_buffer(b: &mut Bench<'_>) -> Outcome {
    ends_badly(
        b,
        &[send(1, &[1; 4000]).more()],
        &send(1, &[1; 97]).mo(4000),
        code::TOO_LONG,
    )
}

/// Four segments of a Send arrive together.
fn middle_segment_leaves_the_receive_buffer(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.connect()?;
    let bad = send(1, &[1; 100]).mo(RECEIVE_LEN).more();
    wire.send(&[
        send(1, &[1; 100]).more(),
        send(1, &[1; 100]).mo(100).more(),
        bad.clone(),
        send(1, &[1; 100]).mo(200),
    ])?;
    wire.expect_refusal(code::OFFSET, &bad)?;
    b.failed(&wire, code::OFFSET)?;
    b.receives_end(&wire, &["loc_len", "flushed", "flushed", "flushed"])
}

fn last_segment_before_octets_already_placed(b: &mut Bench<'_>) -> Outcome {
    ends_badly(
        b,
        &[send(1, b"cd").mo(2).more()],
        &send(1, b"ab"),
        code::OFFSET,
    )
}

fn message_with_a_gap(b: &mut Bench<'_>) -> Outcome {
    ends_badly(
        b,
        &[send(1, b"ab").more()],
        &send(1, b"de").mo(3),
        code::OFFSET,
    )
}

fn empty_segment_ends_a_message(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.connect()?;
    wire.send(&[
        send(1, b"ab").more(),
        send(1, &[]).mo(2).more(),
        send(1, &[]).mo(2),
    ])?;
    b.received(&wire, b"ab")
}

fn connection_lost_inside_a_message(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.connect()?;
    wire.send(&[send(1, b"begun").more()])?;
    wire.half_close()?;
    wire.ends(crate::wire::End::Any)?;
    b.down(&wire)?;
    b.flushed(&wire, 4)
}

fn empty_receive_buffers(b: &mut Bench<'_>) -> Outcome {
    b.agent.set(&[("recv_len", 0)])?;
    let mut wire = b.connect()?;
    wire.send(&[send(1, &[])])?;
    b.received(&wire, &[])?;
    let bad = send(2, b"x");
    b.refuses(&mut wire, code::TOO_LONG, &bad)
}
