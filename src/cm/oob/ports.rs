// SPDX-License-Identifier: GPL-2.0

//! Held TCP ports: no program of the network namespace can bind one, on any address. The driver's
//! own listeners bind in spite of the hold ([`Reuse::Always`]).
//!
//! Devices of one namespace that want the same port share it. A held port is a socket for each
//! protocol, bound to the wildcard address, which does not listen: TCP answers a connection with a
//! reset, as if the port were free.
//!
//! (TCP treats each VRF separately, so a program bound to one may have the port there.)
//!
//! Lock: `list` is held while sockets are opened or closed, so that a port is free for the next
//! one: `list` > socket. Context: process.

use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    }, //
};
use kernel_ext::{
    compat::EAFNOSUPPORT,
    mm::noio::without_io,
    net::{
        Family,
        NetId,
        NetRef,
        Reuse,
        SockAddr,
        Socket, //
    },
    warn_on_once, //
};

/// The ports that devices hold.
#[pin_data]
pub(crate) struct HeldPorts {
    #[pin]
    list: Mutex<KVec<HeldPort>>,
}

/// A port and the sockets that reserve it.
struct HeldPort {
    place: (NetId, u16),
    /// The number of [`PortHold`]s.
    holders: usize,
    _v4: Socket,
    /// [`None`] if the kernel runs without IPv6.
    _v6: Option<Socket>,
}

/// A share in a held port; dropping the last one releases the port.
pub(super) struct PortHold {
    ports: Arc<HeldPorts>,
    place: (NetId, u16),
}

impl HeldPorts {
    /// Makes an empty list.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                list <- new_mutex!(KVec::new(), "riwarp::HeldPorts::list"),
            }),
            GFP_KERNEL,
        )
    }

    /// Holds a port, whatever the rights of the current task. The hold must be dropped before the
    /// namespace ends ([`kernel_ext::net::NetnsExit`]).
    ///
    /// # Errors
    ///
    /// * `EADDRINUSE` if a program has bound it.
    /// * `ENOMEM` and others of TCP.
    pub(super) fn hold(self: &Arc<Self>, net: &NetRef, port: u16) -> Result<PortHold> {
        let place = (net.id(), port);
        // Steps of connections, on which disk I/O may depend, take the lock, too.
        without_io(|| -> Result {
            let mut list = self.list.lock();
            match list.iter_mut().find(|held| held.place == place) {
                // NO-OVERFLOW: far fewer devices and queue pairs exist.
                Some(held) => held.holders = held.holders.saturating_add(1),
                None => list.push(HeldPort::bind(net, port)?, GFP_KERNEL)?,
            }
            Ok(())
        })?;
        Ok(PortHold {
            ports: self.clone(),
            place,
        })
    }
}

impl HeldPort {
    /// Binds a port for its first holder.
    fn bind(net: &NetRef, port: u16) -> Result<Self> {
        Ok(Self {
            place: (net.id(), port),
            holders: 1,
            _v4: bound(net, Family::V4, port)?,
            _v6: match bound(net, Family::V6, port) {
                Err(error) if error == EAFNOSUPPORT => None,
                bound => Some(bound?),
            },
        })
    }
}

impl Drop for PortHold {
    fn drop(&mut self) {
        let mut list = self.ports.list.lock();
        let index = list.iter().position(|held| held.place == self.place);
        // The port stays in the list until its last holder goes.
        warn_on_once!(index.is_none());
        let Some((index, held)) =
            index.and_then(|index| list.get_mut(index).map(|held| (index, held)))
        else {
            return;
        };
        held.holders = held.holders.saturating_sub(1);
        if held.holders == 0 {
            // Closed with the lock held: when the list has no entry for a port, the port is free.
            drop(list.remove(index));
        }
    }
}

