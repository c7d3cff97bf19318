// SPDX-License-Identifier: GPL-2.0

//! Looks whether a rule (`stream::inject`), or a choice of the strict mode (`device::strict`),
//! still holds a request of the queue pair, or a message that has arrived, and raises the events of
//! rules.

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
    device::inject::Hold,
    queue::sq::RuledEvent,
    stream::owner::{
        QpShared,
        Receives, //
    }, //
};

use super::{
    actions::Runner,
    receive::RxWaits,
    Qp,
    RULE, //
};

/// Time between two looks, in milliseconds.
const LOOK_MILLIS: u32 = 1;

/// How many FPDUs that are late are placed before a stream ends.
const MOST_LATE: u32 = 64;

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
        this.place_late();
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

    /// Looks soon at the FPDU that is late by choice, or else fetches the memory of one that waits
    /// for it.
    ///
    /// Context: any but hard interrupt, no lock of the driver held but mutexes.
    #[cold]
    pub(super) fn fetch_in(self: &Arc<Self>) {
        match self.rx_waits() {
            RxWaits::Rule => self.look_at_rule(),
            RxWaits::Nothing | RxWaits::Memory | RxWaits::Receive => self.enqueue_paging_in(),
        }
    }

    /// Returns until when an FPDU is not placed that is late by choice.
    fn late(&self) -> Option<Hold> {
        let rx = self.rx.lock();
        rx.stream.as_ref().and_then(|stream| stream.late())
    }

    /// Places what is late by choice, once it is late enough.
    ///
    /// Context: process.
    fn place_late(self: &Arc<Self>) {
        match self.late() {
            Some(late) if late.is_over() => self.place_now(),
            Some(_) => self.look_at_rule(),
            None => {}
        }
    }

    /// Places what is late by choice before the stream ends: it has arrived before that. A step of
    /// the connection waits for the socket then, too.
    ///
    /// Context: process, sleeps.
    #[cold]
    pub(super) fn place_before_end(self: &Arc<Self>) {
        // The next one may be late, too.
        for _ in 0..MOST_LATE {
            if self.late().is_none() {
                return;
            }
            self.place_now();
        }
    }

    fn place_now(self: &Arc<Self>) {
        let Some(conn) = self.shared.conn() else {
            return;
        };
        let wanted = conn
            .socket()
            .with_inbound(|inbound| self.resume(&conn, inbound, None));
        if wanted.is_some() {
            // Its memory was taken away meanwhile.
            self.enqueue_paging_in();
        }
        // The end of the stream may be queued behind octets that were not consumed.
        self.processed(&conn);
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
            Point::Post
            | Point::Send
            | Point::Complete
            | Point::Verb(_)
            | Point::Connect
            | Point::Request => qp.sq.cq().raise_error(),
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
