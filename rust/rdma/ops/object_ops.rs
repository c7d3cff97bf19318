// SPDX-License-Identifier: GPL-2.0

//! The trampolines of user contexts, protection domains and memory regions.
//!
//! Each says in its `# Safety` what `ib_core` promises. What it promises in all cases is not
//! repeated: the device of the object is registered, or being so, while a verb runs, and is one of
//! `T`. *New* is an object that `ib_core` has allocated for this call, zeroed, of the size in
//! `ops.size_ib_*`, with its device (and domain) set. *Filled* is one that a `create_*`, `alloc_*`
//! or `reg_*` of this folder has made, and that no other call destroys before this one returns.
//! *Valid* are pointers for the length of the call.

use super::super::device::device_data;
use super::super::mmap::Mappings;
use super::super::mr::Advice;
use super::super::mr::MapSg;
use super::super::mr::RegDmaBufMr;
use super::super::mr::RegUserMr;
use super::super::mr::ReregUserMr;
use super::super::object::MrObject;
use super::super::object::MwObject;
use super::super::object::PdObject;
use super::super::object::Tail;
use super::super::object::UContextObject;
use super::super::sges::Sges;
use super::super::types::Access;
use super::super::types::KernelOwned;
use super::super::types::MwType;
use super::super::types::Owner;
use super::super::udata::Udata;
use super::Driver;
use super::MrCreated;
use crate::bindings;
use crate::mm::paged::Prefetch;
use crate::mm::place::Shape;
use core::marker::PhantomData;
use core::mem::MaybeUninit;
use core::ptr::NonNull;
use kernel::error::from_result;
use kernel::ffi::c_int;
use kernel::ffi::c_uint;
use kernel::prelude::*;
use kernel::sync::Arc;

/// Says who makes an object.
///
/// # Safety
///
/// `udata` must be that of the call that makes it: null if and only if the caller is in the kernel.
pub(super) unsafe fn owner(udata: *const bindings::ib_udata) -> Owner {
    if udata.is_null() {
        // SAFETY: `new_unchecked` wants a caller in the kernel: there is no channel, which by this
        // function's `# Safety` says that it is.
        Owner::Kernel(unsafe { KernelOwned::new_unchecked() })
    } else {
        Owner::User
    }
}

/// `ops.alloc_ucontext`.
///
/// # Safety
///
/// `context` is a new object of the size we asked for, `udata` is valid.
pub(super) unsafe extern "C" fn alloc_ucontext<T: Driver>(
    context: *mut bindings::ib_ucontext,
    udata: *mut bindings::ib_udata,
) -> c_int {
    from_result(|| {
        // SAFETY: A field of `context`, which is valid; `ib_core` sets it before the driver sees
        // the object.
        let device = unsafe { (*context).device };
        // SAFETY: `device_data` wants a device of `T` that is registered, or being so: that is so
        // while a verb runs.
        let dev = unsafe { device_data::<T>(device) };
        // SAFETY: `Udata::new` wants a channel that is null or valid, which `udata` is by this
        // function's `# Safety`, and no mappings to outlive a context.
        let mut udata = unsafe { Udata::new(udata, None) };
        let data = T::alloc_ucontext(dev, &mut udata)?;
        let tail = Tail {
            data,
            link: (),
            mappings: Mappings::new(),
        };
        // SAFETY: `fill` wants the head of an allocation of `SIZE` octets whose tail holds nothing:
        // `context` is a new object.
        unsafe { UContextObject::<T>::fill(context, tail) };
        Ok(0)
    })
}

/// `ops.dealloc_ucontext`.
///
/// # Safety
///
/// `context` was filled, and is used no more.
pub(super) unsafe extern "C" fn dealloc_ucontext<T: Driver>(context: *mut bindings::ib_ucontext) {
    // SAFETY: `empty` wants a structure that was filled and that nobody uses: `context` is, by this
    // function's `# Safety`.
    let tail = unsafe { UContextObject::<T>::empty(context) };
    T::dealloc_ucontext(tail.data);
}

