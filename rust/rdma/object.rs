// SPDX-License-Identifier: GPL-2.0

//! The objects that consumers hold, and the links from the driver's objects back to them.
//!
//! `ib_core` allocates and frees the C structures (memory regions: [`super::ops`]) and asks the
//! driver only for their size. So each can be the head of a larger structure, [`Object`], whose
//! driver part holds one reference to the driver's object. The `create_*` trampoline writes the
//! driver part after the driver succeeded; the `destroy_*` trampoline empties it.
//!
//! A *link* ([`CqLink`], [`QpLink`], [`SrqLink`]) lets the driver report events to the consumer. It
//! is reference counted and may outlive the C structure. The `destroy_*` trampolines close a link
//! and wait for every report under way before they empty the driver part, since a handler may poll
//! its queue or post to it. So no handler of a consumer runs after `ib_destroy_*` returned. A
//! closed link does nothing.
//!
//! Context: a report on a link may be made from any context but hard interrupt; handlers run with
//! bottom halves or interrupts disabled.
//!
//! C header: `include/rdma/ib_verbs.h`.

use super::device::IbDeviceName;
use super::mmap::Mappings;
use super::ops::Driver;
use super::types::SrqEvent;
use crate::bindings;
use crate::sync::BhRevocable;
use crate::sync::Next;
use crate::sync::SerialTask;
use core::mem::offset_of;
use core::ptr::addr_of_mut;
use core::ptr::NonNull;
use kernel::cpu::CpuId;
use kernel::ffi::c_void;
use kernel::prelude::*;
use kernel::sync::new_mutex;
use kernel::sync::Arc;
use kernel::sync::ArcBorrow;
use kernel::sync::Mutex;

mod qp_link;
#[cfg(CONFIG_KUNIT = "y")]
mod tests;
mod vector;

pub use qp_link::QpLink;
use vector::CpuCall;

/// A C structure, followed by the driver part.
///
/// # Invariants
///
/// `base` is at offset 0. Between a successful `create_*` and `destroy_*`, `driver_part` is `Some`.
#[repr(C)]
pub(super) struct Object<B, D, L = ()> {
    base: B,
    driver_part: Option<DriverPart<D, L>>,
}

/// The driver part of a C structure.
pub(super) struct DriverPart<D, L> {
    /// The driver's object.
    pub(super) data: Arc<D>,
    /// The link to the consumer, shared with the driver's object.
    pub(super) link: L,
    /// Memory shared with the process when the object was created.
    #[expect(dead_code, reason = "it is kept to be dropped with the object")]
    pub(super) mappings: Mappings,
}

impl<B, D, L> Object<B, D, L> {
    /// The size that `ib_core` allocates.
    pub(super) const SIZE: usize = {
        // INVARIANT: `base` is at offset 0.
        assert!(offset_of!(Self, base) == 0);
        core::mem::size_of::<Self>()
    };

    /// Fills in the driver part of a new structure.
    ///
    /// # Safety
    ///
    /// `base` must be the head of an allocation of [`Self::SIZE`] octets whose driver part holds
    /// nothing.
    pub(super) unsafe fn fill(base: *mut B, driver_part: DriverPart<D, L>) {
        let this = base.cast::<Self>();
        // SAFETY: `write` requires valid memory: the caller guarantees that `base` is the head of
        // an allocation of the size of `Self`, and that the driver part holds nothing that the
        // write would leak.
        // INVARIANT: The driver part is `Some` from here on.
        unsafe { addr_of_mut!((*this).driver_part).write(Some(driver_part)) };
    }

    /// Returns the driver part of a live structure.
    ///
    /// # Safety
    ///
    /// `base` must have been filled and not emptied since, and must stay so for `'a`.
    pub(super) unsafe fn driver_part<'a>(base: *mut B) -> &'a DriverPart<D, L> {
        let this = base.cast::<Self>();
        // SAFETY: A reference requires initialised memory that is not written to: the caller
        // guarantees that `base` was filled and that it is not emptied during `'a`; only `empty`
        // writes to a filled driver part.
        let driver_part: &'a Option<DriverPart<D, L>> =
            unsafe { &*addr_of_mut!((*this).driver_part) };
        // SAFETY: It is `Some` by the type's invariant.
        unsafe { driver_part.as_ref().unwrap_unchecked() }
    }

    /// Returns the driver's object of a live structure.
    ///
    /// # Safety
    ///
    /// As for [`Self::driver_part`].
    pub(super) unsafe fn data<'a>(base: *mut B) -> ArcBorrow<'a, D>
    where
        D: 'a,
        L: 'a,
    {
        // SAFETY: `arc` requires that `base` was filled and is not emptied during `'a`: the caller
        // guarantees that.
        unsafe { Self::arc(base) }.as_arc_borrow()
    }

