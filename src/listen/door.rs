// SPDX-License-Identifier: GPL-2.0

//! Doors: the listening TCP sockets, and whose they are.
//!
//! What enters: listeners that want to be reached at an address, and TCP's word that a connection
//! waits. What leaves: accepted sockets, each with the listeners that it can be for.
//!
//! A listener on an address has a door of its own. One on the wildcard address has a door on its
//! device's interface only, so that every device can have one on the same port. (What this host sends
//! to itself counts as arriving on the interface that has the address: `__ip_route_output_key_hash_rcu`
//! and `ip6_rcv_core`.) Listeners of several consumers may want that same door; such doors stand on the
//! [`Porch`].
//!
//! Locks: the porch's list > a door's `inner` > socket, and `inner` > a listener's `waiting`. Context:
//! process; callbacks of TCP only queue work.

use kernel::{
    impl_has_delayed_work,
    new_delayed_work,
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        ArcBorrow,
        Mutex, //
    },
    time::msecs_to_jiffies,
    workqueue::{
        DelayedWork,
        WorkItem, //
    }, //
};
use kernel_ext::{
    mm::noio::without_io,
    net::{
        Family,
        Hooked,
        Inbound,
        NetId,
        Reuse,
        SockAddr,
        Socket,
        SocketEvents, //
    },
    rdma::iw_cm::CmId,
    sync::{
        BhOff,
        Slot, //
    },
    workqueue::{
        cancel_delayed,
        enqueue_delayed,
        DelayedItem,
        OwnedQueue, //
    },
};

use crate::{
    device::Device,
    queues::Queues, //
};

use super::{
    Listener,
    Origin, //
};

/// The doors that listeners share. Filled while the module is in service.
pub(crate) static PORCH: Slot<Porch> = Slot::empty();

/// A listening socket.
#[pin_data]
pub(super) struct Door {
    place: Place,
    queues: Arc<Queues>,
    #[pin]
    inner: Mutex<DoorInner>,
    #[pin]
    work: DelayedWork<Door>,
}

struct DoorInner {
    /// There until the last tenant leaves.
    socket: Option<Hooked<Door>>,
    tenants: KVec<Arc<Listener>>,
}

impl_has_delayed_work! {
    impl HasDelayedWork<Self> for Door { self.work }
}

impl DelayedItem for Door {
    fn queue(&self) -> &OwnedQueue {
        &self.queues.conn
    }
}

impl WorkItem for Door {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        // The steps of other connections wait behind it.
        without_io(|| this.let_in());
    }
}

impl SocketEvents for Door {
    fn data_ready(self: ArcBorrow<'_, Self>, _inbound: &mut Inbound<'_>, _off: BhOff<'_>) {
        Arc::from(self).kick();
    }

