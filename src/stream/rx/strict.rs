// SPDX-License-Identifier: GPL-2.0

//! Rule 2 of the strict mode (`device::strict`), which is a choice: now and then the payload of an
//! FPDU is placed late, up to 10 ms, and its last octet at once. Until then the other octets that
//! it is to overwrite are poison, which a program sees that looks at them too early (RDMAP-105 to
//! RDMAP-107).
//!
//! The FPDU stays in TCP's queue as one whose memory is absent; the queue pair looks again every
//! millisecond (`qp::inject`). If its memory is absent, too, the FPDU is not late.
//!
//! Context: softirq, or process with the socket locked.

use core::cmp::min;

use iwarp::{
    fault::Fault,
    receiver::TaggedSegment, //
};
use kernel::{
    prelude::*,
    time::Instant, //
};
use kernel_ext::{
    net::Inbound,
    rdma::mem::mem_map::Memory, //
};

use crate::{
    device::{
        inject::Hold,
        strict::{
            choose_millis,
            choose_once_in, //
        }, //
    },
    mem::{
        peer::PeerAccess,
        sge::{
            NotCopied,
            SgeAccess,
            Slice, //
        }, //
    },
    stream::owner::QpShared, //
};

use super::recv::Incoming;

/// Of how many FPDUs one is late.
const LATE_ONE: u32 = 8;

/// What is stored meanwhile, piece by piece.
const POISON: [u8; 256] = [0xa5; 256];

/// A payload that may be late.
pub(super) struct LatePayload<'a, 'b> {
    pub(super) qp: &'a QpShared,
    pub(super) incoming: &'a mut Incoming,
    pub(super) inbound: &'a mut Inbound<'b>,
    /// Its offset in the receive queue, and its length.
    pub(super) payload: (usize, usize),
}

impl LatePayload<'_, '_> {
    /// Chooses whether it is late.
    fn is_chosen(&self) -> bool {
        let (_, len) = self.payload;
        len != 0 && self.qp.device.strict.is_on() && choose_once_in(LATE_ONE)
    }

    /// Chooses whether the payload of a Write is late; returns whether it is, and then spoils its
    /// target.
    #[cold]
    pub(super) fn leave_write(self, access: &PeerAccess<'_>, segment: &TaggedSegment) -> bool {
        self.leave(|inbound, (pos, len)| {
            let spoiled = access.write(segment, |inside, at| {
                spoil(inside.memory(), at, inbound, (pos, len), pos + len)
                    .map_err(|_| Fault::LocalPlacement)
            });
            spoiled.is_ok()
        })
    }

    /// The same for a Read Response, at `offset` of its sink.
    #[cold]
    pub(super) fn leave_response(self, sink: &Slice, access: SgeAccess<'_>, offset: u32) -> bool {
        self.leave(|inbound, (pos, len)| {
            let spoiled = sink.copy(access, offset, len, |inside, at| {
                let memory = inside.memory();
                Ok::<_, NotCopied>(spoil(memory, at, inbound, (pos, len), pos + len)?)
            });
            spoiled.is_ok()
        })
    }

    /// The same for a Send, at `offset` of its receive.
    #[cold]
    pub(super) fn leave_send(self, access: SgeAccess<'_>, offset: u32) -> bool {
        if !self.is_chosen() {
            return false;
        }
        let Self {
            incoming,
            inbound,
            payload: (pos, len),
            qp,
        } = self;
        let spoiled = incoming.copy(access, offset, len, |memory, at, piece, done| {
            // NO-OVERFLOW: inside the FPDU.
            spoil(memory, at, inbound, (pos + done, piece), pos + len)
        });
        if spoiled.is_ok() {
            incoming.placed = 0;
            incoming.be_late(qp);
        }
        spoiled.is_ok()
    }

    fn leave(self, spoil: impl FnOnce(&mut Inbound<'_>, (usize, usize)) -> bool) -> bool {
        let chosen = self.is_chosen() && spoil(self.inbound, self.payload);
        if chosen {
            self.incoming.be_late(self.qp);
        }
        chosen
    }
}

impl Incoming {
    fn be_late(&mut self, qp: &QpShared) {
        self.late = Some(Hold::Since(Instant::now(), choose_millis()));
        qp.device.stats.chosen_late_placements.inc();
    }
}

/// Stores poison where octets of the receive queue, by offset and length, are to be placed; places
/// the last one that is before `end` there.
///
/// # Errors
///
/// Those of [`Memory::write`].
fn spoil(
    memory: &Memory,
    at: u64,
    inbound: &mut Inbound<'_>,
    (pos, len): (usize, usize),
    end: usize,
) -> Result {
    let ends = pos + len == end;
    let poisoned = len.saturating_sub(usize::from(ends));
    let mut done = 0;
    while done < poisoned {
        let piece = min(poisoned - done, POISON.len());
        // CAST: widens. NO-OVERFLOW: inside the region.
        memory.write(at + done as u64, POISON.get(..piece).unwrap_or_default())?;
        done += piece;
    }
    if ends {
        memory.copy_from_inbound(at + done as u64, inbound, pos + done, 1)?;
    }
    Ok(())
}
