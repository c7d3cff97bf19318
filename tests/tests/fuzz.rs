// SPDX-License-Identifier: GPL-2.0

//! The fuzz targets without an engine: their corpora, and octets from anywhere.

use std::{
    fs,
    path::Path, //
};

use bolero::check;
use iwarp_fuzz::{
    conversation,
    fpdu_stream,
    mpa_start,
    terminate,
    Target,
    TARGETS, //
};

/// What the engine has found worth keeping holds.
#[test]
fn every_corpus() {
    for (name, target) in TARGETS {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("fuzz/corpus")
            .join(name);
        let mut count = 0;
        for entry in fs::read_dir(&corpus).unwrap() {
            let path = entry.unwrap().path();
            let octets = fs::read(&path).unwrap();
            eprintln!("{}", path.display());
            target(&octets);
            count += 1;
        }
        assert!(count >= 20, "{name} has {count} inputs");
    }
}

/// 20000 inputs of up to 512 octets.
fn any(target: Target) {
    check!()
        .with_iterations(20_000)
        .with_max_len(512)
        .for_each(target);
}

#[test]
fn any_stream_of_fpdus() {
    any(fpdu_stream::run);
}

#[test]
fn any_start_up() {
    any(mpa_start::run);
}

#[test]
fn any_terminate() {
    any(terminate::run);
}

#[test]
fn any_spoilt_conversation() {
    any(conversation::run);
}
