// SPDX-License-Identifier: GPL-2.0
/* Helpers of rust/workqueue.rs. */
#include <linux/cpumask.h>
#include <linux/jiffies.h>

unsigned long riwarp_helper_jiffies(void);
unsigned long riwarp_helper_jiffies(void)
{
	return READ_ONCE(jiffies);
}

unsigned int riwarp_helper_num_online_cpus(void);
unsigned int riwarp_helper_num_online_cpus(void)
{
	return num_online_cpus();
}
