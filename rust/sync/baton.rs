// SPDX-License-Identifier: GPL-2.0

//! Exclusive work without waiting: one flag says who works; whoever finds it taken marks it and
//! leaves, and the holder looks again before it lets go.
//!
//! What enters is a request to work on a value, from any context; what leaves is the word whether
//! it was done here. Since nobody ever waits, a softirq may meet a holder that it interrupted on
//! its own CPU.

use core::cell::UnsafeCell;
use kernel::sync::atomic::Acquire;
use kernel::sync::atomic::Atomic;
use kernel::sync::atomic::Full;
use kernel::sync::atomic::Relaxed;
use kernel::sync::atomic::Release;

/// A value that one context at a time works on, again for everybody who asked meanwhile.
///
/// # Examples
///
/// ```ignore
/// let sender = Baton::new(Sender::new());
/// // From any context, any number of times at once:
/// match sender.run(|s| s.transmit_some()) {
///     Ran::Here | Ran::Elsewhere => {}
///     Ran::Yielded => queue.enqueue(work),
/// }
/// ```
///
/// # Invariants
///
/// `state` is [`FREE`], [`HELD`] or [`ASKED`]. The value is only touched by the one call of
/// [`Baton::run`] that changed `state` from [`FREE`], until that call stores [`FREE`] again.
pub struct Baton<T> {
    state: Atomic<i32>,
    value: UnsafeCell<T>,
}

/// Nobody works.
const FREE: i32 = 0;
/// Somebody works.
const HELD: i32 = 1;
/// Somebody works and has to look again.
const ASKED: i32 = 2;

/// What the holder wants after one round of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Another round, whether anybody asked or not.
    Again,
    /// Nothing, unless somebody asked meanwhile.
    Done,
    /// To stop here even if somebody asked: the caller of [`Baton::run`] sees to it that it is
    /// called again.
    Yield,
}

/// What became of a call of [`Baton::run`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a yielded round has to be asked for again"]
pub enum Ran {
    /// The present holder works (again) for this call, some time after it was made.
    Elsewhere,
    /// The work was done in this call.
    Here,
    /// The work was begun in this call and stopped by [`Next::Yield`].
    Yielded,
}

// SAFETY: A baton owns its value and nothing else that is bound to a thread; so it may go to
// another thread if the value may.
unsafe impl<T: Send> Send for Baton<T> {}
// SAFETY: By the type invariant the value is used by one call of `run` at a time, on whatever
// thread, and nothing else of it is reached through a shared reference; hence `Send` is enough.
unsafe impl<T: Send> Sync for Baton<T> {}

impl<T: Send> Baton<T> {
    /// Makes one that is free.
    pub const fn new(value: T) -> Self {
        // INVARIANT: Nobody works on a new value.
        Self {
            state: Atomic::new(FREE),
            value: UnsafeCell::new(value),
        }
    }

    /// Runs `f`, again while others ask, or leaves it to the present holder.
    ///
    /// Everything that the caller wrote before this call is seen by the round that works for it,
    /// wherever that round runs. `f` must not call `run` on the same baton and expect work to be
    /// done inside: it gets [`Ran::Elsewhere`], and the round is repeated.
    ///
    /// Context: any; the context of `f` is that of the caller.
    pub fn run(&self, mut f: impl FnMut(&mut T) -> Next) -> Ran {
        if !self.take_or_ask() {
            return Ran::Elsewhere;
        }
        loop {
            // SAFETY: A `&mut` wants to be the only reference. `take_or_ask` has changed `state`
            // from `FREE`, so by the type invariant nobody else touches the value until this call
            // stores `FREE`; the reference of the last round has ended.
            let next = f(unsafe { &mut *self.value.get() });
            match next {
                Next::Again => {
                    // ORDERING: acquires what those who asked wrote before; pairs with `Full` in
                    // `take_or_ask`.
                    self.state.xchg(HELD, Acquire);
                }
                Next::Done => {
                    // ORDERING: pairs with `Full` of the next taker in `take_or_ask`.
                    if self.state.cmpxchg(HELD, FREE, Release).is_ok() {
                        return Ran::Here;
                    }
                    // ORDERING: as above, for what was asked meanwhile.
                    self.state.xchg(HELD, Acquire);
                }
                Next::Yield => {
                    // ORDERING: pairs with `Full` of the next taker in `take_or_ask`.
                    self.state.store(FREE, Release);
                    return Ran::Yielded;
                }
            }
        }
    }

