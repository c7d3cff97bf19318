// SPDX-License-Identifier: GPL-2.0

//! A device for KUnit suites: of the loopback interface, unknown to `ib_core`, and nobody's. What
//! is made on it works as on any other; events and notifications go nowhere.
//!
//! Context: process.

use kernel::{
    prelude::*,
    sync::Arc, //
};
use kernel_ext::{
    mm::shared_ring::SharedMem,
    net::NetDevice,
    rdma::{
        bench::{
            kernel_owned,
            poll_one, //
        },
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
    abi::{
        wr::Completion,
        Abi, //
    },
    cm::oob::ports::HeldPorts,
    device::{
        context::Pd,
        queues::Queues,
        registry::DeviceRef,
        settings::{
            MpaRevision,
            Settings, //
        },
        Device,
        Guid,
        Parts, //
    },
    qp::Qp,
    queue::{
        cq::Cq,
        srq::Srq, //
    }, //
};

/// A completion whose fields can be told from each other where it is laid out.
pub(crate) const COMPLETION: Completion = Completion {
    id: 0x1122_3344_5566_7788,
    status: WcStatus::Success,
    opcode: WcOpcode::Recv,
    bytes: 0x0102_0304,
    extra: WcExtra::None,
    qpn: 0x0005_0607,
    qp: QpId::NONE,
    solicited: false,
    vendor_err: 0x0001_0203,
};

/// A device and one domain of it. Nothing of it is left when it is dropped.
pub(crate) struct Bench {
    pub(crate) device: Arc<Device>,
    pub(crate) pd: Arc<Pd>,
}

impl Bench {
    pub(crate) fn new() -> Result<Self> {
        let netdev = NetDevice::loopback()?;
        let device = Device::new(Parts {
            abi: Abi::Rxe,
            guid: Guid::of(&netdev),
            netdev,
            link: DeviceLink::dead()?,
            settings: Settings::new(true, MpaRevision::Two),
            queues: Arc::new(Queues::new()?, GFP_KERNEL)?,
            ports: HeldPorts::new()?,
            device_ref: DeviceRef::single()?,
        })?;
        let pd = Pd::new(device.clone())?;
        Ok(Self { device, pd })
    }

    /// Makes a completion queue of a kernel consumer.
    pub(crate) fn cq(&self, entries: u32) -> Result<Arc<Cq>> {
        self.cq_of(CqLink::dead()?, entries)
    }

    /// Makes a completion queue of the kernel consumer with that link.
    pub(crate) fn cq_of(&self, link: CqLink, entries: u32) -> Result<Arc<Cq>> {
        let init = CqInit {
            owner: Owner::Kernel(kernel_owned()),
            entries,
            flags: 0,
            link,
        };
        Ok(Cq::create(self.device.as_arc_borrow(), init, &mut Udata::none())?.cq)
    }

    /// Makes a shared receive queue of a kernel consumer.
    pub(crate) fn srq(&self, max_wr: u32, srq_limit: u32) -> Result<Arc<Srq>> {
        let init = SrqInit {
            owner: Owner::Kernel(kernel_owned()),
            srq_type: 0,
            attr: SrqAttr {
                max_wr,
                max_sge: 1,
                srq_limit,
            },
            link: SrqLink::dead()?,
        };
        Ok(Srq::create(self.device.as_arc_borrow(), init, &mut Udata::none())?.srq)
    }

    /// Makes a queue pair of a kernel consumer, with so many places in each of its queues.
    pub(crate) fn qp(&self, places: u32, cq: &Arc<Cq>) -> Result<Arc<Qp>> {
        Ok(self.qp_of((places, places), None, cq)?.qp)
    }

    /// Makes a queue pair of a kernel consumer, with so many places for requests and for receives.
    pub(crate) fn qp_of(
        &self,
        (send, recv): (u32, u32),
        srq: Option<Arc<Srq>>,
        cq: &Arc<Cq>,
    ) -> Result<QpCreated<Qp>> {
        let init = QpInit {
            owner: Owner::Kernel(kernel_owned()),
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
        Qp::create(self.device.as_arc_borrow(), init, &mut Udata::none())
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.device.shut_down();
    }
}

/// Takes the oldest completion: its number, how it ended, and its octets.
pub(crate) fn polled(cq: &Cq) -> Option<(u64, Option<WcStatus>, u32)> {
    poll_one(|sink| cq.poll(sink))
}

/// What a process does that stores its request number `at`, of the first ones, in a send queue of
/// librxe: one without octets.
pub(crate) fn store_send(memory: &SharedMem, at: u32, opcode: u32) -> Result {
    // Behind the header, elements of 256 octets.
    let entry = 384 + 256 * at as usize;
    memory.copy_in(entry, &u64::from(at))?;
    memory.copy_in(entry + 8, &[0, opcode])?;
    memory.store_u32_release(128, at + 1)
}
