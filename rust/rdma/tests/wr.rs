// SPDX-License-Identifier: GPL-2.0

//! Work requests as a kernel consumer fills them in.

use crate::bindings;
use crate::rdma::wr::IbSendWr;
use crate::rdma::wr::SendFlags;
use core::marker::PhantomData;
use kernel::prelude::*;

/// An atomic request as a kernel consumer fills it in.
pub struct AtomicWr(bindings::ib_atomic_wr);

impl AtomicWr {
    /// Makes a request with an opcode of `enum ib_wr_opcode`, its operands (the value to compare or
    /// add, the value to swap), and the mask of each.
    pub fn new(opcode: u32, [operand, swap]: [u64; 2], [mask, swap_mask]: [u64; 2]) -> Self {
        Self(bindings::ib_atomic_wr {
            wr: bindings::ib_send_wr {
                opcode,
                ..Default::default()
            },
            remote_addr: 0x1122_3344_5566_7788,
            rkey: 0x99,
            compare_add: operand,
            swap,
            compare_add_mask: mask,
            swap_mask,
        })
    }

    /// Returns the request as the driver reads it.
    pub fn view<M>(&self) -> IbSendWr<'_, M> {
        // SAFETY: `copy` requires a request as for `IbSendWr`: it is borrowed, so constant; it has
        // no `sg_list`; it is the head of the structure for atomic requests.
        unsafe { IbSendWr::copy((&raw const self.0).cast()) }
    }
}

/// A request without operands as a kernel consumer fills it in.
pub struct RdmaWr<'a> {
    wr: bindings::ib_rdma_wr,
    _sges: KVec<bindings::ib_sge>,
    _pieces: PhantomData<&'a [u8]>,
}

impl<'a> RdmaWr<'a> {
    /// Makes a request with an opcode of `enum ib_wr_opcode` that is neither atomic nor a
    /// registration, flags, its key to invalidate or Immediate Data, and the pieces of its local
    /// buffer.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn try_new(opcode: u32, flags: SendFlags, word: u32, pieces: &[&'a [u8]]) -> Result<Self> {
        let mut sges = KVec::with_capacity(pieces.len(), GFP_KERNEL)?;
        for piece in pieces {
            let sge = bindings::ib_sge {
                addr: piece.as_ptr().expose_provenance() as u64, // CAST: as many bits.
                length: u32::try_from(piece.len())?,
                ..Default::default()
            };
            sges.push(sge, GFP_KERNEL)?;
        }
        let mut wr = bindings::ib_send_wr {
            opcode,
            // CAST: Small flags.
            send_flags: flags.bits() as kernel::ffi::c_int,
            sg_list: sges.as_mut_ptr(),
            num_sge: kernel::ffi::c_int::try_from(sges.len())?,
            ..Default::default()
        };
        wr.ex.invalidate_rkey = word;
        Ok(Self {
            wr: bindings::ib_rdma_wr {
                wr,
                remote_addr: 0x1122_3344_5566_7788,
                rkey: 0x99,
            },
            _sges: sges,
            _pieces: PhantomData,
        })
    }

    /// Returns the request as the driver reads it.
    pub fn view<M>(&self) -> IbSendWr<'_, M> {
        // SAFETY: `copy` requires a request as for `IbSendWr`: it is borrowed, so constant; `_sges`
        // has the entries of its list, and the pieces live as long; it is the head of the structure
        // for Writes and Reads.
        unsafe { IbSendWr::copy((&raw const self.wr).cast()) }
    }
}
