// SPDX-License-Identifier: GPL-2.0

//! Network devices and network namespaces.
//!
//! C headers: `include/linux/netdevice.h`, `include/net/net_namespace.h`.

use super::addr::ipv6_from_raw;
use super::addr::SockAddr;
use crate::bindings;
use core::mem::ManuallyDrop;
use core::net::IpAddr;
use core::net::Ipv4Addr;
use core::ptr;
use core::ptr::NonNull;
use kernel::ffi::c_char;
use kernel::ffi::c_int;
use kernel::ffi::c_uchar;
use kernel::ffi::c_uint;
use kernel::ffi::c_ushort;
use kernel::ffi::c_void;
use kernel::fmt;
use kernel::prelude::*;
use kernel::str::CString;

type RawDevice = bindings::net_device;

extern "C" {
    fn riwarp_helper_dev_addr(dev: *const RawDevice) -> *const c_uchar;
    fn riwarp_helper_dev_addr_len(dev: *const RawDevice) -> c_uint;
    fn riwarp_helper_current_net() -> *mut bindings::net;
    fn riwarp_helper_dev_get_by_name(name: *const c_char) -> *mut RawDevice;
    fn riwarp_helper_dev_get_net(dev: *const RawDevice) -> *mut bindings::net;
    fn riwarp_helper_dev_hold(dev: *mut RawDevice);
    fn riwarp_helper_dev_ifindex(dev: *const RawDevice) -> c_int;
    fn riwarp_helper_dev_mtu(dev: *const RawDevice) -> c_uint;
    fn riwarp_helper_dev_name(dev: *const RawDevice) -> *const c_char;
    fn riwarp_helper_dev_net(dev: *const RawDevice) -> *mut bindings::net;
    fn riwarp_helper_dev_put(dev: *mut RawDevice);
    fn riwarp_helper_dev_running(dev: *const RawDevice) -> bool;
    fn riwarp_helper_dev_type(dev: *const RawDevice) -> c_ushort;
    fn riwarp_helper_for_each_in6_addr(
        dev: *const RawDevice,
        f: unsafe extern "C" fn(*mut c_void, *const bindings::in6_addr),
        arg: *mut c_void,
    );
    fn riwarp_helper_for_each_in_addr(
        dev: *const RawDevice,
        f: unsafe extern "C" fn(*mut c_void, u32),
        arg: *mut c_void,
    );
    fn riwarp_helper_get_net(net: *mut bindings::net) -> *mut bindings::net;
    fn riwarp_helper_init_net() -> *mut bindings::net;
    fn riwarp_helper_put_net(net: *mut bindings::net);
}

/// A counted reference to a network device.
///
/// The count delays the removal of the device: drop it on [`super::NetdevEvent::Unregister`].
///
/// # Invariants
///
/// The pointer is a valid `struct net_device`, and this value owns one count of it.
pub struct NetDevice(NonNull<RawDevice>);

// SAFETY: A `struct net_device` is not bound to a thread; any thread may call `dev_put()`, as the
// drop does.
unsafe impl Send for NetDevice {}
// SAFETY: A shared reference reads fields that may change at any time, once each, as C does without
// the RTNL, and takes counts with `dev_hold()`, which any thread may call.
unsafe impl Sync for NetDevice {}

impl NetDevice {
    /// Takes a reference to a device.
    ///
    /// # Safety
    ///
    /// `dev` must be valid for the call; a count that the caller or another owner holds keeps it
    /// so.
    pub(crate) unsafe fn from_raw(dev: NonNull<RawDevice>) -> Self {
        // SAFETY: `dev_hold()` requires a valid device: the caller guarantees that `dev` is one for
        // the call.
        unsafe { riwarp_helper_dev_hold(dev.as_ptr()) };
        // INVARIANT: The count was just taken.
        Self(dev)
    }

    /// Borrows a device without counting.
    ///
    /// # Safety
    ///
    /// `dev` must stay valid while the result is used.
    pub(crate) unsafe fn borrow_raw(dev: NonNull<RawDevice>) -> ManuallyDrop<Self> {
        // INVARIANT: The count belongs to the owner that keeps the device valid; `ManuallyDrop`
        // never drops it.
        ManuallyDrop::new(Self(dev))
    }

    /// Finds a device by a name that it has in the current task's namespace. Context: process, a
    /// task of a process.
    ///
    /// # Errors
    ///
    /// `ENODEV` if there is none, `EINVAL` if `name` has a NUL, `ENOMEM`.
    pub fn by_name(name: &str) -> Result<Self> {
        let name = CString::try_from_fmt(fmt!("{name}"))?;
        // SAFETY: The function requires a C string, and a task that has not ended, by this
        // function's context.
        let dev = unsafe { riwarp_helper_dev_get_by_name(name.as_char_ptr()) };
        // INVARIANT: The count was just taken.
        Ok(Self(NonNull::new(dev).ok_or(ENODEV)?))
    }

    pub(crate) fn as_raw(&self) -> *mut RawDevice {
        self.0.as_ptr()
    }

