// SPDX-License-Identifier: GPL-2.0

//! Models of `rust/sync` and of the queues that the driver shares with processes: their code, with
//! loom's atomics in the place of the kernel's.
//!
//! Where the kernel orders fully (`Full`), the models have a fence of sequential consistency before
//! and after the operation. loom has no weaker hardware in it than C11's model allows.

#![allow(dead_code, reason = "the models use a part of what the sources offer")]

extern crate self as kernel;
extern crate self as kernel_ext;
extern crate self as zerocopy;

/// What the sources take from zerocopy.
pub trait Immutable {}
impl<const N: usize> Immutable for [u8; N] {}

pub mod shared_ring;

/// What the sources take from the kernel crate.
pub mod prelude {
    pub use crate::shared_ring::{
        FromBytes,
        IntoBytes, //
    };
    pub use core::result::Result as CoreResult;

    /// An error number.
    #[derive(Debug)]
    pub struct Error;
    /// Of the sources' fallible functions.
    pub type Result<T = (), E = Error> = CoreResult<T, E>;
    /// The error of offsets outside of the memory.
    pub const EINVAL: Error = Error;
    /// How memory is allocated.
    pub const GFP_KERNEL_ACCOUNT: () = ();
}

/// What the sources take from the module's own crate of abstractions.
pub mod mm {
    pub use crate::shared_ring;
}

/// What the sources take from the module's own crate of abstractions.
pub mod compat {
    /// A full barrier.
    pub fn smp_mb() {
        loom::sync::atomic::fence(loom::sync::atomic::Ordering::SeqCst);
    }
}

/// What the sources take from the driver.
pub mod abi {
    /// What the sources take from the driver.
    pub mod wr {
        /// What a completion is.
        #[derive(Clone, Copy, PartialEq, Eq)]
        pub enum PendingEvent {
            /// A completion.
            Plain,
            /// A completion of a solicited Send, or an error.
            Solicited,
        }
    }
}

/// What the sources take from the kernel crate.
pub mod ffi {
    pub use core::ffi::{
        c_int,
        c_uint, //
    };
}

/// What the sources take from the kernel crate.
pub mod sync {
    /// The kernel's counted pointer.
    pub struct Arc<T>(loom::sync::Arc<T>);
    impl<T> Arc<T> {
        /// Allocates it.
        pub fn new(value: T, _: ()) -> crate::prelude::Result<Self> {
            Ok(Self(loom::sync::Arc::new(value)))
        }
    }
    impl<T> Clone for Arc<T> {
        fn clone(&self) -> Self {
            Self(self.0.clone())
        }
    }
    impl<T> core::ops::Deref for Arc<T> {
        type Target = T;
        fn deref(&self) -> &T {
            &self.0
        }
    }

    /// The kernel's atomics, by loom.
    pub mod atomic {
        use loom::sync::atomic::{
            fence,
            AtomicI32,
            Ordering, //
        };
        use std::sync::OnceLock;

        /// An ordering, as a type.
        pub trait Order {
            /// For operations that read and write, or do one of these.
            const ORDER: Ordering;
            /// Orders what comes before the operation with what follows it.
            fn fence() {}
        }
        /// Orders later accesses.
        pub struct Acquire;
        /// Orders earlier accesses.
        pub struct Release;
        /// Orders nothing.
        pub struct Relaxed;
        /// Orders all accesses.
        pub struct Full;
        impl Order for Acquire {
            const ORDER: Ordering = Ordering::Acquire;
        }
        impl Order for Release {
            const ORDER: Ordering = Ordering::Release;
        }
        impl Order for Relaxed {
            const ORDER: Ordering = Ordering::Relaxed;
        }
        impl Order for Full {
            const ORDER: Ordering = Ordering::AcqRel;
            fn fence() {
                fence(Ordering::SeqCst);
            }
        }

        /// An atomic integer. loom cannot make one in a constant: the first access does, so the
        /// thread that makes the model's objects has to access each.
        pub struct Atomic<T> {
            cell: OnceLock<AtomicI32>,
            value: T,
        }

