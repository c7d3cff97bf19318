// SPDX-License-Identifier: GPL-2.0

//! Choices made from octets: every choice of an input goes through a [`Source`].

/// Octets that choices consume; zeros follow the last one.
#[derive(Clone, Debug)]
pub struct Source<'a>(&'a [u8]);

impl<'a> Source<'a> {
    /// Starts at the first of `octets`.
    pub fn new(octets: &'a [u8]) -> Self {
        Self(octets)
    }

    /// Returns whether all octets are consumed.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes the remaining octets.
    pub fn rest(self) -> &'a [u8] {
        self.0
    }

    /// Takes `N` octets.
    pub fn octets<const N: usize>(&mut self) -> [u8; N] {
        let mut octets = [0; N];
        let (taken, rest) = self.0.split_at(N.min(self.0.len()));
        octets[..taken.len()].copy_from_slice(taken);
        self.0 = rest;
        octets
    }

    /// Takes a number of 8 bits.
    pub fn u8(&mut self) -> u8 {
        self.octets::<1>()[0]
    }

    /// Takes a number of 16 bits.
    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.octets())
    }

    /// Takes a number of 32 bits.
    pub fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.octets())
    }

    /// Takes a number of 64 bits.
    pub fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.octets())
    }

    /// Takes a number below `end`, which is at most 2^16.
    pub fn below(&mut self, end: usize) -> usize {
        if end <= 0x100 {
            usize::from(self.u8()) % end
        } else {
            usize::from(self.u16()) % end
        }
    }

    /// Takes one of several values.
    pub fn choose<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len())]
    }

    /// Takes yes or no.
    pub fn flag(&mut self) -> bool {
        self.u8() & 1 == 1
    }
}
