// SPDX-License-Identifier: GPL-2.0

//! Registration of memory.
//!
//! What enters: a request of a process to register its memory ([`RegUserMr`], [`ReregUserMr`]) or that of
//! another driver ([`RegDmaBufMr`]), or a scatter list of a kernel consumer for a region that it will
//! register fast ([`MapSg`]). What leaves: memory that stays in its place ([`Umem`], [`DmaBuf`]) or comes when
//! it is needed ([`Paged`]), or a list
//! of pages ([`KernelPages`]) that the driver's region keeps.
//!
//! C header: `include/rdma/ib_verbs.h`.

use super::sges::Sges;
use super::types::Access;
use crate::bindings;
use crate::mm::dma_buf::DmaBuf;
use crate::mm::paged::Paged;
use crate::mm::paged::Prefetch;
use crate::mm::place::KernelPages;
use crate::mm::umem::Umem;
use core::marker::PhantomData;
use core::ptr::NonNull;
use kernel::ffi::c_int;
use kernel::ffi::c_uint;
use kernel::prelude::*;
use kernel::sync::Arc;

/// A process's request to register memory.
pub struct RegUserMr<'a> {
    pub(super) device: NonNull<bindings::ib_device>,
    /// Where the memory begins in the process.
    pub start: u64,
    /// How long it is.
    pub length: u64,
    /// By which address it will be named in work requests and by the peer.
    pub iova: u64,
    /// The rights.
    pub access: Access,
    pub(super) _life: PhantomData<&'a bindings::ib_device>,
}

impl RegUserMr<'_> {
    /// Pins the memory.
    ///
    /// # Errors
    ///
    /// * `EINVAL` if the range wraps or is empty.
    /// * `ENOMEM` if it is more than the process may pin, or memory is short.
    /// * `EFAULT` if it is not mapped, or may not be written although the rights say so.
    pub fn pin(&self) -> Result<Umem> {
        // SAFETY: The device is registered while one of its verbs runs.
        unsafe { Umem::pin(self.device, self.start, self.length, self.access) }
    }

    /// Registers the memory without pinning it; none of it need be there.
    ///
    /// # Errors
    ///
    /// * `EINVAL` if the range wraps or is empty.
    /// * `ENOMEM`.
    pub fn page_on_demand(&self) -> Result<Arc<Paged>> {
        // SAFETY: The device is registered while one of its verbs runs.
        unsafe { Paged::register(self.device, self.start, self.length, self.access) }
    }
}

/// A process's request to register memory of another driver, of which it has a descriptor.
pub struct RegDmaBufMr<'a> {
    pub(super) fd: c_int,
    /// Where the region begins in that memory.
    pub offset: u64,
    /// How long it is.
    pub length: u64,
    /// By which address it will be named in work requests and by the peer.
    pub iova: u64,
    /// The rights.
    pub access: Access,
    pub(super) _life: PhantomData<&'a bindings::ib_device>,
}

impl RegDmaBufMr<'_> {
    /// Gets the memory, all that the descriptor stands for.
    ///
    /// # Errors
    ///
    /// * `EBADF` if there is no such descriptor, `EINVAL` if it is none of a dma-buf.
    /// * `EOPNOTSUPP` if the processor cannot have access to the memory as to its own.
    /// * What the driver says whose memory it is.
    pub fn map(&self) -> Result<DmaBuf> {
        DmaBuf::map(self.fd)
    }
}

/// A process's request to register a region anew, with what it has changed.
pub struct ReregUserMr<'a> {
    /// `enum ib_mr_rereg_flags`.
    pub(super) changes: u32,
    /// The region as it would be if all had changed.
    pub(super) all: RegUserMr<'a>,
}

impl<'a> ReregUserMr<'a> {
    /// The rights, which are now those in `old`.
    pub fn access(&self, old: Access) -> Access {
        if self.changes & bindings::ib_mr_rereg_flags_IB_MR_REREG_ACCESS != 0 {
            self.all.access
        } else {
            old
        }
    }

    /// The request to register the new memory, with these rights; [`None`] if the memory stays.
    pub fn memory(&self, access: Access) -> Option<RegUserMr<'a>> {
        let new = self.changes & bindings::ib_mr_rereg_flags_IB_MR_REREG_TRANS != 0;
        new.then_some(RegUserMr { access, ..self.all })
    }
}

/// A scatter list of a kernel consumer, on its way into a region for fast registration.
pub struct MapSg<'a> {
    pub(super) mr: NonNull<bindings::ib_mr>,
    pub(super) list: *mut bindings::scatterlist,
    pub(super) entries: c_int,
    pub(super) offset: *mut c_uint,
    /// The pages that the region was made with.
    pub(super) pages: &'a KernelPages,
    /// Adds a page to them, for `ib_sg_to_pages()`.
    pub(super) set_page: unsafe extern "C" fn(*mut bindings::ib_mr, u64) -> c_int,
}

/// What became of a scatter list.
#[derive(Clone, Copy, Debug)]
pub struct Mapped {
    /// How many entries were taken; to be returned to the consumer.
    pub entries: i32,
    /// By which address the first octet is named.
    pub iova: u64,
    /// How many octets were taken.
    pub length: u64,
}

impl MapSg<'_> {
    /// Replaces the region's pages by the list, as far as it goes: up to the first gap between
    /// pages, or until there is no room.
    ///
    /// Context: any.
    ///
    /// # Errors
    ///
    /// * `EINVAL` if the list is empty or its offset absurd.
    /// * `ENOMEM` if not even its first entry fits.
    pub fn map(&mut self) -> Result<Mapped> {
        self.pages.clear();
        let mr = self.mr.as_ptr();
        // SAFETY: The trampoline made this value from the arguments of `ops.map_mr_sg`; the
        // region's page size is what the consumer passed to `ib_map_mr_sg()`. No other map call of
        // this region runs at the same time, by the contract of that function.
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
            self.pages.clear();
            return Err(Error::from_errno(entries));
        }
        // SAFETY: The region is valid during the call.
        let (iova, length, page_size) = unsafe { ((*mr).iova, (*mr).length, (*mr).page_size) };
        self.pages.finish(iova, length, page_size);
        Ok(Mapped {
            entries,
            iova,
            length,
        })
    }
}

/// Advice of a process on memory that need not be there.
pub struct Advice<'a> {
    /// What is to be done.
    pub what: Prefetch,
    /// With what.
    pub ranges: Sges<'a>,
}
