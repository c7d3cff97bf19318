// SPDX-License-Identifier: GPL-2.0

//! The sender of a stream: which message each request becomes, in which order the sides take turns,
//! and what the end of each message leads to.

use iwarp::{
    atomic::{
        AtomicOperation,
        AtomicResponse, //
    },
    ddp::Msn,
    fault::Fault,
    features::Features,
    flush::{
        FlushLevel,
        FlushPlacement,
        FlushRequest, //
    },
    mpa::negotiate::Rtr,
    rdmap::{
        Extensions,
        Immediate,
        Marked,
        ReadRequest,
        SendEvent,
        SendExtra,
        SendKind, //
    },
    segment::Message,
    stag::{
        Stag,
        TaggedOffset, //
    },
    stream::{
        Job,
        MessageEnd,
        Pause,
        SenderParams,
        Side,
        StreamSender,
        Unsupported, //
    },
    terminate::Terminate, //
};

const PARAMS: SenderParams = SenderParams {
    extensions: Extensions::Rfc7306,
    features: None,
    rtr: None,
    draft_swap: false,
};

fn sender() -> StreamSender<u8> {
    StreamSender::new(&PARAMS)
}

/// Returns the current message and the length of its payload.
fn current(sender: &StreamSender<u8>) -> (Message, u32) {
    let segmenter = sender.current.as_ref().unwrap().segmenter;
    (*segmenter.message(), segmenter.payload_len())
}

/// Ends the current message; returns what it was, and what follows.
fn end(sender: &mut StreamSender<u8>) -> (Message, MessageEnd<u8>) {
    let (message, _) = current(sender);
    (message, sender.end_message())
}

const NUMBER: [Msn; 5] = [
    Msn::new(1),
    Msn::new(2),
    Msn::new(3),
    Msn::new(4),
    Msn::new(5),
];

const STAG: Stag = Stag::new(5);
const TO: TaggedOffset = TaggedOffset::new(1000);
const READ: ReadRequest = ReadRequest {
    len: 7,
    source_stag: STAG,
    ..ReadRequest::NOTHING
};

fn send_of(extra: SendExtra, solicited: SendEvent, msn: Msn) -> Message {
    let kind = SendKind { solicited, extra };
    Message::Send { kind, msn }
}

#[test]
fn each_request_is_a_message_with_the_next_number_of_its_queue() {
    let mut sender = sender();
    for (event, msn) in [
        (SendEvent::Silent, NUMBER[0]),
        (SendEvent::Solicit, NUMBER[1]),
    ] {
        let extra = SendExtra::Invalidate(STAG);
        let begun = sender.begin_send(extra, 30, event, Job::Complete(4));
        assert_eq!(begun, Ok(()));
        assert_eq!(current(&sender), (send_of(extra, event, msn), 30));
        assert_eq!(end(&mut sender).1, MessageEnd::Complete(4));
        assert!(sender.current.is_none());
    }
    sender.begin_write((STAG, TO), None, 70, SendEvent::Silent, Job::Complete(5));
    let write = Message::Write { stag: STAG, to: TO };
    assert_eq!(current(&sender), (write, 70));
    assert_eq!(end(&mut sender).1, MessageEnd::Complete(5));
    for msn in &NUMBER[..2] {
        sender.begin_read(READ, Job::AwaitResponse(6));
        let request = Message::ReadRequest {
            request: READ,
            msn: *msn,
        };
        assert_eq!(end(&mut sender), (request, MessageEnd::Nothing));
    }
    // It shares the queue of the Reads.
    let operation = AtomicOperation::FetchAdd { add: 1, mask: 0 };
    let identifier = sender.begin_atomic((STAG, TO), operation, 7);
    assert_eq!(sender.current.as_ref().unwrap().job.slot(), Some(7));
    let (message, next) = end(&mut sender);
    assert_eq!(next, MessageEnd::Nothing);
    let Message::AtomicRequest { request, msn } = message else {
        panic!("{message:?}");
    };
    assert_eq!((request.identifier, msn), (identifier, NUMBER[2]));
    assert_eq!(
        (request.stag, request.to, request.operation),
        (STAG, TO, operation)
    );
    assert_ne!(sender.begin_atomic((STAG, TO), operation, 7), identifier);
    // What always stores all bits is a CmpSwap, unless the peer is said to know only the draft's.
    let swap = AtomicOperation::CompareSwap {
        swap: 5,
        swap_mask: u64::MAX,
        compare: 0,
        compare_mask: 0,
    };
    for (draft_swap, operation, sent) in [
        (false, swap, swap),
        (true, swap, AtomicOperation::DraftSwap { swap: 5 }),
        (true, operation, operation),
    ] {
        let mut sender = StreamSender::new(&SenderParams {
            draft_swap,
            ..PARAMS
        });
        sender.begin_atomic((STAG, TO), operation, 7);
        let Message::AtomicRequest { request, .. } = end(&mut sender).0 else {
            panic!("no Atomic Request");
        };
        assert_eq!(request.operation, sent);
    }
    // Sends have gone on from where they were.
    let begun = sender.begin_send(SendExtra::None, 0, SendEvent::Silent, Job::Nothing);
    assert_eq!(begun, Ok(()));
    let send = send_of(SendExtra::None, SendEvent::Silent, NUMBER[2]);
    assert_eq!(end(&mut sender), (send, MessageEnd::Nothing));
}

