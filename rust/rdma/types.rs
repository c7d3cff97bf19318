// SPDX-License-Identifier: GPL-2.0

//! The attributes of RDMA objects as plain Rust values.
//!
//! The driver fills and reads these structures; the trampolines in [`super::ops`] turn them into
//! the C structures of `ib_core` and back. Nothing here touches a C object, so everything is
//! `Copy`, safe, and usable in any context.
//!
//! C header: `include/rdma/ib_verbs.h`.

use crate::bindings;
use core::marker::PhantomData;

mod macros;
#[cfg(CONFIG_KUNIT = "y")]
mod tests;

pub(crate) use macros::bit_set;
pub(crate) use macros::c_enum;

/// Proof that the object that is being created belongs to a kernel consumer.
///
/// Only the trampolines make one, and only after they saw that the object has no user context. With
/// it, the driver may treat the addresses in that object's work requests and page lists as kernel
/// virtual addresses ([`Memory::kernel_virtual`](super::mem::mem_map::Memory::kernel_virtual)).
/// It is for one use, and ends with the call `'a` that creates the object.
#[derive(Debug)]
pub struct KernelOwned<'a>(PhantomData<&'a ()>);

impl KernelOwned<'_> {
    /// Creates the proof.
    ///
    /// # Safety
    ///
    /// The object that this proof is about must belong to a kernel consumer: the C structure of its
    /// protection domain has no `uobject`. The lifetime must end with the call that creates it.
    pub(crate) unsafe fn new_unchecked() -> Self {
        Self(PhantomData)
    }
}

/// The creator of an object.
#[derive(Clone, Copy, Debug)]
pub enum Owner {
    /// A consumer in the kernel.
    Kernel,
    /// A process, through uverbs.
    User,
}

impl Owner {
    /// Returns whether a process owns the object.
    pub fn is_user(&self) -> bool {
        matches!(self, Owner::User)
    }
}

/// A global identifier, in network order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Gid(pub [u8; 16]);

bit_set! {
    /// Rights of a memory region or a queue pair (`enum ib_access_flags`).
    pub struct AccessFlags(u32) {
        /// The local side may write.
        LOCAL_WRITE = 1;
        /// The peer may write.
        REMOTE_WRITE = 1 << 1;
        /// The peer may read.
        REMOTE_READ = 1 << 2;
        /// The peer may run atomics.
        REMOTE_ATOMIC = 1 << 3;
        /// Memory windows may be bound to the region.
        MW_BIND = 1 << 4;
        /// The region is addressed from zero.
        ZERO_BASED = 1 << 5;
        /// The region is not pinned: paging on demand.
        ON_DEMAND = 1 << 6;
        /// The memory consists of huge pages.
        HUGETLB = 1 << 7;
        /// The peer may flush what it has placed to where all of the host sees it.
        FLUSH_GLOBAL = 1 << 8;
        /// The peer may flush what it has placed to where it survives a loss of power.
        FLUSH_PERSISTENT = 1 << 9;
        /// The order of placement within the region does not matter.
        RELAXED_ORDERING = 1 << 20;
    }
}

impl AccessFlags {
    /// Returns the flags of a C value of `enum ib_access_flags`.
    pub(crate) fn from_raw(raw: kernel::ffi::c_int) -> Self {
        // CAST: A set of flags in an int; every bit keeps its place.
        Self::from_bits(raw as u32)
    }
}

bit_set! {
    /// Capabilities of the device (`device_cap_flags`).
    pub struct DeviceCaps(u64) {
        /// Port up and down events are raised.
        PORT_ACTIVE_EVENT = bindings::ib_device_cap_flags_IB_DEVICE_PORT_ACTIVE_EVENT as u64;
        /// The device generates RNR errors.
        RC_RNR_NAK_GEN = bindings::ib_device_cap_flags_IB_DEVICE_RC_RNR_NAK_GEN as u64;
        /// Fast registration, Send with Invalidate, local invalidate, zero lkey in the kernel.
        MEM_MGT_EXTENSIONS = bindings::ib_device_cap_flags_IB_DEVICE_MEM_MGT_EXTENSIONS as u64;
        /// Memory windows of type 2B.
        MEM_WINDOW_TYPE_2B = bindings::ib_device_cap_flags_IB_DEVICE_MEM_WINDOW_TYPE_2B as u64;
        /// Memory windows of type 1.
        MEM_WINDOW = bindings::ib_device_cap_flags_IB_DEVICE_MEM_WINDOW as u64;
        /// A shared receive queue may be resized.
        SRQ_RESIZE = bindings::ib_device_cap_flags_IB_DEVICE_SRQ_RESIZE as u64;
        /// The device flushes to where all of the host sees it.
        FLUSH_GLOBAL = bindings::ib_device_cap_flags_IB_DEVICE_FLUSH_GLOBAL as u64;
        /// The device flushes to persistent memory.
        FLUSH_PERSISTENT = bindings::ib_device_cap_flags_IB_DEVICE_FLUSH_PERSISTENT as u64;
        /// The device has atomic Writes.
        ATOMIC_WRITE = bindings::ib_device_cap_flags_IB_DEVICE_ATOMIC_WRITE as u64;
    }
}

