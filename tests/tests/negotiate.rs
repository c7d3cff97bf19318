// SPDX-License-Identifier: GPL-2.0

//! Start-up: frames, revisions, CRCs and Markers. Depths and peer-to-peer set-up are in
//! negotiate_rtr.rs.

use iwarp::features::Features;
use iwarp::mpa::{
    negotiate::{
        Config,
        FeatureRules,
        Initiator,
        PeerDepths,
        Progress,
        Responder,
        Verdict, //
    },
    start::{
        RtrKinds,
        StartError, //
    },
    Crc,
    Markers, //
};
use iwarp::rdmap::{
    Extensions,
    Marked, //
};
use iwarp_support::start::{
    accept,
    accepted,
    config,
    depths,
    enhanced,
    frame,
    peer_to_peer,
    reply,
    request,
    revision_1,
    C,
    M,
    R,
    REPLY,
    REQUEST,
    S, //
};

fn request_error(octets: &[u8]) -> StartError {
    Responder::new(config()).handle_request(octets).unwrap_err()
}

fn reply_error(octets: &[u8]) -> StartError {
    Initiator::new(config(), depths(1, 1))
        .handle_reply(octets)
        .unwrap_err()
}

// Frames.

#[test]
fn rejects_wrong_mpa_key_at_first_wrong_octet() {
    // MPA-2.
    let good = frame(REQUEST, C, 1, &[]);
    for at in 0..16 {
        let mut octets = good.clone();
        octets[at] ^= 0x20;
        for len in at + 1..=20 {
            assert_eq!(request_error(&octets[..len]), StartError::Key);
        }
        assert!(Responder::new(config())
            .handle_request(&octets[..at])
            .is_ok());
    }
}

#[test]
fn rejects_mpa_frame_of_own_role() {
    // MPA-2, -10.
    assert_eq!(request_error(&frame(REPLY, C, 1, &[])), StartError::Role);
    assert_eq!(reply_error(&frame(REQUEST, C, 1, &[])), StartError::Role);
    // The keys differ in their tenth octet.
    assert_eq!(reply_error(&REQUEST[..10]), StartError::Role);
    assert!(Initiator::new(config(), depths(1, 1))
        .handle_reply(&REQUEST[..9])
        .is_ok());
}

#[test]
fn rejects_unknown_revisions() {
    // MPA-2.
    for revision in (0..=u8::MAX).filter(|revision| !matches!(revision, 1 | 2)) {
        let octets = frame(REQUEST, C, revision, &[]);
        assert_eq!(request_error(&octets), StartError::Revision);
        let octets = frame(REPLY, C, revision, &[]);
        assert_eq!(reply_error(&octets), StartError::Revision);
    }
}

#[test]
fn rejects_mpa_revision_above_own() {
    let error = Responder::new(revision_1())
        .handle_request(&enhanced(REQUEST, C, 1, 1, &[]))
        .unwrap_err();
    assert_eq!(error, StartError::Revision);
    let error = Initiator::new(revision_1(), depths(1, 1))
        .handle_reply(&enhanced(REPLY, C, 1, 1, &[]))
        .unwrap_err();
    assert_eq!(error, StartError::Revision);
}

#[test]
fn rejects_too_long_private_data_by_its_announced_length() {
    // MPA-5.
    let mut octets = frame(REQUEST, C, 1, &[]);
    octets[18..].copy_from_slice(&513u16.to_be_bytes());
    assert_eq!(request_error(&octets), StartError::PrivateDataLength);
    octets[18..].copy_from_slice(&u16::MAX.to_be_bytes());
    assert_eq!(request_error(&octets), StartError::PrivateDataLength);
}

