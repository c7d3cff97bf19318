// SPDX-License-Identifier: GPL-2.0

//! Which connections a listener admits, and when its consumer is asked about them.
//!
//! Each listener limits the connections about which its consumer has not been asked. At the limit,
//! it resets one that had a minimum time but has not sent its Request; further connections wait in
//! TCP. It is one of the address that has the most, since a single host can open any number, and of
//! these the oldest, because younger ones are more likely to be honest. If so many wait in TCP that
//! it may drop some, there is no minimum time: a peer whose connection is dropped waits for
//! seconds, while the Request of an honest one follows its last handshake segment at once, or, with
//! TLS, once a daemon of this host has answered.
//!
//! The consumer's backlog limits unanswered requests. Further requests are queued until the
//! consumer answers, or has not been asked for 200 ms. This resets no connection.
//!
//! Locks: `waiting` and `acceptor` are innermost; a connection's step may take them. A pending
//! connection and the admission refer to each other until the connection leaves ([`HalfOpen`]).
//!
//! Context: process.

use core::{
    cmp::Reverse,
    net::IpAddr, //
};

use iwarp::actions::Later;
use kernel::{
    alloc::flags::__GFP_NOWARN,
    new_spinlock,
    prelude::*,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Release, //
        },
        Arc,
        SpinLock, //
    },
    time::{
        Instant,
        Monotonic, //
    }, //
};
use kernel_ext::{
    net::AcceptQueue,
    rdma::iw_cm::CmId,
    warn_on_once,
    workqueue::Enqueue, //
};

use crate::{
    device::Device,
    stream::connection::StreamConnection, //
};

/// The work item of a connection's step in the order of all connections.
pub(in crate::cm) const STEP: u64 = 0;

/// A connection that has not been put to the consumer yet: its part for streams, and the object
/// that has the work item.
#[derive(Clone)]
pub(in crate::cm) struct Pending {
    pub(in crate::cm) connection: Arc<StreamConnection>,
    pub(in crate::cm) item: Arc<dyn Enqueue<STEP>>,
}

/// Which connections a listener admits.
#[pin_data]
pub(in crate::cm) struct Admission {
    consumer: Consumer,
    device: Arc<Device>,
    open: Atomic<bool>,
    /// Accepts connections from TCP; none once the listener has ended, or without a socket.
    #[pin]
    acceptor: SpinLock<Option<Arc<dyn Enqueue<0>>>>,
    #[pin]
    waiting: SpinLock<PendingConns>,
    /// How many requests the consumer accepts unanswered at once.
    backlog: u32,
}

/// Decides about incoming connections.
pub(in crate::cm) enum Consumer {
    /// A consumer of the iWARP connection manager, which receives the events.
    Cm(CmId),
    /// Queue pairs in an out-of-band connect ([`crate::cm::oob`]).
    Oob,
}

/// A request that a listener's consumer has not answered yet. Drop it with the answer.
pub(in crate::cm) struct Unanswered(Arc<Admission>);

impl Drop for Unanswered {
    fn drop(&mut self) {
        let mut waiting = self.0.waiting.lock();
        // `ask` has counted this one.
        warn_on_once!(waiting.unanswered == 0);
        waiting.unanswered = waiting.unanswered.saturating_sub(1);
        drop(waiting);
        self.0.run_next_queued();
    }
}

/// Connections whose Request is missing or queued.
struct PendingConns {
    /// Oldest first, with capacity for `limit`.
    list: KVVec<PendingConn>,
    limit: usize,
    next_key: u64,
    /// Whether a connection was left in TCP's queue.
    full: bool,
    /// How many requests the consumer has not answered.
    unanswered: u32,
    last_asked: Instant<Monotonic>,
}

impl PendingConns {
    /// Returns the next connection whose Request waits for the consumer.
    fn next_queued(&self) -> Option<&PendingConn> {
        self.list.iter().find(|waiter| waiter.queued)
    }

