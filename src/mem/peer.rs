// SPDX-License-Identifier: GPL-2.0

//! What a peer does with a region: RDMA Writes into it, RDMA Reads and atomic operations of it.
//!
//! Context: any; nothing here sleeps.

use iwarp::{
    atomic::{
        check_alignment,
        AtomicRequest,
        TARGET_LEN, //
    },
    fault::Fault,
    flush::FlushRequest,
    rdmap::ReadRequest,
    receiver::TaggedSegment,
    stag::{
        check_flush,
        check_source,
        check_tagged,
        Access,
        RegionView, //
    }, //
};
use kernel_ext::sync::BhOff;

use crate::mem::mr::{
    Region,
    RegionGuard,
    StreamId, //
};

/// A peer's access to a region, for one copy or for those of several FPDUs. Its owner may revoke
/// the region at any time but while this exists (RDMAP-165).
///
/// Each function checks one request and calls `copy(inside, offset in the region)`. It fails as the
/// check, and as `copy`.
pub(crate) struct PeerAccess<'a> {
    inside: RegionGuard<'a>,
    view: RegionView,
}

impl<'a> PeerAccess<'a> {
    /// Accesses the region for the stream's peer; [`None`] once it is deregistered. `off` is
    /// present if the caller has bottom halves off.
    #[inline(always)]
    pub(crate) fn open(
        region: &'a Region,
        stream: StreamId,
        off: Option<BhOff<'a>>,
    ) -> Option<Self> {
        let inside = region.open(off)?;
        let view = region.view_inside(&inside, stream);
        Some(Self { inside, view })
    }

    /// Places a segment of an RDMA Write, checked as [`check_tagged`] does.
    #[inline(always)]
    pub(crate) fn write<T, E: From<Fault>>(
        &self,
        segment: &TaggedSegment,
        copy: impl FnOnce(&RegionGuard<'_>, u64) -> Result<T, E>,
    ) -> Result<T, E> {
        let TaggedSegment { stag, to, .. } = *segment;
        let len = u32::from(segment.payload.len);
        let at = check_tagged(Some(&self.view), stag, to, len, Access::REMOTE_WRITE)?;
        copy(&self.inside, at)
    }

    /// Places an Atomic Write, checked as [`PeerAccess::write`] does, then as [`check_alignment`].
    pub(crate) fn write_atomic<T, E: From<Fault>>(
        &self,
        segment: &TaggedSegment,
        copy: impl FnOnce(&RegionGuard<'_>, u64) -> Result<T, E>,
    ) -> Result<T, E> {
        self.write(segment, |inside, at| {
            let address = inside.memory().address(at).ok_or(Fault::TaggedBounds)?;
            // CAST: `usize` is 64 bits.
            check_alignment(address as u64)?;
            copy(inside, at)
        })
    }

    /// Carries out a Flush, checked as [`check_flush`] does, by
    /// `write_back(inside, offset in the region, length)`.
    pub(crate) fn flush<E: From<Fault>>(
        &self,
        request: &FlushRequest,
        write_back: impl FnOnce(&RegionGuard<'_>, u64, u64) -> Result<(), E>,
    ) -> Result<(), E> {
        let (at, len) = check_flush(Some(&self.view), request)?;
        write_back(&self.inside, at, len)
    }

    /// Reads the first `len` octets that an RDMA Read asks for, checked as [`check_source`] does.
    #[inline(always)]
    pub(crate) fn read<T, E: From<Fault>>(
        &self,
        request: &ReadRequest,
        len: u32,
        copy: impl FnOnce(&RegionGuard<'_>, u64) -> Result<T, E>,
    ) -> Result<T, E> {
        let (stag, to) = (request.source_stag, request.source_to);
        let at = check_source(Some(&self.view), stag, to, len, Access::REMOTE_READ)?;
        copy(&self.inside, at)
    }

    /// Carries out an atomic operation, checked as [`check_source`] does, then as
    /// [`check_alignment`].
    pub(crate) fn operate<T>(
        &self,
        request: &AtomicRequest,
        copy: impl FnOnce(&RegionGuard<'_>, u64) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let (view, stag, to) = (&self.view, request.stag, request.to);
        let at = check_source(Some(view), stag, to, TARGET_LEN, Access::REMOTE_ATOMIC)?;
        let address = self.inside.memory().address(at);
        // CAST: `usize` is 64 bits.
        check_alignment(address.ok_or(Fault::SourceBounds)? as u64)?;
        copy(&self.inside, at)
    }
}
