// SPDX-License-Identifier: GPL-2.0

//! Fuzz targets: functions of octets that must hold for every input.
//!
//! Each of [`TARGETS`] takes any octets and panics if the core breaks a promise. Three programs
//! drive them: `cargo test` with the corpus and random octets (tests/tests/fuzz.rs), libFuzzer in
//! bin/engine.rs (tests/soak), and, for the output of [`mutator`], a peer of a device in a guest
//! (bin/mutants.rs).
//!
//! * [`fpdu_stream`]: the receiver, compared with [`oracle`], however the stream is cut;
//! * [`mpa_start`]: start-up, both ends;
//! * [`terminate`]: the Terminate parser and builder;
//! * [`ops`]: two ends of a stream, compared with a model;
//! * [`inject`]: rules by which requests and messages fail;
//! * [`conversation`]: conversations that [`mutator`] has mutated.

pub mod conversation;
pub mod fpdu_stream;
pub mod framing;
pub mod inject;
pub mod mpa_start;
pub mod mutator;
pub mod ops;
pub mod oracle;
pub mod source;
pub mod terminate;
pub mod watched;

/// A fuzz target.
pub type Target = fn(&[u8]);

/// The targets by the names of their corpora.
pub const TARGETS: [(&str, Target); 6] = [
    ("fpdu_stream", fpdu_stream::run),
    ("mpa_start", mpa_start::run),
    ("terminate", terminate::run),
    ("inject", inject::run),
    ("ops", ops::run),
    ("conversation", conversation::run),
];
