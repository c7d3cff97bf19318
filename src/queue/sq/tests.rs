// SPDX-License-Identifier: GPL-2.0

//! KUnit suite of send queues.

#[kernel::prelude::kunit_tests(riwarp_sq)]
mod sq {
    use super::super::*;
    use crate::{
        abi::{
            rxe,
            siw,
            wr::SendOp, //
        },
        bench::{
            polled,
            store_send,
            store_siw_send,
            Bench, //
        }, //
    };
    use iwarp::{
        rdmap::ReadRequest,
        readq::ReadState,
        stag::TaggedOffset, //
    };
    use kernel_ext::{
        net::bench::eventually,
        rdma::object::QpId, //
    };

    /// A send queue and its completion queue.
    struct SqRig {
        sq: Pin<KBox<SendQueue>>,
        cq: Arc<Cq>,
        _bench: Bench,
    }

    const ORIGIN: WcOrigin = WcOrigin {
        qpn: 5,
        qp: QpId::NONE,
        vendor_err: 0,
    };

    const OK: WcStatus = WcStatus::Success;

    impl SqRig {
        fn new(entries: u32, signal_all: bool, ring: Option<SendRing>) -> Result<Self> {
            let bench = Bench::new()?;
            let cq = bench.cq(64)?;
            let sq = SendQueue::new(entries, signal_all, cq.clone(), ring)?;
            Ok(Self {
                sq: KBox::pin_init(sq, GFP_KERNEL)?,
                cq,
                _bench: bench,
            })
        }

        fn kernel(entries: u32) -> Result<Self> {
            Self::new(entries, false, None)
        }

        fn post(&self, id: u64, signalled: bool) -> Result {
            self.sq.post(SendWr {
                id,
                signalled,
                ..SendWr::default()
            })
        }

        /// Takes the next request, which must be valid.
        fn take(&self) -> Result<Slot> {
            match self.sq.take(&mut SendWr::default()) {
                Taken::Wr(slot) => Ok(slot),
                Taken::Bad(..) => Err(EINVAL),
                Taken::Nothing => Err(ENOENT),
                Taken::Full => Err(EAGAIN),
            }
        }

        /// Posts `N` requests and takes them all.
        fn taken<const N: usize>(&self) -> Result<[Slot; N]> {
            let mut slots = [Slot(0); N];
            for (id, slot) in (0..).zip(&mut slots) {
                self.post(id, true)?;
                *slot = self.take()?;
            }
            Ok(slots)
        }

        fn finish(&self, slot: Slot) {
            self.sq.finish(slot, OK, ORIGIN);
        }

        /// Returns whether exactly these requests complete now, with these statuses.
        fn completes(&self, expected: &[(u64, WcStatus)]) -> bool {
            expected.iter().all(|(id, status)| {
                polled(&self.cq).is_some_and(|(wr_id, how, _)| (wr_id, how) == (*id, Some(*status)))
            }) && polled(&self.cq).is_none()
        }

        /// Records an outgoing Read.
        fn read(&self, slot: Option<Slot>, invalidate: Option<Stag>) {
            let state = Outstanding::Read(ReadState::new(&ReadRequest {
                sink_stag: Stag::ZERO,
                sink_to: TaggedOffset::new(0),
                len: 0,
                source_stag: Stag::ZERO,
                source_to: TaggedOffset::new(0),
            }));
            self.sq.read_sent(slot, state, None, invalidate);
        }
    }

    #[test]
    fn completions_leave_in_the_order_of_their_requests() -> Result {
        let rig = SqRig::kernel(4)?;
        // More than once around the ring.
        for _ in 0..3 {
            let [first, second, third, fourth] = rig.taken()?;
            rig.finish(second);
            rig.sq.finish(fourth, WcStatus::RemoteAccess, ORIGIN);
            assert!(rig.completes(&[]));
            rig.finish(first);
            assert!(rig.completes(&[(0, OK), (1, OK)]));
            assert!(!rig.sq.is_idle());
            rig.finish(third);
            assert!(rig.completes(&[(2, OK), (3, WcStatus::RemoteAccess)]));
            assert!(rig.sq.is_idle());
        }
        Ok(())
    }

