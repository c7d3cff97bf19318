// SPDX-License-Identifier: GPL-2.0

//! Settings of a device as files in sysfs, under `/sys/class/infiniband/<device>/`.
//!
//! A driver lists them in [`Driver::SETTINGS`](super::ops::Driver::SETTINGS); each is a file with
//! one value.
//!
//! Context: process, may sleep. A callback must not unregister the device: unregistering waits for
//! the callback.
//!
//! C header: `include/linux/sysfs.h`.

use super::device::device_data;
use crate::bindings;
use core::fmt;
use core::mem::offset_of;
use core::ptr::addr_of_mut;
use kernel::error::from_result;
use kernel::ffi::c_char;
use kernel::page::PAGE_SIZE;
use kernel::prelude::*;
use kernel::str::Formatter;
use kernel::sync::ArcBorrow;

extern "C" {
    fn riwarp_helper_is_trusted() -> bool;
    fn riwarp_helper_current_is_exiting() -> bool;
    fn riwarp_helper_current_comm(comm: *mut [u8; 16]);
}

/// Returns the name of the current task, filled up with zeroes. Context: process.
pub fn current_comm() -> [u8; 16] {
    let mut comm = [0; 16];
    // SAFETY: The helper writes `TASK_COMM_LEN` octets, which is 16.
    unsafe { riwarp_helper_current_comm(&raw mut comm) };
    comm
}

/// Returns whether the current task is ending. Context: process.
pub fn current_is_exiting() -> bool {
    // SAFETY: The helper has no requirements on the thread.
    unsafe { riwarp_helper_current_is_exiting() }
}

/// Returns whether the caller may administer the network of the host (`CAP_NET_ADMIN` in the
/// initial user namespace); a refusal is audited. For settings that need more than the file's mode.
pub fn caller_is_admin() -> bool {
    // SAFETY: The helper has no requirements on the thread.
    unsafe { riwarp_helper_is_trusted() }
}

/// Writes the value of a setting; the caller adds a newline.
pub type Show<D> = for<'a> fn(ArcBorrow<'a, D>, &mut dyn fmt::Write) -> fmt::Result;

/// Sets a new value, which has no surrounding white space.
///
/// # Errors
///
/// `EINVAL` if the value is invalid; the setting is unchanged then.
pub type Store<D> = for<'a> fn(ArcBorrow<'a, D>, &str) -> Result;

/// A file of a device in sysfs.
pub struct Setting<D> {
    /// Its name.
    pub name: &'static CStr,
    /// Reads the value.
    pub show: Show<D>,
    /// Sets the value; `None` if the setting is read-only.
    pub store: Option<Store<D>>,
}

/// The settings of a driver, in the form of sysfs.
///
/// # Invariants
///
/// `group.attrs` points to `pointers`, which end in null and point to the heads of `files`.
pub(super) struct SettingGroup<D: 'static> {
    group: KBox<bindings::attribute_group>,
    _pointers: KVec<*mut bindings::attribute>,
    _files: KVec<File<D>>,
}

// SAFETY: This value owns what its pointers lead to, which is constant once built and belongs to no
// thread.
unsafe impl<D: 'static> Send for SettingGroup<D> {}
// SAFETY: Through a shared reference it is only read.
unsafe impl<D: 'static> Sync for SettingGroup<D> {}

/// # Invariants
///
/// `head` is at offset 0.
#[repr(C)]
struct File<D: 'static> {
    head: bindings::device_attribute,
    setting: &'static Setting<D>,
}

impl<D> SettingGroup<D> {
    pub(super) fn try_new(settings: &'static [Setting<D>]) -> Result<Self> {
        const { assert!(offset_of!(File<D>, head) == 0) };

        let mut files = KVec::with_capacity(settings.len(), GFP_KERNEL)?;
        let mut pointers = KVec::with_capacity(settings.len() + 1, GFP_KERNEL)?;
        for setting in settings {
            let head = bindings::device_attribute::default();
            files.push(File { head, setting }, GFP_KERNEL)?;
        }
        // The files do not move from here on.
        for file in files.iter_mut() {
            let head = addr_of_mut!(file.head);
            let store: Option<StoreFn> = match file.setting.store {
                Some(_) => Some(store::<D>),
                None => None,
            };
            // SAFETY: This function owns the attribute, which is not in use yet; the name is
            // static.
            let attr = unsafe {
                riwarp_helper_device_attribute_init(
                    head,
                    file.setting.name.as_char_ptr(),
                    Some(show::<D>),
                    store,
                )
            };
            pointers.push(attr, GFP_KERNEL)?;
        }
        pointers.push(core::ptr::null_mut(), GFP_KERNEL)?;
        let mut group = KBox::new(bindings::attribute_group::default(), GFP_KERNEL)?;
        // SAFETY: This function owns the group; the list lives as long as the group.
        unsafe { riwarp_helper_attribute_group_set(&mut *group, pointers.as_mut_ptr()) };
        // INVARIANT: As just built.
        Ok(Self {
            group,
            _pointers: pointers,
            _files: files,
        })
    }

