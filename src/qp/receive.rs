// SPDX-License-Identifier: GPL-2.0

//! The queue pair's side of the receiver: attaches a stream to it, and passes it what arrives.
//!
//! Context: softirq, or process with the socket locked, unless a function says otherwise.

use iwarp::rdmap::Extensions;
use kernel::{
    prelude::*,
    sync::{
        atomic::Relaxed,
        Arc, //
    }, //
};
use kernel_ext::{
    net::Inbound,
    sync::BhOff, //
};

use crate::{
    odp::mr::{
        FetchedPages,
        RegionRange, //
    },
    stream::{
        connection::{
            StreamConnection,
            StreamParams, //
        },
        rx::{
            RxRound,
            RxStream, //
        }, //
    }, //
};

use super::{
    actions::Runner,
    Qp, //
};

/// What the first FPDU that has arrived waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RxWaits {
    Nothing,
    /// Its memory.
    Memory,
    /// Its receive.
    Receive,
    /// That no rule holds it any more, or no choice of the strict mode.
    Rule,
}

/// How long a message waits at least for its receive once the peer has closed its half, in
/// milliseconds.
const CLOSED_RECEIVE_WAIT: u32 = 1_000;

impl Qp {
    /// Attaches a stream to the receiver, which supports `extensions`.
    ///
    /// Context: process.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn start_rx(
        &self,
        conn: &Arc<StreamConnection>,
        params: &StreamParams,
        extensions: Extensions,
    ) -> Result {
        let stream = RxStream::new(&self.shared, conn, params, extensions)?;
        self.owner.charge(&stream);
        let _drop_outside_lock = self.rx.lock().stream.replace(stream);
        Ok(())
    }

    /// Detaches the stream from the receiver; returns the cookie of the receive work request that
    /// was being filled.
    ///
    /// Context: process.
    pub(super) fn stop_rx(&self) -> Option<u64> {
        let (stream, waited) = {
            let mut rx = self.rx.lock();
            let stream = rx.stream.take()?;
            let waited = stream.awaits_receive();
            if waited {
                self.shared.end_receive_wait();
            }
            // Dropped without the lock: it may close the socket.
            (stream, waited)
        };
        if waited {
            self.shared.waiter.leave();
        }
        if waited || stream.is_held() {
            if let Some(conn) = self.shared.conn() {
                // It may wait for what the stream has left.
                self.processed(&conn);
            }
        }
        stream.begun()
    }

    /// Enters the queue pair among those that wait for a receive, unless its stream has it by now,
    /// or has ended.
    #[cold]
    pub(super) fn await_receive(self: &Arc<Self>) {
        let rx = self.rx.lock();
        if rx
            .stream
            .as_ref()
            .is_some_and(|stream| stream.awaits_receive())
        {
            let limit = self.shared.receive_wait.load(Relaxed);
            let queue = self.shared.receives.queue();
            self.shared.waiter.begin(queue, self.clone(), limit);
        }
    }

    /// Ends a wait for a receive that has no limit: the peer has closed its half.
    ///
    /// Context: process.
    pub(crate) fn limit_receive_wait(&self) {
        let limit = self.shared.device.settings.receive_wait();
        self.shared.waiter.limit(limit.max(CLOSED_RECEIVE_WAIT));
    }

    /// Processes the octets that have arrived.
    pub(crate) fn data_ready(self: &Arc<Self>, inbound: &mut Inbound<'_>, off: BhOff<'_>) {
        let mut round = RxRound::new(&self.shared, &mut *inbound, off);
        match &mut off.lock(&self.rx).stream {
            Some(stream) => stream.receive(&mut round),
            // Discards the data of a stream that has ended.
            None => round.inbound.consume(round.inbound.available()),
        }
        let after = round.end();
        self.carry_out(after, Runner::Callback(inbound));
    }

    /// Processes the octets that have arrived, if the stream belongs to `conn`. Ignores data that
    /// arrives without a current stream.
    pub(super) fn more_from(
        self: &Arc<Self>,
        conn: &Arc<StreamConnection>,
        inbound: &mut Inbound<'_>,
        off: BhOff<'_>,
    ) {
        let mut round = RxRound::new(&self.shared, &mut *inbound, off);
        {
            let mut rx = off.lock(&self.rx);
            let stream = rx.stream.as_mut();
            if let Some(stream) = stream.filter(|stream| stream.is_of(conn)) {
                stream.receive(&mut round);
            }
        }
        let after = round.end();
        self.carry_out(after, Runner::Callback(inbound));
    }

    /// Resumes the deferred FPDU, and then the stream, if it still belongs to `conn`. Returns the
    /// range to fetch before that is possible.
    ///
    /// Context: process, the socket locked.
    pub(crate) fn resume(
        self: &Arc<Self>,
        conn: &Arc<StreamConnection>,
        inbound: &mut Inbound<'_>,
        fetched: Option<&FetchedPages>,
    ) -> Option<RegionRange> {
        let range = BhOff::run(|off| {
            let mut round = RxRound::new(&self.shared, &mut *inbound, off);
            let range = {
                let mut rx = off.lock(&self.rx);
                let stream = rx
                    .stream
                    .as_mut()
                    .filter(|stream| stream.is_paging_in() && stream.is_of(conn))?;
                stream.go_on(&mut round, fetched)
            };
            let after = round.end();
            self.carry_out(after, Runner::Callback(&mut *inbound));
            Some(range)
        })?;
        if range.is_none() {
            // Processes the data that follows. The lock was released, so the stream may be another
            // one by now.
            BhOff::run(|off| self.more_from(conn, inbound, off));
        }
        range
    }

    /// Returns whether the stream may end here: no message is incomplete (MPA-30).
    ///
    /// Context: process.
    pub(crate) fn is_between_messages(&self) -> bool {
        let rx = self.rx.lock();
        rx.stream
            .as_ref()
            .is_none_or(|stream| stream.is_between_messages())
    }

    /// Returns what an FPDU waits for.
    ///
    /// Context: process.
    pub(crate) fn rx_waits(&self) -> RxWaits {
        match &self.rx.lock().stream {
            Some(stream) if stream.late().is_some() => RxWaits::Rule,
            Some(stream) if stream.is_paging_in() => RxWaits::Memory,
            Some(stream) if stream.awaits_receive() => RxWaits::Receive,
            Some(stream) if stream.is_held() => RxWaits::Rule,
            Some(_) | None => RxWaits::Nothing,
        }
    }
}
