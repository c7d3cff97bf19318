// SPDX-License-Identifier: GPL-2.0

//! The receiving end of a socket: what has come in order and was not taken yet, looked at where it
//! lies.
//!
//! What enters is a locked socket; what leaves are copies and checksums of octets at any position
//! after the read position, and the word how far the read position moves on. Octets that are not
//! consumed stay in TCP, which is how an incomplete message waits and how the peer is held back.
//!
//! TCP's receive queue is a list of socket buffers, each of which is a list of pieces (itself, and
//! those of its fragment list), each of which is a linear part and some fragments of pages. A
//! [`Cursor`] knows where in all that a position is. Two of them are remembered: messages are
//! looked at in steps that go forwards, and back to their start ([`Inbound::mark`]).
//!
//! The memory may be written by others meanwhile: a packet of this host's own may be made of pages
//! that an application has mapped. So it is only ever copied or summed through raw pointers.
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
use kernel::ffi::c_int;
use kernel::prelude::*;
use kernel::types::NotThreadSafe;

mod cursor;

use cursor::Cursor;

type Sk = bindings::sock;
type Skb = bindings::sk_buff;

extern "C" {
    fn riwarp_helper_sk_owned_by_user(sk: *const Sk) -> bool;
    fn riwarp_helper_tcp_inq(sk: *mut Sk) -> c_int;
}

/// How the socket is locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SockLock {
    /// It is owned by a thread that just works off what came meanwhile, maybe in the middle of
    /// sending.
    Backlog,
    /// It may not be: it listens, or has listened. Nothing is looked at.
    Unlocked,
    /// It is owned by the caller.
    Owner,
    /// Its spin lock is held by a softirq, and nobody owns it.
    Softirq,
}

/// In-order octets that wait in TCP's receive queue.
///
/// Positions count from the read position, which [`Inbound::consume`] moves. Context: that of the
/// callback or of [`super::Socket::with_inbound`].
///
/// # Invariants
///
/// `sk` is a valid TCP socket, locked as `locked` says while this value lives. `available` octets
/// from `seq` on are in its receive queue, which nobody else changes; none if `locked` is `No`.
/// `front` and `mark` point into that queue, to members of it.
pub struct Inbound<'a> {
    sk: *mut Sk,
    locked: SockLock,
    /// TCP's number of the octet at position 0.
    seq: u32,
    available: u32,
    /// Where the farthest access ended.
    front: Option<Cursor>,
    /// Where the user looks at octets more than once.
    mark: Option<Cursor>,
    _socket: PhantomData<&'a mut Sk>,
    _not_send: NotThreadSafe,
}

impl SockLock {
    /// How TCP has locked a socket whose `sk_data_ready` it calls.
    ///
    /// # Safety
    ///
    /// `sk` must be a valid TCP socket that is locked, by an owner or by its spin lock, and stays
    /// so as long as the result is relied on.
    #[inline]
    pub(super) unsafe fn in_callback(sk: *mut Sk) -> Self {
        // SAFETY: `sock_owned_by_user_nocheck()` reads a field of a valid socket, which the caller
        // has made `sk`. The field changes under the spin lock only, and the caller says that the
        // socket is locked: if nobody owns it, by the spin lock, so that nobody can; else by the
        // owner, who works off the backlog.
        if unsafe { riwarp_helper_sk_owned_by_user(sk) } {
            Self::Backlog
        } else {
            Self::Softirq
        }
    }
}

