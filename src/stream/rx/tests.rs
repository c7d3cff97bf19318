// SPDX-License-Identifier: GPL-2.0

//! KUnit suite of the receiver with two connections: an old one with unfinished work, and a new
//! one.

mod kernel_memory;
mod rest;

#[kernel::prelude::kunit_tests(riwarp_rx_streams)]
mod streams {
    use super::super::*;
    use crate::{
        bench::{
            polled,
            Bench, //
        },
        cm::conn::{
            bench::{
                FPDU,
                PARAMS, //
            },
            Conn, //
        },
        qp::{
            receive::RxWaits,
            Qp, //
        },
        queue::{
            cq::Cq,
            waits::FOR_EVER, //
        }, //
    };
    use iwarp::{
        features::Features,
        mpa::negotiate::FeatureRules,
        rdmap::Marked,
        segment::{
            Message,
            Segmenter, //
        }, //
    };
    use kernel::sync::{
        atomic::Relaxed,
        SetOnce, //
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
        new_spinlock_bh,
        rdma::{
            bench::{
                post_recv,
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
            },
            wr::WcStatus, //
        },
        sync::SpinLockBh, //
    };

    /// Returns the Send with that MSN, without payload. The receiver checks no CRC here.
    fn send(msn: u8) -> [u8; FPDU] {
        let mut fpdu = [0; FPDU];
        (fpdu[1], fpdu[2], fpdu[3], fpdu[15]) = (18, 0x41, 0x43, msn);
        fpdu
    }

    /// Gives the queue pair another stream on its next completion: stands for a consumer that
    /// resets and reconnects it while the receiver holds no lock.
    #[pin_data]
    struct Change {
        qp: SetOnce<Arc<Qp>>,
        #[pin]
        other: SpinLockBh<Option<KBox<RxStream>>>,
    }

    impl CqHandler for Change {
        fn completed(&self) {
            let (Some(qp), mut other) = (self.qp.as_ref(), self.other.lock()) else {
                return;
            };
            if other.is_some() {
                core::mem::swap(&mut qp.rx.lock().stream, &mut *other);
            }
        }
    }

    /// A queue pair with two receives, and two connections to choose from.
    struct RxRig {
        qp: Arc<Qp>,
        cq: Arc<Cq>,
        ours: [Arc<Conn>; 2],
        peers: [Socket; 2],
        change: Arc<Change>,
        _consumer: CqConsumer<Change>,
        bench: Bench,
    }

    impl RxRig {
        fn new() -> Result<Self> {
            let bench = Bench::new()?;
            let change = pin_init!(Change {
                qp: SetOnce::new(),
                other <- new_spinlock_bh!(None),
            });
            let change = Arc::pin_init(change, GFP_KERNEL)?;
            let consumer = CqConsumer::try_new(change.clone())?;
            let cq = bench.cq_of(consumer.link(), 4)?;
            let qp = bench.qp(2, &cq)?;
            post_recv(&[1, 2], |wrs| Qp::post_recv(qp.as_arc_borrow(), wrs))?;
            let (first, second) = (pair(Family::V4)?, pair(Family::V4)?);
            Ok(Self {
                ours: [
                    Conn::of_nobody(&bench.rdma.cm, first.0)?,
                    Conn::of_nobody(&bench.rdma.cm, second.0)?,
                ],
                peers: [first.1, second.1],
                qp,
                cq,
                change,
                _consumer: consumer,
                bench,
            })
        }

        /// Makes a connection the one of the stream.
        fn start(&self, which: usize) -> Result {
            self.start_with(which, &PARAMS)
        }

        fn start_with(&self, which: usize, params: &StreamParams) -> Result {
            self.qp
                .start_rx(&self.connection(which), params, Extensions::Rfc7306)
        }

        /// Sends octets through a connection, and waits until they have arrived.
        fn say(&self, which: usize, octets: &[u8]) -> Result {
            let before = self.left(which);
            self.peers[which].send(octets)?;
            eventually(|| self.left(which) == before + octets.len())
        }

        /// Returns how many octets have arrived and are not consumed.
        fn left(&self, which: usize) -> usize {
            self.ours[which]
                .connection
                .socket()
                .with_inbound(|inbound| inbound.available())
        }

        /// Runs the work item of the receiver.
        fn work(&self) {
            self.qp.enqueue_rx();
            self.bench.device.queues.tx.flush();
        }

        /// Returns whether the next completion is the successful one of this receive.
        fn received(&self, id: u64) -> bool {
            polled(&self.cq) == Some((id, Some(WcStatus::Success), 0))
        }

