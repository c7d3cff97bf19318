// SPDX-License-Identifier: GPL-2.0

//! Fast-registered memory, for the KUnit suites of other modules.
//!
//! Context: process.

use iwarp::stag::Access;
use kernel::{
    page::PAGE_SIZE,
    prelude::*,
    sync::Arc, //
};
use kernel_ext::{
    mm::shared_ring::SharedMem,
    rdma::{
        bench::{
            kernel_owned,
            SgList, //
        },
        mem::mem_map::{
            KernelPages,
            Shape, //
        },
        ops::MrOps,
        types::AccessFlags, //
    }, //
};

use super::{
    registration::Mr,
    QpSerial,
    StreamId, //
};
use crate::mem::pd::Pd;

/// Length of the memory of [`Target::new`], in octets.
pub(crate) const LEN: usize = 64;

/// Fast-registered memory.
pub(crate) struct Target {
    pub(crate) mr: Arc<Mr>,
    _pages: Arc<KernelPages>,
    pub(crate) memory: SharedMem,
}

impl Target {
    /// Registers the first [`LEN`] octets of a page in a domain, with all rights, from the tagged
    /// offset `base` on, as if on the queue pair `qp`.
    pub(crate) fn new(pd: &Arc<Pd>, qp: QpSerial, base: u64) -> Result<Self> {
        let all = AccessFlags::LOCAL_WRITE
            | AccessFlags::REMOTE_WRITE
            | AccessFlags::REMOTE_READ
            | AccessFlags::REMOTE_ATOMIC;
        Self::of(pd, qp, (base, LEN), all)
    }

    /// As [`Target::new`], from a tagged offset on, so many octets, with these rights.
    pub(crate) fn of(
        pd: &Arc<Pd>,
        qp: QpSerial,
        (base, len): (u64, usize),
        rights: AccessFlags,
    ) -> Result<Self> {
        let owned = kernel_owned();
        let created = Mr::fast_reg(pd.as_arc_borrow(), owned, Shape::Pages, 1)?;
        let target = Self {
            mr: created.mr,
            _pages: created.pages.ok_or(EINVAL)?,
            memory: SharedMem::try_new(PAGE_SIZE)?,
        };
        // CAST: both are short.
        let piece = (target.memory.start(), len as u32);
        let mut list = SgList::try_new(&target._pages, PAGE_SIZE as u32, [piece].into_iter(), 0)?;
        assert_eq!(target.mr.map_sg(&mut list.view()), Ok(1));
        let stream = StreamId {
            pd: pd.id(),
            qp,
            rights: Access::ALL,
        };
        let key = target.mr.region.stag();
        assert_eq!(target.mr.region.register(stream, key, base, rights), Ok(()));
        Ok(target)
    }

    pub(crate) fn key(&self) -> u32 {
        self.mr.region.stag().raw()
    }

    pub(crate) fn is_valid(&self, pd: &Pd) -> bool {
        let stream = StreamId {
            pd: pd.id(),
            qp: QpSerial::new(0),
            rights: Access::ALL,
        };
        self.mr.region.view(stream).valid
    }

    pub(crate) fn word(&self, at: usize) -> Option<u64> {
        self.memory.copy_out(at)
    }

    /// Returns the memory, and as many octets behind it.
    pub(crate) fn octets(&self) -> Option<[u8; 2 * LEN]> {
        self.memory.copy_out(0)
    }
}
