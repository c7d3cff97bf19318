// SPDX-License-Identifier: GPL-2.0

//! The read queues: how many Reads and atomic operations may be outstanding, and which of them a
//! response answers.
//!
//! Each direction has a ring of the negotiated depth. The driver owns the slots, an array of its
//! own entries; [`Depth`] says which slot is next and which is oldest. For a request of this end
//! the entry holds an [`Outstanding`], which checks the responses; for a request of the peer the
//! driver passes [`Depth::room`] to [`crate::receiver::Queued::admit`].
//!
//! Pure, any context; the driver's lock around the ring is the only protection.
//!
//! RFC 5040, sections 5.2 and 6.1 (rows RDMAP-73..78, -126..129); RFC 7306, section 5.2
//! (EXT-20, -31, -42, -46).

use crate::{
    atomic::AtomicResponse,
    fault::Fault,
    rdmap::ReadRequest,
    receiver::{
        QueueRoom,
        Queued,
        TaggedSegment, //
    },
    stag::{
        Stag,
        TaggedOffset, //
    }, //
};

/// A ring of `limit` slots, filled at one end and emptied at the other: exactly the negotiated IRD
/// or ORD, Reads and Atomics together (RDMAP-128, -129; EXT-42).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Depth {
    limit: u16,
    oldest: u16,
    used: u16,
}

impl Depth {
    /// Makes an empty ring of `limit` slots; 0 allows no request at all.
    #[inline]
    pub const fn new(limit: u16) -> Self {
        Self {
            limit,
            oldest: 0,
            used: 0,
        }
    }

    /// Returns how many slots there are.
    #[inline]
    pub const fn limit(&self) -> u16 {
        self.limit
    }

    /// Returns how many slots are taken.
    #[inline]
    pub const fn used(&self) -> u16 {
        self.used
    }

    /// Returns whether a slot is free.
    #[inline]
    pub const fn room(&self) -> QueueRoom {
        if self.used < self.limit {
            QueueRoom::Free
        } else {
            QueueRoom::Full
        }
    }

    /// Takes the next slot and returns its index, below the limit, or `None` if all are taken.
    #[inline]
    pub fn try_take(&mut self) -> Option<u16> {
        if self.used >= self.limit {
            return None;
        }
        let slot = self.slot(self.used);
        // NO-OVERFLOW: below the limit.
        self.used = self.used.saturating_add(1);
        Some(slot)
    }

    /// Returns the index of the slot that was taken first, or `None` if none is taken.
    #[inline]
    pub const fn oldest(&self) -> Option<u16> {
        if self.used == 0 {
            None
        } else {
            Some(self.oldest)
        }
    }

    /// Frees the slot that was taken first and returns its index, or `None` if none is taken.
    #[inline]
    pub fn release(&mut self) -> Option<u16> {
        let freed = self.oldest()?;
        self.oldest = self.slot(1);
        self.used = self.used.saturating_sub(1);
        Some(freed)
    }

    /// Returns the indices of all taken slots, the oldest first.
    #[inline]
    pub fn taken(&self) -> impl Iterator<Item = u16> {
        let ring = *self;
        (0..ring.used).map(move |nth| ring.slot(nth))
    }

    /// Returns the index `nth` slots after the oldest; `nth` is at most the limit.
    #[inline]
    const fn slot(&self, nth: u16) -> u16 {
        // NO-OVERFLOW: the sum is below twice the limit; computed so that it does not pass 2^16
        // either.
        let to_end = self.limit.saturating_sub(self.oldest);
        if nth < to_end {
            self.oldest.saturating_add(nth)
        } else {
            nth.saturating_sub(to_end)
        }
    }
}

/// A request of this end that the peer has not answered completely.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outstanding {
    /// An RDMA Read.
    Read(ReadState),
    /// An atomic operation, by its identifier.
    Atomic {
        /// What the response must echo.
        identifier: u32,
    },
}

impl Outstanding {
    /// Finds the Read that a Read Response segment answers: the oldest request, if it is a Read
    /// (RDMAP-76). `oldest` is the entry at [`Depth::oldest`].
    ///
    /// # Errors
    ///
    /// [`Fault::ResponseUnsolicited`].
    #[inline]
    pub fn expect_read(oldest: Option<&mut Self>) -> Result<&mut ReadState, Fault> {
        match oldest {
            Some(Self::Read(read)) => Ok(read),
            Some(Self::Atomic { .. }) | None => Err(Fault::ResponseUnsolicited),
        }
    }

