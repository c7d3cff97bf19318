// SPDX-License-Identifier: GPL-2.0

//! Memory behind a dma-buf, which another driver (a graphics card's, a camera's, `udmabuf`) shares.
//!
//! Maps the dma-buf of a file descriptor of the current process as a [`DmaBuf`], whose memory stays
//! in its place until it is dropped, and makes it a [`PageList`] of one piece.
//!
//! The processor makes the copies, so the driver requests the memory for the processor
//! (`dma_buf_vmap()`), not for a device, and never reads the pages of a scatter list, which are
//! private to the exporter. It refuses memory that the exporter cannot provide so, such as a card's
//! own behind a bus, and exporters without vmap, among them those that revoke memory (VFIO).
//!
//! A mapping alone does not keep memory in its place: many exporters (radeon and nouveau among
//! them) pin it in `attach` only, others (amdgpu, xe) offer `pin`. So the device is attached as
//! long as the mapping exists, and the dma-buf is pinned if its exporter offers that. The memory of
//! an exporter without either, such as udmabuf, stays as long as the dma-buf. The attachment has no
//! `invalidate_mappings`, which declares that it keeps what it has pinned. It is never mapped for
//! DMA, which a software device does not do.
//!
//! The lifetime of the mapping is one CPU access (`dma_buf_begin_cpu_access()` to `..._end_...`),
//! because a copy in softirq cannot begin one.
//!
//! Context: process; may sleep.
//!
//! C header: `include/linux/dma-buf.h`.

use super::mem_map::MemoryOwner;
use crate::bindings;
use crate::compat::EOPNOTSUPP;
use crate::mm::page_list::PageList;
use core::ptr;
use core::ptr::addr_of_mut;
use core::ptr::NonNull;
use kernel::error::from_err_ptr;
use kernel::error::to_result;
use kernel::ffi::c_int;
use kernel::prelude::*;

/// A dma-buf that the processor can access.
///
/// # Invariants
///
/// A CPU access in `direction` has begun.
pub struct DmaBuf {
    mapping: Mapping,
    direction: bindings::dma_data_direction,
}

// SAFETY: Neither reference nor mapping belongs to a thread.
unsafe impl Send for DmaBuf {}
// SAFETY: Through a shared reference it is only read, and it never changes.
unsafe impl Sync for DmaBuf {}

impl DmaBuf {
    /// Maps the dma-buf of a file descriptor of the current process for the processor, and attaches
    /// `device` to it meanwhile. The descriptor may be closed afterwards.
    ///
    /// # Errors
    ///
    /// * `EBADF` if the descriptor is not open, `EINVAL` if it is no dma-buf.
    /// * `EOPNOTSUPP` if the processor cannot access the memory like its own.
    /// * The error of the exporter.
    ///
    /// # Safety
    ///
    /// `device` must be registered during the call.
    pub(crate) unsafe fn map(fd: c_int, device: NonNull<bindings::ib_device>) -> Result<Self> {
        // SAFETY: `IbDeviceRef::new` requires a device that is registered during the call, which
        // the caller guarantees.
        let device = unsafe { IbDeviceRef::new(device) };
        let mapping = BufRef::of(fd)?.attach(device)?.pin()?.map()?;
        let buf = mapping.buf();
        let direction = if buf.is_writable() {
            bindings::dma_data_direction_DMA_BIDIRECTIONAL
        } else {
            bindings::dma_data_direction_DMA_FROM_DEVICE
        };
        // SAFETY: The reference keeps the dma-buf, whose lock is not held. The call waits for
        // devices that use the memory, and for moves that pinning has begun.
        to_result(unsafe { bindings::dma_buf_begin_cpu_access(buf.as_ptr(), direction) })?;
        // INVARIANT: The call above has succeeded.
        Ok(Self { mapping, direction })
    }

    /// Turns `len` octets at `offset` into a list for the data path, which is writable if the
    /// descriptor was open for writing.
    ///
    /// # Errors
    ///
    /// `EINVAL` if `len` is 0 or they are not all inside, `ENOMEM`.
    pub fn into_pages(self, offset: u64, len: u64) -> Result<PageList<MemoryOwner>> {
        let (offset, len) = (usize::try_from(offset)?, usize::try_from(len)?);
        let end = offset.checked_add(len).ok_or(EINVAL)?;
        if len == 0 || end > self.mapping.buf().len() {
            return Err(EINVAL);
        }
        let mut list = PageList::with_capacity(1, self.mapping.buf().is_writable())?;
        // SAFETY: `offset` is inside the dma-buf, which is mapped completely.
        let start = unsafe { self.mapping.start().add(offset) };
        // SAFETY: The mapping is contiguous, `len` octets from `offset` on are inside, and it stays
        // as long as this value, which the list will own.
        unsafe { list.push(start, len)? };
        list.own(MemoryOwner::DmaBuf(self));
        Ok(list)
    }
}

