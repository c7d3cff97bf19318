// SPDX-License-Identifier: GPL-2.0

//! Completions as the consumer polls them.
//!
//! Writes the driver's [`Wc`] values into the array of `poll_cq`.
//!
//! Context: any, hard interrupt included. Nothing here sleeps, allocates or locks.
//!
//! C header: `include/rdma/ib_verbs.h`.

use super::object::QpId;
use super::types::c_enum;
use crate::bindings;
use core::marker::PhantomData;

c_enum! {
    /// The status of a completed work request.
    pub enum WcStatus {
        /// Success.
        Success = bindings::ib_wc_status_IB_WC_SUCCESS;
        /// The message exceeds its buffer, or the buffer exceeds its region.
        LocalLength = bindings::ib_wc_status_IB_WC_LOC_LEN_ERR;
        /// The queue pair is inconsistent.
        LocalQpOperation = bindings::ib_wc_status_IB_WC_LOC_QP_OP_ERR;
        /// A local region is invalid or lacks an access right.
        LocalProtection = bindings::ib_wc_status_IB_WC_LOC_PROT_ERR;
        /// The queue pair went to error before the request was done.
        Flushed = bindings::ib_wc_status_IB_WC_WR_FLUSH_ERR;
        /// A window could not be bound.
        MwBind = bindings::ib_wc_status_IB_WC_MW_BIND_ERR;
        /// The peer sent an invalid response.
        BadResponse = bindings::ib_wc_status_IB_WC_BAD_RESP_ERR;
        /// A local region refused access to an incoming message.
        LocalAccess = bindings::ib_wc_status_IB_WC_LOC_ACCESS_ERR;
        /// The peer found the request malformed.
        RemoteInvalidRequest = bindings::ib_wc_status_IB_WC_REM_INV_REQ_ERR;
        /// The peer's region refused access.
        RemoteAccess = bindings::ib_wc_status_IB_WC_REM_ACCESS_ERR;
        /// The peer failed to execute the request.
        RemoteOperation = bindings::ib_wc_status_IB_WC_REM_OP_ERR;
        /// The peer did not answer.
        RetryExceeded = bindings::ib_wc_status_IB_WC_RETRY_EXC_ERR;
        /// The peer had no receive posted for too long.
        RnrRetryExceeded = bindings::ib_wc_status_IB_WC_RNR_RETRY_EXC_ERR;
        /// The peer aborted the operation.
        RemoteAborted = bindings::ib_wc_status_IB_WC_REM_ABORT_ERR;
        /// Any other error.
        General = bindings::ib_wc_status_IB_WC_GENERAL_ERR;
    }
}

c_enum! {
    /// The operation of a completed work request.
    pub enum WcOpcode {
        /// Send, in all its forms.
        Send = bindings::ib_wc_opcode_IB_WC_SEND;
        /// RDMA Write, in all its forms.
        Write = bindings::ib_wc_opcode_IB_WC_RDMA_WRITE;
        /// RDMA Read, in all its forms.
        Read = bindings::ib_wc_opcode_IB_WC_RDMA_READ;
        /// Compare and swap.
        CompareSwap = bindings::ib_wc_opcode_IB_WC_COMP_SWAP;
        /// Fetch and add.
        FetchAdd = bindings::ib_wc_opcode_IB_WC_FETCH_ADD;
        /// Flush of the peer's memory.
        Flush = bindings::ib_wc_opcode_IB_WC_FLUSH;
        /// Atomic Write.
        AtomicWrite = bindings::ib_wc_opcode_IB_WC_ATOMIC_WRITE;
        /// Bind of a memory window.
        BindMw = bindings::ib_wc_opcode_IB_WC_BIND_MW;
        /// Local invalidate.
        LocalInv = bindings::ib_wc_opcode_IB_WC_LOCAL_INV;
        /// Fast registration.
        RegMr = bindings::ib_wc_opcode_IB_WC_REG_MR;
        /// Masked compare and swap.
        MaskedCompareSwap = bindings::ib_wc_opcode_IB_WC_MASKED_COMP_SWAP;
        /// Masked fetch and add.
        MaskedFetchAdd = bindings::ib_wc_opcode_IB_WC_MASKED_FETCH_ADD;
        /// A receive.
        Recv = bindings::ib_wc_opcode_IB_WC_RECV;
        /// A receive consumed by an RDMA Write with immediate data.
        RecvRdmaWithImm = bindings::ib_wc_opcode_IB_WC_RECV_RDMA_WITH_IMM;
    }
}

/// Data of a message besides its payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WcExtra {
    /// Nothing.
    #[default]
    None,
    /// Immediate data, in wire order.
    Immediate([u8; 4]),
    /// The local key that the message invalidated.
    Invalidated(u32),
}

/// A completion.
#[derive(Clone, Copy, Debug)]
pub struct Wc {
    /// The consumer's number of the work request.
    pub wr_id: u64,
    /// Its status.
    pub status: WcStatus,
    /// Its operation.
    pub opcode: WcOpcode,
    /// Octets received or read.
    pub byte_len: u32,
    /// Immediate data or an invalidated key.
    pub extra: WcExtra,
    /// The queue pair that it was posted to.
    pub qp: QpId,
    /// A code of the driver's own, for error statuses.
    pub vendor_err: u32,
}

