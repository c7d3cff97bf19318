// SPDX-License-Identifier: GPL-2.0

//! Bindings to the C headers: all that this crate uses, as `rust/bindgen_parameters` lists it.
//!
//! What `kernel::bindings` holds depends on the kernel's version and configuration, so nothing is
//! taken from there but the types below (`tests/bindings`). The modules that call the helpers of
//! `rust/helpers.c` declare them.

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

// The types in functions of the `kernel` crate that this crate calls or implements, which uses them
// itself: `Kuid`, `Backend::init`, `ThisModule`, `Page`, `SeqFile`, `Work`, `Queue`.
pub(crate) use kernel::bindings::{
    kuid_t, lock_class_key, module, page, seq_file, work_struct, workqueue_struct,
};
use kernel::ffi;
use pin_init::MaybeZeroable;

type __kernel_size_t = usize;
type __kernel_ssize_t = isize;

include!(env!("RIWARP_BINDINGS"));
