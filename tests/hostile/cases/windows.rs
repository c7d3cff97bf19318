// SPDX-License-Identifier: GPL-2.0

//! Memory windows: STags that the device's consumer grants to one peer or several, and revokes (RFC
//! 5040, section 8.1.1).

use super::{
    atomics::{
        answer,
        fetch_add, //
    },
    case,
    code,
    scripts,
    Case, //
};
use crate::{
    agent::{
        access,
        Region, //
    },
    bench::Bench,
    frame::{
        op,
        read,
        response,
        send,
        write,
        Code,
        Segment, //
    },
    wire::{
        require,
        Outcome,
        Wire, //
    }, //
};

pub(super) fn cases() -> Vec<Case> {
    let mut list = scripts![
        window_gives_a_part_of_a_region: "DDP-91 RDMAP-161",
        window_of_a_domain_serves_all_its_streams: "DDP-91 RDMAP-161",
        window_of_a_stream_is_refused_on_another: "RDMAP-161 DDP-89 DDP-94",
        old_key_of_a_window_is_refused: "DDP-93 RDMAP-165",
        window_bound_to_nothing_is_refused: "RDMAP-165",
        peer_invalidates_a_window: "RDMAP-91 RDMAP-92 RDMAP-93 RDMAP-166",
        consumer_invalidates_a_window: "RDMAP-165",
        region_with_a_window_stays: "RDMAP-165",
    ];
    list.extend(bad_accesses());
    list.extend(bad_invalidations());
    list.extend(bad_binds());
    list
}

const MW_BIND: u32 = 16;
/// The range of the window of [`Window::bound`] in its region.
const OFFSET: u64 = 1000;
const LEN: u64 = 100;

/// A window and its own region.
struct Window {
    number: u64,
    region: Region,
    key: u32,
}

impl Window {
    /// Allocates an unbound window of type 1 or 2.
    fn new(b: &mut Bench<'_>, kind: u32) -> Outcome<Self> {
        let [number, key] = b.agent.numbers(&format!("mw {kind} 0"))?;
        Ok(Self {
            number,
            region: b.agent.region(8192, access::ALL | MW_BIND, 0)?,
            key: key as u32,
        })
    }

    /// Posts a bind to these octets of its region on this connection.
    fn bind(
        &mut self,
        b: &mut Bench<'_>,
        wire: &Wire,
        (at, len): (u64, u64),
        rights: u32,
    ) -> Outcome {
        let [key] = b.agent.numbers(&format!(
            "bind {} {} {} {at} {len} {rights}",
            wire.conn,
            self.number,
            self.region.number()
        ))?;
        self.key = key as u32;
        Ok(())
    }

    /// Binds it to [`LEN`] octets at [`OFFSET`].
    fn bind_part(&mut self, b: &mut Bench<'_>, wire: &Wire, rights: u32) -> Outcome {
        self.bind(b, wire, (OFFSET, LEN), rights)?;
        b.completed(wire, "success")
    }

    /// Returns a window bound to [`LEN`] octets at [`OFFSET`], with all rights.
    fn bound(b: &mut Bench<'_>, wire: &Wire, kind: u32) -> Outcome<Self> {
        let mut window = Self::new(b, kind)?;
        window.bind_part(b, wire, access::ALL & !access::LOCAL_WRITE)?;
        Ok(window)
    }

    /// Returns the tagged offset of its first octet.
    fn at(&self) -> u64 {
        self.region.at + OFFSET
    }

    /// Deallocates it and its region.
    fn end(self, b: &mut Bench<'_>) -> Outcome {
        b.agent.ask(&format!("unmw {}", self.number))?;
        b.agent
            .ask(&format!("dereg {}", self.region.number()))
            .map(drop)
    }

    /// Checks that the peer can write and read all of it.
    fn serves(&self, b: &mut Bench<'_>, wire: &mut Wire, octet: u8) -> Outcome {
        let msn = wire.next_read();
        wire.send(&[
            write(self.key, self.at(), &[octet; LEN as usize]),
            read(msn, LEN as u32, self.key, self.at()),
        ])?;
        wire.expect(&response(&[octet; LEN as usize]))?;
        let memory = b
            .agent
            .peek(&self.region, OFFSET as usize - 8, LEN as usize + 16)?;
        let (before, rest) = memory.split_at(8);
        let (inside, behind) = rest.split_at(LEN as usize);
        require!(
            inside.iter().all(|it| *it == octet)
                && before.iter().chain(behind).all(|it| *it != octet),
            "memory beside was written"
        );
        Ok(())
    }

    /// Checks that a Write to it gets this Terminate and is not placed.
    fn refuses(&self, b: &mut Bench<'_>, wire: &mut Wire, code: Code) -> Outcome {
        let region = self.region;
        b.agent.fill(&region, 0x33)?;
        b.refuses(wire, code, &write(self.key, self.at(), &[7; 8]))?;
        b.agent.holds(&region, 0x33)
    }
}

