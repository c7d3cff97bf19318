// SPDX-License-Identifier: GPL-2.0

//! The queue pair while it looks for its peer without `rdma_cm`.
//!
//! What enters: what the consumer has set on the way from INIT to RTR and RTS, the first posted Send,
//! calls of the peer, the fate of the queue pair's own calls, the clock. What leaves: calls
//! ([`conn::call`]), and the end of a search that takes too long.
//!
//! From RTR on the queue pair waits to be called; from RTS on it calls too, again and again with
//! growing pauses. There is one connection at a time, the one that the queue pair is bound to, and
//! [`Bond`] says how far it is; it is only with the first octets behind the start-up frames that the
//! queue pair gets its stream for good. A start-up that fails leaves it looking on. What is posted
//! meanwhile stays posted, and from the first Send in RTS on the search has an end.
//!
//! With a stream, what is posted goes out in RTR too. iWARP has no such state, and programs that know
//! that they run on iWARP (perftest) count on it.
//!
//! RFCs know nothing of this: docs/connections.md. Context: process.

use iwarp::{
    lifecycle::{
        Actions,
        Event, //
    },
    mpa::negotiate::Depths,
    pairing::{
        patience,
        Announcement,
        Bond,
        End,
        Features,
        Judgement,
        Mismatch,
        Pair,
        Pauses,
        Psn,
        QpNumber,
        Speaker, //
    },
    rdmap::Extensions, //
};
use kernel::{
    prelude::*,
    sync::{
        atomic::Relaxed,
        Arc, //
    },
    time::{
        msecs_to_jiffies,
        Delta,
        Instant,
        Monotonic, //
    },
    workqueue::WorkItem, //
};
use kernel_ext::{
    net::SockAddr,
    rdma::types::{
        QpAttr,
        QpAttrMask, //
    },
    workqueue::{
        cancel_delayed,
        enqueue_delayed,
        DelayedItem,
        OwnedQueue, //
    },
};

use crate::{
    conn::{
        self,
        Close,
        Conn,
        StreamParams, //
    },
    device::MAX_ORD,
    gid,
    pairing::{
        route_of,
        Pairings,
        Waiting, //
    }, //
};

use super::{
    Attrs,
    Qp,
    FOR_EVER,
    PAIRING, //
};

/// A queue pair's search for its peer.
pub(super) struct Pairing {
    pub(super) pair: Pair,
    from: SockAddr,
    to: SockAddr,
    depths: Depths,
    bond: Bond,
    /// What the caller that is being answered expects this end to begin with.
    pub(super) promised: Option<Psn>,
    /// What this end and the peer of the latest connection understand.
    extensions: Extensions,
    pauses: Pauses,
    /// The clock's zero.
    born: Instant<Monotonic>,
    /// When to call, if there is no connection then.
    call: Delta,
    /// When the first posted Send has waited long enough.
    deadline: Option<Delta>,
    _waiting: Waiting,
}

/// A call that is to be made.
pub(crate) struct Call {
    pub(crate) from: SockAddr,
    pub(crate) to: SockAddr,
    pub(crate) depths: Depths,
    pub(crate) announcement: Announcement,
}

/// What a step is to do.
enum Due {
    Call(Call),
    GiveUp,
    Nothing,
}

impl Pairing {
    fn due(&mut self) -> Due {
        let now = self.born.elapsed();
        if self.deadline.is_some_and(|deadline| now >= deadline) {
            return Due::GiveUp;
        }
        if !self.may_call() || now < self.call {
            return Due::Nothing;
        }
        self.bond = Bond::Calling;
        Due::Call(Call {
            from: self.from,
            to: self.to,
            depths: self.depths,
            announcement: self.pair.announcement(),
        })
    }

    fn may_call(&self) -> bool {
        self.bond == Bond::Free && self.pair.send_psn.is_some()
    }

