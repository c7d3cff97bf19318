// SPDX-License-Identifier: GPL-2.0

//! The driver's details of an object in `rdma -dd resource show`.
//!
//! The driver's names and values become attributes of a netlink message. Any user may read it, so
//! it contains no keys and no addresses.
//!
//! Context: process.
//!
//! C header: `include/rdma/restrack.h`.

use crate::bindings;
use core::marker::PhantomData;
use core::ptr::NonNull;
use kernel::error::from_result;
use kernel::error::to_result;
use kernel::ffi::c_int;
use kernel::prelude::*;

/// The driver's part of the description of an object.
pub struct Details<'a> {
    msg: NonNull<bindings::sk_buff>,
    _life: PhantomData<&'a mut bindings::sk_buff>,
}

impl Details<'_> {
    /// Lets `f` fill in the driver's part.
    ///
    /// # Safety
    ///
    /// `msg` must be a message being written, which nothing else uses.
    ///
    /// # Errors
    ///
    /// `EMSGSIZE` if the message is full or `f` failed; the message is unchanged then.
    unsafe fn fill(
        msg: NonNull<bindings::sk_buff>,
        f: impl FnOnce(&mut Details<'_>) -> Result,
    ) -> Result {
        // CAST: A small constant.
        let kind = bindings::rdma_nldev_attr_RDMA_NLDEV_ATTR_DRIVER as c_int;
        // SAFETY: `nla_nest_start_noflag()` requires a message being written, which nothing else
        // uses; the caller guarantees that for `msg`.
        let nest = unsafe { riwarp_helper_nla_nest_start_noflag(msg.as_ptr(), kind) };
        let nest = NonNull::new(nest).ok_or(EMSGSIZE)?;
        let mut details = Details {
            msg,
            _life: PhantomData,
        };
        match f(&mut details) {
            Ok(()) => {
                // SAFETY: `nla_nest_end()` requires the result of `nla_nest_start_noflag()` for the
                // same message, with no attribute open in it: `nest` is that, and `Details` leaves
                // none open.
                unsafe { riwarp_helper_nla_nest_end(msg.as_ptr(), nest.as_ptr()) };
                Ok(())
            }
            Err(_) => {
                // SAFETY: `nla_nest_cancel()` requires the result of `nla_nest_start_noflag()` for
                // the same message, which `nest` is.
                unsafe { riwarp_helper_nla_nest_cancel(msg.as_ptr(), nest.as_ptr()) };
                Err(EMSGSIZE)
            }
        }
    }

    /// Adds a string.
    ///
    /// # Errors
    ///
    /// `EMSGSIZE` if the message is full.
    pub fn word(&mut self, name: &CStr, value: &CStr) -> Result {
        // SAFETY: `rdma_nl_put_driver_string()` requires a message being filled, which the caller
        // of `fill` guarantees, and two strings, which it copies.
        to_result(unsafe {
            bindings::rdma_nl_put_driver_string(
                self.msg.as_ptr(),
                name.as_char_ptr(),
                value.as_char_ptr(),
            )
        })
    }

    /// Adds a number.
    ///
    /// # Errors
    ///
    /// `EMSGSIZE` if the message is full.
    pub fn number(&mut self, name: &CStr, value: u32) -> Result {
        // SAFETY: The function requires a message being filled, which the caller of `fill`
        // guarantees, and a string, which it copies.
        to_result(unsafe {
            bindings::rdma_nl_put_driver_u32(self.msg.as_ptr(), name.as_char_ptr(), value)
        })
    }

    /// Adds a set of flags.
    ///
    /// # Errors
    ///
    /// `EMSGSIZE` if the message is full.
    pub fn flags(&mut self, name: &CStr, value: u32) -> Result {
        // SAFETY: The function requires a message being filled, which the caller of `fill`
        // guarantees, and a string, which it copies.
        to_result(unsafe {
            bindings::rdma_nl_put_driver_u32_hex(self.msg.as_ptr(), name.as_char_ptr(), value)
        })
    }
}

