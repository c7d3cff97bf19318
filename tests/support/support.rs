// SPDX-License-Identifier: GPL-2.0

//! Shared parts of the protocol core's tests.
//!
//! * [`frame`] builds octets by hand, from the figures of the RFCs and without the core's encoders;
//! * [`wire`] cuts a stream of octets into FPDUs;
//! * [`end`] is one end of a stream: a small driver around the core, with its own memory;
//! * [`hostile`] passes segments to an end and checks its Terminate;
//! * [`random`] is a seeded source of numbers;
//! * [`start`] builds start-up frames and runs the two roles.

pub mod end;
pub mod frame;
pub mod hostile;
pub mod random;
pub mod start;
pub mod wire;