    /// When there is something to do next.
    fn next_look(&self) -> Option<Delta> {
        let call = self.may_call().then_some(self.call);
        match (call, self.deadline) {
            (Some(call), Some(deadline)) => Some(call.min(deadline)),
            (one, other) => one.or(other),
        }
    }

    /// The connection is gone.
    fn lose(&mut self) {
        self.bond = Bond::Free;
        self.promised = None;
        self.call = self.born.elapsed() + Delta::from_millis(self.pauses.next_pause().into());
    }
}

impl DelayedItem<PAIRING> for Qp {
    fn queue(&self) -> &OwnedQueue {
        &self.device.queues.conn
    }
}

impl WorkItem<PAIRING> for Qp {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        this.look_for_peer();
    }
}

// For the verbs.
impl Qp {
    /// INIT to RTR with a destination: begins to wait.
    ///
    /// # Errors
    ///
    /// * `EOPNOTSUPP` if the administrator has switched this off.
    /// * `EINVAL` for a destination that is none, the queue pair itself, or an address of another family
    ///   than the one of the device; or without an attribute that belongs to this transition.
    /// * Those of [`Pairings::wait`].
    pub(super) fn begin_pairing(self: &Arc<Self>, attr: &QpAttr, mask: QpAttrMask) -> Result {
        if !mask.contains(FOR_RTR) || !attr.path.has_grh {
            return Err(EINVAL);
        }
        let device = self.device();
        let port = device.settings.pairing_port().ok_or(EOPNOTSUPP)?;
        let gid = device.gid(attr.path.sgid_index.into())?;
        let here = gid::to_addr(gid, port, &device.netdev).ok_or(EINVAL)?;
        let to = gid::to_addr(attr.path.dgid, port, &device.netdev).ok_or(EINVAL)?;
        let pair = Pair {
            local: End {
                gid: gid.0,
                number: QpNumber::new(self.number),
            },
            remote: End {
                gid: attr.path.dgid.0,
                number: QpNumber::new(attr.dest_qp_num),
            },
            receive_psn: Psn::new(attr.rq_psn),
            send_psn: None,
            features: if self.tells_immediate_data() {
                Features::SEND_IMMEDIATE
            } else {
                Features::NONE
            },
        };
        if here.family() != to.family() || pair.local == pair.remote {
            return Err(EINVAL);
        }
        // TCP chooses the port of a call.
        let mut from = here;
        from.set_port(0);
        let waiting = Pairings::wait(device, &pair, here)?;
        let pairing = Pairing {
            pair,
            from,
            to,
            depths: Depths {
                ird: attr.max_dest_rd_atomic.into(),
                // Until the consumer says more, as many as the peer takes.
                ord: u16::try_from(MAX_ORD)?,
            },
            bond: Bond::Free,
            promised: None,
            extensions: Extensions::Off,
            pauses: Pauses::default(),
            born: Instant::now(),
            call: Delta::ZERO,
            deadline: None,
            _waiting: waiting,
        };
        // Until the consumer says more, nothing waits for a peer that has come and gone.
        self.patience.store(0, Relaxed);
        let _drop_outside_lock = self.pairing.lock().replace(pairing);
        self.try_on(Event::ModifyRtrPath)?;
        Ok(())
    }

    /// RTR to RTS with a destination: begins to call, unless the peer was faster.
    ///
    /// # Errors
    ///
    /// `EINVAL` without an attribute that belongs to this transition, or if the peer that has called
    /// meanwhile expects another PSN: then it is the wrong one, and the stream ends.
    pub(super) fn go_on_pairing(
        self: &Arc<Self>,
        attrs: &Attrs,
        attr: &QpAttr,
        mask: QpAttrMask,
    ) -> Result {
        if !mask.contains(FOR_RTS) {
            return Err(EINVAL);
        }
        let psn = Psn::new(attr.sq_psn);
        let micros = patience(attr.timeout, attr.retry_cnt);
        let millis = micros.and_then(|micros| u32::try_from(micros.div_ceil(1000)).ok());
        self.patience.store(millis.unwrap_or(FOR_EVER), Relaxed);
        let impostor = {
            let mut pairing = self.pairing.lock();
            match &mut *pairing {
                Some(pairing) => {
                    pairing.pair.send_psn = Some(psn);
                    pairing.depths.ord = attr.max_rd_atomic.into();
                    let wrong = pairing.promised.is_some_and(|promised| promised != psn);
                    if !wrong {
                        pairing.call = pairing.born.elapsed();
                        self.arm(pairing);
                    }
                    wrong.then(|| self.conn()).flatten()
                }
                None if attrs.promised.is_some_and(|promised| promised != psn) => {
                    let actions = self.on(Event::WrongPsn);
                    self.act(actions);
                    return Err(EINVAL);
                }
                None => None,
            }
        };
        if let Some(conn) = impostor {
            conn.close(Close::Abort);
        }
        Ok(())
    }

