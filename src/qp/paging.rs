// SPDX-License-Identifier: GPL-2.0

//! The work items that fetch memory for which a queue pair's streams wait.
//!
//! Each direction has its own, since either may take long. Each context has a workqueue for them
//! (`device/paging.rs`): a process whose page faults never end blocks only its own copies, and the
//! removal of the device.
//!
//! Context: process.

use iwarp::{
    atomic::{
        AtomicResponse,
        TARGET_LEN, //
    },
    fault::Fault,
    rdmap::ReadRequest, //
};
use kernel::{
    prelude::*,
    sync::Arc,
    workqueue::WorkItem, //
};
use kernel_ext::{
    rdma::wr::WcStatus,
    warn_on_once, //
};

use super::{
    Qp,
    PAGING_IN,
    PAGING_OUT, //
};
use crate::{
    mem::{
        atomic::carry_out,
        mr::{
            LocalUse,
            Region, //
        },
        peer::PeerAccess,
        sge::{
            NotCopied,
            Slices, //
        }, //
    },
    odp::mr::{
        with_retries,
        FetchedPages,
        RegionRange, //
    },
    queue::readq::{
        InboundAtomic,
        InboundRequest, //
    },
    stream::tx::paging::{
        FetchRequest,
        FetchedPayload,
        NotPacked,
        PagingOut,
        PayloadKey,
        PayloadSource, //
    }, //
};

impl WorkItem<PAGING_IN> for Qp {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let Some(conn) = this.shared.conn() else {
            return;
        };
        let mut fetched: Option<FetchedPages> = None;
        while let Some(range) = conn
            .socket()
            .with_inbound(|inbound| this.resume(&conn, inbound, fetched.as_ref()))
        {
            // Drops the memory fetched before, which may sleep; it has been copied to.
            fetched = Some(FetchedPages::new(range));
        }
        drop(fetched);
        // The end of the stream may be queued behind octets that were not consumed.
        this.processed(&conn);
    }
}

impl WorkItem<PAGING_OUT> for Qp {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        // Not here: there may be as many of these items at a time as there are queue pairs.
        if this.page_out() {
            this.kick();
        }
    }
}

impl Qp {
    /// Fetches what the transmit task waits for; returns whether the transmit task can go on.
    ///
    /// Context: process; takes as long as page faults do.
    fn page_out(&self) -> bool {
        let Some(request) = self.shared.paging_out.lock().begin_fetch() else {
            return false;
        };
        self.shared.device.stats.tx_page_waits.inc();
        match request {
            FetchRequest::Payload(place, origin) => {
                let octets = self.fetch(&place, &origin);
                // Dropped outside the lock: it may hold the last reference to its connection.
                let mut found = PagingOut::Found(FetchedPayload { place, octets });
                let mut state = self.shared.paging_out.lock();
                if state.end_fetch() {
                    core::mem::swap(&mut *state, &mut found);
                }
            }
            FetchRequest::Atomic(atomic, epoch) => {
                // Dropped outside the lock, because unpinning memory may sleep.
                let target = self.fetch_target(&atomic);
                let done = {
                    let mut state = self.shared.paging_out.lock();
                    state.end_fetch().then(|| match &target {
                        Ok(fetched) => self.operate_fetched(&atomic, fetched),
                        Err(why) => Err(*why),
                    })
                };
                let identifier = atomic.request.identifier;
                let request = match done {
                    Some(Ok(Some(original))) => InboundRequest::Answer(AtomicResponse {
                        identifier,
                        original,
                    }),
                    Some(Ok(None)) => InboundRequest::Atomic(atomic),
                    Some(Err(why)) => InboundRequest::Failed(why, atomic.quoted),
                    None => return true,
                };
                self.shared.inbound_reads.put_back(epoch, request);
            }
        }
        true
    }

    /// Drops what was fetched for a stream that has ended, and marks a running fetch as outdated.
    pub(super) fn forget_paging_out(&self) {
        let _drop_outside_lock = self.shared.paging_out.lock().end_stream();
    }

