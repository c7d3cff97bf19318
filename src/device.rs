// SPDX-License-Identifier: GPL-2.0

//! The device: one network interface seen through RDMA verbs.
//!
//! It holds what its objects share: the interface, the settings, the counters, the work queues. It
//! takes events of the interface and reports events of the port to `ib_core`.
//!
//! It knows no type of its objects. The tables of these (`mem`, `qp`, `cm`) refer to it, and so do
//! the objects; it refers to none of them, so it is freed last. `verbs` puts device and tables
//! together, answers queries about them, and ends what remains after the last verb; `registry`
//! makes and removes devices.
//!
//! Context: process, unless a function says otherwise.

use iwarp::lifecycle::Lifecycle;
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
        NetDevice,
        NetId,
        NetRef,
        NetdevEvent,
        NetdevType, //
    },
    ratelimit::RateLimit,
    rdma::{
        device::DeviceLink,
        ops::{
            OptionalOps,
            Provider,
            WriteCommands, //
        },
        types::{
            Connections,
            Gid,
            NodeType,
            PortEvent, //
        },
        wr::WcStatus, //
    },
    warn_on_once, //
};

use crate::{
    device::{
        gid::{
            GidTable,
            Guid, //
        },
        inject::Injector,
        paging::Paging,
        queues::Queues,
        refs::Ref,
        settings::{
            Settings,
            MAX_DEPTH, //
        },
        stats::Stats,
        strict::Strictness,
        tls::TlsSettings, //
    }, //
};

pub(crate) mod gid;
pub(crate) mod inject;
pub(crate) mod log;
pub(crate) mod paging;
pub(crate) mod queues;
pub(crate) mod refs;
pub(crate) mod settings;
pub(crate) mod stats;
pub(crate) mod strict;
pub(crate) mod tls;

/// The number of the only port.
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
// CAST: it becomes wider.
const _: () = assert!(MAX_IRD == MAX_DEPTH as u32 && MAX_ORD == MAX_IRD);
/// Maximum elements in the sink of an RDMA Read: the request names one buffer (RFC 5040, section
/// 4.4).
pub(crate) const MAX_READ_SGE: u32 = 1;

/// What a link type makes: the library that serves the processes of a device, what the device says
/// it is, and who connects its queue pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeviceKind {
    /// An iWARP device for librxe.
    Rxe,
    /// An iWARP device for libsiw.
    Siw,
    /// A device for librxe and for programs that take InfiniBand only. Their queue pairs are
    /// connected without `rdma_cm`, which would need iWARP's node type.
    Ib,
}

impl DeviceKind {
    /// Returns the name of the link type.
    pub(crate) const fn link_type(self) -> &'static CStr {
        match self {
            Self::Rxe => c"riwarp",
            Self::Siw => c"riwarp_siw",
            Self::Ib => c"riwarp_ib",
        }
    }

    /// Returns the library that serves the processes.
    pub(crate) fn abi(self) -> Abi {
        match self {
            Self::Rxe | Self::Ib => Abi::Rxe,
            Self::Siw => Abi::Siw,
        }
    }

    /// Returns what the device says it is.
    pub(crate) fn node_type(self) -> NodeType {
        match self {
            Self::Rxe | Self::Siw => NodeType::Rnic,
            Self::Ib => NodeType::ChannelAdapter,
        }
    }

    /// Returns the state of a new queue pair, which programs expect of such a device.
    pub(crate) fn new_queue_pair(self) -> Lifecycle {
        match self {
            Self::Rxe | Self::Siw => Lifecycle::NEW,
            Self::Ib => Lifecycle::RESET,
        }
    }

    /// Returns whether its specification wants a receive to be posted before its message arrives.
    pub(crate) fn posts_receives_first(self) -> bool {
        match self {
            Self::Rxe | Self::Siw => true,
            Self::Ib => false,
        }
    }

    /// Returns what is confirmed on a stream that may have `ord` Reads outstanding, with or without
    /// Sends ([`Settings::confirm_sends`]).
    pub(crate) fn confirmed(self, ord: u16, sends: bool) -> Confirmed {
        match (self, sends) {
            // It takes a Read to learn that the peer has the data.
            _ if ord == 0 => Confirmed::None,
            (Self::Ib, true) => Confirmed::Both,
            (Self::Ib, false) => Confirmed::Writes,
            (Self::Rxe | Self::Siw, true) => Confirmed::Sends,
            (Self::Rxe | Self::Siw, false) => Confirmed::None,
        }
    }

    /// Returns how many Reads an out-of-band connect asks for, where the program has set `wanted`
    /// and the device allows `limit`. Where Writes need Reads, the program's number is not enough.
    pub(crate) fn read_depth(self, wanted: u8, limit: u32) -> u16 {
        match self {
            Self::Rxe | Self::Siw => wanted.into(),
            Self::Ib => u16::try_from(limit).unwrap_or(u16::MAX),
        }
    }

    /// Returns who connects the queue pairs.
    pub(crate) fn connections(self) -> Connections {
        match self {
            Self::Rxe | Self::Siw => Connections::RdmaCm,
            Self::Ib => Connections::Program,
        }
    }
}

