// SPDX-License-Identifier: GPL-2.0

//! Safe abstractions that the `kernel` crate does not have yet: RDMA core, TCP sockets and their
//! callbacks, user memory, bottom-half locking, tables under RCU, work queues, counters per CPU,
//! rate limits, warnings, checksums, trace events, files in debugfs, a parameter that is written at
//! any time, keeping a module away, timers that end for good, a branch that is rarely taken.
//!
//! This crate is the only place of riwarp with unsafe code and with bindings. Paths mirror those of
//! the `kernel` crate, where most modules could go by themselves. [`rdma::mem`] could not: it
//! copies to and from TCP's queues.

// Without lockdep a lock class has no fields, which C permits and Rust's lint rejects.
#![allow(improper_ctypes)]

#[allow(dead_code)]
const __LOG_PREFIX: &[u8] = b"riwarp\0";

#[cfg(CONFIG_KUNIT = "y")]
extern crate self as kernel_ext;

#[cfg(CONFIG_KUNIT = "y")]
include!(env!("RIWARP_EXAMPLES"));

mod bindings;

pub mod compat;
pub mod crc32c;
pub mod debugfs_owner;
pub mod mm;
pub mod module_exclusion;
pub mod module_param;
pub mod net;
pub mod percpu;
pub mod random;
pub mod ratelimit;
pub mod rcu_map;
pub mod rdma;
pub mod static_key;
pub mod sync;
pub mod time;
pub mod trace;
pub mod warn;
pub mod workqueue;
