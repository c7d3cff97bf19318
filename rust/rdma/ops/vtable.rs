// SPDX-License-Identifier: GPL-2.0

//! The table of operations of a driver, and the trampolines of those that concern the device
//! itself.

use super::super::device::dealloc_driver;
use super::super::device::device_counters;
use super::super::device::device_data;
use super::super::device::IbDevice;
use super::super::iw_cm::requests;
use super::super::mmap;
use super::super::object::CqObject;
use super::super::object::MwObject;
use super::super::object::PdObject;
use super::super::object::QpObject;
use super::super::object::SrqObject;
use super::super::object::UContextObject;
use super::super::types::AtomicCap;
use super::super::types::PortAttr;
use super::details;
use super::object_ops;
use super::queue_ops;
use super::Driver;
use super::Provider;
use crate::bindings;
use core::mem::ManuallyDrop;
use kernel::error::from_result;
use kernel::ffi::c_int;
use kernel::prelude::*;

/// The operations of a driver, for a device whose processes are served by `provider`.
pub(in crate::rdma) fn table<T: Driver>(provider: Provider) -> bindings::ib_device_ops {
    let mut ops = bindings::ib_device_ops {
        owner: T::OWNER.as_ptr(),
        driver_id: provider.driver_id(),
        uverbs_abi_ver: provider.abi_version(),

        advise_mr: Some(object_ops::advise_mr::<T>),
        alloc_mr: Some(object_ops::alloc_mr::<T>),
        alloc_pd: Some(object_ops::alloc_pd::<T>),
        alloc_ucontext: Some(object_ops::alloc_ucontext::<T>),
        create_cq: Some(queue_ops::create_cq::<T>),
        create_qp: Some(queue_ops::create_qp::<T>),
        create_srq: Some(queue_ops::create_srq::<T>),
        dealloc_driver: Some(dealloc_driver::<T>),
        dealloc_pd: Some(object_ops::dealloc_pd::<T>),
        dealloc_ucontext: Some(object_ops::dealloc_ucontext::<T>),
        dereg_mr: Some(object_ops::dereg_mr::<T>),
        destroy_cq: Some(queue_ops::destroy_cq::<T>),
        destroy_qp: Some(queue_ops::destroy_qp::<T>),
        destroy_srq: Some(queue_ops::destroy_srq::<T>),
        disassociate_ucontext: Some(disassociate_ucontext),
        fill_res_cq_entry: Some(details::fill_res_cq_entry::<T>),
        fill_res_mr_entry: Some(details::fill_res_mr_entry::<T>),
        fill_res_qp_entry: Some(details::fill_res_qp_entry::<T>),
        fill_res_srq_entry: Some(details::fill_res_srq_entry::<T>),
        get_dma_mr: Some(object_ops::get_dma_mr::<T>),
        get_netdev: Some(get_netdev::<T>),
        get_port_immutable: Some(get_port_immutable::<T>),
        iw_accept: Some(requests::accept::<T>),
        iw_add_ref: Some(requests::add_ref),
        iw_connect: Some(requests::connect::<T>),
        iw_create_listen: Some(requests::create_listen::<T>),
        iw_destroy_listen: Some(requests::destroy_listen::<T>),
        iw_get_qp: Some(requests::get_qp::<T>),
        iw_reject: Some(requests::reject::<T>),
        iw_rem_ref: Some(requests::rem_ref::<T>),
        map_mr_sg: Some(object_ops::map_mr_sg::<T>),
        mmap: Some(mmap::mmap),
        mmap_free: Some(mmap::mmap_free),
        modify_qp: Some(queue_ops::modify_qp::<T>),
        modify_srq: Some(queue_ops::modify_srq::<T>),
        poll_cq: Some(queue_ops::poll_cq::<T>),
        post_recv: Some(queue_ops::post_recv::<T>),
        post_send: Some(queue_ops::post_send::<T>),
        post_srq_recv: Some(queue_ops::post_srq_recv::<T>),
        query_device: Some(query_device::<T>),
        query_gid: Some(query_gid::<T>),
        query_port: Some(query_port::<T>),
        query_qp: Some(queue_ops::query_qp::<T>),
        query_srq: Some(queue_ops::query_srq::<T>),
        reg_user_mr: Some(object_ops::reg_user_mr::<T>),
        reg_user_mr_dmabuf: Some(object_ops::reg_user_mr_dmabuf::<T>),
        rereg_user_mr: Some(object_ops::rereg_user_mr::<T>),
        req_notify_cq: Some(queue_ops::req_notify_cq::<T>),

        size_ib_cq: CqObject::<T>::SIZE,
        size_ib_pd: PdObject::<T>::SIZE,
        size_ib_qp: QpObject::<T>::SIZE,
        size_ib_srq: SrqObject::<T>::SIZE,
        size_ib_ucontext: UContextObject::<T>::SIZE,
        ..Default::default()
    };
    if provider == Provider::Rxe {
        ops.alloc_mw = Some(object_ops::alloc_mw::<T>);
        ops.dealloc_mw = Some(object_ops::dealloc_mw::<T>);
        ops.resize_user_cq = Some(queue_ops::resize_user_cq::<T>);
        ops.size_ib_mw = MwObject::<T>::SIZE;
    }
    if !T::COUNTERS.is_empty() {
        ops.alloc_hw_port_stats = Some(alloc_hw_port_stats::<T>);
        ops.get_hw_stats = Some(get_hw_stats::<T>);
    }
    ops
}

