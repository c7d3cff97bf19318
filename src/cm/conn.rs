// SPDX-License-Identifier: GPL-2.0

//! The connections of a device: what one TCP connection is from start-up to release, and the table
//! of all.
//!
//! A connection is opened, accepted and rejected for the iWARP connection manager (`requests`) and
//! for queue pairs that know their peer (`oob::search`). It exchanges the MPA start-up frames,
//! hands the stream to the queue pair, ends it ([`StreamConnection::ask`], [`Conn::detach_qp`]) and
//! raises the events of the iWARP connection manager.
//!
//! # One actor per connection
//!
//! Requests, socket callbacks and the queue pair only set a flag ([`Wants`]) or a reply
//! ([`PendingReply`]) and queue the connection's work item. [`Conn::step`] takes all decisions, one
//! step at a time. `phase` has the phases, `actor` leads from one to the next; `initiator`,
//! `responder`, `steps`, `stream` and `oob::conn` contain the steps.
//!
//! Programs take the n-th request for that of the peer's n-th queue pair. So one queue runs the
//! steps of all connections in order, until the consumer has accepted or the peer has replied. From
//! then on ([`Route::Attach`]) another queue runs them, several at once.
//!
//! No step waits for a peer, so a slow peer or an unfinished start-up does not delay other
//! connections. Nor does a work item wait for what a process may hold while it is preempted, or
//! reclaims memory: if the actor is taken, its holder lets a step follow ([`Conn::with_actor`]); if
//! the socket of a stream or the attributes of its queue pair are taken, the step has no effect and
//! another one follows soon ([`Actor::come_back`]).
//!
//! # References
//!
//! * A [`Cm`] is all of a device's connections. Connections, listeners and searches refer to it. It
//!   refers to them too: to a listener for out-of-band connections until the last queue pair
//!   at its address has stopped to wait, and to a queue pair, by the table, until that is
//!   destroyed.
//! * The device's table ([`Conns`]) holds each connection until release. The iWARP connection
//!   manager holds only a number, so a request that it forgets or answers late neither leaks nor
//!   dangles. Numbers begin at 1 and are never reused. A listener holds a connection until its
//!   consumer is asked.
//! * The socket holds a [`StreamCallbacks`], which holds the connection, which holds the socket.
//!   Release breaks this cycle by unhooking the socket.
//! * The connection holds its queue pair, behind a [`BhRevocable`], and the queue pair holds the
//!   connection, from [`Qp::bind`] on. Revoking the link to the queue pair breaks this cycle:
//!   before `stream_ended` or `take_bound`, which make the queue pair drop its reference, and in
//!   [`Conn::detach_qp`]. An out-of-band connection also holds the search of the queue pair,
//!   which holds the queue pair until it ends, and no connection.
//! * A queued work item and the running timer hold a reference each. Release cancels the timer.
//!
//! The last reference must be dropped in process context, because that closes the socket: softirq
//! code borrows a connection that another reference keeps alive, or hands its reference to a work
//! item. A device waits until all its connections are gone ([`Conns::shut_down`]) before it frees
//! its workqueues.
//!
//! # Locks
//!
//! A step takes the actor's mutex; so does who connects while it makes the
//! connection, [`Conn::report`], and [`Conn::detach_qp`], which runs a step. No caller holds a lock
//! of a queue pair, a search or a socket when it takes this mutex, so a step may call into them:
//! actor > search > queue pair, actor > socket. The pending reply's spin lock and the table's are
//! innermost: no calls are made with them held. Socket callbacks take none of these; what they need
//! is atomic or revocable. Disk I/O may depend on a step, so allocations under any mutex that steps
//! take do not wait for it ([`kernel_ext::mm::noio`]). Events of the iWARP connection manager may
//! be raised with the actor's mutex held, because the connection manager queues them without
//! calling back.
//!
//! RFC 5044, section 7; RFC 6581; RFC 5041, section 8; RFC 5040, section 6.

use core::{
    convert::Infallible,
    num::NonZeroUsize, //
};

use iwarp::actions::Later;
use kernel::{
    new_mutex,
    new_spinlock,
    prelude::*,
    rbtree::{
        RBTree,
        RBTreeNode, //
    },
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Release, //
        },
        Arc,
        ArcBorrow,
        Mutex,
        SetOnce,
        SpinLock, //
    },
    workqueue::{
        impl_has_delayed_work,
        impl_has_work,
        new_delayed_work,
        new_work,
        DelayedWork,
        Work, //
    }, //
};
use kernel_ext::{
    net::{
        Hooked,
        Inbound,
        Socket,
        SocketEvents, //
    },
    sync::{
        BhOff,
        BhRevocable, //
    },
    warn_on_once, //
};

