// SPDX-License-Identifier: GPL-2.0
/* Helpers of rust/static_key.rs, and its key. */
#include <linux/jump_label.h>

static DEFINE_STATIC_KEY_FALSE(riwarp_static_key);

bool riwarp_helper_static_key_is_on(void);
bool riwarp_helper_static_key_is_on(void)
{
	return static_branch_unlikely(&riwarp_static_key);
}

void riwarp_helper_static_key_inc(void);
void riwarp_helper_static_key_inc(void)
{
	static_branch_inc(&riwarp_static_key);
}

void riwarp_helper_static_key_dec(void);
void riwarp_helper_static_key_dec(void)
{
	static_branch_dec(&riwarp_static_key);
}
