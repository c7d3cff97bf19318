// SPDX-License-Identifier: GPL-2.0

//! Memory windows: parts of a process's region with keys and rights of their own.
//!
//! A process makes windows; work requests bind them to a region and invalidate them. A window is a
//! [`Region`] whose memory is a part of another region's. While it is bound, it holds a [`Claim`]
//! on that region, which therefore cannot be deregistered. So the part is dropped before the whole
//! is unpinned, which only deregistration does.
//!
//! | type | bound | tied to | invalidated by |
//! |---|---|---|---|
//! | 1 | repeatedly, each time under another key | its protection domain | a bind of no octets |
//! | 2 | once, until invalidated | its protection domain and the binding queue pair | either side |
//!
//! Context: process for making and freeing; the transmit task binds. RFC 5040, section 8.1.1.

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
    rdma::{
        mem::mem_map::Memory,
        types::{
            AccessFlags,
            MwType, //
        },
        wr::WcStatus, //
    },
    warn_on_once, //
};

use super::{
    Body,
    Kind,
    Region,
    StreamId, //
};
use crate::mem::rights::named_rights;

/// No window may be bound any more, because the region is being deregistered.
const CLOSED: u32 = 1 << 31;

/// Counts a window in the region that it is bound to, until it is dropped.
pub(super) struct Claim(Arc<Region>);

impl Drop for Claim {
    fn drop(&mut self) {
        // ORDERING: `Full` pairs with the exchange in `refuse_windows`: the part of the memory was
        // dropped before, so who finds no window may unpin the whole.
        let before = self.0.windows.fetch_sub(1, Full);
        // `Region::claim` has counted this one, and only a region without any is closed.
        warn_on_once!(before == 0 || before & CLOSED != 0);
    }
}

/// A work request that binds a window.
#[derive(Clone, Copy)]
pub(crate) struct Bind {
    /// The current STag of the window.
    pub(crate) window: Stag,
    /// The new STag of the window; its index is that of the window.
    pub(crate) key: Stag,
    /// The STag of the region.
    pub(crate) region: Stag,
    /// Where the window begins, as an address of the region.
    pub(crate) addr: u64,
    /// Length in octets; 0 unbinds a window of type 1.
    pub(crate) len: u64,
    /// The rights that the window grants.
    pub(crate) access: AccessFlags,
}

impl Body {
    /// Unbinds a window. The caller drops the returned claim outside the update.
    pub(super) fn unbind(&mut self) -> Option<Claim> {
        let claim = self.claim.take()?;
        self.memory = Memory::nothing();
        Some(claim)
    }
}

impl Region {
    /// Refuses to bind windows from now on.
    ///
    /// # Errors
    ///
    /// `EBUSY` if a window is bound.
    pub(super) fn refuse_windows(&self) -> Result {
        // ORDERING: pairs with the drop of a `Claim`.
        match self.windows.cmpxchg(0, CLOSED, Full) {
            Ok(_) | Err(CLOSED) => Ok(()),
            Err(_) => Err(EBUSY),
        }
    }

    /// Returns how many windows are bound to it.
    pub(super) fn windows(&self) -> u32 {
        // ORDERING: none: only for reports.
        self.windows.load(Relaxed) & !CLOSED
    }

    /// Counts a window that is about to be bound to it; [`None`] if windows are refused.
    fn claim(self: &Arc<Self>) -> Option<Claim> {
        // ORDERING: none: one word decides between this and `refuse_windows`, and access to the
        // memory begins with `try_access`.
        let mut seen = self.windows.load(Relaxed);
        while seen & CLOSED == 0 {
            match self.windows.cmpxchg(seen, seen + 1, Relaxed) {
                Ok(_) => return Some(Claim(self.clone())),
                Err(now) => seen = now,
            }
        }
        None
    }

    /// Makes the body of a window on this region.
    ///
    /// # Errors
    ///
    /// [`WcStatus::MwBind`] if the region belongs to another domain, allows no windows or not these
    /// rights, or the range is not inside.
    fn divide(self: &Arc<Self>, stream: StreamId, bind: &Bind) -> Result<Body, WcStatus> {
        const REFUSED: WcStatus = WcStatus::MwBind;
        let access = named_rights(bind.access).map_err(|_| REFUSED)?;
        if self.kind != Kind::User || self.pd != stream.pd {
            return Err(REFUSED);
        }
        let inside = self.try_access().ok_or(REFUSED)?;
        if !inside.valid
            || inside.stag != bind.region
            || (access.contains(Access::REMOTE_WRITE) || access.contains(Access::REMOTE_ATOMIC))
                && !inside.access.contains(Access::LOCAL_WRITE)
            || access.contains(Access::FLUSH_PERSISTENT)
                && !inside.access.contains(Access::FLUSH_PERSISTENT)
        {
            return Err(REFUSED);
        }
        let skip = inside.offset(bind.addr).ok_or(REFUSED)?;
        let memory = inside.memory().part(skip, bind.len).ok_or(REFUSED)?;
        // Last: while it is counted, the region cannot be deregistered.
        let claim = self.claim().ok_or(REFUSED)?;
        Ok(Body {
            claim: Some(claim),
            ..Body::new(bind.addr, bind.len, access, memory)
        })
    }

    /// Binds this window to a region, or unbinds it.
    ///
    /// # Errors
    ///
    /// [`WcStatus::MwBind`] if it is not a window, belongs to another domain, or cannot be bound in
    /// its state; and those of [`Region::divide`].
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
        if self.pd != stream.pd {
            return Err(REFUSED);
        }
        let mut new = match (bind.len, region) {
            (0, _) => Body {
                valid: false,
                ..Body::new(0, 0, Access::NONE, Memory::nothing())
            },
            (_, Some(region)) => region.divide(stream, bind)?,
            (_, None) => return Err(REFUSED),
        };
        new.stag = Stag::from_parts(self.stag().index(), bind.key.key());
        new.tied_to = (kind == MwType::Two).then_some(stream.qp);
        // Drops the body that is in `new` afterwards outside the update.
        let bound = self.change(
            |body| {
                let free = kind == MwType::One || (!body.valid && bind.len != 0);
                free && body.stag == bind.window
            },
            |body| {
                // NO-OVERFLOW: no window is bound 2^64 times; wrapping for the compiler's sake.
                new.binding = body.binding.wrapping_add(1);
                core::mem::swap(body, &mut new);
                self.stag.store(body.stag.raw(), Relaxed);
            },
        );
        if bound {
            Ok(())
        } else {
            Err(REFUSED)
        }
    }
}
