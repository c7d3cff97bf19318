// SPDX-License-Identifier: GPL-2.0

//! Memory behind a dma-buf: what another driver (a graphics card's, a camera's, `udmabuf`) shares.
//!
//! What enters: a file descriptor of the current process. What leaves: a [`DmaBuf`], which stays
//! where it is until it is dropped, and from it a [`PageList`] of one piece.
//!
//! The copies are made by the processor, so the memory is asked for as the processor's
//! (`dma_buf_vmap()`), not as a device's: the pages of a scatter list, which are the exporter's
//! secret, are never looked at. Memory that the exporter cannot give so, such as a card's own
//! behind a bus, is refused, and so are exporters without vmap, among them those that take memory
//! back (VFIO).
//!
//! A mapping alone does not keep memory in its place: many exporters (radeon and nouveau among
//! them) pin it in `attach` only, others (amdgpu, xe) offer `pin`. So the device is attached for as
//! long as the mapping lasts, and the dma-buf is pinned if its exporter offers that. An exporter
//! without either, such as udmabuf, has memory that stays as long as the dma-buf. The attachment
//! has no `invalidate_mappings`: by that it says that it holds on to what it has pinned. It is
//! never mapped for DMA, which a device in software does not do.
//!
//! The whole time is one access of the processor (`dma_buf_begin_cpu_access()` to `..._end_...`),
//! since no copy in softirq could begin one.
//!
//! Context: process; all of it may sleep.
//!
//! C header: `include/linux/dma-buf.h`.

use super::mem_map::MemoryOwner;
use super::mem_map::PageList;
use crate::bindings;
use core::ptr;
use core::ptr::addr_of_mut;
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
    /// Gives the processor access to the dma-buf behind a file descriptor of the current process,
    /// to which `device` is attached meanwhile. Afterwards the descriptor may be closed.
    ///
    /// # Errors
    ///
    /// * `EBADF` if there is no such descriptor, `EINVAL` if it is none of a dma-buf.
    /// * `EOPNOTSUPP` if the processor cannot have access to the memory as to its own.
    /// * What the exporter says.
    ///
    /// # Safety
    ///
    /// `device` must be registered for the time of the call.
    pub(crate) unsafe fn map(fd: c_int, device: NonNull<bindings::ib_device>) -> Result<Self> {
        // SAFETY: `IbDeviceRef::new` wants a device that is registered for the time of the call, as
        // this function does of its caller.
        let device = unsafe { IbDeviceRef::new(device) };
        let mapping = BufRef::of(fd)?.attach(device)?.pin()?.map()?;
        let buf = mapping.buf();
        let direction = if buf.is_writable() {
            bindings::dma_data_direction::DMA_BIDIRECTIONAL
        } else {
            bindings::dma_data_direction::DMA_FROM_DEVICE
        };
        // SAFETY: The reference keeps the dma-buf, whose lock is not held. Waits for devices that
        // are using the memory, and for moves that pinning has begun.
        to_result(unsafe { bindings::dma_buf_begin_cpu_access(buf.as_ptr(), direction) })?;
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
        if len == 0 || end > self.mapping.buf().len() {
            return Err(EINVAL);
        }
        let mut list = PageList::with_capacity(1, self.mapping.buf().is_writable())?;
        // SAFETY: `offset` is inside of the dma-buf, all of which is mapped.
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
        // SAFETY: By the type's invariant the access has begun, and nobody makes use of it any
        // more.
        let ended = unsafe {
            bindings::dma_buf_end_cpu_access(self.mapping.buf().as_ptr(), self.direction)
        };
        // What the exporter says to the end of an access changes nothing here.
        let _ = ended;
    }
}

/// A dma-buf in the kernel's virtual memory, all of it.
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
        let locked = self.pinned.0.buf.lock();
        // SAFETY: `dma_buf_vunmap()` wants a mapping of this dma-buf that is given back once, and
        // the lock held: by the type's invariant `map` is one, which goes with this value, and
        // `locked` holds the lock.
        unsafe { bindings::dma_buf_vunmap(locked.buf.as_ptr(), &mut self.map) };
    }
}

/// An attachment whose memory stays where it is.
///
/// # Invariants
///
/// `dma_buf_pin()` of it has succeeded.
struct PinnedAttachment(Attachment);

