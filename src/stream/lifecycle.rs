// SPDX-License-Identifier: GPL-2.0

//! The published state of a queue pair: a word that every context may read, and that changes only
//! through the state machine in [`iwarp::lifecycle`]; and the executor of what comes with a
//! transition ([`Now`]). What it asks of the connection ([`Later`]) is passed on; the executor of
//! [`After`] is in `qp/actions.rs`.
//!
//! Context: any.

use core::convert::Infallible;

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
        FirstFailure,
        Lifecycle,
        Notice,
        QpPhase,
        QpRequest,
        Requested,
        VerbsState, //
    },
    terminate::Terminate, //
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
use kernel_ext::{
    rdma::{
        types::QpState,
        wr::WcStatus, //
    },
    warn_on_once, //
};

use crate::device::DeviceKind;

use super::{
    connection::Bound,
    owner::{
        QpInner,
        QpShared, //
    }, //
};

/// An atomic [`Lifecycle`].
pub(crate) struct LifecycleWord(Atomic<u32>);

impl LifecycleWord {
    pub(crate) fn new(state: Lifecycle) -> Self {
        Self(Atomic::new(state.to_raw()))
    }

    #[inline(always)]
    pub(crate) fn load(&self) -> Lifecycle {
        // ORDERING: pairs with the full barrier in `exchange`: a context that sees a state also
        // sees what was prepared before its transition.
        Lifecycle::from_raw(self.0.load(Acquire))
    }

    /// Makes the transition of a request and returns what it requires. A full barrier, even if the
    /// state stays the same; none if the request is refused.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the state machine refuses the request.
    pub(crate) fn request(&self, request: QpRequest) -> Result<Actions> {
        self.exchange(|state| state.request(request).map_err(|_| EINVAL))
    }

    /// Makes the transition of an event and returns what it requires. A full barrier.
    pub(crate) fn on(&self, event: Event) -> Actions {
        let Ok(actions) = self.exchange::<_, Infallible>(|state| Ok(state.on(event)));
        actions
    }

    /// Records whether a request waits until outstanding Reads are answered. A full barrier.
    pub(crate) fn set_read_wait(&self, waits: bool) {
        let Ok(()) = self.exchange::<_, Infallible>(|state| Ok((state.with_read_wait(waits), ())));
    }

    /// Returns how the oldest unfinished request completes now that all are flushed; later flushes
    /// have no such request.
    pub(crate) fn take_first_failure(&self) -> Option<FirstFailure> {
        let Ok(first) =
            self.exchange::<_, Infallible>(|state| Ok((state.flushed(), state.first_failure())));
        first
    }

    /// Replaces the state by what `next` makes of it; returns what `next` returns besides.
    fn exchange<R, E>(
        &self,
        next: impl Fn(Lifecycle) -> Result<(Lifecycle, R), E>,
    ) -> Result<R, E> {
        // ORDERING: only a first guess, which the exchange checks.
        let mut raw = self.0.load(Relaxed);
        loop {
            let (after, result) = next(Lifecycle::from_raw(raw))?;
            match self.0.cmpxchg(raw, after.to_raw(), Full) {
                Ok(_) => return Ok(result),
                Err(seen) => raw = seen,
            }
        }
    }
}

/// What a transition requires besides [`Now`].
type Rest = (Set<After>, Set<Later>);

impl QpShared {
    /// Returns the current state.
    #[inline(always)]
    pub(crate) fn lifecycle(&self) -> Lifecycle {
        self.lifecycle.load()
    }

    #[inline(always)]
    pub(crate) fn phase(&self) -> QpPhase {
        self.lifecycle().phase()
    }

    /// Makes the transition of an event, and carries out what comes with it and what it asks of the
    /// connection. The caller carries out the rest, without locks.
    ///
    /// Context: any.
    pub(crate) fn apply(&self, event: Event) -> Set<After> {
        let rest = self.carry_out_now(self.lifecycle.on(event), None);
        self.carry_out_later(rest)
    }