#[test]
fn rejects_enhanced_frames_without_enhanced_data() {
    // MPA-35, in the Request and in the Reply.
    for len in 0..4 {
        let octets = frame(REQUEST, C | S, 2, &vec![0; len]);
        assert_eq!(request_error(&octets), StartError::EnhancedLength);
        for flags in [C | S, C | S | R] {
            let octets = frame(REPLY, flags, 2, &vec![0; len]);
            assert_eq!(reply_error(&octets), StartError::EnhancedLength);
        }
    }
}

#[test]
fn mpa_parser_asks_for_exactly_the_frame() {
    // MPA-6: any chunking; the core never asks for octets behind the frame.
    let private_data: Vec<u8> = (0..=255).collect();
    for octets in [
        frame(REQUEST, C, 1, &[]),
        frame(REQUEST, C, 1, &private_data),
        enhanced(REQUEST, C, 8, 4, &[]),
        enhanced(REQUEST, C, 8, 4, &private_data),
    ] {
        let responder = Responder::new(config());
        for len in 0..octets.len() {
            let expected = if len < 20 { 20 } else { octets.len() };
            assert_eq!(
                responder.handle_request(&octets[..len]).unwrap(),
                Progress::NeedMore(expected)
            );
        }
        let request = request(config(), &octets);
        assert_eq!(request.frame_len, octets.len());
        // MPA-7: octets behind the frame do not change it; the driver checks for them.
        let mut longer = octets.clone();
        longer.push(0);
        let Ok(Progress::Done(same)) = responder.handle_request(&longer) else {
            panic!("the frame is complete");
        };
        assert_eq!(same, request);
    }
}

#[test]
fn private_data_of_every_length_arrives_without_the_enhanced_data() {
    // MPA-5, -32.
    for len in 0..=512 {
        let data: Vec<u8> = (0..=255).cycle().take(len).collect();
        let plain = Initiator::new(revision_1(), depths(1, 1)).request(&data);
        let octets = plain.unwrap().as_octets().to_vec();
        assert_eq!(octets, frame(REQUEST, C, 1, &data));
        let arrived = request(config(), &octets);
        assert_eq!(arrived.private_data.of(&octets), data);
        assert_eq!(arrived.peer_depths, None);

        let rich = Initiator::new(config(), depths(1, 2)).request(&data);
        if len > 508 {
            assert_eq!(rich.unwrap_err(), StartError::PrivateDataTooLong);
            continue;
        }
        let octets = rich.unwrap().as_octets().to_vec();
        assert_eq!(octets, enhanced(REQUEST, C, 1, 2, &data));
        let arrived = request(config(), &octets);
        assert_eq!(arrived.private_data.of(&octets), data);
        let (ird, ord) = (Some(1), Some(2));
        assert_eq!(arrived.peer_depths, Some(PeerDepths { ird, ord }));

        let responder = Responder::new(config());
        let answer = responder.accept(&arrived, depths(2, 1), &data).unwrap();
        let octets = answer.reply.as_octets();
        assert_eq!(octets, enhanced(REPLY, C, 2, 1, &data));
        let judged = reply(config(), depths(1, 2), octets);
        assert_eq!(judged.private_data.of(octets), data);
        assert_eq!(judged.frame_len, octets.len());
    }
    let initiator = Initiator::new(revision_1(), depths(1, 1));
    let error = initiator.request(&[0; 513]).unwrap_err();
    assert_eq!(error, StartError::PrivateDataTooLong);
    let arrived = request(config(), &enhanced(REQUEST, C, 1, 1, &[]));
    let responder = Responder::new(config());
    for len in [509, 512, 513, 10_000] {
        let data = vec![0; len];
        let error = responder.accept(&arrived, depths(1, 1), &data).unwrap_err();
        assert_eq!(error, StartError::PrivateDataTooLong);
        let error = responder.reject(&arrived, &data).unwrap_err();
        assert_eq!(error, StartError::PrivateDataTooLong);
    }
}

