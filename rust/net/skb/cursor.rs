// SPDX-License-Identifier: GPL-2.0

//! Cursors in TCP's receive queue. They walk the members of the queue, their fragment lists, and
//! the fragments of each.
//!
//! A member of a fragment list may have a list itself: datagrams that were fragmented twice, inside
//! of a tunnel and outside, are put together so. A cursor remembers where the list of the first
//! kind goes on after one of the second. For lists of lists of lists it finds the octet from the
//! start of the socket buffer, as the kernel itself does.

use super::Inbound;
use super::Sk;
use super::Skb;
use crate::bindings;
use core::ptr;
use core::ptr::NonNull;
use kernel::ffi::c_void;

extern "C" {
    fn riwarp_helper_skb_frag_address(frag: *const bindings::skb_frag_t) -> *mut c_void;
    fn riwarp_helper_skb_shinfo(skb: *const Skb) -> *mut bindings::skb_shared_info;
    fn riwarp_helper_tcp_skb_seq(skb: *const Skb) -> u32;
}

/// A position in the receive queue, with its memory.
///
/// # Invariants
///
/// `skb` is the head of the receive queue of the view that the cursor was made for, or of the queue
/// of what it has set aside, or a member of one. Unless it is a head: `piece` is `skb` or in its
/// tree of fragment lists, `depth` lists deep; `up` is the member of the list of `skb` that has
/// `piece` in its own tree, if `depth` is 2 or more; `part` is 0 for its linear part, or the number
/// of a fragment plus 1, the last one of those that were joined. `from` and `left` are the address
/// and length of the rest of that part; `from` is null if the CPU cannot read it. In a view of
/// memory, which is one part, `skb` is null.
#[derive(Clone, Copy)]
pub(super) struct Cursor {
    /// The position, from the read position.
    pub(super) pos: u32,
    pub(super) left: u32,
    pub(super) from: *const u8,
    /// The member of the queue.
    skb: *mut Skb,
    piece: *mut Skb,
    up: *mut Skb,
    depth: u32,
    part: u32,
}

impl Cursor {
    /// Returns the cursor of position 0.
    ///
    /// # Safety
    ///
    /// The receive queue of `inbound` must not change while the result is used.
    pub(super) unsafe fn first(inbound: &Inbound<'_>) -> Option<Self> {
        if let Some(memory) = inbound.memory() {
            // INVARIANT: All of the memory is left.
            return Some(Self::of_memory(memory, inbound.available));
        }
        // SAFETY: `aside_of` and `queue_of` require a valid socket: by the invariants of `Inbound`
        // it is.
        let skb = unsafe {
            if inbound.aside == 0 {
                queue_of(inbound.sk)
            } else {
                aside_of(inbound.sk)
            }
        };
        // INVARIANT: `skb` is the head; nothing is left of it.
        let mut cursor = Self {
            pos: 0,
            left: 0,
            from: ptr::null(),
            skb,
            piece: ptr::null_mut(),
            up: ptr::null_mut(),
            depth: 0,
            part: 0,
        };
        // SAFETY: `next_skb` requires a cursor into the queue of `inbound`: the head of the queue
        // is one.
        unsafe { cursor.next_skb(inbound) }.then_some(cursor)
    }

    /// Returns the cursor of position 0 of a view of memory.
    #[cold]
    fn of_memory(memory: *const u8, len: u32) -> Self {
        Self {
            pos: 0,
            left: len,
            from: memory,
            skb: ptr::null_mut(),
            piece: ptr::null_mut(),
            up: ptr::null_mut(),
            depth: 0,
            part: 0,
        }
    }

    /// Returns the memory at the cursor: its address, and its length, at least 1. `None` at the end
    /// of the queue, or if the CPU cannot read it.
    ///
    /// # Safety
    ///
    /// The cursor must point into the receive queue of `inbound`, to a member of it; the queue must
    /// not have changed since the cursor was made.
    #[inline]
    pub(super) unsafe fn run(&mut self, inbound: &Inbound<'_>) -> Option<(*const u8, u32)> {
        while self.left == 0 {
            // SAFETY: `next_part` has the same requirements as this function.
            if !unsafe { self.next_part(inbound) } {
                return None;
            }
        }
        (!self.from.is_null()).then_some((self.from, self.left))
    }

