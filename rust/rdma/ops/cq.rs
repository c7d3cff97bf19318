// SPDX-License-Identifier: GPL-2.0

//! Completion queues: [`CqOps`], and its trampolines.

use core::ptr::NonNull;

use kernel::{
    cpu::CpuId,
    error::{
        from_result,
        VTABLE_DEFAULT_ERROR, //
    },
    ffi::{
        c_int,
        c_uint, //
    },
    prelude::*,
    sync::{
        Arc,
        ArcBorrow, //
    }, //
};

use super::{
    charged,
    context,
    owner,
    Driver, //
};
use crate::{
    bindings,
    rdma::{
        device::device_data,
        mmap::Mappings,
        object::{
            CqLink,
            CqObject,
            DriverPart, //
        },
        restrack::{
            self,
            Details, //
        },
        types::{
            NotifyOn,
            NotifyRequest,
            Owner, //
        },
        udata::Udata,
        wc::WcSink, //
    }, //
};

/// A completion queue of the driver.
///
/// When the queue is destroyed no queue pair refers to it: its link is closed, then `ib_core`'s
/// reference is dropped (`ib_device_ops.destroy_cq`, `drivers/infiniband/core/verbs.c`, `cq.c`).
#[vtable]
pub trait CqOps: Sized + Send + Sync + 'static {
    /// The driver.
    type Driver: Driver;

    /// Creates a completion queue.
    ///
    /// `ib_device_ops.create_cq` (`drivers/infiniband/core/verbs.c` and `cq.c` for the kernel,
    /// `uverbs_std_types_cq.c` and `uverbs_cmd.c` for processes).
    ///
    /// Context: process, may sleep.
    ///
    /// # Errors
    ///
    /// * `EOPNOTSUPP` for flags that the device does not have.
    /// * `EINVAL` for a size that it does not have.
    /// * `ENOMEM` if the device has reached its maximum of queues, or memory is short.
    fn create(
        dev: ArcBorrow<'_, <Self::Driver as Driver>::Device>,
        init: CqInit<Self::Driver>,
        udata: &mut Udata<'_>,
    ) -> Result<CqCreated<Self>>;

    /// Resizes the queue of a process and keeps its completions. Returns how many it holds then.
    ///
    /// `ib_device_ops.resize_user_cq` (`drivers/infiniband/core/uverbs_cmd.c`), one call at a time,
    /// and only on devices with [`OptionalOps::RESIZE_CQ`](super::OptionalOps::RESIZE_CQ).
    ///
    /// Context: process, may sleep.
    ///
    /// # Errors
    ///
    /// They leave the queue unchanged. `EINVAL` for a size that the device does not support, or
    /// that is too small for the completions in the queue.
    fn resize(&self, _entries: u32, _udata: &mut Udata<'_>) -> Result<u32> {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Writes completions of a kernel consumer to `sink`, oldest first, until the queue is empty or
    /// the sink is full.
    ///
    /// `ib_device_ops.poll_cq` (`ib_poll_cq()`, `include/rdma/ib_verbs.h`).
    ///
    /// Context: any, hard interrupt included; may not sleep.
    fn poll(&self, sink: &mut WcSink<'_>);

    /// Arms the notification. Returns whether the queue already holds completions, if the request
    /// asks for that.
    ///
    /// `ib_device_ops.req_notify_cq` (`ib_req_notify_cq()`, `include/rdma/ib_verbs.h`;
    /// `drivers/infiniband/core/uverbs_cmd.c`).
    ///
    /// Context: any, hard interrupt included; may not sleep. The driver must not notify from inside
    /// this call.
    fn req_notify(&self, request: NotifyRequest) -> ArmResult;

    /// Adds to what `rdma -dd resource show cq` shows.
    ///
    /// `ib_device_ops.fill_res_cq_entry` (`drivers/infiniband/core/nldev.c`).
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

/// The parameters of a new completion queue.
pub struct CqInit<T: Driver> {
    /// Its creator.
    pub owner: Owner,
    /// The context of the process that creates it.
    pub context: Option<Arc<T::UContext>>,
    /// The minimum number of completions that it must hold.
    pub entries: u32,
    /// `enum ib_uverbs_ex_create_cq_flags`; 0 is plain.
    pub flags: u32,
    /// The link to its consumer.
    pub link: CqLink,
}

/// A new completion queue.
pub struct CqCreated<C> {
    /// The driver's object.
    pub cq: Arc<C>,
    /// How many completions it holds.
    pub entries: u32,
}

/// Whether a queue already held completions when it was armed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArmResult {
    /// It held none, or the request did not ask for the check.
    Armed,
    /// It held some: the consumer polls again.
    MissedEvents,
}

/// `ops.create_cq`.
///
/// # Safety
///
/// `cq` is a new object of the size `ops.size_ib_cq`, `init` is valid, `attrs` null or valid.
pub(super) unsafe extern "C" fn create_cq<T: Driver>(
    cq: *mut bindings::ib_cq,
    init: *const bindings::ib_cq_init_attr,
    attrs: *mut bindings::uverbs_attr_bundle,
) -> c_int {
    let make = || {
        let udata = if attrs.is_null() {
            core::ptr::null_mut()
        } else {
            // SAFETY: The helper gives the place of a field of the bundle: `attrs` is valid, as
            // just compared and by this function's `# Safety`.
            unsafe { riwarp_helper_uverbs_attr_bundle_to_udata(attrs) }
        };
        // SAFETY: A reference requires memory that is valid and not written to: `init` is, by this
        // function's `# Safety`.
        let init = unsafe { &*init };
        let owner = owner(udata);
        // The handler of a process only wakes it up, so it may run on any CPU.
        let vector = match owner {
            Owner::Kernel => CpuId::from_u32(init.comp_vector),
            Owner::User => None,
        };
        // SAFETY: `CqLink::new` requires a queue that is valid until the link is closed, and that
        // it is: the object lives until `destroy_cq`, which closes the link, as the error paths
        // below do.
        let link = unsafe { CqLink::new(NonNull::new(cq).ok_or(EINVAL)?, vector) }?;
        let init = CqInit {
            owner,
            // SAFETY: `context` requires null or the channel of a call that makes an object on a
            // device of `T`, which `udata` is by this function's `# Safety`.
            context: unsafe { context::<T>(udata) },
            entries: init.cqe,
            flags: init.flags,
            link: link.clone(),
        };
        // SAFETY: A field of `cq`, which is valid; `ib_core` sets it before the driver sees the
        // object.
        let device = unsafe { (*cq).device };
        // SAFETY: `device_data` requires a device of `T` that is registered or being registered:
        // that holds while a verb runs.
        let dev = unsafe { device_data::<T::Device>(device) };
        let created = link.share(|mappings| {
            // SAFETY: `Udata::new` requires a channel that is null or valid, which `udata` is by
            // this function's `# Safety`, and mappings that do not outlive the context of the call:
            // the link drops them before the object, which belongs to the context, is freed.
            let mut udata = unsafe { Udata::new(udata, Some(mappings)) };
            T::Cq::create(dev, init, &mut udata)
        });
        let created = created.inspect_err(|_| link.close())?;
        // SAFETY: A field of `cq`, which is valid; its one writer is the verb that makes or resizes
        // the queue.
        unsafe { (*cq).cqe = c_int::try_from(created.entries).unwrap_or(c_int::MAX) };
        let driver_part = DriverPart {
            data: created.cq,
            link,
            mappings: Mappings::new(),
        };
        if cfg!(CONFIG_PREEMPT_RT) {
            // SAFETY: A new queue, by this function's `# Safety`.
            unsafe { avoid_irq_poll(cq) };
        }
        // SAFETY: `fill` requires the head of an allocation of `SIZE` octets whose driver part
        // holds nothing: `cq` is a new object.
        unsafe { CqObject::<T>::fill(cq, driver_part) };
        Ok(0)
    };
    from_result(|| charged(attrs.is_null(), make))
}

/// Has `ib_core` poll the queue from a work item if its consumer asked for a softirq.
///
/// `ib_core` would poll it by `lib/irq_poll.c`, whose softirq leaves the instance at the head of
/// the CPU's list while it polls, with interrupts on, and relies on no other task running that
/// softirq on the CPU meanwhile. With `PREEMPT_RT` one can (`PREEMPT_RT_NEEDS_BH_LOCK` is off): it
/// polls the same instance, or moves another to the head, and removes entries twice. `ib_core`
/// reads the context only after `create_cq` returned, and handlers that may run in a softirq may
/// run in a work item.
///
/// # Safety
///
/// `cq` must be a new queue, for which `create_cq` runs.
unsafe fn avoid_irq_poll(cq: *mut bindings::ib_cq) {
    // SAFETY: A field of `cq`, which is valid and, while `create_cq` runs, has no other user.
    let poll_ctx = unsafe { &mut (*cq).poll_ctx };
    if *poll_ctx == bindings::ib_poll_context_IB_POLL_SOFTIRQ {
        *poll_ctx = bindings::ib_poll_context_IB_POLL_WORKQUEUE;
    }
}

/// `ops.pre_destroy_cq`: completions that come from now on are not announced, and no handler runs
/// once this returned.
///
/// `ib_free_cq()` calls it before it cancels the work item that polls the queue. A transmit task
/// that has already completed the consumer's last request may only then announce it, and the item
/// would run on a freed queue.
///
/// # Safety
///
/// `cq` was filled.
pub(super) unsafe extern "C" fn pre_destroy_cq<T: Driver>(cq: *mut bindings::ib_cq) -> c_int {
    // SAFETY: `driver_part` requires a structure that was filled and is not emptied meanwhile: `cq`
    // is, by this function's `# Safety`, and `ib_core` empties it later.
    unsafe { CqObject::<T>::driver_part(cq) }.link.close();
    0
}

/// `ops.post_destroy_cq`.
///
/// # Safety
///
/// [`pre_destroy_cq`] was called, and `cq` is not used any more.
pub(super) unsafe extern "C" fn post_destroy_cq<T: Driver>(cq: *mut bindings::ib_cq) {
    // SAFETY: `empty` requires a structure that was filled and that nothing uses: `cq` is, by this
    // function's `# Safety`.
    drop(unsafe { CqObject::<T>::empty(cq) });
}

/// `ops.destroy_cq`, for a queue of a process, for one of `ib_create_cq()`, and for one that
/// `ib_alloc_cq()` could not complete.
///
/// # Safety
///
/// `cq` was filled, and is used by its handler only, which may still run.
pub(super) unsafe extern "C" fn destroy_cq<T: Driver>(
    cq: *mut bindings::ib_cq,
    _udata: *mut bindings::ib_udata,
) -> c_int {
    // The handler may poll the queue, so the driver part stays until the link is closed.
    // SAFETY: `pre_destroy_cq` requires a queue that was filled: `cq` is, by this function's
    // `# Safety`.
    unsafe { pre_destroy_cq::<T>(cq) };
    // SAFETY: `post_destroy_cq` requires a call of `pre_destroy_cq`, which was just made, and that
    // `cq` is not used any more: by this function's `# Safety` only its handler used it, and none
    // runs behind that call.
    unsafe { post_destroy_cq::<T>(cq) };
    0
}

/// `ops.resize_user_cq`.
///
/// # Safety
///
/// `cq` was filled and belongs to a process, `udata` is valid.
pub(super) unsafe extern "C" fn resize_user_cq<T: Driver>(
    cq: *mut bindings::ib_cq,
    entries: c_uint,
    udata: *mut bindings::ib_udata,
) -> c_int {
    from_result(|| {
        // SAFETY: `driver_part` requires a structure that was filled and is not emptied meanwhile:
        // `cq` is, by this function's `# Safety`.
        let driver_part = unsafe { CqObject::<T>::driver_part(cq) };
        let entries = driver_part.link.share(|mappings| {
            // SAFETY: `Udata::new` requires a channel that is null or valid, which `udata` is by
            // this function's `# Safety`, and mappings that do not outlive the context of the call:
            // the link drops them before the object, which belongs to the context, is freed.
            let mut udata = unsafe { Udata::new(udata, Some(mappings)) };
            driver_part.data.resize(entries, &mut udata)
        })?;
        // SAFETY: A field of `cq`, which is valid; its one writer is the verb that makes or resizes
        // the queue.
        unsafe { (*cq).cqe = c_int::try_from(entries).unwrap_or(c_int::MAX) };
        Ok(0)
    })
}

/// `ops.poll_cq`.
///
/// # Safety
///
/// `cq` was filled, `wc` has room for `entries`.
pub(super) unsafe extern "C" fn poll_cq<T: Driver>(
    cq: *mut bindings::ib_cq,
    entries: c_int,
    wc: *mut bindings::ib_wc,
) -> c_int {
    from_result(|| {
        let room = usize::try_from(entries)?;
        // SAFETY: `WcSink::new` requires room for that many completions that nothing else uses:
        // `wc` is so, by this function's `# Safety`.
        let mut sink = unsafe { WcSink::new(wc, room) };
        // SAFETY: `data` requires a structure that was filled and is not emptied meanwhile: `cq`
        // is, by this function's `# Safety`.
        unsafe { CqObject::<T>::data(cq) }.poll(&mut sink);
        // CAST: At most `entries`.
        Ok(sink.used() as c_int)
    })
}

/// `ops.req_notify_cq`.
///
/// # Safety
///
/// `cq` was filled.
pub(super) unsafe extern "C" fn req_notify_cq<T: Driver>(
    cq: *mut bindings::ib_cq,
    flags: bindings::ib_cq_notify_flags,
) -> c_int {
    from_result(|| {
        let kind = flags & bindings::ib_cq_notify_flags_IB_CQ_SOLICITED_MASK;
        let missed = flags & bindings::ib_cq_notify_flags_IB_CQ_REPORT_MISSED_EVENTS;
        let request = NotifyRequest {
            on: if kind == bindings::ib_cq_notify_flags_IB_CQ_SOLICITED {
                NotifyOn::Solicited
            } else {
                NotifyOn::Next
            },
            report_missed: missed != 0,
        };
        // SAFETY: `data` requires a structure that was filled and is not emptied meanwhile: `cq`
        // is, by this function's `# Safety`.
        match unsafe { CqObject::<T>::data(cq) }.req_notify(request) {
            ArmResult::Armed => Ok(0),
            ArmResult::MissedEvents => Ok(1),
        }
    })
}

/// `ops.fill_res_cq_entry`.
///
/// # Safety
///
/// `msg` is being written to, `cq` was filled.
pub(super) unsafe extern "C" fn fill_res_cq_entry<T: Driver>(
    msg: *mut bindings::sk_buff,
    cq: *mut bindings::ib_cq,
) -> c_int {
    // SAFETY: `data` requires a structure that was filled and is not emptied meanwhile: `cq` is, by
    // this function's `# Safety`.
    let cq = unsafe { CqObject::<T>::data(cq) };
    // SAFETY: `restrack::fill` requires a message that is being written to: `msg` is, by this
    // function's `# Safety`.
    unsafe { restrack::fill(msg, |details| cq.describe(details)) }
}

/// A counted reference of a driver's completion queue.
///
/// # Safety
///
/// `cq` must have been filled, and not be destroyed during the call.
pub(super) unsafe fn cq_of<T: Driver>(cq: NonNull<bindings::ib_cq>) -> Arc<T::Cq> {
    // SAFETY: `data` requires a structure that was filled and is not emptied meanwhile: `cq` is, by
    // this function's `# Safety`.
    unsafe { CqObject::<T>::data(cq.as_ptr()) }.into()
}

extern "C" {
    fn riwarp_helper_uverbs_attr_bundle_to_udata(
        attrs: *mut bindings::uverbs_attr_bundle,
    ) -> *mut bindings::ib_udata;
}
