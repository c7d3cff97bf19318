// SPDX-License-Identifier: GPL-2.0

//! KUnit suite of messages of several FPDUs that arrive together, so that one round receives them.

#[kernel::prelude::kunit_tests(riwarp_rx_rest)]
mod rest {
    use super::super::super::*;
    use crate::{
        abi::wr::{
            SendOp,
            SendWr, //
        },
        bench::completed,
        cm::conn::bench::{
            ConnRig,
            PARAMS,
            UNTAGGED, //
        },
        mem::{
            mr::bench::{
                Target,
                LEN, //
            },
            payload::Sge, //
        },
        qp::actions::Runner, //
    };
    use iwarp::{
        stag::Stag,
        stream::Delivery, //
    };
    use kernel::{
        sync::atomic::{
            Atomic,
            Relaxed, //
        },
        time::{
            Delta,
            Instant,
            Monotonic, //
        }, //
    };
    use kernel_ext::{
        crc32c,
        net::bench::eventually,
        rdma::{
            types::AccessFlags,
            wr::WcStatus, //
        },
        workqueue::OwnedQueue, //
    };

    /// The time after which a test gives up.
    const LONG: Delta = Delta::from_secs(10);

    /// Octets of payload in each FPDU.
    const PART: usize = 8;
    /// Number of parts of a message.
    const PARTS: usize = 5;
    /// Octets of a message.
    const WHOLE: usize = PARTS * PART;
    /// The tagged offset of the target, and the address of a buffer in it.
    const BASE: u64 = 0x1000;

    const WRITE: u8 = 0;
    const RESPONSE: u8 = 2;
    const SEND: u8 = 3;
    const IMMEDIATE: u8 = 8;

    const WITH_CRC: StreamParams = StreamParams {
        crc: Crc::On,
        ..PARAMS
    };

    /// Layer, type and code of a Terminate.
    type Code = (u8, u8, u8);
    const CRC: Code = (2, 0, 2);
    const OPCODE: Code = (0, 2, 6);
    const STAG: Code = (1, 1, 0);
    const BOUNDS: Code = (1, 1, 1);
    const WRAP: Code = (1, 1, 3);
    const QUEUE: Code = (1, 2, 1);
    const MSN: Code = (1, 2, 3);
    const OFFSET: Code = (1, 2, 4);
    const TOO_LONG: Code = (1, 2, 5);

    #[derive(Clone, Copy, PartialEq, Eq)]
    enum MessageKind {
        Write,
        Send,
        Response,
    }

    const KINDS: [MessageKind; 3] = [MessageKind::Write, MessageKind::Send, MessageKind::Response];

    /// The header of a segment, changed by tests.
    #[derive(Clone, Copy)]
    struct Header {
        opcode: u8,
        last: bool,
        stag: u32,
        to: u64,
        queue: u32,
        msn: u32,
    }

    impl Header {
        fn control(&self, tagged: u8) -> [u8; 2] {
            let last = if self.last { 0x40 } else { 0 };
            [tagged | last | 1, 0x40 | self.opcode]
        }
    }

    /// FPDUs one behind the other.
    struct FpduOctets(KVec<u8>);

    impl FpduOctets {
        fn put(&mut self, segment: &[&[u8]]) -> Result {
            let start = self.0.len();
            let len: usize = segment.iter().map(|octets| octets.len()).sum();
            let len = u16::try_from(len)?;
            self.0.extend_from_slice(&len.to_be_bytes(), GFP_KERNEL)?;
            for octets in segment {
                self.0.extend_from_slice(octets, GFP_KERNEL)?;
            }
            let end = self.0.len().next_multiple_of(4);
            self.0.resize(end, 0, GFP_KERNEL)?;
            let crc = crc32c::finish(crc32c::update(crc32c::INIT, &self.0[start..]));
            self.0
                .extend_from_slice(&crc.to_le_bytes(), GFP_KERNEL)
                .map_err(Error::from)
        }

        fn segment(&mut self, header: &Header, payload: &[u8]) -> Result {
            let Header { stag, to, .. } = header;
            match header.opcode {
                WRITE | RESPONSE => self.put(&[
                    &header.control(0x80),
                    &stag.to_be_bytes(),
                    &to.to_be_bytes(),
                    payload,
                ]),
                _ => self.put(&[
                    &header.control(0),
                    &[0; 4],
                    &header.queue.to_be_bytes(),
                    &header.msn.to_be_bytes(),
                    &u32::try_from(*to)?.to_be_bytes(),
                    payload,
                ]),
            }
        }
    }

    /// What a round has done.
    #[derive(Debug, PartialEq, Eq)]
    struct Counts {
        fpdus: u64,
        answers: u64,
    }

