// SPDX-License-Identifier: GPL-2.0

//! KUnit suite of a peer's access to kernel memory, with whole FPDUs over the loopback interface.

#[kernel::prelude::kunit_tests(riwarp_rx_kernel_memory)]
mod kernel_memory {
    use crate::{
        bench::completed,
        cm::conn::bench::{
            ConnRig,
            PARAMS,
            UNTAGGED, //
        },
        mem::{
            mr::bench::Target,
            pd::Pd, //
        }, //
    };
    use iwarp::{
        atomic::{
            AtomicOperation,
            AtomicRequest, //
        },
        stag::TaggedOffset, //
    };
    use kernel::prelude::*;
    use kernel_ext::{
        net::bench::eventually,
        rdma::{
            bench::post_recv,
            ops::QpOps,
            types::NotifyOn,
            wr::WcStatus, //
        }, //
    };

    /// Send with Invalidate.
    const SEND_INVALIDATE: u8 = 4;
    /// Send with Solicited Event and Invalidate.
    const SEND_SOLICITED_INVALIDATE: u8 = 6;
    const ATOMIC_REQUEST: u8 = 10;

    /// Adds 1 to the 64 bits at the tagged offset `to`, with an Atomic Request of MSN `number`.
    fn add_one(rig: &ConnRig, target: &Target, to: u64, number: u32) -> Result {
        let request = AtomicRequest {
            identifier: 0x1d,
            stag: target.mr.region.stag(),
            to: TaggedOffset::new(to),
            operation: AtomicOperation::FetchAdd { add: 1, mask: 0 },
        };
        rig.put(ATOMIC_REQUEST, 0, (1, number), request.encode())
    }

    /// The address has to be a multiple of 8, not the tagged offset (EXT-35).
    #[test]
    fn atomic_alignment_is_checked_by_address() -> Result {
        const BASE: u64 = 0x1004;
        let rig = ConnRig::new()?;
        let target = Target::new(&rig.bench.pd, rig.qp.shared.serial, BASE)?;
        target.memory.copy_in(8, &41_u64)?;
        rig.open(&PARAMS)?;
        add_one(&rig, &target, BASE + 8, 1)?;
        let answer = rig.take::<{ 2 + UNTAGGED + 12 + 4 }>()?;
        // Opcode 11, and the original value after the identifier.
        assert_eq!(answer[2..4], [0x41, 0x4b]);
        assert_eq!(answer[24..32], 41_u64.to_be_bytes());
        assert_eq!(target.word(8), Some(42));
        // The tagged offset is a multiple of 8, but the address is not: Remote Operation Error,
        // catastrophic, localized to the stream.
        add_one(&rig, &target, BASE + 12, 2)?;
        assert_eq!(rig.take_terminate(), Ok((0, 2, 7)));
        assert_eq!((target.word(8), target.word(16)), (Some(42), Some(0)));
        Ok(())
    }

    /// A peer invalidates a region of its stream's domain, and none that differs only in its domain
    /// (RDMAP-91, -93, -149, -160).
    #[test]
    fn remote_invalidate_of_other_domain_is_refused() -> Result {
        let rig = ConnRig::new()?;
        let other = Pd::new(rig.bench.rdma.regions.clone(), None)?;
        let (ours, foreign) = (
            Target::new(&rig.bench.pd, rig.qp.shared.serial, 0)?,
            Target::new(&other, rig.qp.shared.serial, 0)?,
        );
        rig.open(&PARAMS)?;
        let receives = post_recv(&[1, 2], |wrs| rig.qp.as_arc_borrow().post_recv(wrs));
        assert_eq!(receives, Ok(()));

        let stag = ours.mr.region.stag().raw();
        rig.put(SEND_INVALIDATE, stag, (0, 1), [])?;
        assert_eq!(completed(&rig.cq), Ok((1, Some(WcStatus::Success), 0)));
        assert!(!ours.is_valid(&rig.bench.pd));

        let stag = foreign.mr.region.stag().raw();
        rig.put(SEND_INVALIDATE, stag, (0, 2), [])?;
        assert_eq!(rig.take_terminate(), Ok((0, 1, 9)));
        assert!(foreign.is_valid(&other));
        Ok(())
    }

    /// Of the two Sends with Invalidate the one with Solicited Event, and only that, raises the
    /// event of a completion queue that is armed for such (RDMAP-84, -92).
    #[test]
    fn solicited_invalidate_raises_completion_event() -> Result {
        let rig = ConnRig::new()?;
        let (plain, solicited) = (
            Target::new(&rig.bench.pd, rig.qp.shared.serial, 0)?,
            Target::new(&rig.bench.pd, rig.qp.shared.serial, 0)?,
        );
        rig.open(&PARAMS)?;
        let receives = post_recv(&[1, 2], |wrs| rig.qp.as_arc_borrow().post_recv(wrs));
        assert_eq!(receives, Ok(()));
        let _ = rig.cq.arm(NotifyOn::Solicited);

        let stag = plain.mr.region.stag().raw();
        rig.put(SEND_INVALIDATE, stag, (0, 1), [])?;
        assert_eq!(completed(&rig.cq), Ok((1, Some(WcStatus::Success), 0)));
        // As the receiver does after its round, which may not have ended yet.
        rig.cq.notify();
        assert!(rig.cq.state().armed == Some(NotifyOn::Solicited));

        let stag = solicited.mr.region.stag().raw();
        rig.put(SEND_SOLICITED_INVALIDATE, stag, (0, 2), [])?;
        assert_eq!(completed(&rig.cq), Ok((2, Some(WcStatus::Success), 0)));
        assert!(!solicited.is_valid(&rig.bench.pd));
        eventually(|| rig.cq.state().armed.is_none())
    }
}
