// SPDX-License-Identifier: GPL-2.0

//! One test per way to misbehave with the messages of RFC 7306, expecting the exact Terminate.

use iwarp::{
    atomic::{
        AtomicOperation,
        AtomicRequest, //
    },
    rdmap::{
        Extensions,
        Immediate,
        ReadRequest,
        SendEvent, //
    },
    stag::{
        Access,
        Association,
        RemoteInvalidation,
        Stag,
        TaggedOffset, //
    }, //
};
use iwarp_support::{
    end::{
        Completion,
        End, //
    },
    frame::{
        atomic_header,
        atomic_response_header,
        read_request,
        send,
        tagged,
        Untagged, //
    },
    hostile::{
        accepts,
        end,
        refuses,
        MEMORY, //
    }, //
};

fn fetch_add(msn: u32, stag: u32, to: u64) -> Vec<u8> {
    let header = atomic_header(0, 77, stag, to, [1, 0, 0, u64::MAX]);
    Untagged::whole(0xa, 1, msn).octets(&header)
}

/// Asserts that a request is refused and leaves the memory unchanged.
#[track_caller]
fn refuses_atomic(end: End, segment: &[u8], code: (u8, u8, u8)) {
    let mut end = refuses(end, segment, code);
    assert_eq!(end.region(MEMORY.0).memory, [0xaa; 256]);
    assert!(end.respond().is_none());
}

#[test]
fn extension_messages_invalidate_no_stag() {
    // EXT-8.
    let lengths = [(8, 0, 8), (9, 0, 8), (0xa, 1, 52), (0xb, 3, 12)];
    for (opcode, queue, len) in lengths {
        let mut end = adding();
        end.post_receive(0);
        let region = end.register(0x0005_0001, 0x1000, vec![0; 8]);
        region.invalidation = RemoteInvalidation::Allowed;
        let mut body = vec![0; len];
        match opcode {
            0xa => body = atomic_header(0, 1, 0x0005_0001, 0x1000, [1, 0, 0, 0]),
            0xb => body = atomic_response_header(7, 42),
            _ => {}
        }
        let segment = Untagged {
            invalidate: 0x0005_0001,
            ..Untagged::whole(opcode, queue, 1)
        };
        accepts(&mut end, &segment.octets(&body));
        assert!(end.region(0x0005_0001).view.valid);
    }
}

// Immediate Data.

#[test]
fn immediate_data_accepts_buffer_of_any_size() {
    // EXT-66, -67, -73.
    let mut end = end();
    end.post_receive(0);
    end.post_receive(1);
    end.post_receive(0);
    accepts(&mut end, &Untagged::whole(8, 0, 1).octets(b"12345678"));
    accepts(&mut end, &send(2, b"x"));
    accepts(&mut end, &Untagged::whole(9, 0, 3).octets(b"abcdefgh"));
    let completions = end.completions();
    let immediate = |data: &[u8; 8], solicited| {
        Completion::Immediate(Immediate {
            data: *data,
            solicited,
        })
    };
    assert_eq!(completions[0], immediate(b"12345678", SendEvent::Silent));
    assert_eq!(completions[2], immediate(b"abcdefgh", SendEvent::Solicit));
    assert_eq!(end.posted(), 0);
}

#[test]
fn rejects_immediate_data_without_a_buffer() {
    // EXT-66.
    refuses(end(), &Untagged::whole(8, 0, 1).octets(&[0; 8]), (1, 2, 2));
    refuses(end(), &Untagged::whole(9, 0, 1).octets(&[0; 8]), (1, 2, 2));
}

#[test]
fn rejects_immediate_data_of_another_length() {
    // EXT-71.
    for len in (0..8).chain([9, 16, 1000]) {
        for opcode in [8, 9] {
            let mut end = end();
            end.post_receive(64);
            let segment = Untagged::whole(opcode, 0, 1).octets(&vec![0; len]);
            refuses(end, &segment, (0, 2, 7));
        }
    }
}

#[test]
fn rejects_immediate_data_in_several_segments() {
    // EXT-71.
    for len in [4, 8] {
        let mut end = end();
        end.post_receive(64);
        let segment = Untagged {
            last: false,
            ..Untagged::whole(8, 0, 1)
        };
        refuses(end, &segment.octets(&vec![0; len]), (0, 2, 7));
    }
}

#[test]
fn rejects_immediate_data_at_an_offset() {
    // EXT-12.
    let mut end = end();
    end.post_receive(64);
    let segment = Untagged {
        offset: 8,
        ..Untagged::whole(8, 0, 1)
    };
    refuses(end, &segment.octets(&[0; 8]), (1, 2, 4));
}

// Atomics that the peer sends.

