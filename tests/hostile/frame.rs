// SPDX-License-Identifier: GPL-2.0

//! Frames, valid and invalid, written from RFC 5040, 5041, 5044 and 6581 alone.
//!
//! A [`Segment`] is made valid and then changed: `write(stag, to, b"x").dv(2)`.

mod start;

use std::{
    fmt::Write as _,
    ops::Deref, //
};

pub(crate) use start::{
    flag,
    Depths,
    Rtr,
    Start,
    REPLY_KEY,
    REQUEST_KEY, //
};

/// CRC32c (RFC 5044, section 4.4).
pub(crate) fn crc32c(octets: &[u8]) -> u32 {
    const TABLE: [u32; 256] = {
        let mut table = [0; 256];
        let mut n = 0;
        while n < 256 {
            let mut crc = n as u32;
            let mut bit = 0;
            while bit < 8 {
                crc = (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg());
                bit += 1;
            }
            table[n] = crc;
            n += 1;
        }
        table
    };
    !octets.iter().fold(!0, |crc, octet| {
        (crc >> 8) ^ TABLE[usize::from(crc.to_le_bytes()[0] ^ octet)]
    })
}

/// RDMAP opcodes (RFC 5040, section 4.3; RFC 7306, section 4.1).
pub(crate) mod op {
    pub(crate) const WRITE: u8 = 0;
    pub(crate) const READ_REQUEST: u8 = 1;
    pub(crate) const READ_RESPONSE: u8 = 2;
    pub(crate) const SEND: u8 = 3;
    pub(crate) const SEND_INV: u8 = 4;
    pub(crate) const SEND_SE: u8 = 5;
    pub(crate) const SEND_SE_INV: u8 = 6;
    pub(crate) const TERMINATE: u8 = 7;
    pub(crate) const IMMEDIATE: u8 = 8;
    pub(crate) const IMMEDIATE_SE: u8 = 9;
    pub(crate) const ATOMIC_REQUEST: u8 = 10;
    pub(crate) const ATOMIC_RESPONSE: u8 = 11;
}

/// Octets of a tagged header.
pub(crate) const TAGGED_LEN: usize = 14;
/// Octets of an untagged header.
pub(crate) const UNTAGGED_LEN: usize = 18;
/// Octets of a Read Request with its headers.
pub(crate) const READ_REQUEST_LEN: usize = UNTAGGED_LEN + 28;

/// A DDP segment, the ULPDU of an FPDU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Segment(Vec<u8>);

impl Deref for Segment {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

/// A segment of the tagged model (RFC 5041, section 4.2).
pub(crate) fn tagged(opcode: u8, stag: u32, to: u64, data: &[u8]) -> Segment {
    let mut octets = vec![0xc1, 0x40 | opcode];
    octets.extend(stag.to_be_bytes());
    octets.extend(to.to_be_bytes());
    octets.extend(data);
    Segment(octets)
}

/// A segment of the untagged model (RFC 5041, section 4.3).
pub(crate) fn untagged(opcode: u8, qn: u32, msn: u32, data: &[u8]) -> Segment {
    let mut octets = vec![0x41, 0x40 | opcode, 0, 0, 0, 0];
    for field in [qn, msn, 0] {
        octets.extend(field.to_be_bytes());
    }
    octets.extend(data);
    Segment(octets)
}

pub(crate) fn write(stag: u32, to: u64, data: &[u8]) -> Segment {
    tagged(op::WRITE, stag, to, data)
}

pub(crate) fn read_response(stag: u32, to: u64, data: &[u8]) -> Segment {
    tagged(op::READ_RESPONSE, stag, to, data)
}

pub(crate) fn send(msn: u32, data: &[u8]) -> Segment {
    untagged(op::SEND, 0, msn, data)
}

/// The sink and the source of a Read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Read {
    pub(crate) sink: u32,
    pub(crate) sink_to: u64,
    pub(crate) size: u32,
    pub(crate) source: u32,
    pub(crate) source_to: u64,
}

