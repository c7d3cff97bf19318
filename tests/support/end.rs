// SPDX-License-Identifier: GPL-2.0

//! One end of a stream: a small driver around the core, with vectors for memory.
//!
//! It delivers what the core's receiver decides, as the driver does: each fault becomes one
//! Terminate, and later input is ignored. Its [`Delays`] have memory absent, and messages received
//! the short way; neither may be seen from outside.

use std::collections::{
    BTreeMap,
    VecDeque, //
};

use iwarp::{
    actions::{
        After,
        Set, //
    },
    atomic::{
        check_alignment,
        AtomicRequest,
        AtomicResponse,
        TARGET_LEN, //
    },
    crc::crc32c,
    fault::Fault,
    flush::FlushRequest,
    lifecycle::{
        Event,
        FirstFailure,
        Lifecycle,
        Notice,
        QpRequest, //
    },
    mpa::{
        crc_trailer,
        start::RtrKinds, //
    },
    rdmap::{
        Extensions,
        Immediate,
        ReadRequest,
        SendKind, //
    },
    readq::{
        Depth,
        Outstanding,
        ReadPlacement,
        ReadState, //
    },
    receiver::{
        PayloadSpan,
        QueueRoom,
        Queued,
        Receiver,
        SendSegment,
        TaggedSegment,
        RECEIVE_HEADER_MAX, //
    },
    segment::{
        Message,
        Segmenter, //
    },
    stag::{
        check_flush,
        check_invalidate,
        check_source,
        check_tagged,
        Access,
        Association,
        RegionView,
        RemoteInvalidation,
        Stag,
        TaggedOffset, //
    },
    stream::{
        ArrivedFpdu,
        Delivery,
        FpduEnd,
        Job,
        NotPlaced,
        NotTaken,
        ReceiveFailure,
        Received,
        ReceiverParams,
        Round,
        SenderParams,
        StreamReceiver,
        StreamSender,
        UnderWay, //
    },
    terminate::{
        Quoted,
        Terminate, //
    }, //
};

use crate::wire::Fpdu;

/// Registered memory.
#[derive(Clone, Debug)]
pub struct Region {
    /// What the core needs to know.
    pub view: RegionView,
    /// Whether the peer may invalidate it.
    pub invalidation: RemoteInvalidation,
    /// Its contents.
    pub memory: Vec<u8>,
}

/// A completion or event of the consumer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Completion {
    /// A Send arrived.
    Received {
        /// Its octets.
        octets: Vec<u8>,
        /// Its kind.
        kind: SendKind,
    },
    /// Immediate Data arrived.
    Immediate(Immediate),
    /// A Read completed; its octets are in the sink.
    Read,
    /// An atomic operation completed.
    Atomic {
        /// The original value of the target.
        original: u64,
    },
}

/// A pending answer to the peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Response {
    /// The octets of a Read.
    Read {
        /// The request.
        request: ReadRequest,
        /// The octets.
        octets: Vec<u8>,
    },
    /// The original value of an atomic operation.
    Atomic(AtomicResponse),
}

/// What delays an end, without any effect on what it does in the end. Each bit stands for one
/// occasion, one after the other; the last one is followed by the first.
#[derive(Clone, Copy, Debug, Default)]
pub struct Delays {
    /// The memory for a payload is absent at first.
    pub absent: u32,
    /// An FPDU inside a message is received under an open access, if it may be.
    pub open: u32,
}

/// Takes the next bit.
fn next_bit(bits: &mut u32) -> bool {
    let bit = *bits & 1 != 0;
    *bits = bits.rotate_right(1);
    bit
}

/// What the receiver delivers to.
#[derive(Debug)]
struct Host {
    /// The ULPDU in hand.
    ulpdu: Vec<u8>,
    regions: BTreeMap<u32, Region>,
    /// The posted receive buffers.
    posted: VecDeque<Vec<u8>>,
    /// The buffer of the receive taken last.
    buffer: Vec<u8>,
    /// The inbound depth and the peer's outstanding Reads and Atomics.
    inbound: Depth,
    /// The same for this end's requests.
    outbound: Depth,
    outstanding: VecDeque<(Outstanding, Option<(Stag, TaggedOffset)>)>,
    /// The value that the oldest atomic operation has brought.
    original: u64,
    /// The length of the Write before the last Immediate Data.
    written: u32,
    responses: VecDeque<Response>,
    completions: Vec<Completion>,
    failures: Vec<ReceiveFailure<()>>,
    lifecycle: Lifecycle,
    /// The Terminate that this end sends.
    terminate: Option<Terminate>,
    /// The Terminate that the peer sent.
    terminated: Option<Terminate>,
    delays: Delays,
    /// The memory for the FPDU in hand is fetched.
    fetched: bool,
    /// Messages may wait for their receives.
    may_wait: bool,
    /// A message waits for its receive.
    waits: bool,
    /// The message that waits has waited too long.
    is_over: bool,
}

