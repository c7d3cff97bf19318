// SPDX-License-Identifier: GPL-2.0

//! The device: [`DeviceOps`], and its trampolines.
//!
//! The trampoline of `ops.dealloc_driver` is in [`device`](crate::rdma::device), with the device's
//! driver part.

use core::mem::ManuallyDrop;

use kernel::{
    error::{
        from_result,
        VTABLE_DEFAULT_ERROR, //
    },
    ffi::{
        c_char,
        c_int, //
    },
    prelude::*,
    sync::Arc, //
};

use super::Driver;
use crate::{
    bindings,
    compat::EOPNOTSUPP,
    net::NetDevice,
    rdma::{
        device::{
            device_counters,
            device_data,
            IbDevice,
            IbDeviceName, //
        },
        types::{
            AtomicCap,
            Connections,
            DeviceAttr,
            Gid,
            PortAttr,
            PortImmutable, //
        }, //
    }, //
};

/// A device of the driver. It has one port, number 1.
///
/// Context of all functions: process, may sleep.
#[vtable]
pub trait DeviceOps: Sized + Send + Sync + 'static {
    /// Returns the attributes of the device.
    ///
    /// `ib_device_ops.query_device`; called when the device is registered and for each process that
    /// queries it (`drivers/infiniband/core/device.c`, `uverbs_cmd.c`).
    fn query(&self) -> DeviceAttr;

    /// Returns the attributes and the state of the port.
    ///
    /// `ib_device_ops.query_port` (`drivers/infiniband/core/device.c`, `ib_query_port()`).
    fn query_port(&self, ib: &IbDevice) -> PortAttr;

    /// Returns the constant attributes of the port.
    ///
    /// `ib_device_ops.get_port_immutable` (`drivers/infiniband/core/device.c`), while the device is
    /// being registered.
    fn port_immutable(&self) -> PortImmutable;

    /// Returns an entry of the port's GID table.
    ///
    /// `ib_device_ops.query_gid` (`drivers/infiniband/core/cache.c`).
    ///
    /// # Errors
    ///
    /// `EINVAL` beyond the end of the table.
    fn query_gid(&self, index: usize) -> Result<Gid>;

    /// Returns an entry of the port's P_Key table.
    ///
    /// `ib_device_ops.query_pkey` (`drivers/infiniband/core/device.c`, `ib_query_pkey()`).
    ///
    /// # Errors
    ///
    /// `EINVAL` beyond the end of the table.
    fn query_pkey(&self, _index: u16) -> Result<u16> {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Returns the network interface of the port; [`None`] once it is going away.
    ///
    /// `ib_device_ops.get_netdev` (`drivers/infiniband/core/device.c`, `ib_device_get_netdev()`).
    fn netdev(&self) -> Option<NetDevice> {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Returns the version of the driver, in place of a firmware's; cut at 31 octets.
    ///
    /// `ib_device_ops.get_dev_fw_str` (`drivers/infiniband/core/device.c`).
    fn version(&self) -> &'static str {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Reads the counters of the port into `values`, in the order of [`Driver::COUNTERS`].
    ///
    /// `ib_device_ops.get_hw_stats` (`drivers/infiniband/core/sysfs.c`, `nldev.c`), one call at a
    /// time. Not called for a driver without counters.
    fn read_counters(&self, _values: &mut [u64]) {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Releases the device after it was unregistered, for any reason; no callback runs or will run.
    ///
    /// Called once, also if the [`Registration`](crate::rdma::device::Registration) was dropped or
    /// failed, which must not be dropped in here. The driver removes the device from its lists.
    /// `name` is the last name of the device.
    ///
    /// `ib_device_ops.dealloc_driver` (`drivers/infiniband/core/device.c`).
    fn dealloc(self: Arc<Self>, name: &IbDeviceName);
}

/// Cuts a count to the maximum of a C `int`, which the fields are; since 7.3, they are unsigned.
fn count<T: TryFrom<u32> + Default>(value: u32) -> T {
    // CAST: A positive constant.
    T::try_from(value.min(i32::MAX as u32)).unwrap_or_default()
}

/// `ops.query_device`.
///
/// # Safety
///
/// As `ib_core` calls it: the device is registered or being registered, `attr` valid and zero,
/// `udata` null or valid.
pub(super) unsafe extern "C" fn query_device<T: Driver>(
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
        // SAFETY: `device_data` requires a device of `T` whose operations are set, and stay so:
        // `ib_core` calls this for such only, by this function's `# Safety`.
        let from = unsafe { device_data::<T::Device>(device) }.query();
        // SAFETY: A reference requires valid memory that nothing else uses: `attr` is `ib_core`'s
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
        to.max_pkeys = from.max_pkeys;
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
/// As `ib_core` calls it: the device is registered or being registered, `attr` valid and zero.
pub(super) unsafe extern "C" fn query_port<T: Driver>(
    device: *mut bindings::ib_device,
    _port: u32,
    attr: *mut bindings::ib_port_attr,
) -> c_int {
    from_result(|| {
        // SAFETY: `device_data` requires a device of `T` whose operations are set, and stay so:
        // `ib_core` calls this for such only, by this function's `# Safety`.
        let dev = unsafe { device_data::<T::Device>(device) };
        // SAFETY: `from_raw` requires a device that is registered, or being registered: `device`
        // is, by this function's `# Safety`.
        let ib = unsafe { IbDevice::from_raw(device) };
        let from: PortAttr = dev.query_port(ib);
        // SAFETY: A reference requires valid memory that nothing else uses: `attr` is `ib_core`'s
        // own for this call, by this function's `# Safety`.
        let to = unsafe { &mut *attr };
        to.state = from.state.to_raw();
        to.max_mtu = from.max_mtu.to_raw();
        to.active_mtu = from.active_mtu.to_raw();
        to.phys_mtu = from.phys_mtu;
        to.gid_tbl_len = i32::try_from(from.gid_tbl_len)?;
        to.pkey_tbl_len = u16::try_from(from.pkey_tbl_len)?;
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
pub(super) unsafe extern "C" fn get_port_immutable<T: Driver>(
    device: *mut bindings::ib_device,
    _port: u32,
    immutable: *mut bindings::ib_port_immutable,
) -> c_int {
    from_result(|| {
        // SAFETY: `device_data` requires a device of `T` whose operations are set, and stay so:
        // `ib_core` calls this for such only, by this function's `# Safety`.
        let from = unsafe { device_data::<T::Device>(device) }.port_immutable();
        // SAFETY: A reference requires valid memory that nothing else uses: `immutable` is
        // `ib_core`'s own for this call, by this function's `# Safety`.
        let to = unsafe { &mut *immutable };
        to.gid_tbl_len = i32::try_from(from.gid_tbl_len)?;
        to.pkey_tbl_len = i32::try_from(from.pkey_tbl_len)?;
        to.core_cap_flags = match from.connections {
            Connections::RdmaCm => CORE_CAPS_IWARP,
            Connections::Program => bindings::RDMA_CORE_CAP_PROT_IWARP,
        };
        Ok(0)
    })
}

/// `ops.get_link_layer`. Without it `ib_core` derives the link layer from the node type.
///
/// # Safety
///
/// None: the arguments are not used.
pub(super) unsafe extern "C" fn get_link_layer(
    _device: *mut bindings::ib_device,
    _port: u32,
) -> bindings::rdma_link_layer {
    bindings::rdma_link_layer_IB_LINK_LAYER_ETHERNET
}

/// `ops.get_dev_fw_str`.
///
/// # Safety
///
/// As `ib_core` calls it: the device is registered or being registered, `text` has room for
/// `IB_FW_VERSION_NAME_MAX` octets.
pub(super) unsafe extern "C" fn get_dev_fw_str<T: Driver>(
    device: *mut bindings::ib_device,
    text: *mut c_char,
) {
    // SAFETY: `device_data` requires a device of `T` whose operations are set, and stay so:
    // `ib_core` calls this for such only, by this function's `# Safety`.
    let version = unsafe { device_data::<T::Device>(device) }.version();
    // CAST: A small constant.
    const SIZE: usize = bindings::IB_FW_VERSION_NAME_MAX as usize;
    // SAFETY: `from_raw_parts_mut` requires that many octets that nothing else uses: `ib_core`
    // provides them for this call, by this function's `# Safety`.
    let text = unsafe { core::slice::from_raw_parts_mut(text.cast::<u8>(), SIZE) };
    text.fill(0);
    for (to, from) in text.iter_mut().take(SIZE - 1).zip(version.bytes()) {
        *to = from;
    }
}

/// `ops.query_gid`.
///
/// # Safety
///
/// As `ib_core` calls it: the device is registered or being registered, `gid` is valid.
pub(super) unsafe extern "C" fn query_gid<T: Driver>(
    device: *mut bindings::ib_device,
    _port: u32,
    index: c_int,
    gid: *mut bindings::ib_gid,
) -> c_int {
    from_result(|| {
        let index = usize::try_from(index)?;
        // SAFETY: `device_data` requires a device of `T` whose operations are set, and stay so:
        // `ib_core` calls this for such only, by this function's `# Safety`.
        let from = unsafe { device_data::<T::Device>(device) }.query_gid(index)?;
        // SAFETY: A reference requires valid memory that nothing else uses: `gid` is, by this
        // function's `# Safety`.
        let gid = unsafe { &mut *gid };
        gid.raw = from.0;
        Ok(0)
    })
}

/// `ops.query_pkey`.
///
/// # Safety
///
/// As `ib_core` calls it: the device is registered or being registered, `pkey` is valid.
pub(super) unsafe extern "C" fn query_pkey<T: Driver>(
    device: *mut bindings::ib_device,
    _port: u32,
    index: u16,
    pkey: *mut u16,
) -> c_int {
    from_result(|| {
        // SAFETY: `device_data` requires a device of `T` whose operations are set, and stay so:
        // `ib_core` calls this for such only, by this function's `# Safety`.
        let from = unsafe { device_data::<T::Device>(device) }.query_pkey(index)?;
        // SAFETY: The write requires valid memory: `pkey` is, by this function's `# Safety`.
        unsafe { pkey.write(from) };
        Ok(0)
    })
}

/// `ops.get_netdev`.
///
/// # Safety
///
/// As `ib_core` calls it: the device is registered or being registered.
pub(super) unsafe extern "C" fn get_netdev<T: Driver>(
    device: *mut bindings::ib_device,
    _port: u32,
) -> *mut bindings::net_device {
    // SAFETY: `device_data` requires a device of `T` whose operations are set, and stay so:
    // `ib_core` calls this for such only, by this function's `# Safety`.
    match unsafe { device_data::<T::Device>(device) }.netdev() {
        // The caller owns the reference from here on.
        Some(netdev) => ManuallyDrop::new(netdev).as_raw(),
        None => core::ptr::null_mut(),
    }
}

/// `ops.alloc_hw_port_stats`.
///
/// # Safety
///
/// As `ib_core` calls it: the device is being registered.
pub(super) unsafe extern "C" fn alloc_hw_port_stats<T: Driver>(
    device: *mut bindings::ib_device,
    _port: u32,
) -> *mut bindings::rdma_hw_stats {
    // SAFETY: `device_counters` requires a device of `T` whose operations are set, and stay so:
    // `ib_core` calls this for such only, by this function's `# Safety`.
    let descs = unsafe { device_counters::<T::Device>(device) }.descs();
    let Ok(number) = c_int::try_from(descs.len()) else {
        return core::ptr::null_mut();
    };
    // SAFETY: `rdma_alloc_hw_stats_struct()` requires that many descriptions that stay while the
    // statistics are read: they belong to the driver part of the device, which `dealloc_driver`
    // empties, and by then the device is unregistered, so that nothing reads them.
    unsafe { bindings::rdma_alloc_hw_stats_struct(descs.as_ptr(), number, COUNTERS_LIFESPAN_MS) }
}

/// `ops.get_hw_stats`.
///
/// # Safety
///
/// As `ib_core` calls it: the device is registered, `stats` was made by [`alloc_hw_port_stats`] and
/// is locked.
pub(super) unsafe extern "C" fn get_hw_stats<T: Driver>(
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
    // SAFETY: The field is inside the allocation, since `stats` is valid.
    let values = unsafe { &raw mut (*stats).value };
    // SAFETY: `from_raw_parts_mut` requires that many entries that nothing else uses: the array
    // behind `stats` was made with `num_counters` entries, and is locked, by this function's `#
    // Safety`.
    let values = unsafe {
        core::slice::from_raw_parts_mut(values.cast::<u64>(), usize::try_from(number).unwrap_or(0))
    };
    // SAFETY: `device_data` requires a device of `T` whose operations are set, and stay so:
    // `ib_core` calls this for such only, by this function's `# Safety`.
    unsafe { device_data::<T::Device>(device) }.read_counters(values);
    number
}

/// `IB_ODP_SUPPORT` and `IB_ODP_SUPPORT_IMPLICIT`: for regions with an address range, and for all
/// memory as one region.
const ODP_SUPPORT: u64 = 1 << 0 | 1 << 1;

/// How long the counters that were read stay valid.
const COUNTERS_LIFESPAN_MS: usize = 10;

/// `RDMA_CORE_PORT_IWARP`, which is an expression in C.
const CORE_CAPS_IWARP: u32 = bindings::RDMA_CORE_CAP_PROT_IWARP | bindings::RDMA_CORE_CAP_IW_CM;