use crate::{
    cm::{
        listen::admission::{
            Pending,
            STEP, //
        },
        oob::{
            ports::HeldPorts,
            OobSearch,
            OobWaiters, //
        }, //
    },
    device::{
        refs::{
            Ref,
            Refs, //
        },
        Device, //
    },
    qp::{
        table::Qps,
        Qp, //
    },
    stream::connection::{
        Bound,
        StreamConnection,
        STREAM_STEP, //
    }, //
};

use self::{
    handshakes::Handshakes,
    phase::{
        Actor,
        PendingReply, //
    }, //
};

pub(in crate::cm) mod actor;
#[cfg(CONFIG_KUNIT = "y")]
pub(crate) mod bench;
pub(in crate::cm) mod frames;
mod handshakes;
#[cfg(CONFIG_KUNIT = "y")]
mod held;
mod initiator;
mod inject;
#[cfg(CONFIG_KUNIT = "y")]
mod peer;
pub(in crate::cm) mod phase;
mod report;
pub(crate) mod requests;
pub(in crate::cm) mod responder;
mod secure;
pub(in crate::cm) mod steps;
mod stream;
#[cfg(CONFIG_KUNIT = "y")]
mod tests;
mod trace;

/// One TCP connection.
#[pin_data]
pub(crate) struct Conn {
    /// The same socket for the whole life of the connection; closed with the last reference.
    pub(in crate::cm) socket: Hooked<StreamCallbacks>,
    /// The connection as the queue pair knows it.
    pub(crate) connection: Arc<StreamConnection>,
    /// The queue pair, from bind to detach.
    pub(in crate::cm) qp: SetOnce<BhRevocable<Arc<Qp>>>,
    /// The search of the queue pair; none of a connection by `rdma_cm`.
    pub(in crate::cm) search: SetOnce<Arc<OobSearch>>,
    /// The receiver of what arrives: a [`Route`].
    route: Atomic<u32>,
    wants: Wants,
    #[pin]
    pending_reply: SpinLock<PendingReply>,
    #[pin]
    actor: Mutex<Actor>,
    /// Whether a work item has found the actor taken.
    missed: Atomic<bool>,
    #[pin]
    work: Work<Conn, STEP>,
    #[pin]
    stream_work: Work<Conn, STREAM_STEP>,
    #[pin]
    timer: DelayedWork<Conn, TIMER>,
    /// Whether the timer has expired since the last step.
    timer_expired: Atomic<bool>,
    /// Dropped last, after the socket is closed.
    entry: ConnEntry,
}

/// The work item of the timer.
const TIMER: u64 = 1;

impl_has_work! {
    impl HasWork<Self, STEP> for Conn { self.work }
    impl HasWork<Self, STREAM_STEP> for Conn { self.stream_work }
}

impl_has_delayed_work! {
    impl HasDelayedWork<Self, TIMER> for Conn { self.timer }
}

/// The receiver of what arrives on the socket; also says which queue runs the steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Route {
    /// The start-up: octets stay in TCP until a step reads them. Steps run in order.
    StartUp = 0,
    /// The end of the start-up, where the queue pair gets the stream: as `StartUp`, but the order
    /// of connections does not matter any more.
    Attach = 3,
    /// The queue pair.
    Qp = 1,
    /// None: octets are discarded.
    Discard = 2,
}

/// Requests to a connection, for its next step to see, besides those of the queue pair
/// ([`StreamConnection::ask`]). A flag is never cleared.
struct Wants {
    /// The queue pair is being destroyed and has dropped the connection.
    orphan: Atomic<bool>,
    /// The device is being removed.
    kill: Atomic<bool>,
}

impl Wants {
    const fn new() -> Self {
        Self {
            orphan: Atomic::new(false),
            kill: Atomic::new(false),
        }
    }
}

/// Sets a flag. The caller then queues the work item.
fn want(note: &Atomic<bool>) {
    // ORDERING: Pairs with `is_wanted` in the step that sees the flag; queueing the work item
    // orders the store before a new step.
    note.store(true, Release);
}

/// Returns whether a flag is set.
fn is_wanted(note: &Atomic<bool>) -> bool {
    // ORDERING: Pairs with `want`.
    note.load(Acquire)
}

