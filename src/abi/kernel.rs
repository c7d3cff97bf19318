// SPDX-License-Identifier: GPL-2.0

//! Work requests of kernel consumers, turned into the driver's own form.
//!
//! Kernel consumers are trusted with their pointers, not with their numbers: a list that is too long
//! or an operation that this device does not have is refused before anything is queued.
//!
//! Context: any.

use iwarp::{
    atomic::AtomicOperation,
    rdmap::SendExtra,
    stag::Stag, //
};
use kernel::prelude::*;
use kernel_ext::rdma::wr::{
    self as verbs,
    SendFlags,
    Sges,
    WcOpcode, //
};

use crate::{
    wr::{
        Payload,
        RecvWr,
        SendOp,
        SendWr,
        Sge,
        MAX_INLINE, //
    },
    Riwarp, //
};

/// Translates a send work request.
///
/// # Errors
///
/// `EINVAL` for a list that is too long, too much inline data or inline data where there is none,
/// `EOPNOTSUPP` for an operation that the device does not have.
pub(crate) fn send(wr: &verbs::SendWr<'_, Riwarp>) -> Result<SendWr> {
    let flags = wr.flags();
    let op = match wr.op() {
        verbs::SendOp::Send => SendOp::Send(SendExtra::None),
        verbs::SendOp::SendWithInv { rkey } => SendOp::Send(SendExtra::Invalidate(Stag::new(rkey))),
        verbs::SendOp::Write { remote_addr, rkey } => SendOp::Write {
            stag: Stag::new(rkey),
            to: remote_addr,
            immediate: None,
        },
        verbs::SendOp::WriteWithImm {
            remote_addr,
            rkey,
            imm,
        } => SendOp::Write {
            stag: Stag::new(rkey),
            to: remote_addr,
            immediate: Some(imm),
        },
        verbs::SendOp::Read { remote_addr, rkey } => SendOp::Read {
            stag: Stag::new(rkey),
            to: remote_addr,
            invalidate_local: false,
        },
        // What is invalidated is the sink, whose key is in the list.
        verbs::SendOp::ReadWithInv {
            remote_addr, rkey, ..
        } => SendOp::Read {
            stag: Stag::new(rkey),
            to: remote_addr,
            invalidate_local: true,
        },
        verbs::SendOp::LocalInv { key } => SendOp::LocalInv {
            stag: Stag::new(key),
        },
        verbs::SendOp::RegMr { mr, key, access } => SendOp::RegMr {
            region: mr.region.clone(),
            key,
            access,
        },
        verbs::SendOp::CompareSwap {
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
        verbs::SendOp::FetchAdd {
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
        // Kernel consumers connect by rdma_cm, where peers do not agree on it.
        verbs::SendOp::SendWithImm { .. } | verbs::SendOp::Unknown(_) => return Err(EOPNOTSUPP),
    };
    let inline = flags.contains(SendFlags::INLINE);
    let mut payload = Payload::default();
    match &op {
        SendOp::Send(_) | SendOp::Write { .. } if inline => {
            let mut octets = [0; MAX_INLINE];
            let len = wr.copy_inline(&mut octets)?;
            let octets = octets.get(..len).ok_or(EINVAL)?;
            let room = payload.inline_room(len).ok_or(EINVAL)?;
            room.copy_from_slice(octets);
        }
        SendOp::Send(_) | SendOp::Write { .. } | SendOp::Read { .. } | SendOp::Atomic { .. } => {
            if inline {
                return Err(EINVAL);
            }
            list(wr.sges(), &mut payload)?;
        }
        SendOp::RegMr { .. } | SendOp::Bind(_) | SendOp::LocalInv { .. } => {}
    }
    Ok(SendWr {
        id: wr.wr_id(),
        op,
        payload,
        signalled: flags.contains(SendFlags::SIGNALED),
        solicited: flags.contains(SendFlags::SOLICITED),
        fence: flags.contains(SendFlags::FENCE),
    })
}

/// Translates a receive work request.
///
/// # Errors
///
/// `EINVAL` for a list that is too long.
pub(crate) fn recv(wr: &verbs::RecvWr<'_>) -> Result<RecvWr> {
    let mut recv = RecvWr {
        id: wr.wr_id(),
        ..RecvWr::default()
    };
    list(wr.sges(), &mut recv.buffer)?;
    Ok(recv)
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