    pub(super) fn as_raw(&self) -> *const bindings::attribute_group {
        &*self.group
    }
}

/// `device_attribute.show`.
///
/// # Safety
///
/// As sysfs calls it: `attr` is the head of a `File<D>`, `dev` a registered device whose object is
/// a `D`, `buffer` a page.
unsafe extern "C" fn show<D: 'static>(
    dev: *mut bindings::device,
    attr: *mut bindings::device_attribute,
    buffer: *mut c_char,
) -> isize {
    // SAFETY: A field of the `File` whose head `attr` is, by this function's `# Safety`; `head` is
    // at offset 0.
    let setting = unsafe { (*attr.cast::<File<D>>()).setting };
    // SAFETY: `rdma_device_to_ibdev()` requires the `struct device` of an RDMA device, which `dev`
    // is, by this function's `# Safety`.
    let dev = unsafe { riwarp_helper_rdma_device_to_ibdev(dev) };
    // SAFETY: `device_data` requires a device of `D` that stays registered: it is one, by this
    // function's `# Safety`, and unregistering waits in sysfs for this call.
    let dev = unsafe { device_data::<D>(dev) };
    // SAFETY: `emit` requires a page that nothing else uses: sysfs provides one for this call, by
    // this function's `# Safety`.
    unsafe { emit(buffer, |out| (setting.show)(dev, out)) }
}

/// Writes the text of a file, and a newline, into the page of sysfs; returns the length, or the
/// negative `EIO`.
///
/// # Safety
///
/// `buffer` must be a page that nothing else uses during the call.
pub(super) unsafe fn emit(
    buffer: *mut c_char,
    text: impl FnOnce(&mut dyn fmt::Write) -> fmt::Result,
) -> isize {
    // SAFETY: `from_raw_parts_mut` requires that many octets that nothing else uses: the caller
    // guarantees a page.
    let buffer = unsafe { core::slice::from_raw_parts_mut(buffer, PAGE_SIZE) };
    let mut writer = Formatter::new(buffer);
    let done = text(&mut writer).and_then(|()| fmt::Write::write_str(&mut writer, "\n"));
    match done {
        // CAST: At most a page.
        Ok(()) => writer.bytes_written() as isize,
        Err(fmt::Error) => EIO.to_errno() as isize,
    }
}

/// `device_attribute.store`.
///
/// # Safety
///
/// As sysfs calls it: `attr` is the head of a `File<D>`, `dev` a registered device whose object is
/// a `D`, `buffer` of `len` octets.
unsafe extern "C" fn store<D: 'static>(
    dev: *mut bindings::device,
    attr: *mut bindings::device_attribute,
    buffer: *const c_char,
    len: usize,
) -> isize {
    // SAFETY: A field of the `File` whose head `attr` is, by this function's `# Safety`; `head` is
    // at offset 0.
    let setting = unsafe { (*attr.cast::<File<D>>()).setting };
    // SAFETY: `rdma_device_to_ibdev()` requires the `struct device` of an RDMA device, which `dev`
    // is, by this function's `# Safety`.
    let dev = unsafe { riwarp_helper_rdma_device_to_ibdev(dev) };
    // SAFETY: `device_data` requires a device of `D` that stays registered: it is one, by this
    // function's `# Safety`, and unregistering waits in sysfs for this call.
    let dev = unsafe { device_data::<D>(dev) };
    // SAFETY: `from_raw_parts` requires that many octets that are not written to: `buffer` has
    // `len`, for this call only, by this function's `# Safety`.
    let buffer = unsafe { core::slice::from_raw_parts(buffer, len) };
    from_result(|| {
        let text = core::str::from_utf8(buffer).map_err(|_| EINVAL)?;
        let store = setting.store.ok_or(EACCES)?;
        store(dev, text.trim())?;
        // CAST: At most a page.
        Ok(len as isize)
    })
}

type ShowFn = unsafe extern "C" fn(
    *mut bindings::device,
    *mut bindings::device_attribute,
    *mut c_char,
) -> isize;
type StoreFn = unsafe extern "C" fn(
    *mut bindings::device,
    *mut bindings::device_attribute,
    *const c_char,
    usize,
) -> isize;

extern "C" {
    fn riwarp_helper_attribute_group_set(
        group: *mut bindings::attribute_group,
        attrs: *mut *mut bindings::attribute,
    );
    fn riwarp_helper_device_attribute_init(
        attr: *mut bindings::device_attribute,
        name: *const c_char,
        show: Option<ShowFn>,
        store: Option<StoreFn>,
    ) -> *mut bindings::attribute;
    fn riwarp_helper_rdma_device_to_ibdev(dev: *mut bindings::device) -> *mut bindings::ib_device;
}
