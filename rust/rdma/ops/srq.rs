// SPDX-License-Identifier: GPL-2.0

//! Shared receive queues: [`SrqOps`], and its trampolines.

use core::ptr::NonNull;

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

use super::{
    attr,
    charged,
    context,
    owner,
    pd::pd_of,
    qp::post_recv_list,
    Driver, //
};
use crate::{
    bindings,
    rdma::{
        device::device_data,
        mmap::Mappings,
        object::{
            DriverPart,
            SrqLink,
            SrqObject, //
        },
        restrack::{
            self,
            Details, //
        },
        types::{
            Owner,
            SrqAttr,
            SrqAttrMask, //
        },
        udata::Udata,
        wr::RecvWrs, //
    }, //
};

/// A shared receive queue of the driver.
///
/// When the queue is destroyed no queue pair refers to it: its link is closed, then `ib_core`'s
/// reference is dropped (`ib_device_ops.destroy_srq`, `drivers/infiniband/core/verbs.c`).
#[vtable]
pub trait SrqOps: Sized + Send + Sync + 'static {
    /// The driver.
    type Driver: Driver;

    /// Creates a shared receive queue.
    ///
    /// `ib_device_ops.create_srq` (`drivers/infiniband/core/verbs.c`, for processes too).
    ///
    /// Context: process, may sleep.
    ///
    /// # Errors
    ///
    /// * `EOPNOTSUPP` for a type that the device does not support.
    /// * `EINVAL` for sizes that it does not support.
    /// * `ENOMEM` if the device has reached its maximum of queues, or memory is short.
    fn create(
        _dev: ArcBorrow<'_, <Self::Driver as Driver>::Device>,
        _init: SrqInit<Self::Driver>,
        _udata: &mut Udata<'_>,
    ) -> Result<SrqCreated<Self>> {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Changes the attributes that `mask` names: the size, the limit, or both.
    ///
    /// `ib_device_ops.modify_srq` (`drivers/infiniband/core/verbs.c`, `uverbs_cmd.c`), one call at
    /// a time.
    ///
    /// Context: process, may sleep.
    ///
    /// # Errors
    ///
    /// * `EINVAL` for an invalid size or limit.
    /// * `EOPNOTSUPP` for a size if the queue cannot be resized.
    fn modify(&self, _attr: &SrqAttr, _mask: SrqAttrMask, _udata: &mut Udata<'_>) -> Result {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Returns the attributes of the queue.
    ///
    /// `ib_device_ops.query_srq` (`drivers/infiniband/core/verbs.c`).
    ///
    /// Context: process, may sleep.
    fn query(&self) -> SrqAttr {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Posts receive work requests of a kernel consumer.
    ///
    /// `ib_device_ops.post_srq_recv` (`ib_post_srq_recv()`, `include/rdma/ib_verbs.h`).
    ///
    /// Context: any, hard interrupt included; may not sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` or `ENOMEM` for the request that was taken last; those before it stay posted.
    fn post_recv(&self, _wrs: &mut RecvWrs<'_>) -> Result {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Adds to what `rdma -dd resource show srq` shows.
    ///
    /// `ib_device_ops.fill_res_srq_entry` (`drivers/infiniband/core/nldev.c`).
    ///
    /// Context: process, may sleep.
    ///
    /// # Errors
    ///
    /// Those of [`Details`].
    fn describe(&self, _details: &mut Details<'_>) -> Result {
        build_error!(VTABLE_DEFAULT_ERROR)
    }
}

/// The parameters of a new shared receive queue.
pub struct SrqInit<T: Driver> {
    /// Its creator.
    pub owner: Owner,
    /// The context of the process that creates it.
    pub context: Option<Arc<T::UContext>>,
    /// `enum ib_srq_type`; 0 is the plain one.
    pub srq_type: u32,
    /// Its sizes.
    pub attr: SrqAttr,
    /// Its protection domain: that of the regions in its receives, whichever queue pair takes them.
    pub pd: Arc<T::Pd>,
    /// The link to its consumer.
    pub link: SrqLink,
}

/// A new shared receive queue.
pub struct SrqCreated<S> {
    /// The driver's object.
    pub srq: Arc<S>,
    /// Its actual sizes.
    pub attr: SrqAttr,
}

/// `ops.create_srq`.
///
/// # Safety
///
/// `srq` is a new object of the size `ops.size_ib_srq` and has a domain that was filled, `init` is
/// valid, `udata` null or valid.
pub(super) unsafe extern "C" fn create_srq<T: Driver>(
    srq: *mut bindings::ib_srq,
    init: *mut bindings::ib_srq_init_attr,
    udata: *mut bindings::ib_udata,
) -> c_int {
    let make = || {
        // SAFETY: A reference requires valid memory that nothing else uses: `init` is `ib_core`'s
        // own for this call, by this function's `# Safety`.
        let raw = unsafe { &mut *init };
        // SAFETY: A field of `srq`, which is a new object; `ib_core` sets it before the driver sees
        // the object.
        let pd = NonNull::new(unsafe { (*srq).pd }).ok_or(EINVAL)?;
        // SAFETY: `SrqLink::new` requires a queue that is valid until the link is closed: the
        // object lives until `destroy_srq`, which closes the link, as the error path below does.
        let link = unsafe { SrqLink::new(NonNull::new(srq).ok_or(EINVAL)?) }?;
        let init = SrqInit {
            owner: owner(udata),
            // SAFETY: `context` requires null or the channel of a call that makes an object on a
            // device of `T`, which `udata` is by this function's `# Safety`.
            context: unsafe { context::<T>(udata) },
            srq_type: raw.srq_type,
            attr: attr::srq_from_raw(&raw.attr),
            // SAFETY: `pd_of` requires a domain that was filled, which that of `srq` is by this
            // function's `# Safety`, and that is not destroyed meanwhile: `ib_core` has a reference
            // to it for the call, and one for the object afterwards.
            pd: unsafe { pd_of::<T>(pd.as_ptr()) },
            link: link.clone(),
        };
        // SAFETY: A field of `srq`, which is valid; `ib_core` sets it before the driver sees the
        // object.
        let device = unsafe { (*srq).device };
        // SAFETY: `device_data` requires a device of `T` that is registered or being registered:
        // that holds while a verb runs.
        let dev = unsafe { device_data::<T::Device>(device) };
        let created = link.share(|mappings| {
            // SAFETY: `Udata::new` requires a channel that is null or valid, which `udata` is by
            // this function's `# Safety`, and mappings that do not outlive the context of the call:
            // the link drops them before the object, which belongs to the context, is freed.
            let mut udata = unsafe { Udata::new(udata, Some(mappings)) };
            T::Srq::create(dev, init, &mut udata)
        });
        let created = created.inspect_err(|_| link.close())?;
        raw.attr = attr::srq_to_raw(&created.attr);
        let driver_part = DriverPart {
            data: created.srq,
            link,
            mappings: Mappings::new(),
        };
        // SAFETY: `fill` requires the head of an allocation of `SIZE` octets whose driver part
        // holds nothing: `srq` is a new object.
        unsafe { SrqObject::<T>::fill(srq, driver_part) };
        Ok(0)
    };
    from_result(|| charged(udata.is_null(), make))
}

/// `ops.modify_srq`.
///
/// # Safety
///
/// `srq` was filled, `raw` is valid, `udata` null or valid.
pub(super) unsafe extern "C" fn modify_srq<T: Driver>(
    srq: *mut bindings::ib_srq,
    raw: *mut bindings::ib_srq_attr,
    mask: bindings::ib_srq_attr_mask,
    udata: *mut bindings::ib_udata,
) -> c_int {
    from_result(|| {
        // SAFETY: A reference requires memory that is valid and not written to: `raw` is, by this
        // function's `# Safety`.
        let attr = attr::srq_from_raw(unsafe { &*raw });
        let mask = SrqAttrMask::from_bits(mask);
        // SAFETY: `driver_part` requires a structure that was filled and is not emptied meanwhile:
        // `srq` is, by this function's `# Safety`.
        let driver_part = unsafe { SrqObject::<T>::driver_part(srq) };
        driver_part.link.share(|mappings| {
            // SAFETY: `Udata::new` requires a channel that is null or valid, which `udata` is by
            // this function's `# Safety`, and mappings that do not outlive the context of the call:
            // the link drops them before the object, which belongs to the context, is freed.
            let mut udata = unsafe { Udata::new(udata, Some(mappings)) };
            driver_part.data.modify(&attr, mask, &mut udata)
        })?;
        Ok(0)
    })
}

/// `ops.query_srq`.
///
/// # Safety
///
/// `srq` was filled, `raw` is valid.
pub(super) unsafe extern "C" fn query_srq<T: Driver>(
    srq: *mut bindings::ib_srq,
    raw: *mut bindings::ib_srq_attr,
) -> c_int {
    from_result(|| {
        // SAFETY: `data` requires a structure that was filled and is not emptied meanwhile: `srq`
        // is, by this function's `# Safety`.
        let attr = unsafe { SrqObject::<T>::data(srq) }.query();
        // SAFETY: `raw` is valid, by this function's `# Safety`.
        unsafe { *raw = attr::srq_to_raw(&attr) };
        Ok(0)
    })
}

/// `ops.destroy_srq`.
///
/// # Safety
///
/// `srq` was filled, and is used by its handler only, which may still run.
pub(super) unsafe extern "C" fn destroy_srq<T: Driver>(
    srq: *mut bindings::ib_srq,
    _udata: *mut bindings::ib_udata,
) -> c_int {
    // The handler may post to the queue, so the driver part stays until the link is closed.
    // SAFETY: `driver_part` requires a structure that was filled and is not emptied meanwhile:
    // `srq` is, by this function's `# Safety`.
    unsafe { SrqObject::<T>::driver_part(srq) }.link.close();
    // SAFETY: `empty` requires a structure that was filled and that nothing uses: by this
    // function's `# Safety` only its handler used `srq`, and none runs once the link is closed.
    drop(unsafe { SrqObject::<T>::empty(srq) });
    0
}

/// `ops.post_srq_recv`.
///
/// # Safety
///
/// `srq` was filled, `list` is as `ib_post_srq_recv()` takes it or null, `bad` is valid.
pub(super) unsafe extern "C" fn post_srq_recv<T: Driver>(
    srq: *mut bindings::ib_srq,
    list: *const bindings::ib_recv_wr,
    bad: *mut *const bindings::ib_recv_wr,
) -> c_int {
    // SAFETY: A field of `srq`, which was filled, by this function's `# Safety`; it never changes.
    let is_user = !unsafe { (*srq).uobject }.is_null();
    // SAFETY: `data` requires a structure that was filled and is not emptied meanwhile: `srq` is,
    // by this function's `# Safety`.
    let srq = unsafe { SrqObject::<T>::data(srq) };
    // SAFETY: `post_recv_list` requires a list as `ib_post_recv()` takes it, a kernel consumer's
    // unless `is_user`, which is read from the object, and a valid `bad`: both hold by this
    // function's `# Safety`.
    unsafe { post_recv_list(is_user, list, bad, |wrs| srq.post_recv(wrs)) }
}

/// `ops.fill_res_srq_entry`.
///
/// # Safety
///
/// `msg` is being written to, `srq` was filled.
pub(super) unsafe extern "C" fn fill_res_srq_entry<T: Driver>(
    msg: *mut bindings::sk_buff,
    srq: *mut bindings::ib_srq,
) -> c_int {
    // SAFETY: `data` requires a structure that was filled and is not emptied meanwhile: `srq` is,
    // by this function's `# Safety`.
    let srq = unsafe { SrqObject::<T>::data(srq) };
    // SAFETY: `restrack::fill` requires a message that is being written to: `msg` is, by this
    // function's `# Safety`.
    unsafe { restrack::fill(msg, |details| srq.describe(details)) }
}

/// A counted reference of a driver's shared receive queue.
///
/// # Safety
///
/// `srq` must have been filled, and not be destroyed during the call.
pub(super) unsafe fn srq_of<T: Driver>(srq: NonNull<bindings::ib_srq>) -> Arc<T::Srq> {
    // SAFETY: `data` requires a structure that was filled and is not emptied meanwhile: `srq` is,
    // by this function's `# Safety`.
    unsafe { SrqObject::<T>::data(srq.as_ptr()) }.into()
}