fn window_gives_a_part_of_a_region(b: &mut Bench<'_>) -> Outcome {
    for kind in [1, 2] {
        let mut wire = b.begun()?;
        let window = Window::bound(b, &wire, kind)?;
        window.serves(b, &mut wire, 0x44)?;
        let region = window.region;
        b.agent.poke(&region, 1008, &5_u64.to_ne_bytes())?;
        let msn = wire.next_read();
        wire.send(&[fetch_add(window.key, region.at + 1008, 1, 0).segment(msn)])?;
        wire.expect(&answer(1, 0x1d, 5))?;
        window.end(b)?;
    }
    Ok(())
}

fn window_of_a_domain_serves_all_its_streams(b: &mut Bench<'_>) -> Outcome {
    let (mut wire, mut other) = (b.begun()?, b.begun()?);
    let window = Window::bound(b, &wire, 1)?;
    window.serves(b, &mut wire, 0x44)?;
    window.serves(b, &mut other, 0x55)?;
    window.end(b)
}

fn window_of_a_stream_is_refused_on_another(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.begun()?;
    let window = Window::bound(b, &wire, 2)?;
    let mut other = b.begun()?;
    window.refuses(b, &mut other, code::NOT_ASSOCIATED)?;
    let mut other = b.begun()?;
    let msn = other.next_read();
    b.refuses(
        &mut other,
        code::SOURCE_STREAM,
        &read(msn, 8, window.key, window.at()),
    )?;
    window.serves(b, &mut wire, 0x44)?;
    window.end(b)
}

fn old_key_of_a_window_is_refused(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.begun()?;
    let mut window = Window::bound(b, &wire, 1)?;
    let old = window.key;
    window.serves(b, &mut wire, 0x44)?;
    window.bind_part(b, &wire, access::REMOTE_WRITE | access::REMOTE_READ)?;
    require!(window.key != old, "the same key again");
    window.serves(b, &mut wire, 0x55)?;
    let key = std::mem::replace(&mut window.key, old);
    window.refuses(b, &mut wire, code::STAG)?;
    window.key = key;
    let mut wire = b.begun()?;
    window.serves(b, &mut wire, 0x66)?;
    window.end(b)
}

fn window_bound_to_nothing_is_refused(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.begun()?;
    let mut window = Window::new(b, 1)?;
    window.refuses(b, &mut wire, code::STAG)?;
    let mut wire = b.begun()?;
    for rights in [access::REMOTE_WRITE, 0] {
        window.bind_part(b, &wire, rights)?;
    }
    window.bind(b, &wire, (0, 0), 0)?;
    b.completed(&wire, "success")?;
    window.refuses(b, &mut wire, code::STAG)?;
    window.end(b)
}

fn peer_invalidates_a_window(b: &mut Bench<'_>) -> Outcome {
    for opcode in [op::SEND_INV, op::SEND_SE_INV] {
        let mut wire = b.begun()?;
        let mut window = Window::bound(b, &wire, 2)?;
        window.serves(b, &mut wire, 0x44)?;
        let msn = wire.next_send();
        wire.send(&[send(msn, b"x").opcode(opcode).inv(window.key)])?;
        b.received(&wire, b"x")?;
        // It can be bound again, with another key.
        let old = window.key;
        window.bind_part(b, &wire, access::REMOTE_WRITE | access::REMOTE_READ)?;
        window.serves(b, &mut wire, 0x55)?;
        window.key = old;
        window.refuses(b, &mut wire, code::STAG)?;
        window.end(b)?;
    }
    Ok(())
}

fn consumer_invalidates_a_window(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.begun()?;
    let window = Window::bound(b, &wire, 2)?;
    window.serves(b, &mut wire, 0x44)?;
    b.agent.ask(&format!("inv {} {}", wire.conn, window.key))?;
    b.completed(&wire, "success")?;
    window.refuses(b, &mut wire, code::STAG)?;
    window.end(b)
}

fn region_with_a_window_stays(b: &mut Bench<'_>) -> Outcome {
    let mut wire = b.begun()?;
    let window = Window::bound(b, &wire, 1)?;
    let dereg = format!("dereg {}", window.region.number());
    let answer = b.agent.try_ask(&dereg)?;
    require!(answer.starts_with("- "), "deregistered: {answer}");
    window.serves(b, &mut wire, 0x44)?;
    b.agent.ask(&format!("unmw {}", window.number))?;
    b.agent.ask(&dereg)?;
    b.refuses(
        &mut wire,
        code::STAG,
        &write(window.key, window.at(), &[7; 8]),
    )
}

