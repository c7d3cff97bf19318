// SPDX-License-Identifier: GPL-2.0

//! Slow and silent peers (RFC 5044, section 7.1.2, rules 8 and 10). Each wait is bounded, and the
//! device serves others meanwhile.

use std::{
    thread::sleep,
    time::{
        Duration,
        Instant, //
    }, //
};

use super::{
    awaited::{
        brought,
        SINK_AT, //
    },
    case,
    scripts,
    Case, //
};
use crate::{
    bench::{
        reply_to,
        Bench, //
    },
    frame::{
        pattern,
        read_response,
        write,
        Code,
        Depths,
        Rtr,
        Start, //
    },
    wire::{
        fail,
        require,
        End,
        Outcome, //
    }, //
};

/// A start-up ends, or is given up, within this time.
const START_UP: Duration = Duration::from_secs(25);
/// A connection whose half is closed ends within this time.
const LINGER: Duration = Duration::from_secs(30);

pub(super) fn cases() -> Vec<Case> {
    let mut list = scripts![
        requests_that_stall: "MPA-8",
        slow_request_octets_do_not_extend_the_start_up: "MPA-8 MPA-6",
        rtr_never_comes: "MPA-8 MPA-41",
        incomplete_rtr: "MPA-8 MPA-41",
        slow_reply_octets_do_not_extend_the_start_up: "MPA-8",
        peer_never_ends_its_half: "RDMAP-138 DDP-10",
        peer_never_ends_its_half_behind_a_fault: "RDMAP-138 DDP-10 RDMAP-135",
        peer_pauses_inside_an_fpdu: "DDP-4 MPA-20",
        program_disconnects_from_slow_peers: "DDP-57",
    ];
    for len in [0, 10, 20, 23] {
        list.push(case(
            format!("reply_stalls_after_{len}_octets"),
            "MPA-8",
            move |b| reply_stalls(b, len),
        ));
    }
    list
}

fn requests_that_stall(b: &mut Bench<'_>) -> Outcome {
    let begun = Instant::now();
    let octets = Start::request(1, b"data").octets();
    let mut wires = Vec::new();
    for len in [0, 1, 10, 16, 19, 20, 21, 23] {
        let mut wire = b.open()?;
        wire.put(&octets[..len])?;
        wires.push(wire);
    }
    for _ in 0..5 {
        b.serves()?;
    }
    for mut wire in wires {
        wire.ends_within(End::Any, START_UP.saturating_sub(begun.elapsed()))?;
    }
    b.agent.none_yet("request * 64")
}

/// Sends one octet each 250 ms until the device closes.
fn trickle_until_the_end(wire: &mut crate::wire::Wire, octets: &[u8]) -> Outcome {
    let begun = Instant::now();
    for octet in octets {
        if wire.put(&[*octet]).is_err() {
            return Ok(());
        }
        require!(begun.elapsed() < START_UP, "still open");
        sleep(Duration::from_millis(250));
    }
    fail!("all octets were taken")
}

fn slow_request_octets_do_not_extend_the_start_up(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.open()?;
    trickle_until_the_end(&mut wire, &Start::request(1, &[0; 200]).octets())
}

fn slow_reply_octets_do_not_extend_the_start_up(b: &mut Bench<'_>) -> Outcome {
    let (mut wire, _) = b.called()?;
    trickle_until_the_end(&mut wire, &Start::reply(1, &[0; 200]).octets())?;
    b.start_up_failed(wire.conn)
}

fn reply_stalls(b: &mut Bench<'_>, len: usize) -> Outcome {
    let (mut wire, request) = b.called()?;
    wire.put(&reply_to(&request, &[]).octets()[..len])?;
    wire.ends_within(End::Any, START_UP)?;
    b.start_up_failed(wire.conn)
}

