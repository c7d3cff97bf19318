// SPDX-License-Identifier: GPL-2.0

//! A consumer's handles for a region: registration, deregistration, and windows.
//!
//! Context: process, except for [`Mr::map_list`].

use iwarp::stag::{
    Access,
    Stag, //
};
use kernel::{
    prelude::*,
    sync::{
        Arc,
        ArcBorrow, //
    }, //
};
use kernel_ext::{
    compat::EOPNOTSUPP,
    rdma::{
        mem::mem_map::{
            Divisible,
            KernelPages,
            Memory,
            Shape, //
        },
        mr::{
            MapSg,
            RegDmaBufMr,
            RegUserMr, //
        },
        ops::MrCreated,
        types::{
            AccessFlags,
            KernelOwned,
            MwType, //
        }, //
    }, //
};

use super::{
    Body,
    Kind,
    Region, //
};
use crate::{
    device::{
        Reservation,
        Resource, //
    },
    mem::{
        pd::Pd,
        regions::Regions,
        rights::{
            check_memory,
            flags_of,
            to_rights, //
        }, //
    }, //
};

/// Most pages or pieces of a region for fast registration. The list for them is allocated with the
/// region: at most 64 KiB, for 16 MiB of pages.
pub(crate) const MAX_FAST_REG_PAGES: u32 = 4096;

/// A consumer's memory region.
pub(crate) struct Mr {
    pub(crate) region: Arc<Region>,
    pub(super) regions: Arc<Regions>,
    /// The rights that the consumer asked for.
    pub(super) access: AccessFlags,
    _reservation: Reservation,
}

/// The current state of a region.
pub(crate) struct MrState {
    pub(crate) kind: Kind,
    /// Its key gives access to its memory.
    pub(crate) valid: bool,
    /// The rights that it grants.
    pub(crate) access: AccessFlags,
    /// Number of windows bound to it.
    pub(crate) windows: u32,
}

impl Mr {
    /// Registers memory of a process, with that key if it is given.
    ///
    /// # Errors
    ///
    /// * `EINVAL` for an empty or wrapping range, and as [`to_rights`].
    /// * `EOPNOTSUPP` as [`to_rights`] and [`check_memory`].
    /// * `ENOMEM` if the device has its maximum number of regions, the process would exceed its
    ///   limit of pinned memory or of memory that is paged on demand, or memory is short.
    /// * `EFAULT` if the memory is not mapped, or not writable although the rights require it.
    pub(crate) fn register_user(
        pd: ArcBorrow<'_, Pd>,
        request: &RegUserMr<'_>,
        key: Option<u8>,
    ) -> Result<MrCreated<Self>> {
        let access = to_rights(request.access)?;
        let memory = memory_of(&pd, request, access)?;
        let body = Body::new(request.iova, request.length, access, memory);
        Ok(Self::insert(pd, Kind::User, key, body, request.access)?.created())
    }

    /// Registers memory of another driver for a process.
    ///
    /// # Errors
    ///
    /// * `EINVAL` for an empty range, or one that wraps or goes beyond the end; and as
    ///   [`to_rights`].
    /// * `EACCES` for rights to write with a read-only descriptor.
    /// * `ENOMEM` if the device has its maximum number of regions, or memory is short.
    /// * `EOPNOTSUPP` for paging on demand, and those of [`check_memory`] and
    ///   [`RegDmaBufMr::map`].
    pub(crate) fn register_dma_buf(
        pd: ArcBorrow<'_, Pd>,
        request: &RegDmaBufMr<'_>,
    ) -> Result<MrCreated<Self>> {
        let access = to_rights(request.access)?;
        if request.access.contains(AccessFlags::ON_DEMAND) {
            return Err(EOPNOTSUPP);
        }
        if request.iova.checked_add(request.length).is_none() {
            return Err(EINVAL);
        }
        let pages = request.map()?.into_pages(request.offset, request.length)?;
        let memory = Memory::Pages(pages);
        check_memory(access, &memory)?;
        let body = Body::new(request.iova, request.length, access, memory);
        Ok(Self::insert(pd, Kind::User, None, body, request.access)?.created())
    }

    /// Makes the region that covers all kernel memory, with the rights asked for. Its domain
    /// belongs to a kernel consumer.
    pub(crate) fn dma(
        pd: ArcBorrow<'_, Pd>,
        proof: KernelOwned<'_>,
        access: AccessFlags,
    ) -> Result<MrCreated<Self>> {
        let memory = Memory::kernel_virtual(proof, 0, u64::MAX)?;
        let rights = to_rights(access)?;
        check_memory(rights, &memory)?;
        let body = Body::new(0, u64::MAX, rights, memory);
        Ok(Self::insert(pd, Kind::Dma, None, body, access)?.created())
    }

    /// Makes a region for fast registration of up to `max_pages` pages, or pieces.
    ///
    /// # Errors
    ///
    /// `EINVAL` if that is 0 or more than [`MAX_FAST_REG_PAGES`].
    pub(crate) fn fast_reg(
        pd: ArcBorrow<'_, Pd>,
        proof: KernelOwned<'_>,
        shape: Shape,
        max_pages: u32,
    ) -> Result<MrCreated<Self>> {
        if max_pages == 0 || max_pages > MAX_FAST_REG_PAGES {
            return Err(EINVAL);
        }
        let (pages, memory) = KernelPages::try_new(proof, shape, max_pages)?;
        let body = Body {
            valid: false,
            ..Body::new(0, 0, Access::NONE, memory)
        };
        let mr = Self::insert(pd, Kind::FastReg, None, body, AccessFlags::empty())?;
        Ok(MrCreated {
            pages: Some(pages),
            ..mr.created()
        })
    }

