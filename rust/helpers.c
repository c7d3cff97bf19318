// SPDX-License-Identifier: GPL-2.0
/*
 * Short helpers through which Rust calls inline functions and macros of the
 * kernel's headers. No policy. Each file serves the Rust module of the same
 * name. And the module's version, for which Rust's module! has no field.
 *
 * In a build that inlines them (Kbuild) they are always_inline: LLVM would
 * refuse to inline them, because their attributes differ from those of Rust
 * functions. The kernel's rust/helpers/helpers.c explains this.
 */
#include <linux/module.h>

MODULE_VERSION(RIWARP_VERSION);

#ifdef RIWARP_INLINE
#pragma clang attribute push(__attribute__((always_inline)), apply_to = function)
#endif
#include "helpers/compat.c"
#include "helpers/debugfs_owner.c"
#ifdef RIWARP_INLINE
#include "helpers/kernel.c"
#endif
#include "helpers/mm.c"
#include "helpers/module_exclusion.c"
#include "helpers/module_param.c"
#include "helpers/net.c"
#include "helpers/percpu.c"
#include "helpers/ratelimit.c"
#include "helpers/rcu_map.c"
#include "helpers/rdma.c"
#include "helpers/static_key.c"
#include "helpers/sync.c"
#include "helpers/tls.c"
#include "helpers/trace.c"
#include "helpers/warn.c"
#include "helpers/workqueue.c"
#ifdef RIWARP_INLINE
#pragma clang attribute pop
#endif
