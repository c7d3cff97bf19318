// SPDX-License-Identifier: GPL-2.0

//! A stand-in for `ib_core` and its consumers in the KUnit suites of a driver: proofs that objects
//! belong to a kernel consumer, lists that such a consumer posts to the driver or through
//! `ib_post_send()`, polled completions, and pages for fast registration.
//!
//! The link types make links without a consumer themselves (`dead`).

use crate::bindings;
use crate::net::bench::eventually;
use crate::rdma::mem::mem_map::KernelPages;
use crate::rdma::mmap::Mappings;
use crate::rdma::mr::MapSg;
use crate::rdma::object::CqLink;
use crate::rdma::object::CqObject;
use crate::rdma::object::DriverPart;
use crate::rdma::object::QpLink;
use crate::rdma::object::QpObject;
use crate::rdma::ops::table;
use crate::rdma::ops::Driver;
use crate::rdma::ops::OptionalOps;
use crate::rdma::ops::Provider;
use crate::rdma::ops::WriteCommands;
use crate::rdma::types::KernelOwned;
use crate::rdma::wr::RecvWrs;
use crate::rdma::wr::SendFlags;
use crate::rdma::wr::SendWrs;
use crate::rdma::wr::WcOpcode;
use crate::rdma::wr::WcSink;
use crate::rdma::wr::WcStatus;
use crate::workqueue::OwnedQueue;
use core::mem::MaybeUninit;
use core::ptr::NonNull;
use kernel::error::from_result;
use kernel::error::to_result;
use kernel::ffi::c_int;
use kernel::ffi::c_uint;
use kernel::ffi::c_ulong;
use kernel::ffi::c_void;
use kernel::prelude::*;
use kernel::sync::atomic::Atomic;
use kernel::sync::atomic::Relaxed;
use kernel::sync::Arc;
use kernel::time::Delta;
use kernel::time::Instant;
use kernel::time::Monotonic;

/// Returns the proof for the objects of a test.
pub fn kernel_owned() -> KernelOwned<'static> {
    // SAFETY: Tests run in the kernel and use kernel addresses; they create objects at any time.
    unsafe { KernelOwned::new_unchecked() }
}

/// Runs `f` with interrupts disabled, as under a consumer's own lock, and returns whether they were
/// still disabled at its end.
pub fn interrupts_off<R>(f: impl FnOnce() -> R) -> (R, bool) {
    // SAFETY: The helper has no requirements; the state is restored below.
    let flags = unsafe { riwarp_helper_local_irq_save() };
    let result = f();
    // SAFETY: The helper has no requirements.
    let off = unsafe { riwarp_helper_irqs_disabled() };
    // SAFETY: `flags` is what the matching call returned.
    unsafe { riwarp_helper_local_irq_restore(flags) };
    (result, off)
}

/// A library that has calls for all operations.
const PROVIDER: Provider = Provider {
    driver_id: bindings::rdma_driver_id_RDMA_DRIVER_UNKNOWN,
    abi_version: 1,
    commands: WriteCommands::empty(),
    optional: OptionalOps::MEMORY_WINDOWS.union(OptionalOps::RESIZE_CQ),
};

/// Returns the optional operations for which the table of such a device has a callback.
pub fn optional_ops<T: Driver>(provider: &Provider) -> OptionalOps {
    let ops = table::<T>(provider);
    let mut found = OptionalOps::empty();
    if ops.alloc_mw.is_some() || ops.dealloc_mw.is_some() || ops.size_ib_mw != 0 {
        found |= OptionalOps::MEMORY_WINDOWS;
    }
    if ops.resize_user_cq.is_some() {
        found |= OptionalOps::RESIZE_CQ;
    }
    found
}

/// The maximum number of requests in a list.
const LIST: usize = 4;

