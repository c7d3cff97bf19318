// SPDX-License-Identifier: GPL-2.0

//! Rules by which requests of this end, messages of the peer, and verbs fail or are late on
//! purpose, so that the error paths of programs can be tested.
//!
//! A rule is a line of words, each `NAME=VALUE` but for the flag `quiet`:
//!
//! ```text
//! [qp=N] [port=N] [peer=ADDRESS] [comm=NAME] [on=post|send|recv|complete|connect|request|VERB]
//!     [op=send|write|read|atomic]
//!     [nth=N | every=N | p=0.N [seed=N]] [times=N] [scope=stream|device] [after=N] do=ACTION
//! ```
//!
//! where ACTION is `status=S [vendor=N] [quiet]`, `terminate=0x1LTCC`, `reset`, `fin`, `silent`,
//! `delay=T`, `rate=R`, `corrupt [kernel=yes]`, `corrupt=crc [kernel=yes]`, `no-receive`,
//! `event=EVENT`, of a verb `errno=E`, or of a connection a [`ConnAction`]. The words of the first
//! line say what the rule is about: requests when they are taken from their queue or before they
//! are sent, messages of the peer before they are taken, or calls of a verb before they do
//! anything; it counts these, for each stream by itself or on all of the device. `nth`, `every` and
//! `p` say which of them it hits, and without them it hits all; `times` says how often at most.
//! With `after` it acts inside the message of a request, behind so many octets of its payload.
//!
//! Pure, any context. docs/inject.md is for users.

mod connection;
mod event;
mod verb;

pub use connection::ConnAction;
pub use event::{
    AsyncEvent,
    EventSource, //
};
pub use verb::Verb;

use crate::fault::ErrorCode;
use core::{
    net::IpAddr,
    num::{
        NonZeroU32,
        NonZeroU64, //
    }, //
};

/// Most rules of a device.
pub const MAX_RULES: usize = 16;
/// Most octets of a rule.
pub const MAX_LINE: usize = 160;

/// Length of a process's name, filled up with zeroes, in octets (`TASK_COMM_LEN` of
/// include/linux/sched.h).
pub const COMM_LEN: usize = 16;

/// Where a rule acts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Point {
    /// A request of this end that has been posted, before it waits for those before it.
    Post,
    /// A request of this end, before its message is sent.
    #[default]
    Send,
    /// A message of the peer, before it is taken.
    Receive,
    /// A request of this end that is done, before it completes.
    Complete,
    /// A call of a verb, before it does anything.
    Verb(Verb),
    /// A connection of this end, whose peer has answered.
    Connect,
    /// A connection that a peer asks for, before the consumer hears of it.
    Request,
}

/// What a message does, as rules name it.
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

/// Longest delay, in milliseconds.
const MAX_DELAY: u32 = 3_600_000;
/// Lowest rate, in octets per second.
const MIN_RATE: u64 = 1_000;

/// Which octet of a message's first FPDU is another one than it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Corruption {
    /// One of its payload, over which the CRC is computed.
    Payload,
    /// One of its CRC.
    Crc,
}

/// What a rule does to a request or a message that it hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleAction {
    /// The request, or the receive that the message takes, completes with a status.
    Status {
        /// Its number (`enum ibv_wc_status`).
        status: u8,
        /// The completion's `vendor_err`.
        vendor: u32,
        /// How the stream ends.
        end: StatusEnd,
    },
    /// The stream ends with this Terminate.
    Terminate(ErrorCode),
    /// The connection is reset.
    Reset,
    /// The connection is closed.
    Fin,
    /// Nothing more is sent, or taken.
    Silent,
    /// It is held for so many milliseconds, and all behind it.
    Delay(NonZeroU32),
    /// From now on so many octets a second are sent at most.
    Rate(NonZeroU64),
    /// An octet is changed.
    Corrupt(Corruption),
    /// The message finds no receive when it arrives.
    NoReceive,
    /// The verb fails with this error, a positive number.
    Errno(u8),
    /// The event is raised, and nothing else changes.
    Event(AsyncEvent),
    /// The connection does not begin, or not as it would.
    Connection(ConnAction),
    /// The message of the request stops behind so many octets of its payload.
    Inside(NonZeroU32, Interruption),
}

/// What a rule does inside of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interruption {
    /// The stream ends with this Terminate.
    Terminate(ErrorCode),
    /// The connection is reset.
    Reset,
    /// The connection is closed.
    Fin,
    /// Nothing more is sent.
    Silent,
    /// The rest is held for so many milliseconds.
    Delay(NonZeroU32),
}

