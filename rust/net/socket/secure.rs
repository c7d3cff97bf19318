// SPDX-License-Identifier: GPL-2.0

//! From TCP to the kernel's TLS: the file that a handshake demands, the handshake's time, and TLS
//! once it is on.
//!
//! A socket goes this way only, and never back: without a file, or with one ([`Layer::Tcp`]); lent
//! to a handshake ([`Layer::Lent`]), where it carries no octets of this module; with TLS
//! ([`Layer::Tls`]).

use super::tls::Tls;
use super::Socket;
use super::Tcp;
use crate::bindings;
use crate::net::handshake::TlsPeer;
use crate::net::hooks::Callbacks;
use crate::net::key::Certificate;
use kernel::error::to_result;
use kernel::ffi::c_char;
use kernel::ffi::c_int;
use kernel::prelude::*;
use kernel::sync::atomic::Acquire;
use kernel::sync::atomic::Full;

extern "C" {
    fn riwarp_helper_sk_net_refcnt(sk: *const bindings::sock) -> c_int;
    fn riwarp_helper_sk_net_refcnt_downgrade(sk: *mut bindings::sock);
    fn riwarp_helper_sock_alloc_file(sock: *mut bindings::socket, name: *const c_char) -> c_int;
    fn riwarp_helper_sock_fput(sock: *mut bindings::socket);
    fn riwarp_helper_sock_has_other_users(sock: *const bindings::socket) -> bool;
    fn riwarp_helper_tls_abort(sk: *mut bindings::sock, err: c_int, wait: bool) -> c_int;
    fn riwarp_helper_tls_cipher(sk: *const bindings::sock) -> c_int;
    fn riwarp_helper_tls_exists() -> bool;
    fn riwarp_helper_tls_has_x509() -> bool;
}

/// Returns whether the kernel has TLS, handshakes and keys.
pub fn tls_exists() -> bool {
    // SAFETY: The helper returns a constant.
    unsafe { riwarp_helper_tls_exists() }
}

/// Returns whether the kernel has these, and keys of certificates, whose module it loads. Context:
/// process, may sleep.
pub fn tls_has_x509() -> bool {
    // SAFETY: The helper requires a context that may sleep, which the caller has.
    unsafe { riwarp_helper_tls_has_x509() }
}

/// What the octets of a socket go through.
pub(super) enum Layer<'a> {
    /// A handshake has the socket, or had it in vain: it carries no octets.
    Lent,
    /// TCP itself.
    Tcp(Tcp<'a>),
    /// The kernel's TLS.
    Tls(Session<'a>),
}

/// A socket with TLS, which encrypts and decrypts all that goes through it.
#[derive(Clone, Copy)]
pub(super) struct Session<'a> {
    pub(super) socket: &'a Socket,
    pub(super) tls: &'a Tls,
}

