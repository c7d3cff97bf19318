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
use super::key::Certificate;
use super::key::Key;
use super::socket::Socket;
use crate::bindings;
use core::net::IpAddr;
use core::net::Ipv6Addr;
use core::ptr;
use kernel::error::to_result;
use kernel::ffi::c_int;
use kernel::ffi::c_uint;
use kernel::ffi::c_void;
use kernel::fmt;
use kernel::prelude::*;
use kernel::str::CString;
use kernel::sync::Arc;
use kernel::sync::SetOnce;

extern "C" {
    fn riwarp_helper_tls_cancel(sk: *mut bindings::sock) -> bool;
    fn riwarp_helper_tls_hello(
        sock: *mut bindings::socket,
        client: bool,
        x509: bool,
        timeout_ms: c_uint,
        own: *const [i32; 2],
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

/// What this end proves itself by in a handshake, and what it demands of the peer.
pub enum Credentials {
    /// A key that both ends have.
    Psk {
        /// The only keyring whose keys a client may have.
        keyring: Arc<Key>,
        /// The key of this end as a client.
        key: Arc<Key>,
    },
    /// Certificates. The daemon verifies the peer's by its trust store.
    X509 {
        /// That of this end, in DER.
        cert: Arc<Key>,
        /// Its private key, in DER.
        privkey: Arc<Key>,
        /// The name that a server's has to have; without one it is the server's address.
        peername: Option<Arc<CString>>,
    },
}

/// Who a peer is that a handshake has authenticated.
pub enum TlsPeer {
    /// One that has a pre-shared key.
    Psk,
    /// One with a certificate. Of a server's, the key may be gone already, since another handshake
    /// with the same server takes its place.
    X509(Option<Certificate>),
}

impl Credentials {
    /// Returns the name that a server's certificate has to have, by its address: the address itself
    /// for IPv4, and for IPv6 the name of the reverse mapping, since no address may be in a server
    /// name indication (RFC 6066, section 3), and servers refuse one with colons.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn server_name(&self, address: IpAddr) -> Result<CString> {
        match self {
            Self::X509 {
                peername: Some(name),
                ..
            } => CString::try_from(&***name).map_err(Error::from),
            Self::X509 { peername: None, .. } | Self::Psk { .. } => match address {
                IpAddr::V4(address) => CString::try_from_fmt(format_args!("{address}")),
                IpAddr::V6(address) => CString::try_from_fmt(fmt!("{}", ReverseName(address))),
            },
        }
    }

    /// Returns who a peer is by the key that the daemon names after a handshake. Context: process.
    ///
    /// # Errors
    ///
    /// What is wrong with a client: its key is not one of the keyring, or it has no certificate.
    pub fn authenticated(&self, role: TlsRole, peer: i32) -> Result<TlsPeer, &'static str> {
        match (self, role) {
            // The daemon has verified a server's name, or that it has the same key.
            (Self::Psk { .. }, TlsRole::Client) => Ok(TlsPeer::Psk),
            (Self::X509 { .. }, TlsRole::Client) => Ok(TlsPeer::X509(Key::certificate(peer).ok())),
            (Self::Psk { keyring, .. }, TlsRole::Server) => {
                if keyring.contains(peer) {
                    Ok(TlsPeer::Psk)
                } else {
                    Err("the peer's TLS key is not in the keyring of the device")
                }
            }
            (Self::X509 { .. }, TlsRole::Server) => match Key::certificate(peer) {
                Ok(certificate) => Ok(TlsPeer::X509(Some(certificate))),
                Err(_) => Err("the peer has no TLS certificate"),
            },
        }
    }
}

/// The name of an address in the reverse mapping (RFC 3596, section 2.5).
struct ReverseName(Ipv6Addr);

impl fmt::Display for ReverseName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for octet in self.0.octets().iter().rev() {
            f.write_fmt(fmt!("{:x}.{:x}.", octet & 0xF, octet >> 4))?;
        }
        f.write_str("ip6.arpa")
    }
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
        credentials: &Credentials,
        timeout_ms: u32,
    ) -> Result<Self> {
        let target = hooked.suspend()?;
        Self::submit(
            hooked.socket(),
            Hook::new(target),
            role,
            credentials,
            timeout_ms,
        )
    }

    /// Tries again what `EAGAIN` has refused.
    ///
    /// # Errors
    ///
    /// As for [`Handshake::begin`].
    pub fn retry<T: SocketEvents>(
        hooked: &Hooked<T>,
        role: TlsRole,
        credentials: &Credentials,
        timeout_ms: u32,
    ) -> Result<Self> {
        let target = hooked.target().ok_or(EINVAL)?;
        Self::submit(
            hooked.socket(),
            Hook::new(target),
            role,
            credentials,
            timeout_ms,
        )
    }

    fn submit(
        socket: &Arc<Socket>,
        hook: Hook,
        role: TlsRole,
        credentials: &Credentials,
        timeout_ms: u32,
    ) -> Result<Self> {
        let outcome = HandshakeOutcome {
            result: SetOnce::new(),
            hook,
        };
        let outcome = Arc::new(outcome, GFP_KERNEL)?;
        let data = Arc::into_raw(outcome.clone()).cast_mut().cast();
        let (x509, own) = match credentials {
            Credentials::Psk { keyring, key } => (false, [keyring, key]),
            Credentials::X509 { cert, privkey, .. } => (true, [cert, privkey]),
        };
        let own = own.map(|key| key.serial());
        // SAFETY: The helper requires a valid socket with a file, which a lent one has, two
        // numbers, and a function that takes `data`: it does, once, unless this fails or the
        // handshake is cancelled.
        let submitted = to_result(unsafe {
            riwarp_helper_tls_hello(
                socket.raw(),
                role == TlsRole::Client,
                x509,
                timeout_ms,
                &raw const own,
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

#[kernel::prelude::kunit_tests(riwarp_tls_names)]
mod tests {
    use super::*;

    #[test]
    fn ipv6_address_has_the_name_of_the_reverse_mapping() -> Result {
        let address = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0x567, 0x89ab);
        let name = CString::try_from_fmt(fmt!("{}", ReverseName(address)))?;
        let reversed = c"b.a.9.8.7.6.5.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa";
        assert!(*name == *reversed);
        Ok(())
    }
}
