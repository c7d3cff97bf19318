// SPDX-License-Identifier: GPL-2.0

//! Valid and mutated conversations of a peer.

use crate::{
    framing::Rules,
    mutator::{
        spoilt,
        Facts, //
    },
    source::Source,
    watched::{
        play,
        Setting,
        MEMORY,
        RECEIVE_LEN,
        WINDOW, //
    }, //
};
use iwarp::rdmap::Extensions;

/// Plays the conversation that the octets encode.
pub fn run(octets: &[u8]) {
    let mut source = Source::new(octets);
    let setting = Setting {
        rules: Rules::default(),
        ..Setting::new(&mut source)
    };
    let cuts = u32::from(source.u16());
    let facts = Facts {
        memory: MEMORY,
        atomic: (setting.extensions == Extensions::Rfc7306).then_some((WINDOW.0, WINDOW.1)),
        receives: (RECEIVE_LEN, setting.receives),
        ird: setting.ird.into(),
        first: setting.first().raw(),
    };
    let played = spoilt(&mut source, &facts);
    let outcome = play(&setting, &played.stream, cuts);
    assert!(outcome.terminated.is_none() || !played.mutations.is_empty());
    if played.mutations.is_empty() {
        assert_eq!(outcome.terminate, None);
        assert!(!outcome.mid_message);
    }
}
