// SPDX-License-Identifier: GPL-2.0

//! KUnit suite of batches, with a stand-in for TCP.

#[kernel::prelude::kunit_tests(riwarp_batch)]
mod batch {
    use super::super::*;

    /// Accepts up to `take` octets of a batch as TCP would, without keeping a page.
    fn take(batch: &mut TxBatch, take: usize) -> Result<usize> {
        batch.send_with(usize::MAX, SendHint::Push, |_, len| len.min(take) as c_int)
    }

    #[test]
    fn batch_len_counts_unsent_octets() -> Result {
        let mut batch = TxBatch::new();
        assert!(batch.is_empty() && batch.room() == 0);
        batch.put(&[1, 2, 3])?;
        batch.put_zeroes(2)?;
        assert_eq!(batch.len(), 5);
        assert_eq!(take(&mut batch, 4)?, 4);
        assert_eq!(batch.len(), 1);
        assert_eq!(take(&mut batch, 4)?, 1);
        assert!(batch.is_empty());
        // An empty batch does not call `send`.
        let sent = batch.send_with(usize::MAX, SendHint::Push, |_, _| -1);
        assert_eq!(sent, Ok(0));
        Ok(())
    }

    #[test]
    fn batch_sends_at_most_the_given_octets() -> Result {
        let mut batch = TxBatch::new();
        batch.put(&[1; 100])?;
        let mut offered = |most| {
            let mut seen = 0;
            let sent = batch.send_with(most, SendHint::MoreFollows, |_, len| {
                seen = len;
                len as c_int
            });
            assert_eq!(sent, Ok(seen));
            seen
        };
        for (most, seen) in [(60, 60), (60, 40), (60, 0)] {
            assert_eq!(offered(most), seen);
        }
        Ok(())
    }

    #[test]
    fn sums_octets_across_chunks() -> Result {
        let mut batch = TxBatch::new();
        let octets: [u8; 256] = crate::random::octets();
        let mut crc = crc32c::INIT;
        let start = batch.mark();
        // More than one chunk, in pieces that do not divide a chunk.
        for len in (1..250).cycle() {
            if batch.len() > 2 * (PAGE_SIZE << ORDER) {
                break;
            }
            let (piece, _) = octets.split_at(len);
            batch.put(piece)?;
            crc = crc32c::update(crc, piece);
        }
        assert_eq!(batch.crc32c_since(start, crc32c::INIT), crc);
        Ok(())
    }

    #[test]
    fn rewind_removes_octets_put_after_mark() -> Result {
        let mut batch = TxBatch::new();
        batch.put(b"stays")?;
        let mark = batch.mark();
        batch.put(&[0; 10_000])?;
        batch.rewind(mark);
        assert_eq!(batch.len(), 5);
        batch.put(b"!")?;
        let crc = crc32c::update(crc32c::INIT, b"!");
        assert_eq!(batch.crc32c_since(mark, crc32c::INIT), crc);
        Ok(())
    }

    #[test]
    fn rewind_keeps_octets_sent_by_tcp() -> Result {
        let mut batch = TxBatch::new();
        let mark = batch.mark();
        batch.put(&[7; 100])?;
        assert_eq!(take(&mut batch, 60)?, 60);
        batch.rewind(mark);
        assert!(batch.is_empty());
        batch.put(&[8; 3])?;
        let crc = crc32c::update(crc32c::INIT, &[8; 3]);
        assert_eq!(batch.crc32c_since(mark, crc32c::INIT), crc);
        Ok(())
    }

    #[test]
    fn reserve_makes_room_for_put() -> Result {
        let mut batch = TxBatch::new();
        let len = 3 * (PAGE_SIZE << ORDER) + 1;
        batch.reserve(len, Grow::Sleep)?;
        let room = batch.room();
        assert!(room >= len);
        batch.put(&[1; 1000])?;
        assert_eq!(batch.room(), room - 1000);
        Ok(())
    }

