// SPDX-License-Identifier: GPL-2.0

//! The scatter/gather elements of a kernel consumer's work request.
//!
//! Context: any, hard interrupt included.
//!
//! C header: `include/rdma/ib_verbs.h`.

use crate::bindings;
use core::marker::PhantomData;

/// One piece of a buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IbSge {
    /// Its address.
    pub addr: u64,
    /// Its length.
    pub length: u32,
    /// The key of its region.
    pub lkey: u32,
}

/// The pieces of a work request.
///
/// The entries may be unaligned: iSER keeps its own in packed structures (`struct iser_rx_desc`).
///
/// # Invariants
///
/// At `next` are `left` entries that are valid and constant for `'a`.
#[derive(Clone)]
pub struct Sges<'a> {
    next: *const bindings::ib_sge,
    left: usize,
    _life: PhantomData<&'a bindings::ib_sge>,
}

impl Sges<'_> {
    /// # Safety
    ///
    /// `list` must point to `count` entries that are valid and constant for the lifetime, if
    /// `count` is above 0; it need not be aligned.
    #[inline]
    pub(super) unsafe fn new(list: *const bindings::ib_sge, count: kernel::ffi::c_int) -> Self {
        let count = usize::try_from(count).unwrap_or(0);
        // INVARIANT: The caller guarantees `count` entries at `list`.
        Self {
            next: list,
            left: if list.is_null() { 0 } else { count },
            _life: PhantomData,
        }
    }
}

impl Iterator for Sges<'_> {
    type Item = IbSge;

    #[inline]
    fn next(&mut self) -> Option<IbSge> {
        self.left = self.left.checked_sub(1)?;
        // SAFETY: `read_unaligned` requires a valid entry: by the type's invariant `next` points to
        // one, as `left` was not 0.
        let sge = unsafe { self.next.read_unaligned() };
        // SAFETY: `add` must stay inside the list or at its end: by the type's invariant there was
        // an entry at `next`. INVARIANT: One entry less is left behind it.
        self.next = unsafe { self.next.add(1) };
        Some(IbSge {
            addr: sge.addr,
            length: sge.length,
            lkey: sge.lkey,
        })
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Sges<'_> {}

#[kernel::prelude::kunit_tests(riwarp_sges)]
mod tests {
    use super::*;

    #[test]
    fn sge_list_has_given_number_of_elements() {
        let list = [
            bindings::ib_sge {
                addr: 1 << 40,
                length: 2,
                lkey: 3,
            },
            bindings::ib_sge::default(),
        ];
        // SAFETY: The list has more than one entry.
        let mut sges = unsafe { Sges::new(list.as_ptr(), 1) };
        assert_eq!(sges.len(), 1);
        let expected = IbSge {
            addr: 1 << 40,
            length: 2,
            lkey: 3,
        };
        assert_eq!(sges.next(), Some(expected));
        assert_eq!(sges.next(), None);
        for count in [0, -1, i32::MIN] {
            // SAFETY: No entry is read.
            let sges = unsafe { Sges::new(list.as_ptr(), count) };
            assert_eq!(sges.len(), 0);
        }
        // SAFETY: No entry is read, since the list is null.
        let sges = unsafe { Sges::new(core::ptr::null(), 2) };
        assert_eq!(sges.len(), 0);
    }

    #[test]
    fn sge_list_may_be_unaligned() {
        #[repr(C, packed)]
        struct Packed(u8, [bindings::ib_sge; 2]);

        let piece = |lkey| bindings::ib_sge {
            addr: 1 << 40,
            length: 2,
            lkey,
        };
        let packed = Packed(0, [piece(3), piece(4)]);
        // SAFETY: The list has two entries.
        let sges = unsafe { Sges::new((&raw const packed.1).cast(), 2) };
        assert!(sges.map(|sge| sge.lkey).eq([3, 4]));
        assert_eq!(packed.0, 0);
    }
}
