// SPDX-License-Identifier: GPL-2.0

//! One test per way to misbehave, expecting the exact Terminate: control octets, lengths, queues,
//! numbers, order. Memory is in hostile_memory.rs and hostile_reads.rs, atomics and Immediate Data
//! in hostile_extensions.rs.

use iwarp::{
    ddp::Msn,
    fault::Fault,
    rdmap::{
        Extensions,
        SendKind, //
    },
    receiver::{
        QueueRoom,
        Receiver,
        Segment, //
    }, //
};
use iwarp_support::{
    end::{
        Completion,
        End, //
    },
    frame::{
        read_request,
        send,
        tagged,
        terminate,
        Untagged, //
    },
    hostile::{
        accepts,
        deliver,
        deliver_damaged,
        end,
        end_with,
        refuses,
        refuses_plainly,
        terminate_of,
        MEMORY, //
    }, //
};

fn write(payload: &[u8]) -> Vec<u8> {
    tagged(0, true, MEMORY.0, MEMORY.1, payload)
}

/// Returns an end with some receive buffers of 64 octets.
fn receiving() -> End {
    let mut end = end();
    for _ in 0..4 {
        end.post_receive(64);
    }
    end
}

fn with_octet(mut segment: Vec<u8>, at: usize, octet: u8) -> Vec<u8> {
    segment[at] = octet;
    segment
}

fn received(octets: &[u8]) -> Completion {
    Completion::Received {
        octets: octets.to_vec(),
        kind: SendKind::default(),
    }
}

// Control octets.

#[test]
fn rejects_ddp_versions() {
    // DDP-19.
    for version in [0, 2, 3] {
        refuses(
            end(),
            &with_octet(write(b"x"), 0, 0xc0 | version),
            (1, 1, 4),
        );
        refuses(
            receiving(),
            &with_octet(send(1, b"x"), 0, 0x40 | version),
            (1, 2, 6),
        );
    }
}

#[test]
fn rejects_a_change_of_ddp_version() {
    // DDP-20.
    let mut end = receiving();
    accepts(&mut end, &send(1, b"x"));
    end.completions();
    refuses(end, &with_octet(send(2, b"x"), 0, 0x42), (1, 2, 6));
}

#[test]
fn rejects_rdmap_versions() {
    // RDMAP-24, EXT-6. A Read Request of another version is not parsed, so its header is not
    // quoted.
    for version in [0, 2, 3] {
        for opcode in [3, 8, 9, 10, 11] {
            let octet = (version << 6) | opcode;
            refuses(receiving(), &with_octet(send(1, b"x"), 1, octet), (0, 2, 5));
        }
        refuses(end(), &with_octet(write(b"x"), 1, version << 6), (0, 2, 5));
        let request = read_request(1, (1, 0), 4, MEMORY);
        refuses(
            end(),
            &with_octet(request, 1, (version << 6) | 1),
            (0, 2, 5),
        );
    }
}

#[test]
fn rejects_reserved_opcodes() {
    // RDMAP-27.
    for opcode in 0xc..=0xf {
        refuses(
            receiving(),
            &Untagged::whole(opcode, 0, 1).octets(b"x"),
            (0, 2, 6),
        );
        refuses(
            end(),
            &tagged(opcode, true, MEMORY.0, MEMORY.1, b"x"),
            (0, 2, 6),
        );
    }
}

#[test]
fn rejects_disabled_extension_opcodes() {
    // EXT-4.
    for opcode in 0x8..=0xb {
        let end = || end_with(Extensions::Off);
        refuses(
            end(),
            &Untagged::whole(opcode, 0, 1).octets(&[0; 8]),
            (0, 2, 6),
        );
        refuses(
            end(),
            &tagged(opcode, true, MEMORY.0, MEMORY.1, b"x"),
            (0, 2, 6),
        );
    }
}

#[test]
fn rejects_opcodes_of_the_other_model() {
    // RDMAP-23, EXT-9.
    for opcode in [1, 3, 4, 5, 6, 7, 8, 9, 0xa, 0xb] {
        refuses(
            end(),
            &tagged(opcode, true, MEMORY.0, MEMORY.1, b"x"),
            (0, 2, 6),
        );
    }
    for opcode in [0, 2] {
        refuses(
            receiving(),
            &Untagged::whole(opcode, 0, 1).octets(b"x"),
            (0, 2, 6),
        );
    }
}

