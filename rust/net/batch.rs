// SPDX-License-Identifier: GPL-2.0

//! Transmit memory: filled by copying, summed, passed to TCP by reference, reused when TCP drops
//! its references.
//!
//! A batch collects octets and sends them as one message that references their pages. TCP keeps the
//! pages until the peer has acknowledged them, and may read them at any time before. So octets that
//! were sent are never overwritten: a chunk is filled from front to back, and reused only when this
//! batch holds the last reference to it.

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

const PAGE_SHIFT: usize = kernel::page::PAGE_SHIFT;
const PAGE_SIZE: usize = kernel::page::PAGE_SIZE;
/// Chunks have 2^`ORDER` pages (32 KiB, or a page if that is larger), if the allocator has them in
/// a row. The first one has one page, if that suffices: many streams send little, or nothing for
/// long.
const ORDER: c_uint = CHUNK_SHIFT.saturating_sub(PAGE_SHIFT as c_uint);
const CHUNK_SHIFT: c_uint = 15;
/// Most chunks with unsent octets or space for more.
const LIVE: usize = 24;
/// How many chunks that TCP may still reference are kept for reuse.
const SPARE: usize = 16;

/// How memory may be allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grow {
    /// Without sleeping: in softirq, or with a lock held.
    Atomic,
    /// The caller may sleep.
    Sleep,
}

/// A position in the stream of octets appended to a [`TxBatch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark(u64);

impl Mark {
    /// Returns the position so many octets further on, or back.
    pub fn moved(self, by: isize) -> Self {
        // CAST: `i64` has the bits of `isize`. NO-OVERFLOW: As in `Chunk::end`.
        Self(self.0.wrapping_add_signed(by as i64))
    }
}

/// Contiguous pages.
///
/// # Invariants
///
/// `page` is a page of its own or the head of a compound page, of `size` octets in all, mapped at
/// `virt`; this value owns one reference.
struct Chunk {
    page: NonNull<bindings::page>,
    virt: NonNull<u8>,
    size: usize,
    /// The stream position of octet 0.
    base: u64,
}

impl Chunk {
    /// # Errors
    ///
    /// `ENOMEM`.
    fn new(order: c_uint, grow: Grow, owner: &Memcg) -> Result<Self> {
        // A caller that can sleep does not use the atomic reserves.
        let sleep = grow == Grow::Sleep;
        let alloc = |order| {
            // SAFETY: The helper requires only a context that may sleep if `sleep` is set, which
            // `grow` says.
            owner.scope(|| NonNull::new(unsafe { riwarp_helper_alloc_pages(sleep, order) }))
        };
        let (page, size) = match alloc(order) {
            Some(page) => (page, PAGE_SIZE << order),
            None => (alloc(0).ok_or(ENOMEM)?, PAGE_SIZE),
        };
        // SAFETY: The page is valid, and not in high memory.
        let virt = unsafe { riwarp_helper_page_address(page.as_ptr()) };
        // SAFETY: The kernel's mapping of a page is not null.
        let virt = unsafe { NonNull::new_unchecked(virt.cast()) };
        // INVARIANT: The page was just allocated.
        Ok(Self {
            page,
            virt,
            size,
            base: 0,
        })
    }

    /// Returns whether this value holds the only reference, so that all of the memory may be
    /// written.
    fn is_free(&self) -> bool {
        // SAFETY: By the type invariant the page is valid. Only a holder of a reference can make
        // another; so if the count is 1, it counts this value's reference and stays 1. The other
        // holders finished reading before they dropped their references.
        unsafe { riwarp_helper_page_ref_count(self.page.as_ptr()) == 1 }
    }

    /// Returns the stream position of its end.
    fn end(&self) -> u64 {
        // NO-OVERFLOW: Positions count octets that were sent; they never reach 2^64. CAST: `u64`
        // has the bits of `usize`.
        self.base.wrapping_add(self.size as u64)
    }

