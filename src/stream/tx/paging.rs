// SPDX-License-Identifier: GPL-2.0

//! Outgoing messages whose memory is absent.
//!
//! If the payload of an FPDU or the target of the peer's atomic operation is absent, the transmit
//! task stops before it, and a work item fetches the memory. The work item then provides a copy of
//! the payload for exactly that FPDU, or carries out the operation and provides the answer, and
//! runs the transmit task. So each FPDU waits once, whichever pages the process takes away.
//!
//! The stream may end meanwhile, and another one may begin. An operation is carried out under the
//! lock of the state, with which the end of the stream makes it outdated: so nothing is carried out
//! after the end, or with the rights of the next stream.
//!
//! The process may bind a window anew meanwhile, even under the same key. Then what was fetched is
//! not used, and the memory that the window refers to now is fetched.
//!
//! As with any payload, the copy is made between the post of the request and its completion. For
//! the peer's Read, packing the FPDU checks again that the octets may be sent.
//!
//! Context: requesting: the running transmit task. Fetching: process.

use iwarp::{
    actions::{
        After,
        Set, //
    },
    atomic::{
        AtomicResponse,
        TARGET_LEN, //
    },
    fault::Fault,
    rdmap::ReadRequest,
};
use kernel::{
    prelude::*,
    sync::Arc, //
};
use kernel_ext::{
    rdma::wr::WcStatus,
    warn_on_once, //
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
        Fetched,
        Wanted, //
    },
    queue::readq::{
        Epoch,
        InboundAtomic,
        InboundRequest, //
    },
    stream::{
        connection::StreamConnection,
        owner::QpShared, //
    }, //
};

use super::pack::NotPacked;

/// What the transmit task of a queue pair waits for.
#[derive(Default)]
pub(crate) enum PagingOut {
    /// Nothing.
    #[default]
    Idle,
    /// The work item has to fetch this.
    Wanted(Need),
    /// The work item is fetching.
    Busy,
    /// The work item is fetching for a stream that has ended; another may have begun.
    Outdated,
    /// The work item has fetched this payload.
    Found(FetchedPayload),
}

/// What the work item has to fetch.
pub(crate) enum Need {
    Payload(PayloadKey, KBox<PayloadSource>),
    /// Dequeued already. Not boxed: if that allocation failed, the operation would be lost.
    Atomic(InboundAtomic, Epoch),
}

/// Names the payload of one FPDU.
pub(crate) struct PayloadKey {
    pub(super) conn: Arc<StreamConnection>,
    /// Position of the FPDU in the stream.
    pub(super) position: u64,
    /// Offset of the payload in the message.
    pub(super) offset: u32,
    /// Length in octets.
    pub(super) len: usize,
    /// Which binding of a window the peer reads. It only grows, and the fetch begins after it was
    /// looked up: so if it is still the same, nothing else was fetched.
    pub(super) binding: u64,
}

impl PayloadKey {
    /// Returns whether this payload includes all of `other`.
    fn covers(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.conn, &other.conn)
            && (self.position, self.offset) == (other.position, other.offset)
            && self.binding == other.binding
            && self.len >= other.len
    }
}

/// Source of a payload.
pub(crate) enum PayloadSource {
    Slices(Slices),
    Remote(Arc<Region>, ReadRequest),
}

/// A fetched payload, or why it could not be fetched.
pub(crate) struct FetchedPayload {
    place: PayloadKey,
    octets: Result<KVVec<u8>, NotPacked>,
}

/// Returns a fetched payload. If it is missing, the work item is to fetch it from `origin()`,
/// unless it is busy; the caller queues it ([`After::FetchOut`]).
///
/// # Errors
///
/// * [`NotPacked::Absent`]: the work item fetches it, or something else before it, and then runs
///   the transmit task.
/// * [`NotPacked::Memory`]: the request to fetch it cannot be allocated.
/// * [`NotPacked::Local`] or [`NotPacked::Remote`]: it cannot be fetched.
pub(super) fn found_or_wanted(
    qp: &QpShared,
    place: PayloadKey,
    origin: impl FnOnce() -> PayloadSource,
) -> Result<KVVec<u8>, NotPacked> {
    let _drop_outside_lock;
    let mut state = qp.paging_out.lock();
    match core::mem::take(&mut *state) {
        PagingOut::Found(found) if found.place.covers(&place) => {
            drop(state);
            return found.octets;
        }
        busy @ (PagingOut::Busy | PagingOut::Outdated | PagingOut::Wanted(_)) => *state = busy,
        stale @ (PagingOut::Idle | PagingOut::Found(_)) => {
            _drop_outside_lock = stale;
            let origin = KBox::new(origin(), GFP_ATOMIC).map_err(|_| NotPacked::Memory)?;
            *state = PagingOut::Wanted(Need::Payload(place, origin));
        }
    }
    Err(NotPacked::Absent)
}