    /// Returns the connection that has to go for another one, if it may after so many milliseconds.
    fn first_to_go(&self, grace: i64) -> Option<&PendingConn> {
        let may_go = self.list.iter().filter(|waiter| waiter.may_go());
        // The first of those with as many.
        let from = may_go.min_by_key(|waiter| Reverse(waiter.nth))?.from;
        let oldest = self
            .list
            .iter()
            .find(|waiter| waiter.may_go() && waiter.from == from);
        oldest.filter(|waiter| waiter.since.elapsed().as_millis() >= grace)
    }

    /// Removes the connection of a key.
    fn remove(&mut self, key: u64) -> Option<PendingConn> {
        let index = self.list.iter().position(|waiter| waiter.key == key)?;
        let gone = self.list.remove(index).ok()?;
        for waiter in &mut self.list {
            if waiter.from == gone.from && waiter.nth > gone.nth {
                // NO-OVERFLOW: more than another one.
                waiter.nth -= 1;
            }
        }
        Some(gone)
    }

    /// [`Admission::may_ask`], at the time `now`.
    fn may_ask(&mut self, key: u64, backlog: u32, now: Instant<Monotonic>) -> bool {
        if let Some(waiter) = self.list.iter_mut().find(|waiter| waiter.key == key) {
            waiter.queued = true;
        }
        self.next_queued().is_some_and(|next| next.key == key)
            && (self.unanswered < backlog || (now - self.last_asked).as_millis() >= ANSWER_WAIT_MS)
    }

    /// Adds a connection from an address, whose Request has not come; returns its key.
    ///
    /// # Errors
    ///
    /// `EBUSY` at the limit.
    fn add(&mut self, from: IpAddr) -> Result<u64> {
        let key = self.next_key;
        self.next_key = key.wrapping_add(1);
        if self.list.len() >= self.limit {
            return Err(EBUSY);
        }
        let waiter = PendingConn {
            key,
            from,
            nth: self.list.iter().filter(|other| other.from == from).count(),
            since: Instant::now(),
            conn: None,
            queued: false,
        };
        // The list was allocated for as many.
        if warn_on_once!(self.list.push_within_capacity(waiter).is_err()) {
            return Err(EBUSY);
        }
        Ok(key)
    }
}

struct PendingConn {
    key: u64,
    /// The peer's address.
    from: IpAddr,
    /// How many older ones of that address there are.
    nth: usize,
    since: Instant<Monotonic>,
    /// Once there is one.
    conn: Option<Pending>,
    /// Whether its Request has arrived.
    queued: bool,
}

impl PendingConn {
    /// Returns whether another one may take its place: it is made, and has sent no Request.
    fn may_go(&self) -> bool {
        self.conn.is_some() && !self.queued
    }
}

