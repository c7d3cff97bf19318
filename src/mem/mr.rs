// SPDX-License-Identifier: GPL-2.0

//! Memory regions: what an STag stands for.
//!
//! Registers a process's memory, another driver's memory, all kernel memory, and by work request
//! page lists of kernel consumers; binds windows; ends both. The data path looks up a [`Region`] by
//! STag, checks a peer's or work request's access against it, and accesses it for the time of one
//! copy.
//!
//! Everything that a check and the copy after it rely on (STag, range, rights, memory) is one value
//! in a [`BhRevocable`], [`Body`]. A guard holds it constant. Changing it or ending the region
//! waits until all guards are dropped and refuses new ones meanwhile. So once deregistration or an
//! invalidation has returned, no octet is placed in the memory or read from it (RFC 5040, section
//! 8.1.1; RDMAP-165).
//!
//! Context: registration and deregistration in process context, the rest in any but hard interrupt.

use core::ops::Deref;

use iwarp::{
    fault::Fault,
    stag::{
        check_invalidate,
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
    rdma::{
        mem::mem_map::Memory,
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

use crate::{
    device::strict::{
        EndedKey,
        KeyEnd, //
    },
    mem::rights::to_rights, //
};

#[cfg(CONFIG_KUNIT = "y")]
pub(crate) mod bench;
pub(crate) mod registration;
mod reregistration;
#[cfg(CONFIG_KUNIT = "y")]
mod tests;
pub(crate) mod window;

use window::Claim;

/// The kind of memory behind a region, which decides the operations that the region allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Memory that a process registered, from registration to deregistration.
    User,
    /// All kernel memory.
    Dma,
    /// Pages of a kernel consumer, made valid and invalid by work requests.
    FastReg,
    /// A part of a process's region, made valid and invalid by work requests.
    Window(MwType),
}

/// The number of a protection domain, unique over the life of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PdId(u64);

impl PdId {
    /// Makes the number from a count that never repeats.
    pub(crate) const fn new(count: u64) -> Self {
        Self(count)
    }
}

/// Identifies a queue pair over the life of the device, unlike its number, which a later queue pair
/// may get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QpSerial(u64);

impl QpSerial {
    /// Makes it from a count that never repeats.
    pub(crate) const fn new(count: u64) -> Self {
        Self(count)
    }
}

/// The attributes of a stream that the checks of a region use.
#[derive(Clone, Copy)]
pub(crate) struct StreamId {
    pub(crate) pd: PdId,
    /// Its queue pair.
    pub(crate) qp: QpSerial,
    /// The most that its peer may do.
    pub(crate) rights: Access,
}

/// What a local work request does with memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LocalUse {
    /// Reads octets from it.
    Source,
    /// Places octets in it.
    Sink,
}

/// A memory region.
pub(crate) struct Region {
    kind: Kind,
    pd: PdId,
    /// Copy of the body's STag, for readers without a guard.
    stag: Atomic<u32>,
    /// The number of windows bound to it, or [`CLOSED`].
    windows: Atomic<u32>,
    /// The rights that peers have used, as [`Access::bits`]; noted in the strict mode.
    // ORDERING: Relaxed: stands for no other memory.
    used: Atomic<u32>,
    body: BhRevocable<Body>,
}

/// The state of a region: constant while a [`RegionGuard`] exists.
pub(crate) struct Body {
    pub(super) stag: Stag,
    base: u64,
    len: u64,
    access: Access,
    /// False for a region for fast registration that is not registered, and a window that is not
    /// bound.
    valid: bool,
    /// The only queue pair that may use it.
    tied_to: Option<QpSerial>,
    /// The queue pair that it was fast-registered on; only that queue pair's peer may invalidate
    /// it.
    registered_on: Option<QpSerial>,
    memory: Memory,
    /// The region that a window is bound to. Declared after the memory, which has to be dropped
    /// first.
    claim: Option<Claim>,
    /// How often the window was bound.
    binding: u64,
}

impl Body {
    /// Makes the body of a region that all streams of its domain may use.
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
            binding: 0,
        }
    }
}

/// Access to a region. Bottom halves are off while it lives; its holder must not sleep.
pub(crate) struct RegionGuard<'a>(BhRevocableGuard<'a, Body>);

impl Deref for RegionGuard<'_> {
    type Target = Body;

    #[inline]
    fn deref(&self) -> &Body {
        &self.0
    }
}

