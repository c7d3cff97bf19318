// SPDX-License-Identifier: GPL-2.0

//! The tasks of a queue pair: what starts them, and the transmit task, which runs in the context
//! that posts, receives or gets room in TCP, or in its work item.
//!
//! Context: process, unless a function says otherwise.

use iwarp::lifecycle::{
    Event,
    QpPhase, //
};
use kernel::{
    prelude::*,
    sync::{
        atomic::Full,
        Arc, //
    },
    time::{
        delay::fsleep,
        msecs_to_jiffies,
        Delta, //
    },
    workqueue::WorkItem, //
};
use kernel_ext::{
    net::Inbound,
    static_key,
    sync::{
        BhOff,
        Next,
        Ran, //
    },
    workqueue::{
        enqueue_delayed,
        OwnedQueue, //
    }, //
};

use crate::{
    device::paging::ContextPaging,
    stream::{
        tx::{
            coalescer::DoorbellAction,
            send::{
                TcpSender,
                UserTurn,
                Waiting, //
            },
            Tx,
            TxStream, //
        }, //
    }, //
};

use super::{
    actions::Runner,
    idle,
    receive::RxWaits,
    Qp,
    IDLE,
    PAGING_IN,
    PAGING_OUT,
    RX,
    RX_USER,
    TX,
    TX_SOFTIRQ,
    TX_USER, //
};

impl WorkItem<TX> for Qp {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        this.transmit_and_wait();
    }
}

impl WorkItem<TX_USER> for Qp {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let turn = UserTurn::begin(Waiting::Never);
        this.rounds(&mut TcpSender::User(turn));
        this.shared.notify();
    }
}

impl WorkItem<TX_SOFTIRQ> for Qp {
    type Pointer = Arc<Self>;

    /// Context: softirq.
    fn run(this: Arc<Self>) {
        BhOff::run(|off| this.rounds(&mut TcpSender::Softirq(off)));
        this.shared.notify();
        // The end of a queue pair sleeps.
        if let Some(last) = Arc::into_unique_or_drop(this) {
            Arc::from(last).enqueue_tx();
        }
    }
}

impl WorkItem<RX> for Qp {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        this.receive_more();
    }
}

impl WorkItem<RX_USER> for Qp {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let Some(conn) = this.shared.conn() else {
            return;
        };
        let done = BhOff::run(|off| {
            let more = |inbound: &mut Inbound<'_>| this.more_from(&conn, inbound, off);
            conn.socket().with_unowned_inbound(off, more)
        });
        if done.is_none() {
            // If it is queued already, it will see the new work.
            let queue = &this.shared.device.queues.user_wait;
            let _ = queue.enqueue::<Arc<Self>, RX>(this.clone());
        }
    }
}

// What starts the tasks.
impl Qp {
    /// Rearms the running transmit task, or else queues its work item. Context: any.
    pub(crate) fn kick(self: &Arc<Self>) {
        if !self.tx.rearm() {
            self.enqueue_tx();
        }
    }

    /// Goes on receiving.
    ///
    /// Context: process.
    pub(super) fn receive_more(self: &Arc<Self>) {
        let Some(conn) = self.shared.conn() else {
            return;
        };
        let waited = match self.rx_waits() {
            RxWaits::Receive | RxWaits::Rule => true,
            RxWaits::Nothing | RxWaits::Memory => false,
        };
        conn.socket()
            .with_inbound(|inbound| BhOff::run(|off| self.more_from(&conn, inbound, off)));
        if waited {
            // The end of the stream may be queued behind octets that were not consumed.
            self.processed(&conn);
        }
    }

    /// Queues the work item that fetches memory for the receiver. Context: any.
    pub(super) fn enqueue_paging_in(self: &Arc<Self>) {
        if let Some(queue) = self.shared.pd.paging().and_then(ContextPaging::queue) {
            // If it is queued already, it will see the request.
            let _ = queue.enqueue::<Arc<Self>, PAGING_IN>(self.clone());
        }
    }

    /// Queues the work item that fetches memory for the transmit task. Context: any.
    pub(super) fn enqueue_paging_out(self: &Arc<Self>) {
        if let Some(queue) = self.shared.pd.paging().and_then(ContextPaging::queue) {
            let _ = queue.enqueue::<Arc<Self>, PAGING_OUT>(self.clone());
        }
    }