        impl Atomic<i32> {
            /// Makes one.
            pub const fn new(value: i32) -> Self {
                Self {
                    cell: OnceLock::new(),
                    value,
                }
            }
            fn cell(&self) -> &AtomicI32 {
                self.cell.get_or_init(|| AtomicI32::new(self.value))
            }
            /// Reads it.
            pub fn load<O: Order>(&self, _: O) -> i32 {
                self.cell().load(O::ORDER)
            }
            /// Writes it. By an exchange, since loom takes a plain write for one that may come
            /// before an exchange that it has overwritten. So a later reader also sees what that
            /// one's thread has released, which a plain write does not promise.
            pub fn store<O: Order>(&self, value: i32, _: O) {
                self.cell().swap(value, O::ORDER);
            }
            /// Exchanges it.
            pub fn xchg<O: Order>(&self, value: i32, _: O) -> i32 {
                O::fence();
                let old = self.cell().swap(value, O::ORDER);
                O::fence();
                old
            }
            /// Exchanges it if it is `old`. Without success nothing is ordered.
            pub fn cmpxchg<O: Order>(&self, old: i32, new: i32, _: O) -> Result<i32, i32> {
                O::fence();
                let relaxed = Ordering::Relaxed;
                let result = self.cell().compare_exchange(old, new, O::ORDER, relaxed);
                if result.is_ok() {
                    O::fence();
                }
                result
            }
            /// Adds to it.
            pub fn fetch_add<O: Order>(&self, n: i32, _: O) -> i32 {
                O::fence();
                let old = self.cell().fetch_add(n, O::ORDER);
                O::fence();
                old
            }
            /// Subtracts from it.
            pub fn fetch_sub<O: Order>(&self, n: i32, _: O) -> i32 {
                O::fence();
                let old = self.cell().fetch_sub(n, O::ORDER);
                O::fence();
                old
            }
        }
    }
}

mod serial_task {
    include!(concat!(env!("OUT_DIR"), "/serial_task.rs"));
}
mod counts {
    include!(concat!(env!("OUT_DIR"), "/counts.rs"));
}
mod rxe_queue {
    include!(concat!(env!("OUT_DIR"), "/rxe_queue.rs"));
}
mod siw_ring {
    include!(concat!(env!("OUT_DIR"), "/siw_ring.rs"));
}

#[cfg(test)]
mod queue_tests;

#[no_mangle]
extern "C" fn riwarp_helper_cpu_relax() {
    loom::thread::yield_now();
}

loom::thread_local! {
    /// The CPU that the thread is on.
    static CPU: std::cell::Cell<u32> = std::cell::Cell::new(0);
}

#[no_mangle]
extern "C" fn riwarp_helper_raw_smp_processor_id() -> core::ffi::c_uint {
    CPU.with(|cpu| cpu.get())
}

#[cfg(test)]
mod tests {
    use super::{
        counts::Users,
        kernel::sync::atomic::{
            Acquire,
            Atomic,
            Relaxed, //
        },
        serial_task::{
            Next,
            Ran,
            SerialTask, //
        },
        CPU,
    };
    use loom::{
        cell::UnsafeCell,
        sync::Arc,
        thread, //
    };

    /// Whether each of the callers was served; in a cell in which loom finds concurrent accesses.
    struct Served(UnsafeCell<Vec<bool>>);

    /// Callers that ask for a round each.
    struct Asked {
        task: SerialTask<Served>,
        messages: Vec<Atomic<i32>>,
    }

    impl Asked {
        fn new(callers: usize) -> Arc<Self> {
            let this = Self {
                task: SerialTask::new(Served(UnsafeCell::new(vec![false; callers]))),
                messages: (0..callers).map(|_| Atomic::new(0)).collect(),
            };
            assert!(!this.task.rearm());
            for message in &this.messages {
                assert_eq!(message.load(Relaxed), 0);
            }
            Arc::new(this)
        }

        fn round(&self, served: &mut Served) {
            for (n, message) in self.messages.iter().enumerate() {
                if message.load(Relaxed) == 1 {
                    // SAFETY: loom reports the access if another one is not ordered with it.
                    served
                        .0
                        .with_mut(|served| unsafe { (&mut *served)[n] = true });
                }
            }
        }

        /// Asks for a round as the `n`th caller; the rounds end with `next`.
        fn ask(&self, n: usize, next: Next) -> Ran {
            self.messages[n].store(1, Relaxed);
            self.task.run(|served| {
                self.round(served);
                next
            })
        }

        fn all_served(&self) -> bool {
            let mut all = false;
            let ran = self.task.run(|served| {
                // SAFETY: as in `round`.
                all = served
                    .0
                    .with(|served| unsafe { (*served).iter().all(|one| *one) });
                Next::Done
            });
            ran == Ran::Here && all
        }
    }

    /// Runs callers in threads of their own, and a last one in this thread. With three of them,
    /// loom may take the processor from a thread twice only: it would take minutes else.
    fn callers(count: usize, ask: fn(&Asked, usize)) {
        let mut models = loom::model::Builder::new();
        models.preemption_bound = (count > 2).then_some(2);
        models.check(move || {
            let asked = Asked::new(count);
            let others: Vec<_> = (1..count)
                .map(|n| {
                    let asked = asked.clone();
                    thread::spawn(move || ask(&asked, n))
                })
                .collect();
            ask(&asked, 0);
            for other in others {
                other.join().expect("a thread of the model");
            }
            assert!(asked.all_served());
        });
    }

