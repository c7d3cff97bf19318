// SPDX-License-Identifier: GPL-2.0

//! Registration of memory.
//!
//! A process registers its own memory ([`RegUserMr`], [`ReregUserMr`]) or another driver's
//! ([`RegDmaBufMr`]); a kernel consumer maps a scatter list for fast registration ([`MapSg`]). The
//! result is pinned memory ([`Umem`], [`DmaBuf`]), memory paged on demand ([`Paged`]), or a list of
//! pages ([`KernelPages`]), which the driver's region keeps.
//!
//! C header: `include/rdma/ib_verbs.h`.

use super::sges::Sges;
use super::types::AccessFlags;
use crate::bindings;
use crate::rdma::mem::dma_buf::DmaBuf;
use crate::rdma::mem::mem_map::KernelPages;
use crate::rdma::mem::mem_map::Memory;
use crate::rdma::mem::mem_map::Shape;
use crate::rdma::mem::paged::Implicit;
use crate::rdma::mem::paged::OnDemand;
use crate::rdma::mem::paged::Paged;
use crate::rdma::mem::paged::PagedBudget;
use crate::rdma::mem::paged::Prefetch;
use crate::rdma::mem::umem::Umem;
use core::marker::PhantomData;
use core::ptr::NonNull;
use kernel::ffi::c_int;
use kernel::ffi::c_uint;
use kernel::prelude::*;
use kernel::sync::Arc;

/// A process's request to register memory.
pub struct RegUserMr<'a> {
    pub(super) device: NonNull<bindings::ib_device>,
    /// The address of the memory in the process.
    pub start: u64,
    /// Its length.
    pub length: u64,
    /// The address of its first octet for work requests and the peer.
    pub iova: u64,
    /// The access rights.
    pub access: AccessFlags,
    pub(super) _life: PhantomData<&'a bindings::ib_device>,
}

impl RegUserMr<'_> {
    /// Pins the memory.
    ///
    /// # Errors
    ///
    /// * `EINVAL` if the range wraps or is empty.
    /// * `ENOMEM` if the process may not pin that much, or memory is short.
    /// * `EFAULT` if the range is not mapped, or not writable although the rights require it.
    pub fn pin(&self) -> Result<Umem> {
        // SAFETY: The device is registered while one of its verbs runs.
        unsafe { Umem::pin(self.device, self.start, self.length, self.access) }
    }

    /// Registers the memory without pinning it; none of it needs to be present. All octets from
    /// address 0 on are all the memory of the process, also what it maps later.
    ///
    /// # Errors
    ///
    /// * `EINVAL` if the range wraps or is empty.
    /// * `ENOMEM` if memory is short, or `budget` does not allow it.
    pub fn page_on_demand(&self, budget: &Arc<PagedBudget>) -> Result<OnDemand> {
        let range = (self.start, self.length);
        if range == (0, u64::MAX) {
            // SAFETY: The device is registered while one of its verbs runs.
            let implicit = unsafe { Implicit::register(self.device, self.access, budget) };
            return implicit.map(OnDemand::Implicit);
        }
        // SAFETY: The device is registered while one of its verbs runs.
        let paged = unsafe { Paged::register(self.device, range, self.access, budget) };
        paged.map(OnDemand::Range)
    }
}

/// A process's request to register memory of another driver, named by a file descriptor.
pub struct RegDmaBufMr<'a> {
    pub(super) device: NonNull<bindings::ib_device>,
    pub(super) fd: c_int,
    /// The offset of the region in that memory.
    pub offset: u64,
    /// Its length.
    pub length: u64,
    /// The address of its first octet for work requests and the peer.
    pub iova: u64,
    /// The access rights.
    pub access: AccessFlags,
    pub(super) _life: PhantomData<&'a bindings::ib_device>,
}