    #[test]
    fn send_completes_when_tcp_accepts_its_last_octet() -> Result {
        let rig = SqRig::kernel(4)?;
        let [first, second, third] = rig.taken()?;
        let mut marks = TxMarks::default();
        for (slot, end) in [(first, 100), (second, 200), (third, 1 << 40)] {
            rig.sq.sent(&mut marks, slot, end);
        }
        rig.sq.accepted(99, &mut marks, ORIGIN);
        assert!(rig.completes(&[]));
        rig.sq.accepted(100, &mut marks, ORIGIN);
        assert!(rig.completes(&[(0, OK)]));
        rig.sq.accepted((1 << 40) - 1, &mut marks, ORIGIN);
        assert!(rig.completes(&[(1, OK)]));
        rig.sq.accepted(1 << 40, &mut marks, ORIGIN);
        assert!(rig.completes(&[(2, OK)]));
        Ok(())
    }

    #[test]
    fn each_of_many_send_ends_is_recorded() -> Result {
        let rig = SqRig::kernel(64)?;
        let slots: [_; 40] = rig.taken()?;
        let mut marks = TxMarks::default();
        for (end, slot) in (1..).zip(slots) {
            rig.sq.sent(&mut marks, slot, end);
        }
        rig.sq.accepted(40, &mut marks, ORIGIN);
        for id in 0..40 {
            assert_eq!(polled(&rig.cq), Some((id, Some(OK), 0)));
        }
        assert!(rig.completes(&[]) && rig.sq.is_idle());
        Ok(())
    }

    #[test]
    fn completions_behind_unfinished_request_come_with_it() -> Result {
        const N: u64 = 4 * AT_ONCE as u64;
        let rig = SqRig::kernel(N as u32)?;
        let mut marks = TxMarks::default();
        for in_time in [true, false] {
            for id in 0..N {
                // The completion queue cannot hold all completions.
                rig.post(id, id == N - 1)?;
            }
            let first = rig.take()?;
            for _ in 1..N {
                let slot = rig.take()?;
                rig.finish(slot);
            }
            assert!(rig.completes(&[]));
            if in_time {
                rig.finish(first);
            } else {
                rig.sq.sent(&mut marks, first, 100);
                rig.sq.accepted(100, &mut marks, ORIGIN);
            }
            assert!(rig.completes(&[(N - 1, OK)]) && rig.sq.is_idle());
        }
        Ok(())
    }

    #[test]
    fn requests_after_read_complete_after_its_response() -> Result {
        let rig = SqRig::kernel(4)?;
        rig.sq.start(2, &Memcg::nobody())?;
        let [read, send] = rig.taken()?;
        let mut marks = TxMarks::default();
        rig.read(Some(read), None);
        rig.sq.sent(&mut marks, send, 10);
        rig.sq.accepted(10, &mut marks, ORIGIN);
        assert!(rig.completes(&[]));
        assert!(rig.sq.oldest_posted_read() == Some((read, None)) && rig.sq.read_done());
        // The octets of the Response are still being placed: a Read that is not outstanding is not
        // done yet.
        assert!(rig.completes(&[]));
        rig.finish(read);
        assert!(rig.completes(&[(0, OK), (1, OK)]));
        Ok(())
    }

    #[test]
    fn read_with_invalidate_is_outstanding_until_done() -> Result {
        let rig = SqRig::kernel(4)?;
        rig.sq.start(2, &Memcg::nobody())?;
        let [read, _] = rig.taken()?;
        let key = Stag::new(7);
        rig.read(Some(read), Some(key));
        assert!(rig.sq.oldest_posted_read() == Some((read, Some(key))));
        // A fenced request still waits.
        assert!(!rig.sq.no_reads() && rig.completes(&[]));
        assert!(rig.sq.read_done() && rig.sq.no_reads());
        assert!(rig.sq.oldest_posted_read().is_none());
        Ok(())
    }

