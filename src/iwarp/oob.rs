// SPDX-License-Identifier: GPL-2.0

//! Out-of-band connect: two queue pairs that know each other's numbers connect over TCP.
//!
//! Programs of other RDMA networks exchange GID, queue pair number and PSN over a channel of their
//! own and set them in their queue pairs, without a connection manager. An iWARP queue pair needs a
//! TCP connection, so each end listens and, as soon as it may send, connects to the other. The MPA
//! frames of such a connection carry an [`Announcement`] as private data; docs/connections.md gives
//! its layout.
//!
//! This module decides whether an announcement is meant for a queue pair, from what the consumer
//! has set ([`Pair`]) and how many wrong PSNs have arrived ([`WrongGuesses`]), and which connection
//! is kept when both ends connect at once ([`ConnectState`]).
//!
//! Pure; any context. This is an extension of riwarp: no RFC specifies it.

use core::{
    cmp::Ordering,
    fmt, //
};

use crate::{
    bytes::{
        put,
        put_u16,
        put_u32,
        take,
        take_u16,
        take_u32, //
    },
    rdmap::Extensions, //
};

/// The number of a queue pair: 24 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QpNumber(u32);

impl QpNumber {
    /// Makes a number from the low 24 bits of `raw`.
    pub const fn new(raw: u32) -> Self {
        Self(raw & LOW_24)
    }

    /// Returns the number.
    pub const fn get(self) -> u32 {
        self.0
    }
}

/// A packet sequence number: 24 bits. iWARP has no packets to count; here it is a secret of the two
/// ends.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Psn(u32);

impl Psn {
    /// Makes a number from the low 24 bits of `raw`.
    pub const fn new(raw: u32) -> Self {
        Self(raw & LOW_24)
    }
}

impl fmt::Debug for Psn {
    /// Hides the number from logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Psn(..)")
    }
}

/// How often InfiniBand repeats a Send that finds no receive: 0 to 6 times, or without limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RnrRetry(u8);

impl RnrRetry {
    /// Without limit.
    pub const FOR_EVER: Self = Self(7);

    /// Makes it of the low 3 bits of `raw`.
    pub const fn new(raw: u8) -> Self {
        Self(raw & 7)
    }
}

/// What an end can do beyond the RFCs, a set of bits. Unknown ones are ignored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FeatureBits(u16);

impl FeatureBits {
    /// Nothing.
    pub const NONE: Self = Self(0);
    /// Takes RDMAP's experimental opcode 0xF (RFC 6580) for a Send with immediate data.
    pub const SEND_IMMEDIATE: Self = Self(1 << 0);

    /// Returns the features of both sets.
    #[must_use]
    pub const fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Returns whether every feature of `some` is in this set.
    pub const fn contains(self, some: Self) -> bool {
        self.0 & some.0 == some.0
    }
}

/// The private data of a Request or Reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Announcement {
    /// The sender's queue pair.
    pub from: QpNumber,
    /// The queue pair that the sender means.
    pub to: QpNumber,
    /// The number with which the sender begins to send; [`None`] if its consumer has not set one.
    pub send_psn: Option<Psn>,
    /// The number that the sender expects first.
    pub receive_psn: Psn,
    /// What the sender can do.
    pub features: FeatureBits,
    /// How often its Sends would be repeated; [`None`] if its consumer has not set that, or its
    /// version does not tell.
    pub rnr_retry: Option<RnrRetry>,
}

impl Announcement {
    /// Length in octets.
    pub const LEN: usize = ANNOUNCEMENT_LEN;

    const MAGIC: [u8; 4] = *b"riwP";
    const VERSION: u8 = 1;
    /// Flag: the send PSN is valid.
    const SEND_PSN: u8 = 0x80;
    /// Flag: the low 3 bits are [`Announcement::rnr_retry`].
    const RNR_RETRY: u8 = 0x08;

