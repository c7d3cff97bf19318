// SPDX-License-Identifier: GPL-2.0

//! Atomic operations: the two messages, and the arithmetic.
//!
//! A request is parsed into one of the operations; the driver carries it out on the 64-bit word
//! at the target, in the target's own byte order: by one instruction of the processor where there
//! is one ([`AtomicOperation::instruction`]), else by [`AtomicOperation::apply`] inside a
//! compare-exchange loop.
//!
//! AOpCode 1 is Swap in the first draft of RFC 7306 (draft-ietf-storm-rdmap-ext-00) and reserved in
//! the RFC. It is carried out, and sent only to a peer that is said to know no CmpSwap
//! ([`AtomicOperation::as_draft_swap`], EXT-81).
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
    /// AOpCode 1, Swap, which the first draft has.
    DraftSwap {
        /// What to store.
        swap: u64,
    },
    /// AOpCode 2, CmpSwap.
    CompareSwap {
        /// What to store.
        swap: u64,
        /// Which bits to store.
        swap_mask: u64,
        /// What to compare with.
        compare: u64,
        /// Which bits to compare; 0 always matches.
        compare_mask: u64,
    },
}

impl AtomicOperation {
    const FETCH_ADD: u32 = 0x0;
    const DRAFT_SWAP: u32 = 0x1;
    const COMPARE_SWAP: u32 = 0x2;

    /// Returns the Swap of the first draft that has the same effect, if there is one, else the
    /// operation itself.
    pub const fn as_draft_swap(self) -> Self {
        match self {
            Self::CompareSwap {
                swap,
                swap_mask: u64::MAX,
                compare_mask: 0,
                ..
            } => Self::DraftSwap { swap },
            _ => self,
        }
    }

    /// Returns the instruction with the same effect as [`AtomicOperation::apply`]. Operations
    /// without masks have one.
    #[inline]
    pub const fn instruction(self) -> Instruction {
        match self {
            Self::FetchAdd { add, mask: 0 } => Instruction::Add(add),
            Self::DraftSwap { swap }
            | Self::CompareSwap {
                swap,
                swap_mask: u64::MAX,
                compare_mask: 0,
                ..
            } => Instruction::Exchange(swap),
            Self::CompareSwap {
                swap,
                swap_mask: u64::MAX,
                compare,
                compare_mask: u64::MAX,
            } => Instruction::CompareExchange { swap, compare },
            Self::FetchAdd { .. } | Self::CompareSwap { .. } => Instruction::Loop,
        }
    }

