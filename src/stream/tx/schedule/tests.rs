// SPDX-License-Identifier: GPL-2.0

//! KUnit suite of the checks before a request becomes a message, on a queue pair without a stream.

#[kernel::prelude::kunit_tests(riwarp_schedule)]
mod schedule {
    use super::super::*;
    use crate::{
        bench::Bench,
        mem::{
            mr::registration::Mr,
            payload::Sge,
            sge::{
                RegionCache,
                Slices, //
            }, //
        },
        qp::Qp,
        queue::cq::Cq, //
    };
    use iwarp::{
        actions::After,
        atomic::AtomicRequest,
        ddp::Msn,
        flush::FlushLevel,
        lifecycle::Event,
        rdmap::Extensions,
        segment::Message,
        stream::{
            SenderParams,
            StreamSender, //
        }, //
    };
    use kernel::sync::Arc;
    use kernel_ext::{
        mm::{
            memcg::Memcg,
            shared_ring::SharedMem, //
        },
        rdma::{
            bench::kernel_owned,
            types::AccessFlags,
            wr::WcOpcode, //
        }, //
    };

    /// Answers a Read; returns whether the transmit task has to run.
    fn answered(qp: &Qp) -> bool {
        let actions = qp.shared.lifecycle.on(Event::ReadAnswered);
        actions.after.contains(After::Transmit)
    }

    /// A queue pair, and a region that covers all of kernel memory; both end on drop.
    struct ScheduleRig {
        qp: Arc<Qp>,
        _cq: Arc<Cq>,
        mr: Arc<Mr>,
        key: u32,
        memory: SharedMem,
        bench: Bench,
    }

    impl ScheduleRig {
        fn new(access: AccessFlags) -> Result<Self> {
            let bench = Bench::new()?;
            let cq = bench.cq(16)?;
            let made = Mr::dma(bench.pd.as_arc_borrow(), kernel_owned(), access)?;
            let qp = bench.qp(4, &cq)?;
            qp.shared.sq.start(2, &Memcg::nobody())?;
            Ok(Self {
                qp,
                _cq: cq,
                mr: made.mr,
                key: made.lkey,
                memory: SharedMem::try_new(4096)?,
                bench,
            })
        }

        fn address(&self, at: usize) -> u64 {
            self.memory.start().wrapping_add(at).expose_provenance() as u64
        }

        /// Returns a list of `count` elements of `len` octets each.
        fn list(&self, count: usize, len: u32) -> Payload {
            let mut list = Payload::default();
            for _ in 0..count {
                list.push(Sge {
                    addr: self.address(16),
                    len,
                    lkey: self.key,
                });
            }
            list
        }

        /// Returns the slot of a dequeued request.
        fn slot(&self) -> Result<Slot> {
            self.qp.shared.sq.post(SendWr::default())?;
            match self.qp.shared.sq.take(&mut SendWr::default()) {
                Taken::Wr(slot) => Ok(slot),
                Taken::Bad(..) | Taken::Nothing | Taken::Full => Err(EINVAL),
            }
        }

        /// Carries out an atomic operation of the peer on the word at `at`.
        fn operate(&self, at: usize, operation: AtomicOperation) -> Result<Operated, Fault> {
            self.qp.shared.operate(&InboundAtomic {
                request: AtomicRequest {
                    identifier: 1,
                    stag: Stag::new(self.key),
                    to: TaggedOffset::new(self.address(at)),
                    operation,
                },
                target: self.mr.region.clone(),
                quoted: None,
            })
        }
    }

    impl Drop for ScheduleRig {
        fn drop(&mut self) {
            self.bench.destroy(&self.qp);
        }
    }

    fn context() -> TxContext {
        TxContext {
            sender: StreamSender::new(&SenderParams {
                extensions: Extensions::Rfc7306,
                features: None,
                rtr: None,
                draft_swap: false,
            }),
            confirmed: Confirmed::None,
            reads: true,
            mulpdu: 1000,
            slices: Slices::default(),
            cache: RegionCache::default(),
        }
    }

