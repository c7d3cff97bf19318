// SPDX-License-Identifier: GPL-2.0

//! The connection under a stream, as the queue pair sees it.
//!
//! The queue pair holds a reference from bind to the end of the stream. What it wants of the
//! connection are flags ([`StreamConnection::ask`]), which the connection's work item takes.

use iwarp::{
    actions::{
        Action,
        Later, //
    },
    features::Features,
    mpa::{
        negotiate::{
            FeatureRules,
            Rtr, //
        },
        start::{
            Revision,
            RtrKinds, //
        },
        Crc,
        Markers, //
    },
    oob::RnrRetry,
    rdmap::{
        Extensions,
        Marked, //
    }, //
};
use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Relaxed,
            Release, //
        },
        Arc, //
    }, //
};
use kernel_ext::{
    compat::{
        EBADMSG,
        ECONNRESET,
        EHOSTUNREACH,
        EKEYEXPIRED,
        ENETDOWN,
        ENETUNREACH,
        EPROTO, //
    },
    net::Socket,
    workqueue::{
        Enqueue,
        OwnedQueue, //
    }, //
};

use crate::device::refs::Ref;

/// How a stream ended, as reported to its queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The peer's FIN came between two FPDUs.
    Graceful,
    /// In any other way.
    Lost(Loss),
}

/// How a stream was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loss {
    /// By this end, or after this end has closed it: nothing to report.
    Here,
    /// The peer's FIN came inside an FPDU or a message (MPA-30).
    Cut,
    /// The peer did not take what it was owed within the time limit.
    Stuck,
    /// A FIN came without the closure alert of TLS (RFC 8446, section 6.1).
    Unclosed,
    /// TCP ended the connection, with this error number; 0 if the error was reported elsewhere.
    Tcp(u8),
}

impl Loss {
    /// Returns two octets that stand for it.
    pub(super) fn to_raw(self) -> [u8; 2] {
        match self {
            Self::Here => [0, 0],
            Self::Cut => [1, 0],
            Self::Stuck => [2, 0],
            Self::Tcp(error) => [3, error],
            Self::Unclosed => [4, 0],
        }
    }

    /// Returns what these octets stand for.
    pub(super) fn from_raw(raw: [u8; 2]) -> Self {
        match raw {
            [1, _] => Self::Cut,
            [2, _] => Self::Stuck,
            [3, error] => Self::Tcp(error),
            [4, _] => Self::Unclosed,
            _ => Self::Here,
        }
    }

    /// Returns whether it is what happens whenever a program of the peer is killed.
    pub(super) fn is_usual(self) -> bool {
        match self {
            Self::Here => true,
            Self::Cut | Self::Stuck | Self::Unclosed => false,
            Self::Tcp(error) => matches!(Self::error(error), None | Some(ECONNRESET | EPIPE)),
        }
    }

    /// Returns it in words.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Here => "closed by this end",
            Self::Cut => "the peer closed it inside a message",
            Self::Stuck => "the peer took nothing for too long",
            Self::Unclosed => "it was closed without the closure alert of TLS",
            Self::Tcp(error) => match Self::error(error) {
                None | Some(ECONNRESET | EPIPE) => "reset by the peer",
                Some(ETIMEDOUT) => "the peer does not answer",
                Some(EHOSTUNREACH | ENETUNREACH | ENETDOWN) => "the peer cannot be reached",
                Some(EBADMSG) => "a TLS record was not the peer's",
                Some(EPROTO) => "the peer has sent a TLS alert, or what TLS does not have there",
                Some(EKEYEXPIRED) => "the keys of TLS have to be changed, which is not supported",
                Some(_) => "TCP gave it up",
            },
        }
    }

    fn error(number: u8) -> Option<Error> {
        (number != 0).then(|| Error::from_errno(-i32::from(number)))
    }
}

/// The result of start-up.
pub(crate) struct StreamParams {
    /// Whether CRCs are generated and checked.
    pub(crate) crc: Crc,
    /// Whether the peer wants Markers in what this end sends.
    pub(crate) markers: Markers,
    /// The revision of the start-up frames; without enhanced data, which only revision 2 has, they
    /// count as revision 1.
    pub(crate) revision: Revision,
    /// How many Reads the peer may have outstanding.
    pub(crate) ird: u16,
    /// How many Reads this end may have outstanding.
    pub(crate) ord: u16,
    /// The ready-to-receive message that this end sends first.
    pub(crate) send_rtr: Option<Rtr>,
    /// The kinds of ready-to-receive message allowed as the peer's first FPDU; none if the peer's
    /// first FPDU belongs to its ULP.
    pub(crate) expect_rtr: RtrKinds,
    /// Whether this end stays silent until the peer's first valid FPDU (MPA-9).
    pub(crate) wait_first_fpdu: bool,
    /// The extensions that both ends support.
    pub(crate) extensions: Extensions,
    /// What the ends tell each other about themselves.
    pub(crate) features: FeatureRules,
    /// How often InfiniBand would repeat the peer's Sends that find no receive, if it has told.
    pub(crate) rnr_retry: Option<RnrRetry>,
}

