// SPDX-License-Identifier: GPL-2.0

//! Start-up, both sides, from octets that arrive in pieces.

use iwarp::features::Features;
use iwarp::mpa::{
    negotiate::{
        Config,
        Depths,
        Initiator,
        PeerToPeer,
        Progress,
        Responder,
        StreamRules,
        Verdict, //
    },
    start::{
        Revision,
        RtrKinds,
        StartError,
        WireDepth,
        FRAME_MAX, //
    },
    Crc,
    Markers, //
};
use iwarp::rdmap::{
    Extensions,
    Marked, //
};

use crate::source::Source;

/// Takes octets as a Request and as a Reply, then lets the two sides negotiate.
pub fn run(octets: &[u8]) {
    let mut source = Source::new(octets);
    let (ours, theirs) = (config(&mut source), config(&mut source));
    let (our_depths, their_depths) = (depths(&mut source), depths(&mut source));
    let cut = source.below(FRAME_MAX + 1);
    let private_len = source.below(600);
    let frame = source.rest();

    let responder = Responder::new(ours);
    let handle = |octets: &[u8]| responder.handle_request(octets);
    if let Some(request) = in_pieces(frame, cut, handle, |request| request.frame_len) {
        assert!(request.private_data.of(frame).len() <= 512);
        answer(&responder, ours, &request, our_depths, private_len);
    }
    let initiator = Initiator::new(ours, our_depths);
    let handle = |octets: &[u8]| initiator.handle_reply(octets);
    if let Some(reply) = in_pieces(frame, cut, handle, |reply| reply.frame_len) {
        assert!(reply.private_data.of(frame).len() <= 512);
        if let Verdict::Accepted { rules, .. } | Verdict::Failed { rules, .. } = reply.verdict {
            check_rules(&rules, ours);
        }
    }
    agree(ours, our_depths, theirs, their_depths, private_len);
}

/// Passes growing prefixes of a frame. The answer depends only on the octets, and the core asks for
/// no more than the frame has. Returns the frame if it becomes complete.
fn in_pieces<T: PartialEq + std::fmt::Debug>(
    octets: &[u8],
    cut: usize,
    handle: impl Fn(&[u8]) -> Result<Progress<T>, StartError>,
    frame_len: impl Fn(&T) -> usize,
) -> Option<T> {
    let whole = handle(octets);
    let front = handle(&octets[..cut.min(octets.len())]);
    match (&whole, front) {
        // An error of the prefix is one of the whole. But what begins like the other role's key may
        // turn out not to be a key.
        (Err(StartError::Key), Err(StartError::Role)) => {}
        (_, Err(error)) => assert_eq!(whole, Err(error)),
        (_, Ok(Progress::NeedMore(len))) => assert!(len > cut.min(octets.len())),
        (Ok(Progress::Done(whole)), Ok(Progress::Done(front))) => assert_eq!(*whole, front),
        (_, Ok(Progress::Done(_))) => panic!("more octets undo a frame"),
    }
    match whole {
        Err(_) => None,
        Ok(Progress::NeedMore(len)) => {
            assert!(len > octets.len() && len <= FRAME_MAX);
            None
        }
        Ok(Progress::Done(frame)) => {
            let len = frame_len(&frame);
            assert!(len <= octets.len());
            assert_eq!(handle(&octets[..len]), Ok(Progress::Done(frame)));
            assert!(
                matches!(handle(&octets[..len - 1]), Ok(Progress::NeedMore(more)) if more <= len)
            );
            handle(octets).ok().and_then(|progress| match progress {
                Progress::Done(frame) => Some(frame),
                Progress::NeedMore(_) => None,
            })
        }
    }
}

/// Accepts and rejects a Request of any peer; the answer is a Reply.
fn answer(
    responder: &Responder,
    config: Config,
    request: &iwarp::mpa::negotiate::Request,
    depths: Depths,
    private_len: usize,
) {
    let private = [0xa5; 600];
    let private = &private[..private_len];
    let room = 512 - if request.peer_depths.is_some() { 4 } else { 0 };
    let accepted = responder.accept(request, depths, private);
    let rejected = responder.reject(request, private);
    let told = match &accepted {
        Ok(accepted) => accepted.rules.features.awaits,
        Err(_) => config.features,
    };
    let told = if told.is_some() { Features::LEN } else { 0 };
    assert_eq!(rejected.is_err(), private_len > room);
    if accepted.is_err() {
        assert_eq!(accepted.err(), Some(StartError::PrivateDataTooLong));
        assert!(private_len > room - told);
        return;
    }
    let accepted = accepted.unwrap();
    assert!(private_len <= room - told);
    check_rules(&accepted.rules, config);
    for reply in [accepted.reply, rejected.unwrap()] {
        let octets = reply.as_octets();
        let features = config.features.or(Some(Features {
            ulpdu_max: 1,
            marked: Marked::NONE,
        }));
        let offering = Config {
            features,
            ..Config::default()
        };
        let reader = Initiator::new(offering, Depths::default());
        let Ok(Progress::Done(reply)) = reader.handle_reply(octets) else {
            panic!("the Reply is not one");
        };
        assert_eq!(reply.frame_len, octets.len());
        assert_eq!(reply.private_data.of(octets), private);
    }
}

