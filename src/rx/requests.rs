// SPDX-License-Identifier: GPL-2.0

//! What the peer asks for: Reads and atomic operations, which the transmitter answers.
//!
//! Context: softirq, or process with the socket locked.

use iwarp::{
    atomic::AtomicRequest,
    fault::Fault,
    rdmap::ReadRequest,
    receiver::Queued,
    stag::{
        check_source,
        Access, //
    },
    terminate::Quoted, //
};

use super::RxStream;
use crate::{
    qp::Qp,
    readq::{
        InboundAtomic,
        InboundRead,
        InboundRequest, //
    }, //
};

impl Qp {
    /// Takes a Read Request.
    pub(super) fn take_read_request(
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
            let view = region.map(|region| region.view(self.stream_id()));
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

    /// Takes an Atomic Request.
    pub(super) fn take_atomic_request(
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
            target.check_atomic(&inside, self.stream_id(), &request)?;
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
}
