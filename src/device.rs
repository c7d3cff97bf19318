// SPDX-License-Identifier: GPL-2.0

//! The device: one network interface seen through RDMA verbs.
//!
//! What enters: the questions of `ib_core` about what the device can do and how its port is, and
//! what happens to the interface. What leaves: true answers, and events of the port. The device also
//! holds what its objects share: the tables of regions and queue pairs, the settings, the counters.
//!
//! Its life: made by `registry`, ended by whoever unregisters it. [`Device::shut_down`] runs when the
//! last verb is over; it ends what is left of the connections and waits for everything that still
//! refers to the device from a queue, so that the references to the interface go soon after.
//!
//! Context: process, unless a function says otherwise.

use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Relaxed,
            Release, //
        },
        Arc, //
    }, //
};
use kernel_ext::{
    net::{
        LinkType,
        NetDevice,
        NetId,
        NetRef,
        NetdevEvent, //
    },
    random,
    rcu_map::{
        Order,
        RcuMap, //
    },
    rdma::{
        device::{
            DeviceLink,
            IbDevice, //
        },
        types::{
            AtomicCap,
            DeviceAttr,
            DeviceCaps,
            Gid,
            KernelCaps,
            LinkSpeed,
            Mtu,
            OdpCaps,
            PhysState,
            PortAttr,
            PortEvent,
            PortImmutable,
            PortState, //
        }, //
    },
};

use crate::{
    abi::Abi,
    conn::Conns,
    context::PdId,
    gid::{
        GidTable,
        GID_TABLE_LEN, //
    },
    mr::{
        Region,
        MAX_FAST_REG_PAGES, //
    },
    pairing::Pairings,
    qp::Qp,
    queues::{
        PagingQueue,
        Queues, //
    },
    registry::Ticket,
    settings::Settings,
    stag,
    stats::Stats, //
};

/// The only port.
pub(crate) const PORT: u32 = 1;
/// Most queue pairs of a device.
pub(crate) const MAX_QP: u32 = 1 << 16;
/// Most entries of a send or receive queue.
pub(crate) const MAX_QP_WR: u32 = (1 << 15) - 1;
/// Most completion queues.
pub(crate) const MAX_CQ: u32 = 1 << 16;
/// Most entries of a completion queue.
pub(crate) const MAX_CQE: u32 = (1 << 20) - 1;
/// Most shared receive queues.
pub(crate) const MAX_SRQ: u32 = 1 << 16;
/// Most entries of a shared receive queue.
pub(crate) const MAX_SRQ_WR: u32 = (1 << 17) - 1;
/// Most memory regions.
pub(crate) const MAX_MR: u32 = 1 << 20;
/// Most memory windows.
pub(crate) const MAX_MW: u32 = 1 << 20;
/// Most protection domains.
pub(crate) const MAX_PD: u32 = 1 << 16;
/// Most RDMA Reads that a peer may have outstanding on a queue pair.
pub(crate) const MAX_IRD: u32 = 128;
/// Most RDMA Reads that a queue pair may have outstanding.
pub(crate) const MAX_ORD: u32 = 128;
/// Elements of the sink of an RDMA Read: the request names one buffer (RFC 5040, section 4.4).
pub(crate) const MAX_READ_SGE: u32 = 1;

/// What there is a limited number of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resource {
    /// Completion queues.
    Cq,
    /// Memory regions.
    Mr,
    /// Memory windows.
    Mw,
    /// Protection domains.
    Pd,
    /// Queue pairs.
    Qp,
    /// Shared receive queues.
    Srq,
}

impl Resource {
    const COUNT: usize = 6;

    fn limit(self) -> u32 {
        match self {
            Self::Cq => MAX_CQ,
            Self::Mr => MAX_MR,
            Self::Mw => MAX_MW,
            Self::Pd => MAX_PD,
            Self::Qp => MAX_QP,
            Self::Srq => MAX_SRQ,
        }
    }

    fn index(self) -> usize {
        match self {
            Self::Cq => 0,
            Self::Mr => 1,
            Self::Pd => 2,
            Self::Qp => 3,
            Self::Srq => 4,
            Self::Mw => 5,
        }
    }
}

