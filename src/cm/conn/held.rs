// SPDX-License-Identifier: GPL-2.0

//! KUnit suite of steps that find what they need held by another thread, as by a process that is
//! preempted or reclaims memory: no other connection waits for that thread, and the step follows
//! when it has gone on.

#[kernel::prelude::kunit_tests(riwarp_conn_held)]
mod held {
    use super::super::{
        super::endpoint,
        bench::{
            ConnRig,
            Started,
            PARAMS, //
        },
        frames::{
            config,
            Role, //
        },
        phase::{
            ConnPhase,
            Open, //
        },
        *, //
    };
    use iwarp::{
        lifecycle::QpPhase,
        mpa::negotiate::{
            Depths,
            Initiator, //
        }, //
    };
    use kernel::sync::{
        atomic::Relaxed,
        Completion, //
    };
    use kernel_ext::{
        compat::ECONNRESET,
        net::{
            bench::{
                eventually,
                pair, //
            },
            Family,
            TcpState, //
        },
        workqueue::OwnedQueue, //
    };

    #[pin_data]
    struct Gate {
        #[pin]
        open: Completion,
        waiting: Atomic<u32>,
    }

    /// Threads that hold something until this is dropped.
    struct Holders {
        gate: Arc<Gate>,
        queue: OwnedQueue,
    }

    impl Holders {
        fn new() -> Result<Self> {
            let gate = pin_init!(Gate {
                open <- Completion::new(),
                waiting: Atomic::new(0),
            });
            Ok(Self {
                gate: Arc::pin_init(gate, GFP_KERNEL)?,
                queue: OwnedQueue::for_tests()?,
            })
        }

        /// Adds a thread: `hold` has to call its argument with the lock held.
        fn add(&self, hold: impl Fn(&dyn Fn()) + Send + 'static) -> Result {
            let gate = self.gate.clone();
            let already = gate.waiting.load(Relaxed);
            self.queue.try_spawn(move || {
                hold(&|| {
                    gate.waiting.add(1, Relaxed);
                    gate.open.wait_for_completion();
                });
            })?;
            eventually(|| self.gate.waiting.load(Relaxed) > already)
        }

        /// Adds a thread that owns the socket of a connection.
        fn own(&self, conn: &Arc<Conn>) -> Result {
            let conn = conn.clone();
            self.add(move |wait| conn.socket.with_inbound(|_| wait()))
        }
    }

    impl Drop for Holders {
        fn drop(&mut self) {
            self.gate.open.complete_all();
        }
    }

    /// A queue pair that connects, with the test as its peer.
    struct ConnectingQp {
        started: Option<Started>,
        qp: Arc<Qp>,
        far: Socket,
        cm: Arc<Cm>,
    }

    impl ConnectingQp {
        fn new(rig: &ConnRig) -> Result<Self> {
            let qp = rig.bench.qp(4, &rig.cq)?;
            let (near, far) = pair(Family::V4)?;
            let started = Started::new(&rig.bench.rdma.cm, near, &qp)?;
            let depths = Depths { ird: 1, ord: 1 };
            let initiator = Initiator::new(config(&rig.bench.device, Role::Initiator), depths);
            let request = initiator.request(&[]).map_err(|_| EINVAL)?;
            let request = KBox::new(request, GFP_KERNEL)?;
            let conn = started.0.clone();
            conn.with_actor(|actor| actor.begin_connecting(None, initiator, request, None));
            conn.kick();
            Ok(Self {
                started: Some(started),
                qp,
                far,
                cm: rig.bench.rdma.cm.clone(),
            })
        }

        /// Accepts as the peer.
        fn accept(&self) -> Result {
            let mut frame = [0; 24];
            eventually(|| self.far.peek(&mut frame) == Ok(frame.len()))?;
            self.far.recv(&mut frame)?;
            frame[..16].copy_from_slice(b"MPA ID Rep Frame");
            self.far.send(&frame).map(|_| ())
        }

        fn is_open(&self) -> bool {
            self.qp.shared.phase() == QpPhase::Rts
        }
    }

    impl Drop for ConnectingQp {
        fn drop(&mut self) {
            drop(self.started.take());
            endpoint::destroy(&self.cm, &self.qp);
        }
    }

    /// Returns whether another connection opens.
    fn another_opens(rig: &ConnRig) -> Result {
        let caller = ConnectingQp::new(rig)?;
        caller.accept()?;
        eventually(|| caller.is_open())
    }

