// SPDX-License-Identifier: GPL-2.0

//! The search of a queue pair for its peer without `rdma_cm`.
//!
//! From RTR on the queue pair waits for a connection; from RTS on it also connects, again and again
//! with growing pauses. It is bound to one connection at a time, whose state [`ConnectState`] is.
//! The queue pair gets its stream for good only with the first octets after the start-up frames.
//! After a failed start-up the search continues. Work requests posted meanwhile stay posted, and
//! the first Send posted in RTS gives the search a time limit.
//!
//! With a stream, posted work requests go out in RTR too. iWARP has no such state, and programs
//! that know that they run on iWARP (perftest) rely on this.
//!
//! A change of the queue pair's state begins, continues and ends the search
//! ([`crate::cm::endpoint`]). The connections that it opens and accepts refer to it; the queue pair
//! knows only the work item to queue when requests are posted without a stream.
//!
//! Locks: the attributes of the queue pair > a search > `inner` of the queue pair. The lock of the
//! table of searches is innermost. Not specified by any RFC: docs/connections.md. Context: process.

use iwarp::{
    actions::{
        After,
        Later,
        Set, //
    },
    lifecycle::Event,
    mpa::negotiate::Depths,
    oob::{
        retry_timeout,
        AddrPair,
        Agreement,
        Announcement,
        ConnectState,
        FeatureBits,
        Judgement,
        Pair,
        Pauses,
        Psn,
        QpAddr,
        QpNumber,
        RnrRetry,
        Speaker, //
    }, //
};
use kernel::{
    impl_has_delayed_work,
    impl_has_work,
    new_delayed_work,
    new_spinlock,
    new_work,
    prelude::*,
    rbtree::{
        RBTree,
        RBTreeNode, //
    },
    sync::{
        Arc,
        SpinLock, //
    },
    time::{
        msecs_to_jiffies,
        Delta,
        Instant,
        Monotonic, //
    },
    workqueue::{
        DelayedWork,
        Work,
        WorkItem, //
    }, //
};
use kernel_ext::{
    compat::{
        as_millis_ceil,
        ECONNREFUSED,
        ECONNRESET,
        EOPNOTSUPP,
        EPROTO, //
    },
    mm::noio::without_io,
    net::SockAddr,
    rdma::types::{
        QpAttr,
        QpAttrMask, //
    },
    warn_on_once,
    workqueue::{
        cancel_delayed,
        enqueue_delayed,
        DelayedItem,
        OwnedQueue, //
    }, //
};

use crate::{
    cm::{
        conn::connect_oob,
        Cm, //
    },
    device::gid,
    qp::{
        actions::Runner,
        Attrs,
        Qp,
        POSTED, //
    },
    stream::connection::{
        Bound,
        StreamConnection,
        StreamParams, //
    }, //
};

/// The searches of a device, by the number of the queue pair.
#[pin_data]
pub(in crate::cm) struct OobSearches {
    #[pin]
    table: SpinLock<RBTree<u32, Arc<OobSearch>>>,
}

impl OobSearches {
    pub(super) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            table <- new_spinlock!(RBTree::new(), "riwarp::OobSearches::table"),
        })
    }

    /// Finds the search of a queue pair.
    pub(super) fn find(&self, number: u32) -> Option<Arc<OobSearch>> {
        self.table.lock().get(&number).cloned()
    }

    /// Removes a search, unless the queue pair has begun another one.
    fn remove(&self, number: u32, search: &Arc<OobSearch>) {
        let mut table = self.table.lock();
        if table
            .get(&number)
            .is_some_and(|other| Arc::ptr_eq(other, search))
        {
            let _drop_outside_lock = table.remove(&number);
            drop(table);
        }
    }

    /// Ends the search of a queue pair, if there is one. Also closes the listener, after the last
    /// search at its address.
    pub(in crate::cm) fn end(&self, number: u32) {
        let search = self.table.lock().remove(&number);
        if let Some(search) = search {
            drop(search.take());
        }
    }
}

/// A queue pair's search for its peer.
#[pin_data]
pub(in crate::cm) struct OobSearch {
    cm: Arc<Cm>,
    /// [`None`] once the search has ended.
    #[pin]
    inner: SpinLock<Option<OobSearchInner>>,
    #[pin]
    posted_work: Work<OobSearch, POSTED>,
    #[pin]
    timer: DelayedWork<OobSearch, TIMER>,
}

