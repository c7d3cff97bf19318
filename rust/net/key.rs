// SPDX-License-Identifier: GPL-2.0

//! Keys and keyrings of the kernel's key service, for TLS.
//!
//! C headers: `include/linux/key.h`, `include/linux/keyctl.h`.

use core::slice;
use kernel::error::from_err_ptr;
use kernel::ffi::c_char;
use kernel::ffi::c_void;
use kernel::prelude::*;

extern "C" {
    fn riwarp_helper_key_get(serial: i32, kind: *const c_char) -> *mut c_void;
    fn riwarp_helper_key_lookup(serial: i32, kind: *const c_char) -> *mut c_void;
    fn riwarp_helper_key_put(key: *mut c_void);
    fn riwarp_helper_key_serial(key: *const c_void) -> i32;
    fn riwarp_helper_key_skid(key: *const c_void, len: *mut usize) -> *const u8;
    fn riwarp_helper_keyring_has(ring: *mut c_void, serial: i32) -> bool;
}

/// A reference to a key or keyring, which exists as long as this value.
///
/// # Invariants
///
/// The pointer is a `struct key` of which this value owns a reference.
pub struct Key(*mut c_void);

// SAFETY: A key belongs to no thread; any may put its reference.
unsafe impl Send for Key {}
// SAFETY: The functions that take a shared reference only read, or use the key's own locks.
unsafe impl Sync for Key {}

impl Key {
    /// Finds a keyring by its serial number. Context: process.
    ///
    /// # Errors
    ///
    /// * `EINVAL` if it is another kind of key.
    /// * `EACCES` if the current task may not search in it.
    /// * `ENOKEY`, `EKEYEXPIRED`, `EKEYREVOKED`.
    /// * `EOPNOTSUPP` in a kernel without TLS or without keys.
    pub fn keyring(serial: i32) -> Result<Self> {
        Self::find(serial, c"keyring")
    }

    /// Finds a key of the type "psk", which `tlshd` demands. Context: process.
    ///
    /// # Errors
    ///
    /// As for [`Key::keyring`].
    pub fn psk(serial: i32) -> Result<Self> {
        Self::find(serial, c"psk")
    }

    /// Finds a key of the type "user", whose octets `tlshd` reads. Context: process.
    ///
    /// # Errors
    ///
    /// As for [`Key::keyring`].
    pub fn user(serial: i32) -> Result<Self> {
        Self::find(serial, c"user")
    }

    fn find(serial: i32, kind: &CStr) -> Result<Self> {
        if serial <= 0 {
            return Err(EINVAL);
        }
        // SAFETY: The helper requires the current task and a string that ends in a zero.
        let key = unsafe { riwarp_helper_key_get(serial, kind.as_char_ptr()) };
        // INVARIANT: The helper returns an error, or a reference.
        from_err_ptr(key).map(Self)
    }

    /// Finds the key of a certificate, by the number that `tlshd` gives for one that it has
    /// verified. Context: process.
    ///
    /// # Errors
    ///
    /// * `ENOKEY` if there is none of that number, as 0 for a peer without a certificate.
    /// * `EINVAL` if it is another kind of key.
    /// * `EOPNOTSUPP` in a kernel without TLS or without keys.
    pub fn certificate(serial: i32) -> Result<Certificate> {
        // SAFETY: The helper requires a string that ends in a zero.
        let key = unsafe { riwarp_helper_key_lookup(serial, c"asymmetric".as_char_ptr()) };
        // INVARIANT: The helper returns an error, or a reference to a key of that type.
        from_err_ptr(key).map(|key| Certificate(Self(key)))
    }

    /// Returns the serial number.
    pub fn serial(&self) -> i32 {
        // SAFETY: The helper requires a valid key, which `self` has by the type invariant.
        unsafe { riwarp_helper_key_serial(self.0) }
    }

    /// Returns whether this is a keyring that itself has the key of that number, which is neither
    /// revoked nor expired. Context: process.
    pub fn contains(&self, serial: i32) -> bool {
        // SAFETY: The helper requires a valid key, which `self` has by the type invariant; a search
        // in one that is no keyring finds nothing.
        unsafe { riwarp_helper_keyring_has(self.0, serial) }
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        // SAFETY: The helper requires a reference: by the type invariant this value owns one.
        unsafe { riwarp_helper_key_put(self.0) };
    }
}

/// A reference to the key of a certificate.
///
/// # Invariants
///
/// The key is of the type "asymmetric".
pub struct Certificate(Key);

impl Certificate {
    /// Returns the subject key identifier, which is empty if the certificate has none.
    pub fn subject_key_id(&self) -> &[u8] {
        let mut len = 0;
        // SAFETY: The helper requires a valid key of the type "asymmetric", which `self` has by the
        // type invariants.
        let octets = unsafe { riwarp_helper_key_skid(self.0 .0, &raw mut len) };
        if octets.is_null() {
            return &[];
        }
        // SAFETY: `from_raw_parts` requires octets that do not change for the lifetime of the
        // slice: the helper returns so many, which such a key has from its beginning to its end.
        unsafe { slice::from_raw_parts(octets, len) }
    }
}
