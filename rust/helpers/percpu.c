// SPDX-License-Identifier: GPL-2.0
/* Helpers of rust/percpu.rs. */
#include <linux/percpu.h>

u64 __percpu *riwarp_helper_percpu_count_alloc(void);
u64 __percpu *riwarp_helper_percpu_count_alloc(void)
{
	return alloc_percpu(u64);
}

void riwarp_helper_percpu_count_add(u64 __percpu *count, u64 n);
void riwarp_helper_percpu_count_add(u64 __percpu *count, u64 n)
{
	this_cpu_add(*count, n);
}

void riwarp_helper_percpu_count_free(u64 __percpu *count);
void riwarp_helper_percpu_count_free(u64 __percpu *count)
{
	free_percpu(count);
}

u64 riwarp_helper_percpu_count_sum(u64 __percpu *count);
u64 riwarp_helper_percpu_count_sum(u64 __percpu *count)
{
	u64 sum = 0;
	int cpu;

	for_each_possible_cpu(cpu)
		sum += READ_ONCE(*per_cpu_ptr(count, cpu));
	return sum;
}