    const READ: SendOp = SendOp::Read {
        stag: Stag::ZERO,
        to: 0,
        invalidate_local: false,
    };
    const WRITE: SendOp = SendOp::Write {
        stag: Stag::ZERO,
        to: 0,
        immediate: None,
    };
    const ADD: AtomicOperation = AtomicOperation::FetchAdd { add: 5, mask: 0 };
    const ATOMIC: SendOp = SendOp::Atomic {
        stag: Stag::ZERO,
        to: 0,
        operation: ADD,
        opcode: WcOpcode::FetchAdd,
    };

    fn request(op: SendOp, fence: bool) -> SendWr {
        SendWr {
            op,
            fence,
            ..SendWr::default()
        }
    }

    const REQUEST: ReadRequest = ReadRequest {
        sink_stag: Stag::ZERO,
        sink_to: TaggedOffset::new(0),
        len: 8,
        source_stag: Stag::ZERO,
        source_to: TaggedOffset::new(0),
    };

    #[test]
    fn only_fenced_and_read_requests_wait_for_outstanding_reads() -> Result {
        let rig = ScheduleRig::new(AccessFlags::empty())?;
        let qp = &rig.qp;
        // For each number of outstanding Reads (the limit is two): whether a Read, an atomic
        // operation and a Send wait, then the same with a fence.
        let expected = [
            [false, false, false, false, false, false],
            [false, false, false, true, true, true],
            [true, true, false, true, true, true],
        ];
        for waits in expected {
            for (n, wait) in waits.into_iter().enumerate() {
                let op = match n % 3 {
                    0 => READ,
                    1 => ATOMIC,
                    _ => SendOp::default(),
                };
                assert!(qp.shared.must_wait(&request(op, n >= 3), false) == wait);
                // Only a request that waits makes a Response run the transmit task.
                assert!(answered(qp) == wait);
                if wait {
                    let why = ReadWait::from_raw(qp.shared.read_wait.load(Relaxed));
                    // Without a fence it is the limit.
                    let fenced = why == ReadWait::Fence;
                    assert!(fenced == (n >= 3));
                }
            }
            let state = Outstanding::Read(ReadState::new(&REQUEST));
            qp.shared.sq.read_sent(None, state, None, None);
        }
        Ok(())
    }

    #[test]
    fn request_completed_by_read_waits_for_read_limit() -> Result {
        let rig = ScheduleRig::new(AccessFlags::empty())?;
        let qp = &rig.qp;
        let of = |op, signalled| SendWr {
            signalled,
            ..request(op, false)
        };
        let must_wait = |op, signalled, confirmed| {
            let wr = of(op, signalled);
            qp.shared
                .must_wait(&wr, qp.shared.is_confirmed(&wr, confirmed))
        };
        for waits in [false, false, true] {
            for (op, by) in [
                ((|| WRITE) as fn() -> SendOp, Confirmed::Writes),
                (SendOp::default, Confirmed::Sends),
                (|| SendOp::Immediate([1; 8]), Confirmed::Sends),
            ] {
                let other = match by {
                    Confirmed::Writes => Confirmed::Sends,
                    _ => Confirmed::Writes,
                };
                assert!(qp.shared.is_confirmed(&of(op(), true), Confirmed::Both));
                assert!(must_wait(op(), true, by) == waits);
                assert!(answered(qp) == waits);
                // Nobody hears of one without a completion.
                assert!(!must_wait(op(), false, by));
                assert!(!must_wait(op(), true, other));
                assert!(!must_wait(op(), true, Confirmed::None));
            }
            qp.shared.await_confirmation(None);
        }
        Ok(())
    }

    const FLUSH: FlushRequest = FlushRequest {
        placement: FlushPlacement::GLOBAL,
        level: FlushLevel::Region,
        stag: Stag::new(7),
        to: TaggedOffset::new(0),
        len: 8,
    };

