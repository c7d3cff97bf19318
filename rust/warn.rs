// SPDX-License-Identifier: GPL-2.0

//! Warnings about states that the module's own code excludes, each once per place.
//!
//! `kernel::warn_on!` warns each time, and includes files that packages of headers lack.
//!
//! C header: `include/asm-generic/bug.h`.

use kernel::ffi::c_char;
use kernel::prelude::*;
use kernel::sync::atomic::Atomic;
use kernel::sync::atomic::Relaxed;

/// Warns if `cond` is true, the first time only; returns `cond`.
///
/// With `panic_on_warn` a warning stops the machine. So it stands only where nothing from outside
/// the module leads: no peer, process, signal, race of theirs, or failed allocation. The caller
/// also gives the state a defined end.
///
/// # Examples
///
/// ```
/// use kernel_ext::warn_on_once;
///
/// let (used, size) = (3, 4);
/// if warn_on_once!(used > size) {
///     return Err(EINVAL);
/// }
/// ```
#[macro_export]
macro_rules! warn_on_once {
    ($cond:expr) => {{
        static PLACE: $crate::warn::WarnOnce = $crate::warn::WarnOnce::new(::kernel::c_str!(
            concat!(file!(), ":", line!(), ": ", stringify!($cond))
        ));
        let cond: bool = $cond;
        if cond {
            PLACE.warn();
        }
        cond
    }};
}
pub use warn_on_once;

/// A place that warns once.
pub struct WarnOnce {
    text: &'static CStr,
    // ORDERING: Relaxed: stands for no other memory; the exchange decides who warns.
    warned: Atomic<bool>,
}

impl WarnOnce {
    /// Makes a place with the text of its warning.
    pub const fn new(text: &'static CStr) -> Self {
        Self {
            text,
            warned: Atomic::new(false),
        }
    }

    /// Warns, unless it has warned before.
    ///
    /// Context: any.
    #[cold]
    pub fn warn(&self) {
        if self.is_first() {
            // SAFETY: The helper requires a string, which `text` is.
            unsafe { riwarp_helper_warn(self.text.as_char_ptr()) };
        }
    }

    fn is_first(&self) -> bool {
        !self.warned.xchg(true, Relaxed)
    }
}

extern "C" {
    fn riwarp_helper_warn(text: *const c_char);
}

#[kernel::prelude::kunit_tests(riwarp_warn)]
mod tests {
    use super::*;

    #[test]
    fn warn_once_warns_the_first_time_only() {
        let place = WarnOnce::new(c"riwarp KUnit");
        assert!(place.is_first());
        assert!(!place.is_first());
        assert!(!WarnOnce::new(c"riwarp KUnit").warned.load(Relaxed));
    }

    #[test]
    fn warn_on_once_returns_the_condition_evaluated_once() {
        let mut evaluated = 0;
        for _ in 0..2 {
            assert!(!warn_on_once!({
                evaluated += 1;
                false
            }));
        }
        assert_eq!(evaluated, 2);
    }
}
