// SPDX-License-Identifier: GPL-2.0

//! For KUnit suites: code that disk I/O waits for. Built only for kernels with KUnit.

/// Runs `f` as code that disk I/O waits for. In a kernel with lockdep, an allocation that waits
/// for disk I/O must not be made with a lock held that `f` takes: lockdep reports a deadlock,
/// whichever comes first.
///
/// Context: process.
pub fn with_io_waiting<R>(f: impl FnOnce() -> R) -> R {
    // SAFETY: `fs_reclaim_acquire()` requires that the same task calls the counterpart, as done
    // below.
    unsafe { riwarp_helper_fs_reclaim_acquire() };
    let result = f();
    // SAFETY: This is the counterpart.
    unsafe { riwarp_helper_fs_reclaim_release() };
    result
}

extern "C" {
    fn riwarp_helper_fs_reclaim_acquire();
    fn riwarp_helper_fs_reclaim_release();
}