    /// Reads private data.
    ///
    /// # Errors
    ///
    /// [`Mismatch::Format`] if it is no announcement, [`Mismatch::Version`] for another version.
    pub fn decode(private_data: &[u8]) -> Result<Self, Mismatch> {
        let (front, rest) = private_data
            .split_first_chunk::<FRONT_LEN>()
            .ok_or(Mismatch::Format)?;
        if take::<0, 4, FRONT_LEN>(front) != Self::MAGIC {
            return Err(Mismatch::Format);
        }
        let [version, flags] = take::<4, 2, FRONT_LEN>(front);
        if version != Self::VERSION {
            return Err(Mismatch::Version);
        }
        let rest: &[u8; REST_LEN] = rest.try_into().map_err(|_| Mismatch::Format)?;
        Ok(Self {
            from: QpNumber(below_24(take_u32::<0, REST_LEN>(rest))?),
            to: QpNumber(below_24(take_u32::<4, REST_LEN>(rest))?),
            send_psn: match (
                flags & Self::SEND_PSN != 0,
                below_24(take_u32::<8, REST_LEN>(rest))?,
            ) {
                (true, psn) => Some(Psn(psn)),
                (false, _) => None,
            },
            receive_psn: Psn(below_24(take_u32::<12, REST_LEN>(rest))?),
            features: FeatureBits(take_u16::<6, FRONT_LEN>(front)),
            rnr_retry: (flags & Self::RNR_RETRY != 0).then_some(RnrRetry::new(flags)),
        })
    }

    /// Returns the octets.
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut octets = [0; Self::LEN];
        put::<0, 4, ANNOUNCEMENT_LEN>(&mut octets, Self::MAGIC);
        let mut flags = self.rnr_retry.map_or(0, |retry| Self::RNR_RETRY | retry.0);
        if self.send_psn.is_some() {
            flags |= Self::SEND_PSN;
        }
        put::<4, 2, ANNOUNCEMENT_LEN>(&mut octets, [Self::VERSION, flags]);
        put_u16::<6, ANNOUNCEMENT_LEN>(&mut octets, self.features.0);
        put_u32::<8, ANNOUNCEMENT_LEN>(&mut octets, self.from.0);
        put_u32::<12, ANNOUNCEMENT_LEN>(&mut octets, self.to.0);
        put_u32::<16, ANNOUNCEMENT_LEN>(&mut octets, self.send_psn.map_or(0, |psn| psn.0));
        put_u32::<20, ANNOUNCEMENT_LEN>(&mut octets, self.receive_psn.0);
        octets
    }
}

/// Why an announcement is not for a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mismatch {
    /// It is no announcement.
    Format,
    /// Its version is not 1.
    Version,
    /// It arrived on a connection between other addresses.
    Address,
    /// It comes from another queue pair, or is meant for another one.
    Number,
    /// One of the sequence numbers is not the one that the consumer has set.
    Psn,
    /// It was not checked: too many wrong ones have arrived from its address.
    Limited,
}

/// Which end has sent an announcement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speaker {
    /// The initiator, in a Request. An end that connects may send, so its send PSN must be valid.
    Initiator,
    /// The responder, in a Reply.
    Responder,
}

/// The address of one end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QpAddr {
    /// Its GID: an IP address, IPv4-mapped for IPv4.
    pub gid: [u8; 16],
    /// Its queue pair.
    pub number: QpNumber,
}

/// The addresses of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AddrPair {
    /// This end's, as [`QpAddr::gid`].
    pub local: [u8; 16],
    /// The peer's.
    pub remote: [u8; 16],
}

/// What the consumer has set for the connection of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// This end.
    pub local: QpAddr,
    /// The peer.
    pub remote: QpAddr,
    /// The number that the peer begins with.
    pub receive_psn: Psn,
    /// The number that this end begins with; [`None`] as long as it may neither send nor connect.
    pub send_psn: Option<Psn>,
    /// What this end can do.
    pub features: FeatureBits,
    /// How often its Sends would be repeated, as far as its consumer has set that.
    pub rnr_retry: Option<RnrRetry>,
}

/// What two ends do beyond the RFCs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreement {
    /// The messages that both understand.
    pub extensions: Extensions,
    /// How often the peer's Sends would be repeated, if it has told.
    pub rnr_retry: Option<RnrRetry>,
}

impl Pair {
    /// Returns the addresses. A getter.
    pub const fn addrs(&self) -> AddrPair {
        AddrPair {
            local: self.local.gid,
            remote: self.remote.gid,
        }
    }

