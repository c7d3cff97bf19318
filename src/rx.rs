// SPDX-License-Identifier: GPL-2.0

//! The receiver: from octets in TCP's receive queue to memory and completions.
//!
//! TCP calls [`Qp::data_ready`] with a view of the octets that have arrived in order. A round walks
//! over complete FPDUs only; an incomplete one stays in TCP, and so does what the byte budget leaves
//! over. For each FPDU, in this order: the CRC over all of it (MPA-20), the headers
//! ([`iwarp::receiver`]), the access checks, the copy from the socket buffers into the consumer's
//! pages. The round ends with one `consume`, one announcement per completion queue, and a word to
//! the transmitter if there is something to answer.
//!
//! After a fault nothing more is interpreted (DDP-83, MPA-21): the rest of the stream is taken from
//! TCP and thrown away, so that the Terminate is not lost to a reset.
//!
//! Context: softirq, or process when TCP works off a backlog. Nothing sleeps or allocates.

use iwarp::{
    atomic::AtomicRequest,
    fault::Fault,
    mpa::{
        self,
        negotiate::Rtr,
        start::RtrKinds,
        Crc, //
    },
    order::SendProgress,
    rdmap::{
        Extensions,
        ReadRequest,
        Solicited, //
    },
    receiver::{
        Queued,
        Receiver,
        Segment,
        SendSegment,
        TaggedSegment,
        RECEIVE_HEADER_MAX, //
    },
    stag::{
        check_source,
        check_tagged,
        Access,
        Stag, //
    },
    terminate::{
        Quoted,
        Terminate, //
    }, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};
use kernel_ext::{
    crc32c,
    net::Inbound,
    rdma::wr::{
        WcOpcode,
        WcStatus, //
    }, //
};

use crate::{
    conn::{
        Conn,
        StreamParams, //
    },
    mr::LocalUse,
    qp::Qp,
    readq::{
        InboundAtomic,
        InboundRead,
        InboundRequest, //
    },
    sge::{
        RegionCache,
        Slices, //
    },
    wr::{
        Completion,
        RecvWr, //
    }, //
};

/// Octets that one round takes before it lets others run.
const BUDGET: usize = 1024 * 1024;

/// Octets that a look at the front of an FPDU needs at most.
const FRONT_MAX: usize = mpa::LENGTH_LEN + RECEIVE_HEADER_MAX;

/// The receiver's state, under the queue pair's receive lock.
#[derive(Default)]
pub(crate) struct Rx {
    stream: Option<RxStream>,
}

/// What there is while a stream is attached.
struct RxStream {
    conn: Arc<Conn>,
    receiver: Receiver,
    crc: Crc,
    /// The receive work request that the current Send fills.
    incoming: Option<Incoming>,
    cache: RegionCache,
    /// No FPDU has been accepted yet.
    untouched: bool,
    /// What the first FPDU has to be, if the peer promised to be the first to send (MPA-41).
    expect_rtr: RtrKinds,
    /// A fault was found or the peer has ended the stream: what comes is thrown away.
    stopped: bool,
}

/// A receive work request that is being filled.
struct Incoming {
    wr: RecvWr,
    buffer: Slices,
    buffer_len: u32,
    progress: SendProgress,
}

/// What a round leaves to be done when the lock is given back.
#[derive(Default)]
struct Aftermath {
    kick: bool,
    /// Something was completed.
    completed: bool,
    first_fpdu: Option<Arc<Conn>>,
    again: bool,
}

impl Qp {
    /// Hands the stream to the receiver.
    ///
    /// Context: process.
    pub(crate) fn start_rx(&self, conn: &Arc<Conn>, params: &StreamParams) {
        let stream = RxStream {
            conn: conn.clone(),
            receiver: Receiver::new(Extensions::Rfc7306),
            crc: params.crc,
            incoming: None,
            cache: RegionCache::default(),
            untouched: true,
            expect_rtr: params.expect_rtr,
            stopped: false,
        };
        let _drop_outside_lock = self.rx.lock().stream.replace(stream);
    }

