// SPDX-License-Identifier: GPL-2.0

//! Settings of a device that can change while it runs; `verbs::settings` has their files.
//!
//! A new value applies to connections that begin afterwards. New devices take theirs from the
//! module's parameters ([`Defaults`]), of which some may be replaced for one device
//! ([`Defaults::replace`]).
//!
//! | file | values | meaning |
//! |---|---|---|
//! | `crc` | 0, 1 | ask peers for CRCs (RFC 5044, section 4.4); a peer's wish is always met |
//! | `mpa_rev` | 1, 2 | the MPA revision of requests by `rdma_cm` (RFC 5044; RFC 6581) |
//! | `peer_to_peer` | 0, 1 | offer by `rdma_cm` that either side may send first (RFC 6581, 4) |
//! | `eager_responder` | 0, 1 | the accepting side may send first also where that was not agreed |
//! | `extensions` | 0, 1 | agree on the Send with Immediate with peers of `rdma_cm` that do too |
//! | `confirm_sends` | 0, 1 | a signalled Send is complete once the peer has taken it |
//! | `draft_swap` | 0, 1 | send what always stores all bits as the Swap of RFC 7306's first draft |
//! | `ulpdu_limit` | 0 to 65535 | longest ULPDU to and from other riwarp devices |
//! | `receive_wait` | 0 to 3600000 | how long a message waits for its receive, in milliseconds |
//! | `oob_port` | 0 to 65535 | TCP port of out-of-band connections; 0: there are none |
//! | `port_offset` | 0 to 65535 | TCP ports of `rdma_cm`'s connections: so far behind its own |
//! | `ird_limit` | 1 to 128 | most Reads and atomic operations of the peer on a connection |
//! | `ord_limit` | 1 to 128 | most of this end |
//!
//! `oob_port` has to be the same at both ends. Writing it gives `EADDRINUSE` if a program has
//! that port. So has `port_offset`, which keeps the ports of `rdma_cm` apart from those of programs
//! that use the same number over TCP.
//!
//! `eager_responder` departs from RFC 5044, section 7.1.2, rule 4 (MPA-9), which gives the
//! Initiator time to get ready for FPDUs. Programs whose listening side sends first need it with an
//! Initiator that is ready early and never offers peer-to-peer start, such as siw. Off by default.
//!
//! `extensions` departs from MPA-3: it uses two flags that RFC 5044 reserves and requires to be
//! zero. They are sent as zero unless the setting is on.
//!
//! `draft_swap` departs from RFC 7306, section 10.1, which reserves the number of that operation.
//! It is for a Responder of the first draft that has no CmpSwap; other Responders may answer with a
//! Terminate. Off by default.
//!
//! `ulpdu_limit` departs from MPA-3 too: Requests have a flag that RFC 5044 reserves, unless it is
//! 0. A Responder does not check reserved flags, so only a riwarp device takes it for more. Below
//! the length of a TCP segment it has no effect. The default is 32 KiB of a Write, whose payloads
//! then are whole pages.
//!
//! Context: process; reading any.

use kernel::{
    prelude::*,
    sync::atomic::{
        Atomic,
        Relaxed, //
    }, //
};
use kernel_ext::net::SockAddr;

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

    /// Reads a number as an administrator writes it.
    ///
    /// # Errors
    ///
    /// `EINVAL` if it is not that of a revision.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let number = text.parse().map_err(|_| EINVAL)?;
        Self::from_number(number).ok_or(EINVAL)
    }

    /// Returns the number in the frames.
    pub(crate) fn number(self) -> u8 {
        match self {
            Self::One => 1,
            Self::Two => 2,
        }
    }
}