/// Passes `f` a list of receive requests with these numbers, at most four, each with a buffer of
/// one element of no octets.
pub fn post_recv<R>(ids: &[u64], f: impl FnOnce(&mut RecvWrs<'_>) -> R) -> R {
    let mut sge = bindings::ib_sge::default();
    let mut list = <[bindings::ib_recv_wr; LIST]>::default();
    let mut next = core::ptr::null_mut();
    for (wr, id) in list.iter_mut().zip(ids).rev() {
        wr.next = next;
        wr.__bindgen_anon_1.wr_id = *id;
        (wr.sg_list, wr.num_sge) = (&mut sge, 1);
        next = wr;
    }
    // SAFETY: `next` is null, or a list that ends and outlives its use.
    f(&mut unsafe { RecvWrs::new(next) })
}

/// Passes `f` a list of Sends with these numbers, at most four, each of no octets and signaled.
pub fn post_send<T: Driver, R>(ids: &[u64], f: impl FnOnce(&mut SendWrs<'_, T::Mr>) -> R) -> R {
    let mut list = <[bindings::ib_send_wr; LIST]>::default();
    let mut next = core::ptr::null_mut();
    for (wr, id) in list.iter_mut().zip(ids).rev() {
        wr.next = next;
        wr.__bindgen_anon_1.wr_id = *id;
        wr.opcode = bindings::ib_wr_opcode_IB_WR_SEND;
        // CAST: A small flag.
        wr.send_flags = bindings::ib_send_flags_IB_SEND_SIGNALED as c_int;
        next = wr;
    }
    // SAFETY: `next` is null, or a list that ends and outlives its use.
    f(&mut unsafe { SendWrs::new(next) })
}

/// Passes `f` a signaled Send with Immediate of `len` octets, whose buffer has no valid address.
pub fn post_send_immediate<T: Driver, R>(
    id: u64,
    imm: [u8; 4],
    len: u32,
    flags: SendFlags,
    f: impl FnOnce(&mut SendWrs<'_, T::Mr>) -> R,
) -> R {
    let mut sge = bindings::ib_sge {
        length: len,
        ..Default::default()
    };
    let mut wr = bindings::ib_send_wr {
        opcode: bindings::ib_wr_opcode_IB_WR_SEND_WITH_IMM,
        // CAST: Small flags.
        send_flags: (SendFlags::SIGNALED | flags).bits() as c_int,
        sg_list: &mut sge,
        num_sge: 1,
        ..Default::default()
    };
    wr.__bindgen_anon_1.wr_id = id;
    wr.ex.imm_data = u32::from_ne_bytes(imm);
    // SAFETY: The list has one request; it and its element outlive the call.
    f(&mut unsafe { SendWrs::new(&wr) })
}

/// A masked atomic operation of a kernel consumer.
pub struct MaskedAtomic {
    /// The number of the request.
    pub id: u64,
    /// The operation.
    pub op: MaskedOp,
    /// The address of the peer's word, and the key of its region.
    pub target: (u64, u32),
    /// The address that receives the original word, and the key of that region.
    pub sink: (u64, u32),
}

/// The operations that have masks.
#[derive(Clone, Copy)]
pub enum MaskedOp {
    /// `IB_WR_MASKED_ATOMIC_CMP_AND_SWP`.
    CompareSwap {
        /// The value to compare with.
        compare: u64,
        /// Which bits are compared.
        compare_mask: u64,
        /// The value to swap in.
        swap: u64,
        /// Which bits are swapped.
        swap_mask: u64,
    },
    /// `IB_WR_MASKED_ATOMIC_FETCH_AND_ADD`.
    FetchAdd {
        /// What is added.
        add: u64,
        /// The most significant bit of each field.
        boundary: u64,
    },
}

/// A queue pair of the driver, in the form that a kernel consumer passes to `ib_post_send()`.
///
/// # Invariants
///
/// `qp` is filled, has no user object, and names `device`, whose operations are those of `T`.
pub struct ConsumerQp<T: Driver> {
    qp: KBox<MaybeUninit<QpObject<T>>>,
    #[expect(dead_code, reason = "`qp` names it")]
    device: KBox<MaybeUninit<bindings::ib_device>>,
}

impl<T: Driver> ConsumerQp<T> {
    /// Creates it.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn new(data: Arc<T::Qp>) -> Result<Self> {
        let driver_part = DriverPart {
            data,
            link: QpLink::dead()?,
            mappings: Mappings::new(),
        };
        let mut device = KBox::<bindings::ib_device>::new_uninit(GFP_KERNEL | __GFP_ZERO)?;
        let mut qp = KBox::<QpObject<T>>::new_uninit(GFP_KERNEL | __GFP_ZERO)?;
        let ib_device = device.as_mut_ptr();
        let ib_qp = qp.as_mut_ptr().cast::<bindings::ib_qp>();
        // SAFETY: The field is inside the allocation that `ib_device` points to.
        let ops = unsafe { &raw mut (*ib_device).ops };
        // SAFETY: The field is writable and aligned, and nothing else uses it.
        unsafe { ops.write(table::<T>(&PROVIDER)) };
        // SAFETY: `ib_qp` is the head of a larger structure; the overwritten pointer was null.
        unsafe { (*ib_qp).device = ib_device };
        // SAFETY: The allocation has the size that `fill` requires, and its driver part, all
        // zeroes, holds nothing.
        unsafe { QpObject::<T>::fill(ib_qp, driver_part) };
        // INVARIANT: As just written; all else is zero, including the pointer to a user object.
        Ok(Self { qp, device })
    }

    /// Posts requests, at most four, as one list.
    ///
    /// # Errors
    ///
    /// The error of `ib_post_send()`.
    pub fn post_send(&self, list: &[MaskedAtomic]) -> Result {
        self.try_post_send(list).map_err(|(error, _)| error)
    }

    /// Does the same.
    ///
    /// # Errors
    ///
    /// The error of `ib_post_send()`, and the number of the request that it names as the bad one.
    pub fn try_post_send(&self, list: &[MaskedAtomic]) -> Result<(), (Error, u64)> {
        let mut sges = <[bindings::ib_sge; LIST]>::default();
        let mut wrs = <[bindings::ib_atomic_wr; LIST]>::default();
        let mut next: *mut bindings::ib_send_wr = core::ptr::null_mut();
        for ((wr, sge), asked) in wrs.iter_mut().zip(&mut sges).zip(list).rev() {
            (sge.addr, sge.lkey) = asked.sink;
            sge.length = 8;
            wr.wr.__bindgen_anon_1.wr_id = asked.id;
            (wr.wr.next, wr.wr.sg_list, wr.wr.num_sge) = (next, sge, 1);
            // CAST: A small flag.
            wr.wr.send_flags = bindings::ib_send_flags_IB_SEND_SIGNALED as c_int;
            (wr.remote_addr, wr.rkey) = asked.target;
            match asked.op {
                MaskedOp::CompareSwap {
                    compare,
                    compare_mask,
                    swap,
                    swap_mask,
                } => {
                    wr.wr.opcode = bindings::ib_wr_opcode_IB_WR_MASKED_ATOMIC_CMP_AND_SWP;
                    (wr.compare_add, wr.compare_add_mask) = (compare, compare_mask);
                    (wr.swap, wr.swap_mask) = (swap, swap_mask);
                }
                MaskedOp::FetchAdd { add, boundary } => {
                    wr.wr.opcode = bindings::ib_wr_opcode_IB_WR_MASKED_ATOMIC_FETCH_AND_ADD;
                    (wr.compare_add, wr.compare_add_mask) = (add, boundary);
                }
            }
            // The request is the first member of the larger structure.
            next = core::ptr::from_mut(wr).cast();
        }
        let mut bad = core::ptr::null();
        let qp = self.qp.as_ptr().cast_mut().cast();
        // SAFETY: By the type invariant this is a queue pair of a kernel consumer. The list ends,
        // each request is embedded in the structure that its operation has, and all of it outlives
        // the call.
        to_result(unsafe { riwarp_helper_ib_post_send(qp, next, &mut bad) }).map_err(|error| {
            // SAFETY: With an error, `bad` is a request of the list; the union is plain data.
            (error, unsafe { (*bad).__bindgen_anon_1.wr_id })
        })
    }

    /// Posts receives with these numbers, at most four, as one list.
    ///
    /// # Errors
    ///
    /// The error of `ib_post_recv()`, and the number of the request that it names as the bad one.
    pub fn try_post_recv(&self, ids: &[u64]) -> Result<(), (Error, u64)> {
        let mut list = <[bindings::ib_recv_wr; LIST]>::default();
        let mut next: *const bindings::ib_recv_wr = core::ptr::null();
        for (wr, id) in list.iter_mut().zip(ids).rev() {
            wr.next = next.cast_mut();
            wr.__bindgen_anon_1.wr_id = *id;
            next = wr;
        }
        let mut bad = core::ptr::null();
        let qp: *mut bindings::ib_qp = self.qp.as_ptr().cast_mut().cast();
        // SAFETY: By the type invariant `qp` is filled and names a device.
        let Some(post) = (unsafe { (*(*qp).device).ops.post_recv }) else {
            return Err((EOPNOTSUPP, 0));
        };
        // SAFETY: By the type invariant this is a queue pair of a kernel consumer, whose device has
        // this operation. The list ends, and outlives the call.
        to_result(unsafe { post(qp, next, &mut bad) }).map_err(|error| {
            // SAFETY: With an error, `bad` is a request of the list; the union is plain data.
            (error, unsafe { (*bad).__bindgen_anon_1.wr_id })
        })
    }
}

impl<T: Driver> Drop for ConsumerQp<T> {
    fn drop(&mut self) {
        // SAFETY: By the type invariant it is filled; nothing uses it any more.
        drop(unsafe { QpObject::<T>::empty(self.qp.as_mut_ptr().cast()) });
    }
}

/// Polls one completion from `f` and returns its number, status and length; [`None`] if it has
/// none.
pub fn poll_one(f: impl FnOnce(&mut WcSink<'_>)) -> Option<(u64, Option<WcStatus>, u32)> {
    poll_raw(f).map(|raw| (id_of(&raw), WcStatus::from_raw(raw.status), raw.byte_len))
}

/// Polls one completion from `f` and returns its number, and its operation if it succeeded.
pub fn poll_done(f: impl FnOnce(&mut WcSink<'_>)) -> Option<(u64, Option<WcOpcode>)> {
    poll_raw(f).map(|raw| {
        let done = WcStatus::from_raw(raw.status) == Some(WcStatus::Success);
        let opcode = WcOpcode::from_raw(raw.opcode).filter(|_| done);
        (id_of(&raw), opcode)
    })
}

fn id_of(raw: &bindings::ib_wc) -> u64 {
    // SAFETY: The union is 64 bits of plain data.
    unsafe { raw.__bindgen_anon_1.wr_id }
}

fn poll_raw(f: impl FnOnce(&mut WcSink<'_>)) -> Option<bindings::ib_wc> {
    let mut raw = bindings::ib_wc::default();
    // SAFETY: One structure, written only through the sink while it lives.
    let mut sink = unsafe { WcSink::new(&mut raw, 1) };
    f(&mut sink);
    (sink.used() != 0).then_some(raw)
}

/// A kernel consumer's handler of completion notifications.
pub trait CqHandler: Send + Sync {
    /// Handles the notification for an armed queue.
    ///
    /// Context: any but hard interrupt; bottom halves are off.
    fn completed(&self);
}

/// A completion queue of a kernel consumer as `ib_core` keeps it, which calls a handler.
pub struct CqConsumer<H: CqHandler> {
    link: CqLink,
    _cq: KBox<bindings::ib_cq>,
    _handler: Arc<H>,
}

impl<H: CqHandler> CqConsumer<H> {
    /// Creates it.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn try_new(handler: Arc<H>) -> Result<Self> {
        let cq = bindings::ib_cq {
            comp_handler: Some(completed::<H>),
            cq_context: Arc::as_ptr(&handler).cast_mut().cast(),
            ..Default::default()
        };
        let mut cq = KBox::new(cq, GFP_KERNEL)?;
        // SAFETY: The drop of `Self` closes the link before it frees the structure.
        let link = unsafe { CqLink::new(NonNull::from(&mut *cq), None) }?;
        Ok(Self {
            link,
            _cq: cq,
            _handler: handler,
        })
    }

    /// Returns the link for the driver's queue.
    pub fn link(&self) -> CqLink {
        self.link.clone()
    }

    /// Frees the driver's queue as `ib_free_cq()` does, and calls `late` when that has cancelled
    /// the work item that polls the queue.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn free<T: Driver>(self, data: Arc<T::Cq>, late: impl FnOnce()) -> Result {
        let driver_part = DriverPart {
            data,
            link: self.link.clone(),
            mappings: Mappings::new(),
        };
        let ops = table::<T>(&PROVIDER);
        let mut object = KBox::<CqObject<T>>::new_uninit(GFP_KERNEL | __GFP_ZERO)?;
        let cq = object.as_mut_ptr().cast::<bindings::ib_cq>();
        // SAFETY: The allocation has the size that `fill` requires, and its driver part, all
        // zeroes, holds nothing.
        unsafe { CqObject::<T>::fill(cq, driver_part) };
        if let Some(pre_destroy) = ops.pre_destroy_cq {
            // SAFETY: The queue was just filled.
            unsafe { pre_destroy(cq) };
        }
        late();
        match (ops.post_destroy_cq, ops.destroy_cq) {
            // SAFETY: The queue was filled, `pre_destroy_cq` was called, and nothing uses it.
            (Some(post_destroy), _) => unsafe { post_destroy(cq) },
            (None, Some(destroy)) => {
                // SAFETY: The queue was filled, and nothing uses it.
                unsafe { destroy(cq, core::ptr::null_mut()) };
            }
            (None, None) => {}
        }
        Ok(())
    }
}

impl<H: CqHandler> Drop for CqConsumer<H> {
    fn drop(&mut self) {
        self.link.close();
    }
}

/// Calls the handler of a consumer.
///
/// # Safety
///
/// `context` must be that of a [`CqConsumer<H>`], whose link is open during the call.
unsafe extern "C" fn completed<H: CqHandler>(_cq: *mut bindings::ib_cq, context: *mut c_void) {
    // SAFETY: A reference requires valid memory that is not written to: the caller guarantees that
    // `context` belongs to a consumer whose link is open, and the consumer keeps the handler until
    // the link is closed.
    unsafe { &*context.cast::<H>() }.completed();
}

/// A handler that polls its queue until that is being destroyed, and a little longer.
struct PollingHandler {
    link: CqLink,
    poll: PollCq,
    is_filled: unsafe fn(*mut bindings::ib_cq) -> bool,
    /// It runs.
    began: Atomic<bool>,
    /// The queue had its driver part before each poll.
    filled: Atomic<bool>,
}

/// The type of `ops.poll_cq`.
type PollCq = unsafe extern "C" fn(*mut bindings::ib_cq, c_int, *mut bindings::ib_wc) -> c_int;

/// The time after which a test gives up.
const LONG: Delta = Delta::from_secs(10);

impl PollingHandler {
    /// Polls as long as `more`.
    ///
    /// # Safety
    ///
    /// `cq` must be a queue that was filled, for which this handler was called.
    unsafe fn poll_while(&self, cq: *mut bindings::ib_cq, more: impl Fn(Delta) -> bool) {
        let begin = Instant::<Monotonic>::now();
        while more(begin.elapsed()) {
            // SAFETY: The caller guarantees that `cq` was filled.
            if !unsafe { (self.is_filled)(cq) } {
                self.filled.store(false, Relaxed);
                return;
            }
            let mut wc = bindings::ib_wc::default();
            // SAFETY: The queue is filled, as just seen, and there is room for one completion.
            unsafe { (self.poll)(cq, 1, &mut wc) };
        }
    }
}

/// Calls a [`PollingHandler`].
///
/// # Safety
///
/// `cq` must be a queue that was filled, whose context is the [`PollingHandler`].
unsafe extern "C" fn poll_until_closed(cq: *mut bindings::ib_cq, context: *mut c_void) {
    // SAFETY: A reference requires valid memory that is not written to: the caller guarantees that
    // `context` is a `PollingHandler`, which lives as long as the queue.
    let poller = unsafe { &*context.cast::<PollingHandler>() };
    poller.began.store(true, Relaxed);
    // SAFETY: The caller guarantees that `cq` was filled and calls this handler.
    unsafe { poller.poll_while(cq, |elapsed| poller.link.is_open() && elapsed < LONG) };
    // SAFETY: The caller guarantees that `cq` was filled and calls this handler.
    unsafe { poller.poll_while(cq, |elapsed| elapsed < Delta::from_millis(5)) };
}

/// Destroys a queue as `ib_destroy_cq()` does, while its handler polls it on another CPU. Returns
/// whether each poll found the queue's driver part.
///
/// # Errors
///
/// `ENOMEM`, or `ETIMEDOUT` if the handler does not run in time.
pub fn destroy_polled<T: Driver>(data: Arc<T::Cq>) -> Result<bool> {
    let queue = OwnedQueue::for_tests()?;
    let ops = table::<T>(&PROVIDER);
    let (Some(poll), Some(destroy)) = (ops.poll_cq, ops.destroy_cq) else {
        return Err(EINVAL);
    };
    let mut object = KBox::<CqObject<T>>::new_uninit(GFP_KERNEL | __GFP_ZERO)?;
    let cq = object.as_mut_ptr().cast::<bindings::ib_cq>();
    // SAFETY: The structure lives until the end of this function; it is destroyed before, which
    // closes the link, or the link is closed by the error path below.
    let link = unsafe { CqLink::new(NonNull::new(cq).ok_or(EINVAL)?, None) }?;
    let poller = PollingHandler {
        link: link.clone(),
        poll,
        is_filled: CqObject::<T>::is_filled,
        began: Atomic::new(false),
        filled: Atomic::new(true),
    };
    let poller = Arc::new(poller, GFP_KERNEL).inspect_err(|_| link.close())?;
    // SAFETY: A field of the allocation, which nothing else uses yet.
    unsafe { (*cq).comp_handler = Some(poll_until_closed) };
    // SAFETY: A field of the allocation, which nothing else uses yet.
    unsafe { (*cq).cq_context = Arc::as_ptr(&poller).cast_mut().cast() };
    let driver_part = DriverPart {
        data,
        link: link.clone(),
        mappings: Mappings::new(),
    };
    // SAFETY: The allocation has the size that `fill` requires, and its driver part, all zeroes,
    // holds nothing.
    unsafe { CqObject::<T>::fill(cq, driver_part) };
    let began = queue
        .try_spawn(move || link.notify())
        .and_then(|()| eventually(|| poller.began.load(Relaxed)));
    // SAFETY: The queue was filled, and only its handler uses it.
    unsafe { destroy(cq, core::ptr::null_mut()) };
    queue.flush();
    began.map(|()| poller.filled.load(Relaxed))
}

/// A region for fast registration as `ib_core` keeps it.
///
/// # Invariants
///
/// `base` is at offset 0.
#[repr(C)]
struct KernelMr {
    base: bindings::ib_mr,
    pages: Arc<KernelPages>,
}

/// A scatter list of a kernel consumer, mapped for a device as `ib_core` does for this driver: with
/// kernel virtual addresses.
pub struct SgList {
    mr: KBox<KernelMr>,
    list: KVVec<bindings::scatterlist>,
    offset: c_uint,
}

impl SgList {
    /// Creates a list of these pieces, starting at `offset` in the first, for a region with that
    /// capacity and page size.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn try_new(
        pages: &Arc<KernelPages>,
        page_size: u32,
        pieces: impl ExactSizeIterator<Item = (*const u8, u32)>,
        offset: u32,
    ) -> Result<Self> {
        let base = bindings::ib_mr {
            page_size,
            ..Default::default()
        };
        let pages = pages.clone();
        let mut list = KVVec::with_capacity(pieces.len(), GFP_KERNEL)?;
        for (start, len) in pieces {
            let entry = bindings::scatterlist {
                dma_address: start.expose_provenance() as u64, // CAST: as many bits.
                length: len,
                #[cfg(CONFIG_NEED_SG_DMA_LENGTH)]
                dma_length: len,
                ..Default::default()
            };
            list.push(entry, GFP_KERNEL)?;
        }
        if let Some(last) = list.last_mut() {
            // SG_END.
            last.page_link |= 2;
        }
        Ok(Self {
            mr: KBox::new(KernelMr { base, pages }, GFP_KERNEL)?,
            list,
            offset,
        })
    }

    /// Returns the list as the argument of `map_sg`.
    pub fn view(&mut self) -> MapSg<'_> {
        let mr = &raw mut *self.mr;
        MapSg {
            // INVARIANT: `base` is at offset 0.
            mr: NonNull::from(&mut *self.mr).cast(),
            list: self.list.as_mut_ptr(),
            // CAST: Tests have short lists.
            entries: self.list.len() as c_int,
            offset: &mut self.offset,
            // SAFETY: The region is borrowed while the result lives, and nothing writes to the
            // reference to the pages.
            pages: unsafe { &(*mr).pages },
            set_page,
        }
    }

    /// Returns the offset in the first piece that was not taken completely.
    pub fn offset(&self) -> u32 {
        self.offset
    }
}

/// Adds one page to the region, for `ib_sg_to_pages()`.
///
/// # Safety
///
/// `mr` must be the head of a valid [`KernelMr`] that is not written to during the call.
unsafe extern "C" fn set_page(mr: *mut bindings::ib_mr, page: u64) -> c_int {
    from_result(|| {
        // SAFETY: A reference requires valid memory that is not written to: the caller guarantees
        // that `mr` is the head of such a `KernelMr`.
        let mr = unsafe { &*mr.cast::<KernelMr>() };
        mr.pages.push(page, mr.base.page_size.into())?;
        Ok(0)
    })
}

extern "C" {
    fn riwarp_helper_ib_post_send(
        qp: *mut bindings::ib_qp,
        list: *const bindings::ib_send_wr,
        bad: *mut *const bindings::ib_send_wr,
    ) -> c_int;
    fn riwarp_helper_irqs_disabled() -> bool;
    fn riwarp_helper_local_irq_restore(flags: c_ulong);
    fn riwarp_helper_local_irq_save() -> c_ulong;
}