    /// Advances inside what [`Cursor::run`] returned.
    #[inline]
    pub(super) fn skip(&mut self, n: u32) {
        self.pos = self.pos.wrapping_add(n);
        self.pass(n);
    }

    /// Skips octets of the part without changing the position.
    #[inline]
    fn pass(&mut self, n: u32) {
        // INVARIANT: `n` is at most what the part has left.
        self.left = self.left.wrapping_sub(n);
        if !self.from.is_null() {
            // CAST: `usize` has 64 bits.
            self.from = self.from.wrapping_add(n as usize);
        }
    }

    /// Moves to the start of a part.
    ///
    /// # Safety
    ///
    /// `piece` must be `skb` or in its tree of fragment lists, valid, and have the part. The caller
    /// sets `depth` and `up`.
    unsafe fn enter(&mut self, piece: *mut Skb, part: u32) {
        // SAFETY: `part_of` requires a valid piece that has the part: the caller guarantees both.
        let (from, left) = unsafe { part_of(piece, part) };
        // INVARIANT: All of the part is left.
        (self.piece, self.part) = (piece, part);
        (self.from, self.left) = (from, left);
    }

    /// Joins to this part the fragments that follow it in memory: adjacent pages that TCP lists one
    /// by one.
    ///
    /// # Safety
    ///
    /// The cursor must be at the start of a fragment of `piece`, which is valid and has `frags`
    /// fragments.
    #[inline]
    unsafe fn join(&mut self, frags: u32) {
        while self.part < frags {
            let next = self.part.wrapping_add(1);
            // SAFETY: `part_of` requires a valid piece that has the part: the caller guarantees
            // that `piece` is valid and has `frags` fragments, of which `next` is one, as just
            // checked.
            let (from, len) = unsafe { part_of(self.piece, next) };
            // CAST: `usize` has 64 bits.
            if from != self.from.wrapping_add(self.left as usize) {
                return;
            }
            // INVARIANT: `part` is the last of the joined fragments.
            self.part = next;
            // NO-OVERFLOW: The length of a whole socket buffer has 32 bits.
            self.left = self.left.wrapping_add(len);
        }
    }

    /// Moves to the start of the next part; `false` at the end of the queue.
    ///
    /// # Safety
    ///
    /// As for [`Cursor::run`].
    unsafe fn next_part(&mut self, inbound: &Inbound<'_>) -> bool {
        if self.skb.is_null() {
            return false;
        }
        // SAFETY: `skb_shinfo()` requires a valid socket buffer: by the type invariant `piece` is
        // `skb` or in its tree, and the caller guarantees that `skb` is a member of a queue that
        // has not changed.
        let shinfo = unsafe { riwarp_helper_skb_shinfo(self.piece) };
        // SAFETY: A valid socket buffer has its shared information; its fragments do not change
        // while the queue is locked.
        let frags = unsafe { (*shinfo).nr_frags };
        // SAFETY: A valid socket buffer has its shared information; the list does not change while
        // the queue is locked.
        let frag_list = unsafe { (*shinfo).frag_list };
        if self.part < u32::from(frags) {
            // SAFETY: `enter` requires a piece of `skb` that has the part: by the type invariant
            // `piece` is one, and it has one more fragment, as just checked.
            unsafe { self.enter(self.piece, self.part.wrapping_add(1)) };
            // SAFETY: `join` requires the cursor at the start of a fragment, where `enter` has put
            // it, and the number of fragments.
            unsafe { self.join(frags.into()) };
            return true;
        }
        // INVARIANT: Down into a list, along it, or up from its end.
        let next = if !frag_list.is_null() {
            self.depth = self.depth.saturating_add(1);
            if self.depth == 2 {
                self.up = self.piece;
            }
            frag_list
        } else if self.depth > 0 {
            // SAFETY: `next_of` requires a valid member: by the type invariant `piece` is in a
            // fragment list, since `depth` is not 0.
            unsafe { next_of(self.piece) }
        } else {
            ptr::null_mut()
        };
        if !next.is_null() {
            // SAFETY: `enter` requires a piece of the tree of `skb` that has the part: `next` is
            // one, and each piece has a linear part.
            unsafe { self.enter(next, 0) };
            return true;
        }
        // SAFETY: The requirements are those of this function.
        unsafe { self.ascend(inbound) }
    }

