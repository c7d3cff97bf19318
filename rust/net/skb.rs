// SPDX-License-Identifier: GPL-2.0

//! The receive queue of a socket: octets that arrived in order and were not consumed, read in
//! place.
//!
//! [`Inbound`] is a view of a locked socket. It copies and sums octets at any position after the
//! read position, and moves the read position. Octets that are not consumed stay in TCP: an
//! incomplete message waits there, and the receive window closes.
//!
//! TCP's receive queue is a list of socket buffers, each of which is a list of pieces (itself, and
//! those of its fragment list, each of which may have a list of its own), each of which is a linear
//! part and some fragments of pages. A
//! [`Cursor`] locates a position in this structure. The view caches two cursors: a message is read
//! in steps that go forwards, and back to its start ([`Inbound::mark`]).
//!
//! TCP that is out of memory drops each packet but one for which its queue is empty. A message of
//! which the first part is in the queue would never be complete then. So that part is set aside
//! ([`Inbound::set_aside_if_refused`]): its buffers move, charged to the socket as before, to the
//! queue of errors, which a socket without a file, time stamps and `MSG_ZEROCOPY` does not use, and
//! which TCP empties when the socket ends. The view has them in front of TCP's queue.
//!
//! The memory may change meanwhile: a packet from the local host may consist of pages that an
//! application has mapped. So the octets are only copied or summed through raw pointers.
//!
//! C headers: `include/linux/skbuff.h`, `include/net/tcp.h`.

use super::batch::TxBatch;
use super::socket::send_locked;
use super::socket::SendHint;
use super::state::state_of;
use super::state::TcpState;
use crate::bindings;
use crate::crc32c;
use core::marker::PhantomData;
use core::ptr;
use core::ptr::NonNull;
use kernel::ffi::c_int;
use kernel::prelude::*;
use kernel::types::NotThreadSafe;

mod cursor;
#[cfg(CONFIG_KUNIT = "y")]
mod tests;

use cursor::first_set_aside;
use cursor::Cursor;

type Sk = bindings::sock;
type Skb = bindings::sk_buff;

extern "C" {
    fn riwarp_helper_sk_free_set_aside(sk: *mut Sk);
    fn riwarp_helper_sk_owned_by_user(sk: *const Sk) -> bool;
    fn riwarp_helper_sk_set_aside(sk: *mut Sk);
    fn riwarp_helper_tcp_is_refusing(sk: *const Sk) -> bool;
    fn riwarp_helper_tcp_skb_ack_seq(skb: *const Skb) -> u32;
    fn riwarp_helper_tcp_skb_set_ack_seq(skb: *mut Skb, seq: u32);
    fn riwarp_helper_tcp_inq(sk: *mut Sk) -> c_int;
}

/// How the socket is locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SockLock {
    /// A thread owns it and is processing the backlog, maybe in the middle of sending.
    Backlog,
    /// It may be unlocked: it listens, or has listened. The receive queue is not accessed.
    Unlocked,
    /// It need not be: the view is of memory ([`Inbound::of_memory`]).
    Memory,
    /// The caller owns it.
    Owner,
    /// A softirq, or a thread with bottom halves off, holds its spin lock, and it has no owner.
    Softirq,
}

/// How a stream has ended for its receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// By a FIN that may be anybody's: octets may be missing.
    Cut,
    /// As the peer wants it.
    Whole,
}

/// More octets than an FPDU has: so many are not set aside.
const ASIDE_MAX: u32 = 1 << 17;

/// In-order octets in TCP's receive queue.
///
/// Positions count from the read position, which [`Inbound::consume`] moves. Context: that of the
/// callback or of [`super::Socket::with_inbound`].
///
/// # Invariants
///
/// `sk` is a valid TCP socket, locked as `locked` says while this value lives. `available` octets
/// from `seq` on are in its receive queue, the first `aside` of them in its queue of errors, which
/// only this value changes; none if `locked` is `Unlocked`. `front` and `mark` point to members of
/// these queues. If `locked` is `Memory`, the octets are at `memory`, and stay there; there are no
/// queues.
pub struct Inbound<'a> {
    sk: *mut Sk,
    locked: SockLock,
    /// TCP's sequence number of the octet at position 0.
    seq: u32,
    available: u32,
    /// How many octets of these are set aside.
    aside: u32,
    /// Where position 0 is, in a view of memory; else null.
    memory: *const u8,
    /// How the stream has ended, in a view of memory.
    ended: Option<End>,
    /// Where the farthest access ended.
    front: Option<Cursor>,
    /// Where octets are read more than once.
    mark: Option<Cursor>,
    _socket: PhantomData<&'a mut Sk>,
    _not_send: NotThreadSafe,
}

