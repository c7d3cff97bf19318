// SPDX-License-Identifier: GPL-2.0

//! The receiver of a stream: what it asks of its queue pair for each FPDU, and what it leaves to be
//! done, whatever the answers are.

use iwarp::{
    actions::{
        After,
        Set, //
    },
    atomic::{
        AtomicOperation,
        AtomicRequest,
        AtomicResponse, //
    },
    ddp::Msn,
    fault::Fault,
    features::Features,
    flush::{
        FlushLevel,
        FlushPlacement,
        FlushRequest, //
    },
    lifecycle::Event,
    mpa::start::RtrKinds,
    rdmap::{
        Extensions,
        Immediate,
        Marked,
        ReadRequest,
        SendEvent,
        SendExtra,
        SendKind, //
    },
    readq::{
        ReadPlacement,
        ReadState, //
    },
    receiver::{
        PayloadSpan,
        QueueRoom,
        Queued,
        SendSegment,
        TaggedSegment,
        RECEIVE_HEADER_MAX, //
    },
    segment::Message,
    stag::{
        Stag,
        TaggedOffset, //
    },
    stream::{
        ArrivedFpdu,
        Delivery,
        FpduEnd,
        NotPlaced,
        NotTaken,
        ReceiveFailure,
        Received,
        ReceiverParams,
        Round,
        StreamReceiver,
        UnderWay, //
    },
    terminate::{
        Quoted,
        Terminate, //
    }, //
};
use iwarp_support::end::{
    transmit,
    write, //
};

use After::{
    AwaitReceive,
    FetchIn,
    NotifyCompletions,
    Transmit, //
};
use FpduEnd::{
    Done,
    Kept, //
};

/// A queue pair that answers as it is told, and notes what it is asked.
struct Recorder {
    calls: Vec<String>,
    /// What placing a payload leads to; `Ok` once all are used.
    placed: Vec<NotPlaced<u8>>,
    /// What taking a receive leads to; one is posted once all are used.
    taken: Vec<NotTaken<u8>>,
    has_receive: bool,
    may_wait: bool,
    too_long: bool,
    room: QueueRoom,
    /// What a check of the peer's rights leads to.
    refuses: Option<Fault>,
    /// Nobody will hear of a completion.
    lost: bool,
    /// The oldest Read of this end, and whether it has a sink.
    read: Option<(ReadState, bool)>,
    /// The value of the atomic operation that is answered.
    original: Option<u64>,
}

/// What follows from a completed request and from a transition.
const COMPLETED: After = After::TransmitLater;
const APPLIED: After = After::CheckIdle;
const FAULT: After = After::NotifyFatal;
const TERMINATED: After = After::NotifyAccessError;

/// Length of the buffer of each receive.
const BUFFER: u32 = 100;

impl Recorder {
    fn new() -> Self {
        Self {
            calls: Vec::new(),
            placed: Vec::new(),
            taken: Vec::new(),
            has_receive: true,
            may_wait: false,
            too_long: false,
            room: QueueRoom::Free,
            refuses: None,
            lost: false,
            read: None,
            original: None,
        }
    }

    fn note(&mut self, call: impl Into<String>) {
        self.calls.push(call.into());
    }

    fn place(&mut self, call: String) -> Result<(), NotPlaced<u8>> {
        self.note(call);
        self.placed.pop().map_or(Ok(()), Err)
    }

    fn check(&self) -> Result<(), Fault> {
        self.refuses.map_or(Ok(()), Err)
    }
}

impl Delivery for Recorder {
    type Sink = char;
    type Status = u8;

    fn place_write(&mut self, segment: &TaggedSegment) -> Result<(), NotPlaced<Fault>> {
        let (to, len) = (segment.to.raw(), segment.payload.len);
        self.place(format!("write {len} at {to}"))
            .map_err(|why| match why {
                NotPlaced::Absent => NotPlaced::Absent,
                NotPlaced::Refused(_) => NotPlaced::Refused(Fault::TaggedBounds),
            })
    }

    fn place_atomic_write(&mut self, segment: &TaggedSegment) -> Result<(), NotPlaced<Fault>> {
        let (to, len) = (segment.to.raw(), segment.payload.len);
        self.place(format!("atomic write {len} at {to}"))
            .map_err(|why| match why {
                NotPlaced::Absent => NotPlaced::Absent,
                NotPlaced::Refused(_) => NotPlaced::Refused(Fault::TaggedBounds),
            })
    }

    fn place_send(&mut self, offset: u32, payload: PayloadSpan) -> Result<(), NotPlaced<u8>> {
        self.place(format!("send {} at {offset}", payload.len))
    }

    fn place_response(
        &mut self,
        sink: &char,
        offset: u32,
        payload: PayloadSpan,
    ) -> Result<(), NotPlaced<u8>> {
        self.place(format!("response {} at {offset} of {sink}", payload.len))
    }

    fn place_original(&mut self, sink: &char, original: u64) -> Result<(), NotPlaced<u8>> {
        self.place(format!("original {original} in {sink}"))
    }

    fn has_receive(&self) -> bool {
        self.has_receive
    }

    fn take_receive(&mut self, segment: Option<&SendSegment>) -> Result<u32, NotTaken<u8>> {
        let of = if segment.is_some() {
            "send"
        } else {
            "immediate"
        };
        self.note(format!("take for {of}"));
        self.taken.pop().map_or(Ok(BUFFER), Err)
    }

    fn complete_receive(&mut self, received: &Received) -> Result<(), Fault> {
        self.note(match received {
            Received::Send(kind, len) => format!("received {len} of {:?}", kind.extra),
            Received::Immediate(immediate, written) => {
                format!("received {} after {written}", immediate.data[0])
            }
        });
        if self.lost {
            return Err(Fault::Local);
        }
        Ok(())
    }

    fn fail_receive(&mut self, why: ReceiveFailure<u8>) {
        self.note(format!("failed {why:?}"));
    }

    fn invalidate(&mut self, stag: Stag) -> Result<(), Fault> {
        self.note(format!("invalidate {}", stag.raw()));
        self.check()
    }

    fn may_wait_for_receive(&self) -> bool {
        self.may_wait
    }

    fn begin_receive_wait(&mut self) {
        self.note("wait");
    }

    fn has_waited_too_long(&mut self) -> bool {
        self.too_long
    }

    fn end_receive_wait(&mut self) {
        self.note("wait no more");
    }