/// A count that is a C int in the end.
fn count(value: u32) -> u32 {
    value.min(i32::MAX as u32) // CAST: A positive constant.
}

/// `ops.query_device`.
///
/// # Safety
///
/// As `ib_core` calls it: the device is registered or being so, `attr` valid and zero, `udata` null
/// or valid.
unsafe extern "C" fn query_device<T: Driver>(
    device: *mut bindings::ib_device,
    attr: *mut bindings::ib_device_attr,
    udata: *mut bindings::ib_udata,
) -> c_int {
    from_result(|| {
        if !udata.is_null() {
            // SAFETY: A field of `udata`, which is null or valid, by this function's `# Safety`.
            let inlen = unsafe { (*udata).inlen };
            // SAFETY: A field of `udata`, which is null or valid, by this function's `# Safety`.
            let outlen = unsafe { (*udata).outlen };
            if inlen != 0 || outlen != 0 {
                return Err(EINVAL);
            }
        }
        // SAFETY: `device_data` wants a device of `T` whose operations are set, and stay so:
        // `ib_core` calls this for such only, by this function's `# Safety`.
        let from = T::query_device(unsafe { device_data::<T>(device) })?;
        // SAFETY: A reference wants memory that is valid and nobody else's: `attr` is `ib_core`'s
        // own for this call, by this function's `# Safety`.
        let to = unsafe { &mut *attr };
        to.fw_ver = from.fw_ver;
        to.sys_image_guid = u64::from_ne_bytes(from.sys_image_guid);
        to.max_mr_size = from.max_mr_size;
        to.page_size_cap = from.page_size_cap;
        to.vendor_id = from.vendor_id;
        to.vendor_part_id = from.vendor_part_id;
        to.hw_ver = from.hw_ver;
        to.max_qp = count(from.max_qp);
        to.max_qp_wr = count(from.max_qp_wr);
        to.device_cap_flags = from.device_caps.bits();
        to.kernel_cap_flags = from.kernel_caps.bits();
        to.max_send_sge = count(from.max_send_sge);
        to.max_recv_sge = count(from.max_recv_sge);
        to.max_sge_rd = count(from.max_sge_rd);
        to.max_cq = count(from.max_cq);
        to.max_cqe = count(from.max_cqe);
        to.max_mr = count(from.max_mr);
        to.max_pd = count(from.max_pd);
        to.max_qp_rd_atom = count(from.max_qp_rd_atom);
        to.max_qp_init_rd_atom = count(from.max_qp_init_rd_atom);
        to.max_res_rd_atom = count(from.max_res_rd_atom);
        to.atomic_cap = match from.atomic_cap {
            AtomicCap::None => bindings::ib_atomic_cap_IB_ATOMIC_NONE,
            AtomicCap::Hca => bindings::ib_atomic_cap_IB_ATOMIC_HCA,
            AtomicCap::Global => bindings::ib_atomic_cap_IB_ATOMIC_GLOB,
        };
        to.masked_atomic_cap = to.atomic_cap;
        to.max_mw = count(from.max_mw);
        to.max_srq = count(from.max_srq);
        to.max_srq_wr = count(from.max_srq_wr);
        to.max_srq_sge = count(from.max_srq_sge);
        to.max_fast_reg_page_list_len = from.max_fast_reg_page_list_len;
        to.local_ca_ack_delay = from.local_ca_ack_delay;
        if !from.odp_caps.is_empty() {
            to.odp_caps.general_caps = ODP_SUPPORT;
            to.odp_caps.per_transport_caps.rc_odp_caps = from.odp_caps.bits();
        }
        Ok(0)
    })
}