    /// Takes the stream from the receiver; returns the receive work request that it was filling.
    ///
    /// Context: process.
    pub(crate) fn stop_rx(&self) -> Option<RecvWr> {
        let stream = self.rx.lock().stream.take()?;
        stream.incoming.map(|incoming| incoming.wr)
    }

    /// Works off what has arrived.
    ///
    /// Context: softirq, or process with the socket locked.
    pub(crate) fn data_ready(self: &Arc<Self>, inbound: &mut Inbound<'_>) {
        let mut aftermath = Aftermath::default();
        {
            let mut rx = self.rx.lock();
            match &mut rx.stream {
                Some(stream) => self.receive(stream, inbound, &mut aftermath),
                // Nobody is interested any more.
                None => inbound.consume(inbound.available()),
            }
        }
        if let Some(conn) = aftermath.first_fpdu {
            self.allow_sending();
            conn.first_fpdu();
        }
        if aftermath.completed {
            self.announce();
        }
        if aftermath.kick {
            self.answer(inbound);
        }
        if aftermath.again {
            self.enqueue_rx();
        }
    }

    /// Whether the stream may end here: no message has begun that has not ended (MPA-30).
    pub(crate) fn is_between_messages(&self) -> bool {
        match &self.rx.lock().stream {
            Some(stream) => stream.stopped || !stream.receiver.is_mid_message(),
            None => true,
        }
    }

    fn receive(
        self: &Arc<Self>,
        stream: &mut RxStream,
        inbound: &mut Inbound<'_>,
        aftermath: &mut Aftermath,
    ) {
        let available = inbound.available();
        let stats = &self.device().stats;
        let mut fpdus = 0;
        let mut pos = 0;
        while !stream.stopped {
            if pos >= BUDGET {
                stats.rx_budget_ends.inc();
                aftermath.again = true;
                break;
            }
            let mut front = [0; FRONT_MAX];
            let Some(fpdu) = Fpdu::at(inbound, pos, available - pos, &mut front) else {
                break;
            };
            let Some(header) = front.get(mpa::LENGTH_LEN..) else {
                break;
            };
            match self.accept(stream, inbound, pos, &fpdu, header, aftermath) {
                Ok(()) => {
                    fpdus += 1;
                    if core::mem::replace(&mut stream.untouched, false) {
                        aftermath.first_fpdu = Some(stream.conn.clone());
                    }
                }
                Err(fault) => {
                    aftermath.completed = true;
                    stream.stopped = true;
                    stats.rx_faults.inc();
                    // What arrived with a bad CRC is not quoted: it may be anything (RDMAP-40).
                    let quoted = Quoted::from_segment(header, fpdu.ulpdu_len);
                    self.fault(fault, quoted.as_ref());
                }
            }
            pos += fpdu.len;
        }
        if fpdus != 0 {
            self.pace.received();
        }
        stats.rx_fpdus.add(fpdus);
        stats.rx_bytes.add(pos as u64);
        if stream.stopped {
            pos = available;
        }
        if pos != 0 {
            inbound.consume(pos);
        }
    }

