// SPDX-License-Identifier: GPL-2.0

//! Protection domains: [`PdOps`], and its trampolines.

use core::ptr::NonNull;

use kernel::{
    error::from_result,
    ffi::c_int,
    prelude::*,
    sync::{
        Arc,
        ArcBorrow, //
    }, //
};

use super::{
    charged,
    Driver, //
};
use crate::{
    bindings,
    rdma::{
        device::device_data,
        mmap::Mappings,
        object::{
            DriverPart,
            PdObject,
            UContextObject, //
        }, //
    }, //
};

/// A protection domain of the driver.
///
/// When the domain is freed, after all its objects are gone, `ib_core`'s reference is dropped
/// (`ib_device_ops.dealloc_pd`, `drivers/infiniband/core/verbs.c`).
#[vtable]
pub trait PdOps: Sized + Send + Sync + 'static {
    /// The driver.
    type Driver: Driver;

    /// Creates a protection domain, for a process in its `context`.
    ///
    /// `ib_device_ops.alloc_pd` (`drivers/infiniband/core/verbs.c`, `uverbs_cmd.c`).
    ///
    /// Context: process, may sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if the device has reached its maximum of domains, or memory is short.
    fn alloc(
        dev: ArcBorrow<'_, <Self::Driver as Driver>::Device>,
        context: Option<ArcBorrow<'_, <Self::Driver as Driver>::UContext>>,
    ) -> Result<Arc<Self>>;
}

/// `ops.alloc_pd`.
///
/// # Safety
///
/// `pd` is a new object of the size `ops.size_ib_pd`, `udata` null or valid.
pub(super) unsafe extern "C" fn alloc_pd<T: Driver>(
    pd: *mut bindings::ib_pd,
    udata: *mut bindings::ib_udata,
) -> c_int {
    let make = || {
        // SAFETY: A field of `pd`, which is valid; `ib_core` sets it before the driver sees the
        // object.
        let device = unsafe { (*pd).device };
        // SAFETY: `device_data` requires a device of `T` that is registered or being registered:
        // that holds while a verb runs.
        let dev = unsafe { device_data::<T::Device>(device) };
        // SAFETY: A field of `pd`, which is valid; uverbs sets it before the driver sees the
        // object.
        let user = NonNull::new(unsafe { (*pd).uobject });
        let context = user.map(|user| {
            // SAFETY: A field of a valid user object, which never changes.
            let context = unsafe { (*user.as_ptr()).context };
            // SAFETY: `data` requires a structure that was filled and is not emptied meanwhile: the
            // context of a user object was filled before it had any, and is emptied after all.
            unsafe { UContextObject::<T>::data(context) }
        });
        let data = T::Pd::alloc(dev, context)?;
        let driver_part = DriverPart {
            data,
            link: (),
            mappings: Mappings::new(),
        };
        // SAFETY: `fill` requires the head of an allocation of `SIZE` octets whose driver part
        // holds nothing: `pd` is a new object.
        unsafe { PdObject::<T>::fill(pd, driver_part) };
        Ok(0)
    };
    from_result(|| charged(udata.is_null(), make))
}

/// `ops.dealloc_pd`.
///
/// # Safety
///
/// `pd` was filled, and is not used any more.
pub(super) unsafe extern "C" fn dealloc_pd<T: Driver>(
    pd: *mut bindings::ib_pd,
    _udata: *mut bindings::ib_udata,
) -> c_int {
    // SAFETY: `empty` requires a structure that was filled and that nothing uses: `pd` is, by this
    // function's `# Safety`.
    drop(unsafe { PdObject::<T>::empty(pd) });
    0
}

/// A counted reference of a driver's protection domain.
///
/// # Safety
///
/// `pd` must have been filled, and not be destroyed during the call.
pub(super) unsafe fn pd_of<T: Driver>(pd: *mut bindings::ib_pd) -> Arc<T::Pd> {
    // SAFETY: `data` requires a structure that was filled and is not emptied meanwhile: `pd` is, by
    // this function's `# Safety`.
    unsafe { PdObject::<T>::data(pd) }.into()
}
