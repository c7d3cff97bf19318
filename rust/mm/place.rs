// SPDX-License-Identifier: GPL-2.0

//! The copy into memory that a program may be polling.
//!
//! A program may wait for an octet of its memory to change, and store there again at once: the next
//! message of a ping-pong, in place. So each octet has to be stored once. The kernel's `memcpy()`
//! and `memmove()` store some twice, since the words that copy an odd rest overlap, and the second
//! store would bring back what the program has just replaced; `memmove()` may also go backwards.
//!
//! This file uses nothing of the kernel: `tests/tests/place.rs` runs it step by step.
//!
//! Context: any.

use core::mem::size_of;
use core::sync::atomic::fence;
use core::sync::atomic::Ordering::Release;

/// Octets of a word, which is stored at once.
const WORD: usize = size_of::<u64>();

/// Words that are copied per turn of the loop.
const TURN: usize = 8;

/// Octets from which on string instructions are faster than words, where they are fast.
const STRINGS_MIN: usize = 1024;

/// Copies `len` octets. Another processor sees each octet of the destination change once, and the
/// last ones after all others, also after what this processor stored before.
///
/// The order is ascending, except that with `strings` a long copy leaves all but the last octets to
/// the processor's string instructions, which fix no order among them.
///
/// If the ranges overlap, the copy may have octets that it has stored itself.
///
/// # Safety
///
/// `from` must be readable and `to` writable for `len` octets. Both may change meanwhile.
#[inline]
pub(crate) unsafe fn place(from: *const u8, to: *mut u8, len: usize, strings: bool) {
    // INVARIANT: The caller guarantees it.
    let mut octets = Octets { from, to, len };
    if len >= 2 * WORD {
        // All but the last 8 to 15 octets, up to a multiple of the word.
        // NO-OVERFLOW: The end of memory is not below `to`, nor `to` above the end less a word.
        let last = to.addr().wrapping_add(len).wrapping_sub(WORD) & !(WORD - 1);
        let count = last.wrapping_sub(to.addr());
        // SAFETY: Both require that `count` is at most `len`, and `by_words` that `to` reaches a
        // multiple of the word then: `count` was chosen so, and is at least 1 since `len` is two
        // words.
        unsafe {
            if strings && len >= STRINGS_MIN {
                octets.by_strings(count);
            } else {
                octets.by_words(count);
            }
        }
    }
    octets.last();
}

/// What is left to copy.
///
/// # Invariants
///
/// `from` is readable and `to` writable for `len` octets.
struct Octets {
    from: *const u8,
    to: *mut u8,
    len: usize,
}

impl Octets {
    /// Copies the size of a `T` at once if so much is left and `to` is a multiple of it.
    #[inline(always)]
    fn one<T: Copy>(&mut self) {
        let size = size_of::<T>();
        if self.len < size || self.to.addr() % size != 0 {
            return;
        }
        // SAFETY: `copy` requires that so many octets are left, and that `to` is a multiple of the
        // size, as just checked.
        unsafe { self.copy::<T>() };
    }

    /// Copies the size of a `T` at once.
    ///
    /// # Safety
    ///
    /// So many octets must be left, and `to` must be a multiple of the size.
    #[inline(always)]
    unsafe fn copy<T: Copy>(&mut self) {
        // SAFETY: By the type invariant `from` is readable for `len` octets, which are enough.
        let value = unsafe { self.from.cast::<T>().read_unaligned() };
        // SAFETY: `write_volatile` requires a valid place that is aligned: by the type invariant
        // `to` is writable for `len` octets, and the caller guarantees that it is a multiple of the
        // size. It is one store.
        unsafe { self.to.cast::<T>().write_volatile(value) };
        // SAFETY: `skip` requires that so many octets are left, which the caller guarantees.
        unsafe { self.skip(size_of::<T>()) };
    }

