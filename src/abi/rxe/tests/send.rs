// SPDX-License-Identifier: GPL-2.0

//! Send requests.

#[kernel::prelude::kunit_tests(riwarp_abi_rxe_send)]
mod suite {
    use super::super::*;

    /// Makes the first octets of a request with a list of `num_sge` elements; all fields differ.
    fn head(opcode: u32, flags: SendFlags, num_sge: u32) -> [u8; SEND_LEN] {
        let mut head = [0; SEND_LEN];
        let mut put = |at: usize, value: &[u8]| head[at..at + value.len()].copy_from_slice(value);
        put(0, &ID.to_ne_bytes());
        put(12, &opcode.to_ne_bytes());
        put(16, &flags.bits().to_ne_bytes());
        put(20, &[0xa1, 0xa2, 0xa3, 0xa4]);
        put(24, &0x0102_0304_0506_0708u64.to_ne_bytes());
        for (n, at) in (0xb0..).zip((32..56).step_by(4)) {
            put(at, &[n; 4]);
        }
        put(196, &num_sge.to_ne_bytes());
        head
    }

    /// Makes the first octets of a request with inline data of `len` octets.
    fn inline(len: u32) -> [u8; SEND_LEN] {
        let mut head = head(OP_SEND, SendFlags::INLINE, 0);
        head[184..188].copy_from_slice(&len.to_ne_bytes());
        head
    }

    /// Makes a queue with elements of the maximum length.
    fn ring() -> Result<RxeSendRing> {
        RxeSendRing::new(4, MAX_SGE as u32, MAX_INLINE as u32)
    }

    /// Stores a request at `position` of a ring, and takes it.
    fn taken_at(ring: &RxeSendRing, position: u32, head: &[u8; SEND_LEN]) -> Result<SendWr> {
        store(&ring.0, position, head)?;
        let mut wr = SendWr::default();
        let read = ring.read(position, &mut wr).ok_or(ENOENT)?;
        ring.release(position);
        read.map_err(|_| EINVAL)?;
        Ok(wr)
    }

    fn taken(head: &[u8; SEND_LEN]) -> Result<SendWr> {
        taken_at(&ring()?, 0, head)
    }

    fn refusal_at(ring: &RxeSendRing, head: &[u8; SEND_LEN]) -> Option<(u64, WcStatus)> {
        store(&ring.0, 1, head).ok()?;
        let mut wr = SendWr::default();
        let bad = ring.read(1, &mut wr)?.err()?;
        // It leaves no octets to send.
        (wr.payload.len() == 0).then_some((bad.id, bad.status))
    }

    fn refusal(head: &[u8; SEND_LEN]) -> Option<(u64, WcStatus)> {
        refusal_at(&ring().ok()?, head)
    }

    const TOO_LONG: Option<(u64, WcStatus)> = Some((ID, WcStatus::LocalLength));

    /// Returns the Immediate Data of a Write, which has to name the buffer of `head`, and has no
    /// more octets than the verbs have.
    fn immediate_of_write(wr: &SendWr) -> Result<Option<[u8; 4]>> {
        let SendOp::Write {
            stag,
            to,
            immediate,
        } = wr.op
        else {
            return Err(EINVAL);
        };
        assert_eq!((stag.raw(), to), (0xb0b0_b0b0, 0x0102_0304_0506_0708));
        match immediate {
            Some([a, b, c, d, 0, 0, 0, 0]) => Ok(Some([a, b, c, d])),
            Some(_) => Err(EINVAL),
            None => Ok(None),
        }
    }

    #[test]
    fn write_request_carries_remote_address_and_key() -> Result {
        for (opcode, expected) in [
            (OP_WRITE, None),
            (OP_WRITE_WITH_IMM, Some([0xa1, 0xa2, 0xa3, 0xa4])),
        ] {
            let wr = taken(&head(opcode, SendFlags::empty(), 1))?;
            let immediate = immediate_of_write(&wr)?;
            assert_eq!(immediate, expected);
            assert_eq!(wr.id, ID);
        }
        Ok(())
    }

