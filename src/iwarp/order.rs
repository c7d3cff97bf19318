// SPDX-License-Identifier: GPL-2.0

//! Placement of the segments of one Send into its receive buffer.
//!
//! Each segment is placed at its own message offset, in any order; the lengths must add up when the
//! last one has arrived. A [`SendProgress`] belongs to the receive work request at the head of the
//! queue, one for each message, also one of length zero.
//!
//! Pure, any context; called once per incoming Send segment.
//!
//! RFC 5041, sections 5.1 and 7.1 (rows DDP-36, -37, -52, -72, -73).

use crate::{
    fault::Fault,
    receiver::SendSegment, //
};

/// How much of the Send at the head of the receive queue has been placed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendProgress {
    /// Octets of all segments so far.
    placed: u64,
    /// End of the highest segment so far.
    high: u64,
}

/// Where a Send segment goes, and what it completes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendPlacement {
    /// Offset into the receive buffer, in octets; ignored if the payload is empty.
    pub offset: u32,
    /// The length of the whole message in octets, if this is its last segment: the driver delivers
    /// the message once the segment is placed (DDP-51, -52).
    pub delivered: Option<u32>,
}

impl SendProgress {
    /// Begins a message.
    #[inline]
    pub const fn new() -> Self {
        Self { placed: 0, high: 0 }
    }

    /// Accepts one segment of the message for a buffer of `buffer_len` octets.
    ///
    /// The offset of an empty segment is not checked (DDP-68). Segments may overlap as long as the
    /// sum is right: the peer decides what the buffer holds, but not what lies outside it.
    ///
    /// # Errors
    ///
    /// Those of [`check_offset`], and [`Fault::MessageIncomplete`] if the last segment does not end
    /// where the sum of the segments says the message ends (DDP-15, -37).
    #[inline]
    pub fn accept(
        &mut self,
        segment: &SendSegment,
        buffer_len: u32,
    ) -> Result<SendPlacement, Fault> {
        let len = segment.payload.len;
        check_offset(segment.offset, len, buffer_len)?;
        if len != 0 {
            // NO-OVERFLOW: the check above bounds the end; the sum would need 2^48 segments.
            let end = u64::from(segment.offset).saturating_add(u64::from(len));
            self.placed = self.placed.saturating_add(u64::from(len));
            self.high = self.high.max(end);
            if segment.last.is_last() && end != self.high {
                return Err(Fault::MessageIncomplete);
            }
        }
        let delivered = if segment.last.is_last() {
            if self.placed != self.high {
                return Err(Fault::MessageIncomplete);
            }
            // The end of every segment is inside the buffer, so the sum is too.
            Some(u32::try_from(self.high).map_err(|_| Fault::MessageTooLong)?)
        } else {
            None
        };
        Ok(SendPlacement {
            offset: segment.offset,
            delivered,
        })
    }
}

/// Checks that `len` octets at message offset `offset` lie inside a buffer of `buffer_len` octets.
/// An empty segment fits anywhere.
///
/// # Errors
///
/// [`Fault::MessageOffset`] if the first octet is outside (DDP-72), [`Fault::MessageTooLong`] if
/// only later ones are (DDP-73).
#[inline]
pub const fn check_offset(offset: u32, len: u16, buffer_len: u32) -> Result<(), Fault> {
    if len == 0 {
        return Ok(());
    }
    let Some(room) = buffer_len.checked_sub(offset) else {
        return Err(Fault::MessageOffset);
    };
    if room == 0 {
        // The first octet past the buffer. At offset 0 the buffer is empty, and a message that does
        // not fit is too long rather than misplaced (RDMAP-82).
        return Err(if offset == 0 {
            Fault::MessageTooLong
        } else {
            Fault::MessageOffset
        });
    }
    // CAST: widens; `From` is not const.
    if len as u32 > room {
        return Err(Fault::MessageTooLong);
    }
    Ok(())
}