    #[test]
    fn flush_and_atomic_write_wait_as_reads_do() -> Result {
        let rig = ScheduleRig::new(AccessFlags::empty())?;
        let qp = &rig.qp;
        let atomic_write = || SendOp::AtomicWrite {
            stag: Stag::ZERO,
            to: 0,
        };
        let waits = |op| qp.shared.must_wait(&request(op, false), false);
        for full in [false, false, true] {
            assert!(waits(SendOp::Flush(FLUSH)) == full && waits(atomic_write()) == full);
            qp.shared.await_confirmation(None);
        }
        Ok(())
    }

    #[test]
    fn flush_request_uses_types_of_the_peer() -> Result {
        let persistent = FlushRequest {
            placement: FlushPlacement::PERSISTENT,
            ..FLUSH
        };
        for agreed in [false, true] {
            let rig = ScheduleRig::new(AccessFlags::empty())?;
            let (slot, mut context) = (rig.slot()?, context());
            // The peer takes no Reads.
            context.reads = false;
            let refused = Err(WcStatus::LocalQpOperation);
            let begin = |context: &mut TxContext, request| {
                context.begin_flush(&rig.qp.shared, slot, request, agreed)
            };
            assert_eq!(begin(&mut context, FLUSH), refused);
            context.reads = true;
            if !agreed {
                assert_eq!(begin(&mut context, persistent), refused);
            }
            assert!(context.sender.current.is_none() && rig.qp.shared.sq.no_reads());
            assert_eq!(begin(&mut context, FLUSH), Ok(()));
            let current = context.sender.current.take().ok_or(EINVAL)?;
            assert!(current.job == Job::AwaitResponse(slot));
            let msn = Msn::FIRST;
            let expected = match agreed {
                true => Message::Flush {
                    request: FLUSH,
                    msn,
                },
                false => Message::ReadRequest {
                    request: ReadRequest::NOTHING,
                    msn,
                },
            };
            assert!(*current.segmenter.message() == expected);
            assert!(rig.qp.shared.sq.oldest_posted_read() == Some((slot, None)));
        }
        Ok(())
    }

    #[test]
    fn atomic_write_has_an_aligned_address_and_eight_octets() {
        let refused = Err(WcStatus::LocalQpOperation);
        assert_eq!(check_atomic_write(true, 0x1008, 8), Ok(()));
        assert_eq!(check_atomic_write(false, 0x1008, 8), refused);
        for to in [1, 0x1004, u64::MAX] {
            assert_eq!(check_atomic_write(true, to, 8), refused);
        }
        for len in [0, 7, 9, u32::MAX] {
            let length = Err(WcStatus::LocalLength);
            assert_eq!(check_atomic_write(true, 0, len), length);
        }
    }

    #[test]
    fn zero_length_read_completes_preceding_write() -> Result {
        let rig = ScheduleRig::new(AccessFlags::empty())?;
        let slot = rig.slot()?;
        rig.qp.shared.await_confirmation(Some(slot));
        assert!(
            rig.qp.shared.sq.oldest_posted_read() == Some((slot, None))
                && rig.qp.shared.sq.read_done()
        );
        Ok(())
    }

    #[test]
    fn read_wait_is_announced_before_second_check() -> Result {
        let rig = ScheduleRig::new(AccessFlags::empty())?;
        let qp = &rig.qp;
        // The Response arrived after the first check, so no other will end the wait.
        assert!(!qp.shared.still_waits(ReadWait::Ord, || false) && !answered(qp));
        // A Response after the second check runs the transmit task.
        assert!(qp.shared.still_waits(ReadWait::Fence, || answered(qp)));
        Ok(())
    }

