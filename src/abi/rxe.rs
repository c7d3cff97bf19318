// SPDX-License-Identifier: GPL-2.0

//! The user ABI of librxe (`include/uapi/rdma/rdma_user_rxe.h`).
//!
//! A queue is memory shared with the process: a header with two indexes, then elements whose size
//! and number are powers of two. The side that adds elements advances the producer index, the side
//! that takes them the consumer index. One element always stays empty, so equal indexes mean an
//! empty queue. All values are in host byte order.
//!
//! The process can change the memory at any time. The driver keeps its own index in private memory,
//! and masks the process's index to the size of the queue after each load. It copies an element out
//! once and uses only what it decodes from the copy. The header contains the size and number of the
//! elements for the process only; the driver never reads them.
//!
//! | structure | octets | what is read of it |
//! |---|---|---|
//! | `rxe_queue_buf` | 384 | the user's index |
//! | `rxe_send_wqe` | 208, then list or data | `wr`, `dma.length`, `dma.num_sge`, list or data |
//! | `rxe_recv_wqe` | 40, then 16 per element | `wr_id`, `dma.num_sge`, list |
//! | `ib_uverbs_wc` | 48 | (written) |

use iwarp::{
    atomic::AtomicOperation,
    flush::{
        FlushLevel,
        FlushPlacement,
        FlushRequest, //
    },
    rdmap::{
        Immediate,
        SendExtra, //
    },
    stag::{
        Stag,
        TaggedOffset, //
    }, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};
use kernel_ext::{
    mm::shared_ring::SharedMem,
    rdma::{
        types::AccessFlags,
        wr::{
            SendFlags,
            WcExtra,
            WcOpcode,
            WcStatus, //
        }, //
    }, //
};

use super::{
    u32_at,
    u64_at, //
};
use crate::{
    abi::wr::{
        BadWr,
        Completion,
        RecvWr,
        SendOp,
        SendWr, //
    },
    mem::{
        mr::window::Bind,
        payload::{
            Payload,
            MAX_INLINE,
            MAX_SGE,
            SGE_LEN, //
        }, //
    }, //
};

mod queue;
#[cfg(CONFIG_KUNIT = "y")]
mod tests;

use queue::Queue;

/// Length in octets of a send request before its list or inline data.
const SEND_LEN: usize = 208;
/// Length in octets of a receive request before its list.
const RECV_LEN: usize = 40;
/// The key of the element that holds Immediate Data which a Write precedes; alone it is 0.
const IMMEDIATE_BEHIND_A_WRITE: u32 = 1;
/// Where a send request has the length of its message, or of the range of a Flush.
const LEN_AT: usize = 184;
/// Length of a completion in octets.
const CQE_LEN: usize = 48;

// Opcodes of send requests (`enum ibv_wr_opcode`).
const OP_WRITE: u32 = 0;
const OP_WRITE_WITH_IMM: u32 = 1;
const OP_SEND: u32 = 2;
const OP_SEND_WITH_IMM: u32 = 3;
const OP_READ: u32 = 4;
const OP_COMPARE_SWAP: u32 = 5;
const OP_FETCH_ADD: u32 = 6;
const OP_LOCAL_INV: u32 = 7;
const OP_BIND_MW: u32 = 8;
const OP_SEND_WITH_INV: u32 = 9;
const OP_IMMEDIATE: u32 = 11;
const OP_MASKED_COMPARE_SWAP: u32 = 12;
const OP_MASKED_FETCH_ADD: u32 = 13;
const OP_FLUSH: u32 = 14;
const OP_ATOMIC_WRITE: u32 = 15;

// Flags of a completion (`enum ibv_wc_flags`); their values differ from the kernel's.
const WC_WITH_IMM: u32 = 1 << 1;
const WC_WITH_INV: u32 = 1 << 3;
// Flags of its own (utils/riwarp.h): `src_qp` has the last four octets of Immediate Data;
// `imm_data` has them too, and the first four are zero.
const WC_IMMEDIATE_DATA: u32 = 1 << 24;
const WC_IMMEDIATE_DATA_LAST: u32 = 1 << 25;