/// The settings of new devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Defaults {
    pub(crate) crc: bool,
    pub(crate) mpa_rev: MpaRevision,
    pub(crate) peer_to_peer: bool,
    pub(crate) eager_responder: bool,
    pub(crate) extensions: bool,
    pub(crate) confirm_sends: bool,
    pub(crate) draft_swap: bool,
    pub(crate) ulpdu_limit: u16,
    pub(crate) receive_wait: ReceiveWait,
    pub(crate) oob_port: u16,
    pub(crate) port_offset: u16,
    pub(crate) ird_limit: DepthLimit,
    pub(crate) ord_limit: DepthLimit,
}

impl Defaults {
    /// Replaces the value of a setting, both as the files of a device have them.
    ///
    /// # Errors
    ///
    /// `EINVAL` if there is no such setting, or it does not take the value.
    pub(crate) fn replace(&mut self, name: &str, value: &str) -> Result {
        if name == OLD_OOB_PORT {
            warn_of_old_name();
        }
        match name {
            "crc" => self.crc = parse_switch(value)?,
            "mpa_rev" => self.mpa_rev = MpaRevision::parse(value)?,
            "peer_to_peer" => self.peer_to_peer = parse_switch(value)?,
            "eager_responder" => self.eager_responder = parse_switch(value)?,
            "extensions" => self.extensions = parse_switch(value)?,
            "confirm_sends" => self.confirm_sends = parse_switch(value)?,
            "draft_swap" => self.draft_swap = parse_switch(value)?,
            "ulpdu_limit" => self.ulpdu_limit = value.parse().map_err(|_| EINVAL)?,
            "receive_wait" => self.receive_wait = ReceiveWait::parse(value)?,
            "oob_port" | OLD_OOB_PORT => self.oob_port = value.parse().map_err(|_| EINVAL)?,
            "port_offset" => self.port_offset = value.parse().map_err(|_| EINVAL)?,
            "ird_limit" => self.ird_limit = DepthLimit::parse(value)?,
            "ord_limit" => self.ord_limit = DepthLimit::parse(value)?,
            _ => return Err(EINVAL),
        }
        Ok(())
    }
}

/// The name of `oob_port` until 0.9, which 0.10 takes too.
pub(crate) const OLD_OOB_PORT: &str = "pairing_port";

/// Logs once that somebody has used the old name.
pub(crate) fn warn_of_old_name() {
    kernel::pr_warn_once!(
        "pairing_port is now called oob_port; the next release does not take the old name\n"
    );
}

/// Returns whether a word switches on or off.
///
/// # Errors
///
/// `EINVAL` if it is another word.
pub(crate) fn parse_switch(text: &str) -> Result<bool> {
    match text {
        "1" | "y" | "Y" | "on" => Ok(true),
        "0" | "n" | "N" | "off" => Ok(false),
        _ => Err(EINVAL),
    }
}

/// A limit of the Reads and atomic operations outstanding on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DepthLimit(u16);

impl DepthLimit {
    /// Makes it of a number; [`None`] for 0, and beyond what any device supports.
    pub(crate) fn from_number(number: u16) -> Option<Self> {
        (1..=MAX_DEPTH).contains(&number).then_some(Self(number))
    }

    /// Reads a number as an administrator writes it.
    ///
    /// # Errors
    ///
    /// `EINVAL` if it is none from 1 to the greatest limit.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let number = text.parse().map_err(|_| EINVAL)?;
        Self::from_number(number).ok_or(EINVAL)
    }

    /// Returns the number.
    pub(crate) fn number(self) -> u16 {
        self.0
    }
}

/// How long a message waits for its receive, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReceiveWait(u32);

impl ReceiveWait {
    /// The longest: an hour. What has waited longer never goes on, and TCP's buffer is full until
    /// the stream ends.
    const MAX: u32 = 3_600_000;

    /// Makes it of a number; [`None`] beyond the longest.
    pub(crate) fn from_millis(millis: u32) -> Option<Self> {
        (millis <= Self::MAX).then_some(Self(millis))
    }

    /// Reads a number as an administrator writes it.
    ///
    /// # Errors
    ///
    /// `EINVAL` if it is none, or too great.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        Self::from_millis(text.parse().map_err(|_| EINVAL)?).ok_or(EINVAL)
    }

    /// Returns the number.
    pub(crate) fn millis(self) -> u32 {
        self.0
    }
}

