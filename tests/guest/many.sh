#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Many connections: 200 in a row, 64 at once, 1000 of 100 processes. They leave nothing behind.
#
# Many objects and devices: the last ones take no more than twice the time of the first ones, and
# each no more memory than MEMORY says; a device that has them goes within seconds. FEWER divides
# the numbers of objects. GIB is the length of the long stream.
set -eu
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

connections_in_a_row() {
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
connections_at_once() {
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

# scale ARGUMENT...: runs tests/native/scale.c on the device of end B; its rows are in ROWS.
scale() {
	ROWS=$TMP/rows.$BASHPID
	in_ns "$NS_B" "$VERBS_DIR/scale" -a "$IP4_B" -p "$PORT" "$@" >"$ROWS" || die "scale failed"
	cat "$ROWS"
}

connections_of_many_processes() {
	scale -n $(($1 / $2)) -P "$2" at_once
	! grep connect_failed "$ROWS" || die 'see above'
}

# What an object may cost in octets, with its queues and those of the kernel around it.
declare -A MEMORY=([qp]=28000 [srq]=16000 [pd]=1000 [cq]=8000 [mr]=5000 [mw]=5000)

# The machine may have had other work at the end: the times count if they are too long three times.
many_objects() {
	local try
	for try in 1 2 3; do
		scale -n "$2" -k "$1" objects
		awk -F '\t' -v most="${MEMORY[$1]}" -v slow="$SLOW" '
			$1 ~ /^memory_/ && $3 > most * slow / ($1 == "memory_left" ? 20 : 1) {
				print $1 ": " $3 " octets each"
				bad = 1
			}
			END { exit bad }' "$ROWS" || die 'see above'
		! awk -F '\t' '$1 ~ /_first$/ { first = $3 } $1 ~ /_last$/ && $3 > 2 * first { exit 1 }' "$ROWS" || return 0
	done
	die 'the last ones take more than twice as long as the first ones'
}

# median FILE: prints the median of its lines.
median() { sort -n "$1" | sed -n "$(($(wc -l <"$1") / 2 + 1))p"; }

# The program `rdma` first lists all devices, so that is taken off.
devices() {
	local i n=$1 listing
	modprobe dummy
	for ((i = 0; i < n; i++)); do printf 'link add many%d type dummy\nlink set many%d up\n' "$i" "$i"; done | ip -batch -
	for ((i = 0; i < n; i++)); do
		took rdma link show lo/1 2>/dev/null || true
		listing=$TOOK
		took rdma link add "manydev$i" type "$TYPE" netdev "many$i"
		echo $((TOOK - listing)) >>"$TMP/add.$((i * 10 / n))"
	done
	[ "$(rdma link show | grep -c manydev)" = "$n" ] || die 'not all of them are there'
	took rmmod "$MODULE"
	echo "all removed in $TOOK ms"
	for ((i = 0; i < n; i++)); do echo "link del many$i"; done | ip -batch -
	echo "the first ones take $(median "$TMP/add.0") ms, the last ones $(median "$TMP/add.9") ms"
	[ "$(median "$TMP/add.9")" -le $((2 * $(median "$TMP/add.0") + 5 * SLOW)) ] || die 'the last ones take longer'
	modprobe "$MODULE"
}

# hold NAME ARGUMENT...: starts a program that makes objects and keeps them; waits until it has
# them.
hold() {
	local log=$TMP/hold.$1
	shift
	start "$NS_B" "$log" "$VERBS_DIR/scale" -a "$IP4_B" -p "$PORT" -w "$@"
	PORT=$((PORT + 1))
	eventually 100 grep -q last "$log" || die "$*: $(cat "$log")"
}

busy_device() {
	local before
	hold qps -n $((10000 / FEWER)) -k qp objects
	hold regions -n $((100000 / FEWER)) -k mr objects
	start "$NS_B" "$TMP/busy" "$VERBS_DIR/scale" -a "$IP4_B" -p "$PORT" -w -n 500 write
	eventually 100 connected 1000 || die "$(cat "$TMP/busy")"
	before=$(octets)
	eventually 20 moved 10000000 "$before" || die 'nothing moves'
	took within 60 ip netns exec "$NS_B" rdma link del "$DEV_B" || die "rdma link del: $?"
	echo "removed in $TOOK ms"
	[ "$TOOK" -lt $((5000 * SLOW)) ] || die "removed in $TOOK ms"
	link_add "$NS_B" "$DEV_B" "$TYPE" "$NET_B"
	rping_pair 4 3 -V
}

octets() { in_ns "$NS_B" cat /sys/class/net/lo/statistics/tx_bytes; }
moved() { [ $(($(octets) - $2)) -gt "$1" ]; }
connected() { [ "$(in_ns "$NS_B" rdma resource show qp | grep -c 'state RTS')" -ge "$1" ]; }

# TCP's sequence numbers wrap every 4 GiB. CRCs check each octet.
long_stream() { scale -n 1 -s 65536 -t $((GIB << 30)) write; }

FEWER=${FEWER:-$SLOW}
GIB=${GIB:-5}
# Processors may keep a large part of the memory that is free, and TCP keeps connections in
# TIME-WAIT.
sysctl -qw vm.percpu_pagelist_high_fraction=1000000
ends_up "${TOPOLOGY:-netns}"
in_ns "$NS_B" sysctl -qw net.ipv4.tcp_max_tw_buckets=0
try connections_in_a_row 420 connections_in_a_row "${IN_A_ROW:-200}"
try connections_at_once 240 connections_at_once "${AT_ONCE:-64}"
try connections_of_many_processes 120 connections_of_many_processes 1000 100
for kind in qp srq pd cq; do try "objects/$kind" 120 many_objects "$kind" $((10000 / FEWER)); done
for kind in mr mw; do try "objects/$kind" 240 many_objects "$kind" $((100000 / FEWER)); done
try long_stream $((60 * GIB)) long_stream
try busy_device 300 busy_device
try nothing_left 30 nothing_left 10 qp cm_id cq mr pd
ends_down
ends_up self
LONG_WAITS=1 relay 150 "$VERBS_DIR/waits" "$IP4_B"
ends_down
try devices 240 devices 100
finish
