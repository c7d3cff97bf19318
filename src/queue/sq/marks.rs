// SPDX-License-Identifier: GPL-2.0

//! The places of requests in a send queue, and their ends in the octet stream until TCP has
//! accepted them.
//!
//! Context: any; the transmit task.

/// Names a pending request: its position in submission order, modulo 2^32.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slot(pub(super) u32);

impl Slot {
    /// Returns the position, for trace events.
    pub(crate) fn position(self) -> i64 {
        self.0.into()
    }
}

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

    /// Takes all of them, in their order.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = (Slot, u64)> + '_ {
        let len = core::mem::take(&mut self.len);
        self.list.iter_mut().take(len).filter_map(Option::take)
    }
}
