// SPDX-License-Identifier: GPL-2.0

//! Settings of a device that can change while it runs; `verbs::settings` has their files.
//!
//! A new value applies to connections that begin afterwards. New devices take `crc` and `mpa_rev`
//! from the module's parameters.
//!
//! | file | values | meaning |
//! |---|---|---|
//! | `crc` | 0, 1 | ask peers for CRCs (RFC 5044, section 4.4); a peer's wish is always met |
//! | `mpa_rev` | 1, 2 | the MPA revision of requests by `rdma_cm` (RFC 5044; RFC 6581) |
//! | `peer_to_peer` | 0, 1 | offer by `rdma_cm` that either side may send first (RFC 6581, 4) |
//! | `eager_responder` | 0, 1 | the accepting side may send first also where that was not agreed |
//! | `extensions` | 0, 1 | agree on the Send with Immediate with peers of `rdma_cm` that do too |
//! | `pairing_port` | 0 to 65535 | TCP port of connections without `rdma_cm`; 0: there are none |
//!
//! `pairing_port` has to be the same at both ends. Writing it gives `EADDRINUSE` if a program has
//! that port.
//!
//! `eager_responder` departs from RFC 5044, section 7.1.2, rule 4 (MPA-9), which gives the
//! Initiator time to get ready for FPDUs. Programs whose listening side sends first need it with an
//! Initiator that is ready early and never offers peer-to-peer start, such as siw. Off by default.
//!
//! `extensions` departs from MPA-3: it uses two flags that RFC 5044 reserves and requires to be
//! zero. They are sent as zero unless the setting is on.
//!
//! Context: process; reading any.

use kernel::sync::atomic::{
    Atomic,
    Relaxed, //
};

/// A revision of the MPA start-up frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MpaRevision {
    /// RFC 5044.
    One,
    /// RFC 6581.
    Two,
}

impl MpaRevision {
    /// Returns the revision of a number in the frames; [`None`] if it is not supported.
    pub(crate) fn from_number(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::One),
            2 => Some(Self::Two),
            _ => None,
        }
    }

    /// Returns the number in the frames.
    pub(crate) fn number(self) -> u8 {
        match self {
            Self::One => 1,
            Self::Two => 2,
        }
    }
}

/// The settings of one device.
pub(crate) struct Settings {
    pub(crate) crc: Atomic<bool>,
    mpa_rev: Atomic<u32>,
    pub(crate) peer_to_peer: Atomic<bool>,
    pub(crate) eager_responder: Atomic<bool>,
    pub(crate) extensions: Atomic<bool>,
    pairing_port: Atomic<u32>,
}

impl Settings {
    /// Makes the settings of a new device.
    pub(crate) fn new(crc: bool, mpa_rev: MpaRevision) -> Self {
        Self {
            crc: Atomic::new(crc),
            mpa_rev: Atomic::new(mpa_rev.number().into()),
            peer_to_peer: Atomic::new(true),
            eager_responder: Atomic::new(false),
            extensions: Atomic::new(false),
            pairing_port: Atomic::new(PAIRING_PORT.into()),
        }
    }

    /// Returns whether to ask peers for CRCs.
    pub(crate) fn crc(&self) -> bool {
        self.crc.load(Relaxed)
    }

    /// Returns the revision of MPA Requests.
    pub(crate) fn mpa_rev(&self) -> MpaRevision {
        match self.mpa_rev.load(Relaxed) {
            1 => MpaRevision::One,
            _ => MpaRevision::Two,
        }
    }

    /// Sets that revision.
    pub(crate) fn set_mpa_rev(&self, revision: MpaRevision) {
        self.mpa_rev.store(revision.number().into(), Relaxed);
    }

    /// Returns whether to offer the peer-to-peer model in MPA Requests.
    pub(crate) fn peer_to_peer(&self) -> bool {
        self.peer_to_peer.load(Relaxed)
    }

    /// Returns the TCP port of out-of-band connect; [`None`] if it is off.
    pub(crate) fn pairing_port(&self) -> Option<u16> {
        let port = u16::try_from(self.pairing_port.load(Relaxed)).ok()?;
        (port != 0).then_some(port)
    }

    /// Sets that port, which the caller holds.
    pub(crate) fn set_pairing_port(&self, port: u16) {
        self.pairing_port.store(port.into(), Relaxed);
    }

    /// Returns whether a Responder may send before it has received, if no ready-to-receive message
    /// was agreed on.
    pub(crate) fn eager_responder(&self) -> bool {
        self.eager_responder.load(Relaxed)
    }

    /// Returns whether to agree with peers of `rdma_cm` on the Send with Immediate.
    pub(crate) fn extensions(&self) -> bool {
        self.extensions.load(Relaxed)
    }
}

/// The out-of-band port of new devices. It has no known other use, and is outside the range that
/// TCP picks ports from.
const PAIRING_PORT: u16 = 24_791;

#[kernel::prelude::kunit_tests(riwarp_settings)]
mod tests {
    use super::*;

    #[test]
    fn there_are_two_revisions() {
        for number in 0..=u8::MAX {
            let revision = MpaRevision::from_number(number);
            let expected = Some(number).filter(|number| matches!(number, 1 | 2));
            assert_eq!(revision.map(MpaRevision::number), expected);
        }
    }

    #[test]
    fn a_new_device_has_the_defaults() {
        let settings = Settings::new(false, MpaRevision::One);
        assert!(!settings.crc() && settings.peer_to_peer() && !settings.eager_responder());
        assert!(!settings.extensions());
        assert_eq!(settings.mpa_rev(), MpaRevision::One);
        assert!(Settings::new(true, MpaRevision::Two).crc());
        assert_eq!(settings.pairing_port(), Some(PAIRING_PORT));
        settings.set_pairing_port(0);
        assert_eq!(settings.pairing_port(), None);
    }
}
