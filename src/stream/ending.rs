// SPDX-License-Identifier: GPL-2.0

//! Why a stream ended, if not as both ends wanted: for the log and the state of the queue pair.
//!
//! The first reason counts: what follows from it is not logged.
//!
//! Context: any, unless a function says otherwise.

use iwarp::{
    actions::{
        After,
        Set, //
    },
    fault::{
        ErrorClass,
        ErrorCode,
        Fault, //
    },
    lifecycle::{
        Event,
        FirstFailure,
        Notice, //
    },
    rdmap::Opcode,
    terminate::{
        Quoted,
        Terminate, //
    }, //
};
use kernel::{
    fmt,
    prelude::*,
    sync::atomic::Relaxed, //
};
use kernel_ext::rdma::wr::WcStatus;

use crate::queue::sq::Slot;

use super::{
    connection::Loss,
    owner::QpShared,
    trace::TerminateSender, //
};

/// Why a stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamEnd {
    /// A fault in what the peer sent, or in what it asked for.
    Fault(Fault),
    /// A work request of this end could not be carried out.
    Request(WcStatus),
    /// The peer's Terminate.
    PeerTerminate(ErrorCode),
    /// Without an orderly close.
    Lost(Loss),
}

impl StreamEnd {
    const FAULT: u8 = 1;
    const REQUEST: u8 = 2;
    const PEER_TERMINATE: u8 = 3;
    const LOST: u8 = 4;

    /// Returns the reason as a word, which is not 0.
    fn to_raw(self) -> u32 {
        let [kind, a, b] = match self {
            // CAST: there are fewer than 256 faults.
            Self::Fault(fault) => [Self::FAULT, 0, fault as u8],
            // CAST: the numbers of the verbs are small.
            Self::Request(status) => [Self::REQUEST, 0, status.to_raw() as u8],
            Self::PeerTerminate(code) => {
                let [class, code] = code.octets();
                [Self::PEER_TERMINATE, class, code]
            }
            Self::Lost(loss) => {
                let [kind, error] = loss.to_raw();
                [Self::LOST, kind, error]
            }
        };
        u32::from_be_bytes([0, kind, a, b])
    }

    /// Returns the reason of a word of [`StreamEnd::to_raw`]; [`None`] for 0.
    fn from_raw(raw: u32) -> Option<Self> {
        let [_, kind, a, b] = raw.to_be_bytes();
        match kind {
            Self::FAULT => Fault::ALL.get(usize::from(b)).copied().map(Self::Fault),
            Self::REQUEST => WcStatus::from_raw(b.into()).map(Self::Request),
            Self::PEER_TERMINATE => Some(Self::PeerTerminate(ErrorCode {
                layer: a >> 4,
                etype: a & 0x0f,
                code: b,
            })),
            Self::LOST => Some(Self::Lost(Loss::from_raw([a, b]))),
            _ => None,
        }
    }
}

impl StreamEnd {
    /// Returns where the reason lies, in a few words.
    pub(crate) fn kind(self) -> &'static str {
        match self {
            Self::Fault(_) => "fault of the peer",
            Self::Request(_) => "fault of this end",
            Self::PeerTerminate(_) => "Terminate of the peer",
            Self::Lost(_) => "lost",
        }
    }
}

impl fmt::Display for StreamEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fault(fault) => {
                f.write_str(fault.text())?;
                f.write_str("; ")?;
                CodeText(fault.code()).fmt(f)
            }
            Self::Request(status) => f.write_str(request_text(*status)),
            Self::PeerTerminate(code) => CodeText(*code).fmt(f),
            Self::Lost(loss) => f.write_str(loss.text()),
        }
    }
}

/// An error of a Terminate in words, with its number as in
/// [`vendor_err`](crate::abi::wr::Completion::vendor_err).
struct CodeText(ErrorCode);

impl fmt::Display for CodeText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(code) = *self;
        let (class, text) = (code.class_text(), code.text());
        write!(f, "{class}: {text} ({:#x})", terminate_number(code))
    }
}

/// Returns the code of a Terminate as one number, which is not 0.
pub(crate) fn terminate_number(code: ErrorCode) -> u32 {
    let [class, code] = code.octets();
    u32::from_be_bytes([0, 1, class, code])
}

/// Returns why a work request failed at this end.
pub(super) fn request_text(status: WcStatus) -> &'static str {
    match status {
        WcStatus::LocalLength => "its list and its message differ in length",
        WcStatus::LocalProtection | WcStatus::LocalAccess => {
            "its list names a region that is unknown or lacks a right"
        }
        WcStatus::MwBind => "its window cannot be bound",
        WcStatus::Success
        | WcStatus::LocalQpOperation
        | WcStatus::Flushed
        | WcStatus::BadResponse
        | WcStatus::RemoteInvalidRequest
        | WcStatus::RemoteAccess
        | WcStatus::RemoteOperation
        | WcStatus::RetryExceeded
        | WcStatus::RnrRetryExceeded
        | WcStatus::RemoteAborted
        | WcStatus::General => "it cannot be carried out",
    }
}

impl QpShared {
    /// Returns why the stream ended, if not as both ends wanted.
    pub(crate) fn ending(&self) -> Option<StreamEnd> {
        StreamEnd::from_raw(self.ending.load(Relaxed))
    }

