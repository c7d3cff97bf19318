// SPDX-License-Identifier: GPL-2.0

//! riwarp: a software iWARP RDMA device on top of the kernel's TCP.
//!
//! The modules of the driver, from top to bottom:
//!
//! * [`registry`]: all devices, one per interface: how they are made and removed;
//! * [`verbs`]: the callbacks of `ib_core` for each kind of object;
//! * [`cm`]: connections, listeners, and out-of-band connections;
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
    compat::parameter,
    debugfs_owner,
    module_exclusion::ModuleExclusion,
    module_param::ParamWrites,
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
        warn_of_old_name,
        Defaults,
        DepthLimit,
        MpaRevision,
        ReceiveWait,
        OOB_PORT, //
    },
    registry::{
        next_device,
        state_files,
        IbLink,
        Registry,
        RxeLink,
        SiwLink,
        SiwNameLink,
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
    alias: ["rdma-link-riwarp", "rdma-link-riwarp_siw", "rdma-link-riwarp_ib"],
    imports_ns: ["DMA_BUF"],
    params: {
        crc: u8 {
            default: 1,
            description: "New devices ask their peers for CRCs, 0 or 1 (default: 1)",
        },
        mpa_rev: u8 {
            default: 2,
            description: "Revision of the MPA requests of new devices, 1 or 2 (default: 2)",
        },
        peer_to_peer: u8 {
            default: 1,
            description: "New devices ask that either side may send first, 0 or 1 (default: 1)",
        },
        eager_responder: u8 {
            default: 0,
            description: "New devices send first as the accepting side also where that was not agreed, 0 or 1 (default: 0)",
        },
        extensions: u8 {
            default: 0,
            description: "New devices agree on Send with Immediate by rdma_cm, 0 or 1 (default: 0)",
        },
        confirm_sends: u8 {
            default: 0,
            description: "Signaled Sends of new devices complete once the peer has taken them, 0 or 1 (default: 0)",
        },
        draft_swap: u8 {
            default: 0,
            description: "New devices send the Swap of RFC 7306's first draft, for peers without CmpSwap, 0 or 1 (default: 0)",
        },
        ulpdu_limit: u16 {
            default: 32782,
            description: "Longest ULPDU of new devices to and from other riwarp devices, 0 for none beyond a TCP segment (default: 32782)",
        },
        receive_wait: u32 {
            default: 10000,
            description: "How long a message of new devices waits for its receive, in milliseconds, 0 to 3600000 (default: 10000)",
        },
        oob_port: u16 {
            default: 24791,
            description: "TCP port of new devices for out-of-band connections, 0 for none (default: 24791)",
        },
        pairing_port: u16 {
            default: 24791,
            description: "Old name of oob_port, which counts unless that is given (default: 24791)",
        },
        port_offset: u16 {
            default: 0,
            description: "TCP ports of new devices' connections by rdma_cm: so far behind its own (default: 0)",
        },
        ird_limit: u16 {
            default: 128,
            description: "Most RDMA Reads of a peer at once on a connection of new devices, 1 to 128 (default: 128)",
        },
        ord_limit: u16 {
            default: 128,
            description: "Most RDMA Reads at once on a connection of new devices, 1 to 128 (default: 128)",
        },
        siw_link_type: u8 {
            default: 0,
            description: "Makes devices of the link type siw too, in place of the module siw, 0 or 1 (default: 0)",
        },
    },
}

/// The driver type that implements the callbacks of `ib_core` and of the network stack.
pub(crate) struct Riwarp;

/// The loaded module.
///
/// Fields are dropped in order: first what creates devices and what root reads and writes, then the
/// devices, what delivers events, and last the registry.
#[pin_data]
struct Module {
    #[pin]
    _rxe_link: LinkRegistration<RxeLink>,
    #[pin]
    _siw_link: LinkRegistration<SiwLink>,
    #[pin]
    _ib_link: LinkRegistration<IbLink>,
    /// If the parameter asks for it. First the link type is given up, then siw may be loaded.
    _siw_name_link: Option<(Pin<KBox<LinkRegistration<SiwNameLink>>>, ModuleExclusion)>,
    _files: debugfs_owner::Dir,
    _writes: ParamWrites,
    _devices: AllDevices,
    _netns: NetnsNotifier<Riwarp>,
    _netdevs: NetdevNotifier<Riwarp>,
    _addrs: AddrNotifier<Riwarp>,
    _service: Service,
}

