// SPDX-License-Identifier: GPL-2.0

//! Markers, compared with a stream that is built octet by octet.

use bolero::check;
use iwarp::mpa::{
    fpdu_len,
    marker::{
        Marker,
        MarkerClock,
        MARKER_LEN, //
    },
    mulpdu,
    Markers, //
};

/// Returns the stream of FPDUs of these lengths: a Marker at each multiple of the interval, whose
/// pointer counts from the FPDU's first octet.
fn stream_oracle(lengths: &[u32]) -> Vec<u8> {
    let mut stream = Vec::new();
    for len in lengths {
        let mut start = None;
        for _ in 0..*len {
            if stream.len() % 512 == 0 {
                let pointer = start.map_or(0, |start| stream.len() - start);
                stream.extend(u32::try_from(pointer).unwrap().to_be_bytes());
            }
            start.get_or_insert(stream.len());
            stream.push(0xee);
        }
    }
    stream
}

/// Returns the same by the core, as the sender's loop does it.
fn stream(lengths: &[u32]) -> Vec<u8> {
    let mut clock = MarkerClock::new();
    let mut stream = Vec::new();
    for len in lengths {
        let begin = stream.len();
        let mut done = 0;
        for marker in clock.markers(*len) {
            stream.extend(vec![0xee; (marker.at - done) as usize]);
            stream.extend(marker.encode());
            done = marker.at;
        }
        stream.extend(vec![0xee; (*len - done) as usize]);
        let marked = stream.len() - begin;
        assert_eq!(clock.marked_len(*len) as usize, marked);
        clock.advance(*len);
    }
    stream
}

#[test]
fn markers_for_one_segment_size() {
    // MPA-25, -26.
    let len = fpdu_len(mulpdu(1460, Markers::On));
    let stream = stream(&[len; 8]);
    assert_eq!(stream, stream_oracle(&[len; 8]));
    for (at, pointer) in [(0, 0), (512, 508), (1024, 1020)] {
        let octets: [u8; MARKER_LEN] = *stream[at..].first_chunk().unwrap();
        assert_eq!(u32::from_be_bytes(octets), pointer);
    }
}

#[test]
fn markers_for_each_length_and_position() {
    // The first FPDU shifts the second one to any place between two Markers.
    for first in (8..8 + 512).step_by(4) {
        for second in (8..1100).step_by(4) {
            let lengths = [first, second, 8];
            assert!(stream(&lengths) == stream_oracle(&lengths), "{lengths:?}");
        }
    }
}

#[test]
fn markers_are_inserted_and_stripped() {
    check!().with_type().for_each(|ulpdus: &Vec<u16>| {
        let lengths: Vec<u32> = ulpdus.iter().map(|len| fpdu_len(len & 0x3fff)).collect();
        let stream = stream(&lengths);
        assert!(stream == stream_oracle(&lengths));

        // The receiver finds the length field, the end, and each Marker.
        let mut clock = MarkerClock::new();
        let mut rest = &stream[..];
        for len in &lengths {
            assert_eq!(rest[clock.length_at()], 0xee);
            assert!(clock.length_at() == 0 || rest[..4] == [0; 4]);
            let (mut fpdu, behind) = rest.split_at(clock.marked_len(*len) as usize);
            let mut done = 0;
            for marker in clock.markers(*len) {
                let (part, tail) = fpdu.split_at((marker.at - done) as usize);
                assert!(part.iter().all(|octet| *octet == 0xee));
                let (octets, tail) = tail.split_first_chunk().unwrap();
                assert!(marker.matches(*octets));
                done = marker.at;
                fpdu = tail;
            }
            assert!(fpdu.iter().all(|octet| *octet == 0xee));
            assert_eq!(done + fpdu.len() as u32, *len);
            clock.advance(*len);
            rest = behind;
        }
        assert!(rest.is_empty());
    });
}

#[test]
fn fpdus_of_the_greatest_mulpdu_fit_the_segment() {
    // MPA-28, at every place between two Markers.
    for emss in [
        256,
        512,
        536,
        1024,
        1448,
        1460,
        8948,
        65483,
        65532,
        u32::MAX,
    ] {
        let len = fpdu_len(mulpdu(emss, Markers::On));
        let mut clock = MarkerClock::new();
        for _ in 0..128 {
            assert!(clock.marked_len(len) <= emss);
            for marker in clock.markers(len) {
                let between = clock.markers(len).take_while(|other| other.at < marker.at);
                let between = between.filter(|other| other.at != 0).count();
                assert_eq!(u32::from(marker.pointer), marker.at + 4 * between as u32);
            }
            clock.advance(4);
        }
    }
}

#[test]
fn marker_reserved_bits_are_ignored_and_pointer_is_checked() {
    // MPA-27.
    let marker = Marker {
        at: 8,
        pointer: 508,
    };
    assert_eq!(marker.encode(), [0, 0, 1, 0xfc]);
    assert!(marker.matches([0xff, 0xff, 1, 0xfc]));
    assert!(!marker.matches([0, 0, 1, 0xf8]));
    assert!(!marker.matches([1, 0xfc, 0, 0]));
}
