// SPDX-License-Identifier: GPL-2.0

//! The table of operations of a driver.

use super::{
    cq,
    device,
    mr,
    mw,
    pd,
    qp,
    srq,
    ucontext,
    CqOps,
    DeviceOps,
    Driver,
    MrOps,
    MwOps,
    OptionalOps,
    Provider,
    QpOps,
    SrqOps, //
};
use crate::{
    bindings,
    rdma::{
        device::dealloc_driver,
        iw_cm::requests,
        mmap,
        object::{
            CqObject,
            MwObject,
            PdObject,
            QpObject,
            SrqObject,
            UContextObject, //
        }, //
    }, //
};

/// An operation, if its trait's implementor has it (`#[vtable]`).
macro_rules! optional {
    ($has:expr, $op:expr) => {
        if $has {
            Some($op)
        } else {
            None
        }
    };
}

/// The operations of a driver, for a device of whose processes `provider` is the library.
pub(in crate::rdma) fn table<T: Driver>(provider: &Provider) -> bindings::ib_device_ops {
    let mut ops = bindings::ib_device_ops {
        owner: T::OWNER.as_ptr(),
        driver_id: provider.driver_id,
        uverbs_abi_ver: provider.abi_version,

        advise_mr: optional!(T::Mr::HAS_ADVISE, mr::advise_mr::<T>),
        alloc_mr: optional!(T::Mr::HAS_ALLOC, mr::alloc_mr::<T>),
        alloc_pd: Some(pd::alloc_pd::<T>),
        alloc_ucontext: Some(ucontext::alloc_ucontext::<T>),
        create_cq: Some(cq::create_cq::<T>),
        create_qp: Some(qp::create_qp::<T>),
        create_srq: optional!(T::Srq::HAS_CREATE, srq::create_srq::<T>),
        dealloc_driver: Some(dealloc_driver::<T>),
        dealloc_pd: Some(pd::dealloc_pd::<T>),
        dealloc_ucontext: Some(ucontext::dealloc_ucontext::<T>),
        dereg_mr: Some(mr::dereg_mr::<T>),
        destroy_cq: Some(cq::destroy_cq::<T>),
        destroy_qp: Some(qp::destroy_qp::<T>),
        destroy_srq: optional!(T::Srq::HAS_CREATE, srq::destroy_srq::<T>),
        disassociate_ucontext: Some(ucontext::disassociate_ucontext),
        fill_res_cq_entry: optional!(T::Cq::HAS_DESCRIBE, cq::fill_res_cq_entry::<T>),
        fill_res_mr_entry: optional!(T::Mr::HAS_DESCRIBE, mr::fill_res_mr_entry::<T>),
        fill_res_qp_entry: optional!(T::Qp::HAS_DESCRIBE, qp::fill_res_qp_entry::<T>),
        fill_res_srq_entry: optional!(T::Srq::HAS_DESCRIBE, srq::fill_res_srq_entry::<T>),
        get_dev_fw_str: optional!(T::Device::HAS_VERSION, device::get_dev_fw_str::<T>),
        get_dma_mr: Some(mr::get_dma_mr::<T>),
        get_link_layer: Some(device::get_link_layer),
        get_netdev: optional!(T::Device::HAS_NETDEV, device::get_netdev::<T>),
        get_port_immutable: Some(device::get_port_immutable::<T>),
        iw_accept: Some(requests::accept::<T>),
        iw_add_ref: Some(requests::add_ref),
        iw_connect: Some(requests::connect::<T>),
        iw_create_listen: Some(requests::create_listen::<T>),
        iw_destroy_listen: Some(requests::destroy_listen::<T>),
        iw_get_qp: Some(requests::get_qp::<T>),
        iw_reject: Some(requests::reject::<T>),
        iw_rem_ref: Some(requests::rem_ref::<T>),
        map_mr_sg: optional!(T::Mr::HAS_MAP_SG, mr::map_mr_sg::<T>),
        mmap: Some(mmap::mmap),
        mmap_free: Some(mmap::mmap_free),
        modify_qp: Some(qp::modify_qp::<T>),
        modify_srq: optional!(T::Srq::HAS_MODIFY, srq::modify_srq::<T>),
        poll_cq: Some(cq::poll_cq::<T>),
        post_destroy_cq: Some(cq::post_destroy_cq::<T>),
        post_recv: Some(qp::post_recv::<T>),
        post_send: Some(qp::post_send::<T>),
        post_srq_recv: optional!(T::Srq::HAS_POST_RECV, srq::post_srq_recv::<T>),
        pre_destroy_cq: Some(cq::pre_destroy_cq::<T>),
        query_device: Some(device::query_device::<T>),
        query_gid: Some(device::query_gid::<T>),
        query_pkey: optional!(T::Device::HAS_QUERY_PKEY, device::query_pkey::<T>),
        query_port: Some(device::query_port::<T>),
        query_qp: optional!(T::Qp::HAS_QUERY, qp::query_qp::<T>),
        query_srq: optional!(T::Srq::HAS_QUERY, srq::query_srq::<T>),
        reg_user_mr: Some(mr::reg_user_mr::<T>),
        reg_user_mr_dmabuf: optional!(T::Mr::HAS_REG_USER_DMABUF, mr::reg_user_mr_dmabuf::<T>),
        rereg_user_mr: optional!(T::Mr::HAS_REREG_USER, mr::rereg_user_mr::<T>),
        req_notify_cq: Some(cq::req_notify_cq::<T>),

        size_ib_cq: CqObject::<T>::SIZE,
        size_ib_pd: PdObject::<T>::SIZE,
        size_ib_qp: QpObject::<T>::SIZE,
        size_ib_srq: SrqObject::<T>::SIZE,
        size_ib_ucontext: UContextObject::<T>::SIZE,
        ..Default::default()
    };
    if T::Mw::HAS_ALLOC && provider.optional.contains(OptionalOps::MEMORY_WINDOWS) {
        ops.alloc_mw = Some(mw::alloc_mw::<T>);
        ops.dealloc_mw = Some(mw::dealloc_mw::<T>);
        ops.size_ib_mw = MwObject::<T>::SIZE;
    }
    if T::Cq::HAS_RESIZE && provider.optional.contains(OptionalOps::RESIZE_CQ) {
        ops.resize_user_cq = Some(cq::resize_user_cq::<T>);
    }
    if T::Device::HAS_READ_COUNTERS && !T::COUNTERS.is_empty() {
        ops.alloc_hw_port_stats = Some(device::alloc_hw_port_stats::<T>);
        ops.get_hw_stats = Some(device::get_hw_stats::<T>);
    }
    ops
}