    /// As [`Self::data`], for callers that may clone the reference.
    ///
    /// # Safety
    ///
    /// As for [`Self::driver_part`].
    #[inline]
    pub(super) unsafe fn arc<'a>(base: *mut B) -> &'a Arc<D>
    where
        D: 'a,
        L: 'a,
    {
        // SAFETY: `driver_part` requires that `base` was filled and is not emptied during `'a`: the
        // caller guarantees that.
        &unsafe { Self::driver_part(base) }.data
    }

    /// Returns whether the structure has its driver part.
    ///
    /// # Safety
    ///
    /// `base` must have been filled.
    #[cfg(CONFIG_KUNIT = "y")]
    pub(super) unsafe fn is_filled(base: *mut B) -> bool {
        let this = base.cast::<Self>();
        // SAFETY: The field is inside the allocation and initialised: the caller guarantees that it
        // was filled.
        unsafe { &*addr_of_mut!((*this).driver_part) }.is_some()
    }

    /// Takes the driver part out of the structure.
    ///
    /// # Safety
    ///
    /// `base` must have been filled and not emptied since, and nothing may use the structure any
    /// more.
    pub(super) unsafe fn empty(base: *mut B) -> DriverPart<D, L> {
        let this = base.cast::<Self>();
        // SAFETY: The field is inside the allocation, which the caller guarantees was filled.
        let driver_part = unsafe { addr_of_mut!((*this).driver_part) };
        // SAFETY: A `&mut` requires initialised memory that nothing else uses: the caller
        // guarantees that `base` was filled, and that nothing uses the structure any more.
        let driver_part = unsafe { &mut *driver_part }.take();
        // SAFETY: It was `Some` by the type's invariant.
        unsafe { driver_part.unwrap_unchecked() }
    }
}

/// `struct ib_ucontext` followed by the driver part.
pub(super) type UContextObject<T> = Object<bindings::ib_ucontext, <T as Driver>::UContext>;
/// `struct ib_pd` followed by the driver part.
pub(super) type PdObject<T> = Object<bindings::ib_pd, <T as Driver>::Pd>;
/// `struct ib_cq` followed by the driver part.
pub(super) type CqObject<T> = Object<bindings::ib_cq, <T as Driver>::Cq, CqLink>;
/// `struct ib_qp` followed by the driver part.
pub(super) type QpObject<T> = Object<bindings::ib_qp, <T as Driver>::Qp, QpLink>;
/// `struct ib_srq` followed by the driver part.
pub(super) type SrqObject<T> = Object<bindings::ib_srq, <T as Driver>::Srq, SrqLink>;
/// `struct ib_mw` followed by the driver part.
pub(super) type MwObject<T> = Object<bindings::ib_mw, <T as Driver>::Mw>;
/// `struct ib_mr` followed by the driver part; the only structure that this crate allocates itself.
pub(super) type MrObject<M> =
    Object<bindings::ib_mr, M, Option<Arc<crate::rdma::mem::mem_map::KernelPages>>>;

/// A pointer to a C object, used only until it is revoked.
struct ObjectPtr<B>(NonNull<B>);

// SAFETY: The pointer is used only under a guard, and only for calls that `ib_core` allows from any
// context and thread.
unsafe impl<B> Send for ObjectPtr<B> {}
// SAFETY: Several threads may make these calls at once.
unsafe impl<B> Sync for ObjectPtr<B> {}

/// The identity of a queue pair in completions.
///
/// This is only a number: it does not say whether the queue pair still exists. A driver that keeps
/// completions of a destroyed queue pair for a kernel consumer must remove them from the queue
/// before `destroy_qp` returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpId(pub(super) usize);

#[cfg(CONFIG_KUNIT = "y")]
impl QpId {
    /// Identifies no queue pair, for tests whose completions no consumer polls.
    pub const NONE: Self = Self(0);
    /// A second identity without a queue pair.
    pub const OTHER: Self = Self(1);
}

/// Reports from the driver's completion queue to its consumer.
#[derive(Clone)]
pub struct CqLink(Arc<CqLinkInner>);

#[pin_data]
struct CqLinkInner {
    object: BhRevocable<ObjectPtr<bindings::ib_cq>>,
    task: SerialTask<()>,
    /// The CPU of the completion vector, where the handler of a kernel consumer runs.
    vector: Option<CpuId>,
    /// The call to that CPU.
    call: CpuCall,
    #[pin]
    shared: QueueMappings,
}