    fn write_space(self: ArcBorrow<'_, Self>) {}

    fn state_change(self: ArcBorrow<'_, Self>) {}
}

/// Those of a door, in the order in which they are asked; last one first.
fn in_turn(tenants: &[Arc<Listener>]) -> Result<KVec<Arc<Listener>>> {
    let mut asked = KVec::with_capacity(tenants.len(), GFP_KERNEL)?;
    for origin in [Origin::Unknown, Origin::Native] {
        for tenant in tenants.iter().filter(|tenant| tenant.origin == origin) {
            asked.push(tenant.clone(), GFP_KERNEL)?;
        }
    }
    Ok(asked)
}

/// A connection that came in.
struct Arrival {
    socket: Socket,
    /// Whom it can be for; last one first.
    listeners: KVec<Arc<Listener>>,
}

impl Arrival {
    fn admit(mut self) -> Result {
        let first = self.listeners.pop().ok_or(EADDRNOTAVAIL)?;
        first.admit(self.socket, self.listeners)
    }
}

impl Door {
    /// Opens one for its first tenant, who then has to kick it: somebody may have come already.
    fn open(tenant: &Arc<Listener>, plan: &Plan, place: Place) -> Result<Arc<Self>> {
        let socket = plan.socket(&tenant.device, place)?;
        let mut tenants = KVec::new();
        tenants.push(tenant.clone(), GFP_KERNEL)?;
        let door = Arc::pin_init(
            pin_init!(Self {
                place,
                queues: tenant.device.queues.clone(),
                inner <- new_mutex!(
                    DoorInner {
                        socket: None,
                        tenants,
                    },
                    "riwarp::Door::inner"
                ),
                work <- new_delayed_work!("riwarp::Door::work"),
            }),
            GFP_KERNEL,
        )?;
        let hooked = Hooked::new(socket.into_listener(), door.clone())?;
        hooked.listen(plan.backlog)?;
        door.inner.lock().socket = Some(hooked);
        Ok(door)
    }

    /// Lets the work item look who waits. Context: any.
    pub(super) fn kick(self: &Arc<Self>) {
        // One that is queued already, or will soon be, will do.
        let _ = self.queues.conn.enqueue(self.clone());
    }

    /// Lets in who waits, so many at a time that others get their turn.
    fn let_in(self: &Arc<Self>) {
        for _ in 0..BUDGET {
            let Some(arrival) = self.accept() else {
                return;
            };
            // A peer that cannot be let in sees its connection end.
            if let Err(error) = arrival.admit() {
                pr_debug!("a connection could not be let in: {:?}\n", error);
            }
        }
        self.kick();
    }

    /// Takes a connection that waits.
    fn accept(self: &Arc<Self>) -> Option<Arrival> {
        let inner = self.inner.lock();
        let listening = inner.socket.as_ref()?;
        // It may be for any of them. As long as one is full, which then dismisses one that waits, TCP keeps
        // the connection.
        if !inner.tenants.iter().all(|tenant| tenant.has_room()) {
            return None;
        }
        loop {
            match listening.accept() {
                Ok(socket) => {
                    let listeners = in_turn(&inner.tenants).unwrap_or_default();
                    return Some(Arrival { socket, listeners });
                }
                // It has gone again.
                Err(error) if error == ECONNABORTED => {}
                // TCP does not say again that it waits.
                Err(error) if error == ENOMEM => {
                    let delay = msecs_to_jiffies(RETRY_MS);
                    let _ = enqueue_delayed(self.clone(), delay);
                    return None;
                }
                Err(_) => return None,
            }
        }
    }

    /// Lets another tenant in. Gives `false` if the last one has just left.
    fn join(&self, tenant: &Arc<Listener>) -> Result<bool> {
        let mut inner = self.inner.lock();
        if inner.socket.is_none() {
            return Ok(false);
        }
        inner.tenants.push(tenant.clone(), GFP_KERNEL)?;
        Ok(true)
    }

    /// A tenant leaves. With the last one the socket goes: its place is free afterwards.
    pub(super) fn leave(self: &Arc<Self>, tenant: &Arc<Listener>) {
        match PORCH.get() {
            Some(porch) if self.place.is_shared() => porch.leave(self, tenant),
            _ => drop(self.remove(tenant)),
        }
    }

    /// Takes a tenant out, and gives the socket if it was the last one.
    fn remove(self: &Arc<Self>, tenant: &Arc<Listener>) -> Option<Hooked<Door>> {
        let (_drop_outside_lock, socket) = {
            let mut inner = self.inner.lock();
            let mut tenants = inner.tenants.iter();
            let index = tenants.position(|other| Arc::ptr_eq(other, tenant));
            let tenant = index.and_then(|index| inner.tenants.remove(index).ok());
            let socket = if inner.tenants.is_empty() {
                inner.socket.take()
            } else {
                None
            };
            (tenant, socket)
        };
        if socket.is_some() {
            // Without a socket nobody sets it again.
            cancel_delayed(self);
        }
        socket
    }
}

/// The doors that listeners share.
#[pin_data]
pub(crate) struct Porch {
    #[pin]
    doors: Mutex<KVec<Arc<Door>>>,
}

impl Porch {
    /// Makes one without doors.
    pub(crate) fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                doors <- new_mutex!(KVec::new(), "riwarp::Porch::doors"),
            }),
            GFP_KERNEL,
        )
    }

    /// Makes a listener a tenant of a door, which is opened if it is not there.
    fn enter(&self, listener: &Arc<Listener>, plan: &Plan, place: Place) -> Result<Arc<Door>> {
        let mut doors = self.doors.lock();
        for door in doors.iter().filter(|door| door.place == place) {
            if door.join(listener)? {
                return Ok(door.clone());
            }
        }
        doors.reserve(1, GFP_KERNEL)?;
        let door = Door::open(listener, plan, place)?;
        doors.push(door.clone(), GFP_KERNEL)?;
        Ok(door)
    }

    /// Takes a tenant out of a door, and with the last one the door.
    fn leave(&self, door: &Arc<Door>, tenant: &Arc<Listener>) {
        let mut doors = self.doors.lock();
        // Closed with the lock held, so that nobody finds its place taken who finds no door there.
        if let Some(socket) = door.remove(tenant) {
            drop(socket);
            let index = doors.iter().position(|other| Arc::ptr_eq(other, door));
            // The caller has a reference of its own.
            let _ = index.map(|index| doors.remove(index));
        }
    }
}

