// SPDX-License-Identifier: GPL-2.0

//! Contiguous octets that others may read and write at any time, and the copy into them.
//!
//! Whoever shares the memory may do so while it is copied. So nobody makes a reference to it, and
//! nobody decides anything by octets that he read there.
//!
//! Context: any.

use super::place;
use core::marker::PhantomData;

/// A contiguous run of octets, which stays valid for `'a`.
///
/// # Invariants
///
/// `start` points to `len` octets of memory that is valid for reads.
#[derive(Clone, Copy)]
pub struct Run<'a> {
    start: *mut u8,
    len: usize,
    _life: PhantomData<&'a ()>,
}

impl Run<'_> {
    /// # Safety
    ///
    /// `start` must point to `len` octets of memory that stay valid as long as the run lives.
    #[inline]
    pub(crate) unsafe fn new(start: *mut u8, len: usize) -> Self {
        // INVARIANT: The caller guarantees it.
        Self {
            start,
            len,
            _life: PhantomData,
        }
    }

    /// Returns the first octet.
    #[inline]
    pub(crate) fn start(&self) -> *mut u8 {
        self.start
    }

    /// Returns the length in octets.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the run is empty (it never is).
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// Copies octets to memory that its owner may be polling: stores each one once, unless they lie in
/// front of that memory and reach into it.
///
/// # Safety
///
/// `from` must be readable and `to` writable for `len` octets.
pub(crate) unsafe fn place_octets(from: *const u8, to: *mut u8, len: usize) {
    // In ascending order, octets would be overwritten before they are read.
    let ahead = to.addr().wrapping_sub(from.addr());
    if ahead != 0 && ahead < len {
        // SAFETY: `copy` requires that the octets are readable and writable, which the caller
        // guarantees.
        return unsafe { core::ptr::copy(from, to, len) };
    }
    // SAFETY: The helper has no requirements.
    let strings = unsafe { riwarp_helper_has_fast_strings() };
    // SAFETY: The caller guarantees what `place` requires.
    unsafe { place::place(from, to, len, strings) }
}

extern "C" {
    fn riwarp_helper_has_fast_strings() -> bool;
}
