// SPDX-License-Identifier: GPL-2.0

//! Listeners: admission of connections, and its limits.
//!
//! The iWARP connection manager and queue pairs in an out-of-band connect ([`crate::cm::oob`])
//! create listeners. A listener admits connections that [`socket`] has accepted from TCP; each
//! becomes a [`Conn`], which reads the peer's MPA Request itself. No function here waits for a
//! peer.
//!
//! Each listener limits the connections about which its consumer has not been asked. At the limit,
//! it resets the oldest one that had a minimum time but has not sent its Request, because younger
//! ones are more likely to be honest; further connections wait in TCP. If so many wait there that
//! TCP may drop some, there is no minimum time: a peer whose connection is dropped waits for
//! seconds, while the Request of an honest one follows its last handshake segment at once.
//!
//! The consumer's backlog limits unanswered requests. Further requests are held back until the
//! consumer answers, or has not been asked for 200 ms. This resets no connection.
//!
//! `rdma_cm` makes a listener on the wildcard address, or on a loopback address, listen on every
//! device of the host, including those of other network namespaces and those that appear later. A
//! caller in another namespace than the device's gets a listener without a socket: no connection
//! could succeed, and the port is not the caller's. When `rdma_cm` adds existing listeners to a
//! device that is new or was moved (`rdma dev set netns`), their namespace is unknown. Such
//! listeners share sockets, tolerate a port in use, and are asked after others; `rdma_cm` itself
//! rejects a request that reaches the wrong consumer.
//!
//! Locks: see [`socket`]; a listener's `waiting` and `socket` are innermost spin locks, and a
//! connection's step may take them. A socket and its listeners hold references to each other until
//! [`destroy_listen`].
//!
//! Context: process.

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
        ArcBorrow,
        SpinLock, //
    },
    time::{
        Instant,
        Monotonic, //
    }, //
};
use kernel_ext::{
    mm::noio::without_io,
    net::{
        AcceptQueue,
        NetId,
        SockAddr,
        Socket, //
    },
    rdma::iw_cm::CmId,
    warn_on_once, //
};

use crate::{
    cm::{
        conn::{
            Conn,
            HalfOpen, //
        },
        Cm, //
    },
    device::Device, //
};

use self::socket::{
    ListenParams,
    ListenSocket, //
};

mod socket;

pub(crate) use self::socket::{
    ListenSockets,
    LISTEN_SOCKETS, //
};

/// A listener on an address.
#[pin_data]
pub(crate) struct Listener {
    consumer: Consumer,
    cm: Arc<Cm>,
    origin: ListenerOrigin,
    open: Atomic<bool>,
    #[pin]
    socket: SpinLock<Option<Arc<ListenSocket>>>,
    #[pin]
    waiting: SpinLock<PendingConns>,
    /// How many requests the consumer accepts unanswered at once.
    backlog: u32,
}

/// Decides about incoming connections.
pub(super) enum Consumer {
    /// A consumer of the iWARP connection manager, which receives the events.
    Cm(CmId),
    /// Queue pairs in an out-of-band connect ([`crate::cm::oob`]).
    Oob,
}

/// A request that a listener's consumer has not answered yet. Drop it with the answer.
pub(super) struct Unanswered(Arc<Listener>);

impl Drop for Unanswered {
    fn drop(&mut self) {
        let mut waiting = self.0.waiting.lock();
        // `ask` has counted this one.
        warn_on_once!(waiting.unanswered == 0);
        waiting.unanswered = waiting.unanswered.saturating_sub(1);
        drop(waiting);
        self.0.call_held();
    }
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
        } else if device.home == NetId::current() {
            Self::Native
        } else {
            Self::Foreign
        }
    }
}