    #[test]
    fn outstanding_reads_are_limited_by_negotiated_depth() -> Result {
        let rig = SqRig::kernel(4)?;
        assert!(!rig.sq.may_read() && rig.sq.no_reads());
        rig.sq.start(2, &Memcg::nobody())?;
        let [first, second] = rig.taken()?;
        assert!(rig.sq.may_read());
        rig.read(Some(first), Some(Stag::new(7)));
        // A fenced request waits for this.
        assert!(rig.sq.may_read() && !rig.sq.no_reads());
        // The ready-to-receive Read, which no consumer posted, counts too.
        rig.read(None, None);
        assert!(!rig.sq.may_read());
        // Oldest first.
        let oldest = rig.sq.oldest_posted_read();
        assert!(oldest == Some((first, Some(Stag::new(7)))) && rig.sq.read_done());
        assert!(rig.sq.may_read() && !rig.sq.no_reads());
        assert!(rig.sq.oldest_posted_read().is_none());
        rig.read(Some(second), None);
        assert!(!rig.sq.may_read());
        assert!(rig.sq.read_done());
        assert!(rig.sq.oldest_posted_read() == Some((second, None)) && rig.sq.read_done());
        assert!(rig.sq.no_reads() && !rig.sq.read_done());
        Ok(())
    }

    #[test]
    fn unsignalled_request_completes_only_on_failure() -> Result {
        let rig = SqRig::kernel(4)?;
        for (id, status) in [(1, OK), (2, WcStatus::LocalProtection), (3, OK)] {
            rig.post(id, false)?;
            let slot = rig.take()?;
            rig.sq.finish(slot, status, ORIGIN);
        }
        assert!(rig.completes(&[(2, WcStatus::LocalProtection)]));
        assert!(rig.sq.is_idle());
        // A queue with `signal_all` completes every request.
        let rig = SqRig::new(4, true, None)?;
        rig.post(4, false)?;
        rig.finish(rig.take()?);
        assert!(rig.completes(&[(4, OK)]));
        Ok(())
    }

    #[test]
    fn send_queue_slot_is_freed_on_completion() -> Result {
        let rig = SqRig::kernel(2)?;
        let [first, _] = rig.taken()?;
        // A taken request still occupies its entry.
        assert_eq!(rig.post(2, true), Err(ENOMEM));
        assert!(!rig.sq.has_posted());
        rig.finish(first);
        assert_eq!(rig.post(2, true), Ok(()));
        assert!(rig.sq.has_posted());
        assert_eq!(rig.post(3, true), Err(ENOMEM));
        rig.take()?;
        assert!(rig.sq.is_full() && matches!(rig.take(), Err(ENOENT)));
        let fill = rig.sq.occupancy();
        assert_eq!((fill.posted, fill.pending), (0, 2));
        Ok(())
    }

    #[test]
    fn request_completes_once() -> Result {
        let rig = SqRig::kernel(2)?;
        let [first, second] = rig.taken()?;
        rig.finish(first);
        // Too late: the entry belongs to another request now, or to none.
        rig.sq.finish(first, WcStatus::RemoteAccess, ORIGIN);
        rig.post(2, true)?;
        rig.take()?;
        rig.sq.finish(first, WcStatus::RemoteAccess, ORIGIN);
        assert!(rig.completes(&[(0, OK)]));
        rig.finish(second);
        assert!(rig.completes(&[(1, OK)]));
        assert!(!rig.sq.is_idle());
        Ok(())
    }

    #[test]
    fn flush_completes_pending_and_posted_requests() -> Result {
        let rig = SqRig::kernel(8)?;
        rig.sq.start(1, &Memcg::nobody())?;
        let [read, _, done] = rig.taken()?;
        rig.read(Some(read), None);
        rig.finish(done);
        rig.post(3, false)?;
        rig.post(4, true)?;
        assert!(!rig.sq.flush(Some(WcStatus::RemoteAccess), ORIGIN));
        let flushed = WcStatus::Flushed;
        assert!(rig.completes(&[
            (0, WcStatus::RemoteAccess),
            (1, flushed),
            // That one had ended before.
            (2, OK),
            (3, flushed),
            (4, flushed),
        ]));
        assert!(rig.sq.is_idle() && rig.sq.no_reads());
        assert!(!rig.sq.flush(None, ORIGIN) && rig.completes(&[]));
        Ok(())
    }

