// SPDX-License-Identifier: GPL-2.0

//! Counts of a port as files in sysfs, under
//! `/sys/class/infiniband/<device>/ports/<port>/counters/`, where collectors of metrics look for
//! those of InfiniBand adapters.
//!
//! A driver lists them in [`Driver::PORT_COUNTERS`](super::ops::Driver::PORT_COUNTERS); each is a
//! read-only file with one number.
//!
//! Context: process.
//!
//! C headers: `include/rdma/ib_sysfs.h`, `include/linux/sysfs.h`.

use super::device::device_data;
use super::settings::emit;
use crate::bindings;
use core::mem::offset_of;
use core::ptr::addr_of_mut;
use kernel::ffi::c_char;
use kernel::prelude::*;
use kernel::sync::ArcBorrow;

/// A file of a port in sysfs.
pub struct PortCounter<D> {
    /// Its name.
    pub name: &'static CStr,
    /// Returns the count, in the unit that goes with the name.
    pub read: for<'a> fn(ArcBorrow<'a, D>) -> u64,
}

/// The counters of a driver's ports, in the form of sysfs.
///
/// # Invariants
///
/// `groups` points to `_group` and ends in null; `_group.attrs` points to `_pointers`, which end in
/// null and point to the heads of `_files`.
pub(super) struct PortCounterGroup<D: 'static> {
    groups: KVec<*const bindings::attribute_group>,
    _group: KBox<bindings::attribute_group>,
    _pointers: KVec<*mut bindings::attribute>,
    _files: KVec<CounterFile<D>>,
}

// SAFETY: This value owns what its pointers lead to, which is constant once built and belongs to no
// thread.
unsafe impl<D: 'static> Send for PortCounterGroup<D> {}
// SAFETY: Through a shared reference it is only read.
unsafe impl<D: 'static> Sync for PortCounterGroup<D> {}

/// # Invariants
///
/// `head` is at offset 0.
#[repr(C)]
struct CounterFile<D: 'static> {
    head: bindings::ib_port_attribute,
    counter: &'static PortCounter<D>,
}

impl<D> PortCounterGroup<D> {
    pub(super) fn try_new(counters: &'static [PortCounter<D>]) -> Result<Self> {
        const { assert!(offset_of!(CounterFile<D>, head) == 0) };

        let mut files = KVec::with_capacity(counters.len(), GFP_KERNEL)?;
        let mut pointers = KVec::with_capacity(counters.len() + 1, GFP_KERNEL)?;
        for counter in counters {
            let head = bindings::ib_port_attribute::default();
            files.push(CounterFile { head, counter }, GFP_KERNEL)?;
        }
        // The files do not move from here on.
        for file in files.iter_mut() {
            let head = addr_of_mut!(file.head);
            // SAFETY: This function owns the attribute, which is not in use yet; the name is
            // static.
            let attr = unsafe {
                riwarp_helper_ib_port_attribute_init(
                    head,
                    file.counter.name.as_char_ptr(),
                    Some(show::<D>),
                )
            };
            pointers.push(attr, GFP_KERNEL)?;
        }
        pointers.push(core::ptr::null_mut(), GFP_KERNEL)?;
        let mut group = KBox::new(bindings::attribute_group::default(), GFP_KERNEL)?;
        group.name = c"counters".as_char_ptr();
        // SAFETY: This function owns the group; the list lives as long as the group.
        unsafe { riwarp_helper_attribute_group_set(&mut *group, pointers.as_mut_ptr()) };
        let mut groups = KVec::with_capacity(2, GFP_KERNEL)?;
        groups.push(&raw const *group, GFP_KERNEL)?;
        groups.push(core::ptr::null(), GFP_KERNEL)?;
        // INVARIANT: As just built.
        Ok(Self {
            groups,
            _group: group,
            _pointers: pointers,
            _files: files,
        })
    }

    /// Returns the list of groups, which is only read through the pointer.
    pub(super) fn as_raw(&self) -> *mut *const bindings::attribute_group {
        self.groups.as_ptr().cast_mut()
    }
}

/// `ib_port_attribute.show`.
///
/// # Safety
///
/// As `ib_core` calls it: `attr` is the head of a `CounterFile<D>`, `dev` a registered device whose
/// object is a `D`, `buffer` a page.
unsafe extern "C" fn show<D: 'static>(
    dev: *mut bindings::ib_device,
    _port: u32,
    attr: *mut bindings::ib_port_attribute,
    buffer: *mut c_char,
) -> isize {
    // SAFETY: A field of the `CounterFile` whose head `attr` is, by this function's `# Safety`;
    // `head` is at offset 0.
    let counter = unsafe { (*attr.cast::<CounterFile<D>>()).counter };
    // SAFETY: `device_data` requires a device of `D` that stays registered: it is one, by this
    // function's `# Safety`, and unregistering waits in sysfs for this call.
    let dev = unsafe { device_data::<D>(dev) };
    // SAFETY: `emit` requires a page that nothing else uses: sysfs provides one for this call, by
    // this function's `# Safety`.
    unsafe { emit(buffer, |out| write!(out, "{}", (counter.read)(dev))) }
}

type ShowCounterFn = unsafe extern "C" fn(
    *mut bindings::ib_device,
    u32,
    *mut bindings::ib_port_attribute,
    *mut c_char,
) -> isize;

extern "C" {
    fn riwarp_helper_attribute_group_set(
        group: *mut bindings::attribute_group,
        attrs: *mut *mut bindings::attribute,
    );
    fn riwarp_helper_ib_port_attribute_init(
        attr: *mut bindings::ib_port_attribute,
        name: *const c_char,
        show: Option<ShowCounterFn>,
    ) -> *mut bindings::attribute;
}
