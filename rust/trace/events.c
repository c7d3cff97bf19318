// SPDX-License-Identifier: GPL-2.0
/*
 * The definitions of the trace events, by the kernel's macros. An object of its own, since the
 * kernel's compiler makes it in each build (Kbuild); the calls are in rust/helpers/trace.c.
 */
#define CREATE_TRACE_POINTS
#include "riwarp_events.h"