struct OobSearchInner {
    qp: Arc<Qp>,
    pair: Pair,
    from: SockAddr,
    to: SockAddr,
    depths: Depths,
    state: ConnectState,
    /// The PSN that the peer being accepted expects this end to start with.
    promised: Option<Psn>,
    pauses: Pauses,
    /// The zero of this search's clock.
    born: Instant<Monotonic>,
    /// When to connect, if no connection is bound then.
    connect_at: Delta,
    /// When the search times out because of the first posted Send.
    deadline: Option<Delta>,
    _wait: OobWait,
}

/// The registration of a waiting queue pair, removed on drop.
struct OobWait {
    cm: Arc<Cm>,
    pair: Pair,
    addr: SockAddr,
}

impl OobWait {
    /// Registers a queue pair.
    ///
    /// # Errors
    ///
    /// Those of [`Cm::wait`].
    fn begin(cm: &Arc<Cm>, pair: Pair, addr: SockAddr) -> Result<Self> {
        cm.wait(&pair, addr)?;
        Ok(Self {
            cm: cm.clone(),
            pair,
            addr,
        })
    }
}

impl Drop for OobWait {
    fn drop(&mut self) {
        self.cm.end_wait(&self.pair, self.addr);
    }
}

/// A connection attempt to make.
pub(in crate::cm) struct OobConnect {
    pub(in crate::cm) from: SockAddr,
    pub(in crate::cm) to: OobTarget,
    pub(in crate::cm) depths: Depths,
    pub(in crate::cm) announcement: Announcement,
}

/// Where a connection attempt leads.
pub(in crate::cm) enum OobTarget {
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

impl OobSearchInner {
    fn next_action(&mut self) -> OobAction {
        let now = self.born.elapsed();
        if self.deadline.is_some_and(|deadline| now >= deadline) {
            return OobAction::GiveUp;
        }
        if !self.may_connect() || now < self.connect_at {
            return OobAction::Nothing;
        }
        self.state = ConnectState::Connecting;
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
        self.state == ConnectState::Free && self.pair.send_psn.is_some()
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
        self.state = ConnectState::Free;
        self.promised = None;
        self.connect_at = self.born.elapsed() + Delta::from_millis(self.pauses.next_pause().into());
    }
}

impl_has_work! {
    impl HasWork<Self, POSTED> for OobSearch { self.posted_work }
}

impl_has_delayed_work! {
    impl HasDelayedWork<Self, TIMER> for OobSearch { self.timer }
}

// Steps of connections are queued behind these items, and block I/O may depend on them.

impl WorkItem<POSTED> for OobSearch {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        without_io(|| this.expedite());
    }
}

impl DelayedItem<TIMER> for OobSearch {
    fn queue(&self) -> &OwnedQueue {
        // Each end knows its peer, so the order of these connections does not matter.
        &self.cm.device.queues.stream
    }
}

impl WorkItem<TIMER> for OobSearch {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        without_io(|| this.proceed());
    }
}

