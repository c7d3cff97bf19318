// SPDX-License-Identifier: GPL-2.0

//! `decode(encode(x)) == x` and `encode(decode(b)) == b`, over the whole domain where it is at most
//! 2^24.

use bolero::check;
use iwarp::{
    atomic::{
        AtomicRequest,
        AtomicResponse, //
    },
    ddp::{
        Control,
        MessagePart,
        Model,
        Msn,
        TaggedHeader,
        UntaggedHeader, //
    },
    fault::{
        ErrorCode,
        Fault, //
    },
    mpa::{
        start::{
            Enhanced,
            FrameKind,
            Revision,
            StartError,
            StartHeader,
            WireDepth, //
        },
        Crc,
        Markers, //
    },
    rdmap::{
        Extensions,
        Opcode,
        ReadRequest, //
    },
    stag::Stag,
    terminate::Terminate, //
};

/// Returns the meaning of two control octets by the figures of the RFCs.
fn control_oracle(octets: [u8; 2], extensions: Extensions) -> Result<(u8, bool, bool), Fault> {
    let word = u16::from_be_bytes(octets);
    let bits = |from: u32, count: u32| (word >> (16 - from - count)) & ((1 << count) - 1);
    let tagged = bits(0, 1) == 1;
    let last = bits(1, 1) == 1;
    if bits(6, 2) != 1 {
        return Err(if tagged {
            Fault::TaggedVersion
        } else {
            Fault::UntaggedVersion
        });
    }
    if bits(8, 2) != 1 {
        return Err(Fault::RdmapVersion);
    }
    let opcode = bits(12, 4);
    let known = match extensions {
        Extensions::Off => opcode < 8,
        Extensions::Rfc7306 => opcode < 12,
        Extensions::SendImmediate => opcode < 12 || opcode == 15,
    };
    if !known {
        return Err(Fault::OpcodeReserved);
    }
    if tagged != (opcode == 0 || opcode == 2) {
        return Err(Fault::OpcodeModel);
    }
    Ok((opcode as u8, tagged, last))
}

#[test]
fn every_control_word() {
    for word in 0..=u16::MAX {
        let octets = word.to_be_bytes();
        for extensions in [
            Extensions::Off,
            Extensions::Rfc7306,
            Extensions::SendImmediate,
        ] {
            let decoded = Control::decode(&octets, extensions);
            match control_oracle(octets, extensions) {
                Err(fault) => assert_eq!(decoded, Err(fault), "{octets:02x?}"),
                Ok((opcode, tagged, last)) => {
                    let control = decoded.unwrap();
                    assert_eq!(control.opcode.to_wire() & 15, opcode);
                    assert_eq!(control.opcode.model() == Model::Tagged, tagged);
                    assert_eq!(control.last == MessagePart::Final, last);
                    // Reserved bits are ignored and not passed on (DDP-18, RDMAP-25), except that
                    // of the Send with Immediate.
                    let reserved = if opcode == 15 { 0x20 } else { 0x30 };
                    assert_eq!(control.encode(), [octets[0] & !0x3c, octets[1] & !reserved]);
                }
            }
        }
    }
}

#[test]
fn every_opcode() {
    for opcode in 0..16 {
        let assigned = Opcode::from_wire(opcode, Extensions::Rfc7306);
        assert_eq!(assigned.is_some(), opcode < 12);
        let base = Opcode::from_wire(opcode, Extensions::Off);
        assert_eq!(base, assigned.filter(|_| opcode < 8));
        if let Some(assigned) = assigned {
            assert_eq!(assigned.to_wire(), opcode);
            assert_eq!(
                assigned.queue().is_none(),
                assigned.model() == Model::Tagged
            );
        }
    }
}

#[test]
fn every_stag_index_and_key() {
    for index in 0..=Stag::INDEX_MAX {
        let stag = Stag::from_parts(index, 0xa5);
        assert_eq!(stag.raw(), (index << 8) | 0xa5);
        assert_eq!((stag.index(), stag.key()), (index, 0xa5));
    }
    for key in 0..=u8::MAX {
        assert_eq!(Stag::from_parts(0xff12_3456, key).index(), 0x12_3456);
        assert_eq!(Stag::from_parts(0x12_3456, key).key(), key);
    }
}

