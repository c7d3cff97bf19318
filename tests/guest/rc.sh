#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Programs that connect their queue pairs by ibv_modify_qp, without rdma_cm: ibv_rc_pingpong,
# ibv_srq_pingpong, perftest without -R. Between two namespaces, and with both ends on one device.
#
# RUNS: the number of ibv_rc_pingpong runs in a row.
set -eu
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
export PERFTEST_LIMIT=110

# pingpong PROGRAM OPTIONS...: runs both ends. Their own channel uses IPv4, whatever the GID index.
pingpong() {
	local program=$1
	shift
	pair "${PINGPONG_LIMIT:-60}" "$program" -d "$DEV_B" -p "$PORT" "$@" -- \
		"$program" -d "$DEV_A" -p "$PORT" "$@" "$IP4_B"
	grep -q ' iters in ' "$CLIENT_OUT" || die "no figure: $(last_line "$CLIENT_OUT")"
}

sizes() {
	local size PINGPONG_LIMIT=200
	for size in 1 2 1023 4096 65537 1048576 8388608; do
		pingpong ibv_rc_pingpong -g 0 -c -n 4 -s "$size"
		PORT=$((PORT + 1))
	done
}

# gid_index NETNS DEVICE PATTERN: prints the index of the first GID that matches.
gid_index() {
	local file
	for file in $(in_ns "$1" sh -c "cd /sys/class/infiniband/$2/ports/1/gids && grep -l '$3' *"); do
		echo "$file"
		return
	done
	echo "no GID like $3 at $2" >&2
	return 1
}

# over PATTERN: connects by GIDs that match, which the two ends may have at different indices.
over() {
	local a b
	a=$(gid_index "$NS_A" "$DEV_A" "$1")
	b=$(gid_index "$NS_B" "$DEV_B" "$1")
	pair 60 ibv_rc_pingpong -d "$DEV_B" -p "$PORT" -g "$b" -c -n 20 -- \
		ibv_rc_pingpong -d "$DEV_A" -p "$PORT" -g "$a" -c -n 20 "$IP4_B"
	grep -q ' iters in ' "$CLIENT_OUT"
}

# plain_perftest ROWS TOOL [OPTIONS of both ends...]: perftest without rdma_cm, and perftest_table.
plain_perftest() {
	local rows=$1 tool=$2
	shift 2
	pair "$PERFTEST_LIMIT" "$tool" -F -d "$DEV_B" -x 0 -p "$PORT" "$@" -- \
		"$tool" -F -d "$DEV_A" -x 0 -p "$PORT" "$@" "$IP4_B"
	perftest_table "$rows"
}

# Many runs leave nothing behind.
in_a_row() {
	local i memory
	for ((i = 0; i < 3; i++)); do one_of_many; done
	memory=$(kernel_memory)
	for ((i = 0; i < $1; i++)); do one_of_many; done
	nothing_left 20 qp cq mr pd
	nobody_waits "$NS_A" "$DEV_A"
	nobody_waits "$NS_B" "$DEV_B"
	echo "KiB of the kernel's memory: $memory before, $(kernel_memory) after"
	[ $(($(kernel_memory) - memory)) -lt 16384 ]
}

one_of_many() {
	pingpong ibv_rc_pingpong -g 0 -n 3 -s 100 -r 10
	PORT=$((PORT + 1))
}

kernel_memory() {
	echo 3 >/proc/sys/vm/drop_caches
	awk '/^(Slab|VmallocUsed|Percpu|KernelStack):/ { n += $2 } END { print n }' /proc/meminfo
}

nobody_waits() {
	local port
	port=$(in_ns "$1" cat "/sys/class/infiniband/$2/oob_port")
	eventually 10 not_listening "$1" "$port" || die "port $port has a listener"
}

not_listening() { ! in_ns "$1" ss -Htln "sport = :$2" | grep -q .; }

# The administrator can choose another port, or none.
other_port() {
	setting "$NS_A" "$DEV_A" oob_port 4242
	setting "$NS_B" "$DEV_B" oob_port 4242
	pingpong ibv_rc_pingpong -g 0 -n 3
}

# no_pingpong WHY: checks that the client fails and says why. (`die` ends a case even within a
# condition.)
no_pingpong() {
	if (pingpong ibv_rc_pingpong -g 0 -n 3); then die 'the queue pairs connected'; fi
	grep "$1" "$TMP"/client.*
	rm "$TMP"/client.*
}

different_oob_ports_do_not_connect() {
	setting "$NS_A" "$DEV_A" oob_port 4243
	no_pingpong 'Failed status'
}

oob_port_0_refuses_connects() {
	setting "$NS_A" "$DEV_A" oob_port 0
	no_pingpong 'Failed to modify QP to RTR'
}

