// SPDX-License-Identifier: GPL-2.0

//! riwarp: a software iWARP RDMA device on top of the kernel's TCP.
//!
//! The modules of the driver, from top to bottom:
//!
//! * [`registry`]: all devices, one per interface: how they are made and removed;
//! * [`verbs`]: the callbacks of `ib_core` for each kind of object;
//! * [`cm`]: connections, listeners, and connections without `rdma_cm`;
//! * [`qp`]: queue pairs;
//! * [`stream`]: the transmit and receive halves of a queue pair's stream;
//! * [`odp`]: paging on demand;
//! * [`queue`]: send, receive, completion and inbound read queues;
//! * [`abi`]: work requests in the driver's own form, and in those of user space and the kernel;
//! * [`mem`]: protection domains, memory regions and windows, STags, scatter/gather lists;
//! * [`device`]: what the objects of a device share: GID table, settings, counters, work queues.
//!
//! The protocol itself is in crate `iwarp`, all unsafe code in crate `kernel_ext`.

#![deny(unsafe_code)]

use kernel::prelude::*;
use kernel_ext::{
    net::{
        self,
        AddrNotifier,
        NetdevNotifier,
        NetnsNotifier, //
    },
    rdma::link::LinkRegistration,
    sync::ModuleCellGuard, //
};

use crate::{
    cm::listen::{
        ListenSockets,
        LISTEN_SOCKETS, //
    },
    device::settings::{
        Defaults,
        DepthLimit,
        MpaRevision, //
    },
    registry::{
        Registry,
        RxeLink,
        SiwLink,
        StateFiles,
        REGISTRY, //
    }, //
};

mod abi;
#[cfg(CONFIG_KUNIT = "y")]
mod bench;
mod cm;
mod device;
mod mem;
mod odp;
mod qp;
mod queue;
mod registry;
mod stream;
mod verbs;

module! {
    type: Module,
    name: "riwarp",
    authors: ["The riwarp developers"],
    description: "Software iWARP RDMA device",
    license: "GPL v2",
    alias: ["rdma-link-riwarp", "rdma-link-riwarp_siw"],
    imports_ns: ["DMA_BUF"],
    params: {
        crc: bool {
            default: true,
            description: "New devices ask their peers for CRCs (default: yes)",
        },
        mpa_rev: u8 {
            default: 2,
            description: "Revision of the MPA requests of new devices, 1 or 2 (default: 2)",
        },
        peer_to_peer: bool {
            default: true,
            description: "New devices ask that either side may send first (default: yes)",
        },
        eager_responder: bool {
            default: false,
            description: "New devices send first as the accepting side also where that was not agreed (default: no)",
        },
        extensions: bool {
            default: false,
            description: "New devices agree on Send with Immediate by rdma_cm (default: no)",
        },
        pairing_port: u16 {
            default: 24791,
            description: "TCP port of new devices for connections without rdma_cm, 0 for none (default: 24791)",
        },
        ird_limit: u16 {
            default: 128,
            description: "Most RDMA Reads of a peer at once on a connection of new devices, 1 to 128 (default: 128)",
        },
        ord_limit: u16 {
            default: 128,
            description: "Most RDMA Reads at once on a connection of new devices, 1 to 128 (default: 128)",
        },
    },
}

/// The driver type that implements the callbacks of `ib_core` and of the network stack.
pub(crate) struct Riwarp;

/// The loaded module.
///
/// Fields are dropped in order: first what creates devices and delivers events, last the registry,
/// which ends the devices.
#[pin_data]
struct Module {
    #[pin]
    _rxe_link: LinkRegistration<RxeLink>,
    #[pin]
    _siw_link: LinkRegistration<SiwLink>,
    _files: StateFiles,
    _netns: NetnsNotifier<Riwarp>,
    _netdevs: NetdevNotifier<Riwarp>,
    _addrs: AddrNotifier<Riwarp>,
    _service: Service,
}

impl kernel::InPlaceModule for Module {
    fn init(_module: &'static ThisModule) -> impl PinInit<Self, Error> {
        pin_init::pin_init_scope(|| {
            let defaults = defaults()?;
            let service = Service::begin(defaults)?;
            let files = StateFiles::new(&REGISTRY.get().ok_or(ENODEV)?)?;
            let addrs = AddrNotifier::new()?;
            let netdevs = NetdevNotifier::new()?;
            let netns = NetnsNotifier::new()?;
            Ok(try_pin_init!(Self {
                _netns: netns,
                _netdevs: netdevs,
                _addrs: addrs,
                _service: service,
                _files: files,
                // Last, since devices can be made from here on.
                _siw_link <- LinkRegistration::new(),
                _rxe_link <- LinkRegistration::new(),
            }? Error))
        })
    }
}

/// Reads the module parameters.
///
/// # Errors
///
/// `EINVAL` if `mpa_rev` is not a known revision, or a limit is beyond what devices support.
fn defaults() -> Result<Defaults> {
    let mpa_rev = module_parameters::mpa_rev.value();
    let Some(mpa_rev) = MpaRevision::from_number(mpa_rev) else {
        pr_err!("mpa_rev={}: there are only revisions 1 and 2\n", mpa_rev);
        return Err(EINVAL);
    };
    Ok(Defaults {
        crc: module_parameters::crc.value(),
        mpa_rev,
        peer_to_peer: module_parameters::peer_to_peer.value(),
        eager_responder: module_parameters::eager_responder.value(),
        extensions: module_parameters::extensions.value(),
        pairing_port: module_parameters::pairing_port.value(),
        ird_limit: depth_limit("ird_limit", module_parameters::ird_limit.value())?,
        ord_limit: depth_limit("ord_limit", module_parameters::ord_limit.value())?,
    })
}

fn depth_limit(name: &str, number: u16) -> Result<DepthLimit> {
    let limit = DepthLimit::from_number(number);
    if limit.is_none() {
        pr_err!("{}={}: not from 1 to 128\n", name, number);
    }
    limit.ok_or(EINVAL)
}

/// Publishes the registry and the listening sockets to callbacks while it exists.
struct Service {
    _registry: ModuleCellGuard<Registry>,
    _listen_sockets: ModuleCellGuard<ListenSockets>,
}

impl Service {
    fn begin(defaults: Defaults) -> Result<Self> {
        Ok(Self {
            _registry: REGISTRY.fill(Registry::new(defaults)?)?,
            _listen_sockets: LISTEN_SOCKETS.fill(ListenSockets::new()?)?,
        })
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        if let Some(registry) = REGISTRY.get() {
            registry.shut_down();
            net::synchronize_callbacks();
        }
    }
}
