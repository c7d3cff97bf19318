// SPDX-License-Identifier: GPL-2.0

//! Every short conversation with the receiver of a stream, whatever its queue pair answers: what
//! must hold in each state that it gets to.

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
        Outstanding,
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
        StreamReceiver, //
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

/// What a queue pair answers to all that it is asked for one FPDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// Yes.
    Good,
    /// Memory is absent.
    Absent,
    /// What is to be placed, queued, invalidated or completed is refused.
    Refused,
}

/// A queue pair that counts.
#[derive(Clone, Debug)]
struct Model {
    answer: Answer,
    may_wait: bool,
    /// Receives posted, taken, and completed with or without success.
    posted: u32,
    taken: u32,
    done: u32,
    /// A message waits for its receive.
    waits: bool,
    is_over: bool,
    /// How often the first FPDU and the end were told.
    first: u32,
    ends: u32,
    /// Requests of this end that wait, the oldest first.
    outstanding: Vec<Outstanding>,
    /// How many of them are completed.
    answered: u32,
    /// The peer's requests.
    requests: u32,
}

impl Model {
    fn place<E>(&self, why: E) -> Result<(), NotPlaced<E>> {
        match self.answer {
            Answer::Good => Ok(()),
            Answer::Absent => Err(NotPlaced::Absent),
            Answer::Refused => Err(NotPlaced::Refused(why)),
        }
    }

    fn check(&self, why: Fault) -> Result<(), Fault> {
        match self.answer {
            Answer::Good | Answer::Absent => Ok(()),
            Answer::Refused => Err(why),
        }
    }
}

impl Delivery for Model {
    type Sink = ();
    type Status = ();

    fn place_write(&mut self, _segment: &TaggedSegment) -> Result<(), NotPlaced<Fault>> {
        self.place(Fault::TaggedBounds)
    }

    fn place_atomic_write(&mut self, _segment: &TaggedSegment) -> Result<(), NotPlaced<Fault>> {
        self.place(Fault::AtomicUnaligned)
    }

    fn place_send(&mut self, _offset: u32, _payload: PayloadSpan) -> Result<(), NotPlaced<()>> {
        assert_eq!(self.taken, self.done + 1);
        self.place(())
    }

    fn place_response(
        &mut self,
        _sink: &(),
        _offset: u32,
        _payload: PayloadSpan,
    ) -> Result<(), NotPlaced<()>> {
        self.place(())
    }

    fn place_original(&mut self, _sink: &(), _original: u64) -> Result<(), NotPlaced<()>> {
        self.place(())
    }

    fn has_receive(&self) -> bool {
        self.posted != self.taken
    }

    fn take_receive(&mut self, _segment: Option<&SendSegment>) -> Result<u32, NotTaken<()>> {
        // One at a time.
        assert_eq!(self.taken, self.done);
        if !self.has_receive() {
            return Err(NotTaken::Empty);
        }
        self.taken += 1;
        Ok(100)
    }

    fn complete_receive(&mut self, _received: &Received) -> Result<(), Fault> {
        self.done += 1;
        assert_eq!(self.taken, self.done);
        self.check(Fault::Local)
    }

    fn fail_receive(&mut self, _why: ReceiveFailure<()>) {
        self.done += 1;
        assert_eq!(self.taken, self.done);
    }

    fn invalidate(&mut self, _stag: Stag) -> Result<(), Fault> {
        self.check(Fault::InvalidateUnknown)
    }

    fn may_wait_for_receive(&self) -> bool {
        self.may_wait
    }

    fn begin_receive_wait(&mut self) {
        assert!(!self.waits);
        self.waits = true;
    }

    fn has_waited_too_long(&mut self) -> bool {
        self.is_over
    }

    fn end_receive_wait(&mut self) {
        assert!(self.waits);
        self.waits = false;
    }

    fn request_room(&self) -> QueueRoom {
        if self.requests < 2 {
            QueueRoom::Free
        } else {
            QueueRoom::Full
        }
    }

    fn queue_read(&mut self, _request: ReadRequest, _quoted: Option<Quoted>) -> Result<(), Fault> {
        self.check(Fault::SourceBounds)?;
        self.requests += 1;
        assert!(self.requests <= 2);
        Ok(())
    }

