// SPDX-License-Identifier: GPL-2.0

//! Memory that a kernel consumer registers fast.

use super::Memory;
use crate::mm::run::Run;
use crate::rdma::types::KernelOwned;
use kernel::prelude::*;
use kernel::sync::atomic::Atomic;
use kernel::sync::atomic::Relaxed;
use kernel::sync::Arc;

/// The pieces of memory that a kernel consumer registered fast, allocated once.
///
/// # Invariants
///
/// One [`Memory`] reads them, the one that [`KernelPages::try_new`] returned. They change only
/// while the caller borrows that one exclusively ([`MapSg::map`](crate::rdma::mr::MapSg::map)), so
/// that no copy combines two lists.
pub struct KernelPages {
    // ORDERING: all is Relaxed: it changes inside an update, without users, and its end pairs with
    // the entry of the next user.
    pieces: KVVec<KernelPiece>,
    used: Atomic<u32>,
    /// The number of [`KernelPages::push`] calls, at most the number of pieces.
    taken: Atomic<u32>,
    /// Offset of the first octet in the first piece.
    skip: Atomic<u64>,
    len: Atomic<u64>,
    /// The allowed shape of a piece.
    pub(crate) shape: Shape,
}

/// The allowed shape of the pieces of a list (`enum ib_mr_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Whole pages, except for the begin of the first and the end of the last
    /// (`IB_MR_TYPE_MEM_REG`).
    Pages,
    /// Any pieces, with gaps between them (`IB_MR_TYPE_SG_GAPS`).
    Gaps,
}

/// The one reference to a [`KernelPages`] by which they are read.
pub struct FastRegMemory(Arc<KernelPages>);

impl FastRegMemory {
    /// Returns whether it reads these pages.
    pub(crate) fn reads(&self, pages: &KernelPages) -> bool {
        core::ptr::eq(&*self.0, pages)
    }

    #[inline]
    pub(super) fn len(&self) -> u64 {
        self.0.len()
    }

    pub(super) fn run(&self, offset: u64, max: usize) -> Option<Run<'_>> {
        self.0.run(offset, max)
    }
}

/// Contiguous octets.
struct KernelPiece {
    start: Atomic<u64>,
    /// The number of octets in all pieces up to the end of this one.
    end: Atomic<u64>,
}

impl KernelPages {
    /// Allocates a list of up to `max` pieces, and returns it with the memory that reads it.
    ///
    /// # Errors
    ///
    /// * `EINVAL` if `max` is 0.
    /// * `ENOMEM` if memory is short.
    pub fn try_new(_proof: KernelOwned<'_>, shape: Shape, max: u32) -> Result<(Arc<Self>, Memory)> {
        if max == 0 {
            return Err(EINVAL);
        }
        // CAST: 32 bits fit.
        let mut pieces = KVVec::with_capacity(max as usize, GFP_KERNEL_ACCOUNT)?;
        for _ in 0..max {
            let piece = KernelPiece {
                start: Atomic::new(0),
                end: Atomic::new(0),
            };
            pieces.push(piece, GFP_KERNEL_ACCOUNT)?;
        }
        let this = Self {
            pieces,
            used: Atomic::new(0),
            taken: Atomic::new(0),
            skip: Atomic::new(0),
            len: Atomic::new(0),
            shape,
        };
        let this = Arc::new(this, GFP_KERNEL_ACCOUNT)?;
        // INVARIANT: The only one, since nothing else makes a `FastRegMemory`.
        let memory = Memory::KernelPages(FastRegMemory(this.clone()));
        Ok((this, memory))
    }

    /// Removes all pieces.
    pub(crate) fn clear(&self) {
        self.len.store(0, Relaxed);
        self.used.store(0, Relaxed);
        self.taken.store(0, Relaxed);
    }

    /// Appends `len` octets at `start` of a kernel consumer; octets that adjoin the last piece
    /// extend it, but count as one more.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if the list is full, `EOVERFLOW` if the total length overflows.
    pub(crate) fn push(&self, start: u64, len: u64) -> Result {
        let taken = self.taken.load(Relaxed);
        // CAST: 32 bits fit.
        if taken as usize >= self.pieces.len() {
            return Err(ENOMEM);
        }
        self.taken.store(taken.wrapping_add(1), Relaxed);
        let used = self.used();
        let before = begin_of(used, used.len());
        let end = before.checked_add(len).ok_or(EOVERFLOW)?;
        if let Some((last, others)) = used.split_last() {
            let behind = before.wrapping_sub(begin_of(used, others.len()));
            if last.start.load(Relaxed).checked_add(behind) == Some(start) {
                last.end.store(end, Relaxed);
                return Ok(());
            }
        }
        let piece = self.pieces.get(used.len()).ok_or(ENOMEM)?;
        piece.start.store(start, Relaxed);
        piece.end.store(end, Relaxed);
        // CAST: At most the capacity, which is given in 32 bits.
        self.used.store(used.len() as u32 + 1, Relaxed);
        Ok(())
    }

    /// Selects `len` octets from the one at `skip` on, after all pieces are appended.
    pub(crate) fn finish(&self, skip: u64, len: u64) {
        self.skip.store(skip, Relaxed);
        self.len.store(len, Relaxed);
    }

    /// Returns the length in octets.
    #[inline]
    fn len(&self) -> u64 {
        self.len.load(Relaxed)
    }

    #[inline]
    fn used(&self) -> &[KernelPiece] {
        let used = self.used.load(Relaxed) as usize; // CAST: 32 bits fit.
        self.pieces.get(..used).unwrap_or_default()
    }

    fn run(&self, offset: u64, max: usize) -> Option<Run<'_>> {
        let left = self.len().checked_sub(offset).filter(|left| *left > 0)?;
        let place = self.skip.load(Relaxed).checked_add(offset)?;
        let used = self.used();
        let index = used.partition_point(|piece| piece.end.load(Relaxed) <= place);
        let piece = used.get(index)?;
        let within = place.checked_sub(begin_of(used, index))?;
        let there = piece.end.load(Relaxed).checked_sub(place)?.min(left);
        let start = piece.start.load(Relaxed).checked_add(within)?;
        // CAST: `usize` is 64 bits.
        let (start, len) = (start as usize, (there as usize).min(max));
        // SAFETY: The consumer keeps its memory in its place as long as the region is valid.
        Some(unsafe { Run::new(core::ptr::with_exposed_provenance_mut(start), len) })
    }
}

/// Returns the number of octets in all pieces before the one at `index`.
#[inline]
fn begin_of(pieces: &[KernelPiece], index: usize) -> u64 {
    match index.checked_sub(1).and_then(|index| pieces.get(index)) {
        Some(previous) => previous.end.load(Relaxed),
        None => 0,
    }
}
