# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
#
# Part of stacks.sh: sockets over RDMA, by librdmacm.

rstream_pair() {
	over_rdma 100000 pair 60 rstream -b "$IP4_B" -p "$PORT" -T verify "$@" -- \
		rstream -s "$IP4_B" -p "$PORT" -T verify "$@"
}

# All of its sizes, each with as many transfers as takes some seconds at most.
rstream_sizes() {
	local size
	for size in 1 64 100 4096 16384 65536 1000000; do
		pair 60 rstream -b "$IP4_B" -p "$PORT" -T verify -S "$size" -I 2 -C 10 "$@" -- \
			rstream -s "$IP4_B" -p "$PORT" -T verify -S "$size" -I 2 -C 10 "$@"
		PORT=$((PORT + 1))
	done
}

# With poll(), rstream takes a peer that has closed already for an error, even if all data is there,
# and exits with the event, POLLHUP (16).
rstream_async() {
	local try
	for try in 1 2 3; do
		if rstream_pair "$@" -T async; then return 0; fi
		tail -n 1 "$CLIENT_OUT"
		PORT=$((PORT + 1))
	done >"$TMP/async"
	cat "$TMP/async"
	return 1
}

riostream_pair() {
	over_rdma 100000 pair 60 riostream -b "$IP4_B" -p "$PORT" -T verify "$@" -- \
		riostream -s "$IP4_B" -p "$PORT" -T verify "$@"
}

# All of its sizes: each end polls the last octet of what the other writes, and replaces it in place.
# For each size but the smallest the program stores the octet some time before it sends, and waits
# for ever if the old one has come back meanwhile. Under emulation on a busy machine a run takes many
# minutes. Lines are written at once, so that a run that ends too late shows at which size.
riostream_defaults() {
	over_rdma 100000 pair 1800 stdbuf -oL riostream -b "$IP4_B" -p "$PORT" -- \
		stdbuf -oL riostream -s "$IP4_B" -p "$PORT"
}

# The server serves one file after the other and does not end.
rcopy_files() {
	local i data
	data=$(data_file "$1")
	start "$NS_B" "$TMP/rcopy.log" within 100 rcopy -p "$PORT"
	wait_listen "$PORT"
	for ((i = 1; i <= $2; i++)); do
		rm -f "$TMP/copy"
		over_rdma "$1" in_ns "$NS_A" within 20 rcopy "$data" "$IP4_B:$TMP/copy" -p "$PORT"
		cmp "$data" "$TMP/copy" || die "copy $i"
	done
	kill "$STARTED"
}

# Unmodified programs for TCP, whose sockets become rsockets.
preload=/usr/lib/x86_64-linux-gnu/rsocket/librspreload.so

# What the client sends has to arrive in the server's file. (iperf3 moves its data too, but its
# threads then wait for each other for ever, over siw's kernel driver as well.)
nc_preloaded() {
	local data
	data=$(data_file 3000000)
	serve 60 env LD_PRELOAD=$preload sh -c 'exec nc.traditional -l -s "$1" -p "$2" >"$3"' sh "$IP4_B" "$PORT" "$TMP/nc"
	over_rdma 3000000 call 60 env LD_PRELOAD=$preload sh -c 'exec nc.traditional -q 0 "$1" "$2" <"$3"' sh \
		"$IP4_B" "$PORT" "$data"
	cmp "$data" "$TMP/nc"
}

version rsockets librdmacm1t64
ends_up netns
name=$TYPE/rsockets
try "$name/rstream" 60 rstream_pair -S 65536 -I 5 -C 10
try "$name/rstream_sizes" 200 rstream_sizes
try "$name/rstream_async" 180 rstream_async -S 65536 -I 5 -C 10
try "$name/rstream_blocking" 60 rstream_pair -S 65536 -I 5 -C 10 -T blocking
try "$name/rstream_nonblocking" 60 rstream_pair -S 65536 -I 5 -C 10 -T nonblocking
try "$name/rstream_resolve" 60 rstream_pair -S 65536 -I 5 -C 10 -T resolve
try "$name/rstream_keepalive" 60 rstream_pair -S 65536 -I 5 -C 10 -k 1
try "$name/rstream_in_a_row" 300 in_a_row "$ROW" rstream_pair -S 4096 -I 2 -C 20
try "$name/riostream" 60 riostream_pair -S 65536 -I 5 -C 10
try "$name/riostream_async" 60 riostream_pair -S 65536 -I 5 -C 10 -T async
try "$name/riostream_nonblocking" 60 riostream_pair -S 65536 -I 5 -C 10 -T nonblocking
try "$name/riostream_defaults" $((1900 * ${DEFAULTS:-1})) in_a_row "${DEFAULTS:-1}" riostream_defaults
try "$name/rcopy" 60 rcopy_files 10000000 1
try "$name/rcopy_in_a_row" 200 rcopy_files 100000 "$ROW"
try "$name/preload_nc" 80 nc_preloaded
try "$name/preload_nc_in_a_row" 300 in_a_row "$ROW" nc_preloaded
ends_down