#[test]
fn ignores_reserved_bits_and_fields() {
    // DDP-18, RDMAP-25, -26.
    let mut end = receiving();
    accepts(&mut end, &with_octet(write(b"x"), 0, 0xfd));
    let mut segment = Untagged {
        invalidate: MEMORY.0,
        ..Untagged::whole(3, 0, 1)
    }
    .octets(b"x");
    segment[0] |= 0x3c;
    segment[1] |= 0x30;
    accepts(&mut end, &segment);
    assert_eq!(end.completions(), [received(b"x")]);
    assert!(end.region(MEMORY.0).view.valid);
}

// Lengths.

#[test]
fn consumes_empty_fpdus() {
    // MPA-13; also between the segments of a message.
    let mut end = receiving();
    accepts(&mut end, &[]);
    let first = Untagged {
        last: false,
        ..Untagged::whole(3, 0, 1)
    };
    accepts(&mut end, &first.octets(b"a"));
    accepts(&mut end, &[]);
    let second = Untagged {
        offset: 1,
        ..Untagged::whole(3, 0, 1)
    };
    accepts(&mut end, &second.octets(b"b"));
    assert_eq!(end.completions(), [received(b"ab")]);
}

#[test]
fn rejects_ulpdus_too_short_for_their_header() {
    // MPA-31, DDP-31; nothing can be quoted.
    for opcode in 0..=0xb {
        let (segment, header) = if opcode == 0 || opcode == 2 {
            (tagged(opcode, true, MEMORY.0, MEMORY.1, &[]), 14)
        } else {
            (Untagged::whole(opcode, 0, 1).octets(&[]), 18)
        };
        for len in 1..header {
            refuses_plainly(receiving(), &segment[..len], (2, 0, 3));
        }
    }
}

#[test]
fn judges_versions_before_lengths() {
    // DDP-86; an incomplete header cannot be quoted.
    refuses_plainly(end(), &[0xc0, 0x40], (1, 1, 4));
    refuses_plainly(end(), &[0x40, 0x43], (1, 2, 6));
    refuses_plainly(end(), &[0x41, 0x03], (0, 2, 5));
    refuses_plainly(end(), &[0x41, 0x4f], (0, 2, 6));
    refuses_plainly(end(), &[0xc1, 0x43], (0, 2, 6));
}

#[test]
fn handle_fpdu_with_too_few_octets_is_local_fault() {
    let mut receiver = Receiver::new(Extensions::Off);
    let segment = send(1, &[7; 100]);
    let fault = receiver.handle_fpdu(&segment[..69], 118).unwrap_err();
    assert_eq!(fault, Fault::Local);
    assert!(receiver.handle_fpdu(&segment[..70], 118).is_ok());
}

#[test]
fn reads_no_octet_beyond_the_ulpdu() {
    // MPA-31: the header octets arrived, but by the length they are not part of the segment.
    let mut receiver = Receiver::new(Extensions::Off);
    let fault = receiver.handle_fpdu(&send(1, &[]), 17).unwrap_err();
    assert_eq!(fault, Fault::UlpduTooShort);
}

// Queue and message numbers.

#[test]
fn rejects_queue_number_of_other_opcode() {
    // DDP-69, RDMAP-60, EXT-10; also without a posted buffer.
    let mut cases = 0;
    for (opcode, own) in [
        (1, 1),
        (3, 0),
        (4, 0),
        (5, 0),
        (6, 0),
        (7, 2),
        (8, 0),
        (9, 0),
        (0xa, 1),
        (0xb, 3),
    ] {
        for queue in [0, 1, 2, 3, 4, 9, 0x0100_0000, u32::MAX] {
            if queue != own {
                let segment = Untagged::whole(opcode, queue, 1).octets(&[0; 8]);
                refuses(end(), &segment, (1, 2, 1));
                cases += 1;
            }
        }
    }
    assert_eq!(cases, 70);
}

#[test]
fn rejects_msn_out_of_sequence() {
    // DDP-29, -74; RDMAP-98.
    let requests = read_request(1, (1, 0), 0, (0, 0));
    for msn in [0, 2, 3, 0x0100_0000, 0x8000_0001, u32::MAX] {
        refuses(receiving(), &send(msn, b"x"), (1, 2, 3));
        refuses(end(), &send(msn, b"x"), (1, 2, 3));
        let mut request = requests.clone();
        request[10..14].copy_from_slice(&msn.to_be_bytes());
        refuses(end(), &request, (1, 2, 3));
        for (opcode, queue, len) in [(7, 2, 4), (8, 0, 8), (0xa, 1, 52), (0xb, 3, 12)] {
            let segment = Untagged::whole(opcode, queue, msn).octets(&vec![0; len]);
            refuses(receiving(), &segment, (1, 2, 3));
        }
    }
}

