// SPDX-License-Identifier: GPL-2.0

//! The local memory that a work request names, as posted and unchecked.
//!
//! `abi` fills a [`Payload`]; [`sge`](super::sge) finds the regions that it names.
//!
//! Context: any.

use iwarp::stag::Stag;

/// Length in octets of an element of a scatter/gather list. All ABIs have the same layout: address,
/// length, key.
pub(crate) const SGE_LEN: usize = 16;

/// Most elements of one scatter/gather list.
pub(crate) const MAX_SGE: usize = 32;

/// Most octets of inline data of a work request.
pub(crate) const MAX_INLINE: usize = MAX_SGE * SGE_LEN;

/// One element of a scatter/gather list, as posted and unchecked.
#[derive(Clone, Copy, Default)]
pub(crate) struct Sge {
    /// I/O virtual address.
    pub(crate) addr: u64,
    /// Length in octets.
    pub(crate) len: u32,
    /// Local key, which is an STag.
    pub(crate) lkey: u32,
}

impl Sge {
    fn decode(entry: &[u8; SGE_LEN]) -> Self {
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = *entry;
        Self {
            addr: u64::from_ne_bytes([a, b, c, d, e, f, g, h]),
            len: u32::from_ne_bytes([i, j, k, l]),
            lkey: u32::from_ne_bytes([m, n, o, p]),
        }
    }

    fn encode(&self) -> [u8; SGE_LEN] {
        let mut entry = [0; SGE_LEN];
        let (addr, rest) = entry.split_at_mut(8);
        let (len, lkey) = rest.split_at_mut(4);
        addr.copy_from_slice(&self.addr.to_ne_bytes());
        len.copy_from_slice(&self.len.to_ne_bytes());
        lkey.copy_from_slice(&self.lkey.to_ne_bytes());
        entry
    }
}

/// A work request's scatter/gather list or inline data.
///
/// It is filled in place, since it is large and usually almost empty.
pub(crate) struct Payload {
    form: Form,
    /// The number of elements, or of octets of inline data.
    used: u16,
    room: SgeBuffer,
}

/// Aligned, so that it can be filled word by word.
#[repr(align(8))]
struct SgeBuffer([[u8; SGE_LEN]; MAX_SGE]);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    List,
    Inline,
}

impl Default for Payload {
    /// Returns an empty list.
    fn default() -> Self {
        Self {
            form: Form::List,
            used: 0,
            room: SgeBuffer([[0; SGE_LEN]; MAX_SGE]),
        }
    }
}

impl Payload {
    /// Makes it an empty list.
    pub(crate) fn clear(&mut self) {
        self.form = Form::List;
        self.used = 0;
    }

    /// Makes it a copy of `other`; touches only what that one uses.
    pub(crate) fn copy_from(&mut self, other: &Self) {
        let elements = match other.form {
            Form::List => other.used.into(),
            Form::Inline => usize::from(other.used).div_ceil(SGE_LEN),
        };
        let (to, from) = (&mut self.room.0, &other.room.0);
        if let (Some(to), Some(from)) = (to.get_mut(..elements), from.get(..elements)) {
            to.copy_from_slice(from);
            (self.form, self.used) = (other.form, other.used);
        }
    }

    /// Drops the last element of a list and returns it; [`None`] if there is none.
    pub(crate) fn pop(&mut self) -> Option<Sge> {
        let last = self.sges().last()?;
        self.used -= 1;
        Some(last)
    }