/// Connections whose Request is missing or held back.
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
    fn next_held(&self) -> Option<&PendingConn> {
        self.list.iter().find(|waiter| waiter.held)
    }

    /// [`Listener::may_ask`], at the time `now`.
    fn may_ask(&mut self, key: u64, backlog: u32, now: Instant<Monotonic>) -> bool {
        if let Some(waiter) = self.list.iter_mut().find(|waiter| waiter.key == key) {
            waiter.held = true;
        }
        self.next_held().is_some_and(|next| next.key == key)
            && (self.unanswered < backlog || (now - self.last_asked).as_millis() >= ANSWER_WAIT_MS)
    }

    /// Adds a connection whose Request has not come; returns its key.
    ///
    /// # Errors
    ///
    /// `EBUSY` at the limit.
    fn add(&mut self) -> Result<u64> {
        let key = self.next_key;
        self.next_key = key.wrapping_add(1);
        if self.list.len() >= self.limit {
            return Err(EBUSY);
        }
        let waiter = PendingConn {
            key,
            since: Instant::now(),
            conn: None,
            held: false,
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
    since: Instant<Monotonic>,
    /// Its number in the device's table, once it has one.
    conn: Option<u64>,
    /// Whether its Request has arrived.
    held: bool,
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
    // ORDERING: pairs with `is_open`. A connection is entered in `waiting` and then loads the flag;
    // this call stores it and then looks in `waiting`. Its lock orders both: either this call finds
    // the connection, or the connection sees the listener closed.
    listener.open.store(false, Release);
    let socket = listener.socket.lock().take();
    if let Some(socket) = socket {
        socket.leave(&listener);
    }
    // Connections that are not in the device's table yet will see the listener closed.
    let mut after = None;
    while let Some((key, conn)) = listener.waiter_after(after) {
        listener.dismiss(conn);
        after = Some(key);
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
        let limit = usize::try_from(backlog)?.clamp(HALF_OPEN_MIN, HALF_OPEN_MAX);
        let listener = Arc::pin_init(
            pin_init!(Self {
                consumer,
                cm,
                origin,
                open: Atomic::new(true),
                socket <- new_spinlock!(None, "riwarp::Listener::socket"),
                waiting <- new_spinlock!(
                    PendingConns {
                        list: KVVec::with_capacity(limit, GFP_KERNEL_ACCOUNT | __GFP_NOWARN)?,
                        limit,
                        next_key: 0,
                        full: false,
                        unanswered: 0,
                        last_asked: Instant::now(),
                    },
                    "riwarp::Listener::waiting"
                ),
                backlog: backlog.max(1),
            }? Error),
            GFP_KERNEL_ACCOUNT,
        )?;
        // This takes locks that work items of the connections' queue take, too.
        *listener.socket.lock() = without_io(|| params.open_socket(&listener))?;
        listener.kick_socket();
        Ok(listener)
    }

    /// Returns the consumer.
    pub(super) fn consumer(&self) -> &Consumer {
        &self.consumer
    }

    /// Returns whether connections are still admitted.
    pub(super) fn is_open(&self) -> bool {
        // ORDERING: pairs with the store in `destroy_listen`, which says why that suffices.
        self.open.load(Acquire)
    }

    /// Returns whether one more connection can be admitted. If not, resets the oldest one without a
    /// Request that had its minimum time, if `queue` leaves it any; its release makes the socket
    /// accept again. If all wait for the consumer, the socket accepts again once the consumer is
    /// asked about one of them.
    fn has_room(&self, queue: AcceptQueue) -> bool {
        let chance = match queue {
            AcceptQueue::Long => 0,
            AcceptQueue::Short => self.chance().into(),
        };
        let oldest = {
            let mut waiting = self.waiting.lock();
            if waiting.list.len() < waiting.limit {
                return true;
            }
            waiting.full = true;
            waiting
                .list
                .iter()
                .find(|waiter| waiter.conn.is_some() && !waiter.held)
                .filter(|waiter| waiter.since.elapsed().as_millis() >= chance)
                .and_then(|waiter| waiter.conn)
        };
        if oldest.is_some() {
            self.cm.device.stats.backlog_drops.inc();
            self.dismiss(oldest);
        }
        false
    }

    /// Returns the next pending connection after a key.
    fn waiter_after(&self, after: Option<u64>) -> Option<(u64, Option<u64>)> {
        let waiting = self.waiting.lock();
        // Keys rise in list order.
        let mut list = waiting.list.iter();
        let found = list.find(|waiter| after.is_none_or(|after| waiter.key > after));
        found.map(|waiter| (waiter.key, waiter.conn))
    }

    /// Resets a pending connection.
    fn dismiss(&self, number: Option<u64>) {
        if let Some(conn) = number.and_then(|number| self.cm.conns.find(number)) {
            conn.ask(Later::Abort);
        }
    }

    /// Admits a connection. `others` are asked if this listener's consumer rejects.
    fn admit(self: &Arc<Self>, socket: Socket, others: KVec<Arc<Listener>>) -> Result {
        if let Consumer::Oob = self.consumer {
            self.cm.oob_waiters.check_peer(&self.cm.device, &socket)?;
        }
        let key = self.waiting.lock().add()?;
        // Dropping it removes the pending entry.
        let entry = HalfOpen::new(self.clone(), others, key);
        let number = Conn::answer(&self.cm, socket, entry)?;
        let mut waiting = self.waiting.lock();
        if let Some(waiter) = waiting.list.iter_mut().find(|waiter| waiter.key == key) {
            waiter.conn = Some(number);
        }
        drop(waiting);
        if !self.is_open() {
            // Admitted after `destroy_listen` had reset the others.
            self.dismiss(Some(number));
        }
        Ok(())
    }

    /// Removes a connection whose Request was put to the consumer, or will not come any more.
    pub(super) fn left(&self, key: u64) {
        {
            let mut waiting = self.waiting.lock();
            let index = waiting.list.iter().position(|waiter| waiter.key == key);
            if let Some(index) = index {
                let _ = waiting.list.remove(index);
            }
        }
        self.call_held();
        self.call_next();
    }

    /// Runs a step of the next connection that waits to ask the consumer.
    fn call_held(&self) {
        let next = {
            let waiting = self.waiting.lock();
            waiting.next_held().and_then(|waiter| waiter.conn)
        };
        if let Some(conn) = next.and_then(|number| self.cm.conns.find(number)) {
            conn.kick();
        }
    }

    /// Returns whether a connection is next to ask the consumer.
    pub(super) fn is_next(&self, key: u64) -> bool {
        let waiting = self.waiting.lock();
        waiting.next_held().is_some_and(|waiter| waiter.key == key)
    }

    /// Returns the minimum time that a connection has before it can be reset in favour of another
    /// one, in milliseconds. A peer without a connection manager sends its Request at once.
    pub(super) fn chance(&self) -> u32 {
        match self.consumer {
            Consumer::Cm(_) => 500,
            Consumer::Oob => 100,
        }
    }

    /// Makes the socket accept again if connections were left in TCP's queue: a slot is free, or a
    /// connection had its minimum time.
    pub(super) fn call_next(&self) {
        let was_full = core::mem::replace(&mut self.waiting.lock().full, false);
        if was_full {
            self.kick_socket();
        }
    }

    fn kick_socket(&self) {
        if let Some(socket) = &*self.socket.lock() {
            socket.kick();
        }
    }

    /// Records that a connection's Request has arrived; returns whether it is next and the consumer
    /// can be asked once more. `rdma_ucm` itself rejects requests beyond a process's backlog.
    pub(super) fn may_ask(&self, key: u64) -> bool {
        let mut waiting = self.waiting.lock();
        waiting.may_ask(key, self.backlog, Instant::now())
    }

    /// Counts one more request put to the consumer.
    pub(super) fn ask(self: &Arc<Self>) -> Unanswered {
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

#[kernel::prelude::kunit_tests(riwarp_listen)]
mod tests {
    use super::*;
    use crate::{
        bench::Bench,
        cm::conn::{
            frames::Inbox,
            requests::{
                config,
                Asked,
                Role, //
            }, //
        },
        device::stats::Stats, //
    };
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
            Family, //
        }, //
    };

    /// A listener, ended on drop.
    struct ListenerRig {
        listener: Arc<Listener>,
        bench: Bench,
    }

    impl ListenerRig {
        fn new() -> Result<Self> {
            let bench = Bench::new()?;
            let listener = await_peers(&bench.rdma.cm, address(Family::V4, 0))?;
            Ok(Self { listener, bench })
        }

        /// Adds a pending connection; returns its key.
        fn add(&self) -> Result<u64> {
            self.listener.waiting.lock().add()
        }

        /// Returns whether a consumer with a backlog of one can be asked about a request, some
        /// milliseconds after it was last asked.
        fn may_ask(&self, key: u64, millis: i64) -> bool {
            let mut waiting = self.listener.waiting.lock();
            let now = waiting.last_asked + Delta::from_millis(millis);
            waiting.may_ask(key, 1, now)
        }

        /// Adds a pending connection that its next step resets. Returns the peer's socket, too.
        fn add_conn(&self) -> Result<(u64, Socket)> {
            let (near, far) = pair(Family::V4)?;
            let key = self.add()?;
            let number = Conn::about_to_go(&self.bench.rdma.cm, near)?;
            let mut waiting = self.listener.waiting.lock();
            let waiter = waiting.list.iter_mut().find(|waiter| waiter.key == key);
            waiter.ok_or(EINVAL)?.conn = Some(number);
            Ok((key, far))
        }

        /// Moves the arrival of all pending connections to some milliseconds ago.
        fn age(&self, millis: i64) {
            let since = Instant::now() - Delta::from_millis(millis);
            for waiter in &mut self.listener.waiting.lock().list {
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
    fn requests_beyond_the_backlog_are_held_back() -> Result {
        let rig = ListenerRig::new()?;
        let (first, second) = (rig.add()?, rig.add()?);
        assert!(rig.may_ask(second, 0));
        // The Request of the earlier connection has now arrived, too.
        assert!(rig.may_ask(first, 0) && !rig.may_ask(second, 0));
        let unanswered = rig.listener.ask();
        rig.listener.left(first);
        assert!(rig.listener.is_next(second) && !rig.may_ask(second, 0));
        drop(unanswered);
        assert!(rig.may_ask(second, 0));
        Ok(())
    }

    #[test]
    fn a_consumer_that_does_not_answer_gets_one_more_from_time_to_time() -> Result {
        let rig = ListenerRig::new()?;
        let key = rig.add()?;
        let _unanswered = [rig.listener.ask(), rig.listener.ask()];
        assert!(!rig.may_ask(key, 0) && !rig.may_ask(key, ANSWER_WAIT_MS - 1));
        assert!(rig.may_ask(key, ANSWER_WAIT_MS));
        Ok(())
    }

    #[test]
    fn whose_turn_it_is_is_told() -> Result {
        // An answer frees a slot.
        let rig = ListenerRig::new()?;
        let (key, far) = rig.add_conn()?;
        assert!(rig.may_ask(key, 0));
        drop(rig.listener.ask());
        is_reset(&far)?;
        // The earlier connection has gone.
        let rig = ListenerRig::new()?;
        let first = rig.add()?;
        let (key, far) = rig.add_conn()?;
        rig.may_ask(first, 0);
        assert!(!rig.may_ask(key, 0));
        rig.listener.left(first);
        is_reset(&far)
    }

    /// Otherwise the connection would ask again at once, and again.
    #[test]
    fn a_request_that_cannot_be_put_to_the_consumer_tells_nobody() -> Result {
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
        let invited = conn.invite(&rig.listener, &Inbox::new()?, &asked);
        conn.end_of_nobody();
        assert_eq!(invited.err(), Some(EINVAL));
        rig.bench.device.queues.conn.flush();
        assert_eq!(far.recv(&mut [0]), Err(EAGAIN));
        Ok(())
    }

    #[test]
    fn the_oldest_that_says_nothing_has_to_go_once_it_had_its_chance() -> Result {
        let rig = ListenerRig::new()?;
        let (asking, _asking) = rig.add_conn()?;
        rig.may_ask(asking, 0);
        let (_, silent) = rig.add_conn()?;
        let (_, younger) = rig.add_conn()?;
        while rig.add().is_ok() {}
        let chance = i64::from(rig.listener.chance());
        // The test takes less than an hour.
        rig.age(chance - 3_600_000);
        assert!(!rig.listener.has_room(AcceptQueue::Short));
        assert_eq!(rig.drops(), Some(0));
        rig.age(chance);
        assert!(!rig.listener.has_room(AcceptQueue::Short));
        assert_eq!(rig.drops(), Some(1));
        is_reset(&silent)?;
        rig.bench.device.queues.conn.flush();
        assert_eq!(younger.recv(&mut [0]), Err(EAGAIN));
        Ok(())
    }

    #[test]
    fn nothing_has_a_chance_while_tcp_may_drop_connections() -> Result {
        let rig = ListenerRig::new()?;
        let (_, silent) = rig.add_conn()?;
        while rig.add().is_ok() {}
        rig.age(0);
        assert!(!rig.listener.has_room(AcceptQueue::Long));
        is_reset(&silent)
    }
}
