// SPDX-License-Identifier: GPL-2.0

//! Looks whether a rule (`stream::inject`) still holds a request of the queue pair, or a message
//! that has arrived, and raises the events of rules.

use iwarp::inject::{
    EventSource,
    Point, //
};
use kernel::{
    sync::Arc,
    time::msecs_to_jiffies,
    workqueue::WorkItem, //
};
use kernel_ext::{
    rdma::types::{
        PortEvent,
        QpEvent,
        SrqEvent, //
    },
    workqueue::{
        cancel_delayed,
        enqueue_delayed,
        DelayedItem,
        OwnedQueue, //
    }, //
};

use crate::{
    queue::sq::RuledEvent,
    stream::owner::{
        QpShared,
        Receives, //
    }, //
};

use super::{
    actions::Runner,
    Qp,
    RULE, //
};

/// Time between two looks, in milliseconds.
const LOOK_MILLIS: u32 = 1;

impl DelayedItem<RULE> for Qp {
    fn queue(&self) -> &OwnedQueue {
        self.wait_queue()
    }
}

impl WorkItem<RULE> for Qp {
    type Pointer = Arc<Self>;

    /// Context: process.
    fn run(this: Arc<Self>) {
        while let Some(raised) = this.shared.sq.take_ruled_event() {
            raise(&this.shared, &raised);
        }
        this.receive_more();
        let after = this.shared.look_at_completions();
        this.carry_out(after, Runner::Any);
        this.transmit_and_wait();
        if this.shared.device.strict.is_on() {
            this.notify_for_nothing();
        }
        if this.shared.is_paced() {
            this.look_at_rule();
        }
    }
}

impl Qp {
    /// Looks soon: both sides of the stream ask again, as long as anything is held.
    ///
    /// Context: any but hard interrupt; a stream holds something.
    pub(super) fn look_at_rule(self: &Arc<Self>) {
        // It fails only if a look is scheduled already.
        let _ = enqueue_delayed::<Self, RULE>(self.clone(), msecs_to_jiffies(LOOK_MILLIS));
    }

    /// Cancels the next look, which refers to the queue pair. No stream schedules another one.
    pub(super) fn end_look(self: &Arc<Self>) {
        cancel_delayed::<Self, RULE>(self);
    }
}

/// Raises an event of a rule.
///
/// Context: process, no lock held.
fn raise(qp: &QpShared, raised: &RuledEvent) {
    let number = raised.event.number.into();
    // Each number is one of its source (`iwarp::inject`).
    match raised.event.of {
        EventSource::Port => {
            if let Some(event) = PortEvent::from_raw(number) {
                qp.device.raise(event);
            }
        }
        EventSource::Qp => {
            if let Some(event) = QpEvent::from_raw(number) {
                qp.link.event(event);
            }
        }
        EventSource::Cq => match raised.point {
            Point::Receive => qp.recv_cq.raise_error(),
            Point::Send | Point::Complete | Point::Verb(_) | Point::Connect | Point::Request => {
                qp.sq.cq().raise_error()
            }
        },
        EventSource::Srq => {
            // Without a shared receive queue nobody hears it.
            if let (Receives::Shared(srq), Some(event)) = (&qp.receives, SrqEvent::from_raw(number))
            {
                srq.raise(event);
            }
        }
    }
}
