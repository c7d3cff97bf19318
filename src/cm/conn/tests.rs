// SPDX-License-Identifier: GPL-2.0

//! KUnit suite of the interplay between the callbacks of a connection and its queue pair.

#[kernel::prelude::kunit_tests(riwarp_conn)]
mod conn {
    use super::super::{
        bench::{
            self,
            fill,
            ConnRig,
            FPDU, //
        },
        frames::{
            config,
            Outbox,
            Role, //
        },
        phase::{
            AfterReply,
            ConnPhase, //
        },
        *, //
    };
    use crate::{
        bench::completed,
        stream::connection::StreamParams,
        Riwarp, //
    };
    use iwarp::{
        lifecycle::QpPhase,
        mpa::negotiate::{
            Depths,
            Initiator, //
        }, //
    };
    use iwarp::{
        mpa::{
            start::RtrKinds,
            Crc, //
        },
        rdmap::Extensions, //
    };
    use kernel::time::{
        delay::fsleep,
        Delta, //
    };
    use kernel_ext::{
        compat::EOPNOTSUPP,
        net::{
            bench::eventually,
            TcpState, //
        },
        rdma::{
            bench::{
                post_recv,
                post_send,
                post_send_immediate, //
            },
            ops::QpOps,
            wr::{
                SendFlags,
                WcStatus, //
            }, //
        }, //
    };

    const PARAMS: StreamParams = StreamParams {
        crc: Crc::On,
        ..bench::PARAMS
    };

    /// Reads and discards what arrives; returns how many octets that were.
    fn take(socket: &Socket) -> usize {
        let mut octets = [0; 512];
        core::iter::from_fn(|| socket.recv(&mut octets).ok()).sum()
    }

    /// Returns whether space for the first FPDU came only between the two routes, and the FPDU went
    /// out. Otherwise it went out earlier: TCP may enlarge a buffer when a late acknowledgment
    /// arrives.
    fn room_between_two_owners() -> Result<bool> {
        let rig = ConnRig::new()?;
        let full = fill(&rig.conn.socket);
        rig.qp.attach(&rig.conn.connection, &PARAMS)?;
        post_send::<Riwarp, _>(&[1], |wrs| rig.qp.post_send(wrs))?;
        rig.bench.device.queues.tx.flush();
        // TCP gets space before the queue pair receives callbacks.
        let mut taken = 0;
        eventually(|| {
            taken += take(&rig.far);
            taken >= full
        })?;
        fsleep(Delta::from_millis(100));
        taken += take(&rig.far);
        eventually(|| rig.conn.enter_stream().is_ok())?;
        if taken > full {
            return Ok(false);
        }
        let mut octets = [0; FPDU + 1];
        eventually(|| rig.far.peek(&mut octets) == Ok(FPDU))?;
        Ok(true)
    }

    #[test]
    fn send_space_during_attach_is_not_lost() -> Result {
        for _ in 0..10 {
            if room_between_two_owners()? {
                return Ok(());
            }
        }
        Err(EAGAIN)
    }

    /// Returns the next message on the wire without its length, pad and CRC.
    fn message<const LEN: usize>(socket: &Socket) -> Result<[u8; LEN]> {
        let mut octets = [0; 64];
        // NO-OVERFLOW: messages of a few octets.
        let fpdu = 2 + LEN + (2 + LEN).wrapping_neg() % 4 + 4;
        let mut len = 0;
        eventually(|| {
            len += socket.recv(&mut octets[len..fpdu]).unwrap_or(0);
            len == fpdu
        })?;
        assert_eq!(octets[..2], [0, LEN as u8]);
        Ok(octets[2..2 + LEN].try_into().map_err(|_| EINVAL)?)
    }

    #[test]
    fn kernel_empty_send_with_imm_is_immediate_data_message() -> Result {
        let rig = ConnRig::new()?;
        rig.qp.attach(&rig.conn.connection, &PARAMS)?;
        let post = |id, imm: &[u8; 4], len, flags| {
            post_send_immediate::<Riwarp, _>(id, *imm, len, flags, |wrs| rig.qp.post_send(wrs))
        };
        post(7, b"abcd", 0, SendFlags::empty())?;
        post(8, b"efgh", 0, SendFlags::SOLICITED)?;
        // RFC 7306 defines none with payload, and the peer agreed to no other extension.
        assert_eq!(post(9, b"ijkl", 1, SendFlags::empty()), Err(EOPNOTSUPP));
        post_send::<Riwarp, _>(&[10], |wrs| rig.qp.post_send(wrs))?;
        for (number, opcode, data) in [(1, 0x48, b"abcd\0\0\0\0"), (2, 0x49, b"efgh\0\0\0\0")] {
            let mut expected = [0; 26];
            expected[..2].copy_from_slice(&[0x41, opcode]);
            expected[13] = number;
            expected[18..].copy_from_slice(data);
            assert_eq!(message(&rig.far)?, expected);
        }
        let send: [u8; 18] = message(&rig.far)?;
        assert_eq!((send[1], send[13]), (0x43, 3));
        for id in [7, 8, 10] {
            assert_eq!(completed(&rig.cq), Ok((id, Some(WcStatus::Success), 0)));
        }
        Ok(())
    }

