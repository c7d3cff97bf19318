// SPDX-License-Identifier: GPL-2.0

//! One test per way to misuse memory, expecting the exact Terminate: Sends and their buffers,
//! invalidation, Writes. Reads are in hostile_reads.rs.

use iwarp::{
    rdmap::{
        SendEvent,
        SendExtra,
        SendKind, //
    },
    stag::{
        Access,
        Association,
        RemoteInvalidation,
        Stag, //
    }, //
};
use iwarp_support::{
    end::{
        Completion,
        End, //
    },
    frame::{
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

fn part(last: bool, offset: u32, payload: &[u8]) -> Vec<u8> {
    Untagged {
        last,
        offset,
        ..Untagged::whole(3, 0, 1)
    }
    .octets(payload)
}

/// Returns an end with one receive buffer of 8 octets.
fn receiving() -> End {
    let mut end = end();
    end.post_receive(8);
    end
}

fn received(octets: &[u8]) -> Completion {
    Completion::Received {
        octets: octets.to_vec(),
        kind: SendKind::default(),
    }
}

// Sends.

#[test]
fn rejects_sends_without_a_buffer() {
    // DDP-70, RDMAP-89: an empty Send needs a buffer too.
    refuses(end(), &send(1, b"x"), (1, 2, 2));
    refuses(end(), &send(1, &[]), (1, 2, 2));
}

#[test]
fn empty_send_takes_a_receive() {
    // RDMAP-89.
    let mut end = receiving();
    accepts(&mut end, &send(1, &[]));
    assert_eq!(end.completions(), [received(&[])]);
    refuses(end, &send(2, &[]), (1, 2, 2));
}

#[test]
fn rejects_sends_longer_than_the_buffer() {
    // DDP-73, RDMAP-82.
    accepts(&mut receiving(), &send(1, &[1; 8]));
    refuses(receiving(), &send(1, &[1; 9]), (1, 2, 5));
    let empty_buffer = || {
        let mut end = end();
        end.post_receive(0);
        end
    };
    refuses(empty_buffer(), &send(1, b"x"), (1, 2, 5));
    accepts(&mut empty_buffer(), &send(1, &[]));
    let mut end = receiving();
    accepts(&mut end, &part(false, 0, &[1; 7]));
    refuses(end, &part(true, 7, &[1; 2]), (1, 2, 5));
}

#[test]
fn rejects_offsets_outside_the_buffer() {
    // DDP-72.
    for offset in [8, 9, 0x8000_0000, u32::MAX] {
        refuses(receiving(), &part(false, offset, b"x"), (1, 2, 4));
        refuses(receiving(), &part(true, offset, b"x"), (1, 2, 4));
    }
    refuses(receiving(), &part(true, u32::MAX, &[1; 100]), (1, 2, 4));
}

#[test]
fn places_segments_of_a_send_in_any_order() {
    // DDP-37.
    let mut end = receiving();
    accepts(&mut end, &part(false, 2, b"cd"));
    accepts(&mut end, &part(false, 0, b"ab"));
    accepts(&mut end, &part(false, 0, b""));
    assert_eq!(end.completions(), []);
    accepts(&mut end, &part(true, 4, b"ef"));
    assert_eq!(end.completions(), [received(b"abcdef")]);
}

#[test]
fn does_not_check_the_offset_of_an_empty_segment() {
    // DDP-68.
    let mut end = receiving();
    accepts(&mut end, &part(false, 0, b"ab"));
    accepts(&mut end, &part(false, u32::MAX, b""));
    accepts(&mut end, &part(true, u32::MAX, b""));
    assert_eq!(end.completions(), [received(b"ab")]);
}

#[test]
fn rejects_send_with_gap() {
    // DDP-37.
    refuses(receiving(), &part(true, 2, b"cd"), (1, 2, 4));
    let mut end = receiving();
    accepts(&mut end, &part(false, 2, b"cd"));
    refuses(end, &part(true, 4, b""), (1, 2, 4));
}

#[test]
fn rejects_last_segment_below_highest_octet() {
    // DDP-15.
    let mut end = receiving();
    accepts(&mut end, &part(false, 2, b"cd"));
    refuses(end, &part(true, 0, b"ab"), (1, 2, 4));
}

// Invalidation.

fn invalidating(stag: u32) -> Vec<u8> {
    Untagged {
        invalidate: stag,
        ..Untagged::whole(4, 0, 1)
    }
    .octets(&[])
}

#[test]
fn send_with_invalidate_invalidates_permitted_stag() {
    // RDMAP-92.
    let mut end = receiving();
    end.register(0x0005_0001, 0, vec![0; 8]).invalidation = RemoteInvalidation::Allowed;
    accepts(&mut end, &invalidating(0x0005_0001));
    let kind = SendKind {
        solicited: SendEvent::Silent,
        extra: SendExtra::Invalidate(Stag::new(0x0005_0001)),
    };
    let octets = vec![];
    assert_eq!(end.completions(), [Completion::Received { octets, kind }]);
    refuses(end, &tagged(0, true, 0x0005_0001, 0, b"x"), (1, 1, 0));
}

#[test]
fn send_with_invalidate_uses_stag_of_last_segment() {
    // DDP-27.
    let mut end = receiving();
    for stag in [0x0005_0001, 0x0006_0001] {
        end.register(stag, 0, vec![0; 8]).invalidation = RemoteInvalidation::Allowed;
    }
    let first = Untagged {
        last: false,
        invalidate: 0x0005_0001,
        ..Untagged::whole(4, 0, 1)
    };
    accepts(&mut end, &first.octets(b"a"));
    let last = Untagged {
        offset: 1,
        invalidate: 0x0006_0001,
        ..Untagged::whole(4, 0, 1)
    };
    accepts(&mut end, &last.octets(b"b"));
    assert!(end.region(0x0005_0001).view.valid);
    assert!(!end.region(0x0006_0001).view.valid);
}

#[test]
fn rejects_invalidation_of_unknown_stags() {
    // RDMAP-93.
    refuses(receiving(), &invalidating(0x7777_7700), (0, 2, 9));
    let end = refuses(receiving(), &invalidating(MEMORY.0 ^ 1), (0, 2, 9));
    assert!(end.region(MEMORY.0).view.valid);
    let mut end = receiving();
    end.register(0x0005_0001, 0, vec![0; 8]).view.valid = false;
    refuses(end, &invalidating(0x0005_0001), (0, 2, 9));
}

#[test]
fn rejects_invalidation_of_shared_or_foreign_regions() {
    // RDMAP-93, -166.
    let end = refuses(receiving(), &invalidating(MEMORY.0), (0, 1, 9));
    assert!(end.region(MEMORY.0).view.valid);
    let mut end = receiving();
    let region = end.register(0x0005_0001, 0, vec![0; 8]);
    region.invalidation = RemoteInvalidation::Allowed;
    region.view.association = Association::Foreign;
    let end = refuses(end, &invalidating(0x0005_0001), (0, 1, 9));
    assert!(end.region(0x0005_0001).view.valid);
}

#[test]
fn plain_send_invalidates_nothing() {
    // RDMAP-26.
    let mut end = receiving();
    end.register(0x0005_0001, 0, vec![0; 8]).invalidation = RemoteInvalidation::Allowed;
    let segment = Untagged {
        invalidate: 0x0005_0001,
        ..Untagged::whole(5, 0, 1)
    };
    accepts(&mut end, &segment.octets(&[]));
    assert!(end.region(0x0005_0001).view.valid);
}

// Writes.

fn write(stag: u32, to: u64, payload: &[u8]) -> Vec<u8> {
    tagged(0, true, stag, to, payload)
}

#[test]
fn writes_are_placed_at_their_offset_only() {
    // RDMAP-53, -162; DDP-39: parts need not be contiguous.
    let mut end = end();
    accepts(&mut end, &tagged(0, false, MEMORY.0, MEMORY.1 + 255, b"z"));
    accepts(&mut end, &tagged(0, true, MEMORY.0, MEMORY.1 + 1, b"bc"));
    let mut expected = vec![0xaa; 256];
    expected[1..3].copy_from_slice(b"bc");
    expected[255] = b'z';
    assert_eq!(end.region(MEMORY.0).memory, expected);
}

/// Asserts that a Write is refused and leaves the memory unchanged.
#[track_caller]
fn refuses_write(end: End, segment: &[u8], code: (u8, u8, u8)) {
    let before = end.region(MEMORY.0).memory.clone();
    let end = refuses(end, segment, code);
    assert_eq!(end.region(MEMORY.0).memory, before);
}

#[test]
fn rejects_writes_to_unknown_stags() {
    // DDP-76.
    for stag in [0, 1, 0x7777_7700, MEMORY.0 ^ 1, MEMORY.0 ^ 0x100, u32::MAX] {
        refuses_write(end(), &write(stag, MEMORY.1, b"x"), (1, 1, 0));
    }
    let mut end = end();
    end.register(0x0005_0001, 0, vec![0; 8]).view.valid = false;
    refuses_write(end, &write(0x0005_0001, 0, b"x"), (1, 1, 0));
}

#[test]
fn rejects_writes_to_foreign_regions() {
    // DDP-88, -89.
    let mut end = end();
    let region = end.register(0x0005_0001, 0, vec![0; 8]);
    region.view.association = Association::Foreign;
    refuses_write(end, &write(0x0005_0001, 0, b"x"), (1, 1, 2));
}

#[test]
fn rejects_writes_without_the_right() {
    // DDP-77: every right but the one needed.
    let mut end = end();
    let region = end.register(0x0005_0001, 0, vec![0; 8]);
    region.view.access = Access::LOCAL_WRITE
        .union(Access::REMOTE_READ)
        .union(Access::REMOTE_ATOMIC);
    refuses_write(end, &write(0x0005_0001, 0, b"x"), (1, 1, 0));
}

#[test]
fn rejects_writes_outside_the_region() {
    // DDP-78, -79.
    let (stag, base) = MEMORY;
    for (to, len) in [
        (0, 1),
        (base - 1, 1),
        (base - 1, 2),
        (base - 1, 258),
        (base, 257),
        (base + 255, 2),
        (base + 256, 1),
        (u64::MAX - 300, 1),
    ] {
        refuses_write(end(), &write(stag, to, &vec![1; len]), (1, 1, 1));
    }
}

#[test]
fn rejects_a_write_whose_third_segment_crosses_the_end() {
    // DDP-79, RDMAP-162.
    let mut end = end();
    for at in [0, 100] {
        accepts(
            &mut end,
            &tagged(0, false, MEMORY.0, MEMORY.1 + at, &[1; 100]),
        );
    }
    refuses_write(end, &write(MEMORY.0, MEMORY.1 + 200, &[1; 57]), (1, 1, 1));
}

#[test]
fn rejects_writes_whose_offset_wraps() {
    // DDP-80: also where every address belongs to the region.
    refuses_write(end(), &write(MEMORY.0, u64::MAX - 7, &[1; 16]), (1, 1, 3));
    refuses_write(end(), &write(MEMORY.0, u64::MAX, b"x"), (1, 1, 3));
    let mut end = end();
    end.register(0x0005_0001, 0, vec![0; 8]).view.len = u64::MAX;
    refuses_write(end, &write(0x0005_0001, u64::MAX - 7, &[1; 16]), (1, 1, 3));
}

#[test]
fn empty_write_is_not_checked() {
    // DDP-41, -43; RDMAP-58.
    let mut end = end();
    accepts(&mut end, &write(0xdead_beef, u64::MAX, &[]));
    accepts(&mut end, &tagged(0, false, 0xdead_beef, u64::MAX, &[]));
    assert!(end.is_mid_message());
    refuses_write(end, &write(0, 0, b"x"), (1, 1, 0));
}