/// Has the work item carry out an atomic operation, now or later. The caller carries out what is
/// returned.
pub(super) fn want_atomic(qp: &QpShared, atomic: InboundAtomic) -> Set<After> {
    let epoch = qp.inbound_reads.epoch();
    let _drop_outside_lock;
    let mut state = qp.paging_out.lock();
    if let PagingOut::Idle | PagingOut::Found(_) = &*state {
        let wanted = PagingOut::Wanted(Need::Atomic(atomic, epoch));
        _drop_outside_lock = core::mem::replace(&mut *state, wanted);
        return Set::NONE.with(After::FetchOut);
    }
    drop(state);
    // The work item is busy, and runs the transmit task again afterwards.
    qp.inbound_reads
        .put_back(epoch, InboundRequest::Atomic(atomic));
    Set::NONE
}

/// Fetches what the transmit task waits for; returns whether the transmit task can go on.
///
/// Context: process; takes as long as page faults do.
pub(crate) fn page_out(qp: &QpShared) -> bool {
    let need = {
        let mut state = qp.paging_out.lock();
        match core::mem::replace(&mut *state, PagingOut::Busy) {
            PagingOut::Wanted(need) => need,
            other => {
                *state = other;
                return false;
            }
        }
    };
    qp.device.stats.tx_page_waits.inc();
    match need {
        Need::Payload(place, origin) => {
            let octets = qp.fetch(&place, &origin);
            // Dropped outside the lock, because it may hold the last reference to its connection.
            let mut found = PagingOut::Found(FetchedPayload { place, octets });
            let mut state = qp.paging_out.lock();
            if state.end_fetch() {
                core::mem::swap(&mut *state, &mut found);
            }
        }
        Need::Atomic(atomic, epoch) => {
            // Dropped outside the lock, because unpinning memory may sleep.
            let target = qp.fetch_target(&atomic);
            let done = {
                let mut state = qp.paging_out.lock();
                state.end_fetch().then(|| match &target {
                    Ok(fetched) => qp.operate_fetched(&atomic, fetched),
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
            qp.inbound_reads.put_back(epoch, request);
        }
    }
    true
}

impl PagingOut {
    /// Ends the work item's fetch. Returns whether the stream for which it began still exists.
    fn end_fetch(&mut self) -> bool {
        matches!(core::mem::take(self), Self::Busy)
    }
}

impl QpShared {
    /// Drops what was fetched for a stream that has ended, and marks a running fetch as outdated.
    ///
    /// Context: process.
    pub(crate) fn forget_paging_out(&self) {
        let _drop_outside_lock = {
            let mut state = self.paging_out.lock();
            match &*state {
                PagingOut::Busy | PagingOut::Outdated => {
                    *state = PagingOut::Outdated;
                    PagingOut::Idle
                }
                PagingOut::Idle | PagingOut::Wanted(_) | PagingOut::Found(_) => {
                    core::mem::take(&mut *state)
                }
            }
        };
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
        slices.fetch(self.pd(), place.offset, &mut octets)?;
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
        let wanted = {
            let access = PeerAccess::open(region, self.stream_id(), None);
            let access = access.ok_or(Fault::SourceInvalidStag)?;
            // CAST: less than the payload of one FPDU.
            access.read(request, len as u32, |inside, at| {
                let source = LocalUse::Source;
                Ok::<_, Fault>(Wanted::new(region, inside, at, len, source))
            })?
        };
        wanted
            .fetch()
            .and_then(|memory| memory.read(0, &mut octets))
            .map_err(fault_of_fetch)?;
        Ok(octets)
    }

    /// Fetches the target of an atomic operation of the peer.
    fn fetch_target(&self, atomic: &InboundAtomic) -> Result<Fetched, Fault> {
        let wanted = self.with_target(atomic, Ok)?;
        Ok(Fetched::new(wanted))
    }

    /// Carries out an atomic operation of the peer on its fetched target, which it checks again.
    /// Returns [`None`], without effect, if the target is another one now, or others keep changing
    /// it.
    ///
    /// Context: `paging_out` locked; does not sleep.
    fn operate_fetched(
        &self,
        atomic: &InboundAtomic,
        fetched: &Fetched,
    ) -> Result<Option<u64>, Fault> {
        self.with_target(atomic, |wanted| {
            let Some(memory) = fetched.memory_of(&wanted) else {
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
        f: impl FnOnce(Wanted) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let (request, region) = (&atomic.request, &atomic.target);
        let access = PeerAccess::open(region, self.stream_id(), None);
        let access = access.ok_or(Fault::SourceInvalidStag)?;
        access.operate(request, |inside, at| {
            // CAST: widens.
            let len = TARGET_LEN as usize;
            f(Wanted::new(region, inside, at, len, LocalUse::Sink))
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