// Called for the verbs.
impl OobSearch {
    /// Starts to wait, before the transition from INIT to RTR with a destination.
    ///
    /// # Errors
    ///
    /// * `EOPNOTSUPP` if the administrator has disabled this.
    /// * `EINVAL` for an invalid destination, or an address of another family than the device's; or
    ///   if a required attribute of this transition is missing.
    /// * Those of [`Cm::wait`].
    pub(in crate::cm) fn begin(
        cm: &Arc<Cm>,
        qp: &Arc<Qp>,
        attr: &QpAttr,
        mask: QpAttrMask,
    ) -> Result {
        if !mask.contains(FOR_RTR) || !attr.path.has_grh {
            return Err(EINVAL);
        }
        let device = &cm.device;
        let port = device.settings.pairing_port().ok_or(EOPNOTSUPP)?;
        let gid = device.gid(attr.path.sgid_index.into())?;
        let here = gid::to_addr(gid, port, &device.netdev).ok_or(EINVAL)?;
        let to = gid::to_addr(attr.path.dgid, port, &device.netdev).ok_or(EINVAL)?;
        let pair = Pair {
            local: QpAddr {
                gid: gid.0,
                number: QpNumber::new(qp.shared.number),
            },
            remote: QpAddr {
                gid: attr.path.dgid.0,
                number: QpNumber::new(attr.dest_qp_num),
            },
            receive_psn: Psn::new(attr.rq_psn),
            send_psn: None,
            features: if qp.shared.tells_immediate_data() {
                FeatureBits::SEND_IMMEDIATE
            } else {
                FeatureBits::NONE
            },
            rnr_retry: None,
        };
        if here.family() != to.family() {
            return Err(EINVAL);
        }
        // TCP chooses the local port.
        let mut from = here;
        from.set_port(0);
        let inner = OobSearchInner {
            qp: qp.clone(),
            pair,
            from,
            to,
            depths: Depths {
                ird: device
                    .kind
                    .read_depth(attr.max_dest_rd_atomic, device.settings.ird_limit()),
                // Offer the maximum until the consumer sets the ORD.
                ord: u16::try_from(device.settings.ord_limit())?,
            },
            state: ConnectState::Free,
            promised: None,
            pauses: Pauses::default(),
            born: Instant::now(),
            connect_at: Delta::ZERO,
            deadline: None,
            _wait: OobWait::begin(cm, pair, here)?,
        };
        // Until the consumer sets the timeout, do not wait for a peer that has closed its half.
        qp.set_retry_timeout(Some(0));
        Self::enter(cm, inner).map(drop)
    }

    /// Enters a search in the table, and has the queue pair queue its work item.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    fn enter(cm: &Arc<Cm>, inner: OobSearchInner) -> Result<Arc<Self>> {
        let qp = inner.qp.clone();
        // The caller holds the attributes of the queue pair, a lock that steps take, too.
        let (search, node) = without_io(|| -> Result<_> {
            let search = Arc::pin_init(
                pin_init!(Self {
                    cm: cm.clone(),
                    inner <- new_spinlock!(Some(inner), "riwarp::OobSearch::inner"),
                    posted_work <- new_work!("riwarp::OobSearch::posted_work"),
                    timer <- new_delayed_work!("riwarp::OobSearch::timer"),
                }),
                GFP_KERNEL_ACCOUNT,
            )?;
            let node = RBTreeNode::new(qp.shared.number, search.clone(), GFP_KERNEL_ACCOUNT)?;
            Ok((search, node))
        })?;
        qp.set_search(search.clone());
        let before = cm.oob_waiters.searches.table.lock().insert(node);
        // A queue pair has one search at a time. The other one is not found any more.
        warn_on_once!(before.is_some());
        Ok(search)
    }

    /// Starts to connect, before the transition from RTR to RTS with a destination. If a peer that
    /// is being accepted expects another PSN, resets its connection and continues the search.
    ///
    /// # Errors
    ///
    /// `EINVAL` if a required attribute of this transition is missing, or if a stream has begun
    /// meanwhile whose peer expects another PSN; that stream ends.
    pub(in crate::cm) fn connect(
        cm: &Cm,
        qp: &Arc<Qp>,
        attrs: &Attrs,
        attr: &QpAttr,
        mask: QpAttrMask,
    ) -> Result {
        if !mask.contains(FOR_RTS) {
            return Err(EINVAL);
        }
        let psn = Psn::new(attr.sq_psn);
        let micros = retry_timeout(attr.timeout, attr.retry_cnt);
        qp.set_retry_timeout(micros.and_then(|micros| u32::try_from(micros.div_ceil(1000)).ok()));
        let wrong = |promised: Option<Psn>| promised.is_some_and(|promised| promised != psn);
        let search = cm.oob_waiters.searches.find(qp.shared.number);
        let continued = search.and_then(|search| {
            let mut guard = search.inner.lock();
            let inner = (*guard).as_mut()?;
            inner.pair.send_psn = Some(psn);
            inner.pair.rnr_retry = Some(RnrRetry::new(attr.rnr_retry));
            let (kind, limit) = (cm.device.kind, cm.device.settings.ord_limit());
            inner.depths.ord = kind.read_depth(attr.max_rd_atomic, limit);
            let mismatched = if wrong(inner.promised) {
                // Unbound already here, so that it cannot attach its stream any more.
                inner.connection_lost();
                qp.take_conn()
            } else {
                inner.connect_at = inner.born.elapsed();
                None
            };
            search.arm(inner);
            Some(mismatched)
        });
        match continued {
            Some(Some(conn)) => qp.shared.ask(&conn, Set::NONE.with(Later::Abort)),
            Some(None) => {}
            None if wrong(attrs.promised) => {
                let after = qp.shared.apply(Event::WrongPsn);
                qp.carry_out(after, Runner::Any);
                return Err(EINVAL);
            }
            None => {}
        }
        Ok(())
    }
}