/// The array of `poll_cq`, to which completions are written.
///
/// # Invariants
///
/// `raw` points to `room` structures that may be written for `'a`; `used <= room`.
pub struct WcSink<'a> {
    raw: *mut bindings::ib_wc,
    room: usize,
    used: usize,
    _life: PhantomData<&'a mut bindings::ib_wc>,
}

impl WcSink<'_> {
    /// Returns a sink for `room` completions.
    ///
    /// # Safety
    ///
    /// `raw` must point to that many structures, which are written only through the sink while it
    /// lives.
    pub(super) unsafe fn new(raw: *mut bindings::ib_wc, room: usize) -> Self {
        Self {
            raw,
            room,
            used: 0,
            _life: PhantomData,
        }
    }

    /// Returns how many more completions fit.
    #[inline]
    pub fn room(&self) -> usize {
        self.room - self.used
    }

    /// Returns how many completions were pushed.
    #[inline]
    pub fn used(&self) -> usize {
        self.used
    }

    /// Writes a completion; returns `false` if the sink is full.
    #[inline]
    pub fn push(&mut self, wc: &Wc) -> bool {
        if self.used >= self.room {
            return false;
        }
        let mut raw = bindings::ib_wc {
            status: wc.status.to_raw(),
            opcode: wc.opcode.to_raw(),
            vendor_err: wc.vendor_err,
            byte_len: wc.byte_len,
            qp: core::ptr::with_exposed_provenance_mut(wc.qp.0),
            port_num: 1,
            ..Default::default()
        };
        raw.__bindgen_anon_1.wr_id = wc.wr_id;
        match wc.extra {
            WcExtra::None => {}
            WcExtra::Immediate(octets) => {
                raw.ex.imm_data = u32::from_ne_bytes(octets);
                // CAST: A small flag.
                raw.wc_flags = bindings::ib_wc_flags_IB_WC_WITH_IMM as i32;
            }
            WcExtra::Invalidated(rkey) => {
                raw.ex.invalidate_rkey = rkey;
                // CAST: A small flag.
                raw.wc_flags = bindings::ib_wc_flags_IB_WC_WITH_INVALIDATE as i32;
            }
        }
        // SAFETY: `add` must stay inside the structures at `raw`: by the type's invariant there are
        // `room`, and `used` is below that.
        let place = unsafe { self.raw.add(self.used) };
        // SAFETY: By the type's invariant the structures may be written.
        unsafe { place.write(raw) };
        // INVARIANT: It was below `room`.
        self.used += 1;
        true
    }
}

#[kernel::prelude::kunit_tests(riwarp_wc)]
mod tests {
    use super::*;

    const WC: Wc = Wc {
        wr_id: 0x1122_3344_5566_7788,
        status: WcStatus::RemoteAccess,
        opcode: WcOpcode::Recv,
        byte_len: 77,
        extra: WcExtra::None,
        qp: QpId::NONE,
        vendor_err: 9,
    };

    #[test]
    fn completion_sink_takes_as_many_as_fit() {
        let mut raw = <[bindings::ib_wc; 3]>::default();
        // SAFETY: Two of them, written through the sink only while it lives.
        let mut sink = unsafe { WcSink::new(raw.as_mut_ptr(), 2) };
        assert_eq!(sink.room(), 2);
        assert!(sink.push(&WC) && sink.push(&WC));
        assert!(!sink.push(&WC));
        assert_eq!((sink.room(), sink.used()), (0, 2));
        assert_eq!(raw[1].byte_len, 77);
        assert_eq!(raw[2].byte_len, 0);
    }

    #[test]
    fn completion_fields_are_stored_in_ib_wc() {
        let mut raw = <[bindings::ib_wc; 3]>::default();
        // SAFETY: All of them, written through the sink only while it lives.
        let mut sink = unsafe { WcSink::new(raw.as_mut_ptr(), 3) };
        for extra in [
            WcExtra::None,
            WcExtra::Immediate([1, 2, 3, 4]),
            WcExtra::Invalidated(5),
        ] {
            assert!(sink.push(&Wc { extra, ..WC }));
        }
        // SAFETY: All variants of the union are 64 bits of plain data.
        let wr_id = unsafe { raw[0].__bindgen_anon_1.wr_id };
        assert_eq!(wr_id, WC.wr_id);
        assert_eq!(raw[0].status, bindings::ib_wc_status_IB_WC_REM_ACCESS_ERR);
        assert_eq!(raw[0].opcode, bindings::ib_wc_opcode_IB_WC_RECV);
        assert_eq!((raw[0].vendor_err, raw[0].wc_flags), (9, 0));
        // SAFETY: All variants of the union are 32 bits of plain data.
        let immediate = unsafe { raw[1].ex.imm_data };
        assert_eq!(immediate.to_ne_bytes(), [1, 2, 3, 4]);
        // SAFETY: All variants of the union are 32 bits of plain data.
        let key = unsafe { raw[2].ex.invalidate_rkey };
        assert_eq!(key, 5);
    }
}
