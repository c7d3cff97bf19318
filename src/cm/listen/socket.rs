// SPDX-License-Identifier: GPL-2.0

//! The listening TCP sockets and their listeners.
//!
//! A listening socket accepts connections from TCP and pairs each with the listeners that it may be
//! for.
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
//! Locks: the list of shared sockets > a listening socket's `inner` > TCP's socket lock, and
//! `inner` > a listener's `waiting`. Context: process; callbacks of TCP only queue work.

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

use crate::device::{
    queues::Queues,
    Device, //
};

use super::{
    Listener,
    ListenerOrigin, //
};

/// The shared listening sockets. Set while the module is loaded.
pub(crate) static LISTEN_SOCKETS: ModuleCell<ListenSockets> = ModuleCell::empty();

/// A listening socket.
#[pin_data]
pub(super) struct ListenSocket {
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

    fn write_space(self: ArcBorrow<'_, Self>) {}

    fn state_change(self: ArcBorrow<'_, Self>) {}
}

/// Returns the listeners of a socket in the order in which they are asked, the first one last.
/// They are of one device, to which the connection will belong.
fn in_turn(listeners: &[Arc<Listener>]) -> Result<KVec<Arc<Listener>>> {
    let mut asked = KVec::with_capacity(listeners.len(), GFP_KERNEL)?;
    let Some(first) = listeners.iter().max_by_key(|listener| {
        let is_native = listener.origin == ListenerOrigin::Native;
        (is_native, listener.cm.device.is_on_loopback())
    }) else {
        return Ok(asked);
    };
    for origin in [ListenerOrigin::Unknown, ListenerOrigin::Native] {
        for listener in listeners
            .iter()
            .filter(|listener| listener.origin == origin && Arc::ptr_eq(&listener.cm, &first.cm))
        {
            asked.push(listener.clone(), GFP_KERNEL)?;
        }
    }
    Ok(asked)
}

/// An accepted connection.
struct Arrival {
    socket: Socket,
    /// The listeners that it may be for; the last one is asked first.
    listeners: KVec<Arc<Listener>>,
}

impl Arrival {
    fn admit(mut self) -> Result {
        let first = self.listeners.pop().ok_or(EADDRNOTAVAIL)?;
        first.admit(self.socket, self.listeners)
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
    pub(super) fn kick(self: &Arc<Self>) {
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
                let _ = arrival.admit();
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
        if !listeners.all(|listener| listener.has_room(queue)) {
            return None;
        }
        loop {
            match listening.accept() {
                Ok(socket) => {
                    let listeners = in_turn(&inner.listeners).unwrap_or_default();
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
    pub(super) fn leave(self: &Arc<Self>, listener: &Arc<Listener>) {
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
pub(super) struct ListenParams {
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
    pub(super) fn new(device: &Device, id: &CmId, backlog: u32) -> Result<Self> {
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
    pub(super) fn for_peers(device: &Device, addr: SockAddr) -> Self {
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
    pub(super) fn open_socket(
        &self,
        listener: &Arc<Listener>,
    ) -> Result<Option<Arc<ListenSocket>>> {
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
                    "TCP port {} cannot be bound ({error:?}): a program that listened there before the device was \
                     made or moved gets no connections through it",
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

#[kernel::prelude::kunit_tests(riwarp_listen_socket)]
mod tests {
    use super::{
        super::{
            await_peers,
            destroy_listen,
            Consumer, //
        },
        *, //
    };
    use crate::{
        bench::Bench,
        cm::conn::bench::without_steps, //
    };
    use kernel_ext::{
        mm::noio::bench::with_io_waiting,
        net::{
            bench::{
                address,
                eventually,
                socket, //
            },
            AcceptQueue,
            Connecting,
            TcpState, //
        }, //
    };

    /// A socket whose only listener turns all connections away. Ended on drop.
    struct ListenSocketRig {
        listener: Arc<Listener>,
        listen_socket: Arc<ListenSocket>,
        bench: Bench,
    }

    impl ListenSocketRig {
        fn new() -> Result<Self> {
            Self::at(address(Family::V4, 0))
        }

        fn at(addr: SockAddr) -> Result<Self> {
            let bench = Bench::new()?;
            let listener = await_peers(&bench.rdma.cm, addr)?;
            let listen_socket = listener.socket.lock().clone().ok_or(EINVAL)?;
            bench.device.queues.conn.flush();
            Ok(Self {
                listener,
                listen_socket,
                bench,
            })
        }

        /// Opens connections that all wait in TCP.
        fn callers(&self, count: u32) -> Result<KVec<Socket>> {
            let to = {
                let inner = self.listen_socket.inner.lock();
                inner.socket.as_ref().ok_or(EINVAL)?.local_addr()?
            };
            let mut callers = KVec::new();
            for _ in 0..count {
                let caller = socket(Family::V4)?;
                if caller.connect_nonblock(&to)? == Connecting::Pending {
                    eventually(|| caller.state() == TcpState::Established)?;
                }
                // An acknowledged octet shows that the connection is established.
                let before = caller.acked();
                caller.send(b"x")?;
                eventually(|| caller.acked() > before)?;
                callers.push(caller, GFP_KERNEL)?;
            }
            Ok(callers)
        }

        /// Accepts all connections that wait in TCP; returns how many these were.
        fn take_all(&self) -> u32 {
            let inner = self.listen_socket.inner.lock();
            let accept = || inner.socket.as_ref()?.accept().ok();
            // CAST: a small count.
            without_io(|| core::iter::from_fn(accept).count() as u32)
        }
    }

    impl Drop for ListenSocketRig {
        fn drop(&mut self) {
            destroy_listen(self.listener.clone());
        }
    }

    #[test]
    fn so_many_are_let_in_before_others_go_on() -> Result {
        let rig = ListenSocketRig::new()?;
        let left = without_steps(&rig.bench.device.queues, || {
            let _callers = rig.callers(BUDGET + 6)?;
            rig.listen_socket.accept_all();
            Ok(rig.take_all())
        })?;
        assert_eq!(left, 6);
        Ok(())
    }

    #[test]
    fn the_rest_is_let_in_later() -> Result {
        let rig = ListenSocketRig::new()?;
        let callers = without_steps(&rig.bench.device.queues, || rig.callers(BUDGET + 6))?;
        for caller in &callers {
            eventually(|| caller.recv(&mut [0]) != Err(EAGAIN))?;
        }
        rig.bench.device.queues.conn.flush();
        assert_eq!(rig.take_all(), 0);
        Ok(())
    }

    #[test]
    fn who_waits_for_a_full_listener_is_let_in_when_that_one_goes() -> Result {
        let any = SockAddr::unspecified(Family::V4);
        let rig = ListenSocketRig::at(any)?;
        let other = await_peers(&rig.bench.rdma.cm, any)?;
        let shared = other.socket.lock().clone().ok_or(EINVAL)?;
        while rig.listener.waiting.lock().add().is_ok() {}
        let callers = rig.callers(1)?;
        let waits = || {
            rig.bench.device.queues.conn.flush();
            callers
                .iter()
                .all(|caller| caller.recv(&mut [0]) == Err(EAGAIN))
        };
        let waits_for_full = waits();
        destroy_listen(rig.listener.clone());
        let waits_for_nobody = waits();
        destroy_listen(other);
        assert!(Arc::ptr_eq(&shared, &rig.listen_socket));
        assert!(waits_for_full && !waits_for_nobody);
        Ok(())
    }

    #[test]
    fn a_listener_on_the_wildcard_begins_where_the_interface_has_left() -> Result {
        let bench = Bench::left()?;
        let cm = &bench.rdma.cm;
        // An error would end the listening on the other devices, too.
        let listener = await_peers(cm, SockAddr::unspecified(Family::V4))?;
        assert!(listener.socket.lock().is_none());
        destroy_listen(listener);
        let refused = await_peers(cm, address(Family::V4, 0));
        assert_eq!(refused.err(), Some(ENODEV));
        Ok(())
    }

    #[test]
    fn who_begins_to_listen_does_not_wait_for_disks() -> Result {
        let bench = Bench::new()?;
        let listen = || await_peers(&bench.rdma.cm, SockAddr::unspecified(Family::V4));
        let (one, other) = (listen()?, listen()?);
        let listen_socket = one.socket.lock().clone().ok_or(EINVAL)?;
        // Steps of connections, which disk I/O may wait for, take these locks, too.
        with_io_waiting(|| {
            let _ = LISTEN_SOCKETS.get().map(|all| all.sockets.lock().len());
            drop(listen_socket.inner.lock());
        });
        destroy_listen(one);
        destroy_listen(other);
        Ok(())
    }

    #[test]
    fn loopback_address_is_one_of_all_devices() -> Result {
        let bench = Bench::new()?;
        let scope = |addr, ifindex, is_held| {
            let params = ListenParams {
                ifindex,
                is_held,
                ..ListenParams::for_peers(&bench.device, addr)
            };
            params.scope()
        };
        let loopback = address(Family::V4, 7000);
        assert!(scope(loopback, 1, false) == scope(loopback, 2, false));
        assert!(scope(loopback, 1, false).is_shared());
        assert!(scope(loopback, 1, false) != scope(address(Family::V4, 7001), 1, false));
        assert!(scope(loopback, 1, false) != scope(address(Family::V6, 7000), 1, false));
        // In an out-of-band connect it is an address of its device.
        assert!(!scope(loopback, 1, true).is_shared());
        let any = SockAddr::unspecified(Family::V4);
        assert!(scope(any, 1, false) != scope(any, 2, false));
        Ok(())
    }

    #[test]
    fn connection_is_put_to_listeners_of_one_device() -> Result {
        let (one, other) = (Bench::new()?, Bench::new()?);
        let any = SockAddr::unspecified(Family::V4);
        let listen = |bench: &Bench, origin| {
            let params = ListenParams::for_peers(&bench.device, any);
            Listener::open(bench.rdma.cm.clone(), Consumer::Oob, origin, &params, 0)
        };
        let listeners = [
            listen(&other, ListenerOrigin::Native)?,
            listen(&one, ListenerOrigin::Unknown)?,
            listen(&other, ListenerOrigin::Unknown)?,
        ];
        let asked = in_turn(&listeners)?;
        let [native, _, unknown] = &listeners;
        // The last one is asked first.
        let expected = [unknown, native];
        let in_order = asked.len() == expected.len()
            && asked.iter().zip(expected).all(|(a, b)| Arc::ptr_eq(a, b));
        for listener in listeners {
            destroy_listen(listener);
        }
        assert!(in_order);
        Ok(())
    }

    #[test]
    fn an_accept_queue_is_long_when_half_of_it_is_taken() -> Result {
        let rig = ListenSocketRig::new()?;
        without_steps(&rig.bench.device.queues, || {
            let queue = || {
                Some(
                    rig.listen_socket
                        .inner
                        .lock()
                        .socket
                        .as_ref()?
                        .accept_queue(),
                )
            };
            let _callers = rig.callers(u32::from(BACKLOG_MIN) / 2)?;
            assert_eq!(queue(), Some(AcceptQueue::Short));
            let _one_more = rig.callers(1)?;
            assert_eq!(queue(), Some(AcceptQueue::Long));
            Ok(())
        })
    }
}