    fn queue_flush(
        &mut self,
        _request: &FlushRequest,
        answer: ReadRequest,
    ) -> Result<(), NotPlaced<Fault>> {
        assert_eq!(answer.len, 0);
        self.place(Fault::SourceBounds)?;
        Ok(self.queue_read(answer, None)?)
    }

    fn queue_atomic(
        &mut self,
        _request: AtomicRequest,
        _quoted: Option<Quoted>,
    ) -> Result<(), Fault> {
        self.queue_read(ReadRequest::NOTHING, None)
    }

    fn read_response(
        &mut self,
        segment: &TaggedSegment,
    ) -> Result<(ReadPlacement, Option<()>), Fault> {
        let read = Outstanding::expect_read(self.outstanding.first_mut())?;
        let sink = (!read.is_empty()).then_some(());
        Ok((read.accept(segment)?, sink))
    }

    fn atomic_response(&mut self, response: Queued<AtomicResponse>) -> Result<(u64, ()), Fault> {
        let original = Outstanding::accept_atomic(self.outstanding.first(), response)?;
        Ok((original, ()))
    }

    fn complete_request(&mut self) -> Set<After> {
        self.outstanding.remove(0);
        self.answered += 1;
        Set::NONE
    }

    fn fail_request(&mut self, (): ()) {
        assert!(!self.outstanding.is_empty());
    }

    fn apply(&mut self, event: Event) -> Set<After> {
        match event {
            Event::FirstFpdu => self.first += 1,
            Event::ReadAnswered => {}
            _ => panic!("{event:?}"),
        }
        Set::NONE
    }

    fn fault(&mut self, _fault: Fault, _quoted: Option<&Quoted>) -> Set<After> {
        self.ends += 1;
        Set::NONE
    }

    fn terminated(&mut self, _terminate: &Terminate) -> Set<After> {
        self.ends += 1;
        Set::NONE
    }
}

/// What happens to the receiver.
#[derive(Clone, Debug)]
enum Input {
    /// An FPDU arrives.
    Fpdu(Vec<u8>, Answer),
    /// The memory that the last one waits for is fetched.
    Fetched(Answer),
    /// A receive is posted.
    Post(Answer),
    /// The last one has waited too long.
    TooLong,
}

#[derive(Clone, Debug)]
struct State {
    receiver: StreamReceiver<()>,
    model: Model,
    /// The last FPDU.
    ulpdu: Vec<u8>,
    /// The numbers of the next messages of the peer.
    send: Msn,
    read: Msn,
    atomic: Msn,
    accepted: u64,
}

impl State {
    fn new(may_wait: bool, takes_immediate: bool) -> Self {
        let read = |len| ReadRequest {
            sink_stag: Stag::new(9),
            len,
            ..ReadRequest::NOTHING
        };
        Self {
            receiver: StreamReceiver::new(&ReceiverParams {
                extensions: Extensions::Rfc7306,
                takes_immediate,
                awaits: None,
                common: Some(Features {
                    ulpdu_max: 0,
                    marked: Marked::ALL,
                }),
                expect_rtr: RtrKinds::NONE,
            }),
            model: Model {
                answer: Answer::Good,
                may_wait,
                posted: 1,
                taken: 0,
                done: 0,
                waits: false,
                is_over: false,
                first: 0,
                ends: 0,
                outstanding: vec![
                    Outstanding::Read(ReadState::new(&read(8))),
                    Outstanding::Atomic { identifier: 6 },
                    Outstanding::Read(ReadState::new(&read(0))),
                ],
                answered: 0,
                requests: 0,
            },
            ulpdu: Vec::new(),
            send: Msn::FIRST,
            read: Msn::FIRST,
            atomic: Msn::FIRST,
            accepted: 0,
        }
    }