        /// Defers the first Send of the first connection, as if its memory were absent.
        fn put_off(&self) -> Result {
            let header = send(1);
            let mut rx = self.qp.rx.lock();
            let stream = rx.stream.as_mut().ok_or(EINVAL)?;
            let RxStream {
                receiver,
                incoming,
                cache,
                ..
            } = &mut **stream;
            let segment = receiver.have_send_absent(&header[2..]).ok_or(EINVAL)?;
            let taken = incoming.take(&self.qp.shared, cache, Some(&segment));
            taken.map(drop).map_err(|_| EINVAL)
        }

        /// Returns whether the stream belongs to this connection and is not stopped or waiting.
        fn is_of(&self, which: usize) -> bool {
            let rx = self.qp.rx.lock();
            rx.stream.as_ref().is_some_and(|stream| {
                stream.is_of(&self.connection(which)) && stream.receiver.is_going()
            })
        }

        fn connection(&self, which: usize) -> Arc<StreamConnection> {
            self.ours[which].connection.clone()
        }

        /// Resumes the deferred Send.
        fn resume(&self) {
            let wanted = self.ours[0]
                .connection
                .socket()
                .with_inbound(|inbound| self.qp.resume(&self.connection(0), inbound, None));
            assert!(wanted.is_none());
        }
    }

    impl Drop for RxRig {
        fn drop(&mut self) {
            for conn in &self.ours {
                conn.end_of_nobody();
            }
            self.bench.destroy(&self.qp);
        }
    }

    /// What the receiver of a Responder can do in these tests.
    const OURS: Features = Features {
        ulpdu_max: 20_000,
        marked: Marked::ALL,
    };

    /// Returns the first FPDU of an Initiator that tells its features.
    fn features(theirs: Features) -> Result<[u8; 32]> {
        let plan = Segmenter::new(Message::Features(theirs), 0)
            .next(1000)
            .ok_or(EINVAL)?;
        let mut fpdu = [0; 32];
        fpdu[..28].copy_from_slice(plan.header());
        Ok(fpdu)
    }

    /// A stream whose receiver awaits the features of the peer.
    fn awaiting() -> Result<RxRig> {
        let rig = RxRig::new()?;
        let params = StreamParams {
            features: FeatureRules {
                awaits: Some(OURS),
                ..FeatureRules::NONE
            },
            ..PARAMS
        };
        rig.start_with(0, &params)?;
        rig.qp.bind(rig.ours[0].bound())?;
        Ok(rig)
    }

    impl RxRig {
        fn untouched(&self) -> bool {
            let rx = self.qp.rx.lock();
            rx.stream
                .as_ref()
                .is_some_and(|stream| stream.receiver.is_untouched())
        }
    }

    #[test]
    fn initiator_features_are_not_delivered_to_consumer() -> Result {
        for (theirs, common) in [(30_000, 20_000), (10_000, 10_000), (0, 0)] {
            let rig = awaiting()?;
            let told = features(Features {
                ulpdu_max: theirs,
                marked: Marked::FLUSH,
            })?;
            rig.say(0, &told[..31])?;
            rig.work();
            assert_eq!((rig.left(0), rig.connection(0).ulpdu_max()), (31, 0));
            rig.say(0, &told[31..])?;
            rig.work();
            assert_eq!((rig.left(0), rig.connection(0).ulpdu_max()), (0, common));
            assert!(rig.connection(0).takes(Marked::FLUSH));
            assert!(!rig.connection(0).takes(Marked::ATOMIC_WRITE));
            assert!(rig.untouched() && polled(&rig.cq).is_none());
            rig.say(0, &send(1))?;
            rig.work();
            assert!(rig.received(1) && !rig.untouched());
            // They come once, and only in front of everything.
            rig.say(0, &told)?;
            rig.work();
            assert!(!rig.is_of(0));
        }
        Ok(())
    }

    #[test]
    fn initiator_without_features_gets_no_long_fpdus() -> Result {
        let rig = awaiting()?;
        rig.say(0, &send(1))?;
        rig.work();
        assert!(rig.received(1) && rig.is_of(0));
        assert_eq!(rig.connection(0).ulpdu_max(), 0);
        assert!(!rig.connection(0).takes(Marked::FLUSH));
        Ok(())
    }

    #[test]
    fn unexpected_features_end_the_stream() -> Result {
        let rig = RxRig::new()?;
        rig.start(0)?;
        rig.qp.bind(rig.ours[0].bound())?;
        rig.say(0, &features(OURS)?)?;
        rig.work();
        assert!(!rig.is_of(0));
        assert_eq!(rig.connection(0).ulpdu_max(), 0);
        Ok(())
    }

