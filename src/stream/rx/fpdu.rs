// SPDX-License-Identifier: GPL-2.0

//! Complete FPDUs in TCP's receive queue.
//!
//! Context: softirq, or process with the socket locked.

use iwarp::{
    mpa,
    receiver::{
        PayloadSpan,
        RECEIVE_HEADER_MAX, //
    }, //
};
use kernel_ext::{
    crc32c,
    net::Inbound, //
};

/// Octets that a look at the front of an FPDU needs at most.
pub(crate) const FRONT_MAX: usize = mpa::LENGTH_LEN + RECEIVE_HEADER_MAX;

/// A complete FPDU in the receive queue.
pub(crate) struct Fpdu {
    /// Where it begins in the receive queue, in octets.
    pos: usize,
    pub(crate) ulpdu_len: u16,
    /// Octets of all of it.
    pub(crate) len: usize,
}

impl Fpdu {
    /// Looks at the FPDU at `pos`; [`None`] if it is not complete. Its first octets are copied to
    /// `front`.
    #[inline]
    pub(crate) fn at(
        inbound: &mut Inbound<'_>,
        pos: usize,
        front: &mut [u8; FRONT_MAX],
    ) -> Option<Self> {
        inbound.mark(pos);
        if inbound.front(pos, front) < mpa::LENGTH_LEN {
            return None;
        }
        let ulpdu_len = u16::from_be_bytes(*front.first_chunk()?);
        let len = mpa::fpdu_len(ulpdu_len) as usize;
        let available = inbound.available().saturating_sub(pos);
        (len <= available).then_some(Self {
            pos,
            ulpdu_len,
            len,
        })
    }

    /// Where the payload of its segment begins in the receive queue.
    #[inline(always)]
    pub(crate) fn payload_pos(&self, payload: PayloadSpan) -> usize {
        self.pos + mpa::LENGTH_LEN + usize::from(payload.offset)
    }

    /// Whether the CRC at its end is the one of all octets before it (MPA-18).
    pub(crate) fn crc_is_right(&self, inbound: &mut Inbound<'_>) -> bool {
        let covered = self.len - mpa::CRC_LEN;
        let crc = crc32c::finish(inbound.crc32c(self.pos, covered, crc32c::INIT));
        let mut trailer = [0; mpa::CRC_LEN];
        inbound.peek(self.pos + covered, &mut trailer) && trailer == mpa::crc_trailer(crc)
    }
}
