// SPDX-License-Identifier: GPL-2.0

//! FPDUs: their segmentation, CRC, pad, length and Markers (RFC 5044, sections 4 to 6 and 8).

use std::{
    sync::atomic::{
        AtomicBool,
        Ordering, //
    },
    thread, //
};

use super::{
    case,
    code,
    scripts,
    whole::{
        sent,
        DATA, //
    },
    Case, //
};
use crate::{
    bench::{
        Bench,
        RECEIVES, //
    },
    frame::{
        flag,
        fpdus,
        marker_first,
        op,
        pattern,
        read,
        read_response,
        response,
        send,
        tagged,
        untagged,
        write,
        Code,
        Depths,
        Segment,
        Start, //
    },
    wire::{
        fail,
        require,
        End,
        Failure,
        Outcome,
        Wire, //
    }, //
};

pub(super) fn cases() -> Vec<Case> {
    let mut list = scripts![
        octets_one_by_one: "DDP-4 MPA-20",
        stream_cut_at_every_position: "DDP-4",
        many_fpdus_in_one_piece: "DDP-4 DDP-11",
        pad_octets_are_not_checked: "MPA-12",
        pad_octets_are_in_the_crc: "DDP-6 MPA-12 MPA-18",
        one_flipped_bit_anywhere: "MPA-20 DDP-87",
        crc_in_the_wrong_order: "MPA-17",
        crc_of_zeros: "MPA-17",
        segments_after_a_fault_are_dropped: "DDP-8 MPA-21 DDP-83 RDMAP-137",
        first_of_two_faults_is_reported: "DDP-55 DDP-65 DDP-84 RDMAP-144 DDP-83",
        first_of_two_faults_is_reported_in_any_layer: "RDMAP-144 MPA-21",
        terminate_arrives_while_the_peer_keeps_sending: "RDMAP-135 RDMAP-100",
        empty_fpdu: "MPA-13 MPA-31",
        many_empty_fpdus: "MPA-13",
        empty_fpdu_with_a_bad_crc: "MPA-13 MPA-20",
        longest_fpdu_of_a_write: "MPA-31 DDP-35",
        longest_fpdu_of_a_send: "MPA-31 DDP-35",
        longest_fpdu_with_a_bad_crc: "MPA-20 MPA-31",
        length_one_too_small: "MPA-11 MPA-20",
        length_one_too_great: "MPA-11 MPA-30",
        markers_not_requested: "MPA-23 MPA-25",
        markers_are_inserted_when_asked_for: "MPA-23 MPA-24 MPA-25 MPA-26",
        markers_are_inserted_in_revision_2: "MPA-23 MPA-48",
        markers_in_sends_of_the_device: "MPA-18 MPA-23 MPA-28",
        markers_in_messages_of_one_segment: "MPA-18 MPA-23",
        markers_around_a_terminate: "MPA-23 MPA-26",
        urgent_data_does_no_harm: "DDP-4",
        octets_retransmitted_by_tcp_count_once: "DDP-4 DDP-11",
        pad_of_the_device_is_zero: "MPA-12",
        segments_fit_the_path: "DDP-32 MPA-28",
        segments_with_markers_fit_the_path: "DDP-32 MPA-28",
    ];
    let moving = "DDP-1 DDP-2 MPA-28";
    list.push(case("segments_follow_the_path", moving, segments_follow_the_path).alone());
    list.push(
        case(
            "half_fpdus_while_tcp_has_no_memory",
            "MPA-31",
            half_fpdus_while_tcp_has_no_memory,
        )
        .alone(),
    );
    type Make = fn(&Bench<'_>) -> Segment;
    let faulty: [(&str, Make); 6] = [
        ("a_wrong_stag", |b| write(b.ram.key ^ 0x100, 0, b"x")),
        ("a_wrong_number", |_| send(9, b"x")),
        ("a_wrong_ddp_version", |_| write(0, 0, b"x").dv(2)),
        ("a_wrong_rdmap_version", |_| send(1, b"x").rv(3)),
        ("a_wrong_queue", |_| untagged(15, 7, 7, &[])),
        ("a_wrong_read", |_| read(5, 1, 1, 1)),
    ];
    for (what, bad) in faulty {
        list.push(case(
            format!("bad_crc_comes_before_{what}"),
            "MPA-20 DDP-86",
            move |b| {
                let mut wire = b.connect()?;
                wire.put(&bad(b).bad_crc(0x0001_0000))?;
                wire.expect_terminate(&code::CRC.alone())
            },
        ));
    }
    let whole: [(&str, Segment); 8] = [
        ("write", write(1, 2, &[])),
        ("read_response", read_response(1, 2, &[])),
        ("send", send(1, &[])),
        ("send_with_invalidate", send(1, &[]).opcode(op::SEND_INV)),
        ("read_request", read(1, 8, 1, 1).cut(18)),
        ("terminate", Code(0, 0, 0).alone().cut(18)),
        ("reserved_tagged_opcode", tagged(15, 1, 2, &[])),
        ("reserved_untagged_opcode", untagged(15, 0, 1, &[])),
    ];
    for (name, whole) in whole {
        list.push(case(
            format!("{name}_shorter_than_its_header"),
            "DDP-31 MPA-31 MPA-27",
            move |b| shorter_than_its_header(b, &whole),
        ));
    }
    list
}

fn octets_one_by_one(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.connect()?;
    let data = b"in small pieces";
    wire.trickle(&fpdus(&[
        send(1, data),
        write(b.ram.key, b.ram.at + 7, data),
        read(1, 15, b.ram.key, b.ram.at + 7),
    ]))?;
    b.received(&wire, data)?;
    wire.expect(&response(data))
}

fn stream_cut_at_every_position(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.connect()?;
    for cut in 0.. {
        let (send_msn, read_msn) = (wire.next_send(), wire.next_read());
        let octets = fpdus(&[
            send(send_msn, &DATA[..7]),
            write(b.ram.key, b.ram.at, DATA),
            write(0, 0, &[]),
            read(read_msn, 10, b.ram.key, b.ram.at),
        ]);
        wire.put(&octets[..cut])?;
        wire.put(&octets[cut..])?;
        wire.expect(&response(DATA))?;
        sent(b, &mut wire, &DATA[..7])?;
        if cut == octets.len() {
            break;
        }
    }
    Ok(())
}

fn many_fpdus_in_one_piece(b: &mut Bench<'_>) -> Outcome {
    b.agent.set(&[("recvs", 60)])?;
    let mut wire = b.connect()?;
    let mut octets = Vec::new();
    for i in 0..60_u8 {
        let msn = wire.next_send();
        octets.extend(fpdus(&[
            write(b.ram.key, b.ram.at + u64::from(i), &[i]),
            send(msn, &[i]),
        ]));
    }
    wire.put(&octets)?;
    for i in 0..60 {
        b.received(&wire, &[i])?;
    }
    let ram = b.ram;
    let memory = b.agent.peek(&ram, 0, 60)?;
    require!(memory == (0..60).collect::<Vec<u8>>(), "{memory:?}");
    Ok(())
}

fn pad_octets_are_not_checked(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.connect()?;
    for len in 3..7 {
        let msn = wire.next_send();
        wire.put(&send(msn, &DATA[..len]).padded(0xff))?;
        b.received(&wire, &DATA[..len])?;
    }
    Ok(())
}

fn pad_octets_are_in_the_crc(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.connect()?;
    let mut octets = send(1, DATA).fpdu();
    let pad = octets.len() - 5;
    octets[pad] ^= 1;
    wire.put(&octets)?;
    wire.expect_terminate(&code::CRC.alone())
}

fn one_flipped_bit_anywhere(b: &mut Bench<'_>) -> Outcome {
    let good = write(b.ram.key, b.ram.at, &pattern(40)).fpdu();
    b.clean()?;
    // Flips bits in each field behind the length, which locates the CRC.
    for bit in (16..good.len() * 8).step_by(13) {
        let mut bad = good.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        let mut wire = b.connect()?;
        wire.put(&bad)?;
        wire.expect_terminate(&code::CRC.alone())?;
    }
    b.untouched()
}

fn crc_in_the_wrong_order(b: &mut Bench<'_>) -> Outcome {
    let mut octets = send(1, DATA).fpdu();
    let at = octets.len() - 4;
    octets[at..].reverse();
    refused_octets(b, &octets, code::CRC)
}

fn crc_of_zeros(b: &mut Bench<'_>) -> Outcome {
    let mut octets = send(1, DATA).fpdu();
    let at = octets.len() - 4;
    octets[at..].fill(0);
    refused_octets(b, &octets, code::CRC)
}

fn refused_octets(b: &mut Bench<'_>, octets: &[u8], code: Code) -> Outcome {
    let mut wire = b.connect()?;
    b.clean()?;
    wire.put(octets)?;
    wire.expect_terminate(&code.alone())?;
    b.untouched()?;
    b.failed(&wire, code)?;
    b.flushed(&wire, RECEIVES)
}

fn segments_after_a_fault_are_dropped(b: &mut Bench<'_>) -> Outcome {
    let good = write(b.ram.key, b.ram.at, b"good");
    let mut octets = good.bad_crc(1);
    for _ in 0..20 {
        octets.extend(good.fpdu());
    }
    octets.extend(send(1, b"good").fpdu());
    octets.extend(read(1, 4, b.ram.key, b.ram.at).fpdu());
    refused_octets(b, &octets, code::CRC)
}

fn first_of_two_faults_is_reported(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.connect()?;
    let first = write(b.ram.key ^ 1, b.ram.at, b"bad");
    wire.send(&[first.clone(), send(77, b"bad"), write(0, 0, b"x").rv(3)])?;
    wire.expect_refusal(code::STAG, &first)?;
    b.failed(&wire, code::STAG)
}

fn first_of_two_faults_is_reported_in_any_layer(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.connect()?;
    let first = send(77, b"bad");
    wire.put(&[first.fpdu(), write(0, 0, b"x").bad_crc(1)].concat())?;
    wire.expect_refusal(code::MSN, &first)?;
    b.failed(&wire, code::MSN)
}

fn terminate_arrives_while_the_peer_keeps_sending(b: &mut Bench<'_>) -> Outcome {
    // Unread octets must not turn the end into a reset that discards the Terminate.
    let mut wire = b.connect()?;
    let bad = write(b.ram.key ^ 1, b.ram.at, b"bad");
    let flooding = wire.another()?;
    let filler = write(b.ram.key, b.ram.at, &[0; 1000]).fpdu().repeat(20);
    wire.send(std::slice::from_ref(&bad))?;
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| flooding.flood(&filler, &stop));
        let result = wire.expect(&code::STAG.answer(&bad));
        stop.store(true, Ordering::Relaxed);
        wire.half_close()?;
        result
    })?;
    wire.ends(End::Any)
}

