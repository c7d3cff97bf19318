// SPDX-License-Identifier: GPL-2.0

//! All faults of a stream, and the table of how each is reported.
//!
//! A check returns a [`Fault`]; [`Fault::code`] is what the Terminate message says about it, and
//! [`ErrorCode::quoting`] which of the offending headers it quotes. Several faults may share a
//! code: the variant says which rule was broken.
//!
//! Pure, any context.
//!
//! RFC 5040, sections 4.8 and 7.1; RFC 5041, section 7.2; RFC 5044, section 8; RFC 6581, section 8;
//! RFC 7306, section 8.

/// A reason to end the stream.
///
/// Ordered by layer, error type and code of the Terminate message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fault {
    // RDMAP, Local Catastrophic.
    /// A local failure that no incoming message caused, or the consumer asked for a Terminate
    /// (RDMAP-140).
    Local,

    // RDMAP, Remote Protection.
    /// The source STag of a Read or Atomic Request is unknown, revoked or wrongly keyed
    /// (RDMAP-153).
    SourceInvalidStag,
    /// The source range of a Read or Atomic Request lies outside the region (RDMAP-155, -156).
    SourceBounds,
    /// The source region lacks the remote read or remote atomic right (RDMAP-158).
    SourceNoRight,
    /// The source region belongs to another protection domain or stream (RDMAP-154).
    SourceNotAssociated,
    /// Source offset plus size exceeds 64 bits (RDMAP-157).
    SourceWrap,
    /// A Send with Invalidate names an STag that exists but may not be invalidated on this stream
    /// (RDMAP-93, -166).
    InvalidateForbidden,

    // RDMAP, Remote Operation.
    /// The RDMAP version is not 1 (RDMAP-24).
    RdmapVersion,
    /// The opcode is unassigned, or belongs to an extension that is off (RDMAP-27, EXT-4).
    OpcodeReserved,
    /// The opcode does not go with the T bit (RDMAP-23).
    OpcodeModel,
    /// Another message begins, or the opcode changes, inside an unfinished message (DDP-22, -44).
    OpcodeInterleaved,
    /// A Read Response arrived though no request is outstanding or the oldest is not a Read
    /// (RDMAP-75).
    ResponseUnsolicited,
    /// An Atomic Request carries an operation other than FetchAdd and CmpSwap (EXT-39).
    AtomicOperation,
    /// A Flush asks for no placement that exists, or for none.
    FlushKind,
    /// The first FPDU of a peer-to-peer connection is not the agreed RTR (MPA-40).
    NotRtr,
    /// The header of a Read Request, an Atomic message or a Terminate is not exactly as long as it
    /// must be, or is spread over segments (RDMAP-28, EXT-13).
    HeaderLength,
    /// Immediate Data is not exactly 8 octets in one segment (EXT-71).
    ImmediateLength,
    /// An Atomic Write is not exactly 8 octets in one segment.
    AtomicWriteLength,
    /// The target of an atomic operation or an Atomic Write is not aligned to 8 octets (EXT-25,
    /// -77).
    AtomicUnaligned,
    /// An Atomic Response does not carry the identifier of the request it answers (EXT-20).
    AtomicIdentifier,
    /// A Read Response ends before all octets of the Read were placed (RDMAP-77).
    ResponseShort,
    /// A Send with Invalidate names an STag that does not exist (RDMAP-93).
    InvalidateUnknown,

    // DDP, Local Catastrophic.
    /// A local failure while placing data.
    LocalPlacement,

    // DDP, Tagged Buffer.
    /// The STag of a Write is unknown, revoked or wrongly keyed (DDP-76).
    TaggedInvalidStag,
    /// The region under the STag of a Write does not allow it (DDP-77); DDP has no code for rights.
    TaggedNoRight,
    /// A Read Response names another STag than the request (RDMAP-77).
    ResponseStag,
    /// The segment lies outside the region (DDP-78, -79).
    TaggedBounds,
    /// A Read Response lies outside the sink of the Read, or brings more than was asked for
    /// (RDMAP-77).
    ResponseBounds,
    /// The region belongs to another protection domain or stream (DDP-88, -89).
    TaggedNotAssociated,
    /// Tagged offset plus payload exceeds 64 bits (DDP-80).
    TaggedWrap,
    /// The DDP version of a tagged segment is not 1 (DDP-19).
    TaggedVersion,

    // DDP, Untagged Buffer.
    /// The queue number does not exist or is not the one of the opcode (DDP-69, RDMAP-60, EXT-10).
    InvalidQueue,
    /// No receive buffer is posted for the message (DDP-70, RDMAP-89, EXT-66).
    NoBuffer,
    /// More Read and Atomic Requests than the inbound depth allows (RDMAP-129, -152).
    ReadDepth,
    /// An Atomic Response arrived though no Atomic Request waits for one (EXT-46).
    AtomicUnsolicited,
    /// The message sequence number is not the next one of its queue (DDP-74).
    MsnRange,
    /// The message offset lies outside the buffer, or is not 0 where it must be (DDP-72,
    /// RDMAP-150).
    MessageOffset,
    /// The last segment of a Send does not end where its other segments say it must (DDP-15, -37).
    MessageIncomplete,
    /// The message does not fit into its buffer (DDP-73, RDMAP-82).
    MessageTooLong,
    /// The DDP version of an untagged segment is not 1 (DDP-19).
    UntaggedVersion,

    // LLP, MPA.
    /// The CRC of an FPDU is wrong (MPA-20).
    Crc,
    /// Markers and lengths disagree on where an FPDU begins (MPA-27).
    Marker,
    /// The ULPDU is too short for its DDP header (DDP-31, MPA-27, MPA-31).
    UlpduTooShort,
    /// A local failure after the Reply of an enhanced start-up (MPA-46).
    LocalStartup,
    /// The Responder wants more inbound Reads than the Initiator can serve (MPA-38).
    InsufficientIrd,
    /// The Reply offers no RTR kind that the Initiator can send (MPA-43).
    NoMatchingRtr,
}

