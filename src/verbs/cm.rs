// SPDX-License-Identifier: GPL-2.0

//! Connections and listeners of `rdma_cm`.

use core::num::NonZeroUsize;

use iwarp::inject::Verb;
use kernel::{
    prelude::*,
    sync::{
        Arc,
        ArcBorrow, //
    }, //
};
use kernel_ext::{
    rdma::{
        iw_cm::{
            CmId,
            CmOps,
            ConnParam, //
        },
        types::Owner, //
    },
    static_key, //
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
    device::inject::VerbCaller,
    verbs::device::RdmaDevice,
    Riwarp, //
};

#[vtable]
impl CmOps for Conn {
    type Driver = Riwarp;
    type Listener = Listener;

    fn connect(dev: ArcBorrow<'_, RdmaDevice>, id: CmId, param: &ConnParam<'_>) -> Result {
        ask_for_qp(&dev, Verb::IwConnect, param)?;
        requests::connect(dev.cm.as_arc_borrow(), id, param)
    }

    fn accept(
        dev: ArcBorrow<'_, RdmaDevice>,
        id: CmId,
        name: NonZeroUsize,
        param: &ConnParam<'_>,
    ) -> Result {
        // The peer is rejected, as whenever this fails; the first error is the consumer's.
        ask_for_qp(&dev, Verb::IwAccept, param).inspect_err(|_| {
            let _ = requests::reject(dev.cm.as_arc_borrow(), name, &[]);
        })?;
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
        dev.ask_for_verb(Verb::IwCreateListen, || VerbCaller::Owner(Owner::User))?;
        listen::create_listen(dev.cm.as_arc_borrow(), id, backlog)
    }

    fn destroy_listen(listener: Arc<Listener>) {
        listen::destroy_listen(listener);
    }
}

/// Asks the rules about a verb that names a queue pair.
///
/// # Errors
///
/// The one of a rule.
fn ask_for_qp(dev: &RdmaDevice, verb: Verb, param: &ConnParam<'_>) -> Result {
    if !static_key::is_on() {
        return Ok(());
    }
    match dev.qps.get(param.qpn) {
        Some(qp) => dev.ask_for_verb(verb, || qp.shared.caller()),
        None => Ok(()),
    }
}
