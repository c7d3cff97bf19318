// SPDX-License-Identifier: GPL-2.0

//! What the strict mode of a device (`device::strict`) finds in a stream. docs/strict.md has the
//! rules by their numbers.
//!
//! Context: any.

use iwarp::{
    fault::Fault,
    stag::Stag,
    terminate::Quoted, //
};
use kernel::{
    fmt,
    prelude::*, //
};

use crate::device::strict::{
    EndedKey,
    KeyEnd, //
};

use super::owner::QpShared;

/// A rule that a program breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finding {
    /// More may complete into a completion queue than it holds.
    CqSize,
    /// A message waited for its receive.
    LateReceive,
    /// A key was used after its end.
    EndedKey,
    /// A request did not wait for a Read or atomic operation whose memory it uses.
    Unfenced,
}

impl Finding {
    /// Returns the number of the rule.
    fn number(self) -> u32 {
        match self {
            Self::CqSize => 3,
            Self::LateReceive => 4,
            Self::EndedKey => 6,
            Self::Unfenced => 7,
        }
    }
}

/// Who uses a key.
#[derive(Clone, Copy)]
pub(super) enum KeyUser {
    /// A work request with this cookie.
    Request(u64),
    /// The peer.
    Peer,
}

impl fmt::Display for KeyUser {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Request(id) => write!(out, "request {id:#x}"),
            Self::Peer => write!(out, "the peer"),
        }
    }
}

impl QpShared {
    /// Reports that a rule is broken, by the request `wr_id` if one breaks it.
    #[cold]
    pub(crate) fn report_finding(
        &self,
        finding: Finding,
        wr_id: Option<u64>,
        what: fmt::Arguments<'_>,
    ) {
        let stats = &self.device.stats;
        match finding {
            Finding::CqSize => stats.strict_cq_size.inc(),
            Finding::LateReceive => stats.strict_late_receives.inc(),
            Finding::EndedKey => stats.strict_ended_keys.inc(),
            Finding::Unfenced => stats.strict_unfenced.inc(),
        }
        let (rule, number) = (finding.number(), self.number);
        self.device
            .warn(fmt!("strict rule {rule}: queue pair {number}: {what}"));
        self.trace_finding(rule, wr_id.unwrap_or(0));
    }

    /// Remembers a key that `named` octets and has ended, if the device is strict.
    #[inline(always)]
    pub(super) fn note_invalidated(&self, stag: Stag, named: Option<(u64, u64)>) {
        if let Some((base, len)) = named {
            self.device.strict.remember(EndedKey {
                stag,
                base,
                len,
                end: KeyEnd::Invalidated,
            });
        }
    }

    /// Returns what a key names that is valid, if the device is strict.
    #[inline(always)]
    pub(super) fn named_by(&self, stag: Stag) -> Option<(u64, u64)> {
        if self.device.strict.is_on() {
            self.find_named(stag)
        } else {
            None
        }
    }

    #[cold]
    fn find_named(&self, stag: Stag) -> Option<(u64, u64)> {
        let view = self.regions.region(stag)?.view(self.stream_id());
        view.valid.then_some((view.base, view.len))
    }

    /// Reports those of the keys that have ended, after one of them was refused. The device is
    /// strict.
    #[cold]
    pub(super) fn check_keys(&self, user: KeyUser, keys: impl Iterator<Item = Stag>) {
        let wr_id = match user {
            KeyUser::Request(id) => Some(id),
            KeyUser::Peer => None,
        };
        for stag in keys {
            // Another region may have the value by now.
            if self.find_named(stag).is_some() {
                continue;
            }
            let Some(ended) = self.device.strict.ended_key(stag) else {
                continue;
            };
            let EndedKey { base, len, end, .. } = ended;
            let (key, how) = (stag.raw(), end.text());
            self.report_finding(
                Finding::EndedKey,
                wr_id,
                fmt!(
                    "{user} uses key {key:#x}, which was {how}: it named {len} octets at {base:#x}"
                ),
            );
        }
    }

    /// Reports the key that a message of the peer names, if it was refused because it has ended.
    /// The device is strict.
    #[cold]
    pub(super) fn check_peer_key(&self, fault: Fault, quoted: Option<&Quoted>) {
        let of_key = matches!(
            fault,
            Fault::TaggedInvalidStag | Fault::SourceInvalidStag | Fault::InvalidateUnknown
        );
        if let Some(quoted) = quoted.filter(|_| of_key) {
            self.check_keys(KeyUser::Peer, core::iter::once(quoted.stag()));
        }
    }
}