impl Admission {
    /// Makes the admission of a consumer with this backlog; it is open.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(super) fn new(device: Arc<Device>, consumer: Consumer, backlog: u32) -> Result<Arc<Self>> {
        let limit = usize::try_from(backlog)?.clamp(HALF_OPEN_MIN, HALF_OPEN_MAX);
        Arc::pin_init(
            pin_init!(Self {
                consumer,
                device,
                open: Atomic::new(true),
                acceptor <- new_spinlock!(None, "riwarp::Admission::acceptor"),
                waiting <- new_spinlock!(
                    PendingConns {
                        list: KVVec::with_capacity(limit, GFP_KERNEL_ACCOUNT | __GFP_NOWARN)?,
                        limit,
                        next_key: 0,
                        full: false,
                        unanswered: 0,
                        last_asked: Instant::now(),
                    },
                    "riwarp::Admission::waiting"
                ),
                backlog: backlog.max(1),
            }? Error),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// Sets what accepts connections from TCP.
    pub(super) fn set_acceptor(&self, acceptor: Option<Arc<dyn Enqueue<0>>>) {
        let _drop_outside_lock = core::mem::replace(&mut *self.acceptor.lock(), acceptor);
    }

    /// Admits no more connections, and resets those whose Request was not put to the consumer; the
    /// others still wait for its answer.
    pub(super) fn close(&self) {
        // ORDERING: pairs with `is_open`. A connection is entered in `waiting` and then loads the
        // flag; this call stores it and then looks in `waiting`. Its lock orders both: either this
        // call finds the connection, or the connection sees the listener closed.
        self.open.store(false, Release);
        self.set_acceptor(None);
        // Connections that are not made yet will see the listener closed.
        let mut after = None;
        while let Some((key, conn)) = self.waiter_after(after) {
            self.dismiss(conn);
            after = Some(key);
        }
    }

    /// Counts one more connection, from an address, whose Request has not come.
    ///
    /// # Errors
    ///
    /// `EBUSY` at the limit.
    pub(super) fn enter(
        self: &Arc<Self>,
        from: IpAddr,
        others: KVec<Arc<Self>>,
    ) -> Result<HalfOpen> {
        let key = self.waiting.lock().add(from)?;
        Ok(HalfOpen {
            admission: self.clone(),
            others,
            key,
        })
    }

    /// Notes the connection of a key, unless it has left already; resets it if the listener has
    /// ended meanwhile.
    pub(super) fn set_conn(&self, key: u64, conn: Pending) {
        {
            let mut waiting = self.waiting.lock();
            if let Some(waiter) = waiting.list.iter_mut().find(|waiter| waiter.key == key) {
                waiter.conn = Some(conn.clone());
            }
        }
        if !self.is_open() {
            // Admitted after `close` had reset the others.
            self.dismiss(Some(conn));
        }
    }

    /// Returns the consumer.
    pub(in crate::cm) fn consumer(&self) -> &Consumer {
        &self.consumer
    }

    /// Returns whether connections are still admitted.
    pub(in crate::cm) fn is_open(&self) -> bool {
        // ORDERING: pairs with the store in `close`, which says why that suffices.
        self.open.load(Acquire)
    }

    /// Returns whether one more connection can be admitted. If not, resets one without a Request
    /// that had its minimum time, if `queue` leaves it any; its release makes the socket accept
    /// again. If all wait for the consumer, the socket accepts again once the consumer is asked
    /// about one of them.
    pub(super) fn has_room(&self, queue: AcceptQueue) -> bool {
        let grace = match queue {
            AcceptQueue::Long => 0,
            AcceptQueue::Short => self.grace_millis().into(),
        };
        let first = {
            let mut waiting = self.waiting.lock();
            if waiting.list.len() < waiting.limit {
                return true;
            }
            waiting.full = true;
            waiting
                .first_to_go(grace)
                .and_then(|waiter| waiter.conn.clone())
        };
        if first.is_some() {
            self.device.stats.backlog_drops.inc();
            self.dismiss(first);
        }
        false
    }

    /// Returns the next pending connection after a key.
    fn waiter_after(&self, after: Option<u64>) -> Option<(u64, Option<Pending>)> {
        let waiting = self.waiting.lock();
        // Keys rise in list order.
        let mut list = waiting.list.iter();
        let found = list.find(|waiter| after.is_none_or(|after| waiter.key > after));
        found.map(|waiter| (waiter.key, waiter.conn.clone()))
    }

    /// Resets a pending connection.
    fn dismiss(&self, conn: Option<Pending>) {
        if let Some(conn) = conn {
            conn.connection.ask(Later::Abort);
            self.run_step(&conn);
        }
    }

    /// Queues a step of a pending connection.
    fn run_step(&self, conn: &Pending) {
        conn.item
            .as_arc_borrow()
            .enqueue_on(&self.device.queues.conn);
    }

    /// Removes a connection whose Request was put to the consumer, or will not come any more.
    pub(in crate::cm) fn left(&self, key: u64) {
        let _drop_outside_lock = self.waiting.lock().remove(key);
        self.run_next_queued();
        self.call_next();
    }

    /// Runs a step of the next connection that waits to ask the consumer.
    fn run_next_queued(&self) {
        let next = {
            let waiting = self.waiting.lock();
            waiting.next_queued().and_then(|waiter| waiter.conn.clone())
        };
        if let Some(conn) = next {
            self.run_step(&conn);
        }
    }

    /// Returns whether a connection is next to ask the consumer.
    pub(in crate::cm) fn is_next(&self, key: u64) -> bool {
        let waiting = self.waiting.lock();
        waiting
            .next_queued()
            .is_some_and(|waiter| waiter.key == key)
    }

    /// Returns the minimum time that a connection has before it can be reset in favour of another
    /// one, in milliseconds. A peer without a connection manager sends its Request at once.
    pub(in crate::cm) fn grace_millis(&self) -> u32 {
        match self.consumer {
            Consumer::Cm(_) => 500,
            Consumer::Oob => 100,
        }
    }

    /// Makes the socket accept again if connections were left in TCP's queue: a slot is free, or a
    /// connection had its minimum time.
    pub(in crate::cm) fn call_next(&self) {
        let was_full = core::mem::replace(&mut self.waiting.lock().full, false);
        if was_full {
            self.accept_more();
        }
    }

    /// Makes the socket accept.
    pub(super) fn accept_more(&self) {
        let acceptor = self.acceptor.lock().clone();
        if let Some(acceptor) = acceptor {
            acceptor
                .as_arc_borrow()
                .enqueue_on(&self.device.queues.conn);
        }
    }

    /// Records that a connection's Request has arrived; returns whether it is next and the consumer
    /// can be asked once more. `rdma_ucm` itself rejects requests beyond a process's backlog.
    pub(in crate::cm) fn may_ask(&self, key: u64) -> bool {
        let mut waiting = self.waiting.lock();
        waiting.may_ask(key, self.backlog, Instant::now())
    }

    /// Counts one more request put to the consumer.
    pub(in crate::cm) fn ask(self: &Arc<Self>) -> Unanswered {
        let mut waiting = self.waiting.lock();
        waiting.unanswered = waiting.unanswered.saturating_add(1);
        waiting.last_asked = Instant::now();
        drop(waiting);
        Unanswered(self.clone())
    }
}

/// Bounds of a listener's limit of connections without Request; within them it is the backlog.
const HALF_OPEN_MIN: usize = 128;
const HALF_OPEN_MAX: usize = 1024;
/// The pause before a consumer with a full backlog is asked again, in milliseconds. A consumer that
/// collects more requests before it answers any thus gets them, one at a time.
const ANSWER_WAIT_MS: i64 = 200;

/// An admitted connection whose Request is missing or queued; listeners limit their number.
/// Dropping it removes the pending entry.
pub(in crate::cm) struct HalfOpen {
    pub(in crate::cm) admission: Arc<Admission>,
    /// The listeners to ask if this listener's consumer rejects; the last one is next.
    pub(in crate::cm) others: KVec<Arc<Admission>>,
    /// The listener's key for this connection.
    pub(in crate::cm) key: u64,
}

impl Drop for HalfOpen {
    fn drop(&mut self) {
        self.admission.left(self.key);
    }
}

#[kernel::prelude::kunit_tests(riwarp_listen)]
mod tests {
    use super::{
        super::{
            await_peers,
            destroy_listen,
            Listener, //
        },
        *, //
    };
    use crate::{
        bench::Bench,
        cm::conn::{
            frames::{
                config,
                Inbox,
                Role, //
            },
            phase::Asked,
            Conn, //
        },
        device::stats::Stats, //
    };
    use core::net::Ipv4Addr;
    use iwarp::mpa::negotiate::{
        Depths,
        Initiator,
        Progress,
        Responder, //
    };
    use kernel::time::Delta;
    use kernel_ext::{
        compat::ECONNRESET,
        net::{
            bench::{
                address,
                eventually,
                pair, //
            },
            Family,
            Socket, //
        }, //
    };

