// SPDX-License-Identifier: GPL-2.0

//! A link type: `rdma link add NAME type TYPE netdev DEV`.
//!
//! The module declares the alias `rdma-link-TYPE` in its `module!`, so that the tool loads it.
//! `rdma link delete` needs no code here: `ib_core` unregisters the device (see
//! [`Registration`](super::device::Registration)), if the device has
//! [`KernelCaps::ALLOW_USER_UNREG`](super::types::KernelCaps::ALLOW_USER_UNREG).
//!
//! The kernel has one driver for a link type. `rdma_link_register()` warns of another one and does
//! not enter it in its list, from which `rdma_link_unregister()` removes it all the same: the
//! kernel crashes. So a driver must not register the type of another one that may be there, or come
//! ([`ModuleExclusion`](crate::module_exclusion::ModuleExclusion)).
//!
//! Context: process; the only lock held is the one that prevents unregistering the link type.
//!
//! C header: `include/rdma/rdma_netlink.h`.

use crate::bindings;
use crate::net::NetDevice;
use core::marker::PhantomData;
use core::marker::PhantomPinned;
use core::ptr::NonNull;
use kernel::error::from_result;
use kernel::ffi::c_char;
use kernel::ffi::c_int;
use kernel::prelude::*;
use kernel::types::Opaque;

/// A driver that can add devices by a link type.
pub trait LinkType: 'static {
    /// The name of the type.
    const NAME: &'static CStr;

    /// Adds a device on a network interface. `name` may contain a `%d`.
    fn newlink(name: &CStr, netdev: &NetDevice) -> Result;
}

/// The registration of a link type; dropping it waits for a `newlink` under way.
///
/// # Invariants
///
/// `ops` is registered from the end of `new` to the drop.
#[pin_data(PinnedDrop)]
pub struct LinkRegistration<T: LinkType> {
    #[pin]
    ops: Opaque<bindings::rdma_link_ops>,
    #[pin]
    _pin: PhantomPinned,
    _type: PhantomData<fn() -> T>,
}

// SAFETY: Registering and unregistering may happen on different threads.
unsafe impl<T: LinkType> Send for LinkRegistration<T> {}
// SAFETY: A shared reference gives access to nothing.
unsafe impl<T: LinkType> Sync for LinkRegistration<T> {}

impl<T: LinkType> LinkRegistration<T> {
    /// Registers the type.
    pub fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            // INVARIANT: The only initialisation step registers it at its end.
            ops <- Opaque::ffi_init(|ops: *mut bindings::rdma_link_ops| {
                let content = bindings::rdma_link_ops {
                    type_: T::NAME.as_char_ptr(),
                    newlink: Some(newlink::<T>),
                    ..Default::default()
                };
                // SAFETY: `ops` is pinned memory of that type.
                unsafe { ops.write(content) };
                // SAFETY: It is pinned and stays valid until `drop` unregisters it.
                unsafe { bindings::rdma_link_register(ops) };
            }),
            _pin: PhantomPinned,
            _type: PhantomData,
        })
    }
}

#[pinned_drop]
impl<T: LinkType> PinnedDrop for LinkRegistration<T> {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: `rdma_link_unregister()` requires operations that are registered: by the type's
        // invariant `ops` is, until this drop.
        unsafe { bindings::rdma_link_unregister(self.ops.get()) };
    }
}

/// `rdma_link_ops.newlink`.
///
/// # Safety
///
/// As nldev calls it: `name` is a string, `netdev` is null or held, both for the call.
unsafe extern "C" fn newlink<T: LinkType>(
    name: *const c_char,
    netdev: *mut bindings::net_device,
) -> c_int {
    from_result(|| {
        // SAFETY: `from_char_ptr` requires a string that ends in a zero and stays valid for the
        // lifetime, which ends with this call: `name` is one, by this function's `# Safety`.
        let name = unsafe { CStr::from_char_ptr(name) };
        let netdev = NonNull::new(netdev).ok_or(ENODEV)?;
        // SAFETY: `from_raw` requires a device that is valid for the call: nldev holds it, by this
        // function's `# Safety`.
        let netdev = unsafe { NetDevice::from_raw(netdev) };
        T::newlink(name, &netdev)?;
        Ok(0)
    })
}
