// SPDX-License-Identifier: GPL-2.0

//! Where requests end in the octet stream, until TCP has accepted them.
//!
//! Context: any; the transmitter's.

use super::{
    SendQueue,
    SendQueueInner,
    Slot,
    WqeState, //
};

/// Where the last requests end in the stream: octets from its beginning. Kept by the transmitter,
/// so that the queue is locked once for many requests.
#[derive(Default)]
pub(crate) struct TxMarks {
    list: [Option<(Slot, u64)>; 16],
    len: usize,
}

impl TxMarks {
    /// Adds one; false if there is no place.
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

    /// Tells the queue of them all, and forgets them.
    pub(super) fn note(&mut self, queue: &SendQueue, inner: &mut SendQueueInner) {
        for (slot, end) in self.list.iter_mut().take(self.len).filter_map(Option::take) {
            inner.set_state(queue, slot, WqeState::Sent(end));
        }
        self.len = 0;
    }
}
