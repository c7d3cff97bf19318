// SPDX-License-Identifier: GPL-2.0

//! Memory with several owners, for memory windows: a region and each window bound to it.

use super::Memory;
use super::OnDemand;
use crate::mm::run::Run;
use core::mem::MaybeUninit;
use kernel::prelude::*;
use kernel::sync::Arc;
use kernel::sync::UniqueArc;

/// A part of memory with several owners.
///
/// The memory lives until the last part is dropped, in a context where the memory itself may be
/// dropped.
///
/// # Invariants
///
/// `skip + len` is at most the length of `whole`.
pub struct Part {
    whole: Arc<Memory>,
    skip: u64,
    len: u64,
}

impl Part {
    pub(super) fn run(&self, offset: u64, max: usize) -> Option<Run<'_>> {
        let left = self.len.checked_sub(offset)?;
        let max = usize::try_from(left).map_or(max, |left| left.min(max));
        self.whole.run(self.skip.checked_add(offset)?, max)
    }

    /// As [`Memory::runs`].
    pub(super) fn runs<const WRITE: bool>(
        &self,
        offset: u64,
        len: usize,
        f: impl FnMut(Run<'_>) -> Result,
    ) -> Result {
        // CAST: `u64` has the bits of `usize`.
        let end = offset.checked_add(len as u64).ok_or(EFAULT)?;
        if end > self.len {
            return Err(EFAULT);
        }
        let offset = self.skip.checked_add(offset).ok_or(EFAULT)?;
        self.whole.runs::<WRITE>(offset, len, f)
    }

    pub(super) fn paged(&self, offset: u64) -> Option<(&OnDemand, u64)> {
        let offset = self.skip.checked_add(offset)?;
        self.whole.paged(offset)
    }

    pub(super) fn len(&self) -> u64 {
        self.len
    }

    pub(super) fn is_writable(&self) -> bool {
        self.whole.is_writable()
    }

    pub(super) fn takes_atomics(&self) -> bool {
        self.whole.takes_atomics()
    }

    pub(super) fn is_persistent(&self) -> bool {
        self.whole.is_persistent()
    }
}

impl Memory {
    /// Returns the `len` octets at `skip`; [`None`] if they are not all inside, or the memory is
    /// not divisible.
    pub fn part(&self, skip: u64, len: u64) -> Option<Self> {
        let Self::Part(part) = self else {
            return None;
        };
        if skip.checked_add(len)? > part.len {
            return None;
        }
        // INVARIANT: The range is inside `part`, and so inside the whole.
        Some(Self::Part(Part {
            whole: part.whole.clone(),
            skip: part.skip.checked_add(skip)?,
            len,
        }))
    }
}

/// An allocation for memory that can be divided; filling it cannot fail.
pub struct Divisible(UniqueArc<MaybeUninit<Memory>>);

impl Divisible {
    /// Allocates it.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn try_new() -> Result<Self> {
        Ok(Self(UniqueArc::new_uninit(GFP_KERNEL_ACCOUNT)?))
    }

    /// Returns the same memory, now divisible.
    pub fn fill(self, memory: Memory) -> Memory {
        if matches!(memory, Memory::Part(_)) {
            return memory;
        }
        let (skip, len) = (0, memory.len());
        let whole = self.0.write(memory).into();
        // INVARIANT: The part is the whole.
        Memory::Part(Part { whole, skip, len })
    }
}
