// SPDX-License-Identifier: GPL-2.0

//! KUnit suites of librxe's queues, with contents that a process could have written.

mod cq;
mod recv;
mod send;

use super::queue::*;
use super::*;

const ID: u64 = 0x1122_3344_5566_7788;

/// Makes an element of a list, with values that depend on its place in the list.
fn sge(place: usize) -> [u8; SGE_LEN] {
    let mut octets = [0; SGE_LEN];
    octets[..8].copy_from_slice(&(0x1000 * place as u64).to_ne_bytes());
    octets[8..12].copy_from_slice(&(place as u32 + 1).to_ne_bytes());
    octets[12..].copy_from_slice(&(place as u32 + 100).to_ne_bytes());
    octets
}

/// Returns whether the list consists of the first `count` elements that `sge` makes.
fn are_sges(payload: &crate::mem::payload::Payload, count: usize) -> bool {
    let expected =
        (0..count).map(|place| (0x1000 * place as u64, place as u32 + 1, place as u32 + 100));
    payload
        .sges()
        .map(|sge| (sge.addr, sge.len, sge.lkey))
        .eq(expected)
}

/// Stores `head` and as many elements of a list as fit, as a process would.
fn store<const LEN: usize>(queue: &Queue, position: u32, head: &[u8; LEN]) -> Result {
    let at = queue.at(position);
    queue.memory.copy_in(at, head)?;
    for place in 0..(queue.element_len() - LEN) / SGE_LEN {
        let at = at + LEN + place * SGE_LEN;
        queue.memory.copy_in(at, &sge(place))?;
    }
    Ok(())
}

/// Posts as a process does.
fn produce(queue: &Queue, index: u32) -> Result {
    queue.memory.store_u32_release(PRODUCER_AT, index)
}

/// Returns the consumer index that the process sees.
fn consumed(queue: &Queue) -> Option<u32> {
    queue.memory.load_u32_acquire(CONSUMER_AT)
}
