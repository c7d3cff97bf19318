// SPDX-License-Identifier: GPL-2.0

//! Pairing: the queue pairs of a device that wait for a connection without `rdma_cm`.
//!
//! What enters: queue pairs that begin to wait, or stop ([`Pairings::wait`], [`Waiting`]), and from
//! [`crate::listen`] the connections that came. What leaves: a listener on each address where a queue
//! pair waits, as long as one does; and who may come in at all: only a peer whose address is that of
//! a waiting queue pair's peer. Anybody else is closed at once, before a single octet is read.
//!
//! Whether a visitor is the one that is waited for, the queue pair itself says, when the Request is here
//! (`qp::pairing`).
//!
//! Locks: `inner` is held while a listener is opened or closed, so that its address is free for the
//! next one: `inner` > socket. Context: process. docs/connections.md.

use iwarp::pairing::{
    Pair,
    QpNumber,
    Route, //
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
    }, //
};
use kernel_ext::net::{
    SockAddr,
    Socket, //
};

use crate::{
    conn::plain,
    device::Device,
    gid,
    listen::{
        self,
        Listener, //
    }, //
};

/// The waiting queue pairs of a device.
#[pin_data]
pub(crate) struct Pairings {
    #[pin]
    inner: Mutex<Inner>,
}

struct Inner {
    /// Addresses and number of each.
    waiting: RBTree<(Route, QpNumber), ()>,
    posts: KVec<Post>,
}

/// A listener, and how many queue pairs need it.
struct Post {
    addr: SockAddr,
    listener: Arc<Listener>,
    users: usize,
}

/// A queue pair's place among those that wait. Dropping it gives it up.
pub(crate) struct Waiting {
    device: Arc<Device>,
    key: (Route, QpNumber),
    addr: SockAddr,
}

impl Pairings {
    /// Makes one in which nobody waits.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            inner <- new_mutex!(
                Inner {
                    waiting: RBTree::new(),
                    posts: KVec::new(),
                },
                "riwarp::Pairings::inner"
            ),
        })
    }

    /// Lets a queue pair wait for its peer at an address of the device.
    ///
    /// # Errors
    ///
    /// * `EADDRNOTAVAIL` if the device does not have the address, `EADDRINUSE` if somebody else listens
    ///   there, and others of TCP.
    /// * `ENODEV` if the device is going.
    /// * `ENOMEM`.
    pub(crate) fn wait(device: &Arc<Device>, pair: &Pair, addr: SockAddr) -> Result<Waiting> {
        let key = (pair.route(), pair.local.number);
        let node = RBTreeNode::new(key, (), GFP_KERNEL_ACCOUNT)?;
        let mut inner = device.pairings.inner.lock();
        inner.man(device, addr)?;
        inner.waiting.insert(node);
        Ok(Waiting {
            device: device.clone(),
            key,
            addr,
        })
    }

    /// Checks whether anybody waits for somebody at the other end of a connection that has just come.
    ///
    /// # Errors
    ///
    /// `ECONNREFUSED` if nobody does, `ENOTCONN` if it has gone again.
    pub(crate) fn check_visitor(&self, device: &Device, socket: &Socket) -> Result {
        let route = route_of(socket)?;
        let inner = self.inner.lock();
        let first = inner.waiting.cursor_lower_bound(&(route, QpNumber::new(0)));
        if first.is_some_and(|cursor| cursor.current().0 .0 == route) {
            return Ok(());
        }
        drop(inner);
        device.stats.pairing_refusals.inc();
        Err(ECONNREFUSED)
    }
}

impl Inner {
    /// Counts one more user of a listener, which is opened if it is not there.
    fn man(&mut self, device: &Arc<Device>, addr: SockAddr) -> Result {
        if let Some(post) = self.posts.iter_mut().find(|post| post.addr == addr) {
            // NO-OVERFLOW: there are far less queue pairs.
            post.users = post.users.saturating_add(1);
            return Ok(());
        }
        self.posts.reserve(1, GFP_KERNEL_ACCOUNT)?;
        let listener = listen::await_peers(device, addr)?;
        let post = Post {
            addr,
            listener,
            users: 1,
        };
        Ok(self.posts.push(post, GFP_KERNEL_ACCOUNT)?)
    }

    /// Counts one user of a listener less, and closes it with the last one.
    fn unman(&mut self, addr: SockAddr) {
        let Some(index) = self.posts.iter().position(|post| post.addr == addr) else {
            return;
        };
        let Some(post) = self.posts.get_mut(index) else {
            return;
        };
        post.users = post.users.saturating_sub(1);
        if post.users == 0 {
            if let Ok(post) = self.posts.remove(index) {
                listen::destroy_listen(post.listener);
            }
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut inner = self.device.pairings.inner.lock();
        inner.waiting.remove(&self.key);
        inner.unman(self.addr);
    }
}

/// The addresses of a connection.
///
/// # Errors
///
/// `ENOTCONN` if there is none any more.
pub(crate) fn route_of(socket: &Socket) -> Result<Route> {
    Ok(Route {
        local: gid::of_addr(&plain(socket.local_addr()?)).0,
        remote: gid::of_addr(&plain(socket.peer_addr()?)).0,
    })
}
