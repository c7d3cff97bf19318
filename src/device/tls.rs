// SPDX-License-Identifier: GPL-2.0

//! TLS of a device's connections: its settings, which hold keys (docs/tls.md).
//!
//! | file | values | meaning |
//! |---|---|---|
//! | `tls` | off, psk, x509 | whether connections begin with a TLS handshake, and by what |
//! | `tls_accept` | permit, require | what a peer gets that begins in the clear |
//! | `tls_keyring` | a serial number, 0 | psk: the keyring with the keys of peers |
//! | `tls_key` | a serial number, 0 | psk: the key of this end when it connects |
//! | `tls_cert` | a serial number, 0 | x509: the certificate of this end |
//! | `tls_privkey` | a serial number, 0 | x509: its private key |
//! | `tls_peername` | a name, or nothing | x509: the name that peers' certificates have |
//!
//! A device holds a reference to its keys, so they exist as long as the setting. New values apply
//! to connections that begin afterwards.
//!
//! Context: process; a step of a connection waits for no holder of the lock but for a few
//! instructions.

use core::mem::replace;

use kernel::{
    new_spinlock,
    prelude::*,
    str::CString,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc,
        SpinLock, //
    }, //
};
use kernel_ext::{
    compat::EOPNOTSUPP,
    net::{
        tls_exists,
        tls_has_x509,
        Credentials,
        Key, //
    }, //
};

/// Octets of the longest name of a host (RFC 1035, section 2.3.4), as text.
const PEERNAME_MAX: usize = 253;

/// What connections begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TlsMode {
    /// MPA's start-up, in the clear.
    Off,
    /// A TLS handshake by a key that both ends have.
    Psk,
    /// A TLS handshake by certificates.
    X509,
}

/// What an accepted connection may begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TlsAccept {
    /// TLS or clear text.
    Permit,
    /// TLS.
    Require,
}

/// What connections that begin now do.
pub(crate) struct TlsPolicy {
    pub(crate) credentials: Credentials,
    pub(crate) accept: TlsAccept,
}

/// The settings.
#[pin_data]
pub(crate) struct TlsSettings {
    #[pin]
    inner: SpinLock<Inner>,
}

struct Inner {
    mode: TlsMode,
    accept: TlsAccept,
    keys: [Option<Arc<Key>>; TlsKey::COUNT],
    peername: Option<Arc<CString>>,
}

/// A key that a device has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TlsKey {
    /// The keyring with the keys of peers.
    Keyring,
    /// The key of this end when it connects.
    Psk,
    /// The certificate of this end.
    Cert,
    /// Its private key.
    Privkey,
}

impl TlsKey {
    const COUNT: usize = 4;

    /// Returns the mode that wants it.
    fn mode(self) -> TlsMode {
        match self {
            Self::Keyring | Self::Psk => TlsMode::Psk,
            Self::Cert | Self::Privkey => TlsMode::X509,
        }
    }

    fn find(self, serial: i32) -> Result<Key> {
        match self {
            Self::Keyring => Key::keyring(serial),
            Self::Psk => Key::psk(serial),
            Self::Cert | Self::Privkey => Key::user(serial),
        }
    }
}

impl Inner {
    fn key(&self, which: TlsKey) -> Option<Arc<Key>> {
        self.keys[which as usize].clone()
    }

    /// Returns the credentials of a mode; [`None`] if it has none, or not all of them.
    fn credentials(&self, mode: TlsMode) -> Option<Credentials> {
        match mode {
            TlsMode::Off => None,
            TlsMode::Psk => Some(Credentials::Psk {
                keyring: self.key(TlsKey::Keyring)?,
                key: self.key(TlsKey::Psk)?,
            }),
            TlsMode::X509 => Some(Credentials::X509 {
                cert: self.key(TlsKey::Cert)?,
                privkey: self.key(TlsKey::Privkey)?,
                peername: self.peername.clone(),
            }),
        }
    }
}