    #[test]
    fn serial_task_round_serves_each_of_two_callers() {
        callers(2, |asked, n| {
            let _ = asked.ask(n, Next::Done);
        });
    }

    #[test]
    fn serial_task_round_serves_each_of_three_callers() {
        callers(3, |asked, n| {
            let _ = asked.ask(n, Next::Done);
        });
    }

    /// As a queue pair whose work item makes the round that was yielded.
    #[test]
    fn serial_task_that_yields_is_called_again() {
        callers(2, |asked, n| {
            if asked.ask(n, Next::Yield) == Ran::Yielded {
                let _ = asked.ask(n, Next::Done);
            }
        });
    }

    /// As `rearm` with a work item where the task is idle.
    #[test]
    fn serial_task_rearm_or_run_serves_each_caller() {
        callers(2, |asked, n| {
            if n == 0 {
                let _ = asked.ask(n, Next::Done);
                return;
            }
            asked.messages[n].store(1, Relaxed);
            if !asked.task.rearm() {
                let _ = asked.ask(n, Next::Done);
            }
        });
    }

    /// A value, or nothing once it was revoked.
    struct Revocable {
        users: Users,
        value: UnsafeCell<u32>,
    }

    impl Revocable {
        fn new() -> Arc<Self> {
            let this = Self {
                users: Users::new(),
                value: UnsafeCell::new(1),
            };
            for cpu in 0..4 {
                CPU.with(|here| here.set(cpu));
                assert!(!this.users.is_closed());
            }
            Arc::new(this)
        }

        /// Uses the value on a CPU.
        fn enter(&self, cpu: u32) -> Option<u32> {
            CPU.with(|here| here.set(cpu));
            let _user = self.users.try_enter()?;
            // SAFETY: loom reports the access if another one is not ordered with it.
            Some(self.value.with(|value| unsafe { *value }))
        }

        fn update(&self) -> bool {
            let Some(_exclusive) = self.users.claim() else {
                return false;
            };
            // SAFETY: as in `enter`.
            self.value.with_mut(|value| unsafe { *value = 2 });
            true
        }

        fn revoke(&self) -> bool {
            let first = self.users.revoke();
            if first {
                // SAFETY: as in `enter`.
                self.value.with_mut(|value| unsafe { *value = 0 });
            }
            first
        }
    }

    #[test]
    fn revoked_value_is_not_accessed() {
        loom::model(|| {
            let shared = Revocable::new();
            let user = shared.clone();
            let user = thread::spawn(move || user.enter(1));
            assert!(shared.revoke());
            assert!(shared.enter(0).is_none());
            let seen = user.join().expect("a thread of the model");
            assert!(seen.is_none_or(|seen| seen == 1));
            assert!(shared.users.is_left());
        });
    }

    #[test]
    fn one_of_two_calls_revokes() {
        loom::model(|| {
            let shared = Revocable::new();
            let other = shared.clone();
            let other = thread::spawn(move || other.revoke());
            let here = shared.revoke();
            assert!(here != other.join().expect("a thread of the model"));
            assert!(shared.users.is_left());
        });
    }

    #[test]
    fn reader_sees_update_whole_or_not_at_all() {
        loom::model(|| {
            let shared = Revocable::new();
            let user = shared.clone();
            let user = thread::spawn(move || user.enter(1));
            assert!(shared.update());
            assert_eq!(shared.enter(0), Some(2));
            let seen = user.join().expect("a thread of the model");
            assert!(seen.is_none_or(|seen| (1..=2).contains(&seen)));
        });
    }

    #[test]
    fn update_and_revocation_exclude_each_other() {
        loom::model(|| {
            let shared = Revocable::new();
            let other = shared.clone();
            let other = thread::spawn(move || other.update());
            assert!(shared.revoke());
            let _ = other.join().expect("a thread of the model");
            assert!(shared.users.is_left());
        });
    }

    /// That loom sees what it has to: an order that is too weak.
    #[test]
    #[should_panic]
    fn loom_finds_missing_memory_ordering() {
        loom::model(|| {
            let shared = Arc::new((Atomic::new(0), UnsafeCell::new(0)));
            assert_eq!(shared.0.load(Relaxed), 0);
            let other = shared.clone();
            let other = thread::spawn(move || {
                // SAFETY: a race, which loom has to report.
                other.1.with_mut(|value| unsafe { *value = 1 });
                other.0.store(1, Relaxed);
            });
            if shared.0.load(Acquire) == 1 {
                // SAFETY: as above.
                shared.1.with(|value| unsafe { assert_eq!(*value, 1) });
            }
            other.join().expect("a thread of the model");
        });
    }
}
