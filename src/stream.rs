// SPDX-License-Identifier: GPL-2.0

//! The stream that a queue pair owns: out ([`tx`]) and in ([`rx`]).

pub(crate) mod rx;
pub(crate) mod tx;