#[test]
fn msn_wraps_to_zero() {
    assert_eq!(Msn::FIRST.raw(), 1);
    let mut msn = Msn::new(u32::MAX - 1);
    assert_eq!(msn.advance().raw(), u32::MAX - 1);
    assert_eq!(msn.advance().raw(), u32::MAX);
    assert_eq!(msn.advance().raw(), 0);
    assert_eq!(msn.raw(), 1);
}

#[test]
fn every_terminate_control_without_quote() {
    for classes in 0..=u16::MAX {
        let [first, code] = classes.to_be_bytes();
        for reserved in [0, 0x1f] {
            let octets = [first, code, reserved, reserved];
            let terminate = Terminate::decode(&octets).unwrap();
            let ErrorCode {
                layer,
                etype,
                code: number,
            } = terminate.code;
            assert_eq!((layer, etype, number), (first >> 4, first & 15, code));
            assert_eq!(terminate.encode().as_octets(), [first, code, 0, 0]);
        }
    }
}

#[test]
fn every_start_flag_and_revision() {
    for kind in [FrameKind::Request, FrameKind::Reply] {
        let key = match kind {
            FrameKind::Request => b"MPA ID Req Frame",
            FrameKind::Reply => b"MPA ID Rep Frame",
        };
        for word in 0..=u16::MAX {
            let [flags, revision] = word.to_be_bytes();
            let mut octets = [0; 20];
            octets[..16].copy_from_slice(key);
            octets[16..].copy_from_slice(&[flags, revision, 0, 4]);
            let header = match StartHeader::decode(&octets, kind) {
                Ok(header) => header,
                Err(error) => {
                    assert_eq!(error, StartError::Revision);
                    assert!(revision != 1 && revision != 2);
                    continue;
                }
            };
            assert_eq!(header.revision == Revision::Two, revision == 2);
            assert_eq!(header.markers == Markers::On, flags & 0x80 != 0);
            assert_eq!(header.crc == Crc::On, flags & 0x40 != 0);
            assert_eq!(
                header.rejected,
                kind == FrameKind::Reply && flags & 0x20 != 0
            );
            assert_eq!(header.enhanced, revision == 2 && flags & 0x10 != 0);
            let mut meant = 0xc0;
            if kind == FrameKind::Reply {
                meant |= 0x20;
            }
            if revision == 2 {
                meant |= 0x10;
            }
            // The Send with Immediate: one reserved flag offers it, another accepts it, without the
            // first.
            let (agrees, flag) = match kind {
                FrameKind::Request => (flags & 1 != 0, 1),
                FrameKind::Reply => (flags & 3 == 2, 2),
            };
            assert_eq!(header.send_immediate, agrees);
            if agrees {
                meant |= flag;
            }
            // The exchange of features likewise, but nobody who sets both flags means it.
            let flag = match kind {
                FrameKind::Request => 4,
                FrameKind::Reply => 8,
            };
            assert_eq!(header.features, flags & 12 == flag);
            if header.features {
                meant |= flag;
            }
            octets[16] &= meant;
            assert_eq!(header.encode(), octets);
        }
    }
}

#[test]
fn every_private_data_length() {
    for len in 0..=u16::MAX {
        let mut octets = *b"MPA ID Req Frame\x50\x02\x00\x00";
        octets[18..].copy_from_slice(&len.to_be_bytes());
        let expected = match len {
            0..=3 => Err(StartError::EnhancedLength),
            4..=512 => Ok(len),
            _ => Err(StartError::PrivateDataLength),
        };
        let header = StartHeader::decode(&octets, FrameKind::Request);
        assert_eq!(header.map(|header| header.private_len), expected);
        octets[16] = 0x40;
        let header = StartHeader::decode(&octets, FrameKind::Request);
        assert_eq!(header.is_ok(), len <= 512);
    }
}

#[test]
fn every_word_of_enhanced_data() {
    for word in 0..=u16::MAX {
        let [a, b] = word.to_be_bytes();
        for octets in [[a, b, 0, 0], [0, 0, a, b], [a, b, b, a]] {
            let enhanced = Enhanced::decode(&octets);
            assert_eq!(enhanced.encode(), octets);
            let ird = u16::from_be_bytes([octets[0], octets[1]]);
            assert_eq!(enhanced.peer_to_peer, ird & 0x8000 != 0);
            let depth = ird & 0x3fff;
            assert_eq!(enhanced.ird.get(), (depth != 0x3fff).then_some(depth));
        }
        assert_eq!(WireDepth::new(word).get(), Some(word.min(0x3ffe)));
    }
}