    /// Returns the FPDUs that the peer may send: all kinds, right and wrong.
    fn fpdus(&self) -> Vec<Vec<u8>> {
        let one = |message, len: usize| transmit(message, &vec![7; len], || 128).remove(0);
        let more = |mut fpdu: Vec<u8>| {
            fpdu[2] &= !0x40;
            fpdu
        };
        let send = |extra, msn| Message::Send {
            kind: SendKind {
                extra,
                ..SendKind::default()
            },
            msn,
        };
        let next = send(SendExtra::None, self.send);
        let response = Message::ReadResponse {
            stag: Stag::new(9),
            to: TaggedOffset::new(0),
        };
        let request = AtomicRequest {
            identifier: 6,
            stag: Stag::new(8),
            to: TaggedOffset::new(0),
            operation: AtomicOperation::FetchAdd { add: 1, mask: 0 },
        };
        let flush = FlushRequest {
            placement: FlushPlacement::GLOBAL,
            level: FlushLevel::Range,
            stag: Stag::new(8),
            to: TaggedOffset::new(0),
            len: 8,
        };
        let answer = AtomicResponse {
            identifier: 6,
            original: 1,
        };
        let immediate = Immediate {
            data: [3; 8],
            solicited: SendEvent::Silent,
        };
        vec![
            vec![0; 8],
            one(write(5, 0), 4),
            more(one(write(5, 0), 4)),
            one(next, 4),
            more(one(next, 4)),
            one(next, 0),
            one(next, 101),
            one(send(SendExtra::Invalidate(Stag::new(7)), self.send), 4),
            one(send(SendExtra::None, self.send.next()), 4),
            one(
                Message::Immediate {
                    immediate,
                    msn: self.send,
                },
                0,
            ),
            one(
                Message::ReadRequest {
                    request: ReadRequest::NOTHING,
                    msn: self.read,
                },
                0,
            ),
            one(
                Message::AtomicRequest {
                    request,
                    msn: self.read,
                },
                0,
            ),
            one(
                Message::AtomicWrite {
                    stag: Stag::new(5),
                    to: TaggedOffset::new(0),
                },
                8,
            ),
            one(
                Message::Flush {
                    request: flush,
                    msn: self.read,
                },
                0,
            ),
            one(response, 8),
            more(one(response, 4)),
            one(response, 0),
            one(
                Message::AtomicResponse {
                    response: answer,
                    msn: self.atomic,
                },
                0,
            ),
            one(
                Message::Terminate(Terminate::for_fault(Fault::Local, None)),
                0,
            ),
        ]
    }

    fn inputs(&self) -> Vec<Input> {
        let answers = [Answer::Good, Answer::Absent, Answer::Refused];
        if self.receiver.awaits_memory() {
            answers.map(Input::Fetched).to_vec()
        } else if self.receiver.awaits_receive() {
            let posts = answers.map(Input::Post);
            posts.into_iter().chain([Input::TooLong]).collect()
        } else if self.receiver.is_going() {
            let fpdus = self.fpdus().into_iter();
            fpdus
                .flat_map(|fpdu| answers.map(|answer| Input::Fpdu(fpdu.clone(), answer)))
                .collect()
        } else {
            Vec::new()
        }
    }

    /// Returns the state after an input, which it checks.
    fn after(&self, input: &Input) -> Self {
        let mut next = self.clone();
        let mut round = Round::NEW;
        if let Input::Fpdu(fpdu, _) = input {
            let len = u16::from_be_bytes([fpdu[0], fpdu[1]]);
            next.ulpdu = fpdu[2..][..len.into()].to_vec();
        }
        let ulpdu = next.ulpdu.clone();
        let fpdu = ArrivedFpdu {
            header: &ulpdu[..ulpdu.len().min(RECEIVE_HEADER_MAX)],
            ulpdu_len: u16::try_from(ulpdu.len()).unwrap(),
            framing: Ok(()),
        };
        let (receiver, model) = (&mut next.receiver, &mut next.model);
        let end = match input {
            Input::Fpdu(_, answer) => {
                model.answer = *answer;
                receiver.handle_fpdu(model, &mut round, &fpdu)
            }
            Input::Fetched(answer) => {
                model.answer = *answer;
                receiver.resume(model, &mut round, &fpdu)
            }
            Input::Post(answer) => {
                model.answer = *answer;
                model.posted += 1;
                receiver.retry_receive(model, &mut round, &fpdu)
            }
            Input::TooLong => {
                model.is_over = true;
                receiver.retry_receive(model, &mut round, &fpdu)
            }
        };
        next.check(self, end, &round);
        next.count(end);
        next
    }