    /// Returns the announcement of this end. A getter.
    pub fn announcement(&self) -> Announcement {
        Announcement {
            from: self.local.number,
            to: self.remote.number,
            send_psn: self.send_psn,
            receive_psn: self.receive_psn,
            features: self.features,
            rnr_retry: self.rnr_retry,
        }
    }

    /// Checks whether an announcement on a connection between `addrs` is the peer's and meant for
    /// this queue pair. Compares everything that is known at this moment. A getter.
    ///
    /// # Errors
    ///
    /// [`Mismatch::Address`], [`Mismatch::Number`], [`Mismatch::Psn`].
    pub fn check(
        &self,
        addrs: &AddrPair,
        speaker: Speaker,
        theirs: &Announcement,
    ) -> Result<(), Mismatch> {
        if *addrs != self.addrs() {
            return Err(Mismatch::Address);
        }
        if theirs.from != self.remote.number || theirs.to != self.local.number {
            return Err(Mismatch::Number);
        }
        let is_right = match (speaker, theirs.send_psn) {
            (_, Some(psn)) => psn == self.receive_psn,
            (Speaker::Initiator, None) => false,
            (Speaker::Responder, None) => true,
        };
        if !is_right || self.send_psn.is_some_and(|psn| psn != theirs.receive_psn) {
            return Err(Mismatch::Psn);
        }
        Ok(())
    }

    /// Checks a Request as [`Pair::check`] does, and limits how often a peer may guess.
    ///
    /// A queue pair without a send PSN compares its receive PSN only, and a peer could try out all
    /// 24 bits. So `wrong`, which belongs to the peer's address, counts wrong ones, and after too
    /// many of them a right one is refused as well. With a send PSN, 48 bits are too many to try:
    /// nothing is counted, so that guesses of others cannot keep the peer out.
    ///
    /// `now` is a time in milliseconds that does not run backwards. A command.
    ///
    /// # Errors
    ///
    /// Those of [`Pair::check`], and [`Mismatch::Limited`].
    pub fn check_call(
        &self,
        addrs: &AddrPair,
        theirs: &Announcement,
        wrong: &mut WrongGuesses,
        now: u64,
    ) -> Result<(), Mismatch> {
        let checked = self.check(addrs, Speaker::Initiator, theirs);
        let is_guess = matches!(checked, Ok(()) | Err(Mismatch::Psn));
        if !is_guess || self.send_psn.is_some() {
            return checked;
        }
        if wrong.is_limit_reached(now) {
            return Err(Mismatch::Limited);
        }
        if checked.is_err() {
            wrong.count(now);
        }
        checked
    }

    /// Returns what follows from both ends' announcements. A getter.
    pub const fn agree(&self, theirs: &Announcement) -> Agreement {
        let both = self.features.intersection(theirs.features);
        Agreement {
            extensions: if both.contains(FeatureBits::SEND_IMMEDIATE) {
                Extensions::SendImmediate
            } else {
                // A peer that does not know the messages of RFC 7306 does not send them.
                Extensions::Rfc7306
            },
            rnr_retry: theirs.rnr_retry,
        }
    }

    /// Decides what becomes of the peer's connection, which has been checked, while this end's own
    /// connection is in `state`. A getter.
    ///
    /// Of two attempts that cross, that of the smaller end is kept, but only once its Request was
    /// sent: until then the peer does not know of it, and this end may give it up. So the two ends
    /// can neither wait for each other nor keep different connections.
    pub fn judge_connect(&self, state: ConnectState) -> Judgement {
        match (state, self.local.cmp(&self.remote)) {
            (ConnectState::Requesting, Ordering::Less) => Judgement::Refuse,
            // At `Accepting`, the peer has given up the connection that it opened before.
            (
                ConnectState::Free
                | ConnectState::Connecting
                | ConnectState::Requesting
                | ConnectState::Accepting,
                _,
            ) => Judgement::Take,
        }
    }
}

/// Counts the wrong PSNs from one address: at most [`WrongGuesses::MAX`] are compared in
/// [`WrongGuesses::WINDOW`] milliseconds, which begin with the first of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WrongGuesses {
    count: u8,
    /// When the count begins again, in milliseconds.
    end: u64,
}

impl WrongGuesses {
    /// How many wrong PSNs are compared in a window.
    pub const MAX: u8 = 4;
    /// Length of a window in milliseconds. To try 2^24 numbers takes 24 days.
    pub const WINDOW: u64 = 500;

