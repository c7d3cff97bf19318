// SPDX-License-Identifier: GPL-2.0

//! The GID table: the addresses of the interface as RDMA programs name them.
//!
//! An IPv4 address appears as its IPv4-mapped IPv6 address (RFC 4291, section 2.5.5.2). An address
//! keeps its index as long as the interface has it; the next new address takes a freed index.
//!
//! Programs treat a device whose index 0 is empty, or has a low half of zero, as dead, so index 0
//! always has a usable GID: an IPv4 address if the interface has one, else an IPv6 address, else
//! one made from the device's GUID. An IPv6 address at index 0 moves to another index when an IPv4
//! address is added. When the address at index 0 is removed, another one moves there from its own
//! index.
//!
//! `ib_core` caches the table when the device is registered and after each GID_CHANGE event. So
//! each read of the table looks up the interface's addresses, twice, because the list may be longer
//! than the table. The locks of the interface's lists are taken below the lock of the table.
//!
//! An IPv6 address is in the table while its duplicate address detection runs. If that fails the
//! kernel tells nobody, so the address stays in the cache until the next event.

use core::net::{
    IpAddr,
    Ipv6Addr, //
};

use kernel::prelude::*;
use kernel_ext::{
    net::{
        NetDevice,
        SockAddr, //
    },
    new_spinlock_bh,
    random,
    rdma::types::Gid,
    sync::SpinLockBh, //
};

/// Entries of the table. Further addresses have no GID until one of those in the table is removed.
pub(crate) const GID_TABLE_LEN: u32 = 32;

type Slots = [Option<Ipv6Addr>; GID_TABLE_LEN as usize];

/// The GIDs of a device.
#[pin_data]
pub(super) struct GidTable {
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

    /// Returns the entry at `index`, or zero if it is empty.
    ///
    /// Context: process or softirq.
    ///
    /// # Errors
    ///
    /// `EINVAL` beyond the end of the table.
    pub(crate) fn get(&self, netdev: &NetDevice, guid: Guid, index: usize) -> Result<Gid> {
        let mut slots = self.slots.lock();
        update(&mut slots, |f| {
            netdev.for_each_addr(|addr| f(mapped(&addr)));
        });
        let slot = slots.get(index).ok_or(EINVAL)?;
        Ok(match (slot, index) {
            (Some(ip), _) => Gid(ip.octets()),
            (None, 0) => Guid::from_hw_addr(netdev).unwrap_or(guid).link_local(),
            (None, _) => Gid([0; 16]),
        })
    }
}

/// Returns the GID of an address.
pub(crate) fn of_addr(addr: &SockAddr) -> Gid {
    Gid(mapped(addr).octets())
}

/// Returns the address of a GID on an interface; [`None`] if it is not that of a single host.
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

/// Updates the table with the current addresses, for each of which `for_each_addr` calls its
/// argument: IPv4 first, then IPv6.
fn update(slots: &mut Slots, for_each_addr: impl Fn(&mut dyn FnMut(Ipv6Addr))) {
    let is_v4 = |ip: &Ipv6Addr| ip.to_ipv4_mapped().is_some();
    let is_fit = |ip: &Ipv6Addr| ip.segments()[4..] != [0; 4];
    let mut first = None;
    let mut kept = [false; GID_TABLE_LEN as usize];
    // The list may be longer than the table, so all of it is compared before any slot is cleared.
    for_each_addr(&mut |ip| {
        if first.is_none() && is_fit(&ip) {
            first = Some(ip);
        }
        for (slot, kept) in slots.iter().zip(&mut kept) {
            *kept |= *slot == Some(ip);
        }
    });
    for (slot, kept) in slots.iter_mut().zip(kept) {
        if !kept {
            *slot = None;
        }
    }
    // Choose index 0 anew if its address is gone, or the first IPv4 address has come.
    if let (Some(first), [zero, rest @ ..]) = (&first, &mut slots[..]) {
        if zero.is_none_or(|ip| is_v4(first) && !is_v4(&ip)) {
            *zero = Some(*first);
            for slot in rest.iter_mut().filter(|slot| **slot == Some(*first)) {
                *slot = None;
            }
        }
    }
    for_each_addr(&mut |ip| {
        if !slots.contains(&Some(ip)) {
            if let Some(slot) = slots.iter_mut().skip(1).find(|slot| slot.is_none()) {
                *slot = Some(ip);
            }
        }
    });
}

