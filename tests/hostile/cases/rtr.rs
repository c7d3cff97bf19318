// SPDX-License-Identifier: GPL-2.0

//! Peer-to-peer start-up, the device as Responder: the ready-to-receive message (RFC 6581, section
//! 9).

use super::{
    case,
    code,
    responder::established,
    scripts,
    terminate::is_over,
    Case, //
};
use crate::{
    bench::Bench,
    frame::{
        read,
        read_response,
        response,
        send,
        write,
        Code,
        Depths,
        Rtr,
        Segment,
        Start, //
    },
    wire::{
        fail,
        require,
        End,
        Outcome,
        Wire, //
    }, //
};

pub(super) fn cases() -> Vec<Case> {
    let mut list = scripts![
        rtr_kinds_without_peer_to_peer: "MPA-39",
        established_event_waits_for_complete_rtr: "MPA-41",
        rtr_by_read_takes_a_number: "MPA-42 MPA-45",
        read_rtr_needs_a_place: "MPA-45",
        responder_sends_after_the_rtr: "MPA-41",
    ];
    for kinds in 0..8 {
        list.push(case(
            format!("peer_to_peer_offering_{}", names(kinds)),
            "MPA-39 MPA-40 MPA-44",
            move |b| peer_to_peer(b, Rtr::of(kinds)),
        ));
    }
    list.extend(wrong_rtrs());
    for (name, code) in [
        ("serves_less", code::INSUFFICIENT_IRD),
        ("has_no_common_kind", code::NO_RTR),
        ("fails", code::LOCAL_STARTUP),
    ] {
        list.push(case(
            format!("terminate_of_an_initiator_that_{name}"),
            "RDMAP-97 MPA-41",
            move |b| {
                let (mut wire, _) = ask_for_peer_to_peer(b, Rtr::WRITE)?;
                wire.send(&[code.alone()])?;
                is_over(b, &mut wire)?;
                b.flushed(&wire, 4)
            },
        ));
    }
    list
}

fn names(kinds: u8) -> String {
    let name = |bit, name| if kinds & bit != 0 { name } else { "" };
    match kinds {
        0 => "nothing".into(),
        _ => [name(1, "send"), name(2, "write"), name(4, "read")]
            .iter()
            .filter(|name| !name.is_empty())
            .copied()
            .collect::<Vec<_>>()
            .join("_and_"),
    }
}

/// Does a start-up by RFC 6581 as far as the Reply; returns the negotiated depths.
fn ask_for_peer_to_peer(b: &Bench<'_>, offer: Rtr) -> Outcome<(Wire, Depths)> {
    let mut wire = b.open()?;
    let reply = wire.start(&Start::enhanced(Depths::peer_to_peer(4, 4, offer), &[]))?;
    let Some(got) = reply.depths() else {
        fail!("no enhanced data");
    };
    let event = b.agent.wait("request")?;
    wire.conn = event[1].parse().unwrap_or(u32::MAX);
    Ok((wire, got))
}

/// Returns the ready-to-receive message of one kind.
fn rtr(wire: &mut Wire, read_kind: bool) -> Segment {
    if read_kind {
        read(wire.next_read(), 0, 1, 0)
    } else {
        write(1, 0, &[])
    }
}

fn peer_to_peer(b: &mut Bench<'_>, offer: Rtr) -> Outcome {
    let (mut wire, got) = ask_for_peer_to_peer(b, offer)?;
    require!(got.peer_to_peer, "no peer-to-peer Reply");
    require!(
        got.rtr.send || got.rtr.write || got.rtr.read,
        "no kind at all"
    );
    if offer.write || offer.read {
        require!(got.rtr.meets(offer), "no common kind in {:?}", got.rtr);
    }
    let read_kind = !got.rtr.write;
    let first = rtr(&mut wire, read_kind);
    wire.send(&[first])?;
    if read_kind {
        wire.expect(&response(&[]))?;
    }
    b.agent.wait(&format!("established {}", wire.conn))?;
    b.works(&mut wire)
}

fn rtr_kinds_without_peer_to_peer(b: &mut Bench<'_>) -> Outcome {
    for kinds in 1..8 {
        let asked = Depths {
            rtr: Rtr::of(kinds),
            ..Depths::new(4, 4)
        };
        let mut wire = b.connect_by(&Start::enhanced(asked, &[]))?;
        let got = wire.peer.as_ref().and_then(Start::depths);
        require!(
            got.is_some_and(|got| !got.peer_to_peer && got.rtr == Rtr::NONE),
            "{got:?}"
        );
        b.works(&mut wire)?;
    }
    Ok(())
}

