// SPDX-License-Identifier: GPL-2.0

//! Listeners: who is let in, and how many.
//!
//! What enters: requests of the iWARP connection manager and of queue pairs that wait for their
//! peers ([`crate::cm::oob`]), and from [`socket`] the connections that wait in TCP. What leaves: a
//! [`Conn`] per connection, which reads the peer's MPA Request by itself. Nothing here waits for a
//! peer.
//!
//! Connections about which the consumer was not asked yet are limited per listener. When the limit
//! is reached the oldest one has to go that has not sent its Request, if it had its chance; younger
//! ones are likely to be honest, and then further ones wait in TCP.
//!
//! A consumer says with its backlog how many requests it wants to have unanswered. More of them are
//! held back until it answers, or has not been asked for 200 ms. Nobody has to go for that.
//!
//! `rdma_cm` makes a listener on the wildcard address listen on every device of the host, also on
//! those of other network namespaces, and on devices that come later. Who listens from another
//! namespace than the device's gets a listener without a socket: nothing could come of a
//! connection, and the port is not the caller's. When `rdma_cm` tells of a new device the listeners
//! that are there, nothing says whose they are. They share sockets, do not fail because a port is
//! taken, and are asked after others; `rdma_cm` refuses by itself what then comes to the wrong
//! consumer.
//!
//! Locks: see [`socket`]; a listener's `waiting` and `socket` are innermost, and a connection's
//! step may take them. A socket has references to its listeners and a listener to its socket, until
//! [`destroy_listen`].
//!
//! Context: process.

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
    }, //
};
use kernel_ext::{
    net::{
        NetId,
        SockAddr,
        Socket, //
    },
    rdma::iw_cm::CmId, //
};

use crate::{
    cm::conn::{
        Close,
        Conn,
        HalfOpen, //
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

/// Who is reached at an address.
#[pin_data]
pub(crate) struct Listener {
    consumer: Consumer,
    device: Arc<Device>,
    origin: ListenerOrigin,
    open: Atomic<bool>,
    #[pin]
    socket: Mutex<Option<Arc<ListenSocket>>>,
    #[pin]
    waiting: Mutex<PendingConns>,
    /// Requests that the consumer wants to have unanswered at once.
    backlog: u32,
}

/// Who decides about the peers that come.
pub(crate) enum Consumer {
    /// A consumer of the iWARP connection manager; events go there.
    Cm(CmId),
    /// Queue pairs that wait for their peers ([`crate::cm::oob`]).
    Oob,
}

/// A request that the consumer of a listener has not answered yet. Drop it with the answer.
pub(crate) struct Unanswered(Arc<Listener>);

impl Drop for Unanswered {
    fn drop(&mut self) {
        let mut waiting = self.0.waiting.lock();
        waiting.unanswered = waiting.unanswered.saturating_sub(1);
        drop(waiting);
        self.0.call_held();
    }
}

/// Whose listener it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ListenerOrigin {
    /// Made in another network namespace than that of the device.
    Foreign,
    /// Made in the network namespace of the device.
    Native,
    /// Made before the device was there.
    Unknown,
}

impl ListenerOrigin {
    /// Whose a listener of `rdma_cm` is that is being made. Context: process, the consumer's.
    fn of_caller(device: &Device) -> Self {
        if !device.is_registered() {
            Self::Unknown
        } else if device.home == NetId::current() {
            Self::Native
        } else {
            Self::Foreign
        }
    }
}

/// Connections whose Request has not come yet, or is held back.
struct PendingConns {
    /// Oldest first; it has room for `limit`.
    list: KVec<PendingConn>,
    limit: usize,
    next_key: u64,
    /// Somebody was left in TCP's queue.
    full: bool,
    /// How many the consumer has been asked about and has not answered.
    unanswered: u32,
    last_asked: Instant<Monotonic>,
}

impl PendingConns {
    /// The one whose Request is here and whose turn it is.
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

    /// Adds one whose Request has not come; its key.
    ///
    /// # Errors
    ///
    /// `EBUSY` if there is no room.
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
        // There is room for that many.
        self.list.push_within_capacity(waiter).map_err(|_| EBUSY)?;
        Ok(key)
    }
}

struct PendingConn {
    key: u64,
    since: Instant<Monotonic>,
    /// Its number in the device's table, once it is there.
    conn: Option<u64>,
    /// Its Request is here.
    held: bool,
}

/// Begins to listen. A listener on the wildcard address whose caller is in another network
/// namespace than the device opens nothing: it would fail on the caller's own devices too if it
/// failed here. (`rdma_cm` brings an address only to a device in the namespace where it was looked
/// up.)
///
/// # Errors
///
/// * `EADDRINUSE`, `EADDRNOTAVAIL` and others of TCP.
/// * `ENODEV` if the device is going.
/// * `ENOMEM`.
pub(crate) fn create_listen(
    dev: ArcBorrow<'_, Device>,
    id: CmId,
    backlog: u32,
) -> Result<Arc<Listener>> {
    if dev.is_going() {
        return Err(ENODEV);
    }
    let params = ListenParams::new(&dev, &id, backlog)?;
    let origin = ListenerOrigin::of_caller(&dev);
    Listener::open(dev.into(), Consumer::Cm(id), origin, &params, backlog)
}