    /// Fetches a payload. Whether the copy's buffer or a page cannot be allocated, the stream ends
    /// the same way.
    #[inline(never)] // A test makes allocations fail below this function.
    fn fetch(&self, place: &PayloadKey, origin: &PayloadSource) -> Result<KVVec<u8>, NotPacked> {
        match origin {
            PayloadSource::Slices(slices) => {
                self.fetch_slices(place, slices).map_err(|why| match why {
                    NotCopied::Refused(status) => NotPacked::Local(status),
                    // Fetched pages are pinned.
                    NotCopied::Absent(_) => {
                        warn_on_once!(true);
                        NotPacked::Local(WcStatus::LocalProtection)
                    }
                })
            }
            PayloadSource::Remote(region, request) => self
                .fetch_remote(region, &request.after(place.offset), place.len)
                .map_err(NotPacked::Remote),
        }
    }

    /// Fetches a part of a local list.
    fn fetch_slices(&self, place: &PayloadKey, slices: &Slices) -> Result<KVVec<u8>, NotCopied> {
        let mut octets = zeroes(place.len)?;
        slices.fetch(self.shared.pd(), place.offset, &mut octets)?;
        Ok(octets)
    }

    /// Fetches the first `len` octets of a region that the peer reads.
    fn fetch_remote(
        &self,
        region: &Arc<Region>,
        request: &ReadRequest,
        len: usize,
    ) -> Result<KVVec<u8>, Fault> {
        let mut octets = zeroes(len).map_err(fault_of_fetch)?;
        let range = {
            let access = PeerAccess::open(region, self.shared.stream_id(), None);
            let access = access.ok_or(Fault::SourceInvalidStag)?;
            // CAST: less than the payload of one FPDU.
            access.read(request, len as u32, |inside, at| {
                let source = LocalUse::Source;
                Ok::<_, Fault>(RegionRange::new(region, inside, at, len, source))
            })?
        };
        range
            .fetch()
            .and_then(|memory| memory.read(0, &mut octets))
            .map_err(fault_of_fetch)?;
        Ok(octets)
    }

    /// Fetches the target of an atomic operation of the peer.
    fn fetch_target(&self, atomic: &InboundAtomic) -> Result<FetchedPages, Fault> {
        let range = self.with_target(atomic, Ok)?;
        Ok(FetchedPages::new(range))
    }

    /// Carries out an atomic operation of the peer on its fetched target, which it checks again.
    /// Returns [`None`], without effect, if the target is another one now, or others keep changing
    /// it.
    ///
    /// Context: `paging_out` locked; does not sleep.
    fn operate_fetched(
        &self,
        atomic: &InboundAtomic,
        fetched: &FetchedPages,
    ) -> Result<Option<u64>, Fault> {
        self.with_target(atomic, |range| {
            let Some(memory) = fetched.memory_of(&range) else {
                return Ok(None);
            };
            let memory = memory.map_err(fault_of_fetch)?;
            match carry_out(memory, 0, atomic.request.operation) {
                Ok(original) => Ok(Some(original)),
                Err(error) if error == EBUSY => Ok(None),
                Err(_) => Err(Fault::Local),
            }
        })
    }

    /// Checks the target of an atomic operation of the peer, and calls `f` with it while its region
    /// is accessible.
    fn with_target<T>(
        &self,
        atomic: &InboundAtomic,
        f: impl FnOnce(RegionRange) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let (request, region) = (&atomic.request, &atomic.target);
        let access = PeerAccess::open(region, self.shared.stream_id(), None);
        let access = access.ok_or(Fault::SourceInvalidStag)?;
        access.operate(request, |inside, at| {
            // CAST: widens.
            let len = TARGET_LEN as usize;
            f(RegionRange::new(region, inside, at, len, LocalUse::Sink))
        })
    }
}

/// Allocates a buffer of `len` octets.
fn zeroes(len: usize) -> Result<KVVec<u8>> {
    with_retries(|| Ok(KVVec::from_elem(0, len, GFP_KERNEL)?))
}

/// Returns what the peer is told about memory that cannot be fetched.
fn fault_of_fetch(error: Error) -> Fault {
    match error {
        ENOMEM => Fault::Local,
        // The process has no memory mapped there.
        _ => Fault::SourceBounds,
    }
}
