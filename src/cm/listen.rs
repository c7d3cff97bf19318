// SPDX-License-Identifier: GPL-2.0

//! Listeners and their sockets.
//!
//! The iWARP connection manager and queue pairs in an out-of-band connect ([`crate::cm::oob`])
//! create listeners. A listener admits connections that its socket has accepted from TCP, within
//! limits ([`admission`]); each becomes a [`Conn`], which reads the peer's MPA Request itself. No
//! function here waits for a peer.
//!
//! A listener on an address has a socket of its own. A listener on the wildcard address uses a
//! socket bound to its device's interface, so that every device can have one on the same port.
//! (Loopback traffic counts as arriving on the interface that has the address:
//! `__ip_route_output_key_hash_rcu` and `ip6_rcv_core`.) A loopback address belongs to all devices
//! of a network namespace: `rdma_cm` creates a listener on each (`cma_listen_on_all()`), and they
//! share one socket. Listeners of several consumers may share these sockets, if they have one port
//! of `rdma_cm`, which decides who may listen there; [`ListenSockets`] lists them. Two ports of
//! `rdma_cm` that lead to one of TCP, as after a change of `port_offset`, are two users of it, and
//! TCP refuses the second.
//!
//! A connection to a loopback address becomes that of one device, preferably of the one on `lo`;
//! only consumers that listen on this device are asked about it.
//!
//! `rdma_cm` makes a listener on the wildcard address, or on a loopback address, listen on every
//! device of the host, including those of other network namespaces and those that appear later. A
//! caller in another namespace than the device's gets a listener without a socket: no connection
//! could succeed, and the port is not the caller's. When `rdma_cm` adds existing listeners to a
//! device that is new or was moved (`rdma dev set netns`), their namespace is unknown. Such
//! listeners share sockets, tolerate a port in use, and are asked after others; `rdma_cm` itself
//! rejects a request that reaches the wrong consumer.
//!
//! Locks: the list of shared sockets > a listening socket's `inner` > TCP's socket lock, and
//! `inner` > those of the admission. A listener's `socket` is an innermost spin lock. A socket and
//! its listeners hold references to each other until [`destroy_listen`].
//!
//! Context: process; callbacks of TCP only queue work.

use iwarp::mpa::negotiate::Responder;
use kernel::{
    impl_has_delayed_work,
    new_delayed_work,
    new_mutex,
    new_spinlock,
    prelude::*,
    sync::{
        Arc,
        ArcBorrow,
        Mutex,
        SpinLock, //
    },
    time::msecs_to_jiffies,
    workqueue::{
        DelayedWork,
        WorkItem, //
    }, //
};
use kernel_ext::{
    compat::{
        EADDRNOTAVAIL,
        ECONNABORTED, //
    },
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
        ModuleCell, //
    },
    workqueue::{
        cancel_delayed,
        enqueue_delayed,
        DelayedItem,
        OwnedQueue, //
    }, //
};

use crate::{
    cm::conn::{
        frames::{
            config,
            Role, //
        },
        phase::Actor,
        Cm,
        Conn, //
    },
    device::{
        queues::Queues,
        tls::client_name,
        Device, //
    }, //
};

use self::admission::{
    Admission,
    Consumer, //
};

pub(in crate::cm) mod admission;
#[cfg(CONFIG_KUNIT = "y")]
mod tests;

/// A listener on an address.
#[pin_data]
pub(crate) struct Listener {
    admission: Arc<Admission>,
    cm: Arc<Cm>,
    origin: ListenerOrigin,
    #[pin]
    socket: SpinLock<Option<Arc<ListenSocket>>>,
}

/// The origin of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ListenerOrigin {
    /// Created in another network namespace than the device's.
    Foreign,
    /// Created in the device's network namespace.
    Native,
    /// Created before the device existed, or before it moved to another namespace of RDMA devices.
    Unknown,
}

