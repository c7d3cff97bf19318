// SPDX-License-Identifier: GPL-2.0

//! The objects that consumers hold, and the links from the driver's objects back to them.
//!
//! `ib_core` makes and frees the C structures (memory regions: [`super::ops`]). It asks the driver
//! only for their size, so each can be the head of a larger structure: [`Object`], whose driver
//! part holds one reference to the driver's object. It is written by the trampoline of `create_*`
//! after the driver succeeded, and emptied by that of `destroy_*`.
//!
//! A *link* ([`CqLink`], [`QpLink`], [`SrqLink`]) is what the driver gets to report events to the
//! consumer. It is counted and may outlive the C structure: once that is being destroyed the link
//! is dead and does nothing. A link is closed by the trampolines, which wait for every report that
//! is under way; so no handler of a consumer runs after `ib_destroy_*` returned.
//!
//! Context: every report on a link may be called from any context but hard interrupt; handlers run
//! with bottom halves or interrupts disabled.
//!
//! C header: `include/rdma/ib_verbs.h`.

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

#[cfg(CONFIG_KUNIT = "y")]
mod dead;
mod qp_link;
mod vector;

pub use qp_link::QpLink;
use vector::CpuCall;

/// A C structure with our part behind it.
///
/// # Invariants
///
/// `base` is at offset 0. Between a successful `create_*` and `destroy_*`, `driver_part` is `Some`.
#[repr(C)]
pub(super) struct Object<B, D, L = ()> {
    base: B,
    driver_part: Option<DriverPart<D, L>>,
}

/// What we add to a C structure.
pub(super) struct DriverPart<D, L> {
    /// The driver's object.
    pub(super) data: Arc<D>,
    /// The link that the driver has as well.
    pub(super) link: L,
    /// The memory that was shared with the process when the object was made.
    #[expect(dead_code, reason = "it is kept to be dropped with the object")]
    pub(super) mappings: Mappings,
}

impl<B, D, L> Object<B, D, L> {
    /// How much `ib_core` has to allocate.
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
        // SAFETY: `write` wants a valid place: the caller says that `base` is the head of an
        // allocation of the size of `Self`, whose driver part holds nothing that would be lost.
        // INVARIANT: The driver part is `Some` from here on.
        unsafe { addr_of_mut!((*this).driver_part).write(Some(driver_part)) };
    }

    /// The driver part of a live structure.
    ///
    /// # Safety
    ///
    /// `base` must have been filled and not emptied since, and must stay so for `'a`.
    pub(super) unsafe fn driver_part<'a>(base: *mut B) -> &'a DriverPart<D, L> {
        let this = base.cast::<Self>();
        // SAFETY: A reference wants memory that is initialised and not written to: the caller says
        // that `base` was filled, and that it is not emptied for `'a`, which is all that writes to
        // the driver part.
        let driver_part: &'a Option<DriverPart<D, L>> =
            unsafe { &*addr_of_mut!((*this).driver_part) };
        // SAFETY: It is `Some` by the type's invariant.
        unsafe { driver_part.as_ref().unwrap_unchecked() }
    }

    /// The driver's object of a live structure.
    ///
    /// # Safety
    ///
    /// As for [`Self::driver_part`].
    pub(super) unsafe fn data<'a>(base: *mut B) -> ArcBorrow<'a, D>
    where
        D: 'a,
        L: 'a,
    {
        // SAFETY: `arc` wants what this function wants of its caller.
        unsafe { Self::arc(base) }.as_arc_borrow()
    }

    /// As [`Self::data`], for who may want to keep it.
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
        // SAFETY: `driver_part` wants what this function wants of its caller.
        &unsafe { Self::driver_part(base) }.data
    }

    /// Takes the driver part out.
    ///
    /// # Safety
    ///
    /// `base` must have been filled and not emptied since, and nothing may use the structure any
    /// more.
    pub(super) unsafe fn empty(base: *mut B) -> DriverPart<D, L> {
        let this = base.cast::<Self>();
        // SAFETY: The place of a field is inside of the allocation, which the caller says was
        // filled.
        let driver_part = unsafe { addr_of_mut!((*this).driver_part) };
        // SAFETY: A `&mut` wants initialised memory that nobody else uses: the caller says that
        // `base` was filled, and that nothing uses the structure any more.
        let driver_part = unsafe { &mut *driver_part }.take();
        // SAFETY: It was `Some` by the type's invariant.
        unsafe { driver_part.unwrap_unchecked() }
    }
}

