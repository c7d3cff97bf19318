// SPDX-License-Identifier: GPL-2.0

//! Single loads and stores, as one instruction each where the machine's order allows.
//!
//! What [`Atomic::load`] and [`Atomic::store`] do is a call of a C function each where the kernel's helpers
//! are not inlined (`Kbuild`). On the way of a message there are dozens, most of them of flags that only say
//! whether a closer look is due.
//!
//! C header: `include/asm-generic/rwonce.h`.

use core::sync::atomic::fence;
use core::sync::atomic::Ordering;
use kernel::sync::atomic::Atomic;

/// `READ_ONCE`, `WRITE_ONCE`, `smp_load_acquire` and `smp_store_release`, for values that others change with
/// atomic operations or by these.
pub trait Once {
    /// What is stored.
    type Value: Copy;

    /// Reads the value, without any order.
    fn read_once(&self) -> Self::Value;

    /// Reads the value; what is read after this is no older.
    fn read_acquire(&self) -> Self::Value;

    /// Writes the value, without any order.
    fn write_once(&self, value: Self::Value);

    /// Writes the value; what was read and written before this is done by then.
    fn write_release(&self, value: Self::Value);
}

macro_rules! once {
    ($($value:ty),*) => { $(
        impl Once for Atomic<$value> {
            type Value = $value;

            #[inline(always)]
            fn read_once(&self) -> $value {
                // SAFETY: The pointer is valid and aligned. All others access the value by marked
                // operations of its size too, which a volatile one does not race with in the
                // kernel's memory model.
                unsafe { self.as_ptr().read_volatile() }
            }

            #[inline(always)]
            fn read_acquire(&self) -> $value {
                let value = self.read_once();
                // ORDERING: a load and then this fence order no less than `smp_load_acquire`.
                fence(Ordering::Acquire);
                value
            }

            #[inline(always)]
            fn write_once(&self, value: $value) {
                // SAFETY: As above.
                unsafe { self.as_ptr().write_volatile(value) }
            }

            #[inline(always)]
            fn write_release(&self, value: $value) {
                // ORDERING: this fence and then a store order no less than `smp_store_release`.
                fence(Ordering::Release);
                self.write_once(value);
            }
        }
    )* };
}

once!(bool, i8, i16, i32, u32, i64, u64, usize);
