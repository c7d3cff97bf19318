// SPDX-License-Identifier: GPL-2.0

//! What the device's Reads and atomic operations have in common: the device waits for an answer.

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

/// The offset in [`Bench::ram`] where the device puts the answer.
pub(super) const SINK_AT: usize = 512;

/// Checks that the request completed, that it brought these octets, and that nothing beside them
/// was written.
pub(super) fn brought(b: &mut Bench<'_>, wire: &Wire, data: &[u8]) -> Outcome {
    b.agent
        .wait(&format!("wc {} send * success {}", wire.conn, data.len()))?;
    let ram = b.ram;
    let memory = b.agent.peek(&ram, SINK_AT, data.len())?;
    require!(memory == data, "{}", hex(&memory));
    beside_the_sink(b, data.len())
}

/// Checks that nothing beside a sink of this size was written.
pub(super) fn beside_the_sink(b: &mut Bench<'_>, size: usize) -> Outcome {
    b.ram_is_clean(0, SINK_AT)?;
    b.ram_is_clean(SINK_AT + size, 1000)
}

/// Checks that a Send is sent while the device waits for this answer of `size` octets, and that it
/// completes behind the request.
pub(super) fn send_completes_behind(
    b: &mut Bench<'_>,
    wire: &mut Wire,
    answer: Segment,
    size: usize,
) -> Outcome {
    b.agent.ask(&format!("send {} 10 -", wire.conn))?;
    wire.expect_send(10)?;
    b.nothing_completes(wire)?;
    wire.send(&[answer])?;
    let first = b.agent.wait(&format!("wc {} send", wire.conn))?;
    let second = b.agent.wait(&format!("wc {} send", wire.conn))?;
    require!(
        first[5] == size.to_string() && first[3] < second[3],
        "{first:?} {second:?}"
    );
    Ok(())
}

/// Checks that a request which is itself at fault makes the device send a Terminate instead.
pub(super) fn own_fault(b: &mut Bench<'_>, command: &str) -> Outcome {
    let mut wire = b.begun()?;
    b.agent.ask(&format!("{command} {}", wire.conn))?;
    refused_here(b, &mut wire, "loc_prot")
}

/// Checks that the device refuses its program's request with this status: nothing but a Terminate
/// for a local error comes.
pub(super) fn refused_here(b: &mut Bench<'_>, wire: &mut Wire, status: &str) -> Outcome {
    let got = wire.get()?;
    require!(
        got.op() == op::TERMINATE && got.data().len() == 4,
        "{}",
        got.describe()
    );
    let local = Code(0, 0, got.data()[1]).alone();
    require!(got.0 == local, "{}", got.describe());
    wire.ends(End::Graceful)?;
    b.completed(wire, status)
}

/// Ends the stream as the peer, with a Terminate for a segment of the device; checks that the
/// waiting request ends with this status.
pub(super) fn terminated(
    b: &mut Bench<'_>,
    wire: &mut Wire,
    code: Code,
    segment: &Segment,
    status: &str,
) -> Outcome {
    wire.send(&[code.answer(segment)])?;
    b.completed(wire, status)?;
    b.agent.wait(&format!("event {} QP_FATAL", wire.conn))?;
    b.down(wire)
}

/// Resets the connection; checks that the waiting request is flushed.
pub(super) fn reset(b: &Bench<'_>, wire: Wire) -> Outcome {
    let conn = wire.conn;
    wire.reset()?;
    b.agent.wait(&format!("wc {conn} send * flushed"))?;
    b.agent.wait(&format!("disconnected {conn}")).map(drop)
}
