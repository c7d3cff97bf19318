// SPDX-License-Identifier: GPL-2.0

//! The rules of a device by which requests fail on purpose (`iwarp::inject`), as the file `inject`
//! in sysfs has them. docs/inject.md is for users.
//!
//! Transmit tasks ask for rules only while a device has any ([`kernel_ext::static_key`]). A write
//! makes a new [`RuleSet`]; streams count from the beginning for each.
//!
//! Context: process, unless a function says otherwise.

use core::fmt::Write;
use iwarp::inject::{
    Rule,
    RuleAction,
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
    }, //
};
use kernel_ext::{
    new_spinlock_bh,
    rdma::{
        settings::caller_is_admin,
        wr::WcStatus, //
    },
    static_key::StaticKeyHold,
    sync::SpinLockBh, //
};

use super::{
    Abi,
    Device, //
};

/// The rules of a device.
#[pin_data]
pub(crate) struct Injector {
    /// Held while the rules are replaced, so that no other write is lost. Outside of `rules`.
    #[pin]
    writing: Mutex<Option<StaticKeyHold>>,
    #[pin]
    rules: SpinLockBh<Option<Arc<RuleSet>>>,
}

/// Rules as they were written last, in their order. They do not change.
pub(crate) struct RuleSet(KVec<WrittenRule>);

struct WrittenRule {
    rule: Rule,
    line: CString,
    /// How many requests it has hit.
    // ORDERING: Relaxed: a count stands for no other memory.
    hits: Atomic<u64>,
}

impl RuleSet {
    /// Returns the rules, in their order.
    pub(crate) fn rules(&self) -> impl Iterator<Item = &Rule> {
        self.0.iter().map(|written| &written.rule)
    }

    /// Counts that the rule at a place has hit a request. Context: any.
    pub(crate) fn note_hit(&self, place: usize) {
        if let Some(written) = self.0.get(place) {
            written.hits.fetch_add(1, Relaxed);
        }
    }

    /// Copies the rules, with what they have hit.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    fn try_clone(&self) -> Result<Self> {
        let mut copy = KVec::with_capacity(self.0.len(), GFP_KERNEL)?;
        for written in &self.0 {
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
            writing <- new_mutex!(None, "Injector::writing"),
            rules <- new_spinlock_bh!(None, "Injector::rules"),
        })
    }

    /// Returns the rules; [`None`] if there are none.
    ///
    /// Context: any but hard interrupts.
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
        let mut hold = self.writing.lock();
        let mut set = match self.rules() {
            Some(old) => old.try_clone()?,
            None => RuleSet(KVec::new()),
        };
        for (number, line) in (1..).zip(text.lines().map(str::trim)) {
            match line {
                "" => {}
                "clear" => set = RuleSet(KVec::new()),
                _ => set.add(device, number, line)?,
            }
        }
        let number = set.0.len();
        let set = match number {
            0 => None,
            _ => Some(Arc::new(set, GFP_KERNEL)?),
        };
        device.warn(fmt!("inject: {number} rules let requests fail on purpose"));
        if set.is_some() && hold.is_none() {
            *hold = Some(StaticKeyHold::turn_on());
        }
        if set.is_none() {
            *hold = None;
        }
        let _drop_outside_lock = core::mem::replace(&mut *self.rules.lock(), set);
        Ok(())
    }

    /// Removes all rules, since the device goes.
    pub(crate) fn clear(&self) {
        let mut hold = self.writing.lock();
        let _drop_outside_lock = self.rules.lock().take();
        *hold = None;
    }

    /// Writes each rule, and how many requests it has hit; nothing if there are none.
    pub(crate) fn show(&self, out: &mut dyn Write) -> core::fmt::Result {
        let Some(set) = self.rules() else {
            return Ok(());
        };
        for (place, written) in set.0.iter().enumerate() {
            let separator = if place == 0 { "" } else { "\n" };
            let line = written.line.to_str().unwrap_or_default();
            write!(out, "{separator}{line} hits={}", written.hits.load(Relaxed))?;
        }
        Ok(())
    }
}