/// Replaces the control octets.
fn with_control<const N: usize>(mut octets: [u8; N], control: [u8; 2]) -> [u8; N] {
    octets[..2].copy_from_slice(&control);
    octets
}

#[test]
fn tagged_headers() {
    check!().with_type().for_each(|octets: &[u8; 14]| {
        let mut octets = *octets;
        match TaggedHeader::decode(&octets, Extensions::Rfc7306) {
            Ok(header) => {
                octets[0] &= !0x3c;
                octets[1] &= !0x30;
                assert_eq!(header.encode(), octets);
                assert_eq!(TaggedHeader::decode(&octets, Extensions::Off), Ok(header));
            }
            Err(_) => {
                octets = with_control(octets, [0xc1, 0x40 | octets[1] & 2]);
                let header = TaggedHeader::decode(&octets, Extensions::Off).unwrap();
                assert_eq!(header.encode(), octets);
            }
        }
    });
}

#[test]
fn untagged_headers() {
    check!()
        .with_type()
        .for_each(|(octets, opcode): &([u8; 18], u8)| {
            let mut octets = *octets;
            let opcode = [1, 3, 4, 5, 6, 7, 8, 9, 10, 11][usize::from(opcode % 10)];
            octets = with_control(octets, [octets[0] & 0x40 | 1, 0x40 | opcode]);
            let header = UntaggedHeader::decode(&octets, Extensions::Rfc7306).unwrap();
            assert_eq!(header.encode(), octets);
            octets[0] |= 0x3c;
            octets[1] |= 0x30;
            assert_eq!(
                UntaggedHeader::decode(&octets, Extensions::Rfc7306),
                Ok(header)
            );
            octets[0] |= 0x80;
            assert_eq!(
                UntaggedHeader::decode(&octets, Extensions::Rfc7306),
                Err(Fault::OpcodeModel)
            );
        });
}

#[test]
fn header_of_other_ddp_model_is_refused() {
    let mut octets = [0; 18];
    octets[..2].copy_from_slice(&[0xc1, 0x40]);
    assert_eq!(
        UntaggedHeader::decode(&octets, Extensions::Off),
        Err(Fault::OpcodeModel)
    );
    let mut octets = [0; 14];
    octets[..2].copy_from_slice(&[0x41, 0x43]);
    assert_eq!(
        TaggedHeader::decode(&octets, Extensions::Off),
        Err(Fault::OpcodeModel)
    );
}

#[test]
fn read_requests() {
    check!().with_type().for_each(|octets: &[u8; 28]| {
        assert_eq!(ReadRequest::decode(octets).encode(), *octets);
    });
}

#[test]
fn atomic_requests() {
    check!().with_type().for_each(|octets: &[u8; 52]| {
        let mut octets = *octets;
        let decoded = AtomicRequest::decode(&octets);
        octets[..3].fill(0);
        octets[3] &= 0x0f;
        match octets[3] {
            0 => octets[36..].copy_from_slice(&[[0; 8], [0xff; 8]].concat()),
            1 => {
                // The Swap of the first draft: all bits, whatever the masks (EXT-36, -81).
                octets[28..].copy_from_slice(&[[0xff; 8], [0; 8], [0xff; 8]].concat());
            }
            2 => {}
            _ => {
                assert_eq!(decoded, Err(Fault::AtomicOperation));
                octets[3] = 2;
                assert_eq!(AtomicRequest::decode(&octets).unwrap().encode(), octets);
                return;
            }
        }
        assert_eq!(decoded.unwrap().encode(), octets);
    });
}

#[test]
fn every_atomic_operation_code() {
    for code in 0..=u8::MAX {
        let mut octets = [0; 52];
        octets[3] = code;
        let known = matches!(code & 15, 0..=2);
        assert_eq!(AtomicRequest::decode(&octets).is_ok(), known, "{code}");
    }
}

#[test]
fn atomic_responses() {
    check!().with_type().for_each(|octets: &[u8; 12]| {
        assert_eq!(AtomicResponse::decode(octets).encode(), *octets);
    });
}

#[test]
fn any_octets_as_terminate() {
    check!().for_each(|octets: &[u8]| {
        if let Ok(terminate) = Terminate::decode(octets) {
            // The parsed Terminate survives another round, whatever was dropped.
            let again = Terminate::decode(terminate.encode().as_octets());
            assert_eq!(again, Ok(terminate));
        } else {
            assert!(octets.len() < 4);
        }
    });
}
