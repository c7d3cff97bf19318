// SPDX-License-Identifier: GPL-2.0

//! The connection manager: the life of one TCP connection, from start-up to release.
//!
//! What enters: requests of the iWARP connection manager ([`connect`], [`accept`], [`reject`]) and
//! of a queue pair that knows its peer ([`connect_oob`]), callbacks of the socket, and what the
//! queue pair wants ([`Conn::close`], [`Conn::leave`], [`Conn::first_fpdu`], [`Conn::detach_qp`]).
//! What leaves: MPA start-up frames, events of the iWARP connection manager, and the stream, which
//! belongs to its queue pair once start-up is done.
//!
//! # One actor per connection
//!
//! Whatever enters only leaves a note ([`Wants`], [`PendingReply`]) and queues the connection's
//! work item. All decisions are taken by [`Conn::step`], one step at a time, on a queue that takes
//! the steps of all connections in order. No step waits for a peer: one that is slow, or a start-up
//! that is not done, holds up nobody else. `actor`, `initiator`, `responder`, `oob` and `stream`
//! hold the steps.
//!
//! # Who keeps whom alive
//!
//! * The table of the device ([`Conns`]) holds each connection until it is released. The iWARP
//!   connection manager has a number only; if it forgets a request, or comes too late, nothing
//!   leaks and nothing dangles.
//! * The socket holds a [`StreamCallbacks`], which holds the connection, which holds the socket.
//!   This cycle of references ends by unhooking, at release.
//! * The connection holds its queue pair, behind a [`BhRevocable`], and the queue pair the
//!   connection, from [`Qp::bind`] on. This cycle of references ends when the link to the queue
//!   pair is revoked: before `stream_ended` or `unbind`, which make the queue pair let go, and in
//!   [`Conn::detach_qp`].
//! * A queued work item and the running timer hold a reference each. The timer is cancelled at
//!   release.
//!
//! The last reference must go in process context, for it closes the socket: softirq code borrows a
//! connection that somebody else keeps alive, or hands its reference to a work item. A device waits
//! for all its connections to be gone ([`Conns::shut_down`]) before its queues go.
//!
//! # Locks
//!
//! The actor's mutex is taken by a step, by [`connect`] and [`connect_oob`] while they make the
//! connection, and by [`Conn::detach_qp`], which is a step too. Nobody takes it with a lock of a
//! queue pair or a socket held, so that a step may call into both: actor > queue pair, actor >
//! socket. The pending reply's mutex and the table's are innermost: nothing is called with them
//! held. Callbacks of the socket take none of these; what they need is atomic or revocable. Events
//! of the iWARP connection manager may be raised with the actor's mutex held, since the connection
//! manager queues them and calls nothing back.
//!
//! RFC 5044, section 7; RFC 6581; RFC 5041, section 8; RFC 5040, section 6.

use iwarp::{
    mpa::{
        negotiate::Rtr,
        start::RtrKinds,
        Crc,
        Markers, //
    },
    rdmap::Extensions, //
};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Full,
            Release, //
        },
        Arc,
        ArcBorrow,
        Mutex,
        SetOnce, //
    },
    workqueue::{
        impl_has_delayed_work,
        impl_has_work,
        new_delayed_work,
        new_work,
        DelayedWork,
        Work,
        WorkItem, //
    }, //
};
use kernel_ext::{
    mm::noio::without_io,
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
    workqueue::{
        DelayedItem,
        OwnedQueue, //
    }, //
};

use crate::{
    device::Device,
    qp::Qp, //
};

use self::{
    actor::Actor,
    table::ConnEntry, //
};

pub(in crate::cm) mod actor;
#[cfg(CONFIG_KUNIT = "y")]
pub(crate) mod bench;
pub(in crate::cm) mod frames;
pub(in crate::cm) mod initiator;
#[cfg(CONFIG_KUNIT = "y")]
mod peer;
pub(in crate::cm) mod requests;
pub(in crate::cm) mod responder;
pub(in crate::cm) mod stream;
mod table;
#[cfg(CONFIG_KUNIT = "y")]
mod tests;

use self::requests::PendingReply;
pub(crate) use self::{
    requests::{
        accept,
        connect,
        connect_oob,
        reject, //
    },
    responder::{
        plain,
        HalfOpen, //
    },
    table::Conns, //
};

/// How a queue pair wants its stream to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Close {
    /// The stream is reset at once.
    Abort,
    /// All octets that TCP accepted go out, then a FIN; the peer's FIN is awaited for a bounded
    /// time, during which what arrives still goes to the queue pair (DDP-57, -62).
    Graceful,
}

/// How a stream ended, as told to its queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The peer's FIN came between two FPDUs.
    Graceful,
    /// Reset, timed out, closed here at once, or the peer's FIN came inside an FPDU (MPA-30).
    Lost,
}