impl Conn {
    /// Makes a connection around a socket and hooks the socket. The connection then keeps its
    /// octets and receives callbacks; [`Conn::kick`] starts the first step.
    ///
    /// Context: process.
    pub(in crate::cm) fn new(cm: Arc<Cm>, socket: Socket, actor: Actor) -> Result<Arc<Self>> {
        let entry = ConnEntry::take(cm)?;
        let callbacks = Arc::new(StreamCallbacks::new(), GFP_KERNEL)?;
        let socket = Hooked::new(socket, callbacks.clone())?;
        let connection =
            StreamConnection::new(entry.number(), socket.socket().clone(), entry.count())?;
        let conn = Arc::pin_init(
            pin_init!(Self {
                socket,
                connection,
                qp: SetOnce::new(),
                search: SetOnce::new(),
                route: Atomic::new(Route::StartUp as u32),
                wants: Wants::new(),
                pending_reply <- new_spinlock!(
                    PendingReply::Closed,
                    "riwarp::Conn::pending_reply"
                ),
                actor <- new_mutex!(actor, "riwarp::Conn::actor"),
                missed: Atomic::new(false),
                work <- new_work!("riwarp::Conn::work"),
                stream_work <- new_work!("riwarp::Conn::stream_work"),
                timer <- new_delayed_work!("riwarp::Conn::timer"),
                timer_expired: Atomic::new(false),
                entry,
            }),
            GFP_KERNEL,
        )?;
        // Earlier callbacks were lost; the first step checks everything.
        callbacks.conn.populate(conn.clone());
        if let Err(error) = conn.entry.publish(&conn) {
            conn.socket.unhook();
            return Err(error);
        }
        Ok(conn)
    }

    /// Returns the connection for a listener to know until the consumer is asked.
    pub(in crate::cm) fn pending(self: &Arc<Self>) -> Pending {
        Pending {
            connection: self.connection.clone(),
            item: self.clone(),
        }
    }

    /// Returns the connection for a queue pair to be bound to.
    pub(crate) fn bound(self: &Arc<Self>) -> Bound {
        Bound {
            connection: self.connection.clone(),
            item: self.clone(),
        }
    }

    /// Asks for something in the name of the queue pair. Context: any.
    pub(in crate::cm) fn ask(self: &Arc<Self>, what: Later) {
        self.connection.ask(what);
        self.kick();
    }

    /// Returns the connections of the device.
    pub(in crate::cm) fn cm(&self) -> &Arc<Cm> {
        self.entry.cm()
    }

    /// Returns the device.
    pub(crate) fn device(&self) -> &Arc<Device> {
        self.entry.device()
    }

    /// Queues a step, unless one is queued already.
    ///
    /// Context: any.
    pub(in crate::cm) fn kick(self: &Arc<Self>) {
        let queues = &self.device().queues;
        // An item that is queued already will see what the caller has set.
        match self.route() {
            Route::StartUp => {
                let _ = queues.conn.enqueue::<Arc<Self>, STEP>(self.clone());
            }
            Route::Attach | Route::Qp | Route::Discard => {
                let _ = queues
                    .stream
                    .enqueue::<Arc<Self>, STREAM_STEP>(self.clone());
            }
        }
    }

    /// Sets the receiver of what arrives.
    fn set_route(&self, route: Route) {
        // ORDERING: Pairs with the acquire in `route`.
        self.route.store(route as u32, Release);
    }

    fn route(&self) -> Route {
        // ORDERING: Pairs with the release in `set_route`: a reader that sees `Qp` also sees the
        // queue pair.
        match self.route.load(Acquire) {
            0 => Route::StartUp,
            1 => Route::Qp,
            2 => Route::Discard,
            3 => Route::Attach,
            _ => {
                // `set_route` stores no other value.
                warn_on_once!(true);
                Route::Discard
            }
        }
    }

    /// Returns the queue pair while the link to it is not revoked.
    ///
    /// Context: process. The returned reference may become the last one.
    pub(in crate::cm) fn qp(&self) -> Option<Arc<Qp>> {
        Some(self.qp.as_ref()?.try_access()?.clone())
    }

    /// Revokes the link to the queue pair, waiting for running callbacks; returns the queue pair
    /// the first time.
    ///
    /// Context: process.
    fn take_qp(&self) -> Option<Arc<Qp>> {
        self.qp.as_ref()?.revoke()
    }

