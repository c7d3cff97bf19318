// SPDX-License-Identifier: GPL-2.0

//! Memory regions: what an STag stands for.
//!
//! What enters: registrations (of a process's memory, of another driver's, of all kernel memory, of
//! page lists by work request), windows bound to them, and their ends. What leaves: a [`Region`]
//! that the data path looks up by STag, checks against what a peer or a work request wants, and
//! enters for the time of one copy.
//!
//! Everything that a check and the copy after it rely on (STag, range, rights, memory) is one value
//! behind a [`BhRevocable`], [`Body`]. Whoever has access sees one consistent state; whoever
//! changes it or ends the region waits until all are out and lets nobody in meanwhile. So once
//! deregistration or an invalidation has returned, nothing is placed in the memory any more, and
//! nothing is read from it (RFC 5040, section 8.1.1; RDMAP-165).
//!
//! Context: registration and deregistration in process context, the rest in any but hard interrupt.

use core::ops::Deref;

use iwarp::{
    atomic::{
        check_alignment,
        AtomicRequest,
        TARGET_LEN, //
    },
    fault::Fault,
    stag::{
        check_invalidate,
        check_source,
        Access,
        Association,
        RegionView,
        RemoteInvalidation,
        Stag, //
    }, //
};
use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc, //
    }, //
};
use kernel_ext::{
    mm::mem_map::Memory,
    random,
    rdma::{
        types::{
            AccessFlags,
            MwType, //
        },
        wr::WcStatus, //
    },
    sync::{
        BhOff,
        BhRevocable,
        BhRevocableGuard, //
    }, //
};

use crate::mem::{
    pd::{
        Pd,
        PdId, //
    },
    regions::Regions, //
};

mod registration;
mod reregistration;
#[cfg(CONFIG_KUNIT = "y")]
mod tests;
mod window;

use registration::{
    named_rights,
    to_rights, //
};
pub(crate) use registration::{
    rights_among,
    Mr,
    MAX_FAST_REG_PAGES, //
};
use window::Claim;
pub(crate) use window::{
    Bind,
    Mw, //
};

/// What a region is made of, which decides what may be done to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Memory that a process registered, from registration to deregistration.
    User,
    /// All of kernel memory.
    Dma,
    /// Pages of a kernel consumer, made valid and invalid by work requests.
    FastReg,
    /// A part of a process's region, made valid and invalid by work requests.
    Window(MwType),
}

/// A stream, as regions know it.
#[derive(Clone, Copy)]
pub(crate) struct StreamId {
    pub(crate) pd: PdId,
    /// The number of its queue pair.
    pub(crate) qpn: u32,
    /// What its peer may do at most.
    pub(crate) rights: Access,
}

/// What a local work request does with memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LocalUse {
    /// Takes octets from it.
    Source,
    /// Places octets in it.
    Sink,
}

/// A memory region.
pub(crate) struct Region {
    kind: Kind,
    pd: PdId,
    /// Copy of the body's STag, for look-ups from outside.
    stag: Atomic<u32>,
    /// Windows that are bound to it, or [`CLOSED`].
    windows: Atomic<u32>,
    body: BhRevocable<Body>,
}

/// The state of a region: constant as long as somebody is inside.
pub(crate) struct Body {
    stag: Stag,
    base: u64,
    len: u64,
    access: Access,
    /// False for a region for fast registration that is not registered, and a window that is not
    /// bound.
    valid: bool,
    /// The queue pair that alone may use it.
    tied_to: Option<u32>,
    /// The queue pair that it was fast-registered on, whose peer alone may invalidate it.
    registered_on: Option<u32>,
    memory: Memory,
    /// What a window is bound to. Behind the memory, which has to go first.
    claim: Option<Claim>,
}

impl Body {
    /// That of a region which all streams of its domain may use.
    fn new(base: u64, len: u64, access: Access, memory: Memory) -> Self {
        Self {
            stag: Stag::ZERO,
            base,
            len,
            access,
            valid: true,
            tied_to: None,
            registered_on: None,
            memory,
            claim: None,
        }
    }
}

/// The inside of a region. Bottom halves are off; no sleeping.
pub(crate) struct RegionGuard<'a>(BhRevocableGuard<'a, Body>);

impl Deref for RegionGuard<'_> {
    type Target = Body;

    #[inline]
    fn deref(&self) -> &Body {
        &self.0
    }
}

impl Body {
    /// Where the octets are. Offsets into it count from the region's first address.
    #[inline]
    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Says where in the region an address is, if it is inside or just behind its end.
    #[inline]
    pub(crate) fn offset(&self, addr: u64) -> Option<u64> {
        addr.checked_sub(self.base)
            .filter(|offset| *offset <= self.len)
    }
}

impl Region {
    fn new(kind: Kind, pd: PdId, body: Body) -> Result<Arc<Self>> {
        let region = Self {
            kind,
            pd,
            stag: Atomic::new(body.stag.raw()),
            windows: Atomic::new(0),
            body: BhRevocable::new(body),
        };
        Ok(Arc::new(region, GFP_KERNEL_ACCOUNT)?)
    }