    fn request_room(&self) -> QueueRoom {
        self.room
    }

    fn queue_read(&mut self, request: ReadRequest, quoted: Option<Quoted>) -> Result<(), Fault> {
        self.note(format!("read {} {}", request.len, quoted.is_some()));
        self.check()
    }

    fn queue_flush(
        &mut self,
        request: &FlushRequest,
        answer: ReadRequest,
    ) -> Result<(), NotPlaced<Fault>> {
        let (len, kind) = (request.len, answer.sink_stag.raw());
        assert_eq!(answer.len, 0);
        self.place(format!("flush {len} answered as {kind}"))
            .map_err(|why| match why {
                NotPlaced::Absent => NotPlaced::Absent,
                NotPlaced::Refused(_) => NotPlaced::Refused(Fault::SourceNoRight),
            })
    }

    fn queue_atomic(
        &mut self,
        request: AtomicRequest,
        quoted: Option<Quoted>,
    ) -> Result<(), Fault> {
        self.note(format!(
            "atomic {} {}",
            request.identifier,
            quoted.is_some()
        ));
        self.check()
    }

    fn read_response(
        &mut self,
        segment: &TaggedSegment,
    ) -> Result<(ReadPlacement, Option<char>), Fault> {
        let (read, has_sink) = self.read.as_mut().ok_or(Fault::ResponseUnsolicited)?;
        Ok((read.accept(segment)?, has_sink.then_some('r')))
    }

    fn atomic_response(&mut self, response: Queued<AtomicResponse>) -> Result<(u64, char), Fault> {
        let response = response.admit(QueueRoom::Free)?;
        let original = self.original.ok_or(Fault::AtomicUnsolicited)?;
        Ok((original + response.original, 'a'))
    }

    fn complete_request(&mut self) -> Set<After> {
        self.note("answered");
        Set::NONE.with(COMPLETED)
    }

    fn fail_request(&mut self, status: u8) {
        self.note(format!("answer refused {status}"));
    }

    fn apply(&mut self, event: Event) -> Set<After> {
        self.note(format!("{event:?}"));
        Set::NONE.with(APPLIED)
    }

    fn fault(&mut self, fault: Fault, quoted: Option<&Quoted>) -> Set<After> {
        self.note(format!("{fault:?} {}", quoted.is_some()));
        Set::NONE.with(FAULT)
    }

    fn terminated(&mut self, terminate: &Terminate) -> Set<After> {
        self.note(format!(
            "terminated {:?}",
            terminate.code == Fault::Local.code()
        ));
        Set::NONE.with(TERMINATED)
    }
}

/// A receiver and its queue pair.
struct Rig {
    receiver: StreamReceiver<char>,
    host: Recorder,
    round: Round,
    /// The ULPDU of the last FPDU.
    ulpdu: Vec<u8>,
    framing: Result<(), Fault>,
}

const PARAMS: ReceiverParams = ReceiverParams {
    extensions: Extensions::Rfc7306,
    takes_immediate: true,
    awaits: None,
    common: None,
    expect_rtr: RtrKinds::NONE,
};

impl Rig {
    /// A stream that begins.
    fn new(params: &ReceiverParams) -> Self {
        Self {
            receiver: StreamReceiver::new(params),
            host: Recorder::new(),
            round: Round::NEW,
            ulpdu: Vec::new(),
            framing: Ok(()),
        }
    }

    /// A stream that has begun.
    fn begun() -> Self {
        let mut rig = Self::new(&PARAMS);
        rig.feed(&[0; 8], Done);
        rig.asked(&["FirstFpdu"], &[APPLIED]);
        rig
    }

    /// Passes an FPDU, and checks what becomes of it.
    fn feed(&mut self, fpdu: &[u8], end: FpduEnd) {
        let len = u16::from_be_bytes([fpdu[0], fpdu[1]]);
        self.ulpdu = fpdu[2..][..len.into()].to_vec();
        let before = self.round.accepted;
        let became = self.pass(|receiver, host, round, fpdu| {
            assert!(receiver.is_going());
            receiver.handle_fpdu(host, round, fpdu)
        });
        assert_eq!(became, end);
        let is_accepted = end == Done && !(self.receiver.is_stopped() && self.has_faulted());
        assert_eq!(self.round.accepted - before, u64::from(is_accepted));
    }

    fn has_faulted(&self) -> bool {
        self.round.after.contains(FAULT)
    }

    fn pass(
        &mut self,
        f: impl FnOnce(
            &mut StreamReceiver<char>,
            &mut Recorder,
            &mut Round,
            &ArrivedFpdu<'_>,
        ) -> FpduEnd,
    ) -> FpduEnd {
        let fpdu = ArrivedFpdu {
            header: &self.ulpdu[..self.ulpdu.len().min(RECEIVE_HEADER_MAX)],
            ulpdu_len: u16::try_from(self.ulpdu.len()).unwrap(),
            framing: self.framing,
        };
        f(&mut self.receiver, &mut self.host, &mut self.round, &fpdu)
    }

    /// Goes on with the last FPDU, whose memory is fetched.
    fn resume(&mut self, end: FpduEnd) {
        assert!(self.receiver.awaits_memory());
        let became = self.pass(StreamReceiver::resume);
        assert_eq!(became, end);
    }

    /// Tries again to take a receive for the last FPDU.
    fn retry(&mut self, end: FpduEnd) {
        assert!(self.receiver.awaits_receive());
        let became = self.pass(StreamReceiver::retry_receive);
        assert_eq!(became, end);
    }

    /// Checks what was asked, and what is left to be done, since the last time.
    fn asked(&mut self, calls: &[&str], after: &[After]) {
        assert_eq!(std::mem::take(&mut self.host.calls), calls);
        let mut want = Set::NONE;
        after.iter().for_each(|action| want.insert(*action));
        assert_eq!(std::mem::take(&mut self.round.after), want);
    }

    /// Checks that the stream has ended with this fault.
    fn faulted(&mut self, calls: &[&str]) {
        assert!(self.receiver.is_stopped() && self.receiver.is_between_messages());
        self.asked(calls, &[FAULT, NotifyCompletions]);
    }
}

/// Octets of payload in the longest FPDU of a Write and of a Read Response.
const TAGGED: usize = 128 - 14;

/// A Send of one segment.
fn send(msn: u32, len: usize) -> Vec<u8> {
    send_of(SendExtra::None, msn, len).remove(0)
}