#[test]
fn reserved_flags_are_neither_checked_nor_echoed() {
    // MPA-3, -4: the R flag of a Request is ignored too.
    for flags in [0x0f, R, R | 0x0f, S, 0x3f] {
        let octets = accept(config(), depths(1, 1), &frame(REQUEST, C | flags, 1, &[]));
        assert_eq!(octets.reply.as_octets(), frame(REPLY, C, 1, &[]));
    }
    let octets = accept(
        config(),
        depths(1, 1),
        &enhanced(REQUEST, C | R | 0x0f, 1, 1, &[]),
    );
    assert_eq!(octets.reply.as_octets(), enhanced(REPLY, C, 1, 1, &[]));
    let judged = reply(config(), depths(1, 1), &frame(REPLY, C | 0x0f, 1, &[]));
    accepted(judged.verdict);
}

#[test]
fn send_with_imm_is_negotiated_by_two_flags() {
    // MPA-3: an offer is neither sent nor accepted unless configured. The Request's flags in a
    // Reply do not accept an offer.
    let on = Config {
        extensions: Extensions::SendImmediate,
        ..config()
    };
    for (ours, offer) in [(config(), 0), (on, 1)] {
        let wanted = Initiator::new(ours, depths(1, 1)).request(&[]).unwrap();
        assert_eq!(wanted.as_octets()[16], C | S | offer);
        for flags in 0..16 {
            let agreed = |agreed| {
                if agreed && ours == on {
                    Extensions::SendImmediate
                } else {
                    Extensions::Rfc7306
                }
            };
            let asked = frame(REQUEST, C | flags, 1, &[]);
            let answer = accept(ours, depths(1, 1), &asked);
            let expected = agreed(flags & 1 == 1);
            assert_eq!(answer.rules.extensions, expected);
            let taken = if expected == Extensions::SendImmediate {
                2
            } else {
                0
            };
            assert_eq!(answer.reply.as_octets()[16], C | taken);
            let arrived = request(ours, &asked);
            let refusal = Responder::new(ours).reject(&arrived, &[]).unwrap();
            assert_eq!(refusal.as_octets()[16], C | R);
            let unable = Responder::new(ours).without_send_immediate();
            let answer = unable.accept(&arrived, depths(1, 1), &[]).unwrap();
            assert_eq!(answer.rules.extensions, Extensions::Rfc7306);
            assert_eq!(answer.reply.as_octets()[16], C);

            let judged = reply(ours, depths(1, 1), &frame(REPLY, C | flags, 1, &[]));
            let (rules, _) = accepted(judged.verdict);
            assert_eq!(rules.extensions, agreed(flags & 3 == 2));
        }
    }
}

#[test]
fn features_are_exchanged_if_both_ends_offer() {
    const OURS: Features = Features {
        ulpdu_max: 9000,
        marked: Marked::NONE,
    };
    let on = Config {
        features: Some(OURS),
        ..config()
    };
    for (ours, offer) in [(config(), 0), (on, 4)] {
        let wanted = Initiator::new(ours, depths(1, 1)).request(&[]).unwrap();
        assert_eq!(wanted.as_octets()[16], C | S | offer);
        for flags in 0..16 {
            // A Responder tells its own behind the enhanced data, if the Request offers it.
            let exchanged = ours == on && flags & 12 == 4;
            let asked = enhanced(REQUEST, C | flags, 1, 1, b"question");
            let answer = accept(ours, depths(1, 1), &asked);
            assert_eq!(
                answer.rules.features.awaits,
                ours.features.filter(|_| exchanged)
            );
            assert_eq!(answer.rules.features.common, None);
            assert_eq!(answer.rules.features.tell, None);
            let octets = answer.reply.as_octets();
            assert_eq!(octets[16], C | S | if exchanged { 8 } else { 0 });
            let told = if exchanged { &OURS.encode()[..] } else { &[] };
            assert_eq!(&octets[24..], told);
            let refusal = Responder::new(ours)
                .reject(&request(ours, &asked), b"no")
                .unwrap();
            assert_eq!(refusal.as_octets()[16], C | S | R);
            assert_eq!(&refusal.as_octets()[24..], b"no");

            // An Initiator finds them if it has offered it, and the flag is not that of its offer.
            let theirs = Features {
                ulpdu_max: 7000,
                marked: Marked::NONE,
            }
            .encode();
            let data = [&theirs[..], b"answer"].concat();
            for octets in [
                frame(REPLY, C | flags, 1, &data),
                enhanced(REPLY, C | flags, 1, 1, &data),
            ] {
                let judged = reply(ours, depths(1, 1), &octets);
                let exchanged = ours == on && flags & 12 == 8;
                let private_data = judged.private_data.of(&octets);
                assert_eq!(private_data, if exchanged { b"answer" } else { &data[..] });
                let (rules, _) = accepted(judged.verdict);
                let expected = FeatureRules {
                    common: Some(Features {
                        ulpdu_max: 7000,
                        marked: Marked::NONE,
                    }),
                    tell: Some(OURS),
                    awaits: None,
                };
                let expected = if exchanged {
                    expected
                } else {
                    FeatureRules::NONE
                };
                assert_eq!(rules.features, expected);
            }
        }
    }
}