    fn is_reset(far: &Socket) -> Result {
        eventually(|| far.recv(&mut [0]) == Err(ECONNRESET))
    }

    /// More than run at once.
    #[test]
    fn connections_open_alongside_100_locked_sockets() -> Result {
        let rig = ConnRig::new()?;
        let holders = Holders::new()?;
        let (mut conns, mut peers) = (KVec::new(), KVec::new());
        for number in 0..100 {
            let (near, far) = pair(Family::V4)?;
            let conn = Conn::of_nobody(&rig.bench.rdma.cm, near)?;
            conn.with_actor(|actor| actor.phase = ConnPhase::Open(Open::reported()));
            if number % 2 == 0 {
                conn.set_route(Route::Qp);
            }
            holders.own(&conn)?;
            conns.push(conn, GFP_KERNEL)?;
            peers.push(far, GFP_KERNEL)?;
        }
        for conn in &conns {
            conn.ask(Later::Abort);
        }
        let opened = another_opens(&rig);
        let wait = |conn: &Arc<Conn>| conn.socket.state() == TcpState::Established;
        let all_wait = conns.iter().all(wait);
        drop(holders);
        for peer in &peers {
            is_reset(peer)?;
        }
        assert!(all_wait);
        opened
    }

    #[test]
    fn connections_open_alongside_locked_actor() -> Result {
        let rig = ConnRig::new()?;
        let holders = Holders::new()?;
        let (near, far) = pair(Family::V4)?;
        let conn = Conn::of_nobody(&rig.bench.rdma.cm, near)?;
        let held = conn.clone();
        holders.add(move |wait| {
            held.with_actor(|actor| {
                actor.phase = ConnPhase::Open(Open::reported());
                wait();
            });
        })?;
        conn.ask(Later::Abort);
        let opened = another_opens(&rig);
        drop(holders);
        is_reset(&far)?;
        opened
    }

    #[test]
    fn connections_open_alongside_queue_pair_being_modified() -> Result {
        let rig = ConnRig::new()?;
        let holders = Holders::new()?;
        let first = ConnectingQp::new(&rig)?;
        let qp = first.qp.clone();
        holders.add(move |wait| qp.while_modified(wait))?;
        first.accept()?;
        let opened = another_opens(&rig);
        assert!(!first.is_open());
        drop(holders);
        eventually(|| first.is_open())?;
        opened
    }

    /// Ends a stream by `end` while its socket is owned; returns how the peer sees the end.
    fn end_of_owned(end: impl FnOnce(&ConnRig) -> Result) -> Result<Result<usize>> {
        let rig = ConnRig::new()?;
        rig.open(&PARAMS)?;
        let conn = &rig.conn;
        let holders = Holders::new()?;
        conn.with_actor(|actor| -> Result {
            actor.phase = ConnPhase::Open(Open::reported());
            end(&rig)?;
            holders.own(conn)
        })?;
        conn.kick();
        eventually(|| conn.with_actor(|actor| actor.comes_back()))?;
        drop(holders);
        rig.end()
    }

    #[test]
    fn streams_of_locked_sockets_end_after_unlock() -> Result {
        let close = |how| {
            move |rig: &ConnRig| -> Result {
                rig.conn.ask(how);
                Ok(())
            }
        };
        assert_eq!(end_of_owned(close(Later::Abort))?, Err(ECONNRESET));
        assert_eq!(end_of_owned(close(Later::Close))?, Ok(0));
        let peer_ends = |rig: &ConnRig| -> Result {
            rig.far.shutdown_write();
            eventually(|| rig.conn.socket.state() == TcpState::CloseWait)
        };
        assert_eq!(end_of_owned(peer_ends)?, Ok(0));
        Ok(())
    }

    /// A process that destroys its queue pair does not wait either.
    #[test]
    fn queue_pairs_of_locked_sockets_are_destroyed() -> Result {
        let rig = ConnRig::new()?;
        rig.open(&PARAMS)?;
        rig.conn
            .with_actor(|actor| actor.phase = ConnPhase::Open(Open::reported()));
        let holders = Holders::new()?;
        holders.own(&rig.conn)?;
        rig.conn.detach_qp();
        assert!(rig.conn.qp().is_none());
        drop(holders);
        assert_eq!(rig.end()?, Err(ECONNRESET));
        Ok(())
    }
}
