// SPDX-License-Identifier: GPL-2.0

//! The guest's interfaces, addresses and RDMA devices, by netlink.

use rustix::net::netdevice::name_to_index;
use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{
    bind, recv, send, socket_with, AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags,
    SocketType,
};
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;

// include/uapi/linux/netlink.h
const NLM_F_REQUEST: u16 = 0x01;
const NLM_F_ACK: u16 = 0x04;
const NLM_F_EXCL: u16 = 0x200;
const NLM_F_CREATE: u16 = 0x400;
const NLMSG_ERROR: u16 = 2;
// include/uapi/linux/rtnetlink.h, if_link.h, if_addr.h, if.h, neighbour.h
const RTM_NEWLINK: u16 = 16;
const RTM_NEWADDR: u16 = 20;
const RTM_NEWNEIGH: u16 = 28;
const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_FLAGS: u16 = 8;
const IFA_F_NODAD: u32 = 0x02;
const IFF_UP: u32 = 1;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
const NUD_PERMANENT: u16 = 0x80;
// include/uapi/rdma/rdma_netlink.h
const RDMA_NLDEV_NEWLINK: u16 = (5 << 10) | 3;
const RDMA_NLDEV_ATTR_DEV_NAME: u16 = 2;
const RDMA_NLDEV_ATTR_NDEV_NAME: u16 = 51;
const RDMA_NLDEV_ATTR_LINK_TYPE: u16 = 65;

/// A request that is acknowledged. In memory as on the socket: native order, units of 4 octets.
struct Request(Vec<u8>);

impl Request {
    fn new(kind: u16, flags: u16, header: &[u8]) -> Self {
        let mut octets = vec![0; 4];
        octets.extend(kind.to_ne_bytes());
        octets.extend((NLM_F_REQUEST | NLM_F_ACK | flags).to_ne_bytes());
        octets.extend([0; 8]);
        octets.extend(header);
        Self(octets)
    }

    fn attribute(mut self, kind: u16, value: &[u8]) -> Self {
        self.0.extend(attribute(kind, value));
        self
    }

    fn text(self, kind: u16, value: &str) -> Self {
        self.attribute(kind, &[value.as_bytes(), &[0]].concat())
    }

    fn carry_out(mut self, socket: &OwnedFd) -> io::Result<()> {
        let length = self.0.len() as u32;
        self.0[..4].copy_from_slice(&length.to_ne_bytes());
        send(socket, &self.0, SendFlags::empty())?;
        let mut answer = [0; 4096];
        let (length, _) = recv(socket, &mut answer[..], RecvFlags::empty())?;
        // The head of the answer, and the error behind it.
        let &[_, _, _, _, a, b, _, _, _, _, _, _, _, _, _, _, e, f, g, h, ..] = &answer[..length]
        else {
            return Err(io::Error::other("netlink's answer is too short"));
        };
        if u16::from_ne_bytes([a, b]) != NLMSG_ERROR {
            return Err(io::Error::other("netlink's answer is no acknowledgement"));
        }
        match i32::from_ne_bytes([e, f, g, h]) {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(-error)),
        }
    }
}

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut octets = Vec::new();
    // Nothing here is as long as 64 KiB.
    octets.extend(((value.len() + 4) as u16).to_ne_bytes());
    octets.extend(kind.to_ne_bytes());
    octets.extend(value);
    octets.resize(octets.len().next_multiple_of(4), 0);
    octets
}

/// struct ifinfomsg
fn link(index: u32, flags: u32) -> [u8; 16] {
    let mut message = [0; 16];
    message[4..8].copy_from_slice(&index.to_ne_bytes());
    message[8..12].copy_from_slice(&flags.to_ne_bytes());
    message[12..].copy_from_slice(&flags.to_ne_bytes());
    message
}

/// AF_INET or AF_INET6, and the octets of the address.
fn family_and_octets(address: IpAddr) -> (u8, Vec<u8>) {
    match address {
        IpAddr::V4(address) => (2, address.octets().to_vec()),
        IpAddr::V6(address) => (10, address.octets().to_vec()),
    }
}