/// The device's identifier, in the form of an EUI-64.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Guid([u8; 8]);

impl Guid {
    /// Makes it from the hardware address of an interface, or at random if the interface has none.
    pub(crate) fn of(netdev: &NetDevice) -> Self {
        Self::from_hw_addr(netdev).unwrap_or_else(Self::random)
    }

    /// Makes one at random.
    pub(crate) fn random() -> Self {
        // Neither a group nor a universal address, so no assigned one (RFC 4291, appendix A).
        let [first, rest @ ..] = random::octets::<8>();
        let [b, c, d, e, f, g, h] = rest;
        Self([first & !3, b, c, d, e, f, g, h])
    }

    /// Makes it from the current hardware address of an interface.
    fn from_hw_addr(netdev: &NetDevice) -> Option<Self> {
        let addr = netdev.hw_addr();
        match *addr.as_bytes() {
            [0, 0, 0, 0, 0, 0] => None,
            // The universal/local bit is inverted in an EUI-64 (RFC 4291, appendix A).
            [a, b, c, d, e, f] => Some(Self([a ^ 2, b, c, 0xff, 0xfe, d, e, f])),
            _ => None,
        }
    }

    /// Returns the octets in network order.
    pub(crate) fn octets(self) -> [u8; 8] {
        self.0
    }

    /// Returns the link-local GID with this interface identifier.
    fn link_local(self) -> Gid {
        let mut gid = [0; 16];
        if let Some((prefix, interface)) = gid.split_first_chunk_mut::<8>() {
            *prefix = [0xfe, 0x80, 0, 0, 0, 0, 0, 0];
            interface.copy_from_slice(&self.0);
        }
        Gid(gid)
    }
}

#[kernel::prelude::kunit_tests(riwarp_gid)]
mod tests {
    use super::*;
    use core::net::Ipv4Addr;

