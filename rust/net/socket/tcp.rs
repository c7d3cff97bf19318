// SPDX-License-Identifier: GPL-2.0

//! What goes to TCP itself: sending copies, reading, closing, the receive queue.

use super::secure::Layer;
use super::to_len;
use super::Socket;
use super::DONTWAIT;
use crate::bindings;
use crate::compat::ECONNABORTED;
use crate::net::skb::Inbound;
use crate::net::skb::SockLock;
use crate::net::state::TcpState;
use crate::sync::BhOff;
use kernel::ffi::c_int;
use kernel::ffi::c_uint;
use kernel::ffi::c_void;
use kernel::prelude::*;

extern "C" {
    fn riwarp_helper_sk_abort(sk: *mut bindings::sock, err: c_int);
    fn riwarp_helper_sk_send_copy(
        sk: *mut bindings::sock,
        buf: *const c_void,
        len: usize,
        flags: c_int,
    ) -> c_int;
    fn riwarp_helper_sk_shutdown_write(sk: *mut bindings::sock);
}

/// A socket whose octets are TCP's: one without TLS, which no handshake has. Its methods are those
/// of [`Socket`].
#[derive(Clone, Copy)]
pub(super) struct Tcp<'a>(&'a Socket);

impl Socket {
    /// Returns what octets go through.
    #[inline]
    pub(super) fn layer(&self) -> Layer<'_> {
        let above = self.file.then(|| self.layer_above_tcp()).flatten();
        // Nowhere else: the methods of `Tcp` would send clear text on a socket with TLS.
        above.unwrap_or(Layer::Tcp(Tcp(self)))
    }
}

impl<'a> Tcp<'a> {
    pub(super) fn socket(self) -> &'a Socket {
        self.0
    }
}

impl Tcp<'_> {
    pub(super) fn send(self, buf: &[u8]) -> Result<usize> {
        // SAFETY: `send_copy` requires a valid TCP socket that is locked: `locked` gives one.
        to_len(self.0.locked(|sk| unsafe { send_copy(sk, buf) }))
    }

    pub(super) fn try_send(self, buf: &[u8]) -> Result<usize> {
        // SAFETY: `send_copy` requires a valid TCP socket that is locked: `try_locked` gives one.
        to_len(self.0.try_locked(|sk| unsafe { send_copy(sk, buf) })?)
    }

    pub(super) fn recv(self, buf: &mut [u8]) -> Result<usize> {
        self.receive(buf, bindings::MSG_DONTWAIT)
    }

    pub(super) fn peek(self, buf: &mut [u8]) -> Result<usize> {
        self.receive(buf, bindings::MSG_DONTWAIT | bindings::MSG_PEEK)
    }

    fn receive(self, buf: &mut [u8], flags: c_uint) -> Result<usize> {
        if buf.is_empty() {
            return Err(EINVAL);
        }
        let mut msg = bindings::msghdr::default();
        let mut vec = bindings::kvec {
            iov_base: buf.as_mut_ptr().cast(),
            iov_len: buf.len(),
        };
        // CAST: The flags are small.
        let flags = flags as c_int;
        let raw = self.0.raw.as_ptr();
        // SAFETY: `kernel_recvmsg()` requires a valid socket, which `self` has, and a vector of
        // writable memory: it describes `buf`, which is borrowed exclusively.
        let ret = unsafe { bindings::kernel_recvmsg(raw, &mut msg, &mut vec, 1, buf.len(), flags) };
        to_len(ret)
    }

    pub(super) fn shutdown_write(self) -> bool {
        // SAFETY: `send_fin` requires a valid TCP socket that is locked: `locked` gives one.
        self.0.locked(|sk| unsafe { self.0.send_fin(sk) })
    }

    pub(super) fn try_shutdown_write(self) -> Result<bool> {
        // SAFETY: `send_fin` requires a valid TCP socket that is locked: `try_locked` gives one.
        self.0.try_locked(|sk| unsafe { self.0.send_fin(sk) })
    }

    pub(super) fn try_abort(self) -> Result {
        let error = ECONNABORTED.to_errno().wrapping_neg();
        let socket = self.0;
        // SAFETY: The helper requires a valid TCP socket that is locked: `try_locked` gives one.
        socket.try_locked(|sk| unsafe { riwarp_helper_sk_abort(sk, error) })
    }

    pub(super) fn with_inbound<R>(self, f: impl FnOnce(&mut Inbound<'_>) -> R) -> R {
        self.0.locked(|sk| {
            // SAFETY: `of_owner` requires a valid TCP socket that the caller owns while the view
            // lives: `locked` gives one, owned until this returns.
            let mut inbound = unsafe { Inbound::of_owner(sk) };
            f(&mut inbound)
        })
    }

    pub(super) fn with_unowned_inbound<R>(
        self,
        off: BhOff<'_>,
        f: impl FnOnce(&mut Inbound<'_>) -> R,
    ) -> Option<R> {
        if self.0.is_listener() {
            return None;
        }
        self.0.with_unowned(off, |sk| {
            // SAFETY: `new` requires a valid TCP socket that is locked as said while the view
            // lives: `with_unowned` gives one without an owner, whose spin lock is held until this
            // returns.
            let mut inbound = unsafe { Inbound::new(sk, SockLock::Softirq) };
            f(&mut inbound)
        })
    }

    pub(super) fn try_with_inbound<R>(self, f: impl FnOnce(&mut Inbound<'_>) -> R) -> Result<R> {
        self.0.try_locked(|sk| {
            // SAFETY: `of_owner` requires a valid TCP socket that the caller owns while the view
            // lives: `try_locked` gives one, owned until this returns.
            let mut inbound = unsafe { Inbound::of_owner(sk) };
            f(&mut inbound)
        })
    }
}

impl Socket {
    /// Sends the FIN. With TLS the caller has sent the closure alert before.
    ///
    /// # Safety
    ///
    /// `sk` must be this socket, and the caller must own it.
    pub(super) unsafe fn send_fin(&self, sk: *mut bindings::sock) -> bool {
        // After all that was sent or waits to be sent; a FIN counts.
        let before = read!(self, write_seq);
        let sends_fin = matches!(
            self.state(),
            TcpState::Established | TcpState::SynReceived | TcpState::CloseWait
        );
        // SAFETY: The helper requires a valid TCP socket that is locked, which the caller
        // guarantees.
        unsafe { riwarp_helper_sk_shutdown_write(sk) };
        !sends_fin || read!(self, write_seq) != before
    }
}

/// Sends a copy of the octets; returns their number or a negative error number.
///
/// # Safety
///
/// `sk` must be a valid TCP socket that the caller owns.
unsafe fn send_copy(sk: *mut bindings::sock, buf: &[u8]) -> c_int {
    // CAST: The flags are small.
    let flags = DONTWAIT as c_int;
    // SAFETY: The helper requires a valid TCP socket that is locked, which the caller guarantees,
    // and readable memory: it is that of `buf`.
    unsafe { riwarp_helper_sk_send_copy(sk, buf.as_ptr().cast(), buf.len(), flags) }
}
