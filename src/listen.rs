// SPDX-License-Identifier: GPL-2.0

//! Listeners: connections that wait in TCP become [`Conn`]s.
//!
//! What enters: requests of the iWARP connection manager, and TCP's word that a connection waits.
//! What leaves: a [`Conn`] per connection, which reads the peer's MPA Request by itself. Nothing here
//! waits for a peer.
//!
//! A listener on an address has one [`Door`] of its own, a listening TCP socket. One on the wildcard
//! address listens on its device's interface only, so that every device can have one on the same port.
//! What this host sends to itself arrives on the loopback interface instead; for that there is a second
//! door, on the loopback interface, which all devices of a network namespace share ([`Porch`]). A
//! connection that comes through it belongs to the device whose interface has the address that was
//! called.
//!
//! Connections that have not sent their Request are limited per listener. When the limit is reached the
//! oldest one has to go, if it had its chance; younger ones are likely to be honest, and then further
//! ones wait in TCP.
//!
//! Locks: a door's `inner` > socket; the porch's list > a door's `inner`; a listener's `waiting` and
//! `doors` are innermost, and a connection's step may take them. A door has references to its
//! listeners and a listener to its doors, until [`destroy_listen`].
//!
//! Context: process; callbacks of TCP only queue work.

use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Release, //
        },
        Arc,
        ArcBorrow,
        Mutex, //
    },
    time::{
        Instant,
        Monotonic, //
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
    sync::Slot,
    workqueue::OwnedQueue, //
};

use crate::{
    conn::{
        plain,
        Close,
        Conn,
        HalfOpen, //
    },
    device::Device,
    Riwarp, //
};

/// The doors that devices share. Filled while the module is in service.
pub(crate) static PORCH: Slot<Porch> = Slot::empty();

/// One listener of the iWARP connection manager.
#[pin_data]
pub(crate) struct Listener {
    id: CmId<Riwarp>,
    device: Arc<Device>,
    open: Atomic<bool>,
    #[pin]
    doors: Mutex<KVec<Arc<Door>>>,
    #[pin]
    waiting: Mutex<Waiting>,
}

/// Connections whose Request has not come yet.
struct Waiting {
    /// Oldest first; it has room for `limit`.
    list: KVec<Waiter>,
    limit: usize,
    next_key: u64,
    /// Somebody was left in TCP's queue.
    full: bool,
}

struct Waiter {
    key: u64,
    since: Instant<Monotonic>,
    /// Its number in the device's table, once it is there.
    conn: Option<u64>,
}

/// Begins to listen.
///
/// # Errors
///
/// * `EADDRINUSE`, `EADDRNOTAVAIL` and others of TCP.
/// * `ENODEV` if the device is going.
/// * `ENOMEM`.
pub(crate) fn create_listen(
    dev: ArcBorrow<'_, Device>,
    id: CmId<Riwarp>,
    backlog: u32,
) -> Result<Arc<Listener>> {
    if dev.is_going() {
        return Err(ENODEV);
    }
    let plan = Plan::new(&dev, &id, backlog)?;
    let limit = usize::try_from(backlog)?.clamp(HALF_OPEN_MIN, HALF_OPEN_MAX);
    let mut doors = KVec::with_capacity(2, GFP_KERNEL)?;
    let listener = Arc::pin_init(
        pin_init!(Listener {
            id,
            device: dev.into(),
            open: Atomic::new(true),
            doors <- new_mutex!(KVec::new(), "riwarp::Listener::doors"),
            waiting <- new_mutex!(
                Waiting {
                    list: KVec::with_capacity(limit, GFP_KERNEL)?,
                    limit,
                    next_key: 0,
                    full: false,
                },
                "riwarp::Listener::waiting"
            ),
        }? Error),
        GFP_KERNEL,
    )?;
    let opened = listener.open_doors(&plan, &mut doors);
    if let Err(error) = opened {
        for door in doors {
            door.leave(&listener);
        }
        return Err(error);
    }
    *listener.doors.lock() = doors;
    Ok(listener)
}

/// Ends a listener. Peers whose Request has not come yet are reset; those that the consumer was asked
/// about keep waiting for its answer.
pub(crate) fn destroy_listen(listener: Arc<Listener>) {
    // ORDERING: Pairs with `is_open`; the connections are told after it.
    listener.open.store(false, Release);
    let doors = core::mem::take(&mut *listener.doors.lock());
    for door in doors {
        door.leave(&listener);
    }
    let mut index = 0;
    loop {
        let waiter = listener.waiting.lock().list.get(index).map(|it| it.conn);
        let Some(conn) = waiter else {
            break;
        };
        listener.dismiss(conn);
        index += 1;
    }
}

