// SPDX-License-Identifier: GPL-2.0

//! A table from numbers to shared objects, which allocates the numbers; look-ups take no lock.
//!
//! Look-ups take any context, softirq included; insertion and removal take process context. The
//! map's own reference to a removed object is dropped in process context, after all look-ups that
//! could still see it have ended. So a softirq never drops the last reference to an object that it
//! looked up and released with bottom halves off throughout.
//!
//! C header: `include/linux/xarray.h`.

use crate::bindings;
use crate::compat;
use crate::random;
use crate::warn_on_once;
use crate::workqueue::Flags;
use crate::workqueue::OwnedQueue;
use crate::workqueue::Placement;
use core::marker::PhantomData;
use core::ops::Range;
use core::ptr::NonNull;
use kernel::container_of;
use kernel::error::to_result;
use kernel::ffi::c_int;
use kernel::ffi::c_ulong;
use kernel::ffi::c_void;
use kernel::prelude::*;
use kernel::sync::atomic::Atomic;
use kernel::sync::atomic::Relaxed;
use kernel::sync::rcu;
use kernel::sync::Arc;
use kernel::sync::ArcBorrow;
use kernel::types::Opaque;

/// The order in which a map allocates numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Each number is higher than the last by at most this step, so numbers are not reused soon.
    Rising(u32),
    /// Each number is random, so it cannot be guessed from others.
    Scattered,
}

/// A table from numbers to `Arc<T>`.
///
/// # Examples
///
/// ```
/// use kernel::sync::Arc;
/// use kernel_ext::rcu_map::Order;
/// use kernel_ext::rcu_map::RcuMap;
///
/// struct Region {
///     id: u32,
/// }
///
/// let regions = KBox::pin_init(RcuMap::new(1..1 << 24, Order::Scattered), GFP_KERNEL)?;
/// let region = regions.insert(|id| Ok(Arc::new(Region { id }, GFP_KERNEL)?))?;
/// assert!(regions.get(region.id).is_some());
/// regions.remove(region.id);
/// assert!(regions.get(region.id).is_none());
/// ```
///
/// # Invariants
///
/// Every entry of `xa` is reserved (and empty for all readers) or a pointer from `Arc<T>::into_raw`
/// that owns one reference. That reference is dropped no earlier than one RCU grace period after
/// the entry was erased.
#[pin_data(PinnedDrop)]
pub struct RcuMap<T: Send + Sync + 'static> {
    #[pin]
    xa: Opaque<bindings::xarray>,
    limit: Range<u32>,
    order: Order,
    /// The number allocated last; a hint, so concurrent writes do no harm.
    last: Atomic<u32>,
    /// The queue whose items drop the references to removed objects.
    queue: OwnedQueue,
    _value: PhantomData<Arc<T>>,
}

// SAFETY: The map owns `Arc<T>`, which is `Send` for such `T`.
unsafe impl<T: Send + Sync> Send for RcuMap<T> {}
// SAFETY: The functions that write `xa` lock it, and look-ups read it under RCU; a look-up returns
// an `Arc<T>`, which is `Sync`.
unsafe impl<T: Send + Sync> Sync for RcuMap<T> {}