    /// Returns the part of it that lies in `from..to` of the stream, as offset and length.
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

// SAFETY: Any thread may use and free pages.
unsafe impl Send for Chunk {}
// SAFETY: A shared reference gives no write access.
unsafe impl Sync for Chunk {}

/// Octets to send, in memory that the batch owns.
///
/// # Examples
///
/// ```
/// use kernel_ext::crc32c;
/// use kernel_ext::net::Grow;
/// use kernel_ext::net::TxBatch;
///
/// let mut batch = TxBatch::new();
/// batch.reserve(12, Grow::Sleep)?;
/// let start = batch.mark();
/// batch.put(b"1234")?;
/// batch.put(b"5678")?;
/// let crc = crc32c::finish(batch.crc32c_since(start, crc32c::INIT));
/// batch.put(&crc.to_le_bytes())?;
/// assert_eq!(batch.len(), 12);
/// ```
///
/// # Invariants
///
/// The positions `accepted <= appended` count the octets that TCP accepted and those that were
/// appended. The chunks of `live` cover the stream without gaps, from a position at or before
/// `accepted` to one at or after `appended`; positions before `accepted` are only read (by TCP),
/// and only this batch accesses those after it.
pub struct TxBatch {
    live: Row<LIVE>,
    spare: Row<SPARE>,
    accepted: u64,
    appended: u64,
    /// Index in `live` of the chunk being filled: a hint, any value is allowed.
    filling: usize,
    /// Whether no chunk was allocated since the batch was made or was idle.
    rested: bool,
    /// Whether TCP's segments have to be a multiple of 4 octets long.
    rounds: bool,
    /// The memory cgroup that is charged for the chunks.
    owner: Memcg,
}

impl TxBatch {
    /// The most octets that a batch can hold if every chunk has its full size.
    pub const CAPACITY: usize = (LIVE - 1) * (PAGE_SIZE << ORDER);

    /// Makes an empty batch without memory; its memory is charged to no cgroup.
    pub fn new() -> Self {
        Self::charged_to(Memcg::nobody())
    }

    /// Makes an empty batch without memory; its memory is charged to `owner`.
    pub fn charged_to(owner: Memcg) -> Self {
        Self {
            live: Row::new(),
            spare: Row::new(),
            accepted: 0,
            appended: 0,
            filling: 0,
            rested: true,
            rounds: true,
            owner,
        }
    }

    /// Leaves the length of TCP's segments as it is, since nothing is aligned with them.
    pub fn keep_segment_size(&mut self) {
        self.rounds = false;
    }

    /// Returns whether TCP's segments have to be a multiple of 4 octets long.
    #[inline]
    pub(super) fn rounds_segment_size(&self) -> bool {
        self.rounds
    }

    /// Returns how many appended octets TCP has not accepted.
    #[inline]
    pub fn len(&self) -> usize {
        // CAST: At most the size of the live chunks. NO-OVERFLOW: By the type invariant.
        self.appended.wrapping_sub(self.accepted) as usize
    }

    /// Returns whether no octets are unsent.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.appended == self.accepted
    }

    /// Returns the offset of the next octet in `chunk`, the first live one.
    #[inline]
    fn place_in(&self, chunk: &Chunk) -> usize {
        // CAST: At most the size of a chunk. NO-OVERFLOW: By the invariants of the batch.
        self.appended.wrapping_sub(chunk.base) as usize
    }

    /// Returns how many octets can be appended without more memory.
    #[inline]
    pub fn room(&self) -> usize {
        let end = self.live.last().map_or(self.appended, Chunk::end);
        // CAST: At most the size of the live chunks. NO-OVERFLOW: By the type invariant.
        end.wrapping_sub(self.appended) as usize
    }

    /// Allocates memory so that appending `n` more octets cannot fail.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; `ENOSPC` if the batch is full.
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

    /// Does [`TxBatch::reserve`] when more chunks are needed.
    fn reserve_more(&mut self, n: usize, grow: Grow) -> Result {
        while self.room() < n {
            if self.live.is_full() {
                return Err(ENOSPC);
            }
            let mut chunk = match self.spare.take_first(Chunk::is_free) {
                Some(chunk) => chunk,
                None => {
                    let order = if self.rested && n <= PAGE_SIZE {
                        0
                    } else {
                        ORDER
                    };
                    Chunk::new(order, grow, &self.owner)?
                }
            };
            self.rested = false;
            chunk.base = self.live.last().map_or(self.appended, Chunk::end);
            // INVARIANT: It covers the stream from the end of the last chunk on. The batch holds
            // the only reference to it.
            self.live.push(chunk);
        }
        Ok(())
    }

    /// Returns whether the batch has more memory than a stream that sends little needs.
    #[inline]
    pub fn has_spare(&self) -> bool {
        self.spare.len > 0
            || self.live.len > 1
            || self.live.iter().any(|chunk| chunk.size > PAGE_SIZE)
    }

    /// Frees all chunks but those with unsent octets. Memory that TCP references is freed when TCP
    /// drops it.
    pub fn give_back(&mut self) {
        let needed = self.appended;
        // INVARIANT: The freed chunks cover no unsent octets. The last one with such octets stays,
        // and with it those before.
        while self
            .live
            .last()
            .is_some_and(|chunk| chunk.base >= needed || self.is_empty())
        {
            self.live.take_last();
        }
        while self.spare.len > 0 {
            self.spare.take_last();
        }
        self.rested = self.live.len == 0;
    }

