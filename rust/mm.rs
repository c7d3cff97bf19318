// SPDX-License-Identifier: GPL-2.0

//! Memory that the driver reads and places octets in.
//!
//! * [`umem`]: memory of a process, pinned;
//! * [`paged`]: memory of a process that is not pinned;
//! * [`dma_buf`]: memory of another driver that a process has a descriptor of;
//! * [`mem_map`]: copies between such memory, the receive path and the send path;
//! * `place`: the copy into memory that a program may be polling;
//! * [`shared_ring`]: memory that a process and the driver share;
//! * [`memcg`]: memory cgroups that are charged for memory;
//! * [`noio`]: allocations that do not wait for a disk.

pub mod dma_buf;
pub mod mem_map;
pub mod memcg;
pub mod noio;
pub mod paged;
mod place;
pub mod shared_ring;
pub mod umem;

/// Returns the number of pages of the machine's memory.
pub fn ram_pages() -> u64 {
    // SAFETY: The helper has no requirements: it reads a counter.
    let pages = unsafe { riwarp_helper_totalram_pages() };
    pages as u64 // CAST: `unsigned long` is 64 bits.
}

extern "C" {
    fn riwarp_helper_totalram_pages() -> kernel::ffi::c_ulong;
}
