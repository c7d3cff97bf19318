// SPDX-License-Identifier: GPL-2.0

//! Out-of-band connections: the queue pairs of a device that await one.
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

use iwarp::{
    actions::{
        After,
        Later,
        Set, //
    },
    lifecycle::Event,
    mpa::negotiate::Depths,
    oob::{
        AddrPair,
        Agreement,
        Announcement,
        ConnectState,
        Judgement,
        Mismatch,
        Pair,
        Pauses,
        Psn,
        QpNumber,
        Speaker,
        WrongGuesses, //
    }, //
};
use kernel::{
    impl_has_delayed_work,
    impl_has_work,
    new_mutex,
    new_spinlock,
    prelude::*,
    rbtree::{
        RBTree,
        RBTreeNode, //
    },
    sync::{
        Arc,
        Mutex,
        SpinLock, //
    },
    time::{
        msecs_to_jiffies,
        Delta,
        Instant,
        Monotonic, //
    },
    workqueue::{
        DelayedWork,
        Work, //
    }, //
};
use kernel_ext::{
    compat::{
        as_millis_ceil,
        ECONNREFUSED,
        ECONNRESET,
        EPROTO, //
    },
    mm::noio::without_io,
    net::{
        SockAddr,
        Socket, //
    },
    workqueue::{
        cancel_delayed,
        enqueue_delayed, //
    }, //
};

use crate::{
    cm::{
        conn::Cm,
        listen::{
            self,
            Listener, //
        }, //
    },
    device::{
        gid,
        Device, //
    },
    qp::{
        actions::Runner,
        Qp,
        POSTED, //
    },
    stream::connection::{
        Bound,
        StreamConnection,
        StreamParams, //
    }, //
};

use self::ports::{
    HeldPorts,
    PortHold, //
};

pub(crate) mod conn;
pub(crate) mod ports;
pub(super) mod search;

/// The waiting queue pairs of a device.
#[pin_data]
pub(crate) struct OobWaiters {
    ports: Arc<HeldPorts>,
    /// The zero of the clock that expires wrong guesses.
    created: Instant<Monotonic>,
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
            created: Instant::now(),
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
            device.settings.set_oob_port(port);
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
        device.stats.oob_refusals.inc();
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
        let now = self.created.elapsed().as_millis() as u64;
        let mut inner = self.inner.try_lock().ok_or(EAGAIN)?;
        // Without one the queue pair does not wait any more.
        let peer = inner.peers.get_mut(&pair.remote.gid).ok_or(ECONNREFUSED)?;
        pair.check_call(addrs, theirs, &mut peer.wrong, now)
            .map_err(|mismatch| {
                if mismatch == Mismatch::Limited {
                    device.stats.oob_limited.inc();
                }
                ECONNREFUSED
            })
    }
}

impl OobWaitersInner {
    fn hold_port(&mut self, ports: &Arc<HeldPorts>, device: &Device) -> Result {
        if self.hold.is_none() {
            if let Some(port) = device.settings.oob_port() {
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
        local: gid::of_addr(&socket.local_addr()?.to_canonical()).0,
        remote: gid::of_addr(&socket.peer_addr()?.to_canonical()).0,
    })
}

/// The searches of a device, by the number of the queue pair.
#[pin_data]
pub(in crate::cm) struct OobSearches {
    #[pin]
    table: SpinLock<RBTree<u32, Arc<OobSearch>>>,
}

impl OobSearches {
    pub(super) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            table <- new_spinlock!(RBTree::new(), "riwarp::OobSearches::table"),
        })
    }

    /// Finds the search of a queue pair.
    pub(super) fn find(&self, number: u32) -> Option<Arc<OobSearch>> {
        self.table.lock().get(&number).cloned()
    }

    /// Removes a search, unless the queue pair has begun another one.
    fn remove(&self, number: u32, search: &Arc<OobSearch>) {
        let mut table = self.table.lock();
        if table
            .get(&number)
            .is_some_and(|other| Arc::ptr_eq(other, search))
        {
            let _drop_outside_lock = table.remove(&number);
            drop(table);
        }
    }

    /// Ends the search of a queue pair, if there is one. Also closes the listener, after the last
    /// search at its address.
    pub(in crate::cm) fn end(&self, number: u32) {
        let search = self.table.lock().remove(&number);
        if let Some(search) = search {
            drop(search.take());
        }
    }
}