#[test]
fn requests_of_the_peer_are_answered() {
    let mut sender = sender();
    let request = ReadRequest {
        sink_stag: STAG,
        sink_to: TO,
        len: 9,
        ..READ
    };
    sender.answer_read(&request);
    let response = Message::ReadResponse { stag: STAG, to: TO };
    assert_eq!(current(&sender), (response, 9));
    assert_eq!(end(&mut sender).1, MessageEnd::Answered);
    let response = AtomicResponse {
        identifier: 3,
        original: 40,
    };
    for msn in &NUMBER[..2] {
        sender.answer_atomic(response);
        let message = Message::AtomicResponse {
            response,
            msn: *msn,
        };
        assert_eq!(end(&mut sender), (message, MessageEnd::Answered));
    }
}

fn immediate(solicited: SendEvent) -> Immediate {
    Immediate {
        data: *b"abcd\0\0\0\0",
        solicited,
    }
}

#[test]
fn immediate_data_follows_its_write_and_completes_it() {
    let mut sender = sender();
    let data = Some(Immediate::of_verbs(*b"abcd"));
    for (event, msn) in [
        (SendEvent::Solicit, NUMBER[0]),
        (SendEvent::Silent, NUMBER[1]),
    ] {
        sender.begin_write((STAG, TO), data, 70, event, Job::Complete(4));
        assert_eq!(end(&mut sender).1, MessageEnd::Nothing);
        let behind = Message::Immediate {
            immediate: immediate(event),
            msn,
        };
        assert_eq!(current(&sender), (behind, 0));
        assert_eq!(end(&mut sender).1, MessageEnd::Complete(4));
    }
    // Also if a Read confirms it.
    sender.begin_write((STAG, TO), data, 70, SendEvent::Silent, Job::Confirm(4));
    assert_eq!(end(&mut sender).1, MessageEnd::Nothing);
    assert_eq!(end(&mut sender).1, MessageEnd::AwaitConfirmation(4));
}

