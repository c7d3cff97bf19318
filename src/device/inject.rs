// SPDX-License-Identifier: GPL-2.0

//! The rules of a device by which requests, messages and verbs fail on purpose (`iwarp::inject`),
//! as the file `inject` in sysfs has them. docs/inject.md is for users.
//!
//! Streams and verbs ask for rules only while a device has any ([`kernel_ext::static_key`]). A
//! write makes a new [`RuleSet`]; streams count from the beginning for each, and what an earlier
//! one holds goes on.
//!
//! Context: process, unless a function says otherwise.

use core::{
    fmt::Write,
    num::NonZeroU32, //
};

use iwarp::inject::{
    Point,
    Rule,
    RuleAction,
    RuleCounts,
    Subject,
    Verb,
    COMM_LEN,
    MAX_RULES, //
};
use kernel::{
    new_mutex,
    prelude::*,
    str::CString,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc,
        Mutex, //
    },
    time::{
        Instant,
        Monotonic, //
    }, //
};
use kernel_ext::{
    compat::{
        new_spinlock_irq,
        SpinLockIrq, //
    },
    rdma::{
        settings::{
            caller_is_admin,
            current_comm, //
        },
        types::Owner,
        wr::WcStatus, //
    },
    static_key::{
        self,
        StaticKeyHold, //
    },
    trace::RequestInjected, //
};

use super::{
    Abi,
    Device, //
};

/// How long a rule holds something.
#[derive(Clone, Copy)]
pub(crate) enum Hold {
    /// For so many milliseconds.
    Since(Instant<Monotonic>, NonZeroU32),
    /// As long as there is the rule.
    ForGood,
}

impl Hold {
    pub(crate) fn is_over(self) -> bool {
        match self {
            Self::Since(since, millis) => {
                (Instant::now() - since).as_millis() >= millis.get().into()
            }
            Self::ForGood => false,
        }
    }
}

/// The rules of a device.
#[pin_data]
pub(crate) struct Injector {
    /// Held while the rules are replaced, so that no other write is lost. Outside of `rules`.
    #[pin]
    writing: Mutex<Writing>,
    #[pin]
    rules: SpinLockIrq<Option<Arc<RuleSet>>>,
}

/// What changes of the rules need.
struct Writing {
    /// As long as there are rules.
    hold: Option<StaticKeyHold>,
    /// The number of the rules written last.
    number: u32,
}

/// Rules as they were written last. They do not change.
#[pin_data]
pub(crate) struct RuleSet {
    /// In their order.
    rules: KVec<WrittenRule>,
    /// Of the rules that count for the device.
    #[pin]
    counts: SpinLockIrq<RuleCounts>,
    /// A number that no other rules of the device have; not 0.
    number: u32,
}

struct WrittenRule {
    rule: Rule,
    line: CString,
    /// How often it has hit.
    // ORDERING: Relaxed: a count stands for no other memory.
    hits: Atomic<u64>,
}

impl RuleSet {
    /// Returns a number that no other rules of the device have; not 0.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Counts a request with this cookie, a message or a call of a verb. Returns what the rule does
    /// that hits it, if one does. The counts are those of the stream.
    ///
    /// Context: any.
    pub(crate) fn ask(
        &self,
        device: &Device,
        counts: &mut RuleCounts,
        subject: &Subject,
        wr_id: u64,
    ) -> Option<RuleAction> {
        let rules = self.rules.iter().map(|written| &written.rule);
        let (place, action) = counts.count(&mut self.counts.lock(), rules, subject)?;
        if let Some(written) = self.rules.get(place) {
            written.hits.fetch_add(1, Relaxed);
        }
        device.stats.injected.inc();
        if RequestInjected::is_enabled() {
            RequestInjected::record(|| RequestInjected {
                dev: device.name(),
                qpn: subject.qp.unwrap_or(0),
                wr_id,
                // CAST: there are few rules.
                rule: place as u32,
            });
        }
        Some(action)
    }
}

/// Rules to be written.
struct NewRules(KVec<WrittenRule>);

impl NewRules {
    /// Copies the rules, with what they have hit.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    fn of(set: &RuleSet) -> Result<Self> {
        let mut copy = KVec::with_capacity(set.rules.len(), GFP_KERNEL)?;
        for written in &set.rules {
            let written = WrittenRule {
                rule: written.rule,
                line: CString::try_from(&*written.line)?,
                hits: Atomic::new(written.hits.load(Relaxed)),
            };
            copy.push(written, GFP_KERNEL)?;
        }
        Ok(Self(copy))
    }

    /// Adds the rule of a line.
    ///
    /// # Errors
    ///
    /// `EINVAL` if it is none, `ENOSPC` if there are [`MAX_RULES`], `ENOMEM`.
    fn add(&mut self, device: &Device, number: usize, line: &str) -> Result {
        let rule = Rule::parse(line).map_err(|mistake| {
            let (what, word) = mistake.describe();
            device.warn(fmt!("inject: line {number}: {what}: '{word}'"));
            EINVAL
        })?;
        if let RuleAction::Status { status, vendor, .. } = rule.action() {
            let known =
                WcStatus::from_raw(status.into()).filter(|status| device.abi().reports(*status));
            let has_vendor = device.abi() == Abi::Rxe || vendor == 0;
            if known.is_none() || !has_vendor {
                device.warn(fmt!(
                    "inject: line {number}: the device's library cannot report this"
                ));
                return Err(EINVAL);
            }
        }
        if self.0.len() == MAX_RULES {
            device.warn(fmt!("inject: line {number}: more than {MAX_RULES} rules"));
            return Err(ENOSPC);
        }
        let written = WrittenRule {
            rule,
            line: CString::try_from_fmt(fmt!("{line}"))?,
            hits: Atomic::new(0),
        };
        self.0.push(written, GFP_KERNEL)?;
        Ok(())
    }
}

