// SPDX-License-Identifier: GPL-2.0

//! The context of a process: [`UContextOps`], and its trampolines.

use kernel::{
    error::from_result,
    ffi::c_int,
    prelude::*,
    sync::{
        Arc,
        ArcBorrow, //
    }, //
};

use super::Driver;
use crate::{
    bindings,
    rdma::{
        device::device_data,
        mmap::Mappings,
        object::{
            DriverPart,
            UContextObject, //
        },
        udata::Udata, //
    }, //
};

/// The context of a process that has opened a device.
///
/// When the process closes the device, after all its objects are gone, `ib_core`'s reference is
/// dropped (`ib_device_ops.dealloc_ucontext`, `drivers/infiniband/core/uverbs_main.c`).
#[vtable]
pub trait UContextOps: Sized + Send + Sync + 'static {
    /// The driver.
    type Driver: Driver;

    /// Opens the device for a process.
    ///
    /// `ib_device_ops.alloc_ucontext` (`drivers/infiniband/core/uverbs_cmd.c`).
    ///
    /// Context: process, may sleep.
    ///
    /// # Errors
    ///
    /// They are returned to the process unchanged, those of [`Udata`] among them.
    fn alloc(
        dev: ArcBorrow<'_, <Self::Driver as Driver>::Device>,
        udata: &mut Udata<'_>,
    ) -> Result<Arc<Self>>;
}

/// `ops.alloc_ucontext`.
///
/// # Safety
///
/// `context` is a new object of the size `ops.size_ib_ucontext`, `udata` is valid.
pub(super) unsafe extern "C" fn alloc_ucontext<T: Driver>(
    context: *mut bindings::ib_ucontext,
    udata: *mut bindings::ib_udata,
) -> c_int {
    from_result(|| {
        // SAFETY: A field of `context`, which is valid; `ib_core` sets it before the driver sees
        // the object.
        let device = unsafe { (*context).device };
        // SAFETY: `device_data` requires a device of `T` that is registered or being registered:
        // that holds while a verb runs.
        let dev = unsafe { device_data::<T::Device>(device) };
        // SAFETY: `Udata::new` requires a channel that is null or valid, which `udata` is by this
        // function's `# Safety`, and no mappings to outlive a context.
        let mut udata = unsafe { Udata::new(udata, None) };
        let data = T::UContext::alloc(dev, &mut udata)?;
        let driver_part = DriverPart {
            data,
            link: (),
            mappings: Mappings::new(),
        };
        // SAFETY: `fill` requires the head of an allocation of `SIZE` octets whose driver part
        // holds nothing: `context` is a new object.
        unsafe { UContextObject::<T>::fill(context, driver_part) };
        Ok(0)
    })
}

/// `ops.dealloc_ucontext`.
///
/// # Safety
///
/// `context` was filled, and is not used any more.
pub(super) unsafe extern "C" fn dealloc_ucontext<T: Driver>(context: *mut bindings::ib_ucontext) {
    // SAFETY: `empty` requires a structure that was filled and that nothing uses: `context` is, by
    // this function's `# Safety`.
    drop(unsafe { UContextObject::<T>::empty(context) });
}

/// `ops.disassociate_ucontext`: allows unregistering the device while processes have it open.
///
/// The queues that the processes mapped are plain memory that lives until it is unmapped, so no
/// mapping needs to be revoked; `ib_core` destroys their objects right after.
///
/// # Safety
///
/// None.
pub(super) unsafe extern "C" fn disassociate_ucontext(_context: *mut bindings::ib_ucontext) {}
