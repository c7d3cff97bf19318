// SPDX-License-Identifier: GPL-2.0

//! Exclusive work without waiting: a flag says whether the task runs; a call that finds it running
//! rearms it and returns, and the running call makes another round before it stops.
//!
//! Any context may call the task; the result says whether this call did the work. Since no call
//! ever waits, a softirq may call a task that it interrupted on the same CPU. Compare the kernel's
//! `rxe_task`.

use core::cell::UnsafeCell;
use kernel::sync::atomic::Acquire;
use kernel::sync::atomic::Atomic;
use kernel::sync::atomic::Full;
use kernel::sync::atomic::Relaxed;
use kernel::sync::atomic::Release;

/// A value that one context at a time works on, with another round if it is rearmed meanwhile.
///
/// # Examples
///
/// ```
/// use kernel_ext::sync::Next;
/// use kernel_ext::sync::Ran;
/// use kernel_ext::sync::SerialTask;
///
/// /// Sends at most four of the packets that are left.
/// fn send_some(packets: &mut u32) -> Next {
///     *packets = packets.saturating_sub(4);
///     if *packets == 0 {
///         Next::Done
///     } else {
///         Next::Yield
///     }
/// }
///
/// let sender = SerialTask::new(6);
/// // From any context, any number of times at once. After `Yielded` the caller has another call
/// // made, by a work item for example.
/// assert_eq!(sender.run(send_some), Ran::Yielded);
/// assert_eq!(sender.run(send_some), Ran::Here);
/// ```
///
/// # Invariants
///
/// `state` is [`IDLE`], [`RUNNING`] or [`REARMED`]. Only the call of [`SerialTask::run`] or
/// [`SerialTask::try_run`] that changed `state` from [`IDLE`] accesses the value, until that call
/// stores [`IDLE`] again.
pub struct SerialTask<T> {
    state: Atomic<i32>,
    value: UnsafeCell<T>,
}

/// No call runs the task.
const IDLE: i32 = 0;
/// A call runs the task.
const RUNNING: i32 = 1;
/// A call runs the task and has to make another round.
const REARMED: i32 = 2;

/// What follows a round of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Another round, rearmed or not.
    Again,
    /// Stop, unless the task was rearmed meanwhile.
    Done,
    /// Stop even if the task was rearmed: the caller of [`SerialTask::run`] must arrange another
    /// call.
    Yield,
}

/// The outcome of a call of [`SerialTask::run`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a yielded round has to be asked for again"]
pub enum Ran {
    /// The running call makes another round for this one.
    Elsewhere,
    /// This call did the work.
    Here,
    /// This call began the work, and [`Next::Yield`] stopped it.
    Yielded,
}

// SAFETY: Only the value could be bound to a thread; so it may move to another thread if the value
// may.
unsafe impl<T: Send> Send for SerialTask<T> {}
// SAFETY: By the type invariant one call of `run` at a time uses the value, on any thread, and a
// shared reference gives no other access to it; so `T: Send` is enough.
unsafe impl<T: Send> Sync for SerialTask<T> {}

impl<T: Send> SerialTask<T> {
    /// Makes an idle task.
    pub const fn new(value: T) -> Self {
        // INVARIANT: No call runs a new task.
        Self {
            state: Atomic::new(IDLE),
            value: UnsafeCell::new(value),
        }
    }

    /// Runs `f` until it is done and not rearmed; if another call runs the task, rearms that one.
    ///
    /// The round that works for this call sees everything that the caller wrote before, wherever it
    /// runs. If `f` calls `run` on the same task, that call returns [`Ran::Elsewhere`], and another
    /// round follows.
    ///
    /// Context: any; the context of `f` is that of the caller.
    pub fn run(&self, f: impl FnMut(&mut T) -> Next) -> Ran {
        if !self.start_or_rearm() {
            return Ran::Elsewhere;
        }
        // SAFETY: `start_or_rearm` has changed `state` from `IDLE`.
        unsafe { self.rounds(f) }
    }

    /// As [`SerialTask::run`], but leaves another call that runs the task alone. For a caller that
    /// tries again until it runs the task itself: rearming a running call would keep it running.
    ///
    /// Context: any; the context of `f` is that of the caller.
    pub fn try_run(&self, f: impl FnMut(&mut T) -> Next) -> Ran {
        // ORDERING: acquires what the last running call wrote, as in `start_or_rearm`.
        if self.state.cmpxchg(IDLE, RUNNING, Full).is_err() {
            return Ran::Elsewhere;
        }
        // SAFETY: This call has just changed `state` from `IDLE`.
        unsafe { self.rounds(f) }
    }