    /// Accepts one complete FPDU.
    fn accept(
        self: &Arc<Self>,
        stream: &mut RxStream,
        inbound: &mut Inbound<'_>,
        pos: usize,
        fpdu: &Fpdu,
        header: &[u8],
        aftermath: &mut Aftermath,
    ) -> Result<(), Fault> {
        if stream.crc == Crc::On && !fpdu.crc_is_right(inbound, pos) {
            self.device().stats.crc_errors.inc();
            return Err(Fault::Crc);
        }
        let ulpdu = pos + mpa::LENGTH_LEN;
        let segment = stream.receiver.handle_fpdu(header, fpdu.ulpdu_len)?;
        if stream.untouched && !stream.expect_rtr.is_empty() {
            match stream.expect_rtr.expect(&segment)? {
                // Its consumer never sees it (MPA-42).
                Rtr::Send | Rtr::Write => return Ok(()),
                Rtr::Read => {}
            }
        }
        match segment {
            Segment::Empty => Ok(()),
            Segment::Write(segment) => self.place_write(stream, inbound, ulpdu, &segment),
            Segment::Send(segment) => {
                aftermath.completed = true;
                self.place_send(stream, inbound, ulpdu, &segment)
            }
            Segment::ReadResponse(segment) => {
                self.place_response(inbound, ulpdu, &segment, aftermath)
            }
            Segment::ReadRequest(request) => {
                self.take_read_request(stream, request, header, fpdu.ulpdu_len)?;
                self.device().stats.rx_read_requests.inc();
                aftermath.kick = true;
                Ok(())
            }
            Segment::Terminate(terminate) => {
                stream.stopped = true;
                self.terminated_by_peer(&terminate);
                Ok(())
            }
            Segment::AtomicRequest(request) => {
                self.take_atomic_request(stream, request, header, fpdu.ulpdu_len)?;
                self.device().stats.rx_atomic_requests.inc();
                aftermath.kick = true;
                Ok(())
            }
            // This end has sent no Atomic Request that it could answer.
            Segment::AtomicResponse(_) => Err(Fault::AtomicUnsolicited),
            // No consumer could be told of it (EXT-4).
            Segment::Immediate(_) => Err(Fault::OpcodeReserved),
        }
    }

    fn place_write(
        &self,
        stream: &mut RxStream,
        inbound: &mut Inbound<'_>,
        ulpdu: usize,
        segment: &TaggedSegment,
    ) -> Result<(), Fault> {
        let payload = segment.payload;
        // DDP-41: nothing of an empty tagged segment is checked.
        if payload.len == 0 {
            return Ok(());
        }
        let region = stream
            .cache
            .get(self.device(), segment.stag)
            .ok_or(Fault::TaggedInvalidStag)?;
        let inside = region.enter().ok_or(Fault::TaggedInvalidStag)?;
        let view = region.view_inside(&inside, self.pd());
        let at = check_tagged(
            Some(&view),
            segment.stag,
            segment.to,
            u32::from(payload.len),
            Access::REMOTE_WRITE,
        )?;
        let pos = ulpdu + usize::from(payload.offset);
        inside
            .memory()
            .copy_from_inbound(at, inbound, pos, usize::from(payload.len))
            .map_err(|_| Fault::LocalPlacement)
    }

    fn place_send(
        &self,
        stream: &mut RxStream,
        inbound: &mut Inbound<'_>,
        ulpdu: usize,
        segment: &SendSegment,
    ) -> Result<(), Fault> {
        if segment.first {
            stream.incoming = Some(self.next_receive(&mut stream.cache)?);
        }
        let Some(incoming) = &mut stream.incoming else {
            return Err(Fault::NoBuffer);
        };
        let refused = |stream: &mut RxStream, status, fault| {
            if let Some(incoming) = stream.incoming.take() {
                self.complete_receive(incoming.wr.id, status, 0, None, Solicited::Yes);
            }
            Err(fault)
        };
        let placement = match incoming.progress.accept(segment, incoming.buffer_len) {
            Ok(placement) => placement,
            Err(fault) => return refused(stream, WcStatus::LocalLength, fault),
        };
        let payload = segment.payload;
        if payload.len != 0 {
            let pos = ulpdu + usize::from(payload.offset);
            let len = usize::from(payload.len);
            if let Err(status) =
                incoming
                    .buffer
                    .place(self.pd(), placement.offset, inbound, pos, len)
            {
                return refused(stream, status, Fault::LocalPlacement);
            }
        }
        let Some(len) = placement.delivered else {
            return Ok(());
        };
        if let Some(stag) = segment.kind.invalidate {
            if let Err(fault) = self.invalidate_remote(stag) {
                return refused(stream, WcStatus::RemoteInvalidRequest, fault);
            }
        }
        if let Some(incoming) = stream.incoming.take() {
            self.complete_receive(
                incoming.wr.id,
                WcStatus::Success,
                len,
                segment.kind.invalidate,
                segment.kind.solicited,
            );
        }
        Ok(())
    }