fn send_of(extra: SendExtra, msn: u32, len: usize) -> Vec<Vec<u8>> {
    let kind = SendKind {
        extra,
        ..SendKind::default()
    };
    let msn = Msn::new(msn);
    transmit(Message::Send { kind, msn }, &vec![7; len], || 128)
}

fn write_of(len: usize) -> Vec<Vec<u8>> {
    transmit(write(5, 1000), &vec![7; len], || 128)
}

fn immediate(msn: u32) -> Vec<u8> {
    let immediate = Immediate {
        data: [3; 8],
        solicited: SendEvent::Silent,
    };
    let msn = Msn::new(msn);
    transmit(Message::Immediate { immediate, msn }, &[], || 128).remove(0)
}

fn read_request(msn: u32) -> Vec<u8> {
    let msn = Msn::new(msn);
    transmit(
        Message::ReadRequest {
            request: read(),
            msn,
        },
        &[],
        || 128,
    )
    .remove(0)
}

fn read() -> ReadRequest {
    ReadRequest {
        sink_stag: Stag::new(9),
        sink_to: TaggedOffset::new(0),
        len: 200,
        source_stag: Stag::new(8),
        source_to: TaggedOffset::new(0),
    }
}

fn atomic_write(len: usize) -> Vec<u8> {
    let message = Message::AtomicWrite {
        stag: Stag::new(5),
        to: TaggedOffset::new(1000),
    };
    transmit(message, &vec![7; len], || 128).remove(0)
}

const FLUSH: FlushRequest = FlushRequest {
    placement: FlushPlacement::GLOBAL,
    level: FlushLevel::Region,
    stag: Stag::new(8),
    to: TaggedOffset::new(0),
    len: 200,
};

fn flush(msn: u32) -> Vec<u8> {
    let msn = Msn::new(msn);
    let request = FLUSH;
    transmit(Message::Flush { request, msn }, &[], || 128).remove(0)
}

/// A stream that has begun, whose ends take marked messages.
fn marked() -> Rig {
    let common = Features {
        ulpdu_max: 0,
        marked: Marked::ALL,
    };
    let mut rig = Rig::new(&ReceiverParams {
        common: Some(common),
        ..PARAMS
    });
    rig.feed(&[0; 8], Done);
    rig.asked(&["FirstFpdu"], &[APPLIED]);
    rig
}

fn atomic_request(msn: u32) -> Vec<u8> {
    let request = AtomicRequest {
        identifier: 6,
        stag: Stag::new(8),
        to: TaggedOffset::new(0),
        operation: AtomicOperation::FetchAdd { add: 1, mask: 0 },
    };
    let msn = Msn::new(msn);
    transmit(Message::AtomicRequest { request, msn }, &[], || 128).remove(0)
}

fn atomic_response(msn: u32) -> Vec<u8> {
    let response = AtomicResponse {
        identifier: 6,
        original: 40,
    };
    let msn = Msn::new(msn);
    transmit(Message::AtomicResponse { response, msn }, &[], || 128).remove(0)
}

/// The answer to the Read of [`read`].
fn response(len: usize) -> Vec<Vec<u8>> {
    let message = Message::ReadResponse {
        stag: Stag::new(9),
        to: TaggedOffset::new(0),
    };
    transmit(message, &vec![7; len], || 128)
}

fn terminate() -> Vec<u8> {
    let message = Message::Terminate(Terminate::for_fault(Fault::Local, None));
    transmit(message, &[], || 128).remove(0)
}

#[test]
fn write_is_placed_part_by_part() {
    let mut rig = Rig::begun();
    let parts = write_of(TAGGED + 6);
    rig.feed(&parts[0], Done);
    assert!(!rig.receiver.is_between_messages());
    assert_eq!(rig.receiver.under_way(), Some(UnderWay::Write));
    rig.feed(&parts[1], Done);
    rig.asked(&["write 114 at 1000", "write 6 at 1114"], &[]);
    assert!(rig.receiver.is_between_messages());
    assert_eq!(rig.receiver.under_way(), None);
    assert!(rig.round.has_unprompted());
}

#[test]
fn write_of_no_octets_is_not_placed() {
    let mut rig = Rig::begun();
    rig.feed(&write_of(0)[0], Done);
    rig.asked(&[], &[]);
}

#[test]
fn first_fpdu_raises_one_event() {
    for fpdu in [
        vec![0; 8],
        write_of(3).remove(0),
        send(1, 3),
        read_request(1),
        terminate(),
    ] {
        let mut rig = Rig::new(&PARAMS);
        assert!(rig.receiver.is_untouched());
        rig.feed(&fpdu, Done);
        assert!(!rig.receiver.is_untouched());
        assert_eq!(rig.host.calls.last().unwrap(), "FirstFpdu");
        assert!(rig.round.after.contains(APPLIED));
        if !rig.receiver.is_stopped() {
            rig.feed(&[0; 8], Done);
            let events = rig.host.calls.iter().filter(|call| *call == "FirstFpdu");
            assert_eq!(events.count(), 1);
        }
    }
}

#[test]
fn first_fpdu_with_a_fault_is_no_event() {
    let mut rig = Rig::new(&PARAMS);
    rig.framing = Err(Fault::Crc);
    rig.feed(&send(1, 3), Done);
    assert!(rig.receiver.is_untouched());
    // A damaged header is quoted only if the code says so, which is the Terminate's to decide.
    rig.faulted(&["Crc true"]);
}

#[test]
fn write_waits_for_its_memory() {
    for answers in [vec![], vec![NotPlaced::Absent]] {
        let mut rig = Rig::begun();
        rig.host.placed = [answers.clone(), vec![NotPlaced::Absent]].concat();
        rig.feed(&write_of(5)[0], Kept);
        rig.asked(&["write 5 at 1000"], &[FetchIn]);
        assert!(!rig.receiver.is_going() && rig.receiver.under_way().is_none());
        for _ in answers {
            rig.resume(Kept);
            rig.asked(&["write 5 at 1000"], &[FetchIn]);
        }
        rig.resume(Done);
        rig.asked(&["write 5 at 1000"], &[]);
        assert!(rig.receiver.is_going());
        assert_eq!(rig.round.accepted, 2);
        // It counts once for the Immediate Data behind it.
        rig.feed(&immediate(1), Done);
        rig.asked(
            &["take for immediate", "received 3 after 5"],
            &[NotifyCompletions],
        );
    }
}

