// SPDX-License-Identifier: GPL-2.0

//! The names of the RDMA devices, by libibverbs.

use std::ffi::{c_char, c_int, CStr};

#[link(name = "ibverbs")]
extern "C" {
    fn ibv_get_device_list(number: *mut c_int) -> *mut *mut u8;
    fn ibv_get_device_name(device: *mut u8) -> *const c_char;
    fn ibv_free_device_list(list: *mut *mut u8);
}

/// Returns the names of the devices.
pub fn devices() -> Vec<String> {
    let mut number = 0;
    // SAFETY: `number` can be written to.
    let list = unsafe { ibv_get_device_list(&mut number) };
    assert!(!list.is_null(), "{}", std::io::Error::last_os_error());
    let name = |at| {
        // SAFETY: the list has `number` devices, whose names live as long as it.
        unsafe { CStr::from_ptr(ibv_get_device_name(*list.add(at))) }
            .to_string_lossy()
            .into_owned()
    };
    let names = (0..number as usize).map(name).collect();
    // SAFETY: by ibv_get_device_list() above.
    unsafe { ibv_free_device_list(list) };
    names
}