    /// Takes the next receive work request and resolves its list.
    fn next_receive(&self, cache: &mut RegionCache) -> Result<Incoming, Fault> {
        let wr = match self.take_receive() {
            Some(Ok(wr)) => wr,
            Some(Err(bad)) => {
                self.complete_receive(bad.id, bad.status, 0, None, Solicited::Yes);
                return Err(Fault::LocalPlacement);
            }
            None => return Err(Fault::NoBuffer),
        };
        let mut buffer = Slices::default();
        match buffer.resolve(&wr.sges, self.device(), self.pd(), LocalUse::Sink, cache) {
            Ok(()) => Ok(Incoming {
                buffer_len: u32::try_from(wr.sges.total()).unwrap_or(u32::MAX),
                wr,
                buffer,
                progress: SendProgress::new(),
            }),
            Err(status) => {
                self.complete_receive(wr.id, status, 0, None, Solicited::Yes);
                Err(Fault::LocalPlacement)
            }
        }
    }

    fn complete_receive(
        &self,
        id: u64,
        status: WcStatus,
        bytes: u32,
        invalidated: Option<Stag>,
        solicited: Solicited,
    ) {
        let origin = self.origin();
        self.recv_cq().post(&Completion {
            id,
            status,
            opcode: WcOpcode::Recv,
            bytes,
            invalidated,
            qpn: origin.qpn,
            qp: origin.qp,
            solicited: solicited == Solicited::Yes,
        });
    }

    fn place_response(
        &self,
        inbound: &mut Inbound<'_>,
        ulpdu: usize,
        segment: &TaggedSegment,
        aftermath: &mut Aftermath,
    ) -> Result<(), Fault> {
        let (placement, sink) = self.sq.read_response(segment)?;
        let payload = segment.payload;
        if payload.len != 0 {
            let pos = ulpdu + usize::from(payload.offset);
            sink.ok_or(Fault::LocalPlacement)?
                .place(
                    self.pd(),
                    placement.offset,
                    inbound,
                    pos,
                    usize::from(payload.len),
                )
                .map_err(|_| Fault::LocalPlacement)?;
        }
        if placement.complete {
            aftermath.completed = true;
            if let Some((slot, invalidate)) = self.sq.read_done() {
                let status = match invalidate.map(|stag| self.invalidate_local(stag)) {
                    Some(Err(status)) => status,
                    Some(Ok(())) | None => WcStatus::Success,
                };
                if let Some(slot) = slot {
                    self.sq.finish(slot, status, self.origin());
                }
            }
            // Somebody may wait for the Read: a fenced request, one beyond ORD, or the end.
            aftermath.kick |= self.stops_waiting_for_reads();
        }
        Ok(())
    }

    fn take_read_request(
        &self,
        stream: &mut RxStream,
        queued: Queued<ReadRequest>,
        header: &[u8],
        ulpdu_len: u16,
    ) -> Result<(), Fault> {
        let request = queued.admit(self.inbound_reads.room())?;
        let mut source = None;
        if request.len != 0 {
            // The whole range is checked now, before the first octet of the Response goes out
            // (RDMAP-156), and again for each FPDU of it.
            let region = stream.cache.get(self.device(), request.source_stag);
            let view = region.map(|region| region.view(self.pd()));
            check_source(
                view.as_ref(),
                request.source_stag,
                request.source_to,
                request.len,
                Access::REMOTE_READ,
            )?;
            source = region.cloned();
        }
        self.put_request(InboundRequest::Read(InboundRead {
            request,
            source,
            quoted: Quoted::from_segment(header, ulpdu_len),
        }))
    }

