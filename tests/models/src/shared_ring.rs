// SPDX-License-Identifier: GPL-2.0

//! Memory that the driver shares with a process (`rust/mm/shared_ring.rs`), in which loom sees each
//! access: words that order others are atomic, and an access to any other word that is not ordered
//! with a write to it fails the model.

use crate::prelude::{
    Result,
    EINVAL, //
};
use loom::{
    cell::UnsafeCell,
    sync::atomic::{
        AtomicU64,
        Ordering, //
    }, //
};
use std::cell::Cell;

/// Values that the driver copies out.
pub trait FromBytes {
    /// Makes one of its octets.
    fn from_octets(octets: &[u8]) -> Self;
}
impl<const N: usize> FromBytes for [u8; N] {
    fn from_octets(octets: &[u8]) -> Self {
        octets.try_into().expect("the length of the value")
    }
}

/// Values that the driver copies in.
pub trait IntoBytes {
    /// Returns its octets.
    fn as_bytes(&self) -> &[u8];
}
impl<const N: usize> IntoBytes for [u8; N] {
    fn as_bytes(&self) -> &[u8] {
        self
    }
}

std::thread_local! {
    /// Whether the word at an offset of the memory that is made next orders others.
    static ORDERS: Cell<fn(usize) -> bool> = Cell::new(|_| false);
}

/// Says which words of memory that is made from now on order others.
pub fn words_that_order(orders: fn(usize) -> bool) {
    ORDERS.with(|now| now.set(orders));
}

enum Word {
    Plain(UnsafeCell<u64>),
    Orders(AtomicU64),
}

/// Shared memory.
pub struct SharedMem(Vec<Word>);

impl SharedMem {
    /// Makes zeroes.
    pub fn try_new(len: usize) -> Result<Self> {
        let orders = ORDERS.with(Cell::get);
        let word = |n| {
            if orders(8 * n) {
                Word::Orders(AtomicU64::new(0))
            } else {
                Word::Plain(UnsafeCell::new(0))
            }
        };
        Ok(Self((0..len.div_ceil(8)).map(word).collect()))
    }

    fn read(&self, n: usize, order: Ordering) -> u64 {
        match &self.0[n] {
            // SAFETY: loom reports the access if another one is not ordered with it.
            Word::Plain(cell) => cell.with(|word| unsafe { *word }),
            Word::Orders(word) => word.load(order),
        }
    }

    fn write(&self, n: usize, value: u64, order: Ordering) {
        match &self.0[n] {
            // SAFETY: as in `read`.
            Word::Plain(cell) => cell.with_mut(|word| unsafe { *word = value }),
            Word::Orders(word) => word.store(value, order),
        }
    }

    /// Copies a value out.
    pub fn copy_out<E: FromBytes>(&self, offset: usize) -> Option<E> {
        let mut octets = vec![0; size_of::<E>()];
        self.copy_bytes_out(offset, &mut octets).ok()?;
        Some(E::from_octets(&octets))
    }

    /// Copies a value of whole words in.
    pub fn copy_in<E: IntoBytes>(&self, offset: usize, value: &E) -> Result {
        for (n, octets) in value.as_bytes().chunks(8).enumerate() {
            let word = u64::from_le_bytes(octets.try_into().map_err(|_| EINVAL)?);
            self.write(offset / 8 + n, word, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Copies octets out, from the beginning of a word on.
    pub fn copy_bytes_out(&self, offset: usize, buffer: &mut [u8]) -> Result {
        for (n, octets) in buffer.chunks_mut(8).enumerate() {
            let word = self.read(offset / 8 + n, Ordering::Relaxed);
            octets.copy_from_slice(&word.to_le_bytes()[..octets.len()]);
        }
        Ok(())
    }

    /// Returns the bits from `offset` on, at the low end, by an acquire of their word.
    fn load_acquire(&self, offset: usize) -> u64 {
        self.read(offset / 8, Ordering::Acquire) >> (8 * (offset % 8))
    }

    /// Stores some octets of a word by a release. The others stay, which nobody writes meanwhile.
    fn store_release(&self, offset: usize, octets: &[u8]) {
        let mut word = self.read(offset / 8, Ordering::Relaxed).to_le_bytes();
        word[offset % 8..][..octets.len()].copy_from_slice(octets);
        self.write(offset / 8, u64::from_le_bytes(word), Ordering::Release);
    }

    /// Loads an octet.
    pub fn load_u8_acquire(&self, offset: usize) -> Option<u8> {
        Some(self.load_acquire(offset) as u8)
    }
    /// Loads 16 bits.
    pub fn load_u16_acquire(&self, offset: usize) -> Option<u16> {
        Some(self.load_acquire(offset) as u16)
    }
    /// Loads 32 bits.
    pub fn load_u32_acquire(&self, offset: usize) -> Option<u32> {
        Some(self.load_acquire(offset) as u32)
    }
    /// Stores an octet.
    pub fn store_u8_release(&self, offset: usize, value: u8) -> Result {
        self.store_release(offset, &value.to_le_bytes());
        Ok(())
    }
    /// Stores 16 bits.
    pub fn store_u16_release(&self, offset: usize, value: u16) -> Result {
        self.store_release(offset, &value.to_le_bytes());
        Ok(())
    }
    /// Stores 32 bits.
    pub fn store_u32_release(&self, offset: usize, value: u32) -> Result {
        self.store_release(offset, &value.to_le_bytes());
        Ok(())
    }

    /// Exchanges the 32 bits of a word that holds no others.
    pub fn exchange_u32(&self, offset: usize, value: u32) {
        let Word::Orders(word) = &self.0[offset / 8] else {
            panic!("a plain word");
        };
        word.swap(value.into(), Ordering::AcqRel);
    }

    /// Compares and exchanges the 32 bits of a word that holds no others, as a full barrier.
    pub fn replace_u32(&self, offset: usize, old: u32, new: u32) -> Option<Result<u32, u32>> {
        let Word::Orders(word) = &self.0[offset / 8] else {
            return None;
        };
        let order = (Ordering::AcqRel, Ordering::Relaxed);
        crate::compat::smp_mb();
        let result = word.compare_exchange(old.into(), new.into(), order.0, order.1);
        crate::compat::smp_mb();
        Some(result.map(|old| old as u32).map_err(|now| now as u32))
    }
}
