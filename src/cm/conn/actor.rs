// SPDX-License-Identifier: GPL-2.0

//! The actor of a connection: its work items, and the way from one phase to the next.
//!
//! A step decides from the present phase (`phase`), from the socket's state and octets, the flags
//! in `Wants` and the clock. It then either goes on at once or waits for the next event.
//!
//! Context: process.

use kernel::{
    sync::{
        atomic::Full,
        Arc, //
    },
    time::msecs_to_jiffies,
    workqueue::WorkItem, //
};
use kernel_ext::{
    compat::as_millis_ceil,
    mm::noio::without_io,
    workqueue::{
        cancel_delayed,
        enqueue_delayed,
        DelayedItem,
        OwnedQueue, //
    }, //
};

use super::{
    phase::{
        Actor,
        ConnPhase,
        NextStep,
        PAUSE,
        PAUSE_MAX, //
    },
    want,
    Conn,
    Route,
    TIMER, //
};
use crate::{
    cm::listen::admission::STEP,
    stream::connection::STREAM_STEP, //
};

impl Conn {
    /// Runs steps until the connection has to wait. Waits for another holder of the actor first.
    ///
    /// Context: process; see the module's documentation for the locks.
    pub(in crate::cm) fn step(self: &Arc<Self>) {
        without_io(|| self.with_actor(|actor| self.run_steps(actor)));
    }

    /// Runs steps as [`Conn::step`] does, unless another thread holds the actor; then that one lets
    /// another step follow.
    ///
    /// Context: process, a work item.
    pub(super) fn try_step(self: &Arc<Self>) {
        // Block I/O may depend on this connection or on one queued behind it, so allocations must
        // not start I/O.
        without_io(|| {
            let taken = self.actor.try_lock().or_else(|| {
                // ORDERING: pairs with the exchange in `let_step_follow`. It is between the two
                // attempts: if the second one fails, the holder sees the flag after it unlocks.
                self.missed.xchg(true, Full);
                self.actor.try_lock()
            });
            if let Some(mut actor) = taken {
                self.run_steps(&mut actor);
                drop(actor);
                self.let_step_follow();
            }
        });
    }

    /// Calls `f` with the actor, after another holder of it; then lets a step follow, if one could
    /// not run meanwhile.
    ///
    /// Context: process.
    pub(in crate::cm) fn with_actor<R>(self: &Arc<Self>, f: impl FnOnce(&mut Actor) -> R) -> R {
        let result = f(&mut self.actor.lock());
        self.let_step_follow();
        result
    }

    fn let_step_follow(self: &Arc<Self>) {
        // ORDERING: pairs with the exchange in `try_step`, and comes after the actor is unlocked.
        if self.missed.xchg(false, Full) {
            self.kick();
        }
    }

    /// Runs steps until the connection has to wait.
    pub(in crate::cm) fn run_steps(self: &Arc<Self>, actor: &mut Actor) {
        actor.comes_back = false;
        loop {
            self.trace_phase(actor);
            let phase = core::mem::replace(&mut actor.phase, ConnPhase::Released);
            match self.advance(actor, phase) {
                NextStep::Again(phase) => actor.phase = phase,
                NextStep::Wait(phase) => {
                    actor.phase = phase;
                    self.trace_phase(actor);
                    break;
                }
            }
        }
        actor.pause = match actor.comes_back {
            true => (2 * actor.pause).min(PAUSE_MAX),
            false => PAUSE,
        };
        self.set_timer(actor);
    }