    /// Runs the transmit task after a delay. Context: process.
    pub(super) fn arm_tx_timer(self: &Arc<Self>, after: Delta) {
        // ORDERING: pairs with the exchange in the timer's `run`: if this finds the timer armed,
        // the transmit task that it starts sees what was posted before this.
        if self.shared.tx_timer_armed.xchg(true, Full) {
            return;
        }
        // The timer has fired, so this waits at most for the callback to return.
        self.tx_timer.arm(self, after);
    }

    /// Schedules an idle check by the transmit task.
    ///
    /// Context: any but hard interrupt; the running transmit task, with a stream that may send.
    pub(super) fn schedule_idle_check(self: &Arc<Self>) {
        // It fails only if a check is scheduled already.
        let delay = msecs_to_jiffies(idle::PERIOD_MILLIS);
        let _ = enqueue_delayed::<Self, IDLE>(self.clone(), delay);
    }
}

impl Qp {
    /// Runs the transmit task in this context, or rearms it if it runs elsewhere.
    ///
    /// Context: process, no lock held.
    pub(crate) fn transmit(self: &Arc<Self>) {
        self.transmit_by(&mut TcpSender::Process);
    }

    /// Does the same in a work item of [`Qp::wait_queue`].
    ///
    /// Context: process, no lock held.
    pub(super) fn transmit_and_wait(self: &Arc<Self>) {
        if self.shared.user {
            let turn = UserTurn::begin(Waiting::Allowed);
            self.transmit_by(&mut TcpSender::User(turn));
        } else {
            self.transmit();
        }
    }

    fn transmit_by(self: &Arc<Self>, sender: &mut TcpSender<'_, '_>) {
        self.rounds(sender);
        self.shared.notify();
        self.watch_receives();
    }

    /// Sends what a kernel consumer has posted, in softirq, without the two context switches of the
    /// work item. No lock is held there, so the socket's spin lock may be waited for whatever the
    /// caller holds, and no consumer is called back from within its own call.
    ///
    /// The softirq runs before this returns if bottom halves are on, else when the caller enables
    /// them. With interrupts off, and in phases whose rounds sleep, the work item runs instead; so
    /// it does with `PREEMPT_RT`, where interrupts and bottom halves are on although the caller
    /// holds a lock by `spin_lock_irqsave()` that its completion handler takes.
    ///
    /// Context: any.
    pub(crate) fn send_posted(self: &Arc<Self>) {
        if self.tx.rearm() {
            return;
        }
        if cfg!(CONFIG_PREEMPT_RT) || self.is_in_items() {
            return self.enqueue_tx();
        }
        let queued = match self.shared.phase() {
            QpPhase::Rts | QpPhase::Closing => BhOff::try_run(|_| self.enqueue_tx_softirq()),
            QpPhase::Idle
            | QpPhase::Waiting
            | QpPhase::Terminate
            | QpPhase::Error
            | QpPhase::Gone => None,
        };
        if queued.is_none() {
            self.enqueue_tx();
        }
    }

    /// Runs the transmit task after a receive, without a thread switch if possible.
    ///
    /// Context: a callback of the stream's socket; no lock of the driver held.
    pub(super) fn answer(self: &Arc<Self>, inbound: &mut Inbound<'_>) {
        // Without softirq this context processes the socket's backlog, and most likely is the
        // transmit task itself. With PREEMPT_RT a softirq can be preempted by another one on its
        // CPU, and must not charge memory (`Memcg::scope`).
        if cfg!(CONFIG_PREEMPT_RT) || !inbound.in_softirq() {
            return self.kick();
        }
        self.rounds(&mut TcpSender::Callback(inbound));
        self.shared.notify();
    }

    /// Handles a doorbell of a process that has posted requests.
    ///
    /// Context: process, no lock held.
    pub(crate) fn doorbell(self: &Arc<Self>) {
        self.trace_post_send();
        self.shared.waiter.waits().look_in_call();
        // Some libraries ring for each request, even while sending is delayed.
        match self.shared.phase() {
            QpPhase::Rts if self.tx_timer_is_armed() => return,
            QpPhase::Error => self.reset_flush_interval(),
            QpPhase::Idle
            | QpPhase::Waiting
            | QpPhase::Rts
            | QpPhase::Closing
            | QpPhase::Terminate
            | QpPhase::Gone => {}
        }
        if self.is_in_items() {
            self.kick();
        } else {
            self.send_in_call();
        }
        if self.shared.device.strict.is_on() {
            self.check_completion_queues();
        }
    }

