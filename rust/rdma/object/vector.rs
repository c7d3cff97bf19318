// SPDX-License-Identifier: GPL-2.0

//! Calls on the CPU of a completion vector, for kernel consumers.
//!
//! C header: `include/linux/smp.h`.

use crate::bindings;
use core::ptr::NonNull;
use kernel::cpu::CpuId;
use kernel::error::to_result;
use kernel::ffi::c_void;
use kernel::prelude::*;
use kernel::sync::atomic::Acquire;
use kernel::sync::atomic::Atomic;
use kernel::sync::atomic::Full;
use kernel::sync::atomic::Relaxed;
use kernel::sync::atomic::Release;
use kernel::types::Opaque;

extern "C" {
    fn riwarp_helper_cpu_relax();
}

/// A reusable call on another CPU.
///
/// # Invariants
///
/// `asked` is set before `data` is given to a CPU and cleared when the call begins; the kernel no
/// longer uses `data` then. `under_way` is the number of calls that were requested and have not
/// ended.
pub(super) struct CpuCall {
    data: Opaque<bindings::call_single_data_t>,
    asked: Atomic<bool>,
    under_way: Atomic<u32>,
}

// SAFETY: A `call_single_data_t` belongs to no thread.
unsafe impl Send for CpuCall {}
// SAFETY: By the type's invariant `data` has one user at a time: first the caller of `ask` that set
// `asked`, then the kernel.
unsafe impl Sync for CpuCall {}

impl CpuCall {
    pub(super) fn new() -> Self {
        // INVARIANT: No call was requested.
        Self {
            data: Opaque::new(bindings::call_single_data_t::default()),
            asked: Atomic::new(false),
            under_way: Atomic::new(0),
        }
    }

    /// Calls `f` on `cpu` from an interrupt.
    ///
    /// Requests made before the call begins share one call.
    ///
    /// Context: any but hard interrupt.
    ///
    /// # Safety
    ///
    /// `f` must call [`Self::begin`] first and [`Self::end`] last. `self` must not move, and `info`
    /// must be valid for `f`, until a call of [`Self::wait`] after this one returns.
    ///
    /// # Errors
    ///
    /// `ENXIO` if `cpu` is not online.
    pub(super) unsafe fn ask(
        &self,
        cpu: CpuId,
        f: unsafe extern "C" fn(*mut c_void),
        info: NonNull<c_void>,
    ) -> Result {
        // ORDERING: pairs with `Full` in `begin`: a call that has not begun yet sees what was
        // written before this.
        if self.asked.xchg(true, Full) {
            return Ok(());
        }
        // ORDERING: none: the caller of `wait` ensures that all calls of this came before.
        self.under_way.fetch_add(1, Relaxed);
        let data = self.data.get();
        // SAFETY: By the type's invariant nothing else uses `data`: `asked` was clear, and this
        // call set it.
        unsafe { (*data).func = Some(f) };
        // SAFETY: By the type's invariant nothing else uses `data`: `asked` was clear, and this
        // call set it.
        unsafe { (*data).info = info.as_ptr() };
        // SAFETY: `smp_call_function_single_async()` requires data that is filled in, unused, and
        // stays valid until the call has begun: it was just filled in, and the caller guarantees
        // that `self` does not move until `wait`.
        to_result(unsafe { bindings::smp_call_function_single_async(cpu.into(), data) })
            .inspect_err(|_| {
                self.begin();
                self.end();
            })
    }

    /// Marks the begin of the call.
    pub(super) fn begin(&self) {
        // ORDERING: pairs with `Full` in `ask`.
        // INVARIANT: The kernel releases `data` before it calls the function.
        self.asked.xchg(false, Full);
    }

    /// Marks the end of the call; `self` may be freed right after.
    pub(super) fn end(&self) {
        // ORDERING: pairs with `Acquire` in `wait`.
        self.under_way.fetch_sub(1, Release);
    }

    /// Waits until no call is under way. The caller ensures that no new call is requested.
    ///
    /// Context: process.
    pub(super) fn wait(&self) {
        // ORDERING: pairs with `Release` in `end`: the calls have ended before `self` may be freed.
        while self.under_way.load(Acquire) != 0 {
            // SAFETY: `cpu_relax()` has no requirements.
            unsafe { riwarp_helper_cpu_relax() };
        }
    }
}
