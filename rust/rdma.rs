// SPDX-License-Identifier: GPL-2.0

//! RDMA core for iWARP drivers.
//!
//! Modules:
//!
//! * [`ops`]: the interface of a driver: a trait for each kind of object, and
//!   [`Driver`](ops::Driver);
//! * [`device`], [`settings`], [`port_counters`]: the device, its registration, its port events;
//!   its files in sysfs;
//! * [`object`]: links from the driver's objects to those that the consumers hold;
//! * [`wr`], [`sges`], [`wc`]: work requests, the memory that they name, and completions;
//! * [`mr`], [`mem`]: registration of memory, and that memory;
//! * [`udata`], [`mmap`]: the private channel and the shared memory of a provider library;
//! * [`iw_cm`]: the iWARP connection manager;
//! * [`link`]: `rdma link add`;
//! * [`restrack`]: the driver's part of `rdma -dd resource show`;
//! * [`types`]: attributes as plain values.
//!
//! C headers: `include/rdma/ib_verbs.h`, `include/rdma/iw_cm.h`, `include/rdma/rdma_netlink.h`.

pub mod device;
pub mod iw_cm;
pub mod link;
pub mod mem;
pub mod mmap;
pub mod mr;
pub mod object;
pub mod ops;
pub mod port_counters;
pub mod restrack;
pub mod settings;
mod sges;
#[cfg(CONFIG_KUNIT = "y")]
mod tests;
pub mod types;
pub mod udata;
pub mod wc;
pub mod wr;

#[cfg(CONFIG_KUNIT = "y")]
pub use tests::bench;