impl Host {
    fn payload(&self, payload: PayloadSpan) -> Vec<u8> {
        self.ulpdu[payload.offset.into()..][..payload.len.into()].to_vec()
    }

    /// Returns whether the memory is absent, which it is at most once for each FPDU.
    fn is_absent(&mut self) -> bool {
        !self.fetched && next_bit(&mut self.delays.absent)
    }

    /// Places octets where `stag` and `to` say.
    fn place(
        &mut self,
        stag: Stag,
        to: TaggedOffset,
        octets: &[u8],
        access: Access,
    ) -> Result<(), Fault> {
        let region = self.regions.get_mut(&stag.index());
        let len = u32::try_from(octets.len()).unwrap();
        let view = region.as_ref().map(|region| &region.view);
        let offset = check_tagged(view, stag, to, len, access)?;
        place(&mut region.unwrap().memory, offset, octets);
        Ok(())
    }
}

impl Delivery for Host {
    type Sink = Option<(Stag, TaggedOffset)>;
    type Status = ();

    fn place_write(&mut self, segment: &TaggedSegment) -> Result<(), NotPlaced<Fault>> {
        let octets = self.payload(segment.payload);
        if self.is_absent() {
            return Err(NotPlaced::Absent);
        }
        self.place(segment.stag, segment.to, &octets, Access::REMOTE_WRITE)
            .map_err(NotPlaced::Refused)
    }

    fn place_atomic_write(&mut self, segment: &TaggedSegment) -> Result<(), NotPlaced<Fault>> {
        // Memory begins at a multiple of 8, whatever its tagged offset.
        if let Some(region) = self.regions.get(&segment.stag.index()) {
            let offset = segment.to.raw().wrapping_sub(region.view.base);
            let checked = check_tagged(
                Some(&region.view),
                segment.stag,
                segment.to,
                segment.payload.len.into(),
                Access::REMOTE_WRITE,
            );
            if checked.is_ok() {
                check_alignment(offset)?;
            }
        }
        self.place_write(segment)
    }

    fn place_send(&mut self, offset: u32, payload: PayloadSpan) -> Result<(), NotPlaced<()>> {
        if self.is_absent() {
            return Err(NotPlaced::Absent);
        }
        let octets = self.payload(payload);
        place(&mut self.buffer, offset.into(), &octets);
        Ok(())
    }

    fn place_response(
        &mut self,
        sink: &Self::Sink,
        offset: u32,
        payload: PayloadSpan,
    ) -> Result<(), NotPlaced<()>> {
        if self.is_absent() {
            return Err(NotPlaced::Absent);
        }
        let (stag, to) = sink.unwrap();
        if !self.regions.contains_key(&stag.index()) {
            return Ok(());
        }
        let octets = self.payload(payload);
        self.place(stag, to.wrapping_add(offset), &octets, Access::LOCAL_WRITE)
            .map_err(|_| NotPlaced::Refused(()))
    }

    fn place_original(&mut self, _sink: &Self::Sink, original: u64) -> Result<(), NotPlaced<()>> {
        if self.is_absent() {
            return Err(NotPlaced::Absent);
        }
        self.original = original;
        Ok(())
    }

    fn has_receive(&self) -> bool {
        !self.posted.is_empty()
    }

    fn take_receive(&mut self, _segment: Option<&SendSegment>) -> Result<u32, NotTaken<()>> {
        self.buffer = self.posted.pop_front().ok_or(NotTaken::Empty)?;
        Ok(u32::try_from(self.buffer.len()).unwrap())
    }

    fn complete_receive(&mut self, received: &Received) -> Result<(), Fault> {
        self.completions.push(match *received {
            Received::Send(kind, len) => Completion::Received {
                octets: self.buffer[..usize::try_from(len).unwrap()].to_vec(),
                kind,
            },
            Received::Immediate(immediate, written) => {
                self.written = written;
                Completion::Immediate(immediate)
            }
        });
        Ok(())
    }

    fn fail_receive(&mut self, why: ReceiveFailure<()>) {
        self.failures.push(why);
    }