impl ListenerOrigin {
    /// Returns the origin of the listener that the current task creates. Context: process, the
    /// consumer's.
    fn of_caller(device: &Device) -> Self {
        if device.is_being_announced() {
            Self::Unknown
        } else if device.namespace == NetId::current() {
            Self::Native
        } else {
            Self::Foreign
        }
    }
}

/// Starts to listen. On the wildcard address and on a loopback address, opens no socket if the
/// caller is in another network namespace than the device: a failure here would make listening fail
/// on the caller's own devices too. (`rdma_cm` passes any other address only to a device in the
/// namespace of that address.)
///
/// # Errors
///
/// * `EADDRINUSE`, `EADDRNOTAVAIL` and others of TCP.
/// * `ENODEV` if the device is being removed.
/// * `ENOMEM`.
pub(crate) fn create_listen(
    cm: ArcBorrow<'_, Cm>,
    id: CmId,
    backlog: u32,
) -> Result<Arc<Listener>> {
    if cm.device.is_going() {
        return Err(ENODEV);
    }
    let params = ListenParams::new(&cm.device, &id, backlog)?;
    let origin = ListenerOrigin::of_caller(&cm.device);
    Listener::open(cm.into(), Consumer::Cm(id), origin, &params, backlog)
}

/// Starts to listen for out-of-band connects, at an address of the device and a port that is held
/// ([`crate::cm::oob::ports`]) for longer than the listener lives.
///
/// # Errors
///
/// As [`create_listen`].
pub(super) fn await_peers(cm: &Arc<Cm>, addr: SockAddr) -> Result<Arc<Listener>> {
    let params = ListenParams::for_peers(&cm.device, addr);
    Listener::open(
        cm.clone(),
        Consumer::Oob,
        ListenerOrigin::Native,
        &params,
        0,
    )
}

/// Ends a listener. Resets connections whose Request was not put to the consumer; the others still
/// wait for its answer.
pub(crate) fn destroy_listen(listener: Arc<Listener>) {
    listener.admission.close();
    let socket = listener.socket.lock().take();
    if let Some(socket) = socket {
        socket.leave(&listener);
    }
}

impl Listener {
    fn open(
        cm: Arc<Cm>,
        consumer: Consumer,
        origin: ListenerOrigin,
        params: &ListenParams,
        backlog: u32,
    ) -> Result<Arc<Self>> {
        let admission = Admission::new(cm.device.clone(), consumer, backlog)?;
        let listener = Arc::pin_init(
            pin_init!(Self {
                admission,
                cm,
                origin,
                socket <- new_spinlock!(None, "riwarp::Listener::socket"),
            }),
            GFP_KERNEL_ACCOUNT,
        )?;
        // This takes locks that work items of the connections' queue take, too.
        if let Some(socket) = without_io(|| params.open_socket(&listener))? {
            listener.admission.set_acceptor(Some(socket.clone()));
            *listener.socket.lock() = Some(socket);
        }
        listener.admission.accept_more();
        Ok(listener)
    }

    /// Admits a connection. `others` are asked if this listener's consumer rejects.
    fn admit(&self, socket: Socket, others: KVec<Arc<Admission>>) -> Result {
        let device = &self.cm.device;
        if let Consumer::Oob = self.admission.consumer() {
            self.cm.oob_waiters.check_peer(device, &socket)?;
        }
        let from = socket.addr_pair().1.ip();
        let entry = self.admission.enter(from, others)?;
        let key = entry.key;
        let socket = if device.tls.is_on() {
            // Which the peer's handshake demands, if it begins one.
            socket.into_file(&client_name()?)?
        } else {
            socket
        };
        let responder = Responder::new(config(device, Role::Responder));
        let actor = Actor::awaiting_request(responder, entry)?;
        let conn = Conn::new(self.cm.clone(), socket, actor)?;
        conn.kick();
        self.admission.set_conn(key, conn.pending());
        Ok(())
    }
}