impl SockLock {
    /// Returns how TCP has locked a socket whose `sk_data_ready` it calls.
    ///
    /// # Safety
    ///
    /// `sk` must be a valid TCP socket that is locked, by an owner or by its spin lock, and stays
    /// locked while the result is used.
    #[inline]
    pub(super) unsafe fn in_callback(sk: *mut Sk) -> Self {
        // SAFETY: `sock_owned_by_user_nocheck()` reads a field of a valid socket, which the caller
        // guarantees. The field changes only under the spin lock. The caller guarantees that the
        // socket is locked: without an owner by the spin lock, so that the field cannot change;
        // else by the owner, which is processing the backlog.
        if unsafe { riwarp_helper_sk_owned_by_user(sk) } {
            Self::Backlog
        } else {
            Self::Softirq
        }
    }
}

impl<'a> Inbound<'a> {
    /// Makes the view of the socket's owner.
    ///
    /// # Safety
    ///
    /// `sk` must be a valid TCP socket that the caller owns while the result lives.
    pub(super) unsafe fn of_owner(sk: *mut Sk) -> Self {
        // SAFETY: `state_of` requires a valid socket, which the caller guarantees.
        let locked = if unsafe { state_of(sk) } == TcpState::Listen {
            SockLock::Unlocked
        } else {
            SockLock::Owner
        };
        // SAFETY: `new` requires a valid TCP socket that is locked as `locked` says while the
        // result lives: the caller owns it.
        unsafe { Self::new(sk, locked) }
    }

    /// # Safety
    ///
    /// `sk` must be a valid TCP socket as long as the result lives, and locked as `locked` says.
    #[inline]
    pub(super) unsafe fn new(sk: *mut Sk, locked: SockLock) -> Self {
        let mut this = Self {
            sk,
            locked,
            seq: 0,
            available: 0,
            aside: 0,
            memory: ptr::null(),
            ended: None,
            front: None,
            mark: None,
            _socket: PhantomData,
            _not_send: NotThreadSafe,
        };
        if locked != SockLock::Unlocked {
            // SAFETY: The caller guarantees that `sk` is a valid TCP socket, whose `struct sock` is
            // the head of a `struct tcp_sock`; the lock keeps the value from changing.
            this.seq = unsafe { (*sk.cast::<bindings::tcp_sock>()).copied_seq };
            // SAFETY: `tcp_inq()` requires a valid TCP socket that is locked, which the caller
            // guarantees.
            let available = unsafe { riwarp_helper_tcp_inq(sk) };
            // INVARIANT: TCP counts the octets in the queue, without the FIN.
            this.available = u32::try_from(available).unwrap_or(0);
            // SAFETY: `first_set_aside` requires a valid socket that is locked, which the caller
            // guarantees.
            if let Some(first) = unsafe { first_set_aside(sk) } {
                // SAFETY: `count_aside` requires the first buffer that is set aside.
                unsafe { this.count_aside(first) };
            }
        }
        this
    }

    /// Makes a view of octets that were read from a socket above TCP, which has ended or not.
    ///
    /// # Safety
    ///
    /// `sk` must be a valid TCP socket, and `octets` stay as they are, as long as the result lives.
    pub(super) unsafe fn of_memory(sk: *mut Sk, octets: &[u8], ended: Option<End>) -> Self {
        // SAFETY: `new` requires a valid TCP socket, which the caller guarantees; `Unlocked` says
        // that it is not locked.
        let nothing = unsafe { Self::new(sk, SockLock::Unlocked) };
        // INVARIANT: The caller guarantees that the octets stay.
        Self {
            locked: SockLock::Memory,
            available: u32::try_from(octets.len()).unwrap_or(0),
            memory: octets.as_ptr(),
            ended,
            ..nothing
        }
    }

