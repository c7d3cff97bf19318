#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Peers that nobody asked for (strangers.py): while they do their worst, a good peer connects within
# two seconds, its throughput falls by no more than its share, and memory stays. Prints what they
# cost.
#
# TIMES is how often the good peer connects meanwhile.
set -eu
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=agents.sh
. "$(dirname "$0")/agents.sh"

TIMES=${TIMES:-20}
# In which the good peer connects, in ms.
PATIENCE=2000
# What a kind of stranger may take of the kernel's memory, in KiB: both ends' sockets are in it.
MEMORY=65536
REGION=1048576
GROUPS_DIR=/tmp/cgroups

# used: prints the memory that is neither free nor that of files and processes, in KiB.
used() {
	awk '{ n[$1] = $2 } END { print n["MemTotal:"] - n["MemFree:"] - n["Buffers:"] - n["Cached:"] - n["AnonPages:"] }' \
		/proc/meminfo
}

# busy: prints the time that the processors have worked, in ms.
busy() { awk '/^cpu / { print 10 * ($2 + $3 + $4 + $7 + $8) }' /proc/stat; }

# two_groups: if the kernel can, makes two groups of processes that get equal parts of the
# processors: this one with the good peers and their server, and one for strangers and the programs
# that serve only them. What a good peer loses beyond a half, the kernel or its own server has
# taken.
two_groups() {
	mkdir -p "$GROUPS_DIR"
	mount -t cgroup2 none "$GROUPS_DIR"
	grep -qw cpu "$GROUPS_DIR/cgroup.controllers" || return 0
	echo +cpu >"$GROUPS_DIR/cgroup.subtree_control"
	mkdir "$GROUPS_DIR/good" "$GROUPS_DIR/strange"
	echo $$ >"$GROUPS_DIR/good/cgroup.procs"
}

# is_strange PID: puts a process into the group of strangers.
is_strange() { [ ! -d "$GROUPS_DIR/strange" ] || echo "$1" >"$GROUPS_DIR/strange/cgroup.procs"; }

good_peer() {
	in_ns "$NS_A" rping -c -a "$IP4_B" -p "$GOOD" -C 1 -V >"$TMP/rping" 2>&1 || { in_ns "$NS_B" nstat -asz | grep -E "Listen|Cookie|Retrans|Syn"; die "the good peer: $(<"$TMP/rping")"; }
}

# throughput: sets WRITES to the number of Writes of 64 KiB in three seconds.
throughput() {
	PERFTEST_LIMIT=90 perftest_pair ib_write_bw -s 65536 -D 3
	# perftest gives no figure where it does not trust its clock; the duration is the same.
	WRITES=$(perftest_rows | awk '{ print $2 }')
	PORT=$((PORT + 1))
}

# strange WHAT PORT [ARGUMENT...]: has these strangers at the port for a while.
strange() {
	local what=$1 port=$2 stranger longest=0 alone beside memory now most=0 i time
	shift 2
	took good_peer
	throughput
	alone=$WRITES memory=$(used) time=$(busy)
	start "$NS_A" "$TMP/stranger" python3 "$GUEST_DIR/strangers.py" "$what" "$IP4_B" "$port" "$@"
	stranger=$STARTED
	is_strange "$stranger"
	eventually 20 grep -q begun "$TMP/stranger" || die "$(cat "$TMP/stranger")"
	for ((i = 0; i < TIMES; i++)); do
		took good_peer
		[ "$TOOK" -le "$longest" ] || longest=$TOOK
		now=$(($(used) - memory))
		[ "$now" -le "$most" ] || most=$now
	done
	throughput
	beside=$WRITES
	kill "$stranger"
	wait "$stranger" || die "$(tail -n 3 "$TMP/stranger")"
	time=$(($(busy) - time))
	# Other work of the host may have come or gone.
	throughput
	[ "$WRITES" -ge "$alone" ] || alone=$WRITES
	echo "$what: $(tail -n 1 "$TMP/stranger"), $time ms of the processors; a good peer connects $TIMES times" \
		"within $longest ms and has $beside of $alone Writes; $most KiB" | tee -a "$TMP/figures"
	[ "$longest" -le $((PATIENCE * SLOW)) ] || die "a good peer takes $longest ms"
	# A half is the other group's, and the kernel may take half of the rest.
	[ "$((beside * 4))" -ge "$alone" ] || die "$beside of $alone Writes"
	[ "$most" -le "$MEMORY" ] || die "$most KiB"
	good_peer
}

# Strangers that read from a region of a program.
reader() {
	local key at what=$1
	shift
	setting "$NS_B" "$DEV_B" crc 0
	agent b "$NS_B" "$IP4_B"
	is_strange $!
	ask b set ird 4
	ask b listen "$PORT"
	ask b mr $REGION 31 0
	read -r _ at key <<<"$ANSWER"
	PORT=$((PORT + 1))
	strange "$what" $((PORT - 1)) "$key" "$at" $REGION "$@"
}

two_groups
ends_up netns
GOOD=$PORT
start "$NS_B" "$TMP/server" rping -s -P -a "$IP4_B" -p "$GOOD"
wait_listen "$GOOD"
in_ns "$NS_A" sysctl -qw net.ipv4.tcp_max_tw_buckets=0
ulimit -n 16384
for what in half_open slow rubbish; do try "$what" 120 strange "$what" "$GOOD"; done
# The requests of this one are good, so that its server has to cope with them.
OTHER=$((GOOD + 1)) SERVER=$STARTED
start "$NS_B" "$TMP/other" rping -s -P -a "$IP4_B" -p "$OTHER"
is_strange "$STARTED"
wait_listen "$OTHER"
try replay 120 strange replay "$OTHER"
try never_reads 120 reader never_reads
NOBODY=${IP4_A%.*}.77
ip -n "$NS_B" neigh replace "$NOBODY" lladdr "$(in_ns "$NS_A" cat "/sys/class/net/$NET_A/address")" dev "$NET_B" nud permanent
try octet_by_octet 120 reader octet_by_octet "$NET_A" "$NOBODY" \
	"$(in_ns "$NS_B" cat "/sys/class/net/$NET_B/address")"
kill "$SERVER" "$STARTED"
try nothing_left 30 nothing_left 20 qp cm_id mr
[ ! -e "$TMP/figures" ] || sed 's/^/# /' "$TMP/figures"
finish