    #[test]
    fn delayed_message_is_followed_by_later_ones() -> Result {
        let rig = RxRig::new()?;
        rig.start(0)?;
        rig.say(0, [send(1), send(2)].as_flattened())?;
        rig.put_off()?;
        rig.resume();
        assert!(rig.received(1) && rig.received(2));
        assert_eq!(rig.left(0), 0);
        Ok(())
    }

    #[test]
    fn messages_behind_delayed_one_are_dropped_on_stream_change() -> Result {
        let rig = RxRig::new()?;
        rig.start(1)?;
        let other = rig.qp.rx.lock().stream.take();
        *rig.change.other.lock() = other;
        rig.change.qp.populate(rig.qp.clone());
        rig.start(0)?;
        rig.say(0, [send(1), send(2)].as_flattened())?;
        rig.put_off()?;
        let request = NotifyRequest {
            on: NotifyOn::Next,
            report_missed: false,
        };
        rig.cq.req_notify(request);
        rig.resume();
        assert!(rig.received(1));
        assert!(rig.is_of(1));
        assert_eq!(rig.left(0), FPDU);
        // The new connection starts with the first MSN.
        rig.qp.bind(rig.ours[1].bound())?;
        rig.say(1, &send(1))?;
        rig.work();
        assert!(rig.received(2));
        assert!(rig.is_of(1));
        Ok(())
    }

    /// Two messages more than there are receives have arrived, and may wait for ever.
    fn two_too_many(may_wait: u32) -> Result<RxRig> {
        let rig = RxRig::new()?;
        rig.start(0)?;
        rig.qp.bind(rig.ours[0].bound())?;
        rig.qp.shared.receive_wait.store(may_wait, Relaxed);
        let messages = [send(1), send(2), send(3), send(4)];
        rig.say(0, messages.as_flattened())?;
        rig.work();
        assert!(rig.received(1) && rig.received(2));
        Ok(rig)
    }

    fn post(rig: &RxRig, id: u64) -> Result {
        post_recv(&[id], |wrs| Qp::post_recv(rig.qp.as_arc_borrow(), wrs))
    }

    #[test]
    fn message_waits_until_receive_is_posted() -> Result {
        let rig = two_too_many(FOR_EVER)?;
        assert_eq!(
            (rig.left(0), rig.qp.rx_waits()),
            (2 * FPDU, RxWaits::Receive)
        );
        // What is done again finds nothing else to do.
        rig.work();
        assert_eq!(rig.left(0), 2 * FPDU);
        for (id, left) in [(3, FPDU), (4, 0)] {
            post(&rig, id)?;
            eventually(|| rig.left(0) == left)?;
            assert!(rig.received(id));
        }
        assert!(rig.is_of(0) && rig.qp.rx_waits() == RxWaits::Nothing);
        assert_eq!(rig.bench.count(c"rx_receive_waits"), 2);
        Ok(())
    }

    #[test]
    fn message_without_rnr_retry_ends_the_stream() -> Result {
        let rig = two_too_many(0)?;
        assert!(!rig.is_of(0) && rig.left(0) == 0);
        assert_eq!(rig.bench.count(c"rx_receive_waits"), 0);
        Ok(())
    }

    #[test]
    fn message_waiting_beyond_rnr_limit_ends_the_stream() -> Result {
        let rig = two_too_many(1)?;
        eventually(|| rig.left(0) == 0)?;
        assert!(!rig.is_of(0) && polled(&rig.cq).is_none());
        assert_eq!(rig.bench.count(c"rx_receive_timeouts"), 1);
        Ok(())
    }

    #[test]
    fn waiting_first_message_counts_as_valid() -> Result {
        let rig = RxRig::new()?;
        rig.qp.flush();
        while polled(&rig.cq).is_some() {}
        rig.start(0)?;
        rig.qp.bind(rig.ours[0].bound())?;
        rig.qp.shared.receive_wait.store(FOR_EVER, Relaxed);
        assert!(rig.untouched());
        rig.say(0, &send(1))?;
        rig.work();
        assert!(!rig.untouched() && rig.left(0) == FPDU);
        Ok(())
    }

    /// The work item queued for an old stream runs on the connection that the queue pair has by
    /// then.
    #[test]
    fn stale_receive_work_reads_nothing_of_new_connection() -> Result {
        let rig = RxRig::new()?;
        rig.qp.bind(rig.ours[1].bound())?;
        rig.say(1, &send(1))?;
        // The start-up is not finished: the queue pair has no stream, or still the old one.
        rig.work();
        assert_eq!(rig.left(1), FPDU);
        rig.start(0)?;
        rig.work();
        assert_eq!(rig.left(1), FPDU);
        assert!(rig.is_of(0) && polled(&rig.cq).is_none());
        rig.start(1)?;
        rig.work();
        assert_eq!(rig.left(1), 0);
        assert!(rig.received(1));
        Ok(())
    }
}