/// `ops.query_port`.
///
/// # Safety
///
/// As `ib_core` calls it: the device is registered or being so, `attr` valid and zero.
unsafe extern "C" fn query_port<T: Driver>(
    device: *mut bindings::ib_device,
    port: u32,
    attr: *mut bindings::ib_port_attr,
) -> c_int {
    from_result(|| {
        // SAFETY: `device_data` wants a device of `T` whose operations are set, and stay so:
        // `ib_core` calls this for such only, by this function's `# Safety`.
        let dev = unsafe { device_data::<T>(device) };
        // SAFETY: `from_raw` wants a device that is registered, or being so: `device` is, by this
        // function's `# Safety`.
        let ib = unsafe { IbDevice::from_raw(device) };
        let from: PortAttr = T::query_port(dev, ib, port)?;
        // SAFETY: A reference wants memory that is valid and nobody else's: `attr` is `ib_core`'s
        // own for this call, by this function's `# Safety`.
        let to = unsafe { &mut *attr };
        to.state = from.state.to_raw();
        to.max_mtu = from.max_mtu.to_raw();
        to.active_mtu = from.active_mtu.to_raw();
        to.phys_mtu = from.phys_mtu;
        to.gid_tbl_len = i32::try_from(from.gid_tbl_len)?;
        to.max_msg_sz = from.max_msg_sz;
        to.port_cap_flags = from.port_cap_flags;
        to.active_width = from.speed.active_width;
        to.active_speed = from.speed.active_speed;
        to.phys_state = u8::try_from(from.phys_state.to_raw())?;
        Ok(0)
    })
}

/// `ops.get_port_immutable`.
///
/// # Safety
///
/// As `ib_core` calls it: the device is being registered, `immutable` is valid.
unsafe extern "C" fn get_port_immutable<T: Driver>(
    device: *mut bindings::ib_device,
    port: u32,
    immutable: *mut bindings::ib_port_immutable,
) -> c_int {
    from_result(|| {
        // SAFETY: `device_data` wants a device of `T` whose operations are set, and stay so:
        // `ib_core` calls this for such only, by this function's `# Safety`.
        let from = T::port_immutable(unsafe { device_data::<T>(device) }, port)?;
        // SAFETY: A reference wants memory that is valid and nobody else's: `immutable` is
        // `ib_core`'s own for this call, by this function's `# Safety`.
        let to = unsafe { &mut *immutable };
        to.gid_tbl_len = i32::try_from(from.gid_tbl_len)?;
        to.pkey_tbl_len = i32::try_from(from.pkey_tbl_len)?;
        to.core_cap_flags = CORE_CAPS_IWARP;
        Ok(0)
    })
}

/// `ops.query_gid`.
///
/// # Safety
///
/// As `ib_core` calls it: the device is registered or being so, `gid` is valid.
unsafe extern "C" fn query_gid<T: Driver>(
    device: *mut bindings::ib_device,
    port: u32,
    index: c_int,
    gid: *mut bindings::ib_gid,
) -> c_int {
    from_result(|| {
        let index = usize::try_from(index)?;
        // SAFETY: `device_data` wants a device of `T` whose operations are set, and stay so:
        // `ib_core` calls this for such only, by this function's `# Safety`.
        let from = T::query_gid(unsafe { device_data::<T>(device) }, port, index)?;
        // SAFETY: A reference wants memory that is valid and nobody else's: `gid` is, by this
        // function's `# Safety`.
        let gid = unsafe { &mut *gid };
        // SAFETY: All fields of the union are 16 octets of plain data.
        unsafe { *gid.raw.as_mut() = from.0 };
        Ok(0)
    })
}