    /// A stream whose peer sends one message to `target`: a Write, a Send to a receive of
    /// [`WHOLE`] octets, or the Response to a Read of as many.
    struct RestRig {
        kind: MessageKind,
        fpdus: FpduOctets,
        target: Target,
        rig: ConnRig,
    }

    impl RestRig {
        fn new(kind: MessageKind, params: &StreamParams) -> Result<Self> {
            let rig = ConnRig::new()?;
            let target = Target::new(&rig.bench.pd, rig.qp.shared.serial, BASE)?;
            rig.qp.attach(&rig.conn.connection, params)?;
            let rest = Self {
                kind,
                fpdus: FpduOctets(KVec::new()),
                target,
                rig,
            };
            match kind {
                MessageKind::Write => {}
                MessageKind::Send => rest.post_receive(1, &[(0, WHOLE)])?,
                MessageKind::Response => rest.post_read(false)?,
            }
            Ok(rest)
        }

        /// Returns a piece of the target as an element of a list.
        fn sge(&self, at: usize, len: usize) -> Result<Sge> {
            Ok(Sge {
                addr: BASE + at as u64,
                len: u32::try_from(len)?,
                lkey: self.target.key(),
            })
        }

        /// Posts a receive to pieces of the target, by offset and length.
        fn post_receive(&self, id: u64, pieces: &[(usize, usize)]) -> Result {
            let queue = self.rig.qp.own_receives().ok_or(EINVAL)?;
            let posted = queue.post(|wr| {
                wr.id = id;
                wr.buffer.clear();
                for (at, len) in pieces {
                    wr.buffer.push(self.sge(*at, *len)?);
                }
                Ok(())
            });
            posted.map(|_| ())
        }

        /// Posts a Read to the target, and receives its Request.
        fn post_read(&self, invalidate_local: bool) -> Result {
            let mut wr = SendWr {
                id: 1,
                op: SendOp::Read {
                    stag: Stag::ZERO,
                    to: 0,
                    invalidate_local,
                },
                signalled: true,
                ..SendWr::default()
            };
            wr.payload.push(self.sge(0, WHOLE)?);
            self.rig.qp.shared.sq.post(wr)?;
            self.rig.qp.transmit();
            self.rig.take::<{ 2 + UNTAGGED + 28 + 4 }>().map(drop)
        }

        /// Returns the header of part `n`.
        fn header(&self, n: usize) -> Header {
            let at = (n * PART) as u64;
            let (opcode, to) = match self.kind {
                MessageKind::Write => (WRITE, BASE + at),
                MessageKind::Send => (SEND, at),
                MessageKind::Response => (RESPONSE, BASE + at),
            };
            Header {
                opcode,
                last: n == PARTS - 1,
                stag: self.target.key(),
                to,
                queue: 0,
                msn: 1,
            }
        }

        /// Adds part `n`, changed; its octets are `n` + 1.
        fn changed(&mut self, n: usize, change: impl FnOnce(&mut Header)) -> Result {
            let mut header = self.header(n);
            change(&mut header);
            self.fpdus.segment(&header, &[n as u8 + 1; PART])
        }

        fn part(&mut self, n: usize) -> Result {
            self.changed(n, |_| ())
        }

        fn parts(&mut self, mut numbers: core::ops::Range<usize>) -> Result {
            numbers.try_for_each(|n| self.part(n))
        }

        /// Adds Immediate Data.
        fn immediate(&mut self) -> Result {
            let header = Header {
                opcode: IMMEDIATE,
                last: true,
                to: 0,
                ..self.header(0)
            };
            self.fpdus.segment(&header, &[0; 8])
        }

        /// Sends the FPDUs, and receives them in one round.
        fn round(&mut self) -> Result<Counts> {
            let Self { rig, fpdus, .. } = self;
            let octets = &fpdus.0;
            let socket = rig.conn.connection.socket();
            let mut sent = 0;
            eventually(|| {
                sent += rig.far.send(&octets[sent..]).unwrap_or(0);
                socket.with_inbound(|inbound| inbound.available()) == octets.len()
            })?;
            let counts = socket.with_inbound(|inbound| {
                BhOff::run(|off| {
                    let mut round = RxRound::new(&rig.qp.shared, &mut *inbound, off);
                    if let Some(stream) = &mut off.lock(&rig.qp.rx).stream {
                        stream.receive(&mut round);
                    }
                    let Round {
                        accepted, answers, ..
                    } = round.done;
                    let after = round.end();
                    rig.qp.carry_out(after, Runner::Callback(inbound));
                    Counts {
                        fpdus: accepted,
                        answers,
                    }
                })
            });
            fpdus.0.clear();
            Ok(counts)
        }

