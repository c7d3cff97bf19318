// SPDX-License-Identifier: GPL-2.0

//! The networks that join the guests of a run: one for each of their interfaces. A network is a
//! socket for each guest, with frames of Ethernet as messages, and threads that pass them on. It
//! needs no privilege, and is for function, not for figures.

use riwarp_run::{link_address, Failure};
use rustix::io::{fcntl_setfd, FdFlags};
use rustix::net::sockopt::set_socket_send_buffer_size;
use rustix::net::{
    recv, send, socketpair, AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType,
};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::thread;

/// The longest frame, with room for what an MTU does not count.
const FRAME_MAX: usize = (64 << 10) + 64;

/// What a socket holds before frames are lost, in octets.
const HELD: usize = 4 << 20;

/// The ends of the networks that are the guests'.
pub(crate) struct Wires {
    /// For each guest, a socket for each interface.
    ends: Vec<Vec<OwnedFd>>,
}

impl Wires {
    /// Makes a network for each of `interfaces`, which join all of `hosts`; none for one host.
    pub(crate) fn new(hosts: u32, interfaces: u32) -> Result<Self, Failure> {
        let mut ends: Vec<Vec<OwnedFd>> = (0..hosts).map(|_| Vec::new()).collect();
        if hosts > 1 {
            for _ in 0..interfaces {
                network(&mut ends).map_err(|error| format!("a network: {error}"))?;
            }
        }
        Ok(Self { ends })
    }

    /// Takes the sockets of a host, in a form that a process that is started inherits.
    pub(crate) fn take(&mut self, host: u32) -> Result<Vec<OwnedFd>, Failure> {
        let ends = std::mem::take(&mut self.ends[host as usize - 1]);
        for end in &ends {
            fcntl_setfd(end, FdFlags::empty()).map_err(|error| format!("a network: {error}"))?;
        }
        Ok(ends)
    }
}

/// The argument by which a guest's kernel takes the socket of an interface.
pub(crate) fn argument(number: usize, host: u32, mtu: u32, end: &OwnedFd) -> String {
    let fd = end.as_raw_fd();
    // At most 16 interfaces and 8 hosts.
    let mac = link_address(number as u8, host as u8)
        .map(|octet| format!("{octet:02x}"))
        .join(":");
    format!("vec{number}:transport=fd,fd={fd},mac={mac},depth=128,vec=1,mtu={mtu}")
}

/// Adds the socket of a new network to the ends of each host.
fn network(ends: &mut [Vec<OwnedFd>]) -> io::Result<()> {
    let mut ours = Vec::new();
    for host in ends {
        let (our, their) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        for end in [&our, &their] {
            // The kernel gives what it permits.
            set_socket_send_buffer_size(end, HELD)?;
        }
        ours.push(our);
        host.push(their);
    }
    let ours = Arc::new(ours);
    for from in 0..ours.len() {
        let ours = ours.clone();
        thread::spawn(move || pass_on(&ours, from));
    }
    Ok(())
}

/// Passes on what a guest sends, until it ends. A frame for which another one has no room is lost,
/// as in any switch.
fn pass_on(all: &[OwnedFd], from: usize) {
    let mut frame = vec![0; FRAME_MAX];
    while let Ok((length @ 1.., _)) = recv(&all[from], &mut frame[..], RecvFlags::empty()) {
        for (to, socket) in all.iter().enumerate() {
            if to != from {
                let _ = send(
                    socket,
                    &frame[..length],
                    SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
                );
            }
        }
    }
}
