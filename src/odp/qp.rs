// SPDX-License-Identifier: GPL-2.0

//! The work items that bring in memory which a queue pair's streams wait for.
//!
//! One for each direction, since either may take long. Each device has a queue for them, and each
//! item may have a thread of its own: a process whose page faults take for ever holds up nobody
//! else, but for who ends the device.
//!
//! Context: process.

use kernel::{
    sync::Arc,
    workqueue::WorkItem, //
};

use crate::odp::rx::Fetched;
use crate::qp::{
    Qp,
    PAGING_IN,
    PAGING_OUT, //
};

impl WorkItem<PAGING_IN> for Qp {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let Some(conn) = this.conn() else {
            return;
        };
        let mut fetched: Option<Fetched> = None;
        while let Some(wanted) = conn
            .socket()
            .with_inbound(|inbound| this.resume(&conn, inbound, fetched.as_ref()))
        {
            // What was fetched before has been copied to, and goes here, where that may sleep.
            fetched = Some(Fetched::new(wanted));
        }
        drop(fetched);
        // The end of the stream may wait behind what was not taken.
        conn.look();
    }
}

impl WorkItem<PAGING_OUT> for Qp {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        this.page_out();
    }
}

impl Qp {
    /// Has memory brought in for the receiver. Context: any.
    pub(crate) fn enqueue_paging_in(self: &Arc<Self>) {
        if let Some(queue) = self.device.paging.get() {
            // An item that is queued already will see what there is.
            let _ = queue.enqueue::<Arc<Self>, PAGING_IN>(self.clone());
        }
    }

    /// Has memory brought in for the transmitter. Context: any.
    pub(crate) fn enqueue_paging_out(self: &Arc<Self>) {
        if let Some(queue) = self.device.paging.get() {
            let _ = queue.enqueue::<Arc<Self>, PAGING_OUT>(self.clone());
        }
    }
}
