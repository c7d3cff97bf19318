// SPDX-License-Identifier: GPL-2.0
/* Helpers of rust/ratelimit.rs. */
#include <linux/ratelimit.h>

void riwarp_helper_ratelimit_state_init(struct ratelimit_state *state,
					int interval, int burst);
void riwarp_helper_ratelimit_state_init(struct ratelimit_state *state,
					int interval, int burst)
{
	ratelimit_state_init(state, interval, burst);
}