    /// Sends in a doorbell, unless the coalescer delays it.
    fn send_in_call(self: &Arc<Self>) {
        match self
            .shared
            .coalescer
            .on_doorbell(self.shared.sq.taken(), &self.shared.rx_events)
        {
            DoorbellAction::Now => self.transmit(),
            DoorbellAction::Delay(delay) => {
                if !self.tx.rearm() {
                    self.arm_tx_timer(delay);
                }
            }
            DoorbellAction::Timed(begin) => {
                self.transmit();
                self.shared.coalescer.doorbell_done(begin);
            }
        }
    }

    /// Runs the transmit task until it is idle or the budget of the caller is used up; then the
    /// work item continues.
    fn rounds(self: &Arc<Self>, sender: &mut TcpSender<'_, '_>) {
        let mut left = sender.rounds();
        let ran = self.tx.run(|tx| {
            // Looked at before a round, not behind it: a task that has nothing to do, or waits for
            // room in TCP, is done although the turn is over.
            if left == 0 || sender.is_over() {
                sender.end_turn();
                return Next::Yield;
            }
            left = left.saturating_sub(1);
            self.round(tx, sender)
        });
        match ran {
            Ran::Here | Ran::Elsewhere => {}
            // It has not used up its turn, so this context could not go on.
            Ran::Yielded if matches!(sender, TcpSender::User(_)) && !sender.is_over() => {
                self.enqueue_tx_wait()
            }
            Ran::Yielded => self.enqueue_tx(),
        }
    }

    /// Flushes all requests, drops the stream and resets the queues, before another context can run
    /// the transmit task. Waits for another context that runs it, because that context may be in
    /// the middle of either step. Returns whether the queues were reset; a new connection prevents
    /// it.
    ///
    /// Context: process, sleeps; the queue pair has no connection.
    pub(super) fn quiesce(self: &Arc<Self>) -> bool {
        let mut anew = false;
        self.transmit_until_idle(|| anew = self.reset_queues());
        // The work item notifies, so that no consumer is called back from within its own call.
        self.enqueue_tx();
        anew
    }

    /// Lets the transmit task see that nothing is left to send before an orderly end, if that is
    /// so: a program may destroy its queue pair right after it has disconnected. Closes the stream
    /// too if only answers to the peer are left: then requests have completed whose octets a reset
    /// would take back from TCP.
    ///
    /// Context: process, sleeps.
    pub(super) fn finish_closing(self: &Arc<Self>) {
        let closes = || self.shared.phase() == QpPhase::Closing && self.shared.sq.is_idle();
        self.finish(closes);
        if closes() && self.shared.sq.is_drained() {
            let after = self.shared.apply(Event::Drained);
            self.carry_out(after, Runner::Any);
        }
    }

    /// Lets the transmit task send the Terminate of a fault, if it has not yet: a program may end
    /// the stream as soon as it has polled the completion of the request at fault.
    ///
    /// Context: process, sleeps; the caller runs the transmit task afterwards.
    pub(crate) fn finish_terminate(self: &Arc<Self>) {
        // The receiver reports a fault before it releases this lock, but may have completed the
        // request before that.
        drop(self.rx.lock());
        self.finish(|| self.shared.phase() == QpPhase::Terminate);
    }

    /// Runs rounds of the transmit task while `due`, until it is not rearmed. Waits a tenth of a
    /// second at most for another context that runs the task.
    fn finish(self: &Arc<Self>, due: impl Fn() -> bool) {
        for _ in 0..1000 {
            if !due() {
                return;
            }
            let ran = self.tx.try_run(|tx| {
                if due() {
                    self.round(tx, &mut TcpSender::Process);
                }
                Next::Done
            });
            match ran {
                Ran::Here | Ran::Yielded => return,
                Ran::Elsewhere => fsleep(Delta::from_micros(100)),
            }
        }
    }

    /// Runs the transmit task until idle, waiting for another context that runs it first; calls
    /// `last` before releasing it.
    ///
    /// It does not rearm that other context, which would go on as long as a process posts requests.
    ///
    /// Context: process, sleeps; the queue pair has no connection.
    pub(super) fn transmit_until_idle(self: &Arc<Self>, mut last: impl FnMut()) {
        loop {
            let ran = self.tx.try_run(|tx| {
                let next = self.round(tx, &mut TcpSender::Process);
                if next == Next::Done {
                    last();
                }
                next
            });
            match ran {
                Ran::Here => break,
                Ran::Yielded => {}
                Ran::Elsewhere => fsleep(Delta::from_micros(100)),
            }
        }
    }