    /// Replaces the list of pages, and invalidates the old registration if it is still valid. The
    /// new pages become accessible with [`Region::register`].
    ///
    /// Context: any but hard interrupt; does not sleep.
    pub(crate) fn map_list(&self, sg: &mut MapSg<'_>) -> Result<i32> {
        let mut result = Err(EINVAL);
        self.region.body.update(|body| {
            body.valid = false;
            result = sg.map(&mut body.memory).map(|mapped| {
                body.base = mapped.iova;
                body.len = mapped.length;
                mapped.entries
            });
        });
        result
    }

    /// Ends the region: afterwards its STag finds no region and no copy is in flight. The memory of
    /// a process is unpinned before this returns.
    ///
    /// Context: process, sleeps.
    ///
    /// # Errors
    ///
    /// `EBUSY` if a window is bound to it; then nothing has changed.
    pub(crate) fn deregister(&self) -> Result {
        self.region.refuse_windows()?;
        if self.region.kind == Kind::User {
            self.regions.device().note_destroyed();
        }
        self.regions.end(&self.region);
        Ok(())
    }

    /// Returns the current state of the region.
    pub(crate) fn state(&self) -> MrState {
        let (valid, rights) = match self.region.try_access() {
            Some(inside) => (inside.valid, inside.access),
            None => (false, Access::NONE),
        };
        MrState {
            kind: self.region.kind,
            valid,
            access: flags_of(rights),
            windows: self.region.windows(),
        }
    }

    pub(super) fn insert(
        pd: ArcBorrow<'_, Pd>,
        kind: Kind,
        key: Option<u8>,
        body: Body,
        access: AccessFlags,
    ) -> Result<Arc<Self>> {
        let reservation = pd.device().reserve(Resource::Mr)?;
        let region = pd.regions().enter(pd.id(), kind, key, body)?;
        // From here on dropping the value undoes everything.
        let mr = Self {
            region,
            regions: pd.regions().clone(),
            access,
            _reservation: reservation,
        };
        Ok(Arc::new(mr, GFP_KERNEL_ACCOUNT)?)
    }

    pub(super) fn created(self: Arc<Self>) -> MrCreated<Self> {
        let key = self.region.stag().raw();
        MrCreated {
            lkey: key,
            rkey: key,
            pages: None,
            mr: self,
        }
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        self.regions.end(&self.region);
    }
}

/// A consumer's memory window.
pub(crate) struct Mw {
    region: Arc<Region>,
    regions: Arc<Regions>,
    _reservation: Reservation,
}

impl Mw {
    /// Makes a window that is not bound.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if the device has its maximum number of windows, or memory is short.
    pub(crate) fn new(pd: &Pd, kind: MwType) -> Result<Arc<Self>> {
        let reservation = pd.device().reserve(Resource::Mw)?;
        let body = Body {
            valid: false,
            ..Body::new(0, 0, Access::NONE, Memory::nothing())
        };
        let mw = Self {
            region: pd
                .regions()
                .enter(pd.id(), Kind::Window(kind), None, body)?,
            regions: pd.regions().clone(),
            _reservation: reservation,
        };
        Ok(Arc::new(mw, GFP_KERNEL_ACCOUNT)?)
    }

    /// Returns the current STag.
    pub(crate) fn stag(&self) -> Stag {
        self.region.stag()
    }
}

impl Drop for Mw {
    fn drop(&mut self) {
        self.regions.end(&self.region);
    }
}

/// Returns the memory of a request that asks for these rights: pinned unless it is paged on demand,
/// and divisible if windows may be bound to it.
///
/// # Errors
///
/// * `EINVAL` for an empty or wrapping range.
/// * Those of [`RegUserMr::pin`], [`RegUserMr::page_on_demand`],
///   [`ContextPaging::begin`](crate::device::paging::ContextPaging::begin) and [`check_memory`].
pub(super) fn memory_of(pd: &Pd, request: &RegUserMr<'_>, rights: Access) -> Result<Memory> {
    let on_demand = request.access.contains(AccessFlags::ON_DEMAND);
    if request.length == 0 || request.iova.checked_add(request.length).is_none() {
        return Err(EINVAL);
    }
    let memory = if on_demand {
        let budget = pd.paging().ok_or(EINVAL)?.begin()?;
        Memory::Paged(request.page_on_demand(budget)?)
    } else {
        Memory::Pages(request.pin()?.into_pages()?)
    };
    check_memory(rights, &memory)?;
    prepare_flushes(pd, rights)?;
    if request.access.contains(AccessFlags::MW_BIND) {
        Ok(Divisible::try_new()?.fill(memory))
    } else {
        Ok(memory)
    }
}

/// Prepares for a peer's flushes to persistent memory, if it gets the right to them: a work item of
/// the context carries them out.
///
/// # Errors
///
/// * `EINVAL` for a kernel consumer.
/// * Those of [`ContextPaging::begin`](crate::device::paging::ContextPaging::begin).
pub(super) fn prepare_flushes(pd: &Pd, rights: Access) -> Result {
    if rights.contains(Access::FLUSH_PERSISTENT) {
        pd.paging().ok_or(EINVAL)?.begin()?;
    }
    Ok(())
}
