// SPDX-License-Identifier: GPL-2.0

//! KUnit suite of the transmit task: how much one caller sends before the work item continues, and
//! the order of messages. The peer is a plain socket.

#[kernel::prelude::kunit_tests(riwarp_tx)]
mod tx {
    use super::super::{
        send::{
            UserTurn,
            Waiting,
            BUDGET,
            SOFTIRQ_BUDGET,
            USER_BUDGET, //
        },
        *, //
    };
    use crate::{
        abi::{
            rxe,
            user::SendRing,
            wr::SendOp, //
        },
        bench::{
            polled,
            store_send,
            Bench, //
        },
        cm::conn::{
            bench::{
                fill,
                Started,
                PARAMS, //
            },
            Conn, //
        },
        mem::{
            mr::{
                bench::Target,
                registration::Mr, //
            },
            payload::Sge, //
        },
        qp::Qp,
        queue::{
            cq::Cq,
            readq::{
                InboundRead,
                InboundRequest, //
            }, //
        }, //
    };
    use iwarp::{
        atomic::AtomicResponse,
        ddp::Msn,
        features::Features,
        mpa::negotiate::{
            FeatureRules,
            Rtr, //
        },
        rdmap::{
            Extensions,
            Marked,
            ReadRequest,
            SendExtra, //
        },
        segment::{
            Message,
            Segmenter, //
        },
        stag::{
            Stag,
            TaggedOffset, //
        },
        terminate::Quoted, //
    };
    use kernel::sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        ArcBorrow, //
    };
    use kernel_ext::{
        crc32c,
        mm::shared_ring::SharedMem,
        net::{
            bench::{
                eventually,
                pair, //
            },
            Family,
            Hooked,
            Inbound,
            Socket,
            SocketEvents, //
        },
        rdma::{
            bench::kernel_owned,
            types::AccessFlags,
            wr::WcStatus, //
        },
        sync::BhOff, //
    };

    /// Length of a Write that fills a batch.
    const LEN: usize = BATCH_LEN;
    /// Number of requests that fit into the queue.
    const PLACES: u32 = 128;

    /// A queue pair with a stream, and memory to send from. Destroyed on drop.
    struct TxRig {
        conn: Option<Started>,
        qp: Arc<Qp>,
        cq: Arc<Cq>,
        mr: Arc<Mr>,
        key: u32,
        memory: SharedMem,
        bench: Bench,
    }

    impl TxRig {
        fn new(near: Socket, params: &StreamParams) -> Result<Self> {
            Self::of(near, params, |bench, cq| bench.qp(PLACES, cq))
        }

        fn of(
            near: Socket,
            params: &StreamParams,
            qp: impl FnOnce(&Bench, &Arc<Cq>) -> Result<Arc<Qp>>,
        ) -> Result<Self> {
            let bench = Bench::new()?;
            let cq = bench.cq(PLACES)?;
            let made = Mr::dma(
                bench.pd.as_arc_borrow(),
                kernel_owned(),
                AccessFlags::empty(),
            )?;
            let qp = qp(&bench, &cq)?;
            let rig = Self {
                conn: Some(Started::new(&bench.rdma.cm, near, &qp)?),
                qp,
                cq,
                mr: made.mr,
                key: made.lkey,
                memory: SharedMem::try_new(LEN)?,
                bench,
            };
            rig.qp.attach(&rig.conn()?.connection, params)?;
            Ok(rig)
        }

        fn conn(&self) -> Result<&Arc<Conn>> {
            self.conn.as_ref().map(|conn| &conn.0).ok_or(EINVAL)
        }

        /// Posts large Writes without a doorbell.
        fn post(&self, count: u32) -> Result {
            for _ in 0..count {
                let mut wr = SendWr {
                    op: SendOp::Write {
                        stag: Stag::ZERO,
                        to: 0,
                        immediate: None,
                    },
                    ..SendWr::default()
                };
                wr.payload.push(Sge {
                    addr: self.memory.start().expose_provenance() as u64,
                    len: u32::try_from(LEN)?,
                    lkey: self.key,
                });
                self.qp.shared.sq.post(wr)?;
            }
            Ok(())
        }

        /// Returns how many batches TCP has accepted.
        fn batches(&self) -> u64 {
            self.bench.count(c"tx_batches")
        }
    }

    impl Drop for TxRig {
        fn drop(&mut self) {
            drop(self.conn.take());
            self.bench.destroy(&self.qp);
            let _ = self.mr.deregister();
        }
    }

    /// Runs one round and returns what is next; [`None`] without a stream or if the task runs
    /// elsewhere.
    fn visit(qp: &Arc<Qp>, sender: &mut TcpSender<'_, '_>) -> Option<Next> {
        let mut next = None;
        let _ = qp.tx.run(|tx| {
            next = qp
                .take_new_tx(tx)
                .map(|stream| stream.send_round(&qp.shared, sender));
            Next::Yield
        });
        next
    }

    #[test]
    fn user_post_beyond_budget_is_left_to_work_item() -> Result {
        let (near, _far) = pair(Family::V4)?;
        let rig = TxRig::new(near, &PARAMS)?;
        rig.conn()?
            .connection
            .socket()
            .make_room(PLACES as usize * LEN * 2);
        rig.post(BUDGET + 8)?;
        assert_eq!(visit(&rig.qp, &mut TcpSender::Process), Some(Next::Yield));
        assert_eq!(rig.batches(), BUDGET.into());
        assert!(rig.qp.shared.sq.has_posted());
        assert_eq!(visit(&rig.qp, &mut TcpSender::Process), Some(Next::Done));
        assert!(!rig.qp.shared.sq.has_posted());
        Ok(())
    }

    /// Whoever owns the socket, and if it is preempted for long: others wait behind this item.
    #[test]
    fn nonblocking_work_item_defers_locked_socket() -> Result {
        let (near, _far) = pair(Family::V4)?;
        let rig = TxRig::new(near, &PARAMS)?;
        let socket = rig.conn()?.connection.socket();
        socket.make_room(PLACES as usize * LEN * 2);
        rig.post(1)?;
        let mut never = TcpSender::User(UserTurn::begin(Waiting::Never));
        let next = socket.with_inbound(|_| visit(&rig.qp, &mut never));
        assert_eq!((next, rig.batches()), (Some(Next::Yield), 0));
        let mut allowed = TcpSender::User(UserTurn::begin(Waiting::Allowed));
        while visit(&rig.qp, &mut allowed) == Some(Next::Yield) {
            allowed = TcpSender::User(UserTurn::begin(Waiting::Allowed));
        }
        assert_eq!(rig.batches(), 1);
        Ok(())
    }

    /// However often it is rearmed meanwhile.
    #[test]
    fn user_work_item_has_one_budget() -> Result {
        let (near, _far) = pair(Family::V4)?;
        let rig = TxRig::new(near, &PARAMS)?;
        rig.conn()?
            .connection
            .socket()
            .make_room(PLACES as usize * LEN * 2);
        rig.post(4 * USER_BUDGET)?;
        let mut sender = TcpSender::User(UserTurn::begin(Waiting::Never));
        while !sender.is_over() {
            assert_eq!(visit(&rig.qp, &mut sender), Some(Next::Yield));
        }
        assert!((1..=USER_BUDGET.into()).contains(&rig.batches()));
        Ok(())
    }

    /// A process may post as many requests behind a full queue as its ring has entries, and rings
    /// once for all of them.
    #[test]
    fn requests_posted_behind_full_send_queue_are_sent() -> Result {
        let (near, _far) = pair(Family::V4)?;
        let ring = rxe::RxeSendRing::new(8, 1, 0)?;
        let memory = ring.memory().clone();
        let rig = TxRig::of(near, &PARAMS, |bench, cq| {
            Qp::of_ring(bench, 2, SendRing::Rxe(ring), cq)
        })?;
        for at in 0..5 {
            store_send(&memory, at, 2)?;
        }
        assert_eq!(visit(&rig.qp, &mut TcpSender::Process), Some(Next::Done));
        assert!(!rig.qp.shared.sq.has_posted() && rig.qp.shared.sq.is_idle());
        Ok(())
    }

    /// Sends for a queue pair when data arrives, as its own connection does.
    struct Sender {
        qp: Arc<Qp>,
        next: Atomic<u32>,
    }

    impl SocketEvents for Sender {
        fn data_ready(self: ArcBorrow<'_, Self>, inbound: &mut Inbound<'_>, _off: BhOff<'_>) {
            inbound.consume(inbound.available());
            if !inbound.in_softirq() {
                return;
            }
            let next = match visit(&self.qp, &mut TcpSender::Callback(inbound)) {
                None => 0,
                Some(Next::Again) => 1,
                Some(Next::Done) => 2,
                Some(Next::Yield) => 3,
            };
            self.next.store(next, Relaxed);
        }

        fn readable(self: ArcBorrow<'_, Self>) {}

        fn write_space(self: ArcBorrow<'_, Self>) {}

        fn state_change(self: ArcBorrow<'_, Self>) {}
    }

    #[test]
    fn softirq_send_beyond_budget_is_left_to_work_item() -> Result {
        let ((near, _far), (other, caller)) = (pair(Family::V4)?, pair(Family::V4)?);
        let rig = TxRig::new(near, &PARAMS)?;
        other.make_room(PLACES as usize * LEN * 2);
        let sender = Sender {
            qp: rig.qp.clone(),
            next: Atomic::new(0),
        };
        let sender = Arc::new(sender, GFP_KERNEL)?;
        rig.post(SOFTIRQ_BUDGET + 8)?;
        let _other = Hooked::new(other, sender.clone())?;
        caller.send(b"go on")?;
        eventually(|| sender.next.load(Relaxed) != 0)?;
        assert_eq!(sender.next.load(Relaxed), 3);
        assert_eq!(rig.batches(), SOFTIRQ_BUDGET.into());
        assert!(rig.qp.shared.sq.has_posted());
        Ok(())
    }

    /// For each message that arrives, posts another request and kicks the transmit task.
    struct Asker {
        qp: Arc<Qp>,
        /// The thread whose messages are counted.
        thread: i32,
        counted: Atomic<u32>,
        left: Atomic<u32>,
    }

    impl SocketEvents for Asker {
        fn data_ready(self: ArcBorrow<'_, Self>, inbound: &mut Inbound<'_>, _off: BhOff<'_>) {
            inbound.consume(inbound.available());
            if current!().pid() == self.thread {
                self.counted.fetch_add(1, Relaxed);
            }
            let left = self.left.load(Relaxed);
            if left > 0 && self.qp.shared.sq.post(SendWr::default()).is_ok() {
                self.left.store(left - 1, Relaxed);
                self.qp.kick();
            }
        }

        fn readable(self: ArcBorrow<'_, Self>) {}

        fn write_space(self: ArcBorrow<'_, Self>) {}

        fn state_change(self: ArcBorrow<'_, Self>) {}
    }

    /// Returns how many messages one call sends while each of them leads to another request.
    fn sent_by_one_call() -> Result<u32> {
        let (near, far) = pair(Family::V4)?;
        let rig = TxRig::new(near, &PARAMS)?;
        let asker = Asker {
            qp: rig.qp.clone(),
            thread: current!().pid(),
            counted: Atomic::new(0),
            left: Atomic::new(4 * BUDGET),
        };
        let asker = Arc::new(asker, GFP_KERNEL)?;
        let _far = Hooked::new(far, asker.clone())?;
        rig.qp.shared.sq.post(SendWr::default())?;
        rig.qp.transmit();
        let counted = asker.counted.load(Relaxed);
        eventually(|| asker.left.load(Relaxed) == 0)?;
        Ok(counted)
    }

    /// Packets on the loopback interface arrive before the sender continues, unless another thread
    /// has to process them; hence several attempts.
    #[test]
    fn repeated_reads_beyond_budget_are_left_to_work_item() -> Result {
        for _ in 0..50 {
            let sent = sent_by_one_call()?;
            assert!(sent <= BUDGET);
            if sent == BUDGET {
                return Ok(());
            }
        }
        Err(EAGAIN)
    }

    /// Octets of an FPDU without payload and CRC, for a tagged message and a Send; of the CRC.
    const TAGGED: usize = 2 + 14;
    const SEND: usize = 2 + 18;
    const CRC: usize = 4;

    #[test]
    fn inbound_reads_and_posted_requests_alternate() -> Result {
        let (near, far) = pair(Family::V4)?;
        let params = StreamParams {
            ird: 3,
            wait_first_fpdu: true,
            ..PARAMS
        };
        let rig = TxRig::new(near, &params)?;
        for _ in 0..3 {
            rig.qp.shared.sq.post(SendWr::default())?;
        }
        if let Some(conn) = &rig.conn {
            conn.enter_stream()?;
        }
        // Sent in one piece; the responder sends nothing before the first FPDU.
        let (mut octets, mut len) = ([0; 256], 0);
        let mut msn = Msn::FIRST;
        for _ in 0..3 {
            let request = ReadRequest {
                sink_stag: Stag::ZERO,
                sink_to: TaggedOffset::new(0),
                len: 0,
                source_stag: Stag::ZERO,
                source_to: TaggedOffset::new(0),
            };
            let message = Message::ReadRequest { request, msn };
            let plan = Segmenter::new(message, 0).next(1000).ok_or(EINVAL)?;
            let header = plan.header();
            octets[len..len + header.len()].copy_from_slice(header);
            len += plan.fpdu_len() as usize;
            msn = msn.next();
        }
        assert_eq!(far.send(&octets[..len]), Ok(len));
        let mut octets = [0; 3 * (TAGGED + SEND + 2 * CRC)];
        eventually(|| far.peek(&mut octets) == Ok(octets.len()))?;
        let mut rest = &octets[..];
        for n in 0..6 {
            // The T bit of DDP: set in a Read Response, clear in a Send.
            let tagged = rest[2] & 0x80 != 0;
            assert_eq!(tagged, n % 2 == 0);
            rest = &rest[if tagged { TAGGED } else { SEND } + CRC..];
        }
        Ok(())
    }

    /// Takes the next FPDU, which is untagged, and returns its queue number and MSN.
    fn queue_and_number(far: &Socket) -> Result<(u32, u32)> {
        let (mut header, mut len) = ([0; SEND], 0);
        eventually(|| {
            len += far.recv(&mut header[len..]).unwrap_or(0);
            len == SEND
        })?;
        let [a, b, _, _, _, _, _, _, rest @ ..] = header;
        let [q0, q1, q2, q3, n0, n1, n2, n3, ..] = rest;
        let fpdu = (2 + usize::from(u16::from_be_bytes([a, b]))).next_multiple_of(4) + CRC;
        let (mut left, mut octets) = (fpdu - SEND, [0; 512]);
        eventually(|| {
            while left > 0 {
                let room = left.min(octets.len());
                let Ok(len) = far.recv(&mut octets[..room]) else {
                    return false;
                };
                left -= len;
            }
            true
        })?;
        Ok((
            u32::from_be_bytes([q0, q1, q2, q3]),
            u32::from_be_bytes([n0, n1, n2, n3]),
        ))
    }

    /// RFC 5041, section 4.3: each message of a queue has an MSN, the same in all its segments;
    /// 2^32 - 1 is followed by 0.
    #[test]
    fn msn_starts_anew_per_queue_and_stream() -> Result {
        let (near, far) = pair(Family::V4)?;
        let params = StreamParams {
            ird: 3,
            ord: 3,
            ..PARAMS
        };
        let rig = TxRig::new(near, &params)?;
        rig.conn()?.connection.socket().make_room(2 * LEN);
        let _ = rig.qp.tx.run(|tx| {
            if let Some(stream) = rig.qp.take_new_tx(tx) {
                let params = SenderParams {
                    extensions: Extensions::Rfc7306,
                    features: None,
                    rtr: None,
                    draft_swap: false,
                };
                stream.context.sender = StreamSender::with_number(&params, Msn::new(u32::MAX));
            }
            Next::Yield
        });
        // This message does not fit into one segment.
        let mut long = SendWr::default();
        long.payload.push(Sge {
            addr: rig.memory.start().expose_provenance() as u64,
            len: u32::try_from(LEN)?,
            lkey: rig.key,
        });
        rig.qp.shared.sq.post(long)?;
        for extra in [SendExtra::Immediate(*b"data"), SendExtra::None] {
            let read = SendOp::Read {
                stag: Stag::ZERO,
                to: 0,
                invalidate_local: false,
            };
            for op in [read, SendOp::Send(extra)] {
                let wr = SendWr {
                    op,
                    ..SendWr::default()
                };
                rig.qp.shared.sq.post(wr)?;
            }
            let response = AtomicResponse {
                identifier: 5,
                original: 6,
            };
            assert!(rig
                .qp
                .shared
                .inbound_reads
                .put(InboundRequest::Answer(response)));
        }
        rig.qp.transmit();
        let mut numbers = [const { KVec::new() }; 4];
        // The last message of each queue; the number of segments of the long one depends on TCP.
        let mut left = 3;
        while left > 0 {
            let (queue, number) = queue_and_number(&far)?;
            let of_queue = numbers.get_mut(queue as usize).ok_or(EINVAL)?;
            of_queue.push(number, GFP_KERNEL)?;
            if (queue, number) == (0, 1) || (queue != 0 && of_queue.len() == 2) {
                left -= 1;
            }
        }
        let segments = numbers[0].len() - 2;
        assert!(segments >= 2);
        assert!(numbers[0][..segments].iter().all(|n| *n == u32::MAX));
        assert_eq!(numbers[0][segments..], [0, 1]);
        assert_eq!(numbers[1][..], [u32::MAX, 0]);
        assert_eq!(numbers[2][..], []);
        assert_eq!(numbers[3][..], [u32::MAX, 0]);
        Ok(())
    }

    #[test]
    fn initiator_stream_begins_with_features() -> Result {
        let (near, far) = pair(Family::V4)?;
        let (ours, theirs) = (
            Features {
                ulpdu_max: 50_000,
                marked: Marked::NONE,
            },
            Features {
                ulpdu_max: 40_002,
                marked: Marked::NONE,
            },
        );
        let params = StreamParams {
            send_rtr: Some(Rtr::Write),
            features: FeatureRules {
                common: Some(ours.common(theirs)),
                tell: Some(ours),
                awaits: None,
            },
            ..PARAMS
        };
        let rig = TxRig::new(near, &params)?;
        assert_eq!(rig.conn()?.connection.ulpdu_max(), 40_002);
        rig.qp.transmit();
        const FEATURES: usize = SEND + Features::LEN + CRC;
        let mut octets = [0; FEATURES + TAGGED + CRC];
        take(&far, &mut octets)?;
        let len = (FEATURES - CRC - 2) as u16;
        assert_eq!(octets[..2], len.to_be_bytes());
        assert_eq!(Features::of_message(&octets[2..], len), Some(ours));
        // The ready-to-receive message.
        assert_eq!(octets[FEATURES..][..4], [0, 14, 0xc1, 0x40]);
        Ok(())
    }

    /// Most octets of a ULPDU in the tests of [`short`] FPDUs.
    const SHORT: u16 = 200;
    /// Octets of a message of several such FPDUs.
    const LONG: u32 = 1000;

    /// Makes the FPDUs of the next round short.
    fn short(qp: &Arc<Qp>) {
        let _ = qp.tx.run(|tx| {
            if let Some(stream) = qp.take_new_tx(tx) {
                stream.limits = (stream.conn.socket().emss(), 0);
                stream.context.mulpdu = SHORT;
            }
            Next::Yield
        });
    }

    /// Returns the octets of an FPDU without its CRC, which is checked, and the length of it all.
    fn first_fpdu(octets: &[u8]) -> Result<(&[u8], usize)> {
        let (len, _) = octets.split_first_chunk().ok_or(EINVAL)?;
        let ulpdu_len = u16::from_be_bytes(*len);
        assert!(ulpdu_len <= SHORT);
        let all = mpa::fpdu_len(ulpdu_len) as usize;
        let (covered, crc) = octets
            .get(..all)
            .and_then(|all| all.split_last_chunk())
            .ok_or(EINVAL)?;
        let computed = crc32c::finish(crc32c::update(crc32c::INIT, covered));
        assert_eq!(*crc, mpa::crc_trailer(computed));
        Ok((&covered[2..2 + usize::from(ulpdu_len)], all))
    }

    /// Checks that a tagged message with these octets comes, from the tagged offset `to` on, in
    /// FPDUs that are as long as possible; returns their number and length.
    fn expect_tagged(octets: &[u8], opcode: u8, to: u64, want: &[u8]) -> Result<(u64, usize)> {
        let (mut pos, mut count) = (0, 0);
        let parts = want.chunks(usize::from(SHORT) - (TAGGED - 2));
        let last = parts.len() - 1;
        for (n, part) in parts.enumerate() {
            let (segment, len) = first_fpdu(&octets[pos..])?;
            let at = to + (n * (usize::from(SHORT) - (TAGGED - 2))) as u64;
            let control = if n == last { 0xc1 } else { 0x81 };
            assert_eq!(segment[..2], [control, 0x40 | opcode]);
            assert_eq!(segment[6..14], at.to_be_bytes());
            assert_eq!(&segment[14..], part);
            (pos, count) = (pos + len, count + 1);
        }
        Ok((count, pos))
    }

    /// Receives octets until no more are announced by `len`.
    fn take(far: &Socket, octets: &mut [u8]) -> Result {
        let mut len = 0;
        eventually(|| {
            len += far.recv(&mut octets[len..]).unwrap_or(0);
            len == octets.len()
        })
    }

    const WITH_CRC: StreamParams = StreamParams {
        crc: Crc::On,
        ird: 1,
        ..PARAMS
    };

    /// Octets of a tagged message of [`LONG`] octets in short FPDUs.
    const LONG_WIRE: usize = 5 * (2 + 200 + 2 + CRC) + (2 + 14 + 70 + 2 + CRC);

    impl TxRig {
        /// Fills the memory with octets and returns the first [`LONG`] of them.
        fn pattern(&self) -> Result<[u8; LONG as usize]> {
            for at in (0..LEN).step_by(8) {
                let word = (at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                self.memory.copy_in(at, &word)?;
            }
            self.memory.copy_out(0).ok_or(EINVAL)
        }

        /// Checks that all was sent, in this many FPDUs, and that the stream keeps little memory.
        fn has_sent(&self, fpdus: u64) {
            assert_eq!(self.bench.count(c"tx_fpdus"), fpdus);
            let _ = self.qp.tx.run(|tx| {
                let stream = tx.stream.as_ref();
                assert!(stream.is_some_and(|stream| stream.appended == stream.accepted));
                assert!(stream.is_some_and(|stream| !stream.batch.has_spare()));
                Next::Yield
            });
        }
    }

    /// The tagged offset of the Writes of [`post_long`].
    const TO: u64 = 0x7000;

    /// Posts a Write of [`LONG`] octets, from a list of elements of these lengths.
    fn post_long(rig: &TxRig, lengths: &[u32]) -> Result {
        let mut wr = SendWr {
            id: 7,
            op: SendOp::Write {
                stag: Stag::ZERO,
                to: TO,
                immediate: None,
            },
            signalled: true,
            ..SendWr::default()
        };
        let mut addr = rig.memory.start().expose_provenance() as u64;
        for &len in lengths {
            wr.payload.push(Sge {
                addr,
                len,
                lkey: rig.key,
            });
            addr += u64::from(len);
        }
        rig.qp.shared.sq.post(wr)
    }

    /// Checks the FPDUs of a Write of [`LONG`] octets, from a list of elements of these lengths.
    fn write_long(lengths: &[u32]) -> Result {
        let (near, far) = pair(Family::V4)?;
        let rig = TxRig::new(near, &WITH_CRC)?;
        let want = rig.pattern()?;
        post_long(&rig, lengths)?;
        short(&rig.qp);
        assert_eq!(visit(&rig.qp, &mut TcpSender::Process), Some(Next::Done));
        let mut octets = [0; LONG_WIRE];
        take(&far, &mut octets)?;
        let sent = expect_tagged(&octets, 0, TO, &want)?;
        assert_eq!(sent, (6, LONG_WIRE));
        rig.has_sent(6);
        assert_eq!(polled(&rig.cq), Some((7, Some(WcStatus::Success), LONG)));
        Ok(())
    }

    #[test]
    fn long_write_is_cut_into_full_fpdus() -> Result {
        write_long(&[LONG])?;
        write_long(&[300, LONG - 301, 1])
    }

    /// FPDUs that wait for room in TCP keep their length when the MULPDU changes (DDP-2).
    #[test]
    fn started_message_keeps_its_segmentation() -> Result {
        let (near, far) = pair(Family::V4)?;
        let rig = TxRig::new(near, &WITH_CRC)?;
        let want = rig.pattern()?;
        let full = fill(rig.conn()?.connection.socket());
        post_long(&rig, &[LONG])?;
        short(&rig.qp);
        let _ = visit(&rig.qp, &mut TcpSender::Process);
        assert_eq!(rig.batches(), 0);
        let _ = rig.qp.tx.run(|tx| {
            if let Some(stream) = &mut tx.stream {
                assert!(!stream.batch.is_empty() && stream.context.sender.current.is_none());
                stream.context.mulpdu = SHORT / 2;
            }
            Next::Yield
        });
        let mut left = full;
        eventually(|| {
            while let Ok(len @ 1..) = far.recv(&mut [0; 512][..left.min(512)]) {
                left -= len;
            }
            left == 0
        })?;
        let mut octets = [0; LONG_WIRE];
        let mut len = 0;
        eventually(|| {
            let _ = visit(&rig.qp, &mut TcpSender::Process);
            len += far.recv(&mut octets[len..]).unwrap_or(0);
            len == octets.len()
        })?;
        assert_eq!(expect_tagged(&octets, 0, TO, &want)?, (6, LONG_WIRE));
        Ok(())
    }

    /// Sends the Response to a Read of [`LONG`] octets, of which the region has `len`. Returns the
    /// octets that the peer receives.
    fn respond<const WIRE: usize>(
        rig: &TxRig,
        far: &Socket,
        len: usize,
    ) -> Result<([u8; WIRE], [u8; LONG as usize])> {
        let source = Target::of(
            &rig.bench.pd,
            rig.qp.shared.serial,
            (BASE, len),
            AccessFlags::REMOTE_READ,
        )?;
        for at in (0..LONG as usize).step_by(8) {
            source
                .memory
                .copy_in(at, &(at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15))?;
        }
        let request = ReadRequest {
            sink_stag: Stag::new(0x55),
            sink_to: TaggedOffset::new(SINK_TO),
            len: LONG,
            source_stag: source.mr.region.stag(),
            source_to: TaggedOffset::new(BASE),
        };
        let message = Message::ReadRequest {
            request,
            msn: Msn::FIRST,
        };
        let plan = Segmenter::new(message, 0).next(SHORT).ok_or(EINVAL)?;
        let header = &plan.header()[2..];
        let read = InboundRead {
            request,
            source: Some(source.mr.region.clone()),
            quoted: Quoted::from_segment(header, u16::try_from(header.len())?),
        };
        assert!(rig.qp.shared.inbound_reads.put(InboundRequest::Read(read)));
        short(&rig.qp);
        let _ = visit(&rig.qp, &mut TcpSender::Process);
        rig.qp.transmit();
        let mut octets = [0; WIRE];
        take(far, &mut octets)?;
        Ok((octets, source.memory.copy_out(0).ok_or(EINVAL)?))
    }

    /// The tagged offsets of a Read's source and sink.
    const BASE: u64 = 0x1000;
    const SINK_TO: u64 = 0x9000;

    #[test]
    fn long_read_response_is_cut_into_full_fpdus() -> Result {
        let (near, far) = pair(Family::V4)?;
        let rig = TxRig::new(near, &WITH_CRC)?;
        let (octets, want) = respond::<LONG_WIRE>(&rig, &far, LONG as usize)?;
        let sent = expect_tagged(&octets, 2, SINK_TO, &want)?;
        assert_eq!(sent, (6, LONG_WIRE));
        rig.has_sent(6);
        Ok(())
    }

    /// What is refused is not sent, and the Terminate quotes the Read from there on (RDMAP-47).
    #[test]
    fn read_response_ends_with_its_source() -> Result {
        const GOOD: usize = 2 * (SHORT as usize - 14);
        const PARTS: usize = 2 * (2 + 200 + 2 + CRC);
        // Header, error, length, and the headers of the Read Request.
        const TERMINATE: usize = 2 + 18 + 4 + 2 + 18 + 28 + CRC;
        let (near, far) = pair(Family::V4)?;
        let rig = TxRig::new(near, &WITH_CRC)?;
        let (octets, want) = respond::<{ PARTS + TERMINATE }>(&rig, &far, 500)?;
        let (mut pos, payload) = (0, SHORT as usize - 14);
        for part in want[..GOOD].chunks(payload) {
            let (segment, len) = first_fpdu(&octets[pos..])?;
            assert_eq!(segment[..2], [0x81, 0x42]);
            assert_eq!(&segment[14..], part);
            pos += len;
        }
        let (terminate, _) = first_fpdu(&octets[pos..])?;
        assert_eq!(terminate[..2], [0x41, 0x47]);
        // Remote protection error, bounds.
        assert_eq!(terminate[18..20], [0x01, 0x01]);
        let [quoted @ ..] = &terminate[terminate.len() - 28..];
        assert_eq!(quoted[4..12], (SINK_TO + GOOD as u64).to_be_bytes());
        assert_eq!(quoted[12..16], (LONG - GOOD as u32).to_be_bytes());
        assert_eq!(quoted[20..28], (BASE + GOOD as u64).to_be_bytes());
        Ok(())
    }
}
