// SPDX-License-Identifier: GPL-2.0

//! The user ABI of the distribution's software iWARP library (`include/uapi/rdma/siw-abi.h`).
//!
//! Queues are memory shared with the user. An entry belongs to the kernel while its VALID flag is
//! set (send and receive queues) or to the user while it is set (completion queues). All entries are
//! in host byte order. They are hostile: an entry is copied out once as octets, and what is decoded
//! from the copy is all that is ever used.
//!
//! | structure | octets | flags at |
//! |---|---|---|
//! | `siw_sqe` | 120 | 8, 16 bits |
//! | `siw_rqe` | 112 | 8, 16 bits |
//! | `siw_cqe` | 32 | 8, 8 bits |
//! | `siw_cq_ctrl` | 8, after the last CQE | 0, 32 bits |

use iwarp::stag::Stag;
use kernel::prelude::*;
use kernel_ext::{
    mm::shared_ring::SharedMem,
    rdma::wr::{
        WcOpcode,
        WcStatus, //
    }, //
};

use crate::wr::{
    Completion,
    Inline,
    Payload,
    RecvWr,
    SendOp,
    SendWr,
    Sge,
    SgeList,
    MAX_INLINE,
    MAX_SGE, //
};

/// Octets of a send queue entry.
pub(crate) const SQE_LEN: usize = 120;
/// Octets of a receive queue entry.
pub(crate) const RQE_LEN: usize = 112;
/// Octets of a completion queue entry.
pub(crate) const CQE_LEN: usize = 32;
/// Octets of the control block behind the completion queue entries.
pub(crate) const CQ_CTRL_LEN: usize = 8;
/// Where an entry's flags are.
pub(crate) const FLAGS_AT: usize = 8;
/// The entry is for the other side.
pub(crate) const VALID: u16 = 1;
/// "There is no mapping": the value of a key that was not made.
pub(crate) const INVALID_KEY: u64 = 0x09_0000;

const SGE_LEN: usize = 16;
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

/// Arms a completion queue for solicited completions.
pub(crate) const NOTIFY_SOLICITED: u32 = 1 << 0;
/// Arms a completion queue for the next completion.
pub(crate) const NOTIFY_NEXT: u32 = 1 << 1;

/// Answer to the creation of a completion queue (`siw_uresp_create_cq`).
#[derive(IntoBytes, zerocopy_derive::Immutable)]
#[repr(C)]
pub(crate) struct CreateCqResponse {
    pub(crate) cq_id: u32,
    pub(crate) num_cqe: u32,
    pub(crate) cq_key: u64,
}

/// Answer to the creation of a queue pair (`siw_uresp_create_qp`).
#[derive(IntoBytes, zerocopy_derive::Immutable)]
#[repr(C)]
pub(crate) struct CreateQpResponse {
    pub(crate) qp_id: u32,
    pub(crate) num_sqe: u32,
    pub(crate) num_rqe: u32,
    pub(crate) pad: u32,
    pub(crate) sq_key: u64,
    pub(crate) rq_key: u64,
}

/// Answer to the creation of a shared receive queue (`siw_uresp_create_srq`).
#[derive(IntoBytes, zerocopy_derive::Immutable)]
#[repr(C)]
pub(crate) struct CreateSrqResponse {
    pub(crate) num_rqe: u32,
    pub(crate) pad: u32,
    pub(crate) srq_key: u64,
}

/// Whether the entry at `at` belongs to the kernel. What else it says may be read after this.
pub(crate) fn is_posted(memory: &SharedMem, at: usize) -> bool {
    let flags = memory.load_u16_acquire(at + FLAGS_AT);
    flags.is_some_and(|flags| flags & VALID != 0)
}

/// A send queue entry that no user of this ABI can have posted in good faith.
pub(crate) struct BadEntry {
    /// The cookie that the entry names.
    pub(crate) id: u64,
    /// Best guess at the opcode of its completion.
    pub(crate) opcode: WcOpcode,
    /// Why it is refused.
    pub(crate) status: WcStatus,
}