    #[test]
    fn read_sink_is_one_writable_element() -> Result {
        let rig = ScheduleRig::new(AccessFlags::LOCAL_WRITE)?;
        let mut context = context();
        let mut sink = |list: &Payload| {
            let sink = context.sink(&rig.qp.shared, list);
            sink.map(|sink| sink.map(|slice| (slice.key().raw(), slice.addr())))
        };
        assert_eq!(sink(&rig.list(1, 8)), Ok(Some((rig.key, rig.address(16)))));
        assert_eq!(sink(&rig.list(0, 0)), Ok(None));
        assert_eq!(sink(&rig.list(1, 0)), Ok(None));
        assert_eq!(sink(&rig.list(2, 8)), Err(WcStatus::LocalLength));
        let mut inline = Payload::default();
        assert!(inline.inline_room(8).is_some());
        assert_eq!(sink(&inline), Err(WcStatus::LocalQpOperation));
        let rig = ScheduleRig::new(AccessFlags::empty())?;
        let refused = self::context().sink(&rig.qp.shared, &rig.list(1, 8));
        assert_eq!(refused.err(), Some(WcStatus::LocalProtection));
        Ok(())
    }

    #[test]
    fn read_is_recorded_before_it_is_sent() -> Result {
        let rig = ScheduleRig::new(AccessFlags::LOCAL_WRITE)?;
        let mut context = context();
        for invalidate in [false, true] {
            let (slot, list) = (rig.slot()?, rig.list(1, 8));
            let begun = context.begin_read(&rig.qp.shared, &list, slot, REQUEST, invalidate);
            assert!(begun.is_ok() && context.sender.current.take().is_some());
            let key = invalidate.then_some(Stag::new(rig.key));
            assert!(rig.qp.shared.sq.oldest_posted_read() == Some((slot, key)));
            assert!(rig.qp.shared.sq.read_done());
        }
        let slot = rig.slot()?;
        let begun = context.begin_read(&rig.qp.shared, &rig.list(2, 8), slot, REQUEST, false);
        assert_eq!(begun.err(), Some(WcStatus::LocalLength));
        assert!(rig.qp.shared.sq.no_reads() && context.sender.current.is_none());
        Ok(())
    }

    #[test]
    fn atomic_request_needs_eight_octets_for_original_value() -> Result {
        let rig = ScheduleRig::new(AccessFlags::LOCAL_WRITE)?;
        let mut context = context();
        let target = (Stag::ZERO, TaggedOffset::new(0));
        let slot = rig.slot()?;
        for len in [0, 1, 7] {
            let list = rig.list(1, len);
            let begun = context.begin_atomic(&rig.qp.shared, &list, slot, target, ADD);
            assert_eq!(begun.err(), Some(WcStatus::LocalLength));
        }
        assert!(rig.qp.shared.sq.no_reads());
        let begun = context.begin_atomic(&rig.qp.shared, &rig.list(1, 8), slot, target, ADD);
        assert!(begun.is_ok());
        assert!(!rig.qp.shared.sq.no_reads());
        assert!(
            rig.qp.shared.sq.oldest_posted_read() == Some((slot, None))
                && rig.qp.shared.sq.read_done()
        );
        Ok(())
    }

    #[test]
    fn inbound_atomic_changes_only_its_target() -> Result {
        let rig = ScheduleRig::new(AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_ATOMIC)?;
        rig.memory.copy_in(64, &[1u64, 10, 100])?;
        assert_eq!(rig.operate(72, ADD), Ok(Operated::Done(10)));
        assert_eq!(rig.operate(72, ADD), Ok(Operated::Done(15)));
        assert_eq!(rig.memory.copy_out(64), Some([1u64, 20, 100]));
        // An unaligned access would not be atomic.
        for at in 73..80 {
            assert!(rig.operate(at, ADD).is_err());
        }
        assert_eq!(rig.memory.copy_out(64), Some([1u64, 20, 100]));
        // The target was checked on arrival, and its owner has revoked it since.
        assert_eq!(rig.mr.deregister(), Ok(()));
        assert_eq!(rig.operate(72, ADD), Err(Fault::SourceInvalidStag));
        // Without the right to atomic operations it fails too.
        let rig = ScheduleRig::new(
            AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ,
        )?;
        assert!(rig.operate(72, ADD).is_err());
        assert_eq!(rig.memory.copy_out(72), Some(0u64));
        Ok(())
    }
}