impl Fault {
    /// Every fault, in order.
    pub const ALL: [Self; 46] = [
        Self::Local,
        Self::SourceInvalidStag,
        Self::SourceBounds,
        Self::SourceNoRight,
        Self::SourceNotAssociated,
        Self::SourceWrap,
        Self::InvalidateForbidden,
        Self::RdmapVersion,
        Self::OpcodeReserved,
        Self::OpcodeModel,
        Self::OpcodeInterleaved,
        Self::ResponseUnsolicited,
        Self::AtomicOperation,
        Self::FlushKind,
        Self::NotRtr,
        Self::HeaderLength,
        Self::ImmediateLength,
        Self::AtomicWriteLength,
        Self::AtomicUnaligned,
        Self::AtomicIdentifier,
        Self::ResponseShort,
        Self::InvalidateUnknown,
        Self::LocalPlacement,
        Self::TaggedInvalidStag,
        Self::TaggedNoRight,
        Self::ResponseStag,
        Self::TaggedBounds,
        Self::ResponseBounds,
        Self::TaggedNotAssociated,
        Self::TaggedWrap,
        Self::TaggedVersion,
        Self::InvalidQueue,
        Self::NoBuffer,
        Self::ReadDepth,
        Self::AtomicUnsolicited,
        Self::MsnRange,
        Self::MessageOffset,
        Self::MessageIncomplete,
        Self::MessageTooLong,
        Self::UntaggedVersion,
        Self::Crc,
        Self::Marker,
        Self::UlpduTooShort,
        Self::LocalStartup,
        Self::InsufficientIrd,
        Self::NoMatchingRtr,
    ];