#[test]
fn rejects_repeated_msn() {
    let mut end = receiving();
    accepts(&mut end, &send(1, b"x"));
    end.completions();
    refuses(end, &send(1, b"x"), (1, 2, 3));
}

#[test]
fn msn_wraps_in_a_stream() {
    // DDP-29.
    let receiver = Receiver::with_numbers(Extensions::Off, Msn::new(u32::MAX), Msn::new(u32::MAX));
    let mut end = End::with_receiver(receiver, 4, 4);
    for msn in [u32::MAX, 0, 1] {
        end.post_receive(1);
        accepts(&mut end, &send(msn, b"x"));
        accepts(&mut end, &read_request(msn, (1, 0), 0, (0, 0)));
    }
    assert_eq!(end.completions().len(), 3);
}

// Order.

/// Returns an end in the middle of a message.
fn inside(segment: &[u8]) -> End {
    let mut end = receiving();
    accepts(&mut end, segment);
    assert!(end.is_mid_message());
    end
}

fn open_send() -> Vec<u8> {
    let open = Untagged {
        last: false,
        ..Untagged::whole(3, 0, 1)
    };
    open.octets(b"abcd")
}

fn open_write() -> Vec<u8> {
    tagged(0, false, MEMORY.0, MEMORY.1, b"abcd")
}

#[test]
fn rejects_other_message_inside_send() {
    // DDP-22, -44.
    for (opcode, queue, msn, len) in [
        (1, 1, 1, 28),
        (4, 0, 1, 1),
        (5, 0, 1, 1),
        (6, 0, 1, 1),
        (8, 0, 2, 8),
        (9, 0, 2, 8),
        (0xa, 1, 1, 52),
        (0xb, 3, 1, 12),
    ] {
        let segment = Untagged::whole(opcode, queue, msn).octets(&vec![0; len]);
        let mut end = inside(&open_send());
        deliver(&mut end, &segment);
        let octets = terminate_of(&end).unwrap();
        assert_eq!(octets[18..20], [0x02, 0x06], "{opcode}");
    }
    for opcode in [0, 2] {
        let segment = tagged(opcode, true, MEMORY.0, MEMORY.1, b"x");
        refuses(inside(&open_send()), &segment, (0, 2, 6));
    }
}

#[test]
fn rejects_next_send_inside_send() {
    refuses(inside(&open_send()), &send(2, b"x"), (0, 2, 6));
    refuses(inside(&open_send()), &send(3, b"x"), (1, 2, 3));
    refuses(inside(&open_send()), &send(0, b"x"), (1, 2, 3));
}

#[test]
fn rejects_other_message_inside_write() {
    refuses(inside(&open_write()), &send(1, b"x"), (0, 2, 6));
    let response = tagged(2, true, MEMORY.0, MEMORY.1, b"x");
    refuses(inside(&open_write()), &response, (0, 2, 6));
}

#[test]
fn accepts_terminate_inside_message() {
    // RDMAP-96.
    for open in [open_send(), open_write()] {
        let mut end = inside(&open);
        accepts(&mut end, &terminate(1, 2, 5));
        let code = end.terminated().unwrap().code;
        assert_eq!((code.layer, code.etype, code.code), (1, 2, 5));
        assert_eq!(end.completions(), []);
    }
}

#[test]
fn accepts_terminate_without_receive() {
    // RDMAP-96: it needs neither a receive buffer nor an inbound place.
    let mut end = End::new(Extensions::Off, 0, 0);
    accepts(&mut end, &terminate(0, 0, 0xff));
    assert!(end.terminated().is_some());
}

#[test]
fn rejects_malformed_terminates() {
    // RDMAP-98.
    for len in 0..4 {
        let segment = Untagged::whole(7, 2, 1).octets(&vec![0; len]);
        refuses(end(), &segment, (0, 2, 7));
    }
    let segment = Untagged::whole(7, 2, 1).octets(&[0; 53]);
    refuses(end(), &segment, (0, 2, 7));
    let open = Untagged {
        last: false,
        ..Untagged::whole(7, 2, 1)
    };
    refuses(end(), &open.octets(&[0; 4]), (0, 2, 7));
    let offset = Untagged {
        offset: 1,
        ..Untagged::whole(7, 2, 1)
    };
    refuses(end(), &offset.octets(&[0; 4]), (1, 2, 4));
}

#[test]
fn accepts_one_terminate_only() {
    // RDMAP-95.
    let mut receiver = Receiver::new(Extensions::Off);
    let segment = terminate(0, 0, 0xff);
    assert!(receiver.handle_fpdu(&segment, 22).is_ok());
    let fault = receiver.handle_fpdu(&segment, 22).unwrap_err();
    assert_eq!(fault, Fault::MsnRange);
}