impl Interruption {
    /// Returns the action as one inside of a message.
    fn of(action: RuleAction) -> Option<Self> {
        match action {
            RuleAction::Terminate(code) => Some(Self::Terminate(code)),
            RuleAction::Reset => Some(Self::Reset),
            RuleAction::Fin => Some(Self::Fin),
            RuleAction::Silent => Some(Self::Silent),
            RuleAction::Delay(millis) => Some(Self::Delay(millis)),
            RuleAction::Status { .. }
            | RuleAction::Rate(_)
            | RuleAction::Corrupt(_)
            | RuleAction::NoReceive
            | RuleAction::Errno(_)
            | RuleAction::Event(_)
            | RuleAction::Connection(_)
            | RuleAction::Inside(..) => None,
        }
    }
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

/// The request, message or call that rules are asked about.
#[derive(Clone, Copy, Debug)]
pub struct Subject {
    /// Which of them it is.
    pub point: Point,
    /// The number of its queue pair, if it has one.
    pub qp: Option<u32>,
    /// The name of the process that has made the queue pair or, without one, that calls; [`None`]
    /// for a kernel consumer.
    pub comm: Option<[u8; COMM_LEN]>,
    /// Its stream, and what it does there; [`None`] for a call.
    pub stream: Option<StreamSubject>,
}

/// A request or message of a stream, or a connection.
#[derive(Clone, Copy, Debug)]
pub struct StreamSubject {
    /// The TCP ports of its stream, of this end and of the peer's.
    pub ports: (u16, u16),
    /// The peer's address.
    pub peer: IpAddr,
    /// What it does; [`None`] for a connection.
    pub operation: Option<Operation>,
    /// Length of its payload, in octets; for a message of the peer any.
    pub len: u32,
    /// Its payload may be cut anywhere.
    pub is_divisible: bool,
}

/// A rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    qp: Option<u32>,
    port: Option<u16>,
    peer: Option<IpAddr>,
    comm: Option<[u8; COMM_LEN]>,
    point: Point,
    operation: Option<Operation>,
    when: When,
    times: u32,
    scope: Scope,
    action: RuleAction,
    /// It may change what a kernel consumer sends.
    kernel: bool,
}

/// Among which requests a rule counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Scope {
    /// Those of a stream.
    #[default]
    Stream,
    /// Those of all streams of the device.
    Device,
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
    /// A rule about posts is not one about kernel consumers.
    PostOfProcess,
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
            Self::PostOfProcess => ("takes kernel=yes: processes post without a call", "on"),
        }
    }
}

/// The words of a rule that have been read.
#[derive(Default)]
struct Words {
    qp: Option<u32>,
    port: Option<u16>,
    peer: Option<IpAddr>,
    comm: Option<[u8; COMM_LEN]>,
    point: Option<Point>,
    operation: Option<Operation>,
    when: Option<When>,
    seed: Option<u64>,
    times: Option<u32>,
    scope: Option<Scope>,
    action: Option<RuleAction>,
    after: Option<NonZeroU32>,
    vendor: Option<u32>,
    quiet: Option<()>,
    kernel: Option<()>,
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

/// Returns a number with one of the units, each with what it stands for, between two bounds.
fn quantity(text: &str, units: &[(&str, u64)], (least, most): (u64, u64)) -> Option<u64> {
    let digits = text.trim_end_matches(|letter: char| !letter.is_ascii_digit());
    let unit = text.get(digits.len()..)?;
    let (_, factor) = units.iter().find(|(name, _)| *name == unit)?;
    let value = digits.parse::<u64>().ok()?.checked_mul(*factor)?;
    (least..=most).contains(&value).then_some(value)
}

/// Returns a time in milliseconds.
fn delay(text: &str) -> Option<NonZeroU32> {
    let millis = quantity(text, &[("ms", 1), ("s", 1_000)], (1, MAX_DELAY.into()))?;
    NonZeroU32::new(u32::try_from(millis).ok()?)
}

/// Returns a rate in octets per second.
fn rate(text: &str) -> Option<NonZeroU64> {
    let units = [
        ("", 1),
        ("k", 1_000),
        ("M", 1_000_000),
        ("G", 1_000_000_000),
    ];
    NonZeroU64::new(quantity(text, &units, (MIN_RATE, u64::MAX))?)
}

/// Returns the name of a process.
fn comm(text: &str) -> Option<[u8; COMM_LEN]> {
    let mut name = [0; COMM_LEN];
    let place = name.get_mut(..text.len())?;
    place.copy_from_slice(text.as_bytes());
    // The last octet is always zero.
    (!text.is_empty() && text.len() < COMM_LEN).then_some(name)
}

fn point(text: &str) -> Option<Point> {
    Some(match text {
        "post" => Point::Post,
        "send" => Point::Send,
        "recv" => Point::Receive,
        "complete" => Point::Complete,
        "connect" => Point::Connect,
        "request" => Point::Request,
        _ => Point::Verb(Verb::from_name(text)?),
    })
}

fn scope(text: &str) -> Option<Scope> {
    Some(match text {
        "stream" => Scope::Stream,
        "device" => Scope::Device,
        _ => return None,
    })
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
        None if text == "silent" => RuleAction::Silent,
        None if text == "no-receive" => RuleAction::NoReceive,
        None if text == "corrupt" => RuleAction::Corrupt(Corruption::Payload),
        Some(("corrupt", "crc")) => RuleAction::Corrupt(Corruption::Crc),
        Some(("delay", time)) => RuleAction::Delay(delay(time)?),
        Some(("rate", octets)) => RuleAction::Rate(rate(octets)?),
        Some(("event", name)) => RuleAction::Event(event::event(name)?),
        Some(("errno", name)) => RuleAction::Errno(verb::errno(name)?),
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
        named => {
            let (name, value) = named.map_or((text, None), |(name, value)| (name, Some(value)));
            RuleAction::Connection(ConnAction::parse(name, value)?)
        }
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
        self.point == subject.point
            && self.qp.is_none_or(|qp| subject.qp == Some(qp))
            && self.comm.is_none_or(|comm| subject.comm == Some(comm))
            && subject
                .stream
                .is_none_or(|stream| self.is_about_stream(&stream))
            && self.may_hit(subject)
    }

