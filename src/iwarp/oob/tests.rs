// SPDX-License-Identifier: GPL-2.0

//! Tests of announcements and of the decisions that two ends base on them.

#[cfg_attr(MODULE, kernel::prelude::kunit_tests(iwarp_oob))]
mod oob {
    use super::super::*;

    fn end(last: u8, number: u32) -> QpAddr {
        let mut gid = [0; 16];
        gid[15] = last;
        QpAddr {
            gid,
            number: QpNumber::new(number),
        }
    }

    /// Both ends of a pair, the smaller one first; both may send.
    fn pairs() -> (Pair, Pair) {
        let (small, large) = (end(1, 77), end(2, 5));
        let pair = |local, remote, receive, send| Pair {
            local,
            remote,
            receive_psn: Psn::new(receive),
            send_psn: Some(Psn::new(send)),
            features: FeatureBits::NONE,
            rnr_retry: None,
        };
        (
            pair(small, large, 0x11_1111, 0x22_2222),
            pair(large, small, 0x22_2222, 0x11_1111),
        )
    }

    #[test]
    fn send_with_imm_needs_both_ends() {
        let (mut small, mut large) = pairs();
        for (mine, theirs) in [(0, 0), (0, 1), (1, 0), (0xffff, 1), (1, 0xffff), (2, 2)] {
            small.features = FeatureBits(mine);
            large.features = FeatureBits(theirs);
            let agreed = small.agree(&large.announcement());
            assert_eq!(agreed, large.agree(&small.announcement()));
            let expected = if mine & theirs & 1 != 0 {
                Extensions::SendImmediate
            } else {
                Extensions::Rfc7306
            };
            assert_eq!(agreed.extensions, expected);
        }
    }

    #[test]
    fn announcement_carries_rnr_retry() {
        let (mut small, large) = pairs();
        for (retry, flags) in [
            (None, 0x80),
            (Some(0), 0x88),
            (Some(3), 0x8b),
            (Some(7), 0x8f),
        ] {
            small.rnr_retry = retry.map(RnrRetry::new);
            let octets = small.announcement().encode();
            assert_eq!(octets[5], flags);
            let told = Announcement::decode(&octets).unwrap();
            assert_eq!(large.agree(&told).rnr_retry, small.rnr_retry);
            assert_eq!(small.agree(&large.announcement()).rnr_retry, None);
        }
    }

    #[test]
    fn feature_bits_none_is_empty() {
        assert_eq!(FeatureBits::NONE, FeatureBits(0));
        assert_eq!(FeatureBits::default(), FeatureBits::NONE);
        assert!(!FeatureBits::NONE.contains(FeatureBits::SEND_IMMEDIATE));
        assert!(FeatureBits(!0).contains(FeatureBits::SEND_IMMEDIATE));
        let octets = pairs().0.announcement().encode();
        assert_eq!(octets[6..8], [0, 0]);
    }

    const GOLDEN: [u8; 24] = [
        b'r', b'i', b'w', b'P', 1, 0x8d, 0, 1, // magic, version, flags, features
        0, 0xab, 0xcd, 0xef, 0, 1, 2, 3, // from, to
        0, 0x11, 0x22, 0x33, 0, 0xff, 0xff, 0xff, // send PSN, receive PSN
    ];

    #[test]
    fn qp_numbers_and_psns_have_24_bits() {
        assert_eq!(QpNumber::new(u32::MAX).get(), 0xff_ffff);
        assert_eq!(QpNumber::new(0x0112_3456).get(), 0x12_3456);
        assert_eq!(Psn::new(u32::MAX), Psn::new(0xff_ffff));
    }

