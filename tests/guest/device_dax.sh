# SPDX-License-Identifier: GPL-2.0
# Persistent memory. Sourced. The guest needs some: `qemu/run --append memmap=64M!1G` gives it
# emulated one, which these functions make a character device (device DAX), by sysfs as ndctl does.
# shellcheck shell=bash

ND=/sys/bus/nd

# has_device_dax: loads the drivers, which the kernels that the project builds do not have.
has_device_dax() { modprobe -a nd_e820 dax_pmem device_dax; }

# device_dax: gives the whole of the first namespace to device DAX.
device_dax() {
	local seed
	[ -d $ND/devices/namespace0.0 ] || die 'this guest has no persistent memory'
	seed=$(cat $ND/devices/region0/dax_seed)
	cat /proc/sys/kernel/random/uuid >"$ND/devices/$seed/uuid"
	echo ram >"$ND/devices/$seed/mode"
	echo namespace0.0 >"$ND/devices/$seed/namespace"
	echo "$seed" >$ND/drivers/dax_pmem/bind
	eventually 10 test -c /dev/dax0.0 || die 'no character device'
}
