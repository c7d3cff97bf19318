// SPDX-License-Identifier: GPL-2.0

//! Memory regions: [`MrOps`], and its trampolines, which also allocate and free the C objects of
//! regions.

use core::{
    marker::PhantomData,
    mem::MaybeUninit,
    ptr::NonNull, //
};

use kernel::{
    error::{
        from_result,
        VTABLE_DEFAULT_ERROR, //
    },
    ffi::{
        c_int,
        c_uint, //
    },
    prelude::*,
    sync::{
        Arc,
        ArcBorrow, //
    }, //
};

use super::{
    charged,
    Driver, //
};
use crate::{
    bindings,
    compat::EOPNOTSUPP,
    rdma::{
        mem::{
            mem_map::{
                KernelPages,
                Shape, //
            },
            paged::Prefetch, //
        },
        mmap::Mappings,
        mr::{
            Advice,
            MapSg,
            RegDmaBufMr,
            RegUserMr,
            ReregUserMr, //
        },
        object::{
            DriverPart,
            MrObject,
            PdObject, //
        },
        restrack::{
            self, //
            Details,
        },
        sges::Sges,
        types::{
            AccessFlags,
            KernelOwned, //
        },
        udata::Udata, //
    }, //
};

/// A memory region of the driver.
#[vtable]
pub trait MrOps: Sized + Send + Sync + 'static {
    /// The driver.
    type Driver: Driver;

    /// Registers memory of a process.
    ///
    /// `ib_device_ops.reg_user_mr` (`drivers/infiniband/core/uverbs_cmd.c`,
    /// `uverbs_std_types_mr.c`).
    ///
    /// Context: process, may sleep.
    ///
    /// # Errors
    ///
    /// * `EINVAL` for an invalid range or invalid rights, `EOPNOTSUPP` for rights that the device
    ///   does not support.
    /// * `EFAULT` if the memory is not mapped, or not writable.
    /// * `ENOMEM` if a limit is reached, or memory is short.
    fn reg_user(
        pd: ArcBorrow<'_, <Self::Driver as Driver>::Pd>,
        request: &RegUserMr<'_>,
        udata: &mut Udata<'_>,
    ) -> Result<MrCreated<Self>>;

    /// Registers memory of another driver for a process.
    ///
    /// `ib_device_ops.reg_user_mr_dmabuf` (`drivers/infiniband/core/uverbs_std_types_mr.c`).
    ///
    /// Context: process, may sleep.
    ///
    /// # Errors
    ///
    /// As [`reg_user`](Self::reg_user), and `EACCES` for rights that the descriptor does not grant.
    fn reg_user_dmabuf(
        _pd: ArcBorrow<'_, <Self::Driver as Driver>::Pd>,
        _request: &RegDmaBufMr<'_>,
    ) -> Result<MrCreated<Self>> {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Creates a region of a process that replaces this one, in the domain `pd`, which may be the
    /// same. The key of this region becomes invalid; the region is deregistered right after, which
    /// must not fail.
    ///
    /// `ib_device_ops.rereg_user_mr` (`drivers/infiniband/core/uverbs_cmd.c`).
    ///
    /// Context: process, may sleep.
    ///
    /// # Errors
    ///
    /// They leave the region unchanged. As [`reg_user`](Self::reg_user), and `EBUSY` if a window is
    /// bound to it.
    fn rereg_user(
        &self,
        _pd: ArcBorrow<'_, <Self::Driver as Driver>::Pd>,
        _request: &ReregUserMr<'_>,
    ) -> Result<MrCreated<Self>> {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Follows a process's advice on its memory.
    ///
    /// `ib_device_ops.advise_mr` (`drivers/infiniband/core/uverbs_std_types_mr.c`).
    ///
    /// Context: process, may sleep.
    ///
    /// # Errors
    ///
    /// * `EFAULT` for a range outside of all regions of the domain, or of the process's memory.
    /// * `EINVAL` for a region that does not support the advice, or whose process has exited.
    /// * `EBUSY` if its pages keep changing.
    /// * `EINTR` if the calling process is being killed.
    /// * `ENOMEM`.
    fn advise(_pd: ArcBorrow<'_, <Self::Driver as Driver>::Pd>, _advice: Advice<'_>) -> Result {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Creates the region that covers all kernel memory.
    ///
    /// `ib_device_ops.get_dma_mr` (`drivers/infiniband/core/verbs.c`).
    ///
    /// Context: process, may sleep.
    ///
    /// # Errors
    ///
    /// As [`reg_user`](Self::reg_user).
    fn get_dma(
        pd: ArcBorrow<'_, <Self::Driver as Driver>::Pd>,
        proof: KernelOwned<'_>,
        access: AccessFlags,
    ) -> Result<MrCreated<Self>>;

    /// Creates a region for fast registration of up to `max_pages` pages, or pieces;
    /// [`MrCreated::pages`] must be set.
    ///
    /// `ib_device_ops.alloc_mr` (`drivers/infiniband/core/verbs.c`).
    ///
    /// Context: process, may sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` for an invalid number of pages, `ENOMEM`.
    fn alloc(
        _pd: ArcBorrow<'_, <Self::Driver as Driver>::Pd>,
        _proof: KernelOwned<'_>,
        _shape: Shape,
        _max_pages: u32,
    ) -> Result<MrCreated<Self>> {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Sets the pages of a region for fast registration; see [`MapSg::map`]. Returns how many
    /// entries of the list were mapped.
    ///
    /// `ib_device_ops.map_mr_sg` (`drivers/infiniband/core/verbs.c`).
    ///
    /// Context: any that the consumer registers in; may not sleep.
    ///
    /// # Errors
    ///
    /// Those of [`MapSg::map`], and `EINVAL` if the region is deregistered.
    fn map_sg(&self, _sg: &mut MapSg<'_>) -> Result<i32> {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Ends the region; afterwards nothing accesses its memory.
    ///
    /// `ib_device_ops.dereg_mr` (`drivers/infiniband/core/verbs.c`). If it succeeds, `ib_core`'s
    /// reference is dropped.
    ///
    /// Context: process, may sleep.
    ///
    /// # Errors
    ///
    /// `EBUSY`; the region is unchanged then.
    fn dereg(&self) -> Result;

    /// Adds to what `rdma -dd resource show mr` shows.
    ///
    /// `ib_device_ops.fill_res_mr_entry` (`drivers/infiniband/core/nldev.c`).
    ///
    /// Context: process, may sleep.
    ///
    /// # Errors
    ///
    /// Those of [`Details`].
    fn describe(&self, _details: &mut Details<'_>) -> Result {
        build_error!(VTABLE_DEFAULT_ERROR)
    }
}

/// A new memory region.
pub struct MrCreated<M> {
    /// The driver's object.
    pub mr: Arc<M>,
    /// The key for local use.
    pub lkey: u32,
    /// The key for the peer.
    pub rkey: u32,
    /// For fast registration: the list of its pages, shared with the driver's object.
    pub pages: Option<Arc<KernelPages>>,
}

/// Allocates the C object of a region, zeroed as `ib_core` expects it.
fn new_region<M>() -> Result<KBox<MaybeUninit<MrObject<M>>>> {
    Ok(KBox::new_uninit(GFP_KERNEL_ACCOUNT | __GFP_ZERO)?)
}

/// Fills the C object of a region, after the last step that can fail; the range is that of a
/// process's memory, and empty for others.
fn finish_region<M>(
    room: KBox<MaybeUninit<MrObject<M>>>,
    created: MrCreated<M>,
    mappings: Mappings,
    (iova, length): (u64, u64),
) -> *mut bindings::ib_mr {
    let raw = KBox::into_raw(room).cast::<bindings::ib_mr>();
    let driver_part = DriverPart {
        data: created.mr,
        link: created.pages,
        mappings,
    };
    // SAFETY: `fill` requires the head of an allocation of `SIZE` octets whose driver part holds
    // nothing: `room` was made for such an object, of zeroes, which also are a value of `ib_mr`.
    unsafe { MrObject::<M>::fill(raw, driver_part) };
    // SAFETY: `raw` is a valid object that nothing else uses yet.
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
        access: AccessFlags::from_raw(access),
        _life: PhantomData,
    })
}

/// Converts an error into a C error pointer.
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
        // SAFETY: `registration` requires a domain that was filled, which `pd` is by this
        // function's `# Safety`, and a device that stays: it does while the verb runs, and the
        // request ends with it.
        let request = unsafe { registration(pd, (start, length), iova, access) }?;
        let room = new_region::<T::Mr>()?;
        let mut mappings = Mappings::new();
        // SAFETY: `Udata::new` requires a channel that is null or valid, which `udata` is by this
        // function's `# Safety`, and mappings that do not outlive the context of the call: the
        // object belongs to the context and is destroyed before it.
        let mut udata = unsafe { Udata::new(udata, Some(&mut mappings)) };
        // SAFETY: `data` requires a structure that was filled and is not emptied meanwhile: `pd`
        // is, by this function's `# Safety`.
        let created = T::Mr::reg_user(unsafe { PdObject::<T>::data(pd) }, &request, &mut udata)?;
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
            access: AccessFlags::from_raw(access),
            _life: PhantomData,
        };
        let room = new_region::<T::Mr>()?;
        // SAFETY: `data` requires a structure that was filled and is not emptied meanwhile: `pd`
        // is, by this function's `# Safety`.
        let created = T::Mr::reg_user_dmabuf(unsafe { PdObject::<T>::data(pd) }, &request)?;
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
/// `old` was made by [`reg_user_mr`] or by this function, and nothing else uses it meanwhile; `pd`
/// was filled.
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
            // SAFETY: `registration` requires a domain that was filled, which `pd` is by this
            // function's `# Safety`, and a device that stays: it does while the verb runs, and the
            // request ends with it.
            all: unsafe { registration(pd, (start, length), iova, access) }?,
        };
        let room = new_region::<T::Mr>()?;
        // SAFETY: `data` requires a structure that was filled and is not emptied meanwhile: `old`
        // is, by this function's `# Safety`.
        let mr = unsafe { MrObject::<T::Mr>::data(old) };
        // SAFETY: `data` requires a structure that was filled and is not emptied meanwhile: `pd`
        // is, by this function's `# Safety`.
        let domain = unsafe { PdObject::<T>::data(pd) };
        let created = mr.rereg_user(domain, &request)?;
        let range = match request.memory(AccessFlags::empty()) {
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

/// `ops.advise_mr`. The work is always complete when the call returns, even if the flags do not ask
/// for that.
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
        // SAFETY: `Sges::new` requires `count` entries that are valid and constant for the
        // lifetime, which ends with this call: `list` has them, by this function's `# Safety`.
        let ranges = unsafe { Sges::new(list, c_int::try_from(count)?) };
        // SAFETY: `data` requires a structure that was filled and is not emptied meanwhile: `pd`
        // is, by this function's `# Safety`.
        T::Mr::advise(unsafe { PdObject::<T>::data(pd) }, Advice { what, ranges })?;
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
        // SAFETY: `kernel_pd` requires a domain that was filled: `pd` is, by this function's `#
        // Safety`.
        let (pd, proof) = unsafe { kernel_pd(pd) }?;
        let room = new_region::<T::Mr>()?;
        // SAFETY: `data` requires a structure that was filled and is not emptied meanwhile: `pd`
        // is, by this function's `# Safety`.
        let pd = unsafe { PdObject::<T>::data(pd) };
        let created = T::Mr::get_dma(pd, proof, AccessFlags::from_raw(access))?;
        Ok(finish_region(room, created, Mappings::new(), (0, 0)))
    };
    charged(true, make).unwrap_or_else(error_ptr)
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
        // SAFETY: `kernel_pd` requires a domain that was filled: `pd` is, by this function's `#
        // Safety`.
        let (pd, proof) = unsafe { kernel_pd(pd) }?;
        let room = new_region::<T::Mr>()?;
        // SAFETY: `data` requires a structure that was filled and is not emptied meanwhile: `pd`
        // is, by this function's `# Safety`.
        let created = T::Mr::alloc(unsafe { PdObject::<T>::data(pd) }, proof, shape, max_pages)?;
        Ok(finish_region(room, created, Mappings::new(), (0, 0)))
    };
    charged(true, make).unwrap_or_else(error_ptr)
}

