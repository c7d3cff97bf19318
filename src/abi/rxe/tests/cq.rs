// SPDX-License-Identifier: GPL-2.0

//! Completions.

#[kernel::prelude::kunit_tests(riwarp_abi_rxe_cq)]
mod suite {
    use super::super::*;
    use crate::bench::COMPLETION;
    use kernel::{
        impl_has_work,
        new_work,
        sync::atomic::{
            Atomic,
            Relaxed, //
        },
        time::{
            delay::fsleep,
            Delta,
            Instant,
            Monotonic, //
        },
        workqueue::{
            Work,
            WorkItem, //
        }, //
    };
    use kernel_ext::workqueue::OwnedQueue;

    fn completion(id: u64) -> Completion {
        Completion { id, ..COMPLETION }
    }

    /// Stores the consumer index as a process does after polling.
    fn poll(ring: &RxeCqRing, index: u32) -> Result {
        ring.memory().store_u32_release(CONSUMER_AT, index)
    }

    fn produced(ring: &RxeCqRing) -> Option<u32> {
        ring.memory().load_u32_acquire(PRODUCER_AT)
    }

    impl RxeCqRing {
        /// Returns the cookie of the completion at `position`.
        pub(crate) fn id_at(&self, position: u32) -> Option<u64> {
            self.memory().copy_out(self.0.at(position))
        }

        /// Polls all completions as a process does.
        pub(crate) fn poll_all(&self) {
            let _ = produced(self).map(|end| poll(self, end));
        }
    }

    #[test]
    fn cqe_layout_is_that_of_the_library() {
        let entry = encode_cqe(&COMPLETION);
        assert_eq!(entry[..8], ID.to_ne_bytes());
        assert_eq!(entry[8..12], 0u32.to_ne_bytes());
        // IBV_WC_RECV.
        assert_eq!(entry[12..16], 128u32.to_ne_bytes());
        assert_eq!(entry[16..20], 0x0001_0203u32.to_ne_bytes());
        assert_eq!(entry[20..24], 0x0102_0304u32.to_ne_bytes());
        assert_eq!(entry[24..28], [0; 4]);
        assert_eq!(entry[28..32], 0x0005_0607u32.to_ne_bytes());
        assert_eq!(entry[32..46], [0; 14]);
        assert_eq!(entry[46..], [1, 0]);
    }

    #[test]
    fn cqe_flags_immediate_data_and_invalidated_key() {
        let octets = [0xa1, 0xa2, 0xa3, 0xa4];
        let key = u32::from_ne_bytes(octets);
        // IBV_WC_WITH_IMM and IBV_WC_WITH_INV.
        for (extra, flag) in [
            (WcExtra::Immediate(octets), 2u32),
            (WcExtra::Invalidated(key), 8),
        ] {
            let entry = encode_cqe(&Completion {
                extra,
                ..COMPLETION
            });
            assert_eq!(entry[24..28], octets);
            assert_eq!(entry[36..40], flag.to_ne_bytes());
        }
    }

    #[test]
    fn cqe_holds_all_octets_of_immediate_data() {
        for (data, flags, rest) in [
            (*b"abcdefgh", 2 | 1 << 24, *b"efgh"),
            (*b"abcd\0\0\0\0", 2 | 1 << 24, [0; 4]),
            (*b"\0\0\0\0efgh", 2 | 3 << 24, *b"efgh"),
            ([0; 8], 2 | 1 << 24, [0; 4]),
        ] {
            let entry = encode_cqe(&Completion {
                extra: WcExtra::Immediate([9; 4]),
                immediate: Some(data),
                ..COMPLETION
            });
            assert_eq!(entry[24..28], [9; 4]);
            assert_eq!(entry[32..36], rest);
            assert_eq!(entry[36..40], u32::to_ne_bytes(flags));
        }
    }

    #[test]
    fn full_cq_ring_is_unchanged_by_post() -> Result {
        let ring = RxeCqRing::new(4)?;
        for n in 0..3 {
            assert!(ring.post(n, &completion(n.into())));
            assert_eq!(produced(&ring), Some(n + 1));
            assert_eq!(ring.waiting(n + 1), Some(n + 1));
        }
        assert!(!ring.post(3, &completion(3)));
        assert_eq!((produced(&ring), ring.id_at(3)), (Some(3), Some(0)));
        // After one poll, one more completion fits.
        poll(&ring, 1)?;
        assert!(ring.post(3, &completion(3)) && !ring.post(4, &completion(4)));
        assert_eq!((produced(&ring), ring.waiting(4)), (Some(0), Some(3)));
        for n in 0..4 {
            assert_eq!(ring.id_at(n), Some(n.into()));
        }
        Ok(())
    }