    fn invalidate(&mut self, stag: Stag) -> Result<(), Fault> {
        let region = self.regions.get_mut(&stag.index());
        let permission = region
            .as_ref()
            .map_or(RemoteInvalidation::Forbidden, |region| region.invalidation);
        check_invalidate(region.as_ref().map(|region| &region.view), stag, permission)?;
        region.unwrap().view.valid = false;
        Ok(())
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
        self.inbound.room()
    }

    fn queue_read(&mut self, request: ReadRequest, _quoted: Option<Quoted>) -> Result<(), Fault> {
        self.inbound.try_take();
        let region = self.regions.get(&request.source_stag.index());
        let offset = check_source(
            region.map(|region| &region.view),
            request.source_stag,
            request.source_to,
            request.len,
            Access::REMOTE_READ,
        )?;
        let octets = match region {
            Some(region) if request.len != 0 => {
                let from = usize::try_from(offset).unwrap();
                region.memory[from..][..usize::try_from(request.len).unwrap()].to_vec()
            }
            _ => Vec::new(),
        };
        self.responses.push_back(Response::Read { request, octets });
        Ok(())
    }

    fn queue_flush(
        &mut self,
        request: &FlushRequest,
        answer: ReadRequest,
    ) -> Result<(), NotPlaced<Fault>> {
        if self.is_absent() {
            return Err(NotPlaced::Absent);
        }
        self.inbound.try_take();
        let region = self.regions.get(&request.stag.index());
        check_flush(region.map(|region| &region.view), request)?;
        let octets = Vec::new();
        let request = answer;
        self.responses.push_back(Response::Read { request, octets });
        Ok(())
    }

    fn queue_atomic(
        &mut self,
        request: AtomicRequest,
        _quoted: Option<Quoted>,
    ) -> Result<(), Fault> {
        self.inbound.try_take();
        let region = self.regions.get_mut(&request.stag.index());
        let offset = check_source(
            region.as_ref().map(|region| &region.view),
            request.stag,
            request.to,
            TARGET_LEN,
            Access::REMOTE_ATOMIC,
        )?;
        // Memory begins at a multiple of 8, whatever its tagged offset.
        check_alignment(offset)?;
        let memory = &mut region.unwrap().memory;
        let at = usize::try_from(offset).unwrap();
        let target = memory[at..].first_chunk_mut::<8>().unwrap();
        let original = u64::from_ne_bytes(*target);
        *target = request.operation.apply(original).to_ne_bytes();
        self.responses.push_back(Response::Atomic(AtomicResponse {
            identifier: request.identifier,
            original,
        }));
        Ok(())
    }

    fn read_response(
        &mut self,
        segment: &TaggedSegment,
    ) -> Result<(ReadPlacement, Option<Self::Sink>), Fault> {
        let oldest = self.outstanding.front_mut();
        let (oldest, sink) = oldest.map_or((None, None), |(oldest, sink)| (Some(oldest), *sink));
        let placement = Outstanding::expect_read(oldest)?.accept(segment)?;
        Ok((placement, sink.map(Some)))
    }

    fn atomic_response(
        &mut self,
        response: Queued<AtomicResponse>,
    ) -> Result<(u64, Self::Sink), Fault> {
        let oldest = self.outstanding.front().map(|(oldest, _)| oldest);
        Ok((Outstanding::accept_atomic(oldest, response)?, None))
    }

    fn complete_request(&mut self) -> Set<After> {
        let (oldest, _) = self.outstanding.pop_front().unwrap();
        self.outbound.release();
        self.completions.push(match oldest {
            Outstanding::Read(_) => Completion::Read,
            Outstanding::Atomic { .. } => Completion::Atomic {
                original: self.original,
            },
        });
        Set::NONE
    }

    fn fail_request(&mut self, (): ()) {}

    fn apply(&mut self, event: Event) -> Set<After> {
        let (next, actions) = self.lifecycle.on(event);
        self.lifecycle = next;
        actions.after
    }

    fn fault(&mut self, fault: Fault, quoted: Option<&Quoted>) -> Set<After> {
        assert!(self.terminate.is_none());
        self.terminate = Some(Terminate::for_fault(fault, quoted));
        self.apply(Event::Fault(Notice::of(fault)))
    }

    fn terminated(&mut self, terminate: &Terminate) -> Set<After> {
        assert!(self.terminated.is_none());
        self.terminated = Some(*terminate);
        self.apply(Event::PeerTerminate(FirstFailure::of(terminate)))
    }
}

