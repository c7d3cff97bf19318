// SPDX-License-Identifier: GPL-2.0

//! KUnit suite of `Memory`.

#[kernel::prelude::kunit_tests(riwarp_mem_map)]
mod mem_map {
    use super::super::*;

    use crate::net::bench::eventually;
    use crate::net::bench::pair;
    use crate::net::Family;
    use crate::net::SendHint;
    use crate::net::TxBatch;
    use kernel::alloc::KVec;

    /// Two pieces of 64 octets that do not adjoin, in a buffer of 256, like memory of a process.
    struct TestMemory {
        memory: Memory,
        buffer: KVec<u8>,
    }

    const PIECE: usize = 64;
    const SECOND: usize = 160;

    fn pinned(writable: bool) -> Result<TestMemory> {
        let mut buffer = KVec::from_elem(0xee, 256, GFP_KERNEL)?;
        let mut list = PageList::with_capacity(2, writable)?;
        let start = buffer.as_mut_ptr();
        // SAFETY: 64 octets of the buffer, which is dropped after the list.
        unsafe { list.push(start, PIECE) }?;
        // SAFETY: Octets of the same buffer, which is dropped after the list.
        unsafe { list.push(start.add(SECOND), PIECE) }?;
        let memory = Memory::Pages(list);
        Ok(TestMemory { memory, buffer })
    }

    #[test]
    fn copies_cross_from_piece_to_piece() -> Result {
        let pinned = pinned(true)?;
        let octets: [u8; 100] = crate::random::octets();
        pinned.memory.write(20, &octets)?;
        let mut again = [0; 100];
        pinned.memory.read(20, &mut again)?;
        assert_eq!(again, octets);
        let buffer = pinned.buffer.as_slice();
        assert_eq!(buffer[20..64], octets[..44]);
        assert_eq!(buffer[SECOND..SECOND + 56], octets[44..]);
        // The octets between and around them are untouched.
        assert!(buffer[..20].iter().all(|octet| *octet == 0xee));
        assert!(buffer[64..SECOND].iter().all(|octet| *octet == 0xee));
        assert!(buffer[SECOND + 56..].iter().all(|octet| *octet == 0xee));
        Ok(())
    }

    #[test]
    fn write_beyond_end_writes_nothing() -> Result {
        let pinned = pinned(true)?;
        assert_eq!(pinned.memory.len(), 128);
        for (offset, len) in [(0, 129), (128, 1), (127, 2), (u64::MAX, 1), (u64::MAX, 2)] {
            let octets = [0; 129];
            let refused = pinned.memory.write(offset, &octets[..len]);
            assert_eq!(refused, Err(EFAULT));
            let mut octets = [0; 129];
            let refused = pinned.memory.read(offset, &mut octets[..len]);
            assert_eq!(refused, Err(EFAULT));
        }
        assert!(pinned.buffer.iter().all(|octet| *octet == 0xee));
        Ok(())
    }

    #[test]
    fn write_back_stays_inside_memory() -> Result {
        let pinned = pinned(true)?;
        for (offset, len) in [(0, 128), (10, 60), (64, 64), (128, 0)] {
            pinned.memory.write_back(offset, len)?;
        }
        for (offset, len) in [(0, 129), (128, 1), (u64::MAX, 2)] {
            assert_eq!(pinned.memory.write_back(offset, len), Err(EFAULT));
        }
        // It changes nothing, and needs no right to write.
        assert!(pinned.buffer.iter().all(|octet| *octet == 0xee));
        Ok(())
    }

    #[test]
    fn only_pinned_memory_can_be_persistent() -> Result {
        assert!(!pinned(true)?.memory.is_persistent());
        assert!(!Memory::nothing().is_persistent());
        Ok(())
    }

    #[test]
    fn read_only_memory_is_not_written() -> Result {
        let pinned = pinned(false)?;
        assert!(!pinned.memory.is_writable());
        assert_eq!(pinned.memory.write(0, &[1]), Err(EACCES));
        assert_eq!(pinned.memory.update_u64(0, |old| old).err(), Some(EACCES));
        assert!(pinned.memory.read(0, &mut [0; 8]).is_ok());
        Ok(())
    }

    #[test]
    fn run_ends_with_its_piece() -> Result {
        let pinned = pinned(true)?;
        let run = |offset, max| pinned.memory.run(offset, max).map(|run| run.len());
        assert_eq!(run(0, 1000), Some(64));
        assert_eq!(run(63, 1000), Some(1));
        assert_eq!(run(64, 1000), Some(64));
        assert_eq!(run(100, 5), Some(5));
        assert_eq!(run(127, 5), Some(1));
        assert_eq!(run(128, 5), None);
        assert_eq!(run(0, 0), None);
        Ok(())
    }

