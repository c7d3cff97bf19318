// SPDX-License-Identifier: GPL-2.0

//! Start-up: read queue depths, peer-to-peer set-up, and two ends that negotiate.

use iwarp::{
    ddp::Msn,
    fault::Fault,
    mpa::{
        negotiate::{
            Config,
            Depths,
            Initiator,
            Progress,
            Responder,
            Rtr,
            Verdict, //
        },
        start::RtrKinds,
        Crc, //
    },
    rdmap::Extensions,
    receiver::{
        Receiver,
        Segment, //
    },
    segment::Message, //
};
use iwarp_support::{
    end::{
        transmit,
        write,
        End, //
    },
    frame::{
        read_request,
        send,
        tagged,
        terminate,
        Untagged, //
    },
    hostile::accepts,
    start::{
        accept,
        accepted,
        config,
        depths,
        enhanced,
        frame,
        peer_to_peer,
        reply,
        request,
        C,
        FIRST,
        OPEN,
        REPLY,
        REQUEST,
        SECOND, //
    },
    wire::Wire, //
};

// Depths.

#[test]
fn responder_depths_are_limited_by_both_ends() {
    // MPA-36.
    let values = [0, 1, 2, 3, 7, 255, 256, 16382];
    for peer_ird in values {
        for peer_ord in values {
            for own in values {
                let octets = enhanced(REQUEST, C, peer_ird, peer_ord, &[]);
                let answer = accept(config(), depths(own, own), &octets);
                let expected = depths(own.min(peer_ord), own.min(peer_ird));
                assert_eq!(answer.rules.depths, expected);
                assert_eq!(
                    answer.reply.as_octets(),
                    enhanced(REPLY, C, expected.ird, expected.ord, &[])
                );
                let said = answer.rules.peer_depths.unwrap();
                assert_eq!((said.ird, said.ord), (Some(peer_ird), Some(peer_ord)));
            }
        }
    }
}

#[test]
fn the_initiator_lowers_its_ord_to_the_peers_ird() {
    // MPA-36.
    for own in [0, 1, 3, 255, 16382] {
        for peer_ird in [0, 1, 3, 255, 16382] {
            let octets = enhanced(REPLY, C, peer_ird, 0, &[]);
            let (rules, _) = accepted(reply(config(), depths(4, own), &octets).verdict);
            assert_eq!(rules.depths, depths(4, own.min(peer_ird)));
        }
    }
}

#[test]
fn the_initiator_refuses_an_ord_above_its_ird() {
    // MPA-38.
    for (ird, ord) in [(0, 1), (4, 5), (4, 16382)] {
        let verdict = reply(config(), depths(ird, 4), &enhanced(REPLY, C, 4, ord, &[])).verdict;
        let Verdict::Failed { fault, rules } = verdict else {
            panic!("{verdict:?}");
        };
        assert_eq!(fault, Fault::InsufficientIrd);
        assert_eq!(rules.crc, Crc::On);
    }
    for (ird, ord) in [(0, 0), (4, 4), (4, 3)] {
        accepted(reply(config(), depths(ird, 4), &enhanced(REPLY, C, 4, ord, &[])).verdict);
    }
}

#[test]
fn unspecified_depths_stay_unspecified() {
    // MPA-37, each depth on its own.
    for (peer_ird, peer_ord, expected, said) in [
        (OPEN, OPEN, depths(6, 5), (OPEN, OPEN)),
        (OPEN, 2, depths(2, 5), (2, OPEN)),
        (2, OPEN, depths(6, 2), (OPEN, 2)),
    ] {
        let octets = enhanced(REQUEST, C, peer_ird, peer_ord, &[]);
        let answer = accept(config(), depths(6, 5), &octets);
        assert_eq!(answer.rules.depths, expected);
        let expected = enhanced(REPLY, C, said.0, said.1, &[]);
        assert_eq!(answer.reply.as_octets(), expected);
    }
    for (peer_ird, peer_ord, expected) in [
        (OPEN, OPEN, depths(6, 5)),
        (OPEN, 2, depths(6, 5)),
        (2, OPEN, depths(6, 2)),
    ] {
        let octets = enhanced(REPLY, C, peer_ird, peer_ord, &[]);
        let (rules, _) = accepted(reply(config(), depths(6, 5), &octets).verdict);
        assert_eq!(rules.depths, expected);
    }
}

