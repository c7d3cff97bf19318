// SPDX-License-Identifier: GPL-2.0

//! Start-up frames built by hand, and each role in one call.

use iwarp::mpa::{
    negotiate::{
        Accepted,
        Config,
        Depths,
        Initiator,
        PeerToPeer,
        Progress,
        Reply,
        Request,
        Responder,
        Rtr,
        StreamRules,
        Verdict, //
    },
    start::{
        Revision,
        RtrKinds, //
    }, //
};

/// The key of a Request.
pub const REQUEST: &[u8; 16] = b"MPA ID Req Frame";
/// The key of a Reply.
pub const REPLY: &[u8; 16] = b"MPA ID Rep Frame";

/// The M flag.
pub const M: u8 = 0x80;
/// The C flag.
pub const C: u8 = 0x40;
/// The R flag.
pub const R: u8 = 0x20;
/// The S flag.
pub const S: u8 = 0x10;

/// The first flag of a word of enhanced data.
pub const FIRST: u16 = 0x8000;
/// The second flag of a word of enhanced data.
pub const SECOND: u16 = 0x4000;
/// The depth that is left open.
pub const OPEN: u16 = 0x3fff;

/// Builds a frame.
pub fn frame(key: &[u8; 16], flags: u8, revision: u8, private_data: &[u8]) -> Vec<u8> {
    let mut octets = key.to_vec();
    octets.extend([flags, revision]);
    octets.extend(u16::try_from(private_data.len()).unwrap().to_be_bytes());
    octets.extend(private_data);
    octets
}

/// Builds the same with enhanced data in front of the private data.
pub fn enhanced(key: &[u8; 16], flags: u8, ird: u16, ord: u16, private_data: &[u8]) -> Vec<u8> {
    let mut data = [ird.to_be_bytes(), ord.to_be_bytes()].concat();
    data.extend(private_data);
    frame(key, flags | S, 2, &data)
}

/// Returns the default configuration.
pub fn config() -> Config {
    Config::default()
}

/// Returns the same in revision 1.
pub fn revision_1() -> Config {
    Config {
        revision: Revision::One,
        ..config()
    }
}

/// Returns the same with peer-to-peer set-up by some RTR kinds.
pub fn peer_to_peer(rtr: RtrKinds) -> Config {
    Config {
        peer_to_peer: PeerToPeer::On,
        rtr,
        ..config()
    }
}

/// Returns both depths.
pub fn depths(ird: u16, ord: u16) -> Depths {
    Depths { ird, ord }
}

/// Passes a complete Request to a Responder.
#[track_caller]
pub fn request(config: Config, octets: &[u8]) -> Request {
    match Responder::new(config).handle_request(octets).unwrap() {
        Progress::Done(request) => request,
        Progress::NeedMore(len) => panic!("wants {len} octets"),
    }
}

/// Passes a complete Reply to an Initiator.
#[track_caller]
pub fn reply(config: Config, wanted: Depths, octets: &[u8]) -> Reply {
    match Initiator::new(config, wanted).handle_reply(octets).unwrap() {
        Progress::Done(reply) => reply,
        Progress::NeedMore(len) => panic!("wants {len} octets"),
    }
}

/// Has a Responder accept a complete Request.
#[track_caller]
pub fn accept(config: Config, wanted: Depths, octets: &[u8]) -> Accepted {
    let request = request(config, octets);
    Responder::new(config)
        .accept(&request, wanted, &[])
        .unwrap()
}

/// Returns what was agreed on.
#[track_caller]
pub fn accepted(verdict: Verdict) -> (StreamRules, Option<Rtr>) {
    match verdict {
        Verdict::Accepted { rules, rtr } => (rules, rtr),
        Verdict::Rejected | Verdict::Failed { .. } => panic!("{verdict:?}"),
    }
}
