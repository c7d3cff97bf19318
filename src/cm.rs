// SPDX-License-Identifier: GPL-2.0

//! Connections: start-up, accept and close ([`conn`]), listeners and their sockets ([`listen`]),
//! and connections without `rdma_cm` ([`oob`]).

pub(crate) mod conn;
pub(crate) mod listen;
pub(crate) mod oob;
