// SPDX-License-Identifier: GPL-2.0

//! What is asked of memory that need not be there.

use super::Memory;
use super::Paged;
use kernel::sync::Arc;

impl Memory {
    /// An address of the octet at `offset`, for a look at its alignment.
    pub fn address(&self, offset: u64) -> Option<usize> {
        match self.run(offset, 1) {
            Some(run) => Some(run.start.addr()),
            None => self.paged(offset).and_then(|(paged, at)| paged.address(at)),
        }
    }

    /// The memory that need not be there, and where `offset` is in it; [`None`] for all other
    /// memory.
    pub fn paged(&self, offset: u64) -> Option<(&Arc<Paged>, u64)> {
        match self {
            Self::Paged(paged) => Some((paged, offset)),
            Self::Part(part) => part.paged(offset),
            Self::Pages(_) | Self::KernelPages(_) | Self::KernelVirtual(_) => None,
        }
    }
}
