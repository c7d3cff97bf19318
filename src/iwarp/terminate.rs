// SPDX-License-Identifier: GPL-2.0

//! The Terminate message: what ended the stream, and the header of the segment that did it.
//!
//! The receiver keeps the offending segment's headers as a [`Quoted`], octet for octet;
//! [`Terminate::for_fault`] joins them with the codes of [`Fault::code`] and keeps as much of the
//! quote as the kind of error allows. [`crate::segment::Segmenter`] makes the FPDU, as of any other
//! message.
//!
//! Pure, any context.
//!
//! RFC 5040, sections 4.8 and 7.1 (rows RDMAP-37..49, -136..145).

use crate::{
    bytes::{
        put,
        put_u16,
        put_u32,
        take,
        take_u16,
        take_u32, //
    },
    ddp::{
        Control,
        QueueNumber,
        TaggedHeader,
        UntaggedHeader, //
    },
    fault::{
        ErrorCode,
        Fault,
        Quoting, //
    },
    rdmap::{
        Extensions,
        Opcode,
        ReadRequest, //
    },
    stag::Stag, //
};

/// Octets of a DDP header and a Read Request header together, the longest quote.
const QUOTE_MAX: usize = UntaggedHeader::LEN + ReadRequest::LEN;

/// The headers of an offending segment, as they arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quoted {
    segment_len: u16,
    extent: Extent,
    /// The first `extent.len()` octets are valid, the others are 0.
    octets: [u8; QUOTE_MAX],
}

/// How much is quoted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extent {
    /// A tagged DDP header.
    Tagged,
    /// An untagged DDP header.
    Untagged,
    /// An untagged DDP header and a Read Request header.
    ReadRequest,
}

impl Extent {
    const fn len(self) -> usize {
        match self {
            Self::Tagged => TaggedHeader::LEN,
            Self::Untagged => UntaggedHeader::LEN,
            Self::ReadRequest => QUOTE_MAX,
        }
    }

    /// Returns the length of a Terminate header with this quote.
    const fn terminate_len(self) -> u8 {
        // CAST: 20, 24 and 52.
        Terminate::QUOTE_AT.saturating_add(self.len()) as u8
    }
}

impl Quoted {
    /// Keeps the headers of a segment.
    ///
    /// `header` is what [`crate::receiver::Receiver::handle_fpdu`] was given. The T bit decides how
    /// long the DDP header is (RDMAP-43); the RDMAP header is kept if the segment is a Read Request
    /// of the right length and version (RDMAP-45).
    ///
    /// Returns `None` if the segment is too short to have a DDP header to quote.
    pub fn from_segment(header: &[u8], ulpdu_len: u16) -> Option<Self> {
        let control = header.first_chunk::<{ Control::LEN }>()?;
        let extent = match Control::decode(control, Extensions::Off) {
            Ok(Control {
                opcode: Opcode::ReadRequest,
                ..
            }) if usize::from(ulpdu_len) == QUOTE_MAX => Extent::ReadRequest,
            Ok(_) | Err(_) => {
                let [first, _] = *control;
                if first & 0x80 == 0 {
                    Extent::Untagged
                } else {
                    Extent::Tagged
                }
            }
        };
        if usize::from(ulpdu_len) < extent.len() {
            return None;
        }
        Self::copy(header, ulpdu_len, extent)
    }

    /// Returns the quote of a Read Request as it stands after `sent` octets of its Response were
    /// sent: sink and source moved on, the size reduced (RDMAP-47). Other quotes do not change, nor
    /// does this one for 0 (RDMAP-46).
    #[must_use]
    pub fn after(mut self, sent: u32) -> Self {
        if self.extent == Extent::ReadRequest {
            const AT: usize = UntaggedHeader::LEN;
            let request = ReadRequest::decode(&take::<AT, 28, QUOTE_MAX>(&self.octets));
            put::<AT, 28, QUOTE_MAX>(&mut self.octets, request.after(sent).encode());
        }
        self
    }

    /// Returns the STag that the segment names: the one of its tagged buffer, of the source of a
    /// Read, or else the one to invalidate, of no meaning without an invalidation.
    pub fn stag(&self) -> Stag {
        const SOURCE_AT: usize = UntaggedHeader::LEN + 16;
        Stag::new(match self.extent {
            Extent::ReadRequest => take_u32::<SOURCE_AT, QUOTE_MAX>(&self.octets),
            Extent::Tagged | Extent::Untagged => take_u32::<2, QUOTE_MAX>(&self.octets),
        })
    }

