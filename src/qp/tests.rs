// SPDX-License-Identifier: GPL-2.0

//! KUnit suites of queue pairs: posting and polling by a kernel consumer with interrupts off, state
//! changes, and when a post is sent.

#[kernel::prelude::kunit_tests(riwarp_qp)]
mod posting {
    use super::super::*;
    use crate::{
        abi::wr::SendWr,
        bench::{
            polled,
            Bench, //
        },
        device::{
            MAX_IRD,
            MAX_ORD,
            MAX_QP_WR, //
        },
        queue::{
            cq::Cq,
            sq::Taken, //
        },
        Riwarp, //
    };
    use iwarp::lifecycle::{
        Event,
        QpPhase,
        QpRequest, //
    };
    use kernel_ext::{
        rdma::{
            bench::{
                interrupts_off,
                post_recv,
                post_send,
                ConsumerQp,
                MaskedAtomic,
                MaskedOp, //
            },
            ops::{
                CqOps,
                QpOps,
                SrqOps, //
            },
            types::{
                AccessFlags,
                NotifyOn,
                NotifyRequest,
                QpAttr,
                QpAttrMask,
                QpState, //
            }, //
        },
        workqueue::cancel_delayed, //
    };

    /// A queue pair; destroyed on drop.
    struct QpRig {
        qp: Arc<Qp>,
        cq: Arc<Cq>,
        bench: Bench,
    }

    impl QpRig {
        fn new() -> Result<Self> {
            Self::of(4, 4)
        }

        /// Creates one with queues of these sizes.
        fn of(send: u32, recv: u32) -> Result<Self> {
            let bench = Bench::new()?;
            let cq = bench.cq(16)?;
            let made = bench.qp_of((send, recv), None, &cq)?;
            assert_eq!((made.caps.max_send_wr, made.caps.max_recv_wr), (send, recv));
            let qp = made.qp;
            Ok(Self { qp, cq, bench })
        }

        /// Posts sends with interrupts off, as a consumer does that holds its own lock.
        fn send(&self, ids: &[u64]) -> Result {
            let (posted, off) =
                interrupts_off(|| post_send::<Riwarp, _>(ids, |wrs| self.qp.post_send(wrs)));
            assert!(off);
            posted
        }

        /// Posts receives with interrupts off.
        fn receive(&self, ids: &[u64]) -> Result {
            let (posted, off) = interrupts_off(|| {
                post_recv(ids, |wrs| Qp::post_recv(self.qp.as_arc_borrow(), wrs))
            });
            assert!(off);
            posted
        }

        /// Waits for the work item of the transmit task.
        fn settle(&self) {
            self.bench.device.queues.tx.flush();
        }

        /// Polls and arms the completion queue with interrupts off; returns whether exactly these
        /// requests completed, flushed.
        fn flushed(&self, ids: &[u64]) -> bool {
            let (all, off) = interrupts_off(|| {
                let request = NotifyRequest {
                    on: NotifyOn::Next,
                    report_missed: true,
                };
                self.cq.req_notify(request);
                ids.iter().all(|id| {
                    polled(&self.cq).is_some_and(|(wr_id, how, _)| {
                        (wr_id, how) == (*id, Some(WcStatus::Flushed))
                    })
                }) && polled(&self.cq).is_none()
            });
            all && off
        }
    }

    impl Drop for QpRig {
        fn drop(&mut self) {
            self.bench.destroy(&self.qp);
        }
    }

    /// An atomic operation with this number, whose memory nobody looks at.
    fn atomic(id: u64) -> MaskedAtomic {
        MaskedAtomic {
            id,
            op: MaskedOp::FetchAdd {
                add: 1,
                boundary: 0,
            },
            target: (0, 0),
            sink: (0, 0),
        }
    }

