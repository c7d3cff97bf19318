// SPDX-License-Identifier: GPL-2.0

//! A device for KUnit suites, on the loopback interface and not registered with `ib_core`. Objects
//! made on it work as on any other device; events and notifications are discarded.
//!
//! Context: process.

use kernel::{
    prelude::*,
    sync::Arc, //
};
use kernel_ext::{
    mm::shared_ring::SharedMem,
    net::{
        bench::eventually,
        NetDevice,
        NetId, //
    },
    rdma::{
        bench::poll_one,
        device::DeviceLink,
        object::{
            CqLink,
            QpId,
            QpLink,
            SrqLink, //
        },
        ops::{
            CqInit,
            CqOps,
            QpCreated,
            QpInit,
            QpOps,
            SrqInit,
            SrqOps, //
        },
        types::{
            Owner,
            QpAttr,
            QpAttrMask,
            QpCaps,
            QpType,
            SignalPolicy,
            SrqAttr, //
        },
        udata::Udata,
        wr::{
            WcExtra,
            WcOpcode,
            WcStatus, //
        }, //
    }, //
};

use crate::{
    abi::wr::Completion,
    cm::{
        endpoint,
        oob::ports::HeldPorts, //
    },
    device::{
        gid::Guid,
        log::log_limit,
        queues::Queues,
        refs::Ref,
        settings::{
            Settings,
            DEFAULTS, //
        },
        stats::Stats,
        tls::TlsSettings,
        Device,
        DeviceKind,
        Parts, //
    },
    mem::pd::Pd,
    qp::Qp,
    queue::{
        cq::Cq,
        srq::Srq, //
    },
    verbs::device::RdmaDevice, //
};

/// A completion whose fields all differ, so that a test sees which of them is where.
pub(crate) const COMPLETION: Completion = Completion {
    id: 0x1122_3344_5566_7788,
    status: WcStatus::Success,
    opcode: WcOpcode::Recv,
    bytes: 0x0102_0304,
    extra: WcExtra::None,
    immediate: None,
    qpn: 0x0005_0607,
    qp: QpId::NONE,
    solicited: false,
    vendor_err: 0x0001_0203,
};

/// A device and one protection domain of it; dropping it shuts the device down.
pub(crate) struct Bench {
    pub(crate) rdma: Arc<RdmaDevice>,
    pub(crate) device: Arc<Device>,
    pub(crate) pd: Arc<Pd>,
}

impl Bench {
    pub(crate) fn new() -> Result<Self> {
        Self::of(DeviceKind::Rxe)
    }

    /// As [`Bench::new`], with a device that another link type makes.
    pub(crate) fn of(kind: DeviceKind) -> Result<Self> {
        let netdev = NetDevice::loopback()?;
        let namespace = netdev.net_id();
        Self::on(kind, netdev, namespace)
    }

    /// As [`Bench::new`], with an interface that has left the namespace of the device.
    pub(crate) fn left() -> Result<Self> {
        Self::on(DeviceKind::Rxe, NetDevice::loopback()?, NetId::NONE)
    }

    fn on(kind: DeviceKind, netdev: NetDevice, namespace: NetId) -> Result<Self> {
        let rdma = RdmaDevice::new(
            Parts {
                kind,
                namespace,
                guid: Guid::of(&netdev),
                netdev,
                link: DeviceLink::dead()?,
                settings: Settings::new(&DEFAULTS),
                tls: TlsSettings::new()?,
                queues: Arc::new(Queues::new()?, GFP_KERNEL)?,
                log_limit: log_limit()?,
                device_ref: Ref::single()?,
            },
            HeldPorts::new()?,
            None,
        )?;
        let device = rdma.device.clone();
        let pd = Pd::new(rdma.regions.clone(), None)?;
        Ok(Self { rdma, device, pd })
    }

    /// Returns the value of a counter.
    pub(crate) fn count(&self, name: &CStr) -> u64 {
        let mut counts = [0; 64];
        self.device.stats.read(&mut counts);
        let mut named = Stats::NAMES.iter().zip(counts);
        named
            .find(|(other, _)| **other == name)
            .map_or(0, |(_, count)| count)
    }