/// The library that serves the processes of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Abi {
    /// librxe: all operations; each post is a system call.
    Rxe,
    /// libsiw: Send, Write and Read.
    Siw,
}

/// Which signalled requests a Read of no octets behind them completes: then the peer has placed a
/// Write, as on InfiniBand, or taken a Send or Immediate Data. The others are complete when TCP has
/// accepted them, as iWARP has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Confirmed {
    None,
    Writes,
    Sends,
    Both,
}

impl Confirmed {
    /// Returns whether Writes are.
    pub(crate) fn writes(self) -> bool {
        matches!(self, Self::Writes | Self::Both)
    }

    /// Returns whether Sends and Immediate Data are.
    pub(crate) fn sends(self) -> bool {
        matches!(self, Self::Sends | Self::Both)
    }
}

/// When a library rings the doorbell of a send queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doorbells {
    /// For each post: delaying a send saves sends only.
    Each,
    /// Unless earlier requests are pending: delaying a send saves doorbells too.
    WhenIdle,
}

impl Abi {
    /// Returns when the library rings after it has posted to a send queue.
    pub(crate) fn doorbells(self) -> Doorbells {
        match self {
            Self::Rxe => Doorbells::Each,
            Self::Siw => Doorbells::WhenIdle,
        }
    }

    /// Returns whether the library has a number for the status.
    pub(crate) fn reports(self, status: WcStatus) -> bool {
        match self {
            Self::Rxe => true,
            Self::Siw => matches!(
                status,
                WcStatus::Success
                    | WcStatus::LocalLength
                    | WcStatus::LocalProtection
                    | WcStatus::LocalQpOperation
                    | WcStatus::Flushed
                    | WcStatus::BadResponse
                    | WcStatus::LocalAccess
                    | WcStatus::RemoteAccess
                    | WcStatus::RemoteInvalidRequest
                    | WcStatus::General
            ),
        }
    }

    /// Returns what the library expects of a device. Both post by a call of `post_send` without a
    /// list, the doorbell; librxe arms completion queues by a call too.
    ///
    /// The numbers are those of `enum rdma_driver_id` (`include/uapi/rdma/ib_user_ioctl_verbs.h`),
    /// and `RXE_UVERBS_ABI_VERSION` and `SIW_ABI_VERSION` of the kernel's drivers.
    pub(crate) fn provider(self) -> Provider {
        match self {
            Self::Rxe => Provider {
                driver_id: 14,
                abi_version: 2,
                commands: WriteCommands::POST_SEND | WriteCommands::REQ_NOTIFY_CQ,
                optional: OptionalOps::MEMORY_WINDOWS | OptionalOps::RESIZE_CQ,
            },
            Self::Siw => Provider {
                driver_id: 18,
                abi_version: 1,
                commands: WriteCommands::POST_SEND,
                optional: OptionalOps::empty(),
            },
        }
    }

    /// Returns whether the library can post atomic operations and Immediate Data, and report the
    /// latter.
    pub(crate) fn has_extensions(self) -> bool {
        match self {
            Self::Rxe => true,
            Self::Siw => false,
        }
    }
}

/// A kind of object of which a device has a limited number.
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

/// One object counted against a limit; dropping it lowers the count.
pub(crate) struct Reservation {
    device: Arc<Device>,
    resource: Resource,
}

impl Reservation {
    /// Returns the device.
    pub(crate) fn device(&self) -> &Device {
        &self.device
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if let Some(used) = self.device.used.get(self.resource.index()) {
            // `reserve` has counted this one.
            warn_on_once!(used.fetch_sub(1, Relaxed) == 0);
        }
    }
}

/// The arguments of [`Device::new`].
pub(crate) struct Parts {
    pub(crate) kind: DeviceKind,
    /// The network namespace of the device.
    pub(crate) namespace: NetId,
    pub(crate) netdev: NetDevice,
    pub(crate) guid: Guid,
    pub(crate) link: DeviceLink,
    pub(crate) settings: Settings,
    pub(crate) tls: Arc<TlsSettings>,
    pub(crate) queues: Arc<Queues>,
    pub(crate) log_limit: Arc<RateLimit>,
    pub(crate) device_ref: Ref,
}

