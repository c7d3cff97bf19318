// SPDX-License-Identifier: GPL-2.0

//! Converts work requests of kernel consumers to the driver's form.
//!
//! The pointers of a kernel consumer are trusted, its numbers are not: a list that is too long or
//! an unsupported operation is refused before anything is queued.
//!
//! Context: any.

use iwarp::{
    atomic::AtomicOperation,
    rdmap::{
        Immediate,
        SendExtra, //
    },
    stag::Stag, //
};
use kernel::prelude::*;
use kernel_ext::{
    compat::EOPNOTSUPP,
    rdma::wr::{
        self as verbs,
        SendFlags,
        Sges,
        WcOpcode, //
    }, //
};

use crate::{
    abi::wr::{
        RecvWr,
        SendOp,
        SendWr, //
    },
    mem::{
        mr::registration::Mr,
        payload::{
            Payload,
            Sge,
            MAX_INLINE, //
        }, //
    }, //
};

/// Converts a send work request, in place. `send` need not be empty, but has no region.
///
/// # Errors
///
/// Leave `send` without a meaning, and without a region.
///
/// `EINVAL` for a list that is too long, too much inline data or inline data with an operation that
/// allows none; `EOPNOTSUPP` for an operation that the device does not support.
pub(crate) fn send(wr: &verbs::IbSendWr<'_, Mr>, send: &mut SendWr) -> Result {
    let flags = wr.flags();
    let op = match wr.op() {
        verbs::IbSendOp::Send => SendOp::Send(SendExtra::None),
        verbs::IbSendOp::SendWithInv { rkey } => {
            SendOp::Send(SendExtra::Invalidate(Stag::new(rkey)))
        }
        verbs::IbSendOp::Write { remote_addr, rkey } => SendOp::Write {
            stag: Stag::new(rkey),
            to: remote_addr,
            immediate: None,
        },
        verbs::IbSendOp::WriteWithImm {
            remote_addr,
            rkey,
            imm,
        } => SendOp::Write {
            stag: Stag::new(rkey),
            to: remote_addr,
            immediate: Some(Immediate::of_verbs(imm)),
        },
        verbs::IbSendOp::Read { remote_addr, rkey } => SendOp::Read {
            stag: Stag::new(rkey),
            to: remote_addr,
            invalidate_local: false,
        },
        // Invalidates the sink, whose key is in the list.
        verbs::IbSendOp::ReadWithInv {
            remote_addr, rkey, ..
        } => SendOp::Read {
            stag: Stag::new(rkey),
            to: remote_addr,
            invalidate_local: true,
        },
        verbs::IbSendOp::LocalInv { key } => SendOp::LocalInv {
            stag: Stag::new(key),
        },
        verbs::IbSendOp::RegMr {
            mr,
            key,
            iova,
            access,
        } => SendOp::RegMr {
            region: mr.region.clone(),
            key,
            base: iova,
            access,
        },
        verbs::IbSendOp::CompareSwap {
            remote_addr,
            rkey,
            compare,
            swap,
            compare_mask,
            swap_mask,
            masked,
        } => SendOp::Atomic {
            stag: Stag::new(rkey),
            to: remote_addr,
            operation: AtomicOperation::CompareSwap {
                swap,
                swap_mask,
                compare,
                compare_mask,
            },
            opcode: if masked {
                WcOpcode::MaskedCompareSwap
            } else {
                WcOpcode::CompareSwap
            },
        },
        verbs::IbSendOp::FetchAdd {
            remote_addr,
            rkey,
            add,
            boundary,
            masked,
        } => SendOp::Atomic {
            stag: Stag::new(rkey),
            to: remote_addr,
            operation: AtomicOperation::FetchAdd {
                add,
                mask: boundary,
            },
            opcode: if masked {
                WcOpcode::MaskedFetchAdd
            } else {
                WcOpcode::FetchAdd
            },
        },
        verbs::IbSendOp::SendWithImm { imm } => SendOp::Send(SendExtra::Immediate(imm)),
        verbs::IbSendOp::Unknown(_) => return Err(EOPNOTSUPP),
    };
    let inline = flags.contains(SendFlags::INLINE);
    let payload = &mut send.payload;
    payload.clear();
    match &op {
        SendOp::Send(_) | SendOp::Write { .. } if inline => {
            let room = payload.inline_room(MAX_INLINE).ok_or(EINVAL)?;
            let len = wr.copy_inline(room)?;
            payload.inline_room(len).ok_or(EINVAL)?;
        }
        SendOp::Send(_) | SendOp::Write { .. } | SendOp::Read { .. } | SendOp::Atomic { .. } => {
            if inline {
                return Err(EINVAL);
            }
            list(wr.sges(), payload)?;
        }
        SendOp::RegMr { .. }
        | SendOp::Bind(_)
        | SendOp::LocalInv { .. }
        | SendOp::Immediate(_)
        | SendOp::Flush(_)
        | SendOp::AtomicWrite { .. } => {}
    }
    send.id = wr.wr_id();
    send.op = op;
    send.signalled = flags.contains(SendFlags::SIGNALED);
    send.solicited = flags.contains(SendFlags::SOLICITED);
    send.fence = flags.contains(SendFlags::FENCE);
    Ok(())
}