#[test]
fn atomics_share_msn_and_order_with_reads() {
    // EXT-31, -34, -43, -49.
    let mut end = end();
    accepts(&mut end, &read_request(1, (5, 6), 8, MEMORY));
    accepts(&mut end, &fetch_add(2, MEMORY.0, MEMORY.1));
    accepts(&mut end, &read_request(3, (5, 6), 8, MEMORY));
    let value = u64::from_ne_bytes([0xaa; 8]);
    let (_, before) = end.respond().unwrap();
    assert_eq!(before, value.to_ne_bytes());
    let (message, _) = end.respond().unwrap();
    let iwarp::segment::Message::AtomicResponse { response, msn } = message else {
        panic!("the second answer is the atomic's");
    };
    assert_eq!((response.identifier, response.original), (77, value));
    assert_eq!(msn.raw(), 1);
    let (_, after) = end.respond().unwrap();
    assert_eq!(after, (value + 1).to_ne_bytes());
}

#[test]
fn ignores_reserved_bits_and_unused_fields_of_fetch_add() {
    // EXT-32, -36.
    let mut header = atomic_header(0, 1, MEMORY.0, MEMORY.1, [1, 0, 99, 98]);
    header[..3].fill(0xff);
    header[3] |= 0xf0;
    let mut end = end();
    accepts(&mut end, &Untagged::whole(0xa, 1, 1).octets(&header));
    assert!(end.respond().is_some());
}

#[test]
fn rejects_unknown_atomic_operations() {
    // EXT-39.
    for code in [3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15] {
        let header = atomic_header(code, 1, MEMORY.0, MEMORY.1, [1, 0, 0, u64::MAX]);
        refuses_atomic(
            end(),
            &Untagged::whole(0xa, 1, 1).octets(&header),
            (0, 2, 6),
        );
    }
}

#[test]
fn draft_swap_is_executed() {
    // EXT-36, -81: all 64 bits, whatever the mask and the compare fields hold; the response is that
    // of the other operations.
    let mut end = end();
    let value = u64::from_ne_bytes([0xaa; 8]);
    let fillers = [0, u64::MAX];
    let others = [!value, u64::MAX];
    let masks = [u64::MAX, 0, 0xffff_0000];
    let mut original = value;
    for (msn, (mask, [compare, compare_mask])) in
        (1..).zip(masks.into_iter().zip([fillers, others, others]))
    {
        let swap = 0x0123_4567_89ab_cdef_u64.rotate_left(msn);
        let fields = [swap, mask, compare, compare_mask];
        let header = atomic_header(1, 77, MEMORY.0, MEMORY.1, fields);
        accepts(&mut end, &Untagged::whole(0xa, 1, msn).octets(&header));
        let (message, _) = end.respond().unwrap();
        let iwarp::segment::Message::AtomicResponse { response, .. } = message else {
            panic!("a Swap is answered by an Atomic Response");
        };
        assert_eq!((response.identifier, response.original), (77, original));
        original = swap;
        let memory = &end.region(MEMORY.0).memory;
        assert_eq!(memory[..8], original.to_ne_bytes());
    }
}

#[test]
fn draft_swap_is_checked_like_other_atomics() {
    // EXT-81, -59, -25.
    let swap = |stag, to| {
        let header = atomic_header(1, 77, stag, to, [1, u64::MAX, 0, u64::MAX]);
        Untagged::whole(0xa, 1, 1).octets(&header)
    };
    refuses_atomic(end(), &swap(MEMORY.0 ^ 1, MEMORY.1), (0, 1, 0));
    refuses_atomic(end(), &swap(MEMORY.0, MEMORY.1 + 256), (0, 1, 1));
    refuses_atomic(end(), &swap(MEMORY.0, u64::MAX - 6), (0, 1, 4));
    refuses_atomic(end(), &swap(MEMORY.0, MEMORY.1 + 4), (0, 2, 7));
    let mut other = end();
    let region = other.register(0x0005_0001, 0, vec![0; 8]);
    region.view.access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE);
    refuses_atomic(other, &swap(0x0005_0001, 0), (0, 1, 2));
}

#[test]
fn rejects_unaligned_targets() {
    // EXT-25, -30, -77: all residues.
    for at in 1..8 {
        refuses_atomic(end(), &fetch_add(1, MEMORY.0, MEMORY.1 + at), (0, 2, 7));
        let header = atomic_header(2, 1, MEMORY.0, MEMORY.1 + at, [1, u64::MAX, 0, 0]);
        refuses_atomic(
            end(),
            &Untagged::whole(0xa, 1, 1).octets(&header),
            (0, 2, 7),
        );
    }
}

#[test]
fn atomic_alignment_is_that_of_the_address() {
    // EXT-35.
    let mut end = end();
    end.register(0x0005_0001, 0x1004, vec![0; 32]);
    accepts(&mut end, &fetch_add(1, 0x0005_0001, 0x100c));
    assert!(end.respond().is_some());
    refuses(end, &fetch_add(2, 0x0005_0001, 0x1008), (0, 2, 7));
}

