// SPDX-License-Identifier: GPL-2.0

//! Work requests on their way in.
//!
//! What enters: the linked lists that a kernel consumer hands to `post_send`, `post_recv` and
//! `post_srq_recv`. What leaves: iterators of read-only views.
//!
//! Context: any, hard interrupt included. Nothing here sleeps, allocates or locks.
//!
//! A process posts through memory that it shares with the driver; what arrives of it here is only
//! the doorbell, a post without a list. A process that sends a list all the same gets `EINVAL`
//! before the driver sees it, since the addresses in such a list are anything but kernel addresses.
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
pub use super::wc::*;

bit_set! {
    /// Flags of a send work request (`enum ib_send_flags`).
    pub struct SendFlags(u32) {
        /// Waits for the Reads before it.
        FENCE = bindings::ib_send_flags_IB_SEND_FENCE as u32; // CAST: A small flag.
        /// Makes a completion.
        SIGNALED = bindings::ib_send_flags_IB_SEND_SIGNALED as u32; // CAST: A small flag.
        /// Raises the peer's notification.
        SOLICITED = bindings::ib_send_flags_IB_SEND_SOLICITED as u32; // CAST: A small flag.
        /// The payload is copied while posting.
        INLINE = bindings::ib_send_flags_IB_SEND_INLINE as u32; // CAST: A small flag.
    }
}

/// What a send work request asks for.
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
        /// The four octets as they go on the wire.
        imm: [u8; 4],
    },
    /// Send.
    Send,
    /// Send with immediate data.
    SendWithImm {
        /// The four octets as they go on the wire.
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
    /// RDMA Read that invalidates the local key when it is done.
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
        /// Where the peer's word is.
        remote_addr: u64,
        /// The key of the peer's region.
        rkey: u32,
        /// What the word must be.
        compare: u64,
        /// What it becomes.
        swap: u64,
        /// Which bits are compared.
        compare_mask: u64,
        /// Which bits are swapped.
        swap_mask: u64,
        /// The form with masks; they are all ones in the other.
        masked: bool,
    },
    /// Fetch and add.
    FetchAdd {
        /// Where the peer's word is.
        remote_addr: u64,
        /// The key of the peer's region.
        rkey: u32,
        /// What is added.
        add: u64,
        /// The most significant bit of each field, out of which no carry passes.
        boundary: u64,
        /// The form with a mask; it is zero in the other.
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
    /// An operation that has no form here; the number is that of `enum ib_wr_opcode`.
    Unknown(u32),
}

/// A send work request of a kernel consumer.
///
/// # Invariants
///
/// `raw` points to an `ib_send_wr` that is valid and constant for `'a`, made by a kernel consumer
/// of a device whose regions have an `M` as the driver's object; its `sg_list` holds `num_sge`
/// entries, and it is embedded in the larger structure that its opcode stands for.
pub struct IbSendWr<'a, M> {
    raw: &'a bindings::ib_send_wr,
    _type: PhantomData<fn() -> M>,
}

/// The list of one `post_send` call, on a device whose regions have an `M` as the driver's object.
///
/// An iterator. If the driver refuses a request, it returns the error right after it took that
/// request: the one taken last is the one reported as bad.
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
    raw: &'a bindings::ib_recv_wr,
}

/// The list of one `post_recv` or `post_srq_recv` call; used like [`SendWrs`].
pub struct RecvWrs<'a> {
    next: *const bindings::ib_recv_wr,
    last: *const bindings::ib_recv_wr,
    _type: PhantomData<&'a bindings::ib_recv_wr>,
}

impl<'a, M> SendWrs<'a, M> {
    /// The doorbell of a process.
    pub(super) fn doorbell() -> Self {
        Self {
            next: core::ptr::null(),
            last: core::ptr::null(),
            doorbell: true,
            _life: PhantomData,
            _type: PhantomData,
        }
    }

    /// The list of a kernel consumer.
    ///
    /// # Safety
    ///
    /// `list` must be a list as `ib_post_send()` takes it, of a kernel consumer of a device whose
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

    /// Whether a process rang the doorbell: there is no list, its requests are in the shared queue.
    pub fn is_doorbell(&self) -> bool {
        self.doorbell
    }

    /// The request that was taken last, or the first if none was.
    pub(super) fn bad(&self) -> *const bindings::ib_send_wr {
        self.last
    }
}

impl<'a, M> Iterator for SendWrs<'a, M> {
    type Item = IbSendWr<'a, M>;

    #[inline]
    fn next(&mut self) -> Option<IbSendWr<'a, M>> {
        // SAFETY: `as_ref` wants null or a request that is valid and constant for `'a`: the caller
        // of `new` has made all of the list so.
        let raw = unsafe { self.next.as_ref() }?;
        self.last = self.next;
        self.next = raw.next;
        // INVARIANT: By the contract of `new`.
        Some(IbSendWr {
            raw,
            _type: PhantomData,
        })
    }
}

impl<'a, M> IbSendWr<'a, M> {
    /// The consumer's number of the request.
    #[inline]
    pub fn wr_id(&self) -> u64 {
        // SAFETY: All variants of the union are 64 bits of plain data.
        unsafe { *self.raw.__bindgen_anon_1.wr_id.as_ref() }
    }

    /// Its flags.
    #[inline]
    pub fn flags(&self) -> SendFlags {
        // CAST: A set of flags in an int; every bit keeps its place.
        SendFlags::from_bits(self.raw.send_flags as u32)
    }

