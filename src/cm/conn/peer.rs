// SPDX-License-Identifier: GPL-2.0

//! KUnit suite of how a stream begins and ends, with a plain socket as the peer.

#[kernel::prelude::kunit_tests(riwarp_conn_peer)]
mod peer {
    use super::super::{
        bench::{
            fill,
            ConnRig,
            FPDU,
            PARAMS, //
        },
        phase::{
            ConnPhase,
            FinalAction,
            Open, //
        },
        *, //
    };
    use crate::{
        device::stats::Stats,
        Riwarp, //
    };
    use iwarp::{
        fault::Fault,
        lifecycle::{
            self,
            Notice, //
        },
        terminate::Terminate, //
    };
    use kernel_ext::{
        compat::ECONNRESET,
        net::{
            bench::{
                eventually,
                with_small_windows, //
            },
            TcpState, //
        },
        rdma::{
            bench::{
                post_recv,
                post_send, //
            },
            ops::QpOps,
            types::QpState, //
        },
        sync::{
            Next,
            Ran, //
        }, //
    };

    #[test]
    fn terminate_reports_first_of_two_faults() -> Result {
        const CONTROL: usize = 4;
        let rig = ConnRig::new()?;
        rig.qp.attach(&rig.conn.connection, &PARAMS)?;
        rig.bench.device.queues.tx.flush();
        // Both faults are found before the transmit task runs.
        let ran = rig.qp.tx.run(|_| {
            for fault in [Fault::NoBuffer, Fault::Crc] {
                let _ = rig
                    .qp
                    .shared
                    .terminate(Notice::Fatal, Terminate::for_fault(fault, None));
            }
            Next::Yield
        });
        assert_eq!(ran, Ran::Yielded);
        rig.qp.transmit();
        let mut octets = [0; FPDU + CONTROL];
        eventually(|| rig.far.peek(&mut octets) == Ok(FPDU + CONTROL))?;
        // After the length and the DDP header.
        let terminate = Terminate::decode(&octets[2 + 18..][..CONTROL]).map_err(|_| EINVAL)?;
        assert_eq!(terminate, Terminate::for_fault(Fault::NoBuffer, None));
        Ok(())
    }

    #[test]
    fn modify_to_reset_is_refused_with_rdma_cm_stream() -> Result {
        let rig = ConnRig::new()?;
        let reset = || rig.modify(QpState::Reset);
        rig.qp.attach(&rig.conn.connection, &PARAMS)?;
        assert_eq!(reset(), Err(EINVAL));
        // The stream still works.
        post_send::<Riwarp, _>(&[1], |wrs| rig.qp.post_send(wrs))?;
        let mut octets = [0; FPDU + 1];
        eventually(|| rig.far.peek(&mut octets) == Ok(FPDU))?;
        for phase in [lifecycle::QpPhase::Closing, lifecycle::QpPhase::Terminate] {
            rig.qp.shared.enter(phase);
            assert_eq!((reset(), rig.qp.shared.phase()), (Err(EINVAL), phase));
        }
        rig.qp.shared.enter(lifecycle::QpPhase::Error);
        assert_eq!(
            (reset(), rig.qp.shared.phase()),
            (Ok(()), lifecycle::QpPhase::Idle)
        );
        Ok(())
    }

    /// DDP-97: also if TCP starts with a smaller window, which may not fit the longest FPDU.
    #[test]
    fn receive_window_holds_several_longest_fpdus() -> Result {
        let rig = with_small_windows(ConnRig::new)?;
        let window = || rig.far.info().peer_window;
        let before = window();
        rig.qp.attach(&rig.conn.connection, &PARAMS)?;
        // The next segment advertises it.
        post_send::<Riwarp, _>(&[1], |wrs| rig.qp.post_send(wrs))?;
        eventually(|| window() >= 4 << 16)?;
        assert!(before < 1 << 16);
        Ok(())
    }

    /// An FPDU of a zero-length RDMA Write; its CRC is not checked.
    const WRITE: [u8; 20] = {
        let mut octets = [0; 20];
        (octets[1], octets[2], octets[3]) = (14, 0xc1, 0x40);
        octets
    };

