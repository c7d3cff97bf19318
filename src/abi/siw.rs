// SPDX-License-Identifier: GPL-2.0

//! The user ABI of the distribution's software iWARP library (`include/uapi/rdma/siw-abi.h`).
//!
//! Queues are memory shared with the process. While an entry's VALID flag is set, it belongs to the
//! kernel in send and receive queues, and to the process in completion queues. All entries are in
//! host byte order. The process can change them at any time: the driver copies an entry out once as
//! octets and uses only what it decodes from the copy.
//!
//! | structure | octets | flags at |
//! |---|---|---|
//! | `siw_sqe` | 120 | 8, 16 bits |
//! | `siw_rqe` | 112 | 8, 16 bits |
//! | `siw_cqe` | 32 | 8, 8 bits |
//! | `siw_cq_ctrl` | 8, after the last CQE | 0, 32 bits |

use iwarp::{
    rdmap::SendExtra,
    stag::Stag, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};
use kernel_ext::{
    mm::shared_ring::SharedMem,
    rdma::{
        udata::Udata,
        wr::{
            WcExtra,
            WcOpcode,
            WcStatus, //
        }, //
    },
    warn_on_once, //
};

use super::{
    u16_at,
    u32_at,
    u64_at, //
};
use crate::{
    abi::wr::{
        BadWr,
        Completion,
        PendingEvent,
        RecvWr,
        SendOp,
        SendWr, //
    },
    mem::payload::{
        Payload,
        SGE_LEN, //
    }, //
};

mod ring;
#[cfg(CONFIG_KUNIT = "y")]
mod tests;

use ring::{
    CompletionRing,
    Ring,
    RingEntry,
    CQE_LEN, //
};
pub(crate) use ring::{
    FLAGS_AT,
    VALID, //
};

/// Most elements of a scatter/gather list: the size of an array in the library.
pub(crate) const MAX_SGE: usize = 6;
/// Most octets of inline data: the space of all elements but the first.
pub(crate) const MAX_INLINE: usize = (MAX_SGE - 1) * SGE_LEN;
/// The key by which the library knows an object without memory to map (`SIW_INVAL_UOBJ_KEY`).
const NO_MEMORY: u64 = 0x9_0000;
const SQE_LEN: usize = 120;
pub(crate) const RQE_LEN: usize = 112;
const SQE_SGES_AT: usize = 24;
const RQE_SGES_AT: usize = 16;
/// Inline octets start where the second element of the list would be.
const SQE_INLINE_AT: usize = SQE_SGES_AT + SGE_LEN;

const _: () = assert!(SQE_SGES_AT + MAX_SGE * SGE_LEN == SQE_LEN);
const _: () = assert!(RQE_SGES_AT + MAX_SGE * SGE_LEN == RQE_LEN);
const _: () = assert!(SQE_INLINE_AT + MAX_INLINE == SQE_LEN);

// Flags of a work queue entry.
const INLINE: u16 = 1 << 1;
const SIGNALLED: u16 = 1 << 2;
const SOLICITED: u16 = 1 << 3;
const READ_FENCE: u16 = 1 << 4;
/// Flag of a completion: the peer's Send invalidated an STag.
const REM_INVAL: u8 = 1 << 5;

// Opcodes.
const OP_WRITE: u8 = 0;
const OP_READ: u8 = 1;
const OP_READ_LOCAL_INV: u8 = 2;
const OP_SEND: u8 = 3;
const OP_SEND_REMOTE_INV: u8 = 5;
const OP_RECEIVE: u8 = 8;
const OP_INVAL_STAG: u8 = 10;
const OP_REG_MR: u8 = 11;

/// Answer to the creation of a completion queue (`siw_uresp_create_cq`).
#[derive(IntoBytes, zerocopy_derive::Immutable)]
#[repr(C)]
pub(super) struct CreateCqResponse {
    pub(super) cq_id: u32,
    pub(super) num_cqe: u32,
    pub(super) cq_key: u64,
}