#[cfg(any(test, MODULE))]
#[cfg_attr(MODULE, kernel::prelude::kunit_tests(iwarp_order))]
mod tests {
    use super::*;
    use crate::{
        ddp::{
            MessagePart,
            Msn, //
        },
        rdmap::SendKind,
        receiver::PayloadSpan, //
    };

    fn segment(offset: u32, len: u16, last: MessagePart) -> SendSegment {
        SendSegment {
            first: offset == 0,
            msn: Msn::FIRST,
            offset,
            payload: PayloadSpan { offset: 18, len },
            kind: SendKind::default(),
            last,
        }
    }

    fn placed(offset: u32, delivered: Option<u32>) -> Result<SendPlacement, Fault> {
        Ok(SendPlacement { offset, delivered })
    }

    #[test]
    fn send_is_delivered_with_last_segment_and_total_length() {
        let mut progress = SendProgress::new();
        let first = progress.accept(&segment(0, 100, MessagePart::Continued), 250);
        assert_eq!(first, placed(0, None));
        let second = progress.accept(&segment(100, 150, MessagePart::Final), 250);
        assert_eq!(second, placed(100, Some(250)));
    }

    #[test]
    fn empty_send_is_delivered_into_empty_buffer() {
        let mut progress = SendProgress::new();
        assert_eq!(
            progress.accept(&segment(0, 0, MessagePart::Final), 0),
            placed(0, Some(0))
        );
    }

    #[test]
    fn empty_segment_offset_is_ignored() {
        let mut progress = SendProgress::new();
        assert_eq!(
            progress.accept(&segment(0, 8, MessagePart::Continued), 8),
            placed(0, None)
        );
        let end = progress.accept(&segment(u32::MAX, 0, MessagePart::Final), 8);
        assert_eq!(end, placed(u32::MAX, Some(8)));
    }

    #[test]
    fn send_with_gap_before_end_is_refused() {
        let mut progress = SendProgress::new();
        assert!(progress
            .accept(&segment(0, 10, MessagePart::Continued), 100)
            .is_ok());
        let end = progress.accept(&segment(11, 10, MessagePart::Final), 100);
        assert_eq!(end, Err(Fault::MessageIncomplete));
    }

    #[test]
    fn last_segment_below_highest_octet_is_refused() {
        let mut progress = SendProgress::new();
        assert!(progress
            .accept(&segment(50, 50, MessagePart::Continued), 100)
            .is_ok());
        let end = progress.accept(&segment(0, 50, MessagePart::Final), 100);
        assert_eq!(end, Err(Fault::MessageIncomplete));
    }

    #[test]
    fn send_with_repeated_segment_is_refused() {
        let mut progress = SendProgress::new();
        assert!(progress
            .accept(&segment(0, 50, MessagePart::Continued), 100)
            .is_ok());
        assert!(progress
            .accept(&segment(0, 50, MessagePart::Continued), 100)
            .is_ok());
        let end = progress.accept(&segment(50, 10, MessagePart::Final), 100);
        assert_eq!(end, Err(Fault::MessageIncomplete));
    }

    #[test]
    fn offset_beyond_buffer_and_too_long_message_are_distinct_faults() {
        assert_eq!(check_offset(0, 100, 100), Ok(()));
        assert_eq!(check_offset(0, 101, 100), Err(Fault::MessageTooLong));
        assert_eq!(check_offset(99, 1, 100), Ok(()));
        assert_eq!(check_offset(99, 2, 100), Err(Fault::MessageTooLong));
        assert_eq!(check_offset(100, 1, 100), Err(Fault::MessageOffset));
        assert_eq!(check_offset(101, 1, 100), Err(Fault::MessageOffset));
        assert_eq!(check_offset(0, 1, 0), Err(Fault::MessageTooLong));
        assert_eq!(check_offset(1, 1, 0), Err(Fault::MessageOffset));
        assert_eq!(
            check_offset(u32::MAX, u16::MAX, u32::MAX),
            Err(Fault::MessageOffset)
        );
    }
}