    /// Makes a completion queue of a kernel consumer.
    pub(crate) fn cq(&self, entries: u32) -> Result<Arc<Cq>> {
        self.cq_of(CqLink::dead()?, entries)
    }

    /// Makes a completion queue of a kernel consumer, with the given link.
    pub(crate) fn cq_of(&self, link: CqLink, entries: u32) -> Result<Arc<Cq>> {
        let init = CqInit {
            owner: Owner::Kernel,
            context: None,
            entries,
            flags: 0,
            link,
        };
        Ok(Cq::create(self.rdma.as_arc_borrow(), init, &mut Udata::none())?.cq)
    }

    /// Makes a shared receive queue of a kernel consumer.
    pub(crate) fn srq(&self, max_wr: u32, srq_limit: u32) -> Result<Arc<Srq>> {
        let init = SrqInit {
            owner: Owner::Kernel,
            context: None,
            srq_type: 0,
            attr: SrqAttr {
                max_wr,
                max_sge: 1,
                srq_limit,
            },
            pd: self.pd.clone(),
            link: SrqLink::dead()?,
        };
        Ok(Srq::create(self.rdma.as_arc_borrow(), init, &mut Udata::none())?.srq)
    }

    /// Makes a queue pair of a kernel consumer, with `places` entries in each of its queues.
    pub(crate) fn qp(&self, places: u32, cq: &Arc<Cq>) -> Result<Arc<Qp>> {
        Ok(self.qp_of((places, places), None, cq)?.qp)
    }

    /// Makes a queue pair of a kernel consumer, with `send` and `recv` entries in its queues.
    pub(crate) fn qp_of(
        &self,
        (send, recv): (u32, u32),
        srq: Option<Arc<Srq>>,
        cq: &Arc<Cq>,
    ) -> Result<QpCreated<Qp>> {
        let init = QpInit {
            owner: Owner::Kernel,
            context: None,
            qp_type: QpType::Rc,
            caps: QpCaps {
                max_send_wr: send,
                max_recv_wr: recv,
                max_send_sge: 1,
                max_recv_sge: 1,
                ..QpCaps::default()
            },
            pd: self.pd.clone(),
            send_cq: cq.clone(),
            recv_cq: cq.clone(),
            srq,
            signal: SignalPolicy::OnRequest,
            create_flags: 0,
            link: QpLink::dead()?,
        };
        Qp::create(self.rdma.as_arc_borrow(), init, &mut Udata::none())
    }

    /// Modifies a queue pair.
    pub(crate) fn modify(&self, qp: &Arc<Qp>, attr: &QpAttr, mask: QpAttrMask) -> Result {
        endpoint::modify(&self.rdma.cm, qp, attr, mask)
    }

    /// Destroys a queue pair.
    pub(crate) fn destroy(&self, qp: &Arc<Qp>) {
        endpoint::destroy(&self.rdma.cm, qp);
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.rdma.shut_down();
    }
}

/// Polls the oldest completion: its cookie, status and octets.
pub(crate) fn polled(cq: &Cq) -> Option<(u64, Option<WcStatus>, u32)> {
    poll_one(|sink| cq.poll(sink))
}

/// Waits for the oldest completion, and polls it.
///
/// # Errors
///
/// As [`eventually`].
pub(crate) fn completed(cq: &Cq) -> Result<(u64, Option<WcStatus>, u32)> {
    let mut done = None;
    eventually(|| {
        done = polled(cq);
        done.is_some()
    })?;
    done.ok_or(EINVAL)
}

/// Stores request `at`, without payload, in a send queue of librxe as a process would. `at` counts
/// from the first entry.
pub(crate) fn store_send(memory: &SharedMem, at: u32, opcode: u32) -> Result {
    // Elements of 256 octets follow the header.
    let entry = 384 + 256 * at as usize;
    memory.copy_in(entry, &u64::from(at))?;
    memory.copy_in(entry + 8, &[0, opcode])?;
    memory.store_u32_release(128, at + 1)
}

/// Posts a Write of no octets to a send queue that libsiw shares, as entry `at`.
pub(crate) fn store_siw_send(memory: &SharedMem, at: u32) -> Result {
    // Entries of 120 octets; the one bit of the flags says that it is posted.
    memory.store_u16_release(120 * at as usize + 8, 1)
}
