// SPDX-License-Identifier: GPL-2.0
/*
 * Short helpers for what is inline or a macro in the kernel's headers, so that
 * Rust can call it. No policy. Each file serves the Rust module of the same
 * name.
 *
 * Where they are inlined (Kbuild), they have to be: LLVM would not for their
 * attributes, which differ from those of Rust's functions without need; the
 * kernel's rust/helpers/helpers.c says which and why.
 */
#ifdef RIWARP_INLINE
#pragma clang attribute push(__attribute__((always_inline)), apply_to = function)
#endif
#include "helpers/mm.c"
#include "helpers/net.c"
#include "helpers/percpu.c"
#include "helpers/rdma.c"
#include "helpers/sync.c"
#ifdef RIWARP_INLINE
#pragma clang attribute pop
#endif
