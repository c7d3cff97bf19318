// SPDX-License-Identifier: GPL-2.0

//! Work requests as the driver reads them.
//!
//! Turns the linked lists that a kernel consumer passes to `post_send`, `post_recv` and
//! `post_srq_recv` into iterators of read-only views.
//!
//! Context: any, hard interrupt included. Nothing here sleeps, allocates or locks.
//!
//! A process posts through memory shared with the driver; only its doorbell arrives here, a post
//! without a list. A list from a process is refused with `EINVAL` before it reaches the driver,
//! because its addresses are not kernel addresses.
//!
//! C header: `include/rdma/ib_verbs.h`.

use super::object::MrObject;
use super::types::bit_set;
use super::types::AccessFlags;
use crate::bindings;
use core::marker::PhantomData;
use kernel::prelude::*;
use kernel::sync::ArcBorrow;

pub use super::sges::*;
#[cfg(CONFIG_KUNIT = "y")]
pub use super::tests::wr::AtomicWr;
#[cfg(CONFIG_KUNIT = "y")]
pub use super::tests::wr::RdmaWr;
pub use super::wc::*;

bit_set! {
    /// Flags of a send work request (`enum ib_send_flags`).
    pub struct SendFlags(u32) {
        /// Waits for earlier Reads to complete.
        FENCE = bindings::ib_send_flags_IB_SEND_FENCE as u32; // CAST: A small flag.
        /// Generates a completion.
        SIGNALED = bindings::ib_send_flags_IB_SEND_SIGNALED as u32; // CAST: A small flag.
        /// Raises a solicited notification at the peer.
        SOLICITED = bindings::ib_send_flags_IB_SEND_SOLICITED as u32; // CAST: A small flag.
        /// Copies the payload while posting.
        INLINE = bindings::ib_send_flags_IB_SEND_INLINE as u32; // CAST: A small flag.
    }
}

/// The operation of a send work request.
pub enum IbSendOp<'a, M> {
    /// RDMA Write.
    Write {
        /// Where the peer's buffer begins.
        remote_addr: u64,
        /// The key of the peer's region.
        rkey: u32,
    },
    /// RDMA Write, then immediate data.
    WriteWithImm {
        /// Where the peer's buffer begins.
        remote_addr: u64,
        /// The key of the peer's region.
        rkey: u32,
        /// The four octets in wire order.
        imm: [u8; 4],
    },
    /// Send.
    Send,
    /// Send with immediate data.
    SendWithImm {
        /// The four octets in wire order.
        imm: [u8; 4],
    },
    /// Send that invalidates one of the peer's keys.
    SendWithInv {
        /// The peer's key.
        rkey: u32,
    },
    /// RDMA Read.
    Read {
        /// Where the peer's buffer begins.
        remote_addr: u64,
        /// The key of the peer's region.
        rkey: u32,
    },
    /// RDMA Read that invalidates the local key on completion.
    ReadWithInv {
        /// Where the peer's buffer begins.
        remote_addr: u64,
        /// The key of the peer's region.
        rkey: u32,
        /// The local key.
        invalidate: u32,
    },
    /// Compare and swap.
    CompareSwap {
        /// The address of the peer's word.
        remote_addr: u64,
        /// The key of the peer's region.
        rkey: u32,
        /// The value to compare with.
        compare: u64,
        /// The value to swap in.
        swap: u64,
        /// Which bits are compared.
        compare_mask: u64,
        /// Which bits are swapped.
        swap_mask: u64,
        /// Whether this is the form with masks; without it, both masks are all ones.
        masked: bool,
    },
    /// Fetch and add.
    FetchAdd {
        /// The address of the peer's word.
        remote_addr: u64,
        /// The key of the peer's region.
        rkey: u32,
        /// What is added.
        add: u64,
        /// The most significant bit of each field; no carry passes out of it.
        boundary: u64,
        /// Whether this is the form with a mask; without it, `boundary` is zero.
        masked: bool,
    },
    /// Invalidates a local key.
    LocalInv {
        /// The key.
        key: u32,
    },
    /// Fast registration: makes a mapped region valid.
    RegMr {
        /// The region.
        mr: ArcBorrow<'a, M>,
        /// Its new key.
        key: u32,
        /// The address of its first octet.
        iova: u64,
        /// Its rights.
        access: AccessFlags,
    },
    /// Another operation; the number is that of `enum ib_wr_opcode`.
    Unknown(u32),
}

