// SPDX-License-Identifier: GPL-2.0

//! Places in TCP's receive queue, and the way from one to the next: through the members of the queue, what
//! hangs on them, and their fragments.

use super::Inbound;
use super::Sk;
use super::Skb;
use crate::bindings;
use core::ptr;
use kernel::ffi::c_void;

extern "C" {
    fn riwarp_helper_skb_frag_address(frag: *const bindings::skb_frag_t) -> *mut c_void;
    fn riwarp_helper_skb_shinfo(skb: *const Skb) -> *mut bindings::skb_shared_info;
    fn riwarp_helper_tcp_skb_seq(skb: *const Skb) -> u32;
}

/// A place in the receive queue.
///
/// # Invariants
///
/// Either `piece` is `skb` or a member of its fragment list; `part` is 0 for its linear part, or
/// the number of a fragment plus 1, the last one of those that adjoin. The `left` octets at `from` are the rest of
/// that part; `from` is null if the CPU cannot read them.
#[derive(Clone, Copy)]
pub(super) struct Cursor {
    /// The position, from the read position.
    pub(super) pos: u32,
    pub(super) left: u32,
    pub(super) from: *const u8,
    /// The member of the queue.
    skb: *mut Skb,
    piece: *mut Skb,
    part: u32,
}

impl Cursor {
    /// The place of position 0.
    ///
    /// # Safety
    ///
    /// The receive queue must not change while the result is used.
    pub(super) unsafe fn first(inbound: &Inbound<'_>) -> Option<Self> {
        // SAFETY: By the invariants of `Inbound`, the socket is valid.
        let skb = unsafe { queue_of(inbound.sk) };
        let mut cursor = Self {
            pos: 0,
            left: 0,
            from: ptr::null(),
            skb,
            piece: ptr::null_mut(),
            part: 0,
        };
        // SAFETY: The head of the queue stands for a member with nothing in it.
        unsafe { cursor.next_skb(inbound) }.then_some(cursor)
    }

    /// The memory at the place: where, and for how many octets, which is at least 1. `None` at the
    /// end of the queue.
    ///
    /// # Safety
    ///
    /// The cursor must point into the receive queue of `inbound`.
    #[inline]
    pub(super) unsafe fn run(&mut self, inbound: &Inbound<'_>) -> Option<(*const u8, u32)> {
        while self.left == 0 {
            // SAFETY: By the contract of this function.
            if !unsafe { self.next_part(inbound) } {
                return None;
            }
        }
        (!self.from.is_null()).then_some((self.from, self.left))
    }

    /// Moves on inside of what [`Cursor::run`] gave.
    #[inline]
    pub(super) fn skip(&mut self, n: u32) {
        self.pos = self.pos.wrapping_add(n);
        self.pass(n);
    }

    /// Leaves octets of the part behind, which count for no position.
    #[inline]
    fn pass(&mut self, n: u32) {
        // INVARIANT: `n` is at most what the part has left.
        self.left = self.left.wrapping_sub(n);
        if !self.from.is_null() {
            // CAST: `usize` has 64 bits.
            self.from = self.from.wrapping_add(n as usize);
        }
    }

    /// Goes to the start of a part.
    ///
    /// # Safety
    ///
    /// `piece` must be `skb` or a member of its fragment list, and have the part.
    unsafe fn enter(&mut self, piece: *mut Skb, part: u32) {
        // SAFETY: By the contract of this function.
        let (from, left) = unsafe { part_of(piece, part) };
        // INVARIANT: All of the part is left.
        (self.piece, self.part) = (piece, part);
        (self.from, self.left) = (from, left);
    }

    /// Takes the fragments that begin in memory where this one ends into the same part: they are pages in a row,
    /// which TCP names one by one.
    ///
    /// # Safety
    ///
    /// The place must be the start of a fragment of `piece`, which has `frags` of them.
    #[inline]
    unsafe fn join(&mut self, frags: u32) {
        while self.part < frags {
            let next = self.part.wrapping_add(1);
            // SAFETY: By the contract of this function, and just compared.
            let (from, len) = unsafe { part_of(self.piece, next) };
            // CAST: `usize` has 64 bits.
            if from != self.from.wrapping_add(self.left as usize) {
                return;
            }
            // INVARIANT: It is the last fragment of those that are left.
            self.part = next;
            // NO-OVERFLOW: All of a socket buffer together has a length of 32 bits.
            self.left = self.left.wrapping_add(len);
        }
    }