/// The socket of one netlink family.
pub(crate) struct Netlink(OwnedFd);

impl Netlink {
    fn open(family: Option<Protocol>) -> io::Result<Self> {
        let socket = socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            family,
        )?;
        bind(&socket, &SocketAddrNetlink::new(0, 0))?;
        Ok(Self(socket))
    }

    /// For interfaces and addresses.
    pub(crate) fn route() -> io::Result<Self> {
        // NETLINK_ROUTE is 0.
        Self::open(None)
    }

    /// For RDMA devices.
    pub(crate) fn rdma() -> io::Result<Self> {
        Self::open(Some(netlink::RDMA))
    }

    /// Sets an interface up.
    pub(crate) fn up(&self, index: u32) -> io::Result<()> {
        Request::new(RTM_NEWLINK, 0, &link(index, IFF_UP)).carry_out(&self.0)
    }

    /// Creates an interface that has no wire, and sets it up. What is sent between addresses of a
    /// host never reaches a wire.
    pub(crate) fn dummy(
        &self,
        index: u32,
        name: &str,
        address: [u8; 6],
        mtu: u32,
    ) -> io::Result<()> {
        Request::new(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, &link(index, IFF_UP))
            .text(IFLA_IFNAME, name)
            .attribute(IFLA_ADDRESS, &address)
            .attribute(IFLA_MTU, &mtu.to_ne_bytes())
            .attribute(IFLA_LINKINFO, &attribute(IFLA_INFO_KIND, b"dummy"))
            .carry_out(&self.0)
    }

    /// Gives an interface another name, and sets it up; returns its number.
    pub(crate) fn rename(&self, from: &str, to: &str) -> io::Result<u32> {
        let index = name_to_index(&self.0, from)?;
        Request::new(RTM_NEWLINK, 0, &link(index, 0))
            .text(IFLA_IFNAME, to)
            .carry_out(&self.0)?;
        self.up(index)?;
        Ok(index)
    }

    /// Says which link address a neighbour of an interface has, for good: nobody has to ask for it.
    pub(crate) fn neighbour(&self, index: u32, address: IpAddr, link: [u8; 6]) -> io::Result<()> {
        let (family, octets) = family_and_octets(address);
        // struct ndmsg
        let mut message = [0; 12];
        message[0] = family;
        message[4..8].copy_from_slice(&index.to_ne_bytes());
        message[8..10].copy_from_slice(&NUD_PERMANENT.to_ne_bytes());
        Request::new(RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_EXCL, &message)
            .attribute(NDA_DST, &octets)
            .attribute(NDA_LLADDR, &link)
            .carry_out(&self.0)
    }

    /// Gives an interface an address, which may be used at once.
    pub(crate) fn address(&self, index: u32, address: IpAddr, prefix: u8) -> io::Result<()> {
        // struct ifaddrmsg
        let (family, octets) = family_and_octets(address);
        let [a, b, c, d] = index.to_ne_bytes();
        Request::new(
            RTM_NEWADDR,
            NLM_F_CREATE | NLM_F_EXCL,
            &[family, prefix, 0, 0, a, b, c, d],
        )
        .attribute(IFA_LOCAL, &octets)
        .attribute(IFA_ADDRESS, &octets)
        .attribute(IFA_FLAGS, &IFA_F_NODAD.to_ne_bytes())
        .carry_out(&self.0)
    }

    /// Creates an RDMA device on an interface, as `rdma link add` does.
    pub(crate) fn device(&self, name: &str, link_type: &str, interface: &str) -> io::Result<()> {
        Request::new(RDMA_NLDEV_NEWLINK, 0, &[])
            .text(RDMA_NLDEV_ATTR_DEV_NAME, name)
            .text(RDMA_NLDEV_ATTR_LINK_TYPE, link_type)
            .text(RDMA_NLDEV_ATTR_NDEV_NAME, interface)
            .carry_out(&self.0)
    }
}