    fn is_about_stream(&self, stream: &StreamSubject) -> bool {
        let (here, there) = stream.ports;
        self.port.is_none_or(|port| port == here || port == there)
            && self.peer.is_none_or(|peer| peer == stream.peer)
            && self
                .operation
                .is_none_or(|operation| stream.operation == Some(operation))
    }

    /// Returns whether the rule changes no octets, or may change those of the message; whether the
    /// message can stop where the rule says; and whether it is about kernel consumers if it has to
    /// be.
    fn may_hit(&self, subject: &Subject) -> bool {
        let has_octet = match self.action {
            RuleAction::Corrupt(Corruption::Payload) => {
                subject.stream.is_some_and(|stream| stream.len != 0)
            }
            RuleAction::Corrupt(Corruption::Crc) => true,
            RuleAction::Inside(after, _) => {
                return subject
                    .stream
                    .is_some_and(|stream| stream.is_divisible && stream.len > after.get())
            }
            // Processes do not post by a call.
            RuleAction::Errno(_) => return !self.kernel || subject.comm.is_none(),
            _ => return true,
        };
        has_octet && (self.kernel || subject.comm.is_some())
    }
}

impl Words {
    fn take<'a>(&mut self, word: &'a str) -> Result<(), Mistake<'a>> {
        let (name, value) = word.split_once('=').unwrap_or((word, ""));
        match name {
            "qp" => keep(&mut self.qp, number(value), word),
            "port" => keep(&mut self.port, value.parse().ok(), word),
            "peer" => keep(&mut self.peer, value.parse().ok(), word),
            "comm" => keep(&mut self.comm, comm(value), word),
            "on" => keep(&mut self.point, point(value), word),
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
            "scope" => keep(&mut self.scope, scope(value), word),
            "do" => keep(&mut self.action, action(value), word),
            "after" => keep(&mut self.after, positive(value), word),
            "vendor" => keep(&mut self.vendor, number(value), word),
            "quiet" if word == name => keep(&mut self.quiet, Some(()), word),
            "kernel" => keep(&mut self.kernel, (value == "yes").then_some(()), word),
            _ => Err(Mistake::Unknown(word)),
        }
    }

    fn rule(self) -> Result<Rule, Mistake<'static>> {
        let mut action = self.action.ok_or(Mistake::NoAction)?;
        let point = match (action, self.point.unwrap_or_default()) {
            // An error is one of the call.
            (RuleAction::Errno(_), Point::Post) => Point::Verb(Verb::PostSend),
            (_, point) => point,
        };
        if let Some(after) = self.after {
            let inside = Interruption::of(action).ok_or(Mistake::Conflict("after"))?;
            action = RuleAction::Inside(after, inside);
        }
        let mut operation = self.operation;
        match &mut action {
            RuleAction::Status { vendor, end, .. } => {
                *vendor = self.vendor.unwrap_or(0);
                if self.quiet.is_some() {
                    *end = StatusEnd::Nothing;
                }
            }
            _ if self.vendor.is_some() => return Err(Mistake::Conflict("vendor")),
            _ if self.quiet.is_some() => return Err(Mistake::Conflict("quiet")),
            _ => {}
        }
        match (action, point) {
            // The end of the stream is that of a receive that cannot be used.
            (RuleAction::Status { .. }, Point::Receive) if self.quiet.is_some() => {
                return Err(Mistake::Conflict("quiet"))
            }
            // Nothing else takes a receive.
            (RuleAction::Status { .. } | RuleAction::NoReceive, Point::Receive) => {
                if operation
                    .replace(Operation::Send)
                    .is_some_and(|op| op != Operation::Send)
                {
                    return Err(Mistake::Conflict("op"));
                }
            }
            (RuleAction::Errno(_), Point::Verb(verb)) => self.check_verb(verb)?,
            (RuleAction::Connection(action), point) if action.goes_with(point) => {
                self.check_connection(point)?
            }
            (RuleAction::Errno(_) | RuleAction::Connection(_), _)
            | (_, Point::Verb(_) | Point::Connect | Point::Request) => {
                return Err(Mistake::Conflict("on"))
            }
            // Others bring no payload.
            (RuleAction::Inside(..), Point::Send) => {
                if matches!(operation, Some(Operation::Read | Operation::Atomic)) {
                    return Err(Mistake::Conflict("op"));
                }
            }
            (RuleAction::Inside(..), _)
            | (RuleAction::NoReceive, Point::Post | Point::Send)
            | (RuleAction::Rate(_) | RuleAction::Corrupt(_), Point::Post | Point::Receive) => {
                return Err(Mistake::Conflict("on"))
            }
            (
                RuleAction::Status { .. }
                | RuleAction::Delay(_)
                | RuleAction::Silent
                | RuleAction::Event(_),
                _,
            ) => {}
            (_, Point::Complete) => return Err(Mistake::Conflict("on")),
            // They have no payload.
            (RuleAction::Corrupt(Corruption::Payload), Point::Send)
                if matches!(operation, Some(Operation::Read | Operation::Atomic)) =>
            {
                return Err(Mistake::Conflict("op"))
            }
            _ => {}
        }
        let posts = matches!(point, Point::Verb(verb) if verb.posts());
        if self.kernel.is_some() && !posts && !matches!(action, RuleAction::Corrupt(_)) {
            return Err(Mistake::Conflict("kernel"));
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
            comm: self.comm,
            point,
            operation,
            when,
            times: self.times.unwrap_or(u32::MAX),
            scope: match point {
                Point::Verb(_) | Point::Connect | Point::Request => Scope::Device,
                _ => self.scope.unwrap_or_default(),
            },
            action,
            kernel: self.kernel.is_some(),
        })
    }

    /// Checks that the words go with connections. Those of peers have no queue pair yet.
    fn check_connection(&self, point: Point) -> Result<(), Mistake<'static>> {
        let by_peer = point == Point::Request;
        Self::check(&[
            (self.qp.is_some() && by_peer, "qp"),
            (self.comm.is_some() && by_peer, "comm"),
            (self.operation.is_some(), "op"),
            (self.scope == Some(Scope::Stream), "scope"),
        ])
    }

    /// Returns the first word that conflicts.
    fn check(conflicts: &[(bool, &'static str)]) -> Result<(), Mistake<'static>> {
        match conflicts.iter().find(|(conflicts, _)| *conflicts) {
            Some((_, word)) => Err(Mistake::Conflict(word)),
            None => Ok(()),
        }
    }

    /// Checks that the words go with a verb, whose calls have no stream.
    fn check_verb(&self, verb: Verb) -> Result<(), Mistake<'static>> {
        Self::check(&[
            (self.qp.is_some() && !verb.has_qp(), "qp"),
            (self.comm.is_some() && verb.posts(), "comm"),
            (self.port.is_some(), "port"),
            (self.peer.is_some(), "peer"),
            (self.operation.is_some(), "op"),
            (self.scope == Some(Scope::Stream), "scope"),
        ])?;
        if verb.posts() && self.kernel.is_none() {
            return Err(Mistake::PostOfProcess);
        }
        Ok(())
    }
}

/// What a stream, or a device, has counted for each rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleCounts([RuleCount; MAX_RULES]);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct RuleCount {
    /// What the rule is about.
    seen: u32,
    /// What it has hit of that.
    hit: u32,
}

impl RuleCounts {
    /// Counts a request or message for each rule that is about it, here or in the counts of the
    /// device. Returns the place of the first one that hits it, and what that does.
    pub fn count<'a>(
        &mut self,
        device: &mut Self,
        rules: impl IntoIterator<Item = &'a Rule>,
        subject: &Subject,
    ) -> Option<(usize, RuleAction)> {
        let mut found = None;
        let counts = self.0.iter_mut().zip(&mut device.0);
        for (place, (rule, (stream, device))) in rules.into_iter().zip(counts).enumerate() {
            if !rule.is_about(subject) {
                continue;
            }
            let count = match rule.scope {
                Scope::Stream => stream,
                Scope::Device => device,
            };
            count.seen = count.seen.saturating_add(1);
            if found.is_none() && count.hit < rule.times && rule.when.hits(count.seen) {
                count.hit = count.hit.saturating_add(1);
                found = Some((place, rule.action));
            }
        }
        found
    }
}
