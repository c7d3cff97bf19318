// SPDX-License-Identifier: GPL-2.0

//! Memory management.
//!
//! * [`page_list`]: memory in several pieces, with its owner;
//! * [`run`], `place`: one piece, and the copy into it, which a program may be polling;
//! * [`shared_ring`]: memory that a process and the driver share;
//! * [`memcg`]: memory cgroups that are charged for memory;
//! * [`noio`]: allocations that do not wait for a disk.

pub mod memcg;
pub mod noio;
pub mod page_list;
mod place;
pub mod run;
pub mod shared_ring;

/// Returns the number of pages of the machine's memory.
pub fn ram_pages() -> u64 {
    // SAFETY: The helper has no requirements: it reads a counter.
    let pages = unsafe { riwarp_helper_totalram_pages() };
    pages as u64 // CAST: `unsigned long` is 64 bits.
}

/// Lets other tasks run, in a loop over the pages of a region, of which there may be millions.
///
/// Context: process; no lock held but mutexes. With another one the kernel warns.
pub fn may_resched() {
    // SAFETY: The helper has no requirements.
    unsafe { riwarp_helper_cond_resched() };
}

extern "C" {
    fn riwarp_helper_cond_resched();
    fn riwarp_helper_totalram_pages() -> kernel::ffi::c_ulong;
}
