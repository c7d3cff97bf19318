// SPDX-License-Identifier: GPL-2.0

//! Sending batches to TCP.

use super::Layer;
use super::Socket;
use super::Tcp;
use crate::bindings;
use crate::compat::ENOTCONN;
use crate::mm::noio::without_io;
use crate::net::TxBatch;
use crate::sync::BhOff;
use kernel::prelude::*;

/// Whether the next send follows at once, so that TCP may hold back a partial last packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendHint {
    /// No send follows: send everything.
    Push,
    /// The next send follows at once.
    MoreFollows,
}

impl Socket {
    /// Sends the octets of a batch without copying; removes those that TCP accepts from the batch
    /// and returns their number. With TLS they are encrypted into memory of its own. Context:
    /// process.
    ///
    /// # Errors
    ///
    /// `EAGAIN` if TCP accepts none now (`write_space` follows), `EPIPE`, or the error of the
    /// connection; `EBUSY` with TLS if a signal interrupts it, `ENOTCONN` between a handshake and
    /// TLS.
    #[inline]
    pub fn send_batch(&self, batch: &mut TxBatch, more: SendHint) -> Result<usize> {
        match self.layer() {
            Layer::Tcp(tcp) => tcp.send_batch(batch, more),
            Layer::Tls(tls) => tls.send_batch(batch),
            Layer::Lent => Err(ENOTCONN),
        }
    }

    /// Sends as [`Socket::send_batch`] does, but never sleeps: waits only for other processors that
    /// hold the socket's spin lock, as TCP does when a packet arrives.
    ///
    /// Context: softirq, or process with bottom halves off; not from a callback of a socket
    /// ([`super::super::SocketEvents`]), which TCP calls with the spin lock held, nor with a lock
    /// held that such callbacks take.
    ///
    /// # Errors
    ///
    /// `EBUSY` if a thread owns the socket, or it has TLS, which needs to sleep. Otherwise those of
    /// `send_batch`.
    #[inline]
    pub fn try_send_batch(
        &self,
        batch: &mut TxBatch,
        more: SendHint,
        off: BhOff<'_>,
    ) -> Result<usize> {
        match self.layer() {
            Layer::Tcp(tcp) => tcp.try_send_batch(batch, more, off),
            Layer::Tls(_) => Err(EBUSY),
            Layer::Lent => Err(ENOTCONN),
        }
    }
}

impl Tcp<'_> {
    /// Does [`Socket::send_batch`].
    #[inline]
    fn send_batch(self, batch: &mut TxBatch, more: SendHint) -> Result<usize> {
        let socket = self.socket();
        // Calls TCP directly: the layers above it (security modules, the address family) do not
        // apply to kernel sockets.
        // TCP charges a process's cgroup, which may have to reclaim memory. Work items, which may
        // be what a disk waits for, wait for the owner of the socket.
        without_io(|| {
            // SAFETY: `send_locked` requires a valid TCP socket that the caller owns: `locked`
            // gives one, owned during the call.
            socket.locked(|sk| unsafe { send_locked(sk, batch, more) })
        })
    }

    /// Does [`Socket::try_send_batch`].
    #[inline]
    fn try_send_batch(self, batch: &mut TxBatch, more: SendHint, off: BhOff<'_>) -> Result<usize> {
        let socket = self.socket();
        // SAFETY: `send_locked` requires a valid TCP socket without an owner whose spin lock is
        // held: `with_unowned` gives one.
        let sent = socket.with_unowned(off, |sk| unsafe { send_locked(sk, batch, more) });
        sent.unwrap_or(Err(EBUSY))
    }
}

/// Sends a batch with the socket locked.
///
/// # Safety
///
/// `sk` must be a valid TCP socket. The caller must own it, or hold its spin lock while it has no
/// owner.
pub(in crate::net) unsafe fn send_locked(
    sk: *mut bindings::sock,
    batch: &mut TxBatch,
    more: SendHint,
) -> Result<usize> {
    if batch.rounds_segment_size() {
        // SAFETY: `round_mss` requires a valid TCP socket that is locked: the caller owns `sk` or
        // holds its spin lock. Its `struct sock` is the head of a `struct tcp_sock`.
        unsafe { round_mss(sk.cast()) };
    }
    let most = match more {
        SendHint::Push => usize::MAX,
        // SAFETY: `whole_packets` requires a valid TCP socket that is locked, as above.
        SendHint::MoreFollows => unsafe { whole_packets(sk.cast(), batch.len()) },
    };
    batch.send_with(most, more, |msg, len| {
        // SAFETY: `tcp_sendmsg_locked()` requires a valid TCP socket that is locked, which the
        // caller guarantees, and a message that describes memory of that length, which `send_with`
        // gives. With the spin lock held it must not sleep or process a backlog: `MSG_DONTWAIT` is
        // set, allocations do not sleep (see `Socket::setup`), and the backlog of a socket without
        // an owner is empty.
        unsafe { bindings::tcp_sendmsg_locked(sk, msg, len) }
    })
}

/// Returns how many of `len` octets to give to TCP now if more follow: those that fill packets of
/// segmentation offload. A rest would become a packet of its own with the next acknowledgment,
/// before the octets that follow can fill it.
///
/// # Safety
///
/// `tp` must be a valid TCP socket that is locked, by an owner or by its spin lock.
#[inline]
unsafe fn whole_packets(tp: *const bindings::tcp_sock, len: usize) -> usize {
    // SAFETY: Fields of a valid socket, which do not change while it is locked.
    let (segments, mss) = unsafe { ((*tp).gso_segs, (*tp).mss_cache) };
    if segments < 2 {
        // Each segment is a packet, and an FPDU may fill it.
        return len;
    }
    // CAST: Widens.
    let packet = usize::from(segments).saturating_mul(mss as usize);
    match len.checked_rem(packet) {
        Some(rest) if rest < len => len.saturating_sub(rest),
        Some(_) | None => len,
    }
}

/// Makes TCP build segments of a multiple of 4 octets, as full FPDUs are.
///
/// A longer segment would also carry the first octets of the next FPDU, and so split it and all
/// FPDUs after it. TCP recomputes the size as the peer's window grows, bounded by `mss_clamp`,
/// which is rounded once and stays so.
///
/// # Safety
///
/// `tp` must be a valid TCP socket that is locked, by an owner or by its spin lock.
#[inline]
unsafe fn round_mss(tp: *mut bindings::tcp_sock) {
    // SAFETY: The field lies inside the allocation, since the caller guarantees that `tp` is valid.
    let mss = unsafe { &raw mut (*tp).mss_cache };
    // SAFETY: A field of a valid socket, which does not change while it is locked.
    let now = unsafe { mss.read() };
    let odd = now % 4;
    if odd != 0 {
        // SAFETY: A field of a valid socket that is locked; readers without the lock may see the
        // old or the new value.
        unsafe { mss.write_volatile(now.wrapping_sub(odd)) };
        // SAFETY: The field lies inside the allocation, since the caller guarantees that `tp` is
        // valid.
        let most = unsafe { &raw mut (*tp).rx_opt.mss_clamp };
        // SAFETY: A field of a valid socket, which does not change while it is locked.
        let clamp = unsafe { most.read() };
        // SAFETY: A field of a valid socket that is locked; readers without the lock may see the
        // old or the new value.
        unsafe { most.write_volatile(clamp & !3) };
    }
}
