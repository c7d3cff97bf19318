// SPDX-License-Identifier: GPL-2.0

//! TLS of a device's connections: its settings, which hold keys (docs/tls.md).
//!
//! | file | values | meaning |
//! |---|---|---|
//! | `tls` | off, psk | whether connections begin with a TLS handshake |
//! | `tls_accept` | permit, require | what a peer gets that begins in the clear |
//! | `tls_keyring` | a serial number, 0 | the keyring with the keys of peers |
//! | `tls_key` | a serial number, 0 | the key of this end when it connects |
//!
//! A device holds a reference to both, so they exist as long as the setting. New values apply to
//! connections that begin afterwards.
//!
//! Context: process; a step of a connection waits for no holder of the lock but for a few
//! instructions.

use core::mem::replace;

use kernel::{
    new_spinlock,
    prelude::*,
    sync::{
        Arc,
        SpinLock, //
    }, //
};
use kernel_ext::{
    compat::EOPNOTSUPP,
    net::{
        tls_exists,
        Key,
        PskKeys, //
    }, //
};

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
    pub(crate) keys: PskKeys,
    pub(crate) accept: TlsAccept,
}

/// The settings.
#[pin_data]
pub(crate) struct TlsSettings {
    #[pin]
    inner: SpinLock<Inner>,
}

struct Inner {
    psk: bool,
    accept: TlsAccept,
    keyring: Option<Arc<Key>>,
    key: Option<Arc<Key>>,
}

impl TlsSettings {
    /// Makes the settings of a new device: off.
    pub(super) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            inner <- new_spinlock!(
                Inner {
                    psk: false,
                    accept: TlsAccept::Permit,
                    keyring: None,
                    key: None,
                },
                "riwarp::TlsSettings::inner"
            ),
        })
    }

    /// Returns what connections that begin now do; [`None`] if TLS is off.
    pub(crate) fn policy(&self) -> Option<TlsPolicy> {
        let inner = self.inner.lock();
        if !inner.psk {
            return None;
        }
        let keys = PskKeys {
            keyring: inner.keyring.clone()?,
            key: inner.key.clone()?,
        };
        let accept = inner.accept;
        Some(TlsPolicy { keys, accept })
    }

    /// Returns whether connections begin with a handshake.
    pub(crate) fn is_on(&self) -> bool {
        self.inner.lock().psk
    }

    /// Returns the mode as a word.
    pub(crate) fn mode(&self) -> &'static str {
        if self.is_on() {
            "psk"
        } else {
            "off"
        }
    }

    /// Sets the mode.
    ///
    /// # Errors
    ///
    /// * `EINVAL` if there is no such mode.
    /// * `ENOENT` if there is no keyring or no key yet.
    /// * `EOPNOTSUPP` in a kernel without TLS.
    pub(crate) fn set_mode(&self, mode: &str) -> Result {
        let psk = match mode {
            "off" => false,
            "psk" if !tls_exists() => return Err(EOPNOTSUPP),
            "psk" => true,
            _ => return Err(EINVAL),
        };
        let mut inner = self.inner.lock();
        if psk && (inner.keyring.is_none() || inner.key.is_none()) {
            return Err(ENOENT);
        }
        inner.psk = psk;
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

    /// Returns the serial number of the keyring, or 0.
    pub(crate) fn keyring(&self) -> i32 {
        let keyring = self.inner.lock().keyring.clone();
        keyring.map_or(0, |keyring| keyring.serial())
    }

    /// Sets the keyring by its serial number; 0 removes it.
    ///
    /// # Errors
    ///
    /// `EBUSY` to remove it while TLS is on. Otherwise those of [`Key::keyring`].
    pub(crate) fn set_keyring(&self, serial: i32) -> Result {
        self.set_key_in(serial, Key::keyring, |inner| &mut inner.keyring)
    }

    /// Returns the serial number of the key, or 0.
    pub(crate) fn key(&self) -> i32 {
        let key = self.inner.lock().key.clone();
        key.map_or(0, |key| key.serial())
    }

    /// Sets the key by its serial number; 0 removes it.
    ///
    /// # Errors
    ///
    /// As for [`TlsSettings::set_keyring`].
    pub(crate) fn set_key(&self, serial: i32) -> Result {
        self.set_key_in(serial, Key::psk, |inner| &mut inner.key)
    }

    fn set_key_in(
        &self,
        serial: i32,
        find: fn(i32) -> Result<Key>,
        place: fn(&mut Inner) -> &mut Option<Arc<Key>>,
    ) -> Result {
        let key = match serial {
            0 => None,
            serial => Some(Arc::new(find(serial)?, GFP_KERNEL)?),
        };
        let _drop_outside_lock = {
            let mut inner = self.inner.lock();
            if key.is_none() && inner.psk {
                return Err(EBUSY);
            }
            replace(place(&mut inner), key)
        };
        Ok(())
    }
}

#[kernel::prelude::kunit_tests(riwarp_tls_settings)]
mod tests {
    use super::*;

    #[test]
    fn tls_takes_its_words_and_needs_keys() -> Result {
        let settings = Arc::pin_init(TlsSettings::new(), GFP_KERNEL)?;
        assert!(settings.policy().is_none());
        assert_eq!((settings.mode(), settings.accept()), ("off", "permit"));
        for word in ["", "on", "1", "x509", "PSK"] {
            assert_eq!(settings.set_mode(word), Err(EINVAL));
        }
        let missing = if tls_exists() { ENOENT } else { EOPNOTSUPP };
        assert_eq!(settings.set_mode("psk"), Err(missing));
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
        let settings = Arc::pin_init(TlsSettings::new(), GFP_KERNEL)?;
        for serial in [-1, i32::MIN] {
            assert_eq!(settings.set_keyring(serial), Err(EINVAL));
            assert_eq!(settings.set_key(serial), Err(EINVAL));
        }
        assert!(settings.set_keyring(i32::MAX).is_err());
        assert!(settings.set_key(i32::MAX).is_err());
        settings.set_keyring(0)?;
        assert_eq!((settings.keyring(), settings.key()), (0, 0));
        Ok(())
    }
}