    fn check(&self, before: &Self, end: FpduEnd, round: &Round) {
        let Self {
            receiver, model, ..
        } = self;
        let states = [
            receiver.is_going(),
            receiver.awaits_memory(),
            receiver.awaits_receive(),
            receiver.is_stopped(),
        ];
        assert_eq!(states.iter().filter(|is_it| **is_it).count(), 1);
        // What waits is kept, and nothing else is.
        let waits = receiver.awaits_memory() || receiver.awaits_receive();
        assert_eq!(waits, end == FpduEnd::Kept);
        assert_eq!(model.waits, receiver.awaits_receive());
        // The end comes once, and then the stream may end anywhere.
        assert_eq!(model.ends, u32::from(receiver.is_stopped()));
        assert!(!receiver.is_stopped() || receiver.is_between_messages());
        // A receive that is taken is being filled, or completed. A stream that the peer ends inside
        // a Send leaves it to the flush.
        assert_eq!(
            model.taken - model.done,
            u32::from(receiver.fills_receive())
        );
        // What happened is told, and needs no second round.
        let after = round.after;
        let completed = model.done != before.model.done || model.answered != before.model.answered;
        assert!(!completed || after.contains(After::NotifyCompletions));
        let faulted = receiver.is_stopped() && round.accepted == 0;
        assert!(!after.contains(After::NotifyCompletions) || completed || faulted);
        assert_eq!(after.contains(After::FetchIn), receiver.awaits_memory());
        let begins_wait = receiver.awaits_receive() && !before.receiver.awaits_receive();
        assert_eq!(after.contains(After::AwaitReceive), begins_wait);
        let asked = model.requests != before.model.requests;
        assert_eq!(after.contains(After::Transmit), asked);
        // The first good FPDU is an event, before its message has its receive (MPA-9).
        let good = self.accepted + round.accepted != 0 || model.waits || before.model.waits;
        assert!(model.first <= 1 && (model.first == 1 || !good));
        assert_eq!(model.first == 0, receiver.is_untouched());
        assert!(round.accepted <= 1 && round.answers <= round.accepted);
        assert_eq!(
            receiver.under_way().is_some(),
            receiver.is_going() && !receiver.is_between_messages()
        );
    }

    /// Counts what is done with.
    fn count(&mut self, end: FpduEnd) {
        if end == FpduEnd::Kept || self.receiver.is_stopped() || self.ulpdu.is_empty() {
            return;
        }
        self.accepted += 1;
        let (control, opcode) = (self.ulpdu[0], self.ulpdu[1] & 0x0f);
        match opcode {
            3..=6 | 8 | 9 if control & 0x40 != 0 => self.send = self.send.next(),
            1 | 10 => self.read = self.read.next(),
            11 => self.atomic = self.atomic.next(),
            _ => {}
        }
    }
}

/// Goes through all conversations of up to `depth` inputs; returns how many states there were.
fn explore(state: &State, depth: u32) -> u64 {
    if depth == 0 {
        return 1;
    }
    let inputs = state.inputs();
    let below = inputs
        .iter()
        .map(|input| explore(&state.after(input), depth - 1));
    1 + below.sum::<u64>()
}

#[test]
fn short_conversations_keep_receiver_invariants() {
    for may_wait in [false, true] {
        let states = explore(&State::new(may_wait, true), 4);
        assert!(states > 100_000);
    }
    explore(&State::new(true, false), 3);
}

/// All three requests of this end are answered in some of them.
#[test]
fn receiver_models_reach_each_answer() {
    let mut state = State::new(false, true);
    // A Read Response, the Atomic Response, and one without octets.
    for nth in [14, 17, 16] {
        let fpdu = state.fpdus().remove(nth);
        state = state.after(&Input::Fpdu(fpdu, Answer::Good));
    }
    assert!(state.receiver.is_going());
    assert_eq!(
        (state.model.answered, state.model.outstanding.len()),
        (3, 0)
    );
}