/// `ops.alloc_pd`.
///
/// # Safety
///
/// `pd` is a new object of the size we asked for, `udata` null or valid.
pub(super) unsafe extern "C" fn alloc_pd<T: Driver>(
    pd: *mut bindings::ib_pd,
    udata: *mut bindings::ib_udata,
) -> c_int {
    from_result(|| {
        // SAFETY: A field of `pd`, which is valid; `ib_core` sets it before the driver sees the
        // object.
        let device = unsafe { (*pd).device };
        // SAFETY: `device_data` wants a device of `T` that is registered, or being so: that is so
        // while a verb runs.
        let dev = unsafe { device_data::<T>(device) };
        let mut mappings = Mappings::new();
        // SAFETY: `owner` wants the channel of the call that makes the object, which `udata` is.
        let owner = unsafe { owner(udata) };
        // SAFETY: `Udata::new` wants a channel that is null or valid, which `udata` is by this
        // function's `# Safety`, and mappings that do not outlive the context of the call: the
        // object belongs to the context and goes before it.
        let mut udata = unsafe { Udata::new(udata, Some(&mut mappings)) };
        let data = T::alloc_pd(dev, owner, &mut udata)?;
        let tail = Tail {
            data,
            link: (),
            mappings,
        };
        // SAFETY: `fill` wants the head of an allocation of `SIZE` octets whose tail holds nothing:
        // `pd` is a new object.
        unsafe { PdObject::<T>::fill(pd, tail) };
        Ok(0)
    })
}

/// `ops.dealloc_pd`.
///
/// # Safety
///
/// `pd` was filled, and is used no more.
pub(super) unsafe extern "C" fn dealloc_pd<T: Driver>(
    pd: *mut bindings::ib_pd,
    _udata: *mut bindings::ib_udata,
) -> c_int {
    // SAFETY: `empty` wants a structure that was filled and that nobody uses: `pd` is, by this
    // function's `# Safety`.
    let tail = unsafe { PdObject::<T>::empty(pd) };
    T::dealloc_pd(tail.data);
    0
}

/// Makes room for the C object of a region, zeroed as `ib_core` expects it.
fn new_region<T: Driver>() -> Result<KBox<MaybeUninit<MrObject<T>>>> {
    Ok(KBox::new_uninit(GFP_KERNEL_ACCOUNT | __GFP_ZERO)?)
}

/// Finishes the C object of a region, once nothing can fail any more; its range is that of a process's
/// memory, and empty for others.
fn finish_region<T: Driver>(
    room: KBox<MaybeUninit<MrObject<T>>>,
    created: MrCreated<T>,
    mappings: Mappings,
    (iova, length): (u64, u64),
) -> *mut bindings::ib_mr {
    let raw = KBox::into_raw(room).cast::<bindings::ib_mr>();
    let tail = Tail {
        data: created.mr,
        link: created.pages,
        mappings,
    };
    // SAFETY: `fill` wants the head of an allocation of `SIZE` octets whose tail holds nothing:
    // `room` was made for such an object, of zeroes, which also are a value of `ib_mr`.
    unsafe { MrObject::<T>::fill(raw, tail) };
    // SAFETY: `raw` is a valid object that nobody else has yet.
    let mr = unsafe { &mut *raw };
    (mr.lkey, mr.rkey) = (created.lkey, created.rkey);
    (mr.iova, mr.length) = (iova, length);
    raw
}

/// A process's request to register memory.
///
/// # Safety
///
/// `pd` must have been filled, and its device stay registered for `'a`.
unsafe fn registration<'a>(
    pd: *mut bindings::ib_pd,
    (start, length): (u64, u64),
    iova: u64,
    access: c_int,
) -> Result<RegUserMr<'a>> {
    Ok(RegUserMr {
        // SAFETY: A field of `pd`, which was filled, by this function's `# Safety`.
        device: NonNull::new(unsafe { (*pd).device }).ok_or(EINVAL)?,
        start,
        length,
        iova,
        access: Access::from_raw(access),
        _life: PhantomData,
    })
}

/// An error as C has it in a pointer.
fn error_ptr(error: Error) -> *mut bindings::ib_mr {
    error.to_ptr()
}

/// `ops.reg_user_mr`.
///
/// # Safety
///
/// `pd` was filled and belongs to the caller's context, `udata` is valid.
pub(super) unsafe extern "C" fn reg_user_mr<T: Driver>(
    pd: *mut bindings::ib_pd,
    start: u64,
    length: u64,
    iova: u64,
    access: c_int,
    dmah: *mut bindings::ib_dmah,
    udata: *mut bindings::ib_udata,
) -> *mut bindings::ib_mr {
    let make = || {
        if !dmah.is_null() {
            return Err(EOPNOTSUPP);
        }
        // SAFETY: `registration` wants a domain that was filled, which `pd` is by this function's
        // `# Safety`, and a device that stays: it does while the verb runs, and the request ends
        // with it.
        let request = unsafe { registration(pd, (start, length), iova, access) }?;
        let room = new_region::<T>()?;
        let mut mappings = Mappings::new();
        // SAFETY: `Udata::new` wants a channel that is null or valid, which `udata` is by this
        // function's `# Safety`, and mappings that do not outlive the context of the call: the
        // object belongs to the context and goes before it.
        let mut udata = unsafe { Udata::new(udata, Some(&mut mappings)) };
        // SAFETY: `data` wants a structure that was filled and is not emptied meanwhile: `pd` is,
        // by this function's `# Safety`.
        let created = T::reg_user_mr(unsafe { PdObject::<T>::data(pd) }, &request, &mut udata)?;
        Ok(finish_region(room, created, mappings, (iova, length)))
    };
    make().unwrap_or_else(error_ptr)
}

