// SPDX-License-Identifier: GPL-2.0

//! Two ends and a wire between them: one end receives what the other sends, whatever the sizes, the
//! MULPDU and the cuts of the octet stream.

use bolero::check;
use iwarp::rdmap::{
    Extensions,
    Immediate,
    SendEvent,
    SendKind, //
};
use iwarp_fuzz::ops;
use iwarp_support::{
    end::{
        transmit,
        write,
        End, //
    },
    random::Random,
    wire::Wire, //
};

#[test]
fn any_mix_of_messages_arrives() {
    check!().for_each(ops::run);
}

#[test]
fn every_length_around_the_segment_size() {
    let mut random = Random::new(1);
    let octets = random.octets(4 * 128);
    for len in 0..octets.len() {
        for mulpdu in 126..136 {
            let mut end = End::new(Extensions::Off, 0, 0);
            end.post_receive(len);
            end.register(7, 1, vec![0; len]);
            let mut sender = End::new(Extensions::Off, 0, 0);
            let message = sender.send(SendKind::default());
            let mut wire = Wire::new();
            for message in [message, write(7, 1)] {
                for fpdu in transmit(message, &octets[..len], || mulpdu) {
                    assert!(fpdu.len() <= usize::from(mulpdu.max(128)) + 9);
                    wire.push(&fpdu);
                }
            }
            while let Some(fpdu) = wire.pop() {
                end.handle(&fpdu);
            }
            assert_eq!(end.terminate(), None);
            assert_eq!(end.region(7).memory, octets[..len]);
            assert_eq!(end.completions().len(), 1);
        }
    }
}

#[test]
fn every_cut_of_the_octet_stream() {
    // DDP-4: an FPDU takes effect when its last octet arrives, and not before.
    let mut sender = End::new(Extensions::Rfc7306, 0, 1);
    let immediate = Immediate {
        data: *b"12345678",
        solicited: SendEvent::Silent,
    };
    let mut octets = Vec::new();
    let mut ends = Vec::new();
    let messages = [
        (sender.send(SendKind::default()), &b"hello"[..]),
        (write(7, 0), &b"world"[..]),
        (sender.immediate(immediate), &[][..]),
    ];
    for (message, payload) in messages {
        for fpdu in transmit(message, payload, || 128) {
            octets.extend(fpdu);
            ends.push(octets.len());
        }
    }
    for first in 0..=octets.len() {
        let mut end = End::new(Extensions::Rfc7306, 0, 0);
        end.post_receive(8);
        end.post_receive(0);
        end.register(7, 0, vec![0; 5]);
        let mut wire = Wire::new();
        let mut count = 0;
        for (part, first_part) in [(&octets[..first], true), (&octets[first..], false)] {
            wire.push(part);
            while let Some(fpdu) = wire.pop() {
                end.handle(&fpdu);
                count += 1;
            }
            if first_part {
                assert_eq!(count, ends.iter().filter(|end| **end <= first).count());
            }
        }
        assert_eq!(count, 3);
        assert_eq!(end.terminate(), None);
        assert_eq!(end.completions().len(), 2);
        assert_eq!(end.region(7).memory, b"world");
    }
}

#[test]
fn any_octets_at_all() {
    // The receiver judges any octets without a panic, and what it refuses can be reported.
    check!()
        .with_type()
        .for_each(|segments: &Vec<(Vec<u8>, bool)>| {
            let mut end = End::new(Extensions::Rfc7306, 2, 2);
            end.post_receive(64);
            end.register(0x0102_0304, 0, vec![0; 4096]);
            for (octets, repair) in segments {
                let mut octets = octets.clone();
                if let (true, [first, second, ..]) = (*repair, &mut octets[..]) {
                    *first = *first & 0xfc | 1;
                    *second = *second & 0x0f | 0x40;
                }
                iwarp_support::hostile::deliver(&mut end, &octets);
                iwarp_support::hostile::terminate_of(&end);
            }
        });
}
