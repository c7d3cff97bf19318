// SPDX-License-Identifier: GPL-2.0

//! Complete small domains: control words, pairs of opcodes, cuts and flipped bits of each kind of
//! FPDU.

use iwarp::{
    fault::Fault,
    mpa::{
        Crc,
        Markers, //
    },
    rdmap::{
        Extensions,
        Marked, //
    },
    receiver::Receiver, //
};
use iwarp_fuzz::{
    framing::{
        seal,
        Framing,
        Rules, //
    },
    oracle::Oracle,
    watched::{
        play,
        Setting,
        MEMORY,
        WINDOW, //
    }, //
};
use iwarp_support::{
    end::Completion,
    frame::{
        atomic_header,
        atomic_response_header,
        fpdu,
        read_request,
        tagged,
        terminate_quoting,
        Untagged, //
    }, //
};

const EXTENSIONS: [Extensions; 2] = [Extensions::Off, Extensions::Rfc7306];

fn setting(rules: Rules) -> Setting {
    Setting {
        rules,
        extensions: Extensions::Rfc7306,
        marked: true,
        ird: 2,
        receives: 2,
        asking: true,
        wrapping: false,
    }
}

fn every_rule() -> impl Iterator<Item = Rules> {
    [Crc::Off, Crc::On].into_iter().flat_map(|crc| {
        [Markers::Off, Markers::On]
            .into_iter()
            .map(move |markers| Rules { crc, markers })
    })
}

/// Returns one segment of an opcode that the setting accepts.
fn segment(opcode: u8, last: bool, payload: &[u8]) -> Vec<u8> {
    let whole = |queue, body: &[u8]| {
        let header = Untagged {
            last,
            ..Untagged::whole(opcode, queue, 1)
        };
        header.octets(body)
    };
    let quoted = tagged(0, true, 7, 8, b"quoted");
    let fetch_add = [1, 0, 0, u64::MAX];
    match opcode {
        0 => tagged(opcode, last, MEMORY.0, MEMORY.1, payload),
        1 => whole(1, &read_request(1, (9, 11), 32, (MEMORY.0, MEMORY.1))[18..]),
        2 => tagged(opcode, last, WINDOW.0, WINDOW.1, payload),
        4 | 6 => {
            let header = Untagged {
                last,
                invalidate: WINDOW.0,
                ..Untagged::whole(opcode, 0, 1)
            };
            header.octets(payload)
        }
        0x10 => tagged(opcode, last, MEMORY.0, MEMORY.1, b"8 octets"),
        // A Flush of the range, GLOBAL.
        0x11 => whole(1, &read_request(1, (1, 0), 32, (MEMORY.0, MEMORY.1))[18..]),
        7 => whole(2, &terminate_quoting(1, 1, 1, &quoted)[18..]),
        8 | 9 => whole(0, b"immediat"),
        10 => whole(1, &atomic_header(0, 3, WINDOW.0, WINDOW.1, fetch_add)),
        11 => whole(3, &atomic_response_header(7, 42)),
        _ => whole(0, payload),
    }
}

/// Returns every kind of FPDU: every opcode, with each payload length of 0 to 64 octets where it
/// has a payload.
fn every_segment() -> impl Iterator<Item = Vec<u8>> {
    (0..12).chain([0x10, 0x11]).flat_map(|opcode| {
        let longest = if matches!(opcode, 0 | 2..=6) { 64 } else { 0 };
        (0..=longest).map(move |len| segment(opcode, true, &vec![0x77; len]))
    })
}

#[test]
fn each_control_word_at_boundary_lengths() {
    let mut octets = segment(10, true, &[]);
    for word in 0..=u16::MAX {
        octets[..2].copy_from_slice(&word.to_be_bytes());
        for extensions in EXTENSIONS {
            for len in [2, 13, 14, 17, 18, 22, 46, 70] {
                for marked in [Marked::NONE, Marked::ALL] {
                    let mut receiver = Receiver::new(extensions);
                    receiver.take_marked(marked);
                    let mut oracle = Oracle::new(extensions, 1);
                    oracle.marked = marked == Marked::ALL;
                    let _ = oracle.compare(&mut receiver, &octets[..len]);
                }
            }
        }
    }
}

