// SPDX-License-Identifier: GPL-2.0

//! Random numbers from the kernel's generator.
//!
//! C header: `include/linux/random.h`.

use crate::bindings;

/// Returns random octets. Context: any.
pub fn octets<const N: usize>() -> [u8; N] {
    let mut octets = [0; N];
    // SAFETY: The array is valid for writes of its length.
    unsafe { bindings::get_random_bytes(octets.as_mut_ptr().cast(), N) };
    octets
}

#[kernel::prelude::kunit_tests(riwarp_random)]
mod tests {
    use super::*;

    #[test]
    fn two_draws_differ() {
        let first: [u8; 32] = octets();
        let second: [u8; 32] = octets();
        assert!(first != second);
    }
}
