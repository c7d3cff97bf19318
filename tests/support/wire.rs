// SPDX-License-Identifier: GPL-2.0

//! A stream of octets and its FPDUs, as the driver finds them in TCP's receive queue.

use iwarp::{
    crc::crc32c,
    mpa::{
        crc_trailer,
        fpdu_len,
        CRC_LEN,
        LENGTH_LEN, //
    }, //
};

/// One direction of a connection: takes octets as TCP cuts them, returns whole FPDUs.
#[derive(Debug, Default)]
pub struct Wire {
    octets: Vec<u8>,
}

/// A complete FPDU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fpdu {
    /// The ULPDU.
    pub ulpdu: Vec<u8>,
    /// Whether the CRC is good.
    pub intact: bool,
}

impl Wire {
    /// Makes an empty stream.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds octets at the end.
    pub fn push(&mut self, octets: &[u8]) {
        self.octets.extend(octets);
    }

    /// Takes the next FPDU off the front, if it is complete.
    pub fn pop(&mut self) -> Option<Fpdu> {
        let length = *self.octets.first_chunk::<LENGTH_LEN>()?;
        let ulpdu_len = u16::from_be_bytes(length);
        let fpdu_len = usize::try_from(fpdu_len(ulpdu_len)).unwrap();
        if self.octets.len() < fpdu_len {
            return None;
        }
        let rest = self.octets.split_off(fpdu_len);
        let fpdu = std::mem::replace(&mut self.octets, rest);
        let (body, trailer) = fpdu.split_at(fpdu_len - CRC_LEN);
        Some(Fpdu {
            ulpdu: body[LENGTH_LEN..][..usize::from(ulpdu_len)].to_vec(),
            intact: trailer == crc_trailer(crc32c(body)),
        })
    }

    /// Returns whether no octet is left.
    pub fn is_empty(&self) -> bool {
        self.octets.is_empty()
    }
}