#[test]
fn write_that_is_refused_ends_the_stream() {
    let mut rig = Rig::begun();
    rig.host.placed = vec![NotPlaced::Refused(1)];
    rig.feed(&write_of(5)[0], Done);
    rig.faulted(&["write 5 at 1000", "TaggedBounds true"]);
    let mut rig = Rig::begun();
    rig.host.placed = vec![NotPlaced::Refused(1), NotPlaced::Absent];
    rig.feed(&write_of(5)[0], Kept);
    rig.asked(&["write 5 at 1000"], &[FetchIn]);
    rig.resume(Done);
    rig.faulted(&["write 5 at 1000", "TaggedBounds true"]);
}

#[test]
fn send_takes_a_receive_and_completes_it() {
    let mut rig = Rig::begun();
    let parts = send_of(SendExtra::None, 1, 0);
    rig.feed(&parts[0], Done);
    rig.asked(
        &["take for send", "received 0 of None"],
        &[NotifyCompletions],
    );
    rig.feed(&send(2, 60), Done);
    rig.asked(
        &["take for send", "send 60 at 0", "received 60 of None"],
        &[NotifyCompletions],
    );
    assert!(rig.receiver.is_between_messages() && !rig.receiver.fills_receive());
}

/// Returns a Send of two parts that fit into a receive.
fn halves(extra: SendExtra) -> [Vec<u8>; 2] {
    let mut first = send_of(extra, 1, 40).remove(0);
    let mut second = send_of(extra, 1, 30).remove(0);
    // Not the last one; behind the first one.
    first[2] &= !0x40;
    second[16..20].copy_from_slice(&40_u32.to_be_bytes());
    [first, second]
}

#[test]
fn send_of_several_parts_fills_one_receive() {
    let mut rig = Rig::begun();
    let [first, second] = halves(SendExtra::None);
    rig.feed(&first, Done);
    rig.asked(&["take for send", "send 40 at 0"], &[]);
    assert!(rig.receiver.fills_receive());
    assert_eq!(rig.receiver.under_way(), Some(UnderWay::Send));
    rig.feed(&second, Done);
    rig.asked(
        &["send 30 at 40", "received 70 of None"],
        &[NotifyCompletions],
    );
    assert!(!rig.receiver.fills_receive());
}

#[test]
fn send_invalidates_before_it_completes() {
    let extra = SendExtra::Invalidate(Stag::new(77));
    let mut rig = Rig::begun();
    let [first, second] = halves(extra);
    rig.feed(&first, Done);
    rig.asked(&["take for send", "send 40 at 0"], &[]);
    rig.feed(&second, Done);
    rig.asked(
        &[
            "send 30 at 40",
            "invalidate 77",
            "received 70 of Invalidate(Stag(77))",
        ],
        &[NotifyCompletions],
    );
    let mut rig = Rig::begun();
    rig.host.refuses = Some(Fault::InvalidateUnknown);
    rig.feed(&send_of(extra, 1, 0)[0], Done);
    rig.faulted(&[
        "take for send",
        "invalidate 77",
        "failed Invalidation",
        "InvalidateUnknown true",
    ]);
    assert!(!rig.receiver.fills_receive());
}

#[test]
fn send_that_is_too_long_fails_its_receive() {
    let mut rig = Rig::begun();
    rig.feed(&send(1, 101), Done);
    rig.faulted(&["take for send", "failed Length", "MessageTooLong true"]);
    assert!(!rig.receiver.fills_receive());
}

#[test]
fn send_waits_for_its_memory() {
    let extra = SendExtra::Invalidate(Stag::new(77));
    let mut rig = Rig::begun();
    rig.host.placed = vec![NotPlaced::Absent, NotPlaced::Absent];
    rig.feed(&send_of(extra, 1, 30)[0], Kept);
    rig.asked(&["take for send", "send 30 at 0"], &[FetchIn]);
    assert!(rig.receiver.fills_receive());
    rig.resume(Kept);
    rig.asked(&["send 30 at 0"], &[FetchIn]);
    rig.resume(Done);
    rig.asked(
        &[
            "send 30 at 0",
            "invalidate 77",
            "received 30 of Invalidate(Stag(77))",
        ],
        &[NotifyCompletions],
    );
    rig.feed(&send(2, 1), Done);
    rig.asked(
        &["take for send", "send 1 at 0", "received 1 of None"],
        &[NotifyCompletions],
    );
}

#[test]
fn send_whose_buffer_is_refused_fails_its_receive() {
    for resumed in [false, true] {
        let mut rig = Rig::begun();
        rig.host.placed = vec![NotPlaced::Refused(4)];
        if resumed {
            rig.host.placed.push(NotPlaced::Absent);
            rig.feed(&send(1, 30), Kept);
            rig.asked(&["take for send", "send 30 at 0"], &[FetchIn]);
            rig.resume(Done);
            rig.faulted(&["send 30 at 0", "failed Buffer(4)", "LocalPlacement true"]);
        } else {
            rig.feed(&send(1, 30), Done);
            rig.faulted(&[
                "take for send",
                "send 30 at 0",
                "failed Buffer(4)",
                "LocalPlacement true",
            ]);
        }
        assert!(!rig.receiver.fills_receive());
    }
}

#[test]
fn send_without_a_usable_receive_ends_the_stream() {
    let mut rig = Rig::begun();
    rig.host.taken = vec![NotTaken::Unusable(4)];
    rig.feed(&send(1, 30), Done);
    rig.faulted(&["take for send", "failed Buffer(4)", "LocalPlacement true"]);
    let mut rig = Rig::begun();
    rig.host.taken = vec![NotTaken::Empty];
    rig.feed(&send(1, 30), Done);
    rig.faulted(&["take for send", "NoBuffer true"]);
}

#[test]
fn completion_without_cq_room_ends_the_stream() {
    let mut rig = Rig::begun();
    rig.host.lost = true;
    rig.feed(&send(1, 0), Done);
    rig.faulted(&["take for send", "received 0 of None", "Local true"]);
    let mut rig = Rig::begun();
    rig.host.lost = true;
    rig.feed(&immediate(1), Done);
    rig.faulted(&["take for immediate", "received 3 after 0", "Local true"]);
}

