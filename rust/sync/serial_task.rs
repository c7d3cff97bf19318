// SPDX-License-Identifier: GPL-2.0

//! Exclusive work without waiting: a flag says whether the task runs; a call that finds it running
//! rearms it and returns, and the running call makes another round before it stops.
//!
//! What enters is a request to work on a value, from any context; what leaves is the word whether
//! it was done here. Since nobody ever waits, a softirq may call it while it runs on the same CPU,
//! interrupted. Compare `rxe_task` of the kernel.

use core::cell::UnsafeCell;
use kernel::sync::atomic::Acquire;
use kernel::sync::atomic::Atomic;
use kernel::sync::atomic::Full;
use kernel::sync::atomic::Relaxed;
use kernel::sync::atomic::Release;

/// A value that one context at a time works on, again if it was rearmed meanwhile.
///
/// # Examples
///
/// ```ignore
/// let sender = SerialTask::new(Sender::new());
/// // From any context, any number of times at once:
/// match sender.run(|s| s.transmit_some()) {
///     Ran::Here | Ran::Elsewhere => {}
///     Ran::Yielded => queue.enqueue(work),
/// }
/// ```
///
/// # Invariants
///
/// `state` is [`IDLE`], [`RUNNING`] or [`REARMED`]. The value is only touched by the one call of
/// [`SerialTask::run`] that changed `state` from [`IDLE`], until that call stores [`IDLE`] again.
pub struct SerialTask<T> {
    state: Atomic<i32>,
    value: UnsafeCell<T>,
}

/// Nobody works.
const IDLE: i32 = 0;
/// Somebody works.
const RUNNING: i32 = 1;
/// Somebody works and has to make another round.
const REARMED: i32 = 2;

/// What follows after one round of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Another round, rearmed or not.
    Again,
    /// Nothing, unless it was rearmed meanwhile.
    Done,
    /// To stop here even if it was rearmed: the caller of [`SerialTask::run`] sees to it that it is
    /// called again.
    Yield,
}

/// What became of a call of [`SerialTask::run`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a yielded round has to be asked for again"]
pub enum Ran {
    /// The call that runs works (again) for this one, some time after it was made.
    Elsewhere,
    /// The work was done in this call.
    Here,
    /// The work was begun in this call and stopped by [`Next::Yield`].
    Yielded,
}

// SAFETY: It owns its value and nothing else that is bound to a thread; so it may go to another
// thread if the value may.
unsafe impl<T: Send> Send for SerialTask<T> {}
// SAFETY: By the type invariant the value is used by one call of `run` at a time, on whatever
// thread, and nothing else of it is reached through a shared reference; hence `Send` is enough.
unsafe impl<T: Send> Sync for SerialTask<T> {}

impl<T: Send> SerialTask<T> {
    /// Makes one that is idle.
    pub const fn new(value: T) -> Self {
        // INVARIANT: Nobody works on a new value.
        Self {
            state: Atomic::new(IDLE),
            value: UnsafeCell::new(value),
        }
    }

    /// Runs `f`, again while it is rearmed, or rearms the call that runs.
    ///
    /// Everything that the caller wrote before this call is seen by the round that works for it,
    /// wherever that round runs. `f` must not call `run` on the same task and expect work to be
    /// done inside: it gets [`Ran::Elsewhere`], and the round is repeated.
    ///
    /// Context: any; the context of `f` is that of the caller.
    pub fn run(&self, mut f: impl FnMut(&mut T) -> Next) -> Ran {
        if !self.start_or_rearm() {
            return Ran::Elsewhere;
        }
        loop {
            // SAFETY: A `&mut` wants to be the only reference. `start_or_rearm` has changed `state`
            // from `IDLE`, so by the type invariant nobody else touches the value until this call
            // stores `IDLE`; the reference of the last round has ended.
            let next = f(unsafe { &mut *self.value.get() });
            match next {
                Next::Again => {
                    // ORDERING: acquires what those who rearmed it wrote before; pairs with `Full`
                    // in `start_or_rearm`.
                    self.state.xchg(RUNNING, Acquire);
                }
                Next::Done => {
                    // ORDERING: pairs with `Full` of the next taker in `start_or_rearm`.
                    if self.state.cmpxchg(RUNNING, IDLE, Release).is_ok() {
                        return Ran::Here;
                    }
                    // ORDERING: as above, for what was rearmed meanwhile.
                    self.state.xchg(RUNNING, Acquire);
                }
                Next::Yield => {
                    // ORDERING: pairs with `Full` of the next taker in `start_or_rearm`.
                    self.state.store(IDLE, Release);
                    return Ran::Yielded;
                }
            }
        }
    }

    /// Has a running task make another round; says whether it runs.
    ///
    /// For those who cannot do the work themselves: on `false` nothing was rearmed, and the caller
    /// has somebody call [`SerialTask::run`]. Context: any.
    pub fn rearm(&self) -> bool {
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

    /// Gives the value of a task that nobody else can reach.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }

    /// Starts the task if it is idle; otherwise rearms it. Says whether it was started.
    fn start_or_rearm(&self) -> bool {
        // Most often it is idle, so this does not look first.
        let mut seen = IDLE;
        loop {
            let (new, taken) = if seen == IDLE {
                (RUNNING, true)
            } else {
                (REARMED, false)
            };
            // ORDERING: A mark is always written, even over a mark: only by reading this very write
            // does the running call's `xchg` see what was written before this call. Starting
            // acquires what the last one wrote.
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
    fn an_idle_task_runs_here() {
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
    fn again_repeats_until_done() {
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
    fn a_call_while_it_runs_gets_another_round() {
        let task = SerialTask::new(0);
        let mut asked = false;
        let ran = task.run(|rounds| {
            *rounds += 1;
            if !asked {
                asked = true;
                // Twice, which makes one more round.
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
    fn yield_stops_even_if_rearmed() {
        let task = SerialTask::new(0);
        let ran = task.run(|rounds| {
            *rounds += 1;
            assert!(task.rearm());
            Next::Yield
        });
        assert_eq!(ran, Ran::Yielded);
        // It is idle: nothing can be rearmed, and the next call runs.
        assert!(!task.rearm());
        assert_eq!(task.run(|_| Next::Done), Ran::Here);
        let mut task = task;
        assert_eq!(*task.get_mut(), 1);
    }

    #[test]
    fn rearm_makes_it_run_again() {
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