/// A device.
#[pin_data]
pub(crate) struct Device {
    /// What its link type has made of it.
    pub(crate) kind: DeviceKind,
    /// The network interface below.
    pub(crate) netdev: NetDevice,
    /// The network namespace in which the device was made; all sockets are in it.
    pub(crate) namespace: NetId,
    #[pin]
    gids: GidTable,
    pub(crate) settings: Settings,
    #[pin]
    pub(crate) injector: Injector,
    #[pin]
    pub(crate) strict: Strictness,
    pub(crate) tls: Arc<TlsSettings>,
    pub(crate) stats: Stats,
    guid: Guid,
    link: DeviceLink,
    /// How many of each [`Resource`] are in use.
    // ORDERING: Relaxed: a count stands for no other memory, and the exchange keeps the limit.
    used: [Atomic<u32>; Resource::COUNT],
    /// The registration is complete.
    // ORDERING: Relaxed: for logs and for the origin of listeners, for which the old value is
    // right, too.
    registered: Atomic<bool>,
    /// The device is being shut down: no verb runs any more, and the interface must not be handed
    /// out.
    going: Atomic<bool>,
    /// The port state reported last, at first that of [`Device::note_state`].
    active: Atomic<bool>,
    pub(crate) queues: Arc<Queues>,
    /// Limits what is logged, for all devices.
    log_limit: Arc<RateLimit>,
    pub(crate) paging: Arc<Paging>,
    /// Dropped last: tells the module that this device is freed.
    _device_ref: Ref,
}

impl Device {
    /// Returns the library that serves its processes.
    #[inline]
    pub(crate) fn abi(&self) -> Abi {
        self.kind.abi()
    }

    /// Makes a device without registering it.
    pub(crate) fn new(parts: Parts) -> Result<Arc<Self>> {
        Arc::try_pin_init(
            try_pin_init!(Self {
                kind: parts.kind,
                namespace: parts.namespace,
                netdev: parts.netdev,
                gids <- GidTable::new(),
                settings: parts.settings,
                injector <- Injector::new(),
                strict <- Strictness::new(),
                tls: parts.tls,
                stats: Stats::new()?,
                guid: parts.guid,
                link: parts.link,
                used: [const { Atomic::new(0) }; Resource::COUNT],
                registered: Atomic::new(false),
                going: Atomic::new(false),
                active: Atomic::new(false),
                paging: Paging::new()?,
                queues: parts.queues,
                log_limit: parts.log_limit,
                _device_ref: parts.device_ref,
            }? Error),
            GFP_KERNEL,
        )
    }

    /// Returns the network namespace of the interface, to be used for one call and not kept.
    ///
    /// # Errors
    ///
    /// `ENODEV` if the namespace is ending, or the interface has left it.
    pub(crate) fn net(&self) -> Result<NetRef> {
        let net = self.netdev.net().filter(|net| net.id() == self.namespace);
        net.ok_or(ENODEV)
    }

    /// Returns whether the interface is a loopback interface.
    pub(crate) fn is_on_loopback(&self) -> bool {
        self.netdev.netdev_type() == NetdevType::Loopback
    }

    /// Reserves one object of a limited kind.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if the limit is reached.
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

    /// Marks the registration as complete.
    pub(crate) fn set_registered(&self) {
        self.registered.store(true, Relaxed);
    }

    /// Returns whether the registration is complete. Before that, `ib_core` is still announcing the
    /// device to its clients.
    pub(crate) fn is_registered(&self) -> bool {
        self.registered.load(Relaxed)
    }

    /// Returns whether `ib_core` may be announcing the device to its clients: it is new, or moves
    /// to another namespace of RDMA devices. Context: any.
    pub(crate) fn is_being_announced(&self) -> bool {
        !self.is_registered() || self.link.is_moving()
    }

    /// Returns whether the device is being shut down; then nothing new may begin.
    ///
    /// Context: any.
    pub(crate) fn is_going(&self) -> bool {
        // ORDERING: Pairs with the release in `begin_shut_down`.
        self.going.load(Acquire)
    }

    /// Begins the end: nothing new may begin.
    pub(crate) fn begin_shut_down(&self) {
        // ORDERING: pairs with `is_going`. Who takes a port looks under the lock of `OobWaiters`,
        // which is taken after this to release the ports; so either it sees this, or its port is
        // released.
        self.going.store(true, Release);
    }

    /// Waits for all queued work.
    ///
    /// Context: process, without rtnl, not from an item of the device's queues.
    pub(crate) fn flush(&self) {
        // Work items of queue pairs that waited for their peer.
        self.queues.stream.flush();
        // Paging items, which hold the process's memory and this device.
        self.paging.flush();
        // Transmit tasks still queued find their queue pair gone.
        self.queues.flush_tx();
    }

    /// Returns the identifier of the device.
    pub(crate) fn guid(&self) -> Guid {
        self.guid
    }