    #[test]
    fn cq_index_beyond_ring_makes_no_room_outside() -> Result {
        let ring = RxeCqRing::new(4)?;
        for index in [4, 8, 0x8000_0004, u32::MAX - 3] {
            // Equal to 0 modulo the size.
            poll(&ring, index)?;
            assert!(ring.post(2, &completion(2)) && !ring.post(3, &completion(3)));
            assert_eq!(ring.waiting(3), Some(3));
        }
        // A process that has polled beyond the last completion affects only its own queue.
        poll(&ring, 3)?;
        assert_eq!(ring.waiting(1), Some(2));
        Ok(())
    }

    #[test]
    fn cqe_does_not_touch_neighbouring_entries() -> Result {
        let ring = RxeCqRing::new(4)?;
        assert!(ring.post(1, &COMPLETION));
        let (from, to) = (ring.0.at(0), ring.0.at(4));
        let own = ring.0.at(1)..ring.0.at(1) + CQE_LEN;
        for at in (from..to).step_by(8) {
            if !own.contains(&at) {
                assert_eq!(ring.memory().copy_out(at), Some(0u64));
            }
        }
        Ok(())
    }

    #[test]
    fn unpolled_cqes_move_to_resized_ring() -> Result {
        let old = RxeCqRing::new(4)?;
        poll(&old, 3)?;
        for position in 3..6u32 {
            assert!(old.post(position, &completion(position.into())));
        }
        let new = RxeCqRing::new(8)?;
        // The last completion arrives while the others are copied.
        assert_eq!(old.copy_to(5, &new), Ok(2));
        assert_eq!(produced(&new), Some(2));
        assert_eq!(old.copy_range(5, 1, &new, 2), Ok(()));
        assert_eq!((produced(&new), new.waiting(3)), (Some(3), Some(3)));
        for n in 0..3 {
            assert_eq!(new.id_at(n), Some(u64::from(n) + 3));
        }
        assert_eq!(old.copy_to(6, &RxeCqRing::new(2)?), Err(EINVAL));
        assert_eq!(old.copy_range(3, 1, &new, 7), Err(EINVAL));
        assert_eq!(old.copy_range(3, 1, &new, u32::MAX), Err(EINVAL));
        // Refuses more completions than the old queue can hold, even if they fit.
        assert_eq!(old.copy_range(3, 4, &RxeCqRing::new(16)?, 0), Err(EINVAL));
        Ok(())
    }

    /// A process that polls on another CPU.
    #[pin_data]
    struct Poller {
        ring: RxeCqRing,
        /// Completions that were incomplete when their place was published.
        torn: Atomic<u32>,
        polled: Atomic<u32>,
        #[pin]
        work: Work<Self>,
    }

    impl_has_work! {
        impl HasWork<Self> for Poller { self.work }
    }

    const MANY: u32 = 5000;
    /// A wait for longer than this counts as a hang.
    const LONG: Delta = Delta::from_secs(60);

    impl WorkItem for Poller {
        type Pointer = Arc<Self>;

        fn run(this: Arc<Self>) {
            let mut position = 0;
            let mut looks = 0u32;
            let begin = Instant::<Monotonic>::now();
            while position < MANY && begin.elapsed() < LONG {
                if produced(&this.ring) == Some(position & this.ring.0.mask) {
                    looks += 1;
                    // Both may run on one CPU.
                    if looks % 1000 == 0 {
                        fsleep(Delta::from_micros(10));
                    }
                    continue;
                }
                if this.ring.id_at(position) != Some(u64::from(position) + 1) {
                    this.torn.add(1, Relaxed);
                }
                position += 1;
                let _ = poll(&this.ring, position & this.ring.0.mask);
                this.polled.store(position, Relaxed);
            }
        }
    }

    #[test]
    fn cqe_is_published_only_when_complete() -> Result {
        let queue = OwnedQueue::for_tests()?;
        let poller = Arc::pin_init(
            pin_init!(Poller {
                ring: RxeCqRing::new(8)?,
                torn: Atomic::new(0),
                polled: Atomic::new(0),
                work <- new_work!("Poller::work"),
            }? Error),
            GFP_KERNEL,
        )?;
        assert!(queue.enqueue(poller.clone()).is_ok());
        let mut posted = 0;
        let begin = Instant::<Monotonic>::now();
        while posted < MANY && begin.elapsed() < LONG {
            if poller.ring.post(posted, &completion(u64::from(posted) + 1)) {
                posted += 1;
            } else {
                fsleep(Delta::from_micros(20));
            }
        }
        queue.flush();
        assert_eq!(poller.torn.load(Relaxed), 0);
        assert_eq!((posted, poller.polled.load(Relaxed)), (MANY, MANY));
        Ok(())
    }
}