/// Where a door is, so that shared ones can be found.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// On the address that was asked for.
    Address,
    /// On all addresses, for what arrives on one interface of a network namespace.
    Interface {
        net: NetId,
        ifindex: u32,
        family: Family,
        port: u16,
        v6_only: bool,
    },
}

impl Place {
    fn is_shared(&self) -> bool {
        matches!(self, Self::Interface { .. })
    }
}

/// What a listener was asked to be.
pub(super) struct Plan {
    addr: SockAddr,
    v6_only: bool,
    tos: Option<u8>,
    backlog: u16,
    ifindex: u32,
    net: NetId,
    /// The driver holds the port ([`crate::pairing::ports`]).
    is_held: bool,
}

impl Plan {
    pub(super) fn new(device: &Device, id: &CmId, backlog: u32) -> Result<Self> {
        let netdev = &device.netdev;
        Ok(Self {
            addr: id.local_addr()?,
            v6_only: id.is_v6_only(),
            tos: id.tos(),
            backlog: u16::try_from(backlog).unwrap_or(u16::MAX).max(BACKLOG_MIN),
            ifindex: netdev.ifindex(),
            net: netdev.net_id(),
            is_held: false,
        })
    }

    /// For the peers of queue pairs, on a port that is held.
    pub(super) fn for_peers(device: &Device, addr: SockAddr) -> Self {
        let netdev = &device.netdev;
        Self {
            addr,
            v6_only: true,
            tos: None,
            backlog: BACKLOG_MIN,
            ifindex: netdev.ifindex(),
            net: netdev.net_id(),
            is_held: true,
        }
    }

    /// Opens the door of a listener, or makes it a tenant of the one that is there. None on a
    /// device that is not the consumer's, and if the port is taken on one that perhaps is not.
    ///
    /// # Errors
    ///
    /// Those of TCP.
    pub(super) fn open_door(&self, listener: &Arc<Listener>) -> Result<Option<Arc<Door>>> {
        if !self.addr.is_unspecified() {
            return Door::open(listener, self, Place::Address).map(Some);
        }
        if listener.origin == Origin::Foreign {
            return Ok(None);
        }
        let place = Place::Interface {
            net: self.net,
            ifindex: self.ifindex,
            family: self.addr.family(),
            port: self.addr.port(),
            v6_only: self.v6_only,
        };
        let porch = PORCH.get().ok_or(ENODEV)?;
        match porch.enter(listener, self, place) {
            Err(error) if error == EADDRINUSE && listener.origin == Origin::Unknown => {
                pr_debug!("port {} is taken\n", self.addr.port());
                Ok(None)
            }
            entered => entered.map(Some),
        }
    }