impl<T: Send + Sync + 'static> RcuMap<T> {
    /// Makes an empty map that allocates numbers in `limit`, starting at a random one. Context:
    /// process, sleeps.
    ///
    /// # Errors
    ///
    /// `EINVAL` if `limit` is empty, `ENOMEM`.
    pub fn new(limit: Range<u32>, order: Order) -> impl PinInit<Self, Error> {
        pin_init::pin_init_scope(move || {
            let width = limit
                .end
                .checked_sub(limit.start)
                .filter(|w| *w > 0)
                .ok_or(EINVAL)?;
            let offset = random::below(width);
            let flags = Flags {
                placement: Placement::Unbound,
                highpri: false,
                mem_reclaim: false,
            };
            let queue = OwnedQueue::try_new(c"riwarp_free", flags)?;
            Ok(try_pin_init!(Self {
                xa <- Opaque::ffi_init(|slot| {
                    // SAFETY: By the contract of `ffi_init`, `slot` is valid for writes.
                    unsafe { riwarp_helper_xa_init(slot) }
                }),
                // NO-OVERFLOW: `offset` is below the width of the range; wrapping for the
                // compiler's sake.
                last: Atomic::new(limit.start.wrapping_add(offset)),
                limit,
                order,
                queue,
                _value: PhantomData,
            }? Error))
        })
    }

    /// Allocates a number and inserts the object that `make` returns for it. Context: process,
    /// sleeps.
    ///
    /// While `make` runs, the number is reserved and look-ups of it find nothing.
    ///
    /// # Errors
    ///
    /// `ENOSPC` if all numbers are taken, `ENOMEM`, or what `make` returns.
    pub fn insert(&self, make: impl FnOnce(u32) -> Result<Arc<T>>) -> Result<Arc<T>> {
        let id = self.reserve()?;
        let value = match make(id) {
            Ok(value) => value,
            Err(error) => {
                // SAFETY: The array is initialised. The entry is the reserved one and owns nothing.
                unsafe { bindings::xa_erase(self.xa.get(), index_of(id)) };
                return Err(error);
            }
        };
        let raw = Arc::into_raw(value.clone()).cast_mut();
        // INVARIANT: The entry owns the reference. Storing to a reserved entry needs no memory and
        // cannot fail. SAFETY: The array is initialised. The pointer is aligned to at least 4,
        // since it follows a `refcount_t`.
        let old = unsafe { bindings::xa_store(self.xa.get(), index_of(id), raw.cast(), 0) };
        // SAFETY: Only reads the value of the pointer.
        let error = unsafe { riwarp_helper_xa_err(old) };
        warn_on_once!(error != 0);
        if let Err(error) = to_result(error) {
            // SAFETY: `from_raw` requires a pointer of `into_raw` and the reference that it owns:
            // the array has not taken it over.
            drop(unsafe { Arc::from_raw(raw.cast_const()) });
            // SAFETY: `xa_erase()` requires an array that is initialised. The entry is the reserved
            // one and owns nothing.
            unsafe { bindings::xa_erase(self.xa.get(), index_of(id)) };
            return Err(error);
        }
        Ok(value)
    }

    /// Looks a number up. Context: any.
    pub fn get(&self, id: u32) -> Option<Arc<T>> {
        self.with(id, |value| value.into())
    }

    /// Looks a number up and lends the object to `f`, without counting a reference. `f` must not
    /// sleep. Context: any.
    #[inline]
    pub fn with<R>(&self, id: u32, f: impl FnOnce(ArcBorrow<'_, T>) -> R) -> Option<R> {
        let _rcu = rcu::read_lock();
        // SAFETY: The array is initialised.
        let raw = unsafe { bindings::xa_load(self.xa.get(), index_of(id)) };
        let raw = NonNull::new(raw.cast::<T>())?;
        // SAFETY: By the type invariant this comes from `Arc::into_raw`, and the reference behind
        // it stays until the end of the read-side section, which `_rcu` keeps open longer than the
        // borrow lives.
        Some(f(unsafe { ArcBorrow::from_raw(raw.as_ptr().cast_const()) }))
    }

    /// Returns the object with the lowest number that is not below `from`. Context: any.
    ///
    /// A walk from one number to the next misses what is inserted behind it.
    pub fn next(&self, from: u32) -> Option<Arc<T>> {
        let _rcu = rcu::read_lock();
        let mut index = index_of(from);
        // SAFETY: `xa_find()` requires an array that is initialised, which it is by the type
        // invariant, and a place for the index: `index` is one. It skips reserved entries.
        let raw = unsafe {
            bindings::xa_find(
                self.xa.get(),
                &mut index,
                index_of(u32::MAX),
                bindings::RIWARP_XA_PRESENT,
            )
        };
        let raw = NonNull::new(raw.cast::<T>())?;
        // SAFETY: By the type invariant this comes from `Arc::into_raw`, and the reference behind
        // it stays until the end of the read-side section, which `_rcu` keeps open longer than the
        // borrow lives.
        Some(unsafe { ArcBorrow::from_raw(raw.as_ptr().cast_const()) }.into())
    }

    /// Removes an object; `None` if the number has none. Context: process, sleeps.
    ///
    /// Concurrent look-ups may still find it. The map's reference is dropped later, in process
    /// context.
    pub fn remove(&self, id: u32) -> Option<()> {
        // SAFETY: The array is initialised.
        let raw = unsafe { bindings::xa_erase(self.xa.get(), index_of(id)) };
        let raw = NonNull::new(raw.cast::<T>())?;
        self.retire(raw);
        Some(())
    }

    /// Waits until the references of all objects removed so far are dropped. Context: process,
    /// sleeps; not from the drop of an object.
    pub fn flush(&self) {
        // The end of the grace periods enqueues the items, so wait for that first.
        compat::rcu_barrier();
        self.queue.flush();
    }

    fn reserve(&self) -> Result<u32> {
        // NO-OVERFLOW: `limit` is not empty; wrapping for the compiler's sake.
        let max = self.limit.end.wrapping_sub(1);
        let limit = bindings::xa_limit {
            min: self.limit.start,
            max,
        };
        let mut next = match self.order {
            Order::Rising(step) => {
                let step = random::below(step).wrapping_add(1);
                self.last.load(Relaxed).wrapping_add(step)
            }
            Order::Scattered => {
                let width = self.limit.end.wrapping_sub(self.limit.start);
                self.limit.start.wrapping_add(random::below(width))
            }
        };
        // Wraps around at the end of the range.
        if next > max {
            next = self.limit.start;
        }
        let mut id = 0;
        // SAFETY: `xa_alloc_cyclic()` requires an array that is initialised, which `xa` is, and
        // pointers that are valid for the call: they are to variables of this function.
        let ret = unsafe { riwarp_helper_xa_reserve(self.xa.get(), &mut id, &limit, &mut next) };
        to_result(ret).map_err(|error| if error == EBUSY { ENOSPC } else { error })?;
        self.last.store(id, Relaxed);
        Ok(id)
    }

    /// Drops an erased entry's reference after a grace period.
    fn retire(&self, raw: NonNull<T>) {
        let init = pin_init!(Retired {
            rwork <- Opaque::ffi_init(|slot: *mut bindings::rcu_work| {
                // SAFETY: `INIT_RCU_WORK()` requires a place that is valid for writes: `slot` is,
                // by the contract of `ffi_init`.
                unsafe { riwarp_helper_init_rcu_work(slot, Retired::<T>::run) };
            }),
            value: raw,
        });
        match KBox::pin_init(init, GFP_KERNEL | __GFP_NOWARN) {
            Ok(retired) => {
                // SAFETY: The value is not moved out of the box, whose pointer goes to
                // `Retired::run`.
                let retired = KBox::into_raw(unsafe { Pin::into_inner_unchecked(retired) });
                // SAFETY: The item is initialised, never enqueued before, and stays where it is
                // until it has run. The queue outlives it: the map's drop waits for the grace
                // period and for the queue.
                unsafe {
                    bindings::queue_rcu_work(
                        self.queue.as_raw(),
                        Opaque::cast_into(&raw const (*retired).rwork),
                    )
                };
            }
            Err(_) => {
                // Without memory for the work item, wait here: the caller may sleep.
                compat::synchronize_rcu();
                // SAFETY: By the type invariant the erased entry owned a reference, and a grace
                // period has passed.
                drop(unsafe { Arc::from_raw(raw.as_ptr().cast_const()) });
            }
        }
    }
}