    #[test]
    fn send_opcodes_are_decoded() -> Result {
        let octets = [0xa1, 0xa2, 0xa3, 0xa4];
        let stag = Stag::new(u32::from_ne_bytes(octets));
        for (opcode, expected) in [
            (OP_SEND, SendExtra::None),
            (OP_SEND_WITH_IMM, SendExtra::Immediate(octets)),
            (OP_SEND_WITH_INV, SendExtra::Invalidate(stag)),
        ] {
            let SendOp::Send(extra) = taken(&head(opcode, SendFlags::empty(), 1))?.op else {
                return Err(EINVAL);
            };
            assert_eq!(extra, expected);
        }
        Ok(())
    }

    #[test]
    fn read_request_does_not_invalidate_its_sink() -> Result {
        let SendOp::Read {
            stag,
            to,
            invalidate_local,
        } = taken(&head(OP_READ, SendFlags::empty(), 1))?.op
        else {
            return Err(EINVAL);
        };
        assert_eq!((stag.raw(), to), (0xb0b0_b0b0, 0x0102_0304_0506_0708));
        assert!(!invalidate_local);
        Ok(())
    }

    #[test]
    fn atomic_request_key_follows_operands() -> Result {
        let (first, second) = (0xb1b1_b1b1_b0b0_b0b0, 0xb3b3_b3b3_b2b2_b2b2);
        let swap = AtomicOperation::CompareSwap {
            swap: second,
            swap_mask: u64::MAX,
            compare: first,
            compare_mask: u64::MAX,
        };
        let add = AtomicOperation::FetchAdd {
            add: first,
            mask: 0,
        };
        for (asked, expected, completion) in [
            (OP_COMPARE_SWAP, swap, WcOpcode::CompareSwap),
            (OP_FETCH_ADD, add, WcOpcode::FetchAdd),
        ] {
            let SendOp::Atomic {
                stag,
                to,
                operation,
                opcode,
            } = taken(&head(asked, SendFlags::empty(), 1))?.op
            else {
                return Err(EINVAL);
            };
            assert_eq!((stag.raw(), to), (0xb4b4_b4b4, 0x0102_0304_0506_0708));
            assert_eq!((operation, opcode), (expected, completion));
        }
        Ok(())
    }

    #[test]
    fn local_invalidate_and_bind_requests_carry_their_keys() -> Result {
        let wr = taken(&head(OP_LOCAL_INV, SendFlags::empty(), 0))?;
        let SendOp::LocalInv { stag } = wr.op else {
            return Err(EINVAL);
        };
        assert_eq!(stag.raw().to_ne_bytes(), [0xa1, 0xa2, 0xa3, 0xa4]);
        let SendOp::Bind(bind) = taken(&head(OP_BIND_MW, SendFlags::empty(), 0))?.op else {
            return Err(EINVAL);
        };
        let keys = [bind.region, bind.window, bind.key].map(Stag::raw);
        assert_eq!(keys, [0xb2b2_b2b2, 0xb3b3_b3b3, 0xb4b4_b4b4]);
        assert_eq!(bind.addr, 0x0102_0304_0506_0708);
        assert_eq!(bind.len, 0xb1b1_b1b1_b0b0_b0b0);
        assert_eq!(bind.access, AccessFlags::from_bits(0xb5b5_b5b5));
        Ok(())
    }

    #[test]
    fn atomic_write_request_carries_remote_address_and_key() -> Result {
        let mut head = head(OP_ATOMIC_WRITE, SendFlags::empty(), 0);
        head[LEN_AT..LEN_AT + 4].copy_from_slice(&8u32.to_ne_bytes());
        let wr = taken(&head)?;
        let SendOp::AtomicWrite { stag, to } = wr.op else {
            return Err(EINVAL);
        };
        assert_eq!((stag.raw(), to), (0xb0b0_b0b0, 0x0102_0304_0506_0708));
        assert_eq!(wr.payload.inline().map(<[u8]>::len), Some(8));
        Ok(())
    }