    /// Puts a new region into the device's table. Without a `key` it gets one that nobody can
    /// foresee (RFC 5040, section 8.1.1; RDMAP-167).
    fn insert(pd: &Pd, kind: Kind, key: Option<u8>, mut body: Body) -> Result<Arc<Self>> {
        let [unforeseen] = random::octets();
        let key = key.unwrap_or(unforeseen);
        pd.regions().insert(|index| {
            body.stag = Stag::from_parts(index, key);
            Self::new(kind, pd.id(), body)
        })
    }

    /// Ends the region: afterwards its STag leads nowhere and nobody is inside.
    ///
    /// Context: process, sleeps.
    fn end(&self, regions: &Regions) {
        // Streams may still hold the region itself; what is inside goes now.
        drop(self.take(regions));
    }

    /// Ends the region and returns what was inside; [`None`] if it has ended before.
    ///
    /// Context: process, sleeps.
    fn take(&self, regions: &Regions) -> Option<Body> {
        // The index is given back by the one call that revoked it, since afterwards it may be
        // another region's.
        let body = self.body.revoke()?;
        regions.remove(body.stag.index());
        Some(body)
    }

    /// The current STag. Context: any.
    #[inline]
    pub(crate) fn stag(&self) -> Stag {
        // ORDERING: Only a filter; checks use the STag of the body.
        Stag::new(self.stag.load(Relaxed))
    }