    /// A stranger that acknowledges nothing keeps no memory of the driver's.
    #[test]
    fn rejected_connection_is_left_to_tcp() -> Result {
        let rig = ConnRig::new()?;
        let depths = Depths { ird: 1, ord: 1 };
        let initiator = Initiator::new(config(&rig.bench.device, Role::Initiator), depths);
        let frame = initiator.request(&[]).map_err(|_| EINVAL)?;
        let out = Outbox::new(KBox::new(frame, GFP_KERNEL)?);
        let mut actor = rig.conn.actor.lock();
        let next = rig.conn.replying(&mut actor, out, AfterReply::Refuse);
        rig.conn.follow(&mut actor, next);
        assert!(matches!(actor.phase, ConnPhase::Released));
        drop(actor);
        rig.take::<24>()?;
        assert_eq!(rig.end()?, Ok(0));
        Ok(())
    }

    /// A failed accept is reported as a connection that was up and has ended, and then the queue
    /// pair is in error and its receives are flushed.
    #[test]
    fn peer_fin_before_reply_moves_queue_pair_to_error() -> Result {
        let rig = ConnRig::new()?;
        post_recv(&[7], |wrs| Qp::post_recv(rig.qp.as_arc_borrow(), wrs))?;
        rig.far.shutdown_write();
        eventually(|| rig.conn.socket.state() == TcpState::CloseWait)?;
        let depths = Depths { ird: 1, ord: 1 };
        let initiator = Initiator::new(config(&rig.bench.device, Role::Initiator), depths);
        // Never sent.
        let reply = KBox::new(initiator.request(&[]).map_err(|_| EINVAL)?, GFP_KERNEL)?;
        let rules = initiator.rules_with_itself();
        let mut actor = rig.conn.actor.lock();
        let next = rig.conn.accepted(&mut actor, reply, &rules, RtrKinds::NONE);
        rig.conn.follow(&mut actor, next);
        assert!(matches!(actor.phase, ConnPhase::Released));
        drop(actor);
        assert_eq!(rig.qp.shared.phase(), QpPhase::Error);
        assert_eq!(completed(&rig.cq), Ok((7, Some(WcStatus::Flushed), 0)));
        Ok(())
    }

    /// The queue pair cannot take the stream any more when the Reply comes: a local failure that
    /// the peer does not know of (RFC 6581, section 9.3; MPA-46).
    #[test]
    fn attach_failure_after_reply_sends_terminate() -> Result {
        let rig = ConnRig::new()?;
        let depths = Depths { ird: 1, ord: 1 };
        let initiator = Initiator::new(config(&rig.bench.device, Role::Initiator), depths);
        let request = initiator.request(&[]).map_err(|_| EINVAL)?;
        let request = KBox::new(request, GFP_KERNEL)?;
        let begin = |actor: &mut Actor| actor.begin_connecting(None, initiator, request, None);
        begin(&mut rig.conn.actor.lock());
        rig.conn.kick();
        // Key, flags, revision and length, and the four octets of RFC 6581.
        let mut frame = rig.take::<24>()?;
        rig.qp.shared.enter(QpPhase::Closing);
        frame[..16].copy_from_slice(b"MPA ID Rep Frame");
        assert_eq!(rig.far.send(&frame), Ok(frame.len()));
        assert_eq!(rig.take_terminate(), Ok((2, 0, 5)));
        Ok(())
    }

    #[test]
    fn kernel_sends_payload_with_imm_if_peer_agreed() -> Result {
        let rig = ConnRig::new()?;
        let params = StreamParams {
            extensions: Extensions::SendImmediate,
            ..PARAMS
        };
        rig.qp.attach(&rig.conn.connection, &params)?;
        let post = |len| {
            let flags = SendFlags::SOLICITED;
            post_send_immediate::<Riwarp, _>(7, *b"abcd", len, flags, |wrs| rig.qp.post_send(wrs))
        };
        post(0)?;
        // Its memory is not registered, so it ends in error, but not because of its opcode.
        post(1)?;
        let mut expected = [0; 18];
        expected[..6].copy_from_slice(b"\x41\x5fabcd");
        expected[13] = 1;
        assert_eq!(message(&rig.far)?, expected);
        for status in [WcStatus::Success, WcStatus::LocalProtection] {
            let done = completed(&rig.cq);
            assert_eq!(done.map(|(_, status, _)| status), Ok(Some(status)));
        }
        Ok(())
    }
}

