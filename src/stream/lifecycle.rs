// SPDX-License-Identifier: GPL-2.0

//! The published state of a queue pair: a word that every context may read, and that changes only
//! through the state machine in [`iwarp::lifecycle`].
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
    sync::atomic::{
        Acquire,
        Atomic,
        Full,
        Relaxed, //
    }, //
};
use kernel_ext::rdma::{
    types::{
        QpEvent,
        QpState, //
    },
    wr::WcStatus, //
};

use super::{
    connection::Close,
    owner::QpShared, //
};

/// An atomic [`Lifecycle`].
pub(crate) struct LifecycleWord(Atomic<u32>);

/// A transition that was made.
pub(crate) struct Transition {
    pub(crate) before: Lifecycle,
    pub(crate) actions: Actions,
}

impl LifecycleWord {
    pub(crate) fn new(state: Lifecycle) -> Self {
        Self(Atomic::new(state.to_raw()))
    }

    pub(crate) fn load(&self) -> Lifecycle {
        // ORDERING: pairs with the full barrier in `on`: a context that sees a state also sees what
        // was prepared before its transition.
        Lifecycle::from_raw(self.0.load(Acquire))
    }

    /// Makes the transition for `event`. A full barrier, even if the state stays the same; none if
    /// the event is refused.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the state machine refuses the event.
    pub(crate) fn on(&self, event: Event) -> Result<Transition> {
        // ORDERING: only a first guess, which the exchange checks.
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

impl QpShared {
    /// Returns the current state.
    pub(crate) fn lifecycle(&self) -> Lifecycle {
        self.lifecycle.load()
    }

    pub(crate) fn phase(&self) -> QpPhase {
        self.lifecycle().phase()
    }

    /// Makes the transition for `event` and returns the actions to take. Does nothing if the state
    /// machine refuses the event.
    pub(crate) fn on(&self, event: Event) -> Actions {
        self.try_on(event).unwrap_or(Actions::NONE)
    }

    /// As [`QpShared::on`], but reports a refusal.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the state machine refuses the event.
    pub(crate) fn try_on(&self, event: Event) -> Result<Actions> {
        self.lifecycle
            .on(event)
            .map(|transition| transition.actions)
    }

    /// Returns the actions that `event` would require now, without making the transition.
    ///
    /// # Errors
    ///
    /// `EINVAL` if it would be refused.
    pub(crate) fn would(&self, event: Event) -> Result<Actions> {
        let (_, actions) = self.lifecycle().on(event).map_err(|_| EINVAL)?;
        Ok(actions)
    }

    /// Closes the connection and raises the event as a transition requires. The caller runs the
    /// transmit task.
    ///
    /// Context: any, no spin lock of the driver held but `rx`.
    pub(crate) fn act(&self, actions: Actions) {
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
            conn.as_arc_borrow().close(how);
        }
    }
}

/// Returns the status of the oldest request after this failure.
pub(crate) fn status_of(failure: FirstFailure) -> WcStatus {
    match failure {
        FirstFailure::Flushed => WcStatus::Flushed,
        FirstFailure::RetryExceeded => WcStatus::RetryExceeded,
        FirstFailure::RemoteAccess => WcStatus::RemoteAccess,
        FirstFailure::RemoteInvalidRequest => WcStatus::RemoteInvalidRequest,
        FirstFailure::RemoteOperation => WcStatus::RemoteOperation,
    }
}

/// Returns the state as the verbs name it.
pub(crate) fn qp_state(state: VerbsState) -> QpState {
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

/// For the tests of other parts.
#[cfg(CONFIG_KUNIT = "y")]
impl QpShared {
    /// Brings the queue pair to a phase by the events that lead to it.
    pub(crate) fn enter(&self, phase: QpPhase) {
        let attach = Event::Attach {
            wait_first_fpdu: false,
        };
        match phase {
            QpPhase::Waiting => self.on(Event::ModifyInit),
            QpPhase::Closing => self.on(attach),
            _ => Actions::NONE,
        };
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