/// A queue pair's search for its peer.
#[pin_data]
pub(in crate::cm) struct OobSearch {
    cm: Arc<Cm>,
    /// [`None`] once the search has ended.
    #[pin]
    inner: SpinLock<Option<OobSearchInner>>,
    #[pin]
    posted_work: Work<OobSearch, POSTED>,
    #[pin]
    timer: DelayedWork<OobSearch, TIMER>,
}

struct OobSearchInner {
    qp: Arc<Qp>,
    pair: Pair,
    from: SockAddr,
    to: SockAddr,
    depths: Depths,
    state: ConnectState,
    /// The PSN that the peer being accepted expects this end to start with.
    peer_receive_psn: Option<Psn>,
    pauses: Pauses,
    /// The zero of this search's clock.
    created: Instant<Monotonic>,
    /// When to connect, if no connection is bound then.
    connect_at: Delta,
    /// When the search times out because of the first posted Send.
    deadline: Option<Delta>,
    _wait: OobWait,
}

/// The registration of a waiting queue pair, removed on drop.
struct OobWait {
    cm: Arc<Cm>,
    pair: Pair,
    addr: SockAddr,
}

impl OobWait {
    /// Registers a queue pair.
    ///
    /// # Errors
    ///
    /// Those of [`Cm::wait`].
    fn begin(cm: &Arc<Cm>, pair: Pair, addr: SockAddr) -> Result<Self> {
        cm.wait(&pair, addr)?;
        Ok(Self {
            cm: cm.clone(),
            pair,
            addr,
        })
    }
}

impl Drop for OobWait {
    fn drop(&mut self) {
        self.cm.end_wait(&self.pair, self.addr);
    }
}

/// The action that is due.
enum OobAction {
    Connect(OobConnect),
    GiveUp,
    Nothing,
}

impl OobSearchInner {
    fn next_action(&mut self) -> OobAction {
        let now = self.created.elapsed();
        if self.deadline.is_some_and(|deadline| now >= deadline) {
            return OobAction::GiveUp;
        }
        if !self.may_connect() || now < self.connect_at {
            return OobAction::Nothing;
        }
        self.state = ConnectState::Connecting;
        OobAction::Connect(OobConnect {
            from: self.from,
            to: if self.pair.local == self.pair.remote {
                OobTarget::Itself
            } else {
                OobTarget::Peer(self.to)
            },
            depths: self.depths,
            announcement: self.pair.announcement(),
        })
    }

    fn may_connect(&self) -> bool {
        self.state == ConnectState::Free && self.pair.send_psn.is_some()
    }

    /// Returns when the next action may be due.
    fn next_action_at(&self) -> Option<Delta> {
        let connect = self.may_connect().then_some(self.connect_at);
        match (connect, self.deadline) {
            (Some(connect), Some(deadline)) => Some(connect.min(deadline)),
            (one, other) => one.or(other),
        }
    }

    /// Handles the loss of the bound connection.
    fn connection_lost(&mut self) {
        self.state = ConnectState::Free;
        self.peer_receive_psn = None;
        self.connect_at =
            self.created.elapsed() + Delta::from_millis(self.pauses.next_pause().into());
    }
}

impl_has_work! {
    impl HasWork<Self, POSTED> for OobSearch { self.posted_work }
}

impl_has_delayed_work! {
    impl HasDelayedWork<Self, TIMER> for OobSearch { self.timer }
}

// Called by the connections.
impl OobSearch {
    /// Returns the connections of the device.
    pub(in crate::cm) fn cm(&self) -> &Arc<Cm> {
        &self.cm
    }

    /// Returns whether a connection may send its Request now: only if the attempt is still the
    /// bound one.
    pub(in crate::cm) fn may_send_request(&self, conn: &Arc<StreamConnection>) -> bool {
        match &mut *self.inner.lock() {
            Some(inner) if inner.state == ConnectState::Connecting && inner.qp.is_bound(conn) => {
                inner.state = ConnectState::Requesting;
                true
            }
            Some(_) | None => false,
        }
    }

