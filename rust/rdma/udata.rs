// SPDX-License-Identifier: GPL-2.0

//! The driver's own part of a uverbs call: the request of the provider library in user space,
//! behind the common part of the call, and the response, such as the mmap keys of the queues.
//!
//! Context: process; both directions may sleep on a page fault.
//!
//! C header: `include/rdma/ib_verbs.h`, `include/rdma/uverbs_ioctl.h`.

use super::mmap::Mappings;
use super::types::Owner;
use crate::bindings;
use crate::mm::shared_ring::SharedMem;
use core::marker::PhantomData;
use core::ptr::NonNull;
use kernel::error::to_result;
use kernel::prelude::*;
use kernel::sync::Arc;
use kernel::uaccess::UserPtr;
use kernel::uaccess::UserSlice;
use zerocopy::Immutable;

/// The driver's part of one uverbs call; empty if the caller is in the kernel.
pub struct Udata<'a> {
    raw: *mut bindings::ib_udata,
    _life: PhantomData<&'a mut bindings::ib_udata>,
    mappings: Option<&'a mut Mappings>,
}

impl<'a> Udata<'a> {
    /// Returns the channel of a call; `mappings`, if given, records the shared memory.
    ///
    /// # Safety
    ///
    /// `raw` must be null or valid for `'a`, and the user context of the call must outlive
    /// `mappings`.
    pub(super) unsafe fn new(
        raw: *mut bindings::ib_udata,
        mappings: Option<&'a mut Mappings>,
    ) -> Self {
        Self {
            raw,
            _life: PhantomData,
            mappings,
        }
    }

    /// Returns the channel of a caller in the kernel, for tests.
    #[cfg(CONFIG_KUNIT = "y")]
    pub fn none() -> Self {
        // SAFETY: Null, and no mappings.
        unsafe { Self::new(core::ptr::null_mut(), None) }
    }

    /// Returns who calls.
    pub fn owner(&self) -> Owner {
        if self.raw.is_null() {
            Owner::Kernel
        } else {
            Owner::User
        }
    }

    /// Copies the request.
    ///
    /// Missing octets at the end read as zero; excess octets must be zero.
    ///
    /// # Errors
    ///
    /// * `EINVAL` if the caller is no process or sent fewer than `at_least` octets.
    /// * `EOPNOTSUPP` if the excess octets are not zero.
    /// * `EFAULT` if the request cannot be read.
    pub fn copy_in<R: FromBytes>(&mut self, at_least: usize) -> Result<R> {
        if self.raw.is_null() {
            return Err(EINVAL);
        }
        let mut request = core::mem::MaybeUninit::<R>::uninit();
        let size = core::mem::size_of::<R>();
        // SAFETY: `raw` is valid; the target is a local of that size, and success means that it was
        // written completely.
        to_result(unsafe {
            bindings::_ib_copy_validate_udata_in(
                self.raw,
                request.as_mut_ptr().cast(),
                size,
                at_least.min(size),
            )
        })?;
        // SAFETY: All octets are written, and by `FromBytes` any octets are a valid value.
        Ok(unsafe { request.assume_init() })
    }

    /// Sends the response, cut to the buffer of the process or followed by zeroes.
    ///
    /// # Errors
    ///
    /// * `EINVAL` if the caller is no process.
    /// * `EFAULT` if the address cannot be written.
    pub fn respond<R: IntoBytes + Immutable>(&mut self, response: &R) -> Result {
        if self.raw.is_null() {
            return Err(EINVAL);
        }
        let bytes = response.as_bytes();
        // SAFETY: `raw` is valid; the source has that length.
        to_result(unsafe {
            bindings::_ib_respond_udata(self.raw, bytes.as_ptr().cast(), bytes.len())
        })
    }

    /// Writes an answer to an address that the process named in its request, for commands whose
    /// response has no field for it.
    ///
    /// # Errors
    ///
    /// * `EINVAL` if the caller is no process.
    /// * `EFAULT` if the address cannot be written.
    pub fn answer_at<R: IntoBytes + Immutable>(&mut self, address: u64, answer: &R) -> Result {
        if self.raw.is_null() {
            return Err(EINVAL);
        }
        let bytes = answer.as_bytes();
        let place = UserPtr::from_addr(usize::try_from(address)?);
        UserSlice::new(place, bytes.len())
            .writer()
            .write_slice(bytes)
    }

    /// Lets the process map `memory` and returns the offset for its `mmap()`.
    ///
    /// The key is withdrawn when the object is destroyed or its creation fails.
    ///
    /// # Errors
    ///
    /// * `EINVAL` if the caller is no process, or this call creates no object.
    /// * `ENOMEM` if memory is short.
    pub fn share(&mut self, memory: Arc<SharedMem>) -> Result<u64> {
        if self.raw.is_null() {
            return Err(EINVAL);
        }
        let mappings = self.mappings.as_deref_mut().ok_or(EINVAL)?;
        // SAFETY: `raw` is the channel of a uverbs call.
        let context = unsafe { context_of(self.raw) }.ok_or(EINVAL)?;
        // SAFETY: `insert` requires a context that is valid and outlives the mappings: the context
        // of a call is valid during it, and the caller of `new` guarantees that it outlives the
        // mappings.
        unsafe { mappings.insert(context, memory) }
    }
}

/// Returns the context in which a process makes a call.
///
/// # Safety
///
/// `udata` must be the channel of a uverbs call.
pub(super) unsafe fn context_of(
    udata: *mut bindings::ib_udata,
) -> Option<NonNull<bindings::ib_ucontext>> {
    // SAFETY: The helper requires the channel of a uverbs call, which the caller guarantees.
    NonNull::new(unsafe { riwarp_helper_rdma_udata_to_ucontext(udata) })
}

extern "C" {
    fn riwarp_helper_rdma_udata_to_ucontext(
        udata: *mut bindings::ib_udata,
    ) -> *mut bindings::ib_ucontext;
}
