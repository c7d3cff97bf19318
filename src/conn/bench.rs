// SPDX-License-Identifier: GPL-2.0

//! A connection for KUnit suites of others: its start-up is done, and no consumer hears of its end.
//!
//! Context: process.

use super::{
    actor::Phase,
    *, //
};

/// A connection of a queue pair. Ended when it is dropped.
pub(crate) struct Started(pub(crate) Arc<Conn>);

impl Started {
    /// Makes it of one end of a TCP connection. Nothing is attached to the queue pair yet.
    pub(crate) fn new(device: &Arc<Device>, near: Socket, qp: &Arc<Qp>) -> Result<Self> {
        let conn = Conn::new(device.clone(), near, Actor::new(Phase::Released))?;
        let started = Self(conn.clone());
        qp.bind(&conn)?;
        conn.qp.populate(Gate::new(qp.clone()));
        Ok(started)
    }

    /// From now on what arrives goes to the queue pair.
    pub(crate) fn enter_stream(&self) {
        self.0.enter_stream();
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        self.0.abandon(&mut self.0.actor.lock());
    }
}

/// What the ends of a stream have agreed upon, if nobody wants anything in particular.
pub(crate) const PARAMS: StreamParams = StreamParams {
    crc: Crc::Off,
    markers: Markers::Off,
    ird: 1,
    ord: 1,
    send_rtr: None,
    expect_rtr: RtrKinds::NONE,
    wait_first_fpdu: false,
};
