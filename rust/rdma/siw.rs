// SPDX-License-Identifier: GPL-2.0

//! Keeping the kernel's siw away, for a driver that registers siw's link type.
//!
//! RDMA core has one driver for a link type. `rdma_link_register()` warns of a second one and does
//! not enter it in its list, from which `rdma_link_unregister()` removes it all the same: the
//! kernel crashes.
//!
//! C headers: `include/linux/kobject.h`, `include/linux/module.h`, `include/linux/notifier.h`.

use crate::bindings;
use kernel::error::to_result;
use kernel::ffi::c_int;
use kernel::ffi::c_ulong;
use kernel::ffi::c_void;
use kernel::prelude::*;
use kernel::types::Opaque;

/// Refuses to load the module siw while this value lives.
///
/// # Invariants
///
/// The notifier block is registered.
pub struct SiwExclusion(KBox<Opaque<bindings::notifier_block>>);

// SAFETY: The drop calls `unregister_module_notifier()`, which any thread may call.
unsafe impl Send for SiwExclusion {}
// SAFETY: No method takes a shared reference.
unsafe impl Sync for SiwExclusion {}

impl SiwExclusion {
    /// Refuses siw from now on. One that is loaded already, or just then, is found by
    /// [`Self::check`]. Context: process, sleeps.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn new() -> Result<Self> {
        let block = bindings::notifier_block {
            notifier_call: Some(refuse),
            ..Default::default()
        };
        let block = KBox::new(Opaque::new(block), GFP_KERNEL)?;
        // SAFETY: `register_module_notifier()` requires a block that is valid until it is
        // unregistered: it is initialised, boxed, and moves into the result, whose drop unregisters
        // it.
        to_result(unsafe { bindings::register_module_notifier(block.get()) })?;
        // INVARIANT: Registered just now.
        Ok(Self(block))
    }

    /// Fails if siw is there, to be called right before its link type is registered.
    ///
    /// A module that the notifiers have let pass appears in sysfs only after its parameters are
    /// parsed: right after [`Self::new`] it would not be found. Context: process, sleeps.
    ///
    /// # Errors
    ///
    /// `EBUSY` if siw is loaded or built in, which the log says.
    pub fn check(&self) -> Result {
        // SAFETY: Has no requirements.
        if unsafe { riwarp_helper_has_siw() } {
            pr_err!("siw_link_type=1: the kernel's siw is there, and has the link type siw\n");
            return Err(EBUSY);
        }
        Ok(())
    }
}

impl Drop for SiwExclusion {
    fn drop(&mut self) {
        // SAFETY: `unregister_module_notifier()` requires a registered block: by the type invariant
        // it is.
        to_result(unsafe { bindings::unregister_module_notifier(self.0.get()) }).ok();
    }
}

/// # Safety
///
/// Only the notifier chain of modules may call this: `module` is a `struct module`, which is valid
/// for the call.
unsafe extern "C" fn refuse(
    _block: *mut bindings::notifier_block,
    event: c_ulong,
    module: *mut c_void,
) -> c_int {
    // SAFETY: The helper reads a `struct module`, which `module` is by this function's `# Safety`.
    let answer = unsafe { riwarp_helper_refuse_siw(event, module) };
    if answer != 0 {
        pr_err!("the module siw is refused: riwarp has its link type (siw_link_type=1)\n");
    }
    answer
}

extern "C" {
    fn riwarp_helper_has_siw() -> bool;
    fn riwarp_helper_refuse_siw(event: c_ulong, module: *const c_void) -> c_int;
}