    /// Passes what has arrived to its receiver.
    ///
    /// Context: softirq, or process with the socket locked.
    #[inline]
    fn feed(self: &Arc<Self>, inbound: &mut Inbound<'_>, off: BhOff<'_>) {
        match self.route() {
            Route::StartUp | Route::Attach => self.kick(),
            Route::Qp => {
                let link = self.qp.as_ref();
                if let Some(qp) = link.and_then(|qp| qp.try_access_bh_off(off)) {
                    qp.data_ready(inbound, off);
                }
            }
            Route::Discard => inbound.consume(inbound.available()),
        }
    }
}

/// The callbacks of the socket, which forward to the connection.
pub(crate) struct StreamCallbacks {
    conn: SetOnce<Arc<Conn>>,
}

impl StreamCallbacks {
    const fn new() -> Self {
        Self {
            conn: SetOnce::new(),
        }
    }
}

impl SocketEvents for StreamCallbacks {
    #[inline]
    fn data_ready(self: ArcBorrow<'_, Self>, inbound: &mut Inbound<'_>, off: BhOff<'_>) {
        if let Some(conn) = self.conn.as_ref() {
            conn.feed(inbound, off);
        }
    }

    fn readable(self: ArcBorrow<'_, Self>) {
        let Some(conn) = self.conn.as_ref() else {
            return;
        };
        match conn.route() {
            // A step reads or discards it.
            Route::StartUp | Route::Attach | Route::Discard => conn.kick(),
            Route::Qp => {
                if let Some(qp) = conn.qp.as_ref().and_then(BhRevocable::try_access) {
                    qp.enqueue_rx();
                }
            }
        }
    }

    fn write_space(self: ArcBorrow<'_, Self>) {
        let Some(conn) = self.conn.as_ref() else {
            return;
        };
        match conn.route() {
            Route::StartUp | Route::Attach => conn.kick(),
            Route::Qp => {
                if let Some(qp) = conn.qp.as_ref().and_then(BhRevocable::try_access) {
                    qp.write_space();
                }
            }
            Route::Discard => {}
        }
    }

    fn state_change(self: ArcBorrow<'_, Self>) {
        if let Some(conn) = self.conn.as_ref() {
            conn.kick();
        }
    }
}

/// What a device has of connections.
#[pin_data]
pub(crate) struct Cm {
    pub(in crate::cm) qps: Arc<Qps>,
    #[pin]
    conns: Conns,
    /// TLS handshakes under way.
    pub(in crate::cm) handshakes: Arc<Handshakes>,
    /// Queue pairs that wait for an out-of-band connection.
    #[pin]
    pub(crate) oob_waiters: OobWaiters,
    /// Dropped last, since the module may be unloaded without it.
    pub(in crate::cm) device: Arc<Device>,
}

impl Cm {
    /// Makes the tables, with no port held.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(
        device: Arc<Device>,
        qps: Arc<Qps>,
        ports: Arc<HeldPorts>,
    ) -> Result<Arc<Self>> {
        Arc::try_pin_init(
            try_pin_init!(Self {
                qps,
                conns <- Conns::new(),
                handshakes: Handshakes::new()?,
                oob_waiters <- OobWaiters::new(ports),
                device,
            }? Error),
            GFP_KERNEL,
        )
    }

    /// Finds the connection whose request is being answered, unless it is released.
    pub(in crate::cm) fn asked(&self, name: NonZeroUsize) -> Option<Arc<Conn>> {
        self.find(u64::try_from(name.get()).ok()?)
    }

    /// Finds a connection that is not released yet.
    pub(in crate::cm) fn find(&self, number: u64) -> Option<Arc<Conn>> {
        self.conns.inner.lock().table.get(&number).cloned()
    }

    /// Calls `f` for each connection that is not released, without a lock held; ends at its first
    /// error.
    ///
    /// Context: process.
    pub(crate) fn each_conn<E>(&self, f: impl FnMut(&Arc<Conn>) -> Result<(), E>) -> Result<(), E> {
        self.conns.for_each(f)
    }

    /// Releases the port, ends all connections and waits until the last one is gone.
    ///
    /// Context: process, without rtnl, not from an item of the device's queues.
    pub(crate) fn shut_down(&self) {
        self.oob_waiters.shut_down();
        self.conns.shut_down();
    }
}

/// The connections of a device.
#[pin_data]
struct Conns {
    #[pin]
    inner: SpinLock<ConnsInner>,
    /// Counts the connections, released or not.
    alive: Arc<Refs>,
}

