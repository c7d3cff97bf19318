// SPDX-License-Identifier: GPL-2.0

//! The way of a batch to TCP, and how much of its time the caller gives for it.

use kernel::prelude::*;
use kernel_ext::net::{
    Grow,
    Inbound,
    SendHint, //
};

use super::TxStream;

/// Batches that one caller sends, and rounds that it makes, before it leaves the rest to the work
/// item.
pub(super) const BUDGET: u32 = 64;

/// The same for a softirq.
pub(super) const SOFTIRQ_BUDGET: u32 = 4;

/// The way to TCP, which depends on who holds the socket lock.
pub(super) enum TcpSender<'a, 'b> {
    /// Nobody in this context, which may sleep for it.
    Process,
    /// TCP, which has called us in softirq.
    Softirq(&'a mut Inbound<'b>),
}

impl TcpSender<'_, '_> {
    pub(super) fn send(&mut self, stream: &mut TxStream, more: SendHint) -> Result<usize> {
        match self {
            Self::Process => stream.conn.socket().send_batch(&mut stream.batch, more),
            Self::Softirq(inbound) => inbound.try_send_batch(&mut stream.batch, more),
        }
    }

    pub(super) fn grow(&self) -> Grow {
        match self {
            Self::Process => Grow::Sleep,
            Self::Softirq(_) => Grow::Atomic,
        }
    }

    /// Whether this context may wait for memory.
    pub(super) fn may_sleep(&self) -> bool {
        matches!(self, Self::Process)
    }

    pub(super) fn budget(&self) -> u32 {
        match self {
            Self::Process => BUDGET,
            Self::Softirq(_) => SOFTIRQ_BUDGET,
        }
    }
}