    #[test]
    fn post_reports_first_refused_request_of_list() -> Result {
        let rig = QpRig::new()?;
        let consumer = ConsumerQp::<Riwarp>::new(rig.qp.clone())?;
        assert_eq!(
            consumer.try_post_send(&[atomic(1), atomic(2)]),
            Err((EINVAL, 1))
        );
        rig.qp.shared.enter(QpPhase::Rts);
        assert_eq!(consumer.try_post_send(&[atomic(1), atomic(2)]), Ok(()));
        assert_eq!(
            consumer.try_post_send(&[atomic(3), atomic(4), atomic(5), atomic(6)]),
            Err((ENOMEM, 5))
        );
        assert_eq!(consumer.try_post_recv(&[11, 12, 13]), Ok(()));
        assert_eq!(consumer.try_post_recv(&[14, 15, 16]), Err((ENOMEM, 15)));
        rig.qp.shared.enter(QpPhase::Error);
        rig.settle();
        Ok(())
    }

    #[test]
    fn posts_fail_by_a_rule_with_interrupts_off() -> Result {
        let rig = QpRig::new()?;
        let device = &rig.bench.device;
        let srq = rig.bench.srq(2, 0)?;
        let receive = |id| interrupts_off(|| post_recv(&[id], |wrs| srq.post_recv(wrs))).0;
        device.injector.write(
            device,
            "on=post_send kernel=yes nth=2 do=errno=EAGAIN\n\
             on=post_recv kernel=yes nth=2 do=errno=EBUSY\n\
             on=post_srq_recv kernel=yes nth=2 do=errno=EIO",
        )?;
        rig.qp.shared.enter(QpPhase::Rts);
        assert_eq!((rig.send(&[1]), rig.receive(&[1])), (Ok(()), Ok(())));
        assert_eq!(receive(1), Ok(()));
        assert_eq!(
            (rig.send(&[2]), rig.receive(&[2])),
            (Err(EAGAIN), Err(EBUSY))
        );
        assert_eq!(receive(2), Err(EIO));
        assert_eq!((rig.send(&[3]), rig.receive(&[3])), (Ok(()), Ok(())));
        assert_eq!(receive(3), Ok(()));
        assert_eq!(rig.bench.count(c"injected"), 3);
        // The first request is the bad one.
        let consumer = ConsumerQp::<Riwarp>::new(rig.qp.clone())?;
        let always = "clear\non=post_send kernel=yes do=errno=EAGAIN";
        device.injector.write(device, always)?;
        assert_eq!(
            consumer.try_post_send(&[atomic(4), atomic(5)]),
            Err((EAGAIN, 4))
        );
        // A consumer drains a queue pair in error by posting.
        rig.qp.shared.enter(QpPhase::Error);
        assert_eq!(rig.send(&[6]), Ok(()));
        rig.settle();
        Ok(())
    }

    #[test]
    fn sends_are_posted_with_interrupts_off() -> Result {
        let rig = QpRig::new()?;
        assert_eq!(rig.send(&[1]), Err(EINVAL));
        // As for a stream about to be attached; nothing is transmitted yet.
        rig.qp.shared.enter(QpPhase::Rts);
        assert_eq!(rig.send(&[1, 2]), Ok(()));
        assert_eq!(rig.send(&[3]), Ok(()));
        // Posts the requests that fit.
        assert_eq!(rig.send(&[4, 5]), Err(ENOMEM));
        rig.settle();
        assert!(rig.flushed(&[]));
        rig.qp.shared.enter(QpPhase::Error);
        assert_eq!(rig.send(&[6]), Err(ENOMEM));
        rig.settle();
        assert!(rig.flushed(&[1, 2, 3, 4]));
        // Requests posted later are flushed too.
        assert_eq!(rig.send(&[7, 8]), Ok(()));
        rig.settle();
        assert!(rig.flushed(&[7, 8]));
        Ok(())
    }

