// SPDX-License-Identifier: GPL-2.0

//! The device: registration, events, settings.
//!
//! Registers an RDMA device for a network interface and the driver's device object, in the network
//! namespace of that interface. (While RDMA devices are shared among namespaces, `rdma system`,
//! `ib_core` puts all of them in the first one.)
//!
//! # Lives
//!
//! The driver unregisters an `ib_device` by dropping the [`Registration`], the administrator by
//! `rdma link delete`, and `ib_unregister_driver()` for all devices of a driver number; the first
//! one wins. All ways end in `ops.dealloc_driver`, once, after which no callback runs. It closes
//! the [`DeviceLink`] and returns the driver's object to the driver ([`DeviceOps::dealloc`]). The
//! memory of the `ib_device` itself is reference counted; the [`Registration`] holds a reference,
//! so it may be dropped before, during or after any of that, but not inside `dealloc_driver`: the
//! drop waits until the device is unregistered.
//!
//! Context: process, without the RTNL lock (network code is called inside), unless said otherwise.
//!
//! C header: `include/rdma/ib_verbs.h`.

use super::iw_cm::QpCalls;
use super::ops::table;
use super::ops::DeviceOps;
use super::ops::Driver;
use super::ops::Provider;
use super::port_counters::PortCounterGroup;
use super::settings::SettingGroup;
use super::types::LinkSpeed;
use super::types::NodeType;
use super::types::PortEvent;
use crate::bindings;
use crate::net::{
    NetDevice,
    NetId, //
};
use crate::sync::BhRevocable;
use core::mem::offset_of;
use core::ptr::addr_of_mut;
use core::ptr::NonNull;
use kernel::error::to_result;
use kernel::ffi::c_char;
use kernel::fmt;
use kernel::prelude::*;
use kernel::sync::Arc;
use kernel::sync::ArcBorrow;
use kernel::types::Opaque;

/// `struct ib_device` followed by the driver part.
///
/// # Invariants
///
/// `base` is at offset 0. `driver_part` is `Some` from before the device gets its operations until
/// `ops.dealloc_driver`.
#[repr(C)]
struct DeviceObject<D: 'static> {
    base: bindings::ib_device,
    driver_part: Option<DeviceTail<D>>,
}

struct DeviceTail<D: 'static> {
    data: Arc<D>,
    link: DeviceLink,
    /// Dropped by `ops.dealloc_driver`, when sysfs no longer refers to it.
    settings: SettingGroup<D>,
    /// The same.
    port_counters: PortCounterGroup<D>,
    counters: Counters,
    calls: Arc<QpCalls>,
}

/// The descriptions of the counters, in the form of `ib_core`.
pub(super) struct Counters(KVec<bindings::rdma_stat_desc>);

// SAFETY: The pointers refer to names that live forever and belong to no thread.
unsafe impl Send for Counters {}
// SAFETY: Through a shared reference it is only read.
unsafe impl Sync for Counters {}

impl Counters {
    fn try_new(names: &'static [&'static CStr]) -> Result<Self> {
        let mut descs = KVec::with_capacity(names.len(), GFP_KERNEL)?;
        for name in names {
            descs.push(
                bindings::rdma_stat_desc {
                    name: name.as_char_ptr(),
                    flags: 0,
                    priv_: core::ptr::null(),
                },
                GFP_KERNEL,
            )?;
        }
        Ok(Self(descs))
    }

    /// Returns the descriptions.
    pub(super) fn descs(&self) -> &[bindings::rdma_stat_desc] {
        &self.0
    }
}

/// Returns the driver's object of a device.
///
/// # Safety
///
/// `device` must be a device whose object is a `D`, whose operations are set and whose
/// `dealloc_driver` has not run, and stay so for `'a`.
pub(super) unsafe fn device_data<'a, D: 'static>(
    device: *mut bindings::ib_device,
) -> ArcBorrow<'a, D> {
    // SAFETY: `driver_part` requires a device whose operations are set and whose `dealloc_driver`
    // has not run, for `'a`: the caller guarantees that.
    unsafe { driver_part::<D>(device) }.data.as_arc_borrow()
}

/// Returns the counters of a device.
///
/// # Safety
///
/// As for [`device_data`].
pub(super) unsafe fn device_counters<'a, D: 'static>(
    device: *mut bindings::ib_device,
) -> &'a Counters {
    // SAFETY: `driver_part` requires a device whose operations are set and whose `dealloc_driver`
    // has not run, for `'a`: the caller guarantees that.
    unsafe { &driver_part::<D>(device).counters }
}

