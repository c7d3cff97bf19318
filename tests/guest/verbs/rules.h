/* SPDX-License-Identifier: GPL-2.0 */
/* The file `inject` of the device under test. */
#ifndef RIWARP_TESTS_RULES_H
#define RIWARP_TESTS_RULES_H

#include "common.h"

/* Returns whether the device adds these lines to its rules; errno says why not. */
bool takes_rules(const char *text);
/* Writes rules in place of those there were. */
bool rules(const char *format, ...);
/* Returns what the file shows, until the next call. */
const char *shown_rules(void);
/*
 * Posts a signaled request of the first octets of `local`; a Write, Read or atomic is of `remote`,
 * too.
 */
bool post_rdma(struct end *end, enum ibv_wr_opcode op, uint64_t id, const struct region *local,
	       const struct region *remote, size_t len);
/* The ends of connections of this namespace that a reset has ended (EstabResets of RFC 4022). */
long resets(void);

#endif