/// TCP that has no memory drops packets behind half an FPDU. The other half arrives all the same.
fn half_fpdus_while_tcp_has_no_memory(b: &mut Bench<'_>) -> Outcome {
    const STREAMS: usize = 500;
    const LEN: usize = 32_768;
    let data = pattern(LEN);
    let octets = write(b.large.key, b.large.at, &data).fpdu();
    let (first, second) = octets.split_at(octets.len() / 2);
    let asked = read(1, 8, b.large.key, b.large.at + (LEN - 8) as u64);
    let mut wires = Vec::new();
    for _ in 0..STREAMS {
        let mut wire = b.connect()?;
        wire.put(first)?;
        wires.push(wire);
    }
    b.serves()?;
    // A tenth of what lies in the queues.
    b.setting("tcp_mem", (STREAMS * first.len() / 10 / 4096) as u32)?;
    thread::scope(|scope| {
        let finish = |mut wire: Wire| -> Outcome {
            wire.put(second)?;
            wire.send(std::slice::from_ref(&asked))?;
            wire.expect(&response(&data[LEN - 8..]))
        };
        let all: Vec<_> = (wires.into_iter())
            .map(|wire| scope.spawn(move || finish(wire)))
            .collect();
        all.into_iter().try_for_each(|one| match one.join() {
            Ok(finished) => finished,
            Err(_) => fail!("panicked"),
        })
    })
}

