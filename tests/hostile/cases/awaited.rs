// SPDX-License-Identifier: GPL-2.0

//! What Reads and atomic operations of the device have in common: it waits for an answer to them.

use crate::{
    bench::Bench,
    frame::{
        hex,
        op,
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

/// Where in [`Bench::ram`] the device puts the answer.
pub(super) const SINK_AT: usize = 512;

/// The request is done, it has brought these octets, and nothing beside them was written to.
pub(super) fn brought(b: &mut Bench<'_>, wire: &Wire, data: &[u8]) -> Outcome {
    b.puppet
        .wait(&format!("wc {} send * success {}", wire.conn, data.len()))?;
    let ram = b.ram;
    let memory = b.puppet.peek(&ram, SINK_AT, data.len())?;
    require!(memory == data, "{}", hex(&memory));
    beside_the_sink(b, data.len())
}

/// Nothing beside a sink of this size was written to.
pub(super) fn beside_the_sink(b: &mut Bench<'_>, size: usize) -> Outcome {
    b.ram_is_clean(0, SINK_AT)?;
    b.ram_is_clean(SINK_AT + size, 1000)
}

/// The device waits for this answer, which brings `size` octets: a Send that is posted meanwhile
/// goes out, and completes behind the request.
pub(super) fn send_completes_behind(
    b: &mut Bench<'_>,
    wire: &mut Wire,
    answer: Segment,
    size: usize,
) -> Outcome {
    b.puppet.ask(&format!("send {} 10 -", wire.conn))?;
    wire.expect_send(10)?;
    b.nothing_completes(wire)?;
    wire.send(&[answer])?;
    let first = b.puppet.wait(&format!("wc {} send", wire.conn))?;
    let second = b.puppet.wait(&format!("wc {} send", wire.conn))?;
    require!(
        first[5] == size.to_string() && first[3] < second[3],
        "{first:?} {second:?}"
    );
    Ok(())
}

/// What this command posts is at fault by itself: a Terminate takes its place.
pub(super) fn own_fault(b: &mut Bench<'_>, command: &str) -> Outcome {
    let mut wire = b.begun()?;
    b.puppet.ask(&format!("{command} {}", wire.conn))?;
    let got = wire.get()?;
    require!(
        got.op() == op::TERMINATE && got.data().len() == 4,
        "{}",
        got.describe()
    );
    let local = Code(0, 0, got.data()[1]).alone();
    require!(got.0 == local, "{}", got.describe());
    wire.ends(End::Graceful)?;
    b.completed(&wire, "loc_prot")
}

/// The peer ends the stream over a segment of the device; the request that waits ends with this
/// status.
pub(super) fn terminated(
    b: &mut Bench<'_>,
    wire: &mut Wire,
    code: Code,
    segment: &Segment,
    status: &str,
) -> Outcome {
    wire.send(&[code.answer(segment)])?;
    b.completed(wire, status)?;
    b.puppet.wait(&format!("event {} QP_FATAL", wire.conn))?;
    b.down(wire)
}

/// The peer resets the connection; the request that waits is flushed.
pub(super) fn reset(b: &Bench<'_>, wire: Wire) -> Outcome {
    let conn = wire.conn;
    wire.reset()?;
    b.puppet.wait(&format!("wc {conn} send * flushed"))?;
    b.puppet.wait(&format!("disconnected {conn}")).map(drop)
}