/// Offset and size of a queue for `mmap()` (`struct mminfo`).
#[derive(Clone, Copy, IntoBytes, zerocopy_derive::Immutable)]
#[repr(C)]
pub(super) struct MmapInfo {
    offset: u64,
    size: u32,
    pad: u32,
}

impl MmapInfo {
    /// No queue.
    pub(super) const NONE: Self = Self {
        offset: 0,
        size: 0,
        pad: 0,
    };

    /// Describes memory that the process can map at `offset`.
    pub(super) fn new(offset: u64, memory: &SharedMem) -> Result<Self> {
        Ok(Self {
            offset,
            size: u32::try_from(memory.len())?,
            pad: 0,
        })
    }
}

/// Answer to the creation of a queue pair (`rxe_create_qp_resp`).
#[derive(Clone, Copy, IntoBytes, zerocopy_derive::Immutable)]
#[repr(C)]
pub(crate) struct RxeCreateQpResponse {
    pub(super) recv: MmapInfo,
    pub(super) send: MmapInfo,
}

/// Answer to the creation of a shared receive queue (`rxe_create_srq_resp`).
#[derive(IntoBytes, zerocopy_derive::Immutable)]
#[repr(C)]
pub(super) struct RxeCreateSrqResponse {
    pub(super) queue: MmapInfo,
    /// The number of the queue; only services other than RC use it.
    pub(super) number: u32,
    pub(super) reserved: u32,
}

/// The send queue of a process.
pub(crate) struct RxeSendRing(Queue);

impl RxeSendRing {
    /// Makes a queue of `places`, a power of two, for lists of `sges` elements and `inline` octets.
    pub(crate) fn new(places: u32, sges: u32, inline: u32) -> Result<Self> {
        let room = (sges as usize * SGE_LEN).max(inline as usize);
        Queue::new(places, SEND_LEN + room).map(Self)
    }

    /// Returns the memory that the process maps.
    pub(crate) fn memory(&self) -> &Arc<SharedMem> {
        &self.0.memory
    }

    /// Returns how many elements a list may have.
    pub(crate) fn max_sge(&self) -> u32 {
        // CAST: at most MAX_SGE.
        (self.max_inline() / SGE_LEN as u32).min(MAX_SGE as u32)
    }

    /// Returns how many octets may be inline.
    pub(super) fn max_inline(&self) -> u32 {
        // CAST: at most MAX_INLINE.
        (self.0.element_len() - SEND_LEN).min(MAX_INLINE) as u32
    }

    /// Returns how many requests are posted from `position` on.
    pub(crate) fn posted(&self, position: u32) -> u32 {
        self.0.added(position)
    }

    /// Decodes the request at `position`, which the caller knows to be posted.
    pub(crate) fn read(&self, position: u32, wr: &mut SendWr) -> Option<Result<(), BadWr>> {
        let head = self.0.memory.copy_out(self.0.at(position))?;
        Some(self.decode(position, &head, wr))
    }

    /// Returns the request at `position` to the process.
    pub(crate) fn release(&self, position: u32) {
        self.0.release(position);
    }