    /// A listener, ended on drop.
    struct ListenerRig {
        listener: Arc<Listener>,
        admission: Arc<Admission>,
        bench: Bench,
    }

    impl ListenerRig {
        fn new() -> Result<Self> {
            let bench = Bench::new()?;
            let listener = await_peers(&bench.rdma.cm, address(Family::V4, 0))?;
            Ok(Self {
                admission: listener.admission.clone(),
                listener,
                bench,
            })
        }

        /// Adds a pending connection; returns its key.
        fn add(&self) -> Result<u64> {
            self.add_from(1)
        }

        /// Adds one from 10.0.0.N.
        fn add_from(&self, n: u8) -> Result<u64> {
            let from = IpAddr::V4(Ipv4Addr::new(10, 0, 0, n));
            self.admission.waiting.lock().add(from)
        }

        /// Returns whether a consumer with a backlog of one can be asked about a request, some
        /// milliseconds after it was last asked.
        fn may_ask(&self, key: u64, millis: i64) -> bool {
            let mut waiting = self.admission.waiting.lock();
            let now = waiting.last_asked + Delta::from_millis(millis);
            waiting.may_ask(key, 1, now)
        }

        /// Adds a pending connection that its next step resets. Returns the peer's socket, too.
        fn add_conn(&self) -> Result<(u64, Socket)> {
            self.add_conn_from(1)
        }