bit_set! {
    /// Capabilities for kernel consumers (`kernel_cap_flags`).
    pub struct KernelCaps(u64) {
        /// The device can be unregistered while processes use it.
        ALLOW_USER_UNREG = bindings::ib_kernel_cap_flags_IBK_ALLOW_USER_UNREG as u64;
        /// Regions need not be pinned.
        ON_DEMAND_PAGING = bindings::ib_kernel_cap_flags_IBK_ON_DEMAND_PAGING as u64;
        /// Regions of pieces with gaps between them can be fast registered.
        SG_GAPS_REG = bindings::ib_kernel_cap_flags_IBK_SG_GAPS_REG as u64;
    }
}

bit_set! {
    /// Operations allowed on regions that are not pinned (`enum ib_odp_transport_cap_bits`).
    pub struct OdpCaps(u32) {
        /// Sends from them.
        SEND = 1;
        /// Receives into them.
        RECV = 1 << 1;
        /// RDMA Writes, from and to them.
        WRITE = 1 << 2;
        /// RDMA Reads, from and to them.
        READ = 1 << 3;
        /// Atomic operations on them.
        ATOMIC = 1 << 4;
        /// Receives by a shared receive queue into them.
        SRQ_RECV = 1 << 5;
        /// Flushes of them.
        FLUSH = 1 << 6;
        /// Atomic Writes to them.
        ATOMIC_WRITE = 1 << 7;
    }
}

/// The scope of a device's atomic operations (`enum ib_atomic_cap`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AtomicCap {
    /// The device has no atomic operations.
    #[default]
    None,
    /// Atomic among the queue pairs of this device.
    Hca,
    /// Atomic towards processors and other devices too.
    Global,
}

/// The attributes of a device that `ibv_devinfo` shows.
///
/// Counts that exceed a C `int` are cut to its maximum.
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs)] // The names are those of `struct ib_device_attr`.
pub struct DeviceAttr {
    pub fw_ver: u64,
    pub sys_image_guid: [u8; 8],
    pub max_mr_size: u64,
    pub page_size_cap: u64,
    pub vendor_id: u32,
    pub vendor_part_id: u32,
    pub hw_ver: u32,
    pub max_qp: u32,
    pub max_qp_wr: u32,
    pub device_caps: DeviceCaps,
    pub kernel_caps: KernelCaps,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_sge_rd: u32,
    pub max_cq: u32,
    pub max_cqe: u32,
    pub max_mr: u32,
    pub max_pd: u32,
    pub max_qp_rd_atom: u32,
    pub max_qp_init_rd_atom: u32,
    pub max_res_rd_atom: u32,
    pub atomic_cap: AtomicCap,
    pub max_mw: u32,
    pub max_srq: u32,
    pub max_srq_wr: u32,
    pub max_srq_sge: u32,
    pub max_fast_reg_page_list_len: u32,
    pub max_pkeys: u16,
    pub local_ca_ack_delay: u8,
    /// For reliable connections.
    pub odp_caps: OdpCaps,
}

c_enum! {
    /// The logical state of a port.
    pub enum PortState {
        /// No carrier, or the interface is down.
        Down = bindings::ib_port_state_IB_PORT_DOWN;
        /// Known to the fabric, not yet usable.
        Init = bindings::ib_port_state_IB_PORT_INIT;
        /// Configured, not yet active.
        Armed = bindings::ib_port_state_IB_PORT_ARMED;
        /// Usable.
        Active = bindings::ib_port_state_IB_PORT_ACTIVE;
        /// Active with the link deferred.
        ActiveDefer = bindings::ib_port_state_IB_PORT_ACTIVE_DEFER;
    }
}