/// A first message that waits for its receive.
fn waiting(fpdu: &[u8], first: &[&str]) -> Rig {
    let mut rig = Rig::new(&PARAMS);
    rig.host.may_wait = true;
    rig.host.taken = vec![NotTaken::Empty];
    rig.host.has_receive = false;
    rig.feed(fpdu, Kept);
    // It is received and validated (MPA-9).
    assert!(rig.receiver.awaits_receive() && !rig.receiver.is_untouched());
    assert_eq!(rig.round.accepted, 0);
    rig.asked(
        &[first, &["FirstFpdu", "wait"]].concat(),
        &[AwaitReceive, APPLIED],
    );
    rig
}

#[test]
fn send_waits_for_its_receive() {
    let mut rig = waiting(&send(1, 30), &["take for send"]);
    rig.host.taken = vec![NotTaken::Empty];
    rig.retry(Kept);
    rig.asked(&["take for send"], &[]);
    rig.retry(Done);
    rig.asked(
        &[
            "take for send",
            "send 30 at 0",
            "received 30 of None",
            "wait no more",
        ],
        &[NotifyCompletions],
    );
    assert!(rig.receiver.is_going());
    assert_eq!(rig.round.accepted, 1);
    rig.feed(&send(2, 0), Done);
    rig.asked(
        &["take for send", "received 0 of None"],
        &[NotifyCompletions],
    );
}

#[test]
fn first_part_of_a_send_waits_for_its_receive() {
    let [first, second] = halves(SendExtra::None);
    let mut rig = waiting(&first, &["take for send"]);
    rig.retry(Done);
    rig.asked(&["take for send", "send 40 at 0", "wait no more"], &[]);
    rig.feed(&second, Done);
    rig.asked(
        &["send 30 at 40", "received 70 of None"],
        &[NotifyCompletions],
    );
}

#[test]
fn immediate_data_waits_for_its_receive() {
    let mut rig = waiting(&immediate(1), &[]);
    rig.retry(Kept);
    rig.asked(&[], &[]);
    // Another stream was quicker.
    rig.host.has_receive = true;
    rig.host.taken = vec![NotTaken::Empty];
    rig.retry(Kept);
    rig.asked(&["take for immediate"], &[]);
    rig.retry(Done);
    rig.asked(
        &["take for immediate", "received 3 after 0", "wait no more"],
        &[NotifyCompletions],
    );
    assert!(rig.receiver.is_going());
}

#[test]
fn wait_that_is_too_long_ends_the_stream() {
    for (fpdu, asked) in [(send(1, 30), vec!["take for send"]), (immediate(1), vec![])] {
        let mut rig = waiting(&fpdu, &asked);
        rig.host.too_long = true;
        rig.host.taken = vec![NotTaken::Empty];
        rig.retry(Done);
        rig.faulted(&[asked, vec!["wait no more", "NoBuffer true"]].concat());
    }
}

#[test]
fn message_that_has_its_receive_may_wait_for_memory() {
    let mut rig = waiting(&send(1, 30), &["take for send"]);
    rig.host.placed = vec![NotPlaced::Absent];
    rig.retry(Kept);
    rig.asked(
        &["take for send", "send 30 at 0", "wait no more"],
        &[FetchIn],
    );
    assert!(rig.receiver.awaits_memory() && !rig.receiver.awaits_receive());
    rig.resume(Done);
    rig.asked(
        &["send 30 at 0", "received 30 of None"],
        &[NotifyCompletions],
    );
}

#[test]
fn receive_that_turns_out_unusable_ends_the_wait() {
    let mut rig = waiting(&send(1, 30), &["take for send"]);
    rig.host.taken = vec![NotTaken::Unusable(4)];
    rig.retry(Done);
    rig.faulted(&[
        "take for send",
        "failed Buffer(4)",
        "wait no more",
        "LocalPlacement true",
    ]);
}

#[test]
fn waiting_fpdu_stops_later_ones() {
    let mut rig = waiting(&send(1, 30), &["take for send"]);
    assert_eq!(rig.pass(StreamReceiver::resume), Kept);
    rig.asked(&[], &[]);
    let mut rig = Rig::begun();
    rig.host.placed = vec![NotPlaced::Absent];
    rig.feed(&write_of(5)[0], Kept);
    rig.asked(&["write 5 at 1000"], &[FetchIn]);
    assert_eq!(rig.pass(StreamReceiver::retry_receive), Kept);
    rig.asked(&[], &[]);
}

#[test]
fn malformed_immediate_data_does_not_wait() {
    let mut long = transmit(write(0, 0), &[0; 50], || 128).remove(0);
    let good = immediate(1);
    // One octet more than Immediate Data has.
    long[..good.len() - 4].copy_from_slice(&good[..good.len() - 4]);
    long[1] += 1;
    for may_wait in [false, true] {
        let mut rig = Rig::begun();
        (rig.host.may_wait, rig.host.has_receive) = (may_wait, false);
        rig.feed(&long, Done);
        rig.faulted(&["NoBuffer true"]);
    }
    let mut rig = Rig::begun();
    rig.feed(&long, Done);
    rig.faulted(&["ImmediateLength true"]);
}

#[test]
fn immediate_data_has_the_length_of_the_write_before_it() {
    let mut rig = Rig::begun();
    for part in write_of(TAGGED + 6).iter().chain(&write_of(TAGGED + 2)) {
        rig.feed(part, Done);
    }
    rig.feed(&read_request(1), Done);
    rig.feed(&immediate(1), Done);
    assert_eq!(rig.host.calls.last().unwrap(), "received 3 after 116");
    // Once.
    rig.feed(&immediate(2), Done);
    assert_eq!(rig.host.calls.last().unwrap(), "received 3 after 0");
    rig.feed(&write_of(4)[0], Done);
    rig.feed(&send(3, 0), Done);
    rig.feed(&immediate(4), Done);
    assert_eq!(rig.host.calls.last().unwrap(), "received 3 after 0");
}

#[test]
fn consumer_that_cannot_receive_immediate_data_has_none() {
    let mut rig = Rig::new(&ReceiverParams {
        takes_immediate: false,
        ..PARAMS
    });
    rig.feed(&immediate(1), Done);
    rig.faulted(&["OpcodeReserved true"]);
}

