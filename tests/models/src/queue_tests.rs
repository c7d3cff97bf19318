// SPDX-License-Identifier: GPL-2.0

//! The driver's side of the queues that it shares with a process, against the process's side as
//! the libraries of rdma-core have it.
//!
//! loom has no accesses of sequential consistency. Where a library makes one (libsiw's
//! `atomic_store` and `atomic_load`), the process has a release or an acquire, and a fence of
//! sequential consistency between a store and a load that follows it.

use crate::{
    abi::wr::PendingEvent,
    compat::smp_mb,
    rxe_queue::{
        Queue,
        CONSUMER_AT,
        ELEMENT_MIN,
        HEADER_LEN,
        PRODUCER_AT, //
    },
    shared_ring::words_that_order,
    siw_ring::{
        CompletionRing,
        Ring,
        CQE_LEN,
        FLAGS_AT,
        NOTIFY_NEXT,
        VALID, //
    },
    sync::atomic::{
        Atomic,
        Full,
        Relaxed,
        Release, //
    },
};
use loom::{
    sync::Arc,
    thread, //
};

/// How often each end goes on to the next element, more often than the queue has places.
const ELEMENTS: u32 = 3;

/// Runs the process's end of a queue and the driver's in threads of their own.
fn both_ends<Q: 'static>(make: fn() -> Arc<Q>, process: fn(&Q), driver: fn(&Q)) {
    loom::model(move || {
        let queue = make();
        let other = queue.clone();
        let other = thread::spawn(move || process(&other));
        driver(&queue);
        other.join().expect("a thread of the model");
    });
}

/// Lets other threads run until the condition is true.
fn wait_until(mut condition: impl FnMut() -> bool) {
    while !condition() {
        thread::yield_now();
    }
}

/// A queue of two places, one of which is always empty.
fn rxe_queue() -> Arc<Queue> {
    words_that_order(|at| at == PRODUCER_AT || at == CONSUMER_AT);
    Arc::new(Queue::new(2, ELEMENT_MIN).expect("a queue"))
}

/// Where the element at a position is.
fn element(position: u32) -> usize {
    HEADER_LEN + (position & 1) as usize * ELEMENT_MIN
}

/// The element that is the `n`th to come.
fn contents(n: u32) -> [u8; ELEMENT_MIN] {
    [n as u8 + 1; ELEMENT_MIN]
}

/// librxe posts (`queue_full`, then the element, then `advance_producer`), the driver takes.
#[test]
fn rxe_requests_are_taken_whole_and_in_order() {
    let process = |queue: &Queue| {
        let memory = &queue.memory;
        for n in 0..ELEMENTS {
            let next = (n + 1) & 1;
            wait_until(|| memory.load_u32_acquire(CONSUMER_AT) != Some(next));
            memory.copy_in(element(n), &contents(n)).expect("inside");
            memory.store_u32_release(PRODUCER_AT, next).expect("inside");
        }
    };
    both_ends(rxe_queue, process, |queue| {
        for n in 0..ELEMENTS {
            wait_until(|| queue.added(n) != 0);
            let mut seen = [0; ELEMENT_MIN];
            assert!(queue.copy_out(n, 0, &mut seen));
            queue.release(n);
            assert_eq!(seen, contents(n));
        }
    });
}

/// The driver completes, librxe polls (`queue_empty`, then the element, then `advance_consumer`).
#[test]
fn rxe_completions_are_polled_whole_and_in_order() {
    let process = |queue: &Queue| {
        let memory = &queue.memory;
        for n in 0..ELEMENTS {
            wait_until(|| memory.load_u32_acquire(PRODUCER_AT) != Some(n & 1));
            let seen: [u8; ELEMENT_MIN] = memory.copy_out(element(n)).expect("inside");
            let next = (n + 1) & 1;
            memory.store_u32_release(CONSUMER_AT, next).expect("inside");
            assert_eq!(seen, contents(n));
        }
    };
    both_ends(rxe_queue, process, |queue| {
        for n in 0..ELEMENTS {
            wait_until(|| queue.add(n, &contents(n)));
        }
    });
}

/// The length of the entries of a send queue in the model.
const ENTRY: usize = 24;
const ENTRIES: u32 = 2;

fn siw_ring() -> Arc<Ring<ENTRY>> {
    words_that_order(|at| at % ENTRY == FLAGS_AT);
    Arc::new(Ring::new(ENTRIES).expect("a ring"))
}

/// Where the entry at a position is.
fn entry(position: u32) -> usize {
    (position % ENTRIES) as usize * ENTRY
}

/// Fills an entry and gives it to the driver, as libsiw does.
fn fill(ring: &Ring<ENTRY>, n: u32) {
    let contents = [n as u8 + 1; 8];
    let memory = &ring.memory;
    memory.copy_in(entry(n), &contents).expect("inside");
    memory.copy_in(entry(n) + 16, &contents).expect("inside");
    memory
        .store_u16_release(entry(n) + FLAGS_AT, VALID)
        .expect("inside");
}