/// Converts a receive work request, in place.
///
/// # Errors
///
/// `EINVAL` for a list that is too long.
pub(crate) fn recv(wr: &verbs::IbRecvWr<'_>, recv: &mut RecvWr) -> Result {
    recv.id = wr.wr_id();
    recv.buffer.clear();
    list(wr.sges(), &mut recv.buffer)
}

fn list(sges: Sges<'_>, payload: &mut Payload) -> Result {
    for sge in sges {
        if !payload.push(Sge {
            addr: sge.addr,
            len: sge.length,
            lkey: sge.lkey,
        }) {
            return Err(EINVAL);
        }
    }
    Ok(())
}

#[kernel::prelude::kunit_tests(riwarp_kernel_wr)]
mod tests {
    use super::*;
    use crate::mem::payload::MAX_SGE;
    use verbs::{
        AtomicWr,
        RdmaWr, //
    };

    // `enum ib_wr_opcode`.
    const WRITE: u32 = 0;
    const WRITE_WITH_IMM: u32 = 1;
    const SEND: u32 = 2;
    const READ: u32 = 4;
    const LOCAL_INV: u32 = 7;
    const TSO: u32 = 10;
    const COMPARE_SWAP: u32 = 5;
    const FETCH_ADD: u32 = 6;
    const MASKED_COMPARE_SWAP: u32 = 12;
    const MASKED_FETCH_ADD: u32 = 13;

    /// Converts an atomic request.
    fn made_of(
        opcode: u32,
        operands: [u64; 2],
        masks: [u64; 2],
    ) -> Result<(AtomicOperation, WcOpcode)> {
        let request = AtomicWr::new(opcode, operands, masks);
        let mut made = SendWr::default();
        send(&request.view(), &mut made)?;
        match made.op {
            SendOp::Atomic {
                stag,
                to,
                operation,
                opcode,
            } => {
                assert_eq!((stag.raw(), to), (0x99, 0x1122_3344_5566_7788));
                Ok((operation, opcode))
            }
            _ => Err(EINVAL),
        }
    }

    #[test]
    fn posted_request_overwrites_old_entry() -> Result {
        let mut made = SendWr {
            fence: true,
            ..SendWr::default()
        };
        made.payload.push(Sge::default());
        let request = AtomicWr::new(FETCH_ADD, [1, 0], [0, 0]);
        send(&request.view(), &mut made)?;
        assert!(made.payload.sges().len() == 0 && !made.fence);
        Ok(())
    }

    #[test]
    fn masked_fetch_add_mask_divides_word_into_fields() -> Result {
        // Four fields of 16 bits, each of which overflows.
        let fields = 0x8000_8000_8000_8000;
        let add = 0x0001_0001_0001_0001;
        let (operation, opcode) = made_of(MASKED_FETCH_ADD, [add, 7], [fields, 7])?;
        assert_eq!(opcode, WcOpcode::MaskedFetchAdd);
        assert_eq!(operation.apply(u64::MAX), 0);
        assert_eq!(
            operation.apply(0xffff_0000_ffff_0000),
            0x0000_0001_0000_0001
        );
        // Without field boundaries, one number of 64 bits.
        let (operation, _) = made_of(MASKED_FETCH_ADD, [1, 7], [0, 7])?;
        assert_eq!(operation.apply(0xffff_ffff), 1 << 32);
        Ok(())
    }

    #[test]
    fn masked_cmp_swap_masks_select_compared_and_swapped_bits() -> Result {
        let (compare, swap) = (0x1234, 0xabcd_0000_5678);
        let (operation, opcode) = made_of(
            MASKED_COMPARE_SWAP,
            [compare, swap],
            [0xff, 0xff00_0000_ff00],
        )?;
        assert_eq!(opcode, WcOpcode::MaskedCompareSwap);
        assert_eq!(operation.apply(0x1111_1111_1134), 0xab11_1111_5634);
        assert_eq!(operation.apply(0x1111_1111_1135), 0x1111_1111_1135);
        // The mask selects no bit to compare, so the swap always happens.
        let (operation, _) = made_of(MASKED_COMPARE_SWAP, [compare, swap], [0, u64::MAX])?;
        assert_eq!(operation.apply(0x1111_1111_1135), swap);
        Ok(())
    }

