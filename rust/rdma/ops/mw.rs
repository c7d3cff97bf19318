// SPDX-License-Identifier: GPL-2.0

//! Memory windows: [`MwOps`], and its trampolines.

use kernel::{
    error::{
        from_result,
        VTABLE_DEFAULT_ERROR, //
    },
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
        mmap::Mappings,
        object::{
            DriverPart,
            MwObject,
            PdObject, //
        },
        types::MwType, //
    }, //
};

/// A memory window of the driver.
///
/// Only devices with [`OptionalOps::MEMORY_WINDOWS`](super::OptionalOps::MEMORY_WINDOWS) have
/// windows.
///
/// When the window is freed, `ib_core`'s reference is dropped (`ib_device_ops.dealloc_mw`,
/// `drivers/infiniband/core/uverbs_main.c`). It must be the last one: afterwards nothing accesses
/// memory by the window's key.
#[vtable]
pub trait MwOps: Sized + Send + Sync + 'static {
    /// The driver.
    type Driver: Driver;

    /// Creates a memory window that is not bound.
    ///
    /// `ib_device_ops.alloc_mw` (`drivers/infiniband/core/uverbs_cmd.c`).
    ///
    /// Context: process, may sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if the device has reached its maximum of windows, or memory is short.
    fn alloc(
        _pd: ArcBorrow<'_, <Self::Driver as Driver>::Pd>,
        _kind: MwType,
    ) -> Result<MwCreated<Self>> {
        build_error!(VTABLE_DEFAULT_ERROR)
    }
}

/// A new memory window.
pub struct MwCreated<W> {
    /// The driver's object.
    pub mw: Arc<W>,
    /// Its key, valid for the first bind only.
    pub rkey: u32,
}

/// `ops.alloc_mw`.
///
/// # Safety
///
/// `mw` is a new object of the size `ops.size_ib_mw`, its domain was filled.
pub(super) unsafe extern "C" fn alloc_mw<T: Driver>(
    mw: *mut bindings::ib_mw,
    _udata: *mut bindings::ib_udata,
) -> c_int {
    from_result(|| {
        // SAFETY: A field of `mw`, which is a new object.
        let pd = unsafe { (*mw).pd };
        // SAFETY: A field of `mw`, which is a new object.
        let kind = unsafe { (*mw).type_ };
        let kind = match kind {
            bindings::ib_mw_type_IB_MW_TYPE_1 => MwType::One,
            bindings::ib_mw_type_IB_MW_TYPE_2 => MwType::Two,
            _ => return Err(EINVAL),
        };
        // SAFETY: `data` requires a structure that was filled and is not emptied meanwhile: `pd`
        // is, by this function's `# Safety`.
        let created = T::Mw::alloc(unsafe { PdObject::<T>::data(pd) }, kind)?;
        // SAFETY: A field of `mw`, which is a new object that nothing else uses yet.
        unsafe { (*mw).rkey = created.rkey };
        let driver_part = DriverPart {
            data: created.mw,
            link: (),
            mappings: Mappings::new(),
        };
        // SAFETY: `fill` requires the head of an allocation of `SIZE` octets whose driver part
        // holds nothing: `mw` is a new object.
        unsafe { MwObject::<T>::fill(mw, driver_part) };
        Ok(0)
    })
}

/// `ops.dealloc_mw`.
///
/// # Safety
///
/// `mw` was filled, and is not used any more.
pub(super) unsafe extern "C" fn dealloc_mw<T: Driver>(mw: *mut bindings::ib_mw) -> c_int {
    // SAFETY: `empty` requires a structure that was filled and that nothing uses: `mw` is, by this
    // function's `# Safety`.
    drop(unsafe { MwObject::<T>::empty(mw) });
    0
}