/// A protection domain of a kernel consumer, with the proof that it is one.
///
/// # Safety
///
/// `pd` must have been filled, and `'a` end with the call that creates an object in it.
unsafe fn kernel_pd<'a>(
    pd: *mut bindings::ib_pd,
) -> Result<(*mut bindings::ib_pd, KernelOwned<'a>)> {
    // SAFETY: A field of `pd`, which was filled, by this function's `# Safety`; it never changes.
    if !unsafe { (*pd).uobject }.is_null() {
        return Err(EPERM);
    }
    // SAFETY: `new_unchecked` requires an object of a kernel consumer: a domain without user object
    // is of one. And a lifetime that ends with the call: `'a` does, by this function's `# Safety`.
    let proof = unsafe { KernelOwned::new_unchecked() };
    Ok((pd, proof))
}

/// `ops.map_mr_sg`.
///
/// # Safety
///
/// `mr` was made by [`alloc_mr`], `list` has `entries` entries, `offset` is null or valid; no other
/// call maps it now.
pub(super) unsafe extern "C" fn map_mr_sg<T: Driver>(
    mr: *mut bindings::ib_mr,
    list: *mut bindings::scatterlist,
    entries: c_int,
    offset: *mut c_uint,
) -> c_int {
    from_result(|| {
        // SAFETY: `driver_part` requires a structure that was filled and is not emptied meanwhile:
        // `mr` is, by this function's `# Safety`.
        let driver_part = unsafe { MrObject::<T::Mr>::driver_part(mr) };
        let mut sg = MapSg {
            mr: NonNull::new(mr).ok_or(EINVAL)?,
            list,
            entries,
            offset,
            pages: driver_part.link.as_deref().ok_or(EINVAL)?,
            set_page: set_page::<T::Mr>,
        };
        driver_part.data.map_sg(&mut sg)
    })
}

