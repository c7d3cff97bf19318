// SPDX-License-Identifier: GPL-2.0

//! Converts an input to the octets of a stream, and these to FPDUs.
//!
//! An input is a stream without Markers in which the CRC fields hold the *difference* from the
//! correct CRC, so that a fuzzer does not have to guess one. [`seal`] makes the stream; [`Framing`]
//! walks over it as a driver walks over TCP's receive queue. The caller owns the buffers and reuses
//! them.

use iwarp::{
    crc::crc32c,
    fault::Fault,
    mpa::{
        crc_trailer,
        fpdu_len,
        marker::{
            MarkerClock,
            MARKER_LEN, //
        },
        Crc,
        Markers,
        CRC_LEN,
        LENGTH_LEN, //
    }, //
};

/// The rules of one direction of a stream.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rules {
    /// Whether CRCs are checked.
    pub crc: Crc,
    /// Whether Markers are in use.
    pub markers: Markers,
}

/// Makes a stream of an input. The Marker at `damaged`, counted from 0, gets a wrong pointer.
pub fn seal(input: &[u8], rules: Rules, damaged: Option<u8>, stream: &mut Vec<u8>) {
    stream.clear();
    let mut clock = MarkerClock::new();
    let mut rest = input;
    let mut nth = 0;
    while !rest.is_empty() {
        // A truncated length field consists of the octet that is present, as its high one.
        let len = u16::from_be_bytes([rest[0], rest.get(1).copied().unwrap_or(0)]);
        let len = fpdu_len(len);
        let (fpdu, behind) = rest.split_at(rest.len().min(len as usize));
        rest = behind;
        let begin = stream.len();
        let mut at = 0;
        for marker in clock
            .markers(len)
            .take_while(|_| rules.markers == Markers::On)
        {
            let to = (marker.at as usize).min(fpdu.len());
            stream.extend(&fpdu[at..to]);
            at = to;
            let mut octets = marker.encode();
            octets[3] ^= u8::from(damaged == Some(nth)) << 2;
            nth = nth.saturating_add(1);
            stream.extend(octets);
            if at == fpdu.len() {
                break;
            }
        }
        stream.extend(&fpdu[at..]);
        if fpdu.len() == len as usize {
            let at = stream.len() - CRC_LEN;
            let (body, field) = stream.split_at_mut(at);
            let crc = crc_trailer(crc32c(&body[begin..]));
            for (octet, right) in field.iter_mut().zip(crc) {
                *octet ^= right;
            }
        }
        clock.advance(len);
    }
}

/// Walks over the FPDUs of a stream that grows.
#[derive(Debug, Default)]
pub struct Framing {
    rules: Rules,
    clock: MarkerClock,
    /// The offset of the next FPDU.
    at: usize,
}

impl Framing {
    /// Begins a stream.
    pub fn new(rules: Rules) -> Self {
        Self {
            rules,
            ..Self::default()
        }
    }

    /// Takes the next FPDU if `stream`, the octets received so far, has all of it. Its ULPDU goes
    /// to `ulpdu`; the result is that of the Marker and CRC checks.
    pub fn next(&mut self, stream: &[u8], ulpdu: &mut Vec<u8>) -> Option<Result<(), Fault>> {
        let stream = &stream[self.at..];
        let marked = self.rules.markers == Markers::On;
        let length_at = if marked { self.clock.length_at() } else { 0 };
        let length = stream.get(length_at..)?.first_chunk::<LENGTH_LEN>()?;
        let ulpdu_len = u16::from_be_bytes(*length);
        let plain = fpdu_len(ulpdu_len);
        let whole = if marked {
            self.clock.marked_len(plain)
        } else {
            plain
        };
        let fpdu = stream.get(..whole as usize)?;
        let (body, trailer) = fpdu.split_at(fpdu.len() - CRC_LEN);

        ulpdu.clear();
        let mut result = Ok(());
        let mut rest = body;
        let mut at = 0;
        for marker in self.clock.markers(plain).take_while(|_| marked) {
            let (octets, behind) = rest.split_at((marker.at - at) as usize);
            ulpdu.extend(octets);
            let (octets, behind) = behind.split_first_chunk::<MARKER_LEN>().unwrap();
            if !marker.matches(*octets) {
                result = Err(Fault::Marker);
            }
            rest = behind;
            at = marker.at;
        }
        ulpdu.extend(rest);
        ulpdu.drain(..LENGTH_LEN);
        ulpdu.truncate(ulpdu_len.into());
        if self.rules.crc == Crc::On && trailer != crc_trailer(crc32c(body)) {
            result = Err(Fault::Crc);
        }
        self.at += fpdu.len();
        self.clock.advance(plain);
        Some(result)
    }
}
