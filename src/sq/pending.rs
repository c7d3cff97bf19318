// SPDX-License-Identifier: GPL-2.0

//! What the completions of pending requests will say.
//!
//! The transmitter fills a place in when it takes a request, without a lock: the place is its own until it
//! says that the request is taken, and again once the request is complete.
//!
//! Context: any.

use kernel::{
    alloc::flags::__GFP_NOWARN,
    prelude::*,
    sync::atomic::{
        Atomic,
        Relaxed, //
    }, //
};
use kernel_ext::rdma::wr::WcOpcode;

/// What the completion of one request will say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Words {
    pub(super) id: u64,
    pub(super) opcode: WcOpcode,
    pub(super) bytes: u32,
    pub(super) signalled: bool,
}

/// A place for it.
struct Place {
    id: Atomic<u64>,
    /// Octets, the opcode behind them, and [`SIGNALLED`].
    rest: Atomic<u64>,
}

const OPCODE_SHIFT: u32 = 32;
const SIGNALLED: u64 = 1 << 63;

/// A ring of places.
pub(super) struct Pending(KVVec<Place>);

impl Pending {
    /// Makes a ring of `entries` places, a power of two.
    ///
    /// Context: process.
    pub(super) fn new(entries: u32) -> Result<Self> {
        let mut places = KVVec::with_capacity(entries as usize, GFP_KERNEL_ACCOUNT | __GFP_NOWARN)?;
        for _ in 0..entries {
            let place = Place {
                id: Atomic::new(0),
                rest: Atomic::new(0),
            };
            places.push(place, GFP_KERNEL_ACCOUNT)?;
        }
        Ok(Self(places))
    }

    /// Fills the place at `index` in, which is inside the ring.
    #[inline]
    pub(super) fn put(&self, index: usize, words: Words) {
        if let Some(place) = self.0.get(index) {
            let signalled = if words.signalled { SIGNALLED } else { 0 };
            let opcode = u64::from(words.opcode.to_raw()) << OPCODE_SHIFT;
            place.id.store(words.id, Relaxed);
            place
                .rest
                .store(u64::from(words.bytes) | opcode | signalled, Relaxed);
        }
    }

    /// Reads the place at `index`.
    #[inline]
    pub(super) fn get(&self, index: usize) -> Option<Words> {
        let place = self.0.get(index)?;
        let rest = place.rest.load(Relaxed);
        // CAST: the parts of the word.
        let opcode = ((rest & !SIGNALLED) >> OPCODE_SHIFT) as u32;
        Some(Words {
            id: place.id.load(Relaxed),
            opcode: WcOpcode::from_raw(opcode).unwrap_or(WcOpcode::Send),
            bytes: rest as u32,
            signalled: rest & SIGNALLED != 0,
        })
    }
}

#[kernel::prelude::kunit_tests(riwarp_pending)]
mod tests {
    use super::*;

    #[test]
    fn what_was_put_in_comes_out() -> Result {
        let pending = Pending::new(2)?;
        let words = Words {
            id: u64::MAX,
            opcode: WcOpcode::MaskedFetchAdd,
            bytes: u32::MAX,
            signalled: false,
        };
        pending.put(1, words);
        assert_eq!(pending.get(1), Some(words));
        let words = Words {
            id: 7,
            opcode: WcOpcode::Send,
            bytes: 0,
            signalled: true,
        };
        pending.put(0, words);
        assert_eq!(pending.get(0), Some(words));
        assert!(pending.get(2).is_none());
        Ok(())
    }
}
