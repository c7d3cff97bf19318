#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Flush to persistent memory.
set -eu
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

# shellcheck source=device_dax.sh
. "$(dirname "$0")/device_dax.sh"

TRACING=$TMP/tracing

# probe: shows in an instance of tracefs what the kernel writes back.
probe() {
	mkdir "$TRACING"
	mount -t tracefs tracefs "$TRACING"
	echo 'p:riwarp_test/write_back arch_wb_cache_pmem start=%di:x64 len=%si:x64' >"$TRACING/kprobe_events"
	mkdir "$TRACING/instances/test"
	echo 1 >"$TRACING/instances/test/events/riwarp_test/write_back/enable"
}

ends_up self
if ! has_device_dax; then
	skip pmem/persistent 'the kernel has no device DAX'
	finish
fi
try device_dax 30 device_dax
try probe 10 probe
DAX=/dev/dax0.0 TRACE=$TRACING/instances/test NETDEV=$NET_B relay 150 "$VERBS_DIR/persistent" "$IP4_B"
umount "$TRACING"
finish
