// SPDX-License-Identifier: GPL-2.0

//! The module's parameter `next_device`, which root writes while the module is loaded:
//! `/sys/module/riwarp/parameters/next_device`. Parameters of the kernel's `module!` are set when
//! the module is loaded, and then no more.
//!
//! Context: process, may sleep. The kernel calls one writer of a module at a time, and frees the
//! module after the last one.
//!
//! C header: `include/linux/moduleparam.h`.

use crate::sync::ModuleCell;
use crate::sync::ModuleCellGuard;
use kernel::error::from_result;
use kernel::ffi::c_char;
use kernel::ffi::c_int;
use kernel::prelude::*;
use kernel::sync::Arc;

/// Takes what was written.
///
/// # Errors
///
/// Those are the writer's.
pub type WrittenFn = fn(&str) -> Result;

static WRITTEN: ModuleCell<WrittenFn> = ModuleCell::empty();

/// Passes on what is written while it exists. Context of the drop: process, sleeps; a call may
/// still be under way afterwards.
pub struct ParamWrites {
    _guard: ModuleCellGuard<WrittenFn>,
}

impl ParamWrites {
    /// Passes on to `written` what is written from now on.
    ///
    /// # Errors
    ///
    /// `EBUSY` if there is one already, `ENOMEM`.
    pub fn new(written: WrittenFn) -> Result<Self> {
        Ok(Self {
            _guard: WRITTEN.fill(Arc::new(written, GFP_KERNEL)?)?,
        })
    }
}

/// `kernel_param_ops.set`. Gives `ENODEV` before the module is initialised, as for a value that
/// `modprobe` is given.
///
/// # Safety
///
/// Only for `rust/helpers/module_param.c`: `text` is null or a C string, for the call.
#[no_mangle]
unsafe extern "C" fn riwarp_next_device_set(text: *const c_char) -> c_int {
    from_result(|| {
        if text.is_null() {
            return Err(EINVAL);
        }
        let written = WRITTEN.get().ok_or(ENODEV)?;
        // SAFETY: `from_char_ptr` requires a C string that stays valid for the lifetime, which ends
        // with this call: `text` is one, by this function's `# Safety`.
        let text = unsafe { CStr::from_char_ptr(text) };
        written(text.to_str().map_err(|_| EINVAL)?)?;
        Ok(0)
    })
}
