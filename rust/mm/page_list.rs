// SPDX-License-Identifier: GPL-2.0

//! Memory that lies in several pieces: a list of them, and the owner that keeps them valid.
//!
//! Context: any. Creating a list allocates; dropping it drops the owner, and so is for the contexts
//! that the owner may be dropped in.

use super::run::Run;
use kernel::alloc::flags::__GFP_NOWARN;
use kernel::prelude::*;
use kernel::sync::atomic::Atomic;
use kernel::sync::atomic::Relaxed;

/// Memory in several pieces, which stay in their place as long as their owner, an `O`.
///
/// # Invariants
///
/// The pieces are sorted by `offset`, the first is at 0, each ends where the next begins, the last
/// at `len`. Each is contiguous in the kernel's virtual memory and stays valid as long as `owner`.
pub struct PageList<O> {
    pieces: KVVec<Piece>,
    len: u64,
    writable: bool,
    /// The pieces at which the last look-ups ended, for reads and for writes: only hints, any value
    /// is allowed.
    hints: [Atomic<u32>; 2],
    owner: Option<O>,
}

#[derive(Clone, Copy)]
struct Piece {
    offset: u64,
    start: usize,
}

impl<O> PageList<O> {
    /// Creates an empty list with capacity for `pieces`.
    pub(crate) fn with_capacity(pieces: usize, writable: bool) -> Result<Self> {
        Ok(Self {
            pieces: KVVec::with_capacity(pieces, GFP_KERNEL_ACCOUNT | __GFP_NOWARN)?,
            len: 0,
            writable,
            hints: [const { Atomic::new(0) }; 2],
            owner: None,
        })
    }

    /// Appends a piece, or extends the last one if they adjoin.
    ///
    /// # Safety
    ///
    /// `start` must point to `len` octets of contiguous memory that stay valid as long as the owner
    /// passed to [`Self::own`].
    pub(crate) unsafe fn push(&mut self, start: *mut u8, len: usize) -> Result {
        let start = start.expose_provenance();
        // CAST: `usize` is 64 bits.
        let adjoins = match self.pieces.last() {
            Some(last) => last.start.checked_add((self.len - last.offset) as usize) == Some(start),
            None => false,
        };
        if !adjoins {
            let offset = self.len;
            self.pieces
                .push(Piece { offset, start }, GFP_KERNEL_ACCOUNT)?;
        }
        // INVARIANT: The last piece ends at the new length.
        self.len = self.len.checked_add(len as u64).ok_or(EOVERFLOW)?;
        Ok(())
    }

    /// Sets the owner of the list.
    pub(crate) fn own(&mut self, owner: O) {
        self.owner = Some(owner);
    }

    /// Returns the owner; [`None`] if it is not set yet.
    pub(crate) fn owner(&self) -> Option<&O> {
        self.owner.as_ref()
    }

    /// Returns the length in octets.
    #[inline]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns whether the memory may be written.
    #[inline]
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// Returns the number of contiguous pieces.
    pub fn pieces(&self) -> usize {
        self.pieces.len()
    }

    #[inline]
    fn hint<const WRITE: bool>(&self) -> &Atomic<u32> {
        let [taken, placed] = &self.hints;
        if WRITE {
            placed
        } else {
            taken
        }
    }

    /// Returns the longest contiguous run at `offset`, at most `max` octets, which may not be 0;
    /// [`None`] outside. `WRITE` says whether it is written.
    #[inline]
    pub(crate) fn run<const WRITE: bool>(&self, offset: u64, max: usize) -> Option<Run<'_>> {
        let hint = self.hint::<WRITE>();
        // CAST: 32 bits fit.
        match self.run_of(hint.load(Relaxed) as usize, offset, max) {
            Some(run) => Some(run),
            None => self.run_elsewhere(hint, offset, max),
        }
    }

    /// As [`PageList::run`], for an offset outside the piece of the hint.
    fn run_elsewhere(&self, hint: &Atomic<u32>, offset: u64, max: usize) -> Option<Run<'_>> {
        // CAST: 32 bits fit.
        let index = self.not_in(hint.load(Relaxed) as usize, offset);
        // CAST: A hint may be cut.
        hint.store(index as u32, Relaxed);
        self.run_of(index, offset, max)
    }

    /// Returns the piece of an offset that is not in piece `index`. Usually it is the next one.
    fn not_in(&self, index: usize, offset: u64) -> usize {
        let next = index.wrapping_add(1);
        if self.run_of(next, offset, 1).is_some() {
            return next;
        }
        // The first piece is at 0, so at least one is not above `offset`.
        self.pieces
            .partition_point(|piece| piece.offset <= offset)
            .saturating_sub(1)
    }

    /// Calls `f` for each run of `len` octets at `offset`, in order; `WRITE` says whether it writes
    /// them.
    ///
    /// # Errors
    ///
    /// * `EFAULT` if they are not all inside; `f` has seen the runs before the end then.
    /// * The error of `f`.
    #[inline]
    pub(crate) fn runs<const WRITE: bool>(
        &self,
        offset: u64,
        len: usize,
        mut f: impl FnMut(Run<'_>) -> Result,
    ) -> Result {
        let hint = self.hint::<WRITE>();
        // CAST: 32 bits fit.
        let mut index = hint.load(Relaxed) as usize;
        let mut at = offset;
        let mut left = len;
        while left > 0 {
            let run = match self.run_of(index, at, left) {
                Some(run) => run,
                None => {
                    index = self.not_in(index, at);
                    self.run_of(index, at, left).ok_or(EFAULT)?
                }
            };
            f(run)?;
            left -= run.len();
            at = at.wrapping_add(run.len() as u64); // CAST: `usize` is 64 bits.
        }
        // CAST: A hint may be cut.
        hint.store(index as u32, Relaxed);
        Ok(())
    }

    /// Returns the run at `offset`, if the piece contains it.
    #[inline]
    fn run_of(&self, index: usize, offset: u64, max: usize) -> Option<Run<'_>> {
        let piece = self.pieces.get(index)?;
        let end = match self.pieces.get(index.wrapping_add(1)) {
            Some(next) => next.offset,
            None => self.len,
        };
        let within = offset.checked_sub(piece.offset)?;
        let left = end.checked_sub(offset).filter(|left| *left > 0)?;
        // CAST: `usize` is 64 bits.
        let len = (left as usize).min(max);
        let start =
            core::ptr::with_exposed_provenance_mut(piece.start.checked_add(within as usize)?);
        // SAFETY: `Run::new` requires memory that stays valid as long as the run: by the type's
        // invariant the piece is valid as long as the owner, and `self` is borrowed.
        Some(unsafe { Run::new(start, len) })
    }
}
