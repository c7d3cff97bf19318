// SPDX-License-Identifier: GPL-2.0

//! Each kind of message in pieces, truncated and corrupted: it has no effect before all of it has
//! arrived with a good CRC (RFC 5044, sections 4.4 and 6; RFC 5040, section 5.5; RFC 7306, section
//! 5.4).

use super::{
    atomics::{
        answer,
        fetch_add, //
    },
    case,
    code,
    operations::immediate,
    scripts,
    Case, //
};
use crate::{
    bench::{
        Bench,
        RECEIVES, //
    },
    frame::{
        hex,
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
        End,
        Outcome,
        Wire, //
    }, //
};

pub(super) fn cases() -> Vec<Case> {
    let mut list = scripts![
        read_source_is_read_once_request_is_complete: "RDMAP-120 RDMAP-113",
        atomic_target_is_read_once_request_is_complete: "EXT-53",
    ];
    for kind in KINDS {
        let name = kind.name;
        list.extend([
            case(
                format!("{name}_in_two_pieces"),
                "DDP-4 MPA-20 RDMAP-113",
                move |b| in_two_pieces(b, kind),
            ),
            case(
                format!("{name}_cut_off_by_the_end"),
                "MPA-30 DDP-59",
                move |b| cut_off_by_the_end(b, kind),
            ),
            case(
                format!("{name}_cut_off_by_a_reset"),
                "MPA-30 DDP-63",
                move |b| cut_off_by_a_reset(b, kind),
            ),
            case(
                format!("{name}_without_its_last_octets"),
                "MPA-20 RDMAP-113 RDMAP-120 EXT-53",
                move |b| without_its_last_octets(b, kind),
            ),
            case(
                format!("{name}_with_a_bad_crc"),
                "MPA-20 RDMAP-132 DDP-67",
                move |b| with_a_bad_crc(b, kind),
            ),
        ]);
    }
    list
}