impl Socket {
    /// Returns what the octets of a socket with a file go through, unless that is TCP itself.
    #[cold]
    pub(super) fn layer_above_tcp(&self) -> Option<Layer<'_>> {
        if let Some(tls) = self.tls.as_ref() {
            return Some(Layer::Tls(Session { socket: self, tls }));
        }
        // ORDERING: pairs with `lend`.
        self.lent.load(Acquire).then_some(Layer::Lent)
    }

    /// Gives the socket a file, which a handshake demands. The daemon takes its name for that of
    /// the peer. Context: process.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; closes the socket.
    pub fn into_file(mut self, name: &CStr) -> Result<Self> {
        if self.file {
            return Ok(self);
        }
        // INVARIANT: The file owns the socket; this value owns the file.
        self.file = true;
        let raw = self.raw.as_ptr();
        // SAFETY: The helper requires a valid socket without a file, as this one, and a string that
        // ends in a zero.
        let made = to_result(unsafe { riwarp_helper_sock_alloc_file(raw, name.as_char_ptr()) });
        if let Err(error) = made {
            // The helper has released the socket.
            core::mem::forget(self);
            return Err(error);
        }
        Ok(self)
    }

    /// Returns whether the socket has a file.
    pub fn has_file(&self) -> bool {
        self.file
    }

    /// Returns whether TLS encrypts and decrypts all that goes through the socket. Context: any.
    #[inline]
    pub fn is_secure(&self) -> bool {
        self.file && self.tls.as_ref().is_some()
    }

    /// Returns the name of the cipher, if the socket has TLS.
    pub fn cipher(&self) -> Option<&'static str> {
        self.tls.as_ref().map(|tls| tls.cipher())
    }

    /// Returns the peer's certificate, if the socket has TLS with one that is known.
    pub fn peer_certificate(&self) -> Option<&Certificate> {
        match self.tls.as_ref()?.peer() {
            TlsPeer::X509(certificate) => certificate.as_ref(),
            TlsPeer::Psk => None,
        }
    }

    /// Lends the socket to a handshake. It counts its namespace from now on, since the daemon may
    /// keep its file.
    ///
    /// Context: process. The caller has removed the hook, and has the namespace counted.
    ///
    /// # Errors
    ///
    /// `EINVAL` without a file, or if it was lent before.
    pub(in crate::net) fn lend(&self) -> Result {
        // ORDERING: pairs with `layer_above_tcp`.
        if !self.file || self.lent.xchg(true, Full) {
            return Err(EINVAL);
        }
        let sk = self.sk();
        // SAFETY: The helper reads a field of a valid socket, which `self` has.
        if unsafe { riwarp_helper_sk_net_refcnt(sk) } == 0 {
            // SAFETY: `sk_net_refcnt_upgrade()` requires a valid socket that does not count its
            // namespace, as just checked, in a live namespace, which the caller guarantees.
            unsafe { bindings::sk_net_refcnt_upgrade(sk) };
        }
        Ok(())
    }

    /// Turns the socket into one with TLS, after a handshake with this peer.
    ///
    /// # Errors
    ///
    /// * `EINVAL` if it was not lent to a handshake, or has TLS.
    /// * `ENOTCONN` if the kernel's TLS is not on in both directions.
    /// * `EPROTO` if it is not TLS 1.3; `EOPNOTSUPP` if an adapter encrypts.
    /// * `ENOMEM`.
    pub(in crate::net) fn secure(&self, peer: TlsPeer) -> Result {
        // ORDERING: pairs with `lend`.
        if !self.lent.load(Acquire) || self.tls.as_ref().is_some() {
            return Err(EINVAL);
        }
        let sk = self.sk();
        // SAFETY: The helper requires a valid TCP socket, which `self` has.
        let cipher = unsafe { riwarp_helper_tls_cipher(sk) };
        to_result(cipher)?;
        // SAFETY: `read` requires a valid socket whose callbacks do not change: TLS is on, and the
        // handshake has ended.
        let callbacks = unsafe { Callbacks::read(sk) };
        let tls = KBox::pin_init(Tls::new(self, cipher, peer, callbacks), GFP_KERNEL)?;
        self.tls.populate(tls);
        Ok(())
    }

    /// Ends that the socket counts its namespace. Returns false while the daemon still has its
    /// file: it may close the file some time after it has reported the end of the handshake.
    /// Context: process.
    pub fn release_netns(&self) -> bool {
        let sk = self.sk();
        // SAFETY: The helper reads a field of a valid socket, which `self` has.
        let counts = self.is_secure() && unsafe { riwarp_helper_sk_net_refcnt(sk) } != 0;
        if !counts {
            return true;
        }
        // SAFETY: The helper requires a socket with a file, which one with TLS has. Nobody gets a
        // new reference to the file: it is in no table, and the handshake is over.
        if unsafe { riwarp_helper_sock_has_other_users(self.raw.as_ptr()) } {
            return false;
        }
        self.locked(|sk| {
            // SAFETY: The helper requires a valid socket that is locked, which `locked` gives, and
            // that counts its namespace, as just checked: only the sole owner changes that.
            unsafe { riwarp_helper_sk_net_refcnt_downgrade(sk) };
        });
        true
    }

    /// Resets a connection that TLS is on, or that a handshake has. Context: process.
    ///
    /// # Errors
    ///
    /// `EBUSY` while another thread owns the socket, unless this may wait for it.
    pub(super) fn abort_above_tcp(&self, error: Error, wait: bool) -> Result {
        let error = error.to_errno().wrapping_neg();
        // SAFETY: The helper requires a valid TCP socket, which `self` has.
        to_result(unsafe { riwarp_helper_tls_abort(self.sk(), error, wait) })
    }

    /// Closes a socket with a file, at once, unless the daemon has the file too.
    pub(super) fn close_file(&mut self) {
        // SAFETY: The helper requires a socket whose file the caller owns: by the type invariant
        // this value does, and it is no longer used.
        unsafe { riwarp_helper_sock_fput(self.raw.as_ptr()) };
    }
}
