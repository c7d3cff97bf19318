#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# What a counter at nice 0 keeps of its processor beside a process at nice 19 that sleeps while the
# device carries out its requests: with two processors, and with one.
set -eu
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

SECOND=/sys/devices/system/cpu/cpu1/online

# share: measures it with the processors that are there.
share() {
	local name
	name=processors_$(nproc)
	ends_up self
	export EXTENSIONS=1
	ln -s "$VERBS_DIR/share" "$TMP/$name"
	relay 700 "$TMP/$name" "$IP4_B"
	sed -n '/^#/p' "$TMP/relay.log"
	# The module is loaded anew: it counts the processors then.
	ends_down
	within 60 rmmod "$MODULE"
}

# Else 256 queue pairs would have more in flight than TCP may keep.
sysctl -qw net.ipv4.tcp_wmem='4096 65536 262144'
share
if [ -w $SECOND ]; then
	echo 0 >$SECOND
	share
fi
finish
