// SPDX-License-Identifier: GPL-2.0

//! The stream of a queue pair: transmit side ([`tx`]) and receive side ([`rx`]).

pub(crate) mod rx;
pub(crate) mod tx;