    /// Returns the view's memory, if it is one of memory.
    #[inline]
    fn memory(&self) -> Option<*const u8> {
        (!self.memory.is_null()).then_some(self.memory)
    }

    /// Counts what was set aside.
    ///
    /// # Safety
    ///
    /// `first` must be the first buffer in the queue of errors of the locked socket.
    #[cold]
    unsafe fn count_aside(&mut self, first: NonNull<Skb>) {
        // SAFETY: `TCP_SKB_CB()` is for socket buffers of TCP, of which the caller guarantees that
        // `first` is one: `set_aside` alone queues there.
        let seq = unsafe { riwarp_helper_tcp_skb_ack_seq(first.as_ptr()) };
        // INVARIANT: `set_aside` has noted the number of the first octet, and left no octet between
        // the last one and TCP's read position.
        self.aside = self.seq.wrapping_sub(seq);
        self.seq = seq;
        self.available = self.available.wrapping_add(self.aside);
    }

    /// Sets all octets aside, at most those of one message, if TCP is about to drop a packet that
    /// follows them because it has no memory. TCP takes the packet then, whatever the limits, since
    /// its queue is empty. Without effect where TCP has memory, and where the buffers exceed the
    /// limit of the socket, as short packets do. Call it from `data_ready` with the first part of a
    /// message.
    pub fn set_aside_if_refused(&mut self) {
        let queued = !matches!(self.locked, SockLock::Unlocked | SockLock::Memory);
        let there = queued && (1..ASIDE_MAX).contains(&self.available);
        // SAFETY: The helper requires a valid TCP socket that is locked: by the type invariant it
        // is.
        if there && unsafe { riwarp_helper_tcp_is_refusing(self.sk) } {
            self.set_aside();
        }
    }

    /// Sets all octets aside.
    #[cold]
    fn set_aside(&mut self) {
        // The cursors point to members of the queue that changes.
        (self.front, self.mark) = (None, None);
        let tp = self.sk.cast::<bindings::tcp_sock>();
        // SAFETY: The place of a field is inside of the allocation: by the type invariant the
        // socket is valid, and a `struct sock` of TCP is the head of a `struct tcp_sock`.
        let copied_seq = unsafe { &raw mut (*tp).copied_seq };
        // SAFETY: A field of a valid socket, which the lock keeps from changing.
        let end = unsafe { (*tp).rcv_nxt };
        // Not with a FIN, behind which nothing follows, or with urgent octets.
        if end != self.seq.wrapping_add(self.available) {
            return;
        }
        // SAFETY: The helper requires a valid socket that is locked: by the type invariant it is.
        // It takes the lock of neither queue: the socket's lock protects that of TCP, and only this
        // value uses the other one.
        unsafe { riwarp_helper_sk_set_aside(self.sk) };
        // SAFETY: `first_set_aside` requires a valid socket that is locked: by the type invariant
        // it is.
        if let Some(first) = unsafe { first_set_aside(self.sk) } {
            // SAFETY: `TCP_SKB_CB()` is for socket buffers of TCP, of which `first` is one.
            unsafe { riwarp_helper_tcp_skb_set_ack_seq(first.as_ptr(), self.seq) };
        }
        // INVARIANT: All octets up to `end` were in the queue.
        self.aside = self.available;
        // SAFETY: A field of a valid socket that is locked; readers without the lock see the old or
        // the new value.
        unsafe { copied_seq.write_volatile(end) };
    }

    /// Returns how many octets are in the queue. More may arrive after the present callback.
    #[inline]
    pub fn available(&self) -> usize {
        // CAST: `usize` has 64 bits.
        self.available as usize
    }

    /// Returns whether no octets can follow those in the queue: the peer ended the stream, or the
    /// connection broke.
    pub fn eof(&self) -> bool {
        match self.locked {
            SockLock::Unlocked => return false,
            SockLock::Memory => return self.ended.is_some(),
            SockLock::Backlog | SockLock::Owner | SockLock::Softirq => {}
        }
        // SAFETY: The place of a field is inside of the allocation: by the type invariant the
        // socket is valid.
        let shutdown = unsafe { &raw const (*self.sk).sk_shutdown };
        // SAFETY: The field of a valid socket, which is read once.
        let shutdown = unsafe { shutdown.read_volatile() };
        u32::from(shutdown) & bindings::RCV_SHUTDOWN != 0
    }