    /// The pieces of its local buffer.
    #[inline]
    pub fn sges(&self) -> Sges<'a> {
        // SAFETY: `Sges::new` wants so many entries that are valid and constant for `'a`: by the
        // type's invariant `sg_list` has `num_sge`.
        unsafe { Sges::new(self.raw.sg_list, self.raw.num_sge) }
    }

    /// What it asks for.
    #[inline]
    pub fn op(&self) -> IbSendOp<'a, M> {
        // SAFETY: The union is 32 bits of plain data, whichever variant was written.
        let invalidate = unsafe { *self.raw.ex.invalidate_rkey.as_ref() };
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
            // SAFETY: By the type's invariant the consumer is in the kernel, and inline payload is
            // named by its kernel address. The target was just cut to the length, and is private.
            unsafe { core::ptr::copy_nonoverlapping(source, target.as_mut_ptr(), len) };
            done = end;
        }
        Ok(done)
    }

    /// The remote end of an RDMA request.
    #[inline]
    fn rdma(&self) -> (u64, u32) {
        let wr = core::ptr::from_ref(self.raw).cast::<bindings::ib_rdma_wr>();
        // SAFETY: Reading wants a valid structure of that type: by the type's invariant the
        // request, whose opcode the caller has looked at, is embedded in one, as its first member.
        unsafe { ((*wr).remote_addr, (*wr).rkey) }
    }

    /// The rest of an atomic request.
    #[inline]
    fn atomic(&self) -> &bindings::ib_atomic_wr {
        let wr = core::ptr::from_ref(self.raw).cast::<bindings::ib_atomic_wr>();
        // SAFETY: Reading wants a valid structure of that type: by the type's invariant the
        // request, whose opcode the caller has looked at, is embedded in one, as its first member.
        unsafe { &*wr }
    }

    /// The rest of a fast registration.
    fn reg_mr(&self) -> IbSendOp<'a, M> {
        let wr = core::ptr::from_ref(self.raw).cast::<bindings::ib_reg_wr>();
        // SAFETY: Reading wants a valid structure of that type: by the type's invariant the
        // request, whose opcode the caller has looked at, is embedded in one, as its first member.
        let (mr, key, access) = unsafe { ((*wr).mr, (*wr).key, (*wr).access) };
        // SAFETY: A kernel consumer names a region, and does not change it before the request
        // completes.
        let iova = unsafe { (*mr).iova };
        // SAFETY: `data` wants a region that was filled, of `M`, and stays: a kernel consumer names
        // one of the device that it posts to, which by the type's invariant is of `M`, and keeps it
        // until the request completes.
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
    /// The list of a kernel consumer.
    ///
    /// # Safety
    ///
    /// `list` must be a list as `ib_post_recv()` takes it, of a kernel consumer, valid for `'a`.
    pub(super) unsafe fn new(list: *const bindings::ib_recv_wr) -> Self {
        Self {
            next: list,
            last: list,
            _type: PhantomData,
        }
    }

    /// The request that was taken last, or the first if none was.
    pub(super) fn bad(&self) -> *const bindings::ib_recv_wr {
        self.last
    }
}

impl<'a> Iterator for RecvWrs<'a> {
    type Item = IbRecvWr<'a>;

    #[inline]
    fn next(&mut self) -> Option<IbRecvWr<'a>> {
        // SAFETY: `as_ref` wants null or a request that is valid and constant for `'a`: the caller
        // of `new` has made all of the list so.
        let raw = unsafe { self.next.as_ref() }?;
        self.last = self.next;
        self.next = raw.next;
        // INVARIANT: By the contract of `new`.
        Some(IbRecvWr { raw })
    }
}

impl<'a> IbRecvWr<'a> {
    /// The consumer's number of the request.
    #[inline]
    pub fn wr_id(&self) -> u64 {
        // SAFETY: All variants of the union are 64 bits of plain data.
        unsafe { *self.raw.__bindgen_anon_1.wr_id.as_ref() }
    }

    /// The pieces of its buffer.
    #[inline]
    pub fn sges(&self) -> Sges<'a> {
        // SAFETY: `Sges::new` wants so many entries that are valid and constant for `'a`: by the
        // type's invariant `sg_list` has `num_sge`.
        unsafe { Sges::new(self.raw.sg_list, self.raw.num_sge) }
    }
}

/// An atomic request as a kernel consumer fills it in, for tests of what is made of it.
#[cfg(CONFIG_KUNIT = "y")]
pub struct AtomicWr(bindings::ib_atomic_wr);

#[cfg(CONFIG_KUNIT = "y")]
impl AtomicWr {
    /// Makes one with that opcode of `enum ib_wr_opcode` and these operands: what is compared or
    /// added, what is swapped, and the mask of each.
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

    /// The request as the driver sees it.
    pub fn view<M>(&self) -> IbSendWr<'_, M> {
        // INVARIANT: borrowed, so constant; without a list; the head of the structure for atomic
        // requests.
        IbSendWr {
            raw: &self.0.wr,
            _type: PhantomData,
        }
    }
}

#[kernel::prelude::kunit_tests(riwarp_wr)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_taken_in_its_order() {
        let mut list = <[bindings::ib_recv_wr; 3]>::default();
        for (n, wr) in (7..).zip(&mut list) {
            // SAFETY: The union is 64 bits of plain data.
            unsafe { *wr.__bindgen_anon_1.wr_id.as_mut() = n };
        }
        let [first, second, third] = &mut list;
        second.next = third;
        first.next = second;
        // SAFETY: A list that ends, and outlives its use.
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
