// SPDX-License-Identifier: GPL-2.0

//! Re-registration of a process's region: with other memory, other rights, or in another domain.
//!
//! A new region with a new key replaces the old one, whose key becomes invalid; so a peer gains no
//! rights by its old key. Memory that does not change is handed over with its pages pinned.
//!
//! Context: process.

use iwarp::stag::Access;
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
            Memory, //
        },
        mr::ReregUserMr,
        ops::MrCreated,
        types::AccessFlags, //
    }, //
};

use super::{
    registration::{
        memory_of,
        prepare_flushes,
        Mr, //
    },
    Body,
    Kind, //
};
use crate::mem::{
    pd::Pd,
    rights::{
        check_memory,
        to_rights, //
    }, //
};

impl Mr {
    /// Makes the region that replaces this one, and ends this one. During the call both count
    /// against the device's limit, and new memory is pinned beside the old.
    ///
    /// # Errors
    ///
    /// Leave the region as it was.
    ///
    /// * As [`Mr::register_user`].
    /// * As [`check_memory`] for memory that stays.
    /// * `EBUSY` if a window is bound to it.
    /// * `EOPNOTSUPP` if memory that stays is to be paged on demand from now on, or not any more.
    pub(crate) fn reregister(
        &self,
        pd: ArcBorrow<'_, Pd>,
        request: &ReregUserMr<'_>,
    ) -> Result<MrCreated<Self>> {
        if self.region.kind != Kind::User {
            return Err(EINVAL);
        }
        let flags = request.access(self.access);
        let access = to_rights(flags)?;
        let new = match request.memory(flags) {
            Some(memory) => {
                let pages = memory_of(&pd, &memory, access)?;
                let body = Body::new(memory.iova, memory.length, access, pages);
                let new = Self::insert(pd, Kind::User, None, body, flags)?;
                self.deregister()?;
                new
            }
            None => self.hand_over(pd, access, flags)?,
        };
        Ok(new.created())
    }

    /// Makes a region that takes over the memory of this one.
    fn hand_over(
        &self,
        pd: ArcBorrow<'_, Pd>,
        access: Access,
        flags: AccessFlags,
    ) -> Result<Arc<Self>> {
        let on_demand = |flags: AccessFlags| flags.contains(AccessFlags::ON_DEMAND);
        if on_demand(flags) != on_demand(self.access) {
            return Err(EOPNOTSUPP);
        }
        {
            let inside = self.region.try_access().ok_or(EINVAL)?;
            check_memory(access, inside.memory())?;
        }
        prepare_flushes(&pd, access)?;
        let room = if flags.contains(AccessFlags::MW_BIND) {
            Some(Divisible::try_new()?)
        } else {
            None
        };
        let empty = Body {
            valid: false,
            ..Body::new(0, 0, access, Memory::nothing())
        };
        let new = Self::insert(pd, Kind::User, None, empty, flags)?;
        self.region.refuse_windows()?;
        let mut old = self.regions.take(&self.region).ok_or(EINVAL)?;
        // No step fails from here on.
        match room {
            Some(room) => old.memory = room.fill(old.memory),
            // The memory may already be divisible. No window is bound to the new region yet.
            None => {
                let _ = new.region.refuse_windows();
            }
        }
        new.region.body.update(|body| {
            body.base = old.base;
            body.len = old.len;
            core::mem::swap(&mut body.memory, &mut old.memory);
            body.valid = true;
        });
        Ok(new)
    }
}