/// Masked atomic operations, which processes cannot request: from `ib_post_send()` of a kernel
/// consumer over the wire to a word of another queue pair, and back.
#[kernel::prelude::kunit_tests(riwarp_masked_atomics)]
mod masked {
    use super::super::{
        phase::ConnPhase,
        *, //
    };
    use crate::{
        bench::Bench,
        mem::mr::registration::Mr,
        queue::cq::Cq,
        stream::connection::StreamParams,
        Riwarp, //
    };
    use iwarp::{
        mpa::{
            negotiate::FeatureRules,
            start::{
                Revision,
                RtrKinds, //
            },
            Crc,
            Markers, //
        },
        rdmap::Extensions, //
    };
    use kernel_ext::{
        crc32c,
        mm::shared_ring::SharedMem,
        net::{
            bench::{
                eventually,
                pair, //
            },
            Family, //
        },
        rdma::{
            bench::{
                kernel_owned,
                poll_done,
                ConsumerQp,
                MaskedAtomic,
                MaskedOp, //
            },
            ops::CqOps,
            types::AccessFlags,
            wr::WcOpcode, //
        }, //
    };

    const PARAMS: StreamParams = StreamParams {
        crc: Crc::On,
        markers: Markers::Off,
        revision: Revision::Two,
        ird: 4,
        ord: 4,
        send_rtr: None,
        expect_rtr: RtrKinds::NONE,
        wait_first_fpdu: false,
        extensions: Extensions::Rfc7306,
        features: FeatureRules::NONE,
        rnr_retry: None,
    };

    /// A queue pair with a stream whose peer is `far`, and memory accessible to both. Ended on
    /// drop.
    struct ConnectedQp {
        conn: Arc<Conn>,
        qp: Arc<Qp>,
        cq: Arc<Cq>,
        far: Socket,
        memory: SharedMem,
        keys: (u32, u32),
        _mr: Arc<Mr>,
        bench: Bench,
    }

    impl ConnectedQp {
        fn new() -> Result<Self> {
            let bench = Bench::new()?;
            let cq = bench.cq(16)?;
            let qp = bench.qp(16, &cq)?;
            let access = AccessFlags::LOCAL_WRITE.union(AccessFlags::REMOTE_ATOMIC);
            let made = Mr::dma(bench.pd.as_arc_borrow(), kernel_owned(), access)?;
            let (near, far) = pair(Family::V4)?;
            let conn = Conn::new(bench.rdma.cm.clone(), near, Actor::new(ConnPhase::Released))?;
            qp.bind(conn.bound())?;
            conn.qp.populate(BhRevocable::new(qp.clone()));
            qp.attach(&conn.connection, &PARAMS)?;
            eventually(|| conn.enter_stream().is_ok())?;
            Ok(Self {
                conn,
                qp,
                cq,
                far,
                memory: SharedMem::try_new(4096)?,
                keys: (made.lkey, made.rkey),
                _mr: made.mr,
                bench,
            })
        }

        /// Returns the address of a word of its memory.
        fn address(&self, word: usize) -> u64 {
            self.memory
                .start()
                .wrapping_add(word * 8)
                .expose_provenance() as u64
        }

        /// Returns a word of its memory.
        fn word(&self, word: usize) -> Option<u64> {
            self.memory.copy_out(word * 8)
        }

        /// Receives an FPDU of `N` octets, checks length and CRC, and returns what is in between.
        fn take<const N: usize>(&self) -> Result<[u8; N]> {
            let mut octets = [0; N];
            eventually(|| self.far.peek(&mut octets) == Ok(N))?;
            self.far.recv(&mut octets)?;
            let (body, crc) = octets.split_at(N - 4);
            let expected = crc32c::finish(crc32c::update(crc32c::INIT, body));
            alike("CRC", crc, &expected.to_le_bytes())?;
            alike("length", &octets[..2], &(N as u16 - 6).to_be_bytes())?;
            Ok(octets)
        }
    }

    /// Compares two values. (An assertion fails the test only inside the test function itself.)
    fn alike<T: PartialEq + core::fmt::Debug>(what: &str, is: T, expected: T) -> Result {
        if is == expected {
            return Ok(());
        }
        pr_err!("{what}: {is:x?} instead of {expected:x?}\n");
        Err(EINVAL)
    }

