// SPDX-License-Identifier: GPL-2.0

//! What the connection manager does with a queue pair: bind a connection, attach the stream, report
//! its end.
//!
//! Context: process, unless a function says otherwise.

use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Full,
            Relaxed, //
        },
        Arc, //
    }, //
};
use kernel_ext::rdma::{
    types::Access,
    wr::WcStatus, //
};

use crate::{
    conn::{
        Conn,
        Ended,
        StreamParams, //
    }, //
};

use super::{
    Phase,
    Qp, //
};

impl Qp {
    /// A connection starts up for this queue pair.
    ///
    /// # Errors
    ///
    /// `EINVAL` in a state that cannot connect, `EISCONN` with a connection already.
    pub(crate) fn bind(&self, conn: &Arc<Conn>) -> Result {
        let mut inner = self.inner.lock();
        if self.phase() != Phase::Idle {
            return Err(EINVAL);
        }
        if inner.conn.is_some() {
            return Err(EISCONN);
        }
        inner.conn = Some(conn.clone());
        Ok(())
    }

    /// The start-up failed: forgets the connection, if it is still this one.
    pub(crate) fn unbind(&self, conn: &Conn) {
        let _drop_outside_lock = {
            let mut inner = self.inner.lock();
            match &inner.conn {
                Some(mine) if core::ptr::eq(&**mine, conn) => inner.conn.take(),
                _ => None,
            }
        };
    }

    /// The start-up is done: the stream carries RDMA messages from now on.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the queue pair was moved meanwhile, `ENOMEM`.
    pub(crate) fn attach(self: &Arc<Self>, conn: &Arc<Conn>, params: &StreamParams) -> Result {
        {
            let mut attrs = self.attrs.lock();
            if self.phase() != Phase::Idle {
                return Err(EINVAL);
            }
            self.sq.start(params.ord)?;
            self.inbound_reads.start(params.ird)?;
            conn.socket().open_window();
            let tx = Self::new_tx(conn, params)?;
            self.start_rx(conn, params)?;
            let _drop_outside_lock = self.inner.lock().tx.replace(tx);
            self.may_send.store(!params.wait_first_fpdu, Relaxed);
            // The rights of a stream are those of the regions that its peer names.
            attrs.stored.access |=
                Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
            attrs.stored.max_rd_atomic = u8::try_from(params.ord).unwrap_or(u8::MAX);
            attrs.stored.max_dest_rd_atomic = u8::try_from(params.ird).unwrap_or(u8::MAX);
            // A destroy in between has the last word.
            if self
                .phase
                .cmpxchg(Phase::Idle as u32, Phase::Rts as u32, Full)
                .is_err()
            {
                return Err(EINVAL);
            }
        }
        self.transmit();
        Ok(())
    }

    /// TCP has room again.
    ///
    /// Context: softirq.
    pub(crate) fn write_space(self: &Arc<Self>) {
        self.kick();
    }

    /// The stream has ended.
    pub(crate) fn stream_ended(self: &Arc<Self>, how: Ended) {
        if how == Ended::Lost && self.phase() == Phase::Rts {
            self.set_first_status(WcStatus::Flushed);
        }
        self.enter(Phase::Error);
        let _drop_outside_lock = self.inner.lock().conn.take();
        self.transmit();
    }

    /// Whether octets are still owed to a peer that has ended its half of the stream.
    pub(crate) fn owes(&self) -> bool {
        matches!(self.phase(), Phase::Rts | Phase::Closing | Phase::Terminate)
            && (self.inbound_reads.owes() || self.sq.owes())
    }
}