    /// Makes a stream with more FPDUs pending than the receiver takes in one round.
    fn with_more_than_a_round() -> Result<ConnRig> {
        let rig = ConnRig::new()?;
        rig.qp.attach(&rig.conn.connection, &PARAMS)?;
        let conn = rig.conn.clone();
        let mut left = FPDUS * WRITE.len();
        let mut octets = KVVec::with_capacity(left, GFP_KERNEL)?;
        while octets.len() < left {
            octets.extend_from_slice(&WRITE, GFP_KERNEL)?;
        }
        eventually(|| {
            left -= rig.far.send(&octets[octets.len() - left..]).unwrap_or(0);
            left == 0 && conn.socket.received() == octets.len() as u64
        })?;
        Ok(rig)
    }

    const FPDUS: usize = 4200;

    /// Returns a counter of the device.
    fn count(rig: &ConnRig, name: &CStr) -> Option<u64> {
        let mut values = [0; 64];
        rig.bench.device.stats.read(&mut values);
        let at = Stats::NAMES.iter().position(|known| *known == name)?;
        values.get(at).copied()
    }

    #[test]
    fn receiver_continues_after_budget_is_used() -> Result {
        let rig = with_more_than_a_round()?;
        eventually(|| rig.conn.enter_stream().is_ok())?;
        assert_eq!(count(&rig, c"rx_budget_ends"), Some(1));
        eventually(|| count(&rig, c"rx_fpdus") == Some(FPDUS as u64))?;
        Ok(())
    }

    #[test]
    fn fpdus_beyond_budget_are_received_after_eof() -> Result {
        let rig = with_more_than_a_round()?;
        rig.far.shutdown_write();
        let conn = &rig.conn;
        eventually(|| conn.socket.state() == TcpState::CloseWait)?;
        conn.set_route(Route::Qp);
        conn.actor.lock().phase = ConnPhase::Open(Open::reported());
        conn.step();
        // The stream ends in an orderly way, not by a reset.
        assert_eq!(rig.end()?, Ok(0));
        Ok(())
    }

    /// Closes the peer's half after a segment of a Send, which may be the last one; returns the
    /// FPDUs received, how the peer sees the stream end, and the streams aborted.
    fn end_behind_a_send(control: u8) -> Result<(Option<u64>, Result<usize>, Option<u64>)> {
        let rig = ConnRig::new()?;
        post_recv(&[1], |wrs| Qp::post_recv(rig.qp.as_arc_borrow(), wrs))?;
        rig.open(&PARAMS)?;
        rig.conn.actor.lock().phase = ConnPhase::Open(Open::reported());
        let mut fpdu = [0; FPDU];
        (fpdu[1], fpdu[2], fpdu[3], fpdu[15]) = (18, control, 0x43, 1);
        rig.far.send(&fpdu)?;
        rig.far.shutdown_write();
        let end = rig.end()?;
        Ok((count(&rig, c"rx_fpdus"), end, count(&rig, c"aborts")))
    }

    /// MPA-30: also where an FPDU is complete but its message is not.
    #[test]
    fn fin_inside_message_is_not_graceful() -> Result {
        assert_eq!(end_behind_a_send(0x41)?, (Some(1), Ok(0), Some(0)));
        assert_eq!(
            end_behind_a_send(0x01)?,
            (Some(1), Err(ECONNRESET), Some(1))
        );
        Ok(())
    }

    /// The peer cannot send the FIN that is awaited while octets that TCP has no space for precede
    /// it.
    #[test]
    fn lingering_connection_discards_peer_octets() -> Result {
        let rig = ConnRig::new()?;
        let sent = fill(&rig.far) as u64;
        assert!(rig.far.acked() < sent);
        {
            let conn = &rig.conn;
            let mut actor = conn.actor.lock();
            let next = conn.finish(&mut actor, FinalAction::Linger);
            conn.follow(&mut actor, next);
        }
        eventually(|| rig.far.acked() >= sent)
    }
}
