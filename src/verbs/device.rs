// SPDX-License-Identifier: GPL-2.0

//! The device and its port, and what a registered device consists of.

use core::ops::Deref;

use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc, //
    }, //
};
use kernel_ext::{
    net::{
        NetDevice,
        NetdevType, //
    },
    rdma::{
        device::{
            IbDevice,
            IbDeviceName, //
        },
        ops::DeviceOps,
        types::{
            AtomicCap,
            Connections,
            DeviceAttr,
            DeviceCaps,
            Gid,
            KernelCaps,
            LinkSpeed,
            Mtu,
            OdpCaps,
            PhysState,
            PortAttr,
            PortImmutable,
            PortState, //
        }, //
    },
    workqueue::Enqueue, //
};

use crate::{
    cm::{
        conn::Cm,
        oob::ports::HeldPorts, //
    },
    device::{
        gid::GID_TABLE_LEN,
        Device,
        Parts,
        MAX_CQ,
        MAX_CQE,
        MAX_MR,
        MAX_MW,
        MAX_PD,
        MAX_QP,
        MAX_QP_WR,
        MAX_READ_SGE,
        MAX_SRQ,
        MAX_SRQ_WR,
        PORT, //
    },
    mem::{
        mr::registration::MAX_FAST_REG_PAGES,
        regions::Regions, //
    },
    qp::table::Qps,
    queue::waits::ReceiveWaits,
    verbs::ucontext::UContext, //
};

/// `IB_DEFAULT_PKEY_FULL` (`include/rdma/ib_verbs.h`); each octet is the same.
const DEFAULT_PKEY: u16 = 0xffff;
/// The length of the P_Key table. iWARP has no P_Keys, but programs for InfiniBand expect the
/// default one, and `rdma_cm` reads it when it resolves a loopback address (`cma_bind_loopback()`).
const PKEY_TABLE_LEN: u16 = 1;

/// All of a device: the [`Device`] and the tables of its objects.
///
/// `ib_core` holds it until the device is unregistered, the registry until it has removed the
/// device. Objects refer to the [`Device`] and to the tables that they need, not to this value.
/// They and the tables may live longer than it; each refers to the [`Device`], and the module is
/// not unloaded before that is gone ([`Refs`](crate::device::refs::Refs)).
pub(crate) struct RdmaDevice {
    pub(crate) device: Arc<Device>,
    pub(crate) regions: Arc<Regions>,
    pub(crate) qps: Arc<Qps>,
    pub(crate) cm: Arc<Cm>,
    /// The queue pairs of kernel consumers that wait for a receive.
    pub(crate) waits: Arc<ReceiveWaits>,
    /// It was unregistered.
    // ORDERING: Relaxed: queueing the work item orders it before a run that looks for it; for
    // others the old value is right, too.
    gone: Atomic<bool>,
    /// The object that has the work item for then.
    registry: Option<Arc<dyn Enqueue<DEVICE_GONE>>>,
}

/// The work item that looks for devices that were unregistered.
pub(crate) const DEVICE_GONE: u64 = 1;

impl Deref for RdmaDevice {
    type Target = Device;

    fn deref(&self) -> &Device {
        &self.device
    }
}

impl RdmaDevice {
    /// Makes a device without registering it. The work item of `registry` is queued when it was
    /// unregistered.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(
        parts: Parts,
        ports: Arc<HeldPorts>,
        registry: Option<Arc<dyn Enqueue<DEVICE_GONE>>>,
    ) -> Result<Arc<Self>> {
        let device = Device::new(parts)?;
        let qps = Qps::new(device.clone())?;
        let made = Self {
            regions: Regions::new(device.clone())?,
            cm: Cm::new(device.clone(), qps.clone(), ports)?,
            waits: ReceiveWaits::new(&device.queues, false)?,
            qps,
            device,
            gone: Atomic::new(false),
            registry,
        };
        Ok(Arc::new(made, GFP_KERNEL)?)
    }

    /// Returns whether it was unregistered, whatever caused that.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Relaxed)
    }

    /// Returns the list of the queue pairs that wait for a receive, for the caller of a verb.
    pub(crate) fn waits_of(&self, context: Option<&UContext>) -> Arc<ReceiveWaits> {
        context
            .map_or(&self.waits, |context| &context.waits)
            .clone()
    }

    /// Ends what remains after the last verb, and waits for it.
    ///
    /// Context: process, without rtnl, not from an item of the device's queues.
    pub(crate) fn shut_down(&self) {
        self.device.begin_shut_down();
        self.device.injector.clear();
        self.device.strict.end();
        self.cm.shut_down();
        self.waits.end();
        self.device.flush();
        // The tables drop their references later, and these hold the device.
        self.qps.flush();
        self.regions.flush();
    }
}