    #[test]
    fn unmasked_atomics_ignore_mask_fields() -> Result {
        let (operation, opcode) = made_of(FETCH_ADD, [1, 7], [u64::MAX, 7])?;
        assert_eq!(opcode, WcOpcode::FetchAdd);
        assert_eq!(operation.apply(0xffff_ffff), 1 << 32);
        let (operation, opcode) = made_of(COMPARE_SWAP, [3, 4], [1, 1])?;
        assert_eq!(opcode, WcOpcode::CompareSwap);
        assert_eq!((operation.apply(3), operation.apply(1)), (4, 1));
        Ok(())
    }

    /// Converts a request without payload.
    fn plain(opcode: u32, word: u32) -> Result<SendOp> {
        let mut made = SendWr::default();
        let request = RdmaWr::try_new(opcode, SendFlags::from_bits(0), word, &[])?;
        send(&request.view(), &mut made)?;
        Ok(made.op)
    }

    #[test]
    fn requests_carry_remote_address_and_keys() -> Result {
        let SendOp::Read {
            stag,
            to,
            invalidate_local: false,
        } = plain(READ, 0)?
        else {
            return Err(EINVAL);
        };
        assert_eq!((stag.raw(), to), (0x99, 0x1122_3344_5566_7788));
        let SendOp::Write {
            stag,
            to,
            immediate: Some(immediate),
        } = plain(WRITE_WITH_IMM, 0x0102_0304)?
        else {
            return Err(EINVAL);
        };
        assert_eq!((stag.raw(), to), (0x99, 0x1122_3344_5566_7788));
        let expected = Immediate::of_verbs(0x0102_0304_u32.to_ne_bytes());
        assert_eq!(immediate, expected);
        let SendOp::LocalInv { stag } = plain(LOCAL_INV, 0x77)? else {
            return Err(EINVAL);
        };
        assert_eq!(stag.raw(), 0x77);
        Ok(())
    }

    #[test]
    fn unsupported_opcode_is_refused() {
        assert_eq!(plain(TSO, 0).map(|_| ()), Err(EOPNOTSUPP));
    }

    #[test]
    fn inline_data_is_copied_from_all_elements() -> Result {
        for opcode in [SEND, WRITE] {
            let mut made = SendWr::default();
            let request = RdmaWr::try_new(opcode, SendFlags::INLINE, 0, &[b"ab", b"", b"cde"])?;
            send(&request.view(), &mut made)?;
            assert_eq!(made.payload.inline(), Some(&b"abcde"[..]));
        }
        Ok(())
    }

    #[test]
    fn too_much_inline_data_is_refused() -> Result {
        let mut made = SendWr::default();
        let most = [7; MAX_INLINE];
        let request = RdmaWr::try_new(SEND, SendFlags::INLINE, 0, &[&most])?;
        send(&request.view(), &mut made)?;
        assert_eq!(made.payload.inline(), Some(&most[..]));
        let request = RdmaWr::try_new(SEND, SendFlags::INLINE, 0, &[&most, b"x"])?;
        assert_eq!(send(&request.view(), &mut made), Err(EINVAL));
        Ok(())
    }

    #[test]
    fn read_with_inline_flag_is_refused() -> Result {
        let mut made = SendWr::default();
        let request = RdmaWr::try_new(READ, SendFlags::INLINE, 0, &[b"ab"])?;
        assert_eq!(send(&request.view(), &mut made), Err(EINVAL));
        Ok(())
    }

    #[test]
    fn too_long_sge_list_is_refused() -> Result {
        let mut made = SendWr::default();
        let pieces: [&[u8]; MAX_SGE + 1] = [b"a"; MAX_SGE + 1];
        let most = RdmaWr::try_new(SEND, SendFlags::from_bits(0), 0, &pieces[1..])?;
        send(&most.view(), &mut made)?;
        assert_eq!(made.payload.sges().len(), MAX_SGE);
        let more = RdmaWr::try_new(SEND, SendFlags::from_bits(0), 0, &pieces)?;
        assert_eq!(send(&more.view(), &mut made), Err(EINVAL));
        Ok(())
    }
}
