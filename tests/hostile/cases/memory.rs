// SPDX-License-Identifier: GPL-2.0

//! A device whose allocations fail. These cases need a kernel with fault injection.

use super::{
    case,
    code,
    Case, //
};
use crate::{
    bench::{
        reply_to,
        Bench, //
    },
    frame::Start,
    wire::{
        End,
        Outcome, //
    }, //
};

pub(super) fn cases() -> Vec<Case> {
    vec![
        case(
            "no_memory_behind_the_reply",
            "MPA-46",
            no_memory_behind_the_reply,
        )
        .alone(),
        case(
            "no_memory_behind_a_reply_of_revision_1",
            "MPA-46",
            no_memory_behind_a_reply_of_revision_1,
        )
        .alone(),
    ]
}

/// Makes the module's next allocation fail.
fn starve(b: &mut Bench<'_>) -> Outcome {
    b.setting("starved", 1)
}

/// The device allocates the queue pair's stream when the Reply arrives.
fn no_memory_behind_the_reply(b: &mut Bench<'_>) -> Outcome {
    let (mut wire, request) = b.called()?;
    starve(b)?;
    wire.put(&reply_to(&request, &[]).octets())?;
    wire.expect_terminate(&code::LOCAL_STARTUP.alone())?;
    b.start_up_failed(wire.conn)
}

/// Revision 1 has no Terminate code for it.
fn no_memory_behind_a_reply_of_revision_1(b: &mut Bench<'_>) -> Outcome {
    let (mut wire, _) = b.called()?;
    starve(b)?;
    wire.put(&Start::reply(1, &[]).octets())?;
    wire.ends(End::Any)?;
    b.start_up_failed(wire.conn)
}