impl Body {
    /// Returns what its key was, if it was valid, for a region that is deregistered.
    #[cold]
    pub(super) fn ended_key(&self) -> Option<EndedKey> {
        self.valid.then_some(EndedKey {
            stag: self.stag,
            base: self.base,
            len: self.len,
            end: KeyEnd::Deregistered,
        })
    }

    /// Returns the memory. Offsets in it count from the region's first address.
    #[inline]
    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Returns which binding of a window this is, also if its key is one of an earlier binding. The
    /// memory of one binding stays the same until it is invalidated.
    #[inline]
    pub(crate) fn binding(&self) -> u64 {
        self.binding
    }

    /// Returns the offset of an address in the region, if it is inside or directly after the end.
    #[inline]
    pub(crate) fn offset(&self, addr: u64) -> Option<u64> {
        addr.checked_sub(self.base)
            .filter(|offset| *offset <= self.len)
    }
}

impl Region {
    /// Makes a region of a domain.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(super) fn new(kind: Kind, pd: PdId, body: Body) -> Result<Arc<Self>> {
        let region = Self {
            kind,
            pd,
            stag: Atomic::new(body.stag.raw()),
            windows: Atomic::new(0),
            used: Atomic::new(0),
            body: BhRevocable::new(body),
        };
        Ok(Arc::new(region, GFP_KERNEL_ACCOUNT)?)
    }

    /// Ends the region: afterwards no guard of it exists. Returns its body; [`None`] if it has
    /// ended before.
    ///
    /// Context: process, sleeps.
    pub(super) fn revoke(&self) -> Option<Body> {
        self.body.revoke()
    }

    /// Notes that a peer has used these rights. Context: any.
    #[cold]
    pub(crate) fn note_use(&self, rights: Access) {
        let mut used = self.used.load(Relaxed);
        loop {
            let both = used | u32::from(rights.bits());
            match self.used.cmpxchg(used, both, Relaxed) {
                Ok(_) => return,
                Err(other) => used = other,
            }
        }
    }

    /// Returns whether peers have a right that none has used, of those that a process's region with
    /// this body grants. Context: any.
    #[cold]
    pub(super) fn has_unused_rights(&self, body: &Body) -> bool {
        let for_peers = Access::ALL.without(Access::LOCAL_WRITE);
        // CAST: The lowest octet holds them all.
        let used = Access::from_bits(self.used.load(Relaxed) as u8);
        let granted = body.access.intersection(for_peers);
        self.kind == Kind::User && !used.contains(granted)
    }

    /// Returns the current STag. Context: any.
    #[inline]
    pub(crate) fn stag(&self) -> Stag {
        // ORDERING: none of its own: who names a new STag learned it from a message or completion
        // behind the store, and locks order both. Checks use the STag of the body.
        Stag::new(self.stag.load(Relaxed))
    }

    /// Returns whether the region has not ended yet; it may end at any time. Context: any.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.body.is_accessible()
    }

    /// Gives access to the region for the time of one copy; [`None`] once it is deregistered.
    ///
    /// Make the check that the copy relies on under the returned guard.
    #[inline]
    pub(crate) fn try_access(&self) -> Option<RegionGuard<'_>> {
        self.body.try_access().map(RegionGuard)
    }

    /// As [`Region::try_access`], for a caller that has bottom halves off already.
    #[inline]
    pub(crate) fn try_access_bh_off<'a>(&'a self, off: BhOff<'a>) -> Option<RegionGuard<'a>> {
        self.body.try_access_bh_off(off).map(RegionGuard)
    }

    /// As [`Region::try_access_bh_off`] with `off`, else as [`Region::try_access`].
    #[inline(always)]
    pub(crate) fn open<'a>(&'a self, off: Option<BhOff<'a>>) -> Option<RegionGuard<'a>> {
        match off {
            Some(off) => self.try_access_bh_off(off),
            None => self.try_access(),
        }
    }

    /// Returns what the checks of the protocol need, for a stream.
    ///
    /// May be outdated at once; before a copy use [`Region::view_inside`].
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

    /// Returns whether peers may write to it, or to a window of it.
    pub(crate) fn is_remote_writable(&self) -> bool {
        let rights = self.try_access().map(|inside| inside.access);
        rights.is_some_and(|rights| rights.contains(Access::REMOTE_WRITE)) || self.windows() != 0
    }

    /// As [`Region::view`], under a guard: stays true while `inside` lives.
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

    #[inline]
    fn association(&self, tied_to: Option<QpSerial>, stream: StreamId) -> Association {
        if self.pd == stream.pd && tied_to.is_none_or(|qp| qp == stream.qp) {
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

    /// As [`Region::check_local`], under a guard: stays true while `inside` lives.
    #[inline]
    pub(crate) fn check_local_inside(
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
    /// names their first octet `base`, which may differ from the address that mapping proposed
    /// (net/sunrpc/xprtrdma/frwr_ops.c).
    ///
    /// # Errors
    ///
    /// [`WcStatus::LocalQpOperation`] if the region is not for fast registration, belongs to
    /// another domain, is deregistered, or `key` has another index; [`WcStatus::LocalProtection`]
    /// if it is registered already, or [`to_rights`] refuses the rights, or a peer would have the
    /// right to flush it to persistent memory.
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
        if access.contains(Access::FLUSH_PERSISTENT) {
            return Err(WcStatus::LocalProtection);
        }
        let registered = self.change(
            |body| !body.valid,
            |body| {
                body.stag = key;
                body.base = base;
                body.access = access;
                body.registered_on = Some(stream.qp);
                body.valid = true;
                self.stag.store(key.raw(), Relaxed);
            },
        );
        match registered {
            true => Ok(()),
            false if self.is_open() => Err(WcStatus::LocalProtection),
            false => Err(WcStatus::LocalQpOperation),
        }
    }

    /// Changes the body if `may` returns true; returns whether it did. A request that is refused
    /// leaves the region accessible meanwhile: it may name a region that streams of others use, and
    /// these would find it revoked while [`BhRevocable::update`] waits. While another change runs,
    /// nobody has access anyway, so this one waits for it.
    fn change(&self, may: impl Fn(&Body) -> bool, change: impl FnOnce(&mut Body)) -> bool {
        let refused = self
            .try_access()
            .map_or(!self.is_open(), |inside| !may(&inside));
        if refused {
            return false;
        }
        let mut changed = false;
        self.body.update(|body| {
            // Another request may have been faster.
            if may(body) {
                change(body);
                changed = true;
            }
        });
        changed
    }

    /// Invalidates the region for the local consumer: LOCAL_INV, or a Read that invalidates its
    /// sink. Returns when no copy is in flight any more. Has no effect on a region that is not
    /// registered, for instance since new pages were mapped.
    ///
    /// # Errors
    ///
    /// [`WcStatus::LocalQpOperation`] if `key` is not its key, or it cannot be invalidated.
    pub(crate) fn invalidate_local(&self, stream: StreamId, key: Stag) -> Result<(), WcStatus> {
        self.invalidate(stream, key, |_| true)
            .map(|_was_valid| ())
            .ok_or(WcStatus::LocalQpOperation)
    }

    /// Invalidates the region for the peer: a Send with Invalidate. Returns when no copy is in
    /// flight any more.
    ///
    /// A peer can invalidate only a region for fast registration or a window of type 2, which serve
    /// one use. Memory that a process registered may serve many streams (RFC 5040, section 8.1.1;
    /// RDMAP-166).
    ///
    /// # Errors
    ///
    /// Those of [`check_invalidate`].
    pub(crate) fn invalidate_remote(&self, stream: StreamId, stag: Stag) -> Result<(), Fault> {
        let theirs = |body: &Body| body.registered_on.is_none_or(|qp| qp == stream.qp);
        let open = self.try_access().is_some_and(|inside| theirs(&inside));
        let permission = if open && self.can_be_invalidated() {
            RemoteInvalidation::Allowed
        } else {
            RemoteInvalidation::Forbidden
        };
        check_invalidate(Some(&self.view(stream)), stag, permission)?;
        match self.invalidate(stream, stag, theirs) {
            Some(true) => Ok(()),
            // It was invalidated since the check.
            Some(false) | None => Err(Fault::InvalidateUnknown),
        }
    }

    /// Returns whether the region was valid; [`None`] if the stream cannot invalidate it, or `may`
    /// returns false.
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
        self.change(
            |body| {
                let tied = body.tied_to.is_some_and(|qp| qp != stream.qp);
                body.stag == stag && !tied && may(body)
            },
            |body| {
                was_valid = Some(body.valid);
                body.valid = false;
                released = body.unbind();
            },
        );
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