    #[test]
    fn receives_are_posted_with_interrupts_off() -> Result {
        let rig = QpRig::new()?;
        assert_eq!(rig.receive(&[1, 2, 3]), Ok(()));
        assert_eq!(rig.receive(&[4, 5]), Err(ENOMEM));
        rig.settle();
        assert!(rig.flushed(&[]));
        rig.qp.shared.enter(QpPhase::Error);
        assert_eq!(rig.receive(&[6]), Err(ENOMEM));
        rig.settle();
        assert!(rig.flushed(&[1, 2, 3, 4]));
        assert_eq!(rig.receive(&[7]), Ok(()));
        rig.settle();
        assert!(rig.flushed(&[7]));
        Ok(())
    }

    #[test]
    fn post_to_queue_without_entries_is_refused() -> Result {
        for (send, recv) in [(0, 4), (4, 0), (0, 0)] {
            let rig = QpRig::of(send, recv)?;
            let room = |places| if places == 0 { Err(ENOMEM) } else { Ok(()) };
            rig.qp.shared.enter(QpPhase::Rts);
            assert_eq!(rig.send(&[1]), room(send));
            assert_eq!(rig.receive(&[2]), room(recv));
            rig.settle();
            assert!(rig.flushed(&[]));
            rig.qp.shared.enter(QpPhase::Error);
            rig.qp.transmit();
            assert!(rig.flushed(match (send, recv) {
                (0, 0) => &[],
                (0, _) => &[2],
                _ => &[1],
            }));
            assert_eq!(rig.send(&[3]), room(send));
            assert_eq!(rig.receive(&[4]), room(recv));
        }
        Ok(())
    }

    #[test]
    fn recv_queue_size_is_ignored_with_srq() -> Result {
        let bench = Bench::new()?;
        let (cq, srq) = (bench.cq(4)?, bench.srq(4, 0)?);
        let made = bench.qp_of((4, u32::MAX), Some(srq), &cq)?;
        assert_eq!((made.caps.max_send_wr, made.caps.max_recv_wr), (4, 0));
        bench.destroy(&made.qp);
        for places in [(MAX_QP_WR + 1, 4), (4, MAX_QP_WR + 1), (u32::MAX, 4)] {
            assert_eq!(bench.qp_of(places, None, &cq).err(), Some(EINVAL));
        }
        Ok(())
    }

    #[test]
    fn shared_receives_are_posted_with_interrupts_off() -> Result {
        let rig = QpRig::new()?;
        let srq = rig.bench.srq(2, 2)?;
        let ((posted, more), off) = interrupts_off(|| {
            let posted = post_recv(&[1, 2], |wrs| srq.post_recv(wrs));
            (posted, post_recv(&[3], |wrs| srq.post_recv(wrs)))
        });
        assert!(off);
        assert_eq!((posted, more), (Ok(()), Err(ENOMEM)));
        // A receive taken in softirq makes the limit event due, which is raised likewise.
        let (taken, off) = interrupts_off(|| srq.take(&mut RecvWr::default(), Taker::First));
        assert!(off && matches!(taken, Some(Ok(()))));
        assert_eq!(srq.query().srq_limit, 0);
        Ok(())
    }

    /// A consumer is not called back from within its own call. The work item may finish before the
    /// call returns, but not each time.
    #[test]
    fn modify_to_error_completes_flushed_requests_later() -> Result {
        let mut later = false;
        for _ in 0..100 {
            let rig = QpRig::new()?;
            assert_eq!(rig.receive(&[1]), Ok(()));
            let attr = QpAttr {
                qp_state: QpState::Err,
                ..QpAttr::default()
            };
            rig.bench.modify(&rig.qp, &attr, QpAttrMask::STATE)?;
            later = polled(&rig.cq).is_none();
            rig.settle();
            assert!(rig.flushed(if later { &[1] } else { &[] }));
            if later {
                break;
            }
        }
        assert!(later);
        Ok(())
    }

