// SPDX-License-Identifier: GPL-2.0

//! Golden octets, made by a script that shares no code with the core (golden_frames.txt).

use std::collections::BTreeMap;

use iwarp::{
    atomic::{
        AtomicOperation,
        AtomicRequest,
        AtomicResponse, //
    },
    ddp::{
        MessagePart,
        Msn, //
    },
    fault::Fault,
    mpa::{
        negotiate::{
            Config,
            Depths,
            Initiator,
            PeerToPeer,
            Progress,
            Responder,
            Rtr,
            Verdict, //
        },
        start::{
            Revision,
            RtrKinds, //
        }, //
    },
    rdmap::{
        Extensions,
        Immediate,
        ReadRequest,
        SendEvent,
        SendExtra,
        SendKind, //
    },
    receiver::{
        QueueRoom,
        Receiver,
        Segment,
        RECEIVE_HEADER_MAX, //
    },
    segment::Message,
    stag::{
        Stag,
        TaggedOffset, //
    },
    terminate::{
        Quoted,
        Terminate, //
    }, //
};
use iwarp_support::{
    end::{
        transmit,
        write, //
    },
    wire::Wire, //
};

/// The frames of the data file by name: two lines each, the second with the octets behind a colon.
fn golden() -> BTreeMap<&'static str, Vec<u8>> {
    let lines: Vec<&str> = include_str!("golden_frames.txt").lines().collect();
    lines
        .chunks(2)
        .map(|pair| {
            let (_, hex) = pair[1].rsplit_once(": ").unwrap();
            let octets = (0..hex.len())
                .step_by(2)
                .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap())
                .collect();
            (pair[0], octets)
        })
        .collect()
}

const READ: ReadRequest = ReadRequest {
    sink_stag: Stag::new(0xaabb_cc01),
    sink_to: TaggedOffset::new(0x2000),
    len: 16,
    source_stag: Stag::new(0x1122_3344),
    source_to: TaggedOffset::new(0x1000),
};

fn send(solicited: SendEvent, invalidate: Option<u32>, msn: u32) -> Message {
    Message::Send {
        kind: SendKind {
            solicited,
            extra: invalidate.map_or(SendExtra::None, |stag| {
                SendExtra::Invalidate(Stag::new(stag))
            }),
        },
        msn: Msn::new(msn),
    }
}

fn atomic(identifier: u32, to: u64, operation: AtomicOperation, msn: u32) -> Message {
    Message::AtomicRequest {
        request: AtomicRequest {
            identifier,
            stag: Stag::new(0x1122_3344),
            to: TaggedOffset::new(to),
            operation,
        },
        msn: Msn::new(msn),
    }
}

fn read_response(stag: u32, to: u64) -> Message {
    Message::ReadResponse {
        stag: Stag::new(stag),
        to: TaggedOffset::new(to),
    }
}

/// Terminate for a fault of the segment in a golden frame.
fn terminate(fault: Fault, frame: &[u8]) -> Message {
    let len = u16::from_be_bytes([frame[0], frame[1]]);
    let quoted = Quoted::from_segment(&frame[2..], len);
    Message::Terminate(Terminate::for_fault(fault, quoted.as_ref()))
}

