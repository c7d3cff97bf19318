// SPDX-License-Identifier: GPL-2.0

//! The queue pair while it looks for its peer without `rdma_cm`.
//!
//! What enters: what the consumer has set on the way from INIT to RTR and RTS, the first posted
//! Send, connections of the peer, the fate of the queue pair's own attempts, the clock. What
//! leaves: attempts to connect ([`conn::connect_oob`]), and the end of a search that takes too
//! long.
//!
//! From RTR on the queue pair waits for a connection; from RTS on it connects too, again and again
//! with growing pauses. There is one connection at a time, the one that the queue pair is bound to,
//! and [`Bond`] says how far it is; it is only with the first octets behind the start-up frames
//! that the queue pair gets its stream for good. A start-up that fails leaves it looking on. What
//! is posted meanwhile stays posted, and from the first Send in RTS on the search has an end.
//!
//! With a stream, what is posted goes out in RTR too. iWARP has no such state, and programs that
//! know that they run on iWARP (perftest) count on it.
//!
//! RFCs know nothing of this: docs/connections.md. Context: process.

use iwarp::{
    lifecycle::{
        Actions,
        Event, //
    },
    mpa::negotiate::Depths,
    oob::{
        retry_timeout,
        Announcement,
        Bond,
        Features,
        Judgement,
        Mismatch,
        Pair,
        Pauses,
        Psn,
        QpAddr,
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
    }, //
};

use crate::{
    cm::{
        conn::{
            self,
            Close,
            Conn,
            StreamParams, //
        },
        oob::{
            addrs_of,
            OobWaiter,
            OobWaiters, //
        }, //
    },
    device::{
        gid,
        MAX_ORD, //
    }, //
};

use crate::qp::{
    Attrs,
    Qp,
    FOR_EVER,
    OOB, //
};

/// A queue pair's search for its peer.
pub(crate) struct OobSearch {
    pub(crate) pair: Pair,
    from: SockAddr,
    to: SockAddr,
    depths: Depths,
    bond: Bond,
    /// What the peer that is being accepted expects this end to begin with.
    pub(crate) promised: Option<Psn>,
    /// What this end and the peer of the latest connection understand.
    extensions: Extensions,
    pauses: Pauses,
    /// The clock's zero.
    born: Instant<Monotonic>,
    /// When to connect, if there is no connection then.
    connect_at: Delta,
    /// When the first posted Send has waited long enough.
    deadline: Option<Delta>,
    _waiting: OobWaiter,
}

/// An attempt to connect that is to be made.
pub(crate) struct OobConnect {
    pub(crate) from: SockAddr,
    pub(crate) to: SockAddr,
    pub(crate) depths: Depths,
    pub(crate) announcement: Announcement,
}

/// What a step is to do.
enum Due {
    Connect(OobConnect),
    GiveUp,
    Nothing,
}

impl OobSearch {
    fn due(&mut self) -> Due {
        let now = self.born.elapsed();
        if self.deadline.is_some_and(|deadline| now >= deadline) {
            return Due::GiveUp;
        }
        if !self.may_connect() || now < self.connect_at {
            return Due::Nothing;
        }
        self.bond = Bond::Connecting;
        Due::Connect(OobConnect {
            from: self.from,
            to: self.to,
            depths: self.depths,
            announcement: self.pair.announcement(),
        })
    }

    fn may_connect(&self) -> bool {
        self.bond == Bond::Free && self.pair.send_psn.is_some()
    }

    /// When there is something to do next.
    fn next_look(&self) -> Option<Delta> {
        let connect = self.may_connect().then_some(self.connect_at);
        match (connect, self.deadline) {
            (Some(connect), Some(deadline)) => Some(connect.min(deadline)),
            (one, other) => one.or(other),
        }
    }

    /// The connection is gone.
    fn lose(&mut self) {
        self.bond = Bond::Free;
        self.promised = None;
        self.connect_at = self.born.elapsed() + Delta::from_millis(self.pauses.next_pause().into());
    }
}