c_enum! {
    /// The physical state of a port.
    pub enum PhysState {
        /// Idle.
        Sleep = bindings::ib_port_phys_state_IB_PORT_PHYS_STATE_SLEEP;
        /// Looking for a link.
        Polling = bindings::ib_port_phys_state_IB_PORT_PHYS_STATE_POLLING;
        /// Switched off.
        Disabled = bindings::ib_port_phys_state_IB_PORT_PHYS_STATE_DISABLED;
        /// Up.
        LinkUp = bindings::ib_port_phys_state_IB_PORT_PHYS_STATE_LINK_UP;
    }
}

c_enum! {
    /// The MTU of a port, one of the steps that verbs define.
    pub enum Mtu {
        /// 256 octets.
        Mtu256 = bindings::ib_mtu_IB_MTU_256;
        /// 512 octets.
        Mtu512 = bindings::ib_mtu_IB_MTU_512;
        /// 1024 octets.
        Mtu1024 = bindings::ib_mtu_IB_MTU_1024;
        /// 2048 octets.
        Mtu2048 = bindings::ib_mtu_IB_MTU_2048;
        /// 4096 octets.
        Mtu4096 = bindings::ib_mtu_IB_MTU_4096;
    }
}

impl Mtu {
    /// Returns the largest step that fits in an interface MTU of `octets`.
    pub fn from_octets(octets: u32) -> Self {
        match octets {
            4096.. => Self::Mtu4096,
            2048.. => Self::Mtu2048,
            1024.. => Self::Mtu1024,
            512.. => Self::Mtu512,
            _ => Self::Mtu256,
        }
    }
}

/// The attributes of a port that `ibv_devinfo` shows.
///
/// Speed and width come from [`IbDevice::eth_speed`](super::device::IbDevice::eth_speed).
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)] // The names are those of `struct ib_port_attr`.
pub struct PortAttr {
    pub state: PortState,
    pub phys_state: PhysState,
    pub max_mtu: Mtu,
    pub active_mtu: Mtu,
    pub phys_mtu: u32,
    pub gid_tbl_len: u32,
    pub pkey_tbl_len: u32,
    pub max_msg_sz: u32,
    pub speed: LinkSpeed,
    /// Reinitialisations, CM and device management by `port_cap_flags`; the bits are those of C.
    pub port_cap_flags: u32,
}

/// Speed and width in the units of verbs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkSpeed {
    /// One of `enum ib_port_speed`.
    pub active_speed: u16,
    /// One of `enum ib_port_width`.
    pub active_width: u8,
}

impl Default for LinkSpeed {
    fn default() -> Self {
        // CAST: Small constants of C.
        Self {
            active_speed: bindings::ib_port_speed_IB_SPEED_SDR as u16,
            active_width: bindings::ib_port_width_IB_WIDTH_4X as u8,
        }
    }
}

/// The constant attributes of a port.
#[derive(Clone, Copy, Debug, Default)]
pub struct PortImmutable {
    /// Entries in the GID table.
    pub gid_tbl_len: u32,
    /// Entries in the P_Key table.
    pub pkey_tbl_len: u32,
    /// Who connects the queue pairs.
    pub connections: Connections,
}

/// Who connects the queue pairs of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Connections {
    /// `rdma_cm` does, by `iw_cm`, unless their program does it by itself.
    #[default]
    RdmaCm,
    /// Only their program. `rdma_cm` does not know the device, and so no kernel consumer uses it.
    Program,
}

c_enum! {
    /// What a device says it is. libibverbs derives the transport that programs see from it.
    pub enum NodeType {
        /// A channel adapter: transport InfiniBand.
        ChannelAdapter = bindings::RDMA_NODE_IB_CA;
        /// A network adapter with RDMA: transport iWARP.
        Rnic = bindings::RDMA_NODE_RNIC;
    }
}

c_enum! {
    /// The transport service of a queue pair.
    pub enum QpType {
        /// Reliable connected: the only type of iWARP.
        Rc = bindings::ib_qp_type_IB_QPT_RC;
        /// Unreliable connected.
        Uc = bindings::ib_qp_type_IB_QPT_UC;
        /// Unreliable datagram.
        Ud = bindings::ib_qp_type_IB_QPT_UD;
        /// The general services interface.
        Gsi = bindings::ib_qp_type_IB_QPT_GSI;
        /// Raw packets.
        RawPacket = bindings::ib_qp_type_IB_QPT_RAW_PACKET;
        /// Extended reliable connected, initiator.
        XrcIni = bindings::ib_qp_type_IB_QPT_XRC_INI;
        /// Extended reliable connected, target.
        XrcTgt = bindings::ib_qp_type_IB_QPT_XRC_TGT;
        /// Defined by the driver.
        Driver = bindings::ib_qp_type_IB_QPT_DRIVER;
    }
}