    /// Ends the search, whatever comes of it. The listener goes with the last search at its address,
    /// when the result is dropped.
    pub(super) fn end_pairing(self: &Arc<Self>) -> Option<Pairing> {
        let pairing = self.pairing.lock().take();
        cancel_delayed::<Self, PAIRING>(self);
        pairing
    }

    /// Something was posted while there is no peer.
    pub(crate) fn hurry_pairing(self: &Arc<Self>) {
        let mut pairing = self.pairing.lock();
        if let Some(pairing) = &mut *pairing {
            if pairing.deadline.is_none() && pairing.pair.send_psn.is_some() {
                let now = pairing.born.elapsed();
                let patience = self.patience();
                pairing.deadline = patience.map(|millis| now + Delta::from_millis(millis.into()));
                pairing.pauses = Pauses::default();
                pairing.call = now;
                self.arm(pairing);
            }
        }
    }
}

// For the connections.
impl Qp {
    /// Whether a connection may send its Request now: the one of another front end always, a call if
    /// nothing has come in between.
    pub(crate) fn may_ask(&self, conn: &Conn) -> bool {
        match &mut *self.pairing.lock() {
            None => true,
            Some(pairing) if pairing.bond == Bond::Calling && self.is_bound(conn) => {
                pairing.bond = Bond::Asking;
                true
            }
            Some(_) => false,
        }
    }

    /// Whether the private data of a Reply is what this queue pair expects.
    pub(crate) fn takes_reply(&self, conn: &Conn, private_data: &[u8]) -> bool {
        match &mut *self.pairing.lock() {
            None => true,
            Some(pairing) => {
                let theirs = Announcement::decode(private_data);
                let (Ok(theirs), Ok(route)) = (theirs, route_of(conn.socket())) else {
                    return false;
                };
                pairing.extensions = pairing.pair.agree(&theirs);
                let checked = pairing.pair.check(&route, Speaker::Responder, &theirs);
                checked.is_ok()
            }
        }
    }

    /// Binds a connection with which the peer has called, in place of the one that there is; gives what
    /// to answer.
    ///
    /// # Errors
    ///
    /// `ECONNREFUSED` if this queue pair does not wait for that peer, `EBUSY` if its own call goes first,
    /// `ENOTCONN` if the connection has gone.
    pub(crate) fn answer_call(
        &self,
        conn: &Arc<Conn>,
        theirs: &Announcement,
    ) -> Result<(Depths, Announcement)> {
        let route = route_of(conn.socket())?;
        let mut pairing = self.pairing.lock();
        let Some(pairing) = &mut *pairing else {
            return Err(ECONNREFUSED);
        };
        let device = self.device();
        let checked = device.pairings.check_call(&pairing.pair, &route, theirs);
        checked.map_err(|mismatch| {
            if mismatch == Mismatch::Limited {
                device.stats.pairing_limited.inc();
            }
            ECONNREFUSED
        })?;
        if pairing.pair.judge_call(pairing.bond) == Judgement::Refuse {
            return Err(EBUSY);
        }
        let old = {
            let mut inner = self.inner.lock();
            self.would(Event::BindSearch).map_err(|_| ECONNREFUSED)?;
            inner.conn.replace(conn.clone())
        };
        pairing.bond = Bond::Answering;
        pairing.promised = Some(theirs.receive_psn);
        pairing.extensions = pairing.pair.agree(theirs);
        if let Some(old) = old {
            old.close(Close::Abort);
        }
        Ok((pairing.depths, pairing.pair.announcement()))
    }