    /// Checks that the private data of a Reply is what this queue pair expects from the peer at
    /// these addresses; returns what both ends agree on.
    ///
    /// # Errors
    ///
    /// `EPROTO` if it is not, `ECONNRESET` if the search has ended.
    pub(in crate::cm) fn check_reply(
        &self,
        addrs: &AddrPair,
        private_data: &[u8],
    ) -> Result<Agreement> {
        let theirs = Announcement::decode(private_data).map_err(|_| EPROTO)?;
        let inner = self.inner.lock();
        let pair = &inner.as_ref().ok_or(ECONNRESET)?.pair;
        match pair.check(addrs, Speaker::Responder, &theirs) {
            Ok(()) => Ok(pair.agree(&theirs)),
            Err(_) => Err(EPROTO),
        }
    }

    /// Checks that a stream from this queue pair to itself may begin, which needs no start-up: the
    /// queue pair has to send from the PSN that it expects. Returns what it agrees on with itself.
    ///
    /// # Errors
    ///
    /// `EPROTO` if it does not.
    pub(in crate::cm) fn check_itself(&self) -> Result<Agreement> {
        let inner = self.inner.lock();
        let pair = &inner.as_ref().ok_or(EPROTO)?.pair;
        let own = pair.announcement();
        if own.send_psn == Some(own.receive_psn) {
            Ok(pair.agree(&own))
        } else {
            Err(EPROTO)
        }
    }

    /// Binds a connection of the peer, replacing and resetting the bound one; returns the queue
    /// pair, and what to reply with.
    ///
    /// # Errors
    ///
    /// `ECONNREFUSED` if the queue pair does not wait for that peer, `EBUSY` if its own attempt
    /// takes precedence, `EAGAIN` while another thread holds the table of peers.
    pub(in crate::cm) fn accept(
        &self,
        conn: Bound,
        addrs: &AddrPair,
        theirs: &Announcement,
    ) -> Result<OobAccept> {
        let pair = self.inner.lock().as_ref().ok_or(ECONNREFUSED)?.pair;
        // Takes a mutex.
        let waiters = &self.cm.oob_waiters;
        waiters.check_call(&self.cm.device, &pair, addrs, theirs)?;
        // Dropped after the lock.
        let old;
        let mut guard = self.inner.lock();
        let inner = (*guard).as_mut().ok_or(ECONNREFUSED)?;
        if inner.pair.judge_connect(inner.state) == Judgement::Refuse {
            return Err(EBUSY);
        }
        old = inner.qp.rebind(conn).map_err(|_| ECONNREFUSED)?;
        inner.state = ConnectState::Accepting;
        inner.peer_receive_psn = Some(theirs.receive_psn);
        if let Some(old) = &old {
            inner.qp.shared.ask(old, Set::NONE.with(Later::Abort));
        }
        Ok(OobAccept {
            qp: inner.qp.clone(),
            depths: inner.depths,
            announcement: inner.pair.announcement(),
            agreement: inner.pair.agree(theirs),
        })
    }

    /// Binds a connection that the search opens.
    ///
    /// # Errors
    ///
    /// `EINVAL` if it does not search for that peer any more.
    pub(in crate::cm) fn bind(&self, conn: Bound, connect: &OobConnect) -> Result {
        let inner = self.inner.lock();
        let inner = inner.as_ref().ok_or(EINVAL)?;
        if inner.state != ConnectState::Connecting
            || inner.pair.announcement() != connect.announcement
        {
            return Err(EINVAL);
        }
        inner.qp.bind_search(conn)
    }

    /// Gives the queue pair its stream, which ends the search.
    ///
    /// # Errors
    ///
    /// Those of [`Qp::attach`]; the search continues then.
    pub(in crate::cm) fn attach(
        self: &Arc<Self>,
        qp: &Arc<Qp>,
        conn: &Arc<StreamConnection>,
        params: &StreamParams,
    ) -> Result {
        let after = {
            let mut attrs = qp.attrs.try_lock().ok_or(EBUSY)?;
            let after = qp.attach_with(&mut attrs, conn, params)?;
            // Under the lock of the attributes, so that a change to RTS finds either the search or
            // the PSN. A time limit that passes just before this ends the stream, as it would have
            // ended the search just before that.
            if let Some(inner) = self.take() {
                self.cm.oob_waiters.searches.remove(qp.shared.number, self);
                let unknown = inner.pair.send_psn.is_none();
                attrs.peer_receive_psn = inner.peer_receive_psn.filter(|_| unknown);
            }
            after
        };
        qp.carry_out(after, Runner::Step);
        Ok(())
    }

