// SPDX-License-Identifier: GPL-2.0

//! Ready to receive: the first message of a peer-to-peer connection.
//!
//! RFC 6581, sections 3 and 9 (rows MPA-39..45).

use crate::{
    ddp::{
        MessagePart,
        Msn, //
    },
    fault::Fault,
    mpa::start::RtrKinds,
    rdmap::{
        ReadRequest,
        SendEvent,
        SendExtra,
        SendKind, //
    },
    receiver::{
        QueueRoom,
        Segment, //
    },
    segment::Message,
    stag::{
        Stag,
        TaggedOffset, //
    }, //
};

/// One RTR kind: what the Initiator of a peer-to-peer connection sends first (MPA-40, -42).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rtr {
    /// A zero-length Send.
    Send,
    /// A zero-length RDMA Write.
    Write,
    /// A zero-length RDMA Read; takes one slot of ORD and IRD, and MSN 1 of the Read queue.
    Read,
}

impl Rtr {
    /// Chooses the kind to send: Write before Read, since a Write is not answered, and Send last.
    pub(super) fn choose(common: RtrKinds) -> Option<Self> {
        [
            (RtrKinds::WRITE, Self::Write),
            (RtrKinds::READ, Self::Read),
            (RtrKinds::SEND, Self::Send),
        ]
        .into_iter()
        .find(|(kind, _)| common.contains(*kind))
        .map(|(_, rtr)| rtr)
    }

    /// Returns the message, the first of the stream. Its payload is empty and its STags are not
    /// used.
    pub const fn message(self) -> Message {
        const NOWHERE: Stag = Stag::new(1);
        const NOTHING: TaggedOffset = TaggedOffset::new(0);
        match self {
            Self::Send => Message::Send {
                kind: SendKind {
                    solicited: SendEvent::Silent,
                    extra: SendExtra::None,
                },
                msn: Msn::FIRST,
            },
            Self::Write => Message::Write {
                stag: NOWHERE,
                to: NOTHING,
            },
            Self::Read => Message::ReadRequest {
                request: ReadRequest {
                    sink_stag: NOWHERE,
                    sink_to: NOTHING,
                    len: 0,
                    source_stag: NOWHERE,
                    source_to: NOTHING,
                },
                msn: Msn::FIRST,
            },
        }
    }
}

impl RtrKinds {
    /// Checks that the first segment of a stream is an RTR of one of these kinds (MPA-41), and
    /// returns which one. The caller admits and answers a Read like any other, and does not deliver
    /// a Send to the ULP. An FPDU without ULPDU counts as a Send, since RFC 6581 calls that kind a
    /// zero-length FULPDU. A Terminate is no RTR; it may come instead, and the caller acts on it.
    ///
    /// # Errors
    ///
    /// [`Fault::NotRtr`].
    pub fn expect(self, first: &Segment) -> Result<Rtr, Fault> {
        let (kind, rtr) = match first {
            Segment::Empty => (Self::SEND, Rtr::Send),
            Segment::Send(send) if send.payload.len == 0 && send.last == MessagePart::Final => {
                (Self::SEND, Rtr::Send)
            }
            Segment::Write(write) if write.payload.len == 0 && write.last == MessagePart::Final => {
                (Self::WRITE, Rtr::Write)
            }
            Segment::ReadRequest(queued) => match queued.admit(QueueRoom::Free) {
                Ok(request) if request.len == 0 => (Self::READ, Rtr::Read),
                Ok(_) => return Err(Fault::NotRtr),
                Err(fault) => return Err(fault),
            },
            Segment::Send(_)
            | Segment::Write(_)
            | Segment::AtomicWrite(_)
            | Segment::Flush(_)
            | Segment::ReadResponse(_)
            | Segment::Terminate(_)
            | Segment::Immediate(_)
            | Segment::AtomicRequest(_)
            | Segment::AtomicResponse(_) => return Err(Fault::NotRtr),
        };
        if self.contains(kind) {
            Ok(rtr)
        } else {
            Err(Fault::NotRtr)
        }
    }
}