        /// Returns the next completion.
        fn completed(&self) -> Result<(u64, Option<WcStatus>, u32)> {
            completed(&self.rig.cq)
        }
    }

    const SUCCESS: Option<WcStatus> = Some(WcStatus::Success);

    #[test]
    fn each_part_is_placed_and_last_completes_message() -> Result {
        for params in [PARAMS, WITH_CRC] {
            for kind in KINDS {
                let mut rig = RestRig::new(kind, &params)?;
                rig.parts(0..PARTS)?;
                rig.expect(PARTS, PARTS)?;
                rig.holds(&[0, 1, 2, 3, 4])?;
                if kind != MessageKind::Write {
                    assert_eq!(rig.completed(), Ok((1, SUCCESS, WHOLE as u32)));
                }
            }
        }
        Ok(())
    }

    // Behind the first test, since KUnit's assertions are defined there.
    impl RestRig {
        /// Receives the FPDUs, of which these are accepted and the one behind them is at fault.
        fn refuses(&mut self, good: &[usize], code: Code) -> Result {
            self.expect(good.len(), good.len())?;
            assert_eq!(self.rig.take_terminate(), Ok(code));
            assert_eq!(self.rig.bench.count(c"rx_faults"), 1);
            self.holds(good)
        }

        /// Receives `all` FPDUs in one round, of which `parts` belong to the message.
        fn expect(&mut self, all: usize, parts: usize) -> Result {
            let answers = if self.kind == MessageKind::Response {
                parts
            } else {
                0
            };
            let counts = Counts {
                fpdus: all as u64,
                answers: answers as u64,
            };
            assert_eq!(self.round()?, counts);
            assert_eq!(self.rig.bench.count(c"rx_fpdus"), all as u64);
            Ok(())
        }

        /// Checks that the target holds these parts of the message and nothing else.
        fn holds(&self, parts: &[usize]) -> Result {
            let mut want = [0; 2 * LEN];
            for n in parts {
                want[n * PART..][..PART].fill(*n as u8 + 1);
            }
            assert_eq!(self.target.octets(), Some(want));
            Ok(())
        }
    }

    /// The message behind it is another one: the receiver knows that the first has ended.
    #[test]
    fn immediate_data_reports_length_of_all_parts() -> Result {
        let mut rig = RestRig::new(MessageKind::Write, &PARAMS)?;
        rig.post_receive(5, &[])?;
        rig.parts(0..PARTS)?;
        rig.immediate()?;
        rig.expect(PARTS + 1, PARTS)?;
        assert_eq!(rig.completed(), Ok((5, SUCCESS, WHOLE as u32)));
        Ok(())
    }

    /// MPA and DDP allow both anywhere (MPA-13, DDP-41).
    #[test]
    fn empty_fpdus_and_empty_parts_are_accepted_between() -> Result {
        for kind in KINDS {
            let mut rig = RestRig::new(kind, &PARAMS)?;
            rig.parts(0..2)?;
            rig.fpdus.put(&[])?;
            rig.parts(2..3)?;
            let empty = rig.header(3);
            rig.fpdus.segment(&empty, &[])?;
            rig.parts(3..PARTS)?;
            let counts = rig.round()?;
            assert_eq!(counts.fpdus, PARTS as u64 + 2);
            rig.holds(&[0, 1, 2, 3, 4])?;
            if kind != MessageKind::Write {
                assert_eq!(rig.completed(), Ok((1, SUCCESS, WHOLE as u32)));
            }
        }
        Ok(())
    }

    #[test]
    fn part_with_bad_crc_ends_the_stream() -> Result {
        for kind in KINDS {
            let mut rig = RestRig::new(kind, &WITH_CRC)?;
            rig.parts(0..3)?;
            if let Some(octet) = rig.fpdus.0.last_mut() {
                *octet ^= 1;
            }
            rig.parts(3..PARTS)?;
            rig.refuses(&[0, 1], CRC)?;
            assert_eq!(rig.rig.bench.count(c"crc_errors"), 1);
        }
        Ok(())
    }

    fn refused(kind: MessageKind, code: Code, change: impl FnOnce(&mut Header)) -> Result {
        let mut rig = RestRig::new(kind, &PARAMS)?;
        rig.parts(0..2)?;
        rig.changed(2, change)?;
        rig.parts(3..PARTS)?;
        rig.refuses(&[0, 1], code)
    }

