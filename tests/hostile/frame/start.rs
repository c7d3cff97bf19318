// SPDX-License-Identifier: GPL-2.0

//! Start-up frames (RFC 5044, section 7.1; RFC 6581, sections 6 to 9).

use super::be32;

/// Flags of start-up frames (RFC 5044, section 7.1.1; RFC 6581, section 6).
pub(crate) mod flag {
    pub(crate) const MARKERS: u8 = 0x80;
    pub(crate) const CRC: u8 = 0x40;
    pub(crate) const REJECT: u8 = 0x20;
    pub(crate) const ENHANCED: u8 = 0x10;
    /// Of a riwarp device: the Request offers to tell features.
    pub(crate) const FEATURES: u8 = 0x04;
}

/// A start-up frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Start {
    pub(crate) key: [u8; 16],
    pub(crate) flags: u8,
    pub(crate) rev: u8,
    /// The announced length of the private data.
    pub(crate) length: u16,
    pub(crate) data: Vec<u8>,
}

pub(crate) const REQUEST_KEY: &[u8; 16] = b"MPA ID Req Frame";
pub(crate) const REPLY_KEY: &[u8; 16] = b"MPA ID Rep Frame";

impl Start {
    fn new(key: &[u8; 16], flags: u8, rev: u8, data: &[u8]) -> Self {
        Self {
            key: *key,
            flags,
            rev,
            length: u16::try_from(data.len()).unwrap_or(u16::MAX),
            data: data.to_vec(),
        }
    }

    /// Returns a Request that wants CRCs.
    pub(crate) fn request(rev: u8, data: &[u8]) -> Self {
        Self::new(REQUEST_KEY, flag::CRC, rev, data)
    }

    /// Returns a Reply that wants CRCs.
    pub(crate) fn reply(rev: u8, data: &[u8]) -> Self {
        Self::new(REPLY_KEY, flag::CRC, rev, data)
    }

    /// Returns a Request of RFC 6581.
    pub(crate) fn enhanced(depths: Depths, data: &[u8]) -> Self {
        Self::request(2, &[&depths.octets()[..], data].concat()).plus_flags(flag::ENHANCED)
    }

    /// Returns a Reply of RFC 6581.
    pub(crate) fn enhanced_reply(depths: Depths, data: &[u8]) -> Self {
        Self::reply(2, &[&depths.octets()[..], data].concat()).plus_flags(flag::ENHANCED)
    }

    pub(crate) fn plus_flags(mut self, flags: u8) -> Self {
        self.flags |= flags;
        self
    }

    pub(crate) fn flags(mut self, flags: u8) -> Self {
        self.flags = flags;
        self
    }

    pub(crate) fn key(mut self, key: &[u8; 16]) -> Self {
        self.key = *key;
        self
    }

    pub(crate) fn length(mut self, length: u16) -> Self {
        self.length = length;
        self
    }

    pub(crate) fn octets(&self) -> Vec<u8> {
        let mut octets = self.key.to_vec();
        octets.extend([self.flags, self.rev]);
        octets.extend(self.length.to_be_bytes());
        octets.extend(&self.data);
        octets
    }

    /// Returns the enhanced data, if present.
    pub(crate) fn depths(&self) -> Option<Depths> {
        let there = self.rev == 2 && self.flags & flag::ENHANCED != 0 && self.data.len() >= 4;
        there.then(|| Depths::from_word(be32(&self.data, 0)))
    }

    /// Returns the private data of the application.
    pub(crate) fn private(&self) -> &[u8] {
        &self.data[if self.depths().is_some() { 4 } else { 0 }..]
    }
}

/// The enhanced data of RFC 6581.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Depths {
    pub(crate) ird: u16,
    pub(crate) ord: u16,
    pub(crate) peer_to_peer: bool,
    pub(crate) rtr: Rtr,
}

/// The kinds of first message of a peer-to-peer connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rtr {
    pub(crate) send: bool,
    pub(crate) write: bool,
    pub(crate) read: bool,
}

impl Rtr {
    pub(crate) const NONE: Self = Self::of(0);
    pub(crate) const SEND: Self = Self::of(1);
    pub(crate) const WRITE: Self = Self::of(2);
    pub(crate) const READ: Self = Self::of(4);

    /// Returns the kinds whose bits are set: Send 1, Write 2, Read 4.
    pub(crate) const fn of(kinds: u8) -> Self {
        Self {
            send: kinds & 1 != 0,
            write: kinds & 2 != 0,
            read: kinds & 4 != 0,
        }
    }

    pub(crate) fn meets(self, other: Self) -> bool {
        self.send && other.send || self.write && other.write || self.read && other.read
    }
}

impl Depths {
    pub(crate) const fn new(ird: u16, ord: u16) -> Self {
        Self {
            ird,
            ord,
            peer_to_peer: false,
            rtr: Rtr::NONE,
        }
    }

    pub(crate) const fn peer_to_peer(ird: u16, ord: u16, rtr: Rtr) -> Self {
        Self {
            ird,
            ord,
            peer_to_peer: true,
            rtr,
        }
    }

    fn from_word(word: u32) -> Self {
        let bit = |n: u32| (word >> n) & 1 != 0;
        Self {
            ird: ((word >> 16) & 0x3fff) as u16,
            ord: (word & 0x3fff) as u16,
            peer_to_peer: bit(31),
            rtr: Rtr {
                send: bit(30),
                write: bit(15),
                read: bit(14),
            },
        }
    }

    pub(crate) fn octets(&self) -> [u8; 4] {
        let bit = |set: bool, n: u32| u32::from(set) << n;
        let word = bit(self.peer_to_peer, 31)
            | bit(self.rtr.send, 30)
            | bit(self.rtr.write, 15)
            | bit(self.rtr.read, 14)
            | (u32::from(self.ird & 0x3fff) << 16)
            | u32::from(self.ord & 0x3fff);
        word.to_be_bytes()
    }
}
