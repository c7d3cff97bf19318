// SPDX-License-Identifier: GPL-2.0

//! What an iWARP driver implements: one trait for each kind of object, and [`Driver`], which binds
//! them together.
//!
//! | object | trait |
//! |---|---|
//! | device | [`DeviceOps`] |
//! | context of a process | [`UContextOps`] |
//! | protection domain | [`PdOps`] |
//! | completion queue | [`CqOps`] |
//! | queue pair | [`QpOps`] |
//! | shared receive queue | [`SrqOps`] |
//! | memory region | [`MrOps`] |
//! | memory window | [`MwOps`] |
//! | connection | [`CmOps`](super::iw_cm::CmOps) |
//!
//! Every function of them is one callback of `struct ib_device_ops`, named in its documentation
//! together with the file of the kernel that calls it. Arguments are safe views of the caller's
//! structures and borrowed driver objects, results are plain values or new driver objects in an
//! [`Arc`](kernel::sync::Arc). The calls are static: the table of a driver holds trampolines that
//! were compiled for its types.
//!
//! `ib_core` allocates and frees the C objects that the consumer holds (memory regions: this
//! folder). Each holds one reference to the driver's object from the end of `create_*` to the end
//! of `destroy_*`, so that work items and sockets may outlive the verb object by holding references
//! of their own.
//!
//! # Optional operations
//!
//! The traits are `#[vtable]`. A method that has a default may be left out: then the table has no
//! callback for it (`HAS_*`), and `ib_core` refuses the call with `EOPNOTSUPP`, or does without.
//! The defaults are never called. What some devices of a driver have and others not is in
//! [`Provider::optional`].
//!
//! # Contexts
//!
//! | functions | context |
//! |---|---|
//! | `post_send`, `post_recv`, `poll`, `req_notify` | any, hard interrupt included; may not sleep |
//! | [`MrOps::map_sg`] | any that the consumer registers in; may not sleep |
//! | [`QpOps::find`] | with a spin lock held and interrupts off; may not sleep |
//! | all others | process, may sleep |
//!
//! `ib_core` calls `destroy_*` once, when no other verb runs on that object and nothing refers to
//! it; any two other verbs of an object may run at the same time.
//!
//! # Words of the trampolines
//!
//! A trampoline states in its `# Safety` what `ib_core` guarantees. What it guarantees in all cases
//! is not repeated: the device of the object is registered, or being registered, while a verb runs,
//! and is one of `T`. *New* is an object that `ib_core` has allocated for this call, zeroed, of the
//! size in `ops.size_ib_*`, with its device (and domain) set. *Filled* is one that a `create_*`,
//! `alloc_*` or `reg_*` of this folder has made, and that no other call destroys before this one
//! returns. *Valid* are pointers for the length of the call.
//!
//! C header: `include/rdma/ib_verbs.h`.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    iw_cm::CmOps,
    port_counters::PortCounter,
    settings::Setting,
    types::{
        bit_set,
        Owner, //
    }, //
};
use crate::{
    bindings,
    mm::memcg::Memcg,
    rdma::{
        object::UContextObject,
        udata::context_of, //
    }, //
};

mod attr;
mod cq;
mod device;
mod mr;
mod mw;
mod pd;
mod qp;
mod srq;
mod ucontext;
mod vtable;

pub use cq::{
    ArmResult,
    CqCreated,
    CqInit,
    CqOps, //
};
pub use device::DeviceOps;
pub use mr::{
    MrCreated,
    MrOps, //
};
pub use mw::{
    MwCreated,
    MwOps, //
};
pub use pd::PdOps;
pub use qp::{
    QpCreated,
    QpInit,
    QpOps,
    QpReport, //
};
pub use srq::{
    SrqCreated,
    SrqInit,
    SrqOps, //
};
pub use ucontext::UContextOps;
pub(super) use vtable::table;

