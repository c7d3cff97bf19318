// SPDX-License-Identifier: GPL-2.0

//! Bindings to the C headers that the kernel's own bindings leave out.
//!
//! The generated part contains only what `kernel::bindings` lacks; this module exports both. The
//! modules that call the helpers of `rust/helpers.c` declare them.

#![allow(
    clippy::all,
    dead_code,
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    improper_ctypes,
    unreachable_pub,
    unsafe_op_in_unsafe_fn,
    clippy::undocumented_unsafe_blocks,
    clippy::ptr_as_ptr,
    clippy::ref_as_ptr,
    clippy::cast_lossless,
    clippy::as_underscore,
    unused_imports
)]

pub(crate) use kernel::bindings::*;
use kernel::ffi;
use pin_init::MaybeZeroable;

include!(env!("RIWARP_BINDINGS"));