    /// Returns the keys of the elements that have octets.
    #[cold]
    pub(crate) fn keys(&self) -> impl Iterator<Item = Stag> + '_ {
        let elements = self.sges().filter(|sge| sge.len != 0);
        elements.map(|sge| Stag::new(sge.lkey))
    }

    /// Makes it a list of `count` elements and returns their octets to be filled in; [`None`],
    /// without effect, if that is more than [`MAX_SGE`].
    pub(crate) fn list_room(&mut self, count: usize) -> Option<&mut [u8]> {
        let room = self.room.0.get_mut(..count)?;
        self.form = Form::List;
        // CAST: at most MAX_SGE.
        self.used = count as u16;
        Some(room.as_flattened_mut())
    }

    /// Makes it `len` octets of inline data and returns them to be filled in; [`None`], without
    /// effect, if that is more than [`MAX_INLINE`].
    pub(crate) fn inline_room(&mut self, len: usize) -> Option<&mut [u8]> {
        let room = self.room.0.as_flattened_mut().get_mut(..len)?;
        self.form = Form::Inline;
        // CAST: at most MAX_INLINE.
        self.used = len as u16;
        Some(room)
    }

    /// Appends an element to a list; returns false if the list is full.
    pub(crate) fn push(&mut self, sge: Sge) -> bool {
        match self.room.0.get_mut(usize::from(self.used)) {
            Some(place) => {
                *place = sge.encode();
                self.used += 1;
                true
            }
            None => false,
        }
    }

    /// Returns the elements of a list in posting order; none for inline data.
    pub(crate) fn sges(&self) -> impl ExactSizeIterator<Item = Sge> + '_ {
        let used = match self.form {
            Form::List => usize::from(self.used),
            Form::Inline => 0,
        };
        self.room
            .0
            .get(..used)
            .unwrap_or(&[])
            .iter()
            .map(Sge::decode)
    }

    /// Returns the octets of inline data; [`None`] for a list.
    pub(crate) fn inline(&self) -> Option<&[u8]> {
        match self.form {
            Form::List => None,
            Form::Inline => self.room.0.as_flattened().get(..usize::from(self.used)),
        }
    }

    /// Returns the length of the message in octets. No limit has been checked: it may exceed the
    /// longest possible message.
    #[inline]
    pub(crate) fn len(&self) -> u64 {
        match self.inline() {
            Some(octets) => octets.len() as u64,
            // The usual case.
            None if self.used == 1 => self.sges().next().map_or(0, |sge| sge.len.into()),
            None => self.sges().map(|sge| u64::from(sge.len)).sum(),
        }
    }
}

#[kernel::prelude::kunit_tests(riwarp_payload)]
mod tests {
    use super::*;

    #[test]
    fn payload_list_is_limited_to_max_sge() {
        let mut payload = Payload::default();
        for len in 1..=MAX_SGE {
            assert_eq!(payload.sges().len() + 1, len);
            assert!(payload.push(Sge {
                addr: 0,
                len: len as u32,
                lkey: 0,
            }));
        }
        assert!(!payload.push(Sge::default()));
        assert!(payload.sges().map(|sge| sge.len).eq(1..=MAX_SGE as u32));
        assert!(payload.list_room(MAX_SGE + 1).is_none());
    }

    #[test]
    fn copied_payload_equals_its_source() {
        let mut from = Payload::default();
        let mut to = Payload::default();
        for len in 1..=MAX_SGE as u32 {
            from.push(Sge {
                addr: len.into(),
                len,
                lkey: len,
            });
            to.copy_from(&from);
            assert!(to.sges().map(|sge| sge.len).eq(1..=len));
        }
        for len in [MAX_INLINE, 17, 16, 1, 0] {
            if let Some(room) = from.inline_room(len) {
                // CAST: any value will do.
                room.fill(len as u8);
            }
            to.copy_from(&from);
            assert!(to.inline() == from.inline() && to.len() == len as u64);
        }
        from.clear();
        to.copy_from(&from);
        assert!(to.inline().is_none() && to.len() == 0);
    }

    #[test]
    fn payload_length_may_exceed_longest_message() {
        let mut payload = Payload::default();
        for _ in 0..6 {
            payload.push(Sge {
                len: u32::MAX,
                ..Sge::default()
            });
        }
        assert_eq!(payload.len(), 6 * u64::from(u32::MAX));
    }

    #[test]
    fn inline_payload_is_taken_whole_or_refused() {
        let mut payload = Payload::default();
        assert!(payload.inline().is_none());
        assert!(payload.inline_room(MAX_INLINE + 1).is_none());
        for len in [0, 1, MAX_INLINE] {
            if let Some(room) = payload.inline_room(len) {
                room.fill(7);
            }
            assert!(payload.inline().is_some_and(|octets| octets.len() == len));
            assert!(payload
                .inline()
                .is_some_and(|octets| octets.iter().all(|octet| *octet == 7)));
            assert_eq!((payload.len(), payload.sges().len()), (len as u64, 0));
        }
        payload.clear();
        assert!(payload.inline().is_none() && payload.len() == 0);
    }
}
