// SPDX-License-Identifier: GPL-2.0

//! The queue pair, as the two halves of its stream see it.

use iwarp::{
    fault::Fault,
    inject::COMM_LEN,
    mpa::{
        start::Revision,
        Crc,
        Markers, //
    },
    rdmap::Extensions,
    stag::{
        Access,
        Stag, //
    },
    terminate::Terminate, //
};
use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc, //
    }, //
};
use kernel_ext::{
    compat::SpinLockIrq,
    rdma::{
        object::QpLink,
        wr::WcStatus, //
    },
    sync::{
        NextCacheLine,
        SpinLockBh, //
    }, //
};

use crate::{
    abi::wr::WcOrigin,
    device::{
        inject::VerbCaller,
        Device, //
    },
    mem::{
        mr::{
            window::Bind,
            PdId,
            QpSerial,
            StreamId, //
        },
        pd::Pd,
        regions::Regions, //
    },
    queue::{
        cq::Cq,
        readq::InboundReads,
        rq::RecvQueue,
        sq::SendQueue,
        srq::Srq,
        waits::ReceiveWaiter, //
    }, //
};

use super::{
    connection::{
        Bound,
        StreamConnection, //
    },
    lifecycle::LifecycleWord,
    tx::{
        coalescer::{
            DoorbellCoalescer,
            RxEvents, //
        },
        paging::PagingOut, //
    }, //
};

/// Source of receive work requests.
pub(crate) enum Receives {
    Own(Arc<RecvQueue>),
    Shared(Arc<Srq>),
}

impl Receives {
    /// Returns the ring.
    #[inline]
    pub(crate) fn queue(&self) -> &Arc<RecvQueue> {
        match self {
            Self::Own(queue) => queue,
            Self::Shared(srq) => srq.queue(),
        }
    }
}

/// State that the stream's callbacks need too.
pub(crate) struct QpInner {
    pub(crate) conn: Option<Bound>,
    /// The Terminate of the first fault (RDMAP-144), until the transmit task takes it.
    pub(crate) terminate: Option<Terminate>,
    /// What the ends of the last stream agreed on, for administrators.
    pub(crate) negotiated: Option<Negotiated>,
}

impl QpInner {
    /// Returns whether the queue pair is bound to this connection.
    pub(crate) fn is_bound(&self, conn: &Arc<StreamConnection>) -> bool {
        self.conn.as_ref().is_some_and(|bound| bound.is(conn))
    }
}

/// What two ends have agreed on.
#[derive(Clone, Copy)]
pub(crate) struct Negotiated {
    pub(crate) revision: Revision,
    pub(crate) crc: Crc,
    pub(crate) markers: Markers,
    pub(crate) extensions: Extensions,
}

impl Negotiated {
    /// Returns the number of the revision.
    pub(crate) fn mpa_rev(&self) -> u8 {
        match self.revision {
            Revision::One => 1,
            Revision::Two => 2,
        }
    }
}

/// Why a request waits until Reads are answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadWait {
    /// It has a fence.
    Fence,
    /// As many Reads are outstanding as may be.
    Ord,
    /// As many requests are pending as the send queue has entries.
    Queue,
}

impl ReadWait {
    pub(super) fn to_raw(self) -> u32 {
        match self {
            Self::Fence => 0,
            Self::Ord => 1,
            Self::Queue => 2,
        }
    }

    pub(crate) fn from_raw(raw: u32) -> Self {
        match raw {
            0 => Self::Fence,
            1 => Self::Ord,
            _ => Self::Queue,
        }
    }
}

/// The part of a queue pair that its stream uses. The order of its fields matters for the CPU's
/// cache.
#[pin_data]
#[repr(C)]
pub(crate) struct QpShared {
    pub(crate) number: u32,
    /// Its consumer is a process.
    pub(crate) user: bool,
    /// The name of that process when it made the queue pair.
    pub(crate) comm: [u8; COMM_LEN],
    pub(crate) link: QpLink,
    pub(crate) device: Arc<Device>,
    pub(crate) pd: Arc<Pd>,
    pub(crate) regions: Arc<Regions>,
    pub(crate) recv_cq: Arc<Cq>,
    pub(crate) receives: Receives,
    pub(crate) lifecycle: LifecycleWord,
    pub(crate) serial: QpSerial,
    /// Upper limit of the peer's rights: an [`Access`].
    // ORDERING: Relaxed: set under the lock of `Qp::attrs`, which is taken before the stream
    // begins; a later change holds for what arrives afterwards.
    pub(crate) rights: Atomic<u32>,
    /// Code of the peer's Terminate, as in [`crate::abi::wr::Completion::vendor_err`].
    // ORDERING: Relaxed: stored before the transition `PeerTerminate`, a full barrier; who flushes
    // has seen that.
    pub(crate) peer_terminate: Atomic<u32>,
    /// Why the stream ended, if not as both ends wanted: a [`StreamEnd`], or 0.
    // ORDERING: Relaxed: stands for no other memory; the exchange decides which reason is the
    // first.
    pub(crate) ending: Atomic<u32>,
    #[pin]
    pub(crate) inner: SpinLockIrq<QpInner>,
    /// The number of the rules by which the stream sends slowly, or 0.
    // ORDERING: Relaxed: stands for no other memory.
    pub(crate) paced_by: Atomic<u32>,
    /// What a request waited for the last time that it waited for Reads: a [`ReadWait`].
    // ORDERING: Relaxed: only for reports.
    pub(crate) read_wait: Atomic<u32>,
    /// Requests an idle check from the transmit task.
    pub(crate) idle_check: Atomic<bool>,
    // Written for each message that is sent.
    pub(crate) _sender: NextCacheLine,
    #[pin]
    pub(crate) sq: SendQueue,
    /// A part of a message is packed, and TCP has not accepted all of the message; written by the
    /// transmit task.
    // ORDERING: Relaxed: set before the task frees the entry of an answered request, begins a Read
    // behind other octets or completes a request, each under a lock that `Qp::has_unsent` takes
    // before it loads this. Cleared after TCP took the octets under the socket's lock, which a FIN
    // takes too.
    pub(crate) packed: Atomic<bool>,
    pub(crate) coalescer: DoorbellCoalescer,
    /// The transmit timer is armed; the transmit task it starts sees what was posted before.
    pub(crate) tx_timer_armed: Atomic<bool>,
    // Written for each message that is received.
    pub(crate) _receiver: NextCacheLine,
    /// Its place among those that wait for a receive.
    pub(crate) waiter: Arc<ReceiveWaiter>,
    /// How long a message waits for its receive, in milliseconds, or [`FOR_EVER`].
    // ORDERING: Relaxed: stands for no other memory; a change holds for what arrives afterwards.
    pub(crate) receive_wait: Atomic<u32>,
    pub(crate) rx_events: RxEvents,
    pub(crate) _rest: NextCacheLine,
    #[pin]
    pub(crate) inbound_reads: InboundReads,
    /// Absent memory that the transmit task waits for.
    #[pin]
    pub(crate) paging_out: SpinLockBh<PagingOut>,
}