fn empty_fpdu(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.connect()?;
    wire.send(&[Segment::raw(vec![])])?;
    b.works(&mut wire)
}

fn many_empty_fpdus(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.connect()?;
    wire.send(&vec![Segment::raw(vec![]); 1000])?;
    b.works(&mut wire)
}

fn empty_fpdu_with_a_bad_crc(b: &mut Bench<'_>) -> Outcome {
    refused_octets(b, &Segment::raw(vec![]).bad_crc(1), code::CRC)
}

fn longest_fpdu_of_a_write(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.connect()?;
    let data = pattern(65535 - 14);
    wire.send(&[
        write(b.large.key, b.large.at, &data),
        read(1, data.len() as u32, b.large.key, b.large.at),
    ])?;
    let (_, got) = wire.message()?;
    require!(got == data, "data differs");
    Ok(())
}

fn longest_fpdu_of_a_send(b: &mut Bench<'_>) -> Outcome {
    b.agent.set(&[("recv_len", 65536)])?;
    let mut wire = b.connect()?;
    wire.send(&[send(1, &pattern(65535 - 18))])?;
    b.agent
        .wait(&format!("wc {} recv * success 65517", wire.conn))
        .map(drop)
}

fn longest_fpdu_with_a_bad_crc(b: &mut Bench<'_>) -> Outcome {
    let octets = write(b.large.key, b.large.at, &pattern(65535 - 14)).bad_crc(1);
    refused_octets(b, &octets, code::CRC)
}

