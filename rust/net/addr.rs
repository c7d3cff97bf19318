// SPDX-License-Identifier: GPL-2.0

//! Socket addresses: IPv4 or IPv6 with a port.
//!
//! Converts between the kernel's `struct sockaddr_*` and addresses of `core::net`.

use crate::bindings;
use crate::compat::EAFNOSUPPORT;
use core::mem::size_of;
use core::net::IpAddr;
use core::net::Ipv4Addr;
use core::net::Ipv6Addr;
use core::net::SocketAddr;
use core::net::SocketAddrV4;
use core::net::SocketAddrV6;
use core::ptr;
use kernel::ffi::c_int;
use kernel::fmt;
use kernel::prelude::*;
use pin_init::zeroed;

/// The address family of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// `AF_INET`.
    V4,
    /// `AF_INET6`.
    V6,
}

impl Family {
    pub(crate) fn as_raw(self) -> c_int {
        // CAST: The constants are small.
        match self {
            Family::V4 => bindings::AF_INET as c_int,
            Family::V6 => bindings::AF_INET6 as c_int,
        }
    }
}

/// An IP address and a port, with a scope for IPv6.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SockAddr(SocketAddr);

impl SockAddr {
    /// Makes a socket address of an IP address and a port.
    pub const fn new(ip: IpAddr, port: u16) -> Self {
        Self(SocketAddr::new(ip, port))
    }

    /// Returns the wildcard address of a family, with port 0.
    pub const fn unspecified(family: Family) -> Self {
        match family {
            Family::V4 => Self::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0),
            Family::V6 => Self::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0),
        }
    }

    /// Converts from the kernel's form.
    ///
    /// # Errors
    ///
    /// `EAFNOSUPPORT` if it is neither IPv4 nor IPv6.
    pub fn from_raw(raw: &bindings::__kernel_sockaddr_storage) -> Result<Self> {
        // SAFETY: `from_ptr` requires as many readable octets as the family has: a
        // `sockaddr_storage`, which the reference makes readable, is as large as any `sockaddr_*`.
        unsafe { Self::from_ptr(ptr::from_ref(raw).cast()) }
    }

    /// Converts from the kernel's form.
    ///
    /// # Safety
    ///
    /// `raw` must be valid for reads of the `struct sockaddr_in` or `sockaddr_in6` that its family
    /// names, else of a `struct sockaddr`.
    ///
    /// # Errors
    ///
    /// `EAFNOSUPPORT` if it is neither IPv4 nor IPv6.
    pub(crate) unsafe fn from_ptr(raw: *const bindings::sockaddr) -> Result<Self> {
        // SAFETY: The caller guarantees that `raw` is valid for reads of at least a `struct
        // sockaddr`, which begins with the family.
        let family = unsafe { raw.cast::<bindings::sa_family_t>().read_unaligned() };
        if u32::from(family) == bindings::AF_INET {
            // SAFETY: The caller guarantees that `raw` is valid for reads of a `struct
            // sockaddr_in`, since its family says so; any octets are valid for one.
            let raw = unsafe { raw.cast::<bindings::sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(raw.sin_addr.s_addr.to_ne_bytes());
            Ok(Self(SocketAddr::V4(SocketAddrV4::new(
                ip,
                u16::from_be(raw.sin_port),
            ))))
        } else if u32::from(family) == bindings::AF_INET6 {
            // SAFETY: The caller guarantees that `raw` is valid for reads of a `struct
            // sockaddr_in6`, since its family says so; any octets are valid for one.
            let raw = unsafe { raw.cast::<bindings::sockaddr_in6>().read_unaligned() };
            let ip = ipv6_from_raw(&raw.sin6_addr);
            Ok(Self(SocketAddr::V6(SocketAddrV6::new(
                ip,
                u16::from_be(raw.sin6_port),
                u32::from_be(raw.sin6_flowinfo),
                raw.sin6_scope_id,
            ))))
        } else {
            Err(EAFNOSUPPORT)
        }
    }

    /// Converts to the kernel's form.
    pub fn to_raw(&self) -> bindings::__kernel_sockaddr_storage {
        let mut raw: bindings::__kernel_sockaddr_storage = zeroed();
        match self.0 {
            SocketAddr::V4(addr) => {
                let mut sin: bindings::sockaddr_in = zeroed();
                // CAST: The constant is small.
                sin.sin_family = bindings::AF_INET as bindings::sa_family_t;
                sin.sin_port = addr.port().to_be();
                sin.sin_addr.s_addr = u32::from_ne_bytes(addr.ip().octets());
                // SAFETY: `write` requires memory that is large and aligned enough: `raw` is a
                // local `sockaddr_storage`, which is both for any `sockaddr_*`.
                unsafe {
                    ptr::from_mut(&mut raw)
                        .cast::<bindings::sockaddr_in>()
                        .write(sin)
                };
            }
            SocketAddr::V6(addr) => {
                let mut sin6: bindings::sockaddr_in6 = zeroed();
                // CAST: The constant is small.
                sin6.sin6_family = bindings::AF_INET6 as bindings::sa_family_t;
                sin6.sin6_port = addr.port().to_be();
                sin6.sin6_flowinfo = addr.flowinfo().to_be();
                sin6.sin6_scope_id = addr.scope_id();
                sin6.sin6_addr.in6_u.u6_addr8 = addr.ip().octets();
                // SAFETY: `write` requires memory that is large and aligned enough: `raw` is a
                // local `sockaddr_storage`, which is both for any `sockaddr_*`.
                unsafe {
                    ptr::from_mut(&mut raw)
                        .cast::<bindings::sockaddr_in6>()
                        .write(sin6)
                };
            }
        }
        raw
    }

    /// Returns the length of the kernel's form.
    pub(crate) fn raw_len(&self) -> c_int {
        // CAST: The sizes are small.
        match self.0 {
            SocketAddr::V4(_) => size_of::<bindings::sockaddr_in>() as c_int,
            SocketAddr::V6(_) => size_of::<bindings::sockaddr_in6>() as c_int,
        }
    }

    /// Returns the address family.
    pub fn family(&self) -> Family {
        match self.0 {
            SocketAddr::V4(_) => Family::V4,
            SocketAddr::V6(_) => Family::V6,
        }
    }

    /// Returns the IP address.
    pub fn ip(&self) -> IpAddr {
        self.0.ip()
    }

    /// Returns the port.
    pub fn port(&self) -> u16 {
        self.0.port()
    }

    /// Sets the port.
    pub fn set_port(&mut self, port: u16) {
        self.0.set_port(port);
    }

    /// Returns the index of the device that scopes an IPv6 address; 0 if unspecified.
    pub fn scope_id(&self) -> u32 {
        match self.0 {
            SocketAddr::V4(_) => 0,
            SocketAddr::V6(addr) => addr.scope_id(),
        }
    }

    /// Sets the scope of an IPv6 address; does nothing to an IPv4 address.
    pub fn set_scope_id(&mut self, scope_id: u32) {
        if let SocketAddr::V6(addr) = &mut self.0 {
            addr.set_scope_id(scope_id);
        }
    }

    /// Returns whether it is the wildcard address.
    pub fn is_unspecified(&self) -> bool {
        self.0.ip().is_unspecified()
    }

    /// Returns an IPv4-mapped address as IPv4, and others unchanged.
    pub fn to_canonical(self) -> Self {
        Self::new(self.0.ip().to_canonical(), self.0.port())
    }

    /// Returns whether it is a loopback address.
    pub fn is_loopback(&self) -> bool {
        self.0.ip().is_loopback()
    }

    /// Returns whether it is a link-local IPv6 address, which needs a scope.
    pub fn is_link_local(&self) -> bool {
        match self.0 {
            SocketAddr::V4(_) => false,
            SocketAddr::V6(addr) => addr.ip().is_unicast_link_local(),
        }
    }
}

