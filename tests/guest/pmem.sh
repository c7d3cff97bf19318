#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Flush to persistent memory. The guest needs some: `--append memmap=64M!1G` gives it emulated one,
# which this script makes a character device (device DAX), by sysfs as ndctl does.
set -eu
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

ND=/sys/bus/nd
TRACING=$TMP/tracing

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

# probe: shows in an instance of tracefs what the kernel writes back.
probe() {
	mkdir "$TRACING"
	mount -t tracefs tracefs "$TRACING"
	echo 'p:riwarp_test/write_back arch_wb_cache_pmem start=%di:x64 len=%si:x64' >"$TRACING/kprobe_events"
	mkdir "$TRACING/instances/test"
	echo 1 >"$TRACING/instances/test/events/riwarp_test/write_back/enable"
}

ends_up self
# The kernels that the project builds have none of the drivers.
if ! modprobe -a nd_e820 dax_pmem device_dax; then
	skip pmem/persistent 'no driver for device DAX'
	finish
fi
try device_dax 30 device_dax
try probe 10 probe
DAX=/dev/dax0.0 TRACE=$TRACING/instances/test NETDEV=$NET_B relay 150 "$VERBS_DIR/persistent" "$IP4_B"
umount "$TRACING"
finish
