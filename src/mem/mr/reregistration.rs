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
        Mr, //
    },
    Body,
    Kind, //
};
use crate::mem::{
    pd::Pd,
    rights::to_rights, //
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
    /// * `EACCES` if the memory that stays may not be written although the new rights need it.
    /// * `EBUSY` if a window is bound to it.
    /// * `EOPNOTSUPP` if memory that stays is to be paged on demand from now on, or not any more,
    ///   or takes no atomics and a peer is to have the right to them.
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
                let body = Body::new(memory.iova, memory.length, access, memory_of(&pd, &memory)?);
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
        if access.contains(Access::LOCAL_WRITE) && !self.stays(Memory::is_writable) {
            return Err(EACCES);
        }
        if access.contains(Access::REMOTE_ATOMIC) && !self.stays(Memory::takes_atomics) {
            return Err(EOPNOTSUPP);
        }
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

    /// Returns whether the memory that stays can do this.
    fn stays(&self, can: fn(&Memory) -> bool) -> bool {
        self.region
            .try_access()
            .is_some_and(|inside| can(inside.memory()))
    }
}
