// SPDX-License-Identifier: GPL-2.0

//! Rules that let requests of this end fail on purpose, so that the error paths of programs can be
//! tested.
//!
//! A rule is a line of words, each `NAME=VALUE` but for the flag `quiet`:
//!
//! ```text
//! [qp=N] [port=N] [peer=ADDRESS] [op=send|write|read|atomic]
//!     [nth=N | every=N | p=0.N [seed=N]] [times=N] do=ACTION
//! ```
//!
//! where ACTION is `status=S [vendor=N] [quiet]`, `terminate=0x1LTCC`, `reset` or `fin`. The words
//! `qp`, `port`, `peer` and `op` say which requests the rule is about; it counts these, for each
//! stream by itself. The others say which of them it hits: `nth` one, `every` each that is a
//! multiple of N, `p` each with this probability, and without any of them all; `times` how often at
//! most.
//!
//! Pure, any context. docs/inject.md is for users.

use crate::fault::ErrorCode;
use core::{
    net::IpAddr,
    num::NonZeroU32, //
};

/// Most rules of a device.
pub const MAX_RULES: usize = 16;
/// Most octets of a rule.
pub const MAX_LINE: usize = 160;

/// What a request does, as rules name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Send, with or without Immediate Data, and Immediate Data alone.
    Send,
    /// Write and Atomic Write.
    Write,
    /// Read and Flush.
    Read,
    /// The operations of RFC 7306.
    Atomic,
}

/// How a stream ends with a request that has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusEnd {
    /// This end has found an error: the peer gets a Terminate.
    Terminate,
    /// The peer has refused something: it gets a FIN, as if its Terminate had arrived.
    Fin,
    /// The peer is gone: it gets a reset.
    Reset,
    /// The peer sees nothing until the queue pair is destroyed.
    Nothing,
}

/// A status in which a request may end: its name, its number (`enum ibv_wc_status`), and how the
/// stream ends.
const STATUSES: [(&str, u8, StatusEnd); 13] = [
    ("LOC_LEN_ERR", 1, StatusEnd::Terminate),
    ("LOC_QP_OP_ERR", 2, StatusEnd::Terminate),
    ("LOC_PROT_ERR", 4, StatusEnd::Terminate),
    ("MW_BIND_ERR", 6, StatusEnd::Terminate),
    ("BAD_RESP_ERR", 7, StatusEnd::Terminate),
    ("LOC_ACCESS_ERR", 8, StatusEnd::Terminate),
    ("REM_INV_REQ_ERR", 9, StatusEnd::Fin),
    ("REM_ACCESS_ERR", 10, StatusEnd::Fin),
    ("REM_OP_ERR", 11, StatusEnd::Fin),
    ("RETRY_EXC_ERR", 12, StatusEnd::Reset),
    ("RNR_RETRY_EXC_ERR", 13, StatusEnd::Reset),
    ("REM_ABORT_ERR", 16, StatusEnd::Reset),
    ("GENERAL_ERR", 21, StatusEnd::Terminate),
];

/// What a rule does to a request that it hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleAction {
    /// The request completes with a status.
    Status {
        /// Its number (`enum ibv_wc_status`).
        status: u8,
        /// The completion's `vendor_err`.
        vendor: u32,
        /// How the stream ends.
        end: StatusEnd,
    },
    /// The stream ends with this Terminate, before the request is sent.
    Terminate(ErrorCode),
    /// The connection is reset.
    Reset,
    /// The connection is closed.
    Fin,
}

/// Which of the requests that a rule is about it hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    Nth(u32),
    Every(NonZeroU32),
    /// In 2^-32, of a generator that begins with the seed.
    Chance(u32, u64),
}

impl When {
    /// Returns whether the request is hit with this number, which counts from 1.
    fn hits(self, number: u32) -> bool {
        match self {
            Self::Nth(nth) => number == nth,
            Self::Every(every) => number % every == 0,
            Self::Chance(threshold, seed) => random(seed, number) < threshold,
        }
    }
}

/// The number of a sequence, by splitmix64.
fn random(seed: u64, number: u32) -> u32 {
    let step = u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut mixed = seed.wrapping_add(step);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    // CAST: the upper half.
    ((mixed ^ (mixed >> 31)) >> 32) as u32
}

