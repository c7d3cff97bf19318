// SPDX-License-Identifier: GPL-2.0

//! The queue pairs of a device, by number.
//!
//! A queue pair and the table refer to each other from creation until [`Qps::remove`], at the end
//! of the queue pair.

use core::ops::Range;

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
    rcu_map::{
        Order,
        RcuMap, //
    },
    rdma::object::QpLink, //
};

use crate::{
    device::Device,
    mem::mr::QpSerial, //
};

use super::Qp;

/// The table of a device's queue pairs.
#[pin_data]
pub(crate) struct Qps {
    #[pin]
    table: RcuMap<Qp>,
    /// The next serial number.
    serials: Atomic<u64>,
    /// Dropped last, since the module may be unloaded without it.
    device: Arc<Device>,
}

impl Qps {
    /// Makes an empty table.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(device: Arc<Device>) -> Result<Arc<Self>> {
        // Numbers 0 and 1 are special in other RDMA networks.
        Self::with_numbers(device, 2..1 << 24)
    }

    fn with_numbers(device: Arc<Device>, numbers: Range<u32>) -> Result<Arc<Self>> {
        Arc::try_pin_init(
            try_pin_init!(Self {
                table <- RcuMap::new(numbers, Order::Rising(16)),
                serials: Atomic::new(0),
                device,
            }? Error),
            GFP_KERNEL,
        )
    }

    /// Returns the device.
    pub(super) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Returns a serial number that no queue pair of this device ever had.
    pub(super) fn next_serial(&self) -> QpSerial {
        // ORDERING: none: only makes the numbers differ.
        QpSerial::new(self.serials.fetch_add(1, Relaxed))
    }

    /// Finds a queue pair.
    ///
    /// Context: any.
    pub(crate) fn get(&self, number: u32) -> Option<Arc<Qp>> {
        self.table.get(number)
    }

    /// Returns the queue pair with the lowest number that is not below `from`.
    ///
    /// Context: any; the returned reference may become the last one.
    pub(crate) fn next(&self, from: u32) -> Option<Arc<Qp>> {
        self.table.next(from)
    }

    /// Returns the link of a queue pair.
    ///
    /// Context: any.
    pub(crate) fn link(&self, number: u32) -> Option<QpLink> {
        self.table.with(number, |qp| qp.shared.link.clone())
    }

    /// Allocates a number and enters the queue pair that `make` returns for it.
    ///
    /// Context: process, sleeps.
    ///
    /// # Errors
    ///
    /// `ENOSPC` if all numbers are taken, `ENOMEM`, or what `make` returns.
    pub(super) fn insert(&self, make: impl FnOnce(u32) -> Result<Arc<Qp>>) -> Result<Arc<Qp>> {
        self.table.insert(make)
    }

    /// Removes a queue pair. The table's reference is dropped later.
    ///
    /// Context: process, sleeps.
    pub(crate) fn remove(&self, number: u32) {
        self.table.remove(number);
    }

    /// Waits until the references to all removed queue pairs are dropped.
    ///
    /// Context: process, sleeps.
    pub(crate) fn flush(&self) {
        self.table.flush();
    }
}

#[kernel::prelude::kunit_tests(riwarp_qp_table)]
mod tests {
    use super::*;
    use crate::{
        bench::Bench,
        mem::mr::bench::Target, //
    };
    use iwarp::{
        fault::Fault,
        stag::Stag, //
    };

    /// What is tied to a queue pair is of no use to a later one (DDP-89, RDMAP-161, -166).
    #[test]
    fn reused_qp_number_gives_no_access_to_old_state() -> Result {
        let bench = Bench::new()?;
        let cq = bench.cq(4)?;
        // It has one number to give.
        let qps = Qps::with_numbers(bench.device.clone(), 7..8)?;
        let made = || Qp::among(&qps, &bench, 2, None, &cq);
        let first = made()?;
        let (number, stream) = (first.shared.number, first.shared.stream_id());
        let target = Target::new(&bench.pd, stream.qp, 0)?;
        let key = Stag::new(target.key());
        bench.destroy(&first);
        let second = made()?;
        assert_eq!(second.shared.number, number);
        assert!(second.shared.stream_id().qp != stream.qp);
        let refused = second.shared.invalidate_remote(key);
        assert_eq!(refused, Err(Fault::InvalidateForbidden));
        assert!(target.is_valid(&bench.pd));
        bench.destroy(&second);
        // Both are gone before their table.
        qps.flush();
        Ok(())
    }
}
