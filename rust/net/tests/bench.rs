// SPDX-License-Identifier: GPL-2.0

//! Network helpers for KUnit suites of a driver: sockets of the loopback interface, and waiting for
//! conditions.
//!
//! Built only for kernels with KUnit. Context: process.

use crate::bindings;
use crate::net::Connecting;
use crate::net::Family;
use crate::net::NetDevice;
use crate::net::NetId;
use crate::net::NetRef;
use crate::net::SockAddr;
use crate::net::Socket;
use crate::net::TcpState;
use core::net::IpAddr;
use core::net::Ipv4Addr;
use core::net::Ipv6Addr;
use core::ptr::NonNull;
use kernel::prelude::*;
use kernel::time::delay::fsleep;
use kernel::time::Delta;

impl NetDevice {
    /// Returns the loopback interface of the initial namespace.
    pub fn loopback() -> Result<Self> {
        // SAFETY: The initial namespace is never freed, nor is its loopback interface, which is
        // older than any module.
        let dev = unsafe { riwarp_helper_loopback() };
        let dev = NonNull::new(dev).ok_or(ENODEV)?;
        // SAFETY: `from_raw` requires a valid device: the loopback interface of the initial
        // namespace always is.
        Ok(unsafe { Self::from_raw(dev) })
    }
}

impl NetId {
    /// No namespace.
    pub const NONE: Self = Self(0);
}

/// Returns the address of the loopback interface, with a port.
pub fn address(family: Family, port: u16) -> SockAddr {
    let ip = match family {
        Family::V4 => IpAddr::V4(Ipv4Addr::LOCALHOST),
        Family::V6 => IpAddr::V6(Ipv6Addr::LOCALHOST),
    };
    SockAddr::new(ip, port)
}

/// Makes an unbound socket.
pub fn socket(family: Family) -> Result<Socket> {
    Socket::new_tcp(&NetRef::init_net(), family)
}

/// Makes a socket that listens on a free port.
pub fn listener(family: Family) -> Result<Socket> {
    let listener = socket(family)?.into_listener();
    listener.bind(&address(family, 0))?;
    listener.listen(4)?;
    Ok(listener)
}

/// Makes a connection; returns its active and its passive end.
pub fn pair(family: Family) -> Result<(Socket, Socket)> {
    let listener = listener(family)?;
    let active = socket(family)?;
    let to = listener.local_addr()?;
    if active.connect_nonblock(&to)? == Connecting::Pending {
        eventually(|| active.state() == TcpState::Established)?;
    }
    let mut passive = Err(EAGAIN);
    eventually(|| {
        passive = listener.accept();
        passive.is_ok()
    })?;
    Ok((active, passive?))
}

/// Runs `f` while TCP offers new peers a small initial window, as an administrator may set.
pub fn with_small_windows<R>(f: impl FnOnce() -> R) -> R {
    let set = |small: bool| {
        // SAFETY: The setting of the initial namespace may be written at any time.
        unsafe { riwarp_helper_set_small_windows(small) };
    };
    set(true);
    let result = f();
    set(false);
    result
}

/// Waits until `is_so` returns true: softirqs may run on another thread.
///
/// # Errors
///
/// `ETIMEDOUT` after five seconds.
pub fn eventually(mut is_so: impl FnMut() -> bool) -> Result {
    for _ in 0..5000 {
        if is_so() {
            return Ok(());
        }
        fsleep(Delta::from_millis(1));
    }
    Err(ETIMEDOUT)
}

extern "C" {
    fn riwarp_helper_loopback() -> *mut bindings::net_device;
    fn riwarp_helper_set_small_windows(small: bool);
}
