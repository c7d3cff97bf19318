// SPDX-License-Identifier: GPL-2.0

//! Work requests of kernel consumers, turned into the driver's own form.
//!
//! Kernel consumers are trusted with their pointers, not with their numbers: a list that is too long
//! or an operation that this device does not have is refused before anything is queued.
//!
//! Context: any.

use iwarp::stag::Stag;
use kernel::prelude::*;
use kernel_ext::rdma::wr::{
    self as verbs,
    SendFlags,
    Sges, //
};

use crate::{
    wr::{
        Inline,
        Payload,
        RecvWr,
        SendOp,
        SendWr,
        Sge,
        SgeList,
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
        verbs::SendOp::Send => SendOp::Send { invalidate: None },
        verbs::SendOp::SendWithInv { rkey } => SendOp::Send {
            invalidate: Some(Stag::new(rkey)),
        },
        verbs::SendOp::Write { remote_addr, rkey } => SendOp::Write {
            stag: Stag::new(rkey),
            to: remote_addr,
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
        verbs::SendOp::WriteWithImm { .. }
        | verbs::SendOp::SendWithImm { .. }
        | verbs::SendOp::CompareSwap { .. }
        | verbs::SendOp::FetchAdd { .. }
        | verbs::SendOp::Unknown(_) => return Err(EOPNOTSUPP),
    };
    let payload = match &op {
        SendOp::Send { .. } | SendOp::Write { .. } if flags.contains(SendFlags::INLINE) => {
            let mut octets = [0; MAX_INLINE];
            let len = wr.copy_inline(&mut octets)?;
            let inline = octets.get(..len).and_then(Inline::new).ok_or(EINVAL)?;
            Payload::Inline(inline)
        }
        SendOp::Send { .. } | SendOp::Write { .. } | SendOp::Read { .. } => {
            if flags.contains(SendFlags::INLINE) {
                return Err(EINVAL);
            }
            Payload::Sges(list(wr.sges())?)
        }
        SendOp::RegMr { .. } | SendOp::LocalInv { .. } => Payload::Sges(SgeList::default()),
    };
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
    Ok(RecvWr {
        id: wr.wr_id(),
        sges: list(wr.sges())?,
    })
}

fn list(sges: Sges<'_>) -> Result<SgeList> {
    let mut list = SgeList::default();
    for sge in sges {
        if !list.push(Sge {
            addr: sge.addr,
            len: sge.length,
            lkey: sge.lkey,
        }) {
            return Err(EINVAL);
        }
    }
    Ok(list)
}