impl Read {
    pub(crate) fn segment(&self, msn: u32) -> Segment {
        let mut header = Vec::new();
        header.extend(self.sink.to_be_bytes());
        header.extend(self.sink_to.to_be_bytes());
        header.extend(self.size.to_be_bytes());
        header.extend(self.source.to_be_bytes());
        header.extend(self.source_to.to_be_bytes());
        untagged(op::READ_REQUEST, 1, msn, &header)
    }
}

/// Returns a Read whose sink is [`SINK`].
pub(crate) fn read(msn: u32, size: u32, source: u32, source_to: u64) -> Segment {
    let (sink, sink_to) = SINK;
    Read {
        sink,
        sink_to,
        size,
        source,
        source_to,
    }
    .segment(msn)
}

/// A sink that means nothing to the device, which must echo it all the same.
pub(crate) const SINK: (u32, u64) = (0xabcd, 0xffff_ffff_ffff_0001);

/// Returns the Response of a [`read`].
pub(crate) fn response(data: &[u8]) -> Segment {
    read_response(SINK.0, SINK.1, data)
}

/// Layer, error type and error code (RFC 5040, section 4.8; RFC 5041, section 7.2; RFC 5044,
/// section 8; RFC 6581, section 8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Code(pub(crate) u8, pub(crate) u8, pub(crate) u8);

/// The bits that say which fields a Terminate has.
pub(crate) mod bits {
    pub(crate) const M: u32 = 0x8000;
    pub(crate) const D: u32 = 0x4000;
    pub(crate) const R: u32 = 0x2000;
}

/// Returns a Terminate with this header word and these octets.
pub(crate) fn terminate_of(word: u32, rest: &[u8]) -> Segment {
    let mut data = word.to_be_bytes().to_vec();
    data.extend(rest);
    untagged(op::TERMINATE, 2, 1, &data)
}

impl Code {
    pub(crate) fn word(self) -> u32 {
        (u32::from(self.0) << 28) | (u32::from(self.1) << 24) | (u32::from(self.2) << 16)
    }

    /// Returns the Terminate of a fault without a quoted segment.
    pub(crate) fn alone(self) -> Segment {
        terminate_of(self.word(), &[])
    }

    /// Returns the Terminate that answers `bad`; its quotes follow RFC 5040, sections 4.8 and 7.1.
    pub(crate) fn answer(self, bad: &Segment) -> Segment {
        let Self(layer, etype, _) = self;
        let header = if bad.has_t() {
            TAGGED_LEN
        } else {
            UNTAGGED_LEN
        };
        if layer > 1 || etype == 0 || bad.len() < header {
            return self.alone();
        }
        let mut word = self.word() | bits::M | bits::D;
        let mut quote = u16::try_from(bad.len()).unwrap_or(0).to_be_bytes().to_vec();
        quote.extend(&bad[..header]);
        let is_read = !bad.has_t() && bad[1] & 0xcf == 0x40 | op::READ_REQUEST;
        if layer == 0 && is_read && bad.len() == READ_REQUEST_LEN {
            word |= bits::R;
            quote.extend(&bad[header..]);
        }
        terminate_of(word, &quote)
    }
}

/// Changes that make a segment invalid.
impl Segment {
    fn has_t(&self) -> bool {
        self[0] & 0x80 != 0
    }

    fn with(mut self, at: usize, octets: &[u8]) -> Self {
        self.0[at..at + octets.len()].copy_from_slice(octets);
        self
    }

    fn with_bits(mut self, at: usize, mask: u8, value: u8) -> Self {
        self.0[at] = self.0[at] & !mask | value;
        self
    }

    /// Clears the L bit.
    pub(crate) fn more(self) -> Self {
        self.with_bits(0, 0x40, 0)
    }

    /// Flips the model and keeps the header.
    pub(crate) fn flip_t(self) -> Self {
        let value = !self[0] & 0x80;
        self.with_bits(0, 0x80, value)
    }

    pub(crate) fn dv(self, version: u8) -> Self {
        self.with_bits(0, 0x03, version)
    }

