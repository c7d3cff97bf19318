// SPDX-License-Identifier: GPL-2.0

//! KUnit suite of what passes between the callbacks of a connection and its queue pair.

#[kernel::prelude::kunit_tests(riwarp_conn)]
mod conn {
    use super::super::{
        actor::Phase,
        *, //
    };
    use crate::{
        bench::Bench,
        Riwarp, //
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
        rdma::bench::post_send, //
    };

    const PARAMS: StreamParams = StreamParams {
        crc: Crc::On,
        markers: Markers::Off,
        ird: 1,
        ord: 1,
        send_rtr: None,
        expect_rtr: RtrKinds::NONE,
        wait_first_fpdu: false,
    };

    /// Octets of an FPDU without payload, of an untagged message.
    const FPDU: usize = 2 + 18 + 4;

    /// Sends until TCP has taken no more for a quarter of a second; how many octets it took.
    fn fill(socket: &Socket) -> usize {
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

    /// Takes what comes; how many octets that were.
    fn take(socket: &Socket) -> usize {
        let mut octets = [0; 512];
        core::iter::from_fn(|| socket.recv(&mut octets).ok()).sum()
    }

    /// A queue pair, and its connection, whose start-up is done. Ended when it is dropped.
    struct Rig {
        conn: Arc<Conn>,
        qp: Arc<Qp>,
        far: Socket,
        bench: Bench,
    }

    impl Rig {
        fn new() -> Result<Self> {
            let bench = Bench::new()?;
            let qp = bench.qp(4, &bench.cq(4)?)?;
            let (near, far) = pair(Family::V4)?;
            let conn = Conn::new(bench.device.clone(), near, Actor::new(Phase::Released))?;
            qp.bind(&conn)?;
            conn.qp.populate(Gate::new(qp.clone()));
            Ok(Self {
                conn,
                qp,
                far,
                bench,
            })
        }
    }

    impl Drop for Rig {
        fn drop(&mut self) {
            self.conn.abandon(&mut self.conn.actor.lock());
            Qp::destroy(self.qp.clone());
        }
    }

    /// Whether room for the first FPDU came only between the two owners, and it went out all the same. If not, it
    /// went out before: TCP may give a buffer more room when a late acknowledgment comes.
    fn room_between_two_owners() -> Result<bool> {
        let rig = Rig::new()?;
        let full = fill(&rig.conn.socket);
        rig.qp.attach(&rig.conn, &PARAMS)?;
        post_send::<Riwarp, _>(&[1], |wrs| rig.qp.post_send(wrs))?;
        rig.bench.device.queues.tx.flush();
        // Now there is room, before the queue pair can hear of it.
        let mut taken = 0;
        eventually(|| {
            taken += take(&rig.far);
            taken >= full
        })?;
        fsleep(Delta::from_millis(100));
        taken += take(&rig.far);
        rig.conn.enter_stream();
        if taken > full {
            return Ok(false);
        }
        let mut octets = [0; FPDU + 1];
        eventually(|| rig.far.peek(&mut octets) == Ok(FPDU))?;
        Ok(true)
    }

    #[test]
    fn room_that_comes_between_two_owners_is_not_lost() -> Result {
        for _ in 0..10 {
            if room_between_two_owners()? {
                return Ok(());
            }
        }
        Err(EAGAIN)
    }
}
