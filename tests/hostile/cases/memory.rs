// SPDX-License-Identifier: GPL-2.0

//! A device that finds no memory. Only a kernel that can be made to have none has these cases.

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

/// The next memory that the module wants, it does not get.
fn starve(b: &mut Bench<'_>) -> Outcome {
    b.setting("starved", 1)
}

/// What the queue pair needs for its stream is wanted when the Reply is here.
fn no_memory_behind_the_reply(b: &mut Bench<'_>) -> Outcome {
    let (mut wire, request) = b.called()?;
    starve(b)?;
    wire.put(&reply_to(&request, &[]).octets())?;
    wire.expect_terminate(&code::LOCAL_STARTUP.alone())?;
    b.start_up_failed(wire.conn)
}

/// That revision has no word for it.
fn no_memory_behind_a_reply_of_revision_1(b: &mut Bench<'_>) -> Outcome {
    let (mut wire, _) = b.called()?;
    starve(b)?;
    wire.put(&Start::reply(1, &[]).octets())?;
    wire.ends(End::Any)?;
    b.start_up_failed(wire.conn)
}