/// Takes an entry as the driver does; its two words are what the process has written.
fn take(ring: &Ring<ENTRY>, n: u32) {
    let entry = ring.entry(n);
    let (mut first, mut last) = ([0; 8], [0; 8]);
    assert!(entry.fill(0, Some(&mut first)));
    assert!(entry.fill(16, Some(&mut last)));
    ring.release_before_next(n);
    assert_eq!((first, last), ([n as u8 + 1; 8], [n as u8 + 1; 8]));
}

#[test]
fn siw_requests_are_taken_whole_and_in_order() {
    let process = |ring: &Ring<ENTRY>| {
        for n in 0..ENTRIES + 1 {
            wait_until(|| !ring.is_posted(n));
            fill(ring, n);
        }
    };
    both_ends(siw_ring, process, |ring| {
        for n in 0..ENTRIES + 1 {
            wait_until(|| ring.is_posted(n));
            take(ring, n);
        }
    });
}

/// libsiw rings no doorbell for an entry if the one before it is still the driver's.
#[test]
fn siw_entry_without_doorbell_is_taken() {
    loom::model(|| {
        let ring = siw_ring();
        fill(&ring, 0);
        let process = ring.clone();
        let process = thread::spawn(move || {
            fill(&process, 1);
            smp_mb();
            !process.is_posted(0)
        });
        let mut taken = 0;
        while taken < 2 && ring.is_posted(taken) {
            take(&ring, taken);
            taken += 1;
        }
        let doorbell = process.join().expect("a thread of the model");
        assert!(taken == 2 || doorbell);
    });
}

/// A completion queue, and what `Cq` in `src/queue/cq.rs` has beside it.
struct Completions {
    ring: CompletionRing,
    event_pending: Atomic<i32>,
}

const CONTROL_AT: usize = ENTRIES as usize * CQE_LEN;

impl Completions {
    fn new() -> Arc<Self> {
        words_that_order(|at| at % CQE_LEN == FLAGS_AT || at == CONTROL_AT);
        let this = Self {
            ring: CompletionRing::new(ENTRIES).expect("a ring"),
            event_pending: Atomic::new(0),
        };
        assert_eq!(this.event_pending.load(Relaxed), 0);
        Arc::new(this)
    }

    /// As `Cq::post`; the flags come last.
    fn post(&self, n: u32) -> bool {
        let mut contents = [n as u8 + 1; CQE_LEN];
        contents[FLAGS_AT] = 0;
        let posted = self.ring.add(n, &contents, VALID as u8);
        if posted {
            self.event_pending.store(1, Release);
        }
        posted
    }

    /// As `Cq::notify_pending`. Returns whether the process gets an event.
    fn notify(&self) -> bool {
        self.event_pending.xchg(0, Full) == 1 && self.ring.disarm_for(PendingEvent::Plain)
    }

    /// Polls as libsiw does. Returns whether there was a completion.
    fn poll(&self, n: u32) -> bool {
        let memory = &self.ring.memory;
        let at = (n % ENTRIES) as usize * CQE_LEN;
        if memory.load_u8_acquire(at + FLAGS_AT) != Some(VALID as u8) {
            return false;
        }
        let seen: [u8; 8] = memory.copy_out(at).expect("inside");
        let last: [u8; 8] = memory.copy_out(at + 24).expect("inside");
        memory.store_u8_release(at + FLAGS_AT, 0).expect("inside");
        assert_eq!((seen, last), ([n as u8 + 1; 8], [n as u8 + 1; 8]));
        true
    }

    /// Asks for an event as libsiw does.
    fn arm(&self) {
        self.ring.memory.exchange_u32(CONTROL_AT, NOTIFY_NEXT);
    }
}

#[test]
fn siw_completions_are_polled_whole_and_in_order() {
    let process = |cq: &Completions| {
        for n in 0..ENTRIES + 1 {
            wait_until(|| cq.poll(n));
        }
    };
    both_ends(Completions::new, process, |cq| {
        for n in 0..ENTRIES + 1 {
            wait_until(|| cq.post(n));
        }
    });
}

/// A process that has asked for an event, has polled once more, and has found nothing, gets one.
#[test]
fn armed_siw_cq_wakes_its_process() {
    loom::model(|| {
        let cq = Completions::new();
        let process = cq.clone();
        let process = thread::spawn(move || {
            process.arm();
            smp_mb();
            process.poll(0)
        });
        assert!(cq.post(0));
        let event = cq.notify();
        let found = process.join().expect("a thread of the model");
        assert!(found || event);
    });
}

/// The same, and two threads of the driver: the event of one's completion may be the other's task.
#[test]
fn armed_siw_cq_is_woken_by_one_of_two_completions() {
    loom::model(|| {
        let cq = Completions::new();
        let (process, other) = (cq.clone(), cq.clone());
        let process = thread::spawn(move || {
            process.arm();
            smp_mb();
            process.poll(0)
        });
        assert!(cq.post(0));
        let other = thread::spawn(move || other.notify());
        let event = cq.notify();
        let event = other.join().expect("a thread of the model") || event;
        let found = process.join().expect("a thread of the model");
        assert!(found || event);
    });
}