/// Returns the calls of the connection manager that are under way.
///
/// # Safety
///
/// As for [`device_data`].
pub(super) unsafe fn device_calls<'a, D: 'static>(device: *mut bindings::ib_device) -> &'a QpCalls {
    // SAFETY: `driver_part` requires a device whose operations are set and whose `dealloc_driver`
    // has not run, for `'a`: the caller guarantees that.
    unsafe { &driver_part::<D>(device).calls }
}

/// Takes a reference that keeps a device registered, to be dropped by `ib_device_put()`; returns
/// false if the device is being removed.
///
/// Context: any.
///
/// # Safety
///
/// `device` must be a device that is not freed.
pub(super) unsafe fn try_get_device(device: *mut bindings::ib_device) -> bool {
    // SAFETY: The helper requires a device that is not freed, which the caller guarantees.
    unsafe { riwarp_helper_ib_device_try_get(device) }
}

/// # Safety
///
/// As for [`device_data`].
unsafe fn driver_part<'a, D: 'static>(device: *mut bindings::ib_device) -> &'a DeviceTail<D> {
    let this = device.cast::<DeviceObject<D>>();
    // SAFETY: A reference requires initialised memory that is not written to: the caller guarantees
    // that the operations of the device are set, which happens after the driver part was written,
    // and that `dealloc_driver`, which writes it next, does not run during `'a`.
    let driver_part: &'a Option<DeviceTail<D>> = unsafe { &*addr_of_mut!((*this).driver_part) };
    // SAFETY: It is `Some` by the type's invariant.
    unsafe { driver_part.as_ref().unwrap_unchecked() }
}

/// A device of `ib_core`, borrowed for the duration of a verb.
#[repr(transparent)]
pub struct IbDevice(Opaque<bindings::ib_device>);

impl IbDevice {
    /// # Safety
    ///
    /// `raw` must be a registered device, or one being registered, for `'a`.
    pub(super) unsafe fn from_raw<'a>(raw: *mut bindings::ib_device) -> &'a Self {
        // SAFETY: A reference to an `Opaque` requires memory that is valid for `'a`, which the
        // caller guarantees for `raw`; the type is transparent.
        unsafe { &*raw.cast() }
    }

    /// Returns the current name.
    ///
    /// Context: any.
    pub fn name(&self) -> IbDeviceName {
        // SAFETY: `read` requires a device that is not freed: `from_raw` had one that stays for the
        // life of `self`.
        unsafe { IbDeviceName::read(self.0.get()) }
    }

    /// Returns the speed of the port's network interface, as `ethtool` shows it.
    ///
    /// Context: process; takes the RTNL lock.
    ///
    /// # Errors
    ///
    /// `ENODEV` if the port has no interface.
    pub fn eth_speed(&self, port: u32) -> Result<LinkSpeed> {
        let mut speed = LinkSpeed::default();
        // SAFETY: The device is registered or being registered; the function checks the port
        // number.
        to_result(unsafe {
            bindings::ib_get_eth_speed(
                self.0.get(),
                port,
                &mut speed.active_speed,
                &mut speed.active_width,
            )
        })?;
        Ok(speed)
    }
}

/// The name of a device. Displayed with all but printable ASCII escaped.
#[derive(Clone, Copy)]
pub struct IbDeviceName([u8; Self::SIZE]);

impl IbDeviceName {
    /// The largest size of a name, with its NUL.
    // CAST: A small constant.
    const SIZE: usize = bindings::IB_DEVICE_NAME_MAX as usize;

    /// The name of a device that is not registered.
    pub(super) const NONE: Self = Self([0; Self::SIZE]);

    /// Copies the name. One that is being changed may come out in parts of both.
    ///
    /// # Safety
    ///
    /// `device` must be a device that is not freed.
    pub(super) unsafe fn read(device: *const bindings::ib_device) -> Self {
        let mut name = Self::NONE;
        for (at, octet) in name.0.iter_mut().enumerate().take(Self::SIZE - 1) {
            // SAFETY: The field lies inside the allocation: the caller guarantees that the device
            // is not freed.
            let source = unsafe { (&raw const (*device).name).cast::<u8>().add(at) };
            // SAFETY: An octet of that field, read once; a rename may write it meanwhile.
            *octet = unsafe { source.read_volatile() };
            if *octet == 0 {
                break;
            }
        }
        name
    }