/// `ops.get_netdev`.
///
/// # Safety
///
/// As `ib_core` calls it: the device is registered or being so.
unsafe extern "C" fn get_netdev<T: Driver>(
    device: *mut bindings::ib_device,
    port: u32,
) -> *mut bindings::net_device {
    // SAFETY: `device_data` wants a device of `T` whose operations are set, and stay so: `ib_core`
    // calls this for such only, by this function's `# Safety`.
    match T::netdev(unsafe { device_data::<T>(device) }, port) {
        // The reference is the caller's from here on.
        Some(netdev) => ManuallyDrop::new(netdev).as_raw(),
        None => core::ptr::null_mut(),
    }
}

/// `ops.alloc_hw_port_stats`.
///
/// # Safety
///
/// As `ib_core` calls it: the device is being registered.
unsafe extern "C" fn alloc_hw_port_stats<T: Driver>(
    device: *mut bindings::ib_device,
    _port: u32,
) -> *mut bindings::rdma_hw_stats {
    // SAFETY: `device_counters` wants a device of `T` whose operations are set, and stay so:
    // `ib_core` calls this for such only, by this function's `# Safety`.
    let descs = unsafe { device_counters::<T>(device) }.descs();
    let Ok(number) = c_int::try_from(descs.len()) else {
        return core::ptr::null_mut();
    };
    // SAFETY: `rdma_alloc_hw_stats_struct()` wants so many descriptions that stay while somebody
    // reads the statistics: they belong to the tail of the device, which `dealloc_driver` empties,
    // and by then the device is unregistered, so that nobody reads them.
    unsafe { bindings::rdma_alloc_hw_stats_struct(descs.as_ptr(), number, COUNTERS_LIFESPAN_MS) }
}

/// `ops.get_hw_stats`.
///
/// # Safety
///
/// As `ib_core` calls it: the device is registered, `stats` was made by [`alloc_hw_port_stats`] and
/// is locked.
unsafe extern "C" fn get_hw_stats<T: Driver>(
    device: *mut bindings::ib_device,
    stats: *mut bindings::rdma_hw_stats,
    port: u32,
    _index: c_int,
) -> c_int {
    if stats.is_null() || port == 0 {
        return EOPNOTSUPP.to_errno();
    }
    // SAFETY: A field of `stats`, which is valid, by this function's `# Safety`.
    let number = unsafe { (*stats).num_counters };
    // SAFETY: The place of a field is inside of the allocation, since `stats` is valid.
    let values = unsafe { &raw mut (*stats).value };
    // SAFETY: `from_raw_parts_mut` wants so many entries that nobody else uses: the array behind
    // `stats` was made with as many as `num_counters` says, and is locked, by this function's
    // `# Safety`.
    let values = unsafe {
        core::slice::from_raw_parts_mut(values.cast::<u64>(), usize::try_from(number).unwrap_or(0))
    };
    // SAFETY: `device_data` wants a device of `T` whose operations are set, and stay so: `ib_core`
    // calls this for such only, by this function's `# Safety`.
    T::counters(unsafe { device_data::<T>(device) }, values);
    number
}

/// `ops.disassociate_ucontext`: lets the device go while processes have it open.
///
/// The queues that they mapped are plain memory that lives until it is unmapped, so nothing has to
/// be taken away from them; `ib_core` destroys their objects itself right after.
///
/// # Safety
///
/// None.
unsafe extern "C" fn disassociate_ucontext(_context: *mut bindings::ib_ucontext) {}

/// `IB_ODP_SUPPORT`: of regions that are told by their addresses, not of all memory as one region.
const ODP_SUPPORT: u64 = 1;

/// How long counters that were read stay good.
const COUNTERS_LIFESPAN_MS: usize = 10;

/// `RDMA_CORE_PORT_IWARP`, which is an expression in C.
const CORE_CAPS_IWARP: u32 = bindings::RDMA_CORE_CAP_PROT_IWARP | bindings::RDMA_CORE_CAP_IW_CM;
