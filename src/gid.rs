// SPDX-License-Identifier: GPL-2.0

//! The GID table: the addresses of the interface, in the form that RDMA programs know.
//!
//! An IPv4 address is the IPv6 address that it is mapped to (RFC 4291, section 2.5.5.2). An address
//! keeps its index as long as the interface has it; one that goes leaves its index to the next one
//! that comes. Index 0 is special, since programs take the device for dead without it: it is never
//! empty, and its low half is never zero. It holds an IPv4 address if there is one, else an IPv6
//! address, which has to go to another index when an IPv4 address comes, and on an interface without
//! addresses one that is made up of the device's GUID.
//!
//! `ib_core` reads the table into a cache of its own, when the device is registered and after each
//! GID_CHANGE event; so the table looks at the interface whenever it is read.

use core::net::{
    IpAddr,
    Ipv6Addr, //
};

use kernel::prelude::*;
use kernel_ext::{
    net::{
        Addrs,
        NetDevice,
        SockAddr, //
    },
    new_spinlock_bh,
    rdma::types::Gid,
    sync::SpinLockBh, //
};

use crate::device::Guid;

/// Entries of the table. Addresses beyond that have no GID.
pub(crate) const GID_TABLE_LEN: u32 = 32;

type Slots = [Option<Ipv6Addr>; GID_TABLE_LEN as usize];

/// The GIDs of a device.
#[pin_data]
pub(crate) struct GidTable {
    #[pin]
    slots: SpinLockBh<Slots>,
}

impl GidTable {
    /// Makes an empty table.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            slots <- new_spinlock_bh!([None; GID_TABLE_LEN as usize], "GidTable::slots"),
        })
    }

    /// The entry at `index`, which is zero if there is none.
    ///
    /// Context: process or softirq.
    ///
    /// # Errors
    ///
    /// `EINVAL` beyond the end of the table.
    pub(crate) fn get(&self, netdev: &NetDevice, guid: Guid, index: usize) -> Result<Gid> {
        let mut found = [None; GID_TABLE_LEN as usize];
        let mut places = found.iter_mut();
        netdev.for_each_addr(Addrs::All, |addr| {
            if let Some(place) = places.next() {
                *place = Some(mapped(&addr));
            }
        });
        let mut slots = self.slots.lock();
        update(&mut slots, &found);
        let slot = slots.get(index).ok_or(EINVAL)?;
        Ok(match (slot, index) {
            (Some(ip), _) => Gid(ip.octets()),
            (None, 0) => Guid::from_hw_addr(netdev).unwrap_or(guid).link_local(),
            (None, _) => Gid([0; 16]),
        })
    }
}

/// The GID of an address.
pub(crate) fn of_addr(addr: &SockAddr) -> Gid {
    Gid(mapped(addr).octets())
}

/// The address of a GID, as it is known on an interface; [`None`] if it is that of no single host.
pub(crate) fn to_addr(gid: Gid, port: u16, netdev: &NetDevice) -> Option<SockAddr> {
    let ip = Ipv6Addr::from(gid.0);
    let mut addr = SockAddr::new(ip.to_canonical(), port);
    if addr.is_link_local() {
        addr.set_scope_id(netdev.ifindex());
    }
    let no_host = match addr.ip() {
        IpAddr::V4(ip) => ip.is_unspecified() || ip.is_multicast() || ip.is_broadcast(),
        IpAddr::V6(ip) => ip.is_unspecified() || ip.is_multicast(),
    };
    (!no_host).then_some(addr)
}

fn mapped(addr: &SockAddr) -> Ipv6Addr {
    match addr.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    }
}

/// Brings the table up to date with the addresses that were found: IPv4 first, then IPv6.
fn update(slots: &mut Slots, found: &Slots) {
    for slot in slots.iter_mut() {
        if slot.is_some() && !found.contains(slot) {
            *slot = None;
        }
    }
    // Index 0 is taken anew if what it holds is gone, or the first IPv4 address has come.
    let is_v4 = |ip: &Ipv6Addr| ip.to_ipv4_mapped().is_some();
    let is_fit = |ip: &Ipv6Addr| ip.segments()[4..] != [0; 4];
    let first = found.iter().flatten().find(|ip| is_fit(ip));
    if let (Some(first), [zero, rest @ ..]) = (first, &mut slots[..]) {
        if zero.is_none_or(|ip| is_v4(first) && !is_v4(&ip)) {
            *zero = Some(*first);
            for slot in rest.iter_mut().filter(|slot| **slot == Some(*first)) {
                *slot = None;
            }
        }
    }
    for ip in found.iter().flatten() {
        if !slots.contains(&Some(*ip)) {
            if let Some(slot) = slots.iter_mut().skip(1).find(|slot| slot.is_none()) {
                *slot = Some(*ip);
            }
        }
    }
}
