// SPDX-License-Identifier: GPL-2.0

//! Connections: start-up, accept and close ([`conn`]), what a consumer asks of a queue pair and its
//! connection ([`endpoint`]), listeners and their sockets ([`listen`]), and out-of-band
//! connections ([`oob`]).

pub(crate) mod conn;
pub(crate) mod endpoint;
pub(crate) mod listen;
pub(crate) mod oob;