    /// Returns whether the limit is reached at this time. A getter.
    pub const fn is_limit_reached(&self, now: u64) -> bool {
        self.count >= Self::MAX && now < self.end
    }

    /// Counts one wrong PSN. A command.
    pub fn count(&mut self, now: u64) {
        if now >= self.end {
            *self = Self {
                count: 0,
                end: now.saturating_add(Self::WINDOW),
            };
        }
        self.count = self.count.saturating_add(1);
    }
}

/// The state of the connection of a queue pair that waits for its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectState {
    /// None.
    Free,
    /// This end connects: TCP has begun to, and the Request was not sent yet.
    Connecting,
    /// This end has connected: the Request was sent, the Reply has not arrived.
    Requesting,
    /// The peer has connected: the Reply is sent, the peer's first message has not arrived.
    Accepting,
}

/// What becomes of a peer's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// It is closed; this end's own attempt goes on.
    Refuse,
    /// It is answered and replaces any connection of this end.
    Take,
}

/// Returns how long a Send waits for the peer, in microseconds; [`None`] for ever.
///
/// `timeout` is the exponent of the time to wait for an acknowledgment (4.096 us times a power of
/// two, 0 for ever), `retry_cnt` says how often to try again. The InfiniBand specification lets an
/// attempt last four times as long as the consumer asks for. The result uses all of that, and is at
/// least a second, since a TCP connection takes more round trips than an acknowledgment.
pub const fn retry_timeout(timeout: u8, retry_cnt: u8) -> Option<u64> {
    let exponent = timeout & 0x1f;
    if exponent == 0 {
        return None;
    }
    // NO-OVERFLOW: at most 2^31 * 4096 * 4 * 8, below 2^48.
    let attempt = (4096_u64 << exponent).saturating_mul(4) / 1000;
    let tries = (retry_cnt & 7).saturating_add(1);
    let all = attempt.saturating_mul(tries as u64); // CAST: widens
    Some(if all < RETRY_TIMEOUT_MIN {
        RETRY_TIMEOUT_MIN
    } else {
        all
    })
}

/// Returns how long a Send waits for its receive, in microseconds; [`None`] for no limit.
///
/// `timer` is the receiver's `min_rnr_timer` (`enum ib_rnr_timeout`, `include/rdma/ib_verbs.h`),
/// after which InfiniBand has the sender repeat a Send each time. Values beyond its range count as
/// the greatest.
pub const fn rnr_wait(timer: u8, retry: RnrRetry) -> Option<u64> {
    if retry.0 == RnrRetry::FOR_EVER.0 {
        return None;
    }
    // In units of 10 us.
    let step: u64 = match timer {
        0 => 65_536,
        1 => 1,
        2..=31 if timer % 2 == 0 => 1 << (timer / 2),
        3..=31 => 3 << (timer / 2).saturating_sub(1),
        _ => 49_152,
    };
    // CAST: widens.
    Some(step.saturating_mul(10).saturating_mul(retry.0 as u64))
}

/// The pauses between attempts, which begin short and double.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pauses(u8);

impl Pauses {
    /// Returns the next pause in milliseconds.
    pub fn next_pause(&mut self) -> u32 {
        let pause = PAUSE_MIN << self.0;
        if pause < PAUSE_MAX {
            self.0 = self.0.saturating_add(1);
        }
        pause
    }
}

/// Checks that the high octet of a number is zero.
fn below_24(raw: u32) -> Result<u32, Mismatch> {
    if raw > LOW_24 {
        Err(Mismatch::Format)
    } else {
        Ok(raw)
    }
}

const LOW_24: u32 = 0xff_ffff;
/// Magic, version, flags and features.
const FRONT_LEN: usize = 8;
/// Four numbers.
const REST_LEN: usize = 16;
const ANNOUNCEMENT_LEN: usize = FRONT_LEN + REST_LEN;
/// Microseconds.
const RETRY_TIMEOUT_MIN: u64 = 1_000_000;
/// Milliseconds.
const PAUSE_MIN: u32 = 8;
/// Milliseconds.
const PAUSE_MAX: u32 = 1024;

#[cfg(any(test, MODULE))]
mod tests;