/// One of a limited number; dropping it gives it back.
pub(crate) struct Reservation {
    device: Arc<Device>,
    resource: Resource,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if let Some(used) = self.device.used.get(self.resource.index()) {
            used.fetch_sub(1, Relaxed);
        }
    }
}

/// What a new device starts from.
pub(crate) struct Parts {
    pub(crate) abi: Abi,
    pub(crate) netdev: NetDevice,
    pub(crate) guid: Guid,
    pub(crate) link: DeviceLink,
    pub(crate) settings: Settings,
    pub(crate) queues: Arc<Queues>,
    pub(crate) ticket: Ticket,
}

/// A device.
#[pin_data]
pub(crate) struct Device {
    /// The library that serves its processes.
    pub(crate) abi: Abi,
    /// The interface below.
    pub(crate) netdev: NetDevice,
    /// The namespace that the interface had when the device was made. Sockets are there.
    pub(crate) home: NetId,
    /// From an STag's index to its region.
    #[pin]
    pub(crate) regions: RcuMap<Region>,
    /// From a number to its queue pair.
    #[pin]
    pub(crate) qps: RcuMap<Qp>,
    /// All connections.
    #[pin]
    pub(crate) conns: Conns,
    /// Queue pairs that wait for a connection without `rdma_cm`.
    #[pin]
    pub(crate) pairings: Pairings,
    #[pin]
    gids: GidTable,
    pub(crate) settings: Settings,
    pub(crate) stats: Stats,
    guid: Guid,
    link: DeviceLink,
    /// How many of each [`Resource`] are in use.
    used: [Atomic<u32>; Resource::COUNT],
    /// How many protection domains there ever were.
    pds: Atomic<u64>,
    /// It is in service: its registration is complete.
    registered: Atomic<bool>,
    /// No verb runs any more; the interface is not to be given out.
    going: Atomic<bool>,
    /// The state of the port that was reported last.
    active: Atomic<bool>,
    pub(crate) queues: Arc<Queues>,
    /// Its own, since what waits there may wait for ever.
    pub(crate) paging: PagingQueue,
    /// Dropped last: tells the module that nothing of this device is left.
    _ticket: Ticket,
}

impl Device {
    /// Makes a device that is not registered yet.
    pub(crate) fn new(parts: Parts) -> Result<Arc<Self>> {
        let active = parts.netdev.is_running();
        Arc::try_pin_init(
            try_pin_init!(Self {
                abi: parts.abi,
                home: parts.netdev.net_id(),
                netdev: parts.netdev,
                regions <- RcuMap::new(stag::INDICES, Order::Scattered),
                // Number 0 and 1 are special in other RDMA networks.
                qps <- RcuMap::new(2..1 << 24, Order::Rising(16)),
                conns <- Conns::new(),
                pairings <- Pairings::new(),
                gids <- GidTable::new(),
                settings: parts.settings,
                stats: Stats::new()?,
                guid: parts.guid,
                link: parts.link,
                used: [const { Atomic::new(0) }; Resource::COUNT],
                pds: Atomic::new(0),
                registered: Atomic::new(false),
                going: Atomic::new(false),
                active: Atomic::new(active),
                paging: PagingQueue::new(&parts.queues)?,
                queues: parts.queues,
                _ticket: parts.ticket,
            }? Error),
            GFP_KERNEL,
        )
    }

    /// The network namespace of the interface, for the time of a call: it is not to be kept.
    ///
    /// # Errors
    ///
    /// `ENODEV` if the namespace is about to go, or the interface has left it.
    pub(crate) fn net(&self) -> Result<NetRef> {
        let net = self.netdev.net().filter(|net| net.id() == self.home);
        net.ok_or(ENODEV)
    }

