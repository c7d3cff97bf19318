#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# The example programs of librdmacm.
set -eu
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

xclient_xserver() {
	pair 30 rdma_xserver -p "$PORT" -c r -- rdma_xclient -s "$IP4_B" -p "$PORT" -c r
}

# ucmatose_pair OPTIONS...: many connections at once, messages of one size in both directions.
ucmatose_pair() {
	pair 100 ucmatose -b "$IP4_B" -p "$PORT" "$@" -- ucmatose -s "$IP4_B" -b "$IP4_A" -p "$PORT" "$@"
	grep -q 'return status 0' "$CLIENT_OUT" || die "client: $(last_line "$CLIENT_OUT")"
	grep -q 'return status 0' "$SERVER_OUT" || die "server: $(last_line "$SERVER_OUT")"
}

# offset NUMBER: how far the TCP ports of both ends are behind those of rdma_cm.
offset() {
	setting "$NS_A" "$DEV_A" port_offset "$1"
	setting "$NS_B" "$DEV_B" port_offset "$1"
}

# This program synchronises over TCP, at the port at which it also listens for RDMA.
cmtime_one_port() {
	offset 20000
	pair 60 cmtime -q 0 -b "$IP4_B" -p "$PORT" -c 10 -- cmtime -q 0 -s "$IP4_B" -b "$IP4_A" -p "$PORT" -c 10
	grep '^cm connect ' "$CLIENT_OUT"
}

# A TCP program that ends each connection. It imports little, since a module like http.server takes
# up to 20 seconds to start on a busy machine.
HANGS_UP='
import socket, sys
server = socket.create_server(("", int(sys.argv[1])))
while True:
    server.accept()[0].close()
'
# A listener on all addresses, whose port a TCP program has. After 65535 comes 1. A peer without the
# offset finds the TCP port by its own number.
one_port_on_all_addresses() {
	local tcp=$((PORT - 1)) server
	start "$NS_B" "$TMP/tcp" python3 -c "$HANGS_UP" "$PORT"
	wait_listen "$PORT"
	offset 65534
	start "$NS_B" "$TMP/server" within 60 rping -s -P -p "$PORT"
	wait_listen "$tcp"
	server=$STARTED
	start "$NS_A" "$TMP/client" within 60 rping -c -a "$IP4_B" -p "$PORT" -C 1000000000
	# Both programs see the number that they named.
	eventually 20 knows_port "$NS_A" dst-addr
	eventually 20 knows_port "$NS_B" src-addr
	kill "$STARTED"
	setting "$NS_A" "$DEV_A" port_offset 0
	in_ns "$NS_A" within 30 rping -c -a "$IP4_B" -p "$tcp" -C 3
	if in_ns "$NS_A" within 30 rping -c -a "$IP4_B" -p "$PORT" -C 3; then die 'without the offset: connected'; fi
	kill "$server"
}
# knows_port NETNS src-addr|dst-addr: whether a connection there has PORT at end B.
knows_port() { in_ns "$1" rdma resource show cm_id | grep 'state CONNECT' | grep "dst-addr" | grep -q "$2 $IP4_B:$PORT"; }

# The server keeps running, so only the status of the client counts.
ends_up "${TOPOLOGY:-netns}"
try rdma_client_server 40 client_server
try rdma_xclient_xserver 40 xclient_xserver
try ucmatose 40 ucmatose_pair -c 1 -C 10 -S 100
try ucmatose_many 110 ucmatose_pair -c 50 -C 10 -S 1000
try ucmatose_large 110 ucmatose_pair -c 5 -C 10 -S 1000000
try ucmatose_connections_only 110 ucmatose_pair -c 100 -C 0
try cmtime_one_port 70 cmtime_one_port
try one_port_on_all_addresses 100 one_port_on_all_addresses
finish