    /// Appends octets.
    ///
    /// # Errors
    ///
    /// Those of [`TxBatch::reserve`] with [`Grow::Atomic`]; nothing is appended then. None if
    /// [`TxBatch::room`] suffices.
    #[inline]
    pub fn put(&mut self, bytes: &[u8]) -> Result {
        // SAFETY: A slice is readable over its length.
        unsafe { self.append_raw(bytes.as_ptr(), bytes.len()) }
    }

    /// Appends zeroes. Errors as for [`TxBatch::put`].
    #[inline]
    pub fn put_zeroes(&mut self, n: usize) -> Result {
        // SAFETY: `write_bytes` requires `n` octets writable: `append_with` guarantees this of
        // `to`.
        self.append_with(n, |to, n| unsafe { ptr::write_bytes(to, 0, n) })
    }

    /// Appends a copy of memory that may change meanwhile. Errors as for [`TxBatch::put`].
    ///
    /// # Safety
    ///
    /// `from` must be readable by the kernel for `n` octets.
    #[inline]
    pub(crate) unsafe fn append_raw(&mut self, from: *const u8, n: usize) -> Result {
        let mut from = from;
        self.append_with(n, |to, n| {
            // SAFETY: `copy_nonoverlapping` requires `n` octets readable and writable: the caller
            // guarantees that all octets are readable, and `from` is the start of the uncopied
            // rest; `append_with` gives `to` writable, in memory that only the batch accesses.
            unsafe { ptr::copy_nonoverlapping(from, to, n) };
            // SAFETY: `from` stays inside the memory that the caller guarantees to be readable, or
            // at its end: at least `n` octets remained.
            from = unsafe { from.add(n) };
        })
    }

    /// Appends `n` octets that `fill` writes, piece by piece. Errors as for [`TxBatch::put`].
    ///
    /// `fill` gets a pointer that is writable for the length passed with it, and must write all of
    /// it.
    #[inline]
    pub(crate) fn append_with(&mut self, n: usize, mut fill: impl FnMut(*mut u8, usize)) -> Result {
        // CAST: `u64` has the bits of `usize`. NO-OVERFLOW: As in `Chunk::end`.
        let end = self.appended.wrapping_add(n as u64);
        // Usually all octets fit into the chunk that is being filled.
        if let Some(chunk) = self.live.get(self.filling) {
            if self.appended >= chunk.base && end <= chunk.end() {
                // CAST: Less than the size of the chunk.
                let off = self.appended.wrapping_sub(chunk.base) as usize;
                // SAFETY: The chunk has `n` octets from `off` on, as just checked.
                fill(unsafe { chunk.virt.as_ptr().add(off) }, n);
                // INVARIANT: The chunks cover `end`.
                self.appended = end;
                return Ok(());
            }
        }
        self.append_pieces(n, end, fill)
    }