    impl Drop for ConnectedQp {
        fn drop(&mut self) {
            self.conn.end_of_nobody();
            self.bench.destroy(&self.qp);
        }
    }

    /// Octets of an FPDU with a request, and with a response: length, untagged header, RDMAP
    /// header, CRC.
    const REQUEST: usize = 2 + 18 + 52 + 4;
    const RESPONSE: usize = 2 + 18 + 12 + 4;

    /// Returns the header that RFC 5041, section 4.3, and RFC 7306, section 5.1, require.
    fn header(opcode: u8, queue: u32, msn: u32) -> [u8; 18] {
        let mut octets = [0; 18];
        // Last segment, DDP version 1; RDMAP version 1; the unused Invalidate STag.
        octets[..2].copy_from_slice(&[0x41, 0x40 | opcode]);
        octets[6..10].copy_from_slice(&queue.to_be_bytes());
        octets[10..14].copy_from_slice(&msn.to_be_bytes());
        octets
    }

    /// A request: AOpCode, data and mask, compare data and mask.
    type Wire = (u32, [u64; 4]);

    fn request(identifier: [u8; 4], wire: &Wire, to: u64, rkey: u32) -> [u8; 52] {
        let mut octets = [0; 52];
        octets[..4].copy_from_slice(&wire.0.to_be_bytes());
        octets[4..8].copy_from_slice(&identifier);
        octets[8..12].copy_from_slice(&rkey.to_be_bytes());
        octets[12..20].copy_from_slice(&to.to_be_bytes());
        for (field, value) in octets[20..].chunks_exact_mut(8).zip(&wire.1) {
            field.copy_from_slice(&value.to_be_bytes());
        }
        octets
    }

    /// An operation, its encoding on the wire, and the word before and after.
    struct Case {
        op: MaskedOp,
        wire: Wire,
        before: u64,
        after: u64,
        opcode: WcOpcode,
    }

    fn swap(
        [compare, compare_mask]: [u64; 2],
        [swap, swap_mask]: [u64; 2],
        before: u64,
        after: u64,
    ) -> Case {
        Case {
            op: MaskedOp::CompareSwap {
                compare,
                compare_mask,
                swap,
                swap_mask,
            },
            wire: (2, [swap, swap_mask, compare, compare_mask]),
            before,
            after,
            opcode: WcOpcode::MaskedCompareSwap,
        }
    }

    fn add(add: u64, boundary: u64, before: u64, after: u64) -> Case {
        Case {
            op: MaskedOp::FetchAdd { add, boundary },
            wire: (0, [add, boundary, 0, u64::MAX]),
            before,
            after,
            opcode: WcOpcode::MaskedFetchAdd,
        }
    }

    /// Performs all cases as one list, each on a word of its own.
    fn all_pass(cases: &[Case]) -> Result {
        let (near, far) = (ConnectedQp::new()?, ConnectedQp::new()?);
        let consumer = ConsumerQp::<Riwarp>::new(near.qp.clone())?;
        let mut list = KVec::new();
        for (word, case) in cases.iter().enumerate() {
            far.memory.copy_in(word * 8, &case.before)?;
            let asked = MaskedAtomic {
                id: word as u64 + 100,
                op: case.op,
                target: (far.address(word), far.keys.1),
                sink: (near.address(word), near.keys.0),
            };
            list.push(asked, GFP_KERNEL)?;
        }
        consumer.post_send(&list)?;
        for (word, (case, msn)) in cases.iter().zip(1u32..).enumerate() {
            let asked = near.take::<REQUEST>()?;
            alike("header of a request", &asked[2..20], &header(0x0a, 1, msn))?;
            let identifier = [asked[24], asked[25], asked[26], asked[27]];
            let expected = request(identifier, &case.wire, far.address(word), far.keys.1);
            alike("request", &asked[20..72], &expected)?;
            // The operation has no effect before the peer performs it.
            alike("word before", far.word(word), Some(case.before))?;
            far.far.send(&asked)?;
            let answered = far.take::<RESPONSE>()?;
            alike(
                "header of a response",
                &answered[2..20],
                &header(0x0b, 3, msn),
            )?;
            alike("identifier", &answered[20..24], &identifier)?;
            alike("response", &answered[24..32], &case.before.to_be_bytes())?;
            alike("word after", far.word(word), Some(case.after))?;
            alike("sink before", near.word(word), Some(0))?;
            near.far.send(&answered)?;
            let mut done = None;
            eventually(|| {
                done = poll_done(|sink| near.cq.poll(sink));
                done.is_some()
            })?;
            alike(
                "completion",
                done,
                Some((word as u64 + 100, Some(case.opcode))),
            )?;
            alike("sink after", near.word(word), Some(case.before))?;
        }
        Ok(())
    }