    /// Keeps and logs why the stream ends, unless it ends for another reason already. `quoted` is
    /// the header of the segment at fault.
    ///
    /// Context: any, without the lock of `inner`.
    #[cold]
    pub(crate) fn note_end(&self, end: StreamEnd, quoted: Option<&Quoted>) {
        if self.ending.cmpxchg(0, end.to_raw(), Relaxed).is_err() {
            return;
        }
        let peer = {
            let inner = self.inner.lock();
            inner
                .conn
                .as_ref()
                .map(|conn| conn.connection.socket().addr_pair().1)
        };
        // A queue pair has a connection as long as it has a stream.
        let Some(peer) = peer else {
            return;
        };
        let (number, device) = (self.number, &self.device);
        let operation = quoted.and_then(Quoted::opcode).map(Opcode::name);
        match end {
            StreamEnd::Fault(fault) => {
                // The header of a damaged FPDU may be anything.
                let readable = fault.code().class() != Some(ErrorClass::Mpa);
                let what = operation.filter(|_| readable).unwrap_or("message");
                device.warn(fmt!(
                    "queue pair {number}, peer {peer}: stream ended because of a fault in the peer's {what}: {end}"
                ));
            }
            StreamEnd::PeerTerminate(_) => {
                let what = operation.unwrap_or("message");
                device.warn(fmt!(
                    "queue pair {number}, peer {peer}: stream ended by the peer because of this end's {what}: {end}"
                ));
            }
            StreamEnd::Request(_) => device.notice(fmt!(
                "queue pair {number}, peer {peer}: stream ended because of this end's work request: {end}"
            )),
            StreamEnd::Lost(loss) if loss.is_usual() => {
                device.notice(fmt!("queue pair {number}, peer {peer}: stream lost: {end}"));
            }
            StreamEnd::Lost(_) => {
                device.warn(fmt!("queue pair {number}, peer {peer}: stream lost: {end}"));
            }
        }
    }
}

// The ends of a stream. The caller carries out what is returned. Context: any.
impl QpShared {
    /// Terminates the stream for a fault in what the peer sent or asked for, and raises the event
    /// of its class, unless the stream has ended already.
    #[cold]
    pub(super) fn fault(&self, fault: Fault, quoted: Option<&Quoted>) -> Set<After> {
        self.trace_fault(terminate_number(fault.code()), fault.text());
        if self.device.strict.is_on() {
            self.check_peer_key(fault, quoted);
        }
        self.note_end(StreamEnd::Fault(fault), quoted);
        self.terminate(Notice::of(fault), Terminate::for_fault(fault, quoted))
    }

    /// Completes a request that cannot be carried out with an error, and terminates the stream.
    #[cold]
    pub(super) fn refuse(&self, slot: Slot, status: WcStatus) -> Set<After> {
        self.trace_fault(terminate_number(Fault::Local.code()), request_text(status));
        self.note_end(StreamEnd::Request(status), None);
        self.sq.finish(slot, status, self.origin());
        self.terminate(Notice::Completion, Terminate::for_fault(Fault::Local, None))
    }

    /// Handles the peer's Terminate (RDMAP-97, -133).
    pub(super) fn terminated_by_peer(&self, terminate: &Terminate) -> Set<After> {
        self.device.stats.terminates_received.inc();
        self.trace_terminate(TerminateSender::Peer, terminate_number(terminate.code));
        self.peer_terminate
            .store(terminate_number(terminate.code), Relaxed);
        self.note_end(
            StreamEnd::PeerTerminate(terminate.code),
            terminate.quoted.as_ref(),
        );
        self.apply(Event::PeerTerminate(FirstFailure::of(terminate)))
    }
}

#[kernel::prelude::kunit_tests(riwarp_ending)]
mod tests {
    use super::*;
    use crate::bench::Bench;

    #[test]
    fn first_end_reason_is_kept() -> Result {
        let bench = Bench::new()?;
        let cq = bench.cq(8)?;
        let qp = bench.qp(4, &cq)?;
        assert_eq!(qp.shared.ending(), None);
        let first = StreamEnd::Lost(Loss::Cut);
        qp.shared.note_end(first, None);
        qp.shared.note_end(StreamEnd::Fault(Fault::Crc), None);
        assert_eq!(qp.shared.ending(), Some(first));
        bench.destroy(&qp);
        Ok(())
    }

    #[test]
    fn end_after_killed_program_is_usual() {
        assert!(Loss::Here.is_usual());
        for error in [0, 32, 104] {
            assert!(Loss::Tcp(error).is_usual());
        }
        for loss in [Loss::Cut, Loss::Stuck, Loss::Tcp(110), Loss::Tcp(113)] {
            assert!(!loss.is_usual());
        }
    }

    #[test]
    fn end_reason_round_trips_as_word() {
        let check = |end: StreamEnd| {
            assert!(end.to_raw() != 0);
            assert_eq!(StreamEnd::from_raw(end.to_raw()), Some(end));
        };
        for fault in Fault::ALL {
            check(StreamEnd::Fault(fault));
            check(StreamEnd::PeerTerminate(fault.code()));
        }
        for loss in [
            Loss::Here,
            Loss::Cut,
            Loss::Stuck,
            Loss::Tcp(0),
            Loss::Tcp(110),
        ] {
            check(StreamEnd::Lost(loss));
        }
        for status in [WcStatus::LocalLength, WcStatus::General] {
            check(StreamEnd::Request(status));
        }
        assert_eq!(StreamEnd::from_raw(0), None);
    }
}
