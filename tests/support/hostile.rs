// SPDX-License-Identifier: GPL-2.0

//! Scripts of a misbehaving peer: they pass segments to an end and check its Terminate.

use iwarp::{
    rdmap::Extensions,
    segment::Message, //
};

use crate::{
    end::{
        transmit,
        End, //
    },
    frame::{
        fpdu,
        terminate,
        terminate_quoting,
        terminate_quoting_read, //
    },
    wire::{
        Fpdu,
        Wire, //
    }, //
};

/// Layer, error type and code of a Terminate.
pub type Code = (u8, u8, u8);

/// Returns an end with all extensions, an inbound depth of 16, an outbound depth of 4, and 256
/// octets of 0xaa at [`MEMORY`].
pub fn end() -> End {
    end_with(Extensions::Rfc7306)
}

/// Returns the same with the given extensions.
pub fn end_with(extensions: Extensions) -> End {
    let mut end = End::new(extensions, 16, 4);
    end.register(MEMORY.0, MEMORY.1, vec![0xaa; 256]);
    end
}

/// STag and base of the memory of [`end`].
pub const MEMORY: (u32, u64) = (0x1122_3344, 0x1000);

/// Passes a well-framed segment to an end.
pub fn deliver(end: &mut End, segment: &[u8]) {
    let mut wire = Wire::new();
    wire.push(&fpdu(segment));
    let fpdu = wire.pop().unwrap();
    assert!(fpdu.intact && wire.is_empty());
    end.handle(&fpdu);
}

/// Passes a segment whose FPDU has a wrong CRC to an end.
pub fn deliver_damaged(end: &mut End, segment: &[u8]) {
    end.handle(&Fpdu {
        ulpdu: segment.to_vec(),
        intact: false,
    });
}

/// Returns the Terminate of an end as the octets of a segment.
pub fn terminate_of(end: &End) -> Option<Vec<u8>> {
    let message = Message::Terminate(*end.terminate()?);
    let mut wire = Wire::new();
    for fpdu in transmit(message, &[], || 128) {
        wire.push(&fpdu);
    }
    let fpdu = wire.pop().unwrap();
    assert!(fpdu.intact && wire.is_empty());
    Some(fpdu.ulpdu)
}

/// Asserts that an end accepts a segment.
#[track_caller]
pub fn accepts(end: &mut End, segment: &[u8]) {
    deliver(end, segment);
    assert_eq!(terminate_of(end), None, "{segment:02x?}");
}

/// Asserts that a segment leads to a Terminate that quotes its DDP header.
#[track_caller]
pub fn refuses(mut end: End, segment: &[u8], (layer, etype, code): Code) -> End {
    deliver(&mut end, segment);
    assert_eq!(
        terminate_of(&end),
        Some(terminate_quoting(layer, etype, code, segment)),
        "{segment:02x?}"
    );
    assert_eq!(end.completions(), []);
    end
}

/// Asserts that a segment leads to a Terminate that quotes its DDP and Read Request headers.
#[track_caller]
pub fn refuses_read(mut end: End, segment: &[u8], (layer, etype, code): Code) -> End {
    deliver(&mut end, segment);
    assert_eq!(
        terminate_of(&end),
        Some(terminate_quoting_read(layer, etype, code, segment)),
        "{segment:02x?}"
    );
    assert!(end.respond().is_none());
    end
}

/// Asserts that a segment leads to a Terminate without a quote.
#[track_caller]
pub fn refuses_plainly(mut end: End, segment: &[u8], (layer, etype, code): Code) -> End {
    deliver(&mut end, segment);
    assert_eq!(
        terminate_of(&end),
        Some(terminate(layer, etype, code)),
        "{segment:02x?}"
    );
    end
}
