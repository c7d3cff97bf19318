// SPDX-License-Identifier: GPL-2.0

//! What KUnit suites of a driver need of a network: sockets of the loopback interface, and waiting
//! for what they do.
//!
//! None of this is there in a kernel without KUnit. Context: process.

use crate::net::Connecting;
use crate::net::Family;
use crate::net::NetRef;
use crate::net::SockAddr;
use crate::net::Socket;
use crate::net::TcpState;
use core::net::IpAddr;
use core::net::Ipv4Addr;
use core::net::Ipv6Addr;
use kernel::prelude::*;
use kernel::time::delay::fsleep;
use kernel::time::Delta;

/// The address of the loopback interface, with a port.
pub fn address(family: Family, port: u16) -> SockAddr {
    let ip = match family {
        Family::V4 => IpAddr::V4(Ipv4Addr::LOCALHOST),
        Family::V6 => IpAddr::V6(Ipv6Addr::LOCALHOST),
    };
    SockAddr::new(ip, port)
}

/// A socket that has done nothing yet.
pub fn socket(family: Family) -> Result<Socket> {
    Socket::new_tcp(&NetRef::init_net(), family)
}

/// A socket that listens on a port that was free.
pub fn listener(family: Family) -> Result<Socket> {
    let listener = socket(family)?.into_listener();
    listener.bind(&address(family, 0))?;
    listener.listen(4)?;
    Ok(listener)
}

/// The ends of a connection: who asked, who was asked.
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

/// Runs `f` while TCP offers new peers a small window at first, as where an administrator has asked
/// for that.
pub fn with_small_windows<R>(f: impl FnOnce() -> R) -> R {
    let set = |small: u8| {
        let net = NetRef::init_net().as_raw();
        // SAFETY: The first namespace lives for ever; others read and write the setting at any
        // time.
        unsafe {
            (&raw mut (*net).ipv4.sysctl_tcp_workaround_signed_windows).write_volatile(small);
        }
    };
    set(1);
    let result = f();
    set(0);
    result
}

/// How many octets the peer lets the socket send beyond those that it has acknowledged: its receive
/// window.
pub fn window(socket: &Socket) -> u32 {
    // SAFETY: `tp` points to a valid TCP socket for as long as `socket` is borrowed; the value may
    // change at any time.
    unsafe { (&raw const (*socket.tp()).snd_wnd).read_volatile() }
}

/// Waits until something is so: softirqs may run on another thread.
///
/// # Errors
///
/// `ETIMEDOUT` if it was not so for more than five seconds.
pub fn eventually(mut is_so: impl FnMut() -> bool) -> Result {
    for _ in 0..5000 {
        if is_so() {
            return Ok(());
        }
        fsleep(Delta::from_millis(1));
    }
    Err(ETIMEDOUT)
}