impl Drop for DmaBuf {
    fn drop(&mut self) {
        // SAFETY: By the type's invariant the access has begun, and nothing uses it any more.
        let ended = unsafe {
            bindings::dma_buf_end_cpu_access(self.mapping.buf().as_ptr(), self.direction)
        };
        // An error of the exporter at the end of an access changes nothing here.
        let _ = ended;
    }
}

/// A dma-buf, mapped completely into the kernel's virtual memory.
///
/// # Invariants
///
/// `map` is what one `dma_buf_vmap()` of the dma-buf returned.
struct Mapping {
    pinned: PinnedAttachment,
    map: bindings::iosys_map,
}

impl Mapping {
    fn buf(&self) -> &BufRef {
        &self.pinned.0.buf
    }

    /// Returns whether it is device memory behind a bus.
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
        let locked = self.pinned.0.buf.lock();
        // SAFETY: `dma_buf_vunmap()` requires a mapping of this dma-buf that is unmapped once, and
        // the lock: by the type's invariant `map` is one, which ends with this value, and `locked`
        // holds the lock.
        unsafe { bindings::dma_buf_vunmap(locked.buf.as_ptr(), &mut self.map) };
    }
}

/// An attachment whose memory stays in its place.
///
/// # Invariants
///
/// `dma_buf_pin()` of it has succeeded.
struct PinnedAttachment(Attachment);

impl PinnedAttachment {
    /// Maps the memory.
    fn map(self) -> Result<Mapping> {
        let map = self.0.buf.lock().vmap()?;
        // INVARIANT: The call above has succeeded.
        let mapping = Mapping { pinned: self, map };
        if mapping.is_iomem() {
            return Err(EOPNOTSUPP);
        }
        Ok(mapping)
    }
}

impl Drop for PinnedAttachment {
    fn drop(&mut self) {
        let _locked = self.0.buf.lock();
        // SAFETY: `dma_buf_unpin()` requires a pinned attachment and the lock: by the type's
        // invariant it is pinned, and `_locked` holds the lock.
        unsafe { bindings::dma_buf_unpin(self.0.raw.as_ptr()) };
    }
}

/// A device that is attached to a dma-buf.
///
/// # Invariants
///
/// `raw` is what one `dma_buf_dynamic_attach()` of `buf` returned, with a device that this value
/// keeps.
struct Attachment {
    raw: NonNull<bindings::dma_buf_attachment>,
    buf: BufRef,
    _device: IbDeviceRef,
}

impl Attachment {
    /// Pins the memory in its place.
    fn pin(self) -> Result<PinnedAttachment> {
        let locked = self.buf.lock();
        // SAFETY: `dma_buf_pin()` requires an attachment with operations of the importer, and the
        // lock: by the type's invariant it is one, and `locked` holds the lock. The call does
        // nothing if the exporter offers no pin.
        let pinned = to_result(unsafe { bindings::dma_buf_pin(self.raw.as_ptr()) });
        drop(locked);
        pinned?;
        // INVARIANT: The call above has succeeded.
        Ok(PinnedAttachment(self))
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        // SAFETY: `dma_buf_detach()` requires an attachment of this dma-buf that is detached once,
        // and takes the lock itself: by the type's invariant `raw` is such an attachment, which
        // ends with this value, and this function does not hold the lock.
        unsafe { bindings::dma_buf_detach(self.buf.as_ptr(), self.raw.as_ptr()) };
    }
}

/// A counted reference to the memory of a device of `ib_core`.
struct IbDeviceRef(NonNull<bindings::ib_device>);

impl IbDeviceRef {
    /// # Safety
    ///
    /// As for [`DmaBuf::map`].
    unsafe fn new(device: NonNull<bindings::ib_device>) -> Self {
        // SAFETY: `get_device()` requires the memory of a device, which exists while the device is
        // registered, as the caller guarantees.
        unsafe { riwarp_helper_ib_device_get_device(device.as_ptr()) };
        Self(device)
    }

    fn device(&self) -> *mut bindings::device {
        // SAFETY: The reference keeps the memory. Both members of the union begin with the device.
        unsafe { addr_of_mut!((*self.0.as_ptr()).__bindgen_anon_1).cast() }
    }
}

impl Drop for IbDeviceRef {
    fn drop(&mut self) {
        // SAFETY: This value owns the reference, and ends here.
        unsafe { riwarp_helper_ib_device_put_device(self.0.as_ptr()) };
    }
}

/// The importer's operations: no memory without a `struct page`, and no callback for moves.
static IMPORTER: bindings::dma_buf_attach_ops = bindings::dma_buf_attach_ops {
    allow_peer2peer: false,
    invalidate_mappings: None,
};

/// The held reservation lock of a dma-buf.
struct ReservationGuard<'a> {
    buf: &'a BufRef,
}

