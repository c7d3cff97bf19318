// SPDX-License-Identifier: GPL-2.0

//! The strict mode's part of completion queues. Rule 3 (`stream::strict`): what may complete into a
//! completion queue of a process never exceeds its size. And of rule 5, which is a choice, the
//! events.

use core::ptr;

use kernel::{
    prelude::*,
    sync::Arc, //
};

use crate::{
    device::strict::choose_once_in,
    queue::cq::Cq,
    stream::{
        owner::Receives,
        strict::Finding, //
    }, //
};

use super::Qp;

/// In how many looks at what is held there is an event for nothing.
const LOOKS_WITHOUT: u32 = 16;

impl Qp {
    /// Now and then raises an event for which nothing was posted, as for a completion that was
    /// polled before its event came. The device is strict.
    ///
    /// Context: process, no lock held.
    #[cold]
    pub(super) fn notify_for_nothing(&self) {
        if choose_once_in(LOOKS_WITHOUT) {
            self.shared.each_cq(|cq| {
                if cq.notify_for_nothing() {
                    self.shared.device.stats.chosen_events.inc();
                }
            });
        }
    }

    /// Checks the completion queues of the queue pair, for whose process the device is strict.
    ///
    /// Context: process, no lock held.
    #[cold]
    pub(super) fn check_completion_queues(&self) {
        self.shared.each_cq(|cq| {
            if let Some((owed, room)) = self.excess(cq) {
                self.shared.report_finding(
                    Finding::CqSize,
                    None,
                    fmt!("{owed} completions may come into a completion queue of {room}"),
                );
            }
        });
    }

    /// Returns how many completions the queue holds or may get, and its size, the first time that
    /// they are more. A receive of a shared receive queue may complete into any queue, and does not
    /// count.
    ///
    /// What counts is there at once: as long as the process takes no completion, a request that is
    /// done meanwhile is counted as pending or not at all.
    fn excess(&self, cq: &Cq) -> Option<(u32, u32)> {
        let before = cq.unpolled()?;
        let mut owed = before.unpolled;
        let mut from = 0;
        while let Some(qp) = self.qps.next(from) {
            owed = owed.saturating_add(qp.owed_to(cq));
            from = qp.shared.number.saturating_add(1);
        }
        let room = before.room;
        let unchanged = cq.unpolled()?.taken == before.taken;
        (unchanged && owed > room && cq.is_first_excess()).then_some((owed, room))
    }

    /// Returns how many completions of this queue pair the queue may get.
    fn owed_to(&self, cq: &Cq) -> u32 {
        let is = |other: &Arc<Cq>| ptr::eq(&raw const **other, cq);
        let mut owed = 0;
        if is(self.shared.sq.cq()) {
            owed = self.shared.sq.signalled();
        }
        match &self.shared.receives {
            Receives::Own(queue) if is(&self.shared.recv_cq) => owed.saturating_add(queue.count()),
            Receives::Own(_) | Receives::Shared(_) => owed,
        }
    }
}