/// One end of a stream.
#[derive(Debug)]
pub struct End {
    receiver: StreamReceiver<Option<(Stag, TaggedOffset)>>,
    host: Host,
    round: Round,
    /// What has arrived and waits for a receive, and the results of the checks of its framing.
    kept: VecDeque<(Vec<u8>, Result<(), Fault>)>,
    sender: StreamSender<()>,
}

impl End {
    /// Makes an end without memory and without posted buffers.
    pub fn new(extensions: Extensions, ird: u16, ord: u16) -> Self {
        Self::with_receiver(Receiver::new(extensions), ird, ord)
    }

    /// Makes the same around a given receiver.
    pub fn with_receiver(receiver: Receiver, ird: u16, ord: u16) -> Self {
        let params = ReceiverParams {
            // Not read: `receiver` has them.
            extensions: Extensions::Off,
            takes_immediate: true,
            awaits: None,
            common: None,
            expect_rtr: RtrKinds::NONE,
        };
        let attach = QpRequest::Attach {
            wait_first_fpdu: true,
        };
        let (lifecycle, _) = Lifecycle::NEW.request(attach).unwrap();
        Self {
            receiver: StreamReceiver::with(receiver, &params),
            host: Host {
                ulpdu: Vec::new(),
                regions: BTreeMap::new(),
                posted: VecDeque::new(),
                buffer: Vec::new(),
                inbound: Depth::new(ird),
                outbound: Depth::new(ord),
                outstanding: VecDeque::new(),
                original: 0,
                written: 0,
                responses: VecDeque::new(),
                completions: Vec::new(),
                failures: Vec::new(),
                lifecycle,
                terminate: None,
                terminated: None,
                delays: Delays::default(),
                fetched: false,
                may_wait: false,
                waits: false,
                is_over: false,
            },
            round: Round::NEW,
            kept: VecDeque::new(),
            sender: StreamSender::new(&SenderParams {
                extensions: Extensions::SendImmediate,
                features: None,
                rtr: None,
                draft_swap: false,
            }),
        }
    }

    /// Delays what follows.
    pub fn delay(&mut self, delays: Delays) {
        self.host.delays = delays;
    }

    /// Lets messages wait for their receives.
    pub fn wait_for_receives(&mut self) {
        self.host.may_wait = true;
    }

    /// Ends the wait for a receive, which took too long.
    pub fn end_wait(&mut self) {
        self.host.is_over = true;
        self.retry();
    }

    /// Returns whether a message waits for its receive.
    pub fn waits_for_receive(&self) -> bool {
        assert_eq!(self.host.waits, self.receiver.awaits_receive());
        self.host.waits
    }

    /// Returns what was done, and what has to happen after it.
    pub fn round(&self) -> &Round {
        &self.round
    }

    /// Returns the state of the queue pair.
    pub fn lifecycle(&self) -> Lifecycle {
        self.host.lifecycle
    }

    /// Returns why receives have failed.
    pub fn failures(&self) -> &[ReceiveFailure<()>] {
        &self.host.failures
    }

    /// Returns the length of the Write before the last Immediate Data.
    pub fn written(&self) -> u32 {
        self.host.written
    }

    /// Registers memory at `base` under `stag`, with every right, in this end's domain, which the
    /// peer may not invalidate.
    pub fn register(&mut self, stag: u32, base: u64, memory: Vec<u8>) -> &mut Region {
        let stag = Stag::new(stag);
        let region = Region {
            view: RegionView {
                stag,
                base,
                len: memory.len() as u64,
                access: Access::LOCAL_WRITE
                    .union(Access::REMOTE_WRITE)
                    .union(Access::REMOTE_READ)
                    .union(Access::REMOTE_ATOMIC),
                association: Association::Ours,
                valid: true,
            },
            invalidation: RemoteInvalidation::Forbidden,
            memory,
        };
        self.host.regions.insert(stag.index(), region);
        self.host.regions.get_mut(&stag.index()).unwrap()
    }

    /// Returns the region under an STag's index.
    pub fn region(&self, stag: u32) -> &Region {
        &self.host.regions[&Stag::new(stag).index()]
    }

    /// Posts a receive buffer.
    pub fn post_receive(&mut self, len: usize) {
        self.host.posted.push_back(vec![0xee; len]);
        self.retry();
    }

    /// Returns the number of posted receive buffers.
    pub fn posted(&self) -> usize {
        self.host.posted.len()
    }