    /// Does the same for a fault, which ends the stream with this Terminate. Only the first of
    /// several is sent (RDMAP-144).
    ///
    /// Context: any.
    pub(crate) fn terminate(&self, notice: Notice, terminate: Terminate) -> Set<After> {
        let rest = {
            // The transmit task takes it under the lock, so it sees no phase without the message.
            let mut inner = self.inner.lock();
            let actions = self.lifecycle.on(Event::Fault(notice));
            self.carry_out_now(actions, Some((&mut inner.terminate, terminate)))
        };
        self.carry_out_later(rest)
    }

    /// Makes the transition of a request of the consumer or of a connection, likewise.
    ///
    /// Context: process.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the state machine refuses the request.
    pub(crate) fn request(&self, request: QpRequest) -> Result<Set<After>> {
        let actions = self.lifecycle.request(request)?;
        let rest = self.carry_out_now(actions, None);
        Ok(self.carry_out_later(rest))
    }

    /// Does the same under the lock of what the stream's callbacks need, for a request that depends
    /// on that: `prepare` says whether it may be made, and returns the Terminate to be sent, if the
    /// request leads to one.
    ///
    /// # Errors
    ///
    /// Also those of `prepare`.
    pub(crate) fn request_if(
        &self,
        request: QpRequest,
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
                    // Only a fault and the transition to SQE have this action, and both come with
                    // a Terminate. Without one the stream ends without.
                    None => _ = warn_on_once!(true),
                },
                Now::Drain => self.sq.drain(),
            }
        }
        (after, later)
    }

    /// Has the connection do its part, and returns the rest.
    fn carry_out_later(&self, (after, later): Rest) -> Set<After> {
        if !later.is_empty() {
            // The lock keeps the connection bound.
            if let Some(bound) = &self.inner.lock().conn {
                self.ask(bound, later);
            }
        }
        after
    }

    /// Asks something of a connection, and queues its work item. Context: any.
    pub(crate) fn ask(&self, bound: &Bound, what: Set<Later>) {
        for action in what.iter() {
            bound.connection.ask(action);
        }
        bound.enqueue(&self.device.queues.stream);
    }

    /// Returns whether a request would be allowed now.
    ///
    /// # Errors
    ///
    /// `EINVAL` if not.
    pub(crate) fn allows(&self, request: QpRequest) -> Result {
        self.lifecycle().allows(request).map_err(|_| EINVAL)
    }
}

/// Returns the status of the oldest request after this failure, for a consumer of this link type.
pub(crate) fn status_of(failure: FirstFailure, kind: DeviceKind) -> WcStatus {
    match failure {
        FirstFailure::Flushed => WcStatus::Flushed,
        FirstFailure::RetryExceeded => WcStatus::RetryExceeded,
        FirstFailure::RemoteAccess => WcStatus::RemoteAccess,
        FirstFailure::RemoteInvalidRequest => WcStatus::RemoteInvalidRequest,
        FirstFailure::RemoteOperation => WcStatus::RemoteOperation,
        // iWARP has no name for it.
        FirstFailure::ReceiverNotReady if kind.posts_receives_first() => {
            WcStatus::RemoteInvalidRequest
        }
        FirstFailure::ReceiverNotReady => WcStatus::RnrRetryExceeded,
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
    /// Brings the queue pair to a phase by what leads to it. Nobody carries out what that requires.
    pub(crate) fn enter(&self, phase: QpPhase) {
        let attach = QpRequest::Attach {
            wait_first_fpdu: false,
        };
        let request = |request| {
            let _ = self.lifecycle.request(request);
        };
        let event = |event| {
            let _ = self.lifecycle.on(event);
        };
        match phase {
            QpPhase::Idle => request(QpRequest::ResetEnd),
            QpPhase::Waiting => {
                request(QpRequest::ModifyInit);
                request(QpRequest::ModifyRtrPath);
            }
            QpPhase::Rts => request(attach),
            QpPhase::Closing => {
                request(attach);
                request(QpRequest::ModifySqd);
            }
            QpPhase::Terminate => event(Event::Fault(Notice::Completion)),
            QpPhase::Error => event(Event::StreamEnded { lost: false }),
            QpPhase::Gone => event(Event::Destroy),
        }
    }
}
