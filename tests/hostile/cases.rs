// SPDX-License-Identifier: GPL-2.0

//! The cases, by topic.
//!
//! A case is a function that plays one behaviour of a peer, is named after it, and returns a reason
//! if the device does not react as it should. After each case the device must still serve other
//! connections ([`Bench::end_case`]).

mod atomics;
mod awaited;
mod features;
mod fpdu;
mod initiator;
mod memory;
mod operations;
mod ordering;
mod rdmap;
mod reads;
mod requests;
mod responder;
mod rtr;
mod tagged;
mod teardown;
mod terminate;
mod timing;
mod untagged;
mod whole;
mod windows;

use crate::{
    bench::{
        Bench,
        Segments,
        RECEIVES, //
    },
    frame::{
        op,
        Code,
        Segment, //
    },
    wire::Outcome, //
};

/// Whether a case changes settings that other cases depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Schedule {
    Parallel,
    Exclusive,
}

type Run = Box<dyn Fn(&mut Bench<'_>) -> Outcome + Send + Sync>;

pub(crate) struct Case {
    pub(crate) name: String,
    /// The numbers of the requirements.
    pub(crate) rows: &'static str,
    pub(crate) alone: Schedule,
    pub(crate) run: Run,
}

pub(crate) struct Group {
    pub(crate) name: &'static str,
    pub(crate) cases: Vec<Case>,
}

/// Returns all groups. Those with long waits come first, so that others run in the meantime.
pub(crate) fn all() -> Vec<Group> {
    let group = |name, cases| Group { name, cases };
    vec![
        group("timing", timing::cases()),
        group("responder", responder::cases()),
        group("initiator", initiator::cases()),
        group("features", features::cases()),
        group("fpdu", fpdu::cases()),
        group("whole", whole::cases()),
        group("tagged", tagged::cases()),
        group("untagged", untagged::cases()),
        group("rdmap", rdmap::cases()),
        group("reads", reads::cases()),
        group("atomics", atomics::cases()),
        group("operations", operations::cases()),
        group("windows", windows::cases()),
        group("ordering", ordering::cases()),
        group("requests", requests::cases()),
        group("terminate", terminate::cases()),
        group("teardown", teardown::cases()),
        group(UNKNOWN, operations::where_it_is_not_known()),
        group("memory", memory::cases()),
    ]
}

/// The group for a device without the messages of RFC 7306. It runs only if it is named.
pub(crate) const UNKNOWN: &str = "unknown";

/// Makes a case.
fn case(
    name: impl Into<String>,
    rows: &'static str,
    run: impl Fn(&mut Bench<'_>) -> Outcome + Send + Sync + 'static,
) -> Case {
    Case {
        name: name.into(),
        rows,
        alone: Schedule::Parallel,
        run: Box::new(run),
    }
}

/// `scripts![function: "rows", ...]`: makes a case of each function, under its name.
macro_rules! scripts {
    ($($run:ident: $rows:literal),* $(,)?) => {
        vec![$($crate::cases::case(stringify!($run), $rows, $run)),*]
    };
}
use scripts;

impl Case {
    /// Marks a case that changes a setting of the device.
    fn alone(mut self) -> Self {
        self.alone = Schedule::Exclusive;
        self
    }
}

/// Terminate codes, named as in the RFCs.
mod code {
    use crate::frame::Code;

    // RFC 5040, section 4.8: Remote Protection Error.
    pub(super) const SOURCE_STAG: Code = Code(0, 1, 0x00);
    pub(super) const SOURCE_BOUNDS: Code = Code(0, 1, 0x01);
    pub(super) const SOURCE_RIGHTS: Code = Code(0, 1, 0x02);
    pub(super) const SOURCE_STREAM: Code = Code(0, 1, 0x03);
    pub(super) const SOURCE_WRAP: Code = Code(0, 1, 0x04);
    pub(super) const CANNOT_INVALIDATE: Code = Code(0, 1, 0x09);
    // Remote Operation Error.
    pub(super) const RDMAP_VERSION: Code = Code(0, 2, 0x05);
    pub(super) const OPCODE: Code = Code(0, 2, 0x06);
    pub(super) const STREAM: Code = Code(0, 2, 0x07);
    pub(super) const INVALIDATE_UNKNOWN: Code = Code(0, 2, 0x09);
    // RFC 5041, section 7.2: Tagged Buffer Error.
    pub(super) const STAG: Code = Code(1, 1, 0x00);
    pub(super) const BOUNDS: Code = Code(1, 1, 0x01);
    pub(super) const NOT_ASSOCIATED: Code = Code(1, 1, 0x02);
    pub(super) const WRAP: Code = Code(1, 1, 0x03);
    pub(super) const TAGGED_VERSION: Code = Code(1, 1, 0x04);
    // Untagged Buffer Error.
    pub(super) const QUEUE: Code = Code(1, 2, 0x01);
    pub(super) const NO_BUFFER: Code = Code(1, 2, 0x02);
    pub(super) const MSN: Code = Code(1, 2, 0x03);
    pub(super) const OFFSET: Code = Code(1, 2, 0x04);
    pub(super) const TOO_LONG: Code = Code(1, 2, 0x05);
    pub(super) const UNTAGGED_VERSION: Code = Code(1, 2, 0x06);
    // RFC 5044, section 8; RFC 6581, section 8.
    pub(super) const CRC: Code = Code(2, 0, 0x02);
    pub(super) const FRAMING: Code = Code(2, 0, 0x03);
    pub(super) const LOCAL_STARTUP: Code = Code(2, 0, 0x05);
    pub(super) const INSUFFICIENT_IRD: Code = Code(2, 0, 0x06);
    pub(super) const NO_RTR: Code = Code(2, 0, 0x07);
}

type Make<T> = Box<dyn Fn(&Bench<'_>) -> T + Send + Sync>;

/// A segment that the device has to refuse.
struct Refusal {
    name: String,
    rows: &'static str,
    code: Code,
    /// Segments that come before it.
    before: Make<Segments>,
    bad: Make<Segment>,
    /// The status of the next receive.
    receive: &'static str,
}

/// Makes the case of a segment that is refused with this code.
fn refused(
    name: impl Into<String>,
    rows: &'static str,
    code: Code,
    bad: impl Fn(&Bench<'_>) -> Segment + Send + Sync + 'static,
) -> Refusal {
    Refusal {
        name: name.into(),
        rows,
        code,
        before: Box::new(|_| Vec::new()),
        bad: Box::new(bad),
        receive: "flushed",
    }
}

impl Refusal {
    /// Sends these segments first, which are in order and write to no region.
    fn behind(mut self, before: impl Fn(&Bench<'_>) -> Segments + Send + Sync + 'static) -> Self {
        self.before = Box::new(before);
        self
    }

    /// Sets the status of the receive that the segment would have used.
    fn receive(mut self, status: &'static str) -> Self {
        self.receive = status;
        self
    }

    /// Runs the script of a refusal. Checks for exactly this Terminate, a graceful end, unchanged
    /// regions, the event for the kind of fault, a queue pair in error, and a completion for each
    /// receive.
    fn run(&self, b: &mut Bench<'_>) -> Outcome {
        let mut wire = b.connect()?;
        b.clean()?;
        let before = (self.before)(b);
        let bad = (self.bad)(b);
        wire.send(&[&before[..], std::slice::from_ref(&bad)].concat())?;
        wire.expect_refusal(self.code, &bad)?;
        b.untouched()?;
        b.failed(&wire, self.code)?;
        let mut receives = vec!["success"; before.iter().filter(|s| ends_a_send(s)).count()];
        receives.push(self.receive);
        receives.resize(RECEIVES, "flushed");
        b.receives_end(&wire, &receives)
    }
}

impl From<Refusal> for Case {
    fn from(refusal: Refusal) -> Self {
        Self {
            name: refusal.name.clone(),
            rows: refusal.rows,
            alone: Schedule::Parallel,
            run: Box::new(move |b| refusal.run(b)),
        }
    }
}

fn ends_a_send(segment: &Segment) -> bool {
    segment[0] & 0xc0 == 0x40 && (op::SEND..=op::SEND_SE_INV).contains(&(segment[1] & 15))
}

/// Makes cases of a list of refusals.
fn refusals(list: Vec<Refusal>) -> impl Iterator<Item = Case> {
    list.into_iter().map(Case::from)
}
