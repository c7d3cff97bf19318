// SPDX-License-Identifier: GPL-2.0

//! The way to the CPU of a completion vector, for kernel consumers.
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

/// A call on another CPU, which is asked for again and again.
///
/// # Invariants
///
/// `asked` is set from before `data` is given to a CPU until the call has begun, by when `data` is
/// free again. `under_way` is the number of calls that were asked for and are not done.
pub(super) struct CpuCall {
    data: Opaque<bindings::call_single_data_t>,
    asked: Atomic<bool>,
    under_way: Atomic<u32>,
}

// SAFETY: A `call_single_data_t` belongs to no thread.
unsafe impl Send for CpuCall {}
// SAFETY: By the type's invariant `data` has one user at a time: the caller of `ask` that has set
// `asked`, then the kernel.
unsafe impl Sync for CpuCall {}

impl CpuCall {
    pub(super) fn new() -> Self {
        // INVARIANT: Nobody has asked.
        Self {
            data: Opaque::new(bindings::call_single_data_t::default()),
            asked: Atomic::new(false),
            under_way: Atomic::new(0),
        }
    }

    /// Has `f` called on that CPU, from an interrupt; once for all who ask before it begins.
    ///
    /// Context: any but hard interrupt.
    ///
    /// # Safety
    ///
    /// `f` must call [`Self::begin`] first and [`Self::end`] last. `self` must stay where it is,
    /// and `info` be good for `f`, until [`Self::wait`] was called after this.
    ///
    /// # Errors
    ///
    /// `ENXIO` if that CPU is not online.
    pub(super) unsafe fn ask(
        &self,
        cpu: CpuId,
        f: unsafe extern "C" fn(*mut c_void),
        info: NonNull<c_void>,
    ) -> Result {
        // ORDERING: pairs with `Full` in `begin`: a call that is still to begin sees what was
        // written before this.
        if self.asked.xchg(true, Full) {
            return Ok(());
        }
        self.under_way.fetch_add(1, Relaxed);
        let data = self.data.get();
        // SAFETY: By the type's invariant nobody uses it, since `asked` was not set, and from here
        // on this call does.
        unsafe { (*data).func = Some(f) };
        // SAFETY: By the type's invariant nobody uses it, since `asked` was not set, and from here
        // on this call does.
        unsafe { (*data).info = info.as_ptr() };
        // SAFETY: `smp_call_function_single_async()` wants data that is filled in, unused, and
        // stays until the call has begun: it was just filled in, and the caller says that `self`
        // stays where it is until `wait`.
        to_result(unsafe { bindings::smp_call_function_single_async(cpu.into(), data) })
            .inspect_err(|_| {
                self.begin();
                self.end();
            })
    }

    /// The call begins.
    pub(super) fn begin(&self) {
        // ORDERING: pairs with `Full` in `ask`.
        // INVARIANT: The kernel lets go of `data` before it calls.
        self.asked.xchg(false, Full);
    }

    /// The call is over; the value may be gone right after.
    pub(super) fn end(&self) {
        // ORDERING: pairs with `Acquire` in `wait`.
        self.under_way.fetch_sub(1, Release);
    }

    /// Waits until no call is under way. Nobody may ask any more.
    ///
    /// Context: process.
    pub(super) fn wait(&self) {
        while self.under_way.load(Acquire) != 0 {
            // SAFETY: `cpu_relax()` has no requirements.
            unsafe { riwarp_helper_cpu_relax() };
        }
    }
}