#[test]
fn private_data_resembling_features_reaches_consumer() {
    let on = Config {
        features: Some(Features {
            ulpdu_max: 9000,
            marked: Marked::NONE,
        }),
        ..config()
    };
    for data in [
        &b""[..],
        b"rW",
        b"rW\x08\0\0\0\x01",
        b"RW\x08\0\0\0\x01\x02",
        b"rW\x0c\0\0\0\x01\x02",
    ] {
        let octets = frame(REPLY, C | 8, 1, data);
        let judged = reply(on, depths(1, 1), &octets);
        assert_eq!(judged.private_data.of(&octets), data);
        let (rules, _) = accepted(judged.verdict);
        assert_eq!(rules.features, FeatureRules::NONE);
    }
}

#[test]
fn features_leave_room_for_private_data() {
    let on = Config {
        features: Some(Features {
            ulpdu_max: 9000,
            marked: Marked::NONE,
        }),
        ..config()
    };
    let arrived = request(on, &enhanced(REQUEST, C | 4, 1, 1, &[]));
    for (len, fits) in [(255, true), (500, true), (501, false), (508, false)] {
        let answer = Responder::new(on).accept(&arrived, depths(1, 1), &vec![7; len]);
        assert_eq!(answer.is_ok(), fits);
    }
}

#[test]
fn a_rejection_carries_private_data() {
    // MPA-4.
    for octets in [
        frame(REQUEST, C, 1, b"question"),
        enhanced(REQUEST, C, 9, 9, b"question"),
    ] {
        let arrived = request(config(), &octets);
        let frame = Responder::new(config()).reject(&arrived, b"no").unwrap();
        let judged = reply(config(), depths(3, 3), frame.as_octets());
        assert_eq!(judged.verdict, Verdict::Rejected);
        assert_eq!(judged.private_data.of(frame.as_octets()), b"no");
        assert_eq!(frame.as_octets()[16] & R, R);
    }
}

// Revisions.

#[test]
fn answers_in_the_revision_of_the_request() {
    // MPA-33, -34.
    let answer = |octets: &[u8]| {
        let answer = accept(config(), depths(7, 7), octets);
        assert_eq!(answer.rtr, RtrKinds::NONE);
        answer
    };
    let plain = answer(&frame(REQUEST, C, 1, &[]));
    assert_eq!(plain.reply.as_octets(), frame(REPLY, C, 1, &[]));
    assert_eq!(plain.rules.depths, depths(7, 7));
    let no_s = answer(&frame(REQUEST, C, 2, &[]));
    assert_eq!(no_s.reply.as_octets(), frame(REPLY, C, 2, &[]));
    assert_eq!(no_s.rules.depths, depths(7, 7));
    let rich = answer(&enhanced(REQUEST, C, 3, 4, &[]));
    assert_eq!(rich.reply.as_octets(), enhanced(REPLY, C, 4, 3, &[]));
    assert_eq!(rich.rules.depths, depths(4, 3));
}