struct ConnsInner {
    /// Connections that are not released yet.
    table: RBTree<u64, Arc<Conn>>,
    /// The next number to assign.
    next: u64,
    /// Whether new connections are refused.
    closed: bool,
}

impl Conns {
    /// Makes an empty table.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    fn new() -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            inner <- new_spinlock!(
                ConnsInner {
                    table: RBTree::new(),
                    next: 1,
                    closed: false,
                },
                "riwarp::Conns::inner"
            ),
            alive: Refs::new()?,
        }? Error)
    }

    /// Ends all connections at once and waits until the last one is gone: its socket closed and
    /// none of its work queued.
    ///
    /// Called at the end of a device, after its queue pairs are gone; any other holder of a
    /// connection must drop its reference by itself.
    ///
    /// Context: process, without the rtnl, and not from an item of the connections' queue.
    fn shut_down(&self) {
        if core::mem::replace(&mut self.inner.lock().closed, true) {
            return;
        }
        let killed = self.for_each(|conn| {
            want(&conn.wants.kill);
            conn.kick();
            Ok::<(), Infallible>(())
        });
        let Ok(()) = killed;
        self.alive.wait_empty();
    }

    /// Calls `f` for each connection, in the order of their numbers, without the lock held. Ends at
    /// its first error.
    fn for_each<E>(&self, mut f: impl FnMut(&Arc<Conn>) -> Result<(), E>) -> Result<(), E> {
        let mut from = 0;
        loop {
            let found = {
                let inner = self.inner.lock();
                let found = inner
                    .table
                    .cursor_lower_bound(&from)
                    .map(|cursor| (*cursor.current().0, cursor.current().1.clone()));
                found
            };
            let Some((number, conn)) = found else {
                return Ok(());
            };
            f(&conn)?;
            from = number.saturating_add(1);
        }
    }
}

/// A connection's entry in the table, freed on drop.
struct ConnEntry {
    cm: Arc<Cm>,
    number: u64,
    /// Dropped last.
    _counted: Ref,
}

impl ConnEntry {
    /// Reserves an entry; lookups do not find the connection yet.
    ///
    /// # Errors
    ///
    /// `ENODEV` if the device is being removed.
    fn take(cm: Arc<Cm>) -> Result<Self> {
        let (number, counted) = {
            let mut inner = cm.conns.inner.lock();
            if inner.closed {
                return Err(ENODEV);
            }
            let number = inner.next;
            // NO-OVERFLOW: 2^64 connections are out of reach.
            inner.next = number.wrapping_add(1);
            // With the lock held, so that `shut_down` waits for it.
            (number, Ref::new(&cm.conns.alive))
        };
        Ok(Self {
            cm,
            number,
            _counted: counted,
        })
    }

    /// Counts what belongs to the connection and may outlive the entry.
    fn count(&self) -> Ref {
        Ref::new(&self.cm.conns.alive)
    }

    /// Returns the connections of the device.
    fn cm(&self) -> &Arc<Cm> {
        &self.cm
    }

    /// Returns the device.
    fn device(&self) -> &Arc<Device> {
        &self.cm.device
    }

    /// Returns the number of the entry.
    fn number(&self) -> u64 {
        self.number
    }

    /// Returns the number in the connection manager's type.
    ///
    /// # Errors
    ///
    /// `EINVAL` if it does not fit, on a 32-bit machine.
    fn name(&self) -> Result<NonZeroUsize> {
        let number = usize::try_from(self.number)?;
        NonZeroUsize::new(number).ok_or(EINVAL)
    }

    /// Makes lookups find the connection, until [`ConnEntry::remove`].
    ///
    /// # Errors
    ///
    /// * `ENODEV` if the device is being removed.
    /// * `ENOMEM`.
    fn publish(&self, conn: &Arc<Conn>) -> Result {
        let node = RBTreeNode::new(self.number, conn.clone(), GFP_KERNEL)?;
        let mut inner = self.cm.conns.inner.lock();
        if inner.closed {
            drop(inner);
            return Err(ENODEV);
        }
        let before = inner.table.insert(node);
        drop(inner);
        // No number is assigned twice. The other connection is not found any more.
        warn_on_once!(before.is_some());
        Ok(())
    }

    /// Removes the connection from the table, if present.
    fn remove(&self) {
        let conn = self.cm.conns.inner.lock().table.remove(&self.number);
        // The caller has a reference of its own.
        drop(conn);
    }
}
