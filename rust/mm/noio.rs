// SPDX-License-Identifier: GPL-2.0

//! Allocations that do not wait for disk I/O.
//!
//! C header: `include/linux/sched/mm.h`.

use core::ffi::c_uint;

#[cfg(CONFIG_KUNIT = "y")]
pub mod bench;

extern "C" {
    fn riwarp_helper_memalloc_noio_save() -> c_uint;
    fn riwarp_helper_memalloc_noio_restore(flags: c_uint);
}

/// Runs `f` without allocations that wait for disk I/O.
///
/// The disk may be one that is reachable only after `f` returned, or after another thread has taken
/// a lock that `f` holds.
///
/// Context: process.
pub fn without_io<R>(f: impl FnOnce() -> R) -> R {
    // SAFETY: `memalloc_noio_save()` requires that the same task restores its result, as done
    // below.
    let flags = unsafe { riwarp_helper_memalloc_noio_save() };
    let result = f();
    // SAFETY: `memalloc_noio_restore()` requires the result of the matching call, which `flags` is.
    unsafe { riwarp_helper_memalloc_noio_restore(flags) };
    result
}

#[kernel::prelude::kunit_tests(riwarp_noio)]
mod tests {
    use super::*;

    /// Returns whether allocations of this task may wait for disk I/O.
    fn may_wait() -> bool {
        // SAFETY: `memalloc_noio_save()` requires that the same task restores its result, as done
        // below.
        let flags = unsafe { riwarp_helper_memalloc_noio_save() };
        // SAFETY: `memalloc_noio_restore()` requires the result of the matching call, which `flags`
        // is.
        unsafe { riwarp_helper_memalloc_noio_restore(flags) };
        flags != 0
    }

    #[test]
    fn noio_ends_with_outermost_scope() {
        assert!(may_wait());
        let inside = without_io(|| [may_wait(), without_io(may_wait), may_wait()]);
        assert_eq!(inside, [false; 3]);
        assert!(may_wait());
    }
}