impl ReservationGuard<'_> {
    /// Calls `dma_buf_vmap()` without its warning when the exporter fails: any process may request
    /// such a mapping.
    ///
    /// # Errors
    ///
    /// The error of the exporter; `ENOMEM` if it maps nothing.
    fn vmap(&self) -> Result<bindings::iosys_map> {
        let buf = self.buf.as_ptr();
        let mut map = bindings::iosys_map::default();
        // SAFETY: The reference keeps the dma-buf, and the lock protects the count.
        if unsafe { (*buf).vmapping_counter } > 0 {
            // SAFETY: The lock is held. As a mapping exists, the call does not reach the exporter
            // and cannot fail.
            to_result(unsafe { bindings::dma_buf_vmap(buf, &mut map) })?;
            return Ok(map);
        }
        // SAFETY: As `dma_buf_vmap()` calls it: no mapping exists, and the lock is held. `attach`
        // has checked that the exporter has the operation.
        to_result(unsafe { riwarp_helper_dma_buf_vmap(buf, &mut map) })?;
        // SAFETY: Both members are addresses.
        if unsafe { map.__bindgen_anon_1.vaddr }.is_null() {
            return Err(ENOMEM);
        }
        // SAFETY: The lock protects both fields; no mapping exists, so they are empty.
        // `dma_buf_vmap()` does the same.
        unsafe {
            (*buf).vmap_ptr = map;
            (*buf).vmapping_counter = 1;
        }
        Ok(map)
    }
}

impl Drop for ReservationGuard<'_> {
    fn drop(&mut self) {
        // SAFETY: This value represents the lock, which the current thread has taken.
        unsafe { riwarp_helper_dma_buf_unlock(self.buf.as_ptr()) };
    }
}

/// A counted reference to a dma-buf.
struct BufRef(NonNull<bindings::dma_buf>);

impl BufRef {
    /// Returns the dma-buf of a file descriptor of the current process.
    fn of(fd: c_int) -> Result<Self> {
        // SAFETY: The function accepts any number.
        let buf = from_err_ptr(unsafe { bindings::dma_buf_get(fd) })?;
        NonNull::new(buf).map(Self).ok_or(EBADF)
    }

    fn as_ptr(&self) -> *mut bindings::dma_buf {
        self.0.as_ptr()
    }

    /// Returns whether the descriptor was open for writing.
    fn is_writable(&self) -> bool {
        // SAFETY: The reference keeps the dma-buf.
        unsafe { riwarp_helper_dma_buf_is_writable(self.as_ptr()) }
    }

    /// Returns the length in octets.
    fn len(&self) -> usize {
        // SAFETY: A field of the dma-buf, which the reference keeps, that never changes.
        unsafe { (*self.as_ptr()).size }
    }

    /// Takes the reservation lock.
    fn lock(&self) -> ReservationGuard<'_> {
        // SAFETY: The reference keeps the dma-buf; no code here holds two of these locks.
        unsafe { riwarp_helper_dma_buf_lock(self.as_ptr()) };
        ReservationGuard { buf: self }
    }

    /// Attaches a device.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP` if the exporter has no vmap; the error of the exporter.
    fn attach(self, device: IbDeviceRef) -> Result<Attachment> {
        // SAFETY: A field of the dma-buf, which the reference keeps, that never changes.
        let ops = unsafe { (*self.as_ptr()).ops };
        // SAFETY: Every dma-buf has operations, which never change and stay as long as it does.
        if unsafe { (*ops).vmap }.is_none() {
            return Err(EOPNOTSUPP);
        }
        // SAFETY: Neither lock is held, and the references that go into the attachment keep dma-buf
        // and device.
        let raw = from_err_ptr(unsafe {
            bindings::dma_buf_dynamic_attach(
                self.as_ptr(),
                device.device(),
                &IMPORTER,
                ptr::null_mut(),
            )
        })?;
        // INVARIANT: The call above has succeeded.
        Ok(Attachment {
            raw: NonNull::new(raw).ok_or(EINVAL)?,
            buf: self,
            _device: device,
        })
    }
}

impl Drop for BufRef {
    fn drop(&mut self) {
        // SAFETY: This value owns the reference, and ends here.
        unsafe { bindings::dma_buf_put(self.as_ptr()) };
    }
}

extern "C" {
    fn riwarp_helper_ib_device_get_device(device: *mut bindings::ib_device);
    fn riwarp_helper_ib_device_put_device(device: *mut bindings::ib_device);
    fn riwarp_helper_dma_buf_is_writable(buf: *const bindings::dma_buf) -> bool;
    fn riwarp_helper_dma_buf_lock(buf: *mut bindings::dma_buf);
    fn riwarp_helper_dma_buf_unlock(buf: *mut bindings::dma_buf);
    fn riwarp_helper_dma_buf_vmap(
        buf: *mut bindings::dma_buf,
        map: *mut bindings::iosys_map,
    ) -> c_int;
}