    /// Returns the current name.
    pub fn name(&self) -> DeviceName {
        let mut name = DeviceName {
            octets: [0; DeviceName::SIZE],
            len: 0,
        };
        // SAFETY: By the type invariant the device is valid.
        let src = unsafe { riwarp_helper_dev_name(self.as_raw()) }.cast::<u8>();
        for (i, octet) in name
            .octets
            .iter_mut()
            .enumerate()
            .take(DeviceName::SIZE - 1)
        {
            // SAFETY: `src` is the device's `name[IFNAMSIZ]`, and `i` is below that. The name may
            // change meanwhile; any mixture of octets is acceptable.
            *octet = unsafe { src.add(i).read_volatile() };
            if *octet == 0 {
                break;
            }
            // NO-OVERFLOW: `i` is below `SIZE`.
            name.len = i.wrapping_add(1);
        }
        name
    }

    /// Returns the index of the device in its namespace.
    pub fn ifindex(&self) -> u32 {
        // SAFETY: By the type invariant the device is valid.
        let ifindex = unsafe { riwarp_helper_dev_ifindex(self.as_raw()) };
        // CAST: Device indices are positive.
        ifindex as u32
    }

    /// Returns the MTU.
    pub fn mtu(&self) -> u32 {
        // SAFETY: By the type invariant the device is valid.
        unsafe { riwarp_helper_dev_mtu(self.as_raw()) }
    }

    /// Returns whether the device is up and has a carrier.
    pub fn is_running(&self) -> bool {
        // SAFETY: By the type invariant the device is valid.
        unsafe { riwarp_helper_dev_running(self.as_raw()) }
    }

    /// Returns the link type.
    pub fn netdev_type(&self) -> NetdevType {
        // SAFETY: By the type invariant the device is valid.
        let kind = unsafe { riwarp_helper_dev_type(self.as_raw()) };
        match u32::from(kind) {
            bindings::ARPHRD_ETHER => NetdevType::Ethernet,
            bindings::ARPHRD_LOOPBACK => NetdevType::Loopback,
            bindings::ARPHRD_NONE => NetdevType::None,
            _ => NetdevType::Other(kind),
        }
    }

    /// Returns the current hardware address.
    pub fn hw_addr(&self) -> HwAddr {
        let mut addr = HwAddr {
            octets: [0; HwAddr::SIZE],
            len: 0,
        };
        // SAFETY: By the type invariant the device is valid.
        let len = unsafe { riwarp_helper_dev_addr_len(self.as_raw()) };
        // CAST: The length is an `unsigned char`.
        addr.len = HwAddr::SIZE.min(len as usize);
        // SAFETY: By the type invariant the device is valid.
        let src = unsafe { riwarp_helper_dev_addr(self.as_raw()) };
        // SAFETY: `dev_addr` points to the `addr[MAX_ADDR_LEN]` of the device's first
        // `netdev_hw_addr`, which `free_netdev()` frees after the last count; `len` is at most
        // `MAX_ADDR_LEN`, the size of `octets`. The address may change meanwhile; any mixture of
        // octets is acceptable.
        unsafe { ptr::copy_nonoverlapping(src, addr.octets.as_mut_ptr(), addr.len) };
        addr
    }

    /// Returns the current namespace of the device; `None` if the namespace is exiting.
    ///
    /// The result keeps the namespace alive: do not store it.
    pub fn net(&self) -> Option<NetRef> {
        // SAFETY: By the type invariant the device is valid.
        let net = unsafe { riwarp_helper_dev_get_net(self.as_raw()) };
        // INVARIANT: The helper took a reference.
        NonNull::new(net).map(NetRef)
    }

    /// Identifies the current namespace of the device.
    pub fn net_id(&self) -> NetId {
        // SAFETY: By the type invariant the device is valid.
        NetId(unsafe { riwarp_helper_dev_net(self.as_raw()) }.addr())
    }

    /// Calls `f` for each address of the device, IPv4 first, including addresses whose duplicate
    /// address detection has not finished. `f` must not sleep.
    pub fn for_each_addr(&self, mut f: impl FnMut(SockAddr)) {
        // The pointer passed to the callbacks must be thin.
        let mut f: &mut dyn FnMut(SockAddr) = &mut f;
        let arg = (&raw mut f).cast::<c_void>();
        // SAFETY: By the type invariant the device is valid. `in_addr_callback` is called with
        // `arg`, which points to the closure that it requires, on the stack of this call; nothing
        // else uses it meanwhile.
        unsafe { riwarp_helper_for_each_in_addr(self.as_raw(), in_addr_callback, arg) };
        // SAFETY: By the type invariant the device is valid. `in6_addr_callback` is called with
        // `arg`, as above, and an address of the device, which the lock of the list keeps valid.
        unsafe { riwarp_helper_for_each_in6_addr(self.as_raw(), in6_addr_callback, arg) };
    }

