// SPDX-License-Identifier: GPL-2.0

//! Notifications of events of network devices, their addresses and network namespaces.
//!
//! Each registration is a value: it lasts as long as the value lives. C headers:
//! `include/linux/notifier.h`, `include/linux/netdevice.h`, `include/linux/inetdevice.h`,
//! `include/net/addrconf.h`, `include/net/net_namespace.h`.

use super::addr::ipv6_from_raw;
use super::addr::SockAddr;
use super::device::NetDevice;
use super::device::NetId;
use crate::bindings;
use core::marker::PhantomData;
use core::net::IpAddr;
use core::net::Ipv4Addr;
use core::ptr::NonNull;
use kernel::error::to_result;
use kernel::ffi::c_int;
use kernel::ffi::c_ulong;
use kernel::ffi::c_void;
use kernel::prelude::*;
use kernel::types::Opaque;

extern "C" {
    fn riwarp_helper_in6_ifaddr_addr(ifa: *const c_void) -> *const bindings::in6_addr;
    fn riwarp_helper_in6_ifaddr_dev(ifa: *const c_void) -> *mut bindings::net_device;
    fn riwarp_helper_in_ifaddr_dev(ifa: *const c_void) -> *mut bindings::net_device;
    fn riwarp_helper_in_ifaddr_local(ifa: *const c_void) -> u32;
    fn riwarp_helper_notifier_dev(info: *mut c_void) -> *mut bindings::net_device;
}

/// `NOTIFY_DONE`: lets the chain continue.
const NOTIFY_DONE: c_int = 0;

/// An event of a network device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetdevEvent {
    /// Its carrier or other state changed.
    Change,
    /// Its hardware address changed.
    ChangeAddr,
    /// Its MTU changed.
    ChangeMtu,
    /// Its name changed.
    ChangeName,
    /// It is down.
    Down,
    /// It is about to go down.
    GoingDown,
    /// Its hardware was restarted.
    Reboot,
    /// It is new in its namespace.
    Register,
    /// It leaves its namespace. All references to it must be dropped soon.
    Unregister,
    /// It is up.
    Up,
    /// Another `NETDEV_*`.
    Other(u64),
}

impl NetdevEvent {
    fn from_raw(event: c_ulong) -> Self {
        // CAST: The constants are small; `c_ulong` has 64 bits.
        const UP: c_ulong = bindings::netdev_cmd_NETDEV_UP as c_ulong;
        const DOWN: c_ulong = bindings::netdev_cmd_NETDEV_DOWN as c_ulong;
        const REBOOT: c_ulong = bindings::netdev_cmd_NETDEV_REBOOT as c_ulong;
        const CHANGE: c_ulong = bindings::netdev_cmd_NETDEV_CHANGE as c_ulong;
        const REGISTER: c_ulong = bindings::netdev_cmd_NETDEV_REGISTER as c_ulong;
        const UNREGISTER: c_ulong = bindings::netdev_cmd_NETDEV_UNREGISTER as c_ulong;
        const CHANGEMTU: c_ulong = bindings::netdev_cmd_NETDEV_CHANGEMTU as c_ulong;
        const CHANGEADDR: c_ulong = bindings::netdev_cmd_NETDEV_CHANGEADDR as c_ulong;
        const GOING_DOWN: c_ulong = bindings::netdev_cmd_NETDEV_GOING_DOWN as c_ulong;
        const CHANGENAME: c_ulong = bindings::netdev_cmd_NETDEV_CHANGENAME as c_ulong;
        match event {
            UP => Self::Up,
            DOWN => Self::Down,
            REBOOT => Self::Reboot,
            CHANGE => Self::Change,
            REGISTER => Self::Register,
            UNREGISTER => Self::Unregister,
            CHANGEMTU => Self::ChangeMtu,
            CHANGEADDR => Self::ChangeAddr,
            GOING_DOWN => Self::GoingDown,
            CHANGENAME => Self::ChangeName,
            other => Self::Other(other as u64),
        }
    }
}

