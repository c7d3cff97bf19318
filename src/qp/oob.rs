// SPDX-License-Identifier: GPL-2.0

//! The queue pair while it searches for its peer without `rdma_cm`.
//!
//! From RTR on the queue pair waits for a connection; from RTS on it also connects, again and again
//! with growing pauses ([`OobConnector::connect`]). It is bound to one connection at a time, and
//! [`Bond`] is the state of that. The queue pair gets its stream for good only with the first
//! octets after the start-up frames. After a failed start-up the search continues. Work requests
//! posted meanwhile stay posted, and the first Send posted in RTS gives the search a time limit.
//!
//! With a stream, posted work requests go out in RTR too. iWARP has no such state, and programs
//! that know that they run on iWARP (perftest) rely on this.
//!
//! Not specified by any RFC: docs/connections.md. Context: process.

use iwarp::{
    actions::{
        After,
        Later,
        Set, //
    },
    lifecycle::{
        Event,
        QpRequest, //
    },
    mpa::negotiate::Depths,
    oob::{
        retry_timeout,
        AddrPair,
        Announcement,
        Bond,
        Features,
        Judgement,
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
        Arc,
        ArcBorrow, //
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
    compat::{
        as_millis_ceil,
        ECONNREFUSED,
        EOPNOTSUPP, //
    },
    mm::noio::without_io,
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
    device::gid,
    stream::{
        connection::{
            Bound,
            StreamConnection,
            StreamParams, //
        }, //
    }, //
};

use super::{
    actions::Runner,
    Attrs,
    Qp,
    FOR_EVER,
    OOB, //
};

/// A queue pair's search for its peer.
pub(super) struct OobSearch {
    pub(super) pair: Pair,
    from: SockAddr,
    to: SockAddr,
    depths: Depths,
    bond: Bond,
    /// The PSN that the peer being accepted expects this end to start with.
    pub(super) promised: Option<Psn>,
    /// The extensions agreed with the peer of the latest connection.
    extensions: Extensions,
    pauses: Pauses,
    /// The zero of this search's clock.
    born: Instant<Monotonic>,
    /// When to connect, if no connection is bound then.
    connect_at: Delta,
    /// When the search times out because of the first posted Send.
    deadline: Option<Delta>,
    _wait: OobWait,
}

/// What the search asks of the connection manager.
pub(crate) trait OobConnector: Send + Sync {
    /// Registers a queue pair that waits for its peer at an address of the device, until
    /// [`OobConnector::end_wait`].
    ///
    /// # Errors
    ///
    /// * `EADDRNOTAVAIL` if the device does not have the address, `EADDRINUSE` if a program uses
    ///   the port, and others of TCP.
    /// * `ENODEV` if the device is being removed.
    /// * `ENOMEM`.
    fn wait(self: ArcBorrow<'_, Self>, pair: &Pair, addr: SockAddr) -> Result;

    /// Ends a wait that has begun with this pair and address.
    fn end_wait(&self, pair: &Pair, addr: SockAddr);

    /// Connects to the peer of a queue pair.
    ///
    /// # Errors
    ///
    /// * `EINVAL`: the queue pair no longer searches for that peer.
    /// * `ENODEV`: the device is being removed.
    /// * `EADDRNOTAVAIL` and others of TCP.
    fn connect(self: ArcBorrow<'_, Self>, qp: &Arc<Qp>, connect: &OobConnect) -> Result;
}

/// The registration of a waiting queue pair, removed on drop.
struct OobWait {
    connector: Arc<dyn OobConnector>,
    pair: Pair,
    addr: SockAddr,
}

impl OobWait {
    /// Registers a queue pair.
    ///
    /// # Errors
    ///
    /// Those of [`OobConnector::wait`].
    fn begin(connector: &Arc<dyn OobConnector>, pair: Pair, addr: SockAddr) -> Result<Self> {
        connector.as_arc_borrow().wait(&pair, addr)?;
        Ok(Self {
            connector: connector.clone(),
            pair,
            addr,
        })
    }
}

impl Drop for OobWait {
    fn drop(&mut self) {
        self.connector.end_wait(&self.pair, self.addr);
    }
}

/// A connection attempt to make.
pub(crate) struct OobConnect {
    pub(crate) from: SockAddr,
    pub(crate) to: OobTarget,
    pub(crate) depths: Depths,
    pub(crate) announcement: Announcement,
}

/// Where a connection attempt leads.
pub(crate) enum OobTarget {
    /// To the peer's pairing port.
    Peer(SockAddr),
    /// To the queue pair itself: TCP connects a socket to its own address and port.
    Itself,
}

/// The action that is due.
enum OobAction {
    Connect(OobConnect),
    GiveUp,
    Nothing,
}

impl OobSearch {
    fn next_action(&mut self) -> OobAction {
        let now = self.born.elapsed();
        if self.deadline.is_some_and(|deadline| now >= deadline) {
            return OobAction::GiveUp;
        }
        if !self.may_connect() || now < self.connect_at {
            return OobAction::Nothing;
        }
        self.bond = Bond::Connecting;
        OobAction::Connect(OobConnect {
            from: self.from,
            to: if self.pair.local == self.pair.remote {
                OobTarget::Itself
            } else {
                OobTarget::Peer(self.to)
            },
            depths: self.depths,
            announcement: self.pair.announcement(),
        })
    }

    fn may_connect(&self) -> bool {
        self.bond == Bond::Free && self.pair.send_psn.is_some()
    }

    /// Returns when the next action may be due.
    fn next_action_at(&self) -> Option<Delta> {
        let connect = self.may_connect().then_some(self.connect_at);
        match (connect, self.deadline) {
            (Some(connect), Some(deadline)) => Some(connect.min(deadline)),
            (one, other) => one.or(other),
        }
    }

    /// Handles the loss of the bound connection.
    fn connection_lost(&mut self) {
        self.bond = Bond::Free;
        self.promised = None;
        self.connect_at = self.born.elapsed() + Delta::from_millis(self.pauses.next_pause().into());
    }
}

impl DelayedItem<OOB> for Qp {
    fn queue(&self) -> &OwnedQueue {
        // Each end knows its peer, so the order of these connections does not matter.
        &self.device.queues.stream
    }
}

impl WorkItem<OOB> for Qp {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        // Steps of connections are queued behind this item, and block I/O may depend on them.
        without_io(|| this.continue_search());
    }
}

// Called by the verbs.
impl Qp {
    /// Starts to wait, before the transition from INIT to RTR with a destination.
    ///
    /// # Errors
    ///
    /// * `EOPNOTSUPP` if the administrator has disabled this.
    /// * `EINVAL` for an invalid destination, or an address of another family than the device's; or
    ///   if a required attribute of this transition is missing.
    /// * Those of [`OobConnector::wait`].
    pub(super) fn begin_oob(self: &Arc<Self>, attr: &QpAttr, mask: QpAttrMask) -> Result {
        if !mask.contains(FOR_RTR) || !attr.path.has_grh {
            return Err(EINVAL);
        }
        let device = &self.device;
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
        if here.family() != to.family() {
            return Err(EINVAL);
        }
        // TCP chooses the local port.
        let mut from = here;
        from.set_port(0);
        let wait = OobWait::begin(&self.connector, pair, here)?;
        let (kind, settings) = (self.device.kind, &self.device.settings);
        let oob = OobSearch {
            pair,
            from,
            to,
            depths: Depths {
                ird: kind.read_depth(attr.max_dest_rd_atomic, settings.ird_limit()),
                // Offer the maximum until the consumer sets the ORD.
                ord: u16::try_from(settings.ord_limit())?,
            },
            bond: Bond::Free,
            promised: None,
            extensions: Extensions::Off,
            pauses: Pauses::default(),
            born: Instant::now(),
            connect_at: Delta::ZERO,
            deadline: None,
            _wait: wait,
        };
        // Until the consumer sets the timeout, do not wait for a peer that has closed its half.
        self.retry_timeout.store(0, Relaxed);
        let _drop_outside_lock = self.oob.lock().replace(oob);
        Ok(())
    }

    /// Starts to connect, before the transition from RTR to RTS with a destination. If a peer that
    /// is being accepted expects another PSN, resets its connection and continues the search.
    ///
    /// # Errors
    ///
    /// `EINVAL` if a required attribute of this transition is missing, or if a stream has begun
    /// meanwhile whose peer expects another PSN; that stream ends.
    pub(super) fn continue_oob(
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
        let wrong = |promised: Option<Psn>| promised.is_some_and(|promised| promised != psn);
        let impostor = {
            let mut oob = self.oob.lock();
            match &mut *oob {
                Some(oob) => {
                    oob.pair.send_psn = Some(psn);
                    let (kind, limit) = (self.device.kind, self.device.settings.ord_limit());
                    oob.depths.ord = kind.read_depth(attr.max_rd_atomic, limit);
                    let impostor = if wrong(oob.promised) {
                        // Unbound already here, so that it cannot attach its stream any more.
                        oob.connection_lost();
                        self.inner.lock().conn.take()
                    } else {
                        oob.connect_at = oob.born.elapsed();
                        None
                    };
                    self.arm(oob);
                    impostor
                }
                None if wrong(attrs.promised) => {
                    drop(oob);
                    let after = self.apply(Event::WrongPsn);
                    self.carry_out(after, Runner::Any);
                    return Err(EINVAL);
                }
                None => None,
            }
        };
        if let Some(conn) = impostor {
            self.ask(&conn, Set::NONE.with(Later::Abort));
        }
        Ok(())
    }

    /// Ends the search. Dropping the result also closes the listener, after the last search at its
    /// address.
    pub(super) fn end_oob(self: &Arc<Self>) -> Option<OobSearch> {
        let mut oob = self.oob.lock();
        // Under the lock, so that it is not the timer of a search that begins now.
        cancel_delayed::<Self, OOB>(self);
        oob.take()
    }

    /// Handles the first work request posted in RTS without a peer: starts the time limit and
    /// connects at once.
    pub(super) fn expedite_oob(self: &Arc<Self>) {
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

// Called by the connections.
impl Qp {
    /// Returns whether a connection may send its Request now: always with a connection manager,
    /// otherwise only if the attempt is still the bound one.
    pub(crate) fn may_ask(&self, conn: &Arc<StreamConnection>) -> bool {
        if !self.is_by_path() {
            return true;
        }
        match &mut *self.oob.lock() {
            None => true,
            Some(oob) if oob.bond == Bond::Connecting && self.is_bound(conn) => {
                oob.bond = Bond::Requesting;
                true
            }
            Some(_) => false,
        }
    }

    /// Returns whether the private data of a Reply is what this queue pair expects from the peer at
    /// the addresses that `addrs` returns.
    pub(crate) fn takes_reply(
        &self,
        addrs: impl FnOnce() -> Result<AddrPair>,
        private_data: &[u8],
    ) -> bool {
        if !self.is_by_path() {
            return true;
        }
        // Before the lock, since it may sleep.
        let (theirs, addrs) = (Announcement::decode(private_data), addrs());
        match &mut *self.oob.lock() {
            None => true,
            Some(oob) => {
                let (Ok(theirs), Ok(addrs)) = (theirs, addrs) else {
                    return false;
                };
                oob.extensions = oob.pair.agree(&theirs);
                let checked = oob.pair.check(&addrs, Speaker::Responder, &theirs);
                checked.is_ok()
            }
        }
    }

    /// Returns whether a stream from this queue pair to itself may begin, which needs no start-up:
    /// it has to send from the PSN that it expects.
    pub(crate) fn takes_itself(&self) -> bool {
        match &mut *self.oob.lock() {
            None => false,
            Some(oob) => {
                let own = oob.pair.announcement();
                oob.extensions = oob.pair.agree(&own);
                own.send_psn == Some(own.receive_psn)
            }
        }
    }

    /// Binds a connection of the peer, replacing and resetting the bound one; returns the depths
    /// and announcement to reply with. `check` says whether the peer's announcement fits a pair.
    ///
    /// # Errors
    ///
    /// `ECONNREFUSED` if this queue pair does not wait for that peer, `EBUSY` if its own attempt
    /// takes precedence, and those of `check`.
    pub(crate) fn accept_oob(
        &self,
        conn: Bound,
        theirs: &Announcement,
        check: impl FnOnce(&Pair) -> Result,
    ) -> Result<(Depths, Announcement)> {
        let pair = {
            let oob = self.oob.lock();
            oob.as_ref().ok_or(ECONNREFUSED)?.pair
        };
        // Takes a mutex.
        check(&pair)?;
        // Dropped after the lock.
        let old;
        let mut oob = self.oob.lock();
        let Some(oob) = &mut *oob else {
            return Err(ECONNREFUSED);
        };
        if (oob.pair.remote, oob.pair.receive_psn) != (pair.remote, pair.receive_psn) {
            return Err(ECONNREFUSED);
        }
        if oob.pair.judge_connect(oob.bond) == Judgement::Refuse {
            return Err(EBUSY);
        }
        old = {
            let mut inner = self.inner.lock();
            self.allows(QpRequest::BindSearch)
                .map_err(|_| ECONNREFUSED)?;
            inner.conn.replace(conn)
        };
        oob.bond = Bond::Accepting;
        oob.promised = Some(theirs.receive_psn);
        oob.extensions = oob.pair.agree(theirs);
        if let Some(old) = &old {
            self.ask(old, Set::NONE.with(Later::Abort));
        }
        Ok((oob.depths, oob.pair.announcement()))
    }

    /// Returns the extensions that both ends of a stream about to begin support.
    pub(super) fn extensions(&self, params: &StreamParams) -> Extensions {
        if !self.is_by_path() {
            return params.extensions;
        }
        match &*self.oob.lock() {
            Some(oob) => oob.extensions,
            None => params.extensions,
        }
    }

    /// Ends the search whose stream is about to begin, if there is one.
    pub(super) fn take_search(self: &Arc<Self>) -> Option<OobSearch> {
        if self.is_by_path() {
            self.end_oob()
        } else {
            None
        }
    }

    /// Returns whether the queue pair may search for its peer, or have searched: the consumer has
    /// named a destination. A connection of `rdma_cm` is spared the lock.
    fn is_by_path(&self) -> bool {
        self.lifecycle().is_by_path()
    }

    /// Binds a connection that this queue pair opens.
    ///
    /// # Errors
    ///
    /// `EINVAL` if it does not search for that peer any more.
    pub(crate) fn bind_oob(&self, conn: Bound, connect: &OobConnect) -> Result {
        let oob = self.oob.lock();
        let oob = oob.as_ref().ok_or(EINVAL)?;
        if oob.bond != Bond::Connecting || oob.pair.announcement() != connect.announcement {
            return Err(EINVAL);
        }
        let mut inner = self.inner.lock();
        self.allows(QpRequest::BindSearch)?;
        if inner.conn.is_some() {
            return Err(EINVAL);
        }
        inner.conn = Some(conn);
        Ok(())
    }

    /// Handles the loss of the bound connection before it became a stream.
    pub(super) fn oob_connection_lost(self: &Arc<Self>) {
        if !self.is_by_path() {
            return;
        }
        let mut oob = self.oob.lock();
        if let Some(oob) = &mut *oob {
            if oob.bond != Bond::Free && self.inner.lock().conn.is_none() {
                oob.connection_lost();
                self.arm(oob);
            }
        }
    }

    /// Unbinds a connection that the peer takes for its stream, but for which this end has no
    /// memory, and ends the search, because the peer will not come again. Does nothing if the
    /// connection is not the bound one of a search.
    ///
    /// Context: process.
    pub(crate) fn give_up_oob(self: &Arc<Self>, conn: &Arc<StreamConnection>) {
        let mut oob = self.oob.lock();
        if oob.is_none() {
            return;
        }
        let Some(_drop_outside_lock) = self.take_bound(conn) else {
            return;
        };
        let (search, after) = self.give_up(&mut oob);
        drop(oob);
        drop(search);
        self.carry_out(after, Runner::Step);
    }

    /// Fails what is posted: the peer has not come in time, has closed its half without a new
    /// connection, or will not come again. The lock is held, so that this is not a search that
    /// begins after a reset.
    fn give_up(self: &Arc<Self>, oob: &mut Option<OobSearch>) -> (Option<OobSearch>, Set<After>) {
        cancel_delayed::<Self, OOB>(self);
        let search = oob.take();
        let event = match search {
            Some(_) => Event::SearchTimeout,
            None => Event::PeerClosedTimeout,
        };
        (search, self.apply(event))
    }

    /// Returns whether a connection is the bound one.
    pub(super) fn is_bound(&self, conn: &Arc<StreamConnection>) -> bool {
        self.inner.lock().is_bound(conn)
    }
}

// Called by the timer.
impl Qp {
    fn continue_search(self: &Arc<Self>) {
        let mut oob = self.oob.lock();
        let action = match &mut *oob {
            Some(oob) => {
                let action = oob.next_action();
                self.arm(oob);
                action
            }
            None if self.lifecycle().has_lost_peer() => OobAction::GiveUp,
            None => OobAction::Nothing,
        };
        match action {
            OobAction::Connect(connect) => {
                drop(oob);
                let attempt = self.connector.as_arc_borrow().connect(self, &connect);
                if attempt.is_err() {
                    self.oob_connection_lost();
                }
            }
            OobAction::GiveUp => {
                let (search, after) = self.give_up(&mut oob);
                drop(oob);
                drop(search);
                // Nothing follows if the wait for the peer has ended meanwhile.
                if !after.is_empty() {
                    self.device.stats.pairing_timeouts.inc();
                }
                self.carry_out(after, Runner::Step);
            }
            OobAction::Nothing => {}
        }
    }

    /// Returns how long a Send waits, in milliseconds; [`None`] for no limit.
    pub(super) fn retry_timeout(&self) -> Option<u32> {
        let millis = self.retry_timeout.load(Relaxed);
        (millis != FOR_EVER).then_some(millis)
    }

    /// Sets the timer to the next action.
    fn arm(self: &Arc<Self>, oob: &OobSearch) {
        cancel_delayed::<Self, OOB>(self);
        let Some(at) = oob.next_action_at() else {
            return;
        };
        let millis = as_millis_ceil(at - oob.born.elapsed()).clamp(0, 1 << 20);
        // CAST: just clamped.
        self.set_oob_timer(millis as u32);
    }

    /// Sets the timer, unless it is set already.
    pub(super) fn set_oob_timer(self: &Arc<Self>, millis: u32) {
        let delay = msecs_to_jiffies(millis);
        // On failure it is set already or about to run.
        let _ = enqueue_delayed::<Self, OOB>(self.clone(), delay);
    }
}

/// Attributes required for RTR, as on other RDMA networks.
const FOR_RTR: QpAttrMask = QpAttrMask::AV
    .union(QpAttrMask::PATH_MTU)
    .union(QpAttrMask::DEST_QPN)
    .union(QpAttrMask::RQ_PSN)
    .union(QpAttrMask::MAX_DEST_RD_ATOMIC)
    .union(QpAttrMask::MIN_RNR_TIMER);
/// Attributes required for RTS.
const FOR_RTS: QpAttrMask = QpAttrMask::TIMEOUT
    .union(QpAttrMask::RETRY_CNT)
    .union(QpAttrMask::RNR_RETRY)
    .union(QpAttrMask::SQ_PSN)
    .union(QpAttrMask::MAX_QP_RD_ATOMIC);

#[kernel::prelude::kunit_tests(riwarp_qp_oob)]
mod tests {
    use super::*;
    use crate::{
        bench::{
            polled,
            Bench, //
        },
        cm::conn::{
            bench::PARAMS,
            Conn, //
        },
        device::{
            DeviceKind,
            MAX_ORD, //
        },
        Riwarp, //
    };
    use iwarp::lifecycle::QpPhase;
    use kernel_ext::{
        net::{
            bench::{
                address,
                pair, //
            },
            Family, //
        },
        rdma::{
            bench::post_send,
            ops::QpOps,
            types::QpState,
            wr::WcStatus, //
        }, //
    };

    /// Makes a search whose connection attempt is in progress, so that the queue pair needs no
    /// timer.
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
            _wait: OobWait::begin(&qp.connector, pair, here)?,
        })
    }

    /// Returns the ORD of the next attempt of a queue pair whose consumer has set `ord`.
    fn asked_for(kind: DeviceKind, ord: u8) -> Result<u16> {
        let bench = Bench::of(kind)?;
        let qp = bench.qp(4, &bench.cq(4)?)?;
        *qp.oob.lock() = Some(search(&qp)?);
        qp.enter(QpPhase::Waiting);
        let attr = QpAttr {
            qp_state: QpState::Rts,
            max_rd_atomic: ord,
            ..QpAttr::default()
        };
        let mask = QpAttrMask::STATE.union(FOR_RTS);
        let changed = bench.modify(&qp, &attr, mask);
        let action = (*qp.oob.lock()).as_mut().map(|oob| {
            oob.bond = Bond::Free;
            oob.next_action()
        });
        bench.destroy(&qp);
        changed?;
        match action {
            Some(OobAction::Connect(connect)) => Ok(connect.depths.ord),
            _ => Err(EINVAL),
        }
    }

    /// Makes a queue pair that accepts a peer, which expects it to send from PSN 1, and runs `f`.
    fn while_accepting(f: impl FnOnce(&Bench, &Arc<Qp>, &Arc<Conn>) -> Result) -> Result {
        let bench = Bench::new()?;
        let qp = bench.qp(4, &bench.cq(4)?)?;
        let (near, _far) = pair(Family::V4)?;
        let conn = Conn::of_nobody(&bench.rdma.cm, near)?;
        *qp.oob.lock() = Some(OobSearch {
            bond: Bond::Accepting,
            promised: Some(Psn::new(1)),
            ..search(&qp)?
        });
        qp.inner.lock().conn = Some(conn.bound());
        qp.enter(QpPhase::Waiting);
        let done = f(&bench, &qp, &conn);
        conn.end_of_nobody();
        bench.destroy(&qp);
        done
    }

    fn searches(qp: &Qp) -> bool {
        qp.oob.lock().is_some()
    }

    #[test]
    fn a_peer_with_another_psn_is_unbound_at_once() -> Result {
        while_accepting(|bench, qp, conn| {
            let attr = QpAttr {
                qp_state: QpState::Rts,
                sq_psn: 2,
                ..QpAttr::default()
            };
            let mask = QpAttrMask::STATE.union(FOR_RTS);
            bench.modify(qp, &attr, mask)?;
            // Its first octets have arrived before it is reset.
            assert_eq!(qp.attach(&conn.connection, &PARAMS), Err(EINVAL));
            qp.give_up_oob(&conn.connection);
            assert!(searches(qp));
            assert_eq!(qp.phase(), QpPhase::Waiting);
            Ok(())
        })
    }

    #[test]
    fn stream_of_a_peer_with_another_psn_is_flushed() -> Result {
        let bench = Bench::new()?;
        let cq = bench.cq(4)?;
        let qp = bench.qp(4, &cq)?;
        qp.enter(QpPhase::Waiting);
        qp.enter(QpPhase::Rts);
        qp.attrs.lock().promised = Some(Psn::new(1));
        post_send::<Riwarp, _>(&[7], |wrs| qp.post_send(wrs))?;
        let attr = QpAttr {
            qp_state: QpState::Rts,
            sq_psn: 2,
            ..QpAttr::default()
        };
        let mask = QpAttrMask::STATE.union(FOR_RTS);
        let changed = bench.modify(&qp, &attr, mask);
        bench.device.queues.tx.flush();
        let flushed = polled(&cq);
        bench.destroy(&qp);
        assert_eq!(changed, Err(EINVAL));
        assert!(matches!(flushed, Some((7, Some(WcStatus::Flushed), _))));
        Ok(())
    }

    #[test]
    fn a_peer_whose_stream_cannot_begin_ends_the_search() -> Result {
        while_accepting(|_, qp, conn| {
            qp.give_up_oob(&conn.connection);
            assert!(!searches(qp));
            assert_eq!(qp.phase(), QpPhase::Error);
            Ok(())
        })
    }

    #[test]
    fn a_call_asks_for_the_depth_that_was_set() -> Result {
        for ord in [0, 1, 7, 128] {
            assert_eq!(asked_for(DeviceKind::Rxe, ord), Ok(ord.into()));
            // Each Write needs a Read there.
            assert_eq!(asked_for(DeviceKind::Ib, ord), Ok(u16::try_from(MAX_ORD)?));
        }
        Ok(())
    }
}