    #[test]
    fn announcement_round_trips_golden_octets() {
        let announcement = Announcement {
            from: QpNumber::new(0xab_cdef),
            to: QpNumber::new(0x01_0203),
            send_psn: Some(Psn::new(0x11_2233)),
            receive_psn: Psn::new(0xff_ffff),
            features: FeatureBits::SEND_IMMEDIATE,
            rnr_retry: Some(RnrRetry(5)),
        };
        assert_eq!(announcement.encode(), GOLDEN);
        assert_eq!(Announcement::decode(&GOLDEN), Ok(announcement));
    }

    #[test]
    fn announcement_omits_unknown_send_psn() {
        let mut octets = GOLDEN;
        octets[5] = 0;
        let read = Announcement::decode(&octets);
        assert_eq!(read.map(|read| read.send_psn), Ok(None));
        octets[17..20].fill(0);
        assert_eq!(read.map(|read| read.encode()), Ok(octets));
    }

    #[test]
    fn announcement_of_wrong_length_is_refused() {
        let mut longer = [0; 600];
        longer[..24].copy_from_slice(&GOLDEN);
        for len in (0..longer.len()).filter(|len| *len != 24) {
            let cut = Announcement::decode(&longer[..len]);
            assert_eq!(cut, Err(Mismatch::Format));
        }
    }

    #[test]
    fn announcement_of_other_version_is_refused_at_any_length() {
        for version in (0..=u8::MAX).filter(|version| *version != 1) {
            let mut octets = [0; 40];
            octets[..24].copy_from_slice(&GOLDEN);
            octets[4] = version;
            assert_eq!(Announcement::decode(&octets), Err(Mismatch::Version));
            assert_eq!(Announcement::decode(&octets[..24]), Err(Mismatch::Version));
        }
    }

    #[test]
    fn announcement_with_any_flipped_bit_is_refused_or_ignored() {
        for bit in 0..24 * 8 {
            let mut octets = GOLDEN;
            octets[bit / 8] ^= 1 << (bit % 8);
            let read = Announcement::decode(&octets);
            match bit / 8 {
                0..=3 | 8 | 12 | 16 | 20 => assert_eq!(read, Err(Mismatch::Format)),
                4 => assert_eq!(read, Err(Mismatch::Version)),
                // Reserved flags are ignored.
                5 if (4..7).contains(&(bit % 8)) => assert_eq!(read, Announcement::decode(&GOLDEN)),
                _ => assert!(read.is_ok() && read != Announcement::decode(&GOLDEN)),
            }
        }
    }

    #[test]
    fn matching_ends_accept_each_other() {
        let (a, b) = pairs();
        for speaker in [Speaker::Initiator, Speaker::Responder] {
            assert_eq!(a.check(&a.addrs(), speaker, &b.announcement()), Ok(()));
            assert_eq!(b.check(&b.addrs(), speaker, &a.announcement()), Ok(()));
        }
    }

    #[test]
    fn announcement_with_wrong_qpn_or_psn_is_refused() {
        let (a, b) = pairs();
        let good = b.announcement();
        let other = QpNumber::new(4711);
        let wrong = [
            (
                Announcement {
                    from: other,
                    ..good
                },
                Mismatch::Number,
            ),
            (Announcement { to: other, ..good }, Mismatch::Number),
            // Its own echo.
            (a.announcement(), Mismatch::Number),
            (
                Announcement {
                    send_psn: Some(Psn::new(1)),
                    ..good
                },
                Mismatch::Psn,
            ),
            (
                Announcement {
                    receive_psn: Psn::new(1),
                    ..good
                },
                Mismatch::Psn,
            ),
        ];
        for (announcement, mismatch) in wrong {
            assert_eq!(
                a.check(&a.addrs(), Speaker::Initiator, &announcement),
                Err(mismatch)
            );
            assert_eq!(
                a.check(&a.addrs(), Speaker::Responder, &announcement),
                Err(mismatch)
            );
        }
    }

