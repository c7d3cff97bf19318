// SPDX-License-Identifier: GPL-2.0

//! A queue pair together with its connection: modify, reset and destroy.
//!
//! The verbs call these. The queue pair makes its transition and returns the connection that it was
//! bound to, the connection is detached, and the queue pair goes on. The search for a peer without
//! `rdma_cm` begins and ends here too. So the queue pair calls neither.
//!
//! Context: process, sleeps.

use iwarp::{
    actions::{
        After,
        Set, //
    },
    lifecycle::{
        QpRequest,
        SearchStep, //
    }, //
};
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
        actions::Runner,
        Attrs,
        Qp, //
    },
    stream::connection::Bound, //
};

use super::{
    conn::Cm,
    oob::OobSearch, //
};

/// Changes attributes and state of a queue pair.
///
/// # Errors
///
/// Those of [`Qp::check_modify`], [`change`] and [`reset`].
pub(crate) fn modify(cm: &Arc<Cm>, qp: &Arc<Qp>, attr: &QpAttr, mask: QpAttrMask) -> Result {
    let after = {
        let _one_at_a_time = qp.modifying.lock();
        qp.check_modify(attr, mask)?;
        let state = mask.contains(QpAttrMask::STATE).then_some(attr.qp_state);
        match state {
            Some(QpState::Reset) => reset(cm, qp)?,
            Some(QpState::Err) => qp.finish_terminate(),
            Some(QpState::Init | QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe)
            | None => {}
        }
        let mut attrs = qp.attrs.lock();
        let after = match state.and_then(|state| request(state, mask)) {
            Some(request) => change(cm, qp, &attrs, request, attr, mask)?,
            None => Set::NONE,
        };
        qp.store_attrs(&mut attrs, attr, mask);
        after
    };
    qp.carry_out(after, Runner::Verb);
    Ok(())
}

/// Returns the request that leads to a state; none for a reset, which [`modify`] has done by then.
fn request(state: QpState, mask: QpAttrMask) -> Option<QpRequest> {
    Some(match state {
        QpState::Reset => return None,
        QpState::Init => QpRequest::ModifyInit,
        QpState::Rtr if mask.contains(QpAttrMask::AV) => QpRequest::ModifyRtrPath,
        QpState::Rtr => QpRequest::ModifyRtr,
        QpState::Rts => QpRequest::ModifyRts,
        QpState::Sqd => QpRequest::ModifySqd,
        QpState::Sqe => QpRequest::ModifySqe,
        QpState::Err => QpRequest::ModifyErr,
    })
}

/// Makes a request, and begins, continues or ends the search for the peer with it.
///
/// # Errors
///
/// `EINVAL` for an invalid transition, and those of [`OobSearch::begin`] and
/// [`OobSearch::connect`].
fn change(
    cm: &Arc<Cm>,
    qp: &Arc<Qp>,
    attrs: &Attrs,
    request: QpRequest,
    attr: &QpAttr,
    mask: QpAttrMask,
) -> Result<Set<After>> {
    let step = qp.shared.lifecycle().search_step(request);
    match step.map_err(|_| EINVAL)? {
        SearchStep::None => qp.change_state(request),
        SearchStep::End => {
            let after = qp.change_state(request)?;
            end_search(cm, qp);
            Ok(after)
        }
        SearchStep::Begin => {
            OobSearch::begin(cm, qp, attr, mask)?;
            let changed = qp.change_state(request);
            changed.inspect_err(|_| cm.oob_waiters.searches.end(qp.shared.number))
        }
        SearchStep::Connect => {
            OobSearch::connect(cm, qp, attrs, attr, mask)?;
            qp.change_state(request)
        }
    }
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
    qp.prepare_reset()?;
    let (after, conn) = {
        let _attrs = qp.attrs.lock();
        let after = qp.begin_reset()?;
        // A queue pair without posted requests still waits for its peer: as long as the search goes
        // on it may be bound to another connection.
        end_search(cm, qp);
        (after, qp.take_conn())
    };
    qp.carry_out(after, Runner::Verb);
    detach(cm, conn);
    qp.finish_reset()
}

/// Destroys a queue pair and ends its connection. Posted requests end without completions;
/// completions that a kernel consumer has not polled are removed. So the consumer may free what its
/// requests name once this returns.
pub(crate) fn destroy(cm: &Cm, qp: &Arc<Qp>) {
    let conn = qp.begin_destroy();
    end_search(cm, qp);
    detach(cm, conn);
    qp.finish_destroy();
}

/// Ends what a queue pair without `rdma_cm` waits for: its peer, and a peer that has closed.
fn end_search(cm: &Cm, qp: &Arc<Qp>) {
    if qp.shared.lifecycle().is_by_path() {
        qp.end_peer_limit();
        cm.oob_waiters.searches.end(qp.shared.number);
    }
}

/// Detaches the connection that a queue pair was bound to. One that is not found has been released:
/// the last step of its life has unbound the queue pair before.
fn detach(cm: &Cm, bound: Option<Bound>) {
    let number = bound.as_ref().map(|bound| bound.connection.number());
    if let Some(conn) = number.and_then(|number| cm.find(number)) {
        conn.detach_qp();
    }
}