/// Adds one page, for `ib_sg_to_pages()`.
///
/// # Safety
///
/// `mr` was made by [`alloc_mr`], and no other call maps it now.
unsafe extern "C" fn set_page<M>(mr: *mut bindings::ib_mr, page: u64) -> c_int {
    from_result(|| {
        // SAFETY: `driver_part` requires a structure that was filled and is not emptied meanwhile:
        // `mr` is, by this function's `# Safety`.
        let driver_part = unsafe { MrObject::<M>::driver_part(mr) };
        // SAFETY: A field of `mr`, a region that one thread maps, by this function's `# Safety`.
        let page_size = unsafe { (*mr).page_size };
        let pages = driver_part.link.as_deref().ok_or(EINVAL)?;
        pages.push(page, page_size.into())?;
        Ok(0)
    })
}

/// `ops.dereg_mr`.
///
/// # Safety
///
/// `mr` was made by one of the functions above, and is not used any more if this succeeds.
pub(super) unsafe extern "C" fn dereg_mr<T: Driver>(
    mr: *mut bindings::ib_mr,
    _udata: *mut bindings::ib_udata,
) -> c_int {
    from_result(|| {
        // SAFETY: `data` requires a structure that was filled and is not emptied meanwhile: `mr`
        // is, by this function's `# Safety`.
        unsafe { MrObject::<T::Mr>::data(mr) }.dereg()?;
        // SAFETY: `from_raw` requires a pointer of `KBox::into_raw` that nothing else owns:
        // `finish_region` made it by that, of a box of that layout, and by this function's `#
        // Safety` nothing uses it any more.
        drop(unsafe { KBox::from_raw(mr.cast::<MrObject<T::Mr>>()) });
        Ok(0)
    })
}

/// `ops.fill_res_mr_entry`.
///
/// # Safety
///
/// `msg` is being written to, `mr` was filled.
pub(super) unsafe extern "C" fn fill_res_mr_entry<T: Driver>(
    msg: *mut bindings::sk_buff,
    mr: *mut bindings::ib_mr,
) -> c_int {
    // SAFETY: `data` requires a structure that was filled and is not emptied meanwhile: `mr` is, by
    // this function's `# Safety`.
    let mr = unsafe { MrObject::<T::Mr>::data(mr) };
    // SAFETY: `restrack::fill` requires a message that is being written to: `msg` is, by this
    // function's `# Safety`.
    unsafe { restrack::fill(msg, |details| mr.describe(details)) }
}

/// `enum ib_uverbs_advise_mr_advice`.
const ADVICE_PREFETCH: u32 =
    bindings::ib_uverbs_advise_mr_advice_IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH;
const ADVICE_PREFETCH_WRITE: u32 =
    bindings::ib_uverbs_advise_mr_advice_IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE;
const ADVICE_PREFETCH_NO_FAULT: u32 =
    bindings::ib_uverbs_advise_mr_advice_IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT;