/// Answer to the creation of a queue pair (`siw_uresp_create_qp`).
#[derive(IntoBytes, zerocopy_derive::Immutable)]
#[repr(C)]
pub(crate) struct SiwCreateQpResponse {
    pub(super) qp_id: u32,
    pub(super) num_sqe: u32,
    pub(super) num_rqe: u32,
    pub(super) pad: u32,
    pub(super) sq_key: u64,
    pub(super) rq_key: u64,
}

/// Answer to the creation of a shared receive queue (`siw_uresp_create_srq`).
#[derive(IntoBytes, zerocopy_derive::Immutable)]
#[repr(C)]
pub(super) struct SiwCreateSrqResponse {
    pub(super) num_rqe: u32,
    pub(super) pad: u32,
    pub(super) srq_key: u64,
}

/// The send queue of a process.
pub(crate) struct SiwSendRing(Ring<SQE_LEN>);

impl SiwSendRing {
    /// Makes a queue of `entries` entries, a power of two.
    pub(crate) fn new(entries: u32) -> Result<Self> {
        Ring::new(entries).map(Self)
    }

    /// Returns the memory that the process maps.
    pub(crate) fn memory(&self) -> &Arc<SharedMem> {
        &self.0.memory
    }

    /// Returns whether the request at `position` is posted.
    pub(crate) fn is_posted(&self, position: u32) -> bool {
        self.0.is_posted(position)
    }

    /// Returns how many requests are posted from `position` on.
    pub(crate) fn posted(&self, position: u32) -> u32 {
        let posted = (0..=self.0.mask)
            .take_while(|n| self.is_posted(position.wrapping_add(*n)))
            .count();
        // CAST: at most the number of entries.
        posted as u32
    }

    /// Returns a position behind each request that is posted from `position` on, as seen beside
    /// the transmit task: that may have returned requests at the front already. One beyond another
    /// that is posted was posted later, so the last one implies the others.
    pub(crate) fn end(&self, position: u32) -> u32 {
        let ends = (0..=self.0.mask).map(|n| position.wrapping_add(n));
        let last = ends.rev().find(|at| self.is_posted(*at));
        last.map_or(position, |last| last.wrapping_add(1))
    }

    /// Decodes the request at `position`, which the caller knows to be posted.
    #[inline(never)]
    pub(crate) fn read(&self, position: u32, wr: &mut SendWr) -> Result<(), BadWr> {
        decode_sqe(&self.0.entry(position), wr)
    }

    /// Returns the request at `position` to the process, before a look at the next one.
    pub(crate) fn release(&self, position: u32) {
        self.0.release_before_next(position);
    }
}

/// The receive queue, or shared receive queue, of a process.
#[derive(Clone)]
pub(crate) struct SiwRecvRing(Ring<RQE_LEN>);

impl SiwRecvRing {
    /// Makes a queue of `entries` entries, a power of two.
    pub(crate) fn new(entries: u32) -> Result<Self> {
        Ring::new(entries).map(Self)
    }

    /// Returns the memory that the process maps.
    pub(crate) fn memory(&self) -> &Arc<SharedMem> {
        &self.0.memory
    }

    /// Returns whether at least `count` requests, not 0, are posted from `position` on.
    pub(crate) fn holds(&self, position: u32, count: u32) -> bool {
        // Requests are posted in order, so the last one implies the others.
        count - 1 <= self.0.mask && self.0.is_posted(position.wrapping_add(count - 1))
    }

    /// Takes the request at `position`; [`None`] if none is posted.
    pub(crate) fn take(&self, position: u32, wr: &mut RecvWr) -> Option<Result<(), BadWr>> {
        if !self.0.is_posted(position) {
            return None;
        }
        let decoded = decode_rqe(&self.0.entry(position), wr);
        self.0.release(position);
        Some(decoded)
    }
}