    /// Modifies the queue pair to RTS.
    fn to_rts(rig: &QpRig) -> Result {
        let attr = QpAttr {
            qp_state: QpState::Rts,
            ..QpAttr::default()
        };
        rig.bench.modify(&rig.qp, &attr, QpAttrMask::STATE)
    }

    #[test]
    fn modify_to_rts_succeeds_only_from_rts_or_connect() -> Result {
        for oob in [false, true] {
            let rig = QpRig::new()?;
            assert_eq!(to_rts(&rig), Err(EINVAL));
            if oob {
                // It starts an out-of-band connect.
                rig.qp.shared.enter(QpPhase::Waiting);
                let _ = rig.qp.shared.lifecycle.request(QpRequest::ModifyRts);
                assert_eq!(to_rts(&rig), Ok(()));
            }
            rig.qp.shared.enter(QpPhase::Rts);
            assert_eq!(to_rts(&rig), Ok(()));
            for phase in [QpPhase::Closing, QpPhase::Terminate, QpPhase::Error] {
                rig.qp.shared.enter(phase);
                assert_eq!(to_rts(&rig), Err(EINVAL));
            }
        }
        Ok(())
    }

    #[test]
    fn drain_with_sq_drained_event_is_refused() -> Result {
        let rig = QpRig::new()?;
        rig.qp.shared.enter(QpPhase::Rts);
        let drain = |notify| {
            let attr = QpAttr {
                qp_state: QpState::Sqd,
                en_sqd_async_notify: notify,
                ..QpAttr::default()
            };
            let mask = QpAttrMask::STATE | QpAttrMask::EN_SQD_ASYNC_NOTIFY;
            rig.bench.modify(&rig.qp, &attr, mask)
        };
        assert_eq!(
            (drain(1), rig.qp.shared.phase()),
            (Err(EOPNOTSUPP), QpPhase::Rts)
        );
        assert_eq!(
            (drain(0), rig.qp.shared.phase()),
            (Ok(()), QpPhase::Closing)
        );
        Ok(())
    }

    #[test]
    fn query_reports_draining_send_queue() -> Result {
        let query = |qp: &Qp| {
            let attr = qp.attr();
            (attr.qp_state, attr.sq_draining)
        };
        let drain = |rig: &QpRig| {
            let attr = QpAttr {
                qp_state: QpState::Sqd,
                ..QpAttr::default()
            };
            rig.bench.modify(&rig.qp, &attr, QpAttrMask::STATE)
        };
        // Nothing is posted.
        let rig = QpRig::new()?;
        rig.qp.shared.enter(QpPhase::Rts);
        assert_eq!(drain(&rig), Ok(()));
        assert_eq!(query(&rig.qp), (QpState::Sqd, 0));
        // A Send is posted, and nothing is transmitted.
        let rig = QpRig::new()?;
        rig.qp.shared.enter(QpPhase::Rts);
        assert_eq!(rig.send(&[1]), Ok(()));
        assert_eq!(query(&rig.qp), (QpState::Rts, 0));
        assert_eq!(drain(&rig), Ok(()));
        rig.settle();
        assert_eq!(query(&rig.qp), (QpState::Sqd, 1));
        let Taken::Wr(slot) = rig.qp.shared.sq.take(&mut SendWr::default()) else {
            return Err(EINVAL);
        };
        assert_eq!(query(&rig.qp), (QpState::Sqd, 1));
        rig.qp
            .shared
            .sq
            .finish(slot, WcStatus::Success, rig.qp.shared.origin());
        assert_eq!(query(&rig.qp), (QpState::Sqd, 0));
        // What is posted now waits for the end.
        assert_eq!(rig.send(&[2]), Ok(()));
        assert_eq!(query(&rig.qp), (QpState::Sqd, 0));
        rig.qp.shared.enter(QpPhase::Error);
        assert_eq!(query(&rig.qp), (QpState::Err, 0));
        rig.settle();
        Ok(())
    }

