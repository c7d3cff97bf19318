// SPDX-License-Identifier: GPL-2.0

//! The transmit timer of a queue pair: runs the transmit task after a delay.

use iwarp::lifecycle::QpPhase;
use kernel::{
    impl_has_hr_timer,
    sync::{
        atomic::{
            Full,
            Relaxed, //
        },
        Arc,
        ArcBorrow, //
    },
    time::{
        hrtimer::{
            HrTimerCallback,
            HrTimerCallbackContext,
            HrTimerRestart,
            RelativeMode, //
        },
        Delta,
        Monotonic, //
    }, //
};
use kernel_ext::{
    compat::smp_mb,
    sync::Next, //
};

use super::Qp;
use crate::stream::owner::Receives;

/// Interval between flushes of what a process posts after the end of the stream, in milliseconds:
/// at first, and at most while nothing is posted.
pub(super) const FLUSH_PERIOD: u32 = 50;
const FLUSH_PERIOD_MAX: u32 = 1_000;

impl_has_hr_timer! {
    impl HasHrTimer<Self> for Qp { mode: RelativeMode<Monotonic>, field: self.timer }
}

impl HrTimerCallback for Qp {
    type Pointer<'a> = Arc<Self>;

    /// Context: hard interrupt.
    fn run(this: ArcBorrow<'_, Self>, _: HrTimerCallbackContext<'_, Self>) -> HrTimerRestart {
        // A doorbell after this has to arm the timer again.
        // ORDERING: pairs with `tx_timer_is_armed` and with the exchange in `arm_tx_timer`: who
        // found the timer armed had posted before this, and the transmit task that starts now sees
        // that.
        this.shared.tx_timer_armed.xchg(false, Full);
        Arc::from(this).enqueue_tx();
        HrTimerRestart::NoRestart
    }
}

impl Qp {
    /// Returns whether the timer is armed; the transmit task it starts sees what was posted before.
    pub(super) fn tx_timer_is_armed(&self) -> bool {
        // ORDERING: the poster stores its request and then loads the flag; the timer clears the
        // flag, and then the transmit task looks for requests. Each side needs its store before its
        // load.
        smp_mb();
        self.shared.tx_timer_armed.load(Relaxed)
    }

    /// Arms the timer to flush receives that a process posts after the stream, without a system
    /// call. Doubles the interval each time; [`Qp::flush_some`] resets it when something was
    /// posted.
    ///
    /// Context: process.
    pub(super) fn watch_receives(self: &Arc<Self>) {
        let silent = self.shared.user && matches!(self.shared.receives, Receives::Own(_));
        if silent && self.shared.phase() == QpPhase::Error && !self.tx_timer_is_armed() {
            let pause = self.flush_pause.load(Relaxed);
            self.flush_pause
                .store(pause.saturating_mul(2).min(FLUSH_PERIOD_MAX), Relaxed);
            self.arm_tx_timer(Delta::from_millis(pause.into()));
        }
    }

    /// Shortens the flush interval again: a process still uses its queue pair in the error state.
    ///
    /// Context: process.
    pub(super) fn reset_flush_interval(self: &Arc<Self>) {
        if self.flush_pause.xchg(FLUSH_PERIOD, Relaxed) > FLUSH_PERIOD {
            // The timer may be armed for a much later time.
            self.stop_tx_timer();
        }
    }

    /// Disarms the timer. The caller makes the transmit task look for what was posted meanwhile.
    ///
    /// Context: process.
    pub(super) fn stop_tx_timer(&self) {
        self.tx_timer.stop();
        // ORDERING: as in the timer's `run`: the caller's transmit task looks after this.
        self.shared.tx_timer_armed.xchg(false, Full);
    }

    /// Flushes work requests after the end of the stream. If a process posts continuously, leaves
    /// the rest to the timer, so that it does not occupy the work item.
    ///
    /// Context: process; the running transmit task.
    pub(super) fn flush_some(self: &Arc<Self>) -> Next {
        // If the timer expired during this flush, it would rearm this context for another one,
        // which would set it again, and so on.
        self.stop_tx_timer();
        if self.has_posted() {
            self.flush_pause.store(FLUSH_PERIOD, Relaxed);
        }
        if !self.flush() {
            return Next::Done;
        }
        if !self.shared.user {
            return Next::Yield;
        }
        self.arm_tx_timer(Delta::from_millis(FLUSH_PERIOD.into()));
        Next::Done
    }
}
