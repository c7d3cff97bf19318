// SPDX-License-Identifier: GPL-2.0

//! The queue pair's side of the receiver: attaches a stream to it, and passes it what arrives.
//!
//! Context: softirq, or process with the socket locked, unless a function says otherwise.

use iwarp::rdmap::Extensions;
use kernel::{
    prelude::*,
    sync::Arc, //
};
use kernel_ext::{
    net::Inbound,
    sync::BhOff, //
};

use crate::{
    odp::mr::{
        Fetched,
        Wanted, //
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
        let stream = RxStream::new(conn, params, extensions)?;
        self.owner.charge(&stream);
        let _drop_outside_lock = self.shared.rx.lock().stream.replace(stream);
        Ok(())
    }

    /// Detaches the stream from the receiver; returns the cookie of the receive work request that
    /// was being filled.
    ///
    /// Context: process.
    pub(super) fn stop_rx(&self) -> Option<u64> {
        let stream = self.shared.rx.lock().stream.take()?;
        stream.begun()
    }

    /// Processes the octets that have arrived.
    pub(crate) fn data_ready(self: &Arc<Self>, inbound: &mut Inbound<'_>, off: BhOff<'_>) {
        let mut round = RxRound::new(&self.shared, &mut *inbound, off);
        match &mut off.lock(&self.shared.rx).stream {
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
            let mut rx = off.lock(&self.shared.rx);
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
        fetched: Option<&Fetched>,
    ) -> Option<Wanted> {
        let wanted = BhOff::run(|off| {
            let mut round = RxRound::new(&self.shared, &mut *inbound, off);
            let wanted = {
                let mut rx = off.lock(&self.shared.rx);
                let stream = rx
                    .stream
                    .as_mut()
                    .filter(|stream| stream.is_paging_in() && stream.is_of(conn))?;
                stream.go_on(&mut round, fetched)
            };
            let after = round.end();
            self.carry_out(after, Runner::Callback(&mut *inbound));
            Some(wanted)
        })?;
        if wanted.is_none() {
            // Processes the data that follows. The lock was released, so the stream may be another
            // one by now.
            BhOff::run(|off| self.more_from(conn, inbound, off));
        }
        wanted
    }

    /// Returns whether the stream may end here: no message is incomplete (MPA-30).
    ///
    /// Context: process.
    pub(crate) fn is_between_messages(&self) -> bool {
        let rx = self.shared.rx.lock();
        rx.stream
            .as_ref()
            .is_none_or(|stream| stream.is_between_messages())
    }

    /// Returns whether an FPDU waits for its memory.
    ///
    /// Context: process.
    pub(crate) fn is_paging_in(&self) -> bool {
        let rx = self.shared.rx.lock();
        rx.stream
            .as_ref()
            .is_some_and(|stream| stream.is_paging_in())
    }
}
