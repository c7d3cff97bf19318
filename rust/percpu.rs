// SPDX-License-Identifier: GPL-2.0

//! Counters that each CPU increases in memory of its own.
//!
//! C header: `include/linux/percpu.h`.

use core::ptr::NonNull;
use kernel::ffi::c_void;
use kernel::prelude::*;

extern "C" {
    fn riwarp_helper_percpu_count_alloc() -> *mut c_void;
    fn riwarp_helper_percpu_count_add(count: *mut c_void, n: u64);
    fn riwarp_helper_percpu_count_free(count: *mut c_void);
    fn riwarp_helper_percpu_count_sum(count: *mut c_void) -> u64;
}

/// A counter that is increased much more often than it is read.
///
/// # Examples
///
/// ```
/// use kernel_ext::percpu::PerCpuCount;
///
/// let packets = PerCpuCount::try_new()?;
/// packets.add(2);
/// packets.add(3);
/// assert_eq!(packets.sum(), 5);
/// ```
///
/// # Invariants
///
/// The pointer is a `u64 __percpu *` that this value owns.
pub struct PerCpuCount(NonNull<c_void>);

// SAFETY: Any thread may use and free it.
unsafe impl Send for PerCpuCount {}
// SAFETY: Each CPU adds by one operation; reads of the other CPUs' words are single whole-word
// reads.
unsafe impl Sync for PerCpuCount {}

impl PerCpuCount {
    /// Makes a counter with the value 0. Context: process, sleeps.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn try_new() -> Result<Self> {
        // SAFETY: Has no requirements: allocates zeroes.
        let count = unsafe { riwarp_helper_percpu_count_alloc() };
        // INVARIANT: The helper just allocated it for this value.
        NonNull::new(count).map(Self).ok_or(ENOMEM)
    }

    /// Adds `n`. Context: any.
    #[inline]
    pub fn add(&self, n: u64) {
        // SAFETY: The helper requires a `u64 __percpu *` that was allocated: by the type invariant
        // it is one.
        unsafe { riwarp_helper_percpu_count_add(self.0.as_ptr(), n) };
    }

    /// Returns the sum over all CPUs, modulo 2^64. Concurrent additions may be missing.
    pub fn sum(&self) -> u64 {
        // SAFETY: The helper requires a `u64 __percpu *` that was allocated: by the type invariant
        // it is one.
        unsafe { riwarp_helper_percpu_count_sum(self.0.as_ptr()) }
    }
}

impl Drop for PerCpuCount {
    fn drop(&mut self) {
        // SAFETY: By the type invariant this value owns the pointer, and the value ends here.
        unsafe { riwarp_helper_percpu_count_free(self.0.as_ptr()) };
    }
}

#[kernel::prelude::kunit_tests(riwarp_percpu)]
mod tests {
    use super::*;

    #[test]
    fn percpu_sum_is_all_additions() -> Result {
        let count = PerCpuCount::try_new()?;
        assert_eq!(count.sum(), 0);
        count.add(3);
        // The next addition may run on another CPU.
        kernel::time::delay::fsleep(kernel::time::Delta::from_micros(10));
        count.add(u64::from(u32::MAX));
        assert_eq!(count.sum(), 3 + u64::from(u32::MAX));
        Ok(())
    }
}
