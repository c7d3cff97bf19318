// SPDX-License-Identifier: GPL-2.0

//! The work items that fetch memory for which a queue pair's streams wait.
//!
//! Each direction has its own, since either may take long. Each context has a workqueue for them
//! (`device/paging.rs`): a process whose page faults never end blocks only its own copies, and the
//! removal of the device.
//!
//! Context: process.

use kernel::{
    sync::Arc,
    workqueue::WorkItem, //
};

use super::{
    Qp,
    PAGING_IN,
    PAGING_OUT, //
};
use crate::{
    odp::mr::Fetched,
    stream::tx::paging::page_out, //
};

impl WorkItem<PAGING_IN> for Qp {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let Some(conn) = this.shared.conn() else {
            return;
        };
        let mut fetched: Option<Fetched> = None;
        while let Some(wanted) = conn
            .socket()
            .with_inbound(|inbound| this.resume(&conn, inbound, fetched.as_ref()))
        {
            // Drops the memory fetched before, which may sleep; it has been copied to.
            fetched = Some(Fetched::new(wanted));
        }
        drop(fetched);
        // The end of the stream may be queued behind octets that were not consumed.
        this.processed(&conn);
    }
}

impl WorkItem<PAGING_OUT> for Qp {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        // Not here: there may be as many of these items at a time as there are queue pairs.
        if page_out(&this.shared) {
            this.kick();
        }
    }
}