    /// Takes one of a limited number.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if all are in use.
    pub(crate) fn reserve(self: &Arc<Self>, resource: Resource) -> Result<Reservation> {
        let used = self.used.get(resource.index()).ok_or(EINVAL)?;
        let mut seen = used.load(Relaxed);
        loop {
            if seen >= resource.limit() {
                return Err(ENOMEM);
            }
            match used.cmpxchg(seen, seen + 1, Relaxed) {
                Ok(_) => break,
                Err(now) => seen = now,
            }
        }
        Ok(Reservation {
            device: self.clone(),
            resource,
        })
    }

    /// A number that no protection domain of this device ever had.
    pub(crate) fn next_pd_id(&self) -> PdId {
        PdId::new(self.pds.fetch_add(1, Relaxed))
    }

    /// Says that the registration is complete.
    pub(crate) fn set_registered(&self) {
        self.registered.store(true, Relaxed);
    }

    /// Whether the registration is complete. Before, consumers are being told of the device.
    pub(crate) fn is_registered(&self) -> bool {
        self.registered.load(Relaxed)
    }

    /// Whether the device is being taken down; nothing new is to begin.
    ///
    /// Context: any.
    pub(crate) fn is_going(&self) -> bool {
        // ORDERING: Pairs with the release in `shut_down`.
        self.going.load(Acquire)
    }

    /// Ends what is left after the last verb, and waits for it.
    ///
    /// Context: process, without rtnl, not from an item of the device's queues.
    pub(crate) fn shut_down(&self) {
        self.going.store(true, Release);
        self.conns.shut_down();
        // Steps of queue pairs that waited for their peer.
        self.queues.conn.flush();
        // Those that bring memory in, which have hold of the process's and of this device.
        self.paging.flush();
        // Transmitters that were still waiting for their turn find their queue pair gone.
        self.queues.tx.flush();
        // The tables drop their references later, and from these hangs the device.
        self.qps.flush();
        self.regions.flush();
    }

    /// What the device can do.
    pub(crate) fn attributes(&self) -> DeviceAttr {
        let max_sge = self.abi.limits().sge;
        let mut device_caps = DeviceCaps::MEM_MGT_EXTENSIONS | DeviceCaps::PORT_ACTIVE_EVENT;
        let mut odp_caps = ODP_CAPS;
        let (mut max_mw, mut atomic_cap) = (0, AtomicCap::None);
        if self.abi.has_extensions() {
            device_caps |= DeviceCaps::MEM_WINDOW | DeviceCaps::MEM_WINDOW_TYPE_2B;
            device_caps |= DeviceCaps::SRQ_RESIZE;
            max_mw = MAX_MW;
            atomic_cap = AtomicCap::Global;
            odp_caps |= OdpCaps::ATOMIC;
        }
        DeviceAttr {
            vendor_id: VENDOR_ID,
            sys_image_guid: self.guid.octets(),
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
            max_qp_rd_atom: MAX_IRD,
            max_qp_init_rd_atom: MAX_ORD,
            max_res_rd_atom: MAX_QP.saturating_mul(MAX_IRD),
            atomic_cap,
            max_mw,
            max_srq: MAX_SRQ,
            max_srq_wr: MAX_SRQ_WR,
            max_srq_sge: max_sge,
            max_fast_reg_page_list_len: MAX_FAST_REG_PAGES,
            odp_caps,
            ..DeviceAttr::default()
        }
    }

    /// How the port is.
    pub(crate) fn port(&self, ib: &IbDevice) -> PortAttr {
        let mtu = self.netdev.mtu();
        let (state, phys_state) = if self.netdev.is_running() {
            (PortState::Active, PhysState::LinkUp)
        } else {
            (PortState::Down, PhysState::Disabled)
        };
        // An interface without a cable has no speed, and asking would be logged each time.
        let speed = match self.netdev.link_type() {
            LinkType::Ethernet => ib.eth_speed(PORT).unwrap_or_default(),
            LinkType::Loopback | LinkType::None | LinkType::Other(_) => LinkSpeed::default(),
        };
        PortAttr {
            state,
            phys_state,
            max_mtu: Mtu::Mtu4096,
            active_mtu: Mtu::from_octets(mtu),
            phys_mtu: mtu,
            gid_tbl_len: GID_TABLE_LEN,
            max_msg_sz: u32::MAX,
            speed,
            port_cap_flags: PORT_CM_SUP,
        }
    }

