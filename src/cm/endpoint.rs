// SPDX-License-Identifier: GPL-2.0

//! A queue pair together with its connection: modify, reset and destroy.
//!
//! The verbs call these. The queue pair makes its transition and returns the connection that it was
//! bound to, the connection is detached, and the queue pair goes on. Neither calls the other.
//!
//! Context: process, sleeps.

use kernel::{
    prelude::*,
    sync::Arc, //
};
use kernel_ext::rdma::types::{
    QpAttr,
    QpAttrMask,
    QpState, //
};

use crate::{
    qp::{
        Qp,
        Runner, //
    },
    stream::connection::Bound, //
};

use super::Cm;

/// Changes attributes and state of a queue pair.
///
/// # Errors
///
/// Those of [`Qp::check_modify`], [`Qp::modify_attrs`] and [`reset`].
pub(crate) fn modify(cm: &Cm, qp: &Arc<Qp>, attr: &QpAttr, mask: QpAttrMask) -> Result {
    let after = {
        let _one_at_a_time = qp.modifying.lock();
        qp.check_modify(attr, mask)?;
        if mask.contains(QpAttrMask::STATE) && attr.qp_state == QpState::Reset {
            reset(cm, qp)?;
        }
        qp.modify_attrs(attr, mask)?
    };
    qp.carry_out(after, Runner::Verb);
    Ok(())
}

/// Resets a queue pair: nothing of the old stream or of what was posted remains.
///
/// Waits for the connection without the lock of the attributes, because a step of the connection
/// may wait for that ([`Qp::attach`]). Meanwhile the state cannot advance, because the queue pair
/// has no connection.
///
/// # Errors
///
/// `EINVAL` while a stream of the connection manager exists, or if the connection manager has begun
/// to set one up meanwhile.
fn reset(cm: &Cm, qp: &Arc<Qp>) -> Result {
    let conn = qp.begin_reset()?;
    detach(cm, conn);
    qp.finish_reset()
}

/// Destroys a queue pair and ends its connection. Posted requests end without completions;
/// completions that a kernel consumer has not polled are removed. So the consumer may free what its
/// requests name once this returns.
pub(crate) fn destroy(cm: &Cm, qp: &Arc<Qp>) {
    let conn = qp.begin_destroy();
    detach(cm, conn);
    qp.finish_destroy();
}

/// Detaches the connection that a queue pair was bound to. One that is not found has been released:
/// the last step of its life has unbound the queue pair before.
fn detach(cm: &Cm, bound: Option<Bound>) {
    let number = bound.as_ref().map(|bound| bound.connection.number());
    if let Some(conn) = number.and_then(|number| cm.conns.find(number)) {
        conn.detach_qp();
    }
}
