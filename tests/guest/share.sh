#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# What a counter at nice 0 keeps of its processor beside a process at nice 19 that sleeps while the
# device carries out its requests: with two processors, and with one. And how long a disk takes beside
# 1000 such queue pairs.
set -eu
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

SECOND=/sys/devices/system/cpu/cpu1/online

# share NAME: measures it with the processors that are there.
share() {
	local name=$1
	ends_up self
	export EXTENSIONS=1
	ln -s "$VERBS_DIR/share" "$TMP/$name"
	relay 700 "$TMP/$name" "$IP4_B"
	sed -n '/^#/p' "$TMP/relay.log"
	# The module is loaded anew: it counts the processors then.
	ends_down
	within 60 rmmod "$MODULE"
}

# Else many queue pairs would have more in flight than TCP may keep.
sysctl -qw net.ipv4.tcp_wmem='4096 65536 262144'
share "processors_$(nproc)"
if [ -w $SECOND ]; then
	echo 0 >$SECOND
	share processors_1
fi
# A timer ends each read after 0.2 ms.
modprobe null_blk nr_devices=1 irqmode=2 completion_nsec=200000
export DISK=/dev/nullb0
share disk
finish