// Called by the connections.
impl OobSearch {
    /// Returns the connections of the device.
    pub(in crate::cm) fn cm(&self) -> &Arc<Cm> {
        &self.cm
    }

    /// Returns whether a connection may send its Request now: only if the attempt is still the
    /// bound one.
    pub(in crate::cm) fn may_send_request(&self, conn: &Arc<StreamConnection>) -> bool {
        match &mut *self.inner.lock() {
            Some(inner) if inner.state == ConnectState::Connecting && inner.qp.is_bound(conn) => {
                inner.state = ConnectState::Requesting;
                true
            }
            Some(_) | None => false,
        }
    }

    /// Checks that the private data of a Reply is what this queue pair expects from the peer at
    /// these addresses; returns what both ends agree on.
    ///
    /// # Errors
    ///
    /// `EPROTO` if it is not, `ECONNRESET` if the search has ended.
    pub(in crate::cm) fn check_reply(
        &self,
        addrs: &AddrPair,
        private_data: &[u8],
    ) -> Result<Agreement> {
        let theirs = Announcement::decode(private_data).map_err(|_| EPROTO)?;
        let inner = self.inner.lock();
        let pair = &inner.as_ref().ok_or(ECONNRESET)?.pair;
        match pair.check(addrs, Speaker::Responder, &theirs) {
            Ok(()) => Ok(pair.agree(&theirs)),
            Err(_) => Err(EPROTO),
        }
    }

    /// Checks that a stream from this queue pair to itself may begin, which needs no start-up: the
    /// queue pair has to send from the PSN that it expects. Returns what it agrees on with itself.
    ///
    /// # Errors
    ///
    /// `EPROTO` if it does not.
    pub(in crate::cm) fn check_itself(&self) -> Result<Agreement> {
        let inner = self.inner.lock();
        let pair = &inner.as_ref().ok_or(EPROTO)?.pair;
        let own = pair.announcement();
        if own.send_psn == Some(own.receive_psn) {
            Ok(pair.agree(&own))
        } else {
            Err(EPROTO)
        }
    }

    /// Binds a connection of the peer, replacing and resetting the bound one; returns the queue
    /// pair, and what to reply with.
    ///
    /// # Errors
    ///
    /// `ECONNREFUSED` if the queue pair does not wait for that peer, `EBUSY` if its own attempt
    /// takes precedence, `EAGAIN` while another thread holds the table of peers.
    pub(in crate::cm) fn accept(
        &self,
        conn: Bound,
        addrs: &AddrPair,
        theirs: &Announcement,
    ) -> Result<OobAccept> {
        let pair = self.inner.lock().as_ref().ok_or(ECONNREFUSED)?.pair;
        // Takes a mutex.
        let waiters = &self.cm.oob_waiters;
        waiters.check_call(&self.cm.device, &pair, addrs, theirs)?;
        // Dropped after the lock.
        let old;
        let mut guard = self.inner.lock();
        let inner = (*guard).as_mut().ok_or(ECONNREFUSED)?;
        if inner.pair.judge_connect(inner.state) == Judgement::Refuse {
            return Err(EBUSY);
        }
        old = inner.qp.rebind(conn).map_err(|_| ECONNREFUSED)?;
        inner.state = ConnectState::Accepting;
        inner.promised = Some(theirs.receive_psn);
        if let Some(old) = &old {
            inner.qp.shared.ask(old, Set::NONE.with(Later::Abort));
        }
        Ok(OobAccept {
            qp: inner.qp.clone(),
            depths: inner.depths,
            announcement: inner.pair.announcement(),
            agreement: inner.pair.agree(theirs),
        })
    }

