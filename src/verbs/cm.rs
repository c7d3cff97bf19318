// SPDX-License-Identifier: GPL-2.0

//! Connections and listeners of `rdma_cm`.

use core::num::NonZeroUsize;

use kernel::{
    prelude::*,
    sync::{
        Arc,
        ArcBorrow, //
    }, //
};
use kernel_ext::rdma::iw_cm::{
    CmId,
    CmOps,
    ConnParam, //
};

use crate::{
    cm::{
        conn::{
            requests,
            Conn, //
        },
        listen::{
            self,
            Listener, //
        }, //
    },
    verbs::device::RdmaDevice,
    Riwarp, //
};

impl CmOps for Conn {
    type Driver = Riwarp;
    type Listener = Listener;

    fn connect(dev: ArcBorrow<'_, RdmaDevice>, id: CmId, param: &ConnParam<'_>) -> Result {
        requests::connect(dev.cm.as_arc_borrow(), id, param)
    }

    fn accept(
        dev: ArcBorrow<'_, RdmaDevice>,
        id: CmId,
        name: NonZeroUsize,
        param: &ConnParam<'_>,
    ) -> Result {
        requests::accept(dev.cm.as_arc_borrow(), id, name, param)
    }

    fn reject(dev: ArcBorrow<'_, RdmaDevice>, name: NonZeroUsize, private_data: &[u8]) -> Result {
        requests::reject(dev.cm.as_arc_borrow(), name, private_data)
    }

    fn abort(dev: ArcBorrow<'_, RdmaDevice>, name: NonZeroUsize) {
        requests::abort(dev.cm.as_arc_borrow(), name);
    }

    fn create_listen(
        dev: ArcBorrow<'_, RdmaDevice>,
        id: CmId,
        backlog: u32,
    ) -> Result<Arc<Listener>> {
        listen::create_listen(dev.cm.as_arc_borrow(), id, backlog)
    }

    fn destroy_listen(listener: Arc<Listener>) {
        listen::destroy_listen(listener);
    }
}