/// The request that rules are asked about.
#[derive(Clone, Copy, Debug)]
pub struct Subject {
    /// The number of its queue pair.
    pub qp: u32,
    /// The TCP ports of its stream, of this end and of the peer's.
    pub ports: (u16, u16),
    /// The peer's address.
    pub peer: IpAddr,
    /// What it does.
    pub operation: Operation,
}

/// A rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    qp: Option<u32>,
    port: Option<u16>,
    peer: Option<IpAddr>,
    operation: Option<Operation>,
    when: When,
    times: u32,
    action: RuleAction,
}

/// Why a line is no rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake<'a> {
    /// The line has more than [`MAX_LINE`] octets.
    TooLong,
    /// There is no such word.
    Unknown(&'a str),
    /// The word has a value that it does not take.
    Value(&'a str),
    /// The word does not go with an earlier one, or is there twice.
    Conflict(&'a str),
    /// There is no `do`.
    NoAction,
}

impl<'a> Mistake<'a> {
    /// Returns what is wrong, and the word with which it is.
    pub fn describe(self) -> (&'static str, &'a str) {
        match self {
            Self::TooLong => ("longer than 160 octets", ""),
            Self::Unknown(word) => ("unknown word", word),
            Self::Value(word) => ("wrong value", word),
            Self::Conflict(word) => ("does not go with an earlier word", word),
            Self::NoAction => ("no action (do=)", ""),
        }
    }
}

/// The words of a rule that have been read.
#[derive(Default)]
struct Words {
    qp: Option<u32>,
    port: Option<u16>,
    peer: Option<IpAddr>,
    operation: Option<Operation>,
    when: Option<When>,
    seed: Option<u64>,
    times: Option<u32>,
    action: Option<RuleAction>,
    vendor: Option<u32>,
    quiet: Option<()>,
}

/// Keeps the value of a word.
fn keep<'a, T>(place: &mut Option<T>, value: Option<T>, word: &'a str) -> Result<(), Mistake<'a>> {
    let value = value.ok_or(Mistake::Value(word))?;
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err(Mistake::Conflict(word)),
    }
}

fn positive(text: &str) -> Option<NonZeroU32> {
    text.parse().ok()
}

/// Returns a number of at most 32 bits, in decimal, or with `0x` in hexadecimal.
fn number(text: &str) -> Option<u32> {
    match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Returns a probability of `0.N`, at most 9 digits, or `1`, in 2^-32; not none at all.
fn probability(text: &str) -> Option<u32> {
    if text == "1" {
        return Some(u32::MAX);
    }
    let digits = text.strip_prefix("0.")?;
    if digits.len() > 9 || !digits.bytes().all(|octet| octet.is_ascii_digit()) {
        return None;
    }
    let value: u64 = digits.parse().ok()?;
    let scale = (0..digits.len()).fold(1_u64, |scale, _| scale.saturating_mul(10));
    let shifted = value.checked_shl(32)?.checked_div(scale)?;
    u32::try_from(shifted).ok().filter(|chance| *chance != 0)
}

fn operation(text: &str) -> Option<Operation> {
    Some(match text {
        "send" => Operation::Send,
        "write" => Operation::Write,
        "read" => Operation::Read,
        "atomic" => Operation::Atomic,
        _ => return None,
    })
}

fn action(text: &str) -> Option<RuleAction> {
    Some(match text.split_once('=') {
        None if text == "reset" => RuleAction::Reset,
        None if text == "fin" => RuleAction::Fin,
        Some(("terminate", code)) => {
            let code = number(code)?;
            // A number as in a completion's `vendor_err`.
            let [0, 1, class, code] = code.to_be_bytes() else {
                return None;
            };
            RuleAction::Terminate(ErrorCode {
                layer: class >> 4,
                etype: class & 0x0f,
                code,
            })
        }
        Some(("status", name)) => {
            let (_, status, end) = STATUSES.into_iter().find(|(known, _, _)| *known == name)?;
            RuleAction::Status {
                status,
                vendor: 0,
                end,
            }
        }
        _ => return None,
    })
}

impl Rule {
    /// Reads a rule.
    ///
    /// # Errors
    ///
    /// What is wrong with it.
    pub fn parse(line: &str) -> Result<Self, Mistake<'_>> {
        if line.len() > MAX_LINE {
            return Err(Mistake::TooLong);
        }
        let mut words = Words::default();
        for word in line.split_ascii_whitespace() {
            words.take(word)?;
        }
        words.rule()
    }

    /// Returns what the rule does.
    pub fn action(&self) -> RuleAction {
        self.action
    }

    fn is_about(&self, subject: &Subject) -> bool {
        let (here, there) = subject.ports;
        self.qp.is_none_or(|qp| qp == subject.qp)
            && self.port.is_none_or(|port| port == here || port == there)
            && self.peer.is_none_or(|peer| peer == subject.peer)
            && self
                .operation
                .is_none_or(|operation| operation == subject.operation)
    }
}

