#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# rping in its variants. It moves data by Send, Read and Write; with -V it compares the data.
set -eu
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

sizes() {
	local size
	for size in 23 24 63 64 1000 1460 4096 10000 65000; do
		rping_pair 4 5 -V -S "$size"
		PORT=$((PORT + 1))
	done
}

# One server, and one client after another, each served by a thread of its own.
persistent_server() {
	local i
	start "$NS_B" "$TMP/server" within 60 rping -s -P -a "$IP4_B" -p "$PORT" -V -C 5
	wait_listen "$PORT"
	for i in {1..5}; do
		in_ns "$NS_A" within 20 rping -c -a "$IP4_B" -p "$PORT" -V -C 5 || die "client $i"
	done
	kill "$STARTED"
}

wildcard_server() {
	local any=$1 address=$2
	start "$NS_B" "$TMP/server" within 30 rping -s -a "$any" -p "$PORT" -V -C 3
	wait_listen "$PORT"
	in_ns "$NS_A" within 20 rping -c -a "$address" -p "$PORT" -V -C 3
	wait "$STARTED" || die "$(last_line "$TMP/server")"
}

source_address() {
	pair 30 rping -s -a "$IP4_B" -p "$PORT" -V -C 3 -- \
		rping -c -I "$IP4_A" -a "$IP4_B" -p "$PORT" -V -C 3
}

# Connections to another server have all local ports. A connection to this one can share a port.
few_ports() {
	local range other=$((PORT + 1)) program
	range=$(in_ns "$NS_A" sysctl -n net.ipv4.ip_local_port_range)
	start "$NS_B" "$TMP/other" python3 -c 'import socket, sys, time
taken = socket.create_server((sys.argv[1], int(sys.argv[2])))
time.sleep(600)' "$IP4_B" "$other"
	program=$STARTED
	wait_listen "$other"
	# shellcheck disable=SC2064
	trap "in_ns '$NS_A' sysctl -qw net.ipv4.ip_local_port_range='$range'" EXIT
	in_ns "$NS_A" sysctl -qw net.ipv4.ip_local_port_range='40000 40003'
	start "$NS_A" "$TMP/connected" python3 -c 'import errno, socket, sys, time
there = (sys.argv[1], int(sys.argv[2]))
streams = [socket.create_connection(there, 20) for _ in range(4)]
try:
    socket.create_connection(there, 20)
except OSError as error:
    if error.errno == errno.EADDRNOTAVAIL:
        print("all are taken", flush=True)
time.sleep(600)' "$IP4_B" "$other"
	eventually 20 grep -q taken "$TMP/connected" || die "$(<"$TMP/connected")"
	rping_pair 4 3 -V
	kill "$program" "$STARTED"
}

# A peer whose MPA Request is in its SYN (TCP Fast Open). No answer of TCP gets through until the
# server has accepted, so the stream is open before the handshake has ended. The message that follows
# is what a client of rping sends first.
fast_open() {
	local server
	# shellcheck disable=SC2064
	trap "in_ns '$NS_B' tc qdisc del dev '$NET_B' root 2>/dev/null || true
		setting '$NS_B' '$DEV_B' crc 1" EXIT
	setting "$NS_B" "$DEV_B" crc 0
	# A client without a cookie; a server that needs none, for all listeners.
	in_ns "$NS_A" sysctl -qw net.ipv4.tcp_fastopen=0x5
	in_ns "$NS_B" sysctl -qw net.ipv4.tcp_fastopen=0x602
	start "$NS_B" "$TMP/server" stdbuf -oL rping -s -d -a "$IP4_B" -p "$PORT"
	server=$STARTED
	wait_listen "$PORT"
	in_ns "$NS_B" tc qdisc add dev "$NET_B" root netem loss 100%
	start "$NS_A" "$TMP/peer" within 50 python3 -c 'import socket, struct, sys
peer = socket.socket()
peer.sendto(b"MPA ID Req Frame" + bytes((0, 1, 0, 0)), socket.MSG_FASTOPEN, (sys.argv[1], int(sys.argv[2])))
print(peer.recv(20, socket.MSG_WAITALL)[:16], flush=True)
peer.send(struct.pack(">HBBIIIIQIII", 34, 0x41, 0x43, 0, 0, 1, 0, 1, 2, 64, 0))
peer.recv(1, socket.MSG_WAITALL)' "$IP4_B" "$PORT"
	eventually 20 grep -q EVENT_ESTABLISHED "$TMP/server" || die "not accepted: $(last_line "$TMP/server")"
	in_ns "$NS_B" ss -Htan state syn-recv "sport = :$PORT" | grep . ||
		die 'the stream has gone, or the handshake has ended'
	in_ns "$NS_B" tc qdisc del dev "$NET_B" root
	eventually 20 grep -q 'Received rkey 2 addr 1 len 64' "$TMP/server" ||
		die "no message: $(last_line "$TMP/server"), $(last_line "$TMP/peer")"
	grep 'MPA ID Rep' "$TMP/peer" || die "$(last_line "$TMP/peer")"
	kill "$server" "$STARTED" 2>/dev/null || true
}

# repeated_in NAMESPACE: prints how many segments TCP has retransmitted there.
repeated_in() { in_ns "$1" awk '/^Tcp: [0-9]/ { print $13 }' /proc/net/snmp; }

# TCP must retransmit, reorder and drop duplicates. Losses are random, so this repeats until TCP has
# retransmitted.
lossy_path() {
	local repeated
	in_ns "$NS_A" tc qdisc add dev "$NET_A" root netem delay 1ms 1ms loss 2% duplicate 5%
	in_ns "$NS_B" tc qdisc add dev "$NET_B" root netem delay 1ms 1ms loss 2% duplicate 5%
	for _ in {1..10}; do
		rping_pair 4 20 -V -S 20000
		repeated=$(($(repeated_in "$NS_A") + $(repeated_in "$NS_B")))
		echo "$repeated segments were repeated"
		[ "$repeated" = 0 ] || return 0
		PORT=$((PORT + 1))
	done
	return 1
}

for topology in ${TOPOLOGIES:-netns self}; do
	ends_up "$topology"
	try "$topology/ipv4" 60 rping_pair 4 20 -V
	try "$topology/ipv6" 60 rping_pair 6 20 -V
	try "$topology/sizes" 120 sizes
	try "$topology/source_address" 60 source_address
	try "$topology/persistent_server" 90 persistent_server
	if [ "$topology" = netns ]; then
		try "$topology/wildcard_ipv4" 60 wildcard_server 0.0.0.0 "$IP4_B"
		try "$topology/wildcard_ipv6" 60 wildcard_server :: "$IP6_B"
		try few_ports 60 few_ports
		[ "$TYPE" = siw ] || try fast_open 60 fast_open
		try lossy_path 90 lossy_path
	fi
	ends_down
done
finish