impl fmt::Debug for SockAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        core::fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Display for SockAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        core::fmt::Display::fmt(&self.0, f)
    }
}

pub(super) fn ipv6_from_raw(raw: &bindings::in6_addr) -> Ipv6Addr {
    // SAFETY: Reading a union field requires it to be initialised: all fields are the same 16
    // octets of plain data.
    Ipv6Addr::from(unsafe { raw.in6_u.u6_addr8 })
}

#[kernel::prelude::kunit_tests(riwarp_addr)]
mod tests {
    use super::*;

    fn four(a: u8, b: u8, c: u8, d: u8, port: u16) -> SockAddr {
        SockAddr::new(IpAddr::V4(Ipv4Addr::new(a, b, c, d)), port)
    }

    fn six(first: u16, last: u16, port: u16) -> SockAddr {
        SockAddr::new(
            IpAddr::V6(Ipv6Addr::new(first, 0, 0, 0, 0, 0, 0, last)),
            port,
        )
    }

    #[test]
    fn ipv4_is_in_network_order_for_the_kernel() -> Result {
        let addr = four(10, 77, 0, 1, 0x1234);
        let raw = addr.to_raw();
        // SAFETY: The storage is as large as any address, and any octets are valid.
        let octets = unsafe { ptr::from_ref(&raw).cast::<[u8; 16]>().read_unaligned() };
        assert_eq!(octets[..2], (bindings::AF_INET as u16).to_ne_bytes());
        assert_eq!(octets[2..8], [0x12, 0x34, 10, 77, 0, 1]);
        assert_eq!(octets[8..], [0; 8]);
        assert_eq!(SockAddr::from_raw(&raw)?, addr);
        assert_eq!(addr.raw_len(), 16);
        Ok(())
    }

    #[test]
    fn ipv6_comes_back_with_its_scope() -> Result {
        let mut addr = six(0xfe80, 1, 7471);
        addr.set_scope_id(3);
        let again = SockAddr::from_raw(&addr.to_raw())?;
        assert_eq!(again, addr);
        assert_eq!((again.scope_id(), again.port()), (3, 7471));
        assert_eq!(addr.raw_len(), 28);
        Ok(())
    }

    #[test]
    fn rejects_other_families() {
        let mut raw = four(1, 2, 3, 4, 5).to_raw();
        for family in [0, 1, 3, 17, u16::MAX] {
            // SAFETY: Every `sockaddr_*` begins with its family.
            unsafe { ptr::from_mut(&mut raw).cast::<u16>().write(family) };
            assert_eq!(SockAddr::from_raw(&raw).err(), Some(EAFNOSUPPORT));
        }
    }

    #[test]
    fn kinds_of_addresses() {
        assert!(SockAddr::unspecified(Family::V4).is_unspecified());
        assert!(SockAddr::unspecified(Family::V6).is_unspecified());
        assert!(four(127, 1, 2, 3, 0).is_loopback() && six(0, 1, 0).is_loopback());
        assert!(six(0xfe80, 1, 0).is_link_local() && six(0xfebf, 1, 0).is_link_local());
        assert!(!six(0xfec0, 1, 0).is_link_local() && !four(169, 254, 0, 1, 0).is_link_local());
        assert!(!four(10, 0, 0, 1, 0).is_loopback() && !six(0xfd77, 1, 0).is_unspecified());
    }

    #[test]
    fn an_ipv4_address_has_no_scope() {
        let mut addr = four(10, 0, 0, 1, 1);
        addr.set_scope_id(5);
        assert_eq!((addr.scope_id(), addr.family()), (0, Family::V4));
    }
}