    fn advance(self: &Arc<Self>, actor: &mut Actor, phase: ConnPhase) -> NextStep {
        match phase {
            ConnPhase::Connecting {
                initiator,
                request,
                tls,
            } => self.connecting(actor, initiator, request, tls),
            ConnPhase::Securing(securing) => self.securing(actor, securing),
            ConnPhase::Requesting {
                initiator,
                out,
                inbox,
            } => self.requesting(actor, initiator, out, inbox),
            ConnPhase::Settling {
                inbox,
                private_data,
                rules,
            } => self.settling(actor, inbox, private_data, rules),
            ConnPhase::Waiting {
                responder,
                inbox,
                entry,
            } => self.waiting(actor, responder, inbox, entry),
            ConnPhase::Queued {
                asked,
                inbox,
                entry,
            } => self.queued(actor, asked, inbox, entry),
            ConnPhase::Asked(question) => self.asked(actor, question),
            ConnPhase::Replying { out, then } => self.replying(actor, out, then),
            ConnPhase::Expecting(params) => self.expecting(actor, params),
            ConnPhase::Attaching(attaching) => self.attaching(actor, attaching),
            ConnPhase::Open(open) => self.open(actor, open),
            ConnPhase::HalfClosed(half) => self.half_closed(actor, half),
            ConnPhase::Closing(closing) => self.closing(actor, closing),
            ConnPhase::Lingering(closing) => self.lingering(actor, closing),
            ConnPhase::Ending(action) => self.ending(actor, action),
            ConnPhase::Released => NextStep::Wait(ConnPhase::Released),
        }
    }

    /// Sets the timer to the earlier of deadline and requested step.
    pub(super) fn set_timer(self: &Arc<Self>, actor: &mut Actor) {
        let wanted = match (actor.deadline, actor.recheck_at) {
            (Some(deadline), Some(recheck)) => Some(deadline.min(recheck)),
            (one, other) => one.or(other),
        };
        // ORDERING: pairs with the exchange of the timer's item: if this misses it, another step
        // follows.
        if self.timer_expired.xchg(false, Full) {
            actor.armed = None;
        }
        if wanted == actor.armed {
            return;
        }
        // A timer item that is queued or running cannot be set, but then another step follows.
        cancel_delayed::<Self, TIMER>(self);
        actor.armed = wanted.filter(|at| {
            let millis = as_millis_ceil(*at - actor.now()).clamp(1, 1 << 20);
            // CAST: just clamped. One more jiffy, because the current one is partly over.
            let delay = msecs_to_jiffies(millis as u32) + 1;
            enqueue_delayed::<Self, TIMER>(self.clone(), delay).is_ok()
        });
    }

    /// Undoes what a connect has begun; the caller of that returns an error instead of
    /// raising events.
    pub(in crate::cm) fn abandon(self: &Arc<Self>, actor: &mut Actor) {
        self.unbind();
        let (NextStep::Again(phase) | NextStep::Wait(phase)) = self.reset(actor);
        actor.phase = phase;
        self.run_steps(actor);
    }

    /// Detaches the queue pair. On return the connection no longer calls it, and the iWARP
    /// connection manager has all events that it waits for.
    ///
    /// Resets an open stream. A stream that is being closed in an orderly way continues to close,
    /// so that the peer gets what was sent.
    ///
    /// Context: process; the caller holds no lock that the queue pair takes when the connection
    /// binds, attaches or unbinds it, or reports the end of the stream.
    pub(in crate::cm) fn detach_qp(self: &Arc<Self>) {
        want(&self.wants.orphan);
        drop(self.take_qp());
        // Waits for a running step, which has a reference to the queue pair of its own, and then
        // acts on the request.
        self.step();
    }
}

impl WorkItem<STEP> for Conn {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        if this.route() == Route::StartUp {
            this.try_step();
        } else {
            // The order has ceased to matter since the item was queued.
            this.kick();
        }
    }
}

impl WorkItem<STREAM_STEP> for Conn {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        if this.route() == Route::StartUp {
            // The queue pair has asked for something; the step keeps its turn.
            this.kick();
        } else {
            this.try_step();
        }
    }
}

impl DelayedItem<TIMER> for Conn {
    fn queue(&self) -> &OwnedQueue {
        // It only queues a step.
        &self.device().queues.stream
    }
}

impl WorkItem<TIMER> for Conn {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        // ORDERING: pairs with the exchange in `set_timer`: queueing the step, a full barrier,
        // comes after this, so the next step sees it.
        this.timer_expired.xchg(true, Full);
        // Do not run the step here: it may be running already.
        this.kick();
    }
}