/// Every FPDU of the file: its name, the message and payload that make it.
fn messages(golden: &BTreeMap<&str, Vec<u8>>) -> Vec<(&'static str, Message, Vec<u8>)> {
    let data: Vec<u8> = (0..16).collect();
    let immediate = |solicited, msn| Message::Immediate {
        immediate: Immediate {
            data: [1, 2, 3, 4, 5, 6, 7, 8],
            solicited,
        },
        msn: Msn::new(msn),
    };
    vec![
        (
            "RDMA Write, 0 octets (RTR), STag 1, TO 0",
            Rtr::Write.message(),
            vec![],
        ),
        (
            "RDMA Write, 4 octets 'ABCD'",
            write(0x1122_3344, 0x1000),
            b"ABCD".to_vec(),
        ),
        (
            "RDMA Read Request, 16 octets, MSN 1",
            Message::ReadRequest {
                request: READ,
                msn: Msn::FIRST,
            },
            vec![],
        ),
        (
            "RDMA Read Request, 0 octets (RTR), MSN 1",
            Rtr::Read.message(),
            vec![],
        ),
        (
            "RDMA Read Response, 0 octets",
            read_response(1, 0),
            vec![],
        ),
        (
            "RDMA Read Response, 16 octets 00..0f",
            read_response(0xaabb_cc01, 0x2000),
            data,
        ),
        (
            "Send, 5 octets 'hello', MSN 1",
            send(SendEvent::Silent, None, 1),
            b"hello".to_vec(),
        ),
        (
            "Send with Invalidate, STag 0xAABBCC01, 0 octets, MSN 2",
            send(SendEvent::Silent, Some(0xaabb_cc01), 2),
            vec![],
        ),
        (
            "Send with SE, 0 octets, MSN 3",
            send(SendEvent::Solicit, None, 3),
            vec![],
        ),
        (
            "Send with SE+Invalidate, 1 octet 'x', MSN 4",
            send(SendEvent::Solicit, Some(0xaabb_cc01), 4),
            b"x".to_vec(),
        ),
        (
            "Terminate RDMAP/local catastrophic/0xff (no headers)",
            Message::Terminate(Terminate::for_fault(Fault::Local, None)),
            vec![],
        ),
        (
            "Terminate LLP/MPA/CRC error (no headers)",
            terminate(Fault::Crc, &golden["RDMA Write, 4 octets 'ABCD'"]),
            vec![],
        ),
        (
            "Terminate DDP/tagged/base-bounds, M D, quoting the 4-octet Write",
            terminate(Fault::TaggedBounds, &golden["RDMA Write, 4 octets 'ABCD'"]),
            vec![],
        ),
        (
            "Terminate RDMAP/remote protection/access rights, M D R, quoting the 16-octet Read Request",
            terminate(
                Fault::SourceNoRight,
                &golden["RDMA Read Request, 16 octets, MSN 1"],
            ),
            vec![],
        ),
        (
            "Immediate Data 0102030405060708, MSN 5",
            immediate(SendEvent::Silent, 5),
            vec![],
        ),
        (
            "Immediate Data with SE 0102030405060708, MSN 6",
            immediate(SendEvent::Solicit, 6),
            vec![],
        ),
        (
            "Atomic Request FetchAdd +1 mask 0, id 7, QN1 MSN 2",
            atomic(7, 0x1000, AtomicOperation::FetchAdd { add: 1, mask: 0 }, 2),
            vec![],
        ),
        (
            "Atomic Request CmpSwap full masks, id 8, QN1 MSN 3",
            atomic(
                8,
                0x1008,
                AtomicOperation::CompareSwap {
                    swap: 0x5555,
                    swap_mask: u64::MAX,
                    compare: 0x4444,
                    compare_mask: u64::MAX,
                },
                3,
            ),
            vec![],
        ),
        (
            "Atomic Request 'Swap' as CmpSwap (cmp mask 0), id 9, QN1 MSN 4",
            atomic(
                9,
                0x1010,
                AtomicOperation::CompareSwap {
                    swap: 0x6666,
                    swap_mask: u64::MAX,
                    compare: 0,
                    compare_mask: 0,
                },
                4,
            ),
            vec![],
        ),
        (
            "Atomic Response id 7, original 0x2a, QN3 MSN 1",
            Message::AtomicResponse {
                response: AtomicResponse {
                    identifier: 7,
                    original: 0x2a,
                },
                msn: Msn::FIRST,
            },
            vec![],
        ),
    ]
}

const REQUEST_1: &str = "MPA Request rev1, C=1, no private data";
const REPLY_1: &str = "MPA Reply rev1, C=1";
const REQUEST_2: &str = "MPA Request rev2, C=1 S=1, P2P, offers Write+Read RTR, IRD 8 ORD 4";
const REPLY_2: &str = "MPA Reply rev2, C=1 S=1, P2P, picks Read RTR, IRD 4 ORD 8";

#[test]
fn every_golden_frame_is_used() {
    let golden = golden();
    let mut names: Vec<&str> = messages(&golden).iter().map(|(name, ..)| *name).collect();
    names.extend([REQUEST_1, REPLY_1, REQUEST_2, REPLY_2]);
    names.sort_unstable();
    assert_eq!(names, golden.keys().copied().collect::<Vec<_>>());
}

#[test]
fn segmenter_makes_the_golden_frames() {
    let golden = golden();
    for (name, message, payload) in messages(&golden) {
        let fpdus = transmit(message, &payload, || 1454);
        assert_eq!(fpdus, [golden[name].clone()], "{name}");
    }
}

