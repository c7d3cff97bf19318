// SPDX-License-Identifier: GPL-2.0

//! The driver's own part of a uverbs call: request and response.
//!
//! What enters: the octets that the provider library in user space put behind the common part of a
//! call. What leaves: those that it expects back, such as the mmap keys of the queues.
//!
//! Context: process; both directions may sleep on a page fault.
//!
//! C header: `include/rdma/ib_verbs.h`, `include/rdma/uverbs_ioctl.h`.

use super::mmap::Mappings;
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

/// The private channel of one uverbs call; empty if the caller is in the kernel.
pub struct Udata<'a> {
    raw: *mut bindings::ib_udata,
    _life: PhantomData<&'a mut bindings::ib_udata>,
    mappings: Option<&'a mut Mappings>,
}

impl<'a> Udata<'a> {
    /// The channel of a call; memory that is shared goes to `mappings`, if there are any.
    ///
    /// # Safety
    ///
    /// `raw` must be null or valid for `'a`, and `mappings` not outlive the user context of the
    /// call.
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

    /// The channel of a caller in the kernel, for tests.
    #[cfg(CONFIG_KUNIT = "y")]
    pub fn none() -> Self {
        // SAFETY: Null, and no mappings.
        unsafe { Self::new(core::ptr::null_mut(), None) }
    }

    /// Whether the caller is a process.
    pub fn is_user(&self) -> bool {
        !self.raw.is_null()
    }

    /// Copies the request.
    ///
    /// Missing octets at the end are zero; octets beyond must be zero.
    ///
    /// # Errors
    ///
    /// * `EINVAL` if there is no process or it sent fewer than `at_least` octets.
    /// * `EOPNOTSUPP` if there is more than we know of.
    /// * `EFAULT` if it cannot be read.
    pub fn copy_in<R: FromBytes>(&mut self, at_least: usize) -> Result<R> {
        if self.raw.is_null() {
            return Err(EINVAL);
        }
        let mut request = core::mem::MaybeUninit::<R>::uninit();
        let size = core::mem::size_of::<R>();
        // SAFETY: `raw` is valid; the target is a local of that size, which is written in full on
        // success.
        to_result(unsafe {
            bindings::_ib_copy_validate_udata_in(
                self.raw,
                request.as_mut_ptr().cast(),
                size,
                at_least.min(size),
            )
        })?;
        // SAFETY: All octets are written, and any octets are a value by `FromBytes`.
        Ok(unsafe { request.assume_init() })
    }

    /// Sends the response; cut if the process has less room, zeroes behind it if it has more.
    ///
    /// # Errors
    ///
    /// * `EINVAL` if there is no process.
    /// * `EFAULT` if it cannot be written.
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

    /// Sends an answer to an address that the process named in its request, for commands whose
    /// response has no room for one.
    ///
    /// # Errors
    ///
    /// * `EINVAL` if there is no process.
    /// * `EFAULT` if it cannot be written.
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
    /// Ends by itself when the object that is being made is destroyed, or if making it fails.
    ///
    /// # Errors
    ///
    /// * `EINVAL` if there is no process, or this call makes no object.
    /// * `ENOMEM` if memory is short.
    pub fn share(&mut self, memory: Arc<SharedMem>) -> Result<u64> {
        if self.raw.is_null() {
            return Err(EINVAL);
        }
        let mappings = self.mappings.as_deref_mut().ok_or(EINVAL)?;
        // SAFETY: `raw` is the channel of a uverbs call.
        let context = unsafe { riwarp_helper_rdma_udata_to_ucontext(self.raw) };
        let context = NonNull::new(context).ok_or(EINVAL)?;
        // SAFETY: `insert` wants a context that is valid and outlives the mappings: that of a call
        // is valid during it, and the caller of `new` says that its mappings end before its
        // context.
        unsafe { mappings.insert(context, memory) }
    }
}

extern "C" {
    fn riwarp_helper_rdma_udata_to_ucontext(
        udata: *mut bindings::ib_udata,
    ) -> *mut bindings::ib_ucontext;
}