impl CqLinkInner {
    /// Calls the handler on the current CPU.
    fn notify(&self) {
        // The closure never yields, so `run` needs no follow-up.
        let _ = self.task.run(|()| {
            if let Some(cq) = self.object.try_access() {
                let cq = cq.0.as_ptr();
                // SAFETY: The field of a valid queue: the caller of `CqLink::new` keeps `cq` valid
                // until it is revoked, and the guard delays that.
                let handler = unsafe { (*cq).comp_handler };
                // SAFETY: The field of a valid queue: the caller of `CqLink::new` keeps `cq` valid
                // until it is revoked, and the guard delays that. The context was set before the
                // queue could be armed.
                let context = unsafe { (*cq).cq_context };
                if let Some(handler) = handler {
                    // SAFETY: The handler is the consumer's own for this queue; `ib_core` allows
                    // the call in any context, and the task serialises the calls.
                    unsafe { handler(cq, context) };
                }
            }
            Next::Done
        });
    }

    /// Runs on the CPU that [`CpuCall::ask`] names.
    ///
    /// Context: hard interrupt.
    ///
    /// # Safety
    ///
    /// `info` must be a `CqLinkInner` that called [`CpuCall::ask`] with this function.
    unsafe extern "C" fn called(info: *mut c_void) {
        let this = info.cast::<Self>();
        // SAFETY: The caller guarantees that `info` is a `CqLinkInner`; it stays valid until `end`,
        // as `CpuCall::ask` requires.
        unsafe { (*this).call.begin() };
        // SAFETY: The caller guarantees that `info` is a `CqLinkInner`; it stays valid until `end`,
        // as `CpuCall::ask` requires.
        unsafe { (*this).notify() };
        // SAFETY: The caller guarantees that `info` is a `CqLinkInner`; it stays valid until `end`,
        // as `CpuCall::ask` requires, and nothing uses it afterwards.
        unsafe { (*this).call.end() };
    }
}

/// Memory shared with a process by the call that made a queue, or by the one that resized it last.
#[pin_data]
struct QueueMappings {
    #[pin]
    mappings: Mutex<Mappings>,
}

impl QueueMappings {
    fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            mappings <- new_mutex!(Mappings::new(), "QueueMappings::mappings"),
        })
    }

    /// Runs `f`, one call at a time; memory that `f` shares replaces what an earlier call shared.
    fn replace<R>(&self, f: impl FnOnce(&mut Mappings) -> Result<R>) -> Result<R> {
        let mut kept = self.mappings.lock();
        let mut mappings = Mappings::new();
        let result = f(&mut mappings)?;
        if !mappings.is_empty() {
            *kept = mappings;
        }
        Ok(result)
    }

    /// Withdraws the memory, because the context of the process may go before the last link does.
    fn close(&self) {
        *self.mappings.lock() = Mappings::new();
    }
}

impl CqLink {
    /// Creates the link of a completion queue that is being created.
    ///
    /// The handler runs on the CPU `vector`, if it is given.
    ///
    /// # Safety
    ///
    /// `cq` must stay valid until [`Self::close`] returned, and the caller must call that.
    pub(super) unsafe fn new(cq: NonNull<bindings::ib_cq>, vector: Option<CpuId>) -> Result<Self> {
        let inner = Arc::pin_init(
            pin_init!(CqLinkInner {
                object: BhRevocable::new(ObjectPtr(cq)),
                task: SerialTask::new(()),
                vector,
                call: CpuCall::new(),
                shared <- QueueMappings::new(),
            }),
            GFP_KERNEL_ACCOUNT,
        )?;
        Ok(Self(inner))
    }

    /// Calls the consumer's completion handler.
    ///
    /// A kernel consumer's handler runs on the CPU of the queue's completion vector: at once if
    /// that is the current CPU, else from an interrupt there. With PREEMPT_RT it always runs on the
    /// current CPU, since handlers raise softirqs and take spin locks that sleep there, which an
    /// interrupt may not.
    ///
    /// Calls for one queue never overlap: if a call is under way, the handler runs once more after
    /// it. The handler may poll the queue and arm it again, so the caller must hold no lock that
    /// `poll_cq` or `req_notify_cq` take, and must not be inside a verb that a kernel consumer
    /// called.
    ///
    /// Context: any but hard interrupt.
    pub fn notify(&self) {
        match self.0.vector {
            Some(cpu)
                if cfg!(not(CONFIG_PREEMPT_RT)) && cpu.as_u32() != CpuId::current().as_u32() =>
            {
                self.notify_on(cpu)
            }
            _ => self.0.notify(),
        }
    }

