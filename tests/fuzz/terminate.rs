// SPDX-License-Identifier: GPL-2.0

//! The Terminate parser and builder.

use iwarp::{
    fault::{
        Fault,
        Quoting, //
    },
    receiver::RECEIVE_HEADER_MAX,
    terminate::{
        Quoted,
        Terminate, //
    }, //
};

use crate::source::Source;

/// Parses octets as a Terminate; and builds the Terminate for a fault of octets as a segment.
pub fn run(octets: &[u8]) {
    let mut source = Source::new(octets);
    let fault = source.choose(&Fault::ALL);
    let (len, sent) = (source.u16(), source.u32());
    let octets = source.rest();
    read(octets);
    build(fault, octets, len, sent);
}

fn read(octets: &[u8]) {
    let Ok(terminate) = Terminate::decode(octets) else {
        assert!(octets.len() < Terminate::LEN_MIN);
        return;
    };
    let code = terminate.code;
    assert_eq!([(code.layer << 4) | code.etype, code.code], octets[..2]);
    let control = octets[2];
    if let Some(quoted) = &terminate.quoted {
        assert!(control & 0x40 != 0);
        assert_eq!(quoted.segment_len().to_be_bytes(), octets[4..6]);
        let header = quoted.as_octets();
        assert_eq!(header, &octets[6..][..header.len()]);
        let expected = match (header[0] & 0x80 != 0, quoted.has_read_request()) {
            (true, read) => {
                assert!(!read);
                14
            }
            (false, false) => 18,
            (false, true) => {
                assert!(control & 0x20 != 0);
                46
            }
        };
        assert_eq!(header.len(), expected);
    } else {
        assert!(control & 0x40 == 0 || octets.len() < 24);
    }
    // The parsed Terminate survives another round, whatever was dropped.
    let encoded = terminate.encode();
    assert!(encoded.as_octets().len() <= octets.len());
    assert_eq!(Terminate::decode(encoded.as_octets()), Ok(terminate));
}

fn build(fault: Fault, segment: &[u8], len: u16, sent: u32) {
    let header = &segment[..segment.len().min(RECEIVE_HEADER_MAX)];
    // The segment may be longer than what the receiver parses, and never shorter than that.
    let len = if header.len() < RECEIVE_HEADER_MAX {
        header.len() as u16
    } else {
        len.max(RECEIVE_HEADER_MAX as u16)
    };
    let quoted = Quoted::from_segment(header, len);
    if let Some(quoted) = &quoted {
        assert_eq!(quoted.segment_len(), len);
        assert!(header.starts_with(quoted.as_octets()));
        let moved = quoted.after(sent);
        let same = if quoted.has_read_request() { 18 } else { 46 };
        let same = same.min(quoted.as_octets().len());
        assert_eq!(moved.as_octets().len(), quoted.as_octets().len());
        assert_eq!(moved.as_octets()[..same], quoted.as_octets()[..same]);
        assert_eq!(quoted.after(0), *quoted);
    } else {
        assert!(len < 18);
    }
    let terminate = Terminate::for_fault(fault, quoted.as_ref());
    let allowed = fault.code().quoting();
    match terminate.quoted {
        None => assert!(allowed == Quoting::Nothing || quoted.is_none()),
        Some(kept) => {
            assert_ne!(allowed, Quoting::Nothing);
            assert!(!kept.has_read_request() || allowed == Quoting::SegmentAndRead);
            assert!(header.starts_with(kept.as_octets()));
        }
    }
    let encoded = terminate.encode();
    assert!((Terminate::LEN_MIN..=Terminate::LEN_MAX).contains(&encoded.as_octets().len()));
    assert_eq!(Terminate::decode(encoded.as_octets()), Ok(terminate));
}
