// SPDX-License-Identifier: GPL-2.0

//! Messages that find no receive.
//!
//! A Send or Immediate Data for which no receive is posted stays in TCP's queue, with all data that
//! follows it, until one is: RFC 5041, section 7.1, allows to recover by means of the LLP. The TCP
//! window stops the peer. What the peer may learn from the FPDU it has learnt (MPA-9); nothing else
//! of it is done before there is a receive. `queue/waits.rs` says when the queue pair tries again.
//!
//! Context: softirq, or process with the socket locked.

use iwarp::{
    actions::After,
    fault::Fault,
    mpa,
    rdmap::Immediate,
    receiver::{
        Queued,
        SendSegment, //
    }, //
};
use kernel::{
    prelude::*,
    sync::atomic::Relaxed, //
};
use kernel_ext::warn_on_once;

use super::{
    fpdu::{
        Fpdu,
        FRONT_MAX, //
    },
    Flow,
    RxRound,
    RxStream,
    Stop, //
};
use crate::{
    queue::{
        rq::Taker,
        waits::ReceiveTurn, //
    },
    stream::owner::QpShared, //
};

/// The first FPDU in TCP's queue, which the protocol core has accepted.
#[derive(Clone, Copy)]
pub(super) enum WaitingMessage {
    /// The first segment of a Send.
    Send(SendSegment),
    /// Immediate Data.
    Immediate(Queued<Immediate>),
}

impl RxStream {
    /// Puts off a message that finds no receive, unless it may not wait.
    #[cold]
    pub(super) fn put_off_message(&mut self, qp: &QpShared, message: WaitingMessage) -> Stop {
        if qp.receive_wait.load(Relaxed) == 0 {
            return Fault::NoBuffer.into();
        }
        self.waiting = Some(message);
        Stop::NoReceive
    }

    /// Suspends the receiver until there is a receive for the first FPDU in TCP's queue.
    #[cold]
    pub(super) fn wait_for_receive(&mut self, round: &mut RxRound<'_, '_>) {
        self.validated(round);
        self.flow = Flow::NoReceive;
        round.qp.device.stats.rx_receive_waits.inc();
        round.qp.receives.queue().add_waiter();
        round.after.insert(After::AwaitReceive);
    }

    /// Takes the message that waits, if there is a receive for it or it has waited too long.
    /// Returns the length of its FPDU if that is done with.
    #[cold]
    pub(super) fn receive_waiting(&mut self, round: &mut RxRound<'_, '_>) -> usize {
        let qp = round.qp;
        let turn = qp.waiter.turn();
        let mut front = [0; FRONT_MAX];
        let (Some(fpdu), Some(waiting)) = (Fpdu::at(round.inbound, 0, &mut front), self.waiting)
        else {
            // A complete FPDU stays in the queue until it is consumed, and the flow is set together
            // with the message.
            warn_on_once!(true);
            return 0;
        };
        let header = front.get(mpa::LENGTH_LEN..).unwrap_or_default();
        round.after.insert(After::NotifyCompletions);
        if turn == ReceiveTurn::Now {
            self.incoming.taker = Taker::First;
        }
        let mut placed = match &waiting {
            WaitingMessage::Send(segment) => self.place_send(round, &fpdu, segment),
            WaitingMessage::Immediate(immediate) => self.take_immediate(qp, *immediate),
        };
        self.incoming.taker = Taker::Newcomer;
        if matches!(placed, Err(Stop::NoReceive)) {
            if !waited_too_long(qp, turn) {
                return 0;
            }
            placed = Err(Fault::NoBuffer.into());
        }
        self.flow = Flow::Going;
        self.end_receive_wait(qp);
        match placed {
            Ok(()) => self.accepted(round),
            Err(Stop::Fault(fault)) => self.stop(round, fault, &fpdu, header),
            Err(Stop::Absent | Stop::NoReceive) => {
                self.wait_for_memory(round);
                return 0;
            }
        }
        fpdu.len
    }

    /// Forgets the message that waits: it has its receive, or the stream ends.
    ///
    /// Context: the receive lock is held.
    #[cold]
    pub(crate) fn end_receive_wait(&mut self, qp: &QpShared) {
        self.waiting = None;
        qp.receives.queue().remove_waiter();
        qp.waiter.end();
    }
}

/// Returns whether a message may not wait any longer.
fn waited_too_long(qp: &QpShared, turn: ReceiveTurn) -> bool {
    match turn {
        ReceiveTurn::Later | ReceiveTurn::Now => false,
        ReceiveTurn::Review { millis, again } => {
            if !again {
                qp.device.warn(fmt!(
                    "QP {}: a message of the peer has waited {millis} ms for a receive",
                    qp.number
                ));
            }
            // Their answers stand behind the message.
            !qp.sq.no_reads()
        }
        ReceiveTurn::Over(millis) => {
            qp.device.stats.rx_receive_timeouts.inc();
            qp.device.warn(fmt!(
                "QP {}: no receive within {millis} ms for a message of the peer: post receives \
                 earlier, or raise receive_wait",
                qp.number
            ));
            true
        }
    }
}