    /// Binds a connection that the search opens.
    ///
    /// # Errors
    ///
    /// `EINVAL` if it does not search for that peer any more.
    pub(in crate::cm) fn bind(&self, conn: Bound, connect: &OobConnect) -> Result {
        let inner = self.inner.lock();
        let inner = inner.as_ref().ok_or(EINVAL)?;
        if inner.state != ConnectState::Connecting
            || inner.pair.announcement() != connect.announcement
        {
            return Err(EINVAL);
        }
        inner.qp.bind_search(conn)
    }

    /// Gives the queue pair its stream, which ends the search.
    ///
    /// # Errors
    ///
    /// Those of [`Qp::attach`]; the search continues then.
    pub(in crate::cm) fn attach(
        self: &Arc<Self>,
        qp: &Arc<Qp>,
        conn: &Arc<StreamConnection>,
        params: &StreamParams,
    ) -> Result {
        let after = {
            let mut attrs = qp.attrs.try_lock().ok_or(EBUSY)?;
            let after = qp.attach_with(&mut attrs, conn, params)?;
            // Under the lock of the attributes, so that a change to RTS finds either the search or
            // the PSN. A time limit that passes just before this ends the stream, as it would have
            // ended the search just before that.
            if let Some(inner) = self.take() {
                self.cm.oob_waiters.searches.remove(qp.shared.number, self);
                let unknown = inner.pair.send_psn.is_none();
                attrs.promised = inner.promised.filter(|_| unknown);
            }
            after
        };
        qp.carry_out(after, Runner::Step);
        Ok(())
    }

    /// Handles the loss of the bound connection before it became a stream.
    pub(in crate::cm) fn connection_lost(self: &Arc<Self>) {
        if let Some(inner) = &mut *self.inner.lock() {
            if inner.state != ConnectState::Free && !inner.qp.has_conn() {
                inner.connection_lost();
                self.arm(inner);
            }
        }
    }

    /// Unbinds a connection that the peer takes for its stream, but for which this end has no
    /// memory, and ends the search, because the peer will not come again. Does nothing if the
    /// connection is not the bound one of a search.
    pub(in crate::cm) fn give_up_on(self: &Arc<Self>, conn: &Arc<StreamConnection>) {
        let mut inner = self.inner.lock();
        let Some(_bound) = inner.as_ref().and_then(|inner| inner.qp.take_bound(conn)) else {
            return;
        };
        let ended = self.give_up(&mut inner);
        drop(inner);
        if let Some((inner, after)) = ended {
            self.finish(inner, after);
        }
    }
}

// Called by the work items, and helpers.
impl OobSearch {
    /// Handles the first work request posted in RTS without a peer: starts the time limit and
    /// connects at once.
    fn expedite(self: &Arc<Self>) {
        if let Some(inner) = &mut *self.inner.lock() {
            if inner.deadline.is_none() && inner.pair.send_psn.is_some() {
                let now = inner.born.elapsed();
                let limit = inner.qp.retry_timeout();
                inner.deadline = limit.map(|millis| now + Delta::from_millis(millis.into()));
                inner.pauses = Pauses::default();
                inner.connect_at = now;
                self.arm(inner);
            }
        }
    }

    /// Does what is due.
    fn proceed(self: &Arc<Self>) {
        let mut guard = self.inner.lock();
        let Some(inner) = &mut *guard else {
            return;
        };
        let action = inner.next_action();
        self.arm(inner);
        match action {
            OobAction::Connect(connect) => {
                let qp = inner.qp.clone();
                drop(guard);
                if connect_oob(self, &qp, &connect).is_err() {
                    self.connection_lost();
                }
            }
            OobAction::GiveUp => {
                let ended = self.give_up(&mut guard);
                drop(guard);
                if let Some((inner, after)) = ended {
                    // Nothing follows if the queue pair has ended meanwhile.
                    if !after.is_empty() {
                        self.cm.device.stats.pairing_timeouts.inc();
                    }
                    self.finish(inner, after);
                }
            }
            OobAction::Nothing => {}
        }
    }