    /// Decodes the request at `position`, whose first octets are in `head`.
    ///
    /// # Errors
    ///
    /// An unknown or kernel-only opcode gives [`WcStatus::LocalQpOperation`], a list or inline data
    /// beyond the element [`WcStatus::LocalLength`].
    fn decode(&self, position: u32, head: &[u8; SEND_LEN], wr: &mut SendWr) -> Result<(), BadWr> {
        let id = u64_at(head, 0);
        let flags = SendFlags::from_bits(u32_at(head, 16));
        let rdma_to = u64_at(head, 24);
        let rdma_stag = Stag::new(u32_at(head, 32));
        let atomic_stag = Stag::new(u32_at(head, 48));
        let operands = (u64_at(head, 32), u64_at(head, 40));
        let extra = u32_at(head, 20);
        let number = u32_at(head, 12);
        let mut op = match number {
            OP_WRITE => SendOp::Write {
                stag: rdma_stag,
                to: rdma_to,
                immediate: None,
            },
            OP_WRITE_WITH_IMM => SendOp::Write {
                stag: rdma_stag,
                to: rdma_to,
                immediate: Some(Immediate::of_verbs(extra.to_ne_bytes())),
            },
            OP_SEND => SendOp::Send(SendExtra::None),
            OP_SEND_WITH_IMM => SendOp::Send(SendExtra::Immediate(extra.to_ne_bytes())),
            OP_SEND_WITH_INV => SendOp::Send(SendExtra::Invalidate(Stag::new(extra))),
            OP_READ => SendOp::Read {
                stag: rdma_stag,
                to: rdma_to,
                invalidate_local: false,
            },
            OP_COMPARE_SWAP => SendOp::Atomic {
                stag: atomic_stag,
                to: rdma_to,
                operation: AtomicOperation::CompareSwap {
                    swap: operands.1,
                    swap_mask: u64::MAX,
                    compare: operands.0,
                    compare_mask: u64::MAX,
                },
                opcode: WcOpcode::CompareSwap,
            },
            OP_FETCH_ADD => SendOp::Atomic {
                stag: atomic_stag,
                to: rdma_to,
                operation: AtomicOperation::FetchAdd {
                    add: operands.0,
                    mask: 0,
                },
                opcode: WcOpcode::FetchAdd,
            },
            OP_LOCAL_INV => SendOp::LocalInv {
                stag: Stag::new(extra),
            },
            OP_BIND_MW => SendOp::Bind(Bind {
                window: Stag::new(u32_at(head, 44)),
                key: Stag::new(u32_at(head, 48)),
                region: Stag::new(u32_at(head, 40)),
                addr: rdma_to,
                len: operands.0,
                access: AccessFlags::from_bits(u32_at(head, 52)),
            }),
            // The library does not know these. It leaves the key and the address where they are for
            // other requests; the operands stand in the list (utils/riwarp.h).
            opcode @ (OP_MASKED_COMPARE_SWAP | OP_MASKED_FETCH_ADD) => SendOp::Atomic {
                stag: Stag::new(extra),
                to: u64_at(head, 152),
                operation: AtomicOperation::FetchAdd { add: 0, mask: 0 },
                opcode: match opcode {
                    OP_MASKED_FETCH_ADD => WcOpcode::FetchAdd,
                    _ => WcOpcode::CompareSwap,
                },
            },
            // Likewise.
            OP_IMMEDIATE => SendOp::Write {
                stag: Stag::new(extra),
                to: u64_at(head, 152),
                immediate: None,
            },
            OP_ATOMIC_WRITE => SendOp::AtomicWrite {
                stag: rdma_stag,
                to: rdma_to,
            },
            OP_FLUSH => match flush(head) {
                Some(request) => SendOp::Flush(request),
                None => {
                    return Err(BadWr {
                        id,
                        opcode: WcOpcode::Flush,
                        status: WcStatus::LocalQpOperation,
                    })
                }
            },
            _ => {
                return Err(BadWr {
                    id,
                    opcode: WcOpcode::Send,
                    status: WcStatus::LocalQpOperation,
                })
            }
        };
        let opcode = op.wc_opcode();
        let len = match op {
            // The length of its range; it sends no octets.
            SendOp::Flush(_) => 0,
            _ => u32_at(head, LEN_AT) as usize,
        };
        let count = u32_at(head, 196) as usize;
        // `ibv_wr_set_inline_data` does not set the flag, but only inline data has octets without a
        // list.
        let inline = flags.contains(SendFlags::INLINE) || (count == 0 && len != 0);
        let room = if inline {
            wr.payload.inline_room(len)
        } else {
            wr.payload.list_room(count)
        };
        if !room.is_some_and(|room| self.0.copy_out(position, SEND_LEN, room)) {
            wr.payload.clear();
            return Err(BadWr {
                id,
                opcode,
                status: WcStatus::LocalLength,
            });
        }
        if let OP_MASKED_COMPARE_SWAP | OP_MASKED_FETCH_ADD | OP_IMMEDIATE = number {
            if take_operands(&mut op, number, &mut wr.payload).is_none() {
                wr.payload.clear();
                return Err(BadWr {
                    id,
                    opcode,
                    status: WcStatus::LocalLength,
                });
            }
        }
        wr.id = id;
        wr.op = op;
        wr.signalled = flags.contains(SendFlags::SIGNALED);
        wr.solicited = flags.contains(SendFlags::SOLICITED);
        wr.fence = flags.contains(SendFlags::FENCE);
        Ok(())
    }
}

