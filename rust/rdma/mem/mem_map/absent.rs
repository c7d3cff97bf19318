// SPDX-License-Identifier: GPL-2.0

//! Access to memory that is paged on demand.

use super::Memory;
use super::OnDemand;

impl Memory {
    /// Returns an address of the octet at `offset`, to check its alignment.
    pub fn address(&self, offset: u64) -> Option<usize> {
        match self.run(offset, 1) {
            Some(run) => Some(run.start().addr()),
            None => self.paged(offset).and_then(|(paged, at)| paged.address(at)),
        }
    }

    /// Returns the memory that is paged on demand, and the position of `offset` in it; [`None`] for
    /// all other memory.
    pub fn paged(&self, offset: u64) -> Option<(&OnDemand, u64)> {
        match self {
            Self::Paged(paged) => Some((paged, offset)),
            Self::Part(part) => part.paged(offset),
            Self::Pages(_) | Self::KernelPages(_) | Self::KernelVirtual(_) => None,
        }
    }
}