    /// What never changes about the port.
    pub(crate) fn port_immutable(&self) -> PortImmutable {
        PortImmutable {
            gid_tbl_len: GID_TABLE_LEN,
            pkey_tbl_len: 0,
        }
    }

    /// An entry of the GID table.
    ///
    /// # Errors
    ///
    /// `EINVAL` beyond the end of the table.
    pub(crate) fn gid(&self, index: usize) -> Result<Gid> {
        self.gids.get(&self.netdev, self.guid, index)
    }

    /// The interface, as long as the device is in service.
    pub(crate) fn netdev_in_service(&self) -> Option<NetDevice> {
        (!self.is_going()).then(|| self.netdev.clone())
    }

    /// Passes on what happened to the interface. It is `registry` that sees to its end.
    ///
    /// Context: any.
    pub(crate) fn netdev_event(&self, event: NetdevEvent) {
        match event {
            NetdevEvent::Up | NetdevEvent::Down | NetdevEvent::Change => self.report_state(),
            NetdevEvent::ChangeAddr => self.link.event(PortEvent::GidChange, PORT),
            NetdevEvent::ChangeMtu
            | NetdevEvent::ChangeName
            | NetdevEvent::GoingDown
            | NetdevEvent::Reboot
            | NetdevEvent::Register
            | NetdevEvent::Unregister
            | NetdevEvent::Other(_) => {}
        }
    }

    /// The addresses of the interface changed.
    ///
    /// Context: any.
    pub(crate) fn addr_event(&self) {
        self.link.event(PortEvent::GidChange, PORT);
    }

    /// Reports the state of the port if it is another than the one reported last.
    fn report_state(&self) {
        let active = self.netdev.is_running();
        if self.active.xchg(active, Relaxed) == active {
            return;
        }
        let event = if active {
            PortEvent::PortActive
        } else {
            PortEvent::PortError
        };
        self.link.event(event, PORT);
    }
}

/// A number that identifies the device among others, in the form of an EUI-64.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Guid([u8; 8]);

impl Guid {
    /// Makes it from the hardware address of an interface, or at random if that has none.
    pub(crate) fn of(netdev: &NetDevice) -> Self {
        Self::from_hw_addr(netdev).unwrap_or_else(|| {
            // Neither for a group nor universal: nobody else's (RFC 4291, appendix A).
            let [first, rest @ ..] = random::octets::<8>();
            let [b, c, d, e, f, g, h] = rest;
            Self([first & !3, b, c, d, e, f, g, h])
        })
    }

    /// Makes it from the hardware address that an interface has now.
    pub(crate) fn from_hw_addr(netdev: &NetDevice) -> Option<Self> {
        let addr = netdev.hw_addr();
        match *addr.as_bytes() {
            [0, 0, 0, 0, 0, 0] => None,
            // The universal/local bit is inverted in an EUI-64 (RFC 4291, appendix A).
            [a, b, c, d, e, f] => Some(Self([a ^ 2, b, c, 0xff, 0xfe, d, e, f])),
            _ => None,
        }
    }

    /// The octets in network order.
    pub(crate) fn octets(self) -> [u8; 8] {
        self.0
    }

    /// A GID made of nothing else.
    pub(crate) fn link_local(self) -> Gid {
        let mut gid = [0; 16];
        if let Some((prefix, interface)) = gid.split_first_chunk_mut::<8>() {
            *prefix = [0xfe, 0x80, 0, 0, 0, 0, 0, 0];
            interface.copy_from_slice(&self.0);
        }
        Gid(gid)
    }
}

/// Whether a device can be made on an interface: it must be of one of the kinds below, which carry IP.
pub(crate) fn is_suitable(netdev: &NetDevice) -> bool {
    match netdev.link_type() {
        LinkType::Ethernet | LinkType::Loopback | LinkType::None => true,
        LinkType::Other(kind) => IP_LINKS.contains(&kind),
    }
}