    /// What both ends of the stream understand that is about to begin.
    pub(super) fn extensions(&self, params: &StreamParams) -> Extensions {
        match &*self.pairing.lock() {
            Some(pairing) => pairing.extensions,
            None => params.extensions,
        }
    }

    /// Binds a connection with which this queue pair calls.
    ///
    /// # Errors
    ///
    /// `EINVAL` if it is not looking for that peer any more.
    pub(crate) fn bind_call(&self, conn: &Arc<Conn>, call: &Call) -> Result {
        let pairing = self.pairing.lock();
        let pairing = pairing.as_ref().ok_or(EINVAL)?;
        if pairing.bond != Bond::Calling || pairing.pair.announcement() != call.announcement {
            return Err(EINVAL);
        }
        let mut inner = self.inner.lock();
        self.would(Event::BindSearch)?;
        if inner.conn.is_some() {
            return Err(EINVAL);
        }
        inner.conn = Some(conn.clone());
        Ok(())
    }

    /// The connection that was bound is gone without having become a stream.
    pub(super) fn lose_call(self: &Arc<Self>) {
        let mut pairing = self.pairing.lock();
        if let Some(pairing) = &mut *pairing {
            if pairing.bond != Bond::Free && self.conn().is_none() {
                pairing.lose();
                self.arm(pairing);
            }
        }
    }

    /// Whether this connection is the queue pair's.
    pub(super) fn is_bound(&self, conn: &Conn) -> bool {
        let inner = self.inner.lock();
        let bound = inner.conn.as_ref();
        bound.is_some_and(|bound| core::ptr::eq(&**bound, conn))
    }
}

// The clock's.
impl Qp {
    fn look_for_peer(self: &Arc<Self>) {
        let due = match &mut *self.pairing.lock() {
            Some(pairing) => {
                let due = pairing.due();
                self.arm(pairing);
                due
            }
            None if self.lifecycle().is_alone() => Due::GiveUp,
            None => Due::Nothing,
        };
        match due {
            Due::Call(call) => {
                if let Err(error) = conn::call(self, &call) {
                    pr_debug!("call of queue pair {}: {:?}\n", self.number, error);
                    self.lose_call();
                }
            }
            Due::GiveUp => self.give_up_pairing(),
            Due::Nothing => {}
        }
    }

    /// The peer has not come in time, or has gone and not come back.
    fn give_up_pairing(self: &Arc<Self>) {
        let actions = self.on(match self.end_pairing() {
            Some(_) => Event::SearchTimeout,
            None => Event::PeerClosedTimeout,
        });
        if actions == Actions::NONE {
            return;
        }
        self.device().stats.pairing_timeouts.inc();
        self.act(actions);
        self.transmit();
    }

    /// Something is posted for a peer that has gone: it fails when it has waited long enough.
    ///
    /// Context: the transmitter's.
    pub(crate) fn await_deserter(self: &Arc<Self>) {
        if let Some(millis) = self.patience() {
            self.look_after(millis);
            // Whoever has ended the stream or destroyed the queue pair since may have stopped the
            // clock before it was set. Both change the phase first, and setting the clock is a full
            // barrier: so either they stop it, or this sees the phase.
            if !self.lifecycle().is_alone() {
                cancel_delayed::<Self, PAIRING>(self);
            }
        }
    }

    /// How long a Send waits, in milliseconds; [`None`] for ever.
    fn patience(&self) -> Option<u32> {
        let millis = self.patience.load(Relaxed);
        (millis != FOR_EVER).then_some(millis)
    }