    /// Moves to the start of what follows a fragment list that ends; `false` at the end of the
    /// queue.
    ///
    /// # Safety
    ///
    /// As for [`Cursor::run`].
    #[cold]
    unsafe fn ascend(&mut self, inbound: &Inbound<'_>) -> bool {
        match self.depth {
            0 | 1 => {}
            2 => {
                // SAFETY: `next_of` requires a valid member: by the type invariant `up` is one of
                // the fragment list of `skb`.
                let next = unsafe { next_of(self.up) };
                if !next.is_null() {
                    // INVARIANT: A member of the list of `skb`.
                    self.depth = 1;
                    // SAFETY: `enter` requires a piece of the tree of `skb` that has the part:
                    // `next` is one, and each piece has a linear part.
                    unsafe { self.enter(next, 0) };
                    return true;
                }
            }
            _ => {
                // SAFETY: `skb` is a member of TCP's queue by the type invariant: the caller
                // guarantees that the queue has not changed.
                let start = unsafe { riwarp_helper_tcp_skb_seq(self.skb) };
                let offset = inbound.seq.wrapping_add(self.pos).wrapping_sub(start);
                // SAFETY: A member of the queue is a valid socket buffer.
                if offset < unsafe { (*self.skb).len } {
                    // SAFETY: `find` requires a valid member of the queue, which `skb` is.
                    return unsafe { self.find(offset) };
                }
            }
        }
        // SAFETY: `next_skb` has the same requirements as this function.
        unsafe { self.next_skb(inbound) }
    }

    /// Moves to an octet of `skb`, which counts from its start; `false` if it has not so many.
    ///
    /// # Safety
    ///
    /// `skb` must be a valid member of the queue.
    unsafe fn find(&mut self, mut offset: u32) -> bool {
        (self.piece, self.depth) = (self.skb, 0);
        loop {
            // SAFETY: `skb_shinfo()` requires a valid socket buffer: the caller guarantees that
            // `skb` is one, and so are those of its tree.
            let shinfo = unsafe { riwarp_helper_skb_shinfo(self.piece) };
            // SAFETY: A valid socket buffer has its shared information, which does not change while
            // the queue is locked.
            let (frags, list) = unsafe { ((*shinfo).nr_frags, (*shinfo).frag_list) };
            for part in 0..=u32::from(frags) {
                // SAFETY: `enter` requires a piece of the tree of `skb` that has the part: 0, or
                // one of its fragments.
                unsafe { self.enter(self.piece, part) };
                if offset < self.left {
                    self.pass(offset);
                    return true;
                }
                offset = offset.wrapping_sub(self.left);
            }
            let mut next = list;
            loop {
                if next.is_null() {
                    return false;
                }
                // SAFETY: A member of a list of the tree of `skb` is a valid socket buffer.
                let len = unsafe { (*next).len };
                if offset < len {
                    break;
                }
                offset = offset.wrapping_sub(len);
                // SAFETY: `next_of` requires a valid member: `next` is one.
                next = unsafe { next_of(next) };
            }
            self.depth = self.depth.saturating_add(1);
            if self.depth == 2 {
                self.up = self.piece;
            }
            self.piece = next;
        }
    }

    /// Moves to the position in the next member of the queue; `false` at the end of the queue.
    ///
    /// # Safety
    ///
    /// The cursor must point into the receive queue of `inbound`, to a member or to its head; the
    /// queue must not have changed since the cursor was made.
    unsafe fn next_skb(&mut self, inbound: &Inbound<'_>) -> bool {
        loop {
            // SAFETY: `next_of` requires a valid member of a queue, or its head: the caller
            // guarantees that `skb` is one, or it was found below.
            let next = unsafe { next_of(self.skb) };
            // SAFETY: `queue_of` requires a valid socket: by the invariants of `Inbound` it is.
            if next == unsafe { queue_of(inbound.sk) } {
                return false;
            }
            self.skb = next;
            // SAFETY: `aside_of` requires a valid socket: by the invariants of `Inbound` it is.
            if next == unsafe { aside_of(inbound.sk) } {
                // Behind what is set aside comes the receive queue.
                // SAFETY: `queue_of` requires a valid socket: by the invariants of `Inbound` it is.
                self.skb = unsafe { queue_of(inbound.sk) };
                continue;
            }
            // Members may overlap: TCP queues a packet that repeats octets if new ones follow.
            // SAFETY: `TCP_SKB_CB()` is for socket buffers in TCP's queues, of which `next` is a
            // valid one.
            let start = unsafe { riwarp_helper_tcp_skb_seq(next) };
            let repeated = inbound.seq.wrapping_add(self.pos).wrapping_sub(start);
            // SAFETY: `next` is a member of the queue, not its head, and so a valid socket buffer.
            if repeated >= unsafe { (*next).len } {
                continue;
            }
            if repeated > 0 {
                // SAFETY: `find` requires a valid member of the queue, which `next` is.
                return unsafe { self.find(repeated) };
            }
            self.depth = 0;
            // SAFETY: `enter` requires a piece of `skb` that has the part: `next` is that member
            // itself, which has a linear part.
            unsafe { self.enter(next, 0) };
            return true;
        }
    }
}

