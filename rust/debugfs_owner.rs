// SPDX-License-Identifier: GPL-2.0

//! Read-only files in debugfs. An open file holds the module.
//!
//! Those of the `kernel` crate do not: their operations have no owner, so the module can be
//! unloaded while a file is open, and the last close then calls an operation that is gone.
//! `debugfs_remove()` waits only for calls under way. A patch that gives them the module that makes
//! them as their owner ends this file.
//!
//! C header: `include/linux/debugfs.h`.

use crate::bindings;
use core::mem;
use kernel::ffi::{
    c_char,
    c_void, //
};
use kernel::{
    fmt,
    prelude::*,
    seq_file::SeqFile,
    seq_print, //
};

extern "C" {
    fn riwarp_helper_debugfs_create_dir(name: *const c_char) -> *mut c_void;
    fn riwarp_helper_debugfs_create_file(name: *const c_char, dir: *mut c_void, show: *mut c_void);
    fn riwarp_helper_debugfs_remove(dir: *mut c_void);
}

/// Writes all that a file shows. Context: process.
pub type ContentFn = fn(&mut fmt::Formatter<'_>) -> fmt::Result;

/// A directory at the root of debugfs. Dropping it removes its files, and waits for reads under
/// way; context: process, sleeps.
///
/// An open file does not hold a module whose start fails, so files are made when nothing can fail
/// any more.
///
/// # Invariants
///
/// The pointer is what `debugfs_create_dir()` returned to this value, which may be an error.
pub struct Dir(*mut c_void);

// SAFETY: Any thread may use and remove a directory.
unsafe impl Send for Dir {}
// SAFETY: All that a shared reference allows is a call of debugfs, which has locks of its own.
unsafe impl Sync for Dir {}

impl Dir {
    /// Makes a directory that only root can read. Without debugfs, and if it fails, there is none.
    /// Context: process, sleeps.
    pub fn new(name: &CStr) -> Self {
        // SAFETY: The function requires a C string, of which it makes a copy.
        // INVARIANT: It has just returned the pointer.
        Self(unsafe { riwarp_helper_debugfs_create_dir(name.as_char_ptr()) })
    }

    /// Makes a file of mode 0400 in it, which shows what `show` writes. It is missing if it cannot
    /// be made. Context: process, sleeps.
    pub fn file(&self, name: &CStr, show: ContentFn) {
        // SAFETY: The function requires a C string, of which it makes a copy, and by the type
        // invariant it gets a directory or the error in its place, which it returns. It hands the
        // third argument to `riwarp_debugfs_write` only, which takes a `ContentFn`.
        unsafe {
            riwarp_helper_debugfs_create_file(name.as_char_ptr(), self.0, show as *mut c_void);
        }
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        // SAFETY: By the type invariant it is a directory that nobody else removes, or an error,
        // which the function ignores.
        unsafe { riwarp_helper_debugfs_remove(self.0) };
    }
}

struct Shown(ContentFn);

impl fmt::Display for Shown {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        (self.0)(out)
    }
}

/// Writes what `show` shows into `file`.
///
/// # Safety
///
/// Only for `rust/helpers/debugfs_owner.c`: `file` is live and no other thread uses it, and `show`
/// is the `ContentFn` with which [`Dir::file`] made the file.
#[no_mangle]
unsafe extern "C" fn riwarp_debugfs_write(file: *mut bindings::seq_file, show: *mut c_void) {
    // SAFETY: `show` is a `ContentFn`, by the caller's contract: the pointer to a function.
    let show = unsafe { mem::transmute::<*mut c_void, ContentFn>(show) };
    // SAFETY: The function requires a live file that no other thread uses, which the caller's
    // contract says `file` is.
    let file = unsafe { SeqFile::from_raw(file) };
    seq_print!(file, "{}", Shown(show));
}