/// Makes `memory` available for the process to map, and returns its key.
///
/// # Errors
///
/// Those of [`Udata::share`].
pub(super) fn share(udata: &mut Udata<'_>, memory: Arc<SharedMem>) -> Result<u64> {
    match udata.share(memory.clone())? {
        // The object keeps that key from others, so the next one is another.
        NO_MEMORY => udata.share(memory),
        key => Ok(key),
    }
}

/// Makes the send or receive queue of a size that the process gave as 0: one entry, which is always
/// posted.
///
/// The library maps each queue and divides by its size, so no queue may have zero entries. The
/// library cannot post to this one, because it finds the queue full (`ENOMEM`). The driver never
/// reads it.
pub(super) fn full_ring() -> Result<Arc<SharedMem>> {
    let ring = Ring::<SQE_LEN>::new(1)?;
    // ORDERING: no partner: no process has mapped the memory yet.
    ring.memory.store_u16_release(FLAGS_AT, VALID)?;
    Ok(ring.memory)
}

/// The completion queue of a process, which polls and arms it without a system call.
#[derive(Clone)]
pub(crate) struct SiwCqRing(CompletionRing);

impl SiwCqRing {
    /// Makes a queue of `entries` entries, a power of two.
    pub(crate) fn new(entries: u32) -> Result<Self> {
        CompletionRing::new(entries).map(Self)
    }

    /// Returns the memory that the process maps.
    pub(crate) fn memory(&self) -> &Arc<SharedMem> {
        &self.0.memory
    }

    /// Stores a completion. Returns false if the process has not polled the completion that
    /// occupies the entry.
    pub(crate) fn post(&self, position: u32, completion: &Completion) -> bool {
        let (entry, flags) = encode_cqe(completion);
        self.0.add(position, &entry, flags)
    }

    /// Returns how many completions before `position` the process has not polled.
    pub(crate) fn unpolled(&self, position: u32) -> u32 {
        self.0.unpolled(position)
    }

    /// Returns how many completions it holds.
    pub(crate) fn room(&self) -> u32 {
        self.0.room()
    }

    /// Clears the process's request for a notification if `event` satisfies it. Returns whether
    /// this call cleared it.
    pub(crate) fn disarm_for(&self, event: PendingEvent) -> bool {
        self.0.disarm_for(event)
    }
}

/// Decodes a send queue entry.
///
/// # Errors
///
/// An unknown or kernel-only opcode gives [`WcStatus::LocalQpOperation`], a bad number of elements
/// or too much inline data [`WcStatus::LocalLength`].
fn decode_sqe(entry: &RingEntry<'_, SQE_LEN>, wr: &mut SendWr) -> Result<(), BadWr> {
    // PANIC: none; entries are aligned and inside the memory.
    let head: [u8; SQE_SGES_AT] = entry.head().unwrap_or([0; SQE_SGES_AT]);
    let head = &head;
    let id = u64_at(head, 0);
    let flags = u16_at(head, FLAGS_AT);
    let num_sge = head[10];
    let rkey = Stag::new(u32_at(head, 12));
    let to = u64_at(head, 16);

    let op = match head[11] {
        OP_WRITE => SendOp::Write {
            stag: rkey,
            to,
            immediate: None,
        },
        OP_READ => SendOp::Read {
            stag: rkey,
            to,
            invalidate_local: false,
        },
        OP_READ_LOCAL_INV => SendOp::Read {
            stag: rkey,
            to,
            invalidate_local: true,
        },
        OP_SEND => SendOp::Send(SendExtra::None),
        OP_SEND_REMOTE_INV => SendOp::Send(SendExtra::Invalidate(rkey)),
        _ => {
            return Err(BadWr {
                id,
                opcode: WcOpcode::Send,
                status: WcStatus::LocalQpOperation,
            })
        }
    };
    let opcode = op.wc_opcode();
    let filled = if flags & INLINE != 0 {
        // The library stores the number of inline octets in the length of the first element.
        let mut len = [0; 4];
        entry.fill(SQE_SGES_AT + 8, Some(&mut len));
        let len = u32::from_ne_bytes(len) as usize;
        let room = (len <= MAX_INLINE).then(|| wr.payload.inline_room(len));
        entry.fill(SQE_INLINE_AT, room.flatten())
    } else {
        fill_list(entry, SQE_SGES_AT, num_sge, &mut wr.payload)
    };
    if !filled {
        return Err(BadWr {
            id,
            opcode,
            status: WcStatus::LocalLength,
        });
    }
    wr.id = id;
    wr.op = op;
    wr.signalled = flags & SIGNALLED != 0;
    wr.solicited = flags & SOLICITED != 0;
    wr.fence = flags & READ_FENCE != 0;
    Ok(())
}