    /// Accepts an Atomic Response to the oldest request and returns what the target held before
    /// (EXT-20: the position in the queue identifies the request, the identifier is a cross-check).
    ///
    /// # Errors
    ///
    /// [`Fault::AtomicUnsolicited`] if no request is outstanding or the oldest is a Read, those of
    /// [`Queued::admit`], [`Fault::AtomicIdentifier`].
    #[inline]
    pub fn accept_atomic(
        oldest: Option<&Self>,
        response: Queued<AtomicResponse>,
    ) -> Result<u64, Fault> {
        let (room, expected) = match oldest {
            Some(Self::Atomic { identifier }) => (QueueRoom::Free, *identifier),
            Some(Self::Read(_)) | None => (QueueRoom::Full, 0),
        };
        let response = response.admit(room)?;
        if response.identifier == expected {
            Ok(response.original)
        } else {
            Err(Fault::AtomicIdentifier)
        }
    }
}

/// An outstanding RDMA Read, and how much of it has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadState {
    stag: Stag,
    to: TaggedOffset,
    len: u32,
    received: u32,
}

/// Where a Read Response segment goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadPlacement {
    /// Offset from the start of the Read's sink, in octets; ignored if the payload is empty.
    pub offset: u32,
    /// Whether the Read is complete once the segment is placed (RDMAP-122, -124).
    pub complete: bool,
}

impl ReadState {
    /// Begins to wait for the answer to `request`.
    #[inline]
    pub const fn new(request: &ReadRequest) -> Self {
        Self {
            stag: request.sink_stag,
            to: request.sink_to,
            len: request.len,
            received: 0,
        }
    }

    /// Returns how many octets the Read asked for.
    #[inline]
    pub const fn len(&self) -> u32 {
        self.len
    }

    /// Returns whether the Read asked for nothing.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Accepts one segment of the Response.
    ///
    /// Segments are placed by their own offset, in any order; the sum must be right at the end.
    /// STag and offset of an empty segment are not checked (DDP-41).
    ///
    /// # Errors
    ///
    /// In this order: [`Fault::ResponseStag`] for another STag than the request's,
    /// [`Fault::TaggedWrap`] for an offset that wraps (RDMAP-35), [`Fault::ResponseBounds`] for
    /// octets outside the sink or more of them than were asked for, [`Fault::ResponseShort`] for an
    /// end before all octets have arrived (RDMAP-77).
    #[inline]
    pub fn accept(&mut self, segment: &TaggedSegment) -> Result<ReadPlacement, Fault> {
        let complete = segment.last.is_last();
        let len = u32::from(segment.payload.len);
        let offset = if len == 0 {
            0
        } else {
            let offset = self.check(segment.stag, segment.to, len)?;
            self.received = match self.received.checked_add(len) {
                Some(received) if received <= self.len => received,
                Some(_) | None => return Err(Fault::ResponseBounds),
            };
            offset
        };
        if complete && self.received != self.len {
            return Err(Fault::ResponseShort);
        }
        Ok(ReadPlacement { offset, complete })
    }

    /// Returns where in the sink `len` octets at `to` begin.
    #[inline]
    fn check(&self, stag: Stag, to: TaggedOffset, len: u32) -> Result<u32, Fault> {
        if stag != self.stag {
            return Err(Fault::ResponseStag);
        }
        if to.raw().checked_add(u64::from(len)).is_none() {
            return Err(Fault::TaggedWrap);
        }
        let offset = to
            .raw()
            .checked_sub(self.to.raw())
            .and_then(|offset| u32::try_from(offset).ok())
            .ok_or(Fault::ResponseBounds)?;
        match self.len.checked_sub(offset) {
            Some(room) if len <= room => Ok(offset),
            Some(_) | None => Err(Fault::ResponseBounds),
        }
    }
}

#[cfg(any(test, MODULE))]
#[cfg_attr(MODULE, kernel::prelude::kunit_tests(iwarp_readq))]
mod tests {
    use super::*;
    use crate::{
        ddp::MessagePart,
        receiver::PayloadSpan, //
    };

    const REQUEST: ReadRequest = ReadRequest {
        sink_stag: Stag::new(0x0101),
        sink_to: TaggedOffset::new(0x1000),
        len: 300,
        source_stag: Stag::new(0x0202),
        source_to: TaggedOffset::new(0x9000),
    };

    fn segment(to: u64, len: u16, last: MessagePart) -> TaggedSegment {
        TaggedSegment {
            stag: REQUEST.sink_stag,
            to: TaggedOffset::new(to),
            payload: PayloadSpan { offset: 14, len },
            last,
        }
    }

