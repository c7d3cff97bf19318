// SPDX-License-Identifier: GPL-2.0

//! Work requests and completions in the driver's form.
//!
//! `abi` converts the requests of both user ABIs and the kernel's `ib_send_wr` to a [`SendWr`] or
//! [`RecvWr`]; no other module depends on where a work request came from. `abi` converts a
//! [`Completion`] to an ABI's CQE, `cq` to an `ib_wc`.

use iwarp::{
    atomic::{
        AtomicOperation,
        TARGET_LEN, //
    },
    flush::FlushRequest,
    rdmap::{
        Immediate,
        SendExtra, //
    },
    stag::Stag, //
};
use kernel::{
    alloc::flags::__GFP_NOWARN,
    prelude::*,
    sync::Arc, //
};
use kernel_ext::rdma::{
    object::QpId,
    types::AccessFlags,
    wr::{
        WcExtra,
        WcOpcode,
        WcStatus, //
    }, //
};

use crate::mem::{
    mr::{
        window::Bind,
        Region, //
    },
    payload::Payload, //
};

/// What a send work request does.
pub(crate) enum SendOp {
    /// Send, with Invalidate or Immediate Data according to the [`SendExtra`].
    Send(SendExtra),
    /// RDMA Write to the peer's buffer, and Immediate Data after it.
    Write {
        stag: Stag,
        to: u64,
        immediate: Option<[u8; Immediate::LEN]>,
    },
    /// Immediate Data alone, all octets of it; processes only.
    Immediate([u8; Immediate::LEN]),
    /// RDMA Read from the peer's buffer; may invalidate the local STag when it is done.
    Read {
        stag: Stag,
        to: u64,
        invalidate_local: bool,
    },
    /// An atomic operation on the peer's buffer.
    Atomic {
        stag: Stag,
        to: u64,
        operation: AtomicOperation,
        /// The opcode of its completion; masked operations have opcodes of their own.
        opcode: WcOpcode,
    },
    /// A Flush of the peer's buffer; processes only.
    Flush(FlushRequest),
    /// An Atomic Write of 8 octets to the peer's buffer; processes only.
    AtomicWrite { stag: Stag, to: u64 },
    /// Fast registration; kernel consumers only.
    RegMr {
        /// The region; its pages were mapped before the post.
        region: Arc<Region>,
        /// The new key of the region.
        key: u32,
        /// The address by which the peer names its first octet.
        base: u64,
        /// The rights that it grants.
        access: AccessFlags,
    },
    /// Binds a memory window; processes only.
    Bind(Bind),
    /// Local invalidation.
    LocalInv { stag: Stag },
}

impl Default for SendOp {
    fn default() -> Self {
        Self::Send(SendExtra::None)
    }
}

impl SendOp {
    /// The opcode of the completion.
    pub(crate) fn wc_opcode(&self) -> WcOpcode {
        match self {
            Self::Send(_) | Self::Immediate(_) => WcOpcode::Send,
            Self::Write { .. } => WcOpcode::Write,
            Self::Read { .. } => WcOpcode::Read,
            Self::Atomic { opcode, .. } => *opcode,
            Self::Flush(_) => WcOpcode::Flush,
            Self::AtomicWrite { .. } => WcOpcode::AtomicWrite,
            Self::RegMr { .. } => WcOpcode::RegMr,
            Self::Bind(_) => WcOpcode::BindMw,
            Self::LocalInv { .. } => WcOpcode::LocalInv,
        }
    }
}

/// A send work request.
#[derive(Default)]
pub(crate) struct SendWr {
    /// The consumer's cookie.
    pub(crate) id: u64,
    pub(crate) op: SendOp,
    pub(crate) payload: Payload,
    /// Generates a completion also when it succeeds.
    pub(crate) signalled: bool,
    /// Asks the peer to raise an event.
    pub(crate) solicited: bool,
    /// Waits until all earlier Reads have completed.
    pub(crate) fence: bool,
}

impl SendWr {
    /// Moves the request to `to`; only its payload remains. Touches only what is used of either.
    pub(crate) fn move_to(&mut self, to: &mut Self) {
        to.id = self.id;
        to.op = core::mem::take(&mut self.op);
        to.payload.copy_from(&self.payload);
        (to.signalled, to.solicited, to.fence) = (self.signalled, self.solicited, self.fence);
    }

    /// Returns how many octets it moves, for its completion.
    pub(crate) fn bytes(&self) -> u32 {
        if let SendOp::Atomic { .. } = self.op {
            return TARGET_LEN;
        }
        // The transmit task refuses a longer message.
        u32::try_from(self.payload.len()).unwrap_or(u32::MAX)
    }

