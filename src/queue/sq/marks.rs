// SPDX-License-Identifier: GPL-2.0

//! The ends of requests in the octet stream, until TCP has accepted them.
//!
//! Context: any; the transmit task.

use super::{
    SendQueue,
    SendQueueInner,
    Slot,
    WqeState, //
};

/// Where the last requests end, in octets from the beginning of the stream. Collected by the
/// transmit task, so that it locks the queue once for many requests.
#[derive(Default)]
pub(crate) struct TxMarks {
    list: [Option<(Slot, u64)>; 16],
    len: usize,
}

impl TxMarks {
    /// Adds the end of a request; returns false if the list is full.
    #[inline]
    pub(super) fn push(&mut self, slot: Slot, end: u64) -> bool {
        match self.list.get_mut(self.len) {
            Some(place) => {
                *place = Some((slot, end));
                self.len += 1;
                true
            }
            None => false,
        }
    }

    /// Moves all of them to the queue.
    pub(super) fn note(&mut self, queue: &SendQueue, inner: &mut SendQueueInner) {
        for (slot, end) in self.list.iter_mut().take(self.len).filter_map(Option::take) {
            inner.set_state(queue, slot, WqeState::Sent(end));
        }
        self.len = 0;
    }
}
