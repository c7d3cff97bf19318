// SPDX-License-Identifier: GPL-2.0

//! What `rdma -dd resource show` shows of a queue pair: where it is in its life and how full its queues are.
//!
//! Context: process.

use kernel::{
    prelude::*,
    sync::atomic::Relaxed, //
};
use kernel_ext::rdma::restrack::Details;

use super::{
    Phase,
    Qp,
    Receives, //
};

impl Qp {
    /// Says how the queue pair is.
    pub(crate) fn describe(&self, details: &mut Details<'_>) -> Result {
        let phase = match self.phase() {
            Phase::Idle => c"idle",
            Phase::Waiting => c"waiting",
            Phase::Rts => c"rts",
            Phase::Closing => c"closing",
            Phase::Terminate => c"terminate",
            Phase::Error | Phase::Gone => c"error",
        };
        details.word(c"phase", phase)?;
        let sq = self.sq.fill();
        details.number(c"sq_posted", sq.posted)?;
        details.number(c"sq_pending", sq.pending)?;
        if let Receives::Own(queue) = &self.receives {
            if let Some(waiting) = queue.waiting() {
                details.number(c"rq_posted", waiting)?;
            }
        }
        details.number(c"reads", sq.reads)?;
        details.number(c"ord", sq.max_reads)?;
        let (served, ird) = self.inbound_reads.fill();
        details.number(c"inbound_reads", served)?;
        details.number(c"ird", ird)?;
        details.number(c"peer_terminate", self.peer_terminate.load(Relaxed))
    }
}
