// SPDX-License-Identifier: GPL-2.0

//! Work requests and completions in the driver's own form.
//!
//! Both user ABIs and the kernel's `ib_send_wr` become a [`SendWr`] or [`RecvWr`] at one place
//! (`abi`); nothing below that place knows where a work request came from. Completions leave as a
//! [`Completion`] and become an ABI's CQE or an `ib_wc` in `cq`.

use iwarp::stag::Stag;
use kernel::sync::Arc;
use kernel_ext::rdma::object::QpId;
use kernel_ext::rdma::types::Access;
use kernel_ext::rdma::wr::{
    WcOpcode,
    WcStatus, //
};

use crate::mr::Region;

/// Most elements of one scatter/gather list. The array size of siw's user ABI.
pub(crate) const MAX_SGE: usize = 6;

/// Octets of payload that a work request can carry in itself.
pub(crate) const MAX_INLINE: usize = 80;

/// One element of a scatter/gather list, as posted: nothing of it has been checked.
#[derive(Clone, Copy, Default)]
pub(crate) struct Sge {
    /// I/O virtual address.
    pub(crate) addr: u64,
    /// Octets.
    pub(crate) len: u32,
    /// Local key, which is an STag.
    pub(crate) lkey: u32,
}

/// A list of at most [`MAX_SGE`] elements.
#[derive(Clone, Copy, Default)]
pub(crate) struct SgeList {
    count: u8,
    sges: [Sge; MAX_SGE],
}

impl SgeList {
    /// Appends an element; false when the list is full.
    pub(crate) fn push(&mut self, sge: Sge) -> bool {
        match self.sges.get_mut(usize::from(self.count)) {
            Some(slot) => {
                *slot = sge;
                self.count += 1;
                true
            }
            None => false,
        }
    }

    /// The elements in posting order.
    pub(crate) fn as_slice(&self) -> &[Sge] {
        self.sges.get(..usize::from(self.count)).unwrap_or(&[])
    }

    /// Sum of the lengths, in octets; it may exceed what a message can carry.
    pub(crate) fn total(&self) -> u64 {
        self.as_slice().iter().map(|sge| u64::from(sge.len)).sum()
    }
}

/// Octets that travel inside the work request.
#[derive(Clone, Copy)]
pub(crate) struct Inline {
    len: u8,
    data: [u8; MAX_INLINE],
}

impl Inline {
    /// Copies `data`; [`None`] if there is more than [`MAX_INLINE`].
    pub(crate) fn new(data: &[u8]) -> Option<Self> {
        let mut inline = Self::empty();
        inline.append(data).then_some(inline)
    }

    /// No octets yet.
    pub(crate) fn empty() -> Self {
        Self {
            len: 0,
            data: [0; MAX_INLINE],
        }
    }

    /// Appends `data`; false, and nothing appended, if it does not fit.
    pub(crate) fn append(&mut self, data: &[u8]) -> bool {
        let start = usize::from(self.len);
        let Some(end) = start.checked_add(data.len()) else {
            return false;
        };
        match self.data.get_mut(start..end) {
            Some(room) => {
                room.copy_from_slice(data);
                // CAST: `end` is at most MAX_INLINE, which fits.
                self.len = end as u8;
                true
            }
            None => false,
        }
    }

    /// The octets.
    pub(crate) fn as_slice(&self) -> &[u8] {
        self.data.get(..usize::from(self.len)).unwrap_or(&[])
    }
}

/// What a send work request carries.
#[derive(Clone, Copy)]
pub(crate) enum Payload {
    /// References to registered memory.
    Sges(SgeList),
    /// The octets themselves.
    Inline(Inline),
}

impl Payload {
    /// Octets of the message, before any limit is checked.
    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::Sges(list) => list.total(),
            Self::Inline(inline) => u64::from(inline.len),
        }
    }
}

/// What a send work request does.
#[derive(Clone)]
pub(crate) enum SendOp {
    /// Send, with the STag that the peer shall invalidate.
    Send { invalidate: Option<Stag> },
    /// RDMA Write to the peer's buffer.
    Write { stag: Stag, to: u64 },
    /// RDMA Read from the peer's buffer; the local STag may be invalidated when it is done.
    Read {
        stag: Stag,
        to: u64,
        invalidate_local: bool,
    },
    /// Fast registration; kernel consumers only.
    RegMr {
        /// The region, its pages mapped before the post.
        region: Arc<Region>,
        /// The key that it shall answer to.
        key: u32,
        /// The rights that it shall grant.
        access: Access,
    },
    /// Local invalidation; kernel consumers only.
    LocalInv { stag: Stag },
}

