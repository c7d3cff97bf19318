// SPDX-License-Identifier: GPL-2.0

//! Out-of-band connect: the queue pairs of a device that await a connection without `rdma_cm`.
//!
//! The search of a queue pair ([`search`]) registers it here. While one waits at an address, a
//! listener is open there ([`crate::cm::listen`]). It admits only connections from the address of a
//! peer that a queue pair waits for, and closes others before it reads an octet. The search checks
//! the Request. Wrong PSNs are counted here by source address, as long as a queue pair waits for
//! that address.
//!
//! The port is held ([`ports`]) from the time the device is made or the port is set, so that no
//! other program can listen there. If that fails because a program uses the port, each queue pair
//! that starts to wait tries again, and fails if it cannot hold the port.
//!
//! Locks: `inner` is held while a listener is opened or closed, so that its address is free for the
//! next one: `inner` > held ports > socket. Context: process. docs/connections.md.

use iwarp::oob::{
    AddrPair,
    Announcement,
    Mismatch,
    Pair,
    QpNumber,
    WrongGuesses, //
};
use kernel::{
    new_mutex,
    prelude::*,
    rbtree::{
        RBTree,
        RBTreeNode, //
    },
    sync::{
        Arc,
        Mutex, //
    },
    time::{
        Instant,
        Monotonic, //
    }, //
};
use kernel_ext::{
    compat::ECONNREFUSED,
    mm::noio::without_io,
    net::{
        SockAddr,
        Socket, //
    }, //
};

use crate::{
    cm::{
        conn::plain,
        listen::{
            self,
            Listener, //
        },
        Cm, //
    },
    device::{
        gid,
        Device, //
    },
};

use self::{
    ports::{
        HeldPorts,
        PortHold, //
    },
    search::OobSearches, //
};

pub(crate) mod conn;
pub(crate) mod ports;
pub(super) mod search;

/// The waiting queue pairs of a device.
#[pin_data]
pub(crate) struct OobWaiters {
    ports: Arc<HeldPorts>,
    /// The zero of the clock that expires wrong guesses.
    born: Instant<Monotonic>,
    #[pin]
    inner: Mutex<OobWaitersInner>,
    #[pin]
    pub(super) searches: OobSearches,
}

struct OobWaitersInner {
    /// The configured port, unless it is 0 or in use by a program.
    hold: Option<PortHold>,
    /// Address pair and number of each waiting queue pair, and how many of its searches have not
    /// ended: after a reset the new one may begin before the old one is dropped.
    waiting: RBTree<(AddrPair, QpNumber), usize>,
    /// The peers that queue pairs wait for, by address.
    peers: RBTree<[u8; 16], Peer>,
    listeners: KVec<OobListener>,
}

/// A host that queue pairs wait for.
struct Peer {
    wrong: WrongGuesses,
    /// How many queue pairs wait for it.
    users: usize,
}

/// A listener and the number of queue pairs that use it.
struct OobListener {
    addr: SockAddr,
    listener: Arc<Listener>,
    users: usize,
    /// Held separately, because the setting may change meanwhile.
    _hold: PortHold,
}

impl OobWaiters {
    /// Makes an empty table that holds no port.
    pub(crate) fn new(ports: Arc<HeldPorts>) -> impl PinInit<Self> {
        pin_init!(Self {
            ports,
            born: Instant::now(),
            inner <- new_mutex!(
                OobWaitersInner {
                    hold: None,
                    waiting: RBTree::new(),
                    peers: RBTree::new(),
                    listeners: KVec::new(),
                },
                "riwarp::OobWaiters::inner"
            ),
            searches <- OobSearches::new(),
        })
    }

    /// Holds the configured port, unless it is held already.
    ///
    /// # Errors
    ///
    /// Those of [`OobWaiters::set_port`].
    pub(crate) fn hold_port(&self, device: &Device) -> Result {
        self.locked(|inner| inner.hold_port(&self.ports, device))
    }

    /// Runs `f` with the lock held, which steps of connections take, too: so allocations must not
    /// start I/O.
    fn locked<R>(&self, f: impl FnOnce(&mut OobWaitersInner) -> R) -> R {
        without_io(|| f(&mut self.inner.lock()))
    }

