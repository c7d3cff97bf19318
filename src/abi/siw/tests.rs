// SPDX-License-Identifier: GPL-2.0

//! KUnit suite of ring entries, with contents that a process could have written.

#[kernel::prelude::kunit_tests(riwarp_abi_siw)]
mod siw {
    use super::super::ring::*;
    use super::super::*;
    use crate::{
        bench::COMPLETION,
        device::Abi, //
    };

    /// Stores an entry as a process would, and decodes it.
    fn stored<const LEN: usize, R>(
        entry: &[u8; LEN],
        decode: impl FnOnce(&RingEntry<'_, LEN>) -> R,
    ) -> Result<R>
    where
        [u8; LEN]: IntoBytes + zerocopy::Immutable,
    {
        let memory = SharedMem::try_new(LEN)?;
        // As entry 8 of a ring.
        memory.copy_in(8 * LEN, entry)?;
        let (memory, at) = (&memory, 8 * LEN);
        Ok(decode(&RingEntry { memory, at }))
    }

    /// Makes a send queue entry with `num_sge` elements of lengths 1, 2, 3 ...
    fn sqe(opcode: u8, flags: u16, num_sge: u8) -> [u8; SQE_LEN] {
        let mut entry = [0; SQE_LEN];
        entry[..8].copy_from_slice(&0x1122_3344_5566_7788u64.to_ne_bytes());
        entry[8..10].copy_from_slice(&(flags | VALID).to_ne_bytes());
        entry[10] = num_sge;
        entry[11] = opcode;
        entry[12..16].copy_from_slice(&0xaabb_ccddu32.to_ne_bytes());
        entry[16..24].copy_from_slice(&0x0102_0304_0506_0708u64.to_ne_bytes());
        for place in 0..MAX_SGE {
            let at = SQE_SGES_AT + place * SGE_LEN;
            entry[at..at + 8].copy_from_slice(&(0x1000 * place as u64).to_ne_bytes());
            entry[at + 8..at + 12].copy_from_slice(&(place as u32 + 1).to_ne_bytes());
            entry[at + 12..at + 16].copy_from_slice(&(place as u32 + 100).to_ne_bytes());
        }
        entry
    }

    fn decode(entry: &[u8; SQE_LEN]) -> Result<SendWr> {
        let mut wr = SendWr::default();
        stored(entry, |entry| decode_sqe(entry, &mut wr))?.map_err(|_| EINVAL)?;
        Ok(wr)
    }

    fn refusal(entry: &[u8; SQE_LEN]) -> Option<(u64, WcStatus)> {
        let refused = stored(entry, |entry| decode_sqe(entry, &mut SendWr::default()));
        let refused = refused.ok().and_then(Result::err);
        refused.map(|bad| (bad.id, bad.status))
    }

    const ID: u64 = 0x1122_3344_5566_7788;

    #[test]
    fn write_request_carries_remote_address_and_key() -> Result {
        let wr = decode(&sqe(OP_WRITE, 0, 1))?;
        assert_eq!(wr.id, ID);
        let SendOp::Write { stag, to, .. } = wr.op else {
            return Err(EINVAL);
        };
        assert_eq!((stag.raw(), to), (0xaabb_ccdd, 0x0102_0304_0506_0708));
        assert!(!wr.signalled && !wr.solicited && !wr.fence);
        Ok(())
    }

    #[test]
    fn send_flags_are_decoded_one_by_one() -> Result {
        let wr = decode(&sqe(OP_SEND, SIGNALLED, 0))?;
        assert!(wr.signalled && !wr.solicited && !wr.fence);
        let wr = decode(&sqe(OP_SEND, SOLICITED, 0))?;
        assert!(!wr.signalled && wr.solicited && !wr.fence);
        let wr = decode(&sqe(OP_SEND, READ_FENCE, 0))?;
        assert!(!wr.signalled && !wr.solicited && wr.fence);
        Ok(())
    }

    #[test]
    fn read_and_send_opcodes_are_decoded() -> Result {
        for (opcode, local) in [(OP_READ, false), (OP_READ_LOCAL_INV, true)] {
            let SendOp::Read {
                invalidate_local, ..
            } = decode(&sqe(opcode, 0, 1))?.op
            else {
                return Err(EINVAL);
            };
            assert_eq!(invalidate_local, local);
        }
        let invalidate = SendExtra::Invalidate(Stag::new(0xaabb_ccdd));
        for (opcode, expected) in [(OP_SEND, SendExtra::None), (OP_SEND_REMOTE_INV, invalidate)] {
            let SendOp::Send(extra) = decode(&sqe(opcode, 0, 1))?.op else {
                return Err(EINVAL);
            };
            assert_eq!(extra, expected);
        }
        Ok(())
    }

    #[test]
    fn unknown_opcodes_are_refused() {
        for opcode in 0..=u8::MAX {
            let known = [
                OP_WRITE,
                OP_READ,
                OP_READ_LOCAL_INV,
                OP_SEND,
                OP_SEND_REMOTE_INV,
            ];
            let expected = if known.contains(&opcode) {
                None
            } else {
                Some((ID, WcStatus::LocalQpOperation))
            };
            assert_eq!(refusal(&sqe(opcode, 0, 1)), expected);
        }
    }

    #[test]
    fn sge_count_limits_elements_read() -> Result {
        for count in 0..=6u8 {
            let wr = decode(&sqe(OP_SEND, 0, count))?;
            assert_eq!(wr.payload.sges().len(), usize::from(count));
            for (place, sge) in wr.payload.sges().enumerate() {
                assert_eq!(sge.addr, 0x1000 * place as u64);
                assert_eq!(sge.len, place as u32 + 1);
                assert_eq!(sge.lkey, place as u32 + 100);
            }
        }
        for count in 7..=u8::MAX {
            let refused = refusal(&sqe(OP_SEND, 0, count));
            assert_eq!(refused, Some((ID, WcStatus::LocalLength)));
        }
        Ok(())
    }

    #[test]
    fn inline_data_follows_first_element() -> Result {
        for len in [0, 1, 79, 80] {
            let mut entry = sqe(OP_SEND, INLINE, 200);
            entry[SQE_SGES_AT + 8..SQE_SGES_AT + 12].copy_from_slice(&(len as u32).to_ne_bytes());
            let expected = &entry[SQE_INLINE_AT..SQE_INLINE_AT + len];
            assert!(decode(&entry)?.payload.inline() == Some(expected));
        }
        for len in [81, 96, 120, u32::MAX] {
            let mut entry = sqe(OP_SEND, INLINE, 1);
            entry[SQE_SGES_AT + 8..SQE_SGES_AT + 12].copy_from_slice(&len.to_ne_bytes());
            assert_eq!(refusal(&entry), Some((ID, WcStatus::LocalLength)));
        }
        Ok(())
    }

    #[test]
    fn random_entry_is_decoded_or_refused() -> Result {
        let (mut send, mut recv) = (SendWr::default(), RecvWr::default());
        for _ in 0..2000 {
            let entry = kernel_ext::random::octets();
            if stored(&entry, |entry| decode_sqe(entry, &mut send))?.is_ok() {
                assert!(send.payload.len() <= 6 * u64::from(u32::MAX));
            }
            let entry = kernel_ext::random::octets();
            if stored(&entry, |entry| decode_rqe(entry, &mut recv))?.is_ok() {
                assert!(recv.buffer.sges().len() <= MAX_SGE);
            }
        }
        Ok(())
    }

    #[test]
    fn rqe_elements_precede_those_of_sqe() -> Result {
        let mut entry = [0; RQE_LEN];
        entry[..8].copy_from_slice(&ID.to_ne_bytes());
        entry[10] = 2;
        entry[RQE_SGES_AT..RQE_SGES_AT + 8].copy_from_slice(&0x5000u64.to_ne_bytes());
        entry[RQE_SGES_AT + 24..RQE_SGES_AT + 28].copy_from_slice(&77u32.to_ne_bytes());
        let mut wr = RecvWr::default();
        assert!(stored(&entry, |entry| decode_rqe(entry, &mut wr))?.is_ok());
        assert_eq!(wr.id, ID);
        assert!(wr
            .buffer
            .sges()
            .map(|sge| (sge.addr, sge.len))
            .eq([(0x5000, 0), (0, 77)]));
        entry[10] = 7;
        let refused = stored(&entry, |entry| decode_rqe(entry, &mut wr))?.err();
        let bad = refused.map(|bad| (bad.id, bad.status));
        assert_eq!(bad, Some((ID, WcStatus::LocalLength)));
        Ok(())
    }

    #[test]
    fn cqe_layout_is_that_of_the_library() {
        let (entry, flags) = encode_cqe(&COMPLETION);
        assert_eq!(flags, 1);
        assert_eq!(entry[..8], ID.to_ne_bytes());
        // `encode_cqe` leaves the flags out of the entry.
        assert_eq!(entry[8..12], [0, OP_RECEIVE, 0, 0]);
        assert_eq!(entry[12..16], 0x0102_0304u32.to_ne_bytes());
        assert_eq!(entry[16..24], [0; 8]);
        assert_eq!(entry[24..], 0x0005_0607u64.to_ne_bytes());
    }

    #[test]
    fn cqe_flags_invalidated_key() {
        let (entry, flags) = encode_cqe(&Completion {
            extra: WcExtra::Invalidated(0xaabb_ccdd),
            ..COMPLETION
        });
        assert_eq!(flags, 0x21);
        assert_eq!(entry[16..20], 0xaabb_ccddu32.to_ne_bytes());
    }

    #[test]
    fn each_status_has_an_abi_value() {
        let mut seen = 0u32;
        for raw in 0..64 {
            let Some(status) = WcStatus::from_raw(raw) else {
                continue;
            };
            let (entry, _) = encode_cqe(&Completion {
                status,
                ..COMPLETION
            });
            let value = u16_at(&entry, 10);
            assert!(value <= 9);
            let has_number = value != 9 || status == WcStatus::General;
            assert_eq!(Abi::Siw.reports(status), has_number);
            // Only the value 9, "general error", stands for several statuses.
            assert!(value == 9 || seen & 1 << value == 0);
            seen |= 1 << value;
        }
        assert_eq!(seen, 0x3ff);
    }

    #[test]
    fn valid_flag_alone_posts_an_entry() -> Result {
        let ring = SiwSendRing::new(4)?;
        assert!(!ring.is_posted(0));
        ring.memory().store_u16_release(FLAGS_AT, !VALID)?;
        assert!(!ring.is_posted(0));
        ring.memory().store_u16_release(FLAGS_AT, VALID)?;
        assert!(ring.is_posted(0) && ring.is_posted(4) && !ring.is_posted(1));
        Ok(())
    }

    #[test]
    fn unpolled_cqe_is_not_overwritten() -> Result {
        let ring = SiwCqRing::new(4)?;
        assert!(ring.post(2, &COMPLETION));
        let other = Completion {
            id: 1,
            ..COMPLETION
        };
        assert!(!ring.post(2, &other) && !ring.post(6, &other));
        let at = 2 * CQE_LEN;
        assert_eq!(ring.memory().copy_out(at), Some(COMPLETION.id));
        // The process polls it.
        ring.memory().store_u8_release(at + FLAGS_AT, 0)?;
        assert!(ring.post(6, &other));
        assert_eq!(ring.memory().copy_out(at), Some(1u64));
        Ok(())
    }

    #[test]
    fn cqe_does_not_touch_neighbouring_entries() -> Result {
        let ring = SiwCqRing::new(4)?;
        assert!(ring.post(1, &COMPLETION));
        for at in (0..CQE_LEN).step_by(8) {
            assert_eq!(ring.memory().copy_out(at), Some(0u64));
            assert_eq!(ring.memory().copy_out(2 * CQE_LEN + at), Some(0u64));
        }
        Ok(())
    }

    #[test]
    fn armed_user_cq_notifies_once() -> Result {
        let ring = SiwCqRing::new(4)?;
        let arm = |how| ring.memory().store_u32_release(4 * CQE_LEN, how);
        assert!(!ring.disarm_for(PendingEvent::Solicited));
        arm(NOTIFY_NEXT)?;
        assert!(ring.disarm_for(PendingEvent::Plain));
        assert!(!ring.disarm_for(PendingEvent::Plain));
        arm(NOTIFY_SOLICITED)?;
        assert!(!ring.disarm_for(PendingEvent::Plain));
        assert!(ring.disarm_for(PendingEvent::Solicited));
        assert!(!ring.disarm_for(PendingEvent::Solicited));
        Ok(())
    }
}
