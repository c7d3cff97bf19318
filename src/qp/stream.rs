// SPDX-License-Identifier: GPL-2.0

//! The connection manager's calls to a queue pair: bind a connection, attach the stream, report its
//! end.
//!
//! Context: process, unless a function says otherwise.

use iwarp::{
    actions::{
        After,
        Set, //
    },
    lifecycle::{
        Event,
        QpPhase,
        QpRequest, //
    },
    rdmap::Extensions, //
};
use kernel::{
    prelude::*,
    sync::{
        atomic::Relaxed,
        Arc, //
    }, //
};
use kernel_ext::{
    compat::EISCONN,
    rdma::types::AccessFlags,
    static_key, //
};

use crate::{
    stream::{
        connection::{
            Bound,
            Ended,
            Loss,
            StreamConnection,
            StreamParams, //
        },
        ending::StreamEnd,
        owner::Negotiated,
        tx::TxStream, //
    }, //
};

use super::{
    actions::Runner,
    receive::RxWaits,
    Attrs,
    Qp, //
};

impl Qp {
    /// Binds a connection that is starting up.
    ///
    /// # Errors
    ///
    /// `EINVAL` in a state that cannot connect, `EISCONN` with a connection already.
    pub(crate) fn bind(&self, conn: Bound) -> Result {
        self.bind_by(QpRequest::Bind, conn)
    }

    /// Does the same while the queue pair waits for its peer.
    ///
    /// # Errors
    ///
    /// As [`Qp::bind`].
    pub(crate) fn bind_search(&self, conn: Bound) -> Result {
        self.bind_by(QpRequest::BindSearch, conn)
    }

    fn bind_by(&self, request: QpRequest, conn: Bound) -> Result {
        let mut inner = self.shared.inner.lock();
        self.shared.allows(request)?;
        if inner.conn.is_some() {
            return Err(EISCONN);
        }
        inner.conn = Some(conn);
        Ok(())
    }

    /// Binds another connection while the queue pair waits for its peer; returns the one before.
    ///
    /// # Errors
    ///
    /// `EINVAL` if it does not wait.
    pub(crate) fn rebind(&self, conn: Bound) -> Result<Option<Bound>> {
        let mut inner = self.shared.inner.lock();
        self.shared.allows(QpRequest::BindSearch)?;
        Ok(inner.conn.replace(conn))
    }

    /// Unbinds the connection and returns the reference to drop.
    pub(crate) fn take_conn(&self) -> Option<Bound> {
        self.shared.inner.lock().conn.take()
    }

    /// Unbinds the connection after a failed start-up and returns the reference to drop, if it is
    /// still this one.
    pub(crate) fn take_bound(&self, conn: &Arc<StreamConnection>) -> Option<Bound> {
        self.shared
            .inner
            .lock()
            .conn
            .take_if(|bound| bound.is(conn))
    }

    /// Returns whether a connection is the bound one.
    pub(crate) fn is_bound(&self, conn: &Arc<StreamConnection>) -> bool {
        self.shared.inner.lock().is_bound(conn)
    }

    /// Returns whether a connection is bound.
    pub(crate) fn has_conn(&self) -> bool {
        self.shared.inner.lock().conn.is_some()
    }

    /// Queues the work item of a connection, which waits for octets that are processed now.
    pub(super) fn processed(&self, conn: &Arc<StreamConnection>) {
        let inner = self.shared.inner.lock();
        if let Some(bound) = inner.conn.as_ref().filter(|bound| bound.is(conn)) {
            bound.enqueue(&self.shared.device.queues.stream);
        }
    }

    /// Attaches the stream after start-up: it carries RDMA messages from now on.
    ///
    /// # Errors
    ///
    /// `EBUSY` while another thread reads or changes the attributes, which may take it long, and
    /// those of [`Qp::attach_with`].
    pub(crate) fn attach(
        self: &Arc<Self>,
        conn: &Arc<StreamConnection>,
        params: &StreamParams,
    ) -> Result {
        let after = {
            let mut attrs = self.attrs.try_lock().ok_or(EBUSY)?;
            self.attach_with(&mut attrs, conn, params)?
        };
        self.carry_out(after, Runner::Step);
        Ok(())
    }