/// A connection that carries a stream: its socket, and what its work item is asked to do.
///
/// The last reference must be dropped in process context, because that closes the socket.
pub(crate) struct StreamConnection {
    /// The number that the connection manager finds it by.
    number: u64,
    socket: Arc<Socket>,
    /// A set of [`Later`], of which none is ever taken back.
    asked: Atomic<u32>,
    /// What both ends can do, as far as the peer has told: the longest ULPDU beyond a TCP segment,
    /// and above it the bits of the marked messages.
    features: Atomic<u32>,
    /// Dropped last, after the socket is closed.
    _counted: Ref,
}

impl StreamConnection {
    /// Creates the connection of a socket, which `counted` counts until the socket is closed.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(number: u64, socket: Arc<Socket>, counted: Ref) -> Result<Arc<Self>> {
        let connection = Self {
            number,
            socket,
            asked: Atomic::new(0),
            features: Atomic::new(0),
            _counted: counted,
        };
        Ok(Arc::new(connection, GFP_KERNEL)?)
    }

    /// Returns the number that the connection manager finds it by.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Returns the socket.
    #[inline]
    pub(crate) fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Notes what both ends can do, before the stream is attached, or before this end may send.
    pub(crate) fn set_features(&self, common: Features) {
        // ORDERING: whatever lets the transmit task send comes later and orders this before it.
        let Features { ulpdu_max, marked } = common;
        // With TLS no FPDU is longer than a record.
        let ulpdu_max = if self.socket.is_secure() {
            0
        } else {
            ulpdu_max
        };
        let raw = u32::from(marked.bits()) << 16 | u32::from(ulpdu_max);
        self.features.store(raw, Relaxed);
    }

    /// Returns the longest ULPDU that the peer takes beyond a TCP segment; 0 if it has told none.
    #[inline]
    pub(crate) fn ulpdu_max(&self) -> u16 {
        // CAST: the lower 16 bits. ORDERING: see `set_features`.
        self.features.load(Relaxed) as u16
    }

    /// Returns whether both ends take these messages, which a reserved bit marks.
    pub(crate) fn takes(&self, messages: Marked) -> bool {
        // CAST: the upper 16 bits. ORDERING: see `set_features`.
        let bits = (self.features.load(Relaxed) >> 16) as u16;
        Marked::from_bits(bits).contains(messages)
    }

    /// Asks for something. The caller queues the work item of the connection. Context: any.
    ///
    /// After [`Later::Close`], [`Later::Abort`] resets what is still open.
    pub(crate) fn ask(&self, what: Later) {
        // ORDERING: pairs with `is_asked` in the step that sees it; queueing the work item orders
        // this before a new step. The load is a first guess, which the exchange checks.
        let mut seen = self.asked.load(Relaxed);
        while let Err(other) = self.asked.cmpxchg(seen, seen | 1 << what.place(), Release) {
            seen = other;
        }
    }

    /// Returns whether this was asked for.
    pub(crate) fn is_asked(&self, what: Later) -> bool {
        // ORDERING: pairs with `ask`.
        self.asked.load(Acquire) & (1 << what.place()) != 0
    }
}

/// The work item of a connection that carries a stream.
pub(crate) const STREAM_STEP: u64 = 2;

/// The connection that a queue pair is bound to.
#[derive(Clone)]
pub(crate) struct Bound {
    pub(crate) connection: Arc<StreamConnection>,
    /// The object that has the work item.
    pub(crate) item: Arc<dyn Enqueue<STREAM_STEP>>,
}

impl Bound {
    /// Queues the work item of the connection, unless it is queued already. Context: any.
    pub(crate) fn enqueue(&self, queue: &OwnedQueue) {
        self.item.as_arc_borrow().enqueue_on(queue);
    }

    /// Returns whether it is this connection.
    pub(crate) fn is(&self, connection: &Arc<StreamConnection>) -> bool {
        Arc::ptr_eq(&self.connection, connection)
    }
}