    /// Returns a queue of so many entries whose only request is over, and held by choice.
    fn late(entries: u32) -> Result<SqRig> {
        for _ in 0..1000 {
            let rig = SqRig::kernel(entries)?;
            let [only] = rig.taken()?;
            rig.sq.choose_completions(0)?;
            rig.finish(only);
            if !rig.sq.is_idle() {
                assert!(rig.completes(&[]));
                return Ok(rig);
            }
        }
        Err(ETIME)
    }

    #[test]
    fn delayed_completions_come_in_order() -> Result {
        let rig = late(4)?;
        rig.post(1, true)?;
        rig.post(2, true)?;
        let (second, third) = (rig.take()?, rig.take()?);
        rig.finish(third);
        rig.finish(second);
        let mut held = 0;
        eventually(|| {
            held += rig.sq.look_at_rules(0, true, ORIGIN).1;
            rig.sq.is_idle()
        })?;
        assert!(held != 0);
        assert!(rig.completes(&[(0, OK), (1, OK), (2, OK)]));
        // The next request begins anew.
        assert!(matches!(
            rig.sq.look_at_rules(0, true, ORIGIN),
            (RuleLook::Nothing, 0)
        ));
        let [next] = rig.taken()?;
        rig.finish(next);
        assert!(rig.completes(&[(0, OK)]));
        Ok(())
    }

    #[test]
    fn full_send_queue_delays_no_completion() -> Result {
        let rig = late(2)?;
        rig.post(1, true)?;
        let second = rig.take()?;
        rig.finish(second);
        assert!(rig.completes(&[(0, OK), (1, OK)]));
        Ok(())
    }

    #[test]
    fn delayed_completions_come_when_mode_or_stream_ends() -> Result {
        let rig = late(4)?;
        assert!(matches!(
            rig.sq.look_at_rules(0, false, ORIGIN),
            (RuleLook::Nothing, 1)
        ));
        assert!(rig.completes(&[(0, OK)]));
        let rig = late(4)?;
        rig.post(1, true)?;
        rig.take()?;
        assert!(!rig.sq.flush(None, ORIGIN));
        assert!(rig.completes(&[(0, OK), (1, WcStatus::Flushed)]));
        Ok(())
    }

    #[test]
    fn requests_posted_while_draining_are_flushed() -> Result {
        let rig = SqRig::kernel(8)?;
        rig.post(0, true)?;
        rig.post(1, true)?;
        let first = rig.take()?;
        rig.sq.drain();
        rig.post(2, true)?;
        let second = rig.take()?;
        assert!(matches!(rig.take(), Err(ENOENT)));
        rig.finish(first);
        rig.finish(second);
        assert!(rig.completes(&[(0, OK), (1, OK)]) && rig.sq.is_idle());
        assert!(!rig.sq.flush(None, ORIGIN));
        assert!(rig.completes(&[(2, WcStatus::Flushed)]));
        Ok(())
    }

    /// Requests that the transmit task takes while `drain` counts are not counted.
    #[test]
    fn drain_ends_if_more_requests_were_taken_than_counted() -> Result {
        let rig = SqRig::kernel(8)?;
        let [_, second, _] = rig.taken()?;
        let Slot(counted) = second;
        rig.sq.last.store(counted.into(), Relaxed);
        rig.post(3, true)?;
        assert!(matches!(rig.take(), Err(ENOENT)));
        // Positions are modulo 2^32.
        rig.sq.last.store(u32::MAX.into(), Relaxed);
        let drained = [u32::MAX - 1, u32::MAX, 0, 1].map(|at| rig.sq.is_drained_at(at));
        assert_eq!(drained, [false, true, true, true]);
        Ok(())
    }

    /// `drain` has read the position, then the transmit task takes the first request.
    #[test]
    fn drain_covers_requests_posted_by_process() -> Result {
        let ring = siw::SiwSendRing::new(4)?;
        let memory = ring.memory().clone();
        let rig = SqRig::new(4, false, Some(SendRing::Siw(ring)))?;
        for at in 0..3 {
            store_siw_send(&memory, at)?;
        }
        let Slot(first) = rig.take()?;
        rig.sq.taken.store(first, Relaxed);
        rig.sq.drain();
        rig.sq.taken.store(first.wrapping_add(1), Relaxed);
        store_siw_send(&memory, 3)?;
        assert!(rig.take().is_ok() && rig.take().is_ok());
        assert!(matches!(rig.take(), Err(ENOENT)) && rig.sq.is_drained());
        Ok(())
    }

