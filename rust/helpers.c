// SPDX-License-Identifier: GPL-2.0
/*
 * One-line helpers for what is inline or a macro in the kernel's headers, so
 * that Rust can call it. No policy. Each file serves the Rust module of the
 * same name.
 */
#include "helpers/mm.c"
#include "helpers/net.c"
#include "helpers/percpu.c"
#include "helpers/rdma.c"
#include "helpers/sync.c"