    /// The current addresses of an interface, IPv4 first.
    fn found(list: &[Ipv6Addr]) -> impl Fn(&mut dyn FnMut(Ipv6Addr)) + '_ {
        |f| list.iter().copied().for_each(f)
    }

    /// Whether the table begins with these entries and has no others.
    fn is(slots: &Slots, expected: &[Option<Ipv6Addr>]) -> bool {
        let (begin, rest) = slots.split_at(expected.len());
        begin == expected && rest.iter().all(Option::is_none)
    }

    fn v4(last: u8) -> Ipv6Addr {
        Ipv4Addr::new(192, 0, 2, last).to_ipv6_mapped()
    }

    fn v6(last: u16) -> Ipv6Addr {
        Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last)
    }

    const EMPTY: Slots = [None; GID_TABLE_LEN as usize];

    #[test]
    fn interface_identifier_gives_link_local_gid() {
        let guid = Guid([1, 2, 3, 4, 5, 6, 7, 8]);
        let gid = guid.link_local();
        assert_eq!(gid.0[..8], [0xfe, 0x80, 0, 0, 0, 0, 0, 0]);
        assert_eq!(gid.0[8..], guid.octets());
    }

    #[test]
    fn gid_index_of_address_is_stable() {
        let mut slots = EMPTY;
        update(&mut slots, &found(&[v4(1), v4(2), v4(3)]));
        assert!(is(&slots, &[Some(v4(1)), Some(v4(2)), Some(v4(3))]));
        // In whatever order the interface lists them.
        update(&mut slots, &found(&[v4(3), v4(1), v4(2)]));
        assert!(is(&slots, &[Some(v4(1)), Some(v4(2)), Some(v4(3))]));
        // A removed address leaves a hole, which the next new one fills.
        update(&mut slots, &found(&[v4(1), v4(3)]));
        assert!(is(&slots, &[Some(v4(1)), None, Some(v4(3))]));
        update(&mut slots, &found(&[v4(1), v4(3), v4(4), v4(5)]));
        let expected = [v4(1), v4(4), v4(3), v4(5)].map(Some);
        assert!(is(&slots, &expected));
    }

    #[test]
    fn gid_index_0_is_reassigned_when_its_address_is_removed() {
        let mut slots = EMPTY;
        update(&mut slots, &found(&[v4(1), v4(2)]));
        update(&mut slots, &found(&[v4(2)]));
        // The table holds it once.
        assert!(is(&slots, &[Some(v4(2))]));
        update(&mut slots, &found(&[]));
        assert!(is(&slots, &[]));
    }

    #[test]
    fn gid_index_0_prefers_ipv4_and_keeps_it() {
        let mut slots = EMPTY;
        update(&mut slots, &found(&[v6(1), v6(2)]));
        assert!(is(&slots, &[Some(v6(1)), Some(v6(2))]));
        update(&mut slots, &found(&[v4(1), v6(1), v6(2)]));
        let expected = [v4(1), v6(1), v6(2)];
        // The displaced IPv6 address moves to the next free index.
        assert_eq!(slots[0], Some(v4(1)));
        for ip in expected {
            let times = slots.iter().filter(|slot| **slot == Some(ip)).count();
            assert_eq!(times, 1);
        }
        let before = slots;
        update(&mut slots, &found(&[v4(9), v4(1), v6(1), v6(2)]));
        assert_eq!(slots[..3], before[..3]);
        // Back to IPv6 when the last IPv4 address is gone.
        update(&mut slots, &found(&[v6(1), v6(2)]));
        assert!(slots[0] == Some(v6(1)) || slots[0] == Some(v6(2)));
    }

    #[test]
    fn gid_index_0_skips_address_with_zero_low_half() {
        let prefix = Ipv6Addr::new(0x2001, 0xdb8, 0, 1, 0, 0, 0, 0);
        let mut slots = EMPTY;
        update(&mut slots, &found(&[prefix]));
        assert!(is(&slots, &[None, Some(prefix)]));
        update(&mut slots, &found(&[prefix, v6(1)]));
        assert!(is(&slots, &[Some(v6(1)), Some(prefix)]));
    }

    #[test]
    fn gid_table_omits_addresses_beyond_its_size() {
        let mut slots = EMPTY;
        let all: [_; GID_TABLE_LEN as usize] = core::array::from_fn(|n| v6(n as u16 + 1));
        update(&mut slots, &found(&all));
        assert!(slots == all.map(Some));
        // A new address in a full table takes the index of a removed one, and no other.
        let mut next = all;
        next[7] = v6(100);
        update(&mut slots, &found(&next));
        assert!(slots == next.map(Some));
        // An IPv4 address gets index 0 also in a full table; the displaced one moves to a free
        // index.
        next[9] = v4(1);
        next.swap(0, 9);
        update(&mut slots, &found(&next));
        assert_eq!((slots[0], slots[9]), (Some(v4(1)), Some(v6(1))));
        assert!(slots.iter().all(Option::is_some));
    }

    #[test]
    fn gid_index_is_stable_in_full_table() {
        let mut all: [_; GID_TABLE_LEN as usize + 1] = core::array::from_fn(|n| v6(n as u16 + 1));
        let mut slots = EMPTY;
        update(&mut slots, &found(&all[..GID_TABLE_LEN as usize]));
        let before = slots;
        // The interface lists a new IPv6 address before the others.
        all.rotate_right(1);
        update(&mut slots, &found(&all));
        assert!(slots == before);
        // It gets the next index that becomes free, and no other address moves.
        let mut next = before;
        next[7] = Some(v6(33));
        all[8] = v6(34);
        update(&mut slots, &found(&all));
        assert!(slots == next);
        // So does the next one when an address moves to index 0.
        next[0] = Some(v6(33));
        next[7] = Some(v6(35));
        all[1] = v6(35);
        update(&mut slots, &found(&all));
        assert!(slots == next);
    }

    #[test]
    fn gid_holds_the_address() {
        let addr = SockAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 80);
        let gid = of_addr(&addr);
        assert_eq!(gid.0[..12], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]);
        assert_eq!(gid.0[12..], [192, 0, 2, 1]);
        let addr = SockAddr::new(IpAddr::V6(v6(7)), 80);
        assert_eq!(of_addr(&addr).0, v6(7).octets());
    }
}