/// What start-up agreed on.
pub(crate) struct StreamParams {
    /// Whether CRCs are made and checked.
    pub(crate) crc: Crc,
    /// Whether the peer wants Markers in what we send.
    pub(crate) markers: Markers,
    /// How many Reads the peer may have outstanding.
    pub(crate) ird: u16,
    /// How many Reads we may have outstanding.
    pub(crate) ord: u16,
    /// The ready-to-receive message that goes out before all else.
    pub(crate) send_rtr: Option<Rtr>,
    /// The kinds of ready-to-receive message of which the peer's first FPDU must be one; none if it
    /// is the first of the peer's ULP.
    pub(crate) expect_rtr: RtrKinds,
    /// Whether this end stays silent until the peer's first valid FPDU (MPA-9).
    pub(crate) wait_first_fpdu: bool,
    /// What both ends understand, unless a queue pair without connection manager has agreed on it.
    pub(crate) extensions: Extensions,
}

/// One TCP connection.
#[pin_data]
pub(crate) struct Conn {
    /// Never changes hands: closed with the last reference.
    pub(in crate::cm) socket: Hooked<StreamCallbacks>,
    /// The queue pair, from the moment one is bound until it is detached.
    pub(in crate::cm) qp: SetOnce<BhRevocable<Arc<Qp>>>,
    /// Who gets what arrives: a [`Route`].
    route: Atomic<u32>,
    wants: Wants,
    #[pin]
    pending_reply: Mutex<PendingReply>,
    #[pin]
    actor: Mutex<Actor>,
    #[pin]
    work: Work<Conn, STEP>,
    #[pin]
    timer: DelayedWork<Conn, TIMER>,
    /// The timer has run out since the last step.
    timer_expired: Atomic<bool>,
    /// Dropped last, when the socket is closed.
    entry: ConnEntry,
}

/// The work item of a step.
const STEP: u64 = 0;
/// The work item of the timer.
const TIMER: u64 = 1;

impl_has_work! {
    impl HasWork<Self, STEP> for Conn { self.work }
}

impl_has_delayed_work! {
    impl HasDelayedWork<Self, TIMER> for Conn { self.timer }
}

impl WorkItem<STEP> for Conn {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        // A disk may wait for its connection, or for another one behind it.
        without_io(|| this.step());
    }
}

impl DelayedItem<TIMER> for Conn {
    fn queue(&self) -> &OwnedQueue {
        &self.device().queues.conn
    }
}

impl WorkItem<TIMER> for Conn {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        this.timer_expired.xchg(true, Full);
        // Not the step itself: it may be running.
        this.kick();
    }
}

/// Who gets what arrives on the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Route {
    /// The start-up: octets stay in TCP until a step takes them.
    StartUp = 0,
    /// The queue pair.
    Qp = 1,
    /// Nobody: octets are thrown away.
    Nobody = 2,
}

/// What others want of a connection, left for the next step. Nothing is ever unwanted again.
struct Wants {
    /// [`Close::Graceful`].
    graceful: Atomic<bool>,
    /// [`Close::Abort`].
    abort: Atomic<bool>,
    /// [`Close::Graceful`] will be wanted.
    leaving: Atomic<bool>,
    /// The queue pair goes and knows no connection any more.
    orphan: Atomic<bool>,
    /// The device goes.
    kill: Atomic<bool>,
    /// The peer's first FPDU has come.
    first_fpdu: Atomic<bool>,
}

impl Wants {
    const fn new() -> Self {
        Self {
            graceful: Atomic::new(false),
            abort: Atomic::new(false),
            leaving: Atomic::new(false),
            orphan: Atomic::new(false),
            kill: Atomic::new(false),
            first_fpdu: Atomic::new(false),
        }
    }
}

/// Leaves a note. The work item is queued after that, by the caller.
fn want(note: &Atomic<bool>) {
    // ORDERING: Pairs with `is_wanted` in the step that sees it; queueing orders it before a new
    // step.
    note.store(true, Release);
}

/// Looks for a note.
fn is_wanted(note: &Atomic<bool>) -> bool {
    // ORDERING: Pairs with `want`.
    note.load(Acquire)
}

impl Conn {
    /// Makes a connection around a socket and hooks it. It does nothing yet but keep its octets and
    /// listen to its callbacks; the first step comes with [`Conn::kick`].
    ///
    /// Context: process.
    fn new(device: Arc<Device>, socket: Socket, actor: Actor) -> Result<Arc<Self>> {
        let entry = ConnEntry::take(device)?;
        let callbacks = Arc::new(StreamCallbacks::new(), GFP_KERNEL)?;
        let socket = Hooked::new(socket, callbacks.clone())?;
        let conn = Arc::pin_init(
            pin_init!(Self {
                socket,
                qp: SetOnce::new(),
                route: Atomic::new(Route::StartUp as u32),
                wants: Wants::new(),
                pending_reply <- new_mutex!(PendingReply::Closed, "riwarp::Conn::pending_reply"),
                actor <- new_mutex!(actor, "riwarp::Conn::actor"),
                work <- new_work!("riwarp::Conn::work"),
                timer <- new_delayed_work!("riwarp::Conn::timer"),
                timer_expired: Atomic::new(false),
                entry,
            }),
            GFP_KERNEL,
        )?;
        // Callbacks before this were lost; the first step looks at everything.
        callbacks.conn.populate(conn.clone());
        if let Err(error) = conn.entry.publish(&conn) {
            conn.socket.unhook();
            return Err(error);
        }
        Ok(conn)
    }