    /// Returns whether only a peer that negotiated Immediate Data accepts it.
    pub(crate) fn needs_send_immediate(&self) -> bool {
        matches!(self.op, SendOp::Send(SendExtra::Immediate(_))) && self.payload.len() != 0
    }

    /// Drops the region that its operation refers to, where the caller chooses.
    pub(crate) fn forget(&mut self) {
        self.op = SendOp::default();
    }
}

/// A receive work request.
#[derive(Default)]
pub(crate) struct RecvWr {
    /// The consumer's cookie.
    pub(crate) id: u64,
    /// The memory that receives the octets; always a list.
    pub(crate) buffer: Payload,
}

/// A malformed work request, which no correct consumer posts.
#[derive(Clone, Copy)]
pub(crate) struct BadWr {
    /// The consumer's cookie.
    pub(crate) id: u64,
    /// The opcode of its completion; a guess if the request's opcode is unknown.
    pub(crate) opcode: WcOpcode,
    /// The status of its completion.
    pub(crate) status: WcStatus,
}

/// The result of a work request.
#[derive(Clone, Copy)]
pub(crate) struct Completion {
    /// The consumer's cookie.
    pub(crate) id: u64,
    pub(crate) status: WcStatus,
    pub(crate) opcode: WcOpcode,
    /// Octets moved.
    pub(crate) bytes: u32,
    /// What the peer's message carried in addition.
    pub(crate) extra: WcExtra,
    /// All octets of Immediate Data, of which `extra` has four.
    pub(crate) immediate: Option<[u8; Immediate::LEN]>,
    /// The number of the queue pair.
    pub(crate) qpn: u32,
    /// The queue pair, for `ib_wc`.
    pub(crate) qp: QpId,
    /// Raises the event of a completion queue that is armed for solicited completions.
    pub(crate) solicited: bool,
    /// The peer's Terminate: 1 and its first two octets, that is layer and error type (4 bits each)
    /// and error code; 0 on success or if none arrived.
    pub(crate) vendor_err: u32,
}

/// The event that completions posted since the last notification raise.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum PendingEvent {
    /// Completions, none of them solicited or an error.
    Plain,
    /// A solicited completion or an error.
    Solicited,
}

/// The queue pair's part of a completion.
#[derive(Clone, Copy)]
pub(crate) struct WcOrigin {
    pub(crate) qpn: u32,
    pub(crate) qp: QpId,
    /// [`Completion::vendor_err`] of requests that end in error.
    pub(crate) vendor_err: u32,
}

impl WcOrigin {
    /// Returns [`Completion::vendor_err`] of a request that ends with `status`.
    pub(crate) fn vendor_err_of(&self, status: WcStatus) -> u32 {
        match status {
            WcStatus::Success => 0,
            _ => self.vendor_err,
        }
    }
}

/// Makes a ring of `entries` requests, which are filled in place: a request is large and mostly
/// empty.
///
/// Context: process.
pub(crate) fn wr_ring<T: Default>(entries: usize) -> Result<KVVec<T>> {
    let mut slots = KVVec::with_capacity(entries, GFP_KERNEL_ACCOUNT | __GFP_NOWARN)?;
    for _ in 0..entries {
        slots.push(T::default(), GFP_KERNEL_ACCOUNT)?;
    }
    Ok(slots)
}

/// Makes a ring of `entries` empty slots.
///
/// Context: process.
pub(crate) fn empty_ring<T>(entries: usize) -> Result<KVVec<Option<T>>> {
    let mut slots = KVVec::with_capacity(entries, GFP_KERNEL_ACCOUNT | __GFP_NOWARN)?;
    for _ in 0..entries {
        slots.push(None, GFP_KERNEL_ACCOUNT)?;
    }
    Ok(slots)
}

#[kernel::prelude::kunit_tests(riwarp_abi_wr)]
mod tests {
    use super::*;

    #[test]
    fn completion_opcode_matches_request() {
        let stag = Stag::new(1);
        let invalidate_local = true;
        let write = SendOp::Write {
            stag,
            to: 0,
            immediate: None,
        };
        let read = SendOp::Read {
            stag,
            to: 0,
            invalidate_local,
        };
        assert_eq!(write.wc_opcode(), WcOpcode::Write);
        assert_eq!(read.wc_opcode(), WcOpcode::Read);
        assert_eq!(SendOp::default().wc_opcode(), WcOpcode::Send);
        assert_eq!(SendOp::LocalInv { stag }.wc_opcode(), WcOpcode::LocalInv);
    }
}
