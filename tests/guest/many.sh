#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Many connections: 200 in a row, 64 at once. They leave nothing behind.
set -eu
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

in_a_row() {
	start "$NS_B" "$TMP/server" within 410 rping -s -P -a "$IP4_B" -p "$PORT" -C 2 -V
	wait_listen "$PORT"
	# One shell for all, because entering a namespace takes longer than a connection.
	# shellcheck disable=SC2016
	in_ns "$NS_A" bash -c 'for ((i = 1; i <= $1; i++)); do
		within 20 rping -c -a "$2" -p "$3" -C 2 -V || { echo "client $i"; exit 1; }
	done' - "$1" "$IP4_B" "$PORT"
	kill "$STARTED"
}

# A server for each: a persistent server takes a quick second request for the first one.
at_once() {
	# shellcheck disable=SC2016
	start "$NS_B" "$TMP/servers" bash -c 'for ((i = 0; i < $1; i++)); do
		within 230 rping -s -a "$2" -p $(($3 + i)) -C 10 -V &
	done
	wait' - "$1" "$IP4_B" "$PORT"
	eventually 60 listen_all "$1" || die "servers: $(cat "$TMP/servers")"
	# shellcheck disable=SC2016
	in_ns "$NS_A" bash -c 'bad=0
	for ((i = 0; i < $1; i++)); do
		within 200 rping -c -a "$2" -p $(($3 + i)) -C 10 -V & pids[i]=$!
	done
	for ((i = 0; i < $1; i++)); do wait "${pids[i]}" || { echo "client $i: $?"; bad=$((bad + 1)); }; done
	[ $bad = 0 ] || { echo "$bad of $1 clients failed"; exit 1; }' - "$1" "$IP4_B" "$PORT"
	wait "$STARTED"
}

listen_all() { [ "$(rdma resource show cm_id | grep -c LISTEN)" -ge "$1" ]; }

ends_up "${TOPOLOGY:-netns}"
try in_a_row 420 in_a_row "${IN_A_ROW:-200}"
try at_once 240 at_once "${AT_ONCE:-64}"
try nothing_left 30 nothing_left 10 qp cm_id
finish