    #[test]
    fn modify_refuses_sizes_and_alternate_path() -> Result {
        let rig = QpRig::new()?;
        let before = rig.qp.attr();
        let attr = QpAttr {
            qp_state: QpState::Init,
            access: AccessFlags::REMOTE_READ,
            ..QpAttr::default()
        };
        let modify = |mask| rig.bench.modify(&rig.qp, &attr, mask);
        let with = QpAttrMask::STATE | QpAttrMask::ACCESS_FLAGS;
        for mask in [
            QpAttrMask::CAP,
            QpAttrMask::ALT_PATH,
            QpAttrMask::PATH_MIG_STATE,
        ] {
            assert_eq!(modify(mask), Err(EOPNOTSUPP));
            assert_eq!(modify(mask | with), Err(EOPNOTSUPP));
            assert!(rig.qp.attr() == before);
        }
        assert_eq!(modify(with), Ok(()));
        assert!(rig.qp.attr() != before);
        Ok(())
    }

    #[test]
    fn modified_depths_stay_within_device_limits() -> Result {
        let rig = QpRig::new()?;
        let set = |mask, depth: u32| {
            let depth = u8::try_from(depth)?;
            let attr = QpAttr {
                max_rd_atomic: depth,
                max_dest_rd_atomic: depth,
                ..QpAttr::default()
            };
            rig.bench.modify(&rig.qp, &attr, mask)
        };
        for (mask, max) in [
            (QpAttrMask::MAX_QP_RD_ATOMIC, MAX_ORD),
            (QpAttrMask::MAX_DEST_RD_ATOMIC, MAX_IRD),
        ] {
            assert_eq!((set(mask, max), set(mask, max + 1)), (Ok(()), Err(EINVAL)));
        }
        Ok(())
    }

    /// The transmit task finds a request for a peer that has closed, while another context ends the
    /// queue pair and has cancelled the timeout already: it must not be armed again, since it would
    /// hold a reference for an hour.
    #[test]
    fn peer_timeout_is_not_armed_after_the_end() -> Result {
        for end in [QpPhase::Terminate, QpPhase::Error, QpPhase::Gone] {
            let rig = QpRig::new()?;
            let qp = &rig.qp;
            qp.set_retry_timeout(Some(3_600_000));
            qp.shared.enter(QpPhase::Rts);
            let _ = qp.shared.lifecycle.on(Event::PeerClosed);
            // Before the end the timeout is armed.
            qp.time_out_closed_peer();
            assert!(cancel_delayed::<Qp, PEER>(qp));
            qp.shared.enter(end);
            qp.end_peer_limit();
            qp.time_out_closed_peer();
            assert!(!cancel_delayed::<Qp, PEER>(qp));
        }
        Ok(())
    }

    #[test]
    fn destroyed_queue_pair_leaves_no_completions() -> Result {
        let rig = QpRig::new()?;
        assert_eq!(rig.receive(&[1]), Ok(()));
        rig.qp.shared.enter(QpPhase::Error);
        rig.qp.transmit();
        assert_eq!(rig.receive(&[2]), Ok(()));
        assert_eq!(rig.send(&[3]), Ok(()));
        let number = rig.qp.shared.number;
        assert!(rig.bench.rdma.qps.get(number).is_some());
        rig.bench.destroy(&rig.qp);
        assert!(rig.bench.rdma.qps.get(number).is_none());
        assert!(rig.flushed(&[]));
        Ok(())
    }
}

#[kernel::prelude::kunit_tests(riwarp_qp_send)]
mod sending {
    use super::super::{
        actions::Runner,
        *, //
    };
    use crate::{
        abi::wr::SendWr,
        bench::{
            polled,
            Bench, //
        },
        cm::conn::bench::{
            Started,
            PARAMS, //
        },
        queue::cq::Cq,
        Riwarp, //
    };
    use iwarp::actions::{
        After,
        Set, //
    };
    use kernel::{
        impl_has_work,
        new_work,
        sync::SetOnce,
        time::{
            delay::fsleep,
            Delta, //
        },
        workqueue::{
            Work,
            WorkItem, //
        }, //
    };
    use kernel_ext::{
        net::{
            bench::{
                eventually,
                pair, //
            },
            Family,
            Socket, //
        },
        rdma::{
            bench::{
                interrupts_off,
                post_send,
                CqConsumer,
                CqHandler, //
            },
            ops::{
                CqOps,
                QpOps, //
            },
            types::{
                NotifyOn,
                NotifyRequest, //
            }, //
        },
        sync::BhOff, //
    };