/// A message of one kind, and a check that it arrived.
#[derive(Clone, Copy)]
struct Kind {
    name: &'static str,
    /// Makes the message for a connection, with the next number of its queue.
    make: fn(&Bench<'_>, &mut Wire) -> Segment,
    arrived: fn(&mut Bench<'_>, &mut Wire) -> Outcome,
}

pub(super) const DATA: &[u8] = b"0123456789";

const KINDS: [Kind; 9] = [
    Kind {
        name: "write",
        make: |b, _| write(b.ram.key, b.ram.at + 3, DATA),
        arrived: |b, wire| {
            let msn = wire.next_read();
            wire.send(&[read(msn, 10, b.ram.key, b.ram.at + 3)])?;
            wire.expect(&response(DATA))
        },
    },
    Kind {
        name: "send",
        make: |_, wire| send(wire.next_send(), DATA),
        arrived: |b, wire| sent(b, wire, DATA),
    },
    Kind {
        name: "empty_send",
        make: |_, wire| send(wire.next_send(), &[]),
        arrived: |b, wire| sent(b, wire, &[]),
    },
    Kind {
        name: "solicited_send",
        make: |_, wire| send(wire.next_send(), DATA).opcode(op::SEND_SE),
        arrived: |b, wire| sent(b, wire, DATA),
    },
    Kind {
        name: "read_request",
        make: |b, wire| read(wire.next_read(), 10, b.no_write.key, b.no_write.at),
        arrived: |_, wire| wire.message().map(drop),
    },
    Kind {
        name: "empty_read_request",
        make: |_, wire| read(wire.next_read(), 0, 0, 0),
        arrived: |_, wire| wire.expect(&response(&[])),
    },
    Kind {
        name: "atomic_request",
        make: |b, wire| fetch_add(b.ram.key, b.ram.at, 1, 0).segment(wire.next_read()),
        arrived: added,
    },
    Kind {
        name: "immediate_data",
        make: |_, wire| immediate(wire.next_send(), *b"data"),
        arrived: |b, wire| {
            b.agent.wait(&format!(
                "wc {} imm * success 0 {}",
                wire.conn,
                hex(b"data")
            ))?;
            b.agent.ask(&format!("recv {} 1", wire.conn)).map(drop)
        },
    },
    Kind {
        name: "terminate",
        make: |_, _| Code(0, 2, 7).alone(),
        arrived: |b, wire| {
            wire.ends(End::Graceful)?;
            b.agent
                .wait(&format!("event {} QP_FATAL", wire.conn))
                .map(drop)
        },
    },
];

impl Kind {
    /// Returns whether a connection can carry only one of this kind.
    fn is_final(&self) -> bool {
        self.name == "terminate"
    }
}

/// Checks that a Send arrived; posts its receive again.
pub(super) fn sent(b: &mut Bench<'_>, wire: &mut Wire, data: &[u8]) -> Outcome {
    b.received(wire, data)?;
    b.agent.ask(&format!("recv {} 1", wire.conn)).map(drop)
}

/// Checks that the answer to an atomic operation has the original value.
fn added(b: &mut Bench<'_>, wire: &mut Wire) -> Outcome {
    let got = wire.get()?;
    let ram = b.ram;
    let memory = b.agent.peek(&ram, 0, 8)?;
    let word = memory.try_into().map_or(0, u64::from_ne_bytes);
    require!(
        got.op() == op::ATOMIC_RESPONSE && got.data()[4..] == word.wrapping_sub(1).to_be_bytes(),
        "{} where {word:#x} is now",
        got.describe()
    );
    Ok(())
}

/// Sends the message cut at each octet; checks that the connection goes on.
fn in_two_pieces(b: &mut Bench<'_>, kind: Kind) -> Outcome {
    let mut wire = b.connect()?;
    let mut cut = 1;
    loop {
        let octets = (kind.make)(b, &mut wire).fpdu();
        if cut == octets.len() {
            return Ok(());
        }
        wire.put(&octets[..cut])?;
        wire.put(&octets[cut..])?;
        (kind.arrived)(b, &mut wire)?;
        if kind.is_final() {
            wire = b.connect()?;
        }
        cut += 1;
    }
}

/// Sends the message cut in each field, then closes.
fn cut_off_by_the_end(b: &mut Bench<'_>, kind: Kind) -> Outcome {
    b.clean()?;
    let len = (kind.make)(b, &mut b.connect()?).fpdu().len();
    for cut in [1, 2, 3, 4, 7, 8]
        .into_iter()
        .chain((9..len - 5).step_by(5))
        .chain(len - 5..len)
    {
        let mut wire = b.connect()?;
        let octets = (kind.make)(b, &mut wire).fpdu();
        wire.put(&octets[..cut])?;
        wire.half_close()?;
        wire.ends(End::Any)?;
        b.down(&wire)?;
        b.flushed(&wire, RECEIVES)?;
    }
    b.untouched()
}

fn cut_off_by_a_reset(b: &mut Bench<'_>, kind: Kind) -> Outcome {
    b.clean()?;
    for held_back in [1, 4, 5, 12] {
        let mut wire = b.connect()?;
        let octets = (kind.make)(b, &mut wire).fpdu();
        wire.put(&octets[..octets.len() - held_back])?;
        b.loses(wire)?;
    }
    b.untouched()
}

/// Checks that nothing happens before all of it has arrived.
fn without_its_last_octets(b: &mut Bench<'_>, kind: Kind) -> Outcome {
    for held_back in [1, 4, 5] {
        let mut wire = b.connect()?;
        b.clean()?;
        let octets = (kind.make)(b, &mut wire).fpdu();
        let (first, rest) = octets.split_at(octets.len() - held_back);
        wire.put(first)?;
        wire.silent()?;
        b.agent.none_yet(&format!("wc {}", wire.conn))?;
        b.agent.none_yet(&format!("event {}", wire.conn))?;
        b.untouched()?;
        wire.put(rest)?;
        (kind.arrived)(b, &mut wire)?;
    }
    Ok(())
}

fn with_a_bad_crc(b: &mut Bench<'_>, kind: Kind) -> Outcome {
    for difference in [1, 0x80, 0x0001_0000, 0x8000_0000, !0] {
        let mut wire = b.connect()?;
        b.clean()?;
        let segment = (kind.make)(b, &mut wire);
        wire.put(&segment.bad_crc(difference))?;
        wire.expect_terminate(&code::CRC.alone())?;
        b.untouched()?;
        b.failed(&wire, code::CRC)?;
        b.flushed(&wire, RECEIVES)?;
    }
    Ok(())
}

/// The request sees memory as it is when its last octets arrive, not as it was before.
fn changed_before_the_last_octets(
    b: &mut Bench<'_>,
    make: fn(&Bench<'_>, &mut Wire) -> Segment,
    want: fn(u32, u64) -> Segment,
) -> Outcome {
    let mut wire = b.connect()?;
    let ram = b.ram;
    for (number, held_back) in (1..).zip([1, 4, 5, 12, 40]) {
        let octets = make(b, &mut wire).fpdu();
        b.agent.poke(&ram, 0, &1_u64.to_ne_bytes())?;
        let (first, rest) = octets.split_at(octets.len() - held_back);
        wire.put(first)?;
        wire.silent()?;
        let later = 0x0807_0605_0403_0200 + u64::from(number);
        b.agent.poke(&ram, 0, &later.to_ne_bytes())?;
        wire.put(rest)?;
        wire.expect(&want(number, later))?;
    }
    Ok(())
}

fn read_source_is_read_once_request_is_complete(b: &mut Bench<'_>) -> Outcome {
    changed_before_the_last_octets(
        b,
        |b, wire| read(wire.next_read(), 8, b.ram.key, b.ram.at),
        |_, found| response(&found.to_ne_bytes()),
    )
}

fn atomic_target_is_read_once_request_is_complete(b: &mut Bench<'_>) -> Outcome {
    changed_before_the_last_octets(
        b,
        |b, wire| fetch_add(b.ram.key, b.ram.at, 1, 0).segment(wire.next_read()),
        |number, found| answer(number, fetch_add(0, 0, 0, 0).identifier, found),
    )
}