    /// Takes the consumer's completions so far.
    pub fn completions(&mut self) -> Vec<Completion> {
        std::mem::take(&mut self.host.completions)
    }

    /// Returns the Terminate that this end sends.
    pub fn terminate(&self) -> Option<&Terminate> {
        self.host.terminate.as_ref()
    }

    /// Returns the Terminate that the peer sent.
    pub fn terminated(&self) -> Option<&Terminate> {
        self.host.terminated.as_ref()
    }

    /// Returns whether the stream must not end here: a message has begun and not ended.
    pub fn is_mid_message(&self) -> bool {
        !self.receiver.is_between_messages()
    }

    /// Takes the message that the sender has begun.
    fn begun(&mut self) -> Message {
        let outgoing = self.sender.current.take().unwrap();
        *outgoing.segmenter.message()
    }

    /// Begins a Send.
    pub fn send(&mut self, kind: SendKind) -> Message {
        let begun = self
            .sender
            .begin_send(kind.extra, 0, kind.solicited, Job::Nothing);
        assert_eq!(begun, Ok(()));
        self.begun()
    }

    /// Begins Immediate Data.
    pub fn immediate(&mut self, immediate: Immediate) -> Message {
        let Immediate { data, solicited } = immediate;
        let begun = self
            .sender
            .begin_immediate(data, 0, solicited, Job::Nothing);
        assert_eq!(begun, Ok(()));
        self.begun()
    }

    /// Begins a Read, or returns `None` if the outbound depth is reached.
    pub fn read(&mut self, request: ReadRequest) -> Option<Message> {
        self.host.outbound.try_take()?;
        let sink = (request.len != 0).then_some((request.sink_stag, request.sink_to));
        let state = Outstanding::Read(ReadState::new(&request));
        self.host.outstanding.push_back((state, sink));
        self.sender.begin_read(request, Job::AwaitResponse(()));
        Some(self.begun())
    }

    /// Begins an atomic operation, or returns `None` if the outbound depth is reached. The sender
    /// chooses the identifier; the test's own replaces it.
    pub fn atomic(&mut self, request: AtomicRequest) -> Option<Message> {
        self.host.outbound.try_take()?;
        let AtomicRequest {
            identifier,
            stag,
            to,
            operation,
        } = request;
        self.sender.begin_atomic((stag, to), operation, ());
        let state = Outstanding::Atomic { identifier };
        self.host.outstanding.push_back((state, None));
        match self.begun() {
            Message::AtomicRequest { msn, .. } => Some(Message::AtomicRequest { request, msn }),
            message => panic!("{message:?}"),
        }
    }

    /// Takes the oldest pending answer, as a message and its payload.
    pub fn respond(&mut self) -> Option<(Message, Vec<u8>)> {
        let response = self.host.responses.pop_front()?;
        self.host.inbound.release();
        let octets = match response {
            Response::Read { request, octets } => {
                self.sender.answer_read(&request);
                octets
            }
            Response::Atomic(response) => {
                self.sender.answer_atomic(response);
                Vec::new()
            }
        };
        Some((self.begun(), octets))
    }

    /// Handles one FPDU, as the driver's receive loop does.
    pub fn handle(&mut self, fpdu: &Fpdu) {
        let framing = if fpdu.intact { Ok(()) } else { Err(Fault::Crc) };
        self.handle_ulpdu(&fpdu.ulpdu, framing);
    }

    /// Handles the ULPDU of one FPDU, with the result of its Marker and CRC checks.
    pub fn handle_ulpdu(&mut self, ulpdu: &[u8], framing: Result<(), Fault>) {
        self.kept.push_back((ulpdu.to_vec(), framing));
        if !self.waits_for_receive() {
            self.receive();
        }
    }

    /// Handles all that has arrived, until a message has to wait for its receive.
    fn receive(&mut self) {
        while let Some((ulpdu, framing)) = self.kept.pop_front() {
            if self.receiver.is_stopped() {
                continue;
            }
            self.host.ulpdu = ulpdu;
            self.host.fetched = false;
            if next_bit(&mut self.host.delays.open) && self.receive_open(framing) {
                continue;
            }
            if self.pass(framing, StreamReceiver::handle_fpdu) == FpduEnd::Kept {
                return;
            }
        }
    }