impl TlsSettings {
    /// Makes the settings of a new device: off.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new() -> Result<Arc<Self>> {
        let settings = pin_init!(Self {
            inner <- new_spinlock!(
                Inner {
                    mode: TlsMode::Off,
                    accept: TlsAccept::Permit,
                    keys: [const { None }; TlsKey::COUNT],
                    peername: None,
                },
                "riwarp::TlsSettings::inner"
            ),
        });
        Arc::pin_init(settings, GFP_KERNEL)
    }

    /// Returns whether a setting of this name would be one of these.
    pub(crate) fn has(name: &str) -> bool {
        name == "tls" || name.starts_with("tls_")
    }

    /// Sets the setting of a name, both as the files of a device have them.
    ///
    /// # Errors
    ///
    /// `EINVAL` if there is none of that name, or it does not take the value; those of
    /// [`TlsSettings::set_mode`], [`TlsSettings::set_key`] and [`TlsSettings::set_peername`].
    pub(crate) fn set(&self, name: &str, value: &str) -> Result {
        let key = match name {
            "tls" => return self.set_mode(value),
            "tls_accept" => return self.set_accept(value),
            "tls_peername" => return self.set_peername(value),
            "tls_keyring" => TlsKey::Keyring,
            "tls_key" => TlsKey::Psk,
            "tls_cert" => TlsKey::Cert,
            "tls_privkey" => TlsKey::Privkey,
            _ => return Err(EINVAL),
        };
        self.set_key(key, value)
    }

    /// Returns what connections that begin now do; [`None`] if TLS is off.
    pub(crate) fn policy(&self) -> Option<TlsPolicy> {
        let inner = self.inner.lock();
        Some(TlsPolicy {
            credentials: inner.credentials(inner.mode)?,
            accept: inner.accept,
        })
    }

    /// Returns whether connections begin with a handshake.
    pub(crate) fn is_on(&self) -> bool {
        self.inner.lock().mode != TlsMode::Off
    }

    /// Returns the mode as a word.
    pub(crate) fn mode(&self) -> &'static str {
        match self.inner.lock().mode {
            TlsMode::Off => "off",
            TlsMode::Psk => "psk",
            TlsMode::X509 => "x509",
        }
    }

    /// Sets the mode.
    ///
    /// # Errors
    ///
    /// * `EINVAL` if there is no such mode.
    /// * `ENOENT` if a key that the mode wants is not set yet.
    /// * `EOPNOTSUPP` in a kernel without TLS, or for x509 without keys of certificates.
    pub(crate) fn set_mode(&self, mode: &str) -> Result {
        let (mode, exists) = match mode {
            "off" => (TlsMode::Off, true),
            "psk" => (TlsMode::Psk, tls_exists()),
            "x509" => (TlsMode::X509, tls_has_x509()),
            _ => return Err(EINVAL),
        };
        if !exists {
            return Err(EOPNOTSUPP);
        }
        let mut inner = self.inner.lock();
        if mode != TlsMode::Off && inner.credentials(mode).is_none() {
            return Err(ENOENT);
        }
        inner.mode = mode;
        Ok(())
    }

    /// Returns what an accepted connection may begin with, as a word.
    pub(crate) fn accept(&self) -> &'static str {
        match self.inner.lock().accept {
            TlsAccept::Permit => "permit",
            TlsAccept::Require => "require",
        }
    }

    /// Sets that.
    ///
    /// # Errors
    ///
    /// `EINVAL` if it is another word.
    pub(crate) fn set_accept(&self, accept: &str) -> Result {
        let accept = match accept {
            "permit" => TlsAccept::Permit,
            "require" => TlsAccept::Require,
            _ => return Err(EINVAL),
        };
        self.inner.lock().accept = accept;
        Ok(())
    }

    /// Returns the serial number of a key, or 0.
    pub(crate) fn key(&self, which: TlsKey) -> i32 {
        let key = self.inner.lock().key(which);
        key.map_or(0, |key| key.serial())
    }

    /// Sets a key by its serial number; 0 removes it.
    ///
    /// # Errors
    ///
    /// * `EINVAL` if it is no number.
    /// * `EBUSY` to remove one that the mode wants.
    /// * Those of [`Key::keyring`], [`Key::psk`] and [`Key::user`].
    pub(crate) fn set_key(&self, which: TlsKey, serial: &str) -> Result {
        let key = match serial.parse().map_err(|_| EINVAL)? {
            0 => None,
            serial => Some(Arc::new(which.find(serial)?, GFP_KERNEL)?),
        };
        let _drop_outside_lock = {
            let mut inner = self.inner.lock();
            if key.is_none() && inner.mode == which.mode() {
                return Err(EBUSY);
            }
            replace(&mut inner.keys[which as usize], key)
        };
        Ok(())
    }

    /// Returns the name that the certificate of a peer has to have that this end connects to;
    /// [`None`] for the peer's address.
    pub(crate) fn peername(&self) -> Option<Arc<CString>> {
        self.inner.lock().peername.clone()
    }

    /// Sets that; an empty name stands for the peer's address.
    ///
    /// # Errors
    ///
    /// * `EINVAL` if it is no name of a host, nor an IPv4 address.
    /// * `ENOMEM`.
    pub(crate) fn set_peername(&self, name: &str) -> Result {
        let is_of_host = |octet: u8| octet.is_ascii_alphanumeric() || b"-._".contains(&octet);
        if name.len() > PEERNAME_MAX || !name.bytes().all(is_of_host) {
            return Err(EINVAL);
        }
        let name = match name {
            "" => None,
            name => Some(Arc::new(
                CString::try_from_fmt(fmt!("{name}"))?,
                GFP_KERNEL,
            )?),
        };
        let _drop_outside_lock = replace(&mut self.inner.lock().peername, name);
        Ok(())
    }
}