    /// Returns the name as a string.
    pub(crate) fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.0).unwrap_or_default()
    }
}

impl fmt::Display for IbDeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.as_c_str();
        fmt::Display::fmt(if name.is_empty() { c"-" } else { name }, f)
    }
}

/// Reports from the driver's device object to `ib_core`.
#[derive(Clone)]
pub struct DeviceLink(Arc<BhRevocable<DevicePtr>>);

struct DevicePtr(NonNull<bindings::ib_device>);

// SAFETY: The pointer is used only under a guard, which keeps the device valid, for calls that any
// thread may make.
unsafe impl Send for DevicePtr {}
// SAFETY: Several threads may make these calls at once.
unsafe impl Sync for DevicePtr {}

impl DeviceLink {
    /// Reports an event of a port, or of the whole device, to all users of the device.
    ///
    /// Does nothing before the device is registered and once it is being unregistered.
    ///
    /// Context: any.
    pub fn event(&self, event: PortEvent, port: u32) {
        let Some(device) = self.0.try_access() else {
            return;
        };
        let device = device.0.as_ptr();
        // A work item delivers the event later. `ib_core` waits for such items only after the last
        // of these references is gone, so without one the item could find the device freed.
        // SAFETY: The device is valid until the pointer is revoked, which waits for the guard.
        if !unsafe { try_get_device(device) } {
            return;
        }
        let mut raw = bindings::ib_event {
            device,
            event: event.to_raw(),
            ..Default::default()
        };
        raw.element.port_num = port;
        // SAFETY: The event is copied; it may be raised in any context.
        unsafe { bindings::ib_dispatch_event(&raw) };
        // SAFETY: `try_get_device` above took the reference.
        unsafe { bindings::ib_device_put(device) };
    }

    /// Has `ib_core` unregister the device, in a work item.
    ///
    /// Does nothing before the device is registered and once it is being unregistered.
    ///
    /// Context: any.
    pub fn unregister(&self) {
        let Some(device) = self.0.try_access() else {
            return;
        };
        let device = device.0.as_ptr();
        // SAFETY: The device is valid until the pointer is revoked, which waits for the guard.
        if !unsafe { try_get_device(device) } {
            return;
        }
        // SAFETY: `ib_unregister_device_queued()` requires a device with `dealloc_driver`, which is
        // registered: `try_get_device` has shown that. It takes a reference of its own.
        unsafe { bindings::ib_unregister_device_queued(device) };
        // SAFETY: `try_get_device` above took the reference.
        unsafe { bindings::ib_device_put(device) };
    }

    /// Returns whether `ib_core` is moving the device to another namespace of RDMA devices, or
    /// unregisters it: while it moves, it is taken from all clients, and then announced to them
    /// again.
    ///
    /// Context: any.
    pub fn is_moving(&self) -> bool {
        let Some(device) = self.0.try_access() else {
            return false;
        };
        // SAFETY: The helper requires a device that is not freed: it is valid until the pointer is
        // revoked, which waits for the guard.
        unsafe { riwarp_helper_ib_device_is_moving(device.0.as_ptr()) }
    }

    /// Returns the current name of the device; an empty one once it is unregistered.
    ///
    /// Context: any.
    pub fn name(&self) -> IbDeviceName {
        match self.0.try_access() {
            // SAFETY: `read` requires a device that is not freed: it is valid until the pointer is
            // revoked, which waits for the guard.
            Some(device) => unsafe { IbDeviceName::read(device.0.as_ptr()) },
            None => IbDeviceName::NONE,
        }
    }

    /// Returns whether the link is still open, for tests.
    #[cfg(CONFIG_KUNIT = "y")]
    pub fn is_open(&self) -> bool {
        self.0.is_accessible()
    }

    /// Creates the link of a device that was never registered, for tests.
    #[cfg(CONFIG_KUNIT = "y")]
    pub fn dead() -> Result<Self> {
        let device = BhRevocable::new(DevicePtr(NonNull::dangling()));
        device.revoke();
        Ok(Self(Arc::new(device, GFP_KERNEL)?))
    }
}