#[pinned_drop]
impl<T: Send + Sync + 'static> PinnedDrop for RcuMap<T> {
    fn drop(self: Pin<&mut Self>) {
        let mut index: c_ulong = 0;
        loop {
            // SAFETY: The array is initialised. `self` is borrowed exclusively.
            let raw = unsafe {
                bindings::xa_find(
                    self.xa.get(),
                    &mut index,
                    c_ulong::MAX,
                    bindings::RIWARP_XA_PRESENT,
                )
            };
            let Some(raw) = NonNull::new(raw.cast::<T>()) else {
                break;
            };
            // SAFETY: `xa_erase()` requires an array that is initialised, which it is until the end
            // of this function.
            unsafe { bindings::xa_erase(self.xa.get(), index) };
            // SAFETY: By the type invariant the entry owned a reference. `self` is borrowed
            // exclusively: no look-up can run, so no grace period is needed.
            drop(unsafe { Arc::from_raw(raw.as_ptr().cast_const()) });
        }
        self.flush();
        // SAFETY: The array is initialised and not used afterwards.
        unsafe { bindings::xa_destroy(self.xa.get()) };
    }
}

/// Converts a number to the array's index type.
#[inline]
fn index_of(id: u32) -> c_ulong {
    // CAST: `c_ulong` has 64 bits.
    id as c_ulong
}