#[test]
fn each_pair_of_opcodes() {
    // The second segment continues the first one's message, is the next of its queue, or is at
    // offset 0.
    let mut judged = 0;
    for extensions in EXTENSIONS {
        for (first, second) in (0..18).flat_map(|first| (0..18).map(move |second| (first, second)))
        {
            for (first_last, second_last) in
                [(false, false), (false, true), (true, false), (true, true)]
            {
                for number in [0, 1, 2, 3] {
                    let mut receiver = Receiver::new(extensions);
                    receiver.take_marked(Marked::ALL);
                    let mut oracle = Oracle::new(extensions, 1);
                    oracle.marked = true;
                    let one = segment(first, first_last, b"one");
                    let mut two = segment(second, second_last, b"two");
                    if two[0] & 0x80 == 0 {
                        two[10..14].copy_from_slice(&u32::to_be_bytes(number));
                    }
                    if oracle.compare(&mut receiver, &one).is_ok() {
                        let _ = oracle.compare(&mut receiver, &two);
                        judged += 1;
                    }
                }
            }
        }
    }
    // With an extension or reserved opcode the first segment already fails; of the others only a
    // Terminate must be the last segment.
    assert!(judged > 16 * 4 * 4 * 15, "{judged}");
}

#[test]
fn each_truncation_of_each_fpdu() {
    // DDP-4: an FPDU has no effect before its last octet has arrived, whatever the rules.
    let mut ulpdu = Vec::new();
    let mut stream = Vec::new();
    for segment in every_segment() {
        let mut input = fpdu(&segment);
        let body = input.len() - 4;
        input[body..].fill(0);
        for rules in every_rule() {
            seal(&input, rules, None, &mut stream);
            let mut framing = Framing::new(rules);
            for cut in 0..stream.len() {
                assert_eq!(framing.next(&stream[..cut], &mut ulpdu), None);
            }
            assert_eq!(framing.next(&stream, &mut ulpdu), Some(Ok(())));
            assert_eq!(ulpdu, segment);
        }
    }
}

#[test]
fn each_kind_of_fpdu_is_received() {
    for segment in every_segment() {
        let outcome = play(&setting(Rules::default()), &fpdu(&segment), 0);
        let payload = match segment[1] & 15 {
            0 | 2 => &segment[14..],
            _ => &segment[18..],
        };
        match segment[1] & 15 {
            0 => assert_eq!(&outcome.memory[..payload.len()], payload),
            1 | 10 => assert_eq!(outcome.responses.len(), 1),
            // A Read of 16 octets is outstanding, and then an atomic operation.
            2 if payload.len() == 16 => assert_eq!(outcome.completions, [Completion::Read]),
            2 | 11 => assert!(outcome.terminate.is_some()),
            3..=6 => {
                let [Completion::Received { octets, .. }] = &outcome.completions[..] else {
                    panic!("{:?}", outcome.completions);
                };
                assert_eq!(octets, payload);
            }
            7 => assert!(outcome.terminated.is_some()),
            _ => assert!(matches!(
                outcome.completions[..],
                [Completion::Immediate(_)]
            )),
        }
        let refused = matches!(segment[1] & 15, 2 | 11) && outcome.completions.is_empty();
        assert_eq!(outcome.terminate.is_some(), refused);
    }
}

#[test]
fn each_flipped_bit_of_each_fpdu() {
    // With a CRC that covers the flipped bit, the FPDU is judged by its contents; otherwise none of
    // it is trusted.
    let setting = setting(Rules::default());
    for opcode in 0..12 {
        let octets = fpdu(&segment(opcode, true, b"payload"));
        for bit in 16..octets.len() * 8 {
            let mut flipped = octets.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let outcome = play(&setting, &flipped, 0);
            let said = outcome.terminate.map(|terminate| terminate.code);
            assert_eq!(said, Some(Fault::Crc.code()), "bit {bit} of {octets:02x?}");
            assert_eq!(outcome.completions, []);

            let body = flipped.len() - 4;
            flipped[body..].fill(0);
            let mut stream = Vec::new();
            seal(&flipped, setting.rules, None, &mut stream);
            play(&setting, &stream, 0);
        }
    }
}

#[test]
fn each_value_of_each_header_octet() {
    let setting = setting(Rules::default());
    for opcode in 0..12 {
        let right = segment(opcode, true, b"payload");
        for at in 0..right.len().min(18) {
            for value in 0..=u8::MAX {
                let mut spoilt = right.clone();
                spoilt[at] = value;
                play(&setting, &fpdu(&spoilt), 0);
            }
        }
    }
}
