// SPDX-License-Identifier: GPL-2.0

//! Regions whose memory may be absent: fetches a range for a copy, or prefetches on a process's
//! advice. A fetched range stays pinned until the copy is made. And writes a range back for a Flush
//! to persistent memory, which takes too long for softirq.
//!
//! Context: process. It takes as long as the process's page faults do, so the caller holds no lock
//! and no guard of a region.

use kernel::{
    prelude::*,
    sync::{
        Arc,
        ArcBorrow, //
    },
    time::{
        delay::fsleep,
        Delta, //
    }, //
};
use kernel_ext::{
    mm::may_resched,
    rdma::{
        mem::{
            mem_map::Memory,
            paged::{
                OnDemand,
                Prefetch, //
            }, //
        },
        mr::Advice,
        wr::IbSge, //
    }, //
};

use iwarp::stag::Stag;

use crate::mem::{
    mr::{
        Body,
        LocalUse,
        Region,
        RegionGuard, //
    },
    pd::Pd, //
};

/// A range of a region for which a copy or a Flush waits.
pub(crate) struct RegionRange {
    region: Arc<Region>,
    /// Which binding, if the region is a window: another one refers to other memory.
    binding: u64,
    /// Offset in the region.
    at: u64,
    /// Length in octets.
    len: usize,
    wanted: Wanted,
}

/// What has to happen to a range first.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wanted {
    /// Its pages are fetched, for a copy that uses them so.
    Fetch(LocalUse),
    /// It is written back to persistent memory.
    WriteBack,
}

/// Octets that are written back under one guard of their region, with bottom halves off.
const WRITE_BACK_STEP: usize = 64 << 10;

/// Memory fetched for a copy, or why it could not be fetched. Of a range that is written back, no
/// memory.
pub(crate) struct FetchedPages {
    range: RegionRange,
    memory: Result<Memory>,
}

impl RegionRange {
    /// Names the `len` octets at `at`, under the guard with which that was checked.
    pub(crate) fn new(
        region: &Arc<Region>,
        inside: &RegionGuard<'_>,
        at: u64,
        len: usize,
        usage: LocalUse,
    ) -> Self {
        Self {
            region: region.clone(),
            binding: inside.binding(),
            at,
            len,
            wanted: Wanted::Fetch(usage),
        }
    }

    /// Names the `len` octets at `at`, likewise, to be written back.
    pub(crate) fn to_write_back(
        region: &Arc<Region>,
        inside: &RegionGuard<'_>,
        at: u64,
        len: usize,
    ) -> Self {
        Self {
            wanted: Wanted::WriteBack,
            ..Self::new(region, inside, at, len, LocalUse::Source)
        }
    }

    /// Fetches the range, or writes it back. The returned memory holds exactly this range; the
    /// caller drops it soon after the copy, in process context. The copy has to be made while the
    /// region is accessible, and checked as any other.
    ///
    /// # Errors
    ///
    /// * `EFAULT` if the range cannot be fetched, or the region has ended or is bound anew.
    /// * `ENOMEM` if memory stays short.
    pub(crate) fn fetch(&self) -> Result<Memory> {
        let write = match self.wanted {
            Wanted::Fetch(usage) => usage == LocalUse::Sink,
            Wanted::WriteBack => return self.write_back().map(|()| Memory::nothing()),
        };
        with_retries(|| {
            let (paged, at) = self.paged().ok_or(EFAULT)?;
            Ok(Memory::Pages(paged.fetch(at, self.len, write)?))
        })
    }

    /// Calls `copy(memory, offset)` for the range: in what was fetched, if that is this range, else
    /// in the region, under the guard that it was named under.
    ///
    /// Context: any.
    ///
    /// # Errors
    ///
    /// As `copy`, `EAGAIN` if memory is absent; as [`RegionRange::fetch`].
    pub(crate) fn copy(
        &self,
        inside: &RegionGuard<'_>,
        fetched: Option<&FetchedPages>,
        copy: impl FnOnce(&Memory, u64) -> Result,
    ) -> Result {
        match fetched.and_then(|fetched| fetched.memory_of(self)) {
            Some(memory) => copy(memory?, 0),
            None => copy(inside.memory(), self.at),
        }
    }

    /// Accesses the region; [`None`] if it has ended or is bound anew.
    fn access(&self) -> Option<RegionGuard<'_>> {
        let inside = self.region.try_access()?;
        (inside.binding() == self.binding).then_some(inside)
    }

    /// Returns the paged memory and the offset in it.
    fn paged(&self) -> Option<(OnDemand, u64)> {
        paged(&*self.access()?, self.at)
    }

    /// Writes the range back, as long as the region is there.
    fn write_back(&self) -> Result {
        let mut done = 0;
        while done < self.len {
            let len = (self.len - done).min(WRITE_BACK_STEP);
            // CAST: `usize` is 64 bits. NO-OVERFLOW: inside the region.
            let at = self.at + done as u64;
            self.access().ok_or(EFAULT)?.memory().write_back(at, len)?;
            done += len;
            may_resched();
        }
        Ok(())
    }

    /// Returns whether both name the same memory and use.
    fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.region, &other.region)
            && self.binding == other.binding
            && (self.at, self.len, self.wanted) == (other.at, other.len, other.wanted)
    }
}

impl FetchedPages {
    /// Fetches the range, or writes it back.
    ///
    /// Context: process; takes as long as page faults do.
    pub(crate) fn new(range: RegionRange) -> Self {
        let memory = range.fetch();
        Self { range, memory }
    }

    /// Returns what was fetched, if that is `range`.
    pub(crate) fn memory_of(&self, range: &RegionRange) -> Option<Result<&Memory>> {
        self.range
            .is(range)
            .then(|| self.memory.as_ref().map_err(|error| *error))
    }
}

/// Calls `f`, and again as long as memory is short: ten times within half a second.
///
/// All that a fetch allocates is allocated in here. So a shortage that passes ends no stream, and
/// one that stays ends it, whichever allocation it meets.
///
/// Context: process.
///
/// # Errors
///
/// `ENOMEM` if memory is still short at last; the other errors of `f` at once.
pub(crate) fn with_retries<T>(mut f: impl FnMut() -> Result<T>) -> Result<T> {
    for retry in 0..RETRIES {
        match f() {
            Err(ENOMEM) => fsleep(Delta::from_millis(1 << retry)),
            result => return result,
        }
    }
    f()
}

/// How often [`with_retries`] tries again, after 1, 2, 4 ... ms.
const RETRIES: u32 = 9;

/// Returns the paged memory of a region and the offset in it.
fn paged(inside: &Body, at: u64) -> Option<(OnDemand, u64)> {
    let (paged, at) = inside.memory().paged(at)?;
    Some((paged.clone(), at))
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
            let inside = region.try_access();
            let (paged, at) = inside.and_then(|inside| paged(&inside, at)).ok_or(EINVAL)?;
            paged.prefetch(at, length.into(), advice.what)?;
        }
    }
    Ok(())
}