/// Lets `f` write the driver's part of a message, for `ops.fill_res_*`.
///
/// `ib_core` describes an object only between the end of its creation and the begin of its
/// destruction, which waits for that.
///
/// # Safety
///
/// `msg` must be a message being written, which nothing else uses.
pub(super) unsafe fn fill(
    msg: *mut bindings::sk_buff,
    f: impl FnOnce(&mut Details<'_>) -> Result,
) -> c_int {
    from_result(|| {
        let msg = NonNull::new(msg).ok_or(EINVAL)?;
        // SAFETY: `Details::fill` requires a message being written, which nothing else uses: the
        // caller guarantees that.
        unsafe { Details::fill(msg, f) }?;
        Ok(0)
    })
}

extern "C" {
    fn riwarp_helper_nla_nest_start_noflag(
        msg: *mut bindings::sk_buff,
        kind: c_int,
    ) -> *mut bindings::nlattr;
    fn riwarp_helper_nla_nest_end(msg: *mut bindings::sk_buff, nest: *mut bindings::nlattr);
    fn riwarp_helper_nla_nest_cancel(msg: *mut bindings::sk_buff, nest: *mut bindings::nlattr);
}

#[kernel::prelude::kunit_tests(riwarp_restrack)]
mod tests {
    use super::*;
    use kernel::ffi::c_uint;

    extern "C" {
        fn riwarp_helper_alloc_skb(size: c_uint) -> *mut bindings::sk_buff;
    }

    /// A message with room for at least the given number of octets.
    struct NetlinkMessage(NonNull<bindings::sk_buff>);

    impl NetlinkMessage {
        fn new(room: u32) -> Result<Self> {
            // SAFETY: The caller may sleep.
            let raw = unsafe { riwarp_helper_alloc_skb(room) };
            NonNull::new(raw).map(Self).ok_or(ENOMEM)
        }

        fn fill(&mut self, f: impl FnOnce(&mut Details<'_>) -> Result) -> Result {
            // SAFETY: This value owns the message.
            unsafe { Details::fill(self.0, f) }
        }

        fn octets(&self) -> &[u8] {
            // SAFETY: This value owns the buffer.
            let skb = unsafe { self.0.as_ref() };
            // SAFETY: The content is contiguous from `data` on, since the buffer is linear.
            unsafe { core::slice::from_raw_parts(skb.data, skb.len as usize) }
        }

        /// Takes the next attribute from `octets`: its type and its content.
        fn next(octets: &mut &[u8]) -> Option<(u16, KVec<u8>)> {
            let (head, rest) = octets.split_first_chunk::<4>()?;
            let [a, b, c, d] = *head;
            let len = usize::from(u16::from_ne_bytes([a, b])).checked_sub(4)?;
            let mut value = KVec::new();
            value.extend_from_slice(rest.get(..len)?, GFP_KERNEL).ok()?;
            *octets = rest.get(len.next_multiple_of(4)..)?;
            Some((u16::from_ne_bytes([c, d]), value))
        }
    }

    impl Drop for NetlinkMessage {
        fn drop(&mut self) {
            // SAFETY: `sk_skb_reason_drop()` requires a reference that is not used again: `new`
            // created it, and nothing else has it. The socket may be null.
            unsafe {
                bindings::sk_skb_reason_drop(
                    core::ptr::null(),
                    self.0.as_ptr(),
                    bindings::skb_drop_reason_SKB_CONSUMED,
                );
            };
        }
    }

    #[test]
    fn restrack_details_are_in_one_netlink_attribute() -> Result {
        let mut message = NetlinkMessage::new(1000)?;
        message.fill(|details| {
            details.word(c"kind", c"user")?;
            details.number(c"windows", 0x0102_0304)?;
            details.flags(c"access", 5)
        })?;
        let mut octets = message.octets();
        let (kind, inside) = NetlinkMessage::next(&mut octets).ok_or(EINVAL)?;
        assert_eq!(
            u32::from(kind),
            bindings::rdma_nldev_attr_RDMA_NLDEV_ATTR_DRIVER
        );
        assert!(octets.is_empty());
        let mut inside = &inside[..];
        let mut expect = |value: &[u8]| {
            let mut found = false;
            // The print type of a value is an attribute too.
            for _ in 0..2 {
                found |= NetlinkMessage::next(&mut inside)
                    .is_some_and(|(_, octets)| octets[..] == *value);
                if found {
                    break;
                }
            }
            found
        };
        assert!(expect(b"kind\0") && expect(b"user\0"));
        assert!(expect(b"windows\0") && expect(&0x0102_0304u32.to_ne_bytes()));
        assert!(expect(b"access\0") && expect(&5u32.to_ne_bytes()));
        assert!(inside.is_empty());
        Ok(())
    }

    #[test]
    fn restrack_details_without_room_are_removed() -> Result {
        let mut message = NetlinkMessage::new(100)?;
        message.fill(|details| details.number(c"first", 1))?;
        let len = message.octets().len();
        let mut told = 0;
        let refused = message.fill(|details| {
            for _ in 0..1000 {
                details.number(c"one of very many", 2)?;
                told += 1;
            }
            Ok(())
        });
        assert_eq!(refused, Err(EMSGSIZE));
        assert!(told > 0 && told < 1000);
        assert_eq!(message.octets().len(), len);
        // Nor does a fill that the driver aborts.
        let refused = message.fill(|details| {
            details.number(c"first", 1)?;
            Err(EINVAL)
        });
        assert_eq!(refused, Err(EMSGSIZE));
        assert_eq!(message.octets().len(), len);
        Ok(())
    }
}
