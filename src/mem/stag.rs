// SPDX-License-Identifier: GPL-2.0

//! Looks up the region that an STag names.
//!
//! The index (24 bits) finds the region in the device's table, the key (8 bits) must match. The
//! table takes indices from anywhere in their range, so that a peer cannot foresee them (RFC 5040,
//! section 8.1.1; RDMAP-167).
//!
//! Context: any.

use core::ops::Range;

use iwarp::stag::Stag;
use kernel::sync::Arc;

use crate::{
    device::Device,
    mem::mr::Region, //
};

/// The indices of regions. Index 0 is left out, so that no region has STag 0, which messages carry
/// that name no region.
pub(crate) const INDICES: Range<u32> = 1..Stag::INDEX_MAX + 1;

impl Device {
    /// Finds the region whose current STag is exactly this one. The caller checks whether it may be
    /// used.
    ///
    /// Context: any.
    pub(crate) fn region(&self, stag: Stag) -> Option<Arc<Region>> {
        self.regions
            .get(stag.index())
            .filter(|region| region.stag() == stag)
    }
}
