// SPDX-License-Identifier: GPL-2.0

//! Completions of a send queue that rules of the device (`device::inject`) change or hold.
//!
//! The transmit task notes a rule before it sends the request. The rule is looked at when the
//! completion is due, in the order of the requests, and then every millisecond as long as it holds
//! the completion (`qp::inject`). After one that fails by a rule only a flush completes anything.
//!
//! Context: the lock of the queue is held, unless a function says otherwise.

use core::num::NonZeroU32;

use iwarp::inject::StatusEnd;
use kernel::{
    prelude::*,
    time::Instant, //
};
use kernel_ext::rdma::wr::WcStatus;

use crate::{
    abi::wr::WcOrigin,
    device::inject::Hold, //
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
    /// The number of the rules.
    number: u32,
}

impl RuledCompletions {
    /// Returns what becomes of the completion at a position, which is due and successful.
    #[cold]
    pub(super) fn judge(&mut self, position: u32) -> DueCompletion {
        if self.failed {
            return DueCompletion::Held;
        }
        let Some((_, rule)) = self.list.first().filter(|(place, _)| *place == position) else {
            return DueCompletion::Goes;
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
        };
        self.hold = None;
        // The list is not empty.
        let _ = self.list.remove(0);
        verdict
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
        let ruled = match &mut inner.ruled {
            Some(ruled) => ruled,
            place => place.insert(KBox::new(
                RuledCompletions {
                    list: KVec::new(),
                    hold: None,
                    failed: false,
                    end: None,
                    number,
                },
                GFP_ATOMIC,
            )?),
        };
        if ruled.number != number {
            (ruled.hold, ruled.number) = (None, number);
            ruled.list.clear();
        }
        ruled.list.push((slot.0, rule), GFP_ATOMIC)?;
        Ok(())
    }

    /// Completes what the rules with this number do not hold any longer, or what others held.
    ///
    /// Context: process.
    #[cold]
    pub(crate) fn look_at_rules(&self, number: u32, origin: WcOrigin) -> RuleLook {
        let outdated = {
            let mut inner = self.inner.lock();
            match &mut inner.ruled {
                None => return RuleLook::Nothing,
                Some(ruled) => match ruled.end.take() {
                    Some(failed) => return RuleLook::Failed(failed),
                    None if ruled.failed => return RuleLook::Nothing,
                    None if ruled.number != number || ruled.list.is_empty() => inner.ruled.take(),
                    None => None,
                },
            }
        };
        let holds = outdated.is_none();
        // Without the lock.
        drop(outdated);
        self.complete(origin);
        if holds {
            RuleLook::Holds
        } else {
            RuleLook::Nothing
        }
    }
}