impl Listener {
    fn open_doors(self: &Arc<Self>, plan: &Plan, doors: &mut KVec<Arc<Door>>) -> Result {
        if let Some(place) = plan.own() {
            doors.push(Door::open(self, plan, place)?, GFP_KERNEL)?;
        }
        if let Some(place) = plan.shared() {
            let porch = PORCH.get().ok_or(ENODEV)?;
            doors.push(porch.enter(self, plan, place)?, GFP_KERNEL)?;
        }
        Ok(())
    }

    /// Where events go.
    pub(crate) fn id(&self) -> &CmId<Riwarp> {
        &self.id
    }

    /// Whether peers are still let in.
    pub(crate) fn is_open(&self) -> bool {
        // ORDERING: Pairs with the release in `destroy_listen`.
        self.open.load(Acquire)
    }

    /// Whether one more peer can be let in. If not, the oldest one that waits is dismissed, if it has
    /// waited long, and its end brings the doors back.
    fn has_room(&self) -> bool {
        let oldest = {
            let mut waiting = self.waiting.lock();
            if waiting.list.len() < waiting.limit {
                return true;
            }
            waiting.full = true;
            waiting
                .list
                .iter()
                .find(|waiter| waiter.conn.is_some())
                .filter(|waiter| waiter.since.elapsed().as_millis() >= CHANCE_MS)
                .and_then(|waiter| waiter.conn)
        };
        if oldest.is_some() {
            self.device.stats.backlog_drops.inc();
            self.dismiss(oldest);
        }
        false
    }

    /// Ends a connection that waits.
    fn dismiss(&self, number: Option<u64>) {
        if let Some(conn) = number.and_then(|number| self.device.conns.find(number)) {
            conn.close(Close::Abort);
        }
    }

    /// Lets a peer in.
    fn admit(self: &Arc<Self>, socket: Socket) -> Result {
        let key = {
            let mut waiting = self.waiting.lock();
            let key = waiting.next_key;
            waiting.next_key = key.wrapping_add(1);
            let waiter = Waiter {
                key,
                since: Instant::now(),
                conn: None,
            };
            waiting
                .list
                .push_within_capacity(waiter)
                .map_err(|_| EBUSY)?;
            key
        };
        // Takes the waiter out again when it is dropped.
        let entry = HalfOpen::new(self.clone(), key);
        let number = Conn::answer(&self.device, socket, entry)?;
        let mut waiting = self.waiting.lock();
        if let Some(waiter) = waiting.list.iter_mut().find(|waiter| waiter.key == key) {
            waiter.conn = Some(number);
        }
        drop(waiting);
        if !self.is_open() {
            // It came after `destroy_listen` had told everybody.
            self.dismiss(Some(number));
        }
        Ok(())
    }

    /// A peer's Request has come, or will not come any more.
    pub(crate) fn left(&self, key: u64) {
        let was_full = {
            let mut waiting = self.waiting.lock();
            let index = waiting.list.iter().position(|waiter| waiter.key == key);
            if let Some(index) = index {
                let _ = waiting.list.remove(index);
            }
            core::mem::replace(&mut waiting.full, false)
        };
        if was_full {
            for door in self.doors.lock().iter() {
                door.kick();
            }
        }
    }

    /// Whether an address is one of the device's interface.
    fn owns(&self, addr: &SockAddr) -> bool {
        let mut found = false;
        self.device
            .netdev
            .for_each_addr(|own| found |= own.same_ip(addr));
        found
    }
}

/// A listening socket.
#[pin_data]
struct Door {
    place: Place,
    queue: Arc<OwnedQueue>,
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
        while let Some((socket, tenant)) = this.accept() {
            // A peer that cannot be let in is reset by the socket's end.
            if let Some(tenant) = tenant {
                if let Err(error) = tenant.admit(socket) {
                    pr_debug!("a connection could not be let in: {:?}\n", error);
                }
            }
        }
    }
}

impl SocketEvents for Door {
    fn data_ready(self: ArcBorrow<'_, Self>, _inbound: &mut Inbound<'_>) {
        Arc::from(self).kick();
    }

