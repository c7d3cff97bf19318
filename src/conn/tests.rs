// SPDX-License-Identifier: GPL-2.0

//! KUnit suite of what passes between the callbacks of a connection and its queue pair; connections for
//! suites of others.

use super::{
    actor::{
        Actor,
        Phase, //
    },
    Conn, //
};
use crate::device::Device;
use kernel::{
    prelude::*,
    sync::Arc, //
};
use kernel_ext::net::Socket;

impl Conn {
    /// Makes a connection whose start-up is done and which belongs to nobody: what arrives stays in TCP.
    pub(crate) fn of_nobody(device: &Arc<Device>, socket: Socket) -> Result<Arc<Self>> {
        Self::new(device.clone(), socket, Actor::new(Phase::Released))
    }

    /// Ends it.
    pub(crate) fn end_of_nobody(self: &Arc<Self>) {
        self.abandon(&mut self.actor.lock());
    }
}

#[kernel::prelude::kunit_tests(riwarp_conn)]
mod conn {
    use super::super::{
        actor::Phase,
        *, //
    };
    use crate::{
        bench::{
            polled,
            Bench, //
        },
        cq::Cq,
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
        rdma::{
            bench::{
                post_send,
                post_send_immediate, //
            },
            wr::{
                SendFlags,
                WcStatus, //
            }, //
        }, //
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
        cq: Arc<Cq>,
        bench: Bench,
    }

    impl Rig {
        fn new() -> Result<Self> {
            let bench = Bench::new()?;
            let cq = bench.cq(4)?;
            let qp = bench.qp(4, &cq)?;
            let (near, far) = pair(Family::V4)?;
            let conn = Conn::new(bench.device.clone(), near, Actor::new(Phase::Released))?;
            qp.bind(&conn)?;
            conn.qp.populate(Gate::new(qp.clone()));
            Ok(Self {
                conn,
                qp,
                far,
                cq,
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

    /// The next message on the wire without its length, pad and CRC.
    fn message<const LEN: usize>(socket: &Socket) -> Result<[u8; LEN]> {
        let mut octets = [0; 64];
        // NO-OVERFLOW: messages of a few octets.
        let fpdu = 2 + LEN + (2 + LEN).wrapping_neg() % 4 + 4;
        let mut len = 0;
        eventually(|| {
            len += socket.recv(&mut octets[len..fpdu]).unwrap_or(0);
            len == fpdu
        })?;
        assert_eq!(octets[..2], [0, LEN as u8]);
        Ok(octets[2..2 + LEN].try_into().map_err(|_| EINVAL)?)
    }

    #[test]
    fn an_empty_send_with_immediate_of_the_kernel_is_immediate_data() -> Result {
        let rig = Rig::new()?;
        rig.qp.attach(&rig.conn, &PARAMS)?;
        let post = |id, imm: &[u8; 4], len, flags| {
            post_send_immediate::<Riwarp, _>(id, *imm, len, flags, |wrs| rig.qp.post_send(wrs))
        };
        post(7, b"abcd", 0, SendFlags::empty())?;
        post(8, b"efgh", 0, SendFlags::SOLICITED)?;
        // RFC 7306 has none with payload, and the peer has agreed on nothing else.
        assert_eq!(post(9, b"ijkl", 1, SendFlags::empty()), Err(EOPNOTSUPP));
        post_send::<Riwarp, _>(&[10], |wrs| rig.qp.post_send(wrs))?;
        for (number, opcode, data) in [(1, 0x48, b"abcd\0\0\0\0"), (2, 0x49, b"efgh\0\0\0\0")] {
            let mut expected = [0; 26];
            expected[..2].copy_from_slice(&[0x41, opcode]);
            expected[13] = number;
            expected[18..].copy_from_slice(data);
            assert_eq!(message(&rig.far)?, expected);
        }
        let send: [u8; 18] = message(&rig.far)?;
        assert_eq!((send[1], send[13]), (0x43, 3));
        for id in [7, 8, 10] {
            let mut done = None;
            eventually(|| {
                done = polled(&rig.cq);
                done.is_some()
            })?;
            assert_eq!(done, Some((id, Some(WcStatus::Success), 0)));
        }
        Ok(())
    }
}