/// Makes a socket that reserves a port of one protocol.
///
/// Earlier connections on the port may linger, so the socket is bound with `SO_REUSEADDR`, which is
/// then cleared. But TCP also caches that all sockets of the port share it (`fastreuse`), and then
/// skips checking each of them. It clears the cache when a socket listens, so this one does, for a
/// moment. (Linux 7.3 never sets this cache: `inet_csk_update_fastreuse()` takes the port's first
/// socket for a further one. The hold must not depend on that.)
fn bound(net: &NetRef, family: Family, port: u16) -> Result<Socket> {
    let socket = Socket::new_tcp(net, family)?.into_listener();
    if family == Family::V6 {
        socket.set_v6only(true)?;
    }
    let mut addr = SockAddr::unspecified(family);
    addr.set_port(port);
    socket.set_reuse(Reuse::Lingering);
    socket.bind_privileged(&addr)?;
    socket.listen(0)?;
    // Set before it stops listening, so that no other socket can start in between.
    socket.set_reuse(Reuse::Never);
    socket.stop_listening();
    Ok(socket)
}

#[kernel::prelude::kunit_tests(riwarp_held_ports)]
mod tests {
    use super::*;
    use kernel_ext::compat::EADDRINUSE;

    /// Tries to bind a port as a program would.
    fn bind(addr: &SockAddr, reuse: Reuse) -> Result<Socket> {
        let socket = Socket::new_tcp(&NetRef::init_net(), addr.family())?;
        socket.set_reuse(reuse);
        socket.bind(addr)?;
        Ok(socket)
    }

    /// The wildcard address and one of the host's, in both protocols.
    fn addresses(port: u16) -> [SockAddr; 4] {
        use core::net::{
            IpAddr,
            Ipv4Addr,
            Ipv6Addr, //
        };
        [
            SockAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), port),
            SockAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port),
            SockAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), port),
            SockAddr::new(IpAddr::V6(Ipv6Addr::LOCALHOST), port),
        ]
    }

    fn is_everybodys(port: u16) -> bool {
        let addresses = addresses(port);
        let mut bound = addresses.iter().map(|addr| bind(addr, Reuse::Lingering));
        bound.all(|bound| bound.is_ok())
    }

    fn is_nobodys(port: u16) -> bool {
        addresses(port).iter().all(|addr| {
            [Reuse::Never, Reuse::Lingering]
                .iter()
                .all(|reuse| bind(addr, *reuse).err() == Some(EADDRINUSE))
        })
    }

    #[test]
    fn held_port_is_freed_with_last_holder() -> Result {
        let (ports, net) = (HeldPorts::new()?, NetRef::init_net());
        assert!(is_everybodys(PORT));
        let first = ports.hold(&net, PORT)?;
        assert!(is_nobodys(PORT));
        let second = ports.hold(&net, PORT)?;
        drop(first);
        assert!(is_nobodys(PORT) && is_everybodys(PORT + 1));
        drop(second);
        assert!(is_everybodys(PORT));
        assert!(ports.list.lock().is_empty());
        Ok(())
    }

    #[test]
    fn bound_port_cannot_be_held() -> Result {
        let (ports, net) = (HeldPorts::new()?, NetRef::init_net());
        for addr in addresses(PORT) {
            let theirs = bind(&addr, Reuse::Never)?;
            assert_eq!(ports.hold(&net, PORT).err(), Some(EADDRINUSE));
            drop(theirs);
            // Not even half of it stays held.
            assert!(is_everybodys(PORT));
        }
        Ok(())
    }

    /// A program that was bound before the hold cannot listen during it.
    #[test]
    fn socket_bound_before_hold_cannot_listen() -> Result {
        let (ports, net) = (HeldPorts::new()?, NetRef::init_net());
        for addr in addresses(PORT) {
            let theirs = bind(&addr, Reuse::Lingering)?.into_listener();
            let hold = ports.hold(&net, PORT)?;
            assert_eq!(theirs.listen(1).err(), Some(EADDRINUSE));
            drop(hold);
            theirs.listen(1)?;
            assert_eq!(ports.hold(&net, PORT).err(), Some(EADDRINUSE));
        }
        Ok(())
    }

    #[test]
    fn driver_socket_listens_on_held_port() -> Result {
        let (ports, net) = (HeldPorts::new()?, NetRef::init_net());
        let hold = ports.hold(&net, PORT)?;
        for addr in addresses(PORT) {
            let ours = bind(&addr, Reuse::Always)?.into_listener();
            ours.listen(1)?;
            assert!(is_nobodys(PORT));
            drop(ours);
            assert!(is_nobodys(PORT));
        }
        drop(hold);
        assert!(is_everybodys(PORT));
        Ok(())
    }

    /// Used by no other test, and not an ephemeral port.
    const PORT: u16 = 24_793;
}