    /// Number of requests that fit into a queue.
    const PLACES: u32 = 16;

    /// Posts a Send without payload, as a kernel consumer.
    fn post(qp: &Arc<Qp>) -> Result {
        post_send::<Riwarp, _>(&[1], |wrs| qp.post_send(wrs))
    }

    /// A consumer that polls its completion queue in the handler, and posts again.
    struct Poster {
        cq: SetOnce<Arc<Cq>>,
        /// The queue pair to which the handler posts.
        to: SetOnce<Arc<Qp>>,
        /// How often it still posts.
        left: Atomic<u32>,
        calls: Atomic<u32>,
    }

    impl Poster {
        fn poll(&self) {
            let request = NotifyRequest {
                on: NotifyOn::Next,
                report_missed: false,
            };
            if let Some(cq) = self.cq.as_ref() {
                cq.req_notify(request);
                while polled(cq).is_some() {}
            }
        }
    }

    impl CqHandler for Poster {
        fn completed(&self) {
            self.calls.fetch_add(1, Relaxed);
            self.poll();
            let left = self.left.load(Relaxed);
            if left > 0 && self.to.as_ref().is_some_and(|qp| post(qp).is_ok()) {
                self.left.store(left - 1, Relaxed);
            }
        }
    }

    /// A queue pair with a stream, and its consumer. Destroyed on drop.
    struct SendRig {
        started: Option<Started>,
        qp: Arc<Qp>,
        poster: Arc<Poster>,
        _consumer: CqConsumer<Poster>,
        _far: Socket,
        bench: Bench,
    }

    impl SendRig {
        fn new() -> Result<Self> {
            let bench = Bench::new()?;
            let poster = Poster {
                cq: SetOnce::new(),
                to: SetOnce::new(),
                left: Atomic::new(0),
                calls: Atomic::new(0),
            };
            let poster = Arc::new(poster, GFP_KERNEL)?;
            let consumer = CqConsumer::try_new(poster.clone())?;
            let cq = bench.cq_of(consumer.link(), PLACES)?;
            let qp = bench.qp(PLACES, &cq)?;
            let (near, far) = pair(Family::V4)?;
            let started = Started::new(&bench.rdma.cm, near, &qp)?;
            let rig = Self {
                started: Some(started),
                qp,
                poster,
                _consumer: consumer,
                _far: far,
                bench,
            };
            let conn = rig.started.as_ref().map(|started| started.0.clone());
            rig.qp.attach(&conn.ok_or(EINVAL)?.connection, &PARAMS)?;
            rig.poster.cq.populate(cq);
            rig.poster.poll();
            Ok(rig)
        }

        /// Returns how many batches TCP has accepted, and how often the consumer was called.
        fn sent_and_told(&self) -> (u64, u32) {
            (
                self.bench.count(c"tx_batches"),
                self.poster.calls.load(Relaxed),
            )
        }

        /// Returns whether everything that was posted is complete.
        fn is_over(&self) -> bool {
            !self.qp.shared.sq.has_posted() && self.qp.shared.sq.is_idle()
        }
    }

    impl Drop for SendRig {
        fn drop(&mut self) {
            drop(self.started.take());
            self.bench.destroy(&self.qp);
        }
    }

    /// A thread that posts many requests.
    #[pin_data]
    struct PostingThread {
        qp: Arc<Qp>,
        #[pin]
        work: Work<PostingThread>,
    }