    /// Passes the ULPDU in hand to the receiver by `how`. Keeps it if it waits for its receive.
    fn pass(
        &mut self,
        framing: Result<(), Fault>,
        how: impl FnOnce(
            &mut StreamReceiver<Option<(Stag, TaggedOffset)>>,
            &mut Host,
            &mut Round,
            &ArrivedFpdu<'_>,
        ) -> FpduEnd,
    ) -> FpduEnd {
        let Self {
            receiver,
            host,
            round,
            ..
        } = self;
        let header = host.ulpdu[..host.ulpdu.len().min(RECEIVE_HEADER_MAX)].to_vec();
        let fpdu = ArrivedFpdu {
            header: &header,
            ulpdu_len: u16::try_from(host.ulpdu.len()).unwrap(),
            framing,
        };
        let mut end = how(receiver, host, round, &fpdu);
        if receiver.awaits_memory() {
            assert_eq!(end, FpduEnd::Kept);
            assert!(round.after.contains(After::FetchIn) && !receiver.is_going());
            host.fetched = true;
            end = receiver.resume(host, round, &fpdu);
        }
        if end == FpduEnd::Kept {
            assert!(receiver.awaits_receive());
            let ulpdu = std::mem::take(&mut host.ulpdu);
            self.kept.push_front((ulpdu, framing));
        }
        end
    }

    /// Tries again to take a receive for the message that waits.
    fn retry(&mut self) {
        if !self.waits_for_receive() {
            return;
        }
        let (ulpdu, framing) = self.kept.pop_front().unwrap();
        self.host.ulpdu = ulpdu;
        self.host.fetched = false;
        if self.pass(framing, StreamReceiver::retry_receive) == FpduEnd::Done {
            self.receive();
        }
    }

    /// Receives an FPDU of the message that is under way, as under an open access to its memory;
    /// returns whether it has done so.
    fn receive_open(&mut self, framing: Result<(), Fault>) -> bool {
        let Self {
            receiver,
            host,
            round,
            ..
        } = self;
        let header = host.ulpdu[..host.ulpdu.len().min(RECEIVE_HEADER_MAX)].to_vec();
        let len = u16::try_from(host.ulpdu.len()).unwrap();
        match receiver.under_way() {
            None => false,
            Some(UnderWay::Write) => receiver
                .peek_write(&header, len)
                .filter(|next| framing.is_ok() && host.place_write(&next.segment).is_ok())
                .map(|next| receiver.accept_write(round, &next))
                .is_some(),
            Some(UnderWay::Send) => receiver
                .peek_send(&header, len)
                .filter(|next| {
                    framing.is_ok() && host.place_send(next.offset, next.payload).is_ok()
                })
                .map(|next| receiver.accept_send(round, &next))
                .is_some(),
            Some(UnderWay::Response) => {
                let Some((Outstanding::Read(read), sink)) = host.outstanding.front().copied()
                else {
                    return false;
                };
                let Some(next) = receiver.peek_response(read, &header, len) else {
                    return false;
                };
                let placed = host.place_response(&sink, next.offset, next.payload);
                if framing.is_err() || placed.is_err() {
                    return false;
                }
                if let Some((state, _)) = host.outstanding.front_mut() {
                    *state = Outstanding::Read(next.read);
                }
                receiver.accept_response(round);
                true
            }
        }
    }
}

fn place(memory: &mut [u8], offset: u64, payload: &[u8]) {
    if !payload.is_empty() {
        let at = usize::try_from(offset).unwrap();
        memory[at..][..payload.len()].copy_from_slice(payload);
    }
}

/// Cuts a message into FPDUs, as the driver's send loop does; asks `mulpdu` for each.
pub fn transmit(message: Message, payload: &[u8], mut mulpdu: impl FnMut() -> u16) -> Vec<Vec<u8>> {
    let mut segmenter = Segmenter::new(message, u32::try_from(payload.len()).unwrap());
    let mut fpdus = Vec::new();
    while let Some(plan) = segmenter.next(mulpdu()) {
        let mut octets = plan.header().to_vec();
        let from = usize::try_from(plan.payload_offset()).unwrap();
        octets.extend(&payload[from..][..usize::from(plan.payload_len())]);
        octets.extend(std::iter::repeat_n(0, plan.pad_len().into()));
        octets.extend(crc_trailer(crc32c(&octets)));
        assert_eq!(octets.len(), usize::try_from(plan.fpdu_len()).unwrap());
        fpdus.push(octets);
    }
    fpdus
}

/// Returns a Write.
pub fn write(stag: u32, to: u64) -> Message {
    Message::Write {
        stag: Stag::new(stag),
        to: TaggedOffset::new(to),
    }
}