    /// Does the same for a caller that has the attributes and carries out the rest.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the state of the queue pair changed meanwhile, `ENOMEM`.
    pub(crate) fn attach_with(
        &self,
        attrs: &mut Attrs,
        conn: &Arc<StreamConnection>,
        params: &StreamParams,
    ) -> Result<Set<After>> {
        let attach = QpRequest::Attach {
            wait_first_fpdu: params.wait_first_fpdu,
        };
        self.shared.allows(attach)?;
        if !self.is_bound(conn) {
            return Err(EINVAL);
        }
        self.shared.sq.start(params.ord, &self.owner)?;
        self.shared.inbound_reads.start(params.ird, &self.owner)?;
        conn.socket().charge_to(&self.owner)?;
        conn.socket().open_window();
        conn.socket().release_netns();
        let secure = conn.socket().is_secure();
        if let Some(common) = params.features.common {
            conn.set_features(common);
        }
        let device = &self.shared.device;
        let confirmed = device
            .kind
            .confirmed(params.ord, device.settings.confirm_sends());
        self.shared.packed.store(false, Relaxed);
        let draft_swap = device.settings.draft_swap();
        let tx = TxStream::new(conn, params, confirmed, draft_swap, &self.owner)?;
        self.start_rx(conn, params, params.extensions)?;
        self.shared.inner.lock().negotiated = Some(Negotiated {
            revision: params.revision,
            crc: params.crc,
            markers: params.markers,
            extensions: params.extensions,
        });
        let _drop_outside_lock = self.new_tx.lock().replace(tx);
        let send_immediate = params.extensions == Extensions::SendImmediate;
        self.send_immediate.store(send_immediate, Relaxed);
        self.in_items.store(secure, Relaxed);
        // With a path the attributes are the consumer's.
        if !self.shared.lifecycle().is_by_path() {
            // Grants all rights; the regions that the peer names restrict them.
            attrs.stored.access |=
                AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC;
            attrs.stored.max_rd_atomic = u8::try_from(params.ord).unwrap_or(u8::MAX);
            attrs.stored.max_dest_rd_atomic = u8::try_from(params.ird).unwrap_or(u8::MAX);
        }
        attrs.peer_rnr_retry = params.rnr_retry;
        self.set_receive_wait(attrs);
        // Fails if the queue pair was destroyed in between, or bound to another connection.
        self.shared.request_if(attach, |inner| {
            inner.is_bound(conn).then_some(None).ok_or(EINVAL)
        })
    }

    /// Runs the transmit task for a step of a connection, or lets its work item run: for a process
    /// it may wait for the process's memory cgroup, or for a thread of the process that owns the
    /// socket, and steps must not.
    pub(super) fn transmit_in_step(self: &Arc<Self>) {
        if self.shared.user || self.is_in_items() {
            self.enqueue_tx();
        } else {
            self.transmit();
        }
    }

    /// Handles free space in TCP's send buffer.
    ///
    /// Context: any.
    pub(crate) fn write_space(self: &Arc<Self>) {
        self.kick();
    }

    /// Handles the end of the stream.
    pub(crate) fn stream_ended(self: &Arc<Self>, how: Ended) {
        if static_key::is_on() {
            self.place_before_end();
        }
        if let Ended::Lost(loss) = how {
            if loss != Loss::Here {
                self.shared.note_end(StreamEnd::Lost(loss), None);
            }
        }
        let after = self.shared.apply(Event::StreamEnded {
            lost: matches!(how, Ended::Lost(_)),
        });
        let _drop_outside_lock = self.shared.inner.lock().conn.take();
        self.carry_out(after, Runner::Step);
    }

    /// Handles the peer closing its half of an out-of-band connection. Other RDMA networks have no
    /// such event: programs exit silently once they have their result, and their peers take flushed
    /// receives for a failure. So nothing happens until the next Send, which fails after its retry
    /// timeout.
    pub(crate) fn note_peer_closed(self: &Arc<Self>) {
        let after = self.shared.apply(Event::PeerClosed);
        self.carry_out(after, Runner::Any);
    }

    /// Allows sending before the peer's first FPDU.
    pub(crate) fn allow_sending(self: &Arc<Self>) {
        let after = self.shared.apply(Event::AllowSending);
        self.carry_out(after, Runner::Step);
    }

    /// Returns whether the queue pair is in RTS and no dequeued request is incomplete.
    pub(crate) fn is_idle_in_rts(&self) -> bool {
        self.shared.phase() == QpPhase::Rts && self.shared.sq.is_idle()
    }

    /// Returns whether Reads or atomic operations are outstanding at the peer.
    pub(crate) fn awaits_answers(&self) -> bool {
        !self.shared.sq.no_reads()
    }

    /// Returns whether the stream waits for local memory to be fetched.
    pub(crate) fn waits_for_memory(&self) -> bool {
        self.shared.paging_out.lock().is_awaited() || self.rx_waits() == RxWaits::Memory
    }

    /// Returns whether the stream still has data to send to a peer that has closed its half: what
    /// was posted, answers, or a Terminate.
    pub(crate) fn has_unsent(&self) -> bool {
        let lifecycle = self.shared.lifecycle();
        match lifecycle.phase() {
            QpPhase::Rts | QpPhase::Closing => {
                let takes = lifecycle.may_send() && !lifecycle.is_peer_closed();
                self.shared.inbound_reads.has_unanswered()
                    || self.shared.sq.has_unsent(takes)
                    // Last: see the field.
                    || self.shared.packed.load(Relaxed)
            }
            QpPhase::Terminate => true,
            QpPhase::Idle | QpPhase::Waiting | QpPhase::Error | QpPhase::Gone => false,
        }
    }
}
