// SPDX-License-Identifier: GPL-2.0

//! Creates, modifies, queries and destroys queue pairs.
//!
//! Context: process, unless a function says otherwise.

use iwarp::{
    actions::{
        After,
        Set, //
    },
    fault::Fault,
    lifecycle::{
        Event,
        QpPhase,
        QpRequest, //
    },
    oob::RnrRetry,
    stag::Access,
    terminate::Terminate, //
};
use kernel::{
    new_delayed_work,
    new_mutex,
    new_work,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc, //
    },
    time::hrtimer::HrTimer, //
};
use kernel_ext::{
    compat::{
        new_spinlock_irq,
        EISCONN,
        EOPNOTSUPP, //
    },
    mm::memcg::Memcg,
    new_spinlock_bh,
    rdma::{
        object::QpLink,
        settings::current_comm,
        types::{
            QpAttr,
            QpAttrMask,
            QpCaps,
            QpState, //
        }, //
    },
    sync::{
        NextCacheLine,
        SerialTask, //
    },
    time::TimerHandle, //
};

use crate::{
    device::Reservation,
    mem::pd::Pd,
    queue::{
        cq::Cq,
        readq::InboundReads,
        sq::SendQueue,
        waits::{
            ReceiveWaiter,
            ReceiveWaits, //
        }, //
    },
    stream::{
        connection::Bound,
        lifecycle::{
            qp_state,
            LifecycleWord, //
        },
        owner::{
            QpInner,
            QpShared,
            Receives, //
        },
        rx::Rx,
        tx::{
            coalescer::{
                DoorbellCoalescer,
                RxEvents, //
            },
            paging::PagingOut,
            Tx, //
        }, //
    }, //
};

#[cfg(CONFIG_KUNIT = "y")]
use crate::{
    abi::user::SendRing,
    bench::Bench,
    device::Resource,
    queue::rq::RecvQueue, //
};

use super::{
    actions::Runner,
    table::Qps,
    timer::FLUSH_PERIOD,
    Attrs,
    Qp, //
};

/// Parts of a queue pair, apart from its send queue.
pub(crate) struct QpParts {
    pub(crate) caps: QpCaps,
    pub(crate) user: bool,
    pub(crate) link: QpLink,
    pub(crate) pd: Arc<Pd>,
    pub(crate) recv_cq: Arc<Cq>,
    pub(crate) receives: Receives,
    pub(crate) waits: Arc<ReceiveWaits>,
    pub(crate) reservation: Reservation,
}

