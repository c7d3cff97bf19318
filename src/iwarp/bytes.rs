// SPDX-License-Identifier: GPL-2.0

//! Big-endian integers at constant offsets of fixed-length arrays.
//!
//! Every multi-octet field of DDP, RDMAP and MPA is big-endian, except the MPA CRC
//! ([`crate::mpa::crc_trailer`]). The compiler checks the offset against the length of the array,
//! so that no access can fail at run time.
//!
//! Pure functions, any context.

/// Copies `LEN` octets out of `octets`, beginning at `AT`.
///
/// An offset outside the array does not compile.
#[inline]
pub fn take<const AT: usize, const LEN: usize, const N: usize>(octets: &[u8; N]) -> [u8; LEN] {
    const { assert!(AT + LEN <= N, "field outside the header") };

    match octets.get(AT..).and_then(<[u8]>::first_chunk) {
        Some(field) => *field,
        // Not reached: the assertion above holds for every instance of the function.
        None => [0; LEN],
    }
}

/// Copies `field` into `octets`, beginning at `AT`.
///
/// An offset outside the array does not compile.
#[inline]
pub fn put<const AT: usize, const LEN: usize, const N: usize>(
    octets: &mut [u8; N],
    field: [u8; LEN],
) {
    const { assert!(AT + LEN <= N, "field outside the header") };

    if let Some(place) = octets
        .get_mut(AT..)
        .and_then(<[u8]>::first_chunk_mut::<LEN>)
    {
        *place = field;
    }
}

/// Reads the 16-bit field at `AT`.
#[inline]
pub fn take_u16<const AT: usize, const N: usize>(octets: &[u8; N]) -> u16 {
    u16::from_be_bytes(take::<AT, 2, N>(octets))
}

/// Reads the 32-bit field at `AT`.
#[inline]
pub fn take_u32<const AT: usize, const N: usize>(octets: &[u8; N]) -> u32 {
    u32::from_be_bytes(take::<AT, 4, N>(octets))
}

/// Reads the 64-bit field at `AT`.
#[inline]
pub fn take_u64<const AT: usize, const N: usize>(octets: &[u8; N]) -> u64 {
    u64::from_be_bytes(take::<AT, 8, N>(octets))
}

/// Writes the 16-bit field at `AT`.
#[inline]
pub fn put_u16<const AT: usize, const N: usize>(octets: &mut [u8; N], value: u16) {
    put::<AT, 2, N>(octets, value.to_be_bytes());
}

/// Writes the 32-bit field at `AT`.
#[inline]
pub fn put_u32<const AT: usize, const N: usize>(octets: &mut [u8; N], value: u32) {
    put::<AT, 4, N>(octets, value.to_be_bytes());
}

/// Writes the 64-bit field at `AT`.
#[inline]
pub fn put_u64<const AT: usize, const N: usize>(octets: &mut [u8; N], value: u64) {
    put::<AT, 8, N>(octets, value.to_be_bytes());
}

#[cfg(any(test, MODULE))]
#[cfg_attr(MODULE, kernel::prelude::kunit_tests(iwarp_bytes))]
mod tests {
    use super::*;

    #[test]
    fn big_endian_fields_round_trip_at_each_offset() {
        let mut octets = [0xee; 14];
        put_u16::<0, 14>(&mut octets, 0x0102);
        put_u32::<2, 14>(&mut octets, 0x0304_0506);
        put_u64::<6, 14>(&mut octets, 0x0708_090a_0b0c_0d0e);
        assert_eq!(octets, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14]);
        assert_eq!(take_u16::<0, 14>(&octets), 0x0102);
        assert_eq!(take_u32::<2, 14>(&octets), 0x0304_0506);
        assert_eq!(take_u64::<6, 14>(&octets), 0x0708_090a_0b0c_0d0e);
        assert_eq!(take::<12, 2, 14>(&octets), [13, 14]);
    }

    #[test]
    fn put_does_not_touch_neighbouring_octets() {
        let mut octets = [0xee; 8];
        put_u16::<3, 8>(&mut octets, 0);
        assert_eq!(octets, [0xee, 0xee, 0xee, 0, 0, 0xee, 0xee, 0xee]);
    }
}