/// Decodes a receive queue entry.
///
/// # Errors
///
/// A bad number of elements gives [`WcStatus::LocalLength`].
fn decode_rqe(entry: &RingEntry<'_, RQE_LEN>, wr: &mut RecvWr) -> Result<(), BadWr> {
    // PANIC: none; entries are aligned and inside the memory.
    let head: [u8; RQE_SGES_AT] = entry.head().unwrap_or([0; RQE_SGES_AT]);
    wr.id = u64_at(&head, 0);
    if fill_list(entry, RQE_SGES_AT, head[10], &mut wr.buffer) {
        Ok(())
    } else {
        Err(BadWr {
            id: wr.id,
            opcode: WcOpcode::Recv,
            status: WcStatus::LocalLength,
        })
    }
}

/// Encodes a completion without its flags, which are published last.
///
/// Returns the entry and the flags.
fn encode_cqe(completion: &Completion) -> ([u8; CQE_LEN], u8) {
    let mut entry = [0; CQE_LEN];
    let mut flags = VALID as u8;
    entry[0..8].copy_from_slice(&completion.id.to_ne_bytes());
    entry[9] = encode_opcode(completion.opcode);
    entry[10..12].copy_from_slice(&encode_status(completion.status).to_ne_bytes());
    entry[12..16].copy_from_slice(&completion.bytes.to_ne_bytes());
    if let WcExtra::Invalidated(stag) = completion.extra {
        entry[16..20].copy_from_slice(&stag.to_ne_bytes());
        flags |= REM_INVAL;
    }
    entry[24..32].copy_from_slice(&u64::from(completion.qpn).to_ne_bytes());
    (entry, flags)
}

fn encode_opcode(opcode: WcOpcode) -> u8 {
    match opcode {
        WcOpcode::Send => OP_SEND,
        WcOpcode::Write => OP_WRITE,
        WcOpcode::Read => OP_READ,
        WcOpcode::RegMr => OP_REG_MR,
        WcOpcode::LocalInv => OP_INVAL_STAG,
        WcOpcode::Recv => OP_RECEIVE,
        _ => {
            // This ABI accepts no request whose completion has another opcode.
            warn_on_once!(true);
            OP_RECEIVE
        }
    }
}

/// The ABI's status values, in the order of `enum siw_wc_status`.
fn encode_status(status: WcStatus) -> u16 {
    match status {
        WcStatus::Success => 0,
        WcStatus::LocalLength => 1,
        WcStatus::LocalProtection => 2,
        WcStatus::LocalQpOperation => 3,
        WcStatus::Flushed => 4,
        WcStatus::BadResponse => 5,
        WcStatus::LocalAccess => 6,
        WcStatus::RemoteAccess => 7,
        WcStatus::RemoteInvalidRequest => 8,
        _ => 9,
    }
}

/// Copies a list of `count` elements that begins at `from`. Returns false if the entry cannot hold
/// that many.
#[inline]
fn fill_list<const LEN: usize>(
    entry: &RingEntry<'_, LEN>,
    from: usize,
    count: u8,
    payload: &mut Payload,
) -> bool {
    let count = usize::from(count);
    count <= MAX_SGE && entry.fill(from, payload.list_room(count))
}
