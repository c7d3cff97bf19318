// SPDX-License-Identifier: GPL-2.0

//! Keeping another module away.
//!
//! For a driver that takes the place of another one, if the kernel cannot have both: two that
//! register one name, for example.
//!
//! C headers: `include/linux/kobject.h`, `include/linux/module.h`, `include/linux/notifier.h`.

use crate::bindings;
use core::mem::offset_of;
use kernel::error::to_result;
use kernel::ffi::c_char;
use kernel::ffi::c_int;
use kernel::ffi::c_ulong;
use kernel::ffi::c_void;
use kernel::prelude::*;
use kernel::types::Opaque;

/// Refuses to load a module while this value lives.
///
/// # Invariants
///
/// The notifier block is registered.
pub struct ModuleExclusion(KBox<Exclusion>);

/// # Invariants
///
/// `block` is at offset 0.
#[repr(C)]
struct Exclusion {
    block: Opaque<bindings::notifier_block>,
    name: &'static CStr,
    refused: fn(),
}

// SAFETY: The drop calls `unregister_module_notifier()`, which any thread may call.
unsafe impl Send for ModuleExclusion {}
// SAFETY: A shared reference gives access to the name only, which never changes.
unsafe impl Sync for ModuleExclusion {}

impl ModuleExclusion {
    /// Refuses the module `name` from now on, and calls `refused` each time. One that is loaded
    /// already, or just then, is found by [`Self::is_loaded`]. Context: process, sleeps.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn new(name: &'static CStr, refused: fn()) -> Result<Self> {
        const { assert!(offset_of!(Exclusion, block) == 0) };

        let block = bindings::notifier_block {
            notifier_call: Some(refuse),
            ..Default::default()
        };
        // INVARIANT: `block` is at offset 0, as just asserted.
        let exclusion = Exclusion {
            block: Opaque::new(block),
            name,
            refused,
        };
        let exclusion = KBox::new(exclusion, GFP_KERNEL)?;
        // SAFETY: `register_module_notifier()` requires a block that is valid until it is
        // unregistered: it is initialised, boxed, and moves into the result, whose drop unregisters
        // it.
        to_result(unsafe { bindings::register_module_notifier(exclusion.block.get()) })?;
        // INVARIANT: Registered just now.
        Ok(Self(exclusion))
    }

    /// Returns whether the module is loaded; one that is built in is not found.
    ///
    /// A module that the notifiers have let pass appears in sysfs only after its parameters are
    /// parsed: right after [`Self::new`] it would not be found. Context: process, sleeps.
    pub fn is_loaded(&self) -> bool {
        // SAFETY: The helper requires a string that ends with a NUL, which a `CStr` does.
        unsafe { riwarp_helper_has_module(self.0.name.as_char_ptr()) }
    }
}

impl Drop for ModuleExclusion {
    fn drop(&mut self) {
        // SAFETY: `unregister_module_notifier()` requires a registered block: by the type invariant
        // it is.
        to_result(unsafe { bindings::unregister_module_notifier(self.0.block.get()) }).ok();
    }
}

/// # Safety
///
/// Only the notifier chain of modules may call this, for the block of an [`Exclusion`]: that one
/// and `module`, a `struct module`, are valid for the call.
unsafe extern "C" fn refuse(
    block: *mut bindings::notifier_block,
    event: c_ulong,
    module: *mut c_void,
) -> c_int {
    // SAFETY: A reference requires memory that is valid and not written to: `block` is the head of
    // an `Exclusion`, by this function's `# Safety`; what the chain writes is in an `Opaque`.
    let exclusion = unsafe { &*block.cast::<Exclusion>() };
    // SAFETY: The helper reads a `struct module`, which `module` is by this function's `# Safety`,
    // and a string that ends with a NUL, which a `CStr` does.
    let answer =
        unsafe { riwarp_helper_refuse_module(event, module, exclusion.name.as_char_ptr()) };
    if answer != 0 {
        (exclusion.refused)();
    }
    answer
}

extern "C" {
    fn riwarp_helper_has_module(name: *const c_char) -> bool;
    fn riwarp_helper_refuse_module(
        event: c_ulong,
        module: *const c_void,
        name: *const c_char,
    ) -> c_int;
}
