// SPDX-License-Identifier: GPL-2.0

//! Rule 1 of the strict mode (`stream::strict`), which is a hint: the octets that a request of a
//! process sends stay as they are until its completion. Adapters read them when they send, and
//! again for each retransmission.
//!
//! The transmit task computes a checksum of the octets when it takes the request, and compares it
//! in each round as long as the request is pending: the strict mode has it run every millisecond.
//! So a change between two looks is missed if the completion comes before the second.
//!
//! Context: the running transmit task.

use iwarp::stag::Stag;
use kernel::prelude::*;
use kernel_ext::{
    crc32c,
    rdma::mem::mem_map::Memory, //
};

use crate::{
    abi::wr::{
        SendOp,
        SendWr, //
    },
    mem::{
        payload::Sge,
        sge::{
            NotCopied,
            SgeAccess,
            Slice, //
        }, //
    },
    queue::sq::Slot,
    stream::owner::QpShared, //
};

/// Most sources that are watched at a time.
const MOST: usize = 16;

/// Longest one, in octets.
const LONGEST: u64 = 64 * 1024;

/// Up to so many octets are often counters, which may change.
const SHORT: u64 = 8;

/// Octets that are read at a time.
const PIECE: usize = 256;

/// The source of a request that is pending.
struct WatchedSource {
    slot: Slot,
    /// The request's cookie.
    id: u64,
    sges: KVec<Sge>,
    checksum: u32,
}

/// The sources of a stream that are watched, while the device is strict.
#[derive(Default)]
pub(super) struct WatchedSources {
    list: KVec<WatchedSource>,
    /// The request that was looked at last.
    seen: Option<Slot>,
}

impl WatchedSources {
    /// Begins to watch the source of the request at `slot`, unless it is not worth it. The device
    /// is strict.
    #[cold]
    pub(super) fn watch(&mut self, qp: &QpShared, slot: Slot, wr: &SendWr) {
        let sends = matches!(wr.op, SendOp::Send(_) | SendOp::Write { .. });
        let len = wr.payload.len();
        let is_new = self.seen.replace(slot) != Some(slot);
        if !qp.user || !is_new || !sends || len <= SHORT || len > LONGEST || self.list.len() >= MOST
        {
            return;
        }
        // Without memory it is not watched.
        let _ = self.add(qp, slot, wr);
    }

    fn add(&mut self, qp: &QpShared, slot: Slot, wr: &SendWr) -> Result {
        let mut sges = KVec::new();
        for sge in wr.payload.sges() {
            sges.push(sge, GFP_ATOMIC)?;
        }
        // Inline data is the device's own.
        if let Some(checksum) = checksum(qp, &sges).filter(|_| !sges.is_empty()) {
            let source = WatchedSource {
                slot,
                id: wr.id,
                sges,
                checksum,
            };
            self.list.push(source, GFP_ATOMIC)?;
        }
        Ok(())
    }

    /// Reports the sources that have changed, of requests that are pending still.
    #[cold]
    pub(super) fn check(&mut self, qp: &QpShared) {
        self.list.retain(|source| {
            let now = checksum(qp, &source.sges);
            // Asked behind the checksum: once the request is done its source may change.
            if !qp.sq.is_pending(source.slot) {
                return false;
            }
            let changed = now.is_some_and(|now| now != source.checksum);
            if changed {
                qp.device.stats.hint_changed_sources.inc();
                let (number, id) = (qp.number, source.id);
                qp.device.warn(fmt!(
                    "strict hint 1: queue pair {number}: octets of request {id:#x} changed before \
                     its completion"
                ));
            }
            now.is_some() && !changed
        });
    }
}

/// Returns a checksum of the octets; [`None`] if they cannot be read, or if the peer may write
/// them.
fn checksum(qp: &QpShared, sges: &[Sge]) -> Option<u32> {
    let mut checksum = crc32c::INIT;
    for sge in sges.iter().filter(|sge| sge.len != 0) {
        let key = Stag::new(sge.lkey);
        let region = qp.regions.region(key)?;
        if region.is_remote_writable() {
            return None;
        }
        let slice = Slice {
            region,
            key,
            addr: sge.addr,
            len: sge.len,
        };
        // CAST: 32 bits fit.
        let len = sge.len as usize;
        let read = slice.copy(SgeAccess::source(qp.pd()), 0, len, |inside, at| {
            checksum = extend(checksum, inside.memory(), at, len)?;
            Ok::<_, NotCopied>(())
        });
        read.ok()?;
    }
    Some(checksum)
}

/// Continues a checksum over octets of a region.
///
/// # Errors
///
/// Those of [`Memory::read`].
fn extend(mut checksum: u32, memory: &Memory, at: u64, len: usize) -> Result<u32> {
    let mut octets = [0; PIECE];
    let mut done = 0;
    while done < len {
        let piece = octets.get_mut(..PIECE.min(len - done)).unwrap_or_default();
        // CAST: widens. NO-OVERFLOW: inside the region.
        memory.read(at + done as u64, piece)?;
        checksum = crc32c::update(checksum, piece);
        done += piece.len();
    }
    Ok(checksum)
}
