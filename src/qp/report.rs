// SPDX-License-Identifier: GPL-2.0

//! The state of a queue pair in one line, for administrators. docs/debugging.md has the words.
//!
//! Values are read one after the other, under the locks that a poster or a receiver takes too, and
//! none is held while the line is written. So they may not fit together.
//!
//! Context: process.

use iwarp::{
    lifecycle::QpPhase,
    mpa::{
        Crc,
        Markers, //
    },
    rdmap::Extensions, //
};
use kernel::{
    fmt,
    prelude::*,
    sync::atomic::Relaxed, //
};
use kernel_ext::trace::PostSend;

use crate::{
    queue::sq::Occupancy,
    stream::owner::{
        Negotiated,
        ReadWait,
        Receives, //
    }, //
};

use super::{
    receive::RxWaits,
    Qp, //
};

impl Qp {
    /// Writes `key=value` words, the last of them quoted, without the device and the end of the
    /// line.
    pub(crate) fn report(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lifecycle = self.shared.lifecycle();
        let sq = self.shared.sq.occupancy();
        let (inbound, ird) = self.shared.inbound_reads.occupancy();
        let consumer = if self.shared.user {
            "process"
        } else {
            "kernel"
        };
        let via = if lifecycle.is_by_path() {
            "oob"
        } else {
            "rdma_cm"
        };
        out.write_fmt(fmt!(
            "qp={} consumer={consumer} phase={} via={via}",
            self.shared.number,
            phase_name(lifecycle.phase())
        ))?;
        let (conn, negotiated) = {
            let inner = self.shared.inner.lock();
            (inner.conn.clone(), inner.negotiated)
        };
        let conn = conn.as_ref();
        if let Some(conn) = conn {
            let (local, peer) = conn.connection.socket().addr_pair();
            let ulpdu_max = conn.connection.ulpdu_max();
            out.write_fmt(fmt!(" local={local} peer={peer} ulpdu_max={ulpdu_max}"))?;
            if let Some(cipher) = conn.connection.socket().cipher() {
                out.write_fmt(fmt!(" tls={cipher}"))?;
            }
            if let Some(certificate) = conn.connection.socket().peer_certificate() {
                out.write_str(" tls_peer=")?;
                for octet in certificate.subject_key_id() {
                    out.write_fmt(fmt!("{octet:02x}"))?;
                }
            }
        }
        if let Some(negotiated) = negotiated {
            out.write_fmt(fmt!(
                " mpa_rev={} crc={} markers={} extensions={}",
                negotiated.mpa_rev(),
                u8::from(negotiated.crc == Crc::On),
                u8::from(negotiated.markers == Markers::On),
                u8::from(negotiated.extensions == Extensions::SendImmediate)
            ))?;
        }
        let writeable = conn.is_none_or(|conn| conn.connection.socket().is_writeable());
        out.write_fmt(fmt!(
            " sq_posted={} sq_pending={} reads={} ord={} inbound_reads={inbound} ird={ird}",
            sq.posted,
            sq.pending,
            sq.reads,
            sq.max_reads
        ))?;
        match &self.shared.receives {
            Receives::Shared(_) => out.write_str(" rq_posted=srq")?,
            Receives::Own(queue) => match queue.waiting() {
                Some(waiting) => out.write_fmt(fmt!(" rq_posted={waiting}"))?,
                // libsiw keeps the number to itself.
                None => out.write_str(" rq_posted=?")?,
            },
        }
        let rx_waits = match self.rx_waits() {
            RxWaits::Nothing => "-",
            RxWaits::Memory => "memory",
            RxWaits::Receive => "receive",
            RxWaits::Rule => "rule",
        };
        out.write_fmt(fmt!(
            " tx_waits={} rx_waits={rx_waits}",
            self.tx_waits(&sq, inbound, writeable)
        ))?;
        if let Some(conn) = conn {
            let info = conn.connection.socket().info();
            out.write_fmt(fmt!(
                " unacked={} unsent={} peer_window={} window={} congestion_window={} queued={}",
                info.unacked,
                info.unsent,
                info.peer_window,
                info.window,
                info.congestion_window,
                info.queued
            ))?;
            out.write_fmt(fmt!(
                " retransmits={} rtt_us={} acked={} received={}",
                info.retransmits,
                info.rtt_micros,
                info.acked,
                info.received
            ))?;
        }
        match self.shared.device.injector.len() {
            0 => {}
            rules => out.write_fmt(fmt!(" rules={rules}"))?,
        }
        match self.shared.ending() {
            Some(end) => out.write_fmt(fmt!(" end=\"{}: {end}\"", end.kind())),
            None => Ok(()),
        }
    }

    /// Returns what the ends of the stream agreed on, if it has or had one.
    pub(crate) fn negotiated(&self) -> Option<Negotiated> {
        self.shared.inner.lock().negotiated
    }

    /// Traces that the consumer has posted to the send queue.
    ///
    /// Context: any; no lock of the send queue held.
    #[inline]
    pub(crate) fn trace_post_send(&self) {
        if PostSend::is_enabled() {
            PostSend::record(move || PostSend {
                dev: self.shared.device.name(),
                qpn: self.shared.number,
                posted: self.shared.sq.occupancy().posted,
            });
        }
    }

    /// Returns what the transmitter waits for.
    fn tx_waits(&self, sq: &Occupancy, inbound: u32, writeable: bool) -> &'static str {
        let lifecycle = self.shared.lifecycle();
        match lifecycle.phase() {
            QpPhase::Idle | QpPhase::Waiting => return "stream",
            QpPhase::Error | QpPhase::Gone => return "-",
            QpPhase::Rts | QpPhase::Closing | QpPhase::Terminate => {}
        }
        let paging_out = self.shared.paging_out.lock().is_awaited();
        let work = sq.posted != 0 || sq.pending != sq.reads || inbound != 0;
        if paging_out {
            "memory"
        } else if !lifecycle.may_send() {
            "first_fpdu"
        } else if lifecycle.is_peer_closed() && sq.posted != 0 {
            "closed_peer"
        } else if work && !writeable {
            "send_space"
        } else if lifecycle.waits_for_reads() {
            match ReadWait::from_raw(self.shared.read_wait.load(Relaxed)) {
                ReadWait::Fence => "fence",
                ReadWait::Ord => "ord",
                ReadWait::Queue => "sq_full",
            }
        } else if self.tx_timer_is_armed() {
            "doorbell"
        } else if sq.reads != 0 {
            "responses"
        } else {
            "-"
        }
    }
}

/// Returns the name of a phase.
pub(crate) fn phase_name(phase: QpPhase) -> &'static CStr {
    match phase {
        QpPhase::Idle => c"idle",
        QpPhase::Waiting => c"waiting",
        QpPhase::Rts => c"rts",
        QpPhase::Closing => c"closing",
        QpPhase::Terminate => c"terminate",
        QpPhase::Error | QpPhase::Gone => c"error",
    }
}