c_enum! {
    /// The state of a queue pair, in the terms of verbs.
    pub enum QpState {
        /// Just created.
        Reset = bindings::ib_qp_state_IB_QPS_RESET;
        /// Receives may be posted.
        Init = bindings::ib_qp_state_IB_QPS_INIT;
        /// Ready to receive.
        Rtr = bindings::ib_qp_state_IB_QPS_RTR;
        /// Ready to send.
        Rts = bindings::ib_qp_state_IB_QPS_RTS;
        /// Send queue drains. iWARP: Closing.
        Sqd = bindings::ib_qp_state_IB_QPS_SQD;
        /// Send queue in error. iWARP: Terminate.
        Sqe = bindings::ib_qp_state_IB_QPS_SQE;
        /// In error: all work requests are flushed.
        Err = bindings::ib_qp_state_IB_QPS_ERR;
    }
}

/// Sizes of a queue pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)] // The names are those of `struct ib_qp_cap`.
pub struct QpCaps {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
    pub max_rdma_ctxs: u32,
}

/// Which work requests generate a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignalPolicy {
    /// All of them.
    All,
    /// Those that request it.
    OnRequest,
}

bit_set! {
    /// The valid fields of a [`QpAttr`] (`enum ib_qp_attr_mask`).
    pub struct QpAttrMask(u32) {
        /// `qp_state`.
        STATE = 1;
        /// `cur_qp_state`.
        CUR_STATE = 1 << 1;
        /// `en_sqd_async_notify`.
        EN_SQD_ASYNC_NOTIFY = 1 << 2;
        /// `access`.
        ACCESS_FLAGS = 1 << 3;
        /// `pkey_index`.
        PKEY_INDEX = 1 << 4;
        /// `port_num`.
        PORT = 1 << 5;
        /// `qkey`.
        QKEY = 1 << 6;
        /// `path`.
        AV = 1 << 7;
        /// `path_mtu`.
        PATH_MTU = 1 << 8;
        /// `timeout`.
        TIMEOUT = 1 << 9;
        /// `retry_cnt`.
        RETRY_CNT = 1 << 10;
        /// `rnr_retry`.
        RNR_RETRY = 1 << 11;
        /// `rq_psn`.
        RQ_PSN = 1 << 12;
        /// `max_rd_atomic`.
        MAX_QP_RD_ATOMIC = 1 << 13;
        /// An alternate path (not offered).
        ALT_PATH = 1 << 14;
        /// `min_rnr_timer`.
        MIN_RNR_TIMER = 1 << 15;
        /// `sq_psn`.
        SQ_PSN = 1 << 16;
        /// `max_dest_rd_atomic`.
        MAX_DEST_RD_ATOMIC = 1 << 17;
        /// The path migration state (not offered).
        PATH_MIG_STATE = 1 << 18;
        /// `caps`.
        CAP = 1 << 19;
        /// `dest_qp_num`.
        DEST_QPN = 1 << 20;
        /// A rate limit (not offered).
        RATE_LIMIT = 1 << 25;
    }
}

impl QpAttrMask {
    /// The flags that `ib_core` accepts for a driver without extensions.
    pub const STANDARD: Self = Self::from_bits((1 << 21) - 1);
}

/// The route to the peer of a queue pair (`struct rdma_ah_attr`, reduced to what iWARP uses).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)] // The names are those of `struct ib_global_route`.
pub struct Path {
    pub dgid: Gid,
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub port_num: u32,
    pub sl: u8,
    pub static_rate: u8,
    /// Whether the consumer gave a global route at all.
    pub has_grh: bool,
}

/// The attributes of a queue pair, for modify and query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // The names are those of `struct ib_qp_attr`.
pub struct QpAttr {
    pub qp_state: QpState,
    pub cur_qp_state: QpState,
    pub path_mtu: Mtu,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub access: AccessFlags,
    pub caps: QpCaps,
    pub path: Path,
    pub pkey_index: u16,
    pub en_sqd_async_notify: u8,
    pub sq_draining: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u32,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
}

impl Default for QpAttr {
    fn default() -> Self {
        Self {
            qp_state: QpState::Reset,
            cur_qp_state: QpState::Reset,
            path_mtu: Mtu::Mtu1024,
            qkey: 0,
            rq_psn: 0,
            sq_psn: 0,
            dest_qp_num: 0,
            access: AccessFlags::empty(),
            caps: QpCaps::default(),
            path: Path::default(),
            pkey_index: 0,
            en_sqd_async_notify: 0,
            sq_draining: 0,
            max_rd_atomic: 0,
            max_dest_rd_atomic: 0,
            min_rnr_timer: 0,
            port_num: 1,
            timeout: 0,
            retry_cnt: 0,
            rnr_retry: 0,
        }
    }
}