/// A peer-to-peer connection whose first message stops after these octets.
fn rtr_stalls(b: &mut Bench<'_>, octets: &[u8]) -> Outcome {
    let mut wire = b.open()?;
    wire.start(&Start::enhanced(
        Depths::peer_to_peer(4, 4, Rtr::WRITE),
        &[],
    ))?;
    wire.conn = b.agent.wait("request")?[1].parse().unwrap_or(u32::MAX);
    wire.put(octets)?;
    b.agent.none(&format!("established {}", wire.conn))?;
    wire.ends_within(End::Any, START_UP)?;
    b.never_up(&wire)
}

fn rtr_never_comes(b: &mut Bench<'_>) -> Outcome {
    rtr_stalls(b, &[])
}

fn incomplete_rtr(b: &mut Bench<'_>) -> Outcome {
    rtr_stalls(b, &write(1, 0, &[]).fpdu()[..10])
}

fn peer_never_ends_its_half(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.begun()?;
    b.agent.ask(&format!("disconnect {}", wire.conn))?;
    wire.ends(End::Graceful)?;
    gone_in_the_end(b, &mut wire)
}

fn peer_never_ends_its_half_behind_a_fault(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.begun()?;
    let bad = write(b.ram.key ^ 1, b.ram.at, b"x");
    wire.send(std::slice::from_ref(&bad))?;
    wire.expect_terminate(&Code(1, 1, 0).answer(&bad))?;
    gone_in_the_end(b, &mut wire)
}

/// Checks that the connection ends although this end keeps its half open; its octets are not taken.
fn gone_in_the_end(b: &mut Bench<'_>, wire: &mut crate::wire::Wire) -> Outcome {
    b.agent.wait(&format!("disconnected {}", wire.conn))?;
    b.in_error(wire)?;
    let begun = Instant::now();
    while begun.elapsed() < LINGER {
        if wire.put(&write(0, 0, &[]).fpdu()).is_err() {
            return Ok(());
        }
        sleep(Duration::from_millis(100));
    }
    fail!("octets are still taken")
}

fn peer_pauses_inside_an_fpdu(b: &mut Bench<'_>) -> Outcome {
    // An established stream may be silent for any time.
    let mut wire = b.connect()?;
    let octets = write(b.ram.key, b.ram.at, b"late").fpdu();
    wire.put(&octets[..10])?;
    sleep(Duration::from_secs(6));
    wire.put(&octets[10..])?;
    b.works(&mut wire)
}

/// A program that disconnects waits for the event. It comes even if the peer takes nothing, or does
/// not answer; from a slow peer that makes progress, it comes after all outstanding work.
fn program_disconnects_from_slow_peers(b: &mut Bench<'_>) -> Outcome {
    b.clean()?;
    let data = pattern(64);
    let (deaf, mut dumb, mut slow) = (b.begun()?, b.begun()?, b.begun()?);
    deaf.window(8192)?;
    for _ in 0..3 {
        b.agent.ask(&format!("send {} 4000000 -", deaf.conn))?;
    }
    let mut reads = Vec::new();
    for wire in [&mut dumb, &mut slow] {
        let (conn, ram) = (wire.conn, b.ram.number());
        b.agent
            .ask(&format!("read {conn} {ram} {SINK_AT} 64 4096 77 -"))?;
        reads.push(wire.get()?.read());
    }
    for conn in [deaf.conn, dumb.conn, slow.conn] {
        b.agent.ask(&format!("disconnect {conn}"))?;
    }
    // Each pause is shorter than the device waits without progress; their sum is longer.
    let (first, last) = data.split_at(32);
    let (sink, to) = (reads[1].sink, reads[1].sink_to);
    sleep(Duration::from_secs(12));
    slow.send(&[read_response(sink, to, first).more()])?;
    sleep(Duration::from_secs(12));
    slow.send(&[read_response(sink, to + 32, last)])?;
    brought(b, &slow, &data)?;
    slow.ends(End::Graceful)?;
    b.down(&slow)?;
    dumb.ends(End::Any)?;
    b.completed(&dumb, "flushed")?;
    for wire in [&deaf, &dumb] {
        b.agent.wait(&format!("disconnected {}", wire.conn))?;
        b.in_error(wire)?;
    }
    Ok(())
}
