// SPDX-License-Identifier: GPL-2.0

//! Regions whose memory need not be there: bringing it in, for a copy that waits or beforehand.
//!
//! What enters: a range of a region that a copy met and did not find there, or a process's advice.
//! What leaves: the octets of that range, pinned until the copy is made.
//!
//! Context: process. It takes as long as the process's page faults do, so no lock is held, and no
//! guard of a region.

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

use crate::device::context::Pd;
use crate::mem::mr::{
    LocalUse,
    Region, //
};

/// Octets of a region that a copy waits for.
pub(crate) struct Wanted {
    pub(crate) region: Arc<Region>,
    /// Offset in the region.
    pub(crate) at: u64,
    /// Octets.
    pub(crate) len: usize,
    /// What the copy does with them.
    pub(crate) usage: LocalUse,
}

impl Wanted {
    /// Brings them in. They are all of the memory that is returned, which is to be dropped soon
    /// after the copy, in process context. The copy has to be made inside of the region, and
    /// checked as any other.
    ///
    /// # Errors
    ///
    /// `EFAULT` if they cannot be had, or the region has ended.
    pub(crate) fn fetch(&self) -> Result<Memory> {
        let (paged, at) = self.region.paged(self.at).ok_or(EFAULT)?;
        let write = self.usage == LocalUse::Sink;
        Ok(Memory::Pages(paged.fetch(at, self.len, write)?))
    }

    /// Whether it is the same.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.region, &other.region)
            && (self.at, self.len, self.usage) == (other.at, other.len, other.usage)
    }
}

impl Region {
    /// The memory that need not be there, and where in it the offset is.
    fn paged(&self, at: u64) -> Option<(Arc<Paged>, u64)> {
        let inside = self.try_access()?;
        let (paged, at) = inside.memory().paged(at)?;
        Some((paged.clone(), at))
    }
}

/// Brings memory in beforehand.
///
/// # Errors
///
/// * `EFAULT` if a key is wrong or does not give the right to write that is asked for, or a range
///   is not inside of its region or not in the process's memory.
/// * `EINVAL` if a region is not paged on demand.
/// * `EINTR` if the process is being killed.
pub(crate) fn advise(pd: ArcBorrow<'_, Pd>, advice: Advice<'_>) -> Result {
    let usage = match advice.what {
        Prefetch::Present | Prefetch::Read => LocalUse::Source,
        Prefetch::Write => LocalUse::Sink,
    };
    for IbSge { addr, length, lkey } in advice.ranges {
        let region = pd.device.region(Stag::new(lkey)).ok_or(EFAULT)?;
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