    /// Returns the length of the whole segment, headers and payload: its ULPDU_Length (RDMAP-42).
    pub const fn segment_len(&self) -> u16 {
        self.segment_len
    }

    /// Returns the quoted octets: the DDP header, and the Read Request header if there is one.
    pub fn as_octets(&self) -> &[u8] {
        self.octets.get(..self.extent.len()).unwrap_or_default()
    }

    /// Returns the message of the quoted segment; [`None`] if its opcode is reserved.
    pub fn opcode(&self) -> Option<Opcode> {
        let [_, rdmap] = self.octets.first_chunk::<{ Control::LEN }>()?;
        Opcode::from_wire(rdmap & Control::OPCODE_MASK, Extensions::SendImmediate)
    }

    /// Returns the queue of the segment; [`None`] if it is tagged.
    pub fn queue(&self) -> Option<QueueNumber> {
        const QUEUE_AT: usize = 6;
        match self.extent {
            Extent::Tagged => None,
            Extent::Untagged | Extent::ReadRequest => {
                Some(QueueNumber::new(take_u32::<QUEUE_AT, QUOTE_MAX>(
                    &self.octets,
                )))
            }
        }
    }

    /// Returns whether a Read Request header is quoted: the R bit.
    pub const fn has_read_request(&self) -> bool {
        matches!(self.extent, Extent::ReadRequest)
    }

    /// Copies the first `extent.len()` octets of `octets`.
    fn copy(octets: &[u8], segment_len: u16, extent: Extent) -> Option<Self> {
        let source = octets.get(..extent.len())?;
        let mut quoted = Self {
            segment_len,
            extent,
            octets: [0; QUOTE_MAX],
        };
        quoted
            .octets
            .get_mut(..extent.len())?
            .copy_from_slice(source);
        Some(quoted)
    }

    /// Drops the RDMAP header.
    fn without_read_request(mut self) -> Self {
        if self.extent == Extent::ReadRequest {
            self.extent = Extent::Untagged;
            put::<{ UntaggedHeader::LEN }, { ReadRequest::LEN }, QUOTE_MAX>(
                &mut self.octets,
                [0; ReadRequest::LEN],
            );
        }
        self
    }
}

/// A Terminate message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terminate {
    /// What happened; any number in a received message.
    pub code: ErrorCode,
    /// The headers of the segment that caused it. The M, D and R bits follow from it.
    pub quoted: Option<Quoted>,
}

/// The octets of a Terminate header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TerminateOctets {
    /// The first `len` octets are valid, the others are 0.
    octets: [u8; Terminate::LEN_MAX],
    /// At most `Terminate::LEN_MAX`.
    len: u8,
}

impl TerminateOctets {
    /// Returns the octets.
    #[inline]
    pub fn as_octets(&self) -> &[u8] {
        self.octets.get(..usize::from(self.len)).unwrap_or_default()
    }

    /// Returns how many octets are valid.
    #[inline]
    pub(crate) const fn len(&self) -> u8 {
        self.len
    }

    /// Returns the octets with zeros behind them.
    #[inline]
    pub(crate) const fn padded(&self) -> [u8; Terminate::LEN_MAX] {
        self.octets
    }
}

impl Terminate {
    /// Length in octets without a quote.
    pub const LEN_MIN: usize = 4;

    /// Length in octets with the longest quote, that of a Read Request.
    pub const LEN_MAX: usize = Self::QUOTE_AT + QUOTE_MAX;

    const SEGMENT_LEN_AT: usize = 4;
    const QUOTE_AT: usize = 6;

    const M: u32 = 0x8000;
    const D: u32 = 0x4000;
    const R: u32 = 0x2000;

    /// Makes the message that reports `fault`.
    ///
    /// `offending` is the segment that caused it, `None` if none did or it is too short to quote.
    /// The message quotes as much of it as [`ErrorCode::quoting`] allows, and omits unused parts
    /// instead of filling them with zeros (RDMAP-145).
    pub fn for_fault(fault: Fault, offending: Option<&Quoted>) -> Self {
        let code = fault.code();
        let quoted = match code.quoting() {
            Quoting::Nothing => None,
            Quoting::Segment => offending.map(|quoted| quoted.without_read_request()),
            Quoting::SegmentAndRead => offending.copied(),
        };
        Self { code, quoted }
    }