/// Receives the events of network devices.
pub trait NetdevEvents: 'static {
    /// Handles an event of a device in any namespace.
    ///
    /// Context: process, may sleep; the RTNL is held.
    fn netdev_event(event: NetdevEvent, dev: &NetDevice);
}

/// Delivers events of network devices to `T` while this value lives.
///
/// # Invariants
///
/// `block` is registered.
pub struct NetdevNotifier<T: NetdevEvents> {
    block: KBox<Opaque<bindings::notifier_block>>,
    _to: PhantomData<T>,
}

// SAFETY: The drop calls `unregister_netdevice_notifier()`, which any thread may call; the value
// holds no `T`.
unsafe impl<T: NetdevEvents> Send for NetdevNotifier<T> {}
// SAFETY: No method takes a shared reference.
unsafe impl<T: NetdevEvents> Sync for NetdevNotifier<T> {}

impl<T: NetdevEvents> NetdevNotifier<T> {
    /// Registers. Before this returns, `T` gets [`NetdevEvent::Register`], and [`NetdevEvent::Up`]
    /// if the device is up, for each existing device.
    ///
    /// Context: process, sleeps; the RTNL must not be held.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn new() -> Result<Self> {
        let block = new_block(Self::call)?;
        // SAFETY: `register_netdevice_notifier()` requires a block that is valid until it is
        // unregistered: it is initialised, boxed, and moves into the result, whose drop unregisters
        // it. On failure the function undoes the registration.
        to_result(unsafe { bindings::register_netdevice_notifier(block.get()) })?;
        // INVARIANT: Registered just now.
        Ok(Self {
            block,
            _to: PhantomData,
        })
    }

    /// # Safety
    ///
    /// Only the notifier chain of network devices may call this: `info` points to a `struct
    /// netdev_notifier_info`, whose device is null or valid for the call.
    unsafe extern "C" fn call(
        _block: *mut bindings::notifier_block,
        event: c_ulong,
        info: *mut c_void,
    ) -> c_int {
        // SAFETY: `netdev_notifier_info_to_dev()` reads a `struct netdev_notifier_info`, which
        // `info` points to by this function's `# Safety`.
        let dev = unsafe { riwarp_helper_notifier_dev(info) };
        if let Some(dev) = NonNull::new(dev) {
            // SAFETY: `borrow_raw` requires a device that is valid while the result is used: by
            // this function's `# Safety` it is valid for the call, and the result does not outlive
            // it.
            let dev = unsafe { NetDevice::borrow_raw(dev) };
            T::netdev_event(NetdevEvent::from_raw(event), &dev);
        }
        NOTIFY_DONE
    }
}

impl<T: NetdevEvents> Drop for NetdevNotifier<T> {
    /// Unregisters. `T` gets [`NetdevEvent::Unregister`] for each remaining device.
    fn drop(&mut self) {
        // SAFETY: `unregister_netdevice_notifier()` requires a registered block: by the type
        // invariant it is.
        unsafe { bindings::unregister_netdevice_notifier(self.block.get()) };
    }
}

/// Receives the addition and removal of device addresses.
pub trait AddrEvents: 'static {
    /// Handles the addition of `addr` (port 0, IPv4 or IPv6) to `dev`, or its removal.
    ///
    /// Context: process or softirq (IPv6); must not sleep.
    fn addr_event(added: bool, dev: &NetDevice, addr: &SockAddr);
}

/// Delivers events of addresses to `T` while this value lives.
///
/// # Invariants
///
/// `v4` and `v6` are registered.
pub struct AddrNotifier<T: AddrEvents> {
    v4: KBox<Opaque<bindings::notifier_block>>,
    v6: KBox<Opaque<bindings::notifier_block>>,
    _to: PhantomData<T>,
}