/// A reference to drop after a grace period.
#[pin_data]
struct Retired<T> {
    #[pin]
    rwork: Opaque<bindings::rcu_work>,
    /// From `Arc::into_raw`, owned.
    value: NonNull<T>,
}

impl<T: Send + Sync + 'static> Retired<T> {
    /// Drops the reference and the item. Context: process.
    ///
    /// # Safety
    ///
    /// Only the work queue may call this, once, with the item that [`RcuMap::retire`] enqueued.
    unsafe extern "C" fn run(work: *mut bindings::work_struct) {
        // SAFETY: `container_of!` requires a pointer to a field of such a structure: the item that
        // `retire` enqueued is one of a `struct rcu_work`.
        let rwork = unsafe { container_of!(work, bindings::rcu_work, work) };
        // SAFETY: `container_of!` requires a pointer to a field of such a structure: `rwork` is one
        // of a `Retired<T>`, and `Opaque` is transparent.
        let retired =
            unsafe { container_of!(rwork.cast::<Opaque<bindings::rcu_work>>(), Self, rwork) };
        // SAFETY: `retire` made the pointer from a box, and only this call uses it.
        let retired = unsafe { KBox::from_raw(retired) };
        // SAFETY: `value` owns a reference, and a grace period has passed.
        drop(unsafe { Arc::from_raw(retired.value.as_ptr().cast_const()) });
    }
}

extern "C" {
    fn riwarp_helper_init_rcu_work(
        rwork: *mut bindings::rcu_work,
        run: unsafe extern "C" fn(*mut bindings::work_struct),
    );
    fn riwarp_helper_xa_err(entry: *mut c_void) -> c_int;
    fn riwarp_helper_xa_init(xa: *mut bindings::xarray);
    fn riwarp_helper_xa_reserve(
        xa: *mut bindings::xarray,
        id: *mut u32,
        limit: *const bindings::xa_limit,
        next: *mut u32,
    ) -> c_int;
}

#[kernel::prelude::kunit_tests(riwarp_rcu_map)]
mod tests {
    use super::*;

    /// Counts in `drops` when dropped.
    struct Item {
        id: u32,
        drops: Arc<Atomic<u32>>,
    }

    impl Drop for Item {
        fn drop(&mut self) {
            self.drops.add(1, Relaxed);
        }
    }

    fn counter() -> Result<Arc<Atomic<u32>>> {
        Ok(Arc::new(Atomic::new(0), GFP_KERNEL)?)
    }

    fn insert(map: &RcuMap<Item>, drops: &Arc<Atomic<u32>>) -> Result<Arc<Item>> {
        map.insert(|id| {
            let drops = drops.clone();
            Ok(Arc::new(Item { id, drops }, GFP_KERNEL)?)
        })
    }

    #[test]
    fn inserted_object_is_found_until_removed() -> Result {
        let map = KBox::pin_init(RcuMap::new(5..100, Order::Rising(16)), GFP_KERNEL)?;
        let item = insert(&map, &counter()?)?;
        assert!((5..100).contains(&item.id));
        assert!(map
            .get(item.id)
            .is_some_and(|found| Arc::ptr_eq(&found, &item)));
        assert_eq!(map.with(item.id, |found| found.id), Some(item.id));
        assert_eq!(map.remove(item.id), Some(()));
        assert!(map.get(item.id).is_none());
        assert_eq!(map.remove(item.id), None);
        Ok(())
    }

