# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
#
# Part of stacks.sh: the example programs of rdma-core besides those of rping.sh, cmtools.sh and
# rc.sh.

# xclient_options OPTIONS...: one message from end A to end B; the server has a shared receive
# queue.
xclient() { pair 30 rdma_xserver -p "$PORT" "$@" -- rdma_xclient -s "$IP4_B" -p "$PORT" "$@"; }

# Datagrams: iWARP has none, so this has to fail at once, and say why.
udaddy_refused() {
	local rc=0
	start "$NS_B" "$TMP/udaddy.server" within 30 udaddy -b "$IP4_B"
	in_ns "$NS_A" within 20 udaddy -s "$IP4_B" >"$TMP/udaddy" 2>&1 || rc=$?
	cat "$TMP/udaddy"
	kill "$STARTED"
	[ "$rc" != 0 ] && [ "$rc" != 124 ] || die "exit status $rc"
	grep -q 'unable to create QP: Operation not supported' "$TMP/udaddy" || die "no reason"
}

# It synchronises over TCP, at the port at which it also listens for RDMA.
cmtime_one_port() {
	local rc=0
	in_ns "$NS_B" within 30 strace -f -e trace=bind -o "$TMP/cmtime" cmtime -b "$IP4_B" -p "$PORT" -c 10 || rc=$?
	grep -q 'bind.*EADDRINUSE' "$TMP/cmtime" || die "exit status $rc, and not for the port"
	setting "$NS_A" "$DEV_A" port_offset 20000
	setting "$NS_B" "$DEV_B" port_offset 20000
	pair 60 cmtime -q 0 -b "$IP4_B" -p "$PORT" -c 100 -- cmtime -q 0 -s "$IP4_B" -b "$IP4_A" -p "$PORT" -c 100
	grep '^cm connect ' "$CLIENT_OUT"
}

version rdma-core rdmacm-utils
ends_up netns
name=$TYPE/rdma-core
try "$name/xclient_xserver" 40 xclient -c r
try "$name/udaddy_refused" 60 udaddy_refused
try "$name/cmtime" 100 cmtime_one_port
ends_down
