// SPDX-License-Identifier: GPL-2.0

//! Sends batches to TCP in the context of the caller, within the budget of that context.

use kernel::prelude::*;
use kernel_ext::{
    net::{
        Grow,
        Inbound,
        SendHint, //
    },
    sync::BhOff, //
};

use super::TxStream;

/// Maximum number of batches that a process-context caller sends in a round, and of rounds that it
/// runs, before the work item continues.
pub(super) const BUDGET: u32 = 64;

/// The same for a softirq.
pub(super) const SOFTIRQ_BUDGET: u32 = 4;

/// How to send, which depends on the owner of the socket lock.
pub(crate) enum TcpSender<'a, 'b> {
    /// This context does not hold it and may sleep for it.
    Process,
    /// This softirq does not hold it, and sends unless a thread owns the socket.
    Softirq(BhOff<'a>),
    /// TCP holds it and has called the driver in softirq.
    Callback(&'a mut Inbound<'b>),
}

impl TcpSender<'_, '_> {
    pub(super) fn send(&mut self, stream: &mut TxStream, more: SendHint) -> Result<usize> {
        match self {
            Self::Process => stream.conn.socket().send_batch(&mut stream.batch, more),
            Self::Softirq(off) => {
                let socket = stream.conn.socket();
                socket.try_send_batch(&mut stream.batch, more, *off)
            }
            Self::Callback(inbound) => inbound.try_send_batch(&mut stream.batch, more),
        }
    }

    pub(super) fn grow(&self) -> Grow {
        match self {
            Self::Process => Grow::Sleep,
            Self::Softirq(_) | Self::Callback(_) => Grow::Atomic,
        }
    }

    /// Returns whether this context may sleep for memory.
    pub(crate) fn may_sleep(&self) -> bool {
        matches!(self, Self::Process)
    }

    pub(crate) fn budget(&self) -> u32 {
        match self {
            Self::Process => BUDGET,
            Self::Softirq(_) | Self::Callback(_) => SOFTIRQ_BUDGET,
        }
    }
}