/// More kinds of interfaces that carry IP (`include/uapi/linux/if_arp.h`): IEEE 802 networks, and
/// tunnels over IPv4, over IPv6, from IPv6 to IPv4, and GRE over both.
const IP_LINKS: [u16; 6] = [6, 768, 769, 776, 778, 823];
/// Programs want one. This is nobody's: "riW", which as an OUI is locally administered.
const VENDOR_ID: u32 = 0x72_6957;
/// What every process can do with memory that is paged on demand.
const ODP_CAPS: OdpCaps = OdpCaps::SEND
    .union(OdpCaps::RECV)
    .union(OdpCaps::WRITE)
    .union(OdpCaps::READ)
    .union(OdpCaps::SRQ_RECV);
/// `IB_PORT_CM_SUP`: connections are made by a connection manager.
const PORT_CM_SUP: u32 = 1 << 16;
/// Pages of 4 KiB and any larger power of two.
const PAGE_SIZES: u64 = !0xfff;

#[kernel::prelude::kunit_tests(riwarp_device)]
mod tests {
    use super::*;
    use crate::{
        bench::Bench,
        context::Pd,
        mr::{
            Mr,
            Mw, //
        }, //
    };
    use kernel_ext::{
        mm::place::Shape,
        rdma::{
            bench::kernel_owned,
            types::MwType, //
        }, //
    };

    #[test]
    fn every_resource_has_a_count_of_its_own() {
        let mut seen = 0;
        for resource in ALL {
            assert!(resource.index() < Resource::COUNT && resource.limit() > 0);
            seen |= 1 << resource.index();
        }
        assert_eq!(seen, (1 << Resource::COUNT) - 1);
    }

    #[test]
    fn an_identifier_makes_a_link_local_gid() {
        let guid = Guid([1, 2, 3, 4, 5, 6, 7, 8]);
        let gid = guid.link_local();
        assert_eq!(gid.0[..8], [0xfe, 0x80, 0, 0, 0, 0, 0, 0]);
        assert_eq!(gid.0[8..], guid.octets());
    }

    const ALL: [Resource; Resource::COUNT] = [
        Resource::Cq,
        Resource::Mr,
        Resource::Mw,
        Resource::Pd,
        Resource::Qp,
        Resource::Srq,
    ];

    #[test]
    fn the_last_of_each_resource_is_given_out_once() -> Result {
        let device = Bench::new()?.device.clone();
        for resource in ALL {
            let used = device.used.get(resource.index()).ok_or(EINVAL)?;
            let before = used.load(Relaxed);
            used.store(resource.limit() - 1, Relaxed);
            let last = device.reserve(resource)?;
            assert_eq!(device.reserve(resource).err(), Some(ENOMEM));
            drop(last);
            drop(device.reserve(resource)?);
            assert_eq!(used.load(Relaxed), resource.limit() - 1);
            used.store(before, Relaxed);
        }
        Ok(())
    }

    /// Nothing is made that the device has no more of (RFC 5040, section 8.1.2; RDMAP-172).
    #[test]
    fn nothing_is_made_beyond_its_limit() -> Result {
        let bench = Bench::new()?;
        let (device, pd, cq) = (&bench.device, bench.pd.as_arc_borrow(), bench.cq(1)?);
        for resource in ALL {
            let used = device.used.get(resource.index()).ok_or(EINVAL)?;
            let before = used.load(Relaxed);
            used.store(resource.limit(), Relaxed);
            let made = match resource {
                Resource::Cq => bench.cq(1).map(drop),
                Resource::Mr => Mr::fast_reg(pd, kernel_owned(), Shape::Pages, 1).map(drop),
                Resource::Mw => Mw::alloc(pd, MwType::Two).map(drop),
                Resource::Pd => Pd::alloc(device.as_arc_borrow()).map(drop),
                Resource::Qp => bench.qp(1, &cq).map(Qp::destroy),
                Resource::Srq => bench.srq(1, 0).map(drop),
            };
            used.store(before, Relaxed);
            assert_eq!(made, Err(ENOMEM));
        }
        Ok(())
    }
}
