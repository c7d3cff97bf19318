// SPDX-License-Identifier: GPL-2.0

//! The protocol core of riwarp: RDMAP over DDP over MPA, as functions of octets and numbers.
//!
//! # Layers
//!
//! | layer | decides | modules |
//! |---|---|---|
//! | RDMAP | which operation a message is | [`rdmap`], [`atomic`], [`terminate`], [`readq`] |
//! | DDP | where octets go: a tagged buffer or a queue | [`ddp`], [`stag`], [`order`] |
//! | MPA | how a stream starts, and where its segments begin and end | [`mpa`] |
//!
//! RDMAP is RFC 5040 and RFC 7306, DDP is RFC 5041, MPA is RFC 5044 and RFC 6581.
//!
//! # Interface
//!
//! The core does no input or output, has no clock, allocates nothing and does not depend on the
//! kernel. It takes its input by argument and returns its output by value:
//!
//! * [`segment::Segmenter`] makes the FPDU headers of a message to be sent;
//! * [`receiver::Receiver`] judges the headers of a complete FPDU that has arrived;
//! * [`stream::StreamReceiver`] decides what it leads to, and asks a [`stream::Delivery`] for it;
//! * [`stream::StreamSender`] decides which message is sent next;
//! * [`mpa::negotiate`] makes and judges the frames at the start of a stream;
//! * [`oob`] decides which connection two queue pairs keep that connect without `rdma_cm`;
//! * [`lifecycle::Lifecycle`] is the state machine of a queue pair, which returns
//!   [`actions::Actions`];
//! * [`inject::Rule`] says which requests fail on purpose, and how;
//! * [`fault::Fault`] lists every error of a stream, with the table of how each is reported.
//!
//! The core never handles payload: the driver copies it, computes its CRC, and asks for offsets and
//! lengths.
//!
//! # Two builds
//!
//! The kernel's build system and cargo (tests/Cargo.toml) compile the same files, which use `core`
//! only. Their tests run under cargo in one build and under KUnit in the other, so they use only
//! what both have: `assert!` and `assert_eq!` without a message. Row IDs such as `(DDP-36)` are
//! those of docs/conformance.md.

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

pub mod actions;
pub mod atomic;
pub mod bytes;
#[cfg(any(not(MODULE), CONFIG_KUNIT = "y"))]
pub mod crc;
pub mod ddp;
pub mod fault;
pub mod features;
pub mod flush;
pub mod inject;
pub mod lifecycle;
pub mod mpa;
pub mod oob;
pub mod order;
pub mod rdmap;
pub mod readq;
pub mod receiver;
pub mod segment;
pub mod stag;
pub mod stream;
pub mod terminate;
