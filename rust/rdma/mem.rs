// SPDX-License-Identifier: GPL-2.0

//! The memory of regions, which the driver reads and places octets in.
//!
//! * [`umem`]: memory of a process, pinned;
//! * [`paged`]: memory of a process that is not pinned;
//! * [`dma_buf`]: memory of another driver that a process has a descriptor of;
//! * [`mem_map`]: copies between such memory, the receive path and the send path.

pub mod dma_buf;
pub mod mem_map;
pub mod paged;
pub mod umem;
