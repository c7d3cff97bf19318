// SPDX-License-Identifier: GPL-2.0

//! Memory for what is to be sent: filled by copying, summed, given to TCP by reference, used again
//! when TCP lets go.
//!
//! What enters are octets; what leaves is one message to TCP that names the pages they are in. TCP
//! keeps them until the peer has acknowledged them, and may read them again at any time before. So
//! nothing is ever written over that was given away: a chunk is filled from front to back, and
//! begins anew only when this batch holds the last reference to it.

use super::socket::to_len;
use super::socket::SendHint;
use crate::bindings;
use crate::crc32c;
use crate::mm::memcg::Memcg;
use core::mem::MaybeUninit;
use core::ptr;
use core::ptr::NonNull;
use kernel::ffi::c_int;
use kernel::ffi::c_uint;
use kernel::ffi::c_ulong;
use kernel::ffi::c_void;
use kernel::prelude::*;

#[cfg(CONFIG_KUNIT = "y")]
mod tests;

extern "C" {
    fn riwarp_helper_alloc_pages(sleep: bool, order: c_uint) -> *mut bindings::page;
    fn riwarp_helper_page_ref_count(page: *const bindings::page) -> c_int;
    fn riwarp_helper_page_address(page: *const bindings::page) -> *mut c_void;
    fn riwarp_helper_put_page(page: *mut bindings::page);
}

const PAGE_SIZE: usize = kernel::page::PAGE_SIZE;
/// Chunks have this many pages (8), if there are so many in a row.
const ORDER: c_uint = 3;
/// Chunks that hold what waits, or will hold what comes.
const LIVE: usize = 24;
/// Chunks that TCP may still hold, and that may be used again.
const SPARE: usize = 16;

/// How memory may be got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grow {
    /// Without waiting: in softirq, or with a lock held.
    Atomic,
    /// The caller may sleep.
    Sleep,
}

/// A place in what was put into a [`TxBatch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark(u64);

/// A row of pages.
///
/// # Invariants
///
/// `page` is a page of its own or the head of a compound page, of `size` octets in all, mapped at
/// `virt`; this value owns one reference.
struct Chunk {
    page: NonNull<bindings::page>,
    virt: NonNull<u8>,
    size: usize,
    /// The place in the stream of octet 0.
    base: u64,
}

impl Chunk {
    /// # Errors
    ///
    /// `ENOMEM`.
    fn new(grow: Grow, owner: &Memcg) -> Result<Self> {
        // The reserves of memory are for those who cannot wait.
        let sleep = grow == Grow::Sleep;
        let alloc = |order| {
            // SAFETY: The helper has no requirements but that the caller may sleep if it says so,
            // which `grow` is for.
            owner.scope(|| NonNull::new(unsafe { riwarp_helper_alloc_pages(sleep, order) }))
        };
        let (page, size) = match alloc(ORDER) {
            Some(page) => (page, PAGE_SIZE << ORDER),
            None => (alloc(0).ok_or(ENOMEM)?, PAGE_SIZE),
        };
        // SAFETY: The page is valid, and not in high memory.
        let virt = unsafe { riwarp_helper_page_address(page.as_ptr()) };
        // SAFETY: The kernel's mapping of a page is not null.
        let virt = unsafe { NonNull::new_unchecked(virt.cast()) };
        // INVARIANT: Just made.
        Ok(Self {
            page,
            virt,
            size,
            base: 0,
        })
    }

    /// Says whether nobody else has a reference, so that the memory can be written to anywhere.
    fn is_free(&self) -> bool {
        // SAFETY: By the type invariant the page is valid. Only who has a reference can make
        // another; so a count of 1 is ours and stays. What the others read, they have read before
        // they gave theirs up.
        unsafe { riwarp_helper_page_ref_count(self.page.as_ptr()) == 1 }
    }

    /// The place in the stream where it ends.
    fn end(&self) -> u64 {
        // NO-OVERFLOW: Places count octets that were sent; 2^64 are never reached. CAST: `u64` has
        // the bits of `usize`.
        self.base.wrapping_add(self.size as u64)
    }

