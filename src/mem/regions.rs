// SPDX-License-Identifier: GPL-2.0

//! The regions of a device, by STag.
//!
//! The index of an STag (24 bits) finds the region in the table, the key (8 bits) must match. The
//! table takes indices from anywhere in their range, so that a peer cannot foresee them (RFC 5040,
//! section 8.1.1; RDMAP-167).
//!
//! Protection domains, regions and queue pairs hold the table. It holds the regions until they
//! end, and no region refers to it.

use core::ops::Range;

use iwarp::stag::{
    Access,
    Stag, //
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
    random,
    rcu_map::{
        Order,
        RcuMap, //
    }, //
};

use crate::{
    device::Device,
    mem::mr::{
        Body,
        Kind,
        PdId,
        Region, //
    }, //
};

/// The indices of regions. Index 0 is left out, so that no region has STag 0, which messages carry
/// that name no region.
const INDICES: Range<u32> = 1..Stag::INDEX_MAX + 1;

/// The table of a device's regions.
#[pin_data]
pub(crate) struct Regions {
    #[pin]
    table: RcuMap<Region>,
    /// How many protection domains were ever made.
    pds: Atomic<u64>,
    /// Dropped last, since the module may be unloaded without it.
    device: Arc<Device>,
}

impl Regions {
    /// Makes an empty table.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(device: Arc<Device>) -> Result<Arc<Self>> {
        Arc::try_pin_init(
            try_pin_init!(Self {
                table <- RcuMap::new(INDICES, Order::Scattered),
                pds: Atomic::new(0),
                device,
            }? Error),
            GFP_KERNEL,
        )
    }

    /// Returns the device.
    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Finds the region whose current STag is exactly this one. The caller checks whether it may be
    /// used.
    ///
    /// Context: any.
    pub(crate) fn region(&self, stag: Stag) -> Option<Arc<Region>> {
        self.table
            .get(stag.index())
            .filter(|region| region.stag() == stag)
    }

    /// Makes a region of a domain and enters it. Without a `key` the region gets a random one,
    /// which a peer cannot predict (RFC 5040, section 8.1.1; RDMAP-167).
    ///
    /// Context: process, sleeps.
    ///
    /// # Errors
    ///
    /// `ENOSPC` if all indices are taken, `ENOMEM`.
    pub(super) fn enter(
        &self,
        pd: PdId,
        kind: Kind,
        key: Option<u8>,
        mut body: Body,
    ) -> Result<Arc<Region>> {
        let [unforeseen] = random::octets();
        let key = key.unwrap_or(unforeseen);
        let region = self.table.insert(|index| {
            body.stag = Stag::from_parts(index, key);
            Region::new(kind, pd, body)
        })?;
        if !self.device.strict.is_on() {
            // What peers do with it is not noted from the beginning.
            region.note_use(Access::ALL);
        }
        Ok(region)
    }

    /// Ends a region: afterwards its STag finds no region and no guard of it exists.
    ///
    /// Context: process, sleeps.
    pub(super) fn end(&self, region: &Region) {
        // Drops the body now; streams may still hold the region.
        drop(self.take(region));
    }

    /// Ends a region and returns its body; [`None`] if it has ended before.
    ///
    /// Context: process, sleeps.
    pub(super) fn take(&self, region: &Region) -> Option<Body> {
        // Only the call that revokes the body frees the index: afterwards the index may belong to
        // another region.
        let body = region.revoke()?;
        if self.device.strict.is_on() {
            if let Some(ended) = body.ended_key() {
                self.device.strict.remember(ended);
            }
            if region.has_unused_rights(&body) {
                self.device.note_unused_rights();
            }
        }
        // The table's reference is dropped later.
        self.table.remove(body.stag.index());
        Some(body)
    }

    /// Waits until the references to all removed regions are dropped.
    ///
    /// Context: process, sleeps.
    pub(crate) fn flush(&self) {
        self.table.flush();
    }

    /// Returns a number that no protection domain of this device ever had.
    pub(super) fn next_pd_id(&self) -> PdId {
        // ORDERING: none: only makes the numbers differ.
        PdId::new(self.pds.fetch_add(1, Relaxed))
    }
}
