// SPDX-License-Identifier: GPL-2.0

//! The protocol core of riwarp: RDMAP over DDP over MPA, as functions of octets and numbers.
//!
//! # What a layer is
//!
//! | layer | says | here |
//! |---|---|---|
//! | RDMAP | which operation it is | [`rdmap`], [`atomic`], [`terminate`], [`readq`] |
//! | DDP | where octets go: a tagged buffer or a queue | [`ddp`], [`stag`], [`order`] |
//! | MPA | how a stream starts, and where a segment begins and ends in it | [`mpa`] |
//!
//! RDMAP is RFC 5040 and RFC 7306, DDP is RFC 5041, MPA is RFC 5044 and RFC 6581.
//!
//! # What enters and leaves
//!
//! The core does no input or output, has no clock, allocates nothing and knows no kernel. Its parts
//! are values that take their input by argument and give their output by value:
//!
//! * [`segment::Segmenter`] makes FPDU headers out of a message: the way out;
//! * [`receiver::Receiver`] makes a verdict out of the headers of a complete FPDU: the way in;
//! * [`mpa::negotiate`] makes and judges the frames at the start of a stream;
//! * [`oob`] decides which connection two queue pairs keep that find each other by number;
//! * [`lifecycle::Lifecycle`] is the state machine of a queue pair;
//! * [`fault::Fault`] is everything a peer can do wrong, with the one table of how it is reported.
//!
//! Payload never comes here: the driver copies it, computes its CRC, and asks for offsets and
//! lengths.
//!
//! # Two builds
//!
//! The kernel's build system and cargo (tests/Cargo.toml) compile this same file. Only `core` is
//! used. The tests in these files are cargo's in the one build and KUnit's in the other, so they
//! keep to what both have: `assert!` and `assert_eq!` without a message. Row IDs such as `(DDP-36)`
//! are those of docs/conformance.md.

#![cfg_attr(not(MODULE), no_std)]
#![forbid(unsafe_code)]
#![warn(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic
)]
#![cfg_attr(
    test,
    allow(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        reason = "a test that panics has failed, which is what it is for"
    )
)]

pub mod atomic;
pub mod bytes;
#[cfg(any(not(MODULE), CONFIG_KUNIT = "y"))]
pub mod crc;
pub mod ddp;
pub mod fault;
pub mod lifecycle;
pub mod mpa;
pub mod oob;
pub mod order;
pub mod rdmap;
pub mod readq;
pub mod receiver;
pub mod segment;
pub mod stag;
pub mod terminate;