    /// Returns what a Terminate message says about this fault. The crate has no other such table.
    #[inline]
    pub const fn code(self) -> ErrorCode {
        let (class, code) = match self {
            Self::Local => (ErrorClass::RdmapLocal, 0xff),

            Self::SourceInvalidStag => (ErrorClass::RemoteProtection, 0x00),
            Self::SourceBounds => (ErrorClass::RemoteProtection, 0x01),
            Self::SourceNoRight => (ErrorClass::RemoteProtection, 0x02),
            Self::SourceNotAssociated => (ErrorClass::RemoteProtection, 0x03),
            Self::SourceWrap => (ErrorClass::RemoteProtection, 0x04),
            Self::InvalidateForbidden => (ErrorClass::RemoteProtection, 0x09),

            Self::RdmapVersion => (ErrorClass::RemoteOperation, 0x05),
            Self::OpcodeReserved => (ErrorClass::RemoteOperation, 0x06),
            Self::OpcodeModel => (ErrorClass::RemoteOperation, 0x06),
            Self::OpcodeInterleaved => (ErrorClass::RemoteOperation, 0x06),
            Self::ResponseUnsolicited => (ErrorClass::RemoteOperation, 0x06),
            Self::AtomicOperation => (ErrorClass::RemoteOperation, 0x06),
            Self::FlushKind => (ErrorClass::RemoteOperation, 0x06),
            Self::NotRtr => (ErrorClass::RemoteOperation, 0x06),
            Self::HeaderLength => (ErrorClass::RemoteOperation, 0x07),
            Self::ImmediateLength => (ErrorClass::RemoteOperation, 0x07),
            Self::AtomicWriteLength => (ErrorClass::RemoteOperation, 0x07),
            Self::AtomicUnaligned => (ErrorClass::RemoteOperation, 0x07),
            Self::AtomicIdentifier => (ErrorClass::RemoteOperation, 0x07),
            Self::ResponseShort => (ErrorClass::RemoteOperation, 0x07),
            Self::InvalidateUnknown => (ErrorClass::RemoteOperation, 0x09),

            Self::LocalPlacement => (ErrorClass::DdpLocal, 0x00),

            Self::TaggedInvalidStag => (ErrorClass::TaggedBuffer, 0x00),
            Self::TaggedNoRight => (ErrorClass::TaggedBuffer, 0x00),
            Self::ResponseStag => (ErrorClass::TaggedBuffer, 0x00),
            Self::TaggedBounds => (ErrorClass::TaggedBuffer, 0x01),
            Self::ResponseBounds => (ErrorClass::TaggedBuffer, 0x01),
            Self::TaggedNotAssociated => (ErrorClass::TaggedBuffer, 0x02),
            Self::TaggedWrap => (ErrorClass::TaggedBuffer, 0x03),
            Self::TaggedVersion => (ErrorClass::TaggedBuffer, 0x04),

            Self::InvalidQueue => (ErrorClass::UntaggedBuffer, 0x01),
            Self::NoBuffer => (ErrorClass::UntaggedBuffer, 0x02),
            Self::ReadDepth => (ErrorClass::UntaggedBuffer, 0x02),
            Self::AtomicUnsolicited => (ErrorClass::UntaggedBuffer, 0x02),
            Self::MsnRange => (ErrorClass::UntaggedBuffer, 0x03),
            Self::MessageOffset => (ErrorClass::UntaggedBuffer, 0x04),
            Self::MessageIncomplete => (ErrorClass::UntaggedBuffer, 0x04),
            Self::MessageTooLong => (ErrorClass::UntaggedBuffer, 0x05),
            Self::UntaggedVersion => (ErrorClass::UntaggedBuffer, 0x06),

            Self::Crc => (ErrorClass::Mpa, 0x02),
            Self::Marker => (ErrorClass::Mpa, 0x03),
            Self::UlpduTooShort => (ErrorClass::Mpa, 0x03),
            Self::LocalStartup => (ErrorClass::Mpa, 0x05),
            Self::InsufficientIrd => (ErrorClass::Mpa, 0x06),
            Self::NoMatchingRtr => (ErrorClass::Mpa, 0x07),
        };
        class.code(code)
    }
}