/// A send work request of a kernel consumer.
///
/// # Invariants
///
/// `raw` is a copy of the `ib_send_wr` at `at`, which is valid and constant for `'a`, from a kernel
/// consumer of a device whose regions have an `M` as the driver's object; its `sg_list` holds
/// `num_sge` entries, and it is embedded in the larger structure that its opcode requires. One of
/// an opcode without such a structure may be unaligned: iSER's target keeps its Sends in packed
/// structures (`struct iser_tx_desc`).
pub struct IbSendWr<'a, M> {
    raw: bindings::ib_send_wr,
    at: *const bindings::ib_send_wr,
    _life: PhantomData<&'a bindings::ib_send_wr>,
    _type: PhantomData<fn() -> M>,
}

/// The list of one `post_send` call, on a device whose regions have an `M` as the driver's object.
///
/// This is an iterator. If the driver refuses a request, it returns the error right after taking
/// it: the request taken last is reported as the bad one.
pub struct SendWrs<'a, M> {
    next: *const bindings::ib_send_wr,
    last: *const bindings::ib_send_wr,
    doorbell: bool,
    _life: PhantomData<&'a bindings::ib_send_wr>,
    _type: PhantomData<fn() -> M>,
}

/// A receive work request of a kernel consumer.
///
/// # Invariants
///
/// As for [`IbSendWr`].
pub struct IbRecvWr<'a> {
    raw: bindings::ib_recv_wr,
    _life: PhantomData<&'a bindings::ib_recv_wr>,
}

/// The list of one `post_recv` or `post_srq_recv` call; used like [`SendWrs`].
pub struct RecvWrs<'a> {
    next: *const bindings::ib_recv_wr,
    last: *const bindings::ib_recv_wr,
    _type: PhantomData<&'a bindings::ib_recv_wr>,
}

impl<'a, M> SendWrs<'a, M> {
    /// Returns the doorbell of a process: no list.
    pub(super) fn doorbell() -> Self {
        Self {
            next: core::ptr::null(),
            last: core::ptr::null(),
            doorbell: true,
            _life: PhantomData,
            _type: PhantomData,
        }
    }

    /// Returns the list of a kernel consumer.
    ///
    /// # Safety
    ///
    /// `list` must be a list as for `ib_post_send()`, from a kernel consumer of a device whose
    /// regions have an `M` as the driver's object, valid for `'a`.
    pub(super) unsafe fn new(list: *const bindings::ib_send_wr) -> Self {
        Self {
            next: list,
            last: list,
            doorbell: false,
            _life: PhantomData,
            _type: PhantomData,
        }
    }

    /// Returns whether this is the doorbell of a process: no list, the requests are in the shared
    /// queue.
    pub fn is_doorbell(&self) -> bool {
        self.doorbell
    }

    /// Returns the request that was taken last, or the first if none was.
    pub(super) fn bad(&self) -> *const bindings::ib_send_wr {
        self.last
    }
}

impl<'a, M> Iterator for SendWrs<'a, M> {
    type Item = IbSendWr<'a, M>;

    #[inline]
    fn next(&mut self) -> Option<IbSendWr<'a, M>> {
        let at = self.next;
        if at.is_null() {
            return None;
        }
        // SAFETY: `copy` requires a request as for `IbSendWr`: the caller of `new` guarantees that
        // for all of the list.
        let wr = unsafe { IbSendWr::copy(at) };
        self.last = at;
        self.next = wr.raw.next;
        Some(wr)
    }
}

impl<'a, M> IbSendWr<'a, M> {
    /// Copies the request at `at`.
    ///
    /// # Safety
    ///
    /// It must be as the invariants say.
    #[inline]
    pub(super) unsafe fn copy(at: *const bindings::ib_send_wr) -> Self {
        // INVARIANT: As the caller guarantees.
        Self {
            // SAFETY: `read_unaligned` requires a valid request, which the caller guarantees.
            raw: unsafe { at.read_unaligned() },
            at,
            _life: PhantomData,
            _type: PhantomData,
        }
    }

    /// Returns the consumer's number of the request.
    #[inline]
    pub fn wr_id(&self) -> u64 {
        // SAFETY: All variants of the union are 64 bits of plain data.
        unsafe { self.raw.__bindgen_anon_1.wr_id }
    }

    /// Returns the flags.
    #[inline]
    pub fn flags(&self) -> SendFlags {
        // CAST: A set of flags in an int; every bit is kept.
        SendFlags::from_bits(self.raw.send_flags as u32)
    }

