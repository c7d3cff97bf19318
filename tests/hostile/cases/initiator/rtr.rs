// SPDX-License-Identifier: GPL-2.0

//! The ready-to-receive message of the device as Initiator (RFC 6581, section 9).

use super::{
    code,
    unusable_reply, //
};
use crate::{
    bench::{
        reply_to,
        take_rtr,
        Bench, //
    },
    frame::{
        op,
        read_response,
        Depths,
        Got,
        Rtr,
        Start, //
    },
    wire::{
        fail,
        require,
        Outcome,
        Wire, //
    }, //
};

/// Accepts these kinds in the Reply; returns the FPDU that comes first.
fn rtr_out_of(b: &mut Bench<'_>, taken: Rtr) -> Outcome<(Wire, Got)> {
    let (mut wire, request) = b.called()?;
    let Some(asked) = request.depths() else {
        fail!("no enhanced data");
    };
    let depths = Depths {
        ird: asked.ord,
        ord: asked.ird,
        rtr: taken,
        ..asked
    };
    wire.put(&Start::enhanced_reply(depths, &[]).octets())?;
    let first = wire.get()?;
    Ok((wire, first))
}

/// Checks that the kind that comes is one that the Reply accepts, or that the connection fails.
pub(super) fn rtr_kinds(b: &mut Bench<'_>, peer_to_peer: bool, taken: Rtr) -> Outcome {
    if !peer_to_peer || !taken.write && !taken.read {
        return unusable_reply(
            b,
            |agreed| Depths {
                peer_to_peer,
                rtr: taken,
                ..agreed
            },
            code::NO_RTR,
        );
    }
    let (mut wire, first) = rtr_out_of(b, taken)?;
    let fits = match first.op() {
        op::WRITE => taken.write && first.data().is_empty(),
        op::READ_REQUEST => taken.read && first.read().size == 0 && first.msn() == 1,
        _ => false,
    };
    require!(fits && first.is_last(), "{}", first.describe());
    if first.op() == op::READ_REQUEST {
        wire.send(&[read_response(first.read().sink, first.read().sink_to, &[])])?;
    }
    b.agent.wait(&format!("established {}", wire.conn))?;
    // It has no completion, and the next Read has the next number.
    b.nothing_completes(&mut wire)?;
    b.agent
        .ask(&format!("read {} {} 0 8 0 77 -", wire.conn, b.ram.number()))?;
    let next = wire.get()?;
    let want = if first.op() == op::READ_REQUEST { 2 } else { 1 };
    require!(
        next.op() == op::READ_REQUEST && next.msn() == want,
        "{}",
        next.describe()
    );
    b.works(&mut wire)
}

pub(super) fn rtr_comes_before_data(b: &mut Bench<'_>) -> Outcome {
    let (mut wire, request) = b.called()?;
    wire.put(&reply_to(&request, &[]).octets())?;
    b.agent.wait(&format!("established {}", wire.conn))?;
    b.agent.ask(&format!("send {} 10 -", wire.conn))?;
    take_rtr(&mut wire)?;
    wire.expect_send(10).map(drop)
}

/// Accepts only a Read in the Reply; returns its sink.
fn rtr_by_read(b: &mut Bench<'_>) -> Outcome<(Wire, u32, u64)> {
    let (wire, first) = rtr_out_of(b, Rtr::READ)?;
    require!(first.op() == op::READ_REQUEST, "{}", first.describe());
    b.agent.wait(&format!("established {}", wire.conn))?;
    Ok((wire, first.read().sink, first.read().sink_to))
}

pub(super) fn rtr_read_is_answered_with_octets(b: &mut Bench<'_>) -> Outcome {
    let (mut wire, sink, to) = rtr_by_read(b)?;
    b.clean()?;
    let bad = read_response(sink, to, b"octets");
    wire.send(std::slice::from_ref(&bad))?;
    wire.expect_refusal(code::BOUNDS, &bad)?;
    b.untouched()?;
    b.failed(&wire, code::BOUNDS)
}

pub(super) fn rtr_read_is_answered_with_any_stag(b: &mut Bench<'_>) -> Outcome {
    let (mut wire, ..) = rtr_by_read(b)?;
    wire.send(&[read_response(0xffff_ffff, u64::MAX, &[])])?;
    b.works(&mut wire)
}