        fn add_conn_from(&self, n: u8) -> Result<(u64, Socket)> {
            let (near, far) = pair(Family::V4)?;
            let key = self.add_from(n)?;
            let conn = Conn::about_to_go(&self.bench.rdma.cm, near)?;
            let mut waiting = self.admission.waiting.lock();
            let waiter = waiting.list.iter_mut().find(|waiter| waiter.key == key);
            waiter.ok_or(EINVAL)?.conn = Some(conn.pending());
            Ok((key, far))
        }

        /// Moves the arrival of all pending connections to some milliseconds ago.
        fn age(&self, millis: i64) {
            let since = Instant::now() - Delta::from_millis(millis);
            for waiter in &mut self.admission.waiting.lock().list {
                waiter.since = since;
            }
        }

        /// Returns how many connections were reset at the limit.
        fn drops(&self) -> Option<u64> {
            let mut values = [0; 64];
            self.bench.device.stats.read(&mut values);
            let at = Stats::NAMES
                .iter()
                .position(|name| **name == *c"backlog_drops")?;
            values.get(at).copied()
        }
    }

    impl Drop for ListenerRig {
        fn drop(&mut self) {
            destroy_listen(self.listener.clone());
        }
    }

    fn is_reset(far: &Socket) -> Result {
        eventually(|| far.recv(&mut [0]) == Err(ECONNRESET))
    }

    #[test]
    fn requests_beyond_backlog_are_queued() -> Result {
        let rig = ListenerRig::new()?;
        let (first, second) = (rig.add()?, rig.add()?);
        assert!(rig.may_ask(second, 0));
        // The Request of the earlier connection has now arrived, too.
        assert!(rig.may_ask(first, 0) && !rig.may_ask(second, 0));
        let unanswered = rig.admission.ask();
        rig.admission.left(first);
        assert!(rig.admission.is_next(second) && !rig.may_ask(second, 0));
        drop(unanswered);
        assert!(rig.may_ask(second, 0));
        Ok(())
    }

    #[test]
    fn silent_consumer_is_asked_once_more_per_interval() -> Result {
        let rig = ListenerRig::new()?;
        let key = rig.add()?;
        let _unanswered = [rig.admission.ask(), rig.admission.ask()];
        assert!(!rig.may_ask(key, 0) && !rig.may_ask(key, ANSWER_WAIT_MS - 1));
        assert!(rig.may_ask(key, ANSWER_WAIT_MS));
        Ok(())
    }

    #[test]
    fn answer_or_leave_runs_next_queued_connection() -> Result {
        // An answer frees a slot.
        let rig = ListenerRig::new()?;
        let (key, far) = rig.add_conn()?;
        assert!(rig.may_ask(key, 0));
        drop(rig.admission.ask());
        is_reset(&far)?;
        // The earlier connection has gone.
        let rig = ListenerRig::new()?;
        let first = rig.add()?;
        let (key, far) = rig.add_conn()?;
        rig.may_ask(first, 0);
        assert!(!rig.may_ask(key, 0));
        rig.admission.left(first);
        is_reset(&far)
    }

