// SPDX-License-Identifier: GPL-2.0

//! A branch that costs one instruction as long as nobody needs it: a key that holds turn on, which
//! patches the places that ask. The module has one such key; the kernel's own macro for Rust needs
//! a key of C for each.
//!
//! C header: `include/linux/jump_label.h`.

extern "C" {
    fn riwarp_helper_static_key_is_on() -> bool;
    fn riwarp_helper_static_key_inc();
    fn riwarp_helper_static_key_dec();
}

/// Returns whether there is a [`StaticKeyHold`]. A place that has just been patched may give the
/// answer from before for a while.
///
/// Context: any.
#[inline(always)]
pub fn is_on() -> bool {
    // SAFETY: The key is static; the helper has no other requirements.
    unsafe { riwarp_helper_static_key_is_on() }
}

/// Turns the key on as long as it lives.
pub struct StaticKeyHold(());

impl StaticKeyHold {
    /// Turns the key on. Context: process, may sleep; the drop as well.
    pub fn turn_on() -> Self {
        // SAFETY: `static_branch_inc()` requires a context that may sleep, which this function's
        // documentation asks for.
        unsafe { riwarp_helper_static_key_inc() };
        Self(())
    }
}

impl Drop for StaticKeyHold {
    fn drop(&mut self) {
        // SAFETY: `static_branch_dec()` requires an earlier increment, which `turn_on` made, and a
        // context that may sleep, which its documentation asks for.
        unsafe { riwarp_helper_static_key_dec() };
    }
}