    #[test]
    fn full_batch_refuses_put_and_keeps_content() -> Result {
        let mut batch = TxBatch::new();
        batch.put(b"first")?;
        let whole = LIVE * (PAGE_SIZE << ORDER);
        let refused = batch.reserve(whole, Grow::Sleep);
        assert_eq!(refused, Err(ENOSPC));
        assert_eq!(batch.len(), 5);
        batch.reserve(TxBatch::CAPACITY, Grow::Sleep)?;
        Ok(())
    }

    #[test]
    fn idle_batch_keeps_only_unsent_octets() -> Result {
        let mut batch = TxBatch::new();
        let chunk = PAGE_SIZE << ORDER;
        assert!(!batch.has_spare());
        // A chunk of one page, some free ones, some with unsent octets, and empty ones.
        batch.put(&[1; 8])?;
        assert_eq!(batch.room(), PAGE_SIZE - 8);
        assert!(!batch.has_spare());
        batch.put_zeroes(PAGE_SIZE + 5 * chunk)?;
        take(&mut batch, PAGE_SIZE + 3 * chunk)?;
        batch.reserve(6 * chunk, Grow::Sleep)?;
        assert!(batch.has_spare());
        batch.give_back();
        assert_eq!(batch.len(), 2 * chunk + 8);
        assert_eq!((batch.live.len, batch.spare.len), (3, 0));
        // Unsent octets are unchanged, and the last chunk has room.
        batch.put(b"end")?;
        assert_eq!(take(&mut batch, 2 * chunk + 8)?, 2 * chunk + 8);
        let mark = batch.mark();
        assert_eq!(batch.crc32c_since(mark, crc32c::INIT), crc32c::INIT);
        assert_eq!(batch.len(), 3);
        batch.give_back();
        assert_eq!((batch.len(), batch.live.len), (3, 1));
        // Keeps nothing if all is sent, and begins with a page again.
        batch.reserve(4 * chunk, Grow::Sleep)?;
        batch.put_zeroes(batch.room() - 1)?;
        let all = batch.len();
        take(&mut batch, all)?;
        assert_eq!(batch.live.len, 1);
        batch.give_back();
        assert_eq!((batch.live.len, batch.spare.len), (0, 0));
        batch.put(b"again")?;
        assert_eq!(batch.room(), PAGE_SIZE - 5);
        assert!(!batch.has_spare());
        Ok(())
    }

    #[test]
    fn first_chunk_is_page_and_later_ones_full_size() -> Result {
        let mut batch = TxBatch::new();
        batch.put(&[1; PAGE_SIZE])?;
        take(&mut batch, PAGE_SIZE)?;
        // A page is kept only if that is the full size.
        let kept = usize::from(ORDER == 0);
        assert_eq!((batch.live.len, batch.spare.len), (0, kept));
        batch.put(&[1; 8])?;
        assert_eq!(batch.room(), (PAGE_SIZE << ORDER) - 8);
        // One page does not suffice for what comes first.
        let mut batch = TxBatch::new();
        batch.reserve(PAGE_SIZE + 1, Grow::Sleep)?;
        let chunk = PAGE_SIZE << ORDER;
        assert_eq!(batch.room(), (PAGE_SIZE + 1).next_multiple_of(chunk));
        Ok(())
    }

    #[test]
    fn chunk_released_by_tcp_is_reused() -> Result {
        let full = PAGE_SIZE << ORDER;
        // A page of a chunk, and all of it.
        for len in [PAGE_SIZE, full] {
            let mut batch = TxBatch::new();
            batch.reserve(full, Grow::Sleep)?;
            batch.put_zeroes(len)?;
            let first = batch.live.get(0).map(|chunk| chunk.page);
            take(&mut batch, len)?;
            assert_eq!(batch.live.len + batch.spare.len, 1);
            batch.reserve(full, Grow::Sleep)?;
            let again = batch.live.get(0).map(|chunk| (chunk.page, chunk.base));
            // The same chunk, from its start.
            assert_eq!(again, first.map(|page| (page, batch.appended)));
        }
        Ok(())
    }
}