/// Returns the head of a receive queue, as a member of it.
///
/// # Safety
///
/// `sk` must be a valid socket.
#[inline]
unsafe fn queue_of(sk: *mut Sk) -> *mut Skb {
    // SAFETY: The field lies inside the allocation, since the caller guarantees that `sk` is valid.
    unsafe { &raw mut (*sk).sk_receive_queue }.cast()
}

/// Returns the head of the queue of what is set aside, as a member of it.
///
/// # Safety
///
/// `sk` must be a valid socket.
#[inline]
unsafe fn aside_of(sk: *mut Sk) -> *mut Skb {
    // SAFETY: The field lies inside the allocation, since the caller guarantees that `sk` is valid.
    unsafe { &raw mut (*sk).sk_error_queue }.cast()
}

/// Returns the first buffer that is set aside.
///
/// # Safety
///
/// `sk` must be a valid TCP socket that is locked.
#[inline]
pub(super) unsafe fn first_set_aside(sk: *mut Sk) -> Option<NonNull<Skb>> {
    // SAFETY: `aside_of` requires a valid socket, which the caller guarantees.
    let head = unsafe { aside_of(sk) };
    // SAFETY: `next_of` requires a member of a queue or its head, which this is.
    let first = unsafe { next_of(head) };
    NonNull::new(first).filter(|_| first != head)
}

/// Returns the member after `skb` in a queue or fragment list.
///
/// # Safety
///
/// `skb` must be a valid member, or the head of a queue, which starts with the same fields.
#[inline]
unsafe fn next_of(skb: *mut Skb) -> *mut Skb {
    // SAFETY: The caller guarantees that `skb` is a valid member or head. Both start with `next`,
    // as do all variants of the union.
    unsafe { (*skb).__bindgen_anon_1.__bindgen_anon_1.next }
}

/// Returns the address and length of a part of a piece.
///
/// # Safety
///
/// `piece` must be a valid socket buffer, and have the part: 0, or a fragment's number plus 1.
#[inline]
unsafe fn part_of(piece: *mut Skb, part: u32) -> (*const u8, u32) {
    let Some(frag) = part.checked_sub(1) else {
        // SAFETY: The caller guarantees that `piece` is valid.
        let data = unsafe { (*piece).data };
        // SAFETY: The caller guarantees that `piece` is valid.
        let len = unsafe { (*piece).len };
        // SAFETY: The caller guarantees that `piece` is valid.
        let data_len = unsafe { (*piece).data_len };
        // NO-OVERFLOW: `data_len` is the part of `len` that is not linear.
        return (data, len.wrapping_sub(data_len));
    };
    // SAFETY: `skb_shinfo()` requires a valid socket buffer: the caller guarantees that `piece` is
    // one.
    let shinfo = unsafe { riwarp_helper_skb_shinfo(piece) };
    // SAFETY: The field lies inside the allocation: a valid buffer has its shared information.
    let frags = unsafe { &raw const (*shinfo).frags };
    // SAFETY: The fragment lies inside the array, since the caller guarantees that `piece` has it.
    // CAST: `usize` has 64 bits.
    let frag = unsafe { frags.cast::<bindings::skb_frag_t>().add(frag as usize) };
    // SAFETY: `skb_frag_address_safe()` requires a valid fragment: `frag` is one, as just found.
    let from = unsafe { riwarp_helper_skb_frag_address(frag) };
    // SAFETY: `frag` is a valid fragment, as just found.
    (from.cast_const().cast(), unsafe { (*frag).len })
}