    #[test]
    fn announcement_from_other_addresses_is_refused() {
        let (a, b) = pairs();
        for (local, remote) in [(1, 3), (3, 2), (2, 1)] {
            let addrs = AddrPair {
                local: end(local, 0).gid,
                remote: end(remote, 0).gid,
            };
            let judged = a.check(&addrs, Speaker::Initiator, &b.announcement());
            assert_eq!(judged, Err(Mismatch::Address));
        }
    }

    #[test]
    fn initiator_announcement_without_send_psn_is_refused() {
        let (a, b) = pairs();
        let silent = Announcement {
            send_psn: None,
            ..b.announcement()
        };
        assert_eq!(
            a.check(&a.addrs(), Speaker::Initiator, &silent),
            Err(Mismatch::Psn)
        );
        assert_eq!(a.check(&a.addrs(), Speaker::Responder, &silent), Ok(()));
    }

    #[test]
    fn end_without_send_psn_checks_receive_psn() {
        let (mut a, b) = pairs();
        a.send_psn = None;
        let mut theirs = b.announcement();
        theirs.receive_psn = Psn::new(1);
        assert_eq!(a.check(&a.addrs(), Speaker::Initiator, &theirs), Ok(()));
        theirs.send_psn = Some(Psn::new(1));
        assert_eq!(
            a.check(&a.addrs(), Speaker::Initiator, &theirs),
            Err(Mismatch::Psn)
        );
    }

    /// A pair without a send PSN, a right Request for it, and one with a wrong PSN.
    fn guessed() -> (Pair, Announcement, Announcement) {
        let (mut a, b) = pairs();
        a.send_psn = None;
        let right = b.announcement();
        let wrong = Announcement {
            send_psn: Some(Psn::new(1)),
            ..right
        };
        (a, right, wrong)
    }

    #[test]
    fn right_psn_is_refused_after_too_many_wrong_guesses() {
        let (a, right, wrong) = guessed();
        let mut guesses = WrongGuesses::default();
        let mut call = |theirs, now| a.check_call(&a.addrs(), theirs, &mut guesses, now);
        // Right ones in between do not count.
        for now in 1000..1004 {
            assert_eq!(call(&right, now), Ok(()));
            assert_eq!(call(&wrong, now), Err(Mismatch::Psn));
        }
        for now in [1003, 1004, 1250, 1499] {
            assert_eq!(call(&wrong, now), Err(Mismatch::Limited));
            assert_eq!(call(&right, now), Err(Mismatch::Limited));
        }
        // 500 ms after the first one, whatever has arrived since.
        assert_eq!(call(&right, 1500), Ok(()));
        for _ in 0..4 {
            assert_eq!(call(&wrong, 1500), Err(Mismatch::Psn));
        }
        assert_eq!(call(&right, 1501), Err(Mismatch::Limited));
        assert_eq!(call(&right, 2000), Ok(()));
    }

    #[test]
    fn wrong_psn_guesses_are_limited_in_each_window() {
        let (a, _, wrong) = guessed();
        let mut guesses = WrongGuesses::default();
        let mut compared = 0_u64;
        for now in 0..10_000 {
            let judged = a.check_call(&a.addrs(), &wrong, &mut guesses, now);
            compared += u64::from(judged == Err(Mismatch::Psn));
        }
        assert_eq!(compared, 10_000 / WrongGuesses::WINDOW * 4);
    }

    #[test]
    fn slow_psn_guesses_do_not_reach_the_limit() {
        let (a, right, wrong) = guessed();
        let mut guesses = WrongGuesses::default();
        assert_eq!(a.check_call(&a.addrs(), &right, &mut guesses, 0), Ok(()));
        for now in (0..).step_by(125).take(100) {
            let judged = a.check_call(&a.addrs(), &wrong, &mut guesses, now);
            assert_eq!(judged, Err(Mismatch::Psn));
        }
        let late = u64::MAX;
        let mut call = |theirs| a.check_call(&a.addrs(), theirs, &mut guesses, late);
        for _ in 0..300 {
            assert_eq!(call(&wrong), Err(Mismatch::Psn));
        }
    }

