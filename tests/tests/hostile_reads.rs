// SPDX-License-Identifier: GPL-2.0

//! One test per way to misuse RDMA Reads, as their source and as their sink, expecting the exact
//! Terminate.

use iwarp::{
    rdmap::{
        Extensions,
        ReadRequest, //
    },
    stag::{
        Access,
        Association,
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
        read_header,
        read_request,
        tagged,
        Untagged, //
    },
    hostile::{
        accepts,
        end,
        refuses,
        refuses_read,
        MEMORY, //
    }, //
};

// Reads that the peer sends.

fn read(to: u64, len: u32) -> Vec<u8> {
    read_request(1, (0xffff_ffff, 7), len, (MEMORY.0, to))
}

#[test]
fn read_response_repeats_sink_of_request() {
    // RDMAP-31, -32, -34.
    let mut end = end();
    accepts(&mut end, &read(MEMORY.1 + 3, 5));
    let (message, octets) = end.respond().unwrap();
    let expected = iwarp::segment::Message::ReadResponse {
        stag: Stag::new(0xffff_ffff),
        to: TaggedOffset::new(7),
    };
    assert_eq!(message, expected);
    assert_eq!(octets, [0xaa; 5]);
}

#[test]
fn empty_read_is_not_checked() {
    // RDMAP-70.
    let mut end = end();
    accepts(
        &mut end,
        &read_request(1, (3, 4), 0, (0xdead_beef, u64::MAX)),
    );
    let (_, octets) = end.respond().unwrap();
    assert_eq!(octets, []);
}

#[test]
fn rejects_reads_of_unknown_stags() {
    // RDMAP-153.
    for stag in [0, 0x7777_7700, MEMORY.0 ^ 1] {
        refuses_read(
            end(),
            &read_request(1, (1, 0), 4, (stag, MEMORY.1)),
            (0, 1, 0),
        );
    }
    let mut end = end();
    end.register(0x0005_0001, 0, vec![0; 8]).view.valid = false;
    refuses_read(
        end,
        &read_request(1, (1, 0), 4, (0x0005_0001, 0)),
        (0, 1, 0),
    );
}

#[test]
fn rejects_reads_of_foreign_regions() {
    // RDMAP-154.
    let mut end = end();
    let region = end.register(0x0005_0001, 0, vec![0; 8]);
    region.view.association = Association::Foreign;
    refuses_read(
        end,
        &read_request(1, (1, 0), 4, (0x0005_0001, 0)),
        (0, 1, 3),
    );
}

#[test]
fn rejects_reads_without_the_right() {
    // RDMAP-158.
    let mut end = end();
    let region = end.register(0x0005_0001, 0, vec![0; 8]);
    region.view.access = Access::LOCAL_WRITE
        .union(Access::REMOTE_WRITE)
        .union(Access::REMOTE_ATOMIC);
    refuses_read(
        end,
        &read_request(1, (1, 0), 4, (0x0005_0001, 0)),
        (0, 1, 2),
    );
}

#[test]
fn rejects_reads_outside_the_region() {
    // RDMAP-33, -155, -156.
    let base = MEMORY.1;
    for (to, len) in [
        (base - 1, 1),
        (base, 257),
        (base + 256, 1),
        (base + 1, 256),
        (base, 0x7fff_ffff),
        (base, 0x8000_0000),
        (base, u32::MAX),
    ] {
        refuses_read(end(), &read(to, len), (0, 1, 1));
    }
}

#[test]
fn rejects_reads_whose_offset_wraps() {
    // RDMAP-157.
    refuses_read(end(), &read(u64::MAX - 7, 16), (0, 1, 4));
    refuses_read(end(), &read(u64::MAX - 7, u32::MAX), (0, 1, 4));
}

#[test]
fn rejects_reads_beyond_the_inbound_depth() {
    // RDMAP-126, -129, -152: exactly that many.
    let mut end = End::new(Extensions::Off, 3, 0);
    for msn in 1..=3 {
        accepts(&mut end, &read_request(msn, (1, 0), 0, (0, 0)));
    }
    refuses(end, &read_request(4, (1, 0), 0, (0, 0)), (1, 2, 2));
}

#[test]
fn answered_read_frees_inbound_slot() {
    let mut end = End::new(Extensions::Off, 1, 0);
    for msn in 1..=5 {
        accepts(&mut end, &read_request(msn, (1, 0), 0, (0, 0)));
        assert!(end.respond().is_some());
    }
}

#[test]
fn rejects_read_requests_at_an_offset() {
    // RDMAP-150.
    let segment = Untagged {
        offset: 1,
        ..Untagged::whole(1, 1, 1)
    };
    let header = read_header((1, 0), 4, MEMORY);
    refuses(end(), &segment.octets(&header), (1, 2, 4));
}

#[test]
fn read_request_of_wrong_length_is_refused() {
    // RDMAP-28.
    let mut header = read_header((1, 0), 4, MEMORY);
    header.push(0);
    for len in (0..28).chain([29]) {
        refuses(
            end(),
            &Untagged::whole(1, 1, 1).octets(&header[..len]),
            (0, 2, 7),
        );
    }
    let long = vec![0; 1000];
    refuses(end(), &Untagged::whole(1, 1, 1).octets(&long), (0, 2, 7));
}

