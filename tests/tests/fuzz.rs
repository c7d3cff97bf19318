// SPDX-License-Identifier: GPL-2.0

//! The fuzz targets without an engine: their corpora, and random octets.

use std::{
    fs,
    path::Path, //
};

use bolero::check;
use iwarp_fuzz::{
    conversation,
    fpdu_stream,
    inject,
    mpa_start,
    ops,
    terminate,
    Target, //
};

/// Runs the corpus of a target.
#[track_caller]
fn corpus(name: &str, target: Target) {
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

#[test]
fn stream_corpus() {
    corpus("fpdu_stream", fpdu_stream::run);
}

#[test]
fn start_up_corpus() {
    corpus("mpa_start", mpa_start::run);
}

#[test]
fn terminate_corpus() {
    corpus("terminate", terminate::run);
}

#[test]
fn inject_rule_corpus() {
    corpus("inject", inject::run);
}

#[test]
fn operation_corpus() {
    corpus("ops", ops::run);
}

#[test]
fn conversation_corpus() {
    corpus("conversation", conversation::run);
}

/// Runs 20000 inputs of up to 512 octets.
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
fn any_corrupted_conversation() {
    any(conversation::run);
}