    #[test]
    fn adjacent_pieces_are_merged() -> Result {
        let mut buffer = KVec::from_elem(0u8, 96, GFP_KERNEL)?;
        let mut list = PageList::with_capacity(3, true)?;
        for at in [0, 32, 64] {
            // SAFETY: 32 octets of the buffer, which is dropped after the list.
            unsafe { list.push(buffer.as_mut_ptr().add(at), 32) }?;
        }
        assert_eq!(list.pieces(), 1);
        let memory = Memory::Pages(list);
        assert_eq!(memory.run(0, 1000).map(|run| run.len()), Some(96));
        drop(memory);
        Ok(())
    }

    #[test]
    fn lookup_finds_each_piece_from_each_hint() -> Result {
        // Every other octet pair of the buffer is a piece.
        let mut buffer = KVec::from_elem(0u8, 80, GFP_KERNEL)?;
        for (place, octet) in buffer.iter_mut().enumerate() {
            *octet = place as u8;
        }
        let mut list = PageList::with_capacity(20, true)?;
        for at in (0..80).step_by(4) {
            // SAFETY: 2 octets of the buffer, which is dropped after the list.
            unsafe { list.push(buffer.as_mut_ptr().add(at), 2) }?;
        }
        let memory = Memory::Pages(list);
        for from in 0..40u64 {
            for to in [0, 1, from / 2, from, 39] {
                let mut octet = [0];
                memory.read(from, &mut octet)?;
                memory.read(to, &mut octet)?;
                assert_eq!(u64::from(octet[0]), to / 2 * 4 + to % 2);
            }
        }
        drop(memory);
        Ok(())
    }

    #[test]
    fn update_of_word_split_over_two_runs_fails() -> Result {
        let pinned = pinned(true)?;
        pinned.memory.write(8, &5u64.to_ne_bytes())?;
        let old = pinned.memory.update_u64(8, |old| old + 1)?;
        assert_eq!(old, 5);
        let mut word = [0; 8];
        pinned.memory.read(8, &mut word)?;
        assert_eq!(u64::from_ne_bytes(word), 6);
        assert_eq!(pinned.memory.update_u64(4, |old| old), Err(EINVAL));
        // Across the end of the first piece, and of the memory.
        assert_eq!(pinned.memory.update_u64(60, |old| old), Err(EFAULT));
        assert_eq!(pinned.memory.update_u64(124, |old| old), Err(EFAULT));
        Ok(())
    }

    #[test]
    fn atomic_instructions_return_original_value() -> Result {
        let pinned = pinned(true)?;
        let memory = &pinned.memory;
        memory.write(8, &5u64.to_ne_bytes())?;
        assert_eq!(memory.fetch_add_u64(8, 7), Ok(5));
        assert_eq!(memory.exchange_u64(8, 1), Ok(12));
        assert_eq!(memory.compare_exchange_u64(8, 2, 9), Ok(1));
        assert_eq!(memory.compare_exchange_u64(8, 1, 9), Ok(1));
        assert_eq!(memory.fetch_add_u64(8, u64::MAX), Ok(9));
        assert_eq!(memory.update_u64(8, |old| old)?, 8);
        for refused in [
            memory.fetch_add_u64(4, 1),
            memory.exchange_u64(4, 1),
            memory.compare_exchange_u64(4, 0, 1),
        ] {
            assert_eq!(refused, Err(EINVAL));
        }
        assert_eq!(memory.fetch_add_u64(124, 1), Err(EFAULT));
        Ok(())
    }

    /// A process that changes the word without a pause does not keep a softirq.
    #[test]
    fn update_gives_up_if_word_changes_each_time() -> Result {
        let pinned = pinned(true)?;
        pinned.memory.write(8, &[0; 8])?;
        let mut looks = 0;
        let result = pinned.memory.update_u64(8, |old| {
            looks += 1;
            // Bounded, so that an update without a limit ends too.
            if looks < 10 * UPDATE_ATTEMPTS {
                let _ = pinned.memory.fetch_add_u64(8, 1);
            }
            old | 1 << 63
        });
        assert_eq!((result, looks), (Err(EBUSY), UPDATE_ATTEMPTS));
        assert_eq!(pinned.memory.fetch_add_u64(8, 0)?, looks.into());
        Ok(())
    }

    /// A peer's atomic operation does not lose a concurrent addition to the word between its load
    /// and its store (RFC 7306, section 5).
    #[test]
    fn update_keeps_concurrent_addition() -> Result {
        let pinned = pinned(true)?;
        pinned.memory.update_u64(8, |_| 5)?;
        let mut looks = 0;
        let mut others = Ok(0);
        let old = pinned.memory.update_u64(8, |old| {
            looks += 1;
            if looks == 1 {
                others = pinned.memory.update_u64(8, |old| old + 100);
            }
            old + 1
        })?;
        assert_eq!(others, Ok(5));
        assert_eq!((old, looks), (105, 2));
        assert_eq!(pinned.memory.update_u64(8, |old| old)?, 106);
        Ok(())
    }

