// SPDX-License-Identifier: GPL-2.0
/* Helpers of rust/module_param.rs: a parameter that is written while the module is loaded. */
#include <linux/moduleparam.h>

/* Implemented in Rust. */
int riwarp_next_device_set(const char *text);

static int next_device_set(const char *text, const struct kernel_param *param)
{
	return riwarp_next_device_set(text);
}

static const struct kernel_param_ops next_device_ops = { .set = next_device_set };
module_param_cb(next_device, &next_device_ops, NULL, 0200);
MODULE_PARM_DESC(next_device, "Settings of the next device on an interface, to be written before it is made: INTERFACE SETTING=VALUE...");
