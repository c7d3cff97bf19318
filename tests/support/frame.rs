// SPDX-License-Identifier: GPL-2.0

//! Octets built by hand, without the core's encoders, to compare the core with.

use iwarp::crc::crc32c;

/// Returns the two control octets, with both versions 1.
pub fn control(tagged: bool, last: bool, opcode: u8) -> [u8; 2] {
    [
        (u8::from(tagged) << 7) | (u8::from(last) << 6) | 1,
        (1 << 6) | opcode,
    ]
}

/// Returns a tagged segment.
pub fn tagged(opcode: u8, last: bool, stag: u32, to: u64, payload: &[u8]) -> Vec<u8> {
    let mut octets = control(true, last, opcode).to_vec();
    octets.extend(stag.to_be_bytes());
    octets.extend(to.to_be_bytes());
    octets.extend(payload);
    octets
}

/// The fields of an untagged segment.
#[derive(Clone, Copy, Debug)]
pub struct Untagged {
    /// The opcode.
    pub opcode: u8,
    /// The L bit.
    pub last: bool,
    /// The Invalidate STag field.
    pub invalidate: u32,
    /// The queue number.
    pub queue: u32,
    /// The message sequence number.
    pub msn: u32,
    /// The message offset.
    pub offset: u32,
}

impl Untagged {
    /// Returns the fields of a whole message: L = 1, MO = 0, no STag to invalidate.
    pub fn whole(opcode: u8, queue: u32, msn: u32) -> Self {
        Self {
            opcode,
            last: true,
            invalidate: 0,
            queue,
            msn,
            offset: 0,
        }
    }

    /// Returns the octets of the segment.
    pub fn octets(self, payload: &[u8]) -> Vec<u8> {
        let mut octets = control(false, self.last, self.opcode).to_vec();
        for word in [self.invalidate, self.queue, self.msn, self.offset] {
            octets.extend(word.to_be_bytes());
        }
        octets.extend(payload);
        octets
    }
}

/// Returns a Send of one segment.
pub fn send(msn: u32, payload: &[u8]) -> Vec<u8> {
    Untagged::whole(0x3, 0, msn).octets(payload)
}

/// Returns the RDMAP header of a Read Request.
pub fn read_header(sink: (u32, u64), len: u32, source: (u32, u64)) -> Vec<u8> {
    let mut octets = Vec::new();
    octets.extend(sink.0.to_be_bytes());
    octets.extend(sink.1.to_be_bytes());
    octets.extend(len.to_be_bytes());
    octets.extend(source.0.to_be_bytes());
    octets.extend(source.1.to_be_bytes());
    octets
}

/// Returns a Read Request.
pub fn read_request(msn: u32, sink: (u32, u64), len: u32, source: (u32, u64)) -> Vec<u8> {
    Untagged::whole(0x1, 1, msn).octets(&read_header(sink, len, source))
}

/// Returns the RDMAP header of an Atomic Request; `fields` are data, mask, compare data, compare
/// mask.
pub fn atomic_header(code: u32, identifier: u32, stag: u32, to: u64, fields: [u64; 4]) -> Vec<u8> {
    let mut octets = Vec::new();
    for word in [code, identifier, stag] {
        octets.extend(word.to_be_bytes());
    }
    octets.extend(to.to_be_bytes());
    for field in fields {
        octets.extend(field.to_be_bytes());
    }
    octets
}

/// Returns the RDMAP header of an Atomic Response.
pub fn atomic_response_header(identifier: u32, original: u64) -> Vec<u8> {
    let mut octets = identifier.to_be_bytes().to_vec();
    octets.extend(original.to_be_bytes());
    octets
}

/// Returns a Terminate without a quote.
pub fn terminate(layer: u8, etype: u8, code: u8) -> Vec<u8> {
    Untagged::whole(0x7, 2, 1).octets(&[(layer << 4) | etype, code, 0, 0])
}

/// Returns a Terminate that quotes the DDP header of `segment`.
pub fn terminate_quoting(layer: u8, etype: u8, code: u8, segment: &[u8]) -> Vec<u8> {
    let header = if segment[0] & 0x80 != 0 { 14 } else { 18 };
    quote(layer, etype, code, 0xc0, segment, header)
}

/// Returns a Terminate that quotes the DDP and RDMAP headers of a Read Request.
pub fn terminate_quoting_read(layer: u8, etype: u8, code: u8, segment: &[u8]) -> Vec<u8> {
    quote(layer, etype, code, 0xe0, segment, 46)
}

fn quote(layer: u8, etype: u8, code: u8, mdr: u8, segment: &[u8], header: usize) -> Vec<u8> {
    let mut body = vec![(layer << 4) | etype, code, mdr, 0];
    body.extend(u16::try_from(segment.len()).unwrap().to_be_bytes());
    body.extend(&segment[..header]);
    Untagged::whole(0x7, 2, 1).octets(&body)
}

/// Returns the FPDU around a segment, with its CRC.
pub fn fpdu(ulpdu: &[u8]) -> Vec<u8> {
    let mut octets = u16::try_from(ulpdu.len()).unwrap().to_be_bytes().to_vec();
    octets.extend(ulpdu);
    while octets.len() % 4 != 0 {
        octets.push(0);
    }
    let crc = crc32c(&octets);
    octets.extend(crc.to_le_bytes());
    octets
}
