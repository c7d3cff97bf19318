// SPDX-License-Identifier: GPL-2.0

//! Regions whose memory may be absent: fetches a range for a copy, or prefetches on a process's
//! advice. A fetched range stays pinned until the copy is made.
//!
//! Context: process. It takes as long as the process's page faults do, so the caller holds no lock
//! and no guard of a region.

use kernel::{
    prelude::*,
    sync::{
        Arc,
        ArcBorrow, //
    }, //
};
use kernel_ext::{
    mm::{
        mem_map::Memory,
        paged::{
            Paged,
            Prefetch, //
        }, //
    },
    rdma::{
        mr::Advice,
        wr::IbSge, //
    }, //
};

use iwarp::stag::Stag;

use crate::mem::{
    mr::{
        LocalUse,
        Region, //
    },
    pd::Pd, //
};

/// A range of a region for which a copy waits.
pub(crate) struct Wanted {
    pub(crate) region: Arc<Region>,
    /// Offset in the region.
    pub(crate) at: u64,
    /// Length in octets.
    pub(crate) len: usize,
    /// How the copy uses the range.
    pub(crate) usage: LocalUse,
}

impl Wanted {
    /// Fetches the range. The returned memory holds exactly this range; the caller drops it soon
    /// after the copy, in process context. The copy has to be made while the region is accessible,
    /// and checked as any other.
    ///
    /// # Errors
    ///
    /// * `EFAULT` if the range cannot be fetched, or the region has ended.
    /// * `ENOMEM`.
    pub(crate) fn fetch(&self) -> Result<Memory> {
        let (paged, at) = self.region.paged(self.at).ok_or(EFAULT)?;
        let write = self.usage == LocalUse::Sink;
        Ok(Memory::Pages(paged.fetch(at, self.len, write)?))
    }

    /// Returns whether both name the same range and use.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.region, &other.region)
            && (self.at, self.len, self.usage) == (other.at, other.len, other.usage)
    }
}

impl Region {
    /// Returns the paged memory of the region and the offset in it.
    fn paged(&self, at: u64) -> Option<(Arc<Paged>, u64)> {
        let inside = self.try_access()?;
        let (paged, at) = inside.memory().paged(at)?;
        Some((paged.clone(), at))
    }
}

/// Prefetches memory.
///
/// # Errors
///
/// * `EFAULT` if a key is wrong or lacks the requested right to write, or a range exceeds its
///   region or the process's memory.
/// * `EINVAL` if a region is not paged on demand, or its process has exited.
/// * `EBUSY` if pages keep changing.
/// * `EINTR` if the calling process is being killed.
/// * `ENOMEM`.
pub(crate) fn advise(pd: ArcBorrow<'_, Pd>, advice: Advice<'_>) -> Result {
    let usage = match advice.what {
        Prefetch::Present | Prefetch::Read => LocalUse::Source,
        Prefetch::Write => LocalUse::Sink,
    };
    for IbSge { addr, length, lkey } in advice.ranges {
        let region = pd.regions().region(Stag::new(lkey)).ok_or(EFAULT)?;
        let at = region
            .check_local(Stag::new(lkey), pd.id(), addr, length, usage)
            .map_err(|_| EFAULT)?;
        if length != 0 {
            let (paged, at) = region.paged(at).ok_or(EINVAL)?;
            paged.prefetch(at, length.into(), advice.what)?;
        }
    }
    Ok(())
}