/// `struct ib_ucontext` with our part behind it.
pub(super) type UContextObject<T> = Object<bindings::ib_ucontext, <T as Driver>::UContext>;
/// `struct ib_pd` with our part behind it.
pub(super) type PdObject<T> = Object<bindings::ib_pd, <T as Driver>::Pd>;
/// `struct ib_cq` with our part behind it.
pub(super) type CqObject<T> = Object<bindings::ib_cq, <T as Driver>::Cq, CqLink>;
/// `struct ib_qp` with our part behind it.
pub(super) type QpObject<T> = Object<bindings::ib_qp, <T as Driver>::Qp, QpLink>;
/// `struct ib_srq` with our part behind it.
pub(super) type SrqObject<T> = Object<bindings::ib_srq, <T as Driver>::Srq, SrqLink>;
/// `struct ib_mw` with our part behind it.
pub(super) type MwObject<T> = Object<bindings::ib_mw, <T as Driver>::Mw>;
/// `struct ib_mr` with our part behind it; the only one that we allocate ourselves.
pub(super) type MrObject<M> =
    Object<bindings::ib_mr, M, Option<Arc<crate::mm::mem_map::KernelPages>>>;

/// A pointer to a C object, used while it is not revoked.
struct ObjectPtr<B>(NonNull<B>);

// SAFETY: The pointer is only used under a guard, and only for calls that `ib_core` allows from any
// context and thread.
unsafe impl<B> Send for ObjectPtr<B> {}
// SAFETY: The calls that are made with it may be made by several threads at once.
unsafe impl<B> Sync for ObjectPtr<B> {}

/// The identity of a queue pair, as completions carry it.
///
/// Only a number: it says nothing about whether the queue pair still exists. A driver that keeps
/// completions of a destroyed queue pair for a kernel consumer must take them out of the queue
/// before `destroy_qp` returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpId(pub(super) usize);

#[cfg(CONFIG_KUNIT = "y")]
impl QpId {
    /// Names no queue pair, for tests of completions that nobody polls.
    pub const NONE: Self = Self(0);
    /// Names another one that is none.
    pub const OTHER: Self = Self(1);
}

/// The way from the driver's completion queue to its consumer.
#[derive(Clone)]
pub struct CqLink(Arc<CqLinkInner>);

#[pin_data]
struct CqLinkInner {
    object: BhRevocable<ObjectPtr<bindings::ib_cq>>,
    task: SerialTask<()>,
    /// The CPU of its completion vector, where its handler runs if it is a kernel consumer's.
    vector: Option<CpuId>,
    /// The call there.
    call: CpuCall,
    #[pin]
    resized: Resized,
}

impl CqLinkInner {
    /// Calls the handler here.
    fn notify(&self) {
        // No round yields, so whoever runs it, it runs.
        let _ = self.task.run(|()| {
            if let Some(cq) = self.object.try_access() {
                let cq = cq.0.as_ptr();
                // SAFETY: The field of a valid queue: the caller of `CqLink::new` keeps `cq` valid
                // until it is revoked, and it is not.
                let handler = unsafe { (*cq).comp_handler };
                // SAFETY: The field of a valid queue: the caller of `CqLink::new` keeps `cq` valid
                // until it is revoked, and it is not. The context was set before the queue could be
                // armed.
                let context = unsafe { (*cq).cq_context };
                if let Some(handler) = handler {
                    // SAFETY: The handler is the consumer's own for this queue; `ib_core` allows it
                    // in any context, and the task keeps it to one call at a time.
                    unsafe { handler(cq, context) };
                }
            }
            Next::Done
        });
    }