fn length_one_too_small(b: &mut Bench<'_>) -> Outcome {
    let mut octets = write(b.ram.key, b.ram.at, DATA).fpdu();
    octets[1] -= 1;
    octets.extend([0; 8]);
    refused_octets(b, &octets, code::CRC)
}

fn length_one_too_great(b: &mut Bench<'_>) -> Outcome {
    // This FPDU takes the next FPDU's first octets as its last ones, and ends inside the next but
    // one.
    let mut wire = b.connect()?;
    b.clean()?;
    let mut octets = write(b.ram.key, b.ram.at, &[7; 12]).fpdu();
    octets[1] += 4;
    wire.put(&octets)?;
    wire.silent()?;
    wire.half_close()?;
    wire.ends(End::Any)?;
    b.untouched()?;
    b.down(&wire)
}

fn shorter_than_its_header(b: &mut Bench<'_>, whole: &Segment) -> Outcome {
    b.clean()?;
    for len in 1..whole.len() {
        let mut wire = b.connect()?;
        wire.send(&[whole.clone().cut(len)])?;
        // The receiver sees a reserved opcode as soon as it arrives, and then has no header to
        // quote.
        let reserved = whole[1] & 15 > 11 && len > 1;
        let code = if reserved {
            code::OPCODE
        } else {
            code::FRAMING
        };
        wire.expect_terminate(&code.alone())
            .map_err(|why| Failure(format!("{len} octets: {why}")))?;
        b.failed(&wire, code)?;
        b.flushed(&wire, RECEIVES)?;
    }
    b.untouched()
}