#[test]
fn depths_too_large_are_lowered_and_stay_specified() {
    let initiator = Initiator::new(config(), depths(u16::MAX, 0x3fff));
    let octets = initiator.request(&[]).unwrap();
    let expected = enhanced(REQUEST, C, 0x3ffe, 0x3ffe, &[]);
    assert_eq!(octets.as_octets(), expected);
    let octets = enhanced(REQUEST, C, 0x3ffe, 0x3ffe, &[]);
    let answer = accept(config(), depths(u16::MAX, u16::MAX), &octets);
    assert_eq!(answer.rules.depths, depths(0x3ffe, 0x3ffe));
}

// Peer-to-peer.

/// Returns all sets of RTR kinds, with their flags.
fn rtr_sets() -> Vec<(RtrKinds, u16, u16)> {
    let mut sets = Vec::new();
    for (send, b) in [(RtrKinds::NONE, 0), (RtrKinds::SEND, SECOND)] {
        for (write, c) in [(RtrKinds::NONE, 0), (RtrKinds::WRITE, FIRST)] {
            for (read, d) in [(RtrKinds::NONE, 0), (RtrKinds::READ, SECOND)] {
                sets.push((send.union(write).union(read), b, c | d));
            }
        }
    }
    sets
}

#[test]
fn responder_offers_common_rtr_kinds_or_its_own() {
    // MPA-39, -44, for all offers and all abilities.
    for (able, ..) in rtr_sets() {
        let usable = if able.is_empty() {
            RtrKinds::WRITE.union(RtrKinds::READ)
        } else {
            able
        };
        let config = Config {
            rtr: able,
            ..config()
        };
        for (offered, b, cd) in rtr_sets() {
            let octets = enhanced(REQUEST, C, FIRST | b | 4, cd | 4, &[]);
            let answer = accept(config, depths(4, 4), &octets);
            let common = usable.intersection(offered);
            let expected = if common.is_empty() { usable } else { common };
            assert_eq!(answer.rtr, expected);
            let said = rtr_sets()
                .into_iter()
                .find(|set| set.0 == expected)
                .unwrap();
            assert_eq!(
                answer.reply.as_octets(),
                enhanced(REPLY, C, FIRST | said.1 | 4, said.2 | 4, &[])
            );
            // Without A no kind is set, whatever the other flags.
            let octets = enhanced(REQUEST, C, b | 4, cd | 4, &[]);
            let answer = accept(config, depths(4, 4), &octets);
            assert_eq!(answer.rtr, RtrKinds::NONE);
            assert_eq!(answer.reply.as_octets(), enhanced(REPLY, C, 4, 4, &[]));
        }
    }
}

#[test]
fn initiator_chooses_common_rtr_kind_or_fails() {
    // MPA-39, -40, -43, -44.
    for (able, b, cd) in rtr_sets() {
        let initiator = Initiator::new(peer_to_peer(able), depths(4, 4));
        let asked = initiator.request(&[]).unwrap();
        let (a, b, cd) = if able.is_empty() {
            (0, 0, 0)
        } else {
            (FIRST, b, cd)
        };
        let expected = enhanced(REQUEST, C, a | b | 4, cd | 4, &[]);
        assert_eq!(asked.as_octets(), expected);

        for (offered, b, cd) in rtr_sets() {
            let octets = enhanced(REPLY, C, FIRST | b | 4, cd | 4, &[]);
            let verdict = reply(peer_to_peer(able), depths(4, 4), &octets).verdict;
            let common = able.intersection(offered);
            let best = [
                (RtrKinds::WRITE, Rtr::Write),
                (RtrKinds::READ, Rtr::Read),
                (RtrKinds::SEND, Rtr::Send),
            ]
            .into_iter()
            .find(|(kind, _)| common.contains(*kind));
            match (able.is_empty(), best) {
                (true, _) => assert_eq!(accepted(verdict).1, None),
                (false, Some((_, rtr))) => assert_eq!(accepted(verdict).1, Some(rtr)),
                (false, None) => assert!(matches!(
                    verdict,
                    Verdict::Failed {
                        fault: Fault::NoMatchingRtr,
                        ..
                    }
                )),
            }
        }
    }
}