impl QpAttr {
    /// Copies the fields in `mask` from `from`, except states and sizes.
    pub fn take_over(&mut self, from: &Self, mask: QpAttrMask) {
        macro_rules! take {
            ($( $flag:ident: $field:ident, )*) => {
                $( if mask.contains(QpAttrMask::$flag) { self.$field = from.$field; } )*
            };
        }
        take! {
            PATH_MTU: path_mtu,
            QKEY: qkey,
            RQ_PSN: rq_psn,
            SQ_PSN: sq_psn,
            DEST_QPN: dest_qp_num,
            ACCESS_FLAGS: access,
            AV: path,
            PKEY_INDEX: pkey_index,
            EN_SQD_ASYNC_NOTIFY: en_sqd_async_notify,
            MAX_QP_RD_ATOMIC: max_rd_atomic,
            MAX_DEST_RD_ATOMIC: max_dest_rd_atomic,
            MIN_RNR_TIMER: min_rnr_timer,
            PORT: port_num,
            TIMEOUT: timeout,
            RETRY_CNT: retry_cnt,
            RNR_RETRY: rnr_retry,
        }
    }
}

/// The kinds of memory windows (`enum ib_mw_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MwType {
    /// Can be bound repeatedly, for all streams of a protection domain.
    One,
    /// Bound once until it is invalidated, for one stream.
    Two,
}

/// The sizes and the limit of a shared receive queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)] // The names are those of `struct ib_srq_attr`.
pub struct SrqAttr {
    pub max_wr: u32,
    pub max_sge: u32,
    pub srq_limit: u32,
}

bit_set! {
    /// The valid fields of a [`SrqAttr`].
    pub struct SrqAttrMask(u32) {
        /// `max_wr`: a resize.
        MAX_WR = 1;
        /// `srq_limit`.
        LIMIT = 1 << 1;
    }
}

/// The notification that a consumer requests (`ib_req_notify_cq`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotifyRequest {
    /// Which completions count.
    pub on: NotifyOn,
    /// Whether the answer must report completions that are already in the queue.
    pub report_missed: bool,
}

/// Which completions trigger the notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotifyOn {
    /// Any.
    Next,
    /// Solicited completions and errors only.
    Solicited,
}

c_enum! {
    /// Asynchronous events of a queue pair.
    pub enum QpEvent {
        /// The connection failed; the queue pair is in error.
        Fatal = bindings::ib_event_type_IB_EVENT_QP_FATAL;
        /// The peer sent a malformed request.
        RequestError = bindings::ib_event_type_IB_EVENT_QP_REQ_ERR;
        /// The peer requested an access that it has no right to.
        AccessError = bindings::ib_event_type_IB_EVENT_QP_ACCESS_ERR;
        /// First data arrived before the connection was reported.
        CommEstablished = bindings::ib_event_type_IB_EVENT_COMM_EST;
        /// The send queue is drained.
        SqDrained = bindings::ib_event_type_IB_EVENT_SQ_DRAINED;
        /// A queue pair in error took its last request from its shared receive queue.
        LastWqeReached = bindings::ib_event_type_IB_EVENT_QP_LAST_WQE_REACHED;
    }
}

c_enum! {
    /// Asynchronous events of a shared receive queue.
    pub enum SrqEvent {
        /// The queue failed.
        Error = bindings::ib_event_type_IB_EVENT_SRQ_ERR;
        /// Fewer requests are left than the limit says.
        LimitReached = bindings::ib_event_type_IB_EVENT_SRQ_LIMIT_REACHED;
    }
}

c_enum! {
    /// Asynchronous events of a port or the whole device.
    pub enum PortEvent {
        /// The device is lost.
        DeviceFatal = bindings::ib_event_type_IB_EVENT_DEVICE_FATAL;
        /// The port can be used.
        PortActive = bindings::ib_event_type_IB_EVENT_PORT_ACTIVE;
        /// The port cannot be used.
        PortError = bindings::ib_event_type_IB_EVENT_PORT_ERR;
        /// The address of the port's interface changed.
        LidChange = bindings::ib_event_type_IB_EVENT_LID_CHANGE;
        /// An entry of the GID table changed.
        GidChange = bindings::ib_event_type_IB_EVENT_GID_CHANGE;
    }
}