/// The shared listening sockets. Set while the module is loaded.
pub(crate) static LISTEN_SOCKETS: ModuleCell<ListenSockets> = ModuleCell::empty();

/// A listening socket.
#[pin_data]
struct ListenSocket {
    scope: BindScope,
    queues: Arc<Queues>,
    #[pin]
    inner: Mutex<ListenSocketInner>,
    #[pin]
    work: DelayedWork<ListenSocket>,
}

struct ListenSocketInner {
    /// Present until the last listener leaves.
    socket: Option<Hooked<ListenSocket>>,
    listeners: KVec<Arc<Listener>>,
}

impl_has_delayed_work! {
    impl HasDelayedWork<Self> for ListenSocket { self.work }
}

impl DelayedItem for ListenSocket {
    fn queue(&self) -> &OwnedQueue {
        &self.queues.conn
    }
}

impl WorkItem for ListenSocket {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        this.accept_all();
    }
}

impl SocketEvents for ListenSocket {
    fn data_ready(self: ArcBorrow<'_, Self>, _inbound: &mut Inbound<'_>, _off: BhOff<'_>) {
        Arc::from(self).kick();
    }

    fn readable(self: ArcBorrow<'_, Self>) {}

    fn write_space(self: ArcBorrow<'_, Self>) {}

    fn state_change(self: ArcBorrow<'_, Self>) {}
}

/// An accepted connection.
struct Arrival {
    socket: Socket,
    listeners: Result<InTurn>,
}

/// The listeners that a connection may be for. They are of one device, to which it will belong.
struct InTurn {
    /// The listener that is asked first.
    first: Arc<Listener>,
    /// Those that are asked if it rejects; the last one is next.
    others: KVec<Arc<Admission>>,
}

impl InTurn {
    /// Chooses from the listeners of a socket.
    ///
    /// # Errors
    ///
    /// `EADDRNOTAVAIL` if there is none, `ENOMEM`.
    fn new(listeners: &[Arc<Listener>]) -> Result<Self> {
        let preferred = listeners.iter().max_by_key(|listener| {
            let is_native = listener.origin == ListenerOrigin::Native;
            (is_native, listener.cm.device.is_on_loopback())
        });
        let cm = &preferred.ok_or(EADDRNOTAVAIL)?.cm;
        let (mut first, mut others) = (None, KVec::with_capacity(listeners.len(), GFP_KERNEL)?);
        for origin in [ListenerOrigin::Unknown, ListenerOrigin::Native] {
            for listener in listeners
                .iter()
                .filter(|listener| listener.origin == origin && Arc::ptr_eq(&listener.cm, cm))
            {
                if let Some(later) = first.replace(listener) {
                    others.push(later.admission.clone(), GFP_KERNEL)?;
                }
            }
        }
        Ok(Self {
            first: first.ok_or(EADDRNOTAVAIL)?.clone(),
            others,
        })
    }
}

impl ListenSocket {
    /// Opens a socket for its first listener, which must then kick it: a connection may be waiting
    /// already.
    fn open(
        listener: &Arc<Listener>,
        params: &ListenParams,
        scope: BindScope,
    ) -> Result<Arc<Self>> {
        let socket = params.socket(listener, scope)?;
        let mut listeners = KVec::new();
        listeners.push(listener.clone(), GFP_KERNEL)?;
        let listen_socket = Arc::pin_init(
            pin_init!(Self {
                scope,
                queues: listener.cm.device.queues.clone(),
                inner <- new_mutex!(
                    ListenSocketInner {
                        socket: None,
                        listeners,
                    },
                    "riwarp::ListenSocket::inner"
                ),
                work <- new_delayed_work!("riwarp::ListenSocket::work"),
            }),
            GFP_KERNEL,
        )?;
        let hooked = Hooked::new(socket.into_listener(), listen_socket.clone())?;
        hooked.listen(params.backlog)?;
        listen_socket.inner.lock().socket = Some(hooked);
        Ok(listen_socket)
    }

    /// Queues the work item, which accepts waiting connections. Context: any.
    fn kick(self: &Arc<Self>) {
        // An item that is already queued, or due after a delay, suffices.
        let _ = self.queues.conn.enqueue(self.clone());
    }

    /// Accepts waiting connections, at most [`BUDGET`] before other work items run.
    fn accept_all(self: &Arc<Self>) {
        // Steps of connections are queued behind this, and block I/O may depend on them.
        without_io(|| {
            for _ in 0..BUDGET {
                let Some(arrival) = self.accept() else {
                    return;
                };
                // A connection that cannot be admitted is closed, and its peer tries again: no
                // queue pair waits for it, or memory is short.
                if let Ok(InTurn { first, others }) = arrival.listeners {
                    let _ = first.admit(arrival.socket, others);
                }
            }
            self.kick();
        });
    }

    /// Accepts a waiting connection.
    fn accept(self: &Arc<Self>) -> Option<Arrival> {
        let Some(inner) = self.inner.try_lock() else {
            // A process that begins or ends to listen may hold it for long.
            let _ = enqueue_delayed(self.clone(), msecs_to_jiffies(PAUSE_MS));
            return None;
        };
        let listening = inner.socket.as_ref()?;
        // The connection may be for any of these listeners. While one of them is full (and resets a
        // pending connection), the new one stays in TCP.
        let queue = listening.accept_queue();
        let mut listeners = inner.listeners.iter();
        if !listeners.all(|listener| listener.admission.has_room(queue)) {
            return None;
        }
        loop {
            match listening.accept() {
                Ok(socket) => {
                    let listeners = InTurn::new(&inner.listeners);
                    return Some(Arrival { socket, listeners });
                }
                // The connection has gone already.
                Err(error) if error == ECONNABORTED => {}
                // TCP does not notify again.
                Err(error) if error == ENOMEM => {
                    let delay = msecs_to_jiffies(RETRY_MS);
                    let _ = enqueue_delayed(self.clone(), delay);
                    return None;
                }
                Err(_) => return None,
            }
        }
    }

    /// Adds a listener. Returns `false` if the last one has just left.
    fn add(&self, listener: &Arc<Listener>) -> Result<bool> {
        let mut inner = self.inner.lock();
        if inner.socket.is_none() {
            return Ok(false);
        }
        inner.listeners.push(listener.clone(), GFP_KERNEL)?;
        Ok(true)
    }

    /// Removes a listener. The last one closes the socket and frees its port.
    fn leave(self: &Arc<Self>, listener: &Arc<Listener>) {
        match LISTEN_SOCKETS.get() {
            Some(all) if self.scope.is_shared() => all.leave(self, listener),
            _ => drop(self.remove(listener)),
        }
    }

    /// Removes a listener; returns the socket if it was the last one.
    fn remove(self: &Arc<Self>, listener: &Arc<Listener>) -> Option<Hooked<ListenSocket>> {
        let (_drop_outside_lock, socket) = {
            let mut inner = self.inner.lock();
            let mut listeners = inner.listeners.iter();
            let index = listeners.position(|other| Arc::ptr_eq(other, listener));
            let removed = index.and_then(|index| inner.listeners.remove(index).ok());
            let socket = if inner.listeners.is_empty() {
                inner.socket.take()
            } else {
                None
            };
            (removed, socket)
        };
        if socket.is_some() {
            // Without a socket the work item is not delayed again.
            cancel_delayed(self);
        } else {
            // While this listener was full, connections were left in TCP for the others, too.
            self.kick();
        }
        socket
    }
}

/// The list of shared listening sockets.
#[pin_data]
pub(crate) struct ListenSockets {
    #[pin]
    sockets: Mutex<KVec<Arc<ListenSocket>>>,
}

impl ListenSockets {
    /// Makes an empty list.
    pub(crate) fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                sockets <- new_mutex!(KVec::new(), "riwarp::ListenSockets::sockets"),
            }),
            GFP_KERNEL,
        )
    }

    /// Adds a listener to the socket of a scope, which is opened if necessary.
    fn add(
        &self,
        listener: &Arc<Listener>,
        params: &ListenParams,
        scope: BindScope,
    ) -> Result<Arc<ListenSocket>> {
        let mut sockets = self.sockets.lock();
        for listen_socket in sockets
            .iter()
            .filter(|listen_socket| listen_socket.scope == scope)
        {
            if listen_socket.add(listener)? {
                return Ok(listen_socket.clone());
            }
        }
        sockets.reserve(1, GFP_KERNEL)?;
        let listen_socket = ListenSocket::open(listener, params, scope)?;
        sockets.push(listen_socket.clone(), GFP_KERNEL)?;
        Ok(listen_socket)
    }

    /// Removes a listener from a socket; with the last one, removes the socket from the list.
    fn leave(&self, listen_socket: &Arc<ListenSocket>, listener: &Arc<Listener>) {
        let mut sockets = self.sockets.lock();
        // Closed with the lock held: when the list has no socket for a port, the port is free.
        if let Some(socket) = listen_socket.remove(listener) {
            drop(socket);
            let index = sockets
                .iter()
                .position(|other| Arc::ptr_eq(other, listen_socket));
            // The caller has a reference of its own.
            let _ = index.map(|index| sockets.remove(index));
        }
    }
}