    fn write_space(self: ArcBorrow<'_, Self>) {}

    fn state_change(self: ArcBorrow<'_, Self>, _state: TcpState) {}
}

impl Door {
    /// Opens one for its first tenant.
    fn open(tenant: &Arc<Listener>, plan: &Plan, place: Place) -> Result<Arc<Self>> {
        let socket = plan.socket(&tenant.device, place)?;
        let mut tenants = KVec::with_capacity(1, GFP_KERNEL)?;
        tenants.push(tenant.clone(), GFP_KERNEL)?;
        let door = Arc::pin_init(
            pin_init!(Self {
                place,
                queue: tenant.device.conn_queue.clone(),
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
    fn kick(self: &Arc<Self>) {
        // One that is queued already will do.
        let _ = self.queue.enqueue(self.clone());
    }

    /// Takes a connection that waits, with the listener that it is for.
    fn accept(&self) -> Option<(Socket, Option<Arc<Listener>>)> {
        let inner = self.inner.lock();
        let socket = inner.socket.as_ref()?;
        // Whoever is full dismisses one that waits. If all are, TCP keeps the connection.
        let mut room = false;
        for tenant in &inner.tenants {
            room |= tenant.has_room();
        }
        if !room {
            return None;
        }
        loop {
            match socket.accept() {
                Ok(child) => {
                    let tenant = self.tenant_for(&inner, &child);
                    return Some((child, tenant));
                }
                // It has gone again.
                Err(error) if error == ECONNABORTED => {}
                Err(_) => return None,
            }
        }
    }

    fn tenant_for(&self, inner: &DoorInner, child: &Socket) -> Option<Arc<Listener>> {
        if self.place.is_shared() {
            let called = plain(child.local_addr().ok()?);
            let mut tenants = inner.tenants.iter();
            tenants.find(|tenant| tenant.owns(&called)).cloned()
        } else {
            inner.tenants.first().cloned()
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
    fn leave(self: &Arc<Self>, tenant: &Arc<Listener>) {
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

/// The doors that the devices of a network namespace share.
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
    /// On all addresses, for what arrives on one interface.
    Interface(u32),
    /// On all addresses, for what this host sends to itself.
    Loopback {
        net: NetId,
        family: Family,
        port: u16,
        v6_only: bool,
    },
}

impl Place {
    fn is_shared(&self) -> bool {
        matches!(self, Self::Loopback { .. })
    }
}

/// What a listener was asked to be.
struct Plan {
    addr: SockAddr,
    v6_only: bool,
    tos: Option<u8>,
    backlog: u16,
    ifindex: u32,
    net: NetId,
    on_loopback: bool,
}

impl Plan {
    fn new(device: &Device, id: &CmId<Riwarp>, backlog: u32) -> Result<Self> {
        let netdev = &device.netdev;
        Ok(Self {
            addr: id.local_addr()?,
            v6_only: id.is_v6_only(),
            tos: id.tos(),
            backlog: u16::try_from(backlog)
                .unwrap_or(u16::MAX)
                .max(BACKLOG_MIN),
            ifindex: netdev.ifindex(),
            net: netdev.net_id(),
            on_loopback: netdev.link_type() == LinkType::Loopback,
        })
    }

    /// Where the listener's own door is, if it has one.
    fn own(&self) -> Option<Place> {
        match (self.addr.is_unspecified(), self.on_loopback) {
            (false, _) => Some(Place::Address),
            (true, false) => Some(Place::Interface(self.ifindex)),
            (true, true) => None,
        }
    }

    /// Where the door is that it shares, if it does.
    fn shared(&self) -> Option<Place> {
        self.addr.is_unspecified().then_some(Place::Loopback {
            net: self.net,
            family: self.addr.family(),
            port: self.addr.port(),
            v6_only: self.v6_only,
        })
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
            Place::Interface(ifindex) => socket.set_bound_dev(ifindex)?,
            Place::Loopback { .. } => socket.set_bound_dev(LOOPBACK_IFINDEX)?,
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
/// A listener's limit of connections whose Request has not come is its backlog, in these bounds.
const HALF_OPEN_MIN: usize = 128;
const HALF_OPEN_MAX: usize = 1024;
/// How long a peer has before it can be dismissed for another one, in milliseconds.
const CHANCE_MS: i64 = 500;
