// SPDX-License-Identifier: GPL-2.0

//! Networking: addresses, devices, TCP sockets and their callbacks, sending and receiving in place.
//!
//! ```text
//!   send      put, put_zeroes       send_batch
//!   memory ------------> TxBatch ----------------> Socket ---> TCP
//!
//!   receive   data_ready            front, peek, crc32c, consume
//!   TCP ----> Hooked<T> ----> Inbound ----------------------------> memory
//! ```
//!
//! With the kernel's TLS, which a [`Handshake`] turns on, the same calls go through records:
//! [`Inbound`] is a view of what was decrypted then.
//!
//! A [`Socket`] does not keep its network namespace alive; its owner closes it when [`NetnsExit`]
//! or [`NetdevEvents`] reports the end of the namespace.

mod addr;
mod batch;
mod device;
mod handshake;
mod hooks;
mod key;
mod notifier;
mod skb;
mod socket;
mod state;
#[cfg(CONFIG_KUNIT = "y")]
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
pub use handshake::Credentials;
pub use handshake::Handshake;
pub use handshake::TlsPeer;
pub use handshake::TlsRole;
pub use hooks::Hooked;
pub use hooks::SocketEvents;
pub use key::Certificate;
pub use key::Key;
pub use notifier::AddrEvents;
pub use notifier::AddrNotifier;
pub use notifier::NetdevEvent;
pub use notifier::NetdevEvents;
pub use notifier::NetdevNotifier;
pub use notifier::NetnsExit;
pub use notifier::NetnsNotifier;
pub use skb::Inbound;
pub use socket::tls_exists;
pub use socket::tls_has_x509;
pub use socket::AcceptQueue;
pub use socket::Connecting;
pub use socket::Reuse;
pub use socket::SendHint;
pub use socket::Socket;
pub use socket::TcpInfo;
pub use state::TcpState;
#[cfg(CONFIG_KUNIT = "y")]
pub use tests::bench;

/// Waits until no socket callback runs in this module's code.
///
/// A module calls this on unload, after dropping its last [`Hooked`] and before destroying its last
/// queue. After unhooking, a callback uses no data of the driver, but may not have returned yet.
///
/// Context: process, sleeps.
pub fn synchronize_callbacks() {
    crate::compat::synchronize_rcu();
}
