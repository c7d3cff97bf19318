// SPDX-License-Identifier: GPL-2.0

//! What an iWARP driver implements: [`Driver`].
//!
//! Every function of the trait but `qp_link` is one callback of `struct ib_device_ops`, most by its C
//! name without the `iw_`. What enters are safe views of the caller's structures and borrowed driver
//! objects; what leaves are plain values or new driver objects in an [`Arc`]. The C objects that the
//! consumer holds are made and freed by `ib_core` (memory regions: here); each holds one reference to
//! the driver's object from the end of `create_*` to the end of `destroy_*`, so that work items and
//! sockets may outlive the verb object by holding references of their own.
//!
//! # Contexts
//!
//! | functions | context |
//! |---|---|
//! | `post_send`, `post_recv`, `post_srq_recv`, `poll_cq`, `req_notify_cq` | any, hard interrupt included; may not sleep |
//! | `map_mr_sg` | any that the consumer registers in; may not sleep |
//! | `qp_link` | with a spin lock held and interrupts off; may not sleep |
//! | all others | process, may sleep |
//!
//! `ib_core` calls `destroy_*` once, when no other verb runs on that object and nothing refers to
//! it; it does not promise that any two other verbs of an object do not run at the same time.
//!
//! C header: `include/rdma/ib_verbs.h`.

use super::device::IbDevice;
use super::iw_cm::CmId;
use super::iw_cm::ConnParam;
use super::mr::Advice;
use super::mr::MapSg;
use super::mr::RegDmaBufMr;
use super::mr::RegUserMr;
use super::mr::ReregUserMr;
use super::object::CqLink;
use super::object::QpLink;
use super::object::SrqLink;
use super::restrack::Details;
use super::settings::Setting;
use super::types::*;
use super::udata::Udata;
use super::wc::WcSink;
use super::wr::RecvWrs;
use super::wr::SendWrs;

use crate::bindings;
use crate::mm::place::KernelPages;
use crate::mm::place::Shape;
use crate::net::NetDevice;
use core::num::NonZeroUsize;
use kernel::prelude::*;
use kernel::sync::Arc;
use kernel::sync::ArcBorrow;

mod attr;
mod details;
mod object_ops;
mod queue_ops;
mod vtable;

pub(super) use vtable::table;