/// How many names there are for peers whose handshakes are accepted: more than there are handshakes
/// under way.
const CLIENT_NAMES: u32 = 256;

/// Returns a name for a peer whose handshake is accepted. `tlshd` calls the key of the peer's
/// certificate by it, in root's keyring, in which a key replaces another one of the same name: so
/// the names of handshakes differ.
///
/// # Errors
///
/// `ENOMEM`.
pub(crate) fn client_name() -> Result<CString> {
    // ORDERING: Relaxed: a number that stands for no other memory.
    static NEXT: Atomic<u32> = Atomic::new(0);

    let number = NEXT.fetch_add(1, Relaxed) % CLIENT_NAMES;
    CString::try_from_fmt(fmt!("riwarp-{number}"))
}

#[kernel::prelude::kunit_tests(riwarp_tls_settings)]
mod tests {
    use super::*;

    #[test]
    fn tls_takes_its_words_and_needs_keys() -> Result {
        let settings = TlsSettings::new()?;
        assert!(settings.policy().is_none());
        assert_eq!((settings.mode(), settings.accept()), ("off", "permit"));
        for word in ["", "on", "1", "X509", "PSK"] {
            assert_eq!(settings.set_mode(word), Err(EINVAL));
        }
        for (word, exists) in [("psk", tls_exists()), ("x509", tls_has_x509())] {
            let missing = if exists { ENOENT } else { EOPNOTSUPP };
            assert_eq!(settings.set_mode(word), Err(missing));
        }
        assert_eq!(settings.mode(), "off");
        settings.set_mode("off")?;
        for word in ["", "deny", "0"] {
            assert_eq!(settings.set_accept(word), Err(EINVAL));
        }
        settings.set_accept("require")?;
        assert_eq!(settings.accept(), "require");
        Ok(())
    }

    #[test]
    fn tls_refuses_keys_that_do_not_exist() -> Result {
        let settings = TlsSettings::new()?;
        for which in [TlsKey::Keyring, TlsKey::Psk, TlsKey::Cert, TlsKey::Privkey] {
            for serial in ["", "x", "-1", "-2147483648", "2147483648"] {
                assert_eq!(settings.set_key(which, serial), Err(EINVAL));
            }
            assert!(settings.set_key(which, "2147483647").is_err());
            settings.set_key(which, "0")?;
            assert_eq!(settings.key(which), 0);
        }
        Ok(())
    }

    #[test]
    fn tls_peername_is_of_a_host() -> Result {
        let settings = TlsSettings::new()?;
        let is_set = |name: &str| {
            let set = settings.peername();
            set.is_some_and(|set| set.to_bytes() == name.as_bytes())
        };
        for name in ["b.example", "10.0.0.2", "b_2.example"] {
            settings.set_peername(name)?;
            assert!(is_set(name));
        }
        for name in ["a b", "fd00::2", "b.example\n", "*.example", "\u{e4}"] {
            assert_eq!(settings.set_peername(name), Err(EINVAL));
        }
        assert_eq!(settings.set_peername(as_text(&[b'a'; 254])), Err(EINVAL));
        assert!(is_set("b_2.example"));
        settings.set_peername(as_text(&[b'a'; 253]))?;
        settings.set_peername("")?;
        assert!(settings.peername().is_none());
        Ok(())
    }

    #[test]
    fn tls_settings_have_names() -> Result {
        let settings = TlsSettings::new()?;
        settings.set("tls_accept", "require")?;
        settings.set("tls_peername", "b.example")?;
        assert_eq!(settings.accept(), "require");
        assert!(settings.peername().is_some());
        for (name, value) in [("tls_key", "x"), ("tls_keys", "0"), ("tls", "on")] {
            assert!(TlsSettings::has(name));
            assert_eq!(settings.set(name, value), Err(EINVAL));
        }
        assert!(!TlsSettings::has("crc"));
        Ok(())
    }

    fn as_text(octets: &[u8]) -> &str {
        core::str::from_utf8(octets).unwrap_or_default()
    }

    #[test]
    fn tls_names_of_clients_differ() -> Result {
        let first = client_name()?;
        for _ in 1..CLIENT_NAMES {
            assert!(client_name()?.to_bytes() != first.to_bytes());
        }
        Ok(())
    }
}