    /// The call on another CPU.
    ///
    /// Context: hard interrupt.
    ///
    /// # Safety
    ///
    /// `info` must be a `CqLinkInner` whose call was asked for with this function.
    unsafe extern "C" fn called(info: *mut c_void) {
        let this = info.cast::<Self>();
        // SAFETY: The caller says that `info` is a `CqLinkInner`; it stays until `end`, by the
        // promise in `CpuCall::ask`.
        unsafe { (*this).call.begin() };
        // SAFETY: The caller says that `info` is a `CqLinkInner`; it stays until `end`, by the
        // promise in `CpuCall::ask`.
        unsafe { (*this).notify() };
        // SAFETY: The caller says that `info` is a `CqLinkInner`; it stays until this is done with
        // it, by the promise in `CpuCall::ask`, and nothing is done with it after.
        unsafe { (*this).call.end() };
    }
}

/// The memory that is shared with a process since a queue was resized last.
#[pin_data]
struct Resized {
    #[pin]
    mappings: Mutex<Mappings>,
}

impl Resized {
    fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            mappings <- new_mutex!(Mappings::new(), "Resized::mappings"),
        })
    }

    /// Runs `f`, one call at a time; if it shares something, that takes the place of what an
    /// earlier call has shared.
    fn replace<R>(&self, f: impl FnOnce(&mut Mappings) -> Result<R>) -> Result<R> {
        let mut kept = self.mappings.lock();
        let mut mappings = Mappings::new();
        let result = f(&mut mappings)?;
        if !mappings.is_empty() {
            *kept = mappings;
        }
        Ok(result)
    }

    /// Withdraws it, since the context of the process may go before the last link does.
    fn close(&self) {
        *self.mappings.lock() = Mappings::new();
    }
}

impl CqLink {
    /// Makes the link of a completion queue that is being created.
    ///
    /// The handler is called on the CPU `vector`, if there is one.
    ///
    /// # Safety
    ///
    /// `cq` must stay valid until [`Self::close`] returned, which must be called.
    pub(super) unsafe fn new(cq: NonNull<bindings::ib_cq>, vector: Option<CpuId>) -> Result<Self> {
        let inner = Arc::pin_init(
            pin_init!(CqLinkInner {
                object: BhRevocable::new(ObjectPtr(cq)),
                task: SerialTask::new(()),
                vector,
                call: CpuCall::new(),
                resized <- Resized::new(),
            }),
            GFP_KERNEL_ACCOUNT,
        )?;
        Ok(Self(inner))
    }

    /// Calls the consumer's completion handler, on the CPU of the queue's completion vector if that
    /// is a kernel consumer's: at once if that is this one, else from an interrupt there.
    ///
    /// Never two at once for one queue: who finds a call under way has the handler called once more
    /// after it. The handler may poll the queue and arm it again, so the caller may hold no lock
    /// that `poll_cq` or `req_notify_cq` take, and may not be inside a verb that a kernel consumer
    /// called.
    ///
    /// Context: any but hard interrupt.
    pub fn notify(&self) {
        match self.0.vector {
            Some(cpu) if cpu.as_u32() != CpuId::current().as_u32() => self.notify_on(cpu),
            _ => self.0.notify(),
        }
    }

    /// Calls the handler on that CPU, or here if it is not online.
    fn notify_on(&self, cpu: CpuId) {
        let asked = {
            let Some(_open) = self.0.object.try_access() else {
                return;
            };
            let info = NonNull::from(&*self.0).cast();
            // SAFETY: It is not revoked, so `revoke`, which waits for the call, is still to come,
            // and the object keeps the link until then. The function is the one for this.
            unsafe { self.0.call.ask(cpu, CqLinkInner::called, info) }
        };
        if asked.is_err() {
            self.0.notify();
        }
    }