    /// Stores a masked operation whose list has these lengths and, as addresses, 1 and so on.
    fn masked_of(opcode: u32, flags: SendFlags, lengths: &[u32]) -> Result<RxeSendRing> {
        let ring = ring()?;
        let count = lengths.len() as u32;
        let mut head = head(opcode, flags, count);
        head[152..160].copy_from_slice(&0x0908_0706_0504_0300u64.to_ne_bytes());
        store(&ring.0, 0, &head)?;
        for (n, len) in lengths.iter().enumerate() {
            let mut element = sge(n);
            element[..8].copy_from_slice(&(n as u64 + 1).to_ne_bytes());
            element[8..12].copy_from_slice(&len.to_ne_bytes());
            let at = ring.0.at(0) + SEND_LEN + n * SGE_LEN;
            ring.0.memory.copy_in(at, &element)?;
        }
        Ok(ring)
    }

    #[test]
    fn masked_atomic_operands_are_in_the_sge_list() -> Result {
        let add = AtomicOperation::FetchAdd { add: 2, mask: 3 };
        let swap = AtomicOperation::CompareSwap {
            swap: 4,
            swap_mask: 5,
            compare: 2,
            compare_mask: 3,
        };
        for (number, lengths, expected) in [
            (OP_MASKED_FETCH_ADD, &[8, 0, 0][..], add),
            (OP_MASKED_COMPARE_SWAP, &[8, 0, 0, 0, 0][..], swap),
        ] {
            let ring = masked_of(number, SendFlags::empty(), lengths)?;
            let mut wr = SendWr::default();
            assert!(ring.read(0, &mut wr).is_some_and(|read| read.is_ok()));
            let SendOp::Atomic {
                stag,
                to,
                operation,
                ..
            } = wr.op
            else {
                return Err(EINVAL);
            };
            assert_eq!(stag.raw(), u32::from_ne_bytes([0xa1, 0xa2, 0xa3, 0xa4]));
            assert_eq!(to, 0x0908_0706_0504_0300);
            assert!(operation == expected);
            assert!(wr
                .payload
                .sges()
                .map(|sge| (sge.addr, sge.len))
                .eq([(1, 8)]));
        }
        for (number, flags, lengths) in [
            (OP_IMMEDIATE, SendFlags::empty(), &[][..]),
            (OP_IMMEDIATE, SendFlags::empty(), &[8]),
            (OP_IMMEDIATE, SendFlags::empty(), &[8, 0]),
            (OP_IMMEDIATE, SendFlags::INLINE, &[8, 0]),
            (OP_MASKED_FETCH_ADD, SendFlags::empty(), &[]),
            (OP_MASKED_FETCH_ADD, SendFlags::empty(), &[8, 0]),
            (OP_MASKED_FETCH_ADD, SendFlags::empty(), &[8, 0, 0, 0]),
            (OP_MASKED_FETCH_ADD, SendFlags::empty(), &[8, 0, 8]),
            (OP_MASKED_FETCH_ADD, SendFlags::INLINE, &[8, 0, 0]),
            (OP_MASKED_COMPARE_SWAP, SendFlags::empty(), &[8, 0, 0, 0]),
            (OP_MASKED_COMPARE_SWAP, SendFlags::empty(), &[8, 0, 1, 0, 0]),
            (
                OP_MASKED_COMPARE_SWAP,
                SendFlags::empty(),
                &[8, 0, 0, 0, 0, 0],
            ),
        ] {
            let ring = masked_of(number, flags, lengths)?;
            let mut wr = SendWr::default();
            let bad = ring.read(0, &mut wr).and_then(Result::err).ok_or(EINVAL)?;
            assert_eq!(bad.status, WcStatus::LocalLength);
            assert_eq!(wr.payload.len(), 0);
        }
        Ok(())
    }

