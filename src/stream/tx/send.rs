// SPDX-License-Identifier: GPL-2.0

//! Sends batches to TCP in the context of the caller, within the budget of that context.

use kernel::prelude::*;
use kernel_ext::{
    net::{
        Grow,
        Inbound,
        SendHint, //
    },
    sync::BhOff,
    workqueue::Tick, //
};

use super::TxStream;

/// Maximum number of batches that a process-context caller sends in a round, and of rounds that it
/// runs, before the work item continues.
pub(super) const BUDGET: u32 = 64;

/// The same for a softirq.
pub(super) const SOFTIRQ_BUDGET: u32 = 4;

/// Maximum number of batches that a work item of a process sends before others have their turn, and
/// of rounds that it runs.
pub(super) const USER_BUDGET: u32 = 8;

/// The same number of batches for one that may wait. Others run while it sleeps, so it does no more
/// than what had to wait.
const WAITING_BUDGET: u32 = 1;

/// Whether a work item may wait for what a process holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waiting {
    /// It may not, since others wait behind it.
    Never,
    /// It may.
    Allowed,
}

/// What a work item of a process may do before others have their turn: some batches, and no more
/// than one tick of the timer. Beyond 10 ms of processor time, a workqueue of a CPU would let
/// another worker run beside this one.
pub(crate) struct UserTurn {
    waiting: Waiting,
    begin: Tick,
    batches: u32,
}

impl UserTurn {
    pub(crate) fn begin(waiting: Waiting) -> Self {
        Self {
            waiting,
            begin: Tick::now(),
            batches: match waiting {
                Waiting::Never => USER_BUDGET,
                Waiting::Allowed => WAITING_BUDGET,
            },
        }
    }

    fn is_over(&self) -> bool {
        self.batches == 0 || self.begin.has_passed()
    }
}

/// How to send, which depends on the owner of the socket lock.
pub(crate) enum TcpSender<'a, 'b> {
    /// This context does not hold it and may sleep for it.
    Process,
    /// The same in a work item of a process, which sleeps for it only if it may wait.
    User(UserTurn),
    /// This softirq does not hold it, and sends unless a thread owns the socket.
    Softirq(BhOff<'a>),
    /// TCP holds it and has called the driver in softirq.
    Callback(&'a mut Inbound<'b>),
}

impl TcpSender<'_, '_> {
    pub(super) fn send(&mut self, stream: &mut TxStream, more: SendHint) -> Result<usize> {
        match self {
            Self::Process => stream.conn.socket().send_batch(&mut stream.batch, more),
            Self::User(turn) => {
                turn.batches = turn.batches.saturating_sub(1);
                let socket = stream.conn.socket();
                match turn.waiting {
                    Waiting::Allowed => socket.send_batch(&mut stream.batch, more),
                    Waiting::Never => {
                        BhOff::run(|off| socket.try_send_batch(&mut stream.batch, more, off))
                    }
                }
            }
            Self::Softirq(off) => {
                let socket = stream.conn.socket();
                socket.try_send_batch(&mut stream.batch, more, *off)
            }
            Self::Callback(inbound) => inbound.try_send_batch(&mut stream.batch, more),
        }
    }

    pub(super) fn grow(&self) -> Grow {
        match self {
            Self::Process | Self::User(_) => Grow::Sleep,
            Self::Softirq(_) | Self::Callback(_) => Grow::Atomic,
        }
    }

    /// Returns whether this context may sleep until memory is free, or for what others hold.
    pub(crate) fn may_sleep(&self) -> bool {
        match self {
            Self::Process => true,
            Self::User(turn) => turn.waiting == Waiting::Allowed,
            Self::Softirq(_) | Self::Callback(_) => false,
        }
    }

    /// Returns whether other work items have their turn now.
    #[inline]
    pub(crate) fn is_over(&self) -> bool {
        match self {
            Self::User(turn) => turn.is_over(),
            Self::Process | Self::Softirq(_) | Self::Callback(_) => false,
        }
    }

    /// Lets other work items have their turn.
    pub(crate) fn end_turn(&mut self) {
        if let Self::User(turn) = self {
            turn.batches = 0;
        }
    }

    /// Returns how many rounds this context may run.
    pub(crate) fn rounds(&self) -> u32 {
        match self {
            Self::Process => BUDGET,
            Self::User(_) => USER_BUDGET,
            Self::Softirq(_) | Self::Callback(_) => SOFTIRQ_BUDGET,
        }
    }

    /// Returns how many batches this context may still send in a round.
    pub(super) fn budget(&self) -> u32 {
        match self {
            Self::Process => BUDGET,
            Self::User(turn) => turn.batches,
            Self::Softirq(_) | Self::Callback(_) => SOFTIRQ_BUDGET,
        }
    }
}
