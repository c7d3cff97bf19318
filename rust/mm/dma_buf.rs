// SPDX-License-Identifier: GPL-2.0

//! Memory behind a dma-buf: what another driver (a graphics card's, a camera's, `udmabuf`) shares.
//!
//! What enters: a file descriptor of the current process. What leaves: a [`DmaBuf`], which stays where it
//! is until it is dropped, and from it a [`PageList`] of one piece.
//!
//! The copies are made by the processor, so the memory is asked for as the processor's
//! (`dma_buf_vmap()`), not as a device's: nothing is attached, and the pages of a scatter list, which are
//! the exporter's secret, are never looked at. Memory that the exporter cannot give so, such as a card's
//! own behind a bus, is refused. By the contract of dma-buf the memory stays in its place from vmap to
//! vunmap, so there are no moves to be told of; exporters that take memory back (VFIO) offer no vmap. The
//! whole time is one access of the processor (`dma_buf_begin_cpu_access()` to `..._end_...`), since no copy
//! in softirq could begin one.
//!
//! Context: process; all of it may sleep.
//!
//! C header: `include/linux/dma-buf.h`.

use super::place::Owner;
use super::place::PageList;
use crate::bindings;
use core::ptr::NonNull;
use kernel::error::from_err_ptr;
use kernel::error::to_result;
use kernel::ffi::c_int;
use kernel::prelude::*;

/// A dma-buf that the processor has access to.
///
/// # Invariants
///
/// An access of the processor in `direction` has begun.
pub struct DmaBuf {
    mapping: Mapping,
    direction: bindings::dma_data_direction,
}

// SAFETY: Neither reference nor mapping belongs to a thread.
unsafe impl Send for DmaBuf {}
// SAFETY: Through a shared reference it is only read, and it never changes.
unsafe impl Sync for DmaBuf {}

impl DmaBuf {
    /// Gives the processor access to the dma-buf behind a file descriptor of the current process.
    /// Afterwards the descriptor may be closed.
    ///
    /// # Errors
    ///
    /// * `EBADF` if there is no such descriptor, `EINVAL` if it is none of a dma-buf.
    /// * `EOPNOTSUPP` if the processor cannot have access to the memory as to its own.
    /// * What the exporter says.
    pub(crate) fn map(fd: c_int) -> Result<Self> {
        let mapping = BufRef::of(fd)?.map()?;
        let direction = if mapping.buf.is_writable() {
            bindings::dma_data_direction::DMA_BIDIRECTIONAL
        } else {
            bindings::dma_data_direction::DMA_FROM_DEVICE
        };
        // SAFETY: The reference keeps the dma-buf, whose lock is not held. Waits for devices that are using
        // the memory, too.
        to_result(unsafe { bindings::dma_buf_begin_cpu_access(mapping.buf.as_ptr(), direction) })?;
        // INVARIANT: Just done.
        Ok(Self { mapping, direction })
    }

    /// Turns `len` octets at `offset` into a list for the data path, which may be written if the
    /// descriptor was open for writing.
    ///
    /// # Errors
    ///
    /// `EINVAL` if there are none or they are not all inside, `ENOMEM`.
    pub fn into_pages(self, offset: u64, len: u64) -> Result<PageList> {
        let (offset, len) = (usize::try_from(offset)?, usize::try_from(len)?);
        let end = offset.checked_add(len).ok_or(EINVAL)?;
        if len == 0 || end > self.mapping.buf.len() {
            return Err(EINVAL);
        }
        let mut list = PageList::with_capacity(1, self.mapping.buf.is_writable())?;
        // SAFETY: `offset` is inside of the dma-buf, all of which is mapped.
        let start = unsafe { self.mapping.start().add(offset) };
        // SAFETY: The mapping is contiguous, `len` octets from `offset` on are inside, and it stays as long
        // as this value, which the list will own.
        unsafe { list.push(start, len)? };
        list.own(Owner::DmaBuf(self));
        Ok(list)
    }
}

impl Drop for DmaBuf {
    fn drop(&mut self) {
        // SAFETY: By the type's invariant the access has begun, and nobody makes use of it any more.
        let ended =
            unsafe { bindings::dma_buf_end_cpu_access(self.mapping.buf.as_ptr(), self.direction) };
        // What the exporter says to the end of an access changes nothing here.
        let _ = ended;
    }
}

/// A dma-buf in the kernel's virtual memory, all of it.
///
/// # Invariants
///
/// `map` is what one `dma_buf_vmap_unlocked()` of `buf` returned.
struct Mapping {
    buf: BufRef,
    map: bindings::iosys_map,
}

impl Mapping {
    /// Whether it is memory of a device behind a bus.
    fn is_iomem(&self) -> bool {
        self.map.is_iomem
    }

    fn start(&self) -> *mut u8 {
        // SAFETY: Both members are addresses.
        unsafe { self.map.__bindgen_anon_1.vaddr.cast() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: By the type's invariant, for that one call; the lock is not held.
        unsafe { bindings::dma_buf_vunmap_unlocked(self.buf.as_ptr(), &mut self.map) };
    }
}

/// A counted reference.
struct BufRef(NonNull<bindings::dma_buf>);

impl BufRef {
    /// The dma-buf behind a file descriptor of the current process.
    fn of(fd: c_int) -> Result<Self> {
        // SAFETY: Any number may be asked for.
        let buf = from_err_ptr(unsafe { bindings::dma_buf_get(fd) })?;
        NonNull::new(buf).map(Self).ok_or(EBADF)
    }

    fn as_ptr(&self) -> *mut bindings::dma_buf {
        self.0.as_ptr()
    }

    /// Whether the descriptor was open for writing.
    fn is_writable(&self) -> bool {
        // SAFETY: The reference keeps it.
        unsafe { riwarp_helper_dma_buf_is_writable(self.as_ptr()) }
    }

    /// Octets.
    fn len(&self) -> usize {
        // SAFETY: As above; the size never changes.
        unsafe { (*self.as_ptr()).size }
    }

    /// Maps it.
    fn map(self) -> Result<Mapping> {
        // SAFETY: As above; every dma-buf has operations, which never change.
        let vmap = unsafe { (*(*self.as_ptr()).ops).vmap };
        if vmap.is_none() {
            return Err(EOPNOTSUPP);
        }
        let mut map = bindings::iosys_map::default();
        // SAFETY: The reference keeps the dma-buf, whose lock is not held.
        to_result(unsafe { bindings::dma_buf_vmap_unlocked(self.as_ptr(), &mut map) })?;
        // INVARIANT: Just done.
        let mapping = Mapping { buf: self, map };
        if mapping.is_iomem() {
            return Err(EOPNOTSUPP);
        }
        Ok(mapping)
    }
}

impl Drop for BufRef {
    fn drop(&mut self) {
        // SAFETY: The reference is ours, and goes with this value.
        unsafe { bindings::dma_buf_put(self.as_ptr()) };
    }
}

extern "C" {
    fn riwarp_helper_dma_buf_is_writable(buf: *const bindings::dma_buf) -> bool;
}