    #[test]
    fn immediate_data_octets_are_in_the_sge_list() -> Result {
        // The key of each element is 0 alone, 1 behind a Write.
        for (lengths, lkey, is_good) in [
            (&[0][..], 0, true),
            (&[0], 1, true),
            (&[8, 0], 1, true),
            (&[8, 9, 0], 1, true),
            (&[8, 0], 0, false),
            (&[0], 2, false),
        ] {
            let ring = masked_of(OP_IMMEDIATE, SendFlags::empty(), lengths)?;
            let last = lengths.len() - 1;
            let at = ring.0.at(0) + SEND_LEN + last * SGE_LEN;
            let mut element = sge(last);
            element[..8].copy_from_slice(b"abcdefgh");
            element[8..12].fill(0);
            element[12..].copy_from_slice(&u32::to_ne_bytes(lkey));
            ring.0.memory.copy_in(at, &element)?;
            let mut wr = SendWr::default();
            let read = ring.read(0, &mut wr).ok_or(EINVAL)?;
            assert_eq!(read.is_ok(), is_good);
            if !is_good {
                continue;
            }
            match (lkey, &wr.op) {
                (0, SendOp::Immediate(data)) => assert_eq!(data, b"abcdefgh"),
                (
                    1,
                    SendOp::Write {
                        stag,
                        to: 0x0908_0706_0504_0300,
                        immediate: Some(data),
                    },
                ) => {
                    assert_eq!(stag.raw(), u32::from_ne_bytes([0xa1, 0xa2, 0xa3, 0xa4]));
                    assert_eq!(data, b"abcdefgh");
                }
                _ => return Err(EINVAL),
            }
            assert!(wr
                .payload
                .sges()
                .map(|sge| sge.len)
                .eq(lengths[..last].iter().copied()));
        }
        Ok(())
    }

    /// Makes the first octets of a Flush of 5000 octets.
    fn flush_of(placement: u8, level: u8, num_sge: u32) -> [u8; SEND_LEN] {
        let mut head = head(OP_FLUSH, SendFlags::empty(), num_sge);
        (head[40], head[41]) = (placement, level);
        head[LEN_AT..LEN_AT + 4].copy_from_slice(&5000u32.to_ne_bytes());
        head
    }

    #[test]
    fn flush_request_has_range_and_no_payload() -> Result {
        for (bits, level) in [(1, FlushLevel::Range), (2, FlushLevel::Region)] {
            let wr = taken(&flush_of(bits, level as u8, 0))?;
            let SendOp::Flush(request) = wr.op else {
                return Err(EINVAL);
            };
            let expected = FlushRequest {
                placement: FlushPlacement::from_bits(bits).ok_or(EINVAL)?,
                level,
                stag: Stag::new(0xb1b1_b1b1),
                to: TaggedOffset::new(0x0102_0304_0506_0708),
                len: 5000,
            };
            assert!(request == expected);
            assert_eq!(wr.payload.len(), 0);
            assert!(wr.payload.inline().is_none());
        }
        let refused = Some((ID, WcStatus::LocalQpOperation));
        for (placement, level, num_sge) in [(0, 0, 0), (4, 0, 0), (1, 2, 0), (1, 0, 1)] {
            assert_eq!(refusal(&flush_of(placement, level, num_sge)), refused);
        }
        Ok(())
    }

    #[test]
    fn unknown_opcodes_are_refused() {
        // 10 is a Send with TSO; the kernel's opcodes begin at 0x20 and
        // 0xf0.
        let known = OP_WRITE..=OP_SEND_WITH_INV;
        let high = [1 << 8, 1 << 16 | OP_SEND, 1 << 31 | OP_WRITE, u32::MAX];
        for opcode in Iterator::chain(0..=u32::from(u8::MAX), high) {
            // A Flush has no list, the others a longer one.
            let expected = if known.contains(&opcode) || opcode == OP_ATOMIC_WRITE {
                None
            } else if let OP_IMMEDIATE | OP_MASKED_COMPARE_SWAP | OP_MASKED_FETCH_ADD = opcode {
                TOO_LONG
            } else {
                Some((ID, WcStatus::LocalQpOperation))
            };
            assert_eq!(refusal(&head(opcode, SendFlags::empty(), 1)), expected);
        }
    }

    #[test]
    fn send_flags_are_decoded_one_by_one() -> Result {
        for (flag, expected) in [
            (SendFlags::SIGNALED, [true, false, false]),
            (SendFlags::SOLICITED, [false, true, false]),
            (SendFlags::FENCE, [false, false, true]),
            (SendFlags::empty(), [false; 3]),
            // All flags that the device does not know.
            (SendFlags::from_bits(!0xf), [false; 3]),
        ] {
            let wr = taken(&head(OP_SEND, flag, 1))?;
            assert_eq!([wr.signalled, wr.solicited, wr.fence], expected);
            assert!(wr.payload.inline().is_none());
        }
        Ok(())
    }

