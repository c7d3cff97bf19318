// SPDX-License-Identifier: GPL-2.0

//! The queue pairs of a device, by number.
//!
//! A queue pair and the table refer to each other from creation until [`Qps::remove`], at the end
//! of the queue pair.

use kernel::{
    prelude::*,
    sync::Arc, //
};
use kernel_ext::{
    rcu_map::{
        Order,
        RcuMap, //
    },
    rdma::object::QpLink, //
};

use crate::device::Device;

use super::Qp;

/// The table of a device's queue pairs.
#[pin_data]
pub(crate) struct Qps {
    #[pin]
    table: RcuMap<Qp>,
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
        Arc::try_pin_init(
            try_pin_init!(Self {
                // Numbers 0 and 1 are special in other RDMA networks.
                table <- RcuMap::new(2..1 << 24, Order::Rising(16)),
                device,
            }? Error),
            GFP_KERNEL,
        )
    }

    /// Returns the device.
    pub(super) fn device(&self) -> &Arc<Device> {
        &self.device
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
        self.table.with(number, |qp| qp.link.clone())
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