/// What identifies a device, besides its name.
#[derive(Clone, Copy, Debug)]
pub struct Identity {
    /// What the provider library of its processes expects.
    pub provider: Provider,
    /// The number of the node, in network order.
    pub node_guid: [u8; 8],
    /// A human-readable description; cut at 63 octets.
    pub node_desc: &'static CStr,
    /// The number of completion vectors for consumers' queues.
    pub comp_vectors: u32,
    /// What the device says it is.
    pub node_type: NodeType,
}

/// A registered device; dropping it unregisters the device and waits for concurrent
/// unregistrations.
///
/// Context of the drop: process, without the RTNL lock, not inside [`DeviceOps::dealloc`].
///
/// # Invariants
///
/// `device` is a device of `T`, and this value owns a reference to its memory.
pub struct Registration<T: Driver> {
    device: NonNull<DeviceObject<T::Device>>,
}

// SAFETY: Unregistering is allowed on any thread.
unsafe impl<T: Driver> Send for Registration<T> {}
// SAFETY: A shared reference gives access to nothing.
unsafe impl<T: Driver> Sync for Registration<T> {}

impl<T: Driver> Registration<T> {
    /// Creates a device and registers it. `name` may contain a `%d`.
    ///
    /// `make` creates the driver's object, for a device in the namespace that it is given; verbs
    /// may run on it before this function returns. If registering fails after `make` succeeded,
    /// [`DeviceOps::dealloc`] is called as for any unregistration. If `make` fails, the link passed
    /// to it is closed, even if `make` kept a copy.
    ///
    /// # Errors
    ///
    /// * `ENFILE` if the name is taken.
    /// * The error of `make`, or of the queries during registration.
    pub fn try_new(
        name: &CStr,
        netdev: &NetDevice,
        identity: &Identity,
        make: impl FnOnce(DeviceLink, NetId) -> Result<Arc<T::Device>>,
    ) -> Result<Self> {
        const { assert!(offset_of!(DeviceObject<T::Device>, base) == 0) };

        let net = netdev.net().ok_or(ENODEV)?;
        // SAFETY: The namespace is held until the end of this function.
        let raw = unsafe {
            bindings::_ib_alloc_device(
                core::mem::size_of::<DeviceObject<T::Device>>(),
                net.as_raw(),
            )
        };
        let raw = NonNull::new(raw).ok_or(ENOMEM)?;
        let undo = kernel::types::ScopeGuard::new(|| {
            // Until the operations are set, this only frees the memory.
            // SAFETY: The device is new, and not registered.
            unsafe { bindings::ib_dealloc_device(raw.as_ptr()) }
        });

        let link = DeviceLink(Arc::new(BhRevocable::new(DevicePtr(raw)), GFP_KERNEL)?);
        // `make` may keep the link although it fails. The guard is dropped before `undo`, so that
        // no link leads to freed memory.
        let dead = kernel::types::ScopeGuard::new_with_data(link.clone(), |link| {
            link.0.revoke();
        });
        let settings = SettingGroup::try_new(T::SETTINGS)?;
        let port_counters = PortCounterGroup::try_new(T::PORT_COUNTERS)?;
        let counters = Counters::try_new(T::COUNTERS)?;
        let calls = QpCalls::new()?;
        let data = make(link.clone(), net.id())?;

        let driver_part = DeviceTail {
            data,
            link,
            settings,
            port_counters,
            counters,
            calls,
        };
        // From here on `ops.dealloc_driver` closes the link; `undo` calls it as well.
        dead.dismiss();
        let device = raw.cast::<DeviceObject<T::Device>>();
        // INVARIANT: The driver part is `Some` before the operations are set.
        // SAFETY: The memory is that of a `DeviceObject`, and its driver part holds nothing.
        unsafe { addr_of_mut!((*device.as_ptr()).driver_part).write(Some(driver_part)) };
        // SAFETY: The device is new, and nothing else refers to it.
        unsafe { describe::<T>(raw.as_ptr(), netdev, identity) };

        // From here on `undo` calls `ops.dealloc_driver` as well.
        // SAFETY: The device is not registered yet. The reference from `_ib_alloc_device` belongs
        // to `ib_core`.
        unsafe { riwarp_helper_ib_device_get_device(raw.as_ptr()) };
        // INVARIANT: The reference was just taken.
        let this = Self { device };
        // SAFETY: The device is complete; without a DMA device its addresses are kernel virtual
        // addresses.
        let status = unsafe {
            bindings::ib_register_device(raw.as_ptr(), name.as_char_ptr(), core::ptr::null_mut())
        };
        if let Err(error) = to_result(status) {
            // In this order: `undo` closes the link, so that dropping `this` only drops the
            // reference.
            drop(undo);
            drop(this);
            return Err(error);
        }
        undo.dismiss();
        Ok(this)
    }
}