    /// Returns whether both are the same device.
    pub fn is_same(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

/// # Safety
///
/// `arg` must point to a `&mut dyn FnMut(SockAddr)` that nothing else uses during the call.
unsafe extern "C" fn in_addr_callback(arg: *mut c_void, addr: u32) {
    // SAFETY: The caller guarantees that `arg` points to such a closure and that nothing else uses
    // it during the call.
    let f = unsafe { &mut *arg.cast::<&mut dyn FnMut(SockAddr)>() };
    f(SockAddr::new(
        IpAddr::V4(Ipv4Addr::from(addr.to_ne_bytes())),
        0,
    ));
}

/// # Safety
///
/// `arg` must point to a `&mut dyn FnMut(SockAddr)` that nothing else uses during the call, and
/// `addr` must be valid for reads.
unsafe extern "C" fn in6_addr_callback(arg: *mut c_void, addr: *const bindings::in6_addr) {
    // SAFETY: The caller guarantees that `arg` points to such a closure and that nothing else uses
    // it during the call.
    let f = unsafe { &mut *arg.cast::<&mut dyn FnMut(SockAddr)>() };
    // SAFETY: The caller guarantees that `addr` is valid for reads.
    let ip = ipv6_from_raw(unsafe { &*addr });
    f(SockAddr::new(IpAddr::V6(ip), 0));
}

impl Clone for NetDevice {
    fn clone(&self) -> Self {
        // SAFETY: `from_raw` requires a valid device: by the type invariant `self` has a count of
        // it.
        unsafe { Self::from_raw(self.0) }
    }
}

impl Drop for NetDevice {
    fn drop(&mut self) {
        // SAFETY: `dev_put()` drops a count that the caller owns: by the type invariant this
        // value's.
        unsafe { riwarp_helper_dev_put(self.as_raw()) };
    }
}

/// The name of a network device.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct DeviceName {
    octets: [u8; Self::SIZE],
    len: usize,
}

impl DeviceName {
    /// The largest size of a name, with its NUL (`IFNAMSIZ`).
    pub const SIZE: usize = 16;

    /// Returns the name without its NUL.
    pub fn as_bytes(&self) -> &[u8] {
        self.octets.get(..self.len).unwrap_or_default()
    }

    /// Returns the name as a C string.
    pub fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.octets).unwrap_or_default()
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(core::str::from_utf8(self.as_bytes()).unwrap_or("?"))
    }
}

/// A hardware address; empty for a device that has none.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct HwAddr {
    octets: [u8; Self::SIZE],
    len: usize,
}

impl HwAddr {
    /// The largest size of an address (`MAX_ADDR_LEN`).
    pub const SIZE: usize = 32;

    /// Returns the octets.
    pub fn as_bytes(&self) -> &[u8] {
        self.octets.get(..self.len).unwrap_or_default()
    }
}

/// The link type of a network device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetdevType {
    /// `ARPHRD_ETHER`.
    Ethernet,
    /// `ARPHRD_LOOPBACK`.
    Loopback,
    /// `ARPHRD_NONE`: a tunnel without hardware addresses.
    None,
    /// Another `ARPHRD_*`.
    Other(u16),
}

/// A counted reference to a network namespace.
///
/// The namespace does not exit while this value exists, even if it is deleted. So hold it briefly.
///
/// # Invariants
///
/// The pointer is a valid `struct net`, and this value owns one count of it.
pub struct NetRef(NonNull<bindings::net>);

// SAFETY: A `struct net` is not bound to a thread; any thread may call `put_net()`, as the drop
// does.
unsafe impl Send for NetRef {}
// SAFETY: A shared reference changes only the count, which is atomic.
unsafe impl Sync for NetRef {}

impl NetRef {
    /// Returns the initial namespace, which never exits.
    pub fn init_net() -> Self {
        // SAFETY: Has no requirements: returns the address of a static.
        let net = unsafe { riwarp_helper_init_net() };
        // SAFETY: `get_net()` requires a live namespace: `init_net` always is.
        let net = unsafe { riwarp_helper_get_net(net) };
        // SAFETY: `get_net()` returns its argument, the address of a static, which is not null.
        // INVARIANT: The count was just taken.
        Self(unsafe { NonNull::new_unchecked(net) })
    }

    pub(crate) fn as_raw(&self) -> *mut bindings::net {
        self.0.as_ptr()
    }

    /// Returns the identity of the namespace.
    pub fn id(&self) -> NetId {
        NetId(self.0.addr().get())
    }
}

impl Clone for NetRef {
    fn clone(&self) -> Self {
        // SAFETY: `get_net()` requires a live namespace: by the type invariant `self` has a count
        // of it.
        unsafe { riwarp_helper_get_net(self.as_raw()) };
        // INVARIANT: The count was just taken.
        Self(self.0)
    }
}

impl Drop for NetRef {
    fn drop(&mut self) {
        // SAFETY: `put_net()` drops a count that the caller owns: by the type invariant this
        // value's.
        unsafe { riwarp_helper_put_net(self.as_raw()) };
    }
}

/// Identifies a namespace while it exists, without keeping it alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetId(pub(super) usize);

impl NetId {
    /// Returns the namespace of the current task; that of a kernel thread is the initial one.
    /// Context: process.
    pub fn current() -> Self {
        // SAFETY: Has no requirements in process context: only the task itself changes its
        // `nsproxy`.
        NetId(unsafe { riwarp_helper_current_net() }.addr())
    }
}