/// Decodes a send queue entry that was copied out of shared memory.
///
/// # Errors
///
/// An unknown or kernel-only opcode gives [`WcStatus::LocalQpOperation`], a bad number of elements or too
/// much inline data [`WcStatus::LocalLength`].
pub(crate) fn decode_sqe(entry: &[u8; SQE_LEN]) -> Result<SendWr, BadEntry> {
    let id = u64_at(entry, 0);
    let flags = u16_at(entry, FLAGS_AT);
    let num_sge = entry[10];
    let rkey = Stag::new(u32_at(entry, 12));
    let to = u64_at(entry, 16);

    let op = match entry[11] {
        OP_WRITE => SendOp::Write { stag: rkey, to },
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
        OP_SEND => SendOp::Send { invalidate: None },
        OP_SEND_REMOTE_INV => SendOp::Send {
            invalidate: Some(rkey),
        },
        _ => {
            return Err(BadEntry {
                id,
                opcode: WcOpcode::Send,
                status: WcStatus::LocalQpOperation,
            })
        }
    };
    let bad_length = BadEntry {
        id,
        opcode: op.wc_opcode(),
        status: WcStatus::LocalLength,
    };

    let payload = if flags & INLINE != 0 {
        // The library keeps the number of inline octets in the first element's length.
        let len = u32_at(entry, SQE_SGES_AT + 8) as usize;
        let inline = entry
            .get(SQE_INLINE_AT..)
            .and_then(|room| room.get(..len))
            .and_then(Inline::new);
        match inline {
            Some(inline) => Payload::Inline(inline),
            None => return Err(bad_length),
        }
    } else {
        match decode_sges(&entry[SQE_SGES_AT..], num_sge) {
            Some(list) => Payload::Sges(list),
            None => return Err(bad_length),
        }
    };

    Ok(SendWr {
        id,
        op,
        payload,
        signalled: flags & SIGNALLED != 0,
        solicited: flags & SOLICITED != 0,
        fence: flags & READ_FENCE != 0,
    })
}

/// Decodes a receive queue entry that was copied out of shared memory.
///
/// # Errors
///
/// A bad number of elements gives [`WcStatus::LocalLength`].
pub(crate) fn decode_rqe(entry: &[u8; RQE_LEN]) -> Result<RecvWr, BadEntry> {
    let id = u64_at(entry, 0);
    match decode_sges(&entry[RQE_SGES_AT..], entry[10]) {
        Some(sges) => Ok(RecvWr { id, sges }),
        None => Err(BadEntry {
            id,
            opcode: WcOpcode::Recv,
            status: WcStatus::LocalLength,
        }),
    }
}