    /// Returns the pieces of the local buffer.
    #[inline]
    pub fn sges(&self) -> Sges<'a> {
        // SAFETY: `Sges::new` requires that many entries, valid and constant for `'a`: by the
        // type's invariant `sg_list` has `num_sge`.
        unsafe { Sges::new(self.raw.sg_list, self.raw.num_sge) }
    }

    /// Returns the operation.
    #[inline]
    pub fn op(&self) -> IbSendOp<'a, M> {
        // SAFETY: The union is 32 bits of plain data, whichever variant was written.
        let invalidate = unsafe { self.raw.ex.invalidate_rkey };
        let imm = invalidate.to_ne_bytes();
        match self.raw.opcode {
            bindings::ib_wr_opcode_IB_WR_SEND => IbSendOp::Send,
            bindings::ib_wr_opcode_IB_WR_SEND_WITH_IMM => IbSendOp::SendWithImm { imm },
            bindings::ib_wr_opcode_IB_WR_SEND_WITH_INV => {
                IbSendOp::SendWithInv { rkey: invalidate }
            }
            bindings::ib_wr_opcode_IB_WR_RDMA_WRITE => {
                let (remote_addr, rkey) = self.rdma();
                IbSendOp::Write { remote_addr, rkey }
            }
            bindings::ib_wr_opcode_IB_WR_RDMA_WRITE_WITH_IMM => {
                let (remote_addr, rkey) = self.rdma();
                IbSendOp::WriteWithImm {
                    remote_addr,
                    rkey,
                    imm,
                }
            }
            bindings::ib_wr_opcode_IB_WR_RDMA_READ => {
                let (remote_addr, rkey) = self.rdma();
                IbSendOp::Read { remote_addr, rkey }
            }
            bindings::ib_wr_opcode_IB_WR_RDMA_READ_WITH_INV => {
                let (remote_addr, rkey) = self.rdma();
                IbSendOp::ReadWithInv {
                    remote_addr,
                    rkey,
                    invalidate,
                }
            }
            bindings::ib_wr_opcode_IB_WR_ATOMIC_CMP_AND_SWP => {
                let wr = self.atomic();
                IbSendOp::CompareSwap {
                    remote_addr: wr.remote_addr,
                    rkey: wr.rkey,
                    compare: wr.compare_add,
                    swap: wr.swap,
                    compare_mask: u64::MAX,
                    swap_mask: u64::MAX,
                    masked: false,
                }
            }
            bindings::ib_wr_opcode_IB_WR_MASKED_ATOMIC_CMP_AND_SWP => {
                let wr = self.atomic();
                IbSendOp::CompareSwap {
                    remote_addr: wr.remote_addr,
                    rkey: wr.rkey,
                    compare: wr.compare_add,
                    swap: wr.swap,
                    compare_mask: wr.compare_add_mask,
                    swap_mask: wr.swap_mask,
                    masked: true,
                }
            }
            bindings::ib_wr_opcode_IB_WR_ATOMIC_FETCH_AND_ADD => {
                let wr = self.atomic();
                IbSendOp::FetchAdd {
                    remote_addr: wr.remote_addr,
                    rkey: wr.rkey,
                    add: wr.compare_add,
                    boundary: 0,
                    masked: false,
                }
            }
            bindings::ib_wr_opcode_IB_WR_MASKED_ATOMIC_FETCH_AND_ADD => {
                let wr = self.atomic();
                IbSendOp::FetchAdd {
                    remote_addr: wr.remote_addr,
                    rkey: wr.rkey,
                    add: wr.compare_add,
                    boundary: wr.compare_add_mask,
                    masked: true,
                }
            }
            bindings::ib_wr_opcode_IB_WR_LOCAL_INV => IbSendOp::LocalInv { key: invalidate },
            bindings::ib_wr_opcode_IB_WR_REG_MR => self.reg_mr(),
            other => IbSendOp::Unknown(other),
        }
    }

    /// Copies the payload of a request with [`SendFlags::INLINE`] and returns its length.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the request has no such flag, or its payload does not fit.
    pub fn copy_inline(&self, buffer: &mut [u8]) -> Result<usize> {
        if !self.flags().contains(SendFlags::INLINE) {
            return Err(EINVAL);
        }
        let mut done = 0usize;
        for sge in self.sges() {
            let len = usize::try_from(sge.length)?;
            let end = done.checked_add(len).ok_or(EINVAL)?;
            let target = buffer.get_mut(done..end).ok_or(EINVAL)?;
            let source = core::ptr::with_exposed_provenance::<u8>(usize::try_from(sge.addr)?);
            // SAFETY: By the type's invariant the consumer is in the kernel, so inline payload is
            // named by its kernel address. The target was just cut to the length, and is private.
            unsafe { core::ptr::copy_nonoverlapping(source, target.as_mut_ptr(), len) };
            done = end;
        }
        Ok(done)
    }

    /// Returns address and key of the peer's buffer.
    #[inline]
    fn rdma(&self) -> (u64, u32) {
        let wr = self.at.cast::<bindings::ib_rdma_wr>();
        // SAFETY: Reading requires a valid structure of that type: by the type's invariant the
        // request, whose opcode the caller has checked, is embedded in one, as its first member.
        unsafe { ((*wr).remote_addr, (*wr).rkey) }
    }

    /// Returns the whole atomic request.
    #[inline]
    fn atomic(&self) -> &bindings::ib_atomic_wr {
        let wr = self.at.cast::<bindings::ib_atomic_wr>();
        // SAFETY: Reading requires a valid structure of that type: by the type's invariant the
        // request, whose opcode the caller has checked, is embedded in one, as its first member.
        unsafe { &*wr }
    }

    /// Returns the fast registration.
    fn reg_mr(&self) -> IbSendOp<'a, M> {
        let wr = self.at.cast::<bindings::ib_reg_wr>();
        // SAFETY: Reading requires a valid structure of that type: by the type's invariant the
        // request, whose opcode the caller has checked, is embedded in one, as its first member.
        let (mr, key, access) = unsafe { ((*wr).mr, (*wr).key, (*wr).access) };
        // SAFETY: A kernel consumer names a valid region, and does not change it before the request
        // completes.
        let iova = unsafe { (*mr).iova };
        // SAFETY: `data` requires a region that was filled, has an `M`, and stays: a kernel
        // consumer names a region of the device that it posts to, whose regions have an `M` by the
        // type's invariant, and keeps it until the request completes.
        let mr = unsafe { MrObject::<M>::data(mr) };
        IbSendOp::RegMr {
            mr,
            key,
            iova,
            access: AccessFlags::from_raw(access),
        }
    }
}