#[test]
fn immediate_data_octets_are_all_sent() {
    let data = *b"abcdefgh";
    let solicited = SendEvent::Solicit;
    let job = Job::Complete(4);
    let immediate = Immediate { data, solicited };
    let msn = NUMBER[0];
    let ended = (
        Message::Immediate { immediate, msn },
        MessageEnd::Complete(4),
    );
    let mut write = StreamSender::new(&PARAMS);
    write.begin_write((STAG, TO), Some(data), 0, solicited, job);
    assert_eq!(end(&mut write).1, MessageEnd::Nothing);
    assert_eq!(end(&mut write), ended);
    let mut sender = sender();
    let begun = sender.begin_immediate(data, 1, solicited, job);
    assert!(begun == Err(Unsupported) && sender.current.is_none());
    let begun = sender.begin_immediate(data, 0, solicited, job);
    assert_eq!((begun, end(&mut sender)), (Ok(()), ended));
}

#[test]
fn send_with_imm_uses_negotiated_form() {
    let extra = SendExtra::Immediate(*b"abcd");
    let event = SendEvent::Solicit;
    let mut sender = sender();
    let begun = sender.begin_send(extra, 1, event, Job::Complete(4));
    assert_eq!(begun, Err(Unsupported));
    assert!(sender.current.is_none());
    assert_eq!(sender.begin_send(extra, 0, event, Job::Complete(4)), Ok(()));
    let data = Message::Immediate {
        immediate: immediate(event),
        msn: NUMBER[0],
    };
    assert_eq!(end(&mut sender), (data, MessageEnd::Complete(4)));
    let mut sender = StreamSender::new(&SenderParams {
        extensions: Extensions::SendImmediate,
        ..PARAMS
    });
    assert_eq!(sender.begin_send(extra, 1, event, Job::Complete(4)), Ok(()));
    let send = send_of(extra, event, NUMBER[0]);
    assert_eq!(current(&sender), (send, 1));
}

#[test]
fn empty_read_confirms_write() {
    let mut sender = sender();
    sender.begin_write((STAG, TO), None, 70, SendEvent::Silent, Job::Confirm(4));
    assert_eq!(sender.current.as_ref().unwrap().job.slot(), Some(4));
    assert_eq!(end(&mut sender).1, MessageEnd::AwaitConfirmation(4));
    let read = Message::ReadRequest {
        request: ReadRequest::NOTHING,
        msn: NUMBER[0],
    };
    assert_eq!(sender.current.as_ref().unwrap().job, Job::AwaitResponse(4));
    assert_eq!(end(&mut sender), (read, MessageEnd::Nothing));
    assert!(sender.current.is_none());
    assert_eq!(sender.end_message(), MessageEnd::Nothing);
}

#[test]
fn atomic_write_is_confirmed_by_a_read() {
    let mut sender = sender();
    let to = TaggedOffset::new(64);
    sender.begin_atomic_write((Stag::new(5), to), 4);
    assert_eq!(sender.current.as_ref().unwrap().job, Job::Confirm(4));
    let message = Message::AtomicWrite {
        stag: Stag::new(5),
        to,
    };
    assert_eq!(current(&sender), (message, 8));
    assert_eq!(end(&mut sender).1, MessageEnd::AwaitConfirmation(4));
}

#[test]
fn flush_is_numbered_among_reads() {
    let mut sender = sender();
    let request = FlushRequest {
        placement: FlushPlacement::GLOBAL,
        level: FlushLevel::Range,
        stag: Stag::new(5),
        to: TaggedOffset::new(64),
        len: 100,
    };
    sender.begin_flush(request, 3);
    assert_eq!(sender.current.as_ref().unwrap().job, Job::AwaitResponse(3));
    let message = Message::Flush {
        request,
        msn: NUMBER[0],
    };
    assert_eq!(end(&mut sender), (message, MessageEnd::Nothing));
    sender.begin_read(READ, Job::AwaitResponse(1));
    let read = Message::ReadRequest {
        request: READ,
        msn: NUMBER[1],
    };
    assert_eq!(end(&mut sender).0, read);
}