// SAFETY: The drop calls `unregister_inetaddr_notifier()` and `unregister_inet6addr_notifier()`,
// which any thread may call; the value holds no `T`.
unsafe impl<T: AddrEvents> Send for AddrNotifier<T> {}
// SAFETY: No method takes a shared reference.
unsafe impl<T: AddrEvents> Sync for AddrNotifier<T> {}

impl<T: AddrEvents> AddrNotifier<T> {
    /// Registers. Existing addresses cause no event. Context: process, sleeps.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn new() -> Result<Self> {
        let v4 = new_block(Self::call_v4)?;
        let v6 = new_block(Self::call_v6)?;
        // SAFETY: `register_inetaddr_notifier()` requires a block that is valid until it is
        // unregistered: it is initialised, boxed, and unregistered below or by the drop of the
        // result.
        to_result(unsafe { bindings::register_inetaddr_notifier(v4.get()) })?;
        // SAFETY: `register_inet6addr_notifier()` requires the same; the drop of the result, which
        // exists if this succeeds, unregisters `v6`.
        if let Err(error) = to_result(unsafe { bindings::register_inet6addr_notifier(v6.get()) }) {
            // SAFETY: `unregister_inetaddr_notifier()` requires a registered block: `v4` was
            // registered above.
            unsafe { bindings::unregister_inetaddr_notifier(v4.get()) };
            return Err(error);
        }
        // INVARIANT: Both were registered just now.
        Ok(Self {
            v4,
            v6,
            _to: PhantomData,
        })
    }

    /// # Safety
    ///
    /// Only the notifier chain of IPv4 addresses may call this: `ifa` is a `struct in_ifaddr`,
    /// which is valid for the call, as is its device.
    unsafe extern "C" fn call_v4(
        _block: *mut bindings::notifier_block,
        event: c_ulong,
        ifa: *mut c_void,
    ) -> c_int {
        // SAFETY: The helper reads a `struct in_ifaddr`, which `ifa` is by this function's
        // `# Safety`.
        let dev = unsafe { riwarp_helper_in_ifaddr_dev(ifa) };
        // SAFETY: The helper reads a `struct in_ifaddr`, which `ifa` is by this function's
        // `# Safety`.
        let ip = Ipv4Addr::from(unsafe { riwarp_helper_in_ifaddr_local(ifa) }.to_ne_bytes());
        // SAFETY: `dispatch` requires a device that is null or valid for the call: that of `ifa`
        // is, by this function's `# Safety`.
        unsafe { Self::dispatch(event, dev, IpAddr::V4(ip)) }
    }

    /// # Safety
    ///
    /// Only the notifier chain of IPv6 addresses may call this: `ifa` is a `struct inet6_ifaddr`,
    /// which is valid for the call, as is its device.
    unsafe extern "C" fn call_v6(
        _block: *mut bindings::notifier_block,
        event: c_ulong,
        ifa: *mut c_void,
    ) -> c_int {
        // SAFETY: The helper reads a `struct inet6_ifaddr`, which `ifa` is by this function's
        // `# Safety`.
        let dev = unsafe { riwarp_helper_in6_ifaddr_dev(ifa) };
        // SAFETY: The helper returns the address of a field of a `struct inet6_ifaddr`, which `ifa`
        // is by this function's `# Safety`.
        let addr = unsafe { riwarp_helper_in6_ifaddr_addr(ifa) };
        // SAFETY: A reference requires readable memory that does not change: `addr` is a field of
        // `ifa`, which is valid for the call, and the address of an entry never changes.
        let ip = ipv6_from_raw(unsafe { &*addr });
        // SAFETY: `dispatch` requires a device that is null or valid for the call: that of `ifa`
        // is, by this function's `# Safety`.
        unsafe { Self::dispatch(event, dev, IpAddr::V6(ip)) }
    }

    /// # Safety
    ///
    /// `dev` must be null or valid for the call.
    unsafe fn dispatch(event: c_ulong, dev: *mut bindings::net_device, ip: IpAddr) -> c_int {
        let added = match NetdevEvent::from_raw(event) {
            NetdevEvent::Up => true,
            NetdevEvent::Down => false,
            _ => return NOTIFY_DONE,
        };
        if let Some(dev) = NonNull::new(dev) {
            // SAFETY: `borrow_raw` requires a device that is valid while the result is used: the
            // caller guarantees this for the call, and the result does not outlive it.
            let dev = unsafe { NetDevice::borrow_raw(dev) };
            T::addr_event(added, &dev, &SockAddr::new(ip, 0));
        }
        NOTIFY_DONE
    }
}