fn markers_not_requested(b: &mut Bench<'_>) -> Outcome {
    // A Marker reads as an empty FPDU, and the octets behind it are not its CRC.
    let octets = marker_first(&send(1, DATA).fpdu());
    refused_octets(b, &octets, code::CRC)
}

fn reads_with_markers(b: &mut Bench<'_>, request: &Start) -> Outcome {
    let data = pattern(5000);
    let large = b.large;
    b.agent.poke(&large, 0, &data)?;
    let mut wire = b.connect_by(request)?;
    for size in [1, 100, 480, 481, 482, 483, 484, 485, 600, 1400, 5000] {
        let msn = wire.next_read();
        wire.send(&[read(msn, size as u32, large.key, large.at)])?;
        let (_, got) = wire.message()?;
        require!(got == data[..size], "{size}: data differs");
    }
    Ok(())
}

fn markers_are_inserted_when_asked_for(b: &mut Bench<'_>) -> Outcome {
    reads_with_markers(b, &Start::request(1, &[]).plus_flags(flag::MARKERS))
}

fn markers_are_inserted_in_revision_2(b: &mut Bench<'_>) -> Outcome {
    let request = Start::enhanced(Depths::new(4, 4), &[]).plus_flags(flag::MARKERS);
    reads_with_markers(b, &request)
}

fn markers_in_sends_of_the_device(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.connect_by(&Start::request(1, &[]).plus_flags(flag::MARKERS))?;
    wire.send(&[write(0, 0, &[])])?;
    for len in (470..520).step_by(3).chain([100_000]) {
        b.agent.ask(&format!("send {} {len} -", wire.conn))?;
        let (_, data) = wire.message()?;
        require!(data.len() == len, "{} of {len}", data.len());
    }
    Ok(())
}

fn markers_in_messages_of_one_segment(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.connect_by(&Start::request(1, &[]).plus_flags(flag::MARKERS))?;
    wire.send(&[write(0, 0, &[])])?;
    for len in (0..1400).step_by(37) {
        b.agent.ask(&format!("send {} {len} -", wire.conn))?;
        let data = wire.get()?;
        require!(data.data().len() == len, "{} of {len}", data.data().len());
    }
    Ok(())
}

fn markers_around_a_terminate(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.connect_by(&Start::request(1, &[]).plus_flags(flag::MARKERS))?;
    let bad = write(b.ram.key ^ 1, b.ram.at, b"x");
    wire.send(std::slice::from_ref(&bad))?;
    wire.expect_refusal(code::STAG, &bad)
}

fn urgent_data_does_no_harm(b: &mut Bench<'_>) -> Outcome {
    // TCP takes the urgent octet out of the stream, so the FPDU is one octet short.
    let mut wire = b.connect()?;
    let octets = send(1, &[7; 50]).fpdu();
    wire.put(&octets[..30])?;
    wire.urgent(&octets[30..31])?;
    wire.put(&octets[31..])?;
    wire.put(&octets)?;
    wire.half_close()?;
    wire.drain()?;
    b.agent
        .wait(&format!("disconnected {}", wire.conn))
        .map(drop)
}

/// A TCP segment repeats octets that have arrived and carries new ones behind them: the end of an
/// incomplete FPDU, or a complete FPDU and one more.
fn octets_retransmitted_by_tcp_count_once(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.connect()?;
    for (begin, end) in [(1, 2), (1, 30), (22, 23), (30, 35)] {
        let msn = wire.next_send();
        let octets = send(msn, DATA).fpdu();
        wire.put(&octets[..begin])?;
        wire.extra(&octets[begin..end])?;
        wire.put(&octets[begin..])?;
        sent(b, &mut wire, DATA)?;
    }
    for more in [0, 1, 25] {
        let (first, second) = (wire.next_send(), wire.next_send());
        let whole = send(first, DATA).fpdu();
        let octets = fpdus(&[send(first, DATA), send(second, &DATA[1..])]);
        wire.extra(&octets[..whole.len() + more])?;
        sent(b, &mut wire, DATA)?;
        wire.put(&octets)?;
        sent(b, &mut wire, &DATA[1..])?;
    }
    b.nothing_completes(&mut wire)
}

