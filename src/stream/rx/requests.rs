// SPDX-License-Identifier: GPL-2.0

//! Requests of the peer: Reads and atomic operations, which the transmit task answers.
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
    queue::readq::{
        InboundAtomic,
        InboundRead,
        InboundRequest, //
    },
    stream::owner::QpShared, //
};

impl RxStream {
    /// Checks and queues a Read Request; a Terminate would quote its headers.
    pub(super) fn take_read_request(
        &mut self,
        qp: &QpShared,
        queued: Queued<ReadRequest>,
        quoted: Option<Quoted>,
    ) -> Result<(), Fault> {
        let request = queued.admit(qp.inbound_reads.room())?;
        let mut source = None;
        if request.len != 0 {
            // Checks the whole range now, before the first octet of the Response is sent
            // (RDMAP-156); each FPDU of the Response is checked again.
            let region = self.cache.get(&qp.regions, request.source_stag);
            let view = region.map(|region| region.view(qp.stream_id()));
            check_source(
                view.as_ref(),
                request.source_stag,
                request.source_to,
                request.len,
                Access::REMOTE_READ,
            )?;
            source = region.cloned();
        }
        qp.put_request(InboundRequest::Read(InboundRead {
            request,
            source,
            quoted,
        }))
    }

    /// Checks and queues an Atomic Request, likewise.
    pub(super) fn take_atomic_request(
        &mut self,
        qp: &QpShared,
        queued: Queued<AtomicRequest>,
        quoted: Option<Quoted>,
    ) -> Result<(), Fault> {
        let request = queued.admit(qp.inbound_reads.room())?;
        let target = self
            .cache
            .get(&qp.regions, request.stag)
            .ok_or(Fault::SourceInvalidStag)?;
        {
            let inside = target.try_access().ok_or(Fault::SourceInvalidStag)?;
            target.check_atomic(&inside, qp.stream_id(), &request)?;
        }
        qp.put_request(InboundRequest::Atomic(InboundAtomic {
            request,
            target: target.clone(),
            quoted,
        }))
    }
}

impl QpShared {
    fn put_request(&self, request: InboundRequest) -> Result<(), Fault> {
        // Only this receiver adds requests, so the room found before still exists.
        if self.inbound_reads.put(request) {
            Ok(())
        } else {
            Err(Fault::ReadDepth)
        }
    }
}
