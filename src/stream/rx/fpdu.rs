// SPDX-License-Identifier: GPL-2.0

//! Complete FPDUs in TCP's receive queue.
//!
//! Context: softirq, or process with the socket locked.

use iwarp::{
    fault::Fault,
    mpa::{
        self,
        Crc, //
    },
    receiver::RECEIVE_HEADER_MAX, //
};
use kernel_ext::{
    crc32c,
    net::Inbound, //
};

/// Maximum length of the front of an FPDU that is parsed, in octets.
pub(super) const FRONT_MAX: usize = mpa::LENGTH_LEN + RECEIVE_HEADER_MAX;

/// A complete FPDU in the receive queue.
pub(super) struct Fpdu {
    /// Offset in the receive queue.
    pub(super) pos: usize,
    pub(super) ulpdu_len: u16,
    /// Length of the whole FPDU, in octets.
    pub(super) len: usize,
}

impl Fpdu {
    /// Finds the FPDU at `pos`; returns [`None`] if it is incomplete. Copies its first octets to
    /// `front`.
    #[inline]
    pub(super) fn at(
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

    /// Checks that the CRC at its end, if in use, matches all octets before it (MPA-18, MPA-20).
    ///
    /// # Errors
    ///
    /// [`Fault::Crc`].
    #[inline(always)]
    pub(super) fn check(&self, inbound: &mut Inbound<'_>, crc: Crc) -> Result<(), Fault> {
        if crc == Crc::On && !self.crc_is_right(inbound) {
            return Err(Fault::Crc);
        }
        Ok(())
    }

    fn crc_is_right(&self, inbound: &mut Inbound<'_>) -> bool {
        let covered = self.len - mpa::CRC_LEN;
        let crc = crc32c::finish(inbound.crc32c(self.pos, covered, crc32c::INIT));
        let mut trailer = [0; mpa::CRC_LEN];
        inbound.peek(self.pos + covered, &mut trailer) && trailer == mpa::crc_trailer(crc)
    }
}