/// Encodes a completion without its flags, which are published last.
///
/// Returns the entry and the flags.
pub(crate) fn encode_cqe(completion: &Completion) -> ([u8; CQE_LEN], u8) {
    let mut entry = [0; CQE_LEN];
    let mut flags = VALID as u8;
    entry[0..8].copy_from_slice(&completion.id.to_ne_bytes());
    entry[9] = encode_opcode(completion.opcode);
    entry[10..12].copy_from_slice(&encode_status(completion.status).to_ne_bytes());
    entry[12..16].copy_from_slice(&completion.bytes.to_ne_bytes());
    if let Some(stag) = completion.invalidated {
        entry[16..20].copy_from_slice(&stag.raw().to_ne_bytes());
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
        // PANIC: none. What this ABI cannot name was never accepted through it.
        _ => OP_RECEIVE,
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

fn decode_sges(list: &[u8], count: u8) -> Option<SgeList> {
    let mut sges = SgeList::default();
    if usize::from(count) > MAX_SGE {
        return None;
    }
    for entry in list.chunks_exact(SGE_LEN).take(usize::from(count)) {
        if !sges.push(Sge {
            addr: u64_at(entry, 0),
            len: u32_at(entry, 8),
            lkey: u32_at(entry, 12),
        }) {
            return None;
        }
    }
    Some(sges)
}

// The offsets below are constants inside arrays of known length; `unwrap_or` keeps the panic path
// out without an unchecked access.

fn u16_at(entry: &[u8], at: usize) -> u16 {
    u16::from_ne_bytes(octets(entry, at))
}

fn u32_at(entry: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(octets(entry, at))
}

fn u64_at(entry: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(octets(entry, at))
}

fn octets<const N: usize>(entry: &[u8], at: usize) -> [u8; N] {
    entry
        .get(at..)
        .and_then(|rest| rest.first_chunk::<N>())
        .copied()
        .unwrap_or([0; N])
}

#[kernel::prelude::kunit_tests(riwarp_abi_siw)]
mod tests {
    use super::*;
    use kernel_ext::rdma::object::QpId;

    /// A send queue entry with `num_sge` elements of lengths 1, 2, 3 ...
    fn sqe(opcode: u8, flags: u16, num_sge: u8) -> [u8; SQE_LEN] {
        let mut entry = [0; SQE_LEN];
        entry[..8].copy_from_slice(&0x1122_3344_5566_7788u64.to_ne_bytes());
        entry[8..10].copy_from_slice(&(flags | VALID).to_ne_bytes());
        entry[10] = num_sge;
        entry[11] = opcode;
        entry[12..16].copy_from_slice(&0xaabb_ccddu32.to_ne_bytes());
        entry[16..24].copy_from_slice(&0x0102_0304_0506_0708u64.to_ne_bytes());
        for place in 0..MAX_SGE {
            let at = SQE_SGES_AT + place * SGE_LEN;
            entry[at..at + 8].copy_from_slice(&(0x1000 * place as u64).to_ne_bytes());
            entry[at + 8..at + 12].copy_from_slice(&(place as u32 + 1).to_ne_bytes());
            entry[at + 12..at + 16].copy_from_slice(&(place as u32 + 100).to_ne_bytes());
        }
        entry
    }

    fn decode(entry: &[u8; SQE_LEN]) -> Result<SendWr> {
        decode_sqe(entry).map_err(|_| EINVAL)
    }

    fn refusal(entry: &[u8; SQE_LEN]) -> Option<(u64, WcStatus)> {
        decode_sqe(entry).err().map(|bad| (bad.id, bad.status))
    }

    const ID: u64 = 0x1122_3344_5566_7788;

    #[test]
    fn a_write_names_the_peers_buffer() -> Result {
        let wr = decode(&sqe(OP_WRITE, 0, 1))?;
        assert_eq!(wr.id, ID);
        let SendOp::Write { stag, to } = wr.op else {
            return Err(EINVAL);
        };
        assert_eq!((stag.raw(), to), (0xaabb_ccdd, 0x0102_0304_0506_0708));
        assert!(!wr.signalled && !wr.solicited && !wr.fence);
        Ok(())
    }

    #[test]
    fn flags_are_told_apart() -> Result {
        let wr = decode(&sqe(OP_SEND, SIGNALLED, 0))?;
        assert!(wr.signalled && !wr.solicited && !wr.fence);
        let wr = decode(&sqe(OP_SEND, SOLICITED, 0))?;
        assert!(!wr.signalled && wr.solicited && !wr.fence);
        let wr = decode(&sqe(OP_SEND, READ_FENCE, 0))?;
        assert!(!wr.signalled && !wr.solicited && wr.fence);
        Ok(())
    }

    #[test]
    fn two_kinds_of_reads_and_two_of_sends() -> Result {
        for (opcode, local) in [(OP_READ, false), (OP_READ_LOCAL_INV, true)] {
            let SendOp::Read {
                invalidate_local, ..
            } = decode(&sqe(opcode, 0, 1))?.op
            else {
                return Err(EINVAL);
            };
            assert_eq!(invalidate_local, local);
        }
        for (opcode, expected) in [(OP_SEND, None), (OP_SEND_REMOTE_INV, Some(0xaabb_ccdd))] {
            let SendOp::Send { invalidate } = decode(&sqe(opcode, 0, 1))?.op else {
                return Err(EINVAL);
            };
            assert_eq!(invalidate.map(Stag::raw), expected);
        }
        Ok(())
    }

    #[test]
    fn no_other_opcode_can_be_posted() {
        for opcode in 0..=u8::MAX {
            let known = [
                OP_WRITE,
                OP_READ,
                OP_READ_LOCAL_INV,
                OP_SEND,
                OP_SEND_REMOTE_INV,
            ];
            let expected = if known.contains(&opcode) {
                None
            } else {
                Some((ID, WcStatus::LocalQpOperation))
            };
            assert_eq!(refusal(&sqe(opcode, 0, 1)), expected);
        }
    }

    #[test]
    fn elements_are_read_as_many_as_it_says() -> Result {
        for count in 0..=6u8 {
            let Payload::Sges(list) = decode(&sqe(OP_SEND, 0, count))?.payload else {
                return Err(EINVAL);
            };
            assert_eq!(list.as_slice().len(), usize::from(count));
            for (place, sge) in list.as_slice().iter().enumerate() {
                assert_eq!(sge.addr, 0x1000 * place as u64);
                assert_eq!(sge.len, place as u32 + 1);
                assert_eq!(sge.lkey, place as u32 + 100);
            }
        }
        for count in 7..=u8::MAX {
            let refused = refusal(&sqe(OP_SEND, 0, count));
            assert_eq!(refused, Some((ID, WcStatus::LocalLength)));
        }
        Ok(())
    }

    #[test]
    fn inline_octets_are_those_behind_the_first_element() -> Result {
        for len in [0, 1, 79, 80] {
            let mut entry = sqe(OP_SEND, INLINE, 200);
            entry[SQE_SGES_AT + 8..SQE_SGES_AT + 12].copy_from_slice(&(len as u32).to_ne_bytes());
            let Payload::Inline(inline) = decode(&entry)?.payload else {
                return Err(EINVAL);
            };
            assert!(inline.as_slice() == &entry[SQE_INLINE_AT..SQE_INLINE_AT + len]);
        }
        for len in [81, 96, 120, u32::MAX] {
            let mut entry = sqe(OP_SEND, INLINE, 1);
            entry[SQE_SGES_AT + 8..SQE_SGES_AT + 12].copy_from_slice(&len.to_ne_bytes());
            assert_eq!(refusal(&entry), Some((ID, WcStatus::LocalLength)));
        }
        Ok(())
    }

    #[test]
    fn every_octet_of_an_entry_may_be_anything() {
        for _ in 0..2000 {
            let entry: [u8; SQE_LEN] = kernel_ext::random::octets();
            if let Ok(wr) = decode_sqe(&entry) {
                assert!(wr.payload.len() <= 6 * u64::from(u32::MAX));
            }
            let entry: [u8; RQE_LEN] = kernel_ext::random::octets();
            if let Ok(wr) = decode_rqe(&entry) {
                assert!(wr.sges.as_slice().len() <= MAX_SGE);
            }
        }
    }

    #[test]
    fn receive_entries_have_their_elements_earlier() -> Result {
        let mut entry = [0; RQE_LEN];
        entry[..8].copy_from_slice(&ID.to_ne_bytes());
        entry[10] = 2;
        entry[RQE_SGES_AT..RQE_SGES_AT + 8].copy_from_slice(&0x5000u64.to_ne_bytes());
        entry[RQE_SGES_AT + 24..RQE_SGES_AT + 28].copy_from_slice(&77u32.to_ne_bytes());
        let wr = decode_rqe(&entry).map_err(|_| EINVAL)?;
        assert_eq!(wr.id, ID);
        let sges = wr.sges.as_slice();
        assert_eq!((sges[0].addr, sges[1].len, sges.len()), (0x5000, 77, 2));
        entry[10] = 7;
        let bad = decode_rqe(&entry).err().map(|bad| (bad.id, bad.status));
        assert_eq!(bad, Some((ID, WcStatus::LocalLength)));
        Ok(())
    }

    const COMPLETION: Completion = Completion {
        id: ID,
        status: WcStatus::Success,
        opcode: WcOpcode::Recv,
        bytes: 0x0102_0304,
        invalidated: None,
        qpn: 0x0005_0607,
        qp: QpId::NONE,
        solicited: false,
    };

    #[test]
    fn a_completion_is_laid_out_as_the_library_reads_it() {
        let (entry, flags) = encode_cqe(&COMPLETION);
        assert_eq!(flags, 1);
        assert_eq!(entry[..8], ID.to_ne_bytes());
        // The flags are published last, by somebody else.
        assert_eq!(entry[8..12], [0, OP_RECEIVE, 0, 0]);
        assert_eq!(entry[12..16], 0x0102_0304u32.to_ne_bytes());
        assert_eq!(entry[16..24], [0; 8]);
        assert_eq!(entry[24..], 0x0005_0607u64.to_ne_bytes());
    }

    #[test]
    fn an_invalidated_key_comes_with_its_flag() {
        let (entry, flags) = encode_cqe(&Completion {
            invalidated: Some(Stag::new(0xaabb_ccdd)),
            ..COMPLETION
        });
        assert_eq!(flags, 0x21);
        assert_eq!(entry[16..20], 0xaabb_ccddu32.to_ne_bytes());
    }

    #[test]
    fn every_status_has_a_value_of_the_abi() {
        let mut seen = 0u32;
        for raw in 0..64 {
            let Some(status) = WcStatus::from_raw(raw) else {
                continue;
            };
            let (entry, _) = encode_cqe(&Completion {
                status,
                ..COMPLETION
            });
            let value = u16_at(&entry, 10);
            assert!(value <= 9);
            // Only "something else" stands for several.
            assert!(value == 9 || seen & 1 << value == 0);
            seen |= 1 << value;
        }
        assert_eq!(seen, 0x3ff);
    }

    #[test]
    fn an_entry_is_posted_by_one_bit_of_its_flags() -> Result {
        let memory = SharedMem::try_new(4096)?;
        assert!(!is_posted(&memory, 0));
        memory.store_u16_release(FLAGS_AT, !VALID)?;
        assert!(!is_posted(&memory, 0));
        memory.store_u16_release(FLAGS_AT, VALID)?;
        assert!(is_posted(&memory, 0));
        assert!(!is_posted(&memory, 4096));
        Ok(())
    }
}