    /// Returns an entry of the GID table.
    ///
    /// # Errors
    ///
    /// `EINVAL` beyond the end of the table.
    pub(crate) fn gid(&self, index: usize) -> Result<Gid> {
        self.gids.get(&self.netdev, self.guid, index)
    }

    /// Reports an event of the interface to `ib_core`. `registry` handles the removal of the
    /// interface.
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

    /// Raises an event of the port or the device; nothing else changes.
    ///
    /// Context: any.
    pub(crate) fn raise(&self, event: PortEvent) {
        self.link.event(event, PORT);
    }

    /// Removes the device, as when its interface goes; returns before that is done.
    ///
    /// Context: any.
    pub(crate) fn remove(&self) {
        self.link.unregister();
    }

    /// Reports that the addresses of the interface changed.
    ///
    /// Context: any.
    pub(crate) fn addr_event(&self) {
        self.link.event(PortEvent::GidChange, PORT);
    }

    /// Takes the current state of the port for the one reported last: `ib_core` reads it when it
    /// registers the device. Events that come from now on have to find the device.
    ///
    /// Context: any.
    pub(crate) fn note_state(&self) {
        // ORDERING: none: the caller excludes events.
        self.active.store(self.netdev.is_running(), Relaxed);
    }

    /// Replaces the port state reported last, and returns it. For tests.
    #[cfg(CONFIG_KUNIT = "y")]
    pub(crate) fn replace_reported_state(&self, active: bool) -> bool {
        self.active.xchg(active, Relaxed)
    }

    /// Reports the state of the port if it differs from the one reported last.
    fn report_state(&self) {
        let active = self.netdev.is_running();
        // ORDERING: none: events of an interface come one at a time.
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

/// Returns whether a device can be made on an interface: its type must carry IP.
pub(crate) fn is_suitable(netdev: &NetDevice) -> bool {
    match netdev.netdev_type() {
        NetdevType::Ethernet | NetdevType::Loopback | NetdevType::None => true,
        NetdevType::Other(kind) => IP_LINKS.contains(&kind),
    }
}

/// Further interface types that carry IP (`include/uapi/linux/if_arp.h`): IEEE 802 networks, and
/// tunnels over IPv4, over IPv6, from IPv6 to IPv4, and GRE over both.
const IP_LINKS: [u16; 6] = [6, 768, 769, 776, 778, 823];

#[kernel::prelude::kunit_tests(riwarp_device)]
mod tests {
    use super::*;
    use crate::{
        bench::Bench,
        mem::{
            mr::registration::{
                Mr,
                Mw, //
            },
            pd::Pd, //
        }, //
    };
    use kernel_ext::rdma::{
        bench::{
            kernel_owned,
            optional_ops, //
        },
        mem::mem_map::Shape,
        types::MwType, //
    };

    #[test]
    fn optional_operations_match_the_provider() {
        for abi in [Abi::Rxe, Abi::Siw] {
            let provider = abi.provider();
            assert_eq!(optional_ops::<crate::Riwarp>(&provider), provider.optional);
        }
        let both = OptionalOps::MEMORY_WINDOWS | OptionalOps::RESIZE_CQ;
        assert_eq!(Abi::Rxe.provider().optional, both);
        assert!(Abi::Siw.provider().optional.is_empty());
    }

    #[test]
    fn each_resource_has_its_own_count() {
        let mut seen = 0;
        for resource in ALL {
            assert!(resource.index() < Resource::COUNT && resource.limit() > 0);
            seen |= 1 << resource.index();
        }
        assert_eq!(seen, (1 << Resource::COUNT) - 1);
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
    fn resource_limit_is_reached_exactly_once() -> Result {
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

    /// Refuses to make an object beyond the device's limit (RFC 5040, section 8.1.2; RDMAP-172).
    #[test]
    fn objects_beyond_device_limits_are_refused() -> Result {
        let bench = Bench::new()?;
        let (device, pd, cq) = (&bench.device, bench.pd.as_arc_borrow(), bench.cq(1)?);
        for resource in ALL {
            let used = device.used.get(resource.index()).ok_or(EINVAL)?;
            let before = used.load(Relaxed);
            used.store(resource.limit(), Relaxed);
            let made = match resource {
                Resource::Cq => bench.cq(1).map(drop),
                Resource::Mr => Mr::fast_reg(pd, kernel_owned(), Shape::Pages, 1).map(drop),
                Resource::Mw => Mw::new(&pd, MwType::Two).map(drop),
                Resource::Pd => Pd::new(bench.rdma.regions.clone(), None).map(drop),
                Resource::Qp => bench.qp(1, &cq).map(|qp| bench.destroy(&qp)),
                Resource::Srq => bench.srq(1, 0).map(drop),
            };
            used.store(before, Relaxed);
            assert_eq!(made, Err(ENOMEM));
        }
        Ok(())
    }
}
