// SPDX-License-Identifier: GPL-2.0

//! Completions of a send queue that rules of the device (`device::inject`) change or hold, or that
//! come late by choice of its strict mode (`device::strict`), and the events that rules raise for
//! the queue pair.
//!
//! The transmit task notes a rule before it sends the request. The rule is looked at when the
//! completion is due, in the order of the requests, and then every millisecond as long as it holds
//! the completion (`qp::inject`). After one that fails by a rule only a flush completes anything.
//!
//! In the strict mode times in which completions are held alternate with times in which they are
//! not, so that none is late by more than one such time. A full queue holds none.
//!
//! Context: the lock of the queue is held, unless a function says otherwise.

use core::num::NonZeroU32;

use iwarp::inject::{
    AsyncEvent,
    Point,
    StatusEnd, //
};
use kernel::{
    prelude::*,
    time::Instant, //
};
use kernel_ext::{
    rdma::wr::WcStatus,
    warn_on_once, //
};

use crate::{
    abi::wr::WcOrigin,
    device::{
        inject::Hold,
        strict::{
            choose_millis,
            choose_once_in, //
        }, //
    }, //
};

use super::{
    SendQueue,
    Slot, //
};

/// What a rule does to a completion.
pub(crate) enum CompletionRule {
    /// It has another status.
    Fails(FailedByRule),
    /// It comes so many milliseconds late.
    Late(NonZeroU32),
    /// It comes never, as long as there is the rule.
    Never,
    /// It comes, and this event.
    Raises(AsyncEvent),
}

/// An event that a rule raises, and for what.
pub(crate) struct RuledEvent {
    pub(crate) point: Point,
    pub(crate) event: AsyncEvent,
}

/// How a request fails by a rule.
#[derive(Clone, Copy)]
pub(crate) struct FailedByRule {
    pub(crate) status: WcStatus,
    /// The completion's `vendor_err`, unless 0.
    pub(crate) vendor: u32,
    /// How its stream ends.
    pub(crate) end: StatusEnd,
}

/// What a look at the rules has found.
pub(crate) enum RuleLook {
    /// No completion has a rule any more.
    Nothing,
    /// Some are still to come.
    Holds,
    /// One has failed: the stream is to end.
    Failed(FailedByRule),
}

/// What the strict mode has chosen.
struct Choice {
    /// Completions are held, else they come when they are due.
    is_late: bool,
    /// Until this is over.
    until: Hold,
}

/// Of how many send queues that begin to work one is late from the beginning.
const LATE_AT_ONCE: u32 = 4;

impl Choice {
    fn new(is_late: bool) -> Self {
        Self {
            is_late,
            until: Hold::Since(Instant::now(), choose_millis()),
        }
    }
}

/// What becomes of a completion that is due.
pub(super) enum DueCompletion {
    Goes,
    Held,
    Fails(FailedByRule),
}

/// The completions that have a rule.
pub(super) struct RuledCompletions {
    /// Positions of the requests, in their order, and what rules do to them.
    list: KVec<(u32, CompletionRule)>,
    /// While the first of them is due.
    hold: Option<Hold>,
    /// One has failed: nothing more completes.
    failed: bool,
    /// What it ends its stream with, until that is done.
    end: Option<FailedByRule>,
    /// To be raised, in this order.
    events: KVec<RuledEvent>,
    /// The number of the rules.
    number: u32,
    /// While the device is strict.
    choice: Option<Choice>,
    /// Position of the request whose completion the strict mode has held last.
    chosen_last: Option<u32>,
    /// How many it has held since the last look.
    chosen: u32,
}

impl RuledCompletions {
    /// Returns those of a queue, which begin with the rules with this number.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    fn of(place: &mut Option<KBox<Self>>, number: u32) -> Result<&mut Self> {
        Ok(match place {
            Some(ruled) => ruled,
            None => place.insert(KBox::new(
                Self {
                    list: KVec::new(),
                    hold: None,
                    failed: false,
                    end: None,
                    events: KVec::new(),
                    number,
                    choice: None,
                    chosen_last: None,
                    chosen: 0,
                },
                GFP_ATOMIC,
            )?),
        })
    }

    /// Returns whether nothing is left that rules or the strict mode do.
    fn is_over(&self) -> bool {
        self.list.is_empty() && self.events.is_empty() && self.choice.is_none()
    }

    /// Returns what becomes of the completion at a position, which is due and successful. The queue
    /// may be full.
    #[cold]
    pub(super) fn judge(&mut self, position: u32, is_full: bool) -> DueCompletion {
        if self.failed {
            return DueCompletion::Held;
        }
        let Some((_, rule)) = self.list.first().filter(|(place, _)| *place == position) else {
            return self.choose(position, is_full);
        };
        let verdict = match rule {
            CompletionRule::Fails(failed) => {
                (self.failed, self.end) = (true, Some(*failed));
                DueCompletion::Fails(*failed)
            }
            CompletionRule::Late(millis) => {
                let hold = self
                    .hold
                    .get_or_insert(Hold::Since(Instant::now(), *millis));
                if !hold.is_over() {
                    return DueCompletion::Held;
                }
                DueCompletion::Goes
            }
            CompletionRule::Never => return DueCompletion::Held,
            CompletionRule::Raises(event) => {
                let event = RuledEvent {
                    point: Point::Complete,
                    event: *event,
                };
                let kept = self.events.push_within_capacity(event);
                // `rule_completion` and `rule_event` leave room for all on the list.
                warn_on_once!(kept.is_err());
                DueCompletion::Goes
            }
        };
        self.hold = None;
        // The list is not empty.
        let _ = self.list.remove(0);
        verdict
    }

    /// Chooses what becomes of a completion without a rule.
    fn choose(&mut self, position: u32, is_full: bool) -> DueCompletion {
        let Some(choice) = &mut self.choice else {
            return DueCompletion::Goes;
        };
        if choice.until.is_over() || (choice.is_late && is_full) {
            *choice = Choice::new(!choice.is_late);
        }
        if !choice.is_late || is_full {
            return DueCompletion::Goes;
        }
        if self.chosen_last.replace(position) != Some(position) {
            self.chosen = self.chosen.saturating_add(1);
        }
        DueCompletion::Held
    }

    /// Forgets the rules, unless they have this number.
    fn renew(&mut self, number: u32) {
        if self.number != number {
            (self.hold, self.number) = (None, number);
            self.list.clear();
        }
    }
}

