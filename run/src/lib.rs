// SPDX-License-Identifier: GPL-2.0

//! What `riwarp-run` and the first process of its guest share: the line that joins them.
//!
//! The line is a socket on one end and a serial line of the guest on the other, and carries
//! [`Frame`]s in both directions. [`Job`] is the first that `riwarp-run` sends: what to run, as
//! whom, over which directories and devices. [`streams`] copies the standard streams of the
//! command, in units for which the other end has room.

mod failure;
mod frame;
mod job;
pub mod streams;

pub use failure::Failure;
pub use frame::{Frame, Stream, MAX_PAYLOAD};
pub use job::{Job, LinkType, RESOURCES};

/// The exit statuses that are not the command's own.
pub mod status {
    /// The devices have found a fault of the command's in their strict mode.
    pub const FINDING: u8 = 122;
    /// The guest's kernel reported a fault: whatever the command did may not be right.
    pub const REPORT: u8 = 123;
    /// The time of `--timeout` was up. As of timeout(1).
    pub const TIMEOUT: u8 = 124;
    /// riwarp-run itself failed.
    pub const FAILED: u8 = 125;
    /// The command was found and cannot be executed.
    pub const NOT_EXECUTABLE: u8 = 126;
    /// The command was not found.
    pub const NOT_FOUND: u8 = 127;
    /// A signal ended the command: its number is added.
    pub const SIGNAL: u8 = 128;
}

/// The link address of interface eth`number` of a host: riwarp-run gives it to the kernel of a
/// guest that has networks, and each guest knows those of the others.
pub fn link_address(number: u8, host: u8) -> [u8; 6] {
    [0x02, 0x77, 0, 0, number, host]
}