impl<'a> RecvWrs<'a> {
    /// Returns the list of a kernel consumer.
    ///
    /// # Safety
    ///
    /// `list` must be a list as for `ib_post_recv()`, from a kernel consumer, valid for `'a`.
    pub(super) unsafe fn new(list: *const bindings::ib_recv_wr) -> Self {
        Self {
            next: list,
            last: list,
            _type: PhantomData,
        }
    }

    /// Returns the request that was taken last, or the first if none was.
    pub(super) fn bad(&self) -> *const bindings::ib_recv_wr {
        self.last
    }
}

impl<'a> Iterator for RecvWrs<'a> {
    type Item = IbRecvWr<'a>;

    #[inline]
    fn next(&mut self) -> Option<IbRecvWr<'a>> {
        let at = self.next;
        if at.is_null() {
            return None;
        }
        // SAFETY: `read_unaligned` requires a request that is valid: the caller of `new` guarantees
        // that for all of the list.
        let raw = unsafe { at.read_unaligned() };
        self.last = at;
        self.next = raw.next;
        // INVARIANT: By the contract of `new`.
        Some(IbRecvWr {
            raw,
            _life: PhantomData,
        })
    }
}

impl<'a> IbRecvWr<'a> {
    /// Returns the consumer's number of the request.
    #[inline]
    pub fn wr_id(&self) -> u64 {
        // SAFETY: All variants of the union are 64 bits of plain data.
        unsafe { self.raw.__bindgen_anon_1.wr_id }
    }

    /// Returns the pieces of the buffer.
    #[inline]
    pub fn sges(&self) -> Sges<'a> {
        // SAFETY: `Sges::new` requires that many entries, valid and constant for `'a`: by the
        // type's invariant `sg_list` has `num_sge`.
        unsafe { Sges::new(self.raw.sg_list, self.raw.num_sge) }
    }
}

#[kernel::prelude::kunit_tests(riwarp_wr)]
mod tests {
    use super::*;

    #[test]
    fn work_request_list_is_read_in_order() {
        let mut list = <[bindings::ib_recv_wr; 3]>::default();
        for (n, wr) in (7..).zip(&mut list) {
            wr.__bindgen_anon_1.wr_id = n;
        }
        let [first, second, third] = &mut list;
        second.next = third;
        first.next = second;
        // SAFETY: The list ends, and outlives its use.
        let mut wrs = unsafe { RecvWrs::new(first) };
        assert_eq!(wrs.bad().cast(), ptr_of(first));
        assert_eq!(wrs.next().map(|wr| wr.wr_id()), Some(7));
        assert_eq!(wrs.next().map(|wr| wr.wr_id()), Some(8));
        assert_eq!(wrs.bad().cast(), ptr_of(second));
        assert_eq!(wrs.next().map(|wr| wr.wr_id()), Some(9));
        assert!(wrs.next().is_none() && wrs.next().is_none());
    }

    fn ptr_of<T>(of: &T) -> *const T {
        of
    }
}
