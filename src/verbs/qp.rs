// SPDX-License-Identifier: GPL-2.0

//! Queue pairs.

use iwarp::{
    inject::Verb,
    lifecycle::QpPhase, //
};
use kernel::{
    prelude::*,
    sync::{
        Arc,
        ArcBorrow, //
    }, //
};
use kernel_ext::{
    compat::EOPNOTSUPP,
    rdma::{
        object::QpLink,
        ops::{
            QpCreated,
            QpInit,
            QpOps,
            QpReport, //
        },
        restrack::Details,
        types::{
            QpAttr,
            QpAttrMask,
            QpState,
            QpType,
            SignalPolicy, //
        },
        udata::Udata,
        wr::{
            RecvWrs,
            SendWrs, //
        }, //
    },
    static_key, //
};

use crate::{
    abi::{
        self,
        user::{
            Places,
            QpRings, //
        }, //
    },
    cm::endpoint,
    device::{
        inject::VerbCaller,
        Resource,
        MAX_QP_WR, //
    },
    mem::mr::registration::Mr,
    qp::{
        report::phase_name,
        verbs::QpParts,
        Qp, //
    },
    queue::{
        rq::RecvQueue,
        sq::SendQueue, //
    },
    stream::{
        ending::{
            terminate_number,
            StreamEnd, //
        },
        owner::{
            QpShared,
            Receives, //
        }, //
    },
    verbs::device::RdmaDevice,
    Riwarp, //
};

#[vtable]
impl QpOps for Qp {
    type Driver = Riwarp;

    /// Creates a queue pair. A queue of size zero accepts no work requests.
    fn create(
        dev: ArcBorrow<'_, RdmaDevice>,
        init: QpInit<Riwarp>,
        udata: &mut Udata<'_>,
    ) -> Result<QpCreated<Self>> {
        dev.ask_for_verb(Verb::CreateQp, || VerbCaller::Owner(init.owner))?;
        if init.qp_type != QpType::Rc || init.create_flags != 0 {
            return Err(EOPNOTSUPP);
        }
        let device = &dev.device;
        let abi = device.abi();
        let limits = abi.limits();
        let mut caps = init.caps;
        if init.srq.is_some() {
            // Ignored with a shared receive queue.
            (caps.max_recv_wr, caps.max_recv_sge) = (0, 0);
        }
        if caps.max_send_wr > MAX_QP_WR
            || caps.max_recv_wr > MAX_QP_WR
            || caps.max_send_sge > limits.sge
            || caps.max_recv_sge > limits.sge
            || caps.max_inline_data > limits.inline
        {
            return Err(EINVAL);
        }
        let reservation = device.reserve(Resource::Qp)?;
        let user = init.owner.is_user();
        let places = |wanted| {
            if user {
                abi.places(wanted)
            } else {
                Places::plain(wanted)
            }
        };
        let send = places(caps.max_send_wr);
        let recv = init.srq.is_none().then(|| places(caps.max_recv_wr));

        let (mut send_ring, mut recv_ring, mut answer) = (None, None, None);
        if user {
            // What is reported can be asked for again, so it is no more than the limit. A kernel
            // consumer gets what it asked for, and finds room for what `ib_drain_qp()` posts.
            caps.max_send_wr = send.usable.min(MAX_QP_WR);
            caps.max_recv_wr = recv.map_or(0, |recv| recv.usable.min(MAX_QP_WR));
            let sizes = (send.all, recv.map(|recv| recv.all));
            let rings = QpRings::create(abi, sizes, &mut caps, udata)?;
            send_ring = rings.send;
            recv_ring = rings.recv;
            answer = Some(rings.answer);
        } else {
            caps.max_inline_data = limits.inline;
        }
        let receives = match init.srq {
            Some(srq) => Receives::Shared(srq),
            None => Receives::Own(Arc::pin_init(
                RecvQueue::new(recv.map_or(0, |recv| recv.all), recv_ring)?,
                GFP_KERNEL_ACCOUNT,
            )?),
        };
        let signal_all = init.signal == SignalPolicy::All;
        let sq = SendQueue::new(send.all, signal_all, init.send_cq, send_ring)?;
        let parts = QpParts {
            caps,
            user,
            link: init.link,
            pd: init.pd,
            recv_cq: init.recv_cq,
            receives,
            waits: dev.waits_of(init.context.as_deref()),
            reservation,
        };
        let qp = Self::assemble(&dev.qps, parts, sq)?;
        if let Some(Err(e)) = answer.map(|answer| answer.send(qp.shared.number, udata)) {
            dev.qps.remove(qp.shared.number);
            return Err(e);
        }
        Ok(QpCreated {
            number: qp.shared.number,
            caps,
            qp,
        })
    }

