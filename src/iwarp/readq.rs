// SPDX-License-Identifier: GPL-2.0

//! The read queues: how many Reads and Atomics may be on their way, and which response is whose.
//!
//! Both directions are rings of the negotiated depth. The driver owns the slots, an array of its
//! own entries; [`Depth`] says which slot is next, which is oldest, and whether there is one. For
//! requests that we sent, each entry holds an [`Outstanding`], which checks the responses; for
//! requests that came in, [`crate::receiver::Queued::admit`] is asked with [`Depth::room`].
//!
//! Pure, any context; the driver's lock around the ring is the only protection.
//!
//! RFC 5040, sections 5.2 and 6.1 (draft numbering: RDMAP-73..78, -126..129); RFC 7306, section 5.2
//! (EXT-20, -31, -42, -46).

use crate::{
    atomic::AtomicResponse,
    fault::Fault,
    rdmap::ReadRequest,
    receiver::{
        Queued,
        Room,
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
    pub const fn room(&self) -> Room {
        if self.used < self.limit {
            Room::Free
        } else {
            Room::Full
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

/// A request that we sent and that has not been answered completely.
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

    /// Takes an Atomic Response for the oldest request and returns what the target held before
    /// (EXT-20: the place in the queue says which request it is, the identifier is a cross-check).
    ///
    /// # Errors
    ///
    /// [`Fault::AtomicUnsolicited`] if the oldest request is none or a Read, those of
    /// [`Queued::admit`], [`Fault::AtomicIdentifier`].
    #[inline]
    pub fn accept_atomic(
        oldest: Option<&Self>,
        response: Queued<AtomicResponse>,
    ) -> Result<u64, Fault> {
        let (room, expected) = match oldest {
            Some(Self::Atomic { identifier }) => (Room::Free, *identifier),
            Some(Self::Read(_)) | None => (Room::Full, 0),
        };
        let response = response.admit(room)?;
        if response.identifier == expected {
            Ok(response.original)
        } else {
            Err(Fault::AtomicIdentifier)
        }
    }
}

/// An RDMA Read on its way, and how much of it has come back.
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
    /// Offset from the start of the Read's sink, in octets; means nothing if the payload is empty.
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
    /// end before all octets have come (RDMAP-77).
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