/// An iWARP driver: the types of its objects and what it does with them.
pub trait Driver: Sized + Send + Sync + 'static {
    /// The device.
    type Device: Send + Sync + 'static;
    /// What a process holds that opened the device.
    type UContext: Send + Sync + 'static;
    /// Protection domain.
    type Pd: Send + Sync + 'static;
    /// Completion queue.
    type Cq: Send + Sync + 'static;
    /// Queue pair.
    type Qp: Send + Sync + 'static;
    /// Shared receive queue.
    type Srq: Send + Sync + 'static;
    /// Memory region.
    type Mr: Send + Sync + 'static;
    /// Memory window.
    type Mw: Send + Sync + 'static;
    /// A listener.
    type Listener: Send + Sync + 'static;

    /// The module (`THIS_MODULE` of the crate that implements the driver).
    const OWNER: &'static ThisModule;
    /// Settings in sysfs, under `/sys/class/infiniband/<device>/`.
    const SETTINGS: &'static [Setting<Self>] = &[];
    /// The names of the port's counters.
    const COUNTERS: &'static [&'static CStr] = &[];

    /// Says what the device can do.
    fn query_device(dev: ArcBorrow<'_, Self::Device>) -> Result<DeviceAttr>;

    /// Says what the port can do and how it is. `port` is 1.
    fn query_port(dev: ArcBorrow<'_, Self::Device>, ib: &IbDevice, port: u32) -> Result<PortAttr>;

    /// Says what never changes about the port.
    fn port_immutable(dev: ArcBorrow<'_, Self::Device>, port: u32) -> Result<PortImmutable>;

    /// Returns an entry of the GID table.
    fn query_gid(dev: ArcBorrow<'_, Self::Device>, port: u32, index: usize) -> Result<Gid>;

    /// Returns the network interface of the port; `None` once it is going away.
    fn netdev(dev: ArcBorrow<'_, Self::Device>, port: u32) -> Option<NetDevice>;

    /// Fills in the counters, in the order of [`Driver::COUNTERS`].
    fn counters(_dev: ArcBorrow<'_, Self::Device>, _values: &mut [u64]) {}

    /// The device is unregistered, by whomever; no callback runs or will run.
    ///
    /// Called once, also when the registration itself was dropped or failed. The driver takes the
    /// device off its lists here. The [`Registration`](super::device::Registration) may not be
    /// dropped in here.
    fn dealloc_driver(dev: Arc<Self::Device>);

    /// Opens the device for a process.
    fn alloc_ucontext(
        dev: ArcBorrow<'_, Self::Device>,
        udata: &mut Udata<'_, Self>,
    ) -> Result<Arc<Self::UContext>>;

    /// The process closed the device; all its objects are gone.
    fn dealloc_ucontext(_context: Arc<Self::UContext>) {}

    /// Makes a protection domain.
    fn alloc_pd(
        dev: ArcBorrow<'_, Self::Device>,
        owner: Owner,
        udata: &mut Udata<'_, Self>,
    ) -> Result<Arc<Self::Pd>>;

    /// Frees a protection domain.
    fn dealloc_pd(_pd: Arc<Self::Pd>) {}

    /// Makes a completion queue.
    fn create_cq(
        dev: ArcBorrow<'_, Self::Device>,
        init: CqInit,
        udata: &mut Udata<'_, Self>,
    ) -> Result<CqCreated<Self>>;

    /// Frees a completion queue; no queue pair refers to it. Its link is dead already.
    fn destroy_cq(cq: Arc<Self::Cq>);

    /// Gives the completion queue of a process another size; what it holds stays. Returns how many
    /// completions it holds then. Called for [`Provider::Rxe`] only, one call at a time.
    fn resize_cq(
        cq: ArcBorrow<'_, Self::Cq>,
        entries: u32,
        udata: &mut Udata<'_, Self>,
    ) -> Result<u32>;

    /// Hands completions of a kernel consumer over, oldest first, until the queue is empty or the
    /// sink full.
    ///
    /// Context: any; may not sleep.
    fn poll_cq(cq: ArcBorrow<'_, Self::Cq>, sink: &mut WcSink<'_>) -> Result;

    /// Arms the notification. Returns whether completions were missed, if that was asked.
    ///
    /// Context: any; may not sleep. The driver may not notify from inside this call.
    fn req_notify_cq(cq: ArcBorrow<'_, Self::Cq>, request: NotifyRequest) -> Result<Missed>;

    /// Makes a queue pair.
    fn create_qp(
        dev: ArcBorrow<'_, Self::Device>,
        init: QpInit<Self>,
        udata: &mut Udata<'_, Self>,
    ) -> Result<QpCreated<Self>>;

    /// Changes a queue pair.
    fn modify_qp(
        qp: ArcBorrow<'_, Self::Qp>,
        attr: &QpAttr,
        mask: QpAttrMask,
        udata: &mut Udata<'_, Self>,
    ) -> Result;

    /// Says how a queue pair is.
    fn query_qp(qp: ArcBorrow<'_, Self::Qp>, mask: QpAttrMask) -> Result<QpReport>;

    /// Takes a queue pair out of service: afterwards the driver begins nothing with its verb object
    /// any more.
    ///
    /// The link still works during this call and is dead after it. What the driver has not told the
    /// connection manager by then is told it in its place ([`super::iw_cm`]).
    fn destroy_qp(qp: Arc<Self::Qp>);

    /// Posts to the send queue; see [`SendWrs::is_doorbell`] for processes.
    ///
    /// Context: any; may not sleep.
    fn post_send(qp: &Arc<Self::Qp>, wrs: &mut SendWrs<'_, Self>) -> Result;

    /// Posts to the receive queue.
    ///
    /// Context: any; may not sleep.
    fn post_recv(qp: ArcBorrow<'_, Self::Qp>, wrs: &mut RecvWrs<'_>) -> Result;

    /// Makes a shared receive queue.
    fn create_srq(
        dev: ArcBorrow<'_, Self::Device>,
        init: SrqInit<Self>,
        udata: &mut Udata<'_, Self>,
    ) -> Result<SrqCreated<Self>>;

    /// Changes a shared receive queue; one call at a time.
    fn modify_srq(
        srq: ArcBorrow<'_, Self::Srq>,
        attr: &SrqAttr,
        mask: SrqAttrMask,
        udata: &mut Udata<'_, Self>,
    ) -> Result;

    /// Says how a shared receive queue is.
    fn query_srq(srq: ArcBorrow<'_, Self::Srq>) -> Result<SrqAttr>;

    /// Frees a shared receive queue. Its link is dead already.
    fn destroy_srq(srq: Arc<Self::Srq>);

    /// Posts to a shared receive queue.
    ///
    /// Context: any; may not sleep.
    fn post_srq_recv(srq: ArcBorrow<'_, Self::Srq>, wrs: &mut RecvWrs<'_>) -> Result;

    /// Registers memory of a process.
    fn reg_user_mr(
        pd: ArcBorrow<'_, Self::Pd>,
        request: &RegUserMr<'_>,
        udata: &mut Udata<'_, Self>,
    ) -> Result<MrCreated<Self>>;

    /// Registers memory of another driver for a process.
    fn reg_user_mr_dmabuf(
        pd: ArcBorrow<'_, Self::Pd>,
        request: &RegDmaBufMr<'_>,
    ) -> Result<MrCreated<Self>>;

    /// Makes a region of a process that takes the place of `mr`, in the domain `pd`, which may be the same.
    /// The key of `mr` leads nowhere any more then; it is deregistered right after, which may not fail.
    ///
    /// # Errors
    ///
    /// Leave `mr` as it was.
    fn rereg_user_mr(
        mr: ArcBorrow<'_, Self::Mr>,
        pd: ArcBorrow<'_, Self::Pd>,
        request: &ReregUserMr<'_>,
    ) -> Result<MrCreated<Self>>;

    /// Follows a process's advice on its memory.
    fn advise_mr(pd: ArcBorrow<'_, Self::Pd>, advice: Advice<'_>) -> Result;

    /// Makes the region that is all of kernel memory.
    fn get_dma_mr(
        pd: ArcBorrow<'_, Self::Pd>,
        proof: KernelOwned,
        access: Access,
    ) -> Result<MrCreated<Self>>;

    /// Makes a region for fast registration of up to `max_pages` pages, or pieces; [`MrCreated::pages`] must
    /// be there.
    fn alloc_mr(
        pd: ArcBorrow<'_, Self::Pd>,
        proof: KernelOwned,
        shape: Shape,
        max_pages: u32,
    ) -> Result<MrCreated<Self>>;

    /// Takes over the pages of a region for fast registration; see [`MapSg::map`].
    ///
    /// Context: any; may not sleep. Returns how many entries of the list were taken.
    fn map_mr_sg(mr: ArcBorrow<'_, Self::Mr>, sg: &mut MapSg<'_>) -> Result<i32>;

    /// Frees a region: afterwards nothing is placed in or read from its memory.
    ///
    /// # Errors
    ///
    /// `EBUSY` leaves the region as it was.
    fn dereg_mr(mr: ArcBorrow<'_, Self::Mr>) -> Result;

    /// Makes a memory window that is not bound. Called for [`Provider::Rxe`] only.
    fn alloc_mw(pd: ArcBorrow<'_, Self::Pd>, kind: MwType) -> Result<MwCreated<Self>>;

    /// Frees a memory window: afterwards nothing is placed or read by its key.
    fn dealloc_mw(mw: Arc<Self::Mw>);

    /// Finds a queue pair by its number.
    ///
    /// Context: a spin lock is held and interrupts are off.
    fn qp_link(dev: ArcBorrow<'_, Self::Device>, qpn: u32) -> Option<QpLink>;

    /// Describes a completion queue.
    fn describe_cq(cq: ArcBorrow<'_, Self::Cq>, details: &mut Details<'_>) -> Result;

    /// Describes a queue pair.
    fn describe_qp(qp: ArcBorrow<'_, Self::Qp>, details: &mut Details<'_>) -> Result;

    /// Describes a shared receive queue.
    fn describe_srq(srq: ArcBorrow<'_, Self::Srq>, details: &mut Details<'_>) -> Result;

    /// Describes a memory region.
    fn describe_mr(mr: ArcBorrow<'_, Self::Mr>, details: &mut Details<'_>) -> Result;

    /// Begins a connection; see [`super::iw_cm`] for what must follow. Errors but `EINVAL` and `EISCONN` reach the
    /// consumer as an event.
    fn connect(dev: ArcBorrow<'_, Self::Device>, id: CmId<Self>, param: &ConnParam<'_>) -> Result;

    /// Accepts the connection that was requested by this name; see [`super::iw_cm`] for what must follow.
    fn accept(
        dev: ArcBorrow<'_, Self::Device>,
        id: CmId<Self>,
        name: NonZeroUsize,
        param: &ConnParam<'_>,
    ) -> Result;

    /// Refuses the connection that was requested by this name.
    fn reject(dev: ArcBorrow<'_, Self::Device>, name: NonZeroUsize, private_data: &[u8]) -> Result;

    /// Begins to listen at `id.local_addr()`.
    fn create_listen(
        dev: ArcBorrow<'_, Self::Device>,
        id: CmId<Self>,
        backlog: u32,
    ) -> Result<Arc<Self::Listener>>;

    /// Ends a listener: afterwards it raises no event.
    fn destroy_listen(dev: ArcBorrow<'_, Self::Device>, listener: Arc<Self::Listener>);
}

/// Which provider library serves the processes of a device.
///
/// Both post by a call of `post_send` without a list, the doorbell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Provider {
    /// librxe, which arms completion queues by a call too.
    Rxe,
    /// libsiw.
    Siw,
}

impl Provider {
    /// The number that the library goes by (`enum rdma_driver_id`).
    pub(super) fn driver_id(self) -> bindings::rdma_driver_id {
        match self {
            Self::Rxe => bindings::rdma_driver_id_RDMA_DRIVER_RXE,
            Self::Siw => bindings::rdma_driver_id_RDMA_DRIVER_SIW,
        }
    }

    /// The version of the interface to it.
    pub(super) fn abi_version(self) -> u32 {
        match self {
            Self::Rxe => 2,
            Self::Siw => 1,
        }
    }

    /// The commands that it writes, of those that a driver has to let through.
    pub(super) fn commands(self) -> u64 {
        const POST_SEND: u64 = 1 << bindings::ib_uverbs_write_cmds_IB_USER_VERBS_CMD_POST_SEND;
        const ARM: u64 = 1 << bindings::ib_uverbs_write_cmds_IB_USER_VERBS_CMD_REQ_NOTIFY_CQ;
        match self {
            Self::Rxe => POST_SEND | ARM,
            Self::Siw => POST_SEND,
        }
    }
}

/// Whether completions were there already when a queue was armed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missed {
    /// None, or nobody asked.
    No,
    /// Some: the consumer polls again.
    Yes,
}

/// What a completion queue shall be.
pub struct CqInit {
    /// Who made it.
    pub owner: Owner,
    /// How many completions it must hold at least.
    pub entries: u32,
    /// `enum ib_uverbs_ex_create_cq_flags`; 0 is plain.
    pub flags: u32,
    /// The way back to its consumer.
    pub link: CqLink,
}

/// A new completion queue.
pub struct CqCreated<T: Driver> {
    /// The driver's object.
    pub cq: Arc<T::Cq>,
    /// How many completions it holds.
    pub entries: u32,
}

/// What a queue pair shall be.
pub struct QpInit<T: Driver> {
    /// Who made it.
    pub owner: Owner,
    /// Its service; [`QpType::Rc`] is all that iWARP has.
    pub qp_type: QpType,
    /// Its sizes.
    pub caps: QpCaps,
    /// Its protection domain.
    pub pd: Arc<T::Pd>,
    /// Where its send completions go.
    pub send_cq: Arc<T::Cq>,
    /// Where its receive completions go.
    pub recv_cq: Arc<T::Cq>,
    /// Where its receives come from, if it is not its own queue.
    pub srq: Option<Arc<T::Srq>>,
    /// Which of its send work requests make a completion.
    pub signal: SignalPolicy,
    /// `enum ib_qp_create_flags`; 0 is plain.
    pub create_flags: u32,
    /// The way back to its consumer.
    pub link: QpLink,
}

/// A new queue pair.
pub struct QpCreated<T: Driver> {
    /// The driver's object.
    pub qp: Arc<T::Qp>,
    /// Its number.
    pub number: u32,
    /// The sizes that it really has.
    pub caps: QpCaps,
}

/// How a queue pair is.
#[derive(Clone, Copy, Debug)]
pub struct QpReport {
    /// Its attributes; `caps` is also reported as what it was made with.
    pub attr: QpAttr,
    /// Which of its send work requests make a completion.
    pub signal: SignalPolicy,
}

/// What a shared receive queue shall be.
pub struct SrqInit<T: Driver> {
    /// Who made it.
    pub owner: Owner,
    /// `enum ib_srq_type`; 0 is the plain one.
    pub srq_type: u32,
    /// Its protection domain.
    pub pd: Arc<T::Pd>,
    /// Its sizes.
    pub attr: SrqAttr,
    /// The way back to its consumer.
    pub link: SrqLink,
}

/// A new shared receive queue.
pub struct SrqCreated<T: Driver> {
    /// The driver's object.
    pub srq: Arc<T::Srq>,
    /// The sizes that it really has.
    pub attr: SrqAttr,
}

/// A new memory region.
pub struct MrCreated<T: Driver> {
    /// The driver's object.
    pub mr: Arc<T::Mr>,
    /// The key for local use.
    pub lkey: u32,
    /// The key for the peer.
    pub rkey: u32,
    /// For fast registration: the room for its pages, which the driver's object has as well.
    pub pages: Option<Arc<KernelPages>>,
}

/// A new memory window.
pub struct MwCreated<T: Driver> {
    /// The driver's object.
    pub mw: Arc<T::Mw>,
    /// Its key, good for the first bind only.
    pub rkey: u32,
}