/// An iWARP driver: the types of its objects, and constants of all its devices.
pub trait Driver: Sized + Send + Sync + 'static {
    /// The device.
    type Device: DeviceOps;
    /// The context of a process that opened the device.
    type UContext: UContextOps<Driver = Self>;
    /// Protection domain.
    type Pd: PdOps<Driver = Self>;
    /// Completion queue.
    type Cq: CqOps<Driver = Self>;
    /// Queue pair.
    type Qp: QpOps<Driver = Self>;
    /// Shared receive queue.
    type Srq: SrqOps<Driver = Self>;
    /// Memory region.
    type Mr: MrOps<Driver = Self>;
    /// Memory window.
    type Mw: MwOps<Driver = Self>;
    /// Connection.
    type Conn: CmOps<Driver = Self>;

    /// The module (`THIS_MODULE` of the crate that implements the driver).
    const OWNER: &'static ThisModule;
    /// Settings in sysfs, under `/sys/class/infiniband/<device>/`.
    const SETTINGS: &'static [Setting<Self::Device>] = &[];
    /// The names of the port's counters.
    const COUNTERS: &'static [&'static CStr] = &[];
    /// Counts of the port in sysfs, under `/sys/class/infiniband/<device>/ports/1/counters/`.
    const PORT_COUNTERS: &'static [PortCounter<Self::Device>] = &[];
}

/// What the provider library of a device in user space expects of it.
#[derive(Clone, Copy, Debug)]
pub struct Provider {
    /// The number by which the library knows its devices (`enum rdma_driver_id`).
    pub driver_id: u32,
    /// The version of the ABI that it shares with the driver.
    pub abi_version: u32,
    /// The write commands that it uses, besides those that every device has.
    pub commands: WriteCommands,
    /// The optional operations that it has calls for.
    pub optional: OptionalOps,
}

bit_set! {
    /// Write commands of uverbs that a driver has to enable for a device (`uverbs_cmd_mask`).
    pub struct WriteCommands(u64) {
        /// Posts to a send queue.
        POST_SEND = 1 << bindings::ib_uverbs_write_cmds_IB_USER_VERBS_CMD_POST_SEND;
        /// Arms a completion queue.
        REQ_NOTIFY_CQ = 1 << bindings::ib_uverbs_write_cmds_IB_USER_VERBS_CMD_REQ_NOTIFY_CQ;
    }
}

bit_set! {
    /// Operations that one device of a driver may have and another not.
    ///
    /// Those that no device of a driver has are left out of the implementation of their trait.
    pub struct OptionalOps(u32) {
        /// Memory windows: [`MwOps`].
        MEMORY_WINDOWS = 1;
        /// [`CqOps::resize`].
        RESIZE_CQ = 1 << 1;
    }
}

/// Runs `make`, which makes an object, for the kernel or a process. What it allocates is charged to
/// the cgroup of the process; for the kernel to none, whichever process that works for.
///
/// Context: process.
fn charged<R>(kernel: bool, make: impl FnOnce() -> Result<R>) -> Result<R> {
    if kernel {
        Memcg::nobody().scope(make)
    } else {
        make()
    }
}

/// Returns the context of the process that makes an object; [`None`] for the kernel.
///
/// # Safety
///
/// `udata` must be null, or the channel of a call that makes an object on a device of `T`.
unsafe fn context<T: Driver>(udata: *mut bindings::ib_udata) -> Option<Arc<T::UContext>> {
    if udata.is_null() {
        return None;
    }
    // SAFETY: `context_of` requires the channel of a uverbs call, which this is by this function's
    // `# Safety`, since it is not null.
    let context = unsafe { context_of(udata) }?;
    // SAFETY: `data` requires a structure that was filled and is not emptied meanwhile: the context
    // in which an object is made was filled before, by `T`, and is emptied after all its objects.
    Some(unsafe { UContextObject::<T>::data(context.as_ptr()) }.into())
}

/// Returns who creates an object: without the channel `udata` to a process, the kernel.
fn owner(udata: *const bindings::ib_udata) -> Owner {
    if udata.is_null() {
        Owner::Kernel
    } else {
        Owner::User
    }
}
