// SPDX-License-Identifier: GPL-2.0

//! Atomic operations: the two messages, and the arithmetic.
//!
//! A request is parsed into one of the two operations; the driver applies
//! [`AtomicOperation::apply`] to the 64-bit word at the target, in the target's own byte order,
//! inside a compare-exchange loop.
//!
//! Pure, any context.
//!
//! RFC 7306, sections 5 and 8.

use crate::{
    bytes::{
        put_u32,
        put_u64,
        take_u32,
        take_u64, //
    },
    fault::Fault,
    stag::{
        Stag,
        TaggedOffset, //
    }, //
};

/// Length in octets of every target.
pub const TARGET_LEN: u32 = 8;

/// What to do with the 64-bit word at the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOperation {
    /// AOpCode 0, FetchAdd.
    FetchAdd {
        /// What to add.
        add: u64,
        /// A 1 bit is the most significant bit of a field; the carry out of it is dropped. 0 is one
        /// field of 64 bits (EXT-21..23).
        mask: u64,
    },
    /// AOpCode 2, CmpSwap.
    CompareSwap {
        /// What to store.
        swap: u64,
        /// Which bits to store.
        swap_mask: u64,
        /// What to compare with.
        compare: u64,
        /// Which bits to compare; none always matches, which makes it the Swap of the first draft
        /// (EXT-81).
        compare_mask: u64,
    },
}

impl AtomicOperation {
    const FETCH_ADD: u32 = 0x0;
    const COMPARE_SWAP: u32 = 0x2;

    /// Returns what the target holds afterwards if it held `original` before.
    ///
    /// A CmpSwap that does not match leaves the word alone (EXT-28, -29).
    #[inline]
    pub const fn apply(self, original: u64) -> u64 {
        match self {
            Self::FetchAdd { add, mask } => {
                // The top bits of all fields are added without carry, the rest as one number: no
                // carry can leave a field, for the place it would go through is zero in both
                // summands.
                let low = (original & !mask).wrapping_add(add & !mask);
                low ^ ((original ^ add) & mask)
            }
            Self::CompareSwap {
                swap,
                swap_mask,
                compare,
                compare_mask,
            } => {
                if (original ^ compare) & compare_mask == 0 {
                    (original & !swap_mask) | (swap & swap_mask)
                } else {
                    original
                }
            }
        }
    }
}

/// The header of an Atomic Request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicRequest {
    /// Chosen by the requester, echoed by the responder (EXT-34).
    pub identifier: u32,
    /// The buffer at the responder.
    pub stag: Stag,
    /// Where in it the target lies.
    pub to: TaggedOffset,
    /// The operation.
    pub operation: AtomicOperation,
}

impl AtomicRequest {
    /// Length of the RDMAP header in octets; nothing follows it.
    pub const LEN: usize = 52;

    /// Reads a header. Reserved bits and the compare fields of FetchAdd are not looked at
    /// (EXT-32, -36).
    ///
    /// # Errors
    ///
    /// [`Fault::AtomicOperation`] for an AOpCode other than 0 and 2 (EXT-39).
    #[inline]
    pub fn decode(octets: &[u8; Self::LEN]) -> Result<Self, Fault> {
        let data = take_u64::<20, 52>(octets);
        let mask = take_u64::<28, 52>(octets);
        let operation = match take_u32::<0, 52>(octets) & 0x0f {
            AtomicOperation::FETCH_ADD => AtomicOperation::FetchAdd { add: data, mask },
            AtomicOperation::COMPARE_SWAP => AtomicOperation::CompareSwap {
                swap: data,
                swap_mask: mask,
                compare: take_u64::<36, 52>(octets),
                compare_mask: take_u64::<44, 52>(octets),
            },
            _ => return Err(Fault::AtomicOperation),
        };
        Ok(Self {
            identifier: take_u32::<4, 52>(octets),
            stag: Stag::new(take_u32::<8, 52>(octets)),
            to: TaggedOffset::new(take_u64::<12, 52>(octets)),
            operation,
        })
    }

    /// Returns the octets of the header. FetchAdd fills the compare fields with 0 and ones
    /// (EXT-36).
    #[inline]
    pub fn encode(&self) -> [u8; Self::LEN] {
        let (code, data, mask, compare, compare_mask) = match self.operation {
            AtomicOperation::FetchAdd { add, mask } => {
                (AtomicOperation::FETCH_ADD, add, mask, 0, u64::MAX)
            }
            AtomicOperation::CompareSwap {
                swap,
                swap_mask,
                compare,
                compare_mask,
            } => (
                AtomicOperation::COMPARE_SWAP,
                swap,
                swap_mask,
                compare,
                compare_mask,
            ),
        };
        let mut octets = [0; Self::LEN];
        put_u32::<0, 52>(&mut octets, code);
        put_u32::<4, 52>(&mut octets, self.identifier);
        put_u32::<8, 52>(&mut octets, self.stag.raw());
        put_u64::<12, 52>(&mut octets, self.to.raw());
        put_u64::<20, 52>(&mut octets, data);
        put_u64::<28, 52>(&mut octets, mask);
        put_u64::<36, 52>(&mut octets, compare);
        put_u64::<44, 52>(&mut octets, compare_mask);
        octets
    }
}

/// Checks that the **address** of an atomic target is a multiple of 8; the tagged offset does not
/// matter (EXT-24, -25, -35). To be called after [`crate::stag::check_source`] and before memory is
/// touched.
///
/// # Errors
///
/// [`Fault::AtomicUnaligned`].
#[inline]
pub const fn check_alignment(address: u64) -> Result<(), Fault> {
    if address & 7 == 0 {
        Ok(())
    } else {
        Err(Fault::AtomicUnaligned)
    }
}

/// The header of an Atomic Response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicResponse {
    /// The identifier of the request (EXT-34).
    pub identifier: u32,
    /// What the target held before, as a number (EXT-26).
    pub original: u64,
}

impl AtomicResponse {
    /// Length of the RDMAP header in octets; nothing follows it. RFC 7306 prints 32, which is an
    /// erratum.
    pub const LEN: usize = 12;

    /// Reads a header; every value is legal.
    #[inline]
    pub fn decode(octets: &[u8; Self::LEN]) -> Self {
        Self {
            identifier: take_u32::<0, 12>(octets),
            original: take_u64::<4, 12>(octets),
        }
    }

    /// Returns the octets of the header.
    #[inline]
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut octets = [0; Self::LEN];
        put_u32::<0, 12>(&mut octets, self.identifier);
        put_u64::<4, 12>(&mut octets, self.original);
        octets
    }
}
