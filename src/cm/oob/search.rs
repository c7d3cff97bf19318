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
        Later,
        Set, //
    },
    lifecycle::Event,
    mpa::{
        negotiate::{
            Config,
            Depths,
            Initiator,
            PeerToPeer, //
        },
        start::{
            Revision,
            RtrKinds, //
        }, //
    },
    oob::{
        retry_timeout,
        ConnectState,
        FeatureBits,
        Pair,
        Pauses,
        Psn,
        QpAddr,
        QpNumber,
        RnrRetry, //
    },
    rdmap::Extensions, //
};
use kernel::{
    new_delayed_work,
    new_spinlock,
    new_work,
    prelude::*,
    rbtree::RBTreeNode,
    sync::Arc,
    time::{
        Delta,
        Instant, //
    },
    workqueue::WorkItem, //
};
use kernel_ext::{
    compat::EOPNOTSUPP,
    mm::noio::without_io,
    net::Socket,
    rdma::types::{
        QpAttr,
        QpAttrMask, //
    },
    warn_on_once,
    workqueue::{
        DelayedItem,
        OwnedQueue, //
    }, //
};

use crate::{
    cm::conn::{
        frames::{
            initiator_config,
            initiator_socket, //
        },
        phase::{
            Actor,
            ConnPhase, //
        },
        Cm,
        Conn, //
    },
    device::gid,
    qp::{
        actions::Runner,
        Attrs,
        Qp,
        POSTED, //
    }, //
};

use super::{
    OobAction,
    OobConnect,
    OobSearch,
    OobSearchInner,
    OobTarget,
    OobWait,
    TIMER, //
};

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
        let port = device.settings.oob_port().ok_or(EOPNOTSUPP)?;
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
            peer_receive_psn: None,
            pauses: Pauses::default(),
            created: Instant::now(),
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
        let wrong = |expected: Option<Psn>| expected.is_some_and(|expected| expected != psn);
        let search = cm.oob_waiters.searches.find(qp.shared.number);
        let continued = search.and_then(|search| {
            let mut guard = search.inner.lock();
            let inner = (*guard).as_mut()?;
            inner.pair.send_psn = Some(psn);
            inner.pair.rnr_retry = Some(RnrRetry::new(attr.rnr_retry));
            let (kind, limit) = (cm.device.kind, cm.device.settings.ord_limit());
            inner.depths.ord = kind.read_depth(attr.max_rd_atomic, limit);
            let mismatched = if wrong(inner.peer_receive_psn) {
                // Unbound already here, so that it cannot attach its stream any more.
                inner.connection_lost();
                qp.take_conn()
            } else {
                inner.connect_at = inner.created.elapsed();
                None
            };
            search.arm(inner);
            Some(mismatched)
        });
        match continued {
            Some(Some(conn)) => qp.shared.ask(&conn, Set::NONE.with(Later::Abort)),
            Some(None) => {}
            None if wrong(attrs.peer_receive_psn) => {
                let after = qp.shared.apply(Event::WrongPsn);
                qp.carry_out(after, Runner::Any);
                return Err(EINVAL);
            }
            None => {}
        }
        Ok(())
    }
}

// Called by the work items, and helpers.
impl OobSearch {
    /// Handles the first work request posted in RTS without a peer: starts the time limit and
    /// connects at once.
    fn expedite(self: &Arc<Self>) {
        if let Some(inner) = &mut *self.inner.lock() {
            if inner.deadline.is_none() && inner.pair.send_psn.is_some() {
                let now = inner.created.elapsed();
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
                        self.cm.device.stats.oob_timeouts.inc();
                    }
                    self.finish(inner, after);
                }
            }
            OobAction::Nothing => {}
        }
    }
}

/// Connects to the peer of an out-of-band search and reports the result to the queue pair.
///
/// # Errors
///
/// * `EINVAL`: the queue pair no longer searches for that peer.
/// * `ENODEV`: the device is being removed.
/// * `EADDRNOTAVAIL` and others of TCP.
fn connect_oob(search: &Arc<OobSearch>, qp: &Arc<Qp>, oob: &OobConnect) -> Result {
    let cm = search.cm();
    let (config, tls) = initiator_config(&cm.device);
    let initiator = Initiator::new(for_oob(config), oob.depths);
    let request = initiator.request(&oob.announcement.encode());
    let request = KBox::new(request.map_err(|_| EINVAL)?, GFP_KERNEL)?;

    let peer = match &oob.to {
        OobTarget::Peer(peer) => peer,
        OobTarget::Itself => &oob.from,
    };
    let socket = initiator_socket(&cm.device, peer, tls.as_ref())?;
    match oob.to {
        OobTarget::Peer(_) => socket.bind_without_port(&oob.from)?,
        OobTarget::Itself => socket.bind(&oob.from)?,
    }
    let conn = Conn::new(cm.clone(), socket, Actor::new(ConnPhase::Released))?;
    conn.search.populate(search.clone());
    conn.with_actor(|actor| {
        let to = match oob.to {
            OobTarget::Peer(peer) => peer,
            OobTarget::Itself => conn.socket.local_addr()?,
        };
        let bound = search.bind(conn.bound(), oob);
        let connect = |socket: &Socket| socket.connect_nonblock(&to);
        conn.begin(actor, qp.clone(), bound, connect, |actor| {
            actor.begin_connecting(None, initiator, request, tls)
        })
    })
}

/// Adapts a configuration for a start-up without a connection manager. Either end may send first,
/// so it uses revision 2 with a Write as the ready-to-receive message. The private data negotiates
/// extensions.
fn for_oob(config: Config) -> Config {
    Config {
        revision: Revision::Two,
        peer_to_peer: PeerToPeer::On,
        rtr: RtrKinds::WRITE,
        extensions: Extensions::Rfc7306,
        ..config
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
            peer_receive_psn: None,
            pauses: Pauses::default(),
            created: Instant::now(),
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
                peer_receive_psn: Some(Psn::new(1)),
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
    fn search_drops_peer_with_wrong_psn_at_once() -> Result {
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
    fn stream_of_peer_with_wrong_psn_is_flushed() -> Result {
        let bench = Bench::new()?;
        let cq = bench.cq(4)?;
        let qp = bench.qp(4, &cq)?;
        qp.shared.enter(QpPhase::Waiting);
        qp.shared.enter(QpPhase::Rts);
        qp.attrs.lock().peer_receive_psn = Some(Psn::new(1));
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
    fn failed_attach_ends_the_search() -> Result {
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
    fn connect_requests_the_configured_read_depth() -> Result {
        for ord in [0, 1, 7, 128] {
            assert_eq!(asked_for(DeviceKind::Rxe, ord), Ok(ord.into()));
            // Each Write needs a Read there.
            assert_eq!(asked_for(DeviceKind::Ib, ord), Ok(u16::try_from(MAX_ORD)?));
        }
        Ok(())
    }
}