    fn find(dev: ArcBorrow<'_, RdmaDevice>, number: u32) -> Option<QpLink> {
        dev.qps.link(number)
    }

    fn modify(
        dev: ArcBorrow<'_, RdmaDevice>,
        qp: ArcBorrow<'_, Self>,
        attr: &QpAttr,
        mask: QpAttrMask,
    ) -> Result {
        let ends = mask.contains(QpAttrMask::STATE)
            && matches!(
                attr.qp_state,
                QpState::Reset | QpState::Sqd | QpState::Sqe | QpState::Err
            );
        // The connection manager and consumers end connections by these.
        if !ends {
            dev.ask_for_verb(Verb::ModifyQp, || qp.shared.caller())?;
        }
        endpoint::modify(&dev.cm, &qp.into(), attr, mask)
    }

    fn query(&self) -> QpReport {
        QpReport {
            signal: self.shared.sq.signal_policy(),
            attr: self.attr(),
        }
    }

    fn destroy(dev: ArcBorrow<'_, RdmaDevice>, qp: Arc<Self>) {
        if qp.shared.user {
            dev.device.note_destroyed();
        }
        endpoint::destroy(&dev.cm, &qp);
    }

    fn post_send(self: &Arc<Self>, wrs: &mut SendWrs<'_, Mr>) -> Result {
        if wrs.is_doorbell() {
            self.doorbell();
            return Ok(());
        }
        ask_for_post(&self.shared, Verb::PostSend)?;
        post_list(self, wrs)
    }

    fn post_recv(self: ArcBorrow<'_, Self>, wrs: &mut RecvWrs<'_>) -> Result {
        ask_for_post(&self.shared, Verb::PostRecv)?;
        let queue = self.own_receives().ok_or(EINVAL)?;
        let mut awaited = false;
        let result = wrs.try_for_each(|wr| {
            awaited |= queue.post(|recv| abi::kernel::recv(&wr, recv))?;
            Ok(())
        });
        if awaited {
            self.shared.waiter.waits().as_arc_borrow().look_soon();
        }
        if self.shared.phase() == QpPhase::Error {
            Arc::from(self).kick();
        }
        result
    }

    fn describe(&self, details: &mut Details<'_>) -> Result {
        details.word(c"phase", phase_name(self.shared.phase()))?;
        let sq = self.shared.sq.occupancy();
        details.number(c"sq_posted", sq.posted)?;
        details.number(c"sq_pending", sq.pending)?;
        if let Some(waiting) = self.own_receives().and_then(RecvQueue::waiting) {
            details.number(c"rq_posted", waiting)?;
        }
        details.number(c"reads", sq.reads)?;
        details.number(c"ord", sq.max_reads)?;
        let (served, ird) = self.shared.inbound_reads.occupancy();
        details.number(c"inbound_reads", served)?;
        details.number(c"ird", ird)?;
        details.number(c"peer_terminate", self.shared.peer_terminate())?;
        let fault = match self.shared.ending() {
            Some(StreamEnd::Fault(fault)) => terminate_number(fault.code()),
            Some(StreamEnd::Request(_) | StreamEnd::PeerTerminate(_) | StreamEnd::Lost(_))
            | None => 0,
        };
        details.number(c"fault", fault)
    }
}

/// Asks the rules about what a kernel consumer posts. Not to a queue pair in error, which consumers
/// drain by posting.
///
/// # Errors
///
/// The one of a rule.
#[inline]
fn ask_for_post(qp: &QpShared, verb: Verb) -> Result {
    if static_key::is_on() && qp.phase() != QpPhase::Error {
        qp.device.ask_for_verb(verb, || qp.caller())?;
    }
    Ok(())
}

/// Posts the list of a kernel consumer.
///
/// # Errors
///
/// `EINVAL` for a request that cannot be posted here, `EOPNOTSUPP` for one that the device or the
/// peer does not support, `ENOMEM` for a full queue.
#[inline(never)]
fn post_list(qp: &Arc<Qp>, wrs: &mut SendWrs<'_, Mr>) -> Result {
    let result = qp.shared.sq.post_all(|queue| {
        wrs.try_for_each(|wr| {
            if qp.shared.user || qp.shared.phase() == QpPhase::Idle {
                return Err(EINVAL);
            }
            queue.post(|send| {
                abi::kernel::send(&wr, send)?;
                if send.needs_send_immediate() && !qp.may_send_immediate() {
                    return Err(EOPNOTSUPP);
                }
                Ok(())
            })
        })
    });
    qp.trace_post_send();
    qp.send_posted();
    result
}
