// SPDX-License-Identifier: GPL-2.0

//! The transmit timer of a queue pair: wakes the transmitter after a time.

use iwarp::lifecycle::QpPhase;
use kernel::{
    impl_has_hr_timer,
    sync::{
        atomic::{
            Full,
            Relaxed, //
        },
        barrier::smp_mb,
        Arc,
        ArcBorrow, //
    },
    time::{
        hrtimer::{
            ArcHrTimerHandle,
            HrTimerCallback,
            HrTimerCallbackContext,
            HrTimerPointer,
            HrTimerRestart,
            RelativeMode, //
        },
        Delta,
        Monotonic, //
    }, //
};
use kernel_ext::sync::Next;

use crate::qp::{
    Qp,
    Receives, //
};

/// What wakes the transmitter after a time.
pub(crate) enum TxTimer {
    /// It can be armed; the handle is the last one's.
    Ready(Option<ArcHrTimerHandle<Qp>>),
    /// The queue pair is being destroyed.
    Ended,
}

/// How long what a process posts after the end may wait before it is flushed, in milliseconds: at
/// first, and after some time without anything to flush.
pub(crate) const FLUSH_PERIOD: u32 = 50;
const FLUSH_PERIOD_MAX: u32 = 1_000;

impl_has_hr_timer! {
    impl HasHrTimer<Self> for Qp { mode: RelativeMode<Monotonic>, field: self.timer }
}

impl HrTimerCallback for Qp {
    type Pointer<'a> = Arc<Self>;

    /// Context: hard interrupt.
    fn run(this: ArcBorrow<'_, Self>, _: HrTimerCallbackContext<'_, Self>) -> HrTimerRestart {
        // A doorbell from here on has to arm the timer.
        this.tx_timer_armed.xchg(false, Full);
        Arc::from(this).enqueue_tx();
        HrTimerRestart::NoRestart
    }
}

impl Qp {
    /// Wakes the transmitter after a time, unless that is going to happen already.
    ///
    /// Context: process.
    pub(crate) fn arm_tx_timer(self: &Arc<Self>, after: Delta) {
        if self.tx_timer_armed.xchg(true, Full) {
            return;
        }
        if let TxTimer::Ready(last) = &mut *self.tx_timer.lock() {
            // It has run; at most its end is waited for.
            *last = None;
            *last = Some(self.clone().start(after));
        }
    }

    /// Whether the transmitter is going to be woken, and will see what was posted before.
    pub(crate) fn tx_timer_is_armed(&self) -> bool {
        // ORDERING: the poster stores its request and then looks whether the timer is armed; that
        // flag is taken back and then the transmitter looks for requests. Each side needs its store
        // before its load.
        smp_mb(Full);
        self.tx_timer_armed.load(Relaxed)
    }

    /// Ends the timer, which refers to the queue pair.
    ///
    /// Context: process.
    pub(crate) fn end_tx_timer(&self) {
        let _drop_outside_lock = core::mem::replace(&mut *self.tx_timer.lock(), TxTimer::Ended);
    }

    /// Sees to it that what is posted after the end is flushed too: a process posts receives
    /// without a call of any kind. Each time that nothing was, the next look is twice as far away.
    ///
    /// Context: process.
    pub(crate) fn watch_receives(self: &Arc<Self>) {
        let silent = self.user && matches!(self.receives, Receives::Own(_));
        if silent && self.phase() == QpPhase::Error && !self.tx_timer_is_armed() {
            let pause = self.flush_pause.load(Relaxed);
            self.flush_pause
                .store(pause.saturating_mul(2).min(FLUSH_PERIOD_MAX), Relaxed);
            self.arm_tx_timer(Delta::from_millis(pause.into()));
        }
    }

    /// A process that has a queue pair in error still uses it: looks are frequent again.
    ///
    /// Context: process.
    pub(crate) fn watch_closely(self: &Arc<Self>) {
        if self.flush_pause.xchg(FLUSH_PERIOD, Relaxed) > FLUSH_PERIOD {
            // The time it is armed for may be far away.
            self.stop_tx_timer();
        }
    }

    /// Disarms the timer. The caller sees to it that the transmitter looks for what was posted
    /// meanwhile.
    ///
    /// Context: process.
    pub(crate) fn stop_tx_timer(&self) {
        if let TxTimer::Ready(last) = &mut *self.tx_timer.lock() {
            *last = None;
            self.tx_timer_armed.xchg(false, Full);
        }
    }

    /// Ends work requests after the stream. A process that posts on and on is not given the work
    /// item's whole time: the rest ends later.
    ///
    /// Context: process; the transmitter's.
    pub(crate) fn flush_some(self: &Arc<Self>) -> Next {
        if self.has_posted() {
            self.flush_pause.store(FLUSH_PERIOD, Relaxed);
        }
        if !self.flush() {
            return Next::Done;
        }
        if !self.user {
            return Next::Yield;
        }
        self.arm_tx_timer(Delta::from_millis(FLUSH_PERIOD.into()));
        Next::Done
    }
}
