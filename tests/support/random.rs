// SPDX-License-Identifier: GPL-2.0

//! A seeded source of numbers, so that a failing test is reproducible.

/// SplitMix64.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Begins the sequence of this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `end`.
    pub fn below(&mut self, end: u32) -> u32 {
        u32::try_from(self.next_u64() % u64::from(end)).unwrap()
    }

    /// Returns `len` octets.
    pub fn octets(&mut self, len: usize) -> Vec<u8> {
        let mut octets = Vec::with_capacity(len + 8);
        while octets.len() < len {
            octets.extend(self.next_u64().to_le_bytes());
        }
        octets.truncate(len);
        octets
    }

    /// Returns one of several values.
    pub fn choose<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(u32::try_from(values.len()).unwrap()) as usize]
    }
}