    fn take_atomic_request(
        &self,
        stream: &mut RxStream,
        queued: Queued<AtomicRequest>,
        header: &[u8],
        ulpdu_len: u16,
    ) -> Result<(), Fault> {
        let request = queued.admit(self.inbound_reads.room())?;
        let target = stream
            .cache
            .get(self.device(), request.stag)
            .ok_or(Fault::SourceInvalidStag)?;
        {
            let inside = target.enter().ok_or(Fault::SourceInvalidStag)?;
            target.check_atomic(&inside, self.pd(), &request)?;
        }
        self.put_request(InboundRequest::Atomic(InboundAtomic {
            request,
            target: target.clone(),
            quoted: Quoted::from_segment(header, ulpdu_len),
        }))
    }

    fn put_request(&self, request: InboundRequest) -> Result<(), Fault> {
        // Only this receiver puts requests in, so the room that was found is still there.
        if self.inbound_reads.put(request) {
            Ok(())
        } else {
            Err(Fault::ReadDepth)
        }
    }

    /// The peer has ended the stream (RDMAP-97, -133).
    fn terminated_by_peer(self: &Arc<Self>, terminate: &Terminate) {
        self.device().stats.terminates_received.inc();
        self.set_first_status(status_of(terminate));
        self.peer_terminated();
    }
}

/// How the request that the peer refuses ends.
fn status_of(terminate: &Terminate) -> WcStatus {
    let code = terminate.code;
    match (code.layer, code.etype) {
        (0, 1) | (1, 1) => WcStatus::RemoteAccess,
        (0, 2) | (1, 2) => WcStatus::RemoteInvalidRequest,
        _ => WcStatus::RemoteOperation,
    }
}

/// A complete FPDU in the receive queue.
struct Fpdu {
    ulpdu_len: u16,
    /// Octets of all of it.
    len: usize,
}

impl Fpdu {
    /// Looks at the FPDU at `pos`, behind which `available` octets wait; [`None`] if it is not
    /// complete. Its first octets are copied to `front`.
    fn at(
        inbound: &mut Inbound<'_>,
        pos: usize,
        available: usize,
        front: &mut [u8; FRONT_MAX],
    ) -> Option<Self> {
        let front = front.get_mut(..available.min(FRONT_MAX))?;
        if front.len() < mpa::LENGTH_LEN || !inbound.peek(pos, front) {
            return None;
        }
        let ulpdu_len = u16::from_be_bytes(*front.first_chunk()?);
        let len = mpa::fpdu_len(ulpdu_len) as usize;
        (len <= available).then_some(Self { ulpdu_len, len })
    }

    /// Whether the CRC at its end is the one of all octets before it (MPA-18).
    fn crc_is_right(&self, inbound: &mut Inbound<'_>, pos: usize) -> bool {
        let covered = self.len - mpa::CRC_LEN;
        let crc = crc32c::finish(inbound.crc32c(pos, covered, crc32c::INIT));
        let mut trailer = [0; mpa::CRC_LEN];
        inbound.peek(pos + covered, &mut trailer) && trailer == mpa::crc_trailer(crc)
    }
}

#[kernel::prelude::kunit_tests(riwarp_rx)]
mod tests {
    use super::*;
    use iwarp::fault::ErrorCode;

    #[test]
    fn a_terminate_decides_how_the_request_ends() {
        let status = |layer, etype| {
            status_of(&Terminate {
                code: ErrorCode {
                    layer,
                    etype,
                    code: 0,
                },
                quoted: None,
            })
        };
        assert_eq!(status(0, 1), WcStatus::RemoteAccess);
        assert_eq!(status(1, 1), WcStatus::RemoteAccess);
        assert_eq!(status(0, 2), WcStatus::RemoteInvalidRequest);
        assert_eq!(status(1, 2), WcStatus::RemoteInvalidRequest);
        for (layer, etype) in [(0, 0), (1, 0), (2, 0), (2, 2), (15, 15)] {
            assert_eq!(status(layer, etype), WcStatus::RemoteOperation);
        }
    }
}