impl SendQueue {
    /// Notes what a rule, of those with this number, does to the completion of a request that is
    /// not sent yet.
    ///
    /// Context: the transmit task.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    #[cold]
    pub(crate) fn rule_completion(&self, slot: Slot, rule: CompletionRule, number: u32) -> Result {
        let mut inner = self.inner.lock();
        let ruled = RuledCompletions::of(&mut inner.ruled, number)?;
        ruled.renew(number);
        if matches!(rule, CompletionRule::Raises(_)) {
            ruled.events.reserve(ruled.list.len() + 1, GFP_ATOMIC)?;
        }
        ruled.list.push((slot.0, rule), GFP_ATOMIC)?;
        Ok(())
    }

    /// Keeps an event of a rule, of those with this number, for the next look.
    ///
    /// Context: any.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    #[cold]
    pub(crate) fn rule_event(&self, event: RuledEvent, number: u32) -> Result {
        let mut inner = self.inner.lock();
        let ruled = RuledCompletions::of(&mut inner.ruled, number)?;
        ruled.events.reserve(ruled.list.len() + 1, GFP_ATOMIC)?;
        ruled.events.push(event, GFP_ATOMIC)?;
        Ok(())
    }

    /// Takes the oldest event that is to be raised.
    ///
    /// Context: any.
    #[cold]
    pub(crate) fn take_ruled_event(&self) -> Option<RuledEvent> {
        let mut inner = self.inner.lock();
        inner.ruled.as_mut()?.events.remove(0).ok()
    }

    /// Lets completions be late by choice until the queue is idle or [`SendQueue::look_at_rules`]
    /// says that the device is not strict any more.
    ///
    /// Context: the transmit task.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    #[cold]
    pub(crate) fn choose_completions(&self, number: u32) -> Result {
        let mut inner = self.inner.lock();
        let ruled = RuledCompletions::of(&mut inner.ruled, number)?;
        ruled
            .choice
            .get_or_insert_with(|| Choice::new(choose_once_in(LATE_AT_ONCE)));
        Ok(())
    }

    /// Completes what the rules with this number do not hold any longer, or what others held; and
    /// if the device is not `strict`, what its strict mode held. Returns also how many that has
    /// held.
    ///
    /// Context: process.
    #[cold]
    pub(crate) fn look_at_rules(
        &self,
        number: u32,
        strict: bool,
        origin: WcOrigin,
    ) -> (RuleLook, u32) {
        let (outdated, chosen) = {
            let mut inner = self.inner.lock();
            let is_idle = self.taken() == self.done();
            let Some(ruled) = &mut inner.ruled else {
                return (RuleLook::Nothing, 0);
            };
            let chosen = core::mem::take(&mut ruled.chosen);
            ruled.renew(number);
            ruled.choice = ruled.choice.take().filter(|_| strict && !is_idle);
            match ruled.end.take() {
                Some(failed) => return (RuleLook::Failed(failed), chosen),
                None if ruled.failed => return (RuleLook::Nothing, chosen),
                None if ruled.is_over() => (inner.ruled.take(), chosen),
                None => (None, chosen),
            }
        };
        let holds = outdated.is_none();
        // Without the lock.
        drop(outdated);
        self.complete(origin);
        let look = if holds {
            RuleLook::Holds
        } else {
            RuleLook::Nothing
        };
        (look, chosen)
    }

    /// Completes what the strict mode holds, and drops all rules: the queue is flushed.
    #[cold]
    pub(super) fn end_rules(&self, origin: WcOrigin) {
        let ruled = self.inner.lock().ruled.take();
        if ruled.is_some_and(|ruled| ruled.list.is_empty() && !ruled.failed) {
            self.complete(origin);
        }
    }
}