    pub(crate) fn ddp_reserved(self, value: u8) -> Self {
        self.with_bits(0, 0x3c, value << 2)
    }

    pub(crate) fn rv(self, version: u8) -> Self {
        self.with_bits(1, 0xc0, version << 6)
    }

    pub(crate) fn rdmap_reserved(self, value: u8) -> Self {
        self.with_bits(1, 0x30, value << 4)
    }

    pub(crate) fn opcode(self, opcode: u8) -> Self {
        self.with_bits(1, 0x0f, opcode)
    }

    /// Sets the Invalidate STag of an untagged header.
    pub(crate) fn inv(self, stag: u32) -> Self {
        self.with(2, &stag.to_be_bytes())
    }

    pub(crate) fn qn(self, queue: u32) -> Self {
        self.with(6, &queue.to_be_bytes())
    }

    pub(crate) fn mo(self, offset: u32) -> Self {
        self.with(14, &offset.to_be_bytes())
    }

    /// Keeps only the first `len` octets.
    pub(crate) fn cut(mut self, len: usize) -> Self {
        self.0.truncate(len);
        self
    }

    /// Appends octets.
    pub(crate) fn plus(mut self, octets: &[u8]) -> Self {
        self.0.extend(octets);
        self
    }

    /// Takes octets as they are.
    pub(crate) fn raw(octets: Vec<u8>) -> Self {
        Self(octets)
    }
}

/// FPDUs (RFC 5044, section 4).
impl Segment {
    fn body(&self, pad: u8) -> Vec<u8> {
        let mut body = u16::try_from(self.len())
            .expect("a ULPDU has 65535 octets at most")
            .to_be_bytes()
            .to_vec();
        body.extend(&self.0);
        body.resize(body.len().next_multiple_of(4), pad);
        body
    }

    /// Returns the FPDU.
    pub(crate) fn fpdu(&self) -> Vec<u8> {
        self.padded(0)
    }

    /// Returns the FPDU with these pad octets, which are not zero.
    pub(crate) fn padded(&self, pad: u8) -> Vec<u8> {
        let mut body = self.body(pad);
        body.extend(crc32c(&body).to_le_bytes());
        body
    }

    /// Returns the FPDU with its CRC XOR `difference`.
    pub(crate) fn bad_crc(&self, difference: u32) -> Vec<u8> {
        let mut body = self.body(0);
        body.extend((crc32c(&body) ^ difference).to_le_bytes());
        body
    }

    /// Returns the FPDU as it is where CRCs are not in use.
    pub(crate) fn without_crc(&self) -> Vec<u8> {
        let mut body = self.body(0);
        body.extend([0xde, 0xad, 0xbe, 0xef]);
        body
    }
}

/// Returns FPDUs one behind the other.
pub(crate) fn fpdus<'a>(segments: impl IntoIterator<Item = &'a Segment>) -> Vec<u8> {
    segments.into_iter().flat_map(Segment::fpdu).collect()
}

/// Returns the same octets with Markers, counted from the first octet of the first FPDU (RFC 5044,
/// section 4.3). The device never asks for Markers, so each is a fault.
pub(crate) fn marker_first(octets: &[u8]) -> Vec<u8> {
    [&[0; 4], octets].concat()
}

/// A parsed segment of the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Got(pub(crate) Segment);

impl Deref for Got {
    type Target = Segment;

    fn deref(&self) -> &Segment {
        &self.0
    }
}

fn be32(octets: &[u8], at: usize) -> u32 {
    octets
        .get(at..at + 4)
        .and_then(|octets| octets.try_into().ok())
        .map_or(0, u32::from_be_bytes)
}

fn be64(octets: &[u8], at: usize) -> u64 {
    (u64::from(be32(octets, at)) << 32) | u64::from(be32(octets, at + 4))
}

impl Got {
    pub(crate) fn op(&self) -> u8 {
        self[1] & 15
    }

    pub(crate) fn is_tagged(&self) -> bool {
        self.has_t()
    }

    pub(crate) fn is_last(&self) -> bool {
        self[0] & 0x40 != 0
    }