    /// Returns whether the end of the stream may be another's than the peer's: with TLS, a FIN
    /// without a closure alert.
    pub fn is_cut(&self) -> bool {
        self.ended == Some(End::Cut)
    }

    /// Returns whether the view is that of a softirq, or of a thread that may not sleep either
    /// ([`super::Socket::with_unowned_inbound`]).
    pub fn in_softirq(&self) -> bool {
        self.locked == SockLock::Softirq
    }

    /// Copies the octets at `pos` to `octets`, as far as they are available; returns how many.
    /// `pos` is a marked position ([`Inbound::mark`]).
    #[inline]
    pub fn front<const N: usize>(&mut self, pos: usize, octets: &mut [u8; N]) -> usize {
        let Some(from) = self.in_one(pos, N) else {
            return self.front_in_pieces(pos, octets);
        };
        // In pieces that the compiler copies inline.
        for (i, piece) in octets.chunks_mut(64).enumerate() {
            let from = from.wrapping_add(i.wrapping_mul(64));
            // SAFETY: `copy_nonoverlapping` requires `piece.len()` octets readable and writable:
            // `in_one` returned `N` readable ones, the length of `octets`, of which this is a part;
            // `octets` is borrowed exclusively and so does not overlap a receive queue.
            unsafe { ptr::copy_nonoverlapping(from, piece.as_mut_ptr(), piece.len()) };
        }
        N
    }

    /// Does [`Inbound::front`] for octets in several pieces.
    fn front_in_pieces(&mut self, pos: usize, octets: &mut [u8]) -> usize {
        let len = self.available().saturating_sub(pos).min(octets.len());
        let there = octets.get_mut(..len).map(|octets| self.peek(pos, octets));
        usize::from(there == Some(true)).wrapping_mul(len)
    }

    /// Returns the address of the `len` octets at `pos`, if they lie in the piece of the marked
    /// position, at or after it.
    ///
    /// The pointer is readable for that length until octets are consumed.
    #[inline]
    pub(crate) fn in_one(&self, pos: usize, len: usize) -> Option<*const u8> {
        let mark = self.mark.as_ref()?;
        // CAST: `usize` has 64 bits.
        let skip = pos.checked_sub(mark.pos as usize)?;
        let end = pos.checked_add(len)?;
        let inside = len <= (mark.left as usize).checked_sub(skip)?;
        (inside && end <= self.available() && !mark.from.is_null())
            .then(|| mark.from.wrapping_add(skip))
    }

    /// Copies octets out; `false` if they are not all available.
    pub fn peek(&mut self, pos: usize, buf: &mut [u8]) -> bool {
        let len = buf.len();
        let mut to = buf.as_mut_ptr();
        self.for_each_chunk(pos, len, |from, n| {
            // SAFETY: `copy_nonoverlapping` requires `n` octets readable and writable:
            // `for_each_chunk` gives `from` readable for `n`; its pieces add up to the length of
            // `buf`, and `to` is the start of the unwritten rest; `buf` is borrowed exclusively and
            // so does not overlap a receive queue.
            unsafe { ptr::copy_nonoverlapping(from, to, n) };
            // SAFETY: `to` stays inside `buf`, or at its end: at least `n` octets remained.
            to = unsafe { to.add(n) };
        })
    }

    /// Continues a CRC32c over available octets. If they are not all available, the result is
    /// deliberately wrong.
    pub fn crc32c(&mut self, pos: usize, len: usize, seed: u32) -> u32 {
        let mut crc = seed;
        let all = self.for_each_chunk(pos, len, |from, n| {
            // SAFETY: `update_raw` requires `n` octets readable: `for_each_chunk` guarantees this
            // of `from`.
            crc = unsafe { crc32c::update_raw(crc, from, n) };
        });
        if all {
            crc
        } else {
            !crc
        }
    }