    /// Handles the loss of the bound connection before it became a stream.
    pub(in crate::cm) fn connection_lost(self: &Arc<Self>) {
        if let Some(inner) = &mut *self.inner.lock() {
            if inner.state != ConnectState::Free && !inner.qp.has_conn() {
                inner.connection_lost();
                self.arm(inner);
            }
        }
    }

    /// Unbinds a connection that the peer takes for its stream, but for which this end has no
    /// memory, and ends the search, because the peer will not come again. Does nothing if the
    /// connection is not the bound one of a search.
    pub(in crate::cm) fn give_up_on(self: &Arc<Self>, conn: &Arc<StreamConnection>) {
        let mut inner = self.inner.lock();
        let Some(_bound) = inner.as_ref().and_then(|inner| inner.qp.take_bound(conn)) else {
            return;
        };
        let ended = self.give_up(&mut inner);
        drop(inner);
        if let Some((inner, after)) = ended {
            self.finish(inner, after);
        }
    }

    /// Fails what is posted: the peer has not come in time, or will not come again. The lock is
    /// held, so that the search has not ended with a reset or with a stream.
    fn give_up(
        self: &Arc<Self>,
        inner: &mut Option<OobSearchInner>,
    ) -> Option<(OobSearchInner, Set<After>)> {
        cancel_delayed::<Self, TIMER>(self);
        let inner = inner.take()?;
        let after = inner.qp.shared.apply(Event::SearchTimeout);
        Some((inner, after))
    }

    /// Carries out the rest of that, without the lock.
    fn finish(self: &Arc<Self>, inner: OobSearchInner, after: Set<After>) {
        let qp = inner.qp.clone();
        self.cm.oob_waiters.searches.remove(qp.shared.number, self);
        // Also closes the listener, after the last search at its address.
        drop(inner);
        qp.carry_out(after, Runner::Step);
    }

    /// Ends the search and returns what to drop without a spin lock, unless it has ended already.
    fn take(self: &Arc<Self>) -> Option<OobSearchInner> {
        let mut inner = self.inner.lock();
        cancel_delayed::<Self, TIMER>(self);
        inner.take()
    }

    /// Sets the timer to the next action. The lock is held, so that the search has not ended.
    fn arm(self: &Arc<Self>, inner: &OobSearchInner) {
        cancel_delayed::<Self, TIMER>(self);
        let Some(at) = inner.next_action_at() else {
            return;
        };
        let millis = as_millis_ceil(at - inner.created.elapsed()).clamp(0, 1 << 20);
        // CAST: just clamped.
        let delay = msecs_to_jiffies(millis as u32);
        // On failure it is set already or about to run.
        let _ = enqueue_delayed::<Self, TIMER>(self.clone(), delay);
    }
}

/// What an accepted connection begins with.
pub(in crate::cm) struct OobAccept {
    pub(in crate::cm) qp: Arc<Qp>,
    pub(in crate::cm) depths: Depths,
    pub(in crate::cm) announcement: Announcement,
    /// What both ends agree on.
    pub(in crate::cm) agreement: Agreement,
}

/// The work item of the timer.
const TIMER: u64 = 1;

/// A connection attempt to make.
pub(in crate::cm) struct OobConnect {
    pub(in crate::cm) from: SockAddr,
    pub(in crate::cm) to: OobTarget,
    pub(in crate::cm) depths: Depths,
    pub(in crate::cm) announcement: Announcement,
}

/// Where a connection attempt leads.
pub(in crate::cm) enum OobTarget {
    /// To the peer's out-of-band port.
    Peer(SockAddr),
    /// To the queue pair itself: TCP connects a socket to its own address and port.
    Itself,
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
    fn queue_pair_waits_until_its_last_search_ends() -> Result {
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