    /// Changes the configured port and holds it; 0 holds none. Queue pairs that wait keep their
    /// port. On error the setting does not change.
    ///
    /// # Errors
    ///
    /// * `EADDRINUSE` if a program has bound the port, and others of TCP.
    /// * `ENODEV` if the device or its namespace is being removed.
    /// * `ENOMEM`.
    pub(crate) fn set_port(&self, device: &Device, port: u16) -> Result {
        self.locked(|inner| {
            let hold = match port {
                0 => None,
                port => Some(hold(&self.ports, device, port)?),
            };
            device.settings.set_pairing_port(port);
            inner.hold = hold;
            Ok(())
        })
    }

    /// Releases the port of a device that is being removed.
    pub(crate) fn shut_down(&self) {
        self.inner.lock().hold = None;
    }

    /// Checks that a queue pair waits for the peer of a new connection.
    ///
    /// # Errors
    ///
    /// `ECONNREFUSED` if none does, `ENOTCONN` if the connection has gone again.
    pub(super) fn check_peer(&self, device: &Device, socket: &Socket) -> Result {
        let addrs = addrs_of(socket)?;
        // A process may hold it for long, and this runs in the queue of all connections. The peer's
        // Request is checked too.
        let Some(inner) = self.inner.try_lock() else {
            return Ok(());
        };
        let first = inner.waiting.cursor_lower_bound(&(addrs, QpNumber::new(0)));
        if first.is_some_and(|cursor| cursor.current().0 .0 == addrs) {
            return Ok(());
        }
        drop(inner);
        device.stats.pairing_refusals.inc();
        Err(ECONNREFUSED)
    }

    /// Checks a peer's announcement for a waiting queue pair.
    ///
    /// # Errors
    ///
    /// `ECONNREFUSED` if it does not fit, `EAGAIN` while another thread holds the table.
    fn check_call(
        &self,
        device: &Device,
        pair: &Pair,
        addrs: &AddrPair,
        theirs: &Announcement,
    ) -> Result {
        // CAST: Not negative.
        let now = self.born.elapsed().as_millis() as u64;
        let mut inner = self.inner.try_lock().ok_or(EAGAIN)?;
        // Without one the queue pair does not wait any more.
        let peer = inner.peers.get_mut(&pair.remote.gid).ok_or(ECONNREFUSED)?;
        pair.check_call(addrs, theirs, &mut peer.wrong, now)
            .map_err(|mismatch| {
                if mismatch == Mismatch::Limited {
                    device.stats.pairing_limited.inc();
                }
                ECONNREFUSED
            })
    }
}

impl OobWaitersInner {
    fn hold_port(&mut self, ports: &Arc<HeldPorts>, device: &Device) -> Result {
        if self.hold.is_none() {
            if let Some(port) = device.settings.pairing_port() {
                self.hold = Some(hold(ports, device, port)?);
            }
        }
        Ok(())
    }

    /// Counts one more user of a listener, which is opened if necessary.
    fn get(&mut self, cm: &Arc<Cm>, addr: SockAddr) -> Result {
        if let Some(entry) = self.listeners.iter_mut().find(|entry| entry.addr == addr) {
            // NO-OVERFLOW: far fewer queue pairs exist.
            entry.users = entry.users.saturating_add(1);
            return Ok(());
        }
        self.listeners.reserve(1, GFP_KERNEL_ACCOUNT)?;
        let hold = hold(&cm.oob_waiters.ports, &cm.device, addr.port())?;
        let listener = listen::await_peers(cm, addr)?;
        let entry = OobListener {
            addr,
            listener,
            users: 1,
            _hold: hold,
        };
        Ok(self.listeners.push(entry, GFP_KERNEL_ACCOUNT)?)
    }

    /// Counts one user of a listener less; the last one closes it.
    fn put(&mut self, addr: SockAddr) {
        let Some(index) = self.listeners.iter().position(|entry| entry.addr == addr) else {
            return;
        };
        let Some(entry) = self.listeners.get_mut(index) else {
            return;
        };
        entry.users = entry.users.saturating_sub(1);
        if entry.users == 0 {
            if let Ok(entry) = self.listeners.remove(index) {
                listen::destroy_listen(entry.listener);
            }
        }
    }
}

