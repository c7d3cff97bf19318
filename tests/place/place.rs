// SPDX-License-Identifier: GPL-2.0

//! The copy into memory that a program may be polling (`rust/mm/place.rs`): each octet is stored
//! once, in ascending order.
//!
//! The processor traps after each instruction of the copy. The trap plays the program: it replaces
//! every octet that it finds changed, so that a second store would be seen as another change.

#![cfg(test)]

#[path = "../../rust/mm/place.rs"]
mod copy;

use copy::place;
use std::{
    sync::atomic::{
        AtomicBool,
        Ordering::{
            Acquire,
            Release, //
        },
    },
    thread, //
};

/// Room for the longest copy, at any offset of a word.
const ROOM: usize = 4096 + 64;

/// What is in the memory before the copy, and what the program stores; the source has other octets.
const OLD: u8 = 0;

/// Octets that tell their neighbours apart, none of them [`OLD`].
fn source() -> Vec<u8> {
    // CAST: Less than 251.
    (0..ROOM).map(|i| (i % 251) as u8 + 1).collect()
}

#[cfg(target_arch = "x86_64")]
mod steps {
    use super::*;
    use std::{
        arch::asm,
        ptr::{
            addr_of_mut,
            null, //
        }, //
    };

    const SIGTRAP: i32 = 5;

    extern "C" {
        fn signal(signal: i32, handler: extern "C" fn(i32)) -> usize;
    }

    /// What the trap knows; only one test uses it.
    struct Watch {
        memory: [u8; ROOM],
        source: *const u8,
        /// First octet of the copy.
        start: usize,
        /// Octets of the copy.
        len: usize,
        /// Octets stored so far.
        stored: usize,
        /// An octet was stored twice, or before one in front of it.
        bad: bool,
    }

    static mut WATCH: Watch = Watch {
        memory: [OLD; ROOM],
        source: null(),
        start: 0,
        len: 0,
        stored: 0,
        bad: false,
    };

    extern "C" fn look(_signal: i32) {
        let watch = addr_of_mut!(WATCH);
        // SAFETY: Only the thread that copies takes the trap, in the middle of the copy, which
        // accesses the memory by raw pointers.
        unsafe {
            let memory = addr_of_mut!((*watch).memory).cast::<u8>();
            for i in 0..(*watch).len {
                let octet = memory.add((*watch).start + i);
                if octet.read_volatile() == OLD {
                    continue;
                }
                (*watch).bad |= i != (*watch).stored || octet.read() != *(*watch).source.add(i);
                (*watch).stored += 1;
                octet.write_volatile(OLD);
            }
        }
    }

    /// Copies `len` octets step by step; returns whether each was stored once and in order.
    fn is_right(
        copy: unsafe fn(*const u8, *mut u8, usize),
        from: &[u8],
        start: usize,
        len: usize,
    ) -> bool {
        let watch = addr_of_mut!(WATCH);
        // SAFETY: Nobody else uses it; the trap is taken by this thread, between the two changes of
        // the flag.
        unsafe {
            (*watch).source = from.as_ptr();
            ((*watch).start, (*watch).len) = (start, len);
            ((*watch).stored, (*watch).bad) = (0, false);
            let to = addr_of_mut!((*watch).memory).cast::<u8>().add(start);
            asm!("pushfq", "or dword ptr [rsp], 0x100", "popfq");
            copy(from.as_ptr(), to, len);
            asm!("pushfq", "and dword ptr [rsp], ~0x100", "popfq");
            look(SIGTRAP);
            !(*watch).bad && (*watch).stored == len
        }
    }

    unsafe fn by_words(from: *const u8, to: *mut u8, len: usize) {
        // SAFETY: As for `place`.
        unsafe { place(from, to, len, false) };
    }

    unsafe fn by_strings(from: *const u8, to: *mut u8, len: usize) {
        // SAFETY: As for `place`.
        unsafe { place(from, to, len, true) };
    }

    /// What the kernel's `memmove()` does to 16 octets.
    unsafe fn twice(from: *const u8, to: *mut u8, len: usize) {
        // SAFETY: As for `place`.
        unsafe {
            let words = [
                from.cast::<u64>().read_unaligned(),
                from.add(len - 8).cast::<u64>().read_unaligned(),
            ];
            for (at, word) in [
                (0, words[0]),
                (len - 8, words[1]),
                (0, words[0]),
                (len - 8, words[1]),
            ] {
                to.add(at).cast::<u64>().write_volatile(word);
            }
        }
    }

    unsafe fn backwards(from: *const u8, to: *mut u8, len: usize) {
        for i in (0..len).rev() {
            // SAFETY: As for `place`.
            unsafe { to.add(i).write_volatile(*from.add(i)) };
        }
    }

    pub(super) fn each_copy_is_right() {
        let source = source();
        // SAFETY: The handler accesses nothing but what is its own.
        unsafe { signal(SIGTRAP, look) };
        // What the test must see.
        assert!(!is_right(twice, &source, 0, 16));
        assert!(!is_right(backwards, &source, 0, 16));
        for start in 0..8 {
            for len in (0..=33).chain([64, 100]) {
                let from = &source[start % 3..];
                assert!(is_right(by_words, from, start, len), "{len} at {start}");
            }
        }
        for (start, len) in [(0, 1024), (5, 1428)] {
            assert!(is_right(by_words, &source, start, len), "{len} at {start}");
            assert!(
                is_right(by_strings, &source, start, len),
                "{len} at {start}, by strings"
            );
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn each_octet_is_stored_once_and_in_order() {
    steps::each_copy_is_right();
}

/// Without traps, which make string instructions go octet by octet.
#[test]
fn octets_stored_by_other_thread_stay() {
    let source = source();
    for (round, len) in [16, 620, 1428, 4096]
        .into_iter()
        .cycle()
        .take(40)
        .enumerate()
    {
        let mut memory = vec![OLD; ROOM];
        let start = round % 8;
        let (to, ready) = (memory.as_mut_ptr() as usize + start, AtomicBool::new(false));
        thread::scope(|scope| {
            let program = scope.spawn(|| {
                ready.store(true, Release);
                let mut left: Vec<usize> = (to..to + len).collect();
                while !left.is_empty() {
                    left.retain(|octet| {
                        let octet = *octet as *mut u8;
                        // SAFETY: Octets of the memory, which the other thread writes by volatile
                        // accesses or instructions of its own.
                        let new = unsafe { octet.read_volatile() } != OLD;
                        if new {
                            // SAFETY: Likewise.
                            unsafe { octet.write_volatile(OLD) };
                        }
                        !new
                    });
                }
            });
            while !ready.load(Acquire) {
                thread::yield_now();
            }
            // SAFETY: `source` and `memory` have so many octets.
            unsafe { place(source.as_ptr(), to as *mut u8, len, round % 2 == 1) };
            program.join().unwrap();
        });
        assert!(memory.iter().all(|octet| *octet == OLD), "{len} at {start}");
    }
}