impl<T: Driver> Drop for Registration<T> {
    fn drop(&mut self) {
        let raw = self.device.as_ptr().cast::<bindings::ib_device>();
        // If another thread is unregistering the device or has done so, this waits for it and then
        // does nothing. So no operation of the driver is running when this returns.
        // SAFETY: The reference keeps the memory and its locks; `ib_core` allows concurrent
        // callers, and a device that is not registered.
        unsafe { bindings::ib_unregister_device(raw) };
        // SAFETY: This value owns the reference.
        unsafe { riwarp_helper_ib_device_put_device(raw) };
    }
}

/// Fills in a new device.
///
/// # Safety
///
/// `raw` must be a device of `T`, not registered, with its driver part filled in, to which nothing
/// else refers.
unsafe fn describe<T: Driver>(
    raw: *mut bindings::ib_device,
    netdev: &NetDevice,
    identity: &Identity,
) {
    // SAFETY: `driver_part` requires a driver part that is filled in and stays: the caller
    // guarantees both, since nothing else refers to the device.
    let driver_part = unsafe { driver_part::<T::Device>(raw) };
    let ops = bindings::ib_device_ops {
        device_group: driver_part.settings.as_raw(),
        port_groups: driver_part.port_counters.as_raw(),
        ..table::<T>(&identity.provider)
    };
    // SAFETY: `ib_set_device_ops()` requires a device that is not registered, which the caller
    // guarantees, and a table, which it copies.
    unsafe { bindings::ib_set_device_ops(raw, &ops) };

    // SAFETY: A `&mut` requires valid memory that nothing else uses: the caller guarantees that
    // nothing else refers to the device.
    let device = unsafe { &mut *raw };
    // CAST: Small constants of C.
    device.node_type = identity.node_type.to_raw() as u8;
    device.phys_port_cnt = 1;
    device.num_comp_vectors = i32::try_from(identity.comp_vectors).unwrap_or(1);
    device.node_guid = u64::from_ne_bytes(identity.node_guid);
    copy_name(&mut device.node_desc, identity.node_desc.to_bytes());
    device.iw_driver_flags = bindings::iw_flags_IW_F_NO_PORT_MAP;
    device.uverbs_cmd_mask |= identity.provider.commands.bits();
    copy_name(&mut device.iw_ifname, netdev.name().as_bytes());
}

/// Copies a name into a C array and keeps the array terminated.
fn copy_name(target: &mut [c_char], name: &[u8]) {
    let room = target.len().saturating_sub(1);
    let (text, rest) = target.split_at_mut(name.len().min(room));
    for (to, from) in text.iter_mut().zip(name) {
        *to = *from;
    }
    rest.fill(0);
}

/// `ops.dealloc_driver`.
///
/// # Safety
///
/// As `ib_core` calls it: once, when no other operation runs or will run.
pub(super) unsafe extern "C" fn dealloc_driver<T: Driver>(raw: *mut bindings::ib_device) {
    let this = raw.cast::<DeviceObject<T::Device>>();
    // SAFETY: The field is inside the allocation of which `raw` is the head, by this function's `#
    // Safety`.
    let driver_part = unsafe { addr_of_mut!((*this).driver_part) };
    // SAFETY: A `&mut` requires initialised memory that nothing else uses: `ib_core` calls this
    // once, when no other operation, and thus no user of the driver part, runs or will run.
    let driver_part = unsafe { &mut *driver_part }.take();
    let Some(driver_part) = driver_part else {
        return;
    };
    driver_part.link.0.revoke();
    // SAFETY: `read` requires a device that is not freed: it is freed after this call, by this
    // function's `# Safety`.
    let name = unsafe { IbDeviceName::read(raw) };
    driver_part.data.dealloc(&name);
    // The settings and counters are dropped here: sysfs no longer refers to them.
}

extern "C" {
    fn riwarp_helper_ib_device_get_device(device: *mut bindings::ib_device);
    fn riwarp_helper_ib_device_is_moving(device: *mut bindings::ib_device) -> bool;
    fn riwarp_helper_ib_device_put_device(device: *mut bindings::ib_device);
    fn riwarp_helper_ib_device_try_get(device: *mut bindings::ib_device) -> bool;
}