#[test]
fn requests_are_queued_and_answered() {
    for (fpdu, call) in [
        (read_request(1), "read 200 true"),
        (atomic_request(1), "atomic 6 true"),
    ] {
        let mut rig = Rig::begun();
        rig.feed(&fpdu, Done);
        rig.asked(&[call], &[Transmit]);
        assert!(rig.round.has_unprompted());
        let mut rig = Rig::begun();
        rig.host.refuses = Some(Fault::SourceBounds);
        rig.feed(&fpdu, Done);
        rig.faulted(&[call, "SourceBounds true"]);
        let mut rig = Rig::begun();
        rig.host.room = QueueRoom::Full;
        rig.feed(&fpdu, Done);
        rig.faulted(&["ReadDepth true"]);
    }
}

/// A stream with a Read outstanding.
fn reading(request: &ReadRequest) -> Rig {
    let mut rig = Rig::begun();
    rig.round = Round::NEW;
    rig.host.read = Some((ReadState::new(request), request.len != 0));
    rig
}

#[test]
fn response_is_placed_and_the_last_part_completes_the_read() {
    let mut rig = reading(&read());
    let parts = response(200);
    rig.feed(&parts[0], Done);
    rig.asked(&["response 114 at 0 of r"], &[]);
    assert_eq!(rig.receiver.under_way(), Some(UnderWay::Response));
    rig.feed(&parts[1], Done);
    rig.asked(
        &["response 86 at 114 of r", "answered", "ReadAnswered"],
        &[NotifyCompletions, COMPLETED, APPLIED],
    );
    assert!(!rig.round.has_unprompted());
    assert_eq!((rig.round.accepted, rig.round.answers), (2, 2));
}

#[test]
fn response_without_octets_completes_the_read() {
    let mut rig = reading(&ReadRequest { len: 0, ..read() });
    rig.feed(&response(0)[0], Done);
    rig.asked(
        &["answered", "ReadAnswered"],
        &[NotifyCompletions, COMPLETED, APPLIED],
    );
    // An empty part of another Read.
    let mut rig = reading(&read());
    let mut empty = response(0).remove(0);
    empty[2] &= !0x40;
    rig.feed(&empty, Done);
    rig.asked(&[], &[]);
    assert_eq!(rig.round.answers, 1);
}

#[test]
fn response_waits_for_its_memory() {
    let mut rig = reading(&read());
    rig.host.placed = vec![NotPlaced::Absent, NotPlaced::Absent];
    rig.feed(&response(200)[0], Kept);
    rig.asked(&["response 114 at 0 of r"], &[FetchIn]);
    rig.resume(Kept);
    rig.asked(&["response 114 at 0 of r"], &[FetchIn]);
    rig.resume(Done);
    rig.asked(&["response 114 at 0 of r"], &[]);
    rig.feed(&response(200)[1], Done);
    rig.asked(
        &["response 86 at 114 of r", "answered", "ReadAnswered"],
        &[NotifyCompletions, COMPLETED, APPLIED],
    );
    assert_eq!((rig.round.accepted, rig.round.answers), (2, 2));
}

#[test]
fn answer_whose_sink_is_refused_ends_the_stream() {
    let asking = || {
        let mut rig = reading(&read());
        rig.host.original = Some(2);
        rig
    };
    for (fpdu, call) in [
        (response(200).remove(0), "response 114 at 0 of r"),
        (atomic_response(1), "original 42 in a"),
    ] {
        let mut rig = asking();
        rig.host.placed = vec![NotPlaced::Refused(3)];
        rig.feed(&fpdu, Done);
        rig.faulted(&[call, "answer refused 3", "LocalPlacement true"]);
        assert_eq!(rig.round.answers, 0);
        let mut rig = asking();
        rig.host.placed = vec![NotPlaced::Refused(3), NotPlaced::Absent];
        rig.feed(&fpdu, Kept);
        rig.asked(&[call], &[FetchIn]);
        rig.resume(Done);
        rig.faulted(&[call, "answer refused 3", "LocalPlacement true"]);
    }
}

#[test]
fn atomic_response_completes_the_operation() {
    let mut rig = Rig::begun();
    rig.host.original = Some(2);
    rig.feed(&atomic_response(1), Done);
    let done = ["answered", "ReadAnswered"];
    let after = [NotifyCompletions, COMPLETED, APPLIED];
    rig.asked(&[&["original 42 in a"][..], &done].concat(), &after);
    rig.host.placed = vec![NotPlaced::Absent];
    rig.feed(&atomic_response(2), Kept);
    rig.asked(&["original 42 in a"], &[FetchIn]);
    rig.resume(Done);
    rig.asked(&[&["original 42 in a"][..], &done].concat(), &after);
    assert_eq!((rig.round.accepted, rig.round.answers), (3, 2));
}

#[test]
fn unexpected_responses_end_the_stream() {
    let mut rig = Rig::begun();
    rig.feed(&response(4)[0], Done);
    rig.faulted(&["ResponseUnsolicited true"]);
    let mut rig = Rig::begun();
    rig.feed(&atomic_response(1), Done);
    rig.faulted(&["AtomicUnsolicited true"]);
}

#[test]
fn terminate_ends_the_stream() {
    for params in [
        PARAMS,
        ReceiverParams {
            expect_rtr: RtrKinds::SEND,
            ..PARAMS
        },
    ] {
        let mut rig = Rig::new(&params);
        rig.feed(&terminate(), Done);
        rig.asked(&["terminated true", "FirstFpdu"], &[TERMINATED, APPLIED]);
        assert!(rig.receiver.is_stopped() && rig.receiver.is_between_messages());
    }
}

#[test]
fn ready_to_receive_message_is_not_seen_by_the_consumer() {
    let expecting = |expect_rtr| {
        Rig::new(&ReceiverParams {
            expect_rtr,
            ..PARAMS
        })
    };
    let mut rig = expecting(RtrKinds::SEND);
    rig.feed(&send(1, 0), Done);
    rig.asked(&["FirstFpdu"], &[APPLIED]);
    // The next one is.
    rig.feed(&send(2, 0), Done);
    rig.asked(
        &["take for send", "received 0 of None"],
        &[NotifyCompletions],
    );
    let mut rig = expecting(RtrKinds::WRITE);
    rig.feed(&write_of(0)[0], Done);
    rig.asked(&["FirstFpdu"], &[APPLIED]);
    let mut rig = expecting(RtrKinds::READ);
    let request = ReadRequest { len: 0, ..read() };
    let msn = Msn::FIRST;
    let fpdu = transmit(Message::ReadRequest { request, msn }, &[], || 128).remove(0);
    rig.feed(&fpdu, Done);
    rig.asked(&["read 0 true", "FirstFpdu"], &[Transmit, APPLIED]);
    let mut rig = expecting(RtrKinds::READ);
    rig.feed(&send(1, 0), Done);
    assert!(rig.receiver.is_stopped() && rig.receiver.is_untouched());
}