    #[test]
    fn peer_with_both_psns_is_accepted_despite_wrong_guesses() {
        let (waiting, _, wrong) = guessed();
        let (a, b) = pairs();
        let mut guesses = WrongGuesses::default();
        for _ in 0..5 {
            let _ = waiting.check_call(&waiting.addrs(), &wrong, &mut guesses, 7);
        }
        assert!(guesses.is_limit_reached(7));
        let right = b.announcement();
        let mut call = |theirs| a.check_call(&a.addrs(), theirs, &mut guesses, 7);
        assert_eq!(call(&right), Ok(()));
        // And wrong PSNs do not count there.
        let mut fresh = WrongGuesses::default();
        for _ in 0..5 {
            let judged = a.check_call(&a.addrs(), &wrong, &mut fresh, 7);
            assert_eq!(judged, Err(Mismatch::Psn));
        }
        assert_eq!(fresh, WrongGuesses::default());
    }

    /// They are usual: a peer that connects too early sends them.
    #[test]
    fn announcements_for_other_qpns_do_not_count_as_guesses() {
        let (a, right, _) = guessed();
        let mut guesses = WrongGuesses::default();
        let stray = Announcement {
            to: QpNumber::new(4711),
            ..right
        };
        let elsewhere = AddrPair {
            local: end(9, 0).gid,
            ..a.addrs()
        };
        for now in 0..20 {
            let judged = a.check_call(&a.addrs(), &stray, &mut guesses, now);
            assert_eq!(judged, Err(Mismatch::Number));
            let judged = a.check_call(&elsewhere, &right, &mut guesses, now);
            assert_eq!(judged, Err(Mismatch::Address));
        }
        assert_eq!(guesses, WrongGuesses::default());
    }

    #[test]
    fn ends_with_equal_address_are_ordered_by_qpn() {
        assert!(end(1, 5) < end(1, 6));
        assert!(end(1, 6) < end(2, 5));
    }

    #[test]
    fn retry_timeout_follows_qp_attributes() {
        assert_eq!(retry_timeout(0, 7), None);
        assert_eq!(retry_timeout(32, 7), None);
        assert_eq!(retry_timeout(1, 0), Some(RETRY_TIMEOUT_MIN));
        // ibv_rc_pingpong: 67 ms, 8 times, 4 times as long.
        assert_eq!(retry_timeout(14, 7), Some(2_147_480));
        assert_eq!(retry_timeout(31, 7).map(|us| us / 3_600_000_000), Some(78));
        assert_eq!(retry_timeout(255, 255), retry_timeout(31, 7));
    }

    #[test]
    fn rnr_wait_is_timer_times_retries() {
        // The codes of a receiver's timer, in hundredths of a millisecond.
        let times = [
            65_536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768,
            1024, 1536, 2048, 3072, 4096, 6144, 8192, 12_288, 16_384, 24_576, 32_768, 49_152,
        ];
        for (timer, time) in (0..).zip(times) {
            assert_eq!(rnr_wait(timer, RnrRetry(0)), Some(0));
            assert_eq!(rnr_wait(timer, RnrRetry(1)), Some(time * 10));
            assert_eq!(rnr_wait(timer, RnrRetry(6)), Some(time * 60));
            assert_eq!(rnr_wait(timer, RnrRetry::FOR_EVER), None);
        }
        let once = RnrRetry::new(1);
        assert_eq!(rnr_wait(32, once), rnr_wait(31, once));
        assert_eq!(RnrRetry::new(0xff), RnrRetry::FOR_EVER);
    }

    #[test]
    fn connect_pauses_double_up_to_a_second() {
        let mut pauses = Pauses::default();
        let first: [_; 10] = core::array::from_fn(|_| pauses.next_pause());
        assert_eq!(first, [8, 16, 32, 64, 128, 256, 512, 1024, 1024, 1024]);
    }
}