    impl_has_work! {
        impl HasWork<Self> for PostingThread { self.work }
    }

    impl WorkItem for PostingThread {
        type Pointer = Arc<Self>;

        fn run(this: Arc<Self>) {
            for _ in 0..10 * PLACES {
                while post(&this.qp).is_err() {
                    fsleep(Delta::from_micros(10));
                }
            }
        }
    }

    #[test]
    fn post_send_sends_before_it_returns() -> Result {
        let rig = SendRig::new()?;
        for n in 1..=3 {
            post(&rig.qp)?;
            let (sent, told) = rig.sent_and_told();
            assert_eq!((sent, u64::from(told)), (n, n));
        }
        Ok(())
    }

    #[test]
    fn posted_list_is_sent_in_one_batch() -> Result {
        let rig = SendRig::new()?;
        post_send::<Riwarp, _>(&[1, 2, 3, 4], |wrs| rig.qp.post_send(wrs))?;
        assert_eq!(rig.sent_and_told(), (1, 1));
        assert!(rig.is_over());
        Ok(())
    }

    /// As after a round of the transmit task that got no memory: nobody posts meanwhile.
    #[test]
    fn transmit_later_runs_the_transmit_task() -> Result {
        let rig = SendRig::new()?;
        rig.qp.shared.sq.post(SendWr::default())?;
        assert_eq!(rig.sent_and_told(), (0, 0));
        let later = Set::NONE.with(After::TransmitLater);
        rig.qp.carry_out(later, Runner::Any);
        eventually(|| rig.sent_and_told().0 == 1)
    }

    /// As under a consumer's own lock, which its handler may take.
    #[test]
    fn post_send_does_not_call_completion_handler() -> Result {
        let rig = SendRig::new()?;
        BhOff::run(|_| {
            assert_eq!(post(&rig.qp), Ok(()));
            assert_eq!(rig.sent_and_told(), (0, 0));
        });
        assert_eq!(rig.sent_and_told(), (1, 1));
        let (seen, off) = interrupts_off(|| {
            assert_eq!(post(&rig.qp), Ok(()));
            rig.sent_and_told()
        });
        assert!(off);
        assert_eq!(seen, (1, 1));
        rig.bench.device.queues.flush_tx();
        assert_eq!(rig.sent_and_told(), (2, 2));
        Ok(())
    }

    #[test]
    fn completion_handler_may_post_to_its_queue_pair() -> Result {
        let rig = SendRig::new()?;
        rig.poster.left.store(10 * PLACES, Relaxed);
        rig.poster.to.populate(rig.qp.clone());
        post(&rig.qp)?;
        eventually(|| rig.poster.left.load(Relaxed) == 0 && rig.is_over())?;
        let posts = 10 * PLACES + 1;
        eventually(|| rig.sent_and_told() == (posts.into(), posts))
    }

    #[test]
    fn completion_handlers_may_post_to_each_others_queue_pair() -> Result {
        let rigs = [SendRig::new()?, SendRig::new()?];
        let [one, other] = &rigs;
        one.poster.to.populate(other.qp.clone());
        other.poster.to.populate(one.qp.clone());
        for rig in &rigs {
            rig.poster.left.store(u32::MAX, Relaxed);
            let poster = pin_init!(PostingThread {
                qp: rig.qp.clone(),
                work <- new_work!("riwarp_qp_send::PostingThread"),
            });
            let poster = Arc::pin_init(poster, GFP_KERNEL)?;
            // Its threads run on all processors.
            assert!(rig.bench.device.queues.reaper.enqueue(poster).is_ok());
        }
        for rig in &rigs {
            rig.bench.device.queues.reaper.flush();
        }
        let mut all = 0;
        for rig in &rigs {
            all += u32::MAX - rig.poster.left.xchg(0, Relaxed);
        }
        assert!(all > 0);
        eventually(|| rigs.iter().all(SendRig::is_over))
    }
}