/// The settings of one device.
// ORDERING: all Relaxed: each is a word by itself, and a connection may use the old or new one.
pub(crate) struct Settings {
    pub(crate) crc: Atomic<bool>,
    mpa_rev: Atomic<u32>,
    pub(crate) peer_to_peer: Atomic<bool>,
    pub(crate) eager_responder: Atomic<bool>,
    pub(crate) extensions: Atomic<bool>,
    pub(crate) confirm_sends: Atomic<bool>,
    pub(crate) draft_swap: Atomic<bool>,
    ulpdu_limit: Atomic<u32>,
    receive_wait: Atomic<u32>,
    oob_port: Atomic<u32>,
    port_offset: Atomic<u32>,
    ird_limit: Atomic<u32>,
    ord_limit: Atomic<u32>,
}

impl Settings {
    /// Makes the settings of a new device.
    pub(crate) fn new(defaults: &Defaults) -> Self {
        Self {
            crc: Atomic::new(defaults.crc),
            mpa_rev: Atomic::new(defaults.mpa_rev.number().into()),
            peer_to_peer: Atomic::new(defaults.peer_to_peer),
            eager_responder: Atomic::new(defaults.eager_responder),
            extensions: Atomic::new(defaults.extensions),
            confirm_sends: Atomic::new(defaults.confirm_sends),
            draft_swap: Atomic::new(defaults.draft_swap),
            ulpdu_limit: Atomic::new(defaults.ulpdu_limit.into()),
            receive_wait: Atomic::new(defaults.receive_wait.millis()),
            oob_port: Atomic::new(defaults.oob_port.into()),
            port_offset: Atomic::new(defaults.port_offset.into()),
            ird_limit: Atomic::new(defaults.ird_limit.number().into()),
            ord_limit: Atomic::new(defaults.ord_limit.number().into()),
        }
    }

    /// Returns how many Reads and atomic operations of the peer a connection may have outstanding.
    pub(crate) fn ird_limit(&self) -> u32 {
        self.ird_limit.load(Relaxed)
    }

    /// Sets that limit.
    pub(crate) fn set_ird_limit(&self, limit: DepthLimit) {
        self.ird_limit.store(limit.number().into(), Relaxed);
    }

    /// Returns how many of this end it may have outstanding.
    pub(crate) fn ord_limit(&self) -> u32 {
        self.ord_limit.load(Relaxed)
    }

