// SPDX-License-Identifier: GPL-2.0

//! The cutting and the packing room: from a message to FPDUs in a batch.
//!
//! Context: process; the transmitter's.

use iwarp::{
    fault::Fault,
    mpa::{
        self,
        Crc, //
    },
    segment::Plan,
    stag::{
        check_source,
        Access, //
    }, //
};
use kernel::prelude::*;
use kernel_ext::{
    crc32c,
    net::{
        Grow,
        TxBatch, //
    },
    rdma::wr::WcStatus, //
};

use crate::{
    qp::Qp,
    readq::InboundRead,
    sq::Slot, //
};

use super::{
    Job,
    Outgoing,
    Source,
    TxStream, //
};

/// Why a message could not be cut any further.
pub(super) enum Failed {
    /// A work request of our own is at fault.
    Local(Slot, WcStatus),
    /// What the peer asked for has gone away.
    Remote(Fault, InboundRead, u32),
    /// No memory for the batch now.
    Memory,
}

impl Qp {
    /// Cuts one FPDU of the current message into the batch.
    pub(super) fn cut(&self, stream: &mut TxStream, mulpdu: u16, grow: Grow) -> Result<(), Failed> {
        let Some(current) = &mut stream.current else {
            return Ok(());
        };
        let before = current.segmenter;
        let Some(plan) = current.segmenter.next(mulpdu) else {
            return Ok(());
        };
        if stream
            .batch
            .reserve(plan.fpdu_len() as usize, grow)
            .is_err()
        {
            current.segmenter = before;
            return Err(Failed::Memory);
        }
        let mark = stream.batch.mark();
        let len = stream.batch.len();
        if let Err(failed) = self.pack(&mut stream.batch, &plan, current, stream.crc) {
            stream.batch.rewind(mark);
            current.segmenter = before;
            return Err(match failed {
                PackError::Memory => Failed::Memory,
                PackError::Local(status) => match current.job {
                    Job::Complete(slot) => Failed::Local(slot, status),
                    // PANIC: none; the source of an answer is not local.
                    Job::Answer | Job::Nothing => Failed::Memory,
                },
                PackError::Remote(fault) => {
                    match core::mem::replace(&mut current.source, Source::Nothing) {
                        Source::Remote(read) => Failed::Remote(fault, read, plan.payload_offset()),
                        Source::Nothing | Source::Slices(_) | Source::Inline(_) => Failed::Memory,
                    }
                }
            });
        }
        // NO-OVERFLOW: 2^64 octets are not sent in one life.
        stream.appended += (stream.batch.len() - len) as u64;
        self.device().stats.tx_fpdus.inc();
        if plan.is_last() {
            match current.job {
                Job::Complete(slot) => self.sq.sent(slot, stream.appended),
                Job::Answer => self.inbound_reads.answered(),
                Job::Nothing => {}
            }
            stream.current = None;
        }
        Ok(())
    }

    /// Puts one FPDU into the batch.
    fn pack(
        &self,
        batch: &mut TxBatch,
        plan: &Plan,
        current: &Outgoing,
        crc: Crc,
    ) -> Result<(), PackError> {
        let start = batch.mark();
        put(batch, plan.header())?;
        let offset = plan.payload_offset();
        let len = usize::from(plan.payload_len());
        if len != 0 {
            match &current.source {
                Source::Nothing => {}
                Source::Slices(slices) => slices
                    .copy_to_batch(offset, len, batch)
                    .map_err(PackError::Local)?,
                Source::Inline(inline) => {
                    let start = offset as usize;
                    let octets = inline.as_slice().get(start..start + len);
                    put(batch, octets.unwrap_or(&[]))?;
                }
                Source::Remote(read) => {
                    self.copy_remote(read, offset, plan.payload_len(), batch)?
                }
            }
        }
        put(
            batch,
            [0; 3].get(..usize::from(plan.pad_len())).unwrap_or(&[]),
        )?;
        let trailer = match crc {
            Crc::On => mpa::crc_trailer(crc32c::finish(batch.crc32c_since(start, crc32c::INIT))),
            Crc::Off => [0; mpa::CRC_LEN],
        };
        put(batch, &trailer)
    }

    /// Copies octets that the peer reads. The source is checked for each FPDU anew: its owner may
    /// revoke it at any time (RDMAP-165).
    fn copy_remote(
        &self,
        read: &InboundRead,
        offset: u32,
        len: u16,
        batch: &mut TxBatch,
    ) -> Result<(), PackError> {
        let Some(region) = &read.source else {
            return Err(PackError::Remote(Fault::SourceInvalidStag));
        };
        let request = read.request.after(offset);
        let inside = region
            .enter()
            .ok_or(PackError::Remote(Fault::SourceInvalidStag))?;
        let view = region.view_inside(&inside, self.pd());
        let at = check_source(
            Some(&view),
            request.source_stag,
            request.source_to,
            u32::from(len),
            Access::REMOTE_READ,
        )
        .map_err(PackError::Remote)?;
        inside
            .memory()
            .copy_to_batch(at, usize::from(len), batch)
            .map_err(|_| PackError::Memory)
    }
}

/// Why an FPDU could not be put together.
enum PackError {
    Local(WcStatus),
    Remote(Fault),
    Memory,
}

fn put(batch: &mut TxBatch, octets: &[u8]) -> Result<(), PackError> {
    batch.put(octets).map_err(|_| PackError::Memory)
}
