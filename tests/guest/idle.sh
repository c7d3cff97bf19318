#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# What many connections cost while their peers are idle or nearly so. COUNT: connections of each
# kind.
set -eu
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

COUNT=${COUNT:-400}
# Not below /sys, which `ip netns exec` mounts anew.
TRACING=$TMP/tracing

# The Python program plays the peers and sends commands to the agent at end B.
run_idle() {
	# shellcheck disable=SC2086
	PYTHONUNBUFFERED=1 in_ns "$NS_A" python3 "$GUEST_DIR/idle.py" "$1" "$COUNT" "$IP4_B" "$PORT" "$TRACING" \
		ip netns exec "$NS_B" "$VERBS_DIR/agent" "$IP4_B"
}

mkdir "$TRACING"
mount -t tracefs tracefs "$TRACING"
ends_up netns
try half_closed 120 run_idle half_closed
try in_error 120 run_idle in_error
try nothing_left 30 nothing_left 10 qp cm_id
umount "$TRACING"
finish