    /// The part of it that lies in `from..to` of the stream, as offset and length.
    fn overlap(&self, from: u64, to: u64) -> (usize, usize) {
        let start = from.max(self.base);
        let len = to.min(self.end()).saturating_sub(start);
        // CAST: Both are at most `size`, or unused if `len` is 0.
        (start.wrapping_sub(self.base) as usize, len as usize)
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        // SAFETY: By the type invariant this value owns a reference.
        unsafe { riwarp_helper_put_page(self.page.as_ptr()) };
    }
}

// SAFETY: Pages may be used and given back by any thread.
unsafe impl Send for Chunk {}
// SAFETY: Nothing is written through a shared reference.
unsafe impl Sync for Chunk {}

/// Octets to be sent, in memory of its own.
///
/// # Examples
///
/// ```ignore
/// batch.reserve(fpdu.len(), Grow::Sleep)?;
/// let start = batch.mark();
/// batch.put(&header)?;
/// memory.copy_to_batch(offset, len, &mut batch)?;
/// let crc = crc32c::finish(batch.crc32c_since(start, crc32c::INIT));
/// batch.put(&crc.to_le_bytes())?;
/// socket.send_batch(&mut batch, SendHint::Push)?;
/// ```
///
/// # Invariants
///
/// The places `accepted <= appended` count the octets that TCP took and those that were put in. The
/// chunks of `live` cover the stream without gaps, from a place not after `accepted` to one not
/// before `appended`, each with a part of it; places before `accepted` are only read (by TCP), and
/// nobody but this batch has seen those after it.
pub struct TxBatch {
    live: Row<LIVE>,
    spare: Row<SPARE>,
    accepted: u64,
    appended: u64,
    /// Which of `live` was filled last: a mere hint, any value is allowed.
    filling: usize,
    /// Who pays for the chunks.
    owner: Memcg,
}

impl TxBatch {
    /// The most that can wait in one batch, if memory is not short.
    pub const CAPACITY: usize = (LIVE - 1) * (PAGE_SIZE << ORDER);

    /// Makes an empty one, which has no memory yet; nobody will be charged with it.
    pub fn new() -> Self {
        Self::charged_to(Memcg::nobody())
    }

    /// Makes an empty one, which has no memory yet; `owner` will be charged with it.
    pub fn charged_to(owner: Memcg) -> Self {
        Self {
            live: Row::new(),
            spare: Row::new(),
            accepted: 0,
            appended: 0,
            filling: 0,
            owner,
        }
    }

    /// How many octets were put in and not taken by TCP yet.
    #[inline]
    pub fn len(&self) -> usize {
        // CAST: At most the size of the live chunks. NO-OVERFLOW: By the type invariant.
        self.appended.wrapping_sub(self.accepted) as usize
    }