impl SendOp {
    /// The opcode of the completion.
    pub(crate) fn wc_opcode(&self) -> WcOpcode {
        match self {
            Self::Send { .. } => WcOpcode::Send,
            Self::Write { .. } => WcOpcode::Write,
            Self::Read { .. } => WcOpcode::Read,
            Self::RegMr { .. } => WcOpcode::RegMr,
            Self::LocalInv { .. } => WcOpcode::LocalInv,
        }
    }
}

/// A send work request.
#[derive(Clone)]
pub(crate) struct SendWr {
    /// The consumer's cookie.
    pub(crate) id: u64,
    pub(crate) op: SendOp,
    pub(crate) payload: Payload,
    /// Wants a completion when it succeeds.
    pub(crate) signalled: bool,
    /// Asks the peer to raise an event.
    pub(crate) solicited: bool,
    /// Waits until all earlier Reads have completed.
    pub(crate) fence: bool,
}

/// A receive work request.
#[derive(Clone, Copy, Default)]
pub(crate) struct RecvWr {
    /// The consumer's cookie.
    pub(crate) id: u64,
    pub(crate) sges: SgeList,
}

/// The end of a work request.
#[derive(Clone, Copy)]
pub(crate) struct Completion {
    /// The consumer's cookie.
    pub(crate) id: u64,
    pub(crate) status: WcStatus,
    pub(crate) opcode: WcOpcode,
    /// Octets moved.
    pub(crate) bytes: u32,
    /// The STag that the peer's Send invalidated.
    pub(crate) invalidated: Option<Stag>,
    /// Number of the queue pair.
    pub(crate) qpn: u32,
    /// The queue pair as `ib_wc` names it.
    pub(crate) qp: QpId,
    /// Raises the event of a completion queue that is armed for solicited completions.
    pub(crate) solicited: bool,
}

#[kernel::prelude::kunit_tests(riwarp_wr)]
mod tests {
    use super::*;

    #[test]
    fn a_list_takes_six_elements_and_no_more() {
        let mut list = SgeList::default();
        for len in 1..=6 {
            assert_eq!(list.as_slice().len() + 1, len);
            assert!(list.push(Sge {
                addr: 0,
                len: len as u32,
                lkey: 0,
            }));
        }
        assert!(!list.push(Sge::default()));
        assert_eq!(list.total(), 21);
        assert!(list.as_slice().iter().map(|sge| sge.len).eq(1..=6));
    }

    #[test]
    fn lengths_may_add_up_to_more_than_a_message() {
        let mut list = SgeList::default();
        for _ in 0..6 {
            list.push(Sge {
                len: u32::MAX,
                ..Sge::default()
            });
        }
        assert_eq!(Payload::Sges(list).len(), 6 * u64::from(u32::MAX));
    }

    #[test]
    fn inline_octets_fit_whole_or_not_at_all() {
        let octets = [7; MAX_INLINE + 1];
        assert!(Inline::new(&octets).is_none());
        let full = Inline::new(&octets[..MAX_INLINE]);
        assert!(full.is_some_and(|inline| inline.as_slice() == &octets[..MAX_INLINE]));
        let mut inline = Inline::empty();
        assert!(inline.append(&octets[..79]));
        assert!(!inline.append(&octets[..2]));
        assert_eq!(inline.as_slice().len(), 79);
        assert!(inline.append(&octets[..1]));
        assert_eq!(Payload::Inline(inline).len(), 80);
    }

    #[test]
    fn completions_have_the_opcode_of_their_request() {
        let stag = Stag::new(1);
        let invalidate_local = true;
        let write = SendOp::Write { stag, to: 0 };
        let read = SendOp::Read {
            stag,
            to: 0,
            invalidate_local,
        };
        assert_eq!(write.wc_opcode(), WcOpcode::Write);
        assert_eq!(read.wc_opcode(), WcOpcode::Read);
        assert_eq!(
            SendOp::Send { invalidate: None }.wc_opcode(),
            WcOpcode::Send
        );
        assert_eq!(SendOp::LocalInv { stag }.wc_opcode(), WcOpcode::LocalInv);
    }
}
