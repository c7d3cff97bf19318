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

# The server keeps running, so only the status of the client counts.
ends_up "${TOPOLOGY:-netns}"
try rdma_client_server 40 client_server
try rdma_xclient_xserver 40 xclient_xserver
try ucmatose 40 ucmatose_pair -c 1 -C 10 -S 100
try ucmatose_many 110 ucmatose_pair -c 50 -C 10 -S 1000
try ucmatose_large 110 ucmatose_pair -c 5 -C 10 -S 1000000
try ucmatose_connections_only 110 ucmatose_pair -c 100 -C 0
finish