    /// Asks the present holder for another round, if there is one; says whether there is.
    ///
    /// For those who cannot do the work themselves: on `false` nobody was asked, and the caller
    /// finds somebody who calls [`Baton::run`]. Context: any.
    pub fn ask(&self) -> bool {
        let mut seen = self.state.load(Relaxed);
        while seen != FREE {
            // ORDERING: As in `take_or_ask`.
            match self.state.cmpxchg(seen, ASKED, Full) {
                Ok(_) => return true,
                Err(now) => seen = now,
            }
        }
        false
    }

    /// Gives the value of a baton that nobody else can reach.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }

    /// Takes the baton if it is free; otherwise leaves a mark for the holder. Says whether it was
    /// taken.
    fn take_or_ask(&self) -> bool {
        // Most often it is free, so this does not look first.
        let mut seen = FREE;
        loop {
            let (new, taken) = if seen == FREE {
                (HELD, true)
            } else {
                (ASKED, false)
            };
            // ORDERING: A mark is always written, even over a mark: only by reading this very write
            // does the holder's `xchg` see what was written before the call. Taking acquires what
            // the last holder wrote.
            match self.state.cmpxchg(seen, new, Full) {
                Ok(_) => return taken,
                Err(now) => seen = now,
            }
        }
    }
}

#[kernel::prelude::kunit_tests(riwarp_baton)]
mod tests {
    use super::*;

    #[test]
    fn a_free_baton_works_here() {
        let baton = Baton::new(1);
        let ran = baton.run(|value| {
            *value += 1;
            Next::Done
        });
        assert_eq!(ran, Ran::Here);
        let mut baton = baton;
        assert_eq!(*baton.get_mut(), 2);
    }

    #[test]
    fn again_repeats_until_done() {
        let baton = Baton::new(0);
        let ran = baton.run(|rounds| {
            *rounds += 1;
            if *rounds < 5 {
                Next::Again
            } else {
                Next::Done
            }
        });
        let mut baton = baton;
        assert_eq!((ran, *baton.get_mut()), (Ran::Here, 5));
    }

    #[test]
    fn who_finds_it_taken_gets_another_round() {
        let baton = Baton::new(0);
        let mut asked = false;
        let ran = baton.run(|rounds| {
            *rounds += 1;
            if !asked {
                asked = true;
                // Twice, which makes one more round.
                assert_eq!(baton.run(|_| Next::Again), Ran::Elsewhere);
                assert_eq!(baton.run(|_| Next::Again), Ran::Elsewhere);
            }
            Next::Done
        });
        assert_eq!(ran, Ran::Here);
        let mut baton = baton;
        assert_eq!(*baton.get_mut(), 2);
    }

    #[test]
    fn yield_stops_even_if_somebody_asked() {
        let baton = Baton::new(0);
        let ran = baton.run(|rounds| {
            *rounds += 1;
            assert!(baton.ask());
            Next::Yield
        });
        assert_eq!(ran, Ran::Yielded);
        // It is free: nobody is there to be asked, and the next call works.
        assert!(!baton.ask());
        assert_eq!(baton.run(|_| Next::Done), Ran::Here);
        let mut baton = baton;
        assert_eq!(*baton.get_mut(), 1);
    }

    #[test]
    fn ask_makes_the_holder_look_again() {
        let baton = Baton::new(0);
        let ran = baton.run(|rounds| {
            *rounds += 1;
            if *rounds == 1 {
                assert!(baton.ask());
            }
            Next::Done
        });
        assert_eq!(ran, Ran::Here);
        let mut baton = baton;
        assert_eq!(*baton.get_mut(), 2);
    }
}