impl Fault {
    /// Returns what is wrong, in words for an administrator.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Local => "local failure",
            Self::SourceInvalidStag => "unknown or revoked STag of the source",
            Self::SourceBounds => "source outside its region",
            Self::SourceNoRight => "source without the right to be read or changed",
            Self::SourceNotAssociated => "source of another protection domain or stream",
            Self::SourceWrap => "source beyond the end of the address space",
            Self::InvalidateForbidden => "STag that this stream may not invalidate",
            Self::RdmapVersion => "wrong RDMAP version",
            Self::OpcodeReserved => "reserved opcode",
            Self::OpcodeModel => "opcode that does not go with the T bit",
            Self::OpcodeInterleaved => "message inside an unfinished message",
            Self::ResponseUnsolicited => "Read Response without a Read",
            Self::AtomicOperation => "unknown atomic operation",
            Self::FlushKind => "unknown kind of Flush",
            Self::NotRtr => "first message is not the agreed ready-to-receive message",
            Self::HeaderLength => "header of a wrong length",
            Self::ImmediateLength => "Immediate Data of a wrong length",
            Self::AtomicWriteLength => "Atomic Write of a wrong length",
            Self::AtomicUnaligned => "target of an atomic operation not aligned",
            Self::AtomicIdentifier => "Atomic Response with a wrong identifier",
            Self::ResponseShort => "Read Response ends too early",
            Self::InvalidateUnknown => "unknown STag to invalidate",
            Self::LocalPlacement => "local failure to place the data",
            Self::TaggedInvalidStag => "unknown or revoked STag",
            Self::TaggedNoRight => "region without the right to be written",
            Self::ResponseStag => "Read Response with a wrong STag",
            Self::TaggedBounds => "data outside its region",
            Self::ResponseBounds => "Read Response outside the sink of the Read",
            Self::TaggedNotAssociated => "region of another protection domain or stream",
            Self::TaggedWrap => "data beyond the end of the address space",
            Self::TaggedVersion => "wrong DDP version of a tagged segment",
            Self::InvalidQueue => "wrong queue number",
            Self::NoBuffer => "no receive posted",
            Self::ReadDepth => "more Reads at once than agreed",
            Self::AtomicUnsolicited => "Atomic Response without an Atomic Request",
            Self::MsnRange => "wrong message sequence number",
            Self::MessageOffset => "wrong message offset",
            Self::MessageIncomplete => "message with a gap",
            Self::MessageTooLong => "message longer than the receive",
            Self::UntaggedVersion => "wrong DDP version of an untagged segment",
            Self::Crc => "wrong CRC",
            Self::Marker => "Marker and length disagree",
            Self::UlpduTooShort => "FPDU too short for its header",
            Self::LocalStartup => "local failure after the MPA Reply",
            Self::InsufficientIrd => "peer wants more Reads at once than this end can serve",
            Self::NoMatchingRtr => "no ready-to-receive message that both ends know",
        }
    }
}

/// Layer and error type of an error in a Terminate message (RFC 5040, section 4.8, figure 10;
/// RDMAP-38).
///
/// The value has the layer in its high nibble and the error type in its low one: the first octet of
/// a Terminate header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ErrorClass {
    /// RDMAP: Local Catastrophic Error.
    RdmapLocal = 0x00,
    /// RDMAP: Remote Protection Error.
    RemoteProtection = 0x01,
    /// RDMAP: Remote Operation Error.
    RemoteOperation = 0x02,
    /// DDP: Local Catastrophic Error.
    DdpLocal = 0x10,
    /// DDP: Tagged Buffer Error.
    TaggedBuffer = 0x11,
    /// DDP: Untagged Buffer Error.
    UntaggedBuffer = 0x12,
    /// LLP: MPA Error.
    Mpa = 0x20,
}

impl ErrorClass {
    /// Every class, in order.
    const ALL: [Self; 7] = [
        Self::RdmapLocal,
        Self::RemoteProtection,
        Self::RemoteOperation,
        Self::DdpLocal,
        Self::TaggedBuffer,
        Self::UntaggedBuffer,
        Self::Mpa,
    ];

    /// Returns layer and error type in words.
    pub const fn text(self) -> &'static str {
        match self {
            Self::RdmapLocal => "RDMAP local catastrophic error",
            Self::RemoteProtection => "RDMAP remote protection error",
            Self::RemoteOperation => "RDMAP remote operation error",
            Self::DdpLocal => "DDP local catastrophic error",
            Self::TaggedBuffer => "DDP tagged buffer error",
            Self::UntaggedBuffer => "DDP untagged buffer error",
            Self::Mpa => "MPA error",
        }
    }

    /// Returns the error of this class with that error code.
    const fn code(self, code: u8) -> ErrorCode {
        // CAST: The value of a `repr(u8)` enum.
        let octet = self as u8;
        ErrorCode {
            layer: octet >> 4,
            etype: octet & 0x0f,
            code,
        }
    }
}