#[test]
fn stream_begins_with_features_and_ready_to_receive() {
    let features = Features {
        ulpdu_max: 300,
        marked: Marked::NONE,
    };
    let nothing = Message::Write {
        stag: Stag::ZERO,
        to: TaggedOffset::new(0),
    };
    let send = send_of(SendExtra::None, SendEvent::Silent, NUMBER[0]);
    let read = Message::ReadRequest {
        request: ReadRequest::NOTHING,
        msn: NUMBER[0],
    };
    assert!(!sender().begins() && sender().begin_stream().is_none());
    for told in [None, Some(features)] {
        for (rtr, message) in [
            (None, None),
            (Some(Rtr::Write), Some(nothing)),
            (Some(Rtr::Send), Some(send)),
            (Some(Rtr::Read), Some(read)),
        ] {
            let mut sender = StreamSender::<u8>::new(&SenderParams {
                features: told,
                rtr,
                ..PARAMS
            });
            if let Some(features) = told {
                assert!(sender.begins() && sender.begin_stream().is_none());
                let first = (Message::Features(features), MessageEnd::Nothing);
                assert_eq!(end(&mut sender), first);
            }
            if let Some(message) = message {
                assert!(sender.begins());
                let waits = sender.begin_stream();
                assert_eq!(waits.is_some(), rtr == Some(Rtr::Read));
                assert_eq!(end(&mut sender), (message, MessageEnd::Nothing));
            }
            assert!(!sender.begins() && sender.current.is_none());
            // The consumer's first one has the number behind it.
            let begun = sender.begin_send(SendExtra::None, 0, SendEvent::Silent, Job::Nothing);
            assert_eq!(begun, Ok(()));
            let msn = NUMBER[usize::from(rtr == Some(Rtr::Send))];
            let send = send_of(SendExtra::None, SendEvent::Silent, msn);
            assert_eq!(end(&mut sender).0, send);
            sender.begin_read(READ, Job::AwaitResponse(1));
            let msn = NUMBER[usize::from(rtr == Some(Rtr::Read))];
            let read = Message::ReadRequest { request: READ, msn };
            assert_eq!(end(&mut sender).0, read);
        }
    }
}

#[test]
fn inbound_reads_and_requests_take_turns() {
    let mut sender = sender();
    for _ in 0..3 {
        assert_eq!(sender.take_turn(), Side::Responses);
        assert_eq!(sender.take_turn(), Side::Requests);
    }
}

#[test]
fn combined_pause_yields_if_response_yields() {
    use Pause::{
        Drained,
        Starved,
        Yield, //
    };
    for response in [Drained, Starved] {
        for request in [Drained, Starved, Yield] {
            assert_eq!(response.without_request(request), request);
        }
    }
    for request in [Drained, Starved, Yield] {
        assert_eq!(Yield.without_request(request), Yield);
    }
}

#[test]
fn terminate_replaces_any_message() {
    let mut sender = sender();
    sender.begin_write((STAG, TO), None, 70, SendEvent::Silent, Job::Complete(4));
    let terminate = Terminate::for_fault(Fault::Crc, None);
    sender.begin_terminate(terminate);
    let message = Message::Terminate(terminate);
    assert_eq!(end(&mut sender), (message, MessageEnd::Nothing));
    assert!(sender.current.is_none());
}

#[test]
fn msn_wraps_in_a_stream() {
    let mut sender = StreamSender::<u8>::with_number(&PARAMS, Msn::new(u32::MAX));
    for msn in [Msn::new(u32::MAX), Msn::new(0)] {
        sender.begin_read(READ, Job::Nothing);
        let read = Message::ReadRequest { request: READ, msn };
        assert_eq!(end(&mut sender).0, read);
    }
}

#[test]
fn request_is_known_while_its_message_is_sent() {
    assert_eq!(Job::Complete(1).slot(), Some(1));
    assert_eq!(Job::Confirm(2).slot(), Some(2));
    assert_eq!(Job::AwaitResponse(3).slot(), Some(3));
    assert_eq!(
        (Job::Answer::<u8>.slot(), Job::Nothing::<u8>.slot()),
        (None, None)
    );
}