    /// Calls the handler on `cpu`, or on the current CPU if `cpu` is not online.
    fn notify_on(&self, cpu: CpuId) {
        let asked = {
            let Some(_open) = self.0.object.try_access() else {
                return;
            };
            let info = NonNull::from(&*self.0).cast();
            // SAFETY: The guard shows that the pointer is not revoked, so `close`, which revokes it
            // and then waits for the call, has not passed `revoke`; the object keeps the link until
            // `close` returned. `CqLinkInner::called` calls `begin` first and `end` last.
            unsafe { self.0.call.ask(cpu, CqLinkInner::called, info) }
        };
        if asked.is_err() {
            self.0.notify();
        }
    }

    /// Reports to the consumer that the queue overran or failed (`IB_EVENT_CQ_ERR`).
    ///
    /// Context: any.
    pub fn error(&self) {
        let Some(cq) = self.0.object.try_access() else {
            return;
        };
        let cq = cq.0.as_ptr();
        // SAFETY: The fields of a valid queue: the caller of `new` keeps `cq` valid until it is
        // revoked, and the guard delays that.
        let (handler, context, device) =
            unsafe { ((*cq).event_handler, (*cq).cq_context, (*cq).device) };
        let mut event = bindings::ib_event {
            device,
            event: bindings::ib_event_type_IB_EVENT_CQ_ERR,
            ..Default::default()
        };
        event.element.cq = cq;
        if let Some(handler) = handler {
            // SAFETY: The handler is the consumer's own for this queue; it does not keep the event.
            unsafe { handler(&mut event, context) };
        }
    }

    /// Returns the current name of the queue's device; an empty one once the link is closed.
    ///
    /// Context: any.
    pub fn device_name(&self) -> IbDeviceName {
        let Some(cq) = self.0.object.try_access() else {
            return IbDeviceName::NONE;
        };
        // SAFETY: The field of a valid queue: the caller of `new` keeps `cq` valid until it is
        // revoked, and the guard delays that.
        let device = unsafe { (*cq.0.as_ptr()).device };
        // SAFETY: `read` requires a device that is not freed: `ib_core` keeps it as long as it has
        // queues.
        unsafe { IbDeviceName::read(device) }
    }

    /// Makes or resizes the queue, one call at a time; memory that `f` shares replaces what an
    /// earlier call shared.
    ///
    /// Context: process.
    pub(super) fn share<R>(&self, f: impl FnOnce(&mut Mappings) -> Result<R>) -> Result<R> {
        self.0.shared.replace(f)
    }

    /// Closes the link; no handler runs once this returned.
    pub(super) fn close(&self) {
        self.0.object.revoke();
        self.0.call.wait();
        self.0.shared.close();
    }
}

/// Reports from the driver's shared receive queue to its consumer.
#[derive(Clone)]
pub struct SrqLink(Arc<SrqLinkInner>);

#[pin_data]
struct SrqLinkInner {
    object: BhRevocable<ObjectPtr<bindings::ib_srq>>,
    #[pin]
    shared: QueueMappings,
}

impl SrqLink {
    /// Creates the link of a shared receive queue that is being created.
    ///
    /// # Safety
    ///
    /// `srq` must stay valid until [`Self::close`] returned.
    pub(super) unsafe fn new(srq: NonNull<bindings::ib_srq>) -> Result<Self> {
        let inner = Arc::pin_init(
            pin_init!(SrqLinkInner {
                object: BhRevocable::new(ObjectPtr(srq)),
                shared <- QueueMappings::new(),
            }),
            GFP_KERNEL_ACCOUNT,
        )?;
        Ok(Self(inner))
    }

    /// Reports an event to the consumer.
    ///
    /// Context: any; the caller must hold no lock that `post_srq_recv` or `modify_srq` take.
    pub fn event(&self, event: SrqEvent) {
        let Some(srq) = self.0.object.try_access() else {
            return;
        };
        let srq = srq.0.as_ptr();
        // SAFETY: The fields of a valid queue: the caller of `new` keeps `srq` valid until it is
        // revoked, and the guard delays that.
        let (handler, context, device) =
            unsafe { ((*srq).event_handler, (*srq).srq_context, (*srq).device) };
        let mut event = bindings::ib_event {
            device,
            event: event.to_raw(),
            ..Default::default()
        };
        event.element.srq = srq;
        if let Some(handler) = handler {
            // SAFETY: The handler is the consumer's own for this queue; it does not keep the event.
            unsafe { handler(&mut event, context) };
        }
    }

    /// Makes or modifies the queue, one call at a time; memory that `f` shares replaces what an
    /// earlier call shared.
    ///
    /// Context: process.
    pub(super) fn share<R>(&self, f: impl FnOnce(&mut Mappings) -> Result<R>) -> Result<R> {
        self.0.shared.replace(f)
    }

    /// Closes the link; no handler runs once this returned.
    pub(super) fn close(&self) {
        self.0.object.revoke();
        self.0.shared.close();
    }
}
