// SPDX-License-Identifier: GPL-2.0

//! A limit for the rate of events, such as log lines that a stranger can cause.
//!
//! C header: `include/linux/ratelimit.h`.

use crate::bindings;
use kernel::ffi::c_int;
use kernel::prelude::*;
use kernel::time::msecs_to_jiffies;
use kernel::types::Opaque;

extern "C" {
    fn riwarp_helper_ratelimit_state_init(
        state: *mut bindings::ratelimit_state,
        interval: c_int,
        burst: c_int,
    );
}

/// Lets a number of events pass in each interval.
///
/// # Examples
///
/// ```
/// use kernel_ext::ratelimit::RateLimit;
///
/// // Two in each minute.
/// let limit = KBox::pin_init(RateLimit::new(60_000, 2), GFP_KERNEL)?;
/// let passed = (0..5).filter(|_| limit.allows(c"example")).count();
/// assert_eq!(passed, 2);
/// ```
///
/// # Invariants
///
/// `state` is initialised.
#[pin_data]
pub struct RateLimit {
    #[pin]
    state: Opaque<bindings::ratelimit_state>,
}

// SAFETY: A `struct ratelimit_state` belongs to no thread.
unsafe impl Send for RateLimit {}
// SAFETY: `___ratelimit()` locks the state.
unsafe impl Sync for RateLimit {}

impl RateLimit {
    /// Makes a limit of `burst` events in each interval of so many milliseconds.
    pub fn new(interval_millis: u32, burst: u16) -> impl PinInit<Self> {
        let interval = c_int::try_from(msecs_to_jiffies(interval_millis)).unwrap_or(c_int::MAX);
        // INVARIANT: The only step initialises it.
        pin_init!(Self {
            state <- Opaque::ffi_init(|state| {
                // SAFETY: `ratelimit_state_init()` requires memory for a state: `state` is that.
                unsafe { riwarp_helper_ratelimit_state_init(state, interval, burst.into()) }
            }),
        })
    }

    /// Returns whether one more event may pass. The kernel logs the number of those that could not,
    /// with `name` in front, when the next interval begins with an event.
    ///
    /// Context: any.
    pub fn allows(&self, name: &'static CStr) -> bool {
        // SAFETY: `___ratelimit()` requires a state that is initialised, which it is by the type
        // invariant, and a string: `name` is one.
        unsafe { bindings::___ratelimit(self.state.get(), name.as_char_ptr()) != 0 }
    }
}

#[kernel::prelude::kunit_tests(riwarp_ratelimit)]
mod tests {
    use super::*;
    use kernel::sync::Arc;

    #[test]
    fn ratelimit_passes_at_most_the_burst() -> Result {
        let limit = Arc::pin_init(RateLimit::new(3_600_000, 3), GFP_KERNEL)?;
        let passed = (0..20).filter(|_| limit.allows(c"riwarp KUnit")).count();
        assert_eq!(passed, 3);
        Ok(())
    }

    #[test]
    fn ratelimit_passes_events_of_next_interval() -> Result {
        let limit = Arc::pin_init(RateLimit::new(20, 1), GFP_KERNEL)?;
        assert!(limit.allows(c"riwarp KUnit"));
        let mut passed = false;
        for _ in 0..1000 {
            kernel::time::delay::fsleep(kernel::time::Delta::from_millis(10));
            passed = limit.allows(c"riwarp KUnit");
            if passed {
                break;
            }
        }
        assert!(passed);
        Ok(())
    }
}