impl Words {
    fn take<'a>(&mut self, word: &'a str) -> Result<(), Mistake<'a>> {
        let (name, value) = word.split_once('=').unwrap_or((word, ""));
        match name {
            "qp" => keep(&mut self.qp, number(value), word),
            "port" => keep(&mut self.port, value.parse().ok(), word),
            "peer" => keep(&mut self.peer, value.parse().ok(), word),
            "op" => keep(&mut self.operation, operation(value), word),
            "nth" => keep(
                &mut self.when,
                positive(value).map(|nth| When::Nth(nth.get())),
                word,
            ),
            "every" => keep(&mut self.when, positive(value).map(When::Every), word),
            "p" => {
                let chance = probability(value).map(|chance| When::Chance(chance, 0));
                keep(&mut self.when, chance, word)
            }
            "seed" => keep(&mut self.seed, value.parse().ok(), word),
            "times" => keep(&mut self.times, positive(value).map(NonZeroU32::get), word),
            "do" => keep(&mut self.action, action(value), word),
            "vendor" => keep(&mut self.vendor, number(value), word),
            "quiet" if word == name => keep(&mut self.quiet, Some(()), word),
            _ => Err(Mistake::Unknown(word)),
        }
    }

    fn rule(self) -> Result<Rule, Mistake<'static>> {
        let mut action = self.action.ok_or(Mistake::NoAction)?;
        match &mut action {
            RuleAction::Status { vendor, end, .. } => {
                *vendor = self.vendor.unwrap_or(0);
                if self.quiet.is_some() {
                    *end = StatusEnd::Nothing;
                }
            }
            RuleAction::Terminate(_) | RuleAction::Reset | RuleAction::Fin => {
                if self.vendor.is_some() {
                    return Err(Mistake::Conflict("vendor"));
                }
                if self.quiet.is_some() {
                    return Err(Mistake::Conflict("quiet"));
                }
            }
        }
        let when = match (self.when, self.seed) {
            (Some(When::Chance(chance, _)), seed) => When::Chance(chance, seed.unwrap_or(0)),
            (_, Some(_)) => return Err(Mistake::Conflict("seed")),
            (when, None) => when.unwrap_or(When::Every(NonZeroU32::MIN)),
        };
        Ok(Rule {
            qp: self.qp,
            port: self.port,
            peer: self.peer,
            operation: self.operation,
            when,
            times: self.times.unwrap_or(u32::MAX),
            action,
        })
    }
}

/// What a stream has counted for each rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleCounts([RuleCount; MAX_RULES]);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct RuleCount {
    /// Requests that the rule is about.
    seen: u32,
    /// Those that it has hit.
    hit: u32,
}

impl RuleCounts {
    /// Counts a request for each rule that is about it. Returns the place of the first one that
    /// hits it, and what that does.
    pub fn count<'a>(
        &mut self,
        rules: impl IntoIterator<Item = &'a Rule>,
        subject: &Subject,
    ) -> Option<(usize, RuleAction)> {
        let mut found = None;
        for (place, (rule, count)) in rules.into_iter().zip(&mut self.0).enumerate() {
            if !rule.is_about(subject) {
                continue;
            }
            count.seen = count.seen.saturating_add(1);
            if found.is_none() && count.hit < rule.times && rule.when.hits(count.seen) {
                count.hit = count.hit.saturating_add(1);
                found = Some((place, rule.action));
            }
        }
        found
    }
}