    #[test]
    fn each_number_of_range_is_allocated_once() -> Result {
        for order in [Order::Rising(16), Order::Scattered] {
            let map = KBox::pin_init(RcuMap::new(7..17, order), GFP_KERNEL)?;
            let drops = counter()?;
            for _ in 7..17 {
                insert(&map, &drops)?;
            }
            assert_eq!(insert(&map, &drops).err(), Some(ENOSPC));
            for id in 0..30 {
                assert_eq!(map.get(id).is_some(), (7..17).contains(&id));
            }
            map.remove(11);
            assert_eq!(insert(&map, &drops)?.id, 11);
        }
        Ok(())
    }

    #[test]
    fn scattered_numbers_are_far_from_each_other() -> Result {
        let map = KBox::pin_init(RcuMap::new(0..1 << 24, Order::Scattered), GFP_KERNEL)?;
        let drops = counter()?;
        let mut last = insert(&map, &drops)?.id;
        let mut near = 0;
        for _ in 0..256 {
            let next = insert(&map, &drops)?.id;
            near += u32::from(next.abs_diff(last) < 1 << 16);
            last = next;
        }
        // Two numbers may be adjacent by chance.
        assert!(near < 32);
        Ok(())
    }

    #[test]
    fn freed_number_is_not_reused_at_once() -> Result {
        let map = KBox::pin_init(RcuMap::new(0..1 << 20, Order::Rising(16)), GFP_KERNEL)?;
        let drops = counter()?;
        let mut last = insert(&map, &drops)?.id;
        for _ in 0..50 {
            map.remove(last);
            let next = insert(&map, &drops)?.id;
            assert!(next != last);
            last = next;
        }
        Ok(())
    }

    #[test]
    fn rejects_a_range_without_numbers() {
        let map = KBox::pin_init(RcuMap::<Item>::new(9..9, Order::Rising(16)), GFP_KERNEL);
        assert_eq!(map.err(), Some(EINVAL));
    }

    #[test]
    fn number_is_freed_if_object_creation_fails() -> Result {
        let map = KBox::pin_init(RcuMap::<Item>::new(3..4, Order::Rising(16)), GFP_KERNEL)?;
        let failed = map.insert(|id| {
            // The number is reserved, but look-ups find nothing yet.
            assert_eq!(id, 3);
            assert!(map.get(id).is_none());
            Err(EIO)
        });
        assert_eq!(failed.err(), Some(EIO));
        assert_eq!(insert(&map, &counter()?)?.id, 3);
        Ok(())
    }

    #[test]
    fn removed_object_lives_until_last_reference() -> Result {
        let map = KBox::pin_init(RcuMap::new(0..10, Order::Rising(16)), GFP_KERNEL)?;
        let drops = counter()?;
        let item = insert(&map, &drops)?;
        map.remove(item.id);
        map.flush();
        assert_eq!(drops.load(Relaxed), 0);
        drop(item);
        assert_eq!(drops.load(Relaxed), 1);
        Ok(())
    }

    #[test]
    fn flush_waits_for_the_last_reference() -> Result {
        let map = KBox::pin_init(RcuMap::new(0..100, Order::Rising(16)), GFP_KERNEL)?;
        let drops = counter()?;
        for _ in 0..20 {
            let id = insert(&map, &drops)?.id;
            map.remove(id);
        }
        map.flush();
        assert_eq!(drops.load(Relaxed), 20);
        Ok(())
    }

    #[test]
    fn dropped_map_drops_its_objects() -> Result {
        let map = KBox::pin_init(RcuMap::new(0..100, Order::Rising(16)), GFP_KERNEL)?;
        let drops = counter()?;
        for _ in 0..5 {
            insert(&map, &drops)?;
        }
        drop(map);
        assert_eq!(drops.load(Relaxed), 5);
        Ok(())
    }
}