    #[test]
    fn depth_ring_reuses_slots_in_order() {
        for limit in 1..=5u16 {
            let mut ring = Depth::new(limit);
            let mut next = 0;
            for _ in 0..3 * limit {
                assert_eq!(ring.try_take(), Some(next));
                assert_eq!(ring.oldest(), Some(next));
                assert_eq!(ring.release(), Some(next));
                next = (next + 1) % limit;
            }
            assert_eq!((ring.used(), ring.release()), (0, None));
        }
    }

    #[test]
    fn depth_ring_is_full_at_its_limit() {
        let mut ring = Depth::new(3);
        ring.try_take();
        ring.release();
        for used in 0..3 {
            assert_eq!((ring.used(), ring.room()), (used, QueueRoom::Free));
            assert!(ring.try_take().is_some());
        }
        assert_eq!((ring.room(), ring.try_take()), (QueueRoom::Full, None));
        assert!(ring.taken().eq([1, 2, 0]));
    }

    #[test]
    fn depth_ring_without_slots_is_full() {
        let mut ring = Depth::new(0);
        assert_eq!(ring.room(), QueueRoom::Full);
        assert_eq!(
            (ring.try_take(), ring.oldest(), ring.release()),
            (None, None, None)
        );
    }

    #[test]
    fn longest_depth_ring_does_not_overflow() {
        let mut ring = Depth::new(u16::MAX);
        for slot in 0..u16::MAX {
            assert_eq!(ring.try_take(), Some(slot));
        }
        assert_eq!(ring.try_take(), None);
        assert_eq!(ring.release(), Some(0));
        assert_eq!(ring.try_take(), Some(0));
        assert_eq!(ring.oldest(), Some(1));
    }

    #[test]
    fn read_response_is_complete_with_its_last_octet() {
        let mut read = ReadState::new(&REQUEST);
        let first = read.accept(&segment(0x1000, 200, MessagePart::Continued));
        let expected = ReadPlacement {
            offset: 0,
            complete: false,
        };
        assert_eq!(first, Ok(expected));
        let second = read.accept(&segment(0x10c8, 100, MessagePart::Final));
        let expected = ReadPlacement {
            offset: 200,
            complete: true,
        };
        assert_eq!(second, Ok(expected));
    }

    #[test]
    fn zero_length_read_takes_empty_response() {
        let mut read = ReadState::new(&ReadRequest { len: 0, ..REQUEST });
        assert!(read.is_empty());
        // STag and offset of an empty segment are ignored.
        let mut end = segment(7, 0, MessagePart::Final);
        end.stag = Stag::new(1);
        let expected = ReadPlacement {
            offset: 0,
            complete: true,
        };
        assert_eq!(read.accept(&end), Ok(expected));
    }

    #[test]
    fn short_read_response_is_refused() {
        let mut read = ReadState::new(&REQUEST);
        let end = read.accept(&segment(0x1000, 299, MessagePart::Final));
        assert_eq!(end, Err(Fault::ResponseShort));
    }

    #[test]
    fn long_read_response_is_refused() {
        let mut read = ReadState::new(&REQUEST);
        assert!(read
            .accept(&segment(0x1000, 200, MessagePart::Continued))
            .is_ok());
        let again = read.accept(&segment(0x1000, 101, MessagePart::Continued));
        assert_eq!(again, Err(Fault::ResponseBounds));
    }

    #[test]
    fn read_response_outside_sink_is_refused() {
        let accept =
            |to, len| ReadState::new(&REQUEST).accept(&segment(to, len, MessagePart::Continued));
        assert_eq!(accept(0xfff, 1), Err(Fault::ResponseBounds));
        assert_eq!(accept(0x1000 + 300, 1), Err(Fault::ResponseBounds));
        assert_eq!(accept(0x1000 + 299, 2), Err(Fault::ResponseBounds));
        assert_eq!(accept(0x1000 + (1 << 32), 1), Err(Fault::ResponseBounds));
        assert_eq!(accept(u64::MAX, 2), Err(Fault::TaggedWrap));
    }

    #[test]
    fn read_response_to_other_stag_is_refused() {
        let mut other = segment(0x1000, 10, MessagePart::Continued);
        other.stag = REQUEST.source_stag;
        let refused = ReadState::new(&REQUEST).accept(&other);
        assert_eq!(refused, Err(Fault::ResponseStag));
    }

    #[test]
    fn read_response_answers_only_oldest_request() {
        let mut read = Outstanding::Read(ReadState::new(&REQUEST));
        let mut atomic = Outstanding::Atomic { identifier: 5 };
        assert!(Outstanding::expect_read(Some(&mut read)).is_ok());
        let unsolicited = Err(Fault::ResponseUnsolicited);
        assert_eq!(Outstanding::expect_read(Some(&mut atomic)), unsolicited);
        assert_eq!(Outstanding::expect_read(None), unsolicited);
    }
}
