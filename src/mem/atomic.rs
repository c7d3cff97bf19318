// SPDX-License-Identifier: GPL-2.0

//! Carries out a peer's atomic operation on a word of memory.
//!
//! Context: any, under the guard of the region under which the access was checked.

use iwarp::atomic::{
    AtomicOperation,
    Instruction, //
};
use kernel::prelude::*;
use kernel_ext::rdma::mem::mem_map::Memory;

/// Carries out `operation` on the 64-bit word at `at`, and returns what was there before.
///
/// # Errors
///
/// As [`Memory::update_u64`]; `EBUSY` only for operations with masks.
pub(crate) fn carry_out(memory: &Memory, at: u64, operation: AtomicOperation) -> Result<u64> {
    match operation.instruction() {
        Instruction::Add(add) => memory.fetch_add_u64(at, add),
        Instruction::Exchange(new) => memory.exchange_u64(at, new),
        Instruction::CompareExchange { swap, compare } => {
            memory.compare_exchange_u64(at, compare, swap)
        }
        Instruction::Loop => memory.update_u64(at, |original| operation.apply(original)),
    }
}

#[kernel::prelude::kunit_tests(riwarp_mem_atomic)]
mod tests {
    use super::*;
    use kernel_ext::{
        mm::shared_ring::SharedMem,
        rdma::bench::kernel_owned, //
    };

    #[test]
    fn atomic_operation_stores_its_arithmetic_result() -> Result {
        let words = SharedMem::try_new(4096)?;
        let start = words.start().expose_provenance() as u64;
        let memory = Memory::kernel_virtual(kernel_owned(), start, 4096)?;
        let swap = |swap, swap_mask, compare, compare_mask| AtomicOperation::CompareSwap {
            swap,
            swap_mask,
            compare,
            compare_mask,
        };
        for (n, operation) in [
            AtomicOperation::FetchAdd { add: 3, mask: 0 },
            AtomicOperation::FetchAdd {
                add: u64::MAX,
                mask: 1 << 31,
            },
            swap(7, u64::MAX, 40, u64::MAX),
            swap(7, u64::MAX, 41, u64::MAX),
            swap(7, u64::MAX, 41, 0),
            swap(7, 0x0f, 41, 0xf0),
        ]
        .into_iter()
        .enumerate()
        {
            let at = 8 * n;
            words.copy_in(at, &[40u64])?;
            assert_eq!(carry_out(&memory, at as u64, operation), Ok(40));
            assert_eq!(words.copy_out(at), Some([operation.apply(40)]));
        }
        Ok(())
    }
}