/// The first message of an Initiator that tells its features.
fn features(ulpdu_max: u16) -> Vec<u8> {
    transmit(
        Message::Features(Features {
            ulpdu_max,
            marked: Marked::NONE,
        }),
        &[],
        || 128,
    )
    .remove(0)
}

#[test]
fn marked_messages_are_taken_only_after_agreement() {
    let mut rig = marked();
    rig.feed(&atomic_write(8), Done);
    rig.asked(&["atomic write 8 at 1000"], &[]);
    rig.feed(&flush(1), Done);
    rig.asked(&["flush 200 answered as 257"], &[Transmit]);
    rig.feed(&read_request(2), Done);
    rig.asked(&["read 200 true"], &[Transmit]);
    // To whom has not agreed they are what they are without the mark.
    let mut rig = Rig::begun();
    rig.feed(&atomic_write(8), Done);
    rig.asked(&["write 8 at 1000"], &[]);
    rig.feed(&flush(1), Done);
    rig.asked(&["read 200 true"], &[Transmit]);
}

#[test]
fn features_of_the_first_message_agree_on_marked_messages() {
    for marked in [Marked::NONE, Marked::FLUSH, Marked::ATOMIC_WRITE] {
        let features = |marked| Features {
            ulpdu_max: 200,
            marked,
        };
        let mut rig = Rig::new(&ReceiverParams {
            awaits: Some(features(Marked::ALL)),
            ..PARAMS
        });
        let told = transmit(Message::Features(features(marked)), &[], || 128).remove(0);
        let fpdu = ArrivedFpdu {
            header: &told[2..told.len() - 4],
            ulpdu_len: u16::from_be_bytes([told[0], told[1]]),
            framing: Ok(()),
        };
        let common = rig.receiver.take_features(&mut rig.round, &fpdu);
        assert_eq!(common, Some(features(marked)));
        rig.feed(&atomic_write(8), Done);
        let call = match marked {
            Marked::ATOMIC_WRITE => "atomic write 8 at 1000",
            _ => "write 8 at 1000",
        };
        rig.asked(&[call, "FirstFpdu"], &[APPLIED]);
        rig.feed(&flush(1), Done);
        let call = match marked {
            Marked::FLUSH => "flush 200 answered as 257",
            _ => "read 200 true",
        };
        rig.asked(&[call], &[Transmit]);
    }
}

#[test]
fn atomic_write_has_eight_octets_in_one_segment() {
    for len in [0, 7, 9] {
        let mut rig = marked();
        rig.feed(&atomic_write(len), Done);
        rig.faulted(&["AtomicWriteLength true"]);
    }
    let mut part = atomic_write(8);
    part[2] &= !0x40;
    let mut rig = marked();
    rig.feed(&part, Done);
    rig.faulted(&["AtomicWriteLength true"]);
}

#[test]
fn atomic_write_waits_for_its_memory() {
    let mut rig = marked();
    rig.host.placed = vec![NotPlaced::Absent];
    rig.feed(&atomic_write(8), Kept);
    rig.asked(&["atomic write 8 at 1000"], &[FetchIn]);
    rig.resume(Done);
    rig.asked(&["atomic write 8 at 1000"], &[]);
    let mut rig = marked();
    rig.host.placed = vec![NotPlaced::Refused(4)];
    rig.feed(&atomic_write(8), Done);
    rig.faulted(&["atomic write 8 at 1000", "TaggedBounds true"]);
}

/// Immediate Data behind an Atomic Write does not tell its length.
#[test]
fn atomic_write_completes_preceding_writes() {
    let mut rig = marked();
    rig.feed(&write_of(5)[0], Done);
    rig.feed(&atomic_write(8), Done);
    rig.feed(&immediate(1), Done);
    rig.asked(
        &[
            "write 5 at 1000",
            "atomic write 8 at 1000",
            "take for immediate",
            "received 3 after 0",
        ],
        &[NotifyCompletions],
    );
}

#[test]
fn flush_uses_a_read_slot() {
    let mut rig = marked();
    rig.host.placed = vec![NotPlaced::Refused(1)];
    rig.feed(&flush(1), Done);
    rig.faulted(&["flush 200 answered as 257", "SourceNoRight true"]);
    let mut rig = marked();
    rig.host.room = QueueRoom::Full;
    rig.feed(&flush(1), Done);
    rig.faulted(&["ReadDepth true"]);
    let mut rig = marked();
    // What it asks for.
    let mut unknown = flush(1);
    unknown[2 + 18 + 3] = 4;
    rig.feed(&unknown, Done);
    rig.faulted(&["FlushKind true"]);
}

#[test]
fn flush_waits_until_memory_is_written_back() {
    const CALL: &[&str] = &["flush 200 answered as 257"];
    let mut rig = marked();
    rig.host.placed = vec![NotPlaced::Absent, NotPlaced::Absent];
    rig.feed(&flush(1), Kept);
    rig.asked(CALL, &[FetchIn]);
    assert!(!rig.receiver.is_going());
    rig.resume(Kept);
    rig.asked(CALL, &[FetchIn]);
    // It has its place among the Reads once.
    rig.resume(Done);
    rig.asked(CALL, &[Transmit]);
    assert!(rig.receiver.is_going());
    rig.feed(&flush(2), Done);
    rig.asked(CALL, &[Transmit]);
    let mut rig = marked();
    rig.host.placed = vec![NotPlaced::Refused(1), NotPlaced::Absent];
    rig.feed(&flush(1), Kept);
    rig.asked(CALL, &[FetchIn]);
    rig.resume(Done);
    rig.faulted(&[CALL[0], "SourceNoRight true"]);
}

