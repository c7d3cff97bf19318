// SPDX-License-Identifier: GPL-2.0

//! Receive requests.

#[kernel::prelude::kunit_tests(riwarp_abi_rxe_recv)]
mod suite {
    use super::super::*;

    /// Makes the first octets of a request; the fields that the driver does not read contain
    /// arbitrary values.
    fn head(id: u64, num_sge: u32) -> [u8; RECV_LEN] {
        let mut head = [0xff; RECV_LEN];
        head[..8].copy_from_slice(&id.to_ne_bytes());
        head[28..32].copy_from_slice(&num_sge.to_ne_bytes());
        head
    }

    /// Takes the request at `position`. Returns its cookie, or cookie and status of a malformed
    /// request.
    fn taken(ring: &RxeRecvRing, position: u32) -> Option<Result<u64, (u64, WcStatus)>> {
        let mut wr = RecvWr::default();
        Some(match ring.take(position, &mut wr)? {
            Ok(()) => Ok(wr.id),
            Err(bad) => Err((bad.id, bad.status)),
        })
    }

    #[test]
    fn unposted_receive_is_not_taken() -> Result {
        let ring = RxeRecvRing::new(4, 1)?;
        store(&ring.0, 0, &head(ID, 1))?;
        assert_eq!(taken(&ring, 0), None);
        assert_eq!(consumed(&ring.0), Some(0));
        produce(&ring.0, 1)?;
        assert!(ring.holds(0, 1) && !ring.holds(0, 2));
        assert_eq!(taken(&ring, 0), Some(Ok(ID)));
        assert_eq!(consumed(&ring.0), Some(1));
        assert_eq!(taken(&ring, 1), None);
        Ok(())
    }

    #[test]
    fn sge_count_limits_elements_read() -> Result {
        let ring = RxeRecvRing::new(2, MAX_SGE as u32)?;
        assert_eq!(ring.max_sge(), MAX_SGE as u32);
        let mut wr = RecvWr::default();
        for count in 0..=MAX_SGE as u32 {
            store(&ring.0, count, &head(ID, count))?;
            produce(&ring.0, count.wrapping_add(1))?;
            assert!(matches!(ring.take(count, &mut wr), Some(Ok(()))));
            assert!(wr.id == ID && are_sges(&wr.buffer, count as usize));
        }
        // The element has room for 62.
        for count in [MAX_SGE as u32 + 1, 62, 63, 1 << 28, u32::MAX] {
            store(&ring.0, 0, &head(ID, count))?;
            produce(&ring.0, 1)?;
            let refused = Some(Err((ID, WcStatus::LocalLength)));
            assert_eq!(taken(&ring, 0), refused);
            assert_eq!(consumed(&ring.0), Some(1));
        }
        Ok(())
    }

    #[test]
    fn sge_list_does_not_reach_into_next_request() -> Result {
        // Elements of 64 octets, 24 of them for the list.
        let ring = RxeRecvRing::new(4, 1)?;
        assert_eq!(ring.max_sge(), 1);
        produce(&ring.0, 2)?;
        let mut wr = RecvWr::default();
        store(&ring.0, 1, &head(ID, 1))?;
        assert!(matches!(ring.take(1, &mut wr), Some(Ok(()))));
        assert!(are_sges(&wr.buffer, 1));
        store(&ring.0, 1, &head(ID, 2))?;
        assert_eq!(taken(&ring, 1), Some(Err((ID, WcStatus::LocalLength))));
        Ok(())
    }

    #[test]
    fn producer_index_beyond_ring_adds_at_most_one_ring() -> Result {
        let ring = RxeRecvRing::new(4, 1)?;
        produce(&ring.0, u32::MAX)?;
        assert!(ring.holds(0, 3) && !ring.holds(0, 4));
        // Each take stays inside the queue, however many there are.
        for position in 0..20 {
            store(&ring.0, position, &head(position.into(), 1))?;
            let expected = (position % 4 != 3).then_some(Ok(position.into()));
            assert_eq!(taken(&ring, position), expected);
        }
        Ok(())
    }

    #[test]
    fn posted_receives_move_to_resized_ring() -> Result {
        let old = RxeRecvRing::new(4, 1)?;
        // The positions wrap around the end of the queue.
        for position in 3..6 {
            store(&old.0, position, &head(position.into(), 1))?;
        }
        produce(&old.0, 6 & 3)?;
        for places in [4, 8] {
            let new = RxeRecvRing::new(places, 1)?;
            assert_eq!(old.copy_to(3, &new), Ok(3));
            // One request was taken meanwhile.
            new.skip(1);
            assert_eq!(consumed(&new.0), Some(1));
            assert_eq!(new.posted(1), 2);
            assert_eq!(taken(&new, 1), Some(Ok(4)));
            assert_eq!(taken(&new, 2), Some(Ok(5)));
            assert_eq!(taken(&new, 3), None);
        }
        // No request was taken meanwhile.
        let new = RxeRecvRing::new(4, 1)?;
        new.skip(0);
        assert_eq!(consumed(&new.0), Some(0));
        Ok(())
    }

    #[test]
    fn receives_that_do_not_fit_refuse_resize() -> Result {
        let old = RxeRecvRing::new(8, 1)?;
        produce(&old.0, 2)?;
        assert_eq!(old.copy_to(0, &RxeRecvRing::new(2, 1)?), Err(EINVAL));
        // Elements of another length.
        assert_eq!(old.copy_to(0, &RxeRecvRing::new(8, 4)?), Err(EINVAL));
        assert_eq!(old.copy_to(0, &RxeRecvRing::new(4, 1)?), Ok(2));
        Ok(())
    }

    #[test]
    fn random_request_is_decoded_or_refused() -> Result {
        let ring = RxeRecvRing::new(2, 2)?;
        let mut wr = RecvWr::default();
        for position in 0..2000u32 {
            let mut request: [u8; RECV_LEN] = kernel_ext::random::octets();
            if position % 2 == 0 {
                request[29..32].fill(0);
            }
            store(&ring.0, position, &request)?;
            produce(&ring.0, position.wrapping_add(1) | position << 1)?;
            if let Some(Ok(())) = ring.take(position, &mut wr) {
                assert!(wr.buffer.sges().len() <= 5);
            }
        }
        Ok(())
    }
}