    #[test]
    fn sge_count_limits_elements_read() -> Result {
        for count in 0..=MAX_SGE {
            let wr = taken(&head(OP_SEND, SendFlags::empty(), count as u32))?;
            assert!(are_sges(&wr.payload, count));
        }
        let more = MAX_SGE as u32 + 1;
        for count in [more, 37, 1 << 16, 1 << 28, 1 << 31, u32::MAX] {
            let bad = head(OP_SEND, SendFlags::empty(), count);
            assert_eq!(refusal(&bad), TOO_LONG);
        }
        Ok(())
    }

    #[test]
    fn sge_list_does_not_reach_into_next_request() -> Result {
        // Elements of 256 octets, 48 of them for the list.
        let ring = RxeSendRing::new(4, 2, 0)?;
        assert_eq!((ring.max_sge(), ring.max_inline()), (3, 48));
        store(&ring.0, 2, &head(OP_SEND, SendFlags::empty(), 1))?;
        for count in 0..=3 {
            let wr = taken_at(&ring, 1, &head(OP_SEND, SendFlags::empty(), count))?;
            assert!(are_sges(&wr.payload, count as usize));
        }
        for count in [4, 5, MAX_SGE as u32] {
            let bad = head(OP_SEND, SendFlags::empty(), count);
            assert_eq!(refusal_at(&ring, &bad), TOO_LONG);
        }
        // Neither does inline data.
        let wr = taken_at(&ring, 1, &inline(48))?;
        assert_eq!(wr.payload.len(), 48);
        for len in [49, 256, MAX_INLINE as u32] {
            assert_eq!(refusal_at(&ring, &inline(len)), TOO_LONG);
        }
        Ok(())
    }

    #[test]
    fn inline_data_follows_request_header() -> Result {
        let mut expected = [0; MAX_INLINE];
        for (place, octets) in expected.chunks_exact_mut(SGE_LEN).enumerate() {
            octets.copy_from_slice(&sge(place));
        }
        for len in [0, 1, 15, 17, MAX_INLINE - 1, MAX_INLINE] {
            let wr = taken(&inline(len as u32))?;
            assert!(wr.payload.inline() == Some(&expected[..len]));
            assert_eq!(wr.payload.sges().len(), 0);
        }
        for len in [MAX_INLINE as u32 + 1, 1 << 16, 1 << 31, u32::MAX] {
            assert_eq!(refusal(&inline(len)), TOO_LONG);
        }
        Ok(())
    }

    #[test]
    fn octets_without_sge_list_are_inline_without_flag() -> Result {
        let mut request = inline(20);
        request[16..20].fill(0);
        assert_eq!(taken(&request)?.payload.inline().map(<[u8]>::len), Some(20));
        // With a list, the length field has no effect.
        let mut request = head(OP_SEND, SendFlags::empty(), 2);
        request[184..188].fill(0xff);
        let wr = taken(&request)?;
        assert!(wr.payload.inline().is_none() && are_sges(&wr.payload, 2));
        // With both a list and the flag, the flag takes precedence.
        let mut request = inline(20);
        request[196..200].fill(0xff);
        assert_eq!(taken(&request)?.payload.inline().map(<[u8]>::len), Some(20));
        Ok(())
    }

    #[test]
    fn unused_request_fields_are_not_read() -> Result {
        // Of a Write: the address handle of an unreliable datagram, which a Write does not use, and
        // the state and the place in the list that rxe keeps.
        let request = head(OP_WRITE, SendFlags::SIGNALED, 2);
        let mut littered = request;
        for unread in [8..12, 36..184, 184..196, 200..SEND_LEN] {
            littered[unread].fill(0xff);
        }
        for request in [request, littered] {
            let wr = taken(&request)?;
            let immediate = immediate_of_write(&wr)?;
            assert!(immediate.is_none() && are_sges(&wr.payload, 2));
            assert_eq!((wr.id, wr.signalled, wr.fence), (ID, true, false));
        }
        Ok(())
    }