/// Takes out of the list what an operation that the library does not know has there in place of
/// memory: addresses of elements that have no octets, behind all others. [`None`] if the list has
/// another form.
#[cold]
fn take_operands(op: &mut SendOp, opcode: u32, list: &mut Payload) -> Option<()> {
    let mut last = || list.pop().filter(|element| element.len == 0);
    match op {
        SendOp::Atomic { operation, .. } => {
            let (mask, value) = (last()?.addr, last()?.addr);
            *operation = if opcode == OP_MASKED_FETCH_ADD {
                AtomicOperation::FetchAdd { add: value, mask }
            } else {
                let (compare_mask, compare) = (last()?.addr, last()?.addr);
                AtomicOperation::CompareSwap {
                    swap: value,
                    swap_mask: mask,
                    compare,
                    compare_mask,
                }
            };
            (list.sges().len() == 1).then_some(())
        }
        SendOp::Write { immediate, .. } => {
            let element = last()?;
            let data = element.addr.to_ne_bytes();
            if element.lkey == IMMEDIATE_BEHIND_A_WRITE {
                *immediate = Some(data);
                return Some(());
            }
            *op = SendOp::Immediate(data);
            (element.lkey == 0 && list.sges().len() == 0).then_some(())
        }
        // No other operation has any.
        _ => None,
    }
}

/// Decodes a Flush. [`None`] if its placement or level does not exist, or if it has a list.
fn flush(head: &[u8; SEND_LEN]) -> Option<FlushRequest> {
    let [placement, level, ..] = u32_at(head, 40).to_ne_bytes();
    let level = match level {
        0 => FlushLevel::Range,
        1 => FlushLevel::Region,
        _ => return None,
    };
    if u32_at(head, 196) != 0 {
        return None;
    }
    Some(FlushRequest {
        placement: FlushPlacement::from_bits(placement)?,
        level,
        stag: Stag::new(u32_at(head, 36)),
        to: TaggedOffset::new(u64_at(head, 24)),
        len: u32_at(head, LEN_AT),
    })
}

/// The receive queue, or shared receive queue, of a process.
#[derive(Clone)]
pub(crate) struct RxeRecvRing(Queue);

impl RxeRecvRing {
    /// Makes a queue of `places`, a power of two, for lists of `sges` elements.
    pub(crate) fn new(places: u32, sges: u32) -> Result<Self> {
        Queue::new(places, RECV_LEN + sges as usize * SGE_LEN).map(Self)
    }

    /// Returns the memory that the process maps.
    pub(crate) fn memory(&self) -> &Arc<SharedMem> {
        &self.0.memory
    }

    /// Returns how many elements a list may have.
    pub(crate) fn max_sge(&self) -> u32 {
        // CAST: at most MAX_SGE.
        ((self.0.element_len() - RECV_LEN) / SGE_LEN).min(MAX_SGE) as u32
    }

    /// Returns how many requests are posted from `position` on.
    pub(crate) fn posted(&self, position: u32) -> u32 {
        self.0.added(position)
    }

    /// Returns whether at least `count` requests are posted from `position` on.
    pub(crate) fn holds(&self, position: u32, count: u32) -> bool {
        self.posted(position) >= count
    }

    /// Copies the requests posted from `position` on to the front of another, empty queue, whose
    /// elements have the same length. Returns how many they are.
    ///
    /// # Errors
    ///
    /// `EINVAL` if they do not fit, or the elements of the queues differ in length.
    pub(crate) fn copy_to(&self, position: u32, other: &Self) -> Result<u32> {
        let count = self.0.added(position);
        self.0.copy_range(position, count, &other.0, 0)?;
        Ok(count)
    }

    /// Returns to the process the first `count` requests, which were taken from the replaced queue.
    pub(crate) fn skip(&self, count: u32) {
        self.0.release(count.wrapping_sub(1));
    }