impl<'a> Inbound<'a> {
    /// The view of who has locked the socket.
    ///
    /// # Safety
    ///
    /// `sk` must be a valid TCP socket that the caller owns while the result lives.
    pub(super) unsafe fn of_owner(sk: *mut Sk) -> Self {
        // SAFETY: `state_of` wants a valid socket, which the caller has made `sk`.
        let locked = if unsafe { state_of(sk) } == TcpState::Listen {
            SockLock::Unlocked
        } else {
            SockLock::Owner
        };
        // SAFETY: `new` wants a valid TCP socket that is locked as `locked` says for as long as the
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
            front: None,
            mark: None,
            _socket: PhantomData,
            _not_send: NotThreadSafe,
        };
        if locked != SockLock::Unlocked {
            // SAFETY: The caller has made `sk` a valid TCP socket, whose `struct sock` is the head
            // of a `struct tcp_sock`; the lock that is held keeps the value.
            this.seq = unsafe { (*sk.cast::<bindings::tcp_sock>()).copied_seq };
            // SAFETY: `tcp_inq()` wants a valid TCP socket that is locked, as the caller says that
            // `sk` is.
            let available = unsafe { riwarp_helper_tcp_inq(sk) };
            // INVARIANT: TCP counts what it has put into the queue, less a mark of the end.
            this.available = u32::try_from(available).unwrap_or(0);
        }
        this
    }

    /// How many octets there are. More may come after the present call.
    #[inline]
    pub fn available(&self) -> usize {
        // CAST: `usize` has 64 bits.
        self.available as usize
    }

    /// Says whether nothing comes after the octets that are there: the peer has ended the stream,
    /// or it broke.
    pub fn eof(&self) -> bool {
        if self.locked == SockLock::Unlocked {
            return false;
        }
        // SAFETY: The place of a field is inside of the allocation: by the type invariant the
        // socket is valid.
        let shutdown = unsafe { &raw const (*self.sk).sk_shutdown };
        // SAFETY: The field of a valid socket, which is read once.
        let shutdown = unsafe { shutdown.read_volatile() };
        u32::from(shutdown) & bindings::RCV_SHUTDOWN != 0
    }

    /// Says whether this is a softirq, and not work that process context does.
    pub fn in_softirq(&self) -> bool {
        self.locked == SockLock::Softirq
    }

    /// Copies the octets at `pos` to `octets`, or those of them that are there; how many. `pos` is
    /// a position that was marked ([`Inbound::mark`]).
    #[inline]
    pub fn front<const N: usize>(&mut self, pos: usize, octets: &mut [u8; N]) -> usize {
        let Some(from) = self.in_one(pos, N) else {
            return self.front_in_pieces(pos, octets);
        };
        // In pieces that the compiler copies by itself.
        for (i, piece) in octets.chunks_mut(64).enumerate() {
            let from = from.wrapping_add(i.wrapping_mul(64));
            // SAFETY: `copy_nonoverlapping` wants as many octets readable and writable: `in_one`
            // gave `N` that are readable, of which these are `piece.len()`, for `octets` has `N`; a
            // receive queue is nothing of `octets`, which is borrowed exclusively.
            unsafe { ptr::copy_nonoverlapping(from, piece.as_mut_ptr(), piece.len()) };
        }
        N
    }

    /// The rest of [`Inbound::front`].
    fn front_in_pieces(&mut self, pos: usize, octets: &mut [u8]) -> usize {
        let len = self.available().saturating_sub(pos).min(octets.len());
        let there = octets.get_mut(..len).map(|octets| self.peek(pos, octets));
        usize::from(there == Some(true)).wrapping_mul(len)
    }

    /// Where `len` octets at `pos` are, if they are one piece that begins not before the position
    /// that was marked.
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

    /// Copies octets out; `false` if they are not all there.
    pub fn peek(&mut self, pos: usize, buf: &mut [u8]) -> bool {
        let len = buf.len();
        let mut to = buf.as_mut_ptr();
        self.for_each_chunk(pos, len, |from, n| {
            // SAFETY: `copy_nonoverlapping` wants `n` octets readable and writable:
            // `for_each_chunk` gives `from` readable for `n`, and pieces of the length of `buf`
            // altogether, of which `to` is the part that is not written yet; a receive queue is
            // nothing of `buf`, which is borrowed exclusively.
            unsafe { ptr::copy_nonoverlapping(from, to, n) };
            // SAFETY: `to` stays inside of `buf`, or at its end: `n` octets were left.
            to = unsafe { to.add(n) };
        })
    }

    /// Continues a CRC32c over octets that are there. If they are not all there, the result does
    /// not match anything.
    pub fn crc32c(&mut self, pos: usize, len: usize, seed: u32) -> u32 {
        let mut crc = seed;
        let all = self.for_each_chunk(pos, len, |from, n| {
            // SAFETY: `update_raw` wants `n` octets readable: `for_each_chunk` gives `from` so.
            crc = unsafe { crc32c::update_raw(crc, from, n) };
        });
        if all {
            crc
        } else {
            !crc
        }
    }

    /// Calls `f` for each piece of memory that `len` octets at `pos` lie in, in order; `false` if
    /// they are not all there, and then `f` may have been called for some.
    ///
    /// The pointer is readable for the length that goes with it, during the call; others may write
    /// there.
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

    /// A look at the `len` octets at `pos` from front to back; [`None`] if they are not all there.
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

    /// Says that a position is where a message starts: it will be looked at in several steps, and
    /// what is before it not any more. Nothing depends on it but time.
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

    /// The rest of [`Inbound::mark`].
    fn mark_far(&mut self, pos: usize) {
        let cursor = if pos == 0 {
            // SAFETY: `first` wants a queue that does not change while the cursor is used: by the
            // type invariant it does not while `self` lives, and what moves the read position
            // forgets the cursors.
            unsafe { Cursor::first(self) }
        } else {
            u32::try_from(pos).ok().and_then(|pos| self.seek(pos))
        };
        let Some(mut cursor) = cursor else {
            return;
        };
        // SAFETY: `run` wants a cursor to a member of the queue, which has not changed: `first` and
        // `seek` give such. At the end of the queue there is nothing to look at.
        let _ = unsafe { cursor.run(self) };
        // INVARIANT: It points into the queue.
        self.mark = Some(cursor);
    }

    /// Finds a position that is available, from the nearest place that is known.
    #[inline]
    fn seek(&mut self, pos: u32) -> Option<Cursor> {
        let near = |known: &Cursor| known.pos <= pos;
        let front = self.front.filter(near);
        let mark = self.mark.filter(near);
        let mut cursor = match (front, mark) {
            (Some(front), Some(mark)) if front.pos < mark.pos => mark,
            (Some(known), _) | (None, Some(known)) => known,
            // SAFETY: `first` wants a queue that does not change while the cursor is used: by the
            // type invariant it does not while `self` lives, and what moves the read position
            // forgets the cursors.
            _ => unsafe { Cursor::first(self) }?,
        };
        while cursor.pos < pos {
            // NO-OVERFLOW: Just compared.
            let left = pos.wrapping_sub(cursor.pos);
            // SAFETY: `run` wants a cursor to a member of the queue, which has not changed: by the
            // type invariant `front` and `mark` are such, and `first` gives one.
            let (_, n) = unsafe { cursor.run(self) }?;
            cursor.skip(n.min(left));
        }
        Some(cursor)
    }

    /// Keeps the end of an access in mind.
    #[inline]
    fn reached(&mut self, end: Cursor) {
        if self.front.as_ref().is_none_or(|front| front.pos < end.pos) {
            // INVARIANT: It points into the queue.
            self.front = Some(end);
        }
    }

    /// Moves the read position on, and lets TCP have the memory back; it may tell the peer that
    /// there is room.
    pub fn consume(&mut self, n: usize) {
        let n = n.min(self.available());
        if n > 0 {
            // The cursors may point to what is freed now.
            (self.front, self.mark) = (None, None);
            // SAFETY: `tcp_read_done()` wants a valid TCP socket that is locked: by the type
            // invariant it is, in one way or the other, since there is nothing available if it is
            // not.
            unsafe { bindings::tcp_read_done(self.sk, n) };
            // INVARIANT: TCP has dropped as many octets at the front of the queue.
            // CAST: At most `available`, which has 32 bits.
            self.seq = self.seq.wrapping_add(n as u32);
            self.available = self.available.wrapping_sub(n as u32);
        }
    }

    /// Sends without leaving the receive path; as [`super::Socket::send_batch`], but never sleeps.
    ///
    /// # Errors
    ///
    /// `EBUSY` unless this is a softirq ([`Inbound::in_softirq`]): somebody owns the socket, and
    /// may be in the middle of sending. Otherwise those of `send_batch`.
    pub fn try_send_batch(&mut self, batch: &mut TxBatch, more: SendHint) -> Result<usize> {
        match self.locked {
            // The backlog of a socket that nobody owns is empty, so that sending does not touch the
            // receive queue.
            // SAFETY: `send_locked` wants a valid TCP socket whose spin lock the caller holds while
            // nobody owns it: by the type invariant, for this way of locking.
            SockLock::Softirq => unsafe { send_locked(self.sk, batch, more) },
            // The owner's call would work off the backlog now and then (`sk_flush_backlog`), and by
            // that free what this view points to.
            SockLock::Backlog | SockLock::Unlocked | SockLock::Owner => Err(EBUSY),
        }
    }
}

/// Octets of the receive queue, one after the other.
///
/// # Invariants
///
/// The cursor points into the queue of `inbound`, to a member of it, which has not changed since.
pub(crate) struct Reader<'r, 'a> {
    inbound: &'r mut Inbound<'a>,
    cursor: Cursor,
}

impl Reader<'_, '_> {
    /// Calls `f` for each piece of memory that the next `len` octets lie in, in order; `false` if
    /// they are not all there.
    ///
    /// The pointer is readable for the length that goes with it, during the call; others may write
    /// there.
    #[inline]
    pub(crate) fn each(&mut self, len: usize, mut f: impl FnMut(*const u8, usize)) -> bool {
        let mut left = len;
        while left > 0 {
            // SAFETY: `run` wants a cursor to a member of the queue, which has not changed: that is
            // the type invariant, and `inbound` is borrowed exclusively.
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
