// SPDX-License-Identifier: GPL-2.0

//! The stream of a queue pair: transmit side ([`tx`]) and receive side ([`rx`]), what they share
//! with the queue pair and ask of it ([`owner`]), its published state ([`lifecycle`]), why it ended
//! ([`ending`]), what rules do to it ([`inject`]), what the strict mode finds in it ([`strict`]),
//! and the connection under them ([`connection`]).

pub(crate) mod connection;
pub(crate) mod ending;
pub(crate) mod inject;
pub(crate) mod lifecycle;
pub(crate) mod owner;
pub(crate) mod rx;
pub(crate) mod strict;
mod trace;
pub(crate) mod tx;
