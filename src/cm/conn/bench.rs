// SPDX-License-Identifier: GPL-2.0

//! A connection past start-up, for the KUnit suites of other modules; no consumer receives its
//! events.
//!
//! Context: process.

use iwarp::{
    mpa::{
        negotiate::FeatureRules,
        start::{
            Revision,
            RtrKinds, //
        },
        Crc,
        Markers, //
    },
    rdmap::Extensions, //
};
use kernel::time::{
    delay::fsleep,
    Delta, //
};
use kernel_ext::{
    net::{
        bench::{
            eventually,
            pair, //
        },
        Family, //
    },
    rdma::types::{
        QpAttr,
        QpAttrMask,
        QpState, //
    }, //
};

use crate::{
    bench::Bench,
    device::queues::Queues,
    queue::cq::Cq,
    stream::connection::StreamParams, //
};

use super::{
    phase::{
        ConnPhase,
        NextStep,
        Open, //
    },
    *, //
};

impl Conn {
    /// Makes a connection past start-up without a queue pair: what arrives stays in TCP.
    pub(crate) fn of_nobody(cm: &Arc<Cm>, socket: Socket) -> Result<Arc<Self>> {
        Self::new(cm.clone(), socket, Actor::new(ConnPhase::Released))
    }

    /// Makes a connection that its next step resets.
    pub(in crate::cm) fn about_to_go(cm: &Arc<Cm>, socket: Socket) -> Result<Arc<Self>> {
        let conn = Self::of_nobody(cm, socket)?;
        conn.actor.lock().phase = ConnPhase::Open(Open::reported());
        conn.connection.ask(Later::Abort);
        Ok(conn)
    }

    /// Ends the connection.
    pub(crate) fn end_of_nobody(self: &Arc<Self>) {
        self.with_actor(|actor| self.abandon(actor));
    }

    /// Carries out what a step has returned, and what follows.
    pub(in crate::cm) fn follow(self: &Arc<Self>, actor: &mut Actor, next: NextStep) {
        let (NextStep::Again(phase) | NextStep::Wait(phase)) = next;
        actor.phase = phase;
        self.run_steps(actor);
    }
}

/// Calls `f` while the queue of connections that start up runs no item.
pub(in crate::cm) fn without_steps<R>(queues: &Queues, f: impl FnOnce() -> Result<R>) -> Result<R> {
    let gate = Arc::pin_init(new_mutex!((), "riwarp::without_steps"), GFP_KERNEL)?;
    let _closed = gate.lock();
    let item = gate.clone();
    queues.conn.try_spawn(move || drop(item.lock()))?;
    f()
}

/// A connection of a queue pair, ended on drop.
pub(crate) struct Started(pub(crate) Arc<Conn>);

impl Started {
    /// Makes a connection from one end of a TCP connection. The queue pair is not attached yet.
    pub(crate) fn new(cm: &Arc<Cm>, near: Socket, qp: &Arc<Qp>) -> Result<Self> {
        let conn = Conn::of_nobody(cm, near)?;
        let started = Self(conn.clone());
        qp.bind(conn.bound())?;
        conn.qp.populate(BhRevocable::new(qp.clone()));
        Ok(started)
    }

    /// Routes what arrives to the queue pair from now on.
    pub(crate) fn enter_stream(&self) -> Result {
        eventually(|| self.0.enter_stream().is_ok())
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        self.0.end_of_nobody();
    }
}

/// Default stream parameters, without CRCs.
pub(crate) const PARAMS: StreamParams = StreamParams {
    crc: Crc::Off,
    markers: Markers::Off,
    revision: Revision::Two,
    ird: 1,
    ord: 1,
    send_rtr: None,
    expect_rtr: RtrKinds::NONE,
    wait_first_fpdu: false,
    extensions: Extensions::Rfc7306,
    features: FeatureRules::NONE,
    rnr_retry: None,
};

/// Octets of an untagged header.
pub(crate) const UNTAGGED: usize = 18;

/// Octets of an FPDU without payload, of an untagged message.
pub(crate) const FPDU: usize = 2 + UNTAGGED + 4;

/// Sends until TCP has accepted nothing for a quarter of a second; returns the octets sent.
pub(crate) fn fill(socket: &Socket) -> usize {
    let (mut full, mut quiet) = (0, 0);
    while quiet < 25 {
        quiet += 1;
        while let Ok(len) = socket.send(&[0; 512]) {
            (full, quiet) = (full + len, 0);
        }
        fsleep(Delta::from_millis(10));
    }
    full
}