impl Injector {
    /// Makes it without rules.
    pub(super) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            writing <- new_mutex!(
                Writing {
                    hold: None,
                    number: 0,
                },
                "Injector::writing"
            ),
            rules <- new_spinlock_irq!(None, "Injector::rules"),
        })
    }

    /// Returns the rules; [`None`] if there are none.
    ///
    /// Context: any.
    pub(crate) fn rules(&self) -> Option<Arc<RuleSet>> {
        self.rules.lock().clone()
    }

    /// Adds the lines of a text as rules, each of which may be `clear` instead, which removes those
    /// before it. All or none.
    ///
    /// # Errors
    ///
    /// `EPERM` if the caller may not administer the network of the host; `EINVAL` for a line that
    /// is no rule, which the log names; `ENOSPC` for too many, `ENOMEM`.
    pub(crate) fn write(&self, device: &Device, text: &str) -> Result {
        if !caller_is_admin() {
            return Err(EPERM);
        }
        let mut writing = self.writing.lock();
        let mut set = match self.rules() {
            Some(old) => NewRules::of(&old)?,
            None => NewRules(KVec::new()),
        };
        for (number, line) in (1..).zip(text.lines().map(str::trim)) {
            match line {
                _ if line.is_empty() || line.starts_with('#') => {}
                "clear" => set = NewRules(KVec::new()),
                _ => set.add(device, number, line)?,
            }
        }
        let len = set.0.len();
        let number = writing.number.wrapping_add(1).max(1);
        writing.number = number;
        let set = match len {
            0 => None,
            _ => Some(Arc::pin_init(
                pin_init!(RuleSet {
                    rules: set.0,
                    counts <- new_spinlock_irq!(RuleCounts::default(), "RuleSet::counts"),
                    number,
                }),
                GFP_KERNEL,
            )?),
        };
        device.warn(fmt!(
            "inject: {len} rules let requests, messages and verbs fail on purpose"
        ));
        if set.is_some() && writing.hold.is_none() {
            writing.hold = Some(StaticKeyHold::turn_on());
        }
        if set.is_none() {
            writing.hold = None;
        }
        let _drop_outside_lock = core::mem::replace(&mut *self.rules.lock(), set);
        Ok(())
    }

    /// Removes all rules, since the device goes.
    pub(crate) fn clear(&self) {
        let mut writing = self.writing.lock();
        let _drop_outside_lock = self.rules.lock().take();
        writing.hold = None;
    }

    /// Returns the number of the rules that there are, or 0.
    pub(crate) fn number(&self) -> u32 {
        self.rules().map_or(0, |set| set.number())
    }

    /// Returns how many rules there are.
    pub(crate) fn len(&self) -> usize {
        self.rules().map_or(0, |set| set.rules.len())
    }

    /// Writes each rule, and how often it has hit; nothing if there are none.
    pub(crate) fn show(&self, out: &mut dyn Write) -> core::fmt::Result {
        let Some(set) = self.rules() else {
            return Ok(());
        };
        for (place, written) in set.rules.iter().enumerate() {
            let separator = if place == 0 { "" } else { "\n" };
            let line = written.line.to_str().unwrap_or_default();
            write!(out, "{separator}{line} hits={}", written.hits.load(Relaxed))?;
        }
        Ok(())
    }
}

/// Who calls a verb.
pub(crate) enum VerbCaller {
    /// The kernel, or the current process.
    Owner(Owner),
    /// The consumer of a queue pair, and the name of the process that has made it, if one has.
    Qp {
        number: u32,
        comm: Option<[u8; COMM_LEN]>,
    },
}

impl Device {
    /// Asks the rules about a call of a verb, before it does anything.
    ///
    /// Context: that of the verb.
    ///
    /// # Errors
    ///
    /// The one of the rule that hits the call.
    #[inline(always)]
    pub(crate) fn ask_for_verb(&self, verb: Verb, caller: impl FnOnce() -> VerbCaller) -> Result {
        if static_key::is_on() {
            self.fail_verb(verb, caller())
        } else {
            Ok(())
        }
    }

    #[cold]
    fn fail_verb(&self, verb: Verb, caller: VerbCaller) -> Result {
        let Some(set) = self.injector.rules() else {
            return Ok(());
        };
        let (qp, comm) = match caller {
            VerbCaller::Owner(Owner::Kernel) => (None, None),
            VerbCaller::Owner(Owner::User) => (None, Some(current_comm())),
            VerbCaller::Qp { number, comm } => (Some(number), comm),
        };
        let subject = Subject {
            point: Point::Verb(verb),
            qp,
            comm,
            stream: None,
        };
        match set.ask(self, &mut RuleCounts::default(), &subject, 0) {
            Some(RuleAction::Errno(errno)) => Err(Error::from_errno(-i32::from(errno))),
            // There are no others (`iwarp::inject`).
            Some(_) | None => Ok(()),
        }
    }
}
