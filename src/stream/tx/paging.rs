// SPDX-License-Identifier: GPL-2.0

//! What the transmit task of a queue pair waits for: memory of an outgoing message that is absent.
//!
//! If the payload of an FPDU or the target of the peer's atomic operation is absent, the transmit
//! task stops before it, and a work item (`qp/paging.rs`) fetches the memory. The work item then
//! provides a copy of the payload for exactly that FPDU, or carries out the operation and provides
//! the answer, and runs the transmit task. So each FPDU waits once, whichever pages the process
//! takes away.
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
//! Context: the running transmit task, unless a function says otherwise.

use iwarp::{
    actions::{
        After,
        Set, //
    },
    fault::Fault,
    rdmap::ReadRequest, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};
use kernel_ext::{
    rdma::wr::WcStatus,
    sync::SpinLockBh, //
};

use crate::{
    mem::{
        mr::Region,
        sge::Slices, //
    },
    queue::readq::{
        Epoch,
        InboundAtomic,
        InboundReads,
        InboundRequest, //
    },
    stream::connection::StreamConnection, //
};

/// Why the next FPDU of a message could not be packed.
#[derive(Clone, Copy)]
pub(crate) enum NotPacked {
    /// The payload's pages are absent.
    Absent,
    /// The batch, or the request to fetch the payload, cannot be allocated.
    Memory,
    /// The local work request is at fault.
    Local(WcStatus),
    /// The stream ends for this fault of the peer's request.
    Remote(Fault),
    /// A contradiction in the driver's own state, of which a warning tells.
    Inconsistent,
}

impl From<Fault> for NotPacked {
    fn from(fault: Fault) -> Self {
        Self::Remote(fault)
    }
}

/// What the transmit task of a queue pair waits for.
#[derive(Default)]
pub(crate) enum PagingOut {
    /// Nothing.
    #[default]
    Idle,
    /// The work item has to fetch this.
    Requested(FetchRequest),
    /// The work item is fetching.
    Busy,
    /// The work item is fetching for a stream that has ended; another may have begun.
    Outdated,
    /// The work item has fetched this payload.
    Found(FetchedPayload),
}

/// What the work item has to fetch.
pub(crate) enum FetchRequest {
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
    pub(crate) offset: u32,
    /// Length in octets.
    pub(crate) len: usize,
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
    pub(crate) place: PayloadKey,
    pub(crate) octets: Result<KVVec<u8>, NotPacked>,
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
pub(super) fn take_or_request(
    state: &SpinLockBh<PagingOut>,
    place: PayloadKey,
    origin: impl FnOnce() -> PayloadSource,
) -> Result<KVVec<u8>, NotPacked> {
    let _drop_outside_lock;
    let mut state = state.lock();
    match core::mem::take(&mut *state) {
        PagingOut::Found(found) if found.place.covers(&place) => {
            drop(state);
            return found.octets;
        }
        busy @ (PagingOut::Busy | PagingOut::Outdated | PagingOut::Requested(_)) => *state = busy,
        stale @ (PagingOut::Idle | PagingOut::Found(_)) => {
            _drop_outside_lock = stale;
            let origin = KBox::new(origin(), GFP_ATOMIC).map_err(|_| NotPacked::Memory)?;
            *state = PagingOut::Requested(FetchRequest::Payload(place, origin));
        }
    }
    Err(NotPacked::Absent)
}

/// Has the work item carry out an atomic operation, now or later. The caller carries out what is
/// returned.
pub(super) fn request_atomic(
    state: &SpinLockBh<PagingOut>,
    requests: &InboundReads,
    atomic: InboundAtomic,
) -> Set<After> {
    let epoch = requests.epoch();
    let _drop_outside_lock;
    let mut state = state.lock();
    if let PagingOut::Idle | PagingOut::Found(_) = &*state {
        let requested = PagingOut::Requested(FetchRequest::Atomic(atomic, epoch));
        _drop_outside_lock = core::mem::replace(&mut *state, requested);
        return Set::NONE.with(After::FetchOut);
    }
    drop(state);
    // The work item is busy, and runs the transmit task again afterwards.
    requests.put_back(epoch, InboundRequest::Atomic(atomic));
    Set::NONE
}

// Context: any.
impl PagingOut {
    /// Returns whether the transmit task waits for memory.
    pub(crate) fn is_awaited(&self) -> bool {
        matches!(self, Self::Requested(_) | Self::Busy)
    }

    /// Begins a fetch; returns what to fetch, if anything.
    pub(crate) fn begin_fetch(&mut self) -> Option<FetchRequest> {
        match core::mem::replace(self, Self::Busy) {
            Self::Requested(request) => Some(request),
            other => {
                *self = other;
                None
            }
        }
    }

    /// Ends the fetch. Returns whether the stream for which it began still exists.
    pub(crate) fn end_fetch(&mut self) -> bool {
        matches!(core::mem::take(self), Self::Busy)
    }

    /// Marks a running fetch as outdated, since its stream has ended; returns what was fetched or
    /// requested, to be dropped without the lock.
    pub(crate) fn end_stream(&mut self) -> Self {
        match self {
            Self::Busy | Self::Outdated => {
                *self = Self::Outdated;
                Self::Idle
            }
            Self::Idle | Self::Requested(_) | Self::Found(_) => core::mem::take(self),
        }
    }
}