/// Negotiates between two ends of the core: they agree, or the Initiator can say why not.
fn agree(left: Config, wanted: Depths, right: Config, own: Depths, private_len: usize) {
    let private = &[0x5a; 600][..private_len];
    let mut initiator = Initiator::new(left, wanted);
    let Ok(asked) = initiator.request(private) else {
        assert!(private_len > 508);
        return;
    };
    let responder = Responder::new(right);
    let request = match responder.handle_request(asked.as_octets()) {
        Ok(Progress::Done(request)) => request,
        Err(error) => {
            // An answer in revision 1 is understood.
            assert_eq!(error, StartError::Revision);
            let revision = Revision::One;
            initiator = Initiator::new(Config { revision, ..left }, wanted);
            let asked = initiator.request(private).unwrap();
            let Ok(Progress::Done(request)) = responder.handle_request(asked.as_octets()) else {
                panic!("the Request of revision 1 is refused");
            };
            request
        }
        Ok(Progress::NeedMore(_)) => panic!("our own Request is cut off"),
    };
    let answer = responder.accept(&request, own, &[]).unwrap();
    let Ok(Progress::Done(reply)) = initiator.handle_reply(answer.reply.as_octets()) else {
        panic!("our own Reply is refused");
    };
    match reply.verdict {
        Verdict::Rejected => panic!("nobody refused"),
        Verdict::Failed { .. } => assert!(request.peer_depths.is_some()),
        Verdict::Accepted { rules, rtr } => {
            assert_eq!(rules.crc, answer.rules.crc);
            assert_eq!(rules.extensions, answer.rules.extensions);
            let both = left.extensions == right.extensions;
            assert_eq!(
                rules.extensions == Extensions::SendImmediate,
                both && left.extensions == Extensions::SendImmediate
            );
            let both = left.features.is_some() && right.features.is_some();
            assert_eq!(rules.features.tell, left.features.filter(|_| both));
            assert_eq!(
                answer.rules.features.awaits,
                right.features.filter(|_| both)
            );
            assert_eq!(rules.features.common.is_some(), both);
            assert_eq!(rules.send_markers, answer.rules.receive_markers);
            assert_eq!(rules.receive_markers, answer.rules.send_markers);
            assert_eq!(rtr.is_some(), !answer.rtr.is_empty());
            if rules.peer_depths.is_some() {
                // Neither end sends more Reads than the other takes.
                assert!(rules.depths.ord <= answer.rules.depths.ird);
                assert!(answer.rules.depths.ord <= rules.depths.ird);
            }
        }
    }
}

fn check_rules(rules: &StreamRules, config: Config) {
    assert!(rules.depths.ird <= WireDepth::MAX && rules.depths.ord <= WireDepth::MAX);
    // MPA-14, -23: one end that wants CRCs is enough; the peer sends Markers if asked to.
    assert!(config.crc == Crc::Off || rules.crc == Crc::On);
    assert_eq!(rules.receive_markers, config.markers);
    // MPA-3: both agree only on what was asked for, whatever the peer's reserved flags.
    assert!(rules.extensions == Extensions::Rfc7306 || rules.extensions == config.extensions);
}

fn config(source: &mut Source<'_>) -> Config {
    let flags = source.u8();
    let rtr = [
        (0x10, RtrKinds::SEND),
        (0x20, RtrKinds::WRITE),
        (0x40, RtrKinds::READ),
    ];
    Config {
        revision: if flags & 1 == 0 {
            Revision::Two
        } else {
            Revision::One
        },
        crc: if flags & 2 == 0 { Crc::On } else { Crc::Off },
        markers: if flags & 4 == 0 {
            Markers::Off
        } else {
            Markers::On
        },
        peer_to_peer: if flags & 8 == 0 {
            PeerToPeer::Off
        } else {
            PeerToPeer::On
        },
        rtr: rtr
            .into_iter()
            .filter(|(flag, _)| flags & flag != 0)
            .fold(RtrKinds::NONE, |set, (_, kind)| set.union(kind)),
        extensions: if flags & 0x80 == 0 {
            Extensions::Rfc7306
        } else {
            Extensions::SendImmediate
        },
        features: (source.u8() & 1 == 1).then(|| Features {
            ulpdu_max: source.u16(),
            marked: Marked::from_bits(source.u16()),
        }),
    }
}

fn depths(source: &mut Source<'_>) -> Depths {
    // Half of the depths are near 0, where they are the limit.
    let mut depth = || match source.u16() {
        small @ 0x8000.. => small & 3,
        any => any,
    };
    Depths {
        ird: depth(),
        ord: depth(),
    }
}