    /// Says whether nothing waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.appended == self.accepted
    }

    /// Where in the chunk the next octet goes, which is the first that is live.
    #[inline]
    fn place_in(&self, chunk: &Chunk) -> usize {
        // CAST: At most the size of a chunk. NO-OVERFLOW: By the invariants of the batch.
        self.appended.wrapping_sub(chunk.base) as usize
    }

    /// How many octets can be put in before more memory is needed.
    #[inline]
    pub fn room(&self) -> usize {
        let end = self.live.last().map_or(self.appended, Chunk::end);
        // CAST: At most the size of the live chunks. NO-OVERFLOW: By the type invariant.
        end.wrapping_sub(self.appended) as usize
    }

    /// Gets memory so that `n` more octets can be put in without an error.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; `ENOSPC` if too much waits already.
    #[inline]
    pub fn reserve(&mut self, n: usize, grow: Grow) -> Result {
        if self.is_empty() {
            self.begin_anew();
        }
        if self.room() >= n {
            return Ok(());
        }
        self.reserve_more(n, grow)
    }

    /// The rest of [`TxBatch::reserve`].
    fn reserve_more(&mut self, n: usize, grow: Grow) -> Result {
        while self.room() < n {
            if self.live.is_full() {
                return Err(ENOSPC);
            }
            let mut chunk = match self.spare.take_first(Chunk::is_free) {
                Some(chunk) => chunk,
                None => Chunk::new(grow, &self.owner)?,
            };
            chunk.base = self.live.last().map_or(self.appended, Chunk::end);
            // INVARIANT: It covers the stream where the last chunk ends. Nobody else has a
            // reference to it.
            self.live.push(chunk);
        }
        Ok(())
    }

    /// Says whether it has more memory than a stream needs that sends little.
    #[inline]
    pub fn has_spare(&self) -> bool {
        self.spare.len > 0 || self.live.len > 1
    }

    /// Gives back what it has beyond one chunk, and beyond what waits. What TCP has of it goes when
    /// TCP lets go.
    pub fn give_back(&mut self) {
        let needed = self.appended;
        // INVARIANT: Those that go cover nothing that was put in.
        while self.live.len > 1 && self.live.last().is_some_and(|chunk| chunk.base >= needed) {
            self.live.take_last();
        }
        let kept = usize::from(self.live.len == 0);
        while self.spare.len > kept {
            self.spare.take_last();
        }
    }

    /// Appends octets.
    ///
    /// # Errors
    ///
    /// As [`TxBatch::reserve`] with [`Grow::Atomic`]; nothing was appended then. None if there is
    /// [`TxBatch::room`].
    #[inline]
    pub fn put(&mut self, bytes: &[u8]) -> Result {
        // SAFETY: A slice is readable over its length.
        unsafe { self.append_raw(bytes.as_ptr(), bytes.len()) }
    }

    /// Appends zeroes. Errors as for [`TxBatch::put`].
    #[inline]
    pub fn put_zeroes(&mut self, n: usize) -> Result {
        // SAFETY: `write_bytes` wants `n` octets writable: `append_with` gives `to` so.
        self.append_with(n, |to, n| unsafe { ptr::write_bytes(to, 0, n) })
    }

    /// Appends a copy of memory that others may write meanwhile. Errors as for [`TxBatch::put`].
    ///
    /// # Safety
    ///
    /// `from` must be readable by the kernel for `n` octets.
    #[inline]
    pub(crate) unsafe fn append_raw(&mut self, from: *const u8, n: usize) -> Result {
        let mut from = from;
        self.append_with(n, |to, n| {
            // SAFETY: `copy_nonoverlapping` wants `n` octets readable and writable: the caller says
            // that all pieces together are readable, of which `from` is the part that is not copied
            // yet; `append_with` gives `to` writable, and that belongs to the batch alone.
            unsafe { ptr::copy_nonoverlapping(from, to, n) };
            // SAFETY: `from` stays inside of what the caller says is readable, or at its end: `n`
            // octets were left.
            from = unsafe { from.add(n) };
        })
    }

    /// Appends `n` octets that `fill` writes, piece by piece. Errors as for [`TxBatch::put`].
    ///
    /// `fill` gets memory that is writable for the length that goes with it, and must write all of
    /// it.
    #[inline]
    pub(crate) fn append_with(&mut self, n: usize, mut fill: impl FnMut(*mut u8, usize)) -> Result {
        // CAST: `u64` has the bits of `usize`. NO-OVERFLOW: As in `Chunk::end`.
        let end = self.appended.wrapping_add(n as u64);
        // Most often it all fits into the chunk that is being filled.
        if let Some(chunk) = self.live.get(self.filling) {
            if self.appended >= chunk.base && end <= chunk.end() {
                // CAST: Less than the size of the chunk.
                let off = self.appended.wrapping_sub(chunk.base) as usize;
                // SAFETY: The chunk has `n` octets behind `off`, as just compared.
                fill(unsafe { chunk.virt.as_ptr().add(off) }, n);
                // INVARIANT: There was room.
                self.appended = end;
                return Ok(());
            }
        }
        self.append_pieces(n, end, fill)
    }

    /// The rest of [`TxBatch::append_with`].
    #[cold]
    fn append_pieces(
        &mut self,
        n: usize,
        end: u64,
        mut fill: impl FnMut(*mut u8, usize),
    ) -> Result {
        if self.room() < n {
            self.reserve(n, Grow::Atomic)?;
        }
        self.each_run(self.appended, end, |chunk, off, len| {
            // SAFETY: By the invariants the chunk has as many octets.
            fill(unsafe { chunk.virt.as_ptr().add(off) }, len);
        });
        // INVARIANT: There was room.
        self.appended = end;
        let next = self.live.iter().position(|chunk| chunk.end() > end);
        self.filling = next.unwrap_or_default();
        Ok(())
    }

    /// The present end.
    #[inline]
    pub fn mark(&self) -> Mark {
        Mark(self.appended)
    }

    /// Continues a CRC32c over what was put in since `mark`, as far as TCP has not taken it.
    pub fn crc32c_since(&self, mark: Mark, seed: u32) -> u32 {
        let mut crc = seed;
        self.each_run(
            mark.0.max(self.accepted),
            self.appended,
            |chunk, off, len| {
                // SAFETY: By the invariants the chunk has as many octets.
                let from = unsafe { chunk.virt.as_ptr().add(off) };
                // SAFETY: `update_raw` wants so many octets readable: the chunk has as many behind
                // `off`, by the invariants, and they were written when they were appended.
                crc = unsafe { crc32c::update_raw(crc, from, len) };
            },
        );
        crc
    }

    /// Drops what was put in since `mark`, as far as TCP has not taken it.
    pub fn rewind(&mut self, mark: Mark) {
        // INVARIANT: Between `accepted` and `appended`.
        self.appended = mark.0.clamp(self.accepted, self.appended);
    }

    /// Calls `send` with a message of all that waits, and its length; forgets what it says was
    /// taken.
    pub(super) fn send_with(
        &mut self,
        more: SendHint,
        send: impl FnOnce(*mut bindings::msghdr, usize) -> c_int,
    ) -> Result<usize> {
        if self.is_empty() {
            return Ok(0);
        }
        let mut vecs = [const { MaybeUninit::<bindings::bio_vec>::uninit() }; LIVE];
        let mut count: usize = 0;
        let mut name = |chunk: &Chunk, off: usize, len: usize| {
            if let Some(vec) = vecs.get_mut(count) {
                // CAST: At most the size of a chunk.
                vec.write(bindings::bio_vec {
                    bv_page: chunk.page.as_ptr(),
                    bv_len: len as c_uint,
                    bv_offset: off as c_uint,
                });
                // NO-OVERFLOW: At most `LIVE`.
                count = count.wrapping_add(1);
            }
        };
        match self.live.only() {
            // CAST: `u64` has the bits of `usize`. NO-OVERFLOW: By the type invariant.
            Some(chunk) => name(
                chunk,
                self.accepted.wrapping_sub(chunk.base) as usize,
                self.len(),
            ),
            None => self.each_run(self.accepted, self.appended, name),
        }
        let len = self.len();
        let mut flags = bindings::MSG_DONTWAIT
            | bindings::MSG_NOSIGNAL
            | bindings::MSG_SPLICE_PAGES
            | bindings::MSG_NO_SHARED_FRAGS;
        if more == SendHint::MoreFollows {
            flags |= bindings::MSG_MORE;
        }
        // SAFETY: All zeroes are a `struct msghdr` that says nothing. (What `Default` would do is a
        // call and a copy.)
        let mut msg: bindings::msghdr = unsafe { core::mem::zeroed() };
        msg.msg_flags = flags;
        // SAFETY: The first `count` vectors were written and live until the message was sent; they
        // name memory of chunks that this batch keeps. TCP takes references to the pages that it
        // needs longer.
        // CAST: `c_ulong` has the bits of `usize`.
        unsafe {
            bindings::iov_iter_bvec(
                &mut msg.msg_iter,
                bindings::ITER_SOURCE,
                vecs.as_ptr().cast(),
                count as c_ulong,
                len,
            )
        };
        let taken = to_len(send(&mut msg, len))?;
        self.accept(taken.min(len));
        Ok(taken)
    }

    /// Forgets octets that TCP took.
    #[inline]
    fn accept(&mut self, n: usize) {
        // CAST: `u64` has the bits of `usize`. INVARIANT: `n` is at most what waits.
        self.accepted = self.accepted.wrapping_add(n as u64);
        // Most often there is one chunk, and room in it.
        match self.live.only() {
            Some(chunk) if chunk.end() > self.accepted => {}
            _ => self.put_aside(),
        }
    }

    /// Puts chunks aside of which TCP has taken all.
    fn put_aside(&mut self) {
        let accepted = self.accepted;
        // INVARIANT: What goes covers nothing that waits.
        while let Some(chunk) = self.live.take_front(|chunk| chunk.end() <= accepted) {
            if self.spare.is_full() {
                // The one that was given away first; TCP keeps it as long as it has to.
                self.spare.take_first(|_| true);
            }
            self.spare.push(chunk);
        }
    }

    /// With nothing waiting, goes back to the start of the first chunk if TCP has let go of it:
    /// that memory is in the CPU's cache.
    ///
    /// The place inside a page stays the same. TCP counts a packet train's pages, and one of the
    /// usual 64 KiB has just as many as it takes if its octets lie as in one piece of memory; with
    /// one page more it would be cut elsewhere than between two packets.
    #[inline]
    fn begin_anew(&mut self) {
        let Some(front) = self.live.get(0) else {
            return;
        };
        let used = self.place_in(front);
        if used < PAGE_SIZE || !front.is_free() {
            return;
        }
        // CAST: `u64` has the bits of `usize`.
        let mut base = self.appended.wrapping_sub((used % PAGE_SIZE) as u64);
        for chunk in self.live.iter_mut() {
            // INVARIANT: The chunks cover the stream from before `appended` on, without gaps. Those
            // behind the front are still empty.
            chunk.base = base;
            base = chunk.end();
        }
    }

    /// Calls `f` for each part of a chunk that lies in `from..to` of the stream, in order.
    fn each_run(&self, from: u64, to: u64, mut f: impl FnMut(&Chunk, usize, usize)) {
        for chunk in self.live.iter() {
            let (off, len) = chunk.overlap(from, to);
            if len > 0 {
                f(chunk, off, len);
            }
        }
    }
}