impl RegDmaBufMr<'_> {
    /// Maps all memory behind the descriptor.
    ///
    /// # Errors
    ///
    /// * `EBADF` if the descriptor is not open, `EINVAL` if it is no dma-buf.
    /// * `EOPNOTSUPP` if the processor cannot access the memory like its own.
    /// * The error of the exporting driver, also if it cannot pin the memory.
    pub fn map(&self) -> Result<DmaBuf> {
        // SAFETY: The device is registered while one of its verbs runs.
        unsafe { DmaBuf::map(self.fd, self.device) }
    }
}

/// A process's request to re-register a region, with its changes.
pub struct ReregUserMr<'a> {
    /// `enum ib_mr_rereg_flags`.
    pub(super) changes: u32,
    /// The parameters, of which `changes` selects the new ones.
    pub(super) all: RegUserMr<'a>,
}

impl<'a> ReregUserMr<'a> {
    /// Returns the new rights; `old` if they do not change.
    pub fn access(&self, old: AccessFlags) -> AccessFlags {
        if self.changes & bindings::ib_mr_rereg_flags_IB_MR_REREG_ACCESS != 0 {
            self.all.access
        } else {
            old
        }
    }

    /// Returns the request to register the new memory with these rights; [`None`] if the memory
    /// stays.
    pub fn memory(&self, access: AccessFlags) -> Option<RegUserMr<'a>> {
        let new = self.changes & bindings::ib_mr_rereg_flags_IB_MR_REREG_TRANS != 0;
        new.then_some(RegUserMr { access, ..self.all })
    }
}

/// A scatter list of a kernel consumer, to be mapped for fast registration.
pub struct MapSg<'a> {
    pub(super) mr: NonNull<bindings::ib_mr>,
    pub(super) list: *mut bindings::scatterlist,
    pub(super) entries: c_int,
    pub(super) offset: *mut c_uint,
    /// The region's list of pages.
    pub(super) pages: &'a KernelPages,
    /// Adds a page to the region, for `ib_sg_to_pages()`.
    pub(super) set_page: unsafe extern "C" fn(*mut bindings::ib_mr, u64) -> c_int,
}

/// The result of mapping a scatter list.
#[derive(Clone, Copy, Debug)]
pub struct Mapped {
    /// The number of entries that were mapped, which the consumer gets.
    pub entries: i32,
    /// The address of the first octet.
    pub iova: u64,
    /// The number of octets that were mapped.
    pub length: u64,
}