/// Begins to listen for the peers of queue pairs, at an address of the device and a port that is
/// held ([`crate::cm::oob::ports`]) until after the listener's end.
///
/// # Errors
///
/// As [`create_listen`].
pub(crate) fn await_peers(device: &Arc<Device>, addr: SockAddr) -> Result<Arc<Listener>> {
    let params = ListenParams::for_peers(device, addr);
    Listener::open(
        device.clone(),
        Consumer::Oob,
        ListenerOrigin::Native,
        &params,
        0,
    )
}

/// Ends a listener. Peers whose Request has not come yet are reset; those that the consumer was
/// asked about keep waiting for its answer.
pub(crate) fn destroy_listen(listener: Arc<Listener>) {
    // ORDERING: Pairs with `is_open`; the connections are told after it.
    listener.open.store(false, Release);
    let socket = listener.socket.lock().take();
    if let Some(socket) = socket {
        socket.leave(&listener);
    }
    // Those that are not in the device's table yet find the listener closed by themselves.
    let mut after = None;
    while let Some((key, conn)) = listener.waiter_after(after) {
        listener.dismiss(conn);
        after = Some(key);
    }
}

impl Listener {
    fn open(
        device: Arc<Device>,
        consumer: Consumer,
        origin: ListenerOrigin,
        params: &ListenParams,
        backlog: u32,
    ) -> Result<Arc<Self>> {
        let limit = usize::try_from(backlog)?.clamp(HALF_OPEN_MIN, HALF_OPEN_MAX);
        let listener = Arc::pin_init(
            pin_init!(Self {
                consumer,
                device,
                origin,
                open: Atomic::new(true),
                socket <- new_mutex!(None, "riwarp::Listener::socket"),
                waiting <- new_mutex!(
                    PendingConns {
                        list: KVec::with_capacity(limit, GFP_KERNEL)?,
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
            GFP_KERNEL,
        )?;
        *listener.socket.lock() = params.open_socket(&listener)?;
        listener.kick_socket();
        Ok(listener)
    }

    /// Who decides about the peers that come.
    pub(crate) fn consumer(&self) -> &Consumer {
        &self.consumer
    }

    /// Whether peers are still let in.
    pub(crate) fn is_open(&self) -> bool {
        // ORDERING: Pairs with the release in `destroy_listen`.
        self.open.load(Acquire)
    }

    /// Whether one more peer can be let in. If not, the oldest one is dismissed whose Request has
    /// not come, if it had its time, and its end has the socket accept again. If all wait for the
    /// consumer, the next turn does.
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
                .find(|waiter| waiter.conn.is_some() && !waiter.held)
                .filter(|waiter| waiter.since.elapsed().as_millis() >= self.chance().into())
                .and_then(|waiter| waiter.conn)
        };
        if oldest.is_some() {
            self.device.stats.backlog_drops.inc();
            self.dismiss(oldest);
        }
        false
    }

    /// The next one that waits, by its key.
    fn waiter_after(&self, after: Option<u64>) -> Option<(u64, Option<u64>)> {
        let waiting = self.waiting.lock();
        // Keys are given in rising order.
        let mut list = waiting.list.iter();
        let found = list.find(|waiter| after.is_none_or(|after| waiter.key > after));
        found.map(|waiter| (waiter.key, waiter.conn))
    }

    /// Ends a connection that waits.
    fn dismiss(&self, number: Option<u64>) {
        if let Some(conn) = number.and_then(|number| self.device.conns.find(number)) {
            conn.close(Close::Abort);
        }
    }

    /// Lets a peer in. `others` are asked if this listener's consumer refuses.
    fn admit(self: &Arc<Self>, socket: Socket, others: KVec<Arc<Listener>>) -> Result {
        if let Consumer::Oob = self.consumer {
            self.device.oob_waiters.check_peer(&self.device, &socket)?;
        }
        let key = self.waiting.lock().add()?;
        // Takes the waiter out again when it is dropped.
        let entry = HalfOpen::new(self.clone(), others, key);
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

    /// Tells the connection whose turn it is to ask the consumer, if one waits for that.
    fn call_held(&self) {
        let next = {
            let waiting = self.waiting.lock();
            waiting.next_held().and_then(|waiter| waiter.conn)
        };
        if let Some(conn) = next.and_then(|number| self.device.conns.find(number)) {
            conn.look();
        }
    }

    /// Whether the turn to ask the consumer is this connection's, whose Request is here.
    pub(crate) fn is_next(&self, key: u64) -> bool {
        let waiting = self.waiting.lock();
        waiting.next_held().is_some_and(|waiter| waiter.key == key)
    }

    /// How long a peer has before it can be dismissed for another one, in milliseconds. A peer
    /// without connection manager sends its Request at once.
    pub(crate) fn chance(&self) -> u32 {
        match self.consumer {
            Consumer::Cm(_) => 500,
            Consumer::Oob => 100,
        }
    }

    /// Has the socket accept again if somebody was left in TCP's queue: there is room, or somebody
    /// has had that time.
    pub(crate) fn call_next(&self) {
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

    /// Whether it is a connection's turn, whose Request is here, and the consumer can be asked
    /// about one more. `rdma_ucm` refuses by itself what is more than the backlog of a process.
    pub(crate) fn may_ask(&self, key: u64) -> bool {
        let mut waiting = self.waiting.lock();
        waiting.may_ask(key, self.backlog, Instant::now())
    }

    /// The consumer is asked about one more request.
    pub(crate) fn ask(self: &Arc<Self>) -> Unanswered {
        let mut waiting = self.waiting.lock();
        waiting.unanswered = waiting.unanswered.saturating_add(1);
        waiting.last_asked = Instant::now();
        drop(waiting);
        Unanswered(self.clone())
    }
}

/// A listener's limit of connections whose Request has not come is its backlog, in these bounds.
const HALF_OPEN_MIN: usize = 128;
const HALF_OPEN_MAX: usize = 1024;
/// How long a consumer with its backlog full is not asked again, in milliseconds. One that collects
/// more requests than that before it answers any gets them, one at a time.
const ANSWER_WAIT_MS: i64 = 200;

#[kernel::prelude::kunit_tests(riwarp_listen)]
mod tests {
    use super::*;
    use crate::{
        bench::Bench,
        device::stats::Stats, //
    };
    use kernel::time::Delta;
    use kernel_ext::net::{
        bench::{
            address,
            eventually,
            pair, //
        },
        Family, //
    };

    /// A listener; ended when it is dropped.
    struct ListenerRig {
        listener: Arc<Listener>,
        bench: Bench,
    }

    impl ListenerRig {
        fn new() -> Result<Self> {
            let bench = Bench::new()?;
            let listener = await_peers(&bench.device, address(Family::V4, 0))?;
            Ok(Self { listener, bench })
        }

        /// One more waits; its key.
        fn add(&self) -> Result<u64> {
            self.listener.waiting.lock().add()
        }

        /// Whether the consumer, who wants one request at once, can be asked about this one so many
        /// milliseconds after it was asked last.
        fn may_ask(&self, key: u64, millis: i64) -> bool {
            let mut waiting = self.listener.waiting.lock();
            let now = waiting.last_asked + Delta::from_millis(millis);
            waiting.may_ask(key, 1, now)
        }

        /// One more waits, with a connection that is reset as soon as somebody wants it to look.
        /// Gives what the peer has of it, too.
        fn add_conn(&self) -> Result<(u64, Socket)> {
            let (near, far) = pair(Family::V4)?;
            let key = self.add()?;
            let number = Conn::about_to_go(&self.bench.device, near)?;
            let mut waiting = self.listener.waiting.lock();
            let waiter = waiting.list.iter_mut().find(|waiter| waiter.key == key);
            waiter.ok_or(EINVAL)?.conn = Some(number);
            Ok((key, far))
        }

        /// Lets all that wait have come so many milliseconds ago.
        fn age(&self, millis: i64) {
            let since = Instant::now() - Delta::from_millis(millis);
            for waiter in &mut self.listener.waiting.lock().list {
                waiter.since = since;
            }
        }

        /// How many had to go.
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
        // That of who came before is here now, too.
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
        // An answer makes room.
        let rig = ListenerRig::new()?;
        let (key, far) = rig.add_conn()?;
        assert!(rig.may_ask(key, 0));
        drop(rig.listener.ask());
        is_reset(&far)?;
        // Who was before it has gone.
        let rig = ListenerRig::new()?;
        let first = rig.add()?;
        let (key, far) = rig.add_conn()?;
        rig.may_ask(first, 0);
        assert!(!rig.may_ask(key, 0));
        rig.listener.left(first);
        is_reset(&far)
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
        // Nothing takes an hour here.
        rig.age(chance - 3_600_000);
        assert!(!rig.listener.has_room());
        assert_eq!(rig.drops(), Some(0));
        rig.age(chance);
        assert!(!rig.listener.has_room());
        assert_eq!(rig.drops(), Some(1));
        is_reset(&silent)?;
        rig.bench.device.queues.conn.flush();
        assert_eq!(younger.recv(&mut [0]), Err(EAGAIN));
        Ok(())
    }
}
