// SPDX-License-Identifier: GPL-2.0

//! The state of a queue pair, published: a word that every context reads, and that changes only as
//! the state machine in [`iwarp::lifecycle`] says.
//!
//! Context: any.

use iwarp::lifecycle::{
    Actions,
    Event,
    FirstFailure,
    Lifecycle,
    QpPhase,
    Requested,
    VerbsState, //
};
use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Full,
            Relaxed, //
        },
        Arc, //
    }, //
};
use kernel_ext::rdma::{
    types::{
        QpEvent,
        QpState, //
    },
    wr::WcStatus, //
};

use super::Qp;
use crate::cm::conn::Close;

/// A [`Lifecycle`] that may change at any time.
pub(super) struct LifecycleWord(Atomic<u32>);

/// A transition that has happened.
pub(super) struct Transition {
    pub(super) before: Lifecycle,
    pub(super) actions: Actions,
}

impl LifecycleWord {
    pub(super) fn new() -> Self {
        Self(Atomic::new(Lifecycle::NEW.to_raw()))
    }

    pub(super) fn load(&self) -> Lifecycle {
        // ORDERING: pairs with the full barrier in `on`: who sees a state sees what was prepared
        // for it.
        Lifecycle::from_raw(self.0.load(Acquire))
    }

    /// Makes the transition. A full barrier, also where nothing changes.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the state machine refuses the event.
    pub(crate) fn on(&self, event: Event) -> Result<Transition> {
        let mut raw = self.0.load(Relaxed);
        loop {
            let before = Lifecycle::from_raw(raw);
            let (after, actions) = before.on(event).map_err(|_| EINVAL)?;
            match self.0.cmpxchg(raw, after.to_raw(), Full) {
                Ok(_) => return Ok(Transition { before, actions }),
                Err(seen) => raw = seen,
            }
        }
    }
}

impl Qp {
    /// The state as it is now.
    pub(crate) fn lifecycle(&self) -> Lifecycle {
        self.lifecycle.load()
    }

    pub(crate) fn phase(&self) -> QpPhase {
        self.lifecycle().phase()
    }

    /// Something has happened; nothing happens to the queue pair if the state machine refuses it.
    /// What is to be done then is returned.
    pub(crate) fn on(&self, event: Event) -> Actions {
        self.try_on(event).unwrap_or(Actions::NONE)
    }

    /// As [`Qp::on`], for what may be refused.
    ///
    /// # Errors
    ///
    /// `EINVAL` if it is.
    pub(crate) fn try_on(&self, event: Event) -> Result<Actions> {
        self.lifecycle
            .on(event)
            .map(|transition| transition.actions)
    }

    /// Whether an event would be allowed now, and what would have to be done.
    ///
    /// # Errors
    ///
    /// `EINVAL` if it would be refused.
    pub(crate) fn would(&self, event: Event) -> Result<Actions> {
        let (_, actions) = self.lifecycle().on(event).map_err(|_| EINVAL)?;
        Ok(actions)
    }

    /// Does what a transition asks of the connection and the consumer. The caller calls the
    /// transmitter.
    ///
    /// Context: any, no spin lock of the driver held.
    pub(crate) fn act(self: &Arc<Self>, actions: Actions) {
        if actions.contains(Actions::NOTIFY_FATAL) {
            self.link.event(QpEvent::Fatal);
        }
        let how = if actions.contains(Actions::ABORT) {
            Close::Abort
        } else if actions.contains(Actions::CLOSE) {
            Close::Graceful
        } else {
            return;
        };
        if let Some(conn) = self.conn() {
            conn.close(how);
        }
    }
}

/// How the oldest request completes after such an end.
pub(super) fn status_of(failure: FirstFailure) -> WcStatus {
    match failure {
        FirstFailure::Flushed => WcStatus::Flushed,
        FirstFailure::RetryExceeded => WcStatus::RetryExceeded,
        FirstFailure::RemoteAccess => WcStatus::RemoteAccess,
        FirstFailure::RemoteInvalidRequest => WcStatus::RemoteInvalidRequest,
        FirstFailure::RemoteOperation => WcStatus::RemoteOperation,
    }
}

/// As the verbs say it.
pub(super) fn qp_state(state: VerbsState) -> QpState {
    match state {
        VerbsState::Requested(Requested::Reset) => QpState::Reset,
        VerbsState::Requested(Requested::Init) => QpState::Init,
        VerbsState::Requested(Requested::Rtr) => QpState::Rtr,
        VerbsState::Requested(Requested::Rts) => QpState::Rts,
        VerbsState::Sqd => QpState::Sqd,
        VerbsState::Sqe => QpState::Sqe,
        VerbsState::Err => QpState::Err,
    }
}

/// What the tests of other parts need of it.
#[cfg(CONFIG_KUNIT = "y")]
impl Qp {
    /// Brings the queue pair to a phase by events that lead there.
    pub(crate) fn enter(&self, phase: QpPhase) {
        let attach = Event::Attach {
            wait_first_fpdu: false,
        };
        if phase == QpPhase::Closing {
            self.on(attach);
        }
        self.on(match phase {
            QpPhase::Idle => Event::ResetEnd,
            QpPhase::Waiting => Event::ModifyRtrPath,
            QpPhase::Rts => attach,
            QpPhase::Closing => Event::ModifySqd,
            QpPhase::Terminate => Event::Fault,
            QpPhase::Error => Event::StreamEnded { lost: false },
            QpPhase::Gone => Event::Destroy,
        });
    }
}
