// SPDX-License-Identifier: GPL-2.0

//! Places in TCP's receive queue, and the way from one to the next: through the members of the
//! queue, what hangs on them, and their fragments.

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
/// `skb` is the head of the receive queue of the view that the cursor was made for, or a member of
/// it. Unless it is the head: either `piece` is `skb` or a member of its fragment list; `part` is 0
/// for its linear part, or the number of a fragment plus 1, the last one of those that adjoin. The
/// `left` octets at `from` are the rest of that part; `from` is null if the CPU cannot read them.
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
    /// The receive queue of `inbound` must not change while the result is used.
    pub(super) unsafe fn first(inbound: &Inbound<'_>) -> Option<Self> {
        // SAFETY: `queue_of` wants a valid socket: by the invariants of `Inbound` it is.
        let skb = unsafe { queue_of(inbound.sk) };
        // INVARIANT: `skb` is the head; nothing is left of it.
        let mut cursor = Self {
            pos: 0,
            left: 0,
            from: ptr::null(),
            skb,
            piece: ptr::null_mut(),
            part: 0,
        };
        // SAFETY: `next_skb` wants a cursor into the queue of `inbound`: the head of the queue is
        // one.
        unsafe { cursor.next_skb(inbound) }.then_some(cursor)
    }

    /// The memory at the place: where, and for how many octets, which is at least 1. `None` at the
    /// end of the queue.
    ///
    /// # Safety
    ///
    /// The cursor must point into the receive queue of `inbound`, to a member of it; the queue must
    /// not have changed since the cursor was made.
    #[inline]
    pub(super) unsafe fn run(&mut self, inbound: &Inbound<'_>) -> Option<(*const u8, u32)> {
        while self.left == 0 {
            // SAFETY: `next_part` wants a cursor into the queue of `inbound`, as this function does
            // of its caller.
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
    /// `piece` must be `skb` or a member of its fragment list, valid, and have the part.
    unsafe fn enter(&mut self, piece: *mut Skb, part: u32) {
        // SAFETY: `part_of` wants a valid piece that has the part: the caller has made `piece` one.
        let (from, left) = unsafe { part_of(piece, part) };
        // INVARIANT: All of the part is left.
        (self.piece, self.part) = (piece, part);
        (self.from, self.left) = (from, left);
    }

    /// Takes the fragments that begin in memory where this one ends into the same part: they are
    /// pages in a row, which TCP names one by one.
    ///
    /// # Safety
    ///
    /// The place must be the start of a fragment of `piece`, which is valid and has `frags` of
    /// them.
    #[inline]
    unsafe fn join(&mut self, frags: u32) {
        while self.part < frags {
            let next = self.part.wrapping_add(1);
            // SAFETY: `part_of` wants a valid piece that has the part: the caller says that `piece`
            // is valid and has `frags` fragments, of which `next` is one, as just compared.
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
    /// As for [`Cursor::run`].
    unsafe fn next_part(&mut self, inbound: &Inbound<'_>) -> bool {
        // SAFETY: `skb_shinfo()` wants a valid socket buffer: by the type invariant `piece` is
        // `skb` or hangs on it, and the caller says that `skb` is a member of a queue that has not
        // changed.
        let shinfo = unsafe { riwarp_helper_skb_shinfo(self.piece) };
        // SAFETY: A valid socket buffer has its shared information; nobody adds fragments to one in
        // a queue that is locked.
        let frags = unsafe { (*shinfo).nr_frags };
        // SAFETY: A valid socket buffer has its shared information; nobody changes the list in a
        // queue that is locked.
        let frag_list = unsafe { (*shinfo).frag_list };
        if self.part < u32::from(frags) {
            // SAFETY: `enter` wants a piece of `skb` that has the part: by the type invariant this
            // is one, and it has a fragment more, as just compared.
            unsafe { self.enter(self.piece, self.part.wrapping_add(1)) };
            // SAFETY: `join` wants the place at the start of a fragment, which `enter` has just
            // made so, and the number of them.
            unsafe { self.join(frags.into()) };
            return true;
        }
        let next = if self.piece == self.skb {
            frag_list
        } else {
            // SAFETY: `next_of` wants a valid member: by the type invariant the piece is one of the
            // fragment list of `skb`.
            unsafe { next_of(self.piece) }
        };
        if next.is_null() {
            // SAFETY: `next_skb` wants a cursor into the queue of `inbound`, as this function does
            // of its caller.
            return unsafe { self.next_skb(inbound) };
        }
        // SAFETY: `enter` wants a piece of `skb` that has the part: `next` is a member of its
        // fragment list, and each piece has a linear part.
        unsafe { self.enter(next, 0) };
        true
    }

    /// Goes to the next member of the queue, and there to where the position is; `false` at the end
    /// of the queue.
    ///
    /// # Safety
    ///
    /// The cursor must point into the receive queue of `inbound`, to a member or to its head; the
    /// queue must not have changed since the cursor was made.
    unsafe fn next_skb(&mut self, inbound: &Inbound<'_>) -> bool {
        loop {
            // SAFETY: `next_of` wants a valid member of a queue, or its head: the caller says that
            // `skb` is one, or it was found below.
            let next = unsafe { next_of(self.skb) };
            // SAFETY: `queue_of` wants a valid socket: by the invariants of `Inbound` it is.
            if next == unsafe { queue_of(inbound.sk) } {
                return false;
            }
            self.skb = next;
            // SAFETY: `enter` wants a piece of `skb` that has the part: `next` is that member
            // itself, which has a linear part.
            unsafe { self.enter(next, 0) };
            // Members may overlap: TCP keeps a packet that repeats what is there already, if
            // something new follows.
            // SAFETY: `TCP_SKB_CB()` is for socket buffers in TCP's queues, of which `next` is a
            // valid one.
            let start = unsafe { riwarp_helper_tcp_skb_seq(next) };
            let mut repeated = inbound.seq.wrapping_add(self.pos).wrapping_sub(start);
            // SAFETY: `next` is a member of the queue, not its head, and so a valid socket buffer.
            if repeated >= unsafe { (*next).len } {
                continue;
            }
            // The octets of this member that lie before the position.
            while repeated > 0 {
                let n = self.left.min(repeated);
                self.pass(n);
                // NO-OVERFLOW: `n` is at most `repeated`.
                repeated = repeated.wrapping_sub(n);
                // SAFETY: `next_part` wants a cursor to a member of the queue, which `next` is.
                // More octets of this member follow, since it has more than `repeated`; so this
                // does not come back here.
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
/// `sk` must be a valid socket.
#[inline]
unsafe fn queue_of(sk: *mut Sk) -> *mut Skb {
    // SAFETY: The place of a field is inside of the allocation, since the caller has made `sk`
    // valid.
    unsafe { &raw mut (*sk).sk_receive_queue }.cast()
}

/// The member after `skb`, of a queue or fragment list.
///
/// # Safety
///
/// `skb` must be a valid member, or the head of a queue, which begins as its members do.
#[inline]
unsafe fn next_of(skb: *mut Skb) -> *mut Skb {
    // SAFETY: The caller has made `skb` a valid member or head, both of which begin with `next`;
    // all variants of the union have it there.
    unsafe { (*skb).__bindgen_anon_1.__bindgen_anon_1.next }
}

/// Where a part of a piece is, and how long.
///
/// # Safety
///
/// `piece` must be a valid socket buffer, and have the part: 0, or a fragment's number plus 1.
#[inline]
unsafe fn part_of(piece: *mut Skb, part: u32) -> (*const u8, u32) {
    let Some(frag) = part.checked_sub(1) else {
        // SAFETY: The caller has made `piece` valid.
        let data = unsafe { (*piece).data };
        // SAFETY: The caller has made `piece` valid.
        let len = unsafe { (*piece).len };
        // SAFETY: The caller has made `piece` valid.
        let data_len = unsafe { (*piece).data_len };
        // NO-OVERFLOW: `data_len` is the part of `len` that is not linear.
        return (data, len.wrapping_sub(data_len));
    };
    // SAFETY: `skb_shinfo()` wants a valid socket buffer: the caller has made `piece` one.
    let shinfo = unsafe { riwarp_helper_skb_shinfo(piece) };
    // SAFETY: The place of a field is inside of the allocation: a valid buffer has its shared
    // information.
    let frags = unsafe { &raw const (*shinfo).frags };
    // SAFETY: The fragment is inside of the array, since the caller says that `piece` has it.
    // CAST: `usize` has 64 bits.
    let frag = unsafe { frags.cast::<bindings::skb_frag_t>().add(frag as usize) };
    // SAFETY: `skb_frag_address_safe()` wants a valid fragment, of which `frag` is one, as just
    // found.
    let from = unsafe { riwarp_helper_skb_frag_address(frag) };
    // SAFETY: `frag` is a valid fragment, as just found.
    (from.cast_const().cast(), unsafe { (*frag).len })
}
