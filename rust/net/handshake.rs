// SPDX-License-Identifier: GPL-2.0

//! TLS handshakes, which the kernel leaves to a daemon in the socket's network namespace, `tlshd`.
//!
//! The daemon gets the socket's file, and answers once. It may never answer, and it may have the
//! file long after this end has given up: a socket that was lent stays valid, counts its namespace,
//! and is closed with the last user of the file.
//!
//! C header: `include/net/handshake.h`.

use super::hooks::Hook;
use super::hooks::Hooked;
use super::hooks::SocketEvents;
use super::key::Key;
use super::socket::Socket;
use crate::bindings;
use core::ptr;
use kernel::error::to_result;
use kernel::ffi::c_int;
use kernel::ffi::c_uint;
use kernel::ffi::c_void;
use kernel::prelude::*;
use kernel::sync::Arc;
use kernel::sync::SetOnce;

extern "C" {
    fn riwarp_helper_tls_cancel(sk: *mut bindings::sock) -> bool;
    fn riwarp_helper_tls_hello_psk(
        sock: *mut bindings::socket,
        client: bool,
        timeout_ms: c_uint,
        keyring: i32,
        key: i32,
        done: unsafe extern "C" fn(*mut c_void, c_int, i32),
        data: *mut c_void,
    ) -> c_int;
}

/// The part of this end in a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsRole {
    /// It has connected.
    Client,
    /// It has accepted.
    Server,
}

/// The keys of a handshake with a key that both ends have.
pub struct PskKeys {
    /// The only keyring whose keys a client may have.
    pub keyring: Arc<Key>,
    /// The key of this end as a client.
    pub key: Arc<Key>,
}

/// A handshake that was asked for; dropping it cancels it, if it has not ended.
///
/// # Invariants
///
/// The daemon's side owns a reference to `outcome` until it has ended, or was cancelled.
pub struct Handshake {
    socket: Arc<Socket>,
    outcome: Arc<HandshakeOutcome>,
}

struct HandshakeOutcome {
    /// The status, a negative error number or 0, and the serial number of the peer's key.
    result: SetOnce<(c_int, i32)>,
    /// Has the target of the socket's events.
    hook: Hook,
}

// SAFETY: The target that the hook owns is `Send` and `Sync`, as `SocketEvents` requires.
unsafe impl Send for HandshakeOutcome {}
// SAFETY: As for `Send`; the functions of a hook may be called on any thread.
unsafe impl Sync for HandshakeOutcome {}

impl Handshake {
    /// Lends a hooked socket with a file to the daemon of its network namespace. Its end is a
    /// `state_change`, the only event that is reported until [`Hooked::secure`].
    ///
    /// Context: process. The caller has the namespace counted, and takes the hook off only after
    /// the result has been dropped.
    ///
    /// # Errors
    ///
    /// * `ESRCH`: no daemon listens.
    /// * `EAGAIN`: the kernel lets no more handshakes wait; the socket is lent nevertheless, and
    ///   [`Handshake::retry`] tries again.
    /// * `EOPNOTSUPP` in a kernel without TLS.
    /// * `ENOMEM`, and those of a socket that cannot be lent.
    pub fn begin<T: SocketEvents>(
        hooked: &Hooked<T>,
        role: TlsRole,
        keys: &PskKeys,
        timeout_ms: u32,
    ) -> Result<Self> {
        let target = hooked.suspend()?;
        Self::submit(hooked.socket(), Hook::new(target), role, keys, timeout_ms)
    }

    /// Tries again what `EAGAIN` has refused.
    ///
    /// # Errors
    ///
    /// As for [`Handshake::begin`].
    pub fn retry<T: SocketEvents>(
        hooked: &Hooked<T>,
        role: TlsRole,
        keys: &PskKeys,
        timeout_ms: u32,
    ) -> Result<Self> {
        let target = hooked.target().ok_or(EINVAL)?;
        Self::submit(hooked.socket(), Hook::new(target), role, keys, timeout_ms)
    }

    fn submit(
        socket: &Arc<Socket>,
        hook: Hook,
        role: TlsRole,
        keys: &PskKeys,
        timeout_ms: u32,
    ) -> Result<Self> {
        let outcome = HandshakeOutcome {
            result: SetOnce::new(),
            hook,
        };
        let outcome = Arc::new(outcome, GFP_KERNEL)?;
        let data = Arc::into_raw(outcome.clone()).cast_mut().cast();
        // SAFETY: The helper requires a valid socket with a file, which a lent one has, and a
        // function that takes `data`: it does, once, unless this fails or the handshake is
        // cancelled.
        let submitted = to_result(unsafe {
            riwarp_helper_tls_hello_psk(
                socket.raw(),
                role == TlsRole::Client,
                timeout_ms,
                keys.keyring.serial(),
                keys.key.serial(),
                done,
                data,
            )
        });
        if let Err(error) = submitted {
            // SAFETY: `from_raw` requires a pointer of `into_raw` whose reference nobody else owns:
            // no call of `done` follows an error.
            drop(unsafe { Arc::<HandshakeOutcome>::from_raw(data.cast()) });
            return Err(error);
        }
        // INVARIANT: `data` is a reference of the daemon's side.
        let socket = socket.clone();
        Ok(Self { socket, outcome })
    }

    /// Returns the serial number of the key that the peer has proven to have, as the daemon says,
    /// once the handshake has ended.
    ///
    /// # Errors
    ///
    /// What the daemon says: `EACCES` if the ends do not agree, `ETIMEDOUT`, `EIO`.
    pub fn result(&self) -> Option<Result<i32>> {
        let (status, peer) = *self.outcome.result.as_ref()?;
        Some(to_result(status.min(0)).map(|()| peer))
    }
}

impl Drop for Handshake {
    /// Context: process.
    fn drop(&mut self) {
        // SAFETY: The helper requires a valid socket.
        if !unsafe { riwarp_helper_tls_cancel(self.socket.sk()) } {
            return;
        }
        // SAFETY: `from_raw` requires a pointer of `into_raw` whose reference nobody else owns:
        // that of the daemon's side, which uses it no more.
        drop(unsafe { Arc::from_raw(ptr::from_ref(&*self.outcome)) });
    }
}

/// Notes the end of a handshake.
///
/// # Safety
///
/// `data` must come from `Arc<HandshakeOutcome>::into_raw`, and the caller must own a reference,
/// which this call consumes.
unsafe extern "C" fn done(data: *mut c_void, status: c_int, peer: i32) {
    // SAFETY: `from_raw` requires a pointer of `into_raw` and the reference that it owns: the
    // caller passes both.
    let outcome = unsafe { Arc::<HandshakeOutcome>::from_raw(data.cast()) };
    outcome.result.populate((status, peer));
    outcome.hook.state_change();
}