#[test]
fn features_are_taken_once() {
    let mut rig = Rig::new(&ReceiverParams {
        awaits: Some(Features {
            ulpdu_max: 200,
            marked: Marked::NONE,
        }),
        common: None,
        ..PARAMS
    });
    assert!(rig.receiver.awaits_features());
    let fpdu = features(300);
    let take = |rig: &mut Rig, fpdu: &[u8], framing| {
        let len = u16::from_be_bytes([fpdu[0], fpdu[1]]);
        let fpdu = ArrivedFpdu {
            header: &fpdu[2..][..usize::from(len).min(RECEIVE_HEADER_MAX)],
            ulpdu_len: len,
            framing,
        };
        rig.receiver.take_features(&mut rig.round, &fpdu)
    };
    assert_eq!(
        take(&mut rig, &fpdu, Ok(())),
        Some(Features {
            ulpdu_max: 200,
            marked: Marked::NONE
        })
    );
    assert!(!rig.receiver.awaits_features() && rig.receiver.is_untouched());
    assert_eq!(rig.round.accepted, 1);
    assert_eq!(take(&mut rig, &fpdu, Ok(())), None);
    rig.asked(&[], &[]);
    for (fpdu, framing) in [(fpdu, Err(Fault::Crc)), (send(1, 4), Ok(()))] {
        let mut rig = Rig::new(&ReceiverParams {
            awaits: Some(Features {
                ulpdu_max: 200,
                marked: Marked::NONE,
            }),
            common: None,
            ..PARAMS
        });
        assert_eq!(take(&mut rig, &fpdu, framing), None);
        assert!(!rig.receiver.awaits_features());
        assert_eq!(rig.round.accepted, 0);
    }
}

/// The FPDUs of a message that may be received under an open access are those that handling them
/// would place, and nothing happens before they are accepted.
#[test]
fn peek_changes_nothing() {
    let mut rig = Rig::begun();
    let parts = write_of(3 * TAGGED);
    rig.feed(&parts[0], Done);
    rig.asked(&["write 114 at 1000"], &[]);
    let ulpdu = |fpdu: &[u8]| {
        let len = u16::from_be_bytes([fpdu[0], fpdu[1]]);
        (
            fpdu[2..][..usize::from(len).min(RECEIVE_HEADER_MAX)].to_vec(),
            len,
        )
    };
    let (header, len) = ulpdu(&parts[1]);
    for _ in 0..2 {
        let next = rig.receiver.peek_write(&header, len).unwrap();
        assert_eq!(next.segment.to.raw(), 1114);
    }
    let next = rig.receiver.peek_write(&header, len).unwrap();
    rig.receiver.accept_write(&mut rig.round, &next);
    let (last, last_len) = ulpdu(&parts[2]);
    let next = rig.receiver.peek_write(&last, last_len).unwrap();
    rig.receiver.accept_write(&mut rig.round, &next);
    assert!(rig.receiver.is_between_messages());
    rig.feed(&immediate(1), Done);
    rig.asked(
        &["take for immediate", "received 3 after 342"],
        &[NotifyCompletions],
    );
    assert_eq!(rig.round.accepted, 5);

    let mut rig = Rig::begun();
    let [first, second] = halves(SendExtra::None);
    rig.feed(&first, Done);
    let (header, len) = ulpdu(&second);
    // The last part completes the receive.
    assert!(rig.receiver.peek_send(&header, len).is_none());
    let mut middle = second.clone();
    middle[2] &= !0x40;
    let (header, len) = ulpdu(&middle);
    let next = rig.receiver.peek_send(&header, len).unwrap();
    assert_eq!((next.offset, next.payload.len), (40, 30));
    rig.receiver.accept_send(&mut rig.round, &next);
    let mut last = send_of(SendExtra::None, 1, 10).remove(0);
    last[16..20].copy_from_slice(&70_u32.to_be_bytes());
    rig.feed(&last, Done);
    assert_eq!(rig.host.calls.last().unwrap(), "received 80 of None");
    assert_eq!(rig.round.accepted, 4);

    let mut rig = reading(&ReadRequest { len: 400, ..read() });
    let parts = response(400);
    rig.feed(&parts[0], Done);
    let (state, _) = rig.host.read.unwrap();
    let (header, len) = ulpdu(&parts[1]);
    let next = rig.receiver.peek_response(state, &header, len).unwrap();
    assert_eq!((next.offset, next.payload.len), (114, 114));
    rig.receiver.accept_response(&mut rig.round);
    rig.host.read = Some((next.read, true));
    rig.feed(&parts[2], Done);
    let (state, _) = rig.host.read.unwrap();
    let (header, len) = ulpdu(&parts[3]);
    // The last part completes the Read.
    assert!(rig.receiver.peek_response(state, &header, len).is_none());
    rig.feed(&parts[3], Done);
    assert_eq!(rig.host.calls.last().unwrap(), "ReadAnswered");
    assert_eq!((rig.round.accepted, rig.round.answers), (4, 4));
}

/// What is no plain next part of the message is for the general way.
#[test]
fn peek_leaves_unusual_fpdus() {
    let mut rig = Rig::begun();
    rig.feed(&write_of(2 * TAGGED)[0], Done);
    let [first, _] = halves(SendExtra::None);
    let mut empty = write_of(0).remove(0);
    empty[2] &= !0x40;
    for fpdu in [&first, &empty, &response(300)[0], &vec![0; 8]] {
        let len = u16::from_be_bytes([fpdu[0], fpdu[1]]);
        assert!(rig
            .receiver
            .peek_write(&fpdu[2..][..len.into()], len)
            .is_none());
    }
    let mut rig = Rig::begun();
    rig.feed(&first, Done);
    let mut beyond = first.clone();
    beyond[16..20].copy_from_slice(&90_u32.to_be_bytes());
    let mut empty = send_of(SendExtra::None, 1, 0).remove(0);
    empty[2] &= !0x40;
    for fpdu in [&beyond, &empty, &write_of(2 * TAGGED)[0]] {
        let len = u16::from_be_bytes([fpdu[0], fpdu[1]]);
        let header = &fpdu[2..][..usize::from(len).min(RECEIVE_HEADER_MAX)];
        assert!(rig.receiver.peek_send(header, len).is_none());
    }
    let mut rig = reading(&read());
    rig.feed(&response(200)[0], Done);
    let (state, _) = rig.host.read.unwrap();
    let mut empty = response(0).remove(0);
    empty[2] &= !0x40;
    for fpdu in [&empty, &response(400)[1], &first] {
        let len = u16::from_be_bytes([fpdu[0], fpdu[1]]);
        let header = &fpdu[2..][..usize::from(len).min(RECEIVE_HEADER_MAX)];
        assert!(rig.receiver.peek_response(state, header, len).is_none());
    }
}
