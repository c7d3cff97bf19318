// SPDX-License-Identifier: GPL-2.0

//! What the connection manager does with a queue pair: bind a connection, attach the stream, report
//! its end.
//!
//! Context: process, unless a function says otherwise.

use iwarp::{
    lifecycle::{
        Event,
        QpPhase, //
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
use kernel_ext::rdma::types::AccessFlags;

use crate::{
    cm::conn::{
        Conn,
        Ended,
        StreamParams, //
    },
    odp::tx::PagingOut,
    stream::tx::TxStream, //
};

use super::Qp;

impl Qp {
    /// A connection starts up for this queue pair.
    ///
    /// # Errors
    ///
    /// `EINVAL` in a state that cannot connect, `EISCONN` with a connection already.
    pub(crate) fn bind(&self, conn: &Arc<Conn>) -> Result {
        let mut inner = self.inner.lock();
        self.would(Event::Bind)?;
        if inner.conn.is_some() {
            return Err(EISCONN);
        }
        inner.conn = Some(conn.clone());
        Ok(())
    }

    /// The start-up failed: forgets the connection, if it is still this one.
    pub(crate) fn unbind(self: &Arc<Self>, conn: &Conn) {
        let dropped = {
            let mut inner = self.inner.lock();
            match &inner.conn {
                Some(mine) if core::ptr::eq(&**mine, conn) => inner.conn.take(),
                _ => None,
            }
        };
        if dropped.is_some() {
            self.lose_oob();
        }
    }

    /// The start-up is done: the stream carries RDMA messages from now on.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the queue pair was moved meanwhile, `ENOMEM`.
    pub(crate) fn attach(self: &Arc<Self>, conn: &Arc<Conn>, params: &StreamParams) -> Result {
        {
            let mut attrs = self.attrs.lock();
            let attach = Event::Attach {
                wait_first_fpdu: params.wait_first_fpdu,
            };
            self.would(attach)?;
            if !self.is_bound(conn) {
                return Err(EINVAL);
            }
            self.sq.start(params.ord)?;
            self.inbound_reads.start(params.ird)?;
            conn.socket().charge_to(&self.owner)?;
            conn.socket().open_window();
            let extensions = self.extensions(params);
            let tx = TxStream::new(conn, params, extensions, &self.owner)?;
            self.start_rx(conn, params, extensions)?;
            let _drop_outside_lock = self.inner.lock().tx.replace(tx);
            let send_immediate = extensions == Extensions::SendImmediate;
            self.send_immediate.store(send_immediate, Relaxed);
            match self.end_oob() {
                // What the consumer has set stays as it is.
                Some(oob) => {
                    let unknown = oob.pair.send_psn.is_none();
                    attrs.promised = oob.promised.filter(|_| unknown);
                }
                None => {
                    // The rights of a stream are those of the regions that its peer names.
                    attrs.stored.access |= AccessFlags::REMOTE_READ
                        | AccessFlags::REMOTE_WRITE
                        | AccessFlags::REMOTE_ATOMIC;
                    attrs.stored.max_rd_atomic = u8::try_from(params.ord).unwrap_or(u8::MAX);
                    attrs.stored.max_dest_rd_atomic = u8::try_from(params.ird).unwrap_or(u8::MAX);
                }
            }
            // A destroy in between has the last word.
            self.try_on(attach)?;
        }
        if self.user {
            // A process's memory cgroup may be full. The steps of other connections do not wait for
            // that.
            self.enqueue_tx();
        } else {
            self.transmit();
        }
        Ok(())
    }

    /// TCP has room again.
    ///
    /// Context: any.
    pub(crate) fn write_space(self: &Arc<Self>) {
        self.kick();
    }

    /// The stream has ended.
    pub(crate) fn stream_ended(self: &Arc<Self>, how: Ended) {
        self.on(Event::StreamEnded {
            lost: how == Ended::Lost,
        });
        let _drop_outside_lock = self.inner.lock().conn.take();
        self.transmit();
    }

    /// The peer of a stream without connection manager has ended its half. On other RDMA networks
    /// nobody would have noticed: programs go without a word when they have got what they wanted,
    /// and their peers take flushed receives for a failure. So nothing happens until the next Send,
    /// which fails after the time that it would wait for an answer there.
    pub(crate) fn note_peer_closed(self: &Arc<Self>) {
        self.on(Event::PeerClosed);
        self.kick();
    }

    /// Whether nothing that was taken waits for the peer.
    pub(crate) fn is_content(&self) -> bool {
        self.phase() == QpPhase::Rts && self.sq.is_idle()
    }

    /// Whether the peer has Reads or atomic operations to answer.
    pub(crate) fn awaits_answers(&self) -> bool {
        !self.sq.no_reads()
    }

    /// Whether the stream waits for memory of this end.
    pub(crate) fn waits_for_memory(&self) -> bool {
        let paging_out = matches!(
            *self.paging_out.lock(),
            PagingOut::Wanted(_) | PagingOut::Busy
        );
        paging_out || self.is_paging_in()
    }

    /// Whether octets are still owed to a peer that has ended its half of the stream.
    pub(crate) fn owes(&self) -> bool {
        matches!(
            self.phase(),
            QpPhase::Rts | QpPhase::Closing | QpPhase::Terminate
        ) && (self.inbound_reads.owes() || self.sq.owes())
    }
}
