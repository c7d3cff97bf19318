// SPDX-License-Identifier: GPL-2.0

//! Doors: the listening TCP sockets, and whose they are.
//!
//! What enters: listeners that want to be reached at an address, and TCP's word that a connection
//! waits. What leaves: accepted sockets, each with the listeners that it can be for.
//!
//! A listener on an address has a door of its own. One on the wildcard address has a door on its
//! device's interface only, so that every device can have one on the same port. What this host sends
//! to itself arrives on the loopback interface instead; for that there is a second door there, which
//! all devices of a network namespace share. A connection that comes through it belongs to the device
//! whose interface has the address that was called. Shared doors stand on the [`Porch`].
//!
//! Locks: the porch's list > a door's `inner` > socket, and `inner` > a listener's `waiting`. Context:
//! process; callbacks of TCP only queue work.

use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        ArcBorrow,
        Mutex, //
    },
    workqueue::{
        impl_has_work,
        new_work,
        Work,
        WorkItem, //
    }, //
};
use kernel_ext::{
    net::{
        Family,
        Hooked,
        Inbound,
        LinkType,
        NetId,
        SockAddr,
        Socket,
        SocketEvents,
        TcpState, //
    },
    rdma::iw_cm::CmId,
    sync::{
        BhOff,
        Slot, //
    },
};

use crate::{
    conn::plain,
    device::Device,
    queues::Queues,
    Riwarp, //
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
    work: Work<Door>,
}

struct DoorInner {
    /// There until the last tenant leaves.
    socket: Option<Hooked<Door>>,
    tenants: KVec<Arc<Listener>>,
}

impl_has_work! {
    impl HasWork<Self> for Door { self.work }
}

impl WorkItem for Door {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        while let Some(arrival) = this.accept() {
            // A peer that cannot be let in is reset by the socket's end.
            if let Err(error) = arrival.admit() {
                pr_debug!("a connection could not be let in: {:?}\n", error);
            }
        }
    }
}

impl SocketEvents for Door {
    fn data_ready(self: ArcBorrow<'_, Self>, _inbound: &mut Inbound<'_>, _off: BhOff<'_>) {
        Arc::from(self).kick();
    }