#[vtable]
impl DeviceOps for RdmaDevice {
    fn query(&self) -> DeviceAttr {
        let max_sge = self.abi().limits().sge;
        let mut device_caps = DeviceCaps::MEM_MGT_EXTENSIONS | DeviceCaps::PORT_ACTIVE_EVENT;
        let mut odp_caps = ODP_CAPS;
        let (mut max_mw, mut atomic_cap) = (0, AtomicCap::None);
        if self.abi().has_extensions() {
            device_caps |= DeviceCaps::MEM_WINDOW | DeviceCaps::MEM_WINDOW_TYPE_2B;
            device_caps |= DeviceCaps::SRQ_RESIZE;
            device_caps |= DeviceCaps::FLUSH_GLOBAL | DeviceCaps::ATOMIC_WRITE;
            // Elsewhere the kernel cannot write its caches back.
            if cfg!(CONFIG_ARCH_HAS_PMEM_API) {
                device_caps |= DeviceCaps::FLUSH_PERSISTENT;
            }
            max_mw = MAX_MW;
            atomic_cap = AtomicCap::Global;
            odp_caps |= OdpCaps::ATOMIC | OdpCaps::FLUSH | OdpCaps::ATOMIC_WRITE;
        }
        DeviceAttr {
            fw_ver: firmware_version(self.version()),
            vendor_id: VENDOR_ID,
            sys_image_guid: self.guid().octets(),
            max_mr_size: u64::MAX,
            page_size_cap: PAGE_SIZES,
            max_qp: MAX_QP,
            max_qp_wr: MAX_QP_WR,
            device_caps,
            kernel_caps: KernelCaps::ALLOW_USER_UNREG
                | KernelCaps::ON_DEMAND_PAGING
                | KernelCaps::SG_GAPS_REG,
            max_send_sge: max_sge,
            max_recv_sge: max_sge,
            max_sge_rd: MAX_READ_SGE,
            max_cq: MAX_CQ,
            max_cqe: MAX_CQE,
            max_mr: MAX_MR,
            max_pd: MAX_PD,
            max_qp_rd_atom: self.settings.ird_limit(),
            max_qp_init_rd_atom: self.settings.ord_limit(),
            max_res_rd_atom: MAX_QP.saturating_mul(self.settings.ird_limit()),
            atomic_cap,
            max_mw,
            max_srq: MAX_SRQ,
            max_srq_wr: MAX_SRQ_WR,
            max_srq_sge: max_sge,
            max_fast_reg_page_list_len: MAX_FAST_REG_PAGES,
            max_pkeys: PKEY_TABLE_LEN,
            odp_caps,
            ..DeviceAttr::default()
        }
    }

    fn query_port(&self, ib: &IbDevice) -> PortAttr {
        let mtu = self.netdev.mtu();
        let (state, phys_state) = if self.netdev.is_running() {
            (PortState::Active, PhysState::LinkUp)
        } else {
            (PortState::Down, PhysState::Disabled)
        };
        // An interface without a cable has no speed, and each query of it would be logged.
        let speed = match self.netdev.netdev_type() {
            NetdevType::Ethernet => ib.eth_speed(PORT).unwrap_or_default(),
            NetdevType::Loopback | NetdevType::None | NetdevType::Other(_) => LinkSpeed::default(),
        };
        PortAttr {
            state,
            phys_state,
            max_mtu: Mtu::Mtu4096,
            active_mtu: Mtu::from_octets(mtu),
            phys_mtu: mtu,
            gid_tbl_len: GID_TABLE_LEN,
            pkey_tbl_len: PKEY_TABLE_LEN.into(),
            max_msg_sz: u32::MAX,
            speed,
            port_cap_flags: match self.kind.connections() {
                Connections::RdmaCm => PORT_CM_SUP,
                Connections::Program => 0,
            },
        }
    }

    fn version(&self) -> &'static str {
        env!("RIWARP_VERSION")
    }

    fn port_immutable(&self) -> PortImmutable {
        PortImmutable {
            gid_tbl_len: GID_TABLE_LEN,
            pkey_tbl_len: PKEY_TABLE_LEN.into(),
            connections: self.kind.connections(),
        }
    }

    fn query_gid(&self, index: usize) -> Result<Gid> {
        self.gid(index)
    }

    fn query_pkey(&self, index: u16) -> Result<u16> {
        if index < PKEY_TABLE_LEN {
            Ok(DEFAULT_PKEY)
        } else {
            Err(EINVAL)
        }
    }

    fn netdev(&self) -> Option<NetDevice> {
        (!self.is_going()).then(|| self.netdev.clone())
    }

    fn read_counters(&self, values: &mut [u64]) {
        self.stats.read(values);
    }

    fn dealloc(self: Arc<Self>, name: &IbDeviceName) {
        self.shut_down();
        if self.is_registered() {
            pr_info!("{}: device removed\n", name);
        }
        self.gone.store(true, Relaxed);
        if let Some(registry) = &self.registry {
            registry.as_arc_borrow().enqueue_on(&self.queues.reaper);
        }
    }
}

/// Returns a version in the form that librxe and libsiw expect: 16 bits for each of the three
/// numbers.
fn firmware_version(text: &str) -> u64 {
    text.split('.').fold(0, |version, number| {
        (version << 16) | u64::from(number.parse::<u16>().unwrap_or(0))
    })
}

/// Programs expect a vendor id. This one is unassigned: "riW", a locally administered OUI.
const VENDOR_ID: u32 = 0x72_6957;
/// Operations that every process can use with memory paged on demand.
const ODP_CAPS: OdpCaps = OdpCaps::SEND
    .union(OdpCaps::RECV)
    .union(OdpCaps::WRITE)
    .union(OdpCaps::READ)
    .union(OdpCaps::SRQ_RECV);
/// `IB_PORT_CM_SUP`: a connection manager makes connections.
const PORT_CM_SUP: u32 = 1 << 16;
/// 4 KiB and all larger powers of two.
const PAGE_SIZES: u64 = !0xfff;

#[kernel::prelude::kunit_tests(riwarp_version)]
mod tests {
    use super::*;

    #[test]
    fn firmware_version_has_three_16_bit_numbers() {
        assert_eq!(firmware_version("0.9.0"), 0x9_0000);
        assert_eq!(firmware_version("1.2.65535"), 0x1_0002_ffff);
    }
}