/// `ops.reg_user_mr_dmabuf`.
///
/// # Safety
///
/// `pd` was filled and belongs to the caller's context.
pub(super) unsafe extern "C" fn reg_user_mr_dmabuf<T: Driver>(
    pd: *mut bindings::ib_pd,
    offset: u64,
    length: u64,
    iova: u64,
    fd: c_int,
    access: c_int,
    dmah: *mut bindings::ib_dmah,
    _attrs: *mut bindings::uverbs_attr_bundle,
) -> *mut bindings::ib_mr {
    let make = || {
        if !dmah.is_null() {
            return Err(EOPNOTSUPP);
        }
        let request = RegDmaBufMr {
            // SAFETY: By the function's contract `pd` is valid, and its device never changes.
            device: NonNull::new(unsafe { (*pd).device }).ok_or(EINVAL)?,
            fd,
            offset,
            length,
            iova,
            access: Access::from_raw(access),
            _life: PhantomData,
        };
        let room = new_region::<T>()?;
        // SAFETY: `data` wants a structure that was filled and is not emptied meanwhile: `pd` is,
        // by this function's `# Safety`.
        let created = T::reg_user_mr_dmabuf(unsafe { PdObject::<T>::data(pd) }, &request)?;
        Ok(finish_region(
            room,
            created,
            Mappings::new(),
            (iova, length),
        ))
    };
    make().unwrap_or_else(error_ptr)
}

/// `ops.rereg_user_mr`.
///
/// # Safety
///
/// `old` was made by [`reg_user_mr`] or by this function, and nothing else is done to it meanwhile; `pd` was
/// filled.
pub(super) unsafe extern "C" fn rereg_user_mr<T: Driver>(
    old: *mut bindings::ib_mr,
    changes: c_int,
    start: u64,
    length: u64,
    iova: u64,
    access: c_int,
    pd: *mut bindings::ib_pd,
    _udata: *mut bindings::ib_udata,
) -> *mut bindings::ib_mr {
    let make = || {
        let request = ReregUserMr {
            changes: u32::try_from(changes)?,
            // SAFETY: `registration` wants a domain that was filled, which `pd` is by this
            // function's `# Safety`, and a device that stays: it does while the verb runs, and the
            // request ends with it.
            all: unsafe { registration(pd, (start, length), iova, access) }?,
        };
        let room = new_region::<T>()?;
        // SAFETY: `data` wants a structure that was filled and is not emptied meanwhile: `old` is,
        // by this function's `# Safety`.
        let mr = unsafe { MrObject::<T>::data(old) };
        // SAFETY: `data` wants a structure that was filled and is not emptied meanwhile: `pd` is,
        // by this function's `# Safety`.
        let domain = unsafe { PdObject::<T>::data(pd) };
        let created = T::rereg_user_mr(mr, domain, &request)?;
        let range = match request.memory(Access::empty()) {
            Some(_) => (iova, length),
            None => {
                // SAFETY: A field of `old`, a region to which nothing else is done meanwhile, by
                // this function's `# Safety`.
                let iova = unsafe { (*old).iova };
                // SAFETY: A field of `old`, a region to which nothing else is done meanwhile, by
                // this function's `# Safety`.
                (iova, unsafe { (*old).length })
            }
        };
        Ok(finish_region(room, created, Mappings::new(), range))
    };
    make().unwrap_or_else(error_ptr)
}

/// `ops.advise_mr`. All of it is done when the call returns, asked for or not.
///
/// # Safety
///
/// `pd` was filled; `list` has `count` entries.
pub(super) unsafe extern "C" fn advise_mr<T: Driver>(
    pd: *mut bindings::ib_pd,
    advice: bindings::ib_uverbs_advise_mr_advice,
    _flags: u32,
    list: *mut bindings::ib_sge,
    count: u32,
    _attrs: *mut bindings::uverbs_attr_bundle,
) -> c_int {
    from_result(|| {
        let what = match advice {
            ADVICE_PREFETCH => Prefetch::Read,
            ADVICE_PREFETCH_WRITE => Prefetch::Write,
            ADVICE_PREFETCH_NO_FAULT => Prefetch::Present,
            _ => return Err(EOPNOTSUPP),
        };
        // SAFETY: `Sges::new` wants `count` entries that are valid and constant for the lifetime,
        // which ends with this call: `list` has them, by this function's `# Safety`.
        let ranges = unsafe { Sges::new(list, c_int::try_from(count)?) };
        // SAFETY: `data` wants a structure that was filled and is not emptied meanwhile: `pd` is,
        // by this function's `# Safety`.
        T::advise_mr(unsafe { PdObject::<T>::data(pd) }, Advice { what, ranges })?;
        Ok(0)
    })
}