    #[test]
    fn tagged_part_out_of_place_ends_the_stream() -> Result {
        let end = BASE + LEN as u64;
        for (kind, end) in [
            (MessageKind::Write, end),
            (MessageKind::Response, BASE + WHOLE as u64),
        ] {
            refused(kind, STAG, |part| part.stag ^= 1)?;
            refused(kind, STAG, |part| part.stag ^= 0x100)?;
            refused(kind, BOUNDS, |part| part.to = BASE - 1)?;
            refused(kind, BOUNDS, |part| part.to = end)?;
            refused(kind, BOUNDS, |part| part.to = end - PART as u64 + 1)?;
            refused(kind, BOUNDS, |part| part.to += 1 << 32)?;
            refused(kind, WRAP, |part| part.to = u64::MAX - 3)?;
        }
        refused(MessageKind::Write, OPCODE, |part| part.opcode = RESPONSE)?;
        refused(MessageKind::Response, OPCODE, |part| part.opcode = WRITE)
    }

    #[test]
    fn malformed_send_part_ends_the_stream() -> Result {
        let end = WHOLE as u64;
        refused(MessageKind::Send, OFFSET, |part| part.to = end)?;
        refused(MessageKind::Send, OFFSET, |part| part.to = u32::MAX.into())?;
        refused(MessageKind::Send, TOO_LONG, |part| part.to = end - 1)?;
        refused(MessageKind::Send, QUEUE, |part| part.queue = 1)?;
        refused(MessageKind::Send, MSN, |part| part.msn = 3)?;
        refused(MessageKind::Send, OPCODE, |part| part.msn = 2)?;
        refused(MessageKind::Send, OPCODE, |part| part.opcode = 5)
    }

    #[test]
    fn send_longer_than_buffer_fails_the_receive() -> Result {
        let mut rig = RestRig::new(MessageKind::Send, &PARAMS)?;
        rig.parts(0..2)?;
        rig.changed(2, |part| part.to = WHOLE as u64)?;
        rig.refuses(&[0, 1], OFFSET)?;
        assert_eq!(rig.completed(), Ok((1, Some(WcStatus::LocalLength), 0)));
        Ok(())
    }

    #[test]
    fn read_response_longer_than_request_ends_the_stream() -> Result {
        let mut rig = RestRig::new(MessageKind::Response, &PARAMS)?;
        rig.parts(0..2)?;
        for _ in 0..3 {
            rig.part(1)?;
        }
        // Each octet lies inside the sink.
        rig.part(3)?;
        rig.expect(PARTS, PARTS)?;
        assert_eq!(rig.rig.take_terminate(), Ok(BOUNDS));
        rig.holds(&[0, 1])
    }

    /// DDP-15: the sum of the parts of a Send is its length.
    #[test]
    fn repeated_send_part_leaves_message_incomplete() -> Result {
        let mut rig = RestRig::new(MessageKind::Send, &PARAMS)?;
        rig.parts(0..2)?;
        rig.part(1)?;
        rig.parts(2..PARTS)?;
        rig.expect(PARTS, PARTS)?;
        assert_eq!(rig.rig.take_terminate(), Ok(OFFSET));
        rig.holds(&[0, 1, 2, 3])
    }

    #[test]
    fn write_parts_may_span_several_regions() -> Result {
        let mut rig = RestRig::new(MessageKind::Write, &PARAMS)?;
        let other = Target::new(&rig.rig.bench.pd, rig.rig.qp.shared.serial, BASE)?;
        for n in 0..PARTS {
            rig.changed(n, |part| {
                if [1, 3].contains(&n) {
                    part.stag = other.key();
                }
            })?;
        }
        rig.expect(PARTS, PARTS)?;
        rig.holds(&[0, 2, 4])?;
        rig.target = other;
        rig.holds(&[1, 3])
    }

    /// The empty first part is not checked, so the region used last is one that a receive used.
    #[test]
    fn cached_region_rights_are_checked_for_each_write() -> Result {
        let mut rig = RestRig::new(MessageKind::Write, &PARAMS)?;
        let (pd, qp) = (rig.rig.bench.pd.clone(), rig.rig.qp.shared.serial);
        rig.target = Target::of(&pd, qp, (BASE, LEN), AccessFlags::LOCAL_WRITE)?;
        rig.post_receive(1, &[(0, PART)])?;
        let first = rig.header(0);
        let send = Header {
            opcode: SEND,
            last: true,
            to: 0,
            ..first
        };
        rig.fpdus.segment(&send, &[1; PART])?;
        rig.fpdus.segment(&first, &[])?;
        rig.parts(1..PARTS)?;
        rig.expect(2, 2)?;
        assert_eq!(rig.rig.take_terminate(), Ok(STAG));
        rig.holds(&[0])
    }