/// What a socket is bound to, for finding shared ones.
#[derive(Clone, Copy, PartialEq, Eq)]
enum BindScope {
    /// The requested address.
    Address,
    /// All addresses, for what arrives on one interface of a network namespace.
    Interface {
        net: NetId,
        ifindex: u32,
        family: Family,
        port: u16,
        rdma_port: u16,
        v6_only: bool,
    },
    /// A loopback address of a network namespace.
    Loopback {
        net: NetId,
        addr: SockAddr,
        rdma_port: u16,
    },
}

impl BindScope {
    fn is_shared(&self) -> bool {
        match self {
            Self::Address => false,
            Self::Interface { .. } | Self::Loopback { .. } => true,
        }
    }
}

/// The parameters of a listener.
struct ListenParams {
    addr: SockAddr,
    /// The port that the consumer named.
    rdma_port: u16,
    v6_only: bool,
    tos: Option<u8>,
    backlog: u16,
    ifindex: u32,
    net: NetId,
    /// Whether the driver holds the port ([`crate::cm::oob::ports`]).
    is_held: bool,
}

impl ListenParams {
    fn new(device: &Device, id: &CmId, backlog: u32) -> Result<Self> {
        let netdev = &device.netdev;
        let rdma_addr = id.local_addr()?;
        Ok(Self {
            addr: device.settings.tcp_addr(rdma_addr),
            rdma_port: rdma_addr.port(),
            v6_only: id.is_v6_only(),
            tos: id.tos(),
            backlog: u16::try_from(backlog).unwrap_or(u16::MAX).max(BACKLOG_MIN),
            ifindex: netdev.ifindex(),
            net: netdev.net_id(),
            is_held: false,
        })
    }