    /// Queues the work item of the transmit task. Context: any.
    pub(super) fn enqueue_tx(self: &Arc<Self>) {
        let sends = match self.shared.phase() {
            QpPhase::Rts | QpPhase::Closing => true,
            QpPhase::Idle
            | QpPhase::Waiting
            | QpPhase::Terminate
            | QpPhase::Error
            | QpPhase::Gone => false,
        };
        if self.shared.user && sends && !self.is_in_items() {
            // If it is queued already, it will see the new work.
            let queue = &self.shared.device.queues.user;
            let _ = queue.enqueue::<Arc<Self>, TX_USER>(self.clone());
        } else {
            self.enqueue_tx_wait();
        }
    }

    /// Queues the work item that may wait for what others hold. Context: any.
    fn enqueue_tx_wait(self: &Arc<Self>) {
        // If it is queued already, it will see the new work.
        let _ = self.wait_queue().enqueue::<Arc<Self>, TX>(self.clone());
    }

    /// Returns the queue of work items that may wait for what others hold.
    pub(super) fn wait_queue(&self) -> &OwnedQueue {
        self.shared.device.queues.may_wait(self.shared.user)
    }

    /// Queues the work item that continues to receive. Context: any.
    pub(crate) fn enqueue_rx(self: &Arc<Self>) {
        // If it is queued already, it will see the new work.
        let queues = &self.shared.device.queues;
        let _ = match (self.shared.user, self.is_in_items()) {
            (true, true) => queues.user_wait.enqueue::<Arc<Self>, RX>(self.clone()),
            (true, false) => queues.user.enqueue::<Arc<Self>, RX_USER>(self.clone()),
            (false, _) => queues.tx.enqueue::<Arc<Self>, RX>(self.clone()),
        };
    }

    fn enqueue_tx_softirq(self: &Arc<Self>) {
        // If it is queued already, it will see the new work.
        let queue = &self.shared.device.queues.tx_softirq;
        let _ = queue.enqueue::<Arc<Self>, TX_SOFTIRQ>(self.clone());
    }

    /// Returns the stream of the transmit task; takes a new one first.
    pub(crate) fn take_new_tx<'a>(&self, tx: &'a mut Tx) -> Option<&'a mut KBox<TxStream>> {
        // The old stream is dropped before a new one can be attached.
        if tx.stream.is_none() {
            tx.stream = self.new_tx.lock().take();
        }
        tx.stream.as_mut()
    }

    fn round(self: &Arc<Self>, tx: &mut Tx, sender: &mut TcpSender<'_, '_>) -> Next {
        match self.shared.phase() {
            QpPhase::Idle => {
                // Drops the stream left by a reset. Dropping may sleep.
                if sender.may_sleep() {
                    tx.stream = None;
                }
                Next::Done
            }
            QpPhase::Waiting if !self.shared.sq.has_posted() => Next::Done,
            QpPhase::Waiting => {
                self.enqueue_search();
                Next::Done
            }
            QpPhase::Rts | QpPhase::Closing => {
                let Some(stream) = self.take_new_tx(tx) else {
                    return Next::Done;
                };
                let next = stream.send_round(&self.shared, sender);
                let after = stream.take_after();
                self.carry_out(after, Runner::Any);
                next
            }
            // Ending a stream may sleep, so the work item does it.
            QpPhase::Terminate | QpPhase::Error | QpPhase::Gone if !sender.may_sleep() => {
                Next::Yield
            }
            QpPhase::Terminate => {
                if let Some(stream) = self.take_new_tx(tx) {
                    stream.send_terminate(&self.shared);
                }
                let after = self.shared.apply(Event::TerminateSent);
                self.carry_out(after, Runner::Any);
                Next::Again
            }
            phase @ (QpPhase::Error | QpPhase::Gone) => {
                if static_key::is_on() && phase == QpPhase::Error {
                    self.place_before_end();
                }
                // The connection outlives the transmit side of the stream.
                self.take_new_tx(tx);
                tx.stream = None;
                if phase == QpPhase::Error {
                    return self.flush_some();
                }
                self.forget_stream();
                Next::Done
            }
        }
    }
}