/// `ops.get_dma_mr`, which only the kernel calls.
///
/// # Safety
///
/// `pd` was filled.
pub(super) unsafe extern "C" fn get_dma_mr<T: Driver>(
    pd: *mut bindings::ib_pd,
    access: c_int,
) -> *mut bindings::ib_mr {
    let make = || {
        // SAFETY: `kernel_pd` wants a domain that was filled: `pd` is, by this function's
        // `# Safety`.
        let (pd, proof) = unsafe { kernel_pd(pd) }?;
        let room = new_region::<T>()?;
        // SAFETY: `data` wants a structure that was filled and is not emptied meanwhile: `pd` is,
        // by this function's `# Safety`.
        let pd = unsafe { PdObject::<T>::data(pd) };
        let created = T::get_dma_mr(pd, proof, Access::from_raw(access))?;
        Ok(finish_region(room, created, Mappings::new(), (0, 0)))
    };
    make().unwrap_or_else(error_ptr)
}

/// `ops.alloc_mr`, which only the kernel calls.
///
/// # Safety
///
/// `pd` was filled.
pub(super) unsafe extern "C" fn alloc_mr<T: Driver>(
    pd: *mut bindings::ib_pd,
    kind: bindings::ib_mr_type,
    max_pages: u32,
) -> *mut bindings::ib_mr {
    let make = || {
        let shape = match kind {
            bindings::ib_mr_type_IB_MR_TYPE_MEM_REG => Shape::Pages,
            bindings::ib_mr_type_IB_MR_TYPE_SG_GAPS => Shape::Gaps,
            _ => return Err(EOPNOTSUPP),
        };
        // SAFETY: `kernel_pd` wants a domain that was filled: `pd` is, by this function's
        // `# Safety`.
        let (pd, proof) = unsafe { kernel_pd(pd) }?;
        let room = new_region::<T>()?;
        // SAFETY: `data` wants a structure that was filled and is not emptied meanwhile: `pd` is,
        // by this function's `# Safety`.
        let created = T::alloc_mr(unsafe { PdObject::<T>::data(pd) }, proof, shape, max_pages)?;
        Ok(finish_region(room, created, Mappings::new(), (0, 0)))
    };
    make().unwrap_or_else(error_ptr)
}

/// A protection domain of a kernel consumer, with the proof that it is one.
///
/// # Safety
///
/// `pd` must have been filled.
unsafe fn kernel_pd(pd: *mut bindings::ib_pd) -> Result<(*mut bindings::ib_pd, KernelOwned)> {
    // SAFETY: A field of `pd`, which was filled, by this function's `# Safety`; it never changes.
    if !unsafe { (*pd).uobject }.is_null() {
        return Err(EPERM);
    }
    // SAFETY: `new_unchecked` wants objects of a kernel consumer: a domain without user object is
    // of one.
    let proof = unsafe { KernelOwned::new_unchecked() };
    Ok((pd, proof))
}

/// `ops.alloc_mw`.
///
/// # Safety
///
/// `mw` is a new object of the size we asked for, its domain was filled.
pub(super) unsafe extern "C" fn alloc_mw<T: Driver>(
    mw: *mut bindings::ib_mw,
    _udata: *mut bindings::ib_udata,
) -> c_int {
    from_result(|| {
        // SAFETY: A field of `mw`, which is a new object.
        let pd = unsafe { (*mw).pd };
        // SAFETY: A field of `mw`, which is a new object.
        let kind = unsafe { (*mw).type_ };
        let kind = match kind {
            bindings::ib_mw_type_IB_MW_TYPE_1 => MwType::One,
            bindings::ib_mw_type_IB_MW_TYPE_2 => MwType::Two,
            _ => return Err(EINVAL),
        };
        // SAFETY: `data` wants a structure that was filled and is not emptied meanwhile: `pd` is,
        // by this function's `# Safety`.
        let created = T::alloc_mw(unsafe { PdObject::<T>::data(pd) }, kind)?;
        // SAFETY: A field of `mw`, which is a new object that nobody else has yet.
        unsafe { (*mw).rkey = created.rkey };
        let tail = Tail {
            data: created.mw,
            link: (),
            mappings: Mappings::new(),
        };
        // SAFETY: `fill` wants the head of an allocation of `SIZE` octets whose tail holds nothing:
        // `mw` is a new object.
        unsafe { MwObject::<T>::fill(mw, tail) };
        Ok(0)
    })
}

