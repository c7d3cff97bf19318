// SPDX-License-Identifier: GPL-2.0

//! Timers that end for good, as `timer_shutdown_sync()` ends a `timer_list`. For an `hrtimer` the
//! kernel has `hrtimer_cancel()` only, after which another context may start it again.
//!
//! C header: `include/linux/hrtimer.h`.

use core::mem::replace;
use kernel::new_mutex;
use kernel::prelude::*;
use kernel::sync::Arc;
use kernel::sync::Mutex;
use kernel::time::hrtimer::ArcHrTimerHandle;
use kernel::time::hrtimer::HasHrTimer;
use kernel::time::hrtimer::HrTimerMode;
use kernel::time::hrtimer::HrTimerPointer;

/// The handle of an object's timer, which contexts start and stop until one of them ends it.
///
/// A start holds a reference to the object, until the next start, the stop or the end; the object
/// itself has this handle. So without [`TimerHandle::end`] the object stays for ever.
///
/// Context: process, sleeps: all methods wait for the timer's callback to return, and all but
/// `end` do so under a mutex.
#[pin_data]
pub struct TimerHandle<T: HasHrTimer<T>> {
    #[pin]
    state: Mutex<TimerState<T>>,
}

enum TimerState<T: HasHrTimer<T>> {
    /// Can be started; has the last start.
    Ready(Option<ArcHrTimerHandle<T>>),
    Ended,
}

impl<T: HasHrTimer<T>> TimerHandle<T> {
    /// Makes the handle of a timer that was not started.
    pub fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            state <- new_mutex!(TimerState::Ready(None), "TimerHandle::state"),
        })
    }

    /// Starts the timer of `object`, which has this handle, in place of an earlier start. Does
    /// nothing once it has ended.
    pub fn arm(&self, object: &Arc<T>, expires: <T::TimerMode as HrTimerMode>::Expires)
    where
        Arc<T>: HrTimerPointer<TimerMode = T::TimerMode, TimerHandle = ArcHrTimerHandle<T>>,
    {
        if let TimerState::Ready(last) = &mut *self.state.lock() {
            // First, since it stops the timer, whoever started it.
            *last = None;
            *last = Some(object.clone().start(expires));
        }
    }

    /// Stops the timer.
    pub fn stop(&self) {
        if let TimerState::Ready(last) = &mut *self.state.lock() {
            *last = None;
        }
    }

    /// Stops the timer for good: its callback does not run any more once this returns. A work item
    /// that it has queued may.
    pub fn end(&self) {
        let _drop_outside_lock = replace(&mut *self.state.lock(), TimerState::Ended);
    }
}
