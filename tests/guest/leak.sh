#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# The same load again and again: nothing that it uses may grow from run to run.
#
# After each round the kernel's slabs are shrunk and counted. A leak of one object per connection shows
# in every round, since each makes CONNECTIONS of them; a cache that only warms up does not.
set -eu
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

CONNECTIONS=30
ROUNDS=5

load() {
	local i
	start "$NS_B" "$TMP/server.$1" timeout --foreground 100 rping -s -P -a "$IP4_B" -p "$PORT" -C 3 -V
	wait_listen "$PORT"
	# shellcheck disable=SC2016
	in_ns "$NS_A" bash -c 'for ((i = 1; i <= $1; i++)); do
		timeout --foreground 20 rping -c -a "$2" -p "$3" -C 3 -V || { echo "client $i"; exit 1; }
	done' - "$CONNECTIONS" "$IP4_B" "$PORT"
	kill "$STARTED"
	wait "$STARTED" 2>/dev/null || true
	PORT=$((PORT + 1))
	# Refusals and errors go other ways out: a wrong port, a killed client, the verbs programs.
	for i in {1..5}; do
		in_ns "$NS_A" timeout --foreground 10 rping -c -a "$IP4_B" -p 9 -C 1 >/dev/null 2>&1 || true
	done
	PORT=$((PORT + 1))
	perftest_pair ib_send_bw --use-srq -s 4096 -n 20
	PORT=$((PORT + 1))
	perftest_pair ib_read_bw -q 8 -s 65536 -n 20
	PORT=$((PORT + 1))
	CASE=write_past_the_end PORT=$PORT in_ns "$NS_B" timeout --foreground 30 "$VERBS_DIR/rdma" "$IP4_B"
	PORT=$((PORT + 1))
	CASE=writer_disconnects_in_the_middle PORT=$PORT in_ns "$NS_B" timeout --foreground 30 "$VERBS_DIR/flush" "$IP4_B"
	for i in {1..10}; do
		rdma link add "leak$i" type "$TYPE" netdev "leakdev" 2>/dev/null || true
		rdma link del "leak$i" 2>/dev/null || true
	done
}

# Sockets in TIME_WAIT are TCP's affair; wait them out of the count by not counting tw_sock caches. What
# vfree gives back is purged in bulk, megabytes later: not vmap_area but VmallocUsed tells of a leak.
count() {
	local cache
	sleep 1
	echo 3 >/proc/sys/vm/drop_caches
	sync
	for cache in /sys/kernel/slab/*/shrink; do echo 1 2>/dev/null >"$cache" || true; done
	awk 'NR > 2 && $1 !~ /^tw_sock|^request_sock|9p|^radix|^ext|^dentry|^inode|_inode_cache|^vm_area|^vmap_area|^anon_vma|^maple|^filp|^buffer_head|^kernfs|^task|^cred|^sighand|^signal|^pid|^files|^fs_cache|^mm_struct|^proc|^sock_inode|^names|^lsm|^skbuff|^fasync|^pool_workqueue|^bio|^netfs|^ovl/ { print $1, $2 }' /proc/slabinfo |
		sort >"$1"
	awk '/^VmallocUsed|^Percpu/ { print $1, $2 }' /proc/meminfo >"$1.memory"
	{
		rdma resource show qp
		rdma resource show cm_id
		rdma resource show mr
		rdma resource show srq
	} 2>/dev/null | grep -v 'comm \[' >"$1.objects" || true
}

grows() {
	local i
	modprobe dummy
	ip link add leakdev type dummy
	for ((i = 0; i <= ROUNDS; i++)); do
		load "$i"
		count "$TMP/count.$i"
		[ ! -s "$TMP/count.$i.objects" ] || die "round $i leaves $(cat "$TMP/count.$i.objects")"
	done
	ip link del leakdev
	# Round 0 warms up. A cache that grows in every one of the later rounds by something like the
	# number of connections, or of queue pairs, leaks.
	for ((i = 1; i < ROUNDS; i++)); do
		join "$TMP/count.$i" "$TMP/count.$((i + 1))" | awk '{ print $1, $3 - $2 }' >"$TMP/growth.$i"
	done
	cat "$TMP"/growth.* | awk -v rounds=$((ROUNDS - 1)) '
		!($1 in least) || $2 < least[$1] { least[$1] = $2 }
		{ seen[$1]++; sum[$1] += $2 }
		END { for (c in least) if (seen[c] == rounds && least[c] >= 5)
			{ printf "%s grows by %d a round, in each by %d or more\n", c, sum[c] / rounds, least[c]; bad = 1 }
			exit bad }' || return 1
	# Mapped kernel memory (the queues are there), in kB.
	local first last
	first=$(awk '/^VmallocUsed/ { print $2 }' "$TMP/count.1.memory")
	last=$(awk '/^VmallocUsed/ { print $2 }' "$TMP/count.$ROUNDS.memory")
	[ $((last - first)) -lt 512 ] || die "VmallocUsed grows from $first to $last kB"
	echo "VmallocUsed from $first to $last kB"
}

# After everything the module goes, and takes its caches and work queues with it.
unloads() {
	ends_down
	timeout --foreground 30 rmmod "$TYPE" || die "rmmod: $?"
	if grep -i riwarp /proc/slabinfo; then die 'slab caches left'; fi
}

ends_up netns
try grows_with_nothing 280 grows
ends_down
try unloads 40 unloads
finish
