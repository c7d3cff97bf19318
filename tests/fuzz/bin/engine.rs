// SPDX-License-Identifier: GPL-2.0

//! Runs libFuzzer on the target that TARGET in the environment names.

#![no_main]

use std::sync::OnceLock;

use iwarp_fuzz::{
    Target,
    TARGETS, //
};

static TARGET: OnceLock<Target> = OnceLock::new();

libfuzzer_sys::fuzz_target!(
    init: {
        let name = std::env::var("TARGET").unwrap_or_default();
        let found = TARGETS.into_iter().find(|(known, _)| *known == name);
        let Some((_, target)) = found else {
            panic!("TARGET is none of {:?}", TARGETS.map(|(name, _)| name));
        };
        TARGET.set(target).unwrap();
    },
    |octets: &[u8]| TARGET.get().unwrap()(octets)
);
