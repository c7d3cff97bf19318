// SPDX-License-Identifier: GPL-2.0
/* Helper of rust/warn.rs. */
#include <linux/bug.h>

void riwarp_helper_warn(const char *text);
void riwarp_helper_warn(const char *text)
{
	WARN(1, "riwarp: %s\n", text);
}