#[test]
fn atomic_target_is_checked_like_read_source() {
    // EXT-59; the RDMAP header is not quoted.
    refuses_atomic(end(), &fetch_add(1, 0x7777_7700, MEMORY.1), (0, 1, 0));
    refuses_atomic(end(), &fetch_add(1, MEMORY.0 ^ 1, MEMORY.1), (0, 1, 0));
    refuses_atomic(end(), &fetch_add(1, MEMORY.0, MEMORY.1 - 8), (0, 1, 1));
    refuses_atomic(end(), &fetch_add(1, MEMORY.0, MEMORY.1 + 249), (0, 1, 1));
    refuses_atomic(end(), &fetch_add(1, MEMORY.0, u64::MAX - 6), (0, 1, 4));
    let mut other = end();
    let region = other.register(0x0005_0001, 0, vec![0; 8]);
    region.view.association = Association::Foreign;
    refuses_atomic(other, &fetch_add(1, 0x0005_0001, 0), (0, 1, 3));
    let mut other = end();
    let region = other.register(0x0005_0001, 0, vec![0; 8]);
    region.view.access = Access::LOCAL_WRITE
        .union(Access::REMOTE_WRITE)
        .union(Access::REMOTE_READ);
    refuses_atomic(other, &fetch_add(1, 0x0005_0001, 0), (0, 1, 2));
}

#[test]
fn rejects_atomic_requests_of_another_length() {
    // EXT-13.
    for len in (0..52).chain([53, 500]) {
        refuses_atomic(
            end(),
            &Untagged::whole(0xa, 1, 1).octets(&vec![0; len]),
            (0, 2, 7),
        );
    }
}

#[test]
fn rejects_requests_beyond_the_inbound_depth() {
    // EXT-42: Reads and Atomics together.
    let mut end = End::new(Extensions::Rfc7306, 2, 0);
    end.register(MEMORY.0, MEMORY.1, vec![0xaa; 256]);
    accepts(&mut end, &read_request(1, (1, 0), 0, (0, 0)));
    accepts(&mut end, &fetch_add(2, MEMORY.0, MEMORY.1));
    refuses(end, &fetch_add(3, MEMORY.0, MEMORY.1), (1, 2, 2));
}

// Answers to Atomics of this end.

/// Returns an end that has sent a FetchAdd with identifier 7.
fn adding() -> End {
    let mut end = end();
    let request = AtomicRequest {
        identifier: 7,
        stag: Stag::new(5),
        to: TaggedOffset::new(0),
        operation: AtomicOperation::FetchAdd { add: 1, mask: 0 },
    };
    assert!(end.atomic(request).is_some());
    end
}

fn answer(msn: u32, identifier: u32) -> Vec<u8> {
    Untagged::whole(0xb, 3, msn).octets(&atomic_response_header(identifier, 42))
}

#[test]
fn accepts_atomic_response() {
    let mut end = adding();
    accepts(&mut end, &answer(1, 7));
    assert_eq!(end.completions(), [Completion::Atomic { original: 42 }]);
}

#[test]
fn rejects_unexpected_atomic_response() {
    // EXT-46.
    refuses(end(), &answer(1, 7), (1, 2, 2));
    let mut end = adding();
    accepts(&mut end, &answer(1, 7));
    end.completions();
    refuses(end, &answer(2, 7), (1, 2, 2));
}

#[test]
fn rejects_atomic_response_out_of_order() {
    // EXT-48.
    refuses(adding(), &answer(2, 7), (1, 2, 3));
}

#[test]
fn rejects_atomic_response_with_wrong_identifier() {
    // EXT-20.
    refuses(adding(), &answer(1, 8), (0, 2, 7));
}

#[test]
fn rejects_atomic_response_of_wrong_length() {
    // EXT-48.
    for len in (0..12).chain([13, 32]) {
        let segment = Untagged::whole(0xb, 3, 1).octets(&vec![0; len]);
        refuses(adding(), &segment, (0, 2, 7));
    }
}

#[test]
fn responses_come_in_order_of_requests() {
    // EXT-49: a Read Response while an Atomic is the oldest, and the other way round.
    refuses(adding(), &tagged(2, true, 1, 0, &[]), (0, 2, 6));
    let mut end = end();
    let request = ReadRequest {
        sink_stag: Stag::new(1),
        sink_to: TaggedOffset::new(0),
        len: 0,
        source_stag: Stag::new(1),
        source_to: TaggedOffset::new(0),
    };
    assert!(end.read(request).is_some());
    refuses(end, &answer(1, 7), (1, 2, 2));
}