#[test]
fn accepts_reply_without_enhanced_data() {
    // MPA-34.
    for octets in [frame(REPLY, C, 1, &[]), frame(REPLY, C, 2, &[1, 2, 3, 4])] {
        for config in [config(), peer_to_peer(RtrKinds::WRITE)] {
            let judged = reply(config, depths(5, 6), &octets);
            let (rules, rtr) = accepted(judged.verdict);
            assert_eq!((rules.depths, rtr), (depths(5, 6), None));
            assert_eq!(rules.peer_depths, None);
            assert_eq!(judged.private_data.of(&octets), &octets[20..]);
        }
    }
}

// CRCs and Markers.

#[test]
fn crc_is_used_if_either_end_asks() {
    // MPA-14, -15, -48.
    assert_eq!(Config::default().crc, Crc::On);
    for (ours, theirs) in [(false, false), (false, true), (true, false), (true, true)] {
        let crc = |on| if on { Crc::On } else { Crc::Off };
        let flag = |on| if on { C } else { 0 };
        let config = Config {
            crc: crc(ours),
            ..config()
        };
        let agreed = ours || theirs;

        let octets = frame(REQUEST, flag(theirs), 1, &[]);
        let answer = accept(config, depths(1, 1), &octets);
        assert_eq!(answer.rules.crc, crc(agreed));
        assert_eq!(answer.reply.as_octets()[16], flag(agreed));

        let sent = Initiator::new(config, depths(1, 1)).request(&[]).unwrap();
        assert_eq!(sent.as_octets()[16], flag(ours) | S);
        for octets in [
            frame(REPLY, flag(theirs), 1, &[]),
            enhanced(REPLY, flag(theirs), 1, 1, &[]),
        ] {
            let judged = reply(config, depths(1, 1), &octets);
            assert_eq!(accepted(judged.verdict).0.crc, crc(agreed));
        }
    }
}

#[test]
fn markers_are_negotiated_per_direction() {
    // MPA-23, -24.
    for (ours, theirs) in [(false, false), (false, true), (true, false), (true, true)] {
        let markers = |on| if on { Markers::On } else { Markers::Off };
        let flag = |on| if on { M } else { 0 };
        let config = Config {
            markers: markers(ours),
            ..config()
        };
        let octets = frame(REQUEST, C | flag(theirs), 1, &[]);
        let answer = accept(config, depths(1, 1), &octets);
        assert_eq!(answer.reply.as_octets()[16], C | flag(ours));
        let sent = Initiator::new(config, depths(1, 1)).request(&[]).unwrap();
        assert_eq!(sent.as_octets()[16], C | S | flag(ours));
        let judged = reply(
            config,
            depths(1, 1),
            &frame(REPLY, C | flag(theirs), 1, &[]),
        );
        for rules in [answer.rules, accepted(judged.verdict).0] {
            assert_eq!(rules.send_markers, markers(theirs));
            assert_eq!(rules.receive_markers, markers(ours));
        }
    }
}

#[test]
fn self_connected_end_has_one_configuration() {
    for (crc, markers) in [(Crc::On, Markers::Off), (Crc::Off, Markers::On)] {
        let ours = Config {
            crc,
            markers,
            ..config()
        };
        let rules = Initiator::new(ours, depths(3, 7)).rules_with_itself();
        assert_eq!((rules.crc, rules.send_markers), (crc, markers));
        assert_eq!(rules.receive_markers, markers);
        // It sends no more Reads than it takes.
        assert_eq!(rules.depths, depths(3, 3));
        let rules = Initiator::new(ours, depths(7, 3)).rules_with_itself();
        assert_eq!(rules.depths, depths(7, 3));
    }
}