    /// Calls `f` for each piece of memory of the `len` octets at `pos`, in order; `false` if they
    /// are not all available, and then `f` may have been called for some.
    ///
    /// During the call the pointer is readable for the length passed with it; the memory may
    /// change.
    pub(crate) fn for_each_chunk(
        &mut self,
        pos: usize,
        len: usize,
        mut f: impl FnMut(*const u8, usize),
    ) -> bool {
        if len == 0 {
            return pos <= self.available();
        }
        if let Some(from) = self.in_one(pos, len) {
            f(from, len);
            return true;
        }
        match self.reader(pos, len) {
            Some(mut reader) => reader.each(len, f),
            None => false,
        }
    }

    /// Returns a reader of the `len` octets at `pos`; [`None`] if they are not all available.
    #[inline]
    pub(crate) fn reader(&mut self, pos: usize, len: usize) -> Option<Reader<'_, 'a>> {
        pos.checked_add(len)
            .filter(|end| *end <= self.available())?;
        // CAST: At most `available`, which has 32 bits.
        let cursor = self.seek(pos as u32)?;
        Some(Reader {
            inbound: self,
            cursor,
        })
    }

    /// Caches a position as the start of a message, which is read in several steps; what is before
    /// it is not read again. An optimisation only.
    #[inline]
    pub fn mark(&mut self, pos: usize) {
        // CAST: `usize` has 64 bits; the second is at most `left`.
        match &mut self.mark {
            // Still in the same piece.
            Some(mark) if pos.wrapping_sub(mark.pos as usize) < mark.left as usize => {
                mark.skip(pos.wrapping_sub(mark.pos as usize) as u32);
            }
            _ => self.mark_far(pos),
        }
    }

    /// Does [`Inbound::mark`] for a position outside the marked piece.
    fn mark_far(&mut self, pos: usize) {
        let cursor = if pos == 0 {
            // SAFETY: `first` requires a queue that does not change while the cursor is used: by
            // the type invariant it does not while `self` lives, and moving the read position
            // discards the cursors.
            unsafe { Cursor::first(self) }
        } else {
            u32::try_from(pos).ok().and_then(|pos| self.seek(pos))
        };
        let Some(mut cursor) = cursor else {
            return;
        };
        // SAFETY: `run` requires a cursor to a member of the queue, which has not changed: `first`
        // and `seek` return such. It moves the cursor to a part that has octets; the end of the
        // queue does no harm.
        let _ = unsafe { cursor.run(self) };
        // INVARIANT: It points into the queue.
        self.mark = Some(cursor);
    }

    /// Finds an available position, starting from the nearest cached cursor.
    #[inline]
    fn seek(&mut self, pos: u32) -> Option<Cursor> {
        let near = |known: &Cursor| known.pos <= pos;
        let front = self.front.filter(near);
        let mark = self.mark.filter(near);
        let mut cursor = match (front, mark) {
            (Some(front), Some(mark)) if front.pos < mark.pos => mark,
            (Some(known), _) | (None, Some(known)) => known,
            // SAFETY: `first` requires a queue that does not change while the cursor is used: by
            // the type invariant it does not while `self` lives, and moving the read position
            // discards the cursors.
            _ => unsafe { Cursor::first(self) }?,
        };
        while cursor.pos < pos {
            // NO-OVERFLOW: Just compared.
            let left = pos.wrapping_sub(cursor.pos);
            // SAFETY: `run` requires a cursor to a member of the queue, which has not changed: by
            // the type invariant `front` and `mark` are such, and `first` returns one.
            let (_, n) = unsafe { cursor.run(self) }?;
            cursor.skip(n.min(left));
        }
        Some(cursor)
    }

    /// Caches the end of an access.
    #[inline]
    fn reached(&mut self, end: Cursor) {
        if self.front.as_ref().is_none_or(|front| front.pos < end.pos) {
            // INVARIANT: It points into the queue.
            self.front = Some(end);
        }
    }

    /// Advances the read position by `n`; TCP frees the memory and may send a window update.
    pub fn consume(&mut self, n: usize) {
        let n = n.min(self.available());
        if n > 0 {
            // The cursors may point to what this frees.
            (self.front, self.mark) = (None, None);
            let of_tcp = match (self.memory(), self.aside) {
                (Some(memory), _) => {
                    // INVARIANT: Position 0 moves by `n`, which is at most `available`.
                    self.memory = memory.wrapping_add(n);
                    0
                }
                (None, 0) => n,
                (None, _) => self.consume_aside(n),
            };
            if of_tcp != 0 {
                // SAFETY: `tcp_read_done()` requires a valid TCP socket that is locked: by the type
                // invariant it is, since nothing is available in an unlocked one.
                unsafe { bindings::tcp_read_done(self.sk, of_tcp) };
            }
            // INVARIANT: TCP has dropped `n` octets at the front of the queue.
            // CAST: At most `available`, which has 32 bits.
            self.seq = self.seq.wrapping_add(n as u32);
            self.available = self.available.wrapping_sub(n as u32);
        }
    }