    fn write_space(self: ArcBorrow<'_, Self>) {}

    fn state_change(self: ArcBorrow<'_, Self>, _state: TcpState) {}
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
    /// Opens one for its first tenant.
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
                work <- new_work!("riwarp::Door::work"),
            }),
            GFP_KERNEL,
        )?;
        let hooked = Hooked::new(socket, door.clone())?;
        hooked.listen(plan.backlog)?;
        door.inner.lock().socket = Some(hooked);
        // Somebody may have come already.
        door.kick();
        Ok(door)
    }

    /// Lets the work item look who waits. Context: any.
    pub(super) fn kick(self: &Arc<Self>) {
        // One that is queued already will do.
        let _ = self.queues.conn.enqueue(self.clone());
    }

    /// Takes a connection that waits.
    fn accept(&self) -> Option<Arrival> {
        let inner = self.inner.lock();
        let listening = inner.socket.as_ref()?;
        // Whoever is full dismisses one that waits. If all are, TCP keeps the connection.
        let mut room = false;
        for tenant in &inner.tenants {
            room |= tenant.has_room();
        }
        if !room {
            return None;
        }
        loop {
            match listening.accept() {
                Ok(socket) => {
                    let listeners = self.meant(&inner.tenants, &socket).unwrap_or_default();
                    return Some(Arrival { socket, listeners });
                }
                // It has gone again.
                Err(error) if error == ECONNABORTED => {}
                Err(_) => return None,
            }
        }
    }

    /// Whom a connection can be for, last one first.
    fn meant(&self, tenants: &[Arc<Listener>], socket: &Socket) -> Result<KVec<Arc<Listener>>> {
        let called = plain(socket.local_addr()?);
        let mut meant = KVec::with_capacity(tenants.len(), GFP_KERNEL)?;
        for origin in [Origin::Unknown, Origin::Native] {
            for tenant in tenants.iter().filter(|tenant| tenant.origin == origin) {
                if !self.place.is_loopback() || tenant.owns(&called) {
                    meant.push(tenant.clone(), GFP_KERNEL)?;
                }
            }
        }
        Ok(meant)
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
    fn remove(&self, tenant: &Arc<Listener>) -> Option<Hooked<Door>> {
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

    /// Whether what this host sends to itself comes here.
    fn is_loopback(&self) -> bool {
        matches!(self, Self::Interface { ifindex, .. } if *ifindex == LOOPBACK_IFINDEX)
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
    on_loopback: bool,
}

impl Plan {
    pub(super) fn new(device: &Device, id: &CmId<Riwarp>, backlog: u32) -> Result<Self> {
        let netdev = &device.netdev;
        Ok(Self {
            addr: id.local_addr()?,
            v6_only: id.is_v6_only(),
            tos: id.tos(),
            backlog: u16::try_from(backlog).unwrap_or(u16::MAX).max(BACKLOG_MIN),
            ifindex: netdev.ifindex(),
            net: netdev.net_id(),
            on_loopback: netdev.link_type() == LinkType::Loopback,
        })
    }

    /// For the peers of queue pairs.
    pub(super) fn for_peers(device: &Device, addr: SockAddr) -> Self {
        let netdev = &device.netdev;
        Self {
            addr,
            v6_only: true,
            tos: None,
            backlog: BACKLOG_MIN,
            ifindex: netdev.ifindex(),
            net: netdev.net_id(),
            on_loopback: netdev.link_type() == LinkType::Loopback,
        }
    }

    /// Opens the doors of a listener, or makes it a tenant of those that are there.
    ///
    /// # Errors
    ///
    /// Those of TCP; `doors` has those that were opened before.
    pub(super) fn open_doors(
        &self,
        listener: &Arc<Listener>,
        doors: &mut KVec<Arc<Door>>,
    ) -> Result {
        doors.reserve(2, GFP_KERNEL)?;
        if !self.addr.is_unspecified() {
            let door = Door::open(listener, self, Place::Address)?;
            return Ok(doors.push(door, GFP_KERNEL)?);
        }
        let porch = PORCH.get().ok_or(ENODEV)?;
        if !self.on_loopback {
            // On a device that is not the consumer's a taken port means nothing.
            let may_fail = listener.origin == Origin::Unknown;
            self.open_shared(&porch, listener, self.ifindex, may_fail, doors)?;
        }
        // A program that uses the port on the loopback interface only does not keep others out.
        let may_fail = !self.on_loopback || listener.origin == Origin::Unknown;
        self.open_shared(&porch, listener, LOOPBACK_IFINDEX, may_fail, doors)
    }

    fn open_shared(
        &self,
        porch: &Porch,
        listener: &Arc<Listener>,
        ifindex: u32,
        may_fail: bool,
        doors: &mut KVec<Arc<Door>>,
    ) -> Result {
        let place = Place::Interface {
            net: self.net,
            ifindex,
            family: self.addr.family(),
            port: self.addr.port(),
            v6_only: self.v6_only,
        };
        match porch.enter(listener, self, place) {
            Ok(door) => Ok(doors.push(door, GFP_KERNEL)?),
            Err(error) if may_fail && error == EADDRINUSE => {
                pr_debug!(
                    "port {} is taken on interface {}\n",
                    self.addr.port(),
                    ifindex
                );
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Makes the socket of a door.
    fn socket(&self, device: &Device, place: Place) -> Result<Socket> {
        let socket = Socket::new_tcp(&device.net()?, self.addr.family())?;
        socket.set_reuseaddr();
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
        socket.bind(&self.addr)?;
        Ok(socket)
    }
}

/// The loopback interface has this number in every network namespace.
const LOOPBACK_IFINDEX: u32 = 1;
/// Connections that TCP keeps at least for a door. Consumers give the number of requests that they
/// want to have unanswered, which is another thing.
const BACKLOG_MIN: u16 = 128;