    /// Sets the clock.
    fn arm(self: &Arc<Self>, pairing: &Pairing) {
        cancel_delayed::<Self, PAIRING>(self);
        let Some(at) = pairing.next_look() else {
            return;
        };
        let millis = (at - pairing.born.elapsed())
            .as_millis_ceil()
            .clamp(0, 1 << 20);
        // CAST: just clamped.
        self.look_after(millis as u32);
    }

    /// Sets the clock, unless it is set already.
    fn look_after(self: &Arc<Self>, millis: u32) {
        let delay = msecs_to_jiffies(millis);
        // If it cannot be set, it is set or about to run.
        let _ = enqueue_delayed::<Self, PAIRING>(self.clone(), delay);
    }
}

/// What a consumer has to say on the way to RTR; as for the other RDMA networks.
const FOR_RTR: QpAttrMask = QpAttrMask::AV
    .union(QpAttrMask::PATH_MTU)
    .union(QpAttrMask::DEST_QPN)
    .union(QpAttrMask::RQ_PSN)
    .union(QpAttrMask::MAX_DEST_RD_ATOMIC)
    .union(QpAttrMask::MIN_RNR_TIMER);
/// On the way to RTS.
const FOR_RTS: QpAttrMask = QpAttrMask::TIMEOUT
    .union(QpAttrMask::RETRY_CNT)
    .union(QpAttrMask::RNR_RETRY)
    .union(QpAttrMask::SQ_PSN)
    .union(QpAttrMask::MAX_QP_RD_ATOMIC);

#[kernel::prelude::kunit_tests(riwarp_qp_pairing)]
mod tests {
    use super::*;
    use crate::bench::Bench;
    use iwarp::lifecycle::Phase;
    use kernel_ext::{
        net::{
            bench::address,
            Family, //
        },
        rdma::{
            ops::QpOps,
            types::QpState, //
        }, //
    };

    /// A search that is about to be gone on with, by a queue pair that needs no clock for it: it
    /// calls already.
    fn search(qp: &Arc<Qp>) -> Result<Pairing> {
        let end = |number| End {
            gid: [0; 16],
            number: QpNumber::new(number),
        };
        let pair = Pair {
            local: end(qp.number),
            remote: end(qp.number + 1),
            receive_psn: Psn::new(1),
            send_psn: None,
            features: Features::NONE,
        };
        let here = address(Family::V4, 0);
        Ok(Pairing {
            pair,
            from: here,
            to: here,
            depths: Depths {
                ird: 1,
                ord: u16::try_from(MAX_ORD)?,
            },
            bond: Bond::Calling,
            promised: None,
            extensions: Extensions::Off,
            pauses: Pauses::default(),
            born: Instant::now(),
            call: Delta::ZERO,
            deadline: None,
            _waiting: Pairings::wait(qp.device(), &pair, here)?,
        })
    }

    /// What the next call of a queue pair asks for whose consumer has set that ORD.
    fn asked_for(ord: u8) -> Result<u16> {
        let bench = Bench::new()?;
        let qp = bench.qp(4, &bench.cq(4)?)?;
        *qp.pairing.lock() = Some(search(&qp)?);
        qp.enter(Phase::Waiting);
        let attr = QpAttr {
            qp_state: QpState::Rts,
            max_rd_atomic: ord,
            ..QpAttr::default()
        };
        let mask = QpAttrMask::STATE.union(FOR_RTS);
        let changed = Qp::modify(qp.as_arc_borrow(), &attr, mask);
        let due = (*qp.pairing.lock()).as_mut().map(|pairing| {
            pairing.bond = Bond::Free;
            pairing.due()
        });
        Qp::destroy(qp);
        changed?;
        match due {
            Some(Due::Call(call)) => Ok(call.depths.ord),
            _ => Err(EINVAL),
        }
    }

    #[test]
    fn a_call_asks_for_the_depth_that_was_set() -> Result {
        for ord in [0, 1, 7, 128] {
            assert_eq!(asked_for(ord), Ok(ord.into()));
        }
        Ok(())
    }
}