fn pad_of_the_device_is_zero(b: &mut Bench<'_>) -> Outcome {
    // `get` checks each pad.
    let mut wire = b.begun()?;
    for len in [0, 1, 2, 3, 4, 5, 6, 7, 1441, 1442, 1443] {
        b.agent.ask(&format!("send {} {len} -", wire.conn))?;
        wire.message()?;
    }
    Ok(())
}

/// The payload of a TCP segment with an MTU of 1500 and timestamps, in octets.
pub(super) const MSS: usize = 1448;

fn fpdu_len(segment: &Segment) -> usize {
    (2 + segment.len()).next_multiple_of(4) + 4
}

/// Has the device send a message, and returns the length of its longest FPDU.
pub(super) fn longest_of(b: &mut Bench<'_>, wire: &mut Wire) -> Outcome<usize> {
    b.agent.ask(&format!("send {} 100000 -", wire.conn))?;
    let (mut longest, mut total) = (0, 0);
    while total < 100_000 {
        let got = wire.get()?;
        total += got.data().len();
        longest = longest.max(fpdu_len(&got));
    }
    Ok(longest)
}

fn segments_fit_the_path(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.begun()?;
    let longest = longest_of(b, &mut wire)?;
    require!(
        (MSS - 16..=MSS).contains(&longest),
        "the longest FPDU has {longest} octets"
    );
    Ok(())
}

fn segments_with_markers_fit_the_path(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.connect_by(&Start::request(1, &[]).plus_flags(flag::MARKERS))?;
    wire.send(&[write(0, 0, &[])])?;
    let longest = longest_of(b, &mut wire)?;
    require!(
        (MSS - 32..=MSS - 8).contains(&longest),
        "the longest FPDU has {longest} octets"
    );
    Ok(())
}

/// FPDUs follow the path MTU: shorter within the message once it shrinks, longer again later.
fn segments_follow_the_path(b: &mut Bench<'_>) -> Outcome {
    const MTU: usize = 1300;
    const LEN: usize = 4_000_000;
    let mss_of = |mtu: usize| mtu - (1500 - MSS);
    let mut wire = b.begun()?;
    wire.window(1 << 14)?;
    b.agent.ask(&format!("send {} {LEN} -", wire.conn))?;
    let first = wire.get()?;
    let greatest = fpdu_len(&first);
    require!(
        (MSS - 16..=MSS).contains(&greatest),
        "at first {greatest} octets"
    );
    b.setting("net_mtu", MTU as u32)?;
    let (mut total, mut lens) = (first.data().len(), vec![greatest]);
    while total < LEN {
        let got = wire.get()?;
        require!(
            got.offset() as usize == total && got.msn() == 1,
            "{} behind {total} octets",
            got.describe()
        );
        total += got.data().len();
        lens.push(fpdu_len(&got));
    }
    // FPDUs cut before keep their length; the last one has the rest.
    let changed = lens.iter().position(|len| *len != greatest).unwrap_or(0);
    let (now, mss) = (lens[changed], mss_of(MTU));
    require!(
        (mss - 16..=mss).contains(&now),
        "{now} octets with an MTU of {MTU}"
    );
    let rest = &lens[changed..lens.len() - 1];
    require!(rest.len() > 100, "{} FPDUs behind the change", rest.len());
    require!(
        rest.iter().all(|len| *len == now),
        "not all have {now} octets: {rest:?}"
    );
    b.setting("net_mtu", 1500)?;
    let longest = longest_of(b, &mut wire)?;
    require!(
        longest == greatest,
        "{longest} octets with an MTU of 1500 again"
    );
    Ok(())
}