#[test]
fn a_request_says_whether_either_end_may_send_first() {
    let asks = |octets: &[u8]| request(config(), octets).is_peer_to_peer();
    assert!(asks(&enhanced(REQUEST, C, FIRST | 4, OPEN | 4, &[])));
    assert!(!asks(&enhanced(REQUEST, C, 4, 4, &[])));
    // The kinds of first message are ignored without the bit, which only enhanced data has.
    assert!(!asks(&enhanced(REQUEST, C, 4, SECOND | 4, &[])));
    assert!(!asks(&frame(REQUEST, C, 1, &[])));
}

#[test]
fn a_reply_that_does_not_agree_to_peer_to_peer_fails() {
    let octets = enhanced(REPLY, C, 4, FIRST | SECOND | 4, &[]);
    let verdict = reply(peer_to_peer(RtrKinds::WRITE), depths(4, 4), &octets).verdict;
    assert!(matches!(
        verdict,
        Verdict::Failed {
            fault: Fault::NoMatchingRtr,
            ..
        }
    ));
}

#[test]
fn read_rtr_has_an_inbound_slot() {
    // MPA-45.
    let config = peer_to_peer(RtrKinds::READ);
    let initiator = Initiator::new(config, depths(0, 0));
    let asked = initiator.request(&[]).unwrap();
    let expected = enhanced(REQUEST, C, FIRST, SECOND | 1, &[]);
    assert_eq!(asked.as_octets(), expected);
    let answer = accept(config, depths(0, 0), asked.as_octets());
    assert_eq!(answer.rules.depths, depths(1, 0));
    let judged = reply(config, depths(0, 0), answer.reply.as_octets());
    let (rules, rtr) = accepted(judged.verdict);
    assert_eq!((rules.depths, rtr), (depths(0, 1), Some(Rtr::Read)));
    // Even if the Responder says 0.
    let octets = enhanced(REPLY, C, FIRST, SECOND, &[]);
    let (rules, _) = accepted(reply(config, depths(0, 0), &octets).verdict);
    assert_eq!(rules.depths.ord, 1);
}

/// Returns the segment of a message's first FPDU.
fn first_segment(message: Message, payload: &[u8]) -> Segment {
    let fpdu = &transmit(message, payload, || 1454)[0];
    let len = u16::from_be_bytes([fpdu[0], fpdu[1]]);
    let ulpdu = &fpdu[2..][..len.into()];
    Receiver::new(Extensions::Rfc7306)
        .handle_fpdu(&ulpdu[..ulpdu.len().min(70)], len)
        .unwrap()
}

#[test]
fn first_segment_must_be_agreed_rtr() {
    // MPA-40, -41.
    for (kinds, ..) in rtr_sets() {
        for (kind, rtr) in [
            (RtrKinds::SEND, Rtr::Send),
            (RtrKinds::WRITE, Rtr::Write),
            (RtrKinds::READ, Rtr::Read),
        ] {
            let expected = if kinds.contains(kind) {
                Ok(rtr)
            } else {
                Err(Fault::NotRtr)
            };
            let segment = first_segment(rtr.message(), &[]);
            assert_eq!(kinds.expect(&segment), expected);
        }
        let empty = kinds.contains(RtrKinds::SEND);
        assert_eq!(kinds.expect(&Segment::Empty).is_ok(), empty);
    }
}

