// SPDX-License-Identifier: GPL-2.0

//! The copies between memory and TCP's queues.

use super::Memory;
use crate::mm::run::place_octets;
use crate::net::Inbound;
use crate::net::TxBatch;
use kernel::prelude::*;

impl Memory {
    /// Copies `len` octets of the receive queue, from `pos` on, to `offset`.
    ///
    /// # Errors
    ///
    /// * `EFAULT` if they do not fit; nothing is written then.
    /// * `EACCES` if the memory is read-only.
    /// * `EINVAL` if the receive queue has too few octets.
    /// * `EAGAIN` if the memory is not all present; nothing is written then.
    #[inline]
    pub fn copy_from_inbound(
        &self,
        offset: u64,
        inbound: &mut Inbound<'_>,
        pos: usize,
        len: usize,
    ) -> Result {
        if !self.is_writable() {
            return Err(EACCES);
        }
        // In most cases both are contiguous.
        if let (Some(run), Some(from)) = (self.whole::<true>(offset, len), inbound.in_one(pos, len))
        {
            // They may overlap: on a loopback connection the octets lie in the sender's memory,
            // possibly a file that is registered here.
            // SAFETY: `place_octets` requires `len` octets that are readable and writable: `in_one`
            // guarantees that for `from` until octets are consumed, and `whole` returns a run of
            // that length that may be written while `self` is borrowed.
            unsafe { place_octets(from, run.start(), len) };
            return Ok(());
        }
        self.copy_in_pieces(offset, inbound, pos, len)
    }

    /// The rest of [`Memory::copy_from_inbound`].
    fn copy_in_pieces(
        &self,
        offset: u64,
        inbound: &mut Inbound<'_>,
        pos: usize,
        len: usize,
    ) -> Result {
        if !self.covers(offset, len) {
            return Err(EFAULT);
        }
        let mut reader = inbound.reader(pos, len).ok_or(EINVAL)?;
        self.runs::<true>(offset, len, |run| {
            let mut to = run.start();
            let complete = reader.each(run.len(), |chunk, n| {
                // They may overlap, as in `copy_from_inbound`.
                // SAFETY: `place_octets` requires `n` octets that are readable and writable: `each`
                // guarantees that for `chunk` during this call, and its chunks together are at most
                // as long as the run, of which `to` is the unwritten rest.
                unsafe { place_octets(chunk, to, n) };
                // SAFETY: `to` stays inside the run or at its end: `n` octets were left.
                to = unsafe { to.add(n) };
            });
            if complete {
                Ok(())
            } else {
                Err(EINVAL)
            }
        })
    }

    /// Appends `len` octets from `offset` on to a batch.
    ///
    /// # Errors
    ///
    /// * `EFAULT` if they are not all inside; the batch is unchanged then.
    /// * `EAGAIN` if the memory is not all present.
    /// * The batch's error if it cannot grow; the batch may hold a part of the octets then
    ///   ([`TxBatch::rewind`]).
    #[inline]
    pub fn copy_to_batch(&self, offset: u64, len: usize, batch: &mut TxBatch) -> Result {
        if let Some(run) = self.whole::<false>(offset, len) {
            // SAFETY: `append_raw` requires `len` readable octets: `whole` returns a run of that
            // length, which is valid while `self` is borrowed.
            return unsafe { batch.append_raw(run.start(), len) };
        }
        self.copy_out_pieces(offset, len, batch)
    }

    /// The rest of [`Memory::copy_to_batch`].
    fn copy_out_pieces(&self, offset: u64, len: usize, batch: &mut TxBatch) -> Result {
        if !self.covers(offset, len) {
            return Err(EFAULT);
        }
        self.runs::<false>(offset, len, |run| {
            // SAFETY: `append_raw` requires that many readable octets: `runs` passes runs that are
            // valid while `self` is borrowed.
            unsafe { batch.append_raw(run.start(), run.len()) }
        })
    }
}
