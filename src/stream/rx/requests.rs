// SPDX-License-Identifier: GPL-2.0

//! Requests of the peer: Reads and atomic operations, which the transmit task answers.
//!
//! Context: softirq, or process with the socket locked.

use iwarp::{
    atomic::AtomicRequest,
    fault::Fault,
    rdmap::ReadRequest,
    receiver::Queued,
    terminate::Quoted, //
};

use super::RxStream;
use crate::{
    mem::peer::PeerAccess,
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
            let invalid = Fault::SourceInvalidStag;
            let region = self.cache.get(&qp.regions, request.source_stag);
            let region = region.ok_or(invalid)?;
            let access = PeerAccess::open(region, qp.stream_id(), None).ok_or(invalid)?;
            access.read(&request, request.len, |_, _| Ok::<_, Fault>(()))?;
            source = Some(region.clone());
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
        let access = PeerAccess::open(target, qp.stream_id(), None);
        // The access ends with this statement, before the request is queued.
        access
            .ok_or(Fault::SourceInvalidStag)?
            .operate(&request, |_, _| Ok(()))?;
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
