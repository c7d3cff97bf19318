// SPDX-License-Identifier: GPL-2.0

//! Transitions of a queue pair, and the executors of what they require: one for each type of
//! [`iwarp::actions`], which carries out every action of its type.

use iwarp::{
    actions::{
        Actions,
        After,
        Later,
        Now,
        Set, //
    },
    lifecycle::{
        Event,
        Notice,
        Request, //
    },
    terminate::Terminate, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};
use kernel_ext::rdma::types::QpEvent;

use crate::stream::{
    connection::Bound,
    owner::{
        QpInner,
        Runner,
        StreamOwner, //
    }, //
};

use super::Qp;

/// What a transition requires besides [`Now`].
type Rest = (Set<After>, Set<Later>);

impl Qp {
    /// Makes the transition of a request of the consumer or of a connection, and carries out all
    /// that it requires but what is returned. Context: process.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the state machine refuses the request.
    pub(super) fn request(self: &Arc<Self>, request: Request) -> Result<Set<After>> {
        let actions = self.lifecycle.request(request)?;
        let rest = self.carry_out_now(actions, None);
        Ok(self.carry_out_later(rest))
    }

    /// Does the same for an event, as [`StreamOwner::apply`].
    pub(super) fn happened(self: &Arc<Self>, event: Event) -> Set<After> {
        let rest = self.carry_out_now(self.lifecycle.on(event), None);
        self.carry_out_later(rest)
    }

    /// Does the same under the lock of what the stream's callbacks need, for a request that depends
    /// on that: `prepare` says whether it may be made, and returns the Terminate to be sent, if the
    /// request leads to one.
    ///
    /// # Errors
    ///
    /// Also those of `prepare`.
    pub(super) fn request_if(
        self: &Arc<Self>,
        request: Request,
        prepare: impl FnOnce(&mut QpInner) -> Result<Option<Terminate>>,
    ) -> Result<Set<After>> {
        let rest = {
            let mut inner = self.inner.lock();
            let terminate = prepare(&mut inner)?;
            let actions = self.lifecycle.request(request)?;
            let kept = terminate.map(|terminate| (&mut inner.terminate, terminate));
            self.carry_out_now(actions, kept)
        };
        Ok(self.carry_out_later(rest))
    }

    /// Makes the transition of a fault, as [`StreamOwner::terminate`].
    pub(super) fn faulted(self: &Arc<Self>, notice: Notice, terminate: Terminate) -> Set<After> {
        let rest = {
            // The transmit task takes it under the lock, so it sees no phase without the message.
            let mut inner = self.inner.lock();
            let actions = self.lifecycle.on(Event::Fault(notice));
            self.carry_out_now(actions, Some((&mut inner.terminate, terminate)))
        };
        self.carry_out_later(rest)
    }

    /// Carries out what comes with the transition. `kept`: where a Terminate is kept, and which.
    fn carry_out_now(
        &self,
        Actions { now, after, later }: Actions,
        mut kept: Option<(&mut Option<Terminate>, Terminate)>,
    ) -> Rest {
        for action in now.iter() {
            match action {
                Now::KeepTerminate => match kept.take() {
                    Some((place, terminate)) => *place = Some(terminate),
                    None => {}
                },
                Now::Drain => self.sq.drain(),
            }
        }
        (after, later)
    }

    /// Carries out what a transition asks of the search and of the connection, and returns the
    /// rest. A connection is only asked, under the lock that keeps it bound; its own work item does
    /// it.
    fn carry_out_later(self: &Arc<Self>, (after, later): Rest) -> Set<After> {
        for action in later.iter() {
            match action {
                Later::EndSearch => drop(self.end_oob()),
                Later::ReportFirstFpdu | Later::Leave | Later::Close | Later::Abort => {
                    if let Some(bound) = &self.inner.lock().conn {
                        self.ask(bound, action);
                    }
                }
            }
        }
        after
    }

    /// Asks something of a connection, and queues its work item. Context: any.
    pub(super) fn ask(&self, bound: &Bound, what: Later) {
        bound.connection.ask(what);
        let owner = bound.owner.as_arc_borrow();
        owner.enqueue_on(&self.device.queues.stream);
    }

    /// Carries out what comes after a transition, as [`StreamOwner::carry_out`].
    pub(super) fn carry_out_after(self: &Arc<Self>, after: Set<After>, mut runner: Runner<'_, '_>) {
        for action in after.iter() {
            match action {
                After::NotifyFatal => self.link.event(QpEvent::Fatal),
                After::NotifyAccessError => self.link.event(QpEvent::AccessError),
                After::NotifyRequestError => self.link.event(QpEvent::RequestError),
                After::NotifyCompletions => self.notify(),
                After::Transmit => match &mut runner {
                    Runner::Any => self.kick(),
                    Runner::Step => self.transmit_in_step(),
                    // A kernel consumer must not be called back from within its own call
                    // (Documentation/infiniband/core_locking.rst).
                    Runner::Verb if self.user => self.transmit(),
                    Runner::Verb => self.kick(),
                    Runner::Callback(inbound) => self.answer(inbound),
                },
                After::Receive => self.enqueue_rx(),
            }
        }
    }
}