#[test]
fn other_first_message_than_rtr_is_refused() {
    // MPA-41.
    let all = RtrKinds::SEND.union(RtrKinds::WRITE).union(RtrKinds::READ);
    let judge = |segment: &[u8]| {
        let len = u16::try_from(segment.len()).unwrap();
        let mut receiver = Receiver::new(Extensions::Rfc7306);
        all.expect(&receiver.handle_fpdu(segment, len).unwrap())
    };
    for segment in [
        send(1, b"x"),
        tagged(0, true, 1, 0, b"x"),
        tagged(0, false, 1, 0, &[]),
        tagged(2, true, 1, 0, &[]),
        read_request(1, (1, 0), 1, (1, 0)),
        terminate(0, 0, 0),
        Untagged::whole(8, 0, 1).octets(&[0; 8]),
        Untagged::whole(0xa, 1, 1).octets(&[0; 52]),
        Untagged::whole(0xb, 3, 1).octets(&[0; 12]),
    ] {
        assert_eq!(judge(&segment), Err(Fault::NotRtr));
    }
    let mut long = read_request(1, (1, 0), 0, (1, 0));
    long.push(0);
    assert_eq!(judge(&long), Err(Fault::HeaderLength));
}

#[test]
fn read_rtr_uses_first_msn_of_its_queue() {
    // MPA-42: the next Read Request has number 2; an RTR by Write uses none.
    let mut end = End::new(Extensions::Off, 2, 0);
    for fpdu in transmit(Rtr::Read.message(), &[], || 128) {
        let mut wire = Wire::new();
        wire.push(&fpdu);
        end.handle(&wire.pop().unwrap());
    }
    let (message, octets) = end.respond().unwrap();
    assert!(matches!(message, Message::ReadResponse { .. }) && octets.is_empty());
    accepts(&mut end, &read_request(2, (1, 0), 0, (1, 0)));
    assert_eq!(Rtr::Write.message(), write(1, 0));
    let Message::ReadRequest { msn, .. } = Rtr::Read.message() else {
        panic!("it is a Read");
    };
    assert_eq!(msn, Msn::FIRST);
}

// Both ends.

#[test]
fn any_two_configurations_agree() {
    let kinds = [
        RtrKinds::WRITE,
        RtrKinds::READ,
        RtrKinds::WRITE.union(RtrKinds::READ),
    ];
    for left in kinds {
        for right in kinds {
            for crc in [Crc::Off, Crc::On] {
                for (ird, ord) in [(0, 0), (1, 0), (0, 1), (8, 4), (255, 255)] {
                    agree(left, right, crc, depths(ird, ord));
                }
            }
        }
    }
}

fn agree(left: RtrKinds, right: RtrKinds, crc: Crc, wanted: Depths) {
    let initiator = Initiator::new(
        Config {
            crc,
            ..peer_to_peer(left)
        },
        wanted,
    );
    let responder = Config {
        crc: Crc::Off,
        rtr: right,
        ..config()
    };
    let asked = initiator.request(b"hello").unwrap();
    let answer = accept(responder, depths(4, 4), asked.as_octets());
    let Ok(Progress::Done(judged)) = initiator.handle_reply(answer.reply.as_octets()) else {
        panic!("the Reply is complete");
    };
    if left.intersection(right).is_empty() {
        assert!(matches!(judged.verdict, Verdict::Failed { .. }));
        return;
    }
    let (rules, rtr) = accepted(judged.verdict);
    assert_eq!((rules.crc, answer.rules.crc), (crc, crc));
    // Neither end sends more Reads than the other takes.
    assert!(rules.depths.ord <= answer.rules.depths.ird);
    assert!(answer.rules.depths.ord <= rules.depths.ird);
    let segment = first_segment(rtr.unwrap().message(), &[]);
    assert_eq!(answer.rtr.expect(&segment), Ok(rtr.unwrap()));
}

#[test]
fn any_octets_at_all() {
    bolero::check!().for_each(|octets: &[u8]| {
        let responder = Responder::new(config());
        let initiator = Initiator::new(peer_to_peer(RtrKinds::WRITE), depths(4, 4));
        for key in [None, Some(REQUEST), Some(REPLY)] {
            let mut octets = octets.to_vec();
            if let Some(key) = key {
                octets.splice(0..0, *key);
            }
            if let Ok(Progress::Done(request)) = responder.handle_request(&octets) {
                assert!(request.frame_len <= octets.len());
                responder.accept(&request, depths(4, 4), b"x").unwrap();
            }
            if let Ok(Progress::Done(reply)) = initiator.handle_reply(&octets) {
                assert!(reply.private_data.of(&octets).len() <= 512);
            }
        }
    });
}