    #[test]
    fn pages_of_a_kernel_consumer_begin_inside_the_first() -> Result {
        const PAGE: usize = 32;
        let mut buffer = KVec::from_elem(0u8, 4 * PAGE, GFP_KERNEL)?;
        let start = buffer.as_mut_ptr().expose_provenance() as u64;
        // SAFETY: The addresses below are of this function's own buffer.
        let proof = unsafe { KernelOwned::new_unchecked() };
        let (pages, memory) = KernelPages::try_new(proof, Shape::Pages, 3)?;
        // The list is empty so far.
        assert!(memory.is_empty() && memory.run(0, 1).is_none());
        for page in [2, 3, 0u64] {
            pages.push(start + page * PAGE as u64, PAGE as u64)?;
        }
        assert_eq!(pages.push(start, PAGE as u64), Err(ENOMEM));
        pages.finish(8, 70);
        // Two pages in a row less the first 8 octets, then the other.
        assert_eq!(memory.run(0, 1000).map(|run| run.len()), Some(56));
        assert_eq!(memory.run(56, 1000).map(|run| run.len()), Some(14));
        assert!(memory.run(70, 1).is_none());
        memory.write(0, &[1; 70])?;
        assert_eq!(memory.write(0, &[2; 71]), Err(EFAULT));
        let octets = buffer.as_slice();
        assert!(octets[..14].iter().all(|octet| *octet == 1));
        assert!(octets[14..2 * PAGE + 8].iter().all(|octet| *octet == 0));
        assert!(octets[2 * PAGE + 8..].iter().all(|octet| *octet == 1));
        pages.clear();
        assert_eq!(memory.read(0, &mut [0]), Err(EFAULT));
        Ok(())
    }

    #[test]
    fn virtual_memory_starts_at_given_address() -> Result {
        let buffer = KVec::from_elem(9u8, 32, GFP_KERNEL)?;
        // SAFETY: The addresses below are of this function's own buffer.
        let proof = || unsafe { KernelOwned::new_unchecked() };
        let start = buffer.as_ptr().expose_provenance() as u64;
        let memory = Memory::kernel_virtual(proof(), start, 32)?;
        memory.write(30, &[1, 2])?;
        assert_eq!(memory.write(31, &[1, 2]), Err(EFAULT));
        assert_eq!(buffer[29..], [9, 1, 2]);
        // All of kernel memory: offsets are addresses.
        let all = Memory::kernel_virtual(proof(), 0, u64::MAX)?;
        let mut octets = [0; 2];
        all.read(start + 30, &mut octets)?;
        assert_eq!(octets, [1, 2]);
        Ok(())
    }

    #[test]
    fn memory_is_copied_to_batch_in_order() -> Result {
        let pinned = pinned(true)?;
        let octets: [u8; 128] = crate::random::octets();
        pinned.memory.write(0, &octets)?;
        let mut batch = TxBatch::new();
        let start = batch.mark();
        pinned.memory.copy_to_batch(10, 100, &mut batch)?;
        assert_eq!(batch.len(), 100);
        let crc = crate::crc32c::update(crate::crc32c::INIT, &octets[10..110]);
        assert_eq!(batch.crc32c_since(start, crate::crc32c::INIT), crc);
        let refused = pinned.memory.copy_to_batch(100, 29, &mut batch);
        assert_eq!(refused, Err(EFAULT));
        assert_eq!(batch.len(), 100);
        Ok(())
    }

    #[test]
    fn octets_may_be_placed_over_their_own_source() -> Result {
        let (active, passive) = pair(Family::V4)?;
        let octets: [u8; 256] = crate::random::octets();
        let mut batch = TxBatch::new();
        batch.put(&octets)?;
        assert_eq!(active.send_batch(&mut batch, SendHint::Push), Ok(256));
        eventually(|| passive.with_inbound(|inbound| inbound.available() == 256))?;
        for marked in [false, true] {
            let (placed, at_8) = passive.with_inbound(|inbound| {
                let mut start = core::ptr::null();
                let one = inbound.for_each_chunk(0, 256, |from, _| start = from);
                if marked {
                    inbound.mark(0);
                }
                // SAFETY: The addresses below are of octets of the receive queue, which nothing
                // else uses.
                let proof = unsafe { KernelOwned::new_unchecked() };
                let base = start.expose_provenance() as u64 + 8;
                let memory = Memory::kernel_virtual(proof, base, 128)?;
                let mut before = [0; 128];
                let all = one && inbound.peek(0, &mut before);
                memory.copy_from_inbound(0, inbound, 0, 128)?;
                let mut after = [0; 128];
                memory.read(0, &mut after)?;
                Ok::<_, Error>((all, before == after))
            })?;
            assert!(placed && at_8);
        }
        Ok(())
    }
}