impl Default for TxBatch {
    fn default() -> Self {
        Self::new()
    }
}

/// Up to `N` chunks in order.
///
/// # Invariants
///
/// The first `len` places are filled, the others are empty.
struct Row<const N: usize> {
    chunks: [Option<Chunk>; N],
    len: usize,
}

impl<const N: usize> Row<N> {
    const fn new() -> Self {
        Self {
            chunks: [const { None }; N],
            len: 0,
        }
    }

    fn is_full(&self) -> bool {
        self.len >= N
    }

    fn iter(&self) -> impl Iterator<Item = &Chunk> {
        self.chunks.iter().take(self.len).flatten()
    }

    fn iter_mut(&mut self) -> impl Iterator<Item = &mut Chunk> {
        self.chunks.iter_mut().take(self.len).flatten()
    }

    #[inline]
    fn get(&self, index: usize) -> Option<&Chunk> {
        self.chunks.get(index)?.as_ref()
    }

    #[inline]
    fn last(&self) -> Option<&Chunk> {
        self.get(self.len.wrapping_sub(1))
    }

    /// The one chunk that there is.
    #[inline]
    fn only(&self) -> Option<&Chunk> {
        if self.len == 1 {
            self.get(0)
        } else {
            None
        }
    }

    /// Adds a chunk behind the others; drops it if there is no place.
    fn push(&mut self, chunk: Chunk) {
        if let Some(place) = self.chunks.get_mut(self.len) {
            // INVARIANT: The first empty place.
            *place = Some(chunk);
            self.len = self.len.wrapping_add(1);
        }
    }

    /// Takes the first chunk out that `f` is true for.
    fn take_first(&mut self, f: impl Fn(&Chunk) -> bool) -> Option<Chunk> {
        let index = self.iter().position(f)?;
        let chunk = self.chunks.get_mut(index)?.take();
        // INVARIANT: The hole goes to the end of the filled places.
        self.chunks.get_mut(index..self.len)?.rotate_left(1);
        self.len = self.len.saturating_sub(1);
        chunk
    }

    /// Takes the last chunk out.
    fn take_last(&mut self) -> Option<Chunk> {
        let index = self.len.checked_sub(1)?;
        // INVARIANT: The place behind the filled ones is empty.
        self.len = index;
        self.chunks.get_mut(index)?.take()
    }

    /// Takes the front chunk out if `f` is true for it.
    fn take_front(&mut self, f: impl Fn(&Chunk) -> bool) -> Option<Chunk> {
        if self.iter().next().is_some_and(f) {
            self.take_first(|_| true)
        } else {
            None
        }
    }
}