#[test]
fn full_queue_fault_names_the_queue() {
    // RDMAP-152, EXT-46, -66: one code, three faults.
    let fault = |segment: &[u8]| {
        let mut receiver = Receiver::new(Extensions::Rfc7306);
        let len = u16::try_from(segment.len()).unwrap();
        match receiver.handle_fpdu(segment, len).unwrap() {
            Segment::ReadRequest(queued) => queued.admit(QueueRoom::Full).unwrap_err(),
            Segment::Immediate(queued) => queued.admit(QueueRoom::Full).unwrap_err(),
            Segment::AtomicRequest(queued) => queued.admit(QueueRoom::Full).unwrap_err(),
            Segment::AtomicResponse(queued) => queued.admit(QueueRoom::Full).unwrap_err(),
            other => panic!("{other:?}"),
        }
    };
    let segment = |opcode, queue, len| Untagged::whole(opcode, queue, 1).octets(&vec![0; len]);
    assert_eq!(fault(&segment(1, 1, 28)), Fault::ReadDepth);
    assert_eq!(fault(&segment(8, 0, 8)), Fault::NoBuffer);
    assert_eq!(fault(&segment(9, 0, 8)), Fault::NoBuffer);
    assert_eq!(fault(&segment(0xa, 1, 52)), Fault::ReadDepth);
    assert_eq!(fault(&segment(0xb, 3, 12)), Fault::AtomicUnsolicited);
}

#[test]
fn accepts_terminate_with_truncated_quote() {
    for len in 4..52 {
        let mut body = vec![0; len];
        body[..3].copy_from_slice(&[0x01, 0x02, 0xe0]);
        let mut end = end();
        accepts(&mut end, &Untagged::whole(7, 2, 1).octets(&body));
        assert_eq!(end.terminated().unwrap().code.code, 2);
    }
}

// Integrity.

#[test]
fn wrong_crc_is_the_only_fault_reported() {
    // MPA-20: the receiver does not even parse the header of such an FPDU.
    for segment in [
        write(b"x"),
        with_octet(write(b"x"), 0, 0xc2),
        send(9, b"x"),
        vec![],
        vec![0xc1],
    ] {
        let mut end = receiving();
        deliver_damaged(&mut end, &segment);
        assert_eq!(terminate_of(&end), Some(terminate(2, 0, 2)));
        assert_eq!(end.region(MEMORY.0).memory, [0xaa; 256]);
    }
}

#[test]
fn first_fault_is_reported_and_later_fpdus_are_dropped() {
    // DDP-83, MPA-21, RDMAP-144.
    let bad = with_octet(send(1, b"x"), 1, 0x4f);
    let mut end = refuses(receiving(), &bad, (0, 2, 6));
    let before = terminate_of(&end);
    deliver(&mut end, &write(b"x"));
    deliver(&mut end, &send(1, b"x"));
    deliver(&mut end, &with_octet(write(b"x"), 0, 0xc2));
    assert_eq!(terminate_of(&end), before);
    assert_eq!(end.completions(), []);
    assert_eq!(end.region(MEMORY.0).memory, [0xaa; 256]);
    assert_eq!(end.posted(), 4);
}

#[test]
fn reports_the_first_of_several_faults_in_the_order_of_checks() {
    // DDP-86: each line adds a fault that is checked before all those above it.
    let mut request = read_request(1, (1, 0), 4, (0, 0));
    let end = || End::new(Extensions::Off, 0, 0);
    let mut check = |change: &dyn Fn(&mut Vec<u8>), expected: (u8, u8, u8)| {
        change(&mut request);
        let mut end = end();
        deliver(&mut end, &request);
        let octets = terminate_of(&end).unwrap();
        let (layer, etype, code) = expected;
        assert_eq!(octets[18..20], [(layer << 4) | etype, code]);
    };
    check(&|_| {}, (1, 2, 2)); // no room, and an unknown STag
    check(&|octets| octets[17] = 1, (1, 2, 2)); // offset, after room
    check(&|octets| octets.push(0), (1, 2, 2)); // length, after room
    check(&|octets| octets[13] = 2, (1, 2, 3)); // number
    check(&|octets| octets[9] = 7, (1, 2, 1)); // queue
    check(&|octets| octets[0] |= 0x80, (0, 2, 6)); // T bit
    check(&|octets| octets[1] = 0x4f, (0, 2, 6)); // opcode
    check(&|octets| octets[1] = 0x8f, (0, 2, 5)); // RDMAP version
    check(&|octets| octets[0] = 0x42, (1, 2, 6)); // DDP version
}