/// The three numbers that classify an error in a Terminate message.
///
/// Those of a received Terminate are kept as they are, whether defined or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ErrorCode {
    /// 0 RDMAP, 1 DDP, 2 LLP (MPA); 4 bits.
    pub layer: u8,
    /// Error type inside the layer; 4 bits.
    pub etype: u8,
    /// Error code inside the type.
    pub code: u8,
}

impl ErrorCode {
    /// Returns the class, or [`None`] if these numbers are undefined.
    pub fn class(self) -> Option<ErrorClass> {
        let same = |class: &ErrorClass| class.code(self.code) == self;
        ErrorClass::ALL.into_iter().find(same)
    }

    /// Returns layer and error type in words.
    pub fn class_text(self) -> &'static str {
        self.class().map_or("undefined error", ErrorClass::text)
    }

    /// Returns the error code in words, those of the RFCs.
    pub fn text(self) -> &'static str {
        let text = match self.class() {
            Some(ErrorClass::RemoteProtection) => match self.code {
                0x00 => Some("invalid STag"),
                0x01 => Some("base or bounds violation"),
                0x02 => Some("access rights violation"),
                0x03 => Some("STag of another stream"),
                0x04 => Some("tagged offset wraps"),
                0x09 => Some("STag cannot be invalidated"),
                _ => None,
            },
            Some(ErrorClass::RemoteOperation) => match self.code {
                0x05 => Some("invalid RDMAP version"),
                0x06 => Some("unexpected opcode"),
                0x07 => Some("catastrophic error of the stream"),
                0x08 => Some("catastrophic error of the device"),
                0x09 => Some("STag cannot be invalidated"),
                _ => None,
            },
            Some(ErrorClass::TaggedBuffer) => match self.code {
                0x00 => Some("invalid STag"),
                0x01 => Some("base or bounds violation"),
                0x02 => Some("STag of another stream"),
                0x03 => Some("tagged offset wraps"),
                0x04 => Some("invalid DDP version"),
                _ => None,
            },
            Some(ErrorClass::UntaggedBuffer) => match self.code {
                0x01 => Some("invalid queue number"),
                0x02 => Some("no buffer available"),
                0x03 => Some("message sequence number out of range"),
                0x04 => Some("invalid message offset"),
                0x05 => Some("message too long for the buffer"),
                0x06 => Some("invalid DDP version"),
                _ => None,
            },
            Some(ErrorClass::Mpa) => match self.code {
                0x01 => Some("TCP connection lost"),
                0x02 => Some("CRC error"),
                0x03 => Some("Marker and length mismatch"),
                0x04 => Some("invalid MPA frame"),
                0x05 => Some("local catastrophic error"),
                0x06 => Some("insufficient IRD"),
                0x07 => Some("no matching ready-to-receive message"),
                _ => None,
            },
            Some(ErrorClass::RdmapLocal | ErrorClass::DdpLocal) | None => None,
        };
        text.unwrap_or("unspecified")
    }

    /// Returns the first two octets of a Terminate header: layer and error type, then the code.
    #[inline]
    pub const fn octets(self) -> [u8; 2] {
        [(self.layer << 4) | (self.etype & 0x0f), self.code]
    }

    /// Returns which parts of the offending segment the Terminate quotes for this error
    /// (RFC 5040, section 4.8, figure 10, and section 7.1; RDMAP-40).
    pub fn quoting(self) -> Quoting {
        match self.class() {
            // RDMAP-142: every RDMAP error of a Read Request sends its header back.
            Some(ErrorClass::RemoteProtection | ErrorClass::RemoteOperation) => {
                Quoting::SegmentAndRead
            }
            Some(ErrorClass::TaggedBuffer | ErrorClass::UntaggedBuffer) => Quoting::Segment,
            // RDMAP-44: a Local Catastrophic error quotes nothing; LLP errors have no DDP header.
            Some(ErrorClass::RdmapLocal | ErrorClass::DdpLocal | ErrorClass::Mpa) | None => {
                Quoting::Nothing
            }
        }
    }
}

