// SPDX-License-Identifier: GPL-2.0

//! Batches on their way to TCP.

use super::Socket;
use crate::bindings;
use crate::net::TxBatch;
use kernel::prelude::*;

/// Whether the caller will send more at once, so that a last packet that is not full may wait for
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendHint {
    /// This is the end for now: send all.
    Push,
    /// The next send follows at once.
    MoreFollows,
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
    pub fn send_batch(&self, batch: &mut TxBatch, more: SendHint) -> Result<usize> {
        // Straight to TCP: what lies above it (security modules, the address family) has nothing to
        // say about sockets of the kernel.
        // SAFETY: `send_locked` wants a valid TCP socket that the caller owns: `locked` gives one
        // that it owns for the call.
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
    more: SendHint,
) -> Result<usize> {
    // SAFETY: `round_mss` wants a valid TCP socket that is locked: the caller says that it owns
    // `sk` or holds its spin lock. Its `struct sock` is the head of a `struct tcp_sock`.
    unsafe { round_mss(sk.cast()) };
    batch.send_with(more, |msg, len| {
        // SAFETY: `tcp_sendmsg_locked()` wants a valid TCP socket that is locked, as the caller
        // says that `sk` is, and a message that describes memory of that length, which `send_with`
        // gives. With the spin lock held it must not sleep, nor work off a backlog: `MSG_DONTWAIT`
        // is set, memory comes without waiting (see `Socket::setup`), and the backlog of a socket
        // that nobody owns is empty.
        unsafe { bindings::tcp_sendmsg_locked(sk, msg, len) }
    })
}

/// Has TCP make segments of a multiple of 4 octets, as full FPDUs are long.
///
/// In a longer segment the first octets of the next FPDU would follow, which then lies in two, and
/// so do all behind it. TCP reckons this size anew as the peer's window grows; then the most that
/// the peer takes counts, which is rounded for good.
///
/// # Safety
///
/// `tp` must be a valid TCP socket that is locked, by its owner or by its spin lock.
#[inline]
unsafe fn round_mss(tp: *mut bindings::tcp_sock) {
    // SAFETY: The place of a field is inside of the allocation, since the caller has made `tp`
    // valid.
    let mss = unsafe { &raw mut (*tp).mss_cache };
    // SAFETY: The field of a valid socket, which nobody writes while it is locked.
    let now = unsafe { mss.read() };
    let odd = now % 4;
    if odd != 0 {
        // SAFETY: The field of a valid socket that is locked; those who read it without may see the
        // old or the new value.
        unsafe { mss.write_volatile(now.wrapping_sub(odd)) };
        // SAFETY: The place of a field is inside of the allocation, since the caller has made `tp`
        // valid.
        let most = unsafe { &raw mut (*tp).rx_opt.mss_clamp };
        // SAFETY: The field of a valid socket, which nobody writes while it is locked.
        let clamp = unsafe { most.read() };
        // SAFETY: The field of a valid socket that is locked; those who read it without may see the
        // old or the new value.
        unsafe { most.write_volatile(clamp & !3) };
    }
}