    /// Goes on behind `count` octets.
    ///
    /// # Safety
    ///
    /// `count` must be at most `len`.
    #[inline(always)]
    unsafe fn skip(&mut self, count: usize) {
        // SAFETY: By the type invariant `from` has `len` octets, and the caller guarantees that
        // `count` is at most that.
        self.from = unsafe { self.from.add(count) };
        // SAFETY: As for `from`: `to` has `len` octets.
        self.to = unsafe { self.to.add(count) };
        // INVARIANT: What is behind remains. NO-OVERFLOW: The caller guarantees that.
        self.len = self.len.wrapping_sub(count);
    }

    /// Copies `count` octets word by word.
    ///
    /// # Safety
    ///
    /// `count` must be at most `len`, not 0, and end where `to` is a multiple of the word.
    #[inline]
    unsafe fn by_words(&mut self, count: usize) {
        // NO-OVERFLOW: The caller guarantees that `count` is at most `len`.
        let behind = self.len.wrapping_sub(count);
        for step in [1, 2, 4] {
            // Less than a word before the end, which is a multiple of it.
            if self.to.addr() & step != 0 {
                match step {
                    1 => self.one::<u8>(),
                    2 => self.one::<u16>(),
                    _ => self.one::<u32>(),
                }
            }
        }
        while self.len.wrapping_sub(behind) >= TURN * WORD {
            let (from, to) = (self.from.cast::<[u64; TURN]>(), self.to.cast::<u64>());
            // SAFETY: By the type invariant `from` is readable for `len` octets, which are enough.
            let words = unsafe { from.read_unaligned() };
            for (i, word) in words.into_iter().enumerate() {
                // SAFETY: By the type invariant `to` is writable for `len` octets, of which these
                // are the first; it is a multiple of the word.
                unsafe { to.add(i).write_volatile(word) };
            }
            // SAFETY: `skip` requires that so many octets are left, as just checked.
            unsafe { self.skip(TURN * WORD) };
        }
        while self.len > behind {
            // SAFETY: `copy` requires that a word is left and that `to` is a multiple of it: `to`
            // is one since the odd octets in front were copied, and so is the end, which it has not
            // reached.
            unsafe { self.copy::<u64>() };
        }
    }

    /// Copies `count` octets by the processor's string instructions, if it has any.
    ///
    /// # Safety
    ///
    /// As for [`Octets::by_words`].
    #[inline]
    unsafe fn by_strings(&mut self, count: usize) {
        #[cfg(target_arch = "x86_64")]
        {
            // ORDERING: other processors see the stores of a string instruction in any order, but
            // before later stores.
            // SAFETY: By the type invariant `from` is readable and `to` writable for `len` octets,
            // and the caller guarantees that `count` is at most that. The direction flag is clear,
            // as between any two statements.
            unsafe {
                core::arch::asm!(
                    "rep movsb",
                    inout("rcx") count => _,
                    inout("rsi") self.from => _,
                    inout("rdi") self.to => _,
                    options(nostack, preserves_flags),
                )
            };
            // SAFETY: `skip` requires at most `len`, which the caller guarantees.
            unsafe { self.skip(count) };
        }
        #[cfg(not(target_arch = "x86_64"))]
        // SAFETY: The caller guarantees what `by_words` requires.
        unsafe {
            self.by_words(count)
        };
    }

    /// Copies the rest, of less than two words. Other processors see each store after all earlier
    /// ones.
    #[inline]
    fn last(&mut self) {
        while self.len > 0 {
            let before = self.len;
            // ORDERING: pairs with whatever the program orders its accesses by, which sees the
            // octet: it sees those before as well.
            fence(Release);
            match self.to.addr() % WORD {
                0 if before >= 8 => self.one::<u64>(),
                0 | 4 if before >= 4 => self.one::<u32>(),
                0 | 2 | 4 | 6 if before >= 2 => self.one::<u16>(),
                _ => self.one::<u8>(),
            }
        }
    }
}
