// SPDX-License-Identifier: GPL-2.0

//! The state of all devices' queue pairs and connections, as files in debugfs.
//!
//! `/sys/kernel/debug/riwarp/qps` has a line for each queue pair, `conns` one for each connection,
//! also while it starts up or closes. A file for all devices keeps its place when a device is
//! renamed, and a device of any network namespace is in it; a file for each queue pair would cost
//! each of them a kilobyte. Only root gets to debugfs.
//!
//! A reader has references of its own to the device and to the object whose line it writes, and no
//! lock: a device, queue pair or connection may end meanwhile. The end of the device then waits for
//! that line.
//!
//! Context: process.

use kernel::{
    debugfs::{
        Dir,
        File, //
    },
    fmt,
    prelude::*,
    sync::Arc, //
};

use super::Registry;

/// The files. Dropping them waits for readers.
pub(crate) struct StateFiles {
    _qps: Pin<KBox<File<Arc<Registry>>>>,
    _conns: Pin<KBox<File<Arc<Registry>>>>,
    _dir: Dir,
}

impl StateFiles {
    /// Makes the files. Without debugfs there are none, which is no error.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(registry: &Arc<Registry>) -> Result<Self> {
        let dir = Dir::new(c"riwarp");
        let qps = dir.read_callback_file(c"qps", registry.clone(), &write_qps);
        let conns = dir.read_callback_file(c"conns", registry.clone(), &write_conns);
        Ok(Self {
            _qps: KBox::pin_init(qps, GFP_KERNEL)?,
            _conns: KBox::pin_init(conns, GFP_KERNEL)?,
            _dir: dir.clone(),
        })
    }
}

fn write_qps(registry: &Arc<Registry>, out: &mut fmt::Formatter<'_>) -> fmt::Result {
    registry.each(|device| {
        let mut from = 0;
        while let Some(qp) = device.qps.next(from) {
            out.write_fmt(fmt!("device={} ", device.name()))?;
            qp.report(out)?;
            out.write_str("\n")?;
            from = qp.number.saturating_add(1);
        }
        Ok(())
    })
}

fn write_conns(registry: &Arc<Registry>, out: &mut fmt::Formatter<'_>) -> fmt::Result {
    registry.each(|device| {
        device.cm.each_conn(|conn| {
            out.write_fmt(fmt!("device={} ", device.name()))?;
            conn.report(out)?;
            out.write_str("\n")
        })
    })
}