    /// Sets that limit.
    pub(crate) fn set_ord_limit(&self, limit: DepthLimit) {
        self.ord_limit.store(limit.number().into(), Relaxed);
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

    /// Returns the longest ULPDU to agree on with riwarp devices; [`None`] to agree on nothing.
    pub(crate) fn ulpdu_limit(&self) -> Option<u16> {
        let limit = u16::try_from(self.ulpdu_limit.load(Relaxed)).ok()?;
        (limit != 0).then_some(limit)
    }

    /// Sets it; 0 for none.
    pub(crate) fn set_ulpdu_limit(&self, limit: u16) {
        self.ulpdu_limit.store(limit.into(), Relaxed);
    }

    /// Returns how long a message waits for its receive, in milliseconds.
    pub(crate) fn receive_wait(&self) -> u32 {
        self.receive_wait.load(Relaxed)
    }

    /// Sets that.
    pub(crate) fn set_receive_wait(&self, wait: ReceiveWait) {
        self.receive_wait.store(wait.millis(), Relaxed);
    }

    /// Returns the TCP port of out-of-band connect; [`None`] if it is off.
    pub(crate) fn oob_port(&self) -> Option<u16> {
        let port = u16::try_from(self.oob_port.load(Relaxed)).ok()?;
        (port != 0).then_some(port)
    }

    /// Sets that port, which the caller holds.
    pub(crate) fn set_oob_port(&self, port: u16) {
        self.oob_port.store(port.into(), Relaxed);
    }

    /// Returns how far the TCP ports of connections by `rdma_cm` are behind its own.
    pub(crate) fn port_offset(&self) -> u16 {
        // CAST: Only 16 bits are stored.
        self.port_offset.load(Relaxed) as u16
    }

    /// Sets that.
    pub(crate) fn set_port_offset(&self, offset: u16) {
        self.port_offset.store(offset.into(), Relaxed);
    }

    /// Returns an address of `rdma_cm` with its TCP port.
    pub(crate) fn tcp_addr(&self, mut addr: SockAddr) -> SockAddr {
        addr.set_port(tcp_port(addr.port(), self.port_offset()));
        addr
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

    /// Returns whether a signalled Send or Immediate Data is complete only once the peer has taken
    /// it.
    pub(crate) fn confirm_sends(&self) -> bool {
        self.confirm_sends.load(Relaxed)
    }

    /// Returns whether atomic operations that always store all bits go as the Swap of the first
    /// draft.
    pub(crate) fn draft_swap(&self) -> bool {
        self.draft_swap.load(Relaxed)
    }
}

/// Returns the port that is so far behind a port. After 65535 comes 1, so each has one, and 0 stays
/// 0, which TCP takes as any.
fn tcp_port(port: u16, offset: u16) -> u16 {
    let Some(before) = port.checked_sub(1) else {
        return 0;
    };
    let place = (u32::from(before) + u32::from(offset)) % u32::from(u16::MAX);
    // CAST: It is less than 65535.
    place as u16 + 1
}

/// The greatest [`DepthLimit`].
pub(super) const MAX_DEPTH: u16 = 128;

/// The default of `oob_port`.
pub(crate) const OOB_PORT: u16 = 24_791;

/// The defaults if the module has no parameters.
#[cfg(CONFIG_KUNIT = "y")]
pub(crate) const DEFAULTS: Defaults = Defaults {
    crc: true,
    mpa_rev: MpaRevision::Two,
    peer_to_peer: true,
    eager_responder: false,
    extensions: false,
    confirm_sends: false,
    draft_swap: false,
    ulpdu_limit: 32_782,
    receive_wait: ReceiveWait(10_000),
    oob_port: OOB_PORT,
    port_offset: 0,
    ird_limit: DepthLimit(MAX_DEPTH),
    ord_limit: DepthLimit(MAX_DEPTH),
};

#[kernel::prelude::kunit_tests(riwarp_settings)]
mod tests {
    use super::*;

    #[test]
    fn mpa_revisions_are_1_and_2() {
        for number in 0..=u8::MAX {
            let revision = MpaRevision::from_number(number);
            let expected = Some(number).filter(|number| matches!(number, 1 | 2));
            assert_eq!(revision.map(MpaRevision::number), expected);
        }
    }

    #[test]
    fn read_depth_setting_is_limited() {
        for number in [0, MAX_DEPTH + 1, u16::MAX] {
            assert_eq!(DepthLimit::from_number(number), None);
        }
        for number in [1, 64, MAX_DEPTH] {
            let limit = DepthLimit::from_number(number);
            assert_eq!(limit.map(DepthLimit::number), Some(number));
        }
    }

    #[test]
    fn switch_setting_takes_only_known_words() {
        for text in ["1", "y", "Y", "on"] {
            assert_eq!(parse_switch(text), Ok(true));
        }
        for text in ["0", "n", "N", "off"] {
            assert_eq!(parse_switch(text), Ok(false));
        }
        for text in ["", "2", "01", "-1", "yes", "On", "1 ", "1\n", "1x"] {
            assert_eq!(parse_switch(text), Err(EINVAL));
        }
    }

    #[test]
    fn module_parameter_replaces_its_default() {
        let mut replaced = DEFAULTS;
        for (name, value) in [
            ("crc", "0"),
            ("mpa_rev", "1"),
            ("peer_to_peer", "off"),
            ("eager_responder", "y"),
            ("extensions", "1"),
            ("confirm_sends", "1"),
            ("draft_swap", "on"),
            ("ulpdu_limit", "65535"),
            ("receive_wait", "3600000"),
            ("pairing_port", "1"),
            ("oob_port", "0"),
            ("port_offset", "65535"),
            ("ird_limit", "1"),
            ("ord_limit", "128"),
        ] {
            assert_eq!(replaced.replace(name, value), Ok(()));
        }
        let expected = Defaults {
            crc: false,
            mpa_rev: MpaRevision::One,
            peer_to_peer: false,
            eager_responder: true,
            extensions: true,
            confirm_sends: true,
            draft_swap: true,
            ulpdu_limit: u16::MAX,
            receive_wait: ReceiveWait(3_600_000),
            oob_port: 0,
            port_offset: u16::MAX,
            ird_limit: DepthLimit(1),
            ord_limit: DepthLimit(MAX_DEPTH),
        };
        assert_eq!(replaced, expected);
        for (name, value) in [
            ("crc", "2"),
            ("mpa_rev", "3"),
            ("ulpdu_limit", "65536"),
            ("receive_wait", "3600001"),
            ("oob_port", "65536"),
            ("port_offset", "-1"),
            ("ird_limit", "0"),
            ("ord_limit", "129"),
            ("crc", ""),
            ("", "1"),
            ("name", "riw0"),
        ] {
            assert_eq!(replaced.replace(name, value), Err(EINVAL));
        }
        assert_eq!(replaced, expected);
    }

    #[test]
    fn port_offset_maps_ports_one_to_one() {
        for (offset, port, tcp) in [
            (0, 1, 1),
            (0, u16::MAX, u16::MAX),
            (1, 1, 2),
            (1, u16::MAX, 1),
            (30_000, 3260, 33_260),
            (30_000, 40_000, 4465),
            (65_534, 1, u16::MAX),
            (65_534, 2, 1),
            (u16::MAX, 7, 7),
            (7, 0, 0),
        ] {
            assert_eq!(tcp_port(port, offset), tcp);
        }
    }

    #[test]
    fn new_device_has_default_settings() {
        let settings = Settings::new(&DEFAULTS);
        assert_eq!(settings.ulpdu_limit(), Some(32_782));
        assert_eq!(settings.receive_wait(), 10_000);
        assert!(settings.crc() && settings.peer_to_peer() && !settings.eager_responder());
        assert!(!settings.extensions() && !settings.draft_swap() && !settings.confirm_sends());
        assert_eq!(settings.mpa_rev(), MpaRevision::Two);
        assert_eq!((settings.ird_limit(), settings.ord_limit()), (128, 128));
        assert_eq!(settings.oob_port(), Some(24_791));
        assert_eq!(settings.port_offset(), 0);
        let settings = Settings::new(&Defaults {
            crc: false,
            mpa_rev: MpaRevision::One,
            peer_to_peer: false,
            eager_responder: true,
            extensions: true,
            confirm_sends: true,
            draft_swap: true,
            ulpdu_limit: 0,
            receive_wait: ReceiveWait(5),
            oob_port: 7,
            port_offset: 8,
            ird_limit: DepthLimit(3),
            ord_limit: DepthLimit(4),
        });
        assert!(!settings.crc() && !settings.peer_to_peer() && settings.eager_responder());
        assert!(settings.extensions() && settings.draft_swap() && settings.confirm_sends());
        assert_eq!(settings.mpa_rev(), MpaRevision::One);
        assert_eq!((settings.ird_limit(), settings.ord_limit()), (3, 4));
        assert_eq!(settings.oob_port(), Some(7));
        assert_eq!(settings.port_offset(), 8);
        assert_eq!(settings.receive_wait(), 5);
        settings.set_oob_port(0);
        assert_eq!(settings.ulpdu_limit(), None);
        assert_eq!(settings.oob_port(), None);
    }
}