    /// Returns the octets of the header, 4 to 52.
    pub fn encode(&self) -> TerminateOctets {
        let [class, code] = self.code.octets();
        let mut octets = [0; Self::LEN_MAX];
        let mut control = u32::from_be_bytes([class, code, 0, 0]);
        let len = match &self.quoted {
            None => const { Self::LEN_MIN as u8 },
            Some(quoted) => {
                control |= Self::M | Self::D;
                if quoted.has_read_request() {
                    control |= Self::R;
                }
                put_u16::<{ Self::SEGMENT_LEN_AT }, 52>(&mut octets, quoted.segment_len);
                put::<{ Self::QUOTE_AT }, QUOTE_MAX, 52>(&mut octets, quoted.octets);
                quoted.extent.terminate_len()
            }
        };
        put_u32::<0, 52>(&mut octets, control);
        TerminateOctets { octets, len }
    }

    /// Reads a Terminate header: all octets of the message behind its DDP header.
    ///
    /// Ignores reserved bits (RDMAP-41); unused parts may be missing or filled with zeros
    /// (RDMAP-145). Always returns the three numbers of the code, which the consumer needs
    /// (RDMAP-97); a quote that is announced but cut off is dropped.
    ///
    /// # Errors
    ///
    /// [`Fault::HeaderLength`] if there are less than 4 octets (RDMAP-98).
    pub fn decode(octets: &[u8]) -> Result<Self, Fault> {
        let control = octets
            .first_chunk::<{ Self::LEN_MIN }>()
            .ok_or(Fault::HeaderLength)?;
        let [first, code, _, _] = *control;
        let control = take_u32::<0, 4>(control);
        let quoted = if control & Self::D == 0 {
            None
        } else {
            Self::decode_quote(octets, control & Self::R != 0)
        };
        Ok(Self {
            code: ErrorCode {
                layer: first >> 4,
                etype: first & 0x0f,
                code,
            },
            quoted,
        })
    }

    fn decode_quote(octets: &[u8], read_request: bool) -> Option<Quoted> {
        let (front, quote) = octets.split_first_chunk::<{ Self::QUOTE_AT }>()?;
        // RDMAP-43: the quoted T bit says how long the quoted header is.
        let extent = match (quote.first()? & 0x80 != 0, read_request) {
            (true, _) => Extent::Tagged,
            (false, false) => Extent::Untagged,
            (false, true) if quote.len() < QUOTE_MAX => Extent::Untagged,
            (false, true) => Extent::ReadRequest,
        };
        Quoted::copy(
            quote,
            take_u16::<{ Self::SEGMENT_LEN_AT }, 6>(front),
            extent,
        )
    }
}

#[cfg(any(test, MODULE))]
#[cfg_attr(MODULE, kernel::prelude::kunit_tests(iwarp_terminate))]
mod tests {
    use super::*;

    fn read_request_segment() -> [u8; QUOTE_MAX] {
        let mut octets = [0; QUOTE_MAX];
        for (octet, value) in octets.iter_mut().zip(0u8..) {
            *octet = value;
        }
        octets[0] = 0x41;
        octets[1] = 0x41;
        octets
    }

    #[test]
    fn layer_is_the_high_nibble_and_mdr_the_top_bits() {
        let segment = read_request_segment();
        let quoted = Quoted::from_segment(&segment, 46).unwrap();
        let first_word = |fault, quoted| {
            let octets = Terminate::for_fault(fault, quoted).encode();
            *octets.as_octets().first_chunk::<4>().unwrap()
        };
        assert_eq!(
            first_word(Fault::SourceInvalidStag, Some(&quoted)),
            [0x01, 0x00, 0xe0, 0x00]
        );
        assert_eq!(
            first_word(Fault::InvalidQueue, Some(&quoted)),
            [0x12, 0x01, 0xc0, 0x00]
        );
        assert_eq!(
            first_word(Fault::Crc, Some(&quoted)),
            [0x20, 0x02, 0x00, 0x00]
        );
    }

    #[test]
    fn terminate_quotes_headers_including_reserved_bits() {
        let mut segment = read_request_segment();
        segment[0] |= 0x3c;
        segment[1] |= 0x30;
        let quoted = Quoted::from_segment(&segment, 46).unwrap();
        assert_eq!(quoted.as_octets(), segment);
        assert_eq!(quoted.opcode(), Some(Opcode::ReadRequest));
        let octets = Terminate::for_fault(Fault::SourceBounds, Some(&quoted)).encode();
        assert_eq!(octets.as_octets().len(), 52);
        assert_eq!(&octets.as_octets()[4..6], [0, 46]);
        assert_eq!(&octets.as_octets()[6..], segment);
    }