    /// Otherwise the connection would ask again at once, and again.
    #[test]
    fn failed_connect_request_runs_no_other_connection() -> Result {
        let rig = ListenerRig::new()?;
        let (key, far) = rig.add_conn()?;
        assert!(rig.may_ask(key, 0));
        let config = config(&rig.bench.device, Role::Responder);
        let initiator = Initiator::new(config, Depths { ird: 1, ord: 1 });
        let frame = initiator.request(&[]).map_err(|_| EINVAL)?;
        let responder = Responder::new(config);
        let Ok(Progress::Done(request)) = responder.handle_request(frame.as_octets()) else {
            return Err(EINVAL);
        };
        let asked = Asked { responder, request };
        let (near, _far) = pair(Family::V4)?;
        let conn = Conn::of_nobody(&rig.bench.rdma.cm, near)?;
        // Without a connection manager there is no consumer to ask.
        let result = conn.ask_consumer(&rig.admission, &Inbox::new()?, &asked);
        conn.end_of_nobody();
        assert_eq!(result.err(), Some(EINVAL));
        rig.bench.device.queues.conn.flush();
        assert_eq!(far.recv(&mut [0]), Err(EAGAIN));
        Ok(())
    }

    #[test]
    fn oldest_silent_connection_is_dropped_after_its_minimum_time() -> Result {
        let rig = ListenerRig::new()?;
        let (asking, _asking) = rig.add_conn()?;
        rig.may_ask(asking, 0);
        let (_, silent) = rig.add_conn()?;
        let (_, younger) = rig.add_conn()?;
        while rig.add().is_ok() {}
        let grace = i64::from(rig.admission.grace_millis());
        // The test takes less than an hour.
        rig.age(grace - 3_600_000);
        assert!(!rig.admission.has_room(AcceptQueue::Short));
        assert_eq!(rig.drops(), Some(0));
        rig.age(grace);
        assert!(!rig.admission.has_room(AcceptQueue::Short));
        assert_eq!(rig.drops(), Some(1));
        is_reset(&silent)?;
        rig.bench.device.queues.conn.flush();
        assert_eq!(younger.recv(&mut [0]), Err(EAGAIN));
        Ok(())
    }

    #[test]
    fn full_listener_drops_connection_of_most_crowded_address() -> Result {
        let rig = ListenerRig::new()?;
        // The oldest one is alone; the address with most has some without a connection yet.
        let (_, alone) = rig.add_conn_from(2)?;
        let gone = rig.add_from(3)?;
        let (third, _third) = rig.add_conn_from(3)?;
        let (_, first) = rig.add_conn_from(1)?;
        let (_, second) = rig.add_conn_from(1)?;
        rig.admission.left(gone);
        while rig.add().is_ok() {}
        let grace = i64::from(rig.admission.grace_millis());
        rig.age(grace);
        assert!(!rig.admission.has_room(AcceptQueue::Short));
        is_reset(&first)?;
        rig.bench.device.queues.conn.flush();
        assert_eq!(alone.recv(&mut [0]), Err(EAGAIN));
        assert_eq!(second.recv(&mut [0]), Err(EAGAIN));
        // An older one that has left does not count.
        let waiting = rig.admission.waiting.lock();
        let third = waiting.list.iter().find(|waiter| waiter.key == third);
        assert_eq!(third.map(|waiter| waiter.nth), Some(0));
        Ok(())
    }

    #[test]
    fn long_accept_queue_drops_silent_connections_at_once() -> Result {
        let rig = ListenerRig::new()?;
        let (_, silent) = rig.add_conn()?;
        while rig.add().is_ok() {}
        rig.age(0);
        assert!(!rig.admission.has_room(AcceptQueue::Long));
        is_reset(&silent)
    }
}