    /// Fails what is posted: the peer has not come in time, or will not come again. The lock is
    /// held, so that the search has not ended with a reset or with a stream.
    fn give_up(
        self: &Arc<Self>,
        inner: &mut Option<OobSearchInner>,
    ) -> Option<(OobSearchInner, Set<After>)> {
        cancel_delayed::<Self, TIMER>(self);
        let inner = inner.take()?;
        let after = inner.qp.shared.apply(Event::SearchTimeout);
        Some((inner, after))
    }

    /// Carries out the rest of that, without the lock.
    fn finish(self: &Arc<Self>, inner: OobSearchInner, after: Set<After>) {
        let qp = inner.qp.clone();
        self.cm.oob_waiters.searches.remove(qp.shared.number, self);
        // Also closes the listener, after the last search at its address.
        drop(inner);
        qp.carry_out(after, Runner::Step);
    }

    /// Ends the search and returns what to drop without a spin lock, unless it has ended already.
    fn take(self: &Arc<Self>) -> Option<OobSearchInner> {
        let mut inner = self.inner.lock();
        cancel_delayed::<Self, TIMER>(self);
        inner.take()
    }

    /// Sets the timer to the next action. The lock is held, so that the search has not ended.
    fn arm(self: &Arc<Self>, inner: &OobSearchInner) {
        cancel_delayed::<Self, TIMER>(self);
        let Some(at) = inner.next_action_at() else {
            return;
        };
        let millis = as_millis_ceil(at - inner.born.elapsed()).clamp(0, 1 << 20);
        // CAST: just clamped.
        let delay = msecs_to_jiffies(millis as u32);
        // On failure it is set already or about to run.
        let _ = enqueue_delayed::<Self, TIMER>(self.clone(), delay);
    }
}

/// What an accepted connection begins with.
pub(in crate::cm) struct OobAccept {
    pub(in crate::cm) qp: Arc<Qp>,
    pub(in crate::cm) depths: Depths,
    pub(in crate::cm) announcement: Announcement,
    /// What both ends agree on.
    pub(in crate::cm) agreement: Agreement,
}

/// The work item of the timer.
const TIMER: u64 = 1;

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