    /// Returns whether versions are 1, reserved bits 0, and the header complete.
    pub(crate) fn is_sound(&self) -> bool {
        let header = if self.is_tagged() {
            TAGGED_LEN
        } else {
            UNTAGGED_LEN
        };
        self[0] & 0x3f == 1 && self[1] & 0xf0 == 0x40 && self.len() >= header
    }

    pub(crate) fn stag(&self) -> u32 {
        be32(self, 2)
    }

    pub(crate) fn to(&self) -> u64 {
        be64(self, 6)
    }

    pub(crate) fn msn(&self) -> u32 {
        be32(self, 10)
    }

    pub(crate) fn offset(&self) -> u32 {
        be32(self, 14)
    }

    pub(crate) fn data(&self) -> &[u8] {
        &self[if self.is_tagged() {
            TAGGED_LEN
        } else {
            UNTAGGED_LEN
        }..]
    }

    /// Returns the Read that a Read Request asks for.
    pub(crate) fn read(&self) -> Read {
        let data = self.data();
        Read {
            sink: be32(data, 0),
            sink_to: be64(data, 4),
            size: be32(data, 12),
            source: be32(data, 16),
            source_to: be64(data, 20),
        }
    }

    /// Returns a Terminate as text, in the format of guest/wireshark.sh: what it quotes, with its
    /// length and first octets.
    pub(crate) fn as_terminate(&self) -> String {
        let (word, quote) = (be32(self.data(), 0), &self.data()[4..]);
        let mut text = format!(
            "terminate layer 0x{:x} etype 0x{:x} code 0x{:02x} bits ",
            word >> 28,
            (word >> 24) & 15,
            (word >> 16) & 255
        );
        for (bit, letter) in [(bits::M, 'M'), (bits::D, 'D'), (bits::R, 'R')] {
            text.extend((word & bit != 0).then_some(letter));
        }
        if quote.len() >= 4 {
            text += &format!(" length {} header {}", hex(&quote[..2]), hex(&quote[2..4]));
        }
        text + &format!(" ulpdu {}", self.len())
    }

    /// Describes the segment for the report of a failed case.
    pub(crate) fn describe(&self) -> String {
        let octets = hex(&self[..self.len().min(96)]);
        if self.op() == op::TERMINATE && !self.is_tagged() {
            let word = be32(self.data(), 0);
            let (layer, etype, code) = (word >> 28, (word >> 24) & 15, (word >> 16) & 255);
            return format!(
                "Terminate({layer}/{etype}/{code:02x}) MDR {:03b} [{octets}]",
                (word >> 13) & 7
            );
        }
        format!("opcode {} of {} octets [{octets}]", self.op(), self.len())
    }
}

pub(crate) fn hex(octets: &[u8]) -> String {
    if octets.is_empty() {
        return "-".into();
    }
    octets.iter().fold(String::new(), |mut text, octet| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{octet:02x}");
        text
    })
}

/// Returns octets that differ at every place.
pub(crate) fn pattern(len: usize) -> Vec<u8> {
    (0..len)
        .map(|i| (i as u32).wrapping_mul(2_654_435_761).to_be_bytes()[1])
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc_of_the_check_string() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn golden_frames() {
        let golden = |segment: Segment, octets: &str| assert_eq!(hex(&segment.fpdu()), octets);
        golden(
            write(0x1122_3344, 0x1000, b"ABCD"),
            "0012c140112233440000000000001000414243444ba57ae5",
        );
        golden(
            send(1, b"hello"),
            "001741430000000000000000000000010000000068656c6c6f000000b990b10c",
        );
        golden(
            Code(1, 1, 1).answer(&write(0x1122_3344, 0x1000, b"ABCD")),
            "00264147000000000000000200000001000000001101c0000012c14011223344000000000000100052bb7db8",
        );
        assert_eq!(
            hex(&Start::enhanced(Depths::peer_to_peer(8, 4, Rtr::of(6)), &[]).octets()),
            "4d504120494420526571204672616d65500200048008c004"
        );
    }
}
