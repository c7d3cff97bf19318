// SPDX-License-Identifier: GPL-2.0

//! Rule 7 of the strict mode (`stream::strict`): what a request without a fence sends or changes,
//! no Read or atomic operation before it may still have to read or to bring.
//!
//! Such a request begins although the answers to those before it are outstanding (RDMAP-115,
//! EXT-54). So it may send what their memory held before (RDMAP-107), and what it writes may be in
//! the answers. Adapters of InfiniBand do the same. Atomic operations among themselves are carried
//! out in order on both (EXT-58).
//!
//! One is outstanding until its completion is in its queue: before that nobody can know that it is
//! done.
//!
//! Context: the running transmit task.

use iwarp::{
    atomic::TARGET_LEN,
    stag::Stag, //
};
use kernel::prelude::*;

use crate::{
    abi::wr::{
        SendOp,
        SendWr, //
    },
    mem::payload::Sge,
    queue::sq::Slot,
    stream::{
        owner::QpShared,
        strict::Finding, //
    }, //
};

/// KeyedOctets that a key names.
#[derive(Clone, Copy)]
struct KeyedOctets {
    key: u32,
    first: u64,
    len: u64,
}

impl KeyedOctets {
    fn of(sge: &Sge) -> Self {
        Self {
            key: sge.lkey,
            first: sge.addr,
            len: sge.len.into(),
        }
    }

    /// Returns those of the peer that begin at `to`.
    fn of_peer(stag: Stag, to: u64, len: u64) -> Self {
        Self {
            key: stag.raw(),
            first: to,
            len,
        }
    }

    /// Returns whether some octet is one of both. What two keys name is not compared.
    fn overlap(&self, other: &Self) -> bool {
        let end = |octets: &Self| octets.first.saturating_add(octets.len);
        self.key == other.key
            && self.len != 0
            && other.len != 0
            && self.first < end(other)
            && other.first < end(self)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ReadKind {
    Read,
    Atomic,
}

/// The memory of a Read or atomic operation that has begun.
struct OutstandingMemory {
    kind: ReadKind,
    /// The local memory, if it brings any octets.
    sink: Option<KeyedOctets>,
    /// The peer's memory.
    source: KeyedOctets,
}

impl OutstandingMemory {
    /// Returns that of the request, if it is one.
    fn of(wr: &SendWr) -> Option<Self> {
        let (kind, source, len) = match wr.op {
            SendOp::Read { stag, to, .. } => {
                let len = wr.payload.len();
                (ReadKind::Read, KeyedOctets::of_peer(stag, to, len), len)
            }
            SendOp::Atomic { stag, to, .. } => {
                let len = u64::from(TARGET_LEN);
                (ReadKind::Atomic, KeyedOctets::of_peer(stag, to, len), len)
            }
            SendOp::Send(_)
            | SendOp::Write { .. }
            | SendOp::Immediate(_)
            | SendOp::Flush(_)
            | SendOp::AtomicWrite { .. }
            | SendOp::RegMr { .. }
            | SendOp::Bind(_)
            | SendOp::LocalInv { .. } => return None,
        };
        let sink = wr.payload.sges().next().map(|sge| KeyedOctets {
            len,
            ..KeyedOctets::of(&sge)
        });
        Some(Self { kind, sink, source })
    }

    /// Returns what is wrong if the request begins, which has no fence.
    fn conflict(&self, wr: &SendWr) -> Option<&'static str> {
        let sends = matches!(
            wr.op,
            SendOp::Send(_) | SendOp::Write { .. } | SendOp::AtomicWrite { .. }
        );
        let brings = |sge: Sge| {
            let sink = self.sink.as_ref();
            sink.is_some_and(|sink| sink.overlap(&KeyedOctets::of(&sge)))
        };
        if sends && wr.payload.sges().any(brings) {
            return Some("sends octets that are still to come by");
        }
        match wr.op {
            SendOp::Write { stag, to, .. } => {
                let target = KeyedOctets::of_peer(stag, to, wr.payload.len());
                target
                    .overlap(&self.source)
                    .then_some("writes octets still to be read by")
            }
            SendOp::Atomic { stag, to, .. } if self.kind == ReadKind::Read => {
                let target = KeyedOctets::of_peer(stag, to, TARGET_LEN.into());
                target
                    .overlap(&self.source)
                    .then_some("changes octets still to be read by")
            }
            SendOp::Send(_)
            | SendOp::Immediate(_)
            | SendOp::Read { .. }
            | SendOp::Atomic { .. }
            | SendOp::Flush(_)
            | SendOp::AtomicWrite { .. }
            | SendOp::RegMr { .. }
            | SendOp::Bind(_)
            | SendOp::LocalInv { .. } => None,
        }
    }
}

/// The Reads and atomic operations of a stream that are outstanding, the oldest first, with their
/// cookies. Those that began before the device was strict are not among them.
#[derive(Default)]
pub(super) struct OutstandingReads(KVec<(Slot, u64, OutstandingMemory)>);

impl OutstandingReads {
    /// Checks the request at `slot`, which begins now. The device is strict.
    #[cold]
    pub(super) fn check(&mut self, qp: &QpShared, slot: Slot, wr: &SendWr) {
        if wr.fence {
            // It has waited for all of them. Their completions may be late.
            self.0.clear();
        }
        self.0.retain(|(slot, ..)| qp.sq.is_pending(*slot));
        let mut earlier = self.0.iter();
        let found = earlier.find_map(|(_, id, read)| Some((read.conflict(wr)?, id)));
        if let Some((what, other)) = found {
            let id = wr.id;
            qp.report_finding(
                Finding::Unfenced,
                Some(id),
                fmt!("request {id:#x} has no fence and {what} request {other:#x}"),
            );
        }
        if let Some(read) = OutstandingMemory::of(wr) {
            // Without memory it is not noted.
            let _ = self.0.push((slot, wr.id, read), GFP_ATOMIC);
        }
    }
}

#[kernel::prelude::kunit_tests(riwarp_strict_tx)]
mod tests {
    use super::*;
    use iwarp::{
        atomic::AtomicOperation,
        rdmap::SendExtra, //
    };
    use kernel_ext::rdma::wr::WcOpcode;