    /// Does [`TxBatch::append_with`] across chunks.
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
            // SAFETY: By the type invariant the chunk has `len` octets from `off` on.
            fill(unsafe { chunk.virt.as_ptr().add(off) }, len);
        });
        // INVARIANT: The chunks cover `end`.
        self.appended = end;
        let next = self.live.iter().position(|chunk| chunk.end() > end);
        self.filling = next.unwrap_or_default();
        Ok(())
    }

    /// Returns the current end.
    #[inline]
    pub fn mark(&self) -> Mark {
        Mark(self.appended)
    }

    /// Continues a CRC32c over what was appended since `mark` and TCP has not accepted.
    pub fn crc32c_since(&self, mark: Mark, seed: u32) -> u32 {
        let mut crc = seed;
        self.each_run(
            mark.0.max(self.accepted),
            self.appended,
            |chunk, off, len| {
                // SAFETY: By the type invariant the chunk has `len` octets from `off` on.
                let from = unsafe { chunk.virt.as_ptr().add(off) };
                // SAFETY: `update_raw` requires `len` octets readable: by the type invariant the
                // chunk has them from `off` on, and they were written when they were appended.
                crc = unsafe { crc32c::update_raw(crc, from, len) };
            },
        );
        crc
    }

    /// Changes a bit of the octet at `mark`, if it was appended and TCP has not accepted it.
    #[cold]
    pub fn flip(&mut self, mark: Mark) {
        if mark.0 < self.accepted || mark.0 >= self.appended {
            return;
        }
        self.each_run(mark.0, mark.0.wrapping_add(1), |chunk, off, _| {
            // SAFETY: By the type invariant the chunk has an octet at `off`.
            let octet = unsafe { chunk.virt.as_ptr().add(off) };
            // SAFETY: The octet was written when it was appended, and only the batch accesses it,
            // since TCP has not accepted it.
            unsafe { *octet ^= 1 };
        });
    }

    /// Removes what was appended since `mark` and TCP has not accepted.
    pub fn rewind(&mut self, mark: Mark) {
        // INVARIANT: Between `accepted` and `appended`.
        self.appended = mark.0.clamp(self.accepted, self.appended);
    }

    /// Calls `send` with a message of the unsent octets, at most `most` of them, and their number;
    /// removes as many as it returns.
    pub(super) fn send_with(
        &mut self,
        most: usize,
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
        let len = self.len().min(most);
        let mut flags = bindings::MSG_DONTWAIT
            | bindings::MSG_NOSIGNAL
            | bindings::MSG_SPLICE_PAGES
            | bindings::MSG_NO_SHARED_FRAGS;
        if more == SendHint::MoreFollows {
            flags |= bindings::MSG_MORE;
        }
        // SAFETY: All zeroes are a valid, empty `struct msghdr`. (`Default` would cost a call and a
        // copy.)
        let mut msg: bindings::msghdr = unsafe { core::mem::zeroed() };
        msg.msg_flags = flags;
        // SAFETY: The first `count` vectors are initialised and outlive the message; they describe
        // memory of chunks that this batch keeps. TCP takes references to the pages that it needs
        // longer.
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

    /// Removes octets that TCP accepted.
    #[inline]
    fn accept(&mut self, n: usize) {
        // CAST: `u64` has the bits of `usize`. INVARIANT: `n` is at most `len()`.
        self.accepted = self.accepted.wrapping_add(n as u64);
        // Usually the batch has one chunk, with room left.
        match self.live.only() {
            Some(chunk) if chunk.end() > self.accepted => {}
            _ => self.put_aside(),
        }
    }

    /// Moves chunks to `spare` that TCP has accepted entirely, and frees those that are not of full
    /// size.
    fn put_aside(&mut self) {
        let accepted = self.accepted;
        // INVARIANT: The moved chunks cover no unsent octets.
        while let Some(chunk) = self.live.take_front(|chunk| chunk.end() <= accepted) {
            // A stream that has used up a short one needs longer ones.
            if chunk.size < PAGE_SIZE << ORDER {
                continue;
            }
            if self.spare.is_full() {
                // Drops the oldest; TCP's references keep its pages as long as needed.
                self.spare.take_first(|_| true);
            }
            self.spare.push(chunk);
        }
    }

    /// For an empty batch: goes back to the start of the first chunk if TCP no longer references
    /// it, since that memory is in the CPU's cache.
    ///
    /// The offset inside a page stays the same. TCP limits the page fragments of a GSO packet; one
    /// of the usual 64 KiB just fits if its octets are laid out contiguously. One more page would
    /// make TCP split it elsewhere than between two segments.
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
            // INVARIANT: The chunks cover the stream from a position at or before `appended` on,
            // without gaps. Those behind the first are empty.
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

/// An ordered list of up to `N` chunks.
///
/// # Invariants
///
/// The first `len` entries are filled, the others empty.
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

    /// Returns the chunk if there is exactly one.
    #[inline]
    fn only(&self) -> Option<&Chunk> {
        if self.len == 1 {
            self.get(0)
        } else {
            None
        }
    }

    /// Adds a chunk at the end; drops it if the list is full.
    fn push(&mut self, chunk: Chunk) {
        if let Some(place) = self.chunks.get_mut(self.len) {
            // INVARIANT: This is the first empty entry.
            *place = Some(chunk);
            self.len = self.len.wrapping_add(1);
        }
    }

    /// Removes the first chunk for which `f` returns true.
    fn take_first(&mut self, f: impl Fn(&Chunk) -> bool) -> Option<Chunk> {
        let index = self.iter().position(f)?;
        let chunk = self.chunks.get_mut(index)?.take();
        // INVARIANT: The empty entry moves to the end of the filled ones.
        self.chunks.get_mut(index..self.len)?.rotate_left(1);
        self.len = self.len.saturating_sub(1);
        chunk
    }

    /// Removes the last chunk.
    fn take_last(&mut self) -> Option<Chunk> {
        let index = self.len.checked_sub(1)?;
        // INVARIANT: The entry behind the filled ones becomes empty.
        self.len = index;
        self.chunks.get_mut(index)?.take()
    }

    /// Removes the first chunk if `f` returns true for it.
    fn take_front(&mut self, f: impl Fn(&Chunk) -> bool) -> Option<Chunk> {
        if self.iter().next().is_some_and(f) {
            self.take_first(|_| true)
        } else {
            None
        }
    }
}
