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

/// Returns a random number below `bound`, and any number if that is 0. Context: any.
pub fn below(bound: u32) -> u32 {
    // SAFETY: Has no requirements; it leaves the meaning of a bound of 0 to the caller.
    unsafe { bindings::__get_random_u32_below(bound) }
}

#[kernel::prelude::kunit_tests(riwarp_random)]
mod tests {
    use super::*;

    #[test]
    fn two_random_values_differ() {
        let first: [u8; 32] = octets();
        let second: [u8; 32] = octets();
        assert!(first != second);
    }

    #[test]
    fn random_value_is_below_bound() {
        assert!((0..100).all(|_| below(3) < 3));
        assert!((0..100).any(|_| below(3) == 2));
    }
}