    /// The first part of each round is checked on its own, so an empty FPDU comes before it.
    #[test]
    fn part_for_deregistered_region_is_not_placed() -> Result {
        let mut rig = RestRig::new(MessageKind::Write, &PARAMS)?;
        rig.parts(0..2)?;
        rig.expect(2, 2)?;
        let key = rig.target.mr.region.stag();
        assert_eq!(rig.rig.qp.shared.invalidate_local(key), Ok(()));
        rig.fpdus.put(&[])?;
        rig.parts(2..PARTS)?;
        assert_eq!(rig.round()?.fpdus, 1);
        assert_eq!(rig.rig.take_terminate(), Ok(STAG));
        rig.holds(&[0, 1])
    }

    /// What another CPU sees that uses a region when that is invalidated.
    struct Seen {
        inside: Atomic<bool>,
        /// Reads were outstanding.
        reads: Atomic<bool>,
    }

    /// A request with a fence that began before would find the region valid.
    #[test]
    fn read_stays_outstanding_until_its_sink_is_invalidated() -> Result {
        let mut rig = RestRig::new(MessageKind::Write, &PARAMS)?;
        rig.kind = MessageKind::Response;
        rig.post_read(true)?;
        let queue = OwnedQueue::for_tests()?;
        let seen = Seen {
            inside: Atomic::new(false),
            reads: Atomic::new(false),
        };
        let seen = Arc::new(seen, GFP_KERNEL)?;
        let (there, qp) = (seen.clone(), rig.rig.qp.clone());
        let region = rig.target.mr.region.clone();
        queue.try_spawn(move || {
            let inside = region.try_access();
            there.inside.store(true, Relaxed);
            let begin = Instant::<Monotonic>::now();
            // No one gets in once the invalidation waits for this guard.
            while region.try_access().is_some() && begin.elapsed() < LONG {}
            there.reads.store(!qp.shared.sq.no_reads(), Relaxed);
            drop(inside);
        })?;
        eventually(|| seen.inside.load(Relaxed))?;
        rig.parts(0..PARTS)?;
        rig.expect(PARTS, PARTS)?;
        queue.flush();
        assert!(seen.reads.load(Relaxed));
        assert_eq!(rig.completed(), Ok((1, SUCCESS, WHOLE as u32)));
        assert!(!rig.target.is_valid(&rig.rig.bench.pd) && rig.rig.qp.shared.sq.no_reads());
        Ok(())
    }

    /// A request with a fence could begin before the fault ends the stream.
    #[test]
    fn read_with_refused_sink_stays_outstanding() -> Result {
        let rig = RestRig::new(MessageKind::Response, &PARAMS)?;
        let qp = &rig.rig.qp;
        let status = WcStatus::LocalProtection;
        rig.rig.conn.connection.socket().with_inbound(|inbound| {
            BhOff::run(|off| {
                let mut round = RxRound::new(&qp.shared, inbound, off);
                if let Some(stream) = &mut off.lock(&qp.rx).stream {
                    stream.begin(&mut round).to.fail_request(status);
                }
            });
        });
        let done = rig.completed();
        assert!(done.is_ok_and(|(id, done, _)| (id, done) == (1, Some(status))));
        assert!(!qp.shared.sq.no_reads());
        Ok(())
    }

    #[test]
    fn send_to_several_elements_leaves_gaps_untouched() -> Result {
        let mut rig = RestRig::new(MessageKind::Write, &PARAMS)?;
        rig.kind = MessageKind::Send;
        rig.post_receive(1, &[(0, 2 * PART), (3 * PART, 3 * PART)])?;
        rig.parts(0..PARTS)?;
        rig.expect(PARTS, PARTS)?;
        assert_eq!(rig.completed(), Ok((1, SUCCESS, WHOLE as u32)));
        let mut want = [0; 2 * LEN];
        for (n, at) in [0, 1, 3, 4, 5].into_iter().enumerate() {
            want[at * PART..][..PART].fill(n as u8 + 1);
        }
        assert_eq!(rig.target.octets(), Some(want));
        Ok(())
    }

    /// A peer may send FPDUs as short as it likes.
    #[test]
    fn short_parts_use_up_the_receive_budget() -> Result {
        let mut rig = RestRig::new(MessageKind::Write, &PARAMS)?;
        for _ in 0..BUDGET_FPDUS + 1000 {
            rig.part(0)?;
        }
        let counts = rig.round()?;
        assert!(counts.fpdus < BUDGET_FPDUS + 100);
        assert_eq!(rig.rig.bench.count(c"rx_budget_ends"), 1);
        Ok(())
    }
}