// Context: any, unless a function says otherwise.
impl QpShared {
    pub(crate) fn pd(&self) -> PdId {
        self.pd.id()
    }

    /// Returns the domain of the regions that receives use. Who posts to a shared receive queue
    /// does not know which queue pair will take the request, so it is the domain of that queue.
    pub(super) fn receive_pd(&self) -> PdId {
        match &self.receives {
            Receives::Own(_) => self.pd(),
            Receives::Shared(srq) => srq.pd(),
        }
    }

    /// Returns how regions identify the stream.
    pub(crate) fn stream_id(&self) -> StreamId {
        StreamId {
            pd: self.pd(),
            qp: self.serial,
            // CAST: only the bits of an `Access` are stored.
            rights: Access::from_bits(self.rights.load(Relaxed) as u8),
        }
    }

    /// Returns the name of the process that made the queue pair; [`None`] for a kernel consumer.
    pub(crate) fn process_name(&self) -> Option<[u8; COMM_LEN]> {
        self.user.then_some(self.comm)
    }

    /// Returns who calls a verb of the queue pair.
    pub(crate) fn caller(&self) -> VerbCaller {
        VerbCaller::Qp {
            number: self.number,
            comm: self.process_name(),
        }
    }

    pub(crate) fn origin(&self) -> WcOrigin {
        WcOrigin {
            qpn: self.number,
            qp: self.link.id(),
            vendor_err: self.peer_terminate(),
        }
    }

    pub(crate) fn conn(&self) -> Option<Arc<StreamConnection>> {
        let inner = self.inner.lock();
        inner.conn.as_ref().map(|bound| bound.connection.clone())
    }

    /// Returns the code of the peer's Terminate, as in
    /// [`vendor_err`](crate::abi::wr::Completion::vendor_err).
    pub(crate) fn peer_terminate(&self) -> u32 {
        self.peer_terminate.load(Relaxed)
    }

    /// Returns whether the consumer can receive Immediate Data.
    pub(crate) fn tells_immediate_data(&self) -> bool {
        !self.user || self.device.abi().has_extensions()
    }

    pub(crate) fn take_terminate(&self) -> Option<Terminate> {
        self.inner.lock().terminate.take()
    }

    /// Invalidates a region on behalf of the local consumer.
    pub(crate) fn invalidate_local(&self, stag: Stag) -> Result<(), WcStatus> {
        let named = self.named_by(stag);
        self.regions
            .region(stag)
            .ok_or(WcStatus::LocalQpOperation)?
            .invalidate_local(self.stream_id(), stag)?;
        self.note_invalidated(stag, named);
        Ok(())
    }

    /// Invalidates a region on behalf of the peer (RDMAP-91..93).
    pub(crate) fn invalidate_remote(&self, stag: Stag) -> Result<(), Fault> {
        let named = self.named_by(stag);
        let region = self.regions.region(stag).ok_or(Fault::InvalidateUnknown)?;
        region.invalidate_remote(self.stream_id(), stag)?;
        self.note_invalidated(stag, named);
        Ok(())
    }

    /// Binds a memory window.
    pub(super) fn bind_window(&self, bind: &Bind) -> Result<(), WcStatus> {
        let window = self.regions.region(bind.window).ok_or(WcStatus::MwBind)?;
        let region = self.regions.region(bind.region);
        let named = self.named_by(bind.window);
        window.bind(self.stream_id(), bind, region.as_ref())?;
        self.note_invalidated(bind.window, named);
        Ok(())
    }

    /// Notifies the consumers of both completion queues of what was posted since the last time.
    ///
    /// Context: softirq or process, no lock held but mutexes.
    pub(crate) fn notify(&self) {
        self.each_cq(Cq::notify);
    }

    /// Calls `f` with each completion queue, once if both are the same.
    #[inline]
    pub(crate) fn each_cq(&self, f: impl Fn(&Cq)) {
        f(self.sq.cq());
        if !Arc::ptr_eq(self.sq.cq(), &self.recv_cq) {
            f(&self.recv_cq);
        }
    }

    /// Returns whether an idle check is due, and clears the request.
    #[inline]
    pub(super) fn is_idle_check_due(&self) -> bool {
        // Only the transmit task clears it. ORDERING: none is needed: the flag says nothing about
        // other memory, and who sets it runs or rearms the task afterwards.
        if !self.idle_check.load(Relaxed) {
            return false;
        }
        self.idle_check.store(false, Relaxed);
        true
    }
}