    /// Goes to the start of the next part; `false` at the end of the queue.
    ///
    /// # Safety
    ///
    /// The cursor must point into the receive queue of `inbound`.
    unsafe fn next_part(&mut self, inbound: &Inbound<'_>) -> bool {
        // SAFETY: By the type invariant the piece is valid.
        let shinfo = unsafe { riwarp_helper_skb_shinfo(self.piece) };
        // SAFETY: A valid piece has its shared information.
        let (frags, frag_list) = unsafe { ((*shinfo).nr_frags, (*shinfo).frag_list) };
        if self.part < u32::from(frags) {
            // SAFETY: There is one more fragment.
            unsafe { self.enter(self.piece, self.part.wrapping_add(1)) };
            // SAFETY: `piece` has so many.
            unsafe { self.join(frags.into()) };
            return true;
        }
        let next = if self.piece == self.skb {
            frag_list
        } else {
            // SAFETY: By the type invariant the piece is a valid member of a fragment list.
            unsafe { next_of(self.piece) }
        };
        if next.is_null() {
            // SAFETY: By the contract of this function.
            return unsafe { self.next_skb(inbound) };
        }
        // SAFETY: `next` is a member of the fragment list of `skb`.
        unsafe { self.enter(next, 0) };
        true
    }

    /// Goes to the next member of the queue, and there to where the position is; `false` at the end
    /// of the queue.
    ///
    /// # Safety
    ///
    /// The cursor must point into the receive queue of `inbound`.
    unsafe fn next_skb(&mut self, inbound: &Inbound<'_>) -> bool {
        loop {
            // SAFETY: By the contract of this function, `skb` is a member of the queue, or its
            // head.
            let next = unsafe { next_of(self.skb) };
            // SAFETY: By the invariants of `Inbound`, the socket is valid.
            if next == unsafe { queue_of(inbound.sk) } {
                return false;
            }
            self.skb = next;
            // SAFETY: `next` is a member of the queue.
            unsafe { self.enter(next, 0) };
            // Members may overlap: TCP keeps a packet that repeats what is there already, if
            // something new follows.
            // SAFETY: `next` is valid, and in TCP's queue.
            let start = unsafe { riwarp_helper_tcp_skb_seq(next) };
            let mut repeated = inbound.seq.wrapping_add(self.pos).wrapping_sub(start);
            // SAFETY: `next` is valid.
            if repeated >= unsafe { (*next).len } {
                continue;
            }
            // The octets of this member that lie before the position.
            while repeated > 0 {
                let n = self.left.min(repeated);
                self.pass(n);
                // NO-OVERFLOW: `n` is at most `repeated`.
                repeated = repeated.wrapping_sub(n);
                // SAFETY: By the contract of this function. More octets of this member follow,
                // since it has more than `repeated`; so this does not come back here.
                if repeated > 0 && !unsafe { self.next_part(inbound) } {
                    return false;
                }
            }
            return true;
        }
    }
}

/// The head of a receive queue, as a member of it.
///
/// # Safety
///
/// `sk` must be valid.
#[inline]
unsafe fn queue_of(sk: *mut Sk) -> *mut Skb {
    // SAFETY: By the contract of this function.
    unsafe { &raw mut (*sk).sk_receive_queue }.cast()
}

/// The member after `skb`, of a queue or fragment list.
///
/// # Safety
///
/// `skb` must be a valid member, or the head of a queue, which begins as its members do.
#[inline]
unsafe fn next_of(skb: *mut Skb) -> *mut Skb {
    // SAFETY: By the contract of this function.
    unsafe { (*skb).__bindgen_anon_1.__bindgen_anon_1.next }
}

/// Where a part of a piece is, and how long.
///
/// # Safety
///
/// `piece` must be valid, and have the part.
#[inline]
unsafe fn part_of(piece: *mut Skb, part: u32) -> (*const u8, u32) {
    let Some(frag) = part.checked_sub(1) else {
        // SAFETY: By the contract of this function.
        let skb = unsafe { &*piece };
        // NO-OVERFLOW: `data_len` is the part of `len` that is not linear.
        return (skb.data, skb.len.wrapping_sub(skb.data_len));
    };
    // SAFETY: By the contract of this function.
    let shinfo = unsafe { riwarp_helper_skb_shinfo(piece) };
    // SAFETY: A valid piece has its shared information, with as many fragments as the contract
    // says.
    // CAST: `usize` has 64 bits.
    let frag = unsafe {
        (&raw const (*shinfo).frags)
            .cast::<bindings::skb_frag_t>()
            .add(frag as usize)
    };
    // SAFETY: As above.
    let from = unsafe { riwarp_helper_skb_frag_address(frag) };
    // SAFETY: As above.
    (from.cast_const().cast(), unsafe { (*frag).len })
}