#[test]
fn rejects_read_requests_in_several_segments() {
    // RDMAP-28; the header is complete and is quoted.
    let segment = Untagged {
        last: false,
        ..Untagged::whole(1, 1, 1)
    };
    let segment = segment.octets(&read_header((1, 0), 4, MEMORY));
    refuses_read(end(), &segment, (0, 2, 7));
}

// Answers to Reads of this end.

const SINK: (u32, u64) = (0x0009_0001, 0x8000);

/// Returns an end with a Read of `len` octets into the middle of its memory.
fn reading(len: u32) -> End {
    let mut end = end();
    end.register(SINK.0, SINK.1 - 4, vec![0xbb; 32]);
    let request = ReadRequest {
        sink_stag: Stag::new(SINK.0),
        sink_to: TaggedOffset::new(SINK.1),
        len,
        source_stag: Stag::new(5),
        source_to: TaggedOffset::new(6),
    };
    assert!(end.read(request).is_some());
    end
}

fn response(last: bool, to: u64, payload: &[u8]) -> Vec<u8> {
    tagged(2, last, SINK.0, to, payload)
}

#[test]
fn accepts_read_response_segments_in_any_order() {
    // RDMAP-77, DDP-39.
    let mut end = reading(8);
    accepts(&mut end, &response(false, SINK.1 + 4, b"5678"));
    accepts(&mut end, &response(false, SINK.1 + 99, b""));
    assert_eq!(end.completions(), []);
    accepts(&mut end, &response(true, SINK.1, b"1234"));
    assert_eq!(end.completions(), [Completion::Read]);
    assert_eq!(&end.region(SINK.0).memory[3..13], b"\xbb12345678\xbb");
}

#[test]
fn rejects_unexpected_read_response() {
    // RDMAP-75.
    refuses(end(), &response(true, SINK.1, b"x"), (0, 2, 6));
    refuses(end(), &response(true, SINK.1, b""), (0, 2, 6));
    let mut end = reading(1);
    accepts(&mut end, &response(true, SINK.1, b"x"));
    end.completions();
    refuses(end, &response(true, SINK.1, b"x"), (0, 2, 6));
}

#[test]
fn rejects_read_response_to_other_stag() {
    // RDMAP-77: even another STag of this end, and in a later segment too.
    for stag in [SINK.0 ^ 1, MEMORY.0, 0] {
        refuses(
            reading(8),
            &tagged(2, true, stag, SINK.1, &[1; 8]),
            (1, 1, 0),
        );
    }
    let mut end = reading(8);
    accepts(&mut end, &response(false, SINK.1, b"1234"));
    refuses(
        end,
        &tagged(2, true, MEMORY.0, SINK.1 + 4, b"5678"),
        (1, 1, 0),
    );
}

#[test]
fn rejects_read_response_outside_sink() {
    // RDMAP-77: the region extends beyond the sink.
    for (to, len) in [
        (SINK.1 - 1, 8),
        (SINK.1 + 1, 8),
        (SINK.1, 9),
        (SINK.1 + 8, 1),
        (0, 8),
        (SINK.1 + (1 << 32), 8),
        (u64::MAX - 100, 8),
    ] {
        refuses(reading(8), &response(true, to, &vec![1; len]), (1, 1, 1));
    }
}

#[test]
fn rejects_read_response_with_wrapping_offset() {
    // RDMAP-35.
    refuses(
        reading(8),
        &response(true, u64::MAX - 3, &[1; 8]),
        (1, 1, 3),
    );
}

#[test]
fn long_read_response_is_refused() {
    let mut end = reading(8);
    accepts(&mut end, &response(false, SINK.1, &[1; 8]));
    refuses(end, &response(true, SINK.1, &[1; 1]), (1, 1, 1));
}

#[test]
fn rejects_short_read_response() {
    // RDMAP-77.
    refuses(reading(8), &response(true, SINK.1, &[1; 7]), (0, 2, 7));
    refuses(reading(8), &response(true, SINK.1, &[]), (0, 2, 7));
    let mut end = reading(8);
    accepts(&mut end, &response(false, SINK.1, &[1; 4]));
    refuses(end, &response(true, SINK.1 + 4, &[1; 3]), (0, 2, 7));
}

#[test]
fn empty_read_response_is_checked_for_length_only() {
    // DDP-41.
    let mut end = reading(0);
    accepts(&mut end, &tagged(2, true, 0xdead_beef, u64::MAX, &[]));
    assert_eq!(end.completions(), [Completion::Read]);
    refuses(reading(0), &response(true, SINK.1, b"x"), (1, 1, 1));
}

#[test]
fn reads_sent_stay_within_outbound_depth() {
    // RDMAP-128.
    let request = ReadRequest {
        sink_stag: Stag::new(SINK.0),
        sink_to: TaggedOffset::new(SINK.1),
        len: 0,
        source_stag: Stag::new(5),
        source_to: TaggedOffset::new(6),
    };
    let mut end = End::new(Extensions::Off, 0, 3);
    for _ in 0..3 {
        assert!(end.read(request).is_some());
    }
    assert!(end.read(request).is_none());
    accepts(&mut end, &response(true, SINK.1, &[]));
    assert!(end.read(request).is_some());
    assert!(end.read(request).is_none());
}