impl kernel::InPlaceModule for Module {
    fn init(_module: &'static ThisModule) -> impl PinInit<Self, Error> {
        pin_init::pin_init_scope(|| {
            let defaults = defaults()?;
            let siw_link_type = parameter(module_parameters::siw_link_type.value());
            let siw = switch("siw_link_type", siw_link_type)?
                .then(exclude_siw)
                .transpose()?;
            let service = Service::begin(defaults)?;
            let addrs = AddrNotifier::new()?;
            let netdevs = NetdevNotifier::new()?;
            let netns = NetnsNotifier::new()?;
            Ok(try_pin_init!(Self {
                _netns: netns,
                _netdevs: netdevs,
                _addrs: addrs,
                _service: service,
                _devices: AllDevices,
                _writes: ParamWrites::new(next_device)?,
                // Devices can be made from here on.
                _siw_name_link: match siw {
                    Some(siw) => {
                        check_siw(&siw)?;
                        Some((KBox::pin_init(LinkRegistration::new(), GFP_KERNEL)?, siw))
                    }
                    None => None,
                },
                _ib_link <- LinkRegistration::new(),
                _siw_link <- LinkRegistration::new(),
                _rxe_link <- LinkRegistration::new(),
                // Last: an open file does not hold a module whose start fails.
                _files: state_files(),
            }? Error))
        })
    }
}

/// Refuses the kernel's siw from now on: both would have one link type.
///
/// # Errors
///
/// `ENOMEM`.
fn exclude_siw() -> Result<ModuleExclusion> {
    ModuleExclusion::new(c"siw", || {
        pr_err!("the module siw is refused: riwarp has its link type (siw_link_type=1)\n");
    })
}

/// Fails if siw is there, to be called right before its link type is registered.
///
/// # Errors
///
/// `EBUSY` if siw is loaded or built in, which the log says.
fn check_siw(siw: &ModuleExclusion) -> Result {
    if cfg!(CONFIG_RDMA_SIW = "y") || siw.is_loaded() {
        pr_err!("siw_link_type=1: the kernel's siw is there, and has the link type siw\n");
        return Err(EBUSY);
    }
    Ok(())
}

/// Reads the module parameters.
///
/// # Errors
///
/// `EINVAL` if one has a value that the setting of its name does not take.
fn defaults() -> Result<Defaults> {
    use module_parameters as given;

    let mpa_rev = parameter(given::mpa_rev.value());
    let Some(mpa_rev) = MpaRevision::from_number(mpa_rev) else {
        pr_err!("mpa_rev={}: there are only revisions 1 and 2\n", mpa_rev);
        return Err(EINVAL);
    };
    Ok(Defaults {
        crc: switch("crc", parameter(given::crc.value()))?,
        mpa_rev,
        peer_to_peer: switch("peer_to_peer", parameter(given::peer_to_peer.value()))?,
        eager_responder: switch("eager_responder", parameter(given::eager_responder.value()))?,
        extensions: switch("extensions", parameter(given::extensions.value()))?,
        confirm_sends: switch("confirm_sends", parameter(given::confirm_sends.value()))?,
        draft_swap: switch("draft_swap", parameter(given::draft_swap.value()))?,
        ulpdu_limit: parameter(given::ulpdu_limit.value()),
        receive_wait: receive_wait(parameter(given::receive_wait.value()))?,
        oob_port: oob_port(
            parameter(given::oob_port.value()),
            parameter(given::pairing_port.value()),
        ),
        port_offset: parameter(given::port_offset.value()),
        ird_limit: depth_limit("ird_limit", parameter(given::ird_limit.value()))?,
        ord_limit: depth_limit("ord_limit", parameter(given::ord_limit.value()))?,
    })
}

fn switch(name: &str, number: u8) -> Result<bool> {
    match number {
        0 => Ok(false),
        1 => Ok(true),
        _ => {
            pr_err!("{}={}: neither 0 nor 1\n", name, number);
            Err(EINVAL)
        }
    }
}

/// Takes the parameter's old name for a given value if the new one has its default.
fn oob_port(port: u16, by_old_name: u16) -> u16 {
    if by_old_name != OOB_PORT {
        warn_of_old_name();
    }
    if port == OOB_PORT {
        by_old_name
    } else {
        port
    }
}

fn depth_limit(name: &str, number: u16) -> Result<DepthLimit> {
    let limit = DepthLimit::from_number(number);
    if limit.is_none() {
        pr_err!("{}={}: not from 1 to 128\n", name, number);
    }
    limit.ok_or(EINVAL)
}

fn receive_wait(millis: u32) -> Result<ReceiveWait> {
    let wait = ReceiveWait::from_millis(millis);
    if wait.is_none() {
        pr_err!("receive_wait={}: not from 0 to 3600000\n", millis);
    }
    wait.ok_or(EINVAL)
}

/// Removes all devices when it is dropped, which may take as long as a peer or a page fault does.
/// The notifier of namespaces must still be registered: while that is unregistered, the kernel
/// holds the lock of all namespaces, and none can be created or removed.
struct AllDevices;

impl Drop for AllDevices {
    fn drop(&mut self) {
        if let Some(registry) = REGISTRY.get() {
            registry.end_devices();
        }
    }
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
