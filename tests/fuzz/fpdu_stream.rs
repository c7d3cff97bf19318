// SPDX-License-Identifier: GPL-2.0

//! The receiver, with any octets, cuts and rules.

use crate::{
    framing::seal,
    source::Source,
    watched::{
        play,
        Setting, //
    }, //
};

/// Plays octets to an end; the first ones select its setting and where the stream is cut.
pub fn run(octets: &[u8]) {
    let mut source = Source::new(octets);
    let setting = Setting::new(&mut source);
    let cuts = u32::from(source.u16());
    let damaged = source.u8().checked_sub(1);
    let mut stream = Vec::new();
    seal(source.rest(), setting.rules, damaged, &mut stream);
    play(&setting, &stream, cuts);
}