    #[test]
    fn ddp_errors_of_a_read_request_leave_its_header_out() {
        let segment = read_request_segment();
        let quoted = Quoted::from_segment(&segment, 46).unwrap();
        let octets = Terminate::for_fault(Fault::MsnRange, Some(&quoted)).encode();
        assert_eq!(octets.as_octets().len(), 24);
        assert_eq!(&octets.as_octets()[6..], &segment[..18]);
    }

    #[test]
    fn local_and_llp_errors_quote_nothing() {
        let segment = read_request_segment();
        let quoted = Quoted::from_segment(&segment, 46).unwrap();
        for fault in [
            Fault::Local,
            Fault::LocalPlacement,
            Fault::Crc,
            Fault::Marker,
        ] {
            let terminate = Terminate::for_fault(fault, Some(&quoted));
            assert_eq!(terminate.quoted, None);
            assert_eq!(terminate.encode().as_octets().len(), 4);
        }
    }

    #[test]
    fn wrong_version_or_length_keeps_the_ddp_header_only() {
        let mut segment = read_request_segment();
        assert!(!Quoted::from_segment(&segment, 47)
            .unwrap()
            .has_read_request());
        segment[1] = 0x81;
        assert!(!Quoted::from_segment(&segment, 46)
            .unwrap()
            .has_read_request());
        segment[0] = 0xc1;
        assert_eq!(
            Quoted::from_segment(&segment, 46)
                .unwrap()
                .as_octets()
                .len(),
            14
        );
    }

    #[test]
    fn terminate_quotes_nothing_of_incomplete_header() {
        assert_eq!(Quoted::from_segment(&[], 0), None);
        assert_eq!(Quoted::from_segment(&[0xc1], 1), None);
        for len in 2u16..14 {
            assert_eq!(Quoted::from_segment(&[0xc1; 13][..len.into()], len), None);
        }
        for len in 2u16..18 {
            assert_eq!(Quoted::from_segment(&[0x41; 17][..len.into()], len), None);
        }
    }

    #[test]
    fn terminate_quotes_read_advanced_by_octets_sent() {
        let request = ReadRequest {
            sink_stag: crate::stag::Stag::new(0xaabb_cc01),
            sink_to: crate::stag::TaggedOffset::new(u64::MAX - 9),
            len: 1000,
            source_stag: crate::stag::Stag::new(7),
            source_to: crate::stag::TaggedOffset::new(0x1000),
        };
        let mut segment = read_request_segment();
        segment[18..].copy_from_slice(&request.encode());
        let quoted = Quoted::from_segment(&segment, 46).unwrap();
        assert_eq!(quoted.after(0), quoted);
        let moved = quoted.after(100);
        let octets = moved.as_octets();
        assert_eq!(&octets[..18], &segment[..18]);
        let after = ReadRequest::decode(octets[18..].try_into().unwrap());
        assert_eq!(after.sink_stag, request.sink_stag);
        assert_eq!(after.sink_to.raw(), 90);
        assert_eq!(after.len, 900);
        assert_eq!(after.source_stag, request.source_stag);
        assert_eq!(after.source_to.raw(), 0x1064);
    }

    #[test]
    fn zero_filled_and_truncated_terminates_are_decoded() {
        let mut octets = [0; 52];
        octets[0] = 0x12;
        octets[1] = 5;
        for len in 4..52 {
            let terminate = Terminate::decode(&octets[..len]).unwrap();
            assert_eq!(
                terminate.code,
                ErrorCode {
                    layer: 1,
                    etype: 2,
                    code: 5
                }
            );
            assert_eq!(terminate.quoted, None);
        }
        for len in 0..4 {
            assert_eq!(Terminate::decode(&octets[..len]), Err(Fault::HeaderLength));
        }
        octets[2] = 0xe0;
        octets[6] = 0x41;
        for len in 4..=52 {
            let terminate = Terminate::decode(&octets[..len]).unwrap();
            let kept = terminate
                .quoted
                .map_or(0, |quoted| quoted.as_octets().len());
            let expected = match len {
                ..24 => 0,
                24..52 => 18,
                _ => 46,
            };
            assert_eq!(kept, expected);
        }
    }
}