wrong_ports() {
	local value
	for value in -1 65536 x ''; do
		if setting "$NS_A" "$DEV_A" oob_port "$value" 2>/dev/null; then die "accepts '$value'"; fi
	done
}

# Packets are delayed, lost and duplicated, during start-up too.
lossy_path() {
	in_ns "$NS_A" tc qdisc add dev "$NET_A" root netem delay 2ms 1ms loss 3% duplicate 5%
	in_ns "$NS_B" tc qdisc add dev "$NET_B" root netem delay 2ms 1ms loss 3% duplicate 5%
	local i
	for i in 1 2 3 4 5; do
		pingpong ibv_rc_pingpong -g 0 -n 10 -c
		PORT=$((PORT + 1))
	done
}

# The devices, then the module, are removed while queue pairs wait for their peers.
devices_are_removed_while_connecting() {
	setting "$NS_A" "$DEV_A" oob_port 4244
	# The programs are repeated: in a slow kernel they may give up before is_looking sees them.
	(while [ ! -e "$TMP/seen" ]; do pingpong ibv_rc_pingpong -g 0 -n 3 || true; done) &
	eventually 20 is_looking || die 'no queue pair waits for a peer'
	: >"$TMP/seen"
	link_del "$NS_A" "$DEV_A"
	link_del "$NS_B" "$DEV_B"
	wait $! || true
	ends_down
	within 30 rmmod "$MODULE" || die "rmmod: $?"
}

# Succeeds if one queue pair is in RTR or RTS: in a slow kernel the client gives up before both are.
is_looking() { objects qp | grep -q -E 'state RT[RS]'; }

pingpongs() {
	try "$1/rc_pingpong" 60 pingpong ibv_rc_pingpong -g 0
	try "$1/events" 60 pingpong ibv_rc_pingpong -g 0 -e
	try "$1/data_is_right" 60 pingpong ibv_rc_pingpong -g 0 -c -n 50
	try "$1/sizes" 300 sizes
	try "$1/ipv4" 60 over '0000:0000:0000:0000:0000:ffff:'
	try "$1/ipv6" 60 over '^fd71:'
	try "$1/link_local" 60 over '^fe80:'
	# Fewer queue pairs in the debug kernel, where they also wait 2 s only for their peers.
	try "$1/srq_queue_pairs" 60 pingpong ibv_srq_pingpong -g 0 -q $((16 / SLOW)) -n 320
	try "$1/srq_events" 60 pingpong ibv_srq_pingpong -g 0 -q $((16 / SLOW)) -n 320 -e
}

perftests() {
	local tool
	for tool in write read send; do
		try "$1/ib_${tool}_bw" 120 plain_perftest 1 "ib_${tool}_bw" -s 65536 -n 20
		try "$1/ib_${tool}_lat" 120 plain_perftest 1 "ib_${tool}_lat" -s 64 -n 50
		try "$1/ib_${tool}_bw_bidirectional" 120 plain_perftest 1 "ib_${tool}_bw" -b -s 4096 -n 50
		try "$1/ib_${tool}_bw_4_queue_pairs" 120 plain_perftest 1 "ib_${tool}_bw" -q 4 -s 4096 -n 50
	done
	if [ "$TYPE" != riwarp_siw ]; then
		for tool in FETCH_AND_ADD CMP_AND_SWAP; do
			try "$1/ib_atomic_bw_$tool" 120 plain_perftest 1 ib_atomic_bw -A "$tool" -n 50
			try "$1/ib_atomic_lat_$tool" 120 plain_perftest 1 ib_atomic_lat -A "$tool" -n 50
		done
		try "$1/ib_write_bw_with_imm" 120 \
			plain_perftest 1 ib_write_bw --write_with_imm -s 4096 -n 50
	fi
	try "$1/ib_send_bw_srq" 120 plain_perftest 1 ib_send_bw --use-srq -s 4096 -n 50
	try "$1/ib_write_bw_all_sizes" 120 plain_perftest 23 ib_write_bw -a -n 5
}

more_between_namespaces() {
	try lossy_path 90 lossy_path
	ends_down
	ends_up netns
	try other_port 60 other_port
	try different_oob_ports_do_not_connect 60 different_oob_ports_do_not_connect
	try oob_port_0_refuses_connects 60 oob_port_0_refuses_connects
	try wrong_ports 20 wrong_ports
	ends_down
	ends_up netns
	try devices_are_removed_while_connecting 90 devices_are_removed_while_connecting
}

for topology in ${TOPOLOGIES:-netns self}; do
	ends_up "$topology"
	pingpongs "$topology"
	perftests "$topology"
	try "$topology/in_a_row" $((60 + 10 * ${RUNS:-30})) in_a_row "${RUNS:-30}"
	try "$topology/nothing_left" 30 nothing_left 10 qp cq mr pd
	[ "$topology" != netns ] || more_between_namespaces
	ends_down
done
finish