/// Which parts of the offending segment a Terminate message carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quoting {
    /// None: M, D and R are 0.
    Nothing,
    /// DDP Segment Length and DDP header: M and D are 1.
    Segment,
    /// The same, and the RDMAP header if the segment was a Read Request: then R is 1 too.
    SegmentAndRead,
}

#[cfg(any(test, MODULE))]
#[cfg_attr(MODULE, kernel::prelude::kunit_tests(iwarp_fault))]
mod tests {
    use super::*;

    #[test]
    fn fault_list_has_each_fault_once_in_order() {
        for (place, fault) in Fault::ALL.into_iter().enumerate() {
            assert_eq!(fault as usize, place);
        }
        assert_eq!(Fault::ALL.last(), Some(&Fault::NoMatchingRtr));
    }

    #[test]
    fn each_fault_and_code_has_a_description() {
        for (place, fault) in Fault::ALL.into_iter().enumerate() {
            let text = fault.text();
            assert!(!text.is_empty());
            assert!(Fault::ALL
                .iter()
                .skip(place + 1)
                .all(|other| other.text() != text));
            let code = fault.code();
            let local = matches!(
                code.class(),
                Some(ErrorClass::RdmapLocal | ErrorClass::DdpLocal)
            );
            let unspecified = code.text() == "unspecified";
            assert_eq!(unspecified, local);
            assert!(code.class_text() != "undefined error");
        }
        let undefined = ErrorCode {
            layer: 3,
            etype: 0,
            code: 0,
        };
        assert_eq!(undefined.class_text(), "undefined error");
        assert_eq!(undefined.text(), "unspecified");
    }

    #[test]
    fn fault_list_is_ordered_by_code() {
        let number = |fault: Fault| {
            let ErrorCode { layer, etype, code } = fault.code();
            (layer, etype, code)
        };
        assert!(Fault::ALL
            .windows(2)
            .all(|pair| number(pair[0]) <= number(pair[1])));
    }

    #[test]
    fn fault_codes_are_in_the_rfc_tables() {
        for fault in Fault::ALL {
            let code = fault.code().code;
            let listed = match fault.code().class().unwrap() {
                ErrorClass::RdmapLocal => true,
                ErrorClass::RemoteProtection => matches!(code, 0..=4 | 9 | 0xff),
                ErrorClass::RemoteOperation => matches!(code, 5..=9 | 0xff),
                ErrorClass::DdpLocal => code == 0,
                ErrorClass::TaggedBuffer => matches!(code, 0..=4),
                ErrorClass::UntaggedBuffer => matches!(code, 1..=6),
                // 1 and 4 are never sent.
                ErrorClass::Mpa => matches!(code, 2 | 3 | 5..=7),
            };
            assert!(listed);
        }
    }

    #[test]
    fn error_class_follows_from_layer_and_type() {
        use ErrorClass::*;
        let classes = [
            (0, 0, RdmapLocal, Quoting::Nothing),
            (0, 1, RemoteProtection, Quoting::SegmentAndRead),
            (0, 2, RemoteOperation, Quoting::SegmentAndRead),
            (1, 0, DdpLocal, Quoting::Nothing),
            (1, 1, TaggedBuffer, Quoting::Segment),
            (1, 2, UntaggedBuffer, Quoting::Segment),
            (2, 0, Mpa, Quoting::Nothing),
        ];
        for octet in 0..=u8::MAX {
            let (layer, etype) = (octet >> 4, octet & 0x0f);
            let listed = classes
                .iter()
                .find(|line| (line.0, line.1) == (layer, etype));
            for code in [0, 1, 0xff] {
                let error = ErrorCode { layer, etype, code };
                assert_eq!(error.octets(), [octet, code]);
                assert_eq!(error.class(), listed.map(|line| line.2));
                let quoting = listed.map_or(Quoting::Nothing, |line| line.3);
                assert_eq!(error.quoting(), quoting);
                assert!(listed.is_none_or(|line| line.2.code(code) == error));
            }
        }
    }
}