    /// Returns what the target holds afterwards if it held `original` before.
    ///
    /// A CmpSwap that does not match leaves the word unchanged (EXT-28, -29).
    #[inline]
    pub const fn apply(self, original: u64) -> u64 {
        match self {
            Self::FetchAdd { add, mask } => {
                // The top bits of all fields are added without carry, the rest as one number. No
                // carry leaves a field, since the top bit of the field is zero in both summands.
                let low = (original & !mask).wrapping_add(add & !mask);
                low ^ ((original ^ add) & mask)
            }
            Self::DraftSwap { swap } => swap,
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

/// How a processor carries out an [`AtomicOperation`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instruction {
    /// Adds this.
    Add(u64),
    /// Stores this.
    Exchange(u64),
    /// Stores `swap` if the word is `compare`.
    CompareExchange {
        /// What to store.
        swap: u64,
        /// What to compare with.
        compare: u64,
    },
    /// None does it: a loop of compare-exchange with [`AtomicOperation::apply`].
    Loop,
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

    /// Reads a header. Ignores reserved bits, the compare fields of FetchAdd, and the mask and the
    /// compare fields of Swap (EXT-32, -36).
    ///
    /// # Errors
    ///
    /// [`Fault::AtomicOperation`] for an AOpCode above 2 (EXT-39).
    #[inline]
    pub fn decode(octets: &[u8; Self::LEN]) -> Result<Self, Fault> {
        let data = take_u64::<20, 52>(octets);
        let mask = take_u64::<28, 52>(octets);
        let operation = match take_u32::<0, 52>(octets) & 0x0f {
            AtomicOperation::FETCH_ADD => AtomicOperation::FetchAdd { add: data, mask },
            AtomicOperation::DRAFT_SWAP => AtomicOperation::DraftSwap { swap: data },
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

    /// Returns the octets of the header. FetchAdd and Swap fill the compare fields with 0 and ones,
    /// Swap its mask with ones (EXT-36, -81).
    #[inline]
    pub fn encode(&self) -> [u8; Self::LEN] {
        let (code, data, mask, compare, compare_mask) = match self.operation {
            AtomicOperation::FetchAdd { add, mask } => {
                (AtomicOperation::FETCH_ADD, add, mask, 0, u64::MAX)
            }
            AtomicOperation::DraftSwap { swap } => {
                (AtomicOperation::DRAFT_SWAP, swap, u64::MAX, 0, u64::MAX)
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
/// matter (EXT-24, -25, -35). The driver calls it after [`crate::stag::check_source`] and before it
/// accesses memory.
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

#[cfg(any(test, MODULE))]
#[cfg_attr(MODULE, kernel::prelude::kunit_tests(iwarp_atomic))]
mod tests {
    use super::*;

    const fn add(add: u64, mask: u64) -> AtomicOperation {
        AtomicOperation::FetchAdd { add, mask }
    }

    const fn swap(swap: u64, swap_mask: u64, compare: u64, compare_mask: u64) -> AtomicOperation {
        AtomicOperation::CompareSwap {
            swap,
            swap_mask,
            compare,
            compare_mask,
        }
    }

    #[test]
    fn adds_modulo_two_to_the_64() {
        assert_eq!(add(1, 0).apply(u64::MAX), 0);
        assert_eq!(add(u64::MAX, 0).apply(5), 4);
        assert_eq!(add(1, 1 << 63).apply(u64::MAX), 0);
    }

    #[test]
    fn masked_add_carry_stays_in_field() {
        let halves = (1 << 63) | (1 << 31);
        assert_eq!(
            add(1, halves).apply(0x0000_0007_ffff_ffff),
            0x0000_0007_0000_0000
        );
        assert_eq!(add(1 << 32, halves).apply(0xffff_ffff_0000_0009), 9);
        // 64 fields of one bit: no carry at all.
        assert_eq!(add(0xff00, u64::MAX).apply(0x0ff0), 0xf0f0);
    }

    #[test]
    fn fields_of_eight_bits_add_as_octets_do() {
        let mask = 0x8080_8080_8080_8080;
        let a = 0x00ff_7f80_0180_fe55_u64;
        let b = 0xff01_0180_ff80_03aa_u64;
        let mut expected = [0; 8];
        for (sum, (a, b)) in expected
            .iter_mut()
            .zip(a.to_be_bytes().into_iter().zip(b.to_be_bytes()))
        {
            *sum = a.wrapping_add(b);
        }
        assert_eq!(add(b, mask).apply(a), u64::from_be_bytes(expected));
    }

    #[test]
    fn swaps_only_where_the_compared_bits_match() {
        assert_eq!(swap(7, u64::MAX, 5, u64::MAX).apply(5), 7);
        assert_eq!(swap(7, u64::MAX, 5, u64::MAX).apply(4), 4);
        assert_eq!(swap(7, u64::MAX, 0x15, 0x0f).apply(0xf5), 7);
        assert_eq!(swap(7, 0x0f, 0, 0).apply(0xab), 0xa7);
    }

    #[test]
    fn instruction_equals_unmasked_operation() {
        const WORDS: [u64; 5] = [0, 1, 1 << 63, 0x0123_4567_89ab_cdef, u64::MAX];
        for (original, operand, compare) in WORDS
            .into_iter()
            .flat_map(|a| WORDS.into_iter().map(move |b| (a, b)))
            .flat_map(|(a, b)| WORDS.into_iter().map(move |c| (a, b, c)))
        {
            for (operation, becomes) in [
                (add(operand, 0), original.wrapping_add(operand)),
                (swap(operand, u64::MAX, compare, 0), operand),
                (AtomicOperation::DraftSwap { swap: operand }, operand),
                (
                    swap(operand, u64::MAX, compare, u64::MAX),
                    if original == compare {
                        operand
                    } else {
                        original
                    },
                ),
            ] {
                assert_eq!(operation.apply(original), becomes);
            }
            assert_eq!(add(operand, 0).instruction(), Instruction::Add(operand));
            for swap in [
                swap(operand, u64::MAX, compare, 0),
                AtomicOperation::DraftSwap { swap: operand },
            ] {
                assert_eq!(swap.instruction(), Instruction::Exchange(operand));
            }
            assert_eq!(
                swap(operand, u64::MAX, compare, u64::MAX).instruction(),
                Instruction::CompareExchange {
                    swap: operand,
                    compare
                }
            );
        }
        for masked in [
            add(1, 1),
            add(1, 1 << 63),
            swap(1, u64::MAX, 2, 1),
            swap(1, u64::MAX - 1, 2, u64::MAX),
            swap(1, 0, 2, 0),
        ] {
            assert_eq!(masked.instruction(), Instruction::Loop);
        }
    }

    #[test]
    fn atomic_requests_round_trip() {
        for operation in [
            add(1, 1 << 63),
            swap(1, 2, 3, 4),
            AtomicOperation::DraftSwap { swap: 5 },
        ] {
            let request = AtomicRequest {
                identifier: 0x0102_0304,
                stag: Stag::new(0x0506_0708),
                to: TaggedOffset::new(0x1122_3344_5566_7788),
                operation,
            };
            let octets = request.encode();
            assert_eq!(octets[4..8], [1, 2, 3, 4]);
            assert_eq!(AtomicRequest::decode(&octets), Ok(request));
        }
    }

    #[test]
    fn rejects_unknown_atomic_opcodes() {
        for code in 0..16 {
            let mut octets = [0; AtomicRequest::LEN];
            // Reserved bits are ignored.
            octets[..4].copy_from_slice(&[0xff, 0xff, 0xff, 0xf0 | code]);
            let request = AtomicRequest::decode(&octets);
            if code <= 2 {
                assert!(request.is_ok());
            } else {
                assert_eq!(request, Err(Fault::AtomicOperation));
            }
        }
    }

    #[test]
    fn only_full_unconditional_swap_is_draft_swap() {
        let draft = AtomicOperation::DraftSwap { swap: 7 };
        for compare in [0, 5, u64::MAX] {
            assert_eq!(swap(7, u64::MAX, compare, 0).as_draft_swap(), draft);
        }
        for other in [
            swap(7, u64::MAX, 0, 1),
            swap(7, u64::MAX >> 1, 0, 0),
            swap(7, 0, 0, 0),
            add(7, u64::MAX),
            draft,
        ] {
            assert_eq!(other.as_draft_swap(), other);
        }
    }

    #[test]
    fn draft_swap_ignores_its_masks() {
        let request = AtomicRequest {
            identifier: 7,
            stag: Stag::new(8),
            to: TaggedOffset::new(9),
            operation: AtomicOperation::DraftSwap { swap: 0x1122 },
        };
        // The draft fills the mask and the compare mask with ones, the compare data with zeros. The
        // receiver ignores all three.
        let mut octets = request.encode();
        assert_eq!(octets[..4], [0, 0, 0, 1]);
        assert_eq!(octets[28..36], [0xff; 8]);
        assert_eq!(octets[36..44], [0; 8]);
        assert_eq!(octets[44..], [0xff; 8]);
        for filler in [0xff, 0, 0x0f] {
            octets[28..].fill(filler);
            assert_eq!(AtomicRequest::decode(&octets), Ok(request));
        }
    }

    #[test]
    fn rejects_addresses_that_are_not_multiples_of_8() {
        for address in 0..64 {
            assert_eq!(check_alignment(address).is_ok(), address % 8 == 0);
        }
        assert_eq!(check_alignment(u64::MAX), Err(Fault::AtomicUnaligned));
    }

    #[test]
    fn atomic_response_is_12_octets() {
        let response = AtomicResponse {
            identifier: 0x0102_0304,
            original: 0x0506_0708_090a_0b0c,
        };
        assert!(response.encode().into_iter().eq(1..=12));
        assert_eq!(AtomicResponse::decode(&response.encode()), response);
    }
}
