// SPDX-License-Identifier: GPL-2.0

//! Networking: addresses and devices, TCP sockets and their callbacks, octets in and out without
//! detours.
//!
//! ```text
//!   send      put, put_zeroes       send_batch
//!   memory ------------> TxBatch ----------------> Socket ---> TCP
//!
//!   receive   data_ready            front, peek, crc32c, consume
//!   TCP ----> Hooked<T> ----> Inbound ----------------------------> memory
//! ```
//!
//! A [`Socket`] is made in a network namespace but does not keep it alive; whoever owns sockets
//! closes them when [`NetnsExit`] or [`NetdevEvents`] says so.

use kernel::sync::rcu;

mod addr;
mod batch;
#[cfg(CONFIG_KUNIT = "y")]
pub mod bench;
mod device;
mod hooks;
mod notifier;
mod skb;
mod socket;
mod state;
mod tests;

pub use addr::Family;
pub use addr::SockAddr;
pub use batch::Grow;
pub use batch::Mark;
pub use batch::TxBatch;
pub use device::DeviceName;
pub use device::HwAddr;
pub use device::NetDevice;
pub use device::NetId;
pub use device::NetRef;
pub use device::NetdevType;
pub use hooks::Hooked;
pub use hooks::SocketEvents;
pub use notifier::AddrEvents;
pub use notifier::AddrNotifier;
pub use notifier::NetdevEvent;
pub use notifier::NetdevEvents;
pub use notifier::NetdevNotifier;
pub use notifier::NetnsExit;
pub use notifier::NetnsNotifier;
pub use skb::Inbound;
pub use socket::Connecting;
pub use socket::Reuse;
pub use socket::SendHint;
pub use socket::Socket;
pub use state::TcpState;

/// Waits until no socket callback runs in this module's code any more.
///
/// To be called by a module that is unloaded, after its last [`Hooked`] is gone and before its last
/// queue is destroyed. A callback touches no data of the driver once its socket was unhooked, but
/// it may still be on its way out.
///
/// Context: process, sleeps.
pub fn synchronize_callbacks() {
    rcu::synchronize_rcu();
}
