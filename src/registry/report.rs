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
//! that line. An open file holds the module: it cannot be unloaded.
//!
//! Context: process.

use kernel::fmt;
use kernel::prelude::*;
use kernel_ext::debugfs_owner::Dir;

use super::REGISTRY;

/// Makes the files; dropping them waits for reads under way. Without debugfs there are none.
pub(crate) fn state_files() -> Dir {
    let dir = Dir::new(c"riwarp");
    dir.file(c"qps", write_qps);
    dir.file(c"conns", write_conns);
    dir
}

fn write_qps(out: &mut fmt::Formatter<'_>) -> fmt::Result {
    let Some(registry) = REGISTRY.get() else {
        return Ok(());
    };
    registry.each(|device| {
        let mut from = 0;
        while let Some(qp) = device.qps.next(from) {
            out.write_fmt(fmt!("device={} ", device.name()))?;
            qp.report(out)?;
            out.write_str("\n")?;
            from = qp.shared.number.saturating_add(1);
        }
        Ok(())
    })
}

fn write_conns(out: &mut fmt::Formatter<'_>) -> fmt::Result {
    let Some(registry) = REGISTRY.get() else {
        return Ok(());
    };
    registry.each(|device| {
        device.cm.each_conn(|conn| {
            out.write_fmt(fmt!("device={} ", device.name()))?;
            conn.report(out)?;
            out.write_str("\n")
        })
    })
}