    /// Takes octets off the front of what is set aside; returns how many of them are beyond it.
    #[cold]
    fn consume_aside(&mut self, n: usize) -> usize {
        // CAST: `usize` has 64 bits.
        if let Some(beyond) = n.checked_sub(self.aside as usize) {
            // SAFETY: The helper requires a valid socket that is locked: by the type invariant it
            // is, since octets are available. The cursors have been dropped.
            unsafe { riwarp_helper_sk_free_set_aside(self.sk) };
            // INVARIANT: Nothing is set aside any more.
            self.aside = 0;
            return beyond;
        }
        // CAST: less than `aside`, which has 32 bits.
        let n = n as u32;
        // SAFETY: `first_set_aside` requires a valid socket that is locked: by the type invariant
        // it is.
        if let Some(first) = unsafe { first_set_aside(self.sk) } {
            let seq = self.seq.wrapping_add(n);
            // SAFETY: `TCP_SKB_CB()` is for socket buffers of TCP, of which `first` is one.
            unsafe { riwarp_helper_tcp_skb_set_ack_seq(first.as_ptr(), seq) };
        }
        // INVARIANT: A view begins at the number just noted, and passes over what is before it.
        self.aside = self.aside.wrapping_sub(n);
        0
    }

    /// Sends from the receive path, as [`super::Socket::send_batch`] does, but never sleeps.
    ///
    /// # Errors
    ///
    /// `EBUSY` unless this is a softirq ([`Inbound::in_softirq`]): a thread owns the socket and may
    /// be in the middle of sending. Otherwise those of `send_batch`.
    pub fn try_send_batch(&mut self, batch: &mut TxBatch, more: SendHint) -> Result<usize> {
        match self.locked {
            // The backlog of a socket without an owner is empty, so sending does not touch the
            // receive queue.
            // SAFETY: `send_locked` requires a valid TCP socket without an owner whose spin lock is
            // held: the type invariant guarantees this for `Softirq`.
            SockLock::Softirq => unsafe { send_locked(self.sk, batch, more) },
            // Sending as the owner may process the backlog (`sk_flush_backlog`), which frees what
            // this view points to.
            SockLock::Backlog | SockLock::Unlocked | SockLock::Owner | SockLock::Memory => {
                Err(EBUSY)
            }
        }
    }
}

/// Reads octets of the receive queue in order.
///
/// # Invariants
///
/// The cursor points to a member of the queue of `inbound`, which has not changed since.
pub(crate) struct Reader<'r, 'a> {
    inbound: &'r mut Inbound<'a>,
    cursor: Cursor,
}

impl Reader<'_, '_> {
    /// Calls `f` for each piece of memory of the next `len` octets, in order; `false` if they are
    /// not all available.
    ///
    /// During the call the pointer is readable for the length passed with it; the memory may
    /// change.
    #[inline]
    pub(crate) fn each(&mut self, len: usize, mut f: impl FnMut(*const u8, usize)) -> bool {
        let mut left = len;
        while left > 0 {
            // SAFETY: `run` requires a cursor to a member of the queue, which has not changed: the
            // type invariant says so, and `inbound` is borrowed exclusively.
            let Some((from, n)) = (unsafe { self.cursor.run(self.inbound) }) else {
                return false;
            };
            // CAST: `usize` has 64 bits; the second is at most `n`.
            let n = left.min(n as usize);
            f(from, n);
            self.cursor.skip(n as u32);
            // NO-OVERFLOW: `n` is at most `left`.
            left = left.wrapping_sub(n);
        }
        true
    }
}

impl Drop for Reader<'_, '_> {
    #[inline]
    fn drop(&mut self) {
        self.inbound.reached(self.cursor);
    }
}
