// SPDX-License-Identifier: GPL-2.0

//! The executor of what comes after a transition, a round of the receiver or of the transmit task.

use iwarp::actions::{
    After,
    Set, //
};
use kernel::sync::Arc;
use kernel_ext::{
    net::Inbound,
    rdma::types::QpEvent, //
};

use crate::stream::tx::STARVED_PERIOD;

use super::Qp;

/// Who carries out what comes after a transition. It decides how the transmit task runs.
pub(crate) enum Runner<'a, 'b> {
    /// Any context: the task runs in a work item, or goes on where it runs.
    Any,
    /// A step of a connection, which does not wait for what a process holds.
    Step,
    /// A verb. Context: process, no lock held.
    Verb,
    /// A callback of the stream's socket.
    Callback(&'a mut Inbound<'b>),
}

impl Qp {
    /// Carries out what has to happen once the locks are released.
    ///
    /// Context: any, no lock of the driver held but mutexes; process for
    /// [`After::TransmitLater`].
    #[inline]
    pub(crate) fn carry_out(self: &Arc<Self>, after: Set<After>, runner: Runner<'_, '_>) {
        // The usual end of a round.
        if !after.is_empty() {
            self.carry_out_each(after, runner);
        }
    }

    fn carry_out_each(self: &Arc<Self>, after: Set<After>, mut runner: Runner<'_, '_>) {
        for action in after.iter() {
            match action {
                After::NotifyFatal => self.shared.link.event(QpEvent::Fatal),
                After::NotifyAccessError => self.shared.link.event(QpEvent::AccessError),
                After::NotifyRequestError => self.shared.link.event(QpEvent::RequestError),
                After::NotifyCompletions => self.shared.notify(),
                After::Transmit => match &mut runner {
                    Runner::Any => self.kick(),
                    Runner::Step => self.transmit_in_step(),
                    // A kernel consumer must not be called back from within its own call
                    // (Documentation/infiniband/core_locking.rst).
                    Runner::Verb if self.shared.user && !self.is_in_items() => self.transmit(),
                    Runner::Verb => self.kick(),
                    Runner::Callback(inbound) => self.answer(inbound),
                },
                After::TransmitLater => self.arm_tx_timer(STARVED_PERIOD),
                After::Receive => self.enqueue_rx(),
                After::FetchIn => self.fetch_in(),
                After::AwaitReceive => self.await_receive(),
                After::FetchOut => self.enqueue_paging_out(),
                After::CheckIdle => self.schedule_idle_check(),
                After::LimitClosedPeer => self.time_out_closed_peer(),
                After::LookAtRule => self.look_at_rule(),
            }
        }
    }
}