    fn octets(key: u32, first: u64, len: u64) -> KeyedOctets {
        KeyedOctets { key, first, len }
    }

    fn request(op: SendOp, (addr, len): (u64, u32)) -> SendWr {
        let mut wr = SendWr {
            op,
            ..SendWr::default()
        };
        assert!(wr.payload.push(Sge { addr, len, lkey: 1 }));
        wr
    }

    fn send() -> SendOp {
        SendOp::Send(SendExtra::None)
    }

    fn write(to: u64) -> SendOp {
        SendOp::Write {
            stag: Stag::new(2),
            to,
            immediate: None,
        }
    }

    fn atomic(to: u64) -> SendOp {
        SendOp::Atomic {
            stag: Stag::new(2),
            to,
            operation: AtomicOperation::FetchAdd { add: 1, mask: 0 },
            opcode: WcOpcode::FetchAdd,
        }
    }

    fn read(to: u64) -> SendOp {
        SendOp::Read {
            stag: Stag::new(2),
            to,
            invalidate_local: false,
        }
    }

    /// Returns whether the later request conflicts with the earlier one.
    fn conflict(earlier: &SendWr, later: &SendWr) -> bool {
        OutstandingMemory::of(earlier).is_some_and(|earlier| earlier.conflict(later).is_some())
    }

    #[test]
    fn strict_ranges_overlap_if_they_share_an_octet() {
        let some = octets(1, 100, 10);
        for (first, len, expected) in [
            (90, 10, false),
            (90, 11, true),
            (100, 10, true),
            (105, 1, true),
            (109, 100, true),
            (110, 1, false),
            (50, 100, true),
            (105, 0, false),
        ] {
            assert_eq!(some.overlap(&octets(1, first, len)), expected);
            assert_eq!(octets(1, first, len).overlap(&some), expected);
            assert!(!some.overlap(&octets(2, first, len)));
        }
        // At the end of the addresses.
        let last = octets(1, u64::MAX - 1, 9);
        assert!(last.overlap(&octets(1, 0, u64::MAX)));
        assert!(!last.overlap(&octets(1, 0, 9)));
    }

    #[test]
    fn strict_mode_finds_send_from_pending_read_sink() {
        let first = request(read(1000), (64, 64));
        assert!(conflict(&first, &request(send(), (127, 1))));
        assert!(conflict(&first, &request(write(0), (0, 65))));
        assert!(!conflict(&first, &request(send(), (128, 64))));
        // Its memory holds other octets later, which the second Read may also bring first.
        assert!(!conflict(&first, &request(read(0), (64, 64))));
        // An atomic operation brings eight octets, however long its list is.
        let first = request(atomic(1000), (64, 64));
        assert!(conflict(&first, &request(send(), (71, 1))));
        assert!(!conflict(&first, &request(send(), (72, 8))));
    }

    #[test]
    fn strict_mode_finds_write_to_pending_read_source() {
        let first = request(read(1000), (0, 64));
        assert!(conflict(&first, &request(write(1063), (64, 1))));
        assert!(conflict(&first, &request(atomic(1056), (64, 8))));
        assert!(!conflict(&first, &request(write(1064), (64, 64))));
        assert!(!conflict(&first, &request(atomic(1064), (64, 8))));
        assert!(!conflict(&first, &request(read(1000), (64, 64))));
        let first = request(atomic(1000), (0, 8));
        assert!(conflict(&first, &request(write(1007), (64, 1))));
        // One atomic operation is carried out behind the other.
        assert!(!conflict(&first, &request(atomic(1000), (64, 8))));
        assert!(!conflict(&first, &request(read(1000), (64, 8))));
    }

    #[test]
    fn strict_mode_ignores_conflicts_of_sends_and_writes() {
        assert!(!conflict(
            &request(write(1000), (0, 64)),
            &request(write(1000), (0, 64))
        ));
        assert!(!conflict(
            &request(send(), (0, 64)),
            &request(send(), (0, 64))
        ));
    }
}