impl Cm {
    /// Registers a queue pair that waits for its peer at an address of the device, until
    /// [`Cm::end_wait`].
    ///
    /// # Errors
    ///
    /// * `EADDRNOTAVAIL` if the device does not have the address, `EADDRINUSE` if a program uses
    ///   the port, and others of TCP.
    /// * `ENODEV` if the device is being removed.
    /// * `ENOMEM`.
    fn wait(self: &Arc<Self>, pair: &Pair, addr: SockAddr) -> Result {
        let oob_waiters = &self.oob_waiters;
        let peer = Peer {
            wrong: WrongGuesses::default(),
            users: 1,
        };
        // The caller holds its queue pair's attributes, a lock that steps take, too.
        let (node, peer) = without_io(|| -> Result<_> {
            Ok((
                RBTreeNode::new(key(pair), 1, GFP_KERNEL_ACCOUNT)?,
                RBTreeNode::new(pair.remote.gid, peer, GFP_KERNEL_ACCOUNT)?,
            ))
        })?;
        oob_waiters.locked(|inner| {
            inner.hold_port(&oob_waiters.ports, &self.device)?;
            inner.get(self, addr)?;
            match inner.waiting.get_mut(&key(pair)) {
                Some(searches) => *searches = searches.saturating_add(1),
                None => drop(inner.waiting.insert(node)),
            }
            match inner.peers.get_mut(&pair.remote.gid) {
                // NO-OVERFLOW: far fewer queue pairs exist.
                Some(peer) => peer.users = peer.users.saturating_add(1),
                None => drop(inner.peers.insert(peer)),
            }
            Ok(())
        })
    }

    /// Ends a wait that has begun with this pair and address.
    fn end_wait(&self, pair: &Pair, addr: SockAddr) {
        let mut inner = self.oob_waiters.inner.lock();
        if let Some(mut found) = inner.waiting.find_mut(&key(pair)) {
            let searches = found.get().saturating_sub(1);
            *found.get_mut() = searches;
            if searches == 0 {
                found.remove();
            }
        }
        inner.put(addr);
        if let Some(mut found) = inner.peers.find_mut(&pair.remote.gid) {
            let users = found.get().users.saturating_sub(1);
            found.get_mut().users = users;
            if users == 0 {
                found.remove();
            }
        }
    }
}

/// Returns where the table of waiting queue pairs has this one.
fn key(pair: &Pair) -> (AddrPair, QpNumber) {
    (pair.addrs(), pair.local.number)
}

/// Holds a port in the namespace of a device.
fn hold(ports: &Arc<HeldPorts>, device: &Device, port: u16) -> Result<PortHold> {
    if device.is_going() {
        return Err(ENODEV);
    }
    ports.hold(&device.net()?, port)
}

/// Returns the addresses of a connection.
///
/// # Errors
///
/// `ENOTCONN` if it is not connected any more.
pub(super) fn addrs_of(socket: &Socket) -> Result<AddrPair> {
    Ok(AddrPair {
        local: gid::of_addr(&plain(socket.local_addr()?)).0,
        remote: gid::of_addr(&plain(socket.peer_addr()?)).0,
    })
}

#[kernel::prelude::kunit_tests(riwarp_oob_waiters)]
mod tests {
    use super::*;
    use crate::bench::Bench;
    use iwarp::oob::{
        FeatureBits,
        Psn,
        QpAddr, //
    };
    use kernel_ext::{
        mm::noio::bench::with_io_waiting,
        net::{
            bench::address,
            Family, //
        }, //
    };

    #[test]
    fn a_queue_pair_waits_until_its_last_search_ends() -> Result {
        let bench = Bench::new()?;
        let cm = &bench.rdma.cm;
        let end = |number| QpAddr {
            gid: [0; 16],
            number: QpNumber::new(number),
        };
        let pair = Pair {
            local: end(1),
            remote: end(2),
            receive_psn: Psn::new(1),
            send_psn: None,
            features: FeatureBits::NONE,
            rnr_retry: None,
        };
        let here = address(Family::V4, 0);
        let waits = || {
            let inner = cm.oob_waiters.inner.lock();
            (
                inner.waiting.get(&key(&pair)).is_some(),
                inner.peers.get(&pair.remote.gid).is_some(),
                inner.listeners.len(),
            )
        };
        // The search of a reset queue pair ends after the next one has begun.
        cm.wait(&pair, here)?;
        cm.wait(&pair, here)?;
        cm.end_wait(&pair, here);
        assert_eq!(waits(), (true, true, 1));
        // Steps of connections, which disk I/O may wait for, look here, too.
        with_io_waiting(waits);
        cm.end_wait(&pair, here);
        assert_eq!(waits(), (false, false, 0));
        Ok(())
    }
}