/// A queue pair and its connection, with the test as the peer. Ended on drop.
pub(crate) struct ConnRig {
    started: Option<Started>,
    pub(crate) conn: Arc<Conn>,
    pub(crate) qp: Arc<Qp>,
    pub(crate) cq: Arc<Cq>,
    pub(crate) far: Socket,
    pub(crate) bench: Bench,
}

impl ConnRig {
    pub(crate) fn new() -> Result<Self> {
        let bench = Bench::new()?;
        let cq = bench.cq(8)?;
        let qp = bench.qp(4, &cq)?;
        let (near, far) = pair(Family::V4)?;
        let started = Started::new(&bench.rdma.cm, near, &qp)?;
        Ok(Self {
            conn: started.0.clone(),
            started: Some(started),
            qp,
            cq,
            far,
            bench,
        })
    }

    /// Gives the queue pair its stream.
    pub(crate) fn open(&self, params: &StreamParams) -> Result {
        self.qp.attach(&self.conn.connection, params)?;
        eventually(|| self.conn.enter_stream().is_ok())
    }

    /// Modifies the state of the queue pair.
    pub(crate) fn modify(&self, qp_state: QpState) -> Result {
        let attr = QpAttr {
            qp_state,
            ..QpAttr::default()
        };
        self.bench.modify(&self.qp, &attr, QpAttrMask::STATE)
    }

    /// Waits for what the peer receives next, and returns it: 0 octets at an orderly end, an error
    /// at a reset.
    pub(crate) fn end(&self) -> Result<Result<usize>> {
        let mut end = Err(EAGAIN);
        eventually(|| {
            end = self.far.recv(&mut [0]);
            end != Err(EAGAIN)
        })?;
        Ok(end)
    }

    /// Receives until the stream ends; returns how many octets came, and the end as
    /// [`ConnRig::end`] does.
    pub(crate) fn rest(&self) -> Result<(usize, Result<usize>)> {
        let (mut octets, mut total, mut end) = ([0; 512], 0, Err(EAGAIN));
        eventually(|| loop {
            end = self.far.recv(&mut octets);
            match end {
                Ok(0) => return true,
                Ok(len) => total += len,
                Err(error) => return error != EAGAIN,
            }
        })?;
        Ok((total, end))
    }

    /// Sends an FPDU with one untagged segment that is a whole message; the length of `rest` must
    /// need no pad.
    pub(crate) fn put<const REST: usize>(
        &self,
        opcode: u8,
        invalidate: u32,
        (queue, number): (u32, u32),
        rest: [u8; REST],
    ) -> Result {
        let mut fpdu = KVec::with_capacity(2 + UNTAGGED + REST + 4, GFP_KERNEL)?;
        // CAST: Tests send short messages.
        let len = (UNTAGGED + REST) as u16;
        // The last segment, untagged, version 1 of DDP and RDMAP.
        for octets in [
            &len.to_be_bytes()[..],
            &[0x41, 0x40 | opcode],
            &invalidate.to_be_bytes(),
            &queue.to_be_bytes(),
            &number.to_be_bytes(),
            // The offset.
            &[0; 4],
            &rest,
            // The CRC.
            &[0; 4],
        ] {
            fpdu.extend_from_slice(octets, GFP_KERNEL)?;
        }
        if self.far.send(&fpdu)? == fpdu.len() {
            Ok(())
        } else {
            Err(EAGAIN)
        }
    }

    /// Receives the next `LEN` octets.
    ///
    /// # Errors
    ///
    /// `ETIMEDOUT` if they do not arrive.
    pub(crate) fn take<const LEN: usize>(&self) -> Result<[u8; LEN]> {
        let mut octets = [0; LEN];
        eventually(|| self.far.peek(&mut octets) == Ok(LEN))?;
        self.far.recv(&mut octets)?;
        Ok(octets)
    }

    /// Receives a Terminate and returns its layer, type and code.
    pub(crate) fn take_terminate(&self) -> Result<(u8, u8, u8)> {
        let fpdu = self.take::<{ 2 + UNTAGGED + 4 }>()?;
        let [.., kind, code, _, _] = fpdu;
        // Opcode 7, queue 2, number 1.
        assert_eq!(fpdu[2..4], [0x41, 0x47]);
        assert_eq!(fpdu[8..16], [0, 0, 0, 2, 0, 0, 0, 1]);
        Ok((kind >> 4, kind & 15, code))
    }
}

impl Drop for ConnRig {
    fn drop(&mut self) {
        drop(self.started.take());
        self.bench.destroy(&self.qp);
    }
}