    #[test]
    fn masked_cmp_swap_compares_and_swaps_selected_bits() -> Result {
        let (word, all) = (0x1122_3344_5566_7788, u64::MAX);
        all_pass(&[
            // Equal in the compared octet.
            swap(
                [0x88, 0xff],
                [0xaabb_0000_0000_0000, 0xffff << 48],
                word,
                0xaabb_3344_5566_7788,
            ),
            // Unequal in it.
            swap([0x89, 0xff], [all, all], word, word),
            // An empty compare mask.
            swap([0xdead, 0], [0x5a5a, all], word, 0x5a5a),
            // An empty swap mask.
            swap([word, all], [0x5a5a, 0], word, word),
        ])
    }

    #[test]
    fn masked_fetch_add_fields_do_not_carry() -> Result {
        all_pass(&[
            // Four fields of 16 bits, each of which overflows.
            add(0x0001_0001_0001_0001, 0x8000_8000_8000_8000, u64::MAX, 0),
            // Two fields of 32 bits: one loses its carry, in the other the carry stays inside.
            add(
                0x0000_0001_0000_0001,
                0x8000_0000_8000_0000,
                0x0000_ffff_ffff_ffff,
                0x0001_0000_0000_0000,
            ),
            // One field of 64 bits.
            add(1, 0, 0xffff_ffff, 1 << 32),
            // Fields of one bit.
            add(0x0ff0, u64::MAX, 0x00ff, 0x0f0f),
        ])
    }
}

/// The table of all connections.
#[kernel::prelude::kunit_tests(riwarp_conns)]
mod table {
    use super::super::*;
    use crate::bench::Bench;
    use kernel::{
        sync::atomic::Relaxed,
        time::{
            delay::fsleep,
            Delta, //
        },
        workqueue::WorkItem, //
    };

    #[test]
    fn connection_numbers_are_unique() -> Result {
        let bench = Bench::new()?;
        let first = ConnEntry::take(bench.rdma.cm.clone())?;
        let second = ConnEntry::take(bench.rdma.cm.clone())?;
        assert_eq!((first.number(), second.number()), (1, 2));
        assert_eq!(second.name().map(NonZeroUsize::get), Ok(2));
        drop(first);
        drop(second);
        assert_eq!(ConnEntry::take(bench.rdma.cm.clone())?.number(), 3);
        Ok(())
    }

    #[test]
    fn unpublished_connection_is_not_found() -> Result {
        let bench = Bench::new()?;
        let entry = ConnEntry::take(bench.rdma.cm.clone())?;
        let cm = &bench.rdma.cm;
        assert!(cm.find(entry.number()).is_none() && cm.asked(entry.name()?).is_none());
        entry.remove();
        assert!(cm.find(0).is_none() && cm.find(u64::MAX).is_none());
        Ok(())
    }

    /// A work item that drops an entry.
    #[pin_data]
    struct LateRemoval {
        #[pin]
        entry: Mutex<Option<ConnEntry>>,
        left: Atomic<bool>,
        #[pin]
        work: Work<Self>,
    }

    impl_has_work! {
        impl HasWork<Self> for LateRemoval { self.work }
    }

    impl WorkItem for LateRemoval {
        type Pointer = Arc<Self>;

        fn run(this: Arc<Self>) {
            // A caller that does not wait has returned by then.
            fsleep(Delta::from_millis(50));
            let entry = this.entry.lock().take();
            this.left.store(true, Relaxed);
            drop(entry);
        }
    }

    #[test]
    fn device_removal_waits_for_last_connection_and_admits_none() -> Result {
        let bench = Bench::new()?;
        let entry = ConnEntry::take(bench.rdma.cm.clone())?;
        let leaver = Arc::pin_init(
            pin_init!(LateRemoval {
                entry <- new_mutex!(Some(entry)),
                left: Atomic::new(false),
                work <- new_work!("LateRemoval::work"),
            }),
            GFP_KERNEL,
        )?;
        assert!(bench.device.queues.reaper.enqueue(leaver.clone()).is_ok());
        bench.rdma.cm.conns.shut_down();
        assert!(leaver.left.load(Relaxed));
        assert_eq!(ConnEntry::take(bench.rdma.cm.clone()).err(), Some(ENODEV));
        // Without connections it returns at once.
        bench.rdma.cm.conns.shut_down();
        bench.device.queues.reaper.flush();
        Ok(())
    }
}
