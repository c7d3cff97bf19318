// SPDX-License-Identifier: GPL-2.0

//! Batches on their way to TCP.

use super::Socket;
use crate::bindings;
use crate::net::TxBatch;
use kernel::prelude::*;

/// Whether the caller will send more at once, so that a last packet that is not full may wait for
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum More {
    /// This is the end for now: send all.
    No,
    /// The next send follows at once.
    Yes,
}

impl Socket {
    /// Gives all that waits in a batch to TCP, without copying it; gives how many octets TCP took,
    /// which the batch then forgets. Context: process.
    ///
    /// # Errors
    ///
    /// `EAGAIN` if TCP takes none now (`write_space` follows), `EPIPE`, or what happened to the
    /// connection.
    #[inline]
    pub fn send_batch(&self, batch: &mut TxBatch, more: More) -> Result<usize> {
        // Straight to TCP: what lies above it (security modules, the address family) has nothing to
        // say about sockets of the kernel.
        // SAFETY: The socket is valid and owned by this call.
        self.locked(|sk| unsafe { send_locked(sk, batch, more) })
    }
}

/// Sends a batch with the socket locked.
///
/// # Safety
///
/// `sk` must be a valid TCP socket. Either the caller owns it, or holds its spin lock while nobody
/// owns it.
pub(in crate::net) unsafe fn send_locked(
    sk: *mut bindings::sock,
    batch: &mut TxBatch,
    more: More,
) -> Result<usize> {
    // SAFETY: By the contract of this function.
    unsafe { round_mss(sk.cast()) };
    batch.send_with(more, |msg, len| {
        // SAFETY: By the contract of this function; `MSG_DONTWAIT` is set, so that this does not
        // sleep; memory comes without waiting (see `Socket::setup`).
        unsafe { bindings::tcp_sendmsg_locked(sk, msg, len) }
    })
}

/// Has TCP make segments of a multiple of 4 octets, as full FPDUs are long.
///
/// In a longer segment the first octets of the next FPDU would follow, which then lies in two, and so do all
/// behind it. TCP reckons this size anew as the peer's window grows; then the most that the peer takes counts,
/// which is rounded for good.
///
/// # Safety
///
/// `tp` must be a valid TCP socket that is locked.
#[inline]
unsafe fn round_mss(tp: *mut bindings::tcp_sock) {
    // SAFETY: By the contract of this function.
    let (mss, most) = unsafe { (&raw mut (*tp).mss_cache, &raw mut (*tp).rx_opt.mss_clamp) };
    // SAFETY: As above, nobody else writes it.
    let odd = unsafe { mss.read() } % 4;
    if odd != 0 {
        // SAFETY: As above; there are readers, who may see the old or the new value.
        unsafe { mss.write_volatile(mss.read().wrapping_sub(odd)) };
        // SAFETY: As above.
        unsafe { most.write_volatile(most.read() & !3) };
    }
}
