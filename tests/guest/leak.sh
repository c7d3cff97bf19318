#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Repeats the same load; nothing that it uses may grow from round to round.
#
# A round ends COUNT connections in each possible way, and makes and removes COUNT devices. An
# object that one of them leaks appears COUNT times per round in some cache of the kernel. All
# caches are counted: the kernel merges caches whose objects have the same size, so their names say
# little. What other parts of the kernel allocate varies, or grows once.
set -eu
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

COUNT=16
ROUNDS=4

# endings ADDRESS: all ways to end a connection, in one process.
endings() {
	COUNT=$COUNT PORT=$PORT in_ns "$NS_B" within 60 "$VERBS_DIR/endings" "$1"
	PORT=$((PORT + 8 * COUNT))
}

load() {
	local i
	endings "$IP4_B"
	CASE=disconnect endings "$IP6_B"
	perftest_pair ib_read_bw -q "$COUNT" -s 4096 -n 20
	PORT=$((PORT + 1))
	perftest_pair ib_send_bw --use-srq -s 4096 -n 20
	PORT=$((PORT + 1))
	for ((i = 0; i < COUNT; i++)); do
		rdma link add "leak$i" type "$TYPE" netdev leakdev
		rdma link del "leak$i"
	done
}

# slabs: prints /proc/slabinfo three times, each after unused slabs were freed. A processor that
# needs one object takes some dozens, which all count as in use. So the least of the three counts is
# the true one. All this runs on one processor, which keeps the excess small.
slabs() {
	local cache text=''
	taskset -p -c 0 "$BASHPID" >/dev/null
	echo 3 >/proc/sys/vm/drop_caches
	for _ in 1 2 3; do
		sleep 0.3	# objects that are freed after a grace period
		for cache in /sys/kernel/slab/*; do
			[ -L "$cache" ] || echo 1 >"$cache/shrink"
		done
		text+=$(</proc/slabinfo)$'\n'
	done
	printf %s "$text"
}

# count FILE: writes the counts of everything. Not vmap_area, which vfree frees much later: the
# areas in use are counted instead, by their caller. Not debug_objects_cache either, in which the
# debug kernel's object tracking keeps free objects.
count() {
	nothing_left 20 qp cm_id mr cq srq pd ctx
	echo 1 >/proc/sys/vm/stat_refresh
	{
		(slabs) | awk '/^(#|slabinfo)/ || $1 ~ /^(vmap_area|debug_objects_cache)$/ { next }
			!($1 in n) || $2 < n[$1] { n[$1] = $2 }
			END { for (i in n) print "slab:" i, n[i] }'
		awk '!/unpurged/ { sub(/\+.*/, "", $3); n[$3]++ } END { for (i in n) print "vmalloc:" i, n[i] }' \
			/proc/vmallocinfo
		awk '/^nr_foll_pin_acquired/ { n += $2 } /^nr_foll_pin_released/ { n -= $2 }
			END { print "pinned pages", n }' /proc/vmstat
		awk '/^Percpu/ { print "percpu kB", $2 }' /proc/meminfo
		echo "module users $(cat "/sys/module/$MODULE/refcnt")"
	} >"$1"
	grep -q '^slab:TCP ' "$1" || die 'no counts of slabs'
}

# judge FILE...: compares the counts of successive rounds. A name leaks if it grows by about COUNT
# or more in every round but one.
judge() {
	awk -v least=$((COUNT * 3 / 4)) -v rounds=$(($# - 1)) '
		FNR == 1 { file++ }
		{ value = $NF; sub(/ [^ ]*$/, ""); n[$0, file] = value; names[$0] }
		END {
			for (name in names) {
				grown = 0
				list = ""
				for (i = 1; i <= rounds + 1; i++) {
					list = list " " n[name, i] + 0
					if (i > 1 && n[name, i] - n[name, i - 1] >= least) grown++
				}
				if (grown < rounds - 1) continue
				print name " grows:" list
				bad = 1
			}
			exit bad
		}' "$@"
}

nothing_grows() {
	local i counts=()
	modprobe dummy
	ip link add leakdev type dummy
	# Keeps no TIME-WAIT sockets, which would stay for a minute.
	in_ns "$NS_A" sysctl -q -w net.ipv4.tcp_max_tw_buckets=0
	in_ns "$NS_B" sysctl -q -w net.ipv4.tcp_max_tw_buckets=0
	# Round 0 warms up.
	for ((i = 0; i <= ROUNDS; i++)); do
		load
		counts[i]=$TMP/count.$i
		count "${counts[i]}"
	done
	ip link del leakdev
	judge "${counts[@]}"
}

ends_up netns
try nothing_grows 480 nothing_grows
ends_down
try unloads 40 unloads
finish