impl Qp {
    /// Creates a queue pair and registers it with the device.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn assemble(
        qps: &Arc<Qps>,
        parts: QpParts,
        sq: impl PinInit<SendQueue>,
    ) -> Result<Arc<Self>> {
        // Memory of kernel consumers is charged to no cgroup, whichever process they work for.
        let pays = if parts.user {
            Memcg::current()
        } else {
            Memcg::nobody()
        };
        let waiter = ReceiveWaiter::new(&parts.waits)?;
        qps.insert(|number| {
            Arc::pin_init(
                pin_init!(Self {
                    shared <- pin_init!(QpShared {
                        number,
                        user: parts.user,
                        link: parts.link,
                        device: qps.device().clone(),
                        regions: parts.pd.regions().clone(),
                        pd: parts.pd,
                        recv_cq: parts.recv_cq,
                        receives: parts.receives,
                        comm: current_comm(),
                        lifecycle: LifecycleWord::new(qps.device().kind.new_queue_pair()),
                        serial: qps.next_serial(),
                        rights: Atomic::new(Access::ALL.bits().into()),
                        peer_terminate: Atomic::new(0),
                        ending: Atomic::new(0),
                        inner <- new_spinlock_irq!(QpInner {
                            conn: None,
                            terminate: None,
                            negotiated: None,
                        }),
                        paced_by: Atomic::new(0),
                        read_wait: Atomic::new(0),
                        idle_check: Atomic::new(false),
                        _sender: NextCacheLine,
                        sq <- sq,
                        packed: Atomic::new(false),
                        coalescer: DoorbellCoalescer::new(qps.device().abi().doorbells()),
                        tx_timer_armed: Atomic::new(false),
                        _receiver: NextCacheLine,
                        waiter,
                        receive_wait: Atomic::new(0),
                        rx_events: RxEvents::new(),
                        _rest: NextCacheLine,
                        inbound_reads <- InboundReads::new(),
                        paging_out <- new_spinlock_bh!(PagingOut::default()),
                    }),
                    tx: SerialTask::new(Tx::default()),
                    rx <- new_spinlock_bh!(Rx::default()),
                    new_tx <- new_spinlock_irq!(None),
                    caps: parts.caps,
                    send_immediate: Atomic::new(false),
                    in_items: Atomic::new(false),
                    retry_timeout: Atomic::new(0),
                    last_wqe_raised: Atomic::new(false),
                    flush_pause: Atomic::new(FLUSH_PERIOD),
                    modifying <- new_mutex!((), "Qp::modifying"),
                    attrs <- new_mutex!(Attrs::default(), "Qp::attrs"),
                    qps: qps.clone(),
                    search <- new_spinlock_irq!(None),
                    timer <- HrTimer::new(),
                    tx_timer <- TimerHandle::new(),
                    tx_work <- new_work!("Qp::tx_work"),
                    tx_softirq_work <- new_work!("Qp::tx_softirq_work"),
                    tx_user_work <- new_work!("Qp::tx_user_work"),
                    rx_work <- new_work!("Qp::rx_work"),
                    rx_user_work <- new_work!("Qp::rx_user_work"),
                    peer_timer <- new_delayed_work!("Qp::peer_timer"),
                    paging_in_work <- new_work!("Qp::paging_in_work"),
                    paging_out_work <- new_work!("Qp::paging_out_work"),
                    idle_work <- new_delayed_work!("Qp::idle_work"),
                    rule_work <- new_delayed_work!("Qp::rule_work"),
                    owner: pays,
                    _reservation: parts.reservation,
                }),
                GFP_KERNEL_ACCOUNT,
            )
        })
    }

    /// Creates a queue pair without receives whose requests come from a ring mapped by a process,
    /// at most `entries` of them pending. Otherwise it is as for a kernel consumer. For tests.
    #[cfg(CONFIG_KUNIT = "y")]
    pub(crate) fn of_ring(
        bench: &Bench,
        entries: u32,
        ring: SendRing,
        cq: &Arc<Cq>,
    ) -> Result<Arc<Self>> {
        Self::among(&bench.rdma.qps, bench, entries, Some(ring), cq)
    }

    /// As [`Qp::of_ring`], in a table of its own; without a ring a kernel consumer posts to it.
    #[cfg(CONFIG_KUNIT = "y")]
    pub(super) fn among(
        qps: &Arc<Qps>,
        bench: &Bench,
        entries: u32,
        ring: Option<SendRing>,
        cq: &Arc<Cq>,
    ) -> Result<Arc<Self>> {
        let parts = QpParts {
            caps: QpCaps::default(),
            user: false,
            link: QpLink::dead()?,
            pd: bench.pd.clone(),
            recv_cq: cq.clone(),
            receives: Receives::Own(Arc::pin_init(RecvQueue::new(0, None)?, GFP_KERNEL)?),
            waits: bench.rdma.waits.clone(),
            reservation: bench.device.reserve(Resource::Qp)?,
        };
        let sq = SendQueue::new(entries, true, cq.clone(), ring)?;
        Self::assemble(qps, parts, sq)
    }

    /// Calls `f` as if a consumer took long to change the attributes, for a test.
    #[cfg(CONFIG_KUNIT = "y")]
    pub(crate) fn while_modified<R>(&self, f: impl FnOnce() -> R) -> R {
        let _attrs = self.attrs.lock();
        f()
    }

    /// Checks what does not depend on the state that follows.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a current state that is another one, and depths above the device's limits,
    /// `EOPNOTSUPP` for sizes, an alternate path and the state of path migration, for a path in any
    /// transition but the one to RTR and for the event SQ_DRAINED.
    pub(crate) fn check_modify(&self, attr: &QpAttr, mask: QpAttrMask) -> Result {
        if mask.intersects(REFUSED) {
            return Err(EOPNOTSUPP);
        }
        if mask.contains(QpAttrMask::CUR_STATE)
            && attr.cur_qp_state != qp_state(self.shared.lifecycle().verbs_state())
        {
            return Err(EINVAL);
        }
        let to_rtr = mask.contains(QpAttrMask::STATE) && attr.qp_state == QpState::Rtr;
        if mask.contains(QpAttrMask::AV) && !to_rtr {
            return Err(EOPNOTSUPP);
        }
        // SQD ends the stream, so nobody needs the event: a query tells whether the queue has
        // drained.
        if mask.contains(QpAttrMask::EN_SQD_ASYNC_NOTIFY) && attr.en_sqd_async_notify != 0 {
            return Err(EOPNOTSUPP);
        }
        if mask.contains(QpAttrMask::MAX_QP_RD_ATOMIC)
            && u32::from(attr.max_rd_atomic) > self.shared.device.settings.ord_limit()
            || mask.contains(QpAttrMask::MAX_DEST_RD_ATOMIC)
                && u32::from(attr.max_dest_rd_atomic) > self.shared.device.settings.ird_limit()
        {
            return Err(EINVAL);
        }
        Ok(())
    }

    /// Makes a request for a state. The caller holds the attributes, and carries out the rest of
    /// the transition.
    ///
    /// # Errors
    ///
    /// `EINVAL` for an invalid transition.
    pub(crate) fn change_state(&self, request: QpRequest) -> Result<Set<After>> {
        if request == QpRequest::ModifySqe {
            let terminate = Terminate::for_fault(Fault::Local, None);
            return self.shared.request_if(request, |_| Ok(Some(terminate)));
        }
        self.shared.request(request)
    }

    /// Stores what the consumer has set.
    pub(crate) fn store_attrs(&self, attrs: &mut Attrs, attr: &QpAttr, mask: QpAttrMask) {
        attrs.stored.take_over(attr, mask);
        if mask.contains(QpAttrMask::RNR_RETRY) {
            attrs.own_rnr_retry = Some(RnrRetry::new(attr.rnr_retry));
        }
        self.set_rights(attrs);
        self.set_receive_wait(attrs);
    }

    /// Returns the request that begins a reset.
    fn reset_request(&self) -> QpRequest {
        QpRequest::ResetBegin {
            posted: self.has_posted(),
        }
    }

    /// Sends what has to go out before a reset, if that is allowed now.
    ///
    /// # Errors
    ///
    /// `EINVAL` while a stream of the connection manager exists.
    pub(crate) fn prepare_reset(self: &Arc<Self>) -> Result {
        self.shared.allows(self.reset_request())?;
        self.finish_terminate();
        Ok(())
    }

    /// Begins a reset: ends the stream. The caller holds the attributes, carries out the rest of
    /// the transition, and detaches the connection.
    ///
    /// # Errors
    ///
    /// As [`Qp::prepare_reset`].
    pub(crate) fn begin_reset(&self) -> Result<Set<After>> {
        self.shared.request(self.reset_request())
    }

    /// Finishes a reset, after the connection was detached.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the connection manager has begun to set up a stream meanwhile.
    pub(crate) fn finish_reset(self: &Arc<Self>) -> Result {
        if !self.quiesce() {
            return Err(EINVAL);
        }
        // Requests on a new stream must not wait for the old stream's timer.
        self.stop_tx_timer();
        self.enqueue_tx();
        *self.attrs.lock() = Attrs::default();
        Ok(())
    }

    /// Returns whether the queue pair's own queues hold requests that would have to be flushed.
    pub(crate) fn has_posted(&self) -> bool {
        let receives = match &self.shared.receives {
            Receives::Own(queue) => queue.holds(1),
            Receives::Shared(_) => false,
        };
        receives || self.shared.sq.has_posted() || !self.shared.sq.is_idle()
    }

    /// Resets what the old stream has left, unless a new connection exists. Returns whether it did.
    /// Context: the running transmit task.
    pub(super) fn reset_queues(self: &Arc<Self>) -> bool {
        let after = self.shared.request_if(QpRequest::ResetEnd, |inner| {
            if inner.conn.is_some() {
                return Err(EISCONN);
            }
            inner.terminate = None;
            inner.negotiated = None;
            Ok(None)
        });
        let Ok(after) = after else {
            return false;
        };
        self.carry_out(after, Runner::Any);
        self.send_immediate.store(false, Relaxed);
        self.in_items.store(false, Relaxed);
        self.shared.peer_terminate.store(0, Relaxed);
        self.shared.ending.store(0, Relaxed);
        self.last_wqe_raised.store(false, Relaxed);
        self.flush_pause.store(FLUSH_PERIOD, Relaxed);
        true
    }

    /// Returns the current attributes and state. In SQD, `sq_draining` is 1 until all that was
    /// posted before is complete; no event says so.
    ///
    /// Context: process, sleeps.
    pub(crate) fn attr(&self) -> QpAttr {
        let attrs = self.attrs.lock();
        let lifecycle = self.shared.lifecycle();
        let state = qp_state(lifecycle.verbs_state());
        let draining = lifecycle.phase() == QpPhase::Closing
            && !(self.shared.sq.is_drained() && self.shared.sq.is_idle());
        QpAttr {
            qp_state: state,
            cur_qp_state: state,
            sq_draining: draining.into(),
            caps: self.caps,
            ..attrs.stored
        }
    }

    /// Begins to destroy the queue pair: ends the stream. Returns the connection to detach.
    ///
    /// Context: process, sleeps.
    pub(crate) fn begin_destroy(self: &Arc<Self>) -> Option<Bound> {
        self.finish_closing();
        self.finish_terminate();
        let after = self.shared.apply(Event::Destroy);
        self.carry_out(after, Runner::Verb);
        self.tx_timer.end();
        self.take_conn()
    }

    /// Finishes, after the connection was detached. Posted requests end without completions;
    /// completions that a kernel consumer has not polled are removed.
    ///
    /// Context: process, sleeps.
    pub(crate) fn finish_destroy(self: &Arc<Self>) {
        self.transmit_until_idle(|| ());
        self.end_idle_check();
        self.end_look();
        self.shared.each_cq(|cq| cq.forget(self.shared.link.id()));
        self.qps.remove(self.shared.number);
    }
}

/// What modifying never changes: sizes, and what belongs to path migration, which iWARP lacks.
const REFUSED: QpAttrMask = QpAttrMask::CAP
    .union(QpAttrMask::ALT_PATH)
    .union(QpAttrMask::PATH_MIG_STATE);