    #[test]
    fn ended_stream_leaves_no_request_to_next_stream() -> Result {
        let rig = SqRig::kernel(64)?;
        rig.sq.start(1, &Memcg::nobody())?;
        let [first] = rig.taken()?;
        let mut marks = TxMarks::default();
        rig.sq.sent(&mut marks, first, 1000);
        rig.sq.accepted(1000, &mut marks, ORIGIN);
        assert!(rig.completes(&[(0, OK)]));
        rig.sq.drain();
        rig.sq.start(3, &Memcg::nobody())?;
        // The queue does not drain any more, and the octet count restarts: the marks are full, so
        // the queue knows where the first requests end before TCP has accepted any of them.
        let slots: [_; 40] = rig.taken()?;
        let [sent @ .., last] = &slots;
        for slot in sent {
            rig.sq.sent(&mut marks, *slot, 1);
        }
        rig.finish(*last);
        assert!(rig.completes(&[]));
        rig.sq.accepted(0, &mut marks, ORIGIN);
        assert!(rig.completes(&[]));
        rig.sq.accepted(1, &mut marks, ORIGIN);
        for id in 0..40 {
            assert_eq!(polled(&rig.cq), Some((id, Some(OK), 0)));
        }
        assert!(rig.completes(&[]) && rig.sq.is_idle());
        assert_eq!(rig.sq.occupancy().max_reads, 3);
        Ok(())
    }

    #[test]
    fn read_response_completes_oldest_request() -> Result {
        let rig = SqRig::kernel(4)?;
        rig.sq.start(2, &Memcg::nobody())?;
        let segment = TaggedSegment {
            stag: Stag::ZERO,
            to: TaggedOffset::new(0),
            payload: iwarp::receiver::PayloadSpan { offset: 0, len: 0 },
            last: iwarp::ddp::MessagePart::Final,
        };
        let unsolicited = Some(Fault::ResponseUnsolicited);
        assert_eq!(rig.sq.read_response(&segment).err(), unsolicited);
        let [atomic, read] = rig.taken()?;
        let state = Outstanding::Atomic { identifier: 9 };
        rig.sq.read_sent(Some(atomic), state, None, None);
        rig.read(Some(read), None);
        assert_eq!(rig.sq.read_response(&segment).err(), unsolicited);
        assert!(rig.sq.read_done());
        let placed = rig.sq.read_response(&segment);
        assert!(placed.is_ok_and(|(place, sink)| place.complete && sink.is_none()));
        Ok(())
    }

    #[test]
    fn malformed_user_request_completes_in_order() -> Result {
        let ring = rxe::RxeSendRing::new(4, 1, 0)?;
        let memory = ring.memory().clone();
        let rig = SqRig::new(4, false, Some(SendRing::Rxe(ring)))?;
        assert!(rig.sq.looks_empty() && !rig.sq.has_posted());
        store_send(&memory, 0, 2)?;
        store_send(&memory, 1, 99)?;
        assert!(!rig.sq.looks_empty() && rig.sq.has_posted());
        let first = rig.take()?;
        let mut wr = SendWr::default();
        let Taken::Bad(second, status) = rig.sq.take(&mut wr) else {
            return Err(EINVAL);
        };
        assert_eq!(status, WcStatus::LocalQpOperation);
        // It is returned like any other.
        assert_eq!(memory.load_u32_acquire(256), Some(2));
        rig.sq.finish(second, status, ORIGIN);
        assert!(rig.completes(&[]));
        // The first one is good and unsignalled.
        rig.finish(first);
        assert!(rig.completes(&[(1, status)]));
        // A kernel consumer cannot post to this queue.
        assert!(rig.post(7, true).is_err());
        assert!(matches!(wr.op, SendOp::Send(_)));
        Ok(())
    }
}
