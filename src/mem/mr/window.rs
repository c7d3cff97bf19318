// SPDX-License-Identifier: GPL-2.0

//! Memory windows: parts of a process's region with keys and rights of their own.
//!
//! What enters: windows that a process makes, and the work requests that bind them. What leaves:
//! keys for peers, that are taken back without a call. A window is a [`Region`] whose memory is a
//! part of another one's. As long as it is bound, the other one has a [`Claim`] on it and cannot be
//! deregistered; so the part is let go before the whole, which only deregistration unpins.
//!
//! | type | bound | tied to | invalidated by |
//! |---|---|---|---|
//! | 1 | repeatedly, each time under another key | its protection domain | a bind of no octets |
//! | 2 | once, until invalidated | its protection domain and the binding queue pair | either side |
//!
//! Context: making and freeing: process. Binding: the transmitter's. RFC 5040, section 8.1.1.

use iwarp::stag::{
    Access,
    Stag, //
};
use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Full,
            Relaxed, //
        },
        Arc, //
    }, //
};
use kernel_ext::{
    mm::mem_map::Memory,
    rdma::{
        types::{
            AccessFlags,
            MwType, //
        },
        wr::WcStatus, //
    }, //
};

use super::{
    named_rights,
    Body,
    Kind,
    Region,
    StreamId, //
};
use crate::{
    device::{
        Reservation,
        Resource, //
    },
    mem::{
        pd::Pd,
        regions::Regions, //
    }, //
};

/// No window may be bound any more: the region is being deregistered.
const CLOSED: u32 = 1 << 31;

/// That a region has a window; dropping it ends that.
pub(super) struct Claim(Arc<Region>);

impl Drop for Claim {
    fn drop(&mut self) {
        // ORDERING: Full: the part of the memory was let go before.
        self.0.windows.fetch_sub(1, Full);
    }
}

/// A work request that binds a window.
#[derive(Clone, Copy)]
pub(crate) struct Bind {
    /// The present key of the window.
    pub(crate) window: Stag,
    /// The key that it gets; its index is that of the window.
    pub(crate) key: Stag,
    /// The key of the region.
    pub(crate) region: Stag,
    /// Where the window begins, as an address of the region.
    pub(crate) addr: u64,
    /// Its octets; none ends the binding of a window of type 1.
    pub(crate) len: u64,
    /// The rights that it gives.
    pub(crate) access: AccessFlags,
}

impl Body {
    /// Lets go of what a window is bound to; to be dropped outside of the update.
    pub(super) fn unbind(&mut self) -> Option<Claim> {
        let claim = self.claim.take()?;
        self.memory = Memory::nothing();
        Some(claim)
    }
}

impl Region {
    /// Sees to it that no window is bound from now on.
    ///
    /// # Errors
    ///
    /// `EBUSY` if one is.
    pub(super) fn refuse_windows(&self) -> Result {
        match self.windows.cmpxchg(0, CLOSED, Full) {
            Ok(_) | Err(CLOSED) => Ok(()),
            Err(_) => Err(EBUSY),
        }
    }

    /// How many windows are bound to it.
    pub(super) fn windows(&self) -> u32 {
        self.windows.load(Relaxed) & !CLOSED
    }

    /// Notes that a window is going to be bound to it.
    fn claim(self: &Arc<Self>) -> Option<Claim> {
        let mut seen = self.windows.load(Relaxed);
        while seen & CLOSED == 0 {
            match self.windows.cmpxchg(seen, seen + 1, Full) {
                Ok(_) => return Some(Claim(self.clone())),
                Err(now) => seen = now,
            }
        }
        None
    }

    /// What a window on this region is made of.
    ///
    /// # Errors
    ///
    /// [`WcStatus::MwBind`] if the region is another domain's, grants no windows or not these
    /// rights, or the range is not inside.
    fn divide(self: &Arc<Self>, stream: StreamId, bind: &Bind) -> Result<Body, WcStatus> {
        const REFUSED: WcStatus = WcStatus::MwBind;
        let access = named_rights(bind.access).map_err(|_| REFUSED)?;
        let claim = self.claim().ok_or(REFUSED)?;
        let inside = self.try_access().ok_or(REFUSED)?;
        if self.kind != Kind::User
            || self.pd != stream.pd
            || !inside.valid
            || inside.stag != bind.region
            || (access.contains(Access::REMOTE_WRITE) || access.contains(Access::REMOTE_ATOMIC))
                && !inside.access.contains(Access::LOCAL_WRITE)
        {
            return Err(REFUSED);
        }
        let skip = inside.offset(bind.addr).ok_or(REFUSED)?;
        let memory = inside.memory().part(skip, bind.len).ok_or(REFUSED)?;
        Ok(Body {
            claim: Some(claim),
            ..Body::new(bind.addr, bind.len, access, memory)
        })
    }

    /// Binds this window to a region, or ends that.
    ///
    /// # Errors
    ///
    /// [`WcStatus::MwBind`] if it is no window, another domain's, or not in a state to be bound,
    /// and those of [`Region::divide`].
    pub(crate) fn bind(
        &self,
        stream: StreamId,
        bind: &Bind,
        region: Option<&Arc<Self>>,
    ) -> Result<(), WcStatus> {
        const REFUSED: WcStatus = WcStatus::MwBind;
        let Kind::Window(kind) = self.kind else {
            return Err(REFUSED);
        };
        let mut new = match (bind.len, region) {
            (0, _) => Body {
                valid: false,
                ..Body::new(0, 0, Access::NONE, Memory::nothing())
            },
            (_, Some(region)) => region.divide(stream, bind)?,
            (_, None) => return Err(REFUSED),
        };
        new.stag = Stag::from_parts(self.stag().index(), bind.key.key());
        new.tied_to = (kind == MwType::Two).then_some(stream.qpn);
        let mut bound = false;
        // What is left in `new` is dropped outside of the update.
        self.body.update(|body| {
            let free = kind == MwType::One || (!body.valid && bind.len != 0);
            if free && self.pd == stream.pd && body.stag == bind.window {
                core::mem::swap(body, &mut new);
                self.stag.store(body.stag.raw(), Relaxed);
                bound = true;
            }
        });
        if bound {
            Ok(())
        } else {
            Err(REFUSED)
        }
    }
}

/// What a consumer holds of a memory window.
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
    /// `ENOMEM` if the device has all windows that it can have, or memory is short.
    pub(crate) fn new(pd: &Pd, kind: MwType) -> Result<Arc<Self>> {
        let reservation = pd.device().reserve(Resource::Mw)?;
        let body = Body {
            valid: false,
            ..Body::new(0, 0, Access::NONE, Memory::nothing())
        };
        let mw = Self {
            region: Region::insert(pd, Kind::Window(kind), None, body)?,
            regions: pd.regions().clone(),
            _reservation: reservation,
        };
        Ok(Arc::new(mw, GFP_KERNEL_ACCOUNT)?)
    }

    /// The current STag.
    pub(crate) fn stag(&self) -> Stag {
        self.region.stag()
    }
}

impl Drop for Mw {
    fn drop(&mut self) {
        self.region.end(&self.regions);
    }
}
