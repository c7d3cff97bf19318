// SPDX-License-Identifier: GPL-2.0

//! Connections: start-up, accept and close ([`conn`]), what a consumer asks of a queue pair and its
//! connection ([`endpoint`]), listeners and their sockets ([`listen`]), and connections without
//! `rdma_cm` ([`oob`]).
//!
//! A [`Cm`] is all of a device's connections. Connections, listeners and queue pairs refer to it.
//! It refers to them too: to a connection until that is released ([`conn::Conns`]), to a listener
//! for connections without `rdma_cm` until the last queue pair at its address has stopped to wait,
//! and to a queue pair, by the table, until that is destroyed.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use crate::{
    device::Device,
    qp::table::Qps, //
};

pub(crate) mod conn;
pub(crate) mod endpoint;
pub(crate) mod listen;
pub(crate) mod oob;

use conn::{
    Conn,
    Conns, //
};
use oob::{
    ports::HeldPorts,
    OobWaiters, //
};

/// The connections of a device.
#[pin_data]
pub(crate) struct Cm {
    qps: Arc<Qps>,
    #[pin]
    conns: Conns,
    /// Queue pairs that wait for a connection without `rdma_cm`.
    #[pin]
    pub(crate) oob_waiters: OobWaiters,
    /// Dropped last, since the module may be unloaded without it.
    device: Arc<Device>,
}

impl Cm {
    /// Makes the tables, with no port held.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(
        device: Arc<Device>,
        qps: Arc<Qps>,
        ports: Arc<HeldPorts>,
    ) -> Result<Arc<Self>> {
        Arc::try_pin_init(
            try_pin_init!(Self {
                qps,
                conns <- Conns::new(),
                oob_waiters <- OobWaiters::new(ports),
                device,
            }? Error),
            GFP_KERNEL,
        )
    }

    /// Calls `f` for each connection that is not released, without a lock held; ends at its first
    /// error.
    ///
    /// Context: process.
    pub(crate) fn each_conn<E>(&self, f: impl FnMut(&Arc<Conn>) -> Result<(), E>) -> Result<(), E> {
        self.conns.for_each(f)
    }

    /// Releases the port, ends all connections and waits until the last one is gone.
    ///
    /// Context: process, without rtnl, not from an item of the device's queues.
    pub(crate) fn shut_down(&self) {
        self.oob_waiters.shut_down();
        self.conns.shut_down();
    }
}