    /// Makes the parameters for an out-of-band connect, on a held port.
    fn for_peers(device: &Device, addr: SockAddr) -> Self {
        let netdev = &device.netdev;
        Self {
            addr,
            rdma_port: addr.port(),
            v6_only: true,
            tos: None,
            backlog: BACKLOG_MIN,
            ifindex: netdev.ifindex(),
            net: netdev.net_id(),
            is_held: true,
        }
    }

    /// Opens a listener's socket, or adds the listener to a shared one. On the wildcard address and
    /// on a loopback address, returns [`None`] for a foreign listener, for any once the interface
    /// has left its namespace, and for one of unknown origin if TCP refuses the port: an error
    /// would hide the new device from `rdma_cm`.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, and others of TCP.
    fn open_socket(&self, listener: &Arc<Listener>) -> Result<Option<Arc<ListenSocket>>> {
        let scope = self.scope();
        if !scope.is_shared() {
            return ListenSocket::open(listener, self, scope).map(Some);
        }
        if listener.origin == ListenerOrigin::Foreign {
            return Ok(None);
        }
        let device = &listener.cm.device;
        let all = LISTEN_SOCKETS.get().ok_or(ENODEV)?;
        match all.add(listener, self, scope) {
            Ok(socket) => Ok(Some(socket)),
            // The device is about to go, too.
            Err(_) if device.net().is_err() => Ok(None),
            Err(error) if error != ENOMEM && listener.origin == ListenerOrigin::Unknown => {
                device.notice(fmt!(
                    "TCP port {} cannot be bound ({error:?}): a program that listened there \
                     before the device was made or moved gets no connections through it",
                    self.addr.port()
                ));
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Returns what the socket is to be bound to.
    fn scope(&self) -> BindScope {
        if self.addr.is_unspecified() {
            BindScope::Interface {
                net: self.net,
                ifindex: self.ifindex,
                family: self.addr.family(),
                port: self.addr.port(),
                rdma_port: self.rdma_port,
                v6_only: self.v6_only,
            }
        } else if self.addr.is_loopback() && !self.is_held {
            // (Out-of-band connects are to the address of one device, whatever it is.)
            BindScope::Loopback {
                net: self.net,
                addr: self.addr,
                rdma_port: self.rdma_port,
            }
        } else {
            BindScope::Address
        }
    }

    /// Makes the socket and binds it.
    fn socket(&self, listener: &Listener, scope: BindScope) -> Result<Socket> {
        let socket = Socket::new_tcp(&listener.cm.device.net()?, self.addr.family())?;
        socket.set_reuse(if self.is_held {
            Reuse::Always
        } else {
            Reuse::Lingering
        });
        if self.addr.family() == Family::V6 {
            socket.set_v6only(self.v6_only)?;
        }
        if let Some(tos) = self.tos {
            socket.set_tos(tos);
        }
        match scope {
            BindScope::Address | BindScope::Loopback { .. } => {}
            BindScope::Interface { ifindex, .. } => socket.set_bound_dev(ifindex)?,
        }
        match listener.origin {
            _ if self.is_held => socket.bind_privileged(&self.addr)?,
            ListenerOrigin::Native | ListenerOrigin::Foreign => socket.bind(&self.addr)?,
            // This task is another one than the listener's, which makes the device or moves it. So
            // its rights are not those that count.
            ListenerOrigin::Unknown if self.may_bind(&socket) => {
                socket.bind_privileged(&self.addr)?;
            }
            ListenerOrigin::Unknown => return Err(EACCES),
        }
        Ok(socket)
    }

    /// Returns whether the listener of another task may have the TCP port: it is not privileged, or
    /// the port of `rdma_cm` is, to which that has checked the right when it was bound.
    fn may_bind(&self, socket: &Socket) -> bool {
        self.rdma_port < PRIVILEGED_PORTS || !socket.is_privileged(self.addr.port())
    }
}

/// Minimum length of TCP's accept queue. A consumer's backlog counts unanswered requests instead.
const BACKLOG_MIN: u16 = 128;
/// The ports of `rdma_cm` that take a right (`PROT_SOCK`), whatever TCP's setting is.
const PRIVILEGED_PORTS: u16 = 1024;
/// How many connections are accepted before the steps of connections run again.
const BUDGET: u32 = 64;
/// Delay before trying again what another thread prevents, in milliseconds.
const PAUSE_MS: u32 = 10;
/// Delay before accepting again after a lack of memory, in milliseconds.
const RETRY_MS: u32 = 100;