fn established_event_waits_for_complete_rtr(b: &mut Bench<'_>) -> Outcome {
    for kind in [Rtr::WRITE, Rtr::READ] {
        let (mut wire, _) = ask_for_peer_to_peer(b, kind)?;
        let octets = rtr(&mut wire, kind.read).fpdu();
        wire.put(&octets[..octets.len() - 1])?;
        b.agent.none(&format!("established {}", wire.conn))?;
        wire.silent()?;
        wire.put(&octets[octets.len() - 1..])?;
        b.agent.wait(&format!("established {}", wire.conn))?;
        if kind.read {
            wire.expect(&response(&[]))?;
        }
        // The message neither uses a receive nor completes one.
        b.nothing_completes(&mut wire)?;
        wire.send(&[send(1, b"first")])?;
        b.received(&wire, b"first")?;
    }
    Ok(())
}

fn rtr_by_read_takes_a_number(b: &mut Bench<'_>) -> Outcome {
    let (mut wire, _) = ask_for_peer_to_peer(b, Rtr::READ)?;
    wire.send(&[read(1, 0, 0, 0)])?;
    wire.expect(&response(&[]))?;
    let bad = read(1, 8, b.ram.key, b.ram.at);
    wire.send(std::slice::from_ref(&bad))?;
    wire.expect_refusal(code::MSN, &bad)
}

fn read_rtr_needs_a_place(b: &mut Bench<'_>) -> Outcome {
    b.agent.set(&[("ird", 0)])?;
    let asked = Depths::peer_to_peer(0, 0, Rtr::READ);
    let mut wire = b.open()?;
    let reply = wire.start(&Start::enhanced(asked, &[]))?;
    let got = reply.depths();
    require!(got.is_some_and(|got| got.ird >= 1), "{got:?}");
    wire.send(&[read(1, 0, 0, 0)])?;
    wire.expect(&response(&[]))?;
    established(b).map(drop)
}

fn responder_sends_after_the_rtr(b: &mut Bench<'_>) -> Outcome {
    let (mut wire, _) = ask_for_peer_to_peer(b, Rtr::WRITE)?;
    b.agent.ask(&format!("send {} 100 -", wire.conn))?;
    wire.silent()?;
    wire.send(&[write(1, 0, &[])])?;
    wire.expect_send(100).map(drop)
}

/// Returns first messages of a peer-to-peer connection that are not the agreed one.
fn wrong_rtrs() -> Vec<Case> {
    type Make = fn(&Bench<'_>) -> Segment;
    let list: [(&str, Rtr, Code, Make); 9] = [
        (
            "read_as_rtr_where_write_was_agreed",
            Rtr::WRITE,
            code::OPCODE,
            |_| read(1, 0, 0, 0),
        ),
        (
            "write_as_rtr_where_read_was_agreed",
            Rtr::READ,
            code::OPCODE,
            |_| write(0, 0, &[]),
        ),
        ("empty_send_as_rtr", Rtr::SEND, code::OPCODE, |_| {
            send(1, &[])
        }),
        ("send_as_rtr", Rtr::WRITE, code::OPCODE, |_| send(1, b"x")),
        ("write_of_octets_as_rtr", Rtr::WRITE, code::OPCODE, |b| {
            write(b.ram.key, b.ram.at, b"x")
        }),
        ("open_write_as_rtr", Rtr::WRITE, code::OPCODE, |_| {
            write(0, 0, &[]).more()
        }),
        ("read_of_octets_as_rtr", Rtr::READ, code::OPCODE, |b| {
            read(1, 1, b.ram.key, b.ram.at)
        }),
        (
            "unasked_read_response_as_rtr",
            Rtr::READ,
            code::OPCODE,
            |_| read_response(0, 0, &[]),
        ),
        ("rtr_with_a_wrong_number", Rtr::READ, code::MSN, |_| {
            read(2, 0, 0, 0)
        }),
    ];
    let mut cases: Vec<Case> = list
        .into_iter()
        .map(|(name, offer, code, make)| {
            case(name, "MPA-40 MPA-41", move |b| {
                let (mut wire, _) = ask_for_peer_to_peer(b, offer)?;
                b.clean()?;
                let bad = make(b);
                wire.send(std::slice::from_ref(&bad))?;
                wire.expect_refusal(code, &bad)?;
                b.never_up(&wire)?;
                b.untouched()?;
                b.flushed(&wire, 4)
            })
        })
        .collect();
    cases.push(case("rtr_with_a_bad_crc", "MPA-20 MPA-41", |b| {
        let (mut wire, _) = ask_for_peer_to_peer(b, Rtr::WRITE)?;
        wire.put(&write(1, 0, &[]).bad_crc(0x0001_0000))?;
        wire.expect_terminate(&code::CRC.alone())?;
        b.never_up(&wire)?;
        b.flushed(&wire, 4)
    }));
    cases.push(case("rtr_cut_off_by_the_end", "MPA-30 MPA-41", |b| {
        let octets = write(1, 0, &[]).fpdu();
        for len in [0, 1, 2, 10, octets.len() - 1] {
            let (mut wire, _) = ask_for_peer_to_peer(b, Rtr::WRITE)?;
            wire.put(&octets[..len])?;
            wire.half_close()?;
            wire.ends(End::Any)?;
            b.never_up(&wire)?;
            b.flushed(&wire, 4)?;
        }
        Ok(())
    }));
    cases
}
