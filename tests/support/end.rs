// SPDX-License-Identifier: GPL-2.0

//! One end of a stream: a small driver around the core, with vectors for memory.
//!
//! It follows the driver: each fault becomes one Terminate, and later input is ignored.

use std::collections::{
    BTreeMap,
    VecDeque, //
};

use iwarp::{
    atomic::{
        check_alignment,
        AtomicRequest,
        AtomicResponse,
        TARGET_LEN, //
    },
    crc::crc32c,
    ddp::Msn,
    fault::Fault,
    mpa::crc_trailer,
    order::SendProgress,
    rdmap::{
        Extensions,
        Immediate,
        ReadRequest,
        SendExtra,
        SendKind, //
    },
    readq::{
        Depth,
        Outstanding,
        ReadState, //
    },
    receiver::{
        QueueRoom,
        Receiver,
        Segment,
        SendSegment,
        TaggedSegment,
        RECEIVE_HEADER_MAX, //
    },
    segment::{
        Message,
        Segmenter, //
    },
    stag::{
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

/// One end of a stream.
#[derive(Debug)]
pub struct End {
    receiver: Receiver,
    regions: BTreeMap<u32, Region>,
    /// The posted receive buffers.
    posted: VecDeque<Vec<u8>>,
    /// The buffer of the current Send.
    current: Option<(Vec<u8>, SendProgress)>,
    /// The inbound depth and the peer's outstanding Reads and Atomics.
    inbound: Depth,
    /// The same for this end's requests.
    outbound: Depth,
    outstanding: VecDeque<Outstanding>,
    responses: VecDeque<Response>,
    completions: Vec<Completion>,
    send_msn: Msn,
    read_msn: Msn,
    atomic_msn: Msn,
    /// The Terminate that this end sends.
    terminate: Option<Terminate>,
    /// The Terminate that the peer sent.
    terminated: Option<Terminate>,
}

impl End {
    /// Makes an end without memory and without posted buffers.
    pub fn new(extensions: Extensions, ird: u16, ord: u16) -> Self {
        Self::with_receiver(Receiver::new(extensions), ird, ord)
    }

    /// Makes the same around a given receiver.
    pub fn with_receiver(receiver: Receiver, ird: u16, ord: u16) -> Self {
        Self {
            receiver,
            regions: BTreeMap::new(),
            posted: VecDeque::new(),
            current: None,
            inbound: Depth::new(ird),
            outbound: Depth::new(ord),
            outstanding: VecDeque::new(),
            responses: VecDeque::new(),
            completions: Vec::new(),
            send_msn: Msn::FIRST,
            read_msn: Msn::FIRST,
            atomic_msn: Msn::FIRST,
            terminate: None,
            terminated: None,
        }
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
        self.regions.insert(stag.index(), region);
        self.regions.get_mut(&stag.index()).unwrap()
    }

    /// Returns the region under an STag's index.
    pub fn region(&self, stag: u32) -> &Region {
        &self.regions[&Stag::new(stag).index()]
    }

    /// Posts a receive buffer.
    pub fn post_receive(&mut self, len: usize) {
        self.posted.push_back(vec![0xee; len]);
    }

    /// Returns the number of posted receive buffers.
    pub fn posted(&self) -> usize {
        self.posted.len()
    }

    /// Takes the consumer's completions so far.
    pub fn completions(&mut self) -> Vec<Completion> {
        std::mem::take(&mut self.completions)
    }

    /// Returns the Terminate that this end sends.
    pub fn terminate(&self) -> Option<&Terminate> {
        self.terminate.as_ref()
    }

    /// Returns the Terminate that the peer sent.
    pub fn terminated(&self) -> Option<&Terminate> {
        self.terminated.as_ref()
    }

    /// Returns whether a message has begun and not ended.
    pub fn is_mid_message(&self) -> bool {
        self.receiver.is_mid_message()
    }

    /// Begins a Send.
    pub fn send(&mut self, kind: SendKind) -> Message {
        let msn = self.send_msn.advance();
        Message::Send { kind, msn }
    }

    /// Begins Immediate Data.
    pub fn immediate(&mut self, immediate: Immediate) -> Message {
        let msn = self.send_msn.advance();
        Message::Immediate { immediate, msn }
    }

    /// Begins a Read, or returns `None` if the outbound depth is reached.
    pub fn read(&mut self, request: ReadRequest) -> Option<Message> {
        self.outbound.try_take()?;
        self.outstanding
            .push_back(Outstanding::Read(ReadState::new(&request)));
        let msn = self.read_msn.advance();
        Some(Message::ReadRequest { request, msn })
    }

    /// Begins an atomic operation, or returns `None` if the outbound depth is reached.
    pub fn atomic(&mut self, request: AtomicRequest) -> Option<Message> {
        self.outbound.try_take()?;
        self.outstanding.push_back(Outstanding::Atomic {
            identifier: request.identifier,
        });
        let msn = self.read_msn.advance();
        Some(Message::AtomicRequest { request, msn })
    }

    /// Takes the oldest pending answer, as a message and its payload.
    pub fn respond(&mut self) -> Option<(Message, Vec<u8>)> {
        let response = self.responses.pop_front()?;
        self.inbound.release();
        Some(match response {
            Response::Read { request, octets } => {
                let message = Message::ReadResponse {
                    stag: request.sink_stag,
                    to: request.sink_to,
                };
                (message, octets)
            }
            Response::Atomic(response) => {
                let msn = self.atomic_msn.advance();
                (Message::AtomicResponse { response, msn }, Vec::new())
            }
        })
    }

    /// Handles one FPDU, as the driver's receive loop does.
    pub fn handle(&mut self, fpdu: &Fpdu) {
        let framing = if fpdu.intact { Ok(()) } else { Err(Fault::Crc) };
        self.handle_ulpdu(&fpdu.ulpdu, framing);
    }

    /// Handles the ULPDU of one FPDU, with the result of its Marker and CRC checks.
    pub fn handle_ulpdu(&mut self, ulpdu: &[u8], framing: Result<(), Fault>) {
        if self.terminate.is_some() || self.terminated.is_some() {
            return;
        }
        let ulpdu_len = u16::try_from(ulpdu.len()).unwrap();
        let header = &ulpdu[..ulpdu.len().min(RECEIVE_HEADER_MAX)];
        let result = framing
            .and_then(|()| self.receiver.handle_fpdu(header, ulpdu_len))
            .and_then(|segment| self.execute(&segment, ulpdu));
        if let Err(fault) = result {
            let quoted = Quoted::from_segment(header, ulpdu_len);
            self.terminate = Some(Terminate::for_fault(fault, quoted.as_ref()));
        }
    }

    fn execute(&mut self, segment: &Segment, ulpdu: &[u8]) -> Result<(), Fault> {
        match segment {
            Segment::Empty => Ok(()),
            Segment::Write(write) => self.write(write, ulpdu),
            Segment::ReadRequest(queued) => {
                let request = queued.admit(self.inbound.room())?;
                self.inbound.try_take();
                self.serve_read(request)
            }
            Segment::ReadResponse(response) => self.read_response(response, ulpdu),
            Segment::Send(send) => self.receive(send, ulpdu),
            Segment::Terminate(terminate) => {
                self.terminated = Some(*terminate);
                Ok(())
            }
            Segment::Immediate(queued) => {
                let room = if self.posted.is_empty() {
                    QueueRoom::Full
                } else {
                    QueueRoom::Free
                };
                let immediate = queued.admit(room)?;
                self.posted.pop_front();
                self.completions.push(Completion::Immediate(immediate));
                Ok(())
            }
            Segment::AtomicRequest(queued) => {
                let request = queued.admit(self.inbound.room())?;
                self.inbound.try_take();
                self.serve_atomic(&request)
            }
            Segment::AtomicResponse(queued) => {
                let original = Outstanding::accept_atomic(self.outstanding.front(), *queued)?;
                self.complete_oldest();
                self.completions.push(Completion::Atomic { original });
                Ok(())
            }
        }
    }

    fn write(&mut self, write: &TaggedSegment, ulpdu: &[u8]) -> Result<(), Fault> {
        let region = self.regions.get_mut(&write.stag.index());
        let offset = check_tagged(
            region.as_ref().map(|region| &region.view),
            write.stag,
            write.to,
            write.payload.len.into(),
            Access::REMOTE_WRITE,
        )?;
        if let Some(region) = region {
            place(&mut region.memory, offset, write_payload(write, ulpdu));
        }
        Ok(())
    }

    fn receive(&mut self, send: &SendSegment, ulpdu: &[u8]) -> Result<(), Fault> {
        if send.first {
            let buffer = self.posted.pop_front().ok_or(Fault::NoBuffer)?;
            self.current = Some((buffer, SendProgress::new()));
        }
        let (buffer, progress) = self.current.as_mut().unwrap();
        let placement = progress.accept(send, u32::try_from(buffer.len()).unwrap())?;
        let payload = &ulpdu[usize::from(send.payload.offset)..][..usize::from(send.payload.len)];
        place(buffer, placement.offset.into(), payload);
        if let Some(len) = placement.delivered {
            if let SendExtra::Invalidate(stag) = send.kind.extra {
                self.invalidate(stag)?;
            }
            let (mut octets, _) = self.current.take().unwrap();
            octets.truncate(usize::try_from(len).unwrap());
            self.completions.push(Completion::Received {
                octets,
                kind: send.kind,
            });
        }
        Ok(())
    }

    fn invalidate(&mut self, stag: Stag) -> Result<(), Fault> {
        let region = self.regions.get_mut(&stag.index());
        let permission = region
            .as_ref()
            .map_or(RemoteInvalidation::Forbidden, |region| region.invalidation);
        check_invalidate(region.as_ref().map(|region| &region.view), stag, permission)?;
        if let Some(region) = region {
            region.view.valid = false;
        }
        Ok(())
    }

    fn serve_read(&mut self, request: ReadRequest) -> Result<(), Fault> {
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

    fn serve_atomic(&mut self, request: &AtomicRequest) -> Result<(), Fault> {
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

    fn read_response(&mut self, response: &TaggedSegment, ulpdu: &[u8]) -> Result<(), Fault> {
        let read = Outstanding::expect_read(self.outstanding.front_mut())?;
        let placement = read.accept(response)?;
        let sink = self.regions.get_mut(&response.stag.index());
        if let (Some(sink), false) = (sink, response.payload.len == 0) {
            let offset = check_tagged(
                Some(&sink.view),
                response.stag,
                response.to,
                response.payload.len.into(),
                Access::LOCAL_WRITE,
            )?;
            place(&mut sink.memory, offset, write_payload(response, ulpdu));
        }
        if placement.complete {
            self.complete_oldest();
            self.completions.push(Completion::Read);
        }
        Ok(())
    }

    fn complete_oldest(&mut self) {
        self.outstanding.pop_front();
        self.outbound.release();
    }
}

fn write_payload<'a>(segment: &TaggedSegment, ulpdu: &'a [u8]) -> &'a [u8] {
    &ulpdu[usize::from(segment.payload.offset)..][..usize::from(segment.payload.len)]
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
