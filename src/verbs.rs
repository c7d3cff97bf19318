// SPDX-License-Identifier: GPL-2.0

//! The verbs: the entry points of `ib_core` for each kind of object.
//!
//! Each file implements the trait of [`kernel_ext::rdma::ops`] for one kind of object: it checks
//! the arguments, exchanges data with the provider library, and creates or calls the object. The
//! objects themselves are in modules of their own.
//!
//! Contexts: as stated by the traits.

use kernel::prelude::*;
use kernel_ext::{
    compat::this_module,
    rdma::{
        ops::Driver,
        port_counters::PortCounter,
        settings::Setting, //
    }, //
};

use crate::{
    cm::conn::Conn,
    device::stats::Stats,
    mem::{
        mr::registration::{
            Mr,
            Mw, //
        },
        pd::Pd, //
    },
    qp::Qp,
    queue::{
        cq::Cq,
        srq::Srq, //
    },
    Riwarp, //
};

mod cm;
mod cq;
pub(crate) mod device;
mod mr;
mod mw;
mod pd;
mod port_counters;
mod qp;
mod settings;
mod srq;
mod ucontext;

use device::RdmaDevice;
use ucontext::UContext;

impl Driver for Riwarp {
    type Device = RdmaDevice;
    type UContext = UContext;
    type Pd = Pd;
    type Cq = Cq;
    type Qp = Qp;
    type Srq = Srq;
    type Mr = Mr;
    type Mw = Mw;
    type Conn = Conn;

    const OWNER: &'static ThisModule = this_module!();
    const SETTINGS: &'static [Setting<RdmaDevice>] = settings::FILES;
    const COUNTERS: &'static [&'static CStr] = Stats::NAMES;
    const PORT_COUNTERS: &'static [PortCounter<RdmaDevice>] = port_counters::FILES;
}