    /// The device.
    pub(crate) fn device(&self) -> &Arc<Device> {
        self.entry.device()
    }

    /// The socket, for the transmitter.
    ///
    /// Context: any; its methods name theirs.
    #[inline]
    pub(crate) fn socket(&self) -> &Socket {
        &self.socket
    }

    /// The queue pair wants the stream to end. May be called again; [`Close::Abort`] after
    /// [`Close::Graceful`] resets what is still open.
    ///
    /// Context: any.
    pub(crate) fn close(self: &Arc<Self>, how: Close) {
        match how {
            Close::Abort => want(&self.wants.abort),
            Close::Graceful => want(&self.wants.graceful),
        }
        self.kick();
    }

    /// The queue pair ends the stream in an orderly way as soon as all that was posted is done, for
    /// which it does not wait for ever.
    ///
    /// Context: any.
    pub(crate) fn leave(self: &Arc<Self>) {
        want(&self.wants.leaving);
        self.kick();
    }

    /// The queue pair found the peer's first FPDU valid.
    ///
    /// Context: any.
    pub(crate) fn first_fpdu(self: &Arc<Self>) {
        want(&self.wants.first_fpdu);
        self.kick();
    }

    /// The queue pair has taken what it had left.
    ///
    /// Context: any.
    pub(crate) fn look(self: &Arc<Self>) {
        self.kick();
    }

    /// Takes the queue pair from the connection: when this returns, nothing of the connection calls
    /// it any more, and the iWARP connection manager has got all events that it waits for.
    ///
    /// A stream that is open is reset. One that is being closed in an orderly way is left to end
    /// that way by itself, so that the peer gets what was sent.
    ///
    /// Context: process; no lock is held that [`Qp::bind`], [`Qp::attach`], [`Qp::unbind`] or
    /// [`Qp::stream_ended`] take.
    pub(crate) fn detach_qp(self: &Arc<Self>) {
        want(&self.wants.orphan);
        drop(self.take_qp());
        // Waits for a step that is under way with a reference of its own, and then does what
        // follows.
        self.step();
    }

    /// Queues a step, unless one is queued already.
    ///
    /// Context: any.
    fn kick(self: &Arc<Self>) {
        // An item that is queued already will see what the caller has left.
        let _ = self
            .device()
            .queues
            .conn
            .enqueue::<Arc<Self>, STEP>(self.clone());
    }

    /// Begins to pass on to the queue pair what arrives, or ends it.
    fn set_route(&self, route: Route) {
        // ORDERING: Pairs with the acquire in `route`.
        self.route.store(route as u32, Release);
    }

    fn route(&self) -> Route {
        // ORDERING: Pairs with the release in `set_route`: who sees `Qp` sees a queue pair.
        match self.route.load(Acquire) {
            0 => Route::StartUp,
            1 => Route::Qp,
            _ => Route::Nobody,
        }
    }

    /// The queue pair, while it may be called.
    ///
    /// Context: process. The reference may be the last one by the time it is dropped.
    pub(in crate::cm) fn qp(&self) -> Option<Arc<Qp>> {
        Some(self.qp.as_ref()?.try_access()?.clone())
    }

    /// Takes the queue pair out, once its callbacks have ended; gives it the first time.
    ///
    /// Context: process.
    fn take_qp(&self) -> Option<Arc<Qp>> {
        self.qp.as_ref()?.revoke()
    }

    /// Gives what has arrived to whom it belongs.
    ///
    /// Context: softirq, or process with the socket locked.
    #[inline]
    fn feed(self: &Arc<Self>, inbound: &mut Inbound<'_>, off: BhOff<'_>) {
        match self.route() {
            Route::StartUp => self.kick(),
            Route::Qp => {
                let link = self.qp.as_ref();
                if let Some(qp) = link.and_then(|qp| qp.try_access_bh_off(off)) {
                    qp.data_ready(inbound, off);
                }
            }
            Route::Nobody => inbound.consume(inbound.available()),
        }
    }
}

/// The callbacks of the socket: they lead to the connection.
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

    fn write_space(self: ArcBorrow<'_, Self>) {
        let Some(conn) = self.conn.as_ref() else {
            return;
        };
        match conn.route() {
            Route::StartUp => conn.kick(),
            Route::Qp => {
                if let Some(qp) = conn.qp.as_ref().and_then(BhRevocable::try_access) {
                    qp.write_space();
                }
            }
            Route::Nobody => {}
        }
    }

    fn state_change(self: ArcBorrow<'_, Self>) {
        if let Some(conn) = self.conn.as_ref() {
            conn.kick();
        }
    }
}
