// SPDX-License-Identifier: GPL-2.0

//! A queue that the driver shares with librxe (`providers/rxe/rxe_queue.h` of rdma-core).
//!
//! Context: process for making one; any for the rest.

use kernel::{
    prelude::*,
    sync::Arc, //
};
use kernel_ext::mm::shared_ring::SharedMem;

/// Length of a queue's header in octets.
pub(super) const HEADER_LEN: usize = 384;
// Offsets of its fields.
pub(super) const ELEMENT_SHIFT_AT: usize = 0;
pub(super) const INDEX_MASK_AT: usize = 4;
pub(super) const PRODUCER_AT: usize = 128;
pub(super) const CONSUMER_AT: usize = 256;

/// Minimum length of an element in octets.
pub(super) const ELEMENT_MIN: usize = 64;

/// A queue in memory that a process has mapped.
#[derive(Clone)]
pub(super) struct Queue {
    pub(super) memory: Arc<SharedMem>,
    /// The number of places, a power of two, less 1. One place is always empty.
    pub(super) mask: u32,
    /// Binary logarithm of an element's length in octets.
    shift: u32,
}

impl Queue {
    /// Makes an empty queue of `places`, a power of two, for elements of `len` octets.
    pub(super) fn new(places: u32, len: usize) -> Result<Self> {
        let len = len.max(ELEMENT_MIN).next_power_of_two();
        let memory = SharedMem::try_new(HEADER_LEN + places as usize * len)?;
        let (mask, shift) = (places.wrapping_sub(1), len.trailing_zeros());
        // ORDERING: no partner: no process has mapped the memory yet.
        memory.store_u32_release(ELEMENT_SHIFT_AT, shift)?;
        memory.store_u32_release(INDEX_MASK_AT, mask)?;
        Ok(Self {
            memory: Arc::new(memory, GFP_KERNEL_ACCOUNT)?,
            mask,
            shift,
        })
    }

    /// Returns the length of an element in octets.
    pub(super) fn element_len(&self) -> usize {
        1 << self.shift
    }

    pub(super) fn at(&self, position: u32) -> usize {
        HEADER_LEN + ((position & self.mask) as usize) * self.element_len()
    }

    /// Returns how many elements the process has added from `position` on.
    pub(super) fn added(&self, position: u32) -> u32 {
        // ORDERING: the elements are read after this; pairs with librxe's release of the producer
        // index (`advance_producer`, `store_producer_index`).
        let producer = self
            .memory
            .load_u32_acquire(PRODUCER_AT)
            .unwrap_or(position);
        producer.wrapping_sub(position) & self.mask
    }

    /// Returns the element at `position`, and all before it, to the process.
    pub(super) fn release(&self, position: u32) {
        let consumer = position.wrapping_add(1) & self.mask;
        // ORDERING: the element was read before this; pairs with librxe's acquire of the consumer
        // index (`queue_full`), after which it writes the element again.
        // Cannot fail: the offset is inside the header.
        let _ = self.memory.store_u32_release(CONSUMER_AT, consumer);
    }

    /// Copies `room.len()` octets out of the element at `position`, from `skip` on. Returns false
    /// if the element is shorter.
    pub(super) fn copy_out(&self, position: u32, skip: usize, room: &mut [u8]) -> bool {
        skip + room.len() <= self.element_len()
            && self
                .memory
                .copy_bytes_out(self.at(position) + skip, room)
                .is_ok()
    }

    /// Copies `count` elements from `position` on to another queue, from `target` on, and sets that
    /// queue's producer index to the end of the copy.
    ///
    /// # Errors
    ///
    /// `EINVAL` if they do not fit, or the elements of the queues differ in length.
    pub(super) fn copy_range(
        &self,
        position: u32,
        count: u32,
        other: &Self,
        target: u32,
    ) -> Result {
        let end = target.checked_add(count).ok_or(EINVAL)?;
        if end > other.mask || count > self.mask || self.shift != other.shift {
            return Err(EINVAL);
        }
        for n in 0..count {
            let from = self.at(position.wrapping_add(n));
            let to = other.at(target + n);
            // The length of an element is a multiple of `ELEMENT_MIN`.
            for skip in (0..self.element_len()).step_by(ELEMENT_MIN) {
                let part = self.memory.copy_out::<[u8; ELEMENT_MIN]>(from + skip);
                other.memory.copy_in(to + skip, &part.ok_or(EINVAL)?)?;
            }
        }
        // ORDERING: the elements were written before; pairs with librxe's acquire of the producer
        // index (`queue_empty`).
        other.memory.store_u32_release(PRODUCER_AT, end)
    }

    /// Returns how many elements before `position` the process has not taken yet; [`None`] never,
    /// since the offset is inside the header.
    pub(super) fn waiting(&self, position: u32) -> Option<u32> {
        // ORDERING: pairs with librxe's release of the consumer index (`advance_consumer`).
        let consumer = self.memory.load_u32_acquire(CONSUMER_AT)?;
        Some(position.wrapping_sub(consumer) & self.mask)
    }

    /// Adds an element at `position`. Returns false if the queue is full.
    pub(super) fn add<E: IntoBytes + zerocopy::Immutable>(
        &self,
        position: u32,
        element: &E,
    ) -> bool {
        let next = position.wrapping_add(1) & self.mask;
        // ORDERING: the element is written after this; pairs with librxe's release of the consumer
        // index (`advance_consumer`), before which it has read the element. The release of the
        // producer index below pairs with the acquire in `queue_empty`.
        let consumer = self.memory.load_u32_acquire(CONSUMER_AT);
        if consumer.is_none_or(|consumer| consumer & self.mask == next) {
            return false;
        }
        self.memory.copy_in(self.at(position), element).is_ok()
            && self.memory.store_u32_release(PRODUCER_AT, next).is_ok()
    }
}