/// `ops.dealloc_mw`.
///
/// # Safety
///
/// `mw` was filled, and is used no more.
pub(super) unsafe extern "C" fn dealloc_mw<T: Driver>(mw: *mut bindings::ib_mw) -> c_int {
    // SAFETY: `empty` wants a structure that was filled and that nobody uses: `mw` is, by this
    // function's `# Safety`.
    let tail = unsafe { MwObject::<T>::empty(mw) };
    T::dealloc_mw(tail.data);
    0
}

/// `ops.map_mr_sg`.
///
/// # Safety
///
/// `mr` was made by [`alloc_mr`], `list` has `entries` entries, `offset` is null or valid; nobody
/// else maps it now.
pub(super) unsafe extern "C" fn map_mr_sg<T: Driver>(
    mr: *mut bindings::ib_mr,
    list: *mut bindings::scatterlist,
    entries: c_int,
    offset: *mut c_uint,
) -> c_int {
    from_result(|| {
        // SAFETY: `tail` wants a structure that was filled and is not emptied meanwhile: `mr` is,
        // by this function's `# Safety`.
        let tail = unsafe { MrObject::<T>::tail(mr) };
        let mut sg = MapSg {
            mr: NonNull::new(mr).ok_or(EINVAL)?,
            list,
            entries,
            offset,
            pages: tail.link.as_deref().ok_or(EINVAL)?,
            set_page: set_page::<T>,
        };
        T::map_mr_sg(tail.data.as_arc_borrow(), &mut sg)
    })
}

/// Takes one page over, for `ib_sg_to_pages()`.
///
/// # Safety
///
/// `mr` was made by [`alloc_mr`], and nobody else maps it now.
unsafe extern "C" fn set_page<T: Driver>(mr: *mut bindings::ib_mr, page: u64) -> c_int {
    from_result(|| {
        // SAFETY: `tail` wants a structure that was filled and is not emptied meanwhile: `mr` is,
        // by this function's `# Safety`.
        let tail = unsafe { MrObject::<T>::tail(mr) };
        // SAFETY: A field of `mr`, a region that one thread maps, by this function's `# Safety`.
        let page_size = unsafe { (*mr).page_size };
        let pages = tail.link.as_deref().ok_or(EINVAL)?;
        pages.push(page, page_size.into())?;
        Ok(0)
    })
}

/// `ops.dereg_mr`.
///
/// # Safety
///
/// `mr` was made by one of the functions above, and is used no more if this succeeds.
pub(super) unsafe extern "C" fn dereg_mr<T: Driver>(
    mr: *mut bindings::ib_mr,
    _udata: *mut bindings::ib_udata,
) -> c_int {
    from_result(|| {
        // SAFETY: `data` wants a structure that was filled and is not emptied meanwhile: `mr` is,
        // by this function's `# Safety`.
        T::dereg_mr(unsafe { MrObject::<T>::data(mr) })?;
        // SAFETY: `from_raw` wants a pointer of `KBox::into_raw` that nobody else has:
        // `finish_region` made it by that, of a box of that layout, and by this function's
        // `# Safety` nothing uses it any more.
        drop(unsafe { KBox::from_raw(mr.cast::<MrObject<T>>()) });
        Ok(0)
    })
}

/// A counted reference of a driver's protection domain.
///
/// # Safety
///
/// `pd` must have been filled, and not be destroyed during the call.
pub(super) unsafe fn pd_of<T: Driver>(pd: *mut bindings::ib_pd) -> Arc<T::Pd> {
    // SAFETY: `data` wants a structure that was filled and is not emptied meanwhile: `pd` is, by
    // this function's `# Safety`.
    unsafe { PdObject::<T>::data(pd) }.into()
}

/// `enum ib_uverbs_advise_mr_advice`.
const ADVICE_PREFETCH: u32 =
    bindings::ib_uverbs_advise_mr_advice_IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH;
const ADVICE_PREFETCH_WRITE: u32 =
    bindings::ib_uverbs_advise_mr_advice_IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE;
const ADVICE_PREFETCH_NO_FAULT: u32 =
    bindings::ib_uverbs_advise_mr_advice_IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT;