    /// Makes the socket of a door.
    fn socket(&self, device: &Device, place: Place) -> Result<Socket> {
        let socket = Socket::new_tcp(&device.net()?, self.addr.family())?;
        socket.set_reuse(if self.is_held {
            Reuse::Always
        } else {
            Reuse::Lingering
        });
        if self.v6_only && self.addr.family() == Family::V6 {
            socket.set_v6only()?;
        }
        if let Some(tos) = self.tos {
            socket.set_tos(tos);
        }
        match place {
            Place::Address => {}
            Place::Interface { ifindex, .. } => socket.set_bound_dev(ifindex)?,
        }
        if self.is_held {
            socket.bind_privileged(&self.addr)?;
        } else {
            socket.bind(&self.addr)?;
        }
        Ok(socket)
    }
}

/// Connections that TCP keeps at least for a door. Consumers give the number of requests that they
/// want to have unanswered, which is another thing.
const BACKLOG_MIN: u16 = 128;
/// How many are let in before the steps of connections go on.
const BUDGET: u32 = 64;
/// When to try again to accept a connection for which there was no memory, in milliseconds.
const RETRY_MS: u32 = 100;

#[kernel::prelude::kunit_tests(riwarp_door)]
mod tests {
    use super::{
        super::{
            await_peers,
            destroy_listen, //
        },
        *, //
    };
    use crate::{
        bench::Bench,
        conn::Conn, //
    };
    use kernel_ext::net::{
        bench::{
            address,
            eventually,
            pair,
            socket, //
        },
        Connecting,
        TcpState, //
    };

    /// A door whose only tenant waits for nobody who comes: all of them are turned away. Ended when
    /// it is dropped.
    struct Rig {
        listener: Arc<Listener>,
        door: Arc<Door>,
        conn: Arc<Conn>,
        _far: Socket,
        bench: Bench,
    }

    impl Rig {
        fn new() -> Result<Self> {
            let bench = Bench::new()?;
            let (near, far) = pair(Family::V4)?;
            let listener = await_peers(&bench.device, address(Family::V4, 0))?;
            let door = listener.door.lock().clone().ok_or(EINVAL)?;
            bench.device.queues.conn.flush();
            Ok(Self {
                listener,
                door,
                conn: Conn::of_nobody(&bench.device, near)?,
                _far: far,
                bench,
            })
        }

        /// So many peers, all of which wait in TCP.
        fn callers(&self, count: u32) -> Result<KVec<Socket>> {
            let to = {
                let inner = self.door.inner.lock();
                inner.socket.as_ref().ok_or(EINVAL)?.local_addr()?
            };
            let mut callers = KVec::new();
            for _ in 0..count {
                let caller = socket(Family::V4)?;
                if caller.connect_nonblock(&to)? == Connecting::Pending {
                    eventually(|| caller.state() == TcpState::Established)?;
                }
                // Who has acknowledged an octet has seen that the connection is up.
                let before = caller.acked();
                caller.send(b"x")?;
                eventually(|| caller.acked() > before)?;
                callers.push(caller, GFP_KERNEL)?;
            }
            Ok(callers)
        }

        /// Takes those that wait in TCP; how many these were.
        fn take_all(&self) -> u32 {
            let inner = self.door.inner.lock();
            let accept = || inner.socket.as_ref()?.accept().ok();
            // CAST: some ten.
            core::iter::from_fn(accept).count() as u32
        }
    }

    impl Drop for Rig {
        fn drop(&mut self) {
            destroy_listen(self.listener.clone());
            self.conn.end_of_nobody();
        }
    }

    #[test]
    fn so_many_are_let_in_before_others_go_on() -> Result {
        let rig = Rig::new()?;
        let left = rig.conn.without_steps(|| -> Result<u32> {
            let _callers = rig.callers(BUDGET + 6)?;
            rig.door.let_in();
            Ok(rig.take_all())
        })?;
        assert_eq!(left, 6);
        Ok(())
    }

    #[test]
    fn the_rest_is_let_in_later() -> Result {
        let rig = Rig::new()?;
        let callers = rig.conn.without_steps(|| rig.callers(BUDGET + 6))?;
        for caller in &callers {
            eventually(|| caller.recv(&mut [0]) != Err(EAGAIN))?;
        }
        rig.bench.device.queues.conn.flush();
        assert_eq!(rig.take_all(), 0);
        Ok(())
    }
}