impl DelayedItem<OOB> for Qp {
    fn queue(&self) -> &OwnedQueue {
        &self.device.queues.conn
    }
}

impl WorkItem<OOB> for Qp {
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
    /// * `EINVAL` for a destination that is none, the queue pair itself, or an address of another
    ///   family than the one of the device; or without an attribute that belongs to this
    ///   transition.
    /// * Those of [`OobWaiters::wait`].
    pub(crate) fn begin_oob(self: &Arc<Self>, attr: &QpAttr, mask: QpAttrMask) -> Result {
        if !mask.contains(FOR_RTR) || !attr.path.has_grh {
            return Err(EINVAL);
        }
        let device = self.device();
        let port = device.settings.pairing_port().ok_or(EOPNOTSUPP)?;
        let gid = device.gid(attr.path.sgid_index.into())?;
        let here = gid::to_addr(gid, port, &device.netdev).ok_or(EINVAL)?;
        let to = gid::to_addr(attr.path.dgid, port, &device.netdev).ok_or(EINVAL)?;
        let pair = Pair {
            local: QpAddr {
                gid: gid.0,
                number: QpNumber::new(self.number),
            },
            remote: QpAddr {
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
        // TCP chooses the local port.
        let mut from = here;
        from.set_port(0);
        let waiting = OobWaiters::wait(device, &pair, here)?;
        let oob = OobSearch {
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
            connect_at: Delta::ZERO,
            deadline: None,
            _waiting: waiting,
        };
        // Until the consumer says more, nothing waits for a peer that has come and gone.
        self.retry_timeout.store(0, Relaxed);
        let _drop_outside_lock = self.oob.lock().replace(oob);
        self.try_on(Event::ModifyRtrPath)?;
        Ok(())
    }

    /// RTR to RTS with a destination: begins to connect, unless the peer was faster.
    ///
    /// # Errors
    ///
    /// `EINVAL` without an attribute that belongs to this transition, or if the peer that has
    /// connected meanwhile expects another PSN: then it is the wrong one, and the stream ends.
    pub(crate) fn continue_oob(
        self: &Arc<Self>,
        attrs: &Attrs,
        attr: &QpAttr,
        mask: QpAttrMask,
    ) -> Result {
        if !mask.contains(FOR_RTS) {
            return Err(EINVAL);
        }
        let psn = Psn::new(attr.sq_psn);
        let micros = retry_timeout(attr.timeout, attr.retry_cnt);
        let millis = micros.and_then(|micros| u32::try_from(micros.div_ceil(1000)).ok());
        self.retry_timeout
            .store(millis.unwrap_or(FOR_EVER), Relaxed);
        let impostor = {
            let mut oob = self.oob.lock();
            match &mut *oob {
                Some(oob) => {
                    oob.pair.send_psn = Some(psn);
                    oob.depths.ord = attr.max_rd_atomic.into();
                    let wrong = oob.promised.is_some_and(|promised| promised != psn);
                    if !wrong {
                        oob.connect_at = oob.born.elapsed();
                        self.arm(oob);
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

    /// Ends the search, whatever comes of it. The listener goes with the last search at its
    /// address, when the result is dropped.
    pub(crate) fn end_oob(self: &Arc<Self>) -> Option<OobSearch> {
        let oob = self.oob.lock().take();
        cancel_delayed::<Self, OOB>(self);
        oob
    }

    /// Something was posted while there is no peer.
    pub(crate) fn hurry_oob(self: &Arc<Self>) {
        let mut oob = self.oob.lock();
        if let Some(oob) = &mut *oob {
            if oob.deadline.is_none() && oob.pair.send_psn.is_some() {
                let now = oob.born.elapsed();
                let retry_timeout = self.retry_timeout();
                oob.deadline = retry_timeout.map(|millis| now + Delta::from_millis(millis.into()));
                oob.pauses = Pauses::default();
                oob.connect_at = now;
                self.arm(oob);
            }
        }
    }
}

// For the connections.
impl Qp {
    /// Whether a connection may send its Request now: the one of another front end always, an
    /// attempt of this one if nothing has come in between.
    pub(crate) fn may_ask(&self, conn: &Conn) -> bool {
        match &mut *self.oob.lock() {
            None => true,
            Some(oob) if oob.bond == Bond::Connecting && self.is_bound(conn) => {
                oob.bond = Bond::Requesting;
                true
            }
            Some(_) => false,
        }
    }

    /// Whether the private data of a Reply is what this queue pair expects.
    pub(crate) fn takes_reply(&self, conn: &Conn, private_data: &[u8]) -> bool {
        match &mut *self.oob.lock() {
            None => true,
            Some(oob) => {
                let theirs = Announcement::decode(private_data);
                let (Ok(theirs), Ok(addrs)) = (theirs, addrs_of(conn.socket())) else {
                    return false;
                };
                oob.extensions = oob.pair.agree(&theirs);
                let checked = oob.pair.check(&addrs, Speaker::Responder, &theirs);
                checked.is_ok()
            }
        }
    }

    /// Binds a connection of the peer, in place of the one that there is; gives what to answer.
    ///
    /// # Errors
    ///
    /// `ECONNREFUSED` if this queue pair does not wait for that peer, `EBUSY` if its own attempt
    /// goes first, `ENOTCONN` if the connection has gone.
    pub(crate) fn accept_oob(
        &self,
        conn: &Arc<Conn>,
        theirs: &Announcement,
    ) -> Result<(Depths, Announcement)> {
        let addrs = addrs_of(conn.socket())?;
        let mut oob = self.oob.lock();
        let Some(oob) = &mut *oob else {
            return Err(ECONNREFUSED);
        };
        let device = self.device();
        let checked = device.oob_waiters.check_call(&oob.pair, &addrs, theirs);
        checked.map_err(|mismatch| {
            if mismatch == Mismatch::Limited {
                device.stats.pairing_limited.inc();
            }
            ECONNREFUSED
        })?;
        if oob.pair.judge_connect(oob.bond) == Judgement::Refuse {
            return Err(EBUSY);
        }
        let old = {
            let mut inner = self.inner.lock();
            self.would(Event::BindSearch).map_err(|_| ECONNREFUSED)?;
            inner.conn.replace(conn.clone())
        };
        oob.bond = Bond::Accepting;
        oob.promised = Some(theirs.receive_psn);
        oob.extensions = oob.pair.agree(theirs);
        if let Some(old) = old {
            old.close(Close::Abort);
        }
        Ok((oob.depths, oob.pair.announcement()))
    }

    /// What both ends of the stream understand that is about to begin.
    pub(crate) fn extensions(&self, params: &StreamParams) -> Extensions {
        match &*self.oob.lock() {
            Some(oob) => oob.extensions,
            None => params.extensions,
        }
    }

    /// Binds a connection that this queue pair opens.
    ///
    /// # Errors
    ///
    /// `EINVAL` if it is not looking for that peer any more.
    pub(crate) fn bind_oob(&self, conn: &Arc<Conn>, connect: &OobConnect) -> Result {
        let oob = self.oob.lock();
        let oob = oob.as_ref().ok_or(EINVAL)?;
        if oob.bond != Bond::Connecting || oob.pair.announcement() != connect.announcement {
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
    pub(crate) fn lose_oob(self: &Arc<Self>) {
        let mut oob = self.oob.lock();
        if let Some(oob) = &mut *oob {
            if oob.bond != Bond::Free && self.conn().is_none() {
                oob.lose();
                self.arm(oob);
            }
        }
    }

    /// Whether this connection is the queue pair's.
    pub(crate) fn is_bound(&self, conn: &Conn) -> bool {
        let inner = self.inner.lock();
        let bound = inner.conn.as_ref();
        bound.is_some_and(|bound| core::ptr::eq(&**bound, conn))
    }
}

// The clock's.
impl Qp {
    fn look_for_peer(self: &Arc<Self>) {
        let due = match &mut *self.oob.lock() {
            Some(oob) => {
                let due = oob.due();
                self.arm(oob);
                due
            }
            None if self.lifecycle().has_lost_peer() => Due::GiveUp,
            None => Due::Nothing,
        };
        match due {
            Due::Connect(connect) => {
                if let Err(error) = conn::connect_oob(self, &connect) {
                    pr_debug!("attempt of queue pair {}: {:?}\n", self.number, error);
                    self.lose_oob();
                }
            }
            Due::GiveUp => self.give_up_oob(),
            Due::Nothing => {}
        }
    }

    /// The peer has not come in time, or has gone and not come back.
    fn give_up_oob(self: &Arc<Self>) {
        let actions = self.on(match self.end_oob() {
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
    pub(crate) fn time_out_closed_peer(self: &Arc<Self>) {
        if let Some(millis) = self.retry_timeout() {
            self.look_after(millis);
            // Whoever has ended the stream or destroyed the queue pair since may have stopped the
            // clock before it was set. Both change the phase first, and setting the clock is a full
            // barrier: so either they stop it, or this sees the phase.
            if !self.lifecycle().has_lost_peer() {
                cancel_delayed::<Self, OOB>(self);
            }
        }
    }

    /// How long a Send waits, in milliseconds; [`None`] for ever.
    fn retry_timeout(&self) -> Option<u32> {
        let millis = self.retry_timeout.load(Relaxed);
        (millis != FOR_EVER).then_some(millis)
    }

    /// Sets the clock.
    fn arm(self: &Arc<Self>, oob: &OobSearch) {
        cancel_delayed::<Self, OOB>(self);
        let Some(at) = oob.next_look() else {
            return;
        };
        let millis = (at - oob.born.elapsed()).as_millis_ceil().clamp(0, 1 << 20);
        // CAST: just clamped.
        self.look_after(millis as u32);
    }

    /// Sets the clock, unless it is set already.
    fn look_after(self: &Arc<Self>, millis: u32) {
        let delay = msecs_to_jiffies(millis);
        // If it cannot be set, it is set or about to run.
        let _ = enqueue_delayed::<Self, OOB>(self.clone(), delay);
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
    use iwarp::lifecycle::QpPhase;
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
    fn search(qp: &Arc<Qp>) -> Result<OobSearch> {
        let end = |number| QpAddr {
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
        Ok(OobSearch {
            pair,
            from: here,
            to: here,
            depths: Depths {
                ird: 1,
                ord: u16::try_from(MAX_ORD)?,
            },
            bond: Bond::Connecting,
            promised: None,
            extensions: Extensions::Off,
            pauses: Pauses::default(),
            born: Instant::now(),
            connect_at: Delta::ZERO,
            deadline: None,
            _waiting: OobWaiters::wait(qp.device(), &pair, here)?,
        })
    }

    /// What the next call of a queue pair asks for whose consumer has set that ORD.
    fn asked_for(ord: u8) -> Result<u16> {
        let bench = Bench::new()?;
        let qp = bench.qp(4, &bench.cq(4)?)?;
        *qp.oob.lock() = Some(search(&qp)?);
        qp.enter(QpPhase::Waiting);
        let attr = QpAttr {
            qp_state: QpState::Rts,
            max_rd_atomic: ord,
            ..QpAttr::default()
        };
        let mask = QpAttrMask::STATE.union(FOR_RTS);
        let changed = Qp::modify(qp.as_arc_borrow(), &attr, mask);
        let due = (*qp.oob.lock()).as_mut().map(|oob| {
            oob.bond = Bond::Free;
            oob.due()
        });
        Qp::destroy(qp);
        changed?;
        match due {
            Some(Due::Connect(connect)) => Ok(connect.depths.ord),
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