impl MapSg<'_> {
    /// Replaces the pages of the region by the list. `memory` is the region's, borrowed
    /// exclusively: nothing reads the pages meanwhile.
    ///
    /// Maps entries until the region is full, or up to the first gap between pages if the region
    /// does not allow gaps.
    ///
    /// Context: any.
    ///
    /// # Errors
    ///
    /// * `EINVAL` if the list is empty or its offset is beyond the first entry, or if `memory` is
    ///   not that of the region.
    /// * `ENOMEM` if not even its first entry fits.
    pub fn map(&mut self, memory: &mut Memory) -> Result<Mapped> {
        match memory {
            Memory::KernelPages(reader) if reader.reads(self.pages) => {}
            Memory::KernelPages(_)
            | Memory::KernelVirtual(_)
            | Memory::Paged(_)
            | Memory::Pages(_)
            | Memory::Part(_) => return Err(EINVAL),
        }
        self.pages.clear();
        let mapped = match self.pages.shape {
            Shape::Pages => self.map_pages(),
            Shape::Gaps => self.map_pieces(),
        };
        if mapped.is_err() {
            self.pages.clear();
        }
        mapped
    }

    fn map_pages(&mut self) -> Result<Mapped> {
        let mr = self.mr.as_ptr();
        // SAFETY: The trampoline made this value from the arguments of `ops.map_mr_sg`;
        // `ib_map_mr_sg()` set the region's page size from its consumer's argument and forbids
        // concurrent map calls of one region.
        let entries = unsafe {
            bindings::ib_sg_to_pages(
                mr,
                self.list,
                self.entries,
                self.offset,
                Some(self.set_page),
            )
        };
        if entries < 0 {
            return Err(Error::from_errno(entries));
        }
        // SAFETY: A field of the region, which is valid during the call and which no other call
        // maps.
        let iova = unsafe { (*mr).iova };
        // SAFETY: A field of the region, which is valid during the call and which no other call
        // maps.
        let length = unsafe { (*mr).length };
        // SAFETY: A field of the region, which is valid during the call and which no other call
        // maps.
        let page_size = unsafe { (*mr).page_size };
        // If a piece begins inside a page and no further page fits, `ib_sg_to_pages()` computes a
        // negative length.
        if entries == 0 && i64::try_from(length).is_err() {
            return Err(ENOMEM);
        }
        let in_page = u64::from(page_size.saturating_sub(1));
        self.pages.finish(iova & in_page, length);
        Ok(Mapped {
            entries,
            iova,
            length,
        })
    }

    /// Does the work of `ib_sg_to_pages()`, but each entry is a piece of any length at any address.
    fn map_pieces(&mut self) -> Result<Mapped> {
        let mut skip = match NonNull::new(self.offset) {
            // SAFETY: `ib_map_mr_sg()` requires its consumer to pass an offset that is null or
            // valid.
            Some(offset) => u64::from(unsafe { offset.read() }),
            None => 0,
        };
        let mut mapped = Mapped {
            entries: 0,
            iova: 0,
            length: 0,
        };
        let mut next = self.list;
        while mapped.entries < self.entries && !next.is_null() {
            // SAFETY: `sg_dma_len()` requires an entry of a mapped list: the consumer passed
            // `ib_map_mr_sg()` one with that many entries, and `next` is one of them.
            let len = unsafe { riwarp_helper_sg_dma_len(next) };
            // SAFETY: `sg_dma_address()` has the same requirement.
            let start = unsafe { riwarp_helper_sg_dma_address(next) };
            let len = u64::from(len).checked_sub(skip).ok_or(EINVAL)?;
            let start = start.checked_add(skip).ok_or(EINVAL)?;
            match self.pages.push(start, len) {
                Ok(()) => {}
                Err(error) if mapped.entries == 0 => return Err(error),
                Err(_) => break,
            }
            if mapped.entries == 0 {
                mapped.iova = start;
            }
            mapped.length += len;
            mapped.entries += 1;
            skip = 0;
            // SAFETY: `sg_next()` requires an entry of a list, which `next` is; it returns null
            // after the last.
            next = unsafe { riwarp_helper_sg_next(next) };
        }
        if mapped.entries == 0 {
            return Err(EINVAL);
        }
        if let Some(offset) = NonNull::new(self.offset) {
            // All mapped entries were mapped completely.
            // SAFETY: `ib_map_mr_sg()` requires its consumer to pass an offset that is null or
            // valid.
            unsafe { offset.write(0) };
        }
        let mr = self.mr.as_ptr();
        // SAFETY: A field of the region, which is valid during the call and which no other call
        // maps.
        unsafe { (*mr).iova = mapped.iova };
        // SAFETY: A field of the region, which is valid during the call and which no other call
        // maps.
        unsafe { (*mr).length = mapped.length };
        self.pages.finish(0, mapped.length);
        Ok(mapped)
    }
}

/// A process's advice on memory that is paged on demand.
pub struct Advice<'a> {
    /// The action.
    pub what: Prefetch,
    /// The ranges.
    pub ranges: Sges<'a>,
}

extern "C" {
    fn riwarp_helper_sg_dma_address(sg: *mut bindings::scatterlist) -> u64;
    fn riwarp_helper_sg_dma_len(sg: *mut bindings::scatterlist) -> c_uint;
    fn riwarp_helper_sg_next(sg: *mut bindings::scatterlist) -> *mut bindings::scatterlist;
}