    /// Says whether the region is not deregistered, which it may be a moment later. Context: any.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.body.is_accessible()
    }

    /// Enters the region for the time of one copy; [`None`] once it is deregistered.
    ///
    /// The check that the copy relies on belongs inside, on the value returned here.
    #[inline]
    pub(crate) fn try_access(&self) -> Option<RegionGuard<'_>> {
        self.body.try_access().map(RegionGuard)
    }

    /// As [`Region::try_access`], for who has switched bottom halves off already.
    #[inline]
    pub(crate) fn try_access_bh_off<'a>(&'a self, off: BhOff<'a>) -> Option<RegionGuard<'a>> {
        self.body.try_access_bh_off(off).map(RegionGuard)
    }

    /// What the checks of the protocol have to know, as seen from a stream.
    ///
    /// Good for one answer; for a check that is followed by a copy use [`Region::view_inside`].
    pub(crate) fn view(&self, stream: StreamId) -> RegionView {
        match self.try_access() {
            Some(inside) => self.view_inside(&inside, stream),
            None => RegionView {
                stag: self.stag(),
                base: 0,
                len: 0,
                access: Access::NONE,
                association: self.association(None, stream),
                valid: false,
            },
        }
    }

    /// As [`Region::view`], from the inside: holds as long as `inside` lives.
    #[inline]
    pub(crate) fn view_inside(&self, inside: &RegionGuard<'_>, stream: StreamId) -> RegionView {
        RegionView {
            stag: inside.stag,
            base: inside.base,
            len: inside.len,
            access: inside.access.intersection(stream.rights),
            association: self.association(inside.tied_to, stream),
            valid: inside.valid,
        }
    }

    /// Checks the target of an atomic operation of the peer, and returns its offset in the region.
    ///
    /// # Errors
    ///
    /// As [`check_source`], then as [`check_alignment`].
    pub(crate) fn check_atomic(
        &self,
        inside: &RegionGuard<'_>,
        stream: StreamId,
        request: &AtomicRequest,
    ) -> Result<u64, Fault> {
        let view = self.view_inside(inside, stream);
        let (stag, to) = (request.stag, request.to);
        let at = check_source(Some(&view), stag, to, TARGET_LEN, Access::REMOTE_ATOMIC)?;
        let address = inside.memory().address(at).ok_or(Fault::SourceBounds)?;
        // CAST: `usize` is 64 bits.
        check_alignment(address as u64)?;
        Ok(at)
    }

    #[inline]
    fn association(&self, tied_to: Option<u32>, stream: StreamId) -> Association {
        if self.pd == stream.pd && tied_to.is_none_or(|qpn| qpn == stream.qpn) {
            Association::Ours
        } else {
            Association::Foreign
        }
    }

    /// Checks an element of a work request's scatter/gather list, and returns its offset in the
    /// region. An element without octets is not checked.
    ///
    /// # Errors
    ///
    /// [`WcStatus::LocalProtection`] if the key is wrong or not valid now, the region belongs to
    /// another domain, the range is not inside it, or it may not be written and `usage` is
    /// [`LocalUse::Sink`].
    pub(crate) fn check_local(
        &self,
        key: Stag,
        pd: PdId,
        addr: u64,
        len: u32,
        usage: LocalUse,
    ) -> Result<u64, WcStatus> {
        match self.try_access() {
            Some(inside) => self.check_local_inside(&inside, key, pd, addr, len, usage),
            None if len == 0 => Ok(0),
            None => Err(WcStatus::LocalProtection),
        }
    }

    /// As [`Region::check_local`], from the inside: holds as long as `inside` lives.
    #[inline]
    pub(super) fn check_local_inside(
        &self,
        inside: &RegionGuard<'_>,
        key: Stag,
        pd: PdId,
        addr: u64,
        len: u32,
        usage: LocalUse,
    ) -> Result<u64, WcStatus> {
        if len == 0 {
            return Ok(0);
        }
        let granted = match usage {
            LocalUse::Source => true,
            LocalUse::Sink => inside.access.contains(Access::LOCAL_WRITE),
        };
        let window = matches!(self.kind, Kind::Window(_));
        if !inside.valid || inside.stag != key || self.pd != pd || !granted || window {
            return Err(WcStatus::LocalProtection);
        }
        let offset = inside.offset(addr).ok_or(WcStatus::LocalProtection)?;
        match inside.len.checked_sub(offset) {
            Some(room) if u64::from(len) <= room => Ok(offset),
            Some(_) | None => Err(WcStatus::LocalProtection),
        }
    }

    /// Registers the pages that were mapped last: the work request REG_MR on `stream`. The peer
    /// names their first octet `base`, which need not be what mapping has proposed
    /// (net/sunrpc/xprtrdma/frwr_ops.c).
    ///
    /// # Errors
    ///
    /// [`WcStatus::LocalQpOperation`] if the region is not for fast registration, belongs to
    /// another domain, is deregistered, or `key` has another index; [`WcStatus::LocalProtection`]
    /// if it is registered already or the rights make no sense.
    pub(crate) fn register(
        &self,
        stream: StreamId,
        key: Stag,
        base: u64,
        access: AccessFlags,
    ) -> Result<(), WcStatus> {
        if self.kind != Kind::FastReg || self.pd != stream.pd || key.index() != self.stag().index()
        {
            return Err(WcStatus::LocalQpOperation);
        }
        let access = to_rights(access).map_err(|_| WcStatus::LocalProtection)?;
        let mut refused = false;
        let open = self.body.update(|body| {
            refused = body.valid;
            if !refused {
                body.stag = key;
                body.base = base;
                body.access = access;
                body.registered_on = Some(stream.qpn);
                body.valid = true;
                self.stag.store(key.raw(), Relaxed);
            }
        });
        match (open, refused) {
            (true, false) => Ok(()),
            (true, true) => Err(WcStatus::LocalProtection),
            (false, _) => Err(WcStatus::LocalQpOperation),
        }
    }

    /// Takes the registration back on behalf of the local consumer: LOCAL_INV, or a Read that
    /// invalidates its sink. Returns when no copy is in flight any more. A region that is not
    /// registered stays so: mapping new pages has invalidated it before.
    ///
    /// # Errors
    ///
    /// [`WcStatus::LocalQpOperation`] if `key` is not its key, or it cannot be invalidated.
    pub(crate) fn invalidate_local(&self, stream: StreamId, key: Stag) -> Result<(), WcStatus> {
        self.invalidate(stream, key, |_| true)
            .map(|_was_valid| ())
            .ok_or(WcStatus::LocalQpOperation)
    }

    /// Takes the registration back on behalf of the peer: a Send with Invalidate. Returns when no
    /// copy is in flight any more.
    ///
    /// Only a region for fast registration and a window of type 2 are tied to one use; memory that
    /// a process registered may serve many streams, so no peer can take it away (RFC 5040, section
    /// 8.1.1; RDMAP-166).
    ///
    /// # Errors
    ///
    /// Those of [`check_invalidate`].
    pub(crate) fn invalidate_remote(&self, stream: StreamId, stag: Stag) -> Result<(), Fault> {
        let theirs = |body: &Body| body.registered_on.is_none_or(|qpn| qpn == stream.qpn);
        let open = self.try_access().is_some_and(|inside| theirs(&inside));
        let permission = if open && self.can_be_invalidated() {
            RemoteInvalidation::Allowed
        } else {
            RemoteInvalidation::Forbidden
        };
        check_invalidate(Some(&self.view(stream)), stag, permission)?;
        match self.invalidate(stream, stag, theirs) {
            Some(true) => Ok(()),
            // Somebody else was faster.
            Some(false) | None => Err(Fault::InvalidateUnknown),
        }
    }

    /// Says whether the region was valid; [`None`] if it is not for the caller to invalidate, or
    /// `may` says so.
    fn invalidate(
        &self,
        stream: StreamId,
        stag: Stag,
        may: impl Fn(&Body) -> bool,
    ) -> Option<bool> {
        if !self.can_be_invalidated() || self.pd != stream.pd {
            return None;
        }
        let mut was_valid = None;
        let mut released = None;
        self.body.update(|body| {
            let tied = body.tied_to.is_some_and(|qpn| qpn != stream.qpn);
            if body.stag == stag && !tied && may(body) {
                was_valid = Some(body.valid);
                body.valid = false;
                released = body.unbind();
            }
        });
        drop(released);
        was_valid
    }

    fn can_be_invalidated(&self) -> bool {
        match self.kind {
            Kind::FastReg | Kind::Window(MwType::Two) => true,
            Kind::User | Kind::Dma | Kind::Window(MwType::One) => false,
        }
    }
}