impl PinnedAttachment {
    /// Maps the memory.
    fn map(self) -> Result<Mapping> {
        let map = self.0.buf.lock().vmap()?;
        // INVARIANT: Just done.
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
        // SAFETY: `dma_buf_unpin()` wants an attachment that is pinned, and the lock held: by the
        // type's invariant it is pinned, and `_locked` holds the lock.
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
    /// Has the memory stay where it is.
    fn pin(self) -> Result<PinnedAttachment> {
        let locked = self.buf.lock();
        // SAFETY: `dma_buf_pin()` wants an attachment with operations of the importer, and the lock
        // held: by the type's invariant it is one, and `locked` holds the lock. It does nothing
        // where the exporter offers no pin.
        let pinned = to_result(unsafe { bindings::dma_buf_pin(self.raw.as_ptr()) });
        drop(locked);
        pinned?;
        // INVARIANT: Just done.
        Ok(PinnedAttachment(self))
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        // SAFETY: `dma_buf_detach()` wants an attachment of this dma-buf that is given back once,
        // and the lock not held, for it takes it: by the type's invariant `raw` is such an
        // attachment, which goes with this value, and this function has not taken the lock.
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
        // SAFETY: `get_device()` wants the memory of a device: it is there while the device is
        // registered, as the caller says that it is.
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
        // SAFETY: The reference is ours, and goes with this value.
        unsafe { riwarp_helper_ib_device_put_device(self.0.as_ptr()) };
    }
}

/// What the exporter is told of us: no page without a `struct page`, and nothing that tells of
/// moves.
static IMPORTER: bindings::dma_buf_attach_ops = bindings::dma_buf_attach_ops {
    allow_peer2peer: false,
    invalidate_mappings: None,
};

/// The reservation lock of a dma-buf, held.
struct ReservationGuard<'a> {
    buf: &'a BufRef,
}

impl ReservationGuard<'_> {
    /// `dma_buf_vmap()`, but without its warning where the exporter fails: any process may ask for
    /// such a mapping.
    ///
    /// # Errors
    ///
    /// What the exporter says; `ENOMEM` if it maps nothing.
    fn vmap(&self) -> Result<bindings::iosys_map> {
        let buf = self.buf.as_ptr();
        let mut map = bindings::iosys_map::default();
        // SAFETY: The reference keeps the dma-buf, and the lock protects the count.
        if unsafe { (*buf).vmapping_counter } > 0 {
            // SAFETY: The lock is held. It fails only where it calls the exporter, which it does
            // not.
            to_result(unsafe { bindings::dma_buf_vmap(buf, &mut map) })?;
            return Ok(map);
        }
        // SAFETY: As `dma_buf_vmap()` calls it: there is no mapping, and the lock is held. `attach`
        // has seen that the exporter has the operation.
        to_result(unsafe { riwarp_helper_dma_buf_vmap(buf, &mut map) })?;
        // SAFETY: Both members are addresses.
        if unsafe { map.__bindgen_anon_1.vaddr }.is_null() {
            return Err(ENOMEM);
        }
        // SAFETY: The lock protects both; nobody has a mapping, so they are empty. The core does
        // the same.
        unsafe {
            (*buf).vmap_ptr = map;
            (*buf).vmapping_counter = 1;
        }
        Ok(map)
    }
}

impl Drop for ReservationGuard<'_> {
    fn drop(&mut self) {
        // SAFETY: This value stands for the lock, which the current thread has taken.
        unsafe { riwarp_helper_dma_buf_unlock(self.buf.as_ptr()) };
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
        // SAFETY: A field of the dma-buf, which the reference keeps, that never changes.
        unsafe { (*self.as_ptr()).size }
    }

    /// Takes the reservation lock.
    fn lock(&self) -> ReservationGuard<'_> {
        // SAFETY: The reference keeps the dma-buf; nobody here holds two of these locks.
        unsafe { riwarp_helper_dma_buf_lock(self.as_ptr()) };
        ReservationGuard { buf: self }
    }

    /// Attaches a device.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP` if the exporter maps nothing for the processor; what it says.
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
        // INVARIANT: Just done.
        Ok(Attachment {
            raw: NonNull::new(raw).ok_or(EINVAL)?,
            buf: self,
            _device: device,
        })
    }
}

impl Drop for BufRef {
    fn drop(&mut self) {
        // SAFETY: The reference is ours, and goes with this value.
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