impl<T: AddrEvents> Drop for AddrNotifier<T> {
    fn drop(&mut self) {
        // SAFETY: `unregister_inetaddr_notifier()` requires a registered block: by the type
        // invariant `v4` is.
        unsafe { bindings::unregister_inetaddr_notifier(self.v4.get()) };
        // SAFETY: `unregister_inet6addr_notifier()` requires a registered block: by the type
        // invariant `v6` is.
        unsafe { bindings::unregister_inet6addr_notifier(self.v6.get()) };
    }
}

/// Receives the exit of network namespaces, to release what the driver has in them.
pub trait NetnsExit: 'static {
    /// Handles the exit of a namespace, while its devices and protocols still work and before RDMA
    /// core moves its RDMA devices to another namespace.
    ///
    /// Each [`Socket`](super::Socket) of the namespace must be dropped when this returns: soon
    /// afterwards the data that TCP uses in the namespace is freed. No type enforces this.
    ///
    /// Also called for each namespace when the notifier is unregistered. Context: process, may
    /// sleep; no locks held.
    fn netns_exit(net: NetId);
}

/// Delivers the exit of network namespaces to `T` while this value lives.
///
/// # Invariants
///
/// `ops` is registered.
pub struct NetnsNotifier<T: NetnsExit> {
    ops: KBox<Opaque<bindings::pernet_operations>>,
    _to: PhantomData<T>,
}

// SAFETY: The drop calls `unregister_pernet_device()`, which any thread may call; the value holds
// no `T`.
unsafe impl<T: NetnsExit> Send for NetnsNotifier<T> {}
// SAFETY: No method takes a shared reference.
unsafe impl<T: NetnsExit> Sync for NetnsNotifier<T> {}

impl<T: NetnsExit> NetnsNotifier<T> {
    /// Registers. Context: process, sleeps.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn new() -> Result<Self> {
        let ops = bindings::pernet_operations {
            pre_exit: Some(Self::pre_exit),
            ..Default::default()
        };
        let ops = KBox::new(Opaque::new(ops), GFP_KERNEL)?;
        // SAFETY: `register_pernet_device()` requires operations that are valid until they are
        // unregistered: they are initialised, boxed, and move into the result, whose drop
        // unregisters them.
        to_result(unsafe { bindings::register_pernet_device(ops.get()) })?;
        // INVARIANT: Registered just now.
        Ok(Self {
            ops,
            _to: PhantomData,
        })
    }

    /// # Safety
    ///
    /// Only the network core may call this, as a `pre_exit` operation. Uses `net` only as a number.
    unsafe extern "C" fn pre_exit(net: *mut bindings::net) {
        T::netns_exit(NetId(net.addr()));
    }
}

impl<T: NetnsExit> Drop for NetnsNotifier<T> {
    fn drop(&mut self) {
        // SAFETY: `unregister_pernet_device()` requires registered operations: by the type
        // invariant they are.
        unsafe { bindings::unregister_pernet_device(self.ops.get()) };
    }
}

type NotifierFn =
    unsafe extern "C" fn(*mut bindings::notifier_block, c_ulong, *mut c_void) -> c_int;

fn new_block(call: NotifierFn) -> Result<KBox<Opaque<bindings::notifier_block>>> {
    let block = bindings::notifier_block {
        notifier_call: Some(call),
        ..Default::default()
    };
    Ok(KBox::new(Opaque::new(block), GFP_KERNEL)?)
}