/// Returns accesses that a window does not grant.
fn bad_accesses() -> Vec<Case> {
    type Make = fn(&Window) -> Segment;
    let list: [(&str, &str, u32, Code, Make); 7] = [
        (
            "write_before_a_window",
            "DDP-78",
            access::REMOTE_WRITE,
            code::BOUNDS,
            |w| write(w.key, w.at() - 1, &[7; 8]),
        ),
        (
            "write_across_the_end_of_a_window",
            "DDP-79",
            access::REMOTE_WRITE,
            code::BOUNDS,
            |w| write(w.key, w.at() + LEN - 7, &[7; 8]),
        ),
        (
            "write_behind_a_window",
            "DDP-79",
            access::REMOTE_WRITE,
            code::BOUNDS,
            |w| write(w.key, w.at() + LEN, &[7]),
        ),
        (
            "write_to_a_window_for_reading",
            "RDMAP-158",
            access::REMOTE_READ,
            code::STAG,
            |w| write(w.key, w.at(), &[7; 8]),
        ),
        (
            "read_across_the_end_of_a_window",
            "RDMAP-156",
            access::REMOTE_READ,
            code::SOURCE_BOUNDS,
            |w| read(1, 8, w.key, w.at() + LEN - 7),
        ),
        (
            "read_of_a_window_for_writing",
            "RDMAP-158",
            access::REMOTE_WRITE,
            code::SOURCE_RIGHTS,
            |w| read(1, 8, w.key, w.at()),
        ),
        (
            "atomic_on_a_window_for_writing",
            "EXT-59",
            access::REMOTE_WRITE | access::REMOTE_READ,
            code::SOURCE_RIGHTS,
            |w| fetch_add(w.key, w.at(), 1, 0).segment(1),
        ),
    ];
    list.into_iter()
        .map(|(name, rows, rights, code, make)| {
            case(name, rows, move |b| {
                for kind in [1, 2] {
                    let mut wire = b.begun()?;
                    let mut window = Window::new(b, kind)?;
                    window.bind_part(b, &wire, rights)?;
                    let region = window.region;
                    b.agent.fill(&region, 0x33)?;
                    b.refuses(&mut wire, code, &make(&window))?;
                    b.agent.holds(&region, 0x33)?;
                    window.end(b)?;
                }
                Ok(())
            })
        })
        .collect()
}

/// Returns windows that a peer may not invalidate.
fn bad_invalidations() -> Vec<Case> {
    let list = [
        ("window_of_a_domain", 1, false),
        ("window_of_another_stream", 2, true),
    ];
    list.into_iter()
        .map(|(name, kind, elsewhere)| {
            case(
                format!("peer_may_not_invalidate_a_{name}"),
                "RDMAP-91 RDMAP-166",
                move |b| {
                    let mut wire = b.begun()?;
                    let window = Window::bound(b, &wire, kind)?;
                    let mut other = b.begun()?;
                    let at_fault = if elsewhere { &mut other } else { &mut wire };
                    let msn = at_fault.next_send();
                    let bad = send(msn, b"x").opcode(op::SEND_INV).inv(window.key);
                    b.refuses(at_fault, code::CANNOT_INVALIDATE, &bad)?;
                    let alive = if elsewhere { &mut wire } else { &mut other };
                    window.serves(b, alive, 0x44)?;
                    window.end(b)
                },
            )
        })
        .collect()
}

/// Returns binds that the device has to refuse.
fn bad_binds() -> Vec<Case> {
    const WRITE: u32 = access::REMOTE_WRITE;
    // Name, rights of the region, range, rights of the window.
    let list = [
        ("without_the_right_to", access::ALL, (0, 8), WRITE),
        (
            "for_writing_to_memory_for_reading",
            access::REMOTE_READ | MW_BIND,
            (0, 8),
            WRITE,
        ),
        ("across_the_end", access::ALL | MW_BIND, (8185, 8), WRITE),
        (
            "longer_than_the_region",
            access::ALL | MW_BIND,
            (0, 8193),
            WRITE,
        ),
        (
            "that_wraps",
            access::ALL | MW_BIND,
            (8, u64::MAX - 4),
            WRITE,
        ),
    ];
    let mut cases: Vec<Case> = list
        .into_iter()
        .map(|(name, region, range, rights)| {
            case(format!("bind_{name}"), "RDMAP-161", move |b| {
                for kind in [1, 2] {
                    let wire = b.begun()?;
                    let mut window = Window::new(b, kind)?;
                    let whole = window.region.number();
                    b.agent.ask(&format!("dereg {whole}"))?;
                    window.region = b.agent.region(8192, region, 0)?;
                    window.bind(b, &wire, range, rights)?;
                    b.completed(&wire, "mw_bind")?;
                    b.agent.wait(&format!("disconnected {}", wire.conn))?;
                    window.end(b)?;
                }
                Ok(())
            })
        })
        .collect();
    cases.push(case("bind_of_a_bound_window", "RDMAP-161", |b| {
        let wire = b.begun()?;
        let mut window = Window::bound(b, &wire, 2)?;
        window.bind(b, &wire, (0, 8), WRITE)?;
        b.completed(&wire, "mw_bind")?;
        b.agent.wait(&format!("disconnected {}", wire.conn))?;
        window.end(b)
    }));
    cases
}