#[test]
fn receiver_reads_the_golden_frames() {
    let golden = golden();
    for (name, message, payload) in messages(&golden) {
        let mut wire = Wire::new();
        wire.push(&golden[name]);
        let fpdu = wire.pop().unwrap();
        assert!(fpdu.intact && wire.is_empty(), "{name}");

        let msn = match message {
            Message::Send { msn, .. }
            | Message::ReadRequest { msn, .. }
            | Message::Immediate { msn, .. }
            | Message::AtomicRequest { msn, .. }
            | Message::AtomicResponse { msn, .. } => msn,
            Message::Write { .. } | Message::ReadResponse { .. } | Message::Terminate(_) => {
                Msn::FIRST
            }
        };
        let mut receiver = Receiver::with_numbers(Extensions::Rfc7306, msn, msn);
        let len = fpdu.ulpdu.len().min(RECEIVE_HEADER_MAX);
        let segment = receiver
            .handle_fpdu(&fpdu.ulpdu[..len], fpdu.ulpdu.len().try_into().unwrap())
            .unwrap();
        let arrived = match segment {
            Segment::Empty => unreachable!(),
            Segment::Write(segment) => {
                assert_eq!(segment.last, MessagePart::Final);
                let (stag, to) = (segment.stag, segment.to);
                (Message::Write { stag, to }, Some(segment.payload))
            }
            Segment::ReadResponse(segment) => {
                assert_eq!(segment.last, MessagePart::Final);
                let (stag, to) = (segment.stag, segment.to);
                (Message::ReadResponse { stag, to }, Some(segment.payload))
            }
            Segment::Send(segment) => {
                assert!(segment.first && segment.offset == 0);
                let kind = segment.kind;
                (Message::Send { kind, msn }, Some(segment.payload))
            }
            Segment::ReadRequest(queued) => {
                let request = queued.admit(QueueRoom::Free).unwrap();
                (Message::ReadRequest { request, msn }, None)
            }
            Segment::Terminate(terminate) => (Message::Terminate(terminate), None),
            Segment::Immediate(queued) => {
                let immediate = queued.admit(QueueRoom::Free).unwrap();
                (Message::Immediate { immediate, msn }, None)
            }
            Segment::AtomicRequest(queued) => {
                let request = queued.admit(QueueRoom::Free).unwrap();
                (Message::AtomicRequest { request, msn }, None)
            }
            Segment::AtomicResponse(queued) => {
                let response = queued.admit(QueueRoom::Free).unwrap();
                (Message::AtomicResponse { response, msn }, None)
            }
        };
        assert_eq!(arrived.0, message, "{name}");
        let octets = arrived.1.map_or(&[][..], |at| {
            &fpdu.ulpdu[usize::from(at.offset)..][..usize::from(at.len)]
        });
        assert_eq!(octets, payload, "{name}");
    }
}

#[test]
fn start_up_of_revision_1() {
    let golden = golden();
    let config = Config {
        revision: Revision::One,
        ..Config::default()
    };
    let depths = Depths { ird: 8, ord: 4 };
    let initiator = Initiator::new(config, depths);
    assert_eq!(
        initiator.request(&[]).unwrap().as_octets(),
        golden[REQUEST_1]
    );
    let responder = Responder::new(Config::default());
    let Progress::Done(request) = responder.handle_request(&golden[REQUEST_1]).unwrap() else {
        panic!("the Request is complete");
    };
    let accepted = responder.accept(&request, depths, &[]).unwrap();
    assert_eq!(accepted.reply.as_octets(), golden[REPLY_1]);
    let Progress::Done(reply) = initiator.handle_reply(&golden[REPLY_1]).unwrap() else {
        panic!("the Reply is complete");
    };
    assert!(matches!(reply.verdict, Verdict::Accepted { rtr: None, .. }));
}

#[test]
fn start_up_of_revision_2_with_a_read_as_rtr() {
    let golden = golden();
    let depths = Depths { ird: 8, ord: 4 };
    let initiator = Initiator::new(
        Config {
            peer_to_peer: PeerToPeer::On,
            ..Config::default()
        },
        depths,
    );
    assert_eq!(
        initiator.request(&[]).unwrap().as_octets(),
        golden[REQUEST_2]
    );
    let responder = Responder::new(Config {
        rtr: RtrKinds::READ,
        ..Config::default()
    });
    let Progress::Done(request) = responder.handle_request(&golden[REQUEST_2]).unwrap() else {
        panic!("the Request is complete");
    };
    let accepted = responder
        .accept(&request, Depths { ird: 16, ord: 16 }, &[])
        .unwrap();
    assert_eq!(accepted.reply.as_octets(), golden[REPLY_2]);
    assert_eq!(accepted.rules.depths, Depths { ird: 4, ord: 8 });
    assert_eq!(accepted.rtr, RtrKinds::READ);
    let Progress::Done(reply) = initiator.handle_reply(&golden[REPLY_2]).unwrap() else {
        panic!("the Reply is complete");
    };
    let Verdict::Accepted { rules, rtr } = reply.verdict else {
        panic!("the Reply accepts");
    };
    assert_eq!(rules.depths, depths);
    assert_eq!(rtr, Some(Rtr::Read));
}