    /// Tells the consumer that the queue overran or failed (`IB_EVENT_CQ_ERR`).
    ///
    /// Context: any.
    pub fn error(&self) {
        let Some(cq) = self.0.object.try_access() else {
            return;
        };
        let cq = cq.0.as_ptr();
        // SAFETY: The fields of a valid queue: the caller of `new` keeps `cq` valid until it is
        // revoked, and it is not.
        let (handler, context, device) =
            unsafe { ((*cq).event_handler, (*cq).cq_context, (*cq).device) };
        let mut event = bindings::ib_event {
            device,
            event: bindings::ib_event_type_IB_EVENT_CQ_ERR,
            ..Default::default()
        };
        // SAFETY: The union is plain data; this is the variant for this kind of event.
        unsafe { *event.element.cq.as_mut() = cq };
        if let Some(handler) = handler {
            // SAFETY: The handler is the consumer's own for this queue; it does not keep the event.
            unsafe { handler(&mut event, context) };
        }
    }

    /// Resizes the queue, one call at a time; what `f` shares takes the place of what an earlier
    /// call has shared.
    ///
    /// Context: process.
    pub(super) fn resize<R>(&self, f: impl FnOnce(&mut Mappings) -> Result<R>) -> Result<R> {
        self.0.resized.replace(f)
    }

    /// Ends the link; no handler runs once this returned.
    pub(super) fn close(&self) {
        self.0.object.revoke();
        self.0.call.wait();
        self.0.resized.close();
    }
}

/// The way from the driver's shared receive queue to its consumer.
#[derive(Clone)]
pub struct SrqLink(Arc<SrqLinkInner>);

#[pin_data]
struct SrqLinkInner {
    object: BhRevocable<ObjectPtr<bindings::ib_srq>>,
    #[pin]
    resized: Resized,
}

impl SrqLink {
    /// Makes the link of a shared receive queue that is being created.
    ///
    /// # Safety
    ///
    /// `srq` must stay valid until [`Self::close`] returned.
    pub(super) unsafe fn new(srq: NonNull<bindings::ib_srq>) -> Result<Self> {
        let inner = Arc::pin_init(
            pin_init!(SrqLinkInner {
                object: BhRevocable::new(ObjectPtr(srq)),
                resized <- Resized::new(),
            }),
            GFP_KERNEL_ACCOUNT,
        )?;
        Ok(Self(inner))
    }

    /// Tells the consumer of an event.
    ///
    /// Context: any; the caller may hold no lock that `post_srq_recv` or `modify_srq` take.
    pub fn event(&self, event: SrqEvent) {
        let Some(srq) = self.0.object.try_access() else {
            return;
        };
        let srq = srq.0.as_ptr();
        // SAFETY: The fields of a valid queue: the caller of `new` keeps `srq` valid until it is
        // revoked, and it is not.
        let (handler, context, device) =
            unsafe { ((*srq).event_handler, (*srq).srq_context, (*srq).device) };
        let mut event = bindings::ib_event {
            device,
            event: event.to_raw(),
            ..Default::default()
        };
        // SAFETY: The union is plain data; this is the variant for this kind of event.
        unsafe { *event.element.srq.as_mut() = srq };
        if let Some(handler) = handler {
            // SAFETY: The handler is the consumer's own for this queue; it does not keep the event.
            unsafe { handler(&mut event, context) };
        }
    }

    /// Modifies the queue, one call at a time; what `f` shares takes the place of what an earlier
    /// call has shared.
    ///
    /// Context: process.
    pub(super) fn modify<R>(&self, f: impl FnOnce(&mut Mappings) -> Result<R>) -> Result<R> {
        self.0.resized.replace(f)
    }

    /// Ends the link; no handler runs once this returned.
    pub(super) fn close(&self) {
        self.0.object.revoke();
        self.0.resized.close();
    }
}