    /// Takes the request at `position`; [`None`] if none is posted.
    pub(crate) fn take(&self, position: u32, wr: &mut RecvWr) -> Option<Result<(), BadWr>> {
        if self.0.added(position) == 0 {
            return None;
        }
        let head = self
            .0
            .memory
            .copy_out::<[u8; RECV_LEN]>(self.0.at(position))?;
        wr.id = u64_at(&head, 0);
        let room = wr.buffer.list_room(u32_at(&head, 28) as usize);
        let copied = room.is_some_and(|room| self.0.copy_out(position, RECV_LEN, room));
        self.0.release(position);
        Some(if copied {
            Ok(())
        } else {
            wr.buffer.clear();
            Err(BadWr {
                id: wr.id,
                opcode: WcOpcode::Recv,
                status: WcStatus::LocalLength,
            })
        })
    }
}

/// The completion queue of a process, which polls it without a system call and arms it by one.
#[derive(Clone)]
pub(crate) struct RxeCqRing(Queue);

impl RxeCqRing {
    /// Makes a queue of `places`, a power of two.
    pub(crate) fn new(places: u32) -> Result<Self> {
        Queue::new(places, CQE_LEN).map(Self)
    }

    /// Returns the memory that the process maps.
    pub(crate) fn memory(&self) -> &Arc<SharedMem> {
        &self.0.memory
    }

    /// Returns how many completions before `position` the process has not polled yet.
    pub(crate) fn waiting(&self, position: u32) -> Option<u32> {
        self.0.waiting(position)
    }

    /// Returns how many completions it holds.
    pub(crate) fn room(&self) -> u32 {
        self.0.mask
    }

    /// Copies the completions before `position` that the process has not polled yet to the front of
    /// another queue. Returns how many they are.
    ///
    /// # Errors
    ///
    /// `EINVAL` if they do not fit, or the elements of the queues differ in length.
    pub(crate) fn copy_to(&self, position: u32, other: &Self) -> Result<u32> {
        let count = self.waiting(position).ok_or(EINVAL)?;
        self.copy_range(position.wrapping_sub(count), count, other, 0)?;
        Ok(count)
    }

    /// Copies `count` completions from `position` on to another queue, from `target` on, and sets
    /// that queue's producer index to the end of the copy.
    ///
    /// # Errors
    ///
    /// `EINVAL` if they do not fit, or the elements of the queues differ in length.
    pub(crate) fn copy_range(
        &self,
        position: u32,
        count: u32,
        other: &Self,
        target: u32,
    ) -> Result {
        self.0.copy_range(position, count, &other.0, target)
    }

    /// Stores a completion at `position`. Returns false if the queue is full.
    pub(crate) fn post(&self, position: u32, completion: &Completion) -> bool {
        self.0.add(position, &encode_cqe(completion))
    }
}

/// Encodes a completion (`struct ib_uverbs_wc`).
fn encode_cqe(completion: &Completion) -> [u8; CQE_LEN] {
    let (extra, mut flags) = match completion.extra {
        WcExtra::None => ([0; 4], 0),
        WcExtra::Immediate(octets) => (octets, WC_WITH_IMM),
        WcExtra::Invalidated(rkey) => (rkey.to_ne_bytes(), WC_WITH_INV),
    };
    let mut entry = [0; CQE_LEN];
    if let Some([first @ .., e, f, g, h]) = completion.immediate {
        let rest = [e, f, g, h];
        flags |= WC_IMMEDIATE_DATA;
        if first == [0; 4] && rest != [0; 4] {
            flags |= WC_IMMEDIATE_DATA_LAST;
        }
        entry[32..36].copy_from_slice(&rest);
    }
    entry[0..8].copy_from_slice(&completion.id.to_ne_bytes());
    // The values of user space equal the kernel's.
    entry[8..12].copy_from_slice(&completion.status.to_raw().to_ne_bytes());
    entry[12..16].copy_from_slice(&completion.opcode.to_raw().to_ne_bytes());
    entry[16..20].copy_from_slice(&completion.vendor_err.to_ne_bytes());
    entry[20..24].copy_from_slice(&completion.bytes.to_ne_bytes());
    entry[24..28].copy_from_slice(&extra);
    entry[28..32].copy_from_slice(&completion.qpn.to_ne_bytes());
    entry[36..40].copy_from_slice(&flags.to_ne_bytes());
    // The port number.
    entry[46] = 1;
    entry
}