    /// Runs `f` until it is done and the task is not rearmed, or until it yields.
    ///
    /// # Safety
    ///
    /// The caller has changed `state` from [`IDLE`].
    #[inline]
    unsafe fn rounds(&self, mut f: impl FnMut(&mut T) -> Next) -> Ran {
        loop {
            // SAFETY: A `&mut` must be the only reference. The caller has changed `state` from
            // `IDLE`, so by the type invariant only this call accesses the value until it stores
            // `IDLE`; the reference of the last round has ended.
            let next = f(unsafe { &mut *self.value.get() });
            match next {
                Next::Again => {
                    // ORDERING: acquires what the rearming calls wrote before; pairs with `Full` in
                    // `start_or_rearm`.
                    self.state.xchg(RUNNING, Acquire);
                }
                Next::Done => {
                    // ORDERING: pairs with `Full` in `start_or_rearm` of the next call that starts
                    // the task.
                    if self.state.cmpxchg(RUNNING, IDLE, Release).is_ok() {
                        return Ran::Here;
                    }
                    // ORDERING: as above, for calls that rearmed it meanwhile.
                    self.state.xchg(RUNNING, Acquire);
                }
                Next::Yield => {
                    // ORDERING: pairs with `Full` in `start_or_rearm` of the next call that starts
                    // the task.
                    self.state.store(IDLE, Release);
                    return Ran::Yielded;
                }
            }
        }
    }

    /// Rearms a running task; says whether it runs.
    ///
    /// For a caller that cannot do the work itself: on `false` nothing was rearmed, and the caller
    /// must arrange a call of [`SerialTask::run`] elsewhere. Context: any.
    pub fn rearm(&self) -> bool {
        // ORDERING: a plain load: if it finds the task idle, the caller's arrangement orders what
        // the caller wrote before the next run, as queueing a work item does.
        let mut seen = self.state.load(Relaxed);
        while seen != IDLE {
            // ORDERING: As in `start_or_rearm`.
            match self.state.cmpxchg(seen, REARMED, Full) {
                Ok(_) => return true,
                Err(now) => seen = now,
            }
        }
        false
    }

    /// Returns the value of a task that is not shared.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }

    /// Starts the task if it is idle; otherwise rearms it. Returns whether it was started.
    fn start_or_rearm(&self) -> bool {
        // The task is usually idle, so this does not load the state first.
        let mut seen = IDLE;
        loop {
            let (new, taken) = if seen == IDLE {
                (RUNNING, true)
            } else {
                (REARMED, false)
            };
            // ORDERING: Writes `REARMED` even over `REARMED`: only if the running call's `xchg`
            // reads this write does it see what was written before this call. Starting acquires
            // what the last running call wrote.
            match self.state.cmpxchg(seen, new, Full) {
                Ok(_) => return taken,
                Err(now) => seen = now,
            }
        }
    }
}

#[kernel::prelude::kunit_tests(riwarp_serial_task)]
mod tests {
    use super::*;

    #[test]
    fn idle_serial_task_runs_in_the_caller() {
        let task = SerialTask::new(1);
        let ran = task.run(|value| {
            *value += 1;
            Next::Done
        });
        assert_eq!(ran, Ran::Here);
        let mut task = task;
        assert_eq!(*task.get_mut(), 2);
    }

    #[test]
    fn serial_task_repeats_until_done() {
        let task = SerialTask::new(0);
        let ran = task.run(|rounds| {
            *rounds += 1;
            if *rounds < 5 {
                Next::Again
            } else {
                Next::Done
            }
        });
        let mut task = task;
        assert_eq!((ran, *task.get_mut()), (Ran::Here, 5));
    }

    #[test]
    fn serial_task_called_while_running_runs_again() {
        let task = SerialTask::new(0);
        let mut asked = false;
        let ran = task.run(|rounds| {
            *rounds += 1;
            if !asked {
                asked = true;
                // Two calls cause one more round.
                assert_eq!(task.run(|_| Next::Again), Ran::Elsewhere);
                assert_eq!(task.run(|_| Next::Again), Ran::Elsewhere);
            }
            Next::Done
        });
        assert_eq!(ran, Ran::Here);
        let mut task = task;
        assert_eq!(*task.get_mut(), 2);
    }

    #[test]
    fn serial_task_try_run_does_not_rearm_running_task() {
        let task = SerialTask::new(0);
        let ran = task.run(|rounds| {
            *rounds += 1;
            assert_eq!(task.try_run(|_| Next::Again), Ran::Elsewhere);
            Next::Done
        });
        assert_eq!(ran, Ran::Here);
        let ran = task.try_run(|rounds| {
            *rounds += 1;
            Next::Done
        });
        let mut task = task;
        assert_eq!((ran, *task.get_mut()), (Ran::Here, 2));
    }

    #[test]
    fn serial_task_yield_stops_even_if_rearmed() {
        let task = SerialTask::new(0);
        let ran = task.run(|rounds| {
            *rounds += 1;
            assert!(task.rearm());
            Next::Yield
        });
        assert_eq!(ran, Ran::Yielded);
        // The task is idle: `rearm` does nothing, and the next call runs it.
        assert!(!task.rearm());
        assert_eq!(task.run(|_| Next::Done), Ran::Here);
        let mut task = task;
        assert_eq!(*task.get_mut(), 1);
    }

    #[test]
    fn serial_task_rearm_runs_it_again() {
        let task = SerialTask::new(0);
        let ran = task.run(|rounds| {
            *rounds += 1;
            if *rounds == 1 {
                assert!(task.rearm());
            }
            Next::Done
        });
        assert_eq!(ran, Ran::Here);
        let mut task = task;
        assert_eq!(*task.get_mut(), 2);
    }
}