#[kernel::prelude::kunit_tests(riwarp_map_sg)]
mod tests {
    use super::*;
    use crate::rdma::bench::kernel_owned;
    use crate::rdma::bench::SgList;

    /// Maps pieces from `offset` on for a region that allows gaps.
    fn map(
        (pages, memory): &mut (Arc<KernelPages>, Memory),
        pieces: &[(*const u8, u32)],
        offset: u32,
    ) -> Result<Mapped> {
        let mut list = SgList::try_new(pages, 0, pieces.iter().copied(), offset)?;
        let mut sg = list.view();
        let mapped = sg.map(memory)?;
        // SAFETY: `list` owns the region.
        let told = unsafe { (sg.mr.as_ref().iova, sg.mr.as_ref().length) };
        assert_eq!(told, (mapped.iova, mapped.length));
        assert_eq!(list.offset(), 0);
        Ok(mapped)
    }

    /// Returns an address that is not accessed.
    fn at(address: usize) -> *const u8 {
        core::ptr::without_provenance(address)
    }

    #[test]
    fn sg_entries_with_gaps_are_mapped_consecutively() -> Result {
        let mut buffer = KVec::from_elem(0u8, 100, GFP_KERNEL)?;
        let start = buffer.as_mut_ptr().cast_const();
        let mut pages = KernelPages::try_new(kernel_owned(), Shape::Gaps, 4)?;

        let pieces = [(70, 20), (1, 7), (8, 2), (50, 9)];
        let pieces = pieces.map(|(at, len)| (start.wrapping_add(at), len));
        let mapped = map(&mut pages, &pieces, 5)?;
        let (_, memory) = &pages;
        let begin = start.wrapping_add(75).expose_provenance() as u64;
        assert_eq!((mapped.entries, mapped.iova, mapped.length), (4, begin, 33));
        assert_eq!(memory.len(), 33);
        // The second and the third piece adjoin.
        let runs = [0, 15, 24].map(|at| memory.run(at, 1000).map(|run| run.len()));
        assert_eq!(runs, [Some(15), Some(9), Some(9)]);
        memory.write(0, &[1; 33])?;
        let mine = |at: usize| matches!(at, 75..90 | 1..10 | 50..59);
        let right = |(at, octet): (usize, &u8)| *octet == u8::from(mine(at));
        assert!(buffer.iter().enumerate().all(right));
        Ok(())
    }

    #[test]
    fn sg_entries_beyond_capacity_are_not_mapped() -> Result {
        let mut pages = KernelPages::try_new(kernel_owned(), Shape::Gaps, 2)?;
        let mapped = map(
            &mut pages,
            &[(at(100), 10), (at(200), 10), (at(300), 10)],
            0,
        )?;
        assert_eq!((mapped.entries, mapped.length), (2, 20));
        assert_eq!(pages.1.len(), 20);
        // An invalid list leaves the region empty.
        assert_eq!(map(&mut pages, &[], 0).err(), Some(EINVAL));
        assert_eq!(map(&mut pages, &[(at(100), 10)], 11).err(), Some(EINVAL));
        assert!(pages.1.is_empty());
        Ok(())
    }

    #[test]
    fn kernel_pages_change_only_with_their_own_memory() -> Result {
        let mut pages = KernelPages::try_new(kernel_owned(), Shape::Gaps, 2)?;
        let mut others = KernelPages::try_new(kernel_owned(), Shape::Gaps, 2)?;
        map(&mut pages, &[(at(100), 10)], 0)?;
        core::mem::swap(&mut pages.1, &mut others.1);
        for memory in [&mut pages.1, &mut Memory::nothing()] {
            let list = [(at(200), 20)];
            let mut list = SgList::try_new(&pages.0, 0, list.into_iter(), 0)?;
            assert_eq!(list.view().map(memory).err(), Some(EINVAL));
        }
        assert_eq!(others.1.len(), 10);
        Ok(())
    }
}
