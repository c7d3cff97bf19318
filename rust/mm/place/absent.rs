// SPDX-License-Identifier: GPL-2.0

//! What is done to memory that need not be there; copies come here from where they find no run.

use super::Memory;
use super::Paged;
use super::Run;
use kernel::prelude::*;
use kernel::sync::Arc;

impl Memory {
    /// An address of the octet at `offset`, for a look at its alignment.
    pub fn address(&self, offset: u64) -> Option<usize> {
        match self.run(offset, 1) {
            Some(run) => Some(run.start.addr()),
            None => self.paged(offset).and_then(|(paged, at)| paged.address(at)),
        }
    }

    /// The memory that need not be there, and where `offset` is in it; [`None`] for all other memory.
    pub fn paged(&self, offset: u64) -> Option<(&Arc<Paged>, u64)> {
        match self {
            Self::Paged(paged) => Some((paged, offset)),
            Self::Part(part) => part.paged(offset),
            Self::Pages(_) | Self::KernelPages(_) | Self::KernelVirtual(_) => None,
        }
    }

    /// The same for memory that need not be there.
    #[cold]
    pub(super) fn paged_runs<const WRITE: bool>(
        &self,
        offset: u64,
        len: usize,
        f: impl FnMut(Run<'_>) -> Result,
    ) -> Result {
        let (paged, at) = self.paged(offset).ok_or(EFAULT)?;
        paged.runs::<WRITE>(at, len, f)
    }
}