#[kernel::prelude::kunit_tests(riwarp_oob_search)]
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

    /// Returns a search whose connection attempt is in progress, so that it needs no timer.
    fn search(bench: &Bench, qp: &Arc<Qp>) -> Result<OobSearchInner> {
        let end = |number| QpAddr {
            gid: [0; 16],
            number: QpNumber::new(number),
        };
        let pair = Pair {
            local: end(qp.shared.number),
            remote: end(qp.shared.number + 1),
            receive_psn: Psn::new(1),
            send_psn: None,
            features: FeatureBits::NONE,
            rnr_retry: None,
        };
        let here = address(Family::V4, 0);
        Ok(OobSearchInner {
            qp: qp.clone(),
            pair,
            from: here,
            to: here,
            depths: Depths {
                ird: 1,
                ord: u16::try_from(MAX_ORD)?,
            },
            state: ConnectState::Connecting,
            promised: None,
            pauses: Pauses::default(),
            born: Instant::now(),
            connect_at: Delta::ZERO,
            deadline: None,
            _wait: OobWait::begin(&bench.rdma.cm, pair, here)?,
        })
    }

    /// Modifies a queue pair to RTS, with all attributes of that; `set` sets those that matter.
    fn to_rts(bench: &Bench, qp: &Arc<Qp>, set: impl FnOnce(&mut QpAttr)) -> Result {
        let mut attr = QpAttr {
            qp_state: QpState::Rts,
            ..QpAttr::default()
        };
        set(&mut attr);
        bench.modify(qp, &attr, QpAttrMask::STATE.union(FOR_RTS))
    }

    /// Returns the ORD of the next attempt of a queue pair whose consumer has set `ord`.
    fn asked_for(kind: DeviceKind, ord: u8) -> Result<u16> {
        let bench = Bench::of(kind)?;
        let qp = bench.qp(4, &bench.cq(4)?)?;
        let search = OobSearch::enter(&bench.rdma.cm, search(&bench, &qp)?)?;
        qp.shared.enter(QpPhase::Waiting);
        let changed = to_rts(&bench, &qp, |attr| attr.max_rd_atomic = ord);
        let action = (*search.inner.lock()).as_mut().map(|inner| {
            inner.state = ConnectState::Free;
            inner.next_action()
        });
        bench.destroy(&qp);
        changed?;
        match action {
            Some(OobAction::Connect(connect)) => Ok(connect.depths.ord),
            _ => Err(EINVAL),
        }
    }

    /// Makes a queue pair that accepts a peer, which expects it to send from PSN 1, and runs `f`.
    fn while_accepting(
        f: impl FnOnce(&Bench, &Arc<OobSearch>, &Arc<Qp>, &Arc<Conn>) -> Result,
    ) -> Result {
        let bench = Bench::new()?;
        let qp = bench.qp(4, &bench.cq(4)?)?;
        let (near, _far) = pair(Family::V4)?;
        let conn = Conn::of_nobody(&bench.rdma.cm, near)?;
        let search = OobSearch::enter(
            &bench.rdma.cm,
            OobSearchInner {
                state: ConnectState::Accepting,
                promised: Some(Psn::new(1)),
                ..search(&bench, &qp)?
            },
        )?;
        qp.shared.enter(QpPhase::Waiting);
        qp.bind_search(conn.bound())?;
        let done = f(&bench, &search, &qp, &conn);
        conn.end_of_nobody();
        bench.destroy(&qp);
        done
    }

    /// Returns whether the search goes on, and is found.
    fn searches(bench: &Bench, search: &OobSearch, qp: &Qp) -> (bool, bool) {
        let found = bench.rdma.cm.oob_waiters.searches.find(qp.shared.number);
        (search.inner.lock().is_some(), found.is_some())
    }

    #[test]
    fn a_peer_with_another_psn_is_unbound_at_once() -> Result {
        while_accepting(|bench, search, qp, conn| {
            to_rts(bench, qp, |attr| attr.sq_psn = 2)?;
            // Its first octets have arrived before it is reset.
            assert_eq!(search.attach(qp, &conn.connection, &PARAMS), Err(EINVAL));
            search.give_up_on(&conn.connection);
            assert_eq!(searches(bench, search, qp), (true, true));
            assert_eq!(qp.shared.phase(), QpPhase::Waiting);
            Ok(())
        })
    }

    #[test]
    fn stream_of_a_peer_with_another_psn_is_flushed() -> Result {
        let bench = Bench::new()?;
        let cq = bench.cq(4)?;
        let qp = bench.qp(4, &cq)?;
        qp.shared.enter(QpPhase::Waiting);
        qp.shared.enter(QpPhase::Rts);
        qp.attrs.lock().promised = Some(Psn::new(1));
        post_send::<Riwarp, _>(&[7], |wrs| qp.post_send(wrs))?;
        let changed = to_rts(&bench, &qp, |attr| attr.sq_psn = 2);
        bench.device.queues.tx.flush();
        let flushed = polled(&cq);
        bench.destroy(&qp);
        assert_eq!(changed, Err(EINVAL));
        assert!(matches!(flushed, Some((7, Some(WcStatus::Flushed), _))));
        Ok(())
    }

    #[test]
    fn a_peer_whose_stream_cannot_begin_ends_the_search() -> Result {
        while_accepting(|bench, search, qp, conn| {
            search.give_up_on(&conn.connection);
            assert_eq!(searches(bench, search, qp), (false, false));
            assert_eq!(qp.shared.phase(), QpPhase::Error);
            Ok(())
        })
    }

    #[test]
    fn search_is_limited_by_the_first_request_posted() -> Result {
        let bench = Bench::new()?;
        let qp = bench.qp(4, &bench.cq(4)?)?;
        let mut inner = search(&bench, &qp)?;
        inner.pair.send_psn = Some(Psn::new(1));
        let search = OobSearch::enter(&bench.rdma.cm, inner)?;
        qp.set_retry_timeout(Some(60_000));
        qp.shared.enter(QpPhase::Waiting);
        let is_limited = || {
            let inner = search.inner.lock();
            inner.as_ref().is_some_and(|inner| inner.deadline.is_some())
        };
        let before = is_limited();
        post_send::<Riwarp, _>(&[7], |wrs| qp.post_send(wrs))?;
        bench.device.queues.flush_tx();
        bench.device.queues.stream.flush();
        let after = is_limited();
        bench.destroy(&qp);
        assert_eq!((before, after), (false, true));
        Ok(())
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