    #[test]
    fn taken_request_is_not_changed_by_process() -> Result {
        let ring = ring()?;
        let wr = taken_at(&ring, 0, &head(OP_SEND, SendFlags::empty(), 3))?;
        let at = ring.0.at(0);
        for at in (at..at + ring.0.element_len()).step_by(8) {
            ring.memory().copy_in(at, &u64::MAX)?;
        }
        assert_eq!(wr.id, ID);
        assert!(are_sges(&wr.payload, 3));
        Ok(())
    }

    #[test]
    fn producer_index_beyond_ring_adds_at_most_one_ring() -> Result {
        let ring = RxeSendRing::new(8, 1, 0)?;
        assert_eq!(ring.posted(0), 0);
        for raw in [8, 0x100, 1 << 31, u32::MAX - 7] {
            for (position, index, expected) in
                [(0, 0, 0), (0, 7, 7), (3, 2, 7), (u32::MAX, 0, 1), (5, 5, 0)]
            {
                produce(&ring.0, index)?;
                assert_eq!(ring.posted(position), expected);
                // The index is out of range: bits above the mask have no effect.
                produce(&ring.0, raw | index)?;
                assert_eq!(ring.posted(position), expected);
            }
        }
        produce(&ring.0, u32::MAX)?;
        assert_eq!(ring.posted(0), 7);
        Ok(())
    }

    #[test]
    fn ring_entries_are_reused_and_positions_wrap() -> Result {
        let ring = RxeSendRing::new(4, 1, 0)?;
        for n in 0..10u32 {
            let position = 0xffff_fffbu32.wrapping_add(n);
            let mut request = head(OP_SEND, SendFlags::empty(), 1);
            request[..8].copy_from_slice(&u64::from(n).to_ne_bytes());
            produce(&ring.0, position.wrapping_add(1) & 3)?;
            assert_eq!(ring.posted(position), 1);
            let wr = taken_at(&ring, position, &request)?;
            assert_eq!(wr.id, u64::from(n));
            let next = position.wrapping_add(1);
            assert_eq!(consumed(&ring.0), Some(next & 3));
            assert_eq!(ring.posted(next), 0);
        }
        Ok(())
    }

    #[test]
    fn kernel_fields_of_ring_header_are_never_read() -> Result {
        let ring = RxeSendRing::new(4, 2, 0)?;
        let field = |at| ring.memory().load_u32_acquire(at);
        assert_eq!(field(ELEMENT_SHIFT_AT), Some(8));
        assert_eq!(field(INDEX_MASK_AT), Some(3));
        for at in [ELEMENT_SHIFT_AT, INDEX_MASK_AT, CONSUMER_AT] {
            ring.memory().store_u32_release(at, u32::MAX)?;
        }
        assert_eq!(ring.0.at(5), HEADER_LEN + 256);
        let wr = taken_at(&ring, 5, &head(OP_SEND, SendFlags::empty(), 3))?;
        assert!(are_sges(&wr.payload, 3));
        assert_eq!(consumed(&ring.0), Some(2));
        Ok(())
    }

    #[test]
    fn random_request_is_decoded_or_refused() -> Result {
        let ring = RxeSendRing::new(2, 1, 0)?;
        let mut wr = SendWr::default();
        for position in 0..2000u32 {
            let mut request: [u8; SEND_LEN] = kernel_ext::random::octets();
            // Otherwise few requests would pass the checks of opcode and list.
            request[13..16].fill(0);
            request[12] %= 12;
            if position % 2 == 0 {
                request[185..188].fill(0);
                request[197..200].fill(0);
            }
            store(&ring.0, position, &request)?;
            match ring.read(position, &mut wr) {
                Some(Ok(())) => {
                    assert!(wr.payload.sges().len() <= 3);
                    assert!(wr.payload.inline().is_none_or(|octets| octets.len() <= 48));
                }
                Some(Err(_)) => {}
                None => return Err(ENOENT),
            }
        }
        Ok(())
    }
}
